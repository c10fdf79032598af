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
pub(super) struct ConnectionSlots {
    max: usize,
    /// How many of them quiet connections can have: each takes memory, and may never ask for anything.
    idle_max: usize,
    table: Mutex<Table>,
    /// Told when a place is free, or one of a connection that has become quiet.
    free: Notify,
}

#[derive(Debug, Default)]
struct Table {
    open: HashMap<u64, Open>,
    /// The quiet ones by their turn, the longest quiet first.
    idle: BTreeMap<u64, u64>,
    next: u64,
}

/// A connection that has a place.
#[derive(Debug)]
struct Open {
    /// Its turn among the quiet ones, if it is one.
    idle_order: Option<u64>,
    close: Arc<Notify>,
}

/// The place of one connection; it is free again when this is dropped.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    number: u64,
    close: Arc<Notify>,
    /// Whether an answer was handed over that may not have gone out yet.
    reply_handed_over: AtomicBool,
}

impl ConnectionSlots {
    pub(super) fn new(max: usize, idle_max: usize) -> Arc<Self> {
        Arc::new(Self { max, idle_max: idle_max.max(1), table: Mutex::default(), free: Notify::new() })
    }

    /// A place for one more connection: a free one, or that of the connection that has been quiet longest.
    pub(super) async fn acquire(self: &Arc<Self>) -> Arc<ConnectionSlot> {
        loop {
            if let Some(place) = self.try_acquire() {
                return place;
            }
            self.free.notified().await;
        }
    }

    fn try_acquire(self: &Arc<Self>) -> Option<Arc<ConnectionSlot>> {
        let mut table = self.table();
        if table.open.len() >= self.max || table.idle.len() >= self.idle_max {
            table.close_longest_idle()?;
        }
        let (number, close) = (table.number(), Arc::new(Notify::new()));
        table.idle.insert(number, number);
        table.open.insert(number, Open { idle_order: Some(number), close: close.clone() });
        Some(Arc::new(ConnectionSlot { slots: self.clone(), number, close, reply_handed_over: AtomicBool::new(false) }))
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
    fn close_longest_idle(&mut self) -> Option<()> {
        let (_, quietest) = self.idle.pop_first()?;
        if let Some(open) = self.open.remove(&quietest) {
            open.close.notify_one();
        }
        Some(())
    }

    /// Puts a connection behind all that are quiet, or among them no more. False if it lost its place.
    fn set_idle(&mut self, number: u64, idle: bool) -> bool {
        let turn = idle.then(|| self.number());
        let Some(open) = self.open.get_mut(&number) else { return false };
        if let Some(before) = std::mem::replace(&mut open.idle_order, turn) {
            self.idle.remove(&before);
        }
        if let Some(turn) = turn {
            self.idle.insert(turn, number);
        }
        true
    }

    fn is_idle(&self, number: u64) -> bool {
        self.open.get(&number).is_some_and(|open| open.idle_order.is_some())
    }
}

impl ConnectionSlot {
    /// A known caller has begun to send a request, and it is worth to wait for the rest: those that were quiet before go first.
    pub(super) fn touch(&self) {
        let mut table = self.slots.table();
        if table.is_idle(self.number) {
            table.set_idle(self.number, true);
        }
    }

    /// A whole request of a known caller is to be answered, so that the place is sure until that is done. False if it was lost before.
    #[must_use]
    pub(super) fn mark_busy(&self) -> bool {
        self.reply_handed_over.store(false, Ordering::Release);
        self.slots.table().set_idle(self.number, false)
    }

    /// The last of an answer was handed over.
    pub(super) fn reply_handed_over(&self) {
        self.reply_handed_over.store(true, Ordering::Release);
    }

    /// All that was handed over has gone out.
    pub(super) fn flushed(&self) {
        if !self.reply_handed_over.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut table = self.slots.table();
        // Who is quiet keeps its turn: a refusal is no reason to stay.
        if !table.is_idle(self.number) && table.set_idle(self.number, true) {
            if table.idle.len() > self.slots.idle_max {
                table.close_longest_idle();
            }
            drop(table);
            self.slots.free.notify_one();
        }
    }

