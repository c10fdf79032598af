//! Sessions of the legacy era: what belongs to one is not used in the next, one may be taken over from another process, and the client
//! ends each that it begins.

use serde_json::{Value, json};
use taskwire::client::{Call, Client, Error, Event, Options, Question, Reference, answer_with};

use super::{
    legacy::{
        LATEST, agreed, answer, awaited, begun, ended, having, joined, made_by, options, related, scripted, shown, stood, tools_of,
        unsettled, waited,
    },
    script::{MS, ScriptedRequest, ScriptedServer, ada, call_job, end, fails, form, next_notable, rest, with_members},
};
use crate::kit::with_timeout;

/// The session that [`joined`] begins.
const FIRST: &str = "session-1";
/// The session that a later client begins for itself.
const OWN: &str = "session-2";

/// A question about `t1` as a request of the server, under an id that each of its sessions begins with.
fn question(message: &str) -> Value {
    let mut request = with_members(form(message), json!({"jsonrpc": "2.0", "id": 0}));
    request["params"]["_meta"] = related("t1");
    request
}

/// The same question under an id of our own servers, which names it in whatever session.
fn named_question(request: u32) -> Value {
    with_members(question("Name?"), json!({"id": format!("t1.{request}.name")}))
}

/// That a request names this session.
#[track_caller]
fn is_of(asked: &ScriptedRequest, session: &str) {
    assert_eq!((asked.header("mcp-session-id"), asked.header("mcp-protocol-version")), (Some(session), Some(LATEST)), "{asked:?}");
}

/// Begins a session of this name.
async fn begins(script: &ScriptedServer, session: &str) {
    let first = script.expect("initialize").await;
    assert_eq!(first.header("mcp-session-id"), None, "a new session has no name yet: {first:?}");
    first.with("Mcp-Session-Id", session).result(agreed(LATEST, having(json!({})))).await;
    let ready = script.expect("notifications/initialized").await;
    is_of(&ready, session);
    ready.empty(202).await;
}

/// The next wait for the result of `t1`, in a session of this name that is begun before it.
async fn waits_anew(script: &ScriptedServer, session: &str) -> ScriptedRequest {
    let playing = async {
        begins(script, session).await;
        awaited(script, "tasks/result").await
    };
    let again = script.as_time_passes("another wait", 10 * MS, playing).await;
    is_of(&again, session);
    again
}

/// A client that knows of this session, and has one of its own.
async fn knows(script: &ScriptedServer, session: &str) -> Client {
    let options = Options { session: Some(session.to_owned()), ..options(script) };
    let playing = async {
        begins(script, OWN).await;
        script.expect_http("GET").await.empty(405).await;
    };
    tokio::join!(script.connects(options), playing).0.expect("a connection")
}

/// Plays a server that shows `t1` to the session `session` alone: the client looks in its own first, then there.
async fn finds(script: &ScriptedServer, session: &str, then: &str) {
    let look = script.expect_of("tasks/get", "t1").await;
    is_of(&look, OWN);
    look.error(200, -32602, "no such task", Value::Null).await;
    // Its own is of no use any more.
    let delete = script.expect_http("DELETE").await;
    is_of(&delete, OWN);
    delete.empty(200).await;
    let stand = script.expect_http("GET").await;
    is_of(&stand, session);
    stand.empty(409).await;
    let look = script.expect_of("tasks/get", "t1").await;
    is_of(&look, session);
    match then {
        "there" => look.result(shown("t1", "working")).await,
        _ => look.empty(404).await,
    }
}

/// The next question of a call.
async fn asked(call: &mut Call) -> (String, String) {
    loop {
        match next_notable(call).await {
            Some(Event::Question(input)) => return (input.key, input.message),
            Some(Event::QuestionSettled { .. }) => {}
            other => panic!("{other:?} is no question"),
        }
    }
}

// One session after the other.

#[tokio::test]
async fn a_question_of_the_next_session_is_not_taken_for_one_of_the_last() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    let (mut call, mut wait) = begun(&script, &client, "t1").await;
    wait.event(question("Old?")).await;
    let (old, message) = asked(&mut call).await;
    assert_eq!(message, "Old?");
    wait.cut();
    let lost = script.as_time_passes("the wait", 10 * MS, awaited(&script, "tasks/result")).await;
    is_of(&lost, FIRST);
    lost.empty(404).await;
    let mut wait = waits_anew(&script, "session-2").await.sse().await;
    wait.event(question("New?")).await;
    let (new, message) = asked(&mut call).await;
    assert_eq!(message, "New?");
    assert_ne!(new, old);
    // An answer to what nobody asks any more would be one to what is asked now.
    let error = with_timeout("the refusal", call.answer(&old, ada())).await.expect_err("nobody asks that");
    assert!(matches!(error, Error::NoQuestion { .. }), "{error:?}");
    assert_eq!(script.count("response"), 0);
    let taking = async {
        let reply = script.expect_reply().await;
        is_of(&reply, "session-2");
        assert_eq!(reply.message["id"], 0);
        assert_eq!(reply.message["result"], json!({"action": "accept", "content": {"name": "Ada"}}));
        reply.empty(202).await;
    };
    with_timeout("the answer", async { tokio::join!(call.answer(&new, ada()), taking) }).await.0.expect("taken");
    wait.result(ended("t1", "done")).await;
    assert_eq!(unsettled(rest(&mut call).await), ["done: done"]);
    assert_eq!(script.count("response"), 1);
}

