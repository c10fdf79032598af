//! The streams of a session: what comes on each, where a stream that broke off is resumed, and how a call is cancelled.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use serde_json::{Value, json};
use taskwire::{
    clock::ManualClock,
    core::Limits,
    server::{Config, LegacyConfig},
    tool::{Content, Ctx, Progress, Prompt, Registry, TaskMode, Tool, ToolError},
};

use crate::{
    kit::{Client, MS, TempDir, TestServer, manual_clock, passing, with_timeout},
    legacy::{
        kit::{Event, LATEST, LegacySession, Sse},
        partials::streaming,
        session::{VERSIONS, refused, resource, said, start, with_legacy},
        tasks::{awaiting, brief, refusal, until_is},
    },
    shutdown::settle,
    tasks::{Gate, count, quick, registry, reopened, tool, two_callers, until_crash, with_limits},
    tool_harness::{HOUR, SECOND, ToolHarness, ToolRun, uncoalesced},
};

const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

pub(crate) fn call(legacy: &LegacySession, tool: &str, meta: Value) -> Value {
    legacy.message(legacy.next_id(), "tools/call", json!({"name": tool, "arguments": {}, "_meta": meta}))
}

/// The answer to a call whose tool says nothing: it becomes a stream when it has taken long enough.
pub(crate) async fn held(legacy: &LegacySession, clock: &ManualClock, gate: &Gate, message: &Value) -> Sse {
    let opening = async {
        let (sse, ()) = tokio::join!(passing(clock, 50 * MS, legacy.stream_message(message)), gate.started.wait());
        sse
    };
    with_timeout("the stream of a call", opening).await
}

/// The answer to a call of `writes` whose progress is asked for, and the run behind it, which has said that it is at 1.
pub(crate) async fn call_with_progress(harness: &mut ToolHarness, legacy: &LegacySession, message: &Value) -> (Sse, ToolRun) {
    let running = async {
        let run = harness.run().await;
        run.ctx.progress(Progress::at(1.0)).await.expect("it goes on");
        run
    };
    let (mut sse, run) = with_timeout("the stream of a call", async { tokio::join!(legacy.stream_message(message), running) }).await;
    assert_eq!(sse.until("notifications/progress").await["params"]["progress"], 1.0);
    (sse, run)
}

/// All events that still come.
pub(crate) async fn events(sse: &mut Sse) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(event) = sse.event().await {
        events.push(event);
    }
    events
}

/// The next partials of a stream, in short; that somebody works is nothing new.
async fn next_partials(sse: &mut Sse, count: usize) -> Vec<String> {
    let mut briefs = Vec::new();
    while briefs.len() < count {
        let message = sse.next().await.unwrap_or_else(|| panic!("the stream ended after {briefs:?}"));
        if brief(&message) != "working" {
            briefs.push(brief(&message));
        }
    }
    briefs
}

/// The one response among the messages that still come, which must be the last of them.
pub(crate) async fn response(sse: &mut Sse) -> Value {
    let mut rest = sse.rest().await;
    let last = rest.pop().expect("a response");
    assert!(last.get("method").is_none(), "{last}");
    assert!(rest.iter().all(|message| message.get("method").is_some()), "{rest:?}");
    last
}

/// The text of a result in a response to this request.
#[track_caller]
pub(crate) fn text_for(request: &Value, response: &Value) -> String {
    assert_eq!(response["id"], request["id"], "{response}");
    response["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {response}")).to_owned()
}

// The session stream.

#[tokio::test]
async fn a_newer_standing_stream_takes_the_place_of_the_older() {
    let tools = registry([quick("quick")]);
    let server = TestServer::start(tools.clone()).await;
    let (legacy, other) = (LegacySession::open(&server).await, LegacySession::open(&server).await);
    let mut elsewhere = other.open_session_stream().await;
    let mut first = legacy.open_session_stream().await;
    let mut second = legacy.open_session_stream().await;
    assert_eq!(first.rest().await, Vec::<Value>::new());
    for _ in 0..2 {
        tools.tool(quick("quick")).expect("a tool");
        for sse in [&mut second, &mut elsewhere] {
            assert_eq!(sse.next().await.expect("it goes on")["method"], "notifications/tools/list_changed");
        }
    }
}

#[tokio::test]
async fn a_changed_list_is_told_on_the_standing_stream() {
    let tools = registry([]);
    let server = TestServer::start(tools.clone()).await;
    for version in VERSIONS {
        let legacy = LegacySession::of(server.port, None, version, json!({})).await;
        let mut sse = legacy.open_session_stream().await;
        for kind in ["tools", "prompts", "resources"] {
            match kind {
                "tools" => {
                    tools.tool(quick("quick")).expect("a tool");
                }
                "prompts" => {
                    tools.prompt(Prompt::raw(json!({"name": "p"}), |_| async { Ok(json!({"messages": []})) }));
                }
                _ => {
                    tools.resource(resource("test://r"));
                }
            }
            let event = sse.event().await.expect("the stream goes on");
            assert_eq!(event.message.expect("a message")["method"], format!("notifications/{kind}/list_changed"), "{version}");
            assert_eq!(event.id, None, "nothing to come back to");
        }
    }
}

