//! Input that no good client of this era sends. Each gets a clear error, or no answer at all; nothing changes, and the
//! session goes on as if it had never come.

use serde_json::{Value, json};
use taskwire::{
    server::Config,
    tool::{Answer, ToolError},
};
use tokio::task::JoinHandle;

use crate::{
    kit::{Client, Response, with_timeout},
    legacy::{
        kit::{LATEST, LegacySession, Sse, initialize},
        session::{refused, said},
        streams::{call, response},
        tasks::{awaiting, refusal, until_is},
    },
    tasks::{accept, name_form, two_callers},
    tool_harness::{ToolHarness, ToolRun, not_found, uncoalesced},
};

/// No task has this name.
const NOBODY: &str = "00000000000000000000000000000000";

/// A client that knows everything there is.
fn everything() -> Value {
    let tasks = json!({"streaming": {"partial": {}}, "responses": {"modes": ["task", "immediate", "streaming"]}});
    json!({"elicitation": {}, "sampling": {}, "roots": {}, "tasks": tasks})
}

/// A session with a task that has written two chunks and goes on: bad input must not show in it.
struct Target {
    harness: ToolHarness,
    legacy: LegacySession,
    task: String,
    run: ToolRun,
    before: Value,
}

impl Target {
    async fn new() -> Self {
        Self::with(uncoalesced(), None).await
    }

    async fn with(config: Config, token: Option<&str>) -> Self {
        let mut harness = ToolHarness::of(config, |tool| tool.streams()).await;
        let legacy = LegacySession::of(harness.server.port, token, LATEST, everything()).await;
        let task = legacy.start("writes", json!({})).await;
        let run = harness.run().await;
        run.writes("a").await;
        run.writes("b").await;
        let mut target = Self { harness, legacy, task, run, before: Value::Null };
        target.before = target.state().await;
        target
    }

    /// All that can be seen of the caller's tasks.
    async fn state(&self) -> Value {
        let list = self.legacy.ok("tasks/list", json!({})).await;
        let task = self.legacy.get(&self.task).await;
        let output = self.legacy.ok("tasks/result", json!({"taskId": self.task, "lastSeqNr": 1})).await;
        json!([list, task, output])
    }

    /// The session still works, and nothing was done.
    async fn unharmed(&self) {
        assert_eq!(self.state().await, self.before);
        assert_eq!(self.harness.server.server.engine().running(), 1, "nothing else runs");
        assert!(!self.run.ctx.is_cancelled());
        assert_eq!(self.legacy.ok("tools/list", json!({})).await["tools"][0]["name"], "writes");
    }

    /// Posts these bytes as a request of the session.
    async fn post(&self, body: impl AsRef<[u8]>) -> Response {
        with_timeout("an answer", Client::new(self.harness.server.port).post(&self.legacy.headers(), body.as_ref())).await
    }

    /// Sends requests that must be refused with this code, under a good status.
    async fn refuses<'m>(&self, code: i64, requests: impl IntoIterator<Item = (&'m str, Value)>) {
        for (method, params) in requests {
            assert_eq!(refusal(&self.legacy, method, params.clone()).await, code, "{method} {params}");
        }
        self.unharmed().await;
    }
}

#[tokio::test]
async fn the_call_that_is_spoiled_here_would_run() {
    let mut target = Target::new().await;
    let id = target.legacy.start("writes", json!({})).await;
    target.harness.run().await.ends("done");
    until_is(&target.legacy, &id, "completed").await;
    assert_ne!(target.state().await, target.before);
}

// Sessions.

#[tokio::test]
async fn an_unknown_session_is_not_found() {
    let target = Target::new().await;
    let (legacy, task) = (&target.legacy, &target.task);
    let mut headers = legacy.headers();
    headers.iter_mut().filter(|(key, _)| key == "Mcp-Session-Id").for_each(|(_, value)| *value = "never-was".to_owned());
    for message in [
        legacy.message(1, "tools/call", json!({"name": "writes", "task": {}})),
        legacy.message(1, "tasks/cancel", json!({"taskId": task})),
        legacy.message(1, "tasks/get", json!({"taskId": task})),
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}),
        json!({"jsonrpc": "2.0", "id": "1", "result": {}}),
    ] {
        let response = Client::new(target.harness.server.port).post(&headers, message.to_string().as_bytes()).await;
        assert_eq!(refused(&response), (404, -32600), "{message}");
        assert!(said(&response).contains("session") && said(&response).contains("initialize"), "{}", said(&response));
    }
    for method in ["GET", "DELETE"] {
        assert_eq!(legacy.http(method, &[("Mcp-Session-Id", "never-was")]).await.status, 404, "{method}");
    }
    target.unharmed().await;
}

