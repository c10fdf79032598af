//! Calls that are the same share a task, where their tool says so (`dedupe`): who was cut off and calls again gets what is
//! running already.
//!
//! The store is what knows the tasks; here is only where to look. What is lost with the process is read from the store again,
//! but for ends that nobody has heard of.

use std::{
    borrow::Cow,
    collections::HashMap,
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
    server::Shared,
};

/// Tasks after which those that are over are forgotten.
const KNOWN_MIN: usize = 1_024;
/// Tasks that are read from the store together.
const PAGE: usize = 256;

/// What calls that are the same have in common: the same tool, and arguments that are equal as JSON values, whatever the order of
/// their keys.
pub(super) fn likeness(tool: &str, arguments: &Value) -> Arc<str> {
    let mut hash = Sha256::new();
    hash.update((tool.len() as u64).to_be_bytes());
    hash.update(tool);
    hash.update(in_order(arguments).to_string());
    URL_SAFE_NO_PAD.encode(hash.finalize()).into()
}

/// The value with the keys of every object in order.
fn in_order(value: &Value) -> Cow<'_, Value> {
    match value {
        Value::Object(members) => {
            let mut members: Vec<(&String, &Value)> = members.iter().collect();
            members.sort_by_key(|(key, _)| *key);
            Cow::Owned(Value::Object(members.into_iter().map(|(key, value)| (key.clone(), in_order(value).into_owned())).collect()))
        }
        Value::Array(values) => Cow::Owned(values.iter().map(|value| in_order(value).into_owned()).collect()),
        _ => Cow::Borrowed(value),
    }
}

/// Whether a caller calls something off because it would not wait any longer, and not because it is not wanted any more.
pub(super) fn is_timeout(reason: &str) -> bool {
    let reason = reason.to_ascii_lowercase();
    reason.contains("timed out") || reason.contains("timeout")
}

type Likeness = (CallerId, Arc<str>);

/// A call on a byte stream that shares a task, and whether it was called off.
type Called = (CallerId, RequestId, Weak<AtomicBool>);

/// Tasks that calls share.
#[derive(Debug, Default)]
pub(crate) struct Twins {
    /// Held while a call looks for an earlier one and makes its task: of two at once, one makes it. Says whether the store was
    /// read.
    turn: tokio::sync::Mutex<bool>,
    known: Mutex<Known>,
    calls: Mutex<Vec<Called>>,
}

