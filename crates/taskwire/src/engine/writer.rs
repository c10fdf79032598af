//! The single writer: the only thread that changes tasks.
//!
//! It takes all queued requests, decides them, commits once, and only then starts or stops work, sends receipts and wakes
//! readers (invariant I3). A failed commit ends it: it must not acknowledge what might not be stored.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::{Arc, Weak},
};

use taskwire_core::{
    CallerId, Epoch, Limits, Payload, SessionId, TaskId, Timestamp, Version,
    task::{Command, Event, NewTask, Outcome, Reject, RpcError, Task, create, decide, evolve, wants},
    wire::code,
};
use tokio::sync::{
    mpsc::{self, error::TryRecvError},
    oneshot,
};

use super::{
    Engine, Error, Failure, Inner, Receipt, TaskRequest, WriterRequest, operator_log,
    quota::Quota,
    recent::{CACHED_TASK_BYTES_MAX, task_weight},
};
use crate::{
    store::{self, SessionChange, Store, TaskWrite, Usage},
    wakeup::ChangeKind,
};

/// Commands that share one commit at most.
const BATCH_MAX: usize = 512;
/// Tasks kept in memory by the writer; any other is loaded when needed.
const CACHE_MAX: usize = 16_384;

pub(super) fn spawn(store: impl Store, inner: &Arc<Inner>, commands: mpsc::Receiver<WriterRequest>) -> Result<(), store::Error> {
    let (quota, epoch) = (Quota::new(store.reader().usage()?), store.epoch());
    let writer = Writer { store, engine: Arc::downgrade(inner), cache: HashMap::new(), quota, epoch, may_reclaim: true };
    std::thread::Builder::new()
        .name("taskwire-writer".to_owned())
        .spawn(move || writer.run(commands))
        .map(drop)
        .map_err(|source| store::Error::File { path: "a thread for the writer".to_owned(), source })
}

struct Writer<S> {
    store: S,
    engine: Weak<Inner>,
    /// Tasks as of the last decision. Ahead of the store only within a batch.
    cache: HashMap<TaskId, Arc<Task>>,
    quota: Quota,
    epoch: Epoch,
    /// Whether the store may have unused space to give back.
    may_reclaim: bool,
}

/// Marks the engine as failed when the writer ends for any reason, a panic included.
struct FailOnDrop(Weak<Inner>);

impl Drop for FailOnDrop {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            let reason: Arc<str> = "the writer has ended".into();
            inner.fail(Failure { reason: reason.clone(), public_reason: reason });
        }
    }
}

type Decision = Result<Receipt, Error>;

/// What one batch writes, and who waits for it.
#[derive(Default)]
struct Batch {
    writes: Vec<TaskWrite>,
    receipts: Vec<(oneshot::Sender<Decision>, Decision)>,
    sessions: Vec<SessionChange>,
    session_receipts: Vec<oneshot::Sender<()>>,
    /// Idempotency keys that this batch uses for the first time.
    keys: HashMap<(CallerId, Arc<str>), (TaskId, Payload)>,
    /// Tasks that this batch forgets.
    expired: HashSet<TaskId>,
}

impl Batch {
    /// The last write of a task in this batch.
    fn last_write(&self, id: TaskId) -> Option<&TaskWrite> {
        self.writes.iter().rev().find(|write| write.task.id == id)
    }
}

impl<S: Store> Writer<S> {
    fn run(mut self, mut commands: mpsc::Receiver<WriterRequest>) {
        let _alarm = FailOnDrop(self.engine.clone());
        while let Some(first) = self.next(&mut commands) {
            let Some(inner) = self.engine.upgrade() else { return };
            let engine = Engine(inner);
            if let Err(error) = self.commit_batch(&engine, first, &mut commands) {
                // Closing the queue tells every waiter that nothing more is stored.
                tracing::error!(%error, "the store failed: no more tasks are accepted");
                return;
            }
        }
    }

