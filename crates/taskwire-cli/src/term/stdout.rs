//! Standard output, and how far a task's output was shown, to the byte: after a kill, the next process continues there.

use std::{borrow::Cow, io, io::Write, os::fd::AsFd};

use taskwire::client::{self, OutputPosition, OutputTracker};

use super::{escape::Filter, render::ShownSoFar};

#[derive(Debug)]
pub(crate) enum OutputItem {
    /// Output of the task.
    Chunk { seq: u64, text: String },
    /// A line for programs, which may stand for output of the task.
    Line { line: String, chunk: Option<(u64, String)> },
    /// The end of the output. Nothing comes after it.
    Last(String),
}

/// Where output is written and counted.
pub(crate) trait Sink: Send {
    /// Records what will have been shown after so many more bytes.
    fn begin(&mut self, bytes: usize, parts: IncompleteWrites, then: OutputPosition) -> Result<(), client::Error>;

    fn send(&mut self, text: &[u8]) -> io::Result<()>;
}

/// Whether text counts as shown if only a part of it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IncompleteWrites {
    Count,
    DoNotCount,
}

impl Sink for OutputTracker {
    fn begin(&mut self, bytes: usize, parts: IncompleteWrites, then: OutputPosition) -> Result<(), client::Error> {
        match parts {
            IncompleteWrites::Count => OutputTracker::begin(self, bytes, then),
            IncompleteWrites::DoNotCount => OutputTracker::begin_whole(self, bytes, then),
        }
    }

    fn send(&mut self, text: &[u8]) -> io::Result<()> {
        // Past the standard library's buffer: what is in there was not written yet.
        OutputTracker::send(self, io::stdout().as_fd(), text)
    }
}

/// Standard output.
pub(crate) struct OutputWriter {
    /// For text that does not count as output.
    uncounted: Box<dyn Sink>,
    /// On a terminal: filters what reaches it.
    filter: Option<Filter>,
    tracker: Option<Box<dyn Sink>>,
    /// Why the position is no longer tracked, if so.
    tracker_error: Option<client::Error>,
    /// The position after all chunks that came so far.
    shown: OutputPosition,
    /// Bytes of the next text that were shown before.
    skip_bytes: u64,
    from_start: bool,
    line_open: bool,
    /// Only the result is shown: there is no position in the output, only its end.
    is_result_only: bool,
}

impl OutputWriter {
    /// The real standard output. `colours` is for a terminal; elsewhere bytes are written as they come.
    pub(crate) fn stdout(is_terminal: bool, colours: bool) -> Self {
        Self::new(Box::new(OutputTracker::untracked()), is_terminal.then(|| Filter::new(colours)))
    }

    fn new(plain: Box<dyn Sink>, filter: Option<Filter>) -> Self {
        Self {
            uncounted: plain,
            filter,
            tracker: None,
            tracker_error: None,
            shown: OutputPosition::default(),
            skip_bytes: 0,
            from_start: true,
            line_open: false,
            is_result_only: false,
        }
    }

    /// Continues at this position.
    pub(crate) fn resume_from(&mut self, shown: OutputPosition) {
        self.skip_bytes = shown.offset;
        self.shown = OutputPosition { offset: 0, ..shown };
    }

    /// Begins at this chunk, whatever was shown before.
    pub(crate) fn start_at(&mut self, seq: u64) {
        self.resume_from(OutputPosition { seq, ..OutputPosition::default() });
        self.from_start = seq == 0;
    }

    pub(crate) fn set_result_only(&mut self) {
        self.is_result_only = true;
    }

    /// Tracks from now on how far the output was shown.
    pub(crate) fn set_tracker(&mut self, tracker: Box<dyn Sink>) {
        self.tracker = Some(tracker);
    }

    pub(crate) fn has_tracker(&self) -> bool {
        self.tracker.is_some()
    }

    pub(crate) fn shown(&self) -> OutputPosition {
        self.shown
    }

    pub(crate) fn line_open(&self) -> bool {
        self.line_open
    }

