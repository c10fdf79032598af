//! The running attempts: those that tasks want are started, all others are stopped (invariant I8).

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use taskwire_core::{
    Attempt, CallerId, TaskId, Version,
    task::{Event, OnInterrupt, Spec, Status, Task, wants},
};
use tokio::sync::watch;

use super::{Engine, switch::StopSignal};
use crate::metrics::{Metrics, OpenTask};

/// One attempt that runs or is about to.
#[derive(Debug)]
struct RunningAttempt {
    attempt: Attempt,
    stop: Arc<StopSignal>,
    spec: Arc<Spec>,
    /// The last version of its task that this node knows; 0 until there is a task.
    version: Version,
    counted: OpenTask,
}

impl RunningAttempt {
    /// Whether its work goes on without this process, so that a shutdown need not wait for it.
    fn outlives_process(&self) -> bool {
        self.spec.on_interrupt == OnInterrupt::Resume
    }
}

/// The running attempts, and how many of them end with this process.
#[derive(Debug, Default)]
struct Table {
    running: BTreeMap<TaskId, RunningAttempt>,
    bound_to_process: usize,
    /// The tasks of each tool, by their callers.
    tasks: HashMap<Arc<str>, ToolTasks>,
    /// Tasks whose attempts were stopped while the store could not be reached. The next renewal of the lease starts them again. The
    /// number says how many renewals have not found the task.
    abandoned: BTreeMap<TaskId, u32>,
}

/// How many tasks of a tool run.
#[derive(Debug, Default)]
struct ToolTasks {
    all: u64,
    by_caller: HashMap<CallerId, u64>,
}

impl Table {
    fn insert(&mut self, id: TaskId, running: RunningAttempt) {
        self.remove(id);
        self.bound_to_process += usize::from(!running.outlives_process());
        if running.version > Version(0) {
            self.count_task(&running.spec);
        }
        self.running.insert(id, running);
    }

    fn remove(&mut self, id: TaskId) -> Option<RunningAttempt> {
        let removed = self.running.remove(&id)?;
        self.bound_to_process -= usize::from(!removed.outlives_process());
        if removed.version > Version(0) {
            self.count_off_task(&removed.spec);
        }
        Some(removed)
    }

    fn count_task(&mut self, spec: &Spec) {
        let tasks = self.tasks.entry(spec.tool.clone()).or_default();
        tasks.all += 1;
        *tasks.by_caller.entry(spec.caller.clone()).or_default() += 1;
    }

    fn count_off_task(&mut self, spec: &Spec) {
        let Some(tasks) = self.tasks.get_mut(&spec.tool) else { return };
        tasks.all -= 1;
        if let Some(count) = tasks.by_caller.get_mut(&spec.caller) {
            *count -= 1;
            if *count == 0 {
                tasks.by_caller.remove(&spec.caller);
            }
        }
        if tasks.all == 0 {
            self.tasks.remove(&spec.tool);
        }
    }
}

#[derive(Debug)]
pub(super) struct Runs {
    table: Mutex<Table>,
    count: watch::Sender<usize>,
    metrics: Arc<Metrics>,
}

