//! A server that does what its test says, request by request, and nothing else.
//!
//! Each request waits in an inbox until the test takes it, by method and in any order, and answers it. What a client of the
//! modern era sends is checked as it comes: its `_meta`, its headers, the published schema. A request that nobody took fails
//! the test when the script ends. Time stands still unless the test moves it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use taskwire::{
    client::{Answer, Call, Client, ConnectionState, Error, Event, Options, Outcome, Target},
    clock::{Clock, ManualClock},
    core::Timestamp,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
    task::JoinHandle,
};

use self::faults::faults_of;
use crate::kit::{PARTIALS, TASKS, manual_clock, value_of, with_timeout};

mod faults;

pub(crate) use self::faults::decoded;
pub(crate) use crate::kit::{CAPABILITIES, IDEMPOTENCY, KEY, MS, READ, SECOND, SUBSCRIPTION, VERSION};

pub(crate) const LIST: &str = "dev.taskwire/list";
pub(crate) const LISTEN: &str = "subscriptions/listen";
pub(crate) const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
pub(crate) const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// A server in the hands of its test.
pub(crate) struct ScriptedServer {
    pub(crate) clock: ManualClock,
    pub(crate) port: u16,
    inbox: Arc<Inbox>,
    accepting: Option<JoinHandle<()>>,
}

impl ScriptedServer {
    /// On a port of its own. `tools/list` is answered by itself, with one tool `job` that says nothing about itself.
    pub(crate) async fn start() -> Self {
        let listener = listener().await;
        let port = listener.local_addr().expect("an address").port();
        let inbox = Inbox { state: Mutex::default(), changed: Notify::new(), clock: manual_clock(), restarts: watch::Sender::new(0) };
        let mut script = Self { clock: inbox.clock.clone(), port, inbox: Arc::new(inbox), accepting: None };
        script.accept(listener);
        script.tools(json!([job()]));
        script
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/mcp", self.port)
    }

    pub(crate) fn target(&self) -> Target {
        Target::Url(self.url())
    }

    /// Defaults, with the script's clock.
    pub(crate) fn options(&self) -> Options {
        Options { clock: Arc::new(self.clock.clone()), ..Options::default() }
    }

    // Who connects.

    /// A client with defaults, of a server that has everything: tasks, partial results, idempotency.
    pub(crate) async fn client(&self) -> Client {
        self.client_with(self.options(), everything()).await
    }

    /// A client with these options, of a server with these extensions.
    pub(crate) async fn client_with(&self, options: Options, extensions: Value) -> Client {
        let (client, ()) = tokio::join!(self.connects(options), self.discover(extensions));
        client.expect("a connection")
    }

    /// Connects; somebody else must answer.
    pub(crate) async fn connects(&self, options: Options) -> Result<Client, Error> {
        with_timeout("the connection", Client::connect(self.target(), options)).await
    }

    /// Answers the next `server/discover`.
    pub(crate) async fn discover(&self, extensions: Value) {
        self.expect("server/discover").await.result(discover_result(extensions)).await;
    }

    // What comes.

    /// The next request (or notification) with this method, in whatever order they came.
    pub(crate) async fn expect(&self, method: &str) -> ScriptedRequest {
        self.expect_where(method, |asked| asked.message["method"] == method).await
    }

    /// The next request of this method for this task.
    pub(crate) async fn expect_of(&self, method: &str, task: &str) -> ScriptedRequest {
        let what = format!("{method} of {task}");
        self.expect_where(&what, |asked| asked.message["method"] == method && asked.params()["taskId"] == task).await
    }

    /// The next `GET` (or `DELETE`).
    pub(crate) async fn expect_http(&self, http_method: &str) -> ScriptedRequest {
        self.expect_where(http_method, |asked| asked.http_method == http_method).await
    }

    /// The next JSON-RPC response that the client sends: an answer to what it was asked.
    pub(crate) async fn expect_reply(&self) -> ScriptedRequest {
        let is_reply = |asked: &ScriptedRequest| asked.message.get("result").is_some() || asked.message.get("error").is_some();
        self.expect_where("a response of the client", is_reply).await
    }

