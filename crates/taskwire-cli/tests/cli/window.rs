//! A real terminal: the program runs in it, and what it draws is read as a person would see it.

use std::{
    io::{self, Read, Write},
    num::NonZeroU16,
    process::{Child, Command, Stdio},
    sync::Arc,
};

use pty_process::{
    Size,
    blocking::{Command as PtyCommand, Pty},
};

use crate::{
    kit::signal,
    user::{Stream, User},
};

/// Rows and columns of a window in which nothing need be cut.
pub(crate) const WIDE: (u16, u16) = (50, 120);
/// The signs of which the first stands before the line that shows that something is going on.
const FRAMES: &str = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏|/-\\";

/// The control sequences that a terminal got, besides text.
#[derive(Debug, Default)]
struct TerminalEffects(Vec<String>);

impl vt100::Callbacks for TerminalEffects {
    fn audible_bell(&mut self, _: &mut vt100::Screen) {
        self.0.push("rang".to_owned());
    }

    fn set_window_title(&mut self, _: &mut vt100::Screen, title: &[u8]) {
        self.0.push(format!("was called {}", String::from_utf8_lossy(title)));
    }

    fn set_window_icon_name(&mut self, _: &mut vt100::Screen, name: &[u8]) {
        self.0.push(format!("was called {}", String::from_utf8_lossy(name)));
    }

    fn copy_to_clipboard(&mut self, _: &mut vt100::Screen, _: &[u8], data: &[u8]) {
        self.0.push(format!("was given to copy {}", String::from_utf8_lossy(data)));
    }
}

/// The side of the terminal that is not the program's.
struct PtyReader(Arc<Pty>);

impl Read for PtyReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut pty: &Pty = &self.0;
        pty.read(buffer)
    }
}

/// A window with a program in it. Dropping it kills the program.
pub(crate) struct Window {
    child: Child,
    pty: Arc<Pty>,
    output: Stream,
    parser: vt100::Parser<TerminalEffects>,
    /// Bytes of the output that were drawn.
    drawn: usize,
}

impl Window {
    /// A command of this user, in a wide window.
    pub(crate) fn open(user: &User, args: &[&str]) -> Self {
        Self::run(user.command(args), WIDE)
    }

    pub(crate) fn run(command: Command, size: (u16, u16)) -> Self {
        Self::spawn(command.into(), size)
    }

    /// Only what is not output is shown in the window.
    pub(crate) fn run_piped(command: Command, size: (u16, u16)) -> (Self, Stream) {
        let mut window = Self::spawn(PtyCommand::from(command).stdout(Stdio::piped()), size);
        let out = window.child.stdout.take().expect("its output is a pipe");
        (window, Stream::of(out))
    }

    fn spawn(command: PtyCommand, (rows, columns): (u16, u16)) -> Self {
        let (pty, pts) = pty_process::blocking::open().expect("a terminal");
        pty.resize(Size::new(rows, columns)).expect("a window of this size");
        let child = command.spawn(pts).expect("the program starts");
        let pty = Arc::new(pty);
        let side = |count| NonZeroU16::new(count).expect("a window has some size");
        let parser = vt100::Parser::new_with_callbacks(side(rows), side(columns), 0, TerminalEffects::default());
        Self { child, output: Stream::of(PtyReader(pty.clone())), pty, parser, drawn: 0 }
    }

    /// Presses keys.
    pub(crate) fn press(&self, keys: &str) {
        let mut pty: &Pty = &self.pty;
        pty.write_all(keys.as_bytes()).expect("it can be typed");
    }

    /// Types a line, and Enter.
    pub(crate) fn enter(&self, line: &str) {
        self.press(&format!("{line}\r"));
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// The lines that are not empty.
    pub(crate) fn lines(&self) -> Vec<String> {
        let screen = self.parser.screen();
        let rows = screen.rows(0, screen.size().1.get());
        rows.map(|row| row.trim_end().to_owned()).filter(|row| !row.is_empty()).collect()
    }

    /// All that can be read. A line that is wider than the window is one line.
    pub(crate) fn text(&self) -> String {
        let text = self.parser.screen().contents();
        text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n").trim_end().to_owned()
    }

    /// The line that shows that something is going on, if it is there.
    pub(crate) fn progress_line(&self) -> Option<String> {
        self.lines().into_iter().find(|line| is_progress_line(line))
    }

    /// Whether a line was too wide.
    pub(crate) fn has_wide_lines(&self) -> bool {
        let screen = self.parser.screen();
        (0..screen.size().0.get()).any(|row| screen.row_wrapped(row))
    }

    /// The colour of the first letter of this text.
    pub(crate) fn colour_of(&self, text: &str) -> Option<vt100::Color> {
        let screen = self.parser.screen();
        let rows: Vec<String> = screen.rows(0, screen.size().1.get()).collect();
        let (row, at) = rows.iter().enumerate().find_map(|(row, line)| Some((row, line.find(text)?)))?;
        let column = rows[row][..at].chars().count();
        screen.cell(u16::try_from(row).ok()?, u16::try_from(column).ok()?).map(vt100::Cell::fgcolor)
    }

    /// The control sequences that the terminal got, besides text.
    pub(crate) fn effects(&self) -> &[String] {
        &self.parser.callbacks().0
    }

    /// All that the program wrote.
    pub(crate) fn raw(&self) -> String {
        self.output.text()
    }

    fn more(&mut self) -> bool {
        let is_more = self.output.more();
        self.parser.process(&self.output.bytes()[self.drawn..]);
        self.drawn = self.output.bytes().len();
        is_more
    }

    /// Waits until the window is so.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        while !is_so(self) {
            assert!(self.more(), "the program ended before {what}:\n{}", self.text());
        }
    }

    /// Waits until this can be read.
    #[track_caller]
    pub(crate) fn shows(&mut self, text: &str) {
        self.until(&format!("`{text}` was shown"), |window| window.text().contains(text));
    }

    /// Waits until this is all that stands on the last line.
    #[track_caller]
    pub(crate) fn asks(&mut self, prompt: &str) {
        self.until(&format!("it asked `{prompt}`"), |window| window.lines().last().is_some_and(|line| line == prompt));
    }

    /// Waits for the line that shows that something is going on, with this in it.
    #[track_caller]
    pub(crate) fn is_busy_with(&mut self, what: &str) -> String {
        self.until(&format!("it was busy with `{what}`"), |window| window.progress_line().is_some_and(|bar| bar.contains(what)));
        self.progress_line().expect("it is there")
    }

    /// The task that the call has become.
    #[track_caller]
    pub(crate) fn task(&mut self) -> String {
        let task = |window: &Self| {
            let text = window.text();
            text.lines().find_map(|line| line.strip_prefix("taskwire: task ").filter(|id| id.len() == 32).map(ToOwned::to_owned))
        };
        self.until("there was a task", |window| task(window).is_some());
        task(self).expect("it is there")
    }

    /// Waits for the end of the program, and gives its exit code.
    pub(crate) fn end(&mut self) -> Option<i32> {
        while self.more() {}
        self.child.wait().expect("it has ended").code()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether this line shows that something is going on.
pub(crate) fn is_progress_line(line: &str) -> bool {
    let mut chars = line.chars();
    chars.next().is_some_and(|first| FRAMES.contains(first)) && chars.next() == Some(' ')
}
