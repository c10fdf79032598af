//! Streamable HTTP: one endpoint that takes a message and responds with JSON, or with events if there are more messages than the response.

use std::{convert::Infallible, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use http_body_util::BodyExt;
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::Incoming as HttpBody,
    header::{
        ACCESS_CONTROL_REQUEST_HEADERS, ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, ORIGIN, RETRY_AFTER,
        WWW_AUTHENTICATE,
    },
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use taskwire_core::wire::{IncomingMessage, code};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener},
    sync::mpsc,
    task::JoinSet,
};

use super::{
    Endpoint,
    accept_failures::AcceptFailures,
    access::{self, Answer, Expiry},
    api,
    body_budget::{BodyBuffer, BudgetExhausted, ReceivedBody},
    connection_slots::{ConnectionSlot, ConnectionSlots},
    dashboard, guard,
    refusals::{self, REFUSAL_TIME},
    reply_body::{EventStream, ReplyBody, SlotBody},
    scrape,
    write_timeout::{BUFFER_BYTES, WriteTimeoutIo},
};
use crate::{
    audit,
    auth::Identity,
    clock::Clock,
    metrics::{Refused, RequestLabels},
    protocol::{
        ByteStreamId, Context, Era, Fault, Framing, MessageSink, Peer, Reply, TRACEPARENT, TRACESTATE,
        api::PREFIX,
        is_modern, legacy,
        legacy::SESSION_ID,
        modern, on_cancelled,
        router::{self, Channel, VERSION, accepts_sse, text},
    },
};

/// How many notes wait for a call's client to read; more are dropped.
const NOTES_LEN: usize = 16;
/// How many pieces wait for a stream's client to read; then senders wait. The client drives the sender, so few are enough.
const STREAM_LEN: usize = 4;
/// What a header costs in memory, besides its name and value.
const HEADER_BYTES: usize = 128;

/// Names the client's byte stream, in requests that a process that joined passes on.
pub(super) const BYTE_STREAM_HEADER: &str = "taskwire-stream";

/// Tells a process that joined that this server shuts down, so that another one takes over.
pub(super) const SHUTTING_DOWN_HEADER: &str = "taskwire-leaving";

pub(crate) async fn accept(endpoint: Arc<Endpoint>, listener: TcpListener) -> Infallible {
    accept_for(endpoint, listener, connection).await
}

/// Accepts connections for `serve`, as many at one time as there may be; the others are refused.
pub(super) async fn accept_for<F: Future<Output = ()> + Send + 'static>(
    endpoint: Arc<Endpoint>,
    listener: TcpListener,
    serve: impl Fn(Arc<Endpoint>, TcpStream, Peer, Arc<ConnectionSlot>) -> F,
) -> Infallible {
    let (slots, mut failures) = (connection_slots(&endpoint), AcceptFailures::default());
    let (refusals, clock) = (refusals::slots(&endpoint.context.config.http), endpoint.context.engine.clock().clone());
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let (slot, limit) = match slots.try_acquire() {
                    Some(slot) => (slot, None),
                    None => (refusals.acquire().await, Some(clock.sleep(REFUSAL_TIME))),
                };
                endpoint.connections.send_modify(|open| *open += 1);
                let closed = ConnectionCount(endpoint.clone());
                let _ = stream.set_nodelay(true);
                let served = serve(endpoint.clone(), stream, Peer::at(from.ip()), slot);
                let served = async move {
                    let _closed = closed;
                    audit::sent_from(Some(from.ip()), served).await;
                };
                refusals::spawn(served, limit);
            }
            Err(error) => failures.pause(&slots, &error, clock.monotonic()).await,
        }
    }
}

/// Serves processes of the same user until `shutdown` is ready. Then they are cut off, and connect to the next server. Their calls
/// linger, and are durable when this returns.
pub(crate) async fn accept_local(endpoint: &Arc<Endpoint>, listener: UnixListener, shutdown: impl Future<Output = ()>) {
    let mut connections = JoinSet::new();
    tokio::select! {
        () = shutdown => {}
        never = accept_bridges(endpoint, &listener, &mut connections) => match never {},
    }
    connections.shutdown().await;
    endpoint.context.calls.lingering_saved().await;
}

