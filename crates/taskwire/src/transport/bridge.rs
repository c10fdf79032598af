//! The bridge of a process that joined another one's server: it forwards its client's messages, and what comes back.
//!
//! It uses HTTP on a socket in the data directory, so that sessions and streams survive when another server takes over: the bridge resumes
//! a stream from its last event id, and resends a request that was not answered. The server finds the work of such a call by its waiters.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request as HttpRequest, Response, StatusCode,
    body::Incoming as HttpBody,
    client::conn::http1,
    header::{ACCEPT, CONTENT_TYPE, HOST},
};
use hyper_util::rt::TokioIo;
use taskwire_core::{
    task::RpcError,
    wire::{IncomingMessage, RequestId, SseReader, code, write_error},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::UnixStream,
    sync::{mpsc, oneshot},
    task::{AbortHandle, JoinHandle, JoinSet},
};

use super::{
    http::{BYTE_STREAM_HEADER, SHUTTING_DOWN_HEADER},
    stdio::{LineRead, Lines},
};

const SESSION_ID: &str = "mcp-session-id";
const LAST_EVENT_ID: &str = "last-event-id";
/// How many messages wait to be written; then senders wait.
const QUEUE_LEN: usize = 64;
/// The longest event; the server has limits of its own.
const EVENT_BYTES_MAX: usize = 1 << 30;
/// How long to wait before a request is sent again.
const PAUSE: Duration = Duration::from_millis(50);
/// How long to wait before a stream is resumed, if the server does not say.
const RETRY: Duration = Duration::from_millis(200);
/// How long to wait for a server that has too much to do.
const BUSY: Duration = Duration::from_secs(1);
/// How long a cancelled request may take to find its work and stop it.
const CANCEL: Duration = Duration::from_secs(30);
/// How long open requests may take when the input has ended.
const DRAIN: Duration = Duration::from_secs(10);

/// Connects to the server, whichever process that is at the moment.
pub trait Dial: Send + Sync + 'static {
    /// A connection to the server. Waits until there is one.
    ///
    /// # Errors
    /// When there will be none.
    fn dial(&self) -> BoxFuture<'_, io::Result<UnixStream>>;
}

/// Forwards the messages of one client to the server of another process.
pub struct Bridge {
    server: Arc<ServerLink>,
    body_bytes: usize,
}

impl std::fmt::Debug for Bridge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bridge").field("stream", &self.server.byte_stream).finish_non_exhaustive()
    }
}

impl Bridge {
    /// A bridge to the server that `dial` connects to, for messages of at most `body_bytes`.
    #[must_use]
    pub fn new(dial: impl Dial, body_bytes: usize) -> Self {
        let stream = crate::clock::new_session_id().as_str().to_owned();
        Self { server: Arc::new(ServerLink { dial: Box::new(dial), byte_stream: stream, session: Mutex::default() }), body_bytes }
    }

    /// Serves one client on a pair of byte streams, one message a line, until the input ends or `shutdown` is ready.
    ///
    /// # Errors
    /// When the input cannot be read.
    pub async fn run(
        self,
        input: impl AsyncRead + Send + Unpin,
        output: impl AsyncWrite + Send + Unpin + 'static,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let (lines, queue) = mpsc::channel(QUEUE_LEN);
        let mut writer = tokio::spawn(write(output, queue));
        let mut client =
            Client { server: self.server.clone(), lines, requests: JoinSet::new(), in_flight: Arc::default(), session_stream: None };
        let mut input = Lines::new(input, self.body_bytes);
        let read = tokio::select! {
            read = client.read(&mut input) => read,
            () = shutdown => Ok(()),
            // The client does not read any more.
            _ = &mut writer => Ok(()),
        };
        let Client { server, lines, mut requests, session_stream, in_flight } = client;
        drop(session_stream);
        // Listen requests would not end by themselves.
        lock(&in_flight).values().filter(|request| request.listens).for_each(|request| request.handle.abort());
        let in_time = writer.is_finished() || {
            let finish = async { while requests.join_next().await.is_some() {} };
            tokio::time::timeout(DRAIN, finish).await.is_ok()
        };
        if !in_time {
            tracing::warn!("not all calls ended in time: they go on");
        }
        requests.shutdown().await;
        drop(lines);
        if !writer.is_finished() {
            let _ = writer.await;
        }
        server.end_session().await;
        read
    }
}

async fn write(mut output: impl AsyncWrite + Unpin, mut queue: mpsc::Receiver<Bytes>) -> io::Result<()> {
    while let Some(line) = queue.recv().await {
        output.write_all(&line).await?;
        output.write_all(b"\n").await?;
        if queue.is_empty() {
            output.flush().await?;
        }
    }
    output.flush().await
}

