//! SEP-2679 from the requestor's side: each of its rules that a client can keep or break, on either stream of a session, against
//! a script that numbers its partials as it should not, and against our own server.

use serde_json::{Value, json};
use taskwire::{
    client::{Call, Client, Event, Options, Outcome},
    clock::SystemClock,
    server::Config,
    tool::{TaskMode, Tool},
};

use super::{
    between::Between,
    legacy::{
        awaited, begun, client_of, comes_back, declared, ended, having, impatient, joined, made, made_by, options, partials, progress,
        related, scripted, shown, status, stood, waited, ways,
    },
    script::{MS, ScriptedServer, Sse, brief, last, next, next_briefs, next_notable, response, rest, start_job, text, with_members},
};
use crate::{
    kit::{TestServer, with_timeout},
    tasks::{registry, tool},
    tool_harness::{ToolHarness, uncoalesced},
};

/// The parameters of a partial of `t1`.
fn partial(seq: u64, said: &str) -> Value {
    json!({"taskId": "t1", "seq": seq, "content": [text(said)]})
}

/// Sends a partial with these parameters.
async fn send_partial(events: &mut Sse, params: Value) {
    events.notify("notifications/tasks/partial", params).await;
}

/// On which stream partials come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamKind {
    /// On the stream on which the result is waited for.
    Wait,
    /// On the session stream.
    Stand,
}

const STREAM_KINDS: [StreamKind; 2] = [StreamKind::Wait, StreamKind::Stand];

/// The task `t1`, and the streams of its session.
struct Scene {
    script: ScriptedServer,
    client: Client,
    call: Call,
    /// The token of its progress.
    token: Value,
    wait: Sse,
    stand: Option<Sse>,
}

impl Scene {
    async fn at(kind: StreamKind) -> Self {
        let script = scripted().await;
        // Who hears of the end may ask for the result once more.
        script.may_remain("tasks/result");
        let (client, stand) = match kind {
            StreamKind::Wait => (joined(&script, options(&script), partials()).await, None),
            StreamKind::Stand => {
                let (client, stand) = stood(&script, options(&script), partials()).await;
                (client, Some(stand))
            }
        };
        let (mut call, token) = start_job(&client, async {
            let request = awaited(&script, "tools/call").await;
            let token = request.meta()["progressToken"].clone();
            request.result(made("t1")).await;
            token
        })
        .await;
        let wait = waited(&script, &mut call, "t1").await.sse().await;
        Self { script, client, call, token, wait, stand }
    }

    /// The stream on which partials come.
    fn events(&mut self) -> &mut Sse {
        match &mut self.stand {
            Some(stand) => stand,
            None => &mut self.wait,
        }
    }

    /// A partial with one text.
    async fn partial(&mut self, seq: u64, said: &str) {
        self.sends(partial(seq, said)).await;
    }

    /// A partial with these parameters.
    async fn sends(&mut self, params: Value) {
        send_partial(self.events(), params).await;
    }

    /// The next events, while time passes.
    async fn next_events(&mut self, count: usize) -> Vec<String> {
        self.script.as_time_passes("the next events", 10 * MS, next_briefs(&mut self.call, count)).await
    }

    /// The task has this result; returns all events that still come.
    async fn ends(self, said: &str) -> Vec<String> {
        let Self { script, client: _client, mut call, wait, stand: _stand, .. } = self;
        wait.result(ended("t1", said)).await;
        script.as_time_passes("the end", 10 * MS, rest(&mut call)).await
    }
}

// Capabilities: §2.

#[tokio::test]
async fn rule_capability_is_declared_by_who_wants_output() {
    for stream in [true, false] {
        let script = scripted().await;
        let declared = declared(&script, Options { stream_output: stream, ..options(&script) }).await;
        let partial = declared.pointer("/tasks/streaming/partial").cloned();
        assert_eq!(partial, stream.then(|| json!({})), "{declared}");
    }
}

#[tokio::test]
async fn rule_capability_of_the_server_is_known() {
    for (capabilities, has) in [(partials(), true), (having(json!({})), false), (having(json!({"streaming": {}})), false)] {
        let script = scripted().await;
        let client = joined(&script, options(&script), capabilities.clone()).await;
        assert_eq!(client.server_info().pushes_output, has, "{capabilities}");
    }
}

