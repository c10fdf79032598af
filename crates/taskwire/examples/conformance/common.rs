//! What several groups of fixtures use: tools without arguments, questions, answers, and a picture.

use std::collections::BTreeMap;

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::json;
use taskwire::tool::{Answer, Ctx, IntoResult, Question, Tool, ToolError};
use taskwire_core::{Payload, wire::code};

/// A picture of one pixel.
pub(crate) const PIXEL: &[u8] = include_bytes!("pixel.png");

/// Answers by key, as the caller brought them along.
pub(crate) type Responses = BTreeMap<String, Payload>;

/// A tool without arguments.
pub(crate) fn plain<R, F, Fut>(name: &str, description: &str, body: F) -> Tool
where
    R: IntoResult,
    F: Fn(Ctx) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, ToolError>> + Send + 'static,
{
    Tool::raw(name, description, json!({"type": "object", "properties": {}}), body)
}

/// A form with one field that must be filled in; `kind` is its JSON type.
pub(crate) fn form(message: &str, field: &str, kind: &str) -> Question {
    Question::form(message, json!({"type": "object", "properties": {field: {"type": kind}}, "required": [field]}))
}

/// The form that asks for a name, see [`Name`].
pub(crate) fn name_form(message: &str) -> Question {
    form(message, "name", "string")
}

/// What comes back from [`name_form`].
#[derive(Deserialize)]
pub(crate) struct Name {
    pub(crate) name: String,
}

/// The answer under `key`; `None` if there is none.
pub(crate) fn answer(responses: &Responses, key: &str) -> Result<Option<Answer>, ToolError> {
    let Some(response) = responses.get(key) else { return Ok(None) };
    response.read().map(Some).map_err(|error| invalid(format!("the response to `{key}` has the wrong shape: {error}")))
}

/// What was filled in under `key`; `None` if there is no answer.
pub(crate) fn form_content<T: DeserializeOwned>(responses: &Responses, key: &str) -> Result<Option<T>, ToolError> {
    answer(responses, key)?.map(|answer| answer.read()).transpose()
}

/// Asks the caller's language model.
pub(crate) fn sample(text: &str, max_tokens: u32) -> Question {
    let message = json!({"role": "user", "content": {"type": "text", "text": text}});
    Question::sampling(json!({"messages": [message], "maxTokens": max_tokens}))
}

/// What the language model said.
pub(crate) fn sampled(answer: &Answer) -> Result<&str, ToolError> {
    let text = answer.content.as_ref().and_then(|content| content["text"].as_str());
    text.ok_or_else(|| invalid("the model's answer has no text"))
}

/// The caller sent something that cannot be used.
pub(crate) fn invalid(message: impl Into<String>) -> ToolError {
    ToolError::protocol(code::INVALID_PARAMS, message)
}
