//! For tests of output: a tool whose runs the test drives, and short forms of streams and responses.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use taskwire::{
    clock::ManualClock,
    core::Limits,
    server::{Coalesce, Config, EngineConfig},
    tool::{CallResult, Ctx, IntoResult, Overflow, Progress, TaskMode, Tool, ToolError},
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use crate::{
    kit::{Client, Events, PARTIALS, Response, TestServer, manual_clock, with_timeout},
    schema,
    tasks::{registry, with_limits},
};

pub(crate) use crate::kit::{HOUR, MS, READ, SECOND, SUBSCRIPTION};

/// A server with one tool, `writes`, that does nothing by itself: its test has its context and says how it ends. Time
/// stands still unless the test moves it.
pub(crate) struct ToolHarness {
    pub(crate) server: TestServer,
    pub(crate) client: Client,
    pub(crate) clock: ManualClock,
    runs: Runs,
}

impl ToolHarness {
    /// With a tool whose calls are tasks at once.
    pub(crate) async fn new() -> Self {
        Self::with(Config::default()).await
    }

    pub(crate) async fn with(config: Config) -> Self {
        Self::of(config, |tool| tool.task(TaskMode::Always)).await
    }

    /// With a tool as `shape` makes it.
    pub(crate) async fn of(config: Config, shape: impl FnOnce(Tool) -> Tool) -> Self {
        Self::on(|writes, clock| TestServer::start_with(registry([shape(writes)]), config, Arc::new(clock))).await
    }

    /// On a server that `start` starts, with the tool and at this time.
    pub(crate) async fn on<F: Future<Output = TestServer>>(start: impl FnOnce(Tool, ManualClock) -> F) -> Self {
        let (writes, runs) = played("writes");
        let clock = manual_clock();
        let server = start(writes, clock.clone()).await;
        let client = server.streaming_client();
        Self { server, client, clock, runs }
    }

    /// A new task and the run that belongs to it.
    pub(crate) async fn task(&mut self) -> (String, ToolRun) {
        let client = self.client.clone();
        self.task_of(&client).await
    }

    /// A new task of this client.
    pub(crate) async fn task_of(&mut self, client: &Client) -> (String, ToolRun) {
        let id = client.start("writes", json!({})).await;
        (id, self.run().await)
    }

    /// The next run of the tool.
    pub(crate) async fn run(&mut self) -> ToolRun {
        run_of(&mut self.runs).await
    }
}

/// The runs of a tool that its test drives.
pub(crate) type Runs = mpsc::Receiver<ToolRun>;

/// A tool that its test drives.
pub(crate) fn played(name: &str) -> (Tool, Runs) {
    played_as(name, "For a test")
}

/// A tool that its test drives, with this description.
pub(crate) fn played_as(name: &str, description: &str) -> (Tool, Runs) {
    let (sender, runs) = mpsc::channel(16);
    let tool = Tool::raw(name, description, json!({"type": "object"}), move |ctx: Ctx| {
        let sender: mpsc::Sender<ToolRun> = sender.clone();
        async move {
            let (end, ended) = oneshot::channel();
            let _ = sender.send(ToolRun { ctx, end: Some(end) }).await;
            ended.await?
        }
    });
    (tool, runs)
}

/// The next run of a tool that its test drives.
pub(crate) async fn run_of(runs: &mut Runs) -> ToolRun {
    with_timeout("the tool", runs.recv()).await.expect("it runs")
}

/// One run of a tool that its test drives.
pub(crate) struct ToolRun {
    pub(crate) ctx: Ctx,
    end: Option<oneshot::Sender<Result<CallResult, ToolError>>>,
}

impl ToolRun {
    /// Writes a chunk of its own, which is in the log when this returns.
    pub(crate) async fn writes(&self, text: &str) {
        self.tries(text).await.expect("it may write");
    }

    /// Tries to write a chunk of its own.
    pub(crate) async fn tries(&self, text: &str) -> Result<(), ToolError> {
        let writing = async {
            self.ctx.text(text).await?;
            self.ctx.flush().await
        };
        with_timeout("the output", writing).await
    }

