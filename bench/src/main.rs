//! Measures Taskwire beside rmcp and a bare hyper server: one command, one table, one JSON document.
//!
//! Start with `stages`, which says what is measured; `serve` holds the three servers, each run as a process of its own, and
//! `client` the readers that are.

mod client;
mod http;
mod load;
mod plan;
mod process;
mod push;
mod report;
mod serve;
mod stages;
mod stream;
mod wire;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use crate::{client::ReadArgs, plan::Options, process::Scratch, report::Report, serve::Serve};

/// Measures Taskwire beside rmcp and a bare hyper server.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Is one of the servers that are measured.
    Serve(Serve),
    /// Is one of the readers that are measured.
    Read(ReadArgs),
}

/// The allocator of the `taskwire` program; the peers get it too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    match cli.command {
        Some(Command::Serve(serve)) => {
            serve::run(serve).await?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Read(read)) => {
            client::run(read).await?;
            Ok(ExitCode::SUCCESS)
        }
        None => measure(&cli.options).await,
    }
}

async fn measure(options: &Options) -> anyhow::Result<ExitCode> {
    let plan = options.plan();
    // A thousand readers need as many open files, here and in the servers, which inherit the limit.
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        eprintln!("the limit of open files stays as it is: {error}");
    }
    let scratch = Scratch::new(&options.data_dir())?;
    let machine = report::Machine::look(scratch.path())?;
    let findings = stages::run(&plan, &scratch).await;
    let report = Report::new(machine, plan, findings);
    eprint!("{}", report.table());
    let json = serde_json::to_string_pretty(&report)?;
    match &options.out {
        Some(path) => std::fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?,
        None => println!("{json}"),
    }
    Ok(if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
