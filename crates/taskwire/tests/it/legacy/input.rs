//! Questions in the legacy era are requests of the server: how they reach the client, what may come back, and that none is
//! lost or answered twice.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use serde_json::{Value, json};
use taskwire::{
    core::Payload,
    server::Config,
    tool::{InputRequired, Question, TaskMode, Tool, ToolError},
};
use tokio::task::JoinHandle;

use crate::{
    kit::{Response, TempDir, TestServer, manual_clock, with_timeout},
    legacy::{
        kit::{LATEST, LegacySession, RELATED, Sse, session_of},
        partials::prime,
        tasks::{awaiting, brief, is_json, is_response, refusal, related, story, until_is},
    },
    tasks::{Gate, accept, name_form, name_in, registry, reopened, tool, two_callers, until_crash},
    tool_harness::{ToolHarness, one_may_wait, one_waits, text_of},
};

pub(crate) const FORM: &str = "elicitation/create";

/// Asks for a name, says what came back, and ends when it is let go.
pub(crate) fn asks(gate: &Gate) -> Tool {
    tool("asks", gate, |gate, ctx| async move {
        let answer = ctx.ask("name", name_form("Name?")).await?;
        gate.go.wait().await;
        Ok(format!("{} {}", answer.action.as_deref().unwrap_or("nothing"), name_in(&answer)))
    })
}

/// A gate that lets everybody pass.
pub(crate) fn open_gate() -> Gate {
    let gate = Gate::new();
    (0..10).for_each(|_| gate.go.send());
    gate
}

/// A tool that asks this, and says what came back.
fn asks_this(question: fn() -> Question) -> Tool {
    tool("asks", &question, |question, ctx| async move {
        let answer = ctx.ask("it", question()).await?;
        Ok(json!({"action": answer.action, "content": answer.content, "rest": answer.rest}).to_string())
    })
}

/// Calls `asks`, as a task or not, and gives the stream on which it asks, and the task.
async fn call_asks(legacy: &LegacySession, as_task: bool) -> (Sse, Option<String>) {
    if !as_task {
        return (legacy.stream("tools/call", json!({"name": "asks", "arguments": {}})).await, None);
    }
    let id = legacy.start("asks", json!({})).await;
    until_is(legacy, &id, "input_required").await;
    (awaiting(legacy, &id).await, Some(id))
}

/// The response at the end of a stream.
async fn response(events: &mut Sse) -> Value {
    let rest = events.rest().await;
    assert_eq!(rest.iter().filter(|message| is_response(message)).count(), 1, "{rest:?}");
    rest.last().expect("a response").clone()
}

/// The text of the result at the end of a stream.
async fn said(events: &mut Sse) -> String {
    brief(&response(events).await)
}

// Through `tasks/result`.

#[tokio::test]
async fn a_question_comes_to_who_waits_for_the_task_and_its_answer_lets_it_go_on() {
    let gate = Gate::new();
    let server = TestServer::start(registry([asks(&gate)])).await;
    let legacy = LegacySession::open(&server).await;
    let id = legacy.start("asks", json!({})).await;
    let mut events = awaiting(&legacy, &id).await;
    let mut messages: Vec<Value> = Vec::new();
    while messages.last().is_none_or(|message| message["method"] != FORM) {
        messages.push(events.next().await.expect("the stream goes on"));
    }
    let question = messages.pop().expect("a question");
    assert!(question["id"].is_string(), "{question}");
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    let params = json!({"mode": "form", "message": "Name?", "requestedSchema": schema, "_meta": related(&id)});
    assert_eq!(question["params"], params);
    assert_eq!(legacy.get(&id).await["status"], "input_required");
    legacy.answer(&question, accept("Ada")).await;
    assert_eq!(legacy.get(&id).await["status"], "working", "the answer counts as soon as it is taken");
    gate.go.send();
    messages.extend(events.rest().await);
    // A status that a later one has overtaken need not come.
    let briefs: Vec<_> = story(&messages).into_iter().filter(|brief| !matches!(brief.as_str(), "input_required" | "working")).collect();
    assert_eq!(briefs, ["completed", "= accept Ada"]);
}

