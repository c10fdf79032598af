//! What a move copies: rows with the values that every store has, what they must fit, and how much there is of them.

use std::sync::Arc;

use taskwire_core::{
    Epoch, Payload, SessionId, TaskId, Timestamp, Version,
    task::{Event, Task, wants},
};

use crate::store::{
    Error, OutboxItem, Session,
    checksum::{self, Checksum},
};

/// Tasks that are read at one time.
pub(in crate::store) const PAGE_TASKS: usize = 128;
/// The same for rows of a log, of an output, or of sessions.
pub(in crate::store) const PAGE_ROWS: usize = 512;
/// Bytes that are read at one time, but at least one row.
pub(in crate::store) const PAGE_BYTES: usize = 512 * 1024;

/// A task, without its log.
#[derive(Debug)]
pub(in crate::store) struct TaskRow {
    /// With what it has written, and its version. What ended it is in its log.
    pub(in crate::store) task: Arc<Task>,
    /// Its head, as it is stored.
    pub(in crate::store) head: String,
    /// What it counts as, in its caller's usage.
    pub(in crate::store) stored_bytes: u64,
}

/// An event.
#[derive(Debug)]
pub(in crate::store) struct EventRow {
    pub(in crate::store) version: u64,
    pub(in crate::store) at: i64,
    pub(in crate::store) event: String,
}

/// Chunks that were written together: a line for each, the number and the version of the first, and the totals after the last.
#[derive(Debug)]
pub(in crate::store) struct ChunkRow {
    pub(in crate::store) seq: u64,
    pub(in crate::store) count: u64,
    pub(in crate::store) version: u64,
    pub(in crate::store) at: i64,
    pub(in crate::store) first_block: u64,
    pub(in crate::store) blocks_total: u64,
    pub(in crate::store) bytes_total: u64,
    pub(in crate::store) blocks: String,
}

/// A session.
#[derive(Debug)]
pub(in crate::store) struct SessionRow {
    pub(in crate::store) session: Session,
    /// The position of the last item of its outbox.
    pub(in crate::store) outbox_end: u64,
}

/// Tasks in the order of their ids, each with what is wrong with it, if something is.
pub(in crate::store) type TaskPage = Vec<(TaskId, Result<TaskRow, String>)>;
/// The same of sessions.
pub(in crate::store) type SessionPage = Vec<(SessionId, Result<SessionRow, String>)>;

/// Rows that follow each other.
#[derive(Debug)]
pub(in crate::store) struct RowPage<T> {
    pub(in crate::store) rows: Vec<T>,
    /// Whether there may be more.
    pub(in crate::store) more: bool,
    bytes: usize,
}

impl<T> RowPage<T> {
    pub(in crate::store) const fn new() -> Self {
        Self { rows: Vec::new(), more: false, bytes: 0 }
    }

    /// Whether it has no room for another row.
    pub(in crate::store) fn is_full(&self) -> bool {
        !self.rows.is_empty() && (self.bytes >= PAGE_BYTES || self.rows.len() >= PAGE_ROWS)
    }

    pub(in crate::store) fn push(&mut self, row: T, bytes: usize) {
        self.rows.push(row);
        self.bytes += bytes;
    }
}

/// What a store has besides its rows.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) struct Meta {
    /// The key that only the store knows.
    pub(in crate::store) secret: [u8; 32],
    /// The number of its last start.
    pub(in crate::store) epoch: Epoch,
}

/// Rows that are written together.
#[derive(Debug, Default)]
pub(in crate::store) struct Batch {
    pub(in crate::store) tasks: Vec<TaskRow>,
    pub(in crate::store) events: Vec<(TaskId, EventRow)>,
    pub(in crate::store) chunks: Vec<(TaskId, ChunkRow)>,
    pub(in crate::store) sessions: Vec<SessionRow>,
    pub(in crate::store) outbox: Vec<(SessionId, OutboxItem)>,
    /// About how much it has.
    pub(in crate::store) bytes: usize,
}

/// How much a store has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Contents {
    /// All tasks.
    pub tasks: u64,
    /// Those that have not ended.
    pub open_tasks: u64,
    /// Events, without chunks.
    pub events: u64,
    /// Chunks of output.
    pub chunks: u64,
    /// Sessions.
    pub sessions: u64,
    /// What sessions are still to be sent.
    pub outbox_items: u64,
    /// Bytes of all of it, about.
    pub bytes: u64,
    /// The sum of the checksums of all rows: that of a copy is the same.
    pub checksum: i64,
}

