//! Tasks in memory, for tests, for simulation, and for servers whose tasks may end with them. Several nodes can share one.

mod node;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    ops::{Bound, Range},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use taskwire_core::{
    CallerId, Epoch, Seq, SessionId, TaskId, Timestamp, Version,
    id::ID_RANDOM_BYTES,
    task::{Event, Task, wants},
};

use self::node::{ChangeQueue, Node};
use super::{
    CallKey, Chunk, Cluster, Cursor, Error, OutboxItem, PAGE_EVENTS, Page, Read, Reader, Session, SessionChange, Store, StoredEvent,
    TaskWrite, UnmergedPage, Usage, Written, at_once,
    data_dir::{self, DirLock},
};
use crate::clock::{Clock, SystemClock, random_bytes};

/// For how long it is remembered at least when a node went.
const GONE_REMEMBERED: Duration = Duration::from_secs(3600);

/// What stores in memory share: the tasks of all nodes.
#[derive(Clone)]
pub struct Memory(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
    secret: [u8; 32],
}

impl Default for Memory {
    fn default() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("tasks", &self.lock().tasks.len()).finish_non_exhaustive()
    }
}

impl Memory {
    /// Nothing yet; leases expire by `clock`.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let mut secret = [0; 32];
        random_bytes(&mut secret);
        Self(Arc::new(Shared { state: Mutex::default(), clock, secret }))
    }

    /// A store for the only node that uses this memory at a time.
    #[must_use]
    pub fn open(&self) -> MemoryStore {
        MemoryStore { epoch: self.next_epoch(), memory: self.clone(), node: None, _lock: None }
    }

    /// The same for a process whose commands have their files in `dir`, which no other process may use meanwhile.
    ///
    /// # Errors
    /// When another process has the directory, when it is not this user's alone, or when it has tasks already.
    pub fn open_in(&self, dir: impl AsRef<Path>) -> Result<MemoryStore, Error> {
        let (_, lock) = data_dir::open_without_tasks(dir.as_ref())?;
        Ok(MemoryStore { _lock: Some(lock), ..self.open() })
    }

    /// A store for one of several nodes, which has this name.
    #[must_use]
    pub fn open_node(&self, name: &str) -> MemoryStore {
        let node = Arc::new(Node { name: name.into(), memory: self.clone(), opened_at: self.0.clock.now(), changes: Arc::default() });
        let epoch = node.begin_lease();
        MemoryStore { epoch, memory: self.clone(), node: Some(node), _lock: None }
    }

    /// All tasks, in the order of their ids.
    #[must_use]
    pub fn all_tasks(&self) -> Vec<TaskId> {
        self.lock().tasks.keys().copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No change is left half done by a panic, so a poisoned lock is still good.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_epoch(&self) -> Epoch {
        let mut state = self.lock();
        state.epochs += 1;
        Epoch(state.epochs)
    }
}

#[derive(Default)]
struct State {
    epochs: u64,
    tasks: BTreeMap<TaskId, StoredTask>,
    open: BTreeSet<TaskId>,
    due: BTreeSet<(Timestamp, TaskId)>,
    idempotency: BTreeMap<(CallerId, Arc<str>), TaskId>,
    dedupe: BTreeMap<(CallerId, bool, Arc<str>), TaskId>,
    /// Tasks that the same call may find.
    same_calls: BTreeMap<(CallerId, bool, Arc<str>), BTreeSet<TaskId>>,
    sessions: BTreeMap<SessionId, Session>,
    outboxes: BTreeMap<SessionId, VecDeque<OutboxItem>>,
    nodes: BTreeMap<Epoch, NodeState>,
    /// When the leases of nodes ended that are gone, and how long their commands go on.
    gone: BTreeMap<Epoch, (Timestamp, Duration)>,
}

struct NodeState {
    name: Arc<str>,
    since: Timestamp,
    expires: Timestamp,
    orphan_after: Duration,
    changes: Arc<ChangeQueue>,
}

