//! Traces: requests go on with the trace that they come with, work goes on with that of its call, and nobody waits for a collector.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use taskwire::{
    clock::SystemClock,
    server::{Config, Traces},
    tool::{Ctx, TaskMode, Tool, ToolError},
};

use self::collector::{Collector, attribute, named};
use crate::{
    kit::{Client, HOUR, SECOND, TestServer, manual_clock, passing, with_timeout},
    legacy::kit::LegacySession,
    tasks::{quick, registry, tool},
};

mod collector;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const UNSAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
const OTHER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A server that traces all requests that nobody has decided on.
fn traced(url: String, interval: Duration) -> Config {
    let mut traces = Traces::new(url);
    traces.interval = interval;
    Config { traces: Some(traces), ..Config::default() }
}

/// A tool that says where in a trace it is.
fn tells() -> Tool {
    tool("tells", &(), |(), ctx| async move { Ok::<String, ToolError>(ctx.traceparent().unwrap_or_default()) })
}

async fn wait<T: Send + 'static>(collector: &Collector, what: &'static str, look: impl Fn(&[Value]) -> Option<T> + Send + 'static) -> T {
    let collector = collector.clone();
    tokio::task::spawn_blocking(move || collector.wait(what, look)).await.expect("it came")
}

/// Calls a tool with this in `_meta` and these headers besides.
async fn call(client: &Client, tool: &str, meta: Value, more: &[(&str, &str)]) -> Value {
    let message = client.message(client.next_id(), "tools/call", json!({"name": tool, "arguments": {}, "_meta": meta}));
    let mut headers = client.headers(&message);
    headers.extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let response = client.post(&headers, message.to_string().as_bytes()).await;
    assert_eq!(response.status, 200, "{}", String::from_utf8_lossy(&response.body));
    response.json()["result"].clone()
}

#[tokio::test]
async fn a_request_goes_on_with_the_trace_of_its_meta_and_else_of_its_header() {
    let collector = Collector::start(&[]);
    let config = traced(collector.url(), Duration::ZERO);
    let server = TestServer::start_with(registry([quick("quick")]), config, Arc::new(manual_clock())).await;
    let client = server.client();
    call(&client, "quick", json!({"traceparent": PARENT, "tracestate": "a=1"}), &[("traceparent", OTHER)]).await;
    call(&client, "quick", json!({"traceparent": "00-malformed"}), &[("traceparent", OTHER)]).await;
    call(&client, "quick", json!({}), &[("traceparent", "ff-malformed"), ("tracestate", "a=1")]).await;
    let calls = wait(&collector, "the calls", |spans| named(spans, "tools/call quick", 3)).await;
    let place = |span: &Value| (span["traceId"].clone(), span["parentSpanId"].clone(), span["traceState"].clone());
    assert_eq!(place(&calls[0]), (json!(TRACE), json!(SPAN), json!("a=1")));
    assert_eq!(place(&calls[1]), (json!("0af7651916cd43dd8448eb211c80319c"), json!("b7ad6b7169203331"), Value::Null));
    assert_eq!((&calls[2]["parentSpanId"], &calls[2]["traceState"]), (&Value::Null, &Value::Null), "a trace of its own");
    assert_eq!(calls.iter().map(|span| span["kind"].as_u64()).collect::<Vec<_>>(), [Some(2); 3]);
    assert_eq!(attribute(&calls[0], "mcp.method.name"), Some("tools/call"));
    assert_eq!((attribute(&calls[0], "gen_ai.tool.name"), attribute(&calls[0], "error.type")), (Some("quick"), None));
    let runs = wait(&collector, "their work", |spans| named(spans, "run quick", 3)).await;
    for (run, call) in runs.iter().zip(&calls) {
        assert_eq!((&run["traceId"], &run["parentSpanId"]), (&call["traceId"], &call["spanId"]));
        assert_eq!(attribute(run, "taskwire.outcome"), Some("completed"));
    }
}

