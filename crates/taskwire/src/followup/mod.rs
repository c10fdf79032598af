//! Follow-up for clients without tasks: the reply to a call whose hold has expired, and the tools by which a language model goes on
//! from there.
//!
//! The texts are the product. Their reader knows nothing of tasks and must do the right thing next: wait with `task_wait`, never call the
//! slow tool again, ask its user before it answers a question. So each text says what the state is, what not to do, and which tool to call
//! with which arguments, ready to be copied.

mod answer;
mod block;
mod cancel;
mod list;
mod output;
mod question;
pub(crate) mod resource;
mod texts;
mod wait;

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use taskwire_core::{
    CallerId, TaskId,
    task::{Authority, Command, Outcome, Reject, Task},
};
use tokio::sync::watch;

pub(crate) use texts::{dedupe_note, failed, failure_without_task, no_task_possible, shutting_down, task_result};

use crate::{
    engine::{self, Engine},
    tool::{Ctx, Provider, ReadyTool, Registry, TaskMode, ToolError},
};

const WAIT: &str = "task_wait";
const OUTPUT: &str = "task_output";
const ANSWER: &str = "task_answer";
const CANCEL: &str = "task_cancel";
const LIST: &str = "task_list";

/// Running tasks that the reply to an unknown id lists.
const LISTED_MAX: usize = 10;
/// Tasks of a caller that are searched for these.
const LOOKED_AT_MAX: usize = 200;
/// Characters of a wrong id that are repeated.
const QUOTED_MAX: usize = 64;

/// What the tools need to know about their server.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// How long `task_wait` waits by default, and at most.
    pub(crate) hold: Duration,
    /// Bytes of output in one reply of `task_output`.
    pub(crate) output_bytes: usize,
    /// Becomes true when the server begins to shut down: then no call is held any more.
    pub(crate) draining: watch::Receiver<bool>,
}

/// The tools, in the order in which they are listed.
pub(crate) fn tools(settings: &Settings) -> Vec<Arc<ReadyTool>> {
    let registry = Registry::new();
    for tool in [wait::tool(settings), output::tool(settings), answer::tool(), cancel::tool(), list::tool()] {
        registry.tool(tool.task(TaskMode::Never)).expect("our own tools are well formed");
    }
    registry.tools()
}

/// Finds the task that a model names. The error lists the caller's running tasks.
async fn find_task(ctx: &Ctx, id_text: &str) -> Result<Arc<Task>, ToolError> {
    let (engine, caller) = (ctx.run().engine(), &ctx.run().spec().caller);
    let task = match read_id(id_text) {
        Some(id) => engine.task(caller, id).await?,
        None => None,
    };
    match task {
        Some(task) => Ok(task),
        None => Err(ToolError::new(unknown(engine, caller, id_text).await?)),
    }
}

/// Submits a command in the caller's name. If the task was forgotten in this very moment, the error is that of an unknown id.
async fn submit(ctx: &Ctx, id_text: &str, id: TaskId, command: Command) -> Result<engine::Receipt, ToolError> {
    let by = Authority::Caller(ctx.run().spec().caller.clone());
    match ctx.run().engine().submit(id, by, command).await {
        Err(engine::Error::Rejected(Reject::NotFound)) => Err(find_task(ctx, id_text).await.err().unwrap_or_else(ToolError::stopped)),
        submitted => Ok(submitted?),
    }
}

/// Reads an id from a text. Models sometimes put quotes around it.
pub(crate) fn read_id(text: &str) -> Option<TaskId> {
    let wrapping = |c: char| c.is_whitespace() || "`'\"<>".contains(c);
    text.trim_matches(wrapping).to_ascii_lowercase().parse().ok()
}

/// The error text for an id that names no task of this caller. It is the same if the task is another caller's.
async fn unknown(engine: &Engine, caller: &CallerId, id_text: &str) -> Result<String, engine::Error> {
    let now = engine.clock().now();
    let running = running_tasks(engine, caller).await?;
    let list = running.iter().fold(String::new(), |list, task| {
        let age = duration_text(now.since(task.began_at()));
        let asks = if task.asked_at.is_some() { ", has a question" } else { "" };
        format!("{list}\n- {}: `{}`, running for {age}{asks}", task.id, task.spec.tool)
    });
    let own = match list.as_str() {
        "" => "You have no running task. Ids stand in the answers of tools that were still running; a task that has ended is \
               forgotten after some time."
            .to_owned(),
        list => format!("Your running tasks, the latest first:{list}"),
    };
    Ok(format!("There is no task {} of yours. Use an id exactly as a tool gave it to you.\n{own}", quoted(id_text)))
}

/// The caller's latest tasks that have not ended and that it may know of.
async fn running_tasks(engine: &Engine, caller: &CallerId) -> Result<Vec<Arc<Task>>, engine::Error> {
    let mut found = Vec::new();
    for id in engine.reader().tasks_of(caller, None, LOOKED_AT_MAX).await? {
        let known = |task: &Arc<Task>| task.outcome.is_none() && (!task.spec.hidden || task.spec.findable);
        found.extend(engine::skip_corrupt(engine.task(caller, id).await)?.filter(known));
        if found.len() == LISTED_MAX {
            break;
        }
    }
    Ok(found)
}

