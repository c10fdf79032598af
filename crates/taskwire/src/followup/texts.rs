//! Texts about a task for a model: that it runs, that it asks, how it ended.

use std::time::Duration;

use taskwire_core::{
    Seq, TaskId, Timestamp,
    screen::render,
    task::{Outcome, Reject, Task},
    wire::code,
};

use super::{ANSWER, CANCEL, LIST, OUTPUT, WAIT, arguments, duration_text, output::chunk_text, question::Question};
use crate::{
    engine::{self, Engine},
    tool::{CallResult, Content},
};

/// Bytes of the last lines of output that a text includes.
const TAIL_BYTES: usize = 2 * 1024;
/// Bytes that are read to find them.
const TAIL_READ_MAX: usize = 128 * 1024;
/// The least that reading a chunk costs, however small it is.
const CHUNK_COST: usize = 1024;
/// Questions in one text; the rest is asked when these are answered.
const QUESTIONS_MAX: usize = 5;

/// The reply to a call that is held, or waits, while the server shuts down. The task goes on, but for a moment no server can be asked about
/// it.
pub(crate) async fn shutting_down(engine: &Engine, task: &Task) -> CallResult {
    let mut result = task_result(engine, task).await;
    if task.outcome.is_none() {
        let text = format!("The server is shutting down or being restarted: give it a few seconds, then call `{WAIT}` again.");
        result.content.push(Content::text(text).into_payload());
    }
    result
}

/// The reply to a caller that knows of no task, when its call ended without a result for a reason that a model can act on: timeout, limit,
/// crash or cancellation. `None` for a result, and for an error that the tool itself returned.
pub(crate) async fn failed(engine: &Engine, task: &Task) -> Option<CallResult> {
    let outcome = task.outcome.as_ref().filter(|outcome| is_server_failure(outcome))?;
    if task.spec.findable {
        return Some(task_result(engine, task).await);
    }
    // The caller cannot ask about the task later, so this reply has all that is known.
    let mut result = failure_without_task(&task.spec.tool, outcome)?;
    result.content.extend(last_output(engine, task.id, "The last lines that it wrote:").await.map(Content::into_payload));
    Some(result)
}

/// The same for a call that was no task: none of its output is kept.
pub(crate) fn failure_without_task(tool: &str, outcome: &Outcome) -> Option<CallResult> {
    is_server_failure(outcome).then(|| CallResult::error(no_result_text(&format!("`{tool}`"), outcome).unwrap_or_default()))
}

/// The reply to a call that was held for so long and then stopped, because it cannot become a task.
pub(crate) fn no_task_possible(tool: &str, held: Duration, reject: &Reject) -> CallResult {
    let first = match reject {
        Reject::Limit { key: "tasks_per_caller", .. } => format!(
            "`{LIST}` shows what is running: wait for the end of one of these with `{WAIT}`, or, if your user agrees, stop one that is not \
             needed any more with `{CANCEL}`."
        ),
        _ => "Tell your user, who can have that limit raised.".to_owned(),
    };
    CallResult::error(format!(
        "`{tool}` was stopped after {} and gives no result. A call is not held for longer, and it cannot go on as a task: {reject}.\n\
         {first} Only then call `{tool}` again: that begins its work anew.",
        duration_text(held)
    ))
}

/// Whether the server, not the tool, says that there is no result.
fn is_server_failure(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Completed { .. } => false,
        Outcome::Failed(error) => matches!(error.code, code::INTERNAL_ERROR | code::LIMIT_REACHED | code::UNAVAILABLE),
        Outcome::Cancelled { .. } => true,
    }
}

/// The note beside the result of an earlier call, which began at `began`.
pub(crate) fn dedupe_note(began: Timestamp, now: Timestamp) -> Content {
    let ago = duration_text(now.since(began));
    Content::text(format!(
        "Note: this answer comes from an earlier call with the same arguments, made at {began} ({ago} ago). That call was still at work, or \
         its result had reached nobody; so it was joined, and nothing was run a second time."
    ))
}

