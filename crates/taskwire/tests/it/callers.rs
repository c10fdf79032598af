//! Who may call: tokens of an identity provider, scopes, what ends with a token and how it goes on with the next, and proxies.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use taskwire::{
    clock::ManualClock,
    core::{CallerId, TaskId},
    server::{Callers, Config, ScopeRules, Tokens, TrustedProxy},
    tool::{Registry, TaskMode},
};

use self::issuer::{NOW, Provider, RESOURCE};
use crate::{
    kit::{Client, MS, Response, SECOND, TASKS, TestServer, manual_clock, passing, with_timeout, without_followups},
    legacy::{
        kit::{LATEST, LegacySession, initialize},
        streams::{call, events, held, response, text_for},
    },
    shutdown::{settle, settle_long},
    tasks::{Gate, quick, registry},
    tool_harness::{ToolHarness, follow, next_briefs, rest, uncoalesced},
};

mod issuer;
#[path = "../../src/auth/oauth/tests/signing.rs"]
mod signing;

const METADATA: &str = "http://127.0.0.1/.well-known/oauth-protected-resource/mcp";
const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// A server with these tools that takes the tokens of this provider.
async fn guarded(provider: &Provider, rules: ScopeRules, tools: Registry) -> (TestServer, ManualClock) {
    let clock = manual_clock();
    let config = provider.guards(rules, Config::default());
    (TestServer::start_with(tools, config, Arc::new(clock.clone())).await, clock)
}

async fn list(client: &Client) -> Response {
    client.raw("tools/list", json!({})).await
}

/// The status of a response, and its challenge.
fn refused(response: &Response) -> (u16, &str) {
    (response.status, response.header("www-authenticate").unwrap_or("no challenge"))
}

/// Sends a request without a body.
async fn ask(server: &TestServer, line: &str, lines: &[(&str, &str)]) -> Response {
    let lines: String = lines.iter().map(|(key, value)| format!("{key}: {value}\r\n")).collect();
    let request = format!("{line} HTTP/1.1\r\n{lines}Connection: close\r\n\r\n");
    with_timeout("the response", server.plain_client().bytes(request.as_bytes())).await
}

// Where a client gets a token.

#[tokio::test]
async fn the_metadata_is_where_clients_look_for_it_and_needs_no_token() {
    let provider = Provider::start().await;
    let rules = ScopeRules::default().with_rule("*", ["mcp"]).with_rule("tool:quick", ["quick"]);
    let (server, _) = guarded(&provider, rules, registry([quick("quick")])).await;
    let host = ("Host", "localhost");
    for path in ["", "/mcp"] {
        let found = ask(&server, &format!("GET {WELL_KNOWN}{path}"), &[host, ("Origin", "http://localhost:3000")]).await;
        assert_eq!((found.status, found.header("content-type")), (200, Some("application/json")), "{path}");
        assert_eq!(found.header("access-control-allow-origin"), Some("http://localhost:3000"));
        let document = found.json();
        assert_eq!(document["resource"], RESOURCE);
        assert_eq!(document["authorization_servers"], json!([provider.url()]));
        assert_eq!(document["scopes_supported"], json!(["mcp", "quick"]));
        assert_eq!(document["bearer_methods_supported"], json!(["header"]));
    }
    let asked = [host, ("Origin", "http://localhost:3000"), ("Access-Control-Request-Headers", "mcp-protocol-version")];
    let preflight = ask(&server, &format!("OPTIONS {WELL_KNOWN}/mcp"), &asked).await;
    assert_eq!((preflight.status, preflight.header("access-control-allow-headers")), (204, Some("mcp-protocol-version")));
    assert_eq!(ask(&server, &format!("GET {WELL_KNOWN}/other"), &[host]).await.status, 404);
    assert_eq!(ask(&server, &format!("DELETE {WELL_KNOWN}"), &[host]).await.status, 404);
    assert_eq!(ask(&server, &format!("GET {WELL_KNOWN}"), &[("Host", "evil.example")]).await.status, 403);
    let plain = TestServer::start(registry([])).await;
    assert_eq!(ask(&plain, &format!("GET {WELL_KNOWN}"), &[host]).await.status, 404, "nobody issues tokens for it");
}

