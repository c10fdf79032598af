//! The running attempts: those that tasks want are started, all others are stopped (invariant I8).

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
struct RunningAttempt {
    attempt: Attempt,
    stop: Arc<Switch>,
    /// Whether its work goes on without this process, so that a shutdown need not wait for it.
    outlives_process: bool,
}

fn outlives_process(spec: &Spec) -> bool {
    spec.on_interrupt == OnInterrupt::Resume
}

/// The running attempts, and how many of them end with this process.
#[derive(Debug, Default)]
struct Table {
    running: HashMap<TaskId, RunningAttempt>,
    bound_to_process: usize,
}

impl Table {
    fn insert(&mut self, id: TaskId, running: RunningAttempt) {
        self.remove(id);
        self.bound_to_process += usize::from(!running.outlives_process);
        self.running.insert(id, running);
    }

    fn remove(&mut self, id: TaskId) -> Option<RunningAttempt> {
        let removed = self.running.remove(&id)?;
        self.bound_to_process -= usize::from(!removed.outlives_process);
        Some(removed)
    }
}

#[derive(Debug, Default)]
pub(super) struct Runs {
    table: Mutex<Table>,
    count: watch::Sender<usize>,
}

impl Runs {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, table: &Table) {
        self.count.send_replace(table.bound_to_process);
    }

    /// How many attempts run that end with this process.
    pub(super) fn len(&self) -> usize {
        *self.count.borrow()
    }

    /// Waits until nothing runs that would end with this process.
    pub(super) async fn idle(&self) {
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Registers a run that began before its task was made, so that it is not started again.
    pub(super) fn register(&self, id: TaskId, attempt: Attempt, stop: Arc<Switch>, spec: &Spec) {
        let mut table = self.lock();
        table.insert(id, RunningAttempt { attempt, stop, outlives_process: outlives_process(spec) });
        self.publish(&table);
    }

    /// Removes a run whose task was not made, or that could not be started.
    pub(super) fn unregister(&self, id: TaskId) {
        let mut table = self.lock();
        table.remove(id);
        self.publish(&table);
    }

    /// The switch that stops this attempt, if it is still wanted.
    pub(super) fn stop_switch(&self, id: TaskId, attempt: Attempt) -> Option<Arc<Switch>> {
        self.lock().running.get(&id).filter(|running| running.attempt == attempt).map(|running| running.stop.clone())
    }

    /// Starts the attempt that `task` wants and stops any other. An attempt of an earlier epoch is not started: recovery decides
    /// what becomes of it.
    pub(super) fn reconcile(&self, engine: &Engine, task: &Arc<Task>) {
        let wanted = wants(task).attempt.filter(|_| task.epoch == engine.0.epoch);
        let mut table = self.lock();
        let running = table.running.get(&task.id).map(|running| running.attempt);
        if running == wanted {
            return;
        }
        if let Some(old) = table.remove(task.id) {
            old.stop.turn_on();
        }
        if let Some(attempt) = wanted {
            table.insert(task.id, RunningAttempt { attempt, stop: Arc::default(), outlives_process: outlives_process(&task.spec) });
            engine.spawn_attempt(task.id, attempt);
        }
        self.publish(&table);
    }
}