struct StoredTask {
    task: Task,
    events: BTreeMap<Version, StoredEvent>,
    /// With the bytes of all output up to and with each.
    chunks: VecDeque<(Chunk, u64)>,
    bytes: u64,
}

impl State {
    fn write(&mut self, write: &TaskWrite) -> Written {
        let id = write.task.id;
        let there = self.tasks.get(&id);
        if there.map_or(0, |stored| stored.task.version.0) + 1 != write.first_version.0 {
            return Written::Conflict(there.map(|stored| Box::new(stored.task.clone())));
        }
        let (mut total, due) = there.map_or((0, None), |stored| (stored.task.output.bytes, wants(&stored.task).due));
        if there.is_none() {
            // Whoever took a key has the task, so it is there.
            if let Some(taken) = CallKey::of(&write.task.spec).find_map(|key| self.by_key(key)) {
                return Written::KeyTaken(taken);
            }
            self.take_keys(&write.task);
        }
        if let Some(due) = due {
            self.due.remove(&(due, id));
        }
        if matches!(write.events.last(), Some(Event::Expired)) {
            self.tasks.remove(&id);
            self.open.remove(&id);
            self.release_dedupe(&write.task);
            self.set_same_call(&write.task, false);
            if let Some(key) = &write.task.spec.idempotency_key {
                self.idempotency.remove(&(write.task.spec.caller.clone(), key.clone()));
            }
            return Written::Done;
        }
        let stored = self.tasks.entry(id).or_insert_with(|| StoredTask {
            task: (*write.task).clone(),
            events: BTreeMap::new(),
            chunks: VecDeque::new(),
            bytes: 0,
        });
        for (version, event) in (write.first_version.0..).map(Version).zip(&write.events) {
            if let Event::Appended { seq, first_block, blocks } = event {
                total += blocks.bytes();
                let chunk = Chunk { seq: *seq, version, first_block: *first_block, blocks: blocks.clone() };
                stored.chunks.push_back((chunk, total));
            } else {
                stored.events.insert(version, StoredEvent { version, at: write.at, event: event.clone() });
            }
        }
        while stored.chunks.len() > 1 && stored.chunks.front().is_some_and(|(_, total)| *total <= write.dropped_bytes) {
            stored.chunks.pop_front();
        }
        for stale in &write.stale_checkpoints {
            stored.events.remove(stale);
        }
        stored.task = (*write.task).clone();
        stored.bytes = write.stored_bytes;
        if write.task.ended.is_none() {
            self.open.insert(id);
        } else {
            self.open.remove(&id);
            self.release_dedupe(&write.task);
        }
        self.set_same_call(&write.task, write.task.is_joinable());
        if let Some(due) = wants(&write.task).due {
            self.due.insert((due, id));
        }
        self.add_to_outbox(write);
        Written::Done
    }

    fn by_key(&self, key: CallKey<'_>) -> Option<TaskId> {
        match key {
            CallKey::Idempotency(caller, key) => self.idempotency.get(&(caller.clone(), key.into())).copied(),
            CallKey::Dedupe(caller, hidden, key) => self.dedupe.get(&(caller.clone(), hidden, key.into())).copied(),
        }
    }

    fn take_keys(&mut self, task: &Task) {
        let spec = &task.spec;
        if let Some(key) = &spec.idempotency_key {
            self.idempotency.insert((spec.caller.clone(), key.clone()), task.id);
        }
        if let Some(key) = &spec.fingerprint {
            self.dedupe.insert((spec.caller.clone(), spec.hidden, key.clone()), task.id);
        }
    }

    fn release_dedupe(&mut self, task: &Task) {
        if let Some(key) = &task.spec.fingerprint {
            let key = (task.spec.caller.clone(), task.spec.hidden, key.clone());
            if self.dedupe.get(&key) == Some(&task.id) {
                self.dedupe.remove(&key);
            }
        }
    }

