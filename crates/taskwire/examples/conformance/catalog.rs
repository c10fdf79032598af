//! Prompts, resources and completions.

use std::future::ready;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::{Value, json};
use taskwire::tool::{
    Completion, CompletionRequest, Content, InputRequired, Prompt, PromptCall, Registry, Resource, ResourceCall, ResourceTemplate,
    ToolError,
};

use crate::common::{PIXEL, form, form_content, invalid};

pub(crate) fn register(registry: &Registry) {
    registry
        .prompt(text_prompt("test_simple_prompt", "Says one thing", "This is a simple prompt for testing."))
        .prompt(prompt_with_arguments())
        .prompt(prompt_with_embedded_resource())
        .prompt(prompt_with_image())
        .prompt(prompt_that_asks())
        .resource(static_text())
        .resource(static_binary())
        .template(template())
        .completions(complete);
}

/// A prompt that always says the same.
pub(crate) fn text_prompt(name: &str, description: &str, text: &'static str) -> Prompt {
    Prompt::raw(json!({"name": name, "description": description}), move |_call| ready(Ok(messages([Content::text(text)]))))
}

fn prompt_with_arguments() -> Prompt {
    let wire = json!({
        "name": "test_prompt_with_arguments",
        "description": "Repeats its arguments",
        "arguments": [
            {"name": "arg1", "description": "The first one", "required": true},
            {"name": "arg2", "description": "The second one", "required": true},
        ],
    });
    Prompt::raw(wire, |call| ready(repeat_arguments(&call)))
}

fn repeat_arguments(call: &PromptCall) -> Result<Value, ToolError> {
    let text = format!("Prompt with arguments: arg1='{}', arg2='{}'", argument(call, "arg1")?, argument(call, "arg2")?);
    Ok(messages([Content::text(text)]))
}

fn prompt_with_embedded_resource() -> Prompt {
    let wire = json!({
        "name": "test_prompt_with_embedded_resource",
        "description": "Contains a resource",
        "arguments": [{"name": "resourceUri", "description": "The URI of the resource", "required": true}],
    });
    Prompt::raw(wire, |call| ready(embed_resource(&call)))
}

fn embed_resource(call: &PromptCall) -> Result<Value, ToolError> {
    let resource = Content::resource(argument(call, "resourceUri")?, "text/plain", "Embedded resource content for testing.");
    Ok(messages([resource, Content::text("Please process the embedded resource above.")]))
}

fn prompt_with_image() -> Prompt {
    Prompt::raw(json!({"name": "test_prompt_with_image", "description": "Contains an image"}), |_call| {
        ready(Ok(messages([Content::image(PIXEL, "image/png"), Content::text("Please analyze the image above.")])))
    })
}

/// What comes back from the question for a context.
#[derive(Deserialize)]
struct Context {
    context: String,
}

fn prompt_that_asks() -> Prompt {
    let wire = json!({"name": "test_input_required_result_prompt", "description": "Asks for a context first"});
    Prompt::raw(wire, |call| ready(use_context(&call)))
}

fn use_context(call: &PromptCall) -> Result<Value, ToolError> {
    match form_content(&call.resumed.answers, "user_context")? {
        Some(Context { context }) => Ok(messages([Content::text(format!("The context is: {context}"))])),
        None => Err(ToolError::input_required(InputRequired::ask(
            "user_context",
            form("What context should the prompt use?", "context", "string"),
        ))),
    }
}

/// What a prompt gives: one message of the user for each block.
fn messages(blocks: impl IntoIterator<Item = Content>) -> Value {
    let message = |block: Content| json!({"role": "user", "content": block.into_payload()});
    json!({"messages": blocks.into_iter().map(message).collect::<Vec<_>>()})
}

fn argument<'a>(call: &'a PromptCall, name: &str) -> Result<&'a str, ToolError> {
    call.arguments.get(name).and_then(Value::as_str).ok_or_else(|| invalid(format!("the argument `{name}` is missing or no text")))
}

fn static_text() -> Resource {
    let wire = json!({"uri": "test://static-text", "name": "static-text", "description": "A text", "mimeType": "text/plain"});
    Resource::raw(wire, |call| {
        ready(Ok(contents(json!({"uri": call.uri, "mimeType": "text/plain", "text": "This is the content of the static text resource."}))))
    })
}

fn static_binary() -> Resource {
    let wire = json!({"uri": "test://static-binary", "name": "static-binary", "description": "An image", "mimeType": "image/png"});
    Resource::raw(wire, |call| ready(Ok(contents(json!({"uri": call.uri, "mimeType": "image/png", "blob": STANDARD.encode(PIXEL)})))))
}

fn template() -> ResourceTemplate {
    let wire = json!({
        "uriTemplate": "test://template/{id}/data",
        "name": "template",
        "description": "Data by id",
        "mimeType": "application/json",
    });
    ResourceTemplate::raw(wire, |call| ready(template_data(&call)))
}

fn template_data(call: &ResourceCall) -> Result<Value, ToolError> {
    let id = call.uri.strip_prefix("test://template/").and_then(|rest| rest.strip_suffix("/data"));
    let id = id.ok_or_else(|| invalid(format!("`{}` is not a resource of this template", call.uri)))?;
    let text = json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")}).to_string();
    Ok(contents(json!({"uri": call.uri, "mimeType": "application/json", "text": text})))
}

/// What a resource gives: one piece.
pub(crate) fn contents(piece: Value) -> Value {
    json!({"contents": [piece]})
}

async fn complete(request: CompletionRequest) -> Option<Completion> {
    if request.reference != "test_prompt_with_arguments" {
        return None;
    }
    let known: &[&str] = match request.argument.as_str() {
        "arg1" => &["test", "testing", "tested"],
        "arg2" => &["value", "variable"],
        _ => &[],
    };
    let fits = known.iter().filter(|value| value.starts_with(&request.value));
    Some(Completion { values: fits.map(|value| (*value).to_owned()).collect() })
}
