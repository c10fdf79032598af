//! `task_list`: lists running and ended tasks, for a model that has lost an id or never had one.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;
use taskwire_core::{
    Timestamp, Version,
    task::{Event, Task},
};

use super::{LIST, WAIT, duration_text, quoted};
use crate::{
    engine::{self, Engine},
    tool::{Annotations, CallResult, Content, Ctx, Tool, ToolError},
};

/// Tasks that are listed if the caller does not say how many, and at most.
const LIMIT_DEFAULT_AND_MAX: (usize, usize) = (20, 100);
/// Tasks of a caller that are searched for these.
const LOOKED_AT_MAX: usize = 1_000;

const DESCRIPTION: &str = "Lists the tasks of this server that are yours, the latest first: tool calls that are running or have ended, with their ids, \
    arguments and state. Use it to find a call again whose answer you did not get, before you call the same tool a second time. task_wait gives \
    the result of one.";

#[derive(Deserialize, Default, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum State {
    Running,
    Ended,
    #[default]
    All,
}

impl State {
    fn matches(self, task: &Task) -> bool {
        match self {
            Self::Running => task.ended.is_none(),
            Self::Ended => task.ended.is_some(),
            Self::All => true,
        }
    }
}

#[derive(Deserialize)]
struct Arguments {
    #[serde(default)]
    state: Option<State>,
    #[serde(default)]
    limit: Option<f64>,
}

pub(super) fn tool() -> Tool {
    let (usual, most) = LIMIT_DEFAULT_AND_MAX;
    let schema = json!({
        "type": "object",
        "properties": {
            "state": {"type": "string", "enum": ["running", "ended", "all"], "description": "Which ones; all, if you leave it out."},
            "limit": {"type": "integer", "minimum": 1, "maximum": most, "description": format!("How many at most; {usual}, if you leave it out.")},
        },
        "additionalProperties": false,
    });
    Tool::raw(LIST, DESCRIPTION, schema, list).title("List tasks").annotations(Annotations::default().read_only(true).open_world(false))
}

async fn list(ctx: Ctx) -> Result<CallResult, ToolError> {
    let Arguments { state, limit } = ctx.arguments().read()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the schema has bounds for it")]
    let limit = limit.map_or(LIMIT_DEFAULT_AND_MAX.0, |limit| (limit as usize).clamp(1, LIMIT_DEFAULT_AND_MAX.1));
    let (engine, caller) = (ctx.run().engine(), &ctx.run().spec().caller);
    let (mut found, mut more) = (Vec::new(), false);
    for id in engine.reader().tasks_of(caller, None, LOOKED_AT_MAX).await.map_err(engine::Error::from)? {
        let Some(task) = engine::skip_corrupt(engine.task(caller, id).await)?.filter(|task| state.unwrap_or_default().matches(task)) else {
            continue;
        };
        more = found.len() == limit;
        if more {
            break;
        }
        found.push(task);
    }
    Ok(CallResult::of([Content::text(report(engine, &found, more).await)]))
}

async fn report(engine: &Engine, tasks: &[Arc<Task>], more: bool) -> String {
    let now = engine.clock().now();
    let mut lines = Vec::with_capacity(tasks.len());
    for task in tasks {
        lines.push(line(task, arguments(engine, task).await.as_deref(), now));
    }
    match lines.len() {
        0 => "There are no such tasks of yours.".to_owned(),
        _ => {
            let rest = if more { "\nThere are older ones: `limit` shows more." } else { "" };
            format!("Your tasks, the latest first:\n{}{rest}\n`{WAIT}` with an id as task_id gives the result of one.", lines.join("\n"))
        }
    }
}

/// One task in one line.
fn line(task: &Task, arguments: Option<&str>, now: Timestamp) -> String {
    let began = task.began_at();
    let with_arguments = arguments.map(|arguments| format!(" with {}", quoted(arguments))).unwrap_or_default();
    let how = match task.ended {
        None if task.asked_at.is_some() => format!("has a question, began {} ago", duration_text(now.since(began))),
        None => format!("running for {}", duration_text(now.since(began))),
        Some((at, _)) => format!("{} {} ago, after {}", task.status(), duration_text(now.since(at)), duration_text(at.since(began))),
    };
    let said =
        task.message.as_deref().filter(|_| task.ended.is_none()).map(|said| format!("; it says: {}", quoted(said))).unwrap_or_default();
    format!("- {}: `{}`{with_arguments}, {how}{said}", task.id, task.spec.tool)
}

/// The arguments that a task was made with.
async fn arguments(engine: &Engine, task: &Task) -> Option<String> {
    match engine.reader().event(task.id, Version(1)).await {
        Ok(Some(Event::Created { arguments: request, .. })) if request.as_str() != "{}" => Some(request.as_str().to_owned()),
        _ => None,
    }
}
