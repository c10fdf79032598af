//! Requests that wait: a `tasks/get` that asks to be answered at the next change, and polls that come too soon.
//!
//! That a request waits is seen in what it takes away: where one may wait and two come, one is refused, and then the other
//! waits. Where that does not serve, many others are answered meanwhile.

use std::{sync::Arc, time::Duration};

use futures_util::future::select_all;
use serde_json::{Value, json};
use taskwire::{
    clock::ManualClock,
    server::Config,
    tool::{TaskMode, Tool},
};
use tokio::task::JoinHandle;

use crate::{
    http::Connection,
    kit::{Client, HOUR, MS, PARTIALS, Response, SECOND, TestServer, manual_clock, passing, with_timeout},
    schema,
    tasks::{Gate, registry, tool, two_callers},
    tool_harness::one_may_wait,
};

const WAIT: &str = "dev.taskwire/waitMs";
const VERSION: &str = "dev.taskwire/version";

/// A tool that says something each time it is let go on, three times, and then ends.
fn talks(gate: &Gate) -> Tool {
    tool("talks", gate, |gate, ctx| async move {
        for n in 1..=3 {
            gate.go.wait().await;
            ctx.status(n.to_string()).await?;
            gate.started.send();
        }
        gate.go.wait().await;
        Ok("done")
    })
}

/// A tool that writes each time it is let go on, twice, and then says something.
fn writes(gate: &Gate) -> Tool {
    tool("writes", gate, |gate, ctx| async move {
        for text in ["one", "two"] {
            gate.go.wait().await;
            ctx.text(text).await?;
            ctx.flush().await?;
            gate.started.send();
        }
        gate.go.wait().await;
        ctx.status("said").await?;
        gate.go.wait().await;
        Ok("done")
    })
}

/// The parameters of a `tasks/get` that waits.
fn wait(task: &str, ms: impl Into<Value>) -> Value {
    let ms: Value = ms.into();
    json!({"taskId": task, "_meta": {WAIT: ms}})
}

/// Sends a request on a connection of its own.
fn send(client: &Client, method: &'static str, params: Value) -> JoinHandle<Response> {
    let client = client.clone();
    tokio::spawn(async move { client.raw(method, params).await })
}

fn get(client: &Client, params: Value) -> JoinHandle<Response> {
    send(client, "tasks/get", params)
}

/// The first that is answered, and its index among them; then the others.
async fn first(pending: Vec<JoinHandle<Response>>) -> (Response, usize, Vec<JoinHandle<Response>>) {
    let (response, at, rest) = with_timeout("an answer", select_all(pending)).await;
    (response.expect("no panic"), at, rest)
}

/// The result of a `tasks/get`, when it comes.
async fn answered(pending: JoinHandle<Response>) -> Value {
    result(&with_timeout("the answer", pending).await.expect("no panic"))
}

fn result(response: &Response) -> Value {
    let message = response.json();
    schema::check_response("tasks/get", &message);
    assert!(response.status == 200 && message.get("error").is_none(), "{} {message}", response.status);
    message["result"].clone()
}

/// That too many wait.
fn check_refused(response: &Response) {
    assert_eq!(response.status, 429, "{}", response.json());
    assert_eq!(response.header("retry-after"), Some("1"));
    assert_eq!(response.code(), -31001);
    let error = response.json();
    assert!(error["error"]["message"].as_str().expect("a text").contains("`waiting_requests_per_caller`"), "{error}");
}

/// A server with a task that is under way, and everything that its test has in hand.
struct Stage {
    server: TestServer,
    clock: ManualClock,
    gate: Gate,
    client: Client,
    task: String,
}

impl Stage {
    async fn start(config: Config) -> Self {
        Self::with(talks, config).await
    }

    async fn with(tool: impl FnOnce(&Gate) -> Tool, config: Config) -> Self {
        let (gate, clock) = (Gate::new(), manual_clock());
        let tool = tool(&gate).task(TaskMode::Always);
        let name = tool.name().clone();
        let server = TestServer::start_with(registry([tool]), config, Arc::new(clock.clone())).await;
        let client = server.streaming_client();
        let task = client.start(&name, json!({})).await;
        Self { server, clock, gate, client, task }
    }

