//! The rest of SEP-1905: how a mode is chosen, what the first answer has, how a streamed call ends, what `lastSeqNr` gives, and
//! how a stream that was cut goes on. The proposal's own scenarios and checklists are in `sep1905.rs`.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use taskwire::{
    client::Segments,
    server::{Config, FirstAnswer, LegacyConfig, ResponseMode},
    tool::{CallResult, Content, Json, Tool, ToolError},
};

use super::{
    kit::{LATEST, LegacySession, RELATED, messages_of},
    session::with_legacy,
    streamed::{
        ALL, FALLBACK, FIVE, Streamed, as_time_passes, asking, begun, call, call_with, calling, capable_of, five, id_in, merged,
        messages_until, mode_of, part, polled, pull, ready, staged, take, writes_both,
    },
    tasks::brief,
};
use crate::{
    kit::{TestServer, with_timeout},
    shutdown::settle,
    tasks::{accept, name_form, two_callers},
    tool_harness::{HOUR, MS, ToolHarness, not_found, text_of},
};

// Which mode is chosen.

/// Every list of modes, the empty one first.
fn lists() -> impl Iterator<Item = Vec<&'static str>> {
    (0..8_u32).map(|bits| (0..ALL.len()).filter(|n| (bits >> n) & 1 == 1).map(|n| ALL[n]).collect())
}

/// No list, and every list.
fn lists_or_none() -> impl Iterator<Item = Option<Vec<&'static str>>> {
    std::iter::once(None).chain(lists().map(Some))
}

fn mode(name: &str) -> ResponseMode {
    match name {
        "task" => ResponseMode::Task,
        "immediate" => ResponseMode::Immediate,
        "streaming" => ResponseMode::Streaming,
        _ => panic!("no mode: {name}"),
    }
}

/// What the proposal says: the mode, and whether the answer must say that it is none that was asked for. It does not say what
/// an empty list means.
fn expected(server: &[&str], client: Option<&[&str]>, call: Option<&[&str]>) -> (&'static str, Option<bool>) {
    let (Some(client), Some(call)) = (client, call) else { return ("task", Some(false)) };
    // A task is what every server can do.
    let is_common = |mode: &&str| (server.contains(mode) || *mode == "task") && client.contains(mode) && call.contains(mode);
    match ["immediate", "streaming", "task"].into_iter().find(is_common) {
        Some(mode) => (mode, Some(false)),
        None => ("task", (!client.is_empty() && !call.is_empty()).then_some(true)),
    }
}

/// Calls a tool that is done at once with every list, in sessions of every kind.
async fn check_selection(server: &TestServer, modes: &[&str]) {
    for client in lists_or_none() {
        let capabilities = client.as_deref().map_or_else(|| json!({}), capable_of);
        let legacy = LegacySession::declaring(server, capabilities).await;
        if client.as_ref().is_some_and(|client| !client.is_empty()) {
            let shown = legacy.init()["capabilities"]["tasks"]["responses"]["modes"].as_array().expect("modes").clone();
            let shown: BTreeSet<&str> = shown.iter().filter_map(Value::as_str).chain(["task"]).collect();
            assert_eq!(shown, modes.iter().copied().chain(["task"]).collect::<BTreeSet<_>>(), "{client:?}");
        }
        for call in lists_or_none() {
            let task = call.as_deref().map_or_else(|| json!({}), asking);
            let result = legacy.task("quick", json!({}), task).await;
            let (mode, fallback) = expected(modes, client.as_deref(), call.as_deref());
            assert_eq!(mode_of(&result), mode, "server {modes:?}, client {client:?}, call {call:?}");
            let flag = result["_meta"].get(FALLBACK);
            assert!(flag.is_none_or(|flag| flag == "task"), "{result}");
            if let Some(fallback) = fallback {
                assert_eq!(flag.is_some(), fallback, "server {modes:?}, client {client:?}, call {call:?}: {result}");
            }
        }
    }
}

#[tokio::test]
async fn every_combination_of_lists_gives_the_mode_that_the_proposal_says() {
    for list in lists().filter(|list| !list.is_empty()) {
        let modes = list.iter().map(|name| mode(name)).collect();
        let (server, _) = ready(with_legacy(LegacyConfig { modes, ..LegacyConfig::default() })).await;
        check_selection(&server, &list).await;
    }
}

