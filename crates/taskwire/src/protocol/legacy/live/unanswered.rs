//! The calls of a session that are not answered yet, where the same call finds them.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Weak},
};

use taskwire_core::Timestamp;

use crate::protocol::{
    call::waiter::{DedupeKey, WaitingCall},
    prune::Prune,
};

/// From this many calls on, those that were answered are removed.
const KEPT_MIN: usize = 64;

/// The dedupe key is computed only for calls that have waited for a while, because most are answered before.
#[derive(Debug, Default)]
pub(super) struct UnansweredCalls {
    /// In the order in which they came.
    recent: VecDeque<(Timestamp, Weak<WaitingCall>)>,
    old_by_key: HashMap<DedupeKey, Vec<Weak<WaitingCall>>>,
    prune: Prune<KEPT_MIN>,
}

impl UnansweredCalls {
    pub(super) fn add(&mut self, began: Timestamp, waiting: Weak<WaitingCall>) {
        while self.recent.pop_front_if(|(_, first)| first.strong_count() == 0).is_some() {}
        self.recent.push_back((began, waiting));
    }

    /// Takes the calls that have become old, to be added by [`Self::index`].
    pub(super) fn take_old(&mut self, is_old: impl Fn(Timestamp) -> bool) -> Vec<Arc<WaitingCall>> {
        let mut old = Vec::new();
        while let Some((_, waiting)) = self.recent.pop_front_if(|(began, waiting)| waiting.strong_count() == 0 || is_old(*began)) {
            old.extend(waiting.upgrade());
        }
        old
    }

    pub(super) fn index(&mut self, key: DedupeKey, waiting: &Arc<WaitingCall>) {
        self.prune.retain(&mut self.old_by_key, |_, calls| calls.iter().any(|call| call.strong_count() > 0));
        self.old_by_key.entry(key).or_default().push(Arc::downgrade(waiting));
    }

    pub(super) fn has_old(&self) -> bool {
        !self.old_by_key.is_empty()
    }

    /// Old calls that are the same, the earliest first.
    pub(super) fn same(&mut self, key: &DedupeKey) -> Vec<Arc<WaitingCall>> {
        let Some(calls) = self.old_by_key.get_mut(key) else { return Vec::new() };
        calls.retain(|call| call.strong_count() > 0);
        let same: Vec<_> = calls.iter().filter_map(Weak::upgrade).collect();
        if same.is_empty() {
            self.old_by_key.remove(key);
        }
        same
    }
}
