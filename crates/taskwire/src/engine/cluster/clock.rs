//! The time that all nodes share: that of the store. Between two looks at it, a node counts on by its own monotonic clock, so a machine
//! whose clock is wrong, or is set, makes no task time out.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use taskwire_core::Timestamp;

use crate::clock::{Clock, Sleep};

#[derive(Debug)]
pub(super) struct ClusterClock {
    local: Arc<dyn Clock>,
    /// The store's time, and the local monotonic time when it was read.
    read: Mutex<Option<(Timestamp, Duration)>>,
}

impl ClusterClock {
    pub(super) fn new(local: Arc<dyn Clock>) -> Self {
        Self { local, read: Mutex::default() }
    }

    /// The store says that it is `now`.
    pub(super) fn set(&self, now: Timestamp) {
        *self.read.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, self.local.monotonic()));
    }
}

impl Clock for ClusterClock {
    fn now(&self) -> Timestamp {
        match *self.read.lock().unwrap_or_else(PoisonError::into_inner) {
            Some((now, at)) => now.after(self.local.monotonic().saturating_sub(at)),
            // Until the first renewal of the lease.
            None => self.local.now(),
        }
    }

    fn monotonic(&self) -> Duration {
        self.local.monotonic()
    }

    fn sleep_until(&self, at: Timestamp) -> Sleep {
        self.local.sleep(at.since(self.now()))
    }

    fn sleep(&self, span: Duration) -> Sleep {
        self.local.sleep(span)
    }
}
