//! The embedded store: SQLite in WAL mode with `synchronous=FULL`, clustered by time-ordered task ids.
//!
//! `task` holds each task's head, `log` its events, `chunk` its output; what ended a task is only in `log`, how much it
//! wrote only in `chunk`. `session` holds sessions, `outbox` the changes that each is to be sent. Any SQLite tool can read the tables.
//! Rows that callers see have a `checksum`: if you change such a row by hand, set it to NULL.

use std::{borrow::Cow, collections::HashMap, fs::OpenOptions, path::Path, sync::Arc};

use rusqlite::{Connection, OpenFlags, OptionalExtension, Transaction, params};
use taskwire_core::{
    CallerId, Epoch, Seq, TaskId, Timestamp, Version,
    task::{Blocks, Event, Task, wants},
};

use super::{
    CallKey, Error, ErrorKind, Reader, SessionChange, Store, TaskWrite, Usage, Written,
    busy::{self, begin_transaction, retry_while_busy},
    checksum, damage,
    data_dir::{self, DirLock, file_error},
    disk_space::{self, DiskSpace},
    files::{DB, Files},
    sqlite_read::{ChunkRowHeader, SqliteReader, plan_queries_once, read_key, read_task},
    sqlite_session::{write_outbox, write_session},
    wal::{self, PreviousWalEnd, Wal},
};
use crate::{clock::random_bytes, owned_files};

/// The stored format. Version 1 is the first; each later one is a step in [`migrate`].
pub(super) const FORMAT: i64 = 7;

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

/// Chunks that were written together share a row, a line each. In a table without row ids, a search reads large rows whole:
/// so these have row ids, and a small index.
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

/// Sessions, and the outbox of each (`told`, until format 6 renames it).
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

/// Checksums. Rows of earlier formats have none, until they are written again. In `chunk` the text comes last, so that SQLite reads
/// the numbers without it.
const SCHEMA_4: &str = "
ALTER TABLE task ADD COLUMN sum INTEGER;
ALTER TABLE log ADD COLUMN sum INTEGER;
ALTER TABLE idempotency ADD COLUMN sum INTEGER;
ALTER TABLE session ADD COLUMN sum INTEGER;
DROP INDEX chunk_at;
ALTER TABLE chunk RENAME TO chunk_3;
CREATE TABLE chunk(
    id INTEGER PRIMARY KEY, task BLOB NOT NULL, seq INTEGER NOT NULL, count INTEGER NOT NULL, version INTEGER NOT NULL,
    at INTEGER NOT NULL, first_block INTEGER NOT NULL, blocks_total INTEGER NOT NULL, bytes_total INTEGER NOT NULL,
    text_sum INTEGER, sum INTEGER, blocks TEXT NOT NULL
);
CREATE UNIQUE INDEX chunk_at ON chunk(task, seq);
INSERT INTO chunk SELECT id, task, seq, count, version, at, first_block, blocks_total, bytes_total, NULL, NULL, blocks FROM chunk_3 ORDER BY id;
DROP TABLE chunk_3;
";

/// The bytes that each task counts as. There may be many ended tasks, so an index has all that is needed to add them up by caller.
/// `Task::stored_bytes` counts them from now on; the estimate here comes near.
const SCHEMA_5: &str = "
ALTER TABLE task ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
UPDATE task SET bytes = 512 + octet_length(head)
    + (SELECT ifnull(sum(octet_length(event) + 64), 0) FROM log WHERE log.task = task.id)
    + (SELECT ifnull(sum(octet_length(blocks) + 64), 0) FROM chunk WHERE chunk.task = task.id);
CREATE INDEX task_ended ON task(caller, id, bytes, open) WHERE open = 0;
";