    /// Waits until the place has gone to somebody else.
    pub(super) async fn evicted(&self) {
        self.close.notified().await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut table = self.slots.table();
        if let Some(turn) = table.open.remove(&self.number).and_then(|open| open.idle_order) {
            table.idle.remove(&turn);
        }
        drop(table);
        self.slots.free.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn evicted(place: &ConnectionSlot) -> bool {
        place.evicted().now_or_never().is_some()
    }

    #[test]
    fn the_one_that_was_idle_longest_is_evicted() {
        let places = ConnectionSlots::new(3, 9);
        let [a, b, c] = [(); 3].map(|()| places.try_acquire().expect("a free one"));
        a.touch();
        let d = places.try_acquire().expect("that of the second, since the first was heard of later");
        assert_eq!([&a, &b, &c, &d].map(|place| evicted(place)), [false, true, false, false]);
        assert!(!b.mark_busy(), "what comes now is not begun");
        drop(b);
        let e = places.try_acquire().expect("that of the third");
        assert_eq!([&a, &c, &d, &e].map(|place| evicted(place)), [false, true, false, false]);
    }

    #[test]
    fn who_is_being_answered_keeps_its_slot_until_the_answer_has_gone_out() {
        let places = ConnectionSlots::new(1, 9);
        let first = places.try_acquire().expect("the only one");
        assert!(first.mark_busy());
        first.flushed();
        assert!(places.try_acquire().is_none(), "a part of the answer has gone out");
        first.reply_handed_over();
        assert!(places.try_acquire().is_none(), "the rest is still on its way");
        first.flushed();
        let second = places.acquire().now_or_never().expect("the only one");
        assert!(evicted(&first));
        assert!(second.mark_busy());
        second.reply_handed_over();
        assert!(second.mark_busy(), "the next request was there before the answer had gone out");
        second.flushed();
        assert!(places.try_acquire().is_none());
        drop(second);
        drop(first);
        assert!(places.try_acquire().is_some());
    }

    #[test]
    fn so_many_can_be_idle_and_others_are_being_answered_beside_them() {
        let places = ConnectionSlots::new(9, 2);
        let [a, b, c] = [(); 3].map(|()| places.try_acquire().expect("a place"));
        assert_eq!([&a, &b, &c].map(|place| evicted(place)), [true, false, false], "the third is one too many");
        assert!(b.mark_busy() && c.mark_busy());
        let [d, e] = [(); 2].map(|()| places.try_acquire().expect("a place"));
        b.reply_handed_over();
        b.flushed();
        assert_eq!([&b, &c, &d, &e].map(|place| evicted(place)), [false, false, true, false], "who was answered is quiet again");
    }

    #[test]
    fn a_refusal_is_no_reason_to_stay() {
        let places = ConnectionSlots::new(2, 9);
        let [refused, silent] = [(); 2].map(|()| places.try_acquire().expect("a free one"));
        refused.reply_handed_over();
        refused.flushed();
        let _other = places.try_acquire().expect("one of them");
        assert!(evicted(&refused) && !evicted(&silent));
    }

    #[tokio::test]
    async fn who_waits_for_a_slot_gets_the_next_that_is_free_or_idle() {
        let places = ConnectionSlots::new(1, 9);
        for is_closed in [true, false] {
            let first = places.acquire().await;
            assert!(first.mark_busy());
            let waiting = tokio::spawn({
                let places = places.clone();
                async move { places.acquire().await.number }
            });
            tokio::task::yield_now().await;
            assert!(!waiting.is_finished());
            let number = first.number;
            if is_closed {
                drop(first);
            } else {
                first.reply_handed_over();
                first.flushed();
            }
            assert!(waiting.await.expect("no panic") > number);
        }
    }
}
