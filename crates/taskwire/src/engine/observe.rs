//! What the engine counts while it works, and what can be read of it at any moment.

use std::{
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use taskwire_core::{
    Version,
    task::{Event, Reject},
};

use super::{Engine, Error, Receipt};
use crate::{
    metrics::{Metrics, Readings},
    store::{self, NodeInfo, TaskWrite, Written},
    traces::Tracer,
};

/// How long the nodes are not read again.
const NODES_GOOD_FOR: Duration = Duration::from_secs(5);
/// How long the store may take to name them: whoever asks must not wait for a store that cannot be reached.
const NODES_TIMEOUT: Duration = Duration::from_millis(500);

/// The nodes that share the store, and when that was read by the monotonic clock.
#[derive(Debug, Default)]
pub(super) struct KnownNodes(Mutex<Option<(Duration, Arc<[NodeInfo]>)>>);

/// Waits for a commit of so many writes, and measures it.
pub(super) async fn commit(
    engine: &Engine,
    writes: usize,
    commit: impl Future<Output = Result<Vec<Written>, store::Error>>,
) -> Result<Vec<Written>, store::Error> {
    let began = engine.clock().monotonic();
    let committed = commit.await;
    if let Ok(written) = &committed {
        let conflicts = written.iter().filter(|written| **written != Written::Done).count();
        engine.metrics().committed(engine.clock().monotonic().saturating_sub(began), writes, conflicts);
    }
    committed
}

/// Counts what is durable.
pub(super) fn written(engine: &Engine, write: &TaskWrite) {
    let (task, tool) = (&write.task, engine.metrics().tool(&write.task.spec.tool));
    if write.first_version == Version(1) {
        tool.task_created();
    }
    for event in &write.events {
        if let Event::Appended { blocks, .. } = event {
            tool.chunk_written(blocks.bytes());
        }
    }
    if let (Some(outcome), Some((at, version))) = (&task.outcome, task.ended)
        && version >= write.first_version
    {
        tool.task_ended(outcome, at.since(task.began_at()));
    }
}

/// Counts what was refused.
pub(super) fn decided(engine: &Engine, decision: &Result<Receipt, Error>) {
    if let Err(Error::Rejected(Reject::Limit { key, .. })) = decision {
        engine.metrics().limit_reached(key);
    }
}

impl Engine {
    /// What the server counts.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// What decides which requests are traced; none if nothing is.
    pub(crate) fn tracer(&self) -> Option<&Tracer> {
        self.0.tracer.get()
    }

    /// Traces from now on. Call it before anything runs.
    #[cfg(feature = "traces")]
    pub(crate) fn set_tracer(&self, tracer: Tracer) {
        let _ = self.0.tracer.set(tracer);
    }

    /// Sends the spans that there are, as far as that is soon done.
    pub(crate) async fn flush_traces(&self) {
        if let Some(tracer) = self.tracer() {
            tracer.flush().await;
        }
    }

    /// What can be read of the engine just now. It does not wait for a store that cannot be reached.
    pub(crate) async fn readings(&self) -> Readings {
        let (space, queue) = (self.0.reader.space(), &self.0.queue);
        Readings {
            queue_length: queue.max_capacity() - queue.capacity(),
            queue_capacity: queue.max_capacity(),
            is_away: self.is_away(),
            away_for: self.metrics().away_for(self.0.clock.monotonic()),
            free_bytes: space.free_bytes,
            used_bytes: space.used_bytes,
            epoch: self.epoch().0,
            lease_left: self.0.cluster.as_ref().map(|membership| membership.lease_left()),
            nodes: self.count_nodes().await,
            audit_lost: self.audit_lost(),
            spans_sent: self.tracer().map_or(0, |tracer| tracer.counts().sent.load(Ordering::Relaxed)),
            spans_dropped: self.tracer().map_or(0, |tracer| tracer.counts().dropped.load(Ordering::Relaxed)),
            ..Readings::default()
        }
    }

    /// How many nodes are alive, as of a few seconds ago.
    async fn count_nodes(&self) -> Option<usize> {
        if !self.is_shared() {
            return Some(1);
        }
        let nodes = self.known_nodes().await?;
        Some(nodes.iter().filter(|node| !node.lease_left.is_zero()).count())
    }

    /// The nodes that share the store, as of a few seconds ago: none if this process has it alone. Nothing if the store does not say it in
    /// time.
    pub(crate) async fn known_nodes(&self) -> Option<Arc<[NodeInfo]>> {
        let Some(membership) = &self.0.cluster else { return Some(Arc::from([])) };
        let known = || self.0.known_nodes.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.0.clock.monotonic();
        let before = known().clone();
        if let Some((_, nodes)) = before.filter(|(at, _)| now.saturating_sub(*at) < NODES_GOOD_FOR) {
            return Some(nodes);
        }
        let nodes: Arc<[NodeInfo]> = tokio::select! {
            biased;
            nodes = membership.cluster.nodes() => nodes.ok()?.into(),
            () = self.0.clock.sleep(NODES_TIMEOUT) => return None,
        };
        *known() = Some((now, nodes.clone()));
        Some(nodes)
    }
}
