//! Reading the embedded store: a pool of connections, each used by one thread at a time.

use std::{
    ops::Range,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use rusqlite::{Connection, OpenFlags, OptionalExtension, config::DbConfig, params};
use taskwire_core::{
    CallerId, Payload, Seq, SessionId, TaskId, Timestamp, Version,
    task::{Blocks, Event, Output, Task},
};

use super::{Chunk, Cursor, Error, Logged, PAGE_EVENTS, Page, Parts, Reader, Session, Told};

/// Connections kept for the next reader; more are opened when more threads read at once.
const IDLE_CONNECTIONS_MAX: usize = 8;

pub(super) struct SqliteReader {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
}

impl SqliteReader {
    /// Opens some connections ahead: a process that runs out of file handles can still read.
    pub(super) fn open(path: PathBuf) -> Result<Self, Error> {
        let reader = Self { path, idle: Mutex::new(Vec::new()) };
        let ahead: Vec<Connection> = (0..IDLE_CONNECTIONS_MAX / 2).map(|_| reader.connect()).collect::<Result<_, _>>()?;
        reader.idle.lock().unwrap_or_else(PoisonError::into_inner).extend(ahead);
        Ok(reader)
    }

    fn connect(&self) -> Result<Connection, Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.pragma_update(None, "cache_size", -4_096)?;
        connection.pragma_update(None, "mmap_size", 1_i64 << 30)?;
        steady(&connection)?;
        connection.set_prepared_statement_cache_capacity(32);
        connection.busy_timeout(std::time::Duration::from_secs(5))?;
        Ok(connection)
    }

    fn with<T>(&self, read: impl FnOnce(&Connection) -> Result<T, Error>) -> Result<T, Error> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let result = read(&connection);
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if result.is_ok() && idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push(connection);
        }
        result
    }
}

/// Plans each query once: else SQLite plans it anew for each value of some parameters, `LIMIT` among them.
pub(super) fn steady(connection: &Connection) -> Result<(), Error> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

fn corrupt(id: TaskId) -> impl Fn(serde_json::Error) -> Error {
    move |source| Error::Corrupt { task: id.to_string(), source }
}

fn id_of(row: &rusqlite::Row<'_>) -> rusqlite::Result<Option<TaskId>> {
    Ok(TaskId::from_bytes(row.get_ref(0)?.as_blob()?))
}

fn ids(connection: &Connection, sql: &str, params: impl rusqlite::Params) -> Result<Vec<TaskId>, Error> {
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(params, id_of)?;
    Ok(rows.filter_map(Result::transpose).collect::<Result<_, _>>()?)
}

pub(super) fn read_event(connection: &Connection, id: TaskId, version: Version) -> Result<Option<Event>, Error> {
    let mut statement = connection.prepare_cached("SELECT event FROM log WHERE task = ? AND version = ?")?;
    let mut rows = statement.query(params![&id.as_bytes()[..], version.0])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    serde_json::from_str(row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?).map(Some).map_err(corrupt(id))
}

fn read_head(connection: &Connection, id: TaskId) -> Result<Option<Task>, Error> {
    let mut statement = connection.prepare_cached("SELECT head FROM task WHERE id = ?")?;
    let mut rows = statement.query([&id.as_bytes()[..]])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let head = row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?;
    serde_json::from_str(head).map(Some).map_err(corrupt(id))
}

pub(super) fn read_task(connection: &Connection, id: TaskId) -> Result<Option<Task>, Error> {
    let Some(mut task) = read_head(connection, id)? else { return Ok(None) };
    if let Some((_, version)) = task.ended {
        // The task may be forgotten between the two reads; then it is not there.
        match read_event(connection, id, version)? {
            Some(event) => task.outcome = event.outcome(),
            None => return Ok(None),
        }
    }
    Ok(Some(task))
}

pub(super) fn read_key(connection: &Connection, caller: &CallerId, key: &str) -> Result<Option<TaskId>, Error> {
    let mut statement = connection.prepare_cached("SELECT task FROM idempotency WHERE caller = ? AND key = ?")?;
    Ok(statement.query_row(params![caller.as_str(), key], id_of).optional()?.flatten())
}

fn read_events(connection: &Connection, id: TaskId, after: Version, upto: Version, limit: usize) -> Result<Vec<Logged>, Error> {
    let mut statement = connection
        .prepare_cached("SELECT version, at, event FROM log WHERE task = ? AND version > ? AND version <= ? ORDER BY version LIMIT ?")?;
    let mut rows = statement.query(params![&id.as_bytes()[..], number(after.0), number(upto.0), number(limit as u64)])?;
    let mut events = Vec::new();
    while let Some(row) = rows.next()? {
        events.push(Logged {
            version: Version(row.get(0)?),
            at: Timestamp::from_millis(row.get(1)?),
            event: serde_json::from_str(row.get_ref(2)?.as_str().map_err(rusqlite::Error::from)?).map_err(corrupt(id))?,
        });
    }
    Ok(events)
}

