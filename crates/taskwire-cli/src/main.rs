//! The `taskwire` program: parses the command line, sets up logging, and hands over to a command.

mod audit_log;
mod client;
mod cmd;
mod completion;
mod config;
mod control;
mod demo;
mod join;
mod logging;
#[cfg(test)]
#[path = "../tests/manual/command_line.rs"]
mod manual;
mod open_files;
#[cfg(target_os = "linux")]
mod pid1;
mod service_manager;
mod term;
#[cfg(test)]
#[path = "../../taskwire/src/testing.rs"]
mod testing;

use std::{path::PathBuf, process::ExitCode};

use clap::{CommandFactory, Parser, Subcommand};

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
  taskwire init                     write a taskwire.toml, and try it
  taskwire serve                    serve demo tools on http://127.0.0.1:8787/mcp
  taskwire serve taskwire.toml      serve what the file says
  taskwire serve --stdio            speak MCP on stdio, for clients that start
                                    their servers
  taskwire connect claude-code      have a client use it: what to add, and where
  taskwire reload taskwire.toml     have it read the file again
  taskwire server status            what it does; also: tasks, cancel, drain
  taskwire doctor taskwire.toml     look whether all is well, and what to do
  taskwire nodes taskwire.toml      the servers that share its database
  taskwire store move .taskwire env:DATABASE_URL
                                    take all tasks to a database, or back
  taskwire store backup .taskwire monday.backup
                                    copy the store while a server runs
  taskwire call http://127.0.0.1:8787/mcp countdown from=5
                                    call a tool and see its output as it comes
  taskwire tasks                    the tasks that were started from here
  taskwire tasks demo               those on a server, whoever started them
  taskwire get 01k3v9x2m4qa         one of them as it is now
  taskwire watch 01k3v9x2m4qa       follow it again, from where you left
  taskwire answer 01k3v9x2m4qa Ada  answer its question
  taskwire cancel 01k3v9x2m4qa      cancel it
  taskwire tools http://127.0.0.1:8787/mcp
                                    what a server can do
  taskwire completions bash         for the shell
  taskwire man                      the manual page

In commands that run as tools:
  taskwire status compiling         say what is being done
  taskwire progress 3/10            say how far it is
  taskwire emit --image map.png     add to the output
  taskwire ask 'Which name?'        ask the caller, and print the answer

Each command says more with --help. Exit codes of the client's commands:
  0 result, 1 the tool failed, 2 usage, 3 protocol or connection, 4 cancelled,
  5 the task failed";

/// Half the cost of the system's allocator for the many small messages that a server handles.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Subcommand)]
enum Command {
    Init(cmd::init::Init),
    Serve(cmd::serve::Serve),
    Connect(cmd::connect::Connect),
    Reload(cmd::reload::Reload),
    Server(cmd::server::Server),
    Doctor(cmd::doctor::Doctor),
    Nodes(cmd::nodes::Nodes),
    Store(cmd::store::Store),
    Call(cmd::call::Call),
    Watch(cmd::watch::Watch),
    Get(cmd::get::Get),
    Cancel(cmd::cancel::Cancel),
    Answer(cmd::answer::Answer),
    Tasks(cmd::tasks::Tasks),
    Tools(cmd::tools::Tools),
    Ask(cmd::ask::Ask),
    Progress(cmd::progress::Progress),
    Status(cmd::status::Status),
    Emit(cmd::emit::Emit),
    Completions(cmd::completions::Completions),
    Man(cmd::man::Man),
    #[command(hide = true)]
    Complete(cmd::complete::Complete),
    /// Run the command of one task (the server starts this)
    #[command(hide = true)]
    Supervise {
        /// The directory of the run
        dir: PathBuf,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    // First: the supervisor lives as long as its command, and talks to nobody but its server.
    if let Command::Supervise { dir } = &args.command {
        return taskwire::command::supervise(dir);
    }
    // Completion must print nothing else to a person who types.
    if let Command::Complete(complete) = &args.command {
        return complete.run(Args::command());
    }
    // As process 1 of a container it must also wait for orphans.
    #[cfg(target_os = "linux")]
    if matches!(args.command, Command::Serve(_)) && pid1::is_pid1() {
        return pid1::run();
    }
    if !matches!(args.command, Command::Serve(_)) {
        // A client command prints its own notices; the log is for users who ask for it. The server's configuration says how it logs.
        logging::begin(logging::LogFormat::Text, "error");
    }
    match args.command {
        Command::Serve(serve) => serve.run(),
        Command::Init(init) => init.run(),
        Command::Connect(connect) => connect.run(),
        Command::Reload(reload) => reload.run(),
        Command::Server(server) => client::exit::run(server.json(), server.run()),
        Command::Doctor(doctor) => client::exit::run(doctor.json, doctor.run()),
        Command::Nodes(nodes) => client::exit::run(nodes.json, nodes.run()),
        Command::Store(store) => client::exit::run(store.json(), store.run()),
        Command::Call(call) => client::exit::run(call.json, call.run()),
        Command::Watch(watch) => client::exit::run(watch.json, watch.run()),
        Command::Get(get) => client::exit::run(get.json, get.run()),
        Command::Cancel(cancel) => client::exit::run(false, cancel.run()),
        Command::Answer(answer) => client::exit::run(false, answer.run()),
        Command::Tasks(tasks) => client::exit::run(tasks.json, tasks.run()),
        Command::Tools(tools) => client::exit::run(tools.json, tools.run()),
        Command::Ask(ask) => ask.run(),
        Command::Progress(progress) => progress.run(),
        Command::Status(status) => status.run(),
        Command::Emit(emit) => emit.run(),
        Command::Supervise { dir } => taskwire::command::supervise(&dir),
        Command::Completions(completions) => completions.run(Args::command()),
        Command::Man(man) => man.run(Args::command()),
        Command::Complete(complete) => complete.run(Args::command()),
    }
}
