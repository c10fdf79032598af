//! Calls that wait for their work, and work that lingers.
//!
//! A client that hangs up ends its request, not the work: that lingers (`linger`), and the same call by the same caller joins it. If
//! the tool says so (`dedupe`), the call also joins work that other calls still wait for.
//!
//! Who waits for what is kept in memory. The store has the work: recovery registers what ran when the server stopped, and the same call
//! finds it. Where nodes share the store, a task names the nodes whose calls wait for it, and the same call finds it on any node.

mod linger;
mod registry;

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

pub(crate) use self::registry::CallRegistry;
pub(in crate::protocol) use self::registry::DedupeKey;
use super::{CANCELLED_BY_CALLER, find_tool, hold};
use crate::{
    audit,
    engine::{self, CallNote, Continuation, Phase, Run},
    followup,
    protocol::{ByteStreamId, Context, MessageSink, OnSent},
    tool::ReadyTool,
};

/// How long a call of a process that joined lingers, at least.
const BRIDGED_LINGER_MIN: Duration = Duration::from_secs(30);
/// How long the server may take to notice that a client hung up.
const HANG_UP_NOTICED: Duration = Duration::from_millis(100);
/// How many tasks of the same call are looked at.
const SAME_CALLS_MAX: usize = 16;
/// How often a call tries to make a task, where calls of other nodes make the same one.
const CREATE_TRIES: usize = 16;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No change is left half done by a panic, so a poisoned lock is still good.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a caller cancels only because it would not wait any longer.
pub(in crate::protocol) fn is_timeout(reason: &str) -> bool {
    let reason = reason.to_ascii_lowercase();
    reason.contains("timed out") || reason.contains("timeout")
}

/// What a call waits for.
#[derive(Debug, Clone)]
enum RunOrTask {
    /// Work in memory, which may have become a task meanwhile.
    Run(Arc<Run>),
    Task(TaskId),
}

impl RunOrTask {
    fn id(&self) -> TaskId {
        match self {
            Self::Run(run) => run.id(),
            Self::Task(id) => *id,
        }
    }
}

#[derive(Debug, Default)]
struct State {
    awaited: Option<RunOrTask>,
    /// Whether others may join that work, so that its waiters are counted.
    counted: bool,
}

pub(in crate::protocol) struct WaitingCall {
    context: Arc<Context>,
    caller: CallerId,
    tool: Arc<str>,
    /// The arguments; none if they could not be read.
    arguments: Option<Payload>,
    /// Computed when it is first needed.
    dedupe_key: OnceLock<DedupeKey>,
    /// Whether the registry counts this call as slow.
    slow: AtomicBool,
    /// Whether the caller does not know the task. Calls join only work for which this is the same.
    hidden: bool,
    /// How long the work goes on after the client hung up; `Duration::MAX` to its end.
    linger: Duration,
    state: Mutex<State>,
    cancelled: AtomicBool,
    /// Whether its client does not wait any longer.
    given_up: AtomicBool,
    /// When the work that it joined began.
    joined_started_at: OnceLock<Timestamp>,
    /// Its byte stream and request id, by which the client cancels it.
    byte_stream_request: Option<(ByteStreamId, RequestId)>,
}

/// Keeps a call waiting until it is dropped. If that is before the response was sent, the work lingers. Clones are of the same call.
#[derive(Debug, Clone)]
pub(in crate::protocol) struct Waiter(Arc<WaitingCall>);

impl Waiter {
    /// A call of `tool` that has no work yet.
    pub(in crate::protocol) fn new(
        context: &Arc<Context>,
        caller: &CallerId,
        tool: &Arc<ReadyTool>,
        request: &Payload,
        hidden: bool,
        (id, out): (&RequestId, &MessageSink),
    ) -> Self {
        let named = out.byte_stream().map(|stream| (stream, id));
        let mut linger = linger(context, tool);
        if out.is_bridged() && !hold::is_followup(context, tool) {
            // A process that joined is cut off when another server takes over, and comes back.
            linger = linger.max(BRIDGED_LINGER_MIN);
        }
        let waiting = WaitingCall {
            context: context.clone(),
            caller: caller.clone(),
            tool: tool.0.name.clone(),
            arguments: Some(request.clone()),
            dedupe_key: OnceLock::new(),
            slow: AtomicBool::new(false),
            hidden,
            linger,
            state: Mutex::default(),
            cancelled: AtomicBool::new(named.is_some_and(|(stream, id)| context.calls.take_early_cancel(stream, id))),
            given_up: AtomicBool::new(false),
            joined_started_at: OnceLock::new(),
            byte_stream_request: named.map(|(stream, id)| (stream.clone(), id.clone())),
        };
        let waiter = Self(Arc::new(waiting));
        if named.is_some() {
            context.calls.register_request(&waiter.0);
        }
        waiter
    }