    fn set_same_call(&mut self, task: &Task, is_found: bool) {
        let Some(key) = &task.spec.linger_key else { return };
        let key = (task.spec.caller.clone(), task.spec.hidden, key.clone());
        let same = self.same_calls.entry(key.clone()).or_default();
        if is_found {
            same.insert(task.id)
        } else {
            same.remove(&task.id)
        };
        if same.is_empty() {
            self.same_calls.remove(&key);
        }
    }

    fn add_to_outbox(&mut self, write: &TaskWrite) {
        let Some((session, item)) = write.outbox_item() else { return };
        if !self.sessions.contains_key(session) {
            return;
        }
        let outbox = self.outboxes.entry(session.clone()).or_default();
        let position = outbox.back().map_or(0, |last| last.position) + 1;
        outbox.push_back(OutboxItem { position, ..item });
        while outbox.front().is_some_and(|oldest| oldest.position + write.outbox_max <= position) {
            outbox.pop_front();
        }
    }

    fn change_session(&mut self, change: &SessionChange) {
        match change {
            SessionChange::Begin(session) => drop(self.sessions.insert(session.id.clone(), session.clone())),
            SessionChange::Update { session, before } => {
                if let Some(known) =
                    self.sessions.get_mut(&session.id).filter(|known| before.as_ref().is_none_or(|before| known.data == *before))
                {
                    *known = Session { last_used: session.last_used.max(known.last_used), ..session.clone() };
                }
            }
            SessionChange::End(id) => {
                self.sessions.remove(id);
                self.outboxes.remove(id);
            }
        }
    }

    /// Declares nodes dead, if it is to judge. Who is gone is remembered for a while, and as long as a task is open that began before.
    fn judge(&mut self, judge_at: Option<Timestamp>, now: Timestamp) {
        let Self { nodes, gone, open, .. } = self;
        let has_older = |since: Timestamp| open.first().is_some_and(|id| *id < TaskId::new(since, [0; ID_RANDOM_BYTES]));
        gone.retain(|_, (since, _)| now.since(*since) < GONE_REMEMBERED || has_older(*since));
        let dead = nodes.extract_if(.., |_, node| judge_at.is_some_and(|at| node.expires <= at));
        gone.extend(dead.map(|(epoch, node)| (epoch, (node.expires, node.orphan_after))));
    }

    /// The longest time that commands of any node go on without it.
    fn orphan_after(&self) -> Duration {
        let of_nodes = self.nodes.values().map(|node| node.orphan_after);
        of_nodes.chain(self.gone.values().map(|(_, span)| *span)).max().unwrap_or_default()
    }

    fn tasks_of<'a>(&'a self, caller: &'a CallerId) -> impl DoubleEndedIterator<Item = &'a StoredTask> {
        self.tasks.values().filter(move |stored| stored.task.spec.caller == *caller)
    }
}

/// Tasks in memory; they end with the last store that shares them.
#[derive(Debug)]
pub struct MemoryStore {
    memory: Memory,
    epoch: Epoch,
    node: Option<Arc<Node>>,
    _lock: Option<DirLock>,
}

impl Store for MemoryStore {
    const BLOCKS: bool = false;

    async fn load(&mut self, id: TaskId) -> Result<Option<Task>, Error> {
        Ok(self.memory.lock().tasks.get(&id).map(|stored| stored.task.clone()))
    }

    async fn stored_bytes(&mut self, id: TaskId) -> Result<u64, Error> {
        Ok(self.memory.lock().tasks.get(&id).map_or(0, |stored| stored.bytes))
    }

    async fn commit(&mut self, writes: &[TaskWrite], sessions: &[SessionChange]) -> Result<Vec<Written>, Error> {
        let mut state = self.memory.lock();
        let written = writes.iter().map(|write| state.write(write)).collect();
        sessions.iter().for_each(|change| state.change_session(change));
        Ok(written)
    }

    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn secret(&self) -> [u8; 32] {
        self.memory.0.secret
    }

