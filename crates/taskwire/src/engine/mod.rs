//! Runs tasks: one writer that commits every change, the runs of their work, and their timers.
//!
//! Start with [`Engine`], the handle, then `writer`. The engine knows no wire and no era, and does not know what a tool
//! is: it knows [`Work`] that can be run.

mod audited;
mod away;
mod calls;
mod cluster;
mod error;
mod exchange;
pub(crate) mod large_block;
mod liveness;
mod notes;
mod observe;
mod operator_log;
mod output_buffer;
mod quota;
mod read;
mod recent;
mod recovery;
mod run;
mod runs;
mod switch;
mod timers;
mod unstarted;
mod writer;

#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use taskwire_core::{
    Attempt, Epoch, Limits, Payload, SessionId, TaskId, Timestamp,
    task::{Authority, Command, Event, NewTask, Outcome, RpcError, Spec, Task},
};
use tokio::sync::{mpsc, oneshot, watch};

use error::Failure;
pub(crate) use error::{Error, skip_corrupt};
pub use exchange::Continuation;
pub(crate) use exchange::{CallNote, Phase, RunEnd};
pub use output_buffer::Coalesce;
pub(crate) use output_buffer::Piece;
pub(crate) use quota::TaskLimits;
pub(crate) use run::Run;
pub(crate) use unstarted::UnstartedRun;

use crate::{
    audit::{self, Audit},
    clock::{Clock, new_task_id},
    metrics::{Feed, Metrics},
    store::{self, NodeInfo, Reader, SessionChange, Store},
    traces::Tracer,
    wakeup::{WakeUps, Watch},
};

/// What a node has between two leases: no task of this epoch is run by anybody, and what names it is taken over at once.
const NO_EPOCH: Epoch = Epoch(0);
/// How the status of work begins that waits for a slot of its tool, and the status of work that has got one.
pub(crate) const WAITS_FOR_TURN: &str = "waiting for its turn";
pub(crate) const HAS_TURN: &str = "running";

/// Whether a process can go on with a task that another one left, where nodes share the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Takeover {
    /// It can.
    Now,
    /// It can when the work has ended that may go on beside the other process: `orphan_after` later.
    WhenOrphaned,
    /// It does not have the tool.
    Never,
}

/// What the engine runs: it does the work of a run and returns how that ended.
pub trait Work: Send + Sync + 'static {
    /// Whether this process can go on with a task that another one left, from its last checkpoint.
    fn can_take(&self, task: &Task, checkpoint: Option<&Payload>) -> Takeover {
        let _ = (task, checkpoint);
        Takeover::Now
    }

    /// The tools for whose work this process has free slots, and how many. Work of other tools never waits for a slot.
    fn free_slots(&self) -> Vec<(String, usize)> {
        Vec::new()
    }

    /// How many tasks of a tool this process may run.
    fn task_limits(&self, tool: &str) -> TaskLimits {
        let _ = tool;
        TaskLimits::default()
    }

    /// Does the work of `run`. It may be dropped at any await point once the run is stopped.
    fn run(&self, run: Arc<Run>) -> BoxFuture<'static, RunEnd>;
}

/// How an engine behaves.
#[derive(Debug, Clone)]
pub struct Config {
    /// Bounds on tasks.
    pub limits: Limits,
    /// How long stopped work may take to clean up before it is dropped.
    pub grace: Duration,
    /// How output is gathered into chunks.
    pub coalesce: Coalesce,
    /// Commands that may wait for the writer.
    pub queue_len: usize,
    /// Bytes of recently changed tasks to keep in memory.
    pub cache_bytes: usize,
    /// Where nodes share the store: how long a command goes on whose server is gone. After that it ends, and another node may take its task.
    /// All nodes should have the same: the longest counts.
    pub orphan_after: Duration,
    /// Who keeps a record of who did what; nobody if absent.
    pub audit: Option<Arc<dyn Audit>>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::DEFAULT,
            grace: Duration::from_secs(5),
            coalesce: Coalesce::default(),
            queue_len: 4_096,
            cache_bytes: 128 * 1024 * 1024,
            orphan_after: Duration::from_secs(30),
            audit: None,
        }
    }
}

/// The acknowledgement of a command, sent when its changes are durable.
#[derive(Debug, Clone)]
pub struct Receipt {
    /// The task after it.
    pub task: Arc<Task>,
    /// Whether anything changed.
    pub changed: bool,
}

struct TaskRequest {
    id: TaskId,
    by: Authority,
    command: Command,
    /// Whether it waits while the store cannot be reached. What running work needs does; callers are told to try again.
    waits: bool,
    /// Whether its task ends in the next request, so that it takes no place of its tool.
    ends_at_once: bool,
    /// Where it came from.
    sender: Option<IpAddr>,
    receipt: oneshot::Sender<Result<Receipt, Error>>,
}

