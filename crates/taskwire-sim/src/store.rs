//! A store that fails: between the engine of a node and what all nodes share, a memory or a database.

use std::{
    ops::Range,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use futures_util::future::{BoxFuture, Either};
use taskwire::{
    core::{
        CallerId, Epoch, Seq, SessionId, TaskId, Timestamp, Version,
        task::{Event, Task},
    },
    store::{
        CallKey, Changes, Cluster, Cursor, Error, ErrorKind, Lease, NodeInfo, OutboxItem, Page, Read, Reader, Session, SessionChange,
        Store, StrandedTask, TaskWrite, Usage, Written,
    },
};

use crate::{
    clock::WorldClock,
    observer::{Happening, Observer},
    plant::Plant,
    random::Dice,
    real::RealLink,
};

/// Within how many milliseconds a real commit is interrupted: it takes about so long.
const WITHIN_MILLIS: u64 = 5;

/// How often things go wrong, in a million.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StoreFaults {
    pub(crate) crash_before: u64,
    pub(crate) crash_after: u64,
    pub(crate) away: u64,
    pub(crate) in_doubt: u64,
    pub(crate) lost_wakeup: u64,
    pub(crate) late_wakeup: u64,
    /// The longest commit, in milliseconds.
    pub(crate) latency_max: u64,
    /// The longest read, in milliseconds.
    pub(crate) read_latency_max: u64,
}

/// What the world does to a node's connection with the store.
#[derive(Debug)]
pub(crate) struct NodeLink {
    pub(crate) name: usize,
    /// The node was killed: nothing of it reaches the store any more.
    pub(crate) dead: AtomicBool,
    /// A commit asks the world to kill the node now.
    pub(crate) crash: AtomicBool,
    /// Until when, in milliseconds of the world, the store cannot be reached.
    pub(crate) away_until: AtomicI64,
    /// By a planted bug, it was declared dead and goes on.
    pub(crate) goes_on: AtomicBool,
    pub(crate) clock: WorldClock,
    pub(crate) observer: Observer,
    pub(crate) faults: StoreFaults,
    pub(crate) dice: Mutex<Dice>,
    pub(crate) plant: Option<Plant>,
    /// Nothing goes wrong any more.
    pub(crate) is_healed: AtomicBool,
    /// Until when, in milliseconds of the world, the node may not know that its lease is over: it was stopped.
    pub(crate) excused_until: AtomicI64,
    /// What only a node of a real world has.
    pub(crate) real: Option<RealLink>,
}

/// What happens to one commit of a node of a real world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommitFault {
    /// The node is killed before it.
    CrashBefore,
    /// The node is killed when it has sent a part of it.
    CrashWithin,
    /// The node is killed after it, and has told nobody.
    CrashAfter,
    /// Its connection ends.
    CutOff,
}

impl NodeLink {
    /// Heals the node: nothing goes wrong with its store any more.
    pub(crate) fn heal(&self) {
        self.is_healed.store(true, Ordering::Relaxed);
        self.away_until.store(0, Ordering::Relaxed);
    }

    /// Whether the node may not know yet that its lease is over: it was stopped, or the machine under a real world had no time for it.
    pub(crate) fn is_excused(&self, now: i64) -> bool {
        now < self.excused_until.load(Ordering::Relaxed) || self.real.as_ref().is_some_and(|real| real.is_starved(now))
    }

    /// Whether what the store acknowledged may reach the node when another one has gone on: a real answer may be on its way meanwhile.
    pub(crate) fn may_hear_late(&self, now: i64) -> bool {
        self.real.is_some() && self.is_excused(now)
    }

    /// Waits for ever if the node is dead.
    async fn alive(&self) {
        if self.dead.load(Ordering::Relaxed) || self.crash.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }

    /// Asks the world to kill the node, and does nothing more.
    async fn die(&self, happening: Happening) {
        self.observer.count(happening);
        self.crash.store(true, Ordering::Relaxed);
        std::future::pending::<()>().await;
    }

    /// What is planned for the commit that begins.
    fn planned_fault(&self) -> Option<CommitFault> {
        let planned = self.real.as_ref()?.take_commit_fault();
        planned.filter(|_| !self.is_healed.load(Ordering::Relaxed))
    }

    /// Ends the connection of the commit that begins, within a moment.
    fn end_commit(&self) {
        if let Some(real) = &self.real {
            real.end_commit(self.name, Duration::from_millis(self.below(WITHIN_MILLIS)));
        }
    }

