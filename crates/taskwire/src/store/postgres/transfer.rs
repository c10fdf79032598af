//! The tables, as a move reads and fills them.
//!
//! The mark of a move is in the row of `meta` that each node has to change when it joins, so no node joins while there is one, and none is
//! there when one is made.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use deadpool_postgres::ClientWrapper;
use taskwire_core::{
    CallerId, Epoch, Payload, Seq, SessionId, TaskId, Timestamp, Version,
    task::{OutputTotals, Task},
};
use tokio_postgres::{Row, types::Type};

use super::{
    cluster,
    columns::{KeyColumns, TaskColumns, TextColumns, from_text, to_text},
    config::PostgresConfig,
    connection::{Call, Database, Pipeline, Sql, number},
    error::{classify, is_without_partition, or_corrupt},
    read::{id_at, number_at, value_at},
    rows::{ADD_SAME, IDS, INSERT_CHUNKS, INSERT_EVENTS, INSERT_OUTBOX, INSERT_TASKS, NUMBERS, PUT_HEADS, TEXTS},
    schema::{self, EPOCH, READ_META, marker_at},
    upkeep,
};
use crate::store::{
    CallKey, Error, NodeInfo, OutboxItem, Session, TaskWrite,
    marker::{Marker, MoveState},
    transfer::{
        Batch, ChunkRow, EventRow, Meta, PAGE_BYTES, PAGE_ROWS, PAGE_TASKS, RowPage, SessionPage, SessionRow, Side, TaskPage, TaskRow,
    },
};

/// `earlier` are bytes of the rows before: the last row is that with which the page is full.
const TASKS: Sql = Sql {
    text: "SELECT id, version, next_seq, blocks, output_bytes, stored_bytes, head FROM (
            SELECT t.id, t.version, t.next_seq, t.blocks, t.output_bytes, t.stored_bytes, h.head,
                sum(coalesce(octet_length(h.head), 0)) OVER (ORDER BY t.id) - coalesce(octet_length(h.head), 0) AS earlier
            FROM (
                SELECT id, version, next_seq, blocks, output_bytes, stored_bytes FROM @task WHERE id > $1 ORDER BY id LIMIT $2
            ) AS t LEFT JOIN @head AS h ON h.id = t.id
        ) AS page WHERE earlier < $3 ORDER BY id",
    types: &[Type::BYTEA, Type::INT8, Type::INT8],
};
const EVENTS: Sql = Sql {
    text: "SELECT version, at, event FROM (
            SELECT version, at, event, sum(octet_length(event)) OVER (ORDER BY version) - octet_length(event) AS earlier FROM (
                SELECT version, at, event FROM @log WHERE task = $1 AND version > $2 ORDER BY version LIMIT $3
            ) AS l
        ) AS page WHERE earlier < $4 ORDER BY version",
    types: &[Type::BYTEA, Type::INT8, Type::INT8, Type::INT8],
};
const CHUNKS: Sql = Sql {
    text: "SELECT seq, count, version, at, first_block, blocks_total, bytes_total, blocks FROM (
            SELECT c.*, sum(octet_length(blocks)) OVER (ORDER BY seq) - octet_length(blocks) AS earlier FROM (
                SELECT seq, count, version, at, first_block, blocks_total, bytes_total, blocks FROM @chunk
                WHERE task = $1 AND seq >= $2 ORDER BY seq LIMIT $3
            ) AS c
        ) AS page WHERE earlier < $4 ORDER BY seq",
    types: &[Type::BYTEA, Type::INT8, Type::INT8, Type::INT8],
};
const SESSIONS: Sql = Sql {
    text: "SELECT id, caller, last_used, outbox_end, data FROM @session WHERE id > $1 ORDER BY id LIMIT $2",
    types: &[Type::TEXT, Type::INT8],
};
const OUTBOX: Sql = Sql {
    text: "SELECT task, position, first_version, last_version, first_seq, end_seq FROM @outbox WHERE session = $1 AND position > $2
        ORDER BY position LIMIT $3",
    types: &[Type::TEXT, Type::INT8, Type::INT8],
};
const HAS_TASKS: Sql = Sql { text: "SELECT EXISTS (SELECT 1 FROM @task)", types: &[] };
/// How long commands may still run whose node has no lease.
const COMMANDS_END_IN: Sql = Sql {
    text: "SELECT greatest(0, max(until) - floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM (
            SELECT expires + orphan_after AS until FROM @node UNION ALL SELECT since + orphan_after FROM @gone
        ) AS ends",
    types: &[],
};

