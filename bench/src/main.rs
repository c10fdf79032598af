//! Measures Taskwire beside rmcp and a bare hyper server: one command, one table, one JSON document.
//!
//! Start with `stages`, which says what is measured; `serve` holds the three servers, each run as a process of its own, and
//! `client` the readers that are. `nodes` measures several servers that share a database, and `hold` a load that lasts, each with a table and a
//! document of its own.

mod client;
mod hold;
mod http;
mod load;
mod nodes;
mod plan;
mod process;
mod push;
mod report;
mod serve;
mod stages;
mod stream;
mod wire;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{
    client::ReadArgs,
    hold::HoldArgs,
    nodes::NodesArgs,
    plan::Options,
    process::{Scratch, raise_open_files},
    report::{Report, put_out},
    serve::Serve,
};

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
    /// Measures nodes that share a PostgreSQL.
    Nodes(NodesArgs),
    /// Holds thousands of streams open beside a constant rate of polls, and says whether that works.
    Hold(HoldArgs),
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
        Some(Command::Nodes(nodes)) => nodes::run(&nodes).await,
        Some(Command::Hold(hold)) => hold::run(&hold).await,
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
    raise_open_files();
    let scratch = Scratch::new(&options.data_dir())?;
    let machine = report::Machine::look(scratch.path())?;
    let findings = stages::run(&plan, &scratch).await;
    let report = Report::new(machine, plan, findings);
    eprint!("{}", report.table());
    put_out(&report, options.out.as_deref())?;
    Ok(if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