/// The reply that describes a task as it is now. It suits a call whose hold has expired, and one whose task asks something that its client
/// cannot be asked.
pub(crate) async fn task_result(engine: &Engine, task: &Task) -> CallResult {
    match ended(task) {
        Some(result) if matches!(task.outcome, Some(Outcome::Completed { .. })) => result,
        Some(mut result) => {
            result.content.extend(last_output(engine, task.id, "The last lines that it wrote:").await.map(Content::into_payload));
            result
        }
        None if task.asked_at.is_some() => CallResult::of([Content::text(questions_text(task))]),
        None => running(engine, task).await,
    }
}

/// The reply for a task that has ended. A result is passed on unchanged.
fn ended(task: &Task) -> Option<CallResult> {
    let (tool, id, same) = (&task.spec.tool, task.id, arguments(task.id, &[]));
    let outcome = task.outcome.as_ref()?;
    if let Some(text) = no_result_text(&format!("`{tool}` (task {id})"), outcome) {
        let before =
            if task.output.bytes > 0 { format!("\nWhat it wrote before can be read with `{OUTPUT}` {same}.") } else { String::new() };
        return Some(CallResult::error(format!("{text}{before}")));
    }
    let Outcome::Completed { result, .. } = outcome else { return None };
    Some(result.read().unwrap_or_else(|error| CallResult::error(format!("The result of `{tool}` (task {id}) is not readable: {error}"))))
}

/// Says that there is no result, and why; `None` if there is one.
fn no_result_text(who: &str, outcome: &Outcome) -> Option<String> {
    match outcome {
        Outcome::Completed { .. } => None,
        Outcome::Failed(error) => Some(format!("{who} failed: {}", error.message)),
        Outcome::Cancelled { reason } => {
            let why = reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
            Some(format!("{who} was cancelled{why} and gives no result."))
        }
    }
}

/// The end of what a task wrote, if it wrote text.
async fn last_output(engine: &Engine, id: TaskId, title: &str) -> Option<Content> {
    let tail = last_shown_lines(engine, id, TAIL_BYTES).await.ok().flatten()?;
    Some(Content::text(format!("{title}\n{tail}")))
}

async fn running(engine: &Engine, task: &Task) -> CallResult {
    let (tool, same) = (&task.spec.tool, arguments(task.id, &[]));
    let age = duration_text(engine.clock().now().since(task.began_at()));
    let said = status_text(task).map(|said| format!(" It says: {said}")).unwrap_or_default();
    let text = format!(
        "`{tool}` is still running, for {age} now, as task {}. This is not its result.{said}\n\
         Do not call `{tool}` again: that would do the same work a second time.\n\
         Next, call the tool `{WAIT}` with {same}. It waits by itself and returns the result as soon as there is one; if it says \
         that the task is still running, simply call it again.\n\
         Tell your user that this is running; it goes on also while nobody waits. `{OUTPUT}` with the same arguments shows what it \
         has written, `{CANCEL}` stops it.",
        task.id
    );
    let mut content = vec![Content::text(text)];
    content.extend(last_output(engine, task.id, "The last lines that it has written so far:").await);
    CallResult::of(content)
}

/// The status that a task reported: progress and message.
fn status_text(task: &Task) -> Option<String> {
    let progress = task.progress.map(|progress| match progress.total {
        Some(total) => format!("{} of {total}", progress.done),
        None => format!("{} done", progress.done),
    });
    match (task.message.as_deref(), progress) {
        (Some(message), Some(progress)) => Some(format!("{message} ({progress})")),
        (Some(message), None) => Some(message.to_owned()),
        (None, progress) => progress,
    }
}

