//! Core tasks of 2025-11-25 (SEP-1686 as released): how a call becomes one, what it shows, how it ends, and who may see it.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};
use taskwire::{
    server::{Config, LegacyConfig},
    tool::{CallResult, Content, Progress, TaskMode, ToolError},
};

use crate::{
    kit::{Response, TempDir, TestServer, manual_clock, with_timeout},
    legacy::kit::{LegacySession, RELATED, Sse, session_of},
    tasks::{Gate, quick, registry, reopened, two_callers, until_crash},
    tool_harness::{HOUR, MS, SECOND, ToolHarness, not_found, text_of},
};

const MINUTE_MS: u64 = 60_000;
/// The methods that name a task.
const NAMING: [&str; 3] = ["tasks/get", "tasks/result", "tasks/cancel"];

/// The id in a handle.
pub(crate) fn id_of(created: &Value) -> String {
    created["task"]["taskId"].as_str().unwrap_or_else(|| panic!("no task: {created}")).to_owned()
}

/// The metadata that relates a message to a task.
pub(crate) fn related(task: &str) -> Value {
    json!({RELATED: {"taskId": task}})
}

/// A `tasks/result` that waits, as a stream.
pub(crate) async fn awaiting(legacy: &LegacySession, task: &str) -> Sse {
    legacy.stream("tasks/result", json!({"taskId": task})).await
}

/// The parameters of the next status on a stream that fits.
pub(crate) async fn until_status(events: &mut Sse, fits: impl Fn(&Value) -> bool) -> Value {
    loop {
        let status = events.until("notifications/tasks/status").await["params"].clone();
        if fits(&status) {
            return status;
        }
    }
}

/// Asks for a task until it has this status.
pub(crate) async fn until_is(legacy: &LegacySession, task: &str, status: &str) -> Value {
    let ask = async {
        loop {
            let shown = legacy.get(task).await;
            if shown["status"] == status {
                return shown;
            }
            tokio::task::yield_now().await;
        }
    };
    with_timeout(status, ask).await
}

/// Asks for a task until it is gone, and gives the error that says so.
pub(crate) async fn gone(legacy: &LegacySession, task: &str) -> Value {
    let ask = async {
        loop {
            if let Some(error) = legacy.raw("tasks/get", json!({"taskId": task})).await.json().get("error") {
                return error.clone();
            }
        }
    };
    with_timeout("the end of the task's time", ask).await
}

/// Whether a message is a response.
pub(crate) fn is_response(message: &Value) -> bool {
    message.get("method").is_none()
}

/// A message in short: `3 text` is a partial, `working` a status, `= text` a result, `error -32603` an error.
pub(crate) fn brief(message: &Value) -> String {
    let params = &message["params"];
    match (message["method"].as_str(), message.get("error")) {
        (Some("notifications/tasks/partial"), _) => format!("{} {}", params["seq"], text_of(&params["content"])),
        (Some("notifications/tasks/status"), _) => params["status"].as_str().expect("a status").to_owned(),
        (Some(method), _) => method.to_owned(),
        (None, Some(error)) => format!("error {}", error["code"]),
        (None, None) => format!("= {}", text_of(&message["result"]["content"])),
    }
}

/// Messages in short. That a task is at work may be said first, or twice: that is nothing new.
pub(crate) fn story(messages: &[Value]) -> Vec<String> {
    let mut briefs: Vec<String> = messages.iter().map(brief).skip_while(|brief| brief == "working").collect();
    briefs.dedup();
    briefs
}

/// The code of an error, which comes with a good status of HTTP.
pub(crate) async fn refusal(legacy: &LegacySession, method: &str, params: Value) -> i64 {
    let response = legacy.raw(method, params).await;
    let message = response.json();
    assert_eq!(response.status, 200, "{message}");
    message["error"]["code"].as_i64().unwrap_or_else(|| panic!("{method} succeeded: {message}"))
}

/// The ids on a page of a list.
pub(crate) fn listed(page: &Value) -> Vec<String> {
    let tasks = page["tasks"].as_array().expect("tasks").iter();
    tasks.map(|task| task["taskId"].as_str().expect("an id").to_owned()).collect()
}

/// Whether an answer is one message and no stream.
pub(crate) fn is_json(response: &Response) -> bool {
    response.header("content-type").is_some_and(|kind| kind.starts_with("application/json"))
}

// A6.1, A6.2: who may make a task, and of what.

