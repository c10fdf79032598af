//! The limits of a session, how a call is cancelled wherever its caller is, and where a stream ends for good.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use taskwire::{
    core::Limits,
    server::{Config, FirstAnswer, LegacyConfig},
    tool::{TaskMode, Tool, ToolError},
};

use crate::{
    kit::{Client, Response, TempDir, TestServer, manual_clock, with_timeout},
    legacy::{
        input::{FORM, asks, open_gate, waiting},
        kit::{LegacySession, RELATED, messages_of},
        partials::prime,
        session::{refused, said, start, with_legacy},
        streamed::{ALL, asking, begun, call_with, capable_of, id_in, messages_until, mode_of, part, staged},
        streams::{call, call_with_progress, cancel_request, cut_off, held, response, text_for},
        tasks::{awaiting, brief, gone, is_response, refusal, until_is, until_status},
    },
    shutdown::settle,
    tasks::{Gate, accept, quick, registry, reopened, until_crash, with_limits},
    tool_harness::{HOUR, SECOND, ToolHarness, not_found, one_may_wait, text_of, uncoalesced},
};

const RETRY: Duration = Duration::from_millis(300);

/// What a client declares that knows both drafts.
fn both() -> Value {
    let mut capabilities = capable_of(&ALL);
    capabilities["tasks"]["streaming"] = json!({"partial": {}});
    capabilities
}

/// A server where a caller may have one task at work.
fn one_task() -> Config {
    with_limits(Limits { tasks_per_caller: 1, ..Limits::DEFAULT })
}

/// What comes of a call of `slow`, with this `task` if there is one.
async fn slow(legacy: &LegacySession, task: Option<Value>) -> Response {
    let mut params = json!({"name": "slow", "arguments": {}});
    if let Some(task) = task {
        params["task"] = task;
    }
    legacy.raw("tools/call", params).await
}

/// Asks for what follows an event id, where nothing does.
async fn is_over(legacy: &LegacySession, event_id: &str) {
    let over = legacy.http("GET", &[("Last-Event-ID", event_id)]).await;
    assert_eq!((over.status, over.body.len()), (204, 0), "{over:?}");
}

// How many may wait, and for what.

#[tokio::test]
async fn a_call_that_would_have_to_wait_is_not_begun_where_too_many_do() {
    let gate = Gate::new();
    let (server, _clock) = start(registry([gate.tool("slow").streams()]), one_may_wait()).await;
    let legacy = LegacySession::declaring(&server, capable_of(&ALL)).await;
    let id = legacy.start("slow", json!({})).await;
    with_timeout("the start", gate.started.wait()).await;
    let mut wait = awaiting(&legacy, &id).await;
    prime(&mut wait).await;
    let calls = [None, Some(asking(&["immediate"])), Some(asking(&["streaming"])), Some(asking(&["immediate", "streaming"]))];
    for task in calls {
        let full = slow(&legacy, task.clone()).await;
        assert_eq!(refused(&full), (429, -31001), "{task:?}");
        assert!(said(&full).contains("`waiting_requests_per_caller`"), "{}", said(&full));
    }
    settle().await;
    assert_eq!(gate.runs(), 1, "none of them has run");
    assert_eq!(legacy.ok("tasks/list", json!({})).await["tasks"].as_array().map(Vec::len), Some(1));
    gate.go.send();
    assert_eq!(brief(&response(&mut wait).await), "= done");
    gate.go.send();
    assert_eq!(text_of(&legacy.call("slow", json!({})).await["content"]), "done", "there is room again");
}

