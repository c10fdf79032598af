//! `tasks/get`, `tasks/result`, `tasks/list`, `tasks/cancel`.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use taskwire_core::{
    TaskId,
    task::{Authority, Command, Reject, Task},
};

use super::{
    Cx,
    event_id::StreamKind,
    outcome, render, streaming,
    task_stream::{self, TaskStream},
};
use crate::{
    engine,
    protocol::{
        Fault, Reply,
        json::Object,
        params::{present, text},
        reply_budget::ReplyPermit,
        task_list::{self, TaskPage},
    },
};

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Params<'a> {
    #[serde(borrow, deserialize_with = "present")]
    task_id: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    last_seq_nr: Option<&'a RawValue>,
}

fn not_found() -> Fault {
    engine::Error::Rejected(Reject::NotFound).into()
}

/// The task that the request names. Text that is no id gets the same error as an unknown task.
fn task_id(params: &Params<'_>) -> Result<TaskId, Fault> {
    text(params.task_id, "taskId")?.parse().map_err(|_| not_found())
}

async fn task(cx: &Cx<'_>, id: TaskId) -> Result<Arc<Task>, Fault> {
    cx.context.engine.task(&cx.session.caller, id).await?.filter(|task| !task.spec.hidden).ok_or_else(not_found)
}

fn shown(cx: &Cx<'_>, task: &Task) -> Object {
    render::task(Object::roomy(), task, cx.context.engine.clock().now(), &cx.context.config)
}

pub(super) async fn get(cx: &Cx<'_>) -> Result<Object, Fault> {
    let task = task(cx, task_id(&cx.read()?)?).await?;
    Ok(shown(cx, &task))
}

pub(super) async fn cancel(cx: &Cx<'_>) -> Result<Object, Fault> {
    let id = task(cx, task_id(&cx.read()?)?).await?.id;
    let command = Command::Cancel { reason: Some("cancelled by its caller".into()) };
    let receipt = cx.context.engine.submit(id, Authority::Caller(cx.session.caller.clone()), command).await?;
    if !receipt.changed {
        let status = render::status(&receipt.task);
        return Err(Fault::params(format!("the task has already ended: it is {status}, and cannot be cancelled any more")));
    }
    Ok(shown(cx, &receipt.task))
}

pub(super) async fn list(cx: &Cx<'_>) -> Result<Object, Fault> {
    let TaskPage { tasks, next } = task_list::task_page(cx.context, &cx.session.caller, cx.raw_params, false).await?;
    let tasks: Vec<String> = tasks.iter().map(|task| shown(cx, task).into_text()).collect();
    let object = Object::roomy().raw("tasks", &format!("[{}]", tasks.join(",")));
    Ok(match next {
        Some(next) => object.put("nextCursor", &next),
        None => object,
    })
}

pub(super) async fn result(cx: &Cx<'_>) -> Result<Reply, Fault> {
    let params: Params<'_> = cx.read()?;
    let id = task_id(&params)?;
    let mut task = task(cx, id).await?;
    if let Some(raw) = params.last_seq_nr.filter(|_| cx.session.terms().modes.is_some()) {
        return pull(cx, &task, raw).await;
    }
    if task.ended.is_none() {
        let _open = cx.wait_permit()?;
        let request = cx.register_request()?;
        if cx.can_stream {
            let stream = task_stream::task_stream_id(StreamKind::Result, &task, cx.id);
            return cx.stream_reply(
                TaskStream::new(cx.context, cx.session, cx.out, stream, None, &task).for_request(&request).run().await,
                request,
            );
        }
        match cx.wait_until_ended(id, &request).await? {
            Some(ended) => task = ended,
            None => return Ok(Reply::accepted()),
        }
        request.responded();
    }
    let permit = if task.spec.output_is_result { reply_permit(cx, &task).await? } else { None };
    outcome::result(cx.context, &task, true, None).await.map(|object| with_permit(cx.reply(object), permit))
}

/// The output after a block (SEP-1905): all of it if the task has ended, else about as much as one response has.
async fn pull(cx: &Cx<'_>, task: &Arc<Task>, raw: &RawValue) -> Result<Reply, Fault> {
    let number: Option<u64> = serde_json::from_str(raw.get()).ok();
    let last = number.filter(|number| *number > 0).ok_or_else(|| Fault::params("`lastSeqNr` must be a whole number from 1 on"))?;
    let engine = &cx.context.engine;
    let block = last.saturating_add(1);
    let from = streaming::chunk_of(engine, task.id, block).await?;
    let mut part = streaming::read(engine, task.id, from, block, cx.context.config.read_bytes).await?.ok_or_else(not_found)?;
    let mut taken = None;
    if task.ended.is_some() && part.more {
        taken = reply_permit(cx, task).await?;
        part = streaming::read_on(engine, task.id, part).await?.ok_or_else(not_found)?;
    }
    part.complete &= task.ended.is_some();
    Ok(with_permit(cx.reply(streaming::pull_result(cx.context, task, part)), taken))
}

/// Waits for the permit of a reply that may contain the whole output of a task; a small one needs none.
async fn reply_permit(cx: &Cx<'_>, task: &Task) -> Result<Option<ReplyPermit>, Fault> {
    let (engine, config) = (&cx.context.engine, &cx.context.config);
    let bytes = task.output.bytes.saturating_sub(task.dropped_bytes(engine.limits()));
    if bytes <= config.read_bytes as u64 {
        return Ok(None);
    }
    tokio::select! {
        biased;
        taken = cx.context.reply_budget.acquire(bytes) => Ok(Some(taken)),
        () = engine.clock().sleep(config.wait_max) => {
            Err(Fault::busy("too many answers as large as this one are on their way already: try again in a second"))
        }
    }
}

fn with_permit(reply: Reply, permit: Option<ReplyPermit>) -> Reply {
    match permit {
        Some(permit) => reply.with_guard(permit),
        None => reply,
    }
}
