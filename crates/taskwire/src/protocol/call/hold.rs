//! Calls of clients without tasks: how long they are held, what they hear meanwhile, and what they are told instead of a
//! result that takes longer.
//!
//! A call that is held becomes a task when its time is over, and its caller comes back to it by the follow-up tools. Where that cannot
//! be, its work stops then. With the follow-up tools turned off (`followups`), nothing here takes place.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use taskwire_core::{
    Payload, Timestamp,
    task::{AcceptedQuestions, Outcome, Reject, Spec, Task},
};

use super::dedupe::fingerprint;
use crate::{
    clock::{Clock, Sleep},
    engine::Run,
    followup,
    protocol::{Context, notes},
    tool::{CallResult, Content, ReadyTool, TaskMode, missing_capabilities_of},
};

/// How long a caller hears nothing before it is given a sign of life.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// Why work stops that was held for long enough, and can be no task.
const TASK_LIMIT_REACHED: &str = "its call was held for as long as `hold`, and there was no room for another task";

/// Whether a call of this tool by a caller without tasks may be answered with something else than its result.
pub(in crate::protocol) fn hold_can_expire(context: &Context, tool: &ReadyTool) -> bool {
    context.config.followups && matches!(tool.0.policy.task, TaskMode::Auto | TaskMode::Always)
}

/// Whether this is one of the tools by which a caller without tasks gets on.
pub(in crate::protocol) fn is_followup(context: &Context, tool: &Arc<ReadyTool>) -> bool {
    context.followups.iter().any(|known| Arc::ptr_eq(known, tool))
}

/// How a call is held whose caller has no tasks and can get on by the follow-up tools.
#[derive(Debug, Clone, Copy)]
pub(in crate::protocol) struct Hold {
    /// When it was made.
    pub(in crate::protocol) started_at: Timestamp,
    /// When it has been held long enough.
    expires_at: Timestamp,
    /// What its caller can be asked while it waits.
    accepts: AcceptedQuestions,
}

impl Hold {
    /// Holds a call that is made now, by a caller without tasks that can be asked this; none if that is not for its tool.
    pub(in crate::protocol) fn begin(context: &Context, tool: &ReadyTool, native: AcceptedQuestions) -> Option<Self> {
        let began = context.engine.clock().now();
        hold_can_expire(context, tool).then(|| Self { started_at: began, expires_at: began.after(context.config.hold), accepts: native })
    }

    /// Holds on a call that was made then, and whose caller came back to it.
    pub(in crate::protocol) fn resume(context: &Context, task: &Task, began: Timestamp, native: AcceptedQuestions) -> Option<Self> {
        let follows = context.config.followups && task.spec.hidden && task.spec.findable;
        follows.then(|| Self { started_at: began, expires_at: began.after(context.config.hold), accepts: native })
    }

    /// Holds the call as long again: its caller had something else to do than to wait.
    fn restarted(self, context: &Context) -> Self {
        Self { expires_at: context.engine.clock().now().after(context.config.hold), ..self }
    }

    /// Lets the caller come back to the task that its call may become, and to that of a call that is the same.
    pub(in crate::protocol) fn apply_to(self, spec: &mut Spec, tool: &ReadyTool, arguments: &Value) {
        spec.findable = true;
        if tool.0.policy.dedupe && spec.idempotency_key.is_none() {
            let definition: Value = tool.0.wire.read().unwrap_or_default();
            spec.dedupe_key = Some(fingerprint(&tool.0.name, &definition["inputSchema"], arguments));
        }
    }

    /// Whether a person can be asked while the call waits.
    pub(in crate::protocol) fn can_ask(self) -> bool {
        self.accepts.elicit_form || self.accepts.elicit_url
    }

    /// Whether anything at all can be asked while the call waits. Nobody is left to answer that when it does not wait any more.
    pub(in crate::protocol) fn can_ask_anything(self) -> bool {
        self.accepts != AcceptedQuestions::default()
    }

    /// Whether the task asks something that its caller cannot be asked while it waits.
    pub(in crate::protocol) fn has_unsupported_question(self, task: &Task) -> bool {
        task.asked_at.is_some() && task.open_questions().any(|(_, question)| missing_capabilities_of(question, self.accepts).is_some())
    }
}

/// The hold of one call while it passes.
pub(in crate::protocol) struct HoldTimer<'a> {
    context: &'a Context,
    hold: Option<Hold>,
    expired: bool,
    /// Whether a shutdown is still waited for after that: a call that waits for an answer may outlast its hold by far.
    until_shutdown: bool,
    /// Whether its task was asking something when it was last looked at.
    asked: bool,
}

impl<'a> HoldTimer<'a> {
    pub(in crate::protocol) fn new(context: &'a Context, hold: Option<Hold>, until_shutdown: bool) -> Self {
        Self { context, hold, expired: false, until_shutdown, asked: false }
    }

    pub(in crate::protocol) fn hold(&self) -> Option<Hold> {
        self.hold
    }

    pub(in crate::protocol) fn is_expired(&self) -> bool {
        self.expired
    }

    /// Waits until the hold expires, or the server shuts down; then for ever, as without a hold.
    pub(in crate::protocol) async fn expired(&mut self) {
        let clock = self.context.engine.clock();
        match self.hold {
            Some(hold) if !self.expired => {
                tokio::select! {
                    () = clock.sleep(hold.expires_at.since(clock.now())) => {}
                    () = self.context.shutdown_began() => {}
                }
                self.expired = true;
            }
            Some(_) if self.until_shutdown => {
                self.context.shutdown_began().await;
                self.until_shutdown = false;
            }
            _ => std::future::pending().await,
        }
    }

