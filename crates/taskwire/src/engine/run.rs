//! A run: the execution of a tool's work, as an attempt of a task, or *loose* while its call is not promoted.
//!
//! A loose run lives in memory. When it must be durable (its caller has waited long enough, it asks something, it saves
//! a checkpoint, it has written a lot) it becomes a task without being restarted: what it wrote so far goes into the
//! task's first commit.

mod output;
mod trace;

use std::{
    any::Any,
    net::IpAddr,
    panic::AssertUnwindSafe,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use taskwire_core::{
    Attempt, Payload, QuestionKey, TaskId, Timestamp, Version,
    task::{
        Authority, Command, Event, NewTask, Outcome, Progress, Reject, RpcError, Spec, Task, check_status, limit_result, timed_out, wants,
    },
    trace::TraceContext,
    wire::code,
};
use tokio::sync::{Mutex, mpsc, oneshot};

use self::trace::RunTrace;
use super::{
    Engine, Error, Receipt, TaskRequest, WriterRequest,
    exchange::{CallNote, Continuation, Phase, RunEnd},
    operator_log,
    output_buffer::OutputBuffer,
    switch::{StopSignal, Switch},
};
use crate::{audit, metrics::Counted};

/// How soon an attempt looks again whether its node has a lease.
const LEASE_DELAY: Duration = Duration::from_millis(100);

/// One run of one tool.
pub struct Run {
    /// The task that it is, or becomes if it is promoted.
    id: TaskId,
    /// Where its call came from, if it began with one.
    sender: Option<IpAddr>,
    engine: Engine,
    spec: Arc<Spec>,
    arguments: Payload,
    continuation: std::sync::Mutex<Continuation>,
    checkpoint: Option<Payload>,
    attempt: Attempt,
    /// Whether the work waited for a slot when the attempt began.
    was_queued: bool,
    began: Timestamp,
    /// Held while something of the run is sent to the writer, until it is durable.
    send_lock: Mutex<()>,
    output_buffer: OutputBuffer,
    /// Whether it becomes a task with its first output.
    promote_on_output: AtomicBool,
    /// On when there is output.
    has_output: Switch,
    phase: std::sync::Mutex<Phase>,
    /// On when the run is no longer loose.
    settled: Switch,
    stop: Arc<StopSignal>,
    notes: Option<mpsc::Sender<CallNote>>,
    /// Dropped with the run.
    guard: std::sync::Mutex<Option<Box<dyn Any + Send>>>,
    /// Counts it while it is loose.
    counted: std::sync::Mutex<Option<Counted>>,
    /// How many blocks at the beginning of the result only repeat what was written.
    repeated_blocks: AtomicUsize,
    trace: RunTrace,
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("tool", &self.spec.tool).field("attempt", &self.attempt).finish_non_exhaustive()
    }
}

impl Run {
    pub(super) fn loose(
        engine: Engine,
        id: TaskId,
        spec: Arc<Spec>,
        request: Payload,
        resumed: Continuation,
        notes: Option<mpsc::Sender<CallNote>>,
    ) -> Self {
        Self {
            id,
            sender: audit::sender(),
            began: engine.0.clock.now(),
            counted: std::sync::Mutex::new(Some(engine.metrics().run_in_memory())),
            trace: RunTrace::begin(&engine, &spec, Attempt(1)),
            engine,
            spec,
            arguments: request,
            continuation: std::sync::Mutex::new(resumed),
            checkpoint: None,
            attempt: Attempt(1),
            was_queued: false,
            send_lock: Mutex::default(),
            output_buffer: OutputBuffer::default(),
            promote_on_output: AtomicBool::new(false),
            has_output: Switch::default(),
            phase: std::sync::Mutex::new(Phase::Loose),
            settled: Switch::default(),
            stop: Arc::default(),
            notes,
            guard: std::sync::Mutex::default(),
            repeated_blocks: AtomicUsize::new(0),
        }
    }

    /// Keeps `kept` until the run is dropped.
    pub(crate) fn keep_until_end(&self, kept: Box<dyn Any + Send>) {
        *self.guard.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
    }

    /// Sets how many blocks at the beginning of the result only repeat, or sum up, the output.
    pub(crate) fn set_repeated_blocks(&self, blocks: usize) {
        self.repeated_blocks.store(blocks, Ordering::Relaxed);
    }

    /// The task that it is, or becomes if it is promoted.
    #[must_use]
    pub fn id(&self) -> TaskId {
        self.id
    }