#[tokio::test]
async fn rule_nothing_is_expected_of_a_server_that_did_not_declare_it() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    let (mut call, wait) = begun(&script, &client, "t1").await;
    wait.result(ended("t1", "done")).await;
    assert_eq!(rest(&mut call).await, ["done: done"]);
}

#[tokio::test]
async fn rule_hint_of_a_tool_is_no_promise() {
    for hint in [true, false] {
        let script = scripted().await;
        let execution = json!({"taskSupport": "optional", "streamPartial": hint});
        script.always("tools/list", json!({"tools": [{"name": "job", "inputSchema": {"type": "object"}, "execution": execution}]}));
        let client = joined(&script, options(&script), partials()).await;
        let (mut call, mut wait) = begun(&script, &client, "t1").await;
        // Who says so may be silent, and who does not may speak.
        if !hint {
            send_partial(&mut wait, partial(0, "one")).await;
            assert_eq!(next_briefs(&mut call, 1).await, ["0 one"]);
        }
        wait.result(ended("t1", "done")).await;
        assert_eq!(rest(&mut call).await, ["done: done"], "{hint}");
    }
}

// Behaviour: §1.3, by its numbers.

#[tokio::test]
async fn rule_01_there_may_be_no_partials_and_there_may_be_some_while_input_is_awaited() {
    for kind in STREAM_KINDS {
        assert_eq!(Scene::at(kind).await.ends("done").await, ["done: done"], "{kind:?}");
        let mut scene = Scene::at(kind).await;
        scene.partial(0, "one").await;
        scene.events().event(status(shown("t1", "input_required"))).await;
        scene.partial(1, "two").await;
        scene.events().event(status(shown("t1", "working"))).await;
        scene.partial(2, "three").await;
        assert_eq!(scene.next_events(3).await, ["0 one", "1 two", "2 three"], "{kind:?}");
        assert_eq!(scene.ends("done").await, ["done: done"], "{kind:?}");
    }
}

#[tokio::test]
async fn rule_02_what_comes_after_the_end_was_told_is_dropped() {
    for kind in STREAM_KINDS {
        for state in ["completed", "failed", "cancelled"] {
            let mut scene = Scene::at(kind).await;
            scene.partial(0, "one").await;
            assert_eq!(scene.next_events(1).await, ["0 one"]);
            scene.script.always("tasks/get", shown("t1", state));
            scene.events().event(status(shown("t1", state))).await;
            scene.partial(1, "late").await;
            scene.partial(2, "later").await;
            let mark = progress(&scene.token, json!({"progress": 9, "_meta": related("t1")}));
            scene.events().event(mark).await;
            let mut briefs = Vec::new();
            if state != "cancelled" {
                // What comes before it has been read then. A task that was called off need not be read so far.
                while briefs.last().is_none_or(|brief| brief != "progress 9") {
                    briefs.extend(scene.next_events(1).await);
                }
            }
            let Scene { script, client: _client, mut call, wait, stand: _stand, .. } = scene;
            match state {
                "completed" => wait.result(ended("t1", "done")).await,
                "failed" => wait.error(-31999, "broken", Value::Null).await,
                _ => wait.error(-32603, "Task was cancelled", Value::Null).await,
            }
            briefs.extend(script.as_time_passes("the end", 10 * MS, rest(&mut call)).await);
            assert!(!briefs.iter().any(|brief| brief == "1 late" || brief == "2 later"), "{kind:?} {state}: {briefs:?}");
        }
    }
}

#[tokio::test]
async fn rule_03_what_was_pending_is_handed_out_before_the_end() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        for (seq, said) in (0..).zip(["one", "two", "three"]) {
            scene.partial(seq, said).await;
        }
        if kind == StreamKind::Stand {
            // Between two streams there is no order but that in which they are read.
            assert_eq!(scene.next_events(3).await, ["0 one", "1 two", "2 three"]);
            assert_eq!(scene.ends("done").await, ["done: done"]);
        } else {
            assert_eq!(scene.ends("done").await, ["0 one", "1 two", "2 three", "done: done"]);
        }
    }
}

