//! Makes tasks happen: one writer, the runs it asks for, the timers it needs.
//!
//! Start with [`Engine`], the handle, then `writer`. The engine knows no wire and no era, and does not know what a tool
//! is: it knows [`Work`] that can be run.

mod recent;
mod recovery;
mod run;
mod runs;
mod switch;
mod timers;
mod writer;

#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::future::BoxFuture;
use taskwire_core::{
    Attempt, CallerId, Epoch, Limits, Payload, TaskId, Version,
    task::{Authority, Command, NewTask, Reject, Spec, Task},
};
use tokio::sync::{mpsc, oneshot, watch};

pub use run::{End, Held, Note, Phase, Resumed, Run};

use crate::{
    clock::{Clock, new_task_id},
    feed::{Feed, Watch},
    store::{self, Logged, Reader, Store},
};

/// What the engine runs: given a run, does its work and says how it ended.
pub trait Work: Send + Sync + 'static {
    /// Does the work of `run`. It may be dropped at any await point once the run is stopped.
    fn run(&self, run: Arc<Run>) -> BoxFuture<'static, End>;
}

/// How an engine behaves.
#[derive(Debug, Clone)]
pub struct Config {
    /// Bounds on tasks.
    pub limits: Limits,
    /// How long stopped work may take to clean up before it is dropped.
    pub grace: Duration,
    /// Commands that may wait for the writer.
    pub queue_len: usize,
    /// Bytes of recently changed tasks to keep in memory.
    pub cache_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { limits: Limits::DEFAULT, grace: Duration::from_secs(5), queue_len: 4_096, cache_bytes: 128 * 1024 * 1024 }
    }
}

/// Why the engine did not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The state machine refused.
    #[error(transparent)]
    Rejected(#[from] Reject),
    /// The store failed or the engine has stopped; only a restart helps.
    #[error("the server cannot store tasks: {0}")]
    Unavailable(Arc<str>),
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        Self::Unavailable(error.to_string().into())
    }
}

/// That a command was carried out, and is durable.
#[derive(Debug, Clone)]
pub struct Receipt {
    /// The task after it.
    pub task: Arc<Task>,
    /// Whether anything changed.
    pub changed: bool,
}

struct Envelope {
    id: TaskId,
    by: Authority,
    command: Command,
    receipt: oneshot::Sender<Result<Receipt, Error>>,
}

struct Inner {
    queue: mpsc::Sender<Envelope>,
    reader: Arc<dyn Reader>,
    recent: recent::Recent,
    feed: Arc<Feed>,
    clock: Arc<dyn Clock>,
    config: Config,
    epoch: Epoch,
    secret: [u8; 32],
    runs: runs::Runs,
    timers: timers::Timers,
    work: OnceLock<Arc<dyn Work>>,
    failed: watch::Sender<Option<Arc<str>>>,
    runtime: tokio::runtime::Handle,
}

/// The door to the engine; cheap to clone.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("epoch", &self.0.epoch).finish_non_exhaustive()
    }
}

impl Engine {
    /// Starts an engine on `store`. Nothing runs before [`begin`](Self::begin).
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn start(store: impl Store, clock: Arc<dyn Clock>, config: Config) -> Result<Self, store::Error> {
        let (queue, commands) = mpsc::channel(config.queue_len);
        let inner = Arc::new(Inner {
            queue,
            reader: store.reader(),
            recent: recent::Recent::new(config.cache_bytes),
            feed: Arc::default(),
            clock,
            config,
            epoch: store.epoch(),
            secret: store.secret(),
            runs: runs::Runs::default(),
            timers: timers::Timers::default(),
            work: OnceLock::new(),
            failed: watch::Sender::new(None),
            runtime: tokio::runtime::Handle::current(),
        });
        writer::spawn(store, &inner, commands)?;
        Ok(Self(inner))
    }

    /// Gives the engine its work, takes over what an earlier life left, and starts the timers.
    pub fn begin(&self, work: Arc<dyn Work>) {
        if self.0.work.set(work).is_ok() {
            tokio::spawn(recovery::recover(self.clone()));
            tokio::spawn(timers::run(Arc::downgrade(&self.0)));
        }
    }

