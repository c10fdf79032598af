//! Limits the memory for all HTTP bodies together that are being read or answered.
//!
//! Bytes count when they arrive, not when they are announced. A small message does not count, so it is served however much others have
//! sent. When the budget is exhausted, a body that has been arriving for too long is evicted for the next one.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use taskwire_core::{CallerId, Timestamp};
use tokio::sync::oneshot;

use crate::config::Config;

/// Bytes of each message that do not count.
const FREE_BYTES: usize = 4 * 1024;
/// How long a body cannot be evicted.
const EVICTABLE_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BudgetExhausted;

#[derive(Debug)]
pub(crate) struct BodyBudget {
    bytes: usize,
    /// How much one caller can have.
    caller_bytes: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    used: usize,
    callers: HashMap<CallerId, usize>,
    /// Bodies that are arriving, the oldest first. Their bytes are here, so that an evicted body is freed at once.
    pending: BTreeMap<u64, PendingBody>,
    next: u64,
}

#[derive(Debug)]
struct PendingBody {
    caller: CallerId,
    since: Timestamp,
    bytes: Vec<u8>,
    counted_bytes: usize,
    /// Dropped with the body, which notifies its reader.
    _evicted: oneshot::Sender<()>,
}

/// A body while it is being read.
#[derive(Debug)]
pub(crate) struct BodyBuffer {
    budget: Arc<BodyBudget>,
    caller: CallerId,
    since: Timestamp,
    /// Bytes that are kept of the message besides its body.
    head: usize,
    most: usize,
    storage: Storage,
}

#[derive(Debug)]
enum Storage {
    /// Too small to count.
    Uncounted(Vec<u8>),
    /// In the table, under this number, until it is evicted.
    Counted(u64, oneshot::Receiver<()>),
}

/// A body that has arrived, with what it takes of the budget.
#[derive(Debug)]
pub(crate) struct ReceivedBody {
    pub(crate) bytes: Bytes,
    pub(crate) permit: BodyPermit,
}

/// What a body takes of the budget, until this is dropped.
#[derive(Debug)]
pub(crate) struct BodyPermit(Option<(Arc<BodyBudget>, CallerId, usize)>);

impl Drop for BodyPermit {
    fn drop(&mut self) {
        if let Some((budget, caller, bytes)) = self.0.take() {
            budget.table().release(&caller, bytes);
        }
    }
}

impl BodyBudget {
    /// The budget of this server. If callers need tokens, none of them can have more than half of it.
    pub(crate) fn new(config: &Config) -> Arc<Self> {
        // The largest message must fit, whatever is configured.
        let bytes = config.http.all_bodies_bytes.max(config.body_bytes);
        let caller_bytes = if config.auth.is_required() { (bytes / 2).max(config.body_bytes) } else { bytes };
        Arc::new(Self { bytes, caller_bytes, table: Mutex::default() })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How much of it is used.
    pub(crate) fn used(&self) -> usize {
        self.table().used
    }

    /// Begins to read a body of at most `most` bytes; `head` bytes are kept besides.
    pub(crate) fn begin(
        self: &Arc<Self>,
        caller: &CallerId,
        head: usize,
        most: usize,
        now: Timestamp,
    ) -> Result<BodyBuffer, BudgetExhausted> {
        let (bodies, caller) = (self.clone(), caller.clone());
        let mut intake = BodyBuffer { budget: bodies, caller, since: now, head, most, storage: Storage::Uncounted(Vec::new()) };
        intake.add(&[], now)?;
        Ok(intake)
    }
}

impl BodyBuffer {
    /// Adds the next piece, if the budget allows it.
    pub(crate) fn add(&mut self, piece: &[u8], now: Timestamp) -> Result<(), BudgetExhausted> {
        if let Storage::Uncounted(bytes) = &mut self.storage {
            let needed = bytes.len() + piece.len();
            if self.head + needed <= FREE_BYTES {
                let capacity = grown(bytes.capacity(), needed, self.most.min(FREE_BYTES));
                append(bytes, capacity, piece);
                return Ok(());
            }
            let (evicted, on_evicted) = oneshot::channel();
            let (caller, bytes) = (self.caller.clone(), std::mem::take(bytes));
            let number = self.budget.table().enter(PendingBody { caller, since: self.since, bytes, counted_bytes: 0, _evicted: evicted });
            self.storage = Storage::Counted(number, on_evicted);
        }
        let Storage::Counted(number, _) = self.storage else { return Ok(()) };
        let mut table = self.budget.table();
        let Some(reading) = table.pending.get(&number) else { return Err(BudgetExhausted) };
        let capacity = grown(reading.bytes.capacity(), reading.bytes.len() + piece.len(), self.most);
        let more = (self.head + capacity).saturating_sub(FREE_BYTES + reading.counted_bytes);
        table.take(&self.budget, &self.caller, more, number, now)?;
        let Some(reading) = table.pending.get_mut(&number) else { return Err(BudgetExhausted) };
        reading.counted_bytes += more;
        append(&mut reading.bytes, capacity, piece);
        Ok(())
    }