#[tokio::test]
async fn rule_04_numbers_begin_with_0_and_grow_by_one() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        for seq in 0..100 {
            scene.partial(seq, "x").await;
        }
        let expected: Vec<String> = (0..100).map(|seq| format!("{seq} x")).collect();
        assert_eq!(scene.next_events(100).await, expected, "{kind:?}");
        assert_eq!(scene.call.reference().map(|reference| reference.next), Some(100));
        assert_eq!(scene.ends("done").await, ["done: done"], "{kind:?}");
    }
}

#[tokio::test]
async fn rule_04_a_gap_is_noted_and_nothing_is_made_up_for_it() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        for (seq, said) in [(0, "one"), (2, "three"), (5, "six")] {
            scene.partial(seq, said).await;
        }
        assert_eq!(scene.next_events(5).await, ["0 one", "gap 1..2", "2 three", "gap 3..5", "5 six"], "{kind:?}");
        assert_eq!(scene.call.reference().map(|reference| reference.next), Some(6));
        // And it goes on.
        scene.partial(6, "seven").await;
        assert_eq!(scene.next_events(1).await, ["6 seven"], "{kind:?}");
        assert_eq!(scene.ends("done").await, ["done: done"], "{kind:?}");
    }
}

#[tokio::test]
async fn rule_04_a_gap_that_is_open_at_the_end_is_noted_before_it() {
    let mut scene = Scene::at(StreamKind::Wait).await;
    scene.partial(0, "one").await;
    scene.partial(2, "three").await;
    assert_eq!(scene.ends("done").await, ["0 one", "gap 1..2", "2 three", "done: done"]);
}

#[tokio::test]
async fn rule_04_one_that_is_only_late_is_no_gap() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        for (seq, said) in [(1, "two"), (2, "three"), (0, "one"), (3, "four")] {
            scene.partial(seq, said).await;
        }
        // Time stands still.
        assert_eq!(next_briefs(&mut scene.call, 4).await, ["0 one", "1 two", "2 three", "3 four"], "{kind:?}");
        assert_eq!(scene.ends("done").await, ["done: done"], "{kind:?}");
    }
}

#[tokio::test]
async fn rule_04_one_that_is_too_late_stays_lost() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        scene.partial(1, "two").await;
        assert_eq!(scene.next_events(2).await, ["gap 0..1", "1 two"], "{kind:?}");
        scene.partial(0, "one").await;
        scene.partial(2, "three").await;
        assert_eq!(scene.next_events(1).await, ["2 three"], "{kind:?}");
        assert_eq!(scene.ends("done").await, ["done: done"], "{kind:?}");
    }
}

#[tokio::test]
async fn rule_04_a_number_beyond_all_reason_does_no_harm() {
    for kind in STREAM_KINDS {
        for seq in [json!(u64::MAX), json!(u64::MAX - 1), json!(1e30), json!(9_007_199_254_740_993_u64)] {
            let mut scene = Scene::at(kind).await;
            scene.partial(0, "one").await;
            scene.sends(json!({"taskId": "t1", "seq": seq, "content": [text("far")]})).await;
            assert_eq!(scene.next_events(1).await, ["0 one"]);
            let briefs = scene.ends("done").await;
            assert_eq!(briefs.last().map(String::as_str), Some("done: done"), "{kind:?} {seq}: {briefs:?}");
        }
    }
}

#[tokio::test]
async fn rule_05_one_without_content_is_not_handed_out() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        scene.partial(0, "one").await;
        scene.sends(json!({"taskId": "t1", "seq": 1, "content": []})).await;
        scene.partial(2, "three").await;
        let mut briefs = scene.ends("done").await;
        // Whether its number counts is not said.
        briefs.retain(|brief| brief != "gap 1..2");
        if kind == StreamKind::Wait {
            assert_eq!(briefs, ["0 one", "2 three", "done: done"]);
        }
        assert!(!briefs.iter().any(|brief| brief.starts_with("1 ")), "{kind:?}: {briefs:?}");
    }
}

