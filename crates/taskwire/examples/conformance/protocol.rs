//! Tools for the rules around a call: capabilities, logging, lists that change, arguments that are headers too.

use std::{
    future::ready,
    sync::atomic::{AtomicU64, Ordering},
};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use taskwire::tool::{Ctx, InputRequired, InvalidSchema, Prompt, Registry, Tool, ToolError};

use crate::{
    catalog::text_prompt,
    common::{Name, form_content, name_form, plain},
};

pub(crate) fn register(registry: &Registry) -> Result<(), InvalidSchema> {
    registry
        .tool(Tool::new("test_x_mcp_header", "Has an argument that is a header too", region))?
        .tool(plain("test_missing_capability", "Needs the capability `sampling`", missing_capability))?
        .tool(plain("test_streaming_elicitation", "Asks for a name", streaming_elicitation))?
        .tool(plain("test_logging_tool", "Writes a line for the log", logging))?
        .tool(tool_change(registry))?
        .tool(prompt_change(registry))?;
    Ok(())
}

#[derive(Deserialize, JsonSchema)]
struct Region {
    /// Also sent as the header `Mcp-Param-Region`.
    #[serde(default)]
    #[schemars(extend("x-mcp-header" = "Region"))]
    region: String,
}

async fn region(args: Region, _ctx: Ctx) -> Result<String, ToolError> {
    Ok(format!("The region is `{}`.", args.region))
}

async fn missing_capability(ctx: Ctx) -> Result<&'static str, ToolError> {
    if !ctx.accepts().sampling {
        return Err(ToolError::missing_capability(json!({"sampling": {}})));
    }
    Ok("The capability is there.")
}

async fn streaming_elicitation(ctx: Ctx) -> Result<String, ToolError> {
    if !ctx.accepts().elicit_form {
        return Err(ToolError::missing_capability(json!({"elicitation": {}})));
    }
    match form_content(&ctx.resumed().answers, "user_name")? {
        Some(Name { name }) => Ok(format!("Hello, {name}!")),
        None => Err(ToolError::input_required(InputRequired::ask("user_name", name_form("What is your name?")))),
    }
}

async fn logging(ctx: Ctx) -> Result<&'static str, ToolError> {
    ctx.log("info", "The logging tool was called.");
    Ok("A line was written for the log.")
}

/// Changes the list of tools at each call: a tool comes, and then has another description each time.
fn tool_change(registry: &Registry) -> Tool {
    let (registry, times) = (registry.clone(), AtomicU64::new(0));
    plain("test_trigger_tool_change", "Changes the list of tools", move |_ctx| {
        let times = times.fetch_add(1, Ordering::Relaxed) + 1;
        let changed = registry.tool(changing_tool(times)).map(|_| "The list of tools has changed.");
        ready(changed.map_err(ToolError::from))
    })
}

/// Changes the list of prompts at each call: a prompt comes, and then has another description each time.
fn prompt_change(registry: &Registry) -> Tool {
    let (registry, times) = (registry.clone(), AtomicU64::new(0));
    plain("test_trigger_prompt_change", "Changes the list of prompts", move |_ctx| {
        registry.prompt(changing_prompt(times.fetch_add(1, Ordering::Relaxed) + 1));
        ready(Ok("The list of prompts has changed."))
    })
}

fn changing_tool(times: u64) -> Tool {
    plain("test_changing_tool", &format!("Has changed {times} times"), |_ctx| ready(Ok("It does nothing.")))
}

fn changing_prompt(times: u64) -> Prompt {
    text_prompt("test_changing_prompt", &format!("Has changed {times} times"), "It says nothing.")
}
