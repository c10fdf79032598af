//! The legacy era: 2025-11-25 with its core tasks, and the two versions before it. A client opens a session, and the server stores it.
//!
//! Start with [`answer`]. Every stream reads a log from a cursor on: `task_stream` that of one task, `session_stream` a session's outbox.
//! An event id is such a cursor (`event_id`).

mod batch;
mod call;
mod catalog;
mod event_id;
mod handshake;
mod live;
mod modes;
mod outcome;
mod render;
mod session;
mod session_stream;
mod streaming;
mod task_stream;
mod tasks;

use std::{sync::Arc, time::Duration};

use serde::Deserialize;
use serde_json::json;
use taskwire_core::{
    CallerId, Payload, QuestionKey, TaskId,
    task::{Authority, Command, RpcError, Task},
    wire::{IncomingMessage, RequestId, code},
};

pub(crate) use self::{
    batch::batch,
    session::{Session, Sessions, delete_session, end_session},
};
use self::{
    event_id::{EventId, SessionCursor, StreamCursor, StreamKind, TaskStreamId, parse_question_id},
    live::{CANCELLED_BY_CALLER, RequestGuard},
    session::SessionTerms,
    task_stream::TaskStream,
};
use super::{
    CallerPermit, ClientGone, Context, Fault, MessageSink, Reply, RequestSpan, TraceHeaders,
    call::{Cancellation, hold::Hold, waiter::Waiter},
    json::Object,
    log::StreamEnd,
};
use crate::{
    auth::Identity,
    engine,
    metrics::{self, Answer, CallCount},
    tool::{REFUSED, check_answer},
};

/// The versions of this era that the server supports, the latest first.
const VERSIONS: [&str; 3] = ["2025-11-25", "2025-06-18", "2025-03-26"];

/// The header that names a session.
pub(crate) const SESSION_ID: &str = "mcp-session-id";

pub(crate) struct MessageSource<'a> {
    pub(crate) identity: &'a Identity,
    pub(crate) channel: Channel<'a>,
    pub(crate) out: &'a MessageSink,
}

#[derive(Clone, Copy)]
pub(crate) enum Channel<'a> {
    Http {
        /// `Mcp-Session-Id`.
        session: Option<&'a str>,
        /// `MCP-Protocol-Version`.
        version: Option<&'a str>,
        /// Whether the client accepts an event stream as the response.
        accepts_sse: bool,
        trace: TraceHeaders<'a>,
    },
    /// A byte stream has one session at most.
    ByteStream(Option<&'a Arc<Session>>),
}

impl<'a> Channel<'a> {
    /// What its headers say of a trace.
    fn trace(&self) -> TraceHeaders<'a> {
        match *self {
            Self::Http { trace, .. } => trace,
            Self::ByteStream(_) => TraceHeaders::default(),
        }
    }
}

/// One request of a session.
struct Cx<'a> {
    context: &'a Arc<Context>,
    session: &'a Arc<Session>,
    identity: &'a Identity,
    id: &'a RequestId,
    raw_params: &'a str,
    out: &'a MessageSink,
    /// Whether other messages than the response may be sent.
    can_stream: bool,
    /// Whether a client that hangs up can resume the stream.
    can_reconnect: bool,
    span: &'a RequestSpan,
    /// Counts the request, if it is a call.
    counted: CallCount,
}