/// Plain names: `told` becomes `outbox`, `sum` becomes `checksum`. No row is rewritten.
const SCHEMA_6: &str = "
ALTER TABLE told RENAME TO outbox;
ALTER TABLE outbox RENAME COLUMN number TO position;
ALTER TABLE outbox RENAME COLUMN first TO first_version;
ALTER TABLE outbox RENAME COLUMN last TO last_version;
ALTER TABLE outbox RENAME COLUMN from_seq TO first_seq;
ALTER TABLE session RENAME COLUMN seen TO last_used;
DROP INDEX session_seen;
CREATE INDEX session_last_used ON session(last_used);
ALTER TABLE task RENAME COLUMN sum TO checksum;
ALTER TABLE log RENAME COLUMN sum TO checksum;
ALTER TABLE idempotency RENAME COLUMN sum TO checksum;
ALTER TABLE session RENAME COLUMN sum TO checksum;
ALTER TABLE chunk RENAME COLUMN sum TO checksum;
ALTER TABLE chunk RENAME COLUMN text_sum TO text_checksum;
";

/// The running task of each call that is deduped: a call that is the same joins it.
const SCHEMA_7: &str = "
CREATE TABLE dedupe(
    caller TEXT NOT NULL, hidden INTEGER NOT NULL, fingerprint TEXT NOT NULL, task BLOB NOT NULL, PRIMARY KEY(caller, hidden, fingerprint)
) WITHOUT ROWID;
INSERT OR REPLACE INTO dedupe SELECT caller, ifnull(json_extract(head, '$.spec.hidden'), 0), json_extract(head, '$.spec.dedupe'), id
    FROM (SELECT id, caller, CASE WHEN json_valid(head) THEN head END AS head FROM task WHERE open = 1)
    WHERE json_extract(head, '$.spec.dedupe') IS NOT NULL ORDER BY id;
";

/// How many versions of tasks are remembered.
const VERSIONS_MAX: usize = 65_536;

/// Tasks in a directory, for one process.
pub struct SqliteStore {
    // Dropped before the writing connection, which must close last to bring the WAL into the database.
    reader: Arc<SqliteReader>,
    connection: Connection,
    epoch: Epoch,
    secret: [u8; 32],
    files: Arc<Files>,
    wal: Wal,
    space: DiskSpace,
    /// The versions of some tasks that have not ended. Only this process writes, so they need not be read for each write.
    versions: HashMap<TaskId, Version>,
    _lock: DirLock,
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
    /// When another process has it, when it is not this user's alone, when it was written by a newer release, or when the disk
    /// fails.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, Error> {
        let shown = dir.as_ref();
        let (dir, lock, locked) = data_dir::open(shown)?;
        if dir.join(data_dir::EPOCH).exists() {
            return Err(Error::OfNode { path: shown.display().to_string() });
        }
        data_dir::check_not_moved(&dir, shown)?;
        let last = PreviousWalEnd::look(&dir);
        let path = dir.join(DB);
        owned_files::open(OpenOptions::new().write(true).create(true).truncate(false), &path)
            .map_err(|source| file_error(&path, source))?;
        let connection = connect(&path)?;
        let found = retry_while_busy(&path, || connection.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0)))?;
        if found > FORMAT {
            return Err(Error::TooNew { path: shown.display().to_string(), found, known: FORMAT });
        }
        if let Some(last) = &last {
            last.report(wal::frames(&connection, &path)?, shown);
        }
        let transaction = begin_transaction(&connection, &path)?;
        migrate(&transaction, found)?;
        let (epoch, secret) = (next_epoch(&transaction)?, secret(&transaction)?);
        transaction.commit()?;
        disk_space::vacuum_if_needed(&connection)?;
        let page_bytes = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
        let files = Arc::new(Files::new(shown.display().to_string(), &dir, locked, page_bytes)?);
        let mut wal = Wal::open(&dir, files.clone(), last.as_ref())?;
        wal.verify_and_record(&connection, None)?;
        let reader = Arc::new(SqliteReader::open(files.clone())?);
        let space = DiskSpace::of(&dir).map_err(|source| file_error(shown, source))?;
        Ok(Self { reader, connection, epoch, secret, files, wal, space, versions: HashMap::new(), _lock: lock })
    }

    /// A batch could not be written. After an error that passes, the next one begins on what was there before.
    fn rolled_back(&mut self, db_bytes: u64, error: Error) -> Error {
        self.versions.clear();
        let is_corrupt = matches!(error, Error::Corrupt { .. });
        let of_all = is_corrupt.then(|| damage::check(&self.connection, self.files.db_path()).err()).flatten();
        let error = of_all.unwrap_or(error);
        match error.or_full(|| self.space.free_bytes()) {
            // The transaction is over by now, or the connection is of no use any more.
            Error::Full(source) if !self.connection.is_autocommit() => Error::Database(source),
            error if error.kind() == ErrorKind::Fatal => error,
            error => self.files.forbid_shrinking(db_bytes).err().unwrap_or(error),
        }
    }

    /// As if the disk were full when the database has so many pages, or as many as it has if that is more.
    #[cfg(test)]
    pub(crate) fn set_max_pages(&self, pages: u32) {
        self.connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(())).expect("it is set");
    }
}

