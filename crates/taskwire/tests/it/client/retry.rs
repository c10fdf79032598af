//! What a client does when responses do not come: it tries again where nothing can happen twice, waits as long as the server says,
//! and gives up in the end. And what it writes to its ledger before anything can be lost.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use taskwire::{
    client::{Bearer, Challenge, Client, Credentials, Error, Ledger, Options, Outcome, Status},
    clock::Clock,
};

use super::script::{
    KEY, LISTEN, MS, READ, SECOND, ScriptedRequest, ScriptedServer, all, as_time_passes, brief, call_job, complete, completed, created,
    discover_result, end, everything, fails, job, next, next_briefs, rest, start_job, task, text_result, tool_list, while_waiting,
    with_members,
};
use crate::kit::{TASKS, TempDir, with_timeout};

/// A server that does not promise to know a call again.
fn forgetful() -> Value {
    json!({TASKS: {}})
}

/// Ways to lose a response after the server may have got the call.
const LOST: [&str; 8] = ["cut", "half", "cut in the stream", "the stream ends", "408", "502", "503", "504"];

/// Does not answer, in this way.
async fn lose(asked: ScriptedRequest, how: &str) {
    match how {
        "cut" => asked.cut(),
        "half" => asked.cut_halfway(text_result("never seen")).await,
        "cut in the stream" => {
            let mut sse = asked.sse().await;
            sse.comment().await;
            sse.cut();
        }
        "the stream ends" => asked.sse().await.end().await,
        status => asked.empty(status.parse().expect("a status")).await,
    }
}

/// Calls while time passes.
async fn calls(script: &ScriptedServer, client: &Client, server: impl Future<Output = ()>) -> Result<Outcome, Error> {
    let both = async { tokio::join!(client.call("job", json!({"a": 1})), server) };
    script.as_time_passes("the end of the call", 20 * MS, both).await.0
}

// Lost calls.

#[tokio::test]
async fn a_call_whose_answer_is_lost_is_made_again_under_its_key() {
    for how in LOST.iter().chain(&["425", "429"]) {
        let script = ScriptedServer::start().await;
        let client = script.client().await;
        let playing = async {
            let first = script.expect("tools/call").await;
            let message = first.message.clone();
            lose(first, how).await;
            let second = script.expect("tools/call").await;
            assert_eq!(second.meta()[KEY], message["params"]["_meta"][KEY], "{how}");
            assert_eq!(second.params()["arguments"], json!({"a": 1}), "{how}");
            assert_ne!(second.id(), &message["id"], "{how}");
            second.result(text_result("done")).await;
        };
        let outcome = calls(&script, &client, playing).await.unwrap_or_else(|error| panic!("{how}: {error}"));
        assert_eq!(end(&outcome), "done: done", "{how}");
        assert_eq!(script.count("tools/call"), 2, "{how}");
    }
}

#[tokio::test]
async fn each_call_has_a_key_of_its_own() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let mut keys = Vec::new();
    for _ in 0..3 {
        let call = async {
            let asked = script.expect("tools/call").await;
            let key = asked.meta()[KEY].as_str().expect("a key").to_owned();
            asked.result(text_result("done")).await;
            key
        };
        keys.push(call_job(&client, json!({}), call).await.1);
    }
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 3);
}

#[tokio::test]
async fn a_call_that_may_have_run_is_not_made_again_where_that_would_run_it_twice() {
    for how in LOST {
        let script = ScriptedServer::start().await;
        let client = script.client_with(script.options(), forgetful()).await;
        let playing = async { lose(script.expect("tools/call").await, how).await };
        let error = calls(&script, &client, playing).await.expect_err("an error");
        assert!(matches!(&error, Error::LostCall { tool, .. } if tool == "job"), "{how}: {error:?}");
        assert_eq!(script.count("tools/call"), 1, "{how}");
    }
}

