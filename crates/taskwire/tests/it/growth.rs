//! What one request costs does not grow with how much is alive. Measured as processor time of this process at few and at many, in
//! one run, and judged by their ratio alone: a walk over all that is alive multiplies it, noise does not.

use std::{collections::BTreeMap, time::Duration};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use taskwire::{
    core::Limits,
    server::{Config, EngineConfig, Server},
    store::SqliteStore,
    tool::{Ctx, TaskMode, Tool, ToolError},
};
use tokio::sync::mpsc;

use crate::{
    kit::{Client, PARTIALS, TASKS, TempDir, with_timeout},
    pipe::Pipe,
    shutdown::settle,
    tasks::{Signal, quick, registry, tool},
};

/// Live tasks.
const FEW: usize = 1_000;
const MANY: usize = 50_000;
/// Calls that are held.
const FEW_HELD: usize = 100;
const MANY_HELD: usize = 4_000;
/// How much more a request may cost among many than among few. A walk over all costs several times as much.
const GROWTH_MAX: f64 = 2.0;
/// Times that each thing is done at a time.
const TIMES: usize = 1_000;
/// Requests in flight.
const WINDOW: usize = 250;

/// Processor time of this process so far: nextest gives each test one of its own.
fn processor() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).expect("less than a second"))
}

fn config() -> Config {
    let limits = Limits { tasks_per_caller: u64::MAX, ..Limits::default() };
    Config {
        engine: EngineConfig { limits, ..EngineConfig::default() },
        long_poll: false,
        streams_per_caller: WINDOW,
        hold: Duration::from_secs(3600),
        requests_per_stream: 2 * MANY_HELD,
        waiting_requests_per_caller: 2 * MANY_HELD,
        ..Config::default()
    }
}

/// A tool whose calls wait until the server ends. They say when they are tasks.
fn waits(is_task: &Signal) -> Tool {
    tool("waits", is_task, |is_task: Signal, ctx: Ctx| async move {
        ctx.checkpoint(&0).await?;
        is_task.send();
        ctx.cancelled().await;
        Err::<String, _>(ToolError::stopped())
    })
}

/// A server and a byte stream to it.
struct Wire {
    server: Server,
    pipe: Pipe,
    client: Client,
    /// Whether the messages are of 2026-07-28.
    modern: bool,
    last_id: u64,
    _dir: TempDir,
}

impl Wire {
    fn start(tools: impl IntoIterator<Item = Tool>, capabilities: Value) -> Self {
        let dir = TempDir::new();
        let store = SqliteStore::open(dir.path()).expect("a store");
        let server = Server::start(registry(tools), store, config()).expect("a server");
        let pipe = Pipe::with_room(&server, 1 << 20, 1 << 20);
        let client = Client::new(0).declaring(capabilities);
        Self { server, pipe, client, modern: true, last_id: 0, _dir: dir }
    }

