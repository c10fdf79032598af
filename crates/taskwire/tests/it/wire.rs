//! The wire from outside: the response to each request, its status, and the order of checks.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use taskwire::{
    clock::SystemClock,
    server::{Config, Tokens},
    tool::{CallResult, Ctx, Json, Progress, Prompt, Registry, Resource, TaskMode, Tool, ToolError},
};
use tokio::sync::Notify;

use crate::{
    kit::{CAPABILITIES, Client, Response, TASKS, TestServer, VERSION, with_timeout},
    schema,
    tasks::{count, registry},
};

mod headers;
mod rounds;

/// Has the shape of a task's id, but no task has it.
const NOBODY: &str = "00000000000000000000000000000000";
/// A name that no header can hold as it is.
const URI: &str = "test://größe/✓";

type Headers = Vec<(String, String)>;

fn echo() -> Tool {
    let schema = json!({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]});
    Tool::raw("echo", "Repeats a text", schema, |ctx: Ctx| async move {
        let arguments: Value = ctx.arguments().read()?;
        Ok::<_, ToolError>(arguments["text"].as_str().unwrap_or_default().to_owned())
    })
}

/// Works until it is stopped.
fn forever() -> Tool {
    let body = |ctx: Ctx| async move {
        ctx.cancelled().await;
        Err::<&str, _>(ToolError::stopped())
    };
    Tool::raw("forever", "Never ends", json!({"type": "object"}), body).task(TaskMode::Always)
}

async fn noise(ctx: Ctx) -> Result<&'static str, ToolError> {
    for level in ["debug", "info", "warning", "error"] {
        ctx.log(level, json!({"at": level}));
    }
    Ok("quiet again")
}

/// Gives its arguments back as they came.
async fn mirror(ctx: Ctx) -> Result<CallResult, ToolError> {
    ctx.progress(Progress::at(1.0)).await?;
    Ok(CallResult { structured_content: Some(ctx.arguments().clone()), ..CallResult::default() })
}

fn open(name: &str) -> Value {
    json!({"type": "object", "description": name})
}

/// One tool, one prompt, one resource.
async fn echo_server() -> TestServer {
    let registry = registry([echo()]);
    registry.prompt(Prompt::raw(json!({"name": "hello"}), |_call| async {
        Ok(json!({"messages": [{"role": "user", "content": {"type": "text", "text": "Hello."}}]}))
    }));
    registry.resource(Resource::raw(json!({"uri": URI, "name": "size"}), |_call| async {
        Ok(json!({"contents": [{"uri": "test://size", "text": "large"}]}))
    }));
    TestServer::start(registry).await
}

async fn start(tools: Registry, config: Config) -> TestServer {
    TestServer::start_with(tools, config, Arc::new(SystemClock)).await
}

/// A server that knows Alice and Bob.
async fn guarded(tools: Registry) -> TestServer {
    let auth = Arc::new(Tokens::default().with_token("a-token", "alice").with_token("b-token", "bob"));
    start(tools, Config { auth, ..Config::default() }).await
}

async fn send(client: &Client, message: &Value) -> Response {
    client.post(&client.headers(message), message.to_string().as_bytes()).await
}

/// Sends a message with headers of its own, and says which status, error code and id came back.
async fn refusal(client: &Client, message: &Value, headers: &[(String, String)]) -> (u16, i64, Value) {
    let response = client.post(headers, message.to_string().as_bytes()).await;
    (response.status, response.code(), response.json()["id"].clone())
}

/// The headers with these values for `name`, and no others.
fn set(mut headers: Headers, name: &str, values: &[&str]) -> Headers {
    headers.retain(|(key, _)| !key.eq_ignore_ascii_case(name));
    headers.extend(values.iter().map(|value| (name.to_owned(), (*value).to_owned())));
    headers
}

