//! Reading the output of a task, by listening and by asking: in which order it comes, where it begins, how much of it
//! comes at a time, and how a reader that was cut off goes on.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, Hasher, RandomState},
    sync::Arc,
};

use serde_json::{Value, json};
use taskwire::{
    core::Limits,
    server::{Config, HttpConfig},
    tool::{TaskMode, ToolError},
};

use crate::{
    kit::{Client, PARTIALS, TestServer, manual_clock, until_there_is_room, with_timeout},
    tasks::{Gate, accept, name_form, registry, tool},
    tool_harness::{
        MS, READ, SECOND, SUBSCRIPTION, ToolHarness, brief, follow, follow_output, granted_partials, large, large_chunks, next,
        next_briefs, next_partial, not_found, one_may_wait, page, page_of, read, reading, rest, text_of, uncoalesced, waiting,
    },
};

// The order on a stream.

#[tokio::test]
async fn what_is_stored_comes_after_the_state_and_before_what_is_new() {
    let mut harness = ToolHarness::new().await;
    let (id, mut run) = harness.task().await;
    run.writes("one").await;
    run.ctx.status("half way").await.expect("said");
    run.writes("two").await;
    let mut events = follow(&harness.client, &id, 0).await;
    let promised = json!({"taskIds": [id], PARTIALS: [{"taskId": id, "fromSeq": 0, "nextSeq": 2}]});
    assert_eq!(events.ack["params"]["notifications"], promised);
    assert_eq!(next_briefs(&mut events, 3).await, ["working: half way", "0 one", "1 two"]);
    run.writes("three").await;
    assert_eq!(next_briefs(&mut events, 1).await, ["2 three"]);
    run.ends("done");
    assert_eq!(next_briefs(&mut events, 1).await, ["completed: half way"]);
    harness.server.stop();
    assert_eq!(rest(&mut events).await, ["end"]);
}

#[tokio::test]
async fn output_and_changes_come_in_the_order_of_the_log() {
    let mut harness = ToolHarness::new().await;
    let (id, mut run) = harness.task().await;
    let mut events = follow(&harness.client, &id, 0).await;
    run.writes("a").await;
    run.ctx.status("first").await.expect("said");
    run.writes("b").await;
    run.writes("c").await;
    let ctx = run.ctx.clone();
    let asking = tokio::spawn(async move { ctx.ask("name", name_form("Name?")).await.map(drop) });
    with_timeout("the question", harness.client.until(&id, "input_required")).await;
    run.writes("d").await;
    harness.client.answer(&id, json!({"name": accept("Ada")})).await;
    with_timeout("the answer", asking).await.expect("no panic").expect("an answer");
    run.ctx.status("second").await.expect("said");
    run.writes("e").await;
    run.ends("done");
    let expected = [
        "working",
        "0 a",
        "working: first",
        "1 b",
        "2 c",
        "input_required: first",
        "3 d",
        "working: first",
        "working: second",
        "4 e",
        "completed: second",
    ];
    assert_eq!(next_briefs(&mut events, expected.len()).await, expected);
}

#[tokio::test]
async fn a_slow_reader_misses_nothing_in_the_order_of_the_log_and_holds_nobody_up() {
    const ROUNDS: u64 = 250;
    let mut harness = ToolHarness::with(large_chunks(Limits::DEFAULT)).await;
    let (id, mut run) = harness.task().await;
    // Seven megabytes are more than the sockets take in.
    let mut events = follow(&harness.client.clone().with_receive_buffer(128 * 1024), &id, 0).await;
    for n in 0..ROUNDS {
        run.writes(&large(n)).await;
        run.ctx.status(n.to_string()).await.expect("said");
    }
    run.ends("done");
    with_timeout("the end", harness.client.until(&id, "completed")).await;
    assert_eq!(next_briefs(&mut events, 1).await, ["working"]);
    for n in 0..ROUNDS {
        let partial = next_partial(&mut events).await;
        assert_eq!((&partial["seq"], text_of(&partial["content"])), (&json!(n), large(n)));
        assert_eq!(next_briefs(&mut events, 1).await, [format!("working: {n}")]);
    }
    assert_eq!(next_briefs(&mut events, 1).await, [format!("completed: {}", ROUNDS - 1)]);
}

