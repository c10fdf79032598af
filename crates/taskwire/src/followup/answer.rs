//! `task_answer`: an answer to what a task asks, given by a model for its user.

use serde::Deserialize;
use serde_json::{Value, json};
use taskwire_core::{
    InputKey, Payload,
    task::{Authority, Command, Reject, Task},
};

use super::{ANSWER, WAIT, arguments, find, question::Question, quoted, say};
use crate::{
    engine,
    tool::{CallResult, Content, Ctx, Tool, ToolError},
};

const DESCRIPTION: &str = "Answers a question that a task of this server asked (task_wait and the tool itself show the question, its key and \
    its fields). Give only what your user told you or what you know for certain: if you are not sure, ask your user first. Afterwards \
    call task_wait for the task's result.";

/// What is done with a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    #[default]
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
    action: Action,
}

pub(super) fn tool() -> Tool {
    let schema = json!({
        "type": "object",
        "properties": {
            "task_id": {"type": "string", "description": "The task's id, as a tool gave it."},
            "key": {"type": "string", "description": "Which question. May be left out if the task has only one."},
            "value": {
                "type": ["object", "string", "number", "boolean", "array", "null"],
                "description": "The answer: an object with the fields of the question, or the plain value if it has one field."
            },
            "action": {
                "type": "string",
                "enum": ["accept", "decline", "cancel"],
                "description": "accept (the default): here is the answer. decline: your user does not want to answer. cancel: your user \
                    dismissed the question."
            },
        },
        "required": ["task_id"],
        "additionalProperties": false,
    });
    Tool::raw(ANSWER, DESCRIPTION, schema, answer)
        .title("Answer a question of a task")
        .annotations(json!({"readOnlyHint": false, "destructiveHint": false, "openWorldHint": false}))
}

async fn answer(ctx: Ctx) -> Result<CallResult, ToolError> {
    let Arguments { task_id, key, value, action } = ctx.arguments().read()?;
    let task = find(&ctx, &task_id)?;
    let (key, request) = choose(&task, key.as_deref()).map_err(ToolError::new)?;
    let question = Question::read(&request);
    let answer = give(&task, &key, &question, value, action).map_err(ToolError::new)?;
    let (engine, caller) = (ctx.run().engine(), ctx.run().spec().caller.clone());
    let given = engine.submit(task.id, Authority::Caller(caller), Command::Answer(vec![(key.clone(), answer)])).await;
    let receipt = match given {
        Ok(receipt) => receipt,
        // It was forgotten in this very moment.
        Err(engine::Error::Rejected(Reject::NotFound)) => return Err(find(&ctx, &task_id).err().unwrap_or_else(ToolError::stopped)),
        Err(error) => return Err(error.into()),
    };
    let after = &receipt.task;
    if !receipt.changed {
        // Somebody else was faster, or the task ended: what is right now is what a second try would be told.
        return Err(match choose(after, Some(key.as_str())) {
            Err(told) => ToolError::new(told),
            Ok(_) => ToolError::new(format!("The answer to `{}` could not be given. Try again.", key.as_str())),
        });
    }
    let what = match action {
        Action::Accept => "is answered",
        Action::Decline => "was declined",
        Action::Cancel => "was dismissed",
    };
    let done = format!("The question `{}` of `{}` (task {}) {what}.", key.as_str(), after.spec.tool, after.id);
    Ok(CallResult::of([Content::text(match after.asked_at {
        Some(_) => format!("{done}\n\n{}", say::asking(after)),
        None => format!("{done} The task goes on. Next, call `{WAIT}` with {} for its result.", arguments(after.id, &[])),
    })]))
}

/// The open question that is meant, or what is to be said if there is none.
fn choose(task: &Task, key: Option<&str>) -> Result<(InputKey, Payload), String> {
    let (tool, wait) = (&task.spec.tool, format!("`{WAIT}` with {}", arguments(task.id, &[])));
    if task.outcome.is_some() {
        return Err(format!(
            "`{tool}` (task {}) has ended ({}) and asks nothing any more: {wait} gives its result.",
            task.id,
            task.status()
        ));
    }
    let open: Vec<(&InputKey, &Payload)> = task.open_inputs().collect();
    let keys = open.iter().map(|(key, _)| quoted(key.as_str())).collect::<Vec<_>>().join(", ");
    let found = match key {
        None if open.len() == 1 => open.first(),
        None if open.is_empty() => None,
        None => return Err(format!("`{tool}` (task {}) has several open questions: say in `key` which one you mean: {keys}.", task.id)),
        Some(given) => open.iter().find(|(key, _)| key.as_str() == given),
    };
    if let Some((key, request)) = found {
        return Ok(((*key).clone(), (*request).clone()));
    }
    let answered = key.filter(|key| task.inputs.contains_key(&InputKey::new(key)));
    Err(match (answered, key) {
        (Some(key), _) => format!("The question {} is answered already. Go on with {wait}.", quoted(key)),
        (None, Some(key)) if !open.is_empty() => {
            format!("`{tool}` (task {}) has no question {}. Its open questions: {keys}.", task.id, quoted(key))
        }
        _ => format!("`{tool}` (task {}) asks nothing at the moment. Go on with {wait}.", task.id),
    })
}