    /// The moment it is, for this engine.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.0.clock
    }

    /// Bounds on tasks.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.0.config.limits
    }

    /// What is stored.
    #[must_use]
    pub fn reader(&self) -> &Arc<dyn Reader> {
        &self.0.reader
    }

    /// A key that only this store knows.
    #[must_use]
    pub fn secret(&self) -> &[u8; 32] {
        &self.0.secret
    }

    /// Asks something of a task and waits until it is durable.
    ///
    /// Once this has been polled, the command is carried out even if the wait is given up.
    ///
    /// # Errors
    /// When the state machine refuses, or nothing can be stored any more.
    pub async fn submit(&self, id: TaskId, by: Authority, command: Command) -> Result<Receipt, Error> {
        let (receipt, answer) = oneshot::channel();
        self.0.queue.send(Envelope { id, by, command, receipt }).await.map_err(|_| self.gone())?;
        answer.await.map_err(|_| self.gone())?
    }

    /// The task, if `caller` owns it. Somebody else's does not exist.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn task(&self, caller: &CallerId, id: TaskId) -> Result<Option<Arc<Task>>, Error> {
        Ok(self.any_task(id)?.filter(|task| task.spec.caller == *caller))
    }

    /// The task, whoever owns it.
    fn any_task(&self, id: TaskId) -> Result<Option<Arc<Task>>, Error> {
        match self.0.recent.task(id) {
            Some(task) => Ok(Some(task)),
            None => Ok(self.0.reader.task(id)?.map(Arc::new)),
        }
    }

    /// What happened to a task after `after`, without its chunks, at most `limit` events.
    pub(crate) fn events(&self, id: TaskId, after: Version, limit: usize) -> Result<Vec<Logged>, Error> {
        match self.0.recent.events(id, after) {
            Some(events) => Ok(events),
            None => Ok(self.0.reader.events(id, after, limit)?),
        }
    }

    /// Makes a task that is durable before its work begins.
    ///
    /// If the caller already used the idempotency key for the same call, that task is returned unchanged.
    ///
    /// # Errors
    /// When a limit is reached, the idempotency key was used for another call, or nothing can be stored any more.
    pub async fn create(&self, spec: Arc<Spec>, request: Payload) -> Result<Receipt, Error> {
        let id = new_task_id(self.0.clock.now());
        let new = NewTask { spec, request, epoch: self.0.epoch, carried: None, spent_ms: 0, chunks: Vec::new(), said: None };
        self.submit(id, Authority::Engine, Command::Create(new)).await
    }

    /// Starts work that is not a task yet. It lives in memory until it becomes one or ends.
    #[must_use]
    pub fn launch(&self, spec: Arc<Spec>, request: Payload, resumed: Resumed, notes: Option<mpsc::Sender<Note>>) -> Held {
        Held::new(Arc::new(Run::loose(self.clone(), spec, request, resumed, notes)))
    }

    /// Watches tasks for changes. Read the store after this, never before: else a change could be missed.
    pub(crate) fn watch(&self, ids: Vec<TaskId>) -> Watch {
        self.0.feed.watch(ids)
    }

    /// Waits until the engine can no longer store anything, and says why.
    pub async fn failed(&self) -> Arc<str> {
        let mut failed = self.0.failed.subscribe();
        match failed.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_else(|| "unknown".into()),
            Err(_) => "the engine is gone".into(),
        }
    }

    /// How many attempts are running.
    #[must_use]
    pub fn running(&self) -> usize {
        self.0.runs.len()
    }

    /// Waits until nothing is running.
    pub async fn idle(&self) {
        self.0.runs.idle().await;
    }

    fn gone(&self) -> Error {
        Error::Unavailable(self.0.failed.borrow().clone().unwrap_or_else(|| "it is shutting down".into()))
    }

    fn work(&self) -> Option<&Arc<dyn Work>> {
        self.0.work.get()
    }

    fn spawn_attempt(&self, id: TaskId, attempt: Attempt) {
        let engine = self.clone();
        self.0.runtime.spawn(async move {
            if let Err(error) = run::attempt(&engine, id, attempt).await {
                tracing::error!(task = %id, %attempt, %error, "cannot run the attempt");
                engine.0.runs.disown(id);
            }
        });
    }
}
