//! Reading the embedded store: a pool of connections, each used by one thread at a time.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, config::DbConfig, params};
use taskwire_core::{
    CallerId, Epoch, Payload, Seq, SessionId, TaskId, Timestamp, Version,
    task::{Blocks, Event, OutputTotals, Task},
};

use super::{
    CallKey, Chunk, Cursor, Error, OutboxItem, PAGE_EVENTS, Page, Read, Reader, Session, Space, StoredEvent, UnmergedPage, Usage, at_once,
    checksum, files::Files,
};

/// Connections kept for the next reader; more are opened when more threads read at once.
const IDLE_CONNECTIONS_MAX: usize = 8;
/// How much of a task is read to check it.
const CHECKED_EVENTS: usize = 1_000;
const CHECKED_CHUNKS: usize = 1_000;
const CHECKED_BYTES: usize = 1024 * 1024;

pub(super) struct SqliteReader {
    files: Arc<Files>,
    idle: Mutex<Vec<Connection>>,
}

impl SqliteReader {
    /// See [`Store::usage`](super::Store::usage).
    pub(super) fn usage(&self) -> Result<Vec<(CallerId, Usage)>, Error> {
        self.with(|connection| {
            let mut used: HashMap<CallerId, Usage> = HashMap::new();
            for (sql, is_open) in [
                ("SELECT caller, total(1) FROM task WHERE open = 1 GROUP BY caller", true),
                // Not `sum`, which fails if a corrupt number is far too large.
                ("SELECT caller, total(bytes) FROM task WHERE open = 0 GROUP BY caller", false),
            ] {
                let mut statement = connection.prepare_cached(sql)?;
                let mut rows = statement.query([])?;
                while let Some(row) = rows.next()? {
                    let caller = CallerId::new(row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?);
                    let usage = used.entry(caller).or_default();
                    *(if is_open { &mut usage.open } else { &mut usage.bytes }) = row.get::<_, f64>(1)? as u64;
                }
            }
            Ok(used.into_iter().collect())
        })
    }

    /// Opens some connections ahead: a process that runs out of file handles can still read.
    pub(super) fn open(files: Arc<Files>) -> Result<Self, Error> {
        let reader = Self { files, idle: Mutex::new(Vec::new()) };
        let ahead: Vec<Connection> = (0..IDLE_CONNECTIONS_MAX / 2).map(|_| reader.connect()).collect::<Result<_, _>>()?;
        reader.idle.lock().unwrap_or_else(PoisonError::into_inner).extend(ahead);
        Ok(reader)
    }

    fn connect(&self) -> Result<Connection, Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let connection = Connection::open_with_flags(self.files.db_path(), flags);
        // A file that was put in its place is another store.
        self.files.check_names()?;
        let connection = connection?;
        connection.pragma_update(None, "cache_size", -4_096)?;
        connection.pragma_update(None, "mmap_size", 1_i64 << 30)?;
        plan_queries_once(&connection)?;
        connection.set_prepared_statement_cache_capacity(32);
        connection.busy_timeout(std::time::Duration::from_secs(5))?;
        Ok(connection)
    }

    fn with<T>(&self, read: impl FnOnce(&Connection) -> Result<T, Error>) -> Result<T, Error> {
        // In a file that was cut short, data would seem never written, and reading its mapped memory would end the process.
        self.files.check_db()?;
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let result = read(&connection).map_err(|error| error.or_full(|| self.files.space().free_bytes));
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if result.is_ok() && idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push(connection);
        }
        result
    }

    /// The same; a corrupt row is an error about task `id`.
    fn of_task<T>(&self, id: TaskId, read: impl FnOnce(&Connection) -> Result<T, Error>) -> Result<T, Error> {
        self.with(read).map_err(|error| error.or_corrupt(format_args!("task {id}")))
    }
}

/// Plans each query once: else SQLite plans it anew for each value of some parameters, `LIMIT` among them.
pub(super) fn plan_queries_once(connection: &Connection) -> Result<(), Error> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

fn corrupt(id: TaskId) -> impl Fn(serde_json::Error) -> Error {
    move |source| Error::corrupt_task(id, source)
}

