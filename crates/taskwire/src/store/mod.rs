//! Where tasks are kept. One trait to write, one to read, one test suite for every backend.
//!
//! A store keeps events, heads and chunks, and sessions with their outboxes; it must not know the engine, the wire, or an era.
//! [`Store::commit`] returns only when the batch will survive a crash (invariant I3).

mod busy;
mod checksum;
mod copy;
mod damage;
mod data_dir;
mod disk_space;
mod error;
mod examine;
mod files;
mod marker;
mod memory;
mod page;
#[cfg(feature = "postgres")]
mod postgres;
mod reader;
mod session;
mod sqlite;
mod sqlite_read;
mod sqlite_session;
#[cfg(test)]
mod suite;
#[cfg(feature = "postgres")]
mod transfer;
mod wal;

use std::{future::Future, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;

use taskwire_core::{
    CallerId, Epoch, Payload, Seq, SessionId, TaskId, Timestamp, Version,
    task::{Blocks, Event, OnInterrupt, Spec, Task},
};

pub use copy::{CopiedStore, StoreRestore, back_up};
pub(crate) use disk_space::free_bytes;
pub use error::{DatabaseError, Error, ErrorKind};
pub use examine::{DirectoryFindings, PageCheck, StoreFindings, examine_directory, examine_store};
pub use memory::{Memory, MemoryStore};
pub use page::{Cursor, LogItem, Page};
pub(crate) use page::{PAGE_EVENTS, UnmergedPage};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresConfig, PostgresError, PostgresFindings, PostgresStore};
pub(crate) use reader::at_once;
pub use reader::{Read, Reader, Space};
pub use session::{OutboxItem, Session, SessionChange};
pub use sqlite::SqliteStore;
#[cfg(feature = "postgres")]
pub use transfer::{Contents, Findings, MoveProgress, MoveStep, Place, StoreMove};

/// What happened to one task, to be made durable.
#[derive(Debug, Clone)]
pub struct TaskWrite {
    /// The task after the events.
    pub task: Arc<Task>,
    /// The version that the first of the events made.
    pub first_version: Version,
    /// When they happened.
    pub at: Timestamp,
    /// What happened, in order; at least one.
    pub events: Vec<Event>,
    /// The events of checkpoints that were replaced, also by these events.
    pub stale_checkpoints: Vec<Version>,
    /// Bytes at the beginning of the output that need not be kept: chunks that lie within them are to go.
    pub dropped_bytes: u64,
    /// How many changes the outbox of the task's session keeps.
    pub outbox_max: u64,
    /// Bytes that the task counts as after the events, in its caller's usage.
    pub stored_bytes: u64,
}

/// A task whose command has begun, and has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenCommand {
    /// The task.
    pub task: TaskId,
    /// How far its output was taken over.
    pub checkpoint: Option<Payload>,
}

impl OpenCommand {
    /// The command of a task, if it has begun and has not ended.
    fn of(task: &Task, checkpoint: Option<Payload>) -> Option<Self> {
        let is_open = task.ended.is_none() && task.queued_at.is_none() && task.spec.on_interrupt == OnInterrupt::Resume;
        is_open.then_some(Self { task: task.id, checkpoint })
    }
}

/// What a caller has stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Usage {
    /// Tasks that have not ended.
    pub open: u64,
    /// About how many bytes its tasks take.
    pub bytes: u64,
}

/// One chunk as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Its number.
    pub seq: Seq,
    /// The version of the task that it made: its position among the other events.
    pub version: Version,
    /// The number of its first block.
    pub first_block: u64,
    /// Its content blocks.
    pub blocks: Blocks,
}

/// One event as it was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// The version of the task that it made.
    pub version: Version,
    /// When it happened.
    pub at: Timestamp,
    /// What happened.
    pub event: Event,
}

/// What became of one write of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// It is durable.
    Done,
    /// Nothing of it was written: the task is not at the version that it was decided on. This is the task now; none if it is not there.
    Conflict(Option<Box<Task>>),
    /// Nothing of it was written: this task has its idempotency key or its dedupe key.
    KeyTaken(TaskId),
}

/// A key under which a call finds a task that was made before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CallKey<'a> {
    /// The caller's own key; it is taken until the task is forgotten.
    Idempotency(&'a CallerId, &'a str),
    /// The fingerprint of a call whose tool is deduped, and whether its caller does not know the task; it is taken until the task ends.
    Dedupe(&'a CallerId, bool, &'a str),
}

impl<'a> CallKey<'a> {
    /// The keys of a task that has not ended.
    pub fn of(spec: &'a Spec) -> impl Iterator<Item = Self> {
        let idempotency = spec.idempotency_key.as_deref().map(|key| Self::Idempotency(&spec.caller, key));
        let dedupe = spec.fingerprint.as_deref().map(|key| Self::Dedupe(&spec.caller, spec.hidden, key));
        idempotency.into_iter().chain(dedupe)
    }
}

