//! Work that lingers: made durable, watched over, and stopped when its time is over.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use taskwire_core::{
    CallerId, TaskId,
    task::{Authority, Command},
};
use tokio::sync::watch;

use super::{RunOrTask, WaitingCall};
use crate::{
    engine::{self, Phase, Run, RunEnd},
    protocol::Context,
    wakeup::Watch,
};

/// How often work that lingers without a limit is looked at.
const RECHECK_INTERVAL: Duration = Duration::from_secs(3600);
/// How soon it is looked at again when the store could not be read.
const AWAY_INTERVAL: Duration = Duration::from_secs(5);
/// The resolution of stored times.
const MOMENT: Duration = Duration::from_millis(1);
/// Why work stops whose linger expired.
const LINGER_EXPIRED: &str = "its client hung up, and the same call did not come again within `linger`";
/// Why work stops that does not linger.
const HUNG_UP: &str = "the client hung up before it was answered";

/// A call ended without an answer: its work lingers, unless another call waits for it.
pub(super) fn let_linger(waiting: &WaitingCall, work: RunOrTask, counted: bool) {
    let (context, id) = (&waiting.context, work.id());
    if waiting.linger.is_zero() {
        if counted && context.calls.remove_waiter(id) > 0 {
            return;
        }
        context.calls.forget(id);
        return match work {
            RunOrTask::Run(run) => run.cancel(HUNG_UP),
            RunOrTask::Task(id) => {
                let (engine, caller) = (context.engine.clone(), waiting.caller.clone());
                // A process that ends drops its calls, too: that is no hang-up, and this is not carried out then.
                context.engine.spawn(async move { engine.abandon_in_order(caller, id, HUNG_UP) });
            }
        };
    }
    // A loose run that suspended itself to ask has nothing left to do: the caller calls again with the answers.
    if matches!(&work, RunOrTask::Run(run) if matches!(run.phase(), Phase::Done(RunEnd::Suspended(_)))) {
        return;
    }
    let key = if counted { None } else { waiting.dedupe_key().cloned() };
    let (ready, is_ready) = watch::channel(false);
    let turn = context.calls.begin_linger(context, id, counted, key, is_ready);
    let Some(linger_count) = turn else { return };
    let lingering = LingeringWork { caller: waiting.caller.clone(), tool: waiting.tool.clone(), id, linger: waiting.linger, linger_count };
    let context = context.clone();
    context.engine.clone().spawn(async move {
        let kept = lingering.save(&context, work, ready).await;
        context.calls.prune(&context).await;
        // The context must not be kept alive while the work lingers: the server may end meanwhile.
        let (weak, watch) = (Arc::downgrade(&context), context.engine.watch(vec![lingering.id], false));
        drop(context);
        if kept {
            lingering.watch_over(weak, watch).await;
        }
    });
}

struct LingeringWork {
    caller: CallerId,
    tool: Arc<str>,
    id: TaskId,
    linger: Duration,
    linger_count: u64,
}

impl LingeringWork {
    /// Makes the work durable; says whether that was possible.
    async fn save(&self, context: &Context, work: RunOrTask, ready: watch::Sender<bool>) -> bool {
        let mut kept = match &work {
            RunOrTask::Run(run) => self.promote(context, run).await,
            RunOrTask::Task(_) => true,
        };
        if kept && (context.engine.is_shared() || matches!(work, RunOrTask::Task(_))) {
            // The task may not be created yet. This command is queued behind the one that does.
            let leave = Command::Leave { epoch: context.engine.epoch() };
            kept = context.engine.submit_when_back(self.id, Authority::Engine, leave).await.is_ok();
        }
        if !kept {
            context.calls.forget(self.id);
        }
        ready.send_replace(true);
        context.calls.linger_saved();
        let (caller, tool, task) = (self.caller.as_str(), &self.tool, self.id);
        match self.linger {
            _ if !kept => {}
            Duration::MAX => tracing::info!(caller, %tool, %task, "the client hung up before it was answered: its call goes on"),
            linger => tracing::info!(caller, %tool, %task, ?linger, "the client hung up before it was answered: its call goes on"),
        }
        kept
    }

    async fn promote(&self, context: &Context, run: &Arc<Run>) -> bool {
        let kept = match run.promote().await {
            Ok(Phase::Task(_)) => return true,
            Ok(Phase::Done(RunEnd::Outcome(outcome))) => {
                context.engine.create_ended(self.id, run.spec().clone(), run.arguments().clone(), outcome).await.map(|_| true)
            }
            Ok(Phase::Done(RunEnd::Suspended(_)) | Phase::Loose) => Ok(false),
            Err(error) => Err(error),
        };
        if let Err(error) = &kept {
            tracing::warn!(caller = self.caller.as_str(), tool = %self.tool, %error, "the client hung up, and its call stops: it cannot be kept");
            run.cancel(HUNG_UP);
        }
        kept.unwrap_or(false)
    }

    /// Waits until a call joins the work, its outcome was kept long enough, or its linger expired.
    async fn watch_over(&self, weak: Weak<Context>, watch: Watch<TaskId>) {
        loop {
            let Some(context) = weak.upgrade() else { return };
            let Some(wait) = self.time_left(&context).await else { return };
            let sleep = context.engine.clock().sleep(wait);
            drop(context);
            tokio::select! {
                _ = watch.changed() => {}
                () = sleep => {}
            }
        }
    }

    /// How long until the next look; none if there is nothing to watch over any more.
    async fn time_left(&self, context: &Context) -> Option<Duration> {
        let (engine, calls, id) = (&context.engine, &context.calls, self.id);
        let now = engine.clock().now();
        // None if a call joined it, or a caller knows it.
        let since = calls.lingering_since(id, self.linger_count)?;
        let task = match engine.any_task(id).await {
            Err(engine::Error::Away) => return Some(AWAY_INTERVAL),
            read => read.ok().flatten(),
        };
        for epoch in task.iter().flat_map(|task| task.awaited_by()) {
            match engine.is_other_node(epoch).await {
                // A call on another node joined it: that node watches over it now.
                Ok(true) => {
                    calls.forget(id);
                    return None;
                }
                Ok(false) => {}
                Err(_) => return Some(AWAY_INTERVAL),
            }
        }
        let rest = match task.as_ref().map(|task| (task.ended, task.left_at())) {
            // The same call gets the outcome, for a while.
            Some((Some((at, _)), _)) => context.config.hold.checked_sub(now.since(at)).map(|rest| rest + MOMENT),
            Some(_) if self.linger == Duration::MAX => Some(RECHECK_INTERVAL),
            // Somebody may have asked for it on another node.
            Some((None, left_at)) => match self.linger.saturating_sub(now.since(since.max(left_at.unwrap_or(since)))) {
                // One of the watchers is `watch_over`.
                rest if rest.is_zero() && engine.watchers(id) > 1 => {
                    calls.touch(context, &self.caller, id);
                    Some(self.linger)
                }
                rest => (!rest.is_zero()).then_some(rest),
            },
            None => None,
        };
        if rest.is_none() {
            calls.forget(id);
            if task.is_some_and(|task| task.ended.is_none()) {
                tracing::info!(caller = self.caller.as_str(), tool = %self.tool, task = %id, "nobody came back for a call: it stops");
                engine.abandon_in_order(self.caller.clone(), id, LINGER_EXPIRED);
            }
        }
        rest
    }
}
