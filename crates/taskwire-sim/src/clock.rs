//! Clocks: that of the world, which is virtual or real, and those of machines. Each machine counts by the time of its own runtime, and may
//! be wrong.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use taskwire::{
    clock::{Clock, Sleep, SystemClock},
    core::Timestamp,
};
use tokio::time::Instant;

/// When a simulated world begins.
const BEGIN: i64 = 1_785_196_800_000;

/// The time of the world, which is also that of the store.
#[derive(Debug, Clone)]
pub(crate) struct WorldClock {
    /// When the world begins.
    begin: i64,
    passed: Passed,
}

/// How much of its time a world has behind it.
#[derive(Debug, Clone)]
enum Passed {
    /// As many milliseconds as it was taken on.
    Turned(Arc<AtomicI64>),
    /// As long as it is since this moment of the machine's monotonic clock.
    Since(Duration),
}

impl Default for WorldClock {
    /// That of a simulated world.
    fn default() -> Self {
        Self { begin: BEGIN, passed: Passed::Turned(Arc::default()) }
    }
}

impl WorldClock {
    /// That of a real world, which begins now.
    pub(crate) fn real() -> Self {
        Self { begin: SystemClock.now().as_millis(), passed: Passed::Since(SystemClock.monotonic()) }
    }

    /// When the world begins.
    pub(crate) fn begin(&self) -> i64 {
        self.begin
    }

    /// Milliseconds since the beginning.
    pub(crate) fn millis(&self) -> i64 {
        match &self.passed {
            Passed::Turned(millis) => millis.load(Ordering::Relaxed),
            Passed::Since(began) => {
                let passed = SystemClock.monotonic().saturating_sub(*began);
                i64::try_from(passed.as_millis()).unwrap_or(i64::MAX)
            }
        }
    }

    /// Takes a simulated world on. A real one goes on by itself.
    pub(crate) fn advance(&self, millis: i64) {
        if let Passed::Turned(turned) = &self.passed {
            turned.fetch_add(millis, Ordering::Relaxed);
        }
    }
}

impl Clock for WorldClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.begin + self.millis())
    }

    fn sleep_until(&self, at: Timestamp) -> Sleep {
        Box::pin(tokio::time::sleep(at.since(self.now())))
    }
}

/// The clock of one machine.
#[derive(Debug)]
pub(crate) struct MachineClock {
    /// When the world begins.
    begin: i64,
    started: Instant,
    /// Monotonic time at the start.
    base: Duration,
    /// Milliseconds by which its wall clock is wrong.
    pub(crate) error: Arc<AtomicI64>,
}

impl MachineClock {
    /// To be called on the machine's own runtime, so long after the beginning of the world.
    pub(crate) fn new(world: &WorldClock, base: Duration, error: Arc<AtomicI64>) -> Self {
        Self { begin: world.begin(), started: Instant::now(), base, error }
    }
}

impl Clock for MachineClock {
    fn now(&self) -> Timestamp {
        let millis = i64::try_from(self.monotonic().as_millis()).unwrap_or(i64::MAX);
        Timestamp::from_millis(self.begin + millis + self.error.load(Ordering::Relaxed))
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