/// What the writer is asked to do.
enum WriterRequest {
    /// Something about a task.
    Task(TaskRequest),
    /// Something about a session.
    Session(SessionChange, oneshot::Sender<Result<(), Error>>),
    /// To show that it takes its turns.
    Turn(oneshot::Sender<()>),
}

struct Inner {
    queue: mpsc::Sender<WriterRequest>,
    reader: Arc<dyn Reader>,
    recent: recent::RecentTasks,
    task_wakeups: Arc<WakeUps<TaskId>>,
    /// Wakes readers of a session's outbox.
    session_wakeups: Arc<WakeUps<SessionId>>,
    clock: Arc<dyn Clock>,
    config: Config,
    /// Changes only if this node lost its lease.
    epoch: AtomicU64,
    /// The other nodes, where several share the store.
    cluster: Option<cluster::Membership>,
    away: away::Away,
    metrics: Arc<Metrics>,
    known_nodes: observe::KnownNodes,
    /// None if nothing is traced.
    tracer: OnceLock<Tracer>,
    secret: [u8; 32],
    runs: runs::Runs,
    timers: Arc<timers::Timers>,
    recovery_began: AtomicBool,
    /// Where the run of a task will send its notes; the run takes its sender when it begins.
    note_senders: Mutex<HashMap<TaskId, mpsc::Sender<CallNote>>>,
    work: OnceLock<Arc<dyn Work>>,
    failed: watch::Sender<Option<Failure>>,
    runtime: tokio::runtime::Handle,
}

impl Inner {
    /// Records that nothing can be stored any more. The first reason stays.
    fn fail(&self, failure: Failure) {
        self.failed.send_if_modified(|failed| {
            let is_first = failed.is_none();
            failed.get_or_insert(failure);
            is_first
        });
    }
}

/// A handle that does not keep the engine alive.
#[derive(Clone)]
pub(crate) struct WeakEngine(Weak<Inner>);

impl WeakEngine {
    pub(crate) fn get(&self) -> Option<Engine> {
        self.0.upgrade().map(Engine)
    }
}

/// The handle of the engine; cheap to clone.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("epoch", &self.epoch()).finish_non_exhaustive()
    }
}

impl Engine {
    /// Starts an engine on `store`. Nothing runs before [`set_work`](Self::set_work).
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn start(store: impl Store, clock: Arc<dyn Clock>, config: Config) -> Result<Self, store::Error> {
        let (queue, commands) = mpsc::channel(config.queue_len);
        let cluster = store.cluster().map(|cluster| cluster::Membership::new(cluster, &clock, config.orphan_after));
        let clock = cluster.as_ref().map_or(clock, |cluster| cluster.clock.clone());
        let metrics = Arc::new(Metrics::new(clock.now()));
        let inner = Arc::new(Inner {
            queue,
            reader: store.reader(),
            recent: recent::RecentTasks::new(config.cache_bytes),
            task_wakeups: Arc::new(WakeUps::new(metrics.feed_lag(Feed::Task, &clock))),
            session_wakeups: Arc::new(WakeUps::new(metrics.feed_lag(Feed::Session, &clock))),
            clock,
            config,
            epoch: AtomicU64::new(store.epoch().0),
            cluster,
            away: away::Away::default(),
            secret: store.secret(),
            runs: runs::Runs::new(metrics.clone()),
            metrics,
            known_nodes: observe::KnownNodes::default(),
            tracer: OnceLock::new(),
            timers: Arc::default(),
            recovery_began: AtomicBool::new(false),
            note_senders: Mutex::default(),
            work: OnceLock::new(),
            failed: watch::Sender::new(None),
            runtime: tokio::runtime::Handle::current(),
        });
        writer::spawn(store, &inner, commands)?;
        let engine = Self(inner);
        cluster::begin(&engine);
        Ok(engine)
    }

    /// Gives the engine its work. Calls can be made from now on.
    pub fn set_work(&self, work: Arc<dyn Work>) {
        let _ = self.0.work.set(work);
    }

    /// Recovers the tasks that an earlier start of the server left open, then starts the timers. Call it once, when all tools are there.
    pub fn recover(&self) {
        self.recover_with(|_| Box::pin(std::future::ready(())));
    }

