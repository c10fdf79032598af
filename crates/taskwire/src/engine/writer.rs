//! The single writer of a node: the only code that changes tasks.
//!
//! It takes all queued requests, decides them, commits once, and only then starts or stops work, sends receipts and wakes
//! readers (invariant I3). Where several nodes share a store, another one may have changed a task meanwhile: the store refuses what was
//! decided on an older version, and the writer decides again.

mod batch;
mod in_doubt;

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use taskwire_core::{
    Limits, Payload, SessionId, TaskId, Timestamp, Version,
    task::{Command, Event, NewTask, Outcome, Reject, RpcError, Spec, Task, create, decide, evolve, wants},
    wire::code,
};
use tokio::sync::mpsc::{self, error::TryRecvError};

use self::batch::{Batch, Decided};
use super::{
    Engine, Failure, Inner, TaskRequest, WriterRequest, audited, observe, operator_log,
    quota::{Quota, TaskLimits},
    recent::{CACHED_TASK_BYTES_MAX, task_weight},
};
use crate::{
    store::{self, CallKey, Changes, Cluster, ErrorKind, SessionChange, Store, TaskWrite, Usage, Written},
    wakeup::ChangeKind,
};

/// Commands that share one commit at most.
const BATCH_MAX: usize = 512;
/// Tasks kept in memory by the writer; any other is loaded when needed.
const CACHE_MAX: usize = 16_384;
/// How long the writer waits before it tries again to reach the store: the first time, and at most.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(50);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(1);
/// How often requests are decided again because other nodes changed their tasks.
const ROUNDS_MAX: usize = 1_000;

pub(super) fn spawn<S: Store>(store: S, inner: &Arc<Inner>, commands: mpsc::Receiver<WriterRequest>) -> Result<(), store::Error> {
    let cluster = store.cluster();
    // Where nodes share a store, what a caller has is counted in the store.
    let quota = if cluster.is_some() { Quota::shared() } else { Quota::new(store.usage()?) };
    let writer = Writer { store, cluster, engine: Arc::downgrade(inner), cache: HashMap::new(), quota, may_reclaim: true };
    let runtime = inner.runtime.clone();
    if !S::BLOCKS {
        runtime.spawn(writer.run(commands));
        return Ok(());
    }
    std::thread::Builder::new()
        .name("taskwire-writer".to_owned())
        .spawn(move || runtime.block_on(writer.run(commands)))
        .map(drop)
        .map_err(|source| store::Error::File { path: "a thread for the writer".to_owned(), source })
}

struct Writer<S> {
    store: S,
    cluster: Option<Arc<dyn Cluster>>,
    engine: Weak<Inner>,
    /// Tasks as of the last decision. Ahead of the store only within a batch, and behind it only if another node changed them.
    cache: HashMap<TaskId, Arc<Task>>,
    quota: Quota,
    /// Whether the store may have unused space to give back.
    may_reclaim: bool,
}

/// A task that a commit has changed.
struct Changed {
    task: Arc<Task>,
    /// Whether an attempt was begun.
    begun: bool,
    /// The event that made it, if this commit did, and nodes share the store.
    created: Option<Event>,
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

impl<S: Store> Writer<S> {
    async fn run(mut self, mut commands: mpsc::Receiver<WriterRequest>) {
        let _alarm = FailOnDrop(self.engine.clone());
        while let Some(first) = self.next(&mut commands).await {
            let Some(inner) = self.engine.upgrade() else { return };
            let engine = Engine(inner);
            let mut requests = vec![first];
            while requests.len() < BATCH_MAX
                && let Ok(request) = commands.try_recv()
            {
                requests.push(request);
            }
            if let Err(error) = self.carry_out(&engine, requests, &mut commands).await {
                // Before the receipts are dropped, so that whoever waits for one learns the reason.
                engine.0.fail(Failure::from(&error));
                // Closing the queue tells every waiter that nothing more is stored.
                tracing::error!(%error, "the store failed: no more tasks are accepted");
                return;
            }
        }
    }

    /// The next request. While there is none, the store gives unused space back, step by step.
    async fn next(&mut self, commands: &mut mpsc::Receiver<WriterRequest>) -> Option<WriterRequest> {
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
        commands.recv().await
    }

