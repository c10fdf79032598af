//! A task as its caller sees it: how it begins, what it shows, how it ends, and what survives a crash.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, future::join_all};
use serde_json::{Value, json};
use taskwire::{
    clock::ManualClock,
    core::{Limits, Seq, TaskId},
    server::{Config, EngineConfig, Tokens},
    store::SqliteStore,
    tool::{Answer, Ctx, IntoResult, Progress, Question, Registry, TaskMode, Tool, ToolError},
};
use tokio::sync::{Semaphore, mpsc};

use crate::kit::{Client, HOUR, MS, SECOND, TASKS, TempDir, TestServer, manual_clock, with_timeout, without_disk_reserve};

/// Something that a tool and its test wait for, each at its own pace: none is lost, none counts twice.
#[derive(Debug, Clone)]
pub(crate) struct Signal(Arc<Semaphore>);

impl Signal {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    pub(crate) fn send(&self) {
        self.0.add_permits(1);
    }

    pub(crate) fn is_sent(&self) -> bool {
        self.0.available_permits() > 0
    }

    pub(crate) async fn wait(&self) {
        self.0.acquire().await.expect("it is never closed").forget();
    }
}

/// A tool that its test controls: it signals its start, ends when the test lets it, and signals that it was stopped.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    pub(crate) started: Signal,
    pub(crate) go: Signal,
    pub(crate) stopped: Signal,
    runs: Arc<AtomicU64>,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self { started: Signal::new(), go: Signal::new(), stopped: Signal::new(), runs: Arc::default() }
    }

    pub(crate) fn tool(&self, name: &str) -> Tool {
        tool(name, self, |gate, ctx| async move {
            gate.runs.fetch_add(1, Ordering::Relaxed);
            gate.pass(&ctx).await
        })
    }

    /// A tool that saves something, which makes its call a task, and ends when the test lets it.
    pub(crate) fn saves(&self) -> Tool {
        tool("saves", self, |gate, ctx| async move {
            ctx.checkpoint(&1).await?;
            gate.started.send();
            gate.go.wait().await;
            Ok("done")
        })
    }

    /// Signals that a tool has come so far, and goes on when the test lets it.
    pub(crate) async fn pass(&self, ctx: &Ctx) -> Result<&'static str, ToolError> {
        self.started.send();
        tokio::select! {
            () = self.go.wait() => Ok("done"),
            () = ctx.cancelled() => {
                self.stopped.send();
                Err(ToolError::stopped())
            }
        }
    }

    /// How often the tool's body was entered.
    pub(crate) fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }
}

/// A tool that takes any arguments, and gets its own copy of `state` each time it runs.
pub(crate) fn tool<S, R, Fut>(name: &str, state: &S, body: impl Fn(S, Ctx) -> Fut + Send + Sync + 'static) -> Tool
where
    S: Clone + Send + Sync + 'static,
    R: IntoResult,
    Fut: Future<Output = Result<R, ToolError>> + Send + 'static,
{
    let state = state.clone();
    Tool::raw(name, "For a test", json!({"type": "object"}), move |ctx: Ctx| body(state.clone(), ctx))
}

/// A tool that is done at once.
pub(crate) fn quick(name: &str) -> Tool {
    tool(name, &(), |(), _ctx| async move { Ok("done") })
}

/// Tells its progress three times.
pub(crate) async fn count(ctx: Ctx) -> Result<&'static str, ToolError> {
    for n in 1..=3 {
        ctx.progress(Progress::of(n, 3.0).message("counting")).await?;
    }
    Ok("counted")
}

pub(crate) fn registry(tools: impl IntoIterator<Item = Tool>) -> Registry {
    let registry = Registry::new();
    for tool in tools {
        registry.tool(tool).expect("a good tool");
    }
    registry
}

pub(crate) fn with_limits(limits: Limits) -> Config {
    Config { engine: EngineConfig { limits, ..EngineConfig::default() }, ..Config::default() }
}

/// Two callers, `ann` and `bob`, each with a token that says so.
pub(crate) fn two_callers() -> Config {
    Config { auth: Arc::new(Tokens::default().with_token("ann-token", "ann").with_token("bob-token", "bob")), ..Config::default() }
}

/// A form that asks for a name.
pub(crate) fn name_form(text: &str) -> Question {
    Question::form(text, json!({"type": "object", "properties": {"name": {"type": "string"}}}))
}

/// The answer to [`name_form`].
pub(crate) fn accept(name: &str) -> Value {
    json!({"action": "accept", "content": {"name": name}})
}

/// The name in an answer.
pub(crate) fn name_in(answer: &Answer) -> String {
    answer.content.as_ref().and_then(|content| content["name"].as_str()).unwrap_or("nobody").to_owned()
}

/// The texts that a task has written, one per chunk.
pub(crate) fn written(server: &TestServer, task: &str) -> Vec<String> {
    let id: TaskId = task.parse().expect("an id");
    let chunks =
        server.server.engine().reader().chunks(id, Seq(0), 1 << 20, usize::MAX).now_or_never().expect("at once").expect("readable");
    let numbers: Vec<u64> = chunks.iter().map(|chunk| chunk.seq.0).collect();
    assert!(numbers.iter().copied().eq(0..chunks.len() as u64), "not dense from 0: {numbers:?}");
    let text = |blocks: Value| blocks[0]["text"].as_str().expect("a text block").to_owned();
    chunks.iter().map(|chunk| text(serde_json::from_str(chunk.blocks.as_str()).expect("JSON"))).collect()
}