#[tokio::test]
async fn a_changed_resource_is_told_to_who_subscribed_to_it() {
    let tools = registry([]);
    tools.resource(resource("test://a")).resource(resource("test://b"));
    let server = TestServer::start(tools.clone()).await;
    let (legacy, other) = (LegacySession::open(&server).await, LegacySession::open(&server).await);
    let (mut sse, mut elsewhere) = (legacy.open_session_stream().await, other.open_session_stream().await);
    // A notification that must not come would have come before that of the change that everybody gets.
    let change = || {
        tools.resource_updated("test://b").resource_updated("test://a").tool(quick("quick")).expect("a tool");
    };
    assert_eq!(legacy.ok("resources/subscribe", json!({"uri": "test://a"})).await, json!({}));
    for _ in 0..2 {
        change();
        let mut changes = BTreeSet::new();
        for _ in 0..2 {
            let event = sse.event().await.expect("the stream goes on");
            assert_eq!(event.id, None);
            let message = event.message.expect("a message");
            let uri = message["params"]["uri"].as_str().unwrap_or_default();
            changes.insert(format!("{} {uri}", message["method"].as_str().expect("a method")));
        }
        let expected = ["notifications/resources/updated test://a", "notifications/tools/list_changed "];
        assert_eq!(changes, BTreeSet::from(expected.map(str::to_owned)));
        assert_eq!(elsewhere.next().await.expect("it goes on")["method"], "notifications/tools/list_changed");
    }
    assert_eq!(legacy.ok("resources/unsubscribe", json!({"uri": "test://a"})).await, json!({}));
    for _ in 0..2 {
        change();
        assert_eq!(sse.next().await.expect("it goes on")["method"], "notifications/tools/list_changed");
    }
}

#[tokio::test]
async fn what_happened_before_there_was_a_standing_stream_is_told_on_the_first() {
    let mut harness = ToolHarness::of(uncoalesced(), |tool| tool.task(TaskMode::Always).streams()).await;
    let legacy = LegacySession::declaring(&harness.server, streaming()).await;
    let id = legacy.start("writes", json!({})).await;
    let mut run = harness.run().await;
    run.writes("a").await;
    run.writes("b").await;
    run.ends("done");
    until_is(&legacy, &id, "completed").await;
    let mut sse = legacy.open_session_stream().await;
    assert_eq!(next_partials(&mut sse, 3).await, ["0 a", "1 b", "completed"]);
    let elsewhere = LegacySession::declaring(&harness.server, streaming()).await;
    let mut silent = elsewhere.open_session_stream().await;
    harness.server.stop();
    assert_eq!(silent.rest().await, Vec::<Value>::new(), "another session of the same caller did not make it");
}

#[tokio::test]
async fn a_standing_stream_goes_on_where_it_broke_off() {
    let mut harness = ToolHarness::of(uncoalesced(), |tool| tool.task(TaskMode::Always).streams()).await;
    let legacy = LegacySession::declaring(&harness.server, streaming()).await;
    let mut sse = legacy.open_session_stream().await;
    let beginning = sse.last_id.clone().expect("an id");
    let (one, mut first) = (legacy.start("writes", json!({})).await, harness.run().await);
    first.writes("a").await;
    first.writes("b").await;
    assert_eq!(next_partials(&mut sse, 2).await, ["0 a", "1 b"]);
    let broken = sse.last_id.clone().expect("an id");
    drop(sse);
    let (other, mut second) = (legacy.start("writes", json!({})).await, harness.run().await);
    first.writes("c").await;
    second.writes("x").await;
    let mut sse = legacy.resume(&broken).await;
    let prime = sse.event().await.expect("an event");
    assert!(prime.id.is_some() && prime.message.is_none(), "{prime:?}");
    assert_eq!(next_partials(&mut sse, 2).await, ["2 c", "0 x"]);
    first.writes("d").await;
    assert_eq!(next_partials(&mut sse, 1).await, ["3 d"]);
    first.ends("done");
    assert_eq!(next_partials(&mut sse, 1).await, ["completed"]);
    second.ends_with(Err(ToolError::new("no luck")));
    assert_eq!(next_partials(&mut sse, 1).await, ["failed"]);
    drop(sse);
    // A client that resumes at the beginning gets all of it again, in the same order.
    let mut again = legacy.resume(&beginning).await;
    assert_eq!(next_partials(&mut again, 7).await, ["0 a", "1 b", "2 c", "0 x", "3 d", "completed", "failed"]);
    for (id, status) in [(one, "completed"), (other, "failed")] {
        assert_eq!(legacy.get(&id).await["status"], status);
    }
}

