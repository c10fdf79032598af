//! The client: calls tools in either era, streams their output, and goes on after broken connections.
//!
//! A server may return the result at once, ask questions first, make a task of the call, or stream its output.
//! [`Client::call`] hides all of that; [`Client::start`] shows it as one stream of events. When a connection breaks or the
//! server restarts, the call goes on at the next chunk of output. A [`Reference`] finds a task again from another process,
//! and a [`Ledger`] keeps the references of all tasks that this user started.
//!
//! ```no_run
//! use serde_json::json;
//! use taskwire::client::{Client, Event, Options, Target};
//!
//! # async fn run() -> Result<(), taskwire::client::Error> {
//! let client = Client::connect("http://127.0.0.1:8787/mcp".parse::<Target>()?, Options::default()).await?;
//! let mut call = client.start("countdown", json!({"from": 5})).await?;
//! while let Some(event) = call.next().await {
//!     match event? {
//!         Event::Chunk(chunk) => print!("{}", chunk.text()),
//!         Event::Done(outcome) => println!("{outcome:?}"),
//!         _ => {}
//!     }
//! }
//! # Ok(()) }
//! ```

mod api;
mod error;
mod event;
mod ledger_entry;
pub use crate::form;
mod call;
#[cfg(feature = "server")]
mod in_process;
mod inbox;
#[cfg(feature = "ledger")]
mod ledger;
mod legacy;
mod link;
mod listing;
mod modern;
#[cfg(feature = "oauth")]
mod oauth;
mod options;
mod question;
mod target;
mod tools;
mod wire;

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use serde_json::Value;
use taskwire_core::{Payload, wire::RequestId};

pub use self::{
    api::{ApiMethod, request_api},
    call::Call,
    error::Error,
    event::{Chunk, ConnectionState, Era, Event, Outcome, Reference, TaskSnapshot, ToolResult},
    ledger_entry::{CallRecorder, EntryId, Recorded},
    legacy::{Segment, SegmentError, SegmentLimits, Segments},
    listing::{ListedTask, TaskPage},
    options::{Bearer, Challenge, ClientCapabilities, Credentials, Limits, Options, QuestionHandler, Timing, answer_with},
    question::{Answer, Question, QuestionKind},
    target::{Connect, Target},
    tools::{TaskSupport, ToolInfo},
};
use self::{
    ledger_entry::LedgerEntry,
    legacy::LegacyClient,
    link::RequestError,
    modern::{ModernClient, ProbeResult},
    wire::{Http, Lines, Spawn, Wire},
};

#[cfg(feature = "ledger")]
pub use self::ledger::{Entry, LEDGER_ENTRIES, Ledger, OutputPosition, OutputTracker};
#[cfg(feature = "oauth")]
pub use self::oauth::{Consent, Grant, LoopbackConsent, OAuth, OAuthSettings};
pub use taskwire_core::task::Status;

/// Who the server is, and what it can do.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerInfo {
    /// The era of the protocol that it speaks.
    pub era: Era,
    /// The protocol version.
    pub protocol: String,
    /// What the server calls itself.
    pub name: String,
    /// Its version.
    pub version: String,
    /// How a model should use it.
    pub instructions: Option<String>,
    /// Whether calls can be tasks.
    pub tasks: bool,
    /// Whether the server pushes the output of tasks.
    pub pushes_output: bool,
    /// Whether a call that is sent twice runs once.
    pub idempotency: bool,
    /// Whether the tasks of a caller can be listed.
    pub lists_tasks: bool,
    /// The response modes that it offers for a call that may be a task (legacy era).
    pub response_modes: Vec<String>,
    /// All its capabilities.
    pub capabilities: Value,
}

/// A connection to a server; cheap to clone.
#[derive(Clone)]
pub struct Client(EraClient);

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("server", &self.0.link().server).finish_non_exhaustive()
    }
}

#[derive(Clone)]
pub(crate) enum EraClient {
    Modern(Arc<ModernClient>),
    Legacy(Arc<LegacyClient>),
}

/// Servers that were found to be of the legacy era: the client does not probe them again.
static LEGACY_SERVERS: LazyLock<Mutex<HashMap<String, ()>>> = LazyLock::new(Mutex::default);
const LEGACY_SERVERS_MAX: usize = 1024;

