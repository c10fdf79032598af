//! What the engine promises about the work of tools: how it is stopped, bounded, resumed, and let finish.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use taskwire::{
    core::{Limits, task::Status},
    server::{Config, EngineConfig},
    store::SqliteStore,
    tool::{Content, Ctx, Progress, TaskMode, Tool},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    kit::{HOUR, MS, SECOND, TempDir, TestServer, manual_clock, with_timeout},
    schema,
    tasks::{Gate, Signal, accept, name_form, quick, registry, reopened, tool, until_crash, with_limits, written},
};

/// Says when it is dropped.
struct Guard(Signal);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.send();
    }
}

fn panics() -> Tool {
    tool("panics", &(), |(), ctx: Ctx| async move {
        assert!(ctx.attempt() > 1, "boom at attempt {}", ctx.attempt());
        Ok("not reached")
    })
}

// Panics.

#[tokio::test]
async fn a_panic_fails_the_task_and_nothing_else() {
    let server = TestServer::start(registry([panics().task(TaskMode::Always), quick("quick")])).await;
    let client = server.client();
    let id = client.start("panics", json!({})).await;
    let task = with_timeout("the failure", client.until(&id, "failed")).await;
    assert_eq!(task["error"], json!({"code": -32603, "message": "the tool `panics` panicked: boom at attempt 1"}));
    assert_eq!(client.call("quick", json!({})).await["content"][0]["text"], "done");
    with_timeout("the shutdown", server.stopped()).await;
}

#[tokio::test]
async fn a_panic_fails_a_direct_call_and_nothing_else() {
    let server = TestServer::start(registry([panics(), quick("quick")])).await;
    let client = server.client();
    let error = client.error("tools/call", json!({"name": "panics", "arguments": {}})).await;
    assert_eq!(error, json!({"code": -32603, "message": "the tool `panics` panicked: boom at attempt 1"}));
    assert_eq!(client.call("quick", json!({})).await["content"][0]["text"], "done");
}

// Stopping.

#[tokio::test]
async fn a_tool_that_ignores_its_stop_is_dropped_after_the_grace_period() {
    let (gate, dropped, clock) = (Gate::new(), Signal::new(), manual_clock());
    let stubborn = tool("stubborn", &(gate.clone(), dropped.clone()), |(gate, dropped), ctx| async move {
        let _guard = Guard(dropped);
        gate.started.send();
        ctx.cancelled().await;
        gate.stopped.send();
        std::future::pending::<()>().await;
        Ok(())
    });
    let config = Config { engine: EngineConfig { grace: 5 * SECOND, ..EngineConfig::default() }, ..Config::default() };
    let server = TestServer::start_with(registry([stubborn.task(TaskMode::Always)]), config, Arc::new(clock.clone())).await;
    let client = server.client();
    let id = client.start("stubborn", json!({})).await;
    with_timeout("the start", gate.started.wait()).await;
    client.cancel(&id).await;
    with_timeout("the word to stop", gate.stopped.wait()).await;
    clock.advance(5 * SECOND - MS);
    assert_eq!(client.get(&id).await["status"], "cancelled");
    assert!(!dropped.is_sent(), "it still has a millisecond");
    clock.advance(MS);
    with_timeout("the drop", dropped.wait()).await;
}

#[tokio::test]
async fn a_tool_that_heeds_its_stop_ends_at_once() {
    let (started, dropped, clock) = (Signal::new(), Signal::new(), manual_clock());
    let sleeps = tool("sleeps", &(started.clone(), dropped.clone()), |(started, dropped), ctx| async move {
        let _guard = Guard(dropped);
        started.send();
        ctx.sleep(HOUR).await?;
        Ok("rested")
    });
    let server = TestServer::start_with(registry([sleeps.task(TaskMode::Always)]), Config::default(), Arc::new(clock.clone())).await;
    let client = server.client();
    let id = client.start("sleeps", json!({})).await;
    with_timeout("the start", started.wait()).await;
    client.cancel(&id).await;
    with_timeout("the end", dropped.wait()).await;
    assert_eq!(client.get(&id).await["status"], "cancelled");
}

