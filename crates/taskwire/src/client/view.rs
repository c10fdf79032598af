//! A task as either era shows it.

use serde_json::Value;
use taskwire_core::Payload;

use super::{Status, TaskView, form::whole_number};

/// Reads what both eras say of a task; they differ in the names of two times.
pub(crate) fn read(raw: &Payload, ttl: &str, poll: &str) -> Result<TaskView, String> {
    let value: Value = raw.read().map_err(|error| format!("a task that is none: {error}"))?;
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    let status = value["status"].as_str().ok_or("a task without `status`")?;
    Ok(TaskView {
        id: text("taskId").ok_or("a task without `taskId`")?,
        status: Status::read(status).ok_or_else(|| format!("a task with the status `{status}`, which is none"))?,
        message: text("statusMessage"),
        created_at: text("createdAt").unwrap_or_default(),
        updated_at: text("lastUpdatedAt").unwrap_or_default(),
        ttl_ms: whole_number(&value[ttl]),
        poll_ms: whole_number(&value[poll]),
        inputs: Vec::new(),
        outcome: None,
        raw: value,
    })
}
