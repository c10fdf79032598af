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

use super::{Waiting, lock};
use crate::{
    dialect::{
        Context, StreamId,
        call::{CALLED_OFF, find_tool, fingerprint::fingerprint},
        prune::Prune,
    },
    engine, followup,
};

/// Entries before those that nobody can join any more are looked for.
const KNOWN_MIN: usize = 1_024;
/// Cancelled calls that are remembered.
const CANCELLED_MAX: usize = 256;

/// What calls that are the same have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::dialect) struct Key {
    pub(super) caller: CallerId,
    /// Whether the caller knows of no task.
    pub(super) hidden: bool,
    /// Of the tool and the arguments.
    pub(super) fingerprint: Arc<str>,
}

impl Key {
    pub(super) fn of(shared: &Context, caller: &CallerId, hidden: bool, tool: &str, request: &Payload) -> Self {
        // One that is gone has no defaults.
        let definition: Value = find_tool(shared, tool).ok().and_then(|tool| tool.0.wire.read().ok()).unwrap_or_default();
        let arguments: Value = request.read().unwrap_or_default();
        let fingerprint = fingerprint(tool, &definition["inputSchema"], &arguments);
        Self { caller: caller.clone(), hidden, fingerprint }
    }
}

/// Becomes true when the work is a task that can be read, or never will be.
pub(super) type Ready = watch::Receiver<bool>;

/// Work that may be joined.
#[derive(Debug)]
struct Joinable {
    key: Key,
    /// Calls that wait for it.
    waiters: usize,
    /// Whether it may be joined while others wait for it.
    shared: bool,
    /// Whether somebody knows of the task, so that it goes on to its end.
    known: bool,
    /// Answers with its end that are on their way: who calls now begins anew.
    answering: usize,
    /// How often it was left.
    turn: u64,
    /// Since when nobody asked for it.
    since: Timestamp,
    ready: Option<Ready>,
}

impl Joinable {
    fn is_free(&self) -> bool {
        self.answering == 0 && (self.shared || self.waiters == 0)
    }
}

#[derive(Debug, Default)]
struct Known {
    work: HashMap<TaskId, Joinable>,
    /// The same by call, the earliest first.
    by_key: HashMap<Key, Vec<TaskId>>,
    prune: Prune<KNOWN_MIN>,
    /// The latest that were cancelled and are not known.
    cancelled: VecDeque<(StreamId, RequestId)>,
    /// Calls on byte streams, by name.
    named: HashMap<(StreamId, RequestId), Weak<Waiting>>,
}

impl Known {
    fn insert(&mut self, id: TaskId, joinable: Joinable) {
        self.by_key.entry(joinable.key.clone()).or_default().push(id);
        self.work.insert(id, joinable);
    }

