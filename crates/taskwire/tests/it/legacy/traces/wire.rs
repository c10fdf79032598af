//! A client and a server whose every message is recorded.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::{
    kit::{Response, TestServer, next_chunk, read_head, read_response, value_of, with_timeout},
    legacy::kit::{Checks, Event, LATEST},
    traces::{CLIENT, Recorder, SERVER, layout},
};

/// A session.
pub(super) struct Session {
    port: u16,
    pub(super) recorder: Recorder,
    checks: Checks,
    /// What the server calls it; empty before the handshake.
    id: String,
    /// The id of the last request.
    pub(super) last_id: u64,
    /// What stands for the ids of events, and for those of questions.
    events: BTreeMap<String, String>,
    questions: BTreeMap<String, String>,
}

impl Session {
    /// The handshake.
    pub(super) async fn open(server: &TestServer, capabilities: Value, recorder: Recorder) -> Self {
        let checks = Checks::new(LATEST, &capabilities);
        let (events, questions) = (BTreeMap::new(), BTreeMap::new());
        let mut session = Self { port: server.port, recorder, checks, id: String::new(), last_id: 0, events, questions };
        let client = json!({"name": "reader", "version": "1.0.0"});
        let params = json!({"protocolVersion": LATEST, "capabilities": capabilities, "clientInfo": client});
        let message = session.message("initialize", params);
        let response = session.post(&message).await;
        let id = response.header("mcp-session-id").expect("a session");
        session.recorder.alias(id, "session-1");
        id.clone_into(&mut session.id);
        session.notify(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        session
    }

    fn message(&mut self, method: &str, params: Value) -> Value {
        self.last_id += 1;
        json!({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params})
    }

    /// A request that is answered with one message.
    pub(super) async fn ask(&mut self, method: &str, params: Value) -> Value {
        let message = self.message(method, params);
        self.post(&message).await.json()
    }

    /// A request that is answered with an event stream, up to the event that primes it.
    pub(super) async fn stream(&mut self, method: &str, params: Value) -> Stream {
        let message = self.message(method, params);
        self.checks.note_request(&message);
        let connection = self.send("POST", &[], Some(&message)).await;
        let mut stream = self.begin(connection).await;
        self.primed(&mut stream).await;
        stream
    }

    /// Opens the session stream, up to the event that primes it.
    pub(super) async fn stand(&mut self) -> Stream {
        let connection = self.send("GET", &[], None).await;
        let mut stream = self.begin(connection).await;
        self.primed(&mut stream).await;
        stream
    }

    /// Comes back to a stream whose last event this was.
    pub(super) async fn resume(&mut self, last_event: &str) -> Stream {
        let connection = self.send("GET", &[("Last-Event-ID", last_event)], None).await;
        self.begin(connection).await
    }

    pub(super) async fn answer(&mut self, question: &Value, result: Value) {
        self.notify(&json!({"jsonrpc": "2.0", "id": question["id"], "result": result})).await;
    }

    /// Posts what is taken without an answer.
    async fn notify(&mut self, message: &Value) {
        assert_eq!(self.post(message).await.status, 202, "for {message}");
    }

    /// Ends the session.
    pub(super) async fn end(&mut self) {
        let connection = self.send("DELETE", &[], None).await;
        assert_eq!(self.answered(connection).await.status, 200);
    }

    async fn post(&mut self, message: &Value) -> Response {
        self.checks.note_request(message);
        let connection = self.send("POST", &[], Some(message)).await;
        self.answered(connection).await
    }

    /// Sends a request on a connection of its own.
    async fn send(&mut self, verb: &str, more: &[(&str, &str)], message: Option<&Value>) -> TcpStream {
        let mut headers: Vec<(&str, &str)> = Vec::new();
        match verb {
            "POST" => headers.extend([("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream")]),
            "GET" => headers.push(("Accept", "text/event-stream")),
            _ => {}
        }
        let id = self.id.clone();
        if !id.is_empty() {
            headers.extend([("Mcp-Session-Id", id.as_str()), ("MCP-Protocol-Version", LATEST)]);
        }
        headers.extend(more);
        let mut shown = format!("{verb} /mcp");
        let mut sent = format!("{verb} /mcp HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n", self.port);
        for (key, value) in headers {
            let name = if key == "Last-Event-ID" { name_of(&mut self.events, "event", value) } else { value.to_owned() };
            shown.push_str(&format!("\n{key}: {name}"));
            sent.push_str(&format!("{key}: {value}\r\n"));
        }
        if let Some(message) = message {
            let body = message.to_string();
            shown.push_str(&format!("\n\n{}", layout(&self.named(message), 0, 0)));
            sent.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
        } else {
            sent.push_str("\r\n");
        }
        self.recorder.said(CLIENT, &shown);
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).await.expect("a connection");
        connection.write_all(sent.as_bytes()).await.expect("the request is sent");
        connection
    }

