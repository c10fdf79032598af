//! The reading side. Each read is one statement, which sees one moment, in one round trip, and always on the primary.

use std::{borrow::Cow, ops::Range, sync::Arc};

use futures_util::future::Either;
use taskwire_core::{
    CallerId, Epoch, Payload, Seq, SessionId, TaskId, Timestamp, Version,
    task::{Blocks, Event, OutputTotals, Task},
};
use tokio_postgres::{
    Row,
    types::{FromSql, ToSql, Type},
};

use super::{
    columns::{from_text, key_columns, to_text},
    connection::{Database, Sql, number},
    error::{classify, or_corrupt},
    gather::{Gather, Many},
    wakeups::Wakeups,
};
use crate::store::{CallKey, Chunk, Cursor, Error, OutboxItem, PAGE_EVENTS, Page, Read, Reader, Session, StoredEvent, UnmergedPage};

/// Sessions that are named in one read.
const IDLE_SESSIONS_MAX: u64 = 1_000;
/// More than a page ever has, and small enough to be added to.
const BYTES_MAX: u64 = 1 << 62;
/// The column that says to which of several a row belongs.
const NTH: usize = 7;

/// Tasks whole: with the event that ended each, if one did.
macro_rules! tasks {
    ($which:literal) => {
        tasks!(", 0", "@task AS t", $which)
    };
    ($nth:literal, $from:literal, $which:literal) => {
        concat!(
            "SELECT t.id, t.version, t.next_seq, t.blocks, t.output_bytes, h.head, l.event",
            $nth,
            " FROM ",
            $from,
            " LEFT JOIN @head AS h ON h.id = t.id LEFT JOIN @log AS l ON l.task = t.id AND l.version = t.ended WHERE ",
            $which
        )
    };
}