    /// Lets the tool take its next step, which is stored when this returns.
    async fn step(&self) {
        self.gate.go.send();
        with_timeout("the next step", self.gate.started.wait()).await;
    }

    /// Lets the tool go to its end.
    async fn end(&self) {
        (0..4).for_each(|_| self.gate.go.send());
        with_timeout("the end", self.client.until(&self.task, "completed")).await;
    }

    /// A request that waits by now. Two are sent where one may wait, so it does when the other is refused.
    async fn held(&self, params: &Value) -> JoinHandle<Response> {
        let (refused, _, mut rest) = first((0..2).map(|_| get(&self.client, params.clone())).collect()).await;
        check_refused(&refused);
        rest.pop().expect("the one that waits")
    }

    /// Gives the server much else to do: what it did not have to hold back, it has sent by then.
    async fn meanwhile(&self) {
        for _ in 0..20 {
            self.client.get(&self.task).await;
        }
    }

    /// Asks until another request may wait.
    async fn room(&self) {
        let ask = async {
            loop {
                let response = passing(&self.clock, MS, self.client.raw("tasks/get", wait(&self.task, 1))).await;
                if response.status == 200 {
                    return;
                }
                check_refused(&response);
            }
        };
        with_timeout("room for another that waits", ask).await;
    }

    /// A poll, which must be answered at once.
    async fn poll(&self, connection: &mut Connection, client: &Client) -> Value {
        connection.ask(client, "tasks/get", json!({"taskId": self.task})).await["result"].clone()
    }

    /// A poll that must not be answered yet, whatever else is.
    async fn eager_poll(&self, connection: &mut Connection, client: &Client) -> Value {
        let request = connection.request(client, "tasks/get", json!({"taskId": self.task})).await;
        self.meanwhile().await;
        assert!(connection.is_quiet(), "it came too soon");
        request
    }
}

// What a caller asks to wait for.

#[tokio::test]
async fn a_get_that_waits_is_answered_at_the_next_change() {
    let stage = Stage::start(one_may_wait()).await;
    for message in ["1", "2"] {
        let waiting = stage.held(&wait(&stage.task, 20_000)).await;
        stage.step().await;
        let task = answered(waiting).await;
        assert_eq!((&task["status"], &task["statusMessage"]), (&json!("working"), &json!(message)));
    }
}

#[tokio::test]
async fn a_get_that_waits_is_answered_at_the_end_of_its_task() {
    let stage = Stage::start(one_may_wait()).await;
    for _ in 0..3 {
        stage.step().await;
    }
    let waiting = stage.held(&wait(&stage.task, 20_000)).await;
    stage.gate.go.send();
    let task = answered(waiting).await;
    assert_eq!((&task["status"], &task["result"]["content"][0]["text"]), (&json!("completed"), &json!("done")));
}

#[tokio::test]
async fn a_get_that_waits_is_answered_when_its_task_is_cancelled() {
    let stage = Stage::start(one_may_wait()).await;
    let waiting = stage.held(&wait(&stage.task, 20_000)).await;
    stage.client.cancel(&stage.task).await;
    assert_eq!(answered(waiting).await["status"], "cancelled");
}

#[tokio::test]
async fn output_is_no_change() {
    let stage = Stage::with(writes, one_may_wait()).await;
    let version = stage.client.get(&stage.task).await["_meta"][VERSION].clone();
    stage.step().await;
    assert_eq!(stage.client.get(&stage.task).await["_meta"][VERSION], version);
    let waiting = stage.held(&json!({"taskId": stage.task, "_meta": {WAIT: 20_000, VERSION: version}})).await;
    stage.step().await;
    stage.meanwhile().await;
    assert!(!waiting.is_finished(), "it has only written");
    stage.gate.go.send();
    assert_eq!(answered(waiting).await["statusMessage"], "said");
}

#[tokio::test]
async fn a_get_of_a_task_that_has_ended_does_not_wait() {
    let stage = Stage::start(one_may_wait()).await;
    stage.end().await;
    let task = with_timeout("the answer", stage.client.ok("tasks/get", wait(&stage.task, 20_000))).await;
    assert_eq!(task["status"], "completed");
    let params = json!({"taskId": stage.task, "_meta": {WAIT: 20_000, VERSION: task["_meta"][VERSION]}});
    let again = with_timeout("the answer", stage.client.ok("tasks/get", params)).await;
    assert_eq!(again, task);
}

