//! Sessions of the legacy era as they go over the wire, written down for readers in `docs/traces`.
//!
//! As in [`crate::traces`], each test compares what was said with its document, and with `TASKWIRE_TRACES=write` writes the
//! document instead. Here the frames of event streams are shown line by line: their ids are what a client comes back with.

mod wire;

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use taskwire::{
    server::Config,
    tool::{Ctx, Progress, TaskMode, Tool},
};

use self::wire::Session;
use crate::{
    kit::{TestServer, manual_clock, with_timeout},
    tasks::{accept, name_form, name_in, registry},
    tool_harness::{Runs, ToolRun, played_as, run_of},
    traces::{Recorder, TOKENS},
};

const LEGEND: &str = "Recorded from a real server by `crates/taskwire/tests/it/legacy/traces.rs`, which fails when the server says \
anything else. A message is one line on the wire; here it is broken into lines, and its members are put in order. Requests are shown \
without `Host` and `Content-Length`, responses with `Content-Type` and `Mcp-Session-Id` alone. What is different in each run has a name \
here: the session is `session-1`, its tasks `task-1` and so on, and the ids of events and of the server's questions are `event-1` and \
`question-1`, in the order in which they first appear. On the wire they are opaque.";

/// A run that begins with a chunk.
async fn run_and_write(runs: &mut Runs, text: &str) -> ToolRun {
    let run = run_of(runs).await;
    run.writes(text).await;
    run
}

/// A run that begins by saying how far it is.
async fn run_and_progress(runs: &mut Runs, message: &str) -> ToolRun {
    let run = run_of(runs).await;
    progresses(&run, 1.0, message).await;
    run
}

/// Says how far a run is, of three.
async fn progresses(run: &ToolRun, done: f64, message: &str) {
    with_timeout("the progress", run.ctx.progress(Progress::of(done, 3.0).message(message))).await.expect("it may say so");
}

/// A server of storytellers on which time stands still.
async fn serve(tools: impl IntoIterator<Item = Tool>) -> TestServer {
    let config = Config { name: "storyteller".to_owned(), version: "1.0.0".to_owned(), ..Config::default() };
    TestServer::start_with(registry(tools), config, Arc::new(manual_clock())).await
}

/// A tool that is done at once.
fn lookup() -> Tool {
    Tool::raw("lookup", "Looks up a word", json!({"type": "object"}), |_ctx: Ctx| async move { Ok("A keeper tends a lamp.") })
}

/// The task that a response names.
fn task_of(response: &Value) -> String {
    response["result"]["task"]["taskId"].as_str().unwrap_or_else(|| panic!("no task: {response}")).to_owned()
}

/// Whether a message is this request or notification.
fn is(method: &str) -> impl Fn(&Value) -> bool {
    move |message| message["method"] == method
}

/// Whether a message says that a task has this status.
fn is_status(status: &str) -> impl Fn(&Value) -> bool {
    move |message| message["method"] == "notifications/tasks/status" && message["params"]["status"] == status
}

/// Whether a message is the chunk with this number.
fn is_partial(seq: u64) -> impl Fn(&Value) -> bool {
    move |message| message["method"] == "notifications/tasks/partial" && message["params"]["seq"] == seq
}

/// Whether a message is a response with this segment.
fn has_segment(number: u64) -> impl Fn(&Value) -> bool {
    move |message| {
        let segments = message["result"]["partial-content"].as_array();
        segments.is_some_and(|segments| segments.iter().any(|segment| segment["seqNr"] == number))
    }
}

