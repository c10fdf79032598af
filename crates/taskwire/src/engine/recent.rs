//! What changed lately, in memory: each task, its last events and its last chunks. Most readers want nothing else, and
//! many of them want the same.
//!
//! Only what is committed gets in, so a reader can see nothing here that a crash could undo. It has a bound in bytes; what
//! is not here is read from the store.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use taskwire_core::{
    TaskId, Version,
    task::{Event, Outcome, Spec, Task},
};

use crate::store::{Chunk, Cursor, Logged, PAGE_EVENTS, Page, Parts, Write};

/// Readers and the writer meet in one of these at a time.
const SHARDS: usize = 16;
/// A task that is larger than this, its last events included, is left to the store.
pub(super) const ENTRY_BYTES_MAX: usize = 64 * 1024;
/// Events of one task.
const EVENTS_MAX: usize = 16;
/// Bytes of the last chunks of one task: what many readers may be behind without asking the store each for itself.
const TAIL_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The same where memory is short: what a reader that keeps up may be behind.
const TAIL_BYTES_MIN: usize = 512 * 1024;

#[derive(Debug)]
pub(super) struct Recent {
    shards: [Mutex<Shard>; SHARDS],
    /// Bytes that one shard may keep.
    shard_bytes: usize,
}

#[derive(Debug, Default)]
struct Shard {
    entries: HashMap<TaskId, Entry>,
    /// In the order in which they came; the oldest goes first. An entry that is gone leaves its place here for a while.
    order: VecDeque<(TaskId, u64)>,
    bytes: usize,
    came: u64,
}

#[derive(Debug)]
struct Entry {
    task: Arc<Task>,
    /// Events but for chunks: all after `complete`.
    events: VecDeque<Logged>,
    complete: Version,
    events_bytes: usize,
    /// The last chunks, without a gap up to the next one to come.
    tail: VecDeque<Chunk>,
    tail_bytes: usize,
    /// Bytes of the output that the tail holds.
    tail_output: u64,
    came: u64,
}

impl Recent {
    pub(super) fn new(bytes: usize) -> Self {
        Self { shards: Default::default(), shard_bytes: bytes / SHARDS }
    }

    fn shard(&self, id: TaskId) -> MutexGuard<'_, Shard> {
        // The last byte is random.
        let last = id.as_bytes()[id.as_bytes().len() - 1];
        self.shards[usize::from(last) % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a change that has just become durable.
    pub(super) fn put(&self, write: Write) {
        let id = write.task.id;
        let mut shard = self.shard(id);
        let gone = matches!(write.events.last(), Some(Event::Expired));
        let shard_bytes = shard.bytes;
        let (before, after) = {
            let entry = shard.entry(id, &write);
            let before = entry.bytes();
            // What others take counts here; else a long tail would cut itself short.
            let others = shard_bytes.saturating_sub(before);
            entry.add(write, if others > self.shard_bytes / 2 { TAIL_BYTES_MIN } else { TAIL_BYTES_MAX });
            (before, entry.bytes())
        };
        shard.bytes = shard.bytes + after - before;
        if gone || shard.entries.get(&id).is_some_and(|entry| entry.bytes() - entry.tail_bytes > ENTRY_BYTES_MAX) {
            shard.remove(id);
        }
        while shard.bytes > self.shard_bytes
            && let Some((oldest, came)) = shard.order.pop_front()
        {
            if shard.entries.get(&oldest).is_some_and(|entry| entry.came == came) {
                shard.remove(oldest);
            }
        }
    }

    /// The task as of its last change.
    pub(super) fn task(&self, id: TaskId) -> Option<Arc<Task>> {
        self.shard(id).entries.get(&id).map(|entry| entry.task.clone())
    }

    /// The event that made the task, if it is here.
    pub(super) fn created(&self, id: TaskId) -> Option<Event> {
        let shard = self.shard(id);
        let first = &shard.entries.get(&id)?.events.front()?.event;
        matches!(first, Event::Created { .. }).then(|| first.clone())
    }

    /// What follows a place in a task's log, if it is all here.
    pub(super) fn page(&self, id: TaskId, cursor: Cursor) -> Option<Page> {
        let shard = self.shard(id);
        let entry = shard.entries.get(&id)?;
        let end = entry.task.output.next_seq;
        let (chunks, more_chunks) = match cursor.from.filter(|from| *from < end) {
            None => (Vec::new(), false),
            Some(from) => {
                let behind = from.0.checked_sub(entry.tail.front()?.seq.0)?;
                let rest = entry.tail.range(usize::try_from(behind).ok()?..);
                let (all, mut size) = (rest.len(), 0);
                let fits = |chunk: &&Chunk| {
                    let first = size == 0;
                    size += chunk.blocks.as_str().len();
                    first || size <= cursor.bytes
                };
                let chunks: Vec<Chunk> = rest.take(cursor.chunks).take_while(fits).cloned().collect();
                let more = chunks.len() < all;
                (chunks, more)
            }
        };
        let first = entry.events.partition_point(|logged| logged.version <= cursor.after);
        if entry.complete > cursor.after {
            return None;
        }
        let rest = entry.events.range(first..);
        let more_events = rest.len() > PAGE_EVENTS;
        let events = rest.take(PAGE_EVENTS).cloned().collect();
        let (version, ended) = (entry.task.version, entry.task.ended.is_some());
        drop(shard);
        Some(Parts { events, more_events, chunks, more_chunks, version, end, ended }.merge(cursor.after))
    }
}

impl Shard {
    /// The entry of a task, made if there is none: it begins with `write` then.
    fn entry(&mut self, id: TaskId, write: &Write) -> &mut Entry {
        self.entries.entry(id).or_insert_with(|| {
            self.came += 1;
            self.order.push_back((id, self.came));
            let complete = Version(write.first.0 - 1);
            let entry = Entry {
                task: write.task.clone(),
                events: VecDeque::with_capacity(write.events.len()),
                complete,
                events_bytes: 0,
                tail: VecDeque::new(),
                tail_bytes: 0,
                tail_output: 0,
                came: self.came,
            };
            self.bytes += entry.bytes();
            entry
        })
    }