#[tokio::test]
async fn a_call_of_a_tool_that_may_be_called_twice_is_made_again() {
    for hint in ["readOnlyHint", "idempotentHint"] {
        let script = ScriptedServer::start().await;
        script.tools(json!([with_members(job(), json!({"annotations": {hint: true}}))]));
        let client = script.client_with(script.options(), forgetful()).await;
        let playing = async {
            script.expect("tools/call").await.cut();
            script.answers("tools/call", text_result("done")).await;
        };
        let outcome = calls(&script, &client, playing).await.unwrap_or_else(|error| panic!("{hint}: {error}"));
        assert_eq!(end(&outcome), "done: done", "{hint}");
    }
    let script = ScriptedServer::start().await;
    script.tools(json!([with_members(job(), json!({"annotations": {"readOnlyHint": false, "idempotentHint": false}}))]));
    let client = script.client_with(script.options(), forgetful()).await;
    let playing = async { script.expect("tools/call").await.cut() };
    let error = calls(&script, &client, playing).await.expect_err("an error");
    assert!(matches!(error, Error::LostCall { .. }), "{error:?}");
}

#[tokio::test]
async fn a_call_that_cannot_have_run_is_made_again_in_any_case() {
    let script = ScriptedServer::start().await;
    let client = script.client_with(script.options(), forgetful()).await;
    let playing = async {
        script.expect("tools/call").await.with("Retry-After", "1").empty(503).await;
        script.expect("tools/call").await.with("Retry-After", "1").empty(429).await;
        script.answers("tools/call", text_result("done")).await;
    };
    assert_eq!(end(&calls(&script, &client, playing).await.expect("a result")), "done: done");
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_called_until_it_can_be() {
    let mut script = ScriptedServer::start().await;
    script.stop_answering("tools/list");
    let client = script.client_with(script.options(), forgetful()).await;
    // No connection stays open: one that breaks as it is used could have carried the call.
    let listing = async { script.expect("tools/list").await.with("Connection", "close").result(tool_list(json!([job()]))).await };
    tokio::join!(client.tools(), listing).0.expect("tools");
    script.down().await;
    // That it cannot be reached is the first thing there is to say.
    let mut call = with_timeout("the start", client.start("job", json!({}))).await.expect("a run");
    assert_eq!(next(&mut call).await.as_ref().map(brief).as_deref(), Some("lost"));
    script.up().await;
    let asked = script.as_time_passes("the call", 20 * MS, script.expect("tools/call")).await;
    asked.result(text_result("done")).await;
    assert_eq!(all(&mut call).await, ["back", "done: done"]);
}

#[tokio::test]
async fn a_task_whose_first_answer_was_lost_is_followed_like_any_other() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let playing = async {
        script.expect("tools/call").await.cut();
        script.answers("tools/call", created("t1")).await;
    };
    let (mut call, ()) = script.as_time_passes("the start", 20 * MS, start_job(&client, playing)).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["task t1"]);
    let mut listen = while_waiting(&mut call, script.listen()).await;
    listen.task(completed("t1", "end")).await;
    assert_eq!(rest(&mut call).await, ["done: end"]);
}

#[tokio::test]
async fn an_error_that_is_an_answer_is_not_asked_for_again() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    for (status, code) in [(200, -32603), (500, -32603), (400, -32602)] {
        let playing = async { script.expect("tools/call").await.error(status, code, "no", Value::Null).await };
        let error = calls(&script, &client, playing).await.expect_err("an error");
        assert!(matches!(&error, Error::Rpc(error) if error.code == code), "{status}: {error:?}");
    }
    assert_eq!(script.count("tools/call"), 3);
}

#[tokio::test]
async fn a_server_that_is_shutting_down_is_called_again() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let playing = async {
        // What our own server says then, with and without a status that says so, too.
        script.expect("tools/call").await.error(503, -31002, "it is shutting down", Value::Null).await;
        script.expect("tools/call").await.error(200, -31002, "it is shutting down", Value::Null).await;
        script.answers("tools/call", text_result("done")).await;
    };
    assert_eq!(end(&calls(&script, &client, playing).await.expect("a result")), "done: done");
}

// How long is waited.

#[tokio::test]
async fn a_server_that_says_when_to_come_back_is_given_that_time() {
    // The script's clock stands at midnight when it begins.
    for (says, at_least) in [("7", 7), ("Tue, 28 Jul 2026 00:00:20 GMT", 20)] {
        let script = ScriptedServer::start().await;
        let client = script.client().await;
        let begun = script.clock.now();
        let playing = async {
            script.expect("tools/call").await.with("Retry-After", says).empty(503).await;
            let second = script.expect("tools/call").await;
            let passed = second.at.since(begun);
            assert!(passed >= at_least * SECOND && passed < 10 * at_least * SECOND, "{says}: {passed:?}");
            second.result(text_result("done")).await;
        };
        calls(&script, &client, playing).await.expect("a result");
    }
}