#[tokio::test]
async fn a_second_handshake_in_a_session_is_refused() {
    let target = Target::new().await;
    for capabilities in [everything(), json!({})] {
        let response = target.legacy.raw("initialize", initialize(LATEST, &capabilities)).await;
        assert_eq!((refused(&response), response.header("mcp-session-id")), ((400, -32600), None));
        assert!(said(&response).contains("session"), "{}", said(&response));
    }
    target.unharmed().await;
}

#[tokio::test]
async fn a_handshake_that_says_too_little_or_nonsense_begins_no_session() {
    let target = Target::new().await;
    let mut bad = vec![None, Some(json!({})), Some(json!([])), Some(json!("2025-11-25"))];
    for (key, values) in [
        ("protocolVersion", [Value::Null, json!(5), json!({}), json!(["2025-11-25"])]),
        ("capabilities", [json!(5), json!("all"), json!([]), json!(true)]),
        ("clientInfo", [json!(5), json!("me"), json!([]), json!(true)]),
    ] {
        for value in values {
            let mut params = initialize(LATEST, &json!({}));
            params[key] = value;
            bad.push(Some(params));
        }
    }
    for value in [json!(5), json!([]), json!("all"), json!(true)] {
        bad.push(Some(initialize(LATEST, &json!({"tasks": value}))));
    }
    let headers = target.legacy.headers().into_iter().filter(|(key, _)| !key.to_ascii_lowercase().starts_with("mcp-"));
    let headers: Vec<_> = headers.collect();
    for params in bad {
        let mut message = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize"});
        if let Some(params) = params {
            message["params"] = params;
        }
        let response = Client::new(target.harness.server.port).post(&headers, message.to_string().as_bytes()).await;
        assert_eq!(refused(&response).1, -32602, "{message}");
        assert_eq!(response.header("mcp-session-id"), None, "{message}");
    }
    target.unharmed().await;
}

#[tokio::test]
async fn malformed_members_of_drafts_declare_nothing_and_the_rest_of_a_handshake_holds() {
    let target = Target::new().await;
    let (partial, modes) = (json!({"partial": {}}), json!({"modes": ["streaming"]}));
    let mut cases: Vec<(Value, [bool; 2])> = Vec::new();
    for bad in [json!("yes"), json!(5), json!([]), json!(true), Value::Null] {
        cases.push((json!({"streaming": bad, "responses": modes}), [false, true]));
        cases.push((json!({"streaming": {"partial": bad}, "responses": modes}), [false, true]));
        cases.push((json!({"streaming": partial, "responses": bad}), [true, false]));
    }
    for bad in [json!("all"), json!(7), json!({}), json!([5]), json!(["task", null]), json!(true), Value::Null] {
        cases.push((json!({"streaming": partial, "responses": {"modes": bad}}), [true, false]));
        cases.push((json!({"streaming": [bad], "responses": {"modes": bad}}), [false, false]));
    }
    for (tasks, expected) in cases {
        let legacy = LegacySession::declaring(&target.harness.server, json!({"elicitation": {}, "tasks": tasks})).await;
        let capabilities = &legacy.init()["capabilities"]["tasks"];
        assert_eq!(["streaming", "responses"].map(|draft| capabilities.get(draft).is_some()), expected, "{tasks}: {capabilities}");
        assert_eq!((&capabilities["cancel"], &capabilities["list"]), (&json!({}), &json!({})), "{tasks}: {capabilities}");
        let listed = legacy.ok("tools/list", json!({})).await;
        assert_eq!(listed["tools"][0]["execution"].get("streamPartial").is_some(), expected[0], "{tasks}");
    }
    target.unharmed().await;
}

// Tasks.