    /// The call of a client that resumes this task: the one `before`, if it still waits.
    pub(in crate::protocol) async fn resume(context: &Arc<Context>, before: Option<Arc<WaitingCall>>, task: &Task) -> Self {
        if let Some(before) = before {
            return Self(before);
        }
        let linger = find_tool(context, &task.spec.tool).map_or(context.config.linger, |tool| linger(context, &tool));
        let waiting = WaitingCall {
            context: context.clone(),
            caller: task.spec.caller.clone(),
            tool: task.spec.tool.clone(),
            arguments: registry::stored_arguments(context, task.id).await.ok().flatten(),
            dedupe_key: OnceLock::new(),
            slow: AtomicBool::new(false),
            hidden: task.spec.hidden,
            linger,
            state: Mutex::new(State { awaited: Some(RunOrTask::Task(task.id)), counted: context.calls.add_waiter(task.id) }),
            cancelled: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
            joined_started_at: OnceLock::new(),
            byte_stream_request: None,
        };
        let waiter = Self(Arc::new(waiting));
        if task.spec.linger_key.is_some() {
            // If this cannot be stored just now, its call is as one that another node does not know of. If the client hangs up meanwhile, the
            // waiter leaves again.
            let _ = context.engine.join(task, true).await;
        }
        waiter
    }

    /// A reference that does not keep the call waiting.
    pub(in crate::protocol) fn downgrade(&self) -> Weak<WaitingCall> {
        Arc::downgrade(&self.0)
    }

    pub(in crate::protocol) fn caller(&self) -> &CallerId {
        &self.0.caller
    }

    /// Whether the work goes on after the client hung up.
    pub(in crate::protocol) fn lingers(&self) -> bool {
        !self.0.linger.is_zero()
    }

    pub(in crate::protocol) fn wait_for_run(&self, run: &Arc<Run>) {
        self.0.wait_for(RunOrTask::Run(run.clone()));
    }

    /// Waits for a task that exists, or is about to be created.
    pub(in crate::protocol) fn wait_for_task(&self, id: TaskId) {
        self.0.wait_for(RunOrTask::Task(id));
    }

    /// When the work began, if it is that of an earlier call.
    pub(in crate::protocol) fn joined_started_at(&self) -> Option<Timestamp> {
        self.0.joined_started_at.get().copied()
    }

    /// The result, with a note if it is that of an earlier call.
    pub(in crate::protocol) fn with_joined_text(&self, result: Payload) -> Payload {
        match self.joined_started_at() {
            Some(began) => hold::with_text_appended(&result, &followup::dedupe_note(began, self.0.context.engine.clock().now())),
            None => result,
        }
    }

    pub(in crate::protocol) fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// The caller cancelled the call, perhaps before it has work.
    pub(in crate::protocol) fn cancel(&self) {
        self.0.cancel();
    }

    /// Joins lingering work of the same call, or takes its result if nobody got that; none if there is no such work.
    pub(in crate::protocol) async fn join_lingering(&self) -> Result<Option<Arc<Task>>, engine::Error> {
        let calls = &self.0.context.calls;
        if !self.lingers() {
            return Ok(None);
        }
        calls.recovered().await;
        if let Some(task) = self.try_join_lingering().await? {
            return Ok(Some(task));
        }
        // A fingerprint costs more than all else of a quick call.
        if self.0.context.engine.is_shared()
            && let Some(key) = self.dedupe_key()
            && let Some(task) = self.0.join_on_other_node(key, false).await?
        {
            return Ok(Some(task));
        }
        if !calls.has_slow(&self.0) {
            return Ok(None);
        }
        // A client may call again before the server has noticed that it hung up: wait a moment for that.
        let deadline = tokio::time::sleep(HANG_UP_NOTICED);
        tokio::pin!(deadline);
        loop {
            let next_linger = calls.next_linger();
            if let Some(task) = self.try_join_lingering().await? {
                return Ok(Some(task));
            }
            tokio::select! {
                () = next_linger => {}
                () = &mut deadline => return Ok(None),
            }
        }
    }