pub(super) fn text<'r>(row: &'r Row<'_>, index: usize) -> rusqlite::Result<&'r str> {
    Ok(row.get_ref(index)?.as_str()?)
}

/// Whether the checksum in a row is `sum`. Rows of earlier formats have none, and fit.
pub(super) fn checksum_fits(row: &Row<'_>, index: usize, sum: i64) -> rusqlite::Result<bool> {
    Ok(row.get::<_, Option<i64>>(index)?.is_none_or(|stored| stored == sum))
}

/// An event in a row of `at`, `event` and `checksum`, from `index` on.
fn event_of(row: &Row<'_>, index: usize, id: TaskId, version: i64) -> Result<(Timestamp, Event), Error> {
    let (at, event) = (row.get(index)?, text(row, index + 1)?);
    if !checksum_fits(row, index + 2, checksum::of_event(id, version, at, event))? {
        return Err(Error::corrupt_task(id, format_args!("event {version} does not fit its checksum")));
    }
    Ok((Timestamp::from_millis(at), serde_json::from_str(event).map_err(corrupt(id))?))
}

pub(super) fn id_of(row: &rusqlite::Row<'_>) -> rusqlite::Result<Option<TaskId>> {
    Ok(TaskId::from_bytes(row.get_ref(0)?.as_blob()?))
}

/// What an id must be below to come before this one; without one, what is larger than all ids: it has one byte more than any has.
fn upper_bound(before: Option<&TaskId>) -> &[u8] {
    before.map_or(&[0xff; 21][..], |id| &id.as_bytes()[..])
}

pub(super) fn ids(connection: &Connection, sql: &str, params: impl rusqlite::Params) -> Result<Vec<TaskId>, Error> {
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(params, id_of)?;
    Ok(rows.filter_map(Result::transpose).collect::<Result<_, _>>()?)
}

pub(super) fn read_event(connection: &Connection, id: TaskId, version: Version) -> Result<Option<Event>, Error> {
    let mut statement = connection.prepare_cached("SELECT at, event, checksum FROM log WHERE task = ? AND version = ?")?;
    let mut rows = statement.query(params![&id.as_bytes()[..], version.0])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    event_of(row, 0, id, version.0.cast_signed()).map(|(_, event)| Some(event))
}

/// Whether there is such a task, also a corrupt one.
fn has_task(connection: &Connection, id: TaskId) -> Result<bool, Error> {
    let mut statement = connection.prepare_cached("SELECT 1 FROM task WHERE id = ?")?;
    Ok(statement.exists([&id.as_bytes()[..]])?)
}

/// Reads a task's owner and head, and checks them.
fn with_head<T>(connection: &Connection, id: TaskId, read: impl FnOnce(&str, &str) -> Result<T, Error>) -> Result<Option<T>, Error> {
    let mut statement = connection.prepare_cached("SELECT caller, open, due, head, checksum FROM task WHERE id = ?")?;
    let mut rows = statement.query([&id.as_bytes()[..]])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let (caller, head) = (text(row, 0)?, text(row, 3)?);
    if !checksum_fits(row, 4, checksum::of_task(id, caller, row.get(1)?, row.get(2)?, head))? {
        return Err(Error::corrupt_task(id, "its head does not fit its checksum"));
    }
    read(caller, head).map(Some)
}

fn read_head(connection: &Connection, id: TaskId) -> Result<Option<Task>, Error> {
    with_head(connection, id, |_, head| serde_json::from_str(head).map_err(corrupt(id)))
}

/// Whether a task is there and this caller's. Only the caller's own tasks are looked at, so that it takes as long for somebody else's task as for
/// one that never was.
fn is_of(connection: &Connection, caller: &CallerId, id: TaskId) -> Result<bool, Error> {
    let mut statement = connection.prepare_cached("SELECT 1 FROM task INDEXED BY task_caller WHERE caller = ? AND id = ?")?;
    Ok(statement.exists(params![caller.as_str(), &id.as_bytes()[..]])?)
}