    pub(crate) async fn progress(&self, done: f64, words: Option<&str>) {
        self.ctx.progress(Progress { done, total: None, message: words.map(str::to_owned) }).await.expect("it may say so");
    }

    pub(crate) fn ends(&mut self, result: impl IntoResult) {
        self.ends_with(Ok(result.into_result()));
    }

    pub(crate) fn ends_with(&mut self, result: Result<CallResult, ToolError>) {
        let end = self.end.take().expect("it ends once");
        assert!(end.send(result).is_ok(), "it is still running");
    }
}

/// Each text is a chunk of its own, however fast they come.
pub(crate) fn uncoalesced() -> Config {
    let coalesce = Coalesce { window: Duration::ZERO, bytes: 1 };
    Config { engine: EngineConfig { coalesce, ..EngineConfig::default() }, ..Config::default() }
}

/// Listens to the state of a task, and to its output from `from` on.
pub(crate) async fn follow(client: &Client, task: &str, from: u64) -> Events {
    client.listen(json!({"taskIds": [task], PARTIALS: [{"taskId": task, "fromSeq": from}]})).await
}

/// Listens to nothing but the output of a task.
pub(crate) async fn follow_output(client: &Client, task: &str, from: u64) -> Events {
    client.listen(json!({PARTIALS: [{"taskId": task, "fromSeq": from}]})).await
}

/// Which partials the stream was promised.
pub(crate) fn granted_partials(events: &Events) -> &Value {
    &events.ack["params"]["notifications"][PARTIALS]
}

/// The next message of a stream, which must bear the stream's own id; none at its end.
pub(crate) async fn next(events: &mut Events) -> Option<Value> {
    let message = with_timeout("the next message", events.next()).await?;
    let subscription = &events.ack["params"]["_meta"][SUBSCRIPTION];
    if message.get("method").is_some() {
        assert_eq!(&message["params"]["_meta"][SUBSCRIPTION], subscription, "{message}");
    } else {
        schema::check_response("subscriptions/listen", &message);
        assert_eq!(&message["id"], subscription, "{message}");
    }
    Some(message)
}

/// The next message, which must be a partial.
pub(crate) async fn next_partial(events: &mut Events) -> Value {
    let message = next(events).await.expect("the stream goes on");
    assert_eq!(message["method"], "notifications/tasks/partial", "{message}");
    message["params"].clone()
}

/// The texts of content blocks with a plus between; blocks of other kinds are shown as `<kind>`.
pub(crate) fn text_of(content: &Value) -> String {
    let blocks = content.as_array().expect("blocks").iter();
    let texts: Vec<String> = blocks
        .map(|block| block["text"].as_str().map_or_else(|| format!("<{}>", block["type"].as_str().expect("a kind")), str::to_owned))
        .collect();
    texts.join("+")
}

/// A message in short: `3 text` is a partial, `working: said` a state, `end` the response that ends a stream.
pub(crate) fn brief(message: &Value) -> String {
    let params = &message["params"];
    match message["method"].as_str() {
        Some("notifications/tasks/partial") => format!("{} {}", params["seq"], text_of(&params["content"])),
        Some("notifications/tasks") => {
            let status = params["status"].as_str().expect("a status");
            params["statusMessage"].as_str().map_or_else(|| status.to_owned(), |said| format!("{status}: {said}"))
        }
        Some(method) => method.to_owned(),
        None => {
            assert_eq!(message["result"]["resultType"], "complete", "{message}");
            "end".to_owned()
        }
    }
}

/// The next messages of a stream, in short.
pub(crate) async fn next_briefs(events: &mut Events, count: usize) -> Vec<String> {
    let mut briefs = Vec::new();
    for _ in 0..count {
        let message = next(events).await.unwrap_or_else(|| panic!("the stream ended after {briefs:?}"));
        briefs.push(brief(&message));
    }
    briefs
}

/// All that still comes on a stream up to its end, in short.
pub(crate) async fn rest(events: &mut Events) -> Vec<String> {
    let mut briefs = Vec::new();
    while let Some(message) = next(events).await {
        briefs.push(brief(&message));
    }
    briefs
}

