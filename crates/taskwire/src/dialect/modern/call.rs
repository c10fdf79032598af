//! `tools/call`: the result at once, a question first, or a task.
//!
//! A call is run in memory. It becomes a task when its caller has waited `promote_after`. A caller that can handle tasks is given it
//! then; any other is held until the result is there, or for a while (`held`): then it is told how to come back to it. A
//! caller that hangs up leaves its work running for a while, and the same call joins it (`waiter`). A call that carries an
//! idempotency key, or may share its task with others that are the same, is durable before it runs.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::Deserialize;
use serde_json::Value;
use taskwire_core::{
    Payload, Seq, TaskId,
    task::{Authority, Command, Outcome, Spec, Task},
};
use tokio::sync::mpsc;

use super::{
    Cx, Done, headers,
    json::{Object, complete, typed, with_info},
    sealed::{Binding, Carried},
    tasks::{answers, fitting, for_task, misfitting},
    view,
};
use crate::{
    clock::Sleep,
    dialect::{
        Fault,
        call::{
            self as calls, Wanted, find_tool,
            held::{self, Beat, Hold},
            misfit,
            plan::{Plan, Started},
            wait::{self, CallEra, Settled, Waited, Wake, is_limit},
            waiter::Waiter,
        },
        notes::Notes,
        params::text,
    },
    engine::{End, Held, Note, Resumed},
    feed::Watch,
    followup,
    tool::{ReadyTool, TaskMode, fits_any, gist, payload_lacks},
};

/// How long a client has to come back with answers.
const STATE_GOOD_FOR: Duration = Duration::from_secs(3600);
/// Notes that wait for a client to read; more are dropped, the newest first.
const NOTES_MAX: usize = 256;

/// How a call waits for its result.
#[derive(Debug, Clone, Copy, Default)]
struct Wait {
    /// How long, before its caller is given a task; for ever if absent.
    promote_delay: Option<Duration>,
    /// After which time a call that is held becomes a task, which its caller is not told of yet.
    hidden_promote_delay: Duration,
    /// Whether its caller wants to see the first output rather than wait.
    eager: bool,
    /// How it is held if its caller has no tasks and can get on otherwise.
    hold: Option<Hold>,
    /// Whether its caller is given signs of life.
    beats: bool,
}

pub(super) async fn call(cx: &Cx<'_>) -> Result<Done, Fault> {
    let name = text(cx.params.name, "name")?;
    let name = &*name;
    let tool = find_tool(cx.shared, name)?;
    if tool.0.policy.task == TaskMode::Required {
        cx.needs_tasks()?;
    }
    let (arguments, request) = calls::arguments(&tool, cx.params.arguments)?;
    if let Some(headers) = &cx.headers {
        headers::check_arguments(headers, &tool, &arguments)?;
    }
    let binding = Binding { secret: cx.shared.engine.secret(), caller: cx.caller, method: "tools/call", name, arguments: &arguments };
    let (resumed, continued) = carried(cx, &binding)?;
    let is_followup = held::is_followup(cx.shared, &tool);
    let wait = Wait {
        hold: if cx.meta.tasks { None } else { Hold::begin(cx.shared, &tool, cx.meta.accepts) },
        // The follow-up tools give some themselves.
        beats: cx.shared.config.followups && !cx.meta.tasks && !is_followup,
        ..Wait::default()
    };
    if let Some(id) = continued {
        return go_on(cx, &binding, id, resumed, wait).await;
    }
    if let Some(misfit) = misfit(&tool, &arguments) {
        return Ok(finished(cx, &misfit.into_outcome())?.into());
    }
    let mode = if cx.meta.tasks { tool.0.policy.task } else { TaskMode::Never };
    let wanted = Wanted { caller: cx.caller, accepts: cx.meta.accepts, idempotency_key: cx.meta.idempotency_key.as_deref() };
    let spec = Spec { hidden: mode == TaskMode::Never, ..calls::spec(cx.shared, &tool, &wanted)? };
    let mut plan = Plan::new(cx.shared, spec, &tool, (&arguments, request), wait.hold, (cx.id, cx.out))?;
    plan.resumed = resumed;
    let mut teller = Teller::new(cx, wait.promoting(cx, &tool, mode));
    let must = teller.wait.promote_delay == Some(Duration::ZERO);
    let done = match plan.start(must, &mut teller).await? {
        Started::Task { task, .. } if must => Ok(handle(cx, &task, plan.waiter)),
        Started::Task { task, joined } => follow(cx, &binding, task.id, joined, teller, plan.waiter).await,
        Started::Run(held) => run(cx, &binding, &plan, held, teller).await,
    };
    if is_followup && done.is_ok() {
        cx.shared.calls.followed_up(cx.shared, cx.caller, &arguments);
    }
    done
}

