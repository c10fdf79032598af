//! What an admin sees of a server at a glance.

use serde::Serialize;

use crate::{metrics::Summary, protocol::Context, store::NodeInfo};

/// What `GET /api/server` answers.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ServerState {
    name: String,
    version: String,
    /// Whether it takes no new calls, because it is about to end.
    draining: bool,
    started_at: String,
    uptime_ms: u64,
    /// The number of this start; 0 while this node has no lease.
    epoch: u64,
    /// The name of this node, where nodes share the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    store: StoreState,
    queue: QueueState,
    /// Attempts that would end with the process: a drain waits for them.
    running: usize,
    sessions: usize,
    connections: usize,
    #[serde(flatten)]
    summary: Summary,
    /// The nodes that share the store. Absent while the store cannot say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<Vec<NodeObject>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StoreState {
    /// Whether callers are told to try again, because it cannot be reached or this node has no lease.
    away: bool,
    /// Whether the disk is full: what is there can be read.
    full: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    free_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    used_bytes: Option<u64>,
}

/// Changes that wait to be written, and how many may.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct QueueState {
    length: usize,
    capacity: usize,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeObject {
    name: String,
    epoch: u64,
    since: String,
    lease_left_ms: u64,
    open_tasks: u64,
}

/// What `POST /api/server/drain` answers.
#[derive(Debug, Serialize)]
pub(super) struct Draining {
    pub(super) draining: bool,
    pub(super) running: usize,
}

impl ServerState {
    pub(super) async fn read(context: &Context, connections: usize) -> Self {
        let (engine, config) = (&context.engine, &context.config);
        let (readings, nodes) = (engine.readings().await, engine.known_nodes().await);
        let is_full = engine.is_full();
        let own = |node: &&NodeInfo| node.epoch.0 == readings.epoch;
        let node = nodes.as_ref().and_then(|nodes| nodes.iter().find(own)).map(|node| node.name.to_string());
        let (summary, now) = (engine.metrics().summary(), engine.clock().now());
        Self {
            name: config.name.clone(),
            version: config.version.clone(),
            draining: *context.draining.borrow() || *context.drain_requested.borrow(),
            started_at: summary.began.to_string(),
            uptime_ms: millis(now.since(summary.began)),
            epoch: readings.epoch,
            node,
            store: StoreState {
                away: readings.is_away && !is_full,
                full: is_full,
                free_bytes: readings.free_bytes,
                used_bytes: readings.used_bytes,
            },
            queue: QueueState { length: readings.queue_length, capacity: readings.queue_capacity },
            running: engine.running(),
            sessions: context.sessions.len(),
            connections,
            summary,
            nodes: nodes.map(|nodes| nodes.iter().map(NodeObject::of).collect()),
        }
    }
}

impl NodeObject {
    fn of(node: &NodeInfo) -> Self {
        Self {
            name: node.name.to_string(),
            epoch: node.epoch.0,
            since: node.since.to_string(),
            lease_left_ms: millis(node.lease_left),
            open_tasks: node.open_tasks,
        }
    }
}

fn millis(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