#[tokio::test]
async fn of_a_task_that_has_ended_its_chunks_come_first_and_then_its_end() {
    let mut harness = ToolHarness::new().await;
    let (id, mut run) = harness.task().await;
    run.writes("one").await;
    run.writes("two").await;
    run.ends("done");
    with_timeout("the end", harness.client.until(&id, "completed")).await;
    let all = ["0 one", "1 two", "completed"];
    for (from, expected) in [(0, &all[..]), (1, &all[1..]), (2, &all[2..]), (3, &all[2..])] {
        let mut events = follow(&harness.client, &id, from).await;
        assert_eq!(granted_partials(&events)[0]["nextSeq"], 2);
        assert_eq!(next_briefs(&mut events, expected.len()).await, *expected, "from {from}");
    }
    let mut events = follow(&harness.client, &id, 0).await;
    assert_eq!(next_briefs(&mut events, 3).await, all);
    harness.server.stop();
    assert_eq!(rest(&mut events).await, ["end"], "nothing comes after it");
}

#[tokio::test]
async fn several_tasks_share_a_stream_each_in_its_own_order() {
    let mut harness = ToolHarness::new().await;
    let ((one, mut first), (two, mut second)) = (harness.task().await, harness.task().await);
    first.writes("stored").await;
    let wanted = json!([{"taskId": one, "fromSeq": 0}, {"taskId": two, "fromSeq": 0}]);
    let mut events = harness.client.listen(json!({"taskIds": [one, two], PARTIALS: wanted})).await;
    let nexts: BTreeMap<&str, u64> = granted_partials(&events)
        .as_array()
        .expect("entries")
        .iter()
        .map(|entry| (entry["taskId"].as_str().expect("an id"), entry["nextSeq"].as_u64().expect("a number")))
        .collect();
    assert_eq!(nexts, BTreeMap::from([(&*one, 1), (&*two, 0)]));
    second.writes("a").await;
    first.writes("b").await;
    second.writes("c").await;
    second.ends("done");
    with_timeout("the end", harness.client.until(&two, "completed")).await;
    first.writes("d").await;
    first.ends("done");
    let mut seen = BTreeMap::<String, Vec<String>>::new();
    for _ in 0..9 {
        let message = next(&mut events).await.expect("the stream goes on");
        let task = message["params"]["taskId"].as_str().expect("an id").to_owned();
        seen.entry(task).or_default().push(brief(&message));
    }
    let expected = [(&one, vec!["working", "0 stored", "1 b", "2 d", "completed"]), (&two, vec!["working", "0 a", "1 c", "completed"])];
    for (task, expected) in expected {
        assert_eq!(seen[task], expected);
    }
    harness.server.stop();
    assert_eq!(rest(&mut events).await, ["end"]);
}

#[tokio::test]
async fn a_stream_of_partials_alone_ends_by_itself_when_all_its_tasks_have() {
    let mut harness = ToolHarness::new().await;
    let ((one, mut first), (two, second)) = (harness.task().await, harness.task().await);
    let wanted = json!([{"taskId": one, "fromSeq": 0}, {"taskId": two}]);
    let mut message = harness.client.message(1, "subscriptions/listen", json!({"notifications": {PARTIALS: wanted}}));
    message["id"] = json!("listen-1");
    let mut events = harness.client.open(&message).await;
    events.ack = with_timeout("the acknowledgement", events.next()).await.expect("an acknowledgement");
    assert_eq!(events.ack["params"]["_meta"][SUBSCRIPTION], "listen-1");
    first.writes("a").await;
    first.ctx.status("not told here").await.expect("said");
    first.ends("done");
    with_timeout("the end", harness.client.until(&one, "completed")).await;
    second.writes("b").await;
    assert_eq!(next_briefs(&mut events, 2).await, ["0 a", "0 b"]);
    harness.client.cancel(&two).await;
    let last = next(&mut events).await.expect("the response");
    assert_eq!((&last["id"], &last["result"]["resultType"]), (&json!("listen-1"), &json!("complete")));
    assert_eq!(rest(&mut events).await, [""; 0]);
}

