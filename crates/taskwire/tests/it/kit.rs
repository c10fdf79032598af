//! A server on a real socket, and a client that sends exactly the bytes that a test wants.
//!
//! Every response and every notification that passes through [`Client`] is checked against the official schemas.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use taskwire::{
    clock::{Clock, ManualClock, SystemClock},
    core::Timestamp,
    server::{Config, Server},
    store::{SqliteStore, Store},
    tool::Registry,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::oneshot,
    task::JoinHandle,
};

use crate::schema;
pub(crate) use crate::testing::TempDir;

/// The extension that every task method needs.
pub(crate) const TASKS: &str = "io.modelcontextprotocol/tasks";
/// The extension that every method of partial results needs besides.
pub(crate) const PARTIALS: &str = "dev.taskwire/partials";
pub(crate) const READ: &str = "dev.taskwire/partials/read";
pub(crate) const IDEMPOTENCY: &str = "dev.taskwire/idempotency";
pub(crate) const KEY: &str = "dev.taskwire/idempotencyKey";
pub(crate) const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
pub(crate) const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
pub(crate) const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// A server in this process, on a port of its own.
pub(crate) struct TestServer {
    pub(crate) server: Server,
    pub(crate) port: u16,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<std::io::Result<()>>,
    dir: Arc<TempDir>,
}

/// A clock that stands at a moment of our choice.
pub(crate) fn manual_clock() -> ManualClock {
    ManualClock::new(Timestamp::from_millis(1_785_196_800_000))
}

/// A server that holds the calls of clients without tasks to their end.
pub(crate) fn without_followups() -> Config {
    Config { followups: false, ..Config::default() }
}

/// However full the disk is where the tests run.
pub(crate) fn without_disk_reserve(mut config: Config) -> Config {
    config.engine.limits.disk_reserve_bytes = 0;
    config
}

/// A server in this process that nobody has reached yet.
pub(crate) fn server_in(dir: &TempDir, tools: Registry, config: Config, clock: Arc<dyn Clock>) -> Server {
    let store = SqliteStore::open(dir.path()).expect("a store");
    Server::start_with_clock(tools, store, without_disk_reserve(config), clock).expect("a server")
}

impl TestServer {
    /// With these tools, all defaults and the machine's clock.
    pub(crate) async fn start(tools: Registry) -> Self {
        Self::start_with(tools, Config::default(), Arc::new(SystemClock)).await
    }

    /// As [`start`](Self::start), for clients without tasks that want their result and nothing else.
    pub(crate) async fn start_without_followups(tools: Registry) -> Self {
        Self::start_with(tools, without_followups(), Arc::new(SystemClock)).await
    }

    pub(crate) async fn start_with(tools: Registry, config: Config, clock: Arc<dyn Clock>) -> Self {
        Self::start_in(Arc::new(TempDir::new()), tools, config, clock).await
    }

    /// On a directory that outlives it, for a restart.
    pub(crate) async fn start_in(dir: Arc<TempDir>, tools: Registry, config: Config, clock: Arc<dyn Clock>) -> Self {
        let store = SqliteStore::open(dir.path()).expect("a store");
        Self::start_on(dir, store, tools, without_disk_reserve(config), clock).await
    }

    /// On a store of the test's own.
    pub(crate) async fn start_on(dir: Arc<TempDir>, store: impl Store, tools: Registry, config: Config, clock: Arc<dyn Clock>) -> Self {
        let server = Server::start_with_clock(tools, store, config, clock).expect("a server");
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
        Self { server, port, stop: Some(stop), serving, dir }
    }

    pub(crate) fn dir(&self) -> Arc<TempDir> {
        self.dir.clone()
    }

    /// A client that declares the Tasks extension and forms.
    pub(crate) fn client(&self) -> Client {
        Client::new(self.port).declaring(json!({"elicitation": {}, "extensions": {TASKS: {}}}))
    }

    /// A client that declares partial results, too.
    pub(crate) fn streaming_client(&self) -> Client {
        Client::new(self.port).declaring(json!({"elicitation": {}, "extensions": {TASKS: {}, PARTIALS: {}}}))
    }

    /// A client that declares nothing.
    pub(crate) fn plain_client(&self) -> Client {
        Client::new(self.port)
    }

    /// Begins to shut down; wait with [`stopped`](Self::stopped). Says whether it served until now.
    pub(crate) fn stop(&mut self) -> bool {
        self.stop.take().is_some_and(|stop| stop.send(()).is_ok())
    }