    /// The next request. While there is none, the store gives unused space back, step by step.
    fn next(&mut self, commands: &mut mpsc::Receiver<WriterRequest>) -> Option<WriterRequest> {
        while self.may_reclaim {
            match commands.try_recv() {
                Ok(request) => return Some(request),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => match self.store.reclaim() {
                    Ok(more) => self.may_reclaim = more,
                    Err(error) => {
                        tracing::error!(%error, "the store failed while it gave space back: no more tasks are accepted");
                        if let Some(inner) = self.engine.upgrade() {
                            inner.fail(Failure::from(&error));
                        }
                        return None;
                    }
                },
            }
        }
        commands.blocking_recv()
    }

    fn commit_batch(
        &mut self,
        engine: &Engine,
        first: WriterRequest,
        commands: &mut mpsc::Receiver<WriterRequest>,
    ) -> Result<(), store::Error> {
        let now = engine.0.clock.now();
        let free = if engine.limits().disk_reserve_bytes > 0 { self.store.free_bytes() } else { None };
        self.quota.begin_batch(free, engine.limits());
        let mut batch = Batch::default();
        let mut next = Some(first);
        while let Some(request) = next {
            let envelope = match request {
                WriterRequest::Task(envelope) => envelope,
                WriterRequest::Session(change, receipt) => {
                    batch.sessions.push(change);
                    batch.session_receipts.push(receipt);
                    next = if batch.sessions.len() < BATCH_MAX { commands.try_recv().ok() } else { None };
                    continue;
                }
            };
            // A failed read concerns this command alone; only a failed commit ends the writer.
            let result = self.decide(engine, &envelope, now, &mut batch).unwrap_or_else(|error| Err(error.into()));
            batch.receipts.push((envelope.receipt, result));
            next = if batch.receipts.len() < BATCH_MAX { commands.try_recv().ok() } else { None };
        }
        if !(batch.writes.is_empty() && batch.sessions.is_empty())
            && let Err(error) = self.store.commit(&batch.writes, &batch.sessions)
        {
            // Before the receipts are dropped, so that whoever waits for one learns the reason.
            engine.0.fail(Failure::from(&error));
            return Err(error);
        }
        // The batch is durable now; nothing below may move above the commit.
        self.may_reclaim |= !batch.expired.is_empty();
        let changed: Vec<Arc<Task>> = batch.writes.iter().map(|write| write.task.clone()).collect();
        let outboxes: Vec<SessionId> = batch.writes.iter().filter_map(|write| Some(write.outbox_item()?.0.clone())).collect();
        for write in &batch.writes {
            if let (Some(outcome), Some((at, version))) = (&write.task.outcome, write.task.ended)
                && version >= write.first_version
            {
                operator_log::call_ended(&write.task.spec, Some(write.task.id), at.since(write.task.began_at()), outcome);
            }
        }
        let changes: Vec<(TaskId, ChangeKind)> = batch.writes.iter().map(|write| (write.task.id, change_kind(&write.events))).collect();
        for write in merge_by_task(batch.writes) {
            engine.0.recent.put(write);
        }
        // Runs start before receipts go out: once a caller knows of a task, the engine is not idle.
        for task in &changed {
            engine.0.runs.reconcile(engine, task);
            if let Some(due) = wants(task).due {
                engine.0.timers.arm(due);
            }
        }
        for (receipt, result) in batch.receipts {
            let _ = receipt.send(result);
        }
        for receipt in batch.session_receipts {
            let _ = receipt.send(());
        }
        engine.0.task_wakeups.wake(changes.into_iter());
        engine.0.session_wakeups.wake(outboxes.into_iter().map(|id| (id, ChangeKind::Task)));
        self.trim(&changed);
        Ok(())
    }

