//! Serves what the official conformance suite expects of a server: `conformance --listen ADDR --data DIR [--store URL]`.
//!
//! One file per group of fixtures: [`base`] (content), [`protocol`] (capabilities, logging, changes, headers), [`rounds`]
//! (calls that are answered by a question), [`tasks`], [`catalog`] (prompts, resources, completions) and [`legacy`] (what
//! only older revisions are tested with).
//! `scripts/conform.sh` runs the suite against it.

mod base;
mod catalog;
mod common;
mod legacy;
mod protocol;
mod rounds;
mod tasks;

use std::{error::Error, path::PathBuf, process::ExitCode};

use taskwire::{
    server::{Config, Server},
    store::{PostgresConfig, PostgresStore, SqliteStore},
    tool::{InvalidSchema, Registry},
};
use tokio::net::TcpListener;

const USAGE: &str = "usage: conformance --listen ADDR --data DIR [--store URL]";

/// A page holds all tools, since the suite reads only one, but clients that list their tasks find several.
const PAGE_LEN: usize = 50;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("conformance: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let options = Options::parse(std::env::args().skip(1))?;
    let config = Config {
        name: "taskwire-conformance".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        instructions: Some("The fixtures of the official conformance suite.".to_owned()),
        page_len: PAGE_LEN,
        ..Config::default()
    };
    let server = match &options.store {
        None => Server::start(fixtures()?, SqliteStore::open(&options.data)?, config)?,
        Some(url) => {
            Server::start(fixtures()?, PostgresStore::open_in(PostgresConfig::new(url, &options.listen), &options.data).await?, config)?
        }
    };
    let listener = TcpListener::bind(&options.listen).await?;
    println!("conformance: fixtures at http://{}/mcp", listener.local_addr()?);
    server.serve(listener, interrupted()).await?;
    Ok(())
}

/// Everything that is served. Lists keep this order, and the suite calls the first tool without arguments: it must be a
/// harmless one.
fn fixtures() -> Result<Registry, InvalidSchema> {
    let registry = Registry::new();
    base::register(&registry)?;
    protocol::register(&registry)?;
    rounds::register(&registry)?;
    tasks::register(&registry)?;
    catalog::register(&registry);
    legacy::register(&registry)?;
    Ok(registry)
}

async fn interrupted() {
    if let Err(error) = tokio::signal::ctrl_c().await {
        eprintln!("conformance: cannot wait for Ctrl-C: {error}");
        std::future::pending::<()>().await;
    }
}

/// The command line.
struct Options {
    listen: String,
    data: PathBuf,
    /// A database that several share.
    store: Option<String>,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut listen, mut data, mut store) = (None, None, None);
        while let Some(flag) = args.next() {
            let value = match flag.as_str() {
                "--listen" => &mut listen,
                "--data" => &mut data,
                "--store" => &mut store,
                _ => return Err(format!("unknown argument `{flag}`; {USAGE}")),
            };
            *value = Some(args.next().ok_or_else(|| format!("`{flag}` needs a value; {USAGE}"))?);
        }
        match (listen, data) {
            (Some(listen), Some(data)) => Ok(Self { listen, data: data.into(), store }),
            _ => Err(USAGE.to_owned()),
        }
    }
}
