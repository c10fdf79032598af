//! Calls under an idempotency key: the server announces them to a client that declares them, they go on without their connection,
//! and their caller can cancel them by the key from anywhere.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use taskwire::{clock::SystemClock, server::Config, tool::TaskMode};
use tokio::task::JoinHandle;

use crate::{
    kit::{Client, IDEMPOTENCY, KEY, PARTIALS, TASKS, TestServer, WAYS, Way, manual_clock, with_timeout},
    legacy::kit::{LATEST, LegacySession, initialize},
    pipe::Pipe,
    tasks::{Gate, quick, registry, two_callers},
};

/// The name of a handshake.
const OPENS: u64 = 1;
/// The name of a call.
const CALLS: u64 = 2;

/// The response to this request; what comes before it is passed over.
async fn response(pipe: &mut Pipe, id: u64) -> Value {
    loop {
        let line = pipe.next_line().await.expect("the stream goes on");
        let message: Value = serde_json::from_str(&line).expect("JSON");
        if message.get("method").is_none() && message["id"] == id {
            return message;
        }
    }
}

/// One connection of a caller.
enum Connection {
    Modern(Client),
    Legacy(LegacySession),
    ModernLines(Pipe),
    LegacyLines(Pipe),
}

impl Connection {
    async fn open(way: Way, server: &TestServer) -> Self {
        Self::open_as(way, server, None).await
    }

    /// With this token, where there are any.
    async fn open_as(way: Way, server: &TestServer, token: Option<&str>) -> Self {
        match way {
            Way::ModernHttp => Self::Modern(match token {
                Some(token) => server.client().with_token(token),
                None => server.client(),
            }),
            Way::LegacyHttp => Self::Legacy(LegacySession::of(server.port, token, LATEST, json!({})).await),
            Way::ModernLines => Self::ModernLines(Pipe::to(&server.server)),
            Way::LegacyLines => {
                let mut pipe = Pipe::to(&server.server);
                let params = initialize(LATEST, &json!({}));
                pipe.send(&json!({"jsonrpc": "2.0", "id": OPENS, "method": "initialize", "params": params})).await;
                with_timeout("the session", response(&mut pipe, OPENS)).await;
                pipe.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
                Self::LegacyLines(pipe)
            }
        }
    }

    /// Calls a tool, in the background, and gives the response. Ending that loses the connection.
    fn calls(self, tool: &str, key: Option<&str>) -> JoinHandle<Value> {
        let mut params = json!({"name": tool, "arguments": {}});
        if let Some(key) = key {
            params["_meta"] = json!({KEY: key});
        }
        tokio::spawn(async move {
            match self {
                Self::Modern(client) => client.raw("tools/call", params).await.json(),
                Self::Legacy(legacy) => legacy.messages("tools/call", params).await.pop().expect("a response"),
                Self::ModernLines(mut pipe) => {
                    pipe.send(&Client::new(0).message(CALLS, "tools/call", params)).await;
                    response(&mut pipe, CALLS).await
                }
                Self::LegacyLines(mut pipe) => {
                    pipe.send(&json!({"jsonrpc": "2.0", "id": CALLS, "method": "tools/call", "params": params})).await;
                    response(&mut pipe, CALLS).await
                }
            }
        })
    }

    /// Calls off what was called under this key. The request it names is none of this connection.
    async fn calls_off(&mut self, key: &str) {
        let params = json!({"requestId": 4711, "reason": "not needed any more", "_meta": {KEY: key}});
        let message = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        match self {
            Self::Modern(client) => {
                let response = client.post(&client.headers(&message), message.to_string().as_bytes()).await;
                assert_eq!((response.status, response.body.as_slice()), (202, &b""[..]));
            }
            Self::Legacy(legacy) => legacy.notify("notifications/cancelled", params).await,
            Self::ModernLines(pipe) | Self::LegacyLines(pipe) => pipe.send(&message).await,
        }
    }
}

/// What a call came to.
async fn answer(calling: JoinHandle<Value>) -> Value {
    with_timeout("the answer", calling).await.expect("no panic")
}

/// Loses the connection of a call.
async fn lose(calling: JoinHandle<Value>) {
    calling.abort();
    let ended = with_timeout("the loss", calling).await;
    assert!(ended.as_ref().is_err_and(tokio::task::JoinError::is_cancelled), "it was answered before: {ended:?}");
}

#[track_caller]
fn is_done(answer: &Value, way: Way) {
    assert_eq!(answer["result"]["content"][0]["text"], "done", "{way:?}: {answer}");
}

// Who learns of it.