const PUT_KEYS: Sql = Sql {
    text: "INSERT INTO @call_key(caller, kind, key, task) SELECT * FROM UNNEST($1, $2, $3, $4)
        ON CONFLICT (caller, kind, key) DO UPDATE SET task = excluded.task",
    types: &[TEXTS, Type::INT2_ARRAY, TEXTS, IDS],
};
const INSERT_SESSIONS: Sql = Sql {
    text: "INSERT INTO @session(id, caller, last_used, outbox_end, data) SELECT * FROM UNNEST($1, $2, $3, $4, $5)",
    types: &[TEXTS, TEXTS, NUMBERS, NUMBERS, TEXTS],
};

/// Nobody else joins, or makes a mark, until the transaction ends.
const LOCK_EPOCH: Sql = Sql { text: "SELECT number, bytes FROM @meta WHERE key = 'epoch' FOR UPDATE", types: &[] };
/// The same for whoever has made the mark.
const LOCK_MARK: Sql = Sql { text: "SELECT 1 FROM @meta WHERE key = 'epoch' AND bytes = $1 FOR SHARE", types: &[Type::BYTEA] };
const LIVE_NODES: Sql =
    Sql { text: "SELECT count(*) FROM @node WHERE expires > floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint", types: &[] };
const SET_MARK: Sql = Sql { text: "UPDATE @meta SET bytes = $1 WHERE key = 'epoch'", types: &[Type::BYTEA] };
const REMOVE_NODES: Sql = Sql { text: "DELETE FROM @node", types: &[] };
const SET_EPOCH: Sql = Sql { text: "UPDATE @meta SET number = greatest(number, $1) WHERE key = 'epoch'", types: &[Type::INT8] };
const SET_SECRET: Sql = Sql { text: "UPDATE @meta SET bytes = $1 WHERE key = 'secret'", types: &[Type::BYTEA] };
const COUNT_USAGE: Sql = Sql {
    text: "INSERT INTO @usage(caller, slot, open, bytes)
        SELECT caller, 0, count(*) FILTER (WHERE ended IS NULL), sum(stored_bytes)::bigint FROM @task GROUP BY caller",
    types: &[],
};
/// A node that is gone, and whose commands may go on.
const ADD_GONE: Sql = Sql {
    text: "INSERT INTO @gone(epoch, since, orphan_after) VALUES($1, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint, $2)",
    types: &[Type::INT8, Type::INT8],
};

const EMPTY: &str = "TRUNCATE @task, @head, @log, @chunk, @call_key, @same_call, @usage, @session, @outbox, @node, @gone";
/// A batch need not be durable at once: the last transaction of all is.
const BEGIN_BATCH: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL statement_timeout = 120000; \
     SET LOCAL lock_timeout = 10000; SET LOCAL jit = off; SET LOCAL synchronous_commit = off";
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 10000; \
     SET LOCAL jit = off; SET LOCAL synchronous_commit = on";

/// A schema that no node uses.
pub(in crate::store) struct PostgresSide {
    database: Database,
    /// The number of starts when the move began.
    epoch: u64,
    /// The mark that we have made, and the only connection that writes. None if that had an error, since all that it has written may be
    /// lost then.
    filling: Option<(Vec<u8>, ClientWrapper)>,
}

impl PostgresSide {
    /// The store in a schema, and the mark that it has if its tasks were moved elsewhere.
    pub(in crate::store) async fn source(config: PostgresConfig) -> Result<(Self, Option<Marker>), Error> {
        let (mut side, found) = Self::open(config).await?;
        let place = side.name();
        let Some(Found { epoch, marker, format }) = found else {
            return Err(Error::Unusable(format!("there are no tasks in {place}: name the database and the schema that nodes use")));
        };
        side.epoch = epoch;
        if let Some(marker) = marker.as_ref().filter(|marker| marker.state == MoveState::Moving) {
            return Err(side.refusal(marker));
        }
        if format < schema::FORMAT {
            return Err(Error::Unusable(format!(
                "{place} has the older format {format}: start and stop a node of this release, then move it"
            )));
        }
        Ok((side, marker))
    }

