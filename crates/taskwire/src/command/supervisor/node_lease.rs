//! Where nodes share a store: for how long a command may go on without a word of a server that has its lease.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::Job;
use crate::clock::{Clock, SystemClock};

/// How often an orphan looks at the time: the machine may have slept.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// What a job says of the node that it is for. All times are of a monotonic clock of the machine that counts on while it sleeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobLease {
    /// The start of the server that wrote the job: with its number, that tells it from jobs of the same task on other nodes.
    pub(crate) epoch: u64,
    /// When the server had its lease.
    pub(crate) held_at_ms: u64,
    /// The command ends when it is so long ago that a server had its lease.
    pub(crate) orphan_after_ms: u64,
}

/// The time now, as servers and supervisors of one machine have it.
pub(crate) fn lease_time_ms() -> u64 {
    u64::try_from(SystemClock.monotonic().as_millis()).unwrap_or(u64::MAX)
}

#[derive(Debug)]
pub(super) struct NodeLease {
    /// When a server last had its lease.
    held_at: Duration,
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
    pub(super) fn new(job: &Job) -> Self {
        let limits = job.lease.as_ref().map(|lease| {
            let (kill_after, to_clean_up) = (Duration::from_millis(lease.orphan_after_ms), Duration::from_millis(job.kill_after_ms));
            Limits { end_after: kill_after.saturating_sub(to_clean_up).max(kill_after / 2), kill_after }
        });
        let held_at = job.lease.as_ref().map_or(Duration::ZERO, |lease| Duration::from_millis(lease.held_at_ms));
        Self { held_at, limits }
    }

    /// A server had its lease at this moment. It may have been stopped since.
    pub(super) fn held_at(&mut self, at_ms: u64) {
        self.held_at = self.held_at.max(Duration::from_millis(at_ms));
    }

    /// The time until the command must be gone, if it must end now.
    pub(super) fn time_left_if_orphaned(&self) -> Option<Duration> {
        let (limits, since) = (self.limits?, SystemClock.monotonic().saturating_sub(self.held_at));
        (since >= limits.end_after).then(|| limits.kill_after.saturating_sub(since))
    }

    pub(super) fn next_check(&self, now: Instant) -> Option<Instant> {
        self.limits.map(|_| now + CHECK_INTERVAL)
    }
}