#[tokio::test]
async fn a_stream_of_partials_alone_of_an_ended_task_ends_with_the_last_chunk() {
    let mut harness = ToolHarness::new().await;
    let (id, mut run) = harness.task().await;
    run.writes("one").await;
    run.ends_with(Err(ToolError::protocol(-32603, "broken")));
    with_timeout("the end", harness.client.until(&id, "failed")).await;
    assert_eq!(rest(&mut follow_output(&harness.client, &id, 0).await).await, ["0 one", "end"]);
    assert_eq!(rest(&mut harness.client.listen(json!({PARTIALS: [{"taskId": id}]})).await).await, ["end"]);
}

#[tokio::test]
async fn state_and_output_are_each_told_of_the_tasks_they_were_asked_for() {
    let mut harness = ToolHarness::new().await;
    let ((one, mut first), (two, mut second)) = (harness.task().await, harness.task().await);
    let mut states = harness.client.listen(json!({"taskIds": [one]})).await;
    let mut mixed = harness.client.listen(json!({"taskIds": [one], PARTIALS: [{"taskId": two, "fromSeq": 0}]})).await;
    assert_eq!(states.ack["params"]["notifications"], json!({"taskIds": [one]}));
    first.writes("not asked for").await;
    second.writes("asked for").await;
    assert_eq!(next_briefs(&mut mixed, 2).await, ["working", "0 asked for"]);
    second.ends("done");
    with_timeout("the end", harness.client.until(&two, "completed")).await;
    first.ends("done");
    assert_eq!(next_briefs(&mut mixed, 1).await, ["completed"]);
    assert_eq!(next_briefs(&mut states, 2).await, ["working", "completed"]);
    harness.server.stop();
    assert_eq!((rest(&mut mixed).await, rest(&mut states).await), (vec!["end".to_owned()], vec!["end".to_owned()]));
}

