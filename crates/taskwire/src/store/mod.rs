//! Where tasks are kept. One trait to write, one to read, one test suite for every backend.
//!
//! A store keeps events, heads and chunks, and sessions with their outboxes; it must not know the engine, the wire, or an era.
//! [`Store::commit`] returns only when the batch will survive a crash (invariant I3).

mod busy;
mod checksum;
mod data_dir;
mod disk_space;
mod files;
mod page;
mod session;
mod sqlite;
mod sqlite_read;
#[cfg(test)]
mod suite;
mod wal;

use std::{fmt, ops::Range, sync::Arc};

use taskwire_core::{
    CallerId, Epoch, Seq, SessionId, TaskId, Timestamp, Version,
    task::{Blocks, Event, Task},
};

pub(crate) use disk_space::free_bytes;
pub use page::{Cursor, LogItem, Page};
pub(crate) use page::{PAGE_EVENTS, UnmergedPage};
pub use session::{OutboxItem, Session, SessionChange};
pub use sqlite::SqliteStore;

/// What happened to one task, to be made durable.
#[derive(Debug, Clone)]
pub struct TaskWrite {
    /// The task after the events.
    pub task: Arc<Task>,
    /// The version that the first of the events made.
    pub first_version: Version,
    /// When they happened.
    pub at: Timestamp,
    /// What happened, in order; at least one.
    pub events: Vec<Event>,
    /// The event of a checkpoint that these events replaced.
    pub stale_checkpoint: Option<Version>,
    /// Bytes at the beginning of the output that need not be kept: chunks that lie within them are to go.
    pub dropped_bytes: u64,
    /// How many changes the outbox of the task's session keeps.
    pub outbox_max: u64,
    /// Bytes that the task counts as after the events, in its caller's usage.
    pub stored_bytes: u64,
}

/// What a caller has stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Usage {
    /// Tasks that have not ended.
    pub open: u64,
    /// About how many bytes its tasks take.
    pub bytes: u64,
}

/// One chunk as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Its number.
    pub seq: Seq,
    /// The version of the task that it made: its position among the other events.
    pub version: Version,
    /// The number of its first block.
    pub first_block: u64,
    /// Its content blocks.
    pub blocks: Blocks,
}

/// One event as it was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// The version of the task that it made.
    pub version: Version,
    /// When it happened.
    pub at: Timestamp,
    /// What happened.
    pub event: Event,
}

/// An error of the database.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct DatabaseError(rusqlite::Error);

/// Why the store cannot be used: a disk, a file, a format.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another process has the store.
    #[error("the store in {path} is in use by {holder}: stop that process or choose another directory")]
    Locked {
        /// The data directory.
        path: String,
        /// Who has it, as the lock file says.
        holder: String,
    },
    /// The store was written by a newer release.
    #[error("the store in {path} has format {found}, this release knows up to {known}: use a newer release")]
    TooNew {
        /// The data directory.
        path: String,
        /// The format on disk.
        found: i64,
        /// The newest format known.
        known: i64,
    },
    /// Somebody removed the store, put another in its place, or cut a file of it short, while it was in use.
    #[error("the store in {path} is not what it was ({what} while it was in use), so nothing can be kept there: start again")]
    Tampered {
        /// The data directory.
        path: String,
        /// What was done to it.
        what: String,
    },
    /// The data directory, or something in it, is another user's, or another user can write to it. The text says how to fix it.
    #[error("{0}")]
    NotOwned(std::io::Error),
    /// Another program has locked the database for too long.
    #[error("another program has kept {path} locked for {minutes} minutes: end it (`fuser -v {path}` says which), then start again")]
    Busy {
        /// The database.
        path: String,
        /// For how long.
        minutes: u64,
    },
    /// A file or directory could not be used.
    #[error("cannot use {path}: {source}")]
    File {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The database failed.
    #[error("the database failed: {0}")]
    Database(#[source] DatabaseError),
    /// What is stored is not what was written. It concerns one task, session or key, and no other.
    #[error(
        "what is stored of {subject} is damaged ({what}), so it is not given out: whoever runs the server can put a copy of the store in its \
         place, any other task can be used as before"
    )]
    Corrupt {
        /// What is corrupt, such as a task with its id.
        subject: String,
        /// What is wrong.
        what: String,
    },
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(DatabaseError(error))
    }
}