#[tokio::test]
async fn unknown_modes_are_passed_over_and_what_is_no_list_of_names_is_refused() {
    let (_server, legacy) = ready(Config::default()).await;
    let known = legacy.task("quick", json!({}), asking(&["later", "streaming"])).await;
    assert_eq!((mode_of(&known), known["_meta"].get(FALLBACK)), ("streaming", None));
    let unknown = legacy.task("quick", json!({}), asking(&["later"])).await;
    assert_eq!((mode_of(&unknown), &unknown["_meta"][FALLBACK]), ("task", &json!("task")));
    let tasks = async || legacy.ok("tasks/list", json!({})).await["tasks"].as_array().expect("tasks").len();
    let before = tasks().await;
    for bad in [json!("streaming"), json!({"streaming": true}), json!([1]), json!(["task", null]), json!(5), json!(true)] {
        let params = json!({"name": "quick", "arguments": {}, "task": {"responseModes": bad}});
        let error = legacy.error("tools/call", params).await;
        assert_eq!(error["code"], -32602, "{bad}");
        assert!(error["message"].as_str().is_some_and(|message| message.contains("responseModes")), "{error}");
    }
    assert_eq!(tasks().await, before, "nothing was made");
}

// Immediate.

#[tokio::test]
async fn an_immediate_result_leaves_a_task_behind_where_that_is_configured() {
    let (_server, legacy) = ready(with_legacy(LegacyConfig { record_immediate: true, ..LegacyConfig::default() })).await;
    let result = legacy.task("quick", json!({}), asking(&["immediate"])).await;
    assert_eq!((mode_of(&result), text_of(&result["content"])), ("immediate", "done".to_owned()));
    let id = result["_meta"][RELATED]["taskId"].as_str().expect("a task");
    assert_eq!(legacy.get(id).await["status"], "completed");
    let again = legacy.result(id).await;
    assert_eq!((&again["content"], &again["_meta"]), (&result["content"], &result["_meta"]), "the same result");
}

#[tokio::test]
async fn an_immediate_result_is_what_the_tool_returns_not_what_it_wrote() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let ending = async {
        let mut run = harness.run().await;
        run.writes("on the way").await;
        run.ends("done");
    };
    let (result, ()) = tokio::join!(legacy.task("writes", json!({}), asking(&["immediate", "task"])), ending);
    assert_eq!((mode_of(&result), text_of(&result["content"])), ("immediate", "done".to_owned()));
}

#[tokio::test]
async fn a_call_that_writes_and_ends_at_once_is_answered_at_once() {
    for modes in [&["immediate", "task", "streaming"][..], &["immediate", "streaming"][..]] {
        let (mut harness, legacy) = staged(Config::default()).await;
        let ending = async {
            let mut run = harness.run().await;
            run.writes("one").await;
            run.ends("two");
        };
        let (result, ()) = tokio::join!(legacy.task("writes", json!({}), asking(modes)), ending);
        // The same as would have come bit by bit.
        assert_eq!((mode_of(&result), text_of(&result["content"])), ("immediate", "one+two".to_owned()), "{modes:?}");
        assert_eq!(legacy.ok("tasks/list", json!({})).await["tasks"], json!([]), "there is no task");
    }
}

#[tokio::test]
async fn a_call_that_writes_and_does_not_end_at_once_is_streamed() {
    let (mut harness, legacy) = staged(Config { promote_after: HOUR, ..Config::default() }).await;
    let (opening, mut run) = call_with(&mut harness, &legacy, asking(&ALL)).await;
    run.writes("one").await;
    settle().await;
    // It has a tenth of the time of a call that has nothing to show.
    harness.clock.advance(HOUR / 10 - MS);
    settle().await;
    assert_eq!(legacy.ok("tasks/list", json!({})).await["tasks"], json!([]), "there is no task yet");
    harness.clock.advance(MS);
    let mut call = opening.opened().await;
    assert_eq!(call.part().await, json!([["1 one"], false, false]));
    run.ends("two");
    assert_eq!(part(&call.last().await), json!([["2 two"], true, false]));
}

