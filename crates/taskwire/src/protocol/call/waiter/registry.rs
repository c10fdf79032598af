//! Which calls wait, by request id on a byte stream, and which work the same call may join: work that lingers, and work of tools with
//! `dedupe`.

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
    task::{Authority, Command, Event, Outcome, Task},
    wire::RequestId,
};
use tokio::sync::{Notify, OwnedMutexGuard, futures::Notified, watch};

use super::{WaitingCall, lock};
use crate::{
    engine, followup,
    protocol::{
        ByteStreamId, Context,
        call::{CANCELLED_BY_CALLER, dedupe::fingerprint, find_tool},
        prune::Prune,
    },
};

/// From this many entries on, those that nobody can join any more are removed.
const KNOWN_MIN: usize = 1_024;
/// How many cancellations of unknown calls are remembered.
const EARLY_CANCELS_MAX: usize = 256;

/// Equal for calls that are the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::protocol) struct DedupeKey {
    pub(super) caller: CallerId,
    /// Whether the caller does not know the task.
    pub(super) hidden: bool,
    /// Of the tool and the arguments.
    pub(in crate::protocol) fingerprint: Arc<str>,
}

impl DedupeKey {
    pub(super) fn of(context: &Context, caller: &CallerId, hidden: bool, tool: &str, arguments: &Payload) -> Self {
        // A tool that is gone has no defaults.
        let definition: Value = find_tool(context, tool).ok().and_then(|tool| tool.0.wire.read().ok()).unwrap_or_default();
        let arguments: Value = arguments.read().unwrap_or_default();
        let fingerprint = fingerprint(tool, &definition["inputSchema"], &arguments);
        Self { caller: caller.clone(), hidden, fingerprint }
    }
}

/// Becomes true when the work is a task that can be read, or cannot become one.
pub(super) type Ready = watch::Receiver<bool>;

#[derive(Debug)]
struct JoinableWork {
    key: DedupeKey,
    waiters: usize,
    /// Whether calls may join it while others wait for it.
    dedupe: bool,
    /// Whether a caller knows the task, so that it runs to its end.
    caller_knows: bool,
    /// Responses with its outcome that are being sent. A call that comes now starts anew.
    responses_in_flight: usize,
    /// How often it began to linger.
    linger_count: u64,
    /// Since when no caller has asked for it.
    since: Timestamp,
    ready: Option<Ready>,
}

impl JoinableWork {
    fn can_join(&self) -> bool {
        self.responses_in_flight == 0 && (self.dedupe || self.waiters == 0)
    }
}

#[derive(Debug, Default)]
struct RegistryState {
    joinable: HashMap<TaskId, JoinableWork>,
    /// Ids in `joinable`, the earliest first.
    by_key: HashMap<DedupeKey, Vec<TaskId>>,
    prune: Prune<KNOWN_MIN>,
    /// The latest cancellations of calls that are not known.
    early_cancels: VecDeque<(ByteStreamId, RequestId)>,
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

#[derive(Debug, Default)]
pub(crate) struct CallRegistry {
    /// The locks of keys for which a call is about to create a task.
    creating: Mutex<HashMap<DedupeKey, Weak<tokio::sync::Mutex<()>>>>,
    /// Whether all tasks that recovery takes over are registered.
    recovered: watch::Sender<bool>,
    state: Mutex<RegistryState>,
    /// How many calls are slow: by caller and tool, then by key.
    slow: Mutex<HashMap<OfTool, HashMap<DedupeKey, usize>>>,
    /// Notified when work begins to linger.
    linger_began: Notify,
    /// How much lingering work is being made durable.
    linger_saves: watch::Sender<usize>,
    /// The size of `joinable`, readable without the lock; mostly 0.
    count: AtomicUsize,
}

impl CallRegistry {
    fn with<T>(&self, act: impl FnOnce(&mut RegistryState) -> T) -> T {
        let mut known = lock(&self.state);
        let done = act(&mut known);
        self.count.store(known.joinable.len(), Ordering::Release);
        done
    }

    /// Counts a slow call until [`Self::remove_slow`].
    pub(super) fn add_slow(&self, tool: &Arc<str>, key: &DedupeKey) {
        let mut slow = lock(&self.slow);
        *slow.entry((key.caller.clone(), tool.clone())).or_default().entry(key.clone()).or_default() += 1;
    }

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

