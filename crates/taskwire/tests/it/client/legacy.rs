//! The client in the legacy era: the handshake and its session, streams that are come back to, questions that are requests,
//! and core tasks. The server is a script that misbehaves where it can, and at the end our own.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use taskwire::{
    client::{Answer, Asks, Client, Era, Error, Event, Input, InputKind, Options, Outcome, Run, Status, Target, TaskSupport, answer_with},
    clock::Clock,
    core::task::RpcError,
    server::Config,
    tool::{Progress, TaskMode, Tool, ToolError},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::JoinHandle,
};

use super::script::{
    Asked, IDEMPOTENCY, KEY, MS, SECOND, Script, Sse, brief, but, called, end, form, last, next, next_told, response, rest, started, text,
    told,
};
use crate::{
    kit::{TestServer, soon},
    stage::Stage,
    tasks::{Gate, name_form, name_in, quick, registry, tool},
};

pub(crate) const LATEST: &str = "2025-11-25";
pub(crate) const RELATED: &str = "io.modelcontextprotocol/related-task";
const SESSION: &str = "session-1";

// What a server of this era says.

/// A script of this era: there is one tool, `job`, whose calls may be tasks, and `t1` is at work.
pub(crate) async fn scripted() -> Script {
    let script = Script::start().await;
    // A standing stream may be wanted again at any time, and the end of a test is none of its business.
    for kind in ["GET", "DELETE", "notifications/cancelled"] {
        script.may_remain(kind);
    }
    script.always("tools/list", tools_of("optional"));
    script.always("tasks/get", shown("t1", "working"));
    script
}

/// Defaults for this era.
pub(crate) fn options(script: &Script) -> Options {
    Options { era: Some(Era::Legacy), ..script.options() }
}

/// The result of `tools/list`: one tool that says this of tasks.
pub(crate) fn tools_of(support: &str) -> Value {
    json!({"tools": [{"name": "job", "description": "For a test", "inputSchema": {"type": "object"}, "execution": {"taskSupport": support}}]})
}

/// What a server can do that has tasks, and this besides.
pub(crate) fn having(more: Value) -> Value {
    json!({"tools": {}, "tasks": but(json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}), more)})
}

/// The result of `initialize`.
pub(crate) fn agreed(version: &str, capabilities: Value) -> Value {
    json!({"protocolVersion": version, "capabilities": capabilities, "serverInfo": {"name": "scripted", "version": "1.2.3"},
        "instructions": "Be kind."})
}

/// A task as this era shows it.
pub(crate) fn shown(id: &str, status: &str) -> Value {
    json!({"taskId": id, "status": status, "createdAt": "2026-07-28T00:00:00Z", "lastUpdatedAt": "2026-07-28T00:00:00Z", "ttl": 3_600_000,
        "pollInterval": 1_000})
}

/// The answer to a call that has become a task.
pub(crate) fn made(id: &str) -> Value {
    json!({"task": shown(id, "working")})
}

/// The metadata that relates a message to a task.
pub(crate) fn related(id: &str) -> Value {
    json!({RELATED: {"taskId": id}})
}

/// The result of a tool.
pub(crate) fn answer(said: &str) -> Value {
    json!({"content": [text(said)], "isError": false})
}

/// The result of a task.
pub(crate) fn ended(id: &str, said: &str) -> Value {
    but(answer(said), json!({"_meta": related(id)}))
}

/// The state of a task, told.
pub(crate) fn status(task: Value) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/tasks/status", "params": task})
}

/// How far a call is, told under this token.
pub(crate) fn progress(token: &Value, far: Value) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": but(far, json!({"progressToken": token}))})
}

/// A question as a request of the server.
fn question(id: &Value, question: Value, task: Option<&str>) -> Value {
    let mut request = but(question, json!({"jsonrpc": "2.0", "id": id}));
    if let Some(task) = task {
        request["params"]["_meta"] = related(task);
    }
    request
}

// How a client comes to it.

/// That a request belongs to this session.
#[track_caller]
fn is_of(asked: &Asked, session: Option<&str>, version: &str) {
    assert_eq!((asked.header("mcp-session-id"), asked.header("mcp-protocol-version")), (session, Some(version)), "{asked:?}");
    let accepts = asked.header("accept").unwrap_or_default();
    match asked.http_method.as_str() {
        "GET" => assert!(accepts.contains("text/event-stream"), "{asked:?} accepts {accepts}"),
        "POST" => assert!(accepts.contains("application/json") && accepts.contains("text/event-stream"), "{asked:?} accepts {accepts}"),
        _ => {}
    }
}

#[track_caller]
fn is_ours(asked: &Asked) {
    is_of(asked, Some(SESSION), LATEST);
}

/// Plays the handshake of a session with this name; gives what the client declares.
async fn greets(script: &Script, session: &str, capabilities: Value) -> Value {
    let first = script.expect("initialize").await;
    assert_eq!(first.header("mcp-session-id"), None, "a new session has no name yet: {first:?}");
    let declared = first.params()["capabilities"].clone();
    first.with("Mcp-Session-Id", session).result(agreed(LATEST, capabilities)).await;
    let ready = script.expect("notifications/initialized").await;
    is_of(&ready, Some(session), LATEST);
    ready.empty(202).await;
    declared
}

/// What a client with these options declares.
pub(crate) async fn declared(script: &Script, options: Options) -> Value {
    let mut declared = Value::Null;
    let greeting = async {
        declared = greets(script, SESSION, having(json!({}))).await;
        never_stands(script).await
    };
    let client: Result<Client, Error> = tokio::select! {
        client = script.connects(options) => client,
        never = greeting => never,
    };
    drop(client.expect("a connection"));
    declared
}

/// Has no standing stream.
async fn never_stands<T>(script: &Script) -> T {
    loop {
        script.expect_http("GET").await.empty(405).await;
    }
}

/// A client of a server that has these capabilities and no standing stream.
pub(crate) async fn joined(script: &Script, options: Options, capabilities: Value) -> Client {
    let greeting = async {
        greets(script, SESSION, capabilities).await;
        never_stands(script).await
    };
    let client: Result<Client, Error> = tokio::select! {
        client = script.connects(options) => client,
        never = greeting => never,
    };
    client.expect("a connection")
}

/// A client of a server that has these capabilities, and its standing stream.
pub(crate) async fn stood(script: &Script, options: Options, capabilities: Value) -> (Client, Sse) {
    let greeting = async {
        greets(script, SESSION, capabilities).await;
        let stand = script.expect_http("GET").await;
        is_ours(&stand);
        stand.sse().await
    };
    let (client, stand) = tokio::join!(script.connects(options), greeting);
    (client.expect("a connection"), stand)
}

/// The next request of this method. Who asks for a standing stream before it gets none.
pub(crate) async fn awaited(script: &Script, method: &str) -> Asked {
    loop {
        let fits = |asked: &Asked| asked.message["method"] == method || (asked.http_method == "GET" && asked.last_event_id().is_none());
        let asked = script.expect_where(method, fits).await;
        if asked.http_method != "GET" {
            return asked;
        }
        asked.empty(405).await;
    }
}

/// The next stream that is to go on behind an event.
pub(crate) async fn comes_back(script: &Script) -> Asked {
    let again = script.expect_where("a stream that goes on", |asked| asked.last_event_id().is_some()).await;
    assert_eq!(again.http_method, "GET", "{again:?}");
    again
}

/// The next request for the result of a task, which comes when its run is read. What is told on the way is that it is a task.
pub(crate) async fn waited(script: &Script, run: &mut Run, task: &str) -> Asked {
    let waiting = script.expect_of("tasks/result", task);
    tokio::pin!(waiting);
    loop {
        tokio::select! {
            asked = &mut waiting => return asked,
            event = run.next() => match event {
                Some(Ok(Event::Task(_) | Event::Status(_) | Event::Link(_))) => {}
                other => panic!("{other:?} came before the result was waited for"),
            },
        }
    }
}

/// A call that has become this task.
pub(crate) async fn made_by(script: &Script, client: &Client, task: &str) -> Run {
    started(client, async { awaited(script, "tools/call").await.result(made(task)).await }).await.0
}

/// A call that has become this task, as was told, and the stream on which its result is waited for.
pub(crate) async fn begun(script: &Script, client: &Client, task: &str) -> (Run, Sse) {
    let mut run = made_by(script, client, task).await;
    let wait = waited(script, &mut run, task).await.sse().await;
    (run, wait)
}

/// A call whose answer is an event stream that begins with this message.
pub(crate) async fn held(script: &Script, client: &Client, first: impl FnOnce(&Asked) -> Value) -> (Run, Sse) {
    let answering = async {
        let call = awaited(script, "tools/call").await;
        let first = first(&call);
        let mut events = call.sse().await;
        events.event(first).await;
        events
    };
    started(client, answering).await
}

/// Answers every request of this method with this result.
async fn answering<T>(script: &Script, method: &str, result: Value) -> T {
    loop {
        let asked = script.expect(method).await;
        is_ours(&asked);
        asked.result(result.clone()).await;
    }
}

/// What is told, without word of questions that were settled.
pub(crate) fn unsettled(mut told: Vec<String>) -> Vec<String> {
    told.retain(|brief| !brief.starts_with("settled"));
    told
}

/// The next question of a run.
async fn asked(run: &mut Run) -> Input {
    loop {
        match next_told(run).await {
            Some(Event::Input(input)) => return input,
            Some(Event::Done(outcome)) => panic!("it ended without a question: {}", end(&outcome)),
            Some(_) => {}
            None => panic!("it ended without a question"),
        }
    }
}

/// Reads events up to one that fits.
async fn until(run: &mut Run, what: &str, fits: impl Fn(&Event) -> bool) -> Event {
    loop {
        let event = next(run).await.unwrap_or_else(|| panic!("the run ended before {what}"));
        if fits(&event) {
            return event;
        }
    }
}