    /// Carries out requests: decides and commits them until none is left. Fails only if nothing more can be stored.
    async fn carry_out(
        &mut self,
        engine: &Engine,
        requests: Vec<WriterRequest>,
        commands: &mut mpsc::Receiver<WriterRequest>,
    ) -> Result<(), store::Error> {
        let (mut delay, mut rounds) = (RETRY_DELAY_MIN, 0);
        // They are one part, unless something damaged is in the way of one of them. The last part is the next one.
        let mut parts = vec![requests];
        while let Some(requests) = parts.pop() {
            if requests.is_empty() {
                continue;
            }
            let mut batch = self.decide_all(engine, requests).await;
            let (mut away, mut queued) = (!batch.later.is_empty(), Vec::new());
            if let Some(why) = batch.away.as_ref().filter(|_| away) {
                engine.0.set_away_because(why);
            }
            let committed = match batch.is_empty() {
                true => Ok(Vec::new()),
                false => observe::commit(engine, batch.writes.len(), self.store.commit(&batch.writes, &batch.sessions)).await,
            };
            let written = match committed {
                Ok(written) => written,
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    let nothing = batch.nothing_written();
                    let mut requests = self.take_back(&mut batch, &nothing);
                    requests.extend(batch.take_sessions());
                    self.publish(engine, batch);
                    parts.extend(batch::halves(requests, &error));
                    continue;
                }
                Err(error) => {
                    if !matches!(error.kind(), ErrorKind::Away | ErrorKind::InDoubt) {
                        return Err(error);
                    }
                    tracing::warn!(%error, "nothing can be stored just now: trying again");
                    away = true;
                    batch.refuse_callers(&engine.0.set_away_because(&error));
                    queued = take_queued(engine, commands);
                    match error.kind() {
                        ErrorKind::InDoubt => {
                            let meanwhile = || queued.extend(take_queued(engine, commands));
                            in_doubt::find_out(engine, &mut self.store, &batch, meanwhile).await?
                        }
                        _ => batch.nothing_written(),
                    }
                }
            };
            let mut left = self.take_back(&mut batch, &written);
            // What is left of the batch is durable now; nothing below may move above the commit.
            self.publish(engine, batch);
            engine.0.set_away(away);
            rounds = if left.is_empty() { 0 } else { rounds + usize::from(!away) };
            if rounds >= ROUNDS_MAX {
                // Dropping the requests tells whoever waits for them.
                tracing::error!(count = left.len(), "other nodes change these tasks without end: giving up");
                left.clear();
            }
            parts.push(left);
            if away {
                queued.extend(take_queued(engine, commands));
                // What is asked of one task is decided in order.
                parts[0].extend(queued);
                parts.iter_mut().for_each(|part| batch::refuse_callers(part, &engine.away_error()));
                engine.0.clock.sleep(delay).await;
                delay = (delay * 2).min(RETRY_DELAY_MAX);
            }
        }
        engine.0.set_away(false);
        Ok(())
    }

    /// Takes those requests out of a batch whose writes were not carried out, or that relied on such a write, and forgets what they
    /// would have changed.
    fn take_back(&mut self, batch: &mut Batch, written: &[Written]) -> Vec<WriterRequest> {
        let (refused, requests) = batch.take_refused(written);
        // The latest first, as they were added up.
        for decided in refused.into_iter().rev() {
            self.cache.remove(&decided.task);
            if let Some((caller, was, is)) = decided.usage {
                self.quota.record_change(&caller, is, was);
            }
        }
        requests
    }

