//! Questions of tasks of the modern era: each comes once and is answered once, also by a client that was restarted (digest B15.3).

use std::sync::Arc;

use serde_json::{Value, json};
use taskwire::{
    client::{Answer, CallRecorder, Client, Error, Ledger, Options, Question, Target, answer_with},
    tool::{TaskMode, ToolError},
};

use super::script::{
    IDEMPOTENCY, MS, READ, SERVER_INFO, ScriptedServer, ada, asking, brief, call_job, complete, completed, created, end, everything, form,
    next, next_briefs, rest, round, task, text_result, while_waiting, with_members,
};
use crate::{
    kit::{PARTIALS, TASKS, TempDir, TestServer, with_timeout},
    tasks::{accept, name_form, name_in, registry, tool},
};

/// A task that asks for a name under the key `k`.
fn asks() -> Value {
    asking("t1", json!({"k": form("Name?")}))
}

fn ack() -> Value {
    json!({"resultType": "complete"})
}

/// Takes an update, which must say exactly this, and acknowledges it.
async fn update(script: &ScriptedServer, responses: Value) {
    let asked = script.expect("tasks/update").await;
    let params = with_members(asked.params().clone(), json!({"_meta": null}));
    assert_eq!(params, json!({"taskId": "t1", "inputResponses": responses}));
    asked.result(ack()).await;
}

#[tokio::test]
async fn a_question_is_told_once_and_answered_once() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    listen.task(asks()).await;
    listen.partial("t1", 0, "a").await;
    listen.task(asks()).await;
    assert_eq!(next_briefs(&mut call, 2).await, ["asks k: Name?", "0 a"]);
    let answering = async { tokio::join!(call.answer("k", ada()), update(&script, json!({"k": accept("Ada")}))) };
    with_timeout("the answer", answering).await.0.expect("an answer");
    // The server may take a while to notice.
    listen.task(asks()).await;
    listen.partial("t1", 1, "b").await;
    assert_eq!(next_briefs(&mut call, 1).await, ["1 b"]);
    let error = with_timeout("the refusal", call.answer("k", ada())).await.expect_err("once only");
    assert!(matches!(&error, Error::AlreadyAnswered { key } if key == "k"), "{error:?}");
    listen.task(task("t1", "working")).await;
    listen.task(completed("t1", "end")).await;
    assert_eq!(rest(&mut call).await, ["settled k", "done: end"]);
    assert_eq!(script.count("tasks/update"), 1);
}

#[tokio::test]
async fn a_question_is_told_once_however_often_it_is_polled() {
    let script = ScriptedServer::start().await;
    let client = script.client_with(script.options(), json!({TASKS: {}})).await;
    let mut call = script.run(&client, "t1").await;
    assert_eq!(next_briefs(&mut call, 1).await, ["task t1"]);
    while_waiting(&mut call, script.expect("subscriptions/listen")).await.error(404, -32601, "no such method", Value::Null).await;
    let get = script.as_time_passes("a look", 50 * MS, while_waiting(&mut call, script.expect("tasks/get"))).await;
    get.result(complete(asks())).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["asks k: Name?"]);
    for _ in 0..3 {
        let get = script.as_time_passes("a look", 50 * MS, while_waiting(&mut call, script.expect("tasks/get"))).await;
        get.result(complete(asks())).await;
    }
    let answering = async { tokio::join!(call.answer("k", ada()), update(&script, json!({"k": accept("Ada")}))) };
    with_timeout("the answer", answering).await.0.expect("an answer");
    for state in [asks(), completed("t1", "end")] {
        let get = script.as_time_passes("a look", 50 * MS, while_waiting(&mut call, script.expect("tasks/get"))).await;
        get.result(complete(state)).await;
    }
    assert_eq!(rest(&mut call).await, ["settled k", "done: end"]);
    assert_eq!(script.count("tasks/update"), 1);
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_not_sent() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    listen.task(asks()).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["asks k: Name?"]);
    for content in [json!({"name": "A"}), json!({}), json!({"name": 7}), json!("Ada")] {
        let error = with_timeout("the check", call.answer("k", Answer::accept(content.clone()))).await.expect_err("it does not fit");
        assert!(matches!(&error, Error::InvalidAnswer { key, .. } if key == "k"), "{content}: {error:?}");
    }
    let error = with_timeout("the check", call.answer("other", ada())).await.expect_err("nobody asked");
    assert!(matches!(&error, Error::NoQuestion { key } if key == "other"), "{error:?}");
    assert_eq!(script.count("tasks/update"), 0);
    // Who says no need not fill in anything; and the question is still open.
    let answering = async { tokio::join!(call.answer("k", Answer::decline()), update(&script, json!({"k": {"action": "decline"}}))) };
    with_timeout("the answer", answering).await.0.expect("an answer");
}

