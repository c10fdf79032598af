//! Tells whoever keeps a record who made, cancelled and answered tasks, once that is durable.

use std::{borrow::Cow, sync::Arc};

use taskwire_core::{
    CallerId, TaskId,
    task::{Authority, Command, Reject, Task},
};
use tokio::sync::oneshot;

use super::{Engine, Error, Receipt, TaskRequest};
use crate::audit::{self, AuditAction, AuditEntry};

impl TaskRequest {
    /// A request of whoever is being served just now.
    pub(super) fn new(id: TaskId, by: Authority, command: Command, waits: bool, receipt: oneshot::Sender<Result<Receipt, Error>>) -> Self {
        Self { id, by, command, waits, ends_at_once: false, sender: audit::sender(), receipt }
    }
}

impl Engine {
    /// Tells whoever keeps a record, if anybody does, what has just been done. `complete` adds who did it to what.
    pub(crate) fn audit(&self, action: AuditAction, complete: impl FnOnce(AuditEntry) -> AuditEntry) {
        if let Some(audit) = &self.0.config.audit {
            audit.record(complete(AuditEntry::new(self.now(), action)));
        }
    }

    /// The caller's task, which it wants to change. If it has none of this id, that is told like any other change that was refused.
    pub(crate) async fn task_to_change(&self, action: AuditAction, caller: &CallerId, id: TaskId) -> Result<Arc<Task>, Error> {
        let found = self.require_task(caller, id).await;
        if let Err(error) = &found {
            let caller = Some(caller.clone());
            self.audit(action, |entry| AuditEntry { caller, task: Some(id), outcome: error.in_a_few_words(), ..entry });
        }
        found
    }

    /// How many entries were lost of the record that is kept.
    pub(super) fn audit_lost(&self) -> u64 {
        self.0.config.audit.as_ref().map_or(0, |audit| audit.lost())
    }
}

/// A caller's request has been decided, and what was decided is durable.
pub(super) fn decided(engine: &Engine, request: &TaskRequest, decision: &Result<Receipt, Error>) {
    let (action, caller) = match (&request.command, &request.by) {
        (Command::Create(new), _) => (AuditAction::Create, &new.spec.caller),
        (Command::Cancel { .. }, Authority::Caller(caller)) => (AuditAction::Cancel, caller),
        (Command::Answer(_), Authority::Caller(caller)) => (AuditAction::Answer, caller),
        _ => return,
    };
    engine.audit(action, |entry| {
        let entry = AuditEntry { caller: Some(caller.clone()), from: request.sender, ..entry };
        match (decision, &request.command) {
            (Ok(Receipt { task, changed }), _) => {
                let outcome = match action {
                    _ if *changed => "done",
                    AuditAction::Create => "joined",
                    _ => "unchanged",
                };
                AuditEntry { task: Some(task.id), tool: Some(task.spec.tool.clone()), outcome: outcome.into(), ..entry }
            }
            (Err(error), Command::Create(new)) => {
                AuditEntry { tool: Some(new.spec.tool.clone()), outcome: error.in_a_few_words(), ..entry }
            }
            (Err(error), _) => AuditEntry { task: Some(request.id), outcome: error.in_a_few_words(), ..entry },
        }
    });
}

impl Error {
    /// Why something was not done, without anything that a caller sent.
    pub(crate) fn in_a_few_words(&self) -> Cow<'static, str> {
        match self {
            Self::Rejected(Reject::NotFound) => "there is no such task".into(),
            Self::Rejected(Reject::Limit { key, .. }) => format!("the limit {key} is reached").into(),
            Self::Rejected(_) => "it does not fit the state of the task".into(),
            Self::Unavailable(_) | Self::Away => "the store cannot be reached".into(),
            Self::Full => "the disk is full".into(),
            Self::Corrupt(_) => "the task is damaged".into(),
        }
    }
}
