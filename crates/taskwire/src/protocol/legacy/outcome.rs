//! The outcome of a task as the response to a request.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;
use taskwire_core::{
    Payload, SessionId,
    task::{Outcome, RpcError, Task},
    wire::{RequestId, code, write_error},
};

use super::{
    render::{self, RELATED_TASK},
    streaming,
};
use crate::{
    engine,
    protocol::{
        Context, Fault,
        call::{hold, waiter::Waiter},
        json::Object,
    },
};

/// What a task keeps of the request that made it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct TaskOrigin {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    progress_token: Option<RequestId>,
    /// The request that made the task, where another node may have to find it by that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request: Option<RequestId>,
}

impl TaskOrigin {
    /// None if there is nothing to keep.
    pub(super) fn to_payload(progress_token: Option<RequestId>, request: Option<RequestId>) -> Option<Payload> {
        progress_token.as_ref().or(request.as_ref())?;
        Payload::of(&Self { progress_token, request }).ok()
    }
}

/// Whether this request of this session made the task.
pub(super) fn is_of_request(task: &Task, session: &SessionId, request: &RequestId) -> bool {
    let origin = || task.spec.origin.as_ref()?.read::<TaskOrigin>().ok()?.request;
    task.spec.outbox.as_ref().is_some_and(|follower| follower.session == *session) && origin().as_ref() == Some(request)
}

pub(super) fn progress_token(task: &Task) -> Option<RequestId> {
    task.spec.origin.as_ref().and_then(|origin| origin.read::<TaskOrigin>().ok())?.progress_token
}

/// The result of a task that has ended, which names the task if that is `known` to the caller, and says so if the call joined it.
pub(super) async fn result(context: &Context, task: &Task, known: bool, waiter: Option<&Waiter>) -> Result<Object, Fault> {
    let noting = |result: Payload| waiter.map_or_else(|| result.clone(), |waiter| waiter.with_joined_text(result.clone()));
    if let Some(result) = hold::failure_result(context, task).await {
        return Ok(render::call_result(&noting(result), None, None));
    }
    let meta = known.then(|| json!({RELATED_TASK: {"taskId": task.id}}));
    let whole = match &task.outcome {
        Some(Outcome::Completed { .. } | Outcome::Cancelled { .. }) if task.spec.output_is_result => {
            Some(streaming::all_blocks(&context.engine, task.id).await?)
        }
        _ => None,
    };
    match &task.outcome {
        Some(Outcome::Completed { result, is_error }) => {
            // Without output, the error is the result.
            let content = whole.filter(|content| !(*is_error && content == "[]"));
            Ok(render::call_result(&noting(result.clone()), meta.as_ref(), content.as_deref()))
        }
        Some(Outcome::Failed(error)) => Err(Fault::from(error.clone())),
        Some(Outcome::Cancelled { .. }) if task.spec.output_is_result => {
            let object = Object::roomy().raw("content", whole.as_deref().unwrap_or("[]")).put("isError", &true);
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
            let data = json!({"taskId": task.id, "status": render::status(task).as_str()});
            Err(Fault::from(RpcError { code: code::INTERNAL_ERROR, message, data: Some(data.into()) }))
        }
        None => Err(Fault::internal("the task has not ended")),
    }
}

/// The same as a response.
pub(super) async fn message(
    context: &Context,
    request: &RequestId,
    task: &Arc<Task>,
    known: bool,
    waiter: Option<&Waiter>,
) -> Result<Vec<u8>, engine::Error> {
    Ok(match result(context, task, known, waiter).await {
        Ok(result) => render::response(request, result),
        Err(fault) => {
            let mut message = Vec::new();
            if let Err(error) = write_error(&mut message, Some(request), &super::legacy_fault(fault).error) {
                tracing::error!(%error, "an error could not be written");
            }
            message
        }
    })
}
