//! What the server has acknowledged: facts that no crash may take back. Every new observation is held against them.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use serde_json::{Value, json};

use crate::dice::Dice;

/// The kinds of tasks, one for each tool of `crash_tools` that makes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Quick,
    Wait,
    Steps,
    Ask,
    Once,
    Sign,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] = [Self::Quick, Self::Wait, Self::Steps, Self::Ask, Self::Once, Self::Sign];

    pub(crate) const fn tool(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Wait => "wait",
            Self::Steps => "steps",
            Self::Ask => "ask",
            Self::Once => "once",
            Self::Sign => "sign",
        }
    }

    /// Whether it may be run again after an interruption; any other fails then.
    pub(crate) const fn is_retried(self) -> bool {
        matches!(self, Self::Steps | Self::Ask)
    }

    /// Whether it leaves a line in the record.
    pub(crate) const fn is_recorded(self) -> bool {
        matches!(self, Self::Once | Self::Sign)
    }

    /// The result of a task that ran to its end; a `wait` never does.
    fn text(self, n: u64) -> Option<String> {
        match self {
            Self::Wait => None,
            Self::Ask => Some(format!("hello {}-{n}", answer_of(n))),
            Self::Sign => Some(format!("signed {}-{n}", answer_of(n))),
            kind => Some(format!("{}-{n}", kind.tool())),
        }
    }
}

/// The answer to the question of call `n`: always the same, since it is sent again when its receipt was lost.
pub(crate) fn answer_of(n: u64) -> String {
    format!("ada{n}")
}

/// A call of a tool, so that it can be repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) kind: Kind,
    /// Tells this call from all others.
    pub(crate) n: u64,
    pub(crate) key: Option<String>,
}

impl Call {
    pub(crate) fn params(&self) -> Value {
        call_params(self.kind.tool(), self.n, self.key.as_deref())
    }
}

pub(crate) fn call_params(tool: &str, n: u64, key: Option<&str>) -> Value {
    let mut params = json!({"name": tool, "arguments": {"n": n}});
    if let Some(key) = key {
        params["_meta"] = json!({"dev.taskwire/idempotencyKey": key});
    }
    params
}

pub(crate) fn is_terminal(status: &str) -> bool {
    matches!(status, "completed" | "failed" | "cancelled")
}

/// The status of a task as `tasks/get` shows it.
pub(crate) fn status(state: &Value) -> &str {
    state["status"].as_str().unwrap_or_else(|| panic!("a task without a status: {state}"))
}

/// Whether the task failed because the server was killed under it.
pub(crate) fn is_interrupted(state: &Value) -> bool {
    status(state) == "failed" && state["error"]["message"].as_str().is_some_and(|message| message.starts_with("interrupted"))
}

fn updated(state: &Value) -> &str {
    state["lastUpdatedAt"].as_str().unwrap_or_else(|| panic!("a task without `lastUpdatedAt`: {state}"))
}

/// What is known of one task. Moments are RFC 3339 texts with milliseconds in UTC, which sort like the moments.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) call: Call,
    /// The latest `lastUpdatedAt` seen.
    updated: String,
    /// Its question was answered, and that was acknowledged.
    answered: bool,
    /// When it was acknowledged that the task is cancelled.
    cancelled: Option<String>,
    /// The task as it was shown after its end, but for what depends on the moment of asking.
    pub(crate) ended: Option<Value>,
}

impl Facts {
    /// Checks that the task ended as its kind must after what was acknowledged.
    pub(crate) fn check_end(&self, id: &str) {
        let Call { kind, n, .. } = self.call;
        let end = self.ended.as_ref().unwrap_or_else(|| panic!("{id} has not ended: {self:?}"));
        let right = match status(end) {
            "completed" => kind.text(n).is_some_and(|text| end["result"]["content"][0]["text"] == text),
            "failed" => !kind.is_retried() && is_interrupted(end),
            _ => kind == Kind::Wait && self.cancelled.is_some(),
        };
        assert!(right, "{id} did not end as it must: {self:?}");
        if matches!(kind, Kind::Ask | Kind::Sign) && status(end) == "completed" {
            assert!(self.answered, "{id} has an answer that nobody gave: {self:?}");
        }
        // An acknowledged cancel finds the task ended or ends it: whatever ended it was not later.
        if let Some(acknowledged) = &self.cancelled {
            assert!(updated(end) <= acknowledged.as_str(), "{id} went on after an acknowledged cancel: {self:?}");
        }
    }
}

/// How much was acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) creates: usize,
    pub(crate) answers: usize,
    pub(crate) cancels: usize,
    pub(crate) results: usize,
}

