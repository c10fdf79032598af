//! The calls of a session that are not answered yet, found by the same call.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Weak},
};

use taskwire_core::Timestamp;

use crate::dialect::{
    call::waiter::{Key, Waiting},
    prune::Prune,
};

/// Calls after which those that were answered are forgotten.
const KEPT_MIN: usize = 64;

/// What makes calls the same is worked out only for those that have waited for a while: most are answered before.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    /// In the order in which they came.
    young: VecDeque<(Timestamp, Weak<Waiting>)>,
    old: HashMap<Key, Vec<Weak<Waiting>>>,
    prune: Prune<KEPT_MIN>,
}

impl Unanswered {
    pub(super) fn add(&mut self, began: Timestamp, waiting: Weak<Waiting>) {
        while self.young.pop_front_if(|(_, first)| first.strong_count() == 0).is_some() {}
        self.young.push_back((began, waiting));
    }

    /// Takes those that have become old, to be [kept](Self::keep) by what makes them the same as others.
    pub(super) fn take_old(&mut self, is_old: impl Fn(Timestamp) -> bool) -> Vec<Arc<Waiting>> {
        let mut old = Vec::new();
        while let Some((_, waiting)) = self.young.pop_front_if(|(began, waiting)| waiting.strong_count() == 0 || is_old(*began)) {
            old.extend(waiting.upgrade());
        }
        old
    }

    pub(super) fn keep(&mut self, key: Key, waiting: &Arc<Waiting>) {
        self.prune.retain(&mut self.old, |_, calls| calls.iter().any(|call| call.strong_count() > 0));
        self.old.entry(key).or_default().push(Arc::downgrade(waiting));
    }

    /// Whether there are any that have waited for a while.
    pub(super) fn has_old(&self) -> bool {
        !self.old.is_empty()
    }

    /// Old calls that are the same, the earliest first.
    pub(super) fn same(&mut self, key: &Key) -> Vec<Arc<Waiting>> {
        let Some(calls) = self.old.get_mut(key) else { return Vec::new() };
        calls.retain(|call| call.strong_count() > 0);
        let same: Vec<_> = calls.iter().filter_map(Weak::upgrade).collect();
        if same.is_empty() {
            self.old.remove(key);
        }
        same
    }
}