/// The open questions of a task, and how to answer them.
pub(super) fn questions_text(task: &Task) -> String {
    let tool = &task.spec.tool;
    let open: Vec<_> = task.open_questions().map(|(key, request)| (key.as_str(), Question::read(request))).collect();
    let own = open.iter().any(|(_, question)| question.is_for_users());
    let mut text = format!(
        "`{tool}` (task {}) has a question and goes on when it is answered. This is not its result. Do not call `{tool}` again.",
        task.id
    );
    for (key, question) in open.iter().take(QUESTIONS_MAX) {
        text.push_str("\n\n");
        text.push_str(&question.to_text(task.id, key));
    }
    match open.len().saturating_sub(QUESTIONS_MAX) {
        0 => {}
        1 => text.push_str("\n\nThere is 1 more question; you are told of it when these are answered."),
        more => text.push_str(&format!("\n\nThere are {more} more questions; you are told of them when these are answered.")),
    }
    if own {
        text.push_str(&format!(
            "\n\nAnswer by yourself only what you know for certain from your user or this conversation. Otherwise ask your user now, \
             in your own words, and answer with what they say: never make an answer up. If your user does not want to answer, call \
             `{ANSWER}` with \"action\":\"decline\" in place of \"value\"."
        ));
    }
    text.push_str(&format!("\n\nFor the result, call `{WAIT}` with {} after that.", arguments(task.id, &[])));
    text
}

/// Whether a task asks something that a model can answer, or its user through it.
pub(super) fn has_user_question(task: &Task) -> bool {
    task.open_questions().any(|(_, request)| Question::read(request).is_for_users())
}

/// The last lines of a task's output as a terminal shows them, at most so many bytes; none if it has written no text.
async fn last_shown_lines(engine: &Engine, id: TaskId, max: usize) -> Result<Option<String>, engine::Error> {
    let kept = engine.chunk_range(id).await?;
    let (mut at, mut text, mut cost) = (kept.end, String::new(), 0);
    // Render again only after this many bytes: lines that were drawn over may leave little of the text.
    let mut enough = max;
    while at > kept.start && cost < TAIL_READ_MAX {
        at = Seq(at.0 - 1);
        let Some((mut earlier, bytes)) = chunk_text(engine, id, at).await? else { break };
        cost += bytes.max(CHUNK_COST);
        earlier.push_str(&text);
        text = earlier;
        if text.len() > enough {
            if render(&text).len() > max {
                break;
            }
            enough = text.len().saturating_mul(2);
        }
    }
    let text = render(&text);
    Ok((!text.is_empty()).then(|| last_lines(&text, max).to_owned()))
}