impl Wait {
    /// The same for a call of this tool, which may become a task as `mode` says.
    fn promoting(self, cx: &Cx<'_>, tool: &ReadyTool, mode: TaskMode) -> Self {
        let hidden_promote_delay = tool.0.policy.promote_after.unwrap_or(cx.shared.config.promote_after);
        let promote_delay = match mode {
            TaskMode::Never => None,
            TaskMode::Auto => Some(hidden_promote_delay),
            TaskMode::Always | TaskMode::Required => Some(Duration::ZERO),
        };
        // Who wants to see output while it is produced need not wait for a task to see the first of it.
        let eager = promote_delay.is_some() && cx.meta.partials && tool.0.policy.streams;
        Self { promote_delay, hidden_promote_delay, eager, ..self }
    }
}

/// Runs the call in memory until it ends, becomes a task, or has had its time.
async fn run(cx: &Cx<'_>, binding: &Binding<'_>, plan: &Plan, mut held: Held, mut teller: Teller<'_, '_>) -> Result<Done, Fault> {
    let (wait, waiter) = (teller.wait, plan.waiter.clone());
    teller.hears_of(held.run().id(), false);
    if wait.eager {
        held.run().stream_at_once();
    }
    if wait.promote_delay.is_some() || wait.hold.is_some() {
        teller.due_after = Some(wait.promote_delay.unwrap_or(wait.hidden_promote_delay));
    }
    let settled = wait::run(cx.shared, &mut held, Some(&waiter), wait.hold, &mut teller).await?;
    teller.tell_rest();
    match settled {
        Settled::Ended { end: End::Outcome(outcome), at_once } => {
            let result = match held::failed_at_once(cx.shared, &plan.spec, &outcome) {
                Some(result) => Ok(complete(&result, cx.shared)),
                None => finished(cx, &outcome),
            };
            // Who was answered in the same breath cannot have hung up.
            let answering = (!at_once && result.is_ok()).then(|| waiter.clone().answering(true));
            if answering.is_none() {
                waiter.answered(true);
            }
            Ok(Done { result: result?.end(), sent: answering })
        }
        Settled::Ended { end: End::Suspended(round), .. } => match again(cx, binding, &round) {
            // What its caller cannot be asked by a second call, it is asked as a task: its caller answers with a follow-up tool.
            Err(fault) if wait.hold.is_some_and(|hold| !hold.can_ask()) => match plan.create(teller.notes()).await {
                Ok(task) => follow(cx, binding, task.id, false, teller, waiter).await,
                Err(error) if is_limit(&error) => Err(fault),
                Err(error) => Err(error.into()),
            },
            again => Ok(again?.into()),
        },
        Settled::Task(task) if wait.promote_delay.is_some() => Ok(handle(cx, &task, waiter)),
        Settled::Task(task) => follow(cx, binding, task.id, false, teller, waiter).await,
        Settled::NoRoom(result) => Ok(complete(&result, cx.shared).into()),
        Settled::Gone => Err(Fault::internal("nobody waits for the call")),
    }
}

