//! The reading side of a store.

use std::{
    future::{Ready, ready},
    ops::Range,
    sync::Arc,
};

use futures_util::future::{BoxFuture, Either};
use taskwire_core::{
    CallerId, Epoch, Seq, SessionId, TaskId, Timestamp, Version,
    task::{Event, Task},
};

use super::{CallKey, Chunk, Cursor, Error, LogItem, OutboxItem, Page, Session, StoredEvent};

/// What was read, at once or later. A store that need not wait allocates nothing for it.
pub type Read<'a, T> = Either<Ready<Result<T, Error>>, BoxFuture<'a, Result<T, Error>>>;

/// The room that a store has, as far as it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// Bytes that are free on its disk.
    pub free_bytes: Option<u64>,
    /// Bytes that its files take.
    pub used_bytes: Option<u64>,
}

/// What was read at once.
pub(crate) fn at_once<'a, T>(read: Result<T, Error>) -> Read<'a, T> {
    Either::Left(ready(read))
}

/// The reading side; sees what is committed, never waits for the writer.
pub trait Reader: Send + Sync + 'static {
    /// Whether the writer waits at this moment until another program lets it write.
    fn is_locked_out(&self) -> bool {
        false
    }

    /// The task as of the last commit.
    fn task(&self, id: TaskId) -> Read<'_, Option<Arc<Task>>>;

    /// The task, if it is this caller's. A store that serves several callers takes as long for another caller's task as for one that never
    /// was, however large that is.
    fn task_of<'a>(&'a self, caller: &'a CallerId, id: TaskId) -> Read<'a, Option<Arc<Task>>> {
        Either::Right(Box::pin(async move { Ok(self.task(id).await?.filter(|task| task.spec.caller == *caller)) }))
    }

    /// Whether the task is this caller's. It is not read for that, and the same holds for the time that it takes.
    fn is_of<'a>(&'a self, caller: &'a CallerId, id: TaskId) -> Read<'a, bool> {
        Either::Right(Box::pin(async move { Ok(self.task_of(caller, id).await?.is_some()) }))
    }

    /// One event of a task.
    fn event(&self, id: TaskId, version: Version) -> Read<'_, Option<Event>>;

    /// Events after `after`, without chunks, at most `limit`, and no more than a page has.
    fn events(&self, id: TaskId, after: Version, limit: usize) -> Read<'_, Vec<StoredEvent>> {
        Either::Right(Box::pin(async move {
            let page = self.page(id, Cursor { after, from: None, max_bytes: 0, max_chunks: 1 }).await?;
            let events = page.into_iter().flat_map(|page| page.items).filter_map(LogItem::into_event);
            Ok(events.take(limit).collect())
        }))
    }

    /// What follows `cursor` in a task's log, events and chunks, as of one moment; `None` if there is no such task.
    fn page(&self, id: TaskId, cursor: Cursor) -> Read<'_, Option<Page>>;

    /// Chunks from `from` on, until `bytes` are reached (but at least one), at most `limit`.
    fn chunks(&self, id: TaskId, from: Seq, bytes: usize, limit: usize) -> Read<'_, Vec<Chunk>> {
        Either::Right(Box::pin(async move {
            let page = self.page(id, Cursor { after: Version(u64::MAX), from: Some(from), max_bytes: bytes, max_chunks: limit }).await?;
            Ok(page.into_iter().flat_map(|page| page.items).filter_map(LogItem::into_chunk).collect())
        }))
    }

    /// Which chunks there are: the first that is kept, and the number that the next one will get.
    fn chunk_range(&self, id: TaskId) -> Read<'_, Range<Seq>>;

    /// How much room there is, and how much is taken.
    fn space(&self) -> Space {
        Space::default()
    }

    /// Who owns a task.
    fn owner(&self, id: TaskId) -> Read<'_, Option<CallerId>>;

    /// Tasks that need a tick at `now`, the longest due first, at most `limit`; if an epoch is given, those that it runs, and those that
    /// have ended.
    fn due_tasks(&self, now: Timestamp, of: Option<Epoch>, limit: usize) -> Read<'_, Vec<TaskId>>;

    /// When the next tick after `after` is needed.
    fn next_due(&self, after: Timestamp) -> Read<'_, Option<Timestamp>>;

    /// Tasks that have not ended, in the order of their ids, after `after`, at most `limit`.
    fn open_tasks(&self, after: Option<TaskId>, limit: usize) -> Read<'_, Vec<TaskId>>;

    /// Tasks of a caller, the latest first, from before `before`, at most `limit`.
    fn tasks_of<'a>(&'a self, caller: &'a CallerId, before: Option<TaskId>, limit: usize) -> Read<'a, Vec<TaskId>>;

    /// Tasks of all callers, the latest first, from before `before`, at most `limit`; if `open`, those that have not ended.
    fn latest_tasks(&self, open: bool, before: Option<TaskId>, limit: usize) -> Read<'_, Vec<TaskId>>;

    /// The task that has this key.
    fn by_key<'a>(&'a self, key: CallKey<'a>) -> Read<'a, Option<TaskId>>;

    /// Tasks with this [`linger_key`](taskwire_core::task::Spec::linger_key) that [can be joined](Task::is_joinable), the earliest first, at
    /// most `limit`; `hidden` as in [`CallKey::Dedupe`]. Those that are damaged are left out. Nobody asks where nodes do not share the store.
    fn same_calls<'a>(&'a self, _caller: &'a CallerId, _hidden: bool, _key: &'a str, _limit: usize) -> Read<'a, Vec<Arc<Task>>> {
        at_once(Ok(Vec::new()))
    }

    /// A session.
    fn session<'a>(&'a self, id: &'a SessionId) -> Read<'a, Option<Session>>;

    /// The items of a session's outbox after the position `after`, in order, at most `limit`.
    fn outbox<'a>(&'a self, id: &'a SessionId, after: u64, limit: usize) -> Read<'a, Vec<OutboxItem>>;

    /// The position of the last item of a session's outbox.
    fn outbox_end<'a>(&'a self, id: &'a SessionId) -> Read<'a, u64>;

    /// Sessions that need not be kept: some that nobody used since `before`, and those of `caller` but for the `keep` that
    /// were used last.
    fn idle_sessions<'a>(&'a self, caller: &'a CallerId, before: Timestamp, keep: usize) -> Read<'a, Vec<SessionId>>;
}
