//! Wake-ups for readers: that a task or an outbox changed, never what. The reader reads that from the store.
//!
//! A reader is a cursor plus a wake-up (invariant I6): nothing is queued for it, so a slow one costs nothing and misses
//! nothing.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;

use crate::metrics::Stopwatch;

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
    /// Measures how long changes wait for their readers.
    lag: Stopwatch,
}

#[derive(Debug)]
struct Waiter<K> {
    changed: Mutex<Changed<K>>,
    notify: Notify,
    /// Whether output is of interest too.
    output: bool,
}

/// What changed since a reader last looked, and when the first of it did.
#[derive(Debug)]
struct Changed<K> {
    ids: BTreeSet<K>,
    since: Duration,
}

/// What can be watched: tasks, sessions.
pub(crate) trait Key: Ord + Hash + Clone {}

impl<K: Ord + Hash + Clone> Key for K {}

impl<K: Key> WakeUps<K> {
    pub(crate) fn new(lag: Stopwatch) -> Self {
        Self { waiters: Mutex::default(), lag }
    }

    /// Wakes the readers that watch one of `ids`. Call it only after the change is durable.
    pub(crate) fn wake(&self, ids: impl Iterator<Item = (K, ChangeKind)>) {
        let waiters = lock(&self.waiters);
        if waiters.is_empty() {
            return;
        }
        let now = self.lag.now();
        for (id, changed) in ids {
            for waiter in waiters.get(&id).into_iter().flatten() {
                if changed == ChangeKind::Output && !waiter.output {
                    continue;
                }
                lock(&waiter.changed).add(id.clone(), now);
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
        let changed = Mutex::new(Changed { ids: BTreeSet::new(), since: Duration::ZERO });
        let waiter = Arc::new(Waiter { changed, notify: Notify::new(), output });
        let mut waiters = lock(&self.waiters);
        for id in &ids {
            waiters.entry(id.clone()).or_default().push(waiter.clone());
        }
        Watch { wakeups: self.clone(), waiter, ids }
    }
}

impl<K: Key> Changed<K> {
    fn add(&mut self, id: K, now: Duration) {
        if self.ids.is_empty() {
            self.since = now;
        }
        self.ids.insert(id);
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
        let (ids, since) = {
            let mut changed = lock(&self.waiter.changed);
            (std::mem::take(&mut changed.ids), changed.since)
        };
        if !ids.is_empty() {
            self.wakeups.lag.taken(since);
        }
        ids
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
    use crate::{
        clock::{Clock, ManualClock},
        metrics::{Feed, Metrics, Readings},
    };

    fn wakeups(metrics: &Metrics, clock: &ManualClock) -> Arc<WakeUps<TaskId>> {
        let clock: Arc<dyn Clock> = Arc::new(clock.clone());
        Arc::new(WakeUps::new(metrics.feed_lag(Feed::Task, &clock)))
    }

    #[tokio::test]
    async fn how_long_the_first_change_waited_for_its_reader_is_measured() {
        let (metrics, clock) = (Metrics::new(Timestamp::default()), ManualClock::new(Timestamp::from_millis(0)));
        let (wakeups, id) = (wakeups(&metrics, &clock), TaskId::new(Timestamp::from_millis(1), [0; ID_RANDOM_BYTES]));
        let watch = wakeups.watch(vec![id], false);
        let pass = |ms| clock.advance(Duration::from_millis(ms));
        for (since, again, until) in [(5, 20, 20), (100, 30, 0)] {
            pass(since);
            wakeups.wake([(id, ChangeKind::Task)].into_iter());
            pass(again);
            wakeups.wake([(id, ChangeKind::Task)].into_iter());
            pass(until);
            watch.changed().await;
            assert!(watch.take().is_empty(), "which counts for nothing");
        }
        let text = metrics.text(&Readings::default());
        for line in ["_bucket{feed=\"task\",le=\"0.025\"} 0", "_bucket{feed=\"task\",le=\"0.05\"} 2", "_sum{feed=\"task\"} 0.07"] {
            assert!(text.contains(&format!("taskwire_feed_lag_seconds{line}\n")), "{line}: {text}");
        }
    }

    #[tokio::test]
    async fn a_watch_sees_its_own_tasks_and_leaves_nothing_behind() {
        let wakeups = wakeups(&Metrics::new(Timestamp::default()), &ManualClock::new(Timestamp::default()));
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
