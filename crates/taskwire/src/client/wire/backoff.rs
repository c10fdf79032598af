//! How long to wait before a retry.

use std::time::Duration;

use taskwire_core::Timestamp;

use crate::client::Timing;

/// Waits that double, until the give-up time.
#[derive(Debug)]
pub(crate) struct Backoff {
    timing: Timing,
    tried: u32,
    since: Option<Timestamp>,
}

impl Backoff {
    pub(crate) fn new(timing: Timing) -> Self {
        Self { timing, tried: 0, since: None }
    }

    /// Called after a success.
    pub(crate) fn reset(&mut self) {
        (self.tried, self.since) = (0, None);
    }

    /// How long to wait after a failure; none when the give-up time has passed. `asked` is the wait that the server wants, and
    /// `random` is in 0..1.
    pub(crate) fn next(&mut self, now: Timestamp, asked: Option<Duration>, random: f64) -> Option<Duration> {
        let since = *self.since.get_or_insert(now);
        let doubled = self.timing.backoff.saturating_mul(1u32.checked_shl(self.tried).unwrap_or(u32::MAX)).min(self.timing.backoff_max);
        self.tried += 1;
        // Between a half and the whole, so that clients that lost the server together do not all come back at once.
        let wait = doubled.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0).max(asked.unwrap_or_default());
        (now.since(since).saturating_add(wait) <= self.timing.give_up_after).then_some(wait)
    }

    /// The same for an attempt that began at `began`. If it lasted a while, the server was there, and the give-up time begins anew.
    pub(crate) fn next_since(&mut self, began: Timestamp, now: Timestamp, asked: Option<Duration>) -> Option<Duration> {
        if now.since(began) > self.timing.backoff_max {
            self.reset();
        }
        self.next(now, asked, random())
    }
}

/// A random number in 0..1.
pub(crate) fn random() -> f64 {
    let mut bytes = [0; 4];
    // Without random bytes all clients wait the same time: worse, not wrong.
    let _ = getrandom::fill(&mut bytes);
    f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    #[test]
    fn waits_double_up_to_the_longest_and_begin_anew_after_success() {
        let mut backoff = Backoff::new(Timing::default());
        let waits: Vec<u128> = (0..8).filter_map(|_| backoff.next(at(0), None, 1.0)).map(|wait| wait.as_millis()).collect();
        assert_eq!(waits, [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
        backoff.reset();
        assert_eq!(backoff.next(at(0), None, 0.0), Some(Duration::from_millis(125)));
    }

    #[test]
    fn a_server_may_ask_for_more_and_is_given_up_in_the_end() {
        let mut backoff = Backoff::new(Timing::default());
        assert_eq!(backoff.next(at(0), Some(Duration::from_secs(7)), 0.5), Some(Duration::from_secs(7)));
        assert_eq!(backoff.next(at(299), Some(Duration::from_secs(1)), 0.5), Some(Duration::from_secs(1)));
        assert_eq!(backoff.next(at(299), Some(Duration::from_secs(2)), 0.5), None);
        assert_eq!(backoff.next(at(301), None, 0.5), None);
    }
}
