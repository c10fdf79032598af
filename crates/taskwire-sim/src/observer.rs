//! What must hold, and what must happen at least sometimes. Tools, clients and the store report here.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{clock::WorldClock, store::NodeLink};

/// What the world counts; those that `MUST_HAPPEN` names fail a long run in which they never occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Happening {
    Tick,
    Commit,
    Crash,
    CrashBeforeCommit,
    /// In the middle of it, which only a real commit has.
    CrashWithinCommit,
    CrashAfterCommit,
    Pause,
    Outage,
    ClockJump,
    /// Connections ended for real.
    ConnectionsEnded,
    /// The store itself ended for real.
    DatabaseEnded,
    CommitInDoubt,
    /// Its connection ended for real.
    CommitCutOff,
    WakeUpLost,
    Conflict,
    TakeoverWhileAppending,
    TwoNodesClaimedOneTask,
    StaleAttemptRefused,
    CancelRacedFinish,
    LeaseLost,
    CallEnded,
    CallResumedElsewhere,
    AnswerTaken,
    CancelAcknowledged,
    ReaderVanished,
    DedupeJoined,
    Left,
    Forgotten,
    PlainCall,
}

pub(crate) const MUST_HAPPEN: [Happening; 20] = [
    Happening::TakeoverWhileAppending,
    Happening::StaleAttemptRefused,
    Happening::CancelRacedFinish,
    Happening::WakeUpLost,
    Happening::TwoNodesClaimedOneTask,
    Happening::CommitInDoubt,
    Happening::CallResumedElsewhere,
    Happening::AnswerTaken,
    Happening::CancelAcknowledged,
    Happening::DedupeJoined,
    Happening::Crash,
    Happening::CrashBeforeCommit,
    Happening::CrashAfterCommit,
    Happening::Pause,
    Happening::Outage,
    Happening::ClockJump,
    Happening::LeaseLost,
    Happening::Left,
    Happening::Forgotten,
    Happening::PlainCall,
];

/// The same for a real world that goes on for so many seconds at least. What needs two nodes in one moment may not happen among so few
/// calls, and is demanded of simulated worlds alone.
pub(crate) const MUST_HAPPEN_IN_REAL: [(u64, Happening); 23] = [
    (30, Happening::CallEnded),
    (30, Happening::Crash),
    (30, Happening::Pause),
    (30, Happening::Outage),
    (30, Happening::ClockJump),
    (30, Happening::Left),
    (30, Happening::ConnectionsEnded),
    (30, Happening::DatabaseEnded),
    (30, Happening::WakeUpLost),
    (30, Happening::AnswerTaken),
    (30, Happening::CancelAcknowledged),
    (30, Happening::CallResumedElsewhere),
    (120, Happening::TakeoverWhileAppending),
    (120, Happening::CrashBeforeCommit),
    (120, Happening::CrashWithinCommit),
    (120, Happening::CrashAfterCommit),
    (120, Happening::CommitInDoubt),
    (120, Happening::CommitCutOff),
    (120, Happening::Conflict),
    (120, Happening::LeaseLost),
    (120, Happening::DedupeJoined),
    (120, Happening::PlainCall),
    (120, Happening::Forgotten),
];

/// What is known of one call of the workload.
#[derive(Debug, Default)]
struct CallState {
    /// Attempts that began.
    attempts: BTreeSet<u64>,
    /// Attempts whose work goes on, and on which start of a node.
    running: BTreeMap<u64, Arc<NodeLink>>,
    /// How it ended, as the first client to see that said.
    outcome: Option<String>,
    cancelled: bool,
}

#[derive(Debug, Default)]
struct State {
    counts: BTreeMap<Happening, u64>,
    violations: Vec<String>,
    calls: BTreeMap<u64, CallState>,
    trace: DefaultHasher,
    lines: Option<Vec<String>>,
}

/// Dropped when the work of an attempt stops.
pub(crate) struct AttemptGuard {
    observer: Observer,
    call: u64,
    attempt: u64,
}

