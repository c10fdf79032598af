//! Calls that are the same share a task, where their tool says so (`dedupe`): who was cut off and calls again gets what is
//! running already.
//!
//! The store is what knows the tasks; here is only where to look. What is lost with the process is read from the store again,
//! but for ends that nobody has heard of.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::Value;
use sha2::{Digest, Sha256};
use taskwire_core::{
    CallerId, Payload, TaskId,
    task::{Outcome, Spec, Task},
    wire::RequestId,
};
use tokio::{sync::mpsc, task::JoinHandle};

use super::{Sent, called::CALLED_OFF};
use crate::{
    engine::{self, Note, Resumed},
    followup,
    server::Shared,
    tool::integer,
};

/// Tasks after which those that are over are forgotten.
const KNOWN_MIN: usize = 1_024;
/// Tasks that are read from the store together.
const PAGE: usize = 256;

/// What calls that are the same have in common: the same tool, and arguments that are equal as JSON values, with the defaults of the
/// tool's input schema for what is not given, whatever the order of their keys, and whether it is `1` or `1.0`.
pub(super) fn likeness(tool: &str, schema: &Value, arguments: &Value) -> Arc<str> {
    let mut hash = Sha256::new();
    hash.update((tool.len() as u64).to_be_bytes());
    hash.update(tool);
    hash.update(in_order(&with_defaults(schema, arguments)).to_string());
    URL_SAFE_NO_PAD.encode(hash.finalize()).into()
}

/// The arguments with the defaults of the schema for those that are not given.
fn with_defaults(schema: &Value, arguments: &Value) -> Value {
    let mut all = arguments.clone();
    if let Some(members) = all.as_object_mut() {
        for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            if let Some(default) = property.get("default") {
                members.entry(name.as_str()).or_insert_with(|| default.clone());
            }
        }
    }
    all
}

/// The value with the keys of every object in order, and each number written in one way.
fn in_order(value: &Value) -> Cow<'_, Value> {
    match value {
        Value::Object(members) => {
            let mut members: Vec<(&String, &Value)> = members.iter().collect();
            members.sort_by_key(|(key, _)| *key);
            Cow::Owned(Value::Object(members.into_iter().map(|(key, value)| (key.clone(), in_order(value).into_owned())).collect()))
        }
        Value::Array(values) => Cow::Owned(values.iter().map(|value| in_order(value).into_owned()).collect()),
        Value::Number(number) => integer(number).map_or(Cow::Borrowed(value), |integer| Cow::Owned(Value::from(integer))),
        _ => Cow::Borrowed(value),
    }
}

/// Whether a caller calls something off because it would not wait any longer, and not because it is not wanted any more.
pub(super) fn is_timeout(reason: &str) -> bool {
    let reason = reason.to_ascii_lowercase();
    reason.contains("timed out") || reason.contains("timeout")
}

type Likeness = (CallerId, Arc<str>);

/// A call that shares a task, as others see it.
#[derive(Debug, Default)]
pub(super) struct Mark {
    /// Whether it was called off.
    off: AtomicBool,
    /// The task that it waits for.
    task: Mutex<Option<TaskId>>,
}

/// A call that shares a task, for as long as somebody waits for it.
#[derive(Debug)]
struct Called {
    caller: CallerId,
    /// Its name on a byte stream.
    request: Option<RequestId>,
    mark: Weak<Mark>,
}

impl Called {
    fn waits_for(&self, id: TaskId) -> bool {
        self.mark.upgrade().is_some_and(|mark| *lock(&mark.task) == Some(id))
    }
}

/// Tasks that calls share.
#[derive(Debug, Default)]
pub(crate) struct Twins {
    /// Held while a call looks for an earlier one and makes its task: of two at once, one makes it. Says whether the store was
    /// read.
    turn: tokio::sync::Mutex<bool>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    tasks: HashMap<Likeness, TaskId>,
    /// How many there may be before those that are over are looked for.
    most: usize,
    /// The calls that wait for one of them, or look for one.
    calls: Vec<Called>,
    /// Those whose end somebody has heard of, of late: another who was to hear of it, too, may turn out to be gone.
    told: HashSet<TaskId>,
}