    /// A place for a store, and the mark that it has if an earlier move was interrupted.
    pub(in crate::store) async fn target(config: PostgresConfig) -> Result<(Self, Option<Marker>), Error> {
        let (side, found) = Self::open(config).await?;
        let Some(Found { marker, .. }) = found else { return Ok((side, None)) };
        side.check_target(marker.as_ref(), side.has_tasks().await?)?;
        Ok((side, marker))
    }

    async fn open(config: PostgresConfig) -> Result<(Self, Option<Found>), Error> {
        let database = Database::new(config)?;
        database.find_pooler().await?;
        let side = Self { database, epoch: 0, filling: None };
        let found = side.look().await?;
        let live: Vec<NodeInfo> = cluster::nodes(&side.database).await?.into_iter().filter(|node| !node.lease_left.is_zero()).collect();
        if !live.is_empty() {
            let names: Vec<&str> = live.iter().map(|node| &*node.name).collect();
            let place = side.name();
            return Err(Error::Unusable(format!(
                "{place} is in use by {}: stop these nodes first (`taskwire nodes` lists them; one that was killed is gone within seconds)",
                names.join(", ")
            )));
        }
        Ok((side, found))
    }

    /// What there is, if there are tables.
    async fn look(&self) -> Result<Option<Found>, Error> {
        let rows = match self.database.run(&READ_META, &[&EPOCH]).await {
            Err(Error::Postgres(error)) if error.is_about_no_table() => return Ok(None),
            rows => rows?,
        };
        let Some(row) = rows.first() else { return Ok(None) };
        let (epoch, marker) = (number_of(row)?, marker_at(row)?);
        let rows = self.database.run(&READ_META, &[&"format"]).await?;
        let format = rows.first().map_or(Ok(0), |row| row.try_get::<_, i64>(0)).map_err(classify)?;
        if format > schema::FORMAT {
            return Err(Error::TooNew { path: self.name(), found: format, known: schema::FORMAT });
        }
        Ok(Some(Found { epoch, marker, format }))
    }

    async fn has_tasks(&self) -> Result<bool, Error> {
        let rows = self.database.run(&HAS_TASKS, &[]).await?;
        rows.first().map_or(Ok(false), |row| row.try_get(0)).map_err(classify)
    }

    /// Refuses a place that has tasks, but for those that a move has left which was interrupted.
    fn check_target(&self, marker: Option<&Marker>, has_tasks: bool) -> Result<(), Error> {
        let (place, schema) = (self.name(), &self.database.config.schema);
        match marker {
            Some(Marker { state: MoveState::Moved, other, .. }) => Err(Error::Unusable(format!(
                "{place} has the tasks that were moved to {other}, as they were then: choose another schema (`--schema`), or \
                 `DROP SCHEMA {schema} CASCADE`"
            ))),
            None if has_tasks => Err(Error::Unusable(format!(
                "{place} has tasks already: choose a schema that has none, or one that is not there (`--schema`)"
            ))),
            _ => Ok(()),
        }
    }

    /// What is said if somebody came between.
    fn interfered(&self) -> Error {
        Error::Unusable(format!("a node or another move has begun to use {} meanwhile: end that, and make the move again", self.name()))
    }

    /// Begins a transaction in which nobody joins.
    async fn lock(&self, connection: &ClientWrapper) -> Result<(u64, Option<Marker>), Error> {
        run(&self.database, connection, BEGIN).await?;
        let rows = self.database.run_in(connection, &LOCK_EPOCH, &[]).await?;
        let row = rows.first().ok_or_else(|| Error::corrupt("the number of starts", "it is not there"))?;
        let found = (number_of(row)?, marker_at(row)?);
        let rows = self.database.run_in(connection, &LIVE_NODES, &[]).await?;
        let live: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0)).map_err(classify)?;
        if live > 0 { Err(self.interfered()) } else { Ok(found) }
    }

    /// Makes sure that the mark is still ours, until the transaction ends.
    async fn lock_mark(&self, connection: &ClientWrapper, mark: &[u8]) -> Result<(), Error> {
        let rows = self.database.run_in(connection, &LOCK_MARK, &[&mark]).await?;
        if rows.is_empty() { Err(self.interfered()) } else { Ok(()) }
    }

    fn take_filling(&mut self) -> Result<(Vec<u8>, ClientWrapper), Error> {
        let lost = || Error::Unusable(format!("the connection with {} was lost: make the move again", self.database.sessions_at()));
        self.filling.take().filter(|(_, connection)| !connection.is_closed()).ok_or_else(lost)
    }

    /// Writes a batch in the transaction that was begun, and commits.
    async fn send(&self, connection: &ClientWrapper, batch: &Batch) -> Result<(), tokio_postgres::Error> {
        let writes: Vec<TaskWrite> = batch.tasks.iter().map(task_write).collect();
        let calls = calls(batch, &writes);
        let prepared = self.database.prepare(connection, &calls).await?;
        let mut pipeline = Pipeline::new();
        pipeline.calls(connection, &calls, &prepared);
        // If one of these could not even be sent, the commit must not be.
        pipeline.send().await?;
        pipeline.command(connection, "COMMIT");
        pipeline.finish().await.map(drop)
    }
}

