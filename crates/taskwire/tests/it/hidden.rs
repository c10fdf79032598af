//! Tasks that their callers do not know of: of calls that are held, or that had to be made durable on the way. Their result is the
//! call's response, and they do not outlive the call unless it has a key.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use serde_json::{Value, json};
use taskwire::{
    core::{Payload, TaskId, Timestamp, task::Status},
    server::{Config, HttpConfig},
    tool::{InputRequired, Progress, TaskMode, Tool, ToolError},
};
use tokio::net::TcpStream;

use crate::{
    kit::{Client, KEY, TASKS, TempDir, TestServer, manual_clock, until_there_is_room, with_timeout},
    store::TestStore,
    tasks::{Gate, Signal, accept, name_form, name_in, registry, reopened, tool, until_crash},
};

/// Saves something, which makes its call a task, then waits.
fn saves(gate: &Gate) -> Tool {
    tool("saves", gate, |gate, ctx| async move {
        ctx.checkpoint(&1).await?;
        gate.pass(&ctx).await
    })
}

/// Asks for a name by a round, and says what came back with it.
fn rounds(runs: &Arc<AtomicU64>) -> Tool {
    tool("rounds", runs, |runs, ctx| async move {
        runs.fetch_add(1, Ordering::Relaxed);
        let resumed = ctx.resumed();
        match resumed.answers.get("name") {
            None => Err(ToolError::input_required(InputRequired::ask("name", name_form("Name?")).with_state(json!({"step": 1})))),
            Some(answer) => Ok(format!("{} {}", name_in(&answer.read()?), resumed.state.as_ref().map_or("nothing", Payload::as_str))),
        }
    })
}

/// A client that can be asked, but knows no tasks.
fn forms(server: &TestServer) -> Client {
    server.plain_client().declaring(json!({"elicitation": {}}))
}

async fn send(client: &Client, params: Value) -> TcpStream {
    let message = client.message(client.next_id(), "tools/call", params);
    client.send(&client.headers(&message), message.to_string().as_bytes()).await
}

/// The same call once more, with an answer to what was asked.
fn answered(mut call: Value, asked: &Value) -> Value {
    call["requestState"] = asked["requestState"].clone();
    call["inputResponses"] = json!({"name": accept("Ada")});
    call
}

fn open(server: &TestServer) -> Vec<TaskId> {
    server.server.engine().reader().open_tasks(None, 10).now_or_never().expect("at once").expect("readable")
}

/// The one task that has not ended.
fn only_open(server: &TestServer) -> TaskId {
    let open = open(server);
    assert_eq!(open.len(), 1, "{open:?}");
    open[0]
}

fn status(server: &TestServer, id: TaskId) -> Status {
    server.server.engine().reader().task(id).now_or_never().expect("at once").expect("readable").expect("still there").status()
}

// Tools that are never tasks.

#[tokio::test]
async fn a_tool_that_is_never_a_task_asks_by_a_second_call() {
    let careful = tool("careful", &(), |(), ctx| async move {
        ctx.checkpoint(&1).await?;
        Ok(name_in(&ctx.ask("name", name_form("Name?")).await?))
    });
    let server = TestServer::start(registry([careful.task(TaskMode::Never)])).await;
    let client = server.client();
    let call = json!({"name": "careful", "arguments": {}});
    let asked = with_timeout("the question", client.ok("tools/call", call.clone())).await;
    assert_eq!((&asked["resultType"], asked.get("taskId")), (&json!("input_required"), None));
    assert_eq!(asked["inputRequests"]["name"]["params"]["message"], "Name?");
    let done = with_timeout("the result", client.ok("tools/call", answered(call, &asked))).await;
    assert_eq!((&done["resultType"], &done["content"][0]["text"]), (&json!("complete"), &json!("Ada")));
}

#[tokio::test]
async fn a_tool_that_is_never_a_task_may_save_and_still_gives_its_result() {
    let (gate, clock) = (Gate::new(), manual_clock());
    let tools = registry([saves(&gate).task(TaskMode::Never)]);
    let server = TestServer::start_with(tools, Config::default(), Arc::new(clock.clone())).await;
    let client = server.client();
    let later = async {
        gate.started.wait().await;
        clock.advance(Config::default().promote_after * 10);
        gate.go.send();
    };
    let (done, ()) = with_timeout("the result", async { tokio::join!(client.call("saves", json!({})), later) }).await;
    assert_eq!((&done["resultType"], &done["content"][0]["text"]), (&json!("complete"), &json!("done")));
}

// Callers that go away.

