//! HTTP as such: probes, pages in browsers, to whom requests are addressed, connections, and handlers that break.

use std::sync::Arc;

use serde_json::{Value, json};
use taskwire::{
    clock::Clock,
    server::{Config, HttpConfig},
    tool::{InputRequired, Prompt, Resource, TaskMode, ToolError},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{
    kit::{Client, Response, SECOND, TestServer, manual_clock, passing, read_response, until_there_is_room, with_timeout},
    schema,
    tasks::{Gate, accept, name_form, registry, tool, two_callers},
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
    with_timeout("the response", stream.read_to_string(&mut text)).await.expect("readable");
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

    pub(crate) async fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.expect("writable");
    }

    /// The next response, which must say how long it is.
    pub(crate) async fn response(&mut self) -> (String, Vec<u8>) {
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
            let n = with_timeout("the response", self.stream.read_buf(&mut self.buffer)).await.expect("readable");
            assert!(n > 0, "the connection ended: {text}");
        }
    }

    /// With a request of which the server has the head, with these lines more, and so much of the body.
    pub(crate) async fn half_sent(server: &TestServer, lines: &str, length: usize, body: &str) -> Self {
        let mut connection = Self::open(server).await;
        let kind = "Content-Type: application/json\r\nExpect: 100-continue";
        connection.send(&format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\n{kind}\r\n{lines}Content-Length: {length}\r\n\r\n")).await;
        let mut go_ahead = [0; 25];
        with_timeout("the server's word", connection.stream.read_exact(&mut go_ahead)).await.expect("readable");
        assert_eq!(&go_ahead, b"HTTP/1.1 100 Continue\r\n\r\n");
        connection.send(body).await;
        connection
    }

    async fn is_served(&mut self) {
        self.send(HEALTH).await;
        let (head, body) = self.response().await;
        assert!(head.starts_with("http/1.1 200 "), "{head}");
        assert_eq!(body, b"ok\n");
    }

    /// The server has no room for it, answers its only request with that, and hangs up.
    async fn until_refused(mut self, client: &Client) {
        self.request(client, "server/discover", json!({})).await;
        let (head, body) = self.response().await;
        assert!(head.starts_with("http/1.1 503 "), "{head}");
        for line in ["retry-after: 1", "connection: close", "content-type: application/json"] {
            assert!(head.lines().any(|found| found == line), "{line}: {head}");
        }
        let refusal: Value = serde_json::from_slice(&body).expect("JSON");
        schema::check_error(&refusal);
        assert_eq!(refusal["error"]["code"], -31002, "{refusal}");
        assert!(refusal["error"]["message"].as_str().is_some_and(|why| why.contains("`http.connections`")), "{refusal}");
        self.is_closed().await;
    }

    /// The server has hung up.
    async fn is_closed(&mut self) {
        let read = with_timeout("the end of the connection", self.stream.read(&mut [0; 1])).await;
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
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
    assert!(with_timeout("the end of the stream", events.next()).await.is_some());
    for method in ["GET", "HEAD"] {
        let (head, _) = once(&server, &format!("{method} /readyz"), &[("Host", "pod-7")]).await;
        assert!(head.starts_with("http/1.1 503 "), "{head}");
        let (head, _) = once(&server, &format!("{method} /healthz"), &[("Host", "pod-7")]).await;
        assert!(head.starts_with("http/1.1 200 "), "{head}");
    }
    gate.go.send();
    with_timeout("the shutdown", server.stopped()).await;
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

// To whom a request is addressed, and who sends it.

/// Asks what the server can do, with these lines at the head instead of `Host`; the status of the answer, and what it says.
async fn addressed(server: &TestServer, line: &str, lines: &[(&str, &str)]) -> (Response, String) {
    let client = server.client();
    let message = client.message(client.next_id(), "server/discover", json!({}));
    let (own, body) = (client.headers(&message), message.to_string());
    let own = own.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let head: String = own.chain(lines.iter().copied()).map(|(key, value)| format!("{key}: {value}\r\n")).collect();
    let request = format!("{line}\r\n{head}Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
    let response = with_timeout("the response", client.bytes(request.as_bytes())).await;
    let said = response.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
    (response, said)
}

#[tokio::test]
async fn what_only_begins_like_this_machine_is_turned_away() {
    let server = start(HttpConfig { allowed_hosts: vec!["tools.example".to_owned()], ..HttpConfig::default() }).await;
    for host in ["localhost", "LocalHost:80", "127.0.0.1:8787", "[::1]", "[::1]:8787", "tools.example", "tools.example:443"] {
        assert_eq!(addressed(&server, "POST /mcp HTTP/1.1", &[("Host", host)]).await.0.status, 200, "{host}");
    }
    for host in
        ["[::1].evil.com", "[::1]evil.com", "localhost:80@evil.com", "user@localhost", "localhost:x", "tools.example@evil.com", "[::1", ""]
    {
        let (refused, said) = addressed(&server, "POST /mcp HTTP/1.1", &[("Host", host)]).await;
        assert_eq!(refused.status, 400, "{host}: {said}");
        assert!(said.contains("is no host"), "{said}");
        let origin = format!("http://{host}");
        let (refused, said) = addressed(&server, "POST /mcp HTTP/1.1", &[("Host", "localhost"), ("Origin", &origin)]).await;
        assert_eq!(refused.status, 403, "{origin}: {said}");
    }
}

#[tokio::test]
async fn a_request_is_addressed_to_one_host() {
    let server = start(HttpConfig::default()).await;
    let cases: [(&str, &[&str], &str); 8] = [
        ("POST /mcp HTTP/1.1", &[], "`host` is missing"),
        ("POST /mcp HTTP/1.0", &[], "`host` is missing"),
        ("POST http://localhost/mcp HTTP/1.1", &[], "`host` is missing"),
        ("POST /mcp HTTP/1.1", &["localhost", "evil.com"], "`host` comes more than once"),
        ("POST /mcp HTTP/1.1", &["localhost", "localhost"], "`host` comes more than once"),
        ("POST http://evil.com/mcp HTTP/1.1", &["localhost"], "for `evil.com`"),
        ("POST http://localhost/mcp HTTP/1.1", &["evil.com"], "for `localhost`"),
        ("POST http://user@localhost/mcp HTTP/1.1", &["localhost"], "for `user@localhost`"),
    ];
    for (line, hosts, words) in cases {
        let mut lines: Vec<_> = hosts.iter().map(|host| ("Host", *host)).collect();
        // Not even a page that may call gets a CORS header for such a request.
        lines.push(("Origin", "http://localhost"));
        let (refused, said) = addressed(&server, line, &lines).await;
        assert_eq!(refused.status, 400, "{line} {hosts:?}: {said}");
        assert!(said.contains(words), "{line} {hosts:?}: {said}");
        assert_eq!(refused.header("access-control-allow-origin"), None, "{line} {hosts:?}");
    }
    let whole = addressed(&server, "POST http://localhost:8787/mcp HTTP/1.1", &[("Host", "localhost:8787")]).await.0;
    assert_eq!(whole.status, 200, "a proxy may say all of it");
    assert_eq!(addressed(&server, "POST http://evil.com/mcp HTTP/1.1", &[("Host", "evil.com")]).await.0.status, 403);
    assert_eq!(addressed(&server, "POST /mcp HTTP/1.0", &[("Host", "localhost")]).await.0.status, 200);
}

#[tokio::test]
async fn a_request_has_one_token_and_one_page() {
    let server = TestServer::start_with(registry([]), two_callers(), Arc::new(manual_clock())).await;
    let (ann, bob, nobody) = ("Bearer ann-token", "Bearer bob-token", "Bearer nobody");
    let host = ("Host", "localhost");
    assert_eq!(addressed(&server, "POST /mcp HTTP/1.1", &[host, ("Authorization", ann)]).await.0.status, 200);
    assert_eq!(addressed(&server, "POST /mcp HTTP/1.1", &[host, ("Authorization", nobody)]).await.0.status, 401);
    for [one, other] in [[ann, bob], [ann, ann], [ann, nobody], [nobody, ann]] {
        let lines = [host, ("Authorization", one), ("Authorization", other)];
        let (refused, said) = addressed(&server, "POST /mcp HTTP/1.1", &lines).await;
        assert_eq!(refused.status, 400, "{one}, {other}");
        assert!(said.contains("`authorization` comes more than once"), "{said}");
    }
    let lines = [host, ("Authorization", ann), ("Origin", "http://localhost"), ("Origin", "https://evil.example")];
    let (refused, said) = addressed(&server, "POST /mcp HTTP/1.1", &lines).await;
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (400, None), "{said}");
}

// Connections.

#[tokio::test]
async fn so_many_connections_are_served_and_another_when_one_is_closed() {
    let gate = Gate::new();
    let config = Config { http: HttpConfig { connections: 2, ..HttpConfig::default() }, ..Config::default() };
    let tools = registry([gate.tool("slow").task(TaskMode::Never)]);
    let server = TestServer::start_with(tools, config, Arc::new(manual_clock())).await;
    let client = server.client();
    let (mut first, mut second) = (Connection::open(&server).await, Connection::open(&server).await);
    first.request(&client, "tools/call", json!({"name": "slow", "arguments": {"n": 1}})).await;
    let call = second.request(&client, "tools/call", json!({"name": "slow", "arguments": {"n": 2}})).await;
    for _ in 0..2 {
        with_timeout("the start of a call", gate.started.wait()).await;
    }
    Connection::open(&server).await.until_refused(&client).await;
    drop(first);
    until_there_is_room(server.port).await;
    let mut third = Connection::open(&server).await;
    third.ask(&client, "server/discover", json!({})).await;
    gate.go.send();
    gate.go.send();
    assert_eq!(second.answer(&call).await["result"]["content"][0]["text"], "done");
    second.is_served().await;
}

#[tokio::test]
async fn silent_connections_give_way_to_whoever_has_something_to_say() {
    let server = start(HttpConfig { connections: 3, ..HttpConfig::default() }).await;
    let client = server.client();
    let mut silent = Vec::new();
    for sent in ["", "POST /mcp HT"] {
        let mut connection = Connection::open(&server).await;
        connection.send(sent).await;
        silent.push(connection);
    }
    silent.push(Connection::half_sent(&server, "", 9, "{").await);
    let mut served = Vec::new();
    for _ in 0..3 {
        let mut connection = Connection::open(&server).await;
        assert_eq!(connection.ask(&client, "server/discover", json!({})).await["result"]["resultType"], "complete");
        served.push(connection);
    }
    for mut connection in silent {
        connection.is_closed().await;
    }
    // Nor do those that have said all that they had to say stay for ever.
    Connection::open(&server).await.is_served().await;
    served.remove(0).is_closed().await;
    for mut connection in served {
        connection.is_served().await;
    }
}

#[tokio::test]
async fn who_is_not_let_in_goes_before_who_is() {
    let config = Config { http: HttpConfig { connections: 2, ..HttpConfig::default() }, ..two_callers() };
    let server = TestServer::start_with(registry([]), config, Arc::new(manual_clock())).await;
    let ann = server.client().with_token("ann-token");
    let (mut stranger, mut known) = (Connection::open(&server).await, Connection::open(&server).await);
    known.ask(&ann, "server/discover", json!({})).await;
    for _ in 0..3 {
        stranger.request(&server.client(), "server/discover", json!({})).await;
        let (head, _) = stranger.response().await;
        assert!(head.starts_with("http/1.1 401 "), "{head}");
    }
    let mut third = Connection::open(&server).await;
    third.ask(&ann, "server/discover", json!({})).await;
    stranger.is_closed().await;
    known.ask(&ann, "server/discover", json!({})).await;
}

#[tokio::test]
async fn a_stream_keeps_its_place_for_as_long_as_it_lasts() {
    let server = start(HttpConfig { connections: 1, ..HttpConfig::default() }).await;
    let client = server.client();
    let events = client.listen(json!({})).await;
    Connection::open(&server).await.until_refused(&client).await;
    drop(events);
    until_there_is_room(server.port).await;
    Connection::open(&server).await.ask(&client, "server/discover", json!({})).await;
}

#[tokio::test]
async fn while_streams_have_all_connections_others_are_refused_at_once_and_probes_are_answered() {
    let server = start(HttpConfig { connections: 2, ..HttpConfig::default() }).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let metrics = listener.local_addr().expect("an address").port();
    tokio::spawn({
        let server = server.server.clone();
        async move { server.serve_metrics(listener, std::future::pending()).await }
    });
    let client = server.client();
    let streams = [client.listen(json!({})).await, client.listen(json!({})).await];
    for _ in 0..3 {
        Connection::open(&server).await.until_refused(&client).await;
    }
    for path in ["/healthz", "/readyz"] {
        let (head, body) = once(&server, &format!("GET {path}"), &[("Host", "10.1.2.3")]).await;
        assert!(head.starts_with("http/1.1 200 ") && head.contains("connection: close"), "{path}: {head}");
        assert_eq!(body, "ok\n", "{path}");
    }
    let told = with_timeout("the metrics", Client::new(metrics).bytes(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")).await;
    let told = String::from_utf8(told.body).expect("text");
    assert!(told.contains("taskwire_http_refused_total{reason=\"connections\"} 3\n"), "{told}");
    drop(streams);
}

#[tokio::test]
async fn of_those_for_whom_there_is_no_room_the_silent_ones_are_cut_off() {
    let clock = manual_clock();
    let config = Config { http: HttpConfig { connections: 1, ..HttpConfig::default() }, ..Config::default() };
    let server = TestServer::start_with(registry([]), config, Arc::new(clock.clone())).await;
    let client = server.client();
    let stream = client.listen(json!({})).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(Connection::open(&server).await);
    }
    let (head, _) = once(&server, "GET /readyz", &[("Host", "localhost")]).await;
    assert!(head.starts_with("http/1.1 200 "), "{head}");
    silent[0].is_closed().await;
    let mut last = silent.pop().expect("the last of them");
    assert!(last.is_quiet(), "there are some at one time");
    let began = clock.now();
    passing(&clock, SECOND, last.is_closed()).await;
    assert!(clock.now().since(began) >= 2 * SECOND, "it had its time");
    Connection::open(&server).await.until_refused(&client).await;
    drop(stream);
}

#[tokio::test]
async fn an_answer_that_is_still_being_read_is_not_cut_off() {
    const BYTES: usize = 12 * 1024 * 1024;
    let config = Config { http: HttpConfig { connections: 1, ..HttpConfig::default() }, ..Config::default() };
    let large = tool("large", &(), |(), _ctx| async move { Ok("x".repeat(BYTES)) }).task(TaskMode::Never);
    let server = TestServer::start_with(registry([large]), config, Arc::new(manual_clock())).await;
    // More than the sockets take in: the server waits for this reader with most of it.
    let client = server.client().with_receive_buffer(128 * 1024);
    let message = client.message(client.next_id(), "tools/call", json!({"name": "large", "arguments": {}}));
    let stream = client.send(&client.headers(&message), message.to_string().as_bytes()).await;
    with_timeout("the beginning of the answer", stream.peek(&mut [0; 1])).await.expect("readable");
    Connection::open(&server).await.until_refused(&server.client()).await;
    let answer = with_timeout("the rest of the answer", read_response(stream)).await.json();
    assert_eq!(answer["result"]["content"][0]["text"].as_str().map(str::len), Some(BYTES));
    until_there_is_room(server.port).await;
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
        match call.resumed.answers.get("name") {
            None => Err(ToolError::input_required(InputRequired::ask("name", name_form("Name?")).with_state(json!(1)))),
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
