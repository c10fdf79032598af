//! Sessions: how they begin and end, which requests belong to one, and what can be asked for in it.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};
use taskwire::{
    clock::ManualClock,
    server::{Config, LegacyConfig},
    tool::{Completion, Prompt, Registry, Resource, ResourceTemplate, TaskMode},
};

use crate::{
    kit::{Client, Response, TempDir, TestServer, manual_clock, with_timeout},
    legacy::{
        input::sampling,
        kit::{LATEST, LegacySession, initialize},
        partials::streaming,
        streams::{call, call_with_progress, response, text_for},
        tasks::{awaiting, refusal, until_is},
    },
    schema,
    tasks::{Gate, count, quick, registry, reopened, tool, two_callers, until_crash},
    tool_harness::{HOUR, ToolHarness, uncoalesced},
};

const MODERN: &str = "2026-07-28";
const CLAIM: &str = "io.modelcontextprotocol/protocolVersion";
pub(crate) const VERSIONS: [&str; 3] = [LATEST, "2025-06-18", "2025-03-26"];

type Headers = Vec<(String, String)>;

/// A server whose time stands still, or passes in leaps: calls are held to their end, however long that takes.
pub(crate) async fn start(tools: Registry, config: Config) -> (TestServer, ManualClock) {
    let (clock, config) = (manual_clock(), Config { followups: false, ..config });
    (TestServer::start_with(tools, config, Arc::new(clock.clone())).await, clock)
}

async fn quick_server() -> TestServer {
    TestServer::start(registry([quick("quick")])).await
}

pub(crate) fn with_legacy(legacy: LegacyConfig) -> Config {
    Config { legacy, ..Config::default() }
}

/// Headers with another value for one of them; without it if there is none.
fn set(mut headers: Headers, name: &str, value: Option<&str>) -> Headers {
    headers.retain(|(key, _)| !key.eq_ignore_ascii_case(name));
    headers.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    headers
}

async fn post(server: &TestServer, headers: &[(String, String)], message: &Value) -> Response {
    with_timeout("the response", Client::new(server.port).post(headers, message.to_string().as_bytes())).await
}

/// The status and the error code of a refusal.
#[track_caller]
pub(crate) fn refused(response: &Response) -> (u16, i64) {
    let message = response.json();
    assert!(message.get("result").is_none(), "this was served: {message}");
    (response.status, message["error"]["code"].as_i64().unwrap_or_else(|| panic!("no code in {message}")))
}

/// What an error says.
pub(crate) fn said(response: &Response) -> String {
    response.json()["error"]["message"].as_str().expect("a text").to_owned()
}

/// The headers of a client that has no session yet.
fn bare() -> Headers {
    let headers = [("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream")];
    headers.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

fn request(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
}

// The handshake.

#[tokio::test]
async fn each_version_of_the_era_is_agreed_on() {
    let config = Config { name: "tester".to_owned(), version: "7".to_owned(), ..Config::default() };
    let (server, _) = start(registry([quick("quick")]), config).await;
    for version in VERSIONS {
        let legacy = LegacySession::of(server.port, None, version, json!({})).await;
        assert_eq!(legacy.init()["protocolVersion"], version);
        assert_eq!(legacy.init()["serverInfo"], json!({"name": "tester", "version": "7"}));
        assert_eq!(legacy.init().get("instructions"), None);
        assert_eq!(legacy.call("quick", json!({})).await["content"][0]["text"], "done");
    }
}

#[tokio::test]
async fn a_version_that_is_not_spoken_is_answered_with_the_latest_of_the_era() {
    let server = quick_server().await;
    for version in ["2024-11-05", MODERN, "2025-11-26", "2099-01-01", "1.0.0", "latest"] {
        let legacy = LegacySession::of(server.port, None, version, json!({})).await;
        assert_eq!(legacy.init()["protocolVersion"], LATEST, "for {version}");
        assert_eq!(legacy.call("quick", json!({})).await["content"][0]["text"], "done");
    }
}

#[tokio::test]
async fn instructions_come_with_the_handshake() {
    let config = Config { instructions: Some("Be brief.".to_owned()), ..Config::default() };
    let (server, _) = start(registry([]), config).await;
    assert_eq!(LegacySession::open(&server).await.init()["instructions"], "Be brief.");
}

#[tokio::test]
async fn each_version_is_told_what_it_knows() {
    let server = quick_server().await;
    let mut expected = json!({"tools": {"listChanged": true}, "prompts": {"listChanged": true}, "completions": {}, "logging": {},
        "resources": {"subscribe": true, "listChanged": true}});
    for version in ["2025-03-26", "2025-06-18"] {
        assert_eq!(LegacySession::of(server.port, None, version, json!({})).await.init()["capabilities"], expected, "{version}");
    }
    expected["tasks"] = json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}});
    assert_eq!(LegacySession::open(&server).await.init()["capabilities"], expected);
}