    fn remove(&mut self, id: TaskId) {
        let Some(joinable) = self.work.remove(&id) else { return };
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
pub(crate) struct Calls {
    turn: tokio::sync::Mutex<()>,
    /// Whether all that an earlier life of the server left is known.
    ready: watch::Sender<bool>,
    known: Mutex<Known>,
    /// How many calls take their time: by caller and tool, then by what they have in common.
    slow: Mutex<HashMap<OfTool, HashMap<Key, usize>>>,
    /// Rung when work was left.
    left: Notify,
    /// Work that is being made durable because its caller left it.
    leaving: watch::Sender<usize>,
    /// How much there is to join; most of the time nothing.
    count: AtomicUsize,
}

impl Calls {
    fn with<T>(&self, act: impl FnOnce(&mut Known) -> T) -> T {
        let mut known = lock(&self.known);
        let done = act(&mut known);
        self.count.store(known.work.len(), Ordering::Release);
        done
    }

    /// Notes a call that takes its time, until it is [over](Self::remove_slow).
    pub(super) fn add_slow(&self, tool: &Arc<str>, key: &Key) {
        let mut slow = lock(&self.slow);
        *slow.entry((key.caller.clone(), tool.clone())).or_default().entry(key.clone()).or_default() += 1;
    }

    /// Such a call is over.
    pub(super) fn remove_slow(&self, tool: &Arc<str>, key: &Key) {
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
    pub(super) fn has_slow(&self, waiting: &Waiting) -> bool {
        let of_tool = (waiting.caller.clone(), waiting.tool.clone());
        // Most of the time there is none, and what calls have in common need not be worked out.
        lock(&self.slow).contains_key(&of_tool)
            && waiting.key().is_some_and(|key| lock(&self.slow).get(&of_tool).is_some_and(|slow| slow.contains_key(key)))
    }

    /// Waits until work is left, from now on.
    pub(super) fn next_left(&self) -> Notified<'_> {
        self.left.notified()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Waits until nobody else makes a task that calls may share.
    pub(super) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Waits until all that was left so far is durable.
    pub(crate) async fn settled(&self) {
        let _ = self.leaving.subscribe().wait_for(|leaving| *leaving == 0).await;
    }

    pub(super) fn name(&self, waiting: &Arc<Waiting>) {
        if let Some(name) = &waiting.named {
            lock(&self.known).named.insert(name.clone(), Arc::downgrade(waiting));
        }
    }

    pub(super) fn unname(&self, waiting: &Waiting) {
        if let Some(name) = &waiting.named
            && let Entry::Occupied(named) = lock(&self.known).named.entry(name.clone())
            && std::ptr::eq(named.get().as_ptr(), waiting)
        {
            named.remove();
        }
    }

    /// Whether a call of this name was cancelled before it came.
    pub(super) fn was_cancelled(&self, stream: &StreamId, request: &RequestId) -> bool {
        let mut known = lock(&self.known);
        let found = known.cancelled.iter().position(|(of, id)| of == stream && id == request);
        found.is_some_and(|at| known.cancelled.remove(at).is_some())
    }

    /// The caller does not want what it called for on a byte stream, or only does not wait for it any longer (`timed_out`); the end of
    /// that request follows.
    pub(in crate::dialect) fn cancel(&self, caller: &CallerId, stream: &StreamId, request: &RequestId, timed_out: bool) {
        let name = (stream.clone(), request.clone());
        let named = {
            let mut known = lock(&self.known);
            let named = known.named.get(&name).and_then(Weak::upgrade);
            if named.is_none() && !timed_out {
                // It may come yet, or once more: over connections of its own, or to a server that has just taken the place of another.
                if known.cancelled.len() >= CANCELLED_MAX {
                    known.cancelled.pop_front();
                }
                known.cancelled.push_back(name);
            }
            named
        };
        if let Some(waiting) = named.filter(|waiting| waiting.caller == *caller) {
            if timed_out { waiting.give_up() } else { waiting.cancel() }
        }
    }

    /// Stops a task that its caller does not want any more, unless a call waits for it.
    pub(in crate::dialect) fn stop(&self, shared: &Context, caller: &CallerId, id: TaskId) {
        let awaited = self.with(|known| {
            let awaited = known.work.get(&id).is_some_and(|joinable| joinable.waiters > 0);
            if !awaited {
                known.remove(id);
            }
            awaited
        });
        if !awaited {
            shared.engine.call_off(caller.clone(), id, CALLED_OFF);
        }
    }

    /// Waits until all that an earlier life of the server left is known.
    pub(super) async fn ready(&self) {
        if !*self.ready.borrow() {
            let _ = self.ready.subscribe().wait_for(|ready| *ready).await;
        }
    }

    /// A task that an earlier life of the server left was taken over; none when all are. The same call finds it, also when it has
    /// ended since: whether somebody was told of it, nobody knows any more.
    pub(crate) fn taken_over(&self, shared: &Context, task: Option<&Arc<Task>>) {
        let Some(task) = task else {
            self.ready.send_replace(true);
            return;
        };
        match key_of(shared, task) {
            Err(error) => tracing::warn!(task = %task.id, %error, "an open task could not be read: the same call will not find it"),
            Ok(None) => {}
            Ok(Some(key)) => {
                let joinable = Joinable { shared: task.spec.dedupe.is_some(), known: true, ..Joinable::new(key, shared) };
                self.with(|known| {
                    if !known.work.contains_key(&task.id) {
                        known.insert(task.id, joinable)
                    }
                });
            }
        }
    }

    /// Lets others join the task that a call made and waits for.
    pub(super) fn share(&self, shared: &Context, key: Key, id: TaskId) {
        self.trim(shared);
        let joinable = Joinable { shared: true, waiters: 1, ..Joinable::new(key, shared) };
        self.with(|known| known.insert(id, joinable));
    }

    /// Forgets what nobody can join any more, if there is much of it.
    fn trim(&self, shared: &Context) {
        self.with(|known| {
            if !known.prune.is_due(known.work.len()) {
                return;
            }
            let gone = |(id, joinable): (&TaskId, &Joinable)| {
                let task = shared.engine.task(&joinable.key.caller, *id);
                let kept = joinable.waiters > 0 || matches!(task, Ok(Some(task)) if is_joinable(shared, &task));
                (!kept).then_some(*id)
            };
            let gone: Vec<TaskId> = known.work.iter().filter_map(gone).collect();
            gone.into_iter().for_each(|id| known.remove(id));
            known.prune.left(known.work.len());
        });
    }

    /// Takes work of the same call that may be joined: one more waits for it now.
    pub(super) fn take(&self, key: &Key) -> Option<(TaskId, Option<Ready>)> {
        self.with(|known| {
            let Known { work, by_key, .. } = known;
            let id = *by_key.get(key)?.iter().find(|id| work.get(id).is_some_and(Joinable::is_free))?;
            let joinable = work.get_mut(&id)?;
            joinable.waiters += 1;
            Some((id, joinable.ready.clone()))
        })
    }

    /// One more waits for a task that another call waits for, which is `counted` already or is now.
    pub(super) fn attend_both(&self, shared: &Context, key: Key, id: TaskId, counted: bool) {
        self.with(|known| match known.work.get_mut(&id) {
            Some(joinable) => joinable.waiters += if counted { 1 } else { 2 },
            None => known.insert(id, Joinable { waiters: 2, ..Joinable::new(key, shared) }),
        });
    }

    /// One more waits for a task; says whether those are counted.
    pub(super) fn attend(&self, id: TaskId) -> bool {
        self.with(|known| known.work.get_mut(&id).map(|joinable| joinable.waiters += 1).is_some())
    }

    /// One fewer waits for a task; says how many do.
    pub(super) fn leave(&self, id: TaskId) -> usize {
        self.with(|known| {
            known.work.get_mut(&id).map_or(0, |joinable| {
                joinable.waiters = joinable.waiters.saturating_sub(1);
                joinable.waiters
            })
        })
    }

    /// A call is gone without an answer. If nobody waits for its work now, that is left, and has to be kept: says how often it was.
    /// Without a `key` it cannot be found by the same call.
    pub(super) fn left(&self, shared: &Context, id: TaskId, counted: bool, key: Option<Key>, ready: Ready) -> Option<u64> {
        self.trim(shared);
        let turn = self.with(|known| {
            match known.work.get_mut(&id) {
                // Somebody else was told of its end meanwhile.
                None if counted => return None,
                None => known.insert(id, Joinable::new(key?, shared)),
                Some(joinable) if counted => joinable.waiters = joinable.waiters.saturating_sub(1),
                Some(_) => {}
            }
            let joinable = known.work.get_mut(&id).filter(|joinable| joinable.waiters == 0)?;
            (joinable.ready, joinable.since) = (Some(ready), shared.engine.clock().now());
            joinable.turn += 1;
            Some(joinable.turn)
        })?;
        self.leaving.send_modify(|leaving| *leaving += 1);
        self.left.notify_waiters();
        Some(turn)
    }

    /// Work that was left is durable, or cannot be.
    pub(super) fn kept(&self) {
        self.leaving.send_modify(|leaving| *leaving -= 1);
    }

    /// Since when nobody has asked for work that was left; none if somebody waits for it since, or knows of it.
    pub(super) fn left_since(&self, id: TaskId, turn: u64) -> Option<Timestamp> {
        self.with(|known| {
            let joinable = known.work.get(&id)?;
            (joinable.turn == turn && joinable.waiters == 0 && !joinable.known).then_some(joinable.since)
        })
    }

    pub(super) fn forget(&self, id: TaskId) {
        self.with(|known| known.remove(id));
    }

    pub(super) fn answering(&self, id: TaskId, begins: bool) {
        self.with(|known| {
            if let Some(joinable) = known.work.get_mut(&id) {
                joinable.answering = if begins { joinable.answering + 1 } else { joinable.answering.saturating_sub(1) };
            }
        });
    }

    /// A caller that waited was told how the work `ended`, or how to get on.
    pub(super) fn told(&self, id: TaskId, ended: bool) {
        self.with(|known| match known.work.get_mut(&id) {
            Some(joinable) if joinable.shared && !ended => {
                joinable.waiters = joinable.waiters.saturating_sub(1);
                joinable.known = true;
            }
            _ => known.remove(id),
        });
    }

    /// Somebody who knows a task's id asks for it: it is not left alone.
    pub(in crate::dialect) fn asked_for(&self, shared: &Context, id: TaskId) {
        if !self.is_empty() {
            let now = shared.engine.clock().now();
            self.with(|known| known.work.get_mut(&id).map(|joinable| joinable.since = now));
        }
    }

    /// The caller learnt of a task by a follow-up tool with these arguments: of its end, if it is over.
    pub(in crate::dialect) fn followed_up(&self, shared: &Context, caller: &CallerId, arguments: &Value) {
        if self.is_empty() {
            return;
        }
        let id = arguments["task_id"].as_str().and_then(followup::read_id);
        if let Some(Ok(Some(task))) = id.map(|id| shared.engine.task(caller, id)) {
            if task.ended.is_some() { self.forget(task.id) } else { self.asked_for(shared, task.id) }
        }
    }
}

impl Joinable {
    fn new(key: Key, shared: &Context) -> Self {
        let since = shared.engine.clock().now();
        Self { key, waiters: 0, shared: false, known: false, answering: 0, turn: 0, since, ready: None }
    }
}

/// The arguments that a task was made with.
pub(super) fn request(shared: &Context, id: TaskId) -> Result<Option<Payload>, engine::Error> {
    Ok(match shared.engine.reader().event(id, Version(1))? {
        Some(Event::Created { request, .. }) => Some(request),
        _ => None,
    })
}

/// By what a stored task can be found by the same call; none if it cannot.
fn key_of(shared: &Context, task: &Task) -> Result<Option<Key>, engine::Error> {
    let spec = &task.spec;
    if let Some(fingerprint) = spec.dedupe.clone() {
        return Ok(Some(Key { caller: spec.caller.clone(), hidden: spec.hidden, fingerprint }));
    }
    // Who has a key, or was given the task's id, needs no other way back.
    if !spec.lingers || !spec.hidden || spec.idempotency_key.is_some() {
        return Ok(None);
    }
    Ok(request(shared, task.id)?.map(|request| Key::of(shared, &spec.caller, true, &spec.tool, &request)))
}

/// Whether the same call gets this task: one that goes on, or for a while one whose end nobody has had.
pub(super) fn is_joinable(shared: &Context, task: &Task) -> bool {
    match (&task.outcome, task.ended) {
        (Some(Outcome::Cancelled { .. }), _) => false,
        (_, Some((at, _))) => shared.engine.clock().now().since(at) <= shared.config.hold,
        (_, None) => true,
    }
}

/// Waits until work that was left can be read.
pub(super) async fn ready(ready: Option<Ready>) {
    if let Some(mut ready) = ready {
        let _ = ready.wait_for(|ready| *ready).await;
    }
}