#[tokio::test]
async fn each_tool_says_whether_its_calls_can_be_tasks() {
    let modes = [
        ("never", TaskMode::Never, "forbidden"),
        ("auto", TaskMode::Auto, "optional"),
        ("always", TaskMode::Always, "optional"),
        ("required", TaskMode::Required, "required"),
    ];
    let server = TestServer::start(registry(modes.map(|(name, mode, _)| quick(name).task(mode)))).await;
    let tools = LegacySession::open(&server).await.ok("tools/list", json!({})).await;
    for (name, _, support) in modes {
        let shown = tools["tools"].as_array().expect("tools").iter().find(|tool| tool["name"] == name).expect("it is listed");
        assert_eq!(shown["execution"], json!({"taskSupport": support}), "{name}");
    }
}

#[tokio::test]
async fn a_tool_that_may_be_a_task_is_one_when_its_caller_says_so() {
    for mode in [TaskMode::Auto, TaskMode::Always] {
        let server = TestServer::start(registry([quick("quick").task(mode)])).await;
        let legacy = LegacySession::open(&server).await;
        let plain = legacy.call("quick", json!({})).await;
        assert_eq!((text_of(&plain["content"]), plain.get("task"), plain.get("_meta")), ("done".to_owned(), None, None), "{mode:?}");
        let id = legacy.start("quick", json!({})).await;
        assert_eq!(text_of(&legacy.result(&id).await["content"]), "done", "{mode:?}");
    }
}

#[tokio::test]
async fn a_tool_is_refused_to_who_calls_it_in_the_way_it_forbids() {
    let gate = Gate::new();
    let tools = [gate.tool("never").task(TaskMode::Never), gate.tool("required").task(TaskMode::Required)];
    let server = TestServer::start(registry(tools)).await;
    let legacy = LegacySession::open(&server).await;
    for call in [json!({"name": "never", "arguments": {}, "task": {}}), json!({"name": "required", "arguments": {}})] {
        assert_eq!(refusal(&legacy, "tools/call", call.clone()).await, -32601, "{call}");
    }
    assert_eq!((gate.runs(), legacy.ok("tasks/list", json!({})).await), (0, json!({"tasks": []})));
    legacy.start("required", json!({})).await;
}

#[tokio::test]
async fn a_parameter_that_is_no_task_is_refused_and_nothing_runs() {
    let gate = Gate::new();
    let server = TestServer::start(registry([gate.tool("slow")])).await;
    let legacy = LegacySession::open(&server).await;
    let ttls = [json!(-1), json!(0), json!(0.5), json!(1_000.5), json!("60000"), json!([1])];
    let tasks = ttls.into_iter().map(|ttl| json!({"ttl": ttl})).chain([json!([]), json!("yes"), json!(true), json!(5)]);
    for task in tasks {
        let call = json!({"name": "slow", "arguments": {}, "task": task});
        assert_eq!(refusal(&legacy, "tools/call", call).await, -32602, "{task}");
    }
    assert_eq!((gate.runs(), legacy.ok("tasks/list", json!({})).await), (0, json!({"tasks": []})));
}

// A6.3, A6.4, A6.5: what a handle holds.

#[tokio::test]
async fn a_handle_is_nested_and_the_same_task_is_flat_where_it_is_asked_for() {
    let gate = Gate::new();
    let server = TestServer::start_with(registry([gate.tool("slow")]), Config::default(), Arc::new(manual_clock())).await;
    let legacy = LegacySession::open(&server).await;
    let created = legacy.task("slow", json!({}), json!({})).await;
    let (id, now) = (id_of(&created), "2026-07-28T00:00:00.000Z");
    let task = json!({"taskId": id, "status": "working", "createdAt": now, "lastUpdatedAt": now, "ttl": 3_600_000, "pollInterval": 1_000});
    assert_eq!(created, json!({"task": task}));
    assert_eq!(legacy.get(&id).await, task);
    assert_eq!(legacy.ok("tasks/list", json!({})).await, json!({"tasks": [task]}));
}

#[tokio::test]
async fn a_task_begins_at_work_however_quick_it_is() {
    let server = TestServer::start(registry([quick("quick")])).await;
    let legacy = LegacySession::open(&server).await;
    for _ in 0..20 {
        let created = legacy.task("quick", json!({}), json!({})).await;
        assert_eq!((&created["task"]["status"], created.get("content")), (&json!("working"), None));
    }
}