#[test]
fn a_standing_stream_goes_on_after_a_crash_of_the_server() {
    let (dir, clock, gate) = (Arc::new(TempDir::new()), manual_clock(), Gate::new());
    let tools = || {
        let writes = tool("writes", &gate, |gate: Gate, ctx: Ctx| async move {
            let from: u32 = ctx.saved()?.unwrap_or(0);
            for n in from..4 {
                gate.go.wait().await;
                ctx.step([Content::text(n.to_string())], &(n + 1)).await?;
            }
            Ok("done")
        });
        registry([writes.task(TaskMode::Always).streams().retry_on_interrupt()])
    };
    let (legacy, last) = until_crash(async {
        let server = TestServer::start_in(dir.clone(), tools(), uncoalesced(), Arc::new(clock.clone())).await;
        let legacy = LegacySession::declaring(&server, streaming()).await;
        let mut sse = legacy.open_session_stream().await;
        legacy.start("writes", json!({})).await;
        for n in 0..2 {
            gate.go.send();
            assert_eq!(next_partials(&mut sse, 1).await, [format!("{n} {n}")]);
        }
        (legacy, sse.last_id.expect("an id"))
    });
    until_crash(async {
        let server = reopened(&dir, tools(), uncoalesced(), &clock).await;
        let legacy = legacy.at(server.port);
        let mut sse = legacy.resume(&last).await;
        gate.go.send();
        gate.go.send();
        assert_eq!(next_partials(&mut sse, 3).await, ["2 2", "3 3", "completed"]);
    });
}

#[tokio::test]
async fn a_standing_stream_can_be_so_far_behind() {
    let mut limits = Limits::DEFAULT;
    limits.changes_per_session = 4;
    let config = with_limits(limits);
    let mut harness = ToolHarness::with(config).await;
    let legacy = LegacySession::open(&harness.server).await;
    let mut ids = Vec::new();
    for _ in 0..12 {
        let id = legacy.start("writes", json!({})).await;
        harness.run().await.ends("done");
        until_is(&legacy, &id, "completed").await;
        ids.push(id);
    }
    let mut sse = legacy.open_session_stream().await;
    let mut reported = BTreeSet::new();
    while !reported.contains(&json!(ids[11]).to_string()) {
        let status = sse.until("notifications/tasks/status").await["params"].clone();
        if status["status"] == "completed" {
            reported.insert(status["taskId"].to_string());
        }
    }
    assert!(reported.len() <= 4, "{} were told of, and no more than four changes are kept", reported.len());
    for id in &ids {
        assert_eq!(legacy.get(id).await["status"], "completed", "what is not told is still there");
    }
    let id = legacy.start("writes", json!({})).await;
    harness.run().await.ends("done");
    while sse.until("notifications/tasks/status").await["params"]["taskId"] != *id {}
}

#[tokio::test]
async fn log_lines_of_tasks_are_told_on_the_standing_stream() {
    let mut harness = ToolHarness::new().await;
    let legacy = LegacySession::open(&harness.server).await;
    let mut sse = legacy.open_session_stream().await;
    legacy.start("writes", json!({})).await;
    let run = harness.run().await;
    // A line goes to streams that are open, and is not stored: the tool writes it until it has come.
    let talking = async {
        for _ in 0..1_000 {
            run.ctx.log("debug", "too quiet");
            run.ctx.log("warning", json!({"hm": 1}));
            settle().await;
        }
    };
    let line = async {
        loop {
            let event = sse.event().await.expect("the stream goes on");
            if let Some(message) = event.message.filter(|message| message["method"] == "notifications/message") {
                return (message, event.id);
            }
        }
    };
    let (message, id) = tokio::select! {
        found = line => found,
        () = talking => panic!("no line has come"),
    };
    assert_eq!((&message["params"]["level"], &message["params"]["data"]), (&json!("warning"), &json!({"hm": 1})));
    assert_eq!(id, None);
}

// Streams of calls.

/// Says something at each level.
fn noise() -> Tool {
    tool("noise", &(), |(), ctx| async move {
        for level in LEVELS {
            ctx.log(level, json!({"at": level}));
        }
        Ok("quiet again")
    })
}

#[tokio::test]
async fn a_quick_call_that_says_nothing_is_one_json_response() {
    let server = TestServer::start(registry([quick("quick"), tool("count", &(), |(), ctx| count(ctx))])).await;
    for version in VERSIONS {
        let legacy = LegacySession::of(server.port, None, version, json!({})).await;
        for name in ["quick", "count"] {
            // Nobody asked for progress.
            let response = legacy.raw("tools/call", json!({"name": name, "arguments": {}})).await;
            assert_eq!((response.status, response.header("content-type")), (200, Some("application/json")), "{version} {name}");
            assert_eq!(response.json()["result"].get("_meta"), None);
        }
    }
}

