//! What a terminal can show: colours, width, letters. Detected once, then passed down.

use std::{
    ffi::OsStr,
    io::{IsTerminal, stderr, stdin, stdout},
    time::{Duration, UNIX_EPOCH},
};

use taskwire_core::Timestamp;

/// What this process is attached to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terminal {
    /// Standard output is a terminal.
    pub(crate) stdout: bool,
    /// Standard error is a terminal.
    pub(crate) stderr: bool,
    /// A person can be asked.
    pub(crate) can_ask: bool,
    /// Colours and cursor movements are understood and wanted.
    pub(crate) colours: bool,
    /// Letters beyond ASCII are shown.
    pub(crate) unicode: bool,
}

impl Terminal {
    pub(crate) fn detect() -> Self {
        let env = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let locale = env("LC_ALL").or_else(|| env("LC_CTYPE")).or_else(|| env("LANG"));
        Self {
            stdout: stdout().is_terminal(),
            stderr: stderr().is_terminal(),
            can_ask: stdin().is_terminal() && stderr().is_terminal(),
            colours: wants_colours(std::env::var_os("NO_COLOR").as_deref(), std::env::var_os("TERM").as_deref()),
            unicode: locale.is_some_and(|locale| is_unicode(&locale.to_string_lossy())),
        }
    }

    /// For notices.
    pub(crate) fn stderr_paint(self) -> Paint {
        Paint(self.stderr && self.colours)
    }

    /// For tables.
    pub(crate) fn stdout_paint(self) -> Paint {
        Paint(self.stdout && self.colours)
    }

    /// How many columns a table may have; any number in a pipe.
    pub(crate) fn stdout_columns(self) -> Option<usize> {
        self.stdout.then(|| usize::from(console::Term::stdout().size().1))
    }
}

fn wants_colours(no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    no_color.is_none_or(OsStr::is_empty) && term.is_some_and(|term| term != "dumb")
}

fn is_unicode(locale: &str) -> bool {
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// Text in colours, or not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paint(bool);

impl Paint {
    #[cfg(test)]
    pub(crate) fn plain() -> Self {
        Self(false)
    }

    fn style(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.style("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.style("2", text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.style("31", text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.style("32", text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.style("33", text)
    }
}

/// `12s`, `3m 05s`, `2h 10m`, `5d 03h`.
pub(crate) fn short_duration(span: Duration) -> String {
    let seconds = span.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {:02}s", seconds % 60),
        (0, _, _) => format!("{hours}h {:02}m", minutes % 60),
        _ => format!("{days}d {:02}h", hours % 24),
    }
}

/// Parses a timestamp of a server.
pub(crate) fn parse_time(text: &str) -> Option<Timestamp> {
    let since = humantime::parse_rfc3339_weak(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(Timestamp::from_millis(i64::try_from(since.as_millis()).ok()?))
}

/// Quotes a word for a shell.
pub(crate) fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+~#".contains(c);
    let is_plain = !word.is_empty() && word.chars().all(plain) && !word.starts_with(['-', '#', '~', '=']);
    if is_plain { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_that_know_them_and_people_who_want_them() {
        let os = OsStr::new;
        assert!(wants_colours(None, Some(os("xterm"))));
        assert!(!wants_colours(None, Some(os("dumb"))));
        assert!(!wants_colours(None, None));
        assert!(!wants_colours(Some(os("1")), Some(os("xterm"))));
        assert!(wants_colours(Some(os("")), Some(os("xterm"))), "empty means nothing");
        assert_eq!((Paint(true).bold("x"), Paint(false).bold("x")), ("\x1b[1mx\x1b[0m".to_owned(), "x".to_owned()));
    }

    #[test]
    fn a_locale_says_whether_letters_can_be_shown() {
        assert!(is_unicode("de_DE.UTF-8") && is_unicode("C.utf8"));
        assert!(!is_unicode("C") && !is_unicode("de_DE.ISO-8859-1"));
    }

    #[test]
    fn spans_have_two_units() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (60, "1m 00s"), (185, "3m 05s"), (7800, "2h 10m"), (442_800, "5d 03h")] {
            assert_eq!(short_duration(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn words_for_a_shell_are_quoted_where_needed() {
        assert_eq!(shell_word("01kab-c_d"), "01kab-c_d");
        assert_eq!(shell_word("http://h:1/mcp#x"), "http://h:1/mcp#x");
        assert_eq!(shell_word("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!((shell_word(""), shell_word("-x")), ("''".to_owned(), "'-x'".to_owned()));
    }
}
