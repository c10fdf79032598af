//! Wake-ups for readers. A wake-up says only *that* a task changed; what changed is read from the store.
//!
//! A reader is a cursor plus a wake-up (invariant I6): nothing is queued for it, so a slow one costs nothing and misses
//! nothing.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use taskwire_core::TaskId;
use tokio::sync::Notify;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The maps below are consistent between statements, so a panic elsewhere does not spoil them.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Who wants to know of which task.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    waiters: Mutex<HashMap<TaskId, Vec<Arc<Waiter>>>>,
}

#[derive(Debug, Default)]
struct Waiter {
    changed: Mutex<BTreeSet<TaskId>>,
    notify: Notify,
}

impl Feed {
    /// Tells whoever watches one of `ids` that it changed. Call it only after the change is durable.
    pub(crate) fn wake(&self, ids: impl Iterator<Item = TaskId>) {
        let waiters = lock(&self.waiters);
        if waiters.is_empty() {
            return;
        }
        for id in ids {
            for waiter in waiters.get(&id).into_iter().flatten() {
                lock(&waiter.changed).insert(id);
                waiter.notify.notify_one();
            }
        }
    }

    /// Watches `ids` until the watch is dropped.
    pub(crate) fn watch(self: &Arc<Self>, ids: Vec<TaskId>) -> Watch {
        let waiter = Arc::new(Waiter::default());
        let mut waiters = lock(&self.waiters);
        for id in &ids {
            waiters.entry(*id).or_default().push(waiter.clone());
        }
        Watch { feed: self.clone(), waiter, ids }
    }
}

/// A reader's wake-up.
#[derive(Debug)]
pub(crate) struct Watch {
    feed: Arc<Feed>,
    waiter: Arc<Waiter>,
    ids: Vec<TaskId>,
}

impl Watch {
    /// Which tasks changed since the last time.
    pub(crate) fn take(&self) -> BTreeSet<TaskId> {
        std::mem::take(&mut *lock(&self.waiter.changed))
    }

    /// Waits for a change and says which tasks changed since the last time.
    pub(crate) async fn changed(&self) -> BTreeSet<TaskId> {
        loop {
            let changed = self.take();
            if !changed.is_empty() {
                return changed;
            }
            self.waiter.notify.notified().await;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut waiters = lock(&self.feed.waiters);
        for id in &self.ids {
            if let Some(list) = waiters.get_mut(id) {
                list.retain(|waiter| !Arc::ptr_eq(waiter, &self.waiter));
                if list.is_empty() {
                    waiters.remove(id);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use taskwire_core::{Timestamp, id::ID_RANDOM_BYTES};

    use super::*;

    #[tokio::test]
    async fn a_watch_sees_its_own_tasks_and_leaves_nothing_behind() {
        let feed = Arc::new(Feed::default());
        let id = |n| TaskId::new(Timestamp::from_millis(n), [0; ID_RANDOM_BYTES]);
        let watch = feed.watch(vec![id(1), id(2)]);
        feed.wake([id(1), id(3)].into_iter());
        feed.wake([id(2), id(1)].into_iter());
        assert_eq!(watch.changed().await, BTreeSet::from([id(1), id(2)]), "many wake-ups are one");
        drop(watch);
        assert!(lock(&feed.waiters).is_empty());
    }
}
