//! Partial results on the wire: the rules of SEP-2679, how they are negotiated, and who may see them. In which order they
//! come and how a reader goes on is in `reading.rs`; what a tool may write, and when it goes out, is in `output.rs`.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use taskwire::{
    server::Config,
    tool::{CallResult, Content, TaskMode, ToolError},
};

use crate::{
    kit::{Client, PARTIALS, TASKS, TestServer, with_timeout},
    tasks::{accept, name_form, quick, registry, two_callers},
    tool_harness::{
        HOUR, READ, SECOND, ToolHarness, follow, follow_output, granted_partials, next, next_briefs, next_partial, not_found, output, page,
        page_of, read, reading, rest, shortened, sixty, text_of, waiting,
    },
};

// The eleven rules of SEP-2679, §1.3.

#[tokio::test]
async fn rule_01_partials_come_while_the_task_works_and_while_it_waits_for_input() {
    let mut harness = ToolHarness::new().await;
    let (id, mut run) = harness.task().await;
    let mut events = follow(&harness.client, &id, 0).await;
    run.writes("one").await;
    let ctx = run.ctx.clone();
    let asking = tokio::spawn(async move { ctx.ask("name", name_form("Name?")).await.map(drop) });
    assert_eq!(next_briefs(&mut events, 3).await, ["working", "0 one", "input_required"]);
    run.writes("two").await;
    assert_eq!(next_briefs(&mut events, 1).await, ["1 two"]);
    harness.client.answer(&id, json!({"name": accept("Ada")})).await;
    with_timeout("the answer", asking).await.expect("no panic").expect("an answer");
    run.writes("three").await;
    run.ends("done");
    assert_eq!(next_briefs(&mut events, 3).await, ["working", "2 three", "completed"]);
}

#[tokio::test]
async fn rule_01_a_task_may_have_no_partials_at_all() {
    let mut harness = ToolHarness::new().await;
    let (id, mut run) = harness.task().await;
    let mut events = follow(&harness.client, &id, 0).await;
    run.ends("done");
    assert_eq!(next_briefs(&mut events, 2).await, ["working", "completed"]);
    assert_eq!(page(&read(&harness.client, &id, json!({})).await), json!([[], 0, 0, true]));
}

#[tokio::test]
async fn rule_02_no_partial_follows_the_end_of_a_task_however_it_ends() {
    for end in ["completed", "failed: broken", "cancelled: cancelled by its caller"] {
        let mut harness = ToolHarness::new().await;
        let (id, mut run) = harness.task().await;
        let mut events = follow(&harness.client, &id, 0).await;
        run.writes("one").await;
        match end {
            "completed" => run.ends("done"),
            "failed: broken" => run.ends_with(Err(ToolError::protocol(-32603, "broken"))),
            _ => {
                harness.client.cancel(&id).await;
                with_timeout("the word to stop", run.ctx.cancelled()).await;
            }
        }
        assert_eq!(next_briefs(&mut events, 3).await, ["working", "0 one", end]);
        assert!(run.tries("late").await.is_err(), "{end}");
        harness.clock.advance(SECOND);
        assert_eq!(page(&read(&harness.client, &id, json!({})).await), json!([["0 one"], 0, 1, true]), "{end}");
        harness.server.stop();
        assert_eq!(rest(&mut events).await, ["end"], "{end}");
    }
}

#[tokio::test]
async fn rule_03_what_is_pending_goes_out_before_the_end() {
    for end in ["completed", "failed: broken"] {
        let mut harness = ToolHarness::new().await;
        let (id, mut run) = harness.task().await;
        let mut events = follow(&harness.client, &id, 0).await;
        run.writes("one").await;
        run.ctx.text("two").await.expect("taken");
        run.ctx.text("three").await.expect("taken");
        match end {
            "completed" => run.ends("done"),
            _ => run.ends_with(Err(ToolError::protocol(-32603, "broken"))),
        }
        assert_eq!(next_briefs(&mut events, 4).await, ["working", "0 one", "1 twothree", end]);
    }
}

