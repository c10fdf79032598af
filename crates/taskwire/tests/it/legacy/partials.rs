//! Partial results in the legacy era: the rules of SEP-2679 on every stream of a session, how they are negotiated, who may see
//! them, and that each goes to exactly one stream. The same rules in the modern era are in `../partials.rs`.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};
use taskwire::{
    core::Limits,
    server::Config,
    tool::{CallResult, Content, Overflow, TaskMode, Tool, ToolError},
};

use crate::{
    kit::{TestServer, manual_clock, with_timeout},
    legacy::{
        kit::{LATEST, LegacySession, Sse},
        tasks::{awaiting, gone, is_response, related, story, until_is, until_status},
    },
    tasks::{Gate, accept, name_form, quick, registry, tool, two_callers, with_limits},
    tool_harness::{HOUR, SECOND, ToolHarness, ToolRun, not_found, sixty, text_of, uncoalesced},
};

/// What a client declares that can be asked and wants to see partials.
pub(crate) fn streaming() -> Value {
    json!({"elicitation": {}, "tasks": {"streaming": {"partial": {}}}})
}

/// The next partial on a stream.
pub(crate) async fn next_partial(events: &mut Sse) -> Value {
    events.until("notifications/tasks/partial").await["params"].clone()
}

/// The next partial on a stream, in short.
async fn partial(events: &mut Sse) -> String {
    let partial = next_partial(events).await;
    format!("{} {}", partial["seq"], text_of(&partial["content"]))
}

/// The id of the event that a stream begins with, and of which nothing else was read yet.
pub(crate) async fn prime(events: &mut Sse) -> String {
    if events.last_id.is_none() {
        let prime = events.event().await.expect("an event that primes the stream");
        assert!(prime.id.is_some() && prime.message.is_none(), "{prime:?}");
    }
    events.last_id.clone().expect("an id")
}

/// The messages of a stream up to the end of its task, in short.
async fn to_the_end(events: &mut Sse) -> Vec<String> {
    let mut messages = Vec::new();
    loop {
        let message = events.next().await.unwrap_or_else(|| panic!("the stream ended after {messages:?}"));
        let ended = ["completed", "failed", "cancelled"].iter().any(|status| message["params"]["status"] == **status);
        messages.push(message);
        if ended {
            return story(&messages);
        }
    }
}

/// On which stream partials may come.
#[derive(Debug, Clone, Copy)]
struct StreamKind {
    /// On a `tasks/result`, else on the session stream.
    waits: bool,
    /// On a stream that was cut off and goes on by `Last-Event-ID`.
    resumed: bool,
}

const STREAM_KINDS: [StreamKind; 4] = [
    StreamKind { waits: false, resumed: false },
    StreamKind { waits: true, resumed: false },
    StreamKind { waits: false, resumed: true },
    StreamKind { waits: true, resumed: true },
];

impl StreamKind {
    async fn open(self, legacy: &LegacySession, task: &str) -> Sse {
        let mut events = if self.waits { awaiting(legacy, task).await } else { legacy.open_session_stream().await };
        if !self.resumed {
            return events;
        }
        let begin = prime(&mut events).await;
        drop(events);
        legacy.resume(&begin).await
    }
}

/// A task of a session that wants to see partials, and a stream on which they come.
struct Scene {
    harness: ToolHarness,
    legacy: LegacySession,
    id: String,
    run: ToolRun,
    kind: StreamKind,
    events: Sse,
}

impl Scene {
    async fn at(kind: StreamKind) -> Self {
        let mut harness = ToolHarness::new().await;
        let legacy = LegacySession::declaring(&harness.server, streaming()).await;
        let id = legacy.start("writes", json!({})).await;
        let run = harness.run().await;
        let events = kind.open(&legacy, &id).await;
        Self { harness, legacy, id, run, kind, events }
    }

