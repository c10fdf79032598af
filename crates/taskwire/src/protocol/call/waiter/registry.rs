//! Calls on byte streams by their names, and work that others may join: what was left by those who called for it, and what a tool
//! with `dedupe` is doing.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::Value;
use taskwire_core::{
    CallerId, Payload, TaskId, Timestamp, Version,
    task::{Event, Outcome, Task},
    wire::RequestId,
};
use tokio::sync::{MutexGuard, Notify, futures::Notified, watch};

use super::{WaitingCall, lock};
use crate::{
    engine, followup,
    protocol::{
        ByteStreamId, Context,
        call::{CANCELLED_BY_CALLER, dedupe::fingerprint, find_tool},
        prune::Prune,
    },
};

/// Entries before those that nobody can join any more are looked for.
const KNOWN_MIN: usize = 1_024;
/// Cancelled calls that are remembered.
const EARLY_CANCELS_MAX: usize = 256;

/// What calls that are the same have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::protocol) struct DedupeKey {
    pub(super) caller: CallerId,
    /// Whether the caller knows of no task.
    pub(super) hidden: bool,
    /// Of the tool and the arguments.
    pub(super) fingerprint: Arc<str>,
}

impl DedupeKey {
    pub(super) fn of(context: &Context, caller: &CallerId, hidden: bool, tool: &str, request: &Payload) -> Self {
        // One that is gone has no defaults.
        let definition: Value = find_tool(context, tool).ok().and_then(|tool| tool.0.wire.read().ok()).unwrap_or_default();
        let arguments: Value = request.read().unwrap_or_default();
        let fingerprint = fingerprint(tool, &definition["inputSchema"], &arguments);
        Self { caller: caller.clone(), hidden, fingerprint }
    }
}

/// Becomes true when the work is a task that can be read, or never will be.
pub(super) type Ready = watch::Receiver<bool>;

/// Work that may be joined.
#[derive(Debug)]
struct JoinableWork {
    key: DedupeKey,
    /// Calls that wait for it.
    waiters: usize,
    /// Whether it may be joined while others wait for it.
    dedupe: bool,
    /// Whether somebody knows of the task, so that it goes on to its end.
    caller_knows: bool,
    /// Answers with its end that are on their way: who calls now begins anew.
    answers_in_flight: usize,
    /// How often it was left.
    linger_count: u64,
    /// Since when nobody asked for it.
    since: Timestamp,
    ready: Option<Ready>,
}

impl JoinableWork {
    fn can_join(&self) -> bool {
        self.answers_in_flight == 0 && (self.dedupe || self.waiters == 0)
    }
}

#[derive(Debug, Default)]
struct RegistryState {
    joinable: HashMap<TaskId, JoinableWork>,
    /// The same by call, the earliest first.
    by_key: HashMap<DedupeKey, Vec<TaskId>>,
    prune: Prune<KNOWN_MIN>,
    /// The latest that were cancelled and are not known.
    early_cancels: VecDeque<(ByteStreamId, RequestId)>,
    /// Calls on byte streams, by name.
    by_request: HashMap<(ByteStreamId, RequestId), Weak<WaitingCall>>,
}

impl RegistryState {
    fn insert(&mut self, id: TaskId, joinable: JoinableWork) {
        self.by_key.entry(joinable.key.clone()).or_default().push(id);
        self.joinable.insert(id, joinable);
    }

    fn remove(&mut self, id: TaskId) {
        let Some(joinable) = self.joinable.remove(&id) else { return };
        if let Entry::Occupied(mut same) = self.by_key.entry(joinable.key) {
            same.get_mut().retain(|known| *known != id);
            if same.get().is_empty() {
                same.remove();
            }
        }
    }
}

/// All calls of one tool by one caller.
type OfTool = (CallerId, Arc<str>);

/// Calls on byte streams, and work that may be joined.
#[derive(Debug, Default)]
pub(crate) struct CallRegistry {
    create_lock: tokio::sync::Mutex<()>,
    /// Whether all that an earlier life of the server left is known.
    recovered: watch::Sender<bool>,
    state: Mutex<RegistryState>,
    /// How many calls take their time: by caller and tool, then by what they have in common.
    slow: Mutex<HashMap<OfTool, HashMap<DedupeKey, usize>>>,
    /// Rung when work was left.
    linger_began: Notify,
    /// Work that is being made durable because its caller left it.
    linger_saves: watch::Sender<usize>,
    /// How much there is to join; most of the time nothing.
    count: AtomicUsize,
}