impl Error {
    /// The message for callers: it does not name paths on this machine.
    pub(crate) fn for_callers(&self) -> String {
        match self {
            Self::Tampered { .. } => "the store was removed, replaced or cut short while it was in use".to_owned(),
            Self::File { source, .. } => format!("a file of the store cannot be used: {source}"),
            // Its message may name the file.
            Self::Database(DatabaseError(rusqlite::Error::SqliteFailure(code, _))) => format!("the database failed: {code}"),
            Self::Corrupt { .. } => self.to_string(),
            _ => "the store failed".to_owned(),
        }
    }

    pub(crate) fn corrupt(of: impl fmt::Display, what: impl fmt::Display) -> Self {
        Self::Corrupt { subject: of.to_string(), what: what.to_string() }
    }

    pub(crate) fn corrupt_task(id: TaskId, what: impl fmt::Display) -> Self {
        Self::corrupt(format_args!("task {id}"), what)
    }

    /// The error of a read. If SQLite found a value of another type than was written, or a broken page, `of` is corrupt.
    fn or_corrupt(self, of: impl fmt::Display) -> Self {
        use rusqlite::{
            Error as Sql,
            ErrorCode::{DatabaseCorrupt, NotADatabase},
        };
        match self {
            Self::Database(DatabaseError(
                error @ (Sql::FromSqlConversionFailure(..)
                | Sql::IntegralValueOutOfRange(..)
                | Sql::InvalidColumnType(..)
                | Sql::Utf8Error(..)),
            )) => Self::corrupt(of, error),
            Self::Database(DatabaseError(error)) if matches!(error.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase)) => {
                Self::corrupt(of, error)
            }
            other => other,
        }
    }
}

/// The writing side; there is one, and one thread has it.
pub trait Store: Send + 'static {
    /// The task as of the last commit, complete.
    fn load(&mut self, id: TaskId) -> Result<Option<Task>, Error>;

    /// Bytes that an ended task counts as, fixed at its end.
    fn stored_bytes(&mut self, id: TaskId) -> Result<u64, Error>;

    /// Makes `writes` and the changes of sessions durable, all or none. After an error the store must be opened anew.
    fn commit(&mut self, writes: &[TaskWrite], sessions: &[SessionChange]) -> Result<(), Error>;

    /// Bytes that can still be stored, if that is known.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// Gives some unused space back to the disk, quickly; returns whether there is more.
    fn reclaim(&mut self) -> Result<bool, Error> {
        Ok(false)
    }

    /// The number of this start: larger than that of any earlier opening.
    fn epoch(&self) -> Epoch;

    /// A key that only this store knows, the same at every start.
    fn secret(&self) -> [u8; 32];

    /// The reading side.
    fn reader(&self) -> Arc<dyn Reader>;
}

