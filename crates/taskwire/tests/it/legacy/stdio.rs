//! A byte stream in this era, beside the modern one: each line is a message, and says by itself to which era it belongs.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use taskwire::{
    server::{Config, Server},
    tool::{Registry, TaskMode, Tool},
};

use crate::{
    kit::{Client, TASKS, with_timeout, without_followups},
    legacy::{
        kit::{Checks, LATEST, initialize},
        partials::streaming,
        session::{VERSIONS, resource},
        tasks::{brief, related},
    },
    pipe::Pipe,
    schema,
    shutdown::settle,
    tasks::{Gate, accept, count, name_form, name_in, quick, registry, tool},
    tool_harness::{SUBSCRIPTION, ToolHarness, uncoalesced},
};

const CLAIM: &str = "io.modelcontextprotocol/protocolVersion";

/// The other end of a server's stream. Every line that the server writes is checked against the schema of its era.
struct Peer {
    pipe: Pipe,
    /// What it declares in its handshake.
    capabilities: Value,
    checks: Checks,
    /// Whether there was a handshake: nothing is asked before.
    is_open: bool,
    /// Writes our messages of the modern era; it never connects.
    client: Client,
    /// The method of each modern request, by its id.
    modern: BTreeMap<String, String>,
    /// All that has come.
    seen: Vec<Value>,
}

impl Peer {
    /// A server with these tools, and a stream to it.
    fn start(tools: Registry) -> Self {
        Self::at(Pipe::start(tools, without_followups()), json!({"elicitation": {}, "sampling": {}, "roots": {}}))
    }

    /// A stream to this server, whose client will declare this.
    fn on(server: &Server, capabilities: Value) -> Self {
        Self::at(Pipe::to(server), capabilities)
    }

    fn at(pipe: Pipe, capabilities: Value) -> Self {
        Self {
            pipe,
            checks: Checks::new(LATEST, &capabilities),
            capabilities,
            is_open: false,
            client: Client::new(0).declaring(json!({"elicitation": {}, "extensions": {TASKS: {}}})),
            modern: BTreeMap::new(),
            seen: Vec::new(),
        }
    }

    /// A stream to this server, opened.
    async fn opened(server: &Server, capabilities: Value) -> Self {
        let mut peer = Self::on(server, capabilities);
        peer.open(LATEST).await;
        peer
    }

    async fn line(&mut self, text: &str) {
        self.pipe.write(format!("{text}\n").as_bytes()).await;
    }

