//! What calls do to their task beside waiting for it: they make it of what is done, join it where nodes share the store, give it up, or
//! cancel it.

use std::sync::Arc;

use taskwire_core::{
    Attempt, CallerId, Payload, TaskId,
    task::{Authority, Command, NewTask, Outcome, Reject, Spec, Task},
};
use tokio::sync::{mpsc::error::TrySendError, oneshot};

use super::{Engine, Error, Receipt, TaskRequest, WriterRequest};
use crate::{audit, store::CallKey};

impl Engine {
    /// Makes a task of work that is already done.
    pub(crate) async fn create_ended(&self, id: TaskId, spec: Arc<Spec>, request: Payload, outcome: Outcome) -> Result<Receipt, Error> {
        // Spawned, so that a caller that goes away cannot leave a run registered that nobody ends.
        let engine = self.clone();
        let recorded = async move { engine.create_ended_now(id, spec, request, outcome).await };
        let recorded = self.0.runtime.spawn(audit::sent_from(audit::sender(), recorded));
        recorded.await.map_err(|_| self.unavailable())?
    }

    async fn create_ended_now(&self, id: TaskId, spec: Arc<Spec>, request: Payload, outcome: Outcome) -> Result<Receipt, Error> {
        let new = NewTask::new(spec, request, self.epoch());
        let (made, ended) = (oneshot::channel(), oneshot::channel());
        // Both requests are queued together, so that they usually share a commit.
        let mut permits = self.0.queue.reserve_many(2).await.map_err(|_| self.unavailable())?;
        self.0.runs.register(id, Attempt(1), Arc::default(), &new.spec);
        let requests = [
            TaskRequest { ends_at_once: true, ..TaskRequest::new(id, Authority::Engine, Command::Create(new), true, made.0) },
            TaskRequest::new(id, Authority::Attempt(Attempt(1)), Command::finish(outcome), true, ended.0),
        ];
        for (request, permit) in requests.into_iter().zip(&mut permits) {
            permit.send(WriterRequest::Task(request));
        }
        drop(permits);
        if let Err(error) = made.1.await.map_err(|_| self.unavailable())? {
            self.0.runs.unregister(id);
            return Err(error);
        }
        ended.1.await.map_err(|_| self.unavailable())?
    }

    /// Cancels the task that a caller made under this key, if there is one.
    pub(crate) fn cancel_by_key(&self, caller: &CallerId, key: &str, reason: &'static str) {
        let (engine, caller, key) = (self.clone(), caller.clone(), key.to_owned());
        self.spawn(async move {
            match engine.0.reader.by_key(CallKey::Idempotency(&caller, &key)).await {
                Ok(Some(id)) => engine.cancel_now(caller, id, reason).await,
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "a call could not be cancelled"),
            }
        });
    }

    /// Cancels a task without waiting for it; what is submitted after this call is decided after it.
    pub(crate) fn cancel_in_order(&self, caller: CallerId, id: TaskId, reason: &'static str) {
        // If it cannot be cancelled, it has ended.
        drop(self.queue_in_order(caller, id, Command::Cancel { reason: Some(reason.into()) }));
    }

    /// The same, but not if the process ends now.
    pub(crate) fn cancel_soon(&self, caller: CallerId, id: TaskId, reason: &'static str) {
        let engine = self.clone();
        self.spawn(async move { engine.cancel_in_order(caller, id, reason) });
    }

    fn queue_in_order(&self, caller: CallerId, id: TaskId, command: Command) -> oneshot::Receiver<Result<Receipt, Error>> {
        let (receipt, received) = oneshot::channel();
        let request = WriterRequest::Task(TaskRequest::new(id, Authority::Caller(caller), command, true, receipt));
        if let Err(TrySendError::Full(request)) = self.0.queue.try_send(request) {
            // Others may overtake it, which is better than to lose it.
            let queue = self.0.queue.clone();
            self.spawn(async move { drop(queue.send(request).await) });
        }
        received
    }

    /// A call of this node waits for a task from now on, where nodes share the store. See [`Command::Join`].
    pub(crate) async fn join(&self, task: &Task, shared: bool) -> Result<Arc<Task>, Error> {
        let mut gone = Vec::new();
        for epoch in task.awaited_by() {
            if epoch != self.epoch() && !self.is_other_node(epoch).await? {
                gone.push(epoch);
            }
        }
        if !shared && task.ended.is_none() && task.awaited_by().any(|epoch| !gone.contains(&epoch)) {
            return Err(Reject::Awaited.into());
        }
        let command = Command::Join { epoch: self.epoch(), gone, shared };
        Ok(self.submit(task.id, Authority::Caller(task.spec.caller.clone()), command).await?.task)
    }

    /// The calls of this node do not want a task any longer: it is cancelled, unless calls of other nodes wait for it. What is submitted
    /// after this call is decided after it.
    pub(crate) fn abandon_in_order(&self, caller: CallerId, id: TaskId, reason: &'static str) {
        let Some(membership) = self.0.cluster.as_ref().map(|membership| membership.cluster.clone()) else {
            return self.cancel_in_order(caller, id, reason);
        };
        let received = self.queue_in_order(caller.clone(), id, Command::Abandon { epoch: self.epoch(), reason: reason.into() });
        let engine = self.clone();
        self.spawn(async move {
            let Ok(Ok(Receipt { task, .. })) = received.await else { return };
            if task.ended.is_some() {
                return;
            }
            for epoch in task.awaited_by() {
                // Where the store is away for a moment, that node counts as one whose calls still wait.
                if epoch == engine.epoch() || membership.is_alive(epoch).await.unwrap_or(true) {
                    return;
                }
            }
            engine.cancel_now(caller, id, reason).await;
        });
    }

    /// Cancels a task for an admin, who may not be the one that owns it.
    pub(crate) async fn cancel_for_admin(&self, id: TaskId, reason: &str) -> Result<Receipt, Error> {
        // An admin can try again while the store cannot be reached.
        self.submit_as(id, Authority::Engine, Command::Cancel { reason: Some(reason.into()) }, false).await
    }

    async fn cancel_now(&self, caller: CallerId, id: TaskId, reason: &'static str) {
        match self.submit_when_back(id, Authority::Caller(caller), Command::Cancel { reason: Some(reason.into()) }).await {
            // It was never made, or is forgotten already: there is nothing to cancel.
            Ok(_) | Err(Error::Rejected(Reject::NotFound)) => {}
            Err(error) => tracing::warn!(task = %id, %error, "a task could not be cancelled"),
        }
    }
}
