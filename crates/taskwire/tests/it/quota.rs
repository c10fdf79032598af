//! How much a caller may have stored, and what is still done where the disk is nearly full.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use serde_json::{Value, json};
use taskwire::{
    clock::ManualClock,
    core::Limits,
    server::Config,
    tool::{Registry, TaskMode, Tool},
};

use crate::{
    kit::{Client, Response, SECOND, TempDir, TestServer, manual_clock, with_timeout, without_disk_reserve},
    legacy::kit::{LegacySession, session_of},
    store::TestStore,
    tasks::{Gate, accept, name_form, quick, registry, reopened, tool, two_callers, until_crash, with_limits},
    tool_harness::{HOUR, ToolHarness, follow_output, next_partial, not_found, output, text_of},
};

const ROOM: u64 = 20_000;
/// What a task may write, and then there is no room for [`call`].
const MUCH: usize = 18_000;

/// Two callers, each of which has little room.
fn little_room() -> Config {
    Config { auth: two_callers().auth, ..with_limits(Limits { stored_bytes_per_caller: ROOM, ..Limits::DEFAULT }) }
}

fn ann_and_bob(server: &TestServer) -> (Client, Client) {
    (server.streaming_client().with_token("ann-token"), server.streaming_client().with_token("bob-token"))
}

/// What an error of the protocol says, and its code.
fn error_of(response: &Response) -> (i64, String) {
    let answer = response.json();
    let code = answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("no error: {answer}"));
    (code, answer["error"]["message"].as_str().expect("a text").to_owned())
}

/// That there is too much, how much there may be, what counts, and where that is set.
fn is_quota_error(response: &Response) {
    let (code, message) = error_of(response);
    assert_eq!((response.status, code), (200, -31001), "{message}");
    for words in ["ended ones included", "other callers are not affected", "20000", "`limits.stored_bytes_per_caller`"] {
        assert!(message.contains(words), "{words}: {message}");
    }
}

/// Calls until there is room again; until then each call is refused for the want of it.
async fn until_room<F: Future<Output = Response>>(call: impl Fn() -> F) -> Value {
    let calling = async {
        loop {
            let response = call().await;
            if response.json().get("error").is_none() {
                return response.json()["result"].clone();
            }
            is_quota_error(&response);
        }
    };
    with_timeout("room", calling).await
}

/// A call that has something in it.
fn call() -> Value {
    json!({"name": "writes", "arguments": {"text": "x".repeat(3_000)}})
}

fn call_as_task() -> Value {
    let mut call = call();
    call["task"] = json!({});
    call
}

// What a caller has.

#[tokio::test]
async fn a_caller_that_has_stored_too_much_is_told_so_and_others_go_on() {
    let mut harness = ToolHarness::with(little_room()).await;
    let (ann, bob) = ann_and_bob(&harness.server);
    let (first, mut run) = harness.task_of(&ann).await;
    run.writes(&"x".repeat(MUCH)).await;
    is_quota_error(&ann.raw("tools/call", call()).await);
    let refused = run.tries(&"x".repeat(5_000)).await.expect_err("there is no room for that");
    let (_, others) = harness.task_of(&bob).await;
    others.writes(&"x".repeat(MUCH)).await;
    // What the tool makes of it is its own affair; work can always end.
    run.ends_with(Err(refused));
    let task = with_timeout("the end", ann.until(&first, "completed")).await;
    let text = task["result"]["content"][0]["text"].as_str().expect("a text").to_owned();
    assert!(text.contains("`limits.stored_bytes_per_caller`"), "{text}");
    is_quota_error(&ann.raw("tools/call", call()).await);
    assert_eq!(ann.get(&first).await["status"], "completed", "what is stored can be read");
    harness.clock.advance(HOUR);
    let made = until_room(|| ann.raw("tools/call", call())).await;
    assert_eq!(made["resultType"], "task", "what is forgotten does not count");
    assert_eq!(ann.error("tasks/get", json!({"taskId": first})).await, not_found());
}

