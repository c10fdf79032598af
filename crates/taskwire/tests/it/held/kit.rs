//! A server for clients without tasks, and its callers: each era on each transport.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use serde_json::{Value, json};
use taskwire::{
    clock::ManualClock,
    core::{
        TaskId,
        task::{Status, Task},
    },
    server::{Config, Server},
    store::Memory,
    tool::{Registry, Tool},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    net::TcpStream,
    sync::mpsc,
    task::JoinHandle,
};

use super::{BEAT, DRAIN, HOLD, NAMES};
use crate::{
    kit::{
        Client, SECOND, TASKS, TempDir, TestServer, Way, manual_clock, next_chunk, read_head, value_of, with_timeout, without_disk_reserve,
    },
    legacy::kit::{LATEST, LegacySession, initialize},
    pipe::{Output, Pipe},
    shutdown::settle,
    tasks::{name_form, name_in, registry, reopened, tool},
};

/// The request ids of calls begin here.
const CALLS: u64 = 1_000;
/// The request id of a handshake.
const OPENS: u64 = 1;

/// A server on a port of its own, with the follow-up tools as they are by default. Time stands still unless the test moves it.
pub(super) struct HoldFixture {
    pub(super) server: TestServer,
    clock: ManualClock,
}

impl HoldFixture {
    pub(super) async fn new(tools: impl IntoIterator<Item = Tool>) -> Self {
        Self::with(registry(tools), config()).await
    }

    pub(super) async fn with(tools: Registry, config: Config) -> Self {
        Self::start_in(&Arc::new(TempDir::new()), tools, config, &manual_clock()).await
    }

    /// On a directory that a server which crashed may still use for a moment.
    pub(super) async fn start_in(dir: &Arc<TempDir>, tools: Registry, config: Config, clock: &ManualClock) -> Self {
        Self { server: reopened(dir, tools, config, clock).await, clock: clock.clone() }
    }

    /// Two nodes that share a store.
    pub(super) async fn two_nodes(tools: impl Fn() -> Registry) -> [Self; 2] {
        let clock = manual_clock();
        let memory = Memory::with_clock(Arc::new(clock.clone()));
        let node = async |name| {
            let (dir, config) = (Arc::new(TempDir::new()), without_disk_reserve(config()));
            let server = TestServer::start_on(dir, memory.open_node(name), tools(), config, Arc::new(clock.clone())).await;
            Self { server, clock: clock.clone() }
        };
        [node("here").await, node("there").await]
    }

    /// A client of the modern era that knows tasks.
    pub(super) fn tasker(&self) -> Client {
        self.server.plain_client().declaring(json!({"extensions": {TASKS: {}}}))
    }

    pub(super) fn open(&self) -> Vec<TaskId> {
        self.server.server.engine().reader().open_tasks(None, 10).now_or_never().expect("at once").expect("readable")
    }

    /// A task as callers see it: what is stored is a moment older than that.
    pub(super) fn task(&self, id: TaskId) -> Arc<Task> {
        let engine = self.server.server.engine();
        let stored = engine.reader().task(id).now_or_never().expect("at once").expect("readable").expect("still there");
        engine.task(&stored.spec.caller, id).now_or_never().expect("at once").expect("readable").expect("still there")
    }

    /// Waits until a task has this status.
    pub(super) async fn until(&self, id: TaskId, status: Status) {
        let reached = async {
            while self.task(id).status() != status {
                tokio::task::yield_now().await;
            }
        };
        with_timeout("the status", reached).await;
    }

    /// Waits until so many tasks are open.
    pub(super) async fn until_open(&self, count: usize) -> Vec<TaskId> {
        let reached = async {
            while self.open().len() != count {
                tokio::task::yield_now().await;
            }
        };
        with_timeout("the number of open tasks", reached).await;
        self.open()
    }

    /// Lets time pass until a call sends progress, the first of which may have had to wait for its store.
    pub(super) async fn sign(&self, call: &mut PendingCall) -> (f64, String) {
        for _ in 0..6 {
            self.pass(BEAT).await;
            // Other threads may have to write and read it first; who was not waiting yet hears it with the next beat.
            if let Ok(message) = tokio::time::timeout(SECOND / 2, call.messages.recv()).await {
                return progress_of(&message.expect("the call goes on"));
            }
        }
        panic!("{:?}: there is no sign of life", call.way)
    }

    /// Begins to shut down.
    pub(super) fn stop(&mut self) {
        assert!(self.server.stop(), "it serves, and is stopped once");
    }

    /// Lets time pass, when whoever waits for that has had time to begin.
    pub(super) async fn pass(&self, span: Duration) {
        settle().await;
        self.clock.advance(span);
    }
}

pub(super) fn config() -> Config {
    Config { followups: true, hold: HOLD, drain: DRAIN, ..Config::default() }
}

pub(super) fn two_callers() -> Config {
    Config { auth: crate::tasks::two_callers().auth, ..config() }
}