/// The writing side; a process has one.
pub trait Store: Send + 'static {
    /// Whether its calls may block their thread. The writer has a thread of its own then.
    const BLOCKS: bool;

    /// The task as of the last commit.
    fn load(&mut self, id: TaskId) -> impl Future<Output = Result<Option<Task>, Error>> + Send;

    /// Bytes that an ended task counts as, fixed at its end.
    fn stored_bytes(&mut self, id: TaskId) -> impl Future<Output = Result<u64, Error>> + Send;

    /// Makes `writes`, at most one for each task, and the changes of sessions durable, and says for each write what became of it. Each write
    /// is carried out whole, and only if its task is at the version before `first_version`. All that is carried out survives a crash, or
    /// nothing does. An error that is [`ErrorKind::Corrupt`] means that nothing was done, because of what one of the writes met.
    fn commit(&mut self, writes: &[TaskWrite], sessions: &[SessionChange]) -> impl Future<Output = Result<Vec<Written>, Error>> + Send;

    /// Bytes that can still be stored, if that is known.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// Gives some unused space back to the disk, quickly; returns whether there is more.
    fn reclaim(&mut self) -> Result<bool, Error> {
        Ok(false)
    }

    /// The number of this start: larger than that of any earlier opening.
    fn epoch(&self) -> Epoch;

    /// A key that only this store knows, the same at every start.
    fn secret(&self) -> [u8; 32];

    /// The usage of each caller: how many open tasks, and the bytes of its ended tasks. Nobody asks where nodes share the store.
    ///
    /// # Errors
    /// When it cannot be read.
    fn usage(&self) -> Result<Vec<(CallerId, Usage)>, Error>;

    /// The reading side.
    fn reader(&self) -> Arc<dyn Reader>;

    /// The other nodes; none if no other process can use this store while this one does.
    fn cluster(&self) -> Option<Arc<dyn Cluster>> {
        None
    }
}

/// The lease of a node, as the store has just renewed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// The time of the store, which all nodes share.
    pub now: Timestamp,
    /// For how long from then on no other node takes what this one runs.
    pub lasts: Duration,
    /// The longest time that commands of a node may go on without it, of all nodes that are there, or are gone and are remembered. Zero if
    /// that is not known yet.
    pub orphan_after: Duration,
}

/// A node, as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInfo {
    /// The name that its operator gave it. Two nodes may have the same.
    pub name: Arc<str>,
    /// The epoch that the tasks name which it runs.
    pub epoch: Epoch,
    /// When it began.
    pub since: Timestamp,
    /// How much is left of its lease; zero if it has expired, and no other node has declared it dead yet.
    pub lease_left: Duration,
    /// How many tasks it runs, or waits with for an answer.
    pub open_tasks: u64,
}

/// A task that has not ended, and whose node is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StrandedTask {
    /// The task.
    pub id: TaskId,
    /// The epoch of that node.
    pub epoch: Epoch,
    /// Since when that node has no lease; `Duration::MAX` if nobody knows any more.
    pub gone_for: Duration,
}

/// What other nodes changed. It is a hint: it may be lost, late or repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changes {
    /// These tasks, and the outboxes of these sessions.
    Of(Vec<TaskId>, Vec<SessionId>),
    /// Anything may have changed.
    Unknown,
}

/// A store that several nodes share: who is alive, and what the others change.
pub trait Cluster: Send + Sync + 'static {
    /// The lease that began when the store was opened, and how long ago that was.
    fn first_lease(&self) -> (Lease, Duration);

    /// Renews the lease of this node, whose commands go on for `orphan_after` without it. Also one that has expired; none if another node
    /// has declared this one dead.
    fn renew(&self, epoch: Epoch, orphan_after: Duration) -> BoxFuture<'_, Result<Option<Lease>, Error>>;

    /// Begins a new lease under a new epoch, after the last one expired.
    fn rejoin(&self) -> BoxFuture<'_, Result<Epoch, Error>>;

    /// Ends the lease: others may take at once what this node ran.
    fn leave(&self, epoch: Epoch) -> BoxFuture<'_, Result<(), Error>>;

    /// Whether the node of this epoch has not been declared dead.
    fn is_alive(&self, epoch: Epoch) -> BoxFuture<'_, Result<bool, Error>>;

    /// Tasks that have not ended and whose node is gone, ordered by epoch and id, after `after`, at most `limit`. If it is to judge, it
    /// first declares the nodes dead whose lease has expired at the store's time `judge_at`.
    fn stranded_tasks(
        &self,
        judge_at: Option<Timestamp>,
        after: Option<(Epoch, TaskId)>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<StrandedTask>, Error>>;

    /// Tasks of these tools that wait for a slot on nodes other than that of `epoch` and alive, each with the epoch of its node; the oldest
    /// ones, at most as many as it says for each tool.
    fn queued_tasks<'a>(&'a self, epoch: Epoch, free: &'a [(String, usize)]) -> BoxFuture<'a, Result<Vec<(TaskId, Epoch)>, Error>>;

    /// The versions of these tasks, in their order; none for one that is not there.
    fn versions<'a>(&'a self, ids: &'a [TaskId]) -> BoxFuture<'a, Result<Vec<Option<Version>>, Error>>;

    /// What a caller has stored, counting all nodes.
    fn usage_of<'a>(&'a self, caller: &'a CallerId) -> BoxFuture<'a, Result<Usage, Error>>;

    /// The nodes that have not been declared dead, in the order of their epochs.
    fn nodes(&self) -> BoxFuture<'_, Result<Vec<NodeInfo>, Error>>;

    /// Whether announcements reach the other nodes. If not, they look at the store more often.
    fn has_wakeups(&self) -> bool {
        true
    }

    /// Tells the other nodes what this one changed.
    fn announce(&self, changes: Changes);

    /// Waits for what other nodes announce.
    fn next_changes(&self) -> BoxFuture<'_, Changes>;
}