pub(super) const TASKS: Sql = Sql { text: tasks!("t.id = ANY($1)"), types: &[Type::BYTEA_ARRAY] };
/// The database plans this once. The plan of [`TASKS`] depends on how many there are, so it is made anew each time.
const TASK: Sql = Sql { text: tasks!("t.id = $1"), types: &[Type::BYTEA] };
/// The same for many, each by the index, and only if it is of the caller who is named. The last column says which of the ids it is. The
/// database does not guess from `generate_subscripts` how many there are, as it does from `UNNEST`: so this is planned once, too.
const EACH_TASK: Sql = Sql {
    text: tasks!(
        ", n.nth",
        "generate_subscripts($1, 1) AS n(nth) CROSS JOIN LATERAL (
            SELECT * FROM @task AS o WHERE o.id = ($1)[n.nth] AND coalesce(($2)[n.nth], o.caller) = o.caller OFFSET 0
        ) AS t",
        "true"
    ),
    types: &[Type::BYTEA_ARRAY, Type::TEXT_ARRAY],
};
const EVENT: Sql = Sql { text: "SELECT event FROM @log WHERE task = $1 AND version = $2", types: &[Type::BYTEA, Type::INT8] };
/// One row for the task (kind 0), one for each row of chunks (1) from chunk `$3` on, one for each event (2) after version `$2`.
///
/// `bytes_total` grows from row to row: `last` is the first row with which the page has more than `$4` bytes, beyond the row that it begins
/// with. Neither rows nor events after it are looked at.
const PAGE: Sql = Sql {
    text: "WITH top AS MATERIALIZED (SELECT version, next_seq, ended FROM @task WHERE id = $1),
        first AS MATERIALIZED (
            SELECT seq, bytes_total FROM @chunk WHERE task = $1 AND $3 < (SELECT next_seq FROM top) AND seq >= coalesce(
                (SELECT seq FROM @chunk WHERE task = $1 AND seq <= $3 ORDER BY seq DESC LIMIT 1), $3
            ) ORDER BY seq LIMIT 1
        ), last AS MATERIALIZED (
            SELECT seq, version + count - 1 AS version FROM @chunk
            WHERE task = $1 AND seq > (SELECT seq FROM first) AND bytes_total > (SELECT bytes_total FROM first) + $4 ORDER BY seq LIMIT 1
        )
        SELECT 0 AS kind, version AS a, next_seq AS b, ended AS c, NULL::bigint AS d, NULL::bigint AS e, NULL::text AS text FROM top
        UNION ALL (
            SELECT 1, version, seq, count, first_block, blocks_total, blocks FROM @chunk
            WHERE task = $1 AND seq >= (SELECT seq FROM first) AND seq <= coalesce((SELECT seq FROM last), 9223372036854775807)
            ORDER BY seq LIMIT $5
        ) UNION ALL (
            SELECT 2, version, at, NULL, NULL, NULL, event FROM @log
            WHERE task = $1 AND version > $2 AND version <= coalesce((SELECT version FROM last), 9223372036854775807)
            ORDER BY version LIMIT $6
        )",
    types: &[Type::BYTEA, Type::INT8, Type::INT8, Type::INT8, Type::INT8, Type::INT8],
};
const CHUNK_RANGE: Sql = Sql {
    text: "SELECT coalesce((SELECT seq FROM @chunk WHERE task = $1 ORDER BY seq LIMIT 1), 0), next_seq FROM @task WHERE id = $1",
    types: &[Type::BYTEA],
};
const OWNER: Sql = Sql { text: "SELECT caller FROM @task WHERE id = $1", types: &[Type::BYTEA] };
const IS_OF: Sql = Sql { text: "SELECT 1 FROM @task WHERE id = $1 AND caller = $2", types: &[Type::BYTEA, Type::TEXT] };
const DUE: Sql = Sql {
    text: "SELECT id FROM @task WHERE due IS NOT NULL AND due <= $1 AND ($2 IS NULL OR ended IS NOT NULL OR epoch = $2)
        ORDER BY due, id LIMIT $3",
    types: &[Type::INT8, Type::INT8, Type::INT8],
};
const NEXT_DUE: Sql = Sql { text: "SELECT due FROM @task WHERE due IS NOT NULL AND due > $1 ORDER BY due LIMIT 1", types: &[Type::INT8] };
const OPEN: Sql =
    Sql { text: "SELECT id FROM @task WHERE ended IS NULL AND id > $1 ORDER BY id LIMIT $2", types: &[Type::BYTEA, Type::INT8] };
const OF_CALLER: Sql = Sql {
    text: "SELECT id FROM @task WHERE caller = $1 AND id < $2 ORDER BY id DESC LIMIT $3",
    types: &[Type::TEXT, Type::BYTEA, Type::INT8],
};
const LATEST: Sql = Sql { text: "SELECT id FROM @task WHERE id < $1 ORDER BY id DESC LIMIT $2", types: &[Type::BYTEA, Type::INT8] };
const LATEST_OPEN: Sql =
    Sql { text: "SELECT id FROM @task WHERE ended IS NULL AND id < $1 ORDER BY id DESC LIMIT $2", types: &[Type::BYTEA, Type::INT8] };
const BY_KEY: Sql =
    Sql { text: "SELECT task FROM @call_key WHERE caller = $1 AND kind = $2 AND key = $3", types: &[Type::TEXT, Type::INT2, Type::TEXT] };