impl CallRegistry {
    fn with<T>(&self, act: impl FnOnce(&mut RegistryState) -> T) -> T {
        let mut known = lock(&self.state);
        let done = act(&mut known);
        self.count.store(known.joinable.len(), Ordering::Release);
        done
    }

    /// Notes a call that takes its time, until it is [over](Self::remove_slow).
    pub(super) fn add_slow(&self, tool: &Arc<str>, key: &DedupeKey) {
        let mut slow = lock(&self.slow);
        *slow.entry((key.caller.clone(), tool.clone())).or_default().entry(key.clone()).or_default() += 1;
    }

    /// Such a call is over.
    pub(super) fn remove_slow(&self, tool: &Arc<str>, key: &DedupeKey) {
        let mut slow = lock(&self.slow);
        let Entry::Occupied(mut of_tool) = slow.entry((key.caller.clone(), tool.clone())) else { return };
        if let Entry::Occupied(mut same) = of_tool.get_mut().entry(key.clone()) {
            *same.get_mut() -= 1;
            if *same.get() == 0 {
                same.remove();
            }
        }
        if of_tool.get().is_empty() {
            of_tool.remove();
        }
    }

    /// Whether such a call is the same as this one.
    pub(super) fn has_slow(&self, waiting: &WaitingCall) -> bool {
        let of_tool = (waiting.caller.clone(), waiting.tool.clone());
        // Most of the time there is none, and what calls have in common need not be worked out.
        lock(&self.slow).contains_key(&of_tool)
            && waiting.dedupe_key().is_some_and(|key| lock(&self.slow).get(&of_tool).is_some_and(|slow| slow.contains_key(key)))
    }

