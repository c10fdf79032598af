//! Runs tools for the engine.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use taskwire_core::{
    Payload,
    task::{OnInterrupt, Outcome, RpcError, Task},
};

use crate::{
    engine::{Continuation, Phase, Run, RunEnd, Takeover, TaskLimits, Work},
    tool::{Ctx, InputRequired, Provider, ReadyTool, ToolError, ToolErrorKind},
};

pub(super) struct ToolWork {
    provider: Arc<dyn Provider>,
    followups: Arc<[Arc<ReadyTool>]>,
}

impl ToolWork {
    pub(super) fn new(provider: Arc<dyn Provider>, followups: Arc<[Arc<ReadyTool>]>) -> Self {
        Self { provider, followups }
    }

    /// The tool of this name: one of the provider, a follow-up tool, or one that is no longer offered but whose tasks go on.
    fn tool(&self, name: &str) -> Option<Arc<ReadyTool>> {
        let ours = || self.followups.iter().find(|tool| &*tool.0.name == name).cloned();
        self.provider.tool(name).or_else(ours).or_else(|| self.provider.retired_tool(name))
    }
}

impl Work for ToolWork {
    fn can_take(&self, task: &Task, checkpoint: Option<&Payload>) -> Takeover {
        let is_offered = || self.provider.tool(&task.spec.tool).is_some();
        match task.spec.on_interrupt {
            // Nobody has begun it.
            OnInterrupt::Resume if task.queued_at.is_some() && is_offered() => Takeover::Now,
            OnInterrupt::Resume if self.provider.has_work_of(task.id, checkpoint) => Takeover::Now,
            OnInterrupt::Resume if is_offered() => Takeover::WhenOrphaned,
            OnInterrupt::Retry if is_offered() => Takeover::Now,
            _ => Takeover::Never,
        }
    }

    fn free_slots(&self) -> Vec<(String, usize)> {
        self.provider.free_slots()
    }

    fn task_limits(&self, tool: &str) -> TaskLimits {
        let Some(tool) = self.provider.tool(tool) else { return TaskLimits::default() };
        TaskLimits { all: tool.0.policy.tasks_max, per_caller: tool.0.policy.tasks_per_caller_max }
    }

    fn run(&self, run: Arc<Run>) -> BoxFuture<'static, RunEnd> {
        let Some(tool) = self.tool(&run.spec().tool) else {
            let error = RpcError::internal_error(format!("the tool `{}` is no longer there", run.spec().tool));
            return Box::pin(async { RunEnd::Outcome(Outcome::Failed(error)) });
        };
        Box::pin(async move {
            loop {
                let error = match tool.0.run(Ctx::new(run.clone())).await {
                    Ok(result) => return RunEnd::Outcome(result.into_outcome()),
                    Err(error) => error,
                };
                let round = match error.into_kind() {
                    // A session can be asked while the call goes on, and so can a task.
                    ToolErrorKind::InputRequired(round) if run.spec().outbox.is_some() || matches!(run.phase(), Phase::Task(_)) => round,
                    kind => return ToolError::from_kind(kind).into_end(),
                };
                if let Err(error) = ask_all(&run, round).await {
                    return error.into_end();
                }
            }
        })
    }
}

/// Asks the questions of a tool that wants to be called again with answers, where that cannot be left to its caller.
async fn ask_all(run: &Arc<Run>, round: InputRequired) -> Result<(), ToolError> {
    let ctx = Ctx::new(run.clone());
    let asked = round.questions.into_iter().map(|(key, question)| {
        let ctx = ctx.clone();
        async move { ctx.ask_raw(&key, question).await.map(|answer| (key, answer)) }
    });
    let responses = futures_util::future::try_join_all(asked).await?.into_iter().collect();
    run.set_continuation(Continuation { answers: responses, state: round.state.map(Into::into) });
    Ok(())
}