const SAME_CALLS: Sql = Sql {
    text: tasks!(
        ", n.nth",
        "generate_subscripts($1, 1) AS n(nth) CROSS JOIN LATERAL (
            SELECT task FROM @same_call AS c WHERE c.caller = ($1)[n.nth] AND c.hidden = ($2)[n.nth] AND c.key = ($3)[n.nth]
            ORDER BY task LIMIT ($4)[n.nth]
        ) AS s CROSS JOIN LATERAL (SELECT * FROM @task AS o WHERE o.id = s.task OFFSET 0) AS t",
        "true ORDER BY n.nth, t.id"
    ),
    types: &[Type::TEXT_ARRAY, Type::BOOL_ARRAY, Type::TEXT_ARRAY, Type::INT8_ARRAY],
};
const SESSION: Sql = Sql { text: "SELECT caller, last_used, data FROM @session WHERE id = $1", types: &[Type::TEXT] };
const OUTBOX: Sql = Sql {
    text: "SELECT task, position, first_version, last_version, first_seq, end_seq FROM @outbox WHERE session = $1 AND position > $2
        ORDER BY position LIMIT $3",
    types: &[Type::TEXT, Type::INT8, Type::INT8],
};
const OUTBOX_END: Sql = Sql { text: "SELECT outbox_end FROM @session WHERE id = $1", types: &[Type::TEXT] };
const IDLE: Sql = Sql {
    text: "SELECT id FROM (SELECT id FROM @session WHERE last_used < $1 ORDER BY last_used LIMIT 64) AS idle
        UNION SELECT id FROM (SELECT id FROM @session WHERE caller = $2 ORDER BY last_used DESC, id LIMIT $4 OFFSET $3) AS many",
    types: &[Type::INT8, Type::TEXT, Type::INT8, Type::INT8],
};

/// The task in a row, if it has an id.
pub(super) fn id_at(row: &Row, index: usize) -> Result<Option<TaskId>, tokio_postgres::Error> {
    Ok(TaskId::from_bytes(row.try_get::<_, &[u8]>(index)?))
}

/// A value of a row, or what is wrong with it.
pub(super) fn value_at<'a, T: FromSql<'a>>(row: &'a Row, index: usize) -> Result<T, String> {
    row.try_get(index).map_err(|error| error.to_string())
}

/// A number of a row, or what is wrong with it.
pub(super) fn number_at(row: &Row, index: usize) -> Result<u64, String> {
    let value = value_at::<i64>(row, index)?;
    u64::try_from(value).map_err(|_| format!("{value} cannot be one of its numbers"))
}

/// What an id must be below to come before this one; without one, what is larger than all ids: it has one byte more than any has.
fn upper_bound(before: Option<&TaskId>) -> &[u8] {
    before.map_or(&[0xff; 21][..], |id| &id.as_bytes()[..])
}

fn ids(rows: &[Row]) -> Result<Vec<TaskId>, Error> {
    let ids = rows.iter().filter_map(|row| id_at(row, 0).transpose());
    ids.collect::<Result<_, _>>().map_err(classify)
}

/// The task in a row of [`TASKS`].
pub(super) fn task_of(row: &Row) -> Result<Task, Error> {
    let id = id_at(row, 0).ok().flatten().ok_or_else(|| Error::corrupt("a task", "its id has another length"))?;
    read_task(row).map_err(|what| Error::corrupt_task(id, what))
}

fn read_task(row: &Row) -> Result<Task, String> {
    let (version, next_seq) = (Version(number_at(row, 1)?), Seq(number_at(row, 2)?));
    let head: Option<&str> = value_at(row, 5)?;
    let mut task: Task = serde_json::from_str(head.ok_or("its head is missing")?).map_err(|error| error.to_string())?;
    if task.ended.is_some() {
        let end: Option<&str> = value_at(row, 6)?;
        let end: Event = serde_json::from_str(end.ok_or("its end is missing")?).map_err(|error| error.to_string())?;
        task.restore_outcome(&end);
    }
    task.restore_output(OutputTotals { next_seq, blocks: number_at(row, 3)?, bytes: number_at(row, 4)? }, version);
    Ok(task)
}

/// How many content blocks a chunk has.
fn count_blocks(json: &str) -> Result<u64, String> {
    let blocks = serde_json::from_str::<Vec<&serde_json::value::RawValue>>(json);
    blocks.map(|blocks| blocks.len() as u64).map_err(|error| error.to_string())
}

