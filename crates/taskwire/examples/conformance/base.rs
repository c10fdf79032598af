//! Tools that show what a result may contain, and progress on the way to it.

use std::time::Duration;

use serde_json::{Value, json};
use taskwire::tool::{Content, Ctx, InvalidSchema, Progress, Registry, Tool, ToolError};

use crate::common::{PIXEL, plain};

const SILENCE: &[u8] = include_bytes!("silence.wav");

pub(crate) fn register(registry: &Registry) -> Result<(), InvalidSchema> {
    registry
        .tool(plain("test_simple_text", "Returns a text", simple_text))?
        .tool(plain("test_image_content", "Returns an image", image))?
        .tool(plain("test_audio_content", "Returns a sound", audio))?
        .tool(plain("test_embedded_resource", "Returns a resource", embedded_resource))?
        .tool(plain("test_multiple_content_types", "Returns a text, an image and a resource", mixed_content))?
        .tool(plain("test_error_handling", "Fails", error))?
        .tool(plain("test_tool_with_progress", "Says how far it is", progress))?
        .tool(Tool::raw("json_schema_2020_12_tool", "Tool with JSON Schema 2020-12 features", contact_schema(), contact))?;
    Ok(())
}

async fn simple_text(_ctx: Ctx) -> Result<&'static str, ToolError> {
    Ok("This is a simple text response for testing.")
}

async fn image(_ctx: Ctx) -> Result<Content, ToolError> {
    Ok(Content::image(PIXEL, "image/png"))
}

async fn audio(_ctx: Ctx) -> Result<Content, ToolError> {
    Ok(Content::audio(SILENCE, "audio/wav"))
}

async fn embedded_resource(_ctx: Ctx) -> Result<Content, ToolError> {
    Ok(Content::resource("test://embedded-resource", "text/plain", "This is an embedded resource content."))
}

async fn mixed_content(_ctx: Ctx) -> Result<Vec<Content>, ToolError> {
    Ok(vec![
        Content::text("Multiple content types test:"),
        Content::image(PIXEL, "image/png"),
        Content::resource("test://mixed-content-resource", "application/json", r#"{"test":"data","value":123}"#),
    ])
}

async fn error(_ctx: Ctx) -> Result<(), ToolError> {
    Err(ToolError::new("This tool intentionally returns an error for testing"))
}

async fn progress(ctx: Ctx) -> Result<&'static str, ToolError> {
    for done in [0.0, 50.0, 100.0] {
        ctx.progress(Progress::of(done, 100.0)).await?;
        ctx.sleep(Duration::from_millis(50)).await?;
    }
    Ok("All of it is done.")
}

async fn contact(ctx: Ctx) -> Result<String, ToolError> {
    Ok(format!("The contact is {}", ctx.arguments().as_str()))
}

/// A schema that uses what JSON Schema has gained up to 2020-12; it must arrive as it is.
fn contact_schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            },
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": false,
    })
}