#[tokio::test]
async fn without_a_token_a_client_is_told_where_to_get_one_and_with_which_scopes() {
    let provider = Provider::start().await;
    let rules = ScopeRules::default().with_rule("*", ["mcp"]).with_rule("tool:quick", ["quick"]);
    let (server, _) = guarded(&provider, rules, registry([quick("quick")])).await;
    let start = format!("Bearer resource_metadata=\"{METADATA}\", scope=\"mcp\"");
    let client = server.client();
    assert_eq!(refused(&list(&client).await), (401, start.as_str()));
    let wrong = list(&client.clone().with_token("wrong")).await;
    assert_eq!(
        refused(&wrong),
        (401, format!("{start}, error=\"invalid_token\", error_description=\"the token is not known here\"").as_str())
    );
    let message = client.message(1, "tools/list", json!({}));
    let mut headers = client.headers(&message);
    headers.push(("Authorization".to_owned(), "Bearer two words".to_owned()));
    let malformed = client.post(&headers, message.to_string().as_bytes()).await;
    assert_eq!(malformed.status, 400);
    assert!(malformed.header("www-authenticate").is_some_and(|value| value.contains("error=\"invalid_request\"")));
    // A page of another origin that may call reads why it was refused.
    headers.pop();
    headers.push(("Origin".to_owned(), "http://localhost:3000".to_owned()));
    let from_page = client.post(&headers, message.to_string().as_bytes()).await;
    assert!(from_page.header("access-control-expose-headers").is_some_and(|names| names.contains("www-authenticate")));
    // In a query a token counts for nothing.
    let token = provider.token(json!({}));
    let query = ask(&server, &format!("GET /mcp?access_token={token}"), &[("Host", "localhost")]).await;
    assert_eq!(query.status, 401);
    for method in ["GET", "DELETE"] {
        assert_eq!(refused(&ask(&server, &format!("{method} /mcp"), &[("Host", "localhost")]).await), (401, start.as_str()), "{method}");
    }
}

// Which tokens count.

#[tokio::test]
async fn a_token_of_the_issuer_counts_and_one_with_anything_wrong_does_not() {
    let provider = Provider::start().await;
    let other = Provider::start().await;
    let (server, _) = guarded(&provider, ScopeRules::default(), registry([quick("quick")])).await;
    let client = server.client();
    let good = provider.token(json!({}));
    assert_eq!(client.clone().with_token(&good).ok("tools/list", json!({})).await["tools"][0]["name"], "quick");
    assert_eq!(client.clone().with_token("fixed-token").ok("tools/list", json!({})).await["tools"][0]["name"], "quick");
    let none = json!({"alg": "none", "kid": "first"});
    let secret = json!({"alg": "HS256", "kid": "first"});
    let body = good.rsplit_once('.').expect("a signature").0;
    for (wrong, why) in [
        (provider.token(json!({"aud": "http://other.example/mcp"})), "audience"),
        (provider.token(json!({"aud": null})), "audience"),
        (provider.token(json!({"exp": NOW})), "expired"),
        (provider.token(json!({"exp": null})), "no end"),
        (provider.token(json!({"nbf": NOW + 1})), "not valid yet"),
        (provider.token(json!({"sub": null})), "who calls"),
        (provider.token(json!({"iss": "https://evil.example"})), "issuer"),
        (other.token(json!({})), "issuer"),
        (other.token(json!({"iss": provider.url()})), "signature"),
        (provider.token_with(&none, json!({})), "algorithm"),
        (provider.token_with(&secret, json!({})), "algorithm"),
        (format!("{body}."), "signature"),
    ] {
        let response = list(&client.clone().with_token(&wrong)).await;
        let (status, challenge) = refused(&response);
        assert_eq!(status, 401, "{why}");
        assert!(challenge.contains("error=\"invalid_token\"") && challenge.contains(why), "{challenge}");
        let said = format!("{:?} {}", response.headers, String::from_utf8_lossy(&response.body));
        assert!(!said.contains(wrong.split('.').nth(1).expect("claims")), "nothing of the token is said: {said}");
    }
}

