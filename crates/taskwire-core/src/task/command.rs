//! Commands: what may be asked of a task, by whom, and why it is rejected.

use std::{ops::Range, sync::Arc, time::Duration};

use super::{
    blocks::Blocks,
    event::{Outcome, Progress},
    state::Spec,
};
use crate::{
    id::{Attempt, CallerId, Epoch, QuestionKey},
    payload::Payload,
};

/// Who sends a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Authority {
    /// A caller; it may touch only its own tasks.
    Caller(CallerId),
    /// The work itself, in the attempt that it belongs to.
    Attempt(Attempt),
    /// The engine: timers and recovery.
    Engine,
}

/// A task to be made, with what its run produced before the promotion.
#[derive(Debug, Clone)]
pub struct NewTask {
    /// What is fixed about it.
    pub spec: Arc<Spec>,
    /// The arguments of the call.
    pub arguments: Payload,
    /// The start of the server that makes it.
    pub epoch: Epoch,
    /// What the caller sent along when it called again with answers.
    pub continuation: Option<Payload>,
    /// How long its run has been running already.
    pub spent_ms: u64,
    /// Chunks written before the task was made.
    pub chunks: Vec<Blocks>,
    /// The last status before the task was made.
    pub status_report: Option<(Option<Arc<str>>, Option<Progress>)>,
    /// The checkpoint that these chunks lead to.
    pub checkpoint: Option<Payload>,
}

impl NewTask {
    /// One whose work has not begun.
    #[must_use]
    pub const fn new(spec: Arc<Spec>, request: Payload, epoch: Epoch) -> Self {
        Self { spec, arguments: request, epoch, continuation: None, spent_ms: 0, chunks: Vec::new(), status_report: None, checkpoint: None }
    }
}

/// What is asked of a task.
#[derive(Debug, Clone)]
pub enum Command {
    /// Make it.
    Create(NewTask),
    /// Write chunks, all or none.
    Append {
        /// At least one.
        chunks: Vec<Blocks>,
    },
    /// Report a status.
    ReportStatus {
        /// In words; the earlier message stays if absent.
        message: Option<Arc<str>>,
        /// In numbers; the earlier progress stays if absent.
        progress: Option<Progress>,
    },
    /// Ask the caller something. Asking the same again is no new question.
    Ask {
        /// The question's key.
        key: QuestionKey,
        /// The question.
        request: Payload,
    },
    /// Save a checkpoint, together with the output up to it.
    Save {
        /// The output since, if any.
        chunks: Vec<Blocks>,
        /// What the next attempt gets.
        checkpoint: Payload,
    },
    /// End it, together with its last output. If that is too much, it fails instead.
    Finish {
        /// The output since, if any.
        chunks: Vec<Blocks>,
        /// How it ended.
        outcome: Outcome,
    },
    /// Answer questions. Keys that are unknown or already answered are ignored.
    Answer(Vec<(QuestionKey, Payload)>),
    /// Cancel it. An ended task stays as it is.
    Cancel {
        /// Why, if known.
        reason: Option<Arc<str>>,
    },
    /// A call on a node waits for it from now on. That is so for a task that other calls may share, and else for one that no call waits
    /// for; an ended one must be such that nobody waited for its outcome.
    Join {
        /// The node.
        epoch: Epoch,
        /// Nodes that are gone, and whose calls wait no longer.
        gone: Vec<Epoch>,
        /// Whether other calls may wait for it, too.
        shared: bool,
    },
    /// The calls of a node do not wait for it any longer.
    Leave {
        /// The node.
        epoch: Epoch,
    },
    /// Somebody has asked for a task that no call waits for.
    Touch,
    /// The calls of a node do not want it any longer: cancel it, unless calls of other nodes wait for it.
    Abandon {
        /// The node.
        epoch: Epoch,
        /// Why.
        reason: Arc<str>,
    },
    /// Do what is due: fail a task that timed out, forget one whose retention is over.
    Tick,
    /// Its work waits for a slot of its tool, and has not begun.
    Queue,
    /// Its work has a slot, and begins.
    Dequeue,
    /// Take it from a node where its work waits for a slot.
    TakeQueued {
        /// That node.
        from: Epoch,
        /// The start of the server that takes it.
        epoch: Epoch,
        /// For how long it must have waited there.
        after: Duration,
    },
    /// Recover it, if its attempt belongs to a server that is gone: run it again, or fail it.
    Recover {
        /// The starts of servers that are gone.
        lost: Range<Epoch>,
        /// The start of the server that takes it over.
        epoch: Epoch,
    },
}

impl Command {
    /// Recovers a task of any earlier start of the one server that uses its store.
    #[must_use]
    pub const fn recover(epoch: Epoch) -> Self {
        Self::Recover { lost: Epoch(0)..epoch, epoch }
    }

    /// Ends a task that has nothing left to write.
    #[must_use]
    pub const fn finish(outcome: Outcome) -> Self {
        Self::Finish { chunks: Vec::new(), outcome }
    }
}

/// Why a command changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reject {
    /// There is no such task, or it is another caller's: the error does not say which.
    #[error("Task not found")]
    NotFound,
    /// The task has ended.
    #[error("the task has already ended")]
    Ended,
    /// Another call waits for the task, or its caller knows it.
    #[error("another call has the task")]
    Awaited,
    /// A later attempt has replaced this one.
    #[error("attempt {0} has been replaced by a later one")]
    Stale(Attempt),
    /// A question key was used for another question.
    #[error("the question key `{0}` was already used for another question")]
    QuestionKeyReused(String),
    /// An idempotency key was used for another call.
    #[error("the idempotency key `{0}` was already used for another call")]
    IdempotencyKeyReused(String),
    /// A chunk without blocks.
    #[error("a chunk needs at least one content block")]
    EmptyChunk,
    /// Progress that is no number.
    #[error("progress must be a finite number")]
    NotANumber,
    /// A limit is reached.
    #[error("{what}: the limit is {max} (configuration key `{}{key}`)", table_of(.key))]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        max: u64,
        /// Its configuration key.
        key: &'static str,
    },
}

/// The table of the configuration that has a limit. Those of a tool stand in its own.
fn table_of(key: &str) -> &'static str {
    if matches!(key, "tasks_max" | "tasks_per_caller_max") { "" } else { "limits." }
}

impl Reject {
    /// Whether there is no room for another task just now: its caller or its tool has too many, its caller too much, or the disk is short.
    #[must_use]
    pub fn is_no_room_for_task(&self) -> bool {
        matches!(
            self,
            Self::Limit {
                key: "tasks_per_caller" | "tasks_per_caller_max" | "tasks_max" | "stored_bytes_per_caller" | "disk_reserve_bytes",
                ..
            }
        )
    }

    /// Whether there is no room for more output: of this task, of its caller, or on the disk.
    #[must_use]
    pub fn is_no_room_for_output(&self) -> bool {
        matches!(self, Self::Limit { key: "task_output_bytes" | "stored_bytes_per_caller" | "disk_reserve_bytes", .. })
    }
}
