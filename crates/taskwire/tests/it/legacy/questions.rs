//! Questions of tasks and the session stream: each is asked on one open stream, and on another one when that is gone. What a stream
//! that was cut off had yet to deliver comes on the standing one.

use std::sync::Arc;

use serde_json::{Value, json};
use taskwire::{
    core::Limits,
    server::Config,
    tool::{Answer, Content, Ctx, TaskMode, ToolError},
};
use tokio::task::JoinHandle;

use crate::{
    kit::{Client, TempDir, TestServer, manual_clock, with_timeout},
    legacy::{
        input::{FORM, asks, open_gate},
        kit::{LegacySession, Sse},
        partials::{next_partial, prime, streaming},
        streamed::messages_until,
        tasks::{awaiting, brief, is_response, related, story, until_is},
    },
    tasks::{accept, name_form, name_in, registry, reopened, tool, until_crash},
    tool_harness::{ToolHarness, ToolRun, large, large_chunks, text_of, uncoalesced},
};

/// A task of a session that can be asked.
struct Scene {
    harness: ToolHarness,
    legacy: LegacySession,
    id: String,
    run: ToolRun,
}

impl Scene {
    async fn new() -> Self {
        let mut harness = ToolHarness::new().await;
        let legacy = LegacySession::open(&harness.server).await;
        let id = legacy.start("writes", json!({})).await;
        let run = harness.run().await;
        Self { harness, legacy, id, run }
    }

    /// Has the task ask for a name.
    fn asks(&self) -> JoinHandle<Result<Answer, ToolError>> {
        let ctx = self.run.ctx.clone();
        tokio::spawn(async move { ctx.ask("name", name_form("Name?")).await })
    }

    /// The task asks, and this stream has the question.
    async fn asked_on(&self, events: &mut Sse) -> (JoinHandle<Result<Answer, ToolError>>, Value) {
        let asking = self.asks();
        let question = events.until(FORM).await;
        assert_eq!(question["params"]["_meta"], related(&self.id), "{question}");
        (asking, question)
    }

    /// Reads a stream up to a status message that the task sets now. Nothing before it may be a question.
    async fn says(&self, text: &str, events: &mut Sse) {
        self.run.ctx.status(text).await.expect("it goes on");
        loop {
            let message = events.next().await.unwrap_or_else(|| panic!("the stream ended before {text}"));
            assert_ne!(message["method"], FORM, "it was asked once more: {message}");
            if message["params"]["statusMessage"] == text {
                return;
            }
        }
    }

    /// Answers the question, ends the task, and gives what its result is.
    async fn answers(&mut self, question: &Value, asking: JoinHandle<Result<Answer, ToolError>>) -> String {
        self.legacy.answer(question, accept("Ada")).await;
        let answer = with_timeout("the answer", asking).await.expect("no panic").expect("an answer");
        self.run.ends(name_in(&answer));
        // Not by waiting for the result: messages for the other stream would go there.
        until_is(&self.legacy, &self.id, "completed").await;
        text_of(&self.legacy.result(&self.id).await["content"])
    }
}

/// How many of these messages are questions.
fn questions(messages: &[Value]) -> usize {
    messages.iter().filter(|message| message["method"] == FORM).count()
}

// On which stream a question is asked.

#[tokio::test]
async fn a_question_comes_on_the_standing_stream_where_nobody_waits_for_the_result() {
    let server = TestServer::start(registry([asks(&open_gate())])).await;
    let legacy = LegacySession::open(&server).await;
    let mut stand = legacy.open_session_stream().await;
    let id = legacy.start("asks", json!({})).await;
    let question = stand.until(FORM).await;
    assert!(question["id"].is_string(), "{question}");
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    let params = json!({"mode": "form", "message": "Name?", "requestedSchema": schema, "_meta": related(&id)});
    assert_eq!(question["params"], params);
    assert_eq!(legacy.get(&id).await["status"], "input_required");
    legacy.answer(&question, accept("Ada")).await;
    let messages = messages_until(&mut stand, &id, "completed").await;
    assert_eq!(questions(&messages), 0, "it is asked once: {messages:?}");
    assert_eq!(text_of(&legacy.result(&id).await["content"]), "accept Ada");
}

#[tokio::test]
async fn a_question_that_the_standing_stream_asked_is_not_asked_again_while_that_lives() {
    let mut scene = Scene::new().await;
    let mut stand = scene.legacy.open_session_stream().await;
    let (asking, question) = scene.asked_on(&mut stand).await;
    let mut events = awaiting(&scene.legacy, &scene.id).await;
    scene.says("still here", &mut events).await;
    assert_eq!(scene.answers(&question, asking).await, "Ada");
    let rest = events.rest().await;
    assert_eq!(questions(&rest), 0, "{rest:?}");
    assert_eq!(brief(rest.last().expect("a response")), "= Ada");
}

