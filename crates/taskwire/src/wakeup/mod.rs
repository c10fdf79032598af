//! Wake-ups for readers. A wake-up says only *that* a task changed, or a session has something to be told; what that is, is
//! read from the store.
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
    /// Only its output, or what it saved.
    Output,
    /// The task.
    Task,
}

/// Who wants to know of what.
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
    /// Tells whoever watches one of `ids` that it changed, or only wrote. Call it only after the change is durable.
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

    /// How many watch this one.
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
    /// Which tasks changed since the last time.
    pub(crate) fn take(&self) -> BTreeSet<K> {
        std::mem::take(&mut *lock(&self.waiter.changed))
    }

    /// Waits for a change and says which tasks changed since the last time.
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
        let feed = Arc::new(WakeUps::default());
        let id = |n| TaskId::new(Timestamp::from_millis(n), [0; ID_RANDOM_BYTES]);
        let wake = |ids: &[i64], changed| feed.wake(ids.iter().map(|n| (id(*n), changed)));
        let (watch, output) = (feed.watch(vec![id(1), id(2)], false), feed.watch(vec![id(1)], true));
        wake(&[1, 3], ChangeKind::Task);
        wake(&[2, 1], ChangeKind::Task);
        assert_eq!(watch.changed().await, BTreeSet::from([id(1), id(2)]), "many wake-ups are one");
        assert_eq!(output.changed().await, BTreeSet::from([id(1)]));
        wake(&[1], ChangeKind::Output);
        assert_eq!(output.changed().await, BTreeSet::from([id(1)]));
        assert!(watch.take().is_empty(), "who does not read output is not woken by it");
        drop((watch, output));
        assert!(lock(&feed.waiters).is_empty());
    }
}
