//! HTTP as such: probes, pages in browsers, connections, and handlers that break.

use std::sync::Arc;

use serde_json::{Value, json};
use taskwire::{
    server::{Config, HttpConfig},
    tool::{Prompt, Resource, Round, TaskMode, ToolError},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    kit::{Client, Response, TestServer, manual_clock, soon},
    schema,
    tasks::{Gate, accept, name_form, registry},
};

const HEALTH: &str = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";

async fn start(http: HttpConfig) -> TestServer {
    TestServer::start_with(registry([]), Config { http, ..Config::default() }, Arc::new(manual_clock())).await
}

/// A response as text, head and body, on a connection of its own.
async fn once(server: &TestServer, line: &str, headers: &[(&str, &str)]) -> (String, String) {
    let lines: String = headers.iter().map(|(key, value)| format!("{key}: {value}\r\n")).collect();
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).await.expect("a connection");
    stream.write_all(format!("{line} HTTP/1.1\r\n{lines}Connection: close\r\n\r\n").as_bytes()).await.expect("writable");
    let mut text = String::new();
    soon("the response", stream.read_to_string(&mut text)).await.expect("readable");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    (head.to_ascii_lowercase(), body.to_owned())
}

/// One connection for several requests.
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(server: &TestServer) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port)).await.expect("a connection");
        Self { stream, buffer: Vec::new() }
    }

    async fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.expect("writable");
    }

    /// The next response, which must say how long it is.
    async fn response(&mut self) -> (String, Vec<u8>) {
        loop {
            let text = String::from_utf8_lossy(&self.buffer).into_owned();
            if let Some((head, _)) = text.split_once("\r\n\r\n") {
                let head = head.to_ascii_lowercase();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
                let (start, length) = (head.len() + 4, length.expect("a length"));
                if self.buffer.len() >= start + length {
                    let rest = self.buffer.split_off(start + length);
                    let whole = std::mem::replace(&mut self.buffer, rest);
                    return (head, whole[start..].to_vec());
                }
            }
            let n = soon("the response", self.stream.read_buf(&mut self.buffer)).await.expect("readable");
            assert!(n > 0, "the connection ended: {text}");
        }
    }

    async fn is_served(&mut self) {
        self.send(HEALTH).await;
        let (head, body) = self.response().await;
        assert!(head.starts_with("http/1.1 200 "), "{head}");
        assert_eq!(body, b"ok\n");
    }

    /// Sends a request of this client and gives its message.
    pub(crate) async fn request(&mut self, client: &Client, method: &str, params: Value) -> Value {
        let message = client.message(client.next_id(), method, params);
        let body = message.to_string();
        let mut text = format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n", body.len());
        for (key, value) in client.headers(&message) {
            text.push_str(&format!("{key}: {value}\r\n"));
        }
        self.send(&format!("{text}\r\n{body}")).await;
        message
    }

    /// The message that answers this request.
    pub(crate) async fn answer(&mut self, request: &Value) -> Value {
        let (_, body) = self.response().await;
        let answer: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(answer["id"], request["id"]);
        schema::check_response(request["method"].as_str().expect("a method"), &answer);
        answer
    }

    /// Sends a request of this client and gives the message that answers it.
    pub(crate) async fn ask(&mut self, client: &Client, method: &str, params: Value) -> Value {
        let request = self.request(client, method, params).await;
        self.answer(&request).await
    }

    /// Whether nothing more has come back.
    pub(crate) fn is_quiet(&self) -> bool {
        let read = self.stream.try_read(&mut [0; 1]);
        self.buffer.is_empty() && read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }
}

// Probes.

#[tokio::test]
async fn probes_are_answered_by_whatever_name_they_come() {
    let server = start(HttpConfig::default()).await;
    for path in ["/healthz", "/readyz"] {
        for host in ["localhost", "10.1.2.3:8787", "pod-7.cluster.internal", "evil.example"] {
            for (method, expected) in [("GET", "ok\n"), ("HEAD", "")] {
                let (head, body) = once(&server, &format!("{method} {path}"), &[("Host", host)]).await;
                assert!(head.starts_with("http/1.1 200 "), "{method} {path} {host}: {head}");
                assert_eq!(body, expected, "{method} {path} {host}");
            }
        }
    }
}