    /// No partial follows: what waited for the task has its response, what stands goes on with the next task.
    async fn says_no_more(&mut self) {
        if self.kind.waits {
            let rest = self.events.rest().await;
            assert!(rest.len() == 1 && is_response(&rest[0]), "{:?}: {rest:?}", self.kind);
            return;
        }
        self.legacy.start("writes", json!({})).await;
        let next = self.harness.run().await;
        next.writes("of the next task").await;
        assert_eq!(partial(&mut self.events).await, "0 of the next task", "{:?}", self.kind);
    }
}

// The eleven rules of SEP-2679, §1.3.

#[tokio::test]
async fn rule_01_partials_come_while_the_task_works_and_while_it_waits_for_input() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        scene.run.writes("one").await;
        let ctx = scene.run.ctx.clone();
        let asking = tokio::spawn(async move { ctx.ask("name", name_form("Name?")).await.map(drop) });
        until_is(&scene.legacy, &scene.id, "input_required").await;
        scene.run.writes("two").await;
        scene.harness.client.answer(&scene.id, json!({"name": accept("Ada")})).await;
        with_timeout("the answer", asking).await.expect("no panic").expect("an answer");
        scene.run.writes("three").await;
        scene.run.ends("done");
        let mut briefs = to_the_end(&mut scene.events).await;
        briefs.retain(|brief| brief != "elicitation/create");
        assert_eq!(briefs, ["0 one", "input_required", "1 two", "working", "2 three", "completed"], "{kind:?}");
    }
}

#[tokio::test]
async fn rule_01_a_task_may_have_no_partials_at_all() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        scene.run.ends("done");
        assert_eq!(to_the_end(&mut scene.events).await, ["completed"], "{kind:?}");
        scene.says_no_more().await;
    }
}

#[tokio::test]
async fn rule_02_no_partial_follows_the_end_of_a_task_however_it_ends() {
    for kind in STREAM_KINDS {
        for end in ["completed", "failed", "cancelled"] {
            let mut scene = Scene::at(kind).await;
            scene.run.writes("one").await;
            match end {
                "completed" => scene.run.ends("done"),
                "failed" => scene.run.ends_with(Err(ToolError::protocol(-32603, "broken"))),
                _ => drop(scene.legacy.cancel(&scene.id).await),
            }
            assert_eq!(to_the_end(&mut scene.events).await, ["0 one", end], "{kind:?}");
            assert!(scene.run.tries("late").await.is_err(), "{kind:?} {end}");
            scene.harness.clock.advance(SECOND);
            scene.says_no_more().await;
        }
    }
}

#[tokio::test]
async fn rule_03_what_is_pending_goes_out_before_the_end() {
    for kind in STREAM_KINDS {
        for end in ["completed", "failed"] {
            let mut scene = Scene::at(kind).await;
            scene.run.writes("one").await;
            scene.run.ctx.text("two").await.expect("taken");
            scene.run.ctx.text("three").await.expect("taken");
            match end {
                "completed" => scene.run.ends("done"),
                _ => scene.run.ends_with(Err(ToolError::protocol(-32603, "broken"))),
            }
            assert_eq!(to_the_end(&mut scene.events).await, ["0 one", "1 twothree", end], "{kind:?}");
        }
    }
}

#[tokio::test]
async fn rule_04_numbers_start_at_0_and_grow_by_one_within_each_task() {
    let mut harness = ToolHarness::new().await;
    let legacy = LegacySession::declaring(&harness.server, streaming()).await;
    let mut events = legacy.open_session_stream().await;
    let one = legacy.start("writes", json!({})).await;
    let first = harness.run().await;
    let two = legacy.start("writes", json!({})).await;
    let second = harness.run().await;
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
    assert_eq!(seen, BTreeMap::from([(one, Vec::from_iter(0..20)), (two, Vec::from_iter(0..10))]));
}

