//! What only revisions before 2026-07-28 are tested with: log lines on the way, questions asked in the middle of a call,
//! a stream that the server closes, a resource to watch. All of it works in both eras.

use std::{
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use taskwire::tool::{Answer, Ctx, InputRequired, InvalidSchema, Question, Registry, Resource, Tool, ToolError};

use crate::{
    catalog::contents,
    common::{answer, plain, sample, sampled},
};

const WATCHED: &str = "test://watched-resource";

pub(crate) fn register(registry: &Registry) -> Result<(), InvalidSchema> {
    let changes = Arc::default();
    registry
        .tool(plain("test_tool_with_logging", "Writes three lines for the log", logging))?
        .tool(Tool::new("test_sampling", "Passes a prompt to the caller's language model", sampling))?
        .tool(Tool::new("test_elicitation", "Asks who the caller is", elicitation))?
        .tool(plain("test_elicitation_sep1034_defaults", "Asks with a form that is filled in already", defaults))?
        .tool(plain("test_elicitation_sep1330_enums", "Asks with all kinds of choices", enums))?
        .tool(plain("test_reconnection", "Closes the stream of its call before it answers", reconnection))?
        .tool(resource_change(registry, &changes))?
        .resource(watched_resource(&changes));
    Ok(())
}

async fn logging(ctx: Ctx) -> Result<&'static str, ToolError> {
    ctx.log("info", "Tool execution started");
    ctx.sleep(Duration::from_millis(50)).await?;
    ctx.log("info", "Tool processing data");
    ctx.sleep(Duration::from_millis(50)).await?;
    ctx.log("info", "Tool execution completed");
    Ok("Three lines were written for the log.")
}

#[derive(Deserialize, JsonSchema)]
struct Sampling {
    /// What the language model is told.
    prompt: String,
}

async fn sampling(args: Sampling, ctx: Ctx) -> Result<String, ToolError> {
    let answer = answer_or_ask(&ctx, "completion", sample(&args.prompt, 100))?;
    Ok(format!("LLM response: {}", sampled(&answer)?))
}

#[derive(Deserialize, JsonSchema)]
struct Elicitation {
    /// What the person is told.
    message: String,
}

async fn elicitation(args: Elicitation, ctx: Ctx) -> Result<String, ToolError> {
    let schema = json!({
        "type": "object",
        "properties": {
            "username": {"type": "string", "description": "User's response"},
            "email": {"type": "string", "description": "User's email address"},
        },
        "required": ["username", "email"],
    });
    let answer = answer_or_ask(&ctx, "user", Question::form(&args.message, schema))?;
    Ok(format!("User response: {}", describe_answer(&answer)))
}

async fn defaults(ctx: Ctx) -> Result<String, ToolError> {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": true},
        },
    });
    let answer = answer_or_ask(&ctx, "details", Question::form("Are these details right?", schema))?;
    Ok(format!("Elicitation completed: {}", describe_answer(&answer)))
}

async fn enums(ctx: Ctx) -> Result<String, ToolError> {
    let schema = json!({
        "type": "object",
        "properties": {
            "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
            "titledSingle": {"type": "string", "oneOf": titled("Option")},
            "legacyEnum": {
                "type": "string",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
            "titledMulti": {"type": "array", "items": {"anyOf": titled("Choice")}},
        },
    });
    let answer = answer_or_ask(&ctx, "choices", Question::form("Please choose", schema))?;
    Ok(format!("Elicitation completed: {}", describe_answer(&answer)))
}

/// Three choices that have a title each.
fn titled(noun: &str) -> Value {
    json!([
        {"const": "value1", "title": format!("First {noun}")},
        {"const": "value2", "title": format!("Second {noun}")},
        {"const": "value3", "title": format!("Third {noun}")},
    ])
}

/// The answer to the one question of a tool; as long as there is none, the tool has to be called again with it.
fn answer_or_ask(ctx: &Ctx, key: &str, question: Question) -> Result<Answer, ToolError> {
    answer(&ctx.resumed().answers, key)?.ok_or_else(|| ToolError::input_required(InputRequired::ask(key, question)))
}

/// What a person did with a form.
fn describe_answer(answer: &Answer) -> String {
    let action = answer.action.as_deref().unwrap_or("none");
    let content = answer.content.as_ref().map_or_else(|| "{}".to_owned(), Value::to_string);
    format!("action={action}, content={content}")
}

async fn reconnection(ctx: Ctx) -> Result<&'static str, ToolError> {
    ctx.disconnect(Duration::from_millis(100));
    ctx.sleep(Duration::from_millis(300)).await?;
    Ok("This was sent after the stream had been closed.")
}

/// Changes the watched resource at each call.
fn resource_change(registry: &Registry, changes: &Arc<AtomicU64>) -> Tool {
    let (registry, changes) = (registry.clone(), Arc::clone(changes));
    plain("test_trigger_resource_change", "Changes the watched resource", move |_ctx| {
        changes.fetch_add(1, Ordering::Relaxed);
        registry.resource_updated(WATCHED);
        ready(Ok("The watched resource has changed."))
    })
}

fn watched_resource(changes: &Arc<AtomicU64>) -> Resource {
    let changes = Arc::clone(changes);
    let wire = json!({"uri": WATCHED, "name": "watched-resource", "description": "A text that changes", "mimeType": "text/plain"});
    Resource::raw(wire, move |call| {
        let text = format!("Has changed {} times", changes.load(Ordering::Relaxed));
        ready(Ok(contents(json!({"uri": call.uri, "mimeType": "text/plain", "text": text}))))
    })
}
