//! Tools made to be interrupted: `crash_tools --listen ADDR --data DIR --journal FILE [--store URL]`.
//!
//! The crash test (`tests/crash`) kills this server again and again, at any moment. Each tool makes one promise
//! visible: that nothing acknowledged is lost, that work goes on where it was, or that nothing is done twice.

use std::{
    error::Error,
    fs::{File, OpenOptions},
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use taskwire::{
    clock::{Clock, SystemClock},
    server::{Config, EngineConfig, HttpConfig, Server},
    store::{PostgresConfig, PostgresStore, SqliteStore},
    tool::{Content, Ctx, InvalidSchema, Question, Registry, TaskMode, Tool, ToolError},
};
use taskwire_core::Limits;
use tokio::net::TcpListener;

const USAGE: &str = "usage: crash_tools --listen ADDR --data DIR --journal FILE [--store URL]";
/// How many steps `steps` takes.
const STEPS: u64 = 20;
/// Bytes of one chunk of `flood`.
const FLOOD_BYTES: usize = 12_000;
/// Open listen streams: more than the tests have readers.
const LISTENS: usize = 1_000;
/// No bound that the crash test could reach: it counts lives, not patience.
const UNLIMITED: u64 = 1_000_000;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("crash_tools: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let options = Options::parse(std::env::args().skip(1))?;
    let journal = Arc::new(OpenOptions::new().create(true).append(true).open(&options.record)?);
    let tools = tools(&journal)?;
    let server = match &options.store {
        None => Server::start(tools, SqliteStore::open(&options.data)?, config())?,
        Some(url) => {
            Server::start(tools, PostgresStore::open_in(PostgresConfig::new(url, &options.listen), &options.data).await?, config())?
        }
    };
    let listener = TcpListener::bind(&options.listen).await?;
    println!("crash_tools: at http://{}/mcp", listener.local_addr()?);
    server.serve(listener, std::future::pending()).await?;
    Ok(())
}

fn config() -> Config {
    let limits = Limits { tasks_per_caller: UNLIMITED, stored_bytes_per_caller: u64::MAX, disk_reserve_bytes: 0, ..Limits::DEFAULT };
    Config {
        name: "taskwire-crash".to_owned(),
        engine: EngineConfig { limits, ..EngineConfig::default() },
        attempts_max: UNLIMITED,
        streams_per_caller: LISTENS,
        // The clients of the crash test look as often as they can.
        long_poll: false,
        // One of them does not read for as long as its test takes.
        http: HttpConfig { write_timeout: Duration::from_secs(3600), ..HttpConfig::default() },
        retention: Some(Duration::from_secs(30 * 24 * 3600)),
        ..Config::default()
    }
}

fn tools(journal: &Arc<File>) -> Result<Registry, InvalidSchema> {
    let registry = Registry::new();
    let (once_journal, sign_journal) = (journal.clone(), journal.clone());
    let once = move |args: Numbered, ctx: Ctx| once(once_journal.clone(), args, ctx);
    let sign = move |args: Numbered, ctx: Ctx| sign(sign_journal.clone(), args, ctx);
    registry
        .tool(Tool::new("quick", "Returns at once", quick).task(TaskMode::Always))?
        .tool(Tool::new("wait", "Waits until it is cancelled", wait).task(TaskMode::Always))?
        .tool(Tool::new("steps", "Goes on where it was", steps).task(TaskMode::Always).retry_on_interrupt())?
        .tool(Tool::new("count", "Writes a stream, each chunk once", count).task(TaskMode::Always).streams().retry_on_interrupt())?
        .tool(Tool::new("flood", "Writes a large stream", flood).task(TaskMode::Always))?
        .tool(Tool::new("ask", "Asks for a name, once", ask).task(TaskMode::Always).retry_on_interrupt())?
        .tool(Tool::new("interview", "Asks for many names, each once", interview).retry_on_interrupt())?
        .tool(Tool::new("once", "Does something that must not be done twice", once).task(TaskMode::Always))?
        .tool(Tool::new("sign", "As `once`, then asks for a name", sign).task(TaskMode::Always))?
        .tool(Tool::new("direct", "Is never a task", direct).task(TaskMode::Never))?;
    Ok(registry)
}

/// What most tools are told: the number of the call.
#[derive(Deserialize, JsonSchema)]
struct Numbered {
    /// Tells this call from all others.
    n: u64,
}

async fn quick(args: Numbered, _ctx: Ctx) -> Result<String, ToolError> {
    Ok(format!("quick-{}", args.n))
}

async fn direct(args: Numbered, _ctx: Ctx) -> Result<String, ToolError> {
    Ok(format!("direct-{}", args.n))
}

async fn wait(_args: Numbered, ctx: Ctx) -> Result<(), ToolError> {
    ctx.cancelled().await;
    Err(ToolError::stopped())
}

/// A step is written before it is saved: cut off in between it is written again, but never left out.
async fn steps(args: Numbered, ctx: Ctx) -> Result<String, ToolError> {
    let done: u64 = ctx.saved()?.unwrap_or(0);
    for step in done + 1..=STEPS {
        ctx.text(format!("step {step}\n")).await?;
        ctx.checkpoint(&step).await?;
        ctx.sleep(Duration::from_millis(5)).await?;
    }
    Ok(format!("steps-{}", args.n))
}

/// What a tool is told that writes a stream.
#[derive(Deserialize, JsonSchema)]
struct Streamed {
    /// Tells this call from all others.
    n: u64,
    /// How many chunks to write.
    chunks: u64,
    /// How many of them to write between two questions whether to go on.
    leg: u64,
}

/// A chunk is written and saved in one step: cut off anywhere, none is left out and none is written again.
async fn count(args: Streamed, ctx: Ctx) -> Result<String, ToolError> {
    let done: u64 = ctx.saved()?.unwrap_or(0);
    for index in done..args.chunks {
        leg(&ctx, &args, index).await?;
        let line = format!("{}-{index} {}\n", args.n, "é".repeat(usize::try_from(index % 61)?));
        ctx.step([Content::text(line)], &(index + 1)).await?;
    }
    Ok(format!("count-{}", args.n))
}

/// Each chunk says which one it is and when it was written.
async fn flood(args: Streamed, ctx: Ctx) -> Result<String, ToolError> {
    for index in 0..args.chunks {
        leg(&ctx, &args, index).await?;
        let head = format!("{index} {} ", SystemClock.now().as_millis());
        ctx.text(format!("{head:x<FLOOD_BYTES$}")).await?;
        ctx.flush().await?;
    }
    Ok(format!("flood-{}", args.n))
}

/// Asks before each leg whether to go on: who answers knows how far the stream can be.
async fn leg(ctx: &Ctx, args: &Streamed, index: u64) -> Result<(), ToolError> {
    if index.is_multiple_of(args.leg) {
        let schema = json!({"type": "object", "properties": {}});
        let question = Question::form(&format!("Shall it go on from chunk {index}?"), schema);
        ctx.ask(&format!("leg-{index}"), question).await?;
    }
    Ok(())
}

async fn ask(args: Numbered, ctx: Ctx) -> Result<String, ToolError> {
    let name = name(&ctx, "name", "What is your name?").await?;
    Ok(format!("hello {name}-{}", args.n))
}

/// What `interview` is told.
#[derive(Deserialize, JsonSchema)]
struct Interview {
    /// Tells this call from all others.
    n: u64,
    /// How many names to ask for.
    questions: u64,
}

/// Keeps nothing but its questions: cut off anywhere, it asks again from the first, and is told at once what was answered.
async fn interview(args: Interview, ctx: Ctx) -> Result<String, ToolError> {
    let mut names = Vec::new();
    for index in 0..args.questions {
        names.push(name(&ctx, &format!("name-{index}"), &format!("What is name {index}?")).await?);
    }
    Ok(format!("interview-{}: {}", args.n, names.join(", ")))
}

async fn once(journal: Arc<File>, args: Numbered, ctx: Ctx) -> Result<String, ToolError> {
    note(&journal, args.n)?;
    ctx.sleep(Duration::from_millis(20)).await?;
    Ok(format!("once-{}", args.n))
}

async fn sign(journal: Arc<File>, args: Numbered, ctx: Ctx) -> Result<String, ToolError> {
    note(&journal, args.n)?;
    let name = name(&ctx, "name", "What is your name?").await?;
    Ok(format!("signed {name}-{}", args.n))
}

/// What comes back from the question for a name.
#[derive(Deserialize)]
struct Name {
    name: String,
}

async fn name(ctx: &Ctx, key: &str, question: &str) -> Result<String, ToolError> {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
    let answer = ctx.ask(key, Question::form(question, schema)).await?;
    Ok(answer.read::<Name>()?.name)
}

/// Appends one line in one write: it is there whole or not at all.
fn note(mut journal: &File, n: u64) -> io::Result<()> {
    journal.write_all(format!("{n}\n").as_bytes())
}

/// The command line.
struct Options {
    listen: String,
    data: PathBuf,
    record: PathBuf,
    /// A database that several share.
    store: Option<String>,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut listen, mut data, mut journal, mut store) = (None, None, None, None);
        while let Some(flag) = args.next() {
            let value = match flag.as_str() {
                "--listen" => &mut listen,
                "--data" => &mut data,
                "--journal" => &mut journal,
                "--store" => &mut store,
                _ => return Err(format!("unknown argument `{flag}`; {USAGE}")),
            };
            *value = Some(args.next().ok_or_else(|| format!("`{flag}` needs a value; {USAGE}"))?);
        }
        match (listen, data, journal) {
            (Some(listen), Some(data), Some(journal)) => Ok(Self { listen, data: data.into(), record: journal.into(), store }),
            _ => Err(USAGE.to_owned()),
        }
    }
}