#[tokio::test]
async fn calls_whose_callers_went_away_count_until_they_end() {
    let gate = Gate::new();
    let (server, _clock) = start(registry([gate.tool("slow")]), Config { waiting_requests_per_caller: 2, ..Config::default() }).await;
    let legacy = LegacySession::open(&server).await;
    for nth in 0..2 {
        let mut message = call(&legacy, "slow", json!({}));
        // The same call would join the first.
        message["params"]["arguments"]["nth"] = nth.into();
        let connection = Client::new(server.port).send(&legacy.headers(), message.to_string().as_bytes()).await;
        with_timeout("the start", gate.started.wait()).await;
        drop(connection);
    }
    for _ in 0..5 {
        settle().await;
        assert_eq!(refused(&slow(&legacy, None).await), (429, -31001));
    }
    assert_eq!(gate.runs(), 2);
    (0..3).for_each(|_| gate.go.send());
    let room = async {
        loop {
            let answer = slow(&legacy, None).await;
            if answer.status == 200 {
                return answer;
            }
            assert_eq!(refused(&answer), (429, -31001));
        }
    };
    let answer = with_timeout("room for another", room).await;
    assert_eq!(brief(&answer.json()), "= done");
    assert_eq!(gate.runs(), 3);
}

#[tokio::test]
async fn an_immediate_call_waits_for_its_result_where_there_is_no_room_for_a_task() {
    let (busy, gate) = (Gate::new(), Gate::new());
    let (server, clock) = start(registry([busy.tool("busy"), gate.tool("slow")]), one_task()).await;
    let legacy = LegacySession::declaring(&server, capable_of(&ALL)).await;
    legacy.start("busy", json!({})).await;
    assert_eq!(refusal(&legacy, "tools/call", json!({"name": "slow", "arguments": {}, "task": {}})).await, -31001);
    let caller = legacy.clone();
    let calling = tokio::spawn(async move { caller.task("slow", json!({}), asking(&["immediate", "task"])).await });
    with_timeout("the start", gate.started.wait()).await;
    for _ in 0..5 {
        clock.advance(SECOND);
        settle().await;
        legacy.ok("ping", json!({})).await;
    }
    assert!(!calling.is_finished(), "it has not failed");
    gate.go.send();
    let result = with_timeout("the result", calling).await.expect("no panic");
    assert_eq!((mode_of(&result), text_of(&result["content"])), ("immediate", "done".to_owned()));
    assert_eq!(gate.runs(), 1);
}

#[tokio::test]
async fn a_result_counts_more_than_the_task_that_it_would_leave_behind() {
    let busy = Gate::new();
    let legacy = LegacyConfig { record_immediate: true, ..LegacyConfig::default() };
    let (server, _clock) = start(registry([busy.tool("busy"), quick("quick")]), Config { legacy, ..one_task() }).await;
    let legacy = LegacySession::declaring(&server, capable_of(&ALL)).await;
    let id = legacy.start("busy", json!({})).await;
    let result = legacy.task("quick", json!({}), asking(&["immediate"])).await;
    assert_eq!((mode_of(&result), text_of(&result["content"]), result.get("_meta")), ("immediate", "done".to_owned(), None));
    busy.go.send();
    until_is(&legacy, &id, "completed").await;
    let result = legacy.task("quick", json!({}), asking(&["immediate"])).await;
    assert!(result["_meta"][RELATED]["taskId"].is_string(), "{result}");
}

// How large what a session keeps may be.

#[tokio::test]
async fn a_progress_token_and_a_uri_have_so_many_bytes() {
    let gate = Gate::new();
    let (server, _clock) = start(registry([gate.tool("slow"), quick("quick")]), Config::default()).await;
    let legacy = LegacySession::open(&server).await;
    let with_token = |name: &str, token: String| json!({"name": name, "arguments": {}, "_meta": {"progressToken": token}});
    assert_eq!(refusal(&legacy, "tools/call", with_token("slow", "x".repeat(300))).await, -32602);
    assert_eq!(gate.runs(), 0);
    assert_eq!(text_of(&legacy.ok("tools/call", with_token("quick", "x".repeat(200))).await["content"]), "done");
    let uri = |len: usize| json!({"uri": format!("test://{}", "x".repeat(len))});
    assert_eq!(refusal(&legacy, "resources/subscribe", uri(5_000)).await, -32602);
    assert_eq!(legacy.ok("resources/subscribe", uri(1_000)).await, json!({}));
}

