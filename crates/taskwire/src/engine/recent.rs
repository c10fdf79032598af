//! A cache of recently changed tasks with their last events and chunks: most readers want nothing else.
//!
//! Only committed changes get in, so a crash cannot undo what a reader saw. The cache has a bound in bytes; anything else is
//! read from the store.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use taskwire_core::{
    TaskId, Version,
    task::{Event, Outcome, Spec, Task},
};

use crate::store::{Chunk, Cursor, PAGE_EVENTS, Page, StoredEvent, TaskWrite, UnmergedPage};

/// Parts of the cache, each with a lock of its own.
const SHARDS: usize = 16;
/// A task that is larger than this, its last events included, is not cached.
pub(super) const CACHED_TASK_BYTES_MAX: usize = 64 * 1024;
/// Events of one task.
const EVENTS_MAX: usize = 16;
/// Bytes of the cached chunks of one task: a reader that is further behind asks the store.
const CHUNKS_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The same where other tasks fill the shard: still enough for a reader that keeps up.
const CHUNKS_BYTES_MIN: usize = 512 * 1024;

#[derive(Debug)]
pub(super) struct RecentTasks {
    shards: [Mutex<Shard>; SHARDS],
    /// Bytes that one shard may keep.
    shard_bytes: usize,
}

#[derive(Debug, Default)]
struct Shard {
    tasks: HashMap<TaskId, CachedTask>,
    /// In the order of insertion; the oldest is removed first. A task that was removed otherwise stays listed for a while.
    order: VecDeque<(TaskId, u64)>,
    bytes: usize,
    insertions: u64,
}

#[derive(Debug)]
struct CachedTask {
    task: Arc<Task>,
    /// All events after `events_after`, without chunks.
    events: VecDeque<StoredEvent>,
    events_after: Version,
    events_bytes: usize,
    /// The last chunks, without a gap.
    chunks: VecDeque<Chunk>,
    chunks_bytes: usize,
    /// Bytes of output in `chunks`.
    output_bytes: u64,
    insertion: u64,
}

impl RecentTasks {
    pub(super) fn new(bytes: usize) -> Self {
        Self { shards: Default::default(), shard_bytes: bytes / SHARDS }
    }

    fn shard(&self, id: TaskId) -> MutexGuard<'_, Shard> {
        // The last byte is random.
        let last = id.as_bytes()[id.as_bytes().len() - 1];
        self.shards[usize::from(last) % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a change that has just become durable.
    pub(super) fn put(&self, write: TaskWrite) {
        let id = write.task.id;
        let mut shard = self.shard(id);
        let gone = matches!(write.events.last(), Some(Event::Expired));
        let shard_bytes = shard.bytes;
        let (before, after) = {
            let entry = shard.get_or_insert(id, &write);
            let before = entry.bytes();
            // Only the bytes of other tasks count: else a task with many chunks would limit itself.
            let others = shard_bytes.saturating_sub(before);
            entry.add(write, if others > self.shard_bytes / 2 { CHUNKS_BYTES_MIN } else { CHUNKS_BYTES_MAX });
            (before, entry.bytes())
        };
        shard.bytes = shard.bytes + after - before;
        if gone || shard.tasks.get(&id).is_some_and(|entry| entry.bytes() - entry.chunks_bytes > CACHED_TASK_BYTES_MAX) {
            shard.remove(id);
        }
        while shard.bytes > self.shard_bytes
            && let Some((oldest, insertion)) = shard.order.pop_front()
        {
            if shard.tasks.get(&oldest).is_some_and(|entry| entry.insertion == insertion) {
                shard.remove(oldest);
            }
        }
    }

    /// The task as of its last change.
    pub(super) fn task(&self, id: TaskId) -> Option<Arc<Task>> {
        self.shard(id).tasks.get(&id).map(|entry| entry.task.clone())
    }

    /// The event that made the task, if it is here.
    pub(super) fn created(&self, id: TaskId) -> Option<Event> {
        let shard = self.shard(id);
        let first = &shard.tasks.get(&id)?.events.front()?.event;
        matches!(first, Event::Created { .. }).then(|| first.clone())
    }

    /// What follows `cursor` in a task's log, if all of it is cached.
    pub(super) fn page(&self, id: TaskId, cursor: Cursor) -> Option<Page> {
        let shard = self.shard(id);
        let entry = shard.tasks.get(&id)?;
        let end = entry.task.output.next_seq;
        let (chunks, more_chunks) = match cursor.from.filter(|from| *from < end) {
            None => (Vec::new(), false),
            Some(from) => {
                let behind = from.0.checked_sub(entry.chunks.front()?.seq.0)?;
                let rest = entry.chunks.range(usize::try_from(behind).ok()?..);
                let (all, mut size) = (rest.len(), 0);
                let fits = |chunk: &&Chunk| {
                    let first = size == 0;
                    size += chunk.blocks.as_str().len();
                    first || size <= cursor.max_bytes
                };
                let chunks: Vec<Chunk> = rest.take(cursor.max_chunks).take_while(fits).cloned().collect();
                let more = chunks.len() < all;
                (chunks, more)
            }
        };
        let first = entry.events.partition_point(|logged| logged.version <= cursor.after);
        if entry.events_after > cursor.after {
            return None;
        }
        let rest = entry.events.range(first..);
        let more_events = rest.len() > PAGE_EVENTS;
        let events = rest.take(PAGE_EVENTS).cloned().collect();
        let (version, ended) = (entry.task.version, entry.task.ended.is_some());
        drop(shard);
        Some(UnmergedPage { events, more_events, chunks, more_chunks, version, next_seq: end, ended }.merge(cursor.after))
    }
}

impl Shard {
    /// The cached task, made from `write` if there is none.
    fn get_or_insert(&mut self, id: TaskId, write: &TaskWrite) -> &mut CachedTask {
        self.tasks.entry(id).or_insert_with(|| {
            self.insertions += 1;
            self.order.push_back((id, self.insertions));
            let events_after = Version(write.first_version.0 - 1);
            let entry = CachedTask {
                task: write.task.clone(),
                events: VecDeque::with_capacity(write.events.len()),
                events_after,
                events_bytes: 0,
                chunks: VecDeque::new(),
                chunks_bytes: 0,
                output_bytes: 0,
                insertion: self.insertions,
            };
            self.bytes += entry.bytes();
            entry
        })
    }