#[tokio::test]
async fn an_attempt_of_a_task_is_a_child_of_the_call_that_made_it() {
    let collector = Collector::start(&[]);
    let steps = tool("steps", &(), |(), ctx| async move {
        ctx.checkpoint(&1).await?;
        Ok::<String, ToolError>(ctx.traceparent().unwrap_or_default())
    });
    let config = traced(collector.url(), Duration::ZERO);
    let server = TestServer::start_with(registry([steps.task(TaskMode::Always)]), config, Arc::new(manual_clock())).await;
    let client = server.client();
    let id = client.start("steps", json!({})).await;
    let done = with_timeout("the end", client.until(&id, "completed")).await;
    let runs = wait(&collector, "the attempt", |spans| named(spans, "run steps", 1)).await;
    let calls = wait(&collector, "the call", |spans| named(spans, "tools/call steps", 1)).await;
    let (run, call) = (&runs[0], &calls[0]);
    assert_eq!((&run["traceId"], &run["parentSpanId"]), (&call["traceId"], &call["spanId"]));
    assert_eq!((attribute(run, "taskwire.task.id"), attribute(run, "taskwire.attempt")), (Some(id.as_str()), Some("1")));
    assert_eq!(run["events"][0]["name"], "checkpoint committed", "{run}");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let told = format!("00-{}-{}-01", text(&run["traceId"]), text(&run["spanId"]));
    assert_eq!(done["result"]["content"][0]["text"], told, "the tool knows its own span: {done}");
}

#[tokio::test]
async fn what_is_not_to_be_traced_leaves_no_spans_and_tools_are_told_so() {
    let collector = Collector::start(&[]);
    let config = traced(collector.url(), Duration::ZERO);
    let server = TestServer::start_with(registry([tells()]), config, Arc::new(manual_clock())).await;
    let client = server.client();
    let unsampled = call(&client, "tells", json!({"traceparent": UNSAMPLED}), &[]).await;
    assert_eq!(unsampled["content"][0]["text"], UNSAMPLED, "{unsampled}");
    call(&client, "tells", json!({"traceparent": OTHER}), &[]).await;
    let all = |spans: &[Value]| named(spans, "run tells", 1).and(named(spans, "tools/call tells", 1)).map(|_| spans.to_vec());
    let spans = wait(&collector, "the traced call", all).await;
    assert!(spans.iter().all(|span| span["traceId"] != TRACE), "{spans:#?}");
}

#[tokio::test]
async fn a_trace_goes_through_a_server_that_traces_nothing() {
    let server = TestServer::start(registry([tells()])).await;
    let told = call(&server.client(), "tells", json!({}), &[("traceparent", PARENT)]).await;
    assert_eq!(told["content"][0]["text"], PARENT, "{told}");
    let none = call(&server.client(), "tells", json!({}), &[]).await;
    assert_eq!(none["content"][0]["text"], "", "{none}");
}

#[tokio::test]
async fn calls_of_sessions_are_traced_and_so_are_errors() {
    let collector = Collector::start(&[]);
    let config = traced(collector.url(), Duration::ZERO);
    let server = TestServer::start_with(registry([quick("quick")]), config, Arc::new(manual_clock())).await;
    let session = LegacySession::open(&server).await;
    session.ok("tools/call", json!({"name": "quick", "arguments": {}, "_meta": {"traceparent": PARENT}})).await;
    session.error("tools/call", json!({"name": "nobody_has_this", "arguments": {}})).await;
    let calls = wait(&collector, "the call", |spans| named(spans, "tools/call quick", 1)).await;
    assert_eq!((&calls[0]["traceId"], &calls[0]["parentSpanId"]), (&json!(TRACE), &json!(SPAN)));
    let failed = wait(&collector, "the error", |spans| named(spans, "tools/call", 1)).await;
    assert_eq!((attribute(&failed[0], "error.type"), &failed[0]["status"]["code"]), (Some("-32602"), &json!(2)), "{}", failed[0]);
    wait(&collector, "the beginning of the session", |spans| named(spans, "initialize", 1)).await;
}