#[tokio::test]
async fn progress_carries_the_token_as_it_came_and_precedes_the_response() {
    let server = TestServer::start(registry([tool("count", &(), |(), ctx| count(ctx))])).await;
    for version in VERSIONS {
        let legacy = LegacySession::of(server.port, None, version, json!({})).await;
        for token in [json!(0), json!(-7), json!("p"), json!("")] {
            let message = call(&legacy, "count", json!({"progressToken": token}));
            let mut sse = legacy.stream_message(&message).await;
            sse.read_prime().await;
            let mut messages = sse.rest().await;
            let last = messages.pop().expect("a response");
            assert_eq!(text_for(&message, &last), "counted", "{version}");
            let mut done = 0.0;
            for note in &messages {
                assert_eq!((&note["method"], &note["params"]["progressToken"]), (&json!("notifications/progress"), &token));
                let next = note["params"]["progress"].as_f64().expect("a number");
                assert!(next > done, "it grows: {note}");
                done = next;
            }
            assert_eq!(done, 3.0, "{messages:?}");
        }
    }
}

#[tokio::test]
async fn progress_is_told_while_the_call_still_runs() {
    let mut harness = ToolHarness::of(Config::default(), |tool| tool).await;
    let legacy = LegacySession::open(&harness.server).await;
    let message = call(&legacy, "writes", json!({"progressToken": "p"}));
    let (mut sse, mut run) = call_with_progress(&mut harness, &legacy, &message).await;
    run.ctx.progress(Progress::of(2.0, 2.0).message("nearly")).await.expect("it goes on");
    let notification = sse.until("notifications/progress").await;
    assert_eq!(notification["params"], json!({"progressToken": "p", "progress": 2.0, "total": 2.0, "message": "nearly"}));
    run.ends("done");
    assert_eq!(text_for(&message, &response(&mut sse).await), "done");
}

#[tokio::test]
async fn a_client_that_takes_no_events_hears_of_no_progress() {
    let server = TestServer::start(registry([tool("count", &(), |(), ctx| count(ctx)), noise()])).await;
    let legacy = LegacySession::open(&server).await.accepting("application/json");
    for name in ["count", "noise"] {
        let response = legacy.raw("tools/call", json!({"name": name, "arguments": {}, "_meta": {"progressToken": 1}})).await;
        assert_eq!((response.status, response.header("content-type")), (200, Some("application/json")), "{name}");
        assert!(response.json()["result"]["content"][0]["text"].is_string(), "{name}");
    }
}

/// The levels of the lines that a call of [`noise`] sends.
async fn levels_heard(legacy: &LegacySession) -> Vec<String> {
    let mut messages = legacy.messages("tools/call", json!({"name": "noise", "arguments": {}})).await;
    assert_eq!(messages.pop().expect("a response")["result"]["content"][0]["text"], "quiet again");
    let level = |line: &Value| {
        assert_eq!(line["method"], "notifications/message", "{line}");
        assert_eq!(line["params"]["data"], json!({"at": line["params"]["level"]}));
        line["params"]["level"].as_str().expect("a level").to_owned()
    };
    messages.iter().map(level).collect()
}

#[tokio::test]
async fn log_lines_are_sent_from_the_level_of_the_session_on() {
    let server = TestServer::start(registry([noise()])).await;
    for version in VERSIONS {
        let (legacy, other) = (LegacySession::of(server.port, None, version, json!({})).await, LegacySession::open(&server).await);
        assert_eq!(levels_heard(&legacy).await, LEVELS[1..], "those from `info` on if nothing was said");
        for (n, level) in LEVELS.iter().enumerate().rev() {
            assert_eq!(legacy.ok("logging/setLevel", json!({"level": level})).await, json!({}));
            assert_eq!(levels_heard(&legacy).await, LEVELS[n..], "{version} {level}");
        }
        assert_eq!(levels_heard(&other).await, LEVELS[1..], "another session has its own");
    }
}

#[tokio::test]
async fn a_level_that_does_not_exist_is_refused() {
    let server = TestServer::start(registry([noise()])).await;
    let legacy = LegacySession::open(&server).await;
    legacy.ok("logging/setLevel", json!({"level": "error"})).await;
    for params in
        [json!({}), json!({"level": "loud"}), json!({"level": "INFO"}), json!({"level": 3}), json!({"level": null}), json!({"level": ""})]
    {
        assert_eq!(refusal(&legacy, "logging/setLevel", params.clone()).await, -32602, "{params}");
    }
    assert_eq!(levels_heard(&legacy).await, LEVELS[4..], "nothing has changed");
}