/// The answer as the task is given it, or what is wrong with it.
fn give(task: &Task, key: &InputKey, question: &Question, value: Option<Value>, action: Action) -> Result<Payload, String> {
    let content = match (question, action) {
        (Question::Client { .. }, _) => return Err(question.ask(task.id, key.as_str())),
        (_, Action::Decline) => return Ok(json!({"action": "decline"}).into()),
        (_, Action::Cancel) => return Ok(json!({"action": "cancel"}).into()),
        (Question::Page { .. }, Action::Accept) => return Ok(json!({"action": "accept"}).into()),
        (Question::Form { .. }, Action::Accept) => question.fit(value).map_err(|problems| {
            format!(
                "The answer does not fit the question, so it was not given. Correct it and call `{ANSWER}` again; if you do not know what \
                 is asked for, ask your user.\n- {}\n\n{}",
                problems.join("\n- "),
                question.ask(task.id, key.as_str())
            )
        })?,
    };
    Ok(json!({"action": "accept", "content": content}).into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use taskwire_core::{
        CallerId, Epoch, TaskId, Timestamp,
        id::ID_RANDOM_BYTES,
        task::{Event, Spec, create, evolve},
    };

    use super::*;

    fn asked(keys: &[&str]) -> Task {
        let at = Timestamp::from_millis(1_000);
        let id = TaskId::new(at, [3; ID_RANDOM_BYTES]);
        let mut task = create(id, &Arc::new(Spec::new(CallerId::new("me"), "deploy")), Epoch(1), 0, at);
        for key in keys {
            evolve(&mut task, &Event::Asked { key: InputKey::new(key), request: form() }, at);
        }
        task
    }

    fn then(mut task: Task, event: &Event) -> Task {
        evolve(&mut task, event, Timestamp::from_millis(2_000));
        task
    }

    fn answered(key: &str) -> Event {
        Event::Answered { key: InputKey::new(key), answer: json!({}).into() }
    }

    fn form() -> Payload {
        let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
        json!({"method": "elicitation/create", "params": {"mode": "form", "message": "Who?", "requestedSchema": schema}}).into()
    }

    fn chosen(task: &Task, key: Option<&str>) -> Result<String, String> {
        choose(task, key).map(|(key, _)| key.as_str().to_owned())
    }

    #[test]
    fn the_question_is_the_only_one_or_the_one_that_is_named() {
        assert_eq!(chosen(&asked(&["a"]), None), Ok("a".to_owned()));
        assert_eq!(chosen(&asked(&["a", "b"]), Some("b")), Ok("b".to_owned()));
        assert_eq!(chosen(&then(asked(&["a", "b"]), &answered("a")), None), Ok("b".to_owned()));
        let several = chosen(&asked(&["a", "b"]), None).expect_err("which?");
        assert!(several.contains("which one you mean: `a`, `b`"), "{several}");
        let other = chosen(&asked(&["a"]), Some("c")).expect_err("none of that name");
        assert!(other.contains("no question `c`") && other.contains("open questions: `a`"), "{other}");
        for key in [None, Some("c")] {
            let nothing = chosen(&asked(&[]), key).expect_err("nothing is asked");
            assert!(nothing.contains("asks nothing at the moment") && nothing.contains("`task_wait` with {\"task_id\""), "{nothing}");
        }
        let again = chosen(&then(asked(&["a", "b"]), &answered("a")), Some("a")).expect_err("answered");
        assert!(again.contains("`a` is answered already"), "{again}");
        let over = chosen(&then(asked(&["a"]), &Event::Cancelled { reason: None }), Some("a")).expect_err("over");
        assert!(over.contains("has ended (cancelled)"), "{over}");
    }

    #[test]
    fn an_answer_is_what_the_protocol_calls_one() {
        let (task, key) = (asked(&["a"]), InputKey::new("a"));
        let give = |question: &Question, value: Option<Value>, action| {
            give(&task, &key, question, value, action).map(|answer| answer.read::<Value>().expect("JSON"))
        };
        let form = Question::read(&form());
        assert_eq!(give(&form, Some(json!("Ada")), Action::Accept), Ok(json!({"action": "accept", "content": {"name": "Ada"}})));
        assert_eq!(give(&form, None, Action::Decline), Ok(json!({"action": "decline"})));
        assert_eq!(give(&form, Some(json!("x")), Action::Cancel), Ok(json!({"action": "cancel"})), "what was filled in is not sent");
        let page = Question::Page { message: String::new(), url: "https://x.test".to_owned() };
        assert_eq!(give(&page, None, Action::Accept), Ok(json!({"action": "accept"})));
        let wrong = give(&form, Some(json!({"nmae": "Ada"})), Action::Accept).expect_err("wrong");
        assert!(wrong.contains("- `nmae`: the form has no such field") && wrong.contains("- `name` (text; required)"), "{wrong}");
        let client = Question::Client { method: "sampling/createMessage".to_owned() };
        assert!(give(&client, None, Action::Decline).expect_err("not ours").contains("only by the client"));
    }
}
