//! `dev.taskwire/partials/read`: a task's output from any seq on, for clients that poll.

use serde::Deserialize;
use serde_json::value::RawValue;
use taskwire_core::{Seq, Version};

use super::{
    Cx, MethodResult,
    json::{Object, typed, with_info},
    long_poll::{self, LongPoll},
    tasks::{not_found, task_id},
};
use crate::{
    protocol::{
        Fault,
        params::{number, present},
    },
    store::{Chunk, Cursor, LogItem, Page},
};

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Read<'a> {
    #[serde(borrow, deserialize_with = "present")]
    from_seq: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    limit: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    wait_ms: Option<&'a RawValue>,
}

pub(super) async fn read(cx: &Cx<'_>) -> Result<MethodResult, Fault> {
    cx.needs_partials()?;
    let id = task_id(cx)?;
    let read: Read<'_> = cx.read()?;
    let from = Seq(number(read.from_seq, "fromSeq", 0)?);
    let limit = number(read.limit, "limit", u64::MAX)?;
    if limit == 0 {
        return Err(Fault::params("`limit` must be at least 1"));
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let span = long_poll::span(cx, number(read.wait_ms, "waitMs", 0)?);
    let engine = &cx.context.engine;
    if engine.task(cx.caller, id).await?.is_none() {
        return Err(not_found());
    }
    let cursor = Cursor { after: Version(u64::MAX), from: Some(from), max_bytes: cx.context.config.read_bytes, max_chunks: limit };
    let mut waiting = None;
    loop {
        let page = engine.page(id, cursor).await?.ok_or_else(not_found)?;
        if page.items.is_empty() && !page.ended && !span.is_zero() {
            // Begin to watch, then read again, so that no change is missed.
            let go_on = match &mut waiting {
                None => {
                    waiting = Some(LongPoll::begin(cx, id, span, true)?);
                    true
                }
                Some(waiting) => waiting.woken().await,
            };
            if go_on {
                continue;
            }
        }
        return Ok(page_result(cx, from, page).into());
    }
}

fn page_result(cx: &Cx<'_>, from: Seq, page: Page) -> Object {
    let (ended, end) = (page.ended, page.next_seq);
    let chunks: Vec<Chunk> = page.items.into_iter().filter_map(LogItem::into_chunk).collect();
    let list: Vec<String> =
        chunks.iter().map(|chunk| Object::open().put("seq", &chunk.seq.0).raw("content", chunk.blocks.as_str()).into_text()).collect();
    // Chunks that were dropped are skipped. A seq that does not exist yet stays the next one.
    let begins = chunks.first().map_or(from, |chunk| chunk.seq);
    let next = chunks.last().map_or(from, |chunk| chunk.seq.next());
    with_info(typed("complete"), cx.context)
        .raw("chunks", &format!("[{}]", list.join(",")))
        .put("fromSeq", &begins.0)
        .put("nextSeq", &next.0)
        .put("done", &(ended && next >= end))
}
