//! One attempt at a task's work — or work that may yet become a task.
//!
//! A loose run lives in memory. When it must be durable (its caller has waited long enough, it asks something, it saves
//! a checkpoint, it has written a lot) it becomes a task without being restarted: what it wrote so far goes into the
//! task's first commit.

mod output;

use std::{
    any::Any,
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
    task::{Authority, Command, Event, NewTask, Outcome, Progress, Reject, RpcError, Spec, check_status, limit_result, timed_out},
    wire::code,
};
use tokio::sync::{Mutex, mpsc, oneshot};

use super::{
    Engine, Error, Receipt, TaskRequest, WriterRequest,
    exchange::{CallNote, Continuation, Phase, RunEnd},
    operator_log,
    output_buffer::OutputBuffer,
    switch::Switch,
};

/// One run of one tool.
pub struct Run {
    /// The task that it is, or would be.
    id: TaskId,
    engine: Engine,
    spec: Arc<Spec>,
    arguments: Payload,
    continuation: std::sync::Mutex<Continuation>,
    checkpoint: Option<Payload>,
    attempt: Attempt,
    began: Timestamp,
    /// Held by whoever sends something on behalf of the work, until it is durable.
    send_lock: Mutex<()>,
    output_buffer: OutputBuffer,
    /// Whether it becomes a task with its first output.
    promote_on_output: AtomicBool,
    /// On when there is output.
    has_output: Switch,
    phase: std::sync::Mutex<Phase>,
    /// On when the run is no longer loose.
    settled: Switch,
    stop: Arc<Switch>,
    notes: Option<mpsc::Sender<CallNote>>,
    /// Dropped with the run.
    guard: std::sync::Mutex<Option<Box<dyn Any + Send>>>,
    /// How many blocks at the beginning of the result only repeat what was written.
    repeated_blocks: AtomicUsize,
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
            began: engine.0.clock.now(),
            engine,
            spec,
            arguments: request,
            continuation: std::sync::Mutex::new(resumed),
            checkpoint: None,
            attempt: Attempt(1),
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

    /// Keeps something for as long as the work goes on.
    pub(crate) fn keep_until_end(&self, kept: Box<dyn Any + Send>) {
        *self.guard.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
    }

    /// Says that so many blocks at the beginning of the result only repeat, or sum up, what was written.
    pub(crate) fn set_repeated_blocks(&self, blocks: usize) {
        self.repeated_blocks.store(blocks, Ordering::Relaxed);
    }

    /// The task that it is, or would be.
    #[must_use]
    pub fn id(&self) -> TaskId {
        self.id
    }

    /// What is fixed about the work.
    #[must_use]
    pub fn spec(&self) -> &Arc<Spec> {
        &self.spec
    }

    /// The arguments.
    #[must_use]
    pub fn arguments(&self) -> &Payload {
        &self.arguments
    }

    /// What the caller brought along.
    #[must_use]
    pub fn continuation(&self) -> Continuation {
        self.continuation.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces what the caller brought along: its answers to a further round.
    pub fn set_continuation(&self, resumed: Continuation) {
        *self.continuation.lock().unwrap_or_else(PoisonError::into_inner) = resumed;
    }

    /// What the last attempt saved.
    #[must_use]
    pub fn checkpoint(&self) -> Option<&Payload> {
        self.checkpoint.as_ref()
    }

    /// Which run of the work this is.
    #[must_use]
    pub fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// The engine that runs it.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Whether the work must stop.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stop.is_on()
    }

    /// Waits until the work must stop.
    pub async fn stopped(&self) {
        self.stop.wait().await;
    }

    /// Tells the work to stop.
    pub(super) fn stop(&self) {
        self.stop.turn_on();
    }

    /// Stops the work, or cancels the task that it became.
    pub(crate) fn cancel(&self, reason: &'static str) {
        match self.phase() {
            // On its way to a task, it will find that it is stopped.
            Phase::Loose => self.stop(),
            Phase::Task(id) => self.engine.cancel_soon(self.spec.caller.clone(), id, reason),
            Phase::Done(_) => {}
        }
    }

    /// Says how the work is getting on.
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

