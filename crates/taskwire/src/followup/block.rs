//! A block that was too large for the output itself as a resource: `taskwire://task/ID/block/NAME`.

use serde_json::{Value, json};
use taskwire_core::{Seq, TaskId};

use super::resource::ReadError;
use crate::{
    engine::{Engine, large_block::BlockAssembler},
    store::{Cursor, LogItem},
};

/// Bytes of output that are read at one time.
const READ_BYTES: usize = 1024 * 1024;

/// Reads the block of this name: a `ReadResourceResult`.
pub(super) async fn read(engine: &Engine, id: TaskId, name: &str, uri: &str) -> Result<Value, ReadError> {
    let (mut from, mut parts) = (Seq(0), BlockAssembler::default());
    loop {
        let cursor = Cursor::output(from, READ_BYTES);
        let page = engine.page(id, cursor).await?.ok_or(ReadError::NotFound)?;
        let more = page.more;
        for chunk in page.items.into_iter().filter_map(LogItem::into_chunk) {
            from = chunk.seq.next();
            if !chunk.blocks.as_str().contains(name) {
                continue;
            }
            let blocks = serde_json::from_str::<Vec<Value>>(chunk.blocks.as_str()).unwrap_or_default();
            if let Some(contents) = blocks.iter().find_map(|block| parts.take(block, name, uri)) {
                return Ok(json!({"contents": [contents]}));
            }
        }
        if !more {
            let message = "this block is not kept, or no longer: of what a task wrote, the oldest goes when it is too much \
                           (configuration key `limits.task_output_bytes`)";
            return Err(ReadError::Invalid(message.to_owned()));
        }
        // Much output takes a while to read: others are served in between.
        tokio::task::yield_now().await;
    }
}