#[tokio::test]
async fn a_question_is_asked_by_who_waits_for_the_result_when_the_standing_stream_is_cut_off() {
    let mut scene = Scene::new().await;
    let mut stand = scene.legacy.open_session_stream().await;
    let (asking, question) = scene.asked_on(&mut stand).await;
    let mut events = awaiting(&scene.legacy, &scene.id).await;
    scene.says("still here", &mut events).await;
    drop(stand);
    let again = events.until(FORM).await;
    assert_eq!(again["params"], question["params"]);
    assert_ne!(again["id"], question["id"], "another stream, another name");
    assert_eq!(scene.answers(&again, asking).await, "Ada");
    let rest = events.rest().await;
    assert_eq!(questions(&rest), 0, "{rest:?}");
}

#[tokio::test]
async fn a_question_is_asked_on_the_standing_stream_when_who_waited_for_the_result_is_cut_off() {
    let mut scene = Scene::new().await;
    let mut stand = scene.legacy.open_session_stream().await;
    let mut events = awaiting(&scene.legacy, &scene.id).await;
    prime(&mut events).await;
    let (asking, question) = scene.asked_on(&mut events).await;
    drop(events);
    let again = stand.until(FORM).await;
    assert_eq!(again["params"], question["params"]);
    assert_ne!(again["id"], question["id"], "another stream, another name");
    // Either name will do.
    assert_eq!(scene.answers(&question, asking).await, "Ada");
    let messages = messages_until(&mut stand, &scene.id, "completed").await;
    assert_eq!(questions(&messages), 0, "{messages:?}");
}

#[tokio::test]
async fn a_new_standing_stream_asks_what_is_open() {
    let mut scene = Scene::new().await;
    let mut stand = scene.legacy.open_session_stream().await;
    let (asking, question) = scene.asked_on(&mut stand).await;
    for is_cut in [true, false] {
        // Cut off, or replaced.
        let before = stand;
        if is_cut {
            drop(before);
            stand = scene.legacy.open_session_stream().await;
        } else {
            stand = scene.legacy.open_session_stream().await;
            drop(before);
        }
        assert_eq!(stand.until(FORM).await["params"], question["params"], "cut off first: {is_cut}");
        scene.says(if is_cut { "once" } else { "twice" }, &mut stand).await;
    }
    assert_eq!(scene.answers(&question, asking).await, "Ada");
    let messages = messages_until(&mut stand, &scene.id, "completed").await;
    assert_eq!(questions(&messages), 0, "{messages:?}");
}

#[tokio::test]
async fn a_new_standing_stream_asks_what_is_open_however_much_else_it_has_to_tell() {
    let mut scene = Scene::new().await;
    let mut stand = scene.legacy.open_session_stream().await;
    let (asking, question) = scene.asked_on(&mut stand).await;
    drop(stand);
    // More than is read at a time.
    scene.legacy.start("writes", json!({})).await;
    let other = scene.harness.run().await;
    for n in 0..100 {
        other.ctx.status(n.to_string()).await.expect("it goes on");
    }
    let mut stand = scene.legacy.open_session_stream().await;
    assert_eq!(stand.until(FORM).await["params"], question["params"]);
    assert_eq!(scene.answers(&question, asking).await, "Ada");
}

#[tokio::test]
async fn a_standing_stream_that_goes_on_asks_what_its_reader_has_not_seen() {
    for has_seen_it in [false, true] {
        let mut scene = Scene::new().await;
        let mut stand = scene.legacy.open_session_stream().await;
        let begin = prime(&mut stand).await;
        let (asking, question) = scene.asked_on(&mut stand).await;
        let last = stand.last_id.clone().expect("an id");
        assert_ne!(begin, last, "a question is a place to come back to");
        drop(stand);
        let mut stand = scene.legacy.resume(if has_seen_it { &last } else { &begin }).await;
        if !has_seen_it {
            assert_eq!(stand.until(FORM).await, question, "what follows is what followed");
        }
        scene.says("still here", &mut stand).await;
        assert_eq!(scene.answers(&question, asking).await, "Ada");
        let messages = messages_until(&mut stand, &scene.id, "completed").await;
        assert_eq!(questions(&messages), 0, "{messages:?}");
    }
}

#[tokio::test]
async fn a_question_waits_for_the_stream_that_is_opened_first() {
    for stands in [true, false] {
        let mut scene = Scene::new().await;
        let asking = scene.asks();
        until_is(&scene.legacy, &scene.id, "input_required").await;
        let mut events = if stands { scene.legacy.open_session_stream().await } else { awaiting(&scene.legacy, &scene.id).await };
        let question = events.until(FORM).await;
        assert_eq!(question["params"]["_meta"], related(&scene.id));
        scene.says("still here", &mut events).await;
        assert_eq!(scene.answers(&question, asking).await, "Ada", "on the session stream: {stands}");
    }
}

// After a crash.

