//! What a client does not do, whatever its server does: give up a server that is there, send its requests elsewhere, wait for a reader
//! that does not read, lose an answer or a cancel, reopen what was closed.

use std::{convert::Infallible, sync::Arc, time::Duration};

use serde_json::{Value, json};
use taskwire::{
    client::{Answer, Bearer, CallRecorder, Client, Error, Ledger, Options, Target, Timing},
    clock::Clock,
    tool::{Progress, TaskMode, ToolError},
};

use super::{
    legacy::{self, awaited, begun, client_of, ended, having, held, joined, made, progress, scripted, shown, tools_of},
    script::{
        KEY, LISTEN, MS, SECOND, ScriptedRequest, ScriptedServer, asking, brief, call_job, complete, completed, end, everything, fails,
        form, last, next, next_briefs, response, rest, start_job, task, text_result, while_waiting, with_members,
    },
};
use crate::{
    kit::{TASKS, TempDir, TestServer, with_timeout},
    tasks::{Signal, quick, registry, tool},
    tool_harness::{ToolHarness, uncoalesced},
};

/// Lets so much time pass, a second at a time.
async fn passes(script: &ScriptedServer, span: Duration) {
    let until = script.clock.now().after(span);
    script.as_time_passes("time", SECOND, script.clock.sleep_until(until)).await;
}

// Servers that are there.

#[tokio::test]
async fn a_wait_that_is_cut_again_and_again_is_not_given_up_while_the_server_is_there() {
    let script = scripted().await;
    let client = joined(&script, legacy::options(&script), having(json!({}))).await;
    let (mut call, mut wait) = begun(&script, &client, "t1").await;
    // As a proxy does that knows only how long a connection has said nothing.
    let begun = script.clock.now();
    for _ in 0..7 {
        passes(&script, 61 * SECOND).await;
        wait.cut();
        wait = script.as_time_passes("another wait", 10 * MS, awaited(&script, "tasks/result")).await.sse().await;
    }
    assert!(script.clock.now().since(begun) > Timing::default().give_up_after + 61 * SECOND, "that is long enough");
    wait.result(ended("t1", "done")).await;
    assert_eq!(rest(&mut call).await, ["done: done"]);
    assert_eq!(script.count("tools/call"), 1);
}

#[tokio::test]
async fn a_held_call_that_is_cut_again_and_again_is_not_given_up_while_the_server_is_there() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let playing = async {
        let begun = script.clock.now();
        let mut keys = Vec::new();
        for _ in 0..7 {
            let call = script.as_time_passes("the call", 10 * MS, script.expect("tools/call")).await;
            keys.push(call.meta()[KEY].clone());
            let mut sse = call.sse().await;
            sse.comment().await;
            passes(&script, 61 * SECOND).await;
            sse.cut();
        }
        assert!(script.clock.now().since(begun) > Timing::default().give_up_after + 61 * SECOND, "that is long enough");
        keys.dedup();
        assert_eq!(keys.len(), 1, "it is one call: {keys:?}");
        script.as_time_passes("the call", 10 * MS, script.expect("tools/call")).await.result(text_result("done")).await;
    };
    let (outcome, ()) = call_job(&client, json!({}), playing).await;
    assert_eq!(end(&outcome.expect("a result")), "done: done");
}

#[tokio::test]
async fn a_failure_of_long_ago_does_not_count_where_the_server_was_there_since() {
    let script = ScriptedServer::start().await;
    // A look that is not answered is given up when the task is pushed.
    script.may_remain("tasks/get");
    script.may_remain(LISTEN);
    let timing = Timing { give_up_after: 60 * SECOND, ..Timing::default() };
    let client = script.client_with(Options { timing, ..script.options() }, json!({TASKS: {}})).await;
    let (mut call, listen) = script.watched(&client, "t1").await;
    listen.cut();
    while_waiting(&mut call, script.expect("tasks/get")).await.empty(503).await;
    let mut listen = script.as_time_passes("the stream", 10 * MS, while_waiting(&mut call, script.listen())).await;
    for n in 0..4 {
        script.clock.advance(20 * SECOND);
        listen.task(with_members(task("t1", "working"), json!({"statusMessage": n.to_string()}))).await;
        let told = format!("working: {n}");
        while brief(&next(&mut call).await.expect("the run goes on")) != told {}
    }
    let since = script.clock.now();
    let is_look = |asked: &ScriptedRequest| asked.kind() == "tasks/get" && asked.at >= since;
    listen.cut();
    while_waiting(&mut call, script.expect_where("a look", is_look)).await.empty(503).await;
    let again = script.as_time_passes("another look", 10 * MS, while_waiting(&mut call, script.expect_where("a look", is_look))).await;
    again.result(complete(completed("t1", "end"))).await;
    assert_eq!(rest(&mut call).await, ["done: end"]);
}