#[tokio::test]
async fn rule_05_what_is_no_partial_is_passed_over() {
    let bad = [
        json!({}),
        json!({"taskId": "t1"}),
        json!({"taskId": "t1", "seq": 1}),
        json!({"taskId": "t1", "content": [text("no number")]}),
        json!({"taskId": "t1", "seq": -1, "content": [text("negative")]}),
        json!({"taskId": "t1", "seq": 1.5, "content": [text("half")]}),
        json!({"taskId": "t1", "seq": "1", "content": [text("text")]}),
        json!({"taskId": "t1", "seq": null, "content": [text("nothing")]}),
        json!({"taskId": "t1", "seq": 1, "content": "text"}),
        json!({"taskId": "t1", "seq": 1, "content": null}),
        json!({"taskId": 1, "seq": 1, "content": [text("no name")]}),
        json!({"seq": 1, "content": [text("of nobody")]}),
        json!([1, 2, 3]),
        json!("text"),
    ];
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        scene.partial(0, "one").await;
        for params in &bad {
            scene.sends(params.clone()).await;
        }
        scene.partial(1, "two").await;
        assert_eq!(scene.next_events(2).await, ["0 one", "1 two"], "{kind:?}");
        assert_eq!(scene.ends("done").await, ["done: done"], "{kind:?}");
    }
}

#[tokio::test]
async fn rule_06_the_result_is_what_the_server_says_and_not_what_came_before_it() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        scene.partial(0, "the beginning, ").await;
        assert_eq!(scene.next_events(1).await, ["0 the beginning, "]);
        // More, less, and nothing in common.
        assert_eq!(scene.ends("the beginning, the middle and the end").await, ["done: the beginning, the middle and the end"], "{kind:?}");
    }
    let mut scene = Scene::at(StreamKind::Wait).await;
    scene.partial(0, "one").await;
    assert_eq!(scene.next_events(1).await, ["0 one"]);
    let Scene { script: _script, client: _client, mut call, wait, .. } = scene;
    wait.result(json!({"content": [], "structuredContent": {"n": 1}, "_meta": related("t1")})).await;
    let Some(Event::Done(outcome)) = next_notable(&mut call).await else { panic!("an end") };
    let Outcome::Result(finished) = outcome else { panic!("{outcome:?}") };
    assert_eq!((finished.content, finished.structured, finished.is_error), (Vec::new(), Some(json!({"n": 1})), false));
}

#[tokio::test]
async fn rule_06_the_end_of_the_output_is_not_the_end() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        scene.partial(0, "the whole result").await;
        scene.events().event(status(with_members(shown("t1", "working"), json!({"statusMessage": "tidying up"})))).await;
        assert_eq!(scene.next_events(1).await, ["0 the whole result"]);
        while brief(&next(&mut scene.call).await.expect("the run goes on")) != "working: tidying up" {}
        assert_eq!(scene.ends("done").await, ["done: done"], "{kind:?}");
    }
}

#[tokio::test]
async fn rule_07_each_adds_to_those_before_it() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        let words = ["Hel", "lo, ", "Hel", "", " world", "\u{1f600}\n"];
        for (seq, said) in (0..).zip(words) {
            scene.partial(seq, said).await;
        }
        let mut all = String::new();
        for _ in words {
            assert!(matches!(take(&mut scene.call, &mut all).await, Event::Chunk(_)));
        }
        assert_eq!(all, words.concat(), "{kind:?}");
        assert_eq!(scene.ends("done").await, ["done: done"], "{kind:?}");
    }
}

/// The next event, whose text is added if it is a partial.
async fn take(call: &mut Call, all: &mut String) -> Event {
    let event = next_notable(call).await.expect("the run goes on");
    if let Event::Chunk(partial) = &event {
        all.push_str(&partial.text());
    }
    event
}

#[tokio::test]
async fn rule_08_output_and_result_need_not_have_anything_in_common() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        scene.partial(0, "a draft").await;
        assert_eq!(scene.next_events(1).await, ["0 a draft"]);
        assert_eq!(scene.ends("something else").await, ["done: something else"], "{kind:?}");
    }
}