    /// The next request that fits.
    pub(crate) async fn expect_where(&self, what: &str, fits: impl Fn(&ScriptedRequest) -> bool) -> ScriptedRequest {
        let found = async {
            loop {
                let changed = self.inbox.changed.notified();
                tokio::pin!(changed);
                // Before the look, so that nothing comes between.
                changed.as_mut().enable();
                if let Some(asked) = self.take(&fits) {
                    return asked;
                }
                changed.await;
            }
        };
        let asked = tokio::time::timeout(Duration::from_secs(10), found).await;
        asked.unwrap_or_else(|_| panic!("{what} did not come within ten seconds; there are {:?}", self.inbox.lock().asked))
    }

    fn take(&self, fits: &impl Fn(&ScriptedRequest) -> bool) -> Option<ScriptedRequest> {
        let mut inside = self.inbox.lock();
        assert!(inside.faults.is_empty(), "the client is wrong: {:#?}", std::mem::take(&mut inside.faults));
        let at = inside.asked.iter().position(fits)?;
        Some(inside.asked.remove(at))
    }

    /// Answers the next request of this method.
    pub(crate) async fn answers(&self, method: &str, result: Value) {
        self.expect(method).await.result(result).await;
    }

    /// Starts `job`, which becomes this task.
    pub(crate) async fn run(&self, client: &Client, task: &str) -> Call {
        start_job(client, self.answers("tools/call", created(task))).await.0
    }

    /// A call with this task that is being watched: the event that it is a task has been read, and more is wanted.
    pub(crate) async fn watched(&self, client: &Client, task: &str) -> (Call, Listen) {
        let mut call = self.run(client, task).await;
        assert_eq!(next_briefs(&mut call, 1).await, [format!("task {task}")]);
        let listen = while_waiting(&mut call, self.listen()).await;
        (call, listen)
    }

    /// Answers every request of this method with this result from now on, besides those that wait already.
    pub(crate) fn always(&self, method: &str, result: Value) {
        self.inbox.lock().fixed_replies.insert(method.to_owned(), FixedReply::Result(result));
    }

    /// Answers every request of this kind (a method, or `GET`, `DELETE`) with this status and no body from now on.
    pub(crate) fn always_empty(&self, kind: &str, status: u16) {
        self.inbox.lock().fixed_replies.insert(kind.to_owned(), FixedReply::Empty(status));
    }

    /// Leaves requests of this method to the test again.
    pub(crate) fn stop_answering(&self, method: &str) {
        self.inbox.lock().fixed_replies.remove(method);
    }

    /// Answers every `tools/list` with these tools from now on.
    pub(crate) fn tools(&self, tools: Value) {
        self.always("tools/list", tool_list(tools));
    }

    /// Requests of this kind (a method, or `GET`, `DELETE`) may be left over.
    pub(crate) fn may_remain(&self, kind: &str) {
        self.inbox.lock().may_remain.insert(kind.to_owned());
    }