#[tokio::test]
async fn a_shutdown_answers_who_waits_and_ends_streams_in_good_order() {
    let mut harness = ToolHarness::with(one_may_wait()).await;
    let (id, run) = harness.task().await;
    run.writes("one").await;
    let mut events = follow_output(&harness.client, &id, 0).await;
    assert_eq!(next_briefs(&mut events, 1).await, ["0 one"]);
    let waits = waiting(&harness.client, reading(&id, json!({"fromSeq": 1, "waitMs": 10_000}))).await;
    harness.server.stop();
    assert_eq!(page_of(waits).await, json!([[], 1, 1, false]));
    assert_eq!(rest(&mut events).await, ["end"]);
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_reader_that_has_much_to_read() {
    let mut harness = ToolHarness::new().await;
    let (id, run) = harness.task().await;
    // Twelve megabytes are more than the sockets take in.
    for _ in 0..12 {
        run.writes(&"x".repeat(1 << 20)).await;
    }
    let mut events = follow_output(&harness.client.clone().with_receive_buffer(128 * 1024), &id, 0).await;
    let all = granted_partials(&events)[0]["nextSeq"].as_u64().expect("a number");
    assert_eq!(next_partial(&mut events).await["seq"], 0);
    harness.server.stop();
    let mut seen = 1;
    let last = loop {
        let message = next(&mut events).await.expect("a response at the end");
        if message.get("method").is_none() {
            break message;
        }
        assert_eq!(message["params"]["seq"], seen, "what comes has no gap");
        seen += 1;
    };
    assert_eq!((brief(&last).as_str(), next(&mut events).await), ("end", None));
    assert!(seen < all, "all {all} chunks came before the end");
}

// Where a stream begins.

#[tokio::test]
async fn a_stream_begins_where_it_was_asked_to() {
    let mut harness = ToolHarness::new().await;
    let (id, run) = harness.task().await;
    for n in 0..5 {
        run.writes(&format!("t{n}")).await;
    }
    let mut streams = Vec::new();
    for (asked, from) in [(json!(0), 0), (json!(3), 3), (json!(4), 4), (json!(5), 5), (json!(7), 7), (Value::Null, 5)] {
        let mut entry = json!({"taskId": id});
        if !asked.is_null() {
            entry["fromSeq"] = asked;
        }
        let events = harness.client.listen(json!({PARTIALS: [entry]})).await;
        assert_eq!(granted_partials(&events), &json!([{"taskId": id, "fromSeq": from, "nextSeq": 5}]));
        streams.push((from, events));
    }
    for n in 5..9 {
        run.writes(&format!("t{n}")).await;
    }
    for (from, mut events) in streams {
        for n in from..9 {
            assert_eq!(next_briefs(&mut events, 1).await, [format!("{n} t{n}")], "from {from}");
        }
    }
}

#[tokio::test]
async fn a_beginning_that_is_no_whole_number_is_refused() {
    let mut harness = ToolHarness::new().await;
    let (id, _run) = harness.task().await;
    for from in [json!(-1), json!(1.5), json!("3"), Value::Null, json!(true), json!([0]), json!({})] {
        let filter = json!({PARTIALS: [{"taskId": id, "fromSeq": from}]});
        let refused = with_timeout("a refusal", harness.client.raw("subscriptions/listen", json!({"notifications": filter}))).await;
        assert_eq!((refused.status, refused.code()), (200, -32602), "{from}");
    }
}

#[tokio::test]
async fn what_is_no_list_of_tasks_is_refused() {
    let mut harness = ToolHarness::new().await;
    let (id, _run) = harness.task().await;
    for wanted in [
        json!({}),
        json!({"taskId": id}),
        json!(id),
        json!(5),
        json!(true),
        Value::Null,
        json!([id]),
        json!([5]),
        json!([null]),
        json!([[id, 0]]),
        json!([{}]),
        json!([{"fromSeq": 0}]),
        json!([{"taskId": 5}]),
        json!([{"taskId": null}]),
        json!([{"taskId": id}, 5]),
    ] {
        let params = json!({"notifications": {PARTIALS: wanted}});
        let refused = with_timeout("a refusal", harness.client.raw("subscriptions/listen", params)).await;
        assert_eq!((refused.status, refused.code()), (200, -32602), "{wanted}");
    }
}

#[tokio::test]
async fn a_stream_cannot_read_a_task_twice() {
    let mut harness = ToolHarness::new().await;
    let (id, run) = harness.task().await;
    run.writes("one").await;
    for again in [json!({"taskId": id, "fromSeq": 0}), json!({"taskId": id, "fromSeq": 1}), json!({"taskId": id})] {
        let params = json!({"notifications": {PARTIALS: [{"taskId": id, "fromSeq": 0}, again]}});
        let refused = with_timeout("a refusal", harness.client.raw("subscriptions/listen", params)).await;
        assert_eq!((refused.status, refused.code()), (200, -32602), "{again}");
    }
    // Two streams can.
    let (mut one, mut two) = (follow_output(&harness.client, &id, 0).await, follow_output(&harness.client, &id, 0).await);
    assert_eq!((next_briefs(&mut one, 1).await, next_briefs(&mut two, 1).await), (vec!["0 one".to_owned()], vec!["0 one".to_owned()]));
}

#[tokio::test]
async fn a_number_beyond_all_numbers_does_no_harm() {
    let mut harness = ToolHarness::new().await;
    let (id, run) = harness.task().await;
    run.writes("one").await;
    for from in [json!(i64::MAX), json!(u64::MAX)] {
        let pulled = with_timeout("an answer", harness.client.raw(READ, reading(&id, json!({"fromSeq": from})))).await;
        let answer = pulled.json();
        let is_empty = answer["result"]["chunks"] == json!([]);
        assert!(pulled.status == 200 && (is_empty || answer["error"]["code"] == -32602), "{answer}");
        // It may listen for ever, so it is not read to its end.
        let listens = with_timeout("an acknowledgement", harness.client.listen(json!({PARTIALS: [{"taskId": id, "fromSeq": from}]}))).await;
        assert_eq!(granted_partials(&listens)[0]["fromSeq"], from);
    }
    run.writes("two").await;
    assert_eq!(page(&read(&harness.client, &id, json!({})).await), json!([["0 one", "1 two"], 0, 2, false]));
}

// Reading instead of listening.

#[tokio::test]
async fn a_read_gives_so_many_chunks_and_says_how_to_go_on() {
    let mut harness = ToolHarness::new().await;
    let (id, mut run) = harness.task().await;
    assert_eq!(page(&read(&harness.client, &id, json!({})).await), json!([[], 0, 0, false]), "nothing yet");
    for n in 0..5 {
        run.writes(&format!("t{n}")).await;
    }
    let all = ["0 t0", "1 t1", "2 t2", "3 t3", "4 t4"];
    let cases = [
        (json!({}), json!([all, 0, 5, false])),
        (json!({"fromSeq": 0, "limit": 2}), json!([&all[..2], 0, 2, false])),
        (json!({"fromSeq": 2, "limit": 2}), json!([&all[2..4], 2, 4, false])),
        (json!({"fromSeq": 4, "limit": 2}), json!([&all[4..], 4, 5, false])),
        (json!({"fromSeq": 1, "limit": 1}), json!([&all[1..2], 1, 2, false])),
        (json!({"limit": 5}), json!([all, 0, 5, false])),
        (json!({"limit": 1_000_000}), json!([all, 0, 5, false])),
        (json!({"fromSeq": 5}), json!([[], 5, 5, false])),
        (json!({"fromSeq": 9}), json!([[], 9, 9, false])),
    ];
    for (params, expected) in &cases {
        assert_eq!(&page(&read(&harness.client, &id, params.clone()).await), expected, "{params}");
    }
    run.ends("done");
    with_timeout("the end", harness.client.until(&id, "completed")).await;
    // The same afterwards, but that there is an end now.
    for (params, mut expected) in cases {
        expected[3] = json!(expected[2].as_u64() >= Some(5));
        assert_eq!(page(&read(&harness.client, &id, params.clone()).await), expected, "{params}");
    }
}

#[tokio::test]
async fn a_read_gives_about_so_many_bytes_and_at_least_one_chunk() {
    let mut harness = ToolHarness::with(Config { read_bytes: 1_000, ..Config::default() }).await;
    let (id, run) = harness.task().await;
    for length in [300, 300, 300, 300, 300, 5_000, 300, 300] {
        run.writes(&"x".repeat(length)).await;
    }
    let (mut from, mut counts, mut lengths) = (0, Vec::new(), Vec::new());
    while from < 8 {
        let answer = read(&harness.client, &id, json!({"fromSeq": from})).await;
        let chunks = answer["chunks"].as_array().expect("chunks");
        assert!(!chunks.is_empty(), "from {from}");
        let sizes: Vec<usize> = chunks.iter().map(|chunk| text_of(&chunk["content"]).len()).collect();
        let before_the_last = sizes[..sizes.len() - 1].iter().sum::<usize>();
        assert!(before_the_last < 1_000, "it went on after {before_the_last} bytes");
        assert!(chunks.iter().zip(from..).all(|(chunk, seq): (&Value, u64)| chunk["seq"] == seq), "{answer}");
        counts.push(chunks.len());
        lengths.extend(sizes);
        from = answer["nextSeq"].as_u64().expect("a number");
    }
    assert_eq!(lengths, [300, 300, 300, 300, 300, 5_000, 300, 300]);
    assert!(counts.len() >= 3 && counts[0] > 1, "{counts:?} chunks at a time");
}

#[tokio::test]
async fn a_read_that_waits_is_woken_by_output_and_by_nothing_less_than_the_end() {
    let mut harness = ToolHarness::with(one_may_wait()).await;
    let (id, mut run) = harness.task().await;
    let waits = waiting(&harness.client, reading(&id, json!({"waitMs": 10_000}))).await;
    run.ctx.status("half way").await.expect("said");
    assert_eq!(harness.client.get(&id).await["statusMessage"], "half way");
    run.writes("one").await;
    assert_eq!(page_of(waits).await, json!([["0 one"], 0, 1, false]));
    let waits = waiting(&harness.client, reading(&id, json!({"fromSeq": 1, "waitMs": 10_000}))).await;
    run.ends("done");
    assert_eq!(page_of(waits).await, json!([[], 1, 1, true]));
    let (id, _run) = harness.task().await;
    let waits = waiting(&harness.client, reading(&id, json!({"waitMs": 10_000}))).await;
    harness.client.cancel(&id).await;
    assert_eq!(page_of(waits).await, json!([[], 0, 0, true]));
}

#[tokio::test]
async fn a_read_does_not_wait_when_there_is_something_to_give_or_nothing_to_come() {
    let mut harness = ToolHarness::new().await;
    let (id, mut run) = harness.task().await;
    assert_eq!(page(&read(&harness.client, &id, json!({"waitMs": 0})).await), json!([[], 0, 0, false]));
    run.writes("one").await;
    assert_eq!(page(&read(&harness.client, &id, json!({"waitMs": 10_000})).await), json!([["0 one"], 0, 1, false]));
    run.ends("done");
    with_timeout("the end", harness.client.until(&id, "completed")).await;
    assert_eq!(page(&read(&harness.client, &id, json!({"fromSeq": 1, "waitMs": 10_000})).await), json!([[], 1, 1, true]));
    assert_eq!(page(&read(&harness.client, &id, json!({"fromSeq": 5, "waitMs": 10_000})).await), json!([[], 5, 5, true]));
}

#[tokio::test]
async fn a_read_waits_as_long_as_it_was_asked_to_and_no_longer_than_is_allowed() {
    let mut harness = ToolHarness::with(Config { wait_max: 10 * SECOND, ..one_may_wait() }).await;
    let (id, _run) = harness.task().await;
    for (asked, granted) in [(5_000, 5 * SECOND), (10_000, 10 * SECOND), (3_600_000, 10 * SECOND)] {
        let waits = waiting(&harness.client, reading(&id, json!({"waitMs": asked}))).await;
        harness.clock.advance(granted - MS);
        harness.client.get(&id).await;
        assert!(!waits.is_finished(), "a millisecond is left of {asked}");
        harness.clock.advance(MS);
        assert_eq!(page_of(waits).await, json!([[], 0, 0, false]));
    }
}

#[tokio::test]
async fn a_read_with_a_wrong_number_is_refused() {
    let mut harness = ToolHarness::new().await;
    let (id, run) = harness.task().await;
    run.writes("one").await;
    let mut cases = vec![json!({"limit": 0}), json!({"taskId": 5}), json!({"taskId": null}), json!({"taskId": [id]})];
    for key in ["fromSeq", "limit", "waitMs"] {
        cases.extend([json!(-1), json!(1.5), json!("1"), json!(true), json!([1]), json!({})].map(|value| json!({key: value})));
    }
    for case in cases {
        let mut params = json!({"taskId": id});
        params.as_object_mut().expect("an object").extend(case.as_object().expect("an object").clone());
        let message = harness.client.message(7, READ, params);
        // Without the header that repeats the task, so that the body is what is refused.
        let mut headers = harness.client.headers(&message);
        headers.retain(|(key, _)| key != "Mcp-Name");
        let refused = with_timeout("a refusal", harness.client.post(&headers, message.to_string().as_bytes())).await;
        assert_eq!((refused.status, refused.code()), (200, -32602), "{case}");
        assert_ne!(refused.json()["error"], not_found(), "{case}");
    }
    let missing = harness.client.raw(READ, json!({})).await;
    assert_eq!((missing.status, missing.code()), (200, -32602));
}

// Going on after a cut.

/// Chance from a seed (xorshift64*).
struct Dice(u64);

impl Dice {
    /// A number from 0 up to, but not including, `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) % end
    }
}

