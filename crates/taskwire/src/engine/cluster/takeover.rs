//! Takes over the tasks of nodes that are gone.

use std::{collections::HashMap, time::Duration};

use futures_util::future::join_all;
use taskwire_core::{
    Epoch,
    task::{Authority, Command, Event, OnInterrupt, Task},
};

use super::{Membership, queued};
use crate::{
    engine::{Engine, Error, NO_EPOCH, Takeover, WeakEngine, operator_log, recovery::OnRecovered},
    store::StrandedTask,
};

/// How often a node looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// Tasks that are taken together.
const PAGE: usize = 256;
/// After this time any node takes a task whose tool it does not have: it ends, with an error that says so.
const WITHOUT_TOOL_AFTER: Duration = Duration::from_secs(60);

/// Since when this node knows that others are gone, by its own monotonic clock: that of the store may be set.
type SeenGone = HashMap<Epoch, Duration>;

/// Looks again and again, until the engine is gone.
pub(super) async fn run(weak: WeakEngine, seen: Box<OnRecovered>) {
    let (mut is_first, mut seen_gone) = (true, SeenGone::new());
    loop {
        let Some(engine) = weak.get() else { return };
        let Some(membership) = &engine.0.cluster else { return };
        if membership.is_handing_over() {
            return;
        }
        if let Err(error) = take_all(&engine, membership, &mut seen_gone, &*seen).await {
            tracing::warn!(%error, "tasks of other nodes could not be taken over: trying again");
        }
        if let Err(error) = queued::take(&engine, membership).await {
            tracing::warn!(%error, "tasks that wait on other nodes could not be taken: trying again");
        }
        if std::mem::take(&mut is_first) {
            seen(None).await;
        }
        let sleep = membership.clock.sleep(INTERVAL);
        drop(engine);
        sleep.await;
    }
}

/// Takes what this node can go on with, a page at a time.
async fn take_all(engine: &Engine, membership: &Membership, seen_gone: &mut SeenGone, seen: &OnRecovered) -> Result<(), Error> {
    let (mut after, mut still_gone) = (None, SeenGone::new());
    // Who has left is gone for certain; of others only a node may say so that could reach the store all the time.
    let may_judge = membership.lease.may_judge_others(membership.clock.monotonic());
    let mut judge_at = may_judge.then(|| membership.clock.now());
    while membership.has_lease() {
        let mut stranded = membership.cluster.stranded_tasks(judge_at.take(), after, PAGE).await?;
        let now = membership.clock.monotonic();
        for task in &mut stranded {
            let since = *still_gone.entry(task.epoch).or_insert_with(|| seen_gone.get(&task.epoch).copied().unwrap_or(now));
            task.gone_for = task.gone_for.min(now.saturating_sub(since));
        }
        take(engine, &stranded, seen).await;
        match stranded.last() {
            Some(last) if stranded.len() >= PAGE => after = Some((last.epoch, last.id)),
            _ => {
                *seen_gone = still_gone;
                break;
            }
        }
    }
    Ok(())
}

async fn take(engine: &Engine, stranded: &[StrandedTask], seen: &OnRecovered) {
    let epoch = engine.epoch();
    if epoch == NO_EPOCH {
        return;
    }
    let commands = stranded.iter().map(async |task| {
        let Some(read) = engine.any_task(task.id).await? else { return Ok(None) };
        if !can_take(engine, &read, task.gone_for).await? {
            return Ok(None);
        }
        let command = if read.queued_at.is_some() && !read.is_lost_with_its_call() {
            // Unless it has begun since it was read.
            Command::TakeQueued { from: task.epoch, epoch, after: Duration::ZERO }
        } else {
            Command::Recover { lost: task.epoch..task.epoch.next(), epoch }
        };
        engine.submit(task.id, Authority::Engine, command).await.map(Some)
    });
    for (StrandedTask { id, .. }, receipt) in stranded.iter().zip(join_all(commands).await) {
        match receipt {
            Ok(Some(receipt)) if receipt.changed => {
                operator_log::task_recovered(&receipt.task);
                seen(Some(receipt.task)).await;
            }
            // Another node was faster.
            Ok(_) | Err(Error::Rejected(_)) => {}
            // One task that cannot be read must not keep the others waiting.
            Err(error) => tracing::error!(task = %id, %error, "an open task could not be taken over"),
        }
    }
}

/// Whether this node takes a task whose node has been gone for so long.
async fn can_take(engine: &Engine, task: &Task, gone_for: Duration) -> Result<bool, Error> {
    // It fails, and any node can say so.
    if task.spec.on_interrupt == OnInterrupt::Fail {
        return Ok(true);
    }
    let checkpoint = match task.checkpoint_version {
        Some(version) if task.spec.on_interrupt == OnInterrupt::Resume => engine.event(task.id, version).await?,
        _ => None,
    };
    let checkpoint = checkpoint.as_ref().and_then(|event| if let Event::Saved { checkpoint } = event { Some(checkpoint) } else { None });
    let orphan_after = engine.0.config.orphan_after;
    Ok(match engine.work().map(|work| work.can_take(task, checkpoint)) {
        Some(Takeover::Now) => true,
        // Made by a node that had lost its lease in that moment, so the time since then counts.
        Some(Takeover::WhenOrphaned) if task.epoch == NO_EPOCH => engine.now().since(task.updated_at) >= orphan_after,
        Some(Takeover::WhenOrphaned) => gone_for >= orphan_after,
        Some(Takeover::Never) | None => gone_for >= orphan_after + WITHOUT_TOOL_AFTER,
    })
}
