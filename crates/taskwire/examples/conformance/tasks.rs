//! Tools whose calls become tasks — and one that never does.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use taskwire::tool::{Ctx, InputRequired, InvalidSchema, Registry, TaskMode, Tool, ToolError};
use taskwire_core::wire::code;

use crate::common::{Name, form, form_content, name_form, plain};

pub(crate) fn register(registry: &Registry) -> Result<(), InvalidSchema> {
    let with_task = plain("test_tool_with_task", "Asks for a name, then greets as a task", tool_with_task);
    registry
        .tool(Tool::new("greet", "Greets at once", greet).task(TaskMode::Never))?
        .tool(Tool::new("slow_compute", "Takes as long as it is told", slow_compute).streams().task(TaskMode::Always))?
        .tool(plain("failing_job", "Says after a second that it failed", failing_job).task(TaskMode::Required))?
        .tool(plain("protocol_error_job", "Fails as a request", protocol_error_job).task(TaskMode::Always))?
        .tool(Tool::new("confirm_delete", "Asks before it pretends to delete a file", confirm_delete).task(TaskMode::Always))?
        .tool(plain("multi_input", "Asks two things at once", multi_input).task(TaskMode::Always))?
        .tool(with_task.task(TaskMode::Auto).promote_after(Duration::from_millis(50)))?;
    Ok(())
}

#[derive(Deserialize, JsonSchema)]
struct Greet {
    /// Whom to greet.
    name: String,
}

async fn greet(args: Greet, _ctx: Ctx) -> Result<String, ToolError> {
    Ok(format!("Hello, {}!", args.name))
}

#[derive(Deserialize, JsonSchema)]
struct SlowCompute {
    /// How long it takes; fractions are fine.
    seconds: f64,
    /// What the result is called.
    #[serde(default)]
    label: String,
}

async fn slow_compute(args: SlowCompute, ctx: Ctx) -> Result<String, ToolError> {
    let wait = Duration::try_from_secs_f64(args.seconds)?;
    for part in 1..=4 {
        ctx.sleep(wait / 4).await?;
        ctx.text(format!("{part}/4 of {}\n", args.label)).await?;
    }
    Ok(format!("computed {} in {} s", args.label, args.seconds))
}

async fn failing_job(ctx: Ctx) -> Result<(), ToolError> {
    ctx.sleep(Duration::from_secs(1)).await?;
    Err(ToolError::new("The job failed, as it should."))
}

async fn protocol_error_job(ctx: Ctx) -> Result<(), ToolError> {
    ctx.sleep(Duration::from_millis(50)).await?;
    Err(ToolError::protocol(code::INTERNAL_ERROR, "the job broke the protocol, as it should"))
}

#[derive(Deserialize, JsonSchema)]
struct ConfirmDelete {
    /// The file that nobody deletes.
    filename: String,
}

/// What comes back from the question whether to delete.
#[derive(Deserialize)]
struct Confirmation {
    confirm: bool,
}

async fn confirm_delete(args: ConfirmDelete, ctx: Ctx) -> Result<String, ToolError> {
    let question = form(&format!("Delete {}?", args.filename), "confirm", "boolean");
    let answer = ctx.ask("confirm", question).await?;
    let confirmed = answer.is_accepted() && answer.read::<Confirmation>()?.confirm;
    Ok(format!("{} {}", if confirmed { "Deleted" } else { "Kept" }, args.filename))
}

async fn multi_input(ctx: Ctx) -> Result<String, ToolError> {
    let first = ctx.ask("first_name", name_form("What is the first name?"));
    let second = ctx.ask("second_name", name_form("What is the second name?"));
    let (first, second) = tokio::try_join!(first, second)?;
    Ok(format!("Hello, {} and {}!", first.read::<Name>()?.name, second.read::<Name>()?.name))
}

async fn tool_with_task(ctx: Ctx) -> Result<String, ToolError> {
    let Some(Name { name }) = form_content(&ctx.resumed().answers, "user_name")? else {
        return Err(ToolError::input_required(InputRequired::ask("user_name", name_form("What is your name?"))));
    };
    ctx.sleep(Duration::from_millis(300)).await?;
    Ok(format!("Hello, {name}!"))
}
