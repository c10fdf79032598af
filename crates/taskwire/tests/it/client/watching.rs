//! How a client watches tasks of the modern era: by a listen stream, by reading where nothing is pushed, and by polling now and then
//! in both cases. Against scripts, then against our own server.

use std::{convert::Infallible, sync::Arc, time::Duration};

use futures_util::StreamExt as _;
use serde_json::{Value, json};
use taskwire::{
    client::{Call, Client, ConnectionState, Error, Event, Limits, Options, Reference, Status, Target, Timing},
    clock::{Clock, SystemClock},
    tool::{TaskMode, ToolError},
};

use super::{
    between::Between,
    script::{
        KEY, LISTEN, Listen, MS, READ, SECOND, SUBSCRIPTION, ScriptedRequest, ScriptedServer, Sse, all, brief, complete, completed,
        created, end, everything, fails, next, next_briefs, page, rest, start_job, task, text_result, while_waiting, with_members,
    },
};
use crate::{
    kit::{PARTIALS, TASKS, TestServer, with_timeout},
    tasks::{registry, tool},
    tool_harness::{ToolHarness, uncoalesced},
};

const WAIT_MS: &str = "dev.taskwire/waitMs";
const TASK_VERSION: &str = "dev.taskwire/version";

/// A call with the task `t1` whose listen request has come and waits for its response.
async fn asked_to_push(script: &ScriptedServer, client: &Client) -> (Call, ScriptedRequest) {
    let mut call = script.run(client, "t1").await;
    assert_eq!(next_briefs(&mut call, 1).await, ["task t1"]);
    let asked = while_waiting(&mut call, script.expect(LISTEN)).await;
    (call, asked)
}

/// A call with the task `t1` of a server that pushes nothing.
async fn polled(script: &ScriptedServer, client: &Client) -> Call {
    let (call, asked) = asked_to_push(script, client).await;
    asked.error(404, -32601, "no such method", Value::Null).await;
    call
}

/// A notification of a listen stream as an event.
fn event(listen: &Listen, method: &str, mut params: Value) -> String {
    params["_meta"] = json!({SUBSCRIPTION: listen.id});
    format!("data: {}\n\n", json!({"jsonrpc": "2.0", "method": method, "params": params}))
}

/// A call that is no task, has sent progress, and whose stream goes on.
async fn held(script: &ScriptedServer, client: &Client) -> (Call, Sse) {
    let call = async {
        let asked = script.expect("tools/call").await;
        let token = asked.meta()["progressToken"].clone();
        let mut sse = asked.sse().await;
        sse.notify("notifications/progress", json!({"progressToken": token, "progress": 1})).await;
        sse
    };
    start_job(client, call).await
}

/// Calls with `t1` and `t2` that are watched on one stream, on which more output of `t1` has come than a client has room for.
pub(super) async fn flooded(script: &ScriptedServer) -> (Client, [Call; 2], Listen, Vec<String>) {
    let limits = Limits { buffer_bytes: 2_000, ..Limits::default() };
    let client = script.client_with(Options { limits, ..script.options() }, everything()).await;
    let (one, mut first) = script.watched(&client, "t1").await;
    let (two, mut listen) = script.watched(&client, "t2").await;
    first.closed().await;
    let texts: Vec<String> = (0..200).map(|n| format!("{n:0>300}")).collect();
    for (seq, said) in (0..).zip(&texts) {
        listen.partial("t1", seq, said).await;
    }
    (client, [one, two], listen, texts)
}

fn reference(value: Value) -> Reference {
    serde_json::from_value(value).expect("a reference")
}

// Pushed (digest B6, B15.4, B16).

#[tokio::test]
async fn states_and_output_are_pushed_on_one_stream() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    assert_eq!(listen.wanted, json!({"taskIds": ["t1"], PARTIALS: [{"taskId": "t1", "fromSeq": 0}]}));
    let begun = with_members(task("t1", "working"), json!({"statusMessage": "begun"}));
    listen.task(begun.clone()).await;
    listen.partial("t1", 0, "a").await;
    listen.sse.comment().await;
    listen.task(begun).await;
    listen.partial("t1", 1, "b").await;
    listen.task(completed("t1", "end")).await;
    // A status that has not changed does not come again.
    assert_eq!(all(&mut call).await, ["working: begun", "0 a", "1 b", "done: end"]);
    listen.closed().await;
    assert_eq!(script.seen(), ["server/discover", "tools/list", "tools/call", LISTEN]);
}

#[tokio::test]
async fn a_task_ends_with_its_error_or_cancelled_as_its_server_says() {
    let failed =
        with_members(task("t1", "failed"), json!({"error": {"code": -32603, "message": "broken", "data": [1]}, "statusMessage": "broke"}));
    let tool_failed = with_members(task("t1", "completed"), json!({"result": {"content": [super::script::text("no")], "isError": true}}));
    let cancelled = task("t1", "cancelled");
    for (state, expected) in [(failed, "failed: -32603 broken"), (tool_failed, "tool failed: no"), (cancelled, "cancelled")] {
        let script = ScriptedServer::start().await;
        let client = script.client().await;
        let (mut call, mut listen) = script.watched(&client, "t1").await;
        listen.task(state).await;
        assert_eq!(rest(&mut call).await, [expected]);
    }
}