    /// Sends a request of this era.
    async fn ask(&mut self, id: impl Into<Value>, method: &str, params: Value) {
        let message = json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params});
        self.checks.note_request(&message);
        self.line(&message.to_string()).await;
    }

    /// Sends a request of the modern era.
    async fn ask_modern(&mut self, id: impl Into<Value>, method: &str, params: Value) {
        let mut message = self.client.message(0, method, params);
        message["id"] = id.into();
        self.modern.insert(message["id"].to_string(), method.to_owned());
        self.line(&message.to_string()).await;
    }

    async fn notify(&mut self, method: &str, params: Value) {
        self.line(&json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string()).await;
    }

    async fn call(&mut self, id: impl Into<Value>, tool: &str) {
        self.ask(id, "tools/call", json!({"name": tool, "arguments": {}})).await;
    }

    async fn cancel(&mut self, id: impl Into<Value>) {
        self.notify("notifications/cancelled", json!({"requestId": id.into()})).await;
    }

    /// Answers a question.
    async fn answer(&mut self, question: &Value, result: Value) {
        self.line(&json!({"jsonrpc": "2.0", "id": question["id"], "result": result}).to_string()).await;
    }

    /// The handshake; gives its result.
    async fn open(&mut self, version: &str) -> Value {
        let agreed = if VERSIONS.contains(&version) { version } else { LATEST };
        self.checks = Checks::new(agreed, &self.capabilities);
        let params = initialize(version, &self.capabilities);
        self.ask("open", "initialize", params).await;
        let result = self.result("open").await;
        assert_eq!(result["protocolVersion"], agreed);
        self.is_open = true;
        self.notify("notifications/initialized", json!({})).await;
        result
    }

    /// The next line, if there is one.
    async fn next(&mut self) -> Option<Value> {
        let line = self.pipe.line().await?;
        let message: Value = serde_json::from_str(&line).expect("JSON");
        let is_modern = message["params"]["_meta"].get(SUBSCRIPTION).is_some();
        match (message.get("method").is_some(), message.get("id")) {
            (true, Some(_)) => {
                assert!(self.is_open, "nobody can be asked yet: {message}");
                self.checks.check(&message);
            }
            (true, None) if is_modern => schema::check_notification(&message),
            (true, None) => self.checks.check(&message),
            (false, None) => schema::check_error(&message),
            (false, Some(id)) => match self.modern.get(&id.to_string()) {
                Some(method) => schema::check_response(method, &message),
                None => self.checks.check(&message),
            },
        }
        self.seen.push(message.clone());
        Some(message)
    }

    async fn message(&mut self) -> Value {
        self.next().await.expect("the stream goes on")
    }

    /// The next line that fits; others are passed over.
    async fn until(&mut self, fits: impl Fn(&Value) -> bool) -> Value {
        loop {
            let message = self.message().await;
            if fits(&message) {
                return message;
            }
        }
    }

    /// The next line with this method.
    async fn until_method(&mut self, method: &str) -> Value {
        self.until(|message| message["method"] == method).await
    }

    /// The next line that says that a task has this status.
    async fn until_status(&mut self, status: &str) -> Value {
        self.until(|message| message["method"] == "notifications/tasks/status" && message["params"]["status"] == status).await
    }

    /// The response to a request; messages before it are passed over.
    async fn response(&mut self, id: impl Into<Value>) -> Value {
        let id = id.into();
        self.until(|message| message.get("method").is_none() && message["id"] == id).await
    }

    async fn result(&mut self, id: impl Into<Value>) -> Value {
        let message = self.response(id).await;
        assert!(message.get("error").is_none(), "{message}");
        message["result"].clone()
    }

    async fn error(&mut self, id: impl Into<Value>) -> Value {
        let message = self.response(id).await;
        assert!(message.get("result").is_none(), "{message}");
        message["error"].clone()
    }

    /// Shows that the server still reads and writes the stream, and has handled all lines before this.
    async fn ping(&mut self) {
        self.ask("ping", "ping", json!({})).await;
        assert_eq!(self.result("ping").await, json!({}));
    }

    /// Starts a task, and gives its id.
    async fn task(&mut self, tool: &str) -> String {
        self.ask("task", "tools/call", json!({"name": tool, "arguments": {}, "task": {}})).await;
        self.result("task").await["task"]["taskId"].as_str().expect("a task").to_owned()
    }

    /// How many messages with this method have come.
    fn count(&self, method: &str) -> usize {
        self.seen.iter().filter(|message| message["method"] == method).count()
    }

    /// The numbers of the partials that have come.
    fn numbers(&self) -> Vec<u64> {
        let partials = self.seen.iter().filter(|message| message["method"] == "notifications/tasks/partial");
        partials.map(|message| message["params"]["seq"].as_u64().expect("a number")).collect()
    }

    /// Ends the input and waits for the server's end; it must have nothing more to say.
    async fn ended(mut self) {
        self.pipe.end();
        assert_eq!(self.next().await, None);
        self.pipe.ended().await;
    }
}

/// Asks for a name and gives it back.
fn asks(name: &str) -> Tool {
    tool(name, &(), |(), ctx| async move { Ok(name_in(&ctx.ask("name", name_form("Name?")).await?)) })
}

// The handshake.

#[tokio::test]
async fn a_handshake_opens_the_stream_for_each_version() {
    for version in VERSIONS {
        let mut peer = Peer::start(registry([quick("quick")]));
        let result = peer.open(version).await;
        assert_eq!((&result["protocolVersion"], &result["serverInfo"]["name"]), (&json!(version), &json!("taskwire")));
        assert_eq!(result["capabilities"].get("tasks").is_some(), version == LATEST, "{version}");
        peer.ask(1, "tools/list", json!({})).await;
        assert_eq!(peer.result(1).await["tools"][0]["name"], "quick");
        peer.call(2, "quick").await;
        assert_eq!(peer.result(2).await["content"][0]["text"], "done");
        peer.ask(3, "tasks/list", json!({})).await;
        match version {
            LATEST => assert_eq!(peer.result(3).await["tasks"], json!([])),
            _ => assert_eq!(peer.error(3).await["code"], -32601, "{version}"),
        }
        peer.ended().await;
    }
}

