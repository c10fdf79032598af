//! The examples of the documents themselves, as servers would send them who were built from these: the page of the Tasks extension
//! (SEP-2663), SEP-2557 before it, core tasks of 2025-11-25 (SEP-1686), SEP-1905 and SEP-2679. Shapes are theirs, member by
//! member; the words are ours where they do not matter.

use serde_json::{Value, json};
use taskwire::client::{Answer, Call, Client, Error, Outcome, Status};

use super::{
    legacy::{awaited, begun, ended, having, held, joined, options, related, scripted, status, waited},
    script::{
        LISTEN, MS, SECOND, ScriptedServer, call_job, completed, end, job, next_briefs, response, rest, start_job, task, text, tool_list,
        while_waiting, with_members,
    },
};
use crate::kit::{TASKS, with_timeout};

const TASK: &str = "786512e2-9e0d-44bd-8f29-789f320fe840";

/// `working` as the extension shows it.
fn at_work() -> Value {
    json!({"resultType": "complete", "taskId": TASK, "status": "working", "createdAt": "2025-11-25T10:30:00Z",
        "lastUpdatedAt": "2025-11-25T10:50:00Z", "ttlMs": 3_600_000, "pollIntervalMs": 5000})
}

/// The handle of its example call.
fn handle() -> Value {
    with_members(at_work(), json!({"resultType": "task"}))
}

/// Its question for a name.
fn asks() -> Value {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
    let question = json!({"method": "elicitation/create", "params": {"mode": "form", "message": "Your name?", "requestedSchema": schema}});
    with_members(at_work(), json!({"status": "input_required", "inputRequests": {"name": question}}))
}

/// What a task says that has failed, and of which a tool has: both examples say `task` of themselves.
fn failures() -> [(Value, &'static str); 2] {
    let task = json!({"resultType": "task", "taskId": TASK, "createdAt": "2025-11-25T10:30:00Z", "lastUpdatedAt": "2025-11-25T10:40:00Z",
        "ttlMs": 3_600_000});
    let error = json!({"status": "failed", "statusMessage": "The tool failed: too many requests",
        "error": {"code": -32603, "message": "too many requests"}});
    let is_error = json!({"status": "completed", "result": {"content": [text("invalid input")], "isError": true}});
    [(with_members(task.clone(), error), "failed: -32603 too many requests"), (with_members(task, is_error), "tool failed: invalid input")]
}

/// A client of a server that has tasks and nothing else.
async fn client_of(script: &ScriptedServer) -> Client {
    script.client_with(script.options(), json!({TASKS: {}})).await
}

/// A call that is answered with this handle, of a server that pushes nothing.
async fn handed(script: &ScriptedServer, client: &Client, handle: Value) -> Call {
    let (mut call, ()) = start_job(client, script.answers("tools/call", handle)).await;
    assert_eq!(next_briefs(&mut call, 1).await, [format!("task {TASK}")]);
    while_waiting(&mut call, script.expect(LISTEN)).await.error(404, -32601, "no such method", Value::Null).await;
    call
}

/// The next look at the task shows this.
async fn looks(script: &ScriptedServer, call: &mut Call, state: Value) {
    let get = script.as_time_passes("a look", SECOND, while_waiting(call, script.expect_of("tasks/get", TASK))).await;
    get.result(state).await;
}

// The Tasks extension.

#[tokio::test]
async fn the_call_of_the_extensions_page_goes_as_it_is_shown_there() {
    let script = ScriptedServer::start().await;
    let client = client_of(&script).await;
    let mut call = handed(&script, &client, handle()).await;
    for state in [at_work(), asks()] {
        looks(&script, &mut call, state).await;
    }
    assert_eq!(next_briefs(&mut call, 1).await, ["asks name: Your name?"]);
    // The same question at the next look is not asked again.
    looks(&script, &mut call, asks()).await;
    let answering = call.answer("name", Answer::accept(json!({"name": "Luca"})));
    let acknowledging = script.answers("tasks/update", json!({"resultType": "complete"}));
    with_timeout("the answer", async { tokio::join!(answering, acknowledging).0 }).await.expect("taken");
    looks(&script, &mut call, at_work()).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["settled name"]);
    let greeting = json!({"status": "completed", "result": {"content": [text("Hello, Luca!")], "isError": false}});
    looks(&script, &mut call, with_members(at_work(), greeting)).await;
    assert_eq!(rest(&mut call).await, ["done: Hello, Luca!"]);
}

