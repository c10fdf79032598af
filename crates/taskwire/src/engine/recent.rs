//! The last change of each task that changed lately, in memory: what most readers want, without asking the store.
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

use crate::store::{Logged, Write};

/// Readers and the writer meet in one of these at a time.
const SHARDS: usize = 16;
/// A change that is larger than this is left to the store.
pub(super) const ENTRY_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Recent {
    shards: [Mutex<Shard>; SHARDS],
    /// Bytes that one shard may keep.
    shard_bytes: usize,
}

#[derive(Debug, Default)]
struct Shard {
    writes: HashMap<TaskId, Entry>,
    /// In the order in which they came; the oldest goes first. An entry that is gone leaves its place here for a while.
    order: VecDeque<(TaskId, u64)>,
    bytes: usize,
    came: u64,
}

#[derive(Debug)]
struct Entry {
    write: Arc<Write>,
    bytes: usize,
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
        let size = weight(&write);
        let mut shard = self.shard(id);
        let gone = matches!(write.events.last(), Some(Event::Expired));
        if gone || size > ENTRY_BYTES_MAX {
            shard.remove(id);
            return;
        }
        shard.insert(id, Arc::new(write), size);
        while shard.bytes > self.shard_bytes
            && let Some((oldest, came)) = shard.order.pop_front()
        {
            if shard.writes.get(&oldest).is_some_and(|entry| entry.came == came) {
                shard.remove(oldest);
            }
        }
    }

    fn get(&self, id: TaskId) -> Option<Arc<Write>> {
        self.shard(id).writes.get(&id).map(|entry| entry.write.clone())
    }

    /// The task as of its last change.
    pub(super) fn task(&self, id: TaskId) -> Option<Arc<Task>> {
        self.get(id).map(|write| write.task.clone())
    }

    /// The event that made the task, if that was its last change.
    pub(super) fn created(&self, id: TaskId) -> Option<Event> {
        self.get(id)?.events.first().filter(|event| matches!(event, Event::Created { .. })).cloned()
    }

    /// Events after `after`, without chunks, if none of them is older than the last change.
    pub(super) fn events(&self, id: TaskId, after: Version) -> Option<Vec<Logged>> {
        let write = self.get(id)?;
        if write.first > after.next() {
            return None;
        }
        let numbered = (write.first.0..).map(Version).zip(&write.events);
        let wanted = numbered.filter(|(version, event)| *version > after && !matches!(event, Event::Appended { .. }));
        Some(wanted.map(|(version, event)| Logged { version, at: write.at, event: event.clone() }).collect())
    }
}

impl Shard {
    fn insert(&mut self, id: TaskId, write: Arc<Write>, bytes: usize) {
        self.bytes += bytes;
        if let Some(entry) = self.writes.get_mut(&id) {
            self.bytes -= entry.bytes;
            (entry.write, entry.bytes) = (write, bytes);
            return;
        }
        self.came += 1;
        self.order.push_back((id, self.came));
        self.writes.insert(id, Entry { write, bytes, came: self.came });
    }

    fn remove(&mut self, id: TaskId) {
        if let Some(entry) = self.writes.remove(&id) {
            self.bytes -= entry.bytes;
        }
        if self.order.len() > 2 * self.writes.len() + 16 {
            let writes = &self.writes;
            self.order.retain(|(id, came)| writes.get(id).is_some_and(|entry| entry.came == *came));
        }
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

/// About how many bytes a change takes: its own and those it points to.
fn weight(write: &Write) -> usize {
    let events: usize = write
        .events
        .iter()
        .map(|event| match event {
            Event::Created { request, carried, .. } => {
                request.as_str().len() + carried.as_ref().map_or(0, |carried| carried.as_str().len())
            }
            Event::Appended { blocks, .. } => blocks.iter().map(|block| block.as_str().len() + 64).sum(),
            Event::Saved { checkpoint } => checkpoint.as_str().len(),
            Event::Said { message, .. } => message.as_ref().map_or(0, |message| message.len()),
            // The rest is shared with the task.
            _ => 0,
        })
        .sum();
    size_of::<Write>() + write.events.len() * size_of::<Event>() + task_weight(&write.task) + events
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use taskwire_core::{
        CallerId, Epoch, Timestamp,
        id::ID_RANDOM_BYTES,
        task::{Accepts, OnInterrupt, create, evolve},
    };

    use super::*;

    fn spec() -> Arc<Spec> {
        Arc::new(Spec {
            caller: CallerId::new("me"),
            tool: "t".into(),
            on_interrupt: OnInterrupt::Fail,
            attempts_max: 1,
            retention_ms: None,
            timeout_ms: None,
            input_timeout_ms: None,
            idempotency_key: None,
            accepts: Accepts::default(),
            hidden: false,
        })
    }

    fn made(n: u8) -> Write {
        let at = Timestamp::from_millis(i64::from(n));
        let spec = spec();
        let task = create(TaskId::new(at, [n; ID_RANDOM_BYTES]), &spec, Epoch(1), 0, at);
        let created = Event::Created { spec, request: json!({ "n": n }).into(), epoch: Epoch(1), carried: None, spent_ms: 0 };
        Write { task: Arc::new(task), first: Version(1), at, events: vec![created], stale_checkpoint: None }
    }

    fn then(write: &Write, event: Event) -> Write {
        let mut task = (*write.task).clone();
        evolve(&mut task, &event, write.at);
        Write { first: task.version, task: Arc::new(task), at: write.at, events: vec![event], stale_checkpoint: None }
    }

    #[test]
    fn gives_the_last_change_and_nothing_older() {
        let recent = Recent::new(1 << 20);
        let first = made(1);
        let id = first.task.id;
        assert!(recent.task(id).is_none());
        recent.put(first.clone());
        assert!(matches!(recent.created(id), Some(Event::Created { .. })));
        assert_eq!(recent.events(id, Version(1)).expect("known").len(), 0, "nothing new is also an answer");
        let said = Event::Said { message: Some("hi".into()), progress: None };
        let second = then(&first, said.clone());
        recent.put(second.clone());
        assert_eq!(recent.task(id).expect("known"), second.task);
        assert_eq!(recent.created(id), None);
        assert_eq!(recent.events(id, Version(1)).expect("known")[0].event, said);
        assert_eq!(recent.events(id, Version(0)), None, "older changes are the store's");
        recent.put(then(&second, Event::Expired));
        assert!(recent.task(id).is_none(), "forgotten is forgotten");
    }

    #[test]
    fn keeps_to_its_bound() {
        let size = weight(&made(0));
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
}
