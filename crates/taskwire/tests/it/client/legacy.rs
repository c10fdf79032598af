//! The client in the legacy era: the handshake and its session, streams that it resumes, questions that are requests, and core
//! tasks. The server is a script that misbehaves where it can, and at the end our own.

use std::time::Duration;

use serde_json::{Value, json};
use taskwire::{
    client::{Answer, Call, Client, ClientCapabilities, Era, Error, Event, Options, Outcome, Question, Status, Target},
    clock::Clock,
    core::task::RpcError,
};

use super::script::{
    IDEMPOTENCY, KEY, MS, SECOND, ScriptedRequest, ScriptedServer, Sse, ada, brief, call_job, end, form, last, next, next_briefs,
    next_notable, response, rest, start_job, text, with_members,
};
use crate::kit::{TestServer, with_timeout};

mod ours;
mod questions;
mod tasks;

pub(crate) const LATEST: &str = "2025-11-25";
pub(crate) const RELATED: &str = "io.modelcontextprotocol/related-task";
const SESSION: &str = "session-1";

// What a server of this era says.

/// A script of this era: there is one tool, `job`, whose calls may be tasks, and `t1` is at work.
pub(crate) async fn scripted() -> ScriptedServer {
    let script = ScriptedServer::start().await;
    // A session stream may be wanted again at any time, and the end of a test is none of its business.
    for kind in ["GET", "DELETE", "notifications/cancelled"] {
        script.may_remain(kind);
    }
    script.always("tools/list", tools_of("optional"));
    script.always("tasks/get", shown("t1", "working"));
    script
}

/// Defaults for this era.
pub(crate) fn options(script: &ScriptedServer) -> Options {
    Options { era: Some(Era::Legacy), ..script.options() }
}

/// The result of `tools/list`: one tool that says this of tasks.
pub(crate) fn tools_of(support: &str) -> Value {
    json!({"tools": [{"name": "job", "description": "For a test", "inputSchema": {"type": "object"}, "execution": {"taskSupport": support}}]})
}

/// The capabilities of a server that has tasks, and these besides.
pub(crate) fn having(more: Value) -> Value {
    json!({"tools": {}, "tasks": with_members(json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}), more)})
}

/// The capabilities of a server that sends partial results.
pub(crate) fn partials() -> Value {
    having(json!({"streaming": {"partial": {}}}))
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
    with_members(answer(said), json!({"_meta": related(id)}))
}

/// The notification of a task's status.
pub(crate) fn status(task: Value) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/tasks/status", "params": task})
}

/// The notification of progress under this token.
pub(crate) fn progress(token: &Value, far: Value) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": with_members(far, json!({"progressToken": token}))})
}

/// A question as a request of the server.
pub(crate) fn question(id: &Value, question: Value, task: Option<&str>) -> Value {
    let mut request = with_members(question, json!({"jsonrpc": "2.0", "id": id}));
    if let Some(task) = task {
        request["params"]["_meta"] = related(task);
    }
    request
}

// How a client comes to it.

/// That a request belongs to this session.
#[track_caller]
fn is_of(asked: &ScriptedRequest, session: Option<&str>, version: &str) {
    assert_eq!((asked.header("mcp-session-id"), asked.header("mcp-protocol-version")), (session, Some(version)), "{asked:?}");
    let accepts = asked.header("accept").unwrap_or_default();
    match asked.http_method.as_str() {
        "GET" => assert!(accepts.contains("text/event-stream"), "{asked:?} accepts {accepts}"),
        "POST" => assert!(accepts.contains("application/json") && accepts.contains("text/event-stream"), "{asked:?} accepts {accepts}"),
        _ => {}
    }
}

#[track_caller]
fn is_ours(asked: &ScriptedRequest) {
    is_of(asked, Some(SESSION), LATEST);
}

