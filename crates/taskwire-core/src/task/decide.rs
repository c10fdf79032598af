//! What a command leads to. Pure: the same task, command, moment and limits give the same events.

use std::{fmt::Display, ops::Range, time::Duration};

use super::{
    blocks::{Blocks, ChunkBuilder},
    command::{Authority, Command, NewTask, Reject},
    event::{Event, Outcome, Progress, RpcError},
    state::{OnInterrupt, OutputTotals, Overflow, Spec, Task},
    wants::wants,
};
use crate::{
    id::{Epoch, QuestionKey},
    limits::Limits,
    payload::Payload,
    time::Timestamp,
    wire::code,
};

/// How often it is stored that somebody asked for a task that no call waits for.
const TOUCH_INTERVAL: Duration = Duration::from_secs(1);

/// The events that `command` leads to; none if it changes nothing.
///
/// # Errors
/// A [`Reject`] if the command may not be carried out. Nothing changes then.
pub fn decide(task: Option<&Task>, by: &Authority, command: &Command, now: Timestamp, limits: &Limits) -> Result<Vec<Event>, Reject> {
    let task = match (task, command) {
        (None, Command::Create(new)) => return create_events(new, limits),
        (Some(_), Command::Create(_)) | (None, _) => return Err(Reject::NotFound),
        (Some(task), _) => task,
    };
    match by {
        Authority::Caller(caller) if *caller != task.spec.caller => return Err(Reject::NotFound),
        Authority::Attempt(_) if task.ended.is_some() => return Err(Reject::Ended),
        Authority::Attempt(attempt) if *attempt != task.attempt => return Err(Reject::Stale(*attempt)),
        _ => {}
    }
    let events = match command {
        Command::Create(_) => Err(Reject::NotFound),
        Command::Append { chunks } if chunks.is_empty() => Err(Reject::EmptyChunk),
        Command::Append { chunks } => append(task.output, &task.spec, chunks, limits),
        Command::ReportStatus { message, progress } => {
            check_status(message.as_deref(), *progress, limits)?;
            check_event_limit(task, limits)?;
            // Progress must grow, also in an attempt that begins anew.
            let progress = progress.filter(|progress| task.progress.is_none_or(|before| progress.done > before.done));
            let changes = progress.is_some() || message.as_ref().is_some_and(|message| task.message.as_ref() != Some(message));
            Ok(if changes { vec![Event::StatusReported { message: message.clone(), progress }] } else { Vec::new() })
        }
        Command::Ask { key, request } => ask(task, key, request, limits),
        Command::Save { chunks, checkpoint } => {
            check_limit("the checkpoint is too large", checkpoint.as_str().len() as u64, limits.value_bytes, "value_bytes")?;
            let mut events = append(task.output, &task.spec, chunks, limits)?;
            events.push(Event::Saved { checkpoint: checkpoint.clone() });
            Ok(events)
        }
        Command::Finish { chunks, outcome } => Ok(finish(task, chunks, outcome.clone(), limits)),
        Command::Answer(answers) => answer(task, answers, limits),
        Command::Cancel { reason } => Ok(if task.ended.is_some() { Vec::new() } else { vec![Event::Cancelled { reason: reason.clone() }] }),
        Command::Join { epoch, gone, shared } => join(task, *epoch, gone, *shared),
        Command::Leave { epoch } => Ok(leave(task, *epoch)),
        Command::Touch => {
            // A second is short for whoever waits, and long for the store.
            let is_due = task.left_at().is_some_and(|at| task.ended.is_none() && now.since(at) >= TOUCH_INTERVAL);
            Ok(if is_due { vec![Event::Touched] } else { Vec::new() })
        }
        Command::Abandon { epoch, .. } if task.ended.is_some() || task.awaited_by().any(|other| other != *epoch) => Ok(leave(task, *epoch)),
        Command::Abandon { reason, .. } => Ok(vec![Event::Cancelled { reason: Some(reason.clone()) }]),
        Command::Tick => Ok(tick(task, now)),
        Command::Queue => Ok(if task.queued_at.is_none() { vec![Event::Queued] } else { Vec::new() }),
        Command::Dequeue => Ok(if task.queued_at.is_some() { vec![Event::Dequeued] } else { Vec::new() }),
        Command::TakeQueued { from, epoch, after } => Ok(take_queued(task, *from, *epoch, now, *after)),
        Command::Recover { lost, epoch } => Ok(recover(task, lost, *epoch)),
    };
    events.map(|events| with_failure_reason(task, events, limits))
}

