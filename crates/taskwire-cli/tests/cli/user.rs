//! The terminal client as a script runs it: a user with a home of their own, and what a running command writes.

use std::{
    io::{ErrorKind, Read, Write},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
};

use serde_json::Value;
use taskwire::client::Ledger;

use crate::kit::{TIMEOUT, TempDir, signal};

/// Bytes that are read at once. Few, so that a kill comes in the middle of something.
const READ_BYTES: usize = 4096;

/// Somebody who uses the client; gone with all that they left.
#[derive(Debug)]
pub(crate) struct User(TempDir);

impl User {
    pub(crate) fn new() -> Self {
        Self(TempDir::new())
    }

    /// A path in the user's home, as an argument.
    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name)
    }

    /// A file in the user's home, as an argument.
    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).expect("a file");
        path
    }

    /// Writes the client's configuration, and gives its path.
    pub(crate) fn configure(&self, text: &str) -> String {
        std::fs::create_dir_all(self.path("config/taskwire")).expect("a directory");
        self.write("config/taskwire/client.toml", text)
    }

    /// What this user's client remembers.
    pub(crate) fn ledger(&self) -> Ledger {
        Ledger::open(&self.0.path().join("state")).expect("a ledger")
    }

    /// A command of this user, in surroundings that are the same everywhere: a terminal would get colours.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taskwire"));
        command.args(args).stdin(Stdio::null()).env_clear();
        command.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        command.env("HOME", self.0.path()).env("XDG_CONFIG_HOME", self.path("config")).env("TASKWIRE_STATE_DIR", self.path("state"));
        command.env("TERM", "xterm-256color").env("LC_ALL", "C.UTF-8");
        command
    }

    pub(crate) fn start(&self, args: &[&str]) -> RunningCommand {
        RunningCommand::start(&mut self.command(args))
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, args: &[&str]) -> CommandResult {
        self.start(args).end()
    }

    /// The same, with this on its standard input.
    pub(crate) fn run_with(&self, args: &[&str], input: &str) -> CommandResult {
        let mut running = RunningCommand::start(self.command(args).stdin(Stdio::piped()));
        let mut stdin = running.child.stdin.take().expect("its input is a pipe");
        stdin.write_all(input.as_bytes()).expect("it reads");
        drop(stdin);
        running.end()
    }

    /// Starts a task and leaves it alone; its id.
    pub(crate) fn detach(&self, server: &str, tool: &str) -> String {
        let ended = self.run(&["call", server, tool, "--detach"]);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{ended:?}");
        ended.out.trim_end().to_owned()
    }

    /// What `get` says of a task.
    pub(crate) fn task(&self, task: &str) -> Value {
        let ended = self.run(&["get", task, "--json"]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.json().pop().expect("an object")
    }
}

/// What a process writes, as it comes. Nothing is read ahead: who does not look makes the process wait.
#[derive(Debug)]
pub(crate) struct Stream {
    pieces: mpsc::Receiver<Vec<u8>>,
    bytes: Vec<u8>,
}

impl Stream {
    pub(crate) fn of(mut stream: impl Read + Send + 'static) -> Self {
        let (sender, pieces) = mpsc::sync_channel(0);
        thread::spawn(move || {
            let mut buffer = [0; READ_BYTES];
            loop {
                match stream.read(&mut buffer) {
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    // A terminal that nobody has open any more ends with an error.
                    Ok(0) | Err(_) => break,
                    Ok(len) => {
                        if sender.send(buffer[..len].to_vec()).is_err() {
                            break;
                        }
                    }
                }
            }
        });
        Self { pieces, bytes: Vec::new() }
    }

    /// All that has come.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// Waits for more. False at the end.
    pub(crate) fn more(&mut self) -> bool {
        match self.pieces.recv_timeout(TIMEOUT) {
            Ok(piece) => {
                self.bytes.extend(piece);
                true
            }
            Err(RecvTimeoutError::Disconnected) => false,
            Err(RecvTimeoutError::Timeout) => panic!("nothing came within {TIMEOUT:?} after: {}", self.text()),
        }
    }

    /// Waits for this text, and gives all that came until then.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str) -> String {
        while !self.text().contains(what) {
            assert!(self.more(), "`{what}` never came, only: {}", self.text());
        }
        self.text()
    }

    /// Waits for a line that begins so, and gives the rest of it.
    #[track_caller]
    pub(crate) fn line_with(&mut self, beginning: &str) -> String {
        self.line_of(beginning, |line| line.strip_prefix(beginning).map(ToOwned::to_owned))
    }

    /// Waits for a line that is what is looked for.
    #[track_caller]
    pub(crate) fn line_of<T>(&mut self, what: &str, look: impl Fn(&str) -> Option<T>) -> T {
        loop {
            let text = self.text();
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            if let Some(found) = whole.lines().find_map(&look) {
                return found;
            }
            assert!(self.more(), "no line was `{what}`, only: {text}");
        }
    }

    /// Waits for so many bytes; for fewer, if there are no more.
    pub(crate) fn until_len(&mut self, len: usize) {
        while self.bytes.len() < len && self.more() {}
    }

    /// Reads to the end.
    pub(crate) fn rest(&mut self) -> &[u8] {
        while self.more() {}
        &self.bytes
    }
}

/// A command under way. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct RunningCommand {
    child: Child,
    pub(crate) out: Stream,
    pub(crate) err: Stream,
}

impl RunningCommand {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let out = Stream::of(child.stdout.take().expect("its output is a pipe"));
        let err = Stream::of(child.stderr.take().expect("its errors are a pipe"));
        Self { child, out, err }
    }

    /// The task that the call has become.
    #[track_caller]
    pub(crate) fn task(&mut self) -> String {
        self.err.line_with("taskwire: task ")
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// Ends it as a power cut would, for this process alone. What it wrote can still be read.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it is gone");
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> CommandResult {
        self.out.rest();
        self.wait()
    }

    /// Stops reading its output, as `head` does, and waits for its end.
    pub(crate) fn end_unread(mut self) -> CommandResult {
        let out = std::mem::replace(&mut self.out, Stream::of(std::io::empty()));
        let text = out.text();
        drop(out);
        CommandResult { out: text, ..self.wait() }
    }

    fn wait(&mut self) -> CommandResult {
        self.err.rest();
        let code = self.child.wait().expect("it has ended").code();
        CommandResult { code, out: self.out.text(), err: self.err.text() }
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How a command ended, and all that it wrote.
#[derive(Debug)]
pub(crate) struct CommandResult {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl CommandResult {
    /// Its output, an object a line.
    #[track_caller]
    pub(crate) fn json(&self) -> Vec<Value> {
        let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        self.out.lines().map(parse).collect()
    }

    /// Nothing was done, and this was said about it.
    #[track_caller]
    pub(crate) fn is_refusal(&self, reason: &str) {
        assert_eq!((self.code, self.out.as_str(), self.err.as_str()), (Some(2), "", format!("taskwire: {reason}\n").as_str()));
    }
}