#[tokio::test]
async fn a_task_goes_over_the_wire_as_the_document_shows() {
    let (tool, mut runs) = played_as("tell", "Tells a story");
    let tool = tool.task(TaskMode::Always).immediate_response("The story has begun. It will take a while.");
    let server = serve([tool]).await;
    let mut recorder = Recorder::new(
        "A task of 2025-11-25, message by message",
        "A client opens a session, calls a tool as a task, is asked something while it waits for the result, and ends the session. These \
         are the core tasks of that revision, without any draft on top.",
        LEGEND,
    );
    recorder.step(
        "The handshake",
        "The client says what it can be asked. The server answers with what it has, and with the name of the session, which every request \
         from now on carries. The session is stored: it outlives a restart of the server.",
    );
    let mut session = Session::open(&server, json!({"elicitation": {}}), recorder).await;

    session.recorder.step("The tool", "`execution.taskSupport` says that the tool may be called as a task.");
    session.ask("tools/list", json!({})).await;

    session.recorder.step(
        "The call",
        "A call with `task` is answered at once with the handle of a task that is stored already. `ttl` is how long the client wants it to \
         be kept after its end; what comes back is how long it will be kept at least, from its beginning. The text in `_meta` is for a \
         model that should not wait.",
    );
    let called = session.ask("tools/call", json!({"name": "tell", "arguments": {}, "task": {"ttl": 60_000}})).await;
    let task = task_of(&called);
    session.recorder.alias(&task, "task-1");
    let mut run = run_of(&mut runs).await;

    session.recorder.step("Its state", "Whoever has the handle can ask how the task is getting on, as often as `pollInterval` says.");
    with_timeout("the status", run.ctx.status("looking for a keeper")).await.expect("it may say so");
    let state = session.ask("tasks/get", json!({"taskId": task})).await;
    assert_eq!(state["result"]["status"], "working");

    session.recorder.remark("The tool needs to know something that only the person in front of the client knows.");
    let ctx = run.ctx.clone();
    let asking = tokio::spawn(async move { ctx.ask("keeper", name_form("What is the keeper's name?")).await });
    with_timeout("the question", server.client().until(&task, "input_required")).await;
    let state = session.ask("tasks/get", json!({"taskId": task})).await;
    assert_eq!(state["result"]["status"], "input_required");

    session.recorder.step(
        "The question",
        "A client that sees `input_required` asks for the result before there is one. That opens an event stream, which begins with an \
         event that has an id and nothing else: from now on the stream can be resumed. The question comes as a request of the server, and \
         the client posts the response to it. Nobody asks a client that did not declare `elicitation`.",
    );
    let mut waiting = session.stream("tasks/result", json!({"taskId": task})).await;
    let waiting_id = session.last_id;
    let question = session.hear_until(&mut waiting, is("elicitation/create")).await;
    session.answer(&question, accept("Ida")).await;
    let answer = with_timeout("the answer", asking).await.expect("no panic").expect("an answer");
    session.recorder.remark("The tool has its answer and goes on.");
    session.hear_until(&mut waiting, is_status("working")).await;

    session.recorder.step(
        "The result",
        "The same stream ends with the task's last state and the response to `tasks/result`: what the call would have returned, and the \
         name of its task.",
    );
    run.ends(format!("{} lit the lamp again.", name_in(&answer)));
    let response = session.hear_out(waiting).await.expect("a response");
    assert_eq!((&response["id"], &response["result"]["content"][0]["text"]), (&json!(waiting_id), &json!("Ida lit the lamp again.")));

    session.recorder.step("The result, again", "Once the task has ended there is nothing to wait for, and the answer is one message.");
    let again = session.ask("tasks/result", json!({"taskId": task})).await;
    assert_eq!(again["result"], response["result"]);

    session.recorder.step("All tasks", "A caller sees its own tasks, newest first, also those of its other sessions.");
    session.ask("tasks/list", json!({})).await;

    session.recorder.step("Too late", "What has ended cannot be cancelled. Errors of a method come with status 200.");
    let refused = session.ask("tasks/cancel", json!({"taskId": task})).await;
    assert_eq!(refused["error"]["code"], -32602);

    session
        .recorder
        .step("The end of the session", "The client has no more to ask. Its tasks stay: they are the caller's, not the session's.");
    session.end().await;
    session.recorder.remark("Whoever comes with the name of a session that is over must begin a new one.");
    session.ask("tasks/get", json!({"taskId": task})).await;
    session.recorder.finish("legacy-task.md");
}