#[tokio::test]
async fn a_session_may_hear_of_so_many_resources() {
    let (server, _clock) = start(registry([]), Config { subscriptions_per_stream: 2, ..Config::default() }).await;
    let (legacy, other) = (LegacySession::open(&server).await, LegacySession::open(&server).await);
    for uri in ["test://a", "test://b", "test://a"] {
        assert_eq!(legacy.ok("resources/subscribe", json!({"uri": uri})).await, json!({}));
    }
    let error = legacy.error("resources/subscribe", json!({"uri": "test://c"})).await;
    assert_eq!(error["code"], -31001);
    assert!(error["message"].as_str().is_some_and(|text| text.contains("`subscriptions_per_stream`")), "{error}");
    assert_eq!(other.ok("resources/subscribe", json!({"uri": "test://c"})).await, json!({}), "each has its own");
    assert_eq!(legacy.ok("resources/unsubscribe", json!({"uri": "test://a"})).await, json!({}));
    assert_eq!(legacy.ok("resources/subscribe", json!({"uri": "test://c"})).await, json!({}));
}

#[tokio::test]
async fn a_batch_has_so_many_messages() {
    let (server, _clock) = start(registry([]), Config { requests_per_stream: 3, ..Config::default() }).await;
    let legacy = LegacySession::of(server.port, None, "2025-03-26", json!({})).await;
    let pings = |count: u64| Value::Array((0..count).map(|id| legacy.message(id, "ping", json!({}))).collect());
    let response = legacy.post(&pings(3)).await;
    assert_eq!((response.status, response.json().as_array().map(Vec::len)), (200, Some(3)));
    let response = legacy.post(&pings(4)).await;
    assert_eq!(refused(&response), (400, -32600));
    assert!(said(&response).contains("`requests_per_stream`"), "{}", said(&response));
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_refused_and_its_question_stays_open() {
    let limits = Limits { value_bytes: 1_000, ..Limits::DEFAULT };
    let (server, _clock) = start(registry([asks(&open_gate())]), with_limits(limits)).await;
    let legacy = LegacySession::open(&server).await;
    let id = legacy.start("asks", json!({})).await;
    let mut events = awaiting(&legacy, &id).await;
    let question = events.until(FORM).await;
    let large = json!({"jsonrpc": "2.0", "id": question["id"], "result": accept(&"x".repeat(2_000))});
    let response = legacy.post(&large).await;
    assert_eq!(refused(&response), (400, -32600));
    assert!(said(&response).contains("`limits.value_bytes`"), "{}", said(&response));
    assert_eq!(legacy.get(&id).await["status"], "input_required");
    legacy.answer(&question, accept("Ada")).await;
    let rest = events.rest().await;
    assert_eq!(brief(rest.last().expect("a response")), "= accept Ada");
}

// Names of requests.

#[tokio::test]
async fn a_name_that_is_in_use_is_refused() {
    let gate = Gate::new();
    let (server, clock) = start(registry([gate.tool("slow")]), crate::kit::without_followups()).await;
    let legacy = LegacySession::open(&server).await;
    let task = legacy.start("slow", json!({})).await;
    with_timeout("the start", gate.started.wait()).await;
    let message = call(&legacy, "slow", json!({}));
    let mut sse = held(&legacy, &clock, &gate, &message).await;
    let wait = legacy.message(legacy.next_id(), "tasks/result", json!({"taskId": task}));
    let mut events = legacy.stream_message(&wait).await;
    prime(&mut events).await;
    for request in [&message, &wait] {
        let again = legacy.post(request).await;
        assert_eq!((refused(&again), &again.json()["id"]), ((400, -32600), &request["id"]), "{request}");
    }
    assert_eq!(gate.runs(), 2);
    gate.go.send();
    gate.go.send();
    assert_eq!(text_for(&message, &response(&mut sse).await), "done");
    assert_eq!(text_for(&wait, &response(&mut events).await), "done");
    gate.go.send();
    let again = legacy.post(&message).await;
    assert_eq!(brief(messages_of(&again).last().expect("a response")), "= done", "it is free again");
}

#[tokio::test]
async fn who_cannot_be_told_where_to_come_back_is_not_sent_away() {
    let mut harness = ToolHarness::of(Config::default(), |tool| tool).await;
    let legacy = LegacySession::open(&harness.server).await;
    let mut message = call(&legacy, "writes", json!({}));
    message["id"] = "x".repeat(200).into();
    let ending = async {
        let mut run = harness.run().await;
        run.ctx.disconnect(RETRY);
        settle().await;
        legacy.ok("ping", json!({})).await;
        run.ends("done");
    };
    let (answer, ()) = with_timeout("the answer", async { tokio::join!(legacy.post(&message), ending) }).await;
    assert_eq!(answer.status, 200);
    let messages = messages_of(&answer);
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert_eq!(text_for(&message, &messages[0]), "done");
}

// Calling off.

#[tokio::test]
async fn a_call_can_be_cancelled_when_its_caller_was_sent_away() {
    let mut harness = ToolHarness::of(Config::default(), |tool| tool).await;
    let legacy = LegacySession::open(&harness.server).await;
    for comes_back in [false, true] {
        let message = call(&legacy, "writes", json!({"progressToken": "p"}));
        let (mut sse, run) = call_with_progress(&mut harness, &legacy, &message).await;
        run.ctx.disconnect(RETRY);
        assert_eq!(sse.rest().await, Vec::<Value>::new());
        let event_id = sse.last_id.clone().expect("an id");
        let mut resumed = None;
        if comes_back {
            let mut sse = legacy.resume(&event_id).await;
            prime(&mut sse).await;
            resumed = Some(sse);
        }
        cancel_request(&legacy, &message).await;
        with_timeout("the word to stop", run.ctx.cancelled()).await;
        if let Some(mut sse) = resumed {
            assert_eq!(sse.rest().await, Vec::<Value>::new(), "it is not answered");
        }
        is_over(&legacy, &event_id).await;
    }
}

#[test]
fn a_call_can_be_cancelled_when_its_server_has_crashed() {
    let (dir, clock, gate) = (Arc::new(TempDir::new()), manual_clock(), Gate::new());
    let tools = || registry([gate.tool("slow").retry_on_interrupt()]);
    let (legacy, message, event_id) = cut_off(&dir, &clock, &gate, tools());
    until_crash(async {
        let server = reopened(&dir, tools(), Config::default(), &clock).await;
        let legacy = legacy.at(server.port);
        let mut sse = legacy.resume(&event_id).await;
        prime(&mut sse).await;
        with_timeout("the second start", gate.started.wait()).await;
        cancel_request(&legacy, &message).await;
        with_timeout("the stop", gate.stopped.wait()).await;
        assert_eq!(sse.rest().await, Vec::<Value>::new());
        is_over(&legacy, &event_id).await;
    });
}

#[tokio::test]
async fn a_call_that_may_be_repeated_can_be_cancelled_too() {
    let mut harness = ToolHarness::of(Config::default(), |tool| tool).await;
    let legacy = LegacySession::open(&harness.server).await;
    for (key, comes_back) in [("one", false), ("two", true)] {
        let message = call(&legacy, "writes", json!({"progressToken": "p", "dev.taskwire/idempotencyKey": key}));
        let (mut sse, run) = call_with_progress(&mut harness, &legacy, &message).await;
        if comes_back {
            run.ctx.disconnect(RETRY);
            assert_eq!(sse.rest().await, Vec::<Value>::new());
            sse = legacy.resume(&sse.last_id.clone().expect("an id")).await;
            prime(&mut sse).await;
        }
        cancel_request(&legacy, &message).await;
        with_timeout("the word to stop", run.ctx.cancelled()).await;
        assert_eq!(sse.rest().await, Vec::<Value>::new(), "it is not answered");
        is_over(&legacy, &sse.last_id.clone().expect("an id")).await;
    }
}

#[tokio::test]
async fn a_call_that_may_be_repeated_can_be_cancelled_when_its_caller_was_sent_away() {
    let mut harness = ToolHarness::of(Config::default(), |tool| tool).await;
    let legacy = LegacySession::open(&harness.server).await;
    let message = call(&legacy, "writes", json!({"progressToken": "p", "dev.taskwire/idempotencyKey": "k"}));
    let (mut sse, run) = call_with_progress(&mut harness, &legacy, &message).await;
    run.ctx.disconnect(RETRY);
    assert_eq!(sse.rest().await, Vec::<Value>::new());
    cancel_request(&legacy, &message).await;
    // At the latest when somebody comes back for it.
    is_over(&legacy, &sse.last_id.clone().expect("an id")).await;
    with_timeout("the word to stop", run.ctx.cancelled()).await;
}

#[tokio::test]
async fn the_end_of_a_session_stops_its_calls_where_nothing_lingers() {
    let gate = Gate::new();
    let (server, clock) = start(registry([gate.tool("slow")]), Config { linger: Duration::ZERO, ..Config::default() }).await;
    let (legacy, other) = (LegacySession::open(&server).await, LegacySession::open(&server).await);
    let task = legacy.start("slow", json!({})).await;
    with_timeout("the start", gate.started.wait()).await;
    let mut sse = held(&legacy, &clock, &gate, &call(&legacy, "slow", json!({}))).await;
    let caller = legacy.clone();
    let silent = tokio::spawn(async move { slow(&caller, None).await });
    with_timeout("the start", gate.started.wait()).await;
    assert_eq!(legacy.end().await, 200);
    for _ in 0..2 {
        with_timeout("the stop", gate.stopped.wait()).await;
    }
    assert!(!sse.rest().await.iter().any(|message| message.get("result").is_some()));
    let silent = with_timeout("the end of the call", silent).await.expect("no panic");
    assert!(!messages_of(&silent).iter().any(|message| message.get("result").is_some()), "{silent:?}");
    assert_eq!(other.get(&task).await["status"], "working", "a task is its caller's");
    gate.go.send();
    assert_eq!(text_of(&other.result(&task).await["content"]), "done");
}

// Where nothing follows.

#[tokio::test]
async fn nothing_follows_the_answer_of_a_stream() {
    let mut harness = ToolHarness::of(Config::default(), Tool::streams).await;
    let legacy = LegacySession::declaring(&harness.server, capable_of(&ALL)).await;

    let message = call(&legacy, "writes", json!({"progressToken": "p"}));
    let (mut sse, mut run) = call_with_progress(&mut harness, &legacy, &message).await;
    let before = sse.last_id.clone().expect("an id");
    run.ends("done");
    assert_eq!(text_for(&message, &response(&mut sse).await), "done");
    is_over(&legacy, &sse.last_id.clone().expect("an id")).await;
    assert_eq!(text_for(&message, &response(&mut legacy.resume(&before).await).await), "done", "who has it not yet gets it");

    let id = legacy.start("writes", json!({})).await;
    let mut run = harness.run().await;
    let mut wait = awaiting(&legacy, &id).await;
    run.ends("done");
    assert_eq!(brief(&response(&mut wait).await), "= done");
    is_over(&legacy, &wait.last_id.clone().expect("an id")).await;

    let (mut streamed, mut run) = begun(&mut harness, &legacy).await;
    run.ends("two");
    assert_eq!(part(&streamed.last().await), json!([["2 two"], true, false]));
    is_over(&legacy, &streamed.cut().last).await;
}

#[tokio::test]
async fn nothing_follows_an_error_or_what_was_cancelled() {
    let mut harness = ToolHarness::new().await;
    let legacy = LegacySession::open(&harness.server).await;
    let id = legacy.start("writes", json!({})).await;
    let run = harness.run().await;
    let message = legacy.message(legacy.next_id(), "tasks/result", json!({"taskId": id}));
    let mut off = legacy.stream_message(&message).await;
    let event_id = prime(&mut off).await;
    cancel_request(&legacy, &message).await;
    assert!(!off.rest().await.iter().any(is_response));
    is_over(&legacy, &event_id).await;
    assert!(!run.ctx.is_cancelled(), "the task goes on");

    let mut wait = awaiting(&legacy, &id).await;
    prime(&mut wait).await;
    legacy.cancel(&id).await;
    assert_eq!(brief(&response(&mut wait).await), "error -32603");
    is_over(&legacy, &wait.last_id.clone().expect("an id")).await;
}

#[tokio::test]
async fn that_a_task_is_gone_is_said_once() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let id = legacy.start("writes", json!({})).await;
    let mut run = harness.run().await;
    let message = legacy.message(legacy.next_id(), "tasks/result", json!({"taskId": id}));
    let mut wait = legacy.stream_message(&message).await;
    let waited = (prime(&mut wait).await, message["id"].clone());
    drop(wait);
    let (streamed, mut other) = begun(&mut harness, &legacy).await;
    let (task, request, cut) = (streamed.task().to_owned(), json!(streamed.id), streamed.cut());
    run.ends("done");
    other.ends("done");
    for id in [&id, &task] {
        until_is(&legacy, id, "completed").await;
    }
    harness.clock.advance(HOUR);
    for id in [&id, &task] {
        gone(&legacy, id).await;
    }
    for (event_id, request) in [waited, (cut.last, request)] {
        let mut sse = legacy.resume(&event_id).await;
        let messages = sse.rest().await;
        assert_eq!(messages.len(), 1, "{messages:?}");
        assert_eq!((&messages[0]["id"], &messages[0]["error"]["code"]), (&request, &json!(-32602)));
        is_over(&legacy, &sse.last_id.clone().expect("an error is a place, too")).await;
    }
}

