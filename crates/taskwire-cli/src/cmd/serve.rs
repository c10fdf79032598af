//! `taskwire serve`: tools on HTTP, or on standard input and output.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    path::PathBuf,
};

use anyhow::{Context, bail};
use clap::Args;
use taskwire::{
    server::Server,
    store::SqliteStore,
    tool::{Provider, Registry},
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

use crate::{config::Config, demo};

const EXAMPLES: &str = "Examples:
  taskwire serve                                   demo tools, tasks in ./.taskwire
  taskwire serve --listen 127.0.0.1:9000           another port
  taskwire serve taskwire.toml --data /var/lib/taskwire
  taskwire serve --stdio                           for clients that start their servers

SIGTERM and Ctrl-C drain: no new calls, running tools get some time, a second signal ends at once.
Tasks that are still running then are taken over by the next start.
Logging goes to standard error; RUST_LOG=debug shows more.";

/// Serve tools over the Model Context Protocol.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// Configuration file; without one the demo tools are served
    config: Option<PathBuf>,
    /// Address to listen on [default: 127.0.0.1:8787]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Directory for tasks [default: .taskwire]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Speak MCP on standard input and output instead of HTTP
    #[arg(long, conflicts_with = "listen")]
    stdio: bool,
}

impl Serve {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut config = match &self.config {
            Some(path) => Config::read(path)?,
            None => Config::demo(),
        };
        config.listen = self.listen.unwrap_or(config.listen);
        config.data = self.data.unwrap_or(config.data);
        // Each connection is a file; the usual soft limit of 1024 is soon reached.
        if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
            tracing::debug!(%error, "the limit of open files stays as it is");
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let result = runtime.block_on(serve(config, self.stdio));
        // Not by dropping it: that would wait for threads that read a silent input, or work for ever.
        runtime.shutdown_background();
        result
    }
}

async fn serve(config: Config, stdio: bool) -> anyhow::Result<()> {
    let tools = Registry::new();
    if config.demo {
        demo::add_to(&tools)?;
    }
    let count = tools.tools().len();
    let address = if stdio { None } else { Some(address(&config)?) };
    // Take the port before the store: a busy port is the commoner mistake, and its error the clearer one.
    let listener = match address {
        Some(address) => {
            Some(TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address} (another address: `--listen`)"))?)
        }
        None => None,
    };
    let store = SqliteStore::open(&config.data)?;
    let server = Server::start(tools, store, config.server()?)?;
    // Before anybody learns that we are here.
    let stop = stop_signal()?;
    match listener {
        None => server.serve_stdio(stop).await?,
        Some(listener) => {
            println!("{}", banner(listener.local_addr()?, &config, count));
            server.serve(listener, stop).await?;
        }
    }
    Ok(())
}

/// Where to listen. Without tokens anybody who can connect is trusted, so then only this machine may.
fn address(config: &Config) -> anyhow::Result<SocketAddr> {
    let mut addresses = config.listen.to_socket_addrs().with_context(|| format!("`{}` is not an address to listen on", config.listen))?;
    let address = addresses.next().with_context(|| format!("`{}` has no address", config.listen))?;
    if !address.ip().is_loopback() && config.auth.tokens.is_empty() {
        bail!("{address} can be reached from other machines, and nobody needs a token: set `[auth] tokens`, or listen on 127.0.0.1");
    }
    Ok(address)
}

fn banner(address: SocketAddr, config: &Config, tools: usize) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let data = config.data.display();
    let mut text = format!("taskwire {version}: {tools} tools, tasks in {data}\n\n  endpoint  http://{address}/mcp\n");
    if config.demo && config.auth.tokens.is_empty() {
        text.push_str(&format!("  try it    taskwire call http://{address}/mcp countdown from=5\n"));
    }
    text
}

/// Catches signals from now on, and waits for the first; a second one ends the process.
fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        tracing::info!("draining: again to stop at once");
        tokio::spawn(async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
            std::process::exit(130);
        });
    })
}