#[tokio::test]
async fn a_server_that_wants_to_be_left_alone_for_ever_is_given_up() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let playing = async {
        script.expect("tasks/get").await.empty(503).await;
        let second = script.expect("tasks/get").await;
        // Some time after the first, so that all of it together is more than there are numbers for.
        script.clock.advance(2 * SECOND);
        second.with("Retry-After", "18446744073709551615").empty(503).await;
    };
    let looking = async { tokio::join!(client.task("t1"), playing) };
    let error = script.as_time_passes("the end", 20 * MS, looking).await.0.expect_err("an error");
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
}

#[tokio::test]
async fn the_longest_time_between_two_looks_may_be_shorter_than_the_shortest() {
    let timing = Timing { poll_min: 100 * MS, poll_max: 50 * MS, ..Timing::default() };
    let script = ScriptedServer::start().await;
    let client = script.client_with(Options { timing, ..script.options() }, everything()).await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    listen.task(completed("t1", "end")).await;
    assert_eq!(rest(&mut call).await, ["done: end"]);

    let script = scripted().await;
    let client = joined(&script, Options { timing, ..legacy::options(&script) }, having(json!({}))).await;
    let (mut call, wait) = begun(&script, &client, "t1").await;
    wait.result(ended("t1", "done")).await;
    assert_eq!(rest(&mut call).await, ["done: done"]);
}

// Servers that send us elsewhere.

/// Options with what must not get into other hands.
fn with_secrets(script: &ScriptedServer) -> Options {
    let headers = vec![("X-Api-Key".to_owned(), "s3cret".to_owned())];
    Options { headers, credentials: Some(Arc::new(Bearer("t0ken".to_owned()))), ..script.options() }
}

#[tokio::test]
async fn a_server_is_followed_within_itself_with_the_same_request() {
    for status in [307, 308] {
        let script = ScriptedServer::start().await;
        let client = script.client_with(with_secrets(&script), everything()).await;
        let playing = async {
            let first = script.expect("tools/call").await;
            let (message, headers) = (first.message.clone(), first.headers.clone());
            assert_eq!((first.header("x-api-key"), first.header("authorization")), (Some("s3cret"), Some("Bearer t0ken")));
            first.with("Location", "/mcp").empty(status).await;
            let second = script.expect("tools/call").await;
            assert_eq!((second.http_method.as_str(), &second.message), ("POST", &message), "{status}");
            for header in &headers {
                assert!(second.headers.contains(header), "{status}: {header:?} is not in {:?}", second.headers);
            }
            second.result(text_result("done")).await;
        };
        let (outcome, ()) = call_job(&client, json!({"a": 1}), playing).await;
        assert_eq!(end(&outcome.expect("a result")), "done: done", "{status}");
    }
}

#[tokio::test]
async fn nothing_goes_elsewhere_that_was_meant_for_the_server() {
    for status in [301, 302, 303, 307, 308] {
        let (script, elsewhere) = (ScriptedServer::start().await, ScriptedServer::start().await);
        let client = script.client_with(with_secrets(&script), everything()).await;
        let playing = async { script.expect("tools/call").await.with("Location", &elsewhere.url()).empty(status).await };
        let error = call_job(&client, json!({}), playing).await.0.expect_err("it is not there");
        assert!(matches!(&error, Error::Refused { status: of, .. } if *of == status), "{status}: {error:?}");
        assert!(error.to_string().contains(&elsewhere.url()), "{status}: who reads it knows where to: {error}");
        assert_eq!(elsewhere.seen(), [""; 0], "{status}");
        assert_eq!(script.count("tools/call"), 1, "{status}");
    }
}

