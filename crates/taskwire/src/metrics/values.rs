//! Numbers that any thread may change at any moment, without a lock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::clock::Clock;

/// Counts what happens: it only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn increment(&self) {
        self.add(1);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts what is there just now.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicI64);

impl Gauge {
    pub(super) fn add(&self, more: i64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Counts one more until the result is dropped.
    pub(super) fn count(self: &Arc<Self>) -> Counted {
        self.add(1);
        Counted(self.clone())
    }

    pub(super) fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One of the things that a gauge counts, until this is dropped.
#[derive(Debug)]
pub(crate) struct Counted(Arc<Gauge>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}

/// How many values of a kind fall below each of some bounds.
#[derive(Debug)]
pub(crate) struct Histogram {
    /// In the unit of the values, ascending. A value that is equal to a bound is within it.
    bounds: &'static [u64],
    /// How many values fell into each bucket; the last one has those beyond all bounds.
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
    /// How many of the unit of the values make one of the unit in which they are told.
    scale: u32,
}

/// A histogram as it is told: the bounds with the number of values up to each, the sum of all values, and their number.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Snapshot {
    pub(super) buckets: Vec<(f64, u64)>,
    pub(super) sum: f64,
    pub(super) count: u64,
}

impl Histogram {
    /// Of times, which are told in seconds; the bounds are in microseconds.
    pub(super) fn of_times(bounds: &'static [u64]) -> Self {
        Self::new(bounds, 1_000_000)
    }

    pub(super) fn of_numbers(bounds: &'static [u64]) -> Self {
        Self::new(bounds, 1)
    }

    fn new(bounds: &'static [u64], scale: u32) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, buckets, sum: AtomicU64::new(0), scale }
    }

    pub(super) fn record(&self, value: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    pub(super) fn record_time(&self, span: Duration) {
        self.record(u64::try_from(span.as_micros()).unwrap_or(u64::MAX));
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let told = |value: u64| value as f64 / f64::from(self.scale);
        let mut count = 0;
        let mut upto = |bucket: &AtomicU64| {
            count += bucket.load(Ordering::Relaxed);
            count
        };
        let buckets = self.bounds.iter().zip(self.buckets.iter()).map(|(bound, bucket)| (told(*bound), upto(bucket))).collect();
        // The number of all values is that of these very buckets, whatever is recorded meanwhile.
        let all = upto(&self.buckets[self.bounds.len()]);
        Snapshot { buckets, sum: told(self.sum.load(Ordering::Relaxed)), count: all }
    }
}

/// Measures how long something waits until it is taken.
#[derive(Debug, Clone)]
pub(crate) struct Stopwatch {
    clock: Arc<dyn Clock>,
    times: Arc<Histogram>,
}

impl Stopwatch {
    pub(super) fn new(clock: Arc<dyn Clock>, times: Arc<Histogram>) -> Self {
        Self { clock, times }
    }

    /// The moment from which on something waits.
    pub(crate) fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// It is taken, and has waited since then.
    pub(crate) fn taken(&self, since: Duration) {
        self.times.record_time(self.now().saturating_sub(since));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_in_every_bucket_that_it_is_within() {
        let times = Histogram::of_times(&[500, 1_000, 2_500]);
        for micros in [0, 500, 501, 1_000, 2_500, 2_501, 1_000_000] {
            times.record_time(Duration::from_micros(micros));
        }
        let told = times.snapshot();
        assert_eq!(told.buckets, [(0.0005, 2), (0.001, 4), (0.0025, 5)], "up to a bound, and with it");
        assert_eq!((told.count, told.sum), (7, 1.007_002));
        times.record_time(Duration::MAX);
        assert_eq!(times.snapshot().count, 8, "however long it was");
    }

    #[test]
    fn numbers_are_told_as_they_are() {
        let numbers = Histogram::of_numbers(&[1, 2]);
        assert_eq!(numbers.snapshot(), Snapshot { buckets: vec![(1.0, 0), (2.0, 0)], sum: 0.0, count: 0 });
        [1, 1, 3].into_iter().for_each(|number| numbers.record(number));
        assert_eq!(numbers.snapshot(), Snapshot { buckets: vec![(1.0, 2), (2.0, 2)], sum: 5.0, count: 3 });
    }

    #[test]
    fn what_is_counted_is_counted_until_it_is_dropped() {
        let gauge = Arc::new(Gauge::default());
        let (one, two) = (gauge.count(), gauge.count());
        assert_eq!(gauge.get(), 2);
        drop(one);
        assert_eq!(gauge.get(), 1);
        drop(two);
        assert_eq!(gauge.get(), 0);
    }
}