#[tokio::test]
async fn rule_04_a_gap_shows_and_nothing_is_made_up_for_it() {
    let limits = Limits { task_output_bytes: 250, ..Limits::DEFAULT };
    let mut harness = ToolHarness::of(with_limits(limits), |tool| tool.overflow(Overflow::DropOldest)).await;
    let legacy = LegacySession::declaring(&harness.server, streaming()).await;
    let id = legacy.start("writes", json!({})).await;
    let run = harness.run().await;
    for n in 0..10 {
        run.writes(&sixty(n)).await;
    }
    let mut events = awaiting(&legacy, &id).await;
    let first = next_partial(&mut events).await;
    let from = first["seq"].as_u64().expect("a number");
    assert!((1..10).contains(&from), "{first}");
    assert_eq!(text_of(&first["content"]), sixty(from));
    for n in from + 1..10 {
        assert_eq!(partial(&mut events).await, format!("{n} {}", sixty(n)));
    }
}

#[tokio::test]
async fn rule_05_content_is_never_empty() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        scene.run.ctx.flush().await.expect("nothing waits");
        scene.run.writes("").await;
        scene.run.ctx.step(Vec::<Content>::new(), &1).await.expect("saved");
        scene.run.writes("one").await;
        scene.run.writes("").await;
        scene.run.ends("done");
        assert_eq!(to_the_end(&mut scene.events).await, ["0 one", "completed"], "{kind:?}");
    }
}

#[tokio::test]
async fn rule_06_the_result_is_whole_whatever_the_partials_said() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        scene.run.writes("the beginning, ").await;
        scene.run.ends(CallResult::of([Content::text("the beginning, the middle"), Content::text("and the end")]));
        assert_eq!(to_the_end(&mut scene.events).await, ["0 the beginning, ", "completed"], "{kind:?}");
        let whole = json!([{"type": "text", "text": "the beginning, the middle"}, {"type": "text", "text": "and the end"}]);
        // The same for who never saw a partial and for who saw them all.
        for legacy in [LegacySession::open(&scene.harness.server).await, scene.legacy.clone()] {
            assert_eq!(legacy.result(&scene.id).await, json!({"content": whole, "_meta": related(&scene.id)}));
        }
        if kind.waits {
            assert_eq!(scene.events.rest().await[0]["result"]["content"], whole);
        }
    }
}

#[tokio::test]
async fn rule_07_each_partial_adds_to_those_before_it() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        for text in ["Hel", "lo, ", "world", "."] {
            scene.run.writes(text).await;
        }
        scene.run.ends("done");
        assert_eq!(to_the_end(&mut scene.events).await, ["0 Hel", "1 lo, ", "2 world", "3 .", "completed"], "{kind:?}");
    }
}

#[tokio::test]
async fn rule_08_result_and_partials_need_not_have_anything_in_common() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        scene.run.writes("a draft").await;
        scene.run.ends("something else");
        assert_eq!(to_the_end(&mut scene.events).await, ["0 a draft", "completed"], "{kind:?}");
        assert_eq!(text_of(&scene.legacy.result(&scene.id).await["content"]), "something else", "{kind:?}");
    }
}

#[tokio::test]
async fn rule_09_blocks_of_every_kind_come_as_they_were_written() {
    let blocks = || {
        [
            (Content::image(b"x", "image/png"), json!({"type": "image", "data": "eA==", "mimeType": "image/png"})),
            (Content::audio(b"x", "audio/wav"), json!({"type": "audio", "data": "eA==", "mimeType": "audio/wav"})),
            (Content::link("test://a", "a"), json!({"type": "resource_link", "uri": "test://a", "name": "a"})),
            (
                Content::resource("test://b", "text/plain", "b"),
                json!({"type": "resource", "resource": {"uri": "test://b", "mimeType": "text/plain", "text": "b"}}),
            ),
        ]
    };
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        for (seq, (block, shape)) in (0..).zip(blocks()) {
            scene.run.ctx.block(block).await.expect("taken");
            scene.run.ctx.flush().await.expect("written");
            let expected = json!({"taskId": scene.id, "seq": seq, "content": [shape], "_meta": related(&scene.id)});
            assert_eq!(next_partial(&mut scene.events).await, expected, "{kind:?}");
        }
    }
}

