//! Wake-ups for readers: that a task or an outbox changed, never what. The reader reads that from the store.
//!
//! A reader is a cursor plus a wake-up (invariant I6): nothing is queued for it, so a slow one costs nothing and misses
//! nothing.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The maps below are consistent between statements, so a panic elsewhere does not spoil them.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What changed about a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    /// Only its output or its checkpoint.
    Output,
    /// Anything else.
    Task,
}

/// The waiting readers, by what they watch.
#[derive(Debug)]
pub(crate) struct WakeUps<K> {
    waiters: Mutex<HashMap<K, Vec<Arc<Waiter<K>>>>>,
}

impl<K> Default for WakeUps<K> {
    fn default() -> Self {
        Self { waiters: Mutex::default() }
    }
}

#[derive(Debug)]
struct Waiter<K> {
    changed: Mutex<BTreeSet<K>>,
    notify: Notify,
    /// Whether output is of interest too.
    output: bool,
}

/// What can be watched: tasks, sessions.
pub(crate) trait Key: Ord + Hash + Clone {}

impl<K: Ord + Hash + Clone> Key for K {}

impl<K: Key> WakeUps<K> {
    /// Wakes the readers that watch one of `ids`. Call it only after the change is durable.
    pub(crate) fn wake(&self, ids: impl Iterator<Item = (K, ChangeKind)>) {
        let waiters = lock(&self.waiters);
        if waiters.is_empty() {
            return;
        }
        for (id, changed) in ids {
            for waiter in waiters.get(&id).into_iter().flatten() {
                if changed == ChangeKind::Output && !waiter.output {
                    continue;
                }
                lock(&waiter.changed).insert(id.clone());
                waiter.notify.notify_one();
            }
        }
    }

    /// Wakes all readers.
    pub(crate) fn wake_all(&self) {
        self.wake(self.watched().into_iter().map(|id| (id, ChangeKind::Task)));
    }

    /// What is watched.
    pub(crate) fn watched(&self) -> BTreeSet<K> {
        lock(&self.waiters).keys().cloned().collect()
    }

    pub(crate) fn watchers(&self, id: &K) -> usize {
        lock(&self.waiters).get(id).map_or(0, Vec::len)
    }

    /// Watches `ids` until the watch is dropped; for their output too, if `output`.
    pub(crate) fn watch(self: &Arc<Self>, ids: Vec<K>, output: bool) -> Watch<K> {
        let waiter = Arc::new(Waiter { changed: Mutex::default(), notify: Notify::new(), output });
        let mut waiters = lock(&self.waiters);
        for id in &ids {
            waiters.entry(id.clone()).or_default().push(waiter.clone());
        }
        Watch { wakeups: self.clone(), waiter, ids }
    }
}

/// A reader's wake-up.
#[derive(Debug)]
pub(crate) struct Watch<K: Key> {
    wakeups: Arc<WakeUps<K>>,
    waiter: Arc<Waiter<K>>,
    ids: Vec<K>,
}

impl<K: Key> Watch<K> {
    /// What changed since the last time.
    pub(crate) fn take(&self) -> BTreeSet<K> {
        std::mem::take(&mut *lock(&self.waiter.changed))
    }

    /// Waits for a change and returns what changed since the last time.
    pub(crate) async fn changed(&self) -> BTreeSet<K> {
        loop {
            let changed = self.take();
            if !changed.is_empty() {
                return changed;
            }
            self.waiter.notify.notified().await;
        }
    }
}

impl<K: Key> Drop for Watch<K> {
    fn drop(&mut self) {
        let mut waiters = lock(&self.wakeups.waiters);
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
    use taskwire_core::{TaskId, Timestamp, id::ID_RANDOM_BYTES};

    use super::*;

    #[tokio::test]
    async fn a_watch_sees_its_own_tasks_and_leaves_nothing_behind() {
        let wakeups = Arc::new(WakeUps::default());
        let id = |n| TaskId::new(Timestamp::from_millis(n), [0; ID_RANDOM_BYTES]);
        let wake = |ids: &[i64], changed| wakeups.wake(ids.iter().map(|n| (id(*n), changed)));
        let (watch, output) = (wakeups.watch(vec![id(1), id(2)], false), wakeups.watch(vec![id(1)], true));
        wake(&[1, 3], ChangeKind::Task);
        wake(&[2, 1], ChangeKind::Task);
        assert_eq!(watch.changed().await, BTreeSet::from([id(1), id(2)]), "many wake-ups are one");
        assert_eq!(output.changed().await, BTreeSet::from([id(1)]));
        wake(&[1], ChangeKind::Output);
        assert_eq!(output.changed().await, BTreeSet::from([id(1)]));
        assert!(watch.take().is_empty(), "who does not read output is not woken by it");
        drop((watch, output));
        assert!(lock(&wakeups.waiters).is_empty());
    }
}