// Time.

#[tokio::test]
async fn a_task_that_takes_too_long_fails_and_its_tool_is_stopped() {
    let (gate, clock) = (Gate::new(), manual_clock());
    let slow = gate.tool("slow").task(TaskMode::Always).timeout(10 * SECOND);
    let server = TestServer::start_with(registry([slow]), Config::default(), Arc::new(clock.clone())).await;
    let client = server.client();
    let id = client.start("slow", json!({})).await;
    with_timeout("the start", gate.started.wait()).await;
    clock.advance(10 * SECOND - MS);
    assert_eq!(client.get(&id).await["status"], "working");
    clock.advance(MS);
    let task = with_timeout("the failure", client.until(&id, "failed")).await;
    assert_eq!(task["error"], json!({"code": -32603, "message": "the tool `slow` did not finish within its timeout of 10s"}));
    with_timeout("the stop", gate.stopped.wait()).await;
}

#[tokio::test]
async fn a_direct_call_that_takes_too_long_fails_and_its_tool_is_stopped() {
    let (gate, clock) = (Gate::new(), manual_clock());
    let slow = gate.tool("slow").task(TaskMode::Never).timeout(10 * SECOND);
    let server = TestServer::start_with(registry([slow]), Config::default(), Arc::new(clock.clone())).await;
    let client = server.client();
    let pass = async {
        gate.started.wait().await;
        clock.advance(10 * SECOND);
    };
    let call = client.ok("tools/call", json!({"name": "slow", "arguments": {}}));
    let (result, ()) = with_timeout("the failure", async { tokio::join!(call, pass) }).await;
    assert_eq!(result["isError"], true, "{result}");
    assert!(result["content"][0]["text"].as_str().expect("a text").contains("timeout of 10s"), "{result}");
    with_timeout("the stop", gate.stopped.wait()).await;
}

#[tokio::test]
async fn the_time_before_a_call_became_a_task_counts_too() {
    let (gate, clock) = (Gate::new(), manual_clock());
    let slow = gate.tool("slow").promote_after(4 * SECOND).timeout(10 * SECOND);
    let server = TestServer::start_with(registry([slow]), Config::default(), Arc::new(clock.clone())).await;
    let client = server.client();
    let pass = async {
        gate.started.wait().await;
        clock.advance(4 * SECOND);
    };
    let (id, ()) = with_timeout("the handle", async { tokio::join!(client.start("slow", json!({})), pass) }).await;
    clock.advance(6 * SECOND);
    with_timeout("the failure", client.until(&id, "failed")).await;
}

#[tokio::test]
async fn the_time_that_a_tool_waits_for_an_answer_does_not_count() {
    let (gate, clock) = (Gate::new(), manual_clock());
    let asks = tool("asks", &gate, |gate, ctx| async move {
        ctx.ask("name", name_form("Name?")).await?;
        gate.go.wait().await;
        Ok("done")
    });
    let asks = asks.task(TaskMode::Always).timeout(10 * SECOND);
    let server = TestServer::start_with(registry([asks]), Config::default(), Arc::new(clock.clone())).await;
    let client = server.client();
    let id = client.start("asks", json!({})).await;
    with_timeout("the question", client.until(&id, "input_required")).await;
    clock.advance(HOUR);
    assert_eq!(client.get(&id).await["status"], "input_required");
    client.answer(&id, json!({"name": accept("Ada")})).await;
    clock.advance(10 * SECOND - MS);
    assert_eq!(client.get(&id).await["status"], "working");
    clock.advance(MS);
    with_timeout("the failure", client.until(&id, "failed")).await;
}

#[tokio::test]
async fn a_question_that_nobody_answers_fails_the_task() {
    let clock = manual_clock();
    let asks = tool("asks", &(), |(), ctx| async move {
        ctx.ask("name", name_form("Name?")).await?;
        Ok("done")
    });
    let config = Config { answer_timeout: Some(HOUR), ..Config::default() };
    let server = TestServer::start_with(registry([asks.task(TaskMode::Always)]), config, Arc::new(clock.clone())).await;
    let client = server.client();
    let id = client.start("asks", json!({})).await;
    with_timeout("the question", client.until(&id, "input_required")).await;
    clock.advance(HOUR);
    let task = with_timeout("the failure", client.until(&id, "failed")).await;
    assert_eq!(task["error"]["message"], "nobody answered within 1h");
}

