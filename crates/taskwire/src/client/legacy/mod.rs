//! The legacy era (2025-11-25 and before): sessions that begin with `initialize`, in which the server may send requests, too.

mod call;
mod resumable_stream;
mod router;
mod segments;
mod session;
mod session_stream;
mod streaming;
mod watch;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::{Map, Value, json};
use taskwire_core::{
    Payload,
    task::RpcError,
    wire::{RequestId, code},
};

pub use self::segments::{Segment, SegmentError, SegmentLimits, Segments};
pub(crate) use self::{call::drive, watch::attach};
use self::{resumable_stream::ResumableStream, router::Router, session::Session};
use super::{
    Answer, Call, Error, Event, Recorded, Reference, ServerInfo, Status, TaskPage, TaskSnapshot, ToolInfo,
    event::Outcome,
    inbox::{Inbox, Notice},
    ledger_entry::LedgerEntry,
    link::{self, Link, RequestError},
    tools::ToolCache,
    wire::{Message, OutgoingRequest, Wire, WireError},
};

pub(crate) const VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
pub(crate) const RELATED: &str = "io.modelcontextprotocol/related-task";

/// A connection to a server of this era.
pub(crate) struct LegacyClient {
    pub(crate) link: Arc<Link>,
    server_info: Mutex<Arc<ServerInfo>>,
    pub(crate) tools: ToolCache,
    pub(super) router: Arc<Router>,
    session: tokio::sync::Mutex<Option<Arc<Session>>>,
    /// Tasks that a client may come back to in this session, so it is not deleted.
    live_tasks: Mutex<HashSet<String>>,
    sessions_begun: AtomicU64,
    /// The name of each session in ledger keys, by serial.
    tags: Mutex<HashMap<u64, String>>,
    /// Whether the client has tried the session that the options name.
    adoption_tried: AtomicBool,
    closed: AtomicBool,
    me: OnceLock<Weak<Self>>,
}

/// An open question from the ledger.
pub(super) struct RecordedQuestion {
    pub(super) ledger_key: String,
    pub(super) id: RequestId,
    pub(super) session: u64,
    pub(super) question: super::Question,
}

impl LegacyClient {
    /// Begins a session.
    pub(crate) async fn connect(link: Arc<Link>) -> Result<Arc<Self>, RequestError> {
        let legacy = Arc::new(Self {
            router: Arc::new(Router::new(link.options.limits.buffer_bytes, link.wire.http().is_none())),
            link,
            server_info: Mutex::new(Arc::new(session::read_peer("", &Value::Null))),
            tools: ToolCache::default(),
            session: tokio::sync::Mutex::default(),
            live_tasks: Mutex::default(),
            sessions_begun: AtomicU64::new(0),
            tags: Mutex::default(),
            adoption_tried: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            me: OnceLock::new(),
        });
        let _ = legacy.me.set(Arc::downgrade(&legacy));
        if let Wire::Lines(lines) = &legacy.link.wire {
            let me = Arc::downgrade(&legacy);
            lines.on_unsolicited(move |message| {
                if let Some(legacy) = me.upgrade() {
                    legacy.dispatch(message, None);
                }
            });
        }
        if legacy.link.wire.http().is_some() {
            legacy.session_with_retries().await?;
        } else {
            // No retries: a program that cannot be started, or ends at once, would do so again.
            legacy.session().await?;
        }
        Ok(legacy)
    }

    fn me(&self) -> Option<Arc<Self>> {
        self.me.get()?.upgrade()
    }

