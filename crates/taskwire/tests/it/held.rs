//! Clients without tasks, in both eras and on both transports: their calls are held for a while, they hear that the work goes on,
//! and what takes longer they come back to by tools of the server's own.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use taskwire::{
    clock::ManualClock,
    core::{
        Limits, TaskId,
        task::{Status, Task},
    },
    server::{Config, Server, Tokens},
    store::SqliteStore,
    tool::{CallResult, Ctx, IntoResult, Json, Policy, Progress, Question, Registry, Round, TaskMode, Tool, ToolError},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream},
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use crate::{
    kit::{Client, TASKS, TempDir, any_disk, manual_clock, next_chunk, read_head, soon},
    legacy::kit::{LATEST, Legacy, initialize},
    shutdown::settle,
    tasks::{Gate, accept, life, name_form, name_in, quick, registry, tool, with_limits},
};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const HOLD: Duration = Duration::from_secs(45);
const BEAT: Duration = Duration::from_secs(5);
const DRAIN: Duration = Duration::from_secs(10);
const NAMES: [&str; 5] = ["task_wait", "task_output", "task_answer", "task_cancel", "task_list"];
/// Bytes that wait in each direction.
const PIPE: usize = 64 * 1024;
/// Calls have names from here on.
const CALLS: u64 = 1_000;
/// The name of a handshake.
const OPENS: u64 = 1;

mod linger;

/// A server on a port of its own, with the follow-up tools as they are by default. Time stands still unless the test moves it.
struct House {
    server: Server,
    port: u16,
    clock: ManualClock,
    stop: Option<oneshot::Sender<()>>,
    _serving: JoinHandle<std::io::Result<()>>,
    _dir: Arc<TempDir>,
}

impl House {
    async fn new(tools: impl IntoIterator<Item = Tool>) -> Self {
        Self::with(registry(tools), config()).await
    }

    async fn with(tools: Registry, config: Config) -> Self {
        Self::start_in(&Arc::new(TempDir::new()), tools, config, &manual_clock()).await
    }

    /// On a directory that may be in use by one that crashed for a moment yet.
    async fn start_in(dir: &Arc<TempDir>, tools: Registry, config: Config, clock: &ManualClock) -> Self {
        let free = async {
            loop {
                match SqliteStore::open(dir.path()) {
                    Ok(store) => return store,
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        };
        let store = soon("the release of the store", free).await;
        let server = Server::start_with_clock(tools, store, any_disk(config), Arc::new(clock.clone())).expect("a server");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn({
            let server = server.clone();
            async move {
                let stopped = async {
                    let _ = stopped.await;
                };
                server.serve(listener, stopped).await
            }
        });
        Self { server, port, clock: clock.clone(), stop: Some(stop), _serving: serving, _dir: dir.clone() }
    }

    /// A client of the modern era that knows tasks.
    fn tasker(&self) -> Client {
        Client::new(self.port).declaring(json!({"extensions": {TASKS: {}}}))
    }

    fn open(&self) -> Vec<TaskId> {
        self.server.engine().reader().open(None, 10).expect("readable")
    }

    /// A task as callers see it: what is stored is a moment older than that.
    fn task(&self, id: TaskId) -> Arc<Task> {
        let stored = self.server.engine().reader().task(id).expect("readable").expect("still there");
        self.server.engine().task(&stored.spec.caller, id).expect("readable").expect("still there")
    }

    /// Waits until a task has this status.
    async fn until(&self, id: TaskId, status: Status) {
        let reached = async {
            while self.task(id).status() != status {
                tokio::task::yield_now().await;
            }
        };
        soon("the status", reached).await;
    }

    /// Waits until so many tasks are open.
    async fn until_open(&self, count: usize) -> Vec<TaskId> {
        let reached = async {
            while self.open().len() != count {
                tokio::task::yield_now().await;
            }
        };
        soon("the number of open tasks", reached).await;
        self.open()
    }

    /// Lets time pass until a call gives a sign of life, the first of which may have had to wait for its store.
    async fn sign(&self, talk: &mut Talk) -> (f64, String) {
        for _ in 0..6 {
            self.pass(BEAT).await;
            // Other threads may have to write and read it first; who was not waiting yet hears it with the next beat.
            if let Ok(message) = tokio::time::timeout(SECOND / 2, talk.messages.recv()).await {
                return progress_of(&message.expect("the call goes on"));
            }
        }
        panic!("{:?}: there is no sign of life", talk.way)
    }

    /// Begins to shut down.
    fn stop(&mut self) {
        self.stop.take().expect("stopped once").send(()).expect("it serves");
    }

    /// Lets time pass, when whoever waits for that has had time to begin.
    async fn pass(&self, span: Duration) {
        settle().await;
        self.clock.advance(span);
    }
}

fn config() -> Config {
    Config { followups: true, hold: HOLD, drain: DRAIN, ..Config::default() }
}

fn two_callers() -> Config {
    Config { auth: Arc::new(Tokens::default().with_token("ann-token", "ann").with_token("bob-token", "bob")), ..config() }
}

/// How a caller speaks to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    ModernHttp,
    LegacyHttp,
    ModernLines,
    LegacyLines,
}

const WAYS: [Way; 4] = [Way::ModernHttp, Way::LegacyHttp, Way::ModernLines, Way::LegacyLines];

impl Way {
    fn is_modern(self) -> bool {
        matches!(self, Self::ModernHttp | Self::ModernLines)
    }
}

/// A caller without tasks. Each call is a connection of its own.
struct Caller {
    way: Way,
    port: u16,
    server: Server,
    client: Client,
    legacy: Option<Legacy>,
    capabilities: Value,
    calls: AtomicU64,
}

impl Caller {
    async fn new(way: Way, house: &House) -> Self {
        Self::declaring(way, house, json!({}), None).await
    }

    async fn declaring(way: Way, house: &House, capabilities: Value, token: Option<&str>) -> Self {
        let client = Client::new(house.port).declaring(capabilities.clone());
        let client = match token {
            Some(token) => client.with_token(token),
            None => client,
        };
        let legacy = match way {
            Way::LegacyHttp => Some(Legacy::of(house.port, token, LATEST, capabilities.clone()).await),
            _ => None,
        };
        Self { way, port: house.port, server: house.server.clone(), client, legacy, capabilities, calls: AtomicU64::new(CALLS) }
    }

    /// Calls a tool.
    async fn call(&self, tool: &str, arguments: Value) -> Talk {
        self.request("tools/call", json!({"name": tool, "arguments": arguments})).await
    }

    /// Calls a tool and wants to hear of progress.
    async fn call_with_progress(&self, tool: &str, arguments: Value) -> Talk {
        self.request("tools/call", json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": "p"}})).await
    }

    /// A request and its name.
    fn message(&self, method: &str, params: Value) -> (u64, Value) {
        let id = self.calls.fetch_add(1, Ordering::Relaxed);
        let plain = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params.clone()});
        (id, if self.way.is_modern() { self.client.message(id, method, params) } else { plain })
    }

    /// Calls a tool after another call: on the same connection, where that has room for more than one.
    async fn call_after(&self, talk: &mut Talk, tool: &str, arguments: Value) {
        if talk.input.is_none() {
            *talk = self.call(tool, arguments).await;
            return;
        }
        let (id, message) = self.message("tools/call", json!({"name": tool, "arguments": arguments}));
        talk.send(&message).await;
        talk.id = id;
    }

    /// Comes back to the stream of a call that was lost.
    async fn resume(&self, talk: &Talk) -> Talk {
        let place = talk.last.lock().expect("no panic").clone().expect("a name");
        let stream = get(self.port, &self.legacy.as_ref().expect("a session").headers(), &place).await;
        let (sender, messages) = mpsc::channel(64);
        let last = Arc::<Mutex<Option<String>>>::default();
        let reading = tokio::spawn(read_http(stream, sender, last.clone()));
        Talk { way: self.way, id: talk.id, input: None, messages, reading, last }
    }

    async fn request(&self, method: &str, params: Value) -> Talk {
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
                let stream = Client::new(self.port).send(&headers, message.to_string().as_bytes()).await;
                (None, tokio::spawn(read_http(stream, sender, last.clone())))
            }
            Way::ModernLines | Way::LegacyLines => {
                let (mut input, server_input) = tokio::io::duplex(PIPE);
                let (server_output, output) = tokio::io::duplex(PIPE);
                let server = self.server.clone();
                tokio::spawn(async move { server.serve_stream(server_input, server_output, std::future::pending()).await });
                let mut output = BufReader::new(output);
                if self.way == Way::LegacyLines {
                    let params = initialize(LATEST, &self.capabilities);
                    write(&mut input, &json!({"jsonrpc": "2.0", "id": OPENS, "method": "initialize", "params": params})).await;
                    let mut line = String::new();
                    soon("the session", output.read_line(&mut line)).await.expect("readable");
                    write(&mut input, &json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
                }
                write(&mut input, &message).await;
                (Some(input), tokio::spawn(read_lines(output, sender)))
            }
        };
        Talk { way: self.way, id, input, messages, reading, last }
    }

    /// Calls a tool and gives its result.
    async fn result(&self, tool: &str, arguments: Value) -> Value {
        self.call(tool, arguments).await.result().await
    }

    /// Calls a call off, as its era and transport do.
    async fn cancel(&self, talk: &mut Talk, reason: &str) {
        let params = json!({"requestId": talk.id, "reason": reason});
        match (self.way, &self.legacy) {
            (Way::ModernHttp, _) => talk.lose(),
            (Way::LegacyHttp, Some(legacy)) => legacy.notify("notifications/cancelled", params).await,
            _ => talk.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})).await,
        }
    }
}