fn header(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

/// A request in its bytes: what the first line says, the headers, the body.
fn http(line: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let headers: String = headers.iter().map(|(key, value)| format!("{key}: {value}\r\n")).collect();
    format!("{line} HTTP/1.1\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn base64(text: &str) -> String {
    format!("=?base64?{}?=", BASE64_STANDARD.encode(text))
}

// What every request says about itself.

#[tokio::test]
async fn the_description_of_a_request_is_checked_before_its_headers() {
    let server = echo_server().await;
    let client = server.client();
    let no_headers = [header("Content-Type", "application/json")];
    let requests = [
        json!({"jsonrpc": "2.0", "id": 7, "method": "tools/list"}),
        json!({"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {}}),
    ];
    let metas = [
        Value::Null,
        json!(5),
        json!("x"),
        json!([]),
        json!({}),
        json!({VERSION: "2026-07-28"}),
        json!({CAPABILITIES: {}}),
        json!({VERSION: 5, CAPABILITIES: {}}),
        json!({VERSION: null, CAPABILITIES: {}}),
        json!({VERSION: ["2026-07-28"], CAPABILITIES: {}}),
        json!({VERSION: "2026-07-28", CAPABILITIES: null}),
        json!({VERSION: "2026-07-28", CAPABILITIES: 5}),
        json!({VERSION: "2026-07-28", CAPABILITIES: "all"}),
        json!({VERSION: "2026-07-28", CAPABILITIES: true}),
    ];
    let with_meta = metas.map(|meta| json!({"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {"_meta": meta}}));
    for message in requests.iter().chain(&with_meta) {
        assert_eq!(refusal(&client, message, &no_headers).await, (400, -32602, json!(7)), "{message}");
    }
}

#[tokio::test]
async fn an_array_does_not_pass_for_an_object() {
    let server = echo_server().await;
    let client = server.client();
    let meta = json!({VERSION: "2026-07-28", CAPABILITIES: {}});
    let cases = [
        ("tools/list", json!({"_meta": ["2026-07-28", {}]})),
        ("tools/list", json!({"_meta": {VERSION: "2026-07-28", CAPABILITIES: []}})),
        ("tools/list", json!({"_meta": {VERSION: "2026-07-28", CAPABILITIES: {"elicitation": []}}})),
        ("completion/complete", json!({"_meta": meta, "ref": ["ref/prompt", "hello"], "argument": {"name": "a", "value": "b"}})),
        ("completion/complete", json!({"_meta": meta, "ref": {"type": "ref/prompt", "name": "hello"}, "argument": ["a", "b"]})),
        ("subscriptions/listen", json!({"_meta": meta, "notifications": []})),
    ];
    for (method, params) in cases {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let response = with_timeout("a refusal", send(&client, &message)).await;
        assert_eq!(response.json()["error"]["code"], -32602, "{message}");
    }
}

#[tokio::test]
async fn what_nobody_knows_is_passed_over() {
    let server = echo_server().await;
    let client = server.client();
    let mut message = client.message(1, "tools/call", json!({"name": "echo", "arguments": {"text": "x"}, "unheard-of": [1]}));
    message["params"]["_meta"]["com.example/unheard-of"] = json!({"deep": [{}]});
    message["params"]["_meta"][CAPABILITIES]["extensions"]["com.example/unheard-of"] = json!({"setting": 1});
    message["unheard-of"] = json!({});
    assert_eq!(send(&client, &message).await.json()["result"]["content"][0]["text"], "x");
}

#[tokio::test]
async fn headers_and_body_must_name_the_same_version_even_an_unknown_one() {
    let server = echo_server().await;
    let client = server.client();
    for (in_header, in_body) in [("2026-07-28", "2099-01-01"), ("2099-01-01", "2026-07-28"), ("2025-11-25", "2026-07-28")] {
        let mut message = client.message(3, "tools/list", json!({}));
        message["params"]["_meta"][VERSION] = in_body.into();
        let headers = set(client.headers(&message), "MCP-Protocol-Version", &[in_header]);
        assert_eq!(refusal(&client, &message, &headers).await, (400, -32020, json!(3)), "{in_header} {in_body}");
    }
}

#[tokio::test]
async fn a_version_that_is_not_spoken_is_answered_with_those_that_are() {
    let server = echo_server().await;
    let client = server.client();
    let discovered = client.ok("server/discover", json!({})).await;
    let spoken = discovered["supportedVersions"].as_array().expect("versions").clone();
    for version in ["2099-01-01", "2025-11-25", "", "latest"] {
        let mut message = client.message(4, "tools/list", json!({}));
        message["params"]["_meta"][VERSION] = version.into();
        let headers = set(client.headers(&message), "MCP-Protocol-Version", &[version]);
        let response = client.post(&headers, message.to_string().as_bytes()).await;
        assert_eq!((response.status, response.code()), (400, -32022), "{version}");
        let data = response.json()["error"]["data"].clone();
        assert_eq!(data["requested"], version);
        let supported = data["supported"].as_array().expect("versions");
        assert!(!supported.is_empty() && supported.iter().all(|version| spoken.contains(version)), "{data}");
    }
}

#[tokio::test]
async fn of_several_things_wrong_the_first_in_order_is_told() {
    let schema = json!({"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}});
    let strict = Tool::raw("strict", "Needs tasks", schema, |_ctx: Ctx| async { Ok::<_, ToolError>("ran") }).task(TaskMode::Required);
    let server = guarded(registry([strict])).await;
    let plain = Client::new(server.port).with_token("a-token");
    let able = plain.clone().declaring(json!({"extensions": {TASKS: {}}}));
    let stranger = Client::new(server.port);
    let no_headers = vec![header("Content-Type", "application/json"), header("Authorization", "Bearer a-token")];
    let list = plain.message(1, "tools/list", json!({}));
    let mut unknown_version = plain.message(1, "tasks/list", json!({}));
    unknown_version["params"]["_meta"][VERSION] = "2099-01-01".into();
    let unknown_method = plain.message(1, "tasks/list", json!({}));
    let get = plain.message(1, "tasks/get", json!({"taskId": NOBODY}));
    let call = |client: &Client| client.message(1, "tools/call", json!({"name": "strict", "arguments": {"region": 5}}));
    let steps: [(&str, Headers, String, (u16, i64)); 11] = [
        ("origin", set(stranger.headers(&list), "Origin", &["https://evil.example"]), "{".into(), (403, -32600)),
        ("token", set(stranger.headers(&list), "Content-Type", &["text/plain"]), "{".into(), (401, -32600)),
        ("content type", set(plain.headers(&list), "Content-Type", &["text/plain"]), "{".into(), (415, -32600)),
        ("JSON", no_headers.clone(), "{".into(), (400, -32700)),
        ("_meta", no_headers.clone(), json!({"jsonrpc": "2.0", "id": 1, "method": "tasks/list"}).to_string(), (400, -32602)),
        ("headers", no_headers, unknown_version.to_string(), (400, -32020)),
        (
            "version",
            set(plain.headers(&unknown_version), "MCP-Protocol-Version", &["2099-01-01"]),
            unknown_version.to_string(),
            (400, -32022),
        ),
        ("method", plain.headers(&unknown_method), unknown_method.to_string(), (404, -32601)),
        ("capability of a method", plain.headers(&get), get.to_string(), (400, -32021)),
        ("capability of a tool", plain.headers(&call(&plain)), call(&plain).to_string(), (400, -32021)),
        ("argument headers", able.headers(&call(&able)), call(&able).to_string(), (400, -32020)),
    ];
    for (step, headers, body, expected) in steps {
        let response = plain.post(&headers, body.as_bytes()).await;
        assert_eq!((response.status, response.code()), expected, "{step}");
    }
    let last = able.raw("tasks/get", json!({"taskId": NOBODY})).await;
    assert_eq!((last.status, last.code()), (200, -32602), "what a handler refuses is no matter of HTTP");
}

// HTTP itself.

#[tokio::test]
async fn methods_of_other_eras_do_not_exist() {
    let server = echo_server().await;
    let client = server.client();
    for method in [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "roots/list",
        "sampling/createMessage",
        "tasks/result",
        "tasks/list",
    ] {
        let message = client.message(11, method, json!({"taskId": NOBODY}));
        assert_eq!(refusal(&client, &message, &client.headers(&message)).await, (404, -32601, json!(11)), "{method}");
    }
}

#[tokio::test]
async fn only_post_is_allowed() {
    let server = echo_server().await;
    let modern = [("Host", "localhost"), ("Accept", "text/event-stream"), ("MCP-Protocol-Version", "2026-07-28")];
    // What else there is belongs to sessions, which this era does not have.
    for (verb, allow) in [
        ("GET", "POST"),
        ("DELETE", "POST"),
        ("PUT", "POST, GET, DELETE"),
        ("PATCH", "POST, GET, DELETE"),
        ("OPTIONS", "POST, GET, DELETE"),
    ] {
        let response = server.client().bytes(&http(&format!("{verb} /mcp"), &modern, "")).await;
        assert_eq!((response.status, response.header("allow")), (405, Some(allow)), "{verb}");
    }
}

#[tokio::test]
async fn there_is_one_endpoint() {
    let server = echo_server().await;
    let client = server.client();
    let body = client.message(1, "tools/list", json!({})).to_string();
    for path in ["/", "/mcp/", "/MCP", "/mcp/x", "/sse", "//mcp"] {
        let request = http(&format!("POST {path}"), &[("Host", "localhost"), ("Content-Type", "application/json")], &body);
        assert_eq!(client.bytes(&request).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn a_body_that_does_not_say_it_is_json_is_not_read() {
    let server = echo_server().await;
    let client = server.client();
    let message = client.message(1, "tools/list", json!({}));
    let kinds: [(&[&str], u16); 6] = [
        (&[], 415),
        (&["text/plain"], 415),
        (&["application/json-patch+json"], 415),
        (&["application/x-www-form-urlencoded"], 415),
        (&["application/json"], 200),
        (&["Application/JSON; charset=utf-8"], 200),
    ];
    for (values, status) in kinds {
        let headers = set(client.headers(&message), "Content-Type", values);
        assert_eq!(client.post(&headers, message.to_string().as_bytes()).await.status, status, "{values:?}");
    }
}

#[tokio::test]
async fn other_hosts_and_pages_of_other_sites_are_turned_away() {
    let server = echo_server().await;
    let client = server.client();
    let message = client.message(1, "tools/list", json!({}));
    let (headers, body) = (client.headers(&message), message.to_string());
    for (host, origin, status) in [
        ("localhost", None, 200),
        ("127.0.0.1:9", Some("http://localhost:3000"), 200),
        ("[::1]:9", None, 200),
        ("evil.example", None, 403),
        ("localhost.evil.example", None, 403),
        ("127.0.0.1.evil.example:80", None, 403),
        ("localhost", Some("https://evil.example"), 403),
        ("localhost", Some("http://localhost.evil.example"), 403),
        ("localhost", Some("null"), 403),
    ] {
        let mut all = vec![("Host", host)];
        all.extend(origin.map(|origin| ("Origin", origin)));
        all.extend(headers.iter().map(|(key, value)| (key.as_str(), value.as_str())));
        assert_eq!(client.bytes(&http("POST /mcp", &all, &body)).await.status, status, "{host} {origin:?}");
    }
}

#[tokio::test]
async fn a_notification_is_accepted_without_a_word() {
    let server = echo_server().await;
    let client = server.client();
    for method in ["notifications/cancelled", "notifications/initialized", "notifications/unheard-of"] {
        let message = json!({"jsonrpc": "2.0", "method": method, "params": {"requestId": 1}});
        let response = send(&client, &message).await;
        assert_eq!((response.status, response.body.as_slice(), response.header("content-type")), (202, &b""[..], None), "{method}");
    }
}

#[tokio::test]
async fn a_request_gets_its_id_back_as_it_came() {
    let server = echo_server().await;
    let client = server.client();
    let ids = json!([0, 1, -7, 1_785_196_800_123_u64, 9_007_199_254_740_991_u64, "0", "", "a\"b\\c\u{e9}\n", "1785196800123"]);
    for id in ids.as_array().expect("ids") {
        for (method, outcome) in [("tools/list", "result"), ("tasks/list", "error")] {
            let mut message = client.message(1, method, json!({}));
            message["id"] = id.clone();
            let response = send(&client, &message).await.json();
            assert!(response.get(outcome).is_some(), "{response}");
            assert_eq!(response["id"], *id, "{method}");
        }
    }
}

#[tokio::test]
async fn there_are_no_sessions() {
    let server = TestServer::start(registry([Tool::raw("count", "Counts", open("count"), count)])).await;
    let client = server.plain_client();
    for params in [json!({"name": "count"}), json!({"name": "count", "_meta": {"progressToken": 1}})] {
        let message = client.message(1, "tools/call", params);
        let headers = set(set(client.headers(&message), "Mcp-Session-Id", &["s-1"]), "Last-Event-ID", &["s-1:4"]);
        let response = client.post(&headers, message.to_string().as_bytes()).await;
        assert_eq!(response.status, 200);
        assert_eq!(response.header("mcp-session-id"), None);
    }
}

#[tokio::test]
async fn a_stream_of_events_is_data_and_nothing_else() {
    let server = TestServer::start(registry([Tool::raw("count", "Counts", open("count"), count)])).await;
    let response = server.plain_client().raw("tools/call", json!({"name": "count", "_meta": {"progressToken": 1}})).await;
    assert_eq!(response.status, 200);
    assert_eq!(response.header("content-type"), Some("text/event-stream"));
    assert_eq!(response.header("x-accel-buffering"), Some("no"));
    assert_eq!(response.header("cache-control"), Some("no-cache"));
    let text = String::from_utf8(response.body).expect("UTF-8");
    assert!(text.ends_with("\n\n"), "{text:?}");
    assert!(text.lines().all(|line| line.is_empty() || line.starts_with("data: {") || line.starts_with(':')), "{text}");
    assert_eq!(text.matches("data: ").count(), 4, "{text}");
}

#[tokio::test]
async fn a_json_response_is_one_line() {
    let server = echo_server().await;
    let client = server.client();
    for (method, params) in [
        ("server/discover", json!({})),
        ("tools/list", json!({})),
        ("tools/call", json!({"name": "echo", "arguments": {"text": "two\nlines"}})),
        ("tools/call", json!({"name": "two\nlines"})),
        ("prompts/get", json!({"name": "hello"})),
    ] {
        let message = client.message(1, method, params);
        let mut headers = client.headers(&message);
        if let Some(name) = message["params"]["name"].as_str() {
            headers = set(headers, "Mcp-Name", &[&base64(name)]);
        }
        let response = client.post(&headers, message.to_string().as_bytes()).await;
        assert_eq!(response.header("content-type"), Some("application/json"), "{method}");
        assert!(response.status == 200 && !response.body.contains(&b'\n'), "{}", String::from_utf8_lossy(&response.body));
    }
}

#[tokio::test]
async fn json_that_a_tool_hands_on_cannot_break_the_framing() {
    let server = TestServer::start(registry([Tool::raw("mirror", "Gives back", open("mirror"), mirror)])).await;
    let client = server.plain_client();
    let spread = |params: Value| {
        let message = client.message(1, "tools/call", params);
        let body = message.to_string().replace("\"@\"", "{\n\n  \"a\":\r\n 1\n}");
        (client.headers(&message), body)
    };
    let (headers, body) = spread(json!({"name": "mirror", "arguments": "@"}));
    let response = client.post(&headers, body.as_bytes()).await;
    assert_eq!(response.json()["result"]["structuredContent"], json!({"a": 1}));
    assert!(!response.body.contains(&b'\n'), "{}", String::from_utf8_lossy(&response.body));
    let (headers, body) = spread(json!({"name": "mirror", "arguments": "@", "_meta": {"progressToken": 1}}));
    let response = client.post(&headers, body.as_bytes()).await;
    let text = String::from_utf8(response.body.clone()).expect("UTF-8");
    assert!(text.lines().all(|line| line.is_empty() || line.starts_with("data: {")), "{text}");
    assert_eq!(response.messages().last().expect("a response")["result"]["structuredContent"], json!({"a": 1}));
}

// Who is calling.

#[tokio::test]
async fn where_tokens_are_known_one_is_needed() {
    let server = guarded(registry([echo()])).await;
    let message = server.plain_client().message(1, "tools/list", json!({}));
    let headers = server.plain_client().headers(&message);
    for (value, status, challenge) in [
        (None, 401, "Bearer"),
        (Some(""), 401, "Bearer"),
        (Some("a-token"), 401, "Bearer"),
        (Some("Basic a-token"), 401, "Bearer"),
        (Some("Bearer wrong"), 401, "Bearer error=\"invalid_token\", error_description=\"the token is not known here\""),
        (Some("Bearer "), 400, "Bearer error=\"invalid_request\""),
        (Some("Bearer a-token b-token"), 400, "Bearer error=\"invalid_request\""),
    ] {
        let headers = set(headers.clone(), "Authorization", value.as_slice());
        let response = server.plain_client().post(&headers, message.to_string().as_bytes()).await;
        assert_eq!(response.status, status, "{value:?}");
        assert!(response.header("www-authenticate").is_some_and(|value| value.starts_with(challenge)), "{:?}", response.headers);
        assert!(response.json().get("result").is_none(), "{value:?}");
    }
    let tools = server.plain_client().with_token("a-token").ok("tools/list", json!({})).await;
    assert_eq!(tools["tools"][0]["name"], "echo");
}

#[tokio::test]
async fn the_task_of_another_caller_cannot_be_told_from_one_that_never_was() {
    let server = guarded(registry([forever()])).await;
    let (alice, bob) = (server.client().with_token("a-token"), server.client().with_token("b-token"));
    let id = alice.start("forever", json!({})).await;
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let params = |id: &str| json!({"taskId": id, "inputResponses": {"k": {"action": "accept"}}});
        let foreign = send(&bob, &bob.message(7, method, params(&id))).await;
        let unknown = send(&bob, &bob.message(7, method, params(NOBODY))).await;
        let nonsense = send(&bob, &bob.message(7, method, params("no-id-at-all"))).await;
        assert_eq!((foreign.status, foreign.code()), (200, -32602), "{method}");
        assert_eq!(foreign.json()["error"]["message"], "Task not found", "{method}");
        assert_eq!((foreign.status, &foreign.body), (unknown.status, &unknown.body), "{method}");
        assert_eq!((foreign.status, &foreign.body), (nonsense.status, &nonsense.body), "{method}");
    }
    assert_eq!(alice.get(&id).await["status"], "working", "Bob changed nothing");
}

#[tokio::test]
async fn the_task_of_another_caller_is_left_out_of_an_acknowledgement() {
    let server = guarded(registry([forever()])).await;
    let (alice, bob) = (server.client().with_token("a-token"), server.client().with_token("b-token"));
    let id = alice.start("forever", json!({})).await;
    let own = bob.start("forever", json!({})).await;
    let ids = json!({"taskIds": [id, NOBODY, own, "no-id-at-all"]});
    let mut stream = with_timeout("an acknowledgement", bob.listen(ids)).await;
    assert_eq!(stream.ack["params"]["notifications"], json!({"taskIds": [own]}));
    alice.cancel(&id).await;
    bob.cancel(&own).await;
    let mut seen = Vec::new();
    loop {
        let message = with_timeout("the end of Bob's task", stream.next()).await.expect("a message");
        seen.push(message["params"]["taskId"].clone());
        if message["params"]["status"] == "cancelled" {
            break;
        }
    }
    assert!(seen.iter().all(|task| *task == json!(own)), "{seen:?}");
}

#[tokio::test]
async fn an_id_in_a_header_lets_nobody_in_where_callers_are_known() {
    let (server, open) = (guarded(registry([forever()])).await, TestServer::start(registry([forever()])).await);
    let id = server.client().with_token("a-token").start("forever", json!({})).await;
    let theirs = open.client().start("forever", json!({})).await;
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        // All that who read a proxy's log has: the header.
        let message = |id: &str| server.client().message(7, method, json!({"taskId": id, "inputResponses": {}}));
        let headers = server.client().headers(&message(&id));
        assert!(headers.contains(&header("Mcp-Name", &id)), "{headers:?}");
        let refused = server.client().post(&headers, message(&id).to_string().as_bytes()).await;
        assert_eq!((refused.status, refused.json().get("result")), (401, None), "{method}");
        // Where there are no tokens everybody is one caller, and an id is all that it takes: such a server is for loopback alone.
        assert_eq!(send(&open.client(), &message(&theirs)).await.json()["result"]["resultType"], "complete", "{method}");
    }
    assert_eq!(server.client().with_token("a-token").get(&id).await["status"], "working");
}

#[tokio::test]
async fn task_methods_are_closed_to_requests_that_do_not_declare_the_extension() {
    let server = TestServer::start(registry([forever()])).await;
    let id = server.client().start("forever", json!({})).await;
    let old = server.plain_client().declaring(json!({"tasks": {"list": {}, "cancel": {}}, "elicitation": {}}));
    for (method, params) in [
        ("tasks/get", json!({"taskId": id})),
        ("tasks/update", json!({"taskId": id, "inputResponses": {}})),
        ("tasks/cancel", json!({"taskId": id})),
        ("tasks/get", json!({"taskId": NOBODY})),
        ("subscriptions/listen", json!({"notifications": {"taskIds": [id]}})),
    ] {
        let response = with_timeout("a refusal", old.raw(method, params)).await;
        assert_eq!((response.status, response.code()), (400, -32021), "{method}");
        assert_eq!(response.json()["error"]["data"], json!({"requiredCapabilities": {"extensions": {TASKS: {}}}}), "{method}");
    }
    assert_eq!(server.client().get(&id).await["status"], "working");
}

// What the server has.

#[tokio::test]
async fn discovery_tells_what_this_server_is() {
    let config = Config {
        name: "yard".to_owned(),
        version: "9.8.7".to_owned(),
        instructions: Some("Be kind.".to_owned()),
        list_ttl: Duration::from_secs(5),
        ..Config::default()
    };
    let server = start(registry([echo()]), config).await;
    let found = server.plain_client().ok("server/discover", json!({})).await;
    assert_eq!(found["supportedVersions"], json!(["2026-07-28"]));
    assert_eq!(found["capabilities"]["extensions"], json!({TASKS: {}}));
    assert_eq!(found["capabilities"].get("tasks"), None);
    assert_eq!(found["capabilities"]["tools"], json!({"listChanged": true}));
    assert_eq!(found["instructions"], "Be kind.");
    assert_eq!((&found["ttlMs"], &found["cacheScope"]), (&json!(5000), &json!("private")));
    assert_eq!(found["_meta"]["io.modelcontextprotocol/serverInfo"], json!({"name": "yard", "version": "9.8.7"}));
    assert_eq!(found.get("serverInfo"), None);
}

/// A server whose list of five tools has three pages.
async fn paged() -> TestServer {
    let tool = |name: &str| Tool::raw(name, "One of five", open(name), |_ctx: Ctx| async { Ok::<_, ToolError>("") });
    let config = Config { page_len: 2, list_ttl: Duration::from_secs(30), ..Config::default() };
    start(registry(["e", "a", "d", "b", "c"].map(tool)), config).await
}

#[tokio::test]
async fn pages_show_every_tool_once_and_in_order() {
    let server = paged().await;
    let client = server.client();
    let (mut names, mut sizes, mut cursor) = (Vec::new(), Vec::new(), Value::Null);
    while sizes.is_empty() || !cursor.is_null() {
        assert!(sizes.len() < 5, "the pages have no end");
        let params = if cursor.is_null() { json!({}) } else { json!({"cursor": cursor}) };
        let page = client.ok("tools/list", params).await;
        assert_eq!((&page["ttlMs"], &page["cacheScope"]), (&json!(30_000), &json!("private")));
        let tools = page["tools"].as_array().expect("tools").clone();
        sizes.push(tools.len());
        names.extend(tools.into_iter().map(|tool| tool["name"].as_str().expect("a name").to_owned()));
        cursor = page["nextCursor"].clone();
    }
    assert_eq!(names, ["e", "a", "d", "b", "c"]);
    assert_eq!(sizes, [2, 2, 1]);
}

#[tokio::test]
async fn a_tool_has_a_name_that_every_client_takes() {
    let named =
        |name: &str| Registry::new().tool(Tool::raw(name, "Named", open("named"), |_ctx: Ctx| async { Ok::<_, ToolError>("") })).is_ok();
    let (longest, longer) = ("x".repeat(128), "x".repeat(129));
    for (name, fits) in
        [("a", true), ("A.b-c_9", true), (&longest, true), ("", false), ("a b", false), ("a/b", false), ("ä", false), (&longer, false)]
    {
        assert_eq!(named(name), fits, "{name}");
    }
}

#[tokio::test]
async fn a_cursor_from_elsewhere_is_refused() {
    let server = paged().await;
    let client = server.client();
    let next = client.ok("tools/list", json!({})).await["nextCursor"].as_str().expect("a cursor").to_owned();
    for cursor in [json!(""), json!("2"), json!("from:2"), json!("%%%"), json!(format!("{next}x")), json!(2), json!({}), json!("é")] {
        for method in ["tools/list", "prompts/list", "resources/list", "resources/templates/list"] {
            let error = client.error(method, json!({"cursor": cursor})).await;
            assert_eq!(error["code"], -32602, "{method} {cursor}");
        }
    }
}

#[tokio::test]
async fn what_is_not_there_is_a_wrong_parameter() {
    let server = echo_server().await;
    let client = server.client();
    for (method, params) in [
        ("tools/call", json!({"name": "nobody"})),
        ("prompts/get", json!({"name": "nobody"})),
        ("resources/read", json!({"uri": "test://nothing"})),
        ("completion/complete", json!({"ref": {"type": "ref/prompt", "name": "nobody"}, "argument": {"name": "a", "value": ""}})),
    ] {
        let response = client.raw(method, params).await;
        assert_eq!((response.status, response.code()), (200, -32602), "{method}");
        let uri = response.json()["error"]["data"]["uri"].clone();
        assert_eq!(uri, if method == "resources/read" { json!("test://nothing") } else { Value::Null }, "{method}");
    }
}

#[tokio::test]
async fn arguments_that_do_not_fit_are_named_and_nothing_runs() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = runs.clone();
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}, "place": {"type": "object",
        "properties": {"city": {"type": "string"}}}}, "required": ["n"], "additionalProperties": false});
    let tool = Tool::raw("job", "Works", schema, move |_ctx: Ctx| {
        counter.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, ToolError>("ran") }
    });
    let server = TestServer::start(registry([tool.task(TaskMode::Always)])).await;
    for (arguments, named) in [
        (json!({}), "\"n\""),
        (json!({"n": 0}), "`n`"),
        (json!({"n": "1"}), "`n`"),
        (json!({"n": 1.5}), "`n`"),
        (json!({"n": 1, "place": {"city": 5}}), "`place/city`"),
        (json!({"n": 1, "extra": true}), "extra"),
    ] {
        let result = server.client().call("job", arguments.clone()).await;
        assert_eq!((&result["resultType"], &result["isError"]), (&json!("complete"), &json!(true)), "{arguments}");
        let text = result["content"][0]["text"].as_str().expect("a text");
        assert!(text.contains(named) && text.contains("`job`"), "{arguments}: {text}");
    }
    assert_eq!(runs.load(Ordering::Relaxed), 0);
    assert_eq!(server.server.engine().running(), 0);
}

#[tokio::test]
async fn a_result_that_breaks_its_own_schema_is_an_internal_error() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let wrong = Tool::raw("wrong", "Lies", open("wrong"), |_ctx: Ctx| async { Ok::<_, ToolError>(Json(json!({"n": "one"}))) });
    let silent = Tool::raw("silent", "Forgets", open("silent"), |_ctx: Ctx| async { Ok::<_, ToolError>("one") });
    let right = Tool::raw("right", "Keeps its word", open("right"), |_ctx: Ctx| async { Ok::<_, ToolError>(Json(json!({"n": 1}))) });
    let fails = Tool::raw("fails", "Fails", open("fails"), |_ctx: Ctx| async { Err::<&str, _>(ToolError::new("no luck")) });
    let server = TestServer::start(registry([wrong, silent, right, fails].map(|tool| tool.output_schema(schema.clone())))).await;
    let client = server.client();
    for name in ["wrong", "silent"] {
        let error = client.error("tools/call", json!({"name": name})).await;
        assert_eq!(error["code"], -32603, "{name}");
        assert!(error["message"].as_str().is_some_and(|text| text.contains(&format!("`{name}`"))), "{error}");
    }
    assert_eq!(client.call("right", json!({})).await["structuredContent"], json!({"n": 1}));
    let failed = client.call("fails", json!({})).await;
    assert_eq!((&failed["isError"], &failed["content"][0]["text"]), (&json!(true), &json!("no luck")));
}

// What a caller hears while it waits.

#[tokio::test]
async fn progress_carries_the_token_as_it_came_and_precedes_the_response() {
    let server = TestServer::start(registry([Tool::raw("count", "Counts", open("count"), count)])).await;
    for token in [json!("t"), json!("7"), json!(7), json!(0)] {
        let params = json!({"name": "count", "_meta": {"progressToken": token}});
        let messages = server.plain_client().messages("tools/call", params).await;
        let (response, notes) = messages.split_last().expect("a response");
        assert_eq!(response["result"]["content"][0]["text"], "counted");
        let progress: Vec<Option<f64>> = notes.iter().map(|note| note["params"]["progress"].as_f64()).collect();
        assert_eq!(progress, [Some(1.0), Some(2.0), Some(3.0)]);
        for note in notes {
            assert_eq!(note["method"], "notifications/progress");
            assert_eq!((&note["params"]["progressToken"], &note["params"]["message"]), (&token, &json!("counting")));
        }
    }
}

#[tokio::test]
async fn progress_that_does_not_grow_is_not_told() {
    let tools = Registry::new();
    let tool = Tool::raw("stumble", "Falls back now and then", json!({"type": "object"}), |ctx: Ctx| async move {
        for done in [1.0, 3.0, 2.0, 3.0, 5.0] {
            ctx.progress(Progress::at(done)).await?;
        }
        Ok("there")
    });
    tools.tool(tool).expect("a tool");
    let server = TestServer::start(tools).await;
    let messages = server.plain_client().messages("tools/call", json!({"name": "stumble", "_meta": {"progressToken": 1}})).await;
    let progress: Vec<Option<f64>> = messages.iter().map(|message| message["params"]["progress"].as_f64()).collect();
    assert_eq!(progress, [Some(1.0), Some(3.0), Some(5.0), None]);
}

#[tokio::test]
async fn progress_is_told_while_the_call_still_runs() {
    let gate = Arc::new(Notify::new());
    let opened = gate.clone();
    let tool = Tool::raw("wait", "Waits", open("wait"), move |ctx: Ctx| {
        let gate = gate.clone();
        async move {
            ctx.progress(Progress::at(1.0)).await?;
            gate.notified().await;
            Ok::<_, ToolError>("done")
        }
    });
    let server = TestServer::start(registry([tool])).await;
    let client = server.plain_client();
    let message = client.message(1, "tools/call", json!({"name": "wait", "_meta": {"progressToken": "p"}}));
    let mut events = with_timeout("a stream", client.open(&message)).await;
    let note = with_timeout("progress", events.next()).await.expect("progress");
    assert_eq!((&note["method"], &note["params"]["progress"]), (&json!("notifications/progress"), &json!(1.0)));
    opened.notify_one();
    let response = with_timeout("the response", events.next()).await.expect("a response");
    assert_eq!((&response["id"], &response["result"]["content"][0]["text"]), (&json!(1), &json!("done")));
    assert_eq!(with_timeout("the end", events.next()).await, None, "the response ends the stream");
}

#[tokio::test]
async fn a_caller_that_gives_no_token_hears_of_no_progress() {
    let server = TestServer::start(registry([Tool::raw("count", "Counts", open("count"), count)])).await;
    let response = server.plain_client().raw("tools/call", json!({"name": "count"})).await;
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(response.json()["result"]["content"][0]["text"], "counted");
}

#[tokio::test]
async fn log_lines_are_sent_from_the_wanted_level_on_and_only_when_wanted() {
    let server = TestServer::start(registry([Tool::raw("noise", "Talks", open("noise"), noise)])).await;
    let levels: [(Option<&str>, &[&str]); 5] = [
        (None, &[]),
        (Some("debug"), &["debug", "info", "warning", "error"]),
        (Some("notice"), &["warning", "error"]),
        (Some("warning"), &["warning", "error"]),
        (Some("emergency"), &[]),
    ];
    for (level, heard) in levels {
        let mut meta = json!({"progressToken": 1});
        if let Some(level) = level {
            meta["io.modelcontextprotocol/logLevel"] = level.into();
        }
        let messages = server.plain_client().messages("tools/call", json!({"name": "noise", "_meta": meta})).await;
        let (response, lines) = messages.split_last().expect("a response");
        assert_eq!(response["result"]["content"][0]["text"], "quiet again");
        assert!(lines.iter().all(|line| line["method"] == "notifications/message"), "{lines:?}");
        let levels: Vec<&str> = lines.iter().filter_map(|line| line["params"]["level"].as_str()).collect();
        assert_eq!(levels, heard, "{level:?}");
        assert!(lines.iter().all(|line| line["params"]["data"] == json!({"at": line["params"]["level"]})), "{lines:?}");
    }
}

#[tokio::test]
async fn a_log_level_that_does_not_exist_is_refused() {
    let server = TestServer::start(registry([Tool::raw("noise", "Talks", open("noise"), noise)])).await;
    for level in [json!("loud"), json!("Debug"), json!(""), json!(5), json!(["debug"])] {
        let params = json!({"name": "noise", "_meta": {"io.modelcontextprotocol/logLevel": level}});
        let response = server.plain_client().raw("tools/call", params).await;
        assert_eq!((response.status, response.code()), (400, -32602), "{level}");
    }
}