#[tokio::test]
async fn a_run_is_a_stream() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (call, mut listen) = script.watched(&client, "t1").await;
    listen.partial("t1", 0, "a").await;
    listen.task(completed("t1", "end")).await;
    let events = with_timeout("the end", call.map(|event| brief(&event.expect("no error"))).collect::<Vec<_>>()).await;
    assert_eq!(events, ["0 a", "done: end"]);
}

#[tokio::test]
async fn nothing_is_watched_that_nobody_wants_to_see() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let call = script.run(&client, "t1").await;
    assert_eq!(call.reference().and_then(|reference| reference.task).as_deref(), Some("t1"));
    let (snapshot, ()) = tokio::join!(client.task("t1"), script.answers("tasks/get", complete(task("t1", "working"))));
    assert_eq!(snapshot.expect("a view").status, Status::Working);
    assert_eq!(script.seen(), ["server/discover", "tools/list", "tools/call", "tasks/get"]);
}

#[tokio::test]
async fn what_is_pushed_of_other_tasks_is_passed_over() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    listen.partial("t2", 0, "not ours").await;
    listen.task(completed("t2", "not ours")).await;
    listen.notify("notifications/nobody/knows", json!({"taskId": "t1"})).await;
    listen.notify("notifications/tasks", json!({"taskId": "t1", "status": "asleep"})).await;
    listen.notify("notifications/tasks/partial", json!({"taskId": "t1", "seq": -1, "content": []})).await;
    listen.partial("t1", 0, "ours").await;
    listen.task(completed("t1", "end")).await;
    assert_eq!(rest(&mut call).await, ["0 ours", "done: end"]);
}

#[tokio::test]
async fn a_task_that_is_over_when_it_is_named_is_looked_at() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let over = with_members(created("t1"), json!({"status": "completed"}));
    let (mut call, ()) = start_job(&client, script.answers("tools/call", over)).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["task t1"]);
    script.always("tasks/get", complete(completed("t1", "end")));
    script.always(READ, page(0, &["a"], true));
    script.may_remain(LISTEN);
    assert_eq!(rest(&mut call).await, ["0 a", "done: end"]);
}

// Output that comes twice, in disorder, or not at all (SEP-2679).

#[tokio::test]
async fn output_that_comes_again_is_told_once() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    for (seq, said) in [(0, "a"), (0, "a"), (1, "b"), (0, "a"), (1, "b"), (2, "c"), (2, "c")] {
        listen.partial("t1", seq, said).await;
    }
    listen.task(completed("t1", "end")).await;
    assert_eq!(rest(&mut call).await, ["0 a", "1 b", "2 c", "done: end"]);
    assert_eq!(script.count(READ), 0);
}

#[tokio::test]
async fn output_that_is_missing_is_fetched_and_told_in_order() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    listen.partial("t1", 0, "a").await;
    listen.partial("t1", 2, "c").await;
    assert_eq!(next_briefs(&mut call, 1).await, ["0 a"]);
    let read = while_waiting(&mut call, script.expect_of(READ, "t1")).await;
    assert_eq!(read.params()["fromSeq"], 1);
    assert!(read.params().get("waitMs").is_none(), "it is there to be read: {read:?}");
    // What was only late comes after all, and so does what was fetched.
    listen.partial("t1", 1, "b").await;
    read.result(page(1, &["b", "c"], false)).await;
    listen.partial("t1", 3, "d").await;
    listen.task(completed("t1", "end")).await;
    assert_eq!(rest(&mut call).await, ["1 b", "2 c", "3 d", "done: end"]);
    assert_eq!(script.count(READ), 1);
}

#[tokio::test]
async fn output_that_cannot_be_had_is_told_as_a_gap() {
    let cases = [
        (Some(page(3, &["d"], false)), vec!["gap 1..3", "3 d", "4 e", "done: end"]),
        (Some(page(1, &[], false)), vec!["gap 1..4", "4 e", "done: end"]),
        (None, vec!["gap 1..4", "4 e", "done: end"]),
    ];
    for (answer, expected) in cases {
        let script = ScriptedServer::start().await;
        let client = script.client().await;
        let (mut call, mut listen) = script.watched(&client, "t1").await;
        listen.partial("t1", 0, "a").await;
        listen.partial("t1", 4, "e").await;
        assert_eq!(next_briefs(&mut call, 1).await, ["0 a"]);
        let read = while_waiting(&mut call, script.expect_of(READ, "t1")).await;
        match answer {
            Some(answer) => read.result(answer).await,
            None => read.error(200, -32603, "the log is damaged", Value::Null).await,
        }
        listen.task(completed("t1", "end")).await;
        assert_eq!(rest(&mut call).await, expected);
    }
}

#[tokio::test]
async fn a_gap_does_not_swallow_what_has_come() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    listen.partial("t1", 0, "a").await;
    listen.partial("t1", 2, "c").await;
    assert_eq!(next_briefs(&mut call, 1).await, ["0 a"]);
    // The server has nothing before 3 any more, but what it pushed is here.
    while_waiting(&mut call, script.expect_of(READ, "t1")).await.result(page(3, &["d"], false)).await;
    listen.task(completed("t1", "end")).await;
    assert_eq!(rest(&mut call).await, ["gap 1..2", "2 c", "3 d", "done: end"]);
}