#[tokio::test]
async fn a_call_is_not_made_something_else_by_a_redirection() {
    for status in [301, 302, 303] {
        let script = ScriptedServer::start().await;
        let client = script.client_with(with_secrets(&script), everything()).await;
        let playing = async { script.expect("tools/call").await.with("Location", "/mcp").empty(status).await };
        let error = call_job(&client, json!({}), playing).await.0.expect_err("it cannot be followed");
        assert!(matches!(&error, Error::Refused { status: of, .. } if *of == status), "{status}: {error:?}");
        assert_eq!((script.count("tools/call"), script.count("GET")), (1, 0), "{status}");
    }
}

/// Sends every call on to where it is.
async fn circles(script: &ScriptedServer) -> Infallible {
    loop {
        script.expect("tools/call").await.with("Location", "/mcp").empty(307).await;
    }
}

#[tokio::test]
async fn a_server_that_sends_us_in_circles_is_not_followed_for_ever() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let error = tokio::select! {
        outcome = with_timeout("the error", client.call("job", json!({}))) => outcome.expect_err("it goes nowhere"),
        never = circles(&script) => match never {},
    };
    assert!(matches!(error, Error::Refused { status: 307, .. }), "{error:?}");
    assert!(script.count("tools/call") <= 10, "{}", script.count("tools/call"));
}

// What nobody reads.

#[tokio::test]
async fn a_run_that_nobody_reads_does_not_hold_up_other_calls() {
    let all_sent = Signal::new();
    let chatty = tool("chatty", &all_sent, |all_sent, ctx| async move {
        for tens in 0..40 {
            let ten = (1..=10).map(|n| ctx.progress(Progress::of(10 * tens + n, 400.0)));
            futures_util::future::try_join_all(ten).await?;
        }
        all_sent.send();
        Ok::<_, ToolError>("done")
    });
    let server = TestServer::start(registry([chatty.task(TaskMode::Never), quick("quick").task(TaskMode::Never)])).await;
    let modern = with_timeout("the connection", Client::connect(&server.server, Options::default())).await.expect("a connection");
    let older = client_of(Target::from(&server.server), Options::default()).await;
    for client in [modern, older] {
        let mut call = with_timeout("the start", client.start("chatty", json!({}))).await.expect("a run");
        with_timeout("the end of the tool", all_sent.wait()).await;
        for _ in 0..3 {
            let outcome = with_timeout("the other call", client.call("quick", json!({}))).await.expect("a result");
            assert_eq!(end(&outcome), "done: done");
        }
        assert_eq!(last(&mut call).await, "done: done");
        with_timeout("the end", client.close()).await;
    }
}

// Answers.

fn name(name: &str) -> Answer {
    Answer::accept(json!({"name": name}))
}

/// A task that asks for a name under the key `k`.
fn asks() -> Value {
    asking("t1", json!({"k": form("Name?")}))
}

/// Takes an answer with this name, and acknowledges it.
async fn takes(script: &ScriptedServer, name: &str) {
    let asked = script.expect("tasks/update").await;
    assert_eq!(asked.params()["inputResponses"], json!({"k": {"action": "accept", "content": {"name": name}}}));
    asked.result(json!({"resultType": "complete"})).await;
}

/// Refuses an answer with this name.
async fn refuses(script: &ScriptedServer, name: &str, code: i64) {
    let asked = script.expect("tasks/update").await;
    assert_eq!(asked.params()["inputResponses"], json!({"k": {"action": "accept", "content": {"name": name}}}));
    asked.error(200, code, "no such name", Value::Null).await;
}