    /// What is fixed about the work.
    #[must_use]
    pub fn spec(&self) -> &Arc<Spec> {
        &self.spec
    }

    #[must_use]
    pub fn arguments(&self) -> &Payload {
        &self.arguments
    }

    /// What the caller sent along when it called again.
    #[must_use]
    pub fn continuation(&self) -> Continuation {
        self.continuation.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces what the caller sent along: it answered another round of questions.
    pub fn set_continuation(&self, resumed: Continuation) {
        *self.continuation.lock().unwrap_or_else(PoisonError::into_inner) = resumed;
    }

    /// Where in a trace its work belongs, if anywhere.
    #[must_use]
    pub fn trace(&self) -> Option<&TraceContext> {
        self.trace.context().or(self.spec.trace.as_ref())
    }

    /// What the last attempt saved.
    #[must_use]
    pub fn checkpoint(&self) -> Option<&Payload> {
        self.checkpoint.as_ref()
    }

    #[must_use]
    pub fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// Whether its work waited for a slot when this attempt began, so that no earlier attempt has begun it.
    pub(crate) fn was_queued(&self) -> bool {
        self.was_queued
    }

    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Whether the work must stop.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stop.is_stopped()
    }

    /// Whether it must stop because another attempt may run: its task goes on without it.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.stop.is_abandoned()
    }

    /// Waits until the work must stop.
    pub async fn stopped(&self) {
        self.stop.wait().await;
    }

    /// Tells the work to stop.
    pub(super) fn stop(&self) {
        self.stop.stop();
    }

    /// Stops the work, or cancels the task that it became.
    pub(crate) fn cancel(&self, reason: &'static str) {
        match self.phase() {
            // A promotion that is under way does not undo this: the run stays stopped.
            Phase::Loose => self.stop(),
            Phase::Task(id) => self.engine.cancel_soon(self.spec.caller.clone(), id, reason),
            Phase::Done(_) => {}
        }
    }

    /// Reports a status message, progress or both.
    ///
    /// # Errors
    /// When a limit is reached, the work must stop, or nothing can be stored.
    pub async fn report_status(self: &Arc<Self>, message: Option<Arc<str>>, progress: Option<Progress>) -> Result<(), Error> {
        self.check_not_stopped()?;
        check_status(message.as_deref(), progress, self.engine.limits())?;
        if let Some(progress) = progress {
            self.note(CallNote::Progress { progress, message: message.clone() });
        } else if let Some(message) = &message {
            self.note(CallNote::Status(message.clone()));
        }
        // Not under `send_lock`, which is held for as long as a commit takes: the work itself must never wait for that.
        if self.output_buffer.lock().buffer_status(&message, progress) {
            return Ok(());
        }
        self.submit(Command::ReportStatus { message, progress }).await.map(drop)
    }

    /// Records that the work waits for a slot of its tool: a node that has one may take the task.
    ///
    /// # Errors
    /// When a limit is reached, the work must stop, or nothing can be stored.
    pub(crate) async fn queue(self: &Arc<Self>) -> Result<(), Error> {
        self.submit(Command::Queue).await.map(drop)
    }

    /// Records that the work has a slot, and begins. Fails if another node has taken the task.
    ///
    /// # Errors
    /// When the work must stop, or nothing can be stored.
    pub(crate) async fn dequeue(self: &Arc<Self>) -> Result<(), Error> {
        self.submit(Command::Dequeue).await.map(drop)
    }

    /// Asks the caller and waits for the answer. The same question under the same key is asked once, also across
    /// attempts.
    ///
    /// # Errors
    /// When the key was used for another question, a limit is reached, the work must stop, or nothing can be stored.
    pub async fn ask(self: &Arc<Self>, key: &QuestionKey, request: Payload) -> Result<Payload, Error> {
        // Output that was written before the question goes before it.
        self.flush().await?;
        let receipt = self.submit(Command::Ask { key: key.clone(), request }).await?;
        let watch = self.engine.watch(vec![receipt.task.id], false);
        loop {
            let task = self.engine.read_when_back(|| self.engine.any_task(receipt.task.id)).await?.ok_or(Reject::NotFound)?;
            // The answer is for the attempt that runs now.
            if task.attempt != self.attempt {
                return Err(Reject::Stale(self.attempt).into());
            }
            if let Some(answer) = task.questions.get(key).and_then(|input| input.answer.clone()) {
                return Ok(answer);
            }
            if task.ended.is_some() || self.is_stopped() {
                return Err(Reject::Ended.into());
            }
            tokio::select! {
                _ = watch.changed() => {}
                () = self.stopped() => {}
            }
        }
    }

    /// Sends a note to the caller of an open call; it is lost if nobody listens or the caller reads too slowly.
    pub fn note(&self, note: CallNote) {
        if let Some(notes) = &self.notes {
            let _ = notes.try_send(note);
        }
    }

    /// Waits until the run, once started, has ended or become a task.
    pub async fn settled(&self) -> Phase {
        self.settled.wait().await;
        self.phase()
    }

    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn settle(&self, phase: Phase) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
        drop(self.counted.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.settled.turn_on();
    }

    /// Promotes the call: makes a task of the run, if it is still loose. A run that has ended stays ended.
    ///
    /// # Errors
    /// When a limit is reached or nothing can be stored.
    pub async fn promote(self: &Arc<Self>) -> Result<Phase, Error> {
        let phase = self.phase();
        if matches!(phase, Phase::Loose) {
            // Spawned, so that a caller that goes away cannot leave a task behind that has no run.
            let run = self.clone();
            let promoted = self.engine.0.runtime.spawn(async move { run.become_task().await });
            return promoted.await.map_err(|_| self.engine.unavailable())?;
        }
        Ok(phase)
    }

    async fn become_task(self: Arc<Self>) -> Result<Phase, Error> {
        let _sending = self.send_lock.lock().await;
        let phase = self.phase();
        if !matches!(phase, Phase::Loose) {
            return Ok(phase);
        }
        let taken = self.take_output()?;
        let status_report = self.output_buffer.lock().status_report.take();
        let now = self.engine.0.clock.now();
        let new = NewTask {
            continuation: self.continuation().to_payload(),
            spent_ms: u64::try_from(now.since(self.began).as_millis()).unwrap_or(u64::MAX),
            chunks: taken.chunks.clone(),
            status_report: status_report.clone(),
            checkpoint: taken.checkpoint.clone(),
            ..NewTask::new(self.spec.clone(), self.arguments.clone(), self.engine.epoch())
        };
        let id = self.id;
        self.engine.0.runs.register(id, self.attempt, self.stop.clone(), &self.spec);
        let made = audit::sent_from(self.sender, self.engine.submit(id, Authority::Engine, Command::Create(new)));
        if let Err(error) = made.await {
            self.engine.0.runs.unregister(id);
            self.give_back(taken);
            if let Some((message, progress)) = status_report {
                self.output_buffer.lock().restore_status(message, progress);
            }
            return Err(error);
        }
        self.settle(Phase::Task(id));
        self.trace.event("task created");
        // A status that was reported while the task was being made goes before any later one.
        let queue_permit = self.engine.0.queue.reserve().await;
        {
            let mut pending = self.output_buffer.lock();
            if let (Some((message, progress)), Ok(queue)) = (pending.become_task(), queue_permit) {
                let (by, command) = (Authority::Attempt(self.attempt), Command::ReportStatus { message, progress });
                queue.send(WriterRequest::Task(TaskRequest::new(id, by, command, true, oneshot::channel().0)));
            }
        }
        self.ensure_sending();
        Ok(Phase::Task(id))
    }

    /// Fails if the work must stop: a stopped call must not become a task that nobody knows of.
    fn check_not_stopped(&self) -> Result<(), Error> {
        if self.is_stopped() { Err(Reject::Ended.into()) } else { Ok(()) }
    }

    /// Submits a command of the run, which is promoted first.
    async fn submit(self: &Arc<Self>, command: Command) -> Result<Receipt, Error> {
        self.check_not_stopped()?;
        match self.promote().await? {
            Phase::Task(id) => self.submit_to(id, command).await,
            Phase::Loose | Phase::Done(_) => Err(Reject::Ended.into()),
        }
    }

    /// Submits a command to the task that this run is.
    async fn submit_to(&self, id: TaskId, command: Command) -> Result<Receipt, Error> {
        if self.stop.is_abandoned() {
            return Err(Reject::Stale(self.attempt).into());
        }
        let event = RunTrace::event_of(&command);
        let submitted = self.engine.submit(id, Authority::Attempt(self.attempt), command).await;
        if let (Some(event), Ok(Receipt { changed: true, .. })) = (event, &submitted) {
            self.trace.event(event);
        }
        submitted
    }

    /// Promotes a run that is about to fail, if it has written something: its output may explain the failure.
    async fn promote_if_written(self: &Arc<Self>) {
        if matches!(self.phase(), Phase::Loose) && !self.is_stopped() && !self.output_buffer.lock().is_empty() {
            // If no task can be made, the caller gets the error without the output.
            let _ = self.promote().await;
        }
    }

    /// Waits until a run that is still loose times out. The deadline of a task is in the store.
    async fn timed_out(&self) -> RpcError {
        let Some(ms) = self.spec.timeout_ms.filter(|_| matches!(self.phase(), Phase::Loose)) else {
            return std::future::pending().await;
        };
        self.engine.0.clock.sleep(Duration::from_millis(ms)).await;
        if !matches!(self.phase(), Phase::Loose) {
            return std::future::pending().await;
        }
        timed_out(&self.spec)
    }

    async fn finish(self: &Arc<Self>, end: RunEnd) {
        let _sending = self.send_lock.lock().await;
        let Phase::Task(id) = self.phase() else {
            let end = match end {
                RunEnd::Outcome(outcome) => {
                    let outcome = if self.spec.output_is_result { self.result_with_output(outcome).await } else { outcome };
                    let outcome = limit_result(outcome, self.engine.limits());
                    operator_log::call_ended(&self.spec, None, self.engine.0.clock.now().since(self.began), &outcome);
                    self.trace.ended(None, &outcome);
                    RunEnd::Outcome(outcome)
                }
                suspended @ RunEnd::Suspended(_) => {
                    self.trace.ended_as("suspended");
                    suspended
                }
            };
            self.settle(Phase::Done(end));
            return;
        };
        let outcome = match end {
            RunEnd::Outcome(outcome) => outcome,
            RunEnd::Suspended(_) => Outcome::Failed(RpcError::internal_error(format!(
                "the tool `{}` asked for another call after it had become a task: it must ask with `ask`",
                self.spec.tool
            ))),
        };
        // If earlier output was lost, nothing can be taken; `unreported_error` below has the reason.
        let mut chunks = self.take_output().unwrap_or_default().chunks;
        if self.spec.output_is_result {
            let unwritten = self.unwritten_result(id, &chunks, &outcome).await;
            chunks.extend(unwritten);
        }
        let outcome = match (self.output_buffer.lock().unreported_error(), outcome) {
            (Some(error), Outcome::Completed { is_error: false, .. }) => {
                let code = if matches!(error, Error::Rejected(_)) { code::LIMIT_REACHED } else { code::UNAVAILABLE };
                Outcome::Failed(RpcError { code, message: error.to_string(), data: None })
            }
            (_, outcome) => outcome,
        };
        match self.submit_to(id, Command::Finish { chunks, outcome }).await {
            Ok(Receipt { task, .. }) => task.outcome.iter().for_each(|outcome| self.trace.ended(Some(id), outcome)),
            // The task was cancelled, timed out or got a later attempt meanwhile: the first end wins.
            Err(Error::Rejected(Reject::Ended | Reject::Stale(_) | Reject::NotFound)) => self.trace.ended_as("stopped"),
            Err(error) => tracing::error!(task = %id, %error, "the end of a task could not be stored"),
        }
    }
}