#[tokio::test]
async fn of_several_questions_each_is_answered_by_itself() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    listen.task(asking("t1", json!({"a": form("A?"), "b": form("B?")}))).await;
    assert_eq!(next_briefs(&mut call, 2).await, ["asks a: A?", "asks b: B?"]);
    let answering = async { tokio::join!(call.answer("b", ada()), update(&script, json!({"b": accept("Ada")}))) };
    with_timeout("one answer", answering).await.0.expect("an answer");
    // The rest stays open, and there may be more.
    listen.task(asking("t1", json!({"a": form("A?"), "c": form("C?")}))).await;
    assert_eq!(next_briefs(&mut call, 2).await, ["settled b", "asks c: C?"]);
    for (key, other) in [("a", "c"), ("c", "")] {
        let answering = async { tokio::join!(call.answer(key, ada()), update(&script, json!({key: accept("Ada")}))) };
        with_timeout("the other answer", answering).await.0.expect("an answer");
        listen.task(if other.is_empty() { task("t1", "working") } else { asking("t1", json!({other: form("C?")})) }).await;
        assert_eq!(next_briefs(&mut call, 1).await, [format!("settled {key}")]);
    }
    listen.task(completed("t1", "end")).await;
    assert_eq!(rest(&mut call).await, ["done: end"]);
}

#[tokio::test]
async fn a_question_that_is_withdrawn_or_answered_elsewhere_needs_no_answer() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    listen.task(asks()).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["asks k: Name?"]);
    listen.task(task("t1", "working")).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["settled k"]);
    let error = with_timeout("the refusal", call.answer("k", ada())).await.expect_err("too late");
    assert!(matches!(&error, Error::AlreadyAnswered { key } | Error::NoQuestion { key } if key == "k"), "{error:?}");
    // A key is never used again, whatever a server does.
    listen.task(asks()).await;
    listen.partial("t1", 0, "a").await;
    assert_eq!(next_briefs(&mut call, 1).await, ["0 a"]);
    listen.task(completed("t1", "end")).await;
    assert_eq!(rest(&mut call).await, ["done: end"]);
    assert_eq!(script.count("tasks/update"), 0);
}

#[tokio::test]
async fn an_open_question_is_settled_by_the_end() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    listen.task(asks()).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["asks k: Name?"]);
    listen.task(task("t1", "cancelled")).await;
    assert_eq!(rest(&mut call).await, ["settled k", "cancelled"]);
}

#[tokio::test]
async fn states_with_questions_are_told_as_states_too() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    listen.task(asks()).await;
    let mut seen = Vec::new();
    for _ in 0..2 {
        seen.push(brief(&next(&mut call).await.expect("an event")));
    }
    assert_eq!(seen, ["input_required", "asks k: Name?"]);
}

// Acknowledgements that are lost, refused, or come in other clothes.

#[tokio::test]
async fn an_answer_whose_acknowledgement_is_lost_is_sent_again_as_it_was() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    listen.task(asks()).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["asks k: Name?"]);
    let updates = async {
        let first = script.expect("tasks/update").await;
        let (id, responses) = (first.id().clone(), first.params()["inputResponses"].clone());
        first.cut();
        let second = script.expect("tasks/update").await;
        assert_ne!(second.id(), &id);
        assert_eq!(second.params()["inputResponses"], responses);
        second.empty(503).await;
        update(&script, responses).await;
    };
    let answering = async { tokio::join!(call.answer("k", ada()), updates) };
    script.as_time_passes("the acknowledgement", 20 * MS, answering).await.0.expect("an answer");
}

