//! Streamable HTTP: one endpoint that takes a message and answers with JSON, or with events if there is more to say
//! than the response.

use std::{convert::Infallible, panic::AssertUnwindSafe, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::Incoming as HttpBody,
    header::{
        ACCEPT, ACCESS_CONTROL_REQUEST_HEADERS, ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, ORIGIN,
        RETRY_AFTER, WWW_AUTHENTICATE,
    },
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use taskwire_core::{
    CallerId,
    wire::{Incoming, code},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    sync::{Semaphore, mpsc},
    task::JoinSet,
};

use super::{
    body::{ReplyBody, Stream},
    guard,
    patience::Patient,
};
use crate::{
    clock::Clock,
    dialect::{Era, Fault, Framing, Outbox, Peer, Reply, StreamId, cancelled, is_modern, legacy, modern},
    server::{Denied, Server, Shared},
};

/// Notes that wait for a call's reader; more are dropped.
const NOTES_LEN: usize = 16;
/// Pieces that wait for a stream's reader; then whoever sends waits. The reader drives the sender, so few are enough.
const STREAM_LEN: usize = 4;
const SESSION_ID: &str = "mcp-session-id";
const VERSION: &str = "mcp-protocol-version";
/// How long to wait after a failed accept (usually: too many open files).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Which byte stream of the client a request came on, where a process that joined passes it on.
pub(super) const STREAM: &str = "taskwire-stream";

/// Says to a process that joined that this server is shutting down, so that another one takes its place.
pub(super) const LEAVING: &str = "taskwire-leaving";

/// Accepts connections for ever.
pub(crate) async fn accept(server: Server, listener: TcpListener) -> Infallible {
    let slots = Arc::new(Semaphore::new(server.0.config.http.connections));
    loop {
        let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                let shared = server.0.clone();
                shared.connections.send_modify(|open| *open += 1);
                let _ = stream.set_nodelay(true);
                tokio::spawn(async move {
                    let _closed = Closed(shared.clone());
                    connection(shared, stream, Peer::default()).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves processes of the same user until `shutdown` is ready. They are cut off then, and come back to whoever serves next: what they
/// called for is left, and durable when this returns.
pub(crate) async fn accept_local(server: &Server, listener: UnixListener, shutdown: impl Future<Output = ()>) {
    let max = server.0.config.http.connections;
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < max => match accepted {
                Ok((stream, _)) => drop(connections.spawn(connection(server.0.clone(), stream, Peer::local()))),
                Err(error) => {
                    tracing::warn!(%error, "a process could not join");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    connections.shutdown().await;
    server.0.calls.settled().await;
}

/// Counts a connection out when it ends, however it ends.
struct Closed(Arc<Shared>);

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.connections.send_modify(|open| *open -= 1);
    }
}

async fn connection(shared: Arc<Shared>, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, peer: Peer) {
    let read_timeout = shared.config.http.read_timeout;
    // Who comes while the server shuts down is answered once: tasks can still be read, and `/readyz` says how it is.
    let late = *shared.draining.borrow();
    let peer = Arc::new(peer);
    let service = {
        let shared = shared.clone();
        service_fn(move |request| {
            let (shared, peer) = (shared.clone(), peer.clone());
            async move { Ok::<_, Infallible>(route(shared, peer, request).await) }
        })
    };
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(read_timeout)
        .keep_alive(!late)
        .serve_connection(Patient::new(TokioIo::new(stream), shared.engine.clock().clone(), shared.config.http.write_timeout), service);
    tokio::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = shared.drained(), if !late => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended");
    }
}

fn json(status: u16, body: ReplyBody) -> Response<ReplyBody> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn whole(mut reply: Reply) -> Response<ReplyBody> {
    let session = reply.session.take().and_then(|session| HeaderValue::from_str(session.as_str()).ok());
    let mut response = bare(reply);
    if let Some(session) = session {
        response.headers_mut().insert(SESSION_ID, session);
    }
    response
}

fn bare(reply: Reply) -> Response<ReplyBody> {
    if reply.body.is_empty() {
        let mut response = Response::new(ReplyBody::Whole(None, None));
        *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::ACCEPTED);
        return response;
    }
    let later = matches!(reply.status, 429 | 503);
    let mut response = json(reply.status, ReplyBody::Whole(Some(reply.body), reply.sent));
    if later {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

fn refuse(status: u16, code: i64, message: impl Into<String>) -> Response<ReplyBody> {
    whole(Reply::fault(None, &Fault::new(status, code, message)))
}

fn plain(status: StatusCode, text: &'static str) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::text(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

async fn route(shared: Arc<Shared>, peer: Arc<Peer>, request: Request<HttpBody>) -> Response<ReplyBody> {
    // Probes come by whatever name the machine has.
    if let (path @ ("/healthz" | "/readyz"), &Method::GET | &Method::HEAD) = (request.uri().path(), request.method()) {
        let leaving = path == "/readyz" && (*shared.draining.borrow() || shared.engine.has_failed());
        return if leaving { plain(StatusCode::SERVICE_UNAVAILABLE, "unavailable\n") } else { plain(StatusCode::OK, "ok\n") };
    }
    let origin = request.headers().get(ORIGIN).cloned();
    let asked = request.headers().get(ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let (local, draining) = (peer.is_local(), shared.draining.subscribe());
    let mut response = answer(shared, peer, request).await;
    if local && *draining.borrow() {
        response.headers_mut().insert(LEAVING, HeaderValue::from_static("1"));
    }
    if let Some(origin) = origin.filter(|_| response.status() != StatusCode::FORBIDDEN) {
        guard::allow(response.headers_mut(), origin, asked);
    }
    response
}

async fn answer(shared: Arc<Shared>, peer: Arc<Peer>, request: Request<HttpBody>) -> Response<ReplyBody> {
    if let Some(forbidden) = guard::check(request.headers(), &shared.config.http).err().filter(|_| !peer.is_local()) {
        return refuse(403, code::INVALID_REQUEST, forbidden.0);
    }
    match (request.uri().path(), request.method()) {
        ("/mcp", &Method::POST) => post(shared, peer, request).await,
        ("/mcp", &Method::OPTIONS) if request.headers().contains_key(ORIGIN) => {
            let mut response = Response::new(ReplyBody::Whole(None, None));
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        }
        ("/mcp", &Method::GET | &Method::DELETE) if !text(request.headers(), VERSION).is_some_and(is_modern) => {
            session(shared, &peer, &request).await
        }
        ("/mcp", method) => {
            // What belongs to sessions alone is not for who speaks of none.
            let allow = if matches!(*method, Method::GET | Method::DELETE) { "POST" } else { "POST, GET, DELETE" };
            let mut response = refuse(405, code::INVALID_REQUEST, format!("use {allow}"));
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
            response
        }
        _ => plain(StatusCode::NOT_FOUND, "nothing here: the MCP endpoint is /mcp\n"),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    // What is no text is still there, and will not be what is asked for.
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

/// Whether a client takes an event stream for an answer.
fn takes_events(headers: &HeaderMap) -> bool {
    let kinds = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let names = kinds.filter_map(|kind| kind.split(';').next()).map(str::trim);
    names.into_iter().any(|kind| matches!(kind, "text/event-stream" | "text/*" | "*/*"))
}

/// Who calls. A process that can open our socket is ours.
fn caller(shared: &Shared, peer: &Peer, headers: &HeaderMap) -> Result<CallerId, Denied> {
    if peer.is_local() {
        return Ok(shared.config.auth.owner());
    }
    shared.config.auth.caller(headers.get(AUTHORIZATION).map(HeaderValue::as_bytes))
}

fn deny(denied: Denied) -> Response<ReplyBody> {
    let mut response = refuse(401, code::INVALID_REQUEST, denied.to_string());
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// GET and DELETE, which only sessions have.
async fn session(shared: Arc<Shared>, peer: &Peer, request: &Request<HttpBody>) -> Response<ReplyBody> {
    let headers = request.headers();
    let caller = match caller(&shared, peer, headers) {
        Ok(caller) => caller,
        Err(denied) => return deny(denied),
    };
    let (session, version) = (text(headers, SESSION_ID), text(headers, VERSION));
    if request.method() == Method::DELETE {
        return match legacy::end(&shared, &caller, session, version).await {
            Ok(()) => whole(Reply::new(200, Vec::new())),
            Err(fault) => whole(Reply::fault(None, &fault)),
        };
    }
    let listening = match legacy::listen(&shared, &caller, session, version, text(headers, "last-event-id")) {
        Ok(Some(listening)) => listening,
        // Nothing follows: what is said so is not asked for again.
        Ok(None) => return whole(Reply::new(204, Vec::new())),
        Err(fault) => return whole(Reply::fault(None, &fault)),
    };
    if !takes_events(headers) {
        return refuse(406, code::INVALID_REQUEST, "the answer is an event stream: send `Accept: text/event-stream`");
    }
    let (sender, messages) = mpsc::channel(STREAM_LEN);
    let outbox = Outbox::new(sender, Framing::EVENTS);
    let (clock, keep_alive) = (shared.engine.clock().clone(), shared.config.http.keep_alive);
    let answer = Box::pin(async move {
        let told = AssertUnwindSafe(listening.run(&shared, &outbox)).catch_unwind().await;
        if told.is_err() {
            tracing::error!("a stream ended: what it reads from panicked");
        }
        Reply::new(200, Vec::new())
    });
    stream(answer, messages, None, clock, keep_alive)
}

async fn post(shared: Arc<Shared>, peer: Arc<Peer>, request: Request<HttpBody>) -> Response<ReplyBody> {
    let caller = match caller(&shared, &peer, request.headers()) {
        Ok(caller) => caller,
        Err(denied) => return deny(denied),
    };
    let is_json = request
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json")));
    if !is_json {
        return refuse(415, code::INVALID_REQUEST, "the body must be `Content-Type: application/json`");
    }
    let (parts, body) = request.into_parts();
    let max = shared.config.body_bytes;
    let announced = parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > max as u64) {
        return too_large(max);
    }
    let collected = tokio::time::timeout(shared.config.http.read_timeout, Limited::new(body, max).collect()).await;
    let bytes = match collected {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return too_large(max),
        Ok(Err(error)) => return refuse(400, code::PARSE_ERROR, format!("the body could not be read: {error}")),
        Err(_) => return refuse(408, code::INVALID_REQUEST, "the body took too long to arrive"),
    };
    respond(shared, peer, caller, parts.headers, bytes).await
}

fn too_large(max: usize) -> Response<ReplyBody> {
    refuse(413, code::INVALID_REQUEST, format!("the body has more than {max} bytes (configuration key `body_bytes`)"))
}

/// A response that is made while it is sent.
fn stream(
    answer: Pin<Box<dyn Future<Output = Reply> + Send>>,
    messages: mpsc::Receiver<Bytes>,
    first: Option<Bytes>,
    clock: Arc<dyn Clock>,
    keep_alive: Duration,
) -> Response<ReplyBody> {
    let (last, sleep) = (clock.now(), clock.sleep(keep_alive));
    let stream = Stream { answer, messages, first, clock, keep_alive, sleep, last, done: false };
    let mut response = Response::new(ReplyBody::Events(Box::new(stream)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// A message, and where it came from.
struct Posted {
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    caller: CallerId,
    headers: HeaderMap,
    bytes: Bytes,
    message: Incoming,
    outbox: Outbox,
}

impl Posted {
    async fn answer(self, era: Era) -> Reply {
        let Self { shared, peer, caller, headers, bytes, message, outbox: out } = self;
        if era == Era::Modern {
            // What a process that joined passes on came without any.
            let headers = Some(headers).filter(|_| !peer.is_local());
            let origin = modern::Origin { caller: &caller, peer: &peer, headers, out: &out };
            return modern::answer(&shared, &message, &bytes, origin).await;
        }
        let way =
            legacy::Way::Http { session: text(&headers, SESSION_ID), version: text(&headers, VERSION), events: takes_events(&headers) };
        let origin = legacy::Origin { caller: &caller, way, out: &out };
        if legacy::begins(&message) {
            return legacy::begin(&shared, &message, &bytes, origin).await.0;
        }
        legacy::answer(&shared, &message, &bytes, origin).await
    }
}

async fn respond(shared: Arc<Shared>, peer: Arc<Peer>, caller: CallerId, headers: HeaderMap, bytes: Bytes) -> Response<ReplyBody> {
    if bytes.trim_ascii_start().starts_with(b"[") && !text(&headers, VERSION).is_some_and(is_modern) {
        let way = legacy::Way::Http { session: text(&headers, SESSION_ID), version: text(&headers, VERSION), events: false };
        let answers = AssertUnwindSafe(legacy::batch(&shared, &caller, way, &bytes)).catch_unwind().await;
        return whole(answers.unwrap_or_else(|_| Reply::panicked(None)));
    }
    let message = match Incoming::parse(&bytes) {
        Ok(message) => message,
        Err(malformed) => return whole(Reply::fault(malformed.id.as_ref(), &Fault { status: 400, error: malformed.error })),
    };
    let era = match Era::of_http(&message, &bytes, text(&headers, VERSION)) {
        _ if peer.is_local() => Era::of_line(&message, &bytes),
        Ok(era) => era,
        Err(fault) => return whole(Reply::fault(message.id.as_ref(), &fault)),
    };
    let stream_id = text(&headers, STREAM).filter(|_| peer.is_local()).map(StreamId::from);
    if stream_id.is_some() && message.method.as_deref() == Some("notifications/cancelled") {
        // By the name of a request on a byte stream, whatever its era.
        cancelled(&shared, &caller, stream_id.as_ref(), message.params(&bytes).unwrap_or("{}"));
        if text(&headers, SESSION_ID).is_none() {
            return whole(Reply::accepted());
        }
    }
    let room = match era {
        Era::Legacy => (legacy::streams(&message) && takes_events(&headers)).then_some(STREAM_LEN),
        Era::Modern => match modern::besides(&message, &bytes) {
            modern::Besides::Nothing => None,
            modern::Besides::Notes => Some(NOTES_LEN),
            modern::Besides::Stream => Some(STREAM_LEN),
        },
    };
    let (bytes, outbox, messages) = if let Some(room) = room {
        let (sender, messages) = mpsc::channel(room);
        // A copy of its own: the bytes as they came would keep the connection's whole read buffer for as long as it takes.
        (Bytes::copy_from_slice(&bytes), Outbox::new(sender, Framing::EVENTS), Some(messages))
    } else {
        (bytes, Outbox::closed(), None)
    };
    let outbox = outbox.on(stream_id).local(peer.is_local());
    let clock = shared.engine.clock().clone();
    let keep_alive = shared.config.http.keep_alive;
    let id = message.id.clone();
    let posted = Posted { shared, peer, caller, headers, bytes, message, outbox };
    // On the heap, so that a connection that waits for its next request takes little room.
    let mut answer: Pin<Box<dyn Future<Output = Reply> + Send>> =
        Box::pin(async move { AssertUnwindSafe(posted.answer(era)).catch_unwind().await.unwrap_or_else(|_| Reply::panicked(id.as_ref())) });
    let Some(mut messages) = messages else { return whole(answer.await) };
    let first = tokio::select! {
        biased;
        reply = &mut answer => {
            // Notes that were sent in the same breath as the response still go first.
            match messages.try_recv() {
                Err(_) => return whole(reply),
                Ok(first) => {
                    answer = Box::pin(std::future::ready(reply));
                    first
                }
            }
        }
        Some(first) = messages.recv() => first,
    };
    stream(answer, messages, Some(first), clock, keep_alive)
}
