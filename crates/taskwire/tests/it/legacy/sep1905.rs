//! SEP-1905 by its own words: its fifteen test scenarios and both its checklists, each test named after its row. The client is
//! made of [`LegacySession`] and [`Segments`]. What else the proposal says is in `modes.rs`.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use taskwire::{
    client::Segments,
    server::{Config, LegacyConfig, ResponseMode},
    tool::{CallResult, Content, ToolError},
};

use super::{
    kit::{LegacySession, RELATED, messages_of},
    session::with_legacy,
    streamed::{
        ALL, FALLBACK, FIVE, as_time_passes, asking, begun, call, call_with, calling, capable_of, five, gone, id_in, merged,
        messages_until, mode_of, part, polled, pull, ready, staged, take, without, writes_both,
    },
};
use crate::{
    kit::with_timeout,
    tool_harness::{HOUR, MS, SECOND, ToolHarness, text_of},
};

// The test scenarios: basic functionality.

#[tokio::test]
async fn scenario_01_immediate_mode_complete_results() {
    let (_server, legacy) = ready(Config::default()).await;
    let result = legacy.task("quick", json!({}), asking(&["immediate"])).await;
    assert_eq!((mode_of(&result), text_of(&result["content"])), ("immediate", "done".to_owned()));
    assert_eq!(result["isError"], false, "{result}");
}

#[tokio::test]
async fn scenario_02_task_mode_standard_flow() {
    for task in [json!({}), asking(&["task"])] {
        let (mut harness, legacy) = staged(Config::default()).await;
        let created = legacy.task("writes", json!({}), task).await;
        assert_eq!((mode_of(&created), &created["task"]["status"]), ("task", &json!("working")));
        let (id, mut run) = (id_in(&created), harness.run().await);
        assert_eq!(legacy.get(&id).await["status"], "working");
        run.writes("on the way").await;
        run.ends("done");
        polled(&legacy, &id, "completed").await;
        let result = legacy.result(&id).await;
        assert_eq!((mode_of(&result), text_of(&result["content"])), ("immediate", "done".to_owned()), "in standard form");
        assert_eq!(result["_meta"][RELATED]["taskId"], id);
    }
}

#[tokio::test]
async fn scenario_03_streaming_mode_initial_response_only() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let ending = async {
        let mut run = harness.run().await;
        run.ends(CallResult::of([Content::text("one"), Content::text("two")]));
    };
    let (response, ()) = tokio::join!(legacy.raw("tools/call", calling(&["streaming"])), ending);
    let messages = messages_of(&response);
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert_eq!(part(&messages[0]["result"]), json!([["1 one", "2 two"], true, false]));
    let mut segments = Segments::new();
    assert_eq!(take(&mut segments, &messages[0]["result"]), [1, 2]);
    assert_eq!(merged(&segments), "one+two");
}

// Streaming scenarios.

#[tokio::test]
async fn scenario_04_streaming_mode_multiple_responses() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (opening, mut run) = call(&mut harness, &legacy).await;
    writes_both(&run, "one", "two").await;
    let mut call = opening.opened().await;
    assert_eq!(call.part().await, json!([["1 one", "2 two"], false, false]));
    writes_both(&run, "three", "four").await;
    assert_eq!(call.part().await, json!([["3 three", "4 four"], false, false]));
    run.ends(());
    assert_eq!(part(&call.last().await), json!([[], true, false]));
    assert_eq!(call.merged(), "one+two+three+four");
}

#[tokio::test]
async fn scenario_05_streaming_mode_sse_stream() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (mut call, mut run) = begun(&mut harness, &legacy).await;
    for (n, text) in (2..).zip(&FIVE[1..]) {
        run.writes(text).await;
        assert_eq!(call.part().await, json!([[format!("{n} {text}")], false, false]));
    }
    run.ends(());
    assert_eq!(part(&call.last().await), json!([[], true, false]));
    assert_eq!(call.merged(), FIVE.join("+"));
}