#[tokio::test]
async fn the_task_of_another_caller_is_like_one_that_never_was() {
    let target = Target::with(Config { engine: uncoalesced().engine, ..two_callers() }, Some("ann-token")).await;
    let bob = LegacySession::of(target.harness.server.port, Some("bob-token"), LATEST, everything()).await;
    for task in [target.task.as_str(), NOBODY, "never-was", "", "../../etc/passwd", "\0", "é"] {
        for (method, params) in [
            ("tasks/get", json!({"taskId": task})),
            ("tasks/result", json!({"taskId": task})),
            ("tasks/result", json!({"taskId": task, "lastSeqNr": 1})),
            ("tasks/result", json!({"taskId": task, "lastSeqNr": 99})),
            ("tasks/cancel", json!({"taskId": task})),
        ] {
            assert_eq!(bob.error(method, params).await, not_found(), "{method} {task:?}");
        }
    }
    assert_eq!(bob.ok("tasks/list", json!({})).await["tasks"], json!([]));
    target.unharmed().await;
}

#[tokio::test]
async fn a_name_that_no_task_can_have_is_refused() {
    let target = Target::new().await;
    let long = "0".repeat(50_000);
    for task in [Value::Null, json!(5), json!(true), json!({}), json!([target.task]), json!(long), json!(target.task.to_uppercase() + "0")]
    {
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            assert_eq!(refusal(&target.legacy, method, json!({"taskId": task})).await, -32602, "{method} {task}");
            assert_eq!(refusal(&target.legacy, method, json!({})).await, -32602, "{method}");
        }
    }
    target.unharmed().await;
}

#[tokio::test]
async fn a_malformed_cursor_is_refused() {
    let target = Target::with(Config { page_len: 1, ..uncoalesced() }, None).await;
    for _ in 0..2 {
        target.legacy.start("writes", json!({})).await;
    }
    let page = target.legacy.ok("tasks/list", json!({})).await;
    let next = page["nextCursor"].as_str().expect("there is more").to_owned();
    let long = "x".repeat(50_000);
    let bad = [json!(""), json!("2"), json!("%%%"), json!("é"), json!(long), json!(format!("{next}x")), json!(2), json!({}), json!([next])];
    for cursor in bad {
        for method in ["tasks/list", "tools/list", "prompts/list", "resources/list", "resources/templates/list"] {
            assert_eq!(refusal(&target.legacy, method, json!({"cursor": cursor})).await, -32602, "{method} {cursor}");
        }
    }
    assert_eq!(refusal(&target.legacy, "tools/list", json!({"cursor": next})).await, -32602, "a cursor of another list");
    assert_eq!(target.legacy.ok("tasks/list", json!({})).await, page);
    assert_eq!(target.legacy.ok("tasks/list", json!({"cursor": next})).await["tasks"].as_array().expect("tasks").len(), 1);
    assert_eq!(target.legacy.get(&target.task).await, target.before[1]);
}

#[tokio::test]
async fn a_last_number_that_is_none_is_refused() {
    let target = Target::new().await;
    let bad = [
        json!(0),
        json!(-1),
        json!(i64::MIN),
        json!(1.5),
        json!(0.1),
        json!(-0.5),
        json!(1e300),
        json!("1"),
        json!(""),
        json!("one"),
        Value::Null,
        json!(true),
        json!({}),
        json!([1]),
    ];
    let task = &target.task;
    target.refuses(-32602, bad.into_iter().map(|number| ("tasks/result", json!({"taskId": task, "lastSeqNr": number})))).await;
    // More digits than any number has.
    let message = target.legacy.message(1, "tasks/result", json!({"taskId": task, "lastSeqNr": "@"})).to_string();
    let response = target.post(message.replace("\"@\"", &"9".repeat(400))).await;
    assert_eq!(refused(&response).1, -32602);
    target.unharmed().await;
}

#[tokio::test]
async fn a_last_number_beyond_the_end_is_told_that_nothing_follows() {
    let mut target = Target::new().await;
    for number in [3_u64, 99, u64::from(u32::MAX), 9_007_199_254_740_991] {
        let part = target.legacy.ok("tasks/result", json!({"taskId": target.task, "lastSeqNr": number})).await;
        assert_eq!((&part["partial-content"], &part["isComplete"]), (&json!([]), &json!(false)), "{number}: it goes on");
    }
    target.unharmed().await;
    target.run.ends("done");
    until_is(&target.legacy, &target.task, "completed").await;
    let part = target.legacy.ok("tasks/result", json!({"taskId": target.task, "lastSeqNr": 99})).await;
    assert_eq!((&part["partial-content"], &part["isComplete"]), (&json!([]), &json!(true)));
}