impl Contents {
    /// Adds the checksum of a row with so many bytes.
    fn add_row(&mut self, checksum: i64, bytes: usize) {
        self.checksum = self.checksum.wrapping_add(checksum);
        self.bytes += bytes as u64;
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.tasks += other.tasks;
        self.open_tasks += other.open_tasks;
        self.events += other.events;
        self.chunks += other.chunks;
        self.sessions += other.sessions;
        self.outbox_items += other.outbox_items;
        self.bytes += other.bytes;
        self.checksum = self.checksum.wrapping_add(other.checksum);
    }

    pub(super) fn add_session(&mut self, row: &SessionRow) {
        let Session { id, caller, last_used, data } = &row.session;
        let sum = checksum::of_session(id.as_str(), caller.as_str(), last_used.as_millis(), data.as_str());
        let end = Checksum::new(9).bytes(id.as_str().as_bytes()).number(row.outbox_end.cast_signed()).finish();
        self.add_row(sum.wrapping_add(end), data.as_str().len());
        self.sessions += 1;
    }

    pub(super) fn add_outbox_item(&mut self, session: &SessionId, item: &OutboxItem) {
        let numbers = [item.position, item.first_version.0, item.last_version.0, item.first_seq.0, item.end_seq.0].map(u64::cast_signed);
        let sum = Checksum::new(10).bytes(session.as_str().as_bytes()).bytes(item.task.as_bytes());
        self.add_row(numbers.into_iter().fold(sum, Checksum::number).finish(), 0);
        self.outbox_items += 1;
    }
}

/// Holds the log of a task against the task, row by row.
pub(super) struct TaskCheck {
    task: Arc<Task>,
    contents: Contents,
    /// The number of the chunk that must come next, after the first row.
    next_seq: Option<u64>,
    has_beginning: bool,
    has_end: bool,
    checkpoint: Option<Payload>,
}

impl TaskCheck {
    pub(super) fn new(row: &TaskRow) -> Self {
        let task = row.task.clone();
        let (is_open, due) = (task.ended.is_none(), wants(&task).due.map(Timestamp::as_millis));
        let sum = checksum::of_task(task.id, task.spec.caller.as_str(), is_open.into(), due, &row.head);
        let counted = Checksum::new(11).bytes(task.id.as_bytes()).number(row.stored_bytes.cast_signed()).finish();
        let mut contents = Contents { tasks: 1, open_tasks: is_open.into(), ..Contents::default() };
        contents.add_row(sum.wrapping_add(counted), row.head.len());
        Self { task, contents, next_seq: None, has_beginning: false, has_end: false, checkpoint: None }
    }

    fn damaged(&self, what: impl std::fmt::Display) -> Error {
        Error::corrupt_task(self.task.id, what)
    }

    pub(super) fn event(&mut self, row: &EventRow) -> Result<(), Error> {
        let event: Event =
            serde_json::from_str(&row.event).map_err(|error| self.damaged(format_args!("event {}: {error}", row.version)))?;
        let is_at = |version: Version| version.0 == row.version;
        self.has_beginning |= is_at(Version(1)) && matches!(event, Event::Created { .. });
        self.has_end |= self.task.ended.is_some_and(|(_, version)| is_at(version)) && event.outcome().is_some();
        if let Event::Saved { checkpoint } = event
            && self.task.checkpoint_version.is_some_and(is_at)
        {
            self.checkpoint = Some(checkpoint);
        }
        self.contents.add_row(checksum::of_event(self.task.id, row.version.cast_signed(), row.at, &row.event), row.event.len());
        self.contents.events += 1;
        Ok(())
    }

    pub(super) fn chunk(&mut self, row: &ChunkRow) -> Result<(), Error> {
        let ChunkRow { seq, count, version, at, first_block, blocks_total, bytes_total, ref blocks } = *row;
        if self.next_seq.is_some_and(|next| next != seq) || blocks.split('\n').count() as u64 != count {
            return Err(self.damaged(format_args!("its output from chunk {} on is not what was written", self.next_seq.unwrap_or(seq))));
        }
        self.next_seq = Some(seq + count);
        let text_sum = checksum::of_text(blocks);
        let [seq, signed_count, version, first_block, blocks_total, bytes_total] =
            [seq, count, version, first_block, blocks_total, bytes_total].map(u64::cast_signed);
        let numbers = [seq, signed_count, version, at, first_block, blocks_total, bytes_total, text_sum];
        self.contents.add_row(checksum::of_chunk_header(self.task.id, numbers), blocks.len());
        self.contents.chunks += count;
        Ok(())
    }