#[tokio::test]
async fn events_of_all_streams_of_a_session_have_ids_of_their_own() {
    let mut harness = ToolHarness::of(uncoalesced(), |tool| tool.task(TaskMode::Always).streams()).await;
    let legacy = LegacySession::declaring(&harness.server, streaming()).await;
    let mut standing = legacy.open_session_stream().await;
    let mut ids = vec![standing.last_id.clone().expect("an id")];
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let id = legacy.start("writes", json!({})).await;
        waiting.push((awaiting(&legacy, &id).await, harness.run().await));
    }
    for _ in 0..2 {
        let message = call(&legacy, "writes", json!({"progressToken": 1}));
        waiting.push(call_with_progress(&mut harness, &legacy, &message).await);
    }
    for (sse, run) in &mut waiting {
        ids.extend(sse.last_id.clone());
        run.writes("a").await;
        run.ctx.status("half way").await.expect("it goes on");
        run.ends("done");
        let events = events(sse).await;
        let is_partial = |event: &&Event| event.message.as_ref().is_some_and(|message| message["method"] == "notifications/tasks/partial");
        assert!(events.iter().filter(is_partial).all(|event| event.id.is_some()), "{events:?}");
        ids.extend(events.into_iter().filter_map(|event| event.id));
    }
    legacy.start("writes", json!({})).await;
    let mut run = harness.run().await;
    run.writes("a").await;
    run.ends("done");
    loop {
        let event = standing.event().await.expect("the stream goes on");
        ids.extend(event.id);
        if event.message.is_some_and(|message| brief(&message) == "completed") {
            break;
        }
    }
    let distinct: BTreeSet<&String> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len(), "{ids:?}");
}

#[tokio::test]
async fn the_stream_of_a_call_goes_on_where_it_broke_off() {
    for version in VERSIONS {
        let mut harness = ToolHarness::of(Config::default(), |tool| tool).await;
        let legacy = LegacySession::of(harness.server.port, None, version, json!({})).await;
        let message = call(&legacy, "writes", json!({"progressToken": "p"}));
        let (sse, mut run) = call_with_progress(&mut harness, &legacy, &message).await;
        let broken = sse.last_id.clone().expect("an id");
        drop(sse);
        run.ctx.progress(Progress::at(2.0)).await.expect("nobody has stopped it");
        let mut sse = legacy.resume(&broken).await;
        sse.read_prime().await;
        assert_eq!(sse.next().await.expect("it goes on")["params"]["progress"], 2.0, "{version}");
        run.ctx.progress(Progress::at(3.0)).await.expect("nobody has stopped it");
        assert_eq!(sse.next().await.expect("it goes on")["params"]["progress"], 3.0);
        drop(sse);
        run.ends("done");
        // As often as somebody asks.
        for _ in 0..2 {
            let rest = legacy.resume(&broken).await.rest().await;
            let (last, before) = rest.split_last().expect("a response");
            let progress: Vec<&Value> = before.iter().map(|message| &message["params"]["progress"]).collect();
            assert_eq!(json!(progress), json!([2.0, 3.0]), "{version}");
            assert_eq!(text_for(&message, last), "done");
        }
    }
}

#[tokio::test]
async fn nothing_of_another_stream_is_told_to_who_comes_back() {
    let mut harness = ToolHarness::of(two_callers(), |tool| tool).await;
    let session = async |port, token: &'static str| LegacySession::of(port, Some(token), LATEST, json!({})).await;
    let ann = session(harness.server.port, "ann-token").await;
    let standing = ann.open_session_stream().await;
    let messages = ["a", "b"].map(|token| call(&ann, "writes", json!({"progressToken": token})));
    let (first, mut one) = call_with_progress(&mut harness, &ann, &messages[0]).await;
    let (second, mut other) = call_with_progress(&mut harness, &ann, &messages[1]).await;
    let event_ids = [first.last_id.clone().expect("an id"), second.last_id.clone().expect("an id")];
    drop((first, second, standing));
    one.ends("one");
    other.ends("other");
    for ((message, event_id), text) in messages.iter().zip(&event_ids).zip(["one", "other"]) {
        let rest = ann.resume(event_id).await.rest().await;
        let (last, before) = rest.split_last().expect("a response");
        assert_eq!(text_for(message, last), text);
        let token = &message["params"]["_meta"]["progressToken"];
        assert!(before.iter().all(|note| note["params"]["progressToken"] == *token), "{before:?}");
    }
    // Nor to another caller, who has no such stream.
    let bob = session(harness.server.port, "bob-token").await;
    for event_id in &event_ids {
        assert_eq!(refused(&bob.http("GET", &[("Last-Event-ID", event_id.as_str())]).await), (400, -32602));
    }
}

#[tokio::test]
async fn a_place_in_no_stream_is_refused() {
    let mut harness = ToolHarness::of(Config::default(), |tool| tool).await;
    let legacy = LegacySession::open(&harness.server).await;
    let message = call(&legacy, "writes", json!({"progressToken": "p"}));
    let (mut sse, mut run) = call_with_progress(&mut harness, &legacy, &message).await;
    let long = "9".repeat(3_000);
    for bad in ["x", "::", "%00", "../..", "'; DROP TABLE task; --", &long] {
        assert_eq!(refused(&legacy.http("GET", &[("Last-Event-ID", bad)]).await), (400, -32602), "{bad}");
    }
    run.ends("done");
    assert_eq!(text_for(&message, &response(&mut sse).await), "done");
}

