//! `tools/call`: the response is the result, a question, or a task.
//!
//! A call runs in memory and becomes a task after `promote_after`. The response is then the task if the caller can handle tasks. Any other
//! caller is held (`hold`) until the result is there or the hold expires. If the client hangs up, the work lingers, and the same call
//! joins it (`waiter`). A call with an idempotency key, or of a tool with `dedupe`, is durable before it runs.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::Deserialize;
use serde_json::Value;
use taskwire_core::{
    Payload, Seq, TaskId,
    task::{Authority, Command, Outcome, Spec, Task},
};
use tokio::sync::mpsc;

use super::{
    Cx, MethodResult, headers,
    json::{Object, complete_result, typed, with_info},
    render,
    request_state::{Binding, RequestState},
    tasks::{answers, fitting, for_task, misfitting},
};
use crate::{
    clock::Sleep,
    engine::{CallNote, Continuation, RunEnd, UnstartedRun},
    followup,
    metrics::Answer,
    protocol::{
        Fault,
        call::{
            self as calls, CallOptions, find_tool,
            hold::{self, Heartbeat, Hold},
            invalid_arguments,
            plan::{Plan, Started},
            wait::{self, CallEra, Settled, Waited, Wake, is_limit},
            waiter::Waiter,
        },
        notes::NoteEncoder,
        params::text,
    },
    tool::{ReadyTool, TaskMode, answer_constraints, check_any_answer, missing_capabilities_of},
    wakeup::Watch,
};

/// How long a client may take to call again with answers.
const STATE_GOOD_FOR: Duration = Duration::from_secs(3600);
/// How many notes wait for a client to read; more are dropped, the newest first.
const NOTES_MAX: usize = 256;

/// How a call waits for its result.
#[derive(Debug, Clone, Copy, Default)]
struct WaitPlan {
    /// After which time the response is the task; never if absent.
    promote_delay: Option<Duration>,
    /// After which time a held call becomes a task that its caller does not know yet.
    hidden_promote_delay: Duration,
    /// Whether the response is the task as soon as there is output.
    promote_on_output: bool,
    /// For a caller without tasks.
    hold: Option<Hold>,
    heartbeats: bool,
}

pub(super) async fn call(cx: &Cx<'_>) -> Result<MethodResult, Fault> {
    let name = text(cx.params.name, "name")?;
    let name = &*name;
    cx.authorize("tools/call", Some(name))?;
    let tool = find_tool(cx.context, name)?;
    cx.context.engine.metrics().begin_call(&cx.counted, name);
    cx.span.calls(name);
    if tool.0.policy.task == TaskMode::Required {
        cx.needs_tasks()?;
    }
    let (arguments, request) = calls::arguments(&tool, cx.params.arguments)?;
    if let Some(headers) = &cx.headers {
        headers::check_arguments(headers, &tool, &arguments)?;
    }
    let binding = Binding { secret: cx.context.engine.secret(), caller: cx.caller, method: "tools/call", name, arguments: &arguments };
    let (resumed, continued) = read_request_state(cx, &binding)?;
    let is_followup = hold::is_followup(cx.context, &tool);
    let wait = WaitPlan {
        hold: if cx.meta.tasks { None } else { Hold::begin(cx.context, &tool, cx.meta.accepts, cx.out.token_expires()) },
        // The follow-up tools send their own heartbeats.
        heartbeats: cx.context.config.followups && !cx.meta.tasks && !is_followup,
        ..WaitPlan::default()
    };
    if let Some(id) = continued {
        return resume_with_answers(cx, &binding, id, resumed, wait).await;
    }
    if let Some(misfit) = invalid_arguments(&tool, &arguments) {
        cx.counted.answered(Answer::Invalid);
        return Ok(outcome_result(cx, &misfit.into_outcome())?.into());
    }
    let mode = if cx.meta.tasks { tool.0.policy.task } else { TaskMode::Never };
    let idempotency_key = cx.meta.idempotency_key.as_deref();
    let wanted = CallOptions { caller: cx.caller, accepts: cx.meta.accepts, idempotency_key, trace: cx.span.context() };
    let spec = Spec { hidden: mode == TaskMode::Never, ..calls::spec(cx.context, &tool, &wanted)? };
    let (mut plan, waiter) = Plan::with_waiter(cx.context, spec, &tool, (&arguments, request), wait.hold, (cx.id, cx.out))?;
    plan.continuation = resumed;
    let mut forwarder = NoteForwarder::new(cx, wait.promoting(cx, &tool, mode));
    let must_be_task = forwarder.wait.promote_delay == Some(Duration::ZERO);
    let done = match plan.start(must_be_task, Some(&waiter), &mut forwarder).await? {
        Started::Task { task, .. } if must_be_task => Ok(handle(cx, &task, waiter)),
        Started::Task { task, joined } => wait_for_task(cx, &binding, task.id, joined, forwarder, waiter).await,
        Started::Run(unstarted) => run(cx, &binding, (&plan, waiter), unstarted, forwarder).await,
    };
    if is_followup && done.is_ok() {
        cx.context.calls.followed_up(cx.context, cx.caller, &arguments).await;
    }
    done
}