/// Runs a server until the future ends. Then everything in it is dropped where it stands, as in a crash.
pub(crate) fn until_crash<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(future)
}

/// A server on the directory of one that crashed. The crashed one's writer thread ends in its own time and cannot be
/// awaited, so this tries until the directory is free.
pub(crate) async fn reopened(dir: &Arc<TempDir>, tools: Registry, config: Config, clock: &ManualClock) -> TestServer {
    let free = async {
        loop {
            match SqliteStore::open(dir.path()) {
                Ok(store) => return store,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    let store = with_timeout("the release of the store", free).await;
    TestServer::start_on(dir.clone(), store, tools, without_disk_reserve(config), Arc::new(clock.clone())).await
}

async fn start_at(clock: &ManualClock, tools: Registry) -> TestServer {
    TestServer::start_with(tools, Config::default(), Arc::new(clock.clone())).await
}

/// Calls a tool and lets time pass once it has started.
async fn call_for(span: Duration, clock: &ManualClock, client: &Client, gate: &Gate, tool: &str) -> Value {
    let pass = async {
        gate.started.wait().await;
        clock.advance(span);
    };
    let (result, ()) = with_timeout("the answer", async { tokio::join!(client.call(tool, json!({})), pass) }).await;
    result
}

/// Calls a tool under an idempotency key.
async fn keyed(client: &Client, key: &str, tool: &str, arguments: Value) -> Value {
    let meta = json!({"dev.taskwire/idempotencyKey": key});
    client.ok("tools/call", json!({"name": tool, "arguments": arguments, "_meta": meta})).await
}

/// Asks for a task until it is gone, and gives the error that says so.
pub(crate) async fn gone(client: &Client, task: &str) -> Value {
    let ask = async {
        loop {
            let response = client.raw("tasks/get", json!({"taskId": task})).await.json();
            if let Some(error) = response.get("error") {
                return error.clone();
            }
        }
    };
    with_timeout("the end of the task's time", ask).await
}

/// Waits until exactly these questions are open, in order.
pub(crate) async fn until_open(client: &Client, task: &str, keys: &[&str]) -> Value {
    let mut events = client.listen(json!({"taskIds": [task]})).await;
    let ask = async {
        loop {
            let message = events.next().await.expect("the stream goes on");
            let open = message["params"]["inputRequests"].as_object();
            if open.is_some_and(|open| open.keys().map(String::as_str).eq(keys.iter().copied())) {
                return message["params"].clone();
            }
        }
    };
    with_timeout("the questions", ask).await
}

#[tokio::test]
async fn a_slow_call_becomes_a_task_and_ends_with_its_result() {
    let gate = Gate::new();
    let server = TestServer::start(registry([gate.tool("slow").task(TaskMode::Always)])).await;
    let client = server.client();
    let id = client.start("slow", json!({})).await;
    gate.go.send();
    let task = with_timeout("the end", client.until(&id, "completed")).await;
    assert_eq!(task["result"]["content"][0]["text"], "done");
    assert_eq!(client.get(&id).await["result"], task["result"]);
    server.stopped().await;
}

// How a call becomes a task.

#[tokio::test]
async fn a_quick_call_is_answered_directly() {
    let server = TestServer::start(registry([quick("quick")])).await;
    let result = server.client().call("quick", json!({})).await;
    assert_eq!(result["resultType"], "complete");
    assert_eq!(result["content"], json!([{"type": "text", "text": "done"}]));
    let open = server.server.engine().reader().open_tasks(None, 10).await.expect("readable");
    assert!(open.is_empty(), "no task was left open");
}

#[tokio::test]
async fn a_call_that_takes_too_long_becomes_a_task_without_being_restarted() {
    let (gate, clock) = (Gate::new(), manual_clock());
    let server = start_at(&clock, registry([gate.tool("slow")])).await;
    let client = server.client();
    let created = call_for(SECOND, &clock, &client, &gate, "slow").await;
    assert_eq!((&created["resultType"], &created["status"]), (&json!("task"), &json!("working")));
    let id = created["taskId"].as_str().expect("an id");
    gate.go.send();
    let task = with_timeout("the end", client.until(id, "completed")).await;
    assert_eq!(task["result"]["content"][0]["text"], "done");
    assert_eq!(gate.runs(), 1);
}

#[tokio::test]
async fn a_call_that_ends_within_the_patience_of_its_tool_is_answered_directly() {
    let (gate, clock) = (Gate::new(), manual_clock());
    let server = start_at(&clock, registry([gate.tool("slow").promote_after(5 * SECOND)])).await;
    let client = server.client();
    let later = async {
        gate.started.wait().await;
        clock.advance(5 * SECOND - MS);
        gate.go.send();
    };
    let (result, ()) = with_timeout("the result", async { tokio::join!(client.call("slow", json!({})), later) }).await;
    assert_eq!(result["resultType"], "complete");
}

#[tokio::test]
async fn what_was_produced_before_a_call_became_a_task_is_part_of_it() {
    let (gate, clock) = (Gate::new(), manual_clock());
    let writes = tool("writes", &gate, |gate, ctx| async move {
        ctx.text("one").await?;
        ctx.status("half way").await?;
        ctx.text("two").await?;
        gate.started.send();
        gate.go.wait().await;
        ctx.text("three").await?;
        Ok("done")
    });
    let server = start_at(&clock, registry([writes])).await;
    let client = server.client();
    let created = call_for(SECOND, &clock, &client, &gate, "writes").await;
    assert_eq!(created["statusMessage"], "half way");
    let id = created["taskId"].as_str().expect("an id");
    assert_eq!(written(&server, id), ["onetwo"], "adjacent text is one block");
    gate.go.send();
    with_timeout("the end", client.until(id, "completed")).await;
    assert_eq!(written(&server, id), ["onetwo", "three"]);
}

#[tokio::test]
async fn tools_that_always_or_must_be_tasks_are_tasks_at_once() {
    let (gate, clock) = (Gate::new(), manual_clock());
    let tools = [gate.tool("always").task(TaskMode::Always), gate.tool("required").task(TaskMode::Required)];
    let server = start_at(&clock, registry(tools)).await;
    let client = server.client();
    for tool in ["always", "required"] {
        let id = with_timeout("the handle", client.start(tool, json!({}))).await;
        assert_eq!(client.get(&id).await["status"], "working", "{tool}");
    }
}

#[tokio::test]
async fn a_tool_that_must_be_a_task_refuses_callers_without_tasks() {
    let gate = Gate::new();
    let server = TestServer::start(registry([gate.tool("required").task(TaskMode::Required)])).await;
    let refused = server.plain_client().raw("tools/call", json!({"name": "required", "arguments": {}})).await;
    assert_eq!((refused.status, refused.code()), (400, -32021));
    assert_eq!(refused.json()["error"]["data"]["requiredCapabilities"], json!({"extensions": {TASKS: {}}}));
    assert_eq!(gate.runs(), 0);
}

#[tokio::test]
async fn a_caller_without_tasks_is_held_until_the_result_is_there() {
    let (gate, clock) = (Gate::new(), manual_clock());
    let server = start_at(&clock, registry([gate.tool("always").task(TaskMode::Always)])).await;
    let client = server.plain_client();
    let later = async {
        gate.started.wait().await;
        clock.advance(HOUR);
        gate.go.send();
    };
    let (result, ()) = with_timeout("the result", async { tokio::join!(client.call("always", json!({})), later) }).await;
    assert_eq!(result["resultType"], "complete");
    assert_eq!(result["content"][0]["text"], "done");
}

#[tokio::test]
async fn the_legacy_capability_counts_for_nothing() {
    let gate = Gate::new();
    let server = TestServer::start(registry([gate.tool("always").task(TaskMode::Always)])).await;
    let legacy = server.plain_client().declaring(json!({"tasks": {"requests": {"tools": {"call": {}}}, "cancel": {}}}));
    gate.go.send();
    assert_eq!(with_timeout("the result", legacy.call("always", json!({}))).await["resultType"], "complete");
    let id = server.client().start("always", json!({})).await;
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let refused = legacy.raw(method, json!({"taskId": id, "inputResponses": {}})).await;
        assert_eq!((refused.status, refused.code()), (400, -32021), "{method}");
    }
    assert_eq!(server.client().get(&id).await["status"], "working");
}

#[tokio::test]
async fn the_legacy_task_parameter_is_ignored() {
    let server = TestServer::start(registry([quick("quick")])).await;
    let params = json!({"name": "quick", "arguments": {}, "task": {"ttl": 1000}});
    assert_eq!(server.client().ok("tools/call", params).await["resultType"], "complete");
}

#[tokio::test]
async fn the_handle_of_a_task_is_flat_and_says_nothing_else() {
    let (gate, clock) = (Gate::new(), manual_clock());
    let server = start_at(&clock, registry([gate.tool("slow").task(TaskMode::Always)])).await;
    let created = server.client().call("slow", json!({})).await;
    let keys: BTreeSet<&str> = created.as_object().expect("an object").keys().map(String::as_str).collect();
    let expected = ["_meta", "createdAt", "lastUpdatedAt", "pollIntervalMs", "resultType", "status", "taskId", "ttlMs"];
    assert_eq!(keys, BTreeSet::from(expected));
    assert_eq!(created["createdAt"], "2026-07-28T00:00:00.000Z");
    assert_eq!(created["lastUpdatedAt"], created["createdAt"]);
    assert_eq!((&created["ttlMs"], &created["pollIntervalMs"]), (&json!(3_600_000), &json!(1_000)));
}

#[tokio::test]
async fn a_task_is_readable_as_soon_as_its_handle_is_there() {
    let gate = Gate::new();
    let server = TestServer::start(registry([gate.tool("slow").task(TaskMode::Always)])).await;
    let client = server.client();
    for id in join_all((0..20).map(|_| client.start("slow", json!({})))).await {
        assert_eq!(client.get(&id).await["taskId"], id);
    }
}

#[tokio::test]
async fn a_task_that_is_kept_for_ever_says_so() {
    let config = Config { retention: None, ..Config::default() };
    let clock = manual_clock();
    let server = TestServer::start_with(registry([quick("quick").task(TaskMode::Always)]), config, Arc::new(clock.clone())).await;
    let client = server.client();
    let created = client.call("quick", json!({})).await;
    assert_eq!(created.get("ttlMs"), Some(&Value::Null));
    let id = created["taskId"].as_str().expect("an id");
    with_timeout("the end", client.until(id, "completed")).await;
    clock.advance(24 * 365 * HOUR);
    assert_eq!(client.get(id).await["status"], "completed");
}

// Names of tasks.

#[tokio::test]
async fn a_task_that_is_not_yours_never_was_or_is_over_is_not_found_alike() {
    let clock = manual_clock();
    let tools = registry([quick("quick").task(TaskMode::Always), Gate::new().tool("slow").task(TaskMode::Always)]);
    let server = TestServer::start_with(tools, two_callers(), Arc::new(clock.clone())).await;
    let (ann, bob) = (server.client().with_token("ann-token"), server.client().with_token("bob-token"));
    let expired = ann.start("quick", json!({})).await;
    with_timeout("the end", ann.until(&expired, "completed")).await;
    clock.advance(HOUR);
    gone(&ann, &expired).await;
    let foreign = bob.start("slow", json!({})).await;
    let unknown = "0".repeat(32);
    for id in ["nonsense", "", &expired, &foreign, &unknown, &foreign.to_uppercase(), &format!("{foreign}0")] {
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let response = ann.raw(method, json!({"taskId": id, "inputResponses": {}})).await;
            assert_eq!((response.status, response.code()), (200, -32602), "{method} {id}");
            assert_eq!(response.json()["error"], json!({"code": -32602, "message": "Task not found"}), "{method} {id}");
        }
    }
    assert_eq!(bob.get(&foreign).await["status"], "working", "untouched");
}

#[tokio::test]
async fn task_ids_are_unguessable_ordered_by_time_and_safe_in_a_header() {
    let clock = manual_clock();
    let config = with_limits(Limits { tasks_per_caller: 2_000, ..Limits::DEFAULT });
    let server = TestServer::start_with(registry([quick("quick").task(TaskMode::Always)]), config, Arc::new(clock.clone())).await;
    let client = server.client();
    let (mut ids, mut last) = (BTreeSet::new(), String::new());
    let mut seen = vec![BTreeSet::new(); 14];
    for batch in 0..20u64 {
        let texts = join_all((0..50).map(|_| client.start("quick", json!({})))).await;
        let millis = 1_785_196_800_000 + batch;
        for text in &texts {
            assert!(text.len() == 32 && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'v')), "{text}");
            assert!(*text > last, "{text} was made after {last}");
            let id: TaskId = text.parse().expect("an id");
            let (time, random) = id.as_bytes().split_at(6);
            assert_eq!(time, &millis.to_be_bytes()[2..]);
            random.iter().zip(&mut seen).for_each(|(byte, seen)| {
                seen.insert(*byte);
            });
        }
        last = texts.iter().max().expect("some").clone();
        ids.extend(texts);
        clock.advance(MS);
    }
    assert_eq!(ids.len(), 1_000, "no two are alike");
    // Of 256 values, 1,000 fair draws leave out about five.
    assert!(seen.iter().all(|values| values.len() > 220), "{:?}", seen.iter().map(BTreeSet::len).collect::<Vec<_>>());
}

