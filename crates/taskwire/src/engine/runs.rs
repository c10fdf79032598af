//! What is running, and making it what the tasks want (invariant I8).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use taskwire_core::{
    Attempt, TaskId,
    task::{OnInterrupt, Spec, Task, wants},
};
use tokio::sync::watch;

use super::{Engine, switch::Switch};

/// One attempt that runs or is about to.
#[derive(Debug)]
struct Running {
    attempt: Attempt,
    stop: Arc<Switch>,
    /// Whether its work goes on without us, so that nobody need wait for it.
    resumes: bool,
}

fn resumes(spec: &Spec) -> bool {
    spec.on_interrupt == OnInterrupt::Resume
}

#[derive(Debug, Default)]
pub(super) struct Runs {
    map: Mutex<HashMap<TaskId, Running>>,
    count: watch::Sender<usize>,
}

impl Runs {
    fn lock(&self) -> MutexGuard<'_, HashMap<TaskId, Running>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, map: &HashMap<TaskId, Running>) {
        self.count.send_replace(map.values().filter(|running| !running.resumes).count());
    }

    /// How many run that end with this process.
    pub(super) fn len(&self) -> usize {
        *self.count.borrow()
    }

    /// Waits until nothing runs that would end with this process.
    pub(super) async fn idle(&self) {
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Notes a run that began before its task was made, so that it is not started again.
    pub(super) fn adopt(&self, id: TaskId, attempt: Attempt, stop: Arc<Switch>, spec: &Spec) {
        let mut map = self.lock();
        map.insert(id, Running { attempt, stop, resumes: resumes(spec) });
        self.count(&map);
    }

    /// Forgets a run that did not come about.
    pub(super) fn disown(&self, id: TaskId) {
        let mut map = self.lock();
        map.remove(&id);
        self.count(&map);
    }

    /// The switch that stops this attempt, if it is still wanted.
    pub(super) fn switch(&self, id: TaskId, attempt: Attempt) -> Option<Arc<Switch>> {
        self.lock().get(&id).filter(|running| running.attempt == attempt).map(|running| running.stop.clone())
    }

    /// Starts what `task` wants and is not there, stops what is there and not wanted. An attempt of an earlier life is
    /// not this node's to run: recovery decides what becomes of it.
    pub(super) fn reconcile(&self, engine: &Engine, task: &Arc<Task>) {
        let wanted = wants(task).run.filter(|_| task.epoch == engine.0.epoch);
        let mut map = self.lock();
        let running = map.get(&task.id).map(|running| running.attempt);
        if running == wanted {
            return;
        }
        if let Some(old) = map.remove(&task.id) {
            old.stop.turn_on();
        }
        if let Some(attempt) = wanted {
            map.insert(task.id, Running { attempt, stop: Arc::default(), resumes: resumes(&task.spec) });
            engine.spawn_attempt(task.id, attempt);
        }
        self.count(&map);
    }
}
