//! The places for connections. Who asks for nothing gives its place to somebody else when all are taken.
//!
//! A connection is *quiet* unless a whole request of a known caller is being answered on it: before its first request, between two, and while one
//! is still on its way. Nothing is lost with a quiet one: whoever is at its other end connects again.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::Notify;

/// All places that there are.
#[derive(Debug)]
pub(super) struct Places {
    max: usize,
    /// How many of them quiet connections can have: each takes memory, and may never ask for anything.
    quiet_max: usize,
    table: Mutex<Table>,
    /// Told when a place is free, or one of a connection that has become quiet.
    free: Notify,
}

#[derive(Debug, Default)]
struct Table {
    open: HashMap<u64, Open>,
    /// The quiet ones by their turn, the longest quiet first.
    quiet: BTreeMap<u64, u64>,
    next: u64,
}

/// A connection that has a place.
#[derive(Debug)]
struct Open {
    /// Its turn among the quiet ones, if it is one.
    turn: Option<u64>,
    close: Arc<Notify>,
}

/// The place of one connection; it is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    close: Arc<Notify>,
    /// Whether an answer was handed over that may not have gone out yet.
    answered: AtomicBool,
}

impl Places {
    pub(super) fn new(max: usize, quiet_max: usize) -> Arc<Self> {
        Arc::new(Self { max, quiet_max: quiet_max.max(1), table: Mutex::default(), free: Notify::new() })
    }

    /// A place for one more connection: a free one, or that of the connection that has been quiet longest.
    pub(super) async fn take(self: &Arc<Self>) -> Arc<Place> {
        loop {
            if let Some(place) = self.try_take() {
                return place;
            }
            self.free.notified().await;
        }
    }

    fn try_take(self: &Arc<Self>) -> Option<Arc<Place>> {
        let mut table = self.table();
        if table.open.len() >= self.max || table.quiet.len() >= self.quiet_max {
            table.close_quietest()?;
        }
        let (number, close) = (table.number(), Arc::new(Notify::new()));
        table.quiet.insert(number, number);
        table.open.insert(number, Open { turn: Some(number), close: close.clone() });
        Some(Arc::new(Place { places: self.clone(), number, close, answered: AtomicBool::new(false) }))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Closes the connection that has been quiet longest; nothing if none is.
    fn close_quietest(&mut self) -> Option<()> {
        let (_, quietest) = self.quiet.pop_first()?;
        if let Some(open) = self.open.remove(&quietest) {
            open.close.notify_one();
        }
        Some(())
    }

    /// Puts a connection behind all that are quiet, or among them no more. False if it lost its place.
    fn set(&mut self, number: u64, quiet: bool) -> bool {
        let turn = quiet.then(|| self.number());
        let Some(open) = self.open.get_mut(&number) else { return false };
        if let Some(before) = std::mem::replace(&mut open.turn, turn) {
            self.quiet.remove(&before);
        }
        if let Some(turn) = turn {
            self.quiet.insert(turn, number);
        }
        true
    }

    fn is_quiet(&self, number: u64) -> bool {
        self.open.get(&number).is_some_and(|open| open.turn.is_some())
    }
}

impl Place {
    /// A known caller has begun to send a request, and it is worth to wait for the rest: those that were quiet before go first.
    pub(super) fn heard(&self) {
        let mut table = self.places.table();
        if table.is_quiet(self.number) {
            table.set(self.number, true);
        }
    }

    /// A whole request of a known caller is to be answered, so that the place is sure until that is done. False if it was lost before.
    #[must_use]
    pub(super) fn keep(&self) -> bool {
        self.answered.store(false, Ordering::Release);
        self.places.table().set(self.number, false)
    }

    /// The last of an answer was handed over.
    pub(super) fn answered(&self) {
        self.answered.store(true, Ordering::Release);
    }

    /// All that was handed over has gone out.
    pub(super) fn flushed(&self) {
        if !self.answered.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut table = self.places.table();
        // Who is quiet keeps its turn: a refusal is no reason to stay.
        if !table.is_quiet(self.number) && table.set(self.number, true) {
            if table.quiet.len() > self.places.quiet_max {
                table.close_quietest();
            }
            drop(table);
            self.places.free.notify_one();
        }
    }

    /// Waits until the place has gone to somebody else.
    pub(super) async fn lost(&self) {
        self.close.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.places.table();
        if let Some(turn) = table.open.remove(&self.number).and_then(|open| open.turn) {
            table.quiet.remove(&turn);
        }
        drop(table);
        self.places.free.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn lost(place: &Place) -> bool {
        place.lost().now_or_never().is_some()
    }

    #[test]
    fn the_one_that_was_quiet_longest_gives_way() {
        let places = Places::new(3, 9);
        let [a, b, c] = [(); 3].map(|()| places.try_take().expect("a free one"));
        a.heard();
        let d = places.try_take().expect("that of the second, since the first was heard of later");
        assert_eq!([&a, &b, &c, &d].map(|place| lost(place)), [false, true, false, false]);
        assert!(!b.keep(), "what comes now is not begun");
        drop(b);
        let e = places.try_take().expect("that of the third");
        assert_eq!([&a, &c, &d, &e].map(|place| lost(place)), [false, true, false, false]);
    }

    #[test]
    fn who_is_being_answered_keeps_its_place_until_the_answer_has_gone_out() {
        let places = Places::new(1, 9);
        let first = places.try_take().expect("the only one");
        assert!(first.keep());
        first.flushed();
        assert!(places.try_take().is_none(), "a part of the answer has gone out");
        first.answered();
        assert!(places.try_take().is_none(), "the rest is still on its way");
        first.flushed();
        let second = places.take().now_or_never().expect("the only one");
        assert!(lost(&first));
        assert!(second.keep());
        second.answered();
        assert!(second.keep(), "the next request was there before the answer had gone out");
        second.flushed();
        assert!(places.try_take().is_none());
        drop(second);
        drop(first);
        assert!(places.try_take().is_some());
    }

    #[test]
    fn so_many_can_be_quiet_and_others_are_being_answered_beside_them() {
        let places = Places::new(9, 2);
        let [a, b, c] = [(); 3].map(|()| places.try_take().expect("a place"));
        assert_eq!([&a, &b, &c].map(|place| lost(place)), [true, false, false], "the third is one too many");
        assert!(b.keep() && c.keep());
        let [d, e] = [(); 2].map(|()| places.try_take().expect("a place"));
        b.answered();
        b.flushed();
        assert_eq!([&b, &c, &d, &e].map(|place| lost(place)), [false, false, true, false], "who was answered is quiet again");
    }

    #[test]
    fn a_refusal_is_no_reason_to_stay() {
        let places = Places::new(2, 9);
        let [refused, silent] = [(); 2].map(|()| places.try_take().expect("a free one"));
        refused.answered();
        refused.flushed();
        let _other = places.try_take().expect("one of them");
        assert!(lost(&refused) && !lost(&silent));
    }

    #[tokio::test]
    async fn who_waits_for_a_place_gets_the_next_that_is_free_or_quiet() {
        let places = Places::new(1, 9);
        for is_closed in [true, false] {
            let first = places.take().await;
            assert!(first.keep());
            let waiting = tokio::spawn({
                let places = places.clone();
                async move { places.take().await.number }
            });
            tokio::task::yield_now().await;
            assert!(!waiting.is_finished());
            let number = first.number;
            if is_closed {
                drop(first);
            } else {
                first.answered();
                first.flushed();
            }
            assert!(waiting.await.expect("no panic") > number);
        }
    }
}