#[derive(Debug, Default)]
struct ModelState {
    /// In the order of their acknowledgement.
    ids: Vec<String>,
    tasks: HashMap<String, Facts>,
    /// The task that each idempotency key stands for.
    keys: HashMap<String, String>,
}

/// Everything that was acknowledged to any client.
#[derive(Debug, Default)]
pub(crate) struct Model(Mutex<ModelState>);

impl Model {
    fn lock(&self) -> MutexGuard<'_, ModelState> {
        self.0.lock().expect("another client found a broken promise")
    }

    /// A call was acknowledged with the handle of a task.
    pub(crate) fn created(&self, call: &Call, handle: &Value) -> String {
        assert_eq!(handle["resultType"], "task", "no handle for {call:?}: {handle}");
        let id = handle["taskId"].as_str().expect("a handle names its task").to_owned();
        let mut known = self.lock();
        if let Some(key) = &call.key {
            let first = known.keys.entry(key.clone()).or_insert_with(|| id.clone());
            assert_eq!(*first, id, "one idempotency key made two tasks");
        }
        if let Some(facts) = known.tasks.get(&id) {
            assert!(call.key.is_some() && facts.call == *call, "{id} is the task of {:?} and of {call:?}", facts.call);
            return id;
        }
        let facts = Facts { call: call.clone(), updated: updated(handle).to_owned(), answered: false, cancelled: None, ended: None };
        known.tasks.insert(id.clone(), facts);
        known.ids.push(id.clone());
        id
    }

    /// What is known of a task now; take it before the request whose answer goes to [`observed`](Self::observed).
    pub(crate) fn facts(&self, id: &str) -> Facts {
        self.lock().tasks[id].clone()
    }

    /// A task was seen in this state, by somebody who knew `before` when asking.
    pub(crate) fn observed(&self, id: &str, before: &Facts, state: &Value) {
        let now = status(state);
        assert_eq!(state["taskId"], id, "another task than the one that was asked for");
        assert!(updated(state) >= before.updated.as_str(), "the time of {id} goes back: {before:?}, then {state}");
        assert!(is_terminal(now) || before.ended.is_none(), "{id} had ended and is alive again: {before:?}, then {state}");
        assert!(is_terminal(now) || before.cancelled.is_none(), "the acknowledged cancel of {id} is lost: {state}");
        assert!(now != "input_required" || !before.answered, "the acknowledged answer to {id} is lost: {state}");
        let mut known = self.lock();
        let facts = known.tasks.get_mut(id).expect("only acknowledged tasks are looked at");
        if facts.updated.as_str() < updated(state) {
            facts.updated = updated(state).to_owned();
        }
        if is_terminal(now) {
            let end = lasting(state);
            let first = facts.ended.get_or_insert_with(|| end.clone());
            assert_eq!(*first, end, "the end of {id} has changed");
        }
    }

    /// An answer was acknowledged.
    pub(crate) fn answered(&self, id: &str) {
        self.lock().tasks.get_mut(id).expect("an acknowledged task").answered = true;
    }

    /// A cancel was acknowledged, at `now` or before.
    pub(crate) fn cancelled(&self, id: &str, now: String) {
        self.lock().tasks.get_mut(id).expect("an acknowledged task").cancelled.get_or_insert(now);
    }

    /// Some acknowledged task.
    pub(crate) fn any(&self, dice: &mut Dice) -> Option<String> {
        dice.pick(&self.lock().ids).cloned()
    }

    /// Every acknowledged task.
    pub(crate) fn all(&self) -> Vec<(String, Facts)> {
        let known = self.lock();
        known.ids.iter().map(|id| (id.clone(), known.tasks[id].clone())).collect()
    }

    /// Acknowledged tasks whose end nobody has seen yet.
    pub(crate) fn unfinished(&self) -> Vec<String> {
        let known = self.lock();
        known.ids.iter().filter(|id| known.tasks[*id].ended.is_none()).cloned().collect()
    }

    pub(crate) fn counts(&self) -> Counts {
        let known = self.lock();
        let count = |what: fn(&Facts) -> bool| known.tasks.values().filter(|facts| what(facts)).count();
        Counts {
            creates: known.tasks.len(),
            answers: count(|facts| facts.answered),
            cancels: count(|facts| facts.cancelled.is_some()),
            results: count(|facts| facts.ended.is_some()),
        }
    }
}

/// A task that has ended, without what depends on the moment of asking.
fn lasting(state: &Value) -> Value {
    let mut state = state.clone();
    state.as_object_mut().expect("a task is an object").remove("pollIntervalMs");
    state
}