impl Drop for AttemptGuard {
    fn drop(&mut self) {
        if let Some(call) = self.observer.lock().calls.get_mut(&self.call) {
            call.running.remove(&self.attempt);
        }
    }
}

/// Takes reports, and says what was wrong.
#[derive(Debug, Clone)]
pub(crate) struct Observer {
    state: Arc<Mutex<State>>,
    clock: WorldClock,
}

impl Observer {
    pub(crate) fn new(clock: WorldClock, keeps_lines: bool) -> Self {
        let state = State { lines: keeps_lines.then(Vec::new), ..State::default() };
        Self { state: Arc::new(Mutex::new(state)), clock }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count(&self, happening: Happening) {
        *self.lock().counts.entry(happening).or_default() += 1;
    }

    pub(crate) fn counts(&self) -> BTreeMap<Happening, u64> {
        self.lock().counts.clone()
    }

    /// Something that must never be.
    pub(crate) fn violated(&self, what: String) {
        let line = format!("{:>8} ms: {what}", self.clock.millis());
        self.trace(&line);
        self.lock().violations.push(line);
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// One line of what happened, in order. The same seed gives the same lines.
    pub(crate) fn trace(&self, line: &str) {
        (self.clock.millis(), line).hash(&mut self.lock().trace);
        self.print(line);
    }

    /// A line that is only shown.
    pub(crate) fn print(&self, line: &str) {
        let millis = self.clock.millis();
        if let Some(lines) = &mut self.lock().lines {
            lines.push(format!("{millis:>8} {line}"));
        }
    }

    pub(crate) fn trace_hash(&self) -> u64 {
        self.lock().trace.finish()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lock().lines.clone().unwrap_or_default()
    }

    /// An attempt of a call begins: each number once, however often the call was sent, and only when the one before has stopped. It goes
    /// on until the guard is dropped.
    pub(crate) fn attempt_began(&self, call: u64, attempt: u64, link: &Arc<NodeLink>) -> AttemptGuard {
        let now = self.clock.millis();
        let (is_new, others) = {
            let mut state = self.lock();
            let known = state.calls.entry(call).or_default();
            let is_new = known.attempts.insert(attempt);
            // One that was stopped as a whole cannot know that it is over: the store refuses what it writes.
            let others: Vec<_> =
                known.running.iter().filter(|(_, link)| !link.is_excused(now)).map(|(other, link)| (*other, link.name)).collect();
            known.running.insert(attempt, link.clone());
            (is_new, others)
        };
        self.trace(&format!("call {call}: attempt {attempt} begins on node {}", link.name));
        if !is_new {
            self.violated(format!("attempt {attempt} of call {call} began twice"));
        }
        for (other, node) in others {
            self.violated(format!("attempt {attempt} of call {call} began on node {} while attempt {other} ran on node {node}", link.name));
        }
        AttemptGuard { observer: self.clone(), call, attempt }
    }

    /// The store acknowledged something that an attempt did. No later attempt may have begun.
    pub(crate) fn effect(&self, call: u64, attempt: u64, link: &NodeLink) {
        let last = self.lock().calls.entry(call).or_default().attempts.last().copied();
        if last.is_some_and(|last| last > attempt) && !link.may_hear_late(self.clock.millis()) {
            self.violated(format!("attempt {attempt} of call {call} had an effect after attempt {last:?} had begun"));
        }
    }

    /// A cancellation was acknowledged.
    pub(crate) fn cancelled(&self, call: u64) {
        self.count(Happening::CancelAcknowledged);
        self.lock().calls.entry(call).or_default().cancelled = true;
    }

    /// A client saw how a call ended: everybody must see the same.
    pub(crate) fn ended(&self, call: u64, outcome: &str) {
        self.count(Happening::CallEnded);
        let before = self.lock().calls.entry(call).or_default().outcome.get_or_insert_with(|| outcome.to_owned()).clone();
        if before != outcome {
            self.violated(format!("call {call} ended as {before:?} and as {outcome:?}"));
        }
    }

    pub(crate) fn was_cancelled(&self, call: u64) -> bool {
        self.lock().calls.get(&call).is_some_and(|call| call.cancelled)
    }
}