#[tokio::test]
async fn scenario_06_streaming_mode_resume_with_last_seq_nr() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (mut call, mut run) = begun(&mut harness, &legacy).await;
    run.writes("two").await;
    run.writes("three").await;
    call.until(3).await;
    let (id, mut cut) = (call.task().to_owned(), call.cut());
    run.writes("four").await;
    run.writes("five").await;
    let question = legacy.message(legacy.next_id(), "tasks/result", json!({"taskId": id, "lastSeqNr": 3}));
    let answer = legacy.post(&question).await.json();
    assert_eq!(answer["id"], question["id"], "under its own id");
    assert_eq!(part(&answer["result"]), json!([["4 four", "5 five"], false, false]));
    assert_eq!(take(&mut cut.segments, &answer["result"]), [4, 5]);
    run.ends(());
    polled(&legacy, &id, "completed").await;
    take(&mut cut.segments, &pull(&legacy, &id, 5).await);
    assert_eq!(merged(&cut.segments), FIVE.join("+"));
}

#[tokio::test]
async fn scenario_07_streaming_mode_gap_detection() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (call, _run, results) = five(&mut harness, &legacy).await;
    let mut segments = Segments::new();
    results.iter().for_each(|result| drop(take(&mut segments, &without(&[2, 4], result))));
    assert_eq!(segments.gaps(), [2..=2, 4..=4]);
    let answer = pull(&legacy, call.task(), segments.resume_from().expect("the first is there")).await;
    assert_eq!(part(&answer), json!([["2 two", "3 three", "4 four", "5 five"], false, false]));
    assert_eq!(take(&mut segments, &answer), [2, 4], "the others came before");
    assert!(segments.gaps().is_empty());
}

// Edge cases.

#[tokio::test]
async fn scenario_08_immediate_mode_fallback() {
    let cases: [(bool, &[&str], &str); 6] = [
        (false, &["immediate", "streaming"], "task"),
        (true, &["immediate", "streaming"], "streaming"),
        (true, &ALL, "streaming"),
        (true, &["immediate", "task"], "task"),
        (true, &["immediate"], "task"),
        (false, &ALL, "task"),
    ];
    for (streams, modes, expected) in cases {
        let mut harness = ToolHarness::of(Config::default(), |tool| if streams { tool.streams() } else { tool }).await;
        let legacy = LegacySession::declaring(&harness.server, capable_of(&ALL)).await.accepting("application/json");
        let task = asking(modes);
        let calling = tokio::spawn(async move { legacy.task("writes", json!({}), task).await });
        let run = harness.run().await;
        run.writes("one").await;
        let result = as_time_passes(&harness.clock, calling).await.expect("no panic");
        assert_eq!(mode_of(&result), expected, "{streams} {modes:?}");
        let has_fallback = expected == "task" && !modes.contains(&"task");
        assert_eq!(result["_meta"].get(FALLBACK), has_fallback.then_some(&json!("task")), "{streams} {modes:?}");
        if expected == "streaming" {
            assert_eq!(part(&result), json!([["1 one"], false, false]));
        }
        assert_eq!(result["task"]["status"], "working", "{streams} {modes:?}");
    }
}

#[tokio::test]
async fn scenario_09_ttl_expiration_during_streaming() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (opening, mut run) = call_with(&mut harness, &legacy, json!({"ttl": 60_000, "responseModes": ["streaming"]})).await;
    run.writes("one").await;
    let mut call = opening.opened().await;
    assert_eq!(call.next().await.expect("a response")["task"]["ttl"], 60_000);
    let id = call.task().to_owned();
    // The time of work that goes on is never over: it grows, and the server says so.
    harness.clock.advance(HOUR);
    run.writes("two").await;
    assert_eq!(call.part().await, json!([["2 two"], false, false]));
    let task = legacy.get(&id).await;
    assert_eq!(task["status"], "working");
    assert!(task["ttl"].as_u64() > Some(3_600_000), "{task}");
    // It runs from the end on, also for a client that has not seen everything yet.
    let cut = call.cut();
    run.writes("three").await;
    run.ends(());
    legacy.result(&id).await;
    harness.clock.advance(60 * SECOND);
    assert_eq!(gone(&legacy, &id).await["code"], -32602);
    assert_eq!(legacy.error("tasks/result", json!({"taskId": id, "lastSeqNr": 2})).await["code"], -32602);
    let messages = legacy.resume(&cut.last).await.rest().await;
    assert_eq!((messages.len(), &messages[0]["id"], &messages[0]["error"]["code"]), (1, &json!(cut.id), &json!(-32602)));
    assert_eq!((cut.segments.is_complete(), cut.segments.merged()), (false, None), "the client knows that it has not all");
    assert_eq!(cut.segments.resume_from(), Some(2));
}

