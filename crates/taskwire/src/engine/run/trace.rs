//! The span of a run: one attempt of a task, or the work of a call that is none.

use taskwire_core::{
    Attempt, TaskId,
    task::{Command, Outcome, Spec},
    trace::TraceContext,
};

use crate::{
    engine::Engine,
    traces::{Kind, Span},
};

/// The span of a run, if its call is traced. A run that is dropped ends it without saying how.
pub(super) struct RunTrace(Option<Span>);

impl RunTrace {
    /// Begins it below the request that made the call, whichever process answered that.
    pub(super) fn begin(engine: &Engine, spec: &Spec, attempt: Attempt) -> Self {
        let (Some(tracer), Some(call)) = (engine.tracer(), &spec.trace) else { return Self(None) };
        let span = call.parent.is_sampled().then(|| tracer.child(call, Kind::Internal, format!("run {}", spec.tool))).flatten();
        if let Some(span) = &span {
            span.set("gen_ai.tool.name", spec.tool.to_string());
            span.set("taskwire.attempt", i64::try_from(attempt.0).unwrap_or(i64::MAX));
        }
        Self(span)
    }

    /// What the work passes on.
    pub(super) fn context(&self) -> Option<&TraceContext> {
        self.0.as_ref().map(Span::context)
    }

    /// Says that something happened just now.
    pub(super) fn event(&self, name: &'static str) {
        if let Some(span) = &self.0 {
            span.event(name);
        }
    }

    /// What a span says of a command of its run that is durable.
    pub(super) const fn event_of(command: &Command) -> Option<&'static str> {
        match command {
            Command::Append { .. } => Some("output committed"),
            Command::Save { .. } => Some("checkpoint committed"),
            Command::Ask { .. } => Some("question asked"),
            Command::Queue => Some("waits for a slot"),
            Command::Dequeue => Some("has a slot"),
            _ => None,
        }
    }

    /// The run has come to its end, as this task if it is one.
    pub(super) fn ended(&self, task: Option<TaskId>, outcome: &Outcome) {
        let Some(span) = &self.0 else { return };
        if let Some(id) = task {
            span.set("taskwire.task.id", id.to_string());
        }
        let failure = match outcome {
            Outcome::Completed { is_error: false, .. } | Outcome::Cancelled { .. } => None,
            Outcome::Completed { is_error: true, .. } => Some(("tool_error", "the tool says that it failed")),
            Outcome::Failed(error) => Some(("failed", error.message.as_str())),
        };
        let how = match outcome {
            Outcome::Completed { is_error: false, .. } => "completed",
            Outcome::Cancelled { .. } => "cancelled",
            Outcome::Completed { is_error: true, .. } => "tool_error",
            Outcome::Failed(_) => "failed",
        };
        if let Some((kind, why)) = failure {
            span.set("error.type", kind);
            span.fail(why);
        }
        self.ended_as(how);
    }

    /// The run has come to its end.
    pub(super) fn ended_as(&self, how: &'static str) {
        if let Some(span) = &self.0 {
            span.set("taskwire.outcome", how);
            span.end();
        }
    }
}