#[tokio::test]
async fn a_wait_lasts_as_long_as_was_asked_but_no_longer_than_allowed() {
    let stage = Stage::start(Config { wait_max: 10 * SECOND, ..one_may_wait() }).await;
    for (asked, lasts) in [(4_000, 4 * SECOND), (10_001, 10 * SECOND), (u64::MAX, 10 * SECOND)] {
        let waiting = stage.held(&wait(&stage.task, asked)).await;
        stage.clock.advance(lasts - MS);
        stage.meanwhile().await;
        assert!(!waiting.is_finished(), "it has a millisecond left of {lasts:?}");
        stage.clock.advance(MS);
        let task = answered(waiting).await;
        assert_eq!((&task["status"], task.get("statusMessage")), (&json!("working"), None));
    }
}

#[tokio::test]
async fn no_time_is_no_wait() {
    let stage = Stage::start(one_may_wait()).await;
    let task = with_timeout("the answer", stage.client.ok("tasks/get", wait(&stage.task, 0))).await;
    assert_eq!(task["status"], "working");
}

#[tokio::test]
async fn a_version_that_is_not_the_current_one_is_answered_at_once() {
    let stage = Stage::start(one_may_wait()).await;
    let version = |task: &Value| task["_meta"][VERSION].as_u64().expect("a number");
    let known = |version: u64| json!({"taskId": stage.task, "_meta": {WAIT: 20_000, VERSION: version}});
    let before = version(&stage.client.get(&stage.task).await);
    let waiting = stage.held(&known(before)).await;
    stage.step().await;
    let changed = answered(waiting).await;
    assert!(version(&changed) > before, "{changed}");
    for other in [before, 0, version(&changed) + 1] {
        let task = with_timeout("the answer", stage.client.ok("tasks/get", known(other))).await;
        assert_eq!(task, changed);
    }
    let waiting = stage.held(&known(version(&changed))).await;
    stage.step().await;
    assert_eq!(answered(waiting).await["statusMessage"], "2");
}

#[tokio::test]
async fn a_version_alone_does_not_wait() {
    let stage = Stage::start(one_may_wait()).await;
    let task = stage.client.get(&stage.task).await;
    let params = json!({"taskId": stage.task, "_meta": {VERSION: task["_meta"][VERSION]}});
    assert_eq!(with_timeout("the answer", stage.client.ok("tasks/get", params)).await, task);
}

#[tokio::test]
async fn who_does_not_declare_it_does_not_wait() {
    let stage = Stage::start(one_may_wait()).await;
    let client = stage.server.client();
    for value in [json!(20_000), json!(-1), json!(1.5), json!("long"), json!(null), json!({})] {
        let params = json!({"taskId": stage.task, "_meta": {WAIT: value, VERSION: value}});
        let task = with_timeout("the answer", client.ok("tasks/get", params)).await;
        assert_eq!((&task["status"], task["_meta"].get(VERSION)), (&json!("working"), None), "{value}");
    }
    let refused = stage.server.plain_client().declaring(json!({"extensions": {PARTIALS: {}}}));
    let refused = refused.raw("tasks/get", wait(&stage.task, 20_000)).await;
    assert_eq!((refused.status, refused.code()), (400, -32021), "there are no partial results without tasks");
}

#[tokio::test]
async fn a_time_or_a_version_that_is_none_is_refused() {
    let stage = Stage::start(one_may_wait()).await;
    for bad in [json!(-1), json!(1.5), json!("20000"), json!(true), json!(null), json!([1]), json!({})] {
        for key in [WAIT, VERSION] {
            let params = json!({"taskId": stage.task, "_meta": {key: bad}});
            let error = with_timeout("the answer", stage.client.error("tasks/get", params)).await;
            assert_eq!(error["code"], -32602, "{key} {bad}");
        }
    }
}