/// Answers a question, and gives the message that the server got.
async fn answers(script: &Script, run: &Run, key: &str, answer: Answer) -> Value {
    let taking = async {
        let reply = script.expect_reply().await;
        is_ours(&reply);
        let message = reply.message.clone();
        reply.empty(202).await;
        message
    };
    let (answered, message) = soon("the answer", async { tokio::join!(run.answer(key, answer), taking) }).await;
    answered.expect("taken");
    message
}

fn ada() -> Answer {
    Answer::accept(json!({"name": "Ada"}))
}

/// The error that a call came to, however it is told.
fn refused(outcome: Result<Outcome, Error>) -> RpcError {
    match outcome {
        Err(Error::Rpc(error)) | Ok(Outcome::Failed(error)) => error,
        Err(error) => panic!("another error: {error}"),
        Ok(outcome) => panic!("it ended well: {}", end(&outcome)),
    }
}

// A2: the handshake.

#[tokio::test]
async fn the_handshake_comes_first_and_in_order() {
    let script = scripted().await;
    let playing = async {
        let first = script.expect("initialize").await;
        assert_eq!(first.header("mcp-session-id"), None);
        assert_eq!(script.seen(), ["initialize"], "nothing comes before it is answered");
        let params = first.params().clone();
        assert_eq!(params["protocolVersion"], LATEST);
        assert_eq!(params["clientInfo"]["name"], "taskwire");
        assert!(params["clientInfo"]["version"].is_string(), "{params}");
        let capabilities = &params["capabilities"];
        assert_eq!(capabilities["elicitation"], json!({"form": {}, "url": {}}));
        assert_eq!((capabilities.get("sampling"), capabilities.get("roots")), (None, None), "nobody said so");
        assert_eq!(capabilities["experimental"][IDEMPOTENCY], json!({}));
        first.with("Mcp-Session-Id", SESSION).result(agreed(LATEST, having(json!({})))).await;
        let ready = script.expect("notifications/initialized").await;
        assert_eq!(ready.message.get("id"), None, "{ready:?}");
        is_ours(&ready);
        ready.empty(202).await;
        let stand = script.expect_http("GET").await;
        is_ours(&stand);
        stand.sse().await
    };
    let (client, _stand) = tokio::join!(script.connects(options(&script)), playing);
    let peer = client.expect("a connection").peer();
    assert_eq!(script.seen()[..2], ["initialize", "notifications/initialized"]);
    assert_eq!((peer.era, peer.protocol.as_str()), (Era::Legacy, LATEST));
    assert_eq!((peer.name.as_str(), peer.version.as_str(), peer.instructions.as_deref()), ("scripted", "1.2.3", Some("Be kind.")));
    assert_eq!((peer.tasks, peer.partials, peer.idempotency), (true, false, false));
    assert!(peer.modes.is_empty(), "{:?}", peer.modes);
}

#[tokio::test]
async fn a_client_declares_what_it_can_be_asked_and_nothing_else() {
    let root = json!({"uri": "file:///a", "name": "a"});
    let nothing = Asks { form: false, url: false, sampling: false, roots: None };
    let cases = [
        (nothing.clone(), json!([null, null, null])),
        (Asks { form: true, ..nothing.clone() }, json!([{"form": {}}, null, null])),
        (Asks { url: true, ..nothing.clone() }, json!([{"url": {}}, null, null])),
        (Asks { sampling: true, ..nothing.clone() }, json!([null, {}, null])),
        (Asks { roots: Some(vec![root]), ..nothing }, json!([null, null, {}])),
    ];
    for (asks, expected) in cases {
        let script = scripted().await;
        let declared = declared(&script, Options { asks: asks.clone(), ..options(&script) }).await;
        let mut roots = declared["roots"].clone();
        if let Some(roots) = roots.as_object_mut() {
            roots.remove("listChanged");
        }
        assert_eq!(json!([declared["elicitation"], declared["sampling"], roots]), expected, "{asks:?}");
    }
}

#[tokio::test]
async fn every_request_names_the_session_and_the_version() {
    let script = scripted().await;
    script.no_longer("tools/list");
    script.no_longer("tasks/get");
    script.may_remain("tasks/get");
    // The handshake and the standing stream are looked at as they come.
    let (client, mut stand) = stood(&script, options(&script), having(json!({}))).await;
    let playing = async {
        let list = script.expect("tools/list").await;
        is_ours(&list);
        list.result(tools_of("optional")).await;
        let call = script.expect("tools/call").await;
        is_ours(&call);
        call.result(made("t1")).await;
    };
    let (mut run, ()) = started(&client, playing).await;
    let wait = waited(&script, &mut run, "t1").await;
    is_ours(&wait);
    let mut wait = wait.sse().await;
    let looking = async {
        tokio::select! {
            view = client.task("t1") => view,
            never = answering(&script, "tasks/get", shown("t1", "working")) => never,
        }
    };
    assert_eq!(soon("a look", looking).await.expect("a task").status, Status::Working);
    wait.event(question(&json!(1), form("Name?"), Some("t1"))).await;
    let key = asked(&mut run).await.key;
    answers(&script, &run, &key, ada()).await;
    let cancelling = async {
        let cancel = script.expect_of("tasks/cancel", "t1").await;
        is_ours(&cancel);
        cancel.result(shown("t1", "cancelled")).await;
    };
    let (cancelled, ()) = tokio::join!(run.cancel(), cancelling);
    cancelled.expect("asked for");
    script.always("tasks/get", shown("t1", "cancelled"));
    wait.error(-32603, "Task was cancelled", Value::Null).await;
    assert!(last(&mut run).await.starts_with("cancelled"));
    let ending = async {
        let delete = script.expect_http("DELETE").await;
        is_ours(&delete);
        delete.empty(200).await;
        stand.closed().await;
    };
    soon("the end", async { tokio::join!(client.close(), ending) }).await;
}

#[tokio::test]
async fn a_server_without_sessions_is_not_told_of_any() {
    let script = scripted().await;
    script.always("tools/list", tools_of("forbidden"));
    let playing = async {
        script.expect("initialize").await.result(agreed(LATEST, having(json!({})))).await;
        let ready = script.expect("notifications/initialized").await;
        is_of(&ready, None, LATEST);
        ready.empty(202).await;
        never_stands(&script).await
    };
    let client: Result<Client, Error> = tokio::select! {
        client = script.connects(options(&script)) => client,
        never = playing => never,
    };
    let client = client.expect("a connection");
    let (outcome, ()) = called(&client, json!({}), async {
        let call = awaited(&script, "tools/call").await;
        is_of(&call, None, LATEST);
        call.result(answer("done")).await;
    })
    .await;
    assert_eq!(end(&outcome.expect("a result")), "done: done");
    soon("the end", client.close()).await;
    assert_eq!(script.count("DELETE"), 0, "there is nothing to end");
}

#[tokio::test]
async fn a_version_that_the_server_offers_instead_is_spoken_from_there_on() {
    for version in ["2025-06-18", "2025-03-26"] {
        let script = scripted().await;
        let playing = async {
            let first = script.expect("initialize").await;
            assert_eq!(first.params()["protocolVersion"], LATEST);
            // It names tasks, which that version does not have.
            first.with("Mcp-Session-Id", SESSION).result(agreed(version, having(json!({})))).await;
            let ready = script.expect("notifications/initialized").await;
            is_of(&ready, Some(SESSION), version);
            ready.empty(202).await;
            never_stands(&script).await
        };
        let client: Result<Client, Error> = tokio::select! {
            client = script.connects(options(&script)) => client,
            never = playing => never,
        };
        let client = client.expect("a connection");
        assert_eq!((client.peer().protocol.as_str(), client.peer().tasks), (version, false));
        let (outcome, ()) = called(&client, json!({}), async {
            let call = awaited(&script, "tools/call").await;
            is_of(&call, Some(SESSION), version);
            assert_eq!(call.params().get("task"), None, "{version}: {call:?}");
            call.result(answer("done")).await;
        })
        .await;
        assert_eq!(end(&outcome.expect("a result")), "done: done");
    }
}

#[tokio::test]
async fn a_version_that_nobody_here_speaks_is_told_and_nothing_goes_on() {
    for by_error in [false, true] {
        let script = scripted().await;
        let playing = async {
            let first = script.expect("initialize").await;
            if by_error {
                let data = json!({"supported": ["1999-01-01"], "requested": LATEST});
                first.error(200, -32602, "Unsupported protocol version", data).await;
            } else {
                first.with("Mcp-Session-Id", SESSION).result(agreed("1999-01-01", having(json!({})))).await;
            }
        };
        let (client, ()) = tokio::join!(script.connects(options(&script)), playing);
        match client.err() {
            Some(Error::Version { supported, .. }) => assert!(supported.contains("1999-01-01"), "{supported}"),
            other => panic!("by error: {by_error}: {other:?}"),
        }
        assert_eq!((script.count("initialize"), script.count("notifications/initialized")), (1, 0));
    }
}

#[tokio::test]
async fn an_answer_to_the_handshake_may_be_an_event_stream() {
    let script = scripted().await;
    let playing = async {
        let first = script.expect("initialize").await;
        let id = first.id().clone();
        let mut events = first.with("Mcp-Session-Id", SESSION).sse().await;
        events.raw(format!("event: message\ndata: {}\n\n", response(&id, agreed(LATEST, having(json!({}))))).as_bytes()).await;
        events.end().await;
        let ready = script.expect("notifications/initialized").await;
        is_ours(&ready);
        ready.empty(202).await;
        never_stands(&script).await
    };
    let client: Result<Client, Error> = tokio::select! {
        client = script.connects(options(&script)) => client,
        never = playing => never,
    };
    assert_eq!(client.expect("a connection").peer().name, "scripted");
}

