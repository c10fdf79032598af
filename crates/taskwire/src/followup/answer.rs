//! `task_answer`: the tool by which a model answers a task's question for its user.

use serde::Deserialize;
use serde_json::{Value, json};
use taskwire_core::{
    Payload, QuestionKey,
    task::{Command, QuestionState, Task},
};

use super::{
    ANSWER, WAIT, arguments, find_task,
    question::{Question, shortened},
    quoted, submit, texts, wait_effect,
};
use crate::tool::{Annotations, CallResult, Content, Ctx, Tool, ToolError, check_answer};

const DESCRIPTION: &str = "Answers a question that a task of this server asked (task_wait and the tool itself show the question, its key and \
    its fields). The answer goes to the question with that key; a question is answered once. Give only what your user told you or what \
    you know for certain: if you are not sure, ask your user first. Afterwards call task_wait for the task's result.";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    Accept,
    Decline,
    Cancel,
}

#[derive(Deserialize)]
struct Arguments {
    task_id: String,
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    value: Option<Value>,
    #[serde(default)]
    action: Option<Action>,
}

pub(super) fn tool() -> Tool {
    let schema = json!({
        "type": "object",
        "properties": {
            "task_id": {"type": "string", "description": "The task's id, as a tool gave it."},
            "key": {
                "type": "string",
                "description": "Which question: the key that was shown with it. May be left out only if the task has never asked another."
            },
            "value": {
                "type": "string",
                "description": "The answer. If the question has one field: its plain value, such as Ada, 3, true, or a, b for a list. If \
                    it has several: a JSON object with the fields, as text, such as {\"name\":\"Ada\",\"count\":3}. Leave it out where \
                    there is nothing to fill in."
            },
            "action": {
                "type": "string",
                "enum": ["accept", "decline", "cancel"],
                "description": "accept (may be left out if there is a value): here is the answer. decline: your user does not want to \
                    answer. cancel: your user dismissed the question. Must be said where there is nothing to fill in, as with a page \
                    to open."
            },
        },
        "required": ["task_id"],
        "additionalProperties": false,
    });
    // The listed schema asks for text, which every client can send. A number, a list or an object is accepted, too.
    let mut taken = schema.clone();
    taken["properties"]["value"] = json!({});
    Tool::raw(ANSWER, DESCRIPTION, schema, answer)
        .title("Answer a question of a task")
        .annotations(Annotations::default().read_only(false).destructive(false).open_world(false))
        .accepts_schema(taken)
}

async fn answer(ctx: Ctx) -> Result<CallResult, ToolError> {
    let Arguments { task_id, key, value, action } = ctx.arguments().read()?;
    let task = find_task(&ctx, &task_id).await?;
    let (key, request) = choose_question(&task, key.as_deref()).map_err(ToolError::new)?;
    let question = Question::read(&request);
    let answer = build_answer(&task, &key, &question, value, action).map_err(ToolError::new)?;
    let misfit = |why: String| ToolError::new(format!("The answer does not fit the question, so it was not given: {why}"));
    let answer = check_answer(&request, answer).map_err(misfit)?;
    let receipt = submit(&ctx, &task_id, task.id, Command::Answer(vec![(key.clone(), answer)])).await?;
    let after = &receipt.task;
    if !receipt.changed {
        // Somebody else was faster, or the task ended: the reply is that to a second try.
        return Err(match choose_question(after, Some(key.as_str())) {
            Err(text) => ToolError::new(text),
            Ok(_) => ToolError::new(format!("The answer to `{}` could not be given. Try again.", key.as_str())),
        });
    }
    let what = match action {
        None | Some(Action::Accept) => "is answered",
        Some(Action::Decline) => "was declined",
        Some(Action::Cancel) => "was dismissed",
    };
    let done = format!("The question `{}` of `{}` (task {}) {what}.", key.as_str(), after.spec.tool, after.id);
    Ok(CallResult::of([Content::text(match after.asked_at {
        Some(_) => format!("{done}\n\n{}", texts::questions_text(after)),
        None => format!("{done} The task goes on. Next, call `{WAIT}` with {} for its result.", arguments(after.id, &[])),
    })]))
}

