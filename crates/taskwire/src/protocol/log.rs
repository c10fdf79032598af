//! Reads on in the log of one task: beneath listen streams, the streams of a session, and calls that wait for their task.

use std::{sync::Arc, time::Duration};

use taskwire_core::{CallerId, Seq, TaskId, Version, task::Task};

use super::{ClientGone, Fault};
use crate::{
    engine::{self, Engine},
    store::{Cursor, LogItem, Page},
};

/// Bytes of output that one task may send before the next task has its turn.
pub(super) const TURN_BYTES: usize = 256 * 1024;
/// The same in chunks, because the message around a small chunk is larger than the chunk.
const TURN_CHUNKS: usize = 1_000;
/// How soon a stream, or a call that waits, reads again when the store could not be reached.
pub(super) const AWAY_PAUSE: Duration = Duration::from_millis(200);

/// Why a stream ends before it has sent everything.
#[derive(Debug)]
pub(super) enum StreamEnd {
    /// The client does not read any more.
    Gone,
    Fault(Fault),
}

impl From<ClientGone> for StreamEnd {
    fn from(_: ClientGone) -> Self {
        Self::Gone
    }
}

impl From<engine::Error> for StreamEnd {
    fn from(error: engine::Error) -> Self {
        Self::Fault(error.into())
    }
}

/// What was read; none if the store cannot be reached just now.
pub(super) fn unless_away<T>(read: Result<T, engine::Error>) -> Result<Option<T>, engine::Error> {
    match read {
        Err(engine::Error::Away) => Ok(None),
        read => read.map(Some),
    }
}

/// What comes next in a log.
pub(super) enum Next {
    /// These items, and the task as it was after them or later.
    Page(Arc<Task>, Page),
    /// The task in memory is a moment behind its log: a wake-up is on its way.
    Behind,
    /// The task has expired.
    Expired,
}

/// Reads events after a version and, if wanted, chunks from a seq on.
pub(super) async fn read(engine: &Engine, caller: &CallerId, id: TaskId, after: Version, from: Option<Seq>) -> Result<Next, engine::Error> {
    let cursor = Cursor { after, from, max_bytes: TURN_BYTES, max_chunks: TURN_CHUNKS };
    let Some(page) = engine.page(id, cursor).await? else { return Ok(Next::Expired) };
    let Some(task) = engine.task(caller, id).await? else { return Ok(Next::Expired) };
    let is_later =
        |item: &LogItem| matches!(item, LogItem::Event(logged) if logged.event.is_visible() && logged.version > task.visible_version);
    Ok(if page.items.iter().any(is_later) { Next::Behind } else { Next::Page(task, page) })
}