#[tokio::test]
async fn scenario_10_task_cancellation_during_streaming() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (mut call, run) = begun(&mut harness, &legacy).await;
    let id = call.task().to_owned();
    assert_eq!(legacy.cancel(&id).await["status"], "cancelled");
    assert_eq!(part(&call.last().await), json!([[], true, true]));
    with_timeout("the word to stop", run.ctx.cancelled()).await;
    assert!(run.tries("late").await.is_err());
    assert_eq!(legacy.get(&id).await["status"], "cancelled");
    assert_eq!(part(&pull(&legacy, &id, 1).await), json!([[], true, true]), "nothing came after it");
}

#[tokio::test]
async fn scenario_11_task_failure_during_streaming() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (mut call, mut run) = begun(&mut harness, &legacy).await;
    run.ends_with(Err(ToolError::protocol(-32603, "broken")));
    assert_eq!(part(&call.last().await), json!([["2 broken"], true, true]));
    let task = legacy.get(call.task()).await;
    assert_eq!((&task["status"], &task["statusMessage"]), (&json!("failed"), &json!("broken")));
}

#[tokio::test]
async fn scenario_12_duplicate_segment_detection() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (mut call, mut run, _) = five(&mut harness, &legacy).await;
    let again = pull(&legacy, call.task(), 1).await;
    assert_eq!(part(&again)[0], json!(["2 two", "3 three", "4 four", "5 five"]), "what came by the stream");
    assert_eq!(call.take(&again), [0; 0]);
    assert_eq!(call.segments.len(), 5);
    run.ends(());
    call.last().await;
    assert_eq!(call.merged(), FIVE.join("+"));
}

// Compatibility.

#[tokio::test]
async fn scenario_13_new_client_old_server() {
    let config = with_legacy(LegacyConfig { modes: vec![ResponseMode::Task], ..LegacyConfig::default() });
    let (mut harness, legacy) = staged(config).await;
    let created = legacy.task("writes", json!({}), asking(&["streaming"])).await;
    assert_eq!((mode_of(&created), &created["_meta"][FALLBACK]), ("task", &json!("task")));
    let mut segments = Segments::new();
    assert_eq!(take(&mut segments, &created), [0; 0]);
    let mut run = harness.run().await;
    run.writes("one").await;
    run.ends("done");
    let result = legacy.result(&id_in(&created)).await;
    take(&mut segments, &result);
    assert_eq!((merged(&segments), segments.is_error()), ("done".to_owned(), false));
    // A server that never heard of modes says nothing of them: a plain handle, and later a plain result.
    let old = LegacySession::open(&harness.server).await;
    assert_eq!(old.init()["capabilities"]["tasks"].get("responses"), None);
    let created = old.task("writes", json!({}), asking(&["streaming"])).await;
    assert_eq!((mode_of(&created), created.get("_meta")), ("task", None));
    let mut segments = Segments::new();
    assert_eq!(take(&mut segments, &created), [0; 0]);
    assert_eq!((segments.task_id(), segments.is_complete()), (created["task"]["taskId"].as_str(), false));
    harness.run().await.ends("done");
    take(&mut segments, &old.result(&id_in(&created)).await);
    assert_eq!((segments.is_complete(), merged(&segments), segments.is_error()), (true, "done".to_owned(), false));
}

#[tokio::test]
async fn scenario_14_old_client_new_server() {
    let (mut harness, new) = staged(Config::default()).await;
    for client in [LegacySession::open(&harness.server).await, new] {
        let created = client.task("writes", json!({}), json!({})).await;
        assert_eq!((mode_of(&created), created["_meta"].get(FALLBACK)), ("task", None));
        harness.run().await.ends("done");
        assert_eq!(text_of(&client.result(&id_in(&created)).await["content"]), "done");
    }
}