/// A duration for people, no more exact than they need.
fn duration_text(span: Duration) -> String {
    let seconds = span.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, 0) => format!("{minutes} min"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, 0, _) => format!("{hours} h"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

/// The arguments of a follow-up tool, to be copied.
fn arguments(id: TaskId, more: &[(&str, Value)]) -> String {
    let mut text = format!("{{\"task_id\":\"{id}\"");
    for (key, value) in more {
        text.push_str(&format!(",\"{key}\":{value}"));
    }
    text.push('}');
    text
}

/// What `task_wait` does with a task that has ended. One that failed or was cancelled has no result.
fn wait_effect(task: &Task) -> &'static str {
    match task.outcome {
        Some(Outcome::Completed { .. }) => "gives its result",
        _ => "says what came of it",
    }
}

/// A text that somebody else wrote: shortened, without characters that could break out of its line.
fn quoted(text: &str) -> String {
    let shown: String = text.chars().take(QUOTED_MAX).map(|c| if c.is_control() || c == '`' { ' ' } else { c }).collect();
    let more = if text.chars().nth(QUOTED_MAX).is_some() { "…" } else { "" };
    format!("`{shown}{more}`")
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use taskwire_core::{
        Epoch, Timestamp,
        id::ID_RANDOM_BYTES,
        task::{Event, Spec, create},
    };

    use super::*;

    fn id() -> TaskId {
        TaskId::new(Timestamp::from_millis(5_000), [7; ID_RANDOM_BYTES])
    }

    #[test]
    fn durations_are_written_as_people_say_them() {
        for (seconds, expected) in
            [(0, "0 s"), (59, "59 s"), (60, "1 min"), (61, "1 min 1 s"), (3600, "1 h"), (3659, "1 h"), (7_380, "2 h 3 min")]
        {
            assert_eq!(duration_text(Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn an_id_is_read_however_a_model_wraps_it_and_nothing_else_is() {
        let id = id();
        for text in [format!("{id}"), format!(" `{id}`\n"), format!("\"{}\"", id.to_string().to_uppercase()), format!("<{id}>")] {
            assert_eq!(read_id(&text), Some(id), "{text}");
        }
        for text in ["", "the last one", &format!("{id}{id}"), &id.to_string()[1..], "\u{0}"] {
            assert_eq!(read_id(text), None, "{text}");
        }
    }

    #[test]
    fn arguments_are_json_with_the_id_first() {
        let text = arguments(id(), &[("key", json!("a \"b\"")), ("value", json!({"n": 1}))]);
        assert!(text.starts_with(&format!("{{\"task_id\":\"{}\",\"key\":", id())), "{text}");
        let read: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(read, json!({"task_id": id().to_string(), "key": "a \"b\"", "value": {"n": 1}}));
    }

    #[test]
    fn what_others_wrote_stays_in_its_line() {
        assert_eq!(quoted("a`b\nc\u{1b}d"), "`a b c d`");
        assert_eq!(quoted(&"é".repeat(100)).chars().count(), QUOTED_MAX + 3);
    }

    #[test]
    fn work_began_when_its_id_was_made() {
        let spec = Arc::new(Spec::new(CallerId::new("me"), "t"));
        let created =
            |spent_ms| Event::Created { spec: spec.clone(), arguments: json!({}).into(), epoch: Epoch(1), continuation: None, spent_ms };
        let late = create(id(), &created(45_000), Timestamp::from_millis(50_000));
        assert_eq!(late.began_at(), Timestamp::from_millis(5_000));
        let early = create(id(), &created(0), Timestamp::from_millis(4_000));
        assert_eq!(early.began_at(), Timestamp::from_millis(4_000), "a clock that was set back makes no time before the task");
    }

    #[test]
    fn the_tools_are_listed_by_name_and_are_never_tasks() {
        let settings = Settings { hold: Duration::from_secs(45), output_bytes: 1_000, draining: watch::channel(false).1 };
        let tools = tools(&settings);
        let names: Vec<&str> = tools.iter().map(|tool| &*tool.0.name).collect();
        assert_eq!(names, [WAIT, OUTPUT, ANSWER, CANCEL, LIST]);
        for tool in &tools[..4] {
            assert_eq!(tool.0.policy.task, TaskMode::Never);
            let wire: Value = tool.0.wire.read().expect("JSON");
            assert!(wire["description"].as_str().is_some_and(|text| text.len() > 80), "{wire}");
            assert_eq!(wire["inputSchema"]["required"], json!(["task_id"]));
            assert!(tool.0.problems(&json!({"task_id": "x"})).is_empty() && !tool.0.problems(&json!({})).is_empty());
        }
        let wait: Value = tools[0].0.wire.read().expect("JSON");
        assert!(wait["inputSchema"]["properties"]["timeout_s"]["description"].as_str().expect("text").contains("45"), "{wait}");
    }
}