#[tokio::test]
async fn a_stream_that_begins_later_than_asked_tells_what_is_lost() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let mut call = script.run(&client, "t1").await;
    assert_eq!(next_briefs(&mut call, 1).await, ["task t1"]);
    let honoured = json!({"taskIds": ["t1"], PARTIALS: [{"taskId": "t1", "fromSeq": 5, "nextSeq": 6}]});
    let mut listen = while_waiting(&mut call, script.listen_as(|_| honoured)).await;
    listen.partial("t1", 5, "f").await;
    listen.task(completed("t1", "end")).await;
    assert_eq!(rest(&mut call).await, ["gap 0..5", "5 f", "done: end"]);
    assert_eq!(script.count(READ), 0);
}

#[tokio::test]
async fn output_that_comes_after_the_end_is_dropped() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    listen.partial("t1", 0, "a").await;
    let partial = json!({"taskId": "t1", "seq": 1, "content": [super::script::text("late")]});
    // In one piece, so that both are there at once.
    let end = event(&listen, "notifications/tasks", completed("t1", "end"));
    let late = event(&listen, "notifications/tasks/partial", partial);
    listen.sse.raw(format!("{end}{late}").as_bytes()).await;
    assert_eq!(rest(&mut call).await, ["0 a", "done: end"]);
}

#[tokio::test]
async fn a_partial_keeps_its_blocks() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    let blocks = json!([{"type": "text", "text": "a", "annotations": {"audience": ["user"]}}, {"type": "image", "data": "eA==", "mimeType": "image/png"}]);
    listen.notify("notifications/tasks/partial", json!({"taskId": "t1", "seq": 0, "content": blocks})).await;
    let Some(Event::Chunk(partial)) = next(&mut call).await else { panic!("a partial") };
    assert_eq!((partial.seq, Value::Array(partial.blocks()), partial.text().as_str()), (0, blocks, "a"));
    assert_eq!(call.reference().map(|reference| reference.next), Some(1));
}

// Streams that end.

#[tokio::test]
async fn however_a_stream_ends_it_is_opened_again_from_the_next_chunk() {
    for how in ["cut", "reset", "ended", "cancelled"] {
        let script = ScriptedServer::start().await;
        let client = script.client().await;
        let (mut call, mut listen) = script.watched(&client, "t1").await;
        listen.partial("t1", 0, "a").await;
        listen.partial("t1", 1, "b").await;
        assert_eq!(next_briefs(&mut call, 2).await, ["0 a", "1 b"]);
        // Until the next stream is there, the task is asked for.
        script.may_remain("tasks/get");
        script.may_remain(READ);
        match how {
            "cut" => listen.cut(),
            "reset" => listen.sse.reset(),
            "ended" => listen.end().await,
            _ => {
                let params = json!({"requestId": listen.id, "reason": "shutting down"});
                listen.notify("notifications/cancelled", params).await;
                listen.closed().await;
            }
        }
        let again = while_waiting(&mut call, script.listen());
        let mut listen = script.as_time_passes("another stream", 20 * MS, again).await;
        assert_eq!((listen.task_ids(), listen.asked_from("t1")), (vec!["t1".to_owned()], Some(2)), "{how}");
        // The server may send a chunk again.
        listen.partial("t1", 1, "b").await;
        listen.partial("t1", 2, "c").await;
        listen.task(completed("t1", "end")).await;
        assert_eq!(rest(&mut call).await, ["2 c", "done: end"], "{how}");
    }
}

#[tokio::test]
async fn a_lost_stream_and_its_return_are_told() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut call, listen) = script.watched(&client, "t1").await;
    script.may_remain("tasks/get");
    script.may_remain(READ);
    listen.cut();
    let Some(Event::Connection(ConnectionState::Lost { reason, retry_in: again_in })) = next(&mut call).await else { panic!("the loss") };
    assert!(!reason.is_empty() && again_in >= 125 * MS && again_in <= 250 * MS, "{reason}, again in {again_in:?}");
    let mut listen = script.as_time_passes("another stream", 20 * MS, script.listen()).await;
    assert_eq!(next(&mut call).await.as_ref().map(brief).as_deref(), Some("back"));
    listen.task(completed("t1", "end")).await;
    assert_eq!(all(&mut call).await, ["done: end"]);
}

#[tokio::test]
async fn what_happened_while_there_was_no_stream_is_asked_for() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    listen.partial("t1", 0, "a").await;
    assert_eq!(next_briefs(&mut call, 1).await, ["0 a"]);
    script.may_remain(LISTEN);
    script.may_remain(READ);
    listen.cut();
    // Without waiting for another stream.
    while_waiting(&mut call, script.expect("tasks/get")).await.result(complete(completed("t1", "end"))).await;
    let reads = async {
        let asked =
            script.expect_where("a read that is answered at once", |asked| asked.kind() == READ && asked.params().get("waitMs").is_none());
        let asked = asked.await;
        assert_eq!(asked.params()["fromSeq"], 1);
        asked.result(page(1, &["b", "c"], true)).await;
    };
    let (briefs, ()) = tokio::join!(rest(&mut call), reads);
    assert_eq!(briefs, ["1 b", "2 c", "done: end"]);
}

// Looked at now and then (C-59).

