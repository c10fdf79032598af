//! `task_wait`: waits for a task's end, its next question, or the timeout.

use std::{sync::Arc, time::Duration};

use serde::Deserialize;
use serde_json::json;
use taskwire_core::task::Task;

use super::{Settings, WAIT, duration_text, find_task, shutting_down, texts};
use crate::{
    clock::Sleep,
    engine::Engine,
    tool::{Annotations, CallResult, Ctx, Progress, Tool, ToolError},
};

/// How often a client hears at least that the wait goes on: some clients give up a silent call.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// How much the reported progress grows when the task reports none: little, so that it stays below the task's own.
const STEP: f64 = 0.0001;

#[derive(Deserialize)]
struct Arguments {
    task_id: String,
    #[serde(default)]
    timeout_s: Option<f64>,
}

pub(super) fn tool(settings: &Settings) -> Tool {
    let most = settings.hold.as_secs_f64();
    let description = format!(
        "Waits for a running task of this server and returns the task's own result. A task is a tool call that was still running when it \
         was answered; that answer has the task's id. Returns after at most {most} s: if it then says that the task is still running, \
         call task_wait again with the same arguments, as often as it takes. Returns early if the task has a question. Use this instead of \
         calling the slow tool again."
    );
    let schema = json!({
        "type": "object",
        "properties": {
            "task_id": {"type": "string", "description": "The task's id, as a tool gave it."},
            "timeout_s": {
                "type": "number",
                "minimum": 0,
                "description": format!("Seconds to wait. Leave it out to wait as long as possible, which is {most} s.")
            },
        },
        "required": ["task_id"],
        "additionalProperties": false,
    });
    let settings = settings.clone();
    Tool::raw(WAIT, &description, schema, move |ctx: Ctx| wait(ctx, settings.clone()))
        .title("Wait for a task")
        .annotations(Annotations::default().read_only(true).open_world(false))
}

async fn wait(ctx: Ctx, settings: Settings) -> Result<CallResult, ToolError> {
    let Arguments { task_id, timeout_s } = ctx.arguments().read()?;
    let engine = ctx.run().engine();
    let timeout = timeout_s.map_or(settings.hold, |seconds| Duration::try_from_secs_f64(seconds).unwrap_or(settings.hold));
    let mut over = engine.clock().sleep(timeout.min(settings.hold));
    let watch = engine.watch(vec![find_task(&ctx, &task_id).await?.id], false);
    let mut draining = settings.draining;
    let drained = async move {
        let _ = draining.wait_for(|draining| *draining).await;
    };
    tokio::pin!(drained);
    let mut reporter = ProgressReporter::new(engine);
    loop {
        let task = find_task(&ctx, &task_id).await?;
        // Questions for the client's program are asked elsewhere.
        if task.outcome.is_some() || texts::has_user_question(&task) {
            return Ok(texts::task_result(engine, &task).await);
        }
        reporter.report(&ctx, &task).await?;
        // The timeout comes first: a task that changes all the time must not hold its caller for ever.
        tokio::select! {
            biased;
            () = ctx.cancelled() => return Err(ToolError::stopped()),
            () = &mut over => {
                let task = find_task(&ctx, &task_id).await?;
                return Ok(texts::task_result(engine, &task).await);
            }
            () = &mut drained => {
                let task = find_task(&ctx, &task_id).await?;
                return Ok(shutting_down(engine, &task).await);
            }
            _ = watch.changed() => {}
            () = &mut reporter.next_report => reporter.due = true,
        }
    }
}

/// Reports the task's progress to the client that waits.
struct ProgressReporter {
    done: f64,
    message: Option<Arc<str>>,
    /// When a report is due, even without a change.
    next_report: Sleep,
    due: bool,
}

impl ProgressReporter {
    fn new(engine: &Engine) -> Self {
        Self { done: 0.0, message: None, next_report: engine.clock().sleep(REPORT_INTERVAL), due: false }
    }

    /// Reports the progress if it changed or a report is due.
    async fn report(&mut self, ctx: &Ctx, task: &Task) -> Result<(), ToolError> {
        let own = task.progress.filter(|progress| progress.done > self.done);
        let said = task.message.as_ref().filter(|message| self.message.as_ref() != Some(*message));
        if own.is_none() && said.is_none() && !self.due {
            return Ok(());
        }
        let clock = ctx.run().engine().clock();
        self.done = own.map_or_else(|| next(self.done), |progress| progress.done);
        self.message.clone_from(&task.message);
        self.next_report = clock.sleep(REPORT_INTERVAL);
        self.due = false;
        let total = task.progress.and_then(|progress| progress.total).filter(|total| self.done <= *total);
        let message = task
            .message
            .as_deref()
            .map_or_else(|| format!("running for {}", duration_text(clock.now().since(task.began_at()))), str::to_owned);
        ctx.progress(Progress { done: self.done, total, message: Some(message) }).await
    }
}

/// A little more than `done`.
fn next(done: f64) -> f64 {
    (done + STEP).max(done.next_up())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_grows_however_large_it_is() {
        for done in [0.0, 1.0, 99.999_95, 1e18, f64::MAX / 2.0] {
            assert!(next(done) > done, "{done}");
        }
        assert!(next(3.0) < 3.1, "and stays out of the way of the next real number");
    }
}