#[tokio::test]
async fn a_session_may_replace_its_own_standing_stream_where_there_is_room_for_one() {
    let (server, _clock) = start(registry([]), Config { streams_per_caller: 1, ..Config::default() }).await;
    let (legacy, other) = (LegacySession::open(&server).await, LegacySession::open(&server).await);
    let mut stand = legacy.open_session_stream().await;
    for _ in 0..3 {
        let next = legacy.open_session_stream().await;
        assert_eq!(stand.rest().await, Vec::<Value>::new());
        stand = next;
    }
    assert_eq!(refused(&other.http("GET", &[]).await), (429, -31001));
}

#[tokio::test]
async fn who_waits_without_a_stream_is_told_of_a_shutdown() {
    let mut harness = ToolHarness::with(one_may_wait()).await;
    let legacy = LegacySession::open(&harness.server).await.accepting("application/json");
    let id = legacy.start("writes", json!({})).await;
    let run = harness.run().await;
    let waits = waiting(&legacy, &id).await;
    harness.server.stop();
    let response = with_timeout("the answer", waits).await.expect("no panic");
    assert_eq!(response.status, 503, "{response:?}");
    assert!(response.json().get("error").is_some() && response.header("retry-after").is_some(), "{response:?}");
    assert!(!run.ctx.is_cancelled());
}