/// A call that is cut off by a crash of its server; the session, the request, and where it was.
pub(crate) fn cut_off(dir: &Arc<TempDir>, clock: &ManualClock, gate: &Gate, tools: Registry) -> (LegacySession, Value, String) {
    until_crash(async {
        let server = TestServer::start_in(dir.clone(), tools, crate::kit::without_followups(), Arc::new(clock.clone())).await;
        let legacy = LegacySession::open(&server).await;
        let message = call(&legacy, "slow", json!({}));
        let mut sse = held(&legacy, clock, gate, &message).await;
        let prime = sse.event().await.expect("an event");
        assert!(prime.message.is_none(), "{prime:?}");
        (legacy, message, prime.id.expect("an id"))
    })
}

#[test]
fn the_stream_of_a_call_goes_on_after_a_crash_of_the_server() {
    let (dir, clock, gate) = (Arc::new(TempDir::new()), manual_clock(), Gate::new());
    let tools = || registry([gate.tool("slow").retry_on_interrupt()]);
    let (legacy, message, event_id) = cut_off(&dir, &clock, &gate, tools());
    until_crash(async {
        let server = reopened(&dir, tools(), Config::default(), &clock).await;
        let mut sse = legacy.at(server.port).resume(&event_id).await;
        with_timeout("the second start", gate.started.wait()).await;
        gate.go.send();
        assert_eq!(text_for(&message, &response(&mut sse).await), "done");
    });
    assert_eq!(gate.runs(), 2);
}

#[test]
fn a_call_that_cannot_be_run_again_after_a_crash_says_so_on_its_stream() {
    let (dir, clock, gate) = (Arc::new(TempDir::new()), manual_clock(), Gate::new());
    let tools = || registry([gate.tool("slow")]);
    let (legacy, message, event_id) = cut_off(&dir, &clock, &gate, tools());
    until_crash(async {
        let server = reopened(&dir, tools(), Config::default(), &clock).await;
        let answer = response(&mut legacy.at(server.port).resume(&event_id).await).await;
        assert_eq!(answer["id"], message["id"]);
        let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_default();
        assert!(answer["result"]["isError"] == true && text.contains("failed: interrupted"), "{answer}");
    });
    assert_eq!(gate.runs(), 1);
}

// Connections that end before their streams do.

#[tokio::test]
async fn a_connection_is_ended_after_so_long_and_says_when_to_come_back() {
    let legacy = LegacyConfig { reconnect_after: Some(30 * SECOND), retry: 2 * SECOND, ..LegacyConfig::default() };
    let gate = Gate::new();
    let tools = registry([gate.tool("slow")]);
    let (server, clock) = start(tools.clone(), with_legacy(legacy)).await;
    let legacy = LegacySession::open(&server).await;
    let (id, message) = (legacy.start("slow", json!({})).await, call(&legacy, "slow", json!({})));
    with_timeout("the start", gate.started.wait()).await;
    let wait = legacy.message(legacy.next_id(), "tasks/result", json!({"taskId": id}));
    let mut streams =
        [held(&legacy, &clock, &gate, &message).await, legacy.stream_message(&wait).await, legacy.open_session_stream().await];
    for sse in &mut streams {
        let events = with_timeout("the end of the connection", passing(&clock, 50 * MS, events(sse))).await;
        assert!(events.iter().any(|event| event.retry == Some(2_000)), "{events:?}");
        let is_answer = |event: &Event| event.message.as_ref().is_some_and(|message| message.get("method").is_none());
        assert!(!events.iter().any(is_answer), "the stream itself goes on: {events:?}");
    }
    assert!(!gate.stopped.is_sent());
    let [call_at, wait_at, standing_at] = streams.map(|sse| sse.last_id.expect("an id"));
    let mut standing = legacy.resume(&standing_at).await;
    tools.tool(quick("quick")).expect("a tool");
    standing.until("notifications/tools/list_changed").await;
    gate.go.send();
    gate.go.send();
    for (message, event_id) in [(message, call_at), (wait, wait_at)] {
        assert_eq!(text_for(&message, &response(&mut legacy.resume(&event_id).await).await), "done");
    }
}

#[tokio::test]
async fn a_connection_is_not_ended_if_nothing_was_said_about_that() {
    let (server, clock) = start(registry([quick("quick")]), Config::default()).await;
    let legacy = LegacySession::open(&server).await;
    let mut sse = legacy.open_session_stream().await;
    for _ in 0..20 {
        clock.advance(HOUR);
        settle().await;
        legacy.ok("ping", json!({})).await;
    }
    let id = legacy.start("quick", json!({})).await;
    loop {
        let status = sse.until("notifications/tasks/status").await;
        if status["params"]["status"] == "completed" {
            assert_eq!(status["params"]["taskId"], *id);
            break;
        }
    }
}

