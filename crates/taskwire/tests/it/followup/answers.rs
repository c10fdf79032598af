//! Answers that a model gives to what a task asks.

use serde_json::{Value, json};
use taskwire::tool::Question;

use super::{answer, asked, asks, has, of, order_form, refuses, says};
use crate::{
    kit::{TASKS, with_timeout},
    tasks::name_form,
    tool_harness::ToolHarness,
};

#[tokio::test]
async fn an_answer_may_have_any_shape_that_has_one_meaning() {
    let mut harness = ToolHarness::new().await;
    let client = harness.server.plain_client();
    for (value, content) in [
        (json!({"name": "Ada"}), json!({"name": "Ada"})),
        (json!("Ada"), json!({"name": "Ada"})),
        (json!("{\"name\":\"Ada\"}"), json!({"name": "Ada"})),
        (json!({"action": "accept", "content": {"name": "Ada"}}), json!({"name": "Ada"})),
        (json!(7), json!({"name": "7"})),
        (json!("\u{1f600} \"quoted\"\n"), json!({"name": "\u{1f600} \"quoted\"\n"})),
    ] {
        let (id, _run, asking) = asked(&mut harness, name_form("Name?")).await;
        has(&says(&client, "task_answer", json!({"task_id": id, "value": value})).await, &["is answered", "`task_wait`"]);
        assert_eq!(answer(asking).await, ("accept".to_owned(), content));
    }
    let order = json!({"size": "large", "count": 3, "gift": true});
    for value in [json!({"size": "LARGE", "count": "3", "gift": "yes"}), json!(order.to_string()), order] {
        let (id, _run, asking) = asked(&mut harness, order_form()).await;
        says(&client, "task_answer", json!({"task_id": id, "key": "k", "value": value})).await;
        assert_eq!(answer(asking).await, ("accept".to_owned(), json!({"size": "large", "count": 3, "gift": true})));
    }
    for (action, word) in [("decline", "was declined"), ("cancel", "was dismissed")] {
        let (id, _run, asking) = asked(&mut harness, order_form()).await;
        has(&says(&client, "task_answer", json!({"task_id": id, "action": action})).await, &[word]);
        assert_eq!(answer(asking).await, (action.to_owned(), Value::Null));
    }
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_refused_with_what_is_wrong_and_can_be_given_again() {
    let mut harness = ToolHarness::new().await;
    let client = harness.server.plain_client();
    let (id, _run, asking) = asked(&mut harness, order_form()).await;
    for (value, wrong) in [
        (json!({"size": "huge", "count": 1}), "`size`: `huge` is none of the choices: small, large"),
        (json!({"size": "small", "count": 12}), "`count`: 12 is more than 9"),
        (json!({"size": "small", "count": "some"}), "`count`:"),
        (json!({"size": "small"}), "`count`: this must be filled in"),
        (json!({"size": "small", "count": 1, "color": "red"}), "`color`: the form has no such field"),
        (json!("{\"size\": \"small\", \"count\": 1, \"color\": \"red\"}"), "`color`: the form has no such field"),
        (json!("small"), "must be an object with"),
        (json!({"size": "<one of the choices>", "count": 1}), "stands for an answer"),
    ] {
        let text = refuses(&client, "task_answer", json!({"task_id": id, "value": value})).await;
        has(&text, &[wrong, "was not given", "`size` (one of \"small\", \"large\"; required)", "ask your user"]);
    }
    has(&refuses(&client, "task_answer", of(&id)).await, &["`value` is missing"]);
    has(&refuses(&client, "task_answer", json!({"task_id": id, "action": "maybe"})).await, &["action"]);
    has(
        &refuses(&client, "task_answer", json!({"task_id": id, "key": "other", "value": "x"})).await,
        &["has asked no question `other`", "Question `k`: "],
    );
    let good = json!({"task_id": id, "value": {"size": "small", "count": 1}});
    says(&client, "task_answer", good.clone()).await;
    assert_eq!(answer(asking).await.1, json!({"size": "small", "count": 1, "gift": false}));
    for again in [good, json!({"task_id": id, "key": "k", "value": 1})] {
        let text = refuses(&client, "task_answer", again).await;
        has(
            &text,
            &["`k` is answered already, with {", "\"size\":\"small\"", "changed nothing", "asks nothing at the moment", "`task_wait`"],
        );
    }
}

#[tokio::test]
async fn of_several_questions_one_must_be_named_and_the_rest_is_told_again() {
    let mut harness = ToolHarness::new().await;
    let client = harness.server.plain_client();
    let (id, mut run, first) = asked(&mut harness, name_form("First name?")).await;
    let second = asks(&run, "last", name_form("Last name?"));
    let both = loop {
        let text = says(&client, "task_wait", of(&id)).await;
        if text.contains("Last name?") {
            break text;
        }
        tokio::task::yield_now().await;
    };
    has(&both, &["Question `k`: First name?", "Question `last`: Last name?"]);
    has(
        &refuses(&client, "task_answer", json!({"task_id": id, "value": "x"})).await,
        &["Nothing was answered", "which one you mean", "Question `k`: ", "Question `last`: "],
    );
    let rest = says(&client, "task_answer", json!({"task_id": id, "key": "last", "value": "Lovelace"})).await;
    has(&rest, &["`last`", "is answered", "Question `k`: First name?"]);
    assert!(!rest.contains("Last name?"), "{rest}");
    // Also when one alone is left: it may be that the caller has not seen this one.
    has(&refuses(&client, "task_answer", json!({"task_id": id, "value": "Lovelace"})).await, &["which one you mean", "Question `k`: "]);
    has(&says(&client, "task_answer", json!({"task_id": id, "key": "k", "value": "Ada"})).await, &["The task goes on"]);
    assert_eq!((answer(first).await.1, answer(second).await.1), (json!({"name": "Ada"}), json!({"name": "Lovelace"})));
    run.ends("done");
    with_timeout("the end", harness.client.until(&id, "completed")).await;
    has(
        &refuses(&client, "task_answer", json!({"task_id": id, "value": "x"})).await,
        &["has ended (completed)", "`task_wait`", "gives its result"],
    );
}

#[tokio::test]
async fn an_answer_that_comes_twice_is_given_once_and_never_to_the_next_question() {
    let mut harness = ToolHarness::new().await;
    let client = harness.server.plain_client();
    let (id, run, first) = asked(&mut harness, name_form("Delete 3 files?")).await;
    let unnamed = json!({"task_id": id, "value": "yes"});
    says(&client, "task_answer", unnamed.clone()).await;
    assert_eq!(answer(first).await.1, json!({"name": "yes"}));
    let second = asks(&run, "next", name_form("Overwrite production?"));
    with_timeout("the question", harness.client.until(&id, "input_required")).await;
    has(&refuses(&client, "task_answer", unnamed).await, &["Nothing was answered", "which one you mean", "Overwrite production?"]);
    for again in [json!({"value": "yes"}), json!({"value": "no"}), json!({"action": "decline"})] {
        let mut arguments = json!({"task_id": id, "key": "k"});
        arguments.as_object_mut().expect("an object").extend(again.as_object().expect("an object").clone());
        let text = refuses(&client, "task_answer", arguments).await;
        has(&text, &["`k` is answered already, with {\"name\":\"yes\"}", "changed nothing", "Question `next`: Overwrite production?"]);
        assert!(!text.contains("Delete 3 files?"), "{text}");
    }
    assert_eq!(harness.client.get(&id).await["status"], "input_required", "the next question is open");
    assert!(!second.is_finished(), "nobody answered it");
    says(&client, "task_answer", json!({"task_id": id, "key": "next", "value": "no"})).await;
    assert_eq!(answer(second).await.1, json!({"name": "no"}));
}

#[tokio::test]
async fn a_task_that_was_cancelled_is_said_to_have_no_result() {
    let mut harness = ToolHarness::new().await;
    let client = harness.server.plain_client();
    let (id, _run, _asking) = asked(&mut harness, name_form("Name?")).await;
    harness.client.cancel(&id).await;
    let text = refuses(&client, "task_answer", json!({"task_id": id, "value": "x"})).await;
    has(&text, &["has ended (cancelled)", "says what came of it"]);
    assert!(!text.contains("its result"), "{text}");
}

#[tokio::test]
async fn a_page_is_to_be_opened_by_the_user_and_then_accepted() {
    let mut harness = ToolHarness::new().await;
    let client = harness.server.plain_client();
    let able = harness.server.client().declaring(json!({"elicitation": {"url": {}}, "extensions": {TASKS: {}}}));
    let (id, run) = harness.task_of(&able).await;
    let asking = asks(&run, "sign", Question::url("Please sign.", "https://sign.example/1"));
    with_timeout("the question", able.until(&id, "input_required")).await;
    has(&says(&client, "task_wait", of(&id)).await, &["Please sign.", "https://sign.example/1", "\"key\":\"sign\",\"action\":\"accept\""]);
    // Neither an answer to something else nor silence is a yes.
    for more in [json!({"value": "{\"width\": 5}"}), json!({"value": {}, "action": "accept"}), json!({"value": "no", "action": "decline"})]
    {
        let mut arguments = json!({"task_id": id, "key": "sign"});
        arguments.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        has(&refuses(&client, "task_answer", arguments).await, &["takes no `value`", "https://sign.example/1", "\"action\":\"accept\""]);
    }
    for silent in [of(&id), json!({"task_id": id, "key": "sign"})] {
        has(&refuses(&client, "task_answer", silent).await, &["wants an `action`", "https://sign.example/1"]);
    }
    assert_eq!(able.get(&id).await["status"], "input_required");
    says(&client, "task_answer", json!({"task_id": id, "key": "sign", "action": "accept"})).await;
    assert_eq!(answer(asking).await, ("accept".to_owned(), Value::Null));
}