/// The connection that writes.
pub(super) fn connect(path: &Path) -> Result<Connection, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(busy::WAIT)?;
    retry_while_busy(path, || disk_space::enable_incremental_vacuum(&connection))?;
    retry_while_busy(path, || connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get::<_, String>(0)))?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "cache_size", -32_768)?;
    plan_queries_once(&connection)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// Brings a store of an earlier format up to this one.
pub(super) fn migrate(transaction: &Connection, found: i64) -> Result<(), Error> {
    let steps = [SCHEMA_1, SCHEMA_2, SCHEMA_3, SCHEMA_4, SCHEMA_5, SCHEMA_6, SCHEMA_7];
    for step in steps.iter().skip(usize::try_from(found).unwrap_or(0)) {
        transaction.execute_batch(step)?;
    }
    if found < FORMAT {
        transaction.pragma_update(None, "user_version", FORMAT)?;
    }
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
    random_bytes(&mut fresh);
    connection.execute("INSERT OR IGNORE INTO meta(key, value) VALUES('secret', ?)", [&fresh[..]])?;
    Ok(connection.query_row("SELECT value FROM meta WHERE key = 'secret'", [], |row| row.get(0))?)
}

impl Store for SqliteStore {
    const BLOCKS: bool = true;

    async fn load(&mut self, id: TaskId) -> Result<Option<Task>, Error> {
        let task = load(&self.connection, id)?;
        if let Some(task) = &task {
            remember_version(&mut self.versions, task);
        }
        Ok(task)
    }

    async fn stored_bytes(&mut self, id: TaskId) -> Result<u64, Error> {
        let mut statement = self.connection.prepare_cached("SELECT bytes FROM task WHERE id = ?")?;
        // A corrupt number must not keep a task from being forgotten.
        let bytes = statement.query_row([&id.as_bytes()[..]], |row| Ok(row.get(0).unwrap_or(0_i64))).optional()?;
        Ok(bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0))
    }

    async fn commit(&mut self, writes: &[TaskWrite], sessions: &[SessionChange]) -> Result<Vec<Written>, Error> {
        // The files are checked before and after: nothing is added to one that was removed or cut short, and nothing in it is acknowledged.
        self.files.check_db()?;
        self.wal.check(&self.connection)?;
        let (connection, files) = (&self.connection, &self.files);
        let transaction = files.beginning(|| begin_transaction(connection, files.db_path()))?;
        // Now nobody else writes. What we do may make the database smaller.
        let db_bytes = self.files.allow_shrinking();
        let written = write_all(transaction, &mut self.versions, writes, sessions).map_err(|error| self.rolled_back(db_bytes, error))?;
        self.files.forbid_shrinking(db_bytes)?;
        self.wal.verify_and_record(&self.connection, writes.iter().map(|write| write.at).max())?;
        Ok(written)
    }

    fn free_bytes(&self) -> Option<u64> {
        self.space.free_bytes()
    }

    fn reclaim(&mut self) -> Result<bool, Error> {
        // As for a commit.
        self.files.check_db()?;
        self.wal.check(&self.connection)?;
        let db_bytes = self.files.allow_shrinking();
        let more = self.space.reclaim(&self.connection)?;
        self.files.forbid_shrinking(db_bytes)?;
        self.wal.verify_and_record(&self.connection, None)?;
        Ok(more)
    }

    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn secret(&self) -> [u8; 32] {
        self.secret
    }

    fn usage(&self) -> Result<Vec<(CallerId, Usage)>, Error> {
        self.reader.usage()
    }

    fn reader(&self) -> Arc<dyn Reader> {
        self.reader.clone()
    }
}