/// A number as the database has it; more than it can have is as much as it can.
fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// What the last chunk of a task says.
pub(super) struct Tail {
    pub(super) output: Output,
    pub(super) version: Version,
}

pub(super) fn read_tail(connection: &Connection, id: TaskId) -> Result<Option<Tail>, Error> {
    let mut last = connection
        .prepare_cached("SELECT seq, count, version, blocks_total, bytes_total FROM chunk WHERE task = ? ORDER BY seq DESC LIMIT 1")?;
    let tail = last.query_row([&id.as_bytes()[..]], |row| {
        let count: u64 = row.get(1)?;
        let output = Output { next_seq: Seq(row.get::<_, u64>(0)? + count), blocks: row.get(3)?, bytes: row.get(4)? };
        Ok(Tail { output, version: Version(row.get::<_, u64>(2)? + count - 1) })
    });
    Ok(tail.optional()?)
}

fn read_chunks(connection: &Connection, id: TaskId, from: Seq, bytes: usize, limit: usize) -> Result<Vec<Chunk>, Error> {
    // From the row that holds it, if one does.
    let mut statement = connection.prepare_cached(
        "SELECT seq, version, first_block, blocks_total, count, blocks FROM chunk
         WHERE task = ?1 AND seq >= ifnull((SELECT max(seq) FROM chunk WHERE task = ?1 AND seq <= ?2), ?2) ORDER BY seq",
    )?;
    let mut rows = statement.query(params![&id.as_bytes()[..], number(from.0)])?;
    let (mut chunks, mut size) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        let (seq, version, mut first_block): (u64, u64, u64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let count: u64 = row.get(4)?;
        let plain = row.get::<_, u64>(3)? + 1 == first_block + count;
        let text = row.get_ref(5)?.as_str().map_err(rusqlite::Error::from)?;
        for (nth, line) in (0..count).zip(text.split('\n')) {
            let blocks = if plain { 1 } else { count_blocks(line).map_err(corrupt(id))? };
            if seq + nth >= from.0 {
                size += line.len();
                if (size > bytes && !chunks.is_empty()) || chunks.len() >= limit {
                    return Ok(chunks);
                }
                let blocks = Blocks::stored(blocks, line);
                chunks.push(Chunk { seq: Seq(seq + nth), version: Version(version + nth), first_block, blocks });
            }
            first_block += blocks;
        }
    }
    Ok(chunks)
}

/// How many content blocks a chunk has.
fn count_blocks(json: &str) -> Result<u64, serde_json::Error> {
    serde_json::from_str::<Vec<&serde_json::value::RawValue>>(json).map(|blocks| blocks.len() as u64)
}

impl Reader for SqliteReader {
    fn task(&self, id: TaskId) -> Result<Option<Task>, Error> {
        self.with(|connection| read_task(connection, id))
    }

    fn event(&self, id: TaskId, version: Version) -> Result<Option<Event>, Error> {
        self.with(|connection| read_event(connection, id, version))
    }

    fn page(&self, id: TaskId, cursor: Cursor) -> Result<Option<Page>, Error> {
        self.with(|connection| {
            // One transaction, so that all of it is of one moment.
            let moment = connection.unchecked_transaction()?;
            let Some(head) = read_head(&moment, id)? else { return Ok(None) };
            let (end, version) = read_tail(&moment, id)?.map_or((Seq(0), head.version), |tail| (tail.output.next_seq, tail.version));
            let (chunks, more_chunks) = match cursor.from.filter(|from| *from < end) {
                None => (Vec::new(), false),
                Some(from) => {
                    let chunks = read_chunks(&moment, id, from, cursor.bytes, cursor.chunks)?;
                    let more = chunks.last().is_some_and(|last| last.seq.next() < end);
                    (chunks, more)
                }
            };
            // Events behind chunks that are not read yet come with those: some are large.
            let upto = chunks.last().filter(|_| more_chunks).map_or(Version(u64::MAX), |last| last.version);
            let mut events = read_events(&moment, id, cursor.after, upto, PAGE_EVENTS + 1)?;
            let more_events = events.len() > PAGE_EVENTS;
            events.truncate(PAGE_EVENTS);
            let version = version.max(head.version);
            Ok(Some(Parts { events, more_events, chunks, more_chunks, version, end, ended: head.ended.is_some() }.merge(cursor.after)))
        })
    }

    fn span(&self, id: TaskId) -> Result<Range<Seq>, Error> {
        self.with(|connection| {
            let moment = connection.unchecked_transaction()?;
            let mut statement = moment.prepare_cached("SELECT min(seq) FROM chunk WHERE task = ?")?;
            let first: Option<u64> = statement.query_row([&id.as_bytes()[..]], |row| row.get(0))?;
            Ok(Seq(first.unwrap_or(0))..read_tail(&moment, id)?.map_or(Seq(0), |tail| tail.output.next_seq))
        })
    }