#[tokio::test]
async fn nobody_waits_for_what_is_not_theirs() {
    let gate = Gate::new();
    let tools = registry([gate.tool("slow").task(TaskMode::Always)]);
    let server = TestServer::start_with(tools, two_callers(), Arc::new(manual_clock())).await;
    let (ann, bob) = (server.streaming_client().with_token("ann-token"), server.streaming_client().with_token("bob-token"));
    let task = ann.start("slow", json!({})).await;
    let unknown = with_timeout("the answer", bob.error("tasks/get", wait(&"0".repeat(32), 20_000))).await;
    assert_eq!(unknown["code"], -32602);
    for id in [task.as_str(), "nonsense"] {
        assert_eq!(with_timeout("the answer", bob.error("tasks/get", wait(id, 20_000))).await, unknown, "{id}");
    }
}

// How many may wait.

#[tokio::test]
async fn so_many_requests_may_wait_and_another_when_one_is_answered() {
    let stage = Stage::start(Config { waiting_requests_per_caller: 2, wait_max: 24 * HOUR, ..Config::default() }).await;
    let mut hours = vec![1, 2, 3];
    let wait_for = |hours: u64| get(&stage.client, wait(&stage.task, hours * 3_600_000));
    let (refused, at, rest) = first(hours.iter().copied().map(wait_for).collect()).await;
    check_refused(&refused);
    stage.client.get(&stage.task).await;
    hours.remove(at);
    stage.clock.advance(HOUR * u32::try_from(hours[0]).expect("a few"));
    let (response, _, mut rest) = first(rest).await;
    assert_eq!(result(&response)["status"], "working");
    stage.room().await;
    let last = rest.pop().expect("one is left");
    assert!(!last.is_finished(), "it has an hour left, or most of it");
    stage.step().await;
    assert_eq!(answered(last).await["statusMessage"], "1");
}

#[tokio::test]
async fn who_waits_for_output_takes_a_place_too() {
    let stage = Stage::start(one_may_wait()).await;
    let read = json!({"taskId": stage.task, "waitMs": 20_000});
    let pending = vec![get(&stage.client, wait(&stage.task, 20_000)), send(&stage.client, "dev.taskwire/partials/read", read)];
    let (refused, _, mut rest) = first(pending).await;
    check_refused(&refused);
    stage.meanwhile().await;
    let waiting = rest.pop().expect("the one that waits");
    assert!(!waiting.is_finished(), "nothing has happened");
    stage.end().await;
    assert_eq!(with_timeout("the answer", waiting).await.expect("no panic").status, 200);
}

#[tokio::test]
async fn each_caller_has_places_of_its_own() {
    let (gate, clock) = (Gate::new(), manual_clock());
    let tools = registry([gate.tool("slow").task(TaskMode::Always)]);
    let config = Config { waiting_requests_per_caller: 1, ..two_callers() };
    let server = TestServer::start_with(tools, config, Arc::new(clock.clone())).await;
    let (ann, bob) = (server.streaming_client().with_token("ann-token"), server.streaming_client().with_token("bob-token"));
    let (hers, his) = (ann.start("slow", json!({})).await, bob.start("slow", json!({})).await);
    let (refused, _, rest) = first((0..2).map(|_| get(&ann, wait(&hers, 20_000))).collect()).await;
    check_refused(&refused);
    let response = with_timeout("the answer", passing(&clock, MS, bob.raw("tasks/get", wait(&his, 1)))).await;
    assert_eq!(result(&response)["status"], "working");
    assert!(rest.iter().all(|waiting| !waiting.is_finished()), "hers still waits");
}

#[tokio::test]
async fn who_goes_away_while_waiting_frees_the_place() {
    let stage = Stage::start(Config { waiting_requests_per_caller: 2, wait_max: HOUR, ..Config::default() }).await;
    let (refused, _, mut rest) = first((0..3).map(|_| get(&stage.client, wait(&stage.task, 3_600_000))).collect()).await;
    check_refused(&refused);
    rest.pop().expect("one that waits").abort();
    stage.room().await;
    let other = rest.pop().expect("another that waits");
    assert!(!other.is_finished(), "it has not gone away");
    stage.step().await;
    assert_eq!(answered(other).await["statusMessage"], "1");
}

#[tokio::test]
async fn a_shutdown_answers_requests_that_wait() {
    let mut stage = Stage::start(one_may_wait()).await;
    let waiting = stage.held(&wait(&stage.task, 20_000)).await;
    stage.server.stop();
    assert_eq!(answered(waiting).await["status"], "working");
    (0..4).for_each(|_| stage.gate.go.send());
    with_timeout("the shutdown", stage.server.stopped()).await;
}