/// What a schema has that has tables.
struct Found {
    epoch: u64,
    marker: Option<Marker>,
    format: i64,
}

async fn run(database: &Database, connection: &ClientWrapper, text: &str) -> Result<(), Error> {
    connection.batch_execute(&database.render(text)).await.map_err(classify)
}

fn number_of(row: &Row) -> Result<u64, Error> {
    number_at(row, 0).map_err(|what| Error::corrupt("the number of starts", what))
}

fn page_bytes() -> i64 {
    number(PAGE_BYTES as u64)
}

/// A row of [`TASKS`].
fn task_row(row: &Row, id: TaskId) -> Result<TaskRow, String> {
    let head: Option<String> = value_at(row, 6)?;
    let head = head.ok_or("its head is missing")?;
    let mut task: Task = serde_json::from_str(&head).map_err(|error| error.to_string())?;
    if task.id != id {
        return Err("its head is another task's".to_owned());
    }
    let output = OutputTotals { next_seq: Seq(number_at(row, 2)?), blocks: number_at(row, 3)?, bytes: number_at(row, 4)? };
    task.restore_output(output, Version(number_at(row, 1)?));
    Ok(TaskRow { task: Arc::new(task), head, stored_bytes: number_at(row, 5)? })
}

fn event_row(row: &Row) -> Result<EventRow, String> {
    Ok(EventRow { version: number_at(row, 0)?, at: value_at(row, 1)?, event: value_at(row, 2)? })
}

fn chunk_row(row: &Row) -> Result<ChunkRow, String> {
    Ok(ChunkRow {
        seq: number_at(row, 0)?,
        count: number_at(row, 1)?,
        version: number_at(row, 2)?,
        at: value_at(row, 3)?,
        first_block: number_at(row, 4)?,
        blocks_total: number_at(row, 5)?,
        bytes_total: number_at(row, 6)?,
        blocks: value_at(row, 7)?,
    })
}

fn session_row(row: &Row, id: &SessionId) -> Result<SessionRow, String> {
    let (caller, last_used) = (CallerId::new(&from_text(value_at(row, 1)?)), Timestamp::from_millis(value_at(row, 2)?));
    let data = serde_json::from_str::<Payload>(value_at(row, 4)?).map_err(|error| error.to_string())?;
    Ok(SessionRow { session: Session { id: id.clone(), caller, last_used, data }, outbox_end: number_at(row, 3)? })
}

fn outbox_item(row: &Row) -> Result<Option<OutboxItem>, String> {
    let Some(task) = TaskId::from_bytes(value_at(row, 0)?) else { return Ok(None) };
    let (first_version, last_version) = (Version(number_at(row, 2)?), Version(number_at(row, 3)?));
    let (first_seq, end_seq) = (Seq(number_at(row, 4)?), Seq(number_at(row, 5)?));
    Ok(Some(OutboxItem { position: number_at(row, 1)?, task, first_version, last_version, first_seq, end_seq }))
}

/// A page of these rows, each of which has so many bytes.
fn page_of<T>(rows: &[Row], read: impl Fn(&Row) -> Result<T, String>, bytes: impl Fn(&T) -> usize) -> Result<RowPage<T>, String> {
    let mut page = RowPage::new();
    for row in rows {
        let row = read(row)?;
        let bytes = bytes(&row);
        page.push(row, bytes);
    }
    page.more = page.is_full();
    Ok(page)
}