#[tokio::test]
async fn a_server_that_shuts_down_is_healthy_but_not_ready() {
    let gate = Gate::new();
    let mut server = TestServer::start(registry([gate.tool("slow").task(TaskMode::Always)])).await;
    let client = server.client();
    client.start("slow", json!({})).await;
    let mut events = client.listen(json!({})).await;
    server.stop();
    assert!(soon("the end of the stream", events.next()).await.is_some());
    for method in ["GET", "HEAD"] {
        let (head, _) = once(&server, &format!("{method} /readyz"), &[("Host", "pod-7")]).await;
        assert!(head.starts_with("http/1.1 503 "), "{head}");
        let (head, _) = once(&server, &format!("{method} /healthz"), &[("Host", "pod-7")]).await;
        assert!(head.starts_with("http/1.1 200 "), "{head}");
    }
    gate.go.send();
    soon("the shutdown", server.stopped()).await;
}

// Pages in browsers.

const APP: &str = "https://app.example";
const PREFLIGHT: [(&str, &str); 3] = [
    ("Host", "localhost"),
    ("Access-Control-Request-Method", "POST"),
    ("Access-Control-Request-Headers", "content-type, mcp-method, mcp-protocol-version"),
];

async fn with_app() -> TestServer {
    start(HttpConfig { allowed_origins: vec![APP.to_owned()], ..HttpConfig::default() }).await
}

async fn preflight(server: &TestServer, origin: &str) -> String {
    let headers: Vec<_> = PREFLIGHT.into_iter().chain([("Origin", origin)]).collect();
    let (head, body) = once(server, "OPTIONS /mcp", &headers).await;
    assert!(!head.starts_with("http/1.1 204 ") || body.is_empty(), "{body}");
    head
}

#[tokio::test]
async fn a_page_that_may_call_is_told_so_before_it_does() {
    let server = with_app().await;
    for origin in [APP, "http://localhost:3000"] {
        let head = preflight(&server, origin).await;
        assert!(head.starts_with("http/1.1 204 "), "{head}");
        let value = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        assert_eq!(value("access-control-allow-origin"), Some(origin));
        assert_eq!(value("access-control-allow-methods"), Some("post, get, delete"));
        let allowed = value("access-control-allow-headers").expect("the headers that a page may send");
        let asked = PREFLIGHT.iter().find(|(name, _)| name.eq_ignore_ascii_case("access-control-request-headers"));
        assert_eq!(Some(allowed), asked.map(|(_, value)| *value), "those that it asked for");
        assert_eq!(value("vary"), Some("origin"));
    }
}

#[tokio::test]
async fn a_page_that_may_not_call_is_told_nothing() {
    let server = with_app().await;
    for origin in ["https://evil.example", "null", "https://app.example.evil.example"] {
        let head = preflight(&server, origin).await;
        assert!(head.starts_with("http/1.1 403 "), "{head}");
        assert!(!head.contains("access-control-"), "{head}");
    }
}

async fn post_from(client: &Client, origin: Option<&str>) -> Response {
    let message = client.message(client.next_id(), "server/discover", json!({}));
    let mut headers = client.headers(&message);
    headers.extend(origin.map(|origin| ("Origin".to_owned(), origin.to_owned())));
    client.post(&headers, message.to_string().as_bytes()).await
}

#[tokio::test]
async fn a_page_that_may_call_may_read_the_answer() {
    let server = with_app().await;
    let client = server.client();
    let allowed = post_from(&client, Some(APP)).await;
    assert_eq!((allowed.status, allowed.header("access-control-allow-origin")), (200, Some(APP)));
    let foreign = post_from(&client, Some("https://evil.example")).await;
    assert_eq!((foreign.status, foreign.header("access-control-allow-origin")), (403, None));
    let no_page = post_from(&client, None).await;
    assert_eq!((no_page.status, no_page.header("access-control-allow-origin")), (200, None));
}

#[tokio::test]
async fn a_page_may_read_why_its_request_was_refused() {
    let server = with_app().await;
    let client = server.client();
    let origin = ("Origin".to_owned(), APP.to_owned());
    let refused = client.post(&[origin, ("Content-Type".to_owned(), "text/plain".to_owned())], b"{}").await;
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (415, Some(APP)));
}

// Connections.