#[tokio::test]
async fn partial_notifications_go_over_the_wire_as_the_document_shows() {
    let (tool, mut runs) = played_as("tell", "Tells a story, token by token");
    let server = serve([tool.task(TaskMode::Always).streams()]).await;
    let mut recorder = Recorder::new(
        "Partial results in a session (SEP-2679), message by message",
        "A tool tells a story of six tokens. They come as notifications: on the session stream, which breaks and is resumed, \
         and then beside the result that the client waits for.",
        LEGEND,
    );
    recorder.step(
        "The handshake",
        "Both sides say `tasks.streaming.partial`. A client that does not say it sees nothing of all this, not even in the server's \
         capabilities.",
    );
    let mut session = Session::open(&server, json!({"tasks": {"streaming": {"partial": {}}}}), recorder).await;

    session.recorder.step("The tool", "The tool carries a hint that it has something to show before it ends.");
    session.ask("tools/list", json!({})).await;

    session.recorder.step(
        "The session stream",
        "A GET opens the stream for all that belongs to no request. It begins with an event that has an id and nothing else, so that the \
         client can come back to it even if the connection breaks at once.",
    );
    let mut standing = session.stand().await;

    session.recorder.step("The call", "The call is answered with the handle of a task, on its own connection.");
    let called = session.ask("tools/call", json!({"name": "tell", "arguments": {}, "task": {}})).await;
    let task = task_of(&called);
    session.recorder.alias(&task, "task-1");
    let mut run = run_of(&mut runs).await;

    session.recorder.step(
        "Output",
        "Each chunk comes as soon as it is stored. `seq` counts the chunks of the task from 0 without a gap. What was written is added to \
         what came before, never put in its place.",
    );
    run.writes(TOKENS[0]).await;
    session.hear_until(&mut standing, is_partial(0)).await;
    session.recorder.remark("The tool writes its second token.");
    run.writes(TOKENS[1]).await;
    session.hear_until(&mut standing, is_partial(1)).await;

    session.recorder.remark("The connection breaks. The task goes on: two more tokens are written while nobody listens.");
    let last = standing.cut();
    run.writes(TOKENS[2]).await;
    run.writes(TOKENS[3]).await;
    session.recorder.step(
        "Resuming",
        "The client names the last event that it has, and the stream goes on behind it as if nothing had happened. It would do the same \
         after a restart of the server.",
    );
    let mut standing = session.resume(&last).await;
    session.hear_until(&mut standing, is_partial(3)).await;

    session.recorder.step(
        "Waiting for the result",
        "While a request waits for the task, all that concerns the task comes on the stream of that request, and not on the session \
         stream: each message goes to one stream. It begins behind what the session was given already.",
    );
    let mut waiting = session.stream("tasks/result", json!({"taskId": task})).await;
    let waiting_id = session.last_id;
    run.writes(TOKENS[4]).await;
    session.hear_until(&mut waiting, is_partial(4)).await;
    run.writes(TOKENS[5]).await;
    session.hear_until(&mut waiting, is_partial(5)).await;

    session.recorder.step(
        "The end",
        "Nothing of a task comes behind its last state. What was streamed is for watching; the result that counts is that of the task.",
    );
    run.ends(TOKENS.concat());
    let response = session.hear_out(waiting).await.expect("a response");
    assert_eq!((&response["id"], &response["result"]["content"][0]["text"]), (&json!(waiting_id), &json!(TOKENS.concat())));
    drop(standing);
    session.recorder.finish("legacy-partials.md");
}

