//! Moments as values. Nothing here knows what time it is.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};

/// A moment: milliseconds since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The moment that lies this many milliseconds after the epoch.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the epoch.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// The moment `span` later; the end of time where that overflows.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX)))
    }

    /// How long after `earlier` this is; zero if it is not after it.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// RFC 3339 in UTC, as both protocol eras write moments.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = Duration::from_millis(u64::try_from(self.0).unwrap_or(0));
        write!(f, "{}", humantime::format_rfc3339_millis(SystemTime::UNIX_EPOCH + span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_written_as_rfc_3339() {
        assert_eq!(Timestamp::from_millis(1_785_196_800_123).to_string(), "2026-07-28T00:00:00.123Z");
        assert_eq!(Timestamp::from_millis(0).to_string(), "1970-01-01T00:00:00.000Z");
    }

    #[test]
    fn arithmetic_never_wraps() {
        let end = Timestamp::from_millis(i64::MAX);
        assert_eq!(end.after(Duration::from_secs(1)), end);
        assert_eq!(Timestamp::from_millis(5).since(Timestamp::from_millis(9)), Duration::ZERO);
        assert_eq!(Timestamp::from_millis(9).since(Timestamp::from_millis(5)), Duration::from_millis(4));
    }
}
