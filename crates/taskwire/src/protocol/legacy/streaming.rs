//! Calls with several responses (SEP-1905): numbered content blocks, sent as responses to the call or read by `tasks/result`.

use serde_json::{Value, json};
use taskwire_core::{
    Seq, TaskId, Version,
    task::{Outcome, Task},
};

use super::render::{self, RELATED_TASK, Segments};
use crate::{
    config::FirstAnswer,
    engine::{self, Engine},
    protocol::Context,
    protocol::json::Object,
    store::{Cursor, LogItem},
};

/// A part of a task's output.
#[derive(Debug)]
pub(super) struct OutputPart {
    pub(super) segments: Segments,
    /// The seq after it.
    pub(super) next: Seq,
    /// Whether the task has ended and nothing follows.
    pub(super) complete: bool,
    /// Whether more output is there already.
    pub(super) more: bool,
}

impl OutputPart {
    pub(super) fn nothing() -> Self {
        Self { segments: Segments::default(), next: Seq(0), complete: false, more: false }
    }
}

/// Reads output from a seq on, without blocks before `block`; none if there is no such task.
pub(super) async fn read(engine: &Engine, id: TaskId, from: Seq, block: u64, bytes: usize) -> Result<Option<OutputPart>, engine::Error> {
    let cursor = Cursor::output(from, bytes);
    let Some(page) = engine.page(id, cursor).await? else { return Ok(None) };
    let mut part = OutputPart { segments: Segments::default(), next: from, complete: false, more: page.more };
    for chunk in page.items.into_iter().filter_map(LogItem::into_chunk) {
        part.segments.add(&chunk, block);
        part.next = chunk.seq.next();
    }
    part.complete = page.ended && part.next >= page.next_seq;
    Ok(Some(part))
}

/// Reads the rest of the output of a task that has ended; `part` is its beginning.
pub(super) async fn read_on(engine: &Engine, id: TaskId, mut part: OutputPart) -> Result<Option<OutputPart>, engine::Error> {
    while part.more {
        let Some(next) = read(engine, id, part.next, 0, MERGE_BYTES).await? else { return Ok(None) };
        part.segments.append(&next.segments);
        part = OutputPart { segments: part.segments, ..next };
        // The output may be large: let other requests run.
        tokio::task::yield_now().await;
    }
    Ok(Some(part))
}

/// The chunk that contains a block, or the next one that is still stored.
pub(super) async fn chunk_of(engine: &Engine, id: TaskId, block: u64) -> Result<Seq, engine::Error> {
    let span = engine.chunk_range(id).await?;
    let (mut low, mut high) = (span.start.0, span.end.0);
    // Finds the last chunk that does not begin after the block.
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        let cursor = Cursor { after: Version(u64::MAX), from: Some(Seq(middle)), max_bytes: 0, max_chunks: 1 };
        let page = engine.page(id, cursor).await?;
        let first = page.and_then(|page| page.items.into_iter().find_map(LogItem::into_chunk)).map(|chunk| chunk.first_block);
        if first.is_some_and(|first| first <= block) { low = middle } else { high = middle }
    }
    Ok(Seq(low))
}

/// All blocks of a task's output, as one list. While the store cannot be reached, this waits.
pub(super) async fn all_blocks(engine: &Engine, id: TaskId) -> Result<String, engine::Error> {
    let span = engine.read_when_back(|| engine.chunk_range(id)).await?;
    let (mut list, mut from) = (String::from("["), span.start);
    loop {
        let cursor = Cursor::output(from, MERGE_BYTES);
        let Some(page) = engine.read_when_back(|| engine.page(id, cursor)).await? else { break };
        let more = page.more;
        for chunk in page.items.into_iter().filter_map(LogItem::into_chunk) {
            for block in render::blocks(chunk.blocks.as_str()) {
                if list.len() > 1 {
                    list.push(',');
                }
                list.push_str(block.get());
            }
            from = chunk.seq.next();
        }
        if !more {
            break;
        }
    }
    list.push(']');
    Ok(list)
}

