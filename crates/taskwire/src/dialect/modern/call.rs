//! `tools/call`: the result at once, a question first, or a task.
//!
//! A call is run in memory, and stops when its caller goes away. It becomes a task when its caller has waited `promote_after` and can handle tasks; callers
//! that cannot are held until the result is there. A call that carries an idempotency key is durable before it runs, so
//! that a repeated call finds it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::Deserialize;
use serde_json::{Value, json};
use taskwire_core::{
    Payload, Seq, TaskId,
    task::{Authority, Command, Outcome, Reject, Spec, Task},
};
use tokio::sync::mpsc;

use super::{
    Cx, Done, headers,
    json::{Object, complete, typed, with_info},
    sealed::{Binding, Carried},
    tasks::answers,
    view,
};
use crate::{
    dialect::{
        Fault, Sent,
        called::{self, Wanted, find_tool, misfit, ms},
        catalog,
        notes::Notes,
        params::text,
    },
    engine::{self, End, Note, Phase, Resumed, Run},
    tool::{ReadyTool, TaskMode, payload_lacks},
};

/// How long a client has to come back with answers.
const STATE_GOOD_FOR: Duration = Duration::from_secs(3600);
/// Notes that wait for a client to read; more are dropped, the newest first.
const NOTES_MAX: usize = 256;

pub(super) async fn call(cx: &Cx<'_>) -> Result<Done, Fault> {
    let name = text(cx.params.name, "name")?;
    let name = &*name;
    let tool = find_tool(cx.shared, name)?;
    if tool.0.policy.task == TaskMode::Required {
        cx.needs_tasks()?;
    }
    let arguments = catalog::arguments(cx.params.arguments)?;
    if let Some(headers) = &cx.headers {
        headers::check_arguments(headers, &tool, &arguments)?;
    }
    let binding = Binding { secret: cx.shared.engine.secret(), caller: cx.caller, method: "tools/call", name, arguments: &arguments };
    let (resumed, continued) = carried(cx, &binding)?;
    if let Some(id) = continued {
        return go_on(cx, &binding, id, resumed).await;
    }
    if let Some(misfit) = misfit(&tool, &arguments) {
        return Ok(finished(cx, &misfit.into_outcome())?.into());
    }
    let request = cx.params.arguments.map_or_else(|| json!({}).into(), Payload::from);
    let mode = if cx.meta.tasks { tool.0.policy.task } else { TaskMode::Never };
    let spec = Arc::new(spec(cx, &tool, mode)?);
    let patience = match mode {
        TaskMode::Never => None,
        TaskMode::Auto => Some(tool.0.policy.promote_after.unwrap_or(cx.shared.config.promote_after)),
        TaskMode::Always | TaskMode::Required => Some(Duration::ZERO),
    };
    // Who wants to see output while it is produced need not wait for a task to see the first of it.
    let eager = patience.is_some() && cx.meta.partials && tool.0.policy.streams;
    if *cx.shared.draining.borrow() {
        return Err(engine::Error::Unavailable("it is shutting down".into()).into());
    }
    let engine = &cx.shared.engine;
    if spec.idempotency_key.is_some() {
        let mut teller = Teller::new(cx);
        let task = engine.create(engine.new_id(), spec, request, &resumed, teller.notes()).await?.task;
        // The caller will ask again if it does not get this answer, so the task must live on.
        return teller.while_telling(follow(cx, &binding, task.id, patience, eager)).await;
    }
    if patience == Some(Duration::ZERO) {
        let id = engine.new_id();
        let orphan = Sent::orphan(engine.clone(), cx.caller.clone(), id);
        return match engine.create(id, spec, request, &resumed, None).await {
            Ok(receipt) => Ok(handle(cx, &receipt.task, Some(orphan))),
            Err(error) => {
                orphan.delivered();
                Err(error.into())
            }
        };
    }
    hold(cx, &binding, spec, request, resumed, patience, eager).await
}