/// The parameters of a read.
pub(crate) fn reading(task: &str, mut params: Value) -> Value {
    params["taskId"] = task.into();
    params
}

pub(crate) async fn read(client: &Client, task: &str, params: Value) -> Value {
    with_timeout("the answer", client.ok(READ, reading(task, params))).await
}

/// The answer to a read in short: its chunks, where they begin, what to ask for next, and whether that was all.
pub(crate) fn page(answer: &Value) -> Value {
    let chunks = answer["chunks"].as_array().expect("chunks").iter();
    let chunks: Vec<String> = chunks.map(|chunk| format!("{} {}", chunk["seq"], text_of(&chunk["content"]))).collect();
    json!([chunks, answer["fromSeq"], answer["nextSeq"], answer["done"]])
}

/// Everything that a task has written so far, as one text.
pub(crate) async fn output(client: &Client, task: &str) -> String {
    let (mut text, mut from) = (String::new(), 0);
    loop {
        let answer = read(client, task, json!({"fromSeq": from})).await;
        let chunks = answer["chunks"].as_array().expect("chunks");
        text.extend(chunks.iter().map(|chunk| text_of(&chunk["content"])));
        if chunks.is_empty() {
            return text;
        }
        from = answer["nextSeq"].as_u64().expect("a number");
    }
}

/// A server where one request of a caller may wait at a time.
pub(crate) fn one_may_wait() -> Config {
    Config { waiting_requests_per_caller: 1, ..Config::default() }
}

/// A read that surely waits.
pub(crate) async fn waiting(client: &Client, params: Value) -> JoinHandle<Response> {
    one_waits(|| {
        let (client, params) = (client.clone(), params.clone());
        async move { client.raw(READ, params).await }
    })
    .await
}

/// A request that surely waits, where one may: of two that are alike one does, and the other has been refused.
pub(crate) async fn one_waits<F: Future<Output = Response> + Send + 'static>(ask: impl Fn() -> F) -> JoinHandle<Response> {
    let ask = || tokio::spawn(ask());
    let (mut one, mut other) = (ask(), ask());
    let first = async {
        tokio::select! {
            answer = &mut one => (answer, other),
            answer = &mut other => (answer, one),
        }
    };
    let (refused, waits) = with_timeout("a refusal", first).await;
    let refused = refused.expect("no panic");
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (429, &json!(-31001)), "{}", refused.json());
    waits
}

/// What came of a read that waited, in short.
pub(crate) async fn page_of(waits: JoinHandle<Response>) -> Value {
    let response = with_timeout("the answer", waits).await.expect("no panic");
    schema::check_response(READ, &response.json());
    page(&response.json()["result"])
}

/// A task that has written ten chunks of which only the last are kept.
pub(crate) async fn shortened() -> (ToolHarness, String, ToolRun) {
    let limits = Limits { task_output_bytes: 250, ..Limits::DEFAULT };
    let mut harness = ToolHarness::of(with_limits(limits), |tool| tool.task(TaskMode::Always).overflow(Overflow::DropOldest)).await;
    let (id, run) = harness.task().await;
    for n in 0..10 {
        run.writes(&sixty(n)).await;
    }
    (harness, id, run)
}

/// Sixty characters that differ from number to number.
pub(crate) fn sixty(n: u64) -> String {
    format!("{n:060}")
}

/// Large chunks, so that few of them fill what lies between server and reader.
pub(crate) fn large_chunks(limits: Limits) -> Config {
    let coalesce = Coalesce { bytes: 40_000, ..Coalesce::default() };
    Config { engine: EngineConfig { coalesce, limits, ..EngineConfig::default() }, ..Config::default() }
}

/// Text for a large chunk that begins with its number.
pub(crate) fn large(n: u64) -> String {
    format!("{n} {}", "x".repeat(30_000))
}

/// What is said of a task that is not there, or is somebody else's.
pub(crate) fn not_found() -> Value {
    json!({"code": -32602, "message": "Task not found"})
}