/// What a reader has, and where it must go on.
struct Reader {
    text: String,
    next: u64,
}

impl Reader {
    /// Takes a chunk, which must be the next one.
    fn take(&mut self, chunk: &Value) {
        assert_eq!(chunk["seq"], self.next);
        self.text.push_str(&text_of(&chunk["content"]));
        self.next += 1;
    }

    /// Listens until it has all before `until`, then goes away without a word.
    async fn listen(&mut self, client: &Client, task: &str, until: u64) {
        let mut events = follow_output(client, task, self.next).await;
        assert_eq!(granted_partials(&events)[0]["fromSeq"], self.next);
        while self.next < until {
            self.take(&next_partial(&mut events).await);
        }
    }

    /// Reads until it has all before `until`. Now and then it goes away before it has the answer.
    async fn pull(&mut self, client: &Client, task: &str, until: u64, dice: &mut Dice) {
        while self.next < until {
            let limit = 1 + dice.below(until - self.next);
            let params = reading(task, json!({"fromSeq": self.next, "limit": limit, "waitMs": 10_000}));
            if dice.below(4) == 0 {
                let message = client.message(client.next_id(), READ, params);
                drop(client.send(&client.headers(&message), message.to_string().as_bytes()).await);
                continue;
            }
            let answer = with_timeout("the answer", client.ok(READ, params)).await;
            let chunks = answer["chunks"].as_array().expect("chunks");
            assert!(!chunks.is_empty() && chunks.len() as u64 <= limit, "{answer}");
            chunks.iter().for_each(|chunk| self.take(chunk));
            assert_eq!(answer["nextSeq"], self.next);
        }
    }
}