/// Writes a batch. If that fails, nothing of it is there, unless its fsync has failed. A page that is damaged concerns what is written there.
fn write_all(
    transaction: Transaction<'_>,
    versions: &mut HashMap<TaskId, Version>,
    writes: &[TaskWrite],
    sessions: &[SessionChange],
) -> Result<Vec<Written>, Error> {
    let mut written = Vec::with_capacity(writes.len());
    for write in writes {
        let done = carry_out(&transaction, versions, write);
        written.push(done.map_err(|error| error.or_corrupt(format_args!("task {}", write.task.id)))?);
    }
    for change in sessions {
        write_session(&transaction, change).map_err(|error| error.or_corrupt("a session"))?;
    }
    let unread = writes.iter().zip(&written).find(|(_, written)| **written == Written::Conflict(None));
    transaction.commit().map_err(|error| match unread {
        // SQLite commits nothing if it has met a damaged page, be it when it looked at this task.
        Some((write, _)) => Error::from(error).or_corrupt(format_args!("task {}", write.task.id)),
        None => error.into(),
    })?;
    Ok(written)
}

fn carry_out(transaction: &Connection, versions: &mut HashMap<TaskId, Version>, write: &TaskWrite) -> Result<Written, Error> {
    if let Some(obstacle) = obstacle(transaction, versions, write)? {
        return Ok(obstacle);
    }
    write_task(transaction, write)?;
    write_outbox(transaction, write)?;
    remember_version(versions, &write.task);
    Ok(Written::Done)
}

fn load(connection: &Connection, id: TaskId) -> Result<Option<Task>, Error> {
    read_task(connection, id).map_err(|error| error.or_corrupt(format_args!("task {id}")))
}