#[tokio::test]
async fn a_call_that_writes_and_fails_at_once_keeps_what_it_wrote() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (opening, mut run) = call_with(&mut harness, &legacy, asking(&ALL)).await;
    run.writes("one").await;
    run.ends_with(Err(ToolError::protocol(-31_999, "broken")));
    let mut call = opening.opened().await;
    let last = call.last().await;
    assert_eq!((&last["isComplete"], &last["isError"], &last["task"]["status"]), (&json!(true), &json!(true), &json!("failed")));
    assert_eq!(call.merged(), "one+broken");
}

// The first answer to a streamed call.

fn beginning_with(initial: FirstAnswer) -> Config {
    with_legacy(LegacyConfig { initial, ..LegacyConfig::default() })
}

#[tokio::test]
async fn the_first_answer_has_the_form_that_is_configured() {
    for initial in [FirstAnswer::Both, FirstAnswer::Task, FirstAnswer::Partial] {
        let (mut harness, legacy) = staged(beginning_with(initial)).await;
        let (opening, mut run) = call(&mut harness, &legacy).await;
        run.writes("one").await;
        let mut call = opening.opened().await;
        let mut first = call.next().await.expect("a first answer");
        assert_eq!(first.get("task").is_some(), initial != FirstAnswer::Partial, "{first}");
        if initial == FirstAnswer::Task {
            assert_eq!(mode_of(&first), "task");
            first = call.next().await.expect("a second answer");
        }
        assert_eq!(part(&first), json!([["1 one"], false, false]), "{initial:?}");
        run.writes("two").await;
        let second = call.next().await.expect("another answer");
        assert_eq!((part(&second), second.get("task")), (json!([["2 two"], false, false]), None), "{initial:?}");
        run.ends(());
        assert_eq!(part(&call.last().await), json!([[], true, false]), "{initial:?}");
        assert_eq!(call.merged(), "one+two");
    }
}

#[tokio::test]
async fn where_there_is_no_output_in_time_the_first_answer_names_the_task() {
    for (initial, segments) in [(FirstAnswer::Both, Value::Null), (FirstAnswer::Task, Value::Null), (FirstAnswer::Partial, json!([]))] {
        let (mut harness, legacy) = staged(beginning_with(initial)).await;
        let (opening, mut run) = call(&mut harness, &legacy).await;
        let mut call = as_time_passes(&harness.clock, opening.opened()).await;
        let first = as_time_passes(&harness.clock, call.next()).await.expect("a first answer");
        assert_eq!((first.get("task").is_some(), &first["partial-content"]), (initial != FirstAnswer::Partial, &segments));
        assert_ne!(first["isComplete"], true, "{first}");
        run.writes("one").await;
        assert_eq!(call.part().await, json!([["1 one"], false, false]), "{initial:?}");
        run.ends("two");
        assert_eq!(part(&call.last().await), json!([["2 two"], true, false]), "{initial:?}");
    }
}

#[tokio::test]
async fn the_first_answer_with_output_is_the_last_where_all_is_there() {
    for initial in [FirstAnswer::Both, FirstAnswer::Task, FirstAnswer::Partial] {
        let (mut harness, legacy) = staged(beginning_with(initial)).await;
        let ending = async { harness.run().await.ends("done") };
        let (response, ()) = tokio::join!(legacy.raw("tools/call", calling(&["streaming"])), ending);
        let results: Vec<Value> = messages_of(&response).iter().map(|message| message["result"].clone()).collect();
        assert_eq!(results.len(), if initial == FirstAnswer::Task { 2 } else { 1 }, "{results:?}");
        assert_eq!(results[0].get("task").is_some(), initial != FirstAnswer::Partial, "{results:?}");
        let last = results.last().expect("a last answer");
        assert_eq!(part(last), json!([["1 done"], true, false]));
        let id = last["_meta"][RELATED]["taskId"].as_str().expect("a task");
        assert_eq!(legacy.get(id).await["status"], "completed");
    }
}

// What a streamed call comes to.

#[tokio::test]
async fn structured_content_comes_with_the_last_answer_and_with_the_whole() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (mut call, mut run) = begun(&mut harness, &legacy).await;
    assert_eq!(call.segments.structured(), None);
    run.ends(Json(json!({"n": 4})));
    let last = call.last().await;
    assert_eq!((part(&last), &last["structuredContent"]), (json!([["2 {\"n\":4}"], true, false]), &json!({"n": 4})));
    assert_eq!(call.segments.structured(), Some(json!({"n": 4})));
    let whole = legacy.result(call.task()).await;
    assert_eq!((text_of(&whole["content"]), &whole["structuredContent"]), (call.merged(), &json!({"n": 4})));
}