/// A task as the writer has it, without events.
fn task_write(row: &TaskRow) -> TaskWrite {
    TaskWrite {
        task: row.task.clone(),
        first_version: Version(1),
        at: Timestamp::default(),
        events: Vec::new(),
        stale_checkpoints: Vec::new(),
        dropped_bytes: 0,
        outbox_max: 0,
        stored_bytes: row.stored_bytes,
    }
}

/// The statements that write a batch.
fn calls<'a>(batch: &'a Batch, writes: &'a [TaskWrite]) -> Vec<Call<'a>> {
    let (mut tasks, mut heads) = (TaskColumns::default(), TextColumns::<0>::new(&PUT_HEADS));
    let (mut same, mut keys) = (Vec::new(), BTreeMap::new());
    for (row, write) in batch.tasks.iter().zip(writes) {
        let task: &'a Task = &write.task;
        let (id, is_open) = (&task.id, task.ended.is_none());
        tasks.push(write);
        heads.push(id, [], row.head.as_str().into());
        // If an earlier task has the same key, that is one which nobody could find any more.
        let held = CallKey::of(&task.spec).filter(|key| is_open || matches!(key, CallKey::Idempotency(..)));
        keys.extend(held.map(|key| (key, id)));
        if let Some(key) = task.spec.linger_key.as_deref().filter(|_| task.is_joinable()) {
            same.push((task, key));
        }
    }
    let mut events = TextColumns::<2>::new(&INSERT_EVENTS);
    for (id, row) in &batch.events {
        events.push(id, [number(row.version), row.at], row.event.as_str().into());
    }
    let mut chunks = TextColumns::<7>::new(&INSERT_CHUNKS);
    for (id, row) in &batch.chunks {
        let [seq, count, version, first_block, blocks_total, bytes_total] =
            [row.seq, row.count, row.version, row.first_block, row.blocks_total, row.bytes_total].map(number);
        chunks.push(id, [seq, count, version, row.at, first_block, blocks_total, bytes_total], row.blocks.as_str().into());
    }
    let mut key_columns = KeyColumns::default();
    keys.into_iter().for_each(|(key, id)| key_columns.push(key, id));
    let mut calls: Vec<Call<'a>> = Vec::new();
    calls.extend(tasks.into_call(&INSERT_TASKS, true));
    calls.extend(heads.into_calls());
    calls.extend(events.into_calls());
    calls.extend(chunks.into_calls());
    calls.extend(key_columns.into_call(&PUT_KEYS));
    calls.extend((!same.is_empty()).then(|| same_calls(&same)));
    calls.extend((!batch.sessions.is_empty()).then(|| session_calls(&batch.sessions)));
    calls.extend((!batch.outbox.is_empty()).then(|| outbox_calls(&batch.outbox)));
    calls
}

fn same_calls<'a>(same: &[(&'a Task, &'a str)]) -> Call<'a> {
    let caller: Vec<_> = same.iter().map(|(task, _)| to_text(task.spec.caller.as_str())).collect();
    let hidden: Vec<bool> = same.iter().map(|(task, _)| task.spec.hidden).collect();
    let key: Vec<_> = same.iter().map(|&(_, key)| to_text(key)).collect();
    let ids: Vec<&'a [u8]> = same.iter().map(|(task, _)| &task.id.as_bytes()[..]).collect();
    Call::new(&ADD_SAME, vec![Box::new(caller), Box::new(hidden), Box::new(key), Box::new(ids)])
}

fn session_calls(sessions: &[SessionRow]) -> Call<'_> {
    let ids: Vec<_> = sessions.iter().map(|row| to_text(row.session.id.as_str())).collect();
    let callers: Vec<_> = sessions.iter().map(|row| to_text(row.session.caller.as_str())).collect();
    let last_used: Vec<i64> = sessions.iter().map(|row| row.session.last_used.as_millis()).collect();
    let ends: Vec<i64> = sessions.iter().map(|row| number(row.outbox_end)).collect();
    let data: Vec<&str> = sessions.iter().map(|row| row.session.data.as_str()).collect();
    Call::new(&INSERT_SESSIONS, vec![Box::new(ids), Box::new(callers), Box::new(last_used), Box::new(ends), Box::new(data)])
}