    fn remove(&mut self, id: TaskId) {
        if let Some(entry) = self.tasks.remove(&id) {
            self.bytes -= entry.bytes();
        }
        if self.order.len() > 2 * self.tasks.len() + 16 {
            let entries = &self.tasks;
            self.order.retain(|(id, insertion)| entries.get(id).is_some_and(|entry| entry.insertion == *insertion));
        }
    }
}

impl CachedTask {
    fn add(&mut self, write: TaskWrite, chunks_max: usize) {
        self.task = write.task;
        for (version, event) in (write.first_version.0..).map(Version).zip(write.events) {
            if let Event::Appended { seq, first_block, blocks } = event {
                self.chunks_bytes += chunk_weight(&blocks);
                self.output_bytes += blocks.bytes();
                self.chunks.push_back(Chunk { seq, version, first_block, blocks });
            } else {
                self.events_bytes += event_weight(&event);
                self.events.push_back(StoredEvent { version, at: write.at, event });
            }
        }
        // The last change always stays whole, so that readers that waited for it need not ask the store.
        while self.events.len() > EVENTS_MAX
            && let Some(old) = self.events.pop_front_if(|old| old.version < write.first_version)
        {
            self.events_after = old.version;
            self.events_bytes -= event_weight(&old.event);
        }
        while self.chunks_bytes > chunks_max || self.task.output.bytes - self.output_bytes < write.dropped_bytes {
            let Some(old) = self.chunks.pop_front() else { break };
            self.output_bytes -= old.blocks.bytes();
            self.chunks_bytes -= chunk_weight(&old.blocks);
        }
    }