/// Takes the answer to [`named_question`] in this session, and says this status to it.
async fn takes(script: &ScriptedServer, session: &str, request: u32, status: u16) {
    let reply = script.expect_reply().await;
    is_of(&reply, session);
    assert_eq!(reply.message["id"], format!("t1.{request}.name"));
    assert_eq!(reply.message["result"], json!({"action": "accept", "content": {"name": "Ada"}}));
    reply.empty(status).await;
}

#[tokio::test]
async fn an_answer_that_is_lost_with_its_session_is_given_again_by_who_was_named_for_it() {
    let script = scripted().await;
    let options = Options { question_handler: Some(answer_with(|_: Question| async { ada() })), ..options(&script) };
    let client = joined(&script, options, having(json!({}))).await;
    let (call, mut wait) = begun(&script, &client, "t1").await;
    wait.event(named_question(1)).await;
    let playing = async {
        takes(&script, FIRST, 1, 404).await;
        wait.cut();
        let mut wait = waits_anew(&script, "session-2").await.sse().await;
        wait.event(named_question(2)).await;
        takes(&script, "session-2", 2, 202).await;
        wait.result(ended("t1", "done")).await;
    };
    let (outcome, ()) = with_timeout("the end", async { tokio::join!(call.finish(), playing) }).await;
    assert_eq!(end(&outcome.expect("a result")), "done: done");
}

#[tokio::test]
async fn a_question_whose_answer_is_lost_with_its_session_comes_again() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    let (mut call, mut wait) = begun(&script, &client, "t1").await;
    wait.event(named_question(1)).await;
    let (key, _) = asked(&mut call).await;
    let answering = async { tokio::join!(call.answer(&key, ada()), takes(&script, FIRST, 1, 404)) };
    let error = with_timeout("the refusal", answering).await.0.expect_err("its session is over");
    assert!(matches!(error, Error::NoQuestion { .. }), "{error:?}");
    wait.cut();
    let mut wait = waits_anew(&script, "session-2").await.sse().await;
    wait.event(named_question(2)).await;
    assert_eq!(asked(&mut call).await.0, key);
    let answering = async { tokio::join!(call.answer(&key, ada()), takes(&script, "session-2", 2, 202)) };
    with_timeout("the answer", answering).await.0.expect("taken");
    wait.result(ended("t1", "done")).await;
    assert_eq!(unsettled(rest(&mut call).await), ["done: done"]);
}

#[tokio::test]
async fn an_answer_that_is_on_its_way_when_its_session_ends_goes_to_the_next_one() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    let (mut call, mut wait) = begun(&script, &client, "t1").await;
    wait.event(named_question(1)).await;
    let (key, _) = asked(&mut call).await;
    let playing = async {
        let lost_answer = script.expect_reply().await;
        wait.cut();
        let lost = script.as_time_passes("the wait", 10 * MS, awaited(&script, "tasks/result")).await;
        is_of(&lost, FIRST);
        lost.empty(404).await;
        let mut wait = waits_anew(&script, "session-2").await.sse().await;
        wait.event(named_question(2)).await;
        // What is answered now was read behind it.
        wait.event(json!({"jsonrpc": "2.0", "id": "p", "method": "ping"})).await;
        script.expect_where("the response to the ping", |asked| asked.message["id"] == "p").await.empty(202).await;
        lost_answer.cut();
        script.as_time_passes("the answer", 10 * MS, takes(&script, "session-2", 2, 202)).await;
        wait
    };
    let (answered, wait) = with_timeout("the answer", async { tokio::join!(call.answer(&key, ada()), playing) }).await;
    answered.expect("taken");
    wait.result(ended("t1", "done")).await;
    assert_eq!(unsettled(rest(&mut call).await), ["done: done"]);
    assert_eq!(script.count("response"), 3, "one of them to the ping");
}

#[tokio::test]
async fn a_session_that_cannot_be_begun_just_now_is_begun_later() {
    let script = scripted().await;
    let playing = async {
        script.expect("initialize").await.empty(503).await;
        script.expect("initialize").await.cut();
        begins(&script, FIRST).await;
        script.expect_http("GET").await.empty(405).await;
    };
    let connecting = async { tokio::join!(script.connects(options(&script)), playing) };
    let (client, ()) = script.as_time_passes("the connection", 20 * MS, connecting).await;
    client.expect("a connection");
    assert_eq!(script.count("initialize"), 3);
}