    fn usage(&self) -> Result<Vec<(CallerId, Usage)>, Error> {
        let mut used: BTreeMap<CallerId, Usage> = BTreeMap::new();
        for stored in self.memory.lock().tasks.values() {
            let usage = used.entry(stored.task.spec.caller.clone()).or_default();
            match stored.task.ended {
                None => usage.open += 1,
                Some(_) => usage.bytes += stored.bytes,
            }
        }
        Ok(used.into_iter().collect())
    }

    fn reader(&self) -> Arc<dyn Reader> {
        Arc::new(self.memory.clone())
    }

    fn cluster(&self) -> Option<Arc<dyn Cluster>> {
        self.node.clone().map(|node| node as Arc<dyn Cluster>)
    }
}

impl Reader for Memory {
    fn task(&self, id: TaskId) -> Read<'_, Option<Arc<Task>>> {
        at_once(Ok(self.lock().tasks.get(&id).map(|stored| Arc::new(stored.task.clone()))))
    }

    fn is_of<'a>(&'a self, caller: &'a CallerId, id: TaskId) -> Read<'a, bool> {
        at_once(Ok(self.lock().tasks.get(&id).is_some_and(|stored| stored.task.spec.caller == *caller)))
    }

    fn event(&self, id: TaskId, version: Version) -> Read<'_, Option<Event>> {
        at_once(Ok(self.lock().tasks.get(&id).and_then(|stored| Some(stored.events.get(&version)?.event.clone()))))
    }

    fn page(&self, id: TaskId, cursor: Cursor) -> Read<'_, Option<Page>> {
        let state = self.lock();
        let Some(stored) = state.tasks.get(&id) else { return at_once(Ok(None)) };
        let (mut chunks, mut more_chunks, mut size) = (Vec::new(), false, 0);
        if let Some(from) = cursor.from {
            let first = stored.chunks.partition_point(|(chunk, _)| chunk.seq < from);
            for (chunk, _) in stored.chunks.range(first..) {
                size += chunk.blocks.as_str().len();
                if (size > cursor.max_bytes && !chunks.is_empty()) || chunks.len() >= cursor.max_chunks {
                    more_chunks = true;
                    break;
                }
                chunks.push(chunk.clone());
            }
        }
        let rest = stored.events.range((Bound::Excluded(cursor.after), Bound::Unbounded));
        let mut events: Vec<StoredEvent> = rest.take(PAGE_EVENTS + 1).map(|(_, event)| event.clone()).collect();
        let more_events = events.len() > PAGE_EVENTS;
        events.truncate(PAGE_EVENTS);
        let (version, next_seq, ended) = (stored.task.version, stored.task.output.next_seq, stored.task.ended.is_some());
        at_once(Ok(Some(UnmergedPage { events, more_events, chunks, more_chunks, version, next_seq, ended }.merge(cursor.after))))
    }

    fn chunk_range(&self, id: TaskId) -> Read<'_, Range<Seq>> {
        let state = self.lock();
        let range = |stored: &StoredTask| stored.chunks.front().map_or(Seq(0), |(first, _)| first.seq)..stored.task.output.next_seq;
        at_once(Ok(state.tasks.get(&id).map_or(Seq(0)..Seq(0), range)))
    }

    fn owner(&self, id: TaskId) -> Read<'_, Option<CallerId>> {
        at_once(Ok(self.lock().tasks.get(&id).map(|stored| stored.task.spec.caller.clone())))
    }

    fn due_tasks(&self, now: Timestamp, of: Option<Epoch>, limit: usize) -> Read<'_, Vec<TaskId>> {
        let state = self.lock();
        let task = |id: &TaskId| state.tasks.get(id).map(|stored| &stored.task);
        let is_ours = |id: &TaskId| of.is_none() || task(id).is_some_and(|task| task.ended.is_some() || Some(task.epoch) == of);
        let due = state.due.iter().take_while(|(due, _)| *due <= now).map(|(_, id)| *id);
        at_once(Ok(due.filter(is_ours).take(limit).collect()))
    }

    fn next_due(&self, after: Timestamp) -> Read<'_, Option<Timestamp>> {
        at_once(Ok(self.lock().due.iter().map(|(due, _)| *due).find(|due| *due > after)))
    }

    fn open_tasks(&self, after: Option<TaskId>, limit: usize) -> Read<'_, Vec<TaskId>> {
        let state = self.lock();
        at_once(Ok(state.open.iter().filter(|id| after.is_none_or(|after| **id > after)).take(limit).copied().collect()))
    }

    fn tasks_of<'a>(&'a self, caller: &'a CallerId, before: Option<TaskId>, limit: usize) -> Read<'a, Vec<TaskId>> {
        let state = self.lock();
        let ids = state.tasks_of(caller).rev().map(|stored| stored.task.id);
        at_once(Ok(ids.filter(|id| before.is_none_or(|before| *id < before)).take(limit).collect()))
    }

    fn latest_tasks(&self, open: bool, before: Option<TaskId>, limit: usize) -> Read<'_, Vec<TaskId>> {
        let state = self.lock();
        let range: (Bound<TaskId>, Bound<TaskId>) = (Bound::Unbounded, before.map_or(Bound::Unbounded, Bound::Excluded));
        let latest = match open {
            true => state.open.range(range).rev().take(limit).copied().collect(),
            false => state.tasks.range(range).rev().take(limit).map(|(id, _)| *id).collect(),
        };
        at_once(Ok(latest))
    }

    fn by_key<'a>(&'a self, key: CallKey<'a>) -> Read<'a, Option<TaskId>> {
        at_once(Ok(self.lock().by_key(key)))
    }

    fn same_calls<'a>(&'a self, caller: &'a CallerId, hidden: bool, key: &'a str, limit: usize) -> Read<'a, Vec<Arc<Task>>> {
        let state = self.lock();
        let same = state.same_calls.get(&(caller.clone(), hidden, key.into())).into_iter().flatten();
        at_once(Ok(same.filter_map(|id| Some(Arc::new(state.tasks.get(id)?.task.clone()))).take(limit).collect()))
    }

    fn session<'a>(&'a self, id: &'a SessionId) -> Read<'a, Option<Session>> {
        at_once(Ok(self.lock().sessions.get(id).cloned()))
    }

    fn outbox<'a>(&'a self, id: &'a SessionId, after: u64, limit: usize) -> Read<'a, Vec<OutboxItem>> {
        let state = self.lock();
        let items = state.outboxes.get(id).into_iter().flatten();
        at_once(Ok(items.filter(|item| item.position > after).take(limit).copied().collect()))
    }

    fn outbox_end<'a>(&'a self, id: &'a SessionId) -> Read<'a, u64> {
        at_once(Ok(self.lock().outboxes.get(id).and_then(VecDeque::back).map_or(0, |last| last.position)))
    }

    fn idle_sessions<'a>(&'a self, caller: &'a CallerId, before: Timestamp, keep: usize) -> Read<'a, Vec<SessionId>> {
        let state = self.lock();
        let mut idle: BTreeSet<SessionId> =
            state.sessions.values().filter(|session| session.last_used < before).take(64).map(|session| session.id.clone()).collect();
        let mut own: Vec<&Session> = state.sessions.values().filter(|session| session.caller == *caller).collect();
        own.sort_by_key(|session| (std::cmp::Reverse(session.last_used), session.id.clone()));
        idle.extend(own.into_iter().skip(keep).map(|session| session.id.clone()));
        at_once(Ok(idle.into_iter().collect()))
    }
}