    /// Decides requests, each on what those before it lead to.
    async fn decide_all(&mut self, engine: &Engine, requests: Vec<WriterRequest>) -> Batch {
        let now = engine.now();
        let free = if engine.limits().disk_reserve_bytes > 0 { self.store.free_bytes() } else { None };
        self.quota.begin_batch(free, engine.limits());
        let mut batch = Batch::default();
        for request in requests {
            let request = match request {
                WriterRequest::Task(request) => request,
                WriterRequest::Session(change, receipt) => {
                    batch.sessions.push(change);
                    batch.session_receipts.push(receipt);
                    continue;
                }
                WriterRequest::Turn(taken) => {
                    // Whoever waited may be gone.
                    let _ = taken.send(());
                    continue;
                }
            };
            if let Some(why) = batch.away.as_ref().filter(|_| !request.waits) {
                // Each look would take as long as the first one did.
                let told = crate::engine::Error::of_away(why);
                batch.add(request, Decided::rejected(told));
                continue;
            }
            if batch.away.is_some() || batch.is_delayed(request.id) {
                // What is asked of one task is decided in order.
                batch.later.push(WriterRequest::Task(request));
                continue;
            }
            match self.decide(engine, &request, now, &mut batch).await {
                Ok(decided) => batch.add(request, decided),
                // A failed read concerns this command alone; only a failed commit ends the writer.
                Err(error) if matches!(error.kind(), ErrorKind::Away | ErrorKind::InDoubt) => {
                    let told = crate::engine::Error::of_away(&error);
                    batch.away = Some(error);
                    if request.waits {
                        batch.later.push(WriterRequest::Task(request));
                    } else {
                        batch.add(request, Decided::rejected(told));
                    }
                }
                Err(error) => batch.add(request, Decided::rejected(error.into())),
            }
        }
        batch
    }

    async fn decide(&mut self, engine: &Engine, request: &TaskRequest, now: Timestamp, batch: &mut Batch) -> Result<Decided, store::Error> {
        if let Command::Create(new) = &request.command
            && let Some(earlier) = self.task_under_key(engine, new, batch).await?
        {
            return Ok(earlier);
        }
        let (before, is_current) = self.task_before(request, batch).await?;
        let decided = self.decide_on(engine, request, before, now, batch).await?;
        // Another node may have changed a cached task. A write would be refused then, so only what writes nothing must be decided anew.
        if decided.is_written() || is_current {
            return Ok(decided);
        }
        self.cache.remove(&request.id);
        let before = self.load(request.id).await?;
        self.decide_on(engine, request, before, now, batch).await
    }

    /// The task that a request is about, and whether it is certain that no other node has changed it.
    async fn task_before(&mut self, request: &TaskRequest, batch: &Batch) -> Result<(Option<Arc<Task>>, bool), store::Error> {
        if matches!(request.command, Command::Create(_)) {
            return Ok((None, true));
        }
        // What this batch makes of it comes first. If that is refused, all that was decided on it is decided again.
        if let Some(write) = batch.write_of(request.id) {
            return Ok((Some(write.task.clone()), true));
        }
        match self.cache.get(&request.id) {
            Some(task) => Ok((Some(task.clone()), self.cluster.is_none())),
            None => Ok((self.load(request.id).await?, true)),
        }
    }

    async fn decide_on(
        &mut self,
        engine: &Engine,
        request: &TaskRequest,
        before: Option<Arc<Task>>,
        now: Timestamp,
        batch: &mut Batch,
    ) -> Result<Decided, store::Error> {
        let TaskRequest { id, by, command, .. } = request;
        let limits = engine.limits();
        let mut events = match decide(before.as_deref(), by, command, now, limits) {
            Ok(events) => events,
            Err(reject) => return Ok(Decided::rejected(reject.into())),
        };
        if events.is_empty() {
            return Ok(Decided::unchanged(before.expect("only a task that exists can stay as it is")));
        }
        let mut task = apply(*id, before.as_deref(), &events, now);
        let was = match before.as_deref() {
            None => Usage::default(),
            Some(before) if before.ended.is_some() => Usage { open: 0, bytes: self.ended_bytes(*id, batch).await? },
            Some(before) => self.usage_of(engine, before, limits),
        };
        let forgotten = matches!(events.last(), Some(Event::Expired));
        let mut is = if forgotten { Usage::default() } else { self.usage_of(engine, &task, limits) };
        if is.open > was.open || is.bytes > was.bytes {
            self.read_usage(&task.spec).await?;
        }
        if let Err(reject) = self.quota.admit(&task.spec.caller, command, was, is, limits) {
            let Command::Finish { .. } = command else { return Ok(Decided::rejected(reject.into())) };
            // The work has ended, so the task must end too: it fails with a short error.
            let failed = Outcome::Failed(RpcError { code: code::UNAVAILABLE, message: reject.to_string(), data: None });
            events = match decide(before.as_deref(), by, &Command::finish(failed), now, limits) {
                Ok(events) => events,
                Err(reject) => return Ok(Decided::rejected(reject.into())),
            };
            task = apply(*id, before.as_deref(), &events, now);
            is = self.usage_of(engine, &task, limits);
        }
        if let Command::Create(_) = command
            && !request.ends_at_once
            && let Err(reject) = admit_to_tool(engine, &task.spec, batch)
        {
            return Ok(Decided::rejected(reject.into()));
        }
        let task = Arc::new(task);
        self.quota.record_change(&task.spec.caller, was, is);
        self.keep(&task);
        if forgotten {
            batch.expired.insert(*id);
        }
        if let Command::Create(new) = command {
            batch.add_keys(&task, &new.arguments);
        }
        let stale_checkpoint = before.as_ref().and_then(|before| before.checkpoint_version);
        batch.write(TaskWrite {
            task: task.clone(),
            first_version: before.as_ref().map_or(Version(1), |before| before.version.next()),
            at: now,
            stale_checkpoints: stale_checkpoint.filter(|stale| Some(*stale) != task.checkpoint_version).into_iter().collect(),
            dropped_bytes: task.dropped_bytes(limits),
            outbox_max: limits.changes_per_session,
            stored_bytes: is.bytes,
            events,
        });
        Ok(Decided::written(task, (was, is)))
    }