#[tokio::test]
async fn drafts_are_told_of_to_those_who_declare_them() {
    let server = quick_server().await;
    let streaming = json!({"partial": {}});
    let responses = json!({"modes": ["task", "immediate", "streaming"]});
    for (with_partials, with_modes) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut tasks = json!({});
        if with_partials {
            tasks["streaming"] = streaming.clone();
        }
        if with_modes {
            tasks["responses"] = json!({"modes": ["streaming"]});
        }
        let announced = LegacySession::declaring(&server, json!({"tasks": tasks})).await.init()["capabilities"]["tasks"].clone();
        assert_eq!(announced.get("streaming"), with_partials.then_some(&streaming), "{announced}");
        assert_eq!(announced.get("responses"), with_modes.then_some(&responses), "{announced}");
        for version in ["2025-06-18", "2025-03-26"] {
            let older = LegacySession::of(server.port, None, version, json!({"tasks": tasks})).await;
            assert_eq!(older.init()["capabilities"].get("tasks"), None, "{version}");
        }
    }
}

#[tokio::test]
async fn who_declares_no_draft_sees_no_byte_of_one() {
    // That no message has one is checked wherever a message is read.
    for version in VERSIONS {
        let mut harness = ToolHarness::of(uncoalesced(), |tool| tool.task(TaskMode::Always).streams()).await;
        let legacy = LegacySession::of(harness.server.port, None, version, json!({"tasks": {"list": {}}})).await;
        legacy.ok("tools/list", json!({})).await;
        let mut standing = legacy.open_session_stream().await;
        let wants = json!({"responseModes": ["immediate", "streaming", "task"]});
        if version == LATEST {
            let created = legacy.task("writes", json!({}), wants).await;
            let id = created["task"]["taskId"].as_str().expect("a task").to_owned();
            let mut run = harness.run().await;
            let mut result = awaiting(&legacy, &id).await;
            run.writes("a").await;
            run.ctx.status("half way").await.expect("it goes on");
            run.writes("b").await;
            run.ends("all of it");
            assert_eq!(response(&mut result).await["result"]["content"][0]["text"], "all of it");
            let asked = legacy.ok("tasks/result", json!({"taskId": id, "lastSeqNr": 1})).await;
            assert_eq!(asked["content"][0]["text"], "all of it", "a member that it did not declare says nothing");
            assert_eq!(legacy.ok("tasks/result", json!({"taskId": id, "lastSeqNr": 0})).await, asked);
        } else {
            let message = call(&legacy, "writes", json!({"progressToken": 1}));
            let (mut sse, mut run) = call_with_progress(&mut harness, &legacy, &message).await;
            run.writes("a").await;
            run.ends("all of it");
            assert_eq!(text_for(&message, &response(&mut sse).await), "all of it");
        }
        harness.server.stop();
        standing.rest().await;
    }
}

#[tokio::test]
async fn sessions_have_names_that_nobody_can_guess() {
    let server = quick_server().await;
    let mut names = BTreeSet::new();
    for _ in 0..20 {
        let legacy = LegacySession::open(&server).await;
        assert!(legacy.session().len() >= 20, "{}", legacy.session());
        names.insert(legacy.session().to_owned());
    }
    assert_eq!(names.len(), 20);
}

#[tokio::test]
async fn modern_traffic_has_no_session_whatever_it_brings_along() {
    let server = quick_server().await;
    let legacy = LegacySession::open(&server).await;
    let client = server.client();
    let message = client.message(1, "server/discover", json!({}));
    let mut headers = client.headers(&message);
    headers.extend([("Mcp-Session-Id", legacy.session()), ("Last-Event-ID", "1")].map(|(key, value)| (key.to_owned(), value.to_owned())));
    let response = post(&server, &headers, &message).await;
    schema::check_response("server/discover", &response.json());
    assert_eq!((response.status, response.header("mcp-session-id")), (200, None));
    assert_eq!(response.json()["result"]["supportedVersions"], json!([MODERN]));
}