#[tokio::test]
async fn a_held_call_that_became_a_task_is_cancelled_when_its_caller_goes_away_where_nothing_lingers() {
    let gate = Gate::new();
    let server = TestServer::start(registry([saves(&gate).linger(Duration::ZERO)])).await;
    let connection = send(&server.plain_client(), json!({"name": "saves", "arguments": {}})).await;
    with_timeout("the start", gate.started.wait()).await;
    let id = only_open(&server);
    assert_eq!(status(&server, id), Status::Working);
    drop(connection);
    with_timeout("the stop", gate.stopped.wait()).await;
    assert_eq!(status(&server, id), Status::Cancelled);
}

#[tokio::test]
async fn a_call_that_goes_on_after_a_question_is_cancelled_when_its_caller_goes_away_where_nothing_lingers() {
    let gate = Gate::new();
    let asks = tool("asks", &gate, |gate, ctx| async move {
        ctx.ask("name", name_form("Name?")).await?;
        gate.pass(&ctx).await
    });
    let server = TestServer::start(registry([asks.linger(Duration::ZERO)])).await;
    let client = forms(&server);
    let call = json!({"name": "asks", "arguments": {}});
    let asked = with_timeout("the question", client.ok("tools/call", call.clone())).await;
    let id = only_open(&server);
    assert_eq!(status(&server, id), Status::InputRequired, "between two calls it waits");
    let connection = send(&client, answered(call, &asked)).await;
    with_timeout("the answer", gate.started.wait()).await;
    drop(connection);
    with_timeout("the stop", gate.stopped.wait()).await;
    assert_eq!(status(&server, id), Status::Cancelled);
}

#[tokio::test]
async fn a_task_whose_caller_went_away_before_its_handle_was_there_is_cancelled_where_nothing_lingers() {
    let (gate, began, dir) = (Gate::new(), Signal::new(), Arc::new(TempDir::new()));
    let (go, its_go) = std::sync::mpsc::channel();
    let its_began = began.clone();
    // Each commit waits for the test.
    let before_commit = move || {
        its_began.send();
        // An error means that the test is over.
        let _ = its_go.recv();
    };
    let store = TestStore { before_commit: Box::new(before_commit), ..TestStore::open(&dir) };
    let config = Config { http: HttpConfig { connections: 1, ..HttpConfig::default() }, ..Config::default() };
    let tools = registry([gate.tool("slow").task(TaskMode::Always).linger(Duration::ZERO)]);
    let server = TestServer::start_on(dir, store, tools, config, Arc::new(manual_clock())).await;
    let client = server.plain_client().declaring(json!({"extensions": {TASKS: {}}}));
    let reader = server.server.engine().reader();
    for _ in 0..50 {
        let connection = send(&client, json!({"name": "slow", "arguments": {}})).await;
        with_timeout("the creation", began.wait()).await;
        drop(connection);
        // There is room for one connection: another is served when the server has let go of this one.
        until_there_is_room(server.port).await;
        go.send(()).expect("the writer waits");
        with_timeout("the cancellation", began.wait()).await;
        go.send(()).expect("the writer waits");
        let ended = async {
            while !reader.open_tasks(None, 10).await.expect("readable").is_empty() {
                tokio::task::yield_now().await;
            }
        };
        with_timeout("the end of the task", ended).await;
    }
    let all = reader.due_tasks(Timestamp::from_millis(i64::MAX), None, 100).await.expect("readable");
    assert_eq!(all.len(), 50, "each was made");
    for id in all {
        assert_eq!(reader.task(id).await.expect("readable").expect("still there").status(), Status::Cancelled);
    }
}

// Crashes.

#[test]
fn a_held_call_that_became_a_task_is_not_run_again_after_a_crash_where_nothing_lingers() {
    let (dir, clock, gate) = (Arc::new(TempDir::new()), manual_clock(), Gate::new());
    let tools = || registry([saves(&gate).retry_on_interrupt().linger(Duration::ZERO)]);
    let id = until_crash(async {
        let server = TestServer::start_in(dir.clone(), tools(), crate::kit::without_followups(), Arc::new(clock.clone())).await;
        let _connection = send(&server.plain_client(), json!({"name": "saves", "arguments": {}})).await;
        with_timeout("the start", gate.started.wait()).await;
        only_open(&server).to_string()
    });
    until_crash(async {
        let server = reopened(&dir, tools(), crate::kit::without_followups(), &clock).await;
        let task = with_timeout("the failure", server.client().until(&id, "failed")).await;
        let message = task["error"]["message"].as_str().expect("a text");
        assert!(message.contains("interrupted") && message.contains("lost the call"), "{message}");
        assert!(!gate.started.is_sent(), "it was not run again");
        assert!(open(&server).is_empty());
    });
}