    /// The methods (or `GET`, `DELETE`, `response`) of all that came so far, in order, answered or not.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.inbox.lock().seen.clone()
    }

    /// How often this came so far.
    pub(crate) fn count(&self, kind: &str) -> usize {
        self.inbox.lock().seen.iter().filter(|seen| *seen == kind).count()
    }

    /// Nothing waits to be answered.
    #[track_caller]
    pub(crate) fn is_quiet(&self) {
        let inside = self.inbox.lock();
        assert!(inside.asked.is_empty(), "nobody took {:?}", inside.asked);
    }

    // What becomes of time and of the server.

    /// Moves the clock on, `step` by `step`, until `future` is ready.
    pub(crate) async fn as_time_passes<T>(&self, what: &str, step: Duration, future: impl Future<Output = T>) -> T {
        as_time_passes(&self.clock, what, step, future).await
    }

    /// Refuses connections and closes those that are idle, until [`up`](Self::up).
    pub(crate) async fn down(&mut self) {
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
            let _ = accepting.await;
        }
        self.inbox.restarts.send_modify(|restarts| *restarts += 1);
        // Each idle connection has a reader that holds a receiver.
        with_timeout("the end of idle connections", self.inbox.restarts.closed()).await;
    }

    /// Is there again, on the same port.
    pub(crate) async fn up(&mut self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await.expect("the same port");
        self.accept(listener);
    }

    fn accept(&mut self, listener: TcpListener) {
        let inbox = self.inbox.clone();
        self.accepting = Some(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                receive(stream, inbox.clone());
            }
        }));
    }

    // Listen streams of the modern era.

    /// Takes the next listen and promises all that it asks for.
    pub(crate) async fn listen(&self) -> Listen {
        self.listen_as(|wanted| wanted.clone()).await
    }

    /// Takes the next listen and promises what `honours` makes of it.
    pub(crate) async fn listen_as(&self, honours: impl FnOnce(&Value) -> Value) -> Listen {
        let asked = self.expect(LISTEN).await;
        let (id, wanted) = (asked.id().clone(), asked.params()["notifications"].clone());
        let mut honoured = honours(&wanted);
        for entry in honoured[PARTIALS].as_array_mut().into_iter().flatten() {
            if entry.get("nextSeq").is_none() {
                entry["nextSeq"] = entry["fromSeq"].clone();
            }
        }
        if honoured[PARTIALS].is_null() {
            honoured.as_object_mut().expect("an object").remove(PARTIALS);
        }
        let mut listen = Listen { sse: asked.sse().await, id, wanted };
        listen.notify("notifications/subscriptions/acknowledged", json!({"notifications": honoured})).await;
        listen
    }
}

/// A request that nobody took is one that should not have been sent.
impl Drop for ScriptedServer {
    fn drop(&mut self) {
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
        }
        if std::thread::panicking() {
            return;
        }
        let inside = self.inbox.lock();
        assert!(inside.faults.is_empty(), "the client is wrong: {:#?}", inside.faults);
        let left: Vec<&ScriptedRequest> = inside.asked.iter().filter(|asked| !inside.may_remain.contains(asked.kind())).collect();
        assert!(left.is_empty(), "nobody took {left:?}");
    }
}

/// On a port below those that the system gives to outgoing connections: a client that connects while the server is down
/// must not get that very port for its own end, for it would then be connected to itself.
async fn listener() -> TcpListener {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    loop {
        let n = std::process::id().wrapping_mul(97).wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed)) % 12_000;
        let port = 20_000 + u16::try_from(n).expect("a small number");
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)).await {
            return listener;
        }
    }
}

/// Moves the clock on, `step` by `step`, until `future` is ready.
pub(crate) async fn as_time_passes<T>(clock: &ManualClock, what: &str, step: Duration, future: impl Future<Output = T>) -> T {
    tokio::pin!(future);
    let passing = async {
        loop {
            if let Ok(done) = tokio::time::timeout(MS, &mut future).await {
                return done;
            }
            clock.advance(step);
        }
    };
    with_timeout(what, passing).await
}

/// What came and was not taken.
struct Inbox {
    state: Mutex<InboxState>,
    changed: Notify,
    clock: ManualClock,
    /// Grows when idle connections are to be closed.
    restarts: watch::Sender<u64>,
}

#[derive(Default)]
struct InboxState {
    asked: Vec<ScriptedRequest>,
    seen: Vec<String>,
    fixed_replies: BTreeMap<String, FixedReply>,
    may_remain: BTreeSet<String>,
    faults: Vec<String>,
    /// The client has opened a session: what comes without a version is of the legacy era.
    is_legacy: bool,
}

