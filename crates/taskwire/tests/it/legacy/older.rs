//! Clients of the two versions before 2025-11-25 take every event for a message. So they get nothing else: no event with an id alone,
//! none that makes them reconnect, and each call is answered on its own connection.
//!
//! Whoever reads a stream here panics at any other event ([`Sse::event`](super::kit::Sse::event)).

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use taskwire::{
    clock::ManualClock,
    server::{Config, LegacyConfig},
    tool::{Ctx, Progress, TaskMode, Tool},
};

use crate::{
    kit::{HOUR, SECOND, TestServer, manual_clock, with_timeout, without_followups},
    legacy::{
        kit::{LegacySession, Sse},
        streams::{call, events, held, text_for},
    },
    shutdown::settle,
    tasks::{Gate, quick, registry, tool},
};

const OLDER: [&str; 2] = ["2025-06-18", "2025-03-26"];
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const MODES: [TaskMode; 2] = [TaskMode::Auto, TaskMode::Never];

/// Calls are held for so long that no test has to care how fast its time passes.
fn config() -> Config {
    Config { hold: HOUR, ..Config::default() }
}

/// Streams last a second, where a client can come back.
fn reconnecting() -> Config {
    Config { legacy: LegacyConfig { reconnect_after: Some(SECOND), ..LegacyConfig::default() }, ..config() }
}

async fn start(tools: impl IntoIterator<Item = Tool>, config: Config) -> (TestServer, ManualClock) {
    let clock = manual_clock();
    (TestServer::start_with(registry(tools), config, Arc::new(clock.clone())).await, clock)
}

async fn open(server: &TestServer, version: &str) -> LegacySession {
    LegacySession::of(server.port, None, version, json!({})).await
}

/// The one message that still comes on a stream, which must be the response with this text.
async fn answered(sse: &mut Sse, message: &Value, text: &str) {
    let events = events(sse).await;
    assert_eq!(events.len(), 1, "{events:?}");
    let response = events[0].message.as_ref().expect("a message");
    assert_eq!(text_for(message, response), text);
}

#[tokio::test]
async fn a_call_that_is_held_is_given_signs_of_life_and_its_answer() {
    for version in OLDER {
        let gate = Gate::new();
        let (server, clock) = start([gate.tool("slow")], config()).await;
        let legacy = open(&server, version).await;
        let message = call(&legacy, "slow", json!({}));
        let mut sse = held(&legacy, &clock, &gate, &message).await;
        sse.read_prime().await;
        for _ in 0..2 {
            settle().await;
            clock.advance(KEEP_ALIVE);
            assert_eq!(sse.comment().await, "keep-alive", "{version}");
        }
        gate.go.send();
        answered(&mut sse, &message, "done").await;
    }
}

#[tokio::test]
async fn a_sign_of_life_behind_a_message_with_a_name_is_no_event() {
    for version in OLDER {
        let gate = Gate::new();
        let tells = tool("tells", &gate, |gate, ctx: Ctx| async move {
            ctx.progress(Progress::at(1.0)).await?;
            gate.go.wait().await;
            Ok("done")
        });
        let (server, clock) = start([tells], without_followups()).await;
        let legacy = open(&server, version).await;
        let message = call(&legacy, "tells", json!({"progressToken": "p"}));
        let mut sse = with_timeout("the stream", legacy.stream_message(&message)).await;
        sse.until("notifications/progress").await;
        assert!(sse.last_id.is_some(), "{version}: who is cut off can come back");
        settle().await;
        clock.advance(KEEP_ALIVE);
        assert_eq!(sse.comment().await, "keep-alive", "{version}");
        gate.go.send();
        answered(&mut sse, &message, "done").await;
    }
}

#[tokio::test]
async fn a_standing_stream_tells_messages_and_nothing_else_up_to_its_end() {
    for version in OLDER {
        let (tools, clock) = (registry([]), manual_clock());
        let mut server = TestServer::start_with(tools.clone(), reconnecting(), Arc::new(clock.clone())).await;
        let mut sse = open(&server, version).await.open_session_stream().await;
        for _ in 0..2 {
            settle().await;
            clock.advance(KEEP_ALIVE);
            assert_eq!(sse.comment().await, "keep-alive", "{version}: nobody is sent away who would not come back");
            tools.tool(quick("quick")).expect("a tool");
            let notification = sse.event().await.and_then(|event| event.message).expect("the stream goes on");
            assert_eq!(notification["method"], "notifications/tools/list_changed", "{version}");
        }
        server.stop();
        assert!(events(&mut sse).await.is_empty(), "{version}: it ends without a word");
    }
}