    async fn try_join_lingering(&self) -> Result<Option<Arc<Task>>, engine::Error> {
        if self.0.context.calls.is_empty() {
            return Ok(None);
        }
        match self.dedupe_key() {
            Some(key) => self.0.join_by_key(key).await,
            None => Ok(None),
        }
    }

    /// Registers a call that takes long: its client may hang up, and call again.
    pub(in crate::protocol) fn mark_slow(&self) {
        if self.lingers()
            && let Some(key) = self.dedupe_key()
            && !self.0.slow.swap(true, Ordering::AcqRel)
        {
            self.0.context.calls.add_slow(&self.0.tool, key);
        }
    }

    /// Equal for calls that are the same; none if the arguments are not known.
    pub(in crate::protocol) fn dedupe_key(&self) -> Option<&DedupeKey> {
        self.0.dedupe_key()
    }

    /// Whether `other` is another call, and has work.
    pub(in crate::protocol) fn is_other(&self, other: &Arc<WaitingCall>) -> bool {
        !Arc::ptr_eq(&self.0, other) && lock(&other.state).awaited.is_some()
    }

    /// Joins the work of another call that is the same and still waits, if the work goes on.
    pub(in crate::protocol) async fn join_unanswered(&self, other: &Arc<WaitingCall>) -> Result<Option<Arc<Task>>, engine::Error> {
        let work = lock(&other.state).awaited.clone();
        let (Some(work), true) = (work, self.lingers()) else { return Ok(None) };
        if let RunOrTask::Run(run) = &work {
            match run.promote().await {
                Ok(Phase::Task(_)) => {}
                Ok(_) | Err(engine::Error::Rejected(Reject::Limit { .. })) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let (context, id) = (&self.0.context, work.id());
        let Some(task) = context.engine.task(&self.0.caller, id).await?.filter(|task| task.ended.is_none()) else { return Ok(None) };
        let Some(key) = other.dedupe_key().cloned() else { return Ok(None) };
        {
            let mut theirs = lock(&other.state);
            // The other call may have been answered meanwhile.
            if theirs.awaited.as_ref().map(RunOrTask::id) != Some(id) {
                return Ok(None);
            }
            context.calls.join_awaited(context, key, id, theirs.counted);
            theirs.counted = true;
        }
        *lock(&self.0.state) = State { awaited: Some(RunOrTask::Task(id)), counted: true };
        self.0.set_joined(&task);
        Ok(Some(task))
    }

    /// Joins the work of a call that is the same, or creates the task `id`, which others join.
    pub(in crate::protocol) async fn join_or_create(
        &self,
        id: TaskId,
        spec: Arc<Spec>,
        request: Payload,
        resumed: Continuation,
        notes: Option<mpsc::Sender<CallNote>>,
    ) -> Result<Arc<Task>, engine::Error> {
        let waiting = self.0.clone();
        // Spawned, so that a client that hangs up now cannot leave a task that the next call does not find.
        let making = async move {
            let context = &waiting.context;
            context.calls.recovered().await;
            let fingerprint = spec.fingerprint.clone().unwrap_or_default();
            let key = DedupeKey { caller: waiting.caller.clone(), hidden: waiting.hidden, fingerprint };
            let _turn = context.calls.lock_create(&key).await;
            for _ in 0..CREATE_TRIES {
                if let Some(task) = waiting.join_by_key(&key).await? {
                    return Ok(task);
                }
                if let (true, Some(task)) = (context.engine.is_shared(), waiting.join_on_other_node(&key, true).await?) {
                    return Ok(task);
                }
                // A call that was cancelled meanwhile needs no work.
                if waiting.cancelled.load(Ordering::Acquire) {
                    return Err(engine::Error::Rejected(Reject::Ended));
                }
                // If another node has created it meanwhile, the writer returns that one.
                let mut task = context.engine.create(id, spec.clone(), request.clone(), &resumed, notes.clone()).await?.task;
                if task.id != id && context.engine.is_shared() {
                    match context.engine.join(&task, true).await {
                        Ok(joined) => task = joined,
                        // It has ended meanwhile.
                        Err(engine::Error::Rejected(_)) => continue,
                        Err(error) => return Err(error),
                    }
                }
                context.calls.add_deduped(context, key, task.id).await;
                *lock(&waiting.state) = State { awaited: Some(RunOrTask::Task(task.id)), counted: true };
                if task.id != id {
                    waiting.set_joined(&task);
                }
                waiting.catch_up();
                return Ok(task);
            }
            Err(engine::Error::Unavailable("calls that are the same end as fast as this one joins them".into()))
        };
        let joined: JoinHandle<Result<_, engine::Error>> = tokio::spawn(audit::sent_from(audit::sender(), making));
        joined.await.map_err(|_| engine::Error::Unavailable("the call could not be made".into()))?
    }

    /// The response is about to be sent: the outcome (`ended`), or how the caller goes on. From now on the same call starts anew. If the
    /// response does not reach the client, the work lingers after all.
    pub(in crate::protocol) fn on_response_sent(self, ended: bool) -> OnSent {
        let shown = {
            let state = lock(&self.0.state);
            state.awaited.as_ref().map(RunOrTask::id).filter(|_| ended && state.counted)
        };
        if let Some(id) = shown {
            self.0.context.calls.set_responding(id, true);
        }
        OnSent::new(move |delivered| {
            if delivered {
                self.responded(ended);
            } else if let Some(id) = shown {
                self.0.context.calls.set_responding(id, false);
            }
        })
    }

    /// The response was sent: the outcome (`ended`), or how the caller goes on.
    pub(in crate::protocol) fn responded(self, ended: bool) {
        let State { awaited: work, counted } = std::mem::take(&mut *lock(&self.0.state));
        if let Some(work) = work.filter(|_| counted) {
            self.0.context.calls.responded(work.id(), ended);
        }
    }
}

/// How long work of a tool lingers. The follow-up tools have no work of their own.
fn linger(context: &Context, tool: &Arc<ReadyTool>) -> Duration {
    if hold::is_followup(context, tool) { Duration::ZERO } else { tool.0.policy.linger.unwrap_or(context.config.linger) }
}

impl std::fmt::Debug for WaitingCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitingCall").field("caller", &self.caller).field("tool", &self.tool).finish_non_exhaustive()
    }
}