// Polls that come too soon.

#[tokio::test]
async fn a_poll_that_comes_too_soon_is_held_until_its_time() {
    let stage = Stage::start(Config::default()).await;
    let (mut connection, client) = (Connection::open(&stage.server).await, stage.server.client());
    let task = stage.poll(&mut connection, &client).await;
    let interval = Duration::from_millis(task["pollIntervalMs"].as_u64().expect("a number"));
    for _ in 0..2 {
        let request = stage.eager_poll(&mut connection, &client).await;
        stage.clock.advance(interval - MS);
        stage.meanwhile().await;
        assert!(connection.is_quiet(), "it has a millisecond left");
        stage.clock.advance(MS);
        let answer = connection.answer(&request).await;
        assert_eq!((&answer["result"]["status"], &answer["result"]["lastUpdatedAt"]), (&json!("working"), &task["lastUpdatedAt"]));
    }
}

#[tokio::test]
async fn a_poll_that_comes_in_time_is_answered_at_once() {
    let stage = Stage::start(Config::default()).await;
    let (mut connection, client) = (Connection::open(&stage.server).await, stage.server.client());
    for _ in 0..3 {
        let task = stage.poll(&mut connection, &client).await;
        stage.clock.advance(Duration::from_millis(task["pollIntervalMs"].as_u64().expect("a number")));
    }
}

#[tokio::test]
async fn who_polls_when_it_was_told_to_is_never_held_however_long_that_grows() {
    let stage = Stage::start(Config::default()).await;
    let (mut connection, client) = (Connection::open(&stage.server).await, stage.server.client());
    let mut intervals = Vec::new();
    // It grows with the age of the task, up to five seconds.
    for age in [0_u32, 20, 60] {
        stage.clock.advance(age * SECOND);
        for _ in 0..4 {
            let interval = stage.poll(&mut connection, &client).await["pollIntervalMs"].as_u64().expect("a number");
            stage.clock.advance(Duration::from_millis(interval));
            intervals.push(interval);
        }
    }
    let (first, last) = (intervals[0], intervals[intervals.len() - 1]);
    assert!(intervals.is_sorted() && intervals.iter().any(|interval| (first + 1..last).contains(interval)), "{intervals:?}");
    // One that comes a millisecond sooner is.
    stage.poll(&mut connection, &client).await;
    stage.clock.advance(Duration::from_millis(last - 1));
    let request = stage.eager_poll(&mut connection, &client).await;
    stage.clock.advance(MS);
    assert_eq!(connection.answer(&request).await["result"]["status"], "working");
}

#[tokio::test]
async fn a_poll_that_knows_another_version_is_not_held() {
    let stage = Stage::start(Config::default()).await;
    let mut connection = Connection::open(&stage.server).await;
    let version = stage.poll(&mut connection, &stage.client).await["_meta"][VERSION].as_u64().expect("a number");
    let known = |version: u64| json!({"taskId": stage.task, "_meta": {VERSION: version}});
    for other in [0, version + 1, 0] {
        let answer = connection.ask(&stage.client, "tasks/get", known(other)).await;
        assert_eq!(answer["result"]["_meta"][VERSION], version, "{answer}");
    }
    // One that knows the current version comes too soon.
    let request = connection.request(&stage.client, "tasks/get", known(version)).await;
    stage.meanwhile().await;
    assert!(connection.is_quiet(), "it came too soon");
    stage.step().await;
    assert_eq!(connection.answer(&request).await["result"]["statusMessage"], "1");
}

#[tokio::test]
async fn a_poll_for_which_there_is_no_place_is_answered_at_once() {
    let stage = Stage::start(one_may_wait()).await;
    let (mut connection, client) = (Connection::open(&stage.server).await, stage.server.client());
    stage.poll(&mut connection, &client).await;
    let waiting = stage.held(&wait(&stage.task, 20_000)).await;
    for _ in 0..3 {
        assert_eq!(stage.poll(&mut connection, &client).await["status"], "working", "who did not ask to wait is not refused");
    }
    assert!(!waiting.is_finished(), "the place is taken");
    stage.step().await;
    assert_eq!(answered(waiting).await["statusMessage"], "1");
}

