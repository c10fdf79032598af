//! A byte stream: one message a line. Every line that the server writes is checked against the schemas.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};
use taskwire::{
    clock::{ManualClock, SystemClock},
    server::{Config, Server},
    tool::{Ctx, Registry, TaskMode, Tool},
};
use tokio::sync::Barrier;

use crate::{
    kit::{Client, PARTIALS, SUBSCRIPTION, TASKS, TempDir, manual_clock, server_in, with_timeout},
    pipe::Pipe,
    schema,
    shutdown::settle,
    tasks::{Gate, accept, name_form, name_in, quick, registry, tool},
};

/// The other end of a server's stream.
struct Peer {
    pipe: Pipe,
    /// Writes our messages; it never connects.
    client: Client,
    /// The method of each request, by its id.
    asked: BTreeMap<String, String>,
}

impl Peer {
    /// A server with these tools, and a stream to it.
    fn start(tools: Registry) -> Self {
        Self::start_with(tools, Config::default())
    }

    fn start_with(tools: Registry, config: Config) -> Self {
        Self::at(Pipe::start(tools, config))
    }

    /// A stream to this server.
    fn on(server: &Server) -> Self {
        Self::at(Pipe::to(server))
    }

    fn at(pipe: Pipe) -> Self {
        let client = Client::new(0).declaring(json!({"elicitation": {}, "extensions": {TASKS: {}}}));
        Self { pipe, client, asked: BTreeMap::new() }
    }

    /// Declares partial results from now on.
    fn with_partials(mut self) -> Self {
        self.client = self.client.declaring(json!({"extensions": {TASKS: {}, PARTIALS: {}}}));
        self
    }

    async fn write(&mut self, text: &str) {
        self.pipe.write(text.as_bytes()).await;
    }

    async fn line(&mut self, text: &str) {
        self.write(&format!("{text}\n")).await;
    }

    async fn send(&mut self, message: &Value) {
        if let (Some(id), Some(method)) = (message.get("id"), message["method"].as_str()) {
            self.asked.insert(id.to_string(), method.to_owned());
        }
        self.line(&message.to_string()).await;
    }

    async fn request(&mut self, id: impl Into<Value>, method: &str, params: Value) {
        let mut message = self.client.message(0, method, params);
        message["id"] = id.into();
        self.send(&message).await;
    }

    async fn call(&mut self, id: impl Into<Value>, tool: &str) {
        self.request(id, "tools/call", json!({"name": tool, "arguments": {}})).await;
    }

    /// Calls off a request.
    async fn cancel(&mut self, id: impl Into<Value>) {
        let params = json!({"requestId": id.into(), "reason": "not needed any more"});
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})).await;
    }

    /// The next line, if there is one.
    async fn next(&mut self) -> Option<Value> {
        let line = self.pipe.line().await?;
        let message: Value = serde_json::from_str(&line).expect("JSON");
        match (message.get("method"), message.get("id")) {
            (Some(_), _) => schema::check_notification(&message),
            (None, Some(id)) => schema::check_response(self.asked.get(&id.to_string()).expect("an id that was asked"), &message),
            (None, None) => schema::check_error(&message),
        }
        Some(message)
    }

    async fn message(&mut self) -> Value {
        self.next().await.expect("the stream goes on")
    }

    /// The next line, which must be the result for this request.
    async fn result(&mut self, id: impl Into<Value>) -> Value {
        let (id, message): (Value, Value) = (id.into(), self.message().await);
        assert_eq!(message["id"], id, "{message}");
        assert!(message.get("error").is_none(), "{message}");
        message["result"].clone()
    }

    /// The next line, which must be a partial result of this task for this listener.
    async fn partial(&mut self, listener: &str, task: &str) -> Value {
        let message = self.message().await;
        assert_eq!(message["method"], "notifications/tasks/partial", "{message}");
        let params = &message["params"];
        assert_eq!((&params["_meta"][SUBSCRIPTION], &params["taskId"]), (&json!(listener), &json!(task)));
        params.clone()
    }

    /// The next line, which must be the error for this request.
    async fn error(&mut self, id: impl Into<Value>) -> Value {
        let (id, message): (Value, Value) = (id.into(), self.message().await);
        assert_eq!(message["id"], id, "{message}");
        message["error"].clone()
    }

    /// The next line, which must be an error for no request in particular.
    async fn stray_error(&mut self) -> Value {
        let message = self.message().await;
        assert_eq!(message.get("id"), None, "{message}");
        message["error"].clone()
    }

    /// Shows that the server still reads and writes the stream, and has handled all lines before this.
    async fn ping(&mut self) {
        self.request("ping", "server/discover", json!({})).await;
        self.result("ping").await;
    }

    /// Ends the input.
    fn end(&mut self) {
        self.pipe.end();
    }

    /// Waits for the server's end; it must have nothing more to say.
    async fn ended(mut self) {
        self.end();
        assert_eq!(self.next().await, None);
        self.pipe.ended().await;
    }
}