#[tokio::test]
async fn a_task_that_is_none_or_lives_for_no_time_is_not_made() {
    let target = Target::new().await;
    let tasks = [json!(5), json!("yes"), json!(true), json!([]), json!([{}])].into_iter();
    let times = [json!(0), json!(-1), json!(1.5), json!("60000"), json!(true), json!({}), json!([1]), json!(-1e300)].into_iter();
    let modes =
        [json!(5), json!("task"), json!(true), json!({}), json!([5]), json!([null]), json!([["task"]]), json!(["task", {}])].into_iter();
    let tasks = tasks.chain(times.map(|ttl| json!({"ttl": ttl}))).chain(modes.map(|modes| json!({"responseModes": modes})));
    target.refuses(-32602, tasks.map(|task| ("tools/call", json!({"name": "writes", "arguments": {}, "task": task})))).await;
}

#[tokio::test]
async fn a_parameter_of_the_wrong_type_is_refused() {
    let target = Target::new().await;
    let long = "k".repeat(257);
    let key = |value: Value| json!({"name": "writes", "task": {}, "_meta": {"dev.taskwire/idempotencyKey": value}});
    let token = |value: Value| json!({"name": "writes", "task": {}, "_meta": {"progressToken": value}});
    let complete = |of: Value| json!({"ref": of, "argument": {"name": "a", "value": "b"}});
    let requests = [
        ("tools/call", json!({})),
        ("tools/call", json!({"name": 5})),
        ("tools/call", json!({"name": ["writes"]})),
        ("tools/call", json!({"name": "nobody", "task": {}})),
        ("tools/call", json!({"name": "writes", "arguments": [], "task": {}})),
        ("tools/call", json!({"name": "writes", "arguments": "{}", "task": {}})),
        ("tools/call", key(json!(5))),
        ("tools/call", key(json!(""))),
        ("tools/call", key(json!(long))),
        ("tools/call", token(json!(1.5))),
        ("tools/call", token(json!({}))),
        ("tools/call", token(json!(true))),
        ("logging/setLevel", json!({"level": "loud"})),
        ("logging/setLevel", json!({})),
        ("resources/subscribe", json!({})),
        ("resources/subscribe", json!({"uri": 5})),
        ("resources/unsubscribe", json!({"uri": []})),
        ("resources/read", json!({"uri": 5})),
        ("prompts/get", json!({"name": {}})),
        ("prompts/get", json!({"name": "nobody"})),
        ("completion/complete", complete(json!(5))),
        ("completion/complete", complete(json!({"type": "ref/prompt"}))),
        ("completion/complete", json!({"ref": {"type": "ref/prompt", "name": "p"}})),
    ];
    target.refuses(-32602, requests).await;
}

#[tokio::test]
async fn methods_that_nobody_heard_of_do_not_exist() {
    let target = Target::new().await;
    let long = "x".repeat(50_000);
    let methods =
        ["x", "tools/Call", "tools", "tasks", "tasks/delete", "tasks/update", "tasks/result/", "server/discover", "__proto__", &long];
    let params = json!({"name": "writes", "arguments": {}, "task": {}, "taskId": target.task});
    target.refuses(-32601, methods.map(|method| (method, params.clone()))).await;
}

#[tokio::test]
async fn what_has_ended_cannot_be_cancelled() {
    let mut target = Target::new().await;
    target.run.ends_with(Err(ToolError::new("no luck")));
    until_is(&target.legacy, &target.task, "failed").await;
    let before = target.state().await;
    for _ in 0..2 {
        let error = target.legacy.error("tasks/cancel", json!({"taskId": target.task})).await;
        assert_eq!(error["code"], -32602);
        assert_ne!(error, not_found(), "it is there, but over");
    }
    assert_eq!(target.state().await, before);
}

// Answers.

#[tokio::test]
async fn an_answer_to_a_question_that_was_never_asked_is_refused() {
    let target = Target::new().await;
    let long = "q".repeat(50_000);
    for id in [
        json!("never"),
        json!(""),
        json!("1"),
        json!(1),
        json!(0),
        json!(-1),
        json!(long),
        json!(target.task),
        json!(format!("{NOBODY}.x.name")),
    ] {
        for what in [json!({"result": accept("Eve")}), json!({"error": {"code": -1, "message": "no"}})] {
            let mut message = json!({"jsonrpc": "2.0", "id": id});
            let (key, value) = what.as_object().and_then(|members| members.iter().next()).expect("one member");
            message[key] = value.clone();
            let response = target.post(message.to_string()).await;
            assert_eq!(refused(&response), (400, -32600), "{message}");
            assert_eq!(response.json().get("id"), None, "{message}");
            assert!(said(&response).contains("never asked"), "{}", said(&response));
        }
    }
    target.unharmed().await;
}