    /// Asks the caller and waits for the answer. The same question under the same key is asked once, also across
    /// attempts.
    ///
    /// # Errors
    /// When the key was used for another question, a limit is reached, the work must stop, or nothing can be stored.
    pub async fn ask(self: &Arc<Self>, key: &QuestionKey, request: Payload) -> Result<Payload, Error> {
        // What leads up to a question comes before it.
        self.flush().await?;
        let receipt = self.submit(Command::Ask { key: key.clone(), request }).await?;
        let watch = self.engine.watch(vec![receipt.task.id], false);
        loop {
            let task = self.engine.any_task(receipt.task.id)?.ok_or(Reject::NotFound)?;
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

    /// Tells the caller of an open call; forgotten if nobody listens or the caller reads too slowly.
    pub fn note(&self, note: CallNote) {
        if let Some(notes) = &self.notes {
            let _ = notes.try_send(note);
        }
    }

    /// Waits until it, once started, has ended or become a task.
    pub async fn settled(&self) -> Phase {
        self.settled.wait().await;
        self.phase()
    }

    /// Where the run is.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn settle(&self, phase: Phase) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
        self.settled.turn_on();
    }

    /// Makes the work a task, if it is not one yet. What ended meanwhile stays ended.
    ///
    /// # Errors
    /// When a limit is reached or nothing can be stored.
    pub async fn promote(self: &Arc<Self>) -> Result<Phase, Error> {
        let phase = self.phase();
        if matches!(phase, Phase::Loose) {
            // On its own, so that a caller that goes away cannot leave a task behind that no run belongs to.
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
        let said = self.output_buffer.lock().status_report.take();
        let now = self.engine.0.clock.now();
        let new = NewTask {
            continuation: self.continuation().to_payload(),
            spent_ms: u64::try_from(now.since(self.began).as_millis()).unwrap_or(u64::MAX),
            chunks: taken.chunks.clone(),
            status_report: said.clone(),
            checkpoint: taken.checkpoint.clone(),
            ..NewTask::new(self.spec.clone(), self.arguments.clone(), self.engine.0.epoch)
        };
        let id = self.id;
        self.engine.0.runs.register(id, self.attempt, self.stop.clone(), &self.spec);
        if let Err(error) = self.engine.submit(id, Authority::Engine, Command::Create(new)).await {
            self.engine.0.runs.unregister(id);
            self.give_back(taken);
            if let Some((message, progress)) = said {
                self.output_buffer.lock().restore_status(message, progress);
            }
            return Err(error);
        }
        self.settle(Phase::Task(id));
        // What was said while the task was being made goes before what is said from now on.
        let queue_permit = self.engine.0.queue.reserve().await;
        {
            let mut pending = self.output_buffer.lock();
            if let (Some((message, progress)), Ok(queue)) = (pending.become_task(), queue_permit) {
                let (by, command) = (Authority::Attempt(self.attempt), Command::ReportStatus { message, progress });
                queue.send(WriterRequest::Task(TaskRequest { id, by, command, receipt: oneshot::channel().0 }));
            }
        }
        self.ensure_sending();
        Ok(Phase::Task(id))
    }

    /// Refuses work that must stop; a stopped call must not become a task that nobody knows of.
    fn check_not_stopped(&self) -> Result<(), Error> {
        if self.is_stopped() { Err(Reject::Ended.into()) } else { Ok(()) }
    }

    /// Sends a command of the work, making it a task first.
    async fn submit(self: &Arc<Self>, command: Command) -> Result<Receipt, Error> {
        self.check_not_stopped()?;
        match self.promote().await? {
            Phase::Task(id) => self.engine.submit(id, Authority::Attempt(self.attempt), command).await,
            Phase::Loose | Phase::Done(_) => Err(Reject::Ended.into()),
        }
    }

    /// Makes work that is about to fail a task, if it has written something: that is wanted most of all now.
    async fn promote_if_written(self: &Arc<Self>) {
        if matches!(self.phase(), Phase::Loose) && !self.is_stopped() && !self.output_buffer.lock().is_empty() {
            // Where there is no room for another task, that it failed is all that is told.
            let _ = self.promote().await;
        }
    }

    /// Waits until a run that is still loose has had its time. A task has its deadline in the store instead.
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
                    let outcome = if self.spec.output_is_result { self.result_with_output(outcome) } else { outcome };
                    let outcome = limit_result(outcome, self.engine.limits());
                    operator_log::call_ended(&self.spec, None, self.engine.0.clock.now().since(self.began), &outcome);
                    RunEnd::Outcome(outcome)
                }
                suspended @ RunEnd::Suspended(_) => suspended,
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
        // Nothing is taken any more once it must stop: then there is nothing left to write either.
        let mut chunks = self.take_output().unwrap_or_default().chunks;
        if self.spec.output_is_result {
            chunks.extend(self.unwritten_result(id, &chunks, &outcome));
        }
        let outcome = match (self.output_buffer.lock().unreported_error(), outcome) {
            (Some(error), Outcome::Completed { is_error: false, .. }) => {
                let code = if matches!(error, Error::Rejected(_)) { code::LIMIT_REACHED } else { code::UNAVAILABLE };
                Outcome::Failed(RpcError { code, message: error.to_string(), data: None })
            }
            (_, outcome) => outcome,
        };
        match self.engine.submit(id, Authority::Attempt(self.attempt), Command::Finish { chunks, outcome }).await {
            Ok(_) => {}
            // Cancelled, timed out or taken over meanwhile: the first end wins.
            Err(Error::Rejected(Reject::Ended | Reject::Stale(_) | Reject::NotFound)) => {}
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
        grace().await;
    };
    let end = tokio::select! {
        biased;
        ended = &mut ended => ended.unwrap_or_else(|panic| {
            let message = format!("the tool `{}` panicked: {}", run.spec.tool, panic_text(&*panic));
            tracing::error!("{message}");
            RunEnd::Outcome(Outcome::Failed(RpcError::internal_error(message)))
        }),
        error = run.timed_out() => {
            // The caller learns it now; the tool is stopped like any other.
            run.promote_if_written().await;
            run.finish(RunEnd::Outcome(Outcome::Failed(error))).await;
            run.stop();
            tokio::select! {
                _ = ended => {}
                () = grace() => {}
            }
            return;
        }
        () = stopped => {
            tracing::warn!(tool = %run.spec.tool, "the tool did not stop in time and was dropped");
            RunEnd::Outcome(Outcome::Cancelled { reason: None })
        }
    };
    // Where something went wrong inside, what led up to it is wanted; and whoever asked for the output wants it however the work ended.
    if matches!(&end, RunEnd::Outcome(Outcome::Failed(error)) if error.code == code::INTERNAL_ERROR || run.spec.output_is_result) {
        run.promote_if_written().await;
    }
    run.finish(end).await;
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Runs an attempt of a stored task: the first one of a task that was durable before its work, or one after a crash.
pub(super) async fn run_attempt(engine: &Engine, id: TaskId, attempt: Attempt) -> Result<(), Error> {
    let Some(stop) = engine.0.runs.stop_switch(id, attempt) else { return Ok(()) };
    let reader = engine.reader();
    let task = engine.any_task(id)?.ok_or(Reject::NotFound)?;
    let created = match engine.0.recent.created(id) {
        Some(created) => Some(created),
        None => reader.event(id, Version(1))?,
    };
    let Some(Event::Created { arguments: request, continuation: carried, .. }) = created else { return Err(Reject::NotFound.into()) };
    let resumed = carried.and_then(|carried| carried.read().ok()).unwrap_or_default();
    let checkpoint = match task.checkpoint_version {
        None => None,
        Some(version) => match reader.event(id, version)? {
            Some(Event::Saved { checkpoint }) => Some(checkpoint),
            // To begin anew would be to do again what was done.
            _ => return Err(crate::store::Error::corrupt_task(id, "its checkpoint is missing").into()),
        },
    };
    let run = Run {
        id,
        engine: engine.clone(),
        spec: task.spec.clone(),
        arguments: request,
        continuation: std::sync::Mutex::new(resumed),
        checkpoint,
        attempt,
        began: engine.0.clock.now(),
        send_lock: Mutex::default(),
        output_buffer: OutputBuffer::for_task(),
        promote_on_output: AtomicBool::new(false),
        has_output: Switch::default(),
        phase: std::sync::Mutex::new(Phase::Task(id)),
        settled: Switch::default(),
        stop,
        notes: engine.note_senders().remove(&id),
        guard: std::sync::Mutex::default(),
        repeated_blocks: AtomicUsize::new(0),
    };
    execute(Arc::new(run)).await;
    Ok(())
}