/// Waits for a task that its caller does not know of, or not yet; `joined` if it is that of an earlier call.
async fn follow(
    cx: &Cx<'_>,
    binding: &Binding<'_>,
    id: TaskId,
    joined: bool,
    mut teller: Teller<'_, '_>,
    waiter: Waiter,
) -> Result<Done, Fault> {
    teller.hears_of(id, joined);
    (teller.due_after, teller.due) = (teller.wait.promote_delay, None);
    let waited = wait::follow(cx.shared, id, &waiter, teller.wait.hold, &mut teller).await;
    teller.tell_rest();
    match waited? {
        Waited::Ended(task) => concluded(cx, &task, waiter),
        Waited::Handle(task) => Ok(handle(cx, &task, waiter)),
        Waited::Questions(task) => {
            let questions = task.open_inputs().map(|(key, request)| (key.as_str(), request));
            let result = input_required(cx, binding, questions, Carried::Task(id)).end();
            Ok(Done { result, sent: Some(waiter.answering(false)) })
        }
        Waited::HoldExpired(result) => Ok(Done { result: complete(&result, cx.shared).end(), sent: Some(waiter.answering(false)) }),
        Waited::Gone => Err(Fault::internal("nobody waits for the call")),
    }
}

/// Whether a result leaves out output that can be read from its task.
fn is_cut(task: &Task, outcome: &Outcome) -> bool {
    let uri = followup::resource::uri(task.id);
    matches!(outcome, Outcome::Completed { result, .. } if result.as_str().contains(&uri))
}

/// The answer of a task that has ended.
fn concluded(cx: &Cx<'_>, task: &Task, waiter: Waiter) -> Result<Done, Fault> {
    let ended = match (held::failed(cx.shared, task), &task.outcome) {
        (Some(result), _) => Ok(complete(&waiter.noting(result), cx.shared)),
        (None, Some(Outcome::Completed { result, .. })) => Ok(complete(&waiter.noting(result.clone()), cx.shared)),
        (None, Some(outcome)) => finished(cx, outcome),
        (None, None) => Err(Fault::internal("the task has no outcome")),
    };
    match ended {
        Ok(object) => Ok(Done { result: object.end(), sent: Some(waiter.answering(true)) }),
        Err(fault) => {
            waiter.answered(true);
            Err(fault)
        }
    }
}

/// The caller came back with answers for a task that it knows only by the state it carried.
async fn go_on(cx: &Cx<'_>, binding: &Binding<'_>, id: TaskId, resumed: Resumed, wait: Wait) -> Result<Done, Fault> {
    let engine = &cx.shared.engine;
    let task = engine.require_task(cx.caller, id)?;
    let answers = for_task(&task, resumed.responses)?;
    // As in the first call. What has a key needs nobody to wait for it.
    let waiter = Waiter::again(cx.shared, None, &task);
    if task.spec.idempotency_key.is_some() {
        waiter.clone().answered(false);
    }
    if let Err(error) = engine.submit(id, Authority::Caller(cx.caller.clone()), Command::Answer(answers)).await {
        waiter.answered(false);
        return Err(error.into());
    }
    follow(cx, binding, id, wait.hold.is_some(), Teller::new(cx, wait), waiter).await
}

/// The handle of a task. If it does not reach its caller, that has left the task.
fn handle(cx: &Cx<'_>, task: &Task, waiter: Waiter) -> Done {
    let object = with_info(typed("task"), cx.shared);
    let now = cx.shared.engine.clock().now();
    let result = view::task(object, task, now, cx.shared.config.poll_interval).end();
    Done { result, sent: Some(waiter.answering(false)) }
}

fn finished(cx: &Cx<'_>, outcome: &Outcome) -> Result<Object, Fault> {
    match outcome {
        Outcome::Completed { result, .. } => Ok(complete(result, cx.shared)),
        Outcome::Failed(error) => Err(error.clone().into()),
        Outcome::Cancelled { reason } => Err(Fault::internal(reason.as_deref().unwrap_or("the call was cancelled"))),
    }
}

