//! `task_cancel`: cancels a task.

use serde::Deserialize;
use serde_json::json;
use taskwire_core::task::{Command, Task};

use super::{CANCEL, OUTPUT, WAIT, arguments, find_task, submit};
use crate::tool::{Annotations, CallResult, Content, Ctx, Tool, ToolError};

const DESCRIPTION: &str = "Stops a running task of this server for good. Its work ends and it gives no result. Use it when your user wants it, or \
    when the result is no longer needed; not because a task takes long.";

#[derive(Deserialize)]
struct Arguments {
    task_id: String,
}

pub(super) fn tool() -> Tool {
    let schema = json!({
        "type": "object",
        "properties": {"task_id": {"type": "string", "description": "The task's id, as a tool gave it."}},
        "required": ["task_id"],
        "additionalProperties": false,
    });
    Tool::raw(CANCEL, DESCRIPTION, schema, cancel)
        .title("Stop a task")
        .annotations(Annotations::default().read_only(false).destructive(true).idempotent(true).open_world(false))
}

async fn cancel(ctx: Ctx) -> Result<CallResult, ToolError> {
    let Arguments { task_id } = ctx.arguments().read()?;
    let command = Command::Cancel { reason: Some("cancelled by its caller".into()) };
    let receipt = submit(&ctx, &task_id, find_task(&ctx, &task_id).await?.id, command).await?;
    Ok(CallResult::of([Content::text(report(&receipt.task, receipt.changed))]))
}

fn report(task: &Task, changed: bool) -> String {
    let (tool, same) = (&task.spec.tool, arguments(task.id, &[]));
    if changed {
        format!("`{tool}` (task {}) is cancelled. It gives no result. What it wrote before can be read with `{OUTPUT}` {same}.", task.id)
    } else {
        let how = task.status();
        format!(
            "`{tool}` (task {}) had already ended ({how}), so there was nothing to stop. `{WAIT}` {same} says what came of it.",
            task.id
        )
    }
}
