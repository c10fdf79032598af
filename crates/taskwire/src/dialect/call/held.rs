//! Calls of clients without tasks: how long they are held, what they hear meanwhile, and what they are told instead of a
//! result that takes longer.
//!
//! A call that is held becomes a task when its time is over, and its caller comes back to it by the follow-up tools. Where that cannot
//! be, its work stops then. With the follow-up tools turned off (`followups`), nothing here takes place.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use taskwire_core::{
    Payload, Timestamp,
    task::{Accepts, Outcome, Reject, Spec, Task},
};

use super::fingerprint::fingerprint;
use crate::{
    clock::{Clock, Sleep},
    dialect::{Context, notes},
    engine::Run,
    followup,
    tool::{CallResult, Content, ReadyTool, TaskMode, payload_lacks},
};

/// How long a caller hears nothing before it is given a sign of life.
const QUIET: Duration = Duration::from_secs(5);

/// Why work stops that was held for long enough, and can be no task.
const NO_ROOM: &str = "its call was held for as long as `hold`, and there was no room for another task";

/// Whether a call of this tool by a caller without tasks may be answered with something else than its result.
pub(in crate::dialect) fn follows(shared: &Context, tool: &ReadyTool) -> bool {
    shared.config.followups && matches!(tool.0.policy.task, TaskMode::Auto | TaskMode::Always)
}

/// Whether this is one of the tools by which a caller without tasks gets on.
pub(in crate::dialect) fn is_followup(shared: &Context, tool: &Arc<ReadyTool>) -> bool {
    shared.followups.iter().any(|known| Arc::ptr_eq(known, tool))
}

/// How a call is held whose caller has no tasks and can get on by the follow-up tools.
#[derive(Debug, Clone, Copy)]
pub(in crate::dialect) struct Hold {
    /// When it was made.
    pub(in crate::dialect) began: Timestamp,
    /// When it has been held long enough.
    until: Timestamp,
    /// What its caller can be asked while it waits.
    native: Accepts,
}

impl Hold {
    /// Holds a call that is made now, by a caller without tasks that can be asked this; none if that is not for its tool.
    pub(in crate::dialect) fn begin(shared: &Context, tool: &ReadyTool, native: Accepts) -> Option<Self> {
        let began = shared.engine.clock().now();
        follows(shared, tool).then(|| Self { began, until: began.after(shared.config.hold), native })
    }

    /// Holds on a call that was made then, and whose caller came back to it.
    pub(in crate::dialect) fn resume(shared: &Context, task: &Task, began: Timestamp, native: Accepts) -> Option<Self> {
        let follows = shared.config.followups && task.spec.hidden && task.spec.findable;
        follows.then(|| Self { began, until: began.after(shared.config.hold), native })
    }

    /// Holds the call as long again: its caller had something else to do than to wait.
    fn anew(self, shared: &Context) -> Self {
        Self { until: shared.engine.clock().now().after(shared.config.hold), ..self }
    }

    /// Lets the caller come back to the task that its call may become, and to that of a call that is the same.
    pub(in crate::dialect) fn open(self, spec: &mut Spec, tool: &ReadyTool, arguments: &Value) {
        spec.findable = true;
        if tool.0.policy.dedupe && spec.idempotency_key.is_none() {
            let definition: Value = tool.0.wire.read().unwrap_or_default();
            spec.dedupe = Some(fingerprint(&tool.0.name, &definition["inputSchema"], arguments));
        }
    }

    /// Whether a person can be asked while the call waits.
    pub(in crate::dialect) fn can_ask(self) -> bool {
        self.native.elicit_form || self.native.elicit_url
    }

    /// Whether anything at all can be asked while the call waits. Nobody is left to answer that when it does not wait any more.
    pub(in crate::dialect) fn asks_natively(self) -> bool {
        self.native != Accepts::default()
    }

    /// Whether the task asks something that its caller cannot be asked while it waits.
    pub(in crate::dialect) fn asks(self, task: &Task) -> bool {
        task.asked_at.is_some() && task.open_inputs().any(|(_, question)| payload_lacks(question, self.native).is_some())
    }
}

/// The hold of one call while it passes.
pub(in crate::dialect) struct HoldTimer<'a> {
    context: &'a Context,
    hold: Option<Hold>,
    expired: bool,
    /// Whether a shutdown is still waited for after that: a call that waits for an answer may outlast its hold by far.
    until_shutdown: bool,
    /// Whether its task was asking something when it was last looked at.
    asked: bool,
}

impl<'a> HoldTimer<'a> {
    pub(in crate::dialect) fn new(context: &'a Context, hold: Option<Hold>, until_shutdown: bool) -> Self {
        Self { context, hold, expired: false, until_shutdown, asked: false }
    }

    pub(in crate::dialect) fn hold(&self) -> Option<Hold> {
        self.hold
    }

    pub(in crate::dialect) fn is_expired(&self) -> bool {
        self.expired
    }

    /// Waits until the hold expires, or the server shuts down; then for ever, as without a hold.
    pub(in crate::dialect) async fn expired(&mut self) {
        let clock = self.context.engine.clock();
        match self.hold {
            Some(hold) if !self.expired => {
                tokio::select! {
                    () = clock.sleep(hold.until.since(clock.now())) => {}
                    () = self.context.drained() => {}
                }
                self.expired = true;
            }
            Some(_) if self.until_shutdown => {
                self.context.drained().await;
                self.until_shutdown = false;
            }
            _ => std::future::pending().await,
        }
    }

    /// The result that the call is answered with instead of that of its task, if it is time for that. Who took the time to answer a
    /// question is held anew.
    pub(in crate::dialect) fn result(&mut self, task: &Task) -> Option<Payload> {
        let asks = task.asked_at.is_some();
        if std::mem::replace(&mut self.asked, asks) && !asks {
            self.hold = self.hold.map(|hold| hold.anew(self.context));
            self.expired = false;
        }
        instead(self.context, self.hold?, task, self.expired)
    }
}