// Questions and answers.

/// Asks two things at once and says what came back.
fn asks() -> Tool {
    let asks = tool("asks", &(), |(), ctx| async move {
        let (first, last) = tokio::try_join!(ctx.ask("first", name_form("First name?")), ctx.ask("last", name_form("Last name?")))?;
        Ok(format!("{} {}", name_in(&first), name_in(&last)))
    });
    asks.task(TaskMode::Always)
}

#[tokio::test]
async fn some_answers_may_come_before_the_others_and_unknown_ones_are_ignored() {
    let server = TestServer::start(registry([asks()])).await;
    let client = server.client();
    let id = client.start("asks", json!({})).await;
    let asked = until_open(&client, &id, &["first", "last"]).await;
    assert_eq!(asked["status"], "input_required");
    assert_eq!(asked["inputRequests"]["first"]["params"]["message"], "First name?");
    let ack = client.answer(&id, json!({"first": accept("Ada"), "middle": accept("King")})).await;
    assert_eq!(ack, json!({"resultType": "complete"}));
    let half = client.get(&id).await;
    assert_eq!(half["status"], "input_required");
    assert_eq!(half["inputRequests"], json!({"last": asked["inputRequests"]["last"]}));
    client.answer(&id, json!({"last": accept("Lovelace")})).await;
    let task = with_timeout("the end", client.until(&id, "completed")).await;
    assert_eq!(task["result"]["content"][0]["text"], "Ada Lovelace");
}