#[tokio::test]
async fn two_questions_at_once_are_answered_one_by_one() {
    let asks = tool("asks", &(), |(), ctx| async move {
        let (first, last) = tokio::try_join!(ctx.ask("first", name_form("First name?")), ctx.ask("last", name_form("Last name?")))?;
        Ok(format!("{} {}", name_in(&first), name_in(&last)))
    });
    let server = TestServer::start(registry([asks])).await;
    let legacy = LegacySession::open(&server).await;
    let id = legacy.start("asks", json!({})).await;
    let mut events = awaiting(&legacy, &id).await;
    let mut questions = [events.until(FORM).await, events.until(FORM).await];
    questions.sort_by_key(|question| question["params"]["message"].to_string());
    let [first, last] = questions;
    assert_ne!(first["id"], last["id"]);
    assert_eq!((&first["params"]["message"], &last["params"]["message"]), (&json!("First name?"), &json!("Last name?")));
    legacy.answer(&last, accept("Lovelace")).await;
    assert_eq!(legacy.get(&id).await["status"], "input_required", "the other one is still open");
    legacy.answer(&first, accept("Ada")).await;
    assert_eq!(said(&mut events).await, "= Ada Lovelace");
}

#[tokio::test]
async fn a_new_wait_asks_again_under_another_id_and_either_may_be_answered_once() {
    for take_the_newer in [true, false] {
        let server = TestServer::start(registry([asks(&open_gate())])).await;
        let legacy = LegacySession::open(&server).await;
        let id = legacy.start("asks", json!({})).await;
        let mut gone = awaiting(&legacy, &id).await;
        let older = gone.until(FORM).await;
        drop(gone);
        let mut events = awaiting(&legacy, &id).await;
        let newer = events.until(FORM).await;
        assert_ne!(older["id"], newer["id"]);
        assert_eq!(older["params"], newer["params"]);
        let (taken, late) = if take_the_newer { (&newer, &older) } else { (&older, &newer) };
        legacy.answer(taken, accept("Ada")).await;
        legacy.answer(late, accept("Eve")).await;
        assert_eq!(said(&mut events).await, "= accept Ada");
        // Nobody minds an answer that comes too late.
        legacy.answer(late, accept("Eve")).await;
        assert_eq!(text_of(&legacy.result(&id).await["content"]), "accept Ada");
    }
}

#[tokio::test]
async fn the_first_answer_counts_and_a_second_is_taken_without_effect() {
    let gate = Gate::new();
    let server = TestServer::start(registry([asks(&gate)])).await;
    let legacy = LegacySession::open(&server).await;
    for as_task in [true, false] {
        let (mut events, _) = call_asks(&legacy, as_task).await;
        let question = events.until(FORM).await;
        legacy.answer(&question, accept("Ada")).await;
        legacy.answer(&question, accept("Eve")).await;
        legacy.refuse(&question, -32603, "no").await;
        gate.go.send();
        assert_eq!(said(&mut events).await, "= accept Ada", "as a task: {as_task}");
        legacy.answer(&question, accept("Eve")).await;
    }
}

#[tokio::test]
async fn whatever_the_person_does_reaches_the_tool() {
    let server = TestServer::start(registry([asks(&open_gate())])).await;
    let legacy = LegacySession::open(&server).await;
    for as_task in [true, false] {
        for (answer, expected) in [(json!({"action": "decline"}), "= decline nobody"), (json!({"action": "cancel"}), "= cancel nobody")] {
            let (mut events, task) = call_asks(&legacy, as_task).await;
            let question = events.until(FORM).await;
            legacy.answer(&question, answer).await;
            assert_eq!(said(&mut events).await, expected, "as a task: {as_task}");
            if let Some(task) = task {
                assert_eq!(legacy.get(&task).await["status"], "completed", "the tool decides what a refusal means");
            }
        }
    }
}

#[tokio::test]
async fn an_error_in_place_of_an_answer_fails_the_question_and_the_tool_decides() {
    let copes = tool("copes", &(), |(), ctx| async move {
        let answer = ctx.ask("name", name_form("Name?")).await;
        Ok(answer.map_or_else(|_| "nobody knows".to_owned(), |answer| name_in(&answer)))
    });
    let server = TestServer::start(registry([asks(&open_gate()), copes])).await;
    let legacy = LegacySession::open(&server).await;
    for as_task in [true, false] {
        let (mut events, task) = call_asks(&legacy, as_task).await;
        let question = events.until(FORM).await;
        legacy.refuse(&question, -1, "the person is away").await;
        let response = response(&mut events).await;
        assert_eq!(response["result"]["isError"], true, "{response}");
        assert!(brief(&response).contains("the person is away"), "{response}");
        if let Some(task) = task {
            assert_eq!(legacy.get(&task).await["status"], "failed");
        }
    }
    let id = legacy.start("copes", json!({})).await;
    let mut events = awaiting(&legacy, &id).await;
    let question = events.until(FORM).await;
    legacy.refuse(&question, -1, "the person is away").await;
    assert_eq!(said(&mut events).await, "= nobody knows");
}