/// The open question that a call means, or the text that says why there is none.
///
/// An answer may come twice, or late, and must not go to the next question. So a call without a key is accepted only if the task has never
/// asked another question.
fn choose_question(task: &Task, key: Option<&str>) -> Result<(QuestionKey, Payload), String> {
    let tool = &task.spec.tool;
    let meant = match key {
        Some(key) => task.questions.get_key_value(&QuestionKey::new(key)),
        None => task.questions.first_key_value().filter(|_| task.questions.len() == 1),
    };
    let why = match (meant, key) {
        (Some((key, QuestionState { request, answer: None })), _) if task.outcome.is_none() => return Ok((key.clone(), request.clone())),
        (Some((key, input)), _) => already_answered(key, input),
        (None, Some(key)) => Some(format!("`{tool}` (task {}) has asked no question {}, so nothing was answered.", task.id, quoted(key))),
        (None, None) if task.asked_at.is_some() && task.outcome.is_none() => Some(format!(
            "Nothing was answered: `{tool}` (task {}) has asked more than one question. Say in `key` which one you mean.",
            task.id
        )),
        (None, None) => None,
    };
    let now = next_step(task);
    Err(match why {
        Some(why) => format!("{why}\n\n{now}"),
        None => now,
    })
}

/// Says how a question was answered; `None` if it is still open.
fn already_answered(key: &QuestionKey, QuestionState { request, answer }: &QuestionState) -> Option<String> {
    let answer: Value = answer.as_ref()?.read().unwrap_or_default();
    let how = match (Question::read(request), answer["action"].as_str(), answer.get("content")) {
        // What a program answered is not for a model to read.
        (Question::ClientOnly { .. }, ..) => "is answered already".to_owned(),
        (_, Some("accept"), Some(content)) => format!("is answered already, with {}", shortened(&content.to_string())),
        (_, Some("accept"), None) => "was accepted already".to_owned(),
        (_, Some("decline"), _) => "was declined already".to_owned(),
        (_, Some("cancel"), _) => "was dismissed already".to_owned(),
        _ => "is answered already".to_owned(),
    };
    Some(format!("The question {} {how}. This call changed nothing.", quoted(key.as_str())))
}

/// What the task asks now, or how to go on if it asks nothing.
fn next_step(task: &Task) -> String {
    let (tool, wait) = (&task.spec.tool, format!("`{WAIT}` with {}", arguments(task.id, &[])));
    if task.outcome.is_some() {
        let (how, what) = (task.status(), wait_effect(task));
        return format!("`{tool}` (task {}) has ended ({how}) and asks nothing any more: {wait} {what}.", task.id);
    }
    match task.asked_at {
        Some(_) => texts::questions_text(task),
        None => format!("`{tool}` (task {}) asks nothing at the moment. Go on with {wait}.", task.id),
    }
}

/// Builds the answer for the task, or says what is wrong with it.
fn build_answer(
    task: &Task,
    key: &QuestionKey,
    question: &Question,
    value: Option<Value>,
    action: Option<Action>,
) -> Result<Payload, String> {
    let ask = || question.to_text(task.id, key.as_str());
    // Some models fill in every field: an empty text counts as no value where the question has no fields.
    let value = value.filter(|value| !question.has_no_fields() || value.as_str() != Some(""));
    // "accept" alone agrees with the defaults.
    let agrees = value.is_none() && action == Some(Action::Accept) && question.can_accept_defaults();
    let value = if agrees { Some(json!({})) } else { value };
    let content = match (question, action) {
        (Question::ClientOnly { .. }, _) => return Err(ask()),
        // The value was meant for another question, so nothing of this call is believed.
        (Question::Page { .. }, _) if value.is_some() => {
            return Err(format!(
                "Nothing was answered: the question {} takes no `value`. Leave it out, and say \"action\":\"accept\" when your user is \
                 done.\n\n{}",
                quoted(key.as_str()),
                ask()
            ));
        }
        // Consent must be explicit.
        (_, None) if question.has_no_fields() => {
            return Err(format!(
                "Nothing was answered: the question {} wants an `action` (\"accept\", \"decline\" or \"cancel\").\n\n{}",
                quoted(key.as_str()),
                ask()
            ));
        }
        (_, Some(Action::Decline)) => return Ok(json!({"action": "decline"}).into()),
        (_, Some(Action::Cancel)) => return Ok(json!({"action": "cancel"}).into()),
        (Question::Page { .. }, _) => return Ok(json!({"action": "accept"}).into()),
        (Question::Form { .. }, _) => question.fill_in(value).map_err(|problems| {
            format!(
                "The answer does not fit the question, so it was not given. Correct it and call `{ANSWER}` again; if you do not know what \
                 is asked for, ask your user.\n- {}\n\n{}",
                problems.join("\n- "),
                ask()
            )
        })?,
    };
    Ok(json!({"action": "accept", "content": content}).into())
}

#[cfg(test)]
mod tests {
    use taskwire_core::{
        Timestamp,
        task::{Event, evolve},
    };

    use super::*;
    use crate::followup::texts::tests::task;

    fn asked(keys: &[&str]) -> Task {
        let events: Vec<Event> = keys.iter().map(|key| Event::Asked { key: QuestionKey::new(key), request: form() }).collect();
        task(&events)
    }

