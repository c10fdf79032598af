//! What other nodes change reaches this one: its readers, and its runs. A hint may be lost, so everything is also looked at from time to time.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use taskwire_core::{TaskId, Version};

use crate::{
    engine::{Engine, Error, WeakEngine},
    store::Changes,
    wakeup::ChangeKind,
};

/// How often a node looks at what it runs and what is watched here.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// The same where nothing tells it what others change.
const POLL_INTERVAL_WITHOUT_WAKEUPS: Duration = Duration::from_millis(250);

/// Hears what others announce, until the engine is gone.
pub(super) async fn hear(weak: WeakEngine) {
    loop {
        let Some(engine) = weak.get() else { return };
        let Some(membership) = &engine.0.cluster else { return };
        let cluster = membership.cluster.clone();
        drop(engine);
        let changes = cluster.next_changes().await;
        let Some(engine) = weak.get() else { return };
        match changes {
            Changes::Of(tasks, sessions) => {
                notice(&engine, tasks.into_iter().map(|id| (id, None)).collect()).await;
                engine.0.session_wakeups.wake(sessions.into_iter().map(|id| (id, ChangeKind::Task)));
            }
            // One look at all versions says what it was.
            Changes::Unknown => look_now(&engine),
        }
    }
}

/// Compares the versions of what runs or is watched here with those in the store, until the engine is gone.
pub(super) async fn poll(weak: WeakEngine) {
    let mut known: BTreeMap<TaskId, Option<Version>> = BTreeMap::new();
    loop {
        let Some(engine) = weak.get() else { return };
        let Some(membership) = &engine.0.cluster else { return };
        let ids: Vec<TaskId> = watched(&engine).into_iter().collect();
        match membership.cluster.versions(&ids).await {
            Ok(versions) => {
                let now: BTreeMap<TaskId, Option<Version>> = ids.into_iter().zip(versions).collect();
                let is_new = |(id, version): (&TaskId, &Option<Version>)| (known.get(id) != Some(version)).then_some((*id, *version));
                notice(&engine, now.iter().filter_map(is_new).collect()).await;
                known = now;
            }
            Err(error) => tracing::debug!(%error, "the store could not be looked at"),
        }
        engine.0.session_wakeups.wake_all();
        let interval = if membership.cluster.has_wakeups() { POLL_INTERVAL } else { POLL_INTERVAL_WITHOUT_WAKEUPS };
        let (sleep, asked) = (membership.clock.sleep(interval), membership.look_now.clone());
        drop(engine);
        tokio::select! {
            () = sleep => {}
            () = asked.notified() => {}
        }
    }
}

/// What runs or is watched on this node.
fn watched(engine: &Engine) -> BTreeSet<TaskId> {
    let mut ids = engine.0.task_wakeups.watched();
    ids.extend(engine.0.runs.ids());
    ids
}

/// Lets the next look at all versions be at once.
fn look_now(engine: &Engine) {
    if let Some(membership) = &engine.0.cluster {
        membership.look_now.notify_one();
    }
}

/// These tasks may have changed, and have these versions if that is known: wakes their readers, and stops their runs. What this node itself
/// has changed concerns no run of it.
async fn notice(engine: &Engine, tasks: Vec<(TaskId, Option<Version>)>) {
    for (id, _) in tasks.iter().filter(|(id, version)| engine.0.runs.is_behind(*id, *version)) {
        match engine.any_task(*id).await {
            Ok(Some(task)) => engine.0.runs.stop_unwanted(engine, &task),
            // It is about to be made, or it is forgotten, and ended before. Where the store is away, the next look may succeed.
            Ok(None) | Err(Error::Away) => {}
            Err(error) => tracing::warn!(task = %id, %error, "a task that another node changed could not be read"),
        }
    }
    engine.0.task_wakeups.wake(tasks.into_iter().map(|(id, _)| (id, ChangeKind::Task)));
}
