//! Questions that are asked again, because what came was no answer: to its client a question that it responded to is answered, and it
//! would never respond to it once more.

use std::sync::Arc;

use taskwire_core::{QuestionKey, TaskId, task::Task};

use super::TRACKED_TASKS_MAX;
use crate::protocol::legacy::session::Session;

/// How often a client is asked that never answers as it should.
const ASKED_MAX: u32 = 3;
/// Characters of what was wrong that a person is told.
const WHY_CHARS_MAX: usize = 300;

/// That a question was asked before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::protocol::legacy) struct Reask {
    /// The how manieth time it is asked now.
    pub(in crate::protocol::legacy) times: u32,
    /// Why what came last was not taken.
    pub(in crate::protocol::legacy) why: Arc<str>,
    /// Whether a stream of its own has yet to ask it.
    due: bool,
}

impl Session {
    /// Has a question asked again, since what came in response was no answer; nothing is done if it was asked again already, after
    /// the time that this is the response to. Says `false` if it was asked often enough.
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
            // What is forgotten is asked once more under a name that it had.
            live.reasks.clear();
        }
        let again = Reask { times: asked + 1, why: why.chars().take(WHY_CHARS_MAX).collect::<String>().into(), due: true };
        live.reasks.insert(question.clone(), again);
        live.asked.remove(&question);
        // Of a task that no stream of its own tells of, the standing stream asks.
        if !task.spec.hidden && !live.claims.contains_key(&task.id) && live.released.len() < TRACKED_TASKS_MAX {
            live.released.insert(task.id);
        }
        drop(live);
        self.task_released.notify_waiters();
        self.session_stream_wake.notify_waiters();
        true
    }

    /// The questions of a task that a stream of its own has yet to ask again.
    pub(in crate::protocol::legacy) fn take_due_reasks(&self, id: TaskId) -> Vec<QuestionKey> {
        let mut live = self.live();
        let due = live.reasks.iter_mut().filter(|((task, _), again)| *task == id && again.due);
        due.map(|((_, key), again)| {
            again.due = false;
            key.clone()
        })
        .collect()
    }

    /// That a question was asked before, if it was.
    pub(in crate::protocol::legacy) fn reask(&self, id: TaskId, key: &QuestionKey) -> Option<Reask> {
        self.live().reasks.get(&(id, key.clone())).cloned()
    }
}