#[tokio::test]
async fn rule_09_blocks_of_every_kind_come_as_they_are() {
    let blocks = [
        json!({"type": "image", "data": "eA==", "mimeType": "image/png", "annotations": {"audience": ["user"], "priority": 0.5}}),
        json!({"type": "audio", "data": "eA==", "mimeType": "audio/wav"}),
        json!({"type": "resource_link", "uri": "test://a", "name": "a", "_meta": {"k": [1]}}),
        json!({"type": "resource", "resource": {"uri": "test://b", "mimeType": "text/plain", "text": "b"}}),
        json!({"type": "of tomorrow", "anything": {"deep": null}}),
    ];
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        for (seq, block) in (0_u64..).zip(&blocks) {
            scene.sends(json!({"taskId": "t1", "seq": seq, "content": [block], "_meta": related("t1")})).await;
            let Some(Event::Chunk(partial)) = next_notable(&mut scene.call).await else { panic!("a partial") };
            assert_eq!((partial.seq, partial.blocks(), partial.text()), (seq, vec![block.clone()], String::new()), "{kind:?}");
        }
        assert_eq!(scene.ends("done").await, ["done: done"], "{kind:?}");
    }
}

#[tokio::test]
async fn rule_10_a_number_that_came_before_is_dropped() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        for (seq, said) in
            [(0, "one"), (0, "one"), (1, "two"), (1, "another two"), (0, "another one"), (2, "three"), (1, "two"), (2, "three")]
        {
            scene.partial(seq, said).await;
        }
        scene.partial(3, "four").await;
        assert_eq!(scene.next_events(4).await, ["0 one", "1 two", "2 three", "3 four"], "{kind:?}");
        assert_eq!(scene.ends("done").await, ["done: done"], "{kind:?}");
    }
}

#[tokio::test]
async fn rule_11_blocks_of_one_partial_stay_together_and_in_order() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        let link = json!({"type": "resource_link", "uri": "test://b", "name": "b"});
        let blocks = vec![text("a"), link, text("b"), text("c")];
        scene.sends(json!({"taskId": "t1", "seq": 0, "content": blocks})).await;
        scene.partial(1, "d").await;
        let Some(Event::Chunk(partial)) = next_notable(&mut scene.call).await else { panic!("a partial") };
        assert_eq!((partial.seq, partial.blocks(), partial.text().as_str()), (0, blocks, "abc"), "{kind:?}");
        assert_eq!(scene.next_events(1).await, ["1 d"], "{kind:?}");
        assert_eq!(scene.ends("done").await, ["done: done"], "{kind:?}");
    }
}

// Which task, and which stream.

#[tokio::test]
async fn rule_unknown_tasks_are_nobodys() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        scene.sends(with_members(partial(0, "of somebody else"), json!({"taskId": "unknown"}))).await;
        scene.partial(0, "one").await;
        scene.sends(with_members(partial(1, "of somebody else"), json!({"taskId": "T1"}))).await;
        scene.partial(1, "two").await;
        assert_eq!(scene.next_events(2).await, ["0 one", "1 two"], "{kind:?}");
        assert_eq!(scene.ends("done").await, ["done: done"], "{kind:?}");
    }
}

#[tokio::test]
async fn rule_a_partial_that_comes_before_its_task_is_known_does_no_harm() {
    let script = scripted().await;
    let (client, mut stand) = stood(&script, options(&script), partials()).await;
    send_partial(&mut stand, partial(0, "one")).await;
    let (mut call, wait) = begun(&script, &client, "t1").await;
    send_partial(&mut stand, partial(1, "two")).await;
    let mut briefs = script.as_time_passes("output", 10 * MS, next_briefs(&mut call, 2)).await;
    wait.result(ended("t1", "done")).await;
    briefs.extend(script.as_time_passes("the end", 10 * MS, rest(&mut call)).await);
    // The chunk may be kept, or be reported as a gap.
    assert!(briefs == ["0 one", "1 two", "done: done"] || briefs == ["gap 0..1", "1 two", "done: done"], "{briefs:?}");
}