impl Client {
    /// Connects to a server and finds out its era.
    ///
    /// # Errors
    /// When it cannot be reached, refuses access, or speaks no version that we do.
    pub async fn connect(target: impl Into<Target>, options: Options) -> Result<Self, Error> {
        let target = target.into();
        let server = target.to_string();
        let options = Arc::new(options);
        let wire = match target {
            Target::Url(url) => Wire::Http(Http::new(&url, options.clone())?),
            Target::Command(words) => Wire::Lines(Lines::new(Spawn::Command(words), options.clone())),
            Target::InProcess(server) => Wire::Lines(Lines::new(Spawn::InProcess(server), options.clone())),
        };
        let link = Arc::new(link::Link::new(wire, options, server));
        let connecting = connect(link.clone());
        Ok(Self(connecting.await.map_err(|failed| link.error(failed))?))
    }

    /// Who the server is.
    #[must_use]
    pub fn server_info(&self) -> Arc<ServerInfo> {
        match &self.0 {
            EraClient::Modern(modern) => modern.server_info(),
            EraClient::Legacy(legacy) => legacy.server_info(),
        }
    }

    /// The tools of the server.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub async fn tools(&self) -> Result<Vec<ToolInfo>, Error> {
        let tools = match &self.0 {
            EraClient::Modern(modern) => modern.list_tools().await?,
            EraClient::Legacy(legacy) => legacy.list_tools().await?,
        };
        Ok(tools.to_vec())
    }

    /// Calls a tool and waits for its [`Outcome`]. The options' question handler answers questions.
    ///
    /// # Errors
    /// When the server refuses the call, or the client gave up before it saw the end.
    pub async fn call(&self, tool: &str, args: Value) -> Result<Outcome, Error> {
        self.start(tool, args).await?.finish().await
    }

    /// Calls a tool. Returns a [`Call`] at the first event; it yields the others. If this is dropped before it returns, the
    /// client cancels the call.
    ///
    /// With a ledger, the client records the call before it sends it, and the task before it yields [`Event::Task`].
    ///
    /// # Errors
    /// When the server refuses the call or cannot be reached.
    pub async fn start(&self, tool: &str, args: Value) -> Result<Call, Error> {
        self.send(self.prepare(tool, args)?).await
    }

    /// Makes the reference of a call without sending it: [`send`](Self::send) sends it, and [`attach`](Self::attach) sends it
    /// again if no response ever came.
    ///
    /// # Errors
    /// When the system has no random bytes for its key.
    pub fn prepare(&self, tool: &str, args: Value) -> Result<Reference, Error> {
        Ok(Reference {
            server: self.0.link().server.clone(),
            era: self.server_info().era,
            task: None,
            tool: tool.to_owned(),
            key: Some(random_id()?),
            session: None,
            args: Some(Payload::from(args)),
            next: 0,
        })
    }

    /// Sends a prepared call and returns as [`start`](Self::start) does.
    ///
    /// # Errors
    /// When the server refuses the call or cannot be reached.
    pub async fn send(&self, reference: Reference) -> Result<Call, Error> {
        let args = arguments(&reference)?;
        let entry = LedgerEntry::find_or_add(&self.0.link().options, reference.clone()).await?;
        let started = self.0.call(entry.clone(), reference, args).await;
        if let Err(error) = &started
            && !matches!(error, Error::LostCall { .. } | Error::Unreachable { .. } | Error::Ledger(_))
        {
            // The server refused the call: there is no task to come back to.
            entry.remove().await;
        }
        started
    }

    /// Follows a task from the chunk that its reference names. A call whose response was never seen is sent again, with its
    /// key.
    ///
    /// # Errors
    /// When the server does not know the task or cannot be reached.
    pub async fn attach(&self, reference: &Reference) -> Result<Call, Error> {
        match (&reference.task, &reference.args) {
            (Some(_), _) => self.0.attach(reference.clone()).await,
            (None, Some(_)) if self.server_info().idempotency => {
                let args = arguments(reference)?;
                let entry = LedgerEntry::find_or_add(&self.0.link().options, reference.clone()).await?;
                self.0.call(entry, reference.clone(), args).await
            }
            (None, _) => Err(Error::LostCall { tool: reference.tool.clone(), reason: "no answer was ever seen".to_owned() }),
        }
    }

    /// Asks for the state of a task.
    ///
    /// # Errors
    /// When the server does not know it or cannot be reached.
    pub async fn task(&self, id: &str) -> Result<TaskSnapshot, Error> {
        match &self.0 {
            EraClient::Modern(modern) => modern.task(id).await,
            EraClient::Legacy(legacy) => legacy.task(id).await,
        }
    }

    /// A page of the caller's tasks on this server, whichever client started them: the latest, or those after the page that
    /// returned `cursor`. Taskwire servers list them in the modern era (`dev.taskwire/tasks/list`), other servers may in the
    /// legacy era (`tasks/list`).
    ///
    /// # Errors
    /// [`Error::ListUnsupported`] when the server lists no tasks; when it does not know the cursor or cannot be reached.
    pub async fn list_tasks(&self, cursor: Option<&str>) -> Result<TaskPage, Error> {
        if !self.server_info().lists_tasks {
            return Err(Error::ListUnsupported { server: self.0.link().server.clone() });
        }
        match &self.0 {
            EraClient::Modern(modern) => modern.list_tasks(cursor).await,
            EraClient::Legacy(legacy) => legacy.list_tasks(cursor).await,
        }
    }

    /// Asks the server to cancel a task. One that has ended stays as it is.
    ///
    /// # Errors
    /// When the server does not know it or cannot be reached.
    pub async fn cancel(&self, id: &str) -> Result<(), Error> {
        self.0.cancel(id).await
    }

    /// Answers a question of a task.
    ///
    /// # Errors
    /// When there is no such question, the answer does not fit, or the server cannot be reached.
    pub async fn answer(&self, id: &str, key: &str, answer: Answer) -> Result<(), Error> {
        match &self.0 {
            EraClient::Modern(modern) => {
                let snapshot = modern.task(id).await?;
                let question =
                    snapshot.questions.iter().find(|input| input.key == key).ok_or_else(|| Error::NoQuestion { key: key.to_owned() })?;
                self.answer_question(id, question, answer).await
            }
            EraClient::Legacy(legacy) => legacy.answer(id, key, answer).await,
        }
    }

    /// Answers a question that [`task`](Self::task) has just returned, without asking the server for it again.
    ///
    /// # Errors
    /// When the answer does not fit, or the server cannot be reached.
    pub async fn answer_question(&self, id: &str, question: &Question, answer: Answer) -> Result<(), Error> {
        question.check(&answer)?;
        match &self.0 {
            EraClient::Modern(_) => self.0.answer_and_record(id, &question.key, answer).await,
            EraClient::Legacy(legacy) => legacy.answer_when_asked(id, &question.key, answer).await,
        }
    }

    /// Stops without cancelling anything: calls that have no response yet go on if the server allows it, and the ledger keeps
    /// them.
    pub fn detach(&self) {
        self.0.link().detached.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    /// Sends what is still to be sent, then ends the session (unless tasks go on in it) or the program that was started.
    pub async fn close(self) {
        self.0.link().flush().await;
        if let EraClient::Legacy(legacy) = &self.0 {
            legacy.close().await;
        }
        self.0.link().wire.close().await;
    }
}

