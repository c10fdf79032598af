//! What happens when a connection cannot be accepted, mostly because this process may open no more files.

use std::{io, time::Duration};

use rustix::io::Errno;

use super::connection_slots::ConnectionSlots;

/// How long to wait before the next one.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often that is logged.
const TELL_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct AcceptFailures {
    /// When it was last logged, by the monotonic clock.
    told: Option<Duration>,
}

impl AcceptFailures {
    /// Waits after a failure. If there was no file for the connection, that of the one that was idle longest will do.
    pub(super) async fn pause(&mut self, slots: &ConnectionSlots, error: &io::Error, now: Duration) {
        if self.told.is_none_or(|told| now.saturating_sub(told) >= TELL_EVERY) {
            tracing::warn!(%error, "connections cannot be accepted just now");
            self.told = Some(now);
        }
        if matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE)) {
            slots.close_longest_idle();
        }
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_connection_for_which_there_is_no_file_gets_that_of_the_one_that_was_idle_longest() {
        let (slots, mut failures) = (ConnectionSlots::new(10, 10), AcceptFailures::default());
        let (first, second) = (slots.acquire().await, slots.acquire().await);
        failures.pause(&slots, &Errno::CONNABORTED.into(), TELL_EVERY).await;
        assert!(first.evicted().now_or_never().is_none(), "that one was at fault itself");
        failures.pause(&slots, &Errno::MFILE.into(), TELL_EVERY).await;
        assert!(first.evicted().now_or_never().is_some());
        assert!(second.evicted().now_or_never().is_none(), "one is enough");
    }
}