pub(super) fn read_task(connection: &Connection, id: TaskId) -> Result<Option<Task>, Error> {
    let Some(mut task) = read_head(connection, id)? else { return Ok(None) };
    if let Some((_, version)) = task.ended {
        match read_event(connection, id, version)? {
            Some(event) => task.restore_outcome(&event),
            None if has_task(connection, id)? => return Err(Error::corrupt_task(id, "its end is missing")),
            // The task was forgotten between the two reads.
            None => return Ok(None),
        }
    }
    if let Some(end) = read_output_end(connection, id)? {
        task.restore_output(end.output, end.version);
    }
    Ok(Some(task))
}

pub(super) fn read_key(connection: &Connection, key: CallKey<'_>) -> Result<Option<TaskId>, Error> {
    let (caller, key) = match key {
        CallKey::Idempotency(caller, key) => (caller.as_str(), key),
        CallKey::Dedupe(caller, hidden, fingerprint) => {
            let sql = "SELECT task FROM dedupe WHERE caller = ? AND hidden = ? AND fingerprint = ?";
            let mut statement = connection.prepare_cached(sql)?;
            let id = statement.query_row(params![caller.as_str(), hidden, fingerprint], id_of).optional()?;
            return Ok(id.flatten());
        }
    };
    let mut statement = connection.prepare_cached("SELECT task, checksum FROM idempotency WHERE caller = ? AND key = ?")?;
    let mut rows = statement.query(params![caller, key])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    match id_of(row)? {
        Some(id) if checksum_fits(row, 1, checksum::of_key(caller, key, id))? => Ok(Some(id)),
        _ => Err(Error::corrupt("an idempotency key", "it does not fit its checksum")),
    }
}

fn read_events(connection: &Connection, id: TaskId, after: Version, upto: Version, limit: usize) -> Result<Vec<StoredEvent>, Error> {
    let mut statement = connection.prepare_cached(
        "SELECT version, at, event, checksum FROM log WHERE task = ? AND version > ? AND version <= ? ORDER BY version LIMIT ?",
    )?;
    let mut rows = statement.query(params![&id.as_bytes()[..], number(after.0), number(upto.0), number(limit as u64)])?;
    let mut events = Vec::new();
    while let Some(row) = rows.next()? {
        let (at, event) = event_of(row, 1, id, row.get(0)?)?;
        events.push(StoredEvent { version: Version(row.get(0)?), at, event });
    }
    Ok(events)
}

/// A number for SQLite; one that is too large becomes its largest.
fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// All columns of a row of chunks but its text.
#[derive(Default)]
pub(super) struct ChunkRowHeader {
    pub(super) seq: u64,
    pub(super) count: u64,
    pub(super) version: u64,
    pub(super) at: i64,
    pub(super) first_block: u64,
    pub(super) blocks_total: u64,
    pub(super) bytes_total: u64,
    pub(super) text_checksum: Option<i64>,
}

impl ChunkRowHeader {
    /// Reads `seq`, `count`, `version`, `at`, `first_block`, `blocks_total`, `bytes_total`, `text_checksum` and `checksum`, in this order.
    pub(super) fn read(row: &Row<'_>, id: TaskId) -> Result<Self, Error> {
        let numbers = Self {
            seq: row.get(0)?,
            count: row.get(1)?,
            version: row.get(2)?,
            at: row.get(3)?,
            first_block: row.get(4)?,
            blocks_total: row.get(5)?,
            bytes_total: row.get(6)?,
            text_checksum: row.get(7)?,
        };
        if !checksum_fits(row, 8, numbers.checksum(id))? {
            return Err(Error::corrupt_task(id, format_args!("its output from chunk {} on does not fit its checksum", numbers.seq)));
        }
        Ok(numbers)
    }

    pub(super) fn checksum(&self, id: TaskId) -> i64 {
        let counts = [self.seq, self.count, self.version, self.first_block, self.blocks_total, self.bytes_total].map(u64::cast_signed);
        let [seq, count, version, first_block, blocks_total, bytes_total] = counts;
        let text_sum = self.text_checksum.unwrap_or(0);
        checksum::of_chunk_header(id, [seq, count, version, self.at, first_block, blocks_total, bytes_total, text_sum])
    }
}

/// The totals of a task's output, and the version of its last chunk.
pub(super) struct OutputEnd {
    pub(super) output: OutputTotals,
    pub(super) version: Version,
}

