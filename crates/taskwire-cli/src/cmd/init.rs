//! `taskwire init`: writes a first configuration, and tries it.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::json;
use taskwire::{
    client::{Client, Event, Options, Outcome},
    command::{Commands, Supervisor},
    server::Server,
    store::SqliteStore,
    tool::Registry,
};

use super::file;
use crate::{
    client::{
        connection::close,
        exit::{Exit, Problem, fail},
    },
    config::Config,
    control::LiveConfig,
    term::{escape, paint::shell_word, stderr, stdout},
};

/// The file that is written.
const TEMPLATE: &str = include_str!("init/taskwire.toml");
/// The tool that the trial calls, and how far it counts then.
const TOOL: &str = "count";
const COUNT: u32 = 2;
/// How long the trial may take. It needs a second or two.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the trial's server may take to shut down.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// Names for the trial's directory that are tried until one is free.
const TEMP_DIR_TRIES: u32 = 100;

const EXAMPLES: &str = "Examples:
  taskwire init                 writes taskwire.toml
  taskwire init tools.toml      another name
  taskwire init --force         in the place of one that is there, which is kept
                                beside it (.bak)

The file has two tools that work on any machine. One of them is run, by a
server within this process that keeps nothing; its output is shown, and then
what to type next.

Exit codes:
  0  it is written, and works
  1  it is written, and does not work: why is said
  2  there is such a file already, or it cannot be written";

/// Write a configuration to begin with, and try it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Init {
    /// The file to write
    #[arg(default_value = "taskwire.toml")]
    file: PathBuf,
    /// Write it even if there is one
    #[arg(long)]
    force: bool,
}

impl Init {
    pub(crate) fn run(self) -> ExitCode {
        let shown = self.file.display().to_string();
        match self.write() {
            Err(problem) => return fail(false, &problem),
            Ok(backup) => {
                let backup = backup.map(|backup| format!(" (what was there: {})", backup.display())).unwrap_or_default();
                say(&format!("wrote {shown}{backup}\ntrying it: {TOOL} to={COUNT}\n"));
            }
        }
        match try_out(&self.file) {
            Ok(url) => {
                let file = shell_word(&shown);
                say(&format!(
                    "it works. Next, each in a terminal of its own:\n  taskwire serve {file}\n  taskwire call {url} {TOOL} to=5\nand to have a \
                     client use it (or cursor, vscode, codex, …):\n  taskwire connect claude-code {file}\n"
                ));
                Exit::Done.into()
            }
            Err(error) => {
                let reason = escape::lines(&format!("{error:#}"));
                stderr::write(&format!("taskwire: {} is written, but its tool `{TOOL}` does not work: {reason}\n", escape::line(&shown)));
                ExitCode::FAILURE
            }
        }
    }

    /// Writes the file; returns the backup's path, if there was another file.
    fn write(&self) -> Result<Option<PathBuf>, Problem> {
        let path = &self.file;
        let shown = path.display();
        let unwritten = |error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => Problem::usage(format!(
                "{shown} is there already: `taskwire serve {}` serves it; name another file, or overwrite it with --force",
                shell_word(&shown.to_string())
            )),
            _ => Problem::usage(format!("cannot write {shown}: {error}")),
        };
        if self.force
            && let Some(old) = file::read(path).map_err(unwritten)?
        {
            return if old == TEMPLATE { Ok(None) } else { file::replace(path, &old, TEMPLATE).map(Some).map_err(unwritten) };
        }
        file::create(path, TEMPLATE).map_err(unwritten)?;
        Ok(None)
    }
}

fn say(text: &str) {
    // If nobody reads it, nothing is lost.
    let _ = stdout::print(&(escape::lines(text) + "\n"));
}

/// Calls the file's tool as a client would, at the address of a server with that file.
fn try_out(path: &Path) -> anyhow::Result<String> {
    let config = Config::read(path)?;
    let url = format!("http://{}/mcp", config.listen);
    let dir = TempDir::new()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = runtime.block_on(async {
        let in_time = tokio::time::timeout(TRIAL_TIMEOUT, run_trial(config, path, &dir.0)).await;
        in_time.unwrap_or_else(|_| bail!("it has not ended after {}", humantime::format_duration(TRIAL_TIMEOUT)))
    });
    // Nothing may write to the directory any more when it is removed.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    outcome.map(|()| url)
}

async fn run_trial(config: Config, path: &Path, data: &Path) -> anyhow::Result<()> {
    let settings = config.to_server_config()?;
    let definitions = config.definitions(&[])?;
    let store = SqliteStore::open(data)?;
    let commands = Commands::open(data, Supervisor::this_program(["supervise"])?)?;
    let registry = Registry::new();
    let _live = LiveConfig::start(config, definitions, Some(path), Vec::new(), registry.clone(), commands.clone(), None)?;
    let server = Server::start(commands.with_retired_tool(registry), store, settings)?;
    commands.start_sweep(&server).await;
    let client = Client::connect(&server, Options::default()).await?;
    let mut call = client.start(TOOL, json!({"to": COUNT})).await?;
    let (mut shown, mut outcome) = (String::new(), None);
    while let Some(event) = call.next().await {
        match event? {
            Event::Chunk(partial) => {
                shown.push_str(&partial.text());
                stdout::print(&escape::Filter::new(false).pass(&partial.text()))?;
            }
            Event::Done(end) => outcome = Some(end),
            _ => {}
        }
    }
    drop(call);
    close(client).await;
    match outcome {
        Some(Outcome::Result(result)) if result.is_error => bail!("{}", result.text()),
        Some(Outcome::Result(result)) => {
            // A quick call may have returned its output with its result.
            if shown.is_empty() {
                stdout::print(&escape::Filter::new(false).pass(&result.text()))?;
            }
            let text = if shown.is_empty() { result.text() } else { shown };
            let last = format!("{COUNT} of {COUNT}");
            if !text.lines().any(|line| line.trim() == last) {
                bail!("it should have written `{last}`");
            }
            Ok(())
        }
        Some(Outcome::Failed(error)) => bail!("{}", error.message),
        Some(Outcome::Cancelled { .. }) => bail!("it was cancelled"),
        None => bail!("its end is not known"),
    }
}

/// A directory for this user alone, removed with its content.
#[derive(Debug)]
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> anyhow::Result<Self> {
        let base = std::env::temp_dir();
        for n in 0..TEMP_DIR_TRIES {
            let path = base.join(format!("taskwire-init-{}-{n}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(|| format!("no directory can be made in {}", base.display())),
            }
        }
        bail!("no directory can be made in {}: there are too many of ours already", base.display())
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // Something that is about to end may still write into it: try twice.
        let _ = fs::remove_dir_all(&self.0).or_else(|_| fs::remove_dir_all(&self.0));
    }
}
