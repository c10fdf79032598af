//! Waits for a call, in both eras: for its work in memory until that ended or became a task, then for the task.

use std::sync::Arc;

use taskwire_core::{
    Payload, TaskId,
    task::{Reject, Task},
};
use tokio::sync::mpsc;

use super::{
    hold::{self, Hold, HoldTimer},
    waiter::Waiter,
};
use crate::{
    engine::{self, CallNote, Phase, RunEnd, UnstartedRun},
    protocol::{
        Context, Fault,
        log::{AWAY_PAUSE, unless_away},
    },
};

/// What differs between the eras while a call begins and waits.
pub(in crate::protocol) trait CallEra {
    /// Opens the channel for the notes of work that is this task, or may become it; none if the caller wants none.
    fn open_notes(&mut self, _id: TaskId) -> Option<mpsc::Sender<CallNote>> {
        None
    }

    /// Joins the work of a call that is the same, if there is any.
    async fn join_same_call(&mut self, waiter: &Waiter) -> Result<Option<Arc<Task>>, engine::Error> {
        waiter.join_lingering().await
    }

    /// Forwards what the work reports, until the call has waited long enough or nobody waits for it. Nothing is lost if this is dropped
    /// and called again.
    async fn meanwhile(&mut self) -> Result<Wake, Fault>;

    /// The call cannot become a task, and goes on waiting.
    fn no_task(&mut self) {}

    /// Whether output of the task wakes its call.
    fn wants_output(&self) -> bool {
        false
    }

    /// The response while the task is as it is now, if not its result; `due` if the call has waited long enough.
    fn respond_early(&mut self, _task: &Arc<Task>, _due: bool) -> impl Future<Output = Result<Option<Waited>, Fault>> + Send {
        std::future::ready(Ok(None))
    }
}

/// Why [`CallEra::meanwhile`] ends.
pub(in crate::protocol) enum Wake {
    /// The call has waited long enough.
    Due,
    /// Nobody waits for it any more.
    Gone,
}

/// What became of work in memory.
pub(in crate::protocol) enum Settled {
    /// It ended; `at_once` if it never waited for anything.
    Ended { end: RunEnd, at_once: bool },
    /// It became this task.
    Task(Arc<Task>),
    /// The hold expired at the task limit: the work stops, and this is the result.
    TaskLimit(Payload),
    /// Nobody waits for it any more.
    Gone,
}

/// What became of a task that a call waits for.
pub(in crate::protocol) enum Waited {
    Ended(Arc<Task>),
    /// The response is the task itself.
    Handle(Arc<Task>),
    /// The response is what the task asks.
    Questions(Arc<Task>),
    /// The hold expired: this is the result.
    HoldExpired(Payload),
    /// Nobody waits for it any more.
    Gone,
}

/// Whether a limit forbids another task.
pub(in crate::protocol) fn is_limit(error: &engine::Error) -> bool {
    matches!(error, engine::Error::Rejected(Reject::Limit { .. }))
}

/// Starts work in memory, and waits until it ended or became a task. The call is promoted when it has waited long enough.
pub(in crate::protocol) async fn run(
    context: &Context,
    unstarted: &mut UnstartedRun,
    waiter: Option<&Waiter>,
    hold: Option<Hold>,
    era: &mut impl CallEra,
) -> Result<Settled, Fault> {
    let phase = unstarted.start().await;
    let run = unstarted.run();
    if let Phase::Done(end) = phase {
        return Ok(Settled::Ended { end, at_once: true });
    }
    if let Some(waiter) = waiter {
        waiter.wait_for_run(run);
    }
    let mut timer = HoldTimer::new(context, hold, false);
    let mut phase = run.phase();
    while matches!(phase, Phase::Loose) {
        tokio::select! {
            biased;
            settled = run.settled() => {
                phase = settled;
                continue;
            }
            wake = era.meanwhile() => match wake? {
                Wake::Due => {}
                Wake::Gone => return Ok(Settled::Gone),
            },
            () = timer.expired() => {}
        }
        phase = match run.promote().await {
            // A server that shuts down lets the work run for as long as it can.
            Err(engine::Error::Rejected(reject @ Reject::Limit { .. })) if timer.is_expired() && !*context.draining.borrow() => {
                if let Some(waiter) = waiter {
                    waiter.clone().responded(true);
                }
                return Ok(Settled::TaskLimit(hold::stop_at_task_limit(context, run, &reject)));
            }
            // At the task limit the call goes on waiting, which costs only time.
            Err(error) if is_limit(&error) => {
                era.no_task();
                Phase::Loose
            }
            promoted => promoted?,
        };
    }
    match phase {
        // It was made, so nobody is told to call again.
        Phase::Task(id) => {
            let task = context.engine.read_when_back(|| context.engine.require_task(&run.spec().caller, id)).await?;
            Ok(Settled::Task(task))
        }
        Phase::Done(end) => Ok(Settled::Ended { end, at_once: false }),
        Phase::Loose => Err(Fault::internal("the tool went away")),
    }
}

/// Waits for the task that a call has, until the call can be answered. The task goes on while the store cannot be reached, and so does the
/// wait.
pub(in crate::protocol) async fn follow(
    context: &Context,
    id: TaskId,
    waiter: &Waiter,
    hold: Option<Hold>,
    era: &mut impl CallEra,
) -> Result<Waited, Fault> {
    waiter.mark_slow();
    let watch = context.engine.watch(vec![id], era.wants_output());
    let mut timer = HoldTimer::new(context, hold, true);
    let mut due = false;
    loop {
        let task = unless_away(context.engine.require_task(waiter.caller(), id).await)?;
        if let Some(task) = &task {
            if let Some(early) = era.respond_early(task, due).await? {
                return Ok(early);
            }
            if task.ended.is_some() {
                return Ok(Waited::Ended(task.clone()));
            }
            if let Some(result) = timer.result(task).await {
                return Ok(Waited::HoldExpired(waiter.with_joined_text(result)));
            }
        }
        tokio::select! {
            _ = watch.changed() => {}
            () = async { context.engine.clock().sleep(AWAY_PAUSE).await }, if task.is_none() => {}
            wake = era.meanwhile() => match wake? {
                Wake::Due => due = true,
                Wake::Gone => return Ok(Waited::Gone),
            },
            () = timer.expired() => {}
        }
    }
}
