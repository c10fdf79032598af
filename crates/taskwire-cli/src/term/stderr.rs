//! Standard error: notices, and a status line. The status line is drawn only while the output stands at the beginning of a line, and is
//! cleared before anything else is written.

use std::{io::Write, time::Duration};

use taskwire::clock::{Clock, SystemClock};
use taskwire_core::Timestamp;

use super::{
    escape,
    paint::{Paint, Terminal, parse_time, short_duration},
};

/// How often the status line is drawn.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// Ticks without output before it is drawn: between two words of a story it would only flicker.
const TICKS_QUIET: u32 = 3;
/// How often a status is printed at most where there is no status line.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// Cells of a bar.
const BAR_CELLS: usize = 12;
/// Clears the line of the cursor and all below: a line that has become too wide stands on several.
pub(crate) const CLEAR: &str = "\r\x1b[J";

const RECONNECTING: &str = "reconnecting";

const FRAMES: &[char] = &['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];
const FRAMES_ASCII: &[char] = &['|', '/', '-', '\\'];

/// Standard error.
pub(crate) struct StatusDisplay {
    paint: Paint,
    unicode: bool,
    /// Whether there is a status line at all.
    draws: bool,
    /// Whether only errors are printed.
    is_silent: bool,
    /// Whether the status line is drawn now.
    is_drawn: bool,
    /// Whether the cursor stands behind text that did not end its line.
    is_line_open: bool,
    quiet_ticks: u32,
    ticks: usize,
    progress_line: ProgressLine,
    last_status: Option<(String, Timestamp)>,
}

/// What the status line shows.
#[derive(Debug, Clone)]
struct ProgressLine {
    tool: String,
    progress: Option<(f64, Option<f64>)>,
    /// The progress was read from the message.
    is_from_message: bool,
    message: Option<String>,
    /// The connection is lost.
    is_disconnected: bool,
    since: Timestamp,
}

impl StatusDisplay {
    /// `is_silent`: the output is for programs, so there are no notices.
    pub(crate) fn new(surroundings: Terminal, is_silent: bool, tool: &str) -> Self {
        let work = ProgressLine {
            tool: escape::line(tool),
            progress: None,
            is_from_message: false,
            message: None,
            is_disconnected: false,
            since: SystemClock.now(),
        };
        Self {
            paint: surroundings.stderr_paint(),
            unicode: surroundings.unicode,
            draws: surroundings.stderr && surroundings.colours && !is_silent,
            is_silent,
            is_drawn: false,
            is_line_open: false,
            quiet_ticks: 0,
            ticks: 0,
            progress_line: work,
            last_status: None,
        }
    }

    pub(crate) fn paint(&self) -> Paint {
        self.paint
    }

    /// Whether ticks are needed.
    pub(crate) fn draws(&self) -> bool {
        self.draws
    }

    /// Prints a notice on its own line.
    pub(crate) fn note(&mut self, text: &str) {
        if self.is_silent {
            return;
        }
        self.fresh_line();
        write(&format!("{}\n", self.paint.dim(&format!("taskwire: {}", escape::line(text)))));
    }

    /// Prints an error on its own line.
    pub(crate) fn error(&mut self, text: &str) {
        if !self.is_silent {
            self.fresh_line();
            write(&format!("{}\n", self.paint.red(&format!("taskwire: {}", escape::line(text)))));
        }
    }

    /// Prints text from the beginning of a line.
    pub(crate) fn say(&mut self, text: &str) {
        self.fresh_line();
        write(text);
        self.is_line_open = !text.is_empty() && !text.ends_with('\n');
    }

    /// Moves the cursor to the beginning of an empty line.
    pub(crate) fn fresh_line(&mut self) {
        self.clear();
        if std::mem::take(&mut self.is_line_open) {
            write("\n");
        }
    }

    /// The person pressed Enter.
    pub(crate) fn line_was_ended(&mut self) {
        self.is_line_open = false;
    }

    /// Text was written to the same terminal.
    pub(crate) fn output_written(&mut self, is_line_open: bool) {
        self.is_line_open = is_line_open;
        self.quiet_ticks = 0;
    }

    /// The person pressed Ctrl-C, and a terminal has shown `^C` for it.
    pub(crate) fn was_interrupted(&mut self) {
        self.is_drawn |= self.draws && !self.is_line_open;
    }

    /// Clears the status line.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            write(CLEAR);
        }
        self.quiet_ticks = 0;
    }

    /// The call is a task. Its earlier progress counts no more: many servers report progress only for calls.
    pub(crate) fn became_task(&mut self) {
        self.progress_line.progress = None;
    }

    /// The task began at this time by its server's clock, not when we came to watch it.
    pub(crate) fn set_start(&mut self, at: &str) {
        self.progress_line.set_start(at, SystemClock.now());
    }

    pub(crate) fn set_connected(&mut self, is_there: bool) {
        self.progress_line.is_disconnected = !is_there;
    }

    /// How far the work is.
    pub(crate) fn progress(&mut self, progress: f64, total: Option<f64>, message: Option<&str>) {
        self.progress_line.progress = Some((progress, total));
        self.progress_line.is_from_message = false;
        if let Some(message) = message {
            self.progress_line.message = Some(escape::line(message));
        }
    }

    /// The task's status.
    pub(crate) fn set_status(&mut self, status: &str, message: Option<&str>) {
        let message = message.filter(|message| !message.trim().is_empty()).map(escape::line);
        let text = message.as_ref().map_or_else(|| status.to_owned(), |message| format!("{status}: {message}"));
        let now = SystemClock.now();
        let is_news = match &self.last_status {
            // "working" is printed only after another status.
            None => message.is_some() || status != "working",
            Some((said, at)) => *said != text && now.since(*at) >= STATUS_INTERVAL,
        };
        self.progress_line.set_message(message.unwrap_or_else(|| status.replace('_', " ")));
        if !self.draws && is_news {
            self.note(&text);
            self.last_status = Some((text, now));
        }
    }

    /// Draws the status line again, if it may be there.
    pub(crate) fn tick(&mut self) {
        self.quiet_ticks = self.quiet_ticks.saturating_add(1);
        if !self.draws || self.is_line_open || self.quiet_ticks < TICKS_QUIET {
            return;
        }
        let frames = if self.unicode { FRAMES } else { FRAMES_ASCII };
        let frame = frames[self.ticks % frames.len()];
        self.ticks = self.ticks.wrapping_add(1);
        let columns = usize::from(console::Term::stderr().size().1);
        let text = self.progress_line.text(SystemClock.now().since(self.progress_line.since), self.unicode);
        write(&status_line(frame, &text, columns, self.unicode));
        self.is_drawn = true;
    }
}