impl WaitingCall {
    /// See [`Waiter::dedupe_key`].
    pub(in crate::protocol) fn dedupe_key(&self) -> Option<&DedupeKey> {
        let request = self.arguments.as_ref()?;
        Some(self.dedupe_key.get_or_init(|| DedupeKey::of(&self.context, &self.caller, self.hidden, &self.tool, request)))
    }

    fn wait_for(&self, work: RunOrTask) {
        lock(&self.state).awaited = Some(work);
        self.catch_up();
    }

    /// Does what its client wanted before it had work.
    fn catch_up(&self) {
        if self.cancelled.load(Ordering::Acquire) {
            self.stop();
        } else if self.given_up.load(Ordering::Acquire) {
            self.give_up();
        }
    }

    async fn join_by_key(self: &Arc<Self>, key: &DedupeKey) -> Result<Option<Arc<Task>>, engine::Error> {
        let (context, calls) = (&self.context, &self.context.calls);
        while let Some((id, ready)) = calls.join(key) {
            *lock(&self.state) = State { awaited: Some(RunOrTask::Task(id)), counted: true };
            registry::wait_until_ready(ready).await;
            let task = context.engine.task(&self.caller, id).await?.filter(|task| registry::is_joinable(context, task));
            let joined = match task {
                // A call on another node may have joined it, or have its outcome.
                Some(task) if task.spec.linger_key.is_some() => self.try_join(&task, calls.is_deduped(id)).await?,
                task => task,
            };
            if let Some(task) = joined {
                self.set_joined(&task);
                return Ok(Some(task));
            }
            calls.forget(id);
            *lock(&self.state) = State::default();
        }
        Ok(None)
    }

