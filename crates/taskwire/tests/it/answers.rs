//! Answers that do not fit their question: the server refuses each with the reason, the question stays open, and a good answer is
//! accepted after it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use serde_json::{Value, json};
use taskwire::tool::{Answer, InputRequired, Question, Resource, TaskMode, Tool, ToolError};

use crate::{
    kit::{Client, TASKS, TestServer, with_timeout},
    tasks::{accept, name_form, name_in, registry, tool, until_open},
};

/// What a tool asks.
pub(crate) type Ask = fn() -> Question;

/// A form with a field that must be filled in, and some that may be.
fn order() -> Question {
    let fields = json!({
        "name": {"type": "string", "minLength": 2},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "size": {"type": "string", "enum": ["small", "large"]},
        "mail": {"type": "string", "format": "email"},
    });
    Question::form("What shall it be?", json!({"type": "object", "properties": fields, "required": ["name"]}))
}

/// What is no answer to [`order`], each with a word of what is wrong with it.
pub(crate) fn misfits() -> Vec<(Value, &'static str)> {
    let accepts = |content: Value| json!({"action": "accept", "content": content});
    vec![
        (json!({"action": "perhaps"}), "`action`"),
        (json!({}), "`action`"),
        (json!({"action": 7}), "`action`"),
        (json!({"content": {"name": "Ada"}}), "`action`"),
        (json!({"roots": []}), "`action`"),
        (json!({"action": "accept"}), "name"),
        (json!({"action": "accept", "content": "Ada"}), "`content`"),
        (accepts(json!({})), "name"),
        (accepts(json!({"name": null})), "name"),
        (accepts(json!({"name": "A"})), "name"),
        (accepts(json!({"name": "Ada", "count": "3"})), "count"),
        (accepts(json!({"name": "Ada", "count": 10})), "count"),
        (accepts(json!({"name": "Ada", "size": "huge"})), "size"),
        (accepts(json!({"name": "Ada", "mail": "nobody"})), "mail"),
        (json!({"action": "accept", "content": {"name": "Ada"}, "dev.taskwire/refused": {"code": 1, "message": "no"}}), "refused"),
    ]
}

/// An answer to [`order`] that says the same as [`ORDERED`], in the words of a client that fills in all that there is.
pub(crate) fn ordering() -> Value {
    json!({"action": "accept", "content": {"name": "Ada", "count": 3.0, "size": null}})
}

/// What the tool gets then.
pub(crate) const ORDERED: &str = r#"accept {"count":3,"name":"Ada"}"#;

fn describe(answer: &Answer) -> String {
    let mut content = answer.content.clone().unwrap_or_default();
    content.sort_all_objects();
    format!("{} {content}", answer.action.as_deref().unwrap_or("nothing"))
}

/// Asks for an order while it runs.
pub(crate) fn orders() -> Tool {
    tool("orders", &(), |(), ctx| async move { Ok(describe(&ctx.ask("it", order()).await?)) })
}

/// Asks for an order by being called again; counts how often it is.
fn rounds(runs: &Arc<AtomicU64>) -> Tool {
    tool("orders", runs, |runs, ctx| async move {
        runs.fetch_add(1, Ordering::Relaxed);
        match ctx.resumed().answers.get("it") {
            None => Err(ToolError::input_required(InputRequired::ask("it", order()))),
            Some(answer) => Ok(describe(&answer.read()?)),
        }
    })
}

/// That this was refused for that reason.
#[track_caller]
fn is_refused(error: &Value, key: &str, word: &str) {
    let message = error["message"].as_str().unwrap_or_default();
    assert_eq!(error["code"], -32602, "{error}");
    assert!(message.contains(&format!("`{key}`")) && message.contains(word), "no {word}: {error}");
}

// As tasks.