    fn remove(&mut self, id: TaskId) {
        if let Some(entry) = self.entries.remove(&id) {
            self.bytes -= entry.bytes();
        }
        if self.order.len() > 2 * self.entries.len() + 16 {
            let entries = &self.entries;
            self.order.retain(|(id, came)| entries.get(id).is_some_and(|entry| entry.came == *came));
        }
    }
}

impl Entry {
    fn add(&mut self, write: Write, tail_max: usize) {
        self.task = write.task;
        for (version, event) in (write.first.0..).map(Version).zip(write.events) {
            if let Event::Appended { seq, first_block, blocks } = event {
                self.tail_bytes += chunk_weight(&blocks);
                self.tail_output += blocks.bytes();
                self.tail.push_back(Chunk { seq, version, first_block, blocks });
            } else {
                self.events_bytes += event_weight(&event);
                self.events.push_back(Logged { version, at: write.at, event });
            }
        }
        // The last change is always here whole, so that those who waited for it need not ask the store.
        while self.events.len() > EVENTS_MAX
            && let Some(old) = self.events.pop_front_if(|old| old.version < write.first)
        {
            self.complete = old.version;
            self.events_bytes -= event_weight(&old.event);
        }
        while self.tail_bytes > tail_max || self.task.output.bytes - self.tail_output < write.dropped_bytes {
            let Some(old) = self.tail.pop_front() else { break };
            self.tail_output -= old.blocks.bytes();
            self.tail_bytes -= chunk_weight(&old.blocks);
        }
    }

