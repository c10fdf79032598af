//! Holds calls of clients without tasks: for how long, with which heartbeats, and which result they get when the hold expires.
//!
//! When the hold expires, the call becomes a task, which its caller reaches by the follow-up tools. If it cannot become one, its work
//! stops. Without follow-up tools (`followups`), nothing is held.

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

/// How long a caller hears nothing before it is sent a heartbeat.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

/// Why work stops whose hold expired when its caller has reached the task limit.
const TASK_LIMIT_REACHED: &str = "the hold expired, and the caller may have no further task";

/// Whether a call of this tool by a caller without tasks may get another result because its hold expired.
pub(in crate::protocol) fn hold_can_expire(context: &Context, tool: &ReadyTool) -> bool {
    context.config.followups && matches!(tool.0.policy.task, TaskMode::Auto | TaskMode::Always)
}

pub(in crate::protocol) fn is_followup(context: &Context, tool: &Arc<ReadyTool>) -> bool {
    context.followups.iter().any(|known| Arc::ptr_eq(known, tool))
}

/// How long a call of a caller without tasks waits.
#[derive(Debug, Clone, Copy)]
pub(in crate::protocol) struct Hold {
    /// When the call was made.
    pub(in crate::protocol) started_at: Timestamp,
    expires_at: Timestamp,
    /// When the token of its caller expires: it waits no longer than that.
    token_expires: Option<Timestamp>,
    /// Which questions its caller accepts while it waits.
    accepts: AcceptedQuestions,
}

impl Hold {
    /// Holds a call that is made now; none if calls of this tool are not held.
    pub(in crate::protocol) fn begin(
        context: &Context,
        tool: &ReadyTool,
        accepts: AcceptedQuestions,
        token_expires: Option<Timestamp>,
    ) -> Option<Self> {
        let began = context.engine.clock().now();
        let expires_at = began.after(context.config.hold);
        hold_can_expire(context, tool).then_some(Self { started_at: began, expires_at, token_expires, accepts })
    }

    /// Holds a call that was made at `began`, and whose client resumes it.
    pub(in crate::protocol) fn resume(
        context: &Context,
        task: &Task,
        began: Timestamp,
        accepts: AcceptedQuestions,
        token_expires: Option<Timestamp>,
    ) -> Option<Self> {
        let follows = context.config.followups && task.spec.hidden && task.spec.findable;
        follows.then(|| Self { started_at: began, expires_at: began.after(context.config.hold), token_expires, accepts })
    }

    /// The same for a client that comes back with another token, and goes on waiting.
    pub(in crate::protocol) fn beyond_token(self) -> Self {
        Self { token_expires: None, ..self }
    }

    /// Waits until the caller's token expires; for ever if it does not.
    async fn token_expired(self, clock: &Arc<dyn Clock>) {
        match self.token_expires {
            Some(end) => clock.sleep(end.since(clock.now())).await,
            None => std::future::pending().await,
        }
    }

    /// Holds the call for the whole time again, because its caller was busy answering a question.
    fn restarted(self, context: &Context) -> Self {
        Self { expires_at: context.engine.clock().now().after(context.config.hold), ..self }
    }

    /// Lets the caller find the task that its call may become, and join a call that is the same.
    pub(in crate::protocol) fn apply_to(self, spec: &mut Spec, tool: &ReadyTool, arguments: &Value) {
        spec.findable = true;
        if tool.0.policy.dedupe && spec.idempotency_key.is_none() {
            let definition: Value = tool.0.wire.read().unwrap_or_default();
            spec.fingerprint = Some(fingerprint(&tool.0.name, &definition["inputSchema"], arguments));
        }
    }

    /// Whether a person can be asked while the call waits.
    pub(in crate::protocol) fn can_ask(self) -> bool {
        self.accepts.elicit_form || self.accepts.elicit_url
    }

    /// Whether the caller accepts any question while its call waits. Later nobody could answer it.
    pub(in crate::protocol) fn can_ask_anything(self) -> bool {
        self.accepts != AcceptedQuestions::default()
    }

    /// Whether the task asks something that its caller does not accept while the call waits.
    pub(in crate::protocol) fn has_unsupported_question(self, task: &Task) -> bool {
        task.asked_at.is_some() && task.open_questions().any(|(_, question)| missing_capabilities_of(question, self.accepts).is_some())
    }
}

/// Waits for the hold of one call to expire.
pub(in crate::protocol) struct HoldTimer<'a> {
    context: &'a Context,
    hold: Option<Hold>,
    expired: bool,
    /// Whether to wait for a shutdown, and the end of the token, even after the hold expired: a call with an open question outlasts its
    /// hold.
    until_shutdown: bool,
    /// Whether the task had an open question when it was last looked at.
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

    /// Waits until the hold or the caller's token expires or the server shuts down; for ever if that has happened, or there is no hold.
    pub(in crate::protocol) async fn expired(&mut self) {
        let clock = self.context.engine.clock();
        match self.hold {
            Some(hold) if !self.expired => {
                tokio::select! {
                    () = clock.sleep(hold.expires_at.since(clock.now())) => {}
                    () = hold.token_expired(clock) => {}
                    () = self.context.shutdown_began() => {}
                }
                self.expired = true;
            }
            Some(hold) if self.until_shutdown => {
                tokio::select! {
                    () = hold.token_expired(clock) => {}
                    () = self.context.shutdown_began() => {}
                }
                self.until_shutdown = false;
            }
            _ => std::future::pending().await,
        }
    }

    /// The result to send instead of the task's own, if it is due. When a question was answered, the hold starts again.
    pub(in crate::protocol) async fn result(&mut self, task: &Task) -> Option<Payload> {
        let asks = task.asked_at.is_some();
        if std::mem::replace(&mut self.asked, asks) && !asks {
            self.hold = self.hold.map(|hold| hold.restarted(self.context));
            self.expired = false;
        }
        expiry_result(self.context, self.hold?, task, self.expired).await
    }
}