/// Why a write cannot be carried out, if it cannot.
fn obstacle(connection: &Connection, versions: &mut HashMap<TaskId, Version>, write: &TaskWrite) -> Result<Option<Written>, Error> {
    let id = write.task.id;
    let found = match versions.get(&id) {
        Some(version) => *version,
        // The id of a new task is random. If it is there all the same, its insertion fails.
        None if write.first_version == Version(1) => Version(0),
        None => match load(connection, id) {
            Ok(task) => task.map_or(Version(0), |task| task.version),
            // Whoever decides again reads the task, and learns that it is damaged.
            Err(Error::Corrupt { .. }) => return Ok(Some(Written::Conflict(None))),
            Err(error) => return Err(error),
        },
    };
    if found.next() != write.first_version {
        return Ok(Some(Written::Conflict(load(connection, id)?.map(Box::new))));
    }
    if write.first_version == Version(1) {
        for key in CallKey::of(&write.task.spec) {
            let Some(taken) = read_key(connection, key)? else { continue };
            match load(connection, taken) {
                Ok(Some(_)) => return Ok(Some(Written::KeyTaken(taken))),
                // A key whose task is gone, or cannot be read, is free.
                Ok(None) | Err(Error::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(None)
}

fn remember_version(versions: &mut HashMap<TaskId, Version>, task: &Task) {
    if task.ended.is_some() {
        versions.remove(&task.id);
    } else {
        if versions.len() >= VERSIONS_MAX {
            versions.clear();
        }
        versions.insert(task.id, task.version);
    }
}

/// Chunks share a row up to this many bytes, so that reading one chunk does not read many others.
const ROW_BYTES: usize = 256 * 1024;

/// A row for chunks that follow each other in one write.
#[derive(Default)]
struct ChunkRow<'a> {
    numbers: ChunkRowHeader,
    text: Cow<'a, str>,
}

impl<'a> ChunkRow<'a> {
    fn add(&mut self, version: u64, seq: Seq, first_block: u64, blocks: &'a Blocks) {
        if self.numbers.count == 0 {
            self.numbers = ChunkRowHeader { seq: seq.0, version, first_block, ..ChunkRowHeader::default() };
            self.text = blocks.as_str().into();
        } else {
            // The JSON of a chunk is one line, so line breaks separate chunks.
            let text = self.text.to_mut();
            text.push('\n');
            text.push_str(blocks.as_str());
        }
        self.numbers.count += 1;
        self.numbers.blocks_total = first_block - 1 + blocks.count();
    }

    /// The version that the next chunk must have to share the row.
    const fn next_version(&self) -> u64 {
        self.numbers.version + self.numbers.count
    }

    /// Writes the row, if it has chunks, and begins a new one.
    fn put(&mut self, transaction: &Connection, write: &TaskWrite, bytes_total: u64) -> Result<(), Error> {
        let Self { numbers, text } = std::mem::take(self);
        if numbers.count > 0 {
            let id = write.task.id;
            let numbers =
                ChunkRowHeader { at: write.at.as_millis(), bytes_total, text_checksum: Some(checksum::of_text(&text)), ..numbers };
            transaction.prepare_cached("INSERT INTO chunk VALUES(NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")?.execute(params![
                &id.as_bytes()[..],
                numbers.seq,
                numbers.count,
                numbers.version,
                numbers.at,
                numbers.first_block,
                numbers.blocks_total,
                numbers.bytes_total,
                numbers.text_checksum,
                numbers.checksum(id),
                text
            ])?;
        }
        Ok(())
    }
}

/// Deletes the rows of chunks that end within the first `bytes` of a task's output. A corrupt row, and all after it, stay: its numbers
/// cannot be relied on.
fn drop_oldest(transaction: &Connection, id: TaskId, bytes: u64) -> Result<(), Error> {
    let mut oldest = transaction.prepare_cached(
        "SELECT seq, count, version, at, first_block, blocks_total, bytes_total, text_checksum, checksum FROM chunk WHERE task = ? ORDER BY seq",
    )?;
    let mut rows = oldest.query([&id.as_bytes()[..]])?;
    let mut keep = None;
    while let Some(row) = rows.next()? {
        let Ok(numbers) = ChunkRowHeader::read(row, id) else { break };
        keep = Some(numbers.seq);
        if numbers.bytes_total > bytes {
            break;
        }
    }
    drop(rows);
    if let Some(keep) = keep {
        transaction.prepare_cached("DELETE FROM chunk WHERE task = ? AND seq < ?")?.execute(params![&id.as_bytes()[..], keep])?;
    }
    Ok(())
}

/// Lets the next call of this kind make a task of its own.
fn release_dedupe(transaction: &Connection, task: &Task) -> Result<(), Error> {
    if let Some(fingerprint) = task.spec.fingerprint.as_deref() {
        transaction
            .prepare_cached("DELETE FROM dedupe WHERE caller = ? AND hidden = ? AND fingerprint = ? AND task = ?")?
            .execute(params![task.spec.caller.as_str(), task.spec.hidden, fingerprint, &task.id.as_bytes()[..]])?;
    }
    Ok(())
}

fn write_task(transaction: &Connection, write: &TaskWrite) -> Result<(), Error> {
    let task = &*write.task;
    let id = &task.id.as_bytes()[..];
    let unwritable = |error: serde_json::Error| Error::corrupt_task(task.id, error);
    let (mut head_changed, mut created, mut chunks) = (false, false, ChunkRow::default());
    // `output.bytes` counts the new chunks already: begin with the total before them.
    let appended = |event: &Event| if let Event::Appended { blocks, .. } = event { blocks.bytes() } else { 0 };
    let mut bytes_total = task.output.bytes - write.events.iter().map(appended).sum::<u64>();
    for (version, event) in (write.first_version.0..).zip(&write.events) {
        match event {
            Event::Appended { seq, first_block, blocks } => {
                // The versions of the chunks in a row follow each other: another event ends it.
                if chunks.text.len() + blocks.as_str().len() > ROW_BYTES || chunks.next_version() != version {
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
                release_dedupe(transaction, task)?;
                transaction.prepare_cached("DELETE FROM task WHERE id = ?")?.execute(params![id])?;
                return Ok(());
            }
            event => {
                head_changed = true;
                let (json, at) = (serde_json::to_string(event).map_err(unwritable)?, write.at.as_millis());
                let sum = checksum::of_event(task.id, version.cast_signed(), at, &json);
                transaction.prepare_cached("INSERT INTO log VALUES(?, ?, ?, ?, ?)")?.execute(params![id, version, at, json, sum])?;
                created |= matches!(event, Event::Created { .. });
            }
        }
    }
    chunks.put(transaction, write, bytes_total)?;
    if write.dropped_bytes > 0 {
        drop_oldest(transaction, task.id, write.dropped_bytes)?;
    }
    for stale in &write.stale_checkpoints {
        transaction.prepare_cached("DELETE FROM log WHERE task = ? AND version = ?")?.execute(params![id, stale.0])?;
    }
    if let Some(fingerprint) = task.spec.fingerprint.as_deref().filter(|_| created) {
        transaction.prepare_cached("INSERT OR REPLACE INTO dedupe VALUES(?, ?, ?, ?)")?.execute(params![
            task.spec.caller.as_str(),
            task.spec.hidden,
            fingerprint,
            id
        ])?;
    }
    if task.ended.is_some() {
        release_dedupe(transaction, task)?;
    }
    if let Some(key) = task.spec.idempotency_key.as_deref().filter(|_| created) {
        // A key that is there already has a task that is gone, or this one would not be made.
        let (caller, sql) = (task.spec.caller.as_str(), "INSERT OR REPLACE INTO idempotency VALUES(?, ?, ?, ?)");
        transaction.prepare_cached(sql)?.execute(params![caller, key, id, checksum::of_key(caller, key, task.id)])?;
    }
    if head_changed {
        let head = serde_json::to_string(task).map_err(unwritable)?;
        let due = wants(task).due.map(Timestamp::as_millis);
        let (caller, open) = (task.spec.caller.as_str(), i64::from(task.ended.is_none()));
        let sum = checksum::of_task(task.id, caller, open, due, &head);
        if created {
            transaction
                .prepare_cached("INSERT INTO task(id, caller, open, due, head, checksum, bytes) VALUES(?, ?, ?, ?, ?, ?, ?)")?
                .execute(params![id, caller, open, due, head, sum, write.stored_bytes])?;
        } else {
            let rows = transaction
                .prepare_cached("UPDATE task SET open = ?2, due = ?3, head = ?4, checksum = ?5, bytes = ?6 WHERE id = ?1")?
                .execute(params![id, open, due, head, sum, write.stored_bytes])?;
            if rows != 1 {
                return Err(rusqlite::Error::StatementChangedRows(rows).into());
            }
        }
    }
    Ok(())
}