#[tokio::test]
async fn scenario_15_mixed_mechanisms() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (mut call, mut run) = begun(&mut harness, &legacy).await;
    run.writes("two").await;
    run.writes("three").await;
    // The same segments once by asking, once by the stream.
    assert_eq!(take(&mut call.segments.clone(), &pull(&legacy, call.task(), 1).await), [2, 3]);
    call.until(3).await;
    let answer = pull(&legacy, call.task(), 2).await;
    assert_eq!(call.take(&answer), [0; 0]);
    run.ends("four");
    assert_eq!(part(&call.last().await), json!([["4 four"], true, false]));
    assert_eq!(call.merged(), FIVE[..4].join("+"));
}

// The server's checklist.

#[tokio::test]
async fn server_01_capability_negotiation() {
    let (server, legacy) = ready(Config::default()).await;
    let shown = |legacy: &LegacySession| legacy.init()["capabilities"]["tasks"].get("responses").cloned();
    assert_eq!(shown(&legacy), Some(json!({"modes": ALL})));
    assert_eq!(shown(&LegacySession::open(&server).await), None, "nobody asked");
    let older = LegacySession::of(server.port, None, "2025-06-18", capable_of(&ALL)).await;
    assert_eq!(older.init()["capabilities"].get("tasks"), None);
}

#[tokio::test]
async fn server_02_mode_selection() {
    let (_server, legacy) = ready(Config::default()).await;
    let cases: [(&[&str], &str); 4] = [
        (&["task", "streaming", "immediate"], "immediate"),
        (&["task", "streaming"], "streaming"),
        (&["task"], "task"),
        (&["another"], "task"),
    ];
    for (modes, expected) in cases {
        assert_eq!(mode_of(&legacy.task("quick", json!({}), asking(modes)).await), expected, "{modes:?}");
    }
}

#[tokio::test]
async fn server_03_immediate_mode() {
    for record_immediate in [false, true] {
        let (_server, legacy) = ready(with_legacy(LegacyConfig { record_immediate, ..LegacyConfig::default() })).await;
        let result = legacy.task("quick", json!({}), asking(&ALL)).await;
        assert_eq!((mode_of(&result), &result["isError"]), ("immediate", &json!(false)), "{result}");
        assert_eq!(result["_meta"].get(RELATED).is_some(), record_immediate, "{result}");
        let tasks = legacy.ok("tasks/list", json!({})).await["tasks"].as_array().expect("tasks").len();
        assert_eq!(tasks, usize::from(record_immediate));
    }
}

#[tokio::test]
async fn server_04_task_mode() {
    let (_server, legacy) = ready(Config::default()).await;
    let created = legacy.task("quick", json!({}), asking(&["task"])).await;
    assert_eq!(mode_of(&created), "task", "although its result was there at once");
    assert_eq!(text_of(&legacy.result(&id_in(&created)).await["content"]), "done");
}

#[tokio::test]
async fn server_05_streaming_mode() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (call, _run) = begun(&mut harness, &legacy).await;
    let listed = legacy.ok("tasks/list", json!({})).await;
    assert_eq!(listed["tasks"][0]["taskId"], call.task(), "there is a task");
    assert_eq!(listed["tasks"][0]["status"], "working");
}

#[tokio::test]
async fn server_06_segment_numbering() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (mut call, mut run) = begun(&mut harness, &legacy).await;
    for _ in 0..3 {
        writes_both(&run, "a", "b").await;
        run.ctx.block(Content::link("test://c", "c")).await.expect("taken");
        run.ctx.text("d").await.expect("taken");
        run.ctx.flush().await.expect("written");
    }
    run.ends(CallResult::of([Content::text("e"), Content::image(b"f", "image/png")]));
    // That they are dense is checked with each response.
    call.last().await;
    assert_eq!(call.segments.received().collect::<Vec<_>>(), Vec::from_iter(1..=15));
    assert_eq!(call.merged(), format!("one{}+e+<image>", "+a+b+<resource_link>+d".repeat(3)));
}