#[tokio::test]
async fn a_task_that_is_pushed_is_looked_at_now_and_then() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    let state = with_members(task("t1", "working"), json!({"statusMessage": "begun"}));
    listen.task(state.clone()).await;
    assert_eq!(next(&mut call).await.as_ref().map(brief).as_deref(), Some("working: begun"));
    for n in 0..2 {
        let before = script.clock.now();
        let get = script.as_time_passes("a look", 100 * MS, while_waiting(&mut call, script.expect("tasks/get"))).await;
        let passed = get.at.since(before);
        assert!(passed >= 30 * SECOND, "look {n} after {passed:?}");
        assert!(get.meta().get(WAIT_MS).is_none(), "{get:?}");
        // The second one finds what was never pushed.
        get.result(complete(if n == 0 { state.clone() } else { completed("t1", "end") })).await;
    }
    // Nobody knows by the look alone whether there is more output.
    let briefs = tokio::select! {
        briefs = rest(&mut call) => briefs,
        never = reads(&script, "t1", &[]) => match never {},
    };
    assert_eq!(briefs, ["done: end"]);
}

#[tokio::test]
async fn a_stream_that_has_said_nothing_yet_is_not_relied_on() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut call, _listen) = script.watched(&client, "t1").await;
    // It ended before the stream began, and the server does not say so by itself.
    let before = script.clock.now();
    let get = script.as_time_passes("a look", 20 * MS, while_waiting(&mut call, script.expect("tasks/get"))).await;
    assert!(get.at.since(before) < 20 * SECOND, "{:?}", get.at.since(before));
    get.result(complete(completed("t1", "end"))).await;
    // Nobody knows by the look alone whether there is more output.
    let briefs = tokio::select! {
        briefs = rest(&mut call) => briefs,
        never = reads(&script, "t1", &[]) => match never {},
    };
    assert_eq!(briefs, ["done: end"]);
}

// Asked for where nothing is pushed (digest B15.3).

#[tokio::test]
async fn a_task_that_is_not_acknowledged_is_polled_as_often_as_its_server_wants() {
    let script = ScriptedServer::start().await;
    let client = script.client_with(script.options(), json!({TASKS: {}})).await;
    let mut call = script.run(&client, "t1").await;
    assert_eq!(next_briefs(&mut call, 1).await, ["task t1"]);
    let mut before = script.clock.now();
    let _listen = while_waiting(&mut call, script.listen_as(|_| json!({"taskIds": ["t9"]}))).await;
    // What the server says, what is waited at least, and what is waited at most: no server can have all or nothing.
    let paces = [(5_000, 5_000, 60_000), (1, 100, 60_000), (10_000_000, 60_000, 1_000_000), (1_000, 0, 0)];
    let mut at_least = 1_000;
    let mut at_most = 60_000;
    let mut said = 1_000;
    // A poll that is under way when the client learns that nothing is pushed does not count: it polls once more, at once.
    let mut one_more = true;
    for (says, next_least, next_most) in paces {
        let look = || script.expect("tasks/get");
        let mut get = script.as_time_passes("a look", 50 * MS, while_waiting(&mut call, look())).await;
        if get.at.since(before) < Duration::from_millis(at_least) && std::mem::take(&mut one_more) {
            before = script.clock.now();
            get.result(complete(with_members(task("t1", "working"), json!({"pollIntervalMs": said})))).await;
            get = script.as_time_passes("a look", 50 * MS, while_waiting(&mut call, look())).await;
        }
        said = says;
        let passed = get.at.since(before);
        assert!(
            passed >= Duration::from_millis(at_least) && passed <= Duration::from_millis(at_most),
            "{passed:?}, not {at_least}..{at_most} ms"
        );
        assert!(get.meta().get(WAIT_MS).is_none(), "nobody offered to wait: {get:?}");
        before = script.clock.now();
        get.result(complete(with_members(task("t1", "working"), json!({"pollIntervalMs": says})))).await;
        (at_least, at_most) = (next_least, next_most);
    }
    let get = script.as_time_passes("a look", 50 * MS, while_waiting(&mut call, script.expect("tasks/get"))).await;
    get.result(complete(completed("t1", "end"))).await;
    assert_eq!(rest(&mut call).await, ["done: end"]);
}

#[tokio::test]
async fn a_server_that_does_not_push_is_polled() {
    for how in ["no method", "no stream", "an error", "a page"] {
        let script = ScriptedServer::start().await;
        let client = script.client_with(script.options(), json!({TASKS: {}})).await;
        let (mut call, asked) = asked_to_push(&script, &client).await;
        match how {
            "no method" => asked.error(404, -32601, "no such method", Value::Null).await,
            "no stream" => asked.result(json!({"resultType": "complete"})).await,
            "an error" => asked.error(200, -32603, "not today", Value::Null).await,
            _ => asked.text(404, "text/html", "<html></html>").await,
        }
        let get = script.as_time_passes("a look", 50 * MS, while_waiting(&mut call, script.expect("tasks/get"))).await;
        get.result(complete(completed("t1", "end"))).await;
        assert_eq!(rest(&mut call).await, ["done: end"], "{how}");
        // Only a fault may pass.
        script.may_remain(LISTEN);
        assert!(script.count(LISTEN) == 1 || how == "an error", "{how}");
    }
}

#[tokio::test]
async fn a_second_run_of_a_server_that_does_not_push_is_polled_too() {
    let script = ScriptedServer::start().await;
    let client = script.client_with(script.options(), json!({TASKS: {}})).await;
    let mut first = polled(&script, &client).await;
    let get = script.as_time_passes("a look", 50 * MS, while_waiting(&mut first, script.expect_of("tasks/get", "t1"))).await;
    let mut second = script.run(&client, "t2").await;
    assert_eq!(next_briefs(&mut second, 1).await, ["task t2"]);
    // It may try once more to listen.
    script.always("subscriptions/listen", json!({"resultType": "complete"}));
    let other = script.as_time_passes("another look", 50 * MS, while_waiting(&mut second, script.expect_of("tasks/get", "t2"))).await;
    other.result(complete(completed("t2", "second"))).await;
    assert_eq!(rest(&mut second).await, ["done: second"]);
    get.result(complete(completed("t1", "first"))).await;
    assert_eq!(rest(&mut first).await, ["done: first"]);
}