#[tokio::test]
async fn a_session_of_a_caller_that_has_stored_too_much_is_told_so_and_others_go_on() {
    let mut harness = ToolHarness::with(little_room()).await;
    let (ann, bob) = (session_of(&harness.server, "ann-token").await, session_of(&harness.server, "bob-token").await);
    let first = ann.start("writes", json!({})).await;
    let mut run = harness.run().await;
    run.writes(&"x".repeat(MUCH)).await;
    is_quota_error(&ann.raw("tools/call", call_as_task()).await);
    run.ends("done");
    assert_eq!(ann.result(&first).await["content"][0]["text"], "done");
    is_quota_error(&ann.raw("tools/call", call_as_task()).await);
    is_quota_error(&harness.server.client().with_token("ann-token").raw("tools/call", call()).await);
    bob.start("writes", json!({})).await;
    harness.run().await.writes(&"x".repeat(MUCH)).await;
    harness.clock.advance(HOUR);
    until_room(|| ann.raw("tools/call", call_as_task())).await;
}

/// Writes once, whatever happens, and waits.
fn writes_half(gate: &Gate) -> Tool {
    tool("writes", gate, |gate, ctx| async move {
        if ctx.saved::<u64>()?.is_none() {
            ctx.text("x".repeat(MUCH / 2 - 1_000)).await?;
            ctx.checkpoint(&1).await?;
        }
        gate.started.send();
        gate.go.wait().await;
        Ok("done")
    })
    .task(TaskMode::Always)
    .retry_on_interrupt()
}

#[test]
fn what_a_caller_has_stored_counts_after_a_crash_too() {
    let (dir, clock, gate) = (Arc::new(TempDir::new()), manual_clock(), Gate::new());
    let tools = || registry([writes_half(&gate)]);
    until_crash(async {
        let server = TestServer::start_in(dir.clone(), tools(), little_room(), Arc::new(clock.clone())).await;
        let (ann, _) = ann_and_bob(&server);
        let first = ann.start("writes", json!({})).await;
        with_timeout("the output", gate.started.wait()).await;
        gate.go.send();
        with_timeout("the end", ann.until(&first, "completed")).await;
        ann.start("writes", json!({})).await;
        with_timeout("the output", gate.started.wait()).await;
        is_quota_error(&ann.raw("tools/call", call()).await);
    });
    until_crash(async {
        let server = reopened(&dir, tools(), little_room(), &clock).await;
        let (ann, bob) = ann_and_bob(&server);
        with_timeout("the second attempt", gate.started.wait()).await;
        is_quota_error(&ann.raw("tools/call", call()).await);
        bob.start("writes", json!({})).await;
        with_timeout("the output", gate.started.wait()).await;
        gate.go.send();
        gate.go.send();
        clock.advance(HOUR);
        until_room(|| ann.raw("tools/call", call())).await;
    });
}

#[tokio::test]
async fn answers_ends_and_cancellations_are_taken_from_a_caller_that_has_stored_too_much() {
    let mut harness = ToolHarness::with(little_room()).await;
    let (ann, _) = ann_and_bob(&harness.server);
    let (asks, mut run) = harness.task_of(&ann).await;
    let (runs, _running) = harness.task_of(&ann).await;
    let ctx = run.ctx.clone();
    let asking = tokio::spawn(async move { ctx.ask("name", name_form("Name?")).await });
    with_timeout("the question", ann.until(&asks, "input_required")).await;
    while run.tries(&"x".repeat(1_000)).await.is_ok() {}
    let mut said = 0;
    while run.ctx.status(said.to_string()).await.is_ok() {
        said += 1;
        assert!(said < 20, "words take room, too");
    }
    is_quota_error(&ann.raw("tools/call", call()).await);
    ann.answer(&asks, json!({"name": accept(&"A".repeat(5_000))})).await;
    assert!(with_timeout("the answer", asking).await.expect("no panic").is_ok(), "it was taken");
    run.ends("x".repeat(10_000));
    assert_eq!(with_timeout("the end", ann.until(&asks, "completed")).await["result"]["content"][0]["text"], "x".repeat(10_000));
    ann.cancel(&runs).await;
    assert_eq!(ann.get(&runs).await["status"], "cancelled");
}