impl Cx<'_> {
    fn read<'p, T: Deserialize<'p>>(&'p self) -> Result<T, Fault> {
        serde_json::from_str(self.raw_params).map_err(|error| Fault::params(format!("invalid params: {error}")))
    }

    fn reply(&self, result: Object) -> Reply {
        Reply::result(self.id, &result.end())
    }

    /// Registers the request, so that the client can cancel it.
    fn register_request(&self) -> Result<RequestGuard, Fault> {
        self.session.begin_request(self.id, self.context.engine.clock().now()).ok_or_else(|| {
            Fault::new(400, code::INVALID_REQUEST, format!("the id `{}` is in use by a request that is not answered yet", self.id))
        })
    }

    /// Counts one more waiting request; a fault at the limit.
    fn wait_permit(&self) -> Result<CallerPermit, Fault> {
        let max = self.context.config.waiting_requests_per_caller;
        let busy = || {
            Fault::busy(format!(
                "{max} of your requests are waiting already (configuration key `waiting_requests_per_caller`): try again in a second"
            ))
        };
        self.context.wait_permit(&self.session.caller).ok_or_else(busy)
    }

    /// The response after a stream has ended: nothing more, or why it could not begin.
    fn stream_reply(&self, ended: Result<bool, StreamEnd>, request: RequestGuard) -> Result<Reply, Fault> {
        if matches!(ended, Ok(true)) {
            if !request.is_cancelled() {
                self.counted.answered(Answer::Held);
            }
            request.responded();
        }
        match ended {
            Ok(_) | Err(StreamEnd::Gone) => Ok(Reply::new(200, Vec::new())),
            Err(StreamEnd::Fault(fault)) => Err(fault),
        }
    }

    /// Waits until the task has ended; none if the request was cancelled before.
    async fn wait_until_ended(&self, id: TaskId, request: &RequestGuard) -> Result<Option<Arc<Task>>, Fault> {
        let engine = &self.context.engine;
        let watch = engine.watch(vec![id], false);
        loop {
            let not_found = || engine::Error::Rejected(taskwire_core::task::Reject::NotFound);
            let task = engine.read_when_back(|| engine.task(&self.session.caller, id)).await?.ok_or_else(not_found)?;
            if task.ended.is_some() {
                return Ok(Some(task));
            }
            tokio::select! {
                _ = watch.changed() => {}
                () = request.cancelled() => return Ok(None),
                () = self.session.ended() => return Err(no_session()),
                () = self.context.shutdown_began() => return Err(engine::Error::Unavailable("it is shutting down".into()).into()),
            }
        }
    }
}

/// Whether other messages than the response may be sent for this message.
pub(crate) fn may_stream(message: &IncomingMessage) -> bool {
    message.id.is_some() && matches!(message.method.as_deref(), Some("tools/call" | "tasks/result"))
}

pub(crate) fn is_initialize(message: &IncomingMessage) -> bool {
    message.id.is_some() && message.method.as_deref() == Some("initialize")
}

pub(crate) async fn initialize(
    context: &Arc<Context>,
    message: &IncomingMessage,
    bytes: &[u8],
    origin: MessageSource<'_>,
) -> (Reply, Option<Arc<Session>>) {
    context.engine.metrics().request(metrics::Era::Legacy, message.method.as_deref());
    let Some(id) = &message.id else { return (Reply::accepted(), None) };
    let span = RequestSpan::begin(&context.engine, "initialize", id, message.params(bytes).unwrap_or("{}"), origin.channel.trace());
    match open_session(context, message, bytes, origin).await {
        Ok(session) => {
            let result = handshake::result(context, &session.terms());
            let mut reply = Reply::result(id, &result.end());
            reply.session = Some(session.id.clone());
            (reply, Some(session))
        }
        Err(fault) => {
            span.failed(&fault);
            (Reply::fault(Some(id), &fault), None)
        }
    }
}

async fn open_session(
    context: &Arc<Context>,
    message: &IncomingMessage,
    bytes: &[u8],
    origin: MessageSource<'_>,
) -> Result<Arc<Session>, Fault> {
    context.authorize(origin.identity, "initialize", None)?;
    let caller = &origin.identity.caller;
    context.admit_request(caller)?;
    let already = match origin.channel {
        Channel::Http { session: None, .. } => false,
        Channel::Http { session: Some(name), .. } => {
            context.sessions.find(context, caller, name).await?;
            true
        }
        Channel::ByteStream(session) => session.is_some_and(|session| !session.is_ended()),
    };
    if already {
        return Err(Fault::new(400, code::INVALID_REQUEST, "the session has been initialized already: `initialize` comes once"));
    }
    let agreed = handshake::negotiate(message.params(bytes).unwrap_or("{}"))?;
    context.sessions.open(context, caller, agreed).await
}