    pub(crate) fn shown_so_far(&self) -> ShownSoFar {
        ShownSoFar { shown: self.shown, from_start: self.from_start, line_open: self.line_open }
    }

    /// The reason why the position is no longer tracked; it is reported once.
    pub(crate) fn take_tracker_error(&mut self) -> Option<client::Error> {
        self.tracker_error.take()
    }

    pub(crate) fn write_item(&mut self, job: OutputItem) -> io::Result<()> {
        match job {
            OutputItem::Chunk { seq, text } => self.chunk(seq, &text),
            OutputItem::Line { line, chunk } => self.line(&line, chunk),
            OutputItem::Last(words) => self.last(&words),
        }
    }

    fn chunk(&mut self, seq: u64, text: &str) -> io::Result<()> {
        let output = self.pass(text);
        if !text.is_empty() {
            self.line_open = !text.ends_with('\n');
        }
        // A chunk that was shown comes again only to tell whether it ended its line.
        if seq < self.shown.seq {
            return Ok(());
        }
        self.add(seq, text);
        self.show(&output, IncompleteWrites::Count, self.shown)
    }

    fn line(&mut self, line: &str, chunk: Option<(u64, String)>) -> io::Result<()> {
        let line = format!("{line}\n");
        let Some((seq, text)) = chunk else { return self.uncounted.send(line.as_bytes()) };
        if seq < self.shown.seq {
            return Ok(());
        }
        self.add(seq, &text);
        // Half a line is of no use to programs: the whole line is written again.
        self.skip_bytes = 0;
        self.show(&line, IncompleteWrites::DoNotCount, self.shown)
    }

    /// Writes the end. After a kill within it, the next process continues within it: it counts as the chunk after the last.
    fn last(&mut self, words: &str) -> io::Result<()> {
        let mut output = self.pass(words);
        if let Some(filter) = &mut self.filter {
            output.to_mut().push_str(&filter.end());
        }
        self.shown.result_shown = true;
        let parts = if self.is_result_only { IncompleteWrites::DoNotCount } else { IncompleteWrites::Count };
        self.show(&output, parts, self.shown)
    }

    /// Counts a chunk that is about to be shown.
    fn add(&mut self, seq: u64, text: &str) {
        if seq > self.shown.seq {
            // The rest of the chunk that was shown in part is lost.
            self.skip_bytes = 0;
        }
        self.shown.add(text);
        self.shown.seq = seq + 1;
    }

    /// The part of a text that may be written.
    fn pass<'a>(&mut self, text: &'a str) -> Cow<'a, str> {
        match &mut self.filter {
            None => Cow::Borrowed(text),
            Some(filter) => Cow::Owned(filter.pass(text)),
        }
    }

    /// Writes what was not written before; when all of it is written, `then` was shown.
    fn show(&mut self, output: &str, parts: IncompleteWrites, then: OutputPosition) -> io::Result<()> {
        let known = usize::try_from(self.skip_bytes).unwrap_or(usize::MAX).min(output.len());
        let rest = &output.as_bytes()[known..];
        // A sequence that continues in the next chunk is pending, not written. The next process must read its beginning: so what is written
        // counts as part of the last chunk before which nothing was pending.
        if self.filter.as_ref().is_some_and(Filter::has_pending) {
            self.skip_bytes -= known as u64;
        } else {
            self.skip_bytes = 0;
            self.begin(rest.len(), parts, then);
        }
        self.tracker.as_mut().unwrap_or(&mut self.uncounted).send(rest)
    }

    fn begin(&mut self, bytes: usize, parts: IncompleteWrites, then: OutputPosition) {
        if let Some(tracker) = &mut self.tracker
            && let Err(error) = tracker.begin(bytes, parts, then)
        {
            self.tracker = None;
            self.tracker_error = Some(error);
        }
    }
}