// A3: sessions and streams.

#[tokio::test]
async fn a_session_that_the_server_forgot_is_opened_again_and_the_call_goes_on() {
    let script = scripted().await;
    script.always("tools/list", tools_of("forbidden"));
    let client = joined(&script, options(&script), having(json!({}))).await;
    let playing = async {
        let lost = awaited(&script, "tools/call").await;
        is_ours(&lost);
        let key = lost.meta()[KEY].clone();
        lost.empty(404).await;
        greets(&script, "session-2", having(json!({}))).await;
        let again = awaited(&script, "tools/call").await;
        is_of(&again, Some("session-2"), LATEST);
        assert_eq!(again.meta()[KEY], key, "it is the same call");
        again.result(answer("done")).await;
    };
    let (outcome, ()) = script.as_time_passes("the call", 10 * MS, called(&client, json!({}), playing)).await;
    assert_eq!(end(&outcome.expect("a result")), "done: done");
    assert_eq!((script.count("initialize"), script.count("tools/call")), (2, 2));
}

#[tokio::test]
async fn a_session_that_is_forgotten_while_a_task_is_waited_for_is_opened_again_too() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    let mut run = made_by(&script, &client, "t1").await;
    let lost = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32001, "message": "Session not found"}});
    waited(&script, &mut run, "t1").await.json(404, lost).await;
    let playing = async {
        greets(&script, "session-2", having(json!({}))).await;
        let again = awaited(&script, "tasks/result").await;
        is_of(&again, Some("session-2"), LATEST);
        again.result(ended("t1", "done")).await;
    };
    script.as_time_passes("another wait", 10 * MS, playing).await;
    assert_eq!(rest(&mut run).await, ["done: done"]);
    assert_eq!((script.count("initialize"), script.count("tools/call")), (2, 1));
}

#[tokio::test]
async fn a_server_that_forgets_every_session_at_once_is_an_error_and_no_endless_round() {
    let script = scripted().await;
    script.always("tools/list", tools_of("forbidden"));
    let client = joined(&script, options(&script), having(json!({}))).await;
    let playing = async {
        awaited(&script, "tools/call").await.empty(404).await;
        greets(&script, "session-2", having(json!({}))).await;
        awaited(&script, "tools/call").await.empty(404).await;
    };
    let (outcome, ()) = script.as_time_passes("the call", 10 * MS, called(&client, json!({}), playing)).await;
    let error = outcome.expect_err("there is no session to be had");
    assert!(!matches!(error, Error::LostCall { .. }), "it surely has not run: {error}");
    assert_eq!((script.count("initialize"), script.count("tools/call")), (2, 2));
}

#[tokio::test]
async fn a_server_without_a_standing_stream_is_no_worse() {
    for status in [400, 404, 405] {
        let script = scripted().await;
        script.always("tools/list", tools_of("forbidden"));
        let playing = async {
            greets(&script, SESSION, having(json!({}))).await;
            script.expect_http("GET").await.text(status, "text/html", "<h1>Not here</h1>").await;
        };
        let (client, ()) = tokio::join!(script.connects(options(&script)), playing);
        let client = client.expect("a connection");
        for _ in 0..2 {
            let (outcome, ()) = called(&client, json!({}), async { script.expect("tools/call").await.result(answer("done")).await }).await;
            assert_eq!(end(&outcome.expect("a result")), "done: done");
            script.clock.advance(60 * SECOND);
        }
        assert_eq!(script.count("GET"), 1, "{status}: once is enough");
    }
}

#[tokio::test]
async fn a_standing_stream_that_breaks_off_goes_on_behind_its_last_event() {
    for is_cut in [true, false] {
        let script = scripted().await;
        let (_client, mut stand) = stood(&script, options(&script), having(json!({}))).await;
        if is_cut {
            stand.prime("g:1").await;
            stand.retry(700).await;
        } else {
            stand.raw(b"id: g:1\nretry: 700\ndata: \n\n").await;
        }
        let log = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "hello"}});
        stand.event_with_id("g:2", log).await;
        let before = script.clock.now();
        if is_cut {
            stand.cut();
        } else {
            stand.end().await;
        }
        let again = script.as_time_passes("the stream again", 10 * MS, comes_back(&script)).await;
        is_ours(&again);
        assert_eq!(again.last_event_id(), Some("g:2"), "cut: {is_cut}");
        assert!(again.at.since(before) >= 700 * MS, "it came back before it should: {:?}", again.at.since(before));
    }
}

#[tokio::test]
async fn a_call_that_breaks_off_goes_on_by_its_last_event_and_is_not_sent_again() {
    for is_cut in [true, false] {
        let script = scripted().await;
        script.always("tools/list", tools_of("forbidden"));
        let client = joined(&script, options(&script), having(json!({}))).await;
        let playing = async {
            let call = awaited(&script, "tools/call").await;
            let id = call.id().clone();
            let mut events = call.sse().await;
            events.raw(b"id: c:1\nretry: 500\ndata: \n\n").await;
            events.comment().await;
            let before = script.clock.now();
            if is_cut {
                events.cut();
            } else {
                events.end().await;
            }
            let again = comes_back(&script).await;
            is_ours(&again);
            assert_eq!(again.last_event_id(), Some("c:1"), "cut: {is_cut}");
            assert!(again.at.since(before) >= 500 * MS, "{:?}", again.at.since(before));
            // And once more, from further on.
            let mut events = again.sse().await;
            events.prime("c:2").await;
            events.cut();
            let again = comes_back(&script).await;
            assert_eq!(again.last_event_id(), Some("c:2"), "cut: {is_cut}");
            let mut events = again.sse().await;
            events.event_with_id("c:3", response(&id, answer("done"))).await;
            // The server leaves it open: the response is the end.
            events
        };
        let (outcome, _events) = script.as_time_passes("the call", 10 * MS, called(&client, json!({}), playing)).await;
        assert_eq!(end(&outcome.expect("a result")), "done: done");
        assert_eq!(script.count("tools/call"), 1);
    }
}

#[tokio::test]
async fn a_response_counts_on_whatever_stream_it_comes() {
    let script = scripted().await;
    script.always("tools/list", tools_of("forbidden"));
    let (client, mut stand) = stood(&script, options(&script), having(json!({}))).await;
    let (outcome, _call) = called(&client, json!({}), async {
        let call = script.expect("tools/call").await;
        let id = call.id().clone();
        let mut events = call.sse().await;
        events.prime("c:1").await;
        stand.event(response(&id, answer("done"))).await;
        events
    })
    .await;
    assert_eq!(end(&outcome.expect("a result")), "done: done");
}

#[tokio::test]
async fn a_call_whose_answer_is_lost_is_sent_again_only_where_that_does_no_harm() {
    let forgetful = || having(json!({}));
    let keeping = but(having(json!({})), json!({"experimental": {IDEMPOTENCY: {}}}));
    let cases = [
        (forgetful(), json!({}), false),
        (forgetful(), json!({"destructiveHint": false}), false),
        (forgetful(), json!({"idempotentHint": true}), true),
        (forgetful(), json!({"readOnlyHint": true}), true),
        (keeping, json!({}), true),
    ];
    for (capabilities, annotations, is_again) in cases {
        let script = scripted().await;
        let mut tools = tools_of("forbidden");
        tools["tools"][0]["annotations"] = annotations.clone();
        script.always("tools/list", tools);
        let client = joined(&script, options(&script), capabilities).await;
        let playing = async {
            let call = awaited(&script, "tools/call").await;
            let key = call.meta()[KEY].clone();
            assert!(key.is_string(), "{call:?}");
            // It has begun, and its events have no names.
            let mut events = call.sse().await;
            events.comment().await;
            events.cut();
            if is_again {
                let again = awaited(&script, "tools/call").await;
                assert_eq!(again.meta()[KEY], key);
                again.result(answer("done")).await;
            }
        };
        let (outcome, ()) = script.as_time_passes("the call", 10 * MS, called(&client, json!({}), playing)).await;
        match outcome {
            Ok(outcome) => assert_eq!((is_again, end(&outcome)), (true, "done: done".to_owned()), "{annotations}"),
            Err(Error::LostCall { tool, .. }) => assert_eq!((is_again, tool.as_str()), (false, "job"), "{annotations}"),
            Err(error) => panic!("{annotations}: {error}"),
        }
        assert_eq!(script.count("tools/call"), if is_again { 2 } else { 1 }, "{annotations}");
    }
}

#[tokio::test]
async fn a_wait_that_breaks_off_goes_on_by_its_last_event_or_begins_anew() {
    for has_ids in [true, false] {
        let script = scripted().await;
        let client = joined(&script, options(&script), having(json!({}))).await;
        let (mut run, mut wait) = begun(&script, &client, "t1").await;
        let first = wait.id.clone();
        if has_ids {
            wait.prime("w:1").await;
        } else {
            wait.comment().await;
        }
        wait.cut();
        if has_ids {
            let again = script.as_time_passes("the wait", 10 * MS, comes_back(&script)).await;
            assert_eq!(again.last_event_id(), Some("w:1"));
            let mut events = again.sse().await;
            events.event_with_id("w:2", response(&first, ended("t1", "done"))).await;
            events.end().await;
        } else {
            let again = script.as_time_passes("another wait", 10 * MS, awaited(&script, "tasks/result")).await;
            assert_ne!(again.id(), &first, "no name is used twice");
            again.result(ended("t1", "done")).await;
        }
        assert_eq!(rest(&mut run).await, ["done: done"], "has ids: {has_ids}");
    }
}