#[tokio::test]
async fn the_first_answer_to_a_question_wins() {
    let server = TestServer::start(registry([asks()])).await;
    let client = server.client();
    let id = client.start("asks", json!({})).await;
    until_open(&client, &id, &["first", "last"]).await;
    client.answer(&id, json!({"first": accept("Ada")})).await;
    client.answer(&id, json!({"first": accept("Eve")})).await;
    client.answer(&id, json!({"first": accept("Eve"), "last": accept("Lovelace")})).await;
    let task = with_timeout("the end", client.until(&id, "completed")).await;
    assert_eq!(task["result"]["content"][0]["text"], "Ada Lovelace");
}

#[tokio::test]
async fn an_answer_shows_as_soon_as_it_is_acknowledged() {
    let gate = Gate::new();
    let asks = tool("asks", &gate, |gate, ctx| async move {
        let answer = ctx.ask("name", name_form("Name?")).await?;
        gate.go.wait().await;
        Ok(name_in(&answer))
    });
    let server = TestServer::start(registry([asks.task(TaskMode::Always)])).await;
    let client = server.client();
    let id = client.start("asks", json!({})).await;
    until_open(&client, &id, &["name"]).await;
    client.answer(&id, json!({"name": accept("Ada")})).await;
    let task = client.get(&id).await;
    assert_eq!(task["status"], "working");
    assert_eq!(task.get("inputRequests"), None);
    gate.go.send();
    assert_eq!(with_timeout("the end", client.until(&id, "completed")).await["result"]["content"][0]["text"], "Ada");
}

