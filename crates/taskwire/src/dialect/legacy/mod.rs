//! The legacy era: 2025-11-25 with its core tasks, and the two versions before it. A client opens a session, and both sides
//! remember it.
//!
//! Start with [`answer`]. Every stream is a reading of a log from a place on (`tail` for one task, `standing` for all of a
//! session); an event id is such a place (`place`).

mod batch;
mod call;
mod catalog;
mod handshake;
mod live;
mod modes;
mod outcome;
mod place;
mod session;
mod standing;
mod streamed;
mod tail;
mod tasks;
mod view;

use std::{sync::Arc, time::Duration};

use serde::Deserialize;
use serde_json::json;
use taskwire_core::{
    CallerId, InputKey, Payload, TaskId,
    task::{Authority, Command, RpcError, Task},
    wire::{Incoming, RequestId, code},
};

pub(crate) use self::{
    batch::batch,
    session::{Session, Sessions},
};
use self::{
    live::{CALLED_OFF, Request},
    place::{At, Kind, Place, Standing, Stream, question_of},
    session::Agreed,
    tail::{Ended, Tail},
};
use super::{
    Context, Fault, Gone, Open, Outbox, Reply,
    call::{Cancelled, held::Hold, waiter::Waiter},
    json::Object,
};
use crate::{
    engine,
    tool::{REFUSED, fitting},
};

/// The versions that this dialect speaks, the latest first.
const VERSIONS: [&str; 3] = ["2025-11-25", "2025-06-18", "2025-03-26"];

/// Where a message came from, and the way back.
pub(crate) struct Origin<'a> {
    pub(crate) caller: &'a CallerId,
    pub(crate) way: Way<'a>,
    pub(crate) out: &'a Outbox,
}

/// The way that a message came.
#[derive(Clone, Copy)]
pub(crate) enum Way<'a> {
    /// With headers.
    Http {
        /// `Mcp-Session-Id`.
        session: Option<&'a str>,
        /// `MCP-Protocol-Version`.
        version: Option<&'a str>,
        /// Whether the client takes an event stream for an answer.
        events: bool,
    },
    /// On a byte stream, which has one session at most.
    Stream(Option<&'a Arc<Session>>),
}

/// One request of a session.
struct Cx<'a> {
    shared: &'a Arc<Context>,
    session: &'a Arc<Session>,
    id: &'a RequestId,
    /// The parameters as they came.
    text: &'a str,
    out: &'a Outbox,
    /// Whether there may be more messages than the response.
    events: bool,
    /// Whether a client that goes away means to come back.
    detaches: bool,
}

impl Cx<'_> {
    /// Reads parameters.
    fn read<'p, T: Deserialize<'p>>(&'p self) -> Result<T, Fault> {
        serde_json::from_str(self.text).map_err(|error| Fault::params(format!("invalid params: {error}")))
    }

    fn reply(&self, result: Object) -> Reply {
        Reply::result(self.id, &result.end())
    }

    /// Notes the request, so that it can be called off.
    fn begin(&self) -> Result<Request, Fault> {
        self.session.begin(self.id).ok_or_else(|| {
            Fault::new(400, code::INVALID_REQUEST, format!("the id `{}` is in use by a request that is not answered yet", self.id))
        })
    }

    /// One more request that waits, if there is room for it.
    fn waits(&self) -> Result<Open, Fault> {
        let max = self.shared.config.waits_per_caller;
        let busy = || {
            Fault::busy(format!("{max} of your requests are waiting already (configuration key `waits_per_caller`): try again in a second"))
        };
        self.shared.open_wait(&self.session.caller).ok_or_else(busy)
    }

    /// What is left to say when a stream has ended: nothing, or why it could not begin.
    fn streamed(&self, ended: Result<bool, Ended>, request: Request) -> Result<Reply, Fault> {
        if matches!(ended, Ok(true)) {
            request.answered();
        }
        match ended {
            Ok(_) | Err(Ended::Gone) => Ok(Reply::new(200, Vec::new())),
            Err(Ended::Fault(fault)) => Err(fault),
        }
    }

    /// The task when it has ended; nothing if the request was called off before. Such a wait ends with the server.
    async fn until_ended(&self, id: TaskId, request: &Request) -> Result<Option<Arc<Task>>, Fault> {
        let engine = &self.shared.engine;
        let watch = engine.watch(vec![id], false);
        loop {
            let not_found = || engine::Error::Rejected(taskwire_core::task::Reject::NotFound);
            let task = engine.task(&self.session.caller, id)?.ok_or_else(not_found)?;
            if task.ended.is_some() {
                return Ok(Some(task));
            }
            tokio::select! {
                _ = watch.changed() => {}
                () = request.off() => return Ok(None),
                () = self.session.over() => return Err(no_session()),
                () = self.shared.drained() => return Err(engine::Error::Unavailable("it is shutting down".into()).into()),
            }
        }
    }
}