fn create_events(new: &NewTask, limits: &Limits) -> Result<Vec<Event>, Reject> {
    let mut events = vec![Event::Created {
        spec: new.spec.clone(),
        arguments: new.arguments.clone(),
        epoch: new.epoch,
        continuation: new.continuation.clone(),
        spent_ms: new.spent_ms,
    }];
    events.extend(append(OutputTotals::default(), &new.spec, &new.chunks, limits)?);
    if let Some((message, progress)) = new.status_report.clone() {
        check_finite(progress)?;
        events.push(Event::StatusReported { message, progress });
    }
    if let Some(checkpoint) = &new.checkpoint {
        check_limit("the checkpoint is too large", checkpoint.as_str().len() as u64, limits.value_bytes, "value_bytes")?;
        events.push(Event::Saved { checkpoint: checkpoint.clone() });
    }
    Ok(events)
}

/// The events of chunks that follow `written`, all or none.
fn append(mut written: OutputTotals, spec: &Spec, chunks: &[Blocks], limits: &Limits) -> Result<Vec<Event>, Reject> {
    let mut events = Vec::with_capacity(chunks.len() + 1);
    for blocks in chunks {
        if blocks.count() == 0 {
            return Err(Reject::EmptyChunk);
        }
        check_limit("the chunk is too large", blocks.bytes(), limits.chunk_bytes, "chunk_bytes")?;
        events.push(Event::Appended { seq: written.next_seq, first_block: written.blocks + 1, blocks: blocks.clone() });
        written = output_after(written, blocks);
    }
    // Also where the oldest chunks are dropped, a single write must fit.
    let kept = match spec.overflow {
        Overflow::Fail => written.bytes,
        Overflow::DropOldest => chunks.iter().map(Blocks::bytes).sum(),
    };
    if !chunks.is_empty() {
        check_limit("the task has written too much", kept, limits.task_output_bytes, "task_output_bytes")?;
    }
    Ok(events)
}

fn output_after(written: OutputTotals, blocks: &Blocks) -> OutputTotals {
    OutputTotals { next_seq: written.next_seq.next(), blocks: written.blocks + blocks.count(), bytes: written.bytes + blocks.bytes() }
}

/// If the output is the result, adds the error of a failed task to it, for clients that read nothing else. If nothing was written, or
/// the limit is reached, only the task's state has the error.
fn with_failure_reason(task: &Task, mut events: Vec<Event>, limits: &Limits) -> Vec<Event> {
    let Some(Event::Failed(error)) = events.last().filter(|_| task.spec.output_is_result) else { return events };
    let mut reason = ChunkBuilder::default();
    reason.push_text(&error.message, usize::MAX, limits);
    let written = events.iter().fold(task.output, |written, event| match event {
        Event::Appended { blocks, .. } => output_after(written, blocks),
        _ => written,
    });
    if written.blocks > 0
        && let Ok(appended) = append(written, &task.spec, &reason.take(), limits)
    {
        let end = events.pop();
        events.extend(appended.into_iter().chain(end));
    }
    events
}

/// The last output, then the end. If the output is too much, a task that would have completed fails.
fn finish(task: &Task, chunks: &[Blocks], outcome: Outcome, limits: &Limits) -> Vec<Event> {
    // If the output is the result, a block may be as large as in any other result.
    let chunk_bytes = if task.spec.output_is_result { limits.chunk_bytes.max(limits.result_bytes) } else { limits.chunk_bytes };
    let (mut events, outcome) = match append(task.output, &task.spec, chunks, &Limits { chunk_bytes, ..*limits }) {
        Ok(events) => (events, outcome),
        Err(reject) if matches!(outcome, Outcome::Completed { is_error: false, .. }) => {
            (Vec::new(), Outcome::Failed(RpcError { code: code::LIMIT_REACHED, message: reject.to_string(), data: None }))
        }
        Err(_) => (Vec::new(), outcome),
    };
    events.push(limit_result(outcome, limits).into());
    events
}