/// A server refuses an answer with this code: another one can be sent, now and after a restart.
async fn another_answer_after(code: i64) {
    let script = ScriptedServer::start().await;
    // What is asked is pushed; looks may wait.
    script.may_remain("tasks/get");
    let dir = TempDir::new();
    let ledger = || Ledger::open(dir.path()).expect("a ledger");
    let options = || Options { ledger: Some(Arc::new(ledger())), ..script.options() };
    let recorded = || {
        let entry = ledger().entry(&script.url(), "t1").expect("readable").expect("an entry");
        ledger().answers(entry.id).expect("readable")
    };

    // While it is asked.
    let client = script.client_with(options(), everything()).await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    listen.task(asks()).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["asks k: Name?"]);
    let refused = with_timeout("the refusal", async { tokio::join!(call.answer("k", name("Ada")), refuses(&script, "Ada", code)) }).await.0;
    refused.expect_err("it was refused");
    assert!(recorded().is_empty(), "{code}: {:?}", recorded());
    // The next one is lost on its way, and its client with it.
    let asked = tokio::select! {
        answered = call.answer("k", name("Bob")) => panic!("too early: {answered:?}"),
        asked = script.expect("tasks/update") => asked,
    };
    assert_eq!(recorded().len(), 1, "{code}");
    let reference = call.detach().expect("a task");
    drop(client);
    asked.cut();
    listen.closed().await;

    // After a restart the client sends it again, and the server refuses it again.
    let client = script.client_with(options(), everything()).await;
    let mut call = with_timeout("the task", client.attach(&reference)).await.expect("a run");
    assert_eq!(next_briefs(&mut call, 1).await, ["task t1"]);
    let mut listen = while_waiting(&mut call, script.listen()).await;
    listen.task(asks()).await;
    while_waiting(&mut call, refuses(&script, "Bob", code)).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["asks k: Name?"], "{code}: then somebody has to be asked");
    assert!(recorded().is_empty(), "{code}: {:?}", recorded());
    let taken = with_timeout("the answer", async { tokio::join!(call.answer("k", name("Cleo")), takes(&script, "Cleo")) }).await.0;
    taken.unwrap_or_else(|error| panic!("{code}: {error}"));
    let answer = name("Cleo").value().clone();
    assert_eq!(recorded(), [("k".to_owned(), answer, true)], "{code}");
    listen.task(task("t1", "working")).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["settled k"], "{code}");
    listen.task(completed("t1", "end")).await;
    assert_eq!(rest(&mut call).await, ["done: end"], "{code}");
}

#[tokio::test]
async fn an_answer_that_the_server_refused_can_be_replaced_also_after_a_restart() {
    for code in [-32603, -32000] {
        another_answer_after(code).await;
    }
}

/// This code also means that there is no such task: the client polls to find out.
#[tokio::test]
async fn an_answer_that_the_server_calls_invalid_can_be_replaced_also_after_a_restart() {
    another_answer_after(-32602).await;
}

#[tokio::test]
async fn an_answer_that_was_given_up_half_way_leaves_the_question_open() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    listen.task(asks()).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["asks k: Name?"]);
    let asked = tokio::select! {
        answered = call.answer("k", name("Ada")) => panic!("too early: {answered:?}"),
        asked = script.expect("tasks/update") => asked,
    };
    asked.closed_by_client().await;
    let taken = with_timeout("the answer", async { tokio::join!(call.answer("k", name("Bob")), takes(&script, "Bob")) }).await.0;
    taken.expect("it is open");
    listen.task(task("t1", "working")).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["settled k"]);
    listen.task(completed("t1", "end")).await;
    assert_eq!(rest(&mut call).await, ["done: end"]);
}

// Last words.

#[tokio::test]
async fn who_closes_waits_until_a_call_was_cancelled() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let playing = async {
        let asked = script.expect("tools/call").await;
        let (key, token) = (asked.meta()[KEY].clone(), asked.meta()["progressToken"].clone());
        let mut sse = asked.sse().await;
        sse.notify("notifications/progress", json!({"progressToken": token, "progress": 1})).await;
        (key, sse)
    };
    let (mut call, (key, mut sse)) = start_job(&client, playing).await;
    with_timeout("the word", call.cancel()).await.expect("taken");
    assert_eq!(rest(&mut call).await, ["progress 1", "cancelled"]);
    sse.closed().await;
    let closing = client.close();
    tokio::pin!(closing);
    let off = tokio::select! {
        biased;
        () = &mut closing => panic!("nobody was told that the call is off"),
        off = script.expect("notifications/cancelled") => off,
    };
    assert_eq!(off.params(), &json!({"requestId": sse.id, "_meta": {KEY: key}}));
    assert_eq!((off.header("mcp-method"), off.message.get("id")), (Some("notifications/cancelled"), None));
    off.empty(202).await;
    with_timeout("the end", closing).await;
}