#[tokio::test]
async fn an_answer_that_is_refused_leaves_the_question_open() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    listen.task(asks()).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["asks k: Name?"]);
    let refusing = async { script.expect("tasks/update").await.error(200, -32603, "not now", Value::Null).await };
    let error = with_timeout("the refusal", async { tokio::join!(call.answer("k", ada()), refusing) }).await.0.expect_err("refused");
    assert!(matches!(&error, Error::Rpc(error) if error.code == -32603), "{error:?}");
    let answering = async { tokio::join!(call.answer("k", ada()), update(&script, json!({"k": accept("Ada")}))) };
    with_timeout("the answer", answering).await.0.expect("an answer");
}

#[tokio::test]
async fn an_answer_is_acknowledged_with_and_without_metadata() {
    let info = json!({"_meta": {SERVER_INFO: {"name": "scripted", "version": "1.2.3"}}});
    for ack in [ack(), with_members(ack(), info), json!({})] {
        let script = ScriptedServer::start().await;
        let client = script.client().await;
        let (mut call, mut listen) = script.watched(&client, "t1").await;
        listen.task(asks()).await;
        assert_eq!(next_briefs(&mut call, 1).await, ["asks k: Name?"]);
        let answering = async { tokio::join!(call.answer("k", ada()), script.answers("tasks/update", ack.clone())) };
        with_timeout("the answer", answering).await.0.unwrap_or_else(|error| panic!("{ack}: {error}"));
    }
}

// From one start of a client to the next.

#[tokio::test]
async fn a_key_is_answered_once_also_after_a_restart() {
    let script = ScriptedServer::start().await;
    let dir = TempDir::new();
    let ledger = || Ledger::open(dir.path()).expect("a ledger");
    let options = || Options { ledger: Some(Arc::new(ledger())), ..script.options() };
    let recorded = || {
        let entry = ledger().entry(&script.url(), "t1").expect("readable").expect("an entry");
        ledger().answers(entry.id).expect("readable")
    };
    script.always("tasks/get", complete(asks()));

    // The first client ends before the server has acknowledged its answer.
    let client = script.client_with(options(), everything()).await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    listen.task(asks()).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["asks k: Name?"]);
    assert!(recorded().is_empty());
    let asked = tokio::select! {
        answered = call.answer("k", ada()) => panic!("too early: {answered:?}"),
        asked = script.expect("tasks/update") => asked,
    };
    assert_eq!(recorded(), [("k".to_owned(), accept("Ada"), false)], "it is written down before it is sent");
    let reference = call.detach().expect("a task");
    drop(client);
    asked.cut();
    listen.closed().await;

    // The second one gives the same answer again, and asks nobody.
    let client = script.client_with(options(), everything()).await;
    let mut call = with_timeout("the task", client.attach(&reference)).await.expect("a run");
    assert_eq!(next_briefs(&mut call, 1).await, ["task t1"]);
    let opened = async {
        let mut listen = script.listen().await;
        listen.task(asks()).await;
        listen
    };
    let (mut listen, ()) = while_waiting(&mut call, async { tokio::join!(opened, update(&script, json!({"k": accept("Ada")}))) }).await;
    listen.partial("t1", 0, "a").await;
    assert_eq!(next_briefs(&mut call, 1).await, ["0 a"]);
    assert_eq!(recorded(), [("k".to_owned(), accept("Ada"), true)]);
    let error = with_timeout("the refusal", call.answer("k", Answer::decline())).await.expect_err("once only");
    assert!(matches!(error, Error::AlreadyAnswered { .. }), "{error:?}");
    let reference = call.detach().expect("a task");
    drop(client);
    listen.closed().await;

    // The third one has nothing to do, though the server still asks.
    let client = script.client_with(options(), everything()).await;
    let mut call = with_timeout("the task", client.attach(&reference)).await.expect("a run");
    assert_eq!(next_briefs(&mut call, 1).await, ["task t1"]);
    let mut listen = while_waiting(&mut call, script.listen()).await;
    listen.task(asks()).await;
    listen.partial("t1", 1, "b").await;
    assert_eq!(next_briefs(&mut call, 1).await, ["1 b"]);
    assert_eq!(script.count("tasks/update"), 2);
    listen.task(completed("t1", "end")).await;
    assert_eq!(rest(&mut call).await.pop().as_deref(), Some("done: end"));
}

