//! Work that was left by who called for it: it goes on for a while.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use taskwire_core::{
    CallerId, TaskId,
    task::{Authority, Command},
};
use tokio::sync::watch;

use super::{Waiting, Work};
use crate::{
    dialect::Context,
    engine::{End, Phase, Run},
    feed::Watch,
};

/// How often work that lingers for ever is looked at.
const FOR_EVER: Duration = Duration::from_secs(3600);
/// The time of the store is in these.
const MOMENT: Duration = Duration::from_millis(1);
/// Why work stops that nobody came back for.
const LEFT_TOO_LONG: &str = "its client hung up, and nobody called for it again within `linger`";
/// Why work stops where nothing lingers.
const HUNG_UP: &str = "the caller went away before it was told of the task";

/// A call is gone without an answer: its work goes on for a while, unless another call waits for it.
pub(super) fn leave(waiting: &Waiting, work: Work, counted: bool) {
    let (shared, id) = (&waiting.shared, work.id());
    if waiting.linger.is_zero() {
        if counted && shared.calls.leave(id) > 0 {
            return;
        }
        shared.calls.forget(id);
        return match work {
            Work::Run(run) => run.call_off(HUNG_UP),
            Work::Task(id) => shared.engine.call_off(waiting.caller.clone(), id, HUNG_UP),
        };
    }
    // A run that has ended before it was ever a task is over for everybody, if it only wanted to be called again.
    if matches!(&work, Work::Run(run) if matches!(run.phase(), Phase::Done(End::Suspended(_)))) {
        return;
    }
    // Before the lock: it may be read from the store.
    let key = if counted { None } else { waiting.key_of(&work) };
    let (ready, is_ready) = watch::channel(false);
    let turn = shared.calls.left(shared, id, counted, key, is_ready);
    let Some(turn) = turn else { return };
    let left = Left { caller: waiting.caller.clone(), tool: waiting.tool.clone(), id, linger: waiting.linger, turn };
    let shared = shared.clone();
    shared.engine.clone().spawn(async move {
        let kept = left.keep(&shared, work, ready).await;
        // Not kept for as long as that takes: the server may end meanwhile.
        let (weak, watch) = (Arc::downgrade(&shared), shared.engine.watch(vec![left.id], false));
        drop(shared);
        if kept {
            left.watch_over(weak, watch).await;
        }
    });
}

/// Work that was left by who called for it.
struct Left {
    caller: CallerId,
    tool: Arc<str>,
    id: TaskId,
    linger: Duration,
    turn: u64,
}

impl Left {
    /// Makes it durable; says whether that was possible.
    async fn keep(&self, shared: &Context, work: Work, ready: watch::Sender<bool>) -> bool {
        let kept = match &work {
            Work::Run(run) => self.promote(shared, run).await,
            // Behind what was asked of it before: it may not have been made yet.
            Work::Task(id) => shared.engine.submit(*id, Authority::Engine, Command::Tick).await.is_ok(),
        };
        if !kept {
            shared.calls.forget(self.id);
        }
        ready.send_replace(true);
        shared.calls.kept();
        let (caller, tool, task) = (self.caller.as_str(), &self.tool, self.id);
        match self.linger {
            _ if !kept => {}
            Duration::MAX => tracing::info!(caller, %tool, %task, "the client hung up before it was answered: its call goes on"),
            linger => tracing::info!(caller, %tool, %task, ?linger, "the client hung up before it was answered: its call goes on"),
        }
        kept
    }

    /// Makes a task of work in memory.
    async fn promote(&self, shared: &Context, run: &Arc<Run>) -> bool {
        let kept = match run.promote().await {
            Ok(Phase::Task(_)) => return true,
            Ok(Phase::Done(End::Outcome(outcome))) => {
                shared.engine.record(self.id, run.spec().clone(), run.request().clone(), outcome).await.map(|_| true)
            }
            Ok(Phase::Done(End::Suspended(_)) | Phase::Loose) => Ok(false),
            Err(error) => Err(error),
        };
        if let Err(error) = &kept {
            tracing::warn!(caller = self.caller.as_str(), tool = %self.tool, %error, "the client hung up, and its call stops: it cannot be kept");
            run.call_off(HUNG_UP);
        }
        kept.unwrap_or(false)
    }

    /// Watches over it until somebody joins it, its end is there long enough, or its time is over.
    async fn watch_over(&self, weak: Weak<Context>, watch: Watch<TaskId>) {
        loop {
            let Some(shared) = weak.upgrade() else { return };
            let Some(wait) = self.next(&shared) else { return };
            let sleep = shared.engine.clock().sleep(wait);
            drop(shared);
            tokio::select! {
                _ = watch.changed() => {}
                () = sleep => {}
            }
        }
    }

    /// How long it may go on as it is; none if there is nothing to watch over any more.
    fn next(&self, shared: &Context) -> Option<Duration> {
        let (engine, calls, id) = (&shared.engine, &shared.calls, self.id);
        let now = engine.clock().now();
        // Else somebody joined it, or knows of it.
        let since = calls.left_since(id, self.turn)?;
        let task = engine.any_task(id).ok().flatten();
        let rest = match task.as_ref().map(|task| task.ended) {
            // Its end is there for the same call, for a while.
            Some(Some((at, _))) => shared.config.hold.checked_sub(now.since(at)).map(|rest| rest + MOMENT),
            Some(None) if self.linger == Duration::MAX => Some(FOR_EVER),
            Some(None) => match self.linger.saturating_sub(now.since(since)) {
                // The one watch is this.
                rest if rest.is_zero() && engine.watchers(id) > 1 => {
                    calls.asked_for(shared, id);
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
                engine.call_off(self.caller.clone(), id, LEFT_TOO_LONG);
            }
        }
        rest
    }
}
