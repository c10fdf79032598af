//! When to remove finished entries from a map, so that adding one does not walk over all of them.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash},
};

/// A map is due when it has doubled since the last time and has at least `MIN` entries, so the additions pay for the walk.
#[derive(Debug)]
pub(super) struct Prune<const MIN: usize>(usize);

impl<const MIN: usize> Default for Prune<MIN> {
    fn default() -> Self {
        Self(MIN)
    }
}

impl<const MIN: usize> Prune<MIN> {
    pub(super) fn is_due(&self, len: usize) -> bool {
        len >= self.0
    }

    /// The walk is done, and this many entries are left.
    pub(super) fn pruned(&mut self, len: usize) {
        self.0 = MIN.max(2 * len);
    }

    /// Removes entries that need not be kept, if the map is due.
    pub(super) fn retain<K: Hash + Eq, V, S: BuildHasher>(&mut self, map: &mut HashMap<K, V, S>, keep: impl FnMut(&K, &mut V) -> bool) {
        if self.is_due(map.len()) {
            map.retain(keep);
            self.pruned(map.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entry_is_looked_at_a_few_times_however_many_are_kept() {
        let (mut map, mut prune, mut looks) = (HashMap::new(), Prune::<16>::default(), 0);
        for n in 0..10_000 {
            prune.retain(&mut map, |_, _| {
                looks += 1;
                true
            });
            map.insert(n, ());
        }
        assert!(looks <= 20_000, "{looks} looks at 10,000 entries");
        prune.pruned(0);
        prune.retain(&mut map, |n, ()| n % 2 == 0);
        assert_eq!(map.len(), 5_000);
    }
}
