//! What both eras show of a task: the text beside its status, and the poll interval.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};
use taskwire_core::{
    Payload, Timestamp,
    task::{Outcome, Task},
};

use crate::tool::FAILURE_REASON;

/// The longest text of a result that is shown beside a status.
const FAILURE_BYTES_MAX: usize = 1024;

/// How many times longer than the base the poll interval becomes.
const POLL_GROWTH_MAX: u32 = 5;

/// The text beside the status: why the task ended, or its progress.
pub(super) fn status_message(task: &Task) -> Option<String> {
    match &task.outcome {
        Some(Outcome::Completed { result, is_error: true }) => failure(result).or_else(|| progress_text(task)),
        Some(Outcome::Failed(error)) => Some(error.message.clone()),
        Some(Outcome::Cancelled { reason: Some(reason) }) => Some(reason.to_string()),
        Some(Outcome::Cancelled { reason: None }) => Some("cancelled".to_owned()),
        Some(Outcome::Completed { is_error: false, .. }) | None => progress_text(task),
    }
}

/// The progress as the tool reported it.
fn progress_text(task: &Task) -> Option<String> {
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

/// Why a call failed: `FAILURE_REASON` in the result's `_meta`, else the first text of its content.
fn failure(result: &Payload) -> Option<String> {
    #[derive(Deserialize)]
    struct Failed<'a> {
        #[serde(borrow)]
        content: Vec<&'a RawValue>,
        #[serde(default, rename = "_meta")]
        meta: Option<Map<String, Value>>,
    }
    let failed: Failed<'_> = result.read().ok()?;
    if let Some(Value::String(why)) = failed.meta.as_ref().and_then(|meta| meta.get(FAILURE_REASON)) {
        return Some(why.clone());
    }
    let first: Value = serde_json::from_str(failed.content.first()?.get()).ok()?;
    let mut text = first["text"].as_str()?.to_owned();
    if text.len() > FAILURE_BYTES_MAX {
        text.truncate(text.floor_char_boundary(FAILURE_BYTES_MAX - '…'.len_utf8()));
        text.push('…');
    }
    Some(text)
}

/// A tenth of the time that the task has taken so far, within limits.
pub(super) fn poll_interval(task: &Task, now: Timestamp, base: Duration) -> u64 {
    let interval = (now.since(task.created_at) / 10).clamp(base, base * POLL_GROWTH_MAX);
    u64::try_from(interval.as_millis()).unwrap_or(u64::MAX).max(1)
}