#[tokio::test]
async fn a_stream_that_the_server_does_not_know_any_more_is_waited_for_anew() {
    for status in [400, 404] {
        let script = scripted().await;
        let client = joined(&script, options(&script), having(json!({}))).await;
        let (mut run, mut wait) = begun(&script, &client, "t1").await;
        wait.prime("w:1").await;
        wait.cut();
        let again = script.as_time_passes("the wait", 10 * MS, comes_back(&script)).await;
        again.empty(status).await;
        // It may ask for the stream more than once, or open its session again; in the end it waits.
        let playing = async {
            loop {
                let wanted = script.expect_where("another wait", |asked| asked.kind() != "DELETE").await;
                match wanted.kind() {
                    "tasks/result" => return wanted.result(ended("t1", "done")).await,
                    "initialize" => wanted.with("Mcp-Session-Id", "session-2").result(agreed(LATEST, having(json!({})))).await,
                    "GET" => {
                        let status = if wanted.last_event_id().is_some() { status } else { 405 };
                        wanted.empty(status).await;
                    }
                    _ => wanted.empty(202).await,
                }
            }
        };
        script.as_time_passes("another wait", 10 * MS, playing).await;
        assert_eq!(rest(&mut run).await, ["done: done"], "{status}");
        assert_eq!(script.count("tools/call"), 1);
    }
}

#[tokio::test]
async fn a_stream_that_the_server_still_takes_for_open_is_come_back_to_later() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    let (mut run, mut wait) = begun(&script, &client, "t1").await;
    let id = wait.id.clone();
    wait.prime("w:1").await;
    wait.cut();
    for _ in 0..3 {
        let again = script.as_time_passes("the wait", 10 * MS, comes_back(&script)).await;
        assert_eq!(again.last_event_id(), Some("w:1"));
        again.error(409, -32000, "Conflict: Stream already has an active connection", Value::Null).await;
    }
    let again = script.as_time_passes("the wait", 10 * MS, comes_back(&script)).await;
    let mut events = again.sse().await;
    events.event(response(&id, ended("t1", "done"))).await;
    events.end().await;
    assert_eq!(rest(&mut run).await, ["done: done"]);
    assert_eq!(script.count("tasks/result"), 1);
}

#[tokio::test]
async fn closing_ends_the_session_whatever_the_server_says_to_that() {
    for status in [200, 202, 404, 405, 500] {
        let script = scripted().await;
        let (client, mut stand) = stood(&script, options(&script), having(json!({}))).await;
        let playing = async {
            let delete = script.expect_http("DELETE").await;
            is_ours(&delete);
            delete.empty(status).await;
            stand.closed().await;
        };
        soon("the end", async { tokio::join!(client.close(), playing) }).await;
        assert_eq!(script.count("DELETE"), 1, "{status}");
    }
}

// A5: calls that are no tasks.

#[tokio::test]
async fn a_held_call_tells_how_far_it_is_and_then_its_result() {
    let script = scripted().await;
    script.always("tools/list", tools_of("forbidden"));
    let client = joined(&script, options(&script), having(json!({}))).await;
    let mut token = Value::Null;
    let (mut run, mut events) = held(&script, &client, |call| {
        token = call.meta()["progressToken"].clone();
        progress(&token, json!({"progress": 1, "total": 3, "message": "one"}))
    })
    .await;
    assert!(token.is_string() || token.is_i64(), "{token}");
    // What is told under another name is not about this call.
    events.event(progress(&json!("another"), json!({"progress": 9}))).await;
    events.event(progress(&token, json!({"progress": 2.5}))).await;
    events.event(json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "half"}})).await;
    assert_eq!(told(&mut run, 3).await, ["progress 1 of 3: one", "progress 2.5", r#"log "half""#]);
    assert!(run.reference().is_none(), "it is no task");
    events.result(answer("done")).await;
    assert_eq!(rest(&mut run).await, ["done: done"]);
}

#[tokio::test]
async fn a_held_call_that_nobody_wants_any_more_is_called_off() {
    for is_detached in [true, false] {
        let script = scripted().await;
        script.always("tools/list", tools_of("forbidden"));
        let client = joined(&script, options(&script), having(json!({}))).await;
        let (run, mut events) = held(&script, &client, |call| progress(&call.meta()["progressToken"], json!({"progress": 1}))).await;
        if is_detached {
            assert!(run.detach().is_none(), "there is nothing to come back to");
        } else {
            drop(run);
        }
        let off = script.expect("notifications/cancelled").await;
        is_ours(&off);
        assert_eq!((&off.params()["requestId"], off.message.get("id")), (&events.id, None));
        off.empty(202).await;
        events.closed().await;
        assert_eq!(script.count("tasks/cancel"), 0, "that is for tasks");
    }
}

#[tokio::test]
async fn a_task_that_nobody_watches_any_more_goes_on() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    let (run, mut wait) = begun(&script, &client, "t1").await;
    let reference = run.detach().expect("a way back");
    assert_eq!((reference.task.as_deref(), reference.era, reference.tool.as_str()), (Some("t1"), Era::Legacy, "job"));
    wait.closed().await;
    soon("a look", client.task("t1")).await.expect("it is there");
    assert_eq!(script.count("tasks/cancel"), 0);
    // The call itself has been answered: only the wait for its result may be called off.
    let offs = script.count("notifications/cancelled");
    for _ in 0..offs {
        let off = script.expect("notifications/cancelled").await;
        assert_eq!(off.params()["requestId"], wait.id, "{off:?}");
        off.empty(202).await;
    }
}

#[tokio::test]
async fn an_error_that_wants_a_page_to_be_visited_first_says_which() {
    let script = scripted().await;
    script.always("tools/list", tools_of("forbidden"));
    let client = joined(&script, options(&script), having(json!({}))).await;
    let page = json!({"mode": "url", "elicitationId": "e1", "url": "https://example.com/sign-in", "message": "Sign in"});
    let (outcome, ()) = called(&client, json!({}), async {
        let call = awaited(&script, "tools/call").await;
        call.error(200, -32042, "Sign in at example.com first", json!({"elicitations": [page]})).await;
    })
    .await;
    let error = refused(outcome);
    assert_eq!((error.code, error.message.as_str()), (-32042, "Sign in at example.com first"));
    assert!(error.data.is_some_and(|data| data.as_str().contains("https://example.com/sign-in")));
}

#[tokio::test]
async fn an_error_is_read_at_any_status_of_http() {
    // Not 404: that says something of the session.
    for status in [200, 400, 422] {
        let script = scripted().await;
        script.always("tools/list", tools_of("forbidden"));
        let client = joined(&script, options(&script), having(json!({}))).await;
        let (outcome, ()) = called(&client, json!({}), async {
            awaited(&script, "tools/call").await.error(status, -32602, "Unknown tool", json!({"name": "job"})).await;
        })
        .await;
        assert_eq!((refused(outcome).message.as_str(), script.count("initialize")), ("Unknown tool", 1), "{status}");
    }
}

// A5, A6.8: questions are requests of the server.

/// Where the server asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// On the stream of a call that is no task.
    Call,
    /// On the stream on which the result of a task is waited for.
    Wait,
    /// On the standing stream, about a task.
    Stand,
}

const PLACES: [Place; 3] = [Place::Call, Place::Wait, Place::Stand];

/// A call in progress, and the stream on which its server asks.
struct Scene {
    script: Script,
    client: Client,
    run: Run,
    asking: Sse,
    /// Where the result is waited for, if that is somewhere else.
    wait: Option<Sse>,
    task: Option<&'static str>,
}

impl Scene {
    async fn at(place: Place) -> Self {
        Self::able(place, Asks::default()).await
    }

    /// With a client that can be asked these things.
    async fn able(place: Place, asks: Asks) -> Self {
        let script = scripted().await;
        let options = Options { asks, ..options(&script) };
        let mut scene = match place {
            Place::Call => {
                script.always("tools/list", tools_of("forbidden"));
                let client = joined(&script, options, having(json!({}))).await;
                let first = |call: &Asked| progress(&call.meta()["progressToken"], json!({"progress": 1}));
                let (run, asking) = held(&script, &client, first).await;
                Self { script, client, run, asking, wait: None, task: None }
            }
            Place::Wait => {
                let client = joined(&script, options, having(json!({}))).await;
                let (run, asking) = begun(&script, &client, "t1").await;
                Self { script, client, run, asking, wait: None, task: Some("t1") }
            }
            Place::Stand => {
                let (client, asking) = stood(&script, options, having(json!({}))).await;
                let (run, wait) = begun(&script, &client, "t1").await;
                Self { script, client, run, asking, wait: Some(wait), task: Some("t1") }
            }
        };
        if place == Place::Call {
            assert_eq!(told(&mut scene.run, 1).await, ["progress 1"]);
        }
        scene
    }

    async fn asks(&mut self, id: &Value, what: Value) {
        self.asking.event(question(id, what, self.task)).await;
    }

    /// Asks what the client answers by itself, and gives its reply.
    async fn reply_to(&mut self, id: &Value, what: Value) -> Value {
        self.asks(id, what).await;
        let reply = self.script.expect_reply().await;
        is_ours(&reply);
        let message = reply.message.clone();
        reply.empty(202).await;
        assert_eq!(&message["id"], id, "{message}");
        message
    }

    async fn answers(&mut self, key: &str, answer: Answer) -> Value {
        answers(&self.script, &self.run, key, answer).await
    }

    /// The call has its result; gives what is still told.
    async fn ends(self) -> Vec<String> {
        let Self { script: _script, client: _client, mut run, asking, wait, task } = self;
        let result = task.map_or_else(|| answer("done"), |task| ended(task, "done"));
        let _asking = match wait {
            Some(wait) => {
                wait.result(result).await;
                Some(asking)
            }
            None => {
                asking.result(result).await;
                None
            }
        };
        unsettled(rest(&mut run).await)
    }
}