#[tokio::test]
async fn a_reader_that_is_cut_off_fifty_times_has_every_byte_once() {
    const CHUNKS: u64 = 5_000;
    const CUTS: u64 = 50;
    const STRETCH: u64 = CHUNKS / CUTS;
    fn line(n: u64) -> String {
        format!("{n}:{};", "x".repeat(usize::try_from(n % 7).expect("small")))
    }
    let gate = Gate::new();
    let writes = tool("writes", &gate, |gate, ctx| async move {
        for n in 0..CHUNKS {
            if n % STRETCH == 0 {
                gate.go.wait().await;
            }
            ctx.text(line(n)).await?;
        }
        Ok("done")
    });
    let tools = registry([writes.task(TaskMode::Always)]);
    let server = TestServer::start_with(tools, uncoalesced(), Arc::new(manual_clock())).await;
    let client = server.streaming_client();
    let id = client.start("writes", json!({})).await;
    let seed = RandomState::new().build_hasher().finish().max(1);
    // Shown if the test fails.
    println!("seed {seed}");
    let (mut dice, mut reader) = (Dice(seed), Reader { text: String::new(), next: 0 });
    for cut in 1..=CUTS {
        // The tool writes its next stretch while it is read.
        gate.go.send();
        let until = reader.next + dice.below(cut * STRETCH - reader.next + 1);
        if cut % 2 == 0 {
            reader.listen(&client, &id, until).await;
        } else {
            reader.pull(&client, &id, until, &mut dice).await;
        }
    }
    let mut events = follow_output(&client, &id, reader.next).await;
    while let Some(message) = next(&mut events).await {
        match message.get("method") {
            Some(_) => reader.take(&message["params"]),
            None => assert_eq!(message["result"]["resultType"], "complete"),
        }
    }
    assert_eq!(reader.next, CHUNKS);
    assert!(reader.text == (0..CHUNKS).map(line).collect::<String>(), "it is not what was written");
}

