//! Space on the disk: how much is free, and how unused pages of the database are given back.
//!
//! SQLite keeps free pages for later use. Here they are given back, a few at a time, so that nobody waits for it and the file becomes
//! smaller when tasks are forgotten.

use std::{
    io,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, ErrorCode};

use super::Error;

/// Pages that are given back in one step, which takes some milliseconds.
const STEP_PAGES: i64 = 128;
/// Free pages that are kept for later use: so many, and one for so many in use.
const KEPT_PAGES: u64 = 1024;
const KEPT_PART: u64 = 8;
/// The `auto_vacuum` mode in which SQLite gives pages back on request.
const INCREMENTAL: i64 = 2;

/// Turns incremental vacuum on, before anything is written to a new database; one that has been written to needs
/// [`vacuum_if_needed`] too.
pub(super) fn enable_incremental_vacuum(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "auto_vacuum", "incremental")
}

/// Rewrites a database that was made without incremental vacuum. If that fails, the file only stays as large as it is.
pub(super) fn vacuum_if_needed(connection: &Connection) -> Result<(), Error> {
    let mode: i64 = connection.pragma_query_value(None, "auto_vacuum", |row| row.get(0))?;
    if mode != INCREMENTAL
        && let Err(error) = connection.execute_batch("VACUUM; PRAGMA wal_checkpoint(TRUNCATE);")
    {
        tracing::warn!(%error, "the store cannot be written anew: its file will not become smaller when tasks are forgotten");
    }
    Ok(())
}

/// Bytes that this user may still write where a directory is, if that can be known.
pub(crate) fn free_bytes(dir: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(dir).ok().filter(|found| found.f_blocks > 0)?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

/// The disk that a store is on.
#[derive(Debug)]
pub(super) struct DiskSpace {
    dir: PathBuf,
    /// Whether pages were given back since the last checkpoint of the WAL.
    shrunk: bool,
}

impl DiskSpace {
    pub(super) fn of(dir: &Path) -> io::Result<Self> {
        // The working directory of the process may change.
        Ok(Self { dir: std::path::absolute(dir)?, shrunk: false })
    }

    pub(super) fn free_bytes(&self) -> Option<u64> {
        free_bytes(&self.dir)
    }

    /// Gives some pages back; says whether there are more.
    pub(super) fn reclaim(&mut self, connection: &Connection) -> Result<bool, Error> {
        match self.step(connection) {
            Ok(more) => Ok(more),
            // Nothing is lost by waiting for a better moment.
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Ok(false),
            Err(error) => match Error::from(error).or_full(|| self.free_bytes()) {
                Error::Full(_) => Ok(false),
                error => Err(error),
            },
        }
    }

    fn step(&mut self, connection: &Connection) -> rusqlite::Result<bool> {
        let pages = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, u64>(0));
        let (free, all) = (pages("freelist_count")?, pages("page_count")?);
        if free <= KEPT_PAGES + (all - free) / KEPT_PART {
            if std::mem::take(&mut self.shrunk) {
                // The file becomes shorter when SQLite has copied all of the WAL into it.
                connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
            }
            return Ok(false);
        }
        connection.pragma(None, "incremental_vacuum", STEP_PAGES, |_| Ok(()))?;
        self.shrunk = true;
        // A step without progress is the last: else it would be tried for ever.
        Ok(pages("freelist_count")? < free)
    }
}