/// A page to open.
fn page() -> Value {
    json!({"method": "elicitation/create", "params": {"mode": "url", "message": "Sign in", "url": "https://example.com/sign-in", "elicitationId": "e1"}})
}

/// Something for a model to say.
fn sampling() -> Value {
    json!({"method": "sampling/createMessage", "params": {"messages": [{"role": "user", "content": text("Hi")}], "maxTokens": 10}})
}

#[tokio::test]
async fn a_form_is_asked_wherever_it_comes_and_answered_under_its_own_id() {
    for place in PLACES {
        for id in [json!(0), json!(7), json!("0"), json!("a-b"), json!(-3), json!(9_007_199_254_740_993_i64)] {
            let mut scene = Scene::at(place).await;
            scene.asks(&id, form("Name?")).await;
            let input = asked(&mut scene.run).await;
            assert_eq!(input.message, "Name?");
            assert!(matches!(&input.kind, InputKind::Form { schema } if schema["required"] == json!(["name"])), "{input:?}");
            let request: Value = input.request.read().expect("JSON");
            assert_eq!((&request["method"], &request["params"]["message"]), (&json!("elicitation/create"), &json!("Name?")));
            let message = scene.answers(&input.key, ada()).await;
            let result = json!({"action": "accept", "content": {"name": "Ada"}});
            assert_eq!(message, json!({"jsonrpc": "2.0", "id": id, "result": result}), "{place:?}");
            assert_eq!(scene.ends().await, ["done: done"], "{place:?} {id}");
        }
    }
}