#[tokio::test]
async fn a_call_that_takes_longer_than_a_stream_may_last_is_answered_all_the_same() {
    for version in OLDER {
        for mode in MODES {
            let gate = Gate::new();
            let (server, clock) = start([gate.tool("slow").task(mode)], reconnecting()).await;
            let legacy = open(&server, version).await;
            let message = call(&legacy, "slow", json!({}));
            let mut sse = held(&legacy, &clock, &gate, &message).await;
            sse.read_prime().await;
            settle().await;
            clock.advance(10 * SECOND);
            settle().await;
            gate.go.send();
            answered(&mut sse, &message, "done").await;
        }
    }
}

#[tokio::test]
async fn a_call_whose_tool_would_send_its_caller_away_is_answered_all_the_same() {
    for version in OLDER {
        for mode in MODES {
            let gate = Gate::new();
            let leaves = tool("leaves", &gate, |gate, ctx: Ctx| async move {
                ctx.disconnect(SECOND);
                gate.started.send();
                gate.go.wait().await;
                ctx.disconnect(SECOND);
                Ok("done")
            });
            let (server, _clock) = start([leaves.task(mode)], config()).await;
            let legacy = open(&server, version).await;
            let message = call(&legacy, "leaves", json!({}));
            let mut sse = with_timeout("the stream", legacy.stream_message(&message)).await;
            sse.read_prime().await;
            with_timeout("the tool", gate.started.wait()).await;
            settle().await;
            gate.go.send();
            answered(&mut sse, &message, "done").await;
        }
    }
}

#[tokio::test]
async fn a_call_is_answered_on_its_connection_while_the_server_shuts_down() {
    for version in OLDER {
        for mode in MODES {
            let gate = Gate::new();
            let (mut server, clock) = start([gate.tool("slow").task(mode)], config()).await;
            let legacy = open(&server, version).await;
            let message = call(&legacy, "slow", json!({}));
            let mut sse = held(&legacy, &clock, &gate, &message).await;
            sse.read_prime().await;
            let mut other = LegacySession::open(&server).await.open_session_stream().await;
            server.stop();
            // By then everybody knows that it shuts down.
            events(&mut other).await;
            settle().await;
            if mode == TaskMode::Never {
                gate.go.send();
                answered(&mut sse, &message, "done").await;
                continue;
            }
            let events = events(&mut sse).await;
            assert_eq!(events.len(), 1, "{version}: {events:?}");
            let text = text_for(&message, events[0].message.as_ref().expect("a message"));
            assert!(text.contains("task_wait"), "{version}: {text}");
            assert!(!gate.stopped.is_sent(), "{version}: it has its time to finish");
            gate.go.send();
        }
    }
}

#[tokio::test]
async fn a_tool_that_must_be_a_task_is_refused_without_asking_for_what_the_version_has_not() {
    let (server, _clock) = start([quick("quick").task(TaskMode::Required)], config()).await;
    for version in OLDER {
        let legacy = open(&server, version).await;
        for call in [json!({"name": "quick", "arguments": {}}), json!({"name": "quick", "arguments": {}, "task": {}})] {
            let error = legacy.error("tools/call", call.clone()).await;
            assert_eq!(error["code"], -32601, "{version}: {error}");
            let message = error["message"].as_str().expect("a message");
            for words in ["`quick`", "clients that know tasks", "2025-11-25", "2026-07-28", "`task = \"always\"`"] {
                assert!(message.contains(words), "{version}, {call}: {message}");
            }
            assert!(!message.contains("add `task`"), "{version}, {call}: {message}");
        }
    }
    let error = LegacySession::open(&server).await.error("tools/call", json!({"name": "quick", "arguments": {}})).await;
    assert!(error["message"].as_str().is_some_and(|message| message.contains("add `task` to the parameters")), "{error}");
}