#[tokio::test]
async fn what_a_tool_returns_is_its_last_segment_unless_it_has_written_just_that() {
    let texts = |texts: &[&str]| CallResult::of(texts.iter().map(Content::text));
    let cases = [(texts(&["one"]), json!([])), (texts(&["one", "two"]), json!(["2 one", "3 two"])), (texts(&[]), json!([]))];
    for (returned, last) in cases {
        let (mut harness, legacy) = staged(Config::default()).await;
        let (mut call, mut run) = begun(&mut harness, &legacy).await;
        run.ends(returned);
        assert_eq!(part(&call.last().await), json!([last, true, false]));
        assert_eq!(text_of(&legacy.result(call.task()).await["content"]), call.merged());
    }
    let (mut harness, legacy) = staged(Config::default()).await;
    let (mut call, mut run, _) = five(&mut harness, &legacy).await;
    run.ends(FIVE.concat());
    call.last().await;
    assert_eq!(call.merged(), FIVE.join("+"), "nothing is said twice");
}

#[tokio::test]
async fn the_whole_of_a_streamed_call_is_waited_for_and_has_no_numbers() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (mut call, mut run) = begun(&mut harness, &legacy).await;
    let mut waiting = legacy.stream("tasks/result", json!({"taskId": call.task()})).await;
    run.writes("two").await;
    run.ends("three");
    let response = waiting.rest().await.pop().expect("a response");
    let whole = &response["result"];
    assert_eq!((text_of(&whole["content"]), whole["isError"] == true), ("one+two+three".to_owned(), false));
    assert_eq!(whole["_meta"][RELATED]["taskId"], call.task());
    assert!(whole.get("partial-content").is_none() && !whole.to_string().contains("seqNr"), "{whole}");
    call.last().await;
    assert_eq!(call.segments.merged().map(Value::Array).as_ref(), Some(&whole["content"]));
}

#[tokio::test]
async fn a_result_that_says_it_failed_is_a_segment_or_the_content() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (mut call, mut run) = begun(&mut harness, &legacy).await;
    run.ends_with(Ok(CallResult::error("bad")));
    assert_eq!(part(&call.last().await), json!([["2 bad"], true, true]));
    let task = legacy.get(call.task()).await;
    assert_eq!((&task["status"], &task["statusMessage"]), (&json!("failed"), &json!("bad")));
    let whole = legacy.result(call.task()).await;
    assert_eq!((text_of(&whole["content"]), &whole["isError"]), ("one+bad".to_owned(), &json!(true)));
    assert_eq!(part(&pull(&legacy, call.task(), 1).await), json!([["2 bad"], true, true]));

    let (opening, mut run) = super::streamed::call(&mut harness, &legacy).await;
    run.ends_with(Ok(CallResult::error("bad")));
    let mut call = opening.opened().await;
    let last = call.last().await;
    assert_eq!((part(&last), text_of(&last["content"])), (json!([null, true, true]), "bad".to_owned()));
    assert_eq!((call.merged(), call.segments.is_error()), ("bad".to_owned(), true));
    assert_eq!(legacy.get(call.task()).await["status"], "failed");
    let whole = legacy.result(call.task()).await;
    assert_eq!((text_of(&whole["content"]), &whole["isError"]), ("bad".to_owned(), &json!(true)));
    assert_eq!(part(&pull(&legacy, call.task(), 1).await), json!([[], true, true]));
}

#[tokio::test]
async fn a_call_that_fails_ends_with_its_task_or_with_the_message() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let broken = || Err(ToolError::protocol(-32603, "broken"));
    let (mut call, mut run) = begun(&mut harness, &legacy).await;
    run.ends_with(broken());
    let last = call.last().await;
    assert_eq!(part(&last), json!([["2 broken"], true, true]), "what was not sent yet, and that is why it failed");
    assert_eq!((&last["task"]["status"], &last["task"]["statusMessage"]), (&json!("failed"), &json!("broken")));
    assert_eq!((call.merged(), call.segments.is_error()), ("one+broken".to_owned(), true));
    assert_eq!(part(&pull(&legacy, call.task(), 1).await), json!([["2 broken"], true, true]));
    let error = legacy.error("tasks/result", json!({"taskId": call.task()})).await;
    assert_eq!((&error["code"], &error["message"]), (&json!(-32603), &json!("broken")), "the error itself");

    let (opening, mut run) = super::streamed::call(&mut harness, &legacy).await;
    run.ends_with(broken());
    let mut call = opening.opened().await;
    let last = call.last().await;
    assert_eq!(part(&last), json!([null, true, true]));
    assert!(text_of(&last["content"]).contains("broken"), "{last}");
    assert_eq!(legacy.get(call.task()).await["status"], "failed");
    assert_eq!(legacy.error("tasks/result", json!({"taskId": call.task()})).await["message"], "broken");
}