#[tokio::test]
async fn handles_are_taken_in_each_form_that_the_documents_show() {
    let flat = |more: Value| with_members(handle(), more);
    let embedded = with_members(handle(), json!({"resultType": null}));
    let floats = json!({"ttlMs": 60_000.0, "pollIntervalMs": 5000.0});
    let nulls = ["statusMessage", "ttlMs", "pollIntervalMs"].map(|name| (name.to_owned(), Value::Null));
    let with_nulls = Value::Object(handle().as_object().expect("members").clone().into_iter().chain(nulls).collect());
    for created in [
        flat(json!({"statusMessage": "The operation is in progress.", "ttlMs": 60_000})),
        flat(json!({})),
        // "The embedded `task` is the seed state", says the text beside the flat example.
        json!({"resultType": "task", "task": embedded}),
        flat(floats),
        with_nulls,
        // As SEP-2557 had it: other names for both times, and one of them in seconds.
        flat(json!({"ttlMs": null, "pollIntervalMs": null, "ttl": 60, "pollInterval": 5000})),
        flat(json!({"createdAt": null, "lastUpdatedAt": null, "ttlMs": null, "pollIntervalMs": null})),
    ] {
        let script = ScriptedServer::start().await;
        script.always("tools/list", with_members(tool_list(json!([job()])), json!({"ttlMs": 60_000.0})));
        let client = client_of(&script).await;
        let mut call = handed(&script, &client, created.clone()).await;
        looks(&script, &mut call, with_members(at_work(), json!({"status": "cancelled"}))).await;
        assert_eq!(rest(&mut call).await, ["cancelled"], "{created}");
    }
}

#[tokio::test]
async fn a_look_is_taken_in_each_form_that_the_documents_show() {
    let script = ScriptedServer::start().await;
    let client = client_of(&script).await;
    let completed = json!({"status": "completed", "result": {"content": [text("done")], "isError": false}});
    let mut shown = vec![
        (at_work(), "working"),
        (asks(), "input_required"),
        (with_members(at_work(), json!({"status": "cancelled"})), "cancelled"),
        (with_members(at_work(), completed.clone()), "done: done"),
        (with_members(at_work(), with_members(completed, json!({"resultType": "task"}))), "done: done"),
        (handle(), "working"),
    ];
    shown.extend(failures());
    for (state, expected) in shown {
        let looking = async { tokio::join!(client.task(TASK), script.answers("tasks/get", state.clone())).0 };
        let snapshot = with_timeout("a look", looking).await.unwrap_or_else(|error| panic!("{state}: {error}"));
        assert_eq!(snapshot.outcome.as_ref().map_or_else(|| snapshot.status.to_string(), end), expected, "{state}");
        assert_eq!(snapshot.ttl_ms, Some(3_600_000), "{state}");
        assert_eq!(snapshot.message.as_deref(), state["statusMessage"].as_str());
    }
    // What is said of another task says nothing of this one, whatever it calls itself.
    let other = with_members(handle(), json!({"taskId": "another"}));
    let looking = async { tokio::join!(client.task(TASK), script.answers("tasks/get", other)).0 };
    let error = with_timeout("a look", looking).await.expect_err("not ours");
    assert!(matches!(&error, Error::Protocol { reason, .. } if reason.contains("another")), "{error:?}");
}

#[tokio::test]
async fn a_run_ends_as_the_documents_examples_say() {
    for (state, expected) in failures() {
        let script = ScriptedServer::start().await;
        let client = client_of(&script).await;
        let mut call = handed(&script, &client, handle()).await;
        looks(&script, &mut call, state).await;
        assert_eq!(rest(&mut call).await, [expected]);
    }
}

#[tokio::test]
async fn a_state_is_pushed_in_each_form_that_the_documents_show() {
    let moment = |moment: &str| json!({"lastUpdatedAt": moment});
    let example =
        with_members(at_work(), json!({"resultType": null, "status": "completed", "result": {"content": [text("end")], "isError": false}}));
    for (before, last) in [
        // The example has no metadata at all.
        (None, example),
        // One that does not say when it was is not taken for an old one, and a moment may be written in more than one way.
        (Some(task(TASK, "working")), with_members(completed(TASK, "end"), json!({"lastUpdatedAt": null}))),
        (
            Some(with_members(task(TASK, "working"), moment("2026-07-28T10:40:00Z"))),
            with_members(completed(TASK, "end"), moment("2026-07-28T10:40:00.5Z")),
        ),
    ] {
        let script = ScriptedServer::start().await;
        let client = script.client().await;
        let (mut call, mut listen) = script.watched(&client, TASK).await;
        for state in before.into_iter().chain([last.clone()]) {
            listen.sse.notify("notifications/tasks", state).await;
        }
        assert_eq!(rest(&mut call).await, ["done: end"], "{last}");
    }
}

