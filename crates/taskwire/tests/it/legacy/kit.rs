//! A client of the legacy era that sends exactly the messages that a test wants.
//!
//! Every message that passes through [`LegacySession`] is checked: against the schema if the session is one of 2025-11-25, else as a
//! JSON-RPC message, and against what the client declared — who did not ask for a draft must not see a byte of it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use super::schema;
use crate::kit::{Client, Response, TestServer, next_chunk, read_head, read_response, with_timeout};

pub(crate) const RELATED: &str = "io.modelcontextprotocol/related-task";
pub(crate) const LATEST: &str = "2025-11-25";

const BOTH: &str = "application/json, text/event-stream";
/// What only the modern era knows.
const MODERN: [&str; 7] = [
    "resultType",
    "cacheScope",
    "ttlMs",
    "io.modelcontextprotocol/serverInfo",
    "io.modelcontextprotocol/subscriptionId",
    "dev.taskwire/version",
    "dev.taskwire/partials",
];

/// What a session may be sent: what its version defines and its client declared, and answers to what was asked.
#[derive(Debug, Clone)]
pub(crate) struct Checks {
    /// Whether there is a schema for it.
    latest: bool,
    /// SEP-2679 was declared.
    partials: bool,
    /// SEP-1905 was declared.
    modes: bool,
    /// The method of each request, by its id.
    methods_by_id: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Checks {
    pub(crate) fn new(version: &str, capabilities: &Value) -> Self {
        let declares = |pointer| capabilities.pointer(pointer).is_some();
        Self {
            latest: version == LATEST,
            partials: declares("/tasks/streaming/partial"),
            modes: declares("/tasks/responses/modes"),
            methods_by_id: Arc::default(),
        }
    }

    /// Notes what is sent, so that its answer can be checked.
    pub(crate) fn note_request(&self, message: &Value) {
        if let (Some(id), Some(method)) = (message.get("id"), message["method"].as_str()) {
            self.methods_by_id.lock().expect("no panic").insert(id.to_string(), method.to_owned());
        }
    }

    /// Checks a message of the server.
    #[track_caller]
    pub(crate) fn check(&self, message: &Value) {
        let method = message.get("id").and_then(|id| self.methods_by_id.lock().expect("no panic").get(&id.to_string()).cloned());
        let is_error = message.get("error").is_some();
        match (message["method"].as_str(), message.get("id")) {
            _ if !self.latest => schema::check_envelope(message),
            (Some(_), Some(_)) => schema::check_request(message),
            (Some(_), None) => schema::check_notification(message),
            (None, _) if is_error => schema::check_error(message),
            (None, _) => {
                schema::check_response(&method.clone().unwrap_or_else(|| panic!("nobody asked for this: {message}")), message);
            }
        }
        let text = message.to_string();
        let (partials, modes) = (self.latest && self.partials, self.latest && self.modes);
        let found = |keys: &[&str]| keys.iter().any(|key| text.contains(&format!("\"{key}\"")));
        assert!(partials || !found(&["notifications/tasks/partial", "streamPartial"]), "SEP-2679 was not declared: {message}");
        let of_modes = ["partial-content", "isComplete", "seqNr", "io.modelcontextprotocol/fallback-mode"];
        assert!(modes || !found(&of_modes), "SEP-1905 was not declared: {message}");
        if method.as_deref() == Some("initialize") && !is_error {
            assert!(partials || message.pointer("/result/capabilities/tasks/streaming").is_none(), "{message}");
            assert!(modes || message.pointer("/result/capabilities/tasks/responses").is_none(), "{message}");
        }
        assert!(!found(&MODERN), "that is of the modern era: {message}");
    }
}

/// A session with a server, over HTTP. Each request is a connection of its own.
#[derive(Debug, Clone)]
pub(crate) struct LegacySession {
    port: u16,
    token: Option<String>,
    version: String,
    accept: String,
    session: String,
    init: Value,
    checks: Checks,
    next_id: Arc<AtomicU64>,
}

impl LegacySession {
    /// A session of 2025-11-25 whose client can be asked anything and declares no draft.
    pub(crate) async fn open(server: &TestServer) -> Self {
        Self::declaring(server, json!({"elicitation": {}, "sampling": {}, "roots": {}})).await
    }

    pub(crate) async fn declaring(server: &TestServer, capabilities: Value) -> Self {
        Self::of(server.port, None, LATEST, capabilities).await
    }