pub(super) fn read_output_end(connection: &Connection, id: TaskId) -> Result<Option<OutputEnd>, Error> {
    let mut last = connection.prepare_cached(
        "SELECT seq, count, version, at, first_block, blocks_total, bytes_total, text_checksum, checksum FROM chunk
         WHERE task = ? ORDER BY seq DESC LIMIT 1",
    )?;
    let mut rows = last.query([&id.as_bytes()[..]])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let ChunkRowHeader { seq, count, version, blocks_total, bytes_total, .. } = ChunkRowHeader::read(row, id)?;
    let output = OutputTotals { next_seq: Seq(seq + count), blocks: blocks_total, bytes: bytes_total };
    Ok(Some(OutputEnd { output, version: Version(version + count - 1) }))
}

fn read_chunks(connection: &Connection, id: TaskId, from: Seq, bytes: usize, limit: usize) -> Result<Vec<Chunk>, Error> {
    // From the row that has the chunk `from`, if one does.
    let mut statement = connection.prepare_cached(
        "SELECT seq, count, version, at, first_block, blocks_total, bytes_total, text_checksum, checksum, blocks FROM chunk
         WHERE task = ?1 AND seq >= ifnull((SELECT max(seq) FROM chunk WHERE task = ?1 AND seq <= ?2), ?2) ORDER BY seq",
    )?;
    let mut rows = statement.query(params![&id.as_bytes()[..], number(from.0)])?;
    let (mut chunks, mut size) = (Vec::new(), 0);
    let mut next: Option<u64> = None;
    while let Some(row) = rows.next()? {
        let ChunkRowHeader { seq, count, version, mut first_block, blocks_total, text_checksum: text_sum, .. } =
            ChunkRowHeader::read(row, id)?;
        let text = text(row, 9)?;
        if text_sum.is_some_and(|stored| stored != checksum::of_text(text)) || next.is_some_and(|next| next != seq) {
            let from = next.unwrap_or(seq);
            return Err(Error::corrupt_task(id, format_args!("its output from chunk {from} on is not what was written")));
        }
        next = Some(seq + count);
        let plain = blocks_total + 1 == first_block + count;
        for (nth, line) in (0..count).zip(text.split('\n')) {
            let blocks = if plain { 1 } else { count_blocks(line).map_err(corrupt(id))? };
            if seq + nth >= from.0 {
                size += line.len();
                if (size > bytes && !chunks.is_empty()) || chunks.len() >= limit {
                    return Ok(chunks);
                }
                let blocks = Blocks::from_stored(blocks, line);
                chunks.push(Chunk { seq: Seq(seq + nth), version: Version(version + nth), first_block, blocks });
            }
            first_block += blocks;
        }
    }
    Ok(chunks)
}

/// Checks what is stored of a task: its head, its end, its first events and its first output.
pub(super) fn check_task(connection: &Connection, id: TaskId) -> Result<(), Error> {
    let read = || -> Result<(), Error> {
        // All of it is of one moment.
        let moment = connection.unchecked_transaction()?;
        read_task(&moment, id)?;
        read_events(&moment, id, Version(0), Version(u64::MAX), CHECKED_EVENTS)?;
        read_chunks(&moment, id, Seq(0), CHECKED_BYTES, CHECKED_CHUNKS).map(drop)
    };
    read().map_err(|error| error.or_corrupt(format_args!("task {id}")))
}

/// How many content blocks a chunk has.
fn count_blocks(json: &str) -> Result<u64, serde_json::Error> {
    serde_json::from_str::<Vec<&serde_json::value::RawValue>>(json).map(|blocks| blocks.len() as u64)
}

impl Reader for SqliteReader {
    fn is_locked_out(&self) -> bool {
        self.files.is_beginning()
    }

    fn space(&self) -> Space {
        self.files.space()
    }