    /// About how many bytes it takes, with what it points to.
    fn bytes(&self) -> usize {
        size_of::<Self>() + task_weight(&self.task) + self.events_bytes + self.tail_bytes
    }
}

/// About how many bytes a task takes, with what it points to.
pub(super) fn task_weight(task: &Task) -> usize {
    let outcome = match &task.outcome {
        Some(Outcome::Completed { result, .. }) => result.as_str().len(),
        Some(Outcome::Failed(error)) => error.message.len() + error.data.as_ref().map_or(0, |data| data.as_str().len()),
        Some(Outcome::Cancelled { .. }) | None => 0,
    };
    let inputs = usize::try_from(task.input_bytes()).unwrap_or(usize::MAX) + task.inputs.len() * 128;
    size_of::<Task>() + size_of::<Spec>() + 256 + outcome + inputs
}

/// About how many bytes an event takes: its own and those it points to.
fn event_weight(event: &Event) -> usize {
    let beyond = match event {
        Event::Created { request, carried, .. } => request.as_str().len() + carried.as_ref().map_or(0, |carried| carried.as_str().len()),
        Event::Saved { checkpoint } => checkpoint.as_str().len(),
        Event::Said { message, .. } => message.as_ref().map_or(0, |message| message.len()),
        // The rest is shared with the task.
        _ => 0,
    };
    size_of::<Logged>() + beyond
}

fn chunk_weight(blocks: &taskwire_core::task::Blocks) -> usize {
    size_of::<Chunk>() + blocks.as_str().len() + 16
}
#[cfg(test)]
mod tests {
    use serde_json::json;
    use taskwire_core::{
        CallerId, Epoch, Seq, Timestamp,
        id::ID_RANDOM_BYTES,
        task::{Blocks, create, evolve},
    };

    use super::*;
    use crate::store::Entry;

    fn spec() -> Arc<Spec> {
        Arc::new(Spec::new(CallerId::new("me"), "t"))
    }

    /// What the cache has after a place: versions of events, numbers of chunks.
    fn page(recent: &Recent, id: TaskId, after: u64, from: Option<u64>, bytes: usize, chunks: usize) -> Option<(Vec<u64>, Vec<u64>)> {
        let page = recent.page(id, Cursor { after: Version(after), from: from.map(Seq), bytes, chunks })?;
        let (mut events, mut seqs) = (Vec::new(), Vec::new());
        for entry in page.entries {
            match entry {
                Entry::Event(logged) => events.push(logged.version.0),
                Entry::Chunk(chunk) => seqs.push(chunk.seq.0),
            }
        }
        Some((events, seqs))
    }

    fn events(recent: &Recent, id: TaskId, after: u64) -> Option<Vec<u64>> {
        page(recent, id, after, None, 0, 0).map(|(events, _)| events)
    }

    fn made(n: u8) -> Write {
        let at = Timestamp::from_millis(i64::from(n));
        let created = Event::Created { spec: spec(), request: json!({ "n": n }).into(), epoch: Epoch(1), carried: None, spent_ms: 0 };
        let task = create(TaskId::new(at, [n; ID_RANDOM_BYTES]), &created, at);
        Write {
            task: Arc::new(task),
            first: Version(1),
            at,
            events: vec![created],
            stale_checkpoint: None,
            dropped_bytes: 0,
            told_max: 1,
            stored_bytes: 0,
        }
    }

    fn then(write: &Write, event: Event) -> Write {
        let mut task = (*write.task).clone();
        evolve(&mut task, &event, write.at);
        Write {
            first: task.version,
            task: Arc::new(task),
            at: write.at,
            events: vec![event],
            stale_checkpoint: None,
            dropped_bytes: 0,
            told_max: 1,
            stored_bytes: 0,
        }
    }

    #[test]
    fn gives_what_changed_lately() {
        let recent = Recent::new(1 << 20);
        let first = made(1);
        let id = first.task.id;
        assert!(recent.task(id).is_none());
        recent.put(first.clone());
        assert!(matches!(recent.created(id), Some(Event::Created { .. })));
        assert_eq!(events(&recent, id, 1), Some(vec![]), "nothing new is also an answer");
        let said = Event::Said { message: Some("hi".into()), progress: None };
        let second = then(&first, said.clone());
        recent.put(second.clone());
        assert_eq!(recent.task(id).expect("known"), second.task);
        assert_eq!((events(&recent, id, 1), events(&recent, id, 0)), (Some(vec![2]), Some(vec![1, 2])));
        let mut last = second;
        for _ in 0..EVENTS_MAX {
            last = then(&last, said.clone());
            recent.put(last.clone());
        }
        assert_eq!(events(&recent, id, 2).expect("known").len(), EVENTS_MAX);
        assert_eq!((events(&recent, id, 1), recent.created(id)), (None, None), "older changes are the store's");
        recent.put(then(&last, Event::Expired));
        assert!(recent.task(id).is_none(), "forgotten is forgotten");
    }