    /// Waits until work is left, from now on.
    pub(super) fn next_linger(&self) -> Notified<'_> {
        self.linger_began.notified()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Waits until nobody else makes a task that calls may share.
    pub(super) async fn lock_create(&self) -> MutexGuard<'_, ()> {
        self.create_lock.lock().await
    }

    /// Waits until all that was left so far is durable.
    pub(crate) async fn lingering_saved(&self) {
        let _ = self.linger_saves.subscribe().wait_for(|leaving| *leaving == 0).await;
    }

    pub(super) fn register_request(&self, waiting: &Arc<WaitingCall>) {
        if let Some(name) = &waiting.byte_stream_request {
            lock(&self.state).by_request.insert(name.clone(), Arc::downgrade(waiting));
        }
    }

    pub(super) fn unregister_request(&self, waiting: &WaitingCall) {
        if let Some(name) = &waiting.byte_stream_request
            && let Entry::Occupied(named) = lock(&self.state).by_request.entry(name.clone())
            && std::ptr::eq(named.get().as_ptr(), waiting)
        {
            named.remove();
        }
    }

    /// Whether a call of this name was cancelled before it came.
    pub(super) fn take_early_cancel(&self, stream: &ByteStreamId, request: &RequestId) -> bool {
        let mut known = lock(&self.state);
        let found = known.early_cancels.iter().position(|(of, id)| of == stream && id == request);
        found.is_some_and(|at| known.early_cancels.remove(at).is_some())
    }

    /// The caller does not want what it called for on a byte stream, or only does not wait for it any longer (`timed_out`); the end of
    /// that request follows.
    pub(in crate::protocol) fn cancel(&self, caller: &CallerId, stream: &ByteStreamId, request: &RequestId, timed_out: bool) {
        let name = (stream.clone(), request.clone());
        let named = {
            let mut known = lock(&self.state);
            let named = known.by_request.get(&name).and_then(Weak::upgrade);
            if named.is_none() && !timed_out {
                // It may come yet, or once more: over connections of its own, or to a server that has just taken the place of another.
                if known.early_cancels.len() >= EARLY_CANCELS_MAX {
                    known.early_cancels.pop_front();
                }
                known.early_cancels.push_back(name);
            }
            named
        };
        if let Some(waiting) = named.filter(|waiting| waiting.caller == *caller) {
            if timed_out { waiting.give_up() } else { waiting.cancel() }
        }
    }

    /// Stops a task that its caller does not want any more, unless a call waits for it.
    pub(in crate::protocol) fn stop(&self, context: &Context, caller: &CallerId, id: TaskId) {
        let awaited = self.with(|known| {
            let awaited = known.joinable.get(&id).is_some_and(|joinable| joinable.waiters > 0);
            if !awaited {
                known.remove(id);
            }
            awaited
        });
        if !awaited {
            context.engine.cancel_soon(caller.clone(), id, CANCELLED_BY_CALLER);
        }
    }

    /// Waits until all that an earlier life of the server left is known.
    pub(super) async fn recovered(&self) {
        if !*self.recovered.borrow() {
            let _ = self.recovered.subscribe().wait_for(|ready| *ready).await;
        }
    }

    /// A task that an earlier life of the server left was taken over; none when all are. The same call finds it, also when it has
    /// ended since: whether somebody was told of it, nobody knows any more.
    pub(crate) fn add_recovered(&self, context: &Context, task: Option<&Arc<Task>>) {
        let Some(task) = task else {
            self.recovered.send_replace(true);
            return;
        };
        match stored_key(context, task) {
            Err(error) => tracing::warn!(task = %task.id, %error, "an open task could not be read: the same call will not find it"),
            Ok(None) => {}
            Ok(Some(key)) => {
                let joinable =
                    JoinableWork { dedupe: task.spec.dedupe_key.is_some(), caller_knows: true, ..JoinableWork::new(key, context) };
                self.with(|known| {
                    if !known.joinable.contains_key(&task.id) {
                        known.insert(task.id, joinable)
                    }
                });
            }
        }
    }

    /// Lets others join the task that a call made and waits for.
    pub(super) fn add_deduped(&self, context: &Context, key: DedupeKey, id: TaskId) {
        self.prune(context);
        let joinable = JoinableWork { dedupe: true, waiters: 1, ..JoinableWork::new(key, context) };
        self.with(|known| known.insert(id, joinable));
    }

    /// Forgets what nobody can join any more, if there is much of it.
    fn prune(&self, context: &Context) {
        self.with(|known| {
            if !known.prune.is_due(known.joinable.len()) {
                return;
            }
            let gone = |(id, joinable): (&TaskId, &JoinableWork)| {
                let task = context.engine.task(&joinable.key.caller, *id);
                let kept = joinable.waiters > 0 || matches!(task, Ok(Some(task)) if is_joinable(context, &task));
                (!kept).then_some(*id)
            };
            let gone: Vec<TaskId> = known.joinable.iter().filter_map(gone).collect();
            gone.into_iter().for_each(|id| known.remove(id));
            known.prune.pruned(known.joinable.len());
        });
    }

    /// Takes work of the same call that may be joined: one more waits for it now.
    pub(super) fn join(&self, key: &DedupeKey) -> Option<(TaskId, Option<Ready>)> {
        self.with(|known| {
            let RegistryState { joinable: work, by_key, .. } = known;
            let id = *by_key.get(key)?.iter().find(|id| work.get(id).is_some_and(JoinableWork::can_join))?;
            let joinable = work.get_mut(&id)?;
            joinable.waiters += 1;
            Some((id, joinable.ready.clone()))
        })
    }

    /// One more waits for a task that another call waits for, which is `counted` already or is now.
    pub(super) fn join_awaited(&self, context: &Context, key: DedupeKey, id: TaskId, counted: bool) {
        self.with(|known| match known.joinable.get_mut(&id) {
            Some(joinable) => joinable.waiters += if counted { 1 } else { 2 },
            None => known.insert(id, JoinableWork { waiters: 2, ..JoinableWork::new(key, context) }),
        });
    }

    /// One more waits for a task; says whether those are counted.
    pub(super) fn add_waiter(&self, id: TaskId) -> bool {
        self.with(|known| known.joinable.get_mut(&id).map(|joinable| joinable.waiters += 1).is_some())
    }

    /// One fewer waits for a task; says how many do.
    pub(super) fn remove_waiter(&self, id: TaskId) -> usize {
        self.with(|known| {
            known.joinable.get_mut(&id).map_or(0, |joinable| {
                joinable.waiters = joinable.waiters.saturating_sub(1);
                joinable.waiters
            })
        })
    }

    /// A call is gone without an answer. If nobody waits for its work now, that is left, and has to be kept: says how often it was.
    /// Without a `key` it cannot be found by the same call.
    pub(super) fn begin_linger(&self, context: &Context, id: TaskId, counted: bool, key: Option<DedupeKey>, ready: Ready) -> Option<u64> {
        self.prune(context);
        let turn = self.with(|known| {
            match known.joinable.get_mut(&id) {
                // Somebody else was told of its end meanwhile.
                None if counted => return None,
                None => known.insert(id, JoinableWork::new(key?, context)),
                Some(joinable) if counted => joinable.waiters = joinable.waiters.saturating_sub(1),
                Some(_) => {}
            }
            let joinable = known.joinable.get_mut(&id).filter(|joinable| joinable.waiters == 0)?;
            (joinable.ready, joinable.since) = (Some(ready), context.engine.clock().now());
            joinable.linger_count += 1;
            Some(joinable.linger_count)
        })?;
        self.linger_saves.send_modify(|leaving| *leaving += 1);
        self.linger_began.notify_waiters();
        Some(turn)
    }

    /// Work that was left is durable, or cannot be.
    pub(super) fn linger_saved(&self) {
        self.linger_saves.send_modify(|leaving| *leaving -= 1);
    }

    /// Since when nobody has asked for work that was left; none if somebody waits for it since, or knows of it.
    pub(super) fn lingering_since(&self, id: TaskId, turn: u64) -> Option<Timestamp> {
        self.with(|known| {
            let joinable = known.joinable.get(&id)?;
            (joinable.linger_count == turn && joinable.waiters == 0 && !joinable.caller_knows).then_some(joinable.since)
        })
    }

    pub(super) fn forget(&self, id: TaskId) {
        self.with(|known| known.remove(id));
    }

    pub(super) fn set_answering(&self, id: TaskId, begins: bool) {
        self.with(|known| {
            if let Some(joinable) = known.joinable.get_mut(&id) {
                joinable.answers_in_flight =
                    if begins { joinable.answers_in_flight + 1 } else { joinable.answers_in_flight.saturating_sub(1) };
            }
        });
    }

    /// A caller that waited was told how the work `ended`, or how to get on.
    pub(super) fn answered(&self, id: TaskId, ended: bool) {
        self.with(|known| match known.joinable.get_mut(&id) {
            Some(joinable) if joinable.dedupe && !ended => {
                joinable.waiters = joinable.waiters.saturating_sub(1);
                joinable.caller_knows = true;
            }
            _ => known.remove(id),
        });
    }

    /// Somebody who knows a task's id asks for it: it is not left alone.
    pub(in crate::protocol) fn touch(&self, context: &Context, id: TaskId) {
        if !self.is_empty() {
            let now = context.engine.clock().now();
            self.with(|known| known.joinable.get_mut(&id).map(|joinable| joinable.since = now));
        }
    }

    /// The caller learnt of a task by a follow-up tool with these arguments: of its end, if it is over.
    pub(in crate::protocol) fn followed_up(&self, context: &Context, caller: &CallerId, arguments: &Value) {
        if self.is_empty() {
            return;
        }
        let id = arguments["task_id"].as_str().and_then(followup::read_id);
        if let Some(Ok(Some(task))) = id.map(|id| context.engine.task(caller, id)) {
            if task.ended.is_some() { self.forget(task.id) } else { self.touch(context, task.id) }
        }
    }
}