#[tokio::test]
async fn rule_each_task_has_numbers_of_its_own() {
    let script = scripted().await;
    script.stop_answering("tasks/get");
    script.may_remain("tasks/get");
    let (client, mut stand) = stood(&script, options(&script), partials()).await;
    let (mut one, one_wait) = begun(&script, &client, "t1").await;
    let (mut two, mut two_wait) = begun(&script, &client, "t2").await;
    let of_two = |seq: u64, said: &str| with_members(partial(seq, said), json!({"taskId": "t2"}));
    send_partial(&mut stand, partial(0, "a")).await;
    send_partial(&mut stand, of_two(0, "x")).await;
    send_partial(&mut stand, of_two(1, "y")).await;
    send_partial(&mut stand, partial(1, "b")).await;
    // Also where the other one is waited for.
    send_partial(&mut two_wait, of_two(2, "z")).await;
    send_partial(&mut two_wait, partial(2, "c")).await;
    assert_eq!(next_briefs(&mut one, 3).await, ["0 a", "1 b", "2 c"]);
    assert_eq!(next_briefs(&mut two, 3).await, ["0 x", "1 y", "2 z"]);
    one_wait.result(ended("t1", "one")).await;
    two_wait.result(ended("t2", "two")).await;
    let ends = script.as_time_passes("the ends", 10 * MS, async { (rest(&mut one).await, rest(&mut two).await) }).await;
    assert_eq!(ends, (vec!["done: one".to_owned()], vec!["done: two".to_owned()]));
}

#[tokio::test]
async fn rule_what_comes_on_both_streams_counts_once_and_in_order() {
    let mut scene = Scene::at(StreamKind::Stand).await;
    // The later on one stream, the earlier on the other, and all of them twice.
    for (seq, said) in [(1, "two"), (3, "four")] {
        scene.partial(seq, said).await;
    }
    for (seq, said) in [(0, "one"), (1, "two"), (2, "three"), (3, "four")] {
        send_partial(&mut scene.wait, partial(seq, said)).await;
    }
    for (seq, said) in [(0, "one"), (2, "three")] {
        scene.partial(seq, said).await;
    }
    assert_eq!(next_briefs(&mut scene.call, 4).await, ["0 one", "1 two", "2 three", "3 four"]);
    scene.partial(4, "five").await;
    assert_eq!(next_briefs(&mut scene.call, 1).await, ["4 five"]);
    assert_eq!(scene.ends("done").await, ["done: done"]);
}

#[tokio::test]
async fn rule_what_a_resumed_stream_repeats_is_dropped() {
    let mut scene = Scene::at(StreamKind::Wait).await;
    let id = scene.wait.id.clone();
    let event = |seq: u64, said: &str| json!({"jsonrpc": "2.0", "method": "notifications/tasks/partial", "params": partial(seq, said)});
    scene.wait.event_with_id("w:0", event(0, "one")).await;
    scene.wait.event_with_id("w:1", event(1, "two")).await;
    assert_eq!(scene.next_events(2).await, ["0 one", "1 two"]);
    let Scene { script, client: _client, mut call, wait, .. } = scene;
    wait.cut();
    let again = script.as_time_passes("the wait", 10 * MS, comes_back(&script)).await;
    assert_eq!(again.last_event_id(), Some("w:1"));
    let mut wait = again.sse().await;
    for (seq, said) in [(0, "one"), (1, "two"), (2, "three")] {
        wait.event_with_id(&format!("w:{seq}"), event(seq, said)).await;
    }
    wait.event_with_id("w:3", response(&id, ended("t1", "done"))).await;
    wait.end().await;
    assert_eq!(rest(&mut call).await, ["2 three", "done: done"]);
}

#[tokio::test]
async fn rule_what_a_new_wait_does_not_repeat_is_lost_and_told_to_be() {
    let mut scene = Scene::at(StreamKind::Wait).await;
    scene.partial(0, "one").await;
    assert_eq!(scene.next_events(1).await, ["0 one"]);
    let Scene { script, client: _client, mut call, wait, .. } = scene;
    wait.cut();
    let again = script.as_time_passes("another wait", 10 * MS, script.expect_of("tasks/result", "t1")).await;
    let mut wait = again.sse().await;
    send_partial(&mut wait, partial(3, "four")).await;
    wait.result(ended("t1", "done")).await;
    let briefs = script.as_time_passes("the end", 10 * MS, rest(&mut call)).await;
    assert_eq!(briefs, ["gap 1..3", "3 four", "done: done"]);
}