#[tokio::test]
async fn a_call_that_is_cancelled_keeps_what_it_wrote() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (mut call, run) = begun(&mut harness, &legacy).await;
    run.writes("two").await;
    run.writes("three").await;
    legacy.cancel(call.task()).await;
    assert!(run.tries("late").await.is_err());
    let last = call.last().await;
    assert_eq!((&last["isComplete"], &last["isError"], &last["task"]["status"]), (&json!(true), &json!(true), &json!("cancelled")));
    assert_eq!(call.merged(), "one+two+three");
    let whole = legacy.result(call.task()).await;
    assert_eq!((text_of(&whole["content"]), &whole["isError"]), ("one+two+three".to_owned(), &json!(true)));
}

#[tokio::test]
async fn a_call_that_asks_in_mid_stream_goes_on() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (mut call, mut run) = begun(&mut harness, &legacy).await;
    let ctx = run.ctx.clone();
    let answered = tokio::spawn(async move { ctx.ask("name", name_form("Name?")).await.map(drop) });
    let mut waiting = legacy.stream("tasks/result", json!({"taskId": call.task()})).await;
    let question = waiting.until("elicitation/create").await;
    assert_eq!(question["params"]["_meta"][RELATED]["taskId"], call.task());
    assert_eq!(legacy.get(call.task()).await["status"], "input_required");
    run.writes("two").await;
    assert_eq!(call.part().await, json!([["2 two"], false, false]), "also while it waits");
    legacy.answer(&question, accept("Ada")).await;
    with_timeout("the answer", answered).await.expect("no panic").expect("an answer");
    run.ends("three");
    assert_eq!(part(&call.last().await), json!([["3 three"], true, false]));
}

// Asking for what follows a number.

#[tokio::test]
async fn last_seq_nr_is_a_number_from_1_on_and_gives_what_follows_it() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (mut call, mut run) = begun(&mut harness, &legacy).await;
    run.writes("two").await;
    run.writes("three").await;
    call.until(3).await;
    for has_ended in [false, true] {
        for bad in [json!(0), json!(-1), json!(1.5), json!("2"), Value::Null, json!(true), json!([1]), json!({})] {
            let error = legacy.error("tasks/result", json!({"taskId": call.task(), "lastSeqNr": bad})).await;
            assert_eq!(error["code"], -32602, "{bad}");
            assert!(error["message"].as_str().is_some_and(|message| message.contains("lastSeqNr")), "{error}");
        }
        // Beyond the last one there is nothing; the response says whether more may come.
        let rows = [(1, json!(["2 two", "3 three"])), (2, json!(["3 three"])), (3, json!([])), (4, json!([])), (1 << 60, json!([]))];
        for (last, rest) in rows {
            let answer = pull(&legacy, call.task(), last).await;
            assert_eq!(part(&answer), json!([rest, has_ended, false]), "behind {last}");
            assert_eq!(answer["_meta"][RELATED]["taskId"], call.task());
        }
        if !has_ended {
            run.ends(());
            call.last().await;
        }
    }
}

#[tokio::test]
async fn a_number_may_lie_between_segments_that_were_written_together() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (opening, run) = call(&mut harness, &legacy).await;
    writes_both(&run, "one", "two").await;
    writes_both(&run, "three", "four").await;
    let mut call = opening.opened().await;
    call.until(4).await;
    assert_eq!(part(&pull(&legacy, call.task(), 1).await), json!([["2 two", "3 three", "4 four"], false, false]));
    assert_eq!(part(&pull(&legacy, call.task(), 3).await), json!([["4 four"], false, false]));
}