#[tokio::test]
async fn an_answer_to_a_task_that_has_ended_changes_nothing() {
    let server = TestServer::start_with(registry([asks(&open_gate())]), Config::default(), Arc::new(manual_clock())).await;
    let legacy = LegacySession::open(&server).await;
    let (mut events, task) = call_asks(&legacy, true).await;
    let (question, task) = (events.until(FORM).await, task.expect("a task"));
    let cancelled = legacy.cancel(&task).await;
    assert_eq!(story(&events.rest().await), ["cancelled", "error -32603"]);
    legacy.answer(&question, accept("Ada")).await;
    assert_eq!(legacy.get(&task).await, cancelled);
}

#[tokio::test]
async fn a_question_is_answered_by_the_caller_who_was_asked() {
    let server = TestServer::start_with(registry([asks(&open_gate())]), two_callers(), Arc::new(manual_clock())).await;
    let (ann, bob) = (session_of(&server, "ann-token").await, session_of(&server, "bob-token").await);
    let (mut events, task) = call_asks(&ann, true).await;
    let question = events.until(FORM).await;
    let message = json!({"jsonrpc": "2.0", "id": question["id"], "result": accept("Eve")});
    let refused = bob.post(&message).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!(-32600)));
    assert_eq!(ann.get(&task.expect("a task")).await["status"], "input_required");
    ann.answer(&question, accept("Ada")).await;
    assert_eq!(said(&mut events).await, "= accept Ada");
}

/// What a tool asks.
type Ask = fn() -> Question;

/// A `tasks/result` that surely waits.
pub(crate) async fn waiting(legacy: &LegacySession, task: &str) -> JoinHandle<Response> {
    one_waits(|| {
        let (legacy, params) = (legacy.clone(), json!({"taskId": task}));
        async move { legacy.raw("tasks/result", params).await }
    })
    .await
}

#[tokio::test]
async fn a_client_that_takes_no_events_is_not_asked_and_gets_the_result_in_plain_json() {
    let mut harness = ToolHarness::with(one_may_wait()).await;
    let legacy = LegacySession::open(&harness.server).await.accepting("application/json");
    let id = legacy.start("writes", json!({})).await;
    let mut run = harness.run().await;
    let waits = waiting(&legacy, &id).await;
    let ctx = run.ctx.clone();
    let asking = tokio::spawn(async move { ctx.ask("name", name_form("Name?")).await });
    until_is(&legacy, &id, "input_required").await;
    harness.client.answer(&id, json!({"name": accept("Ada")})).await;
    let answer = with_timeout("the answer", asking).await.expect("no panic").expect("an answer");
    run.ends(name_in(&answer));
    let response = with_timeout("the result", waits).await.expect("no panic");
    assert!(response.status == 200 && is_json(&response), "{response:?}");
    assert_eq!(brief(&response.json()), "= Ada");
}

// After a crash.

#[test]
fn a_question_survives_a_crash_and_is_answered_on_the_stream_that_goes_on() {
    for has_seen_it in [true, false] {
        let (dir, clock, gate) = (Arc::new(TempDir::new()), manual_clock(), open_gate());
        let tools = || registry([asks(&gate).retry_on_interrupt()]);
        let (legacy, request, question, begin, last) = until_crash(async {
            let server = TestServer::start_in(dir.clone(), tools(), Config::default(), Arc::new(clock.clone())).await;
            let legacy = LegacySession::open(&server).await;
            let id = legacy.start("asks", json!({})).await;
            let request = legacy.message(legacy.next_id(), "tasks/result", json!({"taskId": id}));
            let mut events = legacy.stream_message(&request).await;
            let begin = prime(&mut events).await;
            let question = events.until(FORM).await;
            (legacy, request, question, begin, events.last_id.clone().expect("an id"))
        });
        until_crash(async {
            let server = reopened(&dir, tools(), Config::default(), &clock).await;
            let legacy = legacy.at(server.port);
            let mut events = legacy.resume(if has_seen_it { &last } else { &begin }).await;
            if !has_seen_it {
                assert_eq!(events.until(FORM).await, question, "what follows is what followed");
            }
            legacy.answer(&question, accept("Ada")).await;
            let rest = events.rest().await;
            assert!(!rest.iter().any(|message| message["method"] == FORM), "it is asked once: {rest:?}");
            let response = rest.last().expect("a response");
            assert_eq!((&response["id"], brief(response)), (&request["id"], "= accept Ada".to_owned()));
        });
    }
}

// Kinds of questions, and who can be asked them.

