//! Calls that wait for their work, and work that its callers left.
//!
//! A client that hangs up ends its request, not the work: that goes on for a while (`linger`), and the same call by the same
//! caller joins it. Where a tool says so (`dedupe`), such a call also joins work that others still wait for.
//!
//! Who waits for what is known here only. The store has the work itself; what was going on when the server stopped is read
//! from there, and the same call finds it again.

mod calls;
mod left;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use taskwire_core::{
    CallerId, Payload, TaskId, Timestamp,
    task::{Reject, Spec, Task},
    wire::RequestId,
};
use tokio::{sync::mpsc, task::JoinHandle};

pub(crate) use self::calls::Calls;
pub(in crate::dialect) use self::calls::Key;
use super::{CALLED_OFF, find_tool, held};
use crate::{
    dialect::{Context, Outbox, Sent, StreamId},
    engine::{self, Note, Phase, Resumed, Run},
    followup,
    tool::ReadyTool,
};

/// How long a call of a process that joined goes on without it, at least.
const REPLACED: Duration = Duration::from_secs(30);
/// How long it may take until the server has noticed that a client hung up.
const HANG_UP_NOTICED: Duration = Duration::from_millis(100);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each is consistent between statements, so a panic elsewhere does not spoil it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a caller gives something up because it would not wait any longer, and not because it is not wanted any more.
pub(in crate::dialect) fn is_timeout(reason: &str) -> bool {
    let reason = reason.to_ascii_lowercase();
    reason.contains("timed out") || reason.contains("timeout")
}

/// What a call waits for.
#[derive(Debug, Clone)]
enum Work {
    /// Work in memory, which may have become a task since.
    Run(Arc<Run>),
    Task(TaskId),
}

impl Work {
    fn id(&self) -> TaskId {
        match self {
            Self::Run(run) => run.id(),
            Self::Task(id) => *id,
        }
    }
}

#[derive(Debug, Default)]
struct State {
    work: Option<Work>,
    /// Whether that is work which others may join, so that those who wait for it are counted.
    counted: bool,
}

/// A call that waits for its work.
pub(in crate::dialect) struct Waiting {
    shared: Arc<Context>,
    caller: CallerId,
    tool: Arc<str>,
    /// The arguments, if they are known; else they stand in the store.
    request: Option<Payload>,
    /// What it has in common with calls that are the same, once somebody asked.
    key: OnceLock<Key>,
    /// Whether it is counted among the calls that take their time.
    slow: AtomicBool,
    /// Whether the caller knows of no task: who does joins only what one that does has left.
    hidden: bool,
    /// How long the work goes on without its caller; `Duration::MAX` to its end.
    linger: Duration,
    state: Mutex<State>,
    /// Whether the caller said that it does not want the work any more.
    cancelled: AtomicBool,
    /// When the work that it joined began.
    joined: OnceLock<Timestamp>,
    /// Its name on a byte stream, where calls are cancelled by their names.
    named: Option<(StreamId, RequestId)>,
}

/// A call that waits for its work, for as long as this lives. Dropped before its answer is on its way, it leaves the work
/// running for a while. Clones are of the same call.
#[derive(Debug, Clone)]
pub(in crate::dialect) struct Waiter(Arc<Waiting>);

impl Waiter {
    /// A call of `tool` that has no work yet, and the way back to its client.
    pub(in crate::dialect) fn new(
        shared: &Arc<Context>,
        caller: &CallerId,
        tool: &Arc<ReadyTool>,
        request: &Payload,
        hidden: bool,
        (id, out): (&RequestId, &Outbox),
    ) -> Self {
        let named = out.stream().map(|stream| (stream, id));
        let mut linger = linger(shared, tool);
        if out.is_local() && !held::is_followup(shared, tool) {
            // A process that joined is cut off when the server is replaced, and comes back.
            linger = linger.max(REPLACED);
        }
        let waiting = Waiting {
            shared: shared.clone(),
            caller: caller.clone(),
            tool: tool.0.name.clone(),
            request: Some(request.clone()),
            key: OnceLock::new(),
            slow: AtomicBool::new(false),
            hidden,
            linger,
            state: Mutex::default(),
            cancelled: AtomicBool::new(named.is_some_and(|(stream, id)| shared.calls.was_cancelled(stream, id))),
            joined: OnceLock::new(),
            named: named.map(|(stream, id)| (stream.clone(), id.clone())),
        };
        let waiter = Self(Arc::new(waiting));
        if named.is_some() {
            shared.calls.name(&waiter.0);
        }
        waiter
    }

