//! What every request needs: the engine, the tools, the configuration, and what the eras remember between requests.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use taskwire_core::CallerId;
use tokio::sync::watch;

use super::{CallRegistry, ReplyBudget, legacy, modern};
use crate::{
    config::Config,
    engine::Engine,
    tool::{Provider, ReadyTool},
};

/// What every request needs.
pub(crate) struct Context {
    pub(crate) engine: Engine,
    pub(crate) provider: Arc<dyn Provider>,
    /// The tools by which callers without tasks get on; none if they are turned off.
    pub(crate) followups: Arc<[Arc<ReadyTool>]>,
    pub(crate) config: Config,
    /// Name and version of this server, as results of the modern era carry them.
    pub(crate) server_info_meta: String,
    /// What listeners of the modern era were last shown.
    pub(crate) task_json_cache: modern::TaskJsonCache,
    /// Sessions of the legacy era.
    pub(crate) sessions: legacy::Sessions,
    /// Calls that wait for their work, and work that was left.
    pub(crate) calls: CallRegistry,
    /// Room for answers that have the whole output of a task.
    pub(crate) reply_budget: ReplyBudget,
    /// Open listen streams of each caller.
    listens: Counts,
    /// Requests of each caller that wait for something to happen.
    waits: Counts,
    /// Set once, when the server begins to shut down.
    pub(crate) draining: watch::Sender<bool>,
}

impl Context {
    pub(crate) fn new(
        engine: Engine,
        provider: Arc<dyn Provider>,
        followups: Arc<[Arc<ReadyTool>]>,
        config: Config,
        draining: watch::Sender<bool>,
    ) -> Self {
        Self {
            provider,
            followups,
            server_info_meta: modern::server_meta(&config.name, &config.version),
            task_json_cache: modern::TaskJsonCache::default(),
            sessions: legacy::Sessions::default(),
            calls: CallRegistry::default(),
            reply_budget: ReplyBudget::new(engine.limits().task_output_bytes),
            listens: Counts::default(),
            waits: Counts::default(),
            draining,
            engine,
            config,
        }
    }

    /// Waits until the server begins to shut down.
    pub(crate) async fn shutdown_began(&self) {
        let _ = self.draining.subscribe().wait_for(|draining| *draining).await;
    }

    /// Counts one more listen stream of `caller`, unless it has as many as it may.
    pub(crate) fn listen_permit(&self, caller: &CallerId) -> Option<CallerPermit> {
        self.listens.acquire(caller, self.config.streams_per_caller)
    }

    /// Counts one more request of `caller` that waits, unless there are as many as there may be.
    pub(crate) fn wait_permit(&self, caller: &CallerId) -> Option<CallerPermit> {
        self.waits.acquire(caller, self.config.waiting_requests_per_caller)
    }
}

/// How many of something each caller has open.
#[derive(Default, Clone)]
struct Counts(Arc<Mutex<HashMap<CallerId, usize>>>);

impl Counts {
    fn acquire(&self, caller: &CallerId, max: usize) -> Option<CallerPermit> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match counts.get_mut(caller) {
            Some(count) if *count >= max => return None,
            Some(count) => *count += 1,
            None if max == 0 => return None,
            None => drop(counts.insert(caller.clone(), 1)),
        }
        Some(CallerPermit { counts: self.clone(), caller: caller.clone() })
    }
}

/// One of what a caller has open, counted as long as this lives.
pub(crate) struct CallerPermit {
    counts: Counts,
    caller: CallerId,
}

impl Drop for CallerPermit {
    fn drop(&mut self) {
        let mut counts = self.counts.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.caller);
            }
        }
    }
}