/// The last whole lines of a text; where there is no line that fits, the end of the last one.
fn last_lines(text: &str, max: usize) -> &str {
    let Some(over) = text.len().checked_sub(max).filter(|over| *over > 0) else { return text };
    let rest = &text[text.ceil_char_boundary(over)..];
    match rest.split_once('\n') {
        Some((_, lines)) if !lines.is_empty() => lines,
        _ => rest,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use taskwire_core::{
        CallerId, Epoch, Payload, QuestionKey, Timestamp,
        id::ID_RANDOM_BYTES,
        task::{Blocks, Event, RpcError, Spec, create, evolve},
    };

    use super::*;

    /// A task after these events.
    pub(in crate::followup) fn task(events: &[Event]) -> Task {
        let at = Timestamp::from_millis(1_000);
        let id = TaskId::new(at, [3; ID_RANDOM_BYTES]);
        let spec = Arc::new(Spec::new(CallerId::new("me"), "deploy"));
        let created = Event::Created { spec, arguments: json!({}).into(), epoch: Epoch(1), continuation: None, spent_ms: 0 };
        let mut task = create(id, &created, at);
        events.iter().for_each(|event| evolve(&mut task, event, at));
        task
    }

    fn asked(key: &str, request: Value) -> Event {
        Event::Asked { key: QuestionKey::new(key), request: request.into() }
    }

    fn form(message: &str) -> Value {
        let schema = json!({"type": "object", "properties": {"region": {"type": "string", "enum": ["eu", "us"]}}, "required": ["region"]});
        json!({"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": schema}})
    }

    fn text(result: &CallResult) -> String {
        let block: Value = result.content[0].read().expect("JSON");
        block["text"].as_str().expect("text").to_owned()
    }

    #[test]
    fn a_question_is_told_with_its_fields_and_an_answer_to_copy() {
        let task = task(&[asked("where", form("Where to?"))]);
        let text = questions_text(&task);
        assert!(text.contains("Where to?") && text.contains("`region`") && text.contains("\"eu\", \"us\""), "{text}");
        let copied = format!("{{\"task_id\":\"{}\",\"key\":\"where\",\"value\":\"<one of the choices>\"}}", task.id);
        assert!(text.contains(&copied), "{text}");
        assert!(text.contains("Do not call `deploy` again") && text.contains("never make an answer up"), "{text}");
        assert!(has_user_question(&task));
    }

    #[test]
    fn many_questions_are_told_a_few_at_a_time() {
        let questions: Vec<Event> = (0..8).map(|n| asked(&format!("q{n}"), form(&format!("Number {n}?")))).collect();
        let text = questions_text(&task(&questions));
        assert!(
            text.contains("Number 4?") && !text.contains("Number 5?") && text.contains("There are 3 more questions; you are told of them"),
            "{text}"
        );
        let text = questions_text(&task(&questions[..6]));
        assert!(text.contains("There is 1 more question; you are told of it when"), "{text}");
        let text = questions_text(&task(&questions[..5]));
        assert!(text.contains("Number 4?") && !text.contains("more question"), "{text}");
    }

    #[test]
    fn what_only_the_client_can_answer_is_not_put_to_the_model() {
        let task = task(&[asked("model", json!({"method": "sampling/createMessage", "params": {"messages": []}}))]);
        let text = questions_text(&task);
        assert!(!has_user_question(&task) && text.contains("only by the client") && !text.contains("\"value\""), "{text}");
    }

    #[test]
    fn an_end_is_told_as_it_is() {
        let result = json!({"content": [{"type": "text", "text": "42"}], "structuredContent": {"n": 42}, "isError": true});
        let done = ended(&task(&[Event::Completed { result: result.clone().into(), is_error: true }])).expect("ended");
        assert_eq!(serde_json::to_value(&done).expect("JSON"), result, "the result itself, unchanged");
        let error = RpcError { code: -32603, message: "no disk".to_owned(), data: None };
        let block: Payload = json!({"type": "text", "text": "a"}).into();
        let wrote = Event::Appended { seq: Seq(0), first_block: 1, blocks: Blocks::of(&[block]) };
        let failed = ended(&task(&[wrote, Event::Failed(error.clone())])).expect("ended");
        assert!(failed.is_error && text(&failed).contains("failed: no disk") && text(&failed).contains("`task_output` {\"task_id\""));
        let silent = ended(&task(&[Event::Failed(error)])).expect("ended");
        assert!(text(&silent).ends_with("failed: no disk"), "there is nothing to read");
        let cancelled = ended(&task(&[Event::Cancelled { reason: Some("not needed".into()) }])).expect("ended");
        assert!(cancelled.is_error && text(&cancelled).contains("was cancelled (not needed) and gives no result"));
        assert!(ended(&task(&[])).is_none());
    }

    #[test]
    fn who_has_no_room_for_a_task_is_told_how_to_make_some() {
        let limit = |key| Reject::Limit { what: "too many of your tasks are still running", max: 7, key };
        let reply = no_task_possible("deploy", Duration::from_secs(45), &limit("tasks_per_caller"));
        assert!(reply.is_error && text(&reply).starts_with("`deploy` was stopped after 45 s and gives no result."), "{}", text(&reply));
        for word in ["the limit is 7", "`limits.tasks_per_caller`", "`task_list`", "`task_wait`", "`task_cancel`", "call `deploy` again"] {
            assert!(text(&reply).contains(word), "{word}: {}", text(&reply));
        }
        let other = no_task_possible("deploy", Duration::from_secs(45), &limit("another"));
        assert!(text(&other).contains("Tell your user") && !text(&other).contains("task_list"), "{}", text(&other));
    }

    #[test]
    fn the_last_lines_are_whole_where_they_can_be() {
        assert_eq!(last_lines("one\ntwo\nthree\n", 100), "one\ntwo\nthree\n");
        assert_eq!(last_lines("one\ntwo\nthree\n", 14), "one\ntwo\nthree\n");
        assert_eq!(last_lines("one\ntwo\nthree\n", 8), "three\n", "half a line is none");
        assert_eq!(last_lines("a line without end", 4), " end");
        assert_eq!(last_lines("a long line\n", 5), "line\n", "its end is better than nothing");
        assert_eq!(last_lines("ééé", 3), "é", "no half characters");
        assert_eq!(last_lines("é", 1), "");
    }
}