#[test]
fn a_held_call_under_a_key_is_run_again_after_a_crash() {
    let (dir, clock, gate) = (Arc::new(TempDir::new()), manual_clock(), Gate::new());
    let tools = || registry([gate.tool("slow").retry_on_interrupt()]);
    let call = json!({"name": "slow", "arguments": {}, "_meta": {KEY: "k"}});
    until_crash(async {
        let server = TestServer::start_in(dir.clone(), tools(), Config::default(), Arc::new(clock.clone())).await;
        let _connection = send(&server.plain_client(), call.clone()).await;
        with_timeout("the start", gate.started.wait()).await;
    });
    until_crash(async {
        let server = reopened(&dir, tools(), Config::default(), &clock).await;
        with_timeout("the second start", gate.started.wait()).await;
        gate.go.send();
        let done = with_timeout("the result", server.plain_client().ok("tools/call", call)).await;
        assert_eq!((&done["resultType"], &done["content"][0]["text"]), (&json!("complete"), &json!("done")));
    });
    assert_eq!(gate.runs(), 2);
}

// Rounds of tasks.

#[tokio::test]
async fn a_call_under_a_key_is_asked_in_a_round_and_goes_on_with_the_answer() {
    let runs = Arc::new(AtomicU64::new(0));
    let server = TestServer::start(registry([rounds(&runs)])).await;
    let client = forms(&server);
    let call = json!({"name": "rounds", "arguments": {}, "_meta": {KEY: "k"}});
    let asked = with_timeout("the question", client.ok("tools/call", call.clone())).await;
    assert_eq!((&asked["resultType"], asked.get("taskId")), (&json!("input_required"), None));
    let id = only_open(&server);
    let done = with_timeout("the result", client.ok("tools/call", answered(call.clone(), &asked))).await;
    assert_eq!((&done["resultType"], &done["content"][0]["text"]), (&json!("complete"), &json!(r#"Ada {"step":1}"#)));
    assert_eq!(status(&server, id), Status::Completed, "it was one task all the time");
    assert_eq!(with_timeout("the result again", client.ok("tools/call", call)).await, done);
    assert_eq!(runs.load(Ordering::Relaxed), 2, "once to ask, once to answer");
    assert!(open(&server).is_empty());
}

#[tokio::test]
async fn a_task_that_asks_in_a_round_goes_on_with_the_answer() {
    let runs = Arc::new(AtomicU64::new(0));
    let server = TestServer::start(registry([rounds(&runs).task(TaskMode::Always)])).await;
    let client = server.client();
    let id = client.start("rounds", json!({})).await;
    let asked = with_timeout("the question", client.until(&id, "input_required")).await;
    assert_eq!(asked["inputRequests"]["name"]["params"]["message"], "Name?");
    client.answer(&id, json!({"name": accept("Ada")})).await;
    let task = with_timeout("the end", client.until(&id, "completed")).await;
    assert_eq!(task["result"]["content"][0]["text"], r#"Ada {"step":1}"#);
    assert_eq!(runs.load(Ordering::Relaxed), 2);
}

// Notes on the way.

#[tokio::test]
async fn progress_is_told_while_a_call_under_a_key_is_held() {
    let gate = Gate::new();
    let talks = tool("talks", &gate, |gate, ctx| async move {
        for n in 1..=2 {
            ctx.progress(Progress::of(n, 2.0).message("talking")).await?;
            gate.go.wait().await;
        }
        Ok("done")
    });
    let server = TestServer::start(registry([talks])).await;
    let client = server.plain_client();
    let meta = json!({KEY: "k", "progressToken": "p"});
    let message = client.message(client.next_id(), "tools/call", json!({"name": "talks", "arguments": {}, "_meta": meta}));
    let mut events = with_timeout("the first word", client.open(&message)).await;
    for n in [1.0, 2.0] {
        let notification = with_timeout("the progress", events.next()).await.expect("the call is open");
        assert_eq!(notification["method"], "notifications/progress");
        let expected = json!({"progressToken": "p", "progress": n, "total": 2.0, "message": "talking"});
        assert_eq!(notification["params"], expected);
        gate.go.send();
    }
    let answer = with_timeout("the result", events.next()).await.expect("a result");
    assert_eq!((&answer["id"], &answer["result"]["content"][0]["text"]), (&message["id"], &json!("done")));
}
