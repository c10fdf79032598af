//! A node among others that share a memory: leases, and what the others hear.

use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::BoxFuture;
use taskwire_core::{CallerId, Epoch, TaskId, Timestamp, Version};
use tokio::sync::Notify;

use super::{Memory, NodeState};
use crate::store::{Changes, Cluster, Error, Lease, NodeInfo, StrandedTask, Usage};

/// How long a lease lasts.
const LEASE: Duration = Duration::from_secs(6);
/// How many announcements wait for a node; more become one that says nothing in particular.
const CHANGES_MAX: usize = 256;

/// What was announced to a node, until it looks.
#[derive(Debug, Default)]
pub(super) struct ChangeQueue {
    waiting: Mutex<VecDeque<Changes>>,
    added: Notify,
}

impl ChangeQueue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Changes>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, changes: Changes) {
        let mut waiting = self.lock();
        if waiting.len() >= CHANGES_MAX {
            waiting.clear();
            waiting.push_back(Changes::Unknown);
        } else {
            waiting.push_back(changes);
        }
        self.added.notify_one();
    }
}

/// One of the nodes that share a memory.
pub(super) struct Node {
    pub(super) name: Arc<str>,
    pub(super) memory: Memory,
    pub(super) opened_at: Timestamp,
    pub(super) changes: Arc<ChangeQueue>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Node {
    pub(super) fn begin_lease(&self) -> Epoch {
        let (epoch, now) = (self.memory.next_epoch(), self.memory.0.clock.now());
        let mut state = self.memory.lock();
        let (name, changes) = (self.name.clone(), self.changes.clone());
        state.nodes.insert(epoch, NodeState { name, since: now, expires: now.after(LEASE), orphan_after: Duration::ZERO, changes });
        epoch
    }
}

impl Cluster for Node {
    fn first_lease(&self) -> (Lease, Duration) {
        let now = self.opened_at;
        (Lease { now, lasts: LEASE, orphan_after: Duration::ZERO }, self.memory.0.clock.now().since(now))
    }

    fn renew(&self, epoch: Epoch, orphan_after: Duration) -> BoxFuture<'_, Result<Option<Lease>, Error>> {
        let now = self.memory.0.clock.now();
        let mut state = self.memory.lock();
        // A lease that has expired can be renewed, until another node has declared this one dead.
        if let Some(node) = state.nodes.get_mut(&epoch) {
            (node.expires, node.orphan_after) = (now.after(LEASE), orphan_after);
        }
        let renewed = state.nodes.contains_key(&epoch).then(|| Lease { now, lasts: LEASE, orphan_after: state.orphan_after() });
        Box::pin(std::future::ready(Ok(renewed)))
    }

    fn rejoin(&self) -> BoxFuture<'_, Result<Epoch, Error>> {
        Box::pin(std::future::ready(Ok(self.begin_lease())))
    }

    fn leave(&self, epoch: Epoch) -> BoxFuture<'_, Result<(), Error>> {
        let now = self.memory.0.clock.now();
        let mut state = self.memory.lock();
        if let Some(node) = state.nodes.remove(&epoch) {
            state.gone.insert(epoch, (now, node.orphan_after));
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn is_alive(&self, epoch: Epoch) -> BoxFuture<'_, Result<bool, Error>> {
        let is_alive = self.memory.lock().nodes.contains_key(&epoch);
        Box::pin(std::future::ready(Ok(is_alive)))
    }

    fn stranded_tasks(
        &self,
        judge_at: Option<Timestamp>,
        after: Option<(Epoch, TaskId)>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<StrandedTask>, Error>> {
        let now = self.memory.0.clock.now();
        let mut state = self.memory.lock();
        state.judge(judge_at, now);
        let open = state.open.iter().filter_map(|id| state.tasks.get(id)).map(|stored| (stored.task.epoch, stored.task.id));
        let stranded: BTreeSet<_> =
            open.filter(|task| !state.nodes.contains_key(&task.0) && after.is_none_or(|after| *task > after)).collect();
        let gone_for = |epoch: Epoch| state.gone.get(&epoch).map_or(Duration::MAX, |(since, _)| now.since(*since));
        let stranded = stranded.into_iter().take(limit).map(|(epoch, id)| StrandedTask { id, epoch, gone_for: gone_for(epoch) }).collect();
        Box::pin(std::future::ready(Ok(stranded)))
    }

    fn queued_tasks<'a>(&'a self, epoch: Epoch, free: &'a [(String, usize)]) -> BoxFuture<'a, Result<Vec<(TaskId, Epoch)>, Error>> {
        let state = self.memory.lock();
        let open = state.open.iter().filter_map(|id| state.tasks.get(id)).map(|stored| &stored.task);
        let queued: Vec<_> =
            open.filter(|task| task.queued_at.is_some() && task.epoch != epoch && state.nodes.contains_key(&task.epoch)).collect();
        let of_tool = |(tool, free): &(String, usize)| {
            let queued = queued.iter().filter(|task| *task.spec.tool == **tool).take(*free);
            queued.map(|task| (task.id, task.epoch)).collect::<Vec<_>>()
        };
        Box::pin(std::future::ready(Ok(free.iter().flat_map(of_tool).collect())))
    }

    fn versions<'a>(&'a self, ids: &'a [TaskId]) -> BoxFuture<'a, Result<Vec<Option<Version>>, Error>> {
        let state = self.memory.lock();
        let versions = ids.iter().map(|id| state.tasks.get(id).map(|stored| stored.task.version)).collect();
        Box::pin(std::future::ready(Ok(versions)))
    }

    fn usage_of<'a>(&'a self, caller: &'a CallerId) -> BoxFuture<'a, Result<Usage, Error>> {
        let state = self.memory.lock();
        let usage = state.tasks_of(caller).fold(Usage::default(), |usage, stored| Usage {
            open: usage.open + u64::from(stored.task.ended.is_none()),
            bytes: usage.bytes + stored.bytes,
        });
        Box::pin(std::future::ready(Ok(usage)))
    }

    fn nodes(&self) -> BoxFuture<'_, Result<Vec<NodeInfo>, Error>> {
        let now = self.memory.0.clock.now();
        let state = self.memory.lock();
        let open_tasks = |epoch: &Epoch| {
            let open = state.open.iter().filter_map(|id| state.tasks.get(id));
            open.filter(|stored| stored.task.epoch == *epoch).count() as u64
        };
        let nodes = state.nodes.iter().map(|(epoch, node)| NodeInfo {
            name: node.name.clone(),
            epoch: *epoch,
            since: node.since,
            lease_left: node.expires.since(now),
            open_tasks: open_tasks(epoch),
        });
        Box::pin(std::future::ready(Ok(nodes.collect())))
    }

    fn announce(&self, changes: Changes) {
        for node in self.memory.lock().nodes.values().filter(|node| !Arc::ptr_eq(&node.changes, &self.changes)) {
            node.changes.push(changes.clone());
        }
    }

    fn next_changes(&self) -> BoxFuture<'_, Changes> {
        Box::pin(async {
            loop {
                let next = self.changes.lock().pop_front();
                if let Some(changes) = next {
                    return changes;
                }
                self.changes.added.notified().await;
            }
        })
    }
}
