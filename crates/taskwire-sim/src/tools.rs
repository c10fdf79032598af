//! The tools of the workload. Each call has a number; what the tools do is reported under it.

use std::{sync::Arc, time::Duration};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use taskwire::tool::{Ctx, Question, Registry, TaskMode, Tool, ToolError};

use crate::{clients::TIMED_MILLIS, observer::Observer, store::NodeLink};

/// Where tools report, and from which start of a node.
type Reporter = (Observer, Arc<NodeLink>);

#[derive(Debug, Deserialize, JsonSchema)]
struct Job {
    /// The number of the call.
    call: u64,
    /// How much it does.
    size: u64,
    /// How long each part takes, in milliseconds.
    pace: u64,
}

/// The line that a call writes as its `n`th.
pub(crate) fn line(call: u64, n: u64) -> String {
    format!("call {call} line {n}\n")
}

/// Writes lines, and goes on after the last one that is durable.
async fn steps(job: Job, ctx: Ctx, (observer, link): Reporter) -> Result<String, ToolError> {
    let _running = observer.attempt_began(job.call, ctx.attempt(), &link);
    for n in ctx.saved::<u64>()?.unwrap_or(0)..job.size {
        ctx.sleep(Duration::from_millis(job.pace)).await?;
        ctx.step([line(job.call, n).into()], &(n + 1)).await?;
        observer.effect(job.call, ctx.attempt(), &link);
    }
    Ok(format!("call {} is done", job.call))
}

/// Writes lines and must not be run twice.
async fn fragile(job: Job, ctx: Ctx, (observer, link): Reporter) -> Result<String, ToolError> {
    let _running = observer.attempt_began(job.call, ctx.attempt(), &link);
    for n in 0..job.size {
        ctx.text(line(job.call, n)).await?;
        ctx.sleep(Duration::from_millis(job.pace)).await?;
    }
    ctx.flush().await?;
    observer.effect(job.call, ctx.attempt(), &link);
    Ok(format!("call {} is done", job.call))
}

/// Asks, and returns what was answered.
async fn interview(job: Job, ctx: Ctx, (observer, link): Reporter) -> Result<String, ToolError> {
    let _running = observer.attempt_began(job.call, ctx.attempt(), &link);
    let mut answers = Vec::new();
    let written = ctx.saved::<u64>()?.unwrap_or(0);
    for n in 0..=job.size % 3 {
        ctx.sleep(Duration::from_millis(job.pace)).await?;
        let schema = json!({"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]});
        let answer = ctx.ask(&format!("q{n}"), Question::form("Which word?", schema)).await?;
        let word: serde_json::Value = answer.read()?;
        answers.push(word["word"].as_str().unwrap_or("?").to_owned());
        if n >= written {
            ctx.step([line(job.call, n).into()], &(n + 1)).await?;
        }
        observer.effect(job.call, ctx.attempt(), &link);
    }
    Ok(answers.join(" "))
}

/// Takes its time. Calls that are the same share it, and one that comes late begins anew.
async fn shared(job: Job, ctx: Ctx) -> Result<String, ToolError> {
    ctx.sleep(Duration::from_millis(job.pace * job.size)).await?;
    Ok(format!("call {} is done", job.call))
}

/// Runs until it is cancelled; in the end it gives up by itself.
async fn endless(job: Job, ctx: Ctx, (observer, link): Reporter) -> Result<String, ToolError> {
    let _running = observer.attempt_began(job.call, ctx.attempt(), &link);
    for n in 0..40 {
        ctx.sleep(Duration::from_millis(500 + job.pace)).await?;
        ctx.status(format!("still here, {n}")).await?;
    }
    Ok("nobody cancelled this".to_owned())
}

/// Takes its time, which its timeout may end. An attempt does not begin it anew.
async fn timed(job: Job, ctx: Ctx, (observer, link): Reporter) -> Result<String, ToolError> {
    let _running = observer.attempt_began(job.call, ctx.attempt(), &link);
    ctx.sleep(Duration::from_millis(job.pace * job.size)).await?;
    Ok(format!("call {} is done", job.call))
}

/// A call of a client that knows neither tasks nor keys. It must not be run twice.
async fn plain(job: Job, ctx: Ctx, (observer, link): Reporter) -> Result<String, ToolError> {
    let _running = observer.attempt_began(job.call, ctx.attempt(), &link);
    ctx.sleep(Duration::from_millis(job.pace * job.size)).await?;
    Ok(format!("call {} is done", job.call))
}

/// Writes a lot at once, panics, or does nothing until its timeout.
async fn rude(job: Job, ctx: Ctx, (observer, link): Reporter) -> Result<String, ToolError> {
    let _running = observer.attempt_began(job.call, ctx.attempt(), &link);
    match job.size % 3 {
        0 => {
            for n in 0..200 {
                ctx.text(line(job.call, n)).await?;
            }
            Ok(format!("call {} is done", job.call))
        }
        1 => panic!("call {} panics", job.call),
        _ => {
            std::future::pending::<()>().await;
            Ok(String::new())
        }
    }
}

/// The word that is the answer to a question.
pub(crate) fn word(call: u64, question: &str) -> String {
    format!("word-{call}-{question}")
}

/// All tools, for one start of a node.
pub(crate) fn all(observer: &Observer, link: &Arc<NodeLink>) -> Result<Registry, anyhow::Error> {
    let tools = Registry::new();
    macro_rules! tool {
        ($name:ident) => {{
            let reporter = (observer.clone(), link.clone());
            Tool::new(stringify!($name), "Part of the workload", move |job: Job, ctx: Ctx| $name(job, ctx, reporter.clone()))
        }};
    }
    tools.tool(tool!(steps).retry_on_interrupt().task(TaskMode::Always))?;
    tools.tool(tool!(fragile).promote_after(Duration::from_millis(100)))?;
    tools.tool(tool!(interview).retry_on_interrupt().task(TaskMode::Always))?;
    tools.tool(tool!(endless).retry_on_interrupt().task(TaskMode::Always))?;
    tools.tool(tool!(rude).timeout(Duration::from_secs(5)))?;
    tools.tool(tool!(timed).retry_on_interrupt().timeout(Duration::from_millis(TIMED_MILLIS)).task(TaskMode::Always))?;
    tools.tool(tool!(plain).promote_after(Duration::from_millis(100)))?;
    tools.tool(Tool::new("shared", "Shared by calls that are the same", shared).retry_on_interrupt().dedupe())?;
    Ok(tools)
}