fn ask(task: &Task, key: &QuestionKey, request: &Payload, limits: &Limits) -> Result<Vec<Event>, Reject> {
    if let Some(known) = task.questions.get(key) {
        return if known.request == *request { Ok(Vec::new()) } else { Err(Reject::QuestionKeyReused(key.as_str().to_owned())) };
    }
    check_limit("the question is too large", request.as_str().len() as u64, limits.value_bytes, "value_bytes")?;
    check_question_bytes(task.question_bytes() + request.as_str().len() as u64, limits)?;
    check_limit("the task has asked too many questions", task.questions.len() as u64 + 1, limits.questions_per_task, "questions_per_task")?;
    check_event_limit(task, limits)?;
    Ok(vec![Event::Asked { key: key.clone(), request: request.clone() }])
}

fn check_question_bytes(bytes: u64, limits: &Limits) -> Result<(), Reject> {
    let what = "the task's questions and answers are too large together";
    check_limit(what, bytes, limits.question_bytes_per_task, "question_bytes_per_task")
}

fn answer(task: &Task, answers: &[(QuestionKey, Payload)], limits: &Limits) -> Result<Vec<Event>, Reject> {
    let mut events: Vec<Event> = Vec::new();
    let mut bytes = task.question_bytes();
    for (key, answer) in answers {
        let size = answer.as_str().len() as u64;
        check_limit("the answer is too large", size, limits.value_bytes, "value_bytes")?;
        let open = task.outcome.is_none() && task.questions.get(key).is_some_and(|question| question.answer.is_none());
        // No more events than there are open questions, so this is short.
        let again = events.iter().any(|event| matches!(event, Event::Answered { key: earlier, .. } if earlier == key));
        if open && !again {
            bytes += size;
            check_question_bytes(bytes, limits)?;
            events.push(Event::Answered { key: key.clone(), answer: answer.clone() });
        }
    }
    Ok(events)
}

/// The outcome as it can be stored: a result that is too large becomes an error, since a task must always end.
#[must_use]
pub fn limit_result(outcome: Outcome, limits: &Limits) -> Outcome {
    match outcome {
        Outcome::Completed { result, .. } if result.as_str().len() as u64 > limits.result_bytes => {
            let (bytes, max) = (result.as_str().len(), limits.result_bytes);
            Outcome::Failed(RpcError::internal_error(format!(
                "the result has {bytes} bytes: the limit is {max} (configuration key `limits.result_bytes`)"
            )))
        }
        outcome => outcome,
    }
}

fn join(task: &Task, epoch: Epoch, gone: &[Epoch], shared: bool) -> Result<Vec<Event>, Reject> {
    let awaited = task.awaited_by().any(|epoch| !gone.contains(&epoch));
    match &task.outcome {
        Some(Outcome::Cancelled { .. }) => return Err(Reject::Ended),
        // Somebody waited for the outcome, and may have it.
        Some(_) if task.left_at().is_none() => return Err(Reject::Ended),
        Some(_) => {}
        None if shared && task.awaited_by().any(|other| other == epoch) => return Ok(Vec::new()),
        None if shared => {}
        // The caller of a task that is not hidden has its id, unless the call was left before.
        None if awaited || (task.left_at().is_none() && !task.spec.hidden) => return Err(Reject::Awaited),
        None => {}
    }
    let gone = gone.iter().copied().filter(|gone| task.awaited_by().any(|epoch| epoch == *gone)).collect();
    Ok(vec![Event::Joined { epoch, gone }])
}

fn leave(task: &Task, epoch: Epoch) -> Vec<Event> {
    if task.awaited_by().any(|other| other == epoch) { vec![Event::Left { epoch }] } else { Vec::new() }
}

