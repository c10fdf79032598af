//! The embedded store: SQLite in WAL mode with `synchronous=FULL`, clustered by time-ordered task ids.
//!
//! `task` holds each task's head, `log` its events, `chunk` its output; what ended a task is only in `log`, how much it
//! wrote only in `chunk`. `session` holds sessions, `told` in which order each is told of its tasks. The tables can be read
//! with any SQLite tool.

use std::{
    borrow::Cow,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use rusqlite::{Connection, OptionalExtension, params};
use taskwire_core::{
    CallerId, Epoch, Payload, Seq, TaskId, Version,
    task::{Blocks, Event, Task, wants},
};

use super::{
    Error, Reader, SessionChange, Store, Told, Write,
    lock::DirLock,
    sqlite_read::{SqliteReader, read_event, read_key, read_tail, read_task, steady},
};

/// The stored format. Version 1 is the first; each later one is a step in [`migrate`].
const FORMAT: i64 = 3;

const SCHEMA_1: &str = "
CREATE TABLE meta(key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE task(
    id BLOB PRIMARY KEY, caller TEXT NOT NULL, open INTEGER NOT NULL, due INTEGER, head TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX task_open ON task(id, caller) WHERE open = 1;
CREATE INDEX task_due ON task(due) WHERE due IS NOT NULL;
CREATE TABLE log(
    task BLOB NOT NULL, version INTEGER NOT NULL, at INTEGER NOT NULL, event TEXT NOT NULL, PRIMARY KEY(task, version)
) WITHOUT ROWID;
CREATE TABLE chunk(
    task BLOB NOT NULL, seq INTEGER NOT NULL, version INTEGER NOT NULL, at INTEGER NOT NULL,
    first_block INTEGER NOT NULL, blocks_total INTEGER NOT NULL, bytes_total INTEGER NOT NULL, blocks TEXT NOT NULL,
    PRIMARY KEY(task, seq)
) WITHOUT ROWID;
CREATE TABLE idempotency(caller TEXT NOT NULL, key TEXT NOT NULL, task BLOB NOT NULL, PRIMARY KEY(caller, key)) WITHOUT ROWID;
";

/// Chunks that were written together share a row, a line each. They can be large, and a large row of a table without row
/// ids is read whole whenever a search passes by: so these have row ids, and an index that is small.
const SCHEMA_2: &str = "
ALTER TABLE chunk RENAME TO chunk_1;
CREATE TABLE chunk(
    id INTEGER PRIMARY KEY, task BLOB NOT NULL, seq INTEGER NOT NULL, count INTEGER NOT NULL, version INTEGER NOT NULL,
    at INTEGER NOT NULL, first_block INTEGER NOT NULL, blocks_total INTEGER NOT NULL, bytes_total INTEGER NOT NULL,
    blocks TEXT NOT NULL
);
CREATE UNIQUE INDEX chunk_at ON chunk(task, seq);
INSERT INTO chunk SELECT NULL, task, seq, 1, version, at, first_block, blocks_total, bytes_total, blocks FROM chunk_1 ORDER BY task, seq;
DROP TABLE chunk_1;
";

/// Sessions, and in which order each is told of its tasks.
const SCHEMA_3: &str = "
CREATE INDEX task_caller ON task(caller, id);
CREATE TABLE session(id TEXT PRIMARY KEY, caller TEXT NOT NULL, seen INTEGER NOT NULL, data TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX session_seen ON session(seen);
CREATE INDEX session_caller ON session(caller, seen);
CREATE TABLE told(
    session TEXT NOT NULL, number INTEGER NOT NULL, task BLOB NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    from_seq INTEGER NOT NULL, end_seq INTEGER NOT NULL, PRIMARY KEY(session, number)
) WITHOUT ROWID;
";

/// Tasks in a directory, for one process.
pub struct SqliteStore {
    // Before the writing connection, so that this one is the last to close and folds the log into the file.
    reader: Arc<SqliteReader>,
    connection: Connection,
    epoch: Epoch,
    secret: [u8; 32],
    lock: DirLock,
    dir: PathBuf,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Opens the store in `dir`, making it if there is none.
    ///
    /// # Errors
    /// When another process has it, when it was written by a newer release, or when the disk fails.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, Error> {
        let dir = dir.as_ref();
        let failed = |source| Error::File { path: dir.display().to_string(), source };
        // For this user alone: what callers send and get is in here, and the key that signs what they carry.
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        let lock = DirLock::take(dir)?;
        let path = dir.join("tasks.db");
        std::fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(failed)?;
        let mut connection = Connection::open(&path)?;
        connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get::<_, String>(0))?;
        connection.pragma_update(None, "synchronous", "full")?;
        connection.pragma_update(None, "cache_size", -32_768)?;
        steady(&connection)?;
        connection.set_prepared_statement_cache_capacity(64);
        migrate(&mut connection, dir)?;
        let epoch = next_epoch(&connection)?;
        let secret = secret(&connection)?;
        let reader = Arc::new(SqliteReader::open(path)?);
        Ok(Self { reader, connection, epoch, secret, lock, dir: dir.to_owned() })
    }
}

fn migrate(connection: &mut Connection, dir: &Path) -> Result<(), Error> {
    let found: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if found > FORMAT {
        return Err(Error::TooNew { path: dir.display().to_string(), found, known: FORMAT });
    }
    let steps = [SCHEMA_1, SCHEMA_2, SCHEMA_3];
    let transaction = connection.transaction()?;
    for step in steps.iter().skip(usize::try_from(found).unwrap_or(0)) {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "user_version", FORMAT)?;
    transaction.commit()?;
    Ok(())
}

fn next_epoch(connection: &Connection) -> Result<Epoch, Error> {
    let epoch: i64 = connection.query_row(
        "INSERT INTO meta(key, value) VALUES('epoch', 1) ON CONFLICT(key) DO UPDATE SET value = value + 1 RETURNING value",
        [],
        |row| row.get(0),
    )?;
    Ok(Epoch(u64::try_from(epoch).unwrap_or(0)))
}

fn secret(connection: &Connection) -> Result<[u8; 32], Error> {
    let mut fresh = [0u8; 32];
    getrandom::fill(&mut fresh).expect("the operating system gives random bytes");
    connection.execute("INSERT OR IGNORE INTO meta(key, value) VALUES('secret', ?)", [&fresh[..]])?;
    Ok(connection.query_row("SELECT value FROM meta WHERE key = 'secret'", [], |row| row.get(0))?)
}

impl Store for SqliteStore {
    fn load(&mut self, id: TaskId) -> Result<Option<Task>, Error> {
        let Some(mut task) = read_task(&self.connection, id)? else { return Ok(None) };
        if let Some(tail) = read_tail(&self.connection, id)? {
            task.output = tail.output;
            task.version = task.version.max(tail.version);
        }
        Ok(Some(task))
    }

    fn request(&mut self, id: TaskId) -> Result<Option<Payload>, Error> {
        Ok(match read_event(&self.connection, id, Version(1))? {
            Some(Event::Created { request, .. }) => Some(request),
            _ => None,
        })
    }

    fn by_idempotency_key(&mut self, caller: &CallerId, key: &str) -> Result<Option<TaskId>, Error> {
        read_key(&self.connection, caller, key)
    }

    fn commit(&mut self, writes: &[Write], sessions: &[SessionChange]) -> Result<(), Error> {
        let transaction = self.connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        for write in writes {
            put(&transaction, write)?;
            tell(&transaction, write)?;
        }
        for change in sessions {
            put_session(&transaction, change)?;
        }
        transaction.commit()?;
        if !self.lock.is_there() {
            return Err(Error::Gone { path: self.dir.display().to_string() });
        }
        Ok(())
    }

    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn secret(&self) -> [u8; 32] {
        self.secret
    }

    fn reader(&self) -> Arc<dyn Reader> {
        self.reader.clone()
    }
}

/// A row is not made longer than this, so that to read a little of it is not to read very much.
const ROW_BYTES: usize = 256 * 1024;

/// Chunks that follow each other in one write make one row, or some.
#[derive(Default)]
struct Chunks<'a> {
    count: u64,
    version: u64,
    seq: u64,
    first_block: u64,
    blocks_total: u64,
    text: Cow<'a, str>,
}

impl<'a> Chunks<'a> {
    fn add(&mut self, version: u64, seq: Seq, first_block: u64, blocks: &'a Blocks) {
        let blocks_total = first_block - 1 + blocks.count();
        if self.count == 0 {
            *self = Self { count: 1, version, seq: seq.0, first_block, blocks_total, text: blocks.as_str().into() };
            return;
        }
        // JSON of ours is one line, so lines keep them apart.
        let text = self.text.to_mut();
        text.push('\n');
        text.push_str(blocks.as_str());
        self.count += 1;
        self.blocks_total = blocks_total;
    }

    /// Writes the row, if there is one; the next begins a new one.
    fn put(&mut self, transaction: &Connection, write: &Write, bytes_total: u64) -> Result<(), Error> {
        if self.count > 0 {
            transaction.prepare_cached("INSERT INTO chunk VALUES(NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)")?.execute(params![
                &write.task.id.as_bytes()[..],
                self.seq,
                self.count,
                self.version,
                write.at.as_millis(),
                self.first_block,
                self.blocks_total,
                bytes_total,
                self.text
            ])?;
            *self = Self::default();
        }
        Ok(())
    }
}

/// Deletes the chunks that end within the first `bytes` of a task's output.
fn drop_oldest(transaction: &Connection, id: &[u8], bytes: u64) -> Result<(), Error> {
    let mut oldest = transaction.prepare_cached("SELECT seq, bytes_total FROM chunk WHERE task = ? ORDER BY seq")?;
    let mut rows = oldest.query(params![id])?;
    let mut keep = None;
    while let Some(row) = rows.next()? {
        keep = Some(row.get::<_, u64>(0)?);
        if row.get::<_, u64>(1)? > bytes {
            break;
        }
    }
    drop(rows);
    if let Some(keep) = keep {
        transaction.prepare_cached("DELETE FROM chunk WHERE task = ? AND seq < ?")?.execute(params![id, keep])?;
    }
    Ok(())
}

/// Notes for the session that follows a task what it is to be told, if that session is still there.
fn tell(transaction: &Connection, write: &Write) -> Result<(), Error> {
    let Some((session, Told { task, first, last, from, end, .. })) = write.told() else { return Ok(()) };
    let number: Option<u64> = transaction
        .prepare_cached(
            "INSERT INTO told SELECT ?1, ifnull((SELECT max(number) FROM told WHERE session = ?1), 0) + 1, ?2, ?3, ?4, ?5, ?6
             WHERE EXISTS(SELECT 1 FROM session WHERE id = ?1) RETURNING number",
        )?
        .query_row(params![session.as_str(), &task.as_bytes()[..], first.0, last.0, from.0, end.0], |row| row.get(0))
        .optional()?;
    if let Some(number) = number.and_then(|number| number.checked_sub(write.told_max)) {
        transaction.prepare_cached("DELETE FROM told WHERE session = ? AND number <= ?")?.execute(params![session.as_str(), number])?;
    }
    Ok(())
}

fn put_session(transaction: &Connection, change: &SessionChange) -> Result<(), Error> {
    match change {
        SessionChange::Begin(session) => {
            transaction.prepare_cached("INSERT INTO session VALUES(?, ?, ?, ?)")?.execute(params![
                session.id.as_str(),
                session.caller.as_str(),
                session.seen.as_millis(),
                session.data.as_str()
            ])?;
        }
        SessionChange::Put(session) => {
            transaction.prepare_cached("UPDATE session SET seen = ?2, data = ?3 WHERE id = ?1")?.execute(params![
                session.id.as_str(),
                session.seen.as_millis(),
                session.data.as_str()
            ])?;
        }
        SessionChange::End(id) => {
            transaction.prepare_cached("DELETE FROM session WHERE id = ?")?.execute([id.as_str()])?;
            transaction.prepare_cached("DELETE FROM told WHERE session = ?")?.execute([id.as_str()])?;
        }
    }
    Ok(())
}

fn put(transaction: &Connection, write: &Write) -> Result<(), Error> {
    let task = &*write.task;
    let id = &task.id.as_bytes()[..];
    let corrupt = |source| Error::Corrupt { task: task.id.to_string(), source };
    let (mut head_changed, mut created, mut chunks) = (false, false, Chunks::default());
    // The total is that after the last chunk; walk back to that before the first.
    let appended = |event: &Event| if let Event::Appended { blocks, .. } = event { blocks.bytes() } else { 0 };
    let mut bytes_total = task.output.bytes - write.events.iter().map(appended).sum::<u64>();
    for (version, event) in (write.first.0..).zip(&write.events) {
        match event {
            Event::Appended { seq, first_block, blocks } => {
                if chunks.text.len() + blocks.as_str().len() > ROW_BYTES {
                    chunks.put(transaction, write, bytes_total)?;
                }
                chunks.add(version, *seq, *first_block, blocks);
                bytes_total += blocks.bytes();
            }
            Event::Expired => {
                transaction.prepare_cached("DELETE FROM log WHERE task = ?")?.execute(params![id])?;
                transaction.prepare_cached("DELETE FROM chunk WHERE task = ?")?.execute(params![id])?;
                if let Some(key) = task.spec.idempotency_key.as_deref() {
                    transaction
                        .prepare_cached("DELETE FROM idempotency WHERE caller = ? AND key = ?")?
                        .execute(params![task.spec.caller.as_str(), key])?;
                }
                transaction.prepare_cached("DELETE FROM task WHERE id = ?")?.execute(params![id])?;
                return Ok(());
            }
            event => {
                head_changed = true;
                let json = serde_json::to_string(event).map_err(corrupt)?;
                transaction.prepare_cached("INSERT INTO log VALUES(?, ?, ?, ?)")?.execute(params![
                    id,
                    version,
                    write.at.as_millis(),
                    json
                ])?;
                created |= matches!(event, Event::Created { .. });
            }
        }
    }
    chunks.put(transaction, write, bytes_total)?;
    if write.dropped_bytes > 0 {
        drop_oldest(transaction, id, write.dropped_bytes)?;
    }
    if let Some(stale) = write.stale_checkpoint {
        transaction.prepare_cached("DELETE FROM log WHERE task = ? AND version = ?")?.execute(params![id, stale.0])?;
    }
    if let Some(key) = task.spec.idempotency_key.as_deref().filter(|_| created) {
        transaction.prepare_cached("INSERT INTO idempotency VALUES(?, ?, ?)")?.execute(params![task.spec.caller.as_str(), key, id])?;
    }
    if head_changed {
        let head = serde_json::to_string(task).map_err(corrupt)?;
        let due = wants(task).due.map(taskwire_core::Timestamp::as_millis);
        let open = task.ended.is_none();
        if created {
            transaction.prepare_cached("INSERT INTO task VALUES(?, ?, ?, ?, ?)")?.execute(params![
                id,
                task.spec.caller.as_str(),
                open,
                due,
                head
            ])?;
        } else {
            let rows = transaction
                .prepare_cached("UPDATE task SET open = ?2, due = ?3, head = ?4 WHERE id = ?1")?
                .execute(params![id, open, due, head])?;
            if rows != 1 {
                return Err(rusqlite::Error::StatementChangedRows(rows).into());
            }
        }
    }
    Ok(())
}