/// Adds the chunks of a row of [`PAGE`] that the cursor wants; returns whether it wants more.
fn add_chunks(row: &Row, cursor: &Cursor, chunks: &mut Vec<Chunk>, bytes: &mut usize) -> Result<bool, String> {
    let (version, seq, count) = (number_at(row, 1)?, number_at(row, 2)?, number_at(row, 3)?);
    let (mut first_block, blocks_total, text) = (number_at(row, 4)?, number_at(row, 5)?, value_at::<&str>(row, 6)?);
    if chunks.last().is_some_and(|last| last.seq.next() != Seq(seq)) {
        return Err(format!("its output before chunk {seq} is missing"));
    }
    let from = cursor.from.unwrap_or_default().0;
    let is_plain = blocks_total + 1 == first_block + count;
    for (nth, line) in (0..count).zip(text.split('\n')) {
        let blocks = if is_plain { 1 } else { count_blocks(line)? };
        if seq + nth >= from {
            *bytes = bytes.saturating_add(line.len());
            if (*bytes > cursor.max_bytes && !chunks.is_empty()) || chunks.len() >= cursor.max_chunks {
                return Ok(false);
            }
            let blocks = Blocks::from_stored(blocks, line);
            chunks.push(Chunk { seq: Seq(seq + nth), version: Version(version + nth), first_block, blocks });
        }
        first_block += blocks;
    }
    Ok(true)
}

fn page_of(rows: Vec<Row>, cursor: &Cursor) -> Result<Option<Page>, String> {
    // Each part is in order; the parts need not be.
    let mut kinds = Vec::with_capacity(rows.len());
    for row in rows {
        kinds.push((value_at::<i32>(&row, 0)?, row));
    }
    let of = |kind: i32| kinds.iter().filter(move |(of, _)| *of == kind).map(|(_, row)| row);
    let Some(top) = of(0).next() else { return Ok(None) };
    let (version, next_seq) = (Version(number_at(top, 1)?), Seq(number_at(top, 2)?));
    let ended = value_at::<Option<i64>>(top, 3)?.is_some();
    let (mut chunks, mut bytes) = (Vec::new(), 0);
    for row in of(1) {
        if !add_chunks(row, cursor, &mut chunks, &mut bytes)? {
            break;
        }
    }
    if let Some(from) = cursor.from.filter(|from| *from < next_seq && chunks.is_empty()) {
        return Err(format!("its output from chunk {from} on is missing"));
    }
    let more_chunks = chunks.last().is_some_and(|last| last.seq.next() < next_seq);
    let event = |row: &Row| {
        let event = serde_json::from_str(value_at(row, 6)?).map_err(|error| error.to_string())?;
        Ok::<_, String>(StoredEvent { version: Version(number_at(row, 1)?), at: Timestamp::from_millis(value_at(row, 2)?), event })
    };
    let mut events = of(2).map(event).collect::<Result<Vec<_>, _>>()?;
    let more_events = events.len() > PAGE_EVENTS;
    events.truncate(PAGE_EVENTS);
    Ok(Some(UnmergedPage { events, more_events, chunks, more_chunks, version, next_seq, ended }.merge(cursor.after)))
}

/// Which calls are the same: their caller, whether that knows of their tasks, their key, and how many are wanted.
type SameCalls = (String, bool, String, i64);

/// Reads tasks and sessions.
pub(super) struct PostgresReader {
    database: Arc<Database>,
    wakeups: Arc<Wakeups>,
    tasks: Gather<(TaskId, Option<CallerId>), Option<Arc<Task>>>,
    same_calls: Gather<SameCalls, Vec<Arc<Task>>>,
}

impl PostgresReader {
    pub(super) fn new(database: Arc<Database>, wakeups: Arc<Wakeups>) -> Self {
        let tasks = Gather::new({
            let database = database.clone();
            move |wanted| each_task(database.clone(), wanted)
        });
        let same_calls = Gather::new({
            let database = database.clone();
            move |calls| each_same_calls(database.clone(), calls)
        });
        Self { database, wakeups, tasks, same_calls }
    }