/// The result that is sent while the task goes on: a question that the caller does not accept, or, when the hold is `over`, that the
/// task is still running.
async fn expiry_result(context: &Context, hold: Hold, task: &Task, expired: bool) -> Option<Payload> {
    if task.outcome.is_some() {
        return None;
    }
    let tool = context.engine.metrics().tool(&task.spec.tool);
    if hold.has_unsupported_question(task) {
        tool.hold_expired();
        return Some(payload(&followup::task_result(&context.engine, task).await));
    }
    // Do not interrupt a person who is answering, unless the server shuts down and could not take the answer, or the token has expired.
    let draining = *context.draining.borrow();
    let is_over = hold.token_expires.is_some_and(|end| end <= context.engine.clock().now());
    let goes_on = task.asked_at.is_none() || draining || is_over;
    if !(expired && goes_on) {
        return None;
    }
    tool.hold_expired();
    Some(payload(&match draining {
        true => followup::shutting_down(&context.engine, task).await,
        false => followup::task_result(&context.engine, task).await,
    }))
}

/// How a call ended without a result, as a result that a model can act on: models do not see protocol errors. None for another
/// outcome, or if the caller knows the task.
pub(in crate::protocol) async fn failure_result(context: &Context, task: &Task) -> Option<Payload> {
    if !(context.config.followups && task.spec.hidden) {
        return None;
    }
    followup::failed(&context.engine, task).await.as_ref().map(payload)
}

/// The same for a call that never became a task.
pub(in crate::protocol) fn loose_failure_result(context: &Context, spec: &Spec, outcome: &Outcome) -> Option<Payload> {
    let held = context.config.followups && spec.hidden;
    held.then(|| followup::failure_without_task(&spec.tool, outcome)).flatten().as_ref().map(payload)
}

/// Stops work whose hold expired at the task limit: nobody could find it again, and no limit would count it.
pub(in crate::protocol) fn stop_at_task_limit(context: &Context, run: &Run, reject: &Reject) -> Payload {
    let spec = run.spec();
    tracing::info!(caller = spec.caller.as_str(), tool = %spec.tool, %reject, "the hold of a call expired at the task limit: it stops");
    run.cancel(TASK_LIMIT_REACHED);
    payload(&followup::no_task_possible(&spec.tool, context.config.hold, reject))
}

/// The result with one more text for the model; unchanged if it is no `CallResult`.
pub(in crate::protocol) fn with_text_appended(result: &Payload, note: &Content) -> Payload {
    let Ok(mut result) = result.read::<CallResult>() else { return result.clone() };
    result.content.push(note.clone().into_payload());
    payload(&result)
}

fn payload(result: &CallResult) -> Payload {
    Payload::of(result).expect("a result consists of JSON already")
}

/// Heartbeats for a caller that is sent nothing else: many clients give up on a call that is silent for too long.
pub(in crate::protocol) struct Heartbeat {
    clock: Arc<dyn Clock>,
    /// When the work began, as far as the caller knows.
    started_at: Timestamp,
    /// The progress that the caller may have been sent before.
    progress_floor: f64,
    next: Sleep,
}

impl Heartbeat {
    /// For work that began at `began`, and a caller that has been sent nothing `since` then.
    pub(in crate::protocol) fn new(clock: &Arc<dyn Clock>, began: Timestamp, since: Timestamp, floor: f64) -> Self {
        let next = clock.sleep(since.after(HEARTBEAT_INTERVAL).since(clock.now()));
        Self { clock: clock.clone(), started_at: began, progress_floor: floor, next }
    }

    /// The most progress that a resumed stream may have sent before: what the log has, and one step for each heartbeat since.
    pub(in crate::protocol) fn progress_floor(task: &Task, now: Timestamp) -> f64 {
        let quiet = now.since(task.created_at).as_secs() / HEARTBEAT_INTERVAL.as_secs() + 1;
        let logged = task.progress.map_or(0.0, |progress| progress.done);
        logged + notes::HEARTBEAT_STEP * f64::from(u32::try_from(quiet).unwrap_or(u32::MAX))
    }

    /// The caller was sent something, so the next heartbeat is due one interval from now.
    pub(in crate::protocol) fn postpone(&mut self) {
        self.next = self.clock.sleep(HEARTBEAT_INTERVAL);
    }

    /// The next heartbeat as a notification; none if the caller wants no progress.
    pub(in crate::protocol) fn message(&mut self, notes: &mut notes::NoteEncoder, task: Option<&Task>) -> Option<Vec<u8>> {
        self.postpone();
        let began = task.map_or(self.started_at, |task| task.began_at().min(self.started_at));
        let words = format!("running for {} s", self.clock.now().since(began).as_secs());
        notes.heartbeat(self.progress_floor, task.and_then(|task| task.message.as_deref()), &words)
    }
}

/// Waits for the next heartbeat; for ever without one.
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
        let dedupe_key = |arguments: Value| {
            let mut spec = Spec::new(CallerId::new("me"), "t");
            Hold { started_at: at, expires_at: at, token_expires: None, accepts: AcceptedQuestions::default() }
                .apply_to(&mut spec, &tool, &arguments);
            spec.fingerprint.expect("the tool says so")
        };
        assert_eq!(dedupe_key(json!({"n": 1})), dedupe_key(json!({"n": 1.0, "note": "d"})));
        assert_ne!(dedupe_key(json!({"n": 1})), dedupe_key(json!({"n": 1, "note": "x"})));
    }
}
