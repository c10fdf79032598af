//! The program as a process of its own, and just enough HTTP to send it requests.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

pub(crate) use crate::testing::TempDir;

/// How long anything may take: a test that hangs should say where.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
/// How often to look for something that shows only when one looks. Each look is a request.
pub(crate) const POLLS_MAX: usize = 100_000;

impl TempDir {
    /// A path in it, as an argument.
    pub(crate) fn join(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("a path of plain text").to_owned()
    }
}

fn taskwire(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taskwire"));
    command.args(args).env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// Sends a signal to a process that must be there.
pub(crate) fn signal(id: u32, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &id.to_string()]).status().expect("`kill` can be run");
    assert!(sent.success(), "the program is there to be told");
}

/// The lines of a stream as they come; it ends with the stream.
fn lines_of(stream: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

/// A running program. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    lines: mpsc::Receiver<String>,
    /// What it says on standard error, if that is heard.
    errors: Option<mpsc::Receiver<String>>,
}

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.spawn().expect("the program starts");
        let lines = lines_of(child.stdout.take().expect("its output is a pipe"));
        let errors = child.stderr.take().map(lines_of);
        Self { child, lines, errors }
    }

    /// With its standard input open.
    pub(crate) fn with_input(args: &[&str]) -> (Self, ChildStdin) {
        let mut process = Self::spawn(taskwire(args).stdin(Stdio::piped()));
        let input = process.child.stdin.take().expect("its input is a pipe");
        (process, input)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line of its output; none when it has ended.
    pub(crate) fn line(&self) -> Option<String> {
        match self.lines.recv_timeout(TIMEOUT) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the program neither said anything nor ended within {TIMEOUT:?}"),
        }
    }

    pub(crate) fn terminate(&self) {
        signal(self.id(), "TERM");
    }

    /// Ends it as a power cut would, for this process alone.
    pub(crate) fn kill(mut self) {
        assert!(self.child.try_wait().expect("it can be looked at").is_none(), "it must not have ended by itself");
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it is gone");
    }

    /// Waits until it says this on standard error, and gives the whole line.
    #[track_caller]
    pub(crate) fn wait_for_error_line(&self, words: &str) -> String {
        let errors = self.errors.as_ref().expect("it is listened to");
        loop {
            match errors.recv_timeout(TIMEOUT) {
                Ok(line) if line.contains(words) => return line,
                Ok(_) => {}
                Err(error) => panic!("`{words}` was never said: {error}"),
            }
        }
    }

    /// Waits for its end: its exit code, and what it said on standard error that nobody has heard yet.
    pub(crate) fn end_with_errors(mut self) -> (Option<i32>, String) {
        let errors = self.errors.take().expect("it is listened to");
        let mut words = String::new();
        loop {
            match errors.recv_timeout(TIMEOUT) {
                Ok(line) => words = words + &line + "\n",
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it did not end within {TIMEOUT:?}: {words}"),
            }
        }
        (self.ended().code(), words)
    }

    /// Waits for its end; what it says until then is passed over.
    pub(crate) fn ended(mut self) -> ExitStatus {
        while self.line().is_some() {}
        self.child.wait().expect("it has ended")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server on a port that the system chose.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) process: Process,
    pub(crate) port: u16,
}

impl Server {
    pub(crate) fn start(data: &str) -> Self {
        Self::start_at(0, data)
    }

    /// On this port, where another has been.
    pub(crate) fn start_at(port: u16, data: &str) -> Self {
        Self::spawn(&["serve", "--listen", &format!("127.0.0.1:{port}"), "--data", data])
    }

    /// As this file says.
    pub(crate) fn configured(file: &str, data: &str) -> Self {
        Self::spawn(&["serve", file, "--listen", "127.0.0.1:0", "--data", data])
    }

