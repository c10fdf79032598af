//! Requests that wait until there is something new to say. An eager client costs little so, and learns sooner.

use std::{sync::Arc, time::Duration};

use taskwire_core::{TaskId, Version, task::Task};

use super::{Cx, tasks::not_found};
use crate::{
    clock::Sleep,
    dialect::{Fault, Open, Told, params::number, view::poll_interval},
    feed::Watch,
};

/// The task when it is time to show it: at once if its end or something new can be shown, else at its next change, or
/// when the client has waited long enough.
pub(super) async fn for_change(cx: &Cx<'_>, task: Arc<Task>) -> Result<Arc<Task>, Fault> {
    let id = task.id;
    let known = number(cx.meta.known, "dev.taskwire/version", task.changed.0)?;
    let asked = span(cx, number(cx.meta.wait_ms, "dev.taskwire/waitMs", 0)?);
    let waiting = if task.ended.is_some() || task.changed != Version(known) {
        None
    } else if asked.is_zero() {
        // Nobody asked for it, so nobody is refused for it.
        early(cx, &task).and_then(|span| Waiting::begin(cx, id, span, false).ok())
    } else {
        Some(Waiting::begin(cx, id, asked, false)?)
    };
    let task = match waiting {
        Some(waiting) => changed(cx, id, task.changed, waiting).await?,
        None => task,
    };
    let told = Told { at: cx.shared.engine.clock().now(), changed: task.changed };
    if cx.shared.config.hold_polls {
        cx.peer.tell(id, task.ended.is_none().then_some(told));
    }
    Ok(task)
}

/// How much too early a client asks again for what it was told.
fn early(cx: &Cx<'_>, task: &Task) -> Option<Duration> {
    let told = cx.peer.told(task.id).filter(|told| told.changed == task.changed)?;
    let interval = Duration::from_millis(poll_interval(task, told.at, cx.shared.config.poll_interval));
    let passed = cx.shared.engine.clock().now().since(told.at);
    interval.checked_sub(passed).filter(|left| !left.is_zero()).map(|left| left.min(cx.shared.config.wait_max))
}

/// As long as was asked for, but no longer than a request may wait.
pub(super) fn span(cx: &Cx<'_>, ms: u64) -> Duration {
    Duration::from_millis(ms).min(cx.shared.config.wait_max)
}

async fn changed(cx: &Cx<'_>, id: TaskId, known: Version, mut waiting: Waiting<'_, '_>) -> Result<Arc<Task>, Fault> {
    loop {
        let task = cx.shared.engine.task(cx.caller, id)?.ok_or_else(not_found)?;
        if task.ended.is_some() || task.changed != known || !waiting.go_on().await {
            return Ok(task);
        }
    }
}

/// One request that waits for something to happen to a task.
pub(super) struct Waiting<'a, 'c> {
    cx: &'a Cx<'c>,
    watch: Watch<TaskId>,
    over: Sleep,
    _open: Open,
}

impl<'a, 'c> Waiting<'a, 'c> {
    /// Begins to wait, for output too if `output`, unless too many requests of the caller do. Read after this, never
    /// before.
    pub(super) fn begin(cx: &'a Cx<'c>, id: TaskId, span: Duration, output: bool) -> Result<Self, Fault> {
        let max = cx.shared.config.waits_per_caller;
        let open = cx.shared.open_wait(cx.caller).ok_or_else(|| {
            Fault::busy(format!("{max} of your requests are waiting already (configuration key `waits_per_caller`): try again in a second"))
        })?;
        let engine = &cx.shared.engine;
        Ok(Self { cx, watch: engine.watch(vec![id], output), over: engine.clock().sleep(span), _open: open })
    }

    /// Waits for something to happen; says `false` when the time is over or the server shuts down.
    pub(super) async fn go_on(&mut self) -> bool {
        tokio::select! {
            biased;
            _ = self.watch.changed() => true,
            () = &mut self.over => false,
            () = self.cx.shared.drained() => false,
            () = self.cx.out.ending() => false,
        }
    }
}
