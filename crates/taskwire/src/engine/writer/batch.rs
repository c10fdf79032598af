//! What one batch of the writer decided, and who waits for it.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use taskwire_core::{CallerId, Payload, TaskId, task::Task};
use tokio::sync::oneshot;

use crate::{
    engine::{Error, Receipt, TaskRequest, WriterRequest},
    store::{self, CallKey, SessionChange, TaskWrite, Usage, Written},
};

type Decision = Result<Receipt, Error>;

/// What was decided about a request.
pub(super) struct Decided {
    decision: Decision,
    /// The task that a rejection is about, if not the one that was asked for.
    about: Option<TaskId>,
    /// What its task counted as before and after, if anything changes.
    usage: Option<(Usage, Usage)>,
}

impl Decided {
    pub(super) fn rejected(error: Error) -> Self {
        Self { decision: Err(error), about: None, usage: None }
    }

    pub(super) fn unchanged(task: Arc<Task>) -> Self {
        Self { decision: Ok(Receipt { task, changed: false }), about: None, usage: None }
    }

    pub(super) fn written(task: Arc<Task>, usage: (Usage, Usage)) -> Self {
        Self { decision: Ok(Receipt { task, changed: true }), about: None, usage: Some(usage) }
    }

    /// The same, because of this task: if that is not made after all, it is decided again.
    pub(super) fn about(mut self, task: TaskId) -> Self {
        self.about = Some(task);
        self
    }

    pub(super) fn is_written(&self) -> bool {
        self.usage.is_some()
    }
}

/// A request with what was decided about it.
pub(super) struct DecidedRequest {
    pub(super) request: TaskRequest,
    pub(super) decision: Decision,
    /// The task that the decision is about.
    task: TaskId,
    usage: Option<(Usage, Usage)>,
}

/// A decision that was not carried out.
pub(super) struct Refused {
    pub(super) task: TaskId,
    /// Whose usage it would have changed, from what to what.
    pub(super) usage: Option<(CallerId, Usage, Usage)>,
}

/// A key with its kind.
type OwnedKey = (CallerId, Option<bool>, Box<str>);

fn owned(key: CallKey<'_>) -> OwnedKey {
    match key {
        CallKey::Idempotency(caller, key) => (caller.clone(), None, key.into()),
        CallKey::Dedupe(caller, hidden, fingerprint) => (caller.clone(), Some(hidden), fingerprint.into()),
    }
}