#[tokio::test]
async fn a_tool_can_end_the_connection_of_its_caller() {
    let mut harness = ToolHarness::of(Config::default(), |tool| tool).await;
    let legacy = LegacySession::open(&harness.server).await;
    for has_spoken in [true, false] {
        let message = call(&legacy, "writes", json!({"progressToken": "p"}));
        let (mut sse, mut run) = if has_spoken {
            let (sse, run) = call_with_progress(&mut harness, &legacy, &message).await;
            run.ctx.disconnect(Duration::from_millis(300));
            (sse, run)
        } else {
            let running = async {
                let run = harness.run().await;
                run.ctx.disconnect(Duration::from_millis(300));
                run
            };
            with_timeout("the stream of a call", async { tokio::join!(legacy.stream_message(&message), running) }).await
        };
        let events = events(&mut sse).await;
        assert!(events.iter().any(|event| event.retry == Some(300)), "{events:?}");
        assert!(events.iter().all(|event| event.message.is_none()), "{events:?}");
        assert!(!run.ctx.is_cancelled());
        run.ends("done");
        let event_id = sse.last_id.clone().expect("an id");
        assert_eq!(text_for(&message, &response(&mut legacy.resume(&event_id).await).await), "done");
    }
}

#[tokio::test]
async fn who_cannot_come_back_is_not_sent_away() {
    let hasty = tool("hasty", &(), |(), ctx| async move {
        ctx.disconnect(Duration::from_millis(300));
        settle().await;
        Ok("done")
    });
    let server = TestServer::start(registry([hasty])).await;
    let legacy = LegacySession::open(&server).await.accepting("application/json");
    assert_eq!(legacy.call("hasty", json!({})).await["content"][0]["text"], "done");
    assert_eq!(server.plain_client().call("hasty", json!({})).await["content"][0]["text"], "done");
}

#[tokio::test]
async fn a_shutdown_ends_connections_and_not_their_streams() {
    let gate = Gate::new();
    let tools = || registry([gate.tool("slow")]);
    let (mut server, clock) = start(tools(), crate::kit::without_followups()).await;
    let (dir, legacy) = (server.dir(), LegacySession::open(&server).await);
    let (id, message) = (legacy.start("slow", json!({})).await, call(&legacy, "slow", json!({})));
    with_timeout("the start", gate.started.wait()).await;
    let wait = legacy.message(legacy.next_id(), "tasks/result", json!({"taskId": id}));
    let mut streams =
        [held(&legacy, &clock, &gate, &message).await, legacy.stream_message(&wait).await, legacy.open_session_stream().await];
    for sse in &mut streams[..2] {
        let prime = sse.event().await.expect("an event");
        assert!(prime.id.is_some() && prime.message.is_none(), "{prime:?}");
    }
    server.stop();
    for sse in &mut streams {
        let events = events(sse).await;
        assert!(events.iter().any(|event| event.retry == Some(1_000)), "{events:?}");
        assert!(events.iter().all(|event| event.message.as_ref().is_none_or(|message| message.get("method").is_some())), "{events:?}");
    }
    gate.go.send();
    gate.go.send();
    with_timeout("the shutdown", server.stopped()).await;
    let server = reopened(&dir, tools(), crate::kit::without_followups(), &clock).await;
    let legacy = legacy.at(server.port);
    let [call_at, wait_at, standing_at] = streams.map(|sse| sse.last_id.expect("an id"));
    for (message, event_id) in [(message, call_at), (wait, wait_at)] {
        assert_eq!(text_for(&message, &response(&mut legacy.resume(&event_id).await).await), "done");
    }
    drop(legacy.resume(&standing_at).await);
    assert!(!gate.stopped.is_sent());
}

#[tokio::test]
async fn a_client_that_goes_away_stops_nothing() {
    let mut harness = ToolHarness::of(Config::default(), |tool| tool).await;
    let legacy = LegacySession::open(&harness.server).await;
    // Before anything has come back, and after. The same call would join the first.
    let mut message = call(&legacy, "writes", json!({}));
    message["params"]["arguments"]["other"] = true.into();
    let connection = Client::new(harness.server.port).send(&legacy.headers(), message.to_string().as_bytes()).await;
    let mut unheard = harness.run().await;
    drop(connection);
    let message = call(&legacy, "writes", json!({"progressToken": "p"}));
    let (sse, mut run) = call_with_progress(&mut harness, &legacy, &message).await;
    let event_id = sse.last_id.clone().expect("an id");
    drop(sse);
    for _ in 0..5 {
        settle().await;
        legacy.ok("ping", json!({})).await;
    }
    assert!(!unheard.ctx.is_cancelled() && !run.ctx.is_cancelled());
    unheard.ends("done");
    run.ends("done");
    assert_eq!(text_for(&message, &response(&mut legacy.resume(&event_id).await).await), "done");
}

// Calling off.

pub(crate) async fn cancel_request(legacy: &LegacySession, request: &Value) {
    legacy.notify("notifications/cancelled", json!({"requestId": request["id"], "reason": "not needed"})).await;
}