    fn decide(&mut self, engine: &Engine, envelope: &TaskRequest, now: Timestamp, batch: &mut Batch) -> Result<Decision, store::Error> {
        let TaskRequest { id, by, command, .. } = envelope;
        if let Command::Create(new) = command
            && let Some(earlier) = self.task_under_key(engine, new, batch)?
        {
            return Ok(earlier);
        }
        let before = match command {
            Command::Create(_) => None,
            _ => match self.cache.get(id) {
                Some(task) => Some(task.clone()),
                // A task that is not cached may have changed in this batch.
                None => match batch.last_write(*id) {
                    Some(write) => Some(write.task.clone()),
                    None => self.load(*id)?,
                },
            },
        };
        let limits = engine.limits();
        let mut events = match decide(before.as_deref(), by, command, now, limits) {
            Ok(events) => events,
            Err(reject) => return Ok(Err(reject.into())),
        };
        if events.is_empty() {
            let task = before.expect("only a task that exists can stay as it is");
            return Ok(Ok(Receipt { task, changed: false }));
        }
        let mut task = apply(*id, before.as_deref(), &events, now);
        let was = match before.as_deref() {
            None => Usage::default(),
            Some(before) if before.ended.is_some() => Usage { open: 0, bytes: self.ended_bytes(*id, batch)? },
            Some(before) => self.usage_of(before, limits),
        };
        let forgotten = matches!(events.last(), Some(Event::Expired));
        let mut is = if forgotten { Usage::default() } else { self.usage_of(&task, limits) };
        if let Err(reject) = self.quota.admit(&task.spec.caller, command, was, is, limits) {
            let Command::Finish { .. } = command else { return Ok(Err(reject.into())) };
            // The work has ended, so the task must end too: it fails with a short error.
            let failed = Outcome::Failed(RpcError { code: code::UNAVAILABLE, message: reject.to_string(), data: None });
            events = match decide(before.as_deref(), by, &Command::finish(failed), now, limits) {
                Ok(events) => events,
                Err(reject) => return Ok(Err(reject.into())),
            };
            task = apply(*id, before.as_deref(), &events, now);
            is = self.usage_of(&task, limits);
        }
        let task = Arc::new(task);
        self.quota.record_change(&task.spec.caller, was, is);
        self.keep(&task);
        if forgotten {
            batch.expired.insert(*id);
        }
        if let (Command::Create(new), Some(key)) = (command, &task.spec.idempotency_key) {
            batch.keys.insert((task.spec.caller.clone(), key.clone()), (*id, new.arguments.clone()));
        }
        batch.writes.push(TaskWrite {
            task: task.clone(),
            first_version: before.as_ref().map_or(Version(1), |before| before.version.next()),
            at: now,
            stale_checkpoint: before
                .as_ref()
                .and_then(|before| before.checkpoint_version)
                .filter(|stale| Some(*stale) != task.checkpoint_version),
            dropped_bytes: task.dropped_bytes(limits),
            outbox_max: limits.changes_per_session,
            stored_bytes: is.bytes,
            events,
        });
        Ok(Ok(Receipt { task, changed: true }))
    }

    fn load(&mut self, id: TaskId) -> Result<Option<Arc<Task>>, store::Error> {
        if let Some(task) = self.cache.get(&id) {
            return Ok(Some(task.clone()));
        }
        let task = self.store.load(id)?.map(Arc::new);
        if let Some(task) = task.as_ref().filter(|task| task.ended.is_none()) {
            self.keep(task);
        }
        Ok(task)
    }

    /// Caches a task for the next command, unless it is large.
    fn keep(&mut self, task: &Arc<Task>) {
        if task_weight(task) <= CACHED_TASK_BYTES_MAX {
            self.cache.insert(task.id, task.clone());
        } else {
            self.cache.remove(&task.id);
        }
    }