#[tokio::test]
async fn the_server_describes_itself_and_its_tools() {
    let mut peer = Peer::start(registry([quick("quick")]));
    peer.request(1, "server/discover", json!({})).await;
    assert_eq!(peer.result(1).await["supportedVersions"], json!(["2026-07-28"]));
    peer.request(2, "tools/list", json!({})).await;
    assert_eq!(peer.result(2).await["tools"][0]["name"], "quick");
    peer.ended().await;
}

#[tokio::test]
async fn a_call_is_answered() {
    let mut peer = Peer::start(registry([quick("quick")]));
    peer.call(1, "quick").await;
    let result = peer.result(1).await;
    assert_eq!((&result["resultType"], &result["content"][0]["text"]), (&json!("complete"), &json!("done")));
    peer.ended().await;
}

#[tokio::test]
async fn a_task_lives_its_whole_life_on_one_stream() {
    let asks = tool("asks", &(), |(), ctx| async move { Ok(name_in(&ctx.ask("name", name_form("Name?")).await?)) });
    let mut peer = Peer::start(registry([asks.task(TaskMode::Always)]));
    peer.call(1, "asks").await;
    let created = peer.result(1).await;
    assert_eq!(created["resultType"], "task");
    let task = &created["taskId"];
    peer.request("l", "subscriptions/listen", json!({"notifications": {"taskIds": [task]}})).await;
    assert_eq!(peer.message().await["method"], "notifications/subscriptions/acknowledged");
    while peer.message().await["params"]["status"] != "input_required" {}
    peer.request(2, "tasks/update", json!({"taskId": task, "inputResponses": {"name": accept("Ada")}})).await;
    let mut seen = BTreeSet::new();
    while seen.len() < 3 {
        let message = peer.message().await;
        let what = if message["id"] == 2 { "acknowledged" } else { message["params"]["status"].as_str().expect("a status") };
        seen.insert(what.to_owned());
    }
    assert_eq!(seen, BTreeSet::from(["acknowledged", "working", "completed"].map(str::to_owned)));
    peer.request(3, "tasks/get", json!({"taskId": task})).await;
    assert_eq!(peer.result(3).await["result"]["content"][0]["text"], "Ada");
    peer.request(4, "tasks/cancel", json!({"taskId": task})).await;
    assert_eq!(peer.result(4).await, json!({"resultType": "complete"}));
}

#[tokio::test]
async fn a_listener_that_calls_off_hears_nothing_more() {
    let tools = registry([quick("quick")]);
    let mut peer = Peer::start(tools.clone());
    peer.request("l", "subscriptions/listen", json!({"notifications": {"toolsListChanged": true}})).await;
    assert_eq!(peer.message().await["method"], "notifications/subscriptions/acknowledged");
    tools.remove_tool("quick");
    let message = peer.message().await;
    assert_eq!(message["method"], "notifications/tools/list_changed");
    assert_eq!(message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "l");
    peer.cancel("l").await;
    peer.ping().await;
    tools.tool(quick("quick")).expect("a tool");
    peer.ping().await;
    peer.ended().await;
}