// To which era a message belongs.

#[tokio::test]
async fn a_handshake_under_a_modern_header_contradicts_itself() {
    let server = quick_server().await;
    let message = request("initialize", initialize(LATEST, &json!({})));
    for version in [MODERN, "2027-01-01"] {
        let response = post(&server, &set(bare(), "MCP-Protocol-Version", Some(version)), &message).await;
        assert_eq!((refused(&response), response.header("mcp-session-id")), ((400, -32020), None), "{version}");
    }
    for version in [None, Some(LATEST), Some("2025-03-26")] {
        let response = post(&server, &set(bare(), "MCP-Protocol-Version", version), &message).await;
        assert!(response.status == 200 && response.header("mcp-session-id").is_some(), "{version:?}: {}", response.json());
    }
}

#[tokio::test]
async fn a_handshake_that_describes_itself_as_modern_is_a_modern_request() {
    let server = quick_server().await;
    let client = server.client();
    let message = client.message(1, "initialize", initialize(LATEST, &json!({})));
    let response = post(&server, &client.headers(&message), &message).await;
    assert_eq!((response.status, response.code(), response.header("mcp-session-id")), (404, -32601, None));
    // Any other claim is none.
    for claim in [json!(LATEST), json!("2025-03-26"), json!(5), Value::Null] {
        let mut params = initialize(LATEST, &json!({}));
        params["_meta"] = json!({CLAIM: claim});
        let response = post(&server, &bare(), &request("initialize", params)).await;
        assert!(response.status == 200 && response.header("mcp-session-id").is_some(), "{claim}: {}", response.json());
    }
}

#[tokio::test]
async fn a_request_that_describes_itself_is_modern_whatever_its_session() {
    let server = quick_server().await;
    let legacy = LegacySession::open(&server).await;
    let client = server.client();
    let good = client.message(1, "tools/list", json!({}));
    let in_session = |headers: Headers| set(headers, "Mcp-Session-Id", Some(legacy.session()));
    let served = post(&server, &in_session(client.headers(&good)), &good).await;
    schema::check_response("tools/list", &served.json());
    let claiming = |claim: Value| {
        let mut message = good.clone();
        message["params"]["_meta"][CLAIM] = claim;
        message
    };
    let version = |value| set(in_session(client.headers(&good)), "MCP-Protocol-Version", value);
    let mut undeclared = good.clone();
    undeclared["params"]["_meta"] = json!({CLAIM: MODERN});
    for (what, headers, message, expected) in [
        ("a claim that is no text", version(Some(MODERN)), claiming(json!(5)), (400, -32602)),
        ("no capabilities", version(Some(MODERN)), undeclared, (400, -32602)),
        ("no header", version(None), good.clone(), (400, -32020)),
        ("a header of another era", version(Some(LATEST)), good.clone(), (400, -32020)),
        ("a claim of this era", version(Some(LATEST)), claiming(json!(LATEST)), (400, -32022)),
        ("an unknown version", version(Some("2027-01-01")), claiming(json!("2027-01-01")), (400, -32022)),
    ] {
        assert_eq!(refused(&post(&server, &headers, &message).await), expected, "{what}");
    }
    // Methods of sessions are not there for it.
    for method in ["ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "tasks/list", "tasks/result"] {
        let message = client.message(1, method, json!({"level": "info", "uri": "test://a", "taskId": "0"}));
        let response = post(&server, &in_session(client.headers(&message)), &message).await;
        assert_eq!((response.status, response.code()), (404, -32601), "{method}");
    }
    assert_eq!(legacy.ok("ping", json!({})).await, json!({}));
}

#[tokio::test]
async fn a_request_under_a_modern_header_that_does_not_describe_itself_is_refused_whatever_its_session() {
    let server = quick_server().await;
    let legacy = LegacySession::open(&server).await;
    for version in [MODERN, "2027-01-01"] {
        let headers = set(legacy.headers(), "MCP-Protocol-Version", Some(version));
        let response = post(&server, &headers, &request("tools/list", json!({}))).await;
        assert_eq!(refused(&response), (400, -32602), "{version}");
        assert!(said(&response).contains(CLAIM), "{}", said(&response));
    }
}