/// A completion by the client's model.
pub(crate) fn sampling() -> Question {
    Question::sampling(json!({"messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}], "maxTokens": 10}))
}

/// A page to open.
fn page() -> Question {
    Question::url("Sign in", "https://example.com/sign-in")
}

#[tokio::test]
async fn a_model_and_the_roots_can_be_asked_for_too() {
    let completion = json!({"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "m"});
    let roots = json!({"roots": [{"uri": "file:///a", "name": "a"}]});
    let kinds: [(Ask, &str, Value, Value); 2] = [
        (
            sampling,
            "sampling/createMessage",
            completion.clone(),
            json!({"action": null, "content": completion["content"], "rest": {"role": "assistant", "model": "m"}}),
        ),
        (Question::roots, "roots/list", roots.clone(), json!({"action": null, "content": null, "rest": roots})),
    ];
    for (question, method, answer, expected) in kinds {
        let server = TestServer::start(registry([asks_this(question)])).await;
        let legacy = LegacySession::open(&server).await;
        for as_task in [true, false] {
            let (mut events, task) = call_asks(&legacy, as_task).await;
            let asked = events.until(method).await;
            assert_eq!(asked.pointer("/params/_meta").cloned(), task.as_deref().map(related), "{asked}");
            if method == "sampling/createMessage" {
                assert_eq!((&asked["params"]["maxTokens"], &asked["params"]["messages"][0]["content"]["text"]), (&json!(10), &json!("Hi")));
            }
            legacy.answer(&asked, answer.clone()).await;
            let result = response(&mut events).await["result"].clone();
            let heard: Value = serde_json::from_str(&text_of(&result["content"])).expect("JSON");
            assert_eq!(heard, expected, "{method} as a task: {as_task}");
        }
    }
}

#[tokio::test]
async fn a_page_is_shown_under_an_id_of_its_own_to_who_can_open_pages() {
    let server = TestServer::start(registry([asks_this(page)])).await;
    let able = LegacySession::declaring(&server, json!({"elicitation": {"form": {}, "url": {}}})).await;
    let mut ids = Vec::new();
    for as_task in [true, false] {
        let (mut events, task) = call_asks(&able, as_task).await;
        let asked = events.until(FORM).await;
        let id = asked["params"]["elicitationId"].as_str().unwrap_or_else(|| panic!("no id: {asked}")).to_owned();
        let mut params = json!({"mode": "url", "message": "Sign in", "url": "https://example.com/sign-in", "elicitationId": id});
        if let Some(task) = &task {
            params["_meta"] = related(task);
        }
        assert_eq!(asked["params"], params);
        assert!(!id.is_empty() && !ids.contains(&id), "{id} and {ids:?}");
        ids.push(id);
        able.answer(&asked, json!({"action": "accept"})).await;
        let result = response(&mut events).await["result"].clone();
        assert!(text_of(&result["content"]).contains(r#""action":"accept""#), "{result}");
    }
}

#[tokio::test]
async fn a_client_is_never_asked_what_it_did_not_say_it_can_answer() {
    let form = json!({"elicitation": {}});
    let cases: [(Ask, Value, Value); 5] = [
        (|| name_form("Name?"), json!({}), form.clone()),
        (|| name_form("Name?"), json!({"sampling": {}, "roots": {}}), form.clone()),
        (page, form, json!({"elicitation": {"url": {}}})),
        (sampling, json!({"elicitation": {}, "roots": {}}), json!({"sampling": {}})),
        (Question::roots, json!({"elicitation": {}, "sampling": {}}), json!({"roots": {}})),
    ];
    for (question, declared, needed) in cases {
        let server = TestServer::start_without_followups(registry([asks_this(question)])).await;
        let legacy = LegacySession::declaring(&server, declared).await;
        let expected = json!({"requiredCapabilities": needed});
        let error = legacy.error("tools/call", json!({"name": "asks", "arguments": {}})).await;
        assert_eq!((&error["code"], &error["data"]), (&json!(-32600), &expected));
        let id = legacy.start("asks", json!({})).await;
        let task = until_is(&legacy, &id, "failed").await;
        let error = legacy.error("tasks/result", json!({"taskId": id})).await;
        assert_eq!((&error["code"], &error["data"]), (&json!(-32600), &expected));
        assert_eq!(task["statusMessage"], error["message"]);
    }
}

// Calls that are no tasks, tools that ask in rounds, and older versions.

#[tokio::test]
async fn a_plain_call_asks_on_its_own_stream_and_shows_no_task() {
    let gate = Gate::new();
    let server = TestServer::start(registry([asks(&gate)])).await;
    let legacy = LegacySession::open(&server).await;
    let request = legacy.message(legacy.next_id(), "tools/call", json!({"name": "asks", "arguments": {}}));
    let mut events = legacy.stream_message(&request).await;
    let question = events.until(FORM).await;
    assert_eq!((question.pointer("/params/_meta"), &question["params"]["message"]), (None, &json!("Name?")));
    assert_eq!(legacy.ok("tasks/list", json!({})).await, json!({"tasks": []}));
    legacy.answer(&question, accept("Ada")).await;
    gate.go.send();
    let rest = events.rest().await;
    assert!(!rest.iter().any(|message| message.to_string().contains(RELATED)), "{rest:?}");
    let response = rest.last().expect("a response");
    assert_eq!((&response["id"], brief(response)), (&request["id"], "= accept Ada".to_owned()));
}

#[tokio::test]
async fn a_plain_call_that_was_cut_off_while_it_asked_goes_on_by_its_last_event() {
    let server = TestServer::start(registry([asks(&open_gate())])).await;
    let legacy = LegacySession::open(&server).await;
    let request = legacy.message(legacy.next_id(), "tools/call", json!({"name": "asks", "arguments": {}}));
    let mut events = legacy.stream_message(&request).await;
    let question = events.until(FORM).await;
    let last = events.last_id.clone().expect("an id");
    drop(events);
    legacy.answer(&question, accept("Ada")).await;
    let response = response(&mut legacy.resume(&last).await).await;
    assert_eq!((&response["id"], brief(&response)), (&request["id"], "= accept Ada".to_owned()));
}

#[tokio::test]
async fn a_tool_that_asks_in_rounds_is_asked_for_like_any_other() {
    for mode in [TaskMode::Auto, TaskMode::Always] {
        let runs = Arc::new(AtomicU64::new(0));
        let rounds = tool("asks", &runs, |runs, ctx| async move {
            runs.fetch_add(1, Ordering::Relaxed);
            let resumed = ctx.resumed();
            match resumed.answers.get("name") {
                None => Err(ToolError::input_required(InputRequired::ask("name", name_form("Name?")).with_state(json!({"step": 1})))),
                Some(answer) => Ok(format!("{} {}", name_in(&answer.read()?), resumed.state.as_ref().map_or("nothing", Payload::as_str))),
            }
        });
        let server = TestServer::start(registry([rounds.task(mode)])).await;
        let legacy = LegacySession::open(&server).await;
        for as_task in [true, false] {
            let (mut events, task) = call_asks(&legacy, as_task).await;
            let question = events.until(FORM).await;
            assert_eq!(question.pointer("/params/_meta").cloned(), task.as_deref().map(related), "{question}");
            legacy.answer(&question, accept("Ada")).await;
            assert_eq!(said(&mut events).await, r#"= Ada {"step":1}"#, "{mode:?} as a task: {as_task}");
        }
        assert_eq!(runs.load(Ordering::Relaxed), 4, "once to ask and once to answer, twice");
    }
}

#[tokio::test]
async fn a_tool_that_asks_in_rounds_is_refused_where_nobody_can_be_asked() {
    let rounds =
        tool(
            "asks",
            &(),
            |(), _ctx| async move { Err::<(), _>(ToolError::input_required(InputRequired::ask("name", name_form("Name?")))) },
        );
    let server = TestServer::start_without_followups(registry([rounds])).await;
    let legacy = LegacySession::declaring(&server, json!({})).await;
    assert_eq!(refusal(&legacy, "tools/call", json!({"name": "asks", "arguments": {}})).await, -32600);
    let id = legacy.start("asks", json!({})).await;
    let error = legacy.error("tasks/result", json!({"taskId": id})).await;
    assert_eq!((&error["code"], &error["data"]), (&json!(-32600), &json!({"requiredCapabilities": {"elicitation": {}}})));
}

#[tokio::test]
async fn a_client_of_2025_06_18_is_asked_in_the_shape_of_its_version() {
    let server = TestServer::start(registry([asks(&open_gate())])).await;
    for (version, mode) in [("2025-06-18", None), (LATEST, Some("form"))] {
        let legacy = LegacySession::of(server.port, None, version, json!({"elicitation": {}})).await;
        let (mut events, _) = call_asks(&legacy, false).await;
        let question = events.until(FORM).await;
        let mut params = json!({"message": "Name?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}});
        if let Some(mode) = mode {
            params["mode"] = mode.into();
        }
        assert_eq!(question["params"], params, "{version}");
        legacy.answer(&question, accept("Ada")).await;
        assert_eq!(said(&mut events).await, "= accept Ada", "{version}");
    }
}