    /// Whether a slow call is the same as this one.
    pub(super) fn has_slow(&self, waiting: &WaitingCall) -> bool {
        let of_tool = (waiting.caller.clone(), waiting.tool.clone());
        // Mostly there is none, and the key need not be computed.
        lock(&self.slow).contains_key(&of_tool)
            && waiting.dedupe_key().is_some_and(|key| lock(&self.slow).get(&of_tool).is_some_and(|slow| slow.contains_key(key)))
    }

    /// Waits until work begins to linger.
    pub(super) fn next_linger(&self) -> Notified<'_> {
        self.linger_began.notified()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Waits until no other call of this node that is the same creates a task: it knows then who waits for that task, and who has cancelled.
    pub(super) async fn lock_create(&self, key: &DedupeKey) -> OwnedMutexGuard<()> {
        let turn = {
            let mut creating = lock(&self.creating);
            if creating.len() >= KNOWN_MIN {
                creating.retain(|_, turn| turn.strong_count() > 0);
            }
            let known = creating.get(key).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let turn = Arc::default();
                creating.insert(key.clone(), Arc::downgrade(&turn));
                turn
            })
        };
        turn.lock_owned().await
    }

    /// Waits until all lingering work is durable.
    pub(crate) async fn lingering_saved(&self) {
        let _ = self.linger_saves.subscribe().wait_for(|saves| *saves == 0).await;
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

    /// Whether this request was cancelled before it came.
    pub(super) fn take_early_cancel(&self, stream: &ByteStreamId, request: &RequestId) -> bool {
        let mut known = lock(&self.state);
        let found = known.early_cancels.iter().position(|(of, id)| of == stream && id == request);
        found.is_some_and(|at| known.early_cancels.remove(at).is_some())
    }

    /// The client cancels a call on a byte stream, or only does not wait for it any longer (`timed_out`). The request ends after this.
    pub(in crate::protocol) fn cancel(&self, caller: &CallerId, stream: &ByteStreamId, request: &RequestId, timed_out: bool) {
        let name = (stream.clone(), request.clone());
        let named = {
            let mut known = lock(&self.state);
            let named = known.by_request.get(&name).and_then(Weak::upgrade);
            if named.is_none() && !timed_out {
                // The call may come later, or again: on a connection of its own, or to a server that has just taken over.
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

    /// Stops a task that its caller cancelled, unless a call waits for it.
    pub(in crate::protocol) fn stop(&self, context: &Context, caller: &CallerId, id: TaskId) {
        let awaited = self.with(|known| {
            let awaited = known.joinable.get(&id).is_some_and(|joinable| joinable.waiters > 0);
            if !awaited {
                known.remove(id);
            }
            awaited
        });
        if !awaited {
            context.engine.abandon_in_order(caller.clone(), id, CANCELLED_BY_CALLER);
        }
    }

    /// Waits until all tasks that recovery takes over are registered.
    pub(super) async fn recovered(&self) {
        if !*self.recovered.borrow() {
            let _ = self.recovered.subscribe().wait_for(|ready| *ready).await;
        }
    }

    /// Registers a task that recovery took over; none when these were all. The same call finds it, even if it ended meanwhile, because
    /// nobody knows whether its caller got the result.
    pub(crate) async fn add_recovered(&self, context: &Context, task: Option<Arc<Task>>) {
        let Some(task) = task else {
            self.recovered.send_replace(true);
            return;
        };
        if task.spec.linger_key.is_some() {
            // The task names who waits for it.
            return;
        }
        match stored_key(context, &task).await {
            Err(error) => tracing::warn!(task = %task.id, %error, "an open task could not be read: the same call will not find it"),
            Ok(None) => {}
            Ok(Some(key)) => {
                let joinable =
                    JoinableWork { dedupe: task.spec.fingerprint.is_some(), caller_knows: true, ..JoinableWork::new(key, context) };
                self.with(|known| {
                    if !known.joinable.contains_key(&task.id) {
                        known.insert(task.id, joinable)
                    }
                });
            }
        }
    }

    /// Counts one more waiter of a task that calls share, and lets others join it.
    pub(super) async fn add_deduped(&self, context: &Context, key: DedupeKey, id: TaskId) {
        self.prune(context).await;
        self.with(|known| match known.joinable.get_mut(&id) {
            Some(joinable) => joinable.waiters += 1,
            None => known.insert(id, JoinableWork { dedupe: true, waiters: 1, ..JoinableWork::new(key, context) }),
        });
    }

    /// Counts the first waiter of a task that a call has joined in the store.
    pub(super) fn add_joined(&self, context: &Context, key: DedupeKey, id: TaskId, dedupe: bool) {
        self.with(|known| known.insert(id, JoinableWork { dedupe, waiters: 1, ..JoinableWork::new(key, context) }));
    }

    /// Whether calls of this node wait for a task, or left it.
    pub(super) fn is_known(&self, id: TaskId) -> bool {
        self.with(|known| known.joinable.contains_key(&id))
    }

    /// Whether calls may join a task while others wait for it.
    pub(super) fn is_deduped(&self, id: TaskId) -> bool {
        self.with(|known| known.joinable.get(&id).is_some_and(|joinable| joinable.dedupe))
    }

    /// Removes what nobody can join any more, if that is due.
    pub(super) async fn prune(&self, context: &Context) {
        let awaited_by_none = self.with(|known| {
            if !known.prune.is_due(known.joinable.len()) {
                return Vec::new();
            }
            // Nobody else looks at the same time.
            known.prune.pruned(known.joinable.len());
            // What is being made durable has no task yet.
            let is_saved = |joinable: &JoinableWork| joinable.ready.as_ref().is_none_or(|ready| *ready.borrow());
            let none_waits = known.joinable.iter().filter(|(_, joinable)| joinable.waiters == 0 && is_saved(joinable));
            none_waits.map(|(id, joinable)| (*id, joinable.key.caller.clone())).collect()
        });
        if awaited_by_none.is_empty() {
            return;
        }
        let mut gone = Vec::new();
        for (id, caller) in awaited_by_none {
            match context.engine.task(&caller, id).await {
                Ok(Some(task)) if is_joinable(context, &task) => {}
                Err(engine::Error::Away) => {}
                _ => gone.push(id),
            }
        }
        self.with(|known| {
            // A call may have joined it meanwhile.
            gone.retain(|id| known.joinable.get(id).is_some_and(|joinable| joinable.waiters == 0));
            gone.into_iter().for_each(|id| known.remove(id));
            known.prune.pruned(known.joinable.len());
        });
    }

    /// Finds work of the same call that may be joined, and counts one more waiter.
    pub(super) fn join(&self, key: &DedupeKey) -> Option<(TaskId, Option<Ready>)> {
        self.with(|known| {
            let RegistryState { joinable: work, by_key, .. } = known;
            let id = *by_key.get(key)?.iter().find(|id| work.get(id).is_some_and(JoinableWork::can_join))?;
            let joinable = work.get_mut(&id)?;
            joinable.waiters += 1;
            Some((id, joinable.ready.clone()))
        })
    }

    /// Counts one more waiter of a task for which another call waits, and that call too if it is not `counted`.
    pub(super) fn join_awaited(&self, context: &Context, key: DedupeKey, id: TaskId, counted: bool) {
        self.with(|known| match known.joinable.get_mut(&id) {
            Some(joinable) => joinable.waiters += if counted { 1 } else { 2 },
            None => known.insert(id, JoinableWork { waiters: 2, ..JoinableWork::new(key, context) }),
        });
    }

    /// Counts one more waiter; says whether waiters of this task are counted.
    pub(super) fn add_waiter(&self, id: TaskId) -> bool {
        self.with(|known| known.joinable.get_mut(&id).map(|joinable| joinable.waiters += 1).is_some())
    }

    /// Counts one waiter fewer; says how many are left.
    pub(super) fn remove_waiter(&self, id: TaskId) -> usize {
        self.with(|known| {
            known.joinable.get_mut(&id).map_or(0, |joinable| {
                joinable.waiters = joinable.waiters.saturating_sub(1);
                joinable.waiters
            })
        })
    }

    /// A call ended without an answer. If nobody waits for its work now, the work begins to linger: says how often it did. Without a `key`
    /// the same call cannot find it.
    pub(super) fn begin_linger(&self, context: &Context, id: TaskId, counted: bool, key: Option<DedupeKey>, ready: Ready) -> Option<u64> {
        let turn = self.with(|known| {
            match known.joinable.get_mut(&id) {
                // Another call got the outcome meanwhile.
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
        self.linger_saves.send_modify(|saves| *saves += 1);
        self.linger_began.notify_waiters();
        Some(turn)
    }

    /// Lingering work is durable, or cannot be made durable.
    pub(super) fn linger_saved(&self) {
        self.linger_saves.send_modify(|saves| *saves -= 1);
    }

    /// Since when no caller has asked for lingering work; none if a call waits for it again, or a caller knows it.
    pub(super) fn lingering_since(&self, id: TaskId, turn: u64) -> Option<Timestamp> {
        self.with(|known| {
            let joinable = known.joinable.get(&id)?;
            (joinable.linger_count == turn && joinable.waiters == 0 && !joinable.caller_knows).then_some(joinable.since)
        })
    }

    pub(super) fn forget(&self, id: TaskId) {
        self.with(|known| known.remove(id));
    }

    pub(super) fn set_responding(&self, id: TaskId, begins: bool) {
        self.with(|known| {
            if let Some(joinable) = known.joinable.get_mut(&id) {
                joinable.responses_in_flight =
                    if begins { joinable.responses_in_flight + 1 } else { joinable.responses_in_flight.saturating_sub(1) };
            }
        });
    }

    /// A waiting caller got the outcome (`ended`), or learned how to go on.
    pub(super) fn responded(&self, id: TaskId, ended: bool) {
        self.with(|known| match known.joinable.get_mut(&id) {
            Some(joinable) if joinable.dedupe && !ended => {
                joinable.waiters = joinable.waiters.saturating_sub(1);
                joinable.caller_knows = true;
            }
            _ => known.remove(id),
        });
    }

    /// A caller that knows the task's id asked for it, so its time to linger starts again, if it is that caller's.
    pub(in crate::protocol) fn touch(&self, context: &Context, caller: &CallerId, id: TaskId) {
        if !self.is_empty() {
            let now = context.engine.clock().now();
            self.with(|known| {
                if let Some(joinable) = known.joinable.get_mut(&id).filter(|joinable| joinable.key.caller == *caller) {
                    joinable.since = now;
                }
            });
        }
    }

    /// A caller used a follow-up tool with these arguments. If the task has ended, the caller knows the outcome now.
    pub(in crate::protocol) async fn followed_up(&self, context: &Context, caller: &CallerId, arguments: &Value) {
        if self.is_empty() && !context.engine.is_shared() {
            return;
        }
        let id = arguments["task_id"].as_str().and_then(followup::read_id);
        let Some(id) = id else { return };
        if let Ok(Some(task)) = context.engine.task(caller, id).await {
            if task.ended.is_some() {
                self.forget(task.id)
            } else {
                self.touch(context, caller, task.id)
            }
            if task.left_at().is_some() {
                // On any node, too. If that fails, the same call gets the outcome once more, or the work stops earlier.
                let _ = match task.ended {
                    Some(_) => context.engine.join(&task, true).await.map(drop),
                    None => context.engine.submit(id, Authority::Engine, Command::Touch).await.map(drop),
                };
            }
        }
    }
}

impl JoinableWork {
    fn new(key: DedupeKey, context: &Context) -> Self {
        let since = context.engine.clock().now();
        Self { key, waiters: 0, dedupe: false, caller_knows: false, responses_in_flight: 0, linger_count: 0, since, ready: None }
    }
}

/// The arguments of a stored task.
pub(super) async fn stored_arguments(context: &Context, id: TaskId) -> Result<Option<Payload>, engine::Error> {
    Ok(match context.engine.reader().event(id, Version(1)).await? {
        Some(Event::Created { arguments: request, .. }) => Some(request),
        _ => None,
    })
}

/// The key by which the same call finds a stored task; none if it cannot.
async fn stored_key(context: &Context, task: &Task) -> Result<Option<DedupeKey>, engine::Error> {
    let spec = &task.spec;
    if let Some(fingerprint) = spec.fingerprint.clone() {
        return Ok(Some(DedupeKey { caller: spec.caller.clone(), hidden: spec.hidden, fingerprint }));
    }
    // A caller with an idempotency key or the task's id finds the task by that.
    if !spec.lingers || !spec.hidden || spec.idempotency_key.is_some() {
        return Ok(None);
    }
    Ok(stored_arguments(context, task.id).await?.map(|request| DedupeKey::of(context, &spec.caller, true, &spec.tool, &request)))
}

/// Whether the same call gets this task: one that runs, or for a while one whose result nobody got.
pub(super) fn is_joinable(context: &Context, task: &Task) -> bool {
    match (&task.outcome, task.ended) {
        (Some(Outcome::Cancelled { .. }), _) => false,
        (_, Some((at, _))) => context.engine.clock().now().since(at) <= context.config.hold,
        (_, None) => true,
    }
}

/// Waits until lingering work can be read.
pub(super) async fn wait_until_ready(ready: Option<Ready>) {
    if let Some(mut ready) = ready {
        let _ = ready.wait_for(|ready| *ready).await;
    }
}
