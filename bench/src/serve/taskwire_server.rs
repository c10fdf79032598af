//! Taskwire: the library, with limits that a benchmark does not reach, or with those that are the defaults. It runs on its embedded store, or on
//! the database that `$TASKWIRE_BENCH_STORE` names, in a schema of each server's own.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use taskwire::{
    server::{Coalesce, Config, Server, Tokens},
    store::{PostgresConfig, PostgresStore, SqliteStore},
    tool::{Ctx, Registry, TaskMode, Tool, ToolError},
};
use tokio::net::TcpListener;

use super::{
    pour::Pour,
    write::{Gates, Open, Write, unix_ns},
};

const GIB: u64 = 1024 * 1024 * 1024;
/// What names the database, if it does not run on its embedded store.
pub const STORE_VARIABLE: &str = "TASKWIRE_BENCH_STORE";

#[derive(Deserialize, JsonSchema)]
struct Echo {
    text: String,
}

#[derive(Deserialize, JsonSchema)]
struct Tick {
    every_ms: u64,
    after_ms: u64,
}

pub(super) async fn run(listener: TcpListener, data: &Path, uncoalesced: bool, callers: Option<usize>) -> Result<()> {
    let gates = Gates::default();
    let registry = Registry::new();
    registry
        .tool(echo())?
        .tool(park())?
        .tool(rerun())?
        .tool(quick())?
        .tool(tick())?
        .tool(write(gates.clone()))?
        .tool(pour(gates.clone()))?
        .tool(open(gates))?;
    let mut config = callers.map_or_else(without_limits, usual);
    if uncoalesced {
        config.engine.coalesce = Coalesce { window: Duration::ZERO, bytes: 1 };
    }
    let server = match std::env::var(STORE_VARIABLE) {
        Err(_) => Server::start(registry, SqliteStore::open(data)?, config)?,
        Ok(url) => {
            let mut postgres = PostgresConfig::new(url, "bench");
            postgres.schema = schema_of(data);
            Server::start(registry, PostgresStore::open(postgres).await?, config)?
        }
    };
    server.serve(listener, std::future::pending()).await?;
    Ok(())
}

/// Limits that nobody reaches.
fn without_limits() -> Config {
    // Polls that come too soon are measured too: they must be answered, not held.
    let mut config = Config { streams_per_caller: 100_000, long_poll: false, ..Config::default() };
    config.http.connections = 100_000;
    config.engine.limits.tasks_per_caller = 10_000_000;
    config.engine.limits.stored_bytes_per_caller = 1024 * GIB;
    config.engine.limits.task_output_bytes = 4 * GIB;
    config.engine.limits.output_bytes_per_second = 4 * GIB;
    config
}

/// The limits that are the defaults, for so many callers.
fn usual(callers: usize) -> Config {
    let tokens = (0..callers).fold(Tokens::default(), |tokens, caller| tokens.with_token(&token(caller), &format!("caller-{caller}")));
    Config { auth: Arc::new(tokens), long_poll: false, ..Config::default() }
}

/// The token of the caller that has this number.
pub fn token(caller: usize) -> String {
    format!("token-{caller}")
}

/// The schema of a server's own: the same directory is the same store.
pub fn schema_of(data: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    data.hash(&mut hasher);
    format!("bench_{:x}", hasher.finish())
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

/// For a node that is killed: another one runs it again.
fn rerun() -> Tool {
    let schema = json!({"type": "object"});
    Tool::raw("rerun", "Says which attempt it is, and waits until it is cancelled.", schema, |ctx: Ctx| async move {
        ctx.text(format!("attempt {}", ctx.attempt())).await?;
        ctx.cancelled().await;
        Err::<(), ToolError>(ToolError::stopped())
    })
    .task(TaskMode::Always)
    .streams()
    .retry_on_interrupt()
}

fn quick() -> Tool {
    Tool::raw("quick", "Is done at once.", json!({"type": "object"}), |_ctx: Ctx| async { Ok::<_, ToolError>("done") })
        .task(TaskMode::Always)
}

/// Each status is another one, and says when it was reported.
fn tick() -> Tool {
    Tool::new("tick", "Says which number it has come to, again and again.", |args: Tick, ctx: Ctx| async move {
        ctx.sleep(Duration::from_millis(args.after_ms)).await?;
        for n in 1_u64.. {
            ctx.status(format!("tick {n} {}", unix_ns())).await?;
            ctx.sleep(Duration::from_millis(args.every_ms)).await?;
        }
        Ok::<_, ToolError>("it never ends by itself")
    })
    .task(TaskMode::Always)
}

fn write(gates: Gates) -> Tool {
    Tool::new("write", "Writes texts once its gate is open.", move |args: Write, ctx: Ctx| write_all(args, ctx, gates.clone()))
        .task(TaskMode::Always)
        .streams()
}

fn pour(gates: Gates) -> Tool {
    Tool::new("pour", "Writes a text again and again once its gate is open.", move |args: Pour, ctx: Ctx| {
        pour_all(args, ctx, gates.clone())
    })
    .task(TaskMode::Always)
    .streams()
}

fn open(gates: Gates) -> Tool {
    Tool::new("open", "Opens a gate.", move |args: Open, _ctx: Ctx| {
        gates.open(&args.gate);
        async { Ok::<_, ToolError>("opened") }
    })
    .task(TaskMode::Never)
}

/// Writes; returns how many microseconds each text took to become durable, if it is to wait for that.
async fn write_all(write: Write, ctx: Ctx, gates: Gates) -> Result<String, ToolError> {
    tokio::select! {
        () = gates.pass(&write.gate) => {}
        () = ctx.cancelled() => return Err(ToolError::stopped()),
    }
    let filler = write.filler();
    let mut pace = write.pace();
    let mut waits = Vec::new();
    for _ in 0..write.texts {
        let began = match &mut pace {
            None => {
                ctx.text(&filler).await?;
                continue;
            }
            Some(pace) => {
                pace.tick().await;
                let began = Instant::now();
                ctx.text(write.stamped()).await?;
                began
            }
        };
        if write.flush {
            ctx.flush().await?;
            waits.push(format!("{:.1}", began.elapsed().as_secs_f64() * 1e6));
        }
    }
    Ok(waits.join(" "))
}

async fn pour_all(pour: Pour, ctx: Ctx, gates: Gates) -> Result<&'static str, ToolError> {
    tokio::select! {
        () = gates.pass(&pour.gate) => {}
        () = ctx.cancelled() => return Err(ToolError::stopped()),
    }
    let (text, mut pace) = (pour.text(), pour.pace());
    for _ in 0..pour.texts {
        if let Some(pace) = &mut pace {
            pace.tick().await;
        }
        ctx.text(&text).await?;
    }
    Ok("poured")
}