/// What a request always gets.
#[derive(Debug, Clone)]
enum FixedReply {
    Result(Value),
    Empty(u16),
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a request for the test, or gives it back with the answer that it always gets.
    fn put(&self, asked: ScriptedRequest) -> Option<(ScriptedRequest, FixedReply)> {
        let mut inside = self.lock();
        inside.seen.push(asked.kind().to_owned());
        inside.is_legacy |= asked.message["method"] == "initialize";
        let faults = faults_of(&asked, inside.is_legacy);
        inside.faults.extend(faults);
        if let Some(standing) = inside.fixed_replies.get(asked.kind()).cloned() {
            return Some((asked, standing));
        }
        inside.asked.push(asked);
        drop(inside);
        self.changed.notify_waiters();
        None
    }
}

/// Reads the next request of a connection, in the background.
fn receive(stream: TcpStream, inbox: Arc<Inbox>) {
    let mut restarts = inbox.restarts.subscribe();
    tokio::spawn(async move {
        let asked = tokio::select! {
            asked = read_request(stream, inbox.clone()) => asked,
            _ = restarts.changed() => None,
        };
        drop(restarts);
        if let Some(asked) = asked
            && let Some((asked, standing)) = inbox.put(asked)
        {
            match standing {
                FixedReply::Result(result) => asked.result(result).await,
                FixedReply::Empty(status) => asked.empty(status).await,
            }
        }
    });
}

/// A request as it came.
pub(crate) struct Request {
    pub(crate) http_method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// The next one of a connection; none when that has ended.
    pub(crate) async fn read(stream: &mut TcpStream) -> Option<Self> {
        let mut buffer = Vec::new();
        let end = loop {
            if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break end;
            }
            if stream.read_buf(&mut buffer).await.ok()? == 0 {
                return None;
            }
        };
        let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
        let mut body = buffer.split_off(end + 4);
        let mut lines = head.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (http_method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
        let headers = lines.filter_map(|line| line.split_once(':'));
        let headers: Vec<_> = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
        let length = value_of(&headers, "content-length").map_or(0, |value| value.parse().expect("a length"));
        while body.len() < length {
            if stream.read_buf(&mut body).await.ok()? == 0 {
                return None;
            }
        }
        Some(Self { http_method, path, headers, body })
    }
}

/// The next request of a connection; none when that has ended.
async fn read_request(mut stream: TcpStream, inbox: Arc<Inbox>) -> Option<ScriptedRequest> {
    let Request { http_method, path, headers, body } = Request::read(&mut stream).await?;
    let message = if body.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&body).unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&body).into_owned()))
    };
    let at = inbox.clock.now();
    Some(ScriptedRequest { http_method, path, headers, message, at, more: Vec::new(), stream, inbox })
}

/// A request that waits for its answer.
pub(crate) struct ScriptedRequest {
    pub(crate) http_method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    /// The body; null if there was none.
    pub(crate) message: Value,
    /// When it came, by the script's clock.
    pub(crate) at: Timestamp,
    /// Headers of the answer.
    more: Vec<(String, String)>,
    stream: TcpStream,
    inbox: Arc<Inbox>,
}

impl fmt::Debug for ScriptedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.http_method, self.path, self.message)
    }
}

impl ScriptedRequest {
    /// Its method; `GET` and the like without a body, `response` for a response.
    pub(crate) fn kind(&self) -> &str {
        match self.message["method"].as_str() {
            Some(method) => method,
            None if self.message.is_null() => &self.http_method,
            None => "response",
        }
    }

    pub(crate) fn params(&self) -> &Value {
        &self.message["params"]
    }

    pub(crate) fn meta(&self) -> &Value {
        &self.message["params"]["_meta"]
    }

    pub(crate) fn id(&self) -> &Value {
        &self.message["id"]
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        value_of(&self.headers, name)
    }

    pub(crate) fn last_event_id(&self) -> Option<&str> {
        self.header("last-event-id")
    }

    /// Its answer will have this header.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.more.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Answers with a body of one's own.
    pub(crate) async fn json(self, status: u16, body: Value) {
        self.text(status, "application/json", &body.to_string()).await;
    }

    pub(crate) async fn result(self, result: Value) {
        let body = response(self.id(), result);
        self.json(200, body).await;
    }

