//! Takes over the tasks of nodes that are gone.

use std::{collections::HashMap, time::Duration};

use futures_util::future::join_all;
use taskwire_core::{
    Epoch, TaskId,
    task::{Authority, Command, Event, OnInterrupt, Task},
};

use super::{Membership, queued};
use crate::{
    engine::{Engine, Error, NO_EPOCH, Takeover, WeakEngine, operator_log, recovery::OnRecovered},
    metrics,
    store::StrandedTask,
};

/// How often a node looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// Tasks that are taken together.
const PAGE: usize = 256;
/// After this time any node takes a task whose tool it does not have: it ends, with an error that says so.
const WITHOUT_TOOL_AFTER: Duration = Duration::from_secs(60);
/// How long a task is left alone at most that this node cannot take: it may get the tool meanwhile.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Tasks of which it is remembered that they are left alone; any other is looked at each time.
const LEFT_MAX: usize = 100_000;

/// What one round of looking leaves for the next. All times are of the local monotonic clock: that of the store may be set.
#[derive(Default)]
struct Seen {
    /// Since when it is known that nodes are gone.
    gone: HashMap<Epoch, Duration>,
    /// Tasks that this node could not take, and until when it leaves them alone.
    left: HashMap<TaskId, Duration>,
}

/// Looks again and again, until the engine is gone.
pub(super) async fn run(weak: WeakEngine, seen: Box<OnRecovered>) {
    let (mut is_first, mut before) = (true, Seen::default());
    loop {
        let Some(engine) = weak.get() else { return };
        let Some(membership) = &engine.0.cluster else { return };
        if membership.is_handing_over() {
            return;
        }
        if let Err(error) = take_all(&engine, membership, &mut before, &*seen).await {
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
async fn take_all(engine: &Engine, membership: &Membership, before: &mut Seen, seen: &OnRecovered) -> Result<(), Error> {
    let (mut after, mut now_seen) = (None, Seen::default());
    // Who has left is gone for certain; of others only a node may say so that could reach the store all the time.
    let may_judge = membership.lease.may_judge_others(membership.clock.monotonic());
    let mut judge_at = may_judge.then(|| membership.clock.now());
    while membership.has_lease() {
        let mut stranded = membership.cluster.stranded_tasks(judge_at.take(), after, PAGE).await?;
        let last = stranded.last().filter(|_| stranded.len() >= PAGE).map(|last| (last.epoch, last.id));
        let now = membership.clock.monotonic();
        for task in &mut stranded {
            let since = *now_seen.gone.entry(task.epoch).or_insert_with(|| before.gone.get(&task.epoch).copied().unwrap_or(now));
            task.gone_for = task.gone_for.min(now.saturating_sub(since));
        }
        let is_left = |task: &StrandedTask| before.left.get(&task.id).copied().filter(|until| *until > now);
        now_seen.left.extend(stranded.iter().filter_map(|task| Some((task.id, is_left(task)?))));
        stranded.retain(|task| is_left(task).is_none());
        for (id, span) in take(engine, membership, &stranded, seen).await {
            if now_seen.left.len() < LEFT_MAX {
                now_seen.left.insert(id, now + span.min(LOOK_AGAIN_AFTER));
            }
        }
        if last.is_none() {
            *before = now_seen;
            break;
        }
        after = last;
    }
    Ok(())
}

/// Takes tasks. Returns those that are left to others, and for how long.
async fn take(engine: &Engine, membership: &Membership, stranded: &[StrandedTask], seen: &OnRecovered) -> Vec<(TaskId, Duration)> {
    let (epoch, mut left) = (engine.epoch(), Vec::new());
    if epoch == NO_EPOCH {
        return left;
    }
    let orphan_after = membership.lease.orphan_after();
    let commands = stranded.iter().map(async |task| {
        let Some(read) = engine.any_task(task.id).await? else { return Ok(Err(Duration::ZERO)) };
        let wait = left_to_others(engine, &read, task.gone_for, orphan_after).await?;
        if !wait.is_zero() {
            return Ok(Err(wait));
        }
        let command = if read.queued_at.is_some() && !read.is_lost_with_its_call() {
            // Unless it has begun since it was read.
            Command::TakeQueued { from: task.epoch, epoch, after: Duration::ZERO }
        } else {
            Command::Recover { lost: task.epoch..task.epoch.next(), epoch }
        };
        engine.submit(task.id, Authority::Engine, command).await.map(Ok)
    });
    for (StrandedTask { id, .. }, receipt) in stranded.iter().zip(join_all(commands).await) {
        match receipt {
            Ok(Ok(receipt)) if receipt.changed => {
                operator_log::task_recovered(&receipt.task);
                engine.metrics().task_taken_over(metrics::Takeover::Interrupted);
                seen(Some(receipt.task)).await;
            }
            Ok(Err(wait)) => left.push((*id, wait)),
            // Another node was faster.
            Ok(_) | Err(Error::Rejected(_)) => {}
            // The next look may succeed.
            Err(Error::Away) => tracing::debug!(task = %id, "the store could not be reached to take a task over"),
            // One task that cannot be read must not keep the others waiting.
            Err(error) => {
                tracing::error!(task = %id, %error, "an open task could not be taken over");
                left.push((*id, LOOK_AGAIN_AFTER));
            }
        }
    }
    left
}

/// How much longer this node leaves a task to others whose node has been gone for so long.
async fn left_to_others(engine: &Engine, task: &Task, gone_for: Duration, orphan_after: Duration) -> Result<Duration, Error> {
    // It fails, and any node can say so.
    if task.spec.on_interrupt == OnInterrupt::Fail {
        return Ok(Duration::ZERO);
    }
    let checkpoint = match task.checkpoint_version {
        Some(version) if task.spec.on_interrupt == OnInterrupt::Resume => engine.event(task.id, version).await?,
        _ => None,
    };
    let checkpoint = checkpoint.as_ref().and_then(|event| if let Event::Saved { checkpoint } = event { Some(checkpoint) } else { None });
    let (wait, gone_for) = match engine.work().map(|work| work.can_take(task, checkpoint)) {
        Some(Takeover::Now) => return Ok(Duration::ZERO),
        // Made by a node that had lost its lease in that moment, so the time since then counts, too.
        Some(Takeover::WhenOrphaned) if task.epoch == NO_EPOCH => (orphan_after, gone_for.min(engine.now().since(task.updated_at))),
        Some(Takeover::WhenOrphaned) => (orphan_after, gone_for),
        Some(Takeover::Never) | None => (orphan_after.saturating_add(WITHOUT_TOOL_AFTER), gone_for),
    };
    Ok(wait.saturating_sub(gone_for))
}