impl WaitPlan {
    /// Adds when a call of this tool becomes a task, as `mode` says.
    fn promoting(self, cx: &Cx<'_>, tool: &ReadyTool, mode: TaskMode) -> Self {
        let hidden_promote_delay = tool.0.policy.promote_after.unwrap_or(cx.context.config.promote_after);
        let promote_delay = match mode {
            TaskMode::Never => None,
            TaskMode::Auto => Some(hidden_promote_delay),
            TaskMode::Always | TaskMode::Required => Some(Duration::ZERO),
        };
        // A caller that reads partials gets the task with the first output, not only after the delay.
        let promote_on_output = promote_delay.is_some() && cx.meta.partials && tool.0.policy.streams;
        Self { promote_delay, hidden_promote_delay, promote_on_output, ..self }
    }
}

/// Runs the call in memory until it ended, became a task, or its hold expired.
async fn run(
    cx: &Cx<'_>,
    binding: &Binding<'_>,
    (plan, waiter): (&Plan, Waiter),
    mut unstarted: UnstartedRun,
    mut forwarder: NoteForwarder<'_, '_>,
) -> Result<MethodResult, Fault> {
    let wait = forwarder.wait;
    forwarder.set_task(unstarted.run().id(), false).await;
    if wait.promote_on_output {
        unstarted.run().promote_on_output();
    }
    if wait.promote_delay.is_some() || wait.hold.is_some() {
        forwarder.due_after = Some(wait.promote_delay.unwrap_or(wait.hidden_promote_delay));
    }
    let settled = wait::run(cx.context, &mut unstarted, Some(&waiter), wait.hold, &mut forwarder).await?;
    forwarder.forward_rest().await;
    match settled {
        Settled::Ended { end: RunEnd::Outcome(outcome), at_once } => {
            cx.counted.answered(Answer::Immediate);
            let result = match hold::loose_failure_result(cx.context, &plan.spec, &outcome) {
                Some(result) => Ok(complete_result(&result, cx.context)),
                None => outcome_result(cx, &outcome),
            };
            // A client that is answered at once cannot have hung up.
            let on_sent = (!at_once && result.is_ok()).then(|| waiter.clone().on_response_sent(true));
            if on_sent.is_none() {
                waiter.responded(true);
            }
            Ok(MethodResult { result: result?.end(), on_sent })
        }
        Settled::Ended { end: RunEnd::Suspended(round), .. } => match ask_round(cx, binding, &round) {
            // A caller that cannot be asked to call again is asked by a task, and answers with a follow-up tool.
            Err(fault) if wait.hold.is_some_and(|hold| !hold.can_ask()) => {
                let id = cx.context.engine.new_id();
                match plan.create(id, Some(&waiter), forwarder.open_notes(id)).await {
                    Ok(task) => wait_for_task(cx, binding, task.id, false, forwarder, waiter).await,
                    Err(error) if is_limit(&error) => Err(fault),
                    Err(error) => Err(error.into()),
                }
            }
            again => Ok(again?.into()),
        },
        Settled::Task(task) if wait.promote_delay.is_some() => Ok(handle(cx, &task, waiter)),
        Settled::Task(task) => wait_for_task(cx, binding, task.id, false, forwarder, waiter).await,
        Settled::TaskLimit(result) => {
            cx.counted.answered(Answer::Held);
            Ok(complete_result(&result, cx.context).into())
        }
        Settled::Gone => Err(Fault::internal("nobody waits for the call")),
    }
}

