//! Taskwire: the library, on its embedded store, with limits that a benchmark does not reach.

use std::path::Path;

use anyhow::Result;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use taskwire::{
    server::{Config, Server},
    store::SqliteStore,
    tool::{Ctx, Registry, TaskMode, Tool, ToolError},
};
use tokio::net::TcpListener;

#[derive(Deserialize, JsonSchema)]
struct Echo {
    text: String,
}

pub(super) async fn run(listener: TcpListener, data: &Path) -> Result<()> {
    let registry = Registry::new();
    registry.tool(echo())?.tool(park())?.tool(quick())?;
    let mut config = Config { listens_per_caller: 100_000, ..Config::default() };
    config.engine.limits.tasks_per_caller = 10_000_000;
    let server = Server::start(registry, SqliteStore::open(data)?, config)?;
    server.serve(listener, std::future::pending()).await?;
    Ok(())
}

fn echo() -> Tool {
    Tool::new("echo", "Returns its text.", |args: Echo, _ctx: Ctx| async move { Ok::<_, ToolError>(args.text) }).task(TaskMode::Never)
}

fn park() -> Tool {
    Tool::raw("park", "Waits until it is cancelled.", json!({"type": "object"}), |ctx: Ctx| async move {
        ctx.cancelled().await;
        Err::<(), _>(ToolError::stopped())
    })
    .task(TaskMode::Always)
}

fn quick() -> Tool {
    Tool::raw("quick", "Is done at once.", json!({"type": "object"}), |_ctx: Ctx| async { Ok::<_, ToolError>("done") })
        .task(TaskMode::Always)
}