// What comes on which stream.

#[tokio::test]
async fn output_that_no_answer_had_is_told_from_the_beginning() {
    let config = with_legacy(LegacyConfig { initial: FirstAnswer::Task, ..LegacyConfig::default() });
    let mut harness = ToolHarness::of(config, Tool::streams).await;
    let legacy = LegacySession::declaring(&harness.server, both()).await;
    let mut stand = legacy.open_session_stream().await;
    let plain = legacy.accepting("application/json");
    let running = async {
        let run = harness.run().await;
        run.writes("one").await;
        run
    };
    let (created, mut run) = tokio::join!(plain.task("writes", json!({}), asking(&["streaming"])), running);
    assert_eq!(mode_of(&created), "task");
    run.writes("two").await;
    run.writes("three").await;
    run.ends(());
    let messages = messages_until(&mut stand, &id_in(&created), "completed").await;
    let messages = messages.iter().filter(|message| message["method"] == "notifications/tasks/partial");
    assert_eq!(messages.map(brief).collect::<Vec<_>>(), ["0 one", "1 two", "2 three"]);
}

#[tokio::test]
async fn who_waits_beside_the_stream_of_a_call_is_not_told_its_output_again() {
    let mut harness = ToolHarness::of(Config::default(), Tool::streams).await;
    let legacy = LegacySession::declaring(&harness.server, both()).await;
    let (opening, mut run) = call_with(&mut harness, &legacy, asking(&["streaming"])).await;
    run.writes("one").await;
    let mut call = opening.opened().await;
    assert_eq!(call.part().await, json!([["1 one"], false, false]));
    let mut wait = awaiting(&legacy, call.task()).await;
    prime(&mut wait).await;
    run.writes("two").await;
    run.ends("three");
    let messages = wait.rest().await;
    assert!(messages.iter().all(|message| message["method"] != "notifications/tasks/partial"), "{messages:?}");
    assert_eq!(brief(messages.last().expect("a response")), "= one+two+three");
    call.last().await;
    assert_eq!(call.merged(), "one+two+three");
}