#[tokio::test]
async fn a_call_that_is_cancelled_is_stopped_and_not_answered() {
    let gate = Gate::new();
    let (server, clock) = start(registry([gate.tool("slow"), quick("quick")]), crate::kit::without_followups()).await;
    for version in VERSIONS {
        let legacy = LegacySession::of(server.port, None, version, json!({})).await;
        let message = call(&legacy, "slow", json!({}));
        let mut sse = held(&legacy, &clock, &gate, &message).await;
        cancel_request(&legacy, &message).await;
        with_timeout("the stop", gate.stopped.wait()).await;
        assert_eq!(sse.rest().await, Vec::<Value>::new(), "{version}");
        assert_eq!(legacy.call("quick", json!({})).await["content"][0]["text"], "done");
    }
}

#[tokio::test]
async fn a_call_that_is_cancelled_before_anything_was_said_is_answered_with_nothing() {
    let gate = Gate::new();
    let (server, _clock) = start(registry([gate.tool("slow")]), Config::default()).await;
    let legacy = LegacySession::open(&server).await;
    let message = call(&legacy, "slow", json!({}));
    let calling_off = async {
        gate.started.wait().await;
        cancel_request(&legacy, &message).await;
    };
    let (response, ()) = with_timeout("the answer", async { tokio::join!(legacy.post(&message), calling_off) }).await;
    assert_eq!((response.status, response.body.len()), (202, 0));
    with_timeout("the stop", gate.stopped.wait()).await;
}

#[tokio::test]
async fn cancelling_what_is_not_ones_own_or_not_under_way_does_nothing() {
    let gate = Gate::new();
    let (server, clock) = start(registry([gate.tool("slow")]), Config::default()).await;
    let (legacy, other) = (LegacySession::open(&server).await, LegacySession::open(&server).await);
    let task = legacy.start("slow", json!({})).await;
    with_timeout("the start", gate.started.wait()).await;
    let message = call(&legacy, "slow", json!({}));
    let mut sse = held(&legacy, &clock, &gate, &message).await;
    cancel_request(&other, &message).await;
    let id = message["id"].as_u64().expect("a number");
    for params in [
        json!({"requestId": id.to_string()}),
        json!({"requestId": 99_999}),
        json!({"requestId": null}),
        json!({"requestId": {}}),
        json!({"requestId": id - 1}),
        json!({"taskId": task}),
        json!({}),
    ] {
        legacy.notify("notifications/cancelled", params).await;
    }
    settle().await;
    assert!(!gate.stopped.is_sent());
    gate.go.send();
    gate.go.send();
    assert_eq!(text_for(&message, &response(&mut sse).await), "done");
    assert_eq!(legacy.result(&task).await["content"][0]["text"], "done");
}

// Limits.

#[tokio::test]
async fn a_caller_may_have_so_many_standing_streams_and_another_when_one_is_closed() {
    let (server, _) = start(registry([]), Config { streams_per_caller: 2, ..two_callers() }).await;
    let open = async |token: &'static str| LegacySession::of(server.port, Some(token), LATEST, json!({})).await;
    let sessions = [open("ann-token").await, open("ann-token").await, open("ann-token").await];
    let first = sessions[0].open_session_stream().await;
    let _second = sessions[1].open_session_stream().await;
    let full = sessions[2].http("GET", &[]).await;
    assert_eq!(refused(&full), (429, -31001));
    assert!(said(&full).contains("`streams_per_caller`"), "{}", said(&full));
    let _others = open("bob-token").await.open_session_stream().await;
    drop(first);
    let room = async {
        while let Err(status) = sessions[2].try_open_session_stream().await {
            assert_eq!(status, 429);
        }
    };
    with_timeout("room for another", room).await;
}

#[tokio::test]
async fn so_many_requests_of_a_caller_may_wait_for_the_end_of_something() {
    let gate = Gate::new();
    let (server, clock) = start(registry([gate.tool("slow")]), Config { waiting_requests_per_caller: 2, ..two_callers() }).await;
    let open = async |token: &'static str| LegacySession::of(server.port, Some(token), LATEST, json!({})).await;
    let (ann, bob) = (open("ann-token").await, open("bob-token").await);
    let id = ann.start("slow", json!({})).await;
    with_timeout("the start", gate.started.wait()).await;
    let message = call(&ann, "slow", json!({}));
    let mut call = held(&ann, &clock, &gate, &message).await;
    let mut result = awaiting(&ann, &id).await;
    for sse in [&mut call, &mut result] {
        sse.event().await.expect("an event");
    }
    let full = ann.raw("tasks/result", json!({"taskId": id})).await;
    assert_eq!(refused(&full), (429, -31001));
    assert!(said(&full).contains("`waiting_requests_per_caller`"), "{}", said(&full));
    let another = bob.start("slow", json!({})).await;
    with_timeout("the start", gate.started.wait()).await;
    let mut free = awaiting(&bob, &another).await;
    free.event().await.expect("an event");
    (0..3).for_each(|_| gate.go.send());
    for sse in [&mut call, &mut result, &mut free] {
        assert_eq!(response(sse).await["result"]["content"][0]["text"], "done");
    }
    assert_eq!(ann.result(&id).await["content"][0]["text"], "done");
}
