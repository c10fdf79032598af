//! Why a store cannot do what it is asked, and what its user can count on then.

use std::fmt;

use rusqlite::{ErrorCode, ffi};
use taskwire_core::TaskId;

/// An error of the database.
#[derive(Debug)]
pub struct DatabaseError(pub(super) rusqlite::Error);

/// What to do about a database of which more than one task is damaged.
const CURE_OF_DAMAGE: &str = ". tasks.db in the data directory is damaged: put a copy of the whole data directory in its place. Without a copy, \
     keep the directory for whoever may recover its tasks, and start with another one (`--data`)";

impl DatabaseError {
    /// Whether the file has pages that are not what was written.
    fn is_damage(&self) -> bool {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        matches!(self.0.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase))
    }

    /// Whether the index of the log could not be made larger.
    fn is_of_log_index(&self) -> bool {
        matches!(&self.0, rusqlite::Error::SqliteFailure(failure, _) if failure.extended_code == ffi::SQLITE_IOERR_SHMSIZE)
    }
}

impl fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.0, if self.is_damage() { CURE_OF_DAMAGE } else { "" })
    }
}

impl std::error::Error for DatabaseError {}

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
    /// Tasks are to be kept elsewhere, and the directory has some.
    #[error(
        "{path} has tasks that are kept: choose another directory for a server that keeps its tasks elsewhere (`--store`), or move them \
         there (`taskwire store move`)"
    )]
    HasTasks {
        /// The data directory.
        path: String,
    },
    /// The directory has the commands of a node that shares a database.
    #[error(
        "{path} is the directory of a node that shares a database: choose another one, or remove `node-epoch` in it if the node is gone for good"
    )]
    OfNode {
        /// The data directory.
        path: String,
    },
    /// The store was moved elsewhere, or a move into it was interrupted. The text says which, and what to do.
    #[error("{0}")]
    Moved(String),
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
    /// The disk has no room for what is to be stored. Nothing of it was.
    #[error("the disk is full, nothing can be stored until there is room: {0}")]
    Full(#[source] DatabaseError),
    /// PostgreSQL failed.
    #[cfg(feature = "postgres")]
    #[error("the database failed: {0}")]
    Postgres(#[source] super::PostgresError),
    /// A database that nodes share, or a store that is to be moved or copied, cannot be used as it is. The text says why, and what to do.
    #[error("{0}")]
    Unusable(String),
    /// The store cannot be reached for a while.
    #[error("the store cannot be reached: {reason}")]
    Away {
        /// Whether a commit may have been carried out.
        in_doubt: bool,
        /// Why.
        reason: String,
    },
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
        let is_full = error.sqlite_error_code() == Some(ErrorCode::DiskFull);
        if is_full { Self::Full(DatabaseError(error)) } else { Self::Database(DatabaseError(error)) }
    }
}

/// With fewer free bytes than this, the disk is why SQLite could not make the index of its log larger.
const LOG_INDEX_ROOM: u64 = 1024 * 1024;

/// What follows from an error of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store cannot be reached for a while, or its disk is full. Nothing was written: try again later.
    Away,
    /// The store cannot be reached for a while, and a commit may have been carried out or not: look, then try again.
    InDoubt,
    /// What is stored of one task, session or key is damaged. All others can be used.
    Corrupt,
    /// The store must be opened anew, by another process: nothing more can be stored.
    Fatal,
}

impl Error {
    /// What follows from it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Away { in_doubt: false, .. } | Self::Full(_) => ErrorKind::Away,
            Self::Away { in_doubt: true, .. } => ErrorKind::InDoubt,
            Self::Corrupt { .. } => ErrorKind::Corrupt,
            _ => ErrorKind::Fatal,
        }
    }

    /// The message for callers: it does not name paths on this machine.
    pub(crate) fn for_callers(&self) -> String {
        match self {
            Self::Tampered { .. } => "the store was removed, replaced or cut short while it was in use".to_owned(),
            Self::File { source, .. } => format!("a file of the store cannot be used: {source}"),
            // Its message may name the file.
            Self::Database(DatabaseError(rusqlite::Error::SqliteFailure(code, _))) => format!("the database failed: {code}"),
            Self::Full(_) => "the server's disk is full".to_owned(),
            Self::Corrupt { .. } => self.to_string(),
            Self::Away { .. } => "the store cannot be reached just now".to_owned(),
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
    pub(super) fn or_corrupt(self, of: impl fmt::Display) -> Self {
        use rusqlite::Error as Sql;
        match self {
            Self::Database(DatabaseError(
                error @ (Sql::FromSqlConversionFailure(..)
                | Sql::IntegralValueOutOfRange(..)
                | Sql::InvalidColumnType(..)
                | Sql::Utf8Error(..)),
            )) => Self::corrupt(of, error),
            Self::Database(error) if error.is_damage() => Self::corrupt(of, error.0),
            other => other,
        }
    }

    /// The same error, or that the disk is full: where SQLite cannot make the index of its log larger, it does not say why, and `free_bytes`
    /// does.
    pub(super) fn or_full(self, free_bytes: impl FnOnce() -> Option<u64>) -> Self {
        match self {
            Self::Database(error) if error.is_of_log_index() => {
                let is_full = free_bytes().is_some_and(|free| free < LOG_INDEX_ROOM);
                if is_full { Self::Full(error) } else { Self::Database(error) }
            }
            other => other,
        }
    }

    /// Whether the database itself is damaged: the same read fails again.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, Self::Database(error) if error.is_damage())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_whose_index_cannot_grow_is_for_lack_of_room_only_if_there_is_none() {
        let failed = |code| Error::from(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
        let kind = |code, free| failed(code).or_full(|| free).kind();
        assert_eq!(kind(ffi::SQLITE_IOERR_SHMSIZE, Some(0)), ErrorKind::Away);
        for free in [Some(LOG_INDEX_ROOM), None] {
            assert_eq!(kind(ffi::SQLITE_IOERR_SHMSIZE, free), ErrorKind::Fatal, "it is the disk that has failed: {free:?}");
        }
        assert_eq!(kind(ffi::SQLITE_IOERR_WRITE, Some(0)), ErrorKind::Fatal);
        assert_eq!(kind(ffi::SQLITE_FULL, None), ErrorKind::Away);
    }

    #[test]
    fn callers_are_not_told_where_the_store_is() {
        let path = || "/secret/place".to_owned();
        let unopened = Some(format!("unable to open database file: {}", path()));
        let errors = [
            Error::Locked { path: path(), holder: "process 7".to_owned() },
            Error::Moved(path()),
            Error::TooNew { path: path(), found: 9, known: 3 },
            Error::Tampered { path: path(), what: "it was removed".to_owned() },
            Error::NotOwned(std::io::Error::other(path())),
            Error::Busy { path: path(), minutes: 10 },
            Error::File { path: path(), source: std::io::Error::from_raw_os_error(28) },
            rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CANTOPEN), unopened).into(),
            rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_FULL), Some(path())).into(),
            Error::Away { in_doubt: true, reason: path() },
            rusqlite::Error::InvalidPath(path().into()).into(),
        ];
        for error in errors {
            assert!(error.to_string().contains("/secret"), "the log has it: {error}");
            let message = error.for_callers();
            assert!(!message.contains('/') && !message.is_empty(), "{message}");
        }
    }
}