#[tokio::test]
async fn a_key_cannot_be_used_for_a_second_question() {
    let asks = tool("asks", &(), |(), ctx| async move {
        let name = ctx.ask("q", name_form("Name?")).await?;
        let again = ctx.ask("q", name_form("Name?")).await?;
        assert_eq!(name_in(&name), name_in(&again), "the same question has the same answer");
        ctx.ask("q", name_form("Another name?")).await?;
        Ok("not reached")
    });
    let server = TestServer::start(registry([asks.task(TaskMode::Always)])).await;
    let client = server.client();
    let id = client.start("asks", json!({})).await;
    until_open(&client, &id, &["q"]).await;
    client.answer(&id, json!({"q": accept("Ada")})).await;
    let result = with_timeout("the end", client.until(&id, "completed")).await["result"].clone();
    assert_eq!(result["isError"], true);
    assert_eq!(result["content"][0]["text"], "the question key `q` was already used for another question");
}

#[tokio::test]
async fn an_answer_to_an_ended_task_is_acknowledged_and_changes_nothing() {
    let clock = manual_clock();
    let server = start_at(&clock, registry([asks()])).await;
    let client = server.client();
    let id = client.start("asks", json!({})).await;
    until_open(&client, &id, &["first", "last"]).await;
    client.cancel(&id).await;
    let cancelled = client.get(&id).await;
    client.answer(&id, json!({"first": accept("Ada")})).await;
    assert_eq!(client.get(&id).await, cancelled);
}

// Ends.

#[tokio::test]
async fn an_error_of_the_protocol_fails_the_task() {
    let breaks = tool("breaks", &(), |(), _ctx| async move { Err::<(), _>(ToolError::protocol(-32603, "the disk is full")) });
    let server = TestServer::start(registry([breaks.task(TaskMode::Always)])).await;
    let client = server.client();
    let id = client.start("breaks", json!({})).await;
    let task = with_timeout("the end", client.until(&id, "failed")).await;
    assert_eq!(task["error"], json!({"code": -32603, "message": "the disk is full"}));
    assert_eq!(task["statusMessage"], task["error"]["message"]);
    assert_eq!(task.get("result"), None);
}

#[tokio::test]
async fn an_error_of_the_tool_completes_the_task() {
    let fails = tool("fails", &(), |(), _ctx| async move { Err::<(), _>(ToolError::new("no such file")) });
    let server = TestServer::start(registry([fails.task(TaskMode::Always)])).await;
    let client = server.client();
    let id = client.start("fails", json!({})).await;
    let task = with_timeout("the end", client.until(&id, "completed")).await;
    assert_eq!(task["result"]["isError"], true);
    assert_eq!(task["result"]["content"][0]["text"], "no such file");
    assert_eq!(task.get("error"), None);
}

#[tokio::test]
async fn a_task_can_be_cancelled_once_and_again() {
    let (gate, clock) = (Gate::new(), manual_clock());
    let server = start_at(&clock, registry([gate.tool("slow").task(TaskMode::Always)])).await;
    let client = server.client();
    let id = client.start("slow", json!({})).await;
    let ack = client.cancel(&id).await;
    assert_eq!(ack, json!({"resultType": "complete"}));
    let cancelled = client.get(&id).await;
    assert_eq!((&cancelled["status"], &cancelled["statusMessage"]), (&json!("cancelled"), &json!("cancelled by its caller")));
    clock.advance(SECOND);
    assert_eq!(client.cancel(&id).await, ack);
    assert_eq!(client.get(&id).await, cancelled);
}

#[tokio::test]
async fn cancelling_an_ended_task_is_acknowledged_and_changes_nothing() {
    let clock = manual_clock();
    let server = start_at(&clock, registry([quick("quick").task(TaskMode::Always)])).await;
    let client = server.client();
    let id = client.start("quick", json!({})).await;
    with_timeout("the end", client.until(&id, "completed")).await;
    let completed = client.get(&id).await;
    clock.advance(SECOND);
    assert_eq!(client.cancel(&id).await, json!({"resultType": "complete"}));
    assert_eq!(client.get(&id).await, completed);
}

#[tokio::test]
async fn output_after_a_cancellation_is_refused() {
    let (refused, mut refusals) = mpsc::channel::<bool>(1);
    let late = tool("late", &refused, |refused, ctx| async move {
        ctx.text("before").await?;
        ctx.status("ready").await?;
        ctx.cancelled().await;
        let all = ctx.text("after").await.is_err() && ctx.status("after").await.is_err() && ctx.checkpoint(&1).await.is_err();
        refused.send(all).await?;
        Ok("too late")
    });
    let server = TestServer::start(registry([late.task(TaskMode::Always)])).await;
    let client = server.client();
    let id = client.start("late", json!({})).await;
    let mut events = client.listen(json!({"taskIds": [id]})).await;
    let ready = async { while events.next().await.expect("the stream goes on")["params"]["statusMessage"] != "ready" {} };
    with_timeout("the first output", ready).await;
    client.cancel(&id).await;
    assert_eq!(with_timeout("the refusal", refusals.recv()).await, Some(true));
    assert_eq!(written(&server, &id), ["before"]);
    assert_eq!(client.get(&id).await["status"], "cancelled", "the first end wins");
}