#[tokio::test]
async fn each_try_waits_longer_than_the_one_before_up_to_the_longest() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let mut tries = Vec::new();
    let playing = async {
        for _ in 0..9 {
            let asked = script.expect("tasks/get").await;
            tries.push(asked.at);
            asked.cut();
        }
        script.answers("tasks/get", complete(task("t1", "working"))).await;
    };
    let both = async { tokio::join!(client.task("t1"), playing) };
    let (snapshot, ()) = script.as_time_passes("the answer", 50 * MS, both).await;
    assert_eq!(snapshot.expect("a view").status, Status::Working);
    let waits = tries.windows(2).map(|pair| pair[1].since(pair[0]));
    // Half of each at least: the rest is left to chance.
    for (wait, whole) in waits.zip([250, 500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000]) {
        assert!(wait >= whole * MS / 2, "{wait:?} of {whole} ms");
    }
}

#[tokio::test]
async fn a_request_that_is_not_answered_is_given_up_and_sent_again() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let playing = async {
        let first = script.expect("tasks/get").await;
        let second = script.expect("tasks/get").await;
        let passed = second.at.since(first.at);
        assert!(passed >= 60 * SECOND, "{passed:?}");
        second.result(complete(task("t1", "working"))).await;
        first.closed_by_client().await;
    };
    let both = async { tokio::join!(client.task("t1"), playing) };
    script.as_time_passes("the answer", 100 * MS, both).await.0.expect("a view");
}

#[tokio::test]
async fn patience_ends() {
    let mut script = ScriptedServer::start().await;
    let client = script.client().await;
    with_timeout("the list", client.tools()).await.expect("tools");
    script.down().await;
    let begun = script.clock.now();
    let error = script.as_time_passes("the end", SECOND, client.task("t1")).await.expect_err("an error");
    let passed = script.clock.now().since(begun);
    assert!(matches!(&error, Error::Unreachable { server, .. } if *server == script.url()), "{error:?}");
    assert!(passed >= 285 * SECOND, "{passed:?}");
    let error = script.as_time_passes("the end", SECOND, client.call("job", json!({}))).await.expect_err("an error");
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    let connecting = Client::connect(script.target(), script.options());
    let error = script.as_time_passes("the end", SECOND, connecting).await.map(drop).expect_err("an error");
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
}

#[tokio::test]
async fn a_run_whose_server_does_not_come_back_ends_with_that() {
    let mut script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut call, listen) = script.watched(&client, "t1").await;
    script.down().await;
    listen.cut();
    let reference = call.reference().expect("a task");
    let error = script.as_time_passes("the end", SECOND, fails(&mut call)).await;
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    // The task may well go on: it is found again when the server is back.
    script.up().await;
    script.may_remain(LISTEN);
    script.always("tasks/get", complete(completed("t1", "end")));
    script.always(READ, super::script::page(0, &[], true));
    let mut call = with_timeout("the task", client.attach(&reference)).await.expect("a run");
    let clock = script.clock.clone();
    let briefs = as_time_passes(&clock, "the end", 50 * MS, rest(&mut call)).await;
    assert_eq!(briefs, ["task t1", "done: end"]);
}

// Who may call.

#[tokio::test]
async fn a_token_is_sent_with_each_request() {
    let script = ScriptedServer::start().await;
    let credentials = std::sync::Arc::new(Bearer("s3cret".to_owned()));
    let options = Options { credentials: Some(credentials), ..script.options() };
    let connecting = async {
        let asked = script.expect("server/discover").await;
        assert_eq!(asked.header("authorization"), Some("Bearer s3cret"));
        asked.result(discover_result(everything())).await;
    };
    let client = tokio::join!(script.connects(options), connecting).0.expect("a connection");
    let call = async {
        let asked = script.expect("tools/call").await;
        assert_eq!(asked.header("authorization"), Some("Bearer s3cret"));
        asked.empty(401).await;
    };
    let error = call_job(&client, json!({}), call).await.0.expect_err("an error");
    assert!(matches!(&error, Error::Unauthorized { server, .. } if *server == script.url()), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("s3cret"));
    assert_eq!(script.count("tools/call"), 1, "the same token is not tried again");
}

