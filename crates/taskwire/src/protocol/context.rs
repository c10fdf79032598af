//! What every request needs: the engine, the tools, the configuration, and what the eras remember between requests.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use taskwire_core::CallerId;
use tokio::sync::watch;

use super::{CallRegistry, Fault, ReplyBudget, admission::Admission, legacy, modern};
use crate::{
    audit::{AuditAction, AuditEntry, shortened},
    auth::{Denied, Identity, challenge},
    config::Config,
    engine::Engine,
    metrics::Readings,
    tool::{Provider, ReadyTool},
};

pub(crate) struct Context {
    pub(crate) engine: Engine,
    pub(crate) provider: Arc<dyn Provider>,
    /// The follow-up tools; empty if they are turned off.
    pub(crate) followups: Arc<[Arc<ReadyTool>]>,
    pub(crate) config: Config,
    /// Name and version of this server, as `_meta` of modern results carries them.
    pub(crate) server_info_meta: String,
    /// Tasks as JSON, shared by modern listen streams.
    pub(crate) task_json_cache: modern::TaskJsonCache,
    pub(crate) sessions: legacy::Sessions,
    /// Calls that wait for their work, and work that lingers.
    pub(crate) calls: CallRegistry,
    /// Limits the memory for replies that contain the whole output of a task.
    pub(crate) reply_budget: ReplyBudget,
    pub(super) admission: Admission,
    listens: Counts,
    /// Requests of each caller that wait for a task to change.
    waits: Counts,
    /// Set once, when the server begins to shut down.
    pub(crate) draining: watch::Sender<bool>,
    /// Set once, when an admin asks that it does. Whoever can end the server waits for it.
    pub(crate) drain_requested: watch::Sender<bool>,
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
            admission: Admission::default(),
            listens: Counts::default(),
            waits: Counts::default(),
            draining,
            drain_requested: watch::Sender::new(false),
            engine,
            config,
        }
    }

    pub(crate) async fn shutdown_began(&self) {
        let _ = self.draining.subscribe().wait_for(|draining| *draining).await;
    }

    /// Refuses what a caller's scopes do not allow: this method, or a call of this tool. The error names all scopes that it needs.
    pub(crate) fn authorize(&self, identity: &Identity, method: &str, tool: Option<&str>) -> Result<(), Fault> {
        let auth = &*self.config.auth;
        let Some(needed) = auth.scope_rules().lacking(&identity.scopes, method, tool) else { return Ok(()) };
        let message = format!("your token lacks a scope: this needs `{needed}`");
        self.engine.audit(AuditAction::Refused, |entry| AuditEntry {
            caller: Some(identity.caller.clone()),
            tool: tool.map(|tool| shortened(tool).into()),
            outcome: format!("{} needs the scopes {needed}", if method.is_empty() { "this" } else { shortened(method) }).into(),
            ..entry
        });
        Err(Fault::challenged(403, message, Some(challenge::for_scopes(auth, &needed))))
    }

    /// Records that somebody showed something, but not who they are. Who shows nothing has not tried. Anybody can do that, so what comes
    /// too fast is only counted, and told with the next one that is recorded.
    pub(crate) fn sign_in_failed(&self, denied: &Denied, has_certificate: bool) {
        let why = match denied {
            Denied::Malformed(why) | Denied::Invalid(why) => why,
            Denied::Certificate(why) if has_certificate => why,
            _ => return,
        };
        let Some(before) = self.admission.admit_failed_sign_in(self.engine.clock().monotonic()) else { return };
        if before > 0 {
            let outcome = format!("sign-in: {before} more were refused before the next one").into();
            self.engine.audit(AuditAction::Refused, |entry| AuditEntry { from: None, outcome, ..entry });
        }
        self.engine.audit(AuditAction::Refused, |entry| AuditEntry { outcome: format!("sign-in: {}", shortened(why)).into(), ..entry });
    }

    /// Whether a caller sees and stops what others own.
    pub(crate) fn is_admin(&self, identity: &Identity) -> bool {
        identity.admin || self.config.auth.scope_rules().make_admin(&identity.scopes)
    }

    /// Counts one more listen stream of `caller`; none if it has reached the limit.
    pub(crate) fn listen_permit(&self, caller: &CallerId) -> Option<CallerPermit> {
        self.listens.acquire(caller, self.config.streams_per_caller).or_else(|| self.refused("streams_per_caller"))
    }

    /// Counts one more waiting request of `caller`; none if it has reached the limit.
    pub(crate) fn wait_permit(&self, caller: &CallerId) -> Option<CallerPermit> {
        self.waits.acquire(caller, self.config.waiting_requests_per_caller).or_else(|| self.refused("waiting_requests_per_caller"))
    }

    /// Counts that a limit has refused something.
    fn refused<T>(&self, limit: &str) -> Option<T> {
        self.engine.metrics().limit_reached(limit);
        None
    }

    /// What this server counts, as text. The transport knows the rest: open connections, and bytes of bodies in memory.
    pub(crate) async fn metrics_text(&self, connections: usize, body_bytes: usize) -> String {
        let metrics = self.engine.metrics();
        // Tools that nobody has called yet are told, too.
        for tool in self.provider.tools() {
            metrics.tool(&tool.0.name);
        }
        metrics.text(&Readings { sessions: self.sessions.len(), connections, body_bytes, ..self.engine.readings().await })
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

/// One of the things that a caller has open, counted until this is dropped.
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
