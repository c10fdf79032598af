//! A server that runs commands, and raw requests to it: the test decides what is on the wire.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    process::{Command, ExitStatus, Stdio},
    sync::{Mutex, MutexGuard},
};

use serde_json::{Value, json};

use crate::kit::{Process, TIMEOUT};

/// How long one request waits for a change, and how many such waits in a row may bring none.
const WAIT_MS: u64 = 5000;
const SILENT_WAITS_MAX: usize = 24;
const META: &str = "io.modelcontextprotocol/clientCapabilities";
/// Which state of a task is known already.
const VERSION: &str = "dev.taskwire/version";

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct CommandServer {
    process: Mutex<Process>,
    port: u16,
    token: Mutex<Option<&'static str>>,
}

/// What a client declares that knows tasks and can be asked.
fn capabilities() -> Value {
    json!({"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}})
}

/// The same of one that wants to see output, and each change.
fn with_partials() -> Value {
    let mut wants = capabilities();
    wants["extensions"]["dev.taskwire/partials"] = json!({});
    wants
}

/// A request, as it is sent.
pub(crate) fn message(method: &str, mut params: Value) -> Value {
    if params["_meta"][META].is_null() {
        params["_meta"][META] = capabilities();
    }
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
}

/// All text in these blocks, joined.
pub(crate) fn text_of(blocks: &[Value]) -> String {
    blocks.iter().filter_map(|block| block["text"].as_str()).collect()
}

/// The text of a result.
pub(crate) fn result_text(result: &Value) -> String {
    text_of(result["content"].as_array().unwrap_or_else(|| panic!("no content: {result}")))
}

/// Why a call was refused, if it was: an error of the protocol, or a result that says so.
pub(crate) fn refusal(answer: &Value) -> Option<String> {
    match (answer["error"]["message"].as_str(), &answer["result"]) {
        (Some(message), _) => Some(message.to_owned()),
        (None, result) if result["isError"] == true => Some(result_text(result)),
        _ => None,
    }
}

impl CommandServer {
    pub(crate) fn spawn(command: &mut Command, port: u16) -> Self {
        let process = Process::spawn(command.stdout(Stdio::piped()));
        Self { process: Mutex::new(process), port, token: Mutex::new(None) }
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().expect("nobody panics while they hold it")
    }

    /// Waits until it takes calls.
    #[track_caller]
    pub(crate) fn ready(&self) {
        while !self.process().line().expect("the server says where it listens").trim().starts_with("endpoint ") {}
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/mcp", self.port)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process().id()
    }

    /// Ends it as a power cut would, for this process alone.
    pub(crate) fn kill(self) {
        self.process.into_inner().expect("nobody panicked").kill();
    }

    /// Asks it to end, and waits until it has.
    pub(crate) fn stop(self) -> ExitStatus {
        let process = self.process.into_inner().expect("nobody panicked");
        process.terminate();
        process.ended()
    }

    /// Sends a request and does not read the answer.
    pub(crate) fn open(&self, method: &str, name: Option<&str>, body: &str) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let name = name.map(|name| format!("Mcp-Name: {name}\r\n")).unwrap_or_default();
        let token = *self.token.lock().expect("nobody panics while they hold it");
        let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        write!(
            stream,
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
             Mcp-Method: {method}\r\n{name}{token}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        Ok(stream)
    }

    /// From now on with this token.
    pub(crate) fn with_token(self, token: &'static str) -> Self {
        self.use_token(token);
        self
    }

    /// Requests are from now on of whoever has this token.
    pub(crate) fn use_token(&self, token: &'static str) {
        *self.token.lock().expect("nobody panics while they hold it") = Some(token);
    }

    /// The answer to a request whose body is this text.
    pub(crate) fn send_text(&self, method: &str, name: Option<&str>, body: &str) -> Value {
        let mut stream = self.open(method, name, body).expect("the server is there");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        let answer = String::from_utf8(answer).expect("text");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let head = head.to_ascii_lowercase();
        assert!(!head.contains("chunked"), "nobody asked for a stream: {head}");
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {head}\n{body}"))
    }

    /// The whole answer to a request.
    pub(crate) fn send(&self, method: &str, params: Value) -> Value {
        let name = ["name", "taskId", "uri"].into_iter().find_map(|key| params[key].as_str()).map(ToOwned::to_owned);
        self.send_text(method, name.as_deref(), &message(method, params).to_string())
    }

    /// The result of a request that must succeed.
    #[track_caller]
    pub(crate) fn ask(&self, method: &str, params: Value) -> Value {
        let answer = self.send(method, params);
        assert!(answer["error"].is_null() && answer["result"].is_object(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// Calls a tool: its result, or the handle of a task.
    #[track_caller]
    pub(crate) fn call(&self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// Calls a tool that becomes a task at once: its id.
    #[track_caller]
    pub(crate) fn begin(&self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, arguments);
        result["taskId"].as_str().unwrap_or_else(|| panic!("no task: {result}")).to_owned()
    }

    pub(crate) fn cancel(&self, id: &str) {
        self.ask("tasks/cancel", json!({"taskId": id}));
    }

    /// Looks at a task, at each change of it, until there is something to see.
    #[track_caller]
    pub(crate) fn poll_until<T>(&self, id: &str, what: &str, look: impl Fn(&Value) -> Option<T>) -> T {
        let (mut known, mut silences) = (json!(0), 0);
        loop {
            let meta = json!({META: with_partials(), "dev.taskwire/waitMs": WAIT_MS, VERSION: known});
            let task = self.ask("tasks/get", json!({"taskId": id, "_meta": meta}));
            if let Some(found) = look(&task) {
                return found;
            }
            let ended = ["completed", "failed", "cancelled"].iter().any(|status| task["status"] == *status);
            assert!(!ended, "{what}: never, and the task is over: {task}");
            silences = if task["_meta"][VERSION] == known { silences + 1 } else { 0 };
            assert!(silences < SILENT_WAITS_MAX, "{what}: nothing happens any more: {task}");
            known = task["_meta"][VERSION].clone();
        }
    }

    /// The task when it is over.
    #[track_caller]
    pub(crate) fn ended(&self, id: &str) -> Value {
        self.poll_until(id, "its end", |task| {
            ["completed", "failed", "cancelled"].iter().any(|status| task["status"] == *status).then(|| task.clone())
        })
    }

    /// The result of a task that completes.
    #[track_caller]
    pub(crate) fn result(&self, id: &str) -> Value {
        let task = self.ended(id);
        assert_eq!(task["status"], "completed", "{task}");
        task["result"].clone()
    }

    /// Waits until the status message of a task has this in it.
    #[track_caller]
    pub(crate) fn message_with(&self, id: &str, words: &str) -> String {
        let look = |task: &Value| task["statusMessage"].as_str().filter(|message| message.contains(words)).map(ToOwned::to_owned);
        self.poll_until(id, words, look)
    }

    /// Reads output until it is enough, or all: the blocks, from chunks without a gap.
    #[track_caller]
    pub(crate) fn blocks_until(&self, id: &str, enough: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let (mut from, mut blocks, mut silences) = (0_u64, Vec::<Value>::new(), 0);
        while !enough(&blocks) {
            let params = json!({"taskId": id, "fromSeq": from, "waitMs": WAIT_MS, "_meta": {META: with_partials()}});
            let page = self.ask("dev.taskwire/partials/read", params);
            let chunks = page["chunks"].as_array().expect("chunks");
            for chunk in chunks {
                assert_eq!(chunk["seq"], from, "numbers are dense: {chunk}");
                from += 1;
                blocks.extend(chunk["content"].as_array().expect("blocks").iter().cloned());
            }
            silences = if chunks.is_empty() { silences + 1 } else { 0 };
            assert!(silences < SILENT_WAITS_MAX, "no more output comes: {blocks:?}");
            if page["done"] == true {
                break;
            }
        }
        blocks
    }

    /// All output of a task, when it is over.
    #[track_caller]
    pub(crate) fn blocks(&self, id: &str) -> Vec<Value> {
        self.blocks_until(id, |_| false)
    }

    /// All text that a task has written, when it is over.
    #[track_caller]
    pub(crate) fn text(&self, id: &str) -> String {
        text_of(&self.blocks(id))
    }

    /// Waits until a task has written this.
    #[track_caller]
    pub(crate) fn wait_for_text(&self, id: &str, words: &str) {
        let text = text_of(&self.blocks_until(id, |blocks| text_of(blocks).contains(words)));
        assert!(text.contains(words), "`{words}` was never written: {text:?}");
    }
}