/// Plays the handshake of a session with this name; gives what the client declares.
async fn greets(script: &ScriptedServer, session: &str, capabilities: Value) -> Value {
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
pub(crate) async fn declared(script: &ScriptedServer, options: Options) -> Value {
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

/// Has no session stream.
async fn never_stands<T>(script: &ScriptedServer) -> T {
    loop {
        script.expect_http("GET").await.empty(405).await;
    }
}

/// A client of a server that has these capabilities and no session stream.
pub(crate) async fn joined(script: &ScriptedServer, options: Options, capabilities: Value) -> Client {
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

/// A client of a server that has these capabilities, and its session stream.
pub(crate) async fn stood(script: &ScriptedServer, options: Options, capabilities: Value) -> (Client, Sse) {
    let greeting = async {
        greets(script, SESSION, capabilities).await;
        let stand = script.expect_http("GET").await;
        is_ours(&stand);
        stand.sse().await
    };
    let (client, stand) = tokio::join!(script.connects(options), greeting);
    (client.expect("a connection"), stand)
}

/// The next request of this method. Who asks for a session stream before it gets none.
pub(crate) async fn awaited(script: &ScriptedServer, method: &str) -> ScriptedRequest {
    loop {
        let fits =
            |asked: &ScriptedRequest| asked.message["method"] == method || (asked.http_method == "GET" && asked.last_event_id().is_none());
        let asked = script.expect_where(method, fits).await;
        if asked.http_method != "GET" {
            return asked;
        }
        asked.empty(405).await;
    }
}

/// The next stream that is to go on behind an event.
pub(crate) async fn comes_back(script: &ScriptedServer) -> ScriptedRequest {
    let again = script.expect_where("a stream that goes on", |asked| asked.last_event_id().is_some()).await;
    assert_eq!(again.http_method, "GET", "{again:?}");
    again
}

/// The next request for the result of a task, which comes when its call is read. Before it the call has become a task.
pub(crate) async fn waited(script: &ScriptedServer, call: &mut Call, task: &str) -> ScriptedRequest {
    let waiting = script.expect_of("tasks/result", task);
    tokio::pin!(waiting);
    loop {
        tokio::select! {
            asked = &mut waiting => return asked,
            event = call.next() => match event {
                Some(Ok(Event::Task(_) | Event::Status(_) | Event::Connection(_))) => {}
                other => panic!("{other:?} came before the result was waited for"),
            },
        }
    }
}

/// A call that has become this task.
pub(crate) async fn made_by(script: &ScriptedServer, client: &Client, task: &str) -> Call {
    start_job(client, async { awaited(script, "tools/call").await.result(made(task)).await }).await.0
}

/// A call that has become this task, and the stream on which the client waits for its result.
pub(crate) async fn begun(script: &ScriptedServer, client: &Client, task: &str) -> (Call, Sse) {
    let mut call = made_by(script, client, task).await;
    let wait = waited(script, &mut call, task).await.sse().await;
    (call, wait)
}

/// A call whose answer is an event stream that begins with this message.
pub(crate) async fn held(script: &ScriptedServer, client: &Client, first: impl FnOnce(&ScriptedRequest) -> Value) -> (Call, Sse) {
    let answering = async {
        let call = awaited(script, "tools/call").await;
        let first = first(&call);
        let mut events = call.sse().await;
        events.event(first).await;
        events
    };
    start_job(client, answering).await
}

/// Answers every request of this method with this result.
async fn answering<T>(script: &ScriptedServer, method: &str, result: Value) -> T {
    loop {
        let asked = script.expect(method).await;
        is_ours(&asked);
        asked.result(result.clone()).await;
    }
}

/// These events without those about settled questions.
pub(crate) fn unsettled(mut briefs: Vec<String>) -> Vec<String> {
    briefs.retain(|brief| !brief.starts_with("settled"));
    briefs
}

/// The next question of a call.
async fn asked(call: &mut Call) -> Question {
    loop {
        match next_notable(call).await {
            Some(Event::Question(input)) => return input,
            Some(Event::Done(outcome)) => panic!("it ended without a question: {}", end(&outcome)),
            Some(_) => {}
            None => panic!("it ended without a question"),
        }
    }
}

/// Reads events up to one that fits.
async fn until(call: &mut Call, what: &str, fits: impl Fn(&Event) -> bool) -> Event {
    loop {
        let event = next(call).await.unwrap_or_else(|| panic!("the run ended before {what}"));
        if fits(&event) {
            return event;
        }
    }
}

/// Answers a question, and gives the message that the server got.
async fn answers(script: &ScriptedServer, call: &Call, key: &str, answer: Answer) -> Value {
    let taking = async {
        let reply = script.expect_reply().await;
        is_ours(&reply);
        let message = reply.message.clone();
        reply.empty(202).await;
        message
    };
    let (answered, message) = with_timeout("the answer", async { tokio::join!(call.answer(key, answer), taking) }).await;
    answered.expect("taken");
    message
}

/// The error that a call ended with, whether the request or the task failed.
fn refused(outcome: Result<Outcome, Error>) -> RpcError {
    match outcome {
        Err(Error::Rpc(error)) | Ok(Outcome::Failed(error)) => error,
        Err(error) => panic!("another error: {error}"),
        Ok(outcome) => panic!("it ended well: {}", end(&outcome)),
    }
}

// How a client comes to our own server.

/// The ways to a server.
pub(crate) fn ways(server: &TestServer) -> [Target; 2] {
    [Target::Url(format!("http://127.0.0.1:{}/mcp", server.port)), Target::from(&server.server)]
}

/// A client of this era.
pub(crate) async fn client_of(target: Target, options: Options) -> Client {
    let options = Options { era: Some(Era::Legacy), ..options };
    with_timeout("the connection", Client::connect(target, options)).await.expect("a connection")
}

/// Comes back at once.
pub(crate) fn impatient() -> Options {
    let mut options = Options::default();
    options.timing.backoff = MS;
    options.timing.backoff_max = Duration::from_millis(20);
    options
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
    let peer = client.expect("a connection").server_info();
    assert_eq!(script.seen()[..2], ["initialize", "notifications/initialized"]);
    assert_eq!((peer.era, peer.protocol.as_str()), (Era::Legacy, LATEST));
    assert_eq!((peer.name.as_str(), peer.version.as_str(), peer.instructions.as_deref()), ("scripted", "1.2.3", Some("Be kind.")));
    assert_eq!((peer.tasks, peer.pushes_output, peer.idempotency), (true, false, false));
    assert!(peer.response_modes.is_empty(), "{:?}", peer.response_modes);
}

#[tokio::test]
async fn a_client_declares_what_it_can_be_asked_and_nothing_else() {
    let root = json!({"uri": "file:///a", "name": "a"});
    let nothing = ClientCapabilities { form: false, url: false, sampling: false, roots: None };
    let cases = [
        (nothing.clone(), json!([null, null, null])),
        (ClientCapabilities { form: true, ..nothing.clone() }, json!([{"form": {}}, null, null])),
        (ClientCapabilities { url: true, ..nothing.clone() }, json!([{"url": {}}, null, null])),
        (ClientCapabilities { sampling: true, ..nothing.clone() }, json!([null, {}, null])),
        (ClientCapabilities { roots: Some(vec![root]), ..nothing }, json!([null, null, {}])),
    ];
    for (asks, expected) in cases {
        let script = scripted().await;
        let declared = declared(&script, Options { capabilities: asks.clone(), ..options(&script) }).await;
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
    script.stop_answering("tools/list");
    script.stop_answering("tasks/get");
    script.may_remain("tasks/get");
    // The handshake and the session stream are looked at as they come.
    let (client, mut stand) = stood(&script, options(&script), having(json!({}))).await;
    let playing = async {
        let list = script.expect("tools/list").await;
        is_ours(&list);
        list.result(tools_of("optional")).await;
        let request = script.expect("tools/call").await;
        is_ours(&request);
        request.result(made("t1")).await;
    };
    let (mut call, ()) = start_job(&client, playing).await;
    let wait = waited(&script, &mut call, "t1").await;
    is_ours(&wait);
    let mut wait = wait.sse().await;
    let looking = async {
        tokio::select! {
            snapshot = client.task("t1") => snapshot,
            never = answering(&script, "tasks/get", shown("t1", "working")) => never,
        }
    };
    assert_eq!(with_timeout("a look", looking).await.expect("a task").status, Status::Working);
    wait.event(question(&json!(1), form("Name?"), Some("t1"))).await;
    let key = asked(&mut call).await.key;
    answers(&script, &call, &key, ada()).await;
    let cancelling = async {
        let cancel = script.expect_of("tasks/cancel", "t1").await;
        is_ours(&cancel);
        cancel.result(shown("t1", "cancelled")).await;
    };
    let (cancelled, ()) = tokio::join!(call.cancel(), cancelling);
    cancelled.expect("asked for");
    script.always("tasks/get", shown("t1", "cancelled"));
    wait.error(-32603, "Task was cancelled", Value::Null).await;
    assert!(last(&mut call).await.starts_with("cancelled"));
    let ending = async {
        let delete = script.expect_http("DELETE").await;
        is_ours(&delete);
        delete.empty(200).await;
        stand.closed().await;
    };
    with_timeout("the end", async { tokio::join!(client.close(), ending) }).await;
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
    let (outcome, ()) = call_job(&client, json!({}), async {
        let call = awaited(&script, "tools/call").await;
        is_of(&call, None, LATEST);
        call.result(answer("done")).await;
    })
    .await;
    assert_eq!(end(&outcome.expect("a result")), "done: done");
    with_timeout("the end", client.close()).await;
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
        assert_eq!((client.server_info().protocol.as_str(), client.server_info().tasks), (version, false));
        let (outcome, ()) = call_job(&client, json!({}), async {
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
    assert_eq!(client.expect("a connection").server_info().name, "scripted");
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
    let (outcome, ()) = script.as_time_passes("the call", 10 * MS, call_job(&client, json!({}), playing)).await;
    assert_eq!(end(&outcome.expect("a result")), "done: done");
    assert_eq!((script.count("initialize"), script.count("tools/call")), (2, 2));
}

#[tokio::test]
async fn a_session_that_is_forgotten_while_a_task_is_waited_for_is_opened_again_too() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    let mut call = made_by(&script, &client, "t1").await;
    let lost = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32001, "message": "Session not found"}});
    waited(&script, &mut call, "t1").await.json(404, lost).await;
    let playing = async {
        greets(&script, "session-2", having(json!({}))).await;
        let again = awaited(&script, "tasks/result").await;
        is_of(&again, Some("session-2"), LATEST);
        again.result(ended("t1", "done")).await;
    };
    script.as_time_passes("another wait", 10 * MS, playing).await;
    assert_eq!(rest(&mut call).await, ["done: done"]);
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
    let (outcome, ()) = script.as_time_passes("the call", 10 * MS, call_job(&client, json!({}), playing)).await;
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
            let (outcome, ()) =
                call_job(&client, json!({}), async { script.expect("tools/call").await.result(answer("done")).await }).await;
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
        let (outcome, _events) = script.as_time_passes("the call", 10 * MS, call_job(&client, json!({}), playing)).await;
        assert_eq!(end(&outcome.expect("a result")), "done: done");
        assert_eq!(script.count("tools/call"), 1);
    }
}

#[tokio::test]
async fn a_response_counts_on_whatever_stream_it_comes() {
    let script = scripted().await;
    script.always("tools/list", tools_of("forbidden"));
    let (client, mut stand) = stood(&script, options(&script), having(json!({}))).await;
    let (outcome, _call) = call_job(&client, json!({}), async {
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
    let keeping = with_members(having(json!({})), json!({"experimental": {IDEMPOTENCY: {}}}));
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
        let (outcome, ()) = script.as_time_passes("the call", 10 * MS, call_job(&client, json!({}), playing)).await;
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
        let (mut call, mut wait) = begun(&script, &client, "t1").await;
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
        assert_eq!(rest(&mut call).await, ["done: done"], "has ids: {has_ids}");
    }
}

#[tokio::test]
async fn a_stream_that_the_server_does_not_know_any_more_is_waited_for_anew() {
    for status in [400, 404] {
        let script = scripted().await;
        let client = joined(&script, options(&script), having(json!({}))).await;
        let (mut call, mut wait) = begun(&script, &client, "t1").await;
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
        assert_eq!(rest(&mut call).await, ["done: done"], "{status}");
        assert_eq!(script.count("tools/call"), 1);
    }
}

#[tokio::test]
async fn a_stream_that_the_server_still_takes_for_open_is_come_back_to_later() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    let (mut call, mut wait) = begun(&script, &client, "t1").await;
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
    assert_eq!(rest(&mut call).await, ["done: done"]);
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
        with_timeout("the end", async { tokio::join!(client.close(), playing) }).await;
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
    let (mut call, mut events) = held(&script, &client, |request| {
        token = request.meta()["progressToken"].clone();
        progress(&token, json!({"progress": 1, "total": 3, "message": "one"}))
    })
    .await;
    assert!(token.is_string() || token.is_i64(), "{token}");
    // Progress under another token is not about this call.
    events.event(progress(&json!("another"), json!({"progress": 9}))).await;
    events.event(progress(&token, json!({"progress": 2.5}))).await;
    events.event(json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "half"}})).await;
    assert_eq!(next_briefs(&mut call, 3).await, ["progress 1 of 3: one", "progress 2.5", r#"log "half""#]);
    assert!(call.reference().is_none(), "it is no task");
    events.result(answer("done")).await;
    assert_eq!(rest(&mut call).await, ["done: done"]);
}

#[tokio::test]
async fn a_held_call_that_nobody_wants_any_more_is_cancelled() {
    for is_detached in [true, false] {
        let script = scripted().await;
        script.always("tools/list", tools_of("forbidden"));
        let client = joined(&script, options(&script), having(json!({}))).await;
        let (call, mut events) = held(&script, &client, |request| progress(&request.meta()["progressToken"], json!({"progress": 1}))).await;
        if is_detached {
            assert!(call.detach().is_none(), "there is nothing to come back to");
        } else {
            drop(call);
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
    let (call, mut wait) = begun(&script, &client, "t1").await;
    let reference = call.detach().expect("a way back");
    assert_eq!((reference.task.as_deref(), reference.era, reference.tool.as_str()), (Some("t1"), Era::Legacy, "job"));
    wait.closed().await;
    with_timeout("a look", client.task("t1")).await.expect("it is there");
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
    let (outcome, ()) = call_job(&client, json!({}), async {
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
        let (outcome, ()) = call_job(&client, json!({}), async {
            awaited(&script, "tools/call").await.error(status, -32602, "Unknown tool", json!({"name": "job"})).await;
        })
        .await;
        assert_eq!((refused(outcome).message.as_str(), script.count("initialize")), ("Unknown tool", 1), "{status}");
    }
}
