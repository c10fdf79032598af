//! How many commands of one tool run at one time. The others wait, in the order in which they came.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use taskwire_core::TaskId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::lock;

/// The way into a tool.
#[derive(Debug)]
pub(super) struct Gate {
    room: Arc<Semaphore>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    max: usize,
    /// Places to be taken away as soon as they are given back: the limit was lowered.
    surplus: usize,
    /// Commands that run since an earlier life of the server, and the places that they have.
    kept: HashMap<TaskId, Option<OwnedSemaphorePermit>>,
}

impl Gate {
    pub(super) fn new(max: usize) -> Arc<Self> {
        let state = State { max, surplus: 0, kept: HashMap::new() };
        Arc::new(Self { room: Arc::new(Semaphore::new(max)), state: Mutex::new(state) })
    }

    /// How many may run.
    pub(super) fn max(&self) -> usize {
        lock(&self.state).max
    }

    /// Lets more or fewer run from now on. What runs is left alone.
    pub(super) fn resize(&self, max: usize) {
        let mut state = lock(&self.state);
        if max >= state.max {
            let mut more = max - state.max;
            let owed = more.min(state.surplus);
            state.surplus -= owed;
            more -= owed;
            self.room.add_permits(more);
        } else {
            let fewer = state.max - max;
            state.surplus += fewer - self.room.forget_permits(fewer);
        }
        state.max = max;
    }

    /// Keeps a place for a command that runs already, even if there is none left.
    pub(super) fn keep(&self, id: TaskId) {
        let permit = self.room.clone().try_acquire_owned().ok();
        lock(&self.state).kept.insert(id, permit);
    }

    /// Gives up the place that was kept.
    pub(super) fn let_go(self: &Arc<Self>, id: TaskId) {
        let kept = lock(&self.state).kept.remove(&id);
        if let Some(permit) = kept {
            drop(Pass { gate: self.clone(), permit });
        }
    }

    /// A place at once: one that was kept, or a free one.
    pub(super) fn try_enter(self: &Arc<Self>, id: TaskId) -> Option<Pass> {
        let kept = lock(&self.state).kept.remove(&id);
        let permit = match kept {
            Some(permit) => permit,
            None => Some(self.room.clone().try_acquire_owned().ok()?),
        };
        Some(Pass { gate: self.clone(), permit })
    }

    /// Waits for a place.
    pub(super) async fn enter(self: &Arc<Self>) -> Pass {
        // The gate is never closed.
        let permit = self.room.clone().acquire_owned().await.ok();
        Pass { gate: self.clone(), permit }
    }
}

/// A place among those that run; given back when dropped.
#[derive(Debug)]
pub(super) struct Pass {
    gate: Arc<Gate>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Pass {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let mut state = lock(&self.gate.state);
        if state.surplus > 0 {
            state.surplus -= 1;
            permit.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use taskwire_core::{Timestamp, id::ID_RANDOM_BYTES};

    use super::*;

    fn id(n: i64) -> TaskId {
        TaskId::new(Timestamp::from_millis(n), [0; ID_RANDOM_BYTES])
    }

    #[test]
    fn no_more_than_the_limit_get_in_and_the_next_when_one_leaves() {
        let gate = Gate::new(2);
        let (first, _second) = (gate.try_enter(id(1)).expect("room"), gate.try_enter(id(2)).expect("room"));
        assert!(gate.try_enter(id(3)).is_none());
        let mut third = Box::pin(gate.enter());
        assert!(third.as_mut().now_or_never().is_none());
        drop(first);
        assert!(third.now_or_never().is_some(), "who waited is let in");
    }

    #[test]
    fn what_runs_since_an_earlier_life_has_its_place_even_above_the_limit() {
        let gate = Gate::new(1);
        gate.keep(id(1));
        gate.keep(id(2));
        assert!(gate.try_enter(id(3)).is_none());
        let (one, two) = (gate.try_enter(id(1)).expect("kept"), gate.try_enter(id(2)).expect("kept"));
        drop(two);
        assert!(gate.try_enter(id(3)).is_none(), "the one above the limit leaves no place behind");
        drop(one);
        let three = gate.try_enter(id(3)).expect("room");
        drop(three);
        gate.keep(id(4));
        gate.let_go(id(4));
        assert!(gate.try_enter(id(5)).is_some());
    }

    #[test]
    fn the_limit_can_be_changed_while_commands_run() {
        let gate = Gate::new(3);
        let passes: Vec<Pass> = (0..3).map(|n| gate.try_enter(id(n)).expect("room")).collect();
        gate.resize(1);
        drop(passes);
        let only = gate.try_enter(id(9)).expect("room for one");
        assert!(gate.try_enter(id(10)).is_none());
        gate.resize(2);
        let second = gate.try_enter(id(10)).expect("room for two");
        assert!(gate.try_enter(id(11)).is_none());
        gate.resize(1);
        gate.resize(3);
        drop((only, second));
        let all: Vec<Option<Pass>> = (0..4).map(|n| gate.try_enter(id(n))).collect();
        assert_eq!(all.iter().flatten().count(), 3);
    }
}
