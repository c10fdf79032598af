//! Responses that are no answers: the question stays open, and the server asks it again, since the client will not respond to the first
//! request once more.

use serde_json::{Value, json};
use taskwire::tool::Question;

use crate::{
    answers::{Ask, ORDERED, misfits, ordering, orders},
    kit::TestServer,
    legacy::{
        input::FORM,
        kit::{LegacySession, Sse},
        session::{refused, said},
        streams::response,
        tasks::{awaiting, until_is},
    },
    tasks::{accept, registry, tool},
};

/// Calls a tool that asks, as a task or not, and gives the stream on which it does, and the task.
async fn call_tool(legacy: &LegacySession, tool: &str, as_task: bool) -> (Sse, Option<String>) {
    if !as_task {
        return (legacy.stream("tools/call", json!({"name": tool, "arguments": {}})).await, None);
    }
    let id = legacy.start(tool, json!({})).await;
    until_is(legacy, &id, "input_required").await;
    (awaiting(legacy, &id).await, Some(id))
}

/// Responds to a question with what is no answer to it, for this reason.
async fn misfit(legacy: &LegacySession, question: &Value, bad: &Value, word: &str) {
    let response = legacy.post(&json!({"jsonrpc": "2.0", "id": question["id"], "result": bad})).await;
    assert_eq!(refused(&response), (400, -32602), "{bad}");
    assert_eq!(response.json().get("id"), None, "a response is not answered: {bad}");
    assert!(said(&response).contains(word), "no {word}: {}", said(&response));
}

/// That this is the question that was asked before, under another name and with why it is asked again.
#[track_caller]
fn is_again(question: &Value, before: &Value, word: &str) {
    assert_ne!(question["id"], before["id"]);
    let (message, first) = (question["params"]["message"].as_str().expect("a text"), "What shall it be?");
    assert!(message.starts_with(first) && message.contains("was not taken") && message.contains(word), "no {word}: {message}");
    let mut same = question.clone();
    same["id"] = before["id"].clone();
    same["params"]["message"] = before["params"]["message"].clone();
    assert_eq!(same, *before);
}

fn text(response: &Value) -> &str {
    response["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {response}"))
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_refused_and_its_question_asked_again() {
    let server = TestServer::start(registry([orders()])).await;
    let legacy = LegacySession::open(&server).await;
    for as_task in [true, false] {
        for (n, (bad, word)) in misfits().into_iter().enumerate() {
            let (mut events, task) = call_tool(&legacy, "orders", as_task).await;
            let first = events.until(FORM).await;
            misfit(&legacy, &first, &bad, word).await;
            let second = events.until(FORM).await;
            is_again(&second, &first, word);
            if let Some(task) = task {
                assert_eq!(legacy.get(&task).await["status"], "input_required", "{bad}");
            }
            // Under whichever name: it is one question.
            legacy.answer(if n % 2 == 0 { &first } else { &second }, ordering()).await;
            assert_eq!(text(&response(&mut events).await), ORDERED, "{bad}, as a task: {as_task}");
        }
    }
}

#[tokio::test]
async fn what_is_no_object_is_no_answer_either() {
    let server = TestServer::start(registry([orders()])).await;
    let legacy = LegacySession::open(&server).await;
    for bad in [json!("accept"), json!(["accept"]), json!(7)] {
        let (mut events, _) = call_tool(&legacy, "orders", false).await;
        let first = events.until(FORM).await;
        misfit(&legacy, &first, &bad, "an object").await;
        let second = events.until(FORM).await;
        is_again(&second, &first, "an object");
        legacy.answer(&second, ordering()).await;
        assert_eq!(text(&response(&mut events).await), ORDERED);
    }
}

#[tokio::test]
async fn a_question_on_the_standing_stream_is_asked_again_there() {
    let server = TestServer::start(registry([orders()])).await;
    let legacy = LegacySession::open(&server).await;
    let mut stand = legacy.open_session_stream().await;
    let id = legacy.start("orders", json!({})).await;
    let mut question = stand.until(FORM).await;
    for _ in 0..2 {
        misfit(&legacy, &question, &json!({"action": "perhaps"}), "`action`").await;
        let again = stand.until(FORM).await;
        assert_ne!(again["id"], question["id"]);
        question = again;
    }
    legacy.answer(&question, ordering()).await;
    assert_eq!(legacy.result(&id).await["content"][0]["text"], ORDERED);
}

#[tokio::test]
async fn a_question_is_asked_again_once_however_often_the_same_response_comes() {
    let server = TestServer::start(registry([orders()])).await;
    let legacy = LegacySession::open(&server).await;
    for as_task in [true, false] {
        let (mut events, _) = call_tool(&legacy, "orders", as_task).await;
        let question = events.until(FORM).await;
        for _ in 0..5 {
            misfit(&legacy, &question, &json!({}), "`action`").await;
        }
        legacy.answer(&question, ordering()).await;
        let rest = events.rest().await;
        assert!(rest.iter().filter(|message| message["method"] == FORM).count() <= 1, "{rest:?}");
        assert_eq!(text(rest.last().expect("a response")), ORDERED, "as a task: {as_task}");
    }
}

#[tokio::test]
async fn a_client_that_never_answers_well_is_asked_three_times() {
    let server = TestServer::start(registry([orders()])).await;
    let legacy = LegacySession::open(&server).await;
    for as_task in [true, false] {
        let (mut events, task) = call_tool(&legacy, "orders", as_task).await;
        let mut last = Value::Null;
        for _ in 0..3 {
            last = events.until(FORM).await;
            misfit(&legacy, &last, &json!({"action": "accept", "content": {"name": 7}}), "name").await;
        }
        match task {
            // Others can still answer, and so can it.
            Some(task) => {
                assert_eq!(legacy.get(&task).await["status"], "input_required");
                legacy.answer(&last, ordering()).await;
                assert_eq!(text(&response(&mut events).await), ORDERED);
            }
            // Nobody else can: its tool decides what that means.
            None => {
                let answered = response(&mut events).await;
                assert_eq!(answered["result"]["isError"], true, "{answered}");
                assert!(text(&answered).contains("none of its answers fits"), "{answered}");
            }
        }
    }
}

#[tokio::test]
async fn a_model_and_the_roots_are_asked_again_too() {
    let completion = json!({"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "m"});
    let kinds: [(Ask, &str, Value, Value); 2] = [
        (|| Question::sampling(json!({"messages": [], "maxTokens": 1})), "sampling/createMessage", accept("Ada"), completion),
        (Question::roots, "roots/list", json!({"roots": "/"}), json!({"roots": []})),
    ];
    for (question, method, bad, good) in kinds {
        let asks = tool("asks", &question, |question, ctx| async move {
            ctx.ask("it", question()).await?;
            Ok("answered")
        });
        let server = TestServer::start(registry([asks])).await;
        let legacy = LegacySession::open(&server).await;
        for as_task in [true, false] {
            let (mut events, _) = call_tool(&legacy, "asks", as_task).await;
            let first = events.until(method).await;
            misfit(&legacy, &first, &bad, "must be").await;
            let second = events.until(method).await;
            assert_ne!(second["id"], first["id"]);
            assert_eq!(second["params"], first["params"]);
            legacy.answer(&second, good.clone()).await;
            assert_eq!(text(&response(&mut events).await), "answered", "{method}, as a task: {as_task}");
        }
    }
}
