//! Demo tools that show what tasks can do. They are served when there is no configuration.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use taskwire::tool::{Ctx, Progress, Question, TaskMode, Tool, ToolError};

/// The names of [`tools`], in their order.
pub(crate) const NAMES: [&str; 6] = ["countdown", "tell_story", "greet_me", "fail", "bake", "count_far"];

/// The demo tools.
pub(crate) fn tools() -> Vec<Tool> {
    let far = "Counts for minutes; interrupted by a crash or restart of the server, it goes on where it was";
    vec![
        Tool::new("countdown", "Counts down, one number a second", countdown).streams(),
        Tool::new("tell_story", "Tells a short story word by word, as a language model would", tell_story).streams(),
        Tool::new("greet_me", "Asks for your name and greets you", greet_me).task(TaskMode::Always),
        Tool::new("fail", "Works for a moment, then fails: as a tool, as a request, or by a panic", fail),
        Tool::new("bake", "Bakes a cake and reports its progress", bake),
        Tool::new("count_far", far, count_far).streams().task(TaskMode::Always).retry_on_interrupt(),
    ]
}

const fn ten() -> u32 {
    10
}

#[derive(Deserialize, JsonSchema)]
struct Countdown {
    /// Where to begin
    #[serde(default = "ten")]
    #[schemars(range(min = 1, max = 3600))]
    from: u32,
}

async fn countdown(args: Countdown, ctx: Ctx) -> Result<&'static str, ToolError> {
    for n in (1..=args.from).rev() {
        ctx.text(format!("{n}…\n")).await?;
        ctx.progress(Progress::of(args.from - n, args.from).message(format!("{n}…"))).await?;
        ctx.sleep(Duration::from_secs(1)).await?;
    }
    Ok("Lift-off!")
}

const STORY: &str = "Once there was a lighthouse that answered every ship. One night the lamp went out in the middle of a \
sentence. The keeper lit it again, read in the log where the light had stopped, and finished the word. The ships had waited. \
Nobody was lost, and nobody was told the same thing twice.";

#[derive(Deserialize, JsonSchema)]
struct Story {
    /// Milliseconds between two words
    #[serde(default = "pause")]
    #[schemars(range(max = 10_000))]
    pause_ms: u64,
}

const fn pause() -> u64 {
    80
}

async fn tell_story(args: Story, ctx: Ctx) -> Result<&'static str, ToolError> {
    for word in STORY.split_inclusive(' ') {
        ctx.text(word).await?;
        ctx.sleep(Duration::from_millis(args.pause_ms)).await?;
    }
    Ok(STORY)
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

#[derive(Deserialize, JsonSchema)]
struct Name {
    /// What should I call you?
    name: String,
}

async fn greet_me(_: Nothing, ctx: Ctx) -> Result<String, ToolError> {
    ctx.status("waiting for your name").await?;
    let answer = ctx.ask("name", Question::form_for::<Name>("What is your name?")).await?;
    if !answer.is_accepted() {
        return Ok("Then I shall greet a stranger: hello!".to_owned());
    }
    let Name { name } = answer.read()?;
    Ok(format!("Hello, {name}!"))
}

/// The code of `fail`'s error. Codes from -32768 to -32000 belong to JSON-RPC and MCP, not to tools.
const BRIDGE_OUT: i64 = 1001;

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum FailureKind {
    /// A result that says `isError`
    Tool,
    /// A JSON-RPC error: the task is `failed`
    Request,
    /// A bug: the task is `failed` all the same
    Panic,
}

#[derive(Deserialize, JsonSchema)]
struct Fail {
    #[serde(default = "as_tool")]
    how: FailureKind,
}

const fn as_tool() -> FailureKind {
    FailureKind::Tool
}

async fn fail(args: Fail, ctx: Ctx) -> Result<&'static str, ToolError> {
    ctx.text("Everything is going well so far.\n").await?;
    ctx.sleep(Duration::from_secs(2)).await?;
    match args.how {
        FailureKind::Tool => Err(ToolError::new("The bridge is out: choose another way.")),
        FailureKind::Request => Err(ToolError::protocol(BRIDGE_OUT, "the bridge is out")),
        FailureKind::Panic => panic!("nobody expected the bridge to be out"),
    }
}

async fn bake(_: Nothing, ctx: Ctx) -> Result<&'static str, ToolError> {
    let steps = ["mixing", "kneading", "resting", "heating the oven", "baking", "baking", "baking", "cooling", "decorating", "tasting"];
    for (done, step) in steps.iter().enumerate() {
        ctx.progress(Progress::of(done, steps.len()).message(*step)).await?;
        ctx.sleep(Duration::from_secs(1)).await?;
    }
    ctx.progress(Progress::of(steps.len(), steps.len()).message("done")).await?;
    Ok("A cake. It was delicious.")
}

#[derive(Deserialize, JsonSchema)]
struct Far {
    /// How far to count, five numbers a second
    #[serde(default = "far")]
    #[schemars(range(min = 1, max = 1_000_000))]
    to: u32,
}

const fn far() -> u32 {
    600
}

async fn count_far(args: Far, ctx: Ctx) -> Result<String, ToolError> {
    let start = ctx.saved::<u32>()?.map_or(1, |last| last + 1);
    if ctx.attempt() > 1 {
        ctx.text(format!("(attempt {}: going on with {start})\n", ctx.attempt())).await?;
    }
    for n in start..=args.to {
        // One step writes and saves: no number is left out and none comes twice.
        ctx.step([format!("{n}\n").into()], &n).await?;
        ctx.progress(Progress::of(n, args.to)).await?;
        ctx.sleep(Duration::from_millis(200)).await?;
    }
    Ok(format!("Counted to {} in {} attempts.", args.to, ctx.attempt()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_of_the_tools() {
        let tools = tools();
        assert_eq!(tools.iter().map(|tool| &**tool.name()).collect::<Vec<_>>(), NAMES);
    }

    #[test]
    fn every_client_takes_them() {
        for tool in tools() {
            assert_eq!(tool.warnings(), [""; 0], "{}", tool.name());
        }
    }
}