    /// Asks for a session of this version, and sends that it is ready.
    pub(crate) async fn of(port: u16, token: Option<&str>, version: &str, capabilities: Value) -> Self {
        let mut legacy = Self {
            port,
            token: token.map(str::to_owned),
            version: String::new(),
            accept: BOTH.to_owned(),
            session: String::new(),
            init: Value::Null,
            checks: Checks::new(version, &capabilities),
            next_id: Arc::new(AtomicU64::new(1)),
        };
        let response = legacy.raw("initialize", initialize(version, &capabilities)).await;
        let message = response.json();
        assert_eq!(response.status, 200, "{message}");
        legacy.init = message["result"].clone();
        let agreed = legacy.init["protocolVersion"].as_str().unwrap_or_else(|| panic!("no version in {message}"));
        legacy.version = agreed.to_owned();
        legacy.checks.latest = agreed == LATEST;
        legacy.checks.check(&message);
        let session = response.header("mcp-session-id").unwrap_or_else(|| panic!("no session with {message}"));
        assert!(!session.is_empty() && session.bytes().all(|byte| (0x21..=0x7e).contains(&byte)), "{session:?}");
        legacy.session = session.to_owned();
        legacy.notify("notifications/initialized", json!({})).await;
        legacy
    }

    /// The result of `initialize`.
    pub(crate) fn init(&self) -> &Value {
        &self.init
    }

    pub(crate) fn session(&self) -> &str {
        &self.session
    }

    /// The same session at another port.
    pub(crate) fn at(&self, port: u16) -> Self {
        Self { port, ..self.clone() }
    }

    /// The same session with another token.
    pub(crate) fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    /// The same session with another `Accept` header.
    pub(crate) fn accepting(&self, accept: &str) -> Self {
        Self { accept: accept.to_owned(), ..self.clone() }
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// A request as a message; nothing is added.
    pub(crate) fn message(&self, id: u64, method: &str, params: Value) -> Value {
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    }

    /// The headers of every request. Before there is a session they name none, and no version.
    pub(crate) fn headers(&self) -> Vec<(String, String)> {
        let mut headers = vec![("Content-Type".to_owned(), "application/json".to_owned()), ("Accept".to_owned(), self.accept.clone())];
        if !self.session.is_empty() {
            headers.push(("Mcp-Session-Id".to_owned(), self.session.clone()));
            headers.push(("MCP-Protocol-Version".to_owned(), self.version.clone()));
        }
        if let Some(token) = &self.token {
            headers.push(("Authorization".to_owned(), format!("Bearer {token}")));
        }
        headers
    }

    /// Posts a message and gives back the raw response, unchecked.
    pub(crate) async fn post(&self, message: &Value) -> Response {
        self.checks.note_request(message);
        let client = Client::new(self.port);
        with_timeout("the response", client.post(&self.headers(), message.to_string().as_bytes())).await
    }

    /// Sends a request and gives back the raw response, unchecked.
    pub(crate) async fn raw(&self, method: &str, params: Value) -> Response {
        self.post(&self.message(self.next_id(), method, params)).await
    }

    /// Sends a request; every message of the answer is checked. The last one is the response.
    pub(crate) async fn messages(&self, method: &str, params: Value) -> Vec<Value> {
        let message = self.message(self.next_id(), method, params);
        let response = self.post(&message).await;
        let messages = messages_of(&response);
        messages.iter().for_each(|message| self.checks.check(message));
        let last = messages.last().unwrap_or_else(|| panic!("{method} was not answered: {}", response.status));
        assert_eq!(last["id"], message["id"], "the last message is not the response: {last}");
        messages
    }

    /// The result of a request that must succeed.
    pub(crate) async fn ok(&self, method: &str, params: Value) -> Value {
        let response = self.messages(method, params).await.pop().expect("a response");
        assert!(response.get("error").is_none(), "{method} failed: {response}");
        response["result"].clone()
    }

    /// The error of a request that must fail.
    pub(crate) async fn error(&self, method: &str, params: Value) -> Value {
        let response = self.messages(method, params).await.pop().expect("a response");
        assert!(response.get("result").is_none(), "{method} succeeded: {response}");
        response["error"].clone()
    }

    /// Calls a tool, not as a task.
    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Value {
        self.ok("tools/call", json!({"name": tool, "arguments": arguments})).await
    }

    /// Calls a tool as a task, and gives its id.
    pub(crate) async fn start(&self, tool: &str, arguments: Value) -> String {
        let result = self.task(tool, arguments, json!({})).await;
        result["task"]["taskId"].as_str().unwrap_or_else(|| panic!("no task: {result}")).to_owned()
    }

    /// Calls a tool with this `task`.
    pub(crate) async fn task(&self, tool: &str, arguments: Value, task: Value) -> Value {
        self.ok("tools/call", json!({"name": tool, "arguments": arguments, "task": task})).await
    }

    pub(crate) async fn get(&self, task: &str) -> Value {
        self.ok("tasks/get", json!({"taskId": task})).await
    }

    /// What came of a task; waits for its end.
    pub(crate) async fn result(&self, task: &str) -> Value {
        self.ok("tasks/result", json!({"taskId": task})).await
    }

    pub(crate) async fn cancel(&self, task: &str) -> Value {
        self.ok("tasks/cancel", json!({"taskId": task})).await
    }

    /// Sends a request whose answer must be an event stream.
    pub(crate) async fn stream(&self, method: &str, params: Value) -> Sse {
        self.stream_message(&self.message(self.next_id(), method, params)).await
    }

    pub(crate) async fn stream_message(&self, message: &Value) -> Sse {
        self.checks.note_request(message);
        let stream = Client::new(self.port).send(&self.headers(), message.to_string().as_bytes()).await;
        self.events(stream).await
    }

    /// Opens the session stream, and reads what it begins with.
    pub(crate) async fn open_session_stream(&self) -> Sse {
        let mut sse = self.events(self.connect("GET", &[]).await).await;
        sse.read_prime().await;
        sse
    }

    /// As [`open_session_stream`](Self::open_session_stream), or the status of a refusal.
    pub(crate) async fn try_open_session_stream(&self) -> Result<Sse, u16> {
        let mut sse = self.try_events(self.connect("GET", &[]).await).await.map_err(|(status, _)| status)?;
        sse.read_prime().await;
        Ok(sse)
    }

    /// Goes on with a stream behind this event.
    pub(crate) async fn resume(&self, last_event_id: &str) -> Sse {
        self.events(self.connect("GET", &[("Last-Event-ID", last_event_id)]).await).await
    }

    /// As [`connect`](Self::connect), where the answer ends.
    pub(crate) async fn http(&self, method: &str, headers: &[(&str, &str)]) -> Response {
        with_timeout("the response", read_response(self.connect(method, headers).await)).await
    }

    /// Answers a question of the server.
    pub(crate) async fn answer(&self, question: &Value, result: Value) {
        self.responds(json!({"jsonrpc": "2.0", "id": question["id"], "result": result})).await;
    }

    /// Answers a question of the server with an error.
    pub(crate) async fn refuse(&self, question: &Value, code: i64, message: &str) {
        self.responds(json!({"jsonrpc": "2.0", "id": question["id"], "error": {"code": code, "message": message}})).await;
    }

    pub(crate) async fn notify(&self, method: &str, params: Value) {
        self.responds(json!({"jsonrpc": "2.0", "method": method, "params": params})).await;
    }

    /// Ends the session, and gives the status of the answer.
    pub(crate) async fn end(self) -> u16 {
        self.http("DELETE", &[]).await.status
    }

    /// Posts what is taken without an answer.
    async fn responds(&self, message: Value) {
        let response = self.post(&message).await;
        let body = String::from_utf8_lossy(&response.body);
        assert_eq!((response.status, &*body), (202, ""), "for {message}");
    }

    /// Sends a request without a body. These headers replace ours of the same name; an empty one takes it away.
    pub(crate) async fn connect(&self, method: &str, headers: &[(&str, &str)]) -> TcpStream {
        let mut head = format!("{method} /mcp HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n", self.port);
        let own = self.headers();
        let own = own.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let own = own.filter(|(key, _)| *key != "Content-Type" && !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(key)));
        for (key, value) in own.chain(headers.iter().copied()).filter(|(_, value)| !value.is_empty()) {
            head.push_str(&format!("{key}: {value}\r\n"));
        }
        head.push_str("\r\n");
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.expect("a connection");
        stream.write_all(head.as_bytes()).await.expect("the head is sent");
        stream
    }