/// Writes to standard output. A reader that stops, as `head` does, is no error.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// What was written and counted, and a kill that comes after so many bytes.
    #[derive(Clone, Default)]
    struct FakeOutput(Arc<Mutex<FakeState>>);

    #[derive(Default)]
    struct FakeState {
        written: Vec<u8>,
        left: usize,
        /// What was shown when the last text was begun, bytes that were sent since, and the position after it.
        before: OutputPosition,
        sent: usize,
        aim: Option<(usize, IncompleteWrites, OutputPosition)>,
    }

    impl FakeState {
        fn shown(&self) -> OutputPosition {
            let (from, more) = match self.aim {
                Some((bytes, _, then)) if self.sent >= bytes => (then, self.sent - bytes),
                Some((_, IncompleteWrites::DoNotCount, _)) => (self.before, 0),
                _ => (self.before, self.sent),
            };
            OutputPosition { offset: from.offset + more as u64, ..from }
        }

        fn write(&mut self, text: &[u8]) -> usize {
            let len = text.len().min(self.left);
            self.written.extend(&text[..len]);
            self.left -= len;
            len
        }
    }

    impl Sink for FakeOutput {
        fn begin(&mut self, bytes: usize, parts: IncompleteWrites, then: OutputPosition) -> Result<(), client::Error> {
            let mut sheet = self.0.lock().unwrap();
            sheet.before = sheet.shown();
            sheet.sent = 0;
            sheet.aim = Some((bytes, parts, then));
            Ok(())
        }

        fn send(&mut self, text: &[u8]) -> io::Result<()> {
            let mut sheet = self.0.lock().unwrap();
            let len = sheet.write(text);
            sheet.sent += len;
            if len < text.len() { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
        }
    }

    /// The same, not counted.
    struct Plain(FakeOutput);

    impl Sink for Plain {
        fn begin(&mut self, _: usize, _: IncompleteWrites, _: OutputPosition) -> Result<(), client::Error> {
            Ok(())
        }

        fn send(&mut self, text: &[u8]) -> io::Result<()> {
            self.0.0.lock().unwrap().write(text);
            Ok(())
        }
    }

    impl FakeOutput {
        fn out(&self, bytes: usize) -> OutputWriter {
            self.0.lock().unwrap().left = bytes;
            let mut out = OutputWriter::new(Box::new(Plain(self.clone())), None);
            out.set_tracker(Box::new(self.clone()));
            out.resume_from(self.shown());
            out
        }

        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().written.clone()).expect("text")
        }

        fn shown(&self) -> OutputPosition {
            self.0.lock().unwrap().shown()
        }
    }

    /// Shows the chunks from the recorded position on, and the end.
    fn show(paper: &FakeOutput, filter: Option<Filter>, chunks: &[&str], last: &str, bytes: usize) -> io::Result<()> {
        let mut out = paper.out(bytes);
        out.filter = filter;
        let first = out.shown().seq.saturating_sub(1) as usize;
        for (seq, text) in chunks.iter().enumerate().skip(first) {
            out.write_item(OutputItem::Chunk { seq: seq as u64, text: (*text).to_owned() })?;
        }
        let newline = if out.line_open() { "\n" } else { "" };
        out.write_item(OutputItem::Last(format!("{newline}{last}")))
    }

    /// Kills the writer after any byte, and the next one after any other.
    fn kill_everywhere(filter: impl Fn() -> Option<Filter>, chunks: &[&str], last: &str) -> String {
        let whole = FakeOutput::default();
        show(&whole, filter(), chunks, last, usize::MAX).expect("not killed");
        assert!(whole.shown().result_shown);
        let len = whole.text().len();
        for (one, other) in (0..len).flat_map(|one| (0..len - one).map(move |other| (one, other))) {
            let paper = FakeOutput::default();
            show(&paper, filter(), chunks, last, one).expect_err("killed");
            show(&paper, filter(), chunks, last, other).expect_err("killed");
            show(&paper, filter(), chunks, last, usize::MAX).expect("not killed");
            assert_eq!(paper.text(), whole.text(), "killed after {one} bytes and {other} more");
            assert_eq!(paper.shown(), whole.shown(), "killed after {one} bytes and {other} more");
        }
        whole.text()
    }

    #[test]
    fn killed_after_any_byte_the_next_one_goes_on_at_the_very_byte() {
        let chunks = ["one\n", "héé…", "", "", "three", "\n", "end"];
        let whole = kill_everywhere(|| None, &chunks, "the result\n");
        assert_eq!(whole, format!("{}\nthe result\n", chunks.concat()));
    }

    #[test]
    fn killed_within_what_a_terminal_does_not_get_as_it_is_the_next_one_goes_on_at_the_very_byte() {
        let chunks = ["a\x1b[3", "1mred\x1b", "[0m b\x1b[2", "J\x1b", "[", "32", "mgreen", "\x1b[", "0m\x07\x1b"];
        let whole = kill_everywhere(|| Some(Filter::new(true)), &chunks, "result\n");
        assert_eq!(whole, "a\x1b[31mred\x1b[0m b^[[2J\x1b[32mgreen\x1b[0m^G^[\nresult\n");
    }

    #[test]
    fn output_that_was_lost_is_passed_over() {
        let paper = FakeOutput::default();
        let mut out = paper.out(2);
        out.write_item(OutputItem::Chunk { seq: 0, text: "a".to_owned() }).expect("written");
        out.write_item(OutputItem::Chunk { seq: 1, text: "bc".to_owned() }).expect_err("killed");
        let mut out = paper.out(100);
        out.write_item(OutputItem::Chunk { seq: 7, text: "d".to_owned() }).expect("written");
        assert_eq!((paper.text().as_str(), paper.shown().seq), ("abd", 8));
    }

    #[test]
    fn lines_for_programs_move_the_place_as_well() {
        let paper = FakeOutput::default();
        let mut out = paper.out(100);
        out.write_item(OutputItem::Line { line: "[]".to_owned(), chunk: None }).expect("written");
        assert_eq!(paper.shown(), OutputPosition::default());
        out.write_item(OutputItem::Line { line: "{}".to_owned(), chunk: Some((0, "text".to_owned())) }).expect("written");
        out.write_item(OutputItem::Line { line: "{\"old\"}".to_owned(), chunk: Some((0, "text".to_owned())) }).expect("passed over");
        assert_eq!(paper.text(), "[]\n{}\n");
        let mut shown = OutputPosition { seq: 1, ..OutputPosition::default() };
        shown.add("text");
        assert_eq!(paper.shown(), shown);
    }

    #[test]
    fn killed_within_a_line_the_next_one_begins_it_again() {
        let paper = FakeOutput::default();
        let line = |seq: u64| OutputItem::Line { line: format!("{{{seq}}}"), chunk: Some((seq, "text".to_owned())) };
        paper.out(4).write_item(line(0)).expect("written");
        paper.out(3).write_item(line(1)).expect_err("killed");
        let mut out = paper.out(100);
        assert_eq!(out.shown().seq, 1);
        out.write_item(line(1)).expect("written");
        assert_eq!((paper.text().as_str(), paper.shown().seq), ("{0}\n{1}{1}\n", 2));
    }

    #[test]
    fn who_sees_only_the_result_sees_it_whole_and_has_no_place_but_the_end() {
        let paper = FakeOutput::default();
        for bytes in [7, 10] {
            let mut out = paper.out(bytes);
            out.set_result_only();
            let result = out.write_item(OutputItem::Last("x".repeat(10)));
            assert_eq!(
                (result.is_ok(), paper.shown()),
                (bytes == 10, OutputPosition { result_shown: bytes == 10, ..OutputPosition::default() })
            );
        }
        assert_eq!(paper.text().len(), 17);
    }

    #[test]
    fn a_terminal_gets_no_control_characters() {
        let paper = FakeOutput::default();
        let mut out = paper.out(100);
        out.filter = Some(Filter::new(true));
        out.write_item(OutputItem::Chunk { seq: 0, text: "a\x1b[2J\x1b[31mb".to_owned() }).expect("written");
        out.write_item(OutputItem::Last("\n".to_owned())).expect("written");
        assert_eq!(paper.text(), "a^[[2J\x1b[31mb\n\x1b[0m");
        assert_eq!(paper.shown().bytes, "a\x1b[2J\x1b[31mb".len() as u64, "counted as it came");
    }
}