#[tokio::test]
async fn a_tool_may_have_words_for_the_model_that_come_with_the_handle() {
    let gate = Gate::new();
    let server = TestServer::start(registry([gate.tool("says").immediate_response("It is being done."), gate.tool("silent")])).await;
    let legacy = LegacySession::open(&server).await;
    let meta = json!({"io.modelcontextprotocol/model-immediate-response": "It is being done."});
    assert_eq!(legacy.task("says", json!({}), json!({})).await["_meta"], meta);
    assert_eq!(legacy.task("silent", json!({}), json!({})).await.get("_meta"), None);
}

#[tokio::test]
async fn the_same_call_under_the_same_key_is_the_same_task() {
    let gate = Gate::new();
    let server = TestServer::start(registry([gate.tool("slow")])).await;
    let legacy = LegacySession::open(&server).await;
    let call = |n: u64| json!({"name": "slow", "arguments": {"n": n}, "task": {}, "_meta": {"dev.taskwire/idempotencyKey": "k"}});
    let first = id_of(&legacy.ok("tools/call", call(1)).await);
    assert_eq!(id_of(&legacy.ok("tools/call", call(1)).await), first);
    assert_eq!(refusal(&legacy, "tools/call", call(2)).await, -32602, "another call");
    gate.go.send();
    legacy.result(&first).await;
    assert_eq!(id_of(&legacy.ok("tools/call", call(1)).await), first, "also when it has ended");
    assert_eq!(gate.runs(), 1);
}

// A6.6, A6.10: results.

#[tokio::test]
async fn a_result_is_waited_for_and_comes_behind_everything_else() {
    let mut harness = ToolHarness::new().await;
    let legacy = LegacySession::open(&harness.server).await;
    let id = legacy.start("writes", json!({})).await;
    let mut run = harness.run().await;
    let message = legacy.message(legacy.next_id(), "tasks/result", json!({"taskId": id}));
    let mut events = legacy.stream_message(&message).await;
    run.ctx.status("half way").await.expect("said");
    until_status(&mut events, |status| status["statusMessage"] == "half way").await;
    run.ends("done");
    let rest = events.rest().await;
    assert_eq!(story(&rest), ["completed", "= done"]);
    let response = rest.last().expect("a response");
    assert_eq!((&response["id"], &response["result"]["_meta"]), (&message["id"], &related(&id)));
}

