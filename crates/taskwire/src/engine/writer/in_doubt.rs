//! Finds out what became of a commit whose answer was lost.

use taskwire_core::{Version, task::Event};

use super::{RETRY_DELAY_MAX, RETRY_DELAY_MIN, batch::Batch};
use crate::{
    engine::Engine,
    store::{self, Cursor, ErrorKind, LogItem, Store, TaskWrite, Written},
};

/// What became of each write of a batch. Waits until the store can be read, and calls `meanwhile` each time before it waits.
pub(super) async fn find_out(
    engine: &Engine,
    store: &mut impl Store,
    batch: &Batch,
    mut meanwhile: impl FnMut(),
) -> Result<Vec<Written>, store::Error> {
    let (mut written, mut delay) = (Vec::with_capacity(batch.writes.len()), RETRY_DELAY_MIN);
    while let Some(write) = batch.writes.get(written.len()) {
        match is_written(engine, store, write).await {
            Ok(true) => written.push(Written::Done),
            Ok(false) => written.push(Written::Conflict(None)),
            Err(error) if matches!(error.kind(), ErrorKind::Away | ErrorKind::InDoubt) => {
                meanwhile();
                engine.0.clock.sleep(delay).await;
                delay = (delay * 2).min(RETRY_DELAY_MAX);
            }
            // It concerns this task alone: whoever wanted the write gets the error when it is decided again.
            Err(error) if error.kind() == ErrorKind::Corrupt => written.push(Written::Conflict(None)),
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}

/// Whether the log has the events of this write at their versions. A checkpoint or a chunk may have been replaced or dropped since; then
/// nothing else is at its version.
async fn is_written(engine: &Engine, store: &mut impl Store, write: &TaskWrite) -> Result<bool, store::Error> {
    let id = write.task.id;
    let Some(task) = store.load(id).await? else { return Ok(matches!(write.events.last(), Some(Event::Expired))) };
    if task.version < write.task.version {
        return Ok(false);
    }
    let first_seq = write.events.iter().find_map(|event| if let Event::Appended { seq, .. } = event { Some(*seq) } else { None });
    let cursor = Cursor {
        after: Version(write.first_version.0 - 1),
        // Another node may have written a chunk there.
        from: Some(first_seq.unwrap_or(write.task.output.next_seq)),
        max_bytes: usize::MAX,
        max_chunks: write.events.len(),
    };
    let Some(page) = engine.reader().page(id, cursor).await? else { return Ok(false) };
    Ok((write.first_version.0..).map(Version).zip(&write.events).all(|(version, event)| {
        match page.items.iter().find(|item| item.version() == version) {
            Some(LogItem::Event(stored)) => stored.event == *event,
            Some(LogItem::Chunk(chunk)) => {
                matches!(event, Event::Appended { seq, blocks, .. } if *seq == chunk.seq && *blocks == chunk.blocks)
            }
            None => matches!(event, Event::Appended { .. } | Event::Saved { .. }),
        }
    }))
}