#[tokio::test]
async fn where_nothing_is_pushed_states_and_output_are_waited_for_at_the_server() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let mut call = polled(&script, &client).await;
    let read = while_waiting(&mut call, script.expect_of(READ, "t1")).await;
    assert_eq!((&read.params()["fromSeq"], &read.params()["waitMs"]), (&json!(0), &json!(20_000)));
    read.result(page(0, &["a"], false)).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["0 a"]);
    let held = while_waiting(&mut call, script.expect_of(READ, "t1")).await;
    assert_eq!((&held.params()["fromSeq"], &held.params()["waitMs"]), (&json!(1), &json!(20_000)));
    for (known, version) in [(Value::Null, 7), (json!(7), 8)] {
        let get = script.as_time_passes("a look", 20 * MS, while_waiting(&mut call, script.expect("tasks/get"))).await;
        assert_eq!((&get.meta()[WAIT_MS], &get.meta()[TASK_VERSION]), (&json!(20_000), &known));
        let meta = json!({"_meta": {TASK_VERSION: version}});
        let state = if version == 7 { task("t1", "working") } else { completed("t1", "end") };
        get.result(complete(with_members(state, meta))).await;
    }
    // The client reads the rest of the output before it delivers the end.
    let reads = async {
        let asked = script.expect_of(READ, "t1").await;
        assert_eq!(asked.params()["fromSeq"], 1);
        asked.result(page(1, &["b"], true)).await;
    };
    let (briefs, ()) = tokio::join!(rest(&mut call), reads);
    assert_eq!(briefs, ["1 b", "done: end"]);
    held.closed_by_client().await;
}

#[tokio::test]
async fn output_that_was_read_to_its_end_is_not_read_again() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let mut call = polled(&script, &client).await;
    while_waiting(&mut call, script.expect_of(READ, "t1")).await.result(page(0, &["a"], true)).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["0 a"]);
    let get = script.as_time_passes("a look", 20 * MS, while_waiting(&mut call, script.expect("tasks/get"))).await;
    get.result(complete(completed("t1", "end"))).await;
    assert_eq!(rest(&mut call).await, ["done: end"]);
    assert_eq!(script.count(READ), 1);
}

#[tokio::test]
async fn a_task_that_its_server_has_forgotten_ends_the_run() {
    let script = ScriptedServer::start().await;
    let client = script.client_with(script.options(), json!({TASKS: {}})).await;
    let mut call = polled(&script, &client).await;
    let get = script.as_time_passes("a look", 50 * MS, while_waiting(&mut call, script.expect("tasks/get"))).await;
    get.error(200, -32602, "Task not found", Value::Null).await;
    let error = fails(&mut call).await;
    assert!(matches!(&error, Error::TaskNotFound { task } if task == "t1"), "{error:?}");
}

#[tokio::test]
async fn an_answer_about_another_task_is_no_answer() {
    let script = ScriptedServer::start().await;
    let client = script.client_with(script.options(), json!({TASKS: {}})).await;
    let mut call = polled(&script, &client).await;
    let get = script.as_time_passes("a look", 50 * MS, while_waiting(&mut call, script.expect("tasks/get"))).await;
    get.result(complete(completed("t2", "not ours"))).await;
    let error = fails(&mut call).await;
    assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
}

// Many calls, one stream.

#[tokio::test]
async fn ten_runs_share_one_stream() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let ids: Vec<String> = (0..10).map(|n| format!("t{n}")).collect();
    let mut runs = Vec::new();
    let mut current: Option<Listen> = None;
    for (n, id) in ids.iter().enumerate() {
        let (call, mut listen) = script.watched(&client, id).await;
        assert_eq!(listen.task_ids(), ids[..=n]);
        for (before, id) in ids[..=n].iter().enumerate() {
            assert_eq!(listen.asked_from(id), Some(u64::from(before < n)), "{id}");
        }
        // The old one goes when the new one is acknowledged.
        if let Some(mut old) = current.take() {
            old.closed().await;
        }
        listen.partial(id, 0, &format!("{id} begins")).await;
        runs.push(call);
        // That it has come is seen by who waits for it.
        let last = runs.last_mut().expect("a run");
        assert_eq!(next_briefs(last, 1).await, [format!("0 {id} begins")]);
        current = Some(listen);
    }
    let mut listen = current.expect("a stream");
    for seq in 1..4 {
        for id in &ids {
            listen.partial(id, seq, &format!("{id} goes on")).await;
        }
    }
    for id in &ids {
        listen.task(completed(id, &format!("{id} ends"))).await;
    }
    for (id, call) in ids.iter().zip(&mut runs) {
        let expected = [format!("1 {id} goes on"), format!("2 {id} goes on"), format!("3 {id} goes on"), format!("done: {id} ends")];
        assert_eq!(rest(call).await, expected);
    }
    listen.closed().await;
    assert_eq!((script.count(LISTEN), script.count(READ), script.count("tasks/get")), (10, 0, 0));
}