#[tokio::test]
async fn a_request_that_fails_has_a_span_with_the_code_of_its_error_and_nothing_that_was_sent() {
    let collector = Collector::start(&[]);
    let schema = json!({"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}});
    let placed = Tool::raw("placed", "Is somewhere", schema, |_ctx: Ctx| async { Ok::<_, ToolError>("done") });
    let config = traced(collector.url(), Duration::ZERO);
    let server = TestServer::start_with(registry([placed]), config, Arc::new(manual_clock())).await;
    let client = server.client();
    let message = client.message(1, "tools/call", json!({"name": "placed", "arguments": {"region": "an-argument"}}));
    let mut headers = client.headers(&message);
    headers.push(("Mcp-Param-Region".to_owned(), "another-one".to_owned()));
    let response = client.post(&headers, message.to_string().as_bytes()).await;
    assert_eq!((response.status, response.code()), (400, -32020));
    let is_call = |span: &&Value| span["name"].as_str().is_some_and(|name| name.starts_with("tools/call"));
    let failed = wait(&collector, "the call", move |spans| spans.iter().find(is_call).cloned()).await;
    assert_eq!(failed["status"], json!({"code": 2, "message": "error -32020"}), "{failed}");
    assert!(!["an-argument", "another-one"].iter().any(|sent| failed.to_string().contains(sent)), "{failed}");
}

#[tokio::test]
async fn a_request_of_a_session_that_is_refused_at_once_has_a_span_too() {
    let collector = Collector::start(&[]);
    let mut config = traced(collector.url(), Duration::ZERO);
    config.engine.limits.requests_per_second_per_caller = 1;
    let server = TestServer::start_with(registry([quick("quick")]), config, Arc::new(manual_clock())).await;
    let session = LegacySession::open(&server).await;
    assert_eq!(session.raw("ping", json!({})).await.status, 200, "what comes in two seconds may come at once");
    assert_eq!(session.raw("tools/list", json!({})).await.status, 429);
    let spans = wait(&collector, "its span", |spans| named(spans, "tools/list", 1)).await;
    assert_eq!(attribute(&spans[0], "error.type"), Some("-31001"), "{}", spans[0]);
}

/// How many spans a server has dropped, as its metrics say.
async fn dropped(server: &TestServer) -> u64 {
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let response = Client::new(server.port).bytes(request.as_bytes()).await;
    let text = String::from_utf8(response.body).expect("UTF-8");
    let count = text.lines().find_map(|line| line.strip_prefix("taskwire_spans_dropped_total ")?.parse().ok());
    count.unwrap_or_else(|| panic!("no such metric: {text}"))
}

#[tokio::test]
async fn without_a_collector_calls_are_answered_and_spans_are_dropped_and_counted() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let clock = manual_clock();
    let config = traced(format!("http://{nobody}"), Duration::ZERO);
    let server = TestServer::start_with(registry([quick("quick")]), config, Arc::new(clock.clone())).await;
    for _ in 0..3 {
        let done = with_timeout("the result", server.client().call("quick", json!({}))).await;
        assert_eq!(done["content"][0]["text"], "done");
    }
    assert_eq!(dropped(&server).await, 0, "they are sent again for a while");
    let all_dropped = async { while dropped(&server).await < 6 {} };
    with_timeout("the last try", passing(&clock, SECOND, all_dropped)).await;
    assert_eq!(dropped(&server).await, 6, "a call and its work are a span each");
}

#[tokio::test]
async fn a_collector_that_is_busy_gets_spans_again_when_it_asked_for_that() {
    let collector = Collector::start(&["503 Service Unavailable\r\nRetry-After: 3", "429 Too Many Requests"]);
    let clock = manual_clock();
    let config = traced(collector.url(), Duration::ZERO);
    let server = TestServer::start_with(registry([quick("quick")]), config, Arc::new(clock.clone())).await;
    server.client().call("quick", json!({})).await;
    let came = wait(&collector, "both spans", |spans| named(spans, "run quick", 1).and(named(spans, "tools/call quick", 1)));
    passing(&clock, SECOND, came).await;
    assert_eq!(dropped(&server).await, 0);
}

#[tokio::test]
async fn spans_that_a_collector_refuses_for_good_are_dropped_at_once() {
    let collector = Collector::start(&["400 Bad Request", "400 Bad Request"]);
    let config = traced(collector.url(), Duration::ZERO);
    let server = TestServer::start_with(registry([quick("quick")]), config, Arc::new(manual_clock())).await;
    server.client().call("quick", json!({})).await;
    with_timeout("the refusal", async { while dropped(&server).await == 0 {} }).await;
}

#[tokio::test]
async fn a_server_that_ends_sends_what_it_has() {
    let collector = Collector::start(&[]);
    let config = traced(collector.url(), HOUR);
    let server = TestServer::start_with(registry([quick("quick")]), config, Arc::new(SystemClock)).await;
    server.client().call("quick", json!({})).await;
    with_timeout("the end", server.stopped()).await;
    wait(&collector, "the call", |spans| named(spans, "tools/call quick", 1)).await;
}