    pub(crate) fn server_info(&self) -> Arc<ServerInfo> {
        self.server_info.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends a request, in a new session if the server does not know the current one.
    async fn send(&self, id: i64, method: &str, params: &Value, cancellable: bool) -> Result<ResumableStream, RequestError> {
        let mut again = true;
        loop {
            let session = self.session().await.map_err(not_sent)?;
            let cancel = cancellable.then(|| link::cancel_notification(id, params.as_object().unwrap_or(&Map::new())));
            let outgoing = OutgoingRequest {
                id,
                body: link::request(id, method, params),
                headers: session.headers(),
                cancel,
                generation: Some(session.generation),
            };
            let sent = self.link.wire.request(outgoing).await;
            let unknown = match &sent {
                // A response to this request means that the server knows the session.
                Ok(exchange) => exchange.status() == 404 && !exchange.answers(id),
                Err(WireError::Status { status, .. }) => *status == 404,
                Err(_) => false,
            };
            if unknown && session.id.is_some() && again {
                // The server has forgotten the session: begin another one.
                again = false;
                self.forget(&session).await;
                continue;
            }
            return Ok(ResumableStream::new(self, session, id, sent?));
        }
    }

    pub(crate) async fn request_once(&self, method: &str, params: &Value) -> Result<Payload, RequestError> {
        let asking = async {
            let id = self.link.next_id();
            let mut stream = self.send(id, method, params, false).await?;
            loop {
                match link::match_response(id, stream.next(None).await?) {
                    Ok(outcome) => return outcome.map_err(RequestError::Rpc),
                    Err(message) => self.dispatch(message, None),
                }
            }
        };
        self.link.with_timeout(self.link.options.timing.request, asking).await
    }

    /// Sends a request until there is a response. Only for requests that may be repeated.
    pub(crate) async fn request(&self, method: &str, params: Value) -> Result<Payload, RequestError> {
        self.link.retry(|| self.request_once(method, &params), |_, _| {}).await
    }

    async fn send_one_way(&self, body: String) -> Result<(), RequestError> {
        let session = self.session().await?;
        Ok(self.link.wire.send_one_way(body, session.headers(), Some(session.generation)).await?)
    }

    /// Sends an answer as the response to a request of the server. True if the server has acknowledged it: HTTP has a status for it, a
    /// byte stream has nothing.
    pub(crate) async fn respond(&self, id: &RequestId, session: u64, answer: &Value) -> Result<bool, Error> {
        let body = json!({"jsonrpc": "2.0", "id": id, "result": answer}).to_string();
        let respond_once = || async {
            let current = self.session().await?;
            // In another session the same id may mean another request.
            if current.serial != session {
                return Err(Error::NoQuestion { key: id.to_string() }.into());
            }
            match self.link.wire.send_one_way(body.clone(), current.headers(), Some(current.generation)).await {
                // The server has forgotten the session. If it still needs the answer, it asks again in the next one.
                Err(WireError::Status { status: 404, .. }) if current.id.is_some() => {
                    self.forget(&current).await;
                    Err(Error::NoQuestion { key: id.to_string() }.into())
                }
                sent => Ok(sent.map(|()| self.link.wire.http().is_some())?),
            }
        };
        self.link.retry(respond_once, |_, _| {}).await.map_err(|failed| self.link.error(failed))
    }

    fn current_session(&self) -> u64 {
        self.sessions_begun.load(Ordering::Relaxed).saturating_sub(1)
    }

    pub(super) fn tag(&self, session: u64) -> String {
        self.tags.lock().unwrap_or_else(PoisonError::into_inner).get(&session).cloned().unwrap_or_default()
    }

    /// Responds to a request of the server in the background.
    fn reply(&self, id: RequestId, outcome: Result<Value, RpcError>) {
        let Some(me) = self.me() else { return };
        let body = match outcome {
            Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
            Err(error) => json!({"jsonrpc": "2.0", "id": id, "error": error}),
        };
        tokio::spawn(async move {
            if let Err(failed) = me.send_one_way(body.to_string()).await {
                tracing::debug!(reason = failed.reason(), "a request of the server could not be answered");
            }
        });
    }

    /// Dispatches a message that is not the response its reader waits for. `owner` is the inbox of the call that reads the
    /// stream it came on.
    pub(super) fn dispatch(&self, message: Message, owner: Option<&Arc<Inbox>>) {
        match message {
            Message::Response { id: Some(id), outcome } => self.router.route_response(id, outcome),
            Message::Response { id: None, .. } => {}
            Message::Notification { method, params } => {
                if method == "notifications/tools/list_changed" {
                    self.tools.forget();
                }
                self.router.route_notification(&method, params, self.current_session(), owner);
            }
            Message::Request { id, method, params } => self.dispatch_request(id, method, params, owner),
        }
    }

    fn dispatch_request(&self, id: RequestId, method: String, params: Payload, owner: Option<&Arc<Inbox>>) {
        let capabilities = &self.link.options.capabilities;
        let refusal = |code, message: &str| Err(RpcError { code, message: message.to_owned(), data: None });
        let value: Value = params.read().unwrap_or_default();
        let refused = match method.as_str() {
            "ping" => return self.reply(id, Ok(json!({}))),
            "roots/list" => match &capabilities.roots {
                Some(roots) => return self.reply(id, Ok(json!({"roots": roots}))),
                None => refusal(code::METHOD_NOT_FOUND, "this client has no roots"),
            },
            "elicitation/create" if value["mode"] == "url" && !capabilities.url => {
                refusal(code::INVALID_PARAMS, "this client cannot be sent to a page")
            }
            "elicitation/create" if value["mode"] != "url" && !capabilities.form => {
                refusal(code::INVALID_PARAMS, "this client cannot fill in forms")
            }
            "sampling/createMessage" if !capabilities.sampling => refusal(code::METHOD_NOT_FOUND, "this client has no language model"),
            "elicitation/create" | "sampling/createMessage" => Ok(()),
            _ => refusal(code::METHOD_NOT_FOUND, "this client does not know the method"),
        };
        match refused {
            Err(error) => self.reply(id, Err(error)),
            Ok(()) => {
                let session = self.current_session();
                let notice = Notice::Question { id: id.clone(), session, method, params };
                // A task's question without a watcher stays open: a client may come back, or answer from elsewhere.
                let task = value["_meta"][RELATED]["taskId"].as_str();
                if !self.router.route_question(task, notice, owner) && task.is_none() {
                    let error = RpcError { code: code::INTERNAL_ERROR, message: "nobody is there to be asked".to_owned(), data: None };
                    self.reply(id, Err(error));
                }
            }
        }
    }

    pub(crate) async fn list_tools(&self) -> Result<Arc<Vec<ToolInfo>>, Error> {
        if let Some(known) = self.tools.known() {
            return Ok(known);
        }
        self.tools.list(&self.link, super::Era::Legacy, |_| true, |params| self.request("tools/list", params)).await
    }

    pub(crate) async fn get_task(&self, id: &str) -> Result<TaskSnapshot, RequestError> {
        read_snapshot(&self.request_once("tasks/get", &json!({"taskId": id})).await?).map_err(RequestError::Protocol)
    }

    /// Finds a task in this session, or in the one that the options name.
    pub(super) async fn find(&self, id: &str) -> Result<TaskSnapshot, Error> {
        let mut looked = self.link.retry(|| self.get_task(id), |_, _| {}).await;
        if matches!(&looked, Err(failed) if failed.is_not_found()) && self.adopt().await.map_err(|failed| self.link.error(failed))? {
            looked = self.link.retry(|| self.get_task(id), |_, _| {}).await;
        }
        looked.map_err(|failed| self.link.task_error(id, failed))
    }

    /// The state of a task, with its open questions or its result.
    pub(crate) async fn task(&self, id: &str) -> Result<TaskSnapshot, Error> {
        let mut snapshot = self.find(id).await?;
        if snapshot.status == Status::InputRequired {
            let recorded = self.recorded_questions(&LedgerEntry::find_or_add(&self.link.options, self.reference(id)).await?).await?;
            snapshot.questions = recorded.into_iter().map(|kept| kept.question).collect();
        }
        if snapshot.status.is_terminal() {
            snapshot.outcome = Some(self.outcome(id, &snapshot).await?);
        }
        Ok(snapshot)
    }

    async fn outcome(&self, id: &str, snapshot: &TaskSnapshot) -> Result<Outcome, Error> {
        if snapshot.status == Status::Cancelled {
            return Ok(Outcome::Cancelled { message: snapshot.message.clone() });
        }
        match self.request("tasks/result", json!({"taskId": id})).await {
            Ok(result) => super::event::ToolResult::read(result)
                .map(Outcome::Result)
                .map_err(|reason| self.link.error(RequestError::Protocol(reason))),
            Err(RequestError::Rpc(error)) => Ok(Outcome::Failed(failure(error, snapshot.message.clone()))),
            Err(failed) => Err(self.link.error(failed)),
        }
    }

    pub(crate) async fn list_tasks(&self, cursor: Option<&str>) -> Result<TaskPage, Error> {
        let params = cursor.map_or_else(|| json!({}), |cursor| json!({"cursor": cursor}));
        let page = self.request("tasks/list", params).await.map_err(|failed| self.link.error(failed))?;
        TaskPage::read(&page, "ttl", "pollInterval").map_err(|reason| self.link.error(RequestError::Protocol(reason)))
    }

    pub(crate) async fn cancel(&self, id: &str) -> Result<(), Error> {
        if self.link.options.session.is_some() {
            self.find(id).await?;
        }
        match self.request("tasks/cancel", json!({"taskId": id})).await {
            Ok(_) => Ok(()),
            // The task has ended, which is fine, or the server does not know it.
            Err(failed) if failed.is_not_found() => match self.link.retry(|| self.get_task(id), |_, _| {}).await {
                Ok(snapshot) if snapshot.status.is_terminal() => Ok(()),
                Ok(_) => Err(self.link.error(failed)),
                Err(failed) => Err(self.link.task_error(id, failed)),
            },
            Err(failed) => Err(self.link.task_error(id, failed)),
        }
    }

    pub(crate) async fn answer(self: &Arc<Self>, id: &str, key: &str, answer: Answer) -> Result<(), Error> {
        if self.find(id).await?.status != Status::InputRequired {
            return Err(Error::NoQuestion { key: key.to_owned() });
        }
        self.answer_when_asked(id, key, answer).await
    }

    /// Answers a question of a task that waits for input. It attaches to the task first, because the server sends questions
    /// only to a client that waits for the result.
    pub(crate) async fn answer_when_asked(self: &Arc<Self>, id: &str, key: &str, answer: Answer) -> Result<(), Error> {
        let client = super::EraClient::Legacy(self.clone());
        let reference = self.reference(id);
        if self.answer_recorded(&reference, key, &answer).await? {
            return Ok(());
        }
        let mut call: Call = client.attach(reference).await?;
        let asked = async {
            while let Some(event) = call.next().await {
                match event? {
                    Event::Question(input) if input.key == key => return Ok(true),
                    Event::Done(_) => break,
                    _ => {}
                }
            }
            Ok(false)
        };
        let asked = tokio::select! {
            asked = asked => asked?,
            () = self.link.options.clock.sleep(self.link.options.timing.request) => false,
        };
        if asked { call.answer(key, answer).await } else { Err(Error::NoQuestion { key: key.to_owned() }) }
    }

    /// Answers a question that another process received and recorded. To wait for it here would take the next question from
    /// that process. False if there is none.
    async fn answer_recorded(&self, reference: &Reference, key: &str, answer: &Answer) -> Result<bool, Error> {
        let entry = LedgerEntry::find_or_add(&self.link.options, reference.clone()).await?;
        let Some(recorded) = self.recorded_questions(&entry).await?.into_iter().find(|kept| kept.question.key == key) else {
            return Ok(false);
        };
        recorded.question.check(answer)?;
        if !matches!(entry.record_answer(&recorded.ledger_key, answer.value()).await?, Recorded::New) {
            return Err(Error::AlreadyAnswered { key: key.to_owned() });
        }
        if self.respond(&recorded.id, recorded.session, answer.value()).await? {
            entry.acknowledge_answer(&recorded.ledger_key).await?;
        }
        Ok(true)
    }

    /// The questions of this session that are recorded and not answered.
    pub(super) async fn recorded_questions(&self, entry: &LedgerEntry) -> Result<Vec<RecordedQuestion>, Error> {
        let session = self.session_with_retries().await.map_err(|failed| self.link.error(failed))?.serial;
        let tag = format!("{}/", self.tag(session));
        let mut all = Vec::new();
        for (name, question) in entry.open_questions().await?.into_iter().filter(|(name, _)| name.starts_with(&tag)) {
            let id: Option<RequestId> = question.get("id").and_then(|id| serde_json::from_value(id.clone()).ok());
            let Some(id) = id else { continue };
            if let Ok(input) = super::Question::read(&call::question_key(&id, session), Payload::from(question)) {
                all.push(RecordedQuestion { ledger_key: name, id, session, question: input });
            }
        }
        Ok(all)
    }

    fn reference(&self, id: &str) -> Reference {
        Reference::of_task(&self.link.server, super::Era::Legacy, id)
    }

    pub(super) fn task_started(&self, task: &str) {
        self.live_tasks.lock().unwrap_or_else(PoisonError::into_inner).insert(task.to_owned());
    }

    /// A task has ended. With a ledger its session stays, because some servers show an ended task in its session only.
    pub(super) fn task_ended(&self, task: &str) {
        if self.link.options.ledger.is_some() {
            return;
        }
        self.live_tasks.lock().unwrap_or_else(PoisonError::into_inner).remove(task);
    }

    /// Ends the session, unless a client may come back to a task in it.
    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let Some(session) = self.session.lock().await.take() else { return };
        session.stop();
        let alive = !self.live_tasks.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        if let (Some(http), Some(_), false, false) = (self.link.wire.http(), &session.id, alive, session.adopted) {
            let ending = async { http.delete(session.headers()).await.map_err(RequestError::Wire) };
            let _ = self.link.with_timeout(Duration::from_secs(5), ending).await;
        }
    }
}

/// The error of a request whose session could not be begun: it was not sent. What says more is kept.
fn not_sent(failed: RequestError) -> RequestError {
    let says_more = matches!(failed, RequestError::Wire(WireError::ProgramEnded(_))) || failed.retry_after().is_some();
    if failed.is_transient() && !says_more { WireError::Unsent(failed.reason()).into() } else { failed }
}

/// How a task failed. Some servers keep no result of it and respond with an internal error; then the status message says more.
fn failure(error: RpcError, message: Option<String>) -> RpcError {
    match message {
        Some(message) if error.code == code::INTERNAL_ERROR => RpcError { message, ..error },
        _ => error,
    }
}

pub(super) fn read_snapshot(raw: &Payload) -> Result<TaskSnapshot, String> {
    TaskSnapshot::read(raw, "ttl", "pollInterval")
}
