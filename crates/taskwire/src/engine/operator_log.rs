//! Log lines for operators: one for each call that ends, and for each task that was interrupted.

use std::{sync::Arc, time::Duration};

use taskwire_core::{
    task::{Outcome, Spec, Task},
    trace::TraceId,
};
use tracing::field::{DisplayValue, display};

/// Characters of an error that a line has at most.
const WHY_MAX: usize = 200;

pub(super) fn call_ended(spec: &Spec, task: Option<&Task>, took: Duration, outcome: &Outcome) {
    if !tracing::enabled!(tracing::Level::INFO) {
        return;
    }
    let (caller, tool) = (spec.caller.as_str(), &*spec.tool);
    let took = Duration::from_millis(u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
    let (how, trace) = (how(outcome), trace_of(spec));
    match task {
        Some(Task { id, attempt, .. }) => tracing::info!(caller, tool, task = %id, attempt = attempt.0, trace, ?took, how, "call ended"),
        None => tracing::info!(caller, tool, trace, ?took, how, "call ended"),
    }
}

/// A task that an earlier start of the server left open was recovered: it is run again, or is lost.
pub(super) fn task_recovered(task: &Arc<Task>) {
    let Task { id, attempt, spec, outcome, .. } = &**task;
    let (caller, tool, attempt, trace) = (spec.caller.as_str(), &*spec.tool, attempt.0, trace_of(spec));
    match outcome {
        None => tracing::info!(caller, tool, task = %id, attempt, trace, "task recovered: it goes on"),
        Some(outcome) => tracing::warn!(caller, tool, task = %id, attempt, trace, how = how(outcome), "task lost: it was interrupted"),
    }
}

/// A task that waited for a slot on another node goes on here.
pub(super) fn task_taken(task: &Arc<Task>) {
    let (caller, tool, attempt, trace) = (task.spec.caller.as_str(), &*task.spec.tool, task.attempt.0, trace_of(&task.spec));
    tracing::info!(caller, tool, task = %task.id, attempt, trace, "task taken: it waited for a slot on another node");
}

/// The trace that the call belongs to, if any, for a line of the log.
fn trace_of(spec: &Spec) -> Option<DisplayValue<TraceId>> {
    spec.trace.as_ref().map(|context| display(context.parent.trace))
}

/// How it ended, in a few words.
fn how(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Completed { is_error: false, .. } => "completed".to_owned(),
        Outcome::Completed { is_error: true, .. } => "completed with an error".to_owned(),
        Outcome::Failed(error) => format!("failed: {}", short(&error.message)),
        Outcome::Cancelled { reason: Some(reason) } => format!("cancelled: {}", short(reason)),
        Outcome::Cancelled { reason: None } => "cancelled".to_owned(),
    }
}

/// One line, not too long.
fn short(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(WHY_MAX).collect();
    if text.chars().nth(WHY_MAX).is_some() { format!("{line}…") } else { line }
}

#[cfg(test)]
mod tests {
    use taskwire_core::task::RpcError;

    use super::*;

    #[test]
    fn how_a_call_ended_is_told_in_one_short_line() {
        let failed = |message: &str| how(&Outcome::Failed(RpcError { code: -32603, message: message.to_owned(), data: None }));
        assert_eq!(failed("no\nroom"), "failed: no room");
        assert_eq!(failed(&"é".repeat(300)).chars().count(), "failed: ".len() + WHY_MAX + 1);
        let done = |is_error| how(&Outcome::Completed { result: serde_json::json!({"content": []}).into(), is_error });
        assert_eq!((done(false).as_str(), done(true).as_str()), ("completed", "completed with an error"));
        assert_eq!(how(&Outcome::Cancelled { reason: Some("not needed".into()) }), "cancelled: not needed");
    }
}
