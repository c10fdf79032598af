//! The ledger's database: its schema, how it is opened, and how rows are found and evicted.

use std::{
    fs::{self, OpenOptions, Permissions},
    io,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, TransactionBehavior, params};
use taskwire_core::Timestamp;

use super::{EntryId, LEDGER_ENTRIES};
use crate::client::{Error, Reference};

pub(super) const FILE: &str = "ledger.db";
/// How long the entry of an ended task stays.
const ENDED_KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long one process waits for another.
const BUSY: Duration = Duration::from_secs(5);
/// The same for a process that only reads.
const BUSY_READING: Duration = Duration::from_millis(100);

/// The stored format. Each later one is a step in [`migrate`].
const FORMAT: i64 = 2;

/// `reference` is JSON, without what has a column of its own. `same` (`merged_into` since format 2) is the entry that this one was merged into. The
/// arguments come last, so that SQLite can read the other columns without them.
const SCHEMA_1: &str = "
CREATE TABLE entry(
    id INTEGER PRIMARY KEY AUTOINCREMENT, server TEXT NOT NULL, task TEXT, key TEXT, status TEXT, message TEXT,
    created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, ended INTEGER NOT NULL DEFAULT 0, same INTEGER,
    reference TEXT NOT NULL, args TEXT
);
CREATE UNIQUE INDEX entry_task ON entry(server, task) WHERE task IS NOT NULL;
CREATE INDEX entry_key ON entry(server, key) WHERE key IS NOT NULL;
CREATE INDEX entry_same ON entry(same) WHERE same IS NOT NULL;
CREATE TABLE answer(
    id INTEGER PRIMARY KEY, entry INTEGER NOT NULL, key TEXT NOT NULL, answer TEXT NOT NULL,
    acknowledged INTEGER NOT NULL DEFAULT 0, UNIQUE(entry, key)
);
CREATE TABLE question(
    id INTEGER PRIMARY KEY, entry INTEGER NOT NULL, key TEXT NOT NULL, question TEXT NOT NULL, UNIQUE(entry, key)
);
";

/// A name that says what the column is.
const SCHEMA_2: &str = "
DROP INDEX entry_same;
ALTER TABLE entry RENAME COLUMN same TO merged_into;
CREATE INDEX entry_merged_into ON entry(merged_into) WHERE merged_into IS NOT NULL;
";

/// An error of SQLite, or one that says more to the user.
pub(super) enum DbError {
    Sqlite(rusqlite::Error),
    Client(Error),
}

impl From<rusqlite::Error> for DbError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<Error> for DbError {
    fn from(error: Error) -> Self {
        Self::Client(error)
    }
}

impl DbError {
    pub(super) fn into_error(self, dir: &Path) -> Error {
        let error = match self {
            Self::Client(error) => return error,
            Self::Sqlite(error) => error,
        };
        let dir = dir.display();
        Error::Ledger(match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                format!("the ledger of tasks in {dir} is in use by another process that does not let go: try again")
            }
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => format!(
                "the ledger of tasks in {dir} is damaged ({error}): move {FILE} away to begin a new one; its tasks go on, and their servers still know them"
            ),
            _ => format!("the ledger of tasks in {dir} failed: {error}"),
        })
    }
}

/// Creates the file if there is none, and makes it readable for this user only. SQLite gives the files beside it the same permissions.
pub(super) fn make_private(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made.map(drop),
    }
    if fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
    }
    Ok(())
}

pub(super) fn connect(path: &Path, dir: &Path) -> Result<Connection, DbError> {
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(BUSY)?;
    // Checked before anything is written: only the newer release knows its format.
    let found: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if found > FORMAT {
        let dir = dir.display();
        return Err(Error::Ledger(format!(
            "the ledger of tasks in {dir} was written by a newer release (format {found}, this one knows {FORMAT}): use that release, or set TASKWIRE_STATE_DIR to another directory"
        ))
        .into());
    }
    connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get::<_, String>(0))?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.set_prepared_statement_cache_capacity(32);
    if found < FORMAT {
        migrate(&mut connection, found)?;
    }
    Ok(connection)
}