    pub(crate) async fn stopped(mut self) {
        self.stop();
        self.serving.await.expect("no panic").expect("a clean end");
    }
}

/// How a caller speaks to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    ModernHttp,
    LegacyHttp,
    ModernLines,
    LegacyLines,
}

pub(crate) const WAYS: [Way; 4] = [Way::ModernHttp, Way::LegacyHttp, Way::ModernLines, Way::LegacyLines];

impl Way {
    pub(crate) fn is_modern(self) -> bool {
        matches!(self, Self::ModernHttp | Self::ModernLines)
    }
}

/// The value of a header.
pub(crate) fn value_of<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

/// A response as it came.
#[derive(Debug, Clone)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        value_of(&self.headers, name)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The messages of an event stream, else the one message of the body.
    pub(crate) fn messages(&self) -> Vec<Value> {
        if self.header("content-type") == Some("text/event-stream") {
            let text = String::from_utf8(self.body.clone()).expect("UTF-8");
            let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
            return data.map(|line| serde_json::from_str(line).expect("JSON")).collect();
        }
        vec![self.json()]
    }

    /// The error code of a JSON-RPC error, checked against the schema.
    pub(crate) fn code(&self) -> i64 {
        let message = self.json();
        schema::check_error(&message);
        message["error"]["code"].as_i64().expect("a code")
    }
}

/// A client of one server. Each request is a connection of its own.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    port: u16,
    capabilities: Value,
    token: Option<String>,
    receive_buffer: Option<u32>,
    next_id: Arc<AtomicU64>,
}

impl Client {
    pub(crate) fn new(port: u16) -> Self {
        Self { port, capabilities: json!({}), token: None, receive_buffer: None, next_id: Arc::new(AtomicU64::new(1)) }
    }

