//! The only code that changes a task (invariant I2). It cannot refuse: an event is a fact. A store completes a task that it reads here,
//! too.

use std::{collections::BTreeMap, time::Duration};

use super::{
    event::Event,
    state::{OnInterrupt, OutputTotals, QuestionState, Task, Waiting},
};
use crate::{
    id::{Attempt, Epoch, TaskId, Version},
    time::Timestamp,
};

/// How long an attempt that resumes its work has at least to learn what became of it, whatever its deadline says: the work
/// may have ended in time while no server ran.
const CATCH_UP: Duration = Duration::from_secs(10);

/// The task that a `Created` event makes.
///
/// # Panics
/// When it is another event: a task begins with this one.
#[must_use]
pub fn create(id: TaskId, created: &Event, at: Timestamp) -> Task {
    let Event::Created { spec, epoch, spent_ms, .. } = created else { unreachable!("a task begins with `Created`") };
    let (epoch, spent_ms) = (*epoch, *spent_ms);
    let mut task = Task {
        id,
        spec: spec.clone(),
        created_at: at,
        updated_at: at,
        version: Version(1),
        visible_version: Version(1),
        attempt: Attempt(0),
        epoch,
        queued_at: None,
        waiting: spec.linger_key.as_ref().map(|_| Box::new(Waiting { nodes: [epoch].into(), left_at: None })),
        deadline: None,
        time_left_ms: None,
        message: None,
        progress: None,
        questions: BTreeMap::new(),
        asked_at: None,
        checkpoint_version: None,
        saves: 0,
        log_bytes: created.stored_bytes(),
        checkpoint_bytes: 0,
        ended: None,
        outcome: None,
        output: OutputTotals::default(),
    };
    begin_attempt(&mut task, Attempt(1), epoch, spent_ms, at);
    task
}

/// Applies what happened at `at`.
pub fn evolve(task: &mut Task, event: &Event, at: Timestamp) {
    task.version = task.version.next();
    if event.is_visible() {
        // The machine's clock may be set back; what callers see does not go back with it.
        task.updated_at = task.updated_at.max(at);
        task.visible_version = task.version;
    }
    // Of checkpoints only the last is kept.
    if !matches!(event, Event::Saved { .. }) {
        task.log_bytes += event.stored_bytes();
    }
    match event {
        Event::Created { .. } => unreachable!("a task is created once, by `create`"),
        Event::Started { attempt, epoch } if task.spec.on_interrupt == OnInterrupt::Resume => {
            // The work went on without the server, so its deadline stays.
            (task.attempt, task.epoch) = (*attempt, *epoch);
            task.deadline = task.deadline.map(|deadline| deadline.max(at.after(CATCH_UP)));
        }
        Event::Started { attempt, epoch } => begin_attempt(task, *attempt, *epoch, 0, at),
        Event::Queued => task.queued_at = Some(at),
        Event::Dequeued => task.queued_at = None,
        Event::Appended { seq, first_block, blocks } => {
            task.output =
                OutputTotals { next_seq: seq.next(), blocks: first_block - 1 + blocks.count(), bytes: task.output.bytes + blocks.bytes() };
        }
        Event::StatusReported { message, progress } => {
            task.message = message.clone().or_else(|| task.message.take());
            task.progress = progress.or(task.progress);
        }
        Event::Asked { key, request } => {
            task.questions.insert(key.clone(), QuestionState { request: request.clone(), answer: None });
            if task.asked_at.is_none() {
                task.asked_at = Some(at);
                pause(task, at);
            }
        }
        Event::Answered { key, answer } => {
            if let Some(question) = task.questions.get_mut(key) {
                question.answer = Some(answer.clone());
            }
            if task.open_questions().next().is_none() {
                task.asked_at = None;
                task.deadline = task.time_left_ms.take().map(|left| at.after(Duration::from_millis(left)));
            }
        }
        Event::Saved { .. } => {
            task.checkpoint_version = Some(task.version);
            task.saves += 1;
            task.checkpoint_bytes = event.stored_bytes();
        }
        Event::Completed { .. } | Event::Failed(_) | Event::Cancelled { .. } => {
            task.outcome = event.outcome();
            task.ended = Some((at, task.version));
            task.deadline = None;
            task.time_left_ms = None;
            task.asked_at = None;
            task.queued_at = None;
        }
        Event::Joined { epoch, gone } => {
            let waiting = task.waiting.get_or_insert_default();
            waiting.nodes.retain(|epoch| !gone.contains(epoch));
            waiting.nodes.insert(*epoch);
            waiting.left_at = None;
        }
        Event::Left { epoch } => {
            let waiting = task.waiting.get_or_insert_default();
            waiting.nodes.remove(epoch);
            waiting.left_at = waiting.nodes.is_empty().then_some(at);
        }
        Event::Touched => task.waiting.get_or_insert_default().left_at = Some(at),
        Event::Expired => {}
    }
}

/// Applies the event that made `version` to a task that may lack the chunks before it.
pub fn evolve_to(task: &mut Task, version: Version, event: &Event, at: Timestamp) {
    task.version = Version(version.0 - 1);
    evolve(task, event, at);
}

impl Task {
    /// Sets the outcome of a task that was read: it is stored as the event that ended the task.
    pub fn restore_outcome(&mut self, end: &Event) {
        self.outcome = end.outcome();
    }

    /// Sets the output of a task that was read, and the version that its last chunk made.
    pub fn restore_output(&mut self, output: OutputTotals, version: Version) {
        self.output = output;
        self.version = self.version.max(version);
    }
}

/// Begins an attempt and its timeout, which is paused at once if a question of an earlier attempt is open.
fn begin_attempt(task: &mut Task, attempt: Attempt, epoch: Epoch, spent_ms: u64, at: Timestamp) {
    task.attempt = attempt;
    task.epoch = epoch;
    task.deadline = task.spec.timeout_ms.map(|ms| at.after(Duration::from_millis(ms.saturating_sub(spent_ms))));
    if task.asked_at.is_some() {
        pause(task, at);
    }
}

fn pause(task: &mut Task, at: Timestamp) {
    task.time_left_ms = task.deadline.take().map(|deadline| u64::try_from(deadline.since(at).as_millis()).unwrap_or(u64::MAX));
}