#[tokio::test]
async fn nothing_is_told_of_a_task_before_its_name() {
    let mut harness = ToolHarness::of(Config::default(), Tool::streams).await;
    let legacy = LegacySession::declaring(&harness.server, capable_of(&ALL)).await;
    let mut stand = legacy.open_session_stream().await;
    let next_message = tokio::spawn(async move { stand.next().await });
    // Without events the first answer waits for output, and with it the name of the task.
    let caller = legacy.accepting("application/json");
    let params = json!({"name": "writes", "arguments": {}, "task": {"responseModes": ["streaming"]}});
    let call = tokio::spawn(async move { caller.ok("tools/call", params).await });
    let run = harness.run().await;
    run.ctx.status("early").await.expect("it goes on");
    // Long enough for it to come, if it did.
    for _ in 0..50 {
        legacy.ok("ping", json!({})).await;
    }
    assert!(!next_message.is_finished() && !call.is_finished(), "a task that nobody has heard of");
    run.writes("one").await;
    let result = with_timeout("the answer", call).await.expect("no panic");
    let status = with_timeout("the status", next_message).await.expect("no panic").expect("the stream goes on");
    assert_eq!((&status["params"]["taskId"], &status["params"]["statusMessage"]), (&result["task"]["taskId"], &json!("early")));
}