#[tokio::test]
async fn of_two_clients_with_one_ledger_one_answers() {
    let script = ScriptedServer::start().await;
    let dir = TempDir::new();
    let options = || Options { ledger: Some(Arc::new(Ledger::open(dir.path()).expect("a ledger"))), ..script.options() };
    script.always("tasks/get", complete(asks()));
    let one = script.client_with(options(), everything()).await;
    let (mut first, mut listen) = script.watched(&one, "t1").await;
    listen.task(asks()).await;
    assert_eq!(next_briefs(&mut first, 1).await, ["asks k: Name?"]);
    let other = script.client_with(options(), everything()).await;
    let reference = first.reference().expect("a task");
    let mut second = with_timeout("the task", other.attach(&reference)).await.expect("a run");
    assert_eq!(next_briefs(&mut second, 1).await, ["task t1"]);
    let opened = async {
        let mut listen = script.listen().await;
        listen.task(asks()).await;
        listen
    };
    let (second_briefs, _listen) = tokio::join!(next_briefs(&mut second, 1), opened);
    assert_eq!(second_briefs, ["asks k: Name?"]);
    let answering = async { tokio::join!(first.answer("k", ada()), update(&script, json!({"k": accept("Ada")}))) };
    with_timeout("the answer", answering).await.0.expect("an answer");
    let late = Answer::accept(json!({"name": "Bob"}));
    let error = with_timeout("the refusal", second.answer("k", late)).await.expect_err("somebody was faster");
    assert!(matches!(&error, Error::AlreadyAnswered { key } if key == "k"), "{error:?}");
    assert_eq!(script.count("tasks/update"), 1);
}

// Answers without a call.

#[tokio::test]
async fn a_question_is_answered_by_the_name_of_its_task() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    script.always("tasks/get", complete(asks()));
    let answering = async { tokio::join!(client.answer("t1", "k", ada()), update(&script, json!({"k": accept("Ada")}))) };
    with_timeout("the answer", answering).await.0.expect("an answer");
    let error = with_timeout("the refusal", client.answer("t1", "other", ada())).await.expect_err("nobody asked");
    assert!(matches!(&error, Error::NoQuestion { key } if key == "other"), "{error:?}");
    let short = Answer::accept(json!({"name": "A"}));
    let error = with_timeout("the check", client.answer("t1", "k", short)).await.expect_err("it does not fit");
    assert!(matches!(&error, Error::InvalidAnswer { key, .. } if key == "k"), "{error:?}");
    assert_eq!(script.count("tasks/update"), 1);
}

#[tokio::test]
async fn a_call_has_its_questions_answered_by_who_was_named_for_it() {
    let script = ScriptedServer::start().await;
    let answers = answer_with(|input: Question| async move { Answer::accept(json!({"name": format!("{} {}", input.key, input.message)})) });
    let client = script.client_with(Options { question_handler: Some(answers), ..script.options() }, everything()).await;
    let playing = async {
        script.answers("tools/call", round(json!({"r": form("first")}), Some("s"))).await;
        let asked = script.expect("tools/call").await;
        assert_eq!(asked.params()["inputResponses"], json!({"r": accept("r first")}));
        asked.result(created("t1")).await;
        let mut listen = script.listen().await;
        listen.task(asking("t1", json!({"k": form("second")}))).await;
        update(&script, json!({"k": accept("k second")})).await;
        listen.task(completed("t1", "end")).await;
        listen
    };
    assert_eq!(end(&call_job(&client, json!({}), playing).await.0.expect("a result")), "done: end");
}

#[tokio::test]
async fn a_call_with_nobody_to_answer_says_so() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let playing = async {
        script.answers("tools/call", round(json!({"r": form("first")}), Some("s"))).await;
        let asked = script.expect("tools/call").await;
        assert_eq!(asked.params()["inputResponses"], json!({"r": {"action": "cancel"}}));
        asked.result(created("t1")).await;
        let mut listen = script.listen().await;
        listen.task(asking("t1", json!({"k": form("second")}))).await;
        update(&script, json!({"k": {"action": "cancel"}})).await;
        listen.task(completed("t1", "without you")).await;
        listen
    };
    assert_eq!(end(&call_job(&client, json!({}), playing).await.0.expect("a result")), "done: without you");
}