fn outbox_calls(items: &[(SessionId, OutboxItem)]) -> Call<'_> {
    let sessions: Vec<_> = items.iter().map(|(session, _)| to_text(session.as_str())).collect();
    let tasks: Vec<&[u8]> = items.iter().map(|(_, item)| &item.task.as_bytes()[..]).collect();
    let numbers = |of: fn(&OutboxItem) -> u64| -> Vec<i64> { items.iter().map(|(_, item)| number(of(item))).collect() };
    Call::new(
        &INSERT_OUTBOX,
        vec![
            Box::new(sessions),
            Box::new(numbers(|item| item.position)),
            Box::new(tasks),
            Box::new(numbers(|item| item.first_version.0)),
            Box::new(numbers(|item| item.last_version.0)),
            Box::new(numbers(|item| item.first_seq.0)),
            Box::new(numbers(|item| item.end_seq.0)),
        ],
    )
}

impl Side for PostgresSide {
    fn name(&self) -> String {
        schema::place(&self.database)
    }

    fn refusal(&self, marker: &Marker) -> Error {
        marker.in_database(&self.name(), &self.database.config.schema)
    }

    async fn meta(&self) -> Result<Meta, Error> {
        let rows = self.database.read(&READ_META, &[&EPOCH]).await?;
        let row = rows.first().ok_or_else(|| Error::corrupt("the number of starts", "it is not there"))?;
        let epoch = Epoch(number_of(row)?);
        let rows = self.database.read(&READ_META, &[&"secret"]).await?;
        let secret: Option<[u8; 32]> = rows.first().and_then(|row| row.try_get::<_, &[u8]>(1).ok()).and_then(|bytes| bytes.try_into().ok());
        let secret = secret.ok_or_else(|| Error::corrupt("the secret of the store", "it does not have 32 bytes"))?;
        Ok(Meta { secret, epoch })
    }

    async fn tasks(&self, after: Option<TaskId>) -> Result<TaskPage, Error> {
        let (after, limit) = (after.as_ref().map_or(&[][..], |id| &id.as_bytes()[..]), number(PAGE_TASKS as u64));
        let rows = self.database.read(&TASKS, &[&after, &limit, &page_bytes()]).await?;
        let mut page = TaskPage::with_capacity(rows.len());
        for row in &rows {
            let id = id_at(row, 0).map_err(classify)?.ok_or_else(|| Error::corrupt("a task", "its id does not have 20 bytes"))?;
            page.push((id, task_row(row, id)));
        }
        Ok(page)
    }

    async fn events(&self, task: TaskId, after: u64) -> Result<RowPage<EventRow>, Error> {
        let (id, after, limit) = (&task.as_bytes()[..], number(after), number(PAGE_ROWS as u64));
        let rows = self.database.read(&EVENTS, &[&id, &after, &limit, &page_bytes()]).await.map_err(|error| or_corrupt(error, task))?;
        page_of(&rows, event_row, |row| row.event.len()).map_err(|what| Error::corrupt_task(task, what))
    }

    async fn chunks(&self, task: TaskId, from: u64) -> Result<RowPage<ChunkRow>, Error> {
        let (id, from, limit) = (&task.as_bytes()[..], number(from), number(PAGE_ROWS as u64));
        let rows = self.database.read(&CHUNKS, &[&id, &from, &limit, &page_bytes()]).await.map_err(|error| or_corrupt(error, task))?;
        page_of(&rows, chunk_row, |row| row.blocks.len()).map_err(|what| Error::corrupt_task(task, what))
    }

    async fn sessions(&self, after: Option<&SessionId>) -> Result<SessionPage, Error> {
        let after = after.map_or_else(Default::default, |id| to_text(id.as_str()));
        let rows = self.database.read(&SESSIONS, &[&after, &number(PAGE_ROWS as u64)]).await?;
        let mut page = SessionPage::with_capacity(rows.len());
        for row in &rows {
            let id = value_at(row, 0).map_err(|what| Error::corrupt("a session", what))?;
            let id = SessionId::new(&from_text(id));
            let read = session_row(row, &id);
            page.push((id, read));
        }
        Ok(page)
    }

