//! Input that no good client sends. Each is answered with an error, or not at all; nothing changes, and the server goes
//! on as if it had never come.

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
    server::{Config, HttpConfig},
    tool::{Ctx, Registry, TaskMode, Tool, ToolError},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

use crate::kit::{Client, Response, TestServer, with_timeout};

const MIB: usize = 1024 * 1024;

/// A server with one tool that each bad request would run if it were taken for a good one.
struct Target {
    server: TestServer,
    client: Client,
    runs: Arc<AtomicUsize>,
}

impl Target {
    async fn new() -> Self {
        Self::with(Config::default()).await
    }

    async fn with(config: Config) -> Self {
        let runs = Arc::new(AtomicUsize::new(0));
        let counter = runs.clone();
        let job = Tool::raw("job", "Works until it is stopped", json!({"type": "object"}), move |ctx: Ctx| {
            counter.fetch_add(1, Ordering::Relaxed);
            async move {
                ctx.cancelled().await;
                Err::<&str, _>(ToolError::stopped())
            }
        });
        let tools = Registry::new();
        tools.tool(job.task(TaskMode::Always)).expect("a tool");
        let server = TestServer::start_with(tools, config, Arc::new(SystemClock)).await;
        let client = server.client();
        Self { server, client, runs }
    }

    /// A call that is good in itself.
    fn call(&self) -> Value {
        self.client.message(1, "tools/call", json!({"name": "job", "arguments": {}}))
    }

    /// The call with this text instead of its arguments.
    fn call_with(&self, arguments: &str) -> String {
        self.client.message(1, "tools/call", json!({"name": "job", "arguments": "@"})).to_string().replace("\"@\"", arguments)
    }

    /// Posts a body under the headers of the good call.
    async fn post(&self, body: &[u8]) -> Response {
        with_timeout("an answer", self.client.post(&self.client.headers(&self.call()), body)).await
    }

    /// Posts a body and says with which status and error code it was refused.
    async fn refused(&self, body: &[u8]) -> (u16, i64) {
        let response = self.post(body).await;
        assert!(response.json().get("error").is_some(), "this was served: {}", String::from_utf8_lossy(&body[..body.len().min(500)]));
        (response.status, response.code())
    }

    /// The headers of the good call but for one, as text.
    fn headers_without(&self, name: &str) -> String {
        let headers = self.client.headers(&self.call()).into_iter().filter(|(key, _)| key != name);
        headers.map(|(key, value)| format!("{key}: {value}\r\n")).collect()
    }

    /// The head of a request that ends its connection, with these lines more.
    fn head(&self, lines: &str) -> String {
        format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{lines}\r\n")
    }

    /// Sends bytes and reads all that comes back until the server closes.
    async fn exchange(&self, bytes: &[u8]) -> String {
        let stream = TcpStream::connect(("127.0.0.1", self.server.port)).await.expect("a connection");
        let (mut from, mut to) = stream.into_split();
        let sending = async {
            // The server may close before it has read all.
            let _ = to.write_all(bytes).await;
        };
        let receiving = async {
            let mut all = Vec::new();
            let mut part = [0; 8192];
            while let Ok(n @ 1..) = from.read(&mut part).await {
                all.extend_from_slice(&part[..n]);
            }
            all
        };
        let ((), all) = with_timeout("the end of the connection", async { tokio::join!(sending, receiving) }).await;
        String::from_utf8_lossy(&all).into_owned()
    }

    /// Sends bytes that cannot be a request, and checks that they are refused with one of these, if with anything.
    async fn rejects(&self, what: &str, bytes: &[u8], statuses: &[&str]) {
        let answer = self.exchange(bytes).await;
        let status = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).unwrap_or_default();
        assert!(statuses.contains(&status), "{what}: {answer:?}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), usize::from(!status.is_empty()), "{what}: {answer:?}");
        self.unharmed().await;
    }

    /// The server still answers, and nothing was done.
    async fn unharmed(&self) {
        let listed = with_timeout("a good answer", self.client.ok("tools/list", json!({}))).await;
        assert_eq!(listed["tools"][0]["name"], "job");
        assert_eq!(self.runs.load(Ordering::Relaxed), 0, "a tool was run");
        let engine = self.server.server.engine();
        assert_eq!(engine.running(), 0, "something runs");
        assert!(engine.reader().open_tasks(None, 10).await.expect("the store can be read").is_empty(), "a task was made");
    }
}