#[tokio::test]
async fn errors_are_understood_as_the_documents_show_them() {
    let script = ScriptedServer::start().await;
    let client = client_of(&script).await;
    for message in ["Failed to retrieve task: Task not found", "Failed to retrieve task: Task has expired"] {
        let refusing = async { script.expect("tasks/get").await.error(200, -32602, message, Value::Null).await };
        let error = with_timeout("a look", async { tokio::join!(client.task(TASK), refusing).0 }).await.expect_err("not there");
        assert!(matches!(&error, Error::TaskNotFound { task } if task == TASK), "{error:?}");
    }
    let needed = json!({"requiredCapabilities": {"extensions": {TASKS: {}}}});
    let refusing = async {
        script.expect("tools/call").await.error(400, -32003, "Missing required client capability", needed).await;
    };
    let error = call_job(&client, json!({}), refusing).await.0.expect_err("refused");
    assert!(matches!(&error, Error::Capability { needed, .. } if needed == TASKS), "{error:?}");
}

// 2025-11-25.

/// A task as that version shows it.
fn core(status: &str, more: Value) -> Value {
    let task = json!({"taskId": TASK, "status": status, "createdAt": "2025-11-25T10:30:00Z", "lastUpdatedAt": "2025-11-25T10:40:00Z",
        "ttl": 30_000, "pollInterval": 5000});
    with_members(task, more)
}

#[tokio::test]
async fn a_task_of_2025_11_25_goes_as_its_page_shows_it() {
    let words = json!({"statusMessage": "The operation is in progress."});
    let made = json!({"task": core("working", with_members(words.clone(), json!({"ttl": 60_000})))});
    for has_status in [true, false] {
        let script = scripted().await;
        script.may_remain("tasks/result");
        script.always("tasks/get", core("working", words.clone()));
        let client = joined(&script, options(&script), having(json!({}))).await;
        let (mut call, ()) = start_job(&client, async { awaited(&script, "tools/call").await.result(made.clone()).await }).await;
        let mut wait = waited(&script, &mut call, TASK).await.sse().await;
        if has_status {
            wait.event(status(core("completed", json!({"lastUpdatedAt": "2025-11-25T10:50:00Z", "ttl": 60_000})))).await;
        }
        wait.result(json!({"content": [text("72°F")], "isError": false, "_meta": related(TASK)})).await;
        let briefs = script.as_time_passes("the end", 10 * MS, rest(&mut call)).await;
        assert_eq!(briefs, ["done: 72°F"], "{has_status}");
    }
}

#[tokio::test]
async fn tasks_of_2025_11_25_are_looked_at_listed_and_cancelled_as_its_page_shows_it() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    // It failed, and says so in words; the error is that of its result.
    script.always("tasks/get", core("failed", json!({"pollInterval": null, "statusMessage": "The tool failed: too many requests"})));
    let refusing = async { awaited(&script, "tasks/result").await.error(200, -31999, "too many requests", Value::Null).await };
    let snapshot = with_timeout("a look", async { tokio::join!(client.task(TASK), refusing).0 }).await.expect("it is there");
    assert_eq!((snapshot.status, snapshot.ttl_ms, snapshot.poll_ms), (Status::Failed, Some(30_000), None));
    assert_eq!(snapshot.outcome.as_ref().map(end).as_deref(), Some("failed: -31999 too many requests"));

    let second = json!({"taskId": "abc123-def456-ghi789", "status": "completed", "createdAt": "2025-11-25T09:15:00Z",
        "lastUpdatedAt": "2025-11-25T10:40:00Z", "ttl": 60_000});
    let list = json!({"tasks": [core("working", json!({})), second], "nextCursor": "next-page-cursor"});
    let listing = async { awaited(&script, "tasks/list").await.result(list).await };
    let page =
        with_timeout("a list", async { tokio::join!(client.list_tasks(Some("optional-cursor-value")), listing).0 }).await.expect("a page");
    let listed: Vec<_> =
        page.tasks.iter().map(|listed| (listed.snapshot.id.as_str(), listed.snapshot.status, listed.snapshot.poll_ms)).collect();
    assert_eq!(listed, [(TASK, Status::Working, Some(5000)), ("abc123-def456-ghi789", Status::Completed, None)]);
    assert_eq!(page.next_cursor.as_deref(), Some("next-page-cursor"));

    let off = core("cancelled", json!({"statusMessage": "The task was cancelled by request."}));
    let cancelling = async { awaited(&script, "tasks/cancel").await.result(off).await };
    with_timeout("the answer", async { tokio::join!(client.cancel(TASK), cancelling).0 }).await.expect("cancelled");
    let refusing = async {
        let message = "Cannot cancel task: already in terminal status 'completed'";
        awaited(&script, "tasks/cancel").await.error(200, -32602, message, Value::Null).await;
    };
    with_timeout("the answer", async { tokio::join!(client.cancel(TASK), refusing).0 }).await.expect("it has ended, and all is well");
}