    /// About how many bytes it takes, with what it points to.
    fn bytes(&self) -> usize {
        size_of::<Self>() + task_weight(&self.task) + self.events_bytes + self.chunks_bytes
    }
}

/// About how many bytes a task takes, with what it points to.
pub(super) fn task_weight(task: &Task) -> usize {
    let outcome = match &task.outcome {
        Some(Outcome::Completed { result, .. }) => result.as_str().len(),
        Some(Outcome::Failed(error)) => error.message.len() + error.data.as_ref().map_or(0, |data| data.as_str().len()),
        Some(Outcome::Cancelled { .. }) | None => 0,
    };
    let questions = usize::try_from(task.question_bytes()).unwrap_or(usize::MAX) + task.questions.len() * 128;
    size_of::<Task>() + size_of::<Spec>() + 256 + outcome + questions
}

/// About how many bytes an event takes: its own and those it points to.
fn event_weight(event: &Event) -> usize {
    let beyond = match event {
        Event::Created { arguments: request, continuation: carried, .. } => {
            request.as_str().len() + carried.as_ref().map_or(0, |carried| carried.as_str().len())
        }
        Event::Saved { checkpoint } => checkpoint.as_str().len(),
        Event::StatusReported { message, .. } => message.as_ref().map_or(0, |message| message.len()),
        // The rest is shared with the task.
        _ => 0,
    };
    size_of::<StoredEvent>() + beyond
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
    use crate::store::LogItem;

    fn spec() -> Arc<Spec> {
        Arc::new(Spec::new(CallerId::new("me"), "t"))
    }

    /// What the cache has after a cursor: versions of events, numbers of chunks.
    fn page(recent: &RecentTasks, id: TaskId, after: u64, from: Option<u64>, bytes: usize, chunks: usize) -> Option<(Vec<u64>, Vec<u64>)> {
        let page = recent.page(id, Cursor { after: Version(after), from: from.map(Seq), max_bytes: bytes, max_chunks: chunks })?;
        let (mut events, mut seqs) = (Vec::new(), Vec::new());
        for entry in page.items {
            match entry {
                LogItem::Event(logged) => events.push(logged.version.0),
                LogItem::Chunk(chunk) => seqs.push(chunk.seq.0),
            }
        }
        Some((events, seqs))
    }

    fn events(recent: &RecentTasks, id: TaskId, after: u64) -> Option<Vec<u64>> {
        page(recent, id, after, None, 0, 0).map(|(events, _)| events)
    }

    fn made(n: u8) -> TaskWrite {
        let at = Timestamp::from_millis(i64::from(n));
        let created =
            Event::Created { spec: spec(), arguments: json!({ "n": n }).into(), epoch: Epoch(1), continuation: None, spent_ms: 0 };
        let task = create(TaskId::new(at, [n; ID_RANDOM_BYTES]), &created, at);
        TaskWrite {
            task: Arc::new(task),
            first_version: Version(1),
            at,
            events: vec![created],
            stale_checkpoints: vec![],
            dropped_bytes: 0,
            outbox_max: 1,
            stored_bytes: 0,
        }
    }

    fn then(write: &TaskWrite, event: Event) -> TaskWrite {
        let mut task = (*write.task).clone();
        evolve(&mut task, &event, write.at);
        TaskWrite {
            first_version: task.version,
            task: Arc::new(task),
            at: write.at,
            events: vec![event],
            stale_checkpoints: vec![],
            dropped_bytes: 0,
            outbox_max: 1,
            stored_bytes: 0,
        }
    }

    #[test]
    fn gives_what_changed_lately() {
        let recent = RecentTasks::new(1 << 20);
        let first = made(1);
        let id = first.task.id;
        assert!(recent.task(id).is_none());
        recent.put(first.clone());
        assert!(matches!(recent.created(id), Some(Event::Created { .. })));
        assert_eq!(events(&recent, id, 1), Some(vec![]), "nothing new is also an answer");
        let said = Event::StatusReported { message: Some("hi".into()), progress: None };
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
        let probe = RecentTasks::new(1 << 20);
        probe.put(made(0));
        let size = probe.shard(made(0).task.id).bytes;
        let recent = RecentTasks::new(size * SHARDS * 3);
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
        let large = then(&made(255), Event::Saved { checkpoint: json!("x".repeat(CACHED_TASK_BYTES_MAX)).into() });
        recent.put(large);
        assert!(recent.task(made(255).task.id).is_none(), "what is too large is left to the store");
    }

    fn appended(write: &TaskWrite, bytes: usize) -> TaskWrite {
        let output = write.task.output;
        let blocks = Blocks::of(&[json!("x".repeat(bytes)).into()]);
        then(write, Event::Appended { seq: output.next_seq, first_block: output.blocks + 1, blocks })
    }

    #[test]
    fn gives_the_last_chunks_and_leaves_older_ones_to_the_store() {
        let recent = RecentTasks::new(1 << 30);
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
        let more = recent.page(id, Cursor { after: Version(1), from: Some(Seq(8)), max_bytes: 1, max_chunks: 10 }).expect("here");
        assert_eq!((more.more, more.next_seq, more.upto), (true, Seq(10), Version(10)), "cut short, it says where");
        last.dropped_bytes = last.task.output.bytes - 1;
        recent.put(TaskWrite { events: vec![], ..last });
        assert_eq!(chunks(9, 1, 1), None, "what is dropped is not here either");
    }

    #[test]
    fn keeps_fewer_chunks_where_others_need_the_room() {
        let recent = RecentTasks::new(SHARDS * 4 * CHUNKS_BYTES_MIN);
        // In the same shard: the last byte decides.
        let (mut first, mut second) = (made(1), made(17));
        let kept = |id| recent.shard(id).tasks[&id].chunks_bytes;
        for _ in 0..30 {
            first = appended(&first, CHUNKS_BYTES_MIN / 10);
            recent.put(first.clone());
        }
        let alone = kept(first.task.id);
        assert!(alone > 2 * CHUNKS_BYTES_MIN, "with the room to itself it keeps much: {alone}");
        for _ in 0..30 {
            second = appended(&second, CHUNKS_BYTES_MIN / 10);
            recent.put(second.clone());
        }
        let beside = kept(second.task.id);
        assert!((CHUNKS_BYTES_MIN / 2..=CHUNKS_BYTES_MIN).contains(&beside), "beside others it keeps less: {beside}");
        assert_eq!(kept(first.task.id), alone, "and does not push them out");
    }
}
