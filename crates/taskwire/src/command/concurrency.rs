//! Limits how many commands of one tool run at once. The others wait, in the order in which they came.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use taskwire_core::TaskId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::lock;

/// The limit of one tool.
#[derive(Debug)]
pub(super) struct ConcurrencyLimit {
    semaphore: Arc<Semaphore>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    max: usize,
    /// Permits to take away as soon as they are returned, because the limit was lowered.
    surplus: usize,
    /// Commands that run since before the restart; None for those above the limit.
    reserved: HashMap<TaskId, Option<OwnedSemaphorePermit>>,
}

impl ConcurrencyLimit {
    pub(super) fn new(max: usize) -> Arc<Self> {
        let state = State { max, surplus: 0, reserved: HashMap::new() };
        Arc::new(Self { semaphore: Arc::new(Semaphore::new(max)), state: Mutex::new(state) })
    }

    pub(super) fn max(&self) -> usize {
        lock(&self.state).max
    }

    /// Changes the limit. Commands that run go on.
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

    /// Reserves a slot for a command that runs already, even above the limit.
    pub(super) fn reserve(&self, id: TaskId) {
        let permit = self.semaphore.clone().try_acquire_owned().ok();
        lock(&self.state).reserved.insert(id, permit);
    }

    pub(super) fn release_reserved(self: &Arc<Self>, id: TaskId) {
        let kept = lock(&self.state).reserved.remove(&id);
        if let Some(permit) = kept {
            drop(Slot { limit: self.clone(), permit });
        }
    }

    /// A slot without waiting: the reserved one, or a free one.
    pub(super) fn try_acquire(self: &Arc<Self>, id: TaskId) -> Option<Slot> {
        let kept = lock(&self.state).reserved.remove(&id);
        let permit = match kept {
            Some(permit) => permit,
            None => Some(self.semaphore.clone().try_acquire_owned().ok()?),
        };
        Some(Slot { limit: self.clone(), permit })
    }

    pub(super) async fn acquire(self: &Arc<Self>) -> Slot {
        // The semaphore is never closed.
        let permit = self.semaphore.clone().acquire_owned().await.ok();
        Slot { limit: self.clone(), permit }
    }
}

/// The right to run one command; returned when dropped.
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
        let limit = ConcurrencyLimit::new(2);
        let (first, _second) = (limit.try_acquire(id(1)).expect("room"), limit.try_acquire(id(2)).expect("room"));
        assert!(limit.try_acquire(id(3)).is_none());
        let mut third = Box::pin(limit.acquire());
        assert!(third.as_mut().now_or_never().is_none());
        drop(first);
        assert!(third.now_or_never().is_some(), "who waited is let in");
    }

    #[test]
    fn what_runs_since_an_earlier_life_has_its_place_even_above_the_limit() {
        let limit = ConcurrencyLimit::new(1);
        limit.reserve(id(1));
        limit.reserve(id(2));
        assert!(limit.try_acquire(id(3)).is_none());
        let (one, two) = (limit.try_acquire(id(1)).expect("kept"), limit.try_acquire(id(2)).expect("kept"));
        drop(two);
        assert!(limit.try_acquire(id(3)).is_none(), "the one above the limit leaves no place behind");
        drop(one);
        let three = limit.try_acquire(id(3)).expect("room");
        drop(three);
        limit.reserve(id(4));
        limit.release_reserved(id(4));
        assert!(limit.try_acquire(id(5)).is_some());
    }

    #[test]
    fn the_limit_can_be_changed_while_commands_run() {
        let limit = ConcurrencyLimit::new(3);
        let slots: Vec<Slot> = (0..3).map(|n| limit.try_acquire(id(n)).expect("room")).collect();
        limit.resize(1);
        drop(slots);
        let only = limit.try_acquire(id(9)).expect("room for one");
        assert!(limit.try_acquire(id(10)).is_none());
        limit.resize(2);
        let second = limit.try_acquire(id(10)).expect("room for two");
        assert!(limit.try_acquire(id(11)).is_none());
        limit.resize(1);
        limit.resize(3);
        drop((only, second));
        let all: Vec<Option<Slot>> = (0..4).map(|n| limit.try_acquire(id(n))).collect();
        assert_eq!(all.iter().flatten().count(), 3);
    }
}