#[tokio::test]
async fn a_reader_that_takes_nothing_for_too_long_is_cut_off_and_can_come_back() {
    const CHUNKS: u64 = 400;
    let http = HttpConfig { connections: 1, ..HttpConfig::default() };
    let mut harness = ToolHarness::with(Config { http, ..large_chunks(Limits::DEFAULT) }).await;
    let (id, mut run) = harness.task().await;
    // Twelve megabytes are more than the sockets take in: the server waits for this reader, which has the only slot.
    let mut stalled = follow_output(&harness.client.clone().with_receive_buffer(128 * 1024), &id, 0).await;
    for n in 0..CHUNKS {
        run.writes(&large(n)).await;
    }
    let minutes = async {
        loop {
            harness.clock.advance(60 * SECOND);
            tokio::task::yield_now().await;
        }
    };
    // The place of the reader that does not read.
    tokio::select! {
        () = until_there_is_room(harness.server.port) => {}
        never = minutes => never,
    }
    assert_eq!(harness.client.get(&id).await["status"], "working");
    let mut seen = 0;
    while let Some(message) = next(&mut stalled).await {
        assert_eq!(message["params"]["seq"], seen, "cut off, not ended in good order");
        seen += 1;
    }
    assert!(seen < CHUNKS, "it has {seen}, since it was cut off before the end");
    run.ends("done");
    let mut again = follow_output(&harness.client, &id, seen).await;
    for n in seen..CHUNKS {
        let partial = next_partial(&mut again).await;
        assert_eq!((&partial["seq"], text_of(&partial["content"])), (&json!(n), large(n)));
    }
    assert_eq!(rest(&mut again).await, ["end"]);
}