#[tokio::test]
async fn response_modes_go_over_the_wire_as_the_document_shows() {
    let (tool, mut runs) = played_as("tell", "Tells a story, token by token");
    let server = serve([lookup(), tool.streams()]).await;
    let mut recorder = Recorder::new(
        "Response modes (SEP-1905), message by message",
        "A client that names the ways in which it can be answered is answered in the best of them: with the result if it is there, with \
         a response that comes bit by bit if the tool has something to show, else with a task. Several responses to one request break the \
         rules of JSON-RPC, so this happens for nobody who did not ask for it twice: in the handshake and in the call.",
        LEGEND,
    );
    recorder.step("The handshake", "Both sides list the modes that they know under `tasks.responses.modes`.");
    let capabilities = json!({"tasks": {"responses": {"modes": ["task", "immediate", "streaming"]}}});
    let mut session = Session::open(&server, capabilities, recorder).await;

    session
        .recorder
        .step("Immediate", "The tool is done at once, and the call lists `immediate`: the answer is the result, and there is no task.");
    let call = json!({"name": "lookup", "arguments": {}, "task": {"responseModes": ["task", "streaming", "immediate"]}});
    let answer = session.ask("tools/call", call).await;
    assert_eq!(answer["result"]["content"][0]["text"], "A keeper tends a lamp.");

    session.recorder.step(
        "Streaming",
        "The tool tells a story of six tokens. The first response comes with the first of them and names the task. Each block is a \
         segment, and `seqNr` counts the segments of the task from 1.",
    );
    let call = json!({"name": "tell", "arguments": {}, "task": {"responseModes": ["streaming", "task"]}});
    let (mut stream, mut run) = tokio::join!(session.stream("tools/call", call), run_and_write(&mut runs, TOKENS[0]));
    let call_id = session.last_id;
    let first = session.hear_until(&mut stream, has_segment(1)).await;
    let task = task_of(&first);
    session.recorder.alias(&task, "task-1");
    session.recorder.remark("The tool writes its second token. The response has the id of the same request.");
    run.writes(TOKENS[1]).await;
    let second = session.hear_until(&mut stream, has_segment(2)).await;
    assert_eq!((&first["id"], &second["id"]), (&json!(call_id), &json!(call_id)));

    session.recorder.remark("The connection breaks. The task goes on: two more tokens are written while nobody listens.");
    let last = stream.cut();
    run.writes(TOKENS[2]).await;
    run.writes(TOKENS[3]).await;
    session.recorder.step(
        "Resuming the stream",
        "The client names the last event that it has and gets what followed, still under the id of its call. It would do the same after a \
         restart of the server.",
    );
    let mut stream = session.resume(&last).await;
    session.hear_until(&mut stream, has_segment(4)).await;

    session.recorder.remark("The connection breaks again, and the tool writes its fifth token.");
    let last = stream.cut();
    run.writes(TOKENS[4]).await;
    session.recorder.step(
        "Asking for the rest",
        "A client that cannot keep a stream open asks for what follows the last segment that it has. This never waits: while the task is \
         running the answer is what there is, and `isComplete` is false.",
    );
    let rest = session.ask("tasks/result", json!({"taskId": task, "lastSeqNr": 4})).await;
    assert_eq!((&rest["result"]["partial-content"][0]["seqNr"], &rest["result"]["isComplete"]), (&json!(5), &json!(false)));

    session.recorder.step(
        "The end of the stream",
        "Coming back to the stream shows the fifth segment again, since it did not come this way: a client knows by `seqNr` what it has. \
         The last response says that it is complete.",
    );
    let mut stream = session.resume(&last).await;
    session.hear_until(&mut stream, has_segment(5)).await;
    run.writes(TOKENS[5]).await;
    session.hear_until(&mut stream, has_segment(6)).await;
    session.recorder.remark("The tool returns the whole story. It is what was written, so there is no segment for it.");
    run.ends(TOKENS.concat());
    let end = session.hear_out(stream).await.expect("a response");
    assert_eq!((&end["id"], &end["result"]["isComplete"]), (&json!(call_id), &json!(true)));

    session
        .recorder
        .step("The result", "Without `lastSeqNr` the answer is the ordinary result: all segments in order, without their numbers.");
    let merged = session.ask("tasks/result", json!({"taskId": task})).await;
    let blocks = merged["result"]["content"].as_array().expect("content");
    assert_eq!(blocks.iter().filter_map(|block| block["text"].as_str()).collect::<String>(), TOKENS.concat());

    session.recorder.step("Nothing is left", "Behind the last segment of a task that has ended there is nothing, and it is complete.");
    let rest = session.ask("tasks/result", json!({"taskId": task, "lastSeqNr": 6})).await;
    assert_eq!((&rest["result"]["partial-content"], &rest["result"]["isComplete"]), (&json!([]), &json!(true)));

    session.recorder.step(
        "No mode in common",
        "Where no mode is left that both sides and the call name, the call becomes a task, and the answer says so.",
    );
    let answer = session.ask("tools/call", json!({"name": "tell", "arguments": {}, "task": {"responseModes": ["by-mail"]}})).await;
    session.recorder.alias(&task_of(&answer), "task-2");
    assert_eq!(answer["result"]["_meta"]["io.modelcontextprotocol/fallback-mode"], "task");
    session.recorder.finish("legacy-modes.md");
}