    fn then(mut task: Task, events: &[Event]) -> Task {
        events.iter().for_each(|event| evolve(&mut task, event, Timestamp::from_millis(2_000)));
        task
    }

    fn answered(key: &str) -> Event {
        Event::Answered { key: QuestionKey::new(key), answer: json!({"action": "accept", "content": {"name": "Ada"}}).into() }
    }

    fn form() -> Payload {
        let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
        json!({"method": "elicitation/create", "params": {"mode": "form", "message": "Who?", "requestedSchema": schema}}).into()
    }

    fn chosen(task: &Task, key: Option<&str>) -> Result<String, String> {
        choose_question(task, key).map(|(key, _)| key.as_str().to_owned())
    }

    fn refused(task: &Task, key: Option<&str>) -> String {
        chosen(task, key).expect_err("no question is meant")
    }

    #[test]
    fn the_question_is_the_only_one_ever_or_the_one_that_is_named() {
        assert_eq!(chosen(&asked(&["a"]), None), Ok("a".to_owned()));
        assert_eq!(chosen(&asked(&["a", "b"]), Some("b")), Ok("b".to_owned()));
        let several = refused(&asked(&["a", "b"]), None);
        assert!(several.starts_with("Nothing was answered: ") && several.contains("Say in `key` which one you mean"), "{several}");
        assert!(several.contains("Question `a`: Who?") && several.contains("Question `b`: Who?"), "{several}");
        let other = refused(&asked(&["a"]), Some("c"));
        assert!(other.contains("has asked no question `c`, so nothing was answered") && other.contains("Question `a`: Who?"), "{other}");
        for key in [None, Some("c")] {
            let nothing = refused(&asked(&[]), key);
            assert!(nothing.contains("asks nothing at the moment") && nothing.contains("`task_wait` with {\"task_id\""), "{nothing}");
        }
        let late = refused(&then(asked(&["a", "b"]), &[answered("a"), answered("b")]), None);
        assert!(late.contains("asks nothing at the moment") && !late.contains("Say in `key`"), "{late}");
    }

    #[test]
    fn an_answer_that_is_repeated_does_not_go_to_the_next_question() {
        let next = then(asked(&["a", "b"]), &[answered("a")]);
        let unnamed = refused(&next, None);
        assert!(unnamed.contains("has asked more than one question") && unnamed.contains("Question `b`: Who?"), "{unnamed}");
        let named = refused(&next, Some("a"));
        assert!(named.starts_with("The question `a` is answered already, with {\"name\":\"Ada\"}. This call changed nothing."), "{named}");
        assert!(named.contains("Question `b`: Who?") && !named.contains("Question `a`: Who?"), "{named}");
        for key in [None, Some("a")] {
            let only = refused(&then(asked(&["a"]), &[answered("a")]), key);
            assert!(only.contains("`a` is answered already") && only.contains("asks nothing at the moment"), "{only}");
        }
    }

    #[test]
    fn what_was_answered_is_said_as_it_was() {
        let text_for = |request: Value, answer: Value| {
            already_answered(&QuestionKey::new("a"), &QuestionState { request: request.into(), answer: Some(answer.into()) })
        };
        let page = || json!({"method": "elicitation/create", "params": {"mode": "url", "message": "Sign", "url": "https://x.test"}});
        for (answer, words) in [
            (json!({"action": "accept"}), "was accepted already"),
            (json!({"action": "decline", "content": {"no": 1}}), "was declined already"),
            (json!({"action": "cancel"}), "was dismissed already"),
            (json!({"error": {"code": 1}}), "is answered already"),
            (json!(7), "is answered already"),
        ] {
            assert_eq!(text_for(page(), answer), Some(format!("The question `a` {words}. This call changed nothing.")));
        }
        let program =
            text_for(json!({"method": "sampling/createMessage"}), json!({"action": "accept", "content": "secret"})).expect("answered");
        assert!(program.contains("is answered already.") && !program.contains("secret"), "{program}");
        let long = text_for(page(), json!({"action": "accept", "content": {"x": "é".repeat(10_000)}})).expect("answered");
        assert!(long.len() < 5_000, "{}", long.len());
        assert_eq!(already_answered(&QuestionKey::new("a"), &QuestionState { request: page().into(), answer: None }), None);
    }

    #[test]
    fn a_task_that_has_ended_has_a_result_only_if_it_completed() {
        let cancelled = refused(&then(asked(&["a"]), &[Event::Cancelled { reason: None }]), Some("a"));
        assert!(cancelled.contains("has ended (cancelled)") && cancelled.contains("says what came of it"), "{cancelled}");
        assert!(!cancelled.contains("result") && !cancelled.contains("answered already"), "{cancelled}");
        let done = Event::Completed { result: json!({"content": []}).into(), is_error: false };
        let completed = refused(&then(asked(&["a"]), &[answered("a"), done]), None);
        assert!(completed.contains("`a` is answered already") && completed.contains("has ended (completed)"), "{completed}");
        assert!(completed.contains("gives its result") && !completed.contains("Question"), "{completed}");
    }