// Time.

#[tokio::test]
async fn the_time_to_live_is_truthful() {
    let (gate, clock) = (Gate::new(), manual_clock());
    let server = start_at(&clock, registry([gate.tool("slow").task(TaskMode::Always)])).await;
    let client = server.client();
    let id = client.start("slow", json!({})).await;
    let ttl = async || client.get(&id).await["ttlMs"].as_u64().expect("a number");
    assert_eq!(ttl().await, 3_600_000);
    clock.advance(HOUR - MS);
    assert_eq!(ttl().await, 3_600_000);
    clock.advance(MS);
    assert_eq!(ttl().await, 7_200_000, "it grows with the task");
    clock.advance(HOUR / 2);
    gate.go.send();
    with_timeout("the end", client.until(&id, "completed")).await;
    assert_eq!(ttl().await, 9_000_000, "an hour after an end at one and a half");
    clock.advance(HOUR - MS);
    assert_eq!(ttl().await, 9_000_000);
    clock.advance(MS);
    assert_eq!(gone(&client, &id).await["code"], -32602);
}

#[tokio::test]
async fn live_work_never_expires() {
    let (gate, clock) = (Gate::new(), manual_clock());
    let server = start_at(&clock, registry([gate.tool("slow").task(TaskMode::Always)])).await;
    let client = server.client();
    let id = client.start("slow", json!({})).await;
    clock.advance(240 * HOUR);
    let task = client.get(&id).await;
    assert_eq!((&task["status"], &task["ttlMs"]), (&json!("working"), &json!(241 * 3_600_000)));
    gate.go.send();
    with_timeout("the end", client.until(&id, "completed")).await;
}

#[tokio::test]
async fn clients_are_told_to_look_less_often_at_a_long_task() {
    let (gate, clock) = (Gate::new(), manual_clock());
    let server = start_at(&clock, registry([gate.tool("slow").task(TaskMode::Always)])).await;
    let client = server.client();
    let id = client.start("slow", json!({})).await;
    for (span, interval) in [(Duration::ZERO, 1_000), (30 * SECOND, 3_000), (HOUR, 5_000)] {
        clock.advance(span);
        assert_eq!(client.get(&id).await["pollIntervalMs"], interval);
    }
}

#[tokio::test]
async fn output_is_no_change_of_the_task_but_a_status_message_is() {
    let (gate, clock) = (Gate::new(), manual_clock());
    let writes = tool("writes", &gate, |gate, ctx| async move {
        gate.go.wait().await;
        ctx.text("some").await?;
        gate.started.send();
        gate.go.wait().await;
        ctx.status("half way").await?;
        gate.started.send();
        gate.go.wait().await;
        Ok(())
    });
    let server = start_at(&clock, registry([writes.task(TaskMode::Always)])).await;
    let client = server.client();
    let id = client.start("writes", json!({})).await;
    let created = client.get(&id).await;
    clock.advance(SECOND);
    gate.go.send();
    with_timeout("the output", gate.started.wait()).await;
    assert_eq!(client.get(&id).await["lastUpdatedAt"], created["createdAt"]);
    gate.go.send();
    with_timeout("the message", gate.started.wait()).await;
    let shown = client.get(&id).await;
    assert_eq!((&shown["lastUpdatedAt"], &shown["statusMessage"]), (&json!("2026-07-28T00:00:01.000Z"), &json!("half way")));
}

// Calls that are repeated.

#[tokio::test]
async fn the_same_call_under_the_same_key_is_the_same_task() {
    let gate = Gate::new();
    let server = TestServer::start(registry([gate.tool("slow").task(TaskMode::Always)])).await;
    let client = server.client();
    let call = || keyed(&client, "k", "slow", json!({"n": 1}));
    let (first, second) = tokio::join!(call(), call());
    let third = call().await;
    let id = first["taskId"].as_str().expect("an id");
    assert_eq!((&second["taskId"], &third["taskId"]), (&first["taskId"], &first["taskId"]));
    gate.go.send();
    with_timeout("the end", client.until(id, "completed")).await;
    assert_eq!(call().await["taskId"], id, "also when it has ended");
    assert_eq!(gate.runs(), 1);
}

#[tokio::test]
async fn another_call_under_the_same_key_is_refused() {
    let gate = Gate::new();
    let server = TestServer::start(registry([gate.tool("slow").task(TaskMode::Always), quick("quick")])).await;
    let client = server.client();
    keyed(&client, "k", "slow", json!({"n": 1})).await;
    for (tool, n) in [("slow", 2), ("quick", 1)] {
        let meta = json!({"dev.taskwire/idempotencyKey": "k"});
        let error = client.error("tools/call", json!({"name": tool, "arguments": {"n": n}, "_meta": meta})).await;
        assert_eq!(error, json!({"code": -32602, "message": "the idempotency key `k` was already used for another call"}));
    }
}

#[tokio::test]
async fn keys_of_different_callers_have_nothing_to_do_with_each_other() {
    let gate = Gate::new();
    let tools = registry([gate.tool("slow").task(TaskMode::Always)]);
    let server = TestServer::start_with(tools, two_callers(), Arc::new(manual_clock())).await;
    let (ann, bob) = (server.client().with_token("ann-token"), server.client().with_token("bob-token"));
    let hers = keyed(&ann, "k", "slow", json!({"n": 1})).await;
    let his = keyed(&bob, "k", "slow", json!({"n": 2})).await;
    assert_ne!(hers["taskId"], his["taskId"]);
    assert_eq!(bob.get(his["taskId"].as_str().expect("an id")).await["status"], "working");
}