/// Responds to one message of a session, read from `bytes`.
pub(crate) async fn handle(context: &Arc<Context>, message: &IncomingMessage, bytes: &[u8], origin: MessageSource<'_>) -> Reply {
    context.engine.metrics().request(metrics::Era::Legacy, message.method.as_deref());
    let found;
    let MessageSource { identity, channel, out } = origin;
    let span = &match admit(context, message, bytes, &identity.caller, channel.trace()) {
        Ok(span) => span,
        Err(reply) => return reply,
    };
    let within = match channel {
        Channel::Http { session, version, accepts_sse: events, .. } => match find(context, &identity.caller, session, version).await {
            Ok(session) => {
                found = session;
                SessionContext { session: &found, identity, out, can_stream: events, can_reconnect: true, span }
            }
            Err(fault) => return failed(message, span, fault),
        },
        Channel::ByteStream(Some(session)) if !session.is_ended() => {
            session.touch(context);
            SessionContext { session, identity, out, can_stream: true, can_reconnect: false, span }
        }
        // `ping` is allowed before there is a session.
        Channel::ByteStream(_) if message.method.as_deref() == Some("ping") => {
            return message.id.as_ref().map_or_else(Reply::accepted, |id| Reply::result(id, b"{}"));
        }
        Channel::ByteStream(_) => return failed(message, span, no_session()),
    };
    handle_in_session(context, message, bytes, within).await
}

/// The session of a message, and the way back to the client.
#[derive(Clone, Copy)]
struct SessionContext<'a> {
    session: &'a Arc<Session>,
    identity: &'a Identity,
    out: &'a MessageSink,
    /// Whether other messages than the response may be sent.
    can_stream: bool,
    /// Whether a client that hangs up can resume the stream.
    can_reconnect: bool,
    span: &'a RequestSpan,
}

/// Begins the span of a message, and counts it if it is a request; the error is the response to one that comes too fast.
fn admit(
    context: &Context,
    message: &IncomingMessage,
    bytes: &[u8],
    caller: &CallerId,
    trace: TraceHeaders<'_>,
) -> Result<RequestSpan, Reply> {
    let (Some(method), Some(id)) = (&message.method, &message.id) else { return Ok(RequestSpan::default()) };
    let span = RequestSpan::begin(&context.engine, method, id, message.params(bytes).unwrap_or("{}"), trace);
    context.admit_request(caller).map_err(|fault| failed(message, &span, fault))?;
    Ok(span)
}

/// The error for a message that is not carried out. One for a response has no id.
fn failed(message: &IncomingMessage, span: &RequestSpan, fault: Fault) -> Reply {
    span.failed(&fault);
    Reply::fault(message.id.as_ref().filter(|_| message.method.is_some()), &legacy_fault(fault))
}

async fn handle_in_session(context: &Arc<Context>, message: &IncomingMessage, bytes: &[u8], within: SessionContext<'_>) -> Reply {
    let SessionContext { session, identity, out, can_stream: events, can_reconnect: detaches, span } = within;
    let method = message.method.as_deref();
    // A call needs the scopes of its tool, too.
    if method != Some("tools/call")
        && let Err(fault) = context.authorize(identity, method.unwrap_or_default(), None)
    {
        return failed(message, span, fault);
    }
    let text = message.params(bytes).unwrap_or("{}");
    let answered = match (method, &message.id) {
        (None, id) => take_answer(context, session, id.as_ref(), bytes).await,
        (Some(method), None) => {
            on_notification(context, session, method, text);
            Ok(Reply::accepted())
        }
        (Some(method), Some(id)) => {
            let counted = context.engine.metrics().call(metrics::Era::Legacy);
            let cx =
                Cx { context, session, identity, id, raw_params: text, out, can_stream: events, can_reconnect: detaches, span, counted };
            handle_request(&cx, method).await
        }
    };
    answered.unwrap_or_else(|fault| failed(message, span, fault))
}

async fn handle_request(cx: &Cx<'_>, method: &str) -> Result<Reply, Fault> {
    let tasks = cx.session.terms().has_tasks();
    let object = match method {
        "ping" => Object::open(),
        "tools/call" => return call::call(cx).await.inspect_err(|_| cx.counted.answered(Answer::Error)),
        "tasks/result" if tasks => return tasks::result(cx).await,
        "tasks/get" if tasks => tasks::get(cx).await?,
        "tasks/cancel" if tasks => tasks::cancel(cx).await?,
        "tasks/list" if tasks && cx.context.config.legacy.list_tasks => tasks::list(cx).await?,
        "tools/list" => catalog::tools(cx)?,
        "prompts/get" => catalog::prompt(cx).await?,
        "resources/read" => catalog::read(cx).await?,
        "resources/subscribe" => catalog::subscribe(cx, true).await?,
        "resources/unsubscribe" => catalog::subscribe(cx, false).await?,
        "completion/complete" => catalog::complete(cx).await?,
        "logging/setLevel" => catalog::set_level(cx).await?,
        _ => catalog::list(cx, method)
            .unwrap_or_else(|| Err(Fault::new(200, code::METHOD_NOT_FOUND, format!("there is no method `{method}`"))))?,
    };
    Ok(cx.reply(object))
}

