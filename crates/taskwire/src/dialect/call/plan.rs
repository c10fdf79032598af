//! How a call begins, in both eras: under its key, by joining a call that is the same, as a task at once, or in memory.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use taskwire_core::{
    Payload,
    task::{Spec, Task},
    wire::RequestId,
};
use tokio::sync::mpsc;

use super::{
    held::Hold,
    ms,
    wait::{CallEra, is_limit},
    waiter::Waiter,
};
use crate::{
    dialect::{Context, Fault, Outbox},
    engine::{self, Held, Note, Resumed},
    tool::ReadyTool,
};

/// How long a task that its caller does not know of waits for an answer: later nobody is there to give it.
const ANSWER_TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// A call that is about to begin.
pub(in crate::dialect) struct Plan {
    context: Arc<Context>,
    pub(in crate::dialect) spec: Arc<Spec>,
    pub(in crate::dialect) request: Payload,
    pub(in crate::dialect) resumed: Resumed,
    pub(in crate::dialect) hold: Option<Hold>,
    pub(in crate::dialect) waiter: Waiter,
}

/// How a call began.
pub(in crate::dialect) enum Started {
    /// With a task, which is that of another call if it `joined` one.
    Task { task: Arc<Task>, joined: bool },
    /// In memory; its work is still to be started.
    Run(Held),
}

impl Plan {
    /// Plans a call for which its era has said in `spec` what it wants, and the way back to its client.
    pub(in crate::dialect) fn new(
        context: &Arc<Context>,
        mut spec: Spec,
        tool: &Arc<ReadyTool>,
        (arguments, request): (&Value, Payload),
        hold: Option<Hold>,
        way_back: (&RequestId, &Outbox),
    ) -> Result<Self, Fault> {
        if *context.draining.borrow() {
            return Err(engine::Error::Unavailable("it is shutting down".into()).into());
        }
        if let Some(hold) = hold {
            hold.open(&mut spec, tool, arguments);
        }
        if spec.hidden && hold.is_none_or(Hold::asks_natively) {
            let most = ms(ANSWER_TIMEOUT_MAX);
            spec.input_timeout_ms = Some(spec.input_timeout_ms.map_or(most, |span| span.min(most)));
        }
        let waiter = Waiter::new(context, &spec.caller, tool, &request, spec.hidden, way_back);
        spec.lingers = waiter.lingers();
        Ok(Self { context: context.clone(), spec: Arc::new(spec), request, resumed: Resumed::default(), hold, waiter })
    }

    /// Begins the call: as a task before it runs if it `must` be one.
    pub(in crate::dialect) async fn start(&mut self, must: bool, era: &mut impl CallEra) -> Result<Started, engine::Error> {
        let engine = &self.context.engine;
        if self.spec.idempotency_key.is_some() {
            // The caller asks again if it does not get this answer, so the task must live on: nothing waits for it here.
            let id = engine.new_id();
            let task = engine.create(id, self.spec.clone(), self.request.clone(), &self.resumed, era.notes()).await?.task;
            return Ok(Started::Task { joined: task.id != id, task });
        }
        if self.spec.dedupe.is_some() {
            let joined = self.waiter.join_or_create(self.spec.clone(), self.request.clone(), self.resumed.clone(), era.notes()).await;
            match joined {
                Ok(task) => return Ok(Started::Task { joined: self.waiter.joined().is_some(), task }),
                // No room for another task: the call is held as one that shares none, whatever becomes of it.
                Err(error) if is_limit(&error) => Arc::make_mut(&mut self.spec).dedupe = None,
                Err(error) => return Err(error),
            }
        } else if let Some(task) = era.join(&self.waiter).await? {
            return Ok(Started::Task { joined: true, task });
        }
        if must {
            return Ok(Started::Task { joined: false, task: self.create(None).await? });
        }
        let id = self.context.engine.new_id();
        Ok(Started::Run(self.context.engine.launch(id, self.spec.clone(), self.request.clone(), self.resumed.clone(), era.notes())))
    }

    /// Makes the task before its work runs.
    pub(in crate::dialect) async fn create(&self, notes: Option<mpsc::Sender<Note>>) -> Result<Arc<Task>, engine::Error> {
        let engine = &self.context.engine;
        let id = engine.new_id();
        self.waiter.waits_for(id);
        match engine.create(id, self.spec.clone(), self.request.clone(), &self.resumed, notes).await {
            Ok(receipt) => Ok(receipt.task),
            Err(error) => {
                self.waiter.clone().answered(true);
                Err(error)
            }
        }
    }
}