#[tokio::test]
async fn a_repeated_quick_call_gets_the_first_result_again() {
    let count = Arc::new(AtomicU64::new(0));
    let counts = tool("counts", &count, |count, _ctx| async move { Ok(format!("run {}", count.fetch_add(1, Ordering::Relaxed) + 1)) });
    let server = TestServer::start_with(registry([counts]), Config::default(), Arc::new(manual_clock())).await;
    let client = server.client();
    let first = with_timeout("the result", keyed(&client, "k", "counts", json!({}))).await;
    assert_eq!((&first["resultType"], &first["content"][0]["text"]), (&json!("complete"), &json!("run 1")));
    assert_eq!(with_timeout("the result again", keyed(&client, "k", "counts", json!({}))).await, first);
    assert_eq!(with_timeout("another", keyed(&client, "l", "counts", json!({}))).await["content"][0]["text"], "run 2");
}

#[tokio::test]
async fn a_call_under_a_key_outlives_its_connection() {
    let (gate, clock) = (Gate::new(), manual_clock());
    let server = start_at(&clock, registry([gate.tool("slow")])).await;
    let client = server.client();
    let meta = json!({"dev.taskwire/idempotencyKey": "k"});
    let message = client.message(client.next_id(), "tools/call", json!({"name": "slow", "arguments": {}, "_meta": meta}));
    let connection = client.send(&client.headers(&message), message.to_string().as_bytes()).await;
    with_timeout("the start", gate.started.wait()).await;
    drop(connection);
    gate.go.send();
    let result = with_timeout("the result", keyed(&client, "k", "slow", json!({}))).await;
    assert_eq!((&result["resultType"], &result["content"][0]["text"]), (&json!("complete"), &json!("done")));
    assert_eq!(gate.runs(), 1);
}

#[tokio::test]
async fn a_caller_may_have_so_many_tasks_and_again_one_when_one_has_ended() {
    let gate = Gate::new();
    let tools = registry([gate.tool("slow").task(TaskMode::Always)]);
    let config = Config { auth: two_callers().auth, ..with_limits(Limits { tasks_per_caller: 2, ..Limits::DEFAULT }) };
    let server = TestServer::start_with(tools, config, Arc::new(manual_clock())).await;
    let (ann, bob) = (server.client().with_token("ann-token"), server.client().with_token("bob-token"));
    let first = ann.start("slow", json!({})).await;
    ann.start("slow", json!({})).await;
    let error = ann.error("tools/call", json!({"name": "slow", "arguments": {}})).await;
    assert_eq!(error["code"], -31001);
    assert!(error["message"].as_str().expect("a text").contains("`limits.tasks_per_caller`"), "{error}");
    bob.start("slow", json!({})).await;
    ann.cancel(&first).await;
    ann.start("slow", json!({})).await;
}

// Callers that go away.

#[tokio::test]
async fn a_call_whose_client_goes_away_is_stopped_where_nothing_lingers() {
    let (gate, clock) = (Gate::new(), manual_clock());
    let server = start_at(&clock, registry([gate.tool("slow").linger(Duration::ZERO)])).await;
    for client in [server.client(), server.plain_client()] {
        let message = client.message(client.next_id(), "tools/call", json!({"name": "slow", "arguments": {}}));
        let connection = client.send(&client.headers(&message), message.to_string().as_bytes()).await;
        with_timeout("the start", gate.started.wait()).await;
        drop(connection);
        with_timeout("the stop", gate.stopped.wait()).await;
    }
}

#[tokio::test]
async fn a_stopped_call_can_neither_write_nor_become_a_task() {
    let (gate, clock) = (Gate::new(), manual_clock());
    let (refused, mut refusals) = mpsc::channel::<(bool, bool)>(1);
    let stubborn = tool("stubborn", &(gate.clone(), refused), |(gate, refused), ctx| async move {
        gate.started.send();
        ctx.cancelled().await;
        refused.send((ctx.text("late").await.is_err(), ctx.checkpoint(&1).await.is_err())).await?;
        Ok("too late")
    });
    let server = start_at(&clock, registry([stubborn.linger(Duration::ZERO)])).await;
    let client = server.client();
    let message = client.message(client.next_id(), "tools/call", json!({"name": "stubborn", "arguments": {}}));
    let connection = client.send(&client.headers(&message), message.to_string().as_bytes()).await;
    with_timeout("the start", gate.started.wait()).await;
    drop(connection);
    assert_eq!(with_timeout("the refusals", refusals.recv()).await, Some((true, true)));
    assert!(server.server.engine().reader().open_tasks(None, 10).await.expect("readable").is_empty(), "nobody would know of it");
}

#[tokio::test]
async fn a_client_that_goes_away_with_its_handle_leaves_the_task_running() {
    let gate = Gate::new();
    let server = TestServer::start(registry([gate.tool("slow").task(TaskMode::Always)])).await;
    // Each request of the client is a connection of its own, closed when the response is there.
    let id = server.client().start("slow", json!({})).await;
    with_timeout("the start", gate.started.wait()).await;
    let client = server.client();
    assert_eq!(client.get(&id).await["status"], "working");
    gate.go.send();
    with_timeout("the end", client.until(&id, "completed")).await;
    assert!(!gate.stopped.is_sent());
}