/// Has the task of a target ask: what its tool waits for, and the stream on which the question has come.
async fn asking(target: &Target) -> (JoinHandle<Result<Answer, ToolError>>, Sse, Value) {
    let ctx = target.run.ctx.clone();
    let asked = tokio::spawn(async move { ctx.ask("name", name_form("Name?")).await });
    let mut events = awaiting(&target.legacy, &target.task).await;
    let question = events.until("elicitation/create").await;
    until_is(&target.legacy, &target.task, "input_required").await;
    (asked, events, question)
}

#[tokio::test]
async fn an_answer_that_is_none_leaves_its_question_open() {
    let mut target = Target::with(Config { engine: uncoalesced().engine, ..two_callers() }, Some("ann-token")).await;
    let (asked, mut events, question) = asking(&target).await;
    let id = question["id"].as_str().expect("a text").to_owned();
    let before = target.state().await;
    let answer = |id: &Value| json!({"jsonrpc": "2.0", "id": id, "result": accept("Eve")});
    for bad in [
        json!({"jsonrpc": "2.0", "id": id}),
        json!({"jsonrpc": "1.0", "id": id, "result": accept("Eve")}),
        json!({"jsonrpc": "2.0", "id": id, "result": accept("Eve"), "error": {"code": -1, "message": "no"}}),
        answer(&json!([id])),
        answer(&Value::Null),
        answer(&json!(format!("{id}x"))),
        answer(&json!(format!(" {id}"))),
        json!({"jsonrpc": "2.0", "result": accept("Eve")}),
        json!([answer(&json!(id))]),
    ] {
        let response = target.post(bad.to_string()).await;
        assert_eq!(refused(&response), (400, -32600), "{bad}");
        assert_eq!(target.state().await, before, "{bad}");
    }
    // Nor can somebody else answer it.
    let bob = LegacySession::of(target.harness.server.port, Some("bob-token"), LATEST, everything()).await;
    assert_eq!(refused(&bob.post(&answer(&json!(id))).await), (400, -32600));
    assert_eq!(target.state().await, before);
    target.legacy.answer(&question, accept("Ada")).await;
    let answer = with_timeout("the answer", asked).await.expect("no panic").expect("an answer");
    assert_eq!(answer.content, Some(json!({"name": "Ada"})));
    target.run.ends("done");
    assert_eq!(response(&mut events).await["result"]["content"][0]["text"], "done");
}

#[tokio::test]
async fn a_second_answer_is_taken_and_changes_nothing() {
    let mut target = Target::new().await;
    let (asked, mut events, question) = asking(&target).await;
    target.legacy.answer(&question, accept("Ada")).await;
    let answer = with_timeout("the answer", asked).await.expect("no panic").expect("an answer");
    assert_eq!(answer.content, Some(json!({"name": "Ada"})));
    let before = until_is(&target.legacy, &target.task, "working").await;
    target.legacy.answer(&question, accept("Eve")).await;
    target.legacy.refuse(&question, -1, "no").await;
    assert_eq!(target.legacy.get(&target.task).await, before);
    let again = target.run.ctx.ask("name", name_form("Name?")).await.expect("the answer that was given");
    assert_eq!(again.content, Some(json!({"name": "Ada"})), "the first one counts");
    target.run.ends("done");
    assert_eq!(response(&mut events).await["result"]["content"][0]["text"], "done");
    target.legacy.answer(&question, accept("Eve")).await;
    assert_eq!(target.legacy.get(&target.task).await["status"], "completed");
}

#[tokio::test]
async fn an_answer_for_a_task_that_is_over_is_taken_and_changes_nothing() {
    let target = Target::new().await;
    let (asked, mut events, question) = asking(&target).await;
    target.legacy.cancel(&target.task).await;
    let before = target.legacy.get(&target.task).await;
    assert_eq!(before["status"], "cancelled");
    target.legacy.answer(&question, accept("Eve")).await;
    assert!(with_timeout("the end of the question", asked).await.expect("no panic").is_err(), "nobody waits for it");
    assert_eq!(target.legacy.get(&target.task).await, before);
    assert_eq!(response(&mut events).await["error"]["code"], -32603);
}