#[tokio::test]
async fn whatever_the_person_does_is_sent() {
    for place in PLACES {
        let actions = [(Answer::decline(), json!({"action": "decline"})), (Answer::cancel(), json!({"action": "cancel"}))];
        for (answer, result) in actions {
            let mut scene = Scene::at(place).await;
            scene.asks(&json!(1), form("Name?")).await;
            let key = asked(&mut scene.run).await.key;
            assert_eq!(scene.answers(&key, answer).await["result"], result, "{place:?}");
        }
    }
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_not_sent_and_one_is_enough() {
    for place in PLACES {
        let mut scene = Scene::at(place).await;
        scene.asks(&json!(1), form("Name?")).await;
        let key = asked(&mut scene.run).await.key;
        for misfit in [json!({}), json!({"name": "A"}), json!({"name": 5})] {
            let refusal = scene.run.answer(&key, Answer::accept(misfit)).await.expect_err("it does not fit");
            assert!(matches!(&refusal, Error::Answer { key: of, .. } if *of == key), "{refusal}");
        }
        let refusal = scene.run.answer("nobody asked", ada()).await.expect_err("there is no such question");
        assert!(matches!(refusal, Error::NoQuestion { .. }), "{refusal}");
        scene.answers(&key, ada()).await;
        let refusal = scene.run.answer(&key, Answer::decline()).await.expect_err("it was answered");
        assert!(matches!(refusal, Error::Answered { .. }), "{refusal}");
        assert_eq!(scene.script.count("response"), 1, "{place:?}");
        assert_eq!(scene.ends().await, ["done: done"], "{place:?}");
    }
}

#[tokio::test]
async fn a_page_is_shown_and_agreed_to() {
    for place in PLACES {
        let mut scene = Scene::at(place).await;
        scene.asks(&json!("u"), page()).await;
        let input = asked(&mut scene.run).await;
        assert!(matches!(&input.kind, InputKind::Url { url } if url == "https://example.com/sign-in"), "{input:?}");
        assert_eq!(scene.answers(&input.key, Answer::accept_url()).await["result"], json!({"action": "accept"}));
        // That the person is done there is told besides, or not.
        scene.asking.notify("notifications/elicitation/complete", json!({"elicitationId": "e1"})).await;
        scene.asking.notify("notifications/elicitation/complete", json!({"elicitationId": "unknown"})).await;
        assert_eq!(scene.ends().await, ["done: done"], "{place:?}");
    }
}

#[tokio::test]
async fn a_model_is_asked_for_where_there_is_one() {
    for place in PLACES {
        let mut scene = Scene::able(place, Asks { sampling: true, ..Asks::default() }).await;
        scene.asks(&json!(3), sampling()).await;
        let input = asked(&mut scene.run).await;
        assert!(matches!(&input.kind, InputKind::Sampling { params } if params["maxTokens"] == 10), "{input:?}");
        let message = json!({"role": "assistant", "content": text("hello"), "model": "m"});
        assert_eq!(scene.answers(&input.key, Answer::result(message.clone())).await["result"], message);
        assert_eq!(scene.ends().await, ["done: done"], "{place:?}");
    }
}

#[tokio::test]
async fn what_needs_nobody_is_answered_at_once_and_without_a_word() {
    let root = json!({"uri": "file:///a", "name": "a"});
    for place in PLACES {
        let mut scene = Scene::able(place, Asks { roots: Some(vec![root.clone()]), ..Asks::default() }).await;
        for id in [json!(0), json!("p")] {
            assert_eq!(scene.reply_to(&id, json!({"method": "ping"})).await["result"], json!({}), "{place:?}");
        }
        assert_eq!(scene.reply_to(&json!(1), json!({"method": "roots/list"})).await["result"], json!({"roots": [root]}), "{place:?}");
        assert_eq!(scene.ends().await, ["done: done"], "{place:?}");
    }
}

#[tokio::test]
async fn what_the_client_did_not_declare_is_refused_and_nobody_is_bothered() {
    let nothing = Asks { form: false, url: false, sampling: false, roots: None };
    let cases: [(Asks, Value, &[i64]); 6] = [
        (Asks::default(), sampling(), &[-32601, -32602]),
        (Asks::default(), json!({"method": "roots/list"}), &[-32601]),
        (Asks { url: false, ..Asks::default() }, page(), &[-32602]),
        (Asks { form: false, ..Asks::default() }, form("Name?"), &[-32602]),
        (nothing, form("Name?"), &[-32601, -32602]),
        (Asks::default(), json!({"method": "something/else", "params": {"a": 1}}), &[-32601]),
    ];
    for place in PLACES {
        for (asks, what, codes) in cases.clone() {
            let mut scene = Scene::able(place, asks).await;
            let reply = scene.reply_to(&json!("q"), what.clone()).await;
            let code = reply["error"]["code"].as_i64().unwrap_or_else(|| panic!("{place:?}: {reply} to {what}"));
            assert!(codes.contains(&code), "{place:?}: {reply} to {what}");
            assert!(reply["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{reply}");
            assert_eq!(scene.ends().await, ["done: done"], "{place:?}: {what}");
        }
    }
}

#[tokio::test]
async fn a_question_that_is_withdrawn_needs_no_answer() {
    for place in PLACES {
        let mut scene = Scene::at(place).await;
        scene.asks(&json!(4), form("Name?")).await;
        let key = asked(&mut scene.run).await.key;
        scene.asking.notify("notifications/cancelled", json!({"requestId": 4, "reason": "never mind"})).await;
        until(&mut scene.run, "it is settled", |event| matches!(event, Event::Settled { key: of } if *of == key)).await;
        let refusal = scene.run.answer(&key, ada()).await.expect_err("nobody waits for it");
        assert!(matches!(refusal, Error::NoQuestion { .. } | Error::Answered { .. }), "{refusal}");
        assert_eq!(scene.script.count("response"), 0);
        assert_eq!(scene.ends().await, ["done: done"], "{place:?}");
    }
}

#[tokio::test]
async fn a_question_that_comes_on_two_streams_is_asked_and_answered_once() {
    for first_on_wait in [true, false] {
        let mut scene = Scene::at(Place::Stand).await;
        let mut wait = scene.wait.take().expect("a wait");
        let same = question(&json!("q1"), form("Name?"), Some("t1"));
        for on_wait in [first_on_wait, !first_on_wait, first_on_wait] {
            let stream = if on_wait { &mut wait } else { &mut scene.asking };
            stream.event(same.clone()).await;
        }
        let key = asked(&mut scene.run).await.key;
        scene.answers(&key, ada()).await;
        // And again, when it was answered.
        wait.event(same.clone()).await;
        scene.asking.event(same).await;
        scene.wait = Some(wait);
        assert_eq!(scene.script.count("response"), 1);
        assert_eq!(scene.ends().await, ["done: done"], "it is not asked again");
    }
}

#[tokio::test]
async fn a_question_that_a_new_wait_repeats_is_not_asked_again() {
    let script = scripted().await;
    // A server that asks under two names may be answered under either, or under both.
    script.may_remain("response");
    let client = joined(&script, options(&script), having(json!({}))).await;
    let (mut run, mut wait) = begun(&script, &client, "t1").await;
    // Our own servers say in the name of a request which question it is; of others nobody can tell.
    let (first, again) = (json!("t1.1.name"), json!("t1.2.name"));
    wait.event(question(&first, form("Name?"), Some("t1"))).await;
    let key = asked(&mut run).await.key;
    wait.cut();
    let mut wait = script.as_time_passes("another wait", 10 * MS, awaited(&script, "tasks/result")).await.sse().await;
    wait.event(question(&again, form("Name?"), Some("t1"))).await;
    // What follows was read behind it.
    wait.event(status(but(shown("t1", "input_required"), json!({"statusMessage": "asked"})))).await;
    let mut told = Vec::new();
    while told.last().is_none_or(|told| told != "input_required: asked") {
        told.push(brief(&next(&mut run).await.expect("the run goes on")));
    }
    assert!(!told.iter().any(|brief| brief.starts_with("asks")), "{told:?}");
    let message = answers(&script, &run, &key, ada()).await;
    assert!(message["id"] == first || message["id"] == again, "{message}");
    assert_eq!(message["result"], json!({"action": "accept", "content": {"name": "Ada"}}));
    wait.result(ended("t1", "done")).await;
    assert_eq!(unsettled(rest(&mut run).await), ["done: done"]);
}

#[tokio::test]
async fn the_same_words_asked_twice_on_one_stream_are_two_questions() {
    for place in PLACES {
        let mut scene = Scene::at(place).await;
        let mut keys = Vec::new();
        for (id, name) in [(1, "Ada"), (2, "Grace")] {
            scene.asks(&json!(id), form("Name?")).await;
            let key = asked(&mut scene.run).await.key;
            let message = scene.answers(&key, Answer::accept(json!({"name": name}))).await;
            assert_eq!((&message["id"], &message["result"]["content"]["name"]), (&json!(id), &json!(name)), "{place:?}");
            assert!(!keys.contains(&key), "{key} and {keys:?}");
            keys.push(key);
        }
        assert_eq!(scene.ends().await, ["done: done"], "{place:?}");
    }
}

#[tokio::test]
async fn two_questions_at_once_are_answered_in_any_order() {
    for place in PLACES {
        let mut scene = Scene::at(place).await;
        scene.asks(&json!(1), form("First name?")).await;
        scene.asks(&json!(2), form("Last name?")).await;
        let (first, second) = (asked(&mut scene.run).await, asked(&mut scene.run).await);
        assert_eq!((first.message.as_str(), second.message.as_str()), ("First name?", "Last name?"));
        assert_ne!(first.key, second.key);
        assert_eq!(scene.answers(&second.key, ada()).await["id"], 2);
        assert_eq!(scene.answers(&first.key, ada()).await["id"], 1);
        assert_eq!(scene.ends().await, ["done: done"], "{place:?}");
    }
}

#[tokio::test]
async fn a_question_on_the_standing_stream_goes_to_the_task_that_it_names() {
    let script = scripted().await;
    script.no_longer("tasks/get");
    script.may_remain("tasks/get");
    let (client, mut stand) = stood(&script, options(&script), having(json!({}))).await;
    let (mut one, one_wait) = begun(&script, &client, "t1").await;
    let (mut two, two_wait) = begun(&script, &client, "t2").await;
    stand.event(question(&json!(1), form("Of two?"), Some("t2"))).await;
    stand.event(question(&json!(2), form("Of one?"), Some("t1"))).await;
    let (of_two, of_one) = (asked(&mut two).await, asked(&mut one).await);
    assert_eq!((of_one.message.as_str(), of_two.message.as_str()), ("Of one?", "Of two?"));
    assert_eq!(answers(&script, &one, &of_one.key, ada()).await["id"], 2);
    assert_eq!(answers(&script, &two, &of_two.key, ada()).await["id"], 1);
    one_wait.result(ended("t1", "one")).await;
    two_wait.result(ended("t2", "two")).await;
    assert_eq!(unsettled(rest(&mut one).await), ["done: one"]);
    assert_eq!(unsettled(rest(&mut two).await), ["done: two"]);
}

#[tokio::test]
async fn a_question_on_the_standing_stream_that_names_nothing_belongs_to_the_only_call() {
    let script = scripted().await;
    script.always("tools/list", tools_of("forbidden"));
    let (client, mut stand) = stood(&script, options(&script), having(json!({}))).await;
    let (mut run, events) = started(&client, async {
        let call = script.expect("tools/call").await;
        let mut events = call.sse().await;
        events.prime("c:1").await;
        stand.event(question(&json!(0), form("Name?"), None)).await;
        events
    })
    .await;
    let key = asked(&mut run).await.key;
    assert_eq!(answers(&script, &run, &key, ada()).await["id"], 0);
    events.result(answer("done")).await;
    assert_eq!(unsettled(rest(&mut run).await), ["done: done"]);
}

#[tokio::test]
async fn a_call_asks_who_was_named_to_answer_or_says_that_nobody_is_there() {
    for is_somebody in [true, false] {
        for place in [Place::Call, Place::Wait] {
            let script = scripted().await;
            let somebody = answer_with(|input: Input| async move { Answer::accept(json!({"name": input.message})) });
            let options = Options { answers: is_somebody.then_some(somebody), ..options(&script) };
            let client = joined(&script, options, having(json!({}))).await;
            let playing = async {
                let call = awaited(&script, "tools/call").await;
                let (mut events, result) = if place == Place::Call {
                    (call.sse().await, answer("done"))
                } else {
                    call.result(made("t1")).await;
                    (script.expect_of("tasks/result", "t1").await.sse().await, ended("t1", "done"))
                };
                let task = (place == Place::Wait).then_some("t1");
                events.event(question(&json!(5), form("Name?"), task)).await;
                let reply = script.expect_reply().await;
                let message = reply.message.clone();
                reply.empty(202).await;
                events.result(result).await;
                message
            };
            let (outcome, message) = called(&client, json!({}), playing).await;
            assert_eq!(end(&outcome.expect("a result")), "done: done");
            let expected =
                if is_somebody { json!({"action": "accept", "content": {"name": "Name?"}}) } else { json!({"action": "cancel"}) };
            assert_eq!((&message["id"], &message["result"]), (&json!(5), &expected), "{place:?}");
        }
    }
}

// A6: core tasks.

#[tokio::test]
async fn a_call_is_made_a_task_only_where_server_and_tool_allow_it() {
    let without = json!({"tools": {}});
    let elsewhere = json!({"tools": {}, "tasks": {"list": {}, "cancel": {}, "requests": {"sampling": {"createMessage": {}}}}});
    for (capabilities, can) in [(having(json!({})), true), (without, false), (elsewhere, false)] {
        for (support, wants) in [(None, false), (Some("forbidden"), false), (Some("optional"), true), (Some("required"), true)] {
            let script = scripted().await;
            let mut tools = tools_of("optional");
            match support {
                Some(support) => tools["tools"][0]["execution"]["taskSupport"] = support.into(),
                None => drop(tools["tools"][0].as_object_mut().expect("a tool").remove("execution")),
            }
            script.always("tools/list", tools);
            let client = joined(&script, options(&script), capabilities.clone()).await;
            let (outcome, task) = called(&client, json!({"a": 1}), async {
                let call = awaited(&script, "tools/call").await;
                assert_eq!((&call.params()["name"], &call.params()["arguments"]), (&json!("job"), &json!({"a": 1})));
                assert_eq!(call.meta().get(RELATED), None, "{call:?}");
                let task = call.params().get("task").cloned();
                if task.is_some() {
                    call.result(made("t1")).await;
                    script.expect_of("tasks/result", "t1").await.result(ended("t1", "done")).await;
                } else {
                    call.result(answer("done")).await;
                }
                task
            })
            .await;
            assert_eq!(end(&outcome.expect("a result")), "done: done");
            assert_eq!(task, (can && wants).then(|| json!({})), "{support:?} at {capabilities}");
        }
    }
}

#[tokio::test]
async fn what_a_tool_says_of_tasks_is_shown() {
    let script = scripted().await;
    let said = ["forbidden", "optional", "required"];
    let mut tools: Vec<Value> = said.iter().map(|support| but(tools_of(support)["tools"][0].clone(), json!({"name": support}))).collect();
    let silent = but(tools[0].clone(), json!({"name": "silent", "execution": null}));
    tools.push(silent);
    tools[1]["execution"]["streamPartial"] = true.into();
    script.always("tools/list", json!({"tools": tools}));
    let client = joined(&script, options(&script), having(json!({}))).await;
    let listed = soon("the tools", client.tools()).await.expect("tools");
    let tool = |name: &str| listed.iter().find(|tool| tool.name == name).unwrap_or_else(|| panic!("no {name}"));
    for name in said {
        assert_eq!(tool(name).streams, name == "optional");
    }
    assert!(matches!(tool("forbidden").task, TaskSupport::Forbidden));
    assert!(matches!(tool("optional").task, TaskSupport::Optional));
    assert!(matches!(tool("required").task, TaskSupport::Required));
    assert!(matches!(tool("silent").task, TaskSupport::Forbidden), "that is what silence means");
}

#[tokio::test]
async fn the_result_is_waited_for_and_the_state_asked_for_beneath() {
    let script = scripted().await;
    script.no_longer("tasks/get");
    let client = joined(&script, options(&script), having(json!({}))).await;
    let slow = json!({"task": but(shown("t1", "working"), json!({"pollInterval": 5_000}))});
    let (mut run, ()) = started(&client, async { awaited(&script, "tools/call").await.result(slow).await }).await;
    let wait = waited(&script, &mut run, "t1").await;
    assert_eq!(wait.params().get("lastSeqNr"), None);
    let wait = wait.sse().await;
    // Nobody tells it anything: it looks for itself, and not more often than the server wants.
    let mut looks = Vec::new();
    for said in ["one", "two", "three"] {
        let look = script.as_time_passes("a look", 100 * MS, script.expect_of("tasks/get", "t1")).await;
        is_ours(&look);
        looks.push(look.at);
        look.result(but(shown("t1", "working"), json!({"pollInterval": 5_000, "statusMessage": said}))).await;
        until(&mut run, said, |event| matches!(event, Event::Status(view) if view.message.as_deref() == Some(said))).await;
    }
    for pair in looks.windows(2) {
        assert!(pair[1].since(pair[0]) >= 5 * SECOND, "{:?}", pair[1].since(pair[0]));
    }
    script.may_remain("tasks/get");
    wait.result(ended("t1", "done")).await;
    assert_eq!(rest(&mut run).await, ["done: done"]);
}

#[tokio::test]
async fn what_a_task_says_when_it_is_made_is_told_once() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    let thinking = json!({"task": but(shown("t1", "working"), json!({"statusMessage": "thinking"}))});
    let (mut run, ()) = started(&client, async { awaited(&script, "tools/call").await.result(thinking).await }).await;
    for told in ["task t1", "working: thinking"] {
        assert_eq!(brief(&next(&mut run).await.expect("an event")), told);
    }
    let wait = waited(&script, &mut run, "t1").await;
    wait.result(ended("t1", "done")).await;
    assert_eq!(rest(&mut run).await, ["done: done"]);
}

#[tokio::test]
async fn a_wait_that_says_nothing_does_not_hide_the_end() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    let (mut run, _silent) = begun(&script, &client, "t1").await;
    script.always("tasks/get", shown("t1", "completed"));
    let again = script.as_time_passes("another wait", 100 * MS, awaited(&script, "tasks/result")).await;
    again.result(ended("t1", "done")).await;
    assert_eq!(rest(&mut run).await, ["done: done"]);
}