#[tokio::test]
async fn so_many_connections_are_served_and_another_when_one_is_closed() {
    let server = start(HttpConfig { connections: 2, ..HttpConfig::default() }).await;
    let (mut first, mut second) = (Connection::open(&server).await, Connection::open(&server).await);
    first.is_served().await;
    second.is_served().await;
    let mut third = Connection::open(&server).await;
    third.send(HEALTH).await;
    for _ in 0..50 {
        first.is_served().await;
        second.is_served().await;
    }
    assert!(third.is_quiet(), "there is no room for it");
    drop(first);
    let (head, _) = third.response().await;
    assert!(head.starts_with("http/1.1 200 "), "{head}");
    second.is_served().await;
}

// Handlers that break.

fn broken() -> Result<Value, ToolError> {
    panic!("boom")
}

fn prompt(name: &str, result: impl Fn() -> Result<Value, ToolError> + Send + Sync + Clone + 'static) -> Prompt {
    Prompt::raw(json!({ "name": name }), move |_| {
        let result = result.clone();
        async move { result() }
    })
}

fn resource(uri: &str, result: impl Fn() -> Result<Value, ToolError> + Send + Sync + Clone + 'static) -> Resource {
    Resource::raw(json!({"uri": uri, "name": uri}), move |_| {
        let result = result.clone();
        async move { result() }
    })
}

#[tokio::test]
async fn a_handler_that_panics_is_an_internal_error_and_the_connection_lives_on() {
    let tools = registry([]);
    tools.prompt(prompt("broken", broken)).resource(resource("test://broken", broken));
    // Panics before there is anything to wait for.
    tools.resource(Resource::raw(json!({"uri": "test://rash", "name": "rash"}), |_| std::future::ready(broken())));
    let server = TestServer::start(tools).await;
    let client = server.client();
    let mut connection = Connection::open(&server).await;
    for (method, params) in [
        ("prompts/get", json!({"name": "broken"})),
        ("resources/read", json!({"uri": "test://broken"})),
        ("resources/read", json!({"uri": "test://rash"})),
    ] {
        let answer = connection.ask(&client, method, params).await;
        assert_eq!(answer["error"]["code"], -32603, "{method}: {answer}");
        let answer = connection.ask(&client, "server/discover", json!({})).await;
        assert_eq!(answer["result"]["resultType"], "complete");
    }
}

#[tokio::test]
async fn a_result_that_is_no_object_is_an_internal_error() {
    let tools = registry([]);
    let results = [json!([1]), json!("text"), json!(null), json!(7)];
    for (n, result) in results.iter().cloned().enumerate() {
        let same = result.clone();
        tools.prompt(prompt(&n.to_string(), move || Ok(result.clone())));
        tools.resource(resource(&format!("test://{n}"), move || Ok(same.clone())));
    }
    let server = TestServer::start(tools).await;
    let client = server.client();
    for (n, result) in results.iter().enumerate() {
        let error = client.error("prompts/get", json!({"name": n.to_string()})).await;
        assert_eq!(error["code"], -32603, "{result}");
        let error = client.error("resources/read", json!({"uri": format!("test://{n}")})).await;
        assert_eq!(error["code"], -32603, "{result}");
    }
}

#[tokio::test]
async fn what_came_of_a_round_is_not_for_the_cache() {
    let tools = registry([]);
    let contents = |text: &str| json!({"contents": [{"uri": "test://r", "text": text}]});
    tools.resource(Resource::raw(json!({"uri": "test://asks", "name": "asks"}), move |call| async move {
        match call.resumed.responses.get("name") {
            None => Err(ToolError::round(Round::ask("name", name_form("Name?")).with_state(json!(1)))),
            Some(answer) => Ok(contents(answer.as_str())),
        }
    }));
    tools.resource(resource("test://plain", move || Ok(contents("always the same"))));
    let server = TestServer::start(tools).await;
    let client = server.client();
    let plain = client.ok("resources/read", json!({"uri": "test://plain"})).await;
    assert_eq!((&plain["ttlMs"], &plain["cacheScope"]), (&json!(60_000), &json!("private")));
    let asked = client.ok("resources/read", json!({"uri": "test://asks"})).await;
    assert_eq!(asked["resultType"], "input_required");
    let params = json!({"uri": "test://asks", "requestState": asked["requestState"], "inputResponses": {"name": accept("Ada")}});
    let answered = client.ok("resources/read", params).await;
    assert_eq!((&answered["ttlMs"], &answered["cacheScope"]), (&json!(0), &json!("private")));
    assert!(answered["contents"][0]["text"].as_str().expect("a text").contains("Ada"), "{answered}");
}