/// Whether more than the response may come in answer to this message.
pub(crate) fn streams(message: &Incoming) -> bool {
    message.id.is_some() && matches!(message.method.as_deref(), Some("tools/call" | "tasks/result"))
}

/// Whether this message begins a session.
pub(crate) fn begins(message: &Incoming) -> bool {
    message.id.is_some() && message.method.as_deref() == Some("initialize")
}

/// Begins a session.
pub(crate) async fn begin(shared: &Arc<Context>, message: &Incoming, bytes: &[u8], origin: Origin<'_>) -> (Reply, Option<Arc<Session>>) {
    let Some(id) = &message.id else { return (Reply::accepted(), None) };
    match handshake(shared, message, bytes, origin).await {
        Ok(session) => {
            let result = handshake::result(shared, &session.agreed());
            let mut reply = Reply::result(id, &result.end());
            reply.session = Some(session.id.clone());
            (reply, Some(session))
        }
        Err(fault) => (Reply::fault(Some(id), &fault), None),
    }
}

async fn handshake(shared: &Arc<Context>, message: &Incoming, bytes: &[u8], origin: Origin<'_>) -> Result<Arc<Session>, Fault> {
    let already = match origin.way {
        Way::Http { session, .. } => session.map(|name| shared.sessions.find(shared, origin.caller, name)).transpose()?.is_some(),
        Way::Stream(session) => session.is_some_and(|session| !session.is_over()),
    };
    if already {
        return Err(Fault::new(400, code::INVALID_REQUEST, "the session has been initialized already: `initialize` comes once"));
    }
    let agreed = handshake::agree(message.params(bytes).unwrap_or("{}"))?;
    shared.sessions.open(shared, origin.caller, agreed).await
}

/// Answers one message of a session, read from `bytes`.
pub(crate) async fn answer(shared: &Arc<Context>, message: &Incoming, bytes: &[u8], origin: Origin<'_>) -> Reply {
    let found;
    let place = match origin.way {
        Way::Http { session, version, events } => match find(shared, origin.caller, session, version) {
            Ok(session) => {
                found = session;
                In { session: &found, out: origin.out, events, detaches: true }
            }
            Err(fault) => return refused(message, fault),
        },
        Way::Stream(Some(session)) if !session.is_over() => {
            session.touch(shared);
            In { session, out: origin.out, events: true, detaches: false }
        }
        // So much is allowed before there is a session.
        Way::Stream(_) if message.method.as_deref() == Some("ping") => {
            return message.id.as_ref().map_or_else(Reply::accepted, |id| Reply::result(id, b"{}"));
        }
        Way::Stream(_) => return refused(message, no_session()),
    };
    answer_in(shared, message, bytes, place).await
}

/// Where a message belongs, and how it can be answered.
#[derive(Clone, Copy)]
struct In<'a> {
    session: &'a Arc<Session>,
    out: &'a Outbox,
    /// Whether there may be more messages than the response.
    events: bool,
    /// Whether a client that goes away means to come back.
    detaches: bool,
}