    /// Where its server is.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn declaring(mut self, capabilities: Value) -> Self {
        self.capabilities = capabilities;
        self
    }

    pub(crate) fn with_token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    /// With room for so many bytes that have come and are not read yet; what else is sent waits at the server.
    pub(crate) fn with_receive_buffer(mut self, bytes: u32) -> Self {
        self.receive_buffer = Some(bytes);
        self
    }

    /// A request of this client as a message: `_meta` is added to what `params` has.
    pub(crate) fn message(&self, id: u64, method: &str, mut params: Value) -> Value {
        let meta = &mut params["_meta"];
        if meta.is_null() {
            *meta = json!({});
        }
        meta[VERSION] = "2026-07-28".into();
        meta[CAPABILITIES] = self.capabilities.clone();
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    }

    /// The headers that go with a message.
    pub(crate) fn headers(&self, message: &Value) -> Vec<(String, String)> {
        let mut headers = vec![
            ("Content-Type".to_owned(), "application/json".to_owned()),
            ("Accept".to_owned(), "application/json, text/event-stream".to_owned()),
            ("MCP-Protocol-Version".to_owned(), "2026-07-28".to_owned()),
        ];
        if let Some(method) = message["method"].as_str() {
            headers.push(("Mcp-Method".to_owned(), method.to_owned()));
        }
        let params = &message["params"];
        let name = match message["method"].as_str().unwrap_or_default() {
            "tools/call" | "prompts/get" => params["name"].as_str(),
            "resources/read" => params["uri"].as_str(),
            "tasks/get" | "tasks/update" | "tasks/cancel" | READ => params["taskId"].as_str(),
            _ => None,
        };
        if let Some(name) = name {
            headers.push(("Mcp-Name".to_owned(), name.to_owned()));
        }
        if let Some(token) = &self.token {
            headers.push(("Authorization".to_owned(), format!("Bearer {token}")));
        }
        headers
    }

    /// Sends a request and gives back the raw response, unchecked.
    pub(crate) async fn raw(&self, method: &str, params: Value) -> Response {
        let message = self.message(self.next_id(), method, params);
        self.post(&self.headers(&message), message.to_string().as_bytes()).await
    }

    /// Sends a request; every message of the answer is checked against the schema. The last one is the response.
    pub(crate) async fn messages(&self, method: &str, params: Value) -> Vec<Value> {
        let messages = self.raw(method, params).await.messages();
        let (response, notifications) = messages.split_last().expect("a response");
        notifications.iter().for_each(schema::check_notification);
        schema::check_response(method, response);
        messages
    }

    /// The result of a request that must succeed.
    pub(crate) async fn ok(&self, method: &str, params: Value) -> Value {
        let mut messages = self.messages(method, params).await;
        let response = messages.pop().expect("a response");
        assert!(response.get("error").is_none(), "{method} failed: {response}");
        response["result"].clone()
    }

    /// The error of a request that must fail.
    pub(crate) async fn error(&self, method: &str, params: Value) -> Value {
        let mut messages = self.messages(method, params).await;
        let response = messages.pop().expect("a response");
        assert!(response.get("result").is_none(), "{method} succeeded: {response}");
        response["error"].clone()
    }

    /// Calls a tool.
    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Value {
        self.ok("tools/call", json!({"name": tool, "arguments": arguments})).await
    }

    /// Calls a tool that becomes a task, and gives its id.
    pub(crate) async fn start(&self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, arguments).await;
        assert_eq!(result["resultType"], "task", "{result}");
        result["taskId"].as_str().expect("an id").to_owned()
    }

    pub(crate) async fn get(&self, task: &str) -> Value {
        self.ok("tasks/get", json!({"taskId": task})).await
    }

    pub(crate) async fn cancel(&self, task: &str) -> Value {
        self.ok("tasks/cancel", json!({"taskId": task})).await
    }

    pub(crate) async fn answer(&self, task: &str, responses: Value) -> Value {
        self.ok("tasks/update", json!({"taskId": task, "inputResponses": responses})).await
    }

    /// Waits until the task has this status, by listening, and gives its state then.
    pub(crate) async fn until(&self, task: &str, status: &str) -> Value {
        let mut stream = self.listen(json!({"taskIds": [task]})).await;
        loop {
            let message = stream.next().await.unwrap_or_else(|| panic!("the stream ended before {task} was {status}"));
            if message["method"] == "notifications/tasks" && message["params"]["status"] == status {
                return message["params"].clone();
            }
        }
    }

    /// Opens a listen stream and reads its acknowledgement.
    pub(crate) async fn listen(&self, filter: Value) -> Events {
        let message = self.message(self.next_id(), "subscriptions/listen", json!({"notifications": filter}));
        let mut events = self.open(&message).await;
        let ack = events.next().await.expect("an acknowledgement");
        assert_eq!(ack["method"], "notifications/subscriptions/acknowledged", "{ack}");
        events.ack = ack;
        events
    }

    /// Sends a request whose answer is read event by event.
    pub(crate) async fn open(&self, message: &Value) -> Events {
        let mut stream = self.send(&self.headers(message), message.to_string().as_bytes()).await;
        let mut buffer = Vec::new();
        let (status, headers) = read_head(&mut stream, &mut buffer).await;
        let is_events = headers.iter().any(|(key, value)| key == "content-type" && value == "text/event-stream");
        assert!(status == 200 && is_events, "{status} {headers:?} {}", String::from_utf8_lossy(&buffer));
        Events { stream, chunked: buffer, text: Vec::new(), ended: false, ack: Value::Null, comments: Vec::new() }
    }

    /// Posts these very bytes with these very headers.
    pub(crate) async fn post(&self, headers: &[(String, String)], body: &[u8]) -> Response {
        let stream = self.send(headers, body).await;
        read_response(stream).await
    }

    pub(crate) async fn send(&self, headers: &[(String, String)], body: &[u8]) -> TcpStream {
        let mut head = format!("POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Length: {}\r\n", self.port, body.len());
        for (key, value) in headers {
            head.push_str(&format!("{key}: {value}\r\n"));
        }
        head.push_str("\r\n");
        let mut stream = self.connect().await;
        stream.write_all(head.as_bytes()).await.expect("the head is sent");
        // A server that refuses early may close before it has read all.
        let _ = stream.write_all(body).await;
        stream
    }

    async fn connect(&self) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("a socket");
        if let Some(bytes) = self.receive_buffer {
            socket.set_recv_buffer_size(bytes).expect("a size");
        }
        socket.connect(([127, 0, 0, 1], self.port).into()).await.expect("a connection")
    }

    /// Sends raw bytes and reads what comes back until the server closes or the response is complete.
    pub(crate) async fn bytes(&self, bytes: &[u8]) -> Response {
        let mut stream = self.connect().await;
        let _ = stream.write_all(bytes).await;
        read_response(stream).await
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }
}