#[tokio::test]
async fn a_version_that_is_not_spoken_is_answered_with_the_latest_of_the_era() {
    for version in ["2024-11-05", "2026-07-28", "latest"] {
        let mut peer = Peer::start(registry([]));
        assert_eq!(peer.open(version).await["protocolVersion"], LATEST, "{version}");
        peer.ended().await;
    }
}

#[tokio::test]
async fn a_ping_is_answered_before_the_handshake() {
    let mut peer = Peer::start(registry([]));
    peer.ping().await;
    peer.open(LATEST).await;
    peer.ping().await;
    peer.ended().await;
}

#[tokio::test]
async fn who_asks_for_anything_else_before_the_handshake_is_told_both_ways_in() {
    let gate = Gate::new();
    let mut peer = Peer::start(registry([gate.tool("slow")]));
    for (id, method) in ["tools/list", "tools/call", "logging/setLevel", "tasks/list", "unheard/of"].into_iter().enumerate() {
        peer.ask(id, method, json!({"name": "slow", "arguments": {}, "task": {}, "level": "info"})).await;
        let error = peer.error(id).await;
        assert_eq!(error["code"], -32602, "{method}");
        let message = error["message"].as_str().expect("a text");
        assert!(message.contains("initialize") && message.contains(CLAIM), "{message}");
    }
    peer.notify("notifications/initialized", json!({})).await;
    peer.notify("notifications/cancelled", json!({"requestId": 1})).await;
    peer.ping().await;
    assert_eq!(gate.runs(), 0);
    peer.ended().await;
}

#[tokio::test]
async fn a_second_handshake_is_refused_and_the_first_one_holds() {
    let harness = ToolHarness::of(Config::default(), |tool| tool.streams()).await;
    let mut peer = Peer::opened(&harness.server.server, streaming()).await;
    for (version, capabilities) in [(LATEST, streaming()), (LATEST, json!({})), ("2025-03-26", json!({}))] {
        peer.ask("again", "initialize", initialize(version, &capabilities)).await;
        let error = peer.error("again").await;
        assert_eq!(error["code"], -32600, "{version} {capabilities}");
        assert!(error["message"].as_str().is_some_and(|text| text.contains("initialize")), "{error}");
    }
    peer.ask(1, "tools/list", json!({})).await;
    let execution = json!({"taskSupport": "optional", "streamPartial": true});
    assert_eq!(peer.result(1).await["tools"][0]["execution"], execution, "what was agreed on first");
    peer.ask(2, "tasks/list", json!({})).await;
    assert_eq!(peer.result(2).await["tasks"], json!([]));
    peer.ended().await;
}