/// The answer to a message that is not carried out: a response has no name to be repeated.
fn refused(message: &Incoming, fault: Fault) -> Reply {
    Reply::fault(message.id.as_ref().filter(|_| message.method.is_some()), &downgraded(fault))
}

async fn answer_in(shared: &Arc<Context>, message: &Incoming, bytes: &[u8], place: In<'_>) -> Reply {
    let In { session, out, events, detaches } = place;
    let text = message.params(bytes).unwrap_or("{}");
    let answered = match (message.method.as_deref(), &message.id) {
        (None, id) => take_answer(shared, session, id.as_ref(), bytes).await,
        (Some(method), None) => {
            notified(shared, session, method, text);
            Ok(Reply::accepted())
        }
        (Some(method), Some(id)) => request(&Cx { shared, session, id, text, out, events, detaches }, method).await,
    };
    answered.unwrap_or_else(|fault| refused(message, fault))
}

async fn request(cx: &Cx<'_>, method: &str) -> Result<Reply, Fault> {
    let tasks = cx.session.agreed().has_tasks();
    let object = match method {
        "ping" => Object::open(),
        "tools/call" => return call::call(cx).await,
        "tasks/result" if tasks => return tasks::result(cx).await,
        "tasks/get" if tasks => tasks::get(cx)?,
        "tasks/cancel" if tasks => tasks::cancel(cx).await?,
        "tasks/list" if tasks && cx.shared.config.legacy.list_tasks => tasks::list(cx)?,
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

/// The session that a request over HTTP names.
fn find(shared: &Arc<Context>, caller: &CallerId, session: Option<&str>, version: Option<&str>) -> Result<Arc<Session>, Fault> {
    let name = session.ok_or_else(no_session)?;
    if let Some(version) = version.filter(|version| !VERSIONS.contains(version)) {
        let message = format!("the protocol version `{version}` is not spoken in sessions: use {}", VERSIONS.join(" or "));
        return Err(Fault::new(400, code::INVALID_REQUEST, message));
    }
    shared.sessions.find(shared, caller, name)
}

fn no_session() -> Fault {
    Fault::meta(
        "this message belongs to no session: begin with `initialize` and name the session from then on (over HTTP in `Mcp-Session-Id`), \
         or say in `_meta` of each request `io.modelcontextprotocol/protocolVersion` (such as \"2026-07-28\") and \
         `io.modelcontextprotocol/clientCapabilities`",
    )
}

fn notified(shared: &Context, session: &Arc<Session>, method: &str, text: &str) {
    if method == "notifications/cancelled"
        && let Some(Cancelled { request_id, timed_out }) = Cancelled::read(text)
    {
        session.call_off(shared, &request_id, timed_out);
        super::cancelled(shared, &session.caller, None, text);
    }
}

/// Takes the answer to a question.
async fn take_answer(shared: &Arc<Context>, session: &Arc<Session>, id: Option<&RequestId>, bytes: &[u8]) -> Result<Reply, Fault> {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(default)]
        result: Option<Payload>,
        #[serde(default)]
        error: Option<RpcError>,
    }
    let never = || Fault::new(400, code::INVALID_REQUEST, "this answers a question that was never asked");
    let (task, times, key) = id.and_then(question_of).ok_or_else(never)?;
    let known = shared.engine.task(&session.caller, task)?.ok_or_else(never)?;
    let key = InputKey::new(key);
    let input = known.inputs.get(&key).ok_or_else(never)?;
    let is_open = input.answer.is_none() && known.outcome.is_none();
    let invalid = |message: String| Fault::new(400, code::INVALID_REQUEST, message);
    let Answer { result, error } = serde_json::from_slice(bytes).map_err(|error| invalid(format!("not a response: {error}")))?;
    let answer = match (result, error) {
        (None, Some(error)) => json!({REFUSED: error}).into(),
        // What comes too late is taken as it is, and changes nothing.
        (Some(result), None) if !is_open => result,
        (Some(result), None) => match fitting(&input.request, result) {
            Ok(answer) => answer,
            Err(why) => {
                let then = match ask_again(shared, session, &known, (&key, times), &why).await? {
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
    let answered = shared.engine.submit(task, Authority::Caller(session.caller.clone()), command).await;
    match answered {
        // Or nobody waits for it any more.
        Ok(_) | Err(engine::Error::Rejected(taskwire_core::task::Reject::Ended)) => {
            // Not before: else it could be asked once more.
            session.answered(task, &key);
            Ok(Reply::accepted())
        }
        Err(engine::Error::Rejected(reject)) => {
            ask_again(shared, session, &known, (&key, times), &reject.to_string()).await?;
            Err(invalid(reject.to_string()))
        }
        Err(error) => Err(error.into()),
    }
}

/// What came is no answer, so its question is asked again: its client will not respond to it once more. A call that nobody else can
/// answer for does not wait for ever for a client that cannot: in the end its tool is told so, and decides. Says whether the question
/// stays open.
async fn ask_again(
    shared: &Context,
    session: &Session,
    task: &Task,
    (key, times): (&InputKey, u32),
    why: &str,
) -> Result<bool, engine::Error> {
    if session.ask_again(task, key, times, why) || !task.spec.hidden {
        return Ok(true);
    }
    let error = RpcError { code: code::INVALID_PARAMS, message: format!("none of its answers fits the question: {why}"), data: None };
    let command = Command::Answer(vec![(key.clone(), json!({REFUSED: error}).into())]);
    shared.engine.submit(task.id, Authority::Caller(session.caller.clone()), command).await?;
    session.answered(task.id, key);
    Ok(false)
}

/// What a GET asks for: to be told what happens in a session, or the rest of a stream that was cut off.
pub(crate) struct Listening {
    session: Arc<Session>,
    /// Counts against what the caller may have open.
    _open: Option<Arc<Open>>,
    from: Since,
}

enum Since {
    /// What happens in the session, from a place on.
    Standing(Option<Standing>),
    /// What is left of a stream.
    Task(Stream, At, Arc<Task>),
    /// Of a stream nothing is left but to say so.
    Expired(Stream),
}

/// Begins to listen, if that is possible; nothing if there is nothing left to be told.
pub(crate) fn listen(
    shared: &Arc<Context>,
    caller: &CallerId,
    session: Option<&str>,
    version: Option<&str>,
    last: Option<&str>,
) -> Result<Option<Listening>, Fault> {
    let session = find(shared, caller, session, version)?;
    let unknown = || Fault::meta("`Last-Event-ID` is not the name of an event of this session");
    let from = match last.map(|id| Place::parse(&session.id, id).ok_or_else(unknown)).transpose()? {
        None => Since::Standing(None),
        Some(Place::Standing(from)) => Since::Standing(Some(from)),
        Some(Place::Task(stream, at)) => match shared.engine.task(caller, stream.task)? {
            _ if at == At::END => return Ok(None),
            task if session.called_off(&stream.request).is_some() => {
                let stopped = session.called_off(&stream.request) == Some(true);
                if let Some(task) = task.filter(|task| stopped && stream.kind == Kind::Call && task.ended.is_none()) {
                    shared.calls.stop(shared, caller, task.id);
                }
                return Ok(None);
            }
            None => Since::Expired(stream),
            Some(task) if tail::is_over(&stream, at, &task) => return Ok(None),
            Some(task) => Since::Task(stream, at, task),
        },
    };
    let (open, key) = match &from {
        Since::Standing(_) => (session.stands_open(shared), "listens_per_caller"),
        // It has its place already.
        Since::Task(stream, ..) if stream.kind == Kind::Call && session.is_running(&stream.request) => {
            return Ok(Some(Listening { session, _open: None, from }));
        }
        _ => (shared.open_wait(caller).map(Arc::new), "waits_per_caller"),
    };
    let busy = || Fault::busy(format!("you have too many streams open already (configuration key `{key}`): try again in a second"));
    Ok(Some(Listening { session, _open: Some(open.ok_or_else(busy)?), from }))
}

impl Listening {
    /// Says what there is to say, for as long as there is.
    pub(crate) async fn run(self, shared: &Arc<Context>, out: &Outbox) {
        // Who went away meanwhile need not be told anything.
        let _ = match self.from {
            Since::Standing(from) => {
                standing::stand(shared, &self.session, out, from).await;
                Ok(())
            }
            Since::Task(stream, at, task) => {
                let (plain, request) = (stream.kind == Kind::Call, self.session.join(&stream.request));
                if let Some(request) = request.as_ref().filter(|_| plain) {
                    request.makes(&task);
                }
                // What has a key needs nobody to wait for it.
                let waiter = (plain && task.spec.idempotency_key.is_none())
                    .then(|| Waiter::again(shared, request.as_ref().and_then(Request::waiting), &task));
                if let (Some(request), Some(waiter)) = (&request, &waiter) {
                    request.waits(waiter);
                }
                let made = request.as_ref().and_then(Request::made);
                let began = made.as_ref().map_or(task.created_at, |(began, _)| *began);
                let hold = Hold::resume(shared, &task, began, self.session.agreed().accepts).filter(|_| plain);
                // What nobody here remembers was as the task was made, if it was made here.
                let own = task.spec.follower.as_ref().is_some_and(|follower| follower.session == self.session.id);
                let token = match made {
                    Some((_, token)) => token,
                    None => outcome::progress_token(&task).filter(|_| own),
                };
                let tail = Tail::new(shared, &self.session, out, stream, Some(at), &task).holding(hold, token.as_ref());
                let tail = match waiter {
                    Some(waiter) => tail.answering(waiter),
                    None => tail,
                };
                let ended = match &request {
                    Some(request) => tail.of(request).run().await,
                    None => tail.run().await,
                };
                if let Some(request) = request.filter(|_| plain) {
                    if request.stops() {
                        shared.engine.call_off(self.session.caller.clone(), task.id, CALLED_OFF);
                    }
                    if matches!(ended, Ok(true)) {
                        request.answered();
                    }
                }
                ended.map(drop)
            }
            Since::Expired(stream) => tail::fail(&self.session, out, &stream, tail::forgotten(&stream)).await,
        };
    }
}

/// Tells a session on a byte stream what happens, for as long as it lasts.
pub(crate) async fn stand(shared: &Arc<Context>, session: &Arc<Session>, out: &Outbox) {
    standing::stand(shared, session, out, None).await;
}

/// Ends a session.
pub(crate) async fn end(shared: &Arc<Context>, caller: &CallerId, session: Option<&str>, version: Option<&str>) -> Result<(), Fault> {
    let session = find(shared, caller, session, version)?;
    Ok(shared.sessions.end_now(shared, &session.id).await?)
}

/// Ends the session of a byte stream that has ended.
pub(crate) async fn end_stream(shared: &Arc<Context>, session: &Arc<Session>) {
    if let Err(error) = shared.sessions.end_now(shared, &session.id).await {
        tracing::warn!(%error, "the end of a session could not be stored");
    }
}

/// A fault in codes that this era knows.
fn downgraded(mut fault: Fault) -> Fault {
    if fault.error.code == code::MISSING_CAPABILITY {
        fault.error.code = code::INVALID_REQUEST;
        fault.status = 200;
    }
    fault
}

/// How long a call of a tool may take before something else than its result is said.
fn promote_after(shared: &Context, tool: &str) -> Duration {
    let own = shared.provider.tool(tool).and_then(|tool| tool.0.policy.promote_after);
    own.unwrap_or(shared.config.promote_after)
}

/// Gives a client a place to come back to, and says when. One of an earlier version takes every event for a message: for that, a
/// comment begins the stream.
async fn prime(out: &Outbox, agreed: &Agreed, place: &str, retry: Option<Duration>) -> Result<(), Gone> {
    if !agreed.has_primes() {
        return out.send_framed(":\n".into()).await;
    }
    let retry = retry.map(|span| format!("retry: {}\n", span.as_millis())).unwrap_or_default();
    out.send_framed(format!("id: {place}\n{retry}data: \n\n").into()).await
}