    /// The answer to what was sent, which must be an event stream.
    async fn events(&self, stream: TcpStream) -> Sse {
        self.try_events(stream).await.unwrap_or_else(|(status, head)| panic!("{status} {head}"))
    }

    /// The answer to what was sent, or its status and head if it is no event stream.
    async fn try_events(&self, mut stream: TcpStream) -> Result<Sse, (u16, String)> {
        let mut chunked = Vec::new();
        let (status, headers) = with_timeout("the head of a stream", read_head(&mut stream, &mut chunked)).await;
        let is_events = headers.iter().any(|(key, value)| key == "content-type" && value == "text/event-stream");
        if status != 200 || !is_events {
            return Err((status, format!("{headers:?} {}", String::from_utf8_lossy(&chunked))));
        }
        Ok(Sse { stream, chunked, text: Vec::new(), ended: false, checks: self.checks.clone(), last_id: None })
    }
}

/// A session of the caller with this token, who can be asked.
pub(crate) async fn session_of(server: &TestServer, token: &str) -> LegacySession {
    LegacySession::of(server.port, Some(token), LATEST, json!({"elicitation": {}})).await
}

/// The parameters of a handshake.
pub(crate) fn initialize(version: &str, capabilities: &Value) -> Value {
    json!({"protocolVersion": version, "capabilities": capabilities, "clientInfo": {"name": "legacy-kit", "version": "1"}})
}

/// The messages of an answer that has ended: those of an event stream, else the one of the body, if there is any.
pub(crate) fn messages_of(response: &Response) -> Vec<Value> {
    if response.header("content-type") == Some("text/event-stream") {
        let text = String::from_utf8(response.body.clone()).expect("UTF-8");
        return text.split("\n\n").filter_map(Event::read).filter_map(|event| event.message).collect();
    }
    if response.body.is_empty() { Vec::new() } else { vec![response.json()] }
}

/// One event of a stream.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    pub(crate) retry: Option<u64>,
    /// None where the data is empty, or there is none.
    pub(crate) message: Option<Value>,
}