/// The status line as it is drawn. The cursor returns to its beginning: there the `^C` that a terminal shows does no harm, and all of it
/// can be cleared, even after the window has become narrower.
fn status_line(frame: char, text: &str, columns: usize, unicode: bool) -> String {
    // The frame, a blank, and the last column, where some terminals begin a new line.
    format!("\r{frame} {}\x1b[J\r", fit(text, columns.saturating_sub(3), unicode))
}

impl Drop for StatusDisplay {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Writes to standard error, and ignores errors.
pub(crate) fn write(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Cuts text to so many columns.
pub(crate) fn fit(text: &str, columns: usize, unicode: bool) -> String {
    let tail = if unicode { "…" } else { "." };
    if columns == 0 { String::new() } else { console::truncate_str(text, columns, tail).into_owned() }
}

/// Parses a message that is a count, `2/10`, or ends with one, `(2/10)`: returns what comes before, and the count.
fn parse_count(message: &str) -> Option<(&str, f64, f64)> {
    let message = message.trim_end();
    let (before, count) = match message.strip_suffix(')') {
        Some(rest) => rest.rsplit_once('(')?,
        None => ("", message),
    };
    let (done, total) = count.split_once('/')?;
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    let (done, total) = (number(done)?, number(total)?);
    (total > 0.0 && done <= total).then_some((before.trim_end(), done, total))
}

impl ProgressLine {
    /// Sets the message. If it has a count, the bar shows it; otherwise the count of an earlier message is dropped.
    fn set_message(&mut self, message: String) {
        let Some((before, done, total)) = parse_count(&message) else {
            if std::mem::take(&mut self.is_from_message) {
                self.progress = None;
            }
            self.message = Some(message);
            return;
        };
        self.progress = Some((done, Some(total)));
        self.is_from_message = true;
        self.message = Some(before.to_owned()).filter(|before| !before.is_empty());
    }

    fn set_start(&mut self, at: &str, now: Timestamp) {
        // A server's clock that is ahead of ours is ignored.
        if let Some(at) = parse_time(at).filter(|at| *at <= now) {
            self.since = at;
        }
    }

    fn text(&self, elapsed: Duration, unicode: bool) -> String {
        let mut head = if self.tool.is_empty() { "task".to_owned() } else { self.tool.clone() };
        match self.progress {
            Some((progress, Some(total))) if total > 0.0 => {
                let filled = (progress / total).clamp(0.0, 1.0) * BAR_CELLS as f64;
                let filled = filled.round() as usize;
                let (full, empty) = if unicode { ("━", "╌") } else { ("=", "-") };
                head = format!("{head} {}{} {progress}/{total}", full.repeat(filled), empty.repeat(BAR_CELLS - filled));
            }
            Some((progress, _)) => head = format!("{head} {progress} done"),
            None => {}
        }
        // Some servers repeat the count in words: once is enough.
        let own_message = self.message.clone().filter(|message| !head.ends_with(&format!(" {message}")));
        let message = if self.is_disconnected { Some(RECONNECTING.to_owned()) } else { own_message };
        let parts = [Some(head), message, Some(short_duration(elapsed))];
        parts.into_iter().flatten().collect::<Vec<_>>().join(if unicode { " · " } else { " - " })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(progress: Option<(f64, Option<f64>)>, message: Option<&str>) -> String {
        let message = message.map(ToOwned::to_owned);
        let work = ProgressLine {
            tool: "bake".to_owned(),
            progress,
            is_from_message: false,
            message,
            is_disconnected: false,
            since: Timestamp::default(),
        };
        work.text(Duration::from_secs(12), true)
    }

    #[test]
    fn the_line_tells_what_is_known() {
        assert_eq!(work(None, None), "bake · 12s");
        assert_eq!(work(None, Some("kneading")), "bake · kneading · 12s");
        assert_eq!(work(Some((5.0, Some(10.0))), Some("baking")), "bake ━━━━━━╌╌╌╌╌╌ 5/10 · baking · 12s");
        assert_eq!(work(Some((5.5, None)), None), "bake 5.5 done · 12s");
        assert_eq!(work(Some((5.5, None)), Some("5.5 done")), "bake 5.5 done · 12s");
    }

    #[test]
    fn more_than_all_is_all_and_less_than_nothing_is_nothing() {
        assert!(work(Some((20.0, Some(10.0))), None).contains(&"━".repeat(BAR_CELLS)));
        assert!(work(Some((-1.0, Some(10.0))), None).contains(&"╌".repeat(BAR_CELLS)));
        assert!(work(Some((f64::NAN, Some(10.0))), None).contains("╌"));
    }

    #[test]
    fn a_narrow_window_gets_the_beginning() {
        assert_eq!(fit("bake · kneading · 12s", 10, true), "bake · kn…");
        assert_eq!(fit("世界世界", 5, true), "世界…");
        assert_eq!(fit("short", 10, true), "short");
        assert_eq!(fit("anything", 0, true), "");
    }

    #[test]
    fn how_far_the_work_is_is_read_from_its_message() {
        let mut work = ProgressLine {
            tool: "bake".to_owned(),
            progress: Some((1.0, None)),
            is_from_message: false,
            message: None,
            is_disconnected: false,
            since: Timestamp::default(),
        };
        let mut line_for = |message: &str| {
            work.set_message(message.to_owned());
            work.text(Duration::from_secs(12), true)
        };
        assert_eq!(line_for("resting (5/10)"), "bake ━━━━━━╌╌╌╌╌╌ 5/10 · resting · 12s");
        assert_eq!(line_for("(10/10)"), "bake ━━━━━━━━━━━━ 10/10 · 12s");
        assert_eq!(line_for("5/10"), "bake ━━━━━━╌╌╌╌╌╌ 5/10 · 12s");
        assert_eq!(line_for("cooling"), "bake · cooling · 12s", "what the message before said is over");
        for message in ["a (b)", "see (1/0)", "(7/5)", "due 1/2", "ratio (-1/2)", "(x/2)"] {
            assert_eq!(parse_count(message), None, "{message}");
        }
        work.is_disconnected = true;
        assert_eq!(work.text(Duration::from_secs(12), true), "bake · reconnecting · 12s");
    }

    #[test]
    fn time_is_counted_from_the_beginning_of_the_task() {
        let (since, now) = (Timestamp::from_millis(1_785_196_900_000), Timestamp::from_millis(1_785_196_985_000));
        let mut work =
            ProgressLine { tool: "bake".to_owned(), progress: None, is_from_message: false, message: None, is_disconnected: false, since };
        for useless in ["", "soon", "2026-07-28T00:03:06Z"] {
            work.set_start(useless, now);
            assert_eq!(work.since, since, "{useless}");
        }
        work.set_start("2026-07-28T00:00:00.000Z", now);
        assert_eq!(now.since(work.since), Duration::from_secs(185));
    }

    #[test]
    fn the_line_leaves_the_cursor_where_it_begins_and_never_fills_the_window() {
        assert_eq!(status_line('|', "bake - 12s", 80, false), "\r| bake - 12s\x1b[J\r");
        assert_eq!(status_line('|', "bake - 12s", 9, false), "\r| bake .\x1b[J\r");
        assert_eq!(status_line('|', "bake", 0, false), "\r| \x1b[J\r");
    }
}
