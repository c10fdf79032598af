//! How a task ended, as the answer to a request.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;
use taskwire_core::{
    Payload,
    task::{Outcome, RpcError, Task},
    wire::{RequestId, code, write_error},
};

use super::{
    streamed,
    view::{self, RELATED_TASK},
};
use crate::{
    dialect::{
        Context, Fault,
        call::{held, waiter::Waiter},
        json::Object,
    },
    engine,
};

/// What a task made in this era keeps of the request that made it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Origin {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    progress_token: Option<RequestId>,
}

impl Origin {
    /// Nothing, where there is nothing to keep.
    pub(super) fn keep(progress_token: Option<RequestId>) -> Option<Payload> {
        progress_token.as_ref()?;
        Payload::of(&Self { progress_token }).ok()
    }
}

/// The name under which the client hears of a task's progress.
pub(super) fn progress_token(task: &Task) -> Option<RequestId> {
    task.spec.origin.as_ref().and_then(|origin| origin.read::<Origin>().ok())?.progress_token
}

/// What a request for a task's result gets; the task is named if it is `known`. A call that waits for it may have joined it.
pub(super) fn result(shared: &Context, task: &Task, known: bool, waiter: Option<&Waiter>) -> Result<Object, Fault> {
    let noting = |result: Payload| waiter.map_or_else(|| result.clone(), |waiter| waiter.noting(result.clone()));
    if let Some(result) = held::failed(shared, task) {
        return Ok(view::call_result(&noting(result), None, None));
    }
    let meta = known.then(|| json!({RELATED_TASK: {"taskId": task.id}}));
    let whole = || task.spec.output_is_result.then(|| streamed::merged(&shared.engine, task.id)).transpose();
    match &task.outcome {
        Some(Outcome::Completed { result, is_error }) => {
            // An error is the result, if there is nothing else.
            let content = whole()?.filter(|content| !(*is_error && content == "[]"));
            Ok(view::call_result(&noting(result.clone()), meta.as_ref(), content.as_deref()))
        }
        Some(Outcome::Failed(error)) => Err(Fault::from(error.clone())),
        Some(Outcome::Cancelled { .. }) if task.spec.output_is_result => {
            let object = Object::roomy().raw("content", whole()?.as_deref().unwrap_or("[]")).put("isError", &true);
            Ok(match meta {
                Some(meta) => object.put("_meta", &meta),
                None => object,
            })
        }
        Some(Outcome::Cancelled { reason }) => {
            let message = match reason {
                Some(reason) => format!("Task was cancelled: {reason}"),
                None => "Task was cancelled".to_owned(),
            };
            let data = json!({"taskId": task.id, "status": view::status(task).as_str()});
            Err(Fault::from(RpcError { code: code::INTERNAL_ERROR, message, data: Some(data.into()) }))
        }
        None => Err(Fault::internal("the task has not ended")),
    }
}

/// The response to such a request.
pub(super) fn message(
    shared: &Context,
    request: &RequestId,
    task: &Arc<Task>,
    known: bool,
    waiter: Option<&Waiter>,
) -> Result<Vec<u8>, engine::Error> {
    Ok(match result(shared, task, known, waiter) {
        Ok(result) => view::response(request, result),
        Err(fault) => {
            let mut message = Vec::new();
            if let Err(error) = write_error(&mut message, Some(request), &super::downgraded(fault).error) {
                tracing::error!(%error, "an error could not be written");
            }
            message
        }
    })
}
