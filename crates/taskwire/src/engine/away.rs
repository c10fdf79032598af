//! Whether something can be stored just now, and what callers are told if not.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{Engine, Error, Inner, NO_EPOCH};
use crate::store;

/// Why nothing can be stored just now, if nothing can.
#[derive(Debug, Default)]
pub(super) struct Away {
    is_away: AtomicBool,
    /// Whether the disk is full. Otherwise the store cannot be reached.
    is_full: AtomicBool,
}

impl Inner {
    pub(super) fn set_away(&self, away: bool) {
        if self.away.is_away.swap(away, Ordering::AcqRel) != away {
            self.metrics.set_store_away(away, self.clock.monotonic());
        }
    }

    /// Records that nothing can be stored just now, and returns what callers are told.
    pub(super) fn set_away_because(&self, error: &store::Error) -> Error {
        let told = Error::of_away(error);
        self.away.is_full.store(matches!(told, Error::Full), Ordering::Release);
        self.set_away(true);
        told
    }
}

impl Error {
    /// What callers are told of an error of the store that passes.
    pub(super) const fn of_away(error: &store::Error) -> Self {
        if matches!(error, store::Error::Full(_)) { Self::Full } else { Self::Away }
    }
}

impl Engine {
    /// Whether callers must try again later: nothing can be stored, or this node has no lease just now.
    pub(crate) fn is_away(&self) -> bool {
        self.0.away.is_away.load(Ordering::Acquire) || self.epoch() == NO_EPOCH
    }

    /// Whether that is only because the disk is full: what is there can be read.
    pub(crate) fn is_full(&self) -> bool {
        let away = &self.0.away;
        away.is_away.load(Ordering::Acquire) && away.is_full.load(Ordering::Acquire) && self.epoch() != NO_EPOCH
    }

    /// What callers are told while nothing can be stored.
    pub(super) fn away_error(&self) -> Error {
        if self.is_full() { Error::Full } else { Error::Away }
    }
}