#[tokio::test]
async fn the_stream_of_others_stays_when_one_run_ends() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut one, mut first) = script.watched(&client, "t1").await;
    let (mut two, mut listen) = script.watched(&client, "t2").await;
    first.closed().await;
    listen.task(completed("t1", "one")).await;
    assert_eq!(rest(&mut one).await, ["done: one"]);
    listen.partial("t2", 0, "a").await;
    listen.task(completed("t2", "two")).await;
    assert_eq!(rest(&mut two).await, ["0 a", "done: two"]);
    listen.closed().await;
    assert_eq!(script.count(LISTEN), 2);
}

// More than is read.

/// Answers reads of a task's output, for as long as there are any.
async fn reads(script: &ScriptedServer, id: &str, texts: &[String]) -> Infallible {
    loop {
        let asked = script.expect_of(READ, id).await;
        let from = asked.params()["fromSeq"].as_u64().expect("a number");
        let left: Vec<&str> = texts.iter().skip(usize::try_from(from).expect("small")).map(String::as_str).collect();
        asked.result(page(from, &left, true)).await;
    }
}

#[tokio::test]
async fn output_that_nobody_reads_is_left_at_the_server_and_fetched_when_it_is_wanted() {
    let script = ScriptedServer::start().await;
    let (_client, [mut one, mut two], mut listen, texts) = flooded(&script).await;
    listen.task(completed("t1", "end")).await;
    // The others are not held up by it.
    listen.partial("t2", 0, "free").await;
    assert_eq!(next_briefs(&mut two, 1).await, ["0 free"]);
    let briefs = tokio::select! {
        briefs = rest(&mut one) => briefs,
        never = reads(&script, "t1", &texts) => match never {},
    };
    let mut expected: Vec<String> = texts.iter().enumerate().map(|(seq, said)| format!("{seq} {said}")).collect();
    expected.push("done: end".to_owned());
    assert_eq!(briefs, expected);
    assert!(script.count(READ) >= 1);
    listen.task(completed("t2", "end")).await;
    assert_eq!(rest(&mut two).await, ["done: end"]);
}

// Leaving and coming back.

#[tokio::test]
async fn a_run_that_was_left_is_taken_up_from_its_reference_by_another_client() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    for (seq, said) in [(0, "a"), (1, "b"), (2, "c")] {
        listen.partial("t1", seq, said).await;
    }
    // What came and was not handed out is not counted.
    assert_eq!(next_briefs(&mut call, 2).await, ["0 a", "1 b"]);
    let left = call.detach().expect("a task");
    assert_eq!((left.server.as_str(), left.task.as_deref(), left.tool.as_str(), left.next), (script.url().as_str(), Some("t1"), "job", 2));
    assert_eq!(left.to_string(), format!("{}#t1", script.url()));
    listen.closed().await;
    assert_eq!(script.count("tasks/cancel"), 0, "the task goes on");

    let again: Reference = serde_json::from_str(&serde_json::to_string(&left).expect("JSON")).expect("a reference");
    assert_eq!(again, left);
    script.always("tasks/get", complete(task("t1", "working")));
    let other = script.client().await;
    let mut call = with_timeout("the task", other.attach(&again)).await.expect("a run");
    assert_eq!(next_briefs(&mut call, 1).await, ["task t1"]);
    let mut listen = while_waiting(&mut call, script.listen()).await;
    assert_eq!(listen.wanted, json!({"taskIds": ["t1"], PARTIALS: [{"taskId": "t1", "fromSeq": 2}]}));
    listen.partial("t1", 2, "c").await;
    listen.task(completed("t1", "end")).await;
    assert_eq!(rest(&mut call).await, ["2 c", "done: end"]);
}

#[tokio::test]
async fn a_task_that_ended_meanwhile_is_told_to_its_end() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    script.always("tasks/get", complete(completed("t1", "end")));
    script.always(READ, page(2, &["c", "d"], true));
    script.may_remain(LISTEN);
    let left = reference(json!({"server": script.url(), "era": "modern", "task": "t1", "tool": "job", "next": 2}));
    let mut call = with_timeout("the task", client.attach(&left)).await.expect("a run");
    assert_eq!(rest(&mut call).await, ["task t1", "2 c", "3 d", "done: end"]);
}

#[tokio::test]
async fn a_call_whose_answer_was_never_seen_is_made_again_under_its_key() {
    for becomes in [created("t1"), text_result("end")] {
        let script = ScriptedServer::start().await;
        let client = script.client().await;
        let left = json!({"server": script.url(), "era": "modern", "tool": "job", "key": "key-of-before", "args": {"b": [1, 2], "a": "é"}});
        let playing = async {
            let asked = script.expect("tools/call").await;
            assert_eq!(asked.meta()[KEY], "key-of-before");
            assert_eq!((&asked.params()["name"], &asked.params()["arguments"]), (&json!("job"), &json!({"b": [1, 2], "a": "é"})));
            asked.result(becomes.clone()).await;
        };
        let left = reference(left);
        let (call, ()) = tokio::join!(client.attach(&left), playing);
        let mut call = call.expect("a run");
        if becomes["resultType"] == "task" {
            assert_eq!(next_briefs(&mut call, 1).await, ["task t1"]);
            let mut listen = while_waiting(&mut call, script.listen()).await;
            listen.task(completed("t1", "end")).await;
        }
        assert_eq!(rest(&mut call).await, ["done: end"]);
    }
}