#[test]
fn a_question_that_nobody_could_be_asked_is_asked_after_a_crash() {
    let (dir, clock, gate) = (Arc::new(TempDir::new()), manual_clock(), open_gate());
    let tools = || registry([asks(&gate).retry_on_interrupt()]);
    let (legacy, id) = until_crash(async {
        let server = TestServer::start_in(dir.clone(), tools(), Config::default(), Arc::new(clock.clone())).await;
        let legacy = LegacySession::open(&server).await;
        let id = legacy.start("asks", json!({})).await;
        until_is(&legacy, &id, "input_required").await;
        (legacy, id)
    });
    until_crash(async {
        let server = reopened(&dir, tools(), Config::default(), &clock).await;
        let legacy = legacy.at(server.port);
        let mut stand = legacy.open_session_stream().await;
        let question = stand.until(FORM).await;
        assert_eq!(question["params"]["_meta"], related(&id));
        legacy.answer(&question, accept("Ada")).await;
        let messages = messages_until(&mut stand, &id, "completed").await;
        assert_eq!(questions(&messages), 0, "{messages:?}");
        assert_eq!(text_of(&legacy.result(&id).await["content"]), "accept Ada");
    });
}

#[test]
fn what_happened_before_there_was_a_standing_stream_is_told_after_a_crash_too() {
    let (dir, clock) = (Arc::new(TempDir::new()), manual_clock());
    let tools = || {
        let writes = tool("writes", &(), |(), ctx: Ctx| async move {
            for text in ["a", "b"] {
                ctx.step([Content::text(text)], &text).await?;
            }
            Ok("done")
        });
        registry([writes.task(TaskMode::Always).streams()])
    };
    let (legacy, id) = until_crash(async {
        let server = TestServer::start_in(dir.clone(), tools(), uncoalesced(), Arc::new(clock.clone())).await;
        let legacy = LegacySession::declaring(&server, streaming()).await;
        let id = legacy.start("writes", json!({})).await;
        until_is(&legacy, &id, "completed").await;
        (legacy, id)
    });
    until_crash(async {
        let server = reopened(&dir, tools(), uncoalesced(), &clock).await;
        let mut stand = legacy.at(server.port).open_session_stream().await;
        let messages = messages_until(&mut stand, &id, "completed").await;
        let messages: Vec<String> = story(&messages).into_iter().filter(|brief| brief != "working").collect();
        assert_eq!(messages, ["0 a", "1 b", "completed"]);
    });
}

// What a stream that was cut off had yet to deliver.

#[tokio::test]
async fn the_standing_stream_goes_on_with_a_task_whose_result_nobody_waits_for_any_more() {
    let mut harness = ToolHarness::of(uncoalesced(), |tool| tool.task(TaskMode::Always).streams()).await;
    let legacy = LegacySession::declaring(&harness.server, streaming()).await;
    let mut stand = legacy.open_session_stream().await;
    let id = legacy.start("writes", json!({})).await;
    let mut run = harness.run().await;
    let message = legacy.message(legacy.next_id(), "tasks/result", json!({"taskId": id}));
    let mut events = legacy.stream_message(&message).await;
    prime(&mut events).await;
    run.writes("a").await;
    assert_eq!(next_partial(&mut events).await["seq"], 0);
    legacy.notify("notifications/cancelled", json!({"requestId": message["id"]})).await;
    let rest = events.rest().await;
    assert!(!rest.iter().any(is_response), "{rest:?}");
    run.writes("b").await;
    run.ends("done");
    let messages = messages_until(&mut stand, &id, "completed").await;
    let messages: Vec<String> = story(&messages).into_iter().filter(|brief| brief != "working").collect();
    assert_eq!(messages, ["1 b", "completed"], "what was told elsewhere is not told again");
}

#[tokio::test]
async fn the_standing_stream_has_the_rest_of_a_task_whose_own_stream_was_cut_off() {
    const CHUNKS: u64 = 400;
    let mut harness = ToolHarness::of(large_chunks(Limits::DEFAULT), |tool| tool.task(TaskMode::Always).streams()).await;
    let legacy = LegacySession::declaring(&harness.server, streaming()).await;
    let mut stand = legacy.open_session_stream().await;
    let id = legacy.start("writes", json!({})).await;
    let mut run = harness.run().await;
    // Twelve megabytes are more than the sockets take in: who waits for the result and does not read holds its stream up.
    let message = legacy.message(legacy.next_id(), "tasks/result", json!({"taskId": id}));
    let client = Client::new(harness.server.port).with_receive_buffer(128 * 1024);
    let stalled = client.send(&legacy.headers(), message.to_string().as_bytes()).await;
    with_timeout("the beginning of the answer", stalled.readable()).await.expect("readable");
    for n in 0..CHUNKS {
        run.writes(&large(n)).await;
    }
    run.ends("done");
    until_is(&legacy, &id, "completed").await;
    drop(stalled);
    let mut messages = messages_until(&mut stand, &id, "completed").await;
    assert_eq!(messages.pop().map(|last| brief(&last)).as_deref(), Some("completed"));
    let numbers: Vec<u64> = messages
        .iter()
        .filter(|message| message["method"] == "notifications/tasks/partial")
        .map(|message| message["params"]["seq"].as_u64().expect("a number"))
        .collect();
    let first = *numbers.first().expect("there was more than the sockets took in");
    assert!(first > 0, "what was sent there is not sent here");
    assert_eq!(numbers, Vec::from_iter(first..CHUNKS), "without a gap, up to the end");
}
