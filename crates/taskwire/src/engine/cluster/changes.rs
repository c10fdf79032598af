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
                notice(&engine, tasks).await;
                engine.0.session_wakeups.wake(sessions.into_iter().map(|id| (id, ChangeKind::Task)));
            }
            Changes::Unknown => {
                notice(&engine, watched(&engine).into_iter().collect()).await;
                engine.0.session_wakeups.wake_all();
            }
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
                let is_new = |(id, version): (&TaskId, &Option<Version>)| (known.get(id) != Some(version)).then_some(*id);
                notice(&engine, now.iter().filter_map(is_new).collect()).await;
                known = now;
            }
            Err(error) => tracing::debug!(%error, "the store could not be looked at"),
        }
        engine.0.session_wakeups.wake_all();
        let interval = if membership.cluster.has_wakeups() { POLL_INTERVAL } else { POLL_INTERVAL_WITHOUT_WAKEUPS };
        let sleep = membership.clock.sleep(interval);
        drop(engine);
        sleep.await;
    }
}

/// What runs or is watched on this node.
fn watched(engine: &Engine) -> BTreeSet<TaskId> {
    let mut ids = engine.0.task_wakeups.watched();
    ids.extend(engine.0.runs.ids());
    ids
}

/// These tasks may have changed: wakes their readers, and starts or stops their runs.
async fn notice(engine: &Engine, ids: Vec<TaskId>) {
    for id in ids.iter().filter(|id| engine.0.runs.contains(**id)) {
        match engine.any_task(*id).await {
            Ok(Some(task)) => engine.0.runs.stop_unwanted(engine, &task),
            // It is about to be made, or it is forgotten, and ended before. Where the store is away, the next look may succeed.
            Ok(None) | Err(Error::Away) => {}
            Err(error) => tracing::warn!(task = %id, %error, "a task that another node changed could not be read"),
        }
    }
    engine.0.task_wakeups.wake(ids.into_iter().map(|id| (id, ChangeKind::Task)));
}