#[tokio::test]
async fn a_call_that_is_cancelled_is_stopped_and_not_answered() {
    let gate = Gate::new();
    let mut peer = Peer::start(registry([gate.tool("slow").task(TaskMode::Never), quick("quick")]));
    peer.call(1, "slow").await;
    with_timeout("the start", gate.started.wait()).await;
    peer.cancel(1).await;
    with_timeout("the stop", gate.stopped.wait()).await;
    peer.call(1, "quick").await;
    assert_eq!(peer.result(1).await["content"][0]["text"], "done", "the id is free again");
    peer.ended().await;
}

#[tokio::test]
async fn cancelling_what_is_not_under_way_does_nothing() {
    let mut peer = Peer::start(registry([quick("quick")]));
    peer.cancel(99).await;
    peer.call(1, "quick").await;
    peer.result(1).await;
    peer.cancel(1).await;
    peer.line(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{}}"#).await;
    peer.line(r#"{"jsonrpc":"2.0","method":"notifications/unheard_of"}"#).await;
    peer.ping().await;
    peer.ended().await;
}

#[tokio::test]
async fn an_id_that_is_in_use_is_refused() {
    let gate = Gate::new();
    let mut peer = Peer::start(registry([gate.tool("slow").task(TaskMode::Never), quick("quick")]));
    peer.call("a", "slow").await;
    peer.call("a", "quick").await;
    assert_eq!(peer.error("a").await["code"], -32600);
    gate.go.send();
    assert_eq!(peer.result("a").await["content"][0]["text"], "done", "the first is answered all the same");
    peer.ended().await;
}

#[tokio::test]
async fn ids_come_back_as_they_were_sent() {
    let mut peer = Peer::start(registry([quick("quick")]));
    for id in [json!(0), json!(-1), json!(i64::MAX), json!(i64::MIN), json!("1"), json!(""), json!("é\"\n")] {
        peer.call(id.clone(), "quick").await;
        peer.result(id).await;
    }
    peer.ended().await;
}

#[tokio::test]
async fn the_same_text_and_number_are_different_ids() {
    let gate = Gate::new();
    let mut peer = Peer::start(registry([gate.tool("slow").task(TaskMode::Never), quick("quick")]));
    peer.call(1, "slow").await;
    peer.call("1", "quick").await;
    peer.result("1").await;
    gate.go.send();
    peer.result(1).await;
    peer.ended().await;
}

#[tokio::test]
async fn a_line_that_is_no_message_is_refused_and_the_stream_lives_on() {
    let mut peer = Peer::start(registry([]));
    for (line, code) in [
        ("{", -32700),
        ("hello", -32700),
        (r#"{"jsonrpc":"2.0","id":null,"method":"tools/list"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"tools/list"}"#, -32600),
        ("[]", -32600),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]"#, -32600),
        ("3", -32600),
    ] {
        peer.line(line).await;
        assert_eq!(peer.stray_error().await["code"], code, "{line}");
    }
    peer.send(&json!({"jsonrpc": "1.0", "id": 5, "method": "tools/list"})).await;
    assert_eq!(peer.error(5).await["code"], -32600);
    peer.ping().await;
    peer.ended().await;
}

#[tokio::test]
async fn bytes_that_are_no_text_are_refused_and_the_stream_lives_on() {
    let mut peer = Peer::start(registry([]));
    peer.pipe.write(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}\n").await;
    assert_eq!(peer.stray_error().await["code"], -32700);
    peer.ping().await;
    peer.ended().await;
}

#[tokio::test]
async fn a_line_that_is_too_long_is_refused_and_the_next_one_is_read() {
    let mut peer = Peer::start_with(registry([]), Config { body_bytes: 1_000, ..Config::default() });
    for length in [1_001, 30_000] {
        peer.line(&"x".repeat(length)).await;
        let error = peer.stray_error().await;
        assert_eq!(error["code"], -32600);
        assert!(error["message"].as_str().expect("a text").contains("`body_bytes`"), "{error}");
        peer.ping().await;
    }
    peer.ended().await;
}

#[tokio::test]
async fn a_line_as_long_as_allowed_is_read() {
    let mut peer = Peer::start_with(registry([]), Config { body_bytes: 20_000, ..Config::default() });
    let mut text = peer.client.message(1, "server/discover", json!({})).to_string();
    text.push_str(&" ".repeat(20_000 - text.len()));
    peer.asked.insert("1".to_owned(), "server/discover".to_owned());
    peer.line(&text).await;
    peer.result(1).await;
    peer.ended().await;
}

#[tokio::test]
async fn blank_lines_are_ignored() {
    let mut peer = Peer::start(registry([]));
    peer.write("\n\n  \n\r\n\t\n").await;
    peer.ping().await;
    peer.ended().await;
}

#[tokio::test]
async fn responses_are_ignored() {
    let mut peer = Peer::start(registry([]));
    peer.line(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    peer.line(r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no"}}"#).await;
    peer.ping().await;
    peer.ended().await;
}

#[tokio::test]
async fn a_line_that_comes_in_parts_is_read_whole_while_other_calls_end() {
    let gate = Gate::new();
    let mut peer = Peer::start(registry([gate.tool("slow").task(TaskMode::Never)]));
    peer.call(1, "slow").await;
    with_timeout("the start", gate.started.wait()).await;
    let text = peer.client.message(2, "server/discover", json!({})).to_string();
    peer.asked.insert("2".to_owned(), "server/discover".to_owned());
    let (left, right) = text.split_at(text.len() / 2);
    peer.write(left).await;
    gate.go.send();
    peer.result(1).await;
    // Lets the server see that the call has ended, before the rest of the line is there.
    settle().await;
    peer.line(right).await;
    peer.result(2).await;
    peer.ended().await;
}

#[tokio::test]
async fn many_calls_go_on_at_one_time() {
    let together = tool("together", &Arc::new(Barrier::new(200)), |barrier, _ctx| async move {
        barrier.wait().await;
        Ok("done")
    });
    let mut peer = Peer::start(registry([together.task(TaskMode::Never)]));
    for id in 0..200 {
        peer.call(id, "together").await;
    }
    let mut answered = BTreeSet::new();
    for _ in 0..200 {
        let message = peer.message().await;
        assert_eq!(message["result"]["content"][0]["text"], "done", "{message}");
        answered.insert(message["id"].as_u64().expect("a number"));
    }
    assert!(answered.into_iter().eq(0..200u64));
    peer.ended().await;
}

#[tokio::test]
async fn so_many_requests_may_be_under_way_and_again_one_when_one_is_answered() {
    let gate = Gate::new();
    let config = Config { requests_per_stream: 2, ..Config::default() };
    let mut peer = Peer::start_with(registry([gate.tool("slow").task(TaskMode::Never)]), config);
    peer.call(1, "slow").await;
    peer.call(2, "slow").await;
    peer.request(3, "tools/list", json!({})).await;
    let error = peer.error(3).await;
    assert_eq!(error["code"], -31001);
    assert!(error["message"].as_str().expect("a text").contains("`requests_per_stream`"), "{error}");
    gate.go.send();
    assert!(peer.message().await.get("result").is_some());
    peer.request(3, "tools/list", json!({})).await;
    peer.result(3).await;
}

#[tokio::test]
async fn a_call_under_way_is_answered_after_the_end_of_the_input() {
    let gate = Gate::new();
    let mut peer = Peer::start(registry([gate.tool("slow").task(TaskMode::Never)]));
    peer.call(1, "slow").await;
    with_timeout("the start", gate.started.wait()).await;
    peer.end();
    gate.go.send();
    assert_eq!(peer.result(1).await["content"][0]["text"], "done");
    peer.ended().await;
}

#[tokio::test]
async fn a_call_right_before_the_end_of_the_input_is_answered() {
    let mut peer = Peer::start(registry([quick("quick"), quick("task").task(TaskMode::Always)]));
    peer.call(1, "quick").await;
    peer.call(2, "task").await;
    peer.end();
    let mut kinds = BTreeMap::new();
    for _ in 0..2 {
        let message = peer.message().await;
        kinds.insert(message["id"].to_string(), message["result"]["resultType"].clone());
    }
    assert_eq!(json!(kinds), json!({"1": "complete", "2": "task"}));
    peer.ended().await;
}

#[tokio::test]
async fn a_last_line_without_its_end_is_read() {
    let mut peer = Peer::start(registry([]));
    let text = peer.client.message(1, "server/discover", json!({})).to_string();
    peer.asked.insert("1".to_owned(), "server/discover".to_owned());
    peer.write(&text).await;
    peer.end();
    peer.result(1).await;
    peer.ended().await;
}

#[tokio::test]
async fn listeners_get_their_response_at_the_end_of_the_input() {
    let mut peer = Peer::start(registry([]));
    for id in ["a", "b"] {
        peer.request(id, "subscriptions/listen", json!({"notifications": {}})).await;
        assert_eq!(peer.message().await["method"], "notifications/subscriptions/acknowledged");
    }
    peer.end();
    let mut ended = BTreeSet::new();
    for _ in 0..2 {
        let message = peer.message().await;
        assert_eq!(message["result"]["resultType"], "complete", "{message}");
        ended.insert(message["id"].as_str().expect("a text").to_owned());
    }
    assert_eq!(ended, BTreeSet::from(["a", "b"].map(str::to_owned)));
    peer.ended().await;
}

#[tokio::test]
async fn a_call_that_does_not_end_holds_the_end_up_only_so_long() {
    let (gate, clock, dir) = (Gate::new(), manual_clock(), TempDir::new());
    let config = Config { drain: Duration::from_secs(10), ..Config::default() };
    let server =
        server_in(&dir, registry([gate.tool("slow").task(TaskMode::Never).linger(Duration::ZERO)]), config, Arc::new(clock.clone()));
    let mut peer = Peer::on(&server);
    peer.call(1, "slow").await;
    with_timeout("the start", gate.started.wait()).await;
    peer.request("l", "subscriptions/listen", json!({"notifications": {}})).await;
    peer.message().await;
    peer.end();
    peer.result("l").await;
    clock.advance(Duration::from_secs(10));
    with_timeout("the stop", gate.stopped.wait()).await;
    peer.ended().await;
}

#[tokio::test]
async fn the_end_of_one_stream_leaves_another_alone() {
    let dir = TempDir::new();
    let server = server_in(&dir, registry([quick("quick")]), Config::default(), Arc::new(SystemClock));
    let (first, mut second) = (Peer::on(&server), Peer::on(&server));
    second.request("l", "subscriptions/listen", json!({"notifications": {}})).await;
    assert_eq!(second.message().await["method"], "notifications/subscriptions/acknowledged");
    first.ended().await;
    second.call(1, "quick").await;
    assert_eq!(second.result(1).await["content"][0]["text"], "done");
}

#[tokio::test]
async fn a_request_without_metadata_is_told_what_is_missing() {
    let mut peer = Peer::start(registry([]));
    peer.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})).await;
    let error = peer.error(1).await;
    assert_eq!(error["code"], -32602);
    let message = error["message"].as_str().expect("a text");
    assert!(message.contains("io.modelcontextprotocol/protocolVersion") && message.contains("2026-07-28"), "{message}");
}