// Going on after a crash.

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct FileOffset {
    file: String,
    offset: u64,
}

#[test]
fn a_checkpoint_comes_back_as_it_was_saved() {
    let (dir, clock, saved) = (Arc::new(TempDir::new()), manual_clock(), Signal::new());
    let copies = || {
        let copies = tool("copies", &saved, |saved, ctx| async move {
            let Some(copied) = ctx.saved::<FileOffset>()? else {
                ctx.checkpoint(&json!("an older one")).await?;
                ctx.checkpoint(&FileOffset { file: "ä \"b\"".to_owned(), offset: u64::MAX }).await?;
                saved.send();
                std::future::pending::<()>().await;
                return Ok("not reached".to_owned());
            };
            Ok(format!("{} {} {}", ctx.attempt(), copied.file, copied.offset))
        });
        registry([copies.task(TaskMode::Always).retry_on_interrupt()])
    };
    let id = until_crash(async {
        let server = TestServer::start_in(dir.clone(), copies(), Config::default(), Arc::new(clock.clone())).await;
        let id = server.client().start("copies", json!({})).await;
        with_timeout("the checkpoint", saved.wait()).await;
        id
    });
    until_crash(async {
        let server = reopened(&dir, copies(), Config::default(), &clock).await;
        let task = with_timeout("the end", server.client().until(&id, "completed")).await;
        assert_eq!(task["result"]["content"][0]["text"], format!("2 ä \"b\" {}", u64::MAX));
    });
}

#[test]
fn work_is_started_so_often_and_no_more() {
    let (dir, clock, gate) = (Arc::new(TempDir::new()), manual_clock(), Gate::new());
    let tools = || registry([gate.tool("slow").task(TaskMode::Always).retry_on_interrupt()]);
    let config = || Config { attempts_max: 2, ..Config::default() };
    let id = until_crash(async {
        let server = TestServer::start_in(dir.clone(), tools(), config(), Arc::new(clock.clone())).await;
        let id = server.client().start("slow", json!({})).await;
        with_timeout("the first start", gate.started.wait()).await;
        id
    });
    until_crash(async {
        let _server = reopened(&dir, tools(), config(), &clock).await;
        with_timeout("the second start", gate.started.wait()).await;
    });
    until_crash(async {
        let server = reopened(&dir, tools(), config(), &clock).await;
        let task = with_timeout("the failure", server.client().until(&id, "failed")).await;
        let message = task["error"]["message"].as_str().expect("a text");
        assert!(message.contains("interrupted") && message.contains("started 2 times"), "{message}");
    });
    assert_eq!(gate.runs(), 2);
}

#[test]
fn a_tool_that_is_no_longer_there_fails_its_task() {
    let (dir, clock, gate) = (Arc::new(TempDir::new()), manual_clock(), Gate::new());
    let id = until_crash(async {
        let tools = registry([gate.tool("slow").task(TaskMode::Always).retry_on_interrupt()]);
        let server = TestServer::start_in(dir.clone(), tools, Config::default(), Arc::new(clock.clone())).await;
        server.client().start("slow", json!({})).await
    });
    until_crash(async {
        let server = reopened(&dir, registry([]), Config::default(), &clock).await;
        let task = with_timeout("the failure", server.client().until(&id, "failed")).await;
        assert_eq!(task["error"]["message"], "the tool `slow` is no longer there");
    });
}

// What tools say.