/// A round that a tool asks for, as the engine carried it.
fn again(cx: &Cx<'_>, binding: &Binding<'_>, round: &Payload) -> Result<Object, Fault> {
    #[derive(Deserialize)]
    struct Round {
        questions: BTreeMap<String, Payload>,
        state: Option<Value>,
    }
    let round: Round = round.read()?;
    ask_again(cx, binding, &round.questions, round.state)
}

/// Asks the caller to call again, if it can answer what is asked.
pub(super) fn ask_again(
    cx: &Cx<'_>,
    binding: &Binding<'_>,
    questions: &BTreeMap<String, Payload>,
    state: Option<Value>,
) -> Result<Object, Fault> {
    if let Some(lacking) = questions.values().find_map(|question| payload_lacks(question, cx.meta.accepts)) {
        return Err(Fault::missing_capability(&lacking));
    }
    let carried = Carried::Round { questions: questions.iter().map(|(key, question)| (key.clone(), gist(question))).collect(), state };
    let questions = questions.iter().map(|(key, question)| (key.as_str(), question));
    Ok(input_required(cx, binding, questions, carried))
}

/// Asks the caller to call again with answers.
fn input_required<'a>(
    cx: &Cx<'_>,
    binding: &Binding<'_>,
    questions: impl Iterator<Item = (&'a str, &'a Payload)>,
    carried: Carried,
) -> Object {
    let object = with_info(typed("input_required"), cx.shared).raw("inputRequests", &view::requests(questions));
    let until = cx.shared.engine.clock().now().after(STATE_GOOD_FOR);
    object.put("requestState", &binding.seal(carried, until))
}

/// What the caller brings along because it was asked to call again: answers and state, and the task that they are for
/// if there is one. What was asked in a round is held against its answers here; a task knows itself what it asked.
pub(super) fn carried(cx: &Cx<'_>, binding: &Binding<'_>) -> Result<(Resumed, Option<TaskId>), Fault> {
    let responses = cx.params.input_responses.map(answers).transpose()?.unwrap_or_default();
    if cx.params.request_state.is_none() {
        // It brings answers to what it was never asked, for all we know: a tool may take them, if they are any.
        for (key, answer) in &responses {
            fits_any(answer).map_err(|why| misfitting(key, &why))?;
        }
        return Ok((Resumed { responses, state: None }, None));
    }
    match binding.open(&text(cx.params.request_state, "requestState")?, cx.shared.engine.clock().now())? {
        Carried::Task(id) => Ok((Resumed { responses, state: None }, Some(id))),
        Carried::Round { questions, state } => {
            let responses = fitting(responses, |key| questions.get(key))?;
            Ok((Resumed { responses, state: state.map(Into::into) }, None))
        }
    }
}

/// Passes notes on to the caller of an open call. A note that the caller does not read in time is dropped.
struct Teller<'a, 'c> {
    cx: &'a Cx<'c>,
    wait: Wait,
    notes: Option<mpsc::Receiver<Note>>,
    wanted: Notes,
    beat: Option<Beat>,
    /// The task that the call is, or may become.
    task: Option<TaskId>,
    /// Wakes where the notes go to another call, so that progress is read from the task.
    reads: Option<Watch<TaskId>>,
    /// After which time, from when it is first waited for, the call has waited long enough.
    due_after: Option<Duration>,
    due: Option<Sleep>,
}

impl CallEra for Teller<'_, '_> {
    fn notes(&mut self) -> Option<mpsc::Sender<Note>> {
        if !self.wanted.wanted() {
            return None;
        }
        let (sender, notes) = mpsc::channel(NOTES_MAX);
        self.notes = Some(notes);
        Some(sender)
    }