// SEP-1905.

/// A client of a server that has its modes.
async fn client_of_modes(script: &ScriptedServer) -> Client {
    let modes = having(json!({"responses": {"modes": ["task", "immediate", "streaming"]}}));
    joined(script, options(script), modes).await
}

/// A block as its examples have them, of a kind that no version knows.
fn video() -> Value {
    json!({"type": "video", "text": "A short video of the city.", "url": "https://example.com/nyc_overview.mp4"})
}

/// A streaming result: these blocks from `from` on.
fn segments(from: u64, blocks: &[Value], is_complete: bool) -> Value {
    let numbered = |(number, block): (u64, &Value)| with_members(block.clone(), json!({"seqNr": number}));
    let blocks: Vec<Value> = (from..).zip(blocks).map(numbered).collect();
    json!({"partial-content": blocks, "isError": false, "isComplete": is_complete, "_meta": related(TASK)})
}

#[tokio::test]
async fn an_immediate_result_is_taken_as_sep_1905_shows_it() {
    let script = scripted().await;
    let client = client_of_modes(&script).await;
    let result = json!({"content": [text("Weather. "), text("Activities."), video()], "isError": false, "_meta": related(TASK)});
    let answering = async { awaited(&script, "tools/call").await.result(result).await };
    let outcome = call_job(&client, json!({"city": "New York"}), answering).await.0.expect("a result");
    let Outcome::Result(finished) = outcome else { panic!("{outcome:?}") };
    assert_eq!((finished.content.len(), finished.text().as_str(), finished.is_error), (3, "Weather. Activities.", false));
}

#[tokio::test]
async fn a_streamed_result_is_taken_as_sep_1905_shows_it() {
    let script = scripted().await;
    script.may_remain("tasks/result");
    let client = client_of_modes(&script).await;
    let first = segments(1, &[text("Weather. "), text("Activities. ")], false);
    let (mut call, mut events) = held(&script, &client, |request| response(request.id(), first)).await;
    assert_eq!(next_briefs(&mut call, 3).await, [format!("task {TASK}").as_str(), "0 Weather. ", "1 Activities. "]);
    // Without `isError`, as its example of an event.
    let further = response(&events.id, with_members(segments(3, &[text("More.")], false), json!({"isError": null})));
    events.raw(format!("event: message\nid: event-123\ndata: {further}\n\n").as_bytes()).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["2 More."]);
    let last = response(&events.id, segments(4, &[video()], true));
    events.event(last).await;
    events.end().await;
    let briefs = script.as_time_passes("the end", 10 * MS, rest(&mut call)).await;
    assert_eq!(briefs, ["3 ", "done: Weather. Activities. More."], "what is no text is no text of the output");
}

#[tokio::test]
async fn a_streamed_result_is_resumed_as_sep_1905_shows_it() {
    let script = scripted().await;
    let client = client_of_modes(&script).await;
    // Task and segment in one, without moments and without metadata.
    let task = json!({"taskId": TASK, "status": "working", "ttl": 60_000, "pollInterval": 5000});
    let first = with_members(segments(1, &[text("Initial result segment")], false), json!({"task": task, "_meta": null}));
    let (mut call, ()) = start_job(&client, async { awaited(&script, "tools/call").await.result(first).await }).await;
    let resuming = async {
        let asked = script.expect_of("tasks/result", TASK).await;
        assert_eq!(asked.params()["lastSeqNr"], 1, "{asked:?}");
        asked.result(segments(2, &[video()], true)).await;
    };
    let ending = async { tokio::join!(rest(&mut call), resuming).0 };
    let briefs = script.as_time_passes("the end", 10 * MS, ending).await;
    assert_eq!(briefs, [format!("task {TASK}").as_str(), "0 Initial result segment", "1 ", "done: Initial result segment"]);
}

// SEP-2679.

#[tokio::test]
async fn a_partial_is_taken_as_sep_2679_shows_it() {
    let script = scripted().await;
    script.may_remain("tasks/result");
    let client = joined(&script, options(&script), having(json!({"streaming": {"partial": {}}}))).await;
    let (mut call, mut wait) = begun(&script, &client, "t1").await;
    let partial = json!({"taskId": "t1", "content": [text("partial output chunk...")], "seq": 0});
    wait.notify("notifications/tasks/partial", partial).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["0 partial output chunk..."]);
    wait.event(status(json!({"taskId": "t1", "status": "completed"}))).await;
    wait.result(ended("t1", "the whole")).await;
    let briefs = script.as_time_passes("the end", 10 * MS, rest(&mut call)).await;
    assert_eq!(briefs, ["done: the whole"]);
}