    async fn rows(&self, sql: &Sql, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        self.database.read(sql, params).await
    }

    /// Reads something of one task, of which a damaged row is the error.
    async fn of_task<T>(
        &self,
        id: TaskId,
        sql: &Sql,
        params: &[&(dyn ToSql + Sync)],
        read: impl FnOnce(Vec<Row>) -> Result<T, String>,
    ) -> Result<T, Error> {
        let rows = self.rows(sql, params).await.map_err(|error| or_corrupt(error, id))?;
        read(rows).map_err(|what| Error::corrupt_task(id, what))
    }
}

/// The task, for the writer.
pub(super) async fn task(database: &Database, id: TaskId) -> Result<Option<Task>, Error> {
    let rows = database.run(&TASK, &[&&id.as_bytes()[..]]).await;
    rows.map_err(|error| or_corrupt(error, id))?.first().map(task_of).transpose()
}

/// Each of the tasks, for readers, if it is of the caller who is named.
async fn each_task(database: Arc<Database>, wanted: Arc<[(TaskId, Option<CallerId>)]>) -> Many<Option<Arc<Task>>> {
    let ids: Vec<&[u8]> = wanted.iter().map(|(id, _)| &id.as_bytes()[..]).collect();
    let callers: Vec<Option<Cow<'_, str>>> =
        wanted.iter().map(|(_, caller)| caller.as_ref().map(|caller| to_text(caller.as_str()))).collect();
    let rows = match (database.read(&EACH_TASK, &[&ids, &callers]).await, &*wanted) {
        // What is damaged is damaged for the one who asks alone.
        (Err(error), [(id, _)]) => return Err(or_corrupt(error, *id)),
        (rows, _) => rows?,
    };
    let mut tasks: Vec<_> = wanted.iter().map(|_| Ok(None)).collect();
    for row in rows {
        if let Some(task) = nth_of(&row)?.and_then(|nth| tasks.get_mut(nth)) {
            *task = task_of(&row).map(|task| Some(Arc::new(task)));
        }
    }
    Ok(tasks)
}

/// The tasks of calls that are the same, for each of them. Nobody can join a damaged one.
async fn each_same_calls(database: Arc<Database>, calls: Arc<[SameCalls]>) -> Many<Vec<Arc<Task>>> {
    let callers: Vec<&str> = calls.iter().map(|call| &*call.0).collect();
    let hidden: Vec<bool> = calls.iter().map(|call| call.1).collect();
    let keys: Vec<&str> = calls.iter().map(|call| &*call.2).collect();
    let most: Vec<i64> = calls.iter().map(|call| call.3).collect();
    let mut same = vec![Vec::new(); calls.len()];
    for row in database.read(&SAME_CALLS, &[&callers, &hidden, &keys, &most]).await? {
        if let (Some(same), Ok(task)) = (nth_of(&row)?.and_then(|nth| same.get_mut(nth)), task_of(&row)) {
            same.push(Arc::new(task));
        }
    }
    Ok(same.into_iter().map(Ok).collect())
}

/// To which of several the row belongs.
fn nth_of(row: &Row) -> Result<Option<usize>, Error> {
    let nth: i32 = row.try_get(NTH).map_err(classify)?;
    Ok(usize::try_from(nth - 1).ok())
}

