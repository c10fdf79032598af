//! Whether the server has more in memory than it may.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// How long a look is good for: it costs some ten microseconds.
const GOOD_FOR: Duration = Duration::from_millis(100);
/// When it was too much, it must fall below the bound by this part of it.
const MARGIN: u64 = 10;

#[derive(Debug, Default)]
pub(super) struct MemoryWatch(Mutex<LastLook>);

#[derive(Debug, Default)]
struct LastLook {
    /// When that was, by the monotonic clock.
    at: Option<Duration>,
    too_much: bool,
}

impl MemoryWatch {
    /// Whether there are more than `max` bytes in memory, or were, and it is not a tenth less yet. Zero is no bound. Where it is unknown how
    /// many there are, there are not too many.
    pub(super) fn is_too_much(&self, max: u64, now: Duration, bytes: impl FnOnce() -> Option<u64>) -> bool {
        if max == 0 {
            return false;
        }
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.at.is_some_and(|at| now.saturating_sub(at) < GOOD_FOR) {
            return last.too_much;
        }
        let bytes = bytes();
        let bound = if last.too_much { max - max / MARGIN } else { max };
        let too_much = bytes.is_some_and(|bytes| bytes > bound);
        match (last.too_much, too_much) {
            (false, true) => tracing::warn!(bytes, max, "too much is in memory: no call and no stream begins until it is less"),
            (true, false) => tracing::info!(bytes, max, "there is room in memory again"),
            _ => {}
        }
        *last = LastLook { at: Some(now), too_much };
        too_much
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_too_much_must_fall_by_a_tenth_and_is_looked_at_ten_times_a_second() {
        let (watch, mut now) = (MemoryWatch::default(), Duration::from_secs(1));
        for (bytes, expected) in
            [(Some(1_000), false), (Some(1_001), true), (Some(901), true), (Some(900), false), (Some(1_000), false), (None, false)]
        {
            now += GOOD_FOR;
            assert_eq!(watch.is_too_much(1_000, now, || bytes), expected, "{bytes:?}");
            assert_eq!(watch.is_too_much(1_000, now + GOOD_FOR / 2, || panic!("it was looked at already")), expected);
        }
        assert!(!watch.is_too_much(0, now, || panic!("there is no bound")));
    }
}