fn spec(cx: &Cx<'_>, tool: &ReadyTool, mode: TaskMode) -> Result<Spec, Fault> {
    let wanted = Wanted { caller: cx.caller, accepts: cx.meta.accepts, idempotency_key: cx.meta.idempotency_key.as_deref() };
    let mut spec = called::spec(cx.shared, tool, &wanted)?;
    if mode == TaskMode::Never {
        spec.hidden = true;
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
    patience: Option<Duration>,
    eager: bool,
) -> Result<Done, Fault> {
    let engine = &cx.shared.engine;
    let mut teller = Teller::new(cx);
    let mut held = engine.launch(engine.new_id(), spec, request, resumed, teller.notes());
    if eager {
        held.run().stream_at_once();
    }
    let mut phase = held.start().await;
    if matches!(phase, Phase::Loose) {
        let run = held.run().clone();
        phase = teller.while_telling(settled(cx, &run, patience)).await?;
    }
    teller.tell_rest();
    match phase {
        Phase::Done(End::Outcome(outcome)) => Ok(finished(cx, &outcome)?.into()),
        Phase::Done(End::Suspended(round)) => Ok(again(cx, binding, &round)?.into()),
        Phase::Task(id) if patience.is_some() => {
            let task = engine.task(cx.caller, id)?.ok_or(engine::Error::Rejected(Reject::NotFound))?;
            let orphan = Sent::orphan(engine.clone(), cx.caller.clone(), id);
            held.release();
            Ok(handle(cx, &task, Some(orphan)))
        }
        Phase::Task(id) => {
            // Held on: the caller knows of no task, so it must not outlive the call.
            let done = teller.while_telling(follow(cx, binding, id, None, false)).await;
            held.release();
            done
        }
        Phase::Loose => Err(Fault::internal("the tool went away")),
    }
}

/// Waits until a run has ended or become a task, and makes it one when its caller has waited long enough.
async fn settled(cx: &Cx<'_>, run: &Arc<Run>, patience: Option<Duration>) -> Result<Phase, Fault> {
    if let Some(patience) = patience {
        tokio::select! {
            biased;
            phase = run.settled() => return Ok(phase),
            () = cx.shared.engine.clock().sleep(patience) => {}
        }
        match run.promote().await {
            Ok(phase) => return Ok(phase),
            // No room for another task: the caller waits on, which costs it nothing but time.
            Err(engine::Error::Rejected(Reject::Limit { .. })) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(run.settled().await)
}

/// Waits for a task that its caller does not know of, or not yet.
async fn follow(cx: &Cx<'_>, binding: &Binding<'_>, id: TaskId, patience: Option<Duration>, eager: bool) -> Result<Done, Fault> {
    let engine = &cx.shared.engine;
    let watch = engine.watch(vec![id], eager);
    let promote = async {
        match patience {
            Some(span) => engine.clock().sleep(span).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(promote);
    let mut waited = patience == Some(Duration::ZERO);
    loop {
        let task = engine.task(cx.caller, id)?.ok_or(engine::Error::Rejected(Reject::NotFound))?;
        if let Some(outcome) = task.outcome.as_ref().filter(|_| patience != Some(Duration::ZERO)) {
            return Ok(finished(cx, outcome)?.into());
        }
        if waited || (eager && engine.span(id)?.end > Seq(0)) || (patience.is_some() && task.asked_at.is_some()) {
            return Ok(handle(cx, &task, None));
        }
        if task.asked_at.is_some() {
            let questions = task.open_inputs().map(|(key, request)| (key.as_str(), request));
            return Ok(input_required(cx, binding, questions, Some(Carried::Task(id))).into());
        }
        tokio::select! {
            _ = watch.changed() => {}
            () = &mut promote => waited = true,
        }
    }
}

/// The caller came back with answers for a task that it knows only by the state it carried.
async fn go_on(cx: &Cx<'_>, binding: &Binding<'_>, id: TaskId, resumed: Resumed) -> Result<Done, Fault> {
    let engine = &cx.shared.engine;
    let task = engine.task(cx.caller, id)?.ok_or(engine::Error::Rejected(Reject::NotFound))?;
    // As in the first call: what its caller cannot find again ends with the call.
    let keyed = task.spec.idempotency_key.is_some();
    let orphan = (!keyed).then(|| Sent::orphan(engine.clone(), cx.caller.clone(), id));
    let answers = resumed.responses.into_iter().map(|(key, answer)| (taskwire_core::InputKey::new(&key), answer)).collect();
    let answered = engine.submit(id, Authority::Caller(cx.caller.clone()), Command::Answer(answers)).await;
    let done = match answered {
        Ok(_) => follow(cx, binding, id, None, false).await,
        Err(error) => Err(error.into()),
    };
    if let Some(orphan) = orphan {
        orphan.delivered();
    }
    done
}

/// The handle of a task. A new one is cancelled if the handle does not reach its caller.
fn handle(cx: &Cx<'_>, task: &Task, orphan: Option<Sent>) -> Done {
    let object = with_info(typed("task"), cx.shared);
    let now = cx.shared.engine.clock().now();
    let result = view::task(object, task, now, cx.shared.config.poll_interval).end();
    Done { result, orphan }
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
    let questions = questions.iter().map(|(key, question)| (key.as_str(), question));
    Ok(input_required(cx, binding, questions, state.map(Carried::State)))
}

/// Asks the caller to call again with answers.
fn input_required<'a>(
    cx: &Cx<'_>,
    binding: &Binding<'_>,
    questions: impl Iterator<Item = (&'a str, &'a Payload)>,
    carried: Option<Carried>,
) -> Object {
    let object = with_info(typed("input_required"), cx.shared).raw("inputRequests", &view::requests(questions));
    match carried {
        None => object,
        Some(carried) => {
            let until = cx.shared.engine.clock().now().after(STATE_GOOD_FOR);
            object.put("requestState", &binding.seal(carried, until))
        }
    }
}

/// What the caller brings along because it was asked to call again: answers and state, and the task that they are for
/// if there is one.
pub(super) fn carried(cx: &Cx<'_>, binding: &Binding<'_>) -> Result<(Resumed, Option<TaskId>), Fault> {
    let (mut resumed, mut task) = (Resumed::default(), None);
    if let Some(raw) = cx.params.input_responses {
        resumed.responses = answers(raw)?;
    }
    if cx.params.request_state.is_some() {
        match binding.open(&text(cx.params.request_state, "requestState")?, cx.shared.engine.clock().now())? {
            Carried::State(state) => resumed.state = Some(state.into()),
            Carried::Task(id) => task = Some(id),
        }
    }
    Ok((resumed, task))
}

/// Passes notes on to the caller of an open call. A note that the caller does not read in time is dropped.
struct Teller<'a, 'c> {
    cx: &'a Cx<'c>,
    notes: Option<mpsc::Receiver<Note>>,
    wanted: Notes,
}

impl<'a, 'c> Teller<'a, 'c> {
    fn new(cx: &'a Cx<'c>) -> Self {
        Self { cx, notes: None, wanted: Notes::new(cx.meta.progress_token.clone(), cx.meta.log_level) }
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

    /// Waits for `future`, passing notes on meanwhile.
    async fn while_telling<T>(&mut self, future: impl Future<Output = T>) -> T {
        tokio::pin!(future);
        while let Some(notes) = &mut self.notes {
            tokio::select! {
                biased;
                done = &mut future => {
                    self.tell_rest();
                    return done;
                }
                note = notes.recv() => match note {
                    Some(note) => self.tell(&note),
                    None => self.notes = None,
                },
            }
        }
        future.await
    }

    /// Passes on what has been sent so far: it goes before the response.
    fn tell_rest(&mut self) {
        while let Some(Ok(note)) = self.notes.as_mut().map(mpsc::Receiver::try_recv) {
            self.tell(&note);
        }
    }

    fn tell(&mut self, note: &Note) {
        if let Some(message) = self.wanted.message(note, None) {
            self.cx.out.try_send(&message);
        }
    }
}