#[tokio::test]
async fn calls_that_need_no_task_are_answered_however_much_their_caller_has_stored() {
    let gate = Gate::new();
    let slow = gate.tool("slow");
    let mut harness = ToolHarness::on(|writes, clock| {
        let tools = registry([writes.task(TaskMode::Always), quick("quick"), slow]);
        TestServer::start_with(tools, little_room(), Arc::new(clock))
    })
    .await;
    let (ann, _) = ann_and_bob(&harness.server);
    let (_, run) = harness.task_of(&ann).await;
    run.writes(&"x".repeat(MUCH)).await;
    // To the last byte: there is no room for any task.
    while run.tries("x").await.is_ok() {}
    is_quota_error(&ann.raw("tools/call", call()).await);
    let plain = harness.server.plain_client().with_token("ann-token");
    for client in [&ann, &plain] {
        assert_eq!(client.call("quick", json!({})).await["content"][0]["text"], "done");
    }
    // One that would become a task is held instead.
    let clock = harness.clock.clone();
    let later = async {
        gate.started.wait().await;
        clock.advance(Config::default().promote_after * 10);
        is_quota_error(&ann.raw("tools/call", call()).await);
        gate.go.send();
    };
    let (done, ()) = with_timeout("the result", async { tokio::join!(ann.call("slow", json!({})), later) }).await;
    assert_eq!((&done["resultType"], &done["content"][0]["text"]), (&json!("complete"), &json!("done")));
}

// The disk.

const RESERVE: u64 = 1_000_000;

/// On a disk whose free space the test has in its hand.
async fn on_disk(free: Arc<AtomicU64>, tools: Registry, clock: ManualClock) -> TestServer {
    let dir = Arc::new(TempDir::new());
    let store = TestStore { free: Some(free), ..TestStore::open(&dir) };
    let config = with_limits(Limits { disk_reserve_bytes: RESERVE, ..Limits::DEFAULT });
    TestServer::start_on(dir, store, tools, config, Arc::new(clock)).await
}

/// That it cannot be stored now, why, and when to come back.
fn is_put_off(response: &Response) {
    let (code, message) = error_of(response);
    assert_eq!((response.status, code, response.header("retry-after")), (503, -31002, Some("1")), "{message}");
    for words in ["disk", "try again later", "`limits.disk_reserve_bytes`"] {
        assert!(message.contains(words), "{words}: {message}");
    }
}