#[tokio::test]
async fn a_call_that_was_not_sent_for_want_of_a_session_is_sent_later() {
    let script = scripted().await;
    script.always("tools/list", tools_of("forbidden"));
    let client = joined(&script, options(&script), having(json!({}))).await;
    let playing = async {
        awaited(&script, "tools/call").await.empty(404).await;
        script.expect("initialize").await.cut();
        script.expect("initialize").await.empty(503).await;
        begins(&script, "session-2").await;
        let again = awaited(&script, "tools/call").await;
        is_of(&again, "session-2");
        again.result(answer("done")).await;
    };
    // Nothing says that this call may be made twice.
    let (outcome, ()) = script.as_time_passes("the call", 10 * MS, call_job(&client, json!({}), playing)).await;
    assert_eq!(end(&outcome.expect("a result")), "done: done");
    assert_eq!(script.count("tools/call"), 2);
}

// A session of another process.

/// A task that goes on in the first session, whose client is gone.
async fn left(script: &ScriptedServer) -> Reference {
    let client = joined(script, options(script), having(json!({}))).await;
    let call = made_by(script, &client, "t1").await;
    let reference = call.detach().expect("a task");
    assert_eq!(reference.session.as_deref(), Some(FIRST));
    with_timeout("the end", client.close()).await;
    reference
}

#[tokio::test]
async fn a_session_in_which_a_task_goes_on_is_left_as_it_is() {
    let script = scripted().await;
    left(&script).await;
    assert_eq!(script.count("DELETE"), 0);
    // When all tasks have ended there is nothing to leave it for.
    let client = joined(&script, options(&script), having(json!({}))).await;
    let (mut call, wait) = begun(&script, &client, "t2").await;
    wait.result(ended("t2", "done")).await;
    assert_eq!(rest(&mut call).await, ["done: done"]);
    let ending = async { script.expect_http("DELETE").await.empty(200).await };
    with_timeout("the end", async { tokio::join!(client.close(), ending) }).await;
    assert_eq!(script.count("DELETE"), 1);
}

#[tokio::test]
async fn a_task_that_only_its_session_knows_is_found_there_and_that_is_not_ended() {
    let script = scripted().await;
    let reference = left(&script).await;
    script.stop_answering("tasks/get");
    let client = knows(&script, FIRST).await;
    let (call, ()) = with_timeout("the task", async { tokio::join!(client.attach(&reference), finds(&script, FIRST, "there")) }).await;
    let mut call = call.expect("a run");
    script.may_remain("tasks/get");
    // Each of its requests is of that session.
    let wait = waited(&script, &mut call, "t1").await;
    is_of(&wait, FIRST);
    let mut wait = wait.sse().await;
    wait.event(question("Name?")).await;
    let (key, _) = asked(&mut call).await;
    assert_eq!(key, "0", "as the process was told that began the session");
    let taking = async {
        let reply = script.expect_reply().await;
        is_of(&reply, FIRST);
        reply.empty(202).await;
    };
    with_timeout("the answer", async { tokio::join!(call.answer(&key, ada()), taking) }).await.0.expect("taken");
    wait.result(ended("t1", "done")).await;
    assert_eq!(unsettled(rest(&mut call).await), ["done: done"]);
    with_timeout("the end", client.close()).await;
    assert_eq!((script.count("initialize"), script.count("DELETE")), (2, 1));
}

#[tokio::test]
async fn a_task_whose_session_is_forgotten_is_not_found() {
    let script = scripted().await;
    let reference = Reference { session: Some("forgotten".to_owned()), ..left(&script).await };
    script.stop_answering("tasks/get");
    let client = knows(&script, "forgotten").await;
    let playing = async {
        finds(&script, "forgotten", "gone").await;
        begins(&script, "session-3").await;
        script.expect_http("GET").await.empty(405).await;
        let look = script.expect_of("tasks/get", "t1").await;
        is_of(&look, "session-3");
        look.error(200, -32602, "no such task", Value::Null).await;
    };
    let (call, ()) = with_timeout("the task", async { tokio::join!(client.attach(&reference), playing) }).await;
    let error = call.expect_err("nobody knows it");
    assert!(matches!(&error, Error::TaskNotFound { task } if task == "t1"), "{error:?}");
}

// Sessions that nobody would end.

#[tokio::test]
async fn no_session_is_begun_for_who_has_closed() {
    let script = scripted().await;
    let (client, mut stand) = stood(&script, options(&script), having(json!({}))).await;
    let (mut call, wait) = begun(&script, &client, "t1").await;
    let other = client.clone();
    // A task goes on, so nothing is said of the session.
    with_timeout("the end", client.close()).await;
    stand.closed().await;
    let error = with_timeout("the refusal", other.task("t1")).await.expect_err("it is closed");
    assert!(matches!(error, Error::Closed), "{error:?}");
    wait.cut();
    let error = script.as_time_passes("the end of the run", 100 * MS, fails(&mut call)).await;
    assert!(matches!(error, Error::Closed), "{error:?}");
    assert_eq!((script.count("initialize"), script.count("DELETE")), (1, 0));
}