#[tokio::test]
async fn an_answer_that_does_not_fit_is_refused_and_its_question_stays_open() {
    let server = TestServer::start(registry([orders().task(TaskMode::Always)])).await;
    let client = server.client();
    let id = client.start("orders", json!({})).await;
    let asked = until_open(&client, &id, &["it"]).await;
    for (bad, word) in misfits() {
        let error = client.error("tasks/update", json!({"taskId": id, "inputResponses": {"it": bad}})).await;
        is_refused(&error, "it", word);
        let now = client.get(&id).await;
        assert_eq!((&now["status"], &now["inputRequests"]), (&asked["status"], &asked["inputRequests"]), "{bad}");
    }
    client.answer(&id, json!({"it": ordering()})).await;
    assert_eq!(with_timeout("the end", client.until(&id, "completed")).await["result"]["content"][0]["text"], ORDERED);
}

#[tokio::test]
async fn of_several_answers_none_counts_if_one_does_not_fit() {
    let asks = tool("asks", &(), |(), ctx| async move {
        let (first, last) = tokio::try_join!(ctx.ask("first", order()), ctx.ask("last", name_form("Name?")))?;
        Ok(format!("{} {}", name_in(&first), name_in(&last)))
    });
    let server = TestServer::start(registry([asks.task(TaskMode::Always)])).await;
    let client = server.client();
    let id = client.start("asks", json!({})).await;
    let update = |answers: Value| json!({"taskId": id, "inputResponses": answers});
    until_open(&client, &id, &["first", "last"]).await;
    for (first, last, bad) in [
        (ordering(), json!({"action": "perhaps"}), "last"),
        (json!({}), accept("King"), "first"),
        (ordering(), json!({"action": 7}), "last"),
    ] {
        is_refused(&client.error("tasks/update", update(json!({"first": first, "last": last}))).await, bad, "`action`");
        until_open(&client, &id, &["first", "last"]).await;
    }
    client.answer(&id, json!({"first": ordering()})).await;
    // What is not asked, or not any more, is passed over unread.
    let rest = json!({"first": {"action": "perhaps"}, "nobody": {"any": "thing"}, "last": accept("King")});
    assert_eq!(client.answer(&id, rest).await, json!({"resultType": "complete"}));
    assert_eq!(with_timeout("the end", client.until(&id, "completed")).await["result"]["content"][0]["text"], "Ada King");
    assert_eq!(client.answer(&id, json!({"last": {}})).await, json!({"resultType": "complete"}), "nor does a task that is over read any");
}