#[tokio::test]
async fn a_session_and_a_task_belong_to_the_subject_of_the_token() {
    let provider = Provider::start().await;
    let gate = Gate::new();
    let (server, _) = guarded(&provider, ScopeRules::default(), registry([gate.tool("slow").task(TaskMode::Always)])).await;
    let client = |subject: &str| server.client().with_token(&provider.token(json!({"sub": subject})));
    let id = client("ada").start("slow", json!({})).await;
    assert_eq!(client("ada").get(&id).await["status"], "working", "with another token of the same subject");
    assert_eq!(client("bob").error("tasks/get", json!({"taskId": id})).await["message"], "Task not found");
    let session = |subject: &str| provider.token(json!({"sub": subject}));
    let ada = LegacySession::of(server.port, Some(&session("ada")), LATEST, json!({})).await;
    let bob = ada.with_token(&session("bob"));
    assert_eq!(ada.get(&id).await["status"], "working");
    for response in [bob.raw("ping", json!({})).await, bob.http("GET", &[]).await, bob.http("DELETE", &[]).await] {
        assert_eq!(response.status, 404);
    }
    ada.with_token(&session("ada")).ok("ping", json!({})).await;
    // Whatever somebody calls themselves at the issuer, they are not one of our own callers.
    let robot = server.client().with_token("fixed-token").start("slow", json!({})).await;
    assert_eq!(client("robot").error("tasks/get", json!({"taskId": robot})).await["message"], "Task not found");
    let (caller, id) = (CallerId::new(&format!("{}#ada", provider.url())), id.parse::<TaskId>().expect("an id"));
    assert!(server.server.engine().task(&caller, id).await.expect("readable").is_some());
}

#[tokio::test]
async fn nothing_of_a_token_is_stored() {
    let provider = Provider::start().await;
    let (server, _) = guarded(&provider, ScopeRules::default(), registry([quick("quick").task(TaskMode::Always)])).await;
    let token = provider.token(json!({}));
    for token in [token.as_str(), "fixed-token"] {
        let client = server.client().with_token(token);
        let id = client.start("quick", json!({})).await;
        with_timeout("the end", client.until(&id, "completed")).await;
        let session = LegacySession::of(server.port, Some(token), LATEST, json!({})).await;
        session.start("quick", json!({})).await;
    }
    let (dir, parts) = (server.dir(), token.split('.').chain(["fixed-token"]).map(str::to_owned).collect::<Vec<_>>());
    with_timeout("the end of the server", server.stopped()).await;
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir.path()).expect("readable") {
        let path = entry.expect("readable").path();
        if path.is_file() {
            let content = std::fs::read(&path).expect("readable");
            bytes += content.len();
            for part in &parts {
                assert!(!content.windows(part.len()).any(|window| window == part.as_bytes()), "{} has {part}", path.display());
            }
        }
    }
    assert!(bytes > 10_000, "there is a store");
}

// Scopes.

fn deploying() -> ScopeRules {
    ScopeRules::default()
        .with_rule("*", ["mcp"])
        .with_rule("tools/call", ["call"])
        .with_rule("tasks/*", ["tasks"])
        .with_rule("tool:deploy", ["deploy", "production"])
        .with_hierarchy("admin", ["mcp", "call", "deploy", "production", "tasks"])
}

#[tokio::test]
async fn a_missing_scope_is_asked_for_with_all_others_that_the_operation_needs() {
    let provider = Provider::start().await;
    let (server, _) = guarded(&provider, deploying(), registry([quick("deploy"), quick("build")])).await;
    let client = |scope: &str| server.client().with_token(&provider.token(json!({"scope": scope})));
    let tools = |result: &Value| result["tools"].as_array().expect("tools").iter().map(|tool| tool["name"].clone()).collect::<Vec<_>>();
    let listed = tools(&client("mcp").ok("tools/list", json!({})).await);
    assert!(listed.contains(&json!("deploy")), "a client sees what it could ask for: {listed:?}");
    let challenge = |scope: &str| {
        let why = "error=\"insufficient_scope\", error_description=\"the token lacks a scope that this needs\"";
        format!("Bearer resource_metadata=\"{METADATA}\", scope=\"{scope}\", {why}")
    };
    for (granted, method, params, needed) in [
        ("", "tools/list", json!({}), Some("mcp")),
        ("mcp", "tasks/get", json!({"taskId": "x"}), Some("mcp tasks")),
        ("mcp", "tools/call", json!({"name": "build"}), Some("call mcp")),
        ("mcp", "tools/call", json!({"name": "deploy"}), Some("call deploy mcp production")),
        ("mcp call deploy", "tools/call", json!({"name": "deploy"}), Some("call deploy mcp production")),
        ("mcp call deploy production", "tools/call", json!({"name": "deploy"}), None),
        ("mcp call", "tools/call", json!({"name": "build"}), None),
        ("admin", "tools/call", json!({"name": "deploy"}), None),
        ("mcp", "subscriptions/listen", json!({"notifications": {}}), None),
    ] {
        if method == "subscriptions/listen" {
            client(granted).listen(json!({})).await;
            continue;
        }
        let response = client(granted).raw(method, params.clone()).await;
        match needed {
            Some(needed) => {
                assert_eq!(refused(&response), (403, challenge(needed).as_str()), "{granted}: {method} {params}");
                assert_eq!(response.code(), -32600);
            }
            None => assert_eq!(response.status, 200, "{granted}: {method} {params}"),
        }
    }
    // A token of the configuration says nothing of scopes, so it may do all.
    server.client().with_token("fixed-token").call("deploy", json!({})).await;
}

