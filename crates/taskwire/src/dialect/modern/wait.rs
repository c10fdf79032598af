//! Requests that wait until there is something new to say. An eager client costs little so, and learns sooner.

use std::{sync::Arc, time::Duration};

use taskwire_core::{TaskId, Timestamp, Version, task::Task};

use super::{Cx, meta::number, tasks::not_found, view::poll_interval};
use crate::{
    dialect::{Fault, Told},
    feed::Watch,
    server::Open,
};

/// The task when it is time to show it: at once if its end or something new can be shown, else at its next change, or
/// when the client has waited long enough.
pub(super) async fn for_change(cx: &Cx<'_>, task: Arc<Task>) -> Result<Arc<Task>, Fault> {
    let id = task.id;
    let task = match until(cx, &task)? {
        Some((until, known)) if task.ended.is_none() && task.changed == known => changed(cx, id, known, until).await?,
        _ => task,
    };
    let told = Told { at: cx.shared.engine.clock().now(), changed: task.changed };
    if cx.shared.config.hold_polls {
        cx.peer.tell(id, task.ended.is_none().then_some(told));
    }
    Ok(task)
}

/// How long to wait, and for what to be no longer so.
fn until(cx: &Cx<'_>, task: &Task) -> Result<Option<(Timestamp, Version)>, Fault> {
    let now = cx.shared.engine.clock().now();
    let known = number(cx.meta.known, "dev.taskwire/version", task.changed.0)?;
    let wait = span(cx, number(cx.meta.wait_ms, "dev.taskwire/waitMs", 0)?);
    if !wait.is_zero() {
        return Ok(Some((now.after(wait), Version(known))));
    }
    // A client that asks again before it should.
    Ok(cx.peer.told(task.id).and_then(|told| {
        let due = told.at.after(Duration::from_millis(poll_interval(task, now, cx.shared.config.poll_interval)));
        (due > now).then_some((due, told.changed))
    }))
}

/// As long as was asked for, but no longer than a request may wait.
pub(super) fn span(cx: &Cx<'_>, ms: u64) -> Duration {
    Duration::from_millis(ms).min(cx.shared.config.wait_max)
}

async fn changed(cx: &Cx<'_>, id: TaskId, known: Version, until: Timestamp) -> Result<Arc<Task>, Fault> {
    let mut waiting = Waiting::begin(cx, id, until)?;
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
    watch: Watch,
    over: crate::clock::Sleep,
    _open: Open,
}

impl<'a, 'c> Waiting<'a, 'c> {
    /// Begins to wait, unless too many requests of the caller do. Read after this, never before.
    pub(super) fn begin(cx: &'a Cx<'c>, id: TaskId, until: Timestamp) -> Result<Self, Fault> {
        let max = cx.shared.config.waits_per_caller;
        let open = cx.shared.open_wait(cx.caller).ok_or_else(|| {
            Fault::busy(format!("{max} of your requests are waiting already (configuration key `waits_per_caller`): try again in a second"))
        })?;
        let engine = &cx.shared.engine;
        Ok(Self { cx, watch: engine.watch(vec![id]), over: engine.clock().sleep_until(until), _open: open })
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