    /// Acts on what is durable: readers can see it, work starts and stops, receipts go out, and whoever waits is woken.
    fn publish(&mut self, engine: &Engine, batch: Batch) {
        self.may_reclaim |= !batch.expired.is_empty();
        let begins = |event: &Event| matches!(event, Event::Created { .. } | Event::Started { .. });
        let changed: Vec<Changed> = batch
            .writes
            .iter()
            .map(|write| {
                let begun = write.events.iter().any(begins);
                // Otherwise it is among the recent changes.
                let created = write.events.first().filter(|event| self.cluster.is_some() && matches!(event, Event::Created { .. }));
                Changed { task: write.task.clone(), begun, created: created.cloned() }
            })
            .collect();
        let mut sessions: Vec<SessionId> = batch.writes.iter().filter_map(|write| Some(write.outbox_item()?.0.clone())).collect();
        if self.cluster.is_some() {
            sessions.extend(batch.sessions.iter().filter_map(SessionChange::changed));
        }
        for write in &batch.writes {
            observe::written(engine, write);
            if let (Some(outcome), Some((at, version))) = (&write.task.outcome, write.task.ended)
                && version >= write.first_version
            {
                operator_log::call_ended(&write.task.spec, Some(&*write.task), at.since(write.task.began_at()), outcome);
            }
        }
        let changes: Vec<(TaskId, ChangeKind)> = batch.writes.iter().map(|write| (write.task.id, change_kind(&write.events))).collect();
        if self.cluster.is_none() {
            for write in batch.writes {
                engine.0.recent.put(write);
            }
        }
        // Runs start before receipts go out: once a caller knows of a task, the engine is not idle.
        for Changed { task, begun, created } in &changed {
            engine.0.runs.reconcile(engine, task, *begun, created.as_ref());
            if let Some(due) = wants(task).due {
                engine.0.timers.arm(due);
            }
        }
        for decided in batch.decided {
            observe::decided(engine, &decided.decision);
            audited::decided(engine, &decided.request, &decided.decision);
            let _ = decided.request.receipt.send(decided.decision);
        }
        for receipt in batch.session_receipts {
            let _ = receipt.send(Ok(()));
        }
        if let Some(cluster) = self.cluster.as_ref().filter(|_| !changes.is_empty() || !sessions.is_empty()) {
            cluster.announce(Changes::Of(changes.iter().map(|(id, _)| *id).collect(), sessions.clone()));
        }
        engine.0.task_wakeups.wake(changes.into_iter());
        engine.0.session_wakeups.wake(sessions.into_iter().map(|id| (id, ChangeKind::Task)));
        self.trim(&changed);
    }

