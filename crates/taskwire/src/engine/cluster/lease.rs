//! Keeps this node's lease. While it holds, no other node takes what this one runs.

use std::{
    sync::{Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use taskwire_core::task::{Authority, Command};

use super::Membership;
use crate::{
    engine::{Engine, WeakEngine},
    store,
};

/// How often the lease is renewed.
const RENEW_INTERVAL: Duration = Duration::from_secs(2);
/// How long before the end of its lease a node stops what another one could run again.
const MARGIN: Duration = Duration::from_secs(1);
/// How soon a renewal that failed is tried again.
const RETRY_DELAY: Duration = Duration::from_millis(200);

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
}

impl LeaseState {
    pub(super) fn new(now: Duration) -> Self {
        Self(Mutex::new(Times { until: now, reached_since: now, lasts: Duration::MAX }))
    }

    fn get(&self) -> Times {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, times: Times) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = times;
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
    let renewed = tokio::select! {
        biased;
        renewed = membership.cluster.renew(engine.epoch()) => renewed,
        () = membership.clock.sleep(time_left) => Err(store::Error::Away { in_doubt: false, reason: "the lease could not be renewed in time".to_owned() }),
    };
    match renewed {
        Ok(Some(lease)) => {
            membership.store_time.set(lease.now);
            // A node that was cut off, or stopped, cannot tell who else was.
            let reached_since = if asked_at > before.until { asked_at } else { before.reached_since };
            membership.lease.set(Times { until: asked_at + lease.lasts, lasts: lease.lasts, reached_since });
            resume_stopped(engine);
            RENEW_INTERVAL
        }
        Ok(None) => {
            // Another node has declared this one dead. What still runs here belongs to an epoch that is over.
            tracing::warn!("this node lost its lease: other nodes take over what it ran");
            engine.0.runs.abandon_all();
            match membership.cluster.rejoin().await {
                Ok(epoch) => {
                    engine.0.epoch.store(epoch.0, Ordering::Release);
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

/// Runs again what was stopped while the store could not be reached, if no other node has taken it.
fn resume_stopped(engine: &Engine) {
    for id in engine.0.runs.take_abandoned() {
        let (engine, epoch) = (engine.clone(), engine.epoch());
        engine.clone().spawn(async move {
            let command = Command::Recover { lost: epoch..epoch.next(), epoch };
            if let Err(error) = engine.submit(id, Authority::Engine, command).await {
                tracing::warn!(task = %id, %error, "a task that was stopped could not be started again");
            }
        });
    }
}