struct ServerLink {
    dial: Box<dyn Dial>,
    /// Distinguishes this client's byte stream from others.
    byte_stream: String,
    /// The session that the client opened, if its era has sessions.
    session: Mutex<Option<String>>,
}

/// A response, whose connection is closed with it.
struct Answer {
    response: Response<HttpBody>,
    _connection: Connection,
}

struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ServerLink {
    fn session(&self) -> MutexGuard<'_, Option<String>> {
        lock(&self.session)
    }

    /// Sends one request. The outer error means that there will be no server, the inner one that the connection was lost.
    async fn send(&self, method: Method, last: Option<&str>, body: Bytes) -> Result<io::Result<Answer>, io::Error> {
        let stream = self.dial.dial().await?;
        Ok(self.send_on(stream, method, last, body).await.map_err(io::Error::other))
    }

    async fn send_on(&self, stream: UnixStream, method: Method, last: Option<&str>, body: Bytes) -> hyper::Result<Answer> {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let connection = Connection(tokio::spawn(async move {
            let _ = connection.await;
        }));
        let mut request = HttpRequest::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = hyper::Uri::from_static("/mcp");
        let session = self.session().clone();
        let named = [
            (HOST.as_str(), Some("localhost")),
            (ACCEPT.as_str(), Some("application/json, text/event-stream")),
            (CONTENT_TYPE.as_str(), Some("application/json")),
            (BYTE_STREAM_HEADER, Some(self.byte_stream.as_str())),
            (SESSION_ID, session.as_deref()),
            (LAST_EVENT_ID, last),
        ];
        for (name, value) in named {
            // These values are our own, so they are valid.
            if let Some(value) = value.and_then(|value| hyper::header::HeaderValue::from_str(value).ok()) {
                request.headers_mut().insert(hyper::header::HeaderName::from_static(name), value);
            }
        }
        Ok(Answer { response: sender.send_request(request).await?, _connection: connection })
    }

    /// Sends a message that has a short response or none, until a server accepts it.
    async fn send_until_taken(&self, body: Bytes) -> io::Result<(StatusCode, Option<String>, Bytes)> {
        loop {
            if let Ok(answer) = self.send(Method::POST, None, body.clone()).await? {
                let status = answer.response.status();
                let session = answer.response.headers().get(SESSION_ID).and_then(|value| value.to_str().ok()).map(str::to_owned);
                if !(status == StatusCode::SERVICE_UNAVAILABLE && answer.response.headers().contains_key(SHUTTING_DOWN_HEADER))
                    && let Ok(body) = answer.response.into_body().collect().await
                {
                    return Ok((status, session, body.to_bytes()));
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn end_session(&self) {
        if self.session().is_some() {
            let _ = tokio::time::timeout(DRAIN, self.send(Method::DELETE, None, Bytes::new())).await;
        }
    }
}

/// How reading one response ended.
enum ReceiveEnd {
    Complete,
    /// The connection was lost, or the server closed it: the bridge asks again.
    Interrupted,
}

/// How far one stream was read.
#[derive(Default)]
struct StreamProgress {
    last_event_id: Option<String>,
    retry: Option<Duration>,
    /// Whether the response to the request has come.
    answered: bool,
}

struct Client {
    server: Arc<ServerLink>,
    lines: mpsc::Sender<Bytes>,
    requests: JoinSet<()>,
    in_flight: Arc<Mutex<HashMap<RequestId, Request>>>,
    session_stream: Option<SessionStreamTask>,
}

/// A request that is not answered yet.
struct Request {
    handle: AbortHandle,
    /// Set when the client cancelled it.
    muted: Arc<AtomicBool>,
    listens: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes lines to the client, for one request.
struct ClientOutput<'a> {
    lines: &'a mpsc::Sender<Bytes>,
    id: Option<&'a RequestId>,
    muted: &'a AtomicBool,
}

impl ClientOutput<'_> {
    /// Writes a line, unless the request was cancelled; says whether the client still reads.
    async fn send(&self, line: Bytes) -> bool {
        self.muted.load(Ordering::Acquire) || self.lines.send(line).await.is_ok()
    }
}

/// The session stream, which ends when this is dropped.
struct SessionStreamTask(AbortHandle);

impl Drop for SessionStreamTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Client {
    async fn read(&mut self, input: &mut Lines<impl AsyncRead + Unpin>) -> io::Result<()> {
        loop {
            match input.next().await? {
                LineRead::End => return Ok(()),
                LineRead::TooLong => {
                    let message = format!("the message has more than {} bytes (configuration key `body_bytes`)", input.max());
                    self.refuse(None, code::INVALID_REQUEST, message).await;
                }
                LineRead::Line(line) => self.handle_line(line.into()).await,
            }
            while self.requests.try_join_next().is_some() {}
        }
    }

    async fn refuse(&self, id: Option<&RequestId>, code: i64, message: String) {
        let _ = self.lines.send(error(id, code, message)).await;
    }

    async fn handle_line(&mut self, line: Bytes) {
        let Ok(message) = IncomingMessage::parse(&line) else {
            // A batch, or invalid: the server responds to it.
            return self.forward(None, line, false);
        };
        if let (Some(id), Some(_)) = (&message.id, &message.method)
            && lock(&self.in_flight).contains_key(id)
        {
            let message = format!("the id `{id}` is in use by a request that is not answered yet");
            return self.refuse(Some(id), code::INVALID_REQUEST, message).await;
        }
        match (message.id, message.method.as_deref()) {
            (Some(id), Some("initialize")) => self.initialize(&id, line).await,
            (Some(id), Some(method)) => {
                let listens = method == "subscriptions/listen";
                self.forward(Some(id), line, listens);
            }
            (None, Some("notifications/cancelled")) => self.cancel(line).await,
            // Notifications and answers, in the order in which they came.
            _ => {
                if let Err(gone) = self.server.send_until_taken(line).await {
                    tracing::warn!(%gone, "a message could not be passed on");
                }
            }
        }
    }

    /// Begins a session before anything else is read, because what comes next may belong to it.
    async fn initialize(&mut self, id: &RequestId, line: Bytes) {
        match self.server.send_until_taken(line).await {
            Err(gone) => self.refuse(Some(id), code::INTERNAL_ERROR, no_server(&gone)).await,
            Ok((_, session, body)) => {
                let _ = self.lines.send(body).await;
                if let Some(session) = session {
                    *self.server.session() = Some(session);
                    let (server, lines) = (self.server.clone(), self.lines.clone());
                    self.session_stream =
                        Some(SessionStreamTask(tokio::spawn(async move { run_session_stream(&server, &lines).await }).abort_handle()));
                }
            }
        }
    }

    /// Forwards a request, and what comes back.
    fn forward(&mut self, id: Option<RequestId>, line: Bytes, listens: bool) {
        let (server, lines, in_flight) = (self.server.clone(), self.lines.clone(), self.in_flight.clone());
        let (request, muted) = (id.clone(), Arc::<AtomicBool>::default());
        let silent = muted.clone();
        let (go, ready) = oneshot::channel::<()>();
        let handle = self.requests.spawn(async move {
            // Waits until the request is in the table; else a quick response could leave its entry behind.
            let _ = ready.await;
            let out = ClientOutput { lines: &lines, id: request.as_ref(), muted: &silent };
            if let Err(gone) = exchange(&server, &out, line).await {
                out.send(error(out.id, code::INTERNAL_ERROR, no_server(&gone))).await;
            }
            if let Some(id) = &request {
                lock(&in_flight).remove(id);
            }
        });
        if let Some(id) = id {
            lock(&self.in_flight).insert(id, Request { handle, muted, listens });
        }
        drop(go);
    }

    /// The client cancelled a request. The server is told first, because the end of a request alone cancels nothing.
    async fn cancel(&self, line: Bytes) {
        #[derive(serde::Deserialize)]
        struct Cancelled {
            params: Params,
        }
        #[derive(serde::Deserialize)]
        struct Params {
            #[serde(rename = "requestId")]
            request_id: RequestId,
        }
        let named = serde_json::from_slice::<Cancelled>(&line).map(|cancelled| cancelled.params.request_id);
        if let Err(gone) = self.server.send_until_taken(line).await {
            tracing::warn!(%gone, "a cancellation could not be passed on");
        }
        // The request goes on here: if another server just takes over, it has to find the work to stop it.
        let request = named.ok().and_then(|id| lock(&self.in_flight).remove(&id));
        if let Some(request) = request {
            request.muted.store(true, Ordering::Release);
            tokio::spawn(async move {
                tokio::time::sleep(if request.listens { Duration::ZERO } else { CANCEL }).await;
                request.handle.abort();
            });
        }
    }
}

/// An error without an id gets that of the request; else its client would wait for ever.
fn with_request_id(body: Bytes, id: Option<&RequestId>) -> Bytes {
    let Some(id) = id else { return body };
    match serde_json::from_slice::<serde_json::Value>(&body) {
        Ok(mut answer) if answer["error"].is_object() && answer["id"].is_null() => {
            answer["id"] = serde_json::to_value(id).unwrap_or_default();
            answer.to_string().into()
        }
        _ => body,
    }
}

fn error(id: Option<&RequestId>, code: i64, message: String) -> Bytes {
    let mut body = Vec::new();
    if let Err(error) = write_error(&mut body, id, &RpcError { code, message, data: None }) {
        tracing::error!(%error, "an error could not be written");
    }
    body.into()
}

/// The error for a client without a server. The reason contains paths, so it goes to the log.
fn no_server(gone: &io::Error) -> String {
    tracing::error!(%gone, "there is no server for this client");
    "there is no server that this process could join, nor can it serve itself: its log says why".to_owned()
}

/// Sends a request until it is answered: from the start, or from where its stream broke off.
async fn exchange(server: &ServerLink, out: &ClientOutput<'_>, body: Bytes) -> io::Result<()> {
    let mut progress = StreamProgress::default();
    loop {
        let sent = match &progress.last_event_id {
            None => server.send(Method::POST, None, body.clone()).await?,
            Some(last) => server.send(Method::GET, Some(last), Bytes::new()).await?,
        };
        if let Ok(answer) = sent
            && let ReceiveEnd::Complete = receive(answer, out, &mut progress).await
        {
            return Ok(());
        }
        if progress.answered && progress.last_event_id.is_none() {
            return Ok(());
        }
        tokio::time::sleep(progress.retry.unwrap_or(PAUSE)).await;
    }
}

/// Forwards the session stream, and resumes it when it ends.
async fn run_session_stream(server: &ServerLink, lines: &mpsc::Sender<Bytes>) {
    let (mut progress, muted) = (StreamProgress::default(), AtomicBool::new(false));
    let out = ClientOutput { lines, id: None, muted: &muted };
    loop {
        if let Ok(Ok(answer)) = server.send(Method::GET, progress.last_event_id.as_deref(), Bytes::new()).await {
            let status = answer.response.status();
            if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS {
                return;
            }
            receive(answer, &out, &mut progress).await;
        }
        tokio::time::sleep(progress.retry.unwrap_or(RETRY)).await;
    }
}

/// Forwards the messages of a response.
async fn receive(answer: Answer, out: &ClientOutput<'_>, progress: &mut StreamProgress) -> ReceiveEnd {
    let Answer { response, _connection } = answer;
    let status = response.status();
    if status == StatusCode::SERVICE_UNAVAILABLE && response.headers().contains_key(SHUTTING_DOWN_HEADER) {
        // Another server takes over. If a server cannot store anything, the client gets its error instead.
        return ReceiveEnd::Interrupted;
    }
    if status == StatusCode::TOO_MANY_REQUESTS && (out.id.is_none() || progress.last_event_id.is_some()) {
        // Another server had accepted it.
        progress.retry = Some(BUSY);
        return ReceiveEnd::Interrupted;
    }
    let is_stream = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    let mut body = response.into_body();
    if !is_stream {
        let Ok(whole) = body.collect().await else { return ReceiveEnd::Interrupted };
        let whole = whole.to_bytes();
        if !whole.is_empty() {
            out.send(with_request_id(whole, out.id)).await;
        }
        return ReceiveEnd::Complete;
    }
    let mut reader = SseReader::new(EVENT_BYTES_MAX);
    loop {
        let frame = match body.frame().await {
            Some(Ok(frame)) => frame,
            Some(Err(_)) => return ReceiveEnd::Interrupted,
            // The server closed the stream: after the response, or to have it resumed.
            None => return if progress.answered { ReceiveEnd::Complete } else { ReceiveEnd::Interrupted },
        };
        if let Some(bytes) = frame.data_ref() {
            reader.feed(bytes);
        }
        loop {
            match reader.next() {
                Ok(None) => break,
                Err(_) => return ReceiveEnd::Interrupted,
                Ok(Some(event)) => {
                    progress.last_event_id = event.id.map(Into::into).or(progress.last_event_id.take());
                    progress.retry = event.retry_ms.map(Duration::from_millis).or(progress.retry);
                    if event.data.is_empty() {
                        continue;
                    }
                    progress.answered |= out.id.is_some()
                        && IncomingMessage::parse(&event.data).is_ok_and(|it| it.method.is_none() && it.id.as_ref() == out.id);
                    if !out.send(event.data.into()).await {
                        return ReceiveEnd::Complete;
                    }
                }
            }
        }
    }
}