#[tokio::test]
async fn a_session_asks_for_scopes_in_the_same_way() {
    let provider = Provider::start().await;
    let (server, _) = guarded(&provider, deploying(), registry([quick("deploy")])).await;
    let token = |scope: &str| provider.token(json!({"scope": scope}));
    let nobody = Client::new(server.port);
    let opening = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": initialize(LATEST, &json!({}))});
    let headers = |token: &str| {
        let accept = ("Accept".to_owned(), "application/json, text/event-stream".to_owned());
        vec![("Content-Type".to_owned(), "application/json".to_owned()), accept, ("Authorization".to_owned(), format!("Bearer {token}"))]
    };
    assert_eq!(nobody.post(&headers(&token("")), opening.to_string().as_bytes()).await.status, 403);
    let legacy = LegacySession::of(server.port, Some(&token("mcp")), LATEST, json!({})).await;
    let refusal = legacy.raw("tools/call", json!({"name": "deploy"})).await;
    let (status, challenge) = refused(&refusal);
    assert_eq!(status, 403);
    assert!(challenge.contains("scope=\"call deploy mcp production\"") && challenge.contains("insufficient_scope"), "{challenge}");
    assert_eq!(legacy.raw("tasks/list", json!({})).await.status, 403);
    let poor = legacy.with_token(&token(""));
    for response in [poor.raw("ping", json!({})).await, poor.http("GET", &[]).await, poor.http("DELETE", &[]).await] {
        assert_eq!(response.status, 403);
    }
    let rich = legacy.with_token(&token("admin"));
    assert_eq!(rich.call("deploy", json!({})).await["content"][0]["text"], "done");
    rich.ok("tasks/list", json!({})).await;
}

#[tokio::test]
async fn who_comes_back_to_a_result_needs_what_whoever_asks_for_it_needs() {
    let provider = Provider::start().await;
    let rules = ScopeRules::default().with_rule("tasks/result", ["results"]);
    let (server, _) = guarded(&provider, rules, registry([quick("quick").task(TaskMode::Always)])).await;
    let token = |scope: &str| provider.token(json!({"scope": scope}));
    let rich = LegacySession::of(server.port, Some(&token("results")), LATEST, json!({})).await;
    let id = rich.start("quick", json!({})).await;
    rich.result(&id).await;
    let poor = rich.with_token(&token(""));
    assert_eq!(poor.raw("tasks/result", json!({"taskId": id})).await.status, 403);
    // An event id is easily written: it has a part of the session's id, the task's, and that of a request (`MTIz` is 123).
    for kind in ["r", "c", "p"] {
        let event_id = format!("{}.{kind}.{id}.MTIz.0.0.0", &rich.session()[..8]);
        let last = [("Last-Event-ID", event_id.as_str())];
        let refusal = poor.http("GET", &last).await;
        let (status, challenge) = refused(&refusal);
        assert!(status == 403 && challenge.contains("scope=\"results\""), "{kind}: {status} {challenge}");
        let response = rich.http("GET", &last).await;
        let has_result = kind == "p" || String::from_utf8_lossy(&response.body).contains("done");
        assert!(response.status == 200 && has_result, "{kind}: {response:?}");
    }
}

// What ends with a token.

