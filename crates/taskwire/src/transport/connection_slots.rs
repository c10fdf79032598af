//! Slots for connections. When all are taken, a new connection evicts the one that has been idle longest.
//!
//! A connection is *idle* unless a complete request of a known caller is being answered on it: before its first request, between two, and
//! while one is still arriving. Nothing is lost with an idle one, because its client connects again.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::Notify;

#[derive(Debug)]
pub(super) struct ConnectionSlots {
    max: usize,
    /// How many idle connections there may be: each takes memory, and may never send a request.
    idle_max: usize,
    /// Whether those who have one are refused: the others are all taken.
    refuses: bool,
    table: Mutex<Table>,
    /// Notified when a slot is free, or a connection became idle.
    free: Notify,
}

#[derive(Debug, Default)]
struct Table {
    open: HashMap<u64, Open>,
    /// The idle connections in order, the longest idle first.
    idle: BTreeMap<u64, u64>,
    next: u64,
}

#[derive(Debug)]
struct Open {
    /// Its order among the idle ones, if it is one.
    idle_order: Option<u64>,
    close: Arc<Notify>,
}

/// The slot of one connection; it is free again when this is dropped.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    number: u64,
    close: Arc<Notify>,
    /// Whether a reply was handed over that may not have been written yet.
    reply_handed_over: AtomicBool,
}

impl ConnectionSlots {
    pub(super) fn new(max: usize, idle_max: usize) -> Arc<Self> {
        Arc::new(Self { max, idle_max: idle_max.max(1), refuses: false, table: Mutex::default(), free: Notify::new() })
    }

    /// Slots of connections that are refused. None of these is ever busy, so one can always be had: that of the oldest, if all are taken.
    pub(super) fn of_refusals(max: usize) -> Arc<Self> {
        Arc::new(Self { max, idle_max: max.max(1), refuses: true, table: Mutex::default(), free: Notify::new() })
    }

    /// Waits for a slot: a free one, or that of the connection that has been idle longest.
    pub(super) async fn acquire(self: &Arc<Self>) -> Arc<ConnectionSlot> {
        loop {
            if let Some(slot) = self.try_acquire() {
                return slot;
            }
            self.free.notified().await;
        }
    }

    /// Closes the connection that has been idle longest, if one is: whatever it takes can be used for the next one.
    pub(super) fn close_longest_idle(&self) {
        self.table().close_longest_idle();
    }