fn arrays(levels: usize) -> String {
    format!("{}{}", "[".repeat(levels), "]".repeat(levels))
}

fn objects(levels: usize) -> String {
    format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels))
}

/// A chunked body.
fn chunked(chunk: &[u8], count: usize) -> Vec<u8> {
    let mut body = Vec::new();
    for _ in 0..count {
        body.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        body.extend_from_slice(chunk);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"0\r\n\r\n");
    body
}

#[tokio::test]
async fn the_call_that_is_spoiled_here_would_run() {
    let target = Target::new().await;
    let response = target.post(target.call_with("{}").as_bytes()).await;
    let id = response.json()["result"]["taskId"].as_str().expect("a task").to_owned();
    with_timeout("the work", target.client.until(&id, "working")).await;
    assert_eq!(target.server.server.engine().reader().open_tasks(None, 10).await.expect("the store can be read").len(), 1);
    target.client.cancel(&id).await;
    let head = target.head(&format!("{}Content-Length: {}\r\n", target.headers_without(""), target.call().to_string().len()));
    let answer = target.exchange(format!("{head}{}", target.call()).as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"resultType\":\"task\""), "{answer}");
}

#[tokio::test]
async fn what_is_not_json_is_a_parse_error() {
    let target = Target::new().await;
    let good = target.call().to_string();
    let bodies = [
        String::new(),
        " \r\n\t".to_owned(),
        "{".to_owned(),
        "nul".to_owned(),
        "NaN".to_owned(),
        "{'jsonrpc': '2.0'}".to_owned(),
        "job=1&x=2".to_owned(),
        "\0".to_owned(),
        good[..good.len() - 1].to_owned(),
        good[..good.len() / 2].to_owned(),
        format!("{good}}}"),
        format!("{good}{good}"),
        format!("{good}\0"),
        format!("\u{feff}{good}"),
        good.replace("tools/call", "tools\ncall"),
        good.replace("\"job\"", "\"j\0b\""),
        good.replace("\"job\"", "\"\\x\""),
        good.replace("\"job\"", "job"),
        good.replace("\"arguments\":{}", "\"arguments\":{,}"),
        good.replace("\"arguments\":{}", "\"arguments\":{\"n\":01}"),
        good.replace("\"arguments\":{}", "\"arguments\":{} // yes"),
    ];
    for body in bodies {
        assert_eq!(target.refused(body.as_bytes()).await, (400, -32700), "{body:?}");
    }
    target.unharmed().await;
}

#[tokio::test]
async fn what_is_not_utf_8_is_a_parse_error() {
    let target = Target::new().await;
    let good = target.call().to_string();
    let (before, after) = good.split_once("job").expect("a name");
    let broken: [&[u8]; 5] = [b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82"];
    for bytes in broken {
        let body = [before.as_bytes(), bytes, after.as_bytes()].concat();
        assert_eq!(target.refused(&body).await, (400, -32700), "{bytes:?}");
    }
    let wide: Vec<u8> = good.encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(target.refused(&wide).await, (400, -32700), "UTF-16");
    target.unharmed().await;
}

#[tokio::test]
async fn json_that_is_no_message_is_an_invalid_request() {
    let target = Target::new().await;
    let good = target.call();
    let changed = |key: &str, value: Value| {
        let mut message = good.clone();
        message[key] = value;
        message.to_string()
    };
    let without = |key: &str| {
        let mut message = good.clone();
        message.as_object_mut().expect("an object").remove(key);
        message.to_string()
    };
    let mut bodies: Vec<String> = ["null", "3", "\"x\"", "true", "{}", "[]", "[1]", " \n[{}]"].map(str::to_owned).into();
    bodies.extend([json!([good]).to_string(), json!([good, good]).to_string()]);
    bodies.extend(["1.0", "2.00", "", "2"].map(|version| changed("jsonrpc", version.into())));
    bodies.extend([changed("jsonrpc", json!(2.0)), changed("jsonrpc", Value::Null), without("jsonrpc")]);
    bodies.extend([Value::Null, json!(5), json!({}), json!(["tools/call"]), json!(true)].map(|method| changed("method", method)));
    bodies.push(without("method"));
    for body in bodies {
        assert_eq!(target.refused(body.as_bytes()).await, (400, -32600), "{body}");
    }
    target.unharmed().await;
}

#[tokio::test]
async fn an_id_that_is_neither_text_nor_a_whole_number_is_refused_without_one() {
    let target = Target::new().await;
    for id in ["null", "1.5", "1.0", "1e3", "-0.5", "true", "{}", "[]", "[1]", "{\"a\":1}", "99999999999999999999999999"] {
        let body = target.call().to_string().replace("\"id\":1", &format!("\"id\":{id}"));
        let response = target.post(body.as_bytes()).await;
        assert_eq!((response.status, response.code()), (400, -32600), "{id}");
        assert_eq!(response.json().get("id"), None, "{id}");
    }
    target.unharmed().await;
}

#[tokio::test]
async fn a_response_is_refused_with_and_without_an_id() {
    let target = Target::new().await;
    for body in [
        json!({"jsonrpc": "2.0", "id": 1, "result": {}}),
        json!({"jsonrpc": "2.0", "id": 1, "result": null}),
        json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32603, "message": "no"}}),
        json!({"jsonrpc": "2.0", "result": {}}),
        json!({"jsonrpc": "2.0", "error": {"code": -32700, "message": "no"}}),
    ] {
        let response = target.post(body.to_string().as_bytes()).await;
        assert_eq!(response.status, 400, "{body}");
        assert_eq!(response.code(), -32600, "{body}");
    }
    target.unharmed().await;
}