#[tokio::test]
async fn a_handshake_that_was_refused_can_be_tried_again() {
    let mut peer = Peer::start(registry([quick("quick")]));
    for params in [json!({}), json!({"protocolVersion": 5, "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}})] {
        peer.ask("bad", "initialize", params).await;
        assert_eq!(peer.error("bad").await["code"], -32602);
    }
    peer.open(LATEST).await;
    peer.call(1, "quick").await;
    assert_eq!(peer.result(1).await["content"][0]["text"], "done");
    peer.ended().await;
}

// Two eras.

#[tokio::test]
async fn both_eras_are_served_on_one_stream() {
    let mut peer = Peer::start(registry([quick("quick")]));
    for is_open in [false, true] {
        peer.ask_modern("discover", "server/discover", json!({})).await;
        assert_eq!(peer.result("discover").await["supportedVersions"], json!(["2026-07-28"]));
        peer.ask_modern("m", "tools/call", json!({"name": "quick", "arguments": {}})).await;
        assert_eq!(peer.result("m").await["resultType"], "complete");
        if is_open {
            peer.call("l", "quick").await;
            let result = peer.result("l").await;
            assert_eq!((result.get("resultType"), &result["content"][0]["text"]), (None, &json!("done")));
        } else {
            peer.open(LATEST).await;
        }
    }
    // Methods of one are not there for the other.
    for (method, code) in [("ping", -32601), ("tasks/list", -32601), ("initialize", -32601), ("logging/setLevel", -32601)] {
        peer.ask_modern("m", method, json!({})).await;
        assert_eq!(peer.error("m").await["code"], code, "{method}");
    }
    for method in ["server/discover", "subscriptions/listen", "tasks/update"] {
        peer.ask("l", method, json!({"notifications": {}})).await;
        assert_eq!(peer.error("l").await["code"], -32601, "{method}");
    }
    peer.ended().await;
}

#[tokio::test]
async fn a_modern_handshake_is_no_handshake() {
    let mut peer = Peer::start(registry([]));
    peer.ask_modern("m", "initialize", initialize(LATEST, &json!({}))).await;
    assert_eq!(peer.error("m").await["code"], -32601);
    peer.ask("l", "tools/list", json!({})).await;
    assert_eq!(peer.error("l").await["code"], -32602, "it opened nothing");
    peer.open(LATEST).await;
    peer.ended().await;
}

#[tokio::test]
async fn an_id_that_is_in_use_is_refused_whichever_era_uses_it() {
    let gate = Gate::new();
    let mut peer = Peer::start(registry([gate.tool("slow").task(TaskMode::Never), quick("quick")]));
    peer.open(LATEST).await;
    let params = json!({"name": "quick", "arguments": {}});
    let legacy = |id: &str| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string();
    let modern = |peer: &Peer, id: &str| {
        let mut message = peer.client.message(0, "tools/call", params.clone());
        message["id"] = id.into();
        message.to_string()
    };
    peer.call("l", "slow").await;
    peer.ask_modern("m", "tools/call", json!({"name": "slow", "arguments": {}})).await;
    for _ in 0..2 {
        with_timeout("the start", gate.started.wait()).await;
    }
    for id in ["l", "m"] {
        for line in [legacy(id), modern(&peer, id)] {
            peer.line(&line).await;
            assert_eq!(peer.error(id).await["code"], -32600, "{line}");
        }
    }
    gate.go.send();
    gate.go.send();
    let mut answered = vec![peer.message().await["id"].clone(), peer.message().await["id"].clone()];
    answered.sort_by_key(Value::to_string);
    assert_eq!(answered, [json!("l"), json!("m")], "the first ones are answered all the same");
    assert_eq!(gate.runs(), 2);
    peer.ended().await;
}

#[tokio::test]
async fn modern_traffic_is_never_asked_nor_told_of_in_the_way_of_this_era() {
    let mut peer = Peer::start(registry([asks("held").task(TaskMode::Never), asks("task").task(TaskMode::Always)]));
    peer.open(LATEST).await;
    peer.ask_modern("held", "tools/call", json!({"name": "held", "arguments": {}})).await;
    let asked = peer.result("held").await;
    assert_eq!(asked["resultType"], "input_required");
    peer.ask_modern("task", "tools/call", json!({"name": "task", "arguments": {}})).await;
    let task = peer.result("task").await["taskId"].clone();
    peer.ask_modern("listen", "subscriptions/listen", json!({"notifications": {"taskIds": [task]}})).await;
    peer.until(|message| message["params"]["status"] == "input_required").await;
    peer.ping().await;
    peer.ask_modern("update", "tasks/update", json!({"taskId": task, "inputResponses": {"name": accept("Ada")}})).await;
    peer.until(|message| message["params"]["status"] == "completed").await;
    let again = json!({"name": "held", "arguments": {}, "requestState": asked["requestState"], "inputResponses": {"name": accept("Bob")}});
    peer.ask_modern("again", "tools/call", again).await;
    assert_eq!(peer.result("again").await["content"][0]["text"], "Bob");
    settle().await;
    peer.ping().await;
    for message in &peer.seen {
        let is_ours = message.get("method").is_none() || message["params"]["_meta"].get(SUBSCRIPTION).is_some();
        assert!(is_ours, "{message}");
    }
}

// Questions.

#[tokio::test]
async fn a_question_is_a_line_and_so_is_its_answer() {
    for version in [LATEST, "2025-06-18"] {
        let mut peer = Peer::start(registry([asks("asks")]));
        peer.open(version).await;
        peer.call(1, "asks").await;
        let question = peer.message().await;
        assert_eq!((&question["method"], &question["params"]["message"]), (&json!("elicitation/create"), &json!("Name?")));
        assert_eq!(question["params"].get("mode").is_some(), version == LATEST, "{version}");
        assert!(question["id"].is_string(), "{question}");
        peer.ping().await;
        peer.answer(&question, accept("Ada")).await;
        assert_eq!(peer.result(1).await["content"][0]["text"], "Ada");
        assert_eq!(peer.count("elicitation/create"), 1);
        peer.ended().await;
    }
}

#[tokio::test]
async fn a_question_is_asked_again_where_what_came_was_no_answer() {
    let mut peer = Peer::start(registry([asks("asks")]));
    peer.open(LATEST).await;
    peer.call(1, "asks").await;
    let first = peer.message().await;
    peer.answer(&first, json!({"action": "perhaps"})).await;
    let second = peer.message().await;
    assert_eq!(second["method"], "elicitation/create");
    assert_ne!(second["id"], first["id"]);
    assert!(second["params"]["message"].as_str().is_some_and(|text| text.contains("was not taken: `action` must be")), "{second}");
    peer.answer(&second, accept("Ada")).await;
    assert_eq!(peer.result(1).await["content"][0]["text"], "Ada");
    peer.ended().await;
}

#[tokio::test]
async fn a_question_that_is_answered_with_an_error_fails_where_it_was_asked() {
    let mut peer = Peer::start(registry([asks("asks")]));
    peer.open(LATEST).await;
    peer.call(1, "asks").await;
    let question = peer.message().await;
    let refusal = json!({"jsonrpc": "2.0", "id": question["id"], "error": {"code": -1, "message": "not now"}});
    peer.line(&refusal.to_string()).await;
    let result = peer.result(1).await;
    assert_eq!(result["isError"], true);
    assert!(result["content"][0]["text"].as_str().is_some_and(|text| text.contains("not now")), "{result}");
    peer.ended().await;
}

#[tokio::test]
async fn who_cannot_be_asked_is_told_what_is_missing() {
    let mut peer = Peer { capabilities: json!({}), ..Peer::start(registry([asks("asks")])) };
    peer.open(LATEST).await;
    peer.call(1, "asks").await;
    let error = peer.error(1).await;
    assert_eq!(error["code"], -32600);
    assert_eq!(error["data"]["requiredCapabilities"], json!({"elicitation": {}}));
    assert_eq!(peer.count("elicitation/create"), 0);
    peer.ended().await;
}

#[tokio::test]
async fn an_answer_to_nothing_is_ignored() {
    let mut peer = Peer::start(registry([asks("asks")]));
    for is_open in [false, true] {
        for id in [json!(1), json!("1"), json!("never"), json!("")] {
            peer.line(&json!({"jsonrpc": "2.0", "id": id, "result": accept("Eve")}).to_string()).await;
            peer.line(&json!({"jsonrpc": "2.0", "id": id, "error": {"code": 1, "message": "no"}}).to_string()).await;
        }
        peer.ping().await;
        if !is_open {
            peer.open(LATEST).await;
        }
    }
    peer.call(1, "asks").await;
    let question = peer.message().await;
    peer.answer(&json!({"id": "never"}), accept("Eve")).await;
    peer.answer(&json!({"id": 1}), accept("Eve")).await;
    peer.answer(&question, accept("Ada")).await;
    peer.answer(&question, accept("Eve")).await;
    assert_eq!(peer.result(1).await["content"][0]["text"], "Ada");
    peer.ping().await;
    peer.ended().await;
}

#[tokio::test]
async fn the_question_of_a_task_is_asked_while_its_result_is_waited_for() {
    let mut harness = ToolHarness::new().await;
    let mut peer = Peer::opened(&harness.server.server, json!({"elicitation": {}})).await;
    let task = peer.task("writes").await;
    let mut run = harness.run().await;
    let ctx = run.ctx.clone();
    let asked = tokio::spawn(async move { ctx.ask("name", name_form("Name?")).await });
    assert_eq!(peer.until_status("input_required").await["params"]["taskId"], *task);
    peer.ask("result", "tasks/result", json!({"taskId": task})).await;
    let question = peer.until_method("elicitation/create").await;
    assert_eq!(question["params"]["_meta"], related(&task));
    peer.answer(&question, accept("Ada")).await;
    let answer = with_timeout("the answer", asked).await.expect("no panic").expect("an answer");
    assert_eq!(name_in(&answer), "Ada");
    run.ends("done");
    let result = peer.result("result").await;
    assert_eq!((&result["content"][0]["text"], &result["_meta"]), (&json!("done"), &related(&task)));
    assert_eq!(peer.count("elicitation/create"), 1);
}

// What the server sends by itself.

#[tokio::test]
async fn output_and_statuses_of_a_task_are_written_behind_its_handle() {
    let mut harness = ToolHarness::of(uncoalesced(), |tool| tool.task(TaskMode::Always).streams()).await;
    let mut peer = Peer::opened(&harness.server.server, streaming()).await;
    let task = peer.task("writes").await;
    assert_eq!(peer.count("notifications/tasks/status") + peer.numbers().len(), 0, "its name comes first");
    let mut run = harness.run().await;
    for text in ["a", "b", "c"] {
        run.writes(text).await;
    }
    run.ctx.status("nearly").await.expect("it goes on");
    peer.until(|message| message["params"]["statusMessage"] == "nearly").await;
    run.ends("done");
    let last = peer.until_status("completed").await;
    assert_eq!((&last["params"]["taskId"], last["params"].get("_meta")), (&json!(task), None));
    assert_eq!(peer.numbers(), [0, 1, 2]);
    let partials = peer.seen.iter().filter(|message| message["method"] == "notifications/tasks/partial");
    assert_eq!(partials.map(brief).collect::<Vec<_>>(), ["0 a", "1 b", "2 c"]);
    peer.ended().await;
}

#[tokio::test]
async fn who_declares_no_draft_is_told_of_statuses_alone() {
    // That no message has anything of a draft is checked wherever a line is read.
    let mut harness = ToolHarness::of(uncoalesced(), |tool| tool.task(TaskMode::Always).streams()).await;
    let mut peer = Peer::opened(&harness.server.server, json!({})).await;
    peer.ask("list", "tools/list", json!({})).await;
    assert_eq!(peer.result("list").await["tools"][0]["execution"], json!({"taskSupport": "optional"}));
    let wanted = json!({"name": "writes", "arguments": {}, "task": {"responseModes": ["streaming", "immediate"]}});
    peer.ask("call", "tools/call", wanted).await;
    let task = peer.result("call").await["task"]["taskId"].as_str().expect("a task").to_owned();
    let mut run = harness.run().await;
    run.writes("a").await;
    run.ends("done");
    peer.until_status("completed").await;
    peer.ask("result", "tasks/result", json!({"taskId": task, "lastSeqNr": 0})).await;
    assert_eq!(peer.result("result").await["content"][0]["text"], "done");
    peer.ended().await;
}

#[tokio::test]
async fn a_result_is_waited_for_and_holds_nothing_up() {
    let mut harness = ToolHarness::of(uncoalesced(), |tool| tool.task(TaskMode::Always).streams()).await;
    let mut peer = Peer::opened(&harness.server.server, streaming()).await;
    let task = peer.task("writes").await;
    let mut run = harness.run().await;
    run.writes("a").await;
    peer.until_method("notifications/tasks/partial").await;
    peer.ask("result", "tasks/result", json!({"taskId": task})).await;
    peer.ping().await;
    run.writes("b").await;
    peer.until_method("notifications/tasks/partial").await;
    run.ends("done");
    let result = peer.result("result").await;
    assert_eq!((&result["content"][0]["text"], &result["_meta"]), (&json!("done"), &related(&task)));
    settle().await;
    peer.ping().await;
    assert_eq!(peer.numbers(), [0, 1], "each is told once");
    let completed = peer.seen.iter().filter(|message| message["params"]["status"] == "completed").count();
    assert_eq!(completed, 1);
    peer.ended().await;
}

#[tokio::test]
async fn a_streamed_call_is_answered_once_and_goes_on_as_partials() {
    let mut harness = ToolHarness::of(uncoalesced(), |tool| tool.task(TaskMode::Always).streams()).await;
    let tasks = json!({"streaming": {"partial": {}}, "responses": {"modes": ["task", "streaming"]}});
    let mut peer = Peer::opened(&harness.server.server, json!({"tasks": tasks})).await;
    let call = json!({"name": "writes", "arguments": {}, "task": {"responseModes": ["streaming"]}});
    peer.ask("call", "tools/call", call).await;
    let mut run = harness.run().await;
    run.writes("a").await;
    let first = peer.result("call").await;
    assert_eq!((&first["task"]["status"], first.get("partial-content")), (&json!("working"), None), "its output is told otherwise");
    run.writes("b").await;
    run.ends("ab");
    peer.until_status("completed").await;
    settle().await;
    peer.ping().await;
    assert_eq!(peer.numbers(), [0, 1], "all of it, and each once");
    assert_eq!(peer.seen.iter().filter(|message| message["id"] == "call").count(), 1);
    peer.ended().await;
}

#[tokio::test]
async fn progress_and_log_lines_of_a_call_come_before_its_response() {
    let noisy = tool("noisy", &(), |(), ctx| async move {
        ctx.log("debug", "too quiet");
        ctx.log("error", "loud");
        Ok("done")
    });
    let mut peer = Peer::start(registry([noisy, tool("count", &(), |(), ctx| count(ctx))]));
    peer.open(LATEST).await;
    peer.ask(1, "tools/call", json!({"name": "count", "arguments": {}, "_meta": {"progressToken": "p"}})).await;
    assert_eq!(peer.result(1).await["content"][0]["text"], "counted");
    let progress: Vec<&Value> = peer.seen.iter().filter(|message| message["method"] == "notifications/progress").collect();
    assert!(progress.iter().all(|message| message["params"]["progressToken"] == "p"), "{progress:?}");
    assert_eq!(progress.last().expect("some progress")["params"]["progress"], 3.0);
    peer.call(2, "noisy").await;
    peer.result(2).await;
    let lines = |peer: &Peer| {
        let lines = peer.seen.iter().filter(|message| message["method"] == "notifications/message");
        lines.map(|message| message["params"]["data"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(lines(&peer), [json!("loud")]);
    peer.ask(3, "logging/setLevel", json!({"level": "debug"})).await;
    assert_eq!(peer.result(3).await, json!({}));
    peer.call(4, "noisy").await;
    peer.result(4).await;
    assert_eq!(lines(&peer), [json!("loud"), json!("too quiet"), json!("loud")]);
    peer.ended().await;
}

#[tokio::test]
async fn a_tool_cannot_send_its_caller_away() {
    let hasty = tool("hasty", &(), |(), ctx| async move {
        ctx.disconnect(Duration::from_millis(300));
        settle().await;
        Ok("done")
    });
    let mut peer = Peer::start(registry([hasty]));
    peer.open(LATEST).await;
    peer.call(1, "hasty").await;
    assert_eq!(peer.result(1).await["content"][0]["text"], "done");
    let task = peer.task("hasty").await;
    peer.until_status("completed").await;
    peer.ask(2, "tasks/result", json!({"taskId": task})).await;
    assert_eq!(peer.result(2).await["content"][0]["text"], "done");
    peer.ended().await;
}

#[tokio::test]
async fn changed_lists_and_resources_are_told_from_the_handshake_on() {
    let tools = registry([]);
    tools.resource(resource("test://a"));
    let mut peer = Peer::start(tools.clone());
    tools.tool(quick("quick")).expect("a tool");
    peer.ping().await;
    assert_eq!(peer.seen.len(), 1, "nobody has been there yet");
    peer.open(LATEST).await;
    peer.ask(1, "resources/subscribe", json!({"uri": "test://a"})).await;
    assert_eq!(peer.result(1).await, json!({}));
    tools.resource_updated("test://a");
    assert_eq!(peer.until_method("notifications/resources/updated").await["params"]["uri"], "test://a");
    // A modern listener hears of the same change in its own way.
    peer.ask_modern("listen", "subscriptions/listen", json!({"notifications": {"toolsListChanged": true}})).await;
    peer.until_method("notifications/subscriptions/acknowledged").await;
    let before = peer.count("notifications/tools/list_changed");
    tools.tool(quick("quick")).expect("a tool");
    for _ in 0..2 {
        peer.until_method("notifications/tools/list_changed").await;
    }
    let changes = peer.seen.iter().filter(|message| message["method"] == "notifications/tools/list_changed").skip(before);
    assert_eq!(changes.filter(|message| message["params"]["_meta"].get(SUBSCRIPTION).is_some()).count(), 1);
}

// Calling off.

#[tokio::test]
async fn a_call_that_is_cancelled_is_stopped_and_not_answered() {
    let gate = Gate::new();
    let mut peer = Peer::start(registry([gate.tool("slow"), quick("quick")]));
    peer.open(LATEST).await;
    peer.call(1, "slow").await;
    with_timeout("the start", gate.started.wait()).await;
    peer.cancel("1").await;
    peer.cancel(2).await;
    peer.ping().await;
    assert!(!gate.stopped.is_sent(), "another was called off");
    peer.cancel(1).await;
    with_timeout("the stop", gate.stopped.wait()).await;
    settle().await;
    peer.ping().await;
    assert!(!peer.seen.iter().any(|message| message["id"] == 1), "{:?}", peer.seen);
    peer.call(1, "quick").await;
    assert_eq!(peer.result(1).await["content"][0]["text"], "done", "the id is free again");
    peer.ended().await;
}

#[tokio::test]
async fn cancelling_a_wait_leaves_the_task_alone() {
    let mut harness = ToolHarness::new().await;
    let mut peer = Peer::opened(&harness.server.server, json!({})).await;
    let task = peer.task("writes").await;
    let mut run = harness.run().await;
    peer.ask("result", "tasks/result", json!({"taskId": task})).await;
    peer.ping().await;
    peer.cancel("result").await;
    // Nor does calling off the request that made it.
    peer.cancel("task").await;
    peer.ping().await;
    assert!(!run.ctx.is_cancelled());
    run.ends("done");
    peer.until_status("completed").await;
    settle().await;
    peer.ping().await;
    assert!(!peer.seen.iter().any(|message| message["id"] == "result"), "{:?}", peer.seen);
    peer.ask("again", "tasks/result", json!({"taskId": task})).await;
    assert_eq!(peer.result("again").await["content"][0]["text"], "done");
    peer.ended().await;
}

// Batches.

#[tokio::test]
async fn a_batch_is_a_line_and_so_are_its_answers() {
    let mut peer = Peer::start(registry([quick("quick")]));
    peer.open("2025-03-26").await;
    let batch = json!([
        {"jsonrpc": "2.0", "id": 1, "method": "ping"},
        {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"},
        {"jsonrpc": "2.0", "id": "two", "method": "tools/call", "params": {"name": "quick"}},
        {"jsonrpc": "2.0", "id": 3, "method": "unheard/of"},
    ]);
    peer.line(&batch.to_string()).await;
    let line = peer.pipe.line().await.expect("the stream goes on");
    let answers: Vec<Value> = serde_json::from_str(&line).expect("a list");
    assert_eq!(answers.len(), 3, "{line}");
    let answer = |id: Value| answers.iter().find(|answer| answer["id"] == id).expect("an answer");
    assert_eq!(answer(json!(1))["result"], json!({}));
    assert_eq!(answer(json!("two"))["result"]["content"][0]["text"], "done");
    assert_eq!(answer(json!(3))["error"]["code"], -32601);
    // One that has nothing to be answered is not answered.
    peer.line(&json!([{"jsonrpc": "2.0", "method": "notifications/initialized"}]).to_string()).await;
    settle().await;
    peer.ping().await;
    peer.line("[]").await;
    assert_eq!(peer.message().await["error"]["code"], -32600, "nothing is no batch");
    peer.call(4, "quick").await;
    assert_eq!(peer.result(4).await["content"][0]["text"], "done");
    peer.ended().await;
}

// Bad lines.

#[tokio::test]
async fn a_line_that_is_no_message_is_refused_and_the_session_lives_on() {
    let mut peer = Peer::start(registry([quick("quick")]));
    peer.open(LATEST).await;
    for (line, code) in [
        ("{", -32700),
        ("hello", -32700),
        ("[]", -32600),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, -32600),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, -32600),
        ("3", -32600),
    ] {
        peer.line(line).await;
        let refusal = peer.message().await;
        assert_eq!((&refusal["error"]["code"], refusal.get("id")), (&json!(code), None), "{line}");
    }
    for (method, params, code) in [
        ("unheard/of", json!({}), -32601),
        ("tools/call", json!({"name": "quick", "task": 5}), -32602),
        ("tasks/get", json!({"taskId": "never-was"}), -32602),
        ("tasks/list", json!({"cursor": "x"}), -32602),
        ("logging/setLevel", json!({"level": "loud"}), -32602),
    ] {
        peer.ask("bad", method, params).await;
        assert_eq!(peer.error("bad").await["code"], code, "{method}");
    }
    peer.ask("list", "tasks/list", json!({})).await;
    assert_eq!(peer.result("list").await["tasks"], json!([]));
    peer.ended().await;
}