/// Opens an existing database for reading. It creates no file beside it.
pub(super) fn connect_read_only(path: &Path, dir: &Path) -> Result<Connection, DbError> {
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    // Without a journal no process has it open. SQLite would create one to read it, unless it is opened as immutable.
    let at_rest = path.to_str().filter(|_| !Path::new(&wal).exists());
    let connection = match at_rest {
        Some(name) => {
            let name = name.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
            Connection::open_with_flags(format!("file://{name}?immutable=1"), flags | OpenFlags::SQLITE_OPEN_URI)?
        }
        None => Connection::open_with_flags(path, flags)?,
    };
    connection.busy_timeout(BUSY_READING)?;
    let found: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if found != FORMAT {
        let dir = dir.display();
        return Err(
            Error::Ledger(format!("the ledger of tasks in {dir} has format {found}, and only {FORMAT} can be read as it is")).into()
        );
    }
    Ok(connection)
}

fn migrate(connection: &mut Connection, found: i64) -> Result<(), DbError> {
    let steps = [SCHEMA_1, SCHEMA_2];
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for step in steps.iter().skip(usize::try_from(found).unwrap_or(0)) {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "user_version", FORMAT)?;
    transaction.commit()?;
    Ok(())
}

/// The row that holds an entry (after merging), if the ledger still has it.
pub(super) fn resolve(db: &Connection, entry: EntryId) -> Result<Option<i64>, DbError> {
    let mut statement = db.prepare_cached("SELECT ifnull(merged_into, id) FROM entry WHERE id = ?")?;
    Ok(statement.query_row([entry.0], |row| row.get(0)).optional()?)
}

pub(super) fn resolve_existing(db: &Connection, entry: EntryId) -> Result<i64, DbError> {
    resolve(db, entry)?.ok_or_else(|| {
        let message =
            format!("the ledger does not have entry {entry} any more: it was removed, or gave way to {LEDGER_ENTRIES} newer ones");
        Error::Ledger(message).into()
    })
}

/// The row of a reference: that of its task, else that of its key. If that row has no task yet, it gets the reference's.
pub(super) fn find_row(db: &Connection, reference: &Reference) -> Result<Option<i64>, DbError> {
    let server = &reference.server;
    if let Some(task) = &reference.task {
        let mut statement = db.prepare_cached("SELECT id FROM entry WHERE server = ? AND task = ?")?;
        if let Some(id) = statement.query_row([server, task], |row| row.get(0)).optional()? {
            return Ok(Some(id));
        }
    }
    let Some(key) = &reference.key else { return Ok(None) };
    let mut statement = db.prepare_cached(
        "SELECT entry.id, entry.task FROM entry AS called JOIN entry ON entry.id = ifnull(called.merged_into, called.id)
         WHERE called.server = ? AND called.key = ? ORDER BY called.id LIMIT 1",
    )?;
    let found: Option<(i64, Option<String>)> = statement.query_row([server, key], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    Ok(match (found, &reference.task) {
        (Some((id, None)), Some(task)) => {
            remove_questions_and_answers(db, id)?;
            db.execute("UPDATE entry SET task = ?2, args = NULL WHERE id = ?1", params![id, task])?;
            Some(id)
        }
        (Some((id, _)), None) => Some(id),
        _ => None,
    })
}

/// Removes entries that are too old, and then the oldest, so that there is room for one more. Returns their ids.
pub(super) fn evict(db: &Connection, now: Timestamp, entries_max: usize) -> Result<Vec<i64>, DbError> {
    let before = now.as_millis().saturating_sub(i64::try_from(ENDED_KEPT.as_millis()).unwrap_or(i64::MAX));
    let mut gone = ids(db, "SELECT id FROM entry WHERE ended = 1 AND updated_at < ?", [before])?;
    for id in &gone {
        remove_entry(db, *id)?;
    }
    let count: usize = db.query_row("SELECT count(*) FROM entry", [], |row| row.get(0))?;
    if count >= entries_max {
        let oldest = ids(db, "SELECT id FROM entry ORDER BY ended DESC, updated_at, id LIMIT ?", [count + 1 - entries_max])?;
        for id in &oldest {
            remove_entry(db, *id)?;
        }
        gone.extend(oldest);
    }
    Ok(gone)
}

fn ids(db: &Connection, sql: &str, params: impl rusqlite::Params) -> Result<Vec<i64>, DbError> {
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map(params, |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn remove_questions_and_answers(db: &Connection, id: i64) -> Result<(), DbError> {
    db.prepare_cached("DELETE FROM answer WHERE entry = ?")?.execute([id])?;
    db.prepare_cached("DELETE FROM question WHERE entry = ?")?.execute([id])?;
    Ok(())
}

pub(super) fn remove_entry(db: &Connection, id: i64) -> Result<(), DbError> {
    remove_questions_and_answers(db, id)?;
    db.prepare_cached("DELETE FROM entry WHERE id = ?1 OR merged_into = ?1")?.execute([id])?;
    Ok(())
}
