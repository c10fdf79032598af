//! What a node does where several share a store: it keeps its lease, hears what others change, and takes over what dead nodes left.

mod changes;
mod clock;
mod lease;
mod queued;
mod takeover;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use self::{clock::ClusterClock, lease::LeaseState};
use super::{Engine, recovery::OnRecovered};
use crate::{clock::Clock, store::Cluster};

/// This node among the others.
pub(super) struct Membership {
    pub(super) cluster: Arc<dyn Cluster>,
    /// The time of the store.
    pub(super) clock: Arc<dyn Clock>,
    store_time: Arc<ClusterClock>,
    lease: LeaseState,
    /// Notified when other nodes may have changed anything.
    look_now: Arc<Notify>,
    /// Whether this node is about to end its lease for good.
    hands_over: AtomicBool,
    /// Whether this node has ended its lease for good.
    left: AtomicBool,
}

impl Membership {
    /// A node whose commands go on for `orphan_after` without it.
    pub(super) fn new(cluster: Arc<dyn Cluster>, local: &Arc<dyn Clock>, orphan_after: Duration) -> Self {
        let (lease, began_ago) = cluster.first_lease();
        let store_time = Arc::new(ClusterClock::new(local.clone(), lease.now.after(began_ago)));
        Self {
            cluster,
            clock: store_time.clone(),
            store_time,
            lease: LeaseState::new(local.monotonic(), lease.lasts, began_ago, orphan_after),
            look_now: Arc::default(),
            hands_over: AtomicBool::new(false),
            left: AtomicBool::new(false),
        }
    }

    /// Whether no other node can have taken what this one runs. It may be otherwise after the node was stopped for a while.
    pub(super) fn has_lease(&self) -> bool {
        self.lease.holds(self.clock.monotonic())
    }

    /// How much is left of the lease of this node.
    pub(super) fn lease_left(&self) -> Duration {
        self.lease.left(self.clock.monotonic())
    }

    pub(super) fn hand_over(&self) {
        self.hands_over.store(true, Ordering::Release);
    }

    pub(super) fn is_handing_over(&self) -> bool {
        self.hands_over.load(Ordering::Acquire)
    }

    fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }
}

/// Begins to keep the lease and to hear of changes, where there are other nodes.
pub(super) fn begin(engine: &Engine) {
    if engine.is_shared() {
        let weak = engine.weak();
        engine.spawn(lease::keep(weak.clone()));
        engine.spawn(changes::hear(weak.clone()));
        engine.spawn(changes::poll(weak));
    }
}

/// Ends this node's lease for good, where there are other nodes.
pub(super) async fn leave(engine: &Engine) {
    if let Some(membership) = &engine.0.cluster {
        lease::leave(engine, membership).await;
    }
}

/// Takes over what dead nodes left, again and again. Calls `seen` with each task that was taken over, and with `None` once, after the first look.
pub(super) fn recover(engine: &Engine, seen: Box<OnRecovered>) {
    engine.spawn(takeover::run(engine.weak(), seen));
}