#[tokio::test]
async fn a_disk_that_is_nearly_full_is_left_to_work_that_ends() {
    let free = Arc::new(AtomicU64::new(100 * RESERVE));
    let its_free = free.clone();
    let mut harness =
        ToolHarness::on(|writes, clock| on_disk(its_free, registry([writes.task(TaskMode::Always), quick("quick")]), clock)).await;
    let client = harness.client.clone();
    let legacy = LegacySession::declaring(&harness.server, json!({"elicitation": {}})).await;
    let (one, mut first) = harness.task().await;
    let (two, mut second) = harness.task().await;
    let (three, third) = harness.task().await;
    let ctx = third.ctx.clone();
    let asking = tokio::spawn(async move { ctx.ask("name", name_form("Name?")).await });
    with_timeout("the question", client.until(&three, "input_required")).await;

    free.store(RESERVE - 1, Ordering::Release);
    is_put_off(&client.raw("tools/call", call()).await);
    is_put_off(&legacy.raw("tools/call", call_as_task()).await);
    first.writes("work goes on").await;
    assert_eq!(client.call("quick", json!({})).await["content"][0]["text"], "done", "so do calls that need no task");

    free.store(RESERVE / 2 - 1, Ordering::Release);
    let refused = first.tries("too much now").await.expect_err("there is no room for that");
    first.ends_with(Err(refused));
    let text = with_timeout("the end", client.until(&one, "completed")).await["result"]["content"][0]["text"].to_string();
    assert!(text.contains("`limits.disk_reserve_bytes`"), "{text}");

    free.store(RESERVE / 4 - 1, Ordering::Release);
    let answer = json!({"taskId": three, "inputResponses": {"name": accept("Ada")}});
    is_put_off(&client.raw("tasks/update", answer).await);
    second.ends("what it came to");
    let failed = with_timeout("the end", client.until(&two, "failed")).await;
    assert_eq!(failed["error"]["code"], -31002, "it has ended, if only in few words: {failed}");

    free.store(0, Ordering::Release);
    assert_eq!(client.get(&three).await["status"], "input_required", "what is there can be read");
    assert_eq!(legacy.get(&one).await["status"], "failed", "its result says so, which sessions call failed");

    free.store(100 * RESERVE, Ordering::Release);
    client.answer(&three, json!({"name": accept("Ada")})).await;
    assert!(with_timeout("the answer", asking).await.expect("no panic").is_ok());
    harness.task().await;
    legacy.start("writes", json!({})).await;

    free.store(0, Ordering::Release);
    client.cancel(&three).await;
    assert_eq!(client.get(&three).await["status"], "cancelled", "what takes no room is always done");
}

#[tokio::test]
async fn while_the_disk_is_full_nothing_begins_and_what_is_there_is_served() {
    let full = Arc::new(AtomicBool::new(false));
    let disk = full.clone();
    let mut harness = ToolHarness::on(|writes, clock| async move {
        let dir = Arc::new(TempDir::new());
        let store = TestStore { full: disk, ..TestStore::open(&dir) };
        let tools = registry([writes.task(TaskMode::Always), quick("quick")]);
        TestServer::start_on(dir, store, tools, without_disk_reserve(Config::default()), Arc::new(clock)).await
    })
    .await;
    let (client, clock) = (harness.client.clone(), harness.clock.clone());
    let (id, mut run) = harness.task().await;
    run.writes("before").await;
    let mut events = follow_output(&client, &id, 0).await;
    assert_eq!(text_of(&next_partial(&mut events).await["content"]), "before");

    full.store(true, Ordering::Release);
    for _ in 0..2 {
        let refused = client.raw("tools/call", call()).await;
        let (code, message) = error_of(&refused);
        assert_eq!((refused.status, code, refused.header("retry-after")), (503, -31002, Some("1")), "{message}");
        assert!(message.contains("disk is full") && message.contains("try again later"), "{message}");
    }
    assert_eq!(client.call("quick", json!({})).await["content"][0]["text"], "done", "it needs no room");
    assert_eq!(client.get(&id).await["status"], "working");
    assert_eq!(output(&client, &id).await, "before");
    let ready = with_timeout("a sign of life", client.bytes(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")).await;
    assert_eq!(ready.status, 200, "it answers");
    let ctx = run.ctx.clone();
    let writing = tokio::spawn(async move {
        ctx.text("kept").await?;
        ctx.flush().await
    });

    full.store(false, Ordering::Release);
    let again = async {
        loop {
            let response = client.raw("tools/call", call()).await;
            if response.status == 200 {
                return response.json()["result"]["taskId"].clone();
            }
            clock.advance(SECOND);
        }
    };
    let other = with_timeout("room", again).await;
    assert_eq!(client.get(other.as_str().expect("an id")).await["status"], "working");
    assert!(with_timeout("the output", writing).await.expect("no panic").is_ok(), "the tool had to wait, and no more");
    assert_eq!(text_of(&next_partial(&mut events).await["content"]), "kept", "the stream goes on");
    run.ends("done");
    with_timeout("the end", client.until(&id, "completed")).await;
}
