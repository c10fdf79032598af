//! Relays questions of a command to the caller, and the answers back.

use serde::Serialize;
use taskwire_core::{Payload, QuestionKey, wire::code};

use crate::{
    command::messages::{self, ToSupervisor},
    tool::{Ctx, Question, ToolError, ToolErrorKind, from_engine},
};

/// Marks an answer that the server made up because the command had withdrawn the question.
pub(super) const WITHDRAWN: &str = "dev.taskwire/withdrawn";
/// Stands between a question's key and the number that is added when the key was withdrawn before.
pub(super) const REPEAT_SEPARATOR: &str = " #";

/// Asks the caller, and returns what the supervisor is to be told.
pub(super) async fn ask(ctx: Ctx, asked: messages::OpenQuestion) -> Option<ToSupervisor> {
    let messages::OpenQuestion { key, question, .. } = asked;
    let asked = match (&question.url, question.schema) {
        (Some(url), _) => Question::url(&question.message, url).into_payload(),
        (None, schema) => form(&question.message, schema),
    };
    let Ok(name) = unused_key(&ctx, &key).await else { return None };
    let refuse = |message: String| Some(ToSupervisor::Refuse { key: key.clone(), message });
    match ctx.ask_raw(&name, asked).await.map_err(ToolError::into_kind) {
        Ok(answer) => match answer.read() {
            Ok(value) => Some(ToSupervisor::Answer { key, value }),
            Err(error) => refuse(format!("the answer cannot be read: {error}")),
        },
        Err(ToolErrorKind::Text(text)) => refuse(text),
        Err(ToolErrorKind::Protocol(error)) if error.code == code::MISSING_CAPABILITY => {
            refuse("nobody can be asked: the client of this call cannot show such a question".to_owned())
        }
        Err(ToolErrorKind::Protocol(error)) => refuse(error.message),
        Err(ToolErrorKind::InputRequired(_) | ToolErrorKind::Stopped) => None,
    }
}

/// The key of the question in the task. A key that was withdrawn before gets a number.
async fn unused_key(ctx: &Ctx, key: &str) -> Result<String, ToolError> {
    let run = ctx.run();
    let Some(task) = run.engine().any_task(run.id()).await.map_err(from_engine)? else { return Ok(key.to_owned()) };
    let is_withdrawn = |name: &str| {
        let answer = task.questions.get(&QuestionKey::new(name)).and_then(|input| input.answer.as_ref());
        answer.is_some_and(|answer| answer.as_str().contains(WITHDRAWN))
    };
    let mut name = key.to_owned();
    for times in 2_u32.. {
        if !is_withdrawn(&name) {
            break;
        }
        name = format!("{key}{REPEAT_SEPARATOR}{times}");
    }
    Ok(name)
}

/// A form. It keeps the order in which the command gave the fields.
fn form(message: &str, schema: Option<Payload>) -> Payload {
    #[derive(Serialize)]
    struct Form<'a> {
        method: &'static str,
        params: Params<'a>,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        mode: &'static str,
        message: &'a str,
        requested_schema: Payload,
    }
    let requested_schema = schema.unwrap_or_else(|| serde_json::json!({"type": "object", "properties": {}}).into());
    let form = Form { method: "elicitation/create", params: Params { mode: "form", message, requested_schema } };
    Payload::of(&form).expect("it consists of JSON already")
}