impl JoinableWork {
    fn new(key: DedupeKey, context: &Context) -> Self {
        let since = context.engine.clock().now();
        Self { key, waiters: 0, dedupe: false, caller_knows: false, answers_in_flight: 0, linger_count: 0, since, ready: None }
    }
}

/// The arguments that a task was made with.
pub(super) fn stored_request(context: &Context, id: TaskId) -> Result<Option<Payload>, engine::Error> {
    Ok(match context.engine.reader().event(id, Version(1))? {
        Some(Event::Created { arguments: request, .. }) => Some(request),
        _ => None,
    })
}

/// By what a stored task can be found by the same call; none if it cannot.
fn stored_key(context: &Context, task: &Task) -> Result<Option<DedupeKey>, engine::Error> {
    let spec = &task.spec;
    if let Some(fingerprint) = spec.dedupe_key.clone() {
        return Ok(Some(DedupeKey { caller: spec.caller.clone(), hidden: spec.hidden, fingerprint }));
    }
    // Who has a key, or was given the task's id, needs no other way back.
    if !spec.lingers || !spec.hidden || spec.idempotency_key.is_some() {
        return Ok(None);
    }
    Ok(stored_request(context, task.id)?.map(|request| DedupeKey::of(context, &spec.caller, true, &spec.tool, &request)))
}

/// Whether the same call gets this task: one that goes on, or for a while one whose end nobody has had.
pub(super) fn is_joinable(context: &Context, task: &Task) -> bool {
    match (&task.outcome, task.ended) {
        (Some(Outcome::Cancelled { .. }), _) => false,
        (_, Some((at, _))) => context.engine.clock().now().since(at) <= context.config.hold,
        (_, None) => true,
    }
}

/// Waits until work that was left can be read.
pub(super) async fn wait_until_ready(ready: Option<Ready>) {
    if let Some(mut ready) = ready {
        let _ = ready.wait_for(|ready| *ready).await;
    }
}