#[tokio::test]
async fn a_call_without_an_id_runs_nothing() {
    let target = Target::new().await;
    let mut message = target.call();
    message.as_object_mut().expect("an object").remove("id");
    let response = target.post(message.to_string().as_bytes()).await;
    assert_eq!((response.status, response.body.len()), (202, 0));
    target.unharmed().await;
}

#[tokio::test]
async fn params_that_are_no_object_are_refused() {
    let target = Target::new().await;
    for params in [Value::Null, json!([]), json!(["job", {}]), json!("job"), json!(5), json!(true)] {
        let mut message = target.call();
        message["params"] = params;
        let response = target.post(message.to_string().as_bytes()).await;
        assert_eq!((response.status, response.code(), &response.json()["id"]), (400, -32602, &json!(1)), "{message}");
    }
    target.unharmed().await;
}

#[tokio::test]
async fn a_parameter_of_the_wrong_type_is_refused() {
    let target = Target::new().await;
    let task = "00000000000000000000000000000000";
    let long = "k".repeat(257);
    let cases = [
        ("tools/call", json!({})),
        ("tools/call", json!({"name": null})),
        ("tools/call", json!({"name": 5})),
        ("tools/call", json!({"name": ["job"]})),
        ("tools/call", json!({"name": "job", "arguments": []})),
        ("tools/call", json!({"name": "job", "arguments": "{}"})),
        ("tools/call", json!({"name": "job", "arguments": 5})),
        ("tools/call", json!({"name": "job", "arguments": false})),
        ("tools/call", json!({"name": "job", "inputResponses": []})),
        ("tools/call", json!({"name": "job", "inputResponses": null})),
        ("tools/call", json!({"name": "job", "inputResponses": {"k": 5}})),
        ("tools/call", json!({"name": "job", "requestState": 5})),
        ("tools/call", json!({"name": "job", "requestState": "x"})),
        ("tools/call", json!({"name": "job", "_meta": {"progressToken": 1.5}})),
        ("tools/call", json!({"name": "job", "_meta": {"progressToken": {}}})),
        ("tools/call", json!({"name": "job", "_meta": {"io.modelcontextprotocol/logLevel": 5}})),
        ("tools/call", json!({"name": "job", "_meta": {"dev.taskwire/idempotencyKey": 5}})),
        ("tools/call", json!({"name": "job", "_meta": {"dev.taskwire/idempotencyKey": ""}})),
        ("tools/call", json!({"name": "job", "_meta": {"dev.taskwire/idempotencyKey": long}})),
        ("tasks/get", json!({})),
        ("tasks/get", json!({"taskId": 5})),
        ("tasks/get", json!({"taskId": ""})),
        ("tasks/get", json!({"taskId": "../../etc/passwd"})),
        ("tasks/update", json!({"taskId": task})),
        ("tasks/update", json!({"taskId": task, "inputResponses": []})),
        ("tasks/update", json!({"taskId": task, "inputResponses": {"k": "yes"}})),
        ("tasks/cancel", json!({"taskId": null})),
        ("tools/list", json!({"cursor": 5})),
        ("prompts/get", json!({"name": {}})),
        ("resources/read", json!({"uri": 5})),
        ("completion/complete", json!({"ref": 5, "argument": {"name": "a", "value": "b"}})),
        ("completion/complete", json!({"ref": {"type": "ref/prompt"}, "argument": {"name": "a", "value": "b"}})),
        ("completion/complete", json!({"ref": {"type": "ref/prompt", "name": "p"}})),
        ("subscriptions/listen", json!({})),
        ("subscriptions/listen", json!({"notifications": null})),
        ("subscriptions/listen", json!({"notifications": {"toolsListChanged": "yes"}})),
        ("subscriptions/listen", json!({"notifications": {"taskIds": task}})),
        ("subscriptions/listen", json!({"notifications": {"taskIds": [5]}})),
        ("subscriptions/listen", json!({"notifications": {"resourceSubscriptions": {}}})),
    ];
    for (method, params) in cases {
        let response = with_timeout("a refusal", target.client.raw(method, params.clone())).await;
        assert_eq!(response.json()["error"]["code"], -32602, "{method} {params}");
    }
    target.unharmed().await;
}

