//! What a batch writes, as rows: columns of values for statements that write many at once.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashSet},
    mem,
};

use taskwire_core::{
    SessionId, TaskId, Version,
    task::{Blocks, Event, Task},
};
use tokio_postgres::types::Type;

use super::{
    columns::{KeyColumns, TaskColumns, TextColumns, to_text},
    connection::{Call, Sql, number},
};
use crate::store::{CallKey, Error, TaskWrite};

/// Chunks share a row up to this many bytes, so that reading one chunk does not read many others.
const ROW_BYTES: usize = 256 * 1024;

pub(super) const IDS: Type = Type::BYTEA_ARRAY;
pub(super) const NUMBERS: Type = Type::INT8_ARRAY;
pub(super) const TEXTS: Type = Type::TEXT_ARRAY;

pub(super) const INSERT_TASKS: Sql = Sql {
    text: "INSERT INTO @task(id, ended, due, epoch, version, next_seq, blocks, output_bytes, stored_bytes, queued, caller)
        SELECT * FROM UNNEST($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
    types: &[IDS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, TEXTS, TEXTS],
};
/// As long as no column of an index has another value than before, the row changes in place.
const UPDATE_TASKS: Sql = Sql {
    text: "UPDATE @task AS t SET ended = n.ended, due = n.due, epoch = n.epoch, version = n.version, next_seq = n.next_seq,
            blocks = n.blocks, output_bytes = n.output_bytes, stored_bytes = n.stored_bytes,
            queued = n.queued
        FROM UNNEST($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
            AS n(id, ended, due, epoch, version, next_seq, blocks, output_bytes, stored_bytes, queued)
        WHERE t.id = n.id",
    types: &[IDS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, TEXTS],
};
pub(super) const PUT_HEADS: Sql = Sql {
    text: "INSERT INTO @head(id, head) SELECT * FROM UNNEST($1, $2) ON CONFLICT (id) DO UPDATE SET head = excluded.head",
    types: &[IDS, TEXTS],
};
pub(super) const INSERT_EVENTS: Sql =
    Sql { text: "INSERT INTO @log(task, version, at, event) SELECT * FROM UNNEST($1, $2, $3, $4)", types: &[IDS, NUMBERS, NUMBERS, TEXTS] };
pub(super) const INSERT_CHUNKS: Sql = Sql {
    text: "INSERT INTO @chunk(task, seq, count, version, at, first_block, blocks_total, bytes_total, blocks)
        SELECT * FROM UNNEST($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    types: &[IDS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, TEXTS],
};
const DELETE_EVENTS: Sql = Sql {
    text: "DELETE FROM @log AS l USING UNNEST($1, $2) AS n(task, version) WHERE l.task = n.task AND l.version = n.version",
    types: &[IDS, NUMBERS],
};
/// Rows that end within the first `$2` bytes of the output, but the last. One task at a time, so that one partition is looked at.
const DROP_OLDEST: Sql = Sql {
    text: "DELETE FROM @chunk WHERE task = $1 AND seq < coalesce(
            (SELECT seq FROM @chunk WHERE task = $1 AND bytes_total > $2 ORDER BY seq LIMIT 1),
            (SELECT seq FROM @chunk WHERE task = $1 ORDER BY seq DESC LIMIT 1)
        )",
    types: &[Type::BYTEA, Type::INT8],
};
/// Output stays until its partition is dropped: nobody can ask for it.
const FORGET: Sql = Sql {
    text: "WITH heads AS (DELETE FROM @head WHERE id = ANY($1)), events AS (DELETE FROM @log WHERE task = ANY($1))
        DELETE FROM @task WHERE id = ANY($1)",
    types: &[IDS],
};
const RELEASE_KEYS: Sql = Sql {
    text: "DELETE FROM @call_key AS k USING UNNEST($1, $2, $3, $4) AS n(caller, kind, key, task)
        WHERE k.caller = n.caller AND k.kind = n.kind AND k.key = n.key AND k.task = n.task",
    types: &[TEXTS, Type::INT2_ARRAY, TEXTS, IDS],
};
pub(super) const ADD_SAME: Sql = Sql {
    text: "INSERT INTO @same_call(caller, hidden, key, task) SELECT * FROM UNNEST($1, $2, $3, $4) ON CONFLICT DO NOTHING",
    types: &[TEXTS, Type::BOOL_ARRAY, TEXTS, IDS],
};
const REMOVE_SAME: Sql = Sql {
    text: "DELETE FROM @same_call AS s USING UNNEST($1, $2, $3, $4) AS n(caller, hidden, key, task)
        WHERE s.caller = n.caller AND s.hidden = n.hidden AND s.key = n.key AND s.task = n.task",
    types: &[TEXTS, Type::BOOL_ARRAY, TEXTS, IDS],
};
/// In one order, so that nodes that share a slot wait for each other and for nobody else.
const ADD_USAGE: Sql = Sql {
    text: "INSERT INTO @usage AS u(caller, slot, open, bytes)
        SELECT n.caller, $2, n.open, n.bytes FROM UNNEST($1, $3, $4) AS n(caller, open, bytes) ORDER BY n.caller COLLATE \"C\"
        ON CONFLICT (caller, slot) DO UPDATE SET open = u.open + excluded.open, bytes = u.bytes + excluded.bytes",
    types: &[TEXTS, Type::INT2, NUMBERS, NUMBERS],
};
pub(super) const INSERT_OUTBOX: Sql = Sql {
    text: "INSERT INTO @outbox(session, position, task, first_version, last_version, first_seq, end_seq)
        SELECT * FROM UNNEST($1, $2, $3, $4, $5, $6, $7)",
    types: &[TEXTS, NUMBERS, IDS, NUMBERS, NUMBERS, NUMBERS, NUMBERS],
};
const ADVANCE_OUTBOX: Sql = Sql {
    text: "UPDATE @session AS s SET outbox_end = n.outbox_end FROM UNNEST($1, $2) AS n(id, outbox_end) WHERE s.id = n.id",
    types: &[TEXTS, NUMBERS],
};
const TRIM_OUTBOX: Sql = Sql {
    text: "DELETE FROM @outbox AS o USING UNNEST($1, $2) AS n(session, upto) WHERE o.session = n.session AND o.position <= n.upto",
    types: &[TEXTS, NUMBERS],
};

/// A row for chunks that follow each other in one write.
#[derive(Default)]
struct ChunkRow<'a> {
    seq: u64,
    count: u64,
    version: u64,
    first_block: u64,
    blocks_total: u64,
    text: Cow<'a, str>,
}

impl<'a> ChunkRow<'a> {
    fn add(&mut self, version: u64, seq: u64, first_block: u64, blocks: &'a Blocks) {
        if self.count == 0 {
            *self = Self { seq, version, first_block, text: blocks.as_str().into(), ..Self::default() };
        } else {
            // The JSON of a chunk is one line, so line breaks separate chunks.
            let text = self.text.to_mut();
            text.push('\n');
            text.push_str(blocks.as_str());
        }
        self.count += 1;
        self.blocks_total = first_block - 1 + blocks.count();
    }

    /// Whether a chunk can share the row. Versions in a row follow each other: another event ends it.
    fn takes(&self, version: u64, blocks: &Blocks) -> bool {
        self.text.len() + blocks.as_str().len() <= ROW_BYTES && self.version + self.count == version
    }
}

/// Items of outboxes: session, task and five numbers.
type OutboxColumns<'a> = (Vec<Cow<'a, str>>, Vec<&'a [u8]>, [Vec<i64>; 5]);

/// What the writes of a batch that are carried out add, change and remove. Nothing here decides whether they are.
pub(super) struct Rows<'a> {
    /// The last write of each task that is kept.
    last: BTreeMap<TaskId, &'a TaskWrite>,
    created: HashSet<TaskId>,
    changed_heads: BTreeSet<TaskId>,
    forgotten: Vec<&'a [u8]>,
    events: TextColumns<'a, 2>,
    chunks: TextColumns<'a, 7>,
    stale: (Vec<&'a [u8]>, Vec<i64>),
    released: KeyColumns<'a>,
    same: BTreeMap<TaskId, (&'a Task, bool)>,
    usage: BTreeMap<&'a str, (i64, i64)>,
    outbox: OutboxColumns<'a>,
    /// Where each outbox ends, and up to where it is no longer kept.
    outbox_ends: BTreeMap<&'a str, (u64, u64)>,
}

impl<'a> Rows<'a> {
    pub(super) fn new() -> Self {
        Self {
            last: BTreeMap::new(),
            created: HashSet::new(),
            changed_heads: BTreeSet::new(),
            forgotten: Vec::new(),
            events: TextColumns::new(&INSERT_EVENTS),
            chunks: TextColumns::new(&INSERT_CHUNKS),
            stale: Default::default(),
            released: KeyColumns::default(),
            same: BTreeMap::new(),
            usage: BTreeMap::new(),
            outbox: Default::default(),
            outbox_ends: BTreeMap::new(),
        }
    }

    /// Whether a write that was added makes this task.
    pub(super) fn creates(&self, id: &TaskId) -> bool {
        self.created.contains(id)
    }

    /// Takes back a key that a write has got and does not need.
    pub(super) fn release(&mut self, key: CallKey<'a>, task: &'a TaskId) {
        self.released.push(key, task);
    }

    /// Adds a write. The task has counted as `was` so far: open or not, and bytes. Its session's outbox ends at `outbox_end`, if there is
    /// such a session.
    pub(super) fn add(&mut self, write: &'a TaskWrite, was: (bool, i64), outbox_end: Option<&mut u64>) -> Result<(), Error> {
        let (task, id) = (&*write.task, &write.task.id);
        let (is_forgotten, (is_open, bytes)) = (state_after(write).is_none(), state_after(write).unwrap_or_default());
        let usage = self.usage.entry(task.spec.caller.as_str()).or_default();
        *usage = (usage.0 + i64::from(is_open) - i64::from(was.0), usage.1 + bytes - was.1);
        if !is_open {
            let dedupe = CallKey::of(&task.spec).filter(|key| is_forgotten || matches!(key, CallKey::Dedupe(..)));
            dedupe.for_each(|key| self.released.push(key, id));
        }
        if is_forgotten {
            self.last.remove(id);
            self.forgotten.push(id.as_bytes());
            self.same.insert(*id, (task, false));
            return Ok(());
        }
        self.last.insert(*id, write);
        self.add_log(write)?;
        let earlier = write.stale_checkpoints.iter().filter(|stale| **stale < write.first_version);
        earlier.for_each(|stale| {
            self.stale.0.push(id.as_bytes());
            self.stale.1.push(number(stale.0));
        });
        if let Some(is_found) = same_call_change(write) {
            self.same.insert(*id, (task, is_found));
        }
        if let (Some((session, item)), Some(end)) = (write.outbox_item(), outbox_end) {
            *end += 1;
            self.add_outbox_item(session, write, *end, [item.first_version.0, item.last_version.0, item.first_seq.0, item.end_seq.0]);
        }
        Ok(())
    }

    fn add_log(&mut self, write: &'a TaskWrite) -> Result<(), Error> {
        let (task, id, at) = (&*write.task, &write.task.id, write.at.as_millis());
        let mut chunk = ChunkRow::default();
        // `output.bytes` counts the new chunks already: begin with the total before them.
        let appended = |event: &Event| if let Event::Appended { blocks, .. } = event { blocks.bytes() } else { 0 };
        let mut bytes_total = task.output.bytes.saturating_sub(write.events.iter().map(appended).sum::<u64>());
        for (version, event) in (write.first_version.0..).zip(&write.events) {
            match event {
                Event::Appended { seq, first_block, blocks } => {
                    if !chunk.takes(version, blocks) {
                        self.put_chunk(id, at, &mut chunk, bytes_total);
                    }
                    chunk.add(version, seq.0, *first_block, blocks);
                    bytes_total += blocks.bytes();
                }
                event => {
                    self.changed_heads.insert(*id);
                    if matches!(event, Event::Created { .. }) {
                        self.created.insert(*id);
                    }
                    // A checkpoint that was replaced at once is not needed.
                    if !write.stale_checkpoints.contains(&Version(version)) {
                        let json = serde_json::to_string(event).map_err(|error| Error::corrupt_task(*id, error))?;
                        self.events.push(id, [number(version), at], json.into());
                    }
                }
            }
        }
        self.put_chunk(id, at, &mut chunk, bytes_total);
        Ok(())
    }

    fn put_chunk(&mut self, id: &'a TaskId, at: i64, chunk: &mut ChunkRow<'a>, bytes_total: u64) {
        let ChunkRow { seq, count, version, first_block, blocks_total, text } = mem::take(chunk);
        if count > 0 {
            let [seq, count, version, first_block, blocks_total, bytes_total] =
                [seq, count, version, first_block, blocks_total, bytes_total].map(number);
            self.chunks.push(id, [seq, count, version, at, first_block, blocks_total, bytes_total], text);
        }
    }

    fn add_outbox_item(&mut self, session: &'a SessionId, write: &'a TaskWrite, position: u64, part: [u64; 4]) {
        let (sessions, tasks, numbers) = &mut self.outbox;
        sessions.push(to_text(session.as_str()));
        tasks.push(write.task.id.as_bytes());
        let [first_version, last_version, first_seq, end_seq] = part;
        let values = [position, first_version, last_version, first_seq, end_seq];
        numbers.iter_mut().zip(values).for_each(|(column, value)| column.push(number(value)));
        self.outbox_ends.insert(session.as_str(), (position, position.saturating_sub(write.outbox_max)));
    }

    /// The statements that do all of it, in an order in which each finds what it needs.
    pub(super) fn into_calls(self, slot: i16) -> Result<Vec<Call<'a>>, Error> {
        let (mut inserted, mut updated, mut heads) = (TaskColumns::default(), TaskColumns::default(), TextColumns::<0>::new(&PUT_HEADS));
        let mut dropped = Vec::new();
        for (id, &write) in &self.last {
            let rows = if self.created.contains(id) { &mut inserted } else { &mut updated };
            rows.push(write);
            if self.changed_heads.contains(id) {
                let json = serde_json::to_string(&*write.task).map_err(|error| Error::corrupt_task(*id, error))?;
                heads.push(&write.task.id, [], json.into());
            }
            if write.dropped_bytes > 0 {
                let id: &'a [u8] = write.task.id.as_bytes();
                dropped.push(Call::new(&DROP_OLDEST, vec![Box::new(id), Box::new(number(write.dropped_bytes))]));
            }
        }
        let mut calls: Vec<Call<'a>> = Vec::new();
        calls.extend(inserted.into_call(&INSERT_TASKS, true));
        calls.extend(updated.into_call(&UPDATE_TASKS, false));
        calls.extend(heads.into_calls());
        calls.extend(self.events.into_calls());
        calls.extend(self.chunks.into_calls());
        if !self.stale.0.is_empty() {
            calls.push(Call::new(&DELETE_EVENTS, vec![Box::new(self.stale.0), Box::new(self.stale.1)]));
        }
        calls.append(&mut dropped);
        if !self.forgotten.is_empty() {
            calls.push(Call::new(&FORGET, vec![Box::new(self.forgotten)]));
        }
        calls.extend(self.released.into_call(&RELEASE_KEYS));
        for (sql, is_found) in [(&ADD_SAME, true), (&REMOVE_SAME, false)] {
            calls.extend(same_call(&self.same, sql, is_found));
        }
        let usage: Vec<_> = self.usage.into_iter().filter(|(_, change)| *change != (0, 0)).collect();
        if !usage.is_empty() {
            let callers: Vec<Cow<'a, str>> = usage.iter().map(|&(caller, _)| to_text(caller)).collect();
            let (open, bytes): (Vec<i64>, Vec<i64>) = usage.iter().map(|(_, change)| *change).unzip();
            calls.push(Call::new(&ADD_USAGE, vec![Box::new(callers), Box::new(slot), Box::new(open), Box::new(bytes)]));
        }
        let (sessions, tasks, [position, first_version, last_version, first_seq, end_seq]) = self.outbox;
        if !sessions.is_empty() {
            let ids: Vec<Cow<'a, str>> = self.outbox_ends.keys().map(|&id| to_text(id)).collect();
            let (ends, upto): (Vec<i64>, Vec<i64>) = self.outbox_ends.values().map(|(end, upto)| (number(*end), number(*upto))).unzip();
            calls.push(Call::new(
                &INSERT_OUTBOX,
                vec![
                    Box::new(sessions),
                    Box::new(position),
                    Box::new(tasks),
                    Box::new(first_version),
                    Box::new(last_version),
                    Box::new(first_seq),
                    Box::new(end_seq),
                ],
            ));
            calls.push(Call::new(&ADVANCE_OUTBOX, vec![Box::new(ids.clone()), Box::new(ends)]));
            calls.push(Call::new(&TRIM_OUTBOX, vec![Box::new(ids), Box::new(upto)]));
        }
        Ok(calls)
    }
}

/// What a task counts as after a write: whether it is open, and its bytes. None if it is forgotten.
pub(super) fn state_after(write: &TaskWrite) -> Option<(bool, i64)> {
    let is_forgotten = matches!(write.events.last(), Some(Event::Expired));
    (!is_forgotten).then(|| (write.task.ended.is_none(), number(write.stored_bytes)))
}

/// Whether the same call finds the task from now on, or does not find it any more; none if a write does not change that.
fn same_call_change(write: &TaskWrite) -> Option<bool> {
    let (task, events) = (&write.task, &write.events);
    let is_found = task.is_joinable();
    let changes = if is_found {
        events.iter().any(|event| matches!(event, Event::Created { .. } | Event::Left { .. }))
    } else {
        let was_found = task.spec.hidden || task.spec.fingerprint.is_some();
        let ends = task.ended.is_some_and(|(_, version)| version >= write.first_version);
        (was_found && ends) || events.iter().any(|event| matches!(event, Event::Joined { .. }))
    };
    changes.then_some(is_found)
}

/// The tasks that the same call finds from now on, or does not find any more.
fn same_call<'a>(same: &BTreeMap<TaskId, (&'a Task, bool)>, sql: &'static Sql, is_found: bool) -> Option<Call<'a>> {
    let (mut caller, mut hidden, mut key, mut ids) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (task, found) in same.values() {
        if let Some(linger) = task.spec.linger_key.as_deref().filter(|_| *found == is_found) {
            caller.push(to_text(task.spec.caller.as_str()));
            hidden.push(task.spec.hidden);
            key.push(to_text(linger));
            let id: &'a [u8] = task.id.as_bytes();
            ids.push(id);
        }
    }
    (!ids.is_empty()).then(|| Call::new(sql, vec![Box::new(caller), Box::new(hidden), Box::new(key), Box::new(ids)]))
}