impl Runs {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self { table: Mutex::default(), count: watch::Sender::default(), metrics }
    }

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

    /// How many tasks of a tool run: of all callers, and of this one.
    pub(super) fn tasks_of(&self, spec: &Spec) -> (u64, u64) {
        let table = self.lock();
        let tasks = table.tasks.get(&spec.tool);
        tasks.map_or((0, 0), |tasks| (tasks.all, tasks.by_caller.get(&spec.caller).copied().unwrap_or(0)))
    }

    /// Waits until nothing runs that would end with this process.
    pub(super) async fn idle(&self) {
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Registers a run that began before its task was made, so that it is not started again.
    pub(super) fn register(&self, id: TaskId, attempt: Attempt, stop: Arc<StopSignal>, spec: &Arc<Spec>) {
        let mut table = self.lock();
        let counted = self.metrics.open_task(&spec.tool, Status::Working);
        table.insert(id, RunningAttempt { attempt, stop, spec: spec.clone(), version: Version(0), counted });
        self.publish(&table);
    }

    /// Removes a run whose task was not made, or that could not be started.
    pub(super) fn unregister(&self, id: TaskId) {
        let mut table = self.lock();
        table.remove(id);
        table.abandoned.remove(&id);
        self.publish(&table);
    }

    /// The switch that stops this attempt, if it is still wanted.
    pub(super) fn stop_switch(&self, id: TaskId, attempt: Attempt) -> Option<Arc<StopSignal>> {
        self.lock().running.get(&id).filter(|running| running.attempt == attempt).map(|running| running.stop.clone())
    }

    /// Whether a task runs here whose version in the store this node does not know.
    pub(super) fn is_behind(&self, id: TaskId, stored: Option<Version>) -> bool {
        self.lock().running.get(&id).is_some_and(|running| stored.is_none_or(|stored| running.version < stored))
    }

    pub(super) fn ids(&self) -> Vec<TaskId> {
        self.lock().running.keys().copied().collect()
    }

    /// Stops all runs: their tasks belong to other nodes now.
    pub(super) fn abandon_all(&self) {
        let mut table = self.lock();
        for (_, running) in std::mem::take(&mut table.running) {
            running.stop.abandon();
        }
        (table.bound_to_process, table.abandoned, table.tasks) = (0, BTreeMap::new(), HashMap::new());
        self.publish(&table);
    }

    /// Stops the runs whose tasks another node could run again, or go on with. Any other goes on: no second attempt of it can begin elsewhere.
    /// Says whether there was one.
    pub(super) fn abandon_what_others_may_run(&self) -> bool {
        let may_run = |running: &RunningAttempt| running.spec.on_interrupt != OnInterrupt::Fail;
        let ids: Vec<TaskId> = self.lock().running.iter().filter(|(_, running)| may_run(running)).map(|(id, _)| *id).collect();
        ids.iter().for_each(|id| self.abandon(*id));
        !ids.is_empty()
    }

    /// Stops the run of this task, if it has one. The next renewal of the lease starts it again.
    fn abandon(&self, id: TaskId) {
        let mut table = self.lock();
        if let Some(running) = table.remove(id) {
            running.stop.abandon();
            table.abandoned.insert(id, 0);
        }
        self.publish(&table);
    }

    /// The next renewal of the lease is to start this task again.
    pub(super) fn set_abandoned(&self, id: TaskId, tries: u32) {
        self.lock().abandoned.insert(id, tries);
    }

    /// The tasks whose attempts were stopped while the store could not be reached.
    pub(super) fn take_abandoned(&self) -> BTreeMap<TaskId, u32> {
        std::mem::take(&mut self.lock().abandoned)
    }

    /// Stops every attempt of `task` but the one that it wants.
    pub(super) fn stop_unwanted(&self, engine: &Engine, task: &Arc<Task>) {
        self.reconcile(engine, task, false, None);
    }

    /// The same, and starts the attempt that `task` wants if that has just `begun`: no attempt is started twice. An attempt of another epoch
    /// is not started: recovery decides what becomes of it. Nor is one whose work began before its task was made, and was stopped since.
    /// `created` is the event that made the task, if that is known: then nothing of it need be read.
    pub(super) fn reconcile(&self, engine: &Engine, task: &Arc<Task>, begun: bool, created: Option<&Event>) {
        let wanted = wants(task).attempt.filter(|_| engine.runs_epoch(task.epoch));
        let mut table = self.lock();
        let mut is_made = false;
        let running = table.running.get_mut(&task.id).map(|running| {
            is_made = running.version == Version(0) && task.version > Version(0);
            running.version = running.version.max(task.version);
            running.counted.set_status(task.status());
            running.attempt
        });
        if is_made {
            table.count_task(&task.spec);
        }
        if running == wanted || (running.is_none() && !begun) {
            return;
        }
        if let Some(old) = table.remove(task.id) {
            // If the task has not ended, another attempt may run.
            if task.ended.is_some() { old.stop.stop() } else { old.stop.abandon() }
        }
        if let Some(attempt) = wanted.filter(|_| begun && !table.abandoned.contains_key(&task.id)) {
            let counted = self.metrics.open_task(&task.spec.tool, task.status());
            let (spec, version) = (task.spec.clone(), task.version);
            table.insert(task.id, RunningAttempt { attempt, stop: Arc::default(), spec, version, counted });
            engine.spawn_attempt(task.id, attempt, created.map(|created| (task.clone(), created.clone())));
        }
        self.publish(&table);
    }
}
