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
    task::{Authority, Command, Outcome, Reject, Spec, Task},
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
    dialect::{
        Fault,
        called::{self, Wanted, find_tool, misfit, ms},
        held::{self, Beat, Hold, Settled},
        notes::Notes,
        params::text,
        waiter::Waiter,
    },
    engine::{self, End, Note, Phase, Resumed, Run},
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
    patience: Option<Duration>,
    /// After which time a call that is held becomes a task, which its caller is not told of yet.
    promote_after: Duration,
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
    let (arguments, request) = called::arguments(&tool, cx.params.arguments)?;
    if let Some(headers) = &cx.headers {
        headers::check_arguments(headers, &tool, &arguments)?;
    }
    let binding = Binding { secret: cx.shared.engine.secret(), caller: cx.caller, method: "tools/call", name, arguments: &arguments };
    let (resumed, continued) = carried(cx, &binding)?;
    let ours = held::is_followup(cx.shared, &tool);
    let mut wait = Wait {
        hold: if cx.meta.tasks { None } else { Hold::begin(cx.shared, &tool, cx.meta.accepts) },
        // The follow-up tools give some themselves.
        beats: cx.shared.config.followups && !cx.meta.tasks && !ours,
        ..Wait::default()
    };
    if let Some(id) = continued {
        return go_on(cx, &binding, id, resumed, wait).await;
    }
    if let Some(misfit) = misfit(&tool, &arguments) {
        return Ok(finished(cx, &misfit.into_outcome())?.into());
    }
    let mode = if cx.meta.tasks { tool.0.policy.task } else { TaskMode::Never };
    let waiter = Waiter::new(cx.shared, cx.caller, &tool, &request, mode == TaskMode::Never, (cx.id, cx.out));
    let mut spec = spec(cx, &tool, mode, wait.hold, &arguments)?;
    spec.lingers = waiter.lingers();
    let mut spec = Arc::new(spec);
    wait.promote_after = tool.0.policy.promote_after.unwrap_or(cx.shared.config.promote_after);
    wait.patience = match mode {
        TaskMode::Never => None,
        TaskMode::Auto => Some(wait.promote_after),
        TaskMode::Always | TaskMode::Required => Some(Duration::ZERO),
    };
    // Who wants to see output while it is produced need not wait for a task to see the first of it.
    wait.eager = wait.patience.is_some() && cx.meta.partials && tool.0.policy.streams;
    if *cx.shared.draining.borrow() {
        return Err(engine::Error::Unavailable("it is shutting down".into()).into());
    }
    let engine = &cx.shared.engine;
    if spec.idempotency_key.is_some() {
        let (mut teller, id) = (Teller::new(cx, wait), engine.new_id());
        let task = engine.create(id, spec, request, &resumed, teller.notes()).await?.task;
        teller.hears_of(task.id, wait.hold.is_some() && task.id != id);
        // The caller will ask again if it does not get this answer, so the task must live on: nothing waits for it here.
        return teller.while_telling(follow(cx, &binding, task.id, wait, waiter)).await;
    }
    if spec.dedupe.is_some() {
        let mut teller = Teller::new(cx, wait);
        match waiter.join_or_create(spec.clone(), request.clone(), resumed.clone(), teller.notes()).await {
            Ok(task) => {
                teller.hears_of(task.id, waiter.joined().is_some());
                return teller.while_telling(follow(cx, &binding, task.id, wait, waiter)).await;
            }
            // No room for another task: the call is held as one that shares none, whatever becomes of it.
            Err(engine::Error::Rejected(Reject::Limit { .. })) => spec = Arc::new(Spec { dedupe: None, ..Spec::clone(&spec) }),
            Err(error) => return Err(error.into()),
        }
    } else if let Some(task) = waiter.join().await? {
        let mut teller = Teller::new(cx, wait);
        teller.hears_of(task.id, true);
        return teller.while_telling(follow(cx, &binding, task.id, wait, waiter)).await;
    }
    if wait.patience == Some(Duration::ZERO) {
        let id = engine.new_id();
        waiter.waits_for(id);
        return match engine.create(id, spec, request, &resumed, None).await {
            Ok(receipt) => Ok(handle(cx, &receipt.task, waiter)),
            Err(error) => {
                waiter.answered(true);
                Err(error.into())
            }
        };
    }
    let done = hold(cx, &binding, spec, request, resumed, wait, waiter).await;
    if ours && done.is_ok() {
        cx.shared.calls.followed_up(cx.shared, cx.caller, &arguments);
    }
    done
}