    async fn meanwhile(&mut self) -> Result<Wake, Fault> {
        if let Some(span) = self.due_after.take() {
            self.due = Some(self.cx.shared.engine.clock().sleep(span));
        }
        loop {
            tokio::select! {
                biased;
                note = next(&mut self.notes) => match note {
                    Some(note) => self.tell(&note),
                    None => self.notes = None,
                },
                () = changed(self.reads.as_ref()) => self.tell_read(),
                () = held::due(&mut self.beat) => self.give_sign(),
                () = passed(&mut self.due) => {
                    self.due = None;
                    return Ok(Wake::Due);
                }
            }
        }
    }

    fn wants_output(&self) -> bool {
        self.wait.eager
    }

    fn answer_early(&self, task: &Arc<Task>, due: bool) -> Result<Option<Waited>, Fault> {
        let Wait { promote_delay, eager, hold, .. } = self.wait;
        if let Some(outcome) = &task.outcome {
            // Who wants to see all of the output gets the task where the result has only a part of it.
            return Ok((eager && is_cut(task, outcome)).then(|| Waited::Handle(task.clone())));
        }
        let asks = task.asked_at.is_some();
        if due || (promote_delay.is_some() && asks) || (eager && self.cx.shared.engine.span(task.id)?.end > Seq(0)) {
            return Ok(Some(Waited::Handle(task.clone())));
        }
        Ok((asks && !hold.is_some_and(|hold| hold.asks(task))).then(|| Waited::Questions(task.clone())))
    }
}

impl<'a, 'c> Teller<'a, 'c> {
    fn new(cx: &'a Cx<'c>, wait: Wait) -> Self {
        let wanted = Notes::new(cx.meta.progress_token.clone(), cx.meta.log_level);
        let clock = cx.shared.engine.clock();
        let beat = (wait.beats && wanted.token.is_some()).then(|| Beat::new(clock, clock.now(), clock.now(), f64::NEG_INFINITY));
        Self { cx, wait, notes: None, wanted, beat, task: None, reads: None, due_after: None, due: None }
    }

    /// Names the task, which `reads` if its notes go elsewhere.
    fn hears_of(&mut self, id: TaskId, reads: bool) {
        self.task = Some(id);
        if reads && self.wanted.token.is_some() {
            self.reads = Some(self.cx.shared.engine.watch(vec![id], false));
            self.tell_read();
        }
    }

    /// Passes on what has been sent so far: it goes before the response.
    fn tell_rest(&mut self) {
        while let Some(Ok(note)) = self.notes.as_mut().map(mpsc::Receiver::try_recv) {
            self.tell(&note);
        }
        if self.reads.is_some() {
            self.tell_read();
        }
    }

    fn tell(&mut self, note: &Note) {
        let message = self.wanted.message(note, None);
        self.send(message, matches!(note, Note::Progress { .. }));
    }

    /// Sends a message, if there is one; after progress the next sign of life has time.
    fn send(&mut self, message: Option<Vec<u8>>, progress: bool) {
        let Some(message) = message else { return };
        self.cx.out.try_send(&message);
        if let Some(beat) = self.beat.as_mut().filter(|_| progress) {
            beat.put_off();
        }
    }

    /// The task as it is now, if it is one.
    fn shown(&self) -> Option<Arc<Task>> {
        self.cx.shared.engine.task(self.cx.caller, self.task?).ok()?
    }

    /// Tells how far the task is.
    fn tell_read(&mut self) {
        if let Some(task) = self.shown()
            && let Some(progress) = task.progress
        {
            let message = self.wanted.progress(progress, task.message.as_deref(), None);
            self.send(message, true);
        }
    }

    fn give_sign(&mut self) {
        let task = self.shown();
        let message = self.beat.as_mut().and_then(|beat| beat.message(&mut self.wanted, task.as_deref()));
        self.send(message, true);
    }
}

/// The next note; waits for ever if none can come.
async fn next(notes: &mut Option<mpsc::Receiver<Note>>) -> Option<Note> {
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

/// Waits until a time has passed; for ever if there is none.
async fn passed(sleep: &mut Option<Sleep>) {
    match sleep {
        Some(sleep) => sleep.as_mut().await,
        None => std::future::pending().await,
    }
}