impl Event {
    /// Reads the lines of an event; none if they are nothing but comments.
    fn read(lines: &str) -> Option<Self> {
        let mut event = Self { id: None, retry: None, message: None };
        let mut is_event = false;
        for line in lines.lines().filter(|line| !line.is_empty() && !line.starts_with(':')) {
            is_event = true;
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "id" => event.id = Some(value.to_owned()),
                "retry" => event.retry = Some(value.parse().unwrap_or_else(|_| panic!("not a time: {line:?}"))),
                "data" if value.is_empty() => {}
                "data" => {
                    assert!(event.message.is_none(), "two messages in one event: {lines:?}");
                    event.message = Some(serde_json::from_str(value).unwrap_or_else(|error| panic!("{error}: {line:?}")));
                }
                "event" => assert_eq!(value, "message", "clients hear no other kind"),
                _ => panic!("not a field of an event: {line:?}"),
            }
        }
        is_event.then_some(event)
    }
}

/// An event stream being read. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct Sse {
    stream: TcpStream,
    chunked: Vec<u8>,
    text: Vec<u8>,
    ended: bool,
    checks: Checks,
    /// The id of the last event that had one.
    pub(crate) last_id: Option<String>,
}

impl Sse {
    /// Reads what a stream begins with: an event that primes it or, in versions that have none, a comment.
    pub(crate) async fn read_prime(&mut self) {
        if self.checks.latest {
            let prime = self.event().await.expect("an event that primes the stream");
            assert!(prime.id.is_some() && prime.message.is_none(), "{prime:?}");
        } else {
            assert_eq!(self.comment().await, "");
        }
    }

    /// The text of the next line, which must be a comment.
    pub(crate) async fn comment(&mut self) -> String {
        loop {
            if let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
                let line = String::from_utf8(self.text.drain(..=end).collect()).expect("UTF-8");
                let comment = line.strip_prefix(':').unwrap_or_else(|| panic!("no comment: {line:?}"));
                return comment.trim().to_owned();
            }
            let chunk =
                with_timeout("the next comment", next_chunk(&mut self.stream, &mut self.chunked)).await.expect("the stream goes on");
            self.text.extend_from_slice(&chunk);
        }
    }

    /// The next event, its message checked; none when the stream has ended. Comments are passed over.
    pub(crate) async fn event(&mut self) -> Option<Event> {
        loop {
            if let Some(end) = self.text.windows(2).position(|window| window == b"\n\n") {
                let lines = String::from_utf8(self.text.drain(..end + 2).collect()).expect("UTF-8");
                // Some clients take every blank line for an event, once there was one with an id.
                let event = Event::read(&lines).filter(|_| !lines.starts_with('\n'));
                let event = event.unwrap_or_else(|| panic!("a blank line that ends no event: {lines:?}"));
                let is_plain = event.message.is_some() && event.retry.is_none();
                assert!(self.checks.latest || is_plain, "a client of this version takes every event for a message: {event:?}");
                if let Some(message) = &event.message {
                    self.checks.check(message);
                }
                if event.id.is_some() {
                    self.last_id.clone_from(&event.id);
                }
                return Some(event);
            }
            if self.ended {
                return None;
            }
            match with_timeout("the next event", next_chunk(&mut self.stream, &mut self.chunked)).await {
                Some(chunk) => self.text.extend_from_slice(&chunk),
                None => self.ended = true,
            }
        }
    }

    /// The next message; none when the stream has ended. Events without one are passed over.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(message) = self.event().await?.message {
                return Some(message);
            }
        }
    }

    /// The next message with this method; others are passed over.
    pub(crate) async fn until(&mut self, method: &str) -> Value {
        loop {
            let message = self.next().await.unwrap_or_else(|| panic!("the stream ended before {method}"));
            if message["method"] == method {
                return message;
            }
        }
    }

    /// All messages that still come.
    pub(crate) async fn rest(&mut self) -> Vec<Value> {
        let mut messages = Vec::new();
        while let Some(message) = self.next().await {
            messages.push(message);
        }
        messages
    }
}