#[tokio::test]
async fn rule_10_what_comes_again_is_the_same_under_the_same_number() {
    for kind in STREAM_KINDS.into_iter().filter(|kind| !kind.resumed) {
        let Scene { harness: _harness, legacy, run, mut events, .. } = Scene::at(kind).await;
        // Each message with the event that goes before it.
        let (mut seen, mut before) = (Vec::new(), Vec::new());
        for n in 0..6 {
            run.writes(&format!("\u{1f600} \"{n}\"\n")).await;
            before.push(events.last_id.clone());
            seen.push(events.until("notifications/tasks/partial").await);
        }
        drop(events);
        for from in [1, 3, 5] {
            let mut again = legacy.resume(before[from].as_deref().expect("an id")).await;
            for message in &seen[from..] {
                assert_eq!(&again.until("notifications/tasks/partial").await, message, "{kind:?} from {from}");
            }
        }
    }
}

#[tokio::test]
async fn rule_11_blocks_of_one_partial_keep_their_order_and_mean_the_same_as_several() {
    let blocks = || [Content::text("a"), Content::link("test://b", "b"), Content::image(b"c", "image/png"), Content::link("test://d", "d")];
    for kind in STREAM_KINDS {
        for together in [true, false] {
            let mut scene = Scene::at(kind).await;
            scene.run.writes("-").await;
            for block in blocks() {
                scene.run.ctx.block(block).await.expect("taken");
                if !together {
                    scene.run.ctx.flush().await.expect("written");
                }
            }
            scene.run.ends("done");
            let expected = if together {
                vec!["0 -", "1 a+<resource_link>+<image>+<resource_link>", "completed"]
            } else {
                vec!["0 -", "1 a", "2 <resource_link>", "3 <image>", "4 <resource_link>", "completed"]
            };
            assert_eq!(to_the_end(&mut scene.events).await, expected, "{kind:?}");
        }
    }
}

// Negotiation: SEP-2679, §2.3, declared once, with the handshake.

#[tokio::test]
async fn negotiation_1_who_does_not_declare_partials_sees_nothing_of_them() {
    let mut harness = ToolHarness::of(Config::default(), Tool::streams).await;
    for capabilities in [json!({}), json!({"tasks": {}}), json!({"tasks": {"streaming": {}}}), json!({"streaming": {"partial": {}}})] {
        let plain = LegacySession::declaring(&harness.server, capabilities.clone()).await;
        assert_eq!(plain.init()["capabilities"]["tasks"].get("streaming"), None, "{capabilities}");
        let tools = plain.ok("tools/list", json!({})).await;
        assert_eq!(tools["tools"][0]["execution"], json!({"taskSupport": "optional"}), "{capabilities}");
        let mut standing = plain.open_session_stream().await;
        for waits in [false, true] {
            let id = plain.start("writes", json!({})).await;
            let mut run = harness.run().await;
            let waiting = if waits { Some(awaiting(&plain, &id).await) } else { None };
            run.writes("one").await;
            run.ends("done");
            let briefs = match waiting {
                Some(mut waiting) => story(&waiting.rest().await),
                None => to_the_end(&mut standing).await,
            };
            assert_eq!(briefs[0], "completed", "{capabilities}: {briefs:?}");
        }
    }
}

#[tokio::test]
async fn negotiation_2_who_declares_partials_learns_that_there_are_some() {
    let server = TestServer::start(registry([quick("streams").streams(), quick("plain")])).await;
    let legacy = LegacySession::declaring(&server, streaming()).await;
    let all = json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}, "streaming": {"partial": {}}});
    assert_eq!(legacy.init()["capabilities"]["tasks"], all);
    // The hint of a tool.
    let tools = legacy.ok("tools/list", json!({})).await;
    let hints: BTreeMap<_, _> =
        tools["tools"].as_array().expect("tools").iter().map(|tool| (tool["name"].as_str(), &tool["execution"])).collect();
    assert_eq!(hints[&Some("streams")], &json!({"taskSupport": "optional", "streamPartial": true}));
    assert_eq!(hints[&Some("plain")], &json!({"taskSupport": "optional"}));
}