/// Waits for a task that its caller does not know, or not yet; `joined` if it is that of an earlier call.
async fn wait_for_task(
    cx: &Cx<'_>,
    binding: &Binding<'_>,
    id: TaskId,
    joined: bool,
    mut forwarder: NoteForwarder<'_, '_>,
    waiter: Waiter,
) -> Result<MethodResult, Fault> {
    forwarder.set_task(id, joined).await;
    (forwarder.due_after, forwarder.due) = (forwarder.wait.promote_delay, None);
    let waited = wait::follow(cx.context, id, &waiter, forwarder.wait.hold, &mut forwarder).await;
    forwarder.forward_rest().await;
    match waited? {
        Waited::Ended(task) => {
            cx.counted.answered(Answer::Held);
            ended_task_result(cx, &task, waiter).await
        }
        Waited::Handle(task) => Ok(handle(cx, &task, waiter)),
        Waited::Questions(task) => {
            let questions = task.open_questions().map(|(key, request)| (key.as_str(), request));
            let result = input_required(cx, binding, questions, RequestState::Task(id)).end();
            Ok(MethodResult { result, on_sent: Some(waiter.on_response_sent(false)) })
        }
        Waited::HoldExpired(result) => {
            cx.counted.answered(Answer::Held);
            Ok(MethodResult { result: complete_result(&result, cx.context).end(), on_sent: Some(waiter.on_response_sent(false)) })
        }
        Waited::Gone => Err(Fault::internal("nobody waits for the call")),
    }
}

/// Whether a result leaves out output that can be read from its task.
fn is_cut(task: &Task, outcome: &Outcome) -> bool {
    let uri = followup::resource::uri(task.id);
    matches!(outcome, Outcome::Completed { result, .. } if result.as_str().contains(&uri))
}

async fn ended_task_result(cx: &Cx<'_>, task: &Task, waiter: Waiter) -> Result<MethodResult, Fault> {
    let ended = match (hold::failure_result(cx.context, task).await, &task.outcome) {
        (Some(result), _) => Ok(complete_result(&waiter.with_joined_text(result), cx.context)),
        (None, Some(Outcome::Completed { result, .. })) => Ok(complete_result(&waiter.with_joined_text(result.clone()), cx.context)),
        (None, Some(outcome)) => outcome_result(cx, outcome),
        (None, None) => Err(Fault::internal("the task has no outcome")),
    };
    match ended {
        Ok(object) => Ok(MethodResult { result: object.end(), on_sent: Some(waiter.on_response_sent(true)) }),
        Err(fault) => {
            waiter.responded(true);
            Err(fault)
        }
    }
}

/// The caller answers what a task asks, and knows the task only by `requestState`.
async fn resume_with_answers(
    cx: &Cx<'_>,
    binding: &Binding<'_>,
    id: TaskId,
    resumed: Continuation,
    wait: WaitPlan,
) -> Result<MethodResult, Fault> {
    let engine = &cx.context.engine;
    let task = engine.require_task(cx.caller, id).await?;
    let answers = for_task(&task, resumed.answers)?;
    // A task with an idempotency key needs nobody to wait for it.
    let waiter = Waiter::resume(cx.context, None, &task).await;
    if task.spec.idempotency_key.is_some() {
        waiter.clone().responded(false);
    }
    if let Err(error) = engine.submit(id, Authority::Caller(cx.caller.clone()), Command::Answer(answers)).await {
        waiter.responded(false);
        return Err(error.into());
    }
    wait_for_task(cx, binding, id, wait.hold.is_some(), NoteForwarder::new(cx, wait), waiter).await
}

/// The task as the result. If it does not reach the client, the task lingers.
fn handle(cx: &Cx<'_>, task: &Task, waiter: Waiter) -> MethodResult {
    cx.counted.answered(Answer::Task);
    let object = with_info(typed("task"), cx.context);
    let now = cx.context.engine.clock().now();
    let result = render::task(object, task, now, cx.context.config.poll_interval).end();
    MethodResult { result, on_sent: Some(waiter.on_response_sent(false)) }
}

fn outcome_result(cx: &Cx<'_>, outcome: &Outcome) -> Result<Object, Fault> {
    match outcome {
        Outcome::Completed { result, .. } => Ok(complete_result(result, cx.context)),
        Outcome::Failed(error) => Err(error.clone().into()),
        Outcome::Cancelled { reason } => Err(Fault::internal(reason.as_deref().unwrap_or("the call was cancelled"))),
    }
}