// Crashes.

#[test]
fn an_ended_task_is_there_after_a_crash() {
    let (dir, clock) = (Arc::new(TempDir::new()), manual_clock());
    let tools = || registry([quick("quick").task(TaskMode::Always)]);
    let before = until_crash(async {
        let server = TestServer::start_in(dir.clone(), tools(), Config::default(), Arc::new(clock.clone())).await;
        let client = server.client();
        let id = client.start("quick", json!({})).await;
        with_timeout("the end", client.until(&id, "completed")).await;
        client.get(&id).await
    });
    assert_eq!(before["result"]["content"][0]["text"], "done");
    until_crash(async {
        let server = reopened(&dir, tools(), Config::default(), &clock).await;
        assert_eq!(server.client().get(before["taskId"].as_str().expect("an id")).await, before);
    });
}

#[test]
fn a_repeated_call_finds_its_task_after_a_crash() {
    let (dir, clock, gate) = (Arc::new(TempDir::new()), manual_clock(), Gate::new());
    let tools = || registry([gate.tool("slow").task(TaskMode::Always)]);
    let first = until_crash(async {
        let server = TestServer::start_in(dir.clone(), tools(), Config::default(), Arc::new(clock.clone())).await;
        keyed(&server.client(), "k", "slow", json!({})).await["taskId"].clone()
    });
    until_crash(async {
        let server = reopened(&dir, tools(), Config::default(), &clock).await;
        assert_eq!(keyed(&server.client(), "k", "slow", json!({})).await["taskId"], first);
    });
}

#[test]
fn an_interrupted_task_fails_clearly_and_keeps_its_output() {
    let (dir, clock, gate) = (Arc::new(TempDir::new()), manual_clock(), Gate::new());
    let writes = || {
        let writes = tool("writes", &gate, |gate, ctx| async move {
            ctx.text("some").await?;
            gate.started.send();
            gate.go.wait().await;
            Ok(())
        });
        registry([writes.task(TaskMode::Always)])
    };
    let id = until_crash(async {
        let server = TestServer::start_in(dir.clone(), writes(), Config::default(), Arc::new(clock.clone())).await;
        let id = server.client().start("writes", json!({})).await;
        with_timeout("the output", gate.started.wait()).await;
        id
    });
    until_crash(async {
        let server = reopened(&dir, writes(), Config::default(), &clock).await;
        let task = with_timeout("the failure", server.client().until(&id, "failed")).await;
        assert!(task["error"]["message"].as_str().expect("a text").contains("interrupted"), "{task}");
        assert_eq!(task["statusMessage"], task["error"]["message"]);
        assert_eq!(written(&server, &id), ["some"]);
        assert!(!gate.started.is_sent(), "it was not run again");
    });
}

#[test]
fn a_task_that_may_be_retried_goes_on_from_its_checkpoint() {
    let (dir, clock, gate) = (Arc::new(TempDir::new()), manual_clock(), Gate::new());
    let counts = || {
        let counts = tool("counts", &gate, |gate, ctx| async move {
            let from = ctx.saved::<u64>()?.unwrap_or(0);
            for n in from..4 {
                ctx.text(n.to_string()).await?;
                ctx.checkpoint(&(n + 1)).await?;
                if n == 1 {
                    gate.started.send();
                    gate.go.wait().await;
                }
            }
            Ok(format!("attempt {} from {from}", ctx.attempt()))
        });
        registry([counts.task(TaskMode::Always).retry_on_interrupt()])
    };
    let id = until_crash(async {
        let server = TestServer::start_in(dir.clone(), counts(), Config::default(), Arc::new(clock.clone())).await;
        let id = server.client().start("counts", json!({})).await;
        with_timeout("the checkpoint", gate.started.wait()).await;
        id
    });
    until_crash(async {
        let server = reopened(&dir, counts(), Config::default(), &clock).await;
        let task = with_timeout("the end", server.client().until(&id, "completed")).await;
        assert_eq!(task["result"]["content"][0]["text"], "attempt 2 from 2");
        assert_eq!(written(&server, &id), ["0", "1", "2", "3"]);
    });
}

#[test]
fn an_open_question_survives_a_crash_and_its_answer_reaches_the_next_attempt() {
    let (dir, clock) = (Arc::new(TempDir::new()), manual_clock());
    let asks = || {
        let asks = tool("asks", &(), |(), ctx| async move {
            let answer = ctx.ask("name", name_form("Name?")).await?;
            Ok(format!("attempt {}: {}", ctx.attempt(), name_in(&answer)))
        });
        registry([asks.task(TaskMode::Always).retry_on_interrupt()])
    };
    let (id, asked) = until_crash(async {
        let server = TestServer::start_in(dir.clone(), asks(), Config::default(), Arc::new(clock.clone())).await;
        let client = server.client();
        let id = client.start("asks", json!({})).await;
        let asked = until_open(&client, &id, &["name"]).await["inputRequests"].clone();
        (id, asked)
    });
    until_crash(async {
        let server = reopened(&dir, asks(), Config::default(), &clock).await;
        let client = server.client();
        let task = client.get(&id).await;
        assert_eq!((&task["status"], &task["inputRequests"]), (&json!("input_required"), &asked));
        client.answer(&id, json!({"name": accept("Ada")})).await;
        let task = with_timeout("the end", client.until(&id, "completed")).await;
        assert_eq!(task["result"]["content"][0]["text"], "attempt 2: Ada");
    });
}