#[tokio::test]
async fn a_tool_that_cannot_be_a_task_has_no_hint() {
    for (mode, support) in [(TaskMode::Never, "forbidden"), (TaskMode::Auto, "optional"), (TaskMode::Required, "required")] {
        let server = TestServer::start(registry([quick("streams").streams().task(mode)])).await;
        let legacy = LegacySession::declaring(&server, streaming()).await;
        let execution = legacy.ok("tools/list", json!({})).await["tools"][0]["execution"].clone();
        let mut expected = json!({"taskSupport": support});
        if mode != TaskMode::Never {
            expected["streamPartial"] = true.into();
        }
        assert_eq!(execution, expected, "{mode:?}");
    }
}

#[tokio::test]
async fn negotiation_3_partials_need_a_version_that_has_tasks() {
    let mut harness = ToolHarness::of(Config::default(), Tool::streams).await;
    for older in ["2025-06-18", "2025-03-26"] {
        let legacy = LegacySession::of(harness.server.port, None, older, streaming()).await;
        assert_eq!(legacy.init()["capabilities"].get("tasks"), None, "{older}");
        let tools = legacy.ok("tools/list", json!({})).await;
        assert!(!tools.to_string().contains("streamPartial"), "{older}: {tools}");
        let calling = tokio::spawn(async move { legacy.call("writes", json!({})).await });
        let mut run = harness.run().await;
        run.ctx.text("one").await.expect("taken");
        run.ends("done");
        // Each message on the way was checked: a partial among them would not have been let pass.
        assert_eq!(text_of(&with_timeout("the result", calling).await.expect("no panic")["content"]), "done", "{older}");
    }
}

#[tokio::test]
async fn negotiation_4_tasks_are_the_same_with_and_without_partials() {
    let mut harness = ToolHarness::new().await;
    let (with, without) = (LegacySession::declaring(&harness.server, streaming()).await, LegacySession::open(&harness.server).await);
    // Who made a task, and what was declared then, does not matter: the session that asks does.
    for maker in [&with, &without] {
        let id = maker.start("writes", json!({})).await;
        let mut run = harness.run().await;
        let (mut all, mut states) = (awaiting(&with, &id).await, awaiting(&without, &id).await);
        run.writes("one").await;
        run.ends("done");
        assert_eq!(story(&all.rest().await), ["0 one", "completed", "= done"]);
        assert_eq!(story(&states.rest().await), ["completed", "= done"]);
        assert_eq!(with.get(&id).await, without.get(&id).await);
        assert_eq!(with.result(&id).await, without.result(&id).await);
    }
}

// Security: who may see what.

#[tokio::test]
async fn security_partials_reach_only_the_session_that_made_the_task() {
    let mut harness = ToolHarness::with(two_callers()).await;
    let mut sessions = Vec::new();
    for token in ["ann-token", "bob-token", "ann-token"] {
        let legacy = LegacySession::of(harness.server.port, Some(token), LATEST, streaming()).await;
        let events = legacy.open_session_stream().await;
        let id = legacy.start("writes", json!({})).await;
        sessions.push((legacy, events, id, harness.run().await));
    }
    // The first one writes before the others: who saw it would see it first.
    for (n, (_, _, _, run)) in sessions.iter_mut().enumerate() {
        run.writes(&format!("of {n}")).await;
        run.ends("done");
    }
    for (n, (_, events, id, _)) in sessions.iter_mut().enumerate() {
        let params = next_partial(events).await;
        assert_eq!((&params["taskId"], text_of(&params["content"])), (&json!(id), format!("of {n}")));
        let ended = until_status(events, |params| params["status"] == "completed").await;
        assert_eq!(ended["taskId"], json!(id));
    }
    // Nor can one of them ask for what is the other caller's, or go on with a stream that is not its own.
    let (ann, bob, again) = (&sessions[0], &sessions[1], &sessions[2].0);
    assert_eq!(ann.0.error("tasks/result", json!({"taskId": bob.2})).await, not_found());
    let stream = ann.1.last_id.clone().expect("an id");
    for stranger in [&bob.0, again] {
        let refused = stranger.http("GET", &[("Last-Event-ID", stream.as_str())]).await;
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!(-32602)));
    }
}