fn arguments(reference: &Reference) -> Result<Value, Error> {
    let unreadable = |reason: String| Error::Ledger(format!("the arguments of the call are not readable: {reason}"));
    let args = reference.args.as_ref().ok_or_else(|| unreadable("they were too large to be kept".to_owned()))?;
    args.read().map_err(|error| unreadable(error.to_string()))
}

fn random_id() -> Result<String, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Error::Target(format!("there is no randomness: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Finds out the server's era, by a probe unless the options or an earlier connection say it.
async fn connect(link: Arc<link::Link>) -> Result<EraClient, RequestError> {
    let http = link.wire.http().is_some();
    let known = LEGACY_SERVERS.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&link.server);
    let era = link.options.era.or_else(|| (known && http).then_some(Era::Legacy));
    if era == Some(Era::Legacy) {
        match LegacyClient::connect(link.clone()).await {
            // It is no longer a server of the legacy era: probe it again.
            Err(failed)
                if link.options.era.is_none()
                    && !failed.is_transient()
                    && !matches!(failed, RequestError::Wire(wire::WireError::Denied { .. }) | RequestError::Local(_)) =>
            {
                LEGACY_SERVERS.lock().unwrap_or_else(PoisonError::into_inner).remove(&link.server);
            }
            connected => return connected.map(EraClient::Legacy),
        }
        return Box::pin(connect(link)).await;
    }
    let probing = async {
        let asked = async { modern::probe(&link).await };
        if http {
            return link.retry(|| link.with_timeout(link.options.timing.request, modern::probe(&link)), |_, _| {}).await;
        }
        // No retries: a program that cannot be started, or ends at once, would do so again.
        if era.is_some() {
            return link.with_timeout(link.options.timing.request, modern::probe(&link)).await;
        }
        // A server of the legacy era may ignore requests before `initialize`.
        tokio::select! {
            probed = asked => match probed {
                Err(RequestError::Wire(lost)) if !matches!(lost, wire::WireError::Unsent(_)) => Ok(ProbeResult::NotModern(lost.reason())),
                probed => probed,
            },
            () = link.options.clock.sleep(link.options.timing.probe) => Ok(ProbeResult::NotModern("no answer".to_owned())),
        }
    };
    match probing.await? {
        ProbeResult::Modern(peer) => Ok(EraClient::Modern(ModernClient::new(link, *peer))),
        ProbeResult::NotModern(reason) if era == Some(Era::Modern) => {
            Err(Error::Version { server: link.server.clone(), supported: format!("not {} ({reason})", modern::VERSION) }.into())
        }
        ProbeResult::NotModern(_) => {
            let legacy = LegacyClient::connect(link.clone()).await?;
            if http {
                let mut known = LEGACY_SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
                if known.len() < LEGACY_SERVERS_MAX {
                    known.insert(link.server.clone(), ());
                }
            }
            Ok(EraClient::Legacy(legacy))
        }
    }
}

impl EraClient {
    pub(crate) fn link(&self) -> &Arc<link::Link> {
        match self {
            Self::Modern(modern) => &modern.link,
            Self::Legacy(legacy) => &legacy.link,
        }
    }

    async fn call(&self, entry: LedgerEntry, reference: Reference, args: Value) -> Result<Call, Error> {
        let tool = reference.tool.clone();
        match self.clone() {
            Self::Modern(modern) => Call::open(self.clone(), entry, reference, |driver| modern::drive(modern, driver, tool, args)).await,
            Self::Legacy(legacy) => Call::open(self.clone(), entry, reference, |driver| legacy::drive(legacy, driver, tool, args)).await,
        }
    }

    /// Follows a task that exists.
    pub(crate) async fn attach(&self, mut reference: Reference) -> Result<Call, Error> {
        let Some(task) = reference.task.clone() else { return Err(Error::Closed) };
        let link = self.link();
        reference.server.clone_from(&link.server);
        let entry = LedgerEntry::find_or_add(&link.options, reference.clone()).await?;
        match self.clone() {
            Self::Modern(modern) => Call::open(self.clone(), entry, reference, |driver| modern::attach(modern, driver, task)).await,
            Self::Legacy(legacy) => Call::open(self.clone(), entry, reference, |driver| legacy::attach(legacy, driver, task)).await,
        }
    }

    pub(crate) async fn cancel(&self, task: &str) -> Result<(), Error> {
        match self {
            Self::Modern(modern) => modern.cancel(task).await,
            Self::Legacy(legacy) => legacy.cancel(task).await,
        }
    }

    /// Sends an answer with `tasks/update`.
    pub(crate) async fn update(&self, task: &str, key: &str, answer: &Value) -> Result<(), Error> {
        match self {
            Self::Modern(modern) => modern.update(task, key, answer).await,
            Self::Legacy(_) => Err(Error::NoQuestion { key: key.to_owned() }),
        }
    }

    /// Sends an answer as the response to a request of the server. True if the server has acknowledged it.
    pub(crate) async fn respond(&self, id: &RequestId, session: u64, answer: &Value) -> Result<bool, Error> {
        match self {
            Self::Modern(_) => Err(Error::Closed),
            Self::Legacy(legacy) => legacy.respond(id, session, answer).await,
        }
    }

    /// Answers a question outside a [`Call`], and records the answer as a `Call` does.
    async fn answer_and_record(&self, task: &str, key: &str, answer: Answer) -> Result<(), Error> {
        let link = self.link();
        let entry = LedgerEntry::find_or_add(&link.options, Reference::of_task(&link.server, Era::Modern, task)).await?;
        let send = |answer: Value| async move { self.update(task, key, &answer).await.map(|()| true) };
        entry.answer_once(key, key, answer.value(), send).await
    }
}