async fn find(context: &Arc<Context>, caller: &CallerId, session: Option<&str>, version: Option<&str>) -> Result<Arc<Session>, Fault> {
    let name = session.ok_or_else(no_session)?;
    if let Some(version) = version.filter(|version| !VERSIONS.contains(version)) {
        let message = format!("the protocol version `{version}` is not spoken in sessions: use {}", VERSIONS.join(" or "));
        return Err(Fault::new(400, code::INVALID_REQUEST, message));
    }
    context.sessions.find(context, caller, name).await
}

fn no_session() -> Fault {
    Fault::bad_request(
        "this message belongs to no session: begin with `initialize` and name the session from then on (over HTTP in `Mcp-Session-Id`), \
         or say in `_meta` of each request `io.modelcontextprotocol/protocolVersion` (such as \"2026-07-28\") and \
         `io.modelcontextprotocol/clientCapabilities`",
    )
}

fn on_notification(context: &Context, session: &Arc<Session>, method: &str, text: &str) {
    if method == "notifications/cancelled"
        && let Some(Cancellation { request_id, timed_out }) = Cancellation::read(text)
    {
        session.cancel_request(context, &request_id, timed_out);
        super::on_cancelled(context, &session.caller, None, text);
    }
}

async fn take_answer(context: &Arc<Context>, session: &Arc<Session>, id: Option<&RequestId>, bytes: &[u8]) -> Result<Reply, Fault> {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(default)]
        result: Option<Payload>,
        #[serde(default)]
        error: Option<RpcError>,
    }
    let never = || Fault::new(400, code::INVALID_REQUEST, "this answers a question that was never asked");
    let (task, times, key) = id.and_then(parse_question_id).ok_or_else(never)?;
    // A client does not send its response again, so this waits for a store that cannot be reached.
    let known = context.engine.read_when_back(|| context.engine.task(&session.caller, task)).await?.ok_or_else(never)?;
    let key = QuestionKey::new(key);
    let input = known.questions.get(&key).ok_or_else(never)?;
    let is_open = input.answer.is_none() && known.outcome.is_none();
    let invalid = |message: String| Fault::new(400, code::INVALID_REQUEST, message);
    let Answer { result, error } = serde_json::from_slice(bytes).map_err(|error| invalid(format!("not a response: {error}")))?;
    let answer = match (result, error) {
        (None, Some(error)) => json!({REFUSED: error}).into(),
        // A late answer is accepted, and changes nothing.
        (Some(result), None) if !is_open => result,
        (Some(result), None) => match check_answer(&input.request, result) {
            Ok(answer) => answer,
            Err(why) => {
                let then = match ask_again(context, session, &known, (&key, times), &why).await? {
                    true => "the question stays open",
                    false => "it was asked often enough, and the call goes on without an answer",
                };
                let message = format!("the answer to `{}` does not fit its question: {why}; {then}", key.as_str());
                return Err(Fault::new(400, code::INVALID_PARAMS, message));
            }
        },
        _ => return Err(invalid("a response has an object as its `result`, or an `error`, and not both".to_owned())),
    };
    let command = Command::Answer(vec![(key.clone(), answer)]);
    let answered = context.engine.submit_when_back(task, Authority::Caller(session.caller.clone()), command).await;
    match answered {
        // The task may have ended meanwhile.
        Ok(_) | Err(engine::Error::Rejected(taskwire_core::task::Reject::Ended)) => {
            // Only now: until the answer is stored, the question must be asked again after a reconnect.
            session.forget_question(task, &key);
            session.unshare_reask(context, task, &key).await?;
            Ok(Reply::accepted())
        }
        Err(engine::Error::Rejected(reject)) => {
            ask_again(context, session, &known, (&key, times), &reject.to_string()).await?;
            Err(invalid(reject.to_string()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Asks a question again after an answer that does not fit, because its client will not answer the same request twice. A hidden task has
/// nobody else to answer it, so after some attempts its tool gets an error and decides. Says whether the question stays open.
async fn ask_again(
    context: &Context,
    session: &Session,
    task: &Task,
    (key, times): (&QuestionKey, u32),
    why: &str,
) -> Result<bool, engine::Error> {
    if session.ask_again(task, key, times, why) || !task.spec.hidden {
        session.share_reask(context, task.id, key).await?;
        return Ok(true);
    }
    let error = RpcError { code: code::INVALID_PARAMS, message: format!("none of its answers fits the question: {why}"), data: None };
    let command = Command::Answer(vec![(key.clone(), json!({REFUSED: error}).into())]);
    context.engine.submit(task.id, Authority::Caller(session.caller.clone()), command).await?;
    session.forget_question(task.id, key);
    session.unshare_reask(context, task.id, key).await?;
    Ok(false)
}

/// What a GET opens: the session stream, or the rest of a stream that was cut off.
pub(crate) struct GetStream {
    session: Arc<Session>,
    _permit: Option<Arc<CallerPermit>>,
    target: GetTarget,
}

enum GetTarget {
    Session(Option<SessionCursor>),
    /// The rest of a task stream.
    Task(TaskStreamId, StreamCursor, Arc<Task>),
    /// The task is gone, and the stream only says so.
    Expired(TaskStreamId),
}

/// Opens what a GET asks for; none if nothing is left to be sent.
pub(crate) async fn open_get_stream(
    context: &Arc<Context>,
    identity: &Identity,
    session: Option<&str>,
    version: Option<&str>,
    last: Option<&str>,
) -> Result<Option<GetStream>, Fault> {
    let caller = &identity.caller;
    context.admit_to_memory()?;
    let session = find(context, caller, session, version).await?;
    let unknown = || Fault::bad_request("`Last-Event-ID` is not an event id of this session");
    let from = match last.map(|id| EventId::parse(&session.id, id).ok_or_else(unknown)).transpose()? {
        None => GetTarget::Session(None),
        Some(EventId::Session(from)) => GetTarget::Session(Some(from)),
        Some(EventId::Task(stream, at)) => match resumable_task(context, identity, &stream).await? {
            _ if at == StreamCursor::END => return Ok(None),
            task if session.request_cancelled(&stream.request).is_some() => {
                let stopped = session.request_cancelled(&stream.request) == Some(true);
                if let Some(task) = task.filter(|task| stopped && stream.kind == StreamKind::Call && task.ended.is_none()) {
                    context.calls.stop(context, caller, task.id);
                }
                return Ok(None);
            }
            None => GetTarget::Expired(stream),
            Some(task) if task_stream::is_answered(&stream, at, &task) => return Ok(None),
            Some(task) => GetTarget::Task(stream, at, task),
        },
    };
    let (open, key) = match &from {
        GetTarget::Session(_) => (session.session_stream_permit(context), "streams_per_caller"),
        // The running call has a permit already.
        GetTarget::Task(stream, ..) if stream.kind == StreamKind::Call && session.is_request_running(&stream.request) => {
            return Ok(Some(GetStream { session, _permit: None, target: from }));
        }
        _ => (context.wait_permit(caller).map(Arc::new), "waiting_requests_per_caller"),
    };
    let busy = || Fault::busy(format!("you have too many streams open already (configuration key `{key}`): try again in a second"));
    Ok(Some(GetStream { session, _permit: Some(open.ok_or_else(busy)?), target: from }))
}

/// The task of a stream that its client comes back to, whose request the caller's scopes must allow. Anybody can write an event id: who says
/// that it is of a call needs the scopes of that call and, if a client knows the task, those of its result too.
async fn resumable_task(context: &Arc<Context>, identity: &Identity, stream: &TaskStreamId) -> Result<Option<Arc<Task>>, Fault> {
    const RESULT: &str = "tasks/result";
    if stream.kind == StreamKind::Result {
        context.authorize(identity, RESULT, None)?;
    }
    let task = context.engine.task(&identity.caller, stream.task).await?;
    if let Some(task) = task.as_ref().filter(|_| stream.kind != StreamKind::Result) {
        context.authorize(identity, "tools/call", Some(&task.spec.tool))?;
        if !task.spec.hidden {
            context.authorize(identity, RESULT, None)?;
        }
    }
    Ok(task)
}

impl GetStream {
    /// Sends messages until the stream ends.
    pub(crate) async fn run(self, context: &Arc<Context>, out: &MessageSink) {
        // If the client is gone, there is nothing left to do.
        let _ = match self.target {
            GetTarget::Session(from) => {
                session_stream::run(context, &self.session, out, from).await;
                Ok(())
            }
            GetTarget::Task(stream, at, task) => {
                let plain = stream.kind == StreamKind::Call;
                let request = self.session.join_request(&stream.request, context.engine.clock().now());
                if let Some(request) = request.as_ref().filter(|_| plain) {
                    request.set_task(&task);
                }
                // A task with an idempotency key needs nobody to wait for it.
                let waiter = if plain && task.spec.idempotency_key.is_none() {
                    Some(Waiter::resume(context, request.as_ref().and_then(RequestGuard::waiting_call), &task).await)
                } else {
                    None
                };
                if let (Some(request), Some(waiter)) = (&request, &waiter) {
                    request.set_waiter(waiter);
                }
                let made = request.as_ref().and_then(RequestGuard::call_start);
                let began = made.as_ref().map_or(task.created_at, |(began, _)| *began);
                let hold = Hold::resume(context, &task, began, self.session.terms().accepts, out.token_expires()).filter(|_| plain);
                // A request that is not remembered had the task's own token, if this session made the task.
                let own = task.spec.outbox.as_ref().is_some_and(|follower| follower.session == self.session.id);
                let token = match made {
                    Some((_, token)) => token,
                    None => outcome::progress_token(&task).filter(|_| own),
                };
                let task_stream = TaskStream::new(context, &self.session, out, stream, Some(at), &task).with_hold(hold, token.as_ref());
                let task_stream = match waiter {
                    Some(waiter) => task_stream.for_waiter(waiter),
                    None => task_stream,
                };
                let ended = match &request {
                    Some(request) => task_stream.for_request(request).run().await,
                    None => task_stream.run().await,
                };
                if let Some(request) = request.filter(|_| plain) {
                    if request.stops_work() {
                        context.engine.cancel_in_order(self.session.caller.clone(), task.id, CANCELLED_BY_CALLER);
                    }
                    if matches!(ended, Ok(true)) {
                        request.responded();
                    }
                }
                ended.map(drop)
            }
            GetTarget::Expired(stream) => task_stream::send_fault(&self.session, out, &stream, task_stream::task_expired(&stream)).await,
        };
    }
}

/// Sends a session on a byte stream what is in its outbox, until the session ends.
pub(crate) async fn run_session_stream(context: &Arc<Context>, session: &Arc<Session>, out: &MessageSink) {
    session_stream::run(context, session, out, None).await;
}

/// The fault with error codes that this era has.
fn legacy_fault(mut fault: Fault) -> Fault {
    if fault.error.code == code::MISSING_CAPABILITY {
        fault.error.code = code::INVALID_REQUEST;
        fault.status = 200;
    }
    fault
}

/// How long a call of a tool runs before it becomes a task.
fn promote_after(context: &Context, tool: &str) -> Duration {
    let own = context.provider.tool(tool).and_then(|tool| tool.0.policy.promote_after);
    own.unwrap_or(context.config.promote_after)
}

/// Sends the event id from which a client can resume, and when it should. Clients of the earlier versions take every event for a message:
/// for them, a comment begins the stream.
async fn send_priming_event(out: &MessageSink, agreed: &SessionTerms, event_id: &str, retry: Option<Duration>) -> Result<(), ClientGone> {
    if !agreed.has_priming_events() {
        return out.send_framed(":\n".into()).await;
    }
    let retry = retry.map(|span| format!("retry: {}\n", span.as_millis())).unwrap_or_default();
    out.send_framed(format!("id: {event_id}\n{retry}data: \n\n").into()).await
}