#[tokio::test]
async fn that_calls_are_known_again_is_told_to_who_asks_for_it_and_nobody_else() {
    let server = TestServer::start(registry([quick("quick")])).await;
    for (declared, announced) in [
        (json!({}), json!({TASKS: {}})),
        (json!({"extensions": {TASKS: {}, PARTIALS: {}}}), json!({TASKS: {}, PARTIALS: {}})),
        (json!({"extensions": {IDEMPOTENCY: {}}}), json!({TASKS: {}, IDEMPOTENCY: {}})),
        (json!({"extensions": {TASKS: {}, PARTIALS: {}, IDEMPOTENCY: {}}}), json!({TASKS: {}, PARTIALS: {}, IDEMPOTENCY: {}})),
        // That is where the other era has it.
        (json!({"experimental": {IDEMPOTENCY: {}}}), json!({TASKS: {}})),
    ] {
        let discovered = server.plain_client().declaring(declared.clone()).ok("server/discover", json!({})).await;
        assert_eq!(discovered["capabilities"]["extensions"], announced, "{declared}");
    }
    for (declared, announced) in [
        (json!({}), None),
        (json!({"experimental": {}}), None),
        (json!({"experimental": {"other": {}}}), None),
        (json!({"extensions": {IDEMPOTENCY: {}}}), None),
        (json!({"experimental": {"other": {}, IDEMPOTENCY: {}}}), Some(json!({IDEMPOTENCY: {}}))),
    ] {
        let legacy = LegacySession::declaring(&server, declared.clone()).await;
        assert_eq!(legacy.init()["capabilities"].get("experimental"), announced.as_ref(), "{declared}");
    }
}

// What stops a call, and what does not.

#[tokio::test]
async fn a_held_call_is_cancelled_by_its_key_from_another_connection() {
    for way in WAYS {
        let gate = Gate::new();
        let server = TestServer::start(registry([gate.tool("slow").task(TaskMode::Never)])).await;
        let calling = Connection::open(way, &server).await.calls("slow", Some("k"));
        with_timeout("the tool", gate.started.wait()).await;
        let mut other = Connection::open(way, &server).await;
        // A key that nobody used is nothing to stop.
        other.calls_off("another").await;
        other.calls_off("k").await;
        with_timeout("the word to stop", gate.stopped.wait()).await;
        let answer = answer(calling).await;
        let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_default();
        assert!(answer["result"]["isError"] == true && text.contains("was cancelled"), "{way:?}: {answer}");
        assert_eq!(gate.runs(), 1, "{way:?}");
    }
}

#[tokio::test]
async fn nobody_calls_off_what_another_caller_called() {
    for way in [Way::ModernHttp, Way::LegacyHttp] {
        let gate = Gate::new();
        let tools = registry([gate.tool("slow").task(TaskMode::Never), quick("quick").task(TaskMode::Never)]);
        let server = TestServer::start_with(tools, two_callers(), Arc::new(SystemClock)).await;
        let calling = Connection::open_as(way, &server, Some("ann-token")).await.calls("slow", Some("k"));
        with_timeout("the tool", gate.started.wait()).await;
        let mut other = Connection::open_as(way, &server, Some("bob-token")).await;
        other.calls_off("k").await;
        // What is called under a key is written down, behind all that was asked for before.
        is_done(&answer(other.calls("quick", Some("k"))).await, way);
        assert!(!gate.stopped.is_sent(), "{way:?}");
        gate.go.send();
        is_done(&answer(calling).await, way);
    }
}

#[tokio::test]
async fn a_call_under_a_key_goes_on_without_its_connection() {
    for way in WAYS {
        let (gate, bare) = (Gate::new(), Gate::new());
        let tools = registry([gate.tool("slow").task(TaskMode::Never), bare.tool("bare").task(TaskMode::Never)]);
        // A key needs no time to linger.
        let config = Config { linger: Duration::ZERO, ..Config::default() };
        let server = TestServer::start_with(tools, config, Arc::new(manual_clock())).await;
        let calling = Connection::open(way, &server).await.calls("slow", Some("k"));
        with_timeout("the tool", gate.started.wait()).await;
        lose(calling).await;
        if matches!(way, Way::ModernHttp) {
            // A loss is a word to stop for any other call then.
            let calling = Connection::open(way, &server).await.calls("bare", None);
            with_timeout("the tool", bare.started.wait()).await;
            lose(calling).await;
            with_timeout("the word to stop", bare.stopped.wait()).await;
        }
        let again = Connection::open(way, &server).await.calls("slow", Some("k"));
        gate.go.send();
        is_done(&answer(again).await, way);
        assert_eq!((gate.runs(), gate.stopped.is_sent()), (1, false), "{way:?}");
    }
}