#[tokio::test]
async fn server_07_sse_format() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (opening, mut run) = call(&mut harness, &legacy).await;
    run.writes("one").await;
    run.ends("two");
    let mut call = opening.opened().await;
    let prime = call.stream.event().await.expect("a first event");
    assert!(prime.message.is_none(), "{prime:?}");
    let mut ids = BTreeSet::from([prime.id.expect("an id")]);
    let mut count = 1;
    while let Some(event) = call.stream.event().await {
        let message = event.message.expect("a message");
        assert_eq!((&message["jsonrpc"], &message["id"]), (&json!("2.0"), &json!(call.id)));
        assert!(message.get("method").is_none() && message["result"]["partial-content"].is_array(), "{message}");
        call.take(&message["result"]);
        ids.insert(event.id.expect("an id"));
        count += 1;
    }
    assert_eq!((ids.len(), call.merged()), (count, "one+two".to_owned()), "each event has an id of its own");
}

#[tokio::test]
async fn server_08_no_duplicates() {
    let (mut harness, _) = staged(Config::default()).await;
    // Also where the same output could come as partials, to a client that reads all streams.
    let mut capabilities = capable_of(&ALL);
    capabilities["tasks"]["streaming"] = json!({"partial": {}});
    let legacy = LegacySession::declaring(&harness.server, capabilities).await;
    let mut stand = legacy.open_session_stream().await;
    let (mut call, mut run, results) = five(&mut harness, &legacy).await;
    let mut wait = legacy.stream("tasks/result", json!({"taskId": call.task()})).await;
    run.ends(());
    let last = call.last().await;
    let all = results.iter().chain([&last]).flat_map(|result| result["partial-content"].as_array().expect("segments"));
    let numbers: Vec<u64> = all.map(|segment| segment["seqNr"].as_u64().expect("a number")).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5], "each once on the stream of the call");
    let mut waited = wait.rest().await;
    let whole = waited.pop().expect("a response");
    assert_eq!(text_of(&whole["result"]["content"]), FIVE.join("+"), "whole, where the whole was asked for");
    assert!(waited.iter().all(|message| message["method"] == "notifications/tasks/status"), "and nowhere else: {waited:?}");
    // On the session stream the messages about this task come before those about the next one.
    let next = legacy.start("writes", json!({})).await;
    harness.run().await.ends("done");
    let messages = messages_until(&mut stand, &next, "completed").await;
    assert!(messages.iter().all(|message| message["method"] == "notifications/tasks/status"), "and nowhere else: {messages:?}");
}

#[tokio::test]
async fn server_09_completion() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (mut call, mut run) = begun(&mut harness, &legacy).await;
    assert_eq!(legacy.get(call.task()).await["status"], "working");
    run.ends("two");
    assert_eq!(part(&call.last().await), json!([["2 two"], true, false]));
    assert_eq!(legacy.get(call.task()).await["status"], "completed");
}

#[tokio::test]
async fn server_10_error_handling() {
    let ends = [("says", json!(["2 bad"]), "failed"), ("fails", json!(["2 bad"]), "failed"), ("stops", json!([]), "cancelled")];
    for (end, last, status) in ends {
        let (mut harness, legacy) = staged(Config::default()).await;
        let (mut call, mut run) = begun(&mut harness, &legacy).await;
        match end {
            "says" => run.ends_with(Err(ToolError::new("bad"))),
            "fails" => run.ends_with(Err(ToolError::protocol(-32603, "bad"))),
            _ => drop(legacy.cancel(call.task()).await),
        }
        assert_eq!(part(&call.last().await), json!([last, true, true]), "{end}");
        assert_eq!(legacy.get(call.task()).await["status"], status, "{end}");
    }
}

#[tokio::test]
async fn server_11_ttl_handling() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (opening, mut run) = call_with(&mut harness, &legacy, json!({"ttl": 60_000, "responseModes": ["streaming"]})).await;
    run.writes("one").await;
    run.ends("two");
    let mut call = opening.opened().await;
    call.last().await;
    harness.clock.advance(60 * SECOND - MS);
    assert_eq!(part(&pull(&legacy, call.task(), 1).await), json!([["2 two"], true, false]));
    harness.clock.advance(MS);
    assert_eq!(gone(&legacy, call.task()).await["code"], -32602);
    assert_eq!(legacy.error("tasks/result", json!({"taskId": call.task(), "lastSeqNr": 1})).await["code"], -32602);
}