#[tokio::test]
async fn a_call_whose_answer_was_never_seen_is_not_made_again_where_that_would_run_it_twice() {
    let script = ScriptedServer::start().await;
    let client = script.client_with(script.options(), json!({TASKS: {}})).await;
    let left = json!({"server": script.url(), "era": "modern", "tool": "job", "key": "key-of-before", "args": {}});
    let error = with_timeout("the refusal", client.attach(&reference(left))).await.expect_err("an error");
    assert!(matches!(&error, Error::LostCall { tool, .. } if tool == "job"), "{error:?}");
    assert_eq!(script.count("tools/call"), 0);
}

#[tokio::test]
async fn who_leaves_a_call_that_is_no_task_gives_it_up() {
    let script = ScriptedServer::start().await;
    script.may_remain("notifications/cancelled");
    let client = script.client().await;
    let (call, mut sse) = held(&script, &client).await;
    assert!(call.detach().is_none());
    sse.closed().await;
}

#[tokio::test]
async fn who_does_not_wait_for_the_start_gives_the_call_up() {
    let script = ScriptedServer::start().await;
    script.may_remain("notifications/cancelled");
    let client = script.client().await;
    let asked = tokio::select! {
        call = client.start("job", json!({})) => panic!("too early: {call:?}"),
        asked = script.expect("tools/call") => asked,
    };
    asked.closed_by_client().await;
}

// Calling off.

#[tokio::test]
async fn a_task_is_cancelled_by_asking_and_ends_when_its_server_says_so() {
    for (state, expected) in [
        (with_members(task("t1", "cancelled"), json!({"statusMessage": "enough"})), "cancelled: enough"),
        (completed("t1", "too late"), "done: too late"),
    ] {
        let script = ScriptedServer::start().await;
        let client = script.client().await;
        let (mut call, mut listen) = script.watched(&client, "t1").await;
        let cancel = async {
            let asked = script.expect("tasks/cancel").await;
            assert_eq!(asked.params()["taskId"], "t1");
            asked.result(json!({"resultType": "complete"})).await;
        };
        with_timeout("the acknowledgement", async { tokio::join!(call.cancel(), cancel) }).await.0.expect("taken");
        listen.task(with_members(task("t1", "working"), json!({"statusMessage": "stopping"}))).await;
        assert_eq!(next(&mut call).await.as_ref().map(brief).as_deref(), Some("working: stopping"));
        listen.task(state).await;
        assert_eq!(all(&mut call).await, [expected]);
    }
}

#[tokio::test]
async fn a_held_call_is_cancelled_by_closing_it() {
    let script = ScriptedServer::start().await;
    script.may_remain("notifications/cancelled");
    let client = script.client().await;
    let (mut call, mut sse) = held(&script, &client).await;
    with_timeout("the word", call.cancel()).await.expect("taken");
    sse.closed().await;
    assert_eq!(rest(&mut call).await, ["progress 1", "cancelled"]);
}

// Our own server.

fn at(port: u16) -> Target {
    Target::Url(format!("http://127.0.0.1:{port}/mcp"))
}

async fn connect(port: u16) -> Client {
    connect_with(at(port), Options::default()).await
}

async fn connect_with(target: Target, options: Options) -> Client {
    with_timeout("the connection", Client::connect(target, options)).await.expect("a connection")
}

/// All events of a call: its texts together, which must come in order, and its end.
async fn whole(call: &mut Call) -> (String, String) {
    let (mut text, mut seq, mut ends) = (String::new(), None, String::new());
    while let Some(event) = next(call).await {
        match event {
            Event::Chunk(partial) => {
                let expected = seq.map_or(partial.seq, |seq| seq + 1);
                assert_eq!(partial.seq, expected, "after {text}");
                seq = Some(partial.seq);
                text.push_str(&partial.text());
            }
            Event::Gap { from, until } => panic!("nothing is lost: {from}..{until}"),
            Event::Done(outcome) => ends = end(&outcome),
            _ => {}
        }
    }
    (text, ends)
}

#[tokio::test]
async fn ten_runs_of_our_server_are_told_exactly_over_one_stream() {
    let counts = tool("counts", &(), |(), ctx| async move {
        let args: Value = ctx.arguments().read()?;
        for n in 0..100 {
            ctx.text(format!("{}.{n};", args["name"])).await?;
            tokio::task::yield_now().await;
        }
        Ok::<_, ToolError>(format!("{} is done", args["name"]))
    });
    let tools = registry([counts.task(TaskMode::Always)]);
    let server = TestServer::start_with(tools, uncoalesced(), Arc::new(SystemClock)).await;
    let client = connect(server.port).await;
    let mut runs = Vec::new();
    for name in 0..10 {
        let started = with_timeout("the start", client.start("counts", json!({"name": name}))).await;
        runs.push((name, started.expect("a run")));
    }
    let reading = runs.iter_mut().map(|(name, call)| async move { (*name, whole(call).await) });
    for (name, (text, ends)) in with_timeout("all ends", futures_util::future::join_all(reading)).await {
        let expected: String = (0..100).map(|n| format!("{name}.{n};")).collect();
        assert_eq!((text, ends), (expected, format!("done: {name} is done")));
    }
    drop(runs);
    with_timeout("the end", client.close()).await;
    server.stopped().await;
}