    /// One that may have so many files open.
    pub(crate) fn with_open_files(max: u32, data: &str) -> Self {
        let limited = format!("ulimit -n {max} && exec \"$0\" \"$@\"");
        let args = ["-c", limited.as_str(), env!("CARGO_BIN_EXE_taskwire"), "serve", "--listen", "127.0.0.1:0", "--data", data];
        Self::started(Command::new("sh").args(args).env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::piped()))
    }

    fn spawn(args: &[&str]) -> Self {
        Self::started(&mut taskwire(args))
    }

    /// By this command.
    pub(crate) fn started(command: &mut Command) -> Self {
        let process = Process::spawn(command.stderr(Stdio::piped()));
        let port = loop {
            let line = process.line().expect("the server says where it listens");
            if let Some(address) = line.trim().strip_prefix("endpoint ") {
                let address = address.trim().strip_prefix("http://127.0.0.1:").and_then(|rest| rest.strip_suffix("/mcp"));
                break address.and_then(|port| port.parse().ok()).unwrap_or_else(|| panic!("no endpoint: {line}"));
            }
        };
        Self { process, port }
    }

    /// Where clients find it.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/mcp", self.port)
    }

    /// What a probe says: status and body.
    pub(crate) fn probe(&self, path: &str) -> (u16, String) {
        self.exchange(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
    }

    /// The status that a probe gets, if any: a connection that was opened right before a shutdown is closed unanswered.
    pub(crate) fn try_probe(&self, path: &str) -> Option<u16> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        self.try_exchange(&request).ok().map(|(status, _)| status)
    }

    /// Status and body of what these bytes are answered with, on a connection that the server then closes.
    pub(crate) fn exchange(&self, request: &str) -> (u16, String) {
        self.try_exchange(request).expect("a response")
    }

    /// What a request gets, if anything: its status and the message.
    pub(crate) fn post(&self, method: &str, params: Value) -> std::io::Result<(u16, Value)> {
        let name = params["name"].as_str().or(params["taskId"].as_str()).map(|name| format!("Mcp-Name: {name}\r\n"));
        let body = request(1, method, params).to_string();
        let (status, body) = self.try_exchange(&format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
             Mcp-Method: {method}\r\n{}Content-Length: {}\r\n\r\n{body}",
            name.unwrap_or_default(),
            body.len()
        ))?;
        Ok((status, serde_json::from_str(&body).expect("JSON")))
    }

    fn try_exchange(&self, request: &str) -> std::io::Result<(u16, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(request.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (head, body) = text.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Ok((status, body.to_owned()))
    }

    /// The result of a request that must succeed.
    pub(crate) fn ask(&self, method: &str, params: Value) -> Value {
        let (status, answer) = self.post(method, params).expect("a response");
        assert_eq!(status, 200, "{method}: {answer}");
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// Calls a tool that becomes a task, and gives its id.
    pub(crate) fn start_task(&self, tool: &str) -> String {
        let result = self.ask("tools/call", json!({"name": tool, "arguments": {}}));
        result["taskId"].as_str().unwrap_or_else(|| panic!("no task: {result}")).to_owned()
    }
}

/// A request of a client that knows tasks.
pub(crate) fn request(id: u64, method: &str, mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
    });
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

/// Runs the program to its end: its exit code, its output and its errors, each with single blanks between words.
pub(crate) fn run(args: &[&str]) -> (Option<i32>, String, String) {
    ended(&mut taskwire(args))
}

/// The same of another command.
pub(crate) fn ended(command: &mut Command) -> (Option<i32>, String, String) {
    let mut process = Process::spawn(command.stderr(Stdio::piped()));
    let errors = process.errors.take().expect("its errors are a pipe");
    let words = |lines: Vec<String>| lines.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
    let output = words(std::iter::from_fn(|| process.line()).collect());
    let errors = words(errors.into_iter().collect());
    (process.ended().code(), output, errors)
}

/// Runs the program, which must refuse to serve with this exit code, and gives the words in which it does.
#[track_caller]
pub(crate) fn refusal(exit: i32, args: &[&str]) -> String {
    let (code, output, errors) = run(args);
    assert_eq!(code, Some(exit), "{output} {errors}");
    assert!(errors.starts_with("taskwire: "), "{errors}");
    errors
}