/// What a caller is told instead of the result of a task that goes on, if it is time for that: what the task asks, or, when the
/// time is `over`, that it is still running.
fn instead(shared: &Context, hold: Hold, task: &Task, over: bool) -> Option<Payload> {
    if task.outcome.is_some() {
        return None;
    }
    if hold.asks(task) {
        return Some(payload(&followup::now(&shared.engine, task)));
    }
    // A person who was asked is not cut short, unless nobody will be there to hear the answer.
    let draining = *shared.draining.borrow();
    let goes_on = task.asked_at.is_none() || draining;
    let tell = if draining { followup::going_away } else { followup::now };
    (over && goes_on).then(|| payload(&tell(&shared.engine, task)))
}

/// What a caller is told that knows of no task, only of its call, where that ended without a result: not an error of the protocol,
/// which no model gets to see, but what a model can act on. None for any other end, and any other task.
pub(in crate::dialect) fn failed(shared: &Context, task: &Task) -> Option<Payload> {
    let held = shared.config.followups && task.spec.hidden;
    held.then(|| followup::failed(&shared.engine, task)).flatten().as_ref().map(payload)
}

/// The same of a call that never was a task.
pub(in crate::dialect) fn failed_at_once(shared: &Context, spec: &Spec, outcome: &Outcome) -> Option<Payload> {
    let held = shared.config.followups && spec.hidden;
    held.then(|| followup::failed_at_once(&spec.tool, outcome)).flatten().as_ref().map(payload)
}

/// Stops work that was held for long enough and can be no task, and says so: nobody could find it again, and it would count for nothing.
pub(in crate::dialect) fn no_room(shared: &Context, run: &Run, reject: &Reject) -> Payload {
    let spec = run.spec();
    tracing::info!(caller = spec.caller.as_str(), tool = %spec.tool, %reject, "a call was held for as long as it may be, and stops");
    run.call_off(NO_ROOM);
    payload(&followup::no_room(&spec.tool, shared.config.hold, reject))
}

/// A result with one more text for the model; as it is, if it is no result of a call.
pub(in crate::dialect) fn with_note(result: &Payload, note: &Content) -> Payload {
    let Ok(mut result) = result.read::<CallResult>() else { return result.clone() };
    result.content.push(note.clone().into_payload());
    payload(&result)
}

fn payload(result: &CallResult) -> Payload {
    Payload::of(result).expect("a result consists of JSON already")
}

/// Signs of life for a caller that hears nothing else: many clients give up on a call that is silent for too long.
pub(in crate::dialect) struct Beat {
    clock: Arc<dyn Clock>,
    /// Since when the work has been running, as far as the caller knows.
    began: Timestamp,
    /// What was told at least, before this began.
    floor: f64,
    next: Sleep,
}

impl Beat {
    /// For work that began then; `since` then its caller has heard nothing.
    pub(in crate::dialect) fn new(clock: &Arc<dyn Clock>, began: Timestamp, since: Timestamp, floor: f64) -> Self {
        let next = clock.sleep(since.after(QUIET).since(clock.now()));
        Self { clock: clock.clone(), began, floor, next }
    }

    /// What was told at least when a stream is resumed: the progress that stands in the log, and a sign of life for each time
    /// that may have passed in silence.
    pub(in crate::dialect) fn floor(task: &Task, now: Timestamp) -> f64 {
        let quiet = now.since(task.created_at).as_secs() / QUIET.as_secs() + 1;
        let told = task.progress.map_or(0.0, |progress| progress.done);
        told + notes::BEAT * f64::from(u32::try_from(quiet).unwrap_or(u32::MAX))
    }

    /// The caller was told something: the next sign of life is due after another while.
    pub(in crate::dialect) fn put_off(&mut self) {
        self.next = self.clock.sleep(QUIET);
    }

    /// The next sign of life as it goes on the wire, if there is one to be given.
    pub(in crate::dialect) fn message(&mut self, notes: &mut notes::Notes, task: Option<&Task>) -> Option<Vec<u8>> {
        self.put_off();
        let began = task.map_or(self.began, |task| task.began().min(self.began));
        let words = format!("running for {} s", self.clock.now().since(began).as_secs());
        notes.beat(self.floor, task.and_then(|task| task.message.as_deref()), &words)
    }
}

/// Waits for the next sign of life; for ever if none is to be given.
pub(in crate::dialect) async fn due(beat: &mut Option<Beat>) {
    match beat {
        Some(beat) => beat.next.as_mut().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use taskwire_core::CallerId;

    use super::*;
    use crate::tool::{Ctx, Provider, Registry, Tool, ToolError};

    #[test]
    fn calls_are_the_same_by_the_schema_of_their_tool() {
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}, "note": {"type": "string", "default": "d"}}});
        let tool = Tool::raw("t", "A tool", schema, |_ctx: Ctx| async { Ok::<_, ToolError>("done") }).dedupe();
        let registry = Registry::new();
        registry.tool(tool).expect("a tool");
        let tool = registry.tools().pop().expect("it is there");
        let at = Timestamp::from_millis(1);
        let likeness = |arguments: Value| {
            let mut spec = Spec::new(CallerId::new("me"), "t");
            Hold { began: at, until: at, native: Accepts::default() }.open(&mut spec, &tool, &arguments);
            spec.dedupe.expect("the tool says so")
        };
        assert_eq!(likeness(json!({"n": 1})), likeness(json!({"n": 1.0, "note": "d"})));
        assert_ne!(likeness(json!({"n": 1})), likeness(json!({"n": 1, "note": "x"})));
    }
}