/// What one batch writes, and who waits for it.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) writes: Vec<TaskWrite>,
    /// Where the write of each task is.
    positions: HashMap<TaskId, usize>,
    pub(super) decided: Vec<DecidedRequest>,
    pub(super) sessions: Vec<SessionChange>,
    pub(super) session_receipts: Vec<oneshot::Sender<Result<(), Error>>>,
    /// Requests that cannot be decided while the store is away.
    pub(super) later: Vec<WriterRequest>,
    /// Why it is away, if a read has found that.
    pub(super) away: Option<store::Error>,
    /// Tasks that this batch makes, by their keys, and the arguments of their calls.
    keys: HashMap<OwnedKey, (TaskId, Payload)>,
    /// Tasks that this batch forgets.
    pub(super) expired: HashSet<TaskId>,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.sessions.is_empty()
    }

    pub(super) fn add(&mut self, request: TaskRequest, decided: Decided) {
        let Decided { decision, about, usage } = decided;
        let task = decision.as_ref().map_or(about.unwrap_or(request.id), |receipt| receipt.task.id);
        self.decided.push(DecidedRequest { request, decision, task, usage });
    }

    /// Whether a request about this task could not be decided yet.
    pub(super) fn is_delayed(&self, id: TaskId) -> bool {
        self.later.iter().any(|request| matches!(request, WriterRequest::Task(request) if request.id == id))
    }

    /// The write of a task in this batch.
    pub(super) fn write_of(&self, id: TaskId) -> Option<&TaskWrite> {
        self.positions.get(&id).map(|position| &self.writes[*position])
    }

    /// Adds what happens to a task: it has one write in each batch, so that it is carried out whole.
    pub(super) fn write(&mut self, write: TaskWrite) {
        let next = self.writes.len();
        let position = *self.positions.entry(write.task.id).or_insert(next);
        match self.writes.get_mut(position) {
            None => self.writes.push(write),
            Some(earlier) => {
                earlier.task = write.task;
                earlier.events.extend(write.events);
                earlier.stale_checkpoints.extend(write.stale_checkpoints);
                (earlier.dropped_bytes, earlier.stored_bytes) = (write.dropped_bytes, write.stored_bytes);
            }
        }
    }

    pub(super) fn add_keys(&mut self, task: &Task, arguments: &Payload) {
        self.keys.extend(CallKey::of(&task.spec).map(|key| (owned(key), (task.id, arguments.clone()))));
    }

    /// The task that this batch makes under a key, and the arguments of its call.
    pub(super) fn by_key(&self, key: CallKey<'_>) -> Option<(TaskId, Payload)> {
        if self.keys.is_empty() { None } else { self.keys.get(&owned(key)).cloned() }
    }

    /// For a commit that did nothing.
    pub(super) fn nothing_written(&self) -> Vec<Written> {
        vec![Written::Conflict(None); self.writes.len()]
    }

    /// Takes out the requests whose writes were not carried out, or that relied on such a write, and those that could not be decided.
    pub(super) fn take_refused(&mut self, written: &[Written]) -> (Vec<Refused>, Vec<WriterRequest>) {
        let is_refused = |written: &Written| *written != Written::Done;
        let refused: HashSet<TaskId> =
            self.writes.iter().zip(written).filter(|(_, written)| is_refused(written)).map(|(write, _)| write.task.id).collect();
        let mut requests = Vec::new();
        let mut taken = Vec::new();
        if !refused.is_empty() {
            self.writes.retain(|write| !refused.contains(&write.task.id));
            self.expired.retain(|id| !refused.contains(id));
            for decided in std::mem::take(&mut self.decided) {
                if !refused.contains(&decided.task) {
                    self.decided.push(decided);
                    continue;
                }
                let caller = decided.decision.as_ref().ok().map(|receipt| receipt.task.spec.caller.clone());
                let usage = caller.zip(decided.usage).map(|(caller, (was, is))| (caller, was, is));
                taken.push(Refused { task: decided.task, usage });
                requests.push(WriterRequest::Task(decided.request));
            }
        }
        requests.append(&mut self.later);
        (taken, requests)
    }

    /// Takes out the changes of sessions of a commit that did nothing.
    pub(super) fn take_sessions(&mut self) -> impl Iterator<Item = WriterRequest> {
        let receipts = std::mem::take(&mut self.session_receipts);
        let changes = std::mem::take(&mut self.sessions).into_iter();
        changes.zip(receipts).map(|(change, receipt)| WriterRequest::Session(change, receipt))
    }

    /// Nothing can be stored just now: tells those who do not wait for it. Whether their changes were made may still be open.
    pub(super) fn refuse_callers(&mut self, away: &Error) {
        // Nobody knows whether a session began: its client begins another one.
        self.session_receipts.clear();
        for decided in self.decided.iter_mut().filter(|decided| !decided.request.waits) {
            let receipt = std::mem::replace(&mut decided.request.receipt, oneshot::channel().0);
            let _ = receipt.send(Err(away.clone()));
        }
    }
}

/// Something damaged is in the way of one of these requests at least. Returns both halves of them, the first one last, to be carried out
/// one after the other; if it is only one, it is refused.
pub(super) fn halves(mut requests: Vec<WriterRequest>, error: &store::Error) -> Vec<Vec<WriterRequest>> {
    if requests.len() > 1 {
        let second = requests.split_off(requests.len() / 2);
        return vec![second, requests];
    }
    let refusal = Error::Corrupt(error.for_callers().into());
    for request in requests {
        match request {
            WriterRequest::Task(TaskRequest { id, receipt, .. }) => {
                tracing::error!(task = %id, %error, "a write is refused, because of what is damaged: others go on");
                let _ = receipt.send(Err(refusal.clone()));
            }
            WriterRequest::Session(_, receipt) => {
                tracing::error!(%error, "a change of a session is refused, because of what is damaged: others go on");
                let _ = receipt.send(Err(refusal.clone()));
            }
            WriterRequest::Turn(taken) => {
                let _ = taken.send(());
            }
        }
    }
    Vec::new()
}

/// Drops the requests of those who do not wait for the store, and tells them.
pub(super) fn refuse_callers(requests: &mut Vec<WriterRequest>, away: &Error) {
    requests.retain_mut(|request| {
        let WriterRequest::Task(request) = request else { return false };
        if !request.waits {
            let receipt = std::mem::replace(&mut request.receipt, oneshot::channel().0);
            let _ = receipt.send(Err(away.clone()));
        }
        request.waits
    });
}