    fn happens(&self, per_million: u64) -> bool {
        if self.is_healed.load(Ordering::Relaxed) {
            return false;
        }
        self.dice.lock().unwrap_or_else(PoisonError::into_inner).happens(per_million)
    }

    fn below(&self, end: u64) -> u64 {
        self.dice.lock().unwrap_or_else(PoisonError::into_inner).below(end)
    }

    fn check(&self) -> Result<(), Error> {
        if self.clock.millis() < self.away_until.load(Ordering::Relaxed) {
            return Err(away(false));
        }
        Ok(())
    }

    fn is_planted(&self, plant: Plant) -> bool {
        self.plant == Some(plant)
    }
}

fn away(in_doubt: bool) -> Error {
    Error::Away { in_doubt, reason: "simulated".to_owned() }
}

/// The store of one start of a node.
pub(crate) struct SimStore<S> {
    inner: S,
    link: Arc<NodeLink>,
    /// Commits that a planted bug acknowledged before they were carried out.
    unwritten: Vec<TaskWrite>,
}

impl<S: Store> SimStore<S> {
    pub(crate) fn new(inner: S, link: Arc<NodeLink>) -> Self {
        Self { inner, link, unwritten: Vec::new() }
    }

    async fn apply(&mut self, writes: &[TaskWrite], sessions: &[SessionChange]) -> Result<Vec<Written>, Error> {
        let mut writes = writes.to_vec();
        let is_unfenced = self.link.is_planted(Plant::SkippedFence) || self.link.goes_on.load(Ordering::Relaxed);
        for write in &mut writes {
            if is_unfenced {
                pretend_current(&mut self.inner, write).await?;
            }
            if self.link.is_planted(Plant::ReusedKey) {
                let task = Arc::make_mut(&mut write.task);
                Arc::make_mut(&mut task.spec).idempotency_key = None;
            }
        }
        let written = match self.inner.commit(&writes, sessions).await {
            Ok(written) => written,
            Err(error) => {
                if error.kind() == ErrorKind::InDoubt {
                    self.link.observer.count(Happening::CommitCutOff);
                }
                return Err(error);
            }
        };
        for (write, written) in writes.iter().zip(&written) {
            report(&self.link, write, written);
        }
        Ok(written)
    }

    /// Kills the node while a commit is on its way, or when it is just over.
    async fn die_within(&mut self, writes: &[TaskWrite], sessions: &[SessionChange]) {
        let (link, after) = (self.link.clone(), Duration::from_millis(self.link.below(WITHIN_MILLIS)));
        let mut commit = pin!(self.apply(writes, sessions));
        tokio::select! {
            biased;
            _ = &mut commit => {}
            () = tokio::time::sleep(after) => {}
        }
        // What was sent stays sent: nothing is taken back in order.
        link.die(Happening::CrashWithinCommit).await;
    }
}

/// Makes a write fit whatever version the task has now: what a store would do that does not compare versions.
async fn pretend_current(inner: &mut impl Store, write: &mut TaskWrite) -> Result<(), Error> {
    if let Some(task) = inner.load(write.task.id).await?
        && write.first_version > Version(1)
        && task.version.next() != write.first_version
    {
        write.first_version = task.version.next();
        let mut changed = (*write.task).clone();
        changed.version = Version(task.version.0 + write.events.len() as u64);
        write.task = Arc::new(changed);
    }
    Ok(())
}

fn kinds(write: &TaskWrite) -> String {
    let kind = |event: &Event| match event {
        Event::Created { .. } => "created",
        Event::Started { .. } => "started",
        Event::Appended { .. } => "appended",
        Event::StatusReported { .. } => "status",
        Event::Asked { .. } => "asked",
        Event::Answered { .. } => "answered",
        Event::Saved { .. } => "saved",
        Event::Completed { .. } => "completed",
        Event::Failed(_) => "failed",
        Event::Cancelled { .. } => "cancelled",
        Event::Joined { .. } => "joined",
        Event::Left { .. } => "left",
        Event::Touched => "touched",
        Event::Expired => "expired",
        Event::Queued => "queued",
        Event::Dequeued => "dequeued",
    };
    write.events.iter().map(kind).collect::<Vec<_>>().join("+")
}