    /// The same, and calls `seen` with each open task once it is recovered, then with `None`.
    pub(crate) fn recover_with(&self, seen: impl Fn(Option<Arc<Task>>) -> BoxFuture<'static, ()> + Send + Sync + 'static) {
        if self.0.recovery_began.swap(true, Ordering::AcqRel) {
            return;
        }
        let engine = self.clone();
        if self.is_shared() {
            cluster::recover(self, Box::new(seen));
            self.0.runtime.spawn(timers::run(Arc::downgrade(&self.0)));
            return;
        }
        tokio::spawn(async move {
            // The timers start later: they must not fail an interrupted task for time in which nobody worked on it.
            recovery::recover(&engine, &seen).await;
            seen(None).await;
            let inner = Arc::downgrade(&engine.0);
            drop(engine);
            timers::run(inner).await;
        });
    }

    pub(crate) fn weak(&self) -> WeakEngine {
        WeakEngine(Arc::downgrade(&self.0))
    }

    /// The clock of this engine.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.0.clock
    }

    /// The number of this start of the server.
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.0.epoch.load(Ordering::Acquire))
    }

    /// Whether no other node takes what this one runs.
    pub(crate) fn has_lease(&self) -> bool {
        self.0.cluster.as_ref().is_none_or(cluster::Membership::has_lease)
    }

    /// How long a command goes on whose server is gone, where another node may start it anew.
    pub(crate) fn orphan_after(&self) -> Option<Duration> {
        self.is_shared().then_some(self.0.config.orphan_after)
    }

    /// Whether this node runs tasks of this epoch.
    fn runs_epoch(&self, epoch: Epoch) -> bool {
        epoch == self.epoch() && epoch != NO_EPOCH
    }

    /// Whether other nodes use the same store, so that what is in memory may be old.
    pub(crate) fn is_shared(&self) -> bool {
        self.0.cluster.is_some()
    }

    fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    /// Bounds on tasks.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.0.config.limits
    }

    /// The reading side of the store.
    #[must_use]
    pub fn reader(&self) -> &Arc<dyn Reader> {
        &self.0.reader
    }

    /// A key that only this store knows.
    #[must_use]
    pub fn secret(&self) -> &[u8; 32] {
        &self.0.secret
    }

    /// Sends a command to the writer and waits until its changes are durable.
    ///
    /// Once the command is in the queue, the writer carries it out even if the caller stops waiting.
    ///
    /// # Errors
    /// When the state machine refuses, or nothing can be stored any more.
    pub async fn submit(&self, id: TaskId, by: Authority, command: Command) -> Result<Receipt, Error> {
        let waits = !matches!(by, Authority::Caller(_));
        self.submit_as(id, by, command, waits).await
    }

    /// The same for what nobody sends again: it waits while the store cannot be reached.
    pub(crate) async fn submit_when_back(&self, id: TaskId, by: Authority, command: Command) -> Result<Receipt, Error> {
        self.submit_as(id, by, command, true).await
    }

    async fn submit_as(&self, id: TaskId, by: Authority, command: Command, waits: bool) -> Result<Receipt, Error> {
        if !waits && self.is_away() {
            return Err(self.away_error());
        }
        let (receipt, reply) = oneshot::channel();
        let request = TaskRequest::new(id, by, command, waits, receipt);
        self.0.queue.send(WriterRequest::Task(request)).await.map_err(|_| self.unavailable())?;
        reply.await.map_err(|_| self.unavailable())?
    }

    /// An id for a task to be made with [`create`](Self::create).
    #[must_use]
    pub fn new_id(&self) -> TaskId {
        new_task_id(self.0.clock.now())
    }

    /// Makes a task that is durable before its work begins.
    ///
    /// If the caller already used the idempotency key for the same call, that task is returned unchanged.
    ///
    /// # Errors
    /// When a limit is reached, the idempotency key was used for another call, or nothing can be stored any more.
    pub async fn create(
        &self,
        id: TaskId,
        spec: Arc<Spec>,
        request: Payload,
        resumed: &Continuation,
        notes: Option<mpsc::Sender<CallNote>>,
    ) -> Result<Receipt, Error> {
        let new = NewTask { continuation: resumed.to_payload(), ..NewTask::new(spec, request, self.epoch()) };
        let registration = notes.map(|notes| notes::NoteRegistration::new(self, id, notes));
        let receipt = self.submit_as(id, Authority::Engine, Command::Create(new), false).await?;
        if let Some(registration) = registration.filter(|_| receipt.task.id == id) {
            registration.keep();
        }
        Ok(receipt)
    }

    fn note_senders(&self) -> MutexGuard<'_, HashMap<TaskId, mpsc::Sender<CallNote>>> {
        self.0.note_senders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prepares a run that is not a task yet. It lives in memory until it ends or becomes the task `id`.
    #[must_use]
    pub fn prepare_run(
        &self,
        id: TaskId,
        spec: Arc<Spec>,
        request: Payload,
        resumed: Continuation,
        notes: Option<mpsc::Sender<CallNote>>,
    ) -> UnstartedRun {
        UnstartedRun::new(Arc::new(Run::loose(self.clone(), id, spec, request, resumed, notes)))
    }

    /// Changes a session and waits until that is durable.
    pub(crate) async fn change_session(&self, change: SessionChange) -> Result<(), Error> {
        if self.is_away() {
            return Err(self.away_error());
        }
        let (receipt, reply) = oneshot::channel();
        self.0.queue.send(WriterRequest::Session(change, receipt)).await.map_err(|_| self.unavailable())?;
        reply.await.map_err(|_| self.unavailable())?
    }

    /// Watches the outbox of a session. Read the outbox after this call, never before: else a change could be missed.
    pub(crate) fn watch_session(&self, id: SessionId) -> Watch<SessionId> {
        self.0.session_wakeups.watch(vec![id], true)
    }

    /// Watches tasks for changes, and for output if `output`. Read them after this call, never before: else a change could be missed.
    pub(crate) fn watch(&self, ids: Vec<TaskId>, output: bool) -> Watch<TaskId> {
        self.0.task_wakeups.watch(ids, output)
    }

    pub(crate) fn watchers(&self, id: TaskId) -> usize {
        self.0.task_wakeups.watchers(&id)
    }

    /// Spawns `work` on the engine's runtime, for whoever is being served just now; the caller need not be on it.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.runtime.spawn(audit::sent_from(audit::sender(), work));
    }

    /// Waits until the engine can no longer store anything, and says why.
    pub async fn failed(&self) -> Arc<str> {
        let mut failed = self.0.failed.subscribe();
        match failed.wait_for(Option::is_some).await {
            Ok(failure) => failure.as_ref().map_or_else(|| "unknown".into(), |failure| failure.reason.clone()),
            Err(_) => "the engine is gone".into(),
        }
    }

    /// How many attempts are running that would end with this process.
    #[must_use]
    pub fn running(&self) -> usize {
        self.0.runs.len()
    }

    /// Waits until nothing is running that would end with this process.
    pub async fn idle(&self) {
        self.0.runs.idle().await;
    }

    /// Whether another node runs under this epoch.
    pub(crate) async fn is_other_node(&self, epoch: Epoch) -> Result<bool, Error> {
        match &self.0.cluster {
            Some(membership) if epoch != self.epoch() => Ok(membership.cluster.is_alive(epoch).await?),
            _ => Ok(false),
        }
    }

    /// The nodes that share the store; none if this process has it alone.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn nodes(&self) -> Result<Vec<NodeInfo>, store::Error> {
        match &self.0.cluster {
            Some(membership) => membership.cluster.nodes().await,
            None => Ok(Vec::new()),
        }
    }

    /// Ends this node's lease for good, where nodes share the store: the others take over at once what still runs here.
    pub(crate) async fn leave(&self) {
        cluster::leave(self).await;
    }

    /// Leaves to other nodes what has not begun here, and takes nothing from them any more.
    pub(crate) fn hand_over(&self) {
        if let Some(membership) = &self.0.cluster {
            membership.hand_over();
        }
    }

    /// Whether other nodes begin what has not begun here.
    pub(crate) fn is_handing_over(&self) -> bool {
        self.0.cluster.as_ref().is_some_and(cluster::Membership::is_handing_over)
    }

    /// Whether nothing can be stored any more.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.0.failed.borrow().is_some()
    }

    fn unavailable(&self) -> Error {
        if self.is_away() && !self.has_failed() {
            return self.away_error();
        }
        Error::Unavailable(
            self.0.failed.borrow().as_ref().map_or_else(|| "it is shutting down".into(), |failure| failure.public_reason.clone()),
        )
    }

    fn work(&self) -> Option<&Arc<dyn Work>> {
        self.0.work.get()
    }

    fn spawn_attempt(&self, id: TaskId, attempt: Attempt, made: Option<(Arc<Task>, Event)>) {
        let engine = self.clone();
        self.0.runtime.spawn(async move {
            if let Err(error) = run::run_attempt(&engine, id, attempt, made).await {
                tracing::error!(task = %id, attempt = attempt.0, %error, "cannot run the attempt");
                let failed = Outcome::Failed(RpcError::internal_error(format!("the task could not be run: {error}")));
                if Box::pin(engine.submit(id, Authority::Attempt(attempt), Command::finish(failed))).await.is_err() {
                    engine.0.runs.unregister(id);
                }
            }
        });
    }
}