#[tokio::test]
async fn rule_04_numbers_start_at_0_and_grow_by_one_within_each_task() {
    let mut harness = ToolHarness::new().await;
    let ((one, first), (two, second)) = (harness.task().await, harness.task().await);
    let wanted = json!([{"taskId": one, "fromSeq": 0}, {"taskId": two, "fromSeq": 0}]);
    let mut events = harness.client.listen(json!({PARTIALS: wanted})).await;
    for n in 0..20 {
        first.writes("x").await;
        if n % 2 == 0 {
            second.writes("y").await;
        }
    }
    let mut seen = BTreeMap::<String, Vec<u64>>::new();
    for _ in 0..30 {
        let partial = next_partial(&mut events).await;
        let task = partial["taskId"].as_str().expect("an id").to_owned();
        seen.entry(task).or_default().push(partial["seq"].as_u64().expect("a whole number"));
    }
    let expected = BTreeMap::from([(one, Vec::from_iter(0..20)), (two, Vec::from_iter(0..10))]);
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn rule_04_a_gap_shows_and_nothing_is_made_up_for_it() {
    let (harness, id, _run) = shortened().await;
    let mut events = follow_output(&harness.client, &id, 0).await;
    let entry = granted_partials(&events)[0].clone();
    let from = entry["fromSeq"].as_u64().expect("a number");
    assert!((1..10).contains(&from), "{entry}");
    assert_eq!(entry["nextSeq"], 10);
    for n in from..10 {
        assert_eq!(next_briefs(&mut events, 1).await, [format!("{n} {}", sixty(n))]);
    }
}

#[tokio::test]
async fn rule_05_content_is_never_empty() {
    let mut harness = ToolHarness::new().await;
    let (id, mut run) = harness.task().await;
    let mut events = follow(&harness.client, &id, 0).await;
    run.ctx.flush().await.expect("nothing waits");
    run.writes("").await;
    run.ctx.step(Vec::<Content>::new(), &1).await.expect("saved");
    run.writes("one").await;
    run.writes("").await;
    run.ends("done");
    assert_eq!(next_briefs(&mut events, 1).await, ["working"]);
    let (mut text, mut count) = (String::new(), 0);
    loop {
        let message = next(&mut events).await.expect("the stream goes on");
        if message["method"] == "notifications/tasks" {
            break;
        }
        let content = message["params"]["content"].as_array().expect("blocks");
        assert!(!content.is_empty(), "{message}");
        text.push_str(&text_of(&message["params"]["content"]));
        count += 1;
    }
    assert!(text == "one" && count > 0, "{count} partials: {text:?}");
}

#[tokio::test]
async fn rule_06_the_result_is_whole_whatever_the_partials_said() {
    let mut harness = ToolHarness::new().await;
    let (id, mut run) = harness.task().await;
    run.writes("the beginning, ").await;
    run.ends(CallResult::of([Content::text("the beginning, the middle"), Content::text("and the end")]));
    let whole = json!([{"type": "text", "text": "the beginning, the middle"}, {"type": "text", "text": "and the end"}]);
    // The same for who never saw a partial and for who saw them all.
    for client in [harness.server.client(), harness.client.clone()] {
        with_timeout("the end", client.until(&id, "completed")).await;
        assert_eq!(client.get(&id).await["result"]["content"], whole);
    }
    assert_eq!(output(&harness.client, &id).await, "the beginning, ");
}

#[tokio::test]
async fn rule_07_each_partial_adds_to_those_before_it() {
    let mut harness = ToolHarness::new().await;
    let (id, mut run) = harness.task().await;
    let mut events = follow_output(&harness.client, &id, 0).await;
    for text in ["Hel", "lo, ", "world", "."] {
        run.writes(text).await;
    }
    run.ends("done");
    assert_eq!(rest(&mut events).await, ["0 Hel", "1 lo, ", "2 world", "3 .", "end"]);
}

#[tokio::test]
async fn rule_08_result_and_partials_need_not_have_anything_in_common() {
    let mut harness = ToolHarness::new().await;
    let (id, mut run) = harness.task().await;
    let mut events = follow(&harness.client, &id, 0).await;
    run.writes("a draft").await;
    run.ends("something else");
    assert_eq!(next_briefs(&mut events, 2).await, ["working", "0 a draft"]);
    let ended = next(&mut events).await.expect("the end");
    let content = json!([{"type": "text", "text": "something else"}]);
    assert_eq!(ended["params"]["result"]["content"], content);
    assert_eq!(harness.client.get(&id).await["result"]["content"], content);
    assert_eq!(page(&read(&harness.client, &id, json!({})).await), json!([["0 a draft"], 0, 1, true]));
}

#[tokio::test]
async fn rule_09_blocks_of_every_kind_come_as_they_were_written() {
    let mut harness = ToolHarness::new().await;
    let (id, run) = harness.task().await;
    let mut events = follow_output(&harness.client, &id, 0).await;
    let blocks = [
        (Content::image(b"x", "image/png"), json!({"type": "image", "data": "eA==", "mimeType": "image/png"})),
        (Content::audio(b"x", "audio/wav"), json!({"type": "audio", "data": "eA==", "mimeType": "audio/wav"})),
        (Content::link("test://a", "a"), json!({"type": "resource_link", "uri": "test://a", "name": "a"})),
        (
            Content::resource("test://b", "text/plain", "b"),
            json!({"type": "resource", "resource": {"uri": "test://b", "mimeType": "text/plain", "text": "b"}}),
        ),
    ];
    for (seq, (block, shape)) in (0..).zip(blocks) {
        run.ctx.block(block).await.expect("taken");
        run.ctx.flush().await.expect("written");
        let partial = next_partial(&mut events).await;
        assert_eq!((&partial["seq"], &partial["content"]), (&json!(seq), &json!([shape])));
    }
}

#[tokio::test]
async fn rule_10_what_comes_again_is_the_same_under_the_same_number() {
    let mut harness = ToolHarness::new().await;
    let (id, run) = harness.task().await;
    let mut live = follow_output(&harness.client, &id, 0).await;
    let mut first = Vec::new();
    for n in 0..6 {
        run.ctx.text(format!("\u{1f600} \"{n}\"\n")).await.expect("taken");
        run.ctx.block(Content::link("test://a", "a")).await.expect("taken");
        run.ctx.flush().await.expect("written");
    }
    // The first of them may have gone out alone: whatever the chunks are, they stay so.
    let count = read(&harness.client, &id, json!({})).await["nextSeq"].as_u64().expect("a number");
    for seq in 0..count {
        let partial = next_partial(&mut live).await;
        assert_eq!(partial["seq"], seq);
        first.push(partial["content"].clone());
    }
    for from in [0, 2, count - 1] {
        let mut again = follow_output(&harness.client, &id, from).await;
        let pulled = read(&harness.client, &id, json!({"fromSeq": from})).await;
        for seq in from..count {
            let index = usize::try_from(seq).expect("small");
            let partial = next_partial(&mut again).await;
            assert_eq!((&partial["seq"], &partial["content"]), (&json!(seq), &first[index]));
            let chunk = &pulled["chunks"][index - usize::try_from(from).expect("small")];
            assert_eq!((&chunk["seq"], &chunk["content"]), (&json!(seq), &first[index]));
        }
    }
}

#[tokio::test]
async fn rule_11_blocks_of_one_partial_keep_their_order_and_mean_the_same_as_several() {
    let blocks = || [Content::text("a"), Content::link("test://b", "b"), Content::image(b"c", "image/png"), Content::link("test://d", "d")];
    let mut contents = Vec::new();
    for together in [true, false] {
        let mut harness = ToolHarness::new().await;
        let (id, mut run) = harness.task().await;
        run.writes("-").await;
        for block in blocks() {
            run.ctx.block(block).await.expect("taken");
            if !together {
                run.ctx.flush().await.expect("written");
            }
        }
        run.ends("done");
        let mut events = follow_output(&harness.client, &id, 1).await;
        let mut content = Vec::new();
        let mut count = 0;
        while let Some(message) = next(&mut events).await {
            content.extend(message["params"]["content"].as_array().into_iter().flatten().cloned());
            count += usize::from(message.get("method").is_some());
        }
        assert_eq!(count, if together { 1 } else { 4 });
        contents.push(content);
    }
    let kinds: Vec<&str> = contents[0].iter().map(|block| block["type"].as_str().expect("a kind")).collect();
    assert_eq!(kinds, ["text", "resource_link", "image", "resource_link"]);
    assert_eq!(contents[0], contents[1]);
}

// Negotiation: SEP-2679, §2.3, declared on each request.

#[tokio::test]
async fn negotiation_1_who_does_not_declare_partials_sees_nothing_of_them() {
    let mut harness = ToolHarness::of(Config::default(), |tool| tool.task(TaskMode::Always).streams()).await;
    let plain = harness.server.client();
    let (id, mut run) = harness.task_of(&plain).await;
    let mut events = plain.listen(json!({"taskIds": [id]})).await;
    run.writes("one").await;
    let requests = [("server/discover", json!({})), ("tools/list", json!({})), ("tasks/get", json!({"taskId": id}))];
    for (method, params) in requests {
        let body = async |client: &Client| String::from_utf8(client.raw(method, params.clone()).await.body).expect("UTF-8");
        assert!(!body(&plain).await.contains("dev.taskwire/"), "{method}");
        assert!(body(&harness.client).await.contains("dev.taskwire/"), "{method}: there is something to leave out");
    }
    let asked = json!({"taskId": id, "_meta": {"dev.taskwire/waitMs": 5_000, "dev.taskwire/version": 1}});
    assert_eq!(with_timeout("an answer at once", plain.ok("tasks/get", asked)).await["status"], "working");
    run.ends("done");
    assert_eq!(next_briefs(&mut events, 2).await, ["working", "completed"]);
}

#[tokio::test]
async fn negotiation_2_who_declares_partials_learns_whether_there_are_any() {
    let server = TestServer::start(registry([])).await;
    let extensions = async |client: Client| client.ok("server/discover", json!({})).await["capabilities"]["extensions"].clone();
    assert_eq!(extensions(server.streaming_client()).await, json!({TASKS: {}, PARTIALS: {}}));
    assert_eq!(extensions(server.client()).await, json!({TASKS: {}}));
    assert_eq!(extensions(server.plain_client()).await, json!({TASKS: {}}));
}

#[tokio::test]
async fn negotiation_3_partials_need_both_declarations_on_the_same_request() {
    let mut harness = ToolHarness::new().await;
    let (id, run) = harness.task().await;
    run.writes("one").await;
    let listen = json!({"notifications": {PARTIALS: [{"taskId": id, "fromSeq": 0}]}});
    let both = json!({"notifications": {"taskIds": [id], PARTIALS: [{"taskId": id}]}});
    let required = json!({"requiredCapabilities": {"extensions": {TASKS: {}, PARTIALS: {}}}});
    for extensions in [json!({}), json!({TASKS: {}}), json!({PARTIALS: {}})] {
        let client = harness.server.plain_client().declaring(json!({"extensions": extensions}));
        for (method, params) in [("subscriptions/listen", &listen), ("subscriptions/listen", &both), (READ, &json!({"taskId": id}))] {
            let refused = with_timeout("a refusal", client.raw(method, params.clone())).await;
            assert_eq!((refused.status, refused.code()), (400, -32021), "{method} {extensions}");
            assert_eq!(refused.json()["error"]["data"], required, "{method} {extensions}");
        }
    }
    let able = harness.server.plain_client().declaring(json!({"extensions": {TASKS: {}, PARTIALS: {}}}));
    assert_eq!(page(&read(&able, &id, json!({})).await), json!([["0 one"], 0, 1, false]));
}

#[tokio::test]
async fn negotiation_4_tasks_are_the_same_with_and_without_partials() {
    let mut harness = ToolHarness::new().await;
    let without = harness.server.client();
    // Who made a task, and whether it declared partials then, does not matter: the request that asks for them does.
    for maker in [without.clone(), harness.client.clone()] {
        let (id, mut run) = harness.task_of(&maker).await;
        let mut states = without.listen(json!({"taskIds": [id]})).await;
        let mut all = follow(&harness.client, &id, 0).await;
        run.writes("one").await;
        run.ends("done");
        assert_eq!(next_briefs(&mut states, 2).await, ["working", "completed"]);
        assert_eq!(next_briefs(&mut all, 3).await, ["working", "0 one", "completed"]);
        let mut task = harness.client.get(&id).await;
        task["_meta"].as_object_mut().expect("an object").remove("dev.taskwire/version");
        assert_eq!(task, without.get(&id).await);
    }
}

#[tokio::test]
async fn the_hint_of_a_tool_is_shown_to_those_who_declare_partials() {
    let server = TestServer::start_without_followups(registry([quick("streams").streams(), quick("plain")])).await;
    let hints = async |client: Client| {
        let listed = client.ok("tools/list", json!({})).await;
        let tools = listed["tools"].as_array().expect("tools").clone();
        let hint = |tool: &Value| (tool["name"].as_str().expect("a name").to_owned(), tool.get("_meta").cloned());
        tools.iter().map(hint).collect::<BTreeMap<_, _>>()
    };
    let hint = json!({PARTIALS: {"streamPartial": true}});
    let shown = BTreeMap::from([("plain".to_owned(), None), ("streams".to_owned(), Some(hint))]);
    let hidden = BTreeMap::from([("plain".to_owned(), None), ("streams".to_owned(), None)]);
    assert_eq!(hints(server.streaming_client()).await, shown);
    assert_eq!(hints(server.client()).await, hidden);
    assert_eq!(hints(server.plain_client()).await, hidden);
}

#[tokio::test]
async fn a_tool_that_cannot_be_a_task_has_no_hint() {
    let tools = registry([quick("never").streams().task(TaskMode::Never), quick("always").streams().task(TaskMode::Always)]);
    let server = TestServer::start_without_followups(tools).await;
    let listed = server.streaming_client().ok("tools/list", json!({})).await;
    let tools = listed["tools"].as_array().expect("tools").iter();
    let hints: BTreeMap<_, _> = tools.map(|tool| (tool["name"].as_str(), tool.get("_meta").is_some())).collect();
    assert_eq!(hints, BTreeMap::from([(Some("never"), false), (Some("always"), true)]));
}

#[tokio::test]
async fn a_tool_without_the_hint_may_stream_all_the_same() {
    let mut harness = ToolHarness::new().await;
    assert_eq!(harness.client.ok("tools/list", json!({})).await["tools"][0].get("_meta"), None);
    let (id, run) = harness.task().await;
    run.writes("one").await;
    assert_eq!(next_briefs(&mut follow_output(&harness.client, &id, 0).await, 1).await, ["0 one"]);
}

// Security: who may see what, and how much may be asked for.

/// Two callers that declare partials.
fn ann_and_bob(harness: &ToolHarness) -> (Client, Client) {
    (harness.client.clone().with_token("ann-token"), harness.client.clone().with_token("bob-token"))
}

#[tokio::test]
async fn security_partials_reach_only_the_owner_of_the_task() {
    let mut harness = ToolHarness::with(two_callers()).await;
    let (ann, bob) = ann_and_bob(&harness);
    let ((hers, mut her_run), (his, mut his_run)) = (harness.task_of(&ann).await, harness.task_of(&bob).await);
    let wanted = json!([{"taskId": hers, "fromSeq": 0}, {"taskId": his, "fromSeq": 0}]);
    let mut events = bob.listen(json!({PARTIALS: wanted})).await;
    assert_eq!(granted_partials(&events), &json!([{"taskId": his, "fromSeq": 0, "nextSeq": 0}]));
    her_run.writes("hers").await;
    her_run.ends("done");
    his_run.writes("his").await;
    his_run.ends("done");
    assert_eq!(rest(&mut events).await, ["0 his", "end"]);
    assert_eq!(bob.error(READ, json!({"taskId": hers})).await, not_found());
    assert_eq!(page(&read(&ann, &hers, json!({})).await)[0], json!(["0 hers"]));
}

#[tokio::test]
async fn security_somebody_elses_task_is_like_one_that_never_was() {
    let mut harness = ToolHarness::with(two_callers()).await;
    let (ann, bob) = ann_and_bob(&harness);
    let (foreign, run) = harness.task_of(&bob).await;
    run.writes("one").await;
    let unknown = "0".repeat(32);
    let (upper, longer, long) = (foreign.to_uppercase(), format!("{foreign}0"), "x".repeat(2_000));
    for id in [&*foreign, &unknown, &upper, &longer, &long, "", "nonsense", "../../etc/passwd", "%00"] {
        // One that may wait must not wait for what it may not know of.
        for params in [json!({}), json!({"fromSeq": 0, "limit": 1, "waitMs": 10_000})] {
            let response = with_timeout("an answer at once", ann.raw(READ, reading(id, params))).await;
            assert_eq!((response.status, response.code()), (200, -32602), "{id}");
            assert_eq!(response.json()["error"], not_found(), "{id}");
        }
        let filter = json!({"toolsListChanged": true, "taskIds": [id], PARTIALS: [{"taskId": id, "fromSeq": 0}]});
        let events = ann.listen(filter).await;
        let honoured = json!({"toolsListChanged": true, "taskIds": [], PARTIALS: []});
        assert_eq!(events.ack["params"]["notifications"], honoured, "{id}");
    }
    assert_eq!(page(&read(&bob, &foreign, json!({})).await), json!([["0 one"], 0, 1, false]));
}

#[tokio::test]
async fn security_output_is_guarded_like_the_result() {
    let mut harness = ToolHarness::with(two_callers()).await;
    let (ann, _) = ann_and_bob(&harness);
    let (id, mut run) = harness.task_of(&ann).await;
    run.writes("one").await;
    run.ends("done");
    with_timeout("the end", ann.until(&id, "completed")).await;
    let requests = [
        ("tasks/get", json!({"taskId": id})),
        (READ, json!({"taskId": id})),
        ("subscriptions/listen", json!({"notifications": {PARTIALS: [{"taskId": id, "fromSeq": 0}]}})),
    ];
    for stranger in [harness.client.clone(), harness.client.clone().with_token("another")] {
        for (method, params) in &requests {
            assert_eq!(stranger.raw(method, params.clone()).await.status, 401, "{method}");
        }
    }
    assert_eq!(output(&ann, &id).await, "one");
    // When the result is no longer kept, neither is the output.
    harness.clock.advance(HOUR);
    let gone = async {
        loop {
            if let Some(error) = ann.raw("tasks/get", json!({"taskId": id})).await.json().get("error") {
                return error.clone();
            }
        }
    };
    assert_eq!(with_timeout("the end of its time", gone).await, not_found());
    assert_eq!(ann.error(READ, json!({"taskId": id})).await, not_found());
    let events = ann.listen(json!({"toolsListChanged": true, PARTIALS: [{"taskId": id, "fromSeq": 0}]})).await;
    assert_eq!(granted_partials(&events), &json!([]));
}

#[tokio::test]
async fn security_a_cancelled_task_says_nothing_more() {
    let mut harness = ToolHarness::new().await;
    let (id, run) = harness.task().await;
    let mut events = follow(&harness.client, &id, 0).await;
    run.writes("one").await;
    run.ctx.text("still waiting to go out").await.expect("taken");
    assert_eq!(next_briefs(&mut events, 2).await, ["working", "0 one"]);
    harness.client.cancel(&id).await;
    with_timeout("the word to stop", run.ctx.cancelled()).await;
    assert!(run.tries("late").await.is_err());
    assert!(with_timeout("a refusal", run.ctx.block(Content::link("test://a", "a"))).await.is_err());
    assert!(with_timeout("a refusal", run.ctx.step([Content::text("late")], &1)).await.is_err());
    harness.clock.advance(SECOND);
    assert_eq!(next_briefs(&mut events, 1).await, ["cancelled: cancelled by its caller"]);
    assert_eq!(page(&read(&harness.client, &id, json!({})).await), json!([["0 one"], 0, 1, true]));
    harness.server.stop();
    assert_eq!(rest(&mut events).await, ["end"]);
}

#[tokio::test]
async fn security_the_header_must_name_the_task_that_is_read() {
    let mut harness = ToolHarness::new().await;
    let ((one, _first), (two, _second)) = (harness.task().await, harness.task().await);
    let message = harness.client.message(1, READ, json!({"taskId": one}));
    for (name, expected) in [(&one, 200), (&two, 400)] {
        let mut headers = harness.client.headers(&message);
        headers.retain(|(key, _)| key != "Mcp-Name");
        headers.push(("Mcp-Name".to_owned(), name.clone()));
        let response = harness.client.post(&headers, message.to_string().as_bytes()).await;
        let code = response.json()["error"]["code"].clone();
        assert_eq!((response.status, code), (expected, if expected == 200 { Value::Null } else { json!(-32020) }));
    }
}

#[tokio::test]
async fn security_a_stream_may_name_so_many_tasks_partials_included() {
    let mut harness = ToolHarness::with(Config { subscriptions_per_stream: 2, ..Config::default() }).await;
    let ((one, _first), (two, _second)) = (harness.task().await, harness.task().await);
    let (first, second) = (json!({"taskId": one}), json!({"taskId": two}));
    for filter in [json!({PARTIALS: [first, second]}), json!({"taskIds": [one], PARTIALS: [second]})] {
        let events = harness.client.listen(filter.clone()).await;
        assert_eq!(granted_partials(&events).as_array().map(Vec::len), filter[PARTIALS].as_array().map(Vec::len));
    }
    let third = json!({"taskId": "0".repeat(32)});
    for filter in [json!({"taskIds": [one, two], PARTIALS: [first]}), json!({PARTIALS: [first, second, third]})] {
        let error = harness.client.error("subscriptions/listen", json!({"notifications": filter})).await;
        assert_eq!(error["code"], -31001, "{filter}");
        assert!(error["message"].as_str().expect("a text").contains("`subscriptions_per_stream`"), "{error}");
    }
}

#[tokio::test]
async fn security_so_many_requests_of_a_caller_may_wait_at_a_time() {
    let mut harness = ToolHarness::with(Config { waiting_requests_per_caller: 1, ..two_callers() }).await;
    let (ann, bob) = ann_and_bob(&harness);
    let ((hers, her_run), (his, his_run)) = (harness.task_of(&ann).await, harness.task_of(&bob).await);
    let waits = waiting(&ann, reading(&hers, json!({"waitMs": 10_000}))).await;
    let refused = with_timeout("a refusal", ann.raw(READ, reading(&hers, json!({"waitMs": 10_000})))).await;
    assert_eq!((refused.status, refused.header("retry-after"), refused.code()), (429, Some("1"), -31001));
    assert!(refused.json()["error"]["message"].as_str().expect("a text").contains("`waiting_requests_per_caller`"), "{}", refused.json());
    // Who does not wait is served, and so is another caller.
    assert_eq!(page(&read(&ann, &hers, json!({})).await), json!([[], 0, 0, false]));
    let other = waiting(&bob, reading(&his, json!({"waitMs": 10_000}))).await;
    her_run.writes("hers").await;
    his_run.writes("his").await;
    assert_eq!((page_of(waits).await, page_of(other).await), (json!([["0 hers"], 0, 1, false]), json!([["0 his"], 0, 1, false])));
    // There is room again.
    let again = waiting(&ann, reading(&hers, json!({"fromSeq": 1, "waitMs": 10_000}))).await;
    her_run.writes("more").await;
    assert_eq!(page_of(again).await, json!([["1 more"], 1, 2, false]));
}