#[tokio::test]
async fn server_12_resume_support() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (mut call, mut run, _) = five(&mut harness, &legacy).await;
    for is_complete in [false, true] {
        for last in 1..=5 {
            let rest: Vec<String> = (1..).zip(FIVE).filter(|(n, _)| *n > last).map(|(n, text)| format!("{n} {text}")).collect();
            assert_eq!(part(&pull(&legacy, call.task(), last).await), json!([rest, is_complete, false]), "behind {last}");
        }
        if !is_complete {
            run.ends(());
            call.last().await;
        }
    }
}

// The client's checklist.

#[tokio::test]
async fn client_01_capability_negotiation() {
    let (server, _) = ready(Config::default()).await;
    let cases: [(&[&str], &str); 3] = [(&ALL, "immediate"), (&["streaming", "task"], "streaming"), (&["task"], "task")];
    for (declared, mode) in cases {
        let legacy = LegacySession::declaring(&server, capable_of(declared)).await;
        assert_eq!(legacy.init()["capabilities"]["tasks"]["responses"]["modes"], json!(ALL), "the server answers with its own");
        assert_eq!(mode_of(&legacy.task("quick", json!({}), asking(&ALL)).await), mode, "{declared:?}");
    }
}

#[tokio::test]
async fn client_02_mode_specification() {
    let (_server, legacy) = ready(Config::default()).await;
    for mode in ALL {
        assert_eq!(mode_of(&legacy.task("quick", json!({}), asking(&[mode])).await), mode);
    }
}

#[tokio::test]
async fn client_03_immediate_mode() {
    let (_server, legacy) = ready(Config::default()).await;
    let result = legacy.task("quick", json!({}), asking(&ALL)).await;
    let mut segments = Segments::new();
    assert_eq!(take(&mut segments, &result), [0; 0], "it has no segments");
    assert_eq!((segments.is_complete(), merged(&segments)), (true, "done".to_owned()));
}

#[tokio::test]
async fn client_04_task_mode() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let mut segments = Segments::new();
    take(&mut segments, &legacy.task("writes", json!({}), asking(&["task"])).await);
    let id = segments.task_id().expect("a task").to_owned();
    assert!(!segments.is_complete());
    harness.run().await.ends("done");
    polled(&legacy, &id, "completed").await;
    take(&mut segments, &legacy.result(&id).await);
    assert_eq!(merged(&segments), "done");
}

#[tokio::test]
async fn client_05_streaming_mode() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (mut call, mut run) = begun(&mut harness, &legacy).await;
    assert_eq!((call.segments.len(), call.segments.is_complete()), (1, false));
    run.ends("two");
    call.last().await;
    assert_eq!((call.segments.len(), call.segments.is_complete()), (2, true));
}

#[tokio::test]
async fn client_06_segment_tracking() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (call, _run, results) = five(&mut harness, &legacy).await;
    assert_eq!(call.segments.received().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    let mut lossy = Segments::new();
    results.iter().for_each(|result| drop(take(&mut lossy, &without(&[1, 3], result))));
    assert_eq!(lossy.received().collect::<Vec<_>>(), [2, 4, 5]);
}

#[tokio::test]
async fn client_07_sse_handling() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let mut stand = legacy.open_session_stream().await;
    let (mut call, mut run) = begun(&mut harness, &legacy).await;
    run.ctx.status("half way").await.expect("said");
    run.ends("two");
    // Whatever comes by either stream: responses have segments, notifications are another matter.
    let mut messages = messages_until(&mut stand, call.task(), "completed").await;
    messages.extend(call.stream.rest().await);
    let (notifications, responses): (Vec<Value>, Vec<Value>) = messages.into_iter().partition(|message| message.get("id").is_none());
    assert!(notifications.iter().any(|message| message["params"]["statusMessage"] == "half way"), "{notifications:?}");
    assert!(responses.iter().all(|message| message["id"] == call.id), "{responses:?}");
    responses.iter().for_each(|message| drop(call.take(&message["result"])));
    assert_eq!(call.merged(), "one+two");
}