#[tokio::test]
async fn a_poll_that_is_held_is_answered_when_its_task_changes() {
    let stage = Stage::start(Config::default()).await;
    let (mut connection, client) = (Connection::open(&stage.server).await, stage.server.client());
    stage.poll(&mut connection, &client).await;
    let request = stage.eager_poll(&mut connection, &client).await;
    stage.step().await;
    assert_eq!(connection.answer(&request).await["result"]["statusMessage"], "1");
}

#[tokio::test]
async fn a_poll_that_is_held_is_not_answered_because_of_output() {
    let stage = Stage::with(writes, Config::default()).await;
    let (mut connection, client) = (Connection::open(&stage.server).await, stage.server.client());
    stage.poll(&mut connection, &client).await;
    stage.step().await;
    let request = stage.eager_poll(&mut connection, &client).await;
    stage.step().await;
    stage.meanwhile().await;
    assert!(connection.is_quiet(), "it has only written");
    stage.gate.go.send();
    assert_eq!(connection.answer(&request).await["result"]["statusMessage"], "said");
}

#[tokio::test]
async fn a_poll_after_a_change_is_answered_at_once() {
    let stage = Stage::start(Config::default()).await;
    let (mut connection, client) = (Connection::open(&stage.server).await, stage.server.client());
    stage.poll(&mut connection, &client).await;
    for message in ["1", "2"] {
        stage.step().await;
        assert_eq!(stage.poll(&mut connection, &client).await["statusMessage"], message);
    }
    stage.eager_poll(&mut connection, &client).await;
}

#[tokio::test]
async fn polls_of_a_task_that_has_ended_are_never_held() {
    let stage = Stage::start(Config::default()).await;
    let (mut connection, client) = (Connection::open(&stage.server).await, stage.server.client());
    stage.poll(&mut connection, &client).await;
    stage.end().await;
    for _ in 0..3 {
        assert_eq!(stage.poll(&mut connection, &client).await["status"], "completed");
    }
}

#[tokio::test]
async fn polls_on_another_connection_are_not_held() {
    let stage = Stage::start(Config::default()).await;
    let (mut connection, client) = (Connection::open(&stage.server).await, stage.server.client());
    stage.poll(&mut connection, &client).await;
    stage.eager_poll(&mut connection, &client).await;
    let mut another = Connection::open(&stage.server).await;
    stage.poll(&mut another, &client).await;
    assert!(connection.is_quiet(), "the first one waits on");
}

#[tokio::test]
async fn other_requests_on_the_same_connection_are_not_held() {
    let stage = Stage::start(Config::default()).await;
    let (mut connection, client) = (Connection::open(&stage.server).await, stage.server.client());
    stage.poll(&mut connection, &client).await;
    let another = client.start("talks", json!({})).await;
    let answer = connection.ask(&client, "tasks/get", json!({"taskId": another})).await;
    assert_eq!(answer["result"]["taskId"], another);
    for _ in 0..2 {
        let answer = connection.ask(&client, "tasks/get", json!({"taskId": "0".repeat(32)})).await;
        assert_eq!(answer["error"]["code"], -32602);
        connection.ask(&client, "tools/list", json!({})).await;
    }
    connection.ask(&client, "tasks/cancel", json!({"taskId": stage.task})).await;
    assert_eq!(stage.poll(&mut connection, &client).await["status"], "cancelled");
}

#[tokio::test]
async fn polls_are_not_held_where_that_is_switched_off() {
    let stage = Stage::start(Config { long_poll: false, ..Config::default() }).await;
    let (mut connection, client) = (Connection::open(&stage.server).await, stage.server.client());
    for _ in 0..5 {
        assert_eq!(stage.poll(&mut connection, &client).await["status"], "working");
    }
}

#[tokio::test]
async fn a_shutdown_answers_polls_that_are_held() {
    let mut stage = Stage::start(Config::default()).await;
    let (mut connection, client) = (Connection::open(&stage.server).await, stage.server.client());
    stage.poll(&mut connection, &client).await;
    let request = stage.eager_poll(&mut connection, &client).await;
    stage.server.stop();
    assert_eq!(connection.answer(&request).await["result"]["status"], "working");
    (0..4).for_each(|_| stage.gate.go.send());
    with_timeout("the shutdown", stage.server.stopped()).await;
}