fn report(link: &NodeLink, write: &TaskWrite, written: &Written) {
    let task = &write.task;
    let starts = write.events.iter().any(|event| matches!(event, Event::Started { .. }));
    let said = match written {
        Written::Done => {
            if write.events.iter().any(|event| matches!(event, Event::Expired)) {
                link.observer.count(Happening::Forgotten);
            }
            if starts && task.output.next_seq > Seq(0) {
                link.observer.count(Happening::TakeoverWhileAppending);
            }
            "done"
        }
        Written::Conflict(there) => {
            link.observer.count(Happening::Conflict);
            if let Some(there) = there {
                if starts && there.attempt >= task.attempt {
                    link.observer.count(Happening::TwoNodesClaimedOneTask);
                }
                if there.attempt > task.attempt && write.events.iter().any(|event| matches!(event, Event::Appended { .. })) {
                    link.observer.count(Happening::StaleAttemptRefused);
                }
                let cancels = write.events.iter().any(|event| matches!(event, Event::Cancelled { .. }));
                let ends = write.events.iter().any(|event| matches!(event, Event::Completed { .. } | Event::Failed(_)));
                if (cancels || ends) && there.ended.is_some() {
                    link.observer.count(Happening::CancelRacedFinish);
                }
            }
            "conflict"
        }
        Written::KeyTaken(_) => {
            link.observer.count(Happening::DedupeJoined);
            "key taken"
        }
    };
    let line = format!("node {}: {} v{} {} of {}: {said}", link.name, task.id, task.version, kinds(write), task.spec.tool);
    link.observer.trace(&line);
}

impl<S: Store> Store for SimStore<S> {
    const BLOCKS: bool = S::BLOCKS;

    async fn load(&mut self, id: TaskId) -> Result<Option<Task>, Error> {
        self.link.alive().await;
        self.link.check()?;
        self.inner.load(id).await
    }

    async fn stored_bytes(&mut self, id: TaskId) -> Result<u64, Error> {
        self.link.alive().await;
        self.link.check()?;
        self.inner.stored_bytes(id).await
    }

    async fn commit(&mut self, writes: &[TaskWrite], sessions: &[SessionChange]) -> Result<Vec<Written>, Error> {
        self.link.alive().await;
        self.link.observer.count(Happening::Commit);
        self.link.check()?;
        let faults = self.link.faults;
        let latency = self.link.below(faults.latency_max + 1);
        if latency > 0 {
            tokio::time::sleep(Duration::from_millis(latency)).await;
            self.link.alive().await;
            self.link.check()?;
        }
        let planned = self.link.planned_fault();
        if self.link.happens(faults.crash_before) || planned == Some(CommitFault::CrashBefore) {
            self.link.die(Happening::CrashBeforeCommit).await;
        }
        if self.link.happens(faults.away) {
            return Err(away(false));
        }
        let in_doubt = self.link.happens(faults.in_doubt);
        if in_doubt {
            self.link.observer.count(Happening::CommitInDoubt);
            if self.link.happens(500_000) {
                return Err(away(true));
            }
        }
        if self.link.is_planted(Plant::AcknowledgeBeforeCommit) {
            // It says that this batch is durable, and carries out the one before.
            let before = std::mem::replace(&mut self.unwritten, writes.to_vec());
            self.apply(&before, sessions).await?;
            return Ok(vec![Written::Done; writes.len()]);
        }
        match planned {
            Some(CommitFault::CrashWithin) => self.die_within(writes, sessions).await,
            Some(CommitFault::CutOff) => self.link.end_commit(),
            _ => {}
        }
        let written = self.apply(writes, sessions).await?;
        if planned == Some(CommitFault::CrashAfter) {
            self.link.die(Happening::CrashAfterCommit).await;
        }
        if in_doubt {
            return Err(away(true));
        }
        if self.link.happens(faults.crash_after) {
            self.link.die(Happening::CrashAfterCommit).await;
        }
        Ok(written)
    }

    fn epoch(&self) -> Epoch {
        self.inner.epoch()
    }

    fn secret(&self) -> [u8; 32] {
        self.inner.secret()
    }

    fn usage(&self) -> Result<Vec<(CallerId, Usage)>, Error> {
        self.inner.usage()
    }

    fn reader(&self) -> Arc<dyn Reader> {
        Arc::new(SimReader { inner: self.inner.reader(), link: self.link.clone(), stale: Mutex::default() })
    }

    fn cluster(&self) -> Option<Arc<dyn Cluster>> {
        Some(Arc::new(SimCluster { inner: self.inner.cluster()?, link: self.link.clone() }))
    }
}