/// What is read later.
fn later<'a, T: Send + 'a>(read: impl Future<Output = Result<T, Error>> + Send + 'a) -> Read<'a, T> {
    Either::Right(Box::pin(read))
}

impl Reader for PostgresReader {
    fn task(&self, id: TaskId) -> Read<'_, Option<Arc<Task>>> {
        later(self.tasks.get((id, None)))
    }

    fn task_of<'a>(&'a self, caller: &'a CallerId, id: TaskId) -> Read<'a, Option<Arc<Task>>> {
        later(self.tasks.get((id, Some(caller.clone()))))
    }

    fn is_of<'a>(&'a self, caller: &'a CallerId, id: TaskId) -> Read<'a, bool> {
        later(async move {
            let (id_bytes, caller) = (&id.as_bytes()[..], to_text(caller.as_str()));
            self.of_task(id, &IS_OF, &[&id_bytes, &caller], |rows| Ok(!rows.is_empty())).await
        })
    }

    fn event(&self, id: TaskId, version: Version) -> Read<'_, Option<Event>> {
        later(async move {
            let read = |rows: Vec<Row>| {
                let event = |row: &Row| serde_json::from_str(value_at(row, 0)?).map_err(|error| error.to_string());
                rows.first().map(event).transpose()
            };
            self.of_task(id, &EVENT, &[&&id.as_bytes()[..], &number(version.0)], read).await
        })
    }

    fn page(&self, id: TaskId, cursor: Cursor) -> Read<'_, Option<Page>> {
        later(async move {
            let from = cursor.from.map(|from| number(from.0));
            let (bytes, chunks) = ((cursor.max_bytes as u64).min(BYTES_MAX).cast_signed(), number(cursor.max_chunks.max(1) as u64));
            let (id_bytes, after, events) = (&id.as_bytes()[..], number(cursor.after.0), number(PAGE_EVENTS as u64 + 1));
            self.of_task(id, &PAGE, &[&id_bytes, &after, &from, &bytes, &chunks, &events], |rows| page_of(rows, &cursor)).await
        })
    }

    fn chunk_range(&self, id: TaskId) -> Read<'_, Range<Seq>> {
        later(async move {
            let range = |row: &Row| Ok::<_, String>(Seq(number_at(row, 0)?)..Seq(number_at(row, 1)?));
            let read = |rows: Vec<Row>| rows.first().map_or(Ok(Seq(0)..Seq(0)), range);
            self.of_task(id, &CHUNK_RANGE, &[&&id.as_bytes()[..]], read).await
        })
    }

    fn owner(&self, id: TaskId) -> Read<'_, Option<CallerId>> {
        later(async move {
            let owner = |row: &Row| Ok::<_, String>(CallerId::new(&from_text(value_at(row, 0)?)));
            self.of_task(id, &OWNER, &[&&id.as_bytes()[..]], |rows| rows.first().map(owner).transpose()).await
        })
    }

    fn due_tasks(&self, now: Timestamp, of: Option<Epoch>, limit: usize) -> Read<'_, Vec<TaskId>> {
        later(async move {
            let of = of.map(|epoch| number(epoch.0));
            ids(&self.rows(&DUE, &[&now.as_millis(), &of, &number(limit as u64)]).await?)
        })
    }

    fn next_due(&self, after: Timestamp) -> Read<'_, Option<Timestamp>> {
        later(async move {
            let rows = self.rows(&NEXT_DUE, &[&after.as_millis()]).await?;
            let due = rows.first().map(|row| row.try_get::<_, i64>(0)).transpose().map_err(classify)?;
            Ok(due.map(Timestamp::from_millis))
        })
    }

    fn open_tasks(&self, after: Option<TaskId>, limit: usize) -> Read<'_, Vec<TaskId>> {
        later(async move {
            let after = after.as_ref().map_or(&[][..], |id| &id.as_bytes()[..]);
            ids(&self.rows(&OPEN, &[&after, &number(limit as u64)]).await?)
        })
    }

    fn tasks_of<'a>(&'a self, caller: &'a CallerId, before: Option<TaskId>, limit: usize) -> Read<'a, Vec<TaskId>> {
        later(async move {
            let before = upper_bound(before.as_ref());
            ids(&self.rows(&OF_CALLER, &[&to_text(caller.as_str()), &before, &number(limit as u64)]).await?)
        })
    }

    fn latest_tasks(&self, open: bool, before: Option<TaskId>, limit: usize) -> Read<'_, Vec<TaskId>> {
        later(async move {
            let before = upper_bound(before.as_ref());
            let sql = if open { &LATEST_OPEN } else { &LATEST };
            ids(&self.rows(sql, &[&before, &number(limit as u64)]).await?)
        })
    }

    fn by_key<'a>(&'a self, key: CallKey<'a>) -> Read<'a, Option<TaskId>> {
        later(async move {
            let (caller, kind, key) = key_columns(key);
            Ok(ids(&self.rows(&BY_KEY, &[&caller, &kind, &key]).await?)?.first().copied())
        })
    }

    fn same_calls<'a>(&'a self, caller: &'a CallerId, hidden: bool, key: &'a str, limit: usize) -> Read<'a, Vec<Arc<Task>>> {
        later(async move {
            let (caller, key) = (to_text(caller.as_str()).into_owned(), to_text(key).into_owned());
            self.same_calls.get((caller, hidden, key, number(limit as u64))).await
        })
    }

    fn session<'a>(&'a self, id: &'a SessionId) -> Read<'a, Option<Session>> {
        self.wakeups.remember(id);
        later(async move {
            let session = |row: &Row| {
                let data = serde_json::from_str::<Payload>(value_at(row, 2)?).map_err(|error| error.to_string())?;
                let (caller, last_used) = (CallerId::new(&from_text(value_at(row, 0)?)), Timestamp::from_millis(value_at(row, 1)?));
                Ok::<_, String>(Session { id: id.clone(), caller, last_used, data })
            };
            // The id of a session is as good as a password: the error does not name it.
            let rows = self.rows(&SESSION, &[&to_text(id.as_str())]).await?;
            rows.first().map(session).transpose().map_err(|what| Error::corrupt("a session", what))
        })
    }

    fn outbox<'a>(&'a self, id: &'a SessionId, after: u64, limit: usize) -> Read<'a, Vec<OutboxItem>> {
        self.wakeups.remember(id);
        later(async move {
            let item = |row: &Row| -> Result<Option<OutboxItem>, String> {
                let Some(task) = value_at::<&[u8]>(row, 0).map(TaskId::from_bytes)? else { return Ok(None) };
                let (first_version, last_version) = (Version(number_at(row, 2)?), Version(number_at(row, 3)?));
                let (first_seq, end_seq) = (Seq(number_at(row, 4)?), Seq(number_at(row, 5)?));
                Ok(Some(OutboxItem { position: number_at(row, 1)?, task, first_version, last_version, first_seq, end_seq }))
            };
            let rows = self.rows(&OUTBOX, &[&to_text(id.as_str()), &number(after), &number(limit as u64)]).await?;
            let items = rows.iter().filter_map(|row| item(row).transpose()).collect::<Result<_, String>>();
            items.map_err(|what| Error::corrupt("the outbox of a session", what))
        })
    }

    fn outbox_end<'a>(&'a self, id: &'a SessionId) -> Read<'a, u64> {
        self.wakeups.remember(id);
        later(async move {
            let rows = self.rows(&OUTBOX_END, &[&to_text(id.as_str())]).await?;
            rows.first().map_or(Ok(0), |row| number_at(row, 0)).map_err(|what| Error::corrupt("the outbox of a session", what))
        })
    }

    fn idle_sessions<'a>(&'a self, caller: &'a CallerId, before: Timestamp, keep: usize) -> Read<'a, Vec<SessionId>> {
        later(async move {
            let caller = to_text(caller.as_str());
            let rows = self.rows(&IDLE, &[&before.as_millis(), &caller, &number(keep as u64), &number(IDLE_SESSIONS_MAX)]).await?;
            let ids = rows.iter().map(|row| Ok::<_, String>(SessionId::new(&from_text(value_at(row, 0)?)))).collect::<Result<_, _>>();
            ids.map_err(|what| Error::corrupt("a session", what))
        })
    }
}