    /// The call whose reader came back to this task: as it was `before`, if somebody still waits for it.
    pub(in crate::dialect) fn again(shared: &Arc<Context>, before: Option<Arc<Waiting>>, task: &Task) -> Self {
        if let Some(before) = before {
            return Self(before);
        }
        let linger = find_tool(shared, &task.spec.tool).map_or(shared.config.linger, |tool| linger(shared, &tool));
        let waiting = Waiting {
            shared: shared.clone(),
            caller: task.spec.caller.clone(),
            tool: task.spec.tool.clone(),
            request: None,
            key: OnceLock::new(),
            slow: AtomicBool::new(false),
            hidden: task.spec.hidden,
            linger,
            state: Mutex::new(State { work: Some(Work::Task(task.id)), counted: shared.calls.attend(task.id) }),
            cancelled: AtomicBool::new(false),
            joined: OnceLock::new(),
            named: None,
        };
        Self(Arc::new(waiting))
    }

    /// A way back to the call that does not keep it waiting.
    pub(in crate::dialect) fn downgrade(&self) -> Weak<Waiting> {
        Arc::downgrade(&self.0)
    }

    pub(in crate::dialect) fn caller(&self) -> &CallerId {
        &self.0.caller
    }

    /// Whether the work goes on without its caller.
    pub(in crate::dialect) fn lingers(&self) -> bool {
        !self.0.linger.is_zero()
    }

    /// Says what it waits for: work in memory.
    pub(in crate::dialect) fn runs(&self, run: &Arc<Run>) {
        self.0.wait_for(Work::Run(run.clone()));
    }

    /// Says what it waits for: a task that is there, or about to be made.
    pub(in crate::dialect) fn waits_for(&self, id: TaskId) {
        self.0.wait_for(Work::Task(id));
    }

    /// When the work began, if it is that of an earlier call.
    pub(in crate::dialect) fn joined(&self) -> Option<Timestamp> {
        self.0.joined.get().copied()
    }

    /// The result, which says so if it is that of an earlier call.
    pub(in crate::dialect) fn noting(&self, result: Payload) -> Payload {
        match self.joined() {
            Some(began) => held::with_note(&result, &followup::joined(began, self.0.shared.engine.clock().now())),
            None => result,
        }
    }

    /// Whether the caller said that it does not want the work any more.
    pub(in crate::dialect) fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// Joins what the same call of the same caller left running, or whose result nobody has had, if there is such work.
    pub(in crate::dialect) async fn join(&self) -> Result<Option<Arc<Task>>, engine::Error> {
        let calls = &self.0.shared.calls;
        if !self.lingers() {
            return Ok(None);
        }
        calls.ready().await;
        if let Some(task) = self.join_left().await? {
            return Ok(Some(task));
        }
        if !calls.has_slow(&self.0) {
            return Ok(None);
        }
        // Who hung up and calls again may be heard before its end is: a moment later it is known.
        let patience = tokio::time::sleep(HANG_UP_NOTICED);
        tokio::pin!(patience);
        loop {
            let left = calls.next_left();
            if let Some(task) = self.join_left().await? {
                return Ok(Some(task));
            }
            tokio::select! {
                () = left => {}
                () = &mut patience => return Ok(None),
            }
        }
    }

    async fn join_left(&self) -> Result<Option<Arc<Task>>, engine::Error> {
        if self.0.shared.calls.is_empty() {
            return Ok(None);
        }
        match self.key() {
            Some(key) => self.0.join(key).await,
            None => Ok(None),
        }
    }

    /// Notes that the call takes its time: its client may give it up, and call again.
    pub(in crate::dialect) fn mark_slow(&self) {
        if self.lingers()
            && let Some(key) = self.key()
            && !self.0.slow.swap(true, Ordering::AcqRel)
        {
            self.0.shared.calls.add_slow(&self.0.tool, key);
        }
    }