#[tokio::test]
async fn a_listen_stream_ends_with_its_token_and_the_next_one_goes_on_without_a_gap() {
    let provider = Provider::start().await;
    let config = provider.guards(ScopeRules::default(), uncoalesced());
    let mut harness = ToolHarness::with(config).await;
    let with_end = |end: i64| harness.client.clone().with_token(&provider.token(json!({"exp": NOW + end})));
    let (first, second) = (with_end(300), with_end(3600));
    let (id, mut run) = harness.task_of(&first).await;
    let mut events = follow(&first, &id, 0).await;
    let mut waiting = first.listen(json!({"toolsListChanged": true})).await;
    run.writes("one").await;
    assert_eq!(next_briefs(&mut events, 2).await, ["working", "0 one"]);
    harness.clock.advance(299 * SECOND);
    settle().await;
    run.writes("two").await;
    assert_eq!(next_briefs(&mut events, 1).await, ["1 two"]);
    harness.clock.advance(SECOND);
    assert_eq!(with_timeout("the end of the stream", rest(&mut events)).await, ["end"], "it ends as when the server shuts down");
    assert_eq!(events.comments, ["the token has expired"]);
    assert_eq!(with_timeout("the end of the stream", rest(&mut waiting)).await, ["end"]);
    run.writes("three").await;
    let late = first.raw("tasks/get", json!({"taskId": id})).await;
    assert_eq!(late.status, 401);
    assert!(refused(&late).1.contains("the token has expired"));
    let mut events = follow(&second, &id, 2).await;
    assert_eq!(next_briefs(&mut events, 2).await, ["working", "2 three"]);
    run.ends("done");
    assert_eq!(next_briefs(&mut events, 1).await, ["completed"]);
}

#[tokio::test]
async fn the_streams_of_a_session_end_with_their_token_and_are_resumed_with_the_next() {
    let provider = Provider::start().await;
    let (gate, clock) = (Gate::new(), manual_clock());
    let tools = registry([gate.tool("slow")]);
    let config = provider.guards(ScopeRules::default(), without_followups());
    let server = TestServer::start_with(tools.clone(), config, Arc::new(clock.clone())).await;
    // Time passes also until the streams are open.
    let token = provider.token(json!({"exp": NOW + 600}));
    let legacy = LegacySession::of(server.port, Some(&token), LATEST, json!({"elicitation": {}})).await;
    let (id, message) = (legacy.start("slow", json!({})).await, call(&legacy, "slow", json!({})));
    with_timeout("the start", gate.started.wait()).await;
    let wait = legacy.message(legacy.next_id(), "tasks/result", json!({"taskId": id}));
    let mut streams =
        [held(&legacy, &clock, &gate, &message).await, legacy.stream_message(&wait).await, legacy.open_session_stream().await];
    for sse in &mut streams {
        let events = with_timeout("the end of the connection", passing(&clock, 50 * MS, events(sse))).await;
        assert!(events.iter().any(|event| event.retry == Some(1_000)), "it says when to come back: {events:?}");
        let is_answer = |message: &Value| message.get("method").is_none();
        assert!(!events.iter().filter_map(|event| event.message.as_ref()).any(is_answer), "the stream itself goes on: {events:?}");
    }
    assert!(!gate.stopped.is_sent());
    let [call_at, wait_at, standing_at] = streams.map(|sse| sse.last_id.expect("an id"));
    assert_eq!(legacy.http("GET", &[("Last-Event-ID", call_at.as_str())]).await.status, 401);
    let legacy = legacy.with_token(&provider.token(json!({})));
    let mut standing = legacy.resume(&standing_at).await;
    tools.tool(quick("quick")).expect("a tool");
    standing.until("notifications/tools/list_changed").await;
    gate.go.send();
    gate.go.send();
    for (message, event_id) in [(message, call_at), (wait, wait_at)] {
        assert_eq!(text_for(&message, &response(&mut legacy.resume(&event_id).await).await), "done");
    }
}

/// Calls a tool with a token that lasts twenty seconds, and lets `span` pass when it has started.
async fn called_for(span: Duration, clock: &ManualClock, client: &Client, gate: &Gate) -> Response {
    let pass = async {
        gate.started.wait().await;
        settle().await;
        clock.advance(20 * SECOND);
        settle_long().await;
        clock.advance(span - 20 * SECOND);
    };
    let params = json!({"name": "slow", "arguments": {}});
    let (response, ()) = with_timeout("the answer", async { tokio::join!(client.raw("tools/call", params), pass) }).await;
    response
}