#[tokio::test]
async fn a_key_that_comes_twice_is_refused_on_every_level() {
    let target = Target::new().await;
    let good = target.call().to_string();
    let version = "\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\"";
    let versions = format!("{version},{version}");
    for (part, twice, code) in [
        ("\"id\":1", "\"id\":1,\"id\":2", -32600),
        ("\"id\":1", "\"id\":1,\"method\":\"ping\"", -32600),
        ("\"id\":1", "\"id\":1,\"params\":{}", -32600),
        ("\"id\":1", "\"id\":1,\"\\u0069d\":1", -32600),
        ("\"name\":\"job\"", "\"name\":\"job\",\"name\":\"job\"", -32602),
        ("\"name\":\"job\"", "\"name\":\"job\",\"n\\u0061me\":\"other\"", -32602),
        ("\"name\":\"job\"", "\"name\":\"job\",\"_meta\":{}", -32602),
        ("\"arguments\":{}", "\"arguments\":{},\"arguments\":{\"a\":1}", -32602),
        ("\"arguments\":{}", "\"arguments\":{\"a\":1,\"a\":1}", -32602),
        ("\"arguments\":{}", "\"arguments\":{\"a\":1,\"\\u0061\":2}", -32602),
        ("\"arguments\":{}", "\"arguments\":{\"a\":[{\"b\":{\"c\":1,\"c\":2}}]}", -32602),
        (version, versions.as_str(), -32602),
    ] {
        let body = good.replace(part, twice);
        assert_ne!(body, good, "{part} is not in {good}");
        assert_eq!(target.refused(body.as_bytes()).await.1, code, "{body}");
    }
    target.unharmed().await;
}

#[tokio::test]
async fn deep_nesting_is_refused_wherever_it_is_read() {
    let target = Target::new().await;
    let token = target.client.message(1, "tools/list", json!({"_meta": {"progressToken": "@"}})).to_string();
    let good = target.call().to_string();
    for levels in [1_000, 100_000] {
        for deep in [arrays(levels), objects(levels)] {
            let parts = [
                ("arguments", target.call_with(&deep), -32602),
                ("an argument", target.call_with(&format!("{{\"a\":{deep}}}")), -32602),
                ("the name", good.replace("\"job\"", &deep), -32602),
                ("the id", good.replace("\"id\":1", &format!("\"id\":{deep}")), -32600),
                ("the method", good.replace("\"tools/call\"", &deep), -32600),
                ("`_meta`", token.replace("\"@\"", &deep), -32602),
                ("the message", deep.clone(), -32600),
            ];
            for (part, body, code) in parts {
                assert_eq!(target.refused(body.as_bytes()).await.1, code, "{part}, {levels} levels");
            }
        }
    }
    target.unharmed().await;
}

#[tokio::test]
async fn deep_nesting_where_nobody_looks_does_no_harm() {
    let target = Target::new().await;
    let bodies = [
        target.client.message(1, "tools/list", json!({"_meta": {"com.example/x": "@"}})),
        target.client.message(1, "tools/list", json!({"unheard-of": "@"})),
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "unheard-of": "@", "params": target.call()["params"]}),
    ];
    for body in bodies {
        let headers = target.client.headers(&body);
        for deep in [arrays(100_000), objects(100_000)] {
            let text = body.to_string().replace("\"@\"", &deep);
            let response = with_timeout("an answer", target.client.post(&headers, text.as_bytes())).await;
            let answer = response.json();
            assert!(answer.get("result").is_some() || answer["error"]["code"].is_i64(), "{answer}");
            assert!([200, 400].contains(&response.status), "{}", response.status);
        }
    }
    target.unharmed().await;
}