// Messages.

#[tokio::test]
async fn what_is_no_json_or_no_message_is_refused() {
    let target = Target::new().await;
    let good = call(&target.legacy, "writes", json!({})).to_string();
    for body in ["", "{", "nul", "\0", &good[..good.len() - 1], &format!("{good}}}"), &format!("\u{feff}{good}")] {
        assert_eq!(refused(&target.post(body).await), (400, -32700), "{body:?}");
    }
    for body in
        ["null", "3", "\"x\"", "{}", "[]", "[1]", &format!("[{good}]"), &good.replace("2.0", "1.0"), &good.replace("\"tools/call\"", "5")]
    {
        assert_eq!(refused(&target.post(body).await), (400, -32600), "{body}");
    }
    target.unharmed().await;
}

#[tokio::test]
async fn an_id_that_is_neither_text_nor_a_whole_number_is_refused_without_one() {
    let target = Target::new().await;
    for id in ["null", "1.5", "1e3", "true", "{}", "[1]", "99999999999999999999999999"] {
        let body = json!({"jsonrpc": "2.0", "id": "@", "method": "tools/call", "params": {"name": "writes", "task": {}}}).to_string();
        let response = target.post(body.replace("\"@\"", id)).await;
        assert_eq!(refused(&response), (400, -32600), "{id}");
        assert_eq!(response.json().get("id"), None, "{id}");
    }
    target.unharmed().await;
}

#[tokio::test]
async fn params_that_are_no_object_are_refused() {
    let target = Target::new().await;
    for params in [Value::Null, json!([]), json!(["writes", {}]), json!("writes"), json!(5), json!(true)] {
        for method in ["tools/call", "tasks/get"] {
            let mut message = target.legacy.message(1, method, Value::Null);
            message["params"] = params.clone();
            let response = target.post(message.to_string()).await;
            assert_eq!((refused(&response).1, &response.json()["id"]), (-32602, &json!(1)), "{message}");
        }
    }
    target.unharmed().await;
}

#[tokio::test]
async fn a_call_without_an_id_runs_nothing() {
    let target = Target::new().await;
    for (method, params) in [
        ("tools/call", json!({"name": "writes", "task": {}})),
        ("tasks/cancel", json!({"taskId": target.task})),
        ("initialize", initialize(LATEST, &json!({}))),
    ] {
        let response = target.post(json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string()).await;
        assert_eq!((response.status, response.body.len()), (202, 0), "{method}");
    }
    target.unharmed().await;
}

#[tokio::test]
async fn deep_nesting_does_no_harm() {
    let target = Target::new().await;
    let levels = 100_000;
    let arrays = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let objects = format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels));
    for deep in [arrays, objects] {
        for (method, params) in [
            ("tools/call", json!({"name": "@", "task": {}})),
            ("tools/call", json!({"name": "writes", "arguments": {"a": "@"}, "task": {}})),
            ("tools/call", json!({"name": "writes", "task": {"ttl": "@"}})),
            ("tools/call", json!({"name": "writes", "task": {"responseModes": ["@"]}})),
            ("tasks/list", json!({"cursor": "@"})),
            ("tasks/result", json!({"taskId": target.task, "lastSeqNr": "@"})),
            ("logging/setLevel", json!({"level": "@"})),
        ] {
            let text = target.legacy.message(1, method, params).to_string().replace("\"@\"", &deep);
            assert_eq!(refused(&target.post(&text).await).1, -32602, "{method}");
        }
        let answer = json!({"jsonrpc": "2.0", "id": "never", "result": {"content": "@"}}).to_string();
        assert_eq!(refused(&target.post(answer.replace("\"@\"", &deep)).await), (400, -32600));
    }
    target.unharmed().await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let target = Target::with(Config { body_bytes: 10_000, ..uncoalesced() }, None).await;
    let text = target.legacy.message(1, "tools/call", json!({"name": "writes", "arguments": {"a": "x".repeat(10_000)}, "task": {}}));
    let response = target.post(text.to_string()).await;
    assert_eq!(refused(&response), (413, -32600));
    assert!(said(&response).contains("`body_bytes`"), "{}", said(&response));
    target.unharmed().await;
}
