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
pub(super) struct ConcurrencyLimit {
    semaphore: Arc<Semaphore>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    max: usize,
    /// Places to be taken away as soon as they are given back: the limit was lowered.
    surplus: usize,
    /// Commands that run since an earlier life of the server, and the places that they have.
    reserved: HashMap<TaskId, Option<OwnedSemaphorePermit>>,
}

impl ConcurrencyLimit {
    pub(super) fn new(max: usize) -> Arc<Self> {
        let state = State { max, surplus: 0, reserved: HashMap::new() };
        Arc::new(Self { semaphore: Arc::new(Semaphore::new(max)), state: Mutex::new(state) })
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
            self.semaphore.add_permits(more);
        } else {
            let fewer = state.max - max;
            state.surplus += fewer - self.semaphore.forget_permits(fewer);
        }
        state.max = max;
    }

    /// Keeps a place for a command that runs already, even if there is none left.
    pub(super) fn reserve(&self, id: TaskId) {
        let permit = self.semaphore.clone().try_acquire_owned().ok();
        lock(&self.state).reserved.insert(id, permit);
    }

    /// Gives up the place that was kept.
    pub(super) fn release_reserved(self: &Arc<Self>, id: TaskId) {
        let kept = lock(&self.state).reserved.remove(&id);
        if let Some(permit) = kept {
            drop(Slot { limit: self.clone(), permit });
        }
    }

    /// A place at once: one that was kept, or a free one.
    pub(super) fn try_acquire(self: &Arc<Self>, id: TaskId) -> Option<Slot> {
        let kept = lock(&self.state).reserved.remove(&id);
        let permit = match kept {
            Some(permit) => permit,
            None => Some(self.semaphore.clone().try_acquire_owned().ok()?),
        };
        Some(Slot { limit: self.clone(), permit })
    }

    /// Waits for a place.
    pub(super) async fn acquire(self: &Arc<Self>) -> Slot {
        // The gate is never closed.
        let permit = self.semaphore.clone().acquire_owned().await.ok();
        Slot { limit: self.clone(), permit }
    }
}

/// A place among those that run; given back when dropped.
#[derive(Debug)]
pub(super) struct Slot {
    limit: Arc<ConcurrencyLimit>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let mut state = lock(&self.limit.state);
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
        let gate = ConcurrencyLimit::new(2);
        let (first, _second) = (gate.try_acquire(id(1)).expect("room"), gate.try_acquire(id(2)).expect("room"));
        assert!(gate.try_acquire(id(3)).is_none());
        let mut third = Box::pin(gate.acquire());
        assert!(third.as_mut().now_or_never().is_none());
        drop(first);
        assert!(third.now_or_never().is_some(), "who waited is let in");
    }

    #[test]
    fn what_runs_since_an_earlier_life_has_its_place_even_above_the_limit() {
        let gate = ConcurrencyLimit::new(1);
        gate.reserve(id(1));
        gate.reserve(id(2));
        assert!(gate.try_acquire(id(3)).is_none());
        let (one, two) = (gate.try_acquire(id(1)).expect("kept"), gate.try_acquire(id(2)).expect("kept"));
        drop(two);
        assert!(gate.try_acquire(id(3)).is_none(), "the one above the limit leaves no place behind");
        drop(one);
        let three = gate.try_acquire(id(3)).expect("room");
        drop(three);
        gate.reserve(id(4));
        gate.release_reserved(id(4));
        assert!(gate.try_acquire(id(5)).is_some());
    }

    #[test]
    fn the_limit_can_be_changed_while_commands_run() {
        let gate = ConcurrencyLimit::new(3);
        let passes: Vec<Slot> = (0..3).map(|n| gate.try_acquire(id(n)).expect("room")).collect();
        gate.resize(1);
        drop(passes);
        let only = gate.try_acquire(id(9)).expect("room for one");
        assert!(gate.try_acquire(id(10)).is_none());
        gate.resize(2);
        let second = gate.try_acquire(id(10)).expect("room for two");
        assert!(gate.try_acquire(id(11)).is_none());
        gate.resize(1);
        gate.resize(3);
        drop((only, second));
        let all: Vec<Option<Slot>> = (0..4).map(|n| gate.try_acquire(id(n))).collect();
        assert_eq!(all.iter().flatten().count(), 3);
    }
}
