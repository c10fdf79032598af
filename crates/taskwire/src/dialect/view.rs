//! What both eras show of a task alike.

use std::time::Duration;

use taskwire_core::{
    Timestamp,
    task::{Outcome, Task},
};

/// How much longer clients should wait between two looks at a long task.
const POLL_GROWTH_MAX: u32 = 5;

/// What to read next to the status: why it ended, or how it is getting on.
pub(super) fn status_message(task: &Task) -> Option<String> {
    match &task.outcome {
        Some(Outcome::Failed(error)) => Some(error.message.clone()),
        Some(Outcome::Cancelled { reason: Some(reason) }) => Some(reason.to_string()),
        Some(Outcome::Cancelled { reason: None }) => Some("cancelled".to_owned()),
        Some(Outcome::Completed { .. }) | None => {
            let progress = task.progress.map(|progress| match progress.total {
                Some(total) => format!("{}/{total}", progress.done),
                None => format!("{} done", progress.done),
            });
            match (task.message.as_deref(), progress) {
                (Some(message), Some(progress)) => Some(format!("{message} ({progress})")),
                (Some(message), None) => Some(message.to_owned()),
                (None, progress) => progress,
            }
        }
    }
}

/// A tenth of the time that the task has taken so far, within bounds.
pub(super) fn poll_interval(task: &Task, now: Timestamp, base: Duration) -> u64 {
    let interval = (now.since(task.created_at) / 10).clamp(base, base * POLL_GROWTH_MAX);
    u64::try_from(interval.as_millis()).unwrap_or(u64::MAX).max(1)
}
