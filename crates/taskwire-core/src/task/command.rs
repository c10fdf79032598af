//! What may be asked of a task, by whom, and how it is refused.

use std::sync::Arc;

use super::{
    blocks::Blocks,
    event::{Outcome, Progress},
    state::Spec,
};
use crate::{
    id::{Attempt, CallerId, Epoch, QuestionKey},
    payload::Payload,
};

/// In whose name a command comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Authority {
    /// A caller; it may touch only its own tasks.
    Caller(CallerId),
    /// The work itself, in the attempt that it belongs to.
    Attempt(Attempt),
    /// The engine: timers and recovery.
    Engine,
}

/// A task to be made, with what its work already produced before it became one.
#[derive(Debug, Clone)]
pub struct NewTask {
    /// What is fixed about it.
    pub spec: Arc<Spec>,
    /// The arguments of the call.
    pub arguments: Payload,
    /// The life of the node that makes it.
    pub epoch: Epoch,
    /// What the caller brought along when it was asked to call again.
    pub continuation: Option<Payload>,
    /// How long its work has been running already.
    pub spent_ms: u64,
    /// Chunks written before the task was made.
    pub chunks: Vec<Blocks>,
    /// What was last said before the task was made.
    pub status_report: Option<(Option<Arc<str>>, Option<Progress>)>,
    /// Where its work was when it had written these chunks.
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
    /// Say how it is getting on.
    ReportStatus {
        /// In words; what was said before stays if absent.
        message: Option<Arc<str>>,
        /// In numbers; what was said before stays if absent.
        progress: Option<Progress>,
    },
    /// Ask the caller something. Asking the same again is no new question.
    Ask {
        /// The question's name.
        key: QuestionKey,
        /// The question.
        request: Payload,
    },
    /// Save where the work is, together with what it has written up to there.
    Save {
        /// What it has written since, if anything.
        chunks: Vec<Blocks>,
        /// What the next attempt will be given.
        checkpoint: Payload,
    },
    /// End it, together with the last that it has written. Where that is too much, it fails instead.
    Finish {
        /// What it has written since, if anything.
        chunks: Vec<Blocks>,
        /// How.
        outcome: Outcome,
    },
    /// Answer questions. Names that are unknown or already answered are passed over.
    Answer(Vec<(QuestionKey, Payload)>),
    /// Call it off. An ended task stays as it is.
    Cancel {
        /// Why, if anybody said.
        reason: Option<Arc<str>>,
    },
    /// Do what is due: end an attempt that had its time, forget a task that was kept long enough.
    Tick,
    /// Take over from an earlier life of the node.
    Recover(Epoch),
}

impl Command {
    /// Ends a task that has nothing left to write.
    #[must_use]
    pub const fn finish(outcome: Outcome) -> Self {
        Self::Finish { chunks: Vec::new(), outcome }
    }
}

/// Why a command changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reject {
    /// There is no such task, or it is somebody else's: which of them, nobody learns.
    #[error("Task not found")]
    NotFound,
    /// It is over.
    #[error("the task has already ended")]
    Ended,
    /// Another attempt has taken over.
    #[error("attempt {0} has been replaced by a later one")]
    Stale(Attempt),
    /// A question's name was used for another question.
    #[error("the input key `{0}` was already used for another question")]
    QuestionKeyReused(String),
    /// The caller's own name for this call was used for another call.
    #[error("the idempotency key `{0}` was already used for another call")]
    IdempotencyKeyReused(String),
    /// A chunk without blocks.
    #[error("a chunk needs at least one content block")]
    EmptyChunk,
    /// Progress that is no number.
    #[error("progress must be a finite number")]
    NotANumber,
    /// A bound is reached.
    #[error("{what}: the limit is {max} (configuration key `limits.{key}`)")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// The bound.
        max: u64,
        /// Where it can be changed.
        key: &'static str,
    },
}

impl Reject {
    /// Whether there is no room for another task just now: its caller has too many or too much, or the disk is short.
    #[must_use]
    pub fn is_no_room_for_task(&self) -> bool {
        matches!(self, Self::Limit { key: "tasks_per_caller" | "stored_bytes_per_caller" | "disk_reserve_bytes", .. })
    }

    /// Whether there is no room for more output: of this task, of its caller, or on the disk.
    #[must_use]
    pub fn is_no_room_for_output(&self) -> bool {
        matches!(self, Self::Limit { key: "task_output_bytes" | "stored_bytes_per_caller" | "disk_reserve_bytes", .. })
    }
}