#[tokio::test]
async fn a_tool_that_stops_by_itself_is_answered_for() {
    for late in [false, true] {
        let mut harness = ToolHarness::of(Config::default(), |tool| tool).await;
        let legacy = LegacySession::open(&harness.server).await;
        let asked = tokio::spawn(async move { legacy.ok("tools/call", json!({"name": "writes", "arguments": {}})).await });
        let mut run = harness.run().await;
        if late {
            // What is kept makes a task of the call.
            run.ctx.checkpoint(&1).await.expect("it may");
        }
        run.ends_with(Err(ToolError::stopped()));
        let result = with_timeout("the answer", asked).await.expect("no panic");
        let text = result["content"][0]["text"].as_str().unwrap_or_default();
        assert!(
            result["isError"] == true && text.starts_with("`writes`") && text.contains("was cancelled and gives no result"),
            "{result}"
        );
    }
}

#[tokio::test]
async fn a_wish_for_a_task_means_nothing_but_on_calls() {
    let mut harness = ToolHarness::new().await;
    let legacy = LegacySession::open(&harness.server).await;
    let id = legacy.start("writes", json!({})).await;
    harness.run().await.ends("done");
    // As public clients do it, and worse.
    for wish in [json!({"ttl": 60_000}), json!({"ttl": -1}), json!("nonsense")] {
        let params = json!({"taskId": id, "task": wish, "_meta": {"progressToken": 7}});
        assert_eq!(legacy.ok("tasks/result", params.clone()).await["content"][0]["text"], "done");
        assert_eq!(legacy.ok("tasks/get", params).await["status"], "completed");
        assert_eq!(legacy.ok("ping", json!({"task": wish})).await, json!({}));
    }
    assert_eq!(legacy.ok("tasks/list", json!({})).await["tasks"].as_array().map(Vec::len), Some(1), "nothing was made");
}