    #[test]
    fn keeps_to_its_bound() {
        let probe = Recent::new(1 << 20);
        probe.put(made(0));
        let size = probe.shard(made(0).task.id).bytes;
        let recent = Recent::new(size * SHARDS * 3);
        for n in 0..=255 {
            recent.put(made(n));
        }
        let kept = (0..=255u8).filter(|n| recent.task(made(*n).task.id).is_some()).count();
        assert!((2 * SHARDS..=3 * SHARDS).contains(&kept), "{kept}");
        assert!(recent.task(made(255).task.id).is_some(), "the newest stay");
        for _ in 0..1_000 {
            recent.put(made(1));
            recent.put(then(&made(1), Event::Expired));
        }
        assert!(recent.shard(made(1).task.id).order.len() < 64, "what is gone leaves no trace");
        let large = then(&made(255), Event::Saved { checkpoint: json!("x".repeat(ENTRY_BYTES_MAX)).into() });
        recent.put(large);
        assert!(recent.task(made(255).task.id).is_none(), "what is too large is left to the store");
    }

    fn appended(write: &Write, bytes: usize) -> Write {
        let output = write.task.output;
        let blocks = Blocks::of(&[json!("x".repeat(bytes)).into()]);
        then(write, Event::Appended { seq: output.next_seq, first_block: output.blocks + 1, blocks })
    }

    #[test]
    fn gives_the_last_chunks_and_leaves_older_ones_to_the_store() {
        let recent = Recent::new(1 << 30);
        let mut last = made(1);
        let id = last.task.id;
        recent.put(last.clone());
        let chunks = |from, bytes, limit| page(&recent, id, 1, Some(from), bytes, limit).map(|(_, chunks)| chunks);
        assert_eq!(chunks(0, 1, 1), Some(vec![]), "nothing yet is also an answer");
        for n in 0..10 {
            last = appended(&last, 640 * 1024);
            recent.put(last.clone());
            assert_eq!(chunks(n, usize::MAX, usize::MAX), Some(vec![n]), "the newest is here");
        }
        let first = (0..10).find(|n| chunks(*n, 1, 1).is_some()).expect("some are here");
        assert!((3..=5).contains(&first), "{first}");
        assert_eq!(chunks(first, usize::MAX, 2), Some(vec![first, first + 1]));
        assert_eq!(chunks(first, 1500 * 1024, 10), Some(vec![first, first + 1]));
        assert_eq!(chunks(8, 1, 10), Some(vec![8]), "at least one");
        assert_eq!(events(&recent, id, 1), Some(vec![]), "chunks are no events");
        let more = recent.page(id, Cursor { after: Version(1), from: Some(Seq(8)), bytes: 1, chunks: 10 }).expect("here");
        assert_eq!((more.more, more.end, more.upto), (true, Seq(10), Version(10)), "cut short, it says where");
        last.dropped_bytes = last.task.output.bytes - 1;
        recent.put(Write { events: vec![], ..last });
        assert_eq!(chunks(9, 1, 1), None, "what is dropped is not here either");
    }

    #[test]
    fn keeps_fewer_chunks_where_others_need_the_room() {
        let recent = Recent::new(SHARDS * 4 * TAIL_BYTES_MIN);
        // In the same shard: the last byte decides.
        let (mut first, mut second) = (made(1), made(17));
        let kept = |id| recent.shard(id).entries[&id].tail_bytes;
        for _ in 0..30 {
            first = appended(&first, TAIL_BYTES_MIN / 10);
            recent.put(first.clone());
        }
        let alone = kept(first.task.id);
        assert!(alone > 2 * TAIL_BYTES_MIN, "with the room to itself it keeps much: {alone}");
        for _ in 0..30 {
            second = appended(&second, TAIL_BYTES_MIN / 10);
            recent.put(second.clone());
        }
        let beside = kept(second.task.id);
        assert!((TAIL_BYTES_MIN / 2..=TAIL_BYTES_MIN).contains(&beside), "beside others it keeps less: {beside}");
        assert_eq!(kept(first.task.id), alone, "and does not push them out");
    }
}
