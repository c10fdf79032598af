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
    /// Permits to take away as soon as they are returned: the limit was lowered, or a command runs above it.
    surplus: usize,
    /// Commands that run since before the restart.
    reserved: HashMap<TaskId, Permit>,
}

#[derive(Debug)]
enum Permit {
    Held(OwnedSemaphorePermit),
    /// Its command runs above the limit, so the next one that is returned is taken away.
    Owed,
}

impl ConcurrencyLimit {
    pub(super) fn new(max: usize) -> Arc<Self> {
        let state = State { max, surplus: 0, reserved: HashMap::new() };
        Arc::new(Self { semaphore: Arc::new(Semaphore::new(max)), state: Mutex::new(state) })
    }

    pub(super) fn max(&self) -> usize {
        lock(&self.state).max
    }

    /// How many more could start now.
    pub(super) fn free(&self) -> usize {
        self.semaphore.available_permits()
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

    fn permit_for_running(&self) -> Permit {
        match self.semaphore.clone().try_acquire_owned() {
            Ok(permit) => Permit::Held(permit),
            Err(_) => {
                lock(&self.state).surplus += 1;
                Permit::Owed
            }
        }
    }

    /// Reserves a slot for a command that runs already, even above the limit.
    pub(super) fn reserve(&self, id: TaskId) {
        if !lock(&self.state).reserved.contains_key(&id) {
            let permit = self.permit_for_running();
            lock(&self.state).reserved.insert(id, permit);
        }
    }

    /// A slot for a command that runs already: the reserved one, a free one, or one above the limit.
    pub(super) fn slot_for_running(self: &Arc<Self>, id: TaskId) -> Slot {
        let reserved = lock(&self.state).reserved.remove(&id);
        Slot { permit: Some(reserved.unwrap_or_else(|| self.permit_for_running())), limit: self.clone() }
    }

    pub(super) fn release_reserved(self: &Arc<Self>, id: TaskId) {
        let kept = lock(&self.state).reserved.remove(&id);
        if let Some(permit) = kept {
            drop(Slot { limit: self.clone(), permit: Some(permit) });
        }
    }

    /// A slot without waiting, if one is free.
    pub(super) fn try_acquire(self: &Arc<Self>) -> Option<Slot> {
        let permit = self.semaphore.clone().try_acquire_owned().ok()?;
        Some(Slot { limit: self.clone(), permit: Some(Permit::Held(permit)) })
    }

    pub(super) async fn acquire(self: &Arc<Self>) -> Slot {
        // The semaphore is never closed.
        let permit = self.semaphore.clone().acquire_owned().await.ok().map(Permit::Held);
        Slot { limit: self.clone(), permit }
    }
}

/// The right to run one command; returned when dropped.
#[derive(Debug)]
pub(super) struct Slot {
    limit: Arc<ConcurrencyLimit>,
    permit: Option<Permit>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let mut state = lock(&self.limit.state);
        let is_surplus = state.surplus > 0;
        state.surplus -= usize::from(is_surplus);
        match permit {
            Permit::Held(permit) if is_surplus => permit.forget(),
            // One was taken away for it.
            Permit::Owed if !is_surplus => self.limit.semaphore.add_permits(1),
            Permit::Held(_) | Permit::Owed => {}
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
        let (first, _second) = (limit.try_acquire().expect("room"), limit.try_acquire().expect("room"));
        assert!(limit.try_acquire().is_none());
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
        limit.reserve(id(2));
        assert!(limit.try_acquire().is_none());
        let (one, two) = (limit.slot_for_running(id(1)), limit.slot_for_running(id(2)));
        drop(one);
        assert!(limit.try_acquire().is_none(), "the one above the limit still runs");
        drop(two);
        let three = limit.try_acquire().expect("room");
        assert!(limit.try_acquire().is_none(), "but for one only");
        drop(three);
        limit.reserve(id(4));
        limit.release_reserved(id(4));
        assert!(limit.try_acquire().is_some());
    }

    #[test]
    fn who_goes_on_while_others_run_is_above_the_limit_until_one_of_them_ends() {
        let limit = ConcurrencyLimit::new(1);
        let asks = limit.try_acquire().expect("room");
        drop(asks);
        let other = limit.try_acquire().expect("the place of who waits for an answer");
        let goes_on = limit.slot_for_running(id(1));
        drop(goes_on);
        assert_eq!(limit.free(), 0);
        let goes_on = limit.slot_for_running(id(1));
        drop(other);
        assert_eq!(limit.free(), 0, "one still runs");
        drop(goes_on);
        assert_eq!(limit.free(), 1);
    }

    #[test]
    fn the_limit_can_be_changed_while_commands_run() {
        let limit = ConcurrencyLimit::new(3);
        let slots: Vec<Slot> = (0..3).map(|_| limit.try_acquire().expect("room")).collect();
        limit.resize(1);
        drop(slots);
        let only = limit.try_acquire().expect("room for one");
        assert!(limit.try_acquire().is_none());
        limit.resize(2);
        let second = limit.try_acquire().expect("room for two");
        assert!(limit.try_acquire().is_none());
        limit.resize(1);
        limit.resize(3);
        drop((only, second));
        let all: Vec<Option<Slot>> = (0..4).map(|_| limit.try_acquire()).collect();
        assert_eq!(all.iter().flatten().count(), 3);
    }
}