/// Bytes that are read at a time when all output is wanted.
const MERGE_BYTES: usize = 1024 * 1024;

/// The result that carries a part. The last one has the outcome.
pub(super) fn result(context: &Context, task: &Task, part: OutputPart, with_task: bool) -> Object {
    let meta = json!({RELATED_TASK: {"taskId": task.id}});
    let shown = || render::task(Object::open(), task, context.engine.clock().now(), &context.config).into_text();
    let object = if with_task { Object::roomy().raw("task", &shown()) } else { Object::roomy() };
    let end = |object: Object, error: bool, over: bool| object.put("isError", &error).put("isComplete", &over).put("_meta", &meta);
    let Some(outcome) = task.outcome.as_ref().filter(|_| part.complete) else {
        return end(object.raw("partial-content", &part.segments.into_json()), false, false);
    };
    let wrote = task.output.next_seq > Seq(0);
    match outcome {
        Outcome::Completed { result, is_error } => {
            let object = match structured(outcome) {
                Some(value) => object.put("structuredContent", &value),
                None => object,
            };
            let object = if *is_error && !wrote {
                object.put("content", &result.read::<Value>().unwrap_or_default()["content"])
            } else {
                object.raw("partial-content", &part.segments.into_json())
            };
            end(object, *is_error, true)
        }
        Outcome::Failed(error) if !wrote => end(object.put("content", &json!([{"type": "text", "text": error.message}])), true, true),
        Outcome::Failed(_) | Outcome::Cancelled { .. } => {
            let object = if with_task { object } else { object.raw("task", &shown()) };
            end(object.raw("partial-content", &part.segments.into_json()), true, true)
        }
    }
}

/// The result that carries a part which the client asked for by number.
pub(super) fn pull_result(context: &Context, task: &Task, part: OutputPart) -> Object {
    let outcome = task.outcome.as_ref().filter(|_| part.complete);
    let failed = outcome.is_some_and(|outcome| !matches!(outcome, Outcome::Completed { is_error: false, .. }));
    let object = Object::roomy().raw("partial-content", &part.segments.into_json());
    let object = match outcome.and_then(structured) {
        Some(value) => object.put("structuredContent", &value),
        None => object,
    };
    let object = match outcome {
        Some(Outcome::Failed(_) | Outcome::Cancelled { .. }) => {
            object.raw("task", &render::task(Object::open(), task, context.engine.clock().now(), &context.config).into_text())
        }
        _ => object,
    };
    object.put("isError", &failed).put("isComplete", &part.complete).raw("_meta", &render::related(task.id))
}

/// The structured content of a result, which is an object in this era.
fn structured(outcome: &Outcome) -> Option<Value> {
    let Outcome::Completed { result, .. } = outcome else { return None };
    result.read::<Value>().ok()?.get("structuredContent").filter(|value| value.is_object()).cloned()
}

/// The first response to a streamed call, and whether it contains the part; if not, that comes next.
pub(super) fn first_result(context: &Context, task: &Task, part: OutputPart) -> (Object, bool) {
    let nothing = part.segments.is_empty() && !part.complete;
    match context.config.legacy.initial {
        FirstAnswer::Partial => (result(context, task, part, false), true),
        FirstAnswer::Both if !nothing => (result(context, task, part, true), true),
        FirstAnswer::Both | FirstAnswer::Task => (create_task_result(context, task, &json!({RELATED_TASK: {"taskId": task.id}})), false),
    }
}

/// A created task, with this `_meta`.
pub(super) fn create_task_result(context: &Context, task: &Task, meta: &Value) -> Object {
    let shown = render::task(Object::open(), task, context.engine.clock().now(), &context.config).into_text();
    let object = Object::roomy().raw("task", &shown);
    if meta.as_object().is_none_or(serde_json::Map::is_empty) { object } else { object.put("_meta", meta) }
}