    /// The task that an earlier call made under the same idempotency key, if there was one.
    fn task_under_key(&mut self, engine: &Engine, new: &NewTask, batch: &Batch) -> Result<Option<Decision>, store::Error> {
        let Some(key) = new.spec.idempotency_key.clone() else { return Ok(None) };
        let (id, request) = match batch.keys.get(&(new.spec.caller.clone(), key.clone())) {
            Some((id, request)) => (*id, Some(request.clone())),
            // Only this thread commits, so a reader sees the same as the store.
            None => match engine.reader().by_idempotency_key(&new.spec.caller, &key)? {
                Some(id) if !batch.expired.contains(&id) => match engine.reader().event(id, Version(1))? {
                    Some(Event::Created { arguments: request, .. }) => (id, Some(request)),
                    _ => (id, None),
                },
                _ => return Ok(None),
            },
        };
        // A task of this batch is not stored yet.
        let task = match batch.last_write(id) {
            Some(write) => Some(write.task.clone()),
            None => self.load(id)?,
        };
        let Some(task) = task else { return Ok(None) };
        let request = request.ok_or_else(|| store::Error::corrupt_task(id, "its beginning is missing"))?;
        let same = task.spec.tool == new.spec.tool && same_json(&request, &new.arguments);
        Ok(Some(if same { Ok(Receipt { task, changed: false }) } else { Err(Reject::IdempotencyKeyReused(key.to_string()).into()) }))
    }

    /// What a task adds to the usage of its caller. The bytes of an open one of an earlier start count when it is recovered.
    fn usage_of(&self, task: &Task, limits: &Limits) -> Usage {
        let is_open = task.ended.is_none();
        let bytes = if is_open && task.epoch < self.epoch { 0 } else { task.stored_bytes(limits) };
        Usage { open: is_open.into(), bytes }
    }

    /// The bytes that an ended task counts as. They were fixed at its end: the limits may have changed since.
    fn ended_bytes(&mut self, id: TaskId, batch: &Batch) -> Result<u64, store::Error> {
        match batch.last_write(id) {
            Some(write) => Ok(write.stored_bytes),
            None => self.store.stored_bytes(id),
        }
    }

    /// Removes ended tasks from the cache, and half of the others if there are too many.
    fn trim(&mut self, changed: &[Arc<Task>]) {
        for task in changed.iter().filter(|task| task.ended.is_some()) {
            self.cache.remove(&task.id);
        }
        if self.cache.len() > CACHE_MAX {
            let mut keep = 0;
            self.cache.retain(|_, _| {
                keep += 1;
                keep % 2 == 0
            });
        }
    }
}

/// Merges the writes of each task, so that a reader sees all or nothing of a batch.
fn merge_by_task(writes: Vec<TaskWrite>) -> Vec<TaskWrite> {
    if writes.len() < 2 {
        return writes;
    }
    let (mut merged, mut positions): (Vec<TaskWrite>, HashMap<TaskId, usize>) = (Vec::with_capacity(writes.len()), HashMap::new());
    for write in writes {
        match positions.entry(write.task.id) {
            Entry::Vacant(vacant) => {
                vacant.insert(merged.len());
                merged.push(write);
            }
            Entry::Occupied(occupied) => {
                let earlier = &mut merged[*occupied.get()];
                earlier.task = write.task;
                earlier.events.extend(write.events);
                earlier.dropped_bytes = write.dropped_bytes;
                earlier.stored_bytes = write.stored_bytes;
            }
        }
    }
    merged
}

fn change_kind(events: &[Event]) -> ChangeKind {
    if events.iter().all(|event| matches!(event, Event::Appended { .. } | Event::Saved { .. })) {
        ChangeKind::Output
    } else {
        ChangeKind::Task
    }
}

/// Whether two JSON texts are equal but for blanks and the order of keys.
fn same_json(a: &Payload, b: &Payload) -> bool {
    a == b || matches!((a.read::<serde_json::Value>(), b.read::<serde_json::Value>()), (Ok(a), Ok(b)) if a == b)
}

fn apply(id: TaskId, before: Option<&Task>, events: &[Event], now: Timestamp) -> Task {
    let (mut task, rest) = match (before, events) {
        (Some(before), events) => (before.clone(), events),
        (None, [created, rest @ ..]) => (create(id, created, now), rest),
        (None, []) => unreachable!("a task begins with `Created`"),
    };
    for event in rest {
        evolve(&mut task, event, now);
    }
    task
}
