//! A session of the legacy era: its requests, each on a connection of its own, and its streams of events.
//!
//! As in [`partials`](crate::partials), a connection that breaks is an error and nothing more: [`Follower`] comes back with
//! the id of the last whole event. What a server must never say is a panic.

use std::{
    collections::HashSet,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::{sleep, timeout},
};

use crate::{SETTLE, body::Body, dice::Dice};

/// The `_meta` key that names a message's task.
pub(crate) const RELATED: &str = "io.modelcontextprotocol/related-task";
const VERSION: &str = "2025-11-25";
/// Bytes that are read from a connection at once.
const BUFFER_BYTES: usize = 64 * 1024;
/// How long to wait before coming back to a stream that broke.
const PAUSE: Duration = Duration::from_millis(3);
/// A follower hangs up by itself before one in so many events.
const HANG_UP_ONE_IN: u64 = 150;

#[derive(Debug, Clone)]
pub(crate) struct Session {
    port: u16,
    /// What the server calls it.
    id: String,
    last_id: Arc<AtomicU64>,
}

impl Session {
    /// Asks for a session.
    pub(crate) async fn open(port: u16, capabilities: &Value) -> io::Result<Self> {
        let client = json!({"name": "crash", "version": "1"});
        let params = json!({"protocolVersion": VERSION, "capabilities": capabilities, "clientInfo": client});
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
        let answer = exchange(port, "POST", &[], Some(&message)).await?;
        let (status, id) = (answer.status, answer.header("mcp-session-id").map(str::to_owned));
        let reply = answer.json().await?;
        assert!(status == 200 && reply["result"]["protocolVersion"] == VERSION, "{status} {reply}");
        let id = id.unwrap_or_else(|| panic!("no session with {reply}"));
        Ok(Self { port, id, last_id: Arc::new(AtomicU64::new(1)) })
    }

    /// Opens a session and says that all is ready.
    pub(crate) async fn start(port: u16, capabilities: &Value) -> Self {
        let session = Self::open(port, capabilities).await.expect("the server lives");
        session.notify(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        session
    }

    /// A request with an id of its own.
    pub(crate) fn message(&self, method: &str, params: Value) -> Value {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    }

    /// The result of a request that is answered with one message and cannot be refused.
    pub(crate) async fn ok(&self, method: &str, params: Value) -> Value {
        let message = self.message(method, params);
        let answer = self.post(&message).await.expect("the server lives");
        let mut reply = answer.json().await.expect("the server lives");
        assert_eq!(reply["id"], message["id"], "the answer to another request: {reply}");
        match reply.get_mut("result") {
            Some(result) => result.take(),
            None => panic!("{method} was refused: {reply}"),
        }
    }

    /// Answers a question of the server.
    pub(crate) async fn answer(&self, question: &Value, result: Value) {
        self.notify(&json!({"jsonrpc": "2.0", "id": question["id"], "result": result})).await;
    }

    /// Whether the server knows it.
    pub(crate) async fn is_there(&self) -> bool {
        let answer = self.post(&self.message("ping", json!({}))).await.expect("the server lives");
        let status = answer.status;
        let reply = answer.json().await.expect("the server lives");
        match status {
            200 if reply["result"] == json!({}) => true,
            404 if reply["error"]["code"] == -32600 => false,
            _ => panic!("neither a pong nor the end of a session: {status} {reply}"),
        }
    }

    /// Ends it, and gives the status of the answer.
    pub(crate) async fn end(&self) -> io::Result<u16> {
        let answer = exchange(self.port, "DELETE", &self.headers(), None).await?;
        let status = answer.status;
        answer.text().await?;
        Ok(status)
    }

    /// Posts what is taken without an answer.
    async fn notify(&self, message: &Value) {
        let answer = self.post(message).await.expect("the server lives");
        let status = answer.status;
        let body = answer.text().await.expect("the server lives");
        assert_eq!((status, body.as_str()), (202, ""), "for {message}");
    }

    async fn post(&self, message: &Value) -> io::Result<Answer> {
        exchange(self.port, "POST", &self.headers(), Some(message)).await
    }

    /// The session stream, or what follows an event on its stream.
    async fn get(&self, last_event: Option<&str>) -> io::Result<Events> {
        let mut headers = self.headers().to_vec();
        headers.extend(last_event.map(|id| ("Last-Event-ID", id)));
        Ok(exchange(self.port, "GET", &headers, None).await?.events())
    }

    fn headers(&self) -> [(&str, &str); 2] {
        [("Mcp-Session-Id", self.id.as_str()), ("MCP-Protocol-Version", VERSION)]
    }
}

/// Sends a request and reads the head of its answer.
async fn exchange(port: u16, verb: &str, headers: &[(&str, &str)], message: Option<&Value>) -> io::Result<Answer> {
    let body = message.map(ToString::to_string).unwrap_or_default();
    let mut head = format!("{verb} /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: application/json, text/event-stream\r\n");
    for (key, value) in headers {
        head.push_str(&format!("{key}: {value}\r\n"));
    }
    if message.is_some() {
        head.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    let answered = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all([head, body].concat().as_bytes()).await?;
        Answer::read(stream).await
    };
    timeout(SETTLE, answered).await.unwrap_or_else(|_| panic!("no answer to a {verb} within {SETTLE:?}: {message:?}"))
}

/// A response of which the head was read.
#[derive(Debug)]
struct Answer {
    status: u16,
    /// Its lines.
    head: Vec<String>,
    stream: BufReader<TcpStream>,
}

impl Answer {
    async fn read(stream: TcpStream) -> io::Result<Self> {
        let mut stream = BufReader::with_capacity(BUFFER_BYTES, stream);
        let mut head: Vec<String> = Vec::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            match line.strip_suffix("\r\n") {
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some("") => break,
                Some(line) => head.push(line.to_owned()),
            }
        }
        let status = head.first().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status: {head:?}"));
        Ok(Self { status, head, stream })
    }

    fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.head.iter().filter_map(|line| line.split_once(':'));
        headers.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    async fn text(mut self) -> io::Result<String> {
        let length = self.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await?;
        Ok(String::from_utf8(body).expect("UTF-8"))
    }

    async fn json(self) -> io::Result<Value> {
        let head = self.head.clone();
        let text = self.text().await?;
        Ok(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in an answer: {head:?} {text}")))
    }

    /// The events that it must consist of.
    fn events(self) -> Events {
        let is = |name, value| self.header(name) == Some(value);
        let streams = is("content-type", "text/event-stream") && is("transfer-encoding", "chunked");
        let body = String::from_utf8_lossy(self.stream.buffer());
        assert!(self.status == 200 && streams, "no stream of events: {:?} {body}", self.head);
        Events(Body::of(self.stream))
    }
}

/// One event.
#[derive(Debug, Default)]
struct Event {
    id: Option<String>,
    /// None where the data is empty.
    message: Option<Value>,
}

/// An open stream of events: a chunked HTTP body.
#[derive(Debug)]
struct Events(Body);

impl Events {
    /// The next event; none when the stream has ended in good order. One that was cut off is not an event yet.
    async fn event(&mut self) -> io::Result<Option<Event>> {
        let mut event = Event::default();
        while let Some(line) = self.0.line().await? {
            let line = std::str::from_utf8(&line).expect("UTF-8").trim_end_matches('\n');
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "" if line.is_empty() && (event.id.is_some() || event.message.is_some()) => return Ok(Some(event)),
                "id" => event.id = Some(value.to_owned()),
                "data" if !value.is_empty() => {
                    assert!(event.message.is_none(), "two messages in one event: {value}");
                    event.message = Some(serde_json::from_str(value).unwrap_or_else(|error| panic!("{error} in an event: {value}")));
                }
                // A comment, no data, how long to wait before coming back, or the end of nothing more than these.
                _ => {}
            }
        }
        Ok(None)
    }
}

/// Reads one stream through however many connections that takes. Each message must come once, and with an id; only what
/// the state of a task is may be said again.
#[derive(Debug)]
pub(crate) struct Follower {
    session: Session,
    /// The connection, if it has one.
    events: Option<Events>,
    /// The last event that it has.
    last: String,
    /// Every event that had a message.
    seen: HashSet<String>,
    dice: Dice,
    /// How often it came back.
    pub(crate) resumed: u64,
}

impl Follower {
    /// Sends a request that is answered with a stream, and reads until it can come back.
    pub(crate) async fn ask(session: &Session, message: &Value, dice: Dice) -> Self {
        let answer = session.post(message).await.expect("the server lives");
        Self::begin(session, answer.events(), dice).await
    }

    /// Opens the session stream, and reads until it can come back.
    pub(crate) async fn standing(session: &Session, dice: Dice) -> Self {
        let events = session.get(None).await.expect("the server lives");
        Self::begin(session, events, dice).await
    }

    async fn begin(session: &Session, mut events: Events, dice: Dice) -> Self {
        let first = events.event().await.expect("the server lives").expect("a stream begins with an event");
        let Event { id: Some(last), message: None } = first else { panic!("a stream begins with nothing but an id: {first:?}") };
        Self { session: session.clone(), events: Some(events), last, seen: HashSet::new(), dice, resumed: 0 }
    }

    /// The next message; none when the stream has ended in good order.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        let read = async {
            loop {
                match self.event().await {
                    Ok(event) => {
                        if let Some(message) = self.take(event?) {
                            return Some(message);
                        }
                    }
                    Err(_) => sleep(PAUSE).await,
                }
            }
        };
        timeout(SETTLE, read).await.unwrap_or_else(|_| panic!("nothing comes on a stream within {SETTLE:?}"))
    }

    /// The stream, all of whose messages have come, ends.
    pub(crate) async fn ends(mut self) {
        let events = self.events.as_mut().expect("the last message has just come this way");
        let end = timeout(SETTLE, events.event()).await.unwrap_or_else(|_| panic!("a stream does not end within {SETTLE:?}"));
        let more = end.expect("the server lives");
        assert!(more.is_none(), "an event behind the last one: {more:?}");
    }

    /// The next event, on a new connection where there is none. Now and then it hangs up first.
    async fn event(&mut self) -> io::Result<Option<Event>> {
        let kept = self.events.take().filter(|_| !self.dice.one_in(HANG_UP_ONE_IN));
        let mut events = match kept {
            Some(events) => events,
            None => {
                let events = self.session.get(Some(&self.last)).await?;
                self.resumed += 1;
                events
            }
        };
        let event = events.event().await?;
        self.events = Some(events);
        Ok(event)
    }

    fn take(&mut self, event: Event) -> Option<Value> {
        let Event { id, message } = event;
        let is_state = message.as_ref().is_some_and(|message| message["method"] == "notifications/tasks/status");
        match id {
            Some(id) => {
                self.last.clone_from(&id);
                assert!(message.is_none() || self.seen.insert(id), "an event came twice: {} {message:?}", self.last);
            }
            None => assert!(is_state, "a message that nobody can come back to: {message:?}"),
        }
        message
    }
}