    /// Reads an answer that is no stream.
    async fn answered(&mut self, connection: TcpStream) -> Response {
        let response = with_timeout("the response", read_response(connection)).await;
        let message = (!response.body.is_empty()).then(|| response.json());
        if let Some(message) = &message {
            self.checks.check(message);
        }
        self.head(response.status, &response.headers, message.as_ref());
        response
    }

    /// Reads the head of an answer that is a stream.
    async fn begin(&mut self, mut connection: TcpStream) -> Stream {
        let mut chunked = Vec::new();
        let (status, headers) = with_timeout("the head of a stream", read_head(&mut connection, &mut chunked)).await;
        let streams = headers.iter().any(|(key, value)| key == "content-type" && value == "text/event-stream");
        assert!(status == 200 && streams, "{status} {headers:?} {}", String::from_utf8_lossy(&chunked));
        self.head(status, &headers, None);
        Stream { connection, chunked, text: Vec::new(), last: String::new() }
    }

    fn head(&mut self, status: u16, headers: &[(String, String)], message: Option<&Value>) {
        let shown: Vec<(&str, &str)> =
            ["Content-Type", "Mcp-Session-Id"].into_iter().filter_map(|name| Some((name, value_of(headers, name)?))).collect();
        self.recorder.response(status, &shown, message);
    }

    /// The event that every stream begins with.
    async fn primed(&mut self, stream: &mut Stream) {
        let event = self.event(stream).await.expect("an event that primes the stream");
        assert!(event.id.is_some() && event.message.is_none(), "{event:?}");
    }

    /// The next event of a stream, written down as it came; none at its end.
    pub(super) async fn event(&mut self, stream: &mut Stream) -> Option<Event> {
        let Some(frame) = stream.frame().await else {
            self.recorder.remark("The stream ends.");
            return None;
        };
        let mut event = Event { id: None, retry: None, message: None };
        let mut shown = Vec::new();
        for line in frame.lines().filter(|line| !line.is_empty()) {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            shown.push(match field {
                "id" => {
                    value.clone_into(&mut stream.last);
                    event.id = Some(value.to_owned());
                    format!("id: {}", name_of(&mut self.events, "event", value))
                }
                "data" if !value.is_empty() => {
                    let message: Value = serde_json::from_str(value).unwrap_or_else(|error| panic!("{error}: {line:?}"));
                    self.checks.check(&message);
                    let text = format!("data: {}", layout(&self.named(&message), 0, 6));
                    event.message = Some(message);
                    text
                }
                _ => line.to_owned(),
            });
        }
        self.recorder.said(SERVER, &shown.join("\n"));
        Some(event)
    }

    /// The next message of a stream that this is true of, and all that come before it.
    pub(super) async fn hear_until(&mut self, stream: &mut Stream, is_it: impl Fn(&Value) -> bool) -> Value {
        loop {
            let event = self.event(stream).await.expect("the stream goes on");
            if let Some(message) = event.message.filter(&is_it) {
                return message;
            }
        }
    }

    /// The last message of a stream, and all that come before it.
    pub(super) async fn hear_out(&mut self, mut stream: Stream) -> Option<Value> {
        let mut last = None;
        while let Some(event) = self.event(&mut stream).await {
            last = event.message.or(last);
        }
        last
    }

    /// A message as it is shown: the server's questions have names.
    fn named(&mut self, message: &Value) -> Value {
        let mut message = message.clone();
        if let Some(id) = message["id"].as_str() {
            message["id"] = name_of(&mut self.questions, "question", id).into();
        }
        message
    }
}

/// What stands for an id in a document.
fn name_of(names: &mut BTreeMap<String, String>, what: &str, id: &str) -> String {
    let next = format!("{what}-{}", names.len() + 1);
    names.entry(id.to_owned()).or_insert(next).clone()
}

/// An event stream being read. Dropping it closes the connection.
pub(super) struct Stream {
    connection: TcpStream,
    chunked: Vec<u8>,
    text: Vec<u8>,
    /// The id of the last event that had one.
    last: String,
}

impl Stream {
    /// The lines of the next event; none at the end. Comments are passed over.
    async fn frame(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.text.windows(2).position(|window| window == b"\n\n") {
                let frame = String::from_utf8(self.text.drain(..end + 2).collect()).expect("UTF-8");
                let lines: Vec<&str> = frame.lines().filter(|line| !line.is_empty() && !line.starts_with(':')).collect();
                if !lines.is_empty() {
                    return Some(lines.join("\n"));
                }
                continue;
            }
            let chunk = with_timeout("the next event", next_chunk(&mut self.connection, &mut self.chunked)).await?;
            self.text.extend_from_slice(&chunk);
        }
    }

    /// Breaks the connection. The id that a client comes back with is what is left.
    pub(super) fn cut(self) -> String {
        self.last
    }
}
