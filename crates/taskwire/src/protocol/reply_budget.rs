//! Limits the memory for replies that contain the whole output of a task, however slowly clients read them.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many replies of the largest size fit.
const ANSWERS: u64 = 4;
/// The budget is counted in units of this many bytes.
const UNIT: u64 = 1024;

#[derive(Debug)]
pub(crate) struct ReplyBudget {
    free: Arc<Semaphore>,
    most: u32,
}

/// What a reply takes of the budget, until this is dropped.
pub(crate) type ReplyPermit = OwnedSemaphorePermit;

impl ReplyBudget {
    /// `output_bytes`: how much output a task can have.
    pub(crate) fn new(output_bytes: u64) -> Self {
        let most = units(output_bytes.saturating_mul(ANSWERS)).min(u32::try_from(Semaphore::MAX_PERMITS).unwrap_or(u32::MAX));
        Self { free: Arc::new(Semaphore::new(most as usize)), most }
    }

    /// Waits, first come first served, until this many bytes of output fit.
    pub(crate) async fn acquire(&self, bytes: u64) -> ReplyPermit {
        self.free.clone().acquire_many_owned(units(bytes).min(self.most)).await.expect("the semaphore is never closed")
    }
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::protocol::Reply;

    #[tokio::test]
    async fn a_reply_holds_its_permit_for_as_long_as_it_is_in_memory() {
        let budget = ReplyBudget::new(10 * UNIT);
        let large = |taken: ReplyPermit| Reply::new(200, vec![b'x'; 100]).with_guard(taken);
        let one = large(budget.acquire(10 * UNIT).await);
        let mut others = Vec::new();
        for _ in 1..ANSWERS {
            others.push(large(budget.acquire(10 * UNIT - 1).await));
        }
        assert!(budget.acquire(1).now_or_never().is_none(), "there is no room for another");
        // The transport that sends it holds the same bytes.
        let (sending, rest) = (one.body.clone(), one.body.slice(50..));
        assert_eq!((one.body.len(), &sending[..3]), (100, &b"xxx"[..]));
        drop((one, sending));
        assert!(budget.acquire(1).now_or_never().is_none(), "half of it is still to be sent");
        drop(rest);
        assert!(budget.acquire(10 * UNIT).now_or_never().is_some(), "there is room again");
        drop(others);
        assert!(budget.acquire(u64::MAX).now_or_never().is_some(), "what is larger than all has it for itself");
    }
}