#[tokio::test]
async fn a_state_that_is_told_is_shown_and_not_relied_upon() {
    let script = scripted().await;
    let (client, mut stand) = stood(&script, options(&script), having(json!({}))).await;
    // Of a task that nobody knows yet, or never will.
    stand.event(status(shown("t1", "working"))).await;
    stand.event(status(shown("unknown", "failed"))).await;
    let (mut run, wait) = begun(&script, &client, "t1").await;
    stand.event(status(shown("unknown", "cancelled"))).await;
    stand.event(status(but(shown("t1", "working"), json!({"statusMessage": "half way"})))).await;
    until(&mut run, "the state", |event| matches!(event, Event::Status(view) if view.message.as_deref() == Some("half way"))).await;
    // It is over when its result says so; until then whoever says so may be wrong.
    stand.event(status(but(shown("t1", "working"), json!({"statusMessage": "not yet"})))).await;
    until(&mut run, "the state", |event| matches!(event, Event::Status(view) if view.message.as_deref() == Some("not yet"))).await;
    wait.result(ended("t1", "done")).await;
    assert_eq!(rest(&mut run).await, ["done: done"]);
}

#[tokio::test]
async fn a_task_may_be_made_in_another_state_than_at_work() {
    for state in ["input_required", "completed"] {
        let script = scripted().await;
        script.always("tasks/get", shown("t1", state));
        let client = joined(&script, options(&script), having(json!({}))).await;
        let (mut run, ()) = started(&client, async {
            awaited(&script, "tools/call").await.result(json!({"task": shown("t1", state)})).await;
        })
        .await;
        waited(&script, &mut run, "t1").await.result(ended("t1", "done")).await;
        assert_eq!(rest(&mut run).await, ["done: done"], "{state}");
    }
}

#[tokio::test]
async fn a_tool_that_failed_is_a_failed_task_with_a_result() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    let (mut run, wait) = begun(&script, &client, "t1").await;
    script.always("tasks/get", shown("t1", "failed"));
    let result = but(ended("t1", "no such file"), json!({"isError": true, "structuredContent": {"line": 3}}));
    wait.result(result.clone()).await;
    let event = until(&mut run, "the end", |event| matches!(event, Event::Done(_))).await;
    let Event::Done(Outcome::Result(finished)) = event else { panic!("{event:?}") };
    assert_eq!((finished.is_error, finished.text().as_str()), (true, "no such file"));
    assert_eq!(finished.structured, Some(json!({"line": 3})));
    // Who looks at it may be given its result, too.
    let view = tokio::select! {
        view = client.task("t1") => view,
        never = answering(&script, "tasks/result", result) => never,
    };
    let view = view.expect("it is there");
    assert_eq!((view.status, view.status.is_terminal()), (Status::Failed, true));
}

#[tokio::test]
async fn the_error_of_a_task_passes_as_it_is() {
    for as_json in [true, false] {
        let script = scripted().await;
        let client = joined(&script, options(&script), having(json!({}))).await;
        let mut run = made_by(&script, &client, "t1").await;
        script.always("tasks/get", but(shown("t1", "failed"), json!({"statusMessage": "shorter"})));
        let wait = waited(&script, &mut run, "t1").await;
        let data = json!({"why": ["a", 1]});
        if as_json {
            wait.error(200, -31999, "broken in two", data.clone()).await;
        } else {
            wait.sse().await.error(-31999, "broken in two", data.clone()).await;
        }
        let event = until(&mut run, "the end", |event| matches!(event, Event::Done(_))).await;
        let Event::Done(Outcome::Failed(error)) = event else { panic!("{event:?}") };
        assert_eq!((error.code, error.message.as_str()), (-31999, "broken in two"));
        assert_eq!(error.data.map(|data| data.read::<Value>().expect("JSON")), Some(data));
    }
}

#[tokio::test]
async fn a_task_is_called_off_and_ends_so() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    let (mut run, wait) = begun(&script, &client, "t1").await;
    let off = but(shown("t1", "cancelled"), json!({"statusMessage": "as you wish"}));
    let playing = async {
        script.always("tasks/get", off.clone());
        script.expect_of("tasks/cancel", "t1").await.result(off.clone()).await;
    };
    let (cancelled, ()) = tokio::join!(run.cancel(), playing);
    cancelled.expect("asked for");
    // What a server says to who waits for the result of such a task is its own affair.
    wait.error(-32603, "Task t1 has no result stored", Value::Null).await;
    assert_eq!(rest(&mut run).await, ["cancelled: as you wish"]);
}

#[tokio::test]
async fn a_task_that_has_ended_can_be_called_off_without_effect() {
    for state in ["completed", "failed", "cancelled"] {
        let script = scripted().await;
        script.always("tasks/get", shown("t1", state));
        let client = joined(&script, options(&script), having(json!({}))).await;
        let playing = async {
            let cancel = script.expect_of("tasks/cancel", "t1").await;
            cancel.error(200, -32602, &format!("Cannot cancel task in terminal status: {state}"), Value::Null).await;
        };
        let (cancelled, ()) = soon("the answer", async { tokio::join!(client.cancel("t1"), playing) }).await;
        cancelled.unwrap_or_else(|error| panic!("{state}: {error}"));
    }
}

#[tokio::test]
async fn a_task_that_nobody_knows_is_not_found() {
    let script = scripted().await;
    script.no_longer("tasks/get");
    let client = joined(&script, options(&script), having(json!({}))).await;
    let view = tokio::select! {
        view = client.task("gone") => view.map(drop),
        never = never_known(&script) => never,
    };
    let cancelled = tokio::select! {
        cancelled = client.cancel("gone") => cancelled,
        never = never_known(&script) => never,
    };
    for answer in [view, cancelled] {
        assert!(matches!(&answer, Err(Error::NotFound { task }) if task == "gone"), "{answer:?}");
    }
    assert_eq!(script.count("tasks/cancel"), 1);
}

/// Knows no task at all.
async fn never_known<T>(script: &Script) -> T {
    loop {
        let asked = script.expect_where("a question about a task", |asked| asked.kind().starts_with("tasks/")).await;
        asked.error(200, -32602, "Task not found", Value::Null).await;
    }
}

#[tokio::test]
async fn a_task_whose_time_is_over_while_it_is_waited_for_is_not_waited_for_any_longer() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    let (mut run, wait) = begun(&script, &client, "t1").await;
    script.no_longer("tasks/get");
    script.may_remain("tasks/get");
    wait.error(-32602, "Task has expired", Value::Null).await;
    let ending = async {
        loop {
            match run.next().await.expect("a last word") {
                Ok(Event::Done(outcome)) => return Ok(outcome),
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
    };
    let ending = async {
        tokio::select! {
            end = ending => end,
            never = never_known(&script) => never,
        }
    };
    match script.as_time_passes("the end", 100 * MS, ending).await {
        Err(Error::NotFound { task }) => assert_eq!(task, "t1"),
        Ok(Outcome::Failed(error)) => assert_eq!(error.code, -32602),
        other => panic!("{other:?}"),
    }
    assert!(soon("the end", run.next()).await.is_none());
}

#[tokio::test]
async fn progress_of_a_task_comes_under_the_name_of_its_call() {
    let script = scripted().await;
    let (client, mut stand) = stood(&script, options(&script), having(json!({}))).await;
    let (mut run, token) = started(&client, async {
        let call = awaited(&script, "tools/call").await;
        let token = call.meta()["progressToken"].clone();
        call.result(made("t1")).await;
        token
    })
    .await;
    let mut wait = waited(&script, &mut run, "t1").await.sse().await;
    wait.event(progress(&token, json!({"progress": 1, "total": 2, "_meta": related("t1")}))).await;
    assert_eq!(told(&mut run, 1).await, ["progress 1 of 2"]);
    stand.event(progress(&token, json!({"progress": 2, "total": 2, "_meta": related("t1")}))).await;
    assert_eq!(told(&mut run, 1).await, ["progress 2 of 2"]);
    wait.result(ended("t1", "done")).await;
    assert_eq!(rest(&mut run).await, ["done: done"]);
}

#[tokio::test]
async fn a_task_is_picked_up_by_its_reference() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    let (run, wait) = begun(&script, &client, "t1").await;
    let reference = run.reference().expect("it is a task");
    drop((run, wait));
    // It is data, and outlives a process.
    let text = serde_json::to_string(&reference).expect("JSON");
    let reference = serde_json::from_str(&text).expect("the same");
    let mut run = soon("the run", client.attach(&reference)).await.expect("a run");
    assert_eq!(told(&mut run, 1).await, ["task t1"]);
    waited(&script, &mut run, "t1").await.result(ended("t1", "done")).await;
    assert_eq!(rest(&mut run).await, ["done: done"]);
    assert_eq!(script.count("tools/call"), 1);
}