#[tokio::test]
async fn arguments_that_http_wants_as_headers_need_none_here() {
    let schema = json!({"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}});
    let routed = Tool::raw("routed", "For a test", schema, |ctx: Ctx| async move { Ok(ctx.arguments().as_str().to_owned()) });
    let mut peer = Peer::start(registry([routed]));
    peer.request(1, "tools/call", json!({"name": "routed", "arguments": {"region": "north"}})).await;
    assert_eq!(peer.result(1).await["content"][0]["text"], r#"{"region":"north"}"#);
    peer.ended().await;
}

// Partial results.

/// A tool that writes three chunks when it may, and ends.
fn writes(gate: &Gate) -> Tool {
    let writes = tool("writes", gate, |gate, ctx| async move {
        gate.go.wait().await;
        for n in 0..3 {
            ctx.text(n.to_string()).await?;
            ctx.flush().await?;
        }
        Ok("done")
    });
    writes.task(TaskMode::Always).streams()
}

/// What is asked to hear of a task from its first chunk on.
fn partials(task: &str) -> Value {
    json!([{"taskId": task, "fromSeq": 0}])
}

/// Bytes that [`pours`] writes: many times what waits between the server and a client that does not read.
const POURED: usize = 3_000_000;

/// A tool that writes much when it may, says when all of that is stored, and ends when it may.
fn pours(gate: &Gate) -> Tool {
    let pours = tool("pours", gate, |gate, ctx| async move {
        gate.go.wait().await;
        for _ in 0..300 {
            ctx.text("x".repeat(POURED / 300)).await?;
        }
        ctx.flush().await?;
        gate.started.send();
        gate.go.wait().await;
        Ok("done")
    });
    pours.task(TaskMode::Always).streams()
}

/// Bytes of text in a partial result.
fn length_of(partial: &Value) -> usize {
    let blocks = partial["params"]["content"].as_array().expect("blocks");
    blocks.iter().map(|block| block["text"].as_str().expect("a text").len()).sum()
}

/// A client that does not read: all that [`pours`] wrote is on its way to its listener `l`, which also wants to hear of
/// tools and has no more than its acknowledgement.
async fn flooded(tools: &Registry, gate: &Gate) -> Peer {
    let mut peer = Peer::start(tools.clone()).with_partials();
    let task = start(&mut peer, "pours").await;
    gate.go.send();
    with_timeout("the end of the output", gate.started.wait()).await;
    let filter = json!({"toolsListChanged": true, PARTIALS: partials(&task)});
    peer.request("l", "subscriptions/listen", json!({"notifications": filter})).await;
    assert_eq!(peer.message().await["method"], "notifications/subscriptions/acknowledged");
    // Until nothing more can be sent.
    settle().await;
    peer
}

/// Reads partial results up to the first message that is none; gives that, and how many bytes of output came before it.
async fn after_partials(peer: &mut Peer) -> (Value, usize) {
    let mut length = 0;
    loop {
        let message = peer.message().await;
        if message["method"] != "notifications/tasks/partial" {
            return (message, length);
        }
        length += length_of(&message);
    }
}

/// Calls a tool that becomes a task, and gives its id.
async fn start(peer: &mut Peer, tool: &str) -> String {
    peer.call("call", tool).await;
    peer.result("call").await["taskId"].as_str().expect("a task").to_owned()
}

#[tokio::test]
async fn partial_results_come_between_the_acknowledgement_and_the_end() {
    let gate = Gate::new();
    let mut peer = Peer::start(registry([writes(&gate)])).with_partials();
    let task = start(&mut peer, "writes").await;
    let filter = json!({"taskIds": [task], PARTIALS: partials(&task)});
    peer.request("l", "subscriptions/listen", json!({"notifications": filter})).await;
    let ack = peer.message().await;
    assert_eq!(ack["method"], "notifications/subscriptions/acknowledged");
    let honoured = json!({"taskIds": [task], PARTIALS: [{"taskId": task, "fromSeq": 0, "nextSeq": 0}]});
    assert_eq!(ack["params"]["notifications"], honoured);
    assert_eq!(peer.message().await["params"]["status"], "working");
    gate.go.send();
    for n in 0..3 {
        let partial = peer.partial("l", &task).await;
        assert_eq!((&partial["seq"], &partial["content"]), (&json!(n), &json!([{"type": "text", "text": n.to_string()}])));
    }
    let last = peer.message().await;
    assert_eq!((&last["method"], &last["params"]["status"]), (&json!("notifications/tasks"), &json!("completed")));
    peer.end();
    assert_eq!(peer.result("l").await["resultType"], "complete");
    peer.ended().await;
}

#[tokio::test]
async fn a_listener_to_partial_results_alone_is_answered_after_the_last_one() {
    let gate = Gate::new();
    let mut peer = Peer::start(registry([writes(&gate)])).with_partials();
    let task = start(&mut peer, "writes").await;
    // Once while it writes, and once when it has ended.
    for listener in ["live", "late"] {
        peer.request(listener, "subscriptions/listen", json!({"notifications": {PARTIALS: partials(&task)}})).await;
        assert_eq!(peer.message().await["method"], "notifications/subscriptions/acknowledged");
        gate.go.send();
        for n in 0..3 {
            assert_eq!(peer.partial(listener, &task).await["seq"], n);
        }
        let result = peer.result(listener).await;
        assert_eq!((&result["resultType"], &result["_meta"][SUBSCRIPTION]), (&json!("complete"), &json!(listener)));
    }
    peer.ended().await;
}

#[tokio::test]
async fn partial_results_can_be_read_on_a_stream() {
    let gate = Gate::new();
    let mut peer = Peer::start(registry([writes(&gate)])).with_partials();
    let task = start(&mut peer, "writes").await;
    gate.go.send();
    let (mut from, mut texts) = (0_u64, Vec::new());
    loop {
        peer.request(from, "dev.taskwire/partials/read", json!({"taskId": task, "fromSeq": from, "waitMs": 10_000})).await;
        let result = peer.result(from).await;
        assert_eq!(result["fromSeq"], from);
        for chunk in result["chunks"].as_array().expect("a list") {
            assert_eq!(chunk["seq"], from);
            texts.push(chunk["content"][0]["text"].as_str().expect("a text").to_owned());
            from += 1;
        }
        assert_eq!(result["nextSeq"], from);
        if result["done"] == true {
            break;
        }
    }
    assert_eq!(texts, ["0", "1", "2"]);
    peer.ended().await;
}

#[tokio::test]
async fn answers_go_before_partial_results_that_wait_to_be_written() {
    let gate = Gate::new();
    let mut peer = Peer::start(registry([pours(&gate)])).with_partials();
    let task = start(&mut peer, "pours").await;
    peer.request("l", "subscriptions/listen", json!({"notifications": {PARTIALS: partials(&task)}})).await;
    assert_eq!(peer.message().await["method"], "notifications/subscriptions/acknowledged");
    gate.go.send();
    with_timeout("the end of the output, which nobody reads", gate.started.wait()).await;
    settle().await;
    peer.request("get", "tasks/get", json!({"taskId": task})).await;
    settle().await;
    let (mut seq, mut length, mut before_answer) = (0, 0, None);
    while length < POURED || before_answer.is_none() {
        let message = peer.message().await;
        if message["id"] == "get" {
            assert_eq!(message["result"]["status"], "working");
            before_answer = Some(length);
            continue;
        }
        assert_eq!(message["params"]["seq"], seq, "{message}");
        seq += 1;
        length += length_of(&message);
    }
    assert_eq!(length, POURED);
    // What is in the pipe cannot be overtaken, nor what is on its way into it; everything else can.
    assert!(before_answer.is_some_and(|length| length < POURED / 5), "the answer came after {before_answer:?} bytes");
    gate.go.send();
    peer.result("l").await;
    peer.ended().await;
}

#[tokio::test]
async fn a_client_that_keeps_asking_hears_its_listener_in_between() {
    // No more than can wait to be written, so that none of them holds up another.
    const ANSWERS: usize = 60;
    let gate = Gate::new();
    let mut peer = flooded(&registry([pours(&gate)]), &gate).await;
    for id in 0..ANSWERS {
        peer.request(id, "server/discover", json!({})).await;
    }
    settle().await;
    let (mut answers, mut in_a_row, mut longest) = (0, 0, 0);
    while answers < ANSWERS {
        let message = peer.message().await;
        if message.get("id").is_some() {
            answers += 1;
            in_a_row += 1;
            longest = longest.max(in_a_row);
        } else {
            assert_eq!(message["method"], "notifications/tasks/partial");
            in_a_row = 0;
        }
    }
    assert!(longest < ANSWERS / 2, "{longest} answers came in a row while partial results waited");
}

#[tokio::test]
async fn a_listener_that_calls_off_does_not_hear_what_was_on_its_way() {
    let gate = Gate::new();
    let mut peer = flooded(&registry([pours(&gate)]), &gate).await;
    peer.cancel("l").await;
    peer.request("after", "server/discover", json!({})).await;
    settle().await;
    let (answer, length) = after_partials(&mut peer).await;
    assert_eq!(answer["id"], "after", "{answer}");
    // What was being written is written to its end.
    assert!(length < POURED / 5, "{length} bytes came before the answer");
    for _ in 0..3 {
        settle().await;
        peer.ping().await;
    }
    peer.ended().await;
}

#[tokio::test]
async fn a_listener_with_much_to_read_hears_of_other_changes_in_between() {
    let gate = Gate::new();
    let tools = registry([pours(&gate), quick("quick")]);
    let mut peer = flooded(&tools, &gate).await;
    tools.remove_tool("quick");
    let (message, length) = after_partials(&mut peer).await;
    assert_eq!(message["method"], "notifications/tools/list_changed", "{message}");
    // What was on its way goes first, which is less than half of it.
    assert!(length < POURED / 3 * 2, "it came after {length} bytes");
}

#[tokio::test]
async fn a_listener_with_much_to_read_is_answered_at_the_end_of_the_input() {
    let gate = Gate::new();
    let mut peer = flooded(&registry([pours(&gate)]), &gate).await;
    peer.end();
    let (last, length) = after_partials(&mut peer).await;
    assert_eq!((&last["id"], &last["result"]["resultType"]), (&json!("l"), &json!("complete")), "{last}");
    assert!(length < POURED / 3 * 2, "it came after {length} bytes");
    peer.ended().await;
}

// Requests that wait.

/// A server whose time stands still, with a tool of this gate as a task.
async fn waiting(gate: &Gate, dir: &TempDir, clock: &ManualClock) -> (Peer, String) {
    let tools = registry([gate.tool("slow").task(TaskMode::Always)]);
    let mut peer = Peer::on(&server_in(dir, tools, Config::default(), Arc::new(clock.clone()))).with_partials();
    let task = start(&mut peer, "slow").await;
    (peer, task)
}

#[tokio::test]
async fn a_poll_that_comes_too_soon_is_held_and_nothing_else_is() {
    let (gate, dir, clock) = (Gate::new(), TempDir::new(), manual_clock());
    let (mut peer, task) = waiting(&gate, &dir, &clock).await;
    let poll = json!({"taskId": task});
    peer.request(1, "tasks/get", poll.clone()).await;
    let interval = peer.result(1).await["pollIntervalMs"].as_u64().expect("a number");
    peer.request(2, "tasks/get", poll.clone()).await;
    settle().await;
    peer.ping().await;
    clock.advance(Duration::from_millis(interval));
    assert_eq!(peer.result(2).await["status"], "working");
    peer.request(3, "tasks/get", poll).await;
    settle().await;
    peer.ping().await;
    gate.go.send();
    assert_eq!(peer.result(3).await["status"], "completed");
    peer.ended().await;
}

#[tokio::test]
async fn a_get_that_waits_holds_nothing_up() {
    let (gate, dir, clock) = (Gate::new(), TempDir::new(), manual_clock());
    let (mut peer, task) = waiting(&gate, &dir, &clock).await;
    let wait = json!({"taskId": task, "_meta": {"dev.taskwire/waitMs": 10_000}});
    peer.request(1, "tasks/get", wait.clone()).await;
    settle().await;
    peer.ping().await;
    // One that is called off is not answered.
    peer.request(2, "tasks/get", wait).await;
    peer.cancel(2).await;
    peer.ping().await;
    gate.go.send();
    assert_eq!(peer.result(1).await["status"], "completed");
    peer.ended().await;
}

#[tokio::test]
async fn a_get_that_waits_is_answered_at_the_end_of_the_input() {
    let (gate, dir, clock) = (Gate::new(), TempDir::new(), manual_clock());
    let (mut peer, task) = waiting(&gate, &dir, &clock).await;
    peer.request(1, "tasks/get", json!({"taskId": task, "_meta": {"dev.taskwire/waitMs": 10_000}})).await;
    settle().await;
    peer.end();
    assert_eq!(peer.result(1).await["status"], "working");
    peer.ended().await;
}
