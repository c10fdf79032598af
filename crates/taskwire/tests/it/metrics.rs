//! `/metrics`: what it tells after known work, who may read it, and that labels have a bound.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};
use taskwire::{
    core::{Seq, TaskId},
    server::Config,
    store::Memory,
    tool::{TaskMode, Tool, ToolError},
};
use tokio::net::TcpListener;

use self::text::Metrics;
use crate::{
    kit::{Client, Response, SECOND, TestServer, manual_clock, with_timeout},
    legacy::kit::LegacySession,
    nodes::SharedStore,
    tasks::{Gate, accept, name_form, quick, registry, tool, two_callers, until_open},
};

mod text;

/// Tools that have names of their own in the labels.
const NAMED_TOOLS: usize = 200;

async fn get(port: u16, path: &str, headers: &[(&str, &str)]) -> Response {
    let lines: String = headers.iter().map(|(key, value)| format!("{key}: {value}\r\n")).collect();
    let request = format!("GET {path} HTTP/1.1\r\n{lines}\r\n");
    with_timeout("the response", Client::new(port).bytes(request.as_bytes())).await
}

#[track_caller]
fn told(response: &Response) -> Metrics {
    assert_eq!(response.status, 200, "{}", String::from_utf8_lossy(&response.body));
    assert_eq!(response.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    Metrics::parse(std::str::from_utf8(&response.body).expect("UTF-8"))
}

async fn scrape(server: &TestServer) -> Metrics {
    told(&get(server.port, "/metrics", &[("Host", "localhost")]).await)
}

/// Scrapes until a series has this value: what ends may end a moment after whoever waits for it has heard of that.
async fn until(server: &TestServer, name: &str, labels: &[(&str, &str)], value: f64) -> Metrics {
    let look = async {
        loop {
            let metrics = scrape(server).await;
            if metrics.get(name, labels) == Some(value) {
                return metrics;
            }
        }
    };
    with_timeout(name, look).await
}

fn always(name: &str, error: fn() -> ToolError) -> Tool {
    tool(name, &error, |error, _ctx| async move { Err::<&'static str, ToolError>(error()) }).task(TaskMode::Always)
}

// What is counted.

#[tokio::test]
async fn work_is_counted_by_its_tool_and_how_it_ended() {
    let gate = Gate::new();
    let strict = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let tools = [
        quick("quick"),
        gate.tool("slow").task(TaskMode::Always),
        always("broken", || ToolError::new("it broke")),
        always("refuses", || ToolError::protocol(7, "it does not want to")),
        Tool::raw("strict", "Wants a number", strict, |_ctx| async { Ok::<_, ToolError>("done") }),
    ];
    let server = TestServer::start_with(registry(tools), Config::default(), Arc::new(manual_clock())).await;
    let client = server.client();
    for _ in 0..3 {
        client.call("quick", json!({})).await;
    }
    let (first, second) = (client.start("slow", json!({})).await, client.start("slow", json!({})).await);
    client.cancel(&second).await;
    with_timeout("the cancellation", client.until(&second, "cancelled")).await;
    gate.stopped.wait().await;
    gate.go.send();
    with_timeout("the end", client.until(&first, "completed")).await;
    for (tool, status) in [("broken", "completed"), ("refuses", "failed")] {
        let id = client.start(tool, json!({})).await;
        with_timeout("the end", client.until(&id, status)).await;
    }
    assert_eq!(client.call("strict", json!({})).await["isError"], true);
    client.error("tools/call", json!({"name": "nobody_has_this", "arguments": {}})).await;
    let metrics = until(&server, "taskwire_tasks_open", &[("tool", "slow"), ("status", "working")], 0.0).await;
    let calls = |tool, answer| metrics.get("taskwire_calls_total", &[("tool", tool), ("era", "modern"), ("answer", answer)]);
    let answers = [("quick", "immediate"), ("slow", "task"), ("broken", "task"), ("refuses", "task"), ("strict", "invalid")];
    assert_eq!(answers.map(|(tool, answer)| calls(tool, answer)), [Some(3.0), Some(2.0), Some(1.0), Some(1.0), Some(1.0)]);
    assert_eq!(metrics.sum("taskwire_calls_total"), 8.0, "and no others: {metrics:#?}");
    let ended = |tool, outcome| metrics.value("taskwire_tasks_ended_total", &[("tool", tool), ("outcome", outcome)]);
    let outcomes = [("slow", "completed"), ("slow", "cancelled"), ("broken", "tool_error"), ("refuses", "failed")];
    assert_eq!(outcomes.map(|(tool, outcome)| ended(tool, outcome)), [1.0; 4]);
    assert_eq!(metrics.sum("taskwire_tasks_ended_total"), 4.0);
    let of = |name, tool| metrics.value(name, &[("tool", tool)]);
    let created = ["quick", "slow", "broken", "refuses", "strict"].map(|tool| of("taskwire_tasks_created_total", tool));
    assert_eq!(created, [0.0, 2.0, 1.0, 1.0, 0.0]);
    assert_eq!((of("taskwire_task_duration_seconds_count", "slow"), of("taskwire_task_duration_seconds_count", "quick")), (2.0, 0.0));
    assert_eq!((metrics.sum("taskwire_tasks_open"), metrics.value("taskwire_runs_in_memory", &[])), (0.0, 0.0));
    let tools: Vec<String> = metrics.values_of("tool").into_iter().collect();
    assert_eq!(tools, ["broken", "quick", "refuses", "slow", "strict"], "a tool that is not there has no series");
    let requests = |method| metrics.value("taskwire_requests_total", &[("era", "modern"), ("method", method)]);
    assert_eq!(["tools/call", "tasks/cancel", "subscriptions/listen"].map(requests), [9.0, 1.0, 4.0]);
    let posts = metrics.value("taskwire_http_requests_total", &[("route", "/mcp"), ("method", "POST"), ("status", "200")]);
    assert_eq!(posts, 14.0);
    assert!(metrics.value("taskwire_commit_duration_seconds_count", &[]) >= 1.0);
    assert!(metrics.value("taskwire_commit_writes_sum", &[]) >= 8.0, "four tasks were made, and ended");
}

#[tokio::test]
async fn what_is_there_is_told_for_as_long_as_it_is() {
    let (gate, loose, clock) = (Gate::new(), Gate::new(), manual_clock());
    let asks = tool("asks", &(), |(), ctx| async move { ctx.ask("name", name_form("Who?")).await.map(|_| "done") }).task(TaskMode::Always);
    let tools = [gate.tool("slow").task(TaskMode::Always), loose.tool("loose"), asks];
    let server = TestServer::start_with(registry(tools), Config::default(), Arc::new(clock)).await;
    let client = server.client();
    let open = |tool, status| ("taskwire_tasks_open", [("tool", tool), ("status", status)]);
    let id = client.start("slow", json!({})).await;
    let question = client.start("asks", json!({})).await;
    until_open(&client, &question, &["name"]).await;
    let metrics = scrape(&server).await;
    for ((name, labels), count) in [
        (open("slow", "working"), 1.0),
        (open("slow", "input_required"), 0.0),
        (open("asks", "working"), 0.0),
        (open("asks", "input_required"), 1.0),
        (open("loose", "working"), 0.0),
    ] {
        assert_eq!(metrics.value(name, &labels), count, "{labels:?}");
    }
    let stream = client.listen(json!({"taskIds": [id]})).await;
    until(&server, "taskwire_streams_open", &[("kind", "listen")], 1.0).await;
    // Its own connection is the other one.
    until(&server, "taskwire_http_connections", &[], 2.0).await;
    drop(stream);
    until(&server, "taskwire_streams_open", &[("kind", "listen")], 0.0).await;
    let calling = tokio::spawn({
        let client = client.clone();
        async move { client.call("loose", json!({})).await }
    });
    with_timeout("the call", loose.started.wait()).await;
    assert_eq!(scrape(&server).await.value("taskwire_runs_in_memory", &[]), 1.0);
    loose.go.send();
    assert_eq!(calling.await.expect("no panic")["resultType"], "complete");
    until(&server, "taskwire_runs_in_memory", &[], 0.0).await;
    client.answer(&question, json!({"name": accept("Ada")})).await;
    gate.go.send();
    for (name, labels) in [open("asks", "input_required"), open("asks", "working"), open("slow", "working")] {
        until(&server, name, &labels, 0.0).await;
    }
    let metrics = scrape(&server).await;
    let expected = [("taskwire_epoch", 1.0), ("taskwire_nodes", 1.0), ("taskwire_store_away", 0.0), ("taskwire_queue_length", 0.0)];
    for (name, value) in expected {
        assert_eq!(metrics.value(name, &[]), value, "{name}");
    }
    assert!(metrics.value("taskwire_store_used_bytes", &[]) > 4096.0 && metrics.value("taskwire_store_free_bytes", &[]) > 0.0);
    assert_eq!(metrics.value("process_start_time_seconds", &[]), 1_785_196_800.0);
    assert!(metrics.value("process_cpu_seconds_total", &[]) > 0.0);
}

#[tokio::test]
async fn output_is_counted_when_it_is_durable_and_readers_by_how_long_they_took() {
    let writes = tool("writes", &(), |(), ctx| async move {
        ctx.text("one\n").await?;
        ctx.flush().await?;
        ctx.text("two\n").await?;
        Ok("done")
    });
    let server = TestServer::start(registry([writes.task(TaskMode::Always)])).await;
    let client = server.client();
    let id = client.start("writes", json!({})).await;
    with_timeout("the end", client.until(&id, "completed")).await;
    let task: TaskId = id.parse().expect("an id");
    let chunks = server.server.engine().reader().chunks(task, Seq(0), 1 << 20, 100).await.expect("readable");
    let bytes: usize = chunks.iter().map(|chunk| chunk.blocks.as_str().len()).sum();
    let metrics = scrape(&server).await;
    let of = |name| metrics.value(name, &[("tool", "writes")]);
    let written = (of("taskwire_output_chunks_total"), of("taskwire_output_bytes_total"));
    assert_eq!(written, (chunks.len() as f64, bytes as f64));
    assert!(chunks.len() >= 2);
    let (count, sum) = ("taskwire_feed_lag_seconds_count", "taskwire_feed_lag_seconds_sum");
    assert!(metrics.value(sum, &[("feed", "task")]) < 10.0 * metrics.value(count, &[("feed", "task")]).max(1.0));
}

#[tokio::test]
async fn calls_of_sessions_and_of_clients_that_wait_are_told_apart() {
    let (gate, clock) = (Gate::new(), manual_clock());
    let tools = registry([quick("quick"), gate.tool("slow")]);
    let server = TestServer::start_with(tools, Config::default(), Arc::new(clock.clone())).await;
    let session = LegacySession::open(&server).await;
    session.call("quick", json!({})).await;
    session.start("quick", json!({})).await;
    let (plain, metrics) = (server.plain_client(), ("taskwire_tasks_created_total", [("tool", "slow")]));
    let becomes_a_task = async {
        gate.started.wait().await;
        clock.advance(SECOND);
        until(&server, metrics.0, &metrics.1, 1.0).await;
        gate.go.send();
    };
    let (result, ()) = with_timeout("the result", async { tokio::join!(plain.call("slow", json!({})), becomes_a_task) }).await;
    assert_eq!(result["resultType"], "complete");
    let stream = session.open_session_stream().await;
    let metrics = until(&server, "taskwire_streams_open", &[("kind", "session")], 1.0).await;
    let calls = |tool, era, answer| metrics.value("taskwire_calls_total", &[("tool", tool), ("era", era), ("answer", answer)]);
    assert_eq!((calls("quick", "legacy", "immediate"), calls("quick", "legacy", "task")), (1.0, 1.0));
    assert_eq!(calls("slow", "modern", "held"), 1.0);
    assert_eq!((metrics.value("taskwire_sessions", &[]), metrics.sum("taskwire_calls_total")), (1.0, 3.0));
    let requests = |method| metrics.value("taskwire_requests_total", &[("era", "legacy"), ("method", method)]);
    assert_eq!(["initialize", "notifications/initialized", "tools/call"].map(requests), [1.0, 1.0, 2.0]);
    drop(stream);
    until(&server, "taskwire_streams_open", &[("kind", "session")], 0.0).await;
}

#[tokio::test]
async fn a_limit_that_refuses_something_is_named() {
    let (gate, mut config) = (Gate::new(), Config { streams_per_caller: 0, ..Config::default() });
    config.engine.limits.tasks_per_caller = 1;
    let server = TestServer::start_with(registry([gate.tool("slow").task(TaskMode::Always)]), config, Arc::new(manual_clock())).await;
    let client = server.client();
    client.start("slow", json!({})).await;
    client.error("tools/call", json!({"name": "slow", "arguments": {}})).await;
    client.error("subscriptions/listen", json!({"notifications": {}})).await;
    let metrics = scrape(&server).await;
    let reached = |limit| metrics.value("taskwire_limits_reached_total", &[("limit", limit)]);
    assert_eq!((reached("tasks_per_caller"), reached("streams_per_caller")), (1.0, 1.0));
    assert_eq!(metrics.sum("taskwire_limits_reached_total"), 2.0);
    let calls = |answer| metrics.value("taskwire_calls_total", &[("tool", "slow"), ("era", "modern"), ("answer", answer)]);
    assert_eq!((calls("task"), calls("error")), (1.0, 1.0));
}

// What has a bound.

#[tokio::test]
async fn whatever_comes_labels_have_only_so_many_values() {
    let tools = (0..NAMED_TOOLS + 10).map(|n| quick(&format!("tool_{n}")));
    let server = TestServer::start(registry(tools)).await;
    let client = server.client();
    for n in [0, NAMED_TOOLS + 9] {
        client.call(&format!("tool_{n}"), json!({})).await;
    }
    for n in 0..5 {
        client.raw(&format!("no/such/method/{n}"), json!({})).await;
        get(server.port, &format!("/nowhere/{n}"), &[("Host", "localhost")]).await;
        client.bytes(format!("BREW-{n} /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await;
    }
    let metrics = scrape(&server).await;
    let tools = metrics.values_of("tool");
    assert_eq!((tools.len(), tools.contains("other")), (NAMED_TOOLS + 1, true));
    assert_eq!(metrics.value("taskwire_requests_total", &[("era", "modern"), ("method", "other")]), 5.0);
    let http =
        |route, method, status| metrics.value("taskwire_http_requests_total", &[("route", route), ("method", method), ("status", status)]);
    assert_eq!(http("other", "GET", "404"), 5.0);
    assert_eq!(http("/mcp", "other", "405"), 5.0);
    let known = ["/api", "/healthz", "/mcp", "/metrics", "/readyz", "other"].map(str::to_owned);
    assert_eq!(metrics.values_of("route"), BTreeSet::from(known));
}

// Who may read.

#[tokio::test]
async fn a_token_is_needed_where_calls_need_one() {
    let server = TestServer::start_with(registry([]), two_callers(), Arc::new(manual_clock())).await;
    let with = async |token: &str| get(server.port, "/metrics", &[("Host", "localhost"), ("Authorization", token)]).await;
    let anonymous = get(server.port, "/metrics", &[("Host", "localhost")]).await;
    assert_eq!((anonymous.status, anonymous.header("www-authenticate")), (401, Some("Bearer")));
    assert_eq!(with("Bearer wrong").await.status, 401);
    for token in ["Bearer ann-token", "Bearer bob-token"] {
        let metrics = told(&with(token).await);
        assert_eq!(metrics.value("taskwire_http_refused_total", &[("reason", "auth")]), 2.0);
    }
}

#[tokio::test]
async fn a_page_on_the_web_cannot_read_it() {
    let server = TestServer::start(registry([])).await;
    for headers in [[("Host", "evil.example"), ("Accept", "*/*")], [("Host", "localhost"), ("Origin", "http://evil.example")]] {
        assert_eq!(get(server.port, "/metrics", &headers).await.status, 403, "{headers:?}");
    }
    assert_eq!(scrape(&server).await.value("taskwire_http_refused_total", &[("reason", "host")]), 2.0);
}

#[tokio::test]
async fn an_address_of_its_own_has_nothing_else_and_needs_no_token() {
    let server = TestServer::start_with(registry([quick("quick")]), two_callers(), Arc::new(manual_clock())).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let serving = tokio::spawn({
        let server = server.server.clone();
        async move { server.serve_metrics(listener, std::future::pending()).await }
    });
    for host in ["127.0.0.1", "localhost:9464", "10.1.2.3:9464"] {
        let metrics = told(&get(port, "/metrics", &[("Host", host)]).await);
        assert_eq!(metrics.value("taskwire_tasks_created_total", &[("tool", "quick")]), 0.0);
    }
    assert_eq!(get(port, "/metrics", &[("Host", "rebound.example")]).await.status, 403);
    for path in ["/", "/mcp", "/healthz"] {
        assert_eq!(get(port, path, &[("Host", "127.0.0.1")]).await.status, 404, "{path}");
    }
    // More than there may be at one time, one after the other.
    for _ in 0..40 {
        told(&get(port, "/metrics", &[("Host", "127.0.0.1")]).await);
    }
    serving.abort();
}

#[tokio::test]
async fn it_can_be_turned_off() {
    let config = Config { metrics: false, ..Config::default() };
    let server = TestServer::start_with(registry([]), config, Arc::new(manual_clock())).await;
    assert_eq!(get(server.port, "/metrics", &[("Host", "localhost")]).await.status, 404);
}

// What is written about it.

/// A node of two that share a store in memory.
async fn node_of_two() -> [TestServer; 2] {
    let store = SharedStore::Memory(Memory::default());
    [store.node("a", registry([quick("quick")]), Config::default()).await, store.node("b", registry([]), Config::default()).await]
}

#[tokio::test]
async fn a_node_tells_of_its_lease_and_how_many_nodes_there_are() {
    let nodes = node_of_two().await;
    let told = [scrape(&nodes[0]).await, scrape(&nodes[1]).await];
    for metrics in &told {
        assert_eq!(metrics.value("taskwire_nodes", &[]), 2.0);
        let left = metrics.value("taskwire_lease_remaining_seconds", &[]);
        assert!(left > 0.0 && left < 60.0, "{left}");
    }
    assert_ne!(told[0].value("taskwire_epoch", &[]), told[1].value("taskwire_epoch", &[]));
}

/// All names of metrics in a text.
fn names_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("taskwire_") || word.starts_with("process_")).map(str::to_owned).collect()
}

/// A server alone and a node, after both have done something: together they tell all that there is.
async fn all_metrics() -> [Metrics; 2] {
    let server = TestServer::start(registry([quick("quick")])).await;
    let nodes = node_of_two().await;
    for server in [&server, &nodes[0]] {
        server.client().call("quick", json!({})).await;
        scrape(server).await;
    }
    [scrape(&server).await, scrape(&nodes[0]).await]
}

#[tokio::test]
async fn the_manual_has_each_metric() {
    let [alone, node] = all_metrics().await;
    let manual = include_str!("../../../../docs/manual/operating.md");
    let (_, section) = manual.split_once("\n## Metrics\n").expect("a section of the manual");
    let section = section.split("\n## ").next().expect("the section");
    let told: BTreeSet<String> = alone.names().union(&node.names()).cloned().collect();
    assert_eq!(names_in(section), told);
}

#[tokio::test]
async fn the_dashboard_asks_only_for_what_there_is() {
    let [alone, node] = all_metrics().await;
    let text = include_str!("../../../../packaging/grafana/taskwire.json");
    let dashboard: Value = serde_json::from_str(text).expect("JSON");
    let is_told = |name: &str| alone.names().contains(name) || node.names().contains(name);
    let parts = ["_bucket", "_sum", "_count"];
    for name in names_in(text) {
        let of_histogram = parts.iter().filter_map(|part| name.strip_suffix(part)).any(|name| alone.is_histogram(name));
        assert!(of_histogram || (is_told(&name) && !alone.is_histogram(&name)), "the server does not tell {name}");
    }
    let panels = dashboard["panels"].as_array().expect("panels");
    let rows: Vec<&str> = panels.iter().filter(|panel| panel["type"] == "row").filter_map(|row| row["title"].as_str()).collect();
    assert_eq!(rows, ["Overview", "Tasks", "Store", "Streams and HTTP", "Nodes", "Process"]);
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{panel}");
        let targets = panel["targets"].as_array().map_or(&[][..], Vec::as_slice);
        assert_eq!(targets.is_empty(), panel["type"] == "row", "{panel}");
        for target in targets {
            let query = target["expr"].as_str().expect("a query");
            assert!(!names_in(query).is_empty() && query.contains("$instance"), "{query}");
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{target}");
        }
    }
}