    /// What it has in common with calls that are the same; none if its arguments are not known.
    pub(in crate::dialect) fn key(&self) -> Option<&Key> {
        self.0.key()
    }

    /// Whether this is another call, and one that has work.
    pub(in crate::dialect) fn is_other(&self, other: &Arc<Waiting>) -> bool {
        !Arc::ptr_eq(&self.0, other) && lock(&other.state).work.is_some()
    }

    /// Joins the work of another call that is the same and still waits for it, if that goes on.
    pub(in crate::dialect) async fn join_unanswered(&self, other: &Arc<Waiting>) -> Result<Option<Arc<Task>>, engine::Error> {
        let work = lock(&other.state).work.clone();
        let (Some(work), true) = (work, self.lingers()) else { return Ok(None) };
        if let Work::Run(run) = &work {
            match run.promote().await {
                Ok(Phase::Task(_)) => {}
                Ok(_) | Err(engine::Error::Rejected(Reject::Limit { .. })) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let (shared, id) = (&self.0.shared, work.id());
        let Some(task) = shared.engine.task(&self.0.caller, id)?.filter(|task| task.ended.is_none()) else { return Ok(None) };
        let Some(key) = other.key_of(&work) else { return Ok(None) };
        {
            let mut theirs = lock(&other.state);
            // It may have been answered meanwhile.
            if theirs.work.as_ref().map(Work::id) != Some(id) {
                return Ok(None);
            }
            shared.calls.attend_both(shared, key, id, theirs.counted);
            theirs.counted = true;
        }
        *lock(&self.0.state) = State { work: Some(Work::Task(id)), counted: true };
        self.0.has_joined(&task);
        Ok(Some(task))
    }

    /// Joins work of the same call, whoever waits for it, or makes the task that others join.
    pub(in crate::dialect) async fn join_or_create(
        &self,
        spec: Arc<Spec>,
        request: Payload,
        resumed: Resumed,
        notes: Option<mpsc::Sender<Note>>,
    ) -> Result<Arc<Task>, engine::Error> {
        let waiting = self.0.clone();
        // On its own, so that a caller that goes away cannot leave a task behind that the next one does not find.
        let joined: JoinHandle<Result<_, engine::Error>> = tokio::spawn(async move {
            let shared = &waiting.shared;
            shared.calls.ready().await;
            let fingerprint = spec.dedupe.clone().unwrap_or_default();
            let key = Key { caller: waiting.caller.clone(), hidden: waiting.hidden, fingerprint };
            // Held while it looks for the task and makes it: of two at once, one makes it.
            let _turn = shared.calls.turn().await;
            if let Some(task) = waiting.join(&key).await? {
                return Ok(task);
            }
            // What was cancelled while it looked for its work needs none.
            if waiting.cancelled.load(Ordering::Acquire) {
                return Err(engine::Error::Rejected(Reject::Ended));
            }
            let receipt = shared.engine.create(shared.engine.new_id(), spec, request, &resumed, notes).await?;
            let id = receipt.task.id;
            shared.calls.share(shared, key, id);
            *lock(&waiting.state) = State { work: Some(Work::Task(id)), counted: true };
            if waiting.cancelled.load(Ordering::Acquire) {
                waiting.stop();
            }
            Ok(receipt.task)
        });
        joined.await.map_err(|_| engine::Error::Unavailable("the call could not be made".into()))?
    }

    /// The answer is about to be sent: how the work `ended`, or how its caller gets on. From now on the same call begins anew. If
    /// the answer never reaches its caller, it leaves the work after all.
    pub(in crate::dialect) fn answering(self, ended: bool) -> Sent {
        let shown = {
            let state = lock(&self.0.state);
            state.work.as_ref().map(Work::id).filter(|_| ended && state.counted)
        };
        if let Some(id) = shown {
            self.0.shared.calls.answering(id, true);
        }
        Sent::new(move |delivered| {
            if delivered {
                self.answered(ended);
            } else if let Some(id) = shown {
                self.0.shared.calls.answering(id, false);
            }
        })
    }

    /// The caller was answered: it knows how the work `ended`, or how to get on.
    pub(in crate::dialect) fn answered(self, ended: bool) {
        let State { work, counted } = std::mem::take(&mut *lock(&self.0.state));
        if let Some(work) = work.filter(|_| counted) {
            self.0.shared.calls.told(work.id(), ended);
        }
    }
}

/// How long work of a tool goes on without its caller. The follow-up tools have no work of their own.
fn linger(shared: &Context, tool: &Arc<ReadyTool>) -> Duration {
    if held::is_followup(shared, tool) { Duration::ZERO } else { tool.0.policy.linger.unwrap_or(shared.config.linger) }
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("caller", &self.caller).field("tool", &self.tool).finish_non_exhaustive()
    }
}

impl Waiting {
    /// See [`Waiter::key`].
    pub(in crate::dialect) fn key(&self) -> Option<&Key> {
        let request = self.request.as_ref()?;
        Some(self.key.get_or_init(|| Key::of(&self.shared, &self.caller, self.hidden, &self.tool, request)))
    }

