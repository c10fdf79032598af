//! Where nodes share a store: for how long a command may go on without a word of a server that has its lease.

use std::time::Duration;

use tokio::time::Instant;

use super::Job;
use crate::clock::{Clock, SystemClock};

/// How often an orphan looks at the time: the machine may have slept.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// All times are of a monotonic clock that counts on while the machine sleeps.
#[derive(Debug)]
pub(super) struct NodeLease {
    /// When the last server said that it has its lease.
    heard_at: Duration,
    limits: Option<Limits>,
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    /// After this time without a server the command gets SIGTERM.
    end_after: Duration,
    /// After this time it gets SIGKILL, at the latest.
    kill_after: Duration,
}

impl NodeLease {
    /// A server that has its lease has just started the job.
    pub(super) fn new(job: &Job) -> Self {
        let limits = job.orphan_after_ms.map(|after| {
            let (kill_after, to_clean_up) = (Duration::from_millis(after), Duration::from_millis(job.kill_after_ms));
            Limits { end_after: kill_after.saturating_sub(to_clean_up).max(kill_after / 2), kill_after }
        });
        Self { heard_at: SystemClock.monotonic(), limits }
    }

    pub(super) fn renew(&mut self) {
        self.heard_at = SystemClock.monotonic();
    }

    /// The time until the command must be gone, if it must end now.
    pub(super) fn time_left_if_orphaned(&self) -> Option<Duration> {
        let (limits, silent_for) = (self.limits?, SystemClock.monotonic().saturating_sub(self.heard_at));
        (silent_for >= limits.end_after).then(|| limits.kill_after.saturating_sub(silent_for))
    }

    pub(super) fn next_check(&self, now: Instant) -> Option<Instant> {
        self.limits.map(|_| now + CHECK_INTERVAL)
    }
}
