//! Asks a question again when the answer does not fit, under a new id: the client will not respond twice to the same request.

use std::sync::Arc;

use taskwire_core::{QuestionKey, TaskId, task::Task};

use super::TRACKED_TASKS_MAX;
use crate::protocol::legacy::session::Session;

/// How often a question is asked at most.
const ASKED_MAX: u32 = 3;
/// How many characters of the reason a person is shown.
const WHY_CHARS_MAX: usize = 300;

/// A question that is asked again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::protocol::legacy) struct Reask {
    /// How often it has been asked, this time included.
    pub(in crate::protocol::legacy) times: u32,
    /// Why the last answer was not accepted.
    pub(in crate::protocol::legacy) why: Arc<str>,
    /// Whether the task's own stream has yet to ask it.
    due: bool,
}

impl Session {
    /// Makes a stream ask a question again, because the answer did not fit. Does nothing if that happened already since the question was
    /// asked for the time that the answer is for (`times`). Says `false` if it was asked often enough.
    pub(in crate::protocol::legacy) fn ask_again(&self, task: &Task, key: &QuestionKey, times: u32, why: &str) -> bool {
        let question = (task.id, key.clone());
        let mut live = self.live();
        let asked = live.reasks.get(&question).map_or(times, |again| again.times);
        if times < asked {
            return true;
        }
        if asked >= ASKED_MAX {
            return false;
        }
        if live.reasks.len() >= TRACKED_TASKS_MAX {
            // A question that is forgotten here is asked once more under an id that it had.
            live.reasks.clear();
        }
        let again = Reask { times: asked + 1, why: why.chars().take(WHY_CHARS_MAX).collect::<String>().into(), due: true };
        live.reasks.insert(question.clone(), again);
        live.asked.remove(&question);
        // If the task has no stream of its own, the session stream asks.
        if !task.spec.hidden && !live.claims.contains_key(&task.id) && live.released.len() < TRACKED_TASKS_MAX {
            live.released.insert(task.id);
        }
        drop(live);
        self.task_released.notify_waiters();
        self.session_stream_wake.notify_waiters();
        true
    }

    /// The questions of a task that its own stream has yet to ask again.
    pub(in crate::protocol::legacy) fn take_due_reasks(&self, id: TaskId) -> Vec<QuestionKey> {
        let mut live = self.live();
        let due = live.reasks.iter_mut().filter(|((task, _), again)| *task == id && again.due);
        due.map(|((_, key), again)| {
            again.due = false;
            key.clone()
        })
        .collect()
    }

    pub(in crate::protocol::legacy) fn reask(&self, id: TaskId, key: &QuestionKey) -> Option<Reask> {
        self.live().reasks.get(&(id, key.clone())).cloned()
    }
}