#[tokio::test]
async fn text_that_is_no_text_is_refused() {
    let target = Target::new().await;
    for arguments in ["{\"a\":\"\\ud800\"}", "{\"\\udc00\":1}", "{\"a\":1e999}"] {
        assert_eq!(target.refused(target.call_with(arguments).as_bytes()).await.1, -32602, "{arguments}");
    }
    let message = target.client.message(1, "tools/call", json!({"name": "job\0"}));
    let mut headers = target.client.headers(&target.call());
    headers.retain(|(key, _)| key != "Mcp-Name");
    headers.push(("Mcp-Name".to_owned(), format!("=?base64?{}?=", BASE64_STANDARD.encode("job\0"))));
    let response = target.client.post(&headers, message.to_string().as_bytes()).await;
    assert_eq!(response.code(), -32602, "a NUL makes another name");
    target.unharmed().await;
}

#[tokio::test]
async fn methods_that_nobody_heard_of_do_not_exist() {
    let target = Target::new().await;
    // It is in the head, too.
    let long = "x".repeat(5_000);
    for method in ["x", "tools/Call", "tools/call/job", "tools", "rpc.discover", "tasks/delete", "notifications/tasks", "__proto__", &long]
    {
        let response = target.client.raw(method, json!({"name": "job", "arguments": {}})).await;
        assert_eq!((response.status, response.code()), (404, -32601), "{method}");
    }
    target.unharmed().await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_at_once() {
    let target = Target::new().await;
    let head = target.head(&format!("{}Content-Length: {}\r\n", target.headers_without(""), 10 * MIB));
    target.rejects("announced and not sent", head.as_bytes(), &["413"]).await;
    let body = [head.as_bytes(), &vec![b' '; 10 * MIB]].concat();
    target.rejects("announced and sent", &body, &["413"]).await;
    let head = target.head(&format!("{}Transfer-Encoding: chunked\r\n", target.headers_without("")));
    let body = [head.as_bytes(), &chunked(&[b' '; 65_536], 80)].concat();
    target.rejects("not announced", &body, &["413"]).await;
    let body = [head.as_bytes(), &b"ffffffffff\r\n"[..], &vec![b' '; 5 * MIB]].concat();
    target.rejects("one endless chunk", &body, &["413"]).await;
}

#[tokio::test]
async fn the_limit_of_a_body_is_exact() {
    let call_len = Target::new().await.call().to_string().len();
    let target = Target::with(Config { body_bytes: call_len + 10, ..Config::default() }).await;
    let padded = |spaces: usize| format!("{}{}", target.call_with("[]"), " ".repeat(spaces));
    assert_eq!(target.refused(padded(10).as_bytes()).await.1, -32602, "it is read to its end");
    assert_eq!(target.refused(padded(11).as_bytes()).await, (413, -32600));
    target.unharmed().await;
}

#[tokio::test]
async fn a_repeated_or_folded_or_broken_header_is_refused() {
    let target = Target::new().await;
    let body = target.call().to_string();
    let rest = target.headers_without("Mcp-Name");
    let length = format!("Content-Length: {}\r\n", body.len());
    for (what, lines) in [
        ("twice", "Mcp-Name: job\r\nMcp-Name: job\r\n"),
        ("twice, differently", "Mcp-Name: job\r\nmcp-name: other\r\n"),
        ("as a list", "Mcp-Name: job, job\r\n"),
        ("folded", "Mcp-Name: job\r\n other\r\n"),
        ("folded before the value", "Mcp-Name:\r\n job\r\n"),
        ("CR inside", "Mcp-Name: job\rX: y\r\n"),
        ("LF inside", "Mcp-Name: job\nMcp-Name: other\r\n"),
        ("NUL inside", "Mcp-Name: j\0b\r\n"),
        ("blank before the colon", "Mcp-Name : job\r\n"),
        ("no colon", "Mcp-Name job\r\n"),
        ("no name", ": job\r\nMcp-Name: job\r\n"),
        ("missing", ""),
    ] {
        let request = format!("{}{body}", target.head(&format!("{rest}{length}{lines}")));
        target.rejects(what, request.as_bytes(), &["400"]).await;
    }
    let head = target.head(&format!("{rest}{length}Mcp-Name: @\r\n"));
    let (before, after) = head.split_once('@').expect("a place");
    let request = [before.as_bytes(), &b"job\xff"[..], after.as_bytes(), body.as_bytes()].concat();
    target.rejects("not ASCII", &request, &["400"]).await;
}

#[tokio::test]
async fn a_length_that_is_no_length_is_refused() {
    let target = Target::new().await;
    let body = target.call().to_string();
    let (rest, len) = (target.headers_without(""), body.len());
    for (what, lines) in [
        ("negative", "Content-Length: -1\r\n".to_owned()),
        ("signed", format!("Content-Length: +{len}\r\n")),
        ("a list", format!("Content-Length: {len}, {len}\r\n")),
        ("hexadecimal", format!("Content-Length: 0x{len:x}\r\n")),
        ("empty", "Content-Length: \r\n".to_owned()),
        ("two of them", format!("Content-Length: {len}\r\nContent-Length: {}\r\n", len - 1)),
        ("more than there are numbers", "Content-Length: 99999999999999999999\r\n".to_owned()),
        ("an encoding nobody knows", "Transfer-Encoding: gzip\r\n".to_owned()),
        ("chunked, but not last", "Transfer-Encoding: chunked, identity\r\n".to_owned()),
    ] {
        let request = format!("{}{body}", target.head(&format!("{rest}{lines}")));
        target.rejects(what, request.as_bytes(), &["400"]).await;
    }
}

#[tokio::test]
async fn a_request_hidden_in_the_body_of_another_is_not_run() {
    let target = Target::new().await;
    let body = target.call().to_string();
    let rest = target.headers_without("");
    let hidden = format!("{}{body}", target.head(&format!("{rest}Content-Length: {}\r\n", body.len())));
    let lure = format!("0\r\n\r\n{hidden}");
    let (length, encoding) = (format!("Content-Length: {}\r\n", lure.len()), "Transfer-Encoding: chunked\r\n");
    for lines in [format!("{length}{encoding}"), format!("{encoding}{length}")] {
        let request = format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\n{rest}{lines}\r\n{lure}");
        target.rejects("two lengths", request.as_bytes(), &["400"]).await;
    }
}

#[tokio::test]
async fn a_broken_chunk_is_refused() {
    let target = Target::new().await;
    let head = target.head(&format!("{}Transfer-Encoding: chunked\r\n", target.headers_without("")));
    let body = target.call().to_string();
    for (what, chunks) in [
        ("no size", format!("\r\n{body}\r\n0\r\n\r\n")),
        ("no number", format!("zz\r\n{body}\r\n0\r\n\r\n")),
        ("negative", format!("-5\r\n{body}\r\n0\r\n\r\n")),
        ("too short", format!("5\r\n{body}\r\n0\r\n\r\n")),
        ("more than there are numbers", format!("fffffffffffffffff\r\n{body}\r\n0\r\n\r\n")),
    ] {
        target.rejects(what, format!("{head}{chunks}").as_bytes(), &["400", ""]).await;
    }
}

#[tokio::test]
async fn a_head_without_end_is_refused() {
    let target = Target::new().await;
    let refusals = ["400", "414", "431", ""];
    let huge = target.head(&format!("X-Huge: {}\r\n", "x".repeat(MIB)));
    target.rejects("a huge header", huge.as_bytes(), &refusals).await;
    let many: String = (0..10_000).map(|n| format!("X-{n}: {n}\r\n")).collect();
    target.rejects("many headers", target.head(&many).as_bytes(), &refusals).await;
    let long = format!("POST /mcp?{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(MIB));
    target.rejects("a long address", long.as_bytes(), &refusals).await;
    target.rejects("no head at all", &vec![b'x'; MIB], &refusals).await;
}

#[tokio::test]
async fn a_head_has_so_many_bytes_and_no_more() {
    let target = Target::new().await;
    let padded = |bytes: usize| target.head(&format!("X-Pad: {}\r\n", "x".repeat(bytes))).replace("POST /mcp", "GET /healthz");
    assert!(target.exchange(padded(15_000).as_bytes()).await.starts_with("HTTP/1.1 200 "));
    target.rejects("a large head", padded(40_000).as_bytes(), &["431", ""]).await;
}

#[tokio::test]
async fn what_is_not_http_is_refused() {
    let target = Target::new().await;
    let refusals = ["400", ""];
    let strange: [&[u8]; 7] = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"}\r\n\r\n",
        b"POST /mcp\r\n\r\n",
        b"POST /mcp HTTP/9.9\r\n\r\n",
        b"P\0ST /mcp HTTP/1.1\r\n\r\n",
        b"POST /m\0cp HTTP/1.1\r\n\r\n",
    ];
    for bytes in strange {
        target.rejects("not HTTP", bytes, &refusals).await;
    }
}

#[tokio::test]
async fn a_request_that_breaks_off_is_forgotten() {
    let target = Target::new().await;
    let body = target.call().to_string();
    let head = target.head(&format!("{}Content-Length: {}\r\n", target.headers_without(""), body.len()));
    let request = format!("{head}{body}");
    for sent in [0, 1, 20, head.len() - 2, head.len(), head.len() + 1, request.len() - 1] {
        let mut stream = TcpStream::connect(("127.0.0.1", target.server.port)).await.expect("a connection");
        stream.write_all(&request.as_bytes()[..sent]).await.expect("the beginning is sent");
        stream.shutdown().await.expect("the end is told");
        let mut answer = Vec::new();
        let _ = with_timeout("the end of the connection", stream.read_to_end(&mut answer)).await;
        assert!(!String::from_utf8_lossy(&answer).contains("\"result\""), "{sent} bytes were enough");
        target.unharmed().await;
    }
}

#[tokio::test]
async fn a_client_that_never_finishes_is_let_go() {
    let http = HttpConfig { read_timeout: Duration::from_millis(100), ..HttpConfig::default() };
    let target = Target::with(Config { http, ..Config::default() }).await;
    target.rejects("half a head", b"POST /mcp HTTP/1.1\r\nHost: loc", &["", "408"]).await;
    let head = target.head(&format!("{}Content-Length: 100\r\n", target.headers_without("")));
    target.rejects("half a body", format!("{head}{{").as_bytes(), &["408"]).await;
}

#[tokio::test]
async fn many_bad_requests_at_once_are_each_refused() {
    let target = Target::new().await;
    let headers = target.client.headers(&target.call());
    let mut senders = JoinSet::new();
    for sender in 0..16 {
        let (client, headers, deep) = (target.client.clone(), headers.clone(), target.call_with(&arrays(1_000)));
        senders.spawn(async move {
            for n in 0..40 {
                let (body, status) = match (sender + n) % 4 {
                    0 => ("{".to_owned(), 400),
                    1 => ("[]".to_owned(), 400),
                    2 => (deep.clone(), 200),
                    _ => ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{}}".to_owned(), 400),
                };
                let response = client.post(&headers, body.as_bytes()).await;
                assert_eq!((response.status, response.json().get("result")), (status, None), "{body}");
            }
        });
    }
    while let Some(ended) = with_timeout("all answers", senders.join_next()).await {
        ended.expect("each is refused");
    }
    target.unharmed().await;
}

