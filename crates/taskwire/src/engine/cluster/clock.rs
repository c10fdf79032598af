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
    read: Mutex<(Timestamp, Duration)>,
}

impl ClusterClock {
    /// It was `now` a moment ago.
    pub(super) fn new(local: Arc<dyn Clock>, now: Timestamp) -> Self {
        let read = Mutex::new((now, local.monotonic()));
        Self { local, read }
    }

    /// The store says that it is `now`.
    pub(super) fn set(&self, now: Timestamp) {
        *self.read.lock().unwrap_or_else(PoisonError::into_inner) = (now, self.local.monotonic());
    }
}

impl Clock for ClusterClock {
    fn now(&self) -> Timestamp {
        let (now, at) = *self.read.lock().unwrap_or_else(PoisonError::into_inner);
        now.after(self.local.monotonic().saturating_sub(at))
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