#[tokio::test]
async fn who_closes_a_session_waits_until_a_call_was_cancelled() {
    let script = scripted().await;
    script.always("tools/list", tools_of("forbidden"));
    let client = joined(&script, legacy::options(&script), having(json!({}))).await;
    let mut key = Value::Null;
    let (mut call, mut events) = held(&script, &client, |request| {
        key = request.meta()[KEY].clone();
        progress(&request.meta()["progressToken"], json!({"progress": 1}))
    })
    .await;
    with_timeout("the word", call.cancel()).await.expect("taken");
    assert_eq!(rest(&mut call).await, ["progress 1", "cancelled"]);
    events.closed().await;
    let closing = client.close();
    tokio::pin!(closing);
    let off = tokio::select! {
        biased;
        () = &mut closing => panic!("nobody was told that the call is off"),
        off = script.expect("notifications/cancelled") => off,
    };
    assert_eq!(off.params(), &json!({"requestId": events.id, "_meta": {KEY: key}}));
    assert_eq!(script.count("DELETE"), 0, "its session is still there");
    off.empty(202).await;
    let ending = async { script.expect_http("DELETE").await.empty(200).await };
    with_timeout("the end", async { tokio::join!(closing, ending) }).await;
}

#[tokio::test]
async fn a_call_that_becomes_a_task_just_when_it_is_cancelled_is_cancelled() {
    let script = scripted().await;
    let client = joined(&script, legacy::options(&script), having(json!({}))).await;
    let (mut call, mut events) = held(&script, &client, |request| progress(&request.meta()["progressToken"], json!({"progress": 1}))).await;
    // More lines than the client buffers, in one piece, and the task behind them: the task has come, and cannot be delivered yet.
    let lines = (1..=67).map(|n| format!("data: {}\n\n", json!({"method": "notifications/message", "params": {"data": n}})));
    let mut all: String = lines.collect();
    all.push_str(&format!("data: {}\n\n", response(&events.id, made("t1"))));
    events.raw(all.as_bytes()).await;
    assert_eq!(next_briefs(&mut call, 2).await, ["progress 1", "log 1"]);
    assert!(call.reference().is_none(), "it is no task yet");
    with_timeout("the word", call.cancel()).await.expect("taken");
    let playing = async { script.expect_of("tasks/cancel", "t1").await.result(shown("t1", "cancelled")).await };
    let (heard, ()) = with_timeout("the end of the task", async { tokio::join!(next_briefs(&mut call, 67), playing) }).await;
    assert_eq!((heard[0].as_str(), heard[65].as_str(), heard[66].as_str()), ("log 2", "log 67", "task t1"));
}

// What was closed.

#[tokio::test]
async fn nothing_is_started_again_that_was_closed() {
    for is_legacy in [false, true] {
        let mut harness = ToolHarness::of(uncoalesced(), |tool| tool.task(TaskMode::Always).streams()).await;
        let target = Target::from(&harness.server.server);
        let client = if is_legacy {
            client_of(target, Options::default()).await
        } else {
            with_timeout("the connection", Client::connect(target, Options::default())).await.expect("a connection")
        };
        let (call, run) = tokio::join!(client.start("writes", json!({})), harness.run());
        let mut call = call.expect("a run");
        run.writes("one").await;
        let watched = next_briefs(&mut call, 2).await;
        assert_eq!(watched[1], "0 one", "it is watched: {watched:?}");
        let task = call.reference().and_then(|reference| reference.task).expect("a task");
        let other = client.clone();
        with_timeout("the end", client.close()).await;
        let errors = [
            with_timeout("the refusal", other.task(&task)).await.map(drop),
            with_timeout("the refusal", other.call("writes", json!({}))).await.map(drop),
            with_timeout("the refusal", other.cancel(&task)).await,
        ];
        for error in errors {
            assert!(matches!(error, Err(Error::Closed)), "legacy: {is_legacy}: {error:?}");
        }
        let error = fails(&mut call).await;
        assert!(matches!(error, Error::Closed), "legacy: {is_legacy}: {error:?}");
    }
}