    /// Opens a session of 2025-11-25.
    async fn in_session(mut self) -> Self {
        self.modern = false;
        let agree = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "growth", "version": "1"}});
        let begin = self.request("initialize", agree);
        self.ask(&[begin]).await;
        self.send(&format!("{}\n", json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))).await;
        self
    }

    /// A request as a line, whose response can be found by its id.
    fn request(&mut self, method: &str, params: Value) -> (u64, String) {
        self.last_id += 1;
        let id = self.last_id;
        let message = match self.modern {
            true => self.client.message(id, method, params),
            false => json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}),
        };
        (id, format!("{message}\n"))
    }

    fn calls(&mut self, tool: &str, count: usize) -> Vec<(u64, String)> {
        (0..count).map(|_| self.call(tool)).collect()
    }

    /// A call that no other is the same as.
    fn call(&mut self, tool: &str) -> (u64, String) {
        let n = self.last_id;
        self.request("tools/call", json!({"name": tool, "arguments": {"n": n}}))
    }

    async fn send(&mut self, lines: &str) {
        self.pipe.write(lines.as_bytes()).await;
    }

    async fn line(&mut self) -> String {
        self.pipe.line().await.expect("the stream goes on")
    }

    /// Sends requests and reads their results, some at a time; what else is said is passed over.
    async fn ask(&mut self, requests: &[(u64, String)]) -> BTreeMap<u64, String> {
        let mut answers = BTreeMap::new();
        for window in requests.chunks(WINDOW) {
            let lines: String = window.iter().map(|(_, line)| line.as_str()).collect();
            self.send(&lines).await;
            let mut open = window.len();
            while open > 0 {
                let line = self.line().await;
                if !line.contains("\"method\":") {
                    let answer: Value = serde_json::from_str(&line).expect("JSON");
                    assert!(answer.get("result").is_some(), "{line}");
                    answers.insert(answer["id"].as_u64().expect("an id"), line);
                    open -= 1;
                }
            }
        }
        answers
    }

    /// Makes tasks, and gives their names.
    async fn make_tasks(&mut self, tool: &str, count: usize) -> Vec<String> {
        let requests = self.calls(tool, count);
        let answers = self.ask(&requests).await;
        let id = |line: &String| {
            let answer: Value = serde_json::from_str(line).expect("JSON");
            answer["result"]["taskId"].as_str().unwrap_or_else(|| panic!("no task: {line}")).to_owned()
        };
        answers.values().map(id).collect()
    }

    /// What answering requests takes, each.
    async fn cost(&mut self, requests: Vec<(u64, String)>) -> Duration {
        let before = processor();
        self.ask(&requests).await;
        (processor() - before) / u32::try_from(requests.len()).expect("not so many")
    }

    /// What it takes to hold some more calls, each.
    async fn cost_of_held(&mut self, count: usize, is_task: &Signal) -> Duration {
        let calls = self.calls("waits", count);
        let before = processor();
        for window in calls.chunks(WINDOW) {
            let lines: String = window.iter().map(|(_, line)| line.as_str()).collect();
            self.send(&lines).await;
            for _ in window {
                with_timeout("a held call becomes a task", is_task.wait()).await;
            }
        }
        settle().await;
        (processor() - before) / u32::try_from(count).expect("not so many")
    }

    /// The least of three measurements of a request that changes nothing: the machine may have done something else meanwhile.
    async fn least_cost(&mut self, method: &str, params: impl Fn(usize) -> Value) -> Duration {
        let mut least = Duration::MAX;
        for _ in 0..3 {
            let requests = (0..TIMES).map(|n| self.request(method, params(n))).collect();
            least = least.min(self.cost(requests).await);
        }
        least
    }

    /// Waits until no more than so many runs go on: their work must not count for what is measured next.
    async fn until_running(&self, count: usize) {
        while self.server.engine().running() > count {
            tokio::task::yield_now().await;
        }
    }
}

/// What each thing costs, by its name.
type Costs = BTreeMap<&'static str, Duration>;

fn assert_steady(what: &str, few: &Costs, many: &Costs) {
    let mut grown = Vec::new();
    for (name, few) in few {
        let growth = many[name].as_secs_f64() / few.as_secs_f64();
        println!("{name}: {few:?} → {:?} ({growth:.2} ×)", many[name]);
        if growth > GROWTH_MAX {
            grown.push(format!("{name} costs {growth:.1} times as much: {few:?}, then {:?}", many[name]));
        }
    }
    assert!(grown.is_empty(), "with {what}:\n{}", grown.join("\n"));
}