/// Runs the work to its end: a panic fails it, and if it ignores its stop it is dropped after the grace period.
pub(super) async fn execute(run: Arc<Run>) {
    let Some(work) = run.engine.work().cloned() else { return };
    let ended = AssertUnwindSafe(async { work.run(run.clone()).await }).catch_unwind();
    tokio::pin!(ended);
    let grace = || run.engine.0.clock.sleep(run.engine.0.config.grace);
    let stopped = async {
        run.stopped().await;
        // Another attempt may begin at any moment: this one must not go on.
        if !run.stop.is_abandoned() {
            grace().await;
        }
    };
    let end = tokio::select! {
        biased;
        ended = &mut ended => ended.unwrap_or_else(|panic| {
            let message = format!("the tool `{}` panicked: {}", run.spec.tool, panic_text(&*panic));
            tracing::error!("{message}");
            RunEnd::Outcome(Outcome::Failed(RpcError::internal_error(message)))
        }),
        error = run.timed_out() => {
            // The caller gets the error now; the tool gets its grace period to stop.
            run.promote_if_written().await;
            Box::pin(run.finish(RunEnd::Outcome(Outcome::Failed(error)))).await;
            run.stop();
            tokio::select! {
                _ = ended => {}
                () = grace() => {}
            }
            return;
        }
        () = stopped => {
            if run.stop.is_abandoned() {
                // Another attempt may run: this one ends at once, and changes nothing.
                run.trace.ended_as("abandoned");
                return;
            }
            tracing::warn!(tool = %run.spec.tool, "the tool did not stop in time and was dropped");
            RunEnd::Outcome(Outcome::Cancelled { reason: None })
        }
    };
    // The output may explain an internal error; and if the output is the result, the caller wants it however the work ended.
    if matches!(&end, RunEnd::Outcome(Outcome::Failed(error)) if error.code == code::INTERNAL_ERROR || run.spec.output_is_result) {
        run.promote_if_written().await;
    }
    // Its memory is not kept while the work runs.
    Box::pin(run.finish(end)).await;
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Runs an attempt of a stored task: the first one of a task that was durable before its work, or one after a crash.
pub(super) async fn run_attempt(engine: &Engine, id: TaskId, attempt: Attempt, made: Option<(Arc<Task>, Event)>) -> Result<(), Error> {
    // In memory of its own, which what runs for long does not keep.
    if let Some(run) = Box::pin(prepare_attempt(engine, id, attempt, made)).await? {
        execute(run).await;
    }
    Ok(())
}

/// What an attempt of a stored task begins with; none if it is not wanted any more.
async fn prepare_attempt(
    engine: &Engine,
    id: TaskId,
    attempt: Attempt,
    made: Option<(Arc<Task>, Event)>,
) -> Result<Option<Arc<Run>>, Error> {
    let Some(stop) = engine.0.runs.stop_switch(id, attempt) else { return Ok(None) };
    let (task, created) = match made {
        // It was made a moment ago. Whoever ends it elsewhere wakes this node, and nobody takes it while the lease lasts.
        Some((task, created)) => (task, Some(created)),
        None => (engine.read_when_back(|| engine.any_task(id)).await?.ok_or(Reject::NotFound)?, engine.0.recent.created(id)),
    };
    // Another node may have ended it, or taken it, before this run began.
    if engine.is_shared() && (wants(&task).attempt != Some(attempt) || !engine.runs_epoch(task.epoch)) {
        engine.0.runs.stop_unwanted(engine, &task);
        return Ok(None);
    }
    let created = match created {
        Some(created) => Some(created),
        None => engine.read_when_back(|| engine.event(id, Version(1))).await?,
    };
    let Some(Event::Created { arguments, continuation, .. }) = created else { return Err(Reject::NotFound.into()) };
    let continuation = continuation.and_then(|payload| payload.read().ok()).unwrap_or_default();
    let checkpoint = match task.checkpoint_version {
        None => None,
        Some(version) => match engine.read_when_back(|| engine.event(id, version)).await? {
            Some(Event::Saved { checkpoint }) => Some(checkpoint),
            // Without its checkpoint, the attempt would repeat work that is done.
            _ => return Err(crate::store::Error::corrupt_task(id, "its checkpoint is missing").into()),
        },
    };
    let run = Arc::new(Run {
        id,
        engine: engine.clone(),
        spec: task.spec.clone(),
        arguments,
        continuation: std::sync::Mutex::new(continuation),
        checkpoint,
        attempt,
        was_queued: task.queued_at.is_some(),
        began: engine.0.clock.now(),
        send_lock: Mutex::default(),
        output_buffer: OutputBuffer::for_task(),
        promote_on_output: AtomicBool::new(false),
        has_output: Switch::default(),
        phase: std::sync::Mutex::new(Phase::Task(id)),
        settled: Switch::default(),
        stop,
        notes: engine.note_senders().remove(&id),
        sender: None,
        guard: std::sync::Mutex::default(),
        counted: std::sync::Mutex::default(),
        repeated_blocks: AtomicUsize::new(0),
        trace: RunTrace::begin(engine, &task.spec, attempt),
    });
    // All this took a while: the attempt may not be wanted any more, and the node may have been stopped.
    while !run.is_stopped() && engine.0.cluster.as_ref().is_some_and(|membership| !membership.has_lease()) {
        // If the lease is renewed, nobody has taken the task. If it is lost, the attempt is stopped.
        engine.0.clock.sleep(LEASE_DELAY).await;
    }
    Ok(Some(run).filter(|run| !run.is_stopped()))
}
