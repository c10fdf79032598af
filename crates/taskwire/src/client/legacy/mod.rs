//! 2025-11-25 and before: a session that begins with `initialize`, in which the server may ask, too.

mod call;
mod members;
mod session;
mod standing;
mod stream;
mod streamed;
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

pub(crate) use self::{call::drive, watch::attach};
use self::{members::Members, session::Session, stream::Stream};
use super::{
    Answer, Error, Event, Peer, Recorded, Reference, Run, Status, TaskPage, TaskView, ToolInfo,
    book::Book,
    event::Outcome,
    inbox::{Fact, Inbox},
    link::{self, Failed, Link},
    tools::Tools,
    wire::{Lost, Message, Outgoing, Wire},
};

pub(crate) const VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
pub(crate) const RELATED: &str = "io.modelcontextprotocol/related-task";

/// A server of this era.
pub(crate) struct Legacy {
    pub(crate) link: Arc<Link>,
    peer: Mutex<Arc<Peer>>,
    pub(crate) tools: Tools,
    pub(super) members: Arc<Members>,
    session: tokio::sync::Mutex<Option<Arc<Session>>>,
    /// Tasks that somebody may come back to in this session.
    alive: Mutex<HashSet<String>>,
    /// How many sessions were begun.
    begun: AtomicU64,
    /// What each of them is called, here or in a ledger.
    tags: Mutex<HashMap<u64, String>>,
    /// Whether the session that the options name was tried.
    adopted: AtomicBool,
    closed: AtomicBool,
    me: OnceLock<Weak<Self>>,
}

/// A question that was written down.
pub(super) struct Kept {
    /// What it is called there.
    pub(super) name: String,
    pub(super) id: RequestId,
    pub(super) session: u64,
    pub(super) input: super::Input,
}

impl Legacy {
    /// Begins a session, or goes on in the one that the options name.
    pub(crate) async fn connect(link: Arc<Link>) -> Result<Arc<Self>, Failed> {
        let legacy = Arc::new(Self {
            members: Arc::new(Members::new(link.options.limits.buffer_bytes, link.wire.http().is_none())),
            link,
            peer: Mutex::new(Arc::new(session::read_peer("", &Value::Null))),
            tools: Tools::default(),
            session: tokio::sync::Mutex::default(),
            alive: Mutex::default(),
            begun: AtomicU64::new(0),
            tags: Mutex::default(),
            adopted: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            me: OnceLock::new(),
        });
        let _ = legacy.me.set(Arc::downgrade(&legacy));
        if let Wire::Lines(lines) = &legacy.link.wire {
            let me = Arc::downgrade(&legacy);
            lines.stand(move |message| {
                if let Some(legacy) = me.upgrade() {
                    legacy.aside(message, None);
                }
            });
        }
        if legacy.link.wire.http().is_some() {
            legacy.link.persist(|| async { legacy.session().await.map(drop) }, |_, _| {}).await?;
        } else {
            // A program that cannot be started, or ends at once, is not started again and again.
            legacy.session().await?;
        }
        Ok(legacy)
    }

    fn me(&self) -> Option<Arc<Self>> {
        self.me.get()?.upgrade()
    }