#[tokio::test]
async fn a_model_a_page_and_the_roots_are_answered_in_their_own_shape() {
    let message = json!({"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "m"});
    let kinds: [(Ask, Vec<Value>, Value); 3] = [
        (
            || Question::sampling(json!({"messages": [], "maxTokens": 1})),
            vec![
                json!({}),
                accept("Ada"),
                json!({"role": "assistant", "content": "hello", "model": "m"}),
                json!({"role": "assistant", "model": 7}),
            ],
            message,
        ),
        (
            Question::roots,
            vec![json!({}), json!({"roots": "/"}), json!({"roots": [{"name": "a"}]})],
            json!({"roots": [{"uri": "file:///a"}]}),
        ),
        (
            || Question::url("Look", "https://example.com/"),
            vec![json!({}), json!({"action": "opened"}), json!({"action": "accept", "content": "yes"})],
            json!({"action": "accept"}),
        ),
    ];
    let capabilities = json!({"elicitation": {"url": {}}, "sampling": {}, "roots": {}, "extensions": {TASKS: {}}});
    for (question, misfits, good) in kinds {
        let asks = tool("asks", &question, |question, ctx| async move {
            ctx.ask("it", question()).await?;
            Ok("answered")
        });
        let server = TestServer::start(registry([asks.task(TaskMode::Always)])).await;
        let client = server.plain_client().declaring(capabilities.clone());
        let id = client.start("asks", json!({})).await;
        until_open(&client, &id, &["it"]).await;
        for bad in misfits {
            is_refused(&client.error("tasks/update", json!({"taskId": id, "inputResponses": {"it": bad}})).await, "it", "must be");
            until_open(&client, &id, &["it"]).await;
        }
        client.answer(&id, json!({"it": good})).await;
        assert_eq!(with_timeout("the end", client.until(&id, "completed")).await["result"]["content"][0]["text"], "answered");
    }
}

// In rounds.

/// A client that can be asked, but knows no tasks.
fn plain(server: &TestServer) -> Client {
    server.plain_client().declaring(json!({"elicitation": {}}))
}

/// The same request once more, with these answers to what was asked.
fn again(mut params: Value, asked: &Value, answers: Value) -> Value {
    params["requestState"] = asked["requestState"].clone();
    params["inputResponses"] = answers;
    params
}

#[tokio::test]
async fn an_answer_in_a_round_that_does_not_fit_is_refused_and_can_be_given_again() {
    let runs = Arc::new(AtomicU64::new(0));
    for tool in [orders(), rounds(&runs)] {
        let server = TestServer::start(registry([tool])).await;
        let (client, call) = (plain(&server), json!({"name": "orders", "arguments": {}}));
        let asked = with_timeout("the question", client.ok("tools/call", call.clone())).await;
        assert_eq!((&asked["resultType"], asked["requestState"].is_string()), (&json!("input_required"), true), "{asked}");
        for (bad, word) in misfits() {
            let params = again(call.clone(), &asked, json!({"it": bad}));
            is_refused(&with_timeout("a refusal", client.error("tools/call", params)).await, "it", word);
        }
        // What was not asked is passed over unread.
        let params = again(call, &asked, json!({"it": ordering(), "nobody": {"any": "thing"}}));
        assert_eq!(with_timeout("the result", client.ok("tools/call", params)).await["content"][0]["text"], ORDERED);
    }
    assert_eq!(runs.load(Ordering::Relaxed), 2, "once to ask and once to be answered: nothing ran for what was refused");
}

#[tokio::test]
async fn an_answer_to_what_a_resource_asks_is_held_against_it_too() {
    let tools = registry([]);
    tools.resource(Resource::raw(json!({"uri": "test://orders", "name": "orders"}), |call| async move {
        match call.resumed.answers.get("it") {
            None => Err(ToolError::input_required(InputRequired::ask("it", order()))),
            Some(answer) => Ok(json!({"contents": [{"uri": "test://orders", "text": describe(&answer.read()?)}]})),
        }
    }));
    let server = TestServer::start(tools).await;
    let (client, read) = (plain(&server), json!({"uri": "test://orders"}));
    let asked = client.ok("resources/read", read.clone()).await;
    for (bad, word) in misfits() {
        is_refused(&client.error("resources/read", again(read.clone(), &asked, json!({"it": bad}))).await, "it", word);
    }
    let answered = client.ok("resources/read", again(read, &asked, json!({"it": ordering()}))).await;
    assert_eq!(answered["contents"][0]["text"], ORDERED);
}

#[tokio::test]
async fn answers_without_the_state_of_their_round_are_answers_at_least() {
    let runs = Arc::new(AtomicU64::new(0));
    let server = TestServer::start(registry([rounds(&runs)])).await;
    let client = plain(&server);
    let call = |answers: Value| json!({"name": "orders", "arguments": {}, "inputResponses": answers});
    for bad in [json!({"action": "perhaps"}), json!({}), json!({"action": 7}), json!({"role": "assistant"}), json!({"roots": 1})] {
        is_refused(&client.error("tools/call", call(json!({"it": bad}))).await, "it", "`action`");
    }
    assert_eq!(runs.load(Ordering::Relaxed), 0, "nothing ran for what was refused");
    let answered = client.ok("tools/call", call(json!({"it": accept("Ada"), "nobody": accept("Eve")}))).await;
    assert_eq!(answered["content"][0]["text"], r#"accept {"name":"Ada"}"#);
}