    /// Joins work of the same call that lingers, or may be shared, on any node.
    async fn join_on_other_node(self: &Arc<Self>, key: &DedupeKey, shared: bool) -> Result<Option<Arc<Task>>, engine::Error> {
        let (context, calls) = (&self.context, &self.context.calls);
        // The client may call again before the other node has noticed that it hung up: wait a moment for that.
        let deadline = tokio::time::sleep(HANG_UP_NOTICED);
        tokio::pin!(deadline);
        let (mut watched, mut watch) = (Vec::new(), context.engine.watch(Vec::new(), false));
        loop {
            let same = context.engine.reader().same_calls(&key.caller, key.hidden, &key.fingerprint, SAME_CALLS_MAX).await?;
            // What this node knows of was looked at before.
            let same = same.into_iter().filter(|task| !calls.is_known(task.id) && registry::is_joinable(context, task));
            let same: Vec<Arc<Task>> = same.collect();
            let ids: Vec<TaskId> = same.iter().map(|task| task.id).collect();
            if ids.is_empty() {
                return Ok(None);
            }
            if ids != watched {
                // What changes from here on is noticed, so they are read again.
                watch = context.engine.watch(ids.clone(), false);
                watched = ids;
                continue;
            }
            let mut may_be_left = false;
            for task in same {
                let id = task.id;
                // Before it is stored, so that a client that hangs up now leaves it again.
                calls.add_joined(context, key.clone(), id, shared);
                *lock(&self.state) = State { awaited: Some(RunOrTask::Task(id)), counted: true };
                match self.try_join(&task, shared).await {
                    Ok(Some(task)) => {
                        self.set_joined(&task);
                        return Ok(Some(task));
                    }
                    refused => {
                        calls.forget(id);
                        *lock(&self.state) = State::default();
                        refused?;
                    }
                }
                may_be_left |= task.ended.is_none();
            }
            if !may_be_left {
                return Ok(None);
            }
            tokio::select! {
                _ = watch.changed() => {}
                () = &mut deadline => return Ok(None),
            }
        }
    }

    /// Joins a task in the store; none if it is another call's.
    async fn try_join(&self, task: &Task, shared: bool) -> Result<Option<Arc<Task>>, engine::Error> {
        match self.context.engine.join(task, shared).await {
            Ok(task) => Ok(Some(task)),
            Err(engine::Error::Rejected(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn set_joined(&self, task: &Task) {
        let _ = self.joined_started_at.set(task.began_at());
        self.context.engine.metrics().tool(&self.tool).call_joined();
        tracing::info!(caller = self.caller.as_str(), tool = %self.tool, task = %task.id, "a call joined the work of an earlier one");
        self.catch_up();
    }

    /// The caller cancelled the call: its work stops, unless another call waits for it, too.
    pub(in crate::protocol) fn cancel(&self) {
        // The flag first: a call that gets its work just now then sees it.
        self.cancelled.store(true, Ordering::Release);
        self.stop();
    }

    /// The client does not wait any longer: the work lingers from now on, whenever the request itself ends.
    pub(in crate::protocol) fn give_up(&self) {
        // The flag first: a call that gets its work just now then sees it.
        self.given_up.store(true, Ordering::Release);
        let State { awaited: work, counted } = std::mem::take(&mut *lock(&self.state));
        if let Some(work) = work {
            linger::let_linger(self, work, counted);
        }
    }

    fn stop(&self) {
        let State { awaited: work, counted } = std::mem::take(&mut *lock(&self.state));
        let Some(work) = work else { return };
        if counted && self.context.calls.remove_waiter(work.id()) > 0 {
            return;
        }
        self.context.calls.forget(work.id());
        match work {
            RunOrTask::Run(run) => run.cancel(CANCELLED_BY_CALLER),
            RunOrTask::Task(id) => self.context.engine.abandon_in_order(self.caller.clone(), id, CANCELLED_BY_CALLER),
        }
    }
}

impl Drop for WaitingCall {
    fn drop(&mut self) {
        if self.byte_stream_request.is_some() {
            self.context.calls.unregister_request(self);
        }
        if let Some(key) = self.dedupe_key.get().filter(|_| self.slow.load(Ordering::Acquire)) {
            self.context.calls.remove_slow(&self.tool, key);
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
