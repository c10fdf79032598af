//! Starts a call, in both eras: under its key, by joining a call that is the same, as a task at once, or in memory.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use taskwire_core::{
    Payload, TaskId,
    task::{Reject, Spec, Task},
    wire::RequestId,
};
use tokio::sync::mpsc;

use super::{
    CANCELLED_BY_CALLER,
    hold::Hold,
    ms,
    wait::{CallEra, is_limit},
    waiter::Waiter,
};
use crate::{
    engine::{self, CallNote, Continuation, UnstartedRun},
    protocol::{Context, Fault, MessageSink},
    tool::ReadyTool,
};

/// The longest time that a hidden task waits for an answer: later its caller is no longer there to give one.
const ANSWER_TIMEOUT_MAX: Duration = Duration::from_secs(3600);

pub(in crate::protocol) struct Plan {
    context: Arc<Context>,
    pub(in crate::protocol) spec: Arc<Spec>,
    pub(in crate::protocol) arguments: Payload,
    pub(in crate::protocol) continuation: Continuation,
}

/// How a call began.
pub(in crate::protocol) enum Started {
    /// `joined`: the task is that of another call.
    Task { task: Arc<Task>, joined: bool },
    /// In memory, not started yet.
    Run(UnstartedRun),
}

impl Plan {
    /// Plans a call of `tool` from the `spec` that its era made; fails if the server shuts down, or such calls come too fast. Without a
    /// waiter the call neither lingers nor joins another one.
    pub(in crate::protocol) fn new(context: &Arc<Context>, spec: Spec, tool: &Arc<ReadyTool>, arguments: Payload) -> Result<Self, Fault> {
        if *context.draining.borrow() {
            return Err(engine::Error::Unavailable("it is shutting down".into()).into());
        }
        context.admit_call(&spec.caller, tool)?;
        Ok(Self { context: context.clone(), spec: Arc::new(spec), arguments, continuation: Continuation::default() })
    }

    /// Plans a call whose client waits for its result, and may hang up.
    pub(in crate::protocol) fn with_waiter(
        context: &Arc<Context>,
        spec: Spec,
        tool: &Arc<ReadyTool>,
        (arguments, request): (&Value, Payload),
        hold: Option<Hold>,
        way_back: (&RequestId, &MessageSink),
    ) -> Result<(Self, Waiter), Fault> {
        let mut plan = Self::new(context, spec, tool, request)?;
        let spec = Arc::make_mut(&mut plan.spec);
        if let Some(hold) = hold {
            hold.apply_to(spec, tool, arguments);
        }
        if spec.hidden && hold.is_none_or(Hold::can_ask_anything) {
            let most = ms(ANSWER_TIMEOUT_MAX);
            spec.answer_timeout_ms = Some(spec.answer_timeout_ms.map_or(most, |span| span.min(most)));
        }
        let waiter = Waiter::new(context, &spec.caller, tool, &plan.arguments, spec.hidden, way_back);
        spec.lingers = waiter.lingers();
        Ok((plan, waiter))
    }

    /// Starts the call. If it `must` be a task, that is created before its work runs.
    pub(in crate::protocol) async fn start(
        &mut self,
        must_be_task: bool,
        waiter: Option<&Waiter>,
        era: &mut impl CallEra,
    ) -> Result<Started, engine::Error> {
        let id = self.context.engine.new_id();
        if self.spec.fingerprint.is_some() && (waiter.is_none() || self.spec.idempotency_key.is_some()) {
            // Its caller finds the task by its id or by that key, whatever becomes of the call that it would join.
            Arc::make_mut(&mut self.spec).fingerprint = None;
        }
        if self.spec.idempotency_key.is_some() {
            // A client that gets no response repeats the call under its key, so hanging up must not stop the task: the waiter gets no work.
            let task = self.create(id, None, era.open_notes(id)).await?;
            return Ok(Started::Task { joined: task.id != id, task });
        }
        if let Some(waiter) = waiter {
            if self.context.engine.is_shared() && waiter.lingers() {
                Arc::make_mut(&mut self.spec).linger_key = waiter.dedupe_key().map(|key| key.fingerprint.clone());
            }
            if self.spec.fingerprint.is_some() {
                let notes = era.open_notes(id);
                let joined = waiter.join_or_create(id, self.spec.clone(), self.arguments.clone(), self.continuation.clone(), notes).await;
                match joined {
                    Ok(task) => return Ok(Started::Task { joined: waiter.joined_started_at().is_some(), task }),
                    // The caller may have no further task: the call runs in memory, and no other call joins it.
                    Err(error) if is_limit(&error) => Arc::make_mut(&mut self.spec).fingerprint = None,
                    Err(error) => return Err(error),
                }
            } else if let Some(task) = era.join_same_call(waiter).await? {
                return Ok(Started::Task { joined: true, task });
            }
        }
        let notes = era.open_notes(id);
        if must_be_task {
            return Ok(Started::Task { joined: false, task: self.create(id, waiter, notes).await? });
        }
        let (spec, arguments, continuation) = (self.spec.clone(), self.arguments.clone(), self.continuation.clone());
        Ok(Started::Run(self.context.engine.prepare_run(id, spec, arguments, continuation, notes)))
    }

    /// Creates the task before its work runs.
    pub(in crate::protocol) async fn create(
        &self,
        id: TaskId,
        waiter: Option<&Waiter>,
        notes: Option<mpsc::Sender<CallNote>>,
    ) -> Result<Arc<Task>, engine::Error> {
        if let Some(waiter) = waiter {
            if waiter.is_cancelled() {
                return Err(engine::Error::Rejected(Reject::Ended));
            }
            waiter.wait_for_task(id);
        }
        let created = self.context.engine.create(id, self.spec.clone(), self.arguments.clone(), &self.continuation, notes).await;
        if let Some(waiter) = waiter {
            match &created {
                Err(_) => waiter.clone().responded(true),
                // The cancel may have overtaken the creation.
                Ok(_) if waiter.is_cancelled() => {
                    self.context.engine.cancel_in_order(self.spec.caller.clone(), id, CANCELLED_BY_CALLER);
                }
                Ok(_) => {}
            }
        }
        Ok(created?.task)
    }
}