/// Asks what a suspended run asks.
fn ask_round(cx: &Cx<'_>, binding: &Binding<'_>, round: &Payload) -> Result<Object, Fault> {
    #[derive(Deserialize)]
    struct Round {
        questions: BTreeMap<String, Payload>,
        state: Option<Value>,
    }
    let round: Round = round.read()?;
    ask_to_call_again(cx, binding, &round.questions, round.state)
}

/// Asks the caller to call again, if it accepts the questions.
pub(super) fn ask_to_call_again(
    cx: &Cx<'_>,
    binding: &Binding<'_>,
    questions: &BTreeMap<String, Payload>,
    state: Option<Value>,
) -> Result<Object, Fault> {
    if let Some(lacking) = questions.values().find_map(|question| missing_capabilities_of(question, cx.meta.accepts)) {
        return Err(Fault::missing_capability(&lacking));
    }
    let carried = RequestState::Round {
        questions: questions.iter().map(|(key, question)| (key.clone(), answer_constraints(question))).collect(),
        state,
    };
    let questions = questions.iter().map(|(key, question)| (key.as_str(), question));
    Ok(input_required(cx, binding, questions, carried))
}

fn input_required<'a>(
    cx: &Cx<'_>,
    binding: &Binding<'_>,
    questions: impl Iterator<Item = (&'a str, &'a Payload)>,
    carried: RequestState,
) -> Object {
    cx.counted.answered(Answer::Asked);
    let object = with_info(typed("input_required"), cx.context).raw("inputRequests", &render::requests(questions));
    let until = cx.context.engine.clock().now().after(STATE_GOOD_FOR);
    object.put("requestState", &binding.seal(carried, until))
}

/// What a caller that was asked to call again sends: answers, state, and the task if there is one. Here the answers of a round are
/// checked against its questions; those of a task are checked with the task.
pub(super) fn read_request_state(cx: &Cx<'_>, binding: &Binding<'_>) -> Result<(Continuation, Option<TaskId>), Fault> {
    let responses = cx.params.input_responses.map(answers).transpose()?.unwrap_or_default();
    if cx.params.request_state.is_none() {
        // Nobody knows what was asked. A tool may take the answers if they are well-formed.
        for (key, answer) in &responses {
            check_any_answer(answer).map_err(|why| misfitting(key, &why))?;
        }
        return Ok((Continuation { answers: responses, state: None }, None));
    }
    match binding.open(&text(cx.params.request_state, "requestState")?, cx.context.engine.clock().now())? {
        RequestState::Task(id) => Ok((Continuation { answers: responses, state: None }, Some(id))),
        RequestState::Round { questions, state } => {
            let responses = fitting(responses, |key| questions.get(key))?;
            Ok((Continuation { answers: responses, state: state.map(Into::into) }, None))
        }
    }
}

/// Forwards notes to the caller of an open call. A note that the client does not read in time is dropped.
struct NoteForwarder<'a, 'c> {
    cx: &'a Cx<'c>,
    wait: WaitPlan,
    notes: Option<mpsc::Receiver<CallNote>>,
    encoder: NoteEncoder,
    heartbeat: Option<Heartbeat>,
    /// The task that the call is, or may become.
    task: Option<TaskId>,
    /// Set if another call gets the notes: progress is then read from the task.
    progress_watch: Option<Watch<TaskId>>,
    /// How long the call waits, from when it is first polled.
    due_after: Option<Duration>,
    due: Option<Sleep>,
}

impl CallEra for NoteForwarder<'_, '_> {
    fn open_notes(&mut self, _id: TaskId) -> Option<mpsc::Sender<CallNote>> {
        // A call that is a task at once is answered before there is any.
        if !self.encoder.wants_any() || self.wait.promote_delay == Some(Duration::ZERO) {
            return None;
        }
        let (sender, notes) = mpsc::channel(NOTES_MAX);
        self.notes = Some(notes);
        Some(sender)
    }

    async fn meanwhile(&mut self) -> Result<Wake, Fault> {
        if let Some(span) = self.due_after.take() {
            self.due = Some(self.cx.context.engine.clock().sleep(span));
        }
        loop {
            tokio::select! {
                biased;
                note = next_note(&mut self.notes) => match note {
                    Some(note) => self.forward(&note),
                    None => self.notes = None,
                },
                () = changed(self.progress_watch.as_ref()) => self.send_stored_progress().await,
                () = hold::heartbeat_due(&mut self.heartbeat) => self.send_heartbeat().await,
                () = passed(&mut self.due) => {
                    self.due = None;
                    return Ok(Wake::Due);
                }
            }
        }
    }