    pub(crate) async fn evicted(&mut self) {
        match &mut self.storage {
            Storage::Uncounted(_) => std::future::pending().await,
            Storage::Counted(_, on_evicted) => {
                let _ = on_evicted.await;
            }
        }
    }

    /// The body has arrived completely.
    pub(crate) fn finish(mut self) -> Result<ReceivedBody, BudgetExhausted> {
        let (bytes, permit) = match std::mem::replace(&mut self.storage, Storage::Uncounted(Vec::new())) {
            Storage::Uncounted(bytes) => (bytes, None),
            Storage::Counted(number, _) => {
                let reading = self.budget.table().pending.remove(&number).ok_or(BudgetExhausted)?;
                (reading.bytes, Some((self.budget.clone(), reading.caller, reading.counted_bytes)))
            }
        };
        Ok(ReceivedBody { bytes: bytes.into(), permit: BodyPermit(permit) })
    }
}

impl Drop for BodyBuffer {
    fn drop(&mut self) {
        if let Storage::Counted(number, _) = self.storage {
            self.budget.table().leave(number);
        }
    }
}

impl Table {
    fn enter(&mut self, reading: PendingBody) -> u64 {
        let number = self.next;
        self.next += 1;
        self.pending.insert(number, reading);
        number
    }

    /// Removes a body that is arriving, if it still is.
    fn leave(&mut self, number: u64) {
        if let Some(reading) = self.pending.remove(&number) {
            self.release(&reading.caller, reading.counted_bytes);
        }
    }

    /// Counts `more` bytes for a body of this caller. That may evict bodies that began before it: those of the same caller if it has used
    /// its share, else anybody's.
    fn take(&mut self, bodies: &BodyBudget, caller: &CallerId, more: usize, number: u64, now: Timestamp) -> Result<(), BudgetExhausted> {
        loop {
            let is_over_share = self.callers.get(caller).copied().unwrap_or(0) + more > bodies.caller_bytes;
            if !is_over_share && self.used + more <= bodies.bytes {
                break;
            }
            let mut oldest = self.pending.iter().filter(|(_, reading)| !is_over_share || reading.caller == *caller);
            let (&oldest, reading) = oldest.next().ok_or(BudgetExhausted)?;
            if oldest == number || now.since(reading.since) < EVICTABLE_AFTER {
                return Err(BudgetExhausted);
            }
            self.leave(oldest);
        }
        if more > 0 {
            self.used += more;
            *self.callers.entry(caller.clone()).or_default() += more;
        }
        Ok(())
    }