    #[test]
    fn an_answer_is_what_the_protocol_calls_one() {
        let (task, key) = (asked(&["a"]), QuestionKey::new("a"));
        let give = |question: &Question, value: Option<Value>, action| {
            build_answer(&task, &key, question, value, action).map(|answer| answer.read::<Value>().expect("JSON"))
        };
        let (accept, decline, cancel) = (Some(Action::Accept), Some(Action::Decline), Some(Action::Cancel));
        let form = Question::read(&form());
        for action in [None, accept] {
            assert_eq!(give(&form, Some(json!("Ada")), action), Ok(json!({"action": "accept", "content": {"name": "Ada"}})));
        }
        assert_eq!(give(&form, None, decline), Ok(json!({"action": "decline"})));
        assert_eq!(give(&form, Some(json!("x")), cancel), Ok(json!({"action": "cancel"})), "what was filled in is not sent");
        let wrong = give(&form, Some(json!({"nmae": "Ada"})), accept).expect_err("wrong");
        assert!(wrong.contains("- `nmae`: the form has no such field") && wrong.contains("- `name` (text; required)"), "{wrong}");
        let client = Question::ClientOnly { method: "sampling/createMessage".to_owned() };
        assert!(give(&client, None, decline).expect_err("not ours").contains("only by the client"));
    }

    #[test]
    fn a_yes_without_a_value_agrees_with_the_defaults() {
        let (task, key) = (asked(&["a"]), QuestionKey::new("a"));
        let question = |required: Value| {
            let fields = json!({"name": {"type": "string"}, "n": {"type": "integer", "default": 5}});
            let schema = json!({"type": "object", "properties": fields, "required": required});
            Question::read(&json!({"method": "elicitation/create", "params": {"message": "Well?", "requestedSchema": schema}}).into())
        };
        let give = |question: &Question, action| {
            build_answer(&task, &key, question, None, action).map(|answer| answer.read::<Value>().expect("JSON"))
        };
        for required in [json!([]), json!(["n"])] {
            let question = question(required);
            assert_eq!(give(&question, Some(Action::Accept)), Ok(json!({"action": "accept", "content": {"n": 5}})));
            assert_eq!(give(&question, Some(Action::Decline)), Ok(json!({"action": "decline"})));
            let silent = give(&question, None).expect_err("nobody said yes");
            assert!(silent.contains("`value` is missing") && silent.contains("To agree with the defaults"), "{silent}");
        }
        let needed = give(&question(json!(["name"])), Some(Action::Accept)).expect_err("a name is needed");
        assert!(needed.contains("`value` is missing") && !needed.contains("To agree with the defaults"), "{needed}");
    }

    #[test]
    fn where_nothing_is_filled_in_the_action_is_said() {
        let (task, key) = (asked(&["a"]), QuestionKey::new("a"));
        let give = |question: &Question, value: Option<Value>, action| {
            build_answer(&task, &key, question, value, action).map(|answer| answer.read::<Value>().expect("JSON"))
        };
        let (accept, decline) = (Some(Action::Accept), Some(Action::Decline));
        let page = Question::Page { message: "Sign in".to_owned(), url: "https://x.test".to_owned() };
        assert_eq!(give(&page, None, accept), Ok(json!({"action": "accept"})));
        assert_eq!(give(&page, None, decline), Ok(json!({"action": "decline"})));
        assert_eq!(give(&page, Some(json!("")), accept), Ok(json!({"action": "accept"})), "an empty text is none");
        for action in [None, accept, decline, Some(Action::Cancel)] {
            for value in [json!("{\"width\": 5}"), json!({}), json!(true)] {
                let refused = give(&page, Some(value), action).expect_err("a page has no value");
                assert!(refused.contains("takes no `value`") && refused.contains("https://x.test"), "{refused}");
            }
        }
        let request =
            json!({"method": "elicitation/create", "params": {"message": "Go?", "requestedSchema": {"type": "object", "properties": {}}}});
        let plain = Question::read(&request.into());
        for question in [&page, &plain] {
            let silent = give(question, None, None).expect_err("nobody said yes");
            assert!(silent.contains("wants an `action`") && silent.contains("\"action\":\"accept\"}"), "{silent}");
        }
        assert!(give(&plain, Some(json!({})), None).is_err(), "nor is an empty value a yes");
        assert_eq!(give(&plain, None, accept), Ok(json!({"action": "accept", "content": {}})));
    }
}