    fn owner(&self, id: TaskId) -> Result<Option<CallerId>, Error> {
        self.with(|connection| {
            let mut statement = connection.prepare_cached("SELECT caller FROM task WHERE id = ?")?;
            let owner = statement.query_row([&id.as_bytes()[..]], |row| Ok(CallerId::new(row.get_ref(0)?.as_str()?)));
            Ok(owner.optional()?)
        })
    }

    fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<TaskId>, Error> {
        self.with(|connection| {
            ids(
                connection,
                "SELECT id FROM task WHERE due IS NOT NULL AND due <= ? ORDER BY due, id LIMIT ?",
                params![now.as_millis(), limit],
            )
        })
    }

    fn next_due(&self) -> Result<Option<Timestamp>, Error> {
        self.with(|connection| {
            let mut statement = connection.prepare_cached("SELECT due FROM task WHERE due IS NOT NULL ORDER BY due LIMIT 1")?;
            Ok(statement.query_row([], |row| row.get(0)).optional()?.map(Timestamp::from_millis))
        })
    }

    fn open(&self, after: Option<TaskId>, limit: usize) -> Result<Vec<TaskId>, Error> {
        self.with(|connection| {
            let after = after.as_ref().map_or(&[][..], |id| &id.as_bytes()[..]);
            ids(connection, "SELECT id FROM task WHERE open = 1 AND id > ? ORDER BY id LIMIT ?", params![after, limit])
        })
    }

    fn tasks_of(&self, caller: &CallerId, before: Option<TaskId>, limit: usize) -> Result<Vec<TaskId>, Error> {
        self.with(|connection| {
            // One byte more than any id has, and larger than all.
            let before = before.as_ref().map_or(&[0xff; 21][..], |id| &id.as_bytes()[..]);
            let sql = "SELECT id FROM task WHERE caller = ? AND id < ? ORDER BY id DESC LIMIT ?";
            ids(connection, sql, params![caller.as_str(), before, limit])
        })
    }

    fn keyed(&self, caller: &CallerId, key: &str) -> Result<Option<TaskId>, Error> {
        self.with(|connection| read_key(connection, caller, key))
    }

    fn session(&self, id: &SessionId) -> Result<Option<Session>, Error> {
        self.with(|connection| {
            let mut statement = connection.prepare_cached("SELECT caller, seen, data FROM session WHERE id = ?")?;
            let mut rows = statement.query([id.as_str()])?;
            let Some(row) = rows.next()? else { return Ok(None) };
            let text = |index: usize| -> rusqlite::Result<&str> { Ok(row.get_ref(index)?.as_str()?) };
            let data =
                serde_json::from_str::<Payload>(text(2)?).map_err(|source| Error::Corrupt { task: id.as_str().to_owned(), source })?;
            let (caller, seen) = (CallerId::new(text(0)?), Timestamp::from_millis(row.get(1)?));
            Ok(Some(Session { id: id.clone(), caller, seen, data }))
        })
    }

    fn told(&self, id: &SessionId, after: u64, limit: usize) -> Result<Vec<Told>, Error> {
        self.with(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT task, number, first, last, from_seq, end_seq FROM told WHERE session = ? AND number > ? ORDER BY number LIMIT ?",
            )?;
            let rows = statement.query_map(params![id.as_str(), number(after), limit], |row| {
                let Some(task) = id_of(row)? else { return Ok(None) };
                let (first, last) = (Version(row.get(2)?), Version(row.get(3)?));
                Ok(Some(Told { number: row.get(1)?, task, first, last, from: Seq(row.get(4)?), end: Seq(row.get(5)?) }))
            })?;
            Ok(rows.filter_map(Result::transpose).collect::<Result<_, _>>()?)
        })
    }

    fn told_end(&self, id: &SessionId) -> Result<u64, Error> {
        self.with(|connection| {
            let mut statement = connection.prepare_cached("SELECT ifnull(max(number), 0) FROM told WHERE session = ?")?;
            Ok(statement.query_row([id.as_str()], |row| row.get(0))?)
        })
    }

    fn idle_sessions(&self, caller: &CallerId, before: Timestamp, keep: usize) -> Result<Vec<SessionId>, Error> {
        self.with(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT id FROM (SELECT id FROM session WHERE seen < ?1 ORDER BY seen LIMIT 64)
                 UNION SELECT id FROM (SELECT id FROM session WHERE caller = ?2 ORDER BY seen DESC, id LIMIT -1 OFFSET ?3)",
            )?;
            let rows = statement
                .query_map(params![before.as_millis(), caller.as_str(), keep], |row| Ok(SessionId::new(row.get_ref(0)?.as_str()?)))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    fn open_by_caller(&self) -> Result<Vec<(CallerId, u64)>, Error> {
        self.with(|connection| {
            let mut statement = connection.prepare_cached("SELECT caller, count(*) FROM task WHERE open = 1 GROUP BY caller")?;
            let rows = statement.query_map([], |row| Ok((CallerId::new(row.get_ref(0)?.as_str()?), row.get(1)?)))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }
}