#[tokio::test]
async fn many_bad_requests_on_one_connection_are_each_refused() {
    let target = Target::new().await;
    let lines = format!("{}Content-Length: 3\r\n", target.headers_without(""));
    let one = format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n{{x}}");
    let last = format!("{}{{x}}", target.head(&lines));
    let answer = target.exchange(format!("{}{last}", one.repeat(199)).as_bytes()).await;
    assert_eq!(answer.matches("HTTP/1.1 400 ").count(), 200);
    assert_eq!(answer.matches("-32700").count(), 200);
    target.unharmed().await;
}

/// Kilobytes of memory that this process has.
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the kernel tells");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn large_bad_bodies_leave_no_memory_behind() {
    let target = Target::new().await;
    let unended = [&b"{\"a\":\""[..], &vec![b'x'; 4 * MIB - 6]].concat();
    let head = target.head(&format!("{}Transfer-Encoding: chunked\r\n", target.headers_without("")));
    let endless = [head.as_bytes(), &chunked(&[b' '; 65_536], 72)].concat();
    let mut before = 0;
    for n in 0..100 {
        // The first ones fill what is then used again.
        if n == 10 {
            before = resident();
        }
        assert_eq!(target.refused(&unended).await, (400, -32700));
        assert!(target.exchange(&endless).await.starts_with("HTTP/1.1 413 "));
    }
    // Were the bodies kept, it would be 700 MiB. The other tests of this process use some, too.
    let grown = resident().saturating_sub(before);
    assert!(grown < 100 * 1024, "{grown} kB more than before");
    target.unharmed().await;
}

