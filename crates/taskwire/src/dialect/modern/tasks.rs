//! `tasks/get`, `tasks/update`, `tasks/cancel`.

use std::{borrow::Cow, collections::BTreeMap};

use serde::Deserialize;
use serde_json::value::RawValue;
use taskwire_core::{
    InputKey, Payload, TaskId,
    task::{Authority, Command, Reject},
};

use super::{Cx, Done, json::Object, json::with_info, view};
use crate::{dialect::Fault, engine};

#[derive(Deserialize)]
struct Which<'a> {
    #[serde(borrow, rename = "taskId")]
    task_id: Cow<'a, str>,
}

/// The id that the text stands for. Text that cannot be an id names no task: the same answer as for any other unknown one.
pub(super) fn task_id(text: &str) -> Result<TaskId, Fault> {
    text.parse().map_err(|_| not_found())
}

fn not_found() -> Fault {
    engine::Error::Rejected(Reject::NotFound).into()
}

pub(super) fn get(cx: &Cx<'_>) -> Result<Done, Fault> {
    cx.needs_tasks()?;
    let which: Which<'_> = cx.params()?;
    let engine = &cx.shared.engine;
    let task = engine.task(cx.caller, task_id(&which.task_id)?)?.ok_or_else(not_found)?;
    let object = with_info(Object::result("complete"), &cx.shared.info);
    Ok(view::detailed(object, &task, engine.clock().now(), cx.shared.config.poll_interval).into())
}

#[derive(Deserialize)]
struct Update<'a> {
    #[serde(borrow, rename = "taskId")]
    task_id: Cow<'a, str>,
    #[serde(borrow, rename = "inputResponses")]
    responses: BTreeMap<Cow<'a, str>, &'a RawValue>,
}

pub(super) async fn update(cx: &Cx<'_>) -> Result<Done, Fault> {
    cx.needs_tasks()?;
    let update: Update<'_> = cx.params()?;
    let id = task_id(&update.task_id)?;
    let mut answers = Vec::with_capacity(update.responses.len());
    for (key, response) in update.responses {
        answers.push((InputKey::new(&key), answer(&key, response)?));
    }
    cx.shared.engine.submit(id, Authority::Caller(cx.caller.clone()), Command::Answer(answers)).await?;
    Ok(ack())
}

/// An answer as it came; all kinds of answers are objects.
pub(super) fn answer(key: &str, response: &RawValue) -> Result<Payload, Fault> {
    if response.get().starts_with('{') {
        Ok(response.into())
    } else {
        Err(Fault::params(format!("the answer to `{key}` must be an object")))
    }
}

pub(super) async fn cancel(cx: &Cx<'_>) -> Result<Done, Fault> {
    cx.needs_tasks()?;
    let which: Which<'_> = cx.params()?;
    let command = Command::Cancel { reason: Some("cancelled by its caller".into()) };
    cx.shared.engine.submit(task_id(&which.task_id)?, Authority::Caller(cx.caller.clone()), command).await?;
    Ok(ack())
}

/// An acknowledgement says nothing else: some clients refuse one with more in it.
fn ack() -> Done {
    Object::result("complete").into()
}