/// A caller without tasks. Each call is a connection of its own.
pub(super) struct Caller {
    way: Way,
    server: Server,
    client: Client,
    pub(super) legacy: Option<LegacySession>,
    capabilities: Value,
    calls: AtomicU64,
}

impl Caller {
    pub(super) async fn new(way: Way, fixture: &HoldFixture) -> Self {
        Self::declaring(way, fixture, json!({}), None).await
    }

    pub(super) async fn declaring(way: Way, fixture: &HoldFixture, capabilities: Value, token: Option<&str>) -> Self {
        let client = fixture.server.plain_client().declaring(capabilities.clone());
        let client = match token {
            Some(token) => client.with_token(token),
            None => client,
        };
        let legacy = match way {
            Way::LegacyHttp => Some(LegacySession::of(fixture.server.port, token, LATEST, capabilities.clone()).await),
            _ => None,
        };
        Self { way, server: fixture.server.server.clone(), client, legacy, capabilities, calls: AtomicU64::new(CALLS) }
    }

    /// Calls a tool.
    pub(super) async fn call(&self, tool: &str, arguments: Value) -> PendingCall {
        self.request("tools/call", json!({"name": tool, "arguments": arguments})).await
    }

    /// Calls a tool and asks for progress.
    pub(super) async fn call_with_progress(&self, tool: &str, arguments: Value) -> PendingCall {
        self.request("tools/call", json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": "p"}})).await
    }

    /// A request and its id.
    fn message(&self, method: &str, params: Value) -> (u64, Value) {
        let id = self.calls.fetch_add(1, Ordering::Relaxed);
        let plain = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params.clone()});
        (id, if matches!(self.way, Way::ModernHttp | Way::ModernLines) { self.client.message(id, method, params) } else { plain })
    }

    /// Calls a tool after another call: on the same connection, where that has room for more than one.
    pub(super) async fn call_after(&self, call: &mut PendingCall, tool: &str, arguments: Value) {
        if call.input.is_none() {
            *call = self.call(tool, arguments).await;
            return;
        }
        let (id, message) = self.message("tools/call", json!({"name": tool, "arguments": arguments}));
        call.send(&message).await;
        call.id = id;
    }

    /// Resumes the stream of a call that was lost.
    pub(super) async fn resume(&self, call: &PendingCall) -> PendingCall {
        let event_id = call.last.lock().expect("no panic").clone().expect("a name");
        let stream = self.legacy.as_ref().expect("a session").connect("GET", &[("Last-Event-ID", event_id.as_str())]).await;
        let (sender, messages) = mpsc::channel(64);
        let last = Arc::<Mutex<Option<String>>>::default();
        let reading = tokio::spawn(read_http(stream, sender, last.clone()));
        PendingCall { way: self.way, id: call.id, input: None, messages, reading, last }
    }

    pub(super) async fn request(&self, method: &str, params: Value) -> PendingCall {
        let (id, message) = self.message(method, params);
        let (sender, messages) = mpsc::channel(64);
        let last = Arc::<Mutex<Option<String>>>::default();
        let (input, reading) = match self.way {
            Way::ModernHttp => {
                let stream = self.client.send(&self.client.headers(&message), message.to_string().as_bytes()).await;
                (None, tokio::spawn(read_http(stream, sender, last.clone())))
            }
            Way::LegacyHttp => {
                let headers = self.legacy.as_ref().expect("a session").headers();
                let stream = self.client.send(&headers, message.to_string().as_bytes()).await;
                (None, tokio::spawn(read_http(stream, sender, last.clone())))
            }
            Way::ModernLines | Way::LegacyLines => {
                let mut pipe = Pipe::to(&self.server);
                if self.way == Way::LegacyLines {
                    let params = initialize(LATEST, &self.capabilities);
                    pipe.send(&json!({"jsonrpc": "2.0", "id": OPENS, "method": "initialize", "params": params})).await;
                    pipe.line().await.expect("a session");
                    pipe.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
                }
                pipe.send(&message).await;
                let (input, output) = pipe.split();
                (Some(input), tokio::spawn(read_lines(output, sender)))
            }
        };
        PendingCall { way: self.way, id, input, messages, reading, last }
    }

    /// Calls a tool and gives its result.
    pub(super) async fn result(&self, tool: &str, arguments: Value) -> Value {
        self.call(tool, arguments).await.result().await
    }

    /// Cancels a call, as its era and transport do.
    pub(super) async fn cancel(&self, call: &mut PendingCall, reason: &str) {
        let params = json!({"requestId": call.id, "reason": reason});
        match (self.way, &self.legacy) {
            (Way::ModernHttp, _) => call.lose(),
            (Way::LegacyHttp, Some(legacy)) => legacy.notify("notifications/cancelled", params).await,
            _ => call.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})).await,
        }
    }
}