#[tokio::test]
async fn the_output_of_any_task_can_be_asked_for_by_number() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let id = legacy.start("writes", json!({})).await;
    let mut run = harness.run().await;
    run.writes("one").await;
    run.writes("two").await;
    assert_eq!(part(&pull(&legacy, &id, 1).await), json!([["2 two"], false, false]));
    run.ends("done");
    assert_eq!(text_of(&legacy.result(&id).await["content"]), "done", "its result is its own: it was not called to stream");
    assert_eq!(part(&pull(&legacy, &id, 1).await), json!([["2 two"], true, false]));
    assert_eq!(part(&pull(&legacy, &id, 2).await), json!([[], true, false]));
}

#[tokio::test]
async fn of_a_task_that_has_ended_one_answer_has_all_that_is_left() {
    const COUNT: u64 = 100;
    let (mut harness, legacy) = staged(Config { read_bytes: 1_000_000, ..Config::default() }).await;
    let (opening, mut run) = call(&mut harness, &legacy).await;
    for _ in 0..COUNT {
        run.writes(&"x".repeat(30_000)).await;
    }
    let mut call = opening.opened().await;
    call.until(COUNT).await;
    let numbers = |answer: &Value| -> Vec<u64> {
        let segments = answer["partial-content"].as_array().expect("segments").iter();
        segments.map(|segment| segment["seqNr"].as_u64().expect("a number")).collect()
    };
    // While it is at work, an answer has about so many bytes, and the next one goes on.
    let (mut last, mut pages) = (1, 0);
    while last < COUNT {
        let answer = pull(&legacy, call.task(), last).await;
        let page = numbers(&answer);
        assert_eq!((page[0], &answer["isComplete"]), (last + 1, &json!(false)));
        last = *page.last().expect("one at least");
        pages += 1;
    }
    assert!(pages > 1, "{pages} pages");
    run.ends(());
    call.last().await;
    for last in [1, 50, COUNT - 1, COUNT] {
        let answer = pull(&legacy, call.task(), last).await;
        assert_eq!((numbers(&answer), &answer["isComplete"]), (Vec::from_iter(last + 1..=COUNT), &json!(true)), "behind {last}");
    }
}

#[tokio::test]
async fn a_client_without_event_streams_gets_the_first_answer_and_asks_for_the_rest() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let legacy = legacy.accepting("application/json");
    let posted = tokio::spawn({
        let legacy = legacy.clone();
        async move { legacy.raw("tools/call", calling(&["streaming"])).await }
    });
    let mut run = harness.run().await;
    run.writes("one").await;
    let response = with_timeout("the first answer", posted).await.expect("no panic");
    assert_eq!(response.header("content-type"), Some("application/json"));
    let first = response.json()["result"].clone();
    assert_eq!(part(&first), json!([["1 one"], false, false]));
    let (id, mut segments) = (id_in(&first), Segments::new());
    take(&mut segments, &first);
    run.writes("two").await;
    assert_eq!(take(&mut segments, &pull(&legacy, &id, 1).await), [2]);
    run.ends("three");
    polled(&legacy, &id, "completed").await;
    assert_eq!(take(&mut segments, &pull(&legacy, &id, 2).await), [3]);
    assert_eq!(merged(&segments), "one+two+three");
}

#[tokio::test]
async fn a_client_without_event_streams_that_has_no_number_yet_waits_for_the_whole() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let legacy = legacy.accepting("application/json");
    let created = as_time_passes(&harness.clock, legacy.task("writes", json!({}), asking(&["streaming"]))).await;
    assert_eq!((mode_of(&created), created["_meta"].get(FALLBACK)), ("task", None));
    let mut run = harness.run().await;
    run.writes("one").await;
    run.ends("two");
    assert_eq!(text_of(&legacy.result(&id_in(&created)).await["content"]), "one+two");
}

// Who may see what.

/// A task that streams, by a client that declared no modes: everything that the server sent it.
async fn sent_messages(task: Value, mut whole: Value) -> String {
    let mut harness = ToolHarness::of(Config::default(), Tool::streams).await;
    let legacy = LegacySession::open(&harness.server).await;
    let mut seen = vec![legacy.init().to_string()];
    let mut ask = async |method: &str, params: Value| {
        let response = legacy.raw(method, params).await;
        let body = String::from_utf8(response.body.clone()).expect("UTF-8");
        seen.push(format!("{} {:?} {body}", response.status, response.header("content-type")));
        response.json()["result"].clone()
    };
    ask("tools/list", json!({})).await;
    let id = id_in(&ask("tools/call", json!({"name": "writes", "arguments": {}, "task": task})).await);
    let mut run = harness.run().await;
    run.writes("one").await;
    ask("tasks/get", json!({"taskId": id})).await;
    run.ends("done");
    legacy.result(&id).await;
    ask("tasks/get", json!({"taskId": id})).await;
    whole["taskId"] = json!(id);
    ask("tasks/result", whole).await;
    seen.join("\n").replace(&id, "the task")
}