fn tick(task: &Task, now: Timestamp) -> Vec<Event> {
    if wants(task).due.is_none_or(|due| due > now) {
        return Vec::new();
    }
    vec![match (task.ended, task.asked_at) {
        (Some(_), _) => Event::Expired,
        (None, Some(_)) => Event::Failed(RpcError::internal_error(format!("nobody answered within {}", span(task.spec.answer_timeout_ms)))),
        (None, None) => Event::Failed(timed_out(&task.spec)),
    }]
}

/// The error of an attempt that timed out.
#[must_use]
pub fn timed_out(spec: &Spec) -> RpcError {
    RpcError::internal_error(format!("the tool `{}` did not finish within its timeout of {}", spec.tool, span(spec.timeout_ms)))
}

fn span(ms: Option<u64>) -> impl Display {
    humantime::format_duration(Duration::from_millis(ms.unwrap_or(0)))
}

/// A task that waits for a slot goes to another node, where its wait begins again.
fn take_queued(task: &Task, from: Epoch, epoch: Epoch, now: Timestamp, after: Duration) -> Vec<Event> {
    let has_waited = task.queued_at.is_some_and(|at| now.since(at) >= after);
    if task.epoch != from || !has_waited {
        return Vec::new();
    }
    vec![Event::Started { attempt: task.attempt.next(), epoch }, Event::Queued]
}

fn recover(task: &Task, lost: &Range<Epoch>, epoch: Epoch) -> Vec<Event> {
    if task.ended.is_some() || !lost.contains(&task.epoch) {
        return Vec::new();
    }
    let lost = task.is_lost_with_its_call();
    let again = match task.spec.on_interrupt {
        OnInterrupt::Fail => false,
        OnInterrupt::Retry => task.attempt.0 < task.spec.attempts_max,
        OnInterrupt::Resume => true,
    };
    vec![if again && !lost {
        Event::Started { attempt: task.attempt.next(), epoch }
    } else {
        let why = match task.spec.on_interrupt {
            _ if lost => "its caller was waiting for the result and has lost the call".to_owned(),
            OnInterrupt::Fail => "the tool is not marked as safe to run again (`on_interrupt`)".to_owned(),
            OnInterrupt::Retry | OnInterrupt::Resume => format!("it was already started {} times", task.attempt),
        };
        Event::Failed(RpcError::internal_error(format!("interrupted: the server stopped while the tool was running, and {why}")))
    }]
}

impl RpcError {
    /// An internal error.
    #[must_use]
    pub const fn internal_error(message: String) -> Self {
        Self { code: code::INTERNAL_ERROR, message, data: None }
    }
}

fn check_finite(progress: Option<Progress>) -> Result<(), Reject> {
    let numbers = progress.iter().flat_map(|progress| [Some(progress.done), progress.total]).flatten();
    if numbers.into_iter().all(f64::is_finite) { Ok(()) } else { Err(Reject::NotANumber) }
}

/// Checks a status report.
///
/// # Errors
/// When the message is too long, or the progress is no number.
pub fn check_status(message: Option<&str>, progress: Option<Progress>, limits: &Limits) -> Result<(), Reject> {
    let size = message.map_or(0, |message| message.len() as u64);
    check_limit("the status message is too long", size, limits.message_bytes, "message_bytes")?;
    check_finite(progress)
}

/// Rejects a value beyond a limit.
///
/// # Errors
/// When `value` is more than `max`.
pub fn check_limit(what: &'static str, value: u64, max: u64, key: &'static str) -> Result<(), Reject> {
    if value > max { Err(Reject::Limit { what, max, key }) } else { Ok(()) }
}

/// Chunks have their own limit, and only the last checkpoint is kept: all other events count here.
fn check_event_limit(task: &Task, limits: &Limits) -> Result<(), Reject> {
    let events = task.version.0 - task.output.next_seq.0 - task.saves;
    check_limit("the task has too many events", events + 1, limits.events_per_task, "events_per_task")
}