#[tokio::test]
async fn a_held_call_is_answered_when_its_token_expires_and_followed_up_with_the_next() {
    let provider = Provider::start().await;
    let gate = Gate::new();
    let (server, clock) = guarded(&provider, ScopeRules::default(), registry([gate.tool("slow")])).await;
    let client = |end: i64| server.plain_client().with_token(&provider.token(json!({"exp": NOW + end})));
    let answer = called_for(20 * SECOND, &clock, &client(20), &gate).await.json();
    let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_default();
    assert!(text.contains("task_wait"), "as when it was held for long enough: {answer}");
    let id = text.split(|c: char| !c.is_ascii_alphanumeric()).find(|word| word.parse::<TaskId>().is_ok()).expect("the task is named");
    gate.go.send();
    let waited = client(3600).call("task_wait", json!({"task_id": id})).await;
    assert_eq!(waited["content"][0]["text"], "done");
    assert_eq!(gate.runs(), 1);
}

#[tokio::test]
async fn a_call_that_can_only_wait_is_cut_off_and_the_same_call_with_the_next_token_finds_its_work() {
    let provider = Provider::start().await;
    let (gate, clock) = (Gate::new(), manual_clock());
    let config = provider.guards(ScopeRules::default(), without_followups());
    let server = TestServer::start_with(registry([gate.tool("slow")]), config, Arc::new(clock.clone())).await;
    let client = |end: i64| server.plain_client().with_token(&provider.token(json!({"exp": NOW + end})));
    let response = called_for(22 * SECOND, &clock, &client(20), &gate).await;
    let (status, challenge) = refused(&response);
    assert_eq!(status, 401);
    assert!(challenge.contains("the token expired while the request waited"), "{challenge}");
    assert_eq!(response.code(), -32600);
    settle_long().await;
    assert!(!gate.stopped.is_sent(), "the work goes on");
    let again = client(3600);
    let go = async {
        settle_long().await;
        gate.go.send();
    };
    let (result, ()) = with_timeout("the answer", async { tokio::join!(again.call("slow", json!({})), go) }).await;
    assert_eq!(result["content"][0]["text"], "done");
    assert_eq!(gate.runs(), 1);
}

#[tokio::test]
async fn a_poll_that_waits_is_answered_when_its_token_expires() {
    let provider = Provider::start().await;
    let gate = Gate::new();
    let (server, clock) = guarded(&provider, ScopeRules::default(), registry([gate.tool("slow").task(TaskMode::Always)])).await;
    let client = server.client().with_token(&provider.token(json!({"exp": NOW + 20})));
    let id = client.start("slow", json!({})).await;
    let poll = client.ok("tasks/get", json!({"taskId": id, "_meta": {"dev.taskwire/waitMs": 30_000}}));
    let pass = async {
        settle_long().await;
        clock.advance(20 * SECOND);
    };
    let (task, ()) = with_timeout("the answer", async { tokio::join!(poll, pass) }).await;
    assert_eq!(task["status"], "working");
}

// Keys.

#[tokio::test]
async fn keys_may_change_while_a_stream_is_open() {
    let provider = Provider::start().await;
    let config = provider.guards(ScopeRules::default(), uncoalesced());
    let mut harness = ToolHarness::with(config).await;
    let with_token = |token: &str| harness.client.clone().with_token(token);
    let (old, clock) = (with_token(&provider.token(json!({}))), harness.clock.clone());
    let (id, mut run) = harness.task_of(&old).await;
    let mut events = follow(&old, &id, 0).await;
    run.writes("one").await;
    assert_eq!(next_briefs(&mut events, 2).await, ["working", "0 one"]);
    provider.rotate("second", true);
    let new = old.clone().with_token(&provider.token(json!({})));
    // The server has just fetched keys, and for some seconds does not again, whoever asks.
    assert_eq!(list(&new).await.status, 401);
    assert_eq!(provider.asked("/keys"), 1);
    clock.advance(30 * SECOND);
    assert_eq!(new.get(&id).await["status"], "working", "it is the same caller");
    assert_eq!(provider.asked("/keys"), 2);
    run.writes("two").await;
    assert_eq!(next_briefs(&mut events, 1).await, ["1 two"], "the stream does not mind");
    assert_eq!(old.get(&id).await["status"], "working", "nor does who has a token of the old key");
    provider.rotate("third", false);
    clock.advance(30 * SECOND);
    let newest = old.clone().with_token(&provider.token(json!({})));
    assert_eq!(newest.get(&id).await["status"], "working");
    assert_eq!(list(&old).await.status, 401, "the old key was withdrawn");
    run.ends("done");
    assert_eq!(next_briefs(&mut events, 1).await, ["completed"]);
}