    fn wait_for(&self, work: Work) {
        lock(&self.state).work = Some(work);
        // It may have been cancelled before there was anything to stop.
        if self.cancelled.load(Ordering::Acquire) {
            self.stop();
        }
    }

    /// What a call for this work has in common with those that are the same; none if that cannot be read.
    fn key_of(&self, work: &Work) -> Option<Key> {
        if let Some(key) = self.key() {
            return Some(key.clone());
        }
        let request = match work {
            Work::Run(run) => run.request().clone(),
            Work::Task(id) => calls::request(&self.shared, *id).ok()??,
        };
        Some(Key::of(&self.shared, &self.caller, self.hidden, &self.tool, &request))
    }

    async fn join(self: &Arc<Self>, key: &Key) -> Result<Option<Arc<Task>>, engine::Error> {
        let (shared, calls) = (&self.shared, &self.shared.calls);
        while let Some((id, ready)) = calls.take(key) {
            *lock(&self.state) = State { work: Some(Work::Task(id)), counted: true };
            calls::ready(ready).await;
            if let Some(task) = shared.engine.task(&self.caller, id)?.filter(|task| calls::is_joinable(shared, task)) {
                self.has_joined(&task);
                return Ok(Some(task));
            }
            calls.forget(id);
            *lock(&self.state) = State::default();
        }
        Ok(None)
    }

    fn has_joined(&self, task: &Task) {
        let _ = self.joined.set(task.began());
        tracing::info!(caller = self.caller.as_str(), tool = %self.tool, task = %task.id, "a call joined the work of an earlier one");
        if self.cancelled.load(Ordering::Acquire) {
            self.stop();
        }
    }

    /// The caller does not want the work any more: it stops, unless another call waits for it, too.
    pub(in crate::dialect) fn cancel(&self) {
        // In this order: who is about to find its work sees this then.
        self.cancelled.store(true, Ordering::Release);
        self.stop();
    }

    /// The caller does not wait any longer: its work is left from now on, whenever the request itself ends.
    pub(in crate::dialect) fn give_up(&self) {
        let State { work, counted } = std::mem::take(&mut *lock(&self.state));
        if let Some(work) = work {
            left::leave(self, work, counted);
        }
    }

    fn stop(&self) {
        let State { work, counted } = std::mem::take(&mut *lock(&self.state));
        let Some(work) = work else { return };
        if counted && self.shared.calls.leave(work.id()) > 0 {
            return;
        }
        self.shared.calls.forget(work.id());
        match work {
            Work::Run(run) => run.call_off(CALLED_OFF),
            Work::Task(id) => self.shared.engine.call_off(self.caller.clone(), id, CALLED_OFF),
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.named.is_some() {
            self.shared.calls.unname(self);
        }
        if let Some(key) = self.key.get().filter(|_| self.slow.load(Ordering::Acquire)) {
            self.shared.calls.remove_slow(&self.tool, key);
        }
        self.give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_would_not_wait_is_told_from_one_that_changed_its_mind() {
        for reason in ["Request timed out", "McpError: MCP error -32001: Request timed out", "TIMEOUT", "request timeout"] {
            assert!(is_timeout(reason), "{reason}");
        }
        for reason in ["", "cancelled by the user", "not needed any more", "time is money"] {
            assert!(!is_timeout(reason), "{reason}");
        }
    }
}