    pub(crate) fn peer(&self) -> Arc<Peer> {
        self.peer.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends a request, in a session that the server knows.
    async fn send(&self, id: i64, method: &str, params: &Value, held: bool) -> Result<Stream, Failed> {
        let mut again = true;
        loop {
            let session = self.session().await?;
            let cancel = held.then(|| link::cancelled(id, params.as_object().unwrap_or(&Map::new())));
            let outgoing = Outgoing { id, body: link::request(id, method, params), headers: session.headers(), cancel };
            let sent = self.link.wire.request(outgoing).await;
            let unknown = match &sent {
                // An answer to this very request knows the session well.
                Ok(exchange) => exchange.status() == 404 && !exchange.answers(id),
                Err(Lost::Status { status, .. }) => *status == 404,
                Err(_) => false,
            };
            if unknown && session.id.is_some() && again {
                // The server has forgotten the session: there is another one to be had.
                again = false;
                self.forget(&session).await;
                continue;
            }
            return Ok(Stream::new(self, session, id, sent?));
        }
    }

    /// Asks once.
    pub(crate) async fn ask_once(&self, method: &str, params: &Value) -> Result<Payload, Failed> {
        let asking = async {
            let id = self.link.id();
            let mut stream = self.send(id, method, params, false).await?;
            loop {
                match link::answer_to(id, stream.next(None).await?) {
                    Ok(outcome) => return outcome.map_err(Failed::Rpc),
                    Err(message) => self.aside(message, None),
                }
            }
        };
        self.link.within(self.link.options.timing.request, asking).await
    }

    /// Asks until there is an answer. For what may be asked twice.
    pub(crate) async fn ask(&self, method: &str, params: Value) -> Result<Payload, Failed> {
        self.link.persist(|| self.ask_once(method, &params), |_, _| {}).await
    }

    /// Sends what is not answered.
    async fn say(&self, body: String) -> Result<(), Failed> {
        let session = self.session().await?;
        Ok(self.link.wire.say(body, session.headers()).await?)
    }

    /// Answers a request of the server.
    pub(crate) async fn respond(&self, id: &RequestId, session: u64, answer: &Value) -> Result<(), Error> {
        // The next session may use the name for something else.
        let current = self.session().await.map_err(|failed| self.link.error(failed))?;
        if current.serial != session {
            return Err(Error::NoQuestion { key: id.to_string() });
        }
        let body = json!({"jsonrpc": "2.0", "id": id, "result": answer}).to_string();
        let said = self.link.persist(|| self.say(body.clone()), |_, _| {});
        said.await.map_err(|failed| self.link.error(failed))
    }

    /// Which session it is that things happen in.
    fn current(&self) -> u64 {
        self.begun.load(Ordering::Relaxed).saturating_sub(1)
    }

    /// What a session is called.
    pub(super) fn tag(&self, session: u64) -> String {
        self.tags.lock().unwrap_or_else(PoisonError::into_inner).get(&session).cloned().unwrap_or_default()
    }

    /// Answers without being waited for.
    fn reply(&self, id: RequestId, outcome: Result<Value, RpcError>) {
        let Some(me) = self.me() else { return };
        let body = match outcome {
            Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
            Err(error) => json!({"jsonrpc": "2.0", "id": id, "error": error}),
        };
        tokio::spawn(async move {
            if let Err(failed) = me.say(body.to_string()).await {
                tracing::debug!(reason = failed.reason(), "a request of the server could not be answered");
            }
        });
    }

    /// A message that is not the answer that its reader waits for. It may have come on any stream; `owner` is who reads the
    /// one that it came on.
    pub(super) fn aside(&self, message: Message, owner: Option<&Arc<Inbox>>) {
        match message {
            Message::Response { id: Some(id), outcome } => self.members.answer(id, outcome),
            Message::Response { id: None, .. } => {}
            Message::Notification { method, params } => {
                if method == "notifications/tools/list_changed" {
                    self.tools.forget();
                }
                self.members.notified(&method, params, self.current(), owner);
            }
            Message::Request { id, method, params } => self.asked(id, method, params, owner),
        }
    }

    fn asked(&self, id: RequestId, method: String, params: Payload, owner: Option<&Arc<Inbox>>) {
        let asks = &self.link.options.asks;
        let refusal = |code, message: &str| Err(RpcError { code, message: message.to_owned(), data: None });
        let value: Value = params.read().unwrap_or_default();
        let refused = match method.as_str() {
            "ping" => return self.reply(id, Ok(json!({}))),
            "roots/list" => match &asks.roots {
                Some(roots) => return self.reply(id, Ok(json!({"roots": roots}))),
                None => refusal(code::METHOD_NOT_FOUND, "this client has no roots"),
            },
            "elicitation/create" if value["mode"] == "url" && !asks.url => {
                refusal(code::INVALID_PARAMS, "this client cannot be sent to a page")
            }
            "elicitation/create" if value["mode"] != "url" && !asks.form => {
                refusal(code::INVALID_PARAMS, "this client cannot fill in forms")
            }
            "sampling/createMessage" if !asks.sampling => refusal(code::METHOD_NOT_FOUND, "this client has no language model"),
            "elicitation/create" | "sampling/createMessage" => Ok(()),
            _ => refusal(code::METHOD_NOT_FOUND, "this client does not know the method"),
        };
        match refused {
            Err(error) => self.reply(id, Err(error)),
            Ok(()) => {
                let session = self.current();
                let fact = Fact::Question { id: id.clone(), session, method, params };
                // A task that nobody watches here waits: somebody may come back to it, or answer from elsewhere.
                let task = value["_meta"][RELATED]["taskId"].as_str();
                if !self.members.asked(task, fact, owner) && task.is_none() {
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
        self.tools.list(&self.link, super::Era::Legacy, |_| true, |params| self.ask("tools/list", params)).await
    }

    /// One look at a task.
    pub(crate) async fn look(&self, id: &str) -> Result<TaskView, Failed> {
        view(&self.ask_once("tasks/get", &json!({"taskId": id})).await?).map_err(Failed::Broken)
    }

    /// Looks for a task: in this session, and in the one that it may be bound to.
    pub(super) async fn find(&self, id: &str) -> Result<TaskView, Error> {
        let mut looked = self.link.persist(|| self.look(id), |_, _| {}).await;
        if matches!(&looked, Err(failed) if failed.is_not_found()) && self.adopt().await.map_err(|failed| self.link.error(failed))? {
            looked = self.link.persist(|| self.look(id), |_, _| {}).await;
        }
        looked.map_err(|failed| self.link.error_of(id, failed))
    }

    /// One look at a task, and at its result if it has one.
    pub(crate) async fn task(&self, id: &str) -> Result<TaskView, Error> {
        let mut view = self.find(id).await?;
        if view.status == Status::InputRequired {
            let kept = self.kept(&Book::adopt(&self.link.options, self.reference(id)).await?).await?;
            view.inputs = kept.into_iter().map(|kept| kept.input).collect();
        }
        if view.status.is_terminal() {
            view.outcome = Some(self.outcome(id, &view).await?);
        }
        Ok(view)
    }

    /// How a task ended that is seen to have.
    async fn outcome(&self, id: &str, view: &TaskView) -> Result<Outcome, Error> {
        if view.status == Status::Cancelled {
            return Ok(Outcome::Cancelled { message: view.message.clone() });
        }
        match self.ask("tasks/result", json!({"taskId": id})).await {
            Ok(result) => {
                super::event::Finished::read(result).map(Outcome::Result).map_err(|reason| self.link.error(Failed::Broken(reason)))
            }
            Err(Failed::Rpc(error)) => Ok(Outcome::Failed(failure(error, view.message.clone()))),
            Err(failed) => Err(self.link.error(failed)),
        }
    }

    /// A page of the caller's tasks.
    pub(crate) async fn list_tasks(&self, cursor: Option<&str>) -> Result<TaskPage, Error> {
        let params = cursor.map_or_else(|| json!({}), |cursor| json!({"cursor": cursor}));
        let page = self.ask("tasks/list", params).await.map_err(|failed| self.link.error(failed))?;
        TaskPage::read(&page, "ttl", "pollInterval").map_err(|reason| self.link.error(Failed::Broken(reason)))
    }

    pub(crate) async fn cancel(&self, id: &str) -> Result<(), Error> {
        if self.link.options.session.is_some() {
            self.find(id).await?;
        }
        match self.ask("tasks/cancel", json!({"taskId": id})).await {
            Ok(_) => Ok(()),
            // Either it has ended, and all is well, or there is none.
            Err(failed) if failed.is_not_found() => match self.link.persist(|| self.look(id), |_, _| {}).await {
                Ok(view) if view.status.is_terminal() => Ok(()),
                Ok(_) => Err(self.link.error(failed)),
                Err(failed) => Err(self.link.error_of(id, failed)),
            },
            Err(failed) => Err(self.link.error_of(id, failed)),
        }
    }

    /// Answers a question of a task.
    pub(crate) async fn answer(self: &Arc<Self>, id: &str, key: &str, answer: Answer) -> Result<(), Error> {
        if self.find(id).await?.status != Status::InputRequired {
            return Err(Error::NoQuestion { key: key.to_owned() });
        }
        self.answer_asked(id, key, answer).await
    }

    /// Answers a question of a task that was seen to ask: waits for it to be asked, as the server asks only who listens.
    pub(crate) async fn answer_asked(self: &Arc<Self>, id: &str, key: &str, answer: Answer) -> Result<(), Error> {
        let dialect = super::Dialect::Legacy(self.clone());
        let reference = self.reference(id);
        if self.answer_kept(&reference, key, &answer).await? {
            return Ok(());
        }
        let mut run: Run = dialect.attach(reference).await?;
        let asked = async {
            while let Some(event) = run.next().await {
                match event? {
                    Event::Input(input) if input.key == key => return Ok(true),
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
        if asked { run.answer(key, answer).await } else { Err(Error::NoQuestion { key: key.to_owned() }) }
    }

    /// Answers a question that somebody else was asked and wrote down: to listen for it would take the next one away from who
    /// listens already. False if there is none.
    async fn answer_kept(&self, reference: &Reference, key: &str, answer: &Answer) -> Result<bool, Error> {
        let book = Book::adopt(&self.link.options, reference.clone()).await?;
        let Some(kept) = self.kept(&book).await?.into_iter().find(|kept| kept.input.key == key) else { return Ok(false) };
        kept.input.check(answer)?;
        if !matches!(book.answering(&kept.name, answer.value()).await?, Recorded::New) {
            return Err(Error::Answered { key: key.to_owned() });
        }
        self.respond(&kept.id, kept.session, answer.value()).await?;
        book.answered(&kept.name).await?;
        Ok(true)
    }

    /// The questions that were asked in this session, are written down, and were not answered.
    pub(super) async fn kept(&self, book: &Book) -> Result<Vec<Kept>, Error> {
        let session = self.session().await.map_err(|failed| self.link.error(failed))?.serial;
        let tag = format!("{}/", self.tag(session));
        let mut all = Vec::new();
        for (name, question) in book.unanswered().await?.into_iter().filter(|(name, _)| name.starts_with(&tag)) {
            let id: Option<RequestId> = question.get("id").and_then(|id| serde_json::from_value(id.clone()).ok());
            let Some(id) = id else { continue };
            if let Ok(input) = super::Input::read(&call::named(&id, session), Payload::from(question)) {
                all.push(Kept { name, id, session, input });
            }
        }
        Ok(all)
    }

    /// What finds a task of this server.
    fn reference(&self, id: &str) -> Reference {
        Reference::of_task(&self.link.server, super::Era::Legacy, id)
    }

    pub(super) fn began(&self, task: &str) {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner).insert(task.to_owned());
    }

    /// A task has ended. Who keeps a ledger may want to look at it later, which some servers allow in its session only.
    pub(super) fn ended(&self, task: &str) {
        if self.link.options.ledger.is_some() {
            return;
        }
        self.alive.lock().unwrap_or_else(PoisonError::into_inner).remove(task);
    }

    /// Ends the session, unless something goes on in it that somebody may come back to.
    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let Some(session) = self.session.lock().await.take() else { return };
        session.stop();
        let alive = !self.alive.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        if let (Some(http), Some(_), false, false) = (self.link.wire.http(), &session.id, alive, session.adopted) {
            let ending = async { http.delete(session.headers()).await.map_err(Failed::Lost) };
            let _ = self.link.within(Duration::from_secs(5), ending).await;
        }
    }
}

/// How a task failed. Some servers keep no result of it, and say so instead; then what the task says of itself says more.
fn failure(error: RpcError, message: Option<String>) -> RpcError {
    match message {
        Some(message) if error.code == code::INTERNAL_ERROR => RpcError { message, ..error },
        _ => error,
    }
}

/// Reads a task.
pub(super) fn view(raw: &Payload) -> Result<TaskView, String> {
    TaskView::read(raw, "ttl", "pollInterval")
}