#[tokio::test]
async fn who_has_no_token_is_told_so() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    for status in [401, 403] {
        let call = async { script.expect("tools/call").await.with("WWW-Authenticate", "Bearer").empty(status).await };
        let error = call_job(&client, json!({}), call).await.0.expect_err("an error");
        assert!(matches!(error, Error::Unauthorized { .. }), "{status}: {error:?}");
    }
}

/// Has another token after each challenge.
#[derive(Debug, Default)]
struct Tokens(Mutex<Vec<Challenge>>);

impl Credentials for Tokens {
    fn bearer(&self) -> BoxFuture<'_, Result<Option<String>, Error>> {
        let count = self.0.lock().unwrap_or_else(PoisonError::into_inner).len();
        Box::pin(async move { Ok(Some(format!("token-{count}"))) })
    }

    fn challenged<'a>(&'a self, challenge: &'a Challenge) -> BoxFuture<'a, Result<bool, Error>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(challenge.clone());
        Box::pin(async { Ok(true) })
    }
}

#[tokio::test]
async fn a_better_token_is_fetched_when_the_server_asks_for_one() {
    let script = ScriptedServer::start().await;
    let tokens = std::sync::Arc::new(Tokens::default());
    let client = script.client_with(Options { credentials: Some(tokens.clone()), ..script.options() }, everything()).await;
    let scope = "Bearer error=\"insufficient_scope\", scope=\"call\"";
    let playing = async {
        let asked = script.expect("tools/call").await;
        assert_eq!(asked.header("authorization"), Some("Bearer token-0"));
        asked.with("WWW-Authenticate", "Bearer error=\"invalid_token\"").empty(401).await;
        let asked = script.expect("tools/call").await;
        assert_eq!(asked.header("authorization"), Some("Bearer token-1"));
        asked.with("WWW-Authenticate", scope).empty(403).await;
        let asked = script.expect("tools/call").await;
        assert_eq!(asked.header("authorization"), Some("Bearer token-2"));
        asked.result(text_result("done")).await;
    };
    let (outcome, ()) = call_job(&client, json!({}), playing).await;
    assert_eq!(end(&outcome.expect("a result")), "done: done");
    let challenges = tokens.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let seen: Vec<(u16, Option<&str>)> = challenges.iter().map(|one| (one.status, one.www_authenticate.as_deref())).collect();
    assert_eq!(seen, [(401, Some("Bearer error=\"invalid_token\"")), (403, Some(scope))]);
    assert!(challenges.iter().all(|one| one.url == script.url()));
}

#[tokio::test]
async fn a_server_that_accepts_no_token_is_given_up() {
    let script = ScriptedServer::start().await;
    let tokens = std::sync::Arc::new(Tokens::default());
    let client = script.client_with(Options { credentials: Some(tokens), ..script.options() }, everything()).await;
    with_timeout("the list", client.tools()).await.expect("tools");
    script.always_empty("tools/call", 401);
    let error = with_timeout("the end", client.call("job", json!({}))).await.expect_err("an error");
    assert!(matches!(error, Error::Unauthorized { .. }), "{error:?}");
    assert!(script.count("tools/call") <= 5, "{}", script.count("tools/call"));
}

// What is written down.