#[tokio::test]
async fn progress_shows_in_the_status_message() {
    let gate = Gate::new();
    let copies = tool("copies", &gate, |gate, ctx| async move {
        for (done, total, message) in [(10.0, None, None), (20.0, Some(100.0), None), (30.0, Some(100.0), Some("copying"))] {
            gate.go.wait().await;
            ctx.progress(Progress { done, total, message: message.map(str::to_owned) }).await?;
            gate.started.send();
        }
        gate.go.wait().await;
        Ok("done")
    });
    let server = TestServer::start(registry([copies.task(TaskMode::Always)])).await;
    let client = server.client();
    let id = client.start("copies", json!({})).await;
    for expected in ["10 done", "20/100", "copying (30/100)"] {
        gate.go.send();
        with_timeout("the progress", gate.started.wait()).await;
        assert_eq!(client.get(&id).await["statusMessage"], expected);
    }
}

/// Writes so many chunks of so many characters.
fn writes(count: usize, length: usize) -> Tool {
    let writes = tool("writes", &(), move |(), ctx| async move {
        for _ in 0..count {
            ctx.block(Content::text("x".repeat(length))).await?;
            ctx.flush().await?;
        }
        Ok("all written")
    });
    writes.task(TaskMode::Always)
}

async fn run(server: &TestServer, tool: &str) -> (String, Value) {
    let client = server.client();
    let id = client.start(tool, json!({})).await;
    let task = with_timeout("the end", client.until(&id, "completed")).await;
    (id, task["result"].clone())
}

#[tokio::test]
async fn a_chunk_that_is_too_large_is_refused_to_the_tool() {
    let limits = Limits { chunk_bytes: 100, ..Limits::DEFAULT };
    let server = TestServer::start_with(registry([writes(1, 200)]), with_limits(limits), Arc::new(manual_clock())).await;
    let (id, result) = run(&server, "writes").await;
    assert_eq!(result["isError"], true);
    let expected = "the chunk is too large: the limit is 100 (configuration key `limits.chunk_bytes`)";
    assert_eq!(result["content"][0]["text"], expected);
    assert!(written(&server, &id).is_empty());
}

#[tokio::test]
async fn output_beyond_what_a_task_may_write_is_refused_to_the_tool() {
    // A text of 60 characters is a chunk of 87 bytes: two fit, three do not.
    let limits = Limits { chunk_bytes: 100, task_output_bytes: 250, ..Limits::DEFAULT };
    let server = TestServer::start_with(registry([writes(3, 60)]), with_limits(limits), Arc::new(manual_clock())).await;
    let (id, result) = run(&server, "writes").await;
    assert_eq!(result["isError"], true);
    let expected = "the task has written too much: the limit is 250 (configuration key `limits.task_output_bytes`)";
    assert_eq!(result["content"][0]["text"], expected);
    assert_eq!(written(&server, &id).len(), 2);
}

#[tokio::test]
async fn output_up_to_what_a_task_may_write_is_kept() {
    let limits = Limits { chunk_bytes: 87, task_output_bytes: 261, ..Limits::DEFAULT };
    let server = TestServer::start_with(registry([writes(3, 60)]), with_limits(limits), Arc::new(manual_clock())).await;
    let (id, result) = run(&server, "writes").await;
    assert_eq!(result["content"][0]["text"], "all written");
    assert_eq!(written(&server, &id).len(), 3);
}

#[tokio::test]
async fn a_result_that_is_too_large_fails_the_task() {
    let large = tool("large", &(), |(), _ctx| async move { Ok("x".repeat(2_000)) });
    let limits = Limits { result_bytes: 1_000, ..Limits::DEFAULT };
    let server = TestServer::start_with(registry([large.task(TaskMode::Always)]), with_limits(limits), Arc::new(manual_clock())).await;
    let client = server.client();
    let id = client.start("large", json!({})).await;
    let task = with_timeout("the failure", client.until(&id, "failed")).await;
    assert!(task["error"]["message"].as_str().expect("a text").contains("`limits.result_bytes`"), "{task}");
}

// Shutting down.

