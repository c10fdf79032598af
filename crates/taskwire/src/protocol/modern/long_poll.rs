//! Long polls: `tasks/get` and reads of output wait until something changed. A client that polls often costs little, and learns sooner.

use std::{sync::Arc, time::Duration};

use taskwire_core::{TaskId, Version, task::Task};

use super::{Cx, tasks::not_found};
use crate::{
    clock::Sleep,
    protocol::{CallerPermit, Fault, LastStatus, params::number, task_status::poll_interval},
    wakeup::Watch,
};

/// The task, when it is time to send it: at once if it has ended or the client does not know its version, else at its next change or
/// when the client has waited long enough.
pub(super) async fn for_change(cx: &Cx<'_>, task: Arc<Task>) -> Result<Arc<Task>, Fault> {
    let id = task.id;
    let known = number(cx.meta.known, "dev.taskwire/version", task.visible_version.0)?;
    let asked = span(cx, number(cx.meta.wait_ms, "dev.taskwire/waitMs", 0)?);
    let waiting = if task.ended.is_some() || task.visible_version != Version(known) {
        None
    } else if asked.is_zero() {
        // The client did not ask to wait, so a limit must not refuse its request.
        early(cx, &task).and_then(|span| LongPoll::begin(cx, id, span, false).ok())
    } else {
        Some(LongPoll::begin(cx, id, asked, false)?)
    };
    let task = match waiting {
        Some(waiting) => changed(cx, id, task.visible_version, waiting).await?,
        None => task,
    };
    let status = LastStatus { at: cx.context.engine.clock().now(), changed: task.visible_version };
    if cx.context.config.long_poll {
        cx.peer.record_status(id, task.ended.is_none().then_some(status));
    }
    Ok(task)
}

/// How long before the poll interval is over a client asks again for a status that it has.
fn early(cx: &Cx<'_>, task: &Task) -> Option<Duration> {
    let last = cx.peer.last_status(task.id).filter(|status| status.changed == task.visible_version)?;
    let interval = Duration::from_millis(poll_interval(task, last.at, cx.context.config.poll_interval));
    let passed = cx.context.engine.clock().now().since(last.at);
    interval.checked_sub(passed).filter(|rest| !rest.is_zero()).map(|rest| rest.min(cx.context.config.wait_max))
}

/// The time that the client asked for, within `wait_max`.
pub(super) fn span(cx: &Cx<'_>, ms: u64) -> Duration {
    Duration::from_millis(ms).min(cx.context.config.wait_max)
}

async fn changed(cx: &Cx<'_>, id: TaskId, known: Version, mut waiting: LongPoll<'_, '_>) -> Result<Arc<Task>, Fault> {
    loop {
        let task = cx.context.engine.task(cx.caller, id).await?.ok_or_else(not_found)?;
        if task.ended.is_some() || task.visible_version != known || !waiting.woken().await {
            return Ok(task);
        }
    }
}

/// A request that waits for a task to change.
pub(super) struct LongPoll<'a, 'c> {
    cx: &'a Cx<'c>,
    watch: Watch<TaskId>,
    deadline: Sleep,
    _permit: CallerPermit,
}

impl<'a, 'c> LongPoll<'a, 'c> {
    /// Begins to wait, for output too if `output`; fails if too many requests of the caller wait. Read the task after this, never before.
    pub(super) fn begin(cx: &'a Cx<'c>, id: TaskId, span: Duration, output: bool) -> Result<Self, Fault> {
        let max = cx.context.config.waiting_requests_per_caller;
        let open = cx.context.wait_permit(cx.caller).ok_or_else(|| {
            Fault::busy(format!(
                "{max} of your requests are waiting already (configuration key `waiting_requests_per_caller`): try again in a second"
            ))
        })?;
        let engine = &cx.context.engine;
        Ok(Self { cx, watch: engine.watch(vec![id], output), deadline: engine.clock().sleep(span), _permit: open })
    }

    /// Waits for a change; `false` when the time is over or the server shuts down.
    pub(super) async fn woken(&mut self) -> bool {
        tokio::select! {
            biased;
            _ = self.watch.changed() => true,
            () = &mut self.deadline => false,
            () = self.cx.context.shutdown_began() => false,
            () = self.cx.out.ending() => false,
        }
    }
}