#[tokio::test]
async fn client_08_deduplication() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (mut call, _run, results) = five(&mut harness, &legacy).await;
    assert!(results.iter().rev().all(|result| call.take(result).is_empty()), "{results:?}");
    assert_eq!(call.segments.len(), 5);
}

#[tokio::test]
async fn client_09_gap_detection() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (mut call, mut run, mut results) = five(&mut harness, &legacy).await;
    run.ends(());
    results.extend(call.rest().await);
    // The end has come, but not all before it.
    let mut segments = Segments::new();
    results.iter().for_each(|result| drop(take(&mut segments, &without(&[3, 4], result))));
    assert_eq!((segments.is_complete(), segments.merged(), segments.resume_from()), (true, None, Some(2)));
    take(&mut segments, &pull(&legacy, call.task(), 2).await);
    assert_eq!(merged(&segments), FIVE.join("+"));
}

#[tokio::test]
async fn client_10_segment_merging() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (mut call, mut run) = begun(&mut harness, &legacy).await;
    run.ctx.block(Content::link("test://two", "two")).await.expect("taken");
    run.ends(CallResult::of([Content::image(b"three", "image/png")]));
    call.last().await;
    let content = call.segments.merged().expect("it is complete");
    assert_eq!(text_of(&json!(content)), "one+<resource_link>+<image>");
    assert!(content.iter().all(|block| block.get("seqNr").is_none()), "{content:?}");
    assert_eq!(json!(content), legacy.result(call.task()).await["content"], "as the server merges it");
}

#[tokio::test]
async fn client_11_completion_detection() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (mut call, mut run, _) = five(&mut harness, &legacy).await;
    assert_eq!((call.segments.is_complete(), call.segments.merged()), (false, None), "there may be more");
    let answer = pull(&legacy, call.task(), 5).await;
    assert_eq!(call.take(&answer), [0; 0]);
    assert!(!call.segments.is_complete());
    run.ends(());
    call.last().await;
    assert!(call.segments.is_complete() && call.segments.merged().is_some());
}

#[tokio::test]
async fn client_12_error_handling() {
    for (end, status) in [("fails", "failed"), ("stops", "cancelled"), ("expires", "gone")] {
        let (mut harness, legacy) = staged(Config::default()).await;
        let (mut call, mut run) = begun(&mut harness, &legacy).await;
        let id = call.task().to_owned();
        match end {
            "fails" => run.ends_with(Err(ToolError::new("bad"))),
            "stops" => drop(legacy.cancel(&id).await),
            _ => {
                let cut = call.cut();
                run.ends("two");
                legacy.result(&id).await;
                harness.clock.advance(HOUR);
                gone(&legacy, &id).await;
                assert_eq!(legacy.error("tasks/result", json!({"taskId": id, "lastSeqNr": 1})).await["code"], -32602);
                assert!(
                    !cut.segments.is_complete() && cut.segments.received().any(|nr| nr == 1),
                    "what came is still there, and known not to be all"
                );
                continue;
            }
        }
        call.last().await;
        assert!(call.segments.is_complete() && call.segments.is_error(), "{end}");
        assert_eq!(legacy.get(&id).await["status"], status);
    }
}

#[tokio::test]
async fn client_13_resume_support() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (call, mut run) = begun(&mut harness, &legacy).await;
    let (id, mut segments) = (call.task().to_owned(), call.cut().segments);
    for (n, text) in (2..).zip(&FIVE[1..]) {
        run.writes(text).await;
        let answer = pull(&legacy, &id, segments.resume_from().expect("the first is there")).await;
        assert_eq!(take(&mut segments, &answer), [n]);
    }
    run.ends(());
    polled(&legacy, &id, "completed").await;
    take(&mut segments, &pull(&legacy, &id, 5).await);
    assert_eq!((merged(&segments), segments.is_error()), (FIVE.join("+"), false));
}