#[tokio::test]
async fn a_shutdown_waits_for_running_work() {
    let gate = Gate::new();
    let mut server = TestServer::start(registry([gate.tool("slow").task(TaskMode::Always)])).await;
    let client = server.client();
    let id = client.start("slow", json!({})).await;
    with_timeout("the start", gate.started.wait()).await;
    let mut events = client.listen(json!({})).await;
    server.stop();
    assert!(with_timeout("the end of the stream", events.next()).await.is_some());
    let (engine, _dir) = (server.server.engine().clone(), server.dir());
    let stopped = tokio::spawn(server.stopped());
    tokio::task::yield_now().await;
    assert!(!stopped.is_finished(), "work is still going on");
    gate.go.send();
    with_timeout("the shutdown", stopped).await.expect("no panic");
    let task = engine.reader().task(id.parse().expect("an id")).await.expect("readable").expect("still there");
    assert_eq!(task.status(), Status::Completed);
}

#[tokio::test]
async fn a_shutdown_waits_only_so_long() {
    let (gate, clock) = (Gate::new(), manual_clock());
    let config = Config { drain: 10 * SECOND, ..Config::default() };
    let tools = registry([gate.tool("slow").task(TaskMode::Always)]);
    let mut server = TestServer::start_with(tools, config, Arc::new(clock.clone())).await;
    let client = server.client();
    client.start("slow", json!({})).await;
    with_timeout("the start", gate.started.wait()).await;
    let mut events = client.listen(json!({})).await;
    server.stop();
    assert!(with_timeout("the end of the stream", events.next()).await.is_some());
    clock.advance(10 * SECOND);
    with_timeout("the shutdown", server.stopped()).await;
    assert!(!gate.stopped.is_sent(), "the next start takes it over");
}

#[tokio::test]
async fn while_shutting_down_tasks_can_be_read_but_no_call_begins() {
    let gate = Gate::new();
    let mut server = TestServer::start(registry([gate.tool("slow").task(TaskMode::Always), quick("quick")])).await;
    let client = server.client();
    let id = client.start("slow", json!({})).await;
    let mut events = client.listen(json!({})).await;
    server.stop();
    assert!(with_timeout("the end of the stream", events.next()).await.is_some());
    let refused = client.raw("tools/call", json!({"name": "quick", "arguments": {}})).await;
    assert_eq!((refused.status, refused.code()), (503, -31002));
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(client.get(&id).await["status"], "working");
    gate.go.send();
    with_timeout("the shutdown", server.stopped()).await;
}

#[tokio::test]
async fn a_call_that_was_being_sent_when_the_shutdown_began_is_refused() {
    let gate = Gate::new();
    let mut server = TestServer::start(registry([gate.tool("slow")])).await;
    let client = server.client();
    let message = client.message(1, "tools/call", json!({"name": "slow", "arguments": {}}));
    let body = message.to_string();
    let mut head = format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\nExpect: 100-continue\r\n", body.len());
    for (key, value) in client.headers(&message) {
        head.push_str(&format!("{key}: {value}\r\n"));
    }
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).await.expect("a connection");
    stream.write_all(format!("{head}\r\n").as_bytes()).await.expect("writable");
    let mut go_ahead = [0; 25];
    with_timeout("the server's word", stream.read_exact(&mut go_ahead)).await.expect("readable");
    assert_eq!(&go_ahead, b"HTTP/1.1 100 Continue\r\n\r\n");
    let mut events = client.listen(json!({})).await;
    server.stop();
    assert!(with_timeout("the end of the stream", events.next()).await.is_some());
    stream.write_all(body.as_bytes()).await.expect("writable");
    let mut response = String::new();
    with_timeout("the response", stream.read_to_string(&mut response)).await.expect("readable");
    let (head, body) = response.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    let message: Value = serde_json::from_str(body).expect("JSON");
    schema::check_response("tools/call", &message);
    assert_eq!(message["error"]["code"], -31002);
    assert_eq!(gate.runs(), 0);
    with_timeout("the shutdown", server.stopped()).await;
}

#[tokio::test]
async fn a_store_has_one_process_at_a_time() {
    let server = TestServer::start(registry([])).await;
    let error = SqliteStore::open(server.dir().path()).expect_err("it is in use").to_string();
    assert!(error.contains(&format!("in use by process {}:", std::process::id())), "{error}");
}