#[tokio::test]
async fn security_output_is_guarded_like_the_result() {
    let mut scene = Scene::at(STREAM_KINDS[1]).await;
    let request = scene.legacy.message(scene.legacy.next_id(), "tasks/result", json!({"taskId": scene.id}));
    let begin = prime(&mut scene.legacy.stream_message(&request).await).await;
    scene.run.writes("one").await;
    scene.run.ends("done");
    until_is(&scene.legacy, &scene.id, "completed").await;
    // When the result is no longer kept, neither is the output.
    scene.harness.clock.advance(HOUR);
    assert_eq!(gone(&scene.legacy, &scene.id).await, not_found());
    assert_eq!(scene.legacy.error("tasks/result", json!({"taskId": scene.id})).await, not_found());
    let rest = scene.legacy.resume(&begin).await.rest().await;
    assert_eq!((rest.len(), &rest[0]["id"], &rest[0]["error"]["code"]), (1, &request["id"], &json!(-32602)), "{rest:?}");
}

#[tokio::test]
async fn security_a_cancelled_task_says_nothing_more() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        scene.run.writes("one").await;
        scene.run.ctx.text("still waiting to go out").await.expect("taken");
        assert_eq!(partial(&mut scene.events).await, "0 one");
        scene.legacy.cancel(&scene.id).await;
        with_timeout("the word to stop", scene.run.ctx.cancelled()).await;
        assert!(with_timeout("a refusal", scene.run.ctx.step([Content::text("late")], &1)).await.is_err());
        scene.harness.clock.advance(SECOND);
        assert_eq!(to_the_end(&mut scene.events).await, ["cancelled"], "{kind:?}");
        scene.says_no_more().await;
    }
}

// Routing: each partial goes to exactly one stream of a session.

#[tokio::test]
async fn routing_a_partial_goes_where_its_task_is_waited_for_and_nowhere_else() {
    let mut harness = ToolHarness::new().await;
    let legacy = LegacySession::declaring(&harness.server, streaming()).await;
    let id = legacy.start("writes", json!({})).await;
    let mut run = harness.run().await;
    run.writes("before there was a stream").await;
    let mut standing = legacy.open_session_stream().await;
    assert_eq!(partial(&mut standing).await, "0 before there was a stream");
    let request = legacy.message(legacy.next_id(), "tasks/result", json!({"taskId": id}));
    let mut waiting = legacy.stream_message(&request).await;
    prime(&mut waiting).await;
    run.writes("waited for").await;
    assert_eq!(partial(&mut waiting).await, "1 waited for");
    // Who called off the wait stands again.
    legacy.notify("notifications/cancelled", json!({"requestId": request["id"]})).await;
    assert_eq!(story(&waiting.rest().await), [""; 0]);
    run.writes("waited for no more").await;
    assert_eq!(partial(&mut standing).await, "2 waited for no more");
    let mut waiting = awaiting(&legacy, &id).await;
    prime(&mut waiting).await;
    run.writes("the last").await;
    run.ends("done");
    assert_eq!(story(&waiting.rest().await), ["3 the last", "completed", "= done"]);
    let mut scene = Scene { harness, legacy, id, run, kind: STREAM_KINDS[0], events: standing };
    scene.says_no_more().await;
}

