//! What a task needs from the engine: an attempt that runs, and its next tick. Always recomputed, never stored (invariant I8),
//! so a crash loses nothing.

use std::time::Duration;

use super::state::Task;
use crate::{id::Attempt, time::Timestamp};

/// What a task needs from the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wants {
    /// The attempt that must be running. Any other run of this task must stop.
    pub attempt: Option<Attempt>,
    /// When the task must next get a [`Tick`](super::Command::Tick).
    pub due: Option<Timestamp>,
}

/// What `task` needs now.
#[must_use]
pub fn wants(task: &Task) -> Wants {
    match (task.ended, task.asked_at) {
        (Some((at, _)), _) => Wants { attempt: None, due: later(at, task.spec.retention_ms) },
        (None, Some(at)) => Wants { attempt: Some(task.attempt), due: later(at, task.spec.answer_timeout_ms) },
        (None, None) => Wants { attempt: Some(task.attempt), due: task.deadline },
    }
}

fn later(at: Timestamp, ms: Option<u64>) -> Option<Timestamp> {
    ms.map(|ms| at.after(Duration::from_millis(ms)))
}