/// The reading side; sees what is committed, never waits for the writer.
pub trait Reader: Send + Sync + 'static {
    /// The task without its chunks: its `output` stays empty, its `version` is that of the last other event.
    fn task(&self, id: TaskId) -> Result<Option<Task>, Error>;

    /// One event of a task.
    fn event(&self, id: TaskId, version: Version) -> Result<Option<Event>, Error>;

    /// Events after `after`, without chunks, at most `limit`, and no more than a page has.
    fn events(&self, id: TaskId, after: Version, limit: usize) -> Result<Vec<StoredEvent>, Error> {
        let page = self.page(id, Cursor { after, from: None, max_bytes: 0, max_chunks: 1 })?;
        let events = page.into_iter().flat_map(|page| page.items).filter_map(LogItem::into_event);
        Ok(events.take(limit).collect())
    }

    /// What follows `cursor` in a task's log, events and chunks, as of one moment; `None` if there is no such task.
    fn page(&self, id: TaskId, cursor: Cursor) -> Result<Option<Page>, Error>;

    /// Chunks from `from` on, until `bytes` are reached (but at least one), at most `limit`.
    fn chunks(&self, id: TaskId, from: Seq, bytes: usize, limit: usize) -> Result<Vec<Chunk>, Error> {
        let page = self.page(id, Cursor { after: Version(u64::MAX), from: Some(from), max_bytes: bytes, max_chunks: limit })?;
        Ok(page.into_iter().flat_map(|page| page.items).filter_map(LogItem::into_chunk).collect())
    }

    /// Which chunks there are: the first that is kept, and the number that the next one will get.
    fn chunk_range(&self, id: TaskId) -> Result<Range<Seq>, Error>;

    /// Who owns a task.
    fn owner(&self, id: TaskId) -> Result<Option<CallerId>, Error>;

    /// Tasks that need a tick at `now`, the longest due first, at most `limit`.
    fn due_tasks(&self, now: Timestamp, limit: usize) -> Result<Vec<TaskId>, Error>;

    /// When the next tick after `after` is needed.
    fn next_due(&self, after: Timestamp) -> Result<Option<Timestamp>, Error>;

    /// Tasks that have not ended, in the order of their ids, after `after`, at most `limit`.
    fn open_tasks(&self, after: Option<TaskId>, limit: usize) -> Result<Vec<TaskId>, Error>;

    /// Tasks of a caller, the latest first, from before `before`, at most `limit`.
    fn tasks_of(&self, caller: &CallerId, before: Option<TaskId>, limit: usize) -> Result<Vec<TaskId>, Error>;

    /// The task that a caller made under this idempotency key.
    fn by_idempotency_key(&self, caller: &CallerId, key: &str) -> Result<Option<TaskId>, Error>;

    /// A session.
    fn session(&self, id: &SessionId) -> Result<Option<Session>, Error>;

    /// The items of a session's outbox after the position `after`, in order, at most `limit`.
    fn outbox(&self, id: &SessionId, after: u64, limit: usize) -> Result<Vec<OutboxItem>, Error>;

    /// The position of the last item of a session's outbox.
    fn outbox_end(&self, id: &SessionId) -> Result<u64, Error>;

    /// Sessions that need not be kept: some that nobody used since `before`, and those of `caller` but for the `keep` that
    /// were used last.
    fn idle_sessions(&self, caller: &CallerId, before: Timestamp, keep: usize) -> Result<Vec<SessionId>, Error>;

    /// The usage of each caller: how many open tasks, and the bytes of its ended tasks.
    fn usage(&self) -> Result<Vec<(CallerId, Usage)>, Error>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_not_told_where_the_store_is() {
        let path = || "/secret/place".to_owned();
        let unopened = Some(format!("unable to open database file: {}", path()));
        let errors = [
            Error::Locked { path: path(), holder: "process 7".to_owned() },
            Error::TooNew { path: path(), found: 9, known: 3 },
            Error::Tampered { path: path(), what: "it was removed".to_owned() },
            Error::NotOwned(std::io::Error::other(path())),
            Error::Busy { path: path(), minutes: 10 },
            Error::File { path: path(), source: std::io::Error::from_raw_os_error(28) },
            rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(14), unopened).into(),
            rusqlite::Error::InvalidPath(path().into()).into(),
        ];
        for error in errors {
            assert!(error.to_string().contains("/secret"), "the log has it: {error}");
            let message = error.for_callers();
            assert!(!message.contains('/') && !message.is_empty(), "{message}");
        }
    }
}