// Arguments that are made to be long to check.

/// A server with this one tool, which says that it ran.
async fn with_tool(schema: Value) -> TestServer {
    let tools = Registry::new();
    tools.tool(Tool::raw("eval", "Evaluates", schema, |_ctx: Ctx| async { Ok::<_, ToolError>("ran") })).expect("a tool");
    TestServer::start(tools).await
}

/// A recursive enumeration with tags, as libraries write it.
fn expression() -> Value {
    let inner = json!({"$ref": "#/$defs/Expr"});
    let unary = |kind: &str| json!({"type": "object", "properties": {"kind": {"const": kind}, "arg": inner}, "required": ["kind", "arg"]});
    let number =
        json!({"type": "object", "properties": {"kind": {"const": "num"}, "value": {"type": "number"}}, "required": ["kind", "value"]});
    let kinds = [unary("neg"), unary("abs"), unary("sin"), unary("cos"), unary("sqrt"), number];
    json!({"type": "object", "properties": {"expr": inner}, "required": ["expr"], "$defs": {"Expr": {"oneOf": kinds}}})
}

/// Arguments for it, so many levels deep, as text.
fn negations(levels: usize, value: &str) -> String {
    let deepest = format!("{{\"kind\":\"num\",\"value\":{value}}}");
    format!("{{\"expr\":{}{deepest}{}}}", "{\"kind\":\"neg\",\"arg\":".repeat(levels), "}".repeat(levels))
}

