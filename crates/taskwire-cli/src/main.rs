//! The `taskwire` program: parses the command line, sets up logging, and hands over to a command.

mod cmd;
mod config;
mod demo;

use std::{io::IsTerminal, process::ExitCode};

use clap::{Parser, Subcommand};

/// Makes long-running MCP tools durable and live.
///
/// A tool call that takes long becomes a task: it survives disconnects, crashes and restarts, and any client of the same
/// caller can pick it up again.
#[derive(Debug, Parser)]
#[command(name = "taskwire", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  taskwire serve                    serve the demo tools on http://127.0.0.1:8787/mcp
  taskwire serve taskwire.toml      serve what the file says
  taskwire serve --stdio            speak MCP on standard input and output";

/// Half the cost of the system's allocator for the many small messages that a server handles.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Subcommand)]
enum Command {
    Serve(cmd::serve::Serve),
}

fn main() -> ExitCode {
    let args = Args::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "taskwire=info,warn".into());
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).with_target(false).init();
    let result = match args.command {
        Command::Serve(serve) => serve.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("taskwire: {error:#}");
            ExitCode::FAILURE
        }
    }
}