struct SimReader {
    inner: Arc<dyn Reader>,
    link: Arc<NodeLink>,
    /// Tasks as they once were, for a planted cache that nobody invalidates.
    stale: Mutex<std::collections::BTreeMap<TaskId, Arc<Task>>>,
}

impl SimReader {
    /// Reads after a while, if the store can be reached then.
    fn read<'a, T: Send + 'a>(&'a self, read: impl FnOnce(&'a dyn Reader) -> Read<'a, T> + Send + 'a) -> Read<'a, T> {
        Either::Right(Box::pin(async move {
            let latency = self.link.below(self.link.faults.read_latency_max + 1);
            if latency > 0 {
                tokio::time::sleep(Duration::from_millis(latency)).await;
            }
            self.link.check()?;
            read(&*self.inner).await
        }))
    }
}

impl Reader for SimReader {
    fn task(&self, id: TaskId) -> Read<'_, Option<Arc<Task>>> {
        if !self.link.is_planted(Plant::CacheNotInvalidated) {
            return self.read(move |reader| reader.task(id));
        }
        Either::Right(Box::pin(async move {
            let Some(task) = self.read(move |reader| reader.task(id)).await? else { return Ok(None) };
            let mut stale = self.stale.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(Some(stale.entry(id).or_insert(task).clone()))
        }))
    }

    fn event(&self, id: TaskId, version: Version) -> Read<'_, Option<Event>> {
        self.read(move |reader| reader.event(id, version))
    }

    fn page(&self, id: TaskId, mut cursor: Cursor) -> Read<'_, Option<Page>> {
        if self.link.is_planted(Plant::CursorOffByOne) {
            cursor.from = cursor.from.map(|from| if from > Seq(0) { from.next() } else { from });
        }
        self.read(move |reader| reader.page(id, cursor))
    }

    fn chunk_range(&self, id: TaskId) -> Read<'_, Range<Seq>> {
        self.read(move |reader| reader.chunk_range(id))
    }

    fn owner(&self, id: TaskId) -> Read<'_, Option<CallerId>> {
        self.read(move |reader| reader.owner(id))
    }

    fn due_tasks(&self, now: Timestamp, of: Option<Epoch>, limit: usize) -> Read<'_, Vec<TaskId>> {
        self.read(move |reader| reader.due_tasks(now, of, limit))
    }

    fn next_due(&self, after: Timestamp) -> Read<'_, Option<Timestamp>> {
        self.read(move |reader| reader.next_due(after))
    }

    fn open_tasks(&self, after: Option<TaskId>, limit: usize) -> Read<'_, Vec<TaskId>> {
        self.read(move |reader| reader.open_tasks(after, limit))
    }

    fn tasks_of<'a>(&'a self, caller: &'a CallerId, before: Option<TaskId>, limit: usize) -> Read<'a, Vec<TaskId>> {
        self.read(move |reader| reader.tasks_of(caller, before, limit))
    }

    fn latest_tasks(&self, open: bool, before: Option<TaskId>, limit: usize) -> Read<'_, Vec<TaskId>> {
        self.read(move |reader| reader.latest_tasks(open, before, limit))
    }

    fn by_key<'a>(&'a self, key: CallKey<'a>) -> Read<'a, Option<TaskId>> {
        self.read(move |reader| reader.by_key(key))
    }

    fn same_calls<'a>(&'a self, caller: &'a CallerId, hidden: bool, key: &'a str, limit: usize) -> Read<'a, Vec<Arc<Task>>> {
        self.read(move |reader| reader.same_calls(caller, hidden, key, limit))
    }

    fn session<'a>(&'a self, id: &'a SessionId) -> Read<'a, Option<Session>> {
        self.read(move |reader| reader.session(id))
    }

    fn outbox<'a>(&'a self, id: &'a SessionId, after: u64, limit: usize) -> Read<'a, Vec<OutboxItem>> {
        self.read(move |reader| reader.outbox(id, after, limit))
    }

    fn outbox_end<'a>(&'a self, id: &'a SessionId) -> Read<'a, u64> {
        self.read(move |reader| reader.outbox_end(id))
    }

    fn idle_sessions<'a>(&'a self, caller: &'a CallerId, before: Timestamp, keep: usize) -> Read<'a, Vec<SessionId>> {
        self.read(move |reader| reader.idle_sessions(caller, before, keep))
    }
}