#[tokio::test]
async fn who_says_nothing_about_itself_is_told_both_ways_in() {
    let server = quick_server().await;
    for method in ["tools/list", "tools/call", "ping", "tasks/get", "unheard/of"] {
        let response = post(&server, &bare(), &request(method, json!({"name": "quick"}))).await;
        assert_eq!(refused(&response), (400, -32602), "{method}");
        assert_eq!(response.json()["id"], 1);
        let said = said(&response);
        assert!(said.contains("initialize") && said.contains(CLAIM), "{said}");
    }
}

#[tokio::test]
async fn notifications_are_taken_by_the_era_they_belong_to() {
    let server = quick_server().await;
    let legacy = LegacySession::open(&server).await;
    let plain = json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"});
    let mut claiming = plain.clone();
    claiming["params"]["_meta"] = json!({CLAIM: MODERN});
    let modern = set(bare(), "MCP-Protocol-Version", Some(MODERN));
    let unknown = set(bare(), "Mcp-Session-Id", Some("never-was"));
    for (what, headers, message, status) in [
        ("one of a session", legacy.headers(), &plain, 202),
        ("a modern one by its claim", modern.clone(), &claiming, 202),
        ("a modern one by its header", modern, &plain, 202),
        ("one without a session", bare(), &plain, 400),
        ("one of no session", unknown, &plain, 404),
    ] {
        let response = post(&server, &headers, message).await;
        assert_eq!(response.status, status, "{what}");
        assert_eq!(response.body.is_empty(), status == 202, "{what}");
    }
    for method in ["notifications/initialized", "notifications/cancelled", "notifications/progress", "notifications/unheard_of"] {
        legacy.notify(method, json!({})).await;
    }
}

#[tokio::test]
async fn responses_belong_to_sessions_alone() {
    let server = quick_server().await;
    let legacy = LegacySession::open(&server).await;
    let answer = json!({"jsonrpc": "2.0", "id": "1", "result": {}});
    let modern = |headers| set(headers, "MCP-Protocol-Version", Some(MODERN));
    let unknown = set(legacy.headers(), "Mcp-Session-Id", Some("never-was"));
    for (what, headers, expected) in [
        ("a live session that never asked", legacy.headers(), (400, -32600)),
        ("a modern header", modern(bare()), (400, -32600)),
        ("a modern header and a session", modern(legacy.headers()), (400, -32600)),
        ("no such session", unknown, (404, -32600)),
    ] {
        let response = post(&server, &headers, &answer).await;
        assert_eq!(refused(&response), expected, "{what}");
        assert_eq!(response.json().get("id"), None, "{what}");
    }
    assert_eq!(post(&server, &bare(), &answer).await.status, 400, "no session");
}

// Which session.

#[tokio::test]
async fn a_request_of_no_session_is_told_to_begin_one() {
    let server = quick_server().await;
    let legacy = LegacySession::open(&server).await;
    let long = "x".repeat(5_000);
    for session in ["never-was", "0", "../../etc/passwd", "'; DROP TABLE session; --", &legacy.session()[1..], &long] {
        let headers = set(legacy.headers(), "Mcp-Session-Id", Some(session));
        let response = post(&server, &headers, &request("tools/list", json!({}))).await;
        assert_eq!(refused(&response), (404, -32600), "{session}");
        assert!(said(&response).contains("session") && said(&response).contains("initialize"), "{}", said(&response));
        for method in ["GET", "DELETE"] {
            assert_eq!(legacy.http(method, &[("Mcp-Session-Id", session)]).await.status, 404, "{method} {session}");
        }
    }
    legacy.ok("tools/list", json!({})).await;
}

#[tokio::test]
async fn a_session_that_was_ended_is_gone_and_its_tasks_are_not() {
    let gate = Gate::new();
    let server = TestServer::start(registry([gate.tool("slow")])).await;
    let (legacy, other) = (LegacySession::open(&server).await, LegacySession::open(&server).await);
    let task = legacy.start("slow", json!({})).await;
    let ended = legacy.http("DELETE", &[]).await;
    assert_eq!(ended.status, 200);
    assert_eq!(refused(&legacy.raw("tasks/get", json!({"taskId": task})).await), (404, -32600));
    let response = legacy.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
    assert_eq!(refused(&response), (404, -32600));
    for method in ["GET", "DELETE"] {
        assert_eq!(legacy.http(method, &[]).await.status, 404, "{method}");
    }
    assert_eq!(other.get(&task).await["status"], "working");
    gate.go.send();
    assert_eq!(other.result(&task).await["content"][0]["text"], "done");
    let next = LegacySession::open(&server).await;
    assert_ne!(next.session(), legacy.session());
    assert_eq!(next.get(&task).await["status"], "completed");
}