/// Passes on the messages of a response as they come, and notes the ids of events.
async fn read_http(mut stream: TcpStream, sender: mpsc::Sender<Value>, last: Arc<Mutex<Option<String>>>) {
    let (mut buffer, mut text) = (Vec::new(), Vec::new());
    let (_, headers) = read_head(&mut stream, &mut buffer).await;
    if value_of(&headers, "transfer-encoding").is_none() {
        let length: usize = value_of(&headers, "content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
        while buffer.len() < length {
            let read = stream.read_buf(&mut buffer).await.expect("readable");
            assert!(read > 0, "the body ended early");
        }
        if length > 0 {
            let _ = sender.send(serde_json::from_slice(&buffer[..length]).expect("JSON")).await;
        }
        return;
    }
    while let Some(chunk) = next_chunk(&mut stream, &mut buffer).await {
        text.extend_from_slice(&chunk);
        while let Some(end) = text.windows(2).position(|window| window == b"\n\n") {
            let event = String::from_utf8(text.drain(..end + 2).collect()).expect("UTF-8");
            for line in event.lines() {
                if let Some(id) = line.strip_prefix("id: ") {
                    *last.lock().expect("no panic") = Some(id.to_owned());
                }
                if let Some(data) = line.strip_prefix("data: ").filter(|data| !data.is_empty()) {
                    let _ = sender.send(serde_json::from_str(data).expect("JSON")).await;
                }
            }
        }
    }
}

async fn read_lines(mut lines: Output, sender: mpsc::Sender<Value>) {
    while let Ok(Some(line)) = lines.next_line().await {
        let _ = sender.send(serde_json::from_str(&line).expect("JSON")).await;
    }
}

/// A call that is under way.
pub(super) struct PendingCall {
    pub(super) way: Way,
    /// The id of the request.
    pub(super) id: u64,
    input: Option<DuplexStream>,
    pub(super) messages: mpsc::Receiver<Value>,
    reading: JoinHandle<()>,
    /// The id of the last event.
    pub(super) last: Arc<Mutex<Option<String>>>,
}

impl PendingCall {
    pub(super) async fn next(&mut self) -> Option<Value> {
        with_timeout("the next message", self.messages.recv()).await
    }

    /// The next message, which must be one of progress; its number and its words.
    pub(super) async fn progress(&mut self) -> (f64, String) {
        progress_of(&self.next().await.expect("the call goes on"))
    }

    /// The response; what comes before it is passed over.
    pub(super) async fn response(&mut self) -> Value {
        loop {
            let message = self.next().await.expect("a response");
            if message.get("method").is_none() && message["id"] == self.id {
                return message;
            }
        }
    }

    pub(super) async fn result(&mut self) -> Value {
        let response = self.response().await;
        assert!(response.get("error").is_none(), "{response}");
        response["result"].clone()
    }

    pub(super) async fn error(&mut self) -> Value {
        let response = self.response().await;
        assert!(response.get("result").is_none(), "{response}");
        response["error"].clone()
    }

    pub(super) async fn send(&mut self, message: &Value) {
        let input = self.input.as_mut().expect("a byte stream");
        with_timeout("room in the pipe", input.write_all(format!("{message}\n").as_bytes())).await.expect("writable");
    }

    /// Waits until there is an event id to resume from.
    pub(super) async fn has_event_id(&self) {
        let primed = async {
            while self.last.lock().expect("no panic").is_none() {
                tokio::task::yield_now().await;
            }
        };
        with_timeout("a place to come back to", primed).await;
    }

    /// Loses the connection.
    pub(super) fn lose(&mut self) {
        self.input = None;
        self.reading.abort();
    }

    /// Shows that nothing has come, after there was time for it.
    pub(super) async fn is_quiet(&mut self) {
        settle().await;
        assert!(self.messages.try_recv().is_err(), "{:?}: something was said", self.way);
    }
}

/// The number and the words of a message, which must be one of progress.
pub(super) fn progress_of(message: &Value) -> (f64, String) {
    let params = &message["params"];
    assert_eq!((&message["method"], &params["progressToken"]), (&json!("notifications/progress"), &json!("p")), "{message}");
    (params["progress"].as_f64().expect("a number"), params["message"].as_str().unwrap_or_default().to_owned())
}

/// The text that a result begins with.
pub(super) fn text(result: &Value) -> &str {
    assert_ne!(result["resultType"], "task", "{result}");
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {result}"))
}

/// The task that a result names, which must say how to follow up.
pub(super) fn followed(result: &Value) -> String {
    let said = text(result);
    assert!(NAMES.iter().any(|name| said.contains(name)), "{said}");
    assert!(result.get("structuredContent").is_none() && result["isError"] != true, "{result}");
    let words = said.split(|c: char| !c.is_ascii_alphanumeric());
    let id = words.into_iter().find(|word| word.parse::<TaskId>().is_ok());
    id.unwrap_or_else(|| panic!("no task: {said}")).to_owned()
}

/// A tool that asks for a name.
pub(super) fn asks(name: &str) -> Tool {
    tool(name, &(), |(), ctx| async move { Ok(format!("hello {}", name_in(&ctx.ask("name", name_form("Who are you?")).await?))) })
}