#[tokio::test]
async fn log_lines_of_a_task_are_told_where_its_result_is_waited_for() {
    let mut harness = ToolHarness::new().await;
    let legacy = LegacySession::open(&harness.server).await;
    let mut stand = legacy.open_session_stream().await;
    let id = legacy.start("writes", json!({})).await;
    let mut run = harness.run().await;
    let mut wait = awaiting(&legacy, &id).await;
    prime(&mut wait).await;
    // A line goes to streams that are open, and is not stored: the tool writes it until it has come.
    let talking = async {
        for _ in 0..1_000 {
            run.ctx.log("debug", "too quiet");
            run.ctx.log("warning", json!({"hm": 1}));
            settle().await;
        }
    };
    let line = tokio::select! {
        line = wait.until("notifications/message") => line,
        () = talking => panic!("no line has come"),
    };
    assert_eq!((&line["params"]["level"], &line["params"]["data"]), (&json!("warning"), &json!({"hm": 1})));
    assert_eq!(line["params"]["_meta"][RELATED], json!({"taskId": id}));
    settle().await;
    run.ends("done");
    assert_eq!(brief(&response(&mut wait).await), "= done");
    legacy.start("writes", json!({})).await;
    let next = harness.run().await;
    next.ctx.status("the next task").await.expect("it goes on");
    loop {
        let message = stand.next().await.expect("the stream goes on");
        assert_ne!(message["method"], "notifications/message", "{message}");
        if message["params"]["statusMessage"] == "the next task" {
            break;
        }
    }
}

#[tokio::test]
async fn the_end_of_a_task_is_told_once_however_many_wait_for_it() {
    let mut harness = ToolHarness::of(uncoalesced(), |tool| tool.task(TaskMode::Always)).await;
    let legacy = LegacySession::open(&harness.server).await;
    let mut stand = legacy.open_session_stream().await;
    let id = legacy.start("writes", json!({})).await;
    let mut run = harness.run().await;
    let mut waits = Vec::new();
    for _ in 0..2 {
        let mut wait = awaiting(&legacy, &id).await;
        prime(&mut wait).await;
        waits.push(wait);
    }
    // The latest stream gets it.
    run.ctx.status("half way").await.expect("it goes on");
    until_status(&mut waits[1], |status| status["statusMessage"] == "half way").await;
    run.ends("done");
    let mut ends = 0;
    for wait in &mut waits {
        let messages = wait.rest().await;
        ends += messages.iter().filter(|message| message["params"]["status"] == "completed").count();
        assert_eq!(brief(messages.last().expect("a response")), "= done");
    }
    assert_eq!(ends, 1);
    legacy.start("writes", json!({})).await;
    let next = harness.run().await;
    next.ctx.status("the next task").await.expect("it goes on");
    loop {
        let status = stand.until("notifications/tasks/status").await["params"].clone();
        assert_ne!(status["status"], "completed", "{status}");
        if status["statusMessage"] == "the next task" {
            break;
        }
    }
}

#[tokio::test]
async fn a_task_that_its_caller_does_not_know_of_is_not_there() {
    let server = TestServer::start(registry([asks(&open_gate())])).await;
    let legacy = LegacySession::open(&server).await;
    let mut sse = legacy.stream("tools/call", json!({"name": "asks", "arguments": {}})).await;
    let question = sse.until(FORM).await;
    let id = question["id"].as_str().and_then(|id| id.split('.').next()).expect("a name").to_owned();
    for method in ["tasks/get", "tasks/cancel", "tasks/result"] {
        assert_eq!(legacy.error(method, json!({"taskId": id})).await, not_found(), "{method}");
    }
    legacy.answer(&question, accept("Ada")).await;
    assert_eq!(brief(&response(&mut sse).await), "= accept Ada", "nothing has stopped it");
}