    /// The result that the call is answered with instead of that of its task, if it is time for that. Who took the time to answer a
    /// question is held anew.
    pub(in crate::protocol) fn result(&mut self, task: &Task) -> Option<Payload> {
        let asks = task.asked_at.is_some();
        if std::mem::replace(&mut self.asked, asks) && !asks {
            self.hold = self.hold.map(|hold| hold.restarted(self.context));
            self.expired = false;
        }
        expiry_result(self.context, self.hold?, task, self.expired)
    }
}

/// What a caller is told instead of the result of a task that goes on, if it is time for that: what the task asks, or, when the
/// time is `over`, that it is still running.
fn expiry_result(context: &Context, hold: Hold, task: &Task, over: bool) -> Option<Payload> {
    if task.outcome.is_some() {
        return None;
    }
    if hold.has_unsupported_question(task) {
        return Some(payload(&followup::task_result(&context.engine, task)));
    }
    // A person who was asked is not cut short, unless nobody will be there to hear the answer.
    let draining = *context.draining.borrow();
    let goes_on = task.asked_at.is_none() || draining;
    let tell = if draining { followup::shutting_down } else { followup::task_result };
    (over && goes_on).then(|| payload(&tell(&context.engine, task)))
}

/// What a caller is told that knows of no task, only of its call, where that ended without a result: not an error of the protocol,
/// which no model gets to see, but what a model can act on. None for any other end, and any other task.
pub(in crate::protocol) fn failure_result(context: &Context, task: &Task) -> Option<Payload> {
    let held = context.config.followups && task.spec.hidden;
    held.then(|| followup::failed(&context.engine, task)).flatten().as_ref().map(payload)
}

/// The same of a call that never was a task.
pub(in crate::protocol) fn loose_failure_result(context: &Context, spec: &Spec, outcome: &Outcome) -> Option<Payload> {
    let held = context.config.followups && spec.hidden;
    held.then(|| followup::failure_without_task(&spec.tool, outcome)).flatten().as_ref().map(payload)
}

/// Stops work that was held for long enough and can be no task, and says so: nobody could find it again, and it would count for nothing.
pub(in crate::protocol) fn stop_at_task_limit(context: &Context, run: &Run, reject: &Reject) -> Payload {
    let spec = run.spec();
    tracing::info!(caller = spec.caller.as_str(), tool = %spec.tool, %reject, "a call was held for as long as it may be, and stops");
    run.cancel(TASK_LIMIT_REACHED);
    payload(&followup::no_task_possible(&spec.tool, context.config.hold, reject))
}

/// A result with one more text for the model; as it is, if it is no result of a call.
pub(in crate::protocol) fn with_text_appended(result: &Payload, note: &Content) -> Payload {
    let Ok(mut result) = result.read::<CallResult>() else { return result.clone() };
    result.content.push(note.clone().into_payload());
    payload(&result)
}

fn payload(result: &CallResult) -> Payload {
    Payload::of(result).expect("a result consists of JSON already")
}

/// Signs of life for a caller that hears nothing else: many clients give up on a call that is silent for too long.
pub(in crate::protocol) struct Heartbeat {
    clock: Arc<dyn Clock>,
    /// Since when the work has been running, as far as the caller knows.
    started_at: Timestamp,
    /// What was told at least, before this began.
    progress_floor: f64,
    next: Sleep,
}

impl Heartbeat {
    /// For work that began then; `since` then its caller has heard nothing.
    pub(in crate::protocol) fn new(clock: &Arc<dyn Clock>, began: Timestamp, since: Timestamp, floor: f64) -> Self {
        let next = clock.sleep(since.after(HEARTBEAT_INTERVAL).since(clock.now()));
        Self { clock: clock.clone(), started_at: began, progress_floor: floor, next }
    }

    /// What was told at least when a stream is resumed: the progress that stands in the log, and a sign of life for each time
    /// that may have passed in silence.
    pub(in crate::protocol) fn progress_floor(task: &Task, now: Timestamp) -> f64 {
        let quiet = now.since(task.created_at).as_secs() / HEARTBEAT_INTERVAL.as_secs() + 1;
        let told = task.progress.map_or(0.0, |progress| progress.done);
        told + notes::HEARTBEAT_STEP * f64::from(u32::try_from(quiet).unwrap_or(u32::MAX))
    }

    /// The caller was told something: the next sign of life is due after another while.
    pub(in crate::protocol) fn postpone(&mut self) {
        self.next = self.clock.sleep(HEARTBEAT_INTERVAL);
    }

    /// The next sign of life as it goes on the wire, if there is one to be given.
    pub(in crate::protocol) fn message(&mut self, notes: &mut notes::NoteEncoder, task: Option<&Task>) -> Option<Vec<u8>> {
        self.postpone();
        let began = task.map_or(self.started_at, |task| task.began_at().min(self.started_at));
        let words = format!("running for {} s", self.clock.now().since(began).as_secs());
        notes.heartbeat(self.progress_floor, task.and_then(|task| task.message.as_deref()), &words)
    }
}

/// Waits for the next sign of life; for ever if none is to be given.
pub(in crate::protocol) async fn heartbeat_due(beat: &mut Option<Heartbeat>) {
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
            Hold { started_at: at, expires_at: at, accepts: AcceptedQuestions::default() }.apply_to(&mut spec, &tool, &arguments);
            spec.dedupe_key.expect("the tool says so")
        };
        assert_eq!(likeness(json!({"n": 1})), likeness(json!({"n": 1.0, "note": "d"})));
        assert_ne!(likeness(json!({"n": 1})), likeness(json!({"n": 1, "note": "x"})));
    }
}