    /// Answers with a JSON-RPC error; without data if they are null.
    pub(crate) async fn error(self, status: u16, code: i64, message: &str, data: Value) {
        let body = error_response(self.id(), code, message, data);
        self.json(status, body).await;
    }

    /// Answers without a body.
    pub(crate) async fn empty(self, status: u16) {
        self.send(status, None, b"").await;
    }

    pub(crate) async fn text(self, status: u16, kind: &str, body: &str) {
        self.send(status, Some(kind), body.as_bytes()).await;
    }

    async fn send(mut self, status: u16, kind: Option<&str>, body: &[u8]) {
        let mut head = head(status, &self.more);
        if let Some(kind) = kind {
            head.push_str(&format!("Content-Type: {kind}\r\n"));
        }
        head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        // The client may be gone; the test sees that from what comes next.
        let _ = self.stream.write_all(&bytes).await;
        let is_last = self.more.iter().any(|(name, value)| name.eq_ignore_ascii_case("connection") && value == "close");
        if !is_last {
            receive(self.stream, self.inbox);
        }
    }

    /// Begins an answer with a result and cuts the connection in the middle of it.
    pub(crate) async fn cut_halfway(mut self, result: Value) {
        let body = response(self.id(), result).to_string();
        let mut head = head(200, &self.more);
        head.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len()));
        let _ = self.stream.write_all(head.as_bytes()).await;
        let _ = self.stream.write_all(&body.as_bytes()[..body.len() / 2]).await;
    }

    /// Cuts the connection before any answer.
    pub(crate) fn cut(self) {
        drop(self);
    }

    /// Answers with an event stream.
    pub(crate) async fn sse(mut self) -> Sse {
        let mut head = head(200, &self.more);
        head.push_str("Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n");
        let _ = self.stream.write_all(head.as_bytes()).await;
        let id = self.id().clone();
        Sse { stream: self.stream, id }
    }

    /// Waits until the client has closed the connection: it does not want the answer any more.
    pub(crate) async fn closed_by_client(mut self) {
        with_timeout("the end of the request", closed(&mut self.stream)).await;
    }
}

