//! Keeps this node's lease. While it holds, no other node takes what this one runs.

use std::{
    sync::{Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use futures_util::future::BoxFuture;
use taskwire_core::{
    Epoch,
    task::{Authority, Command, Reject},
};

use super::Membership;
use crate::{
    engine::{Engine, Error, NO_EPOCH, WeakEngine},
    store,
};

/// How often the lease is renewed.
const RENEW_INTERVAL: Duration = Duration::from_secs(2);
/// How long before the end of its lease a node stops what another one could run again.
const MARGIN: Duration = Duration::from_secs(1);
/// A larger difference to what a node counted itself means that the store's clock was set.
const CLOCK_STEP: Duration = Duration::from_secs(1);
/// How soon a renewal that failed is tried again.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// How many renewals find a task that is about to be made.
const NOT_MADE_TRIES: u32 = 5;
/// How long a node that shuts down tries to end its lease.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// All times are of the local monotonic clock.
#[derive(Debug)]
pub(super) struct LeaseState(Mutex<Times>);

#[derive(Debug, Clone, Copy)]
struct Times {
    /// Until when no other node takes what this one runs.
    until: Duration,
    /// Since when the store could be reached each time.
    reached_since: Duration,
    /// How long a lease lasts.
    lasts: Duration,
    /// How long commands of any node go on without it, at most.
    orphan_after: Duration,
}

impl LeaseState {
    /// A lease that began some time before `now`, of a node whose commands go on for `orphan_after` without it.
    pub(super) fn new(now: Duration, lasts: Duration, began_ago: Duration, orphan_after: Duration) -> Self {
        Self(Mutex::new(Times { until: now + lasts.saturating_sub(began_ago), reached_since: now, lasts, orphan_after }))
    }

    fn get(&self) -> Times {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, times: Times) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = times;
    }

    /// Whether no other node takes what this one runs, for a while from now on.
    pub(super) fn holds(&self, now: Duration) -> bool {
        now + MARGIN < self.get().until
    }

    /// How much is left of it.
    pub(super) fn left(&self, now: Duration) -> Duration {
        self.get().until.saturating_sub(now)
    }

    /// How long commands of any node go on without it, at most.
    pub(super) fn orphan_after(&self) -> Duration {
        self.get().orphan_after
    }

    /// Whether the store could be reached for so long that a node without a lease is dead, and not cut off together with this one.
    pub(super) fn may_judge_others(&self, now: Duration) -> bool {
        let times = self.get();
        now.saturating_sub(times.reached_since) >= times.lasts && now < times.until
    }
}

/// Renews the lease until the engine is gone.
pub(super) async fn keep(weak: WeakEngine) {
    loop {
        let Some(engine) = weak.get() else { return };
        let Some(membership) = &engine.0.cluster else { return };
        if membership.has_left() {
            return;
        }
        let wait = renew(&engine, membership).await;
        let sleep = membership.clock.sleep(wait);
        drop(engine);
        sleep.await;
    }
}

/// Renews the lease once, and returns when to do it again.
async fn renew(engine: &Engine, membership: &Membership) -> Duration {
    let asked_at = membership.clock.monotonic();
    let before = membership.lease.get();
    // A call that hangs is one that failed: the lease ends all the same.
    let time_left = before.until.saturating_sub(asked_at + MARGIN + RETRY_DELAY).clamp(RETRY_DELAY, RENEW_INTERVAL);
    let own = engine.0.config.orphan_after;
    match within(membership, time_left, membership.cluster.renew(engine.epoch(), own)).await {
        Ok(Some(lease)) => {
            // Of leases that were renewed before the store's clock was set, nobody can tell when they expire.
            let expected = membership.clock.now();
            let was_set = expected.since(lease.now).max(lease.now.since(expected)) > CLOCK_STEP;
            membership.store_time.set(lease.now);
            // A node that was cut off, or stopped, cannot tell who else was.
            let reached_since = if was_set || asked_at > before.until { asked_at } else { before.reached_since };
            let orphan_after = lease.orphan_after.max(own);
            if orphan_after > own && orphan_after != before.orphan_after {
                tracing::warn!(
                    ?own,
                    longest = ?orphan_after,
                    "nodes have different `orphan_after`: this one waits for the longest before it takes tasks over; give all nodes the same"
                );
            }
            membership.lease.set(Times { until: asked_at + lease.lasts, lasts: lease.lasts, reached_since, orphan_after });
            resume_stopped(engine);
            RENEW_INTERVAL
        }
        Ok(None) if membership.has_left() => Duration::ZERO,
        Ok(None) => {
            if end_epoch(engine) != NO_EPOCH {
                tracing::warn!("this node lost its lease: other nodes take over what it ran");
            }
            match within(membership, RENEW_INTERVAL, membership.cluster.rejoin()).await {
                Ok(epoch) => {
                    engine.0.epoch.store(epoch.0, Ordering::Release);
                    if membership.has_left() {
                        // It left in this very moment.
                        give_back(membership, end_epoch(engine)).await;
                    }
                    Duration::ZERO
                }
                Err(error) => {
                    tracing::warn!(%error, "this node could not join the others again: trying again");
                    RETRY_DELAY
                }
            }
        }
        Err(error) => {
            let now = membership.clock.monotonic();
            membership.lease.set(Times { reached_since: now, ..before });
            if now + MARGIN + RETRY_DELAY >= before.until && engine.0.runs.abandon_what_others_may_run() {
                tracing::warn!(%error, "the store cannot be reached: what another node may run again is stopped here");
            }
            RETRY_DELAY
        }
    }
}

/// Another node has declared this one dead, or it leaves: what runs here belongs to an epoch that is over. Returns that epoch.
fn end_epoch(engine: &Engine) -> Epoch {
    // First of all, so that nothing begins under it any more.
    let epoch = Epoch(engine.0.epoch.swap(NO_EPOCH.0, Ordering::AcqRel));
    engine.0.runs.abandon_all();
    epoch
}

/// Ends the lease for good: other nodes take over at once what still runs here.
pub(super) async fn leave(engine: &Engine, membership: &Membership) {
    membership.left.store(true, Ordering::Release);
    let epoch = end_epoch(engine);
    if epoch != NO_EPOCH {
        give_back(membership, epoch).await;
    }
}

/// Waits for an answer of the store for some time.
async fn within<T>(membership: &Membership, time: Duration, call: BoxFuture<'_, Result<T, store::Error>>) -> Result<T, store::Error> {
    tokio::select! {
        biased;
        answer = call => answer,
        () = membership.clock.sleep(time) => Err(store::Error::Away { in_doubt: false, reason: "it took too long".to_owned() }),
    }
}

async fn give_back(membership: &Membership, epoch: Epoch) {
    if let Err(error) = within(membership, LEAVE_TIMEOUT, membership.cluster.leave(epoch)).await {
        tracing::warn!(%error, "the lease could not be ended: other nodes take over when it expires");
    }
}

/// Runs again what was stopped while the store could not be reached, if no other node has taken it.
fn resume_stopped(engine: &Engine) {
    for (id, tries) in engine.0.runs.take_abandoned() {
        let (engine, epoch) = (engine.clone(), engine.epoch());
        engine.clone().spawn(async move {
            let command = Command::Recover { lost: epoch..epoch.next(), epoch };
            match engine.submit(id, Authority::Engine, command).await {
                Ok(_) => {}
                // It is being made just now: the next renewal finds it, unless it could not be made.
                Err(Error::Rejected(Reject::NotFound)) if tries < NOT_MADE_TRIES => engine.0.runs.set_abandoned(id, tries + 1),
                // Another node has taken it, or it has ended.
                Err(Error::Rejected(_)) => {}
                Err(error) => {
                    tracing::warn!(task = %id, %error, "a task that was stopped could not be started again: trying again");
                    engine.0.runs.set_abandoned(id, 0);
                }
            }
        });
    }
}