#[tokio::test]
async fn a_run_is_read_to_its_end_by_who_was_named_for_it() {
    let script = ScriptedServer::start().await;
    let answers = answer_with(|_: Question| async { Answer::decline() });
    let client = script.client_with(Options { question_handler: Some(answers), ..script.options() }, everything()).await;
    let (call, mut listen) = script.watched(&client, "t1").await;
    let playing = async {
        listen.task(asks()).await;
        update(&script, json!({"k": {"action": "decline"}})).await;
        listen.task(completed("t1", "end")).await;
    };
    let (outcome, ()) = with_timeout("the end", async { tokio::join!(call.finish(), playing) }).await;
    assert_eq!(end(&outcome.expect("a result")), "done: end");
}

#[tokio::test]
async fn roots_are_told_to_a_task_without_asking_anybody() {
    let script = ScriptedServer::start().await;
    let asks = taskwire::client::ClientCapabilities { roots: Some(vec![json!({"uri": "file:///a"})]), ..Default::default() };
    let client =
        script.client_with(Options { capabilities: asks, ..script.options() }, json!({TASKS: {}, PARTIALS: {}, IDEMPOTENCY: {}})).await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    listen.task(asking("t1", json!({"r": {"method": "roots/list"}}))).await;
    while_waiting(&mut call, update(&script, json!({"r": {"roots": [{"uri": "file:///a"}]}}))).await;
    listen.task(completed("t1", "end")).await;
    let briefs = rest(&mut call).await;
    assert!(!briefs.iter().any(|event| event.starts_with("asks")), "{briefs:?}");
    assert_eq!((briefs.last().map(String::as_str), script.count(READ)), (Some("done: end"), 0));
}

#[tokio::test]
async fn a_direct_result_after_a_round_of_nobody_is_the_result() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let playing = async {
        script.answers("tools/call", round(json!({"r": form("first")}), None)).await;
        script.answers("tools/call", text_result("end")).await;
    };
    assert_eq!(end(&call_job(&client, json!({}), playing).await.0.expect("a result")), "done: end");
}

// Our own server.

#[tokio::test]
async fn questions_of_our_server_are_answered_in_tasks_and_in_rounds() {
    let asks = |name: &str| {
        tool(name, &(), |(), ctx| async move {
            let answer = ctx.ask("name", name_form("Name?")).await?;
            Ok::<_, ToolError>(format!("Hello, {}", name_in(&answer)))
        })
    };
    let server = TestServer::start(registry([asks("in_a_task").task(TaskMode::Always), asks("in_rounds").task(TaskMode::Never)])).await;
    let target = || Target::Url(format!("http://127.0.0.1:{}/mcp", server.port));
    for tool in ["in_a_task", "in_rounds"] {
        let client = with_timeout("the connection", Client::connect(target(), Options::default())).await.expect("a connection");
        let mut call = with_timeout("the start", client.start(tool, json!({}))).await.expect("a run");
        let mut asked = next_briefs(&mut call, 1).await;
        if tool == "in_a_task" {
            assert!(asked[0].starts_with("task "), "{asked:?}");
            asked = next_briefs(&mut call, 1).await;
        }
        assert_eq!(asked, ["asks name: Name?"], "{tool}");
        with_timeout("the answer", call.answer("name", ada())).await.expect("an answer");
        assert_eq!(rest(&mut call).await.pop().as_deref(), Some("done: Hello, Ada"), "{tool}");
        let answers = answer_with(|_| async { Answer::accept(json!({"name": "Bo"})) });
        let options = Options { question_handler: Some(answers), ..Options::default() };
        let client = with_timeout("the connection", Client::connect(target(), options)).await.expect("a connection");
        let outcome = with_timeout("the result", client.call(tool, json!({}))).await.expect("a result");
        assert_eq!(end(&outcome), "done: Hello, Bo", "{tool}");
    }
}