fn head(status: u16, headers: &[(String, String)]) -> String {
    let mut head = format!("HTTP/1.1 {status} Scripted\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head
}

async fn closed(stream: &mut TcpStream) {
    let mut buffer = Vec::new();
    while !matches!(stream.read_buf(&mut buffer).await, Ok(0) | Err(_)) {}
}

pub(crate) fn response(id: &Value, result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

pub(crate) fn error_response(id: &Value, code: i64, message: &str, data: Value) -> Value {
    let mut error = json!({"code": code, "message": message});
    if !data.is_null() {
        error["data"] = data;
    }
    json!({"jsonrpc": "2.0", "id": id, "error": error})
}

/// An event stream being written. Dropping it is a cut.
pub(crate) struct Sse {
    stream: TcpStream,
    /// The id of the request that it answers.
    pub(crate) id: Value,
}

impl Sse {
    /// A message as an event.
    pub(crate) async fn event(&mut self, message: Value) {
        self.raw(format!("data: {message}\n\n").as_bytes()).await;
    }

    pub(crate) async fn event_with_id(&mut self, id: &str, message: Value) {
        self.raw(format!("id: {id}\ndata: {message}\n\n").as_bytes()).await;
    }

    /// An id with no message, as streams begin that can be come back to.
    pub(crate) async fn prime(&mut self, id: &str) {
        self.raw(format!("id: {id}\ndata:\n\n").as_bytes()).await;
    }

    /// How long to wait before coming back.
    pub(crate) async fn retry(&mut self, ms: u64) {
        self.raw(format!("retry: {ms}\n\n").as_bytes()).await;
    }

    /// A comment, which keeps a quiet stream alive.
    pub(crate) async fn comment(&mut self) {
        self.raw(b": still here\n\n").await;
    }

    pub(crate) async fn notify(&mut self, method: &str, params: Value) {
        self.event(json!({"jsonrpc": "2.0", "method": method, "params": params})).await;
    }

    /// These very bytes, as a chunk of their own.
    pub(crate) async fn raw(&mut self, bytes: &[u8]) {
        let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
        chunk.extend_from_slice(bytes);
        chunk.extend_from_slice(b"\r\n");
        // The client may be gone; the test sees that from what comes next.
        let _ = self.stream.write_all(&chunk).await;
    }

    /// The response to the request, and the end.
    pub(crate) async fn result(mut self, result: Value) {
        let message = response(&self.id, result);
        self.event(message).await;
        self.end().await;
    }

    /// A JSON-RPC error as the response, and the end.
    pub(crate) async fn error(mut self, code: i64, message: &str, data: Value) {
        let message = error_response(&self.id, code, message, data);
        self.event(message).await;
        self.end().await;
    }

    /// The proper end of the stream, with or without a response.
    pub(crate) async fn end(mut self) {
        let _ = self.stream.write_all(b"0\r\n\r\n").await;
    }

    /// The connection ends in the middle of the stream; what was written before still arrives.
    pub(crate) fn cut(self) {
        drop(self);
    }

    /// The connection is reset; what was written before may be lost with it.
    pub(crate) fn reset(self) {
        self.stream.set_zero_linger().expect("a socket");
    }

    /// Waits until the client has closed the stream.
    pub(crate) async fn closed(&mut self) {
        with_timeout("the end of the stream", closed(&mut self.stream)).await;
    }
}

/// A listen stream of the modern era, after its acknowledgement. Dropping it is a cut.
pub(crate) struct Listen {
    pub(crate) sse: Sse,
    /// The id of the request, which is that of the subscription.
    pub(crate) id: Value,
    /// What the client asked for.
    pub(crate) wanted: Value,
}

impl Listen {
    /// A notification of this subscription.
    pub(crate) async fn notify(&mut self, method: &str, mut params: Value) {
        params["_meta"] = json!({SUBSCRIPTION: self.id});
        self.sse.notify(method, params).await;
    }

    /// The state of a task.
    pub(crate) async fn task(&mut self, task: Value) {
        self.notify("notifications/tasks", task).await;
    }

    /// A partial with one text.
    pub(crate) async fn partial(&mut self, task: &str, seq: u64, said: &str) {
        self.notify("notifications/tasks/partial", json!({"taskId": task, "seq": seq, "content": [text(said)]})).await;
    }

    /// The proper end: the response to the listen.
    pub(crate) async fn end(self) {
        let result = json!({"resultType": "complete", "_meta": {SUBSCRIPTION: self.id}});
        self.sse.result(result).await;
    }

    pub(crate) fn cut(self) {
        self.sse.cut();
    }

    /// Waits until the client has closed it.
    pub(crate) async fn closed(&mut self) {
        self.sse.closed().await;
    }

    /// The tasks that it asks for, in order of their ids.
    pub(crate) fn task_ids(&self) -> Vec<String> {
        let ids = self.wanted["taskIds"].as_array().into_iter().flatten();
        let mut ids: Vec<String> = ids.map(|id| id.as_str().expect("an id").to_owned()).collect();
        ids.sort();
        ids
    }

    /// From where on it asks for the partials of this task.
    pub(crate) fn asked_from(&self, task: &str) -> Option<u64> {
        let mut entries = self.wanted[PARTIALS].as_array().into_iter().flatten();
        entries.find(|entry| entry["taskId"] == task)?["fromSeq"].as_u64()
    }
}

// What a server says.

/// All that a server of ours offers.
pub(crate) fn everything() -> Value {
    json!({TASKS: {}, PARTIALS: {}, IDEMPOTENCY: {}})
}

/// The result of `server/discover`.
pub(crate) fn discover_result(extensions: Value) -> Value {
    json!({"resultType": "complete", "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {"listChanged": true}, "extensions": extensions},
        "instructions": "Be kind.", "ttlMs": 3_600_000, "cacheScope": "public",
        "_meta": {SERVER_INFO: {"name": "scripted", "version": "1.2.3"}}})
}

/// The tool that scripts know.
pub(crate) fn job() -> Value {
    json!({"name": "job", "description": "For a test", "inputSchema": {"type": "object"}})
}

/// The result of `tools/list`.
pub(crate) fn tool_list(tools: Value) -> Value {
    json!({"resultType": "complete", "tools": tools, "ttlMs": 3_600_000, "cacheScope": "public"})
}

pub(crate) fn text(said: &str) -> Value {
    json!({"type": "text", "text": said})
}

/// The result of a tool.
pub(crate) fn text_result(said: &str) -> Value {
    json!({"resultType": "complete", "content": [text(said)], "isError": false})
}

/// A task as the modern era shows it, without what belongs to its status alone.
pub(crate) fn task(id: &str, status: &str) -> Value {
    json!({"taskId": id, "status": status, "createdAt": "2026-07-28T00:00:00.000Z", "lastUpdatedAt": "2026-07-28T00:00:00.000Z",
        "ttlMs": 3_600_000, "pollIntervalMs": 1_000})
}

/// `value` with the members of `more` laid over it; a null removes one.
pub(crate) fn with_members(mut value: Value, more: Value) -> Value {
    let members = value.as_object_mut().expect("an object");
    for (name, member) in more.as_object().expect("members") {
        if member.is_null() {
            members.remove(name);
        } else {
            members.insert(name.clone(), member.clone());
        }
    }
    value
}

/// The answer to a call that has become a task.
pub(crate) fn created(id: &str) -> Value {
    with_members(task(id, "working"), json!({"resultType": "task"}))
}

/// A task that has ended with this text.
pub(crate) fn completed(id: &str, with: &str) -> Value {
    with_members(task(id, "completed"), json!({"result": text_result(with)}))
}

/// A task that asks these questions.
pub(crate) fn asking(id: &str, questions: Value) -> Value {
    with_members(task(id, "input_required"), json!({"inputRequests": questions}))
}

/// A question for a name.
pub(crate) fn form(message: &str) -> Value {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string", "minLength": 2}}, "required": ["name"]});
    json!({"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": schema}})
}

/// `value` as the complete result of a request.
pub(crate) fn complete(value: Value) -> Value {
    with_members(value, json!({"resultType": "complete"}))
}

/// A page of partials: texts from `from` on.
pub(crate) fn page(from: u64, texts: &[&str], done: bool) -> Value {
    let chunks: Vec<Value> = (from..).zip(texts).map(|(seq, said)| json!({"seq": seq, "content": [text(said)]})).collect();
    let next = from + chunks.len() as u64;
    json!({"resultType": "complete", "chunks": chunks, "fromSeq": from, "nextSeq": next, "done": done})
}

/// A call that is to be made again, with answers to these questions (if not null) and with this state.
pub(crate) fn round(questions: Value, state: Option<&str>) -> Value {
    let state = state.map_or(Value::Null, Value::from);
    with_members(json!({"resultType": "input_required"}), json!({"inputRequests": questions, "requestState": state}))
}

// What a client does with it.

/// The answer to [`form`].
pub(crate) fn ada() -> Answer {
    Answer::accept(json!({"name": "Ada"}))
}

/// Calls `job`, while `server` plays.
pub(crate) async fn call_job<T>(client: &Client, args: Value, server: impl Future<Output = T>) -> (Result<Outcome, Error>, T) {
    with_timeout("the end of the call", async { tokio::join!(client.call("job", args), server) }).await
}

/// Starts `job`, while `server` plays.
pub(crate) async fn start_job<T>(client: &Client, server: impl Future<Output = T>) -> (Call, T) {
    let (call, played) = with_timeout("the start", async { tokio::join!(client.start("job", json!({})), server) }).await;
    (call.expect("a run"), played)
}

/// Waits for the next event of `call` while `server` plays: a client watches only what is wanted. States and what concerns the
/// connection are passed over; no other event may come.
pub(crate) async fn while_waiting<T>(call: &mut Call, server: impl Future<Output = T>) -> T {
    tokio::pin!(server);
    loop {
        tokio::select! {
            biased;
            played = &mut server => return played,
            event = call.next() => match event {
                Some(Ok(Event::Status(_) | Event::Connection(_))) => {}
                event => panic!("too early: {event:?}"),
            },
        }
    }
}

/// The next event, whatever it is; none after the end.
pub(crate) async fn next(call: &mut Call) -> Option<Event> {
    let event = with_timeout("the next event", call.next()).await?;
    Some(event.unwrap_or_else(|error| panic!("the run failed: {error}")))
}

/// The next event that is neither a state nor about the connection; none after the end.
pub(crate) async fn next_notable(call: &mut Call) -> Option<Event> {
    loop {
        match next(call).await? {
            Event::Status(_) | Event::Connection(_) => {}
            event => return Some(event),
        }
    }
}

/// The next such events, in short.
pub(crate) async fn next_briefs(call: &mut Call, count: usize) -> Vec<String> {
    let mut briefs = Vec::new();
    while briefs.len() < count {
        let event = next_notable(call).await.unwrap_or_else(|| panic!("the run ended after {briefs:?}"));
        briefs.push(brief(&event));
    }
    briefs
}

/// All such events up to the end, in short.
pub(crate) async fn rest(call: &mut Call) -> Vec<String> {
    let mut briefs = Vec::new();
    while let Some(event) = next_notable(call).await {
        briefs.push(brief(&event));
    }
    briefs
}

/// All events up to the end, in short.
pub(crate) async fn all(call: &mut Call) -> Vec<String> {
    let mut briefs = Vec::new();
    while let Some(event) = next(call).await {
        briefs.push(brief(&event));
    }
    briefs
}

/// The last event, in short.
pub(crate) async fn last(call: &mut Call) -> String {
    all(call).await.pop().unwrap_or_default()
}

/// The error that a call ends with.
pub(crate) async fn fails(call: &mut Call) -> Error {
    let error = loop {
        match with_timeout("the error", call.next()).await.expect("the run ends with an error") {
            Ok(Event::Done(outcome)) => panic!("it ended well: {}", end(&outcome)),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(with_timeout("the end", call.next()).await.is_none(), "nothing comes after {error}");
    error
}

/// An event in short.
pub(crate) fn brief(event: &Event) -> String {
    match event {
        Event::Task(reference) => format!("task {}", reference.task.as_deref().unwrap_or("without a name")),
        Event::Chunk(partial) => format!("{} {}", partial.seq, partial.text()),
        Event::Gap { from, until } => format!("gap {from}..{until}"),
        Event::Status(snapshot) => {
            let status = snapshot.status.to_string();
            snapshot.message.as_ref().map_or_else(|| status.clone(), |said| format!("{status}: {said}"))
        }
        Event::Progress { progress, total, message } => {
            let total = total.map(|total| format!(" of {total}")).unwrap_or_default();
            let message = message.as_ref().map(|message| format!(": {message}")).unwrap_or_default();
            format!("progress {progress}{total}{message}")
        }
        Event::Question(input) => format!("asks {}: {}", input.key, input.message),
        Event::QuestionSettled { key } => format!("settled {key}"),
        Event::Connection(ConnectionState::Lost { .. }) => "lost".to_owned(),
        Event::Connection(ConnectionState::Restored) => "back".to_owned(),
        Event::Log(params) => format!("log {}", params.read::<Value>().expect("JSON")["data"]),
        Event::Done(outcome) => end(outcome),
        other => format!("{other:?}"),
    }
}

/// How it ended, in short.
pub(crate) fn end(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Result(finished) if finished.is_error => format!("tool failed: {}", finished.text()),
        Outcome::Result(finished) => format!("done: {}", finished.text()),
        Outcome::Failed(error) => format!("failed: {} {}", error.code, error.message),
        Outcome::Cancelled { message } => message.as_ref().map_or("cancelled".to_owned(), |message| format!("cancelled: {message}")),
    }
}