#[tokio::test]
async fn a_call_is_written_down_before_it_is_sent() {
    let script = ScriptedServer::start().await;
    let dir = TempDir::new();
    let ledger = Ledger::open(dir.path()).expect("a ledger");
    let client = script.client_with(Options { ledger: Some(Arc::new(ledger.clone())), ..script.options() }, everything()).await;
    let playing = async {
        let asked = script.expect("tools/call").await;
        let key = asked.meta()[KEY].as_str().expect("a key").to_owned();
        let entry = ledger.find(&key).expect("it is written down");
        let reference = &entry.reference;
        assert_eq!((reference.server.as_str(), reference.task.as_deref(), reference.tool.as_str()), (script.url().as_str(), None, "job"));
        assert_eq!((reference.key.as_deref(), entry.ended), (Some(key.as_str()), false));
        let args = reference.args.as_ref().expect("the arguments are kept");
        assert_eq!(args.read::<Value>().expect("JSON"), json!({"b": 1, "a": "é"}));
        asked.result(created("t1")).await;
    };
    let (call, ()) = with_timeout("the start", async { tokio::join!(client.start("job", json!({"b": 1, "a": "é"})), playing) }).await;
    let mut call = call.expect("a run");
    // Before anybody learns of the task, its name is written down.
    let entry = ledger.entry(&script.url(), "t1").expect("readable").expect("an entry");
    assert_eq!((entry.reference.task.as_deref(), entry.ended), (Some("t1"), false));
    assert_eq!(ledger.entries().expect("readable").len(), 1);
    assert_eq!(next_briefs(&mut call, 1).await, ["task t1"]);
    let mut listen = while_waiting(&mut call, script.listen()).await;
    listen.task(with_members(task("t1", "working"), json!({"statusMessage": "half way"}))).await;
    assert_eq!(next(&mut call).await.as_ref().map(brief).as_deref(), Some("working: half way"));
    let entry = ledger.entry(&script.url(), "t1").expect("readable").expect("an entry");
    assert_eq!((entry.status, entry.message.as_deref()), (Some(Status::Working), Some("half way")));
    listen.task(completed("t1", "end")).await;
    assert_eq!(rest(&mut call).await, ["done: end"]);
    let entry = ledger.entry(&script.url(), "t1").expect("readable").expect("an entry");
    assert_eq!((entry.status, entry.ended), (Some(Status::Completed), true));
}

#[tokio::test]
async fn a_call_that_was_no_task_is_struck_out_when_it_ends() {
    let script = ScriptedServer::start().await;
    let dir = TempDir::new();
    let ledger = Ledger::open(dir.path()).expect("a ledger");
    let client = script.client_with(Options { ledger: Some(Arc::new(ledger.clone())), ..script.options() }, everything()).await;
    call_job(&client, json!({}), script.answers("tools/call", text_result("done"))).await.0.expect("a result");
    assert!(ledger.entries().expect("readable").is_empty());
}

#[tokio::test]
async fn a_call_whose_answer_never_came_is_taken_up_from_the_ledger() {
    let script = ScriptedServer::start().await;
    let dir = TempDir::new();
    let options = || Options { ledger: Some(Arc::new(Ledger::open(dir.path()).expect("a ledger"))), ..script.options() };
    // The first client ends before its call is answered, and sends nothing more.
    let first_runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let (first, target) = (options(), script.target());
    first_runtime.spawn(async move {
        let client = Client::connect(target, first).await.expect("a client");
        let call = client.start("job", json!({"a": 1})).await;
        panic!("too early: {call:?}");
    });
    script.discover(everything()).await;
    let asked = script.expect("tools/call").await;
    let key = asked.meta()[KEY].as_str().expect("a key").to_owned();
    first_runtime.shutdown_background();
    asked.closed_by_client().await;
    // The second one finds what it needs in the ledger.
    let client = script.client_with(options(), everything()).await;
    let entry = Ledger::open(dir.path()).and_then(|ledger| ledger.find(&key)).expect("an entry");
    let playing = async {
        let asked = script.expect("tools/call").await;
        assert_eq!((asked.meta()[KEY].as_str(), &asked.params()["arguments"]), (Some(key.as_str()), &json!({"a": 1})));
        asked.result(created("t1")).await;
    };
    let (call, ()) = with_timeout("the start", async { tokio::join!(client.attach(&entry.reference), playing) }).await;
    let mut call = call.expect("a run");
    assert_eq!(next_briefs(&mut call, 1).await, ["task t1"]);
    let ledger = Ledger::open(dir.path()).expect("a ledger");
    let entries = ledger.entries().expect("readable");
    let tasks: Vec<Option<&str>> = entries.iter().map(|entry| entry.reference.task.as_deref()).collect();
    assert_eq!(tasks, [Some("t1")], "it is the same entry");
}