#[derive(Debug, Default)]
struct Known {
    tasks: HashMap<Likeness, TaskId>,
    /// How many there may be before those that are over are looked for.
    most: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each is consistent between statements, so a panic elsewhere does not spoil it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Twins {
    /// The task of an earlier call that is the same.
    fn find(&self, shared: &Shared, likeness: &Likeness) -> Result<Option<Arc<Task>>, engine::Error> {
        let known = lock(&self.known).tasks.get(likeness).copied();
        let Some(id) = known else { return Ok(None) };
        Ok(shared.engine.task(&likeness.0, id)?.filter(|task| is_shared(shared, task)))
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

    fn keep(&self, shared: &Shared, likeness: Likeness, id: TaskId) {
        let mut known = lock(&self.known);
        if known.tasks.len() >= known.most.max(KNOWN_MIN) {
            known.tasks.retain(|(caller, _), id| matches!(shared.engine.task(caller, *id), Ok(Some(task)) if is_shared(shared, &task)));
            known.most = known.tasks.len() * 2;
        }
        known.tasks.insert(likeness, id);
    }

    fn forget(&self, likeness: &Likeness, id: TaskId) {
        let mut known = lock(&self.known);
        if known.tasks.get(likeness) == Some(&id) {
            known.tasks.remove(likeness);
        }
    }

    /// To be done when the caller hears how a task ended: calls that are the same begin anew from then on.
    pub(super) fn heard(shared: &Arc<Shared>, task: &Task) -> Option<Sent> {
        let (likeness, id, shared) = (likeness_of(task)?, task.id, shared.clone());
        Some(Sent::new(move |delivered| {
            if delivered {
                shared.twins.forget(&likeness, id);
            }
        }))
    }

    /// The caller learnt of a task by a follow-up tool with these arguments: of its end, if it is over.
    pub(super) fn heard_by(shared: &Arc<Shared>, caller: &CallerId, arguments: &Value) {
        let id = arguments["task_id"].as_str().and_then(|id| id.parse::<TaskId>().ok());
        if let Some(Ok(Some(task))) = id.map(|id| shared.engine.task(caller, id))
            && task.ended.is_some()
            && let Some(heard) = Self::heard(shared, &task)
        {
            heard.delivered();
        }
    }

    /// Notes that a call on a byte stream was called off; its end follows.
    pub(super) fn call_off(&self, caller: &CallerId, request: &RequestId) {
        for (_, _, off) in lock(&self.calls).iter().filter(|(by, id, _)| by == caller && id == request) {
            if let Some(off) = off.upgrade() {
                off.store(true, Ordering::Release);
            }
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

/// A call that shares a task. Losing its connection does not stop the task; being called off does.
pub(super) struct Seat {
    shared: Arc<Shared>,
    caller: CallerId,
    task: Option<TaskId>,
    off: Arc<AtomicBool>,
}

impl Seat {
    /// One of `caller`; `named` on a byte stream, where being called off and being cut off look alike.
    pub(super) fn take(shared: &Arc<Shared>, caller: &CallerId, named: Option<&RequestId>) -> Self {
        let off = Arc::<AtomicBool>::default();
        if let Some(request) = named {
            let mut calls = lock(&shared.twins.calls);
            calls.retain(|(_, _, off)| off.strong_count() > 0);
            calls.push((caller.clone(), request.clone(), Arc::downgrade(&off)));
        }
        Self { shared: shared.clone(), caller: caller.clone(), task: None, off }
    }

    /// The task of an earlier call that is the same, or a new one; whether it is an earlier one's.
    pub(super) async fn join(
        &mut self,
        likeness: &Arc<str>,
        spec: Arc<Spec>,
        request: Payload,
        resumed: Resumed,
        notes: Option<mpsc::Sender<Note>>,
    ) -> Result<(Arc<Task>, bool), engine::Error> {
        let id = self.shared.engine.new_id();
        self.task = Some(id);
        let (shared, off) = (self.shared.clone(), self.off.clone());
        let likeness = (self.caller.clone(), likeness.clone());
        // On its own, so that a caller that goes away cannot leave a task behind that the next one does not find.
        let joined: JoinHandle<Result<_, engine::Error>> = tokio::spawn(async move {
            let twins = &shared.twins;
            let mut read = twins.turn.lock().await;
            if !*read {
                twins.read(&shared)?;
                *read = true;
            }
            if let Some(task) = twins.find(&shared, &likeness)? {
                return Ok((task, true));
            }
            let receipt = shared.engine.create(id, spec, request, &resumed, notes).await?;
            if off.load(Ordering::Acquire) {
                shared.engine.call_off(likeness.0.clone(), id, CALLED_OFF);
            }
            twins.keep(&shared, likeness, id);
            Ok((receipt.task, false))
        });
        let gone = |_| engine::Error::Unavailable("the call could not be made".into());
        let (task, joined) = joined.await.map_err(gone)??;
        self.task = Some(task.id);
        Ok((task, joined))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(task) = self.task.filter(|_| self.off.load(Ordering::Acquire)) {
            self.shared.engine.call_off(self.caller.clone(), task, CALLED_OFF);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_are_the_same_whatever_the_order_of_their_keys() {
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
    fn a_client_that_would_not_wait_is_told_from_one_that_changed_its_mind() {
        for reason in ["Request timed out", "McpError: MCP error -32001: Request timed out", "TIMEOUT", "request timeout"] {
            assert!(is_timeout(reason), "{reason}");
        }
        for reason in ["", "cancelled by the user", "not needed any more", "time is money"] {
            assert!(!is_timeout(reason), "{reason}");
        }
    }
}