#[tokio::test]
async fn routing_what_a_reader_lost_with_its_stream_comes_again_though_the_task_is_waited_for_by_now() {
    let mut harness = ToolHarness::new().await;
    let legacy = LegacySession::declaring(&harness.server, streaming()).await;
    let mut standing = legacy.open_session_stream().await;
    let id = legacy.start("writes", json!({})).await;
    let mut run = harness.run().await;
    run.writes("told").await;
    assert_eq!(partial(&mut standing).await, "0 told");
    let before = standing.last_id.clone().expect("an id");
    // It was sent; that it arrived is what only its reader knows.
    run.writes("lost").await;
    assert_eq!(partial(&mut standing).await, "1 lost");
    drop(standing);
    let mut waiting = awaiting(&legacy, &id).await;
    prime(&mut waiting).await;
    run.writes("waited for").await;
    assert_eq!(partial(&mut waiting).await, "2 waited for");
    let mut standing = legacy.resume(&before).await;
    assert_eq!(partial(&mut standing).await, "1 lost");
    run.writes("the last").await;
    run.ends("done");
    assert_eq!(story(&waiting.rest().await), ["3 the last", "completed", "= done"]);
    // What the waiting stream had does not come here as well.
    let mut scene = Scene { harness, legacy, id, run, kind: STREAM_KINDS[0], events: standing };
    scene.says_no_more().await;
}

#[tokio::test]
async fn routing_what_one_stream_was_told_no_other_is() {
    let mut harness = ToolHarness::new().await;
    let legacy = LegacySession::declaring(&harness.server, streaming()).await;
    let id = legacy.start("writes", json!({})).await;
    let mut run = harness.run().await;
    let (mut one, mut two) = (awaiting(&legacy, &id).await, awaiting(&legacy, &id).await);
    for n in 0..10 {
        run.writes(&n.to_string()).await;
    }
    run.ends("done");
    let mut seen = Vec::new();
    for events in [&mut one, &mut two] {
        let rest = events.rest().await;
        assert_eq!(rest.last().map(is_response), Some(true), "{rest:?}");
        seen.extend(rest.iter().filter_map(|message| message["params"]["seq"].as_u64()));
    }
    seen.sort_unstable();
    assert_eq!(seen, Vec::from_iter(0..10), "each once");
    // Nor is a session stream that comes later, and of two session streams only the newer.
    let older = legacy.open_session_stream().await;
    let mut scene = Scene { harness, legacy, id, run, kind: STREAM_KINDS[0], events: older };
    scene.says_no_more().await;
    let newer = scene.legacy.open_session_stream().await;
    let mut older = std::mem::replace(&mut scene.events, newer);
    let rest = older.rest().await;
    assert!(!rest.iter().any(|message| message["method"] == "notifications/tasks/partial"), "{rest:?}");
    scene.says_no_more().await;
}

#[tokio::test]
async fn a_reader_that_is_cut_off_fifty_times_has_every_chunk_once() {
    const CHUNKS: u64 = 2_000;
    const CUTS: u64 = 50;
    const STRETCH: u64 = CHUNKS / CUTS;
    for kind in STREAM_KINDS.into_iter().filter(|kind| !kind.resumed) {
        let gate = Gate::new();
        let writes = tool("writes", &gate, |gate, ctx| async move {
            for n in 0..CHUNKS {
                if n % STRETCH == 0 {
                    gate.go.wait().await;
                }
                ctx.text(format!("<{n}>")).await?;
            }
            Ok("done")
        });
        let server = TestServer::start_with(registry([writes.task(TaskMode::Always)]), uncoalesced(), Arc::new(manual_clock())).await;
        let legacy = LegacySession::declaring(&server, streaming()).await;
        let id = legacy.start("writes", json!({})).await;
        let mut events = kind.open(&legacy, &id).await;
        let (mut last, mut seen) = (prime(&mut events).await, 0);
        for cut in 1..=CUTS {
            // The tool writes its next stretch while it is read. Now and then nothing of it is.
            gate.go.send();
            let until = if cut % 10 == 0 { seen } else { cut * STRETCH - cut * 17 % STRETCH };
            while seen < until {
                assert_eq!(partial(&mut events).await, format!("{seen} <{seen}>"), "{kind:?}");
                seen += 1;
            }
            last = events.last_id.take().unwrap_or(last);
            drop(events);
            events = legacy.resume(&last).await;
        }
        while seen < CHUNKS {
            assert_eq!(partial(&mut events).await, format!("{seen} <{seen}>"), "{kind:?}");
            seen += 1;
        }
        assert_eq!(to_the_end(&mut events).await, ["completed"], "{kind:?}");
    }
}
