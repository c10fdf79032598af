//! Clocks of simulated machines: each counts by the virtual time of its own runtime, and may be wrong.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use taskwire::{
    clock::{Clock, Sleep},
    core::Timestamp,
};
use tokio::time::Instant;

/// When the world begins.
pub(crate) const BEGIN: i64 = 1_785_196_800_000;

/// The time of the world, which is also that of the store.
#[derive(Debug, Clone, Default)]
pub(crate) struct WorldClock(pub(crate) Arc<AtomicI64>);

impl WorldClock {
    /// Milliseconds since the beginning.
    pub(crate) fn millis(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Clock for WorldClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(BEGIN + self.millis())
    }

    fn sleep_until(&self, at: Timestamp) -> Sleep {
        Box::pin(tokio::time::sleep(at.since(self.now())))
    }
}

/// The clock of one machine.
#[derive(Debug)]
pub(crate) struct MachineClock {
    started: Instant,
    /// Monotonic time at the start.
    base: Duration,
    /// Milliseconds by which its wall clock is wrong.
    pub(crate) error: Arc<AtomicI64>,
}

impl MachineClock {
    /// To be called on the machine's own runtime.
    pub(crate) fn new(base: Duration, error: Arc<AtomicI64>) -> Self {
        Self { started: Instant::now(), base, error }
    }
}

impl Clock for MachineClock {
    fn now(&self) -> Timestamp {
        let millis = i64::try_from(self.monotonic().as_millis()).unwrap_or(i64::MAX);
        Timestamp::from_millis(BEGIN + millis + self.error.load(Ordering::Relaxed))
    }

    fn monotonic(&self) -> Duration {
        self.base + self.started.elapsed()
    }

    fn sleep_until(&self, at: Timestamp) -> Sleep {
        self.sleep(at.since(self.now()))
    }

    fn sleep(&self, span: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(span))
    }
}