    /// How much it has, and its last checkpoint; or what is missing.
    pub(super) fn finish(self) -> Result<(Contents, Option<Payload>), Error> {
        let (task, is_open) = (&self.task, self.task.ended.is_none());
        let next_seq = self.next_seq.unwrap_or(0);
        if !self.has_beginning {
            return Err(self.damaged("its beginning is missing"));
        }
        if !is_open && !self.has_end {
            return Err(self.damaged("its end is missing"));
        }
        if is_open && task.checkpoint_version.is_some() && self.checkpoint.is_none() {
            return Err(self.damaged("its checkpoint is missing"));
        }
        if next_seq != task.output.next_seq.0 {
            return Err(self.damaged(format_args!("its output from chunk {next_seq} on is missing")));
        }
        Ok((self.contents, self.checkpoint))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use taskwire_core::{
        CallerId, Seq,
        id::ID_RANDOM_BYTES,
        task::{OutputTotals, Spec, create},
    };

    use super::*;

    fn task(next_seq: u64) -> (TaskRow, EventRow) {
        let id = TaskId::new(Timestamp::from_millis(1_000), [1; ID_RANDOM_BYTES]);
        let spec = Arc::new(Spec::new(CallerId::new("me"), "tool"));
        let created = Event::Created { spec, arguments: json!({}).into(), epoch: Epoch(1), continuation: None, spent_ms: 0 };
        let mut task = create(id, &created, Timestamp::from_millis(1_000));
        task.restore_output(OutputTotals { next_seq: Seq(next_seq), blocks: next_seq, bytes: next_seq * 3 }, Version(1 + next_seq));
        let head = serde_json::to_string(&task).expect("JSON");
        let event = EventRow { version: 1, at: 1_000, event: serde_json::to_string(&created).expect("JSON") };
        (TaskRow { task: Arc::new(task), head, stored_bytes: 600 }, event)
    }

    fn chunk(seq: u64, lines: &str) -> ChunkRow {
        let (count, blocks) = (lines.split('\n').count() as u64, lines.to_owned());
        let end = seq + count;
        ChunkRow { seq, count, version: 2 + seq, at: 1_000, first_block: seq + 1, blocks_total: end, bytes_total: end * 3, blocks }
    }

    /// What is wrong with a task that has these chunks, if something is.
    fn problem(next_seq: u64, chunks: &[ChunkRow]) -> Option<String> {
        let (row, event) = task(next_seq);
        let mut check = TaskCheck::new(&row);
        let checked = check.event(&event).and_then(|()| chunks.iter().try_for_each(|chunk| check.chunk(chunk)));
        checked.and_then(|()| check.finish()).err().map(|error| error.to_string())
    }

    #[test]
    fn what_is_missing_of_a_task_is_noticed() {
        assert_eq!(problem(0, &[]), None);
        assert_eq!(problem(3, &[chunk(0, "[1]\n[2]"), chunk(2, "[3]")]), None);
        assert_eq!(problem(3, &[chunk(1, "[2]\n[3]")]), None, "what came before was dropped");
        let is_noticed = |next_seq, chunks: &[ChunkRow], words: &str| {
            let problem = problem(next_seq, chunks).expect("it is noticed");
            assert!(problem.contains(words), "{problem}");
        };
        is_noticed(3, &[chunk(0, "[1]"), chunk(2, "[3]")], "from chunk 1 on");
        is_noticed(3, &[chunk(0, "[1]\n[2]")], "from chunk 2 on is missing");
        is_noticed(1, &[], "from chunk 0 on is missing");
        is_noticed(2, &[ChunkRow { count: 2, ..chunk(0, "[1]") }], "from chunk 0 on");
        let (row, _) = task(0);
        assert!(TaskCheck::new(&row).finish().expect_err("it has no log").to_string().contains("its beginning"));
    }

    #[test]
    fn another_value_anywhere_is_another_sum() {
        let contents = |row: &TaskRow, event: &EventRow, chunk: &ChunkRow| {
            let mut check = TaskCheck::new(row);
            check.event(event).and_then(|()| check.chunk(chunk)).expect("nothing is damaged");
            check.finish().expect("nothing is missing").0
        };
        let (row, event) = task(1);
        let before = contents(&row, &event, &chunk(0, "[1]"));
        assert_eq!(before, contents(&row, &event, &chunk(0, "[1]")));
        assert_eq!((before.tasks, before.open_tasks, before.events, before.chunks), (1, 1, 1, 1));
        for change in [chunk(0, "[2]"), ChunkRow { at: 1_001, ..chunk(0, "[1]") }, ChunkRow { bytes_total: 4, ..chunk(0, "[1]") }] {
            assert_ne!(before, contents(&row, &event, &change), "{change:?}");
        }
        let later = EventRow { at: 1_001, version: 1, event: event.event.clone() };
        assert_ne!(before, contents(&row, &later, &chunk(0, "[1]")));
        let heavier = TaskRow { stored_bytes: 601, task: row.task.clone(), head: row.head.clone() };
        assert_ne!(before, contents(&heavier, &event, &chunk(0, "[1]")));
    }
}