struct SimCluster {
    inner: Arc<dyn Cluster>,
    link: Arc<NodeLink>,
}

impl SimCluster {
    /// Calls after a while, if the store can be reached then. The answer may be lost, too.
    fn reach<'a, T: Send + 'a>(
        &'a self,
        call: impl FnOnce() -> BoxFuture<'a, Result<T, Error>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, Error>> {
        Box::pin(async move {
            let latency = self.link.below(self.link.faults.latency_max + 1);
            if latency > 0 {
                tokio::time::sleep(Duration::from_millis(latency)).await;
            }
            self.link.check()?;
            if self.link.happens(self.link.faults.away) {
                return Err(away(false));
            }
            let answer = call().await?;
            if self.link.happens(self.link.faults.in_doubt) {
                return Err(away(true));
            }
            Ok(answer)
        })
    }
}

impl Cluster for SimCluster {
    fn first_lease(&self) -> (Lease, Duration) {
        self.inner.first_lease()
    }

    fn renew(&self, epoch: Epoch, orphan_after: Duration) -> BoxFuture<'_, Result<Option<Lease>, Error>> {
        Box::pin(async move {
            let renewed = self.reach(move || self.inner.renew(epoch, orphan_after)).await?;
            if self.link.is_planted(Plant::LeaseTooLong) {
                return Ok(renewed.map(|lease| Lease { lasts: Duration::from_secs(9), ..lease }));
            }
            if renewed.is_none() {
                self.link.observer.count(Happening::LeaseLost);
                if self.link.is_planted(Plant::StaleNodeGoesOn) {
                    self.link.goes_on.store(true, Ordering::Relaxed);
                    let now = taskwire::clock::Clock::now(&self.link.clock);
                    return Ok(Some(Lease { now, lasts: Duration::from_secs(6), orphan_after }));
                }
            }
            Ok(renewed)
        })
    }

    fn rejoin(&self) -> BoxFuture<'_, Result<Epoch, Error>> {
        self.reach(move || self.inner.rejoin())
    }

    fn leave(&self, epoch: Epoch) -> BoxFuture<'_, Result<(), Error>> {
        self.reach(move || self.inner.leave(epoch))
    }

    fn is_alive(&self, epoch: Epoch) -> BoxFuture<'_, Result<bool, Error>> {
        self.reach(move || self.inner.is_alive(epoch))
    }

    fn stranded_tasks(
        &self,
        judge_at: Option<Timestamp>,
        after: Option<(Epoch, TaskId)>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<StrandedTask>, Error>> {
        self.reach(move || self.inner.stranded_tasks(judge_at, after, limit))
    }

    fn queued_tasks<'a>(&'a self, epoch: Epoch, free: &'a [(String, usize)]) -> BoxFuture<'a, Result<Vec<(TaskId, Epoch)>, Error>> {
        self.reach(move || self.inner.queued_tasks(epoch, free))
    }

    fn versions<'a>(&'a self, ids: &'a [TaskId]) -> BoxFuture<'a, Result<Vec<Option<Version>>, Error>> {
        if self.link.is_planted(Plant::LostWakeUp) {
            return Box::pin(std::future::ready(Err(away(false))));
        }
        self.reach(move || self.inner.versions(ids))
    }

    fn usage_of<'a>(&'a self, caller: &'a CallerId) -> BoxFuture<'a, Result<Usage, Error>> {
        self.reach(move || self.inner.usage_of(caller))
    }

    fn nodes(&self) -> BoxFuture<'_, Result<Vec<NodeInfo>, Error>> {
        self.reach(move || self.inner.nodes())
    }

    fn has_wakeups(&self) -> bool {
        self.inner.has_wakeups()
    }

    fn announce(&self, changes: Changes) {
        if self.link.dead.load(Ordering::Relaxed) {
            return;
        }
        let faults = self.link.faults;
        if self.link.check().is_err() || self.link.happens(faults.lost_wakeup) || self.link.is_planted(Plant::LostWakeUp) {
            self.link.observer.count(Happening::WakeUpLost);
            return;
        }
        if self.link.happens(faults.late_wakeup) {
            let (inner, late) = (self.inner.clone(), self.link.below(3_000));
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(late)).await;
                // Late, and twice.
                inner.announce(changes.clone());
                inner.announce(changes);
            });
            return;
        }
        self.inner.announce(changes);
    }

    fn next_changes(&self) -> BoxFuture<'_, Changes> {
        self.inner.next_changes()
    }
}