#[tokio::test]
async fn rule_the_first_one_that_is_wanted_is_where_a_reader_begins() {
    let script = scripted().await;
    let client = joined(&script, options(&script), partials()).await;
    let call = made_by(&script, &client, "t1").await;
    let mut reference = call.detach().expect("it is a task");
    for (next, first, expected) in [(2, 0, vec!["2 <2>", "3 <3>"]), (2, 2, vec!["2 <2>", "3 <3>"]), (2, 3, vec!["gap 2..3", "3 <3>"])] {
        reference.next = next;
        let mut call = with_timeout("the run", client.attach(&reference)).await.expect("a run");
        let mut wait = waited(&script, &mut call, "t1").await.sse().await;
        for seq in first..4 {
            send_partial(&mut wait, partial(seq, &format!("<{seq}>"))).await;
        }
        wait.result(ended("t1", "done")).await;
        let mut briefs = script.as_time_passes("the end", 10 * MS, rest(&mut call)).await;
        assert_eq!(briefs.pop().as_deref(), Some("done: done"));
        assert_eq!(briefs, expected, "wanted from {next} on, and told from {first} on");
    }
}

#[tokio::test]
async fn rule_after_it_was_cancelled_nothing_more_is_handed_out() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        scene.partial(0, "one").await;
        assert_eq!(scene.next_events(1).await, ["0 one"]);
        let off = shown("t1", "cancelled");
        let playing = async {
            scene.script.always("tasks/get", off.clone());
            scene.script.expect_of("tasks/cancel", "t1").await.result(off.clone()).await;
        };
        let (cancelled, ()) = with_timeout("the answer", async { tokio::join!(scene.call.cancel(), playing) }).await;
        cancelled.expect("asked for");
        scene.events().event(status(shown("t1", "cancelled"))).await;
        scene.partial(1, "late").await;
        let Scene { script, client: _client, mut call, wait, stand: _stand, .. } = scene;
        wait.error(-32603, "Task was cancelled", Value::Null).await;
        let briefs = script.as_time_passes("the end", 10 * MS, rest(&mut call)).await;
        assert!(briefs.iter().all(|brief| brief != "1 late") || kind == StreamKind::Stand, "{kind:?}: {briefs:?}");
        assert!(briefs.last().is_some_and(|brief| brief.starts_with("cancelled")), "{kind:?}: {briefs:?}");
    }
}

// Our own server.

/// Writes so many chunks at once.
fn writes(count: u64) -> Tool {
    let writes = tool("writes", &count, |count, ctx| async move {
        for n in 0..count {
            ctx.text(format!("<{n}>")).await?;
        }
        Ok("done")
    });
    writes.streams().task(TaskMode::Always)
}

#[tokio::test]
async fn ours_every_chunk_comes_once_and_in_order() {
    const CHUNKS: u64 = 1_000;
    let server = TestServer::start_with(registry([writes(CHUNKS)]), uncoalesced(), std::sync::Arc::new(SystemClock)).await;
    for target in ways(&server) {
        let client = client_of(target.clone(), Options::default()).await;
        assert!(client.server_info().pushes_output);
        let mut call = with_timeout("the start", client.start("writes", json!({}))).await.expect("a run");
        let (mut all, mut next) = (String::new(), 0);
        loop {
            match take(&mut call, &mut all).await {
                Event::Chunk(partial) => {
                    assert_eq!(partial.seq, next, "{target}");
                    next += 1;
                }
                Event::Task(_) => {}
                Event::Done(_) => break,
                other => panic!("{target}: {other:?}"),
            }
        }
        assert_eq!(all, (0..CHUNKS).map(|n| format!("<{n}>")).collect::<String>(), "{target}");
        assert_eq!(call.reference().map(|reference| reference.next), Some(next));
    }
}