    /// A slot, if one is free or its connection is idle.
    pub(super) fn try_acquire(self: &Arc<Self>) -> Option<Arc<ConnectionSlot>> {
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

    /// Closes the connection that has been idle longest; none if no connection is idle.
    fn close_longest_idle(&mut self) -> Option<()> {
        let (_, number) = self.idle.pop_first()?;
        if let Some(open) = self.open.remove(&number) {
            open.close.notify_one();
        }
        Some(())
    }

    /// Makes a connection the last of the idle ones, or not idle. False if it was evicted.
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
    /// Whether its connection is refused.
    pub(super) fn refuses(&self) -> bool {
        self.slots.refuses
    }

    /// A known caller has begun to send a request: connections that were idle before are evicted first.
    pub(super) fn touch(&self) {
        let mut table = self.slots.table();
        if table.is_idle(self.number) {
            table.set_idle(self.number, true);
        }
    }

    /// A complete request is to be answered, so the connection is not evicted until that is done. False if it was before.
    #[must_use]
    pub(super) fn mark_busy(&self) -> bool {
        self.reply_handed_over.store(false, Ordering::Release);
        self.slots.table().set_idle(self.number, false)
    }

    /// The end of a reply was handed over.
    pub(super) fn reply_handed_over(&self) {
        self.reply_handed_over.store(true, Ordering::Release);
    }

    /// Everything that was handed over has been written.
    pub(super) fn flushed(&self) {
        if !self.reply_handed_over.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut table = self.slots.table();
        // An idle connection keeps its order: a refused request is no reason to keep it.
        if !table.is_idle(self.number) && table.set_idle(self.number, true) {
            if table.idle.len() > self.slots.idle_max {
                table.close_longest_idle();
            }
            drop(table);
            self.slots.free.notify_one();
        }
    }

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

    fn evicted(slot: &ConnectionSlot) -> bool {
        slot.evicted().now_or_never().is_some()
    }

    #[test]
    fn the_one_that_was_idle_longest_is_evicted() {
        let slots = ConnectionSlots::new(3, 9);
        let [a, b, c] = [(); 3].map(|()| slots.try_acquire().expect("a free one"));
        a.touch();
        let d = slots.try_acquire().expect("that of the second, since the first was heard of later");
        assert_eq!([&a, &b, &c, &d].map(|slot| evicted(slot)), [false, true, false, false]);
        assert!(!b.mark_busy(), "what comes now is not begun");
        drop(b);
        let e = slots.try_acquire().expect("that of the third");
        assert_eq!([&a, &c, &d, &e].map(|slot| evicted(slot)), [false, true, false, false]);
    }

    #[test]
    fn who_is_being_answered_keeps_its_slot_until_the_answer_has_gone_out() {
        let slots = ConnectionSlots::new(1, 9);
        let first = slots.try_acquire().expect("the only one");
        assert!(first.mark_busy());
        first.flushed();
        assert!(slots.try_acquire().is_none(), "a part of the answer has gone out");
        first.reply_handed_over();
        assert!(slots.try_acquire().is_none(), "the rest is still on its way");
        first.flushed();
        let second = slots.acquire().now_or_never().expect("the only one");
        assert!(evicted(&first));
        assert!(second.mark_busy());
        second.reply_handed_over();
        assert!(second.mark_busy(), "the next request was there before the answer had gone out");
        second.flushed();
        assert!(slots.try_acquire().is_none());
        drop(second);
        drop(first);
        assert!(slots.try_acquire().is_some());
    }

    #[test]
    fn so_many_can_be_idle_and_others_are_being_answered_beside_them() {
        let slots = ConnectionSlots::new(9, 2);
        let [a, b, c] = [(); 3].map(|()| slots.try_acquire().expect("a slot"));
        assert_eq!([&a, &b, &c].map(|slot| evicted(slot)), [true, false, false], "the third is one too many");
        assert!(b.mark_busy() && c.mark_busy());
        let [d, e] = [(); 2].map(|()| slots.try_acquire().expect("a slot"));
        b.reply_handed_over();
        b.flushed();
        assert_eq!([&b, &c, &d, &e].map(|slot| evicted(slot)), [false, false, true, false], "who was answered is quiet again");
    }

    #[test]
    fn a_refusal_is_no_reason_to_stay() {
        let slots = ConnectionSlots::new(2, 9);
        let [refused, silent] = [(); 2].map(|()| slots.try_acquire().expect("a free one"));
        refused.reply_handed_over();
        refused.flushed();
        let _other = slots.try_acquire().expect("one of them");
        assert!(evicted(&refused) && !evicted(&silent));
    }

    #[test]
    fn for_a_refusal_there_is_always_a_slot() {
        let slots = ConnectionSlots::of_refusals(2);
        let [first, second, third] = [(); 3].map(|()| slots.try_acquire().expect("that of the oldest"));
        assert_eq!([&first, &second, &third].map(|slot| (slot.refuses(), evicted(slot))), [(true, true), (true, false), (true, false)]);
        second.reply_handed_over();
        second.flushed();
        let _fourth = slots.try_acquire().expect("that of the oldest");
        assert!(evicted(&second) && !evicted(&third), "an answer makes it no younger");
        assert!(!ConnectionSlots::new(1, 1).try_acquire().expect("a free one").refuses());
    }

    #[tokio::test]
    async fn who_waits_for_a_slot_gets_the_next_that_is_free_or_idle() {
        let slots = ConnectionSlots::new(1, 9);
        for is_closed in [true, false] {
            let first = slots.acquire().await;
            assert!(first.mark_busy());
            let waiting = tokio::spawn({
                let slots = slots.clone();
                async move { slots.acquire().await.number }
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
