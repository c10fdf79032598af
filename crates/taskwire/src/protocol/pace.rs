//! How often something may happen: a token bucket for each caller, or for each tool.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// What flows into a bucket in this time is what it holds.
const BURST: Duration = Duration::from_secs(2);
/// With so many buckets, those that are full are removed. They are as good as none.
const BUCKETS_MIN: usize = 1_024;

/// A bucket for each key. All are full at first.
#[derive(Debug)]
pub(super) struct Buckets<K>(Mutex<Table<K>>);

#[derive(Debug)]
struct Table<K> {
    /// When each bucket will be full again, by the monotonic clock.
    full_at: HashMap<K, Duration>,
    prune_at: usize,
}

impl<K> Default for Buckets<K> {
    fn default() -> Self {
        Self(Mutex::new(Table { full_at: HashMap::new(), prune_at: BUCKETS_MIN }))
    }
}

impl<K: Eq + Hash + Clone> Buckets<K> {
    /// Takes one out of a bucket into which so many flow in a second; `false` if there is none in it.
    pub(super) fn take(&self, key: &K, per_second: u64, now: Duration) -> bool {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let full_at = table.full_at.get(key).copied().unwrap_or_default().max(now) + time_of_one(per_second);
        if full_at > now + BURST {
            return false;
        }
        if let Some(known) = table.full_at.get_mut(key) {
            *known = full_at;
            return true;
        }
        if table.full_at.len() >= table.prune_at {
            table.full_at.retain(|_, full_at| *full_at > now);
            table.prune_at = (2 * table.full_at.len()).max(BUCKETS_MIN);
        }
        table.full_at.insert(key.clone(), full_at);
        true
    }

    /// Gives back what was taken for nothing.
    pub(super) fn give_back(&self, key: &K, per_second: u64) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(full_at) = table.full_at.get_mut(key) {
            *full_at = full_at.saturating_sub(time_of_one(per_second));
        }
    }
}

/// How long it takes until one has flowed into a bucket.
fn time_of_one(per_second: u64) -> Duration {
    Duration::from_secs(1) / u32::try_from(per_second.max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// How many can be taken at this moment.
    fn taken(buckets: &Buckets<u32>, key: u32, per_second: u64, now: Duration) -> usize {
        (0..10_000).take_while(|_| buckets.take(&key, per_second, now)).count()
    }

    #[test]
    fn a_bucket_holds_what_flows_in_within_two_seconds() {
        let (buckets, now) = (Buckets::default(), 100 * SECOND);
        assert_eq!(taken(&buckets, 1, 5, now), 10);
        assert_eq!(taken(&buckets, 1, 5, now + SECOND), 5);
        assert_eq!(taken(&buckets, 1, 5, now + SECOND), 0);
        assert_eq!(taken(&buckets, 1, 5, now + 100 * SECOND), 10, "and no more");
        assert_eq!(taken(&buckets, 2, 5, now + SECOND), 10, "another key has its own");
        assert_eq!(taken(&buckets, 3, 1, Duration::ZERO), 2);
        assert_eq!(taken(&buckets, 4, u64::MAX, now), 10_000);
        buckets.give_back(&3, 1);
        assert_eq!(taken(&buckets, 3, 1, Duration::ZERO), 1, "what was given back can be taken again");
    }

    #[test]
    fn buckets_that_are_full_are_not_kept() {
        let buckets = Buckets::default();
        for key in 0..10 * u32::try_from(BUCKETS_MIN).expect("it is small") {
            assert!(buckets.take(&key, 1, SECOND * key));
        }
        assert!(buckets.0.lock().expect("no panic").full_at.len() <= BUCKETS_MIN);
    }
}