async fn accept_bridges(endpoint: &Arc<Endpoint>, listener: &UnixListener, connections: &mut JoinSet<()>) -> Infallible {
    let (slots, mut failures) = (connection_slots(endpoint), AcceptFailures::default());
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let slot = slots.acquire().await;
                while connections.try_join_next().is_some() {}
                connections.spawn(connection(endpoint.clone(), stream, Peer::local(), slot));
            }
            Err(error) => {
                failures.pause(&slots, &error, endpoint.context.engine.clock().monotonic()).await;
            }
        }
    }
}

/// Counts a connection down when it ends, however it ends.
struct ConnectionCount(Arc<Endpoint>);

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.0.connections.send_modify(|open| *open -= 1);
    }
}

fn connection_slots(endpoint: &Endpoint) -> Arc<ConnectionSlots> {
    let http = &endpoint.context.config.http;
    ConnectionSlots::new(http.connections, http.idle_connections)
}

pub(super) async fn connection(
    endpoint: Arc<Endpoint>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    slot: Arc<ConnectionSlot>,
) {
    let context = endpoint.context.clone();
    let http = &context.config.http;
    // A connection that comes during shutdown gets one response: tasks can still be read, and `/readyz` tells the state.
    let mut draining = *context.draining.borrow();
    let peer = Arc::new(peer);
    let service = {
        let (endpoint, slot) = (endpoint.clone(), slot.clone());
        service_fn(move |request| {
            let (endpoint, peer, slot) = (endpoint.clone(), peer.clone(), slot.clone());
            async move {
                let response = counted(&endpoint, peer, &slot, request).await;
                Ok::<_, Infallible>(response.map(|body| SlotBody::new(body, slot)))
            }
        })
    };
    let io = WriteTimeoutIo::new(TokioIo::new(stream), slot.clone(), context.engine.clock().clone(), http.write_timeout);
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(http.read_timeout)
        .max_header_size(http.head_bytes)
        .keep_alive(!draining && !slot.refuses())
        .serve_connection(io, service);
    tokio::pin!(connection);
    let result = loop {
        tokio::select! {
            result = connection.as_mut() => break result,
            () = slot.evicted() => return tracing::debug!("an idle connection was closed for a new one"),
            () = context.shutdown_began(), if !draining => {
                draining = true;
                connection.as_mut().graceful_shutdown();
            }
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

pub(super) fn reply_response(mut reply: Reply) -> Response<ReplyBody> {
    let session = reply.session.take().and_then(|session| HeaderValue::from_str(session.as_str()).ok());
    let challenge = reply.challenge.take().and_then(|challenge| HeaderValue::from_str(&challenge).ok());
    let mut response = bare(reply);
    if let Some(session) = session {
        response.headers_mut().insert(SESSION_ID, session);
    }
    if let Some(challenge) = challenge {
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
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
    let mut response = json(reply.status, ReplyBody::Whole(Some(reply.body), reply.on_sent));
    if later {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

pub(super) fn refuse(status: u16, code: i64, message: impl Into<String>) -> Response<ReplyBody> {
    reply_response(Reply::fault(None, &Fault::new(status, code, message)))
}

pub(super) fn plain(status: StatusCode, text: &'static str) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::text(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// Answers a request, and counts it.
async fn counted(endpoint: &Endpoint, peer: Arc<Peer>, slot: &ConnectionSlot, request: Request<HttpBody>) -> Response<ReplyBody> {
    let (http, clock) = (endpoint.context.engine.metrics().http(), endpoint.context.engine.clock());
    let (labels, came) = (RequestLabels::of(request.method().as_str(), request.uri().path()), clock.monotonic());
    let mut response = route(endpoint, peer, slot, request).await;
    http.answered(labels, response.status().as_u16(), clock.monotonic().saturating_sub(came));
    if let Some(why) = response.extensions_mut().remove::<Refused>() {
        http.refused(why);
    }
    response
}

/// Says why a response refuses its request, for whoever counts that.
pub(super) fn because(why: Refused, mut response: Response<ReplyBody>) -> Response<ReplyBody> {
    response.extensions_mut().insert(why);
    response
}

async fn route(endpoint: &Endpoint, peer: Arc<Peer>, slot: &ConnectionSlot, request: Request<HttpBody>) -> Response<ReplyBody> {
    let context = &endpoint.context;
    // Probes use whatever name the machine has, so they are not checked.
    if let (path @ ("/healthz" | "/readyz"), &Method::GET | &Method::HEAD) = (request.uri().path(), request.method()) {
        let engine = &context.engine;
        // While its disk is full, the server goes on with what is there.
        let is_away = engine.is_away() && !engine.is_full();
        let leaving = path == "/readyz" && (*context.draining.borrow() || engine.has_failed() || is_away);
        return if leaving { plain(StatusCode::SERVICE_UNAVAILABLE, "unavailable\n") } else { plain(StatusCode::OK, "ok\n") };
    }
    if let Some(refusal) = guard::check(request.uri(), request.headers(), &context.config.http).err().filter(|_| !peer.is_local()) {
        // Without headers for browsers, because the page may be anybody's.
        return because(Refused::Host, refuse(refusal.status, code::INVALID_REQUEST, refusal.message));
    }
    let origin = request.headers().get(ORIGIN).map(copied);
    let asked = request.headers().get(ACCESS_CONTROL_REQUEST_HEADERS).map(copied);
    let (local, draining) = (peer.is_local(), context.draining.subscribe());
    let mut response = dispatch(endpoint, peer, slot, request).await;
    if local && *draining.borrow() {
        response.headers_mut().insert(SHUTTING_DOWN_HEADER, HeaderValue::from_static("1"));
    }
    if let Some(origin) = origin {
        guard::allow(response.headers_mut(), origin, asked);
    }
    response
}

/// The response to a request of whom nobody knows who sent it.
pub(super) fn denied(refused: Reply) -> Response<ReplyBody> {
    because(Refused::Auth, reply_response(refused))
}

async fn dispatch(endpoint: &Endpoint, peer: Arc<Peer>, slot: &ConnectionSlot, request: Request<HttpBody>) -> Response<ReplyBody> {
    let context = &endpoint.context;
    if slot.refuses() {
        return Box::pin(refusals::respond(context.engine.clock(), request)).await;
    }
    match (request.uri().path(), request.method()) {
        ("/mcp", &Method::POST) => post(endpoint, peer, slot, request).await,
        ("/mcp", &Method::OPTIONS) if request.headers().contains_key(ORIGIN) => {
            let mut response = Response::new(ReplyBody::Whole(None, None));
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        }
        ("/mcp", &Method::GET | &Method::DELETE) if !text(request.headers(), VERSION).is_some_and(is_modern) => {
            // On the heap, like everything that not every connection needs.
            Box::pin(get_or_delete(endpoint.context.clone(), &peer, slot, &request)).await
        }
        ("/metrics", &Method::GET | &Method::HEAD) if context.config.metrics => {
            match access::identify(context, &peer, request.headers()).await {
                Err(refused) => denied(refused),
                Ok(identity) => match context.authorize(&identity, "", None).and_then(|()| context.admit_request(&identity.caller)) {
                    Err(fault) => reply_response(Reply::fault(None, &fault)),
                    Ok(()) if !slot.mark_busy() => slot_evicted(),
                    Ok(()) => Box::pin(scrape::respond(endpoint)).await,
                },
            }
        }
        ("/mcp", method) => {
            // GET and DELETE belong to sessions, which modern clients do not have.
            let allow = if matches!(*method, Method::GET | Method::DELETE) { "POST" } else { "POST, GET, DELETE" };
            let mut response = refuse(405, code::INVALID_REQUEST, format!("use {allow}"));
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
            response
        }
        (path, &Method::GET | &Method::HEAD) if context.config.dashboard && dashboard::has(path) => {
            dashboard::respond(path, request.headers())
        }
        (path, _) if path.starts_with(PREFIX) => Box::pin(api::respond(endpoint, &peer, slot, &request)).await,
        (path, method) => access::metadata(context, path, method)
            .unwrap_or_else(|| plain(StatusCode::NOT_FOUND, "nothing here: the MCP endpoint is /mcp\n")),
    }
}

/// A copy of a header, because the original would keep the connection's read buffer in memory.
fn copied(value: &HeaderValue) -> HeaderValue {
    HeaderValue::from_bytes(value.as_bytes()).unwrap_or_else(|_| value.clone())
}

/// Whether a header is needed after the body has arrived.
fn counts(name: &str) -> bool {
    name.starts_with("mcp-") || matches!(name, "accept" | BYTE_STREAM_HEADER | TRACEPARENT | TRACESTATE)
}

/// Copies of the headers that are needed after the body has arrived.
fn kept(headers: &HeaderMap) -> HeaderMap {
    headers.iter().filter(|(name, _)| counts(name.as_str())).map(|(name, value)| (name.clone(), copied(value))).collect()
}

/// Bytes of a head that are kept while its body arrives: of headers, and of a read buffer that had to grow for it.
fn head_bytes(headers: &HeaderMap) -> usize {
    let sizes = headers.iter().map(|(name, value)| (counts(name.as_str()), name.as_str().len() + value.len() + HEADER_BYTES));
    let (kept, all) = sizes.fold((0, 0), |(kept, all), (counts, size)| (kept + if counts { size } else { 0 }, all + size));
    kept + all.saturating_sub(BUFFER_BYTES)
}

/// GET and DELETE, which only sessions have.
async fn get_or_delete(context: Arc<Context>, peer: &Peer, slot: &ConnectionSlot, request: &Request<HttpBody>) -> Response<ReplyBody> {
    let headers = request.headers();
    let identity = match access::identify(&context, peer, headers).await {
        Ok(identity) => identity,
        Err(refused) => return denied(refused),
    };
    let caller = &identity.caller;
    if let Err(fault) = context.authorize(&identity, "", None).and_then(|()| context.admit_request(caller)) {
        return reply_response(Reply::fault(None, &fault));
    }
    if !slot.mark_busy() {
        return slot_evicted();
    }
    let (session, version) = (text(headers, SESSION_ID), text(headers, VERSION));
    if request.method() == Method::DELETE {
        return match legacy::delete_session(&context, caller, session, version).await {
            Ok(()) => reply_response(Reply::new(200, Vec::new())),
            Err(fault) => reply_response(Reply::fault(None, &fault)),
        };
    }
    let listening = match legacy::open_get_stream(&context, &identity, session, version, text(headers, "last-event-id")).await {
        Ok(Some(listening)) => listening,
        // Nothing follows. With this status a client does not ask again.
        Ok(None) => return reply_response(Reply::new(204, Vec::new())),
        Err(fault) => return reply_response(Reply::fault(None, &fault)),
    };
    if !accepts_sse(headers) {
        return refuse(406, code::INVALID_REQUEST, "the answer is an event stream: send `Accept: text/event-stream`");
    }
    let (sender, messages) = mpsc::channel(STREAM_LEN);
    let (clock, keep_alive) = (context.engine.clock().clone(), context.config.http.keep_alive);
    let sink = MessageSink::new(sender, Framing::SSE).with_token_until(identity.expires, &clock);
    let expiry = Expiry::of(&context, &identity);
    let answer: Answer = Box::pin(async move {
        let ended = AssertUnwindSafe(listening.run(&context, &sink)).catch_unwind().await;
        if ended.is_err() {
            tracing::error!("a stream ended: what it reads from panicked");
        }
        Reply::new(200, Vec::new())
    });
    let answer = match expiry {
        Some(expiry) => expiry.bound(answer, |_| Reply::new(200, Vec::new())),
        None => answer,
    };
    stream(answer, messages, None, clock, keep_alive)
}

async fn post(endpoint: &Endpoint, peer: Arc<Peer>, slot: &ConnectionSlot, request: Request<HttpBody>) -> Response<ReplyBody> {
    let context = &endpoint.context;
    let identity = match access::identify(context, &peer, request.headers()).await {
        Ok(identity) => identity,
        Err(refused) => return denied(refused),
    };
    if !is_json(request.headers()) {
        return refuse(415, code::INVALID_REQUEST, "the body must be `Content-Type: application/json`");
    }
    let (mut parts, body) = request.into_parts();
    let max = context.config.body_bytes;
    let announced = parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > max as u64) {
        return BodyError::TooLarge.into_response(max);
    }
    let most = announced.and_then(|length| usize::try_from(length).ok()).unwrap_or(max);
    let clock = context.engine.clock().clone();
    let intake = match endpoint.body_budget.begin(&identity.caller, head_bytes(&parts.headers), most, clock.now()) {
        Ok(intake) => intake,
        Err(full) => return BodyError::from(full).into_response(max),
    };
    let mut headers = std::mem::take(&mut parts.headers);
    drop(parts);
    let reading = read(body, intake, max, clock);
    tokio::pin!(reading);
    let came = match reading.as_mut().now_or_never() {
        Some(came) => came,
        None => {
            slot.touch();
            headers = kept(&headers);
            tokio::time::timeout(context.config.http.read_timeout, reading).await.unwrap_or(Err(BodyError::TimedOut))
        }
    };
    let taken = match came {
        Ok(taken) => taken,
        Err(unread) => return unread.into_response(max),
    };
    if !slot.mark_busy() {
        return slot_evicted();
    }
    Box::pin(respond(context.clone(), peer, identity, headers, taken)).await
}

/// Whether a request says that its body is JSON.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).and_then(|value| value.split(';').next());
    kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

enum BodyError {
    TooLarge,
    BudgetExhausted,
    TimedOut,
    Broken(hyper::Error),
}

impl From<BudgetExhausted> for BodyError {
    fn from(_: BudgetExhausted) -> Self {
        Self::BudgetExhausted
    }
}

impl BodyError {
    fn into_response(self, max: usize) -> Response<ReplyBody> {
        match self {
            Self::TooLarge => {
                let message = format!("the body has more than {max} bytes (configuration key `body_bytes`)");
                because(Refused::BodyTooLarge, refuse(413, code::INVALID_REQUEST, message))
            }
            Self::BudgetExhausted => {
                let message = "the bodies being read or answered have reached `http.all_bodies_bytes`: try again";
                because(Refused::BodiesTooLarge, refuse(503, code::UNAVAILABLE, message))
            }
            Self::TimedOut => because(Refused::SlowBody, refuse(408, code::INVALID_REQUEST, "the body took too long to arrive")),
            Self::Broken(error) => refuse(400, code::PARSE_ERROR, format!("the body could not be read: {error}")),
        }
    }
}

/// Reads a body to its end, as far as the budget allows. Pieces are copied, because the originals would keep the connection's read
/// buffer in memory.
async fn read(mut body: HttpBody, mut intake: BodyBuffer, max: usize, clock: Arc<dyn Clock>) -> Result<ReceivedBody, BodyError> {
    let mut length = 0;
    loop {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            () = intake.evicted() => return Err(BodyError::BudgetExhausted),
        };
        let Some(frame) = frame else { return intake.finish().map_err(BodyError::from) };
        let frame = frame.map_err(BodyError::Broken)?;
        let Some(piece) = frame.data_ref() else { continue };
        length += piece.len();
        if length > max {
            return Err(BodyError::TooLarge);
        }
        intake.add(piece, clock.now())?;
    }
}

/// The response to a request that was complete only when its connection had been evicted. It may not arrive.
pub(super) fn slot_evicted() -> Response<ReplyBody> {
    refusals::too_many_connections(Refused::Evicted)
}

/// A response that is made while it is sent.
fn stream(
    answer: Answer,
    messages: mpsc::Receiver<Bytes>,
    first: Option<Bytes>,
    clock: Arc<dyn Clock>,
    keep_alive: Duration,
) -> Response<ReplyBody> {
    let (last, sleep) = (clock.now(), clock.sleep(keep_alive));
    let stream = EventStream { answer, messages, first, clock, keep_alive, sleep, last, done: false };
    let mut response = Response::new(ReplyBody::Events(Box::new(stream)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

async fn respond(
    context: Arc<Context>,
    peer: Arc<Peer>,
    identity: Identity,
    mut headers: HeaderMap,
    taken: ReceivedBody,
) -> Response<ReplyBody> {
    let bytes = &taken.bytes;
    if bytes.trim_ascii_start().starts_with(b"[") && !text(&headers, VERSION).is_some_and(is_modern) {
        let expiry = Expiry::of(&context, &identity);
        let answers: Answer = Box::pin(async move {
            let batch = legacy::batch(&context, &identity, router::session_channel(&headers, false), &taken.bytes);
            AssertUnwindSafe(batch).catch_unwind().await.unwrap_or_else(|_| Reply::panicked(None))
        });
        let answers = match expiry {
            Some(expiry) => expiry.bound(answers, |fault| Reply::fault(None, fault)),
            None => answers,
        };
        return reply_response(answers.await);
    }
    let message = match IncomingMessage::parse(bytes) {
        Ok(message) => message,
        Err(malformed) => return reply_response(Reply::fault(malformed.id.as_ref(), &Fault::of(400, malformed.error))),
    };
    let era = match Era::of_http(&message, bytes, text(&headers, VERSION)) {
        _ if peer.is_local() => Era::of_line(&message, bytes),
        Ok(era) => era,
        Err(fault) => return reply_response(Reply::fault(message.id.as_ref(), &fault)),
    };
    let stream_id = text(&headers, BYTE_STREAM_HEADER).filter(|_| peer.is_local()).map(ByteStreamId::from);
    if stream_id.is_some() && message.method.as_deref() == Some("notifications/cancelled") {
        // On a byte stream, requests of both eras are cancelled by their ids.
        on_cancelled(&context, &identity.caller, stream_id.as_ref(), message.params(bytes).unwrap_or("{}"));
        if text(&headers, SESSION_ID).is_none() {
            return reply_response(Reply::accepted());
        }
    }
    let queue = match era {
        Era::Legacy => (legacy::may_stream(&message) && accepts_sse(&headers)).then_some(STREAM_LEN),
        Era::Modern => match modern::response_kind(&message, bytes) {
            modern::ResponseKind::Single => None,
            modern::ResponseKind::WithNotes => Some(NOTES_LEN),
            modern::ResponseKind::Stream => Some(STREAM_LEN),
        },
    };
    let (sink, messages) = if let Some(len) = queue {
        // The request may take long.
        headers = kept(&headers);
        let (sender, messages) = mpsc::channel(len);
        (MessageSink::new(sender, Framing::SSE), Some(messages))
    } else {
        (MessageSink::closed(), None)
    };
    let clock = context.engine.clock().clone();
    let sink = sink.on_byte_stream(stream_id).bridged(peer.is_local()).with_token_until(identity.expires, &clock);
    let keep_alive = context.config.http.keep_alive;
    let expiry = Expiry::of(&context, &identity).map(|expiry| (expiry, message.id.clone()));
    // On the heap, so that a connection that waits for its next request takes little memory.
    let mut answer: Answer = Box::pin(async move {
        let ReceivedBody { bytes, permit: _permit } = taken;
        let origin = router::MessageSource { identity: &identity, peer: &peer, channel: Channel::Http(headers), out: &sink };
        let answer = AssertUnwindSafe(router::respond(&context, era, &message, &bytes, origin)).catch_unwind().await;
        answer.unwrap_or_else(|_| Reply::panicked(message.id.as_ref()))
    });
    if let Some((expiry, id)) = expiry {
        answer = expiry.bound(answer, move |fault| Reply::fault(id.as_ref(), fault));
    }
    let Some(mut messages) = messages else { return reply_response(answer.await) };
    let first = tokio::select! {
        biased;
        reply = &mut answer => {
            // Notes that were sent together with the response still go first.
            match messages.try_recv() {
                Err(_) => return reply_response(reply),
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