#[tokio::test]
async fn an_issuer_that_is_down_is_no_reason_to_refuse_anybody() {
    let provider = Provider::start().await;
    let (server, clock) = guarded(&provider, ScopeRules::default(), registry([quick("quick")])).await;
    let with_token = |token: &str| server.client().with_token(token);
    provider.is_down(true);
    let known = provider.token(json!({}));
    let response = list(&with_token(&known)).await;
    assert_eq!(refused(&response), (503, "no challenge"), "its token may be good");
    assert!(response.header("retry-after").is_some());
    assert_eq!(response.code(), -31002);
    provider.is_down(false);
    clock.advance(5 * SECOND);
    assert_eq!(list(&with_token(&known)).await.status, 200);
    provider.is_down(true);
    provider.rotate("second", true);
    clock.advance(30 * SECOND);
    assert_eq!(list(&with_token(&provider.token(json!({})))).await.status, 503);
    assert_eq!(list(&with_token(&known)).await.status, 200, "keys of before stay");
    assert_eq!(list(&with_token("fixed-token")).await.status, 200);
}

// Other ways to show who calls.

#[tokio::test]
async fn an_opaque_token_is_worth_what_its_issuer_says() {
    let provider = Provider::start().await;
    let gate = Gate::new();
    let (config, clock) = (provider.guards_by_asking(Config::default()), manual_clock());
    let server = TestServer::start_with(registry([gate.tool("slow").task(TaskMode::Always)]), config, Arc::new(clock.clone())).await;
    provider.knows("ada-1", provider.claims(json!({"active": true})));
    provider.knows("ada-2", provider.claims(json!({"active": true})));
    provider.knows("foreign", provider.claims(json!({"active": true, "aud": "http://other.example"})));
    let with_token = |token: &str| server.client().with_token(token);
    let id = with_token("ada-1").start("slow", json!({})).await;
    assert_eq!(with_token("ada-2").get(&id).await["status"], "working");
    for wrong in ["nobody", "foreign"] {
        assert_eq!(list(&with_token(wrong)).await.status, 401, "{wrong}");
    }
    assert_eq!(list(&with_token("fixed-token")).await.status, 200);
    let asked = provider.asked("/introspect");
    assert_eq!(with_token("ada-1").get(&id).await["status"], "working");
    assert_eq!(provider.asked("/introspect"), asked, "its word holds for a moment");
    provider.knows("ada-1", json!({"active": false}));
    clock.advance(60 * SECOND);
    assert_eq!(list(&with_token("ada-1")).await.status, 401);
}

#[tokio::test]
async fn a_proxy_that_is_trusted_names_the_caller() {
    let proxy = |address: &str| TrustedProxy::new("X-Forwarded-User", vec![address.parse().expect("an address")]).expect("a header");
    let config = |address: &str| {
        let callers = Callers::default().with_tokens(Tokens::default().with_token("t", "ci")).with_proxy(proxy(address));
        Config { auth: Arc::new(callers), ..Config::default() }
    };
    let gate = Gate::new();
    let start = async |address: &str| {
        let tools = registry([gate.tool("slow").task(TaskMode::Always)]);
        TestServer::start_with(tools, config(address), Arc::new(manual_clock())).await
    };
    let (server, elsewhere) = (start("127.0.0.0/8").await, start("10.0.0.0/8").await);
    let send = async |server: &TestServer, users: &[&str], method: &str, params: Value| {
        let client = server.plain_client().declaring(json!({"extensions": {TASKS: {}}}));
        let message = client.message(1, method, params);
        let mut headers = client.headers(&message);
        headers.extend(users.iter().map(|user| ("X-Forwarded-User".to_owned(), (*user).to_owned())));
        client.post(&headers, message.to_string().as_bytes()).await
    };
    let id = send(&server, &["ada"], "tools/call", json!({"name": "slow"})).await.json()["result"]["taskId"].clone();
    assert_eq!(send(&server, &["ada"], "tasks/get", json!({"taskId": id})).await.json()["result"]["status"], "working");
    assert_eq!(send(&server, &["bob"], "tasks/get", json!({"taskId": id})).await.json()["error"]["message"], "Task not found");
    assert_eq!(send(&server, &[], "tools/list", json!({})).await.status, 401);
    assert_eq!(send(&server, &["ada", "bob"], "tools/list", json!({})).await.status, 400);
    assert_eq!(send(&elsewhere, &["ada"], "tools/list", json!({})).await.status, 401, "it says so, but it is not the proxy");
    assert_eq!(list(&server.client().with_token("t")).await.status, 200);
}