async fn write(input: &mut DuplexStream, message: &Value) {
    soon("room in the pipe", input.write_all(format!("{message}\n").as_bytes())).await.expect("writable");
}

/// Passes on the messages of a response as they come, and notes the names of events.
async fn read_http(mut stream: TcpStream, sender: mpsc::Sender<Value>, last: Arc<Mutex<Option<String>>>) {
    let (mut buffer, mut text) = (Vec::new(), Vec::new());
    let (_, headers) = read_head(&mut stream, &mut buffer).await;
    let header = |name: &str| headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    if header("transfer-encoding").is_none() {
        let length: usize = header("content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
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

async fn read_lines(output: BufReader<DuplexStream>, sender: mpsc::Sender<Value>) {
    let mut lines = output.lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let _ = sender.send(serde_json::from_str(&line).expect("JSON")).await;
    }
}

/// A call that is under way.
struct Talk {
    way: Way,
    /// The name of the request.
    id: u64,
    input: Option<DuplexStream>,
    messages: mpsc::Receiver<Value>,
    reading: JoinHandle<()>,
    /// The name of the last event.
    last: Arc<Mutex<Option<String>>>,
}

impl Talk {
    async fn next(&mut self) -> Option<Value> {
        soon("the next message", self.messages.recv()).await
    }

    /// The next message, which must be one of progress; its number and its words.
    async fn progress(&mut self) -> (f64, String) {
        progress_of(&self.next().await.expect("the call goes on"))
    }

    /// The response; what comes before it is passed over.
    async fn response(&mut self) -> Value {
        loop {
            let message = self.next().await.expect("a response");
            if message.get("method").is_none() && message["id"] == self.id {
                return message;
            }
        }
    }

    async fn result(&mut self) -> Value {
        let response = self.response().await;
        assert!(response.get("error").is_none(), "{response}");
        response["result"].clone()
    }

    async fn error(&mut self) -> Value {
        let response = self.response().await;
        assert!(response.get("result").is_none(), "{response}");
        response["error"].clone()
    }

    async fn send(&mut self, message: &Value) {
        write(self.input.as_mut().expect("a byte stream"), message).await;
    }

    /// Waits until there is a place to come back to.
    async fn has_place(&self) {
        let primed = async {
            while self.last.lock().expect("no panic").is_none() {
                tokio::task::yield_now().await;
            }
        };
        soon("a place to come back to", primed).await;
    }

    /// Loses the connection.
    fn lose(&mut self) {
        self.input = None;
        self.reading.abort();
    }

    /// Shows that nothing has come, after there was time for it.
    async fn is_quiet(&mut self) {
        settle().await;
        assert!(self.messages.try_recv().is_err(), "{:?}: something was said", self.way);
    }
}

/// The number and the words of a message, which must be one of progress.
fn progress_of(message: &Value) -> (f64, String) {
    let params = &message["params"];
    assert_eq!((&message["method"], &params["progressToken"]), (&json!("notifications/progress"), &json!("p")), "{message}");
    (params["progress"].as_f64().expect("a number"), params["message"].as_str().unwrap_or_default().to_owned())
}

/// The text that a result begins with.
fn text(result: &Value) -> &str {
    assert_ne!(result["resultType"], "task", "{result}");
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {result}"))
}

/// The task that an answer names, which must tell how to get on.
fn followed(result: &Value) -> String {
    let told = text(result);
    assert!(NAMES.iter().any(|name| told.contains(name)), "{told}");
    assert!(result.get("structuredContent").is_none() && result["isError"] != true, "{result}");
    let words = told.split(|c: char| !c.is_ascii_alphanumeric());
    let id = words.into_iter().find(|word| word.parse::<TaskId>().is_ok());
    id.unwrap_or_else(|| panic!("no task: {told}")).to_owned()
}

/// One run of a tool that its test plays itself.
struct Act {
    ctx: Ctx,
    end: Option<oneshot::Sender<Result<CallResult, ToolError>>>,
}

impl Act {
    fn ends(&mut self, result: impl IntoResult) {
        let sent = self.end.take().expect("it ends once").send(Ok(result.into_result()));
        assert!(sent.is_ok(), "it is still running");
    }

    async fn progress(&self, done: f64, words: Option<&str>) {
        self.ctx.progress(Progress { done, total: None, message: words.map(str::to_owned) }).await.expect("it may say so");
    }
}

/// A tool that its test plays, and where its runs come.
fn played(name: &str) -> (Tool, mpsc::Receiver<Act>) {
    let (sender, runs) = mpsc::channel(16);
    let tool = tool(name, &sender, |runs: mpsc::Sender<Act>, ctx| async move {
        let (end, ended) = oneshot::channel();
        let _ = runs.send(Act { ctx, end: Some(end) }).await;
        ended.await?
    });
    (tool, runs)
}

async fn run_of(runs: &mut mpsc::Receiver<Act>) -> Act {
    soon("the tool", runs.recv()).await.expect("it runs")
}

/// A tool that asks for a name.
fn asks(name: &str) -> Tool {
    tool(name, &(), |(), ctx| async move { Ok(format!("hello {}", name_in(&ctx.ask("name", name_form("Who are you?")).await?))) })
}

// How long a call is held.

#[tokio::test]
async fn a_result_within_the_hold_is_the_answer() {
    for way in WAYS {
        let gate = Gate::new();
        let house = House::new([gate.tool("slow")]).await;
        let mut talk = Caller::new(way, &house).await.call("slow", json!({})).await;
        soon("the tool", gate.started.wait()).await;
        house.pass(HOLD - MS).await;
        talk.is_quiet().await;
        gate.go.send();
        assert_eq!(text(&talk.result().await), "done", "{way:?}");
        house.until_open(0).await;
    }
}

#[tokio::test]
async fn a_call_that_outlives_the_hold_goes_on_and_is_waited_for_with_a_follow_up_tool() {
    for way in WAYS {
        for mode in [TaskMode::Auto, TaskMode::Always] {
            let gate = Gate::new();
            let house = House::new([gate.tool("slow").task(mode)]).await;
            let caller = Caller::new(way, &house).await;
            let mut talk = caller.call("slow", json!({})).await;
            soon("the tool", gate.started.wait()).await;
            house.pass(HOLD).await;
            let result = talk.result().await;
            let id = followed(&result);
            assert!(text(&result).contains("slow") && text(&result).contains("task_wait"), "{result}");
            let open = house.open();
            assert_eq!(open.iter().map(ToString::to_string).collect::<Vec<_>>(), [id.as_str()], "{way:?}");
            let spec = house.task(open[0]).spec.clone();
            assert!(spec.hidden && spec.findable, "{way:?}");
            // What was answered is not stopped by what becomes of the connection.
            talk.lose();
            drop(talk);
            let mut waits = caller.call("task_wait", json!({"task_id": id})).await;
            waits.is_quiet().await;
            assert!(!gate.stopped.is_sent(), "{way:?}");
            gate.go.send();
            assert_eq!(text(&waits.result().await), "done", "{way:?}");
            assert_eq!(gate.runs(), 1, "{way:?}");
        }
    }
}

#[tokio::test]
async fn a_call_that_saved_something_is_held_no_longer_than_any_other() {
    for way in WAYS {
        let gate = Gate::new();
        let saves = tool("saves", &gate, |gate, ctx| async move {
            ctx.checkpoint(&1).await?;
            gate.started.send();
            gate.go.wait().await;
            Ok("done")
        });
        let house = House::new([saves]).await;
        let mut talk = Caller::new(way, &house).await.call("saves", json!({})).await;
        soon("the tool", gate.started.wait()).await;
        house.pass(HOLD - MS).await;
        talk.is_quiet().await;
        house.pass(MS).await;
        followed(&talk.result().await);
        gate.go.send();
        house.until_open(0).await;
    }
}

#[tokio::test]
async fn a_tool_that_is_never_a_task_is_held_to_its_end() {
    for way in WAYS {
        let gate = Gate::new();
        let house = House::new([gate.tool("slow").task(TaskMode::Never)]).await;
        let mut talk = Caller::new(way, &house).await.call("slow", json!({})).await;
        soon("the tool", gate.started.wait()).await;
        house.pass(HOLD * 3).await;
        talk.is_quiet().await;
        gate.go.send();
        assert_eq!(text(&talk.result().await), "done", "{way:?}");
    }
}

#[tokio::test]
async fn a_tool_that_must_be_a_task_is_refused() {
    for way in WAYS {
        let house = House::new([quick("quick").task(TaskMode::Required)]).await;
        let error = Caller::new(way, &house).await.call("quick", json!({})).await.error().await;
        assert!(error["code"].is_i64(), "{way:?}: {error}");
    }
}

#[tokio::test]
async fn where_no_task_can_be_made_a_call_is_answered_after_the_hold_and_its_work_stops() {
    for way in WAYS {
        let (gate, other) = (Gate::new(), Gate::new());
        let limits = Limits { tasks_per_caller: 1, ..Limits::DEFAULT };
        let config = Config { followups: true, hold: HOLD, ..with_limits(limits) };
        let slow = if way.is_modern() { gate.tool("slow") } else { gate.tool("slow").dedupe() };
        let house = House::with(registry([slow, other.tool("other").task(TaskMode::Always)]), config).await;
        house.tasker().start("other", json!({})).await;
        let caller = Caller::new(way, &house).await;
        // A result within that time is the answer, room or not.
        let mut talk = caller.call("slow", json!({})).await;
        soon("the tool", gate.started.wait()).await;
        house.pass(SECOND).await;
        talk.is_quiet().await;
        gate.go.send();
        assert_eq!(text(&talk.result().await), "done", "{way:?}");
        let mut talk = caller.call("slow", json!({})).await;
        soon("the tool", gate.started.wait()).await;
        house.pass(SECOND).await;
        talk.is_quiet().await;
        house.pass(HOLD).await;
        let told = talk.result().await;
        assert_eq!(told["isError"], true, "{way:?}: {told}");
        for word in ["`slow` was stopped after 45 s", "the limit is 1", "`limits.tasks_per_caller`", "`task_list`", "`task_cancel`"] {
            assert!(text(&told).contains(word), "{way:?}: no {word}: {told}");
        }
        soon("the word to stop", gate.stopped.wait()).await;
        assert_eq!(house.open().len(), 1, "{way:?}");
        // With room, it is as ever.
        other.go.send();
        house.until_open(0).await;
        let mut talk = caller.call("slow", json!({})).await;
        soon("the tool", gate.started.wait()).await;
        house.pass(HOLD).await;
        followed(&talk.result().await);
        gate.go.send();
        assert_eq!(gate.runs(), 3, "{way:?}");
    }
}

#[tokio::test]
async fn a_client_that_takes_no_stream_is_held_alike() {
    let gate = Gate::new();
    let house = House::new([gate.tool("slow"), asks("asks")]).await;
    let legacy = Legacy::of(house.port, None, LATEST, json!({"elicitation": {}})).await.accepting("application/json");
    let calling = tokio::spawn({
        let legacy = legacy.clone();
        async move { legacy.call("slow", json!({})).await }
    });
    soon("the tool", gate.started.wait()).await;
    house.pass(HOLD).await;
    let id = followed(&soon("the answer", calling).await.expect("no panic"));
    gate.go.send();
    assert_eq!(text(&legacy.call("task_wait", json!({"task_id": id})).await), "done");
    // Nobody can be asked where nothing but the response is sent.
    assert!(text(&legacy.call("asks", json!({})).await).contains("Who are you?"));
}

#[tokio::test]
async fn a_call_under_a_key_is_held_alike_and_found_again_by_its_key() {
    for way in WAYS {
        let gate = Gate::new();
        let house = House::new([gate.tool("slow")]).await;
        let caller = Caller::new(way, &house).await;
        let params = json!({"name": "slow", "arguments": {}, "_meta": {"dev.taskwire/idempotencyKey": "k"}});
        let mut talk = caller.request("tools/call", params.clone()).await;
        soon("the tool", gate.started.wait()).await;
        house.pass(HOLD).await;
        followed(&talk.result().await);
        let mut again = caller.request("tools/call", params).await;
        again.is_quiet().await;
        gate.go.send();
        assert_eq!(text(&again.result().await), "done", "{way:?}");
        assert_eq!(gate.runs(), 1, "{way:?}");
    }
}

#[tokio::test]
async fn turned_off_a_call_is_held_to_its_end_and_there_are_no_tools_to_follow_up() {
    for way in WAYS {
        let gate = Gate::new();
        let config = Config { followups: false, ..config() };
        let shaped = quick("shaped").output_schema(json!({"type": "object"}));
        let house = House::with(registry([gate.tool("slow").dedupe(), asks("asks"), shaped]), config).await;
        let caller = Caller::new(way, &house).await;
        assert_eq!(names(&caller).await, ["slow", "asks", "shaped"], "{way:?}");
        let listed = caller.request("tools/list", json!({})).await.result().await;
        assert!(listed["tools"][2].get("outputSchema").is_some(), "{listed}");
        let unknown = caller.call("task_wait", json!({"task_id": "x"})).await.error().await;
        assert!(unknown["message"].as_str().is_some_and(|text| text.contains("no tool")), "{way:?}: {unknown}");
        let refused = caller.call("asks", json!({})).await.error().await;
        assert!(refused["message"].as_str().is_some_and(|text| text.contains("elicitation")), "{way:?}: {refused}");
        let mut talk = caller.call_with_progress("slow", json!({})).await;
        soon("the tool", gate.started.wait()).await;
        house.pass(SECOND).await;
        house.pass(HOLD * 2).await;
        talk.is_quiet().await;
        let other = Caller::new(way, &house).await.call("slow", json!({})).await;
        soon("another run", gate.started.wait()).await;
        gate.go.send();
        gate.go.send();
        talk.response().await;
        drop(other);
        assert_eq!(gate.runs(), 2, "{way:?}: every call runs");
    }
}

// What is heard meanwhile.

#[tokio::test]
async fn who_wants_progress_hears_that_the_work_goes_on() {
    for way in WAYS {
        let (tool, mut runs) = played("plays");
        let house = House::new([tool]).await;
        let mut talk = Caller::new(way, &house).await.call_with_progress("plays", json!({})).await;
        let mut act = run_of(&mut runs).await;
        act.progress(0.5, None).await;
        assert_eq!(talk.progress().await, (0.5, "0.5 done".to_owned()), "{way:?}");
        let mut last = 0.5;
        for _ in 0..2 {
            house.pass(BEAT - MS).await;
            talk.is_quiet().await;
            house.pass(MS).await;
            let (done, words) = talk.progress().await;
            assert!(done > last && done < 0.501, "{way:?}: {done} after {last}");
            assert!(words.starts_with("running for ") && words.ends_with(" s"), "{way:?}: {words}");
            last = done;
        }
        act.progress(1.0, Some("one")).await;
        assert_eq!(talk.progress().await, (1.0, "one".to_owned()), "{way:?}: a sign of life is not in the way of that");
        house.pass(BEAT - MS).await;
        talk.is_quiet().await;
        house.pass(MS).await;
        let (done, words) = talk.progress().await;
        assert!(done > 1.0 && done < 1.001, "{way:?}: {done}");
        assert_eq!(words, "one", "{way:?}: what the work last said of itself");
        act.progress(2.0, Some("two")).await;
        assert_eq!(talk.progress().await, (2.0, "two".to_owned()), "{way:?}");
        act.ends("done");
        assert_eq!(text(&talk.result().await), "done", "{way:?}");
    }
}

#[tokio::test]
async fn a_sign_of_life_has_the_words_that_the_work_said_of_itself() {
    for way in WAYS {
        for mode in [TaskMode::Auto, TaskMode::Always] {
            let (tool, mut runs) = played("plays");
            let house = House::new([tool.task(mode)]).await;
            let mut talk = Caller::new(way, &house).await.call_with_progress("plays", json!({})).await;
            let mut act = run_of(&mut runs).await;
            for said in ["waiting for its turn", "unpacking"] {
                act.ctx.status(said).await.expect("it may say so");
                let mut words = house.sign(&mut talk).await.1;
                for _ in 0..3 {
                    if words != said {
                        // Said while the call became a task, it may not be stored yet; with this it is. Earlier signs may still be on their way.
                        soon("a checkpoint", act.ctx.checkpoint(&said)).await.expect("it is kept");
                        words = house.sign(&mut talk).await.1;
                    }
                }
                assert_eq!(words, said, "{way:?} {mode:?}");
            }
            act.ends("done");
            assert_eq!(text(&talk.result().await), "done", "{way:?} {mode:?}");
        }
    }
}

#[tokio::test]
async fn the_first_sign_of_life_counts_from_the_call() {
    for way in WAYS {
        for mode in [TaskMode::Auto, TaskMode::Never] {
            let gate = Gate::new();
            let house = House::new([gate.tool("slow").task(mode)]).await;
            let mut talk = Caller::new(way, &house).await.call_with_progress("slow", json!({})).await;
            soon("the tool", gate.started.wait()).await;
            // By then it is a task in some of them; that is not when it began.
            house.pass(SECOND).await;
            house.pass(BEAT - SECOND - MS).await;
            talk.is_quiet().await;
            house.pass(MS).await;
            assert_eq!(talk.progress().await.1, "running for 5 s", "{way:?} {mode:?}");
            gate.go.send();
            assert_eq!(text(&talk.result().await), "done", "{way:?} {mode:?}");
        }
    }
}

#[tokio::test]
async fn progress_grows_also_when_a_round_becomes_a_task() {
    for way in [Way::ModernHttp, Way::ModernLines] {
        let rounds = tool("rounds", &(), |(), ctx: Ctx| async move {
            ctx.progress(Progress::at(5.0)).await?;
            match ctx.resumed().responses.get("name") {
                None => Err(ToolError::round(Round::ask("name", name_form("Who are you?")))),
                Some(answer) => Ok(format!("hello {}", name_in(&answer.read()?))),
            }
        });
        let house = House::new([rounds]).await;
        let mut talk = Caller::new(way, &house).await.call_with_progress("rounds", json!({})).await;
        assert_eq!(talk.progress().await.0, 5.0, "{way:?}");
        let answer = talk.next().await.expect("an answer");
        assert!(answer.get("method").is_none(), "{way:?}: it was told already: {answer}");
        assert!(text(&answer["result"]).contains("Who are you?"), "{way:?}: {answer}");
    }
}

#[tokio::test]
async fn who_wants_no_progress_hears_nothing_until_the_answer() {
    for way in WAYS {
        let gate = Gate::new();
        let house = House::new([gate.tool("slow")]).await;
        let mut talk = Caller::new(way, &house).await.call("slow", json!({})).await;
        soon("the tool", gate.started.wait()).await;
        house.pass(SECOND).await;
        for _ in 0..3 {
            house.pass(BEAT).await;
            talk.is_quiet().await;
        }
        gate.go.send();
        assert_eq!(text(&talk.result().await), "done", "{way:?}");
    }
}

#[tokio::test]
async fn a_call_that_can_be_no_task_gives_signs_of_life_too() {
    for way in WAYS {
        let (gate, other) = (Gate::new(), Gate::new());
        let limits = Limits { tasks_per_caller: 1, ..Limits::DEFAULT };
        let config = Config { followups: true, hold: HOLD, ..with_limits(limits) };
        let tools = registry([gate.tool("slow").task(TaskMode::Never), other.tool("other").task(TaskMode::Always)]);
        let house = House::with(tools, config).await;
        house.tasker().start("other", json!({})).await;
        let mut talk = Caller::new(way, &house).await.call_with_progress("slow", json!({})).await;
        soon("the tool", gate.started.wait()).await;
        house.pass(SECOND).await;
        let ((first, _), (second, _)) = (house.sign(&mut talk).await, house.sign(&mut talk).await);
        assert!(second > first, "{way:?}: {second} after {first}");
        gate.go.send();
        assert_eq!(text(&talk.result().await), "done", "{way:?}");
    }
}

#[tokio::test]
async fn a_wait_gives_signs_of_life_and_ends_after_the_hold() {
    for way in WAYS {
        let gate = Gate::new();
        let house = House::new([gate.tool("slow")]).await;
        let caller = Caller::new(way, &house).await;
        let mut talk = caller.call("slow", json!({})).await;
        soon("the tool", gate.started.wait()).await;
        house.pass(HOLD).await;
        let id = followed(&talk.result().await);
        let mut waits = caller.call_with_progress("task_wait", json!({"task_id": id})).await;
        let ((first, _), (second, _)) = (house.sign(&mut waits).await, house.sign(&mut waits).await);
        assert!(second > first, "{way:?}: {second} after {first}");
        assert_eq!(house.open().len(), 1, "{way:?}: a wait is no task");
        house.pass(HOLD).await;
        assert_eq!(followed(&waits.result().await), id, "{way:?}");
        gate.go.send();
        assert_eq!(text(&caller.result("task_wait", json!({"task_id": id})).await), "done", "{way:?}");
    }
}

// Questions.

#[tokio::test]
async fn a_client_that_cannot_be_asked_answers_with_a_follow_up_tool() {
    for way in WAYS {
        let house = House::new([asks("asks")]).await;
        let caller = Caller::new(way, &house).await;
        let asked = caller.result("asks", json!({})).await;
        let id = followed(&asked);
        assert!(text(&asked).contains("Who are you?") && text(&asked).contains("task_answer"), "{way:?}: {asked}");
        assert_ne!(asked["resultType"], "input_required", "{way:?}");
        let answered = caller.result("task_answer", json!({"task_id": id, "value": "Ada"})).await;
        assert_ne!(answered["isError"], true, "{way:?}: {answered}");
        assert_eq!(text(&caller.result("task_wait", json!({"task_id": id})).await), "hello Ada", "{way:?}");
    }
}

#[tokio::test]
async fn a_question_that_a_tool_asks_in_a_round_is_answered_alike() {
    for way in WAYS {
        let rounds = tool("rounds", &(), |(), ctx: Ctx| async move {
            match ctx.resumed().responses.get("name") {
                None => Err(ToolError::round(Round::ask("name", name_form("Who are you?")))),
                Some(answer) => Ok(format!("hello {}", name_in(&answer.read()?))),
            }
        });
        let house = House::new([rounds]).await;
        let caller = Caller::new(way, &house).await;
        let asked = caller.result("rounds", json!({})).await;
        let id = followed(&asked);
        assert!(text(&asked).contains("Who are you?"), "{way:?}: {asked}");
        caller.result("task_answer", json!({"task_id": id, "value": {"name": "Ada"}})).await;
        assert_eq!(text(&caller.result("task_wait", json!({"task_id": id})).await), "hello Ada", "{way:?}");
    }
}

#[tokio::test]
async fn a_client_that_can_be_asked_is_asked_as_ever() {
    for way in WAYS {
        let house = House::new([asks("asks")]).await;
        let caller = Caller::declaring(way, &house, json!({"elicitation": {}}), None).await;
        let call = json!({"name": "asks", "arguments": {}});
        let mut talk = caller.request("tools/call", call.clone()).await;
        if way.is_modern() {
            let asked = talk.result().await;
            assert_eq!(asked["resultType"], "input_required", "{way:?}: {asked}");
            let mut call = call;
            call["requestState"] = asked["requestState"].clone();
            call["inputResponses"] = json!({"name": accept("Ada")});
            let mut again = caller.request("tools/call", call).await;
            assert_eq!(text(&again.result().await), "hello Ada", "{way:?}");
            continue;
        }
        let question = talk.next().await.expect("a question");
        assert_eq!(question["method"], "elicitation/create", "{way:?}: {question}");
        // Nobody who thinks about an answer is cut short.
        house.pass(HOLD * 2).await;
        talk.is_quiet().await;
        match &caller.legacy {
            Some(legacy) => legacy.answer(&question, accept("Ada")).await,
            None => talk.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": accept("Ada")})).await,
        }
        // Its time was over long ago. Who took the time to answer is not told to wait, but is held anew.
        assert_eq!(text(&talk.result().await), "hello Ada", "{way:?}");
    }
}

#[tokio::test]
async fn a_call_is_held_anew_when_its_question_is_answered() {
    for way in [Way::LegacyHttp, Way::LegacyLines] {
        let gate = Gate::new();
        let asks = tool("asks", &gate, |gate, ctx: Ctx| async move {
            ctx.ask("name", name_form("Who are you?")).await?;
            gate.started.send();
            gate.go.wait().await;
            Ok("done")
        });
        let house = House::new([asks]).await;
        let caller = Caller::declaring(way, &house, json!({"elicitation": {}}), None).await;
        let mut talk = caller.call("asks", json!({})).await;
        let question = talk.next().await.expect("a question");
        house.pass(HOLD * 2).await;
        match &caller.legacy {
            Some(legacy) => legacy.answer(&question, accept("Ada")).await,
            None => talk.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": accept("Ada")})).await,
        }
        soon("the tool", gate.started.wait()).await;
        for _ in 0..10 {
            settle().await;
        }
        house.pass(HOLD - MS).await;
        talk.is_quiet().await;
        house.pass(MS).await;
        let id = followed(&talk.result().await);
        gate.go.send();
        assert_eq!(text(&caller.result("task_wait", json!({"task_id": id})).await), "done", "{way:?}");
    }
}

#[tokio::test]
async fn nobody_is_waited_for_longer_than_an_hour_who_is_asked_while_the_call_waits() {
    const HOUR_MS: u64 = 3_600_000;
    for way in WAYS {
        for (capabilities, most) in [(json!({}), 24 * HOUR_MS), (json!({"sampling": {}}), HOUR_MS), (json!({"roots": {}}), HOUR_MS)] {
            let gate = Gate::new();
            let house = House::new([gate.tool("slow")]).await;
            let caller = Caller::declaring(way, &house, capabilities.clone(), None).await;
            let mut talk = caller.call("slow", json!({})).await;
            soon("the tool", gate.started.wait()).await;
            house.pass(HOLD).await;
            let id: TaskId = followed(&talk.result().await).parse().expect("an id");
            assert_eq!(house.task(id).spec.input_timeout_ms, Some(most), "{way:?}: {capabilities}");
            gate.go.send();
        }
    }
}

#[tokio::test]
async fn what_only_a_program_can_answer_is_still_refused() {
    for way in WAYS {
        let samples = tool("samples", &(), |(), ctx| async move {
            ctx.ask("model", Question::sampling(json!({"messages": [], "maxTokens": 1}))).await?;
            Ok("done")
        });
        let house = House::new([samples]).await;
        let error = Caller::new(way, &house).await.call("samples", json!({})).await.error().await;
        assert!(error["message"].as_str().is_some_and(|text| text.contains("sampling")), "{way:?}: {error}");
    }
}

// What stops a call.

#[tokio::test]
async fn a_held_call_is_stopped_at_once_when_its_connection_is_lost_where_nothing_lingers() {
    for way in WAYS {
        let gate = Gate::new();
        let house = House::new([gate.tool("slow").linger(Duration::ZERO)]).await;
        let mut talk = Caller::new(way, &house).await.call("slow", json!({})).await;
        soon("the tool", gate.started.wait()).await;
        talk.lose();
        drop(talk);
        match way {
            Way::ModernHttp | Way::LegacyHttp => {}
            // Calls that are under way get the time of a shutdown.
            Way::ModernLines | Way::LegacyLines => house.pass(DRAIN).await,
        }
        soon("the word to stop", gate.stopped.wait()).await;
    }
}

#[tokio::test]
async fn a_held_call_that_became_a_task_by_itself_is_stopped_when_its_connection_is_lost_where_nothing_lingers() {
    let gate = Gate::new();
    let saves = tool("saves", &gate, |gate, ctx| async move {
        ctx.checkpoint(&1).await?;
        gate.started.send();
        ctx.cancelled().await;
        gate.stopped.send();
        Err::<&str, _>(ToolError::stopped())
    });
    let house = House::new([saves.linger(Duration::ZERO)]).await;
    let mut talk = Caller::new(Way::ModernHttp, &house).await.call("saves", json!({})).await;
    soon("the tool", gate.started.wait()).await;
    let id = house.until_open(1).await[0];
    talk.lose();
    soon("the word to stop", gate.stopped.wait()).await;
    house.until(id, Status::Cancelled).await;
}

#[tokio::test]
async fn a_held_call_is_stopped_at_once_when_it_is_cancelled() {
    // In the modern era over HTTP there is no word to cancel a request but its end.
    for way in [Way::LegacyHttp, Way::ModernLines, Way::LegacyLines] {
        let gate = Gate::new();
        let house = House::new([gate.tool("slow")]).await;
        let caller = Caller::new(way, &house).await;
        let mut talk = caller.call("slow", json!({})).await;
        soon("the tool", gate.started.wait()).await;
        house.pass(2 * SECOND).await;
        caller.cancel(&mut talk, "not needed any more").await;
        soon("the word to stop", gate.stopped.wait()).await;
    }
}

#[tokio::test]
async fn what_was_answered_is_cancelled_with_a_follow_up_tool() {
    for way in WAYS {
        let gate = Gate::new();
        let house = House::new([gate.tool("slow")]).await;
        let caller = Caller::new(way, &house).await;
        let mut talk = caller.call("slow", json!({})).await;
        soon("the tool", gate.started.wait()).await;
        house.pass(HOLD).await;
        let id = followed(&talk.result().await);
        caller.result("task_cancel", json!({"task_id": id})).await;
        soon("the word to stop", gate.stopped.wait()).await;
        let ended = caller.result("task_wait", json!({"task_id": id})).await;
        assert_eq!(ended["isError"], true, "{way:?}: {ended}");
    }
}

// Ends without a result.

/// What a model is told of a held call that has no result.
fn told_of_failure(result: &Value) -> &str {
    assert_eq!(result["isError"], true, "{result}");
    text(result)
}

#[tokio::test]
async fn a_held_call_that_has_no_time_left_is_answered_with_what_a_model_can_act_on() {
    for way in WAYS {
        for (mode, writes) in [(TaskMode::Auto, false), (TaskMode::Auto, true), (TaskMode::Never, false), (TaskMode::Never, true)] {
            let (tool, mut runs) = played("plays");
            let house = House::new([tool.task(mode).timeout(20 * SECOND)]).await;
            let caller = Caller::new(way, &house).await;
            let mut talk = caller.call("plays", json!({})).await;
            let act = run_of(&mut runs).await;
            if writes {
                act.ctx.text("one\ntwo\n").await.expect("it may");
            }
            house.pass(20 * SECOND).await;
            let result = talk.result().await;
            let told = told_of_failure(&result);
            assert!(told.starts_with("`plays`") && told.contains("did not finish within its timeout of 20s"), "{way:?}: {told}");
            let last = if writes { json!("The last lines that it wrote:\none\ntwo\n") } else { Value::Null };
            assert_eq!(result["content"][1]["text"], last, "{way:?} {mode:?}");
            let can_be_read = writes && mode == TaskMode::Auto;
            assert_eq!(told.contains("`task_output`"), can_be_read, "{way:?} {mode:?}: {told}");
            if can_be_read {
                let id = told.split(|c: char| !c.is_ascii_alphanumeric()).find(|word| word.parse::<TaskId>().is_ok());
                let whole = caller.result("task_output", json!({"task_id": id.expect("a task")})).await;
                assert!(whole.to_string().contains("one\\ntwo"), "{way:?}: {whole}");
            }
        }
    }
}

#[tokio::test]
async fn a_held_call_that_breaks_is_answered_with_the_last_that_it_wrote() {
    for way in WAYS {
        for mode in [TaskMode::Auto, TaskMode::Never] {
            let breaks = tool("breaks", &(), |(), ctx| async move {
                ctx.text("one\ntwo\n").await?;
                Err::<String, _>(ToolError::protocol(-32603, "it is lost"))
            });
            let house = House::new([breaks.task(mode)]).await;
            let result = Caller::new(way, &house).await.result("breaks", json!({})).await;
            assert!(told_of_failure(&result).contains("failed: it is lost"), "{way:?} {mode:?}: {result}");
            assert_eq!(result["content"][1]["text"], "The last lines that it wrote:\none\ntwo\n", "{way:?} {mode:?}");
        }
    }
}

#[tokio::test]
async fn a_held_call_that_somebody_else_cancels_says_so() {
    for way in WAYS {
        let (tool, mut runs) = played("plays");
        let house = House::new([tool]).await;
        let caller = Caller::new(way, &house).await;
        let mut talk = caller.call("plays", json!({})).await;
        let act = run_of(&mut runs).await;
        act.ctx.checkpoint(&1).await.expect("it may");
        let id = house.until_open(1).await[0];
        Caller::new(way, &house).await.result("task_cancel", json!({"task_id": id})).await;
        let result = talk.result().await;
        let told = told_of_failure(&result);
        assert!(told.contains(&format!("`plays` (task {id}) was cancelled")) && told.contains("gives no result"), "{way:?}: {told}");
    }
}

#[tokio::test]
async fn an_error_that_a_tool_has_for_the_client_is_one() {
    for way in WAYS {
        for mode in [TaskMode::Auto, TaskMode::Always] {
            let refuses = tool("refuses", &(), |(), _| async move { Err::<String, _>(ToolError::protocol(-32602, "no such thing")) });
            let house = House::new([refuses.task(mode)]).await;
            let error = Caller::new(way, &house).await.call("refuses", json!({})).await.error().await;
            assert_eq!((&error["code"], &error["message"]), (&json!(-32602), &json!("no such thing")), "{way:?} {mode:?}");
        }
    }
}

#[tokio::test]
async fn turned_off_a_call_without_a_result_is_an_error_as_ever() {
    for way in WAYS {
        for mode in [TaskMode::Auto, TaskMode::Always] {
            let gate = Gate::new();
            let tools = registry([gate.tool("slow").task(mode).timeout(20 * SECOND)]);
            let house = House::with(tools, Config { followups: false, ..config() }).await;
            let mut talk = Caller::new(way, &house).await.call("slow", json!({})).await;
            soon("the tool", gate.started.wait()).await;
            house.pass(20 * SECOND).await;
            assert_eq!(talk.error().await["code"], -32603, "{way:?} {mode:?}");
        }
    }
}

// Calls that are the same.

#[tokio::test]
async fn calls_that_are_the_same_share_a_task() {
    for way in WAYS {
        let gate = Gate::new();
        let house = House::new([gate.tool("slow").dedupe()]).await;
        let caller = Caller::new(way, &house).await;
        let one = json!({"a": 1, "b": {"x": [1, 2], "y": null}});
        let other: Value = serde_json::from_str(r#"{"b":{"y":null,"x":[1,2]},"a":1}"#).expect("JSON");
        let (mut first, mut second) = (caller.call("slow", one.clone()).await, caller.call("slow", other).await);
        soon("the tool", gate.started.wait()).await;
        for _ in 0..10 {
            settle().await;
        }
        let mut different = caller.call("slow", json!({"a": 2})).await;
        soon("another run", gate.started.wait()).await;
        assert_eq!(house.open().len(), 2, "{way:?}");
        for _ in 0..2 {
            gate.go.send();
        }
        for talk in [&mut first, &mut second, &mut different] {
            assert_eq!(text(&talk.result().await), "done", "{way:?}");
        }
        assert_eq!(gate.runs(), 2, "{way:?}");
        // Everybody has heard how it ended: from now on it is another call.
        house.until_open(0).await;
        settle().await;
        let mut anew = caller.call("slow", one).await;
        soon("a run of its own", gate.started.wait()).await;
        gate.go.send();
        assert_eq!(text(&anew.result().await), "done", "{way:?}");
        assert_eq!(gate.runs(), 3, "{way:?}");
    }
}

#[tokio::test]
async fn a_call_that_joins_another_has_its_own_hold_and_hears_of_progress() {
    for way in WAYS {
        let (tool, mut runs) = played("plays");
        let house = House::new([tool.dedupe()]).await;
        let caller = Caller::new(way, &house).await;
        let mut first = caller.call("plays", json!({})).await;
        let mut act = run_of(&mut runs).await;
        act.progress(1.0, Some("one")).await;
        house.pass(HOLD - SECOND).await;
        let mut second = caller.call_with_progress("plays", json!({})).await;
        assert_eq!(second.progress().await, (1.0, "one".to_owned()), "{way:?}");
        house.pass(SECOND).await;
        let id = followed(&first.result().await);
        act.progress(2.0, Some("two")).await;
        assert_eq!(second.progress().await, (2.0, "two".to_owned()), "{way:?}");
        house.pass(HOLD - 2 * SECOND).await;
        second.progress().await;
        house.pass(SECOND).await;
        assert_eq!(followed(&second.result().await), id, "{way:?}");
        act.ends("done");
        house.until_open(0).await;
    }
}

#[tokio::test]
async fn nobody_joins_a_call_of_another_caller() {
    for way in [Way::ModernHttp, Way::LegacyHttp] {
        let gate = Gate::new();
        let house = House::with(registry([gate.tool("slow").dedupe()]), two_callers()).await;
        let ann = Caller::declaring(way, &house, json!({}), Some("ann-token")).await;
        let bob = Caller::declaring(way, &house, json!({}), Some("bob-token")).await;
        let mut first = ann.call("slow", json!({})).await;
        soon("the tool", gate.started.wait()).await;
        let mut second = bob.call("slow", json!({})).await;
        soon("another run", gate.started.wait()).await;
        assert_eq!(house.open().len(), 2, "{way:?}");
        house.pass(HOLD).await;
        let (its, other) = (followed(&first.result().await), followed(&second.result().await));
        assert_ne!(its, other);
        let unknown = bob.result("task_wait", json!({"task_id": its})).await;
        assert!(unknown["isError"] == true && !text(&unknown).contains("still running"), "{way:?}: {unknown}");
        gate.go.send();
        gate.go.send();
    }
}

#[tokio::test]
async fn who_was_cut_off_and_calls_again_gets_what_is_running() {
    for way in WAYS {
        let gate = Gate::new();
        let house = House::new([gate.tool("slow").dedupe()]).await;
        let caller = Caller::new(way, &house).await;
        let mut lost = caller.call("slow", json!({})).await;
        soon("the tool", gate.started.wait()).await;
        lost.lose();
        drop(lost);
        // On a byte stream the call is let go of after the time of a shutdown.
        house.pass(DRAIN).await;
        settle().await;
        assert!(!gate.stopped.is_sent(), "{way:?}");
        let mut again = caller.call("slow", json!({})).await;
        again.is_quiet().await;
        gate.go.send();
        assert_eq!(text(&again.result().await), "done", "{way:?}");
        assert_eq!(gate.runs(), 1, "{way:?}");
    }
}

#[tokio::test]
async fn an_end_that_nobody_heard_of_is_told_to_who_calls_again_for_a_while() {
    for way in WAYS {
        for late in [false, true] {
            let gate = Gate::new();
            let house = House::new([gate.tool("slow").dedupe()]).await;
            let caller = Caller::new(way, &house).await;
            let mut lost = caller.call("slow", json!({})).await;
            soon("the tool", gate.started.wait()).await;
            lost.lose();
            drop(lost);
            house.pass(DRAIN).await;
            let id = house.until_open(1).await[0];
            gate.go.send();
            house.until(id, Status::Completed).await;
            house.pass(if late { HOLD + MS } else { HOLD }).await;
            let mut again = caller.call("slow", json!({})).await;
            if late {
                soon("a run of its own", gate.started.wait()).await;
                gate.go.send();
            }
            assert_eq!(text(&again.result().await), "done", "{way:?}");
            assert_eq!(gate.runs(), if late { 2 } else { 1 }, "{way:?}");
            settle().await;
            // Heard once, it is over.
            let mut anew = caller.call("slow", json!({})).await;
            soon("a run of its own", gate.started.wait()).await;
            gate.go.send();
            anew.result().await;
        }
    }
}

#[tokio::test]
async fn an_error_that_was_told_is_not_told_again() {
    let runs = Arc::new(AtomicU64::new(0));
    let refuses = tool("refuses", &runs, |runs: Arc<AtomicU64>, _| async move {
        Err::<String, _>(ToolError::protocol(-32602, format!("no {}", runs.fetch_add(1, Ordering::Relaxed))))
    });
    let house = House::new([refuses.dedupe()]).await;
    let legacy = Legacy::of(house.port, None, LATEST, json!({})).await;
    let mut calls = 0;
    for accept in ["application/json", "application/json, text/event-stream"] {
        let caller = legacy.accepting(accept);
        for _ in 0..3 {
            let error = caller.error("tools/call", json!({"name": "refuses", "arguments": {}})).await;
            assert_eq!(error["message"], format!("no {calls}"), "{accept}");
            calls += 1;
        }
    }
}

#[tokio::test]
async fn an_end_that_was_heard_by_a_follow_up_tool_is_not_told_again() {
    for way in WAYS {
        let gate = Gate::new();
        let house = House::new([gate.tool("slow").dedupe()]).await;
        let caller = Caller::new(way, &house).await;
        let mut talk = caller.call("slow", json!({})).await;
        soon("the tool", gate.started.wait()).await;
        house.pass(HOLD).await;
        let id = followed(&talk.result().await);
        gate.go.send();
        // As models write it, now and then.
        let wrapped = format!("`{}`", id.to_uppercase());
        assert_eq!(text(&caller.result("task_wait", json!({"task_id": wrapped})).await), "done", "{way:?}");
        settle().await;
        let mut anew = caller.call("slow", json!({})).await;
        soon("a run of its own", gate.started.wait()).await;
        gate.go.send();
        assert_eq!(text(&anew.result().await), "done", "{way:?}");
    }
}

#[tokio::test]
async fn a_shared_call_is_stopped_by_a_change_of_mind_and_not_by_a_loss_of_patience() {
    // In the modern era over HTTP there is no word to call a request off but its end.
    for way in [Way::LegacyHttp, Way::ModernLines, Way::LegacyLines] {
        let gate = Gate::new();
        let house = House::new([gate.tool("slow").dedupe()]).await;
        let caller = Caller::new(way, &house).await;
        let mut first = caller.call("slow", json!({})).await;
        soon("the tool", gate.started.wait()).await;
        let id = house.until_open(1).await[0];
        for _ in 0..10 {
            settle().await;
        }
        caller.cancel(&mut first, "McpError: MCP error -32001: Request timed out").await;
        for _ in 0..10 {
            settle().await;
        }
        let mut second = caller.call("slow", json!({})).await;
        second.is_quiet().await;
        assert!(!gate.stopped.is_sent(), "{way:?}");
        for _ in 0..10 {
            settle().await;
        }
        caller.cancel(&mut second, "not needed any more").await;
        soon("the word to stop", gate.stopped.wait()).await;
        house.until(id, Status::Cancelled).await;
        assert_eq!(gate.runs(), 1, "{way:?}");
        // What was called off is not what the next one wants.
        let mut anew = caller.call("slow", json!({})).await;
        soon("a run of its own", gate.started.wait()).await;
        gate.go.send();
        assert_eq!(text(&anew.result().await), "done", "{way:?}");
    }
}

#[tokio::test]
async fn who_calls_again_after_a_change_of_mind_gets_a_run_of_its_own() {
    for way in [Way::LegacyHttp, Way::ModernLines, Way::LegacyLines] {
        for _ in 0..5 {
            let gate = Gate::new();
            let house = House::new([gate.tool("slow").dedupe()]).await;
            let caller = Caller::new(way, &house).await;
            let mut talk = caller.call("slow", json!({})).await;
            soon("the tool", gate.started.wait()).await;
            for _ in 0..10 {
                settle().await;
            }
            caller.cancel(&mut talk, "not needed any more").await;
            caller.call_after(&mut talk, "slow", json!({})).await;
            soon("a run of its own", gate.started.wait()).await;
            soon("the word to stop", gate.stopped.wait()).await;
            gate.go.send();
            assert_eq!(text(&talk.result().await), "done", "{way:?}");
            assert_eq!(gate.runs(), 2, "{way:?}");
        }
    }
}

#[tokio::test]
async fn a_shared_call_goes_on_for_as_long_as_somebody_has_not_changed_its_mind() {
    for way in [Way::LegacyHttp, Way::ModernLines, Way::LegacyLines] {
        for both in [false, true] {
            let (tool, mut runs) = played("plays");
            let house = House::new([tool.dedupe()]).await;
            let caller = Caller::new(way, &house).await;
            let mut first = caller.call_with_progress("plays", json!({})).await;
            let mut act = run_of(&mut runs).await;
            let mut second = caller.call_with_progress("plays", json!({})).await;
            act.progress(1.0, None).await;
            // Both wait for it by now.
            for talk in [&mut first, &mut second] {
                assert_eq!(talk.progress().await.0, 1.0, "{way:?}");
            }
            caller.cancel(&mut first, "not needed any more").await;
            for _ in 0..10 {
                settle().await;
            }
            assert!(!act.ctx.is_cancelled(), "{way:?}");
            if both {
                caller.cancel(&mut second, "not needed any more").await;
                soon("the word to stop", act.ctx.cancelled()).await;
                continue;
            }
            act.ends("done");
            assert_eq!(text(&second.result().await), "done", "{way:?}");
        }
    }
}

#[tokio::test]
async fn who_came_back_to_a_shared_task_waits_for_it_like_any_other() {
    for both in [false, true] {
        let (tool, mut runs) = played("plays");
        let house = House::new([tool.dedupe()]).await;
        let (ann, bob) = (Caller::new(Way::LegacyHttp, &house).await, Caller::new(Way::LegacyHttp, &house).await);
        let mut first = ann.call_with_progress("plays", json!({})).await;
        let mut act = run_of(&mut runs).await;
        let mut second = bob.call_with_progress("plays", json!({})).await;
        act.progress(1.0, None).await;
        for talk in [&mut first, &mut second] {
            assert_eq!(talk.progress().await.0, 1.0);
        }
        second.has_place().await;
        second.lose();
        for _ in 0..10 {
            settle().await;
        }
        let mut back = bob.resume(&second).await;
        act.progress(2.0, None).await;
        assert_eq!(back.progress().await.0, 2.0);
        ann.cancel(&mut first, "not needed any more").await;
        for _ in 0..10 {
            settle().await;
        }
        assert!(!act.ctx.is_cancelled());
        if both {
            bob.cancel(&mut back, "not needed any more").await;
            soon("the word to stop", act.ctx.cancelled()).await;
            continue;
        }
        act.ends("done");
        assert_eq!(text(&back.result().await), "done");
    }
}

#[tokio::test]
async fn a_call_that_found_no_room_to_share_a_task_shares_none_later() {
    for way in WAYS {
        let (gate, other) = (Gate::new(), Gate::new());
        let limits = Limits { tasks_per_caller: 1, ..Limits::DEFAULT };
        let config = Config { followups: true, hold: HOLD, ..with_limits(limits) };
        let tools = registry([gate.tool("slow").dedupe(), other.tool("other").task(TaskMode::Always)]);
        let house = House::with(tools, config).await;
        house.tasker().start("other", json!({})).await;
        let mut talk = Caller::new(way, &house).await.call("slow", json!({})).await;
        soon("the tool", gate.started.wait()).await;
        other.go.send();
        house.until_open(0).await;
        house.pass(HOLD).await;
        let id: TaskId = followed(&talk.result().await).parse().expect("an id");
        let spec = house.task(id).spec.clone();
        assert!(spec.findable && spec.dedupe.is_none(), "{way:?}");
        gate.go.send();
    }
}

#[test]
fn who_calls_again_after_a_crash_gets_what_is_running_then() {
    for way in WAYS {
        let (dir, clock, gate) = (Arc::new(TempDir::new()), manual_clock(), Gate::new());
        let tools = || registry([gate.tool("slow").dedupe().retry_on_interrupt()]);
        life(async {
            let house = House::start_in(&dir, tools(), config(), &clock).await;
            let _lost = Caller::new(way, &house).await.call("slow", json!({"a": 1})).await;
            soon("the tool", gate.started.wait()).await;
            house.until_open(1).await;
        });
        life(async {
            let house = House::start_in(&dir, tools(), config(), &clock).await;
            soon("the second run", gate.started.wait()).await;
            let mut again = Caller::new(way, &house).await.call("slow", json!({"a": 1})).await;
            again.is_quiet().await;
            gate.go.send();
            assert_eq!(text(&again.result().await), "done", "{way:?}");
        });
        assert_eq!(gate.runs(), 2, "{way:?}: one in each life");
    }
}

#[test]
fn what_was_answered_goes_on_after_a_crash() {
    for way in WAYS {
        let (dir, clock, gate) = (Arc::new(TempDir::new()), manual_clock(), Gate::new());
        let tools = || registry([gate.tool("slow").retry_on_interrupt()]);
        let id = life(async {
            let house = House::start_in(&dir, tools(), config(), &clock).await;
            let mut talk = Caller::new(way, &house).await.call("slow", json!({})).await;
            soon("the tool", gate.started.wait()).await;
            house.pass(HOLD).await;
            followed(&talk.result().await)
        });
        life(async {
            let house = House::start_in(&dir, tools(), config(), &clock).await;
            soon("the second run", gate.started.wait()).await;
            gate.go.send();
            let caller = Caller::new(way, &house).await;
            assert_eq!(text(&caller.result("task_wait", json!({"task_id": id})).await), "done", "{way:?}");
        });
    }
}

// Lists.

/// The names of all tools, in the order of the list.
async fn names(caller: &Caller) -> Vec<String> {
    let listed = caller.request("tools/list", json!({})).await.result().await;
    listed["tools"].as_array().expect("tools").iter().map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect()
}

#[tokio::test]
async fn the_follow_up_tools_come_last_in_the_list_of_who_has_no_tasks() {
    let house = House::new([quick("b"), quick("a")]).await;
    for way in WAYS {
        let expected: Vec<&str> = ["b", "a"].into_iter().chain(NAMES).collect();
        assert_eq!(names(&Caller::new(way, &house).await).await, expected, "{way:?}");
    }
    let listed = house.tasker().ok("tools/list", json!({})).await;
    let listed: Vec<&str> = listed["tools"].as_array().expect("tools").iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(listed, ["b", "a"], "who has tasks needs no others");
    // But they can be called by anybody.
    let called = house.tasker().call("task_wait", json!({"task_id": "nonsense"})).await;
    assert_eq!((&called["resultType"], &called["isError"]), (&json!("complete"), &json!(true)), "{called}");
}

#[tokio::test]
async fn a_list_in_pages_has_the_follow_up_tools_on_the_last() {
    let house = House::with(registry([quick("b"), quick("a")]), Config { page_len: 3, ..config() }).await;
    for way in WAYS {
        let caller = Caller::new(way, &house).await;
        let (mut found, mut cursor) = (Vec::new(), Value::Null);
        loop {
            let params = if cursor.is_null() { json!({}) } else { json!({"cursor": cursor}) };
            let page = caller.request("tools/list", params).await.result().await;
            found.extend(page["tools"].as_array().expect("tools").iter().map(|tool| tool["name"].as_str().expect("a name").to_owned()));
            cursor = page["nextCursor"].clone();
            if cursor.is_null() {
                break;
            }
        }
        assert_eq!(found, ["b", "a", "task_wait", "task_output", "task_answer", "task_cancel", "task_list"], "{way:?}");
    }
}

#[tokio::test]
async fn a_tool_of_the_same_name_goes_before_one_of_the_server() {
    let house = House::new([quick("task_wait"), quick("other")]).await;
    for way in WAYS {
        let caller = Caller::new(way, &house).await;
        assert_eq!(names(&caller).await, ["task_wait", "other", "task_output", "task_answer", "task_cancel", "task_list"], "{way:?}");
        assert_eq!(text(&caller.result("task_wait", json!({})).await), "done", "{way:?}");
    }
}

#[tokio::test]
async fn no_shape_is_promised_of_a_result_that_may_be_something_else() {
    let schema = || json!({"type": "object", "properties": {"n": {"type": "number"}}});
    let shaped = |name: &str, mode| tool(name, &(), |(), _ctx| async move { Ok(Json(json!({"n": 1}))) }).output_schema(schema()).task(mode);
    let modes = [("auto", TaskMode::Auto), ("always", TaskMode::Always), ("never", TaskMode::Never), ("required", TaskMode::Required)];
    let house = House::new(modes.map(|(name, mode)| shaped(name, mode))).await;
    for way in WAYS {
        let caller = Caller::new(way, &house).await;
        let listed = caller.request("tools/list", json!({})).await.result().await;
        let promised: Vec<bool> =
            listed["tools"].as_array().expect("tools")[..4].iter().map(|tool| tool.get("outputSchema").is_some()).collect();
        assert_eq!(promised, [false, false, true, true], "{way:?}: {listed}");
        assert!(listed["tools"][0].get("inputSchema").is_some(), "{way:?}: nothing else is left out");
        assert_eq!(caller.result("auto", json!({})).await["structuredContent"], json!({"n": 1}), "{way:?}");
    }
    let listed = house.tasker().ok("tools/list", json!({})).await;
    assert!(listed["tools"].as_array().expect("tools").iter().all(|tool| tool.get("outputSchema").is_some()), "{listed}");
}

// Output as a resource.

#[tokio::test]
async fn the_output_of_a_task_is_a_resource_of_its_caller_alone() {
    let writes = |name: &str| {
        tool(name, &(), |(), ctx: Ctx| async move {
            ctx.text("all that it wrote").await?;
            ctx.checkpoint(&1).await?;
            ctx.cancelled().await;
            Ok("done")
        })
    };
    let spills = writes("spills").policy(Policy { spills: true, ..Policy::default() });
    let house = House::with(registry([spills]), two_callers()).await;
    for way in [Way::ModernHttp, Way::LegacyHttp] {
        let ann = Caller::declaring(way, &house, json!({}), Some("ann-token")).await;
        let bob = Caller::declaring(way, &house, json!({}), Some("bob-token")).await;
        let mut talk = ann.call("spills", json!({})).await;
        house.until_open(1).await;
        house.pass(HOLD).await;
        let id = followed(&talk.result().await);
        let uri = format!("taskwire://task/{id}/output");
        let read = ann.request("resources/read", json!({"uri": uri})).await.result().await;
        assert_eq!(read["contents"][0]["text"], "all that it wrote", "{way:?}: {read}");
        let refused = bob.request("resources/read", json!({"uri": uri})).await.error().await;
        let unknown = bob.request("resources/read", json!({"uri": "taskwire://task/nonsense/output"})).await.error().await;
        assert_eq!(refused["code"], unknown["code"], "{way:?}: somebody else's does not exist");
        let listed = ann.request("resources/templates/list", json!({})).await.result().await;
        let template = listed["resourceTemplates"][0]["uriTemplate"].as_str().unwrap_or_default().to_owned();
        assert!(template.starts_with("taskwire://task/"), "{way:?}: {listed}");
        ann.result("task_cancel", json!({"task_id": id})).await;
        house.until_open(0).await;
    }
}

#[tokio::test]
async fn who_has_no_tool_that_spills_is_shown_no_template() {
    let house = House::new([quick("quick")]).await;
    for way in WAYS {
        let listed = Caller::new(way, &house).await.request("resources/templates/list", json!({})).await.result().await;
        assert_eq!(listed["resourceTemplates"], json!([]), "{way:?}");
    }
}

// The end of a server, and coming back.

#[tokio::test]
async fn a_held_call_is_answered_when_the_server_shuts_down() {
    for way in WAYS {
        let gate = Gate::new();
        let mut house = House::new([gate.tool("slow")]).await;
        let mut talk = Caller::new(way, &house).await.call("slow", json!({})).await;
        soon("the tool", gate.started.wait()).await;
        house.pass(SECOND).await;
        settle().await;
        house.stop();
        let result = talk.result().await;
        let id = followed(&result);
        assert!(result.to_string().contains("shutting down"), "{way:?}: {result}");
        assert_eq!(house.open().iter().map(ToString::to_string).collect::<Vec<_>>(), [id], "{way:?}");
        assert!(!gate.stopped.is_sent(), "{way:?}: it has its time to finish");
        gate.go.send();
        house.until_open(0).await;
    }
}

#[tokio::test]
async fn a_call_that_asks_is_answered_when_the_server_shuts_down_however_long_it_has_been_held() {
    for late in [false, true] {
        let mut house = House::new([asks("asks")]).await;
        let caller = Caller::declaring(Way::LegacyLines, &house, json!({"elicitation": {}}), None).await;
        let mut talk = caller.call("asks", json!({})).await;
        let question = talk.next().await.expect("a question");
        assert_eq!(question["method"], "elicitation/create", "{question}");
        house.pass(if late { HOLD * 2 } else { SECOND }).await;
        talk.is_quiet().await;
        house.stop();
        let result = talk.result().await;
        assert_eq!(followed(&result), house.open()[0].to_string());
        assert!(text(&result).contains("Who are you?"), "{result}");
    }
}

#[tokio::test]
async fn who_is_told_how_to_get_on_when_it_came_back_has_its_place_free() {
    let gate = Gate::new();
    let config = Config { waits_per_caller: 2, ..config() };
    let house = House::with(registry([gate.tool("slow")]), config).await;
    let caller = Caller::new(Way::LegacyHttp, &house).await;
    let mut lost = Vec::new();
    for n in 0..2 {
        let talk = caller.call("slow", json!({"n": n})).await;
        soon("the tool", gate.started.wait()).await;
        lost.push(talk);
    }
    house.pass(SECOND).await;
    let mut back = Vec::new();
    for talk in &mut lost {
        talk.has_place().await;
        talk.lose();
        settle().await;
        back.push(caller.resume(talk).await);
    }
    house.pass(HOLD).await;
    for talk in &mut back {
        let id = followed(&talk.result().await);
        // There is room for this, although both go on.
        let waited = caller.result("task_wait", json!({"task_id": id, "timeout_s": 0})).await;
        assert_eq!(followed(&waited), id);
    }
    assert_eq!(house.open().len(), 2);
    gate.go.send();
    gate.go.send();
    house.until_open(0).await;
}

#[tokio::test]
async fn who_comes_back_to_a_shared_task_has_its_own_hold_and_hears_of_progress_under_its_own_name() {
    let (tool, mut runs) = played("plays");
    let house = House::new([tool.dedupe()]).await;
    let (ann, bob) = (Caller::new(Way::LegacyHttp, &house).await, Caller::new(Way::LegacyHttp, &house).await);
    let params = json!({"name": "plays", "arguments": {}, "_meta": {"progressToken": "another"}});
    let mut first = ann.request("tools/call", params).await;
    let mut act = run_of(&mut runs).await;
    house.pass(HOLD / 2).await;
    act.progress(1.0, None).await;
    let mut second = bob.call_with_progress("plays", json!({})).await;
    assert_eq!(second.progress().await.0, 1.0);
    second.has_place().await;
    second.lose();
    settle().await;
    let mut back = bob.resume(&second).await;
    act.progress(2.0, None).await;
    assert_eq!(back.progress().await.0, 2.0);
    house.pass(HOLD / 2).await;
    let id = followed(&first.result().await);
    for _ in 0..10 {
        settle().await;
    }
    while let Ok(message) = back.messages.try_recv() {
        assert!(message.get("method").is_some(), "it was answered too early: {message}");
    }
    house.pass(HOLD / 2).await;
    assert_eq!(followed(&back.result().await), id);
    act.ends("done");
    house.until_open(0).await;
}

#[tokio::test]
async fn who_comes_back_to_a_stream_after_the_hold_gets_the_result_or_is_told_how_to_get_on() {
    for over in [false, true] {
        let gate = Gate::new();
        let house = House::new([gate.tool("slow")]).await;
        let caller = Caller::new(Way::LegacyHttp, &house).await;
        let mut talk = caller.call("slow", json!({})).await;
        soon("the tool", gate.started.wait()).await;
        house.pass(SECOND).await;
        talk.has_place().await;
        talk.lose();
        house.pass(HOLD * 2).await;
        if over {
            gate.go.send();
            house.until_open(0).await;
        }
        let legacy = caller.legacy.as_ref().expect("a session");
        let mut back = caller.resume(&talk).await;
        let result = back.result().await;
        if over {
            assert_eq!(text(&result), "done");
        } else {
            let id = followed(&result);
            assert!(!gate.stopped.is_sent());
            gate.go.send();
            assert_eq!(text(&caller.result("task_wait", json!({"task_id": id})).await), "done");
        }
        // Nothing follows that answer.
        let end = back.last.lock().expect("no panic").clone().expect("a name");
        assert_eq!(legacy.http("GET", &[("Last-Event-ID", end.as_str())]).await.status, 204);
    }
}

/// Goes on with a stream behind this event.
async fn get(port: u16, headers: &[(String, String)], place: &str) -> TcpStream {
    let mut head = format!("GET /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nLast-Event-ID: {place}\r\n");
    for (key, value) in headers.iter().filter(|(key, _)| key != "Content-Type") {
        head.push_str(&format!("{key}: {value}\r\n"));
    }
    head.push_str("\r\n");
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("a connection");
    stream.write_all(head.as_bytes()).await.expect("the head is sent");
    stream
}