#[tokio::test]
async fn what_a_request_costs_does_not_grow_with_the_tasks_that_are_alive() {
    let (sender, mut runs) = mpsc::channel(1);
    let writes = tool("writes", &sender, |runs: mpsc::Sender<Ctx>, ctx: Ctx| async move {
        runs.send(ctx.clone()).await?;
        ctx.cancelled().await;
        Err::<String, _>(ToolError::stopped())
    });
    let done = tool("done", &(), |(), ctx: Ctx| async move {
        ctx.text("written").await?;
        Ok("done")
    });
    let tools = [waits(&Signal::new()).task(TaskMode::Always), writes.task(TaskMode::Always), done.task(TaskMode::Always)];
    let mut wire = Wire::start(tools, json!({"extensions": {TASKS: {}, PARTIALS: {}}}));
    let writing = wire.make_tasks("writes", 1).await.remove(0);
    let ctx = with_timeout("the tool", runs.recv()).await.expect("it runs");
    let ended = wire.make_tasks("done", 1).await.remove(0);
    wire.until_running(1).await;
    let mut alive = wire.make_tasks("waits", FEW).await;
    let few = costs(&mut wire, &mut alive, &writing, &ctx, &ended).await;
    let more = wire.make_tasks("waits", MANY - alive.len()).await;
    alive.extend(more);
    let many = costs(&mut wire, &mut alive, &writing, &ctx, &ended).await;
    assert_steady(&format!("{MANY} live tasks instead of {FEW}"), &few, &many);
}

async fn costs(wire: &mut Wire, alive: &mut Vec<String>, writing: &str, ctx: &Ctx, ended: &str) -> Costs {
    let mut costs = Costs::new();
    let creates = wire.calls("waits", TIMES);
    costs.insert("create", wire.cost(creates).await);
    // Scattered over all that is alive.
    let scattered = |n: usize| &alive[n * 7_919 % alive.len()];
    costs.insert("get", wire.least_cost("tasks/get", |n| json!({"taskId": scattered(n)})).await);
    let cancels: Vec<String> = alive.drain(alive.len() - TIMES / 2..).collect();
    let cancels = cancels.iter().map(|id| wire.request("tasks/cancel", json!({"taskId": id}))).collect();
    let running = wire.server.engine().running() - TIMES / 2;
    costs.insert("cancel", wire.cost(cancels).await);
    wire.until_running(running).await;
    let ends = wire.calls("done", TIMES);
    costs.insert("create that ends", wire.cost(ends).await);
    wire.until_running(running).await;
    let listen = json!({"notifications": {PARTIALS: [{"taskId": ended, "fromSeq": 0}]}});
    costs.insert("listen", wire.least_cost("subscriptions/listen", |_| listen.clone()).await);
    let times = u32::try_from(TIMES).expect("not so many");
    let before = processor();
    for n in 0..TIMES {
        ctx.text(format!("{n}\n")).await.expect("it may write");
        ctx.flush().await.expect("it is kept");
    }
    costs.insert("append", (processor() - before) / times);
    let (id, listen) = wire.request("subscriptions/listen", json!({"notifications": {"taskIds": [writing]}}));
    wire.send(&listen).await;
    let before = processor();
    for n in 0..TIMES {
        let message = format!("status {n} of {id}");
        ctx.status(&message).await.expect("it may speak");
        while !wire.line().await.contains(&message) {}
    }
    costs.insert("push", (processor() - before) / times);
    let off = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
    wire.send(&format!("{off}\n")).await;
    costs
}

#[tokio::test]
async fn what_a_call_costs_does_not_grow_with_the_calls_that_are_held() {
    held(false).await;
}

#[tokio::test]
async fn what_a_call_costs_does_not_grow_with_the_calls_that_are_held_in_its_session() {
    held(true).await;
}

async fn held(in_session: bool) {
    let is_task = Signal::new();
    let mut wire = Wire::start([waits(&is_task), quick("quick")], json!({}));
    if in_session {
        wire = wire.in_session().await;
    }
    let costs = async |wire: &mut Wire, count: usize| {
        wire.cost_of_held(count, &is_task).await;
        let quick = wire.calls("quick", TIMES);
        Costs::from([("a quick call", wire.cost(quick).await), ("a held call", wire.cost_of_held(FEW_HELD, &is_task).await)])
    };
    let few = costs(&mut wire, FEW_HELD).await;
    let many = costs(&mut wire, MANY_HELD).await;
    assert_steady(&format!("{MANY_HELD} held calls instead of {FEW_HELD}"), &few, &many);
}