#[tokio::test]
async fn in_one_process_a_run_is_told_the_same_as_over_http() {
    let mut harness = ToolHarness::with(uncoalesced()).await;
    let over_http = connect(harness.server.port).await;
    let in_process = Client::connect(harness.server.server.clone(), Options::default()).await.expect("a connection");
    for client in [over_http, in_process] {
        let mut call = with_timeout("the start", client.start("writes", json!({}))).await.expect("a run");
        let mut run = harness.run().await;
        let Some(Event::Task(reference)) = next(&mut call).await else { panic!("a task") };
        run.writes("one").await;
        run.ctx.status("half way").await.expect("taken");
        assert_eq!(next_briefs(&mut call, 1).await, ["0 one"]);
        run.writes("two").await;
        run.ends("done");
        assert_eq!(rest(&mut call).await, ["1 two", "done: done"]);
        let snapshot = with_timeout("a look", client.task(reference.task.as_deref().expect("an id"))).await.expect("a view");
        assert_eq!((snapshot.status, snapshot.outcome.as_ref().map(end).as_deref()), (Status::Completed, Some("done: done")));
        with_timeout("the end", client.close()).await;
    }
}

#[tokio::test]
async fn a_run_of_our_server_goes_on_from_its_reference_with_nothing_twice_or_missing() {
    let mut harness = ToolHarness::with(uncoalesced()).await;
    let client = connect(harness.server.port).await;
    let mut call = with_timeout("the start", client.start("writes", json!({}))).await.expect("a run");
    let mut run = harness.run().await;
    for text in ["a", "b", "c"] {
        run.writes(text).await;
    }
    assert_eq!(next_briefs(&mut call, 3).await[1..], ["0 a", "1 b"]);
    let left = call.detach().expect("a task");
    run.writes("d").await;
    let other = connect(harness.server.port).await;
    let mut call = with_timeout("the task", other.attach(&left)).await.expect("a run");
    assert_eq!(next_briefs(&mut call, 3).await[1..], ["2 c", "3 d"]);
    // The same task once more, from its beginning.
    let mut twice = with_timeout("the task", other.attach(&Reference { next: 0, ..left.clone() })).await.expect("a run");
    assert_eq!(next_briefs(&mut twice, 5).await[1..], ["0 a", "1 b", "2 c", "3 d"]);
    run.writes("e").await;
    run.ends("done");
    assert_eq!(rest(&mut call).await, ["4 e", "done: done"]);
    assert_eq!(rest(&mut twice).await, ["4 e", "done: done"]);
}

#[tokio::test]
async fn a_run_of_our_server_without_streams_is_told_the_same() {
    let config = taskwire::server::Config { streams_per_caller: 0, ..uncoalesced() };
    let mut harness = ToolHarness::with(config).await;
    // Refused streams are asked for again: not so often that nothing else is done.
    let timing = Timing { backoff: 50 * MS, ..Timing::default() };
    let client = connect_with(at(harness.server.port), Options { timing, ..Options::default() }).await;
    let mut call = with_timeout("the start", client.start("writes", json!({}))).await.expect("a run");
    let mut run = harness.run().await;
    for text in ["a", "b", "c"] {
        run.writes(text).await;
    }
    assert_eq!(next_briefs(&mut call, 4).await[1..], ["0 a", "1 b", "2 c"]);
    run.writes("d").await;
    run.ends("done");
    assert_eq!(rest(&mut call).await, ["3 d", "done: done"]);
}

#[tokio::test]
async fn a_run_of_our_server_that_is_cut_again_and_again_is_told_exactly() {
    let mut harness = ToolHarness::with(uncoalesced()).await;
    let between = Between::new(harness.server.port, b"").await;
    let timing = Timing { backoff: MS, backoff_max: 5 * MS, ..Timing::default() };
    let client = connect_with(between.target(), Options { timing, ..Options::default() }).await;
    let mut call = with_timeout("the start", client.start("writes", json!({}))).await.expect("a run");
    let mut run = harness.run().await;
    let reading = tokio::spawn(async move { whole(&mut call).await });
    for n in 0..200 {
        run.writes(&format!("{n};")).await;
        if n % 7 == 6 {
            between.cut();
        }
    }
    run.ends("done");
    let (text, ends) = with_timeout("the end", reading).await.expect("no panic");
    let expected: String = (0..200).map(|n| format!("{n};")).collect();
    assert_eq!((text, ends.as_str()), (expected, "done: done"));
}

#[tokio::test]
async fn a_call_of_our_server_is_cancelled() {
    let mut harness = ToolHarness::with(uncoalesced()).await;
    let client = connect(harness.server.port).await;
    let mut call = with_timeout("the start", client.start("writes", json!({}))).await.expect("a run");
    let run = harness.run().await;
    with_timeout("the word", call.cancel()).await.expect("taken");
    with_timeout("the word to stop", run.ctx.cancelled()).await;
    let briefs = rest(&mut call).await;
    assert!(briefs.last().is_some_and(|last| last.starts_with("cancelled")), "{briefs:?}");
}

#[tokio::test]
async fn a_plain_call_of_our_server_is_its_result() {
    let quick = crate::tasks::quick("quick");
    let server = TestServer::start(registry([quick])).await;
    let client = connect(server.port).await;
    let tools = with_timeout("the list", client.tools()).await.expect("tools");
    assert_eq!(tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["quick"]);
    let outcome = with_timeout("the result", client.call("quick", json!({}))).await.expect("a result");
    assert_eq!(end(&outcome), "done: done");
    let error = with_timeout("the refusal", client.call("slow", json!({}))).await.expect_err("an error");
    assert!(matches!(&error, Error::Rpc(error) if error.code == -32602), "{error:?}");
}