    fn release(&mut self, caller: &CallerId, counted_bytes: usize) {
        self.used -= counted_bytes;
        if let Some(own) = self.callers.get_mut(caller) {
            *own -= counted_bytes;
            if *own == 0 {
                self.callers.remove(caller);
            }
        }
    }
}

/// The capacity for `needed` bytes: if they do not fit, more than they need, so that they are seldom moved.
fn grown(capacity: usize, needed: usize, most: usize) -> usize {
    if needed <= capacity { capacity } else { needed.max((2 * capacity).min(most)) }
}

fn append(bytes: &mut Vec<u8>, capacity: usize, piece: &[u8]) {
    bytes.reserve_exact(capacity - bytes.len());
    bytes.extend_from_slice(piece);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{auth::Tokens, config::HttpConfig};

    const KIB: usize = 1024;
    const BODY: usize = 64 * KIB;

    fn bodies(bytes: usize, auth: Tokens) -> Arc<BodyBudget> {
        let http = HttpConfig { all_bodies_bytes: bytes, ..HttpConfig::default() };
        BodyBudget::new(&Config { body_bytes: BODY, http, auth: Arc::new(auth), ..Config::default() })
    }

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn caller(name: &str) -> CallerId {
        CallerId::new(name)
    }

    /// A body of which this many bytes have arrived.
    fn half(bodies: &Arc<BodyBudget>, name: &str, bytes: usize, now: i64) -> Result<BodyBuffer, BudgetExhausted> {
        let mut intake = bodies.begin(&caller(name), 0, BODY, at(now))?;
        for piece in vec![b'x'; bytes].chunks(KIB) {
            intake.add(piece, at(now))?;
        }
        Ok(intake)
    }

    fn used(bodies: &BodyBudget) -> usize {
        let table = bodies.table();
        assert_eq!(table.used, table.callers.values().sum::<usize>());
        table.used
    }

    #[test]
    fn what_comes_is_what_was_sent_and_its_bytes_are_released_with_it() {
        let bodies = bodies(BODY, Tokens::default());
        for len in [0, 1, FREE_BYTES, FREE_BYTES + 1, 20 * KIB, BODY] {
            let sent: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
            let mut intake = bodies.begin(&caller("a"), 0, BODY, at(0)).expect("room");
            for piece in sent.chunks(700) {
                intake.add(piece, at(0)).expect("room");
            }
            let taken = intake.finish().expect("all of it");
            assert!(taken.bytes == sent, "{len} bytes");
            assert!(used(&bodies) + FREE_BYTES >= len, "counted until it is answered");
            assert!(used(&bodies) + FREE_BYTES <= BODY.max(FREE_BYTES));
            drop(taken);
            assert_eq!(used(&bodies), 0);
        }
    }

    #[test]
    fn a_body_whose_length_is_known_takes_no_more_than_that() {
        let bodies = bodies(BODY, Tokens::default());
        let mut intake = bodies.begin(&caller("a"), 0, 20 * KIB, at(0)).expect("room");
        for _ in 0..20 {
            intake.add(&[b'x'; KIB], at(0)).expect("room");
        }
        assert_eq!(used(&bodies), 20 * KIB - FREE_BYTES);
        drop(intake);
        assert_eq!(used(&bodies), 0, "also of one that broke off");
    }

    #[test]
    fn small_messages_do_not_count_and_large_heads_do() {
        let bodies = bodies(BODY, Tokens::default());
        let _all = [20 * KIB, 5 * KIB].map(|bytes| (0..).map_while(|_| half(&bodies, "a", bytes, 0).ok()).collect::<Vec<_>>());
        half(&bodies, "a", FREE_BYTES, 0).expect("small");
        half(&bodies, "a", FREE_BYTES + 1, 0).expect_err("not small");
        bodies.begin(&caller("a"), BODY, 1, at(0)).expect_err("what is kept besides counts before anything comes");
    }

    #[tokio::test]
    async fn a_body_on_its_way_for_too_long_is_evicted() {
        let bodies = bodies(BODY, Tokens::default());
        let mut old = half(&bodies, "a", 40 * KIB, 0).expect("room");
        half(&bodies, "a", 40 * KIB, 999).expect_err("it is too early for that");
        assert!(used(&bodies) > 0, "the first is not touched");
        let new = half(&bodies, "a", 40 * KIB, 1_000).expect("the room of the first");
        old.evicted().await;
        old.add(b"x", at(1_000)).expect_err("it has none any more");
        old.finish().expect_err("nor is it whole");
        let taken = new.finish().expect("the second goes on");
        assert_eq!(taken.bytes.len(), 40 * KIB);
        half(&bodies, "a", 40 * KIB, 60_000).expect_err("what is being answered keeps its room");
    }

    #[test]
    fn one_of_several_callers_has_half_of_it_at_most() {
        let bodies = bodies(4 * BODY, Tokens::default().with_token("a", "a").with_token("b", "b"));
        let _all = (0..).map_while(|_| half(&bodies, "a", 20 * KIB, 0).ok()).collect::<Vec<_>>();
        assert!((BODY..=2 * BODY).contains(&used(&bodies)), "{}", used(&bodies));
        half(&bodies, "a", 20 * KIB, 0).expect_err("that is its share");
        half(&bodies, "b", BODY, 0).expect("there is room for another one");
        half(&bodies, "a", 20 * KIB, 60_000).expect("of its own the oldest goes");
        assert!(used(&bodies) <= 2 * BODY);
    }
}