#[tokio::test]
async fn who_did_not_declare_modes_gets_the_same_bytes_whatever_it_asks_for() {
    let (asked, plain) = (sent_messages(asking(&ALL), json!({"lastSeqNr": 1})).await, sent_messages(json!({}), json!({})).await);
    assert!(plain.contains("\"the task\"") && plain.contains("\"text\":\"done\""), "{plain}");
    assert_eq!(asked, plain);
    for word in ["partial-content", "isComplete", "seqNr", "fallback-mode", "\"responses\"", "streamPartial"] {
        assert!(!plain.contains(word), "{word} in {plain}");
    }
}

#[tokio::test]
async fn the_output_of_somebody_elses_task_is_not_there() {
    let mut harness = ToolHarness::of(two_callers(), Tool::streams).await;
    let ann = LegacySession::of(harness.server.port, Some("ann-token"), LATEST, capable_of(&ALL)).await;
    let bob = LegacySession::of(harness.server.port, Some("bob-token"), LATEST, capable_of(&ALL)).await;
    let (mut call, mut run) = begun(&mut harness, &ann).await;
    run.writes("two").await;
    call.until(2).await;
    let (id, last) = (call.task().to_owned(), call.stream.last_id.clone().expect("an id"));
    for has_ended in [false, true] {
        assert_eq!(part(&pull(&ann, &id, 1).await), json!([["2 two"], has_ended, false]));
        for task in [&*id, "nonsense"] {
            let error = bob.error("tasks/result", json!({"taskId": task, "lastSeqNr": 1})).await;
            assert_eq!(error, not_found(), "{task}");
        }
        let refused = bob.http("GET", &[("Last-Event-ID", &last)]).await;
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!(-32602)));
        if !has_ended {
            run.ends(());
            call.last().await;
        }
    }
}

// Streams that were cut.

#[tokio::test]
async fn a_stream_that_was_cut_anywhere_goes_on_under_the_same_id_without_loss_or_repeat() {
    const TEXTS: [&str; 3] = ["one", "two", "three"];
    for read in 0..=TEXTS.len() {
        let (mut harness, legacy) = staged(Config::default()).await;
        let (opening, mut run) = call(&mut harness, &legacy).await;
        run.writes(TEXTS[0]).await;
        let mut call = opening.opened().await;
        let prime = call.stream.event().await.expect("a first event");
        assert!(prime.id.is_some() && prime.message.is_none(), "{prime:?}");
        for (n, text) in TEXTS.iter().enumerate().take(read) {
            if n > 0 {
                run.writes(text).await;
            }
            call.until(n as u64 + 1).await;
        }
        let cut = call.cut();
        for text in &TEXTS[read.max(1)..] {
            run.writes(text).await;
        }
        run.ends("four");
        // That it goes on exactly where it was, under its own id, is checked with each response.
        let mut call = cut.resumed().await;
        assert_eq!(call.last().await["isComplete"], true, "cut after {read}");
        assert_eq!(call.merged(), "one+two+three+four", "cut after {read}");
        let over = legacy.http("GET", &[("Last-Event-ID", &call.cut().last)]).await;
        assert_eq!((over.status, over.body.len()), (204, 0), "nothing follows the end: {over:?}");
    }
}

#[tokio::test]
async fn a_stream_that_is_cut_again_and_again_is_not_mixed_up_with_another() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (mut call, mut run) = begun(&mut harness, &legacy).await;
    let (mut other, other_run) = begun(&mut harness, &legacy).await;
    for (n, text) in (2..).zip(&FIVE[1..]) {
        let cut = call.cut();
        run.writes(text).await;
        other_run.writes("aside").await;
        call = cut.resumed().await;
        assert_eq!(call.part().await, json!([[format!("{n} {text}")], false, false]));
    }
    run.ends(());
    call.last().await;
    assert_eq!(call.merged(), FIVE.join("+"));
    other.until(5).await;
    assert_ne!(call.task(), other.task());
}