// Our own server, by HTTP and in this process.

/// The ways to a server.
fn ways(server: &TestServer) -> [Target; 2] {
    [Target::Url(format!("http://127.0.0.1:{}/mcp", server.port)), Target::from(&server.server)]
}

/// A client of this era.
pub(crate) async fn client_of(target: Target, options: Options) -> Client {
    let options = Options { era: Some(Era::Legacy), ..options };
    soon("the connection", Client::connect(target, options)).await.expect("a connection")
}

/// Asks for a name, and says it.
fn asks() -> Tool {
    tool("asks", &(), |(), ctx| async move {
        let answer = ctx.ask("name", name_form("Name?")).await?;
        Ok(name_in(&answer))
    })
}

/// Starts a tool.
async fn starts(client: &Client, tool: &str) -> Run {
    soon("the start", client.start(tool, json!({}))).await.expect("a run")
}

#[tokio::test]
async fn ours_a_call_has_its_result_as_a_task_or_not() {
    let modes = [("never", TaskMode::Never), ("auto", TaskMode::Auto), ("always", TaskMode::Always), ("required", TaskMode::Required)];
    let server = TestServer::start(registry(modes.map(|(name, mode)| quick(name).task(mode)))).await;
    for target in ways(&server) {
        let client = client_of(target, Options::default()).await;
        assert_eq!((client.peer().era, client.peer().protocol.as_str()), (Era::Legacy, LATEST));
        assert!(client.peer().tasks && client.peer().partials);
        for (name, _) in modes {
            let outcome = soon("the result", client.call(name, json!({}))).await.expect("a result");
            assert_eq!(end(&outcome), "done: done", "{name}");
        }
        soon("the end", client.close()).await;
    }
}

#[tokio::test]
async fn ours_output_comes_as_it_is_made() {
    for way in 0..2 {
        let mut stage = Stage::of(Config::default(), Tool::streams).await;
        let client = client_of(ways(&stage.server)[way].clone(), Options::default()).await;
        let (mut run, mut act) = tokio::join!(starts(&client, "writes"), stage.run());
        let Some(Event::Task(reference)) = next_told(&mut run).await else { panic!("it is a task") };
        assert_eq!((reference.era, reference.tool.as_str(), reference.next), (Era::Legacy, "writes", 0));
        for (n, text) in ["one", "two", "three"].into_iter().enumerate() {
            act.writes(text).await;
            assert_eq!(told(&mut run, 1).await, [format!("{n} {text}")]);
        }
        assert_eq!(run.reference().map(|reference| reference.next), Some(3));
        act.writes("four").await;
        act.ends("done");
        assert_eq!(rest(&mut run).await, ["3 four", "done: done"]);
    }
}

#[tokio::test]
async fn ours_asks_and_is_answered() {
    for mode in [TaskMode::Auto, TaskMode::Never] {
        let server = TestServer::start(registry([asks().task(mode)])).await;
        for target in ways(&server) {
            let client = client_of(target.clone(), Options::default()).await;
            let mut run = starts(&client, "asks").await;
            let input = asked(&mut run).await;
            assert_eq!(input.message, "Name?");
            soon("the answer", run.answer(&input.key, ada())).await.expect("taken");
            assert_eq!(last(&mut run).await, "done: Ada", "{mode:?} at {target}");
            // And by who was named to answer.
            let options = Options { answers: Some(answer_with(|_: Input| async { ada() })), ..Options::default() };
            let client = client_of(target.clone(), options).await;
            let outcome = soon("the result", client.call("asks", json!({}))).await.expect("a result");
            assert_eq!(end(&outcome), "done: Ada", "{mode:?} at {target}");
        }
    }
}

#[tokio::test]
async fn ours_is_answered_by_somebody_else_and_picked_up_again() {
    let server = TestServer::start(registry([asks()])).await;
    let [target, _] = ways(&server);
    let client = client_of(target.clone(), Options::default()).await;
    let mut run = starts(&client, "asks").await;
    let key = asked(&mut run).await.key;
    let reference = run.detach().expect("it is a task");
    let task = reference.task.clone().expect("a name");
    let other = client_of(target, Options::default()).await;
    soon("the answer", other.answer(&task, &key, ada())).await.expect("taken");
    let mut run = soon("the run", other.attach(&reference)).await.expect("a run");
    assert_eq!(last(&mut run).await, "done: Ada");
}

#[tokio::test]
async fn ours_is_called_off() {
    for way in 0..2 {
        let gate = Gate::new();
        let server = TestServer::start(registry([gate.tool("slow")])).await;
        let client = client_of(ways(&server)[way].clone(), Options::default()).await;
        let mut run = starts(&client, "slow").await;
        soon("the tool", gate.started.wait()).await;
        let task = run.reference().and_then(|reference| reference.task).expect("it is a task");
        soon("the answer", run.cancel()).await.expect("asked for");
        assert!(last(&mut run).await.starts_with("cancelled"));
        soon("the word to stop", gate.stopped.wait()).await;
        let view = soon("a look", client.task(&task)).await.expect("it is there");
        assert_eq!(view.status, Status::Cancelled);
        soon("the answer", client.cancel(&task)).await.expect("it is off already");
    }
}

#[tokio::test]
async fn ours_stops_a_held_call_that_nobody_wants_any_more() {
    for way in 0..2 {
        let gate = Gate::new();
        let slow = tool("slow", &gate, |gate, ctx| async move {
            ctx.progress(Progress::of(1.0, 2.0).message("half")).await?;
            ctx.cancelled().await;
            gate.stopped.send();
            Err::<(), _>(ToolError::stopped())
        });
        let server = TestServer::start(registry([slow.task(TaskMode::Never)])).await;
        let client = client_of(ways(&server)[way].clone(), Options::default()).await;
        let mut run = starts(&client, "slow").await;
        assert_eq!(told(&mut run, 1).await, ["progress 1 of 2: half"]);
        drop(run);
        soon("the word to stop", gate.stopped.wait()).await;
    }
}

#[tokio::test]
async fn ours_fails_in_either_way_and_is_understood() {
    let says = tool("says", &(), |(), _ctx| async move { Err::<(), _>(ToolError::new("bad")) });
    let fails = tool("fails", &(), |(), _ctx| async move { Err::<(), _>(ToolError::protocol(-31999, "broken")) });
    let server = TestServer::start(registry([says, fails])).await;
    for target in ways(&server) {
        let client = client_of(target, Options::default()).await;
        for (name, expected) in [("says", "tool failed: bad"), ("fails", "failed: -31999 broken")] {
            let mut run = starts(&client, name).await;
            assert_eq!(last(&mut run).await, expected);
        }
    }
}

// What stands between a client and our server.

/// Passes on what both say, and cuts them off when it is told to. It can keep a word from the server.
pub(crate) struct Between {
    port: u16,
    cuts: Arc<Notify>,
    accepting: JoinHandle<()>,
}

impl Between {
    /// Before the server at this port, which does not hear this word; an empty one hides nothing.
    pub(crate) async fn new(server: u16, hidden: &'static [u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let cuts = Arc::new(Notify::new());
        let accepting = tokio::spawn({
            let cuts = cuts.clone();
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    let cuts = cuts.clone();
                    tokio::spawn(async move {
                        tokio::select! {
                            () = pass(client, server, hidden) => {}
                            () = cuts.notified() => {}
                        }
                    });
                }
            }
        });
        Self { port, cuts, accepting }
    }

    pub(crate) fn target(&self) -> Target {
        Target::Url(format!("http://127.0.0.1:{}/mcp", self.port))
    }

    /// Cuts every connection.
    pub(crate) fn cut(&self) {
        self.cuts.notify_waiters();
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Passes on what both sides of a connection say, until one of them is gone.
async fn pass(client: TcpStream, server: u16, hidden: &[u8]) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = async {
        let mut bytes = Vec::new();
        while matches!(from_client.read_buf(&mut bytes).await, Ok(1..)) {
            while let Some(at) = place_of(hidden, &bytes) {
                // As long as before, and another word.
                bytes[at + 1] = b'x';
            }
            // What may become the word waits for the rest of it; no message ends like that.
            let begun = (1..hidden.len()).rev().find(|len| bytes.ends_with(&hidden[..*len])).unwrap_or(0);
            let rest = bytes.split_off(bytes.len() - begun);
            if to_server.write_all(&bytes).await.is_err() {
                return;
            }
            bytes = rest;
        }
    };
    tokio::select! {
        () = up => {}
        _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
    }
}

/// Where a word is, if it is one.
fn place_of(word: &[u8], bytes: &[u8]) -> Option<usize> {
    if word.is_empty() { None } else { bytes.windows(word.len()).position(|window| window == word) }
}

#[tokio::test]
async fn ours_a_call_that_was_cut_off_again_and_again_has_everything_once() {
    let mut stage = Stage::of(Config::default(), Tool::streams).await;
    let between = Between::new(stage.server.port, b"").await;
    let client = client_of(between.target(), impatient()).await;
    let (mut run, mut act) = tokio::join!(starts(&client, "writes"), stage.run());
    told(&mut run, 1).await;
    for n in 0..8 {
        // Before it is read, while it is, and when nothing is going on.
        if n % 3 == 0 {
            between.cut();
        }
        act.writes(&format!("<{n}>")).await;
        if n % 3 == 1 {
            between.cut();
        }
        assert_eq!(told(&mut run, 1).await, [format!("{n} <{n}>")]);
    }
    between.cut();
    act.ends("done");
    assert_eq!(rest(&mut run).await, ["done: done"]);
}

/// Comes back at once.
pub(crate) fn impatient() -> Options {
    let mut options = Options::default();
    options.timing.backoff = MS;
    options.timing.backoff_max = Duration::from_millis(20);
    options
}