    fn task(&self, id: TaskId) -> Read<'_, Option<Arc<Task>>> {
        let read = self.of_task(id, |connection| {
            let moment = connection.unchecked_transaction()?;
            read_task(&moment, id)
        });
        at_once(read.map(|task| task.map(Arc::new)))
    }

    fn task_of<'a>(&'a self, caller: &'a CallerId, id: TaskId) -> Read<'a, Option<Arc<Task>>> {
        let read = self.of_task(id, |connection| {
            let moment = connection.unchecked_transaction()?;
            // Of another caller's task nothing but its owner is looked at, not even whether it is damaged.
            if is_of(&moment, caller, id)? { read_task(&moment, id) } else { Ok(None) }
        });
        at_once(read.map(|task| task.map(Arc::new)))
    }

    fn is_of<'a>(&'a self, caller: &'a CallerId, id: TaskId) -> Read<'a, bool> {
        at_once(self.of_task(id, |connection| is_of(connection, caller, id)))
    }

    fn event(&self, id: TaskId, version: Version) -> Read<'_, Option<Event>> {
        at_once(self.of_task(id, |connection| read_event(connection, id, version)))
    }

    fn page(&self, id: TaskId, cursor: Cursor) -> Read<'_, Option<Page>> {
        at_once(self.of_task(id, |connection| {
            // One transaction, so that all of it is of one moment.
            let moment = connection.unchecked_transaction()?;
            let Some(head) = read_head(&moment, id)? else { return Ok(None) };
            let (end, version) = read_output_end(&moment, id)?.map_or((Seq(0), head.version), |last| (last.output.next_seq, last.version));
            let (chunks, more_chunks) = match cursor.from.filter(|from| *from < end) {
                None => (Vec::new(), false),
                Some(from) => {
                    let chunks = read_chunks(&moment, id, from, cursor.max_bytes, cursor.max_chunks)?;
                    let more = chunks.last().is_some_and(|last| last.seq.next() < end);
                    (chunks, more)
                }
            };
            // Events after the chunks of this page come with later pages: some are large.
            let upto = chunks.last().filter(|_| more_chunks).map_or(Version(u64::MAX), |last| last.version);
            let mut events = read_events(&moment, id, cursor.after, upto, PAGE_EVENTS + 1)?;
            let more_events = events.len() > PAGE_EVENTS;
            events.truncate(PAGE_EVENTS);
            let version = version.max(head.version);
            Ok(Some(
                UnmergedPage { events, more_events, chunks, more_chunks, version, next_seq: end, ended: head.ended.is_some() }
                    .merge(cursor.after),
            ))
        }))
    }

    fn chunk_range(&self, id: TaskId) -> Read<'_, Range<Seq>> {
        at_once(self.of_task(id, |connection| {
            let moment = connection.unchecked_transaction()?;
            let mut statement = moment.prepare_cached("SELECT min(seq) FROM chunk WHERE task = ?")?;
            let first: Option<u64> = statement.query_row([&id.as_bytes()[..]], |row| row.get(0))?;
            Ok(Seq(first.unwrap_or(0))..read_output_end(&moment, id)?.map_or(Seq(0), |last| last.output.next_seq))
        }))
    }

    fn owner(&self, id: TaskId) -> Read<'_, Option<CallerId>> {
        at_once(self.of_task(id, |connection| with_head(connection, id, |caller, _| Ok(CallerId::new(caller)))))
    }

    fn due_tasks(&self, now: Timestamp, _of: Option<Epoch>, limit: usize) -> Read<'_, Vec<TaskId>> {
        at_once(self.with(|connection| {
            ids(
                connection,
                "SELECT id FROM task WHERE due IS NOT NULL AND due <= ? ORDER BY due, id LIMIT ?",
                params![now.as_millis(), limit],
            )
        }))
    }

    fn next_due(&self, after: Timestamp) -> Read<'_, Option<Timestamp>> {
        at_once(self.with(|connection| {
            let mut statement = connection.prepare_cached("SELECT due FROM task WHERE due IS NOT NULL AND due > ? ORDER BY due LIMIT 1")?;
            Ok(statement.query_row([after.as_millis()], |row| row.get(0)).optional()?.map(Timestamp::from_millis))
        }))
    }

    fn open_tasks(&self, after: Option<TaskId>, limit: usize) -> Read<'_, Vec<TaskId>> {
        at_once(self.with(|connection| {
            let after = after.as_ref().map_or(&[][..], |id| &id.as_bytes()[..]);
            ids(connection, "SELECT id FROM task WHERE open = 1 AND id > ? ORDER BY id LIMIT ?", params![after, limit])
        }))
    }

    fn tasks_of<'a>(&'a self, caller: &'a CallerId, before: Option<TaskId>, limit: usize) -> Read<'a, Vec<TaskId>> {
        at_once(self.with(|connection| {
            let sql = "SELECT id FROM task WHERE caller = ? AND id < ? ORDER BY id DESC LIMIT ?";
            ids(connection, sql, params![caller.as_str(), upper_bound(before.as_ref()), limit])
        }))
    }

    fn latest_tasks(&self, open: bool, before: Option<TaskId>, limit: usize) -> Read<'_, Vec<TaskId>> {
        at_once(self.with(|connection| {
            let sql = match open {
                true => "SELECT id FROM task WHERE open = 1 AND id < ? ORDER BY id DESC LIMIT ?",
                false => "SELECT id FROM task WHERE id < ? ORDER BY id DESC LIMIT ?",
            };
            ids(connection, sql, params![upper_bound(before.as_ref()), limit])
        }))
    }

    fn by_key<'a>(&'a self, key: CallKey<'a>) -> Read<'a, Option<TaskId>> {
        at_once(self.with(|connection| read_key(connection, key)).map_err(|error| error.or_corrupt("a call's key")))
    }

    fn session<'a>(&'a self, id: &'a SessionId) -> Read<'a, Option<Session>> {
        let read = self.with(|connection| {
            let mut statement = connection.prepare_cached("SELECT caller, last_used, data, checksum FROM session WHERE id = ?")?;
            let mut rows = statement.query([id.as_str()])?;
            let Some(row) = rows.next()? else { return Ok(None) };
            let (caller, seen, data) = (text(row, 0)?, row.get(1)?, text(row, 2)?);
            if !checksum_fits(row, 3, checksum::of_session(id.as_str(), caller, seen, data))? {
                return Err(Error::corrupt("a session", "it does not fit its checksum"));
            }
            let data = serde_json::from_str::<Payload>(data).map_err(|error| Error::corrupt("a session", error))?;
            Ok(Some(Session { id: id.clone(), caller: CallerId::new(caller), last_used: Timestamp::from_millis(seen), data }))
        });
        // The id of a session is as good as a password: the error does not name it.
        at_once(read.map_err(|error| error.or_corrupt("a session")))
    }

    fn outbox<'a>(&'a self, id: &'a SessionId, after: u64, limit: usize) -> Read<'a, Vec<OutboxItem>> {
        at_once(self.with(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT task, position, first_version, last_version, first_seq, end_seq FROM outbox WHERE session = ? AND position > ? ORDER BY position LIMIT ?",
            )?;
            let rows = statement.query_map(params![id.as_str(), number(after), limit], |row| {
                let Some(task) = id_of(row)? else { return Ok(None) };
                let (first, last) = (Version(row.get(2)?), Version(row.get(3)?));
                Ok(Some(OutboxItem {
                    position: row.get(1)?,
                    task,
                    first_version: first,
                    last_version: last,
                    first_seq: Seq(row.get(4)?),
                    end_seq: Seq(row.get(5)?),
                }))
            })?;
            Ok(rows.filter_map(Result::transpose).collect::<Result<_, _>>()?)
        }))
    }

    fn outbox_end<'a>(&'a self, id: &'a SessionId) -> Read<'a, u64> {
        at_once(self.with(|connection| {
            let mut statement = connection.prepare_cached("SELECT ifnull(max(position), 0) FROM outbox WHERE session = ?")?;
            Ok(statement.query_row([id.as_str()], |row| row.get(0))?)
        }))
    }

    fn idle_sessions<'a>(&'a self, caller: &'a CallerId, before: Timestamp, keep: usize) -> Read<'a, Vec<SessionId>> {
        at_once(self.with(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT id FROM (SELECT id FROM session WHERE last_used < ?1 ORDER BY last_used LIMIT 64)
                 UNION SELECT id FROM (SELECT id FROM session WHERE caller = ?2 ORDER BY last_used DESC, id LIMIT -1 OFFSET ?3)",
            )?;
            let rows = statement
                .query_map(params![before.as_millis(), caller.as_str(), keep], |row| Ok(SessionId::new(row.get_ref(0)?.as_str()?)))?;
            Ok(rows.collect::<Result<_, _>>()?)
        }))
    }
}
