//! Asks a question again when the answer does not fit, under a new id: the client will not respond twice to the same request.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use taskwire_core::{QuestionKey, TaskId, task::Task};

use super::TRACKED_TASKS_MAX;
use crate::{
    engine,
    protocol::{
        Context,
        legacy::session::{Session, SessionTerms},
    },
};

/// How often a question is asked at most.
const ASKED_MAX: u32 = 3;
/// How many questions that are asked again other nodes are told of.
const SHARED_MAX: usize = 64;
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

/// The same for other nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::protocol::legacy) struct SharedReask {
    task: TaskId,
    key: QuestionKey,
    times: u32,
    why: Arc<str>,
}

impl SharedReask {
    fn is_of(&self, task: TaskId, key: &QuestionKey) -> bool {
        self.task == task && self.key == *key
    }
}

impl Session {
    /// Tells other nodes that a question is asked again: its stream may be theirs.
    pub(in crate::protocol::legacy) async fn share_reask(
        &self,
        context: &Context,
        task: TaskId,
        key: &QuestionKey,
    ) -> Result<(), engine::Error> {
        let Some(Reask { times, why, .. }) = self.reask(task, key).filter(|_| context.engine.is_shared()) else { return Ok(()) };
        let again = SharedReask { task, key: key.clone(), times, why };
        let change = |agreed: &mut SessionTerms| {
            if !agreed.reasks.contains(&again) {
                agreed.reasks.retain(|known| !known.is_of(task, key));
                if agreed.reasks.len() >= SHARED_MAX {
                    agreed.reasks.remove(0);
                }
                agreed.reasks.push(again.clone());
            }
        };
        self.change_terms(context, change).await
    }

    /// A question was answered: it is not asked again on any node.
    pub(in crate::protocol::legacy) async fn unshare_reask(
        &self,
        context: &Context,
        task: TaskId,
        key: &QuestionKey,
    ) -> Result<(), engine::Error> {
        if context.engine.is_shared() && self.terms().reasks.iter().any(|known| known.is_of(task, key)) {
            self.change_terms(context, |agreed| agreed.reasks.retain(|known| !known.is_of(task, key))).await?;
        }
        Ok(())
    }

    /// Makes the streams of this node ask what another one says is to be asked again.
    pub(in crate::protocol::legacy) fn take_over_reasks(&self, shared: &[SharedReask]) {
        let mut live = self.live();
        let mut is_new = false;
        for SharedReask { task, key, times, why } in shared {
            let question = (*task, key.clone());
            if live.reasks.get(&question).map_or(1, |again| again.times) < *times {
                live.reasks.insert(question.clone(), Reask { times: *times, why: why.clone(), due: true });
                live.asked.remove(&question);
                if !live.claims.contains_key(task) && live.released.len() < TRACKED_TASKS_MAX {
                    live.released.insert(*task);
                }
                is_new = true;
            }
        }
        drop(live);
        if is_new {
            self.task_released.notify_waiters();
            self.session_stream_wake.notify_waiters();
        }
    }

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