#[tokio::test]
async fn an_event_id_can_be_used_again_also_after_the_end() {
    let (mut harness, legacy) = staged(Config::default()).await;
    let (opening, mut run) = call(&mut harness, &legacy).await;
    run.writes("one").await;
    let mut call = opening.opened().await;
    let prime = call.stream.event().await.and_then(|event| event.id).expect("an id");
    call.until(1).await;
    run.ends("two");
    call.last().await;
    for _ in 0..2 {
        let stream = legacy.resume(&prime).await;
        let mut again = Streamed { legacy: legacy.clone(), id: call.id, stream, segments: Segments::new() };
        assert_eq!(again.last().await["isComplete"], true);
        assert_eq!(again.segments.merged(), call.segments.merged());
        let over = legacy.http("GET", &[("Last-Event-ID", &again.cut().last)]).await;
        assert_eq!((over.status, over.body.len()), (204, 0), "but not the last: {over:?}");
    }
}

#[tokio::test]
async fn no_segment_is_told_twice_where_partials_were_negotiated_too() {
    let mut harness = ToolHarness::of(Config::default(), Tool::streams).await;
    let mut capabilities = capable_of(&ALL);
    capabilities["tasks"]["streaming"] = json!({"partial": {}});
    let legacy = LegacySession::declaring(&harness.server, capabilities).await;
    let mut stand = legacy.open_session_stream().await;
    let (mut call, mut run) = begun(&mut harness, &legacy).await;
    run.writes("two").await;
    assert_eq!(call.part().await, json!([["2 two"], false, false]));
    run.ends("three");
    call.last().await;
    assert_eq!(call.merged(), "one+two+three");
    let messages = messages_until(&mut stand, call.task(), "completed").await;
    assert!(messages.iter().all(|message| message["method"] == "notifications/tasks/status"), "{messages:?}");
    // The output of a call that is answered with a task comes as partials, and as nothing else.
    let id = legacy.start("writes", json!({})).await;
    let mut run = harness.run().await;
    run.writes("four").await;
    run.ends("five");
    let messages = messages_until(&mut stand, &id, "completed").await;
    let partials: Vec<&Value> = messages.iter().filter(|message| message["method"] == "notifications/tasks/partial").collect();
    assert_eq!(partials.len(), 1, "{messages:?}");
    assert_eq!((&partials[0]["params"]["taskId"], &partials[0]["params"]["seq"]), (&json!(id), &json!(0)));
}

#[tokio::test]
async fn partials_of_a_call_that_can_have_one_response_only_begin_with_the_first() {
    let both = || {
        let mut capabilities = capable_of(&ALL);
        capabilities["tasks"]["streaming"] = json!({"partial": {}});
        capabilities
    };
    for initial in [FirstAnswer::Both, FirstAnswer::Task, FirstAnswer::Partial] {
        for modes in [&["streaming"][..], &["immediate", "streaming"][..]] {
            let mut harness = ToolHarness::of(beginning_with(initial), Tool::streams).await;
            let legacy = LegacySession::declaring(&harness.server, both()).await;
            let mut stand = legacy.open_session_stream().await;
            let calling = tokio::spawn({
                let (plain, task) = (legacy.accepting("application/json"), asking(modes));
                async move { plain.task("writes", json!({}), task).await }
            });
            let mut run = harness.run().await;
            run.writes("one").await;
            let first = as_time_passes(&harness.clock, calling).await.expect("no panic");
            let segments = first["partial-content"].as_array().map_or(0, Vec::len);
            assert_eq!((segments, first["_meta"].get(FALLBACK)), (0, None), "{initial:?} {modes:?}: {first}");
            let id = first["_meta"][RELATED]["taskId"].as_str().expect("a task").to_owned();
            run.writes("two").await;
            run.ends("three");
            let messages = messages_until(&mut stand, &id, "completed").await;
            let partials = messages.iter().filter(|message| message["method"] == "notifications/tasks/partial");
            assert_eq!(partials.map(brief).collect::<Vec<_>>(), ["0 one", "1 two", "2 three"], "{initial:?} {modes:?}");
            assert_eq!(text_of(&legacy.result(&id).await["content"]), "one+two+three");
        }
    }
}