#[tokio::test]
async fn a_session_can_be_ended_only_by_who_names_it() {
    let server = quick_server().await;
    let legacy = LegacySession::open(&server).await;
    assert_eq!(legacy.http("DELETE", &[("Mcp-Session-Id", "")]).await.status, 400);
    let modern = legacy.http("DELETE", &[("MCP-Protocol-Version", MODERN)]).await;
    assert_eq!((modern.status, modern.header("allow")), (405, Some("POST")));
    assert_eq!(legacy.http("DELETE", &[("MCP-Protocol-Version", "2024-11-05")]).await.status, 400);
    legacy.ok("ping", json!({})).await;
    assert_eq!(legacy.end().await, 200);
}

#[tokio::test]
async fn the_session_of_another_caller_is_like_one_that_never_was() {
    let (server, _) = start(registry([quick("quick")]), two_callers()).await;
    let ann = LegacySession::of(server.port, Some("ann-token"), LATEST, json!({})).await;
    let bob = LegacySession::of(server.port, Some("bob-token"), LATEST, json!({})).await;
    let mut answers = Vec::new();
    for session in [ann.session(), "never-was"] {
        let headers = set(bob.headers(), "Mcp-Session-Id", Some(session));
        let messages = [
            request("tools/call", json!({"name": "quick"})),
            json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
            json!({"jsonrpc": "2.0", "id": "1", "result": {}}),
        ];
        let mut responses = Vec::new();
        for message in &messages {
            responses.push(post(&server, &headers, message).await);
        }
        responses.push(bob.http("GET", &[("Mcp-Session-Id", session)]).await);
        responses.push(bob.http("DELETE", &[("Mcp-Session-Id", session)]).await);
        assert!(responses.iter().all(|response| response.status == 404), "{responses:?}");
        let bodies = responses.iter().map(|response| String::from_utf8_lossy(&response.body).replace(session, "?"));
        answers.push(bodies.collect::<Vec<_>>());
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(ann.call("quick", json!({})).await["content"][0]["text"], "done");
    let nobody = set(ann.headers(), "Authorization", None);
    assert_eq!(post(&server, &nobody, &request("ping", json!({}))).await.status, 401);
    assert_eq!(ann.http("GET", &[("Authorization", "")]).await.status, 401);
    assert_eq!(ann.http("DELETE", &[("Authorization", "")]).await.status, 401);
}

#[tokio::test]
async fn a_version_header_names_a_version_of_the_era_or_is_left_out() {
    let server = quick_server().await;
    for agreed in VERSIONS {
        let legacy = LegacySession::of(server.port, None, agreed, json!({})).await;
        let mut lists = Vec::new();
        for version in [None, Some(agreed)] {
            let headers = set(legacy.headers(), "MCP-Protocol-Version", version);
            let response = post(&server, &headers, &request("tools/list", json!({}))).await;
            assert_eq!(response.status, 200, "{agreed} {version:?}");
            lists.push(response.json());
        }
        assert_eq!(lists[0], lists[1], "without it, the one that was agreed on");
        assert_eq!(lists[0]["result"]["tools"][0].get("execution").is_some(), agreed == LATEST, "{agreed}");
        for version in ["2024-11-05", "2025-11-26", "1", "latest"] {
            let headers = set(legacy.headers(), "MCP-Protocol-Version", Some(version));
            let response = post(&server, &headers, &request("tools/list", json!({}))).await;
            assert_eq!(refused(&response), (400, -32600), "{agreed} {version}");
            assert_eq!(legacy.http("GET", &[("MCP-Protocol-Version", version)]).await.status, 400, "{agreed} {version}");
        }
    }
}

#[tokio::test]
async fn a_stream_is_opened_by_who_may_have_one() {
    let server = quick_server().await;
    let legacy = LegacySession::open(&server).await;
    for version in [MODERN, "2027-01-01"] {
        let modern = legacy.http("GET", &[("MCP-Protocol-Version", version)]).await;
        assert_eq!((modern.status, modern.header("allow")), (405, Some("POST")), "{version}");
    }
    assert_eq!(legacy.http("GET", &[("Mcp-Session-Id", "")]).await.status, 400, "no session");
    assert_eq!(legacy.http("GET", &[("Mcp-Session-Id", "never-was")]).await.status, 404, "no such session");
    for accept in ["application/json", "text/html, image/png"] {
        assert_eq!(legacy.http("GET", &[("Accept", accept)]).await.status, 406, "{accept}");
    }
    for accept in ["text/event-stream", "application/json, text/event-stream", "text/html, text/event-stream;q=0.9"] {
        drop(legacy.accepting(accept).open_session_stream().await);
    }
    for method in ["PUT", "PATCH"] {
        assert_eq!(legacy.http(method, &[]).await.status, 405, "{method}");
    }
}

// How long a session lasts.

#[tokio::test]
async fn a_session_survives_a_restart() {
    let tools = || registry([quick("quick").streams(), quick("other")]);
    let (server, clock) = start(tools(), crate::kit::without_followups()).await;
    let dir = server.dir();
    let mut sessions = Vec::new();
    for version in VERSIONS {
        sessions.push(LegacySession::of(server.port, None, version, streaming()).await);
    }
    let ended = LegacySession::open(&server).await;
    assert_eq!(ended.clone().end().await, 200);
    let mut lists = Vec::new();
    for legacy in &sessions {
        lists.push(legacy.ok("tools/list", json!({})).await);
    }
    assert_eq!(lists[0]["tools"][0]["execution"]["streamPartial"], true);
    with_timeout("the shutdown", server.stopped()).await;
    let server = reopened(&dir, tools(), crate::kit::without_followups(), &clock).await;
    for (legacy, list) in sessions.iter().zip(&lists) {
        let legacy = legacy.at(server.port);
        assert_eq!(&legacy.ok("tools/list", json!({})).await, list, "what was agreed on is known");
        assert_eq!(legacy.call("quick", json!({})).await["content"][0]["text"], "done");
        drop(legacy.open_session_stream().await);
    }
    assert_eq!(refused(&ended.at(server.port).raw("ping", json!({})).await), (404, -32600), "one that was ended is not");
}

#[test]
fn a_session_survives_a_crash() {
    let (dir, clock) = (Arc::new(TempDir::new()), manual_clock());
    let tools = || registry([quick("quick")]);
    let legacy = until_crash(async {
        let server = TestServer::start_in(dir.clone(), tools(), Config::default(), Arc::new(clock.clone())).await;
        LegacySession::open(&server).await
    });
    until_crash(async {
        let server = reopened(&dir, tools(), Config::default(), &clock).await;
        assert_eq!(legacy.at(server.port).call("quick", json!({})).await["content"][0]["text"], "done");
    });
}

#[tokio::test]
async fn a_session_that_nobody_uses_ends() {
    let (server, clock) = start(registry([quick("quick")]), Config::default()).await;
    let (used, unused) = (LegacySession::open(&server).await, LegacySession::open(&server).await);
    let task = unused.start("quick", json!({})).await;
    until_is(&unused, &task, "completed").await;
    for _ in 0..3 {
        clock.advance(20 * HOUR);
        used.ok("ping", json!({})).await;
    }
    assert_eq!(refused(&unused.raw("ping", json!({})).await), (404, -32600));
    assert_eq!(unused.http("GET", &[]).await.status, 404);
    clock.advance(25 * HOUR);
    assert_eq!(refused(&used.raw("ping", json!({})).await), (404, -32600));
}

#[tokio::test]
async fn a_session_whose_client_listens_is_not_idle_however_quiet_it_is() {
    let config = with_legacy(LegacyConfig { session_idle: 10 * HOUR, ..LegacyConfig::default() });
    let (server, clock) = start(registry([quick("quick")]), config).await;
    let (quiet, listening) = (LegacySession::open(&server).await, LegacySession::open(&server).await);
    let _standing = listening.open_session_stream().await;
    clock.advance(11 * HOUR);
    assert_eq!(listening.call("quick", json!({})).await["content"][0]["text"], "done");
    assert_eq!(quiet.raw("ping", json!({})).await.status, 404);
    clock.advance(11 * HOUR);
    // Nor when another one is opened, which ends those that are.
    let _other = LegacySession::open(&server).await;
    assert_eq!(listening.call("quick", json!({})).await["content"][0]["text"], "done");
}

#[tokio::test]
async fn how_long_a_session_may_be_quiet_can_be_set() {
    let config = with_legacy(LegacyConfig { session_idle: 10 * HOUR, ..LegacyConfig::default() });
    let (server, clock) = start(registry([]), config).await;
    let legacy = LegacySession::open(&server).await;
    clock.advance(9 * HOUR);
    legacy.ok("ping", json!({})).await;
    clock.advance(11 * HOUR);
    assert_eq!(refused(&legacy.raw("ping", json!({})).await), (404, -32600));
}

#[tokio::test]
async fn a_caller_may_have_so_many_sessions_and_one_more_ends_the_quietest() {
    let legacy = LegacyConfig { sessions_per_caller: 2, ..LegacyConfig::default() };
    let (server, clock) = start(registry([]), Config { legacy, ..two_callers() }).await;
    let open = async |token: &'static str| LegacySession::of(server.port, Some(token), LATEST, json!({})).await;
    let bob = open("bob-token").await;
    clock.advance(HOUR);
    let first = open("ann-token").await;
    clock.advance(HOUR);
    let second = open("ann-token").await;
    clock.advance(HOUR);
    first.ok("ping", json!({})).await;
    clock.advance(HOUR);
    let third = open("ann-token").await;
    assert_eq!(refused(&second.raw("ping", json!({})).await), (404, -32600));
    for legacy in [&first, &third, &bob] {
        legacy.ok("ping", json!({})).await;
    }
}

// What can be asked for.

/// One of everything that can be listed.
fn catalog() -> Registry {
    let tools = registry([quick("quick")]);
    tools.prompt(Prompt::raw(json!({"name": "hello", "arguments": [{"name": "who"}]}), |_call| async {
        Ok(json!({"messages": [{"role": "user", "content": {"type": "text", "text": "Hello."}}]}))
    }));
    tools.resource(Resource::raw(json!({"uri": "test://size", "name": "size"}), |call| async move {
        Ok(json!({"contents": [{"uri": call.uri, "text": "large"}]}))
    }));
    tools.template(ResourceTemplate::raw(json!({"uriTemplate": "test://t/{id}", "name": "t"}), |call| async move {
        Ok(json!({"contents": [{"uri": call.uri, "text": "one of many"}]}))
    }));
    tools.completions(|request| async move { (request.reference == "hello").then(|| Completion { values: vec!["world".to_owned()] }) });
    tools
}

#[tokio::test]
async fn every_list_can_be_read_in_every_version() {
    let server = TestServer::start(catalog()).await;
    for version in VERSIONS {
        let legacy = LegacySession::of(server.port, None, version, json!({})).await;
        assert_eq!(legacy.ok("ping", json!({})).await, json!({}));
        let tools = legacy.ok("tools/list", json!({})).await;
        assert_eq!(tools["tools"][0]["name"], "quick", "{version}");
        let prompts = legacy.ok("prompts/list", json!({})).await;
        assert_eq!(prompts, json!({"prompts": [{"name": "hello", "arguments": [{"name": "who"}]}]}));
        let prompt = legacy.ok("prompts/get", json!({"name": "hello", "arguments": {"who": "me"}})).await;
        assert_eq!(prompt, json!({"messages": [{"role": "user", "content": {"type": "text", "text": "Hello."}}]}));
        let resources = legacy.ok("resources/list", json!({})).await;
        assert_eq!(resources, json!({"resources": [{"uri": "test://size", "name": "size"}]}));
        let templates = legacy.ok("resources/templates/list", json!({})).await;
        assert_eq!(templates, json!({"resourceTemplates": [{"uriTemplate": "test://t/{id}", "name": "t"}]}));
        for (uri, text) in [("test://size", "large"), ("test://t/5", "one of many")] {
            let read = legacy.ok("resources/read", json!({"uri": uri})).await;
            assert_eq!(read, json!({"contents": [{"uri": uri, "text": text}]}), "{version}");
        }
        let of = json!({"ref": {"type": "ref/prompt", "name": "hello"}, "argument": {"name": "who", "value": "w"}});
        assert_eq!(legacy.ok("completion/complete", of).await["completion"]["values"], json!(["world"]));
    }
}

#[tokio::test]
async fn what_is_not_there_is_an_error_of_the_era_under_a_good_status() {
    let server = TestServer::start(catalog()).await;
    for version in VERSIONS {
        let legacy = LegacySession::of(server.port, None, version, json!({})).await;
        for (method, params, code) in [
            ("resources/read", json!({"uri": "test://nowhere"}), -32002),
            ("tools/call", json!({"name": "nobody"}), -32602),
            ("prompts/get", json!({"name": "nobody"}), -32602),
            ("tools/list", json!({"cursor": "x"}), -32602),
            ("server/discover", json!({}), -32601),
            ("subscriptions/listen", json!({"notifications": {}}), -32601),
            ("tasks/update", json!({"taskId": "0", "inputResponses": {}}), -32601),
            ("dev.taskwire/partials/read", json!({"taskId": "0", "fromSeq": 0}), -32601),
            ("unheard/of", json!({}), -32601),
        ] {
            assert_eq!(refusal(&legacy, method, params).await, code, "{version}: {method}");
        }
    }
}

/// A resource with nothing in it.
pub(crate) fn resource(uri: &str) -> Resource {
    Resource::raw(json!({"uri": uri, "name": uri}), |_call| async { Ok(json!({"contents": []})) })
}

// Batches.

fn batch() -> Value {
    json!([
        {"jsonrpc": "2.0", "id": 1, "method": "ping"},
        {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"},
        {"jsonrpc": "2.0", "id": "two", "method": "tools/call", "params": {"name": "count", "_meta": {"progressToken": 5}}},
        {"jsonrpc": "2.0", "id": 3, "method": "unheard/of"},
    ])
}

#[tokio::test]
async fn a_batch_is_answered_as_one_in_the_version_that_has_them() {
    let server = TestServer::start(registry([tool("count", &(), |(), ctx| count(ctx))])).await;
    let legacy = LegacySession::of(server.port, None, "2025-03-26", json!({"elicitation": {}})).await;
    let response = legacy.post(&batch()).await;
    assert_eq!((response.status, response.header("content-type")), (200, Some("application/json")));
    let answers = response.json();
    assert_eq!(answers.as_array().expect("an array").len(), 3, "{answers}");
    let answer = |id: Value| answers.as_array().and_then(|all| all.iter().find(|answer| answer["id"] == id)).expect("an answer");
    assert_eq!(answer(json!(1))["result"], json!({}));
    assert_eq!(answer(json!("two"))["result"]["content"][0]["text"], "counted");
    assert_eq!(answer(json!(3))["error"]["code"], -32601);
    let silent = json!([{"jsonrpc": "2.0", "method": "notifications/initialized"}]);
    let response = legacy.post(&silent).await;
    assert_eq!((response.status, response.body.len()), (202, 0), "there is nothing to answer");
}

#[tokio::test]
async fn nobody_is_asked_in_a_batch() {
    let asks = tool("asks", &(), |(), ctx| async move {
        ctx.ask("it", sampling()).await?;
        Ok("answered")
    });
    let server = TestServer::start(registry([asks])).await;
    let legacy = LegacySession::of(server.port, None, "2025-03-26", json!({"sampling": {}})).await;
    let batch = legacy.post(&json!([request("tools/call", json!({"name": "asks"}))])).await;
    assert_eq!(batch.status, 200);
    let answers = batch.json();
    assert_eq!(answers.as_array().map(Vec::len), Some(1), "{answers}");
    let answer = &answers[0];
    assert_eq!(answer["id"], 1);
    assert!(answer["error"]["code"] == -32600 || answer["result"]["isError"] == true, "{answer}");
    assert_eq!(server.server.engine().reader().open_tasks(None, 10).await.expect("readable").len(), 0, "nothing waits for an answer");
    // Alone, the same call asks.
    let mut sse = legacy.stream("tools/call", json!({"name": "asks"})).await;
    let question = sse.until("sampling/createMessage").await;
    legacy.answer(&question, json!({"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "m"})).await;
    assert_eq!(response(&mut sse).await["result"]["content"][0]["text"], "answered");
}

#[tokio::test]
async fn a_batch_is_no_message_in_other_versions() {
    let server = TestServer::start(registry([tool("count", &(), |(), ctx| count(ctx))])).await;
    for version in ["2025-06-18", LATEST] {
        let legacy = LegacySession::of(server.port, None, version, json!({})).await;
        for body in [batch(), json!([]), json!([request("ping", json!({}))])] {
            let response = legacy.post(&body).await;
            assert_eq!(refused(&response), (400, -32600), "{version}: {body}");
            assert_eq!(response.json().get("id"), None);
        }
    }
    let legacy = LegacySession::of(server.port, None, "2025-03-26", json!({})).await;
    assert_eq!(refused(&legacy.post(&json!([])).await), (400, -32600), "nothing is no batch either");
}
