//! Tools that answer a call with a question, and go on when they are called again with the answer.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use taskwire::tool::{Answer, Ctx, InputRequired, InvalidSchema, Question, Registry, ToolError};
use taskwire_core::Payload;

use crate::common::{Name, answer, form, form_content, invalid, name_form, plain, sample, sampled};

pub(crate) fn register(registry: &Registry) -> Result<(), InvalidSchema> {
    registry
        .tool(plain("test_input_required_result_elicitation", "Asks for a name", elicitation))?
        .tool(plain("test_input_required_result_sampling", "Asks the caller's language model", sampling))?
        .tool(plain("test_input_required_result_list_roots", "Asks for the caller's root folders", list_roots))?
        .tool(plain("test_input_required_result_request_state", "Asks, and wants its state back", confirm))?
        .tool(plain("test_input_required_result_tampered_state", "Refuses a state that was changed", confirm))?
        .tool(plain("test_input_required_result_multiple_inputs", "Asks three things at once", multiple_inputs))?
        .tool(plain("test_input_required_result_multi_round", "Asks twice", multi_round))?
        .tool(plain("test_input_required_result_capabilities", "Asks what the caller can be asked", capabilities))?;
    Ok(())
}

async fn elicitation(ctx: Ctx) -> Result<String, ToolError> {
    match form_content(&ctx.resumed().answers, "user_name")? {
        Some(Name { name }) => Ok(format!("Hello, {name}!")),
        None => Err(ToolError::input_required(InputRequired::ask("user_name", name_form("What is your name?")))),
    }
}

async fn sampling(ctx: Ctx) -> Result<String, ToolError> {
    match answer(&ctx.resumed().answers, "capital_question")? {
        Some(answer) => Ok(sampled(&answer)?.to_owned()),
        None => Err(ToolError::input_required(InputRequired::ask("capital_question", sample("What is the capital of France?", 100)))),
    }
}

async fn list_roots(ctx: Ctx) -> Result<String, ToolError> {
    match answer(&ctx.resumed().answers, "client_roots")? {
        Some(answer) => Ok(format!("The roots are {}.", roots(&answer)?)),
        None => Err(ToolError::input_required(InputRequired::ask("client_roots", Question::roots()))),
    }
}

/// What comes back from the question whether it is all right.
#[derive(Deserialize)]
struct Confirmation {
    ok: bool,
}

async fn confirm(ctx: Ctx) -> Result<&'static str, ToolError> {
    let resumed = ctx.resumed();
    match (form_content(&resumed.answers, "confirm")?, &resumed.state) {
        (Some(Confirmation { ok: true }), Some(_)) => Ok("state-ok"),
        (Some(Confirmation { ok: false }), Some(_)) => Ok("state-ok, but not confirmed"),
        _ => Err(ToolError::input_required(
            InputRequired::ask("confirm", form("Please confirm", "ok", "boolean")).with_state(json!({"asked": "confirm"})),
        )),
    }
}

async fn multiple_inputs(ctx: Ctx) -> Result<String, ToolError> {
    let resumed = ctx.resumed();
    let name = form_content(&resumed.answers, "user_name")?;
    let greeting = answer(&resumed.answers, "greeting")?;
    let folders = answer(&resumed.answers, "client_roots")?;
    if let (Some(Name { name }), Some(greeting), Some(folders), Some(_)) = (name, greeting, folders, &resumed.state) {
        return Ok(format!("{} {name} has the roots {}.", sampled(&greeting)?, roots(&folders)?));
    }
    let round = InputRequired::ask("user_name", name_form("What is your name?"))
        .and("greeting", sample("Generate a greeting", 50))
        .and("client_roots", Question::roots())
        .with_state(json!({"asked": "three things"}));
    Err(ToolError::input_required(round))
}

/// How far the two rounds are: what the caller was asked last, and what it said before.
#[derive(Serialize, Deserialize)]
#[serde(tag = "asked", rename_all = "camelCase")]
enum RoundState {
    Name,
    Color { name: String },
}

/// What comes back from the question for a color.
#[derive(Deserialize)]
struct Color {
    color: String,
}

async fn multi_round(ctx: Ctx) -> Result<String, ToolError> {
    let responses = &ctx.resumed().answers;
    let asked: Option<RoundState> = ctx.resumed().state.as_ref().map(Payload::read).transpose()?;
    match asked {
        None => Err(ask_name()),
        Some(RoundState::Name) => match form_content(responses, "step1")? {
            Some(Name { name }) => Err(ask_color(name)),
            None => Err(ask_name()),
        },
        Some(RoundState::Color { name }) => match form_content(responses, "step2")? {
            Some(Color { color }) => Ok(format!("{name} likes {color}.")),
            None => Err(ask_color(name)),
        },
    }
}

fn ask_name() -> ToolError {
    ToolError::input_required(InputRequired::ask("step1", name_form("Step 1: What is your name?")).with_state(json!(RoundState::Name)))
}

fn ask_color(name: String) -> ToolError {
    let question = form("Step 2: What is your favorite color?", "color", "string");
    ToolError::input_required(InputRequired::ask("step2", question).with_state(json!(RoundState::Color { name })))
}

async fn capabilities(ctx: Ctx) -> Result<&'static str, ToolError> {
    let (accepts, responses) = (ctx.accepts(), &ctx.resumed().answers);
    let questions = [
        ("user_name", name_form("What is your name?")),
        ("capital_question", sample("What is the capital of France?", 100)),
        ("client_roots", Question::roots()),
    ];
    let open =
        questions.into_iter().filter(|(key, question)| question.missing_capabilities(accepts).is_none() && !responses.contains_key(*key));
    let round = open.fold(InputRequired::default(), |round, (key, question)| round.and(key, question));
    if round.questions.is_empty() {
        return Ok("There is nothing left to ask.");
    }
    Err(ToolError::input_required(round))
}

/// The URIs of the root folders.
fn roots(answer: &Answer) -> Result<String, ToolError> {
    let roots = answer.rest.get("roots").and_then(Value::as_array).ok_or_else(|| invalid("the answer has no `roots`"))?;
    let uris = roots.iter().filter_map(|root| root["uri"].as_str()).collect::<Vec<_>>();
    Ok(uris.join(", "))
}