    async fn outbox(&self, session: &SessionId, after: u64) -> Result<RowPage<OutboxItem>, Error> {
        let (session, after, limit) = (to_text(session.as_str()), number(after), number(PAGE_ROWS as u64));
        let rows = self.database.read(&OUTBOX, &[&session, &after, &limit]).await?;
        let page = page_of(&rows, outbox_item, |_| 0).map_err(|what| Error::corrupt("the outbox of a session", what))?;
        let mut items = RowPage::new();
        // As for readers: what leads to no task is not sent.
        page.rows.into_iter().flatten().for_each(|item| items.push(item, 0));
        items.more = page.more;
        Ok(items)
    }

    async fn commands_end_in(&self) -> Result<Duration, Error> {
        let rows = self.database.read(&COMMANDS_END_IN, &[]).await?;
        let millis: Option<i64> = rows.first().map_or(Ok(None), |row| row.try_get(0)).map_err(classify)?;
        Ok(Duration::from_millis(millis.and_then(|millis| u64::try_from(millis).ok()).unwrap_or(0)))
    }

    async fn begin(&mut self, marker: &Marker) -> Result<(), Error> {
        schema::open(&self.database).await?;
        upkeep::make_ahead(&self.database).await?;
        let (mark, connection) = (marker.encode().into_bytes(), self.database.connect().await?);
        let (_, found) = self.lock(&connection).await?;
        let rows = self.database.run_in(&connection, &HAS_TASKS, &[]).await?;
        let has_tasks = rows.first().map_or(Ok(false), |row| row.try_get(0)).map_err(classify)?;
        self.check_target(found.as_ref(), has_tasks)?;
        self.database.run_in(&connection, &SET_MARK, &[&mark]).await?;
        run(&self.database, &connection, EMPTY).await?;
        run(&self.database, &connection, "COMMIT").await?;
        self.filling = Some((mark, connection));
        Ok(())
    }

    async fn write(&mut self, batch: &Batch) -> Result<(), Error> {
        let (mark, connection) = self.take_filling()?;
        for is_first in [true, false] {
            run(&self.database, &connection, BEGIN_BATCH).await?;
            self.lock_mark(&connection, &mark).await?;
            match self.send(&connection, batch).await {
                Ok(()) => break,
                Err(error) if is_first && is_without_partition(&error) => {
                    run(&self.database, &connection, "ROLLBACK").await?;
                    upkeep::make_for(&self.database, batch.chunks.iter().map(|(id, _)| *id)).await?;
                }
                Err(error) => return Err(classify(error)),
            }
        }
        // Only a connection without an error is used again.
        self.filling = Some((mark, connection));
        Ok(())
    }

    async fn seal(&mut self, meta: &Meta, orphan_after: Duration) -> Result<(), Error> {
        let (mark, connection) = self.take_filling()?;
        let (database, epoch) = (&self.database, number(meta.epoch.0));
        let orphan_after = i64::try_from(orphan_after.as_millis()).unwrap_or(i64::MAX);
        run(database, &connection, BEGIN).await?;
        self.lock_mark(&connection, &mark).await?;
        database.run_in(&connection, &SET_EPOCH, &[&epoch]).await?;
        database.run_in(&connection, &SET_SECRET, &[&&meta.secret[..]]).await?;
        database.run_in(&connection, &COUNT_USAGE, &[]).await?;
        database.run_in(&connection, &ADD_GONE, &[&epoch, &orphan_after]).await?;
        run(database, &connection, "COMMIT").await
    }

    async fn complete(&mut self, id: &str) -> Result<(), Error> {
        let connection = self.database.connect().await?;
        let (_, found) = self.lock(&connection).await?;
        if found.is_none_or(|marker| marker.state != MoveState::Moving || marker.id != id) {
            return Err(self.interfered());
        }
        self.database.run_in(&connection, &SET_MARK, &[&None::<&[u8]>]).await?;
        run(&self.database, &connection, "COMMIT").await
    }

    async fn leave(&mut self, marker: &Marker) -> Result<(), Error> {
        let connection = self.database.connect().await?;
        let (epoch, found) = self.lock(&connection).await?;
        if epoch != self.epoch || found.is_some() {
            return Err(self.interfered());
        }
        self.database.run_in(&connection, &SET_MARK, &[&marker.encode().into_bytes()]).await?;
        // A node that comes back after a while learns that it is over.
        self.database.run_in(&connection, &REMOVE_NODES, &[]).await?;
        run(&self.database, &connection, "COMMIT").await
    }
}