/// The answer to a call with these arguments.
async fn evaluated(client: &Client, arguments: &str) -> Value {
    let call = client.message(1, "tools/call", json!({"name": "eval", "arguments": "@"}));
    let body = call.to_string().replace("\"@\"", arguments);
    let response = with_timeout("an answer", client.post(&client.headers(&call), body.as_bytes())).await;
    response.messages().pop().expect("an answer")
}

#[tokio::test]
async fn a_recursive_choice_is_answered_with_the_field_however_deep_it_is_wrong() {
    let server = with_tool(expression()).await;
    let client = server.plain_client();
    for levels in [11, 14, 100] {
        let result = evaluated(&client, &negations(levels, "\"x\"")).await["result"].clone();
        assert_eq!(result["isError"], true, "{result}");
        let text = result["content"][0]["text"].as_str().expect("a text");
        assert!(text.contains("- `expr/arg/arg/") && text.ends_with("/arg/value`: \"x\" is not of type \"number\""), "{text}");
        assert!(text.len() < 500, "{text}");
        let result = evaluated(&client, &negations(levels, "1")).await["result"].clone();
        assert_eq!(result["content"][0]["text"], "ran", "what is deep and fits is taken: {result}");
    }
    // This is deeper than JSON may be here.
    let error = evaluated(&client, &negations(1_000, "\"x\"")).await["error"].clone();
    assert_eq!(error["code"], -32602, "{error}");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("`arguments`")), "{error}");
    assert_eq!(evaluated(&client, &negations(1, "1")).await["result"]["content"][0]["text"], "ran");
}

#[tokio::test]
async fn a_long_list_of_what_hashes_alike_is_answered() {
    let schema = json!({"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": true}}});
    let server = with_tool(schema).await;
    let client = server.plain_client();
    // Empty lists within each other, each list of another shape.
    let shape = |number: u32| {
        (0..16).fold("[]".to_owned(), |inner, bit| if number & (1 << bit) == 0 { format!("[{inner}]") } else { format!("[{inner},[]]") })
    };
    let list: Vec<String> = (0..40_000).map(shape).collect();
    let result = evaluated(&client, &format!("{{\"tags\":[{}]}}", list.join(","))).await["result"].clone();
    assert_eq!(result["isError"], true, "{result}");
    assert!(result["content"][0]["text"].as_str().is_some_and(|text| text.contains("- `tags/0`: ") && text.len() < 4_000), "{result}");
}

#[tokio::test]
async fn what_is_wrong_is_repeated_in_part() {
    let server = with_tool(json!({"type": "object", "properties": {"id": {"type": "string", "maxLength": 8}}})).await;
    let result = evaluated(&server.plain_client(), &format!("{{\"id\":\"{}\"}}", "ä".repeat(MIB))).await["result"].clone();
    let text = result["content"][0]["text"].as_str().expect("a text");
    assert!(text.ends_with("… is longer than 8 characters") && text.chars().count() < 300, "{text}");
}
