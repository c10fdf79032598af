//! `tasks/get`, `tasks/update`, `tasks/cancel`, and `dev.taskwire/tasks/list`.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use taskwire_core::{
    Payload, QuestionKey, TaskId,
    task::{Authority, Command, Reject, Task},
};

use super::{
    Cx, MethodResult,
    json::{Object, typed, with_info},
    long_poll, render,
};
use crate::{
    audit::AuditAction,
    engine,
    protocol::{
        Fault,
        params::text,
        task_list::{self, TaskPage},
    },
    tool,
};

/// The version of the task in a result. A client may send it back, to wait for a later one.
const VERSION: &str = "dev.taskwire/version";

/// The task that the request names. Text that is no id gets the same error as an unknown task.
pub(super) fn task_id(cx: &Cx<'_>) -> Result<TaskId, Fault> {
    let id = text(cx.params.task_id, "taskId")?.parse().map_err(|_| not_found())?;
    // Lingering work goes on while somebody asks for it.
    cx.context.calls.touch(cx.context, cx.caller, id);
    Ok(id)
}

pub(super) fn not_found() -> Fault {
    engine::Error::Rejected(Reject::NotFound).into()
}

pub(super) async fn get(cx: &Cx<'_>) -> Result<MethodResult, Fault> {
    cx.needs_tasks()?;
    let engine = &cx.context.engine;
    let task = engine.task(cx.caller, task_id(cx)?).await?.ok_or_else(not_found)?;
    let task = long_poll::for_change(cx, task).await?;
    let object = typed("complete");
    let object = if cx.meta.partials {
        let meta = Object::open().splice(&cx.context.server_info_meta).put(VERSION, &task.visible_version.0);
        object.raw("_meta", &meta.into_text())
    } else {
        with_info(object, cx.context)
    };
    Ok(render::detailed_task(object, &task, engine.clock().now(), cx.context.config.poll_interval).into())
}

/// `dev.taskwire/tasks/list`: all tasks of the caller, the latest first.
pub(super) async fn list(cx: &Cx<'_>) -> Result<MethodResult, Fault> {
    cx.needs_list()?;
    let TaskPage { tasks, next } = task_list::task_page(cx.context, cx.caller, cx.raw_params, true).await?;
    let (now, poll) = (cx.context.engine.clock().now(), cx.context.config.poll_interval);
    let tasks: Vec<String> =
        tasks.iter().map(|task| render::task(Object::open(), task, now, poll).put("tool", &*task.spec.tool).into_text()).collect();
    let object = with_info(typed("complete"), cx.context).raw("tasks", &format!("[{}]", tasks.join(",")));
    Ok(match next {
        Some(next) => object.put("nextCursor", &next).into(),
        None => object.into(),
    })
}

pub(super) async fn update(cx: &Cx<'_>) -> Result<MethodResult, Fault> {
    cx.needs_tasks()?;
    let id = task_id(cx)?;
    let raw = cx.params.input_responses.ok_or_else(|| Fault::params("`inputResponses` is missing"))?;
    let (answers, engine) = (answers(raw)?, &cx.context.engine);
    let task = engine.task_to_change(AuditAction::Answer, cx.caller, id).await?;
    let answers = for_task(&task, answers)?;
    if !answers.is_empty() {
        engine.submit(id, Authority::Caller(cx.caller.clone()), Command::Answer(answers)).await?;
    }
    Ok(ack())
}

/// Answers by key, not checked yet. Every answer is an object.
pub(super) fn answers(raw: &RawValue) -> Result<BTreeMap<String, Payload>, Fault> {
    let answers: BTreeMap<String, Payload> =
        serde_json::from_str(raw.get()).map_err(|error| Fault::params(format!("invalid `inputResponses`: {error}")))?;
    match answers.iter().find(|(_, answer)| !answer.as_str().starts_with('{')) {
        Some((key, _)) => Err(Fault::params(format!("the answer to `{key}` must be an object"))),
        None => Ok(answers),
    }
}

/// The answers to open questions (`question` finds them), checked and normalized. Other answers are ignored. If one does not fit its
/// question, the whole request is refused.
pub(super) fn fitting<'a>(
    answers: BTreeMap<String, Payload>,
    question: impl Fn(&str) -> Option<&'a Payload>,
) -> Result<BTreeMap<String, Payload>, Fault> {
    let mut taken = BTreeMap::new();
    for (key, answer) in answers {
        if let Some(question) = question(&key) {
            let answer = tool::check_answer(question, answer).map_err(|why| misfitting(&key, &why))?;
            taken.insert(key, answer);
        }
    }
    Ok(taken)
}

/// The answers to what the task asks.
pub(super) fn for_task(task: &Task, answers: BTreeMap<String, Payload>) -> Result<Vec<(QuestionKey, Payload)>, Fault> {
    let open: BTreeMap<&str, &Payload> = task.open_questions().map(|(key, question)| (key.as_str(), question)).collect();
    let taken = fitting(answers, |key| open.get(key).copied())?;
    Ok(taken.into_iter().map(|(key, answer)| (QuestionKey::new(&key), answer)).collect())
}

pub(super) fn misfitting(key: &str, why: &str) -> Fault {
    Fault::params(format!("the answer to `{key}` does not fit its question: {why}. Nothing was answered: correct it, and send it again"))
}

pub(super) async fn cancel(cx: &Cx<'_>) -> Result<MethodResult, Fault> {
    cx.needs_tasks()?;
    let (id, engine) = (task_id(cx)?, &cx.context.engine);
    // Reading takes as long for another caller's task as for one that never was; the writer need not.
    engine.task_to_change(AuditAction::Cancel, cx.caller, id).await?;
    let command = Command::Cancel { reason: Some("cancelled by its caller".into()) };
    engine.submit(id, Authority::Caller(cx.caller.clone()), command).await?;
    Ok(ack())
}

/// An acknowledgement. Some clients refuse one with more members.
fn ack() -> MethodResult {
    typed("complete").into()
}