#[tokio::test]
async fn plain_calls_go_over_the_wire_as_the_document_shows() {
    let (tool, mut runs) = played_as("tell", "Tells a story");
    let server = serve([lookup(), tool]).await;
    let mut recorder = Recorder::new(
        "Plain calls of 2025-11-25, message by message",
        "Most clients of this era know nothing of tasks. They call a tool and wait: while they do, they are told how far it is and asked \
         what it needs to know; and if the connection ends, whoever ended it, they come back for the rest.",
        LEGEND,
    );
    recorder.step("The handshake", "The client can be asked to fill in a form, and declares nothing else.");
    let mut session = Session::open(&server, json!({"elicitation": {}}), recorder).await;

    session.recorder.step("A call that is done at once", "There is nothing to say before the result, so the answer is one message.");
    let answer = session.ask("tools/call", json!({"name": "lookup", "arguments": {}})).await;
    assert_eq!(answer["result"]["content"][0]["text"], "A keeper tends a lamp.");

    session.recorder.step(
        "A call with progress",
        "The client gives a token, and the tool says how far it is. The answer becomes an event stream. It begins with an event that has \
         an id and nothing else, and what can be told again has an id, too.",
    );
    let call = json!({"name": "tell", "arguments": {}, "_meta": {"progressToken": "story-1"}});
    let (mut stream, mut run) = tokio::join!(session.stream("tools/call", call), run_and_progress(&mut runs, "lit the lamp"));
    let call_id = session.last_id;
    session.hear_until(&mut stream, is("notifications/progress")).await;
    session.recorder.remark("The tool sends a line for the client's log. It is not stored here: it has no id, and is told once or never.");
    run.ctx.log("info", "the oil is low");
    session.hear_until(&mut stream, is("notifications/message")).await;

    session.recorder.step("A question", "The question comes as a request of the server, and the client posts the response to it.");
    let ctx = run.ctx.clone();
    let asking = tokio::spawn(async move { ctx.ask("keeper", name_form("What is the keeper's name?")).await });
    let question = session.hear_until(&mut stream, is("elicitation/create")).await;
    session.answer(&question, accept("Ida")).await;
    let answer = with_timeout("the answer", asking).await.expect("no panic").expect("an answer");

    session.recorder.step("The response", "The response is the last message of the stream.");
    run.ends(format!("{} lit the lamp again.", name_in(&answer)));
    let response = session.hear_out(stream).await.expect("a response");
    assert_eq!((&response["id"], &response["result"]["content"][0]["text"]), (&json!(call_id), &json!("Ida lit the lamp again.")));

    session.recorder.step(
        "The server hangs up",
        "A long call need not hold a connection. The tool ends it, and the client is told how many milliseconds it should wait before it \
         comes back. The stream has no response yet: the call goes on.",
    );
    let call = json!({"name": "tell", "arguments": {}, "_meta": {"progressToken": "story-2"}});
    let (mut stream, mut run) = tokio::join!(session.stream("tools/call", call), run_and_progress(&mut runs, "lit the lamp"));
    let call_id = session.last_id;
    session.hear_until(&mut stream, is("notifications/progress")).await;
    run.ctx.disconnect(Duration::from_secs(2));
    while session.event(&mut stream).await.is_some() {}
    let last = stream.cut();
    session.recorder.remark("The tool goes on while nobody listens.");
    progresses(&run, 2.0, "filled the lamp").await;

    session.recorder.step("The client comes back", "With the last event that it has, the client gets what followed it.");
    let mut stream = session.resume(&last).await;
    session.hear_until(&mut stream, is("notifications/progress")).await;
    session.recorder.remark("The tool returns.");
    run.ends("The lamp is lit.");
    let response = session.hear_out(stream).await.expect("a response");
    assert_eq!((&response["id"], &response["result"]["content"][0]["text"]), (&json!(call_id), &json!("The lamp is lit.")));
    session.recorder.finish("legacy-call.md");
}