    fn wants_output(&self) -> bool {
        self.wait.promote_on_output
    }

    async fn respond_early(&mut self, task: &Arc<Task>, due: bool) -> Result<Option<Waited>, Fault> {
        let WaitPlan { promote_delay, promote_on_output: eager, hold, .. } = self.wait;
        if let Some(outcome) = &task.outcome {
            // A caller that reads partials gets the task if the result contains only a part of the output.
            return Ok((eager && is_cut(task, outcome)).then(|| Waited::Handle(task.clone())));
        }
        let asks = task.asked_at.is_some();
        if due || (promote_delay.is_some() && asks) || (eager && task.output.next_seq > Seq(0)) {
            return Ok(Some(Waited::Handle(task.clone())));
        }
        Ok((asks && !hold.is_some_and(|hold| hold.has_unsupported_question(task))).then(|| Waited::Questions(task.clone())))
    }
}

impl<'a, 'c> NoteForwarder<'a, 'c> {
    fn new(cx: &'a Cx<'c>, wait: WaitPlan) -> Self {
        let wanted = NoteEncoder::new(cx.meta.progress_token.clone(), cx.meta.log_level);
        let clock = cx.context.engine.clock();
        let beat = (wait.heartbeats && wanted.progress_token.is_some())
            .then(|| Heartbeat::new(clock, clock.now(), clock.now(), f64::NEG_INFINITY));
        Self { cx, wait, notes: None, encoder: wanted, heartbeat: beat, task: None, progress_watch: None, due_after: None, due: None }
    }

    /// Names the task; `reads_progress` if another call gets its notes.
    async fn set_task(&mut self, id: TaskId, reads_progress: bool) {
        self.task = Some(id);
        if reads_progress && self.encoder.progress_token.is_some() {
            self.progress_watch = Some(self.cx.context.engine.watch(vec![id], false));
            self.send_stored_progress().await;
        }
    }

    /// Forwards the notes that are there, because they go before the response.
    async fn forward_rest(&mut self) {
        while let Some(Ok(note)) = self.notes.as_mut().map(mpsc::Receiver::try_recv) {
            self.forward(&note);
        }
        if self.progress_watch.is_some() {
            self.send_stored_progress().await;
        }
    }

    fn forward(&mut self, note: &CallNote) {
        let message = self.encoder.message(note, None);
        self.send(message, matches!(note, CallNote::Progress { .. }));
    }

    /// Sends a message, if there is one; progress postpones the next heartbeat.
    fn send(&mut self, message: Option<Vec<u8>>, progress: bool) {
        let Some(message) = message else { return };
        self.cx.out.try_send(&message);
        if let Some(beat) = self.heartbeat.as_mut().filter(|_| progress) {
            beat.postpone();
        }
    }

    /// The task as it is now; none while the run is loose.
    async fn current_task(&mut self) -> Option<Arc<Task>> {
        self.cx.context.engine.task(self.cx.caller, self.task?).await.ok()?
    }

    async fn send_stored_progress(&mut self) {
        if let Some(task) = self.current_task().await
            && let Some(progress) = task.progress
        {
            let message = self.encoder.progress(progress, task.message.as_deref(), None);
            self.send(message, true);
        }
    }

    async fn send_heartbeat(&mut self) {
        let task = self.current_task().await;
        let message = self.heartbeat.as_mut().and_then(|beat| beat.message(&mut self.encoder, task.as_deref()));
        self.send(message, true);
    }
}

/// The next note; waits for ever if none can come.
async fn next_note(notes: &mut Option<mpsc::Receiver<CallNote>>) -> Option<CallNote> {
    match notes {
        Some(notes) => notes.recv().await,
        None => std::future::pending().await,
    }
}

/// Waits until the task changes, if it is watched.
async fn changed(watch: Option<&Watch<TaskId>>) {
    match watch {
        Some(watch) => drop(watch.changed().await),
        None => std::future::pending().await,
    }
}

/// Waits until a sleep is over; for ever without one.
async fn passed(sleep: &mut Option<Sleep>) {
    match sleep {
        Some(sleep) => sleep.as_mut().await,
        None => std::future::pending().await,
    }
}