pub(crate) async fn read_head(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> (u16, Vec<(String, String)>) {
    loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
            buffer.drain(..end + 4);
            let mut lines = head.split("\r\n");
            let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status line");
            let headers = lines.filter_map(|line| line.split_once(": ")).map(|(key, value)| (key.to_ascii_lowercase(), value.to_owned()));
            return (status, headers.collect());
        }
        let n = stream.read_buf(buffer).await.expect("readable");
        assert!(n > 0, "the connection ended before a response: {}", String::from_utf8_lossy(buffer));
    }
}

pub(crate) async fn read_response(mut stream: TcpStream) -> Response {
    let mut buffer = Vec::new();
    let (status, headers) = read_head(&mut stream, &mut buffer).await;
    let body = if value_of(&headers, "transfer-encoding").is_some() {
        let mut body = Vec::new();
        while let Some(chunk) = next_chunk(&mut stream, &mut buffer).await {
            body.extend_from_slice(&chunk);
        }
        body
    } else {
        let length: usize = value_of(&headers, "content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
        while buffer.len() < length {
            let n = stream.read_buf(&mut buffer).await.expect("readable");
            assert!(n > 0, "the body ended early");
        }
        buffer.truncate(length);
        buffer
    };
    Response { status, headers, body }
}

/// The next chunk of a chunked body; none at its end or when the connection closes.
pub(crate) async fn next_chunk(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        if let Some(line) = buffer.windows(2).position(|window| window == b"\r\n") {
            let size = usize::from_str_radix(std::str::from_utf8(&buffer[..line]).expect("ASCII").trim(), 16).expect("a chunk size");
            if size == 0 {
                return None;
            }
            if buffer.len() >= line + 2 + size + 2 {
                let chunk = buffer[line + 2..line + 2 + size].to_vec();
                buffer.drain(..line + 2 + size + 2);
                return Some(chunk);
            }
        }
        if matches!(stream.read_buf(buffer).await, Ok(0) | Err(_)) {
            return None;
        }
    }
}

/// An event stream being read. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct Events {
    stream: TcpStream,
    chunked: Vec<u8>,
    text: Vec<u8>,
    ended: bool,
    /// The acknowledgement of a listen stream.
    pub(crate) ack: Value,
    /// The comments between the events, but for signs of life.
    pub(crate) comments: Vec<String>,
}

impl Events {
    /// The next message, checked against the schema; none when the stream has ended.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.text.windows(2).position(|window| window == b"\n\n") {
                let event = String::from_utf8(self.text.drain(..end + 2).collect()).expect("UTF-8");
                let mut event = event.as_str();
                while let Some((comment, rest)) = event.strip_prefix(": ").and_then(|text| text.split_once('\n')) {
                    self.comments.extend((comment != "keep-alive").then(|| comment.to_owned()));
                    event = rest;
                }
                if let Some(data) = event.strip_prefix("data: ") {
                    let message: Value = serde_json::from_str(data.trim_end()).expect("JSON");
                    if message.get("method").is_some() {
                        schema::check_notification(&message);
                    }
                    return Some(message);
                }
                assert!(event == "\n", "neither data nor a comment: {event:?}");
                continue;
            }
            if self.ended {
                return None;
            }
            match next_chunk(&mut self.stream, &mut self.chunked).await {
                Some(chunk) => self.text.extend_from_slice(&chunk),
                None => self.ended = true,
            }
        }
    }
}

/// Lets time pass, `step` by `step`, until `future` is ready.
pub(crate) async fn passing<T>(clock: &ManualClock, step: Duration, future: impl Future<Output = T>) -> T {
    tokio::pin!(future);
    loop {
        tokio::select! {
            biased;
            done = &mut future => return done,
            () = tokio::task::yield_now() => clock.advance(step),
        }
    }
}

/// Waits until a server on this port has room for one more connection: until then, it refuses them.
pub(crate) async fn until_there_is_room(port: u16) {
    let look = async {
        loop {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("a connection");
            let mut answer = String::new();
            // Who is refused may be cut off.
            let _ = stream.write_all(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
            let _ = stream.read_to_string(&mut answer).await;
            if answer.starts_with("HTTP/1.1 404 ") {
                return;
            }
        }
    };
    with_timeout("room for a connection", look).await;
}

/// Gives `future` ten seconds of real time: a test that hangs should say where.
pub(crate) async fn with_timeout<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), future).await.unwrap_or_else(|_| panic!("{what} did not happen within ten seconds"))
}