impl Known {
    fn told(&mut self, id: TaskId) {
        if self.told.len() >= KNOWN_MIN {
            self.told.clear();
        }
        self.told.insert(id);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each is consistent between statements, so a panic elsewhere does not spoil it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Twins {
    /// The task of an earlier call that is the same, for which this one waits from now on.
    fn find(&self, shared: &Shared, likeness: &Likeness, mark: &Mark) -> Result<Option<Arc<Task>>, engine::Error> {
        let found = {
            let known = lock(&self.known);
            let found = known.tasks.get(likeness).copied();
            // In the same breath: who leaves the task after this does not stop it.
            *lock(&mark.task) = found;
            found
        };
        let Some(id) = found else { return Ok(None) };
        let task = shared.engine.task(&likeness.0, id)?.filter(|task| is_shared(shared, task));
        if task.is_none() {
            *lock(&mark.task) = None;
        }
        Ok(task)
    }

    /// Finds again what an earlier life of the server left.
    fn read(&self, shared: &Shared) -> Result<(), engine::Error> {
        let (reader, mut after) = (shared.engine.reader(), None);
        loop {
            let page = reader.open(after, PAGE)?;
            let Some(last) = page.last().copied() else { return Ok(()) };
            for id in page {
                let Some(task) = reader.task(id)? else { continue };
                if let Some(likeness) = likeness_of(&task) {
                    lock(&self.known).tasks.insert(likeness, id);
                }
            }
            after = Some(last);
        }
    }

    /// Lets others find the task that a call made and waits for.
    fn keep(&self, shared: &Shared, likeness: Likeness, id: TaskId, mark: &Mark) {
        let mut known = lock(&self.known);
        if known.tasks.len() >= known.most.max(KNOWN_MIN) {
            known.tasks.retain(|(caller, _), id| matches!(shared.engine.task(caller, *id), Ok(Some(task)) if is_shared(shared, &task)));
            known.most = known.tasks.len() * 2;
        }
        known.tasks.insert(likeness, id);
        *lock(&mark.task) = Some(id);
    }

    /// Whether it was known.
    fn forget(&self, likeness: &Likeness, id: TaskId) -> bool {
        let mut known = lock(&self.known);
        let same = known.tasks.get(likeness) == Some(&id);
        if same {
            known.tasks.remove(likeness);
        }
        same
    }

    /// The caller is about to hear how a task ended: calls that are the same begin anew from now on, and not only when it has heard,
    /// for by then it may have called again. If it never hears, they find the task again.
    pub(super) fn heard(shared: &Arc<Shared>, task: &Task) -> Option<Sent> {
        let (likeness, id, shared) = (likeness_of(task)?, task.id, shared.clone());
        let known = shared.twins.forget(&likeness, id);
        Some(Sent::new(move |delivered| {
            let mut all = lock(&shared.twins.known);
            if delivered {
                all.told(id);
            } else if known && !all.told.contains(&id) {
                all.tasks.entry(likeness).or_insert(id);
            }
        }))
    }

    /// The caller learnt of a task by a follow-up tool with these arguments: of its end, if it is over.
    pub(super) fn heard_by(shared: &Arc<Shared>, caller: &CallerId, arguments: &Value) {
        let id = arguments["task_id"].as_str().and_then(followup::read_id);
        if let Some(Ok(Some(task))) = id.map(|id| shared.engine.task(caller, id))
            && task.ended.is_some()
            && let Some(heard) = Self::heard(shared, &task)
        {
            heard.delivered();
        }
    }

    /// A call on a byte stream was called off; its end follows.
    pub(super) fn call_off(&self, shared: &Shared, caller: &CallerId, request: &RequestId) {
        let marks: Vec<Arc<Mark>> = {
            let known = lock(&self.known);
            let named = known.calls.iter().filter(|call| call.caller == *caller && call.request.as_ref() == Some(request));
            named.filter_map(|call| call.mark.upgrade()).collect()
        };
        for mark in marks {
            self.leave(shared, caller, &mark);
        }
    }

    /// A call was called off: what it waits for stops, unless another call waits for that, too.
    pub(super) fn leave(&self, shared: &Shared, caller: &CallerId, mark: &Mark) {
        // In this order: one that is about to find its task, or to make it, sees this then.
        mark.off.store(true, Ordering::Release);
        let task = lock(&mark.task).take();
        if let Some(task) = task {
            self.stop(shared, caller, task);
        }
    }

    /// Stops a task that its caller called off, unless a call waits for it. Calls that are the same begin anew from now on: they
    /// must not get what is about to be cancelled.
    pub(super) fn stop(&self, shared: &Shared, caller: &CallerId, id: TaskId) {
        let awaited = {
            let mut known = lock(&self.known);
            let awaited = known.calls.iter().any(|call| call.waits_for(id));
            if !awaited {
                known.tasks.retain(|_, known| *known != id);
            }
            awaited
        };
        if !awaited {
            shared.engine.call_off(caller.clone(), id, CALLED_OFF);
        }
    }
}

fn likeness_of(task: &Task) -> Option<Likeness> {
    Some((task.spec.caller.clone(), task.spec.dedupe.clone()?))
}

/// Whether a call that is the same gets this task: one that goes on, or one whose end nobody has heard of, for a while.
fn is_shared(shared: &Shared, task: &Task) -> bool {
    match (&task.outcome, task.ended) {
        (Some(Outcome::Cancelled { .. }), _) => false,
        (_, Some((at, _))) => shared.engine.clock().now().since(at) <= shared.config.hold,
        (_, None) => true,
    }
}

/// A call that shares a task, and waits for it as long as this lives. Losing its connection does not stop the task; being called
/// off does, if nobody else waits for it.
pub(super) struct Seat {
    shared: Arc<Shared>,
    caller: CallerId,
    mark: Arc<Mark>,
}

impl Seat {
    /// One of `caller`; `named` on a byte stream, where being called off and being cut off look alike.
    pub(super) fn take(shared: &Arc<Shared>, caller: &CallerId, named: Option<&RequestId>) -> Self {
        let mark = Arc::<Mark>::default();
        let called = Called { caller: caller.clone(), request: named.cloned(), mark: Arc::downgrade(&mark) };
        let mut known = lock(&shared.twins.known);
        known.calls.retain(|call| call.mark.strong_count() > 0);
        known.calls.push(called);
        drop(known);
        Self { shared: shared.clone(), caller: caller.clone(), mark }
    }

    /// That of a call whose reader came back to this task; the one from `before`, if it is still there.
    pub(super) fn again(shared: &Arc<Shared>, caller: &CallerId, before: Option<Arc<Mark>>, task: TaskId) -> Self {
        match before {
            Some(mark) => Self { shared: shared.clone(), caller: caller.clone(), mark },
            None => {
                let seat = Self::take(shared, caller, None);
                *lock(&seat.mark.task) = Some(task);
                seat
            }
        }
    }

    pub(super) fn mark(&self) -> &Arc<Mark> {
        &self.mark
    }

    /// The task of an earlier call that is the same, or a new one; whether it is an earlier one's.
    pub(super) async fn join(
        &self,
        likeness: &Arc<str>,
        spec: Arc<Spec>,
        request: Payload,
        resumed: Resumed,
        notes: Option<mpsc::Sender<Note>>,
    ) -> Result<(Arc<Task>, bool), engine::Error> {
        let id = self.shared.engine.new_id();
        let (shared, mark) = (self.shared.clone(), self.mark.clone());
        let likeness = (self.caller.clone(), likeness.clone());
        // On its own, so that a caller that goes away cannot leave a task behind that the next one does not find.
        let joined: JoinHandle<Result<_, engine::Error>> = tokio::spawn(async move {
            let twins = &shared.twins;
            let mut read = twins.turn.lock().await;
            if !*read {
                twins.read(&shared)?;
                *read = true;
            }
            let caller = likeness.0.clone();
            let (task, joined) = match twins.find(&shared, &likeness, &mark)? {
                Some(task) => (task, true),
                None => {
                    let receipt = shared.engine.create(id, spec, request, &resumed, notes).await?;
                    twins.keep(&shared, likeness, id, &mark);
                    (receipt.task, false)
                }
            };
            // It was called off before there was anything to leave.
            if mark.off.load(Ordering::Acquire) {
                twins.leave(&shared, &caller, &mark);
            }
            Ok((task, joined))
        });
        let gone = |_| engine::Error::Unavailable("the call could not be made".into());
        joined.await.map_err(gone)?
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_are_the_same_whatever_the_order_of_their_keys() {
        let likeness = |tool: &str, arguments: &Value| likeness(tool, &json!({"type": "object"}), arguments);
        let read = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
        let one = read(r#"{"a":1,"b":{"x":[{"p":1,"q":2}],"y":null}}"#);
        let other = read(r#"{"b":{"y":null,"x":[{"q":2,"p":1}]},"a":1}"#);
        assert_eq!(likeness("t", &one), likeness("t", &other));
        for different in [json!({"a": 1}), json!({"a": "1", "b": one["b"]}), json!({"a": 1, "b": {"x": [{"p": 1, "q": 2}]}})] {
            assert_ne!(likeness("t", &one), likeness("t", &different), "{different}");
        }
        assert_ne!(likeness("t", &json!({"a": [1, 2]})), likeness("t", &json!({"a": [2, 1]})), "a list has an order");
        assert_ne!(likeness("t", &one), likeness("u", &one), "another tool");
        assert_ne!(likeness("t", &json!("u")), likeness("t\"u\"", &json!(null)));
    }

    #[test]
    fn calls_are_the_same_with_a_default_and_without() {
        let schema = json!({"type": "object", "properties": {
            "n": {"type": "integer"}, "note": {"type": "string", "default": "d"}, "size": {"default": 2.0}, "odd": true,
        }});
        let same = |one: Value, other: Value| likeness("t", &schema, &one) == likeness("t", &schema, &other);
        assert!(same(json!({"n": 1}), json!({"n": 1, "note": "d"})));
        assert!(same(json!({}), json!({"size": 2, "note": "d"})));
        assert!(same(json!({"note": "x"}), json!({"size": 2, "note": "x"})));
        for different in [json!({"n": 1, "note": "x"}), json!({"n": 1, "note": null}), json!({"note": "d"}), json!({"n": 1, "more": "d"})] {
            assert!(!same(json!({"n": 1}), different.clone()), "{different}");
        }
        assert!(!same(json!({"n": {}}), json!({"n": {"note": "d"}})), "what is inside a value has no defaults here");
    }

    #[test]
    fn numbers_that_are_equal_are_the_same() {
        let same = |one: Value, other: Value| {
            let in_all = |value: Value| likeness("t", &json!({"type": "object"}), &json!({"n": value, "deep": [{"n": [value]}]}));
            in_all(one) == in_all(other)
        };
        for (one, other) in [(json!(1), json!(1.0)), (json!(1000), json!(1e3)), (json!(-4), json!(-4.0)), (json!(0), json!(-0.0))] {
            assert!(same(one.clone(), other.clone()), "{one} and {other}");
        }
        assert!(same(json!(9_007_199_254_740_991_i64), json!(9_007_199_254_740_991.0)));
        for (one, other) in [
            (json!(1), json!(1.5)),
            (json!(1), json!("1")),
            (json!(1), json!(true)),
            (json!(9_007_199_254_740_993_i64), json!(9_007_199_254_740_992.0)),
            (json!(u64::MAX), json!(2_f64.powi(64))),
        ] {
            assert!(!same(one.clone(), other.clone()), "{one} and {other}");
        }
    }

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