#[tokio::test]
async fn ours_a_reader_that_is_cut_off_ten_times_has_every_chunk_once() {
    let mut harness = ToolHarness::of(Config::default(), Tool::streams).await;
    let between = Between::new(harness.server.port, b"").await;
    let client = client_of(between.target(), impatient()).await;
    let (call, mut run) = with_timeout("the start", async { tokio::join!(client.start("writes", json!({})), harness.run()) }).await;
    let mut call = call.expect("a run");
    assert!(matches!(next_notable(&mut call).await, Some(Event::Task(_))));
    let mut seen = 0;
    for cut in 0..10 {
        for n in 0..3 {
            run.writes(&format!("<{}>", cut * 3 + n)).await;
        }
        // Now and then nothing of it has been read.
        let until = if cut % 4 == 3 { seen } else { cut * 3 + cut % 3 };
        while seen < until {
            assert_eq!(next_briefs(&mut call, 1).await, [format!("{seen} <{seen}>")]);
            seen += 1;
        }
        between.cut();
    }
    run.ends("done");
    let mut expected: Vec<String> = (seen..30).map(|n| format!("{n} <{n}>")).collect();
    expected.push("done: done".to_owned());
    assert_eq!(rest(&mut call).await, expected);
}

#[tokio::test]
async fn ours_output_of_a_task_that_ended_unseen_is_read_all_the_same() {
    for way in 0..2 {
        let mut harness = ToolHarness::of(Config::default(), Tool::streams).await;
        let client = client_of(ways(&harness.server)[way].clone(), Options::default()).await;
        let (call, mut run) = with_timeout("the start", async { tokio::join!(client.start("writes", json!({})), harness.run()) }).await;
        let mut call = call.expect("a run");
        assert!(matches!(next_notable(&mut call).await, Some(Event::Task(_))));
        run.writes("<0>").await;
        assert_eq!(next_briefs(&mut call, 1).await, ["0 <0>"]);
        let left = call.detach().expect("a task");
        for n in 1..4 {
            run.writes(&format!("<{n}>")).await;
        }
        run.ends("done");
        let task = left.task.clone().expect("a name");
        while with_timeout("a look", client.task(&task)).await.expect("it is there").outcome.is_none() {}
        // In another session, in which nothing was ever pushed of it.
        let other = client_of(ways(&harness.server)[way].clone(), Options::default()).await;
        let mut call = with_timeout("the task", other.attach(&left)).await.expect("a run");
        assert!(matches!(next_notable(&mut call).await, Some(Event::Task(_))));
        assert_eq!(rest(&mut call).await, ["1 <1>", "2 <2>", "3 <3>", "done: done"]);
    }
}

#[tokio::test]
async fn ours_tells_nothing_to_who_does_not_want_it() {
    let server = TestServer::start(registry([writes(10)])).await;
    for target in ways(&server) {
        let client = client_of(target, Options { stream_output: false, ..Options::default() }).await;
        assert!(!client.server_info().pushes_output);
        let mut call = with_timeout("the start", client.start("writes", json!({}))).await.expect("a run");
        assert!(matches!(next_notable(&mut call).await, Some(Event::Task(_))));
        assert_eq!(rest(&mut call).await, ["done: done"]);
    }
}

#[tokio::test]
async fn ours_is_picked_up_by_another_client_behind_what_was_read() {
    let mut harness = ToolHarness::of(Config::default(), Tool::streams).await;
    for way in 0..2 {
        let target = ways(&harness.server)[way].clone();
        let client = client_of(target.clone(), Options::default()).await;
        let (call, mut run) = with_timeout("the start", async { tokio::join!(client.start("writes", json!({})), harness.run()) }).await;
        let mut call = call.expect("a run");
        assert!(matches!(next_notable(&mut call).await, Some(Event::Task(_))));
        for n in 0..4 {
            run.writes(&format!("<{n}>")).await;
        }
        assert_eq!(next_briefs(&mut call, 2).await, ["0 <0>", "1 <1>"]);
        let reference = call.detach().expect("it is a task");
        assert_eq!(reference.next, 2);
        // Another process would have a session of its own.
        let other = client_of(target, Options::default()).await;
        let mut call = with_timeout("the run", other.attach(&reference)).await.expect("a run");
        assert!(matches!(next_notable(&mut call).await, Some(Event::Task(_))));
        assert_eq!(next_briefs(&mut call, 2).await, ["2 <2>", "3 <3>"]);
        run.writes("<4>").await;
        run.ends("done");
        assert_eq!(rest(&mut call).await, ["4 <4>", "done: done"]);
        // And whoever comes after the end has the end.
        let mut call = with_timeout("the run", other.attach(&reference)).await.expect("a run");
        assert_eq!(last(&mut call).await, "done: done");
    }
}