/// How a task may end: its status, what is said of it, and what `tasks/result` answers.
fn ends() -> [(&'static str, Result<CallResult, ToolError>, Value); 3] {
    let text = |text: &str| json!([{"type": "text", "text": text}]);
    [
        ("completed", Ok(CallResult::of([Content::text("done")])), json!({"result": {"content": text("done")}})),
        ("failed", Err(ToolError::new("no such file")), json!({"result": {"content": text("no such file"), "isError": true}})),
        ("failed", Err(ToolError::protocol(-31_999, "broken")), json!({"error": {"code": -31_999, "message": "broken"}})),
    ]
}

#[tokio::test]
async fn the_result_of_an_ended_task_is_what_its_call_would_have_given() {
    for (status, end, mut expected) in ends() {
        let mut harness = ToolHarness::new().await;
        let legacy = LegacySession::open(&harness.server).await;
        let id = legacy.start("writes", json!({})).await;
        harness.run().await.ends_with(end);
        let task = until_is(&legacy, &id, status).await;
        if let Some(result) = expected.get_mut("result") {
            result["_meta"] = related(&id);
        }
        for said in [expected.pointer("/error/message"), expected.pointer("/result/content/0/text")].into_iter().flatten() {
            assert!(status == "completed" || &task["statusMessage"] == said, "{task}");
        }
        for _ in 0..2 {
            let response = legacy.raw("tasks/result", json!({"taskId": id})).await;
            assert!(response.status == 200 && is_json(&response), "{response:?}");
            let mut message = response.json();
            message.as_object_mut().expect("an object").retain(|key, _| key == "result" || key == "error");
            assert_eq!(message, expected);
        }
    }
}

#[tokio::test]
async fn a_cancelled_task_is_so_at_once_and_for_good() {
    let mut harness = ToolHarness::new().await;
    let legacy = LegacySession::open(&harness.server).await;
    let id = legacy.start("writes", json!({})).await;
    let mut run = harness.run().await;
    let mut events = awaiting(&legacy, &id).await;
    let cancelled = legacy.cancel(&id).await;
    assert_eq!((&cancelled["status"], &cancelled["taskId"]), (&json!("cancelled"), &json!(id)));
    assert_eq!(legacy.get(&id).await, cancelled);
    let rest = events.rest().await;
    assert_eq!(story(&rest), ["cancelled", "error -32603"], "who waits is released");
    let error = &rest.last().expect("a response")["error"];
    assert!(error["message"].as_str().is_some_and(|text| text.contains("cancelled")), "{error}");
    assert_eq!(error["data"], json!({"taskId": id, "status": "cancelled"}));
    with_timeout("the word to stop", run.ctx.cancelled()).await;
    run.ends("too late");
    assert_eq!(refusal(&legacy, "tasks/cancel", json!({"taskId": id})).await, -32602);
    assert_eq!(&legacy.error("tasks/result", json!({"taskId": id})).await, error);
    assert_eq!(legacy.get(&id).await, cancelled);
}

#[tokio::test]
async fn a_task_that_has_ended_cannot_be_cancelled() {
    for (status, end, _) in ends() {
        let mut harness = ToolHarness::new().await;
        let legacy = LegacySession::open(&harness.server).await;
        let id = legacy.start("writes", json!({})).await;
        harness.run().await.ends_with(end);
        let task = until_is(&legacy, &id, status).await;
        assert_eq!(refusal(&legacy, "tasks/cancel", json!({"taskId": id})).await, -32602);
        assert_eq!(legacy.get(&id).await, task);
    }
}

#[tokio::test]
async fn two_may_wait_for_one_task_and_each_has_its_answer() {
    let mut harness = ToolHarness::new().await;
    let legacy = LegacySession::open(&harness.server).await;
    let id = legacy.start("writes", json!({})).await;
    let mut run = harness.run().await;
    let mut streams = Vec::new();
    for _ in 0..2 {
        let message = legacy.message(legacy.next_id(), "tasks/result", json!({"taskId": id}));
        streams.push((message["id"].clone(), legacy.stream_message(&message).await));
    }
    run.ends("done");
    let mut ends = 0;
    for (request, events) in &mut streams {
        let rest = events.rest().await;
        ends += rest.iter().filter(|message| message["params"]["status"] == "completed").count();
        assert_eq!(rest.iter().filter(|message| is_response(message)).count(), 1, "{rest:?}");
        let response = rest.last().expect("a response");
        assert_eq!((&response["id"], brief(response)), (&*request, "= done".to_owned()));
    }
    assert_eq!(ends, 1, "a status goes to one stream");
}

#[tokio::test]
async fn cancelling_a_wait_or_a_call_does_not_touch_the_task() {
    let mut harness = ToolHarness::new().await;
    let legacy = LegacySession::open(&harness.server).await;
    let call = legacy.message(legacy.next_id(), "tools/call", json!({"name": "writes", "arguments": {}, "task": {}}));
    let id = id_of(&legacy.post(&call).await.json()["result"]);
    let mut run = harness.run().await;
    let message = legacy.message(legacy.next_id(), "tasks/result", json!({"taskId": id}));
    let mut events = legacy.stream_message(&message).await;
    for request in [&call["id"], &message["id"]] {
        legacy.notify("notifications/cancelled", json!({"requestId": request, "reason": "no time"})).await;
    }
    let rest = events.rest().await;
    assert!(!rest.iter().any(is_response), "it is not answered: {rest:?}");
    // Nor does going away.
    drop(awaiting(&legacy, &id).await);
    run.writes("still at work").await;
    assert!(!run.ctx.is_cancelled());
    assert_eq!(legacy.get(&id).await["status"], "working");
    run.ends("done");
    assert_eq!(text_of(&legacy.result(&id).await["content"]), "done");
}

// A6.7: which task a message is about.

#[tokio::test]
async fn a_request_is_about_the_task_in_its_parameters_whatever_its_metadata_says() {
    let mut harness = ToolHarness::new().await;
    let legacy = LegacySession::open(&harness.server).await;
    let mut tasks = Vec::new();
    for _ in 0..3 {
        tasks.push((legacy.start("writes", json!({})).await, harness.run().await));
    }
    let (other, _its_run) = tasks.pop().expect("three");
    let ask = |id: &str| json!({"taskId": id, "_meta": related(&other)});
    let (mine, mut run) = tasks.pop().expect("two");
    assert_eq!(legacy.ok("tasks/get", ask(&mine)).await["taskId"], mine);
    run.ends("mine");
    let result = legacy.ok("tasks/result", ask(&mine)).await;
    assert_eq!((text_of(&result["content"]), &result["_meta"]), ("mine".to_owned(), &related(&mine)));
    let (cancelled, _run) = tasks.pop().expect("one");
    assert_eq!(legacy.ok("tasks/cancel", ask(&cancelled)).await["taskId"], cancelled);
    assert_eq!(legacy.get(&other).await["status"], "working");
}

#[tokio::test]
async fn statuses_and_answers_about_tasks_are_plain_and_name_the_task_themselves() {
    let mut harness = ToolHarness::new().await;
    let legacy = LegacySession::open(&harness.server).await;
    let id = legacy.start("writes", json!({})).await;
    let mut run = harness.run().await;
    run.ctx.status("early").await.expect("said");
    let mut standing = legacy.open_session_stream().await;
    until_status(&mut standing, |status| status["statusMessage"] == "early").await;
    for said in ["one", "two", "three"] {
        run.ctx.status(said).await.expect("said");
        let status = until_status(&mut standing, |status| status["statusMessage"] == said).await;
        assert_eq!(status, legacy.get(&id).await, "the whole task and no metadata");
    }
    run.ends("done");
    let status = until_status(&mut standing, |status| status["status"] == "completed").await;
    assert_eq!(status, legacy.get(&id).await);
    let cancelled = legacy.start("writes", json!({})).await;
    let requests = [("tasks/get", json!({"taskId": id})), ("tasks/list", json!({})), ("tasks/cancel", json!({"taskId": cancelled}))];
    for (method, params) in requests {
        let response = legacy.raw(method, params).await;
        assert!(is_json(&response) && response.json()["result"].get("_meta").is_none(), "{method}: {response:?}");
    }
}

#[tokio::test]
async fn progress_is_told_under_the_first_token_and_grows_until_the_end() {
    for token in [json!("p"), json!(7)] {
        let mut harness = ToolHarness::new().await;
        let legacy = LegacySession::open(&harness.server).await;
        let mut standing = legacy.open_session_stream().await;
        let call = json!({"name": "writes", "arguments": {}, "task": {}, "_meta": {"progressToken": token}});
        let id = id_of(&legacy.ok("tools/call", call).await);
        let mut run = harness.run().await;
        run.ctx.progress(Progress::of(1.0, 4.0).message("one")).await.expect("said");
        let full = json!({"progressToken": token, "progress": 1.0, "total": 4.0, "message": "one", "_meta": related(&id)});
        assert_eq!(standing.until("notifications/progress").await["params"], full);
        run.ctx.progress(Progress::at(0.5).message("what does not grow is no progress")).await.expect("said");
        run.ctx.progress(Progress::at(2.0)).await.expect("said");
        let bare = |n: f64| json!({"progressToken": token, "progress": n, "message": format!("{n} done"), "_meta": related(&id)});
        assert_eq!(standing.until("notifications/progress").await["params"], bare(2.0));
        let mut events = awaiting(&legacy, &id).await;
        run.ctx.progress(Progress::at(3.0)).await.expect("said");
        // It goes to the stream that waits for the task. What another stream had is not sent again.
        assert_eq!(events.until("notifications/progress").await["params"], bare(3.0));
        run.ends("done");
        assert_eq!(story(&events.rest().await), ["completed", "= done"]);
        let _ = run.ctx.progress(Progress::at(4.0)).await;
        legacy.start("writes", json!({})).await;
        let next = harness.run().await;
        next.ctx.status("the next task").await.expect("said");
        loop {
            let message = standing.next().await.expect("the stream goes on");
            assert_ne!(message["method"], "notifications/progress", "{message}");
            if message["params"]["statusMessage"] == "the next task" {
                break;
            }
        }
    }
}

// A6.9: how long a task is kept.

#[tokio::test]
async fn the_time_to_live_is_as_asked_for_within_what_is_kept_and_truthful() {
    let (gate, clock) = (Gate::new(), manual_clock());
    let tools = registry([gate.tool("slow"), Gate::new().tool("other")]);
    let server = TestServer::start_with(tools, Config::default(), Arc::new(clock.clone())).await;
    let legacy = LegacySession::open(&server).await;
    for (asked, granted) in [(1, 1), (3_600_000, 3_600_000), (3_600_001, 3_600_000), (9_007_199_254_740_991_u64, 3_600_000)] {
        let created = legacy.task("other", json!({}), json!({"ttl": asked})).await;
        assert_eq!(created["task"]["ttl"], granted, "for {asked}");
    }
    let id = id_of(&legacy.task("slow", json!({}), json!({"ttl": MINUTE_MS})).await);
    let ttl = async || legacy.get(&id).await["ttl"].as_u64().expect("a number");
    assert_eq!(ttl().await, MINUTE_MS);
    clock.advance(60 * SECOND);
    assert_eq!(ttl().await, 2 * MINUTE_MS, "it grows with the task");
    clock.advance(HOUR);
    assert_eq!((ttl().await, &legacy.get(&id).await["status"]), (62 * MINUTE_MS, &json!("working")), "live work never expires");
    gate.go.send();
    until_is(&legacy, &id, "completed").await;
    clock.advance(60 * SECOND - MS);
    assert_eq!(ttl().await, 62 * MINUTE_MS, "a minute after an end at 61");
    clock.advance(MS);
    assert_eq!(gone(&legacy, &id).await, not_found());
    assert_eq!(legacy.error("tasks/result", json!({"taskId": id})).await, not_found());
}

#[tokio::test]
async fn a_task_is_kept_for_ever_only_where_nobody_says_how_long() {
    let config = Config { retention: None, ..Config::default() };
    let server = TestServer::start_with(registry([Gate::new().tool("slow")]), config, Arc::new(manual_clock())).await;
    let legacy = LegacySession::open(&server).await;
    assert_eq!(legacy.task("slow", json!({}), json!({})).await["task"].get("ttl"), Some(&Value::Null));
    assert_eq!(legacy.task("slow", json!({}), json!({"ttl": MINUTE_MS})).await["task"]["ttl"], MINUTE_MS);
}

// A6.11, A6.12: lists, errors, and whose tasks they are.

#[tokio::test]
async fn a_list_is_read_in_pages_while_tasks_come_and_go() {
    let (gate, clock) = (Gate::new(), manual_clock());
    let config = Config { page_len: 2, ..Config::default() };
    let server = TestServer::start_with(registry([gate.tool("slow"), quick("quick")]), config, Arc::new(clock.clone())).await;
    let legacy = LegacySession::open(&server).await;
    let mut made = Vec::new();
    for tool in ["slow", "slow", "quick", "quick", "slow"] {
        made.push(id_of(&legacy.task(tool, json!({}), json!({"ttl": 1_000})).await));
        clock.advance(MS);
    }
    for ended in &made[2..4] {
        legacy.result(ended).await;
    }
    let first = legacy.ok("tasks/list", json!({})).await;
    assert_eq!(listed(&first), [made[4].clone(), made[3].clone()], "the newest first");
    // The last of this page and the first of the next one go, and a new one comes.
    clock.advance(2 * SECOND);
    for ended in &made[2..4] {
        gone(&legacy, ended).await;
    }
    let newest = legacy.start("slow", json!({})).await;
    let (mut seen, mut cursor) = (Vec::new(), first["nextCursor"].clone());
    while cursor.is_string() && seen.len() < 10 {
        let page = legacy.ok("tasks/list", json!({"cursor": cursor})).await;
        assert!(listed(&page).len() <= 2, "{page}");
        seen.extend(listed(&page));
        cursor = page["nextCursor"].clone();
    }
    assert_eq!(seen, [made[1].clone(), made[0].clone()]);
    assert_eq!(listed(&legacy.ok("tasks/list", json!({})).await), [newest, made[4].clone()]);
    for cursor in [json!("nonsense"), json!(7), json!({})] {
        assert_eq!(refusal(&legacy, "tasks/list", json!({"cursor": cursor})).await, -32602, "{cursor}");
    }
}

#[tokio::test]
async fn a_server_may_keep_its_list_to_itself() {
    let config = Config { legacy: LegacyConfig { list_tasks: false, ..LegacyConfig::default() }, ..Config::default() };
    let server = TestServer::start_with(registry([Gate::new().tool("slow")]), config, Arc::new(manual_clock())).await;
    let legacy = LegacySession::open(&server).await;
    assert_eq!(legacy.init()["capabilities"]["tasks"], json!({"cancel": {}, "requests": {"tools": {"call": {}}}}));
    let id = legacy.start("slow", json!({})).await;
    assert_eq!(refusal(&legacy, "tasks/list", json!({})).await, -32601);
    assert_eq!(legacy.get(&id).await["status"], "working");
}

#[tokio::test]
async fn calls_that_are_no_tasks_to_their_caller_are_never_listed() {
    let gate = Gate::new();
    let saves = gate.saves();
    let server = TestServer::start_with(registry([saves]), Config::default(), Arc::new(manual_clock())).await;
    let legacy = LegacySession::open(&server).await;
    let caller = legacy.clone();
    let calling = tokio::spawn(async move { caller.call("saves", json!({})).await });
    with_timeout("the start", gate.started.wait()).await;
    assert_eq!(server.server.engine().reader().open_tasks(None, 10).await.expect("readable").len(), 1, "there is something to hide");
    assert_eq!(legacy.ok("tasks/list", json!({})).await, json!({"tasks": []}));
    gate.go.send();
    let result = with_timeout("the result", calling).await.expect("no panic");
    assert_eq!((text_of(&result["content"]), result.get("_meta")), ("done".to_owned(), None));
    assert_eq!(legacy.ok("tasks/list", json!({})).await, json!({"tasks": []}));
}

#[tokio::test]
async fn tasks_belong_to_their_caller_and_to_nobody_else() {
    let config = Config { page_len: 1, ..two_callers() };
    let server = TestServer::start_with(registry([Gate::new().tool("slow")]), config, Arc::new(manual_clock())).await;
    let (ann, bob) = (session_of(&server, "ann-token").await, session_of(&server, "bob-token").await);
    let (hers, his) = (ann.start("slow", json!({})).await, bob.start("slow", json!({})).await);
    let other = bob.start("slow", json!({})).await;
    let page = bob.ok("tasks/list", json!({})).await;
    assert_eq!(listed(&ann.ok("tasks/list", json!({})).await), std::slice::from_ref(&hers));
    // A cursor of his list is none of hers.
    let stolen = ann.raw("tasks/list", json!({"cursor": page["nextCursor"]})).await.json();
    assert!(page["nextCursor"].is_string() && ![&his, &other].iter().any(|id| stolen.to_string().contains(*id)), "{stolen}");
    let (unknown, upper, longer) = ("0".repeat(32), his.to_uppercase(), format!("{his}0"));
    for method in NAMING {
        for id in [&*his, &unknown, &upper, &longer, "", "nonsense"] {
            assert_eq!(ann.error(method, json!({"taskId": id})).await, not_found(), "{method} {id}");
        }
        for params in [json!({}), json!({"taskId": 5}), json!({"taskId": null})] {
            assert_eq!(refusal(&ann, method, params.clone()).await, -32602, "{method} {params}");
        }
    }
    assert_eq!(bob.get(&his).await["status"], "working", "untouched");
    // What counts is the caller and not the session.
    let again = session_of(&server, "ann-token").await;
    assert_eq!((ann.end().await, again.get(&hers).await["taskId"].as_str()), (200, Some(&*hers)));
    assert_eq!(again.cancel(&hers).await["status"], "cancelled");
}

#[test]
fn tasks_and_their_results_are_there_after_a_crash() {
    let (dir, clock, gate) = (Arc::new(TempDir::new()), manual_clock(), Gate::new());
    let tools = || registry([quick("quick"), gate.tool("slow")]);
    let (legacy, ended, result, cut) = until_crash(async {
        let server = TestServer::start_in(dir.clone(), tools(), Config::default(), Arc::new(clock.clone())).await;
        let legacy = LegacySession::open(&server).await;
        let ended = legacy.start("quick", json!({})).await;
        let result = legacy.result(&ended).await;
        let cut = legacy.start("slow", json!({})).await;
        with_timeout("the start", gate.started.wait()).await;
        (legacy, ended, result, cut)
    });
    until_crash(async {
        let server = reopened(&dir, tools(), Config::default(), &clock).await;
        let legacy = legacy.at(server.port);
        assert_eq!(legacy.result(&ended).await, result);
        let error = legacy.error("tasks/result", json!({"taskId": cut})).await;
        assert!(error["message"].as_str().is_some_and(|text| text.contains("interrupted")), "{error}");
        assert_eq!(legacy.get(&cut).await["statusMessage"], error["message"]);
        let all = BTreeSet::from_iter(listed(&legacy.ok("tasks/list", json!({})).await));
        assert_eq!(all, BTreeSet::from([ended.clone(), cut.clone()]));
    });
}