    async fn load(&mut self, id: TaskId) -> Result<Option<Arc<Task>>, store::Error> {
        if let Some(task) = self.cache.get(&id) {
            return Ok(Some(task.clone()));
        }
        let task = self.store.load(id).await?.map(Arc::new);
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

    /// The task that an earlier call made under one of the same keys, if there was one.
    async fn task_under_key(&mut self, engine: &Engine, new: &NewTask, batch: &Batch) -> Result<Option<Decided>, store::Error> {
        for key in CallKey::of(&new.spec) {
            let (id, arguments) = match batch.by_key(key) {
                Some((id, arguments)) => (id, Some(arguments)),
                None => match engine.reader().by_key(key).await? {
                    Some(id) if !batch.expired.contains(&id) => (id, None),
                    _ => continue,
                },
            };
            // A task of this batch is not stored yet.
            let task = match batch.write_of(id) {
                Some(write) => Some(write.task.clone()),
                None => {
                    if self.cluster.is_some() {
                        // Nothing is written, so it must be what is there now.
                        self.cache.remove(&id);
                    }
                    match self.load(id).await {
                        // Nobody can join a damaged task.
                        Err(store::Error::Corrupt { .. }) if matches!(key, CallKey::Dedupe(..)) => None,
                        read => read?,
                    }
                }
            };
            let Some(task) = task else { continue };
            let CallKey::Idempotency(_, key) = key else {
                // The fingerprint is that of the tool and the arguments. A call joins only what runs.
                if task.ended.is_some() {
                    continue;
                }
                return Ok(Some(Decided::unchanged(task)));
            };
            let arguments = match arguments {
                Some(arguments) => arguments,
                None => match engine.reader().event(id, Version(1)).await? {
                    Some(Event::Created { arguments, .. }) => arguments,
                    _ => return Err(store::Error::corrupt_task(id, "its beginning is missing")),
                },
            };
            let same = task.spec.tool == new.spec.tool && same_json(&arguments, &new.arguments);
            let reused = || Decided::rejected(Reject::IdempotencyKeyReused(key.to_owned()).into()).about(id);
            return Ok(Some(if same { Decided::unchanged(task) } else { reused() }));
        }
        Ok(None)
    }

    /// Reads what a caller has stored, where other nodes store for it, too.
    async fn read_usage(&mut self, spec: &Spec) -> Result<(), store::Error> {
        if let Some(cluster) = &self.cluster
            && !self.quota.knows(&spec.caller)
        {
            let usage = cluster.usage_of(&spec.caller).await?;
            self.quota.set_usage(&spec.caller, usage);
        }
        Ok(())
    }

    /// What a task adds to the usage of its caller. Where this is the only node, the bytes of an open one of an earlier start count when it
    /// is recovered.
    fn usage_of(&self, engine: &Engine, task: &Task, limits: &Limits) -> Usage {
        let is_open = task.ended.is_none();
        let is_uncounted = is_open && self.cluster.is_none() && task.epoch < engine.epoch();
        Usage { open: is_open.into(), bytes: if is_uncounted { 0 } else { task.stored_bytes(limits) } }
    }

    /// The bytes that an ended task counts as. They were fixed at its end: the limits may have changed since.
    async fn ended_bytes(&mut self, id: TaskId, batch: &Batch) -> Result<u64, store::Error> {
        match batch.write_of(id) {
            Some(write) => Ok(write.stored_bytes),
            None => self.store.stored_bytes(id).await,
        }
    }

    /// Removes ended tasks from the cache, and half of the others if there are too many.
    fn trim(&mut self, changed: &[Changed]) {
        for Changed { task, .. } in changed.iter().filter(|changed| changed.task.ended.is_some()) {
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

/// What waits in the queue while the store is away: callers need not wait any longer, and running work keeps its order.
fn take_queued(engine: &Engine, commands: &mut mpsc::Receiver<WriterRequest>) -> Vec<WriterRequest> {
    let mut queued = Vec::new();
    while queued.len() < engine.0.config.queue_len
        && let Ok(request) = commands.try_recv()
    {
        queued.push(request);
    }
    batch::refuse_callers(&mut queued, &engine.away_error());
    queued
}

/// Refuses a task whose tool has as many as may run here. Those that are made in this batch do not run yet.
fn admit_to_tool(engine: &Engine, spec: &Spec, batch: &Batch) -> Result<(), Reject> {
    let limits = engine.work().map(|work| work.task_limits(&spec.tool)).unwrap_or_default();
    if limits == TaskLimits::default() {
        return Ok(());
    }
    let (mut all, mut of_caller) = engine.0.runs.tasks_of(spec);
    let begins = |write: &&TaskWrite| write.first_version == Version(1) && write.task.ended.is_none() && write.task.spec.tool == spec.tool;
    for made in batch.writes.iter().filter(begins) {
        all += 1;
        of_caller += u64::from(made.task.spec.caller == spec.caller);
    }
    limits.admit(all, of_caller)
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