fn spec(cx: &Cx<'_>, tool: &ReadyTool, mode: TaskMode, hold: Option<Hold>, arguments: &Value) -> Result<Spec, Fault> {
    let wanted = Wanted { caller: cx.caller, accepts: cx.meta.accepts, idempotency_key: cx.meta.idempotency_key.as_deref() };
    let mut spec = called::spec(cx.shared, tool, &wanted)?;
    if mode == TaskMode::Never {
        spec.hidden = true;
    }
    if let Some(hold) = hold {
        hold.open(&mut spec, tool, arguments);
    }
    if mode == TaskMode::Never && hold.is_none_or(Hold::asks_natively) {
        // Nobody can answer a hidden task once the state that names it is no longer good.
        let good_for = ms(STATE_GOOD_FOR);
        spec.input_timeout_ms = Some(spec.input_timeout_ms.map_or(good_for, |span| span.min(good_for)));
    }
    Ok(spec)
}

/// Runs the call in memory until it ends, becomes a task, or has had its time.
async fn hold(
    cx: &Cx<'_>,
    binding: &Binding<'_>,
    spec: Arc<Spec>,
    request: Payload,
    resumed: Resumed,
    wait: Wait,
    waiter: Waiter,
) -> Result<Done, Fault> {
    let engine = &cx.shared.engine;
    let (mut teller, id) = (Teller::new(cx, wait), engine.new_id());
    teller.hears_of(id, false);
    let mut held = engine.launch(id, spec.clone(), request.clone(), resumed.clone(), teller.notes());
    if wait.eager {
        held.run().stream_at_once();
    }
    let mut phase = held.start().await;
    let at_once = !matches!(phase, Phase::Loose);
    if !at_once {
        waiter.runs(held.run());
        phase = match teller.while_telling(settled(cx, held.run(), wait)).await? {
            Settled::At(phase) => phase,
            Settled::NoRoom(reject) => {
                waiter.answered(true);
                return Ok(complete(&held::no_room(cx.shared, held.run(), &reject), cx.shared).into());
            }
        };
    }
    teller.tell_rest();
    match phase {
        Phase::Done(End::Outcome(outcome)) => {
            let result = match held::failed_at_once(cx.shared, &spec, &outcome) {
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
        Phase::Done(End::Suspended(round)) => match again(cx, binding, &round) {
            // What its caller cannot be asked by a second call, it is asked as a task.
            Err(fault) if wait.hold.is_some_and(|hold| !hold.can_ask()) => {
                ask_as_task(cx, binding, (spec, request, resumed), wait, teller, fault, waiter).await
            }
            again => Ok(again?.into()),
        },
        Phase::Task(id) if wait.patience.is_some() => {
            let task = engine.task(cx.caller, id)?.ok_or(engine::Error::Rejected(Reject::NotFound))?;
            Ok(handle(cx, &task, waiter))
        }
        Phase::Task(id) => teller.while_telling(follow(cx, binding, id, wait, waiter)).await,
        Phase::Loose => Err(Fault::internal("the tool went away")),
    }
}

/// Makes a call that wants to ask in a round a task: so it asks by itself, and its caller answers with a follow-up tool.
async fn ask_as_task(
    cx: &Cx<'_>,
    binding: &Binding<'_>,
    (spec, request, resumed): (Arc<Spec>, Payload, Resumed),
    wait: Wait,
    mut teller: Teller<'_, '_>,
    fault: Fault,
    waiter: Waiter,
) -> Result<Done, Fault> {
    let engine = &cx.shared.engine;
    let id = engine.new_id();
    waiter.waits_for(id);
    teller.hears_of(id, false);
    let fault = match engine.create(id, spec, request, &resumed, teller.notes()).await {
        Ok(_) => return teller.while_telling(follow(cx, binding, id, wait, waiter)).await,
        // No room for another task.
        Err(engine::Error::Rejected(Reject::Limit { .. })) => fault,
        Err(error) => error.into(),
    };
    waiter.answered(true);
    Err(fault)
}

/// Waits until a run has ended or become a task, and makes it one when its caller has waited long enough.
async fn settled(cx: &Cx<'_>, run: &Arc<Run>, wait: Wait) -> Result<Settled, Fault> {
    let clock = cx.shared.engine.clock();
    let promotes = wait.patience.is_some() || wait.hold.is_some();
    let promote =
        async { if promotes { clock.sleep(wait.patience.unwrap_or(wait.promote_after)).await } else { std::future::pending().await } };
    let held = held::over(wait.hold, cx.shared);
    tokio::pin!(promote, held);
    let (mut due, mut over) = (false, false);
    loop {
        tokio::select! {
            biased;
            phase = run.settled() => return Ok(Settled::At(phase)),
            () = &mut promote, if !due => due = true,
            () = &mut held, if !over => over = true,
        }
        match run.promote().await {
            // A server that shuts down gives it the time that there is.
            Err(engine::Error::Rejected(reject @ Reject::Limit { .. })) if over && !*cx.shared.draining.borrow() => {
                return Ok(Settled::NoRoom(reject));
            }
            // No room for another task: the caller waits on, which costs it nothing but time.
            Err(engine::Error::Rejected(Reject::Limit { .. })) => {}
            promoted => return Ok(Settled::At(promoted?)),
        }
    }
}

/// Waits for a task that its caller does not know of, or not yet.
async fn follow(cx: &Cx<'_>, binding: &Binding<'_>, id: TaskId, wait: Wait, waiter: Waiter) -> Result<Done, Fault> {
    let Wait { patience, eager, hold, .. } = wait;
    let engine = &cx.shared.engine;
    waiter.mark_slow();
    let watch = engine.watch(vec![id], eager);
    let promote = async {
        match patience {
            Some(span) => engine.clock().sleep(span).await,
            None => std::future::pending().await,
        }
    };
    let held = held::over(hold, cx.shared);
    tokio::pin!(promote, held);
    let (mut waited, mut over) = (patience == Some(Duration::ZERO), false);
    loop {
        let task = engine.task(cx.caller, id)?.ok_or(engine::Error::Rejected(Reject::NotFound))?;
        if let Some(outcome) = task.outcome.as_ref().filter(|_| patience != Some(Duration::ZERO)) {
            // Who wants to see all of the output gets the task where the result has only a part of it.
            return if eager && is_cut(&task, outcome) { Ok(handle(cx, &task, waiter)) } else { concluded(cx, &task, outcome, waiter) };
        }
        if waited || (eager && engine.span(id)?.end > Seq(0)) || (patience.is_some() && task.asked_at.is_some()) {
            return Ok(handle(cx, &task, waiter));
        }
        if task.asked_at.is_some() && !hold.is_some_and(|hold| hold.asks(&task)) {
            let questions = task.open_inputs().map(|(key, request)| (key.as_str(), request));
            let result = input_required(cx, binding, questions, Carried::Task(id)).end();
            return Ok(Done { result, sent: Some(waiter.answering(false)) });
        }
        if let Some(result) = held::instead(cx.shared, hold, &task, over) {
            let result = complete(&waiter.noting(result), cx.shared).end();
            return Ok(Done { result, sent: Some(waiter.answering(false)) });
        }
        tokio::select! {
            _ = watch.changed() => {}
            () = &mut promote => waited = true,
            () = &mut held, if !over => over = true,
        }
    }
}

/// Whether a result leaves out output that can be read from its task.
fn is_cut(task: &Task, outcome: &Outcome) -> bool {
    let uri = followup::resource::uri(task.id);
    matches!(outcome, Outcome::Completed { result, .. } if result.as_str().contains(&uri))
}

/// The answer of a task that has ended.
fn concluded(cx: &Cx<'_>, task: &Task, outcome: &Outcome, waiter: Waiter) -> Result<Done, Fault> {
    let ended = match (held::failed(cx.shared, task), outcome) {
        (Some(result), _) => Ok(complete(&waiter.noting(result), cx.shared)),
        (None, Outcome::Completed { result, .. }) => Ok(complete(&waiter.noting(result.clone()), cx.shared)),
        (None, _) => finished(cx, outcome),
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
    let task = engine.task(cx.caller, id)?.ok_or(engine::Error::Rejected(Reject::NotFound))?;
    let answers = for_task(&task, resumed.responses)?;
    // As in the first call. What has a key needs nobody to wait for it.
    let waiter = Waiter::again(cx.shared, None, &task);
    if task.spec.idempotency_key.is_some() {
        waiter.clone().answered(false);
    }
    let answered = engine.submit(id, Authority::Caller(cx.caller.clone()), Command::Answer(answers)).await;
    match answered {
        Ok(_) => {
            let mut teller = Teller::new(cx, wait);
            teller.hears_of(id, wait.hold.is_some());
            teller.while_telling(follow(cx, binding, id, wait, waiter)).await
        }
        Err(error) => {
            waiter.answered(false);
            Err(error.into())
        }
    }
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
    notes: Option<mpsc::Receiver<Note>>,
    wanted: Notes,
    beat: Option<Beat>,
    /// The task that the call is, or may become.
    task: Option<TaskId>,
    /// Wakes where the notes go to another call, so that progress is read from the task.
    reads: Option<Watch<TaskId>>,
}

impl<'a, 'c> Teller<'a, 'c> {
    fn new(cx: &'a Cx<'c>, wait: Wait) -> Self {
        let wanted = Notes::new(cx.meta.progress_token.clone(), cx.meta.log_level);
        let clock = cx.shared.engine.clock();
        let beat = (wait.beats && wanted.token.is_some()).then(|| Beat::new(clock, clock.now(), clock.now(), f64::NEG_INFINITY));
        Self { cx, notes: None, wanted, beat, task: None, reads: None }
    }

    /// Where notes can be sent, if the caller wants any.
    fn notes(&mut self) -> Option<mpsc::Sender<Note>> {
        if !self.wanted.wanted() {
            return None;
        }
        let (sender, notes) = mpsc::channel(NOTES_MAX);
        self.notes = Some(notes);
        Some(sender)
    }

    /// Names the task, which `reads` if its notes go elsewhere.
    fn hears_of(&mut self, id: TaskId, reads: bool) {
        self.task = Some(id);
        if reads && self.wanted.token.is_some() {
            self.reads = Some(self.cx.shared.engine.watch(vec![id], false));
            self.tell_read();
        }
    }

    /// Waits for `future`, passing notes on meanwhile.
    async fn while_telling<T>(&mut self, future: impl Future<Output = T>) -> T {
        tokio::pin!(future);
        loop {
            tokio::select! {
                biased;
                done = &mut future => {
                    self.tell_rest();
                    return done;
                }
                note = next(&mut self.notes) => match note {
                    Some(note) => self.tell(&note),
                    None => self.notes = None,
                },
                () = changed(self.reads.as_ref()) => self.tell_read(),
                () = held::due(&mut self.beat) => self.give_sign(),
            }
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
