//! `taskwire server`: what an operator sees of a running server, and what it is told to do.

mod api;
mod status;
mod tasks;

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use taskwire::client::ApiMethod;

use self::api::{ServerApi, Unanswered, encoded};
use crate::{
    client::{
        connection::Secret,
        exit::{Exit, Problem},
    },
    term::{escape, stderr, stdout},
};

/// How often to look how far a drain is.
const DRAIN_POLL: Duration = Duration::from_millis(250);

const EXAMPLES: &str = "Examples:
  taskwire server status
  taskwire server tasks --status open
  taskwire server cancel 06g3ie4pm7l2s1u0q9b8c5n4k3j2h1g0
  taskwire server drain --data /var/lib/taskwire
  taskwire server status --url https://tools.example --token \"$ADMIN\"

The server is found by its data directory, which only its own user can use, or
by its URL, which needs the token of an admin: `admin = true` in
`[auth] tokens`, or a token with the scope `[auth] admin_scope`.

Exit codes:
  0  it is done
  2  the command line cannot be used
  3  there is no such server, or it refuses: why is said";

const STATUS_EXAMPLES: &str = "Examples:
  taskwire server status
  taskwire server status --data /var/lib/taskwire --json

Exit codes: 0 it was told, 3 there is no server, or it refuses";

const TASKS_EXAMPLES: &str = "Examples:
  taskwire server tasks
  taskwire server tasks --status open --tool build
  taskwire server tasks --caller ci --limit 1000 --json

The latest come first. AGE is the time since a task was made.

Exit codes: 0 they were told, 2 a filter cannot be used, 3 there is no server,
or it refuses";

const CANCEL_EXAMPLES: &str = "Examples:
  taskwire server cancel 06g3ie4pm7l2s1u0q9b8c5n4k3j2h1g0

The ids are those of `taskwire server tasks`. A task that has ended stays as
it is.

Exit codes: 0 they have ended, 3 one of them is not there, there is no server,
or it refuses";

const DRAIN_EXAMPLES: &str = "Examples:
  taskwire server drain
  taskwire server drain --url http://127.0.0.1:8787

It is what SIGTERM does: the server takes no new calls (/readyz answers 503),
and ends when running tools have ended or `drain` (10 s) is over. The next
start takes over what still runs; commands go on meanwhile. This command ends
when the server has.

Exit codes: 0 it has ended, 3 there is no server, or it refuses";

/// Look at a running server and its tasks, cancel tasks, or let it drain.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Server {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Status(Status),
    Tasks(Tasks),
    Cancel(Cancel),
    Drain(Drain),
}

/// Which server it is.
#[derive(Debug, Args)]
struct Place {
    /// The server's directory for tasks [default: .taskwire]
    #[arg(long, value_name = "DIR", conflicts_with = "url")]
    data: Option<PathBuf>,
    /// The server's address, such as http://127.0.0.1:8787, instead of its directory
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// The token of an admin [default: $TASKWIRE_TOKEN, for a server on this machine or reached by https]
    #[arg(long, value_name = "TOKEN", requires = "url")]
    token: Option<Secret>,
}

/// Say how a server is: its tasks, its store, its clients.
#[derive(Debug, Args)]
#[command(after_help = STATUS_EXAMPLES)]
struct Status {
    #[command(flatten)]
    place: Place,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// List the tasks of all callers.
#[derive(Debug, Args)]
#[command(after_help = TASKS_EXAMPLES)]
struct Tasks {
    #[command(flatten)]
    place: Place,
    /// Only those of this caller
    #[arg(long, value_name = "NAME")]
    caller: Option<String>,
    /// Only those with this status: open, working, input_required, completed, failed or cancelled
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// Only those of this tool
    #[arg(long, value_name = "NAME")]
    tool: Option<String>,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    /// Print one JSON object for each task
    #[arg(long)]
    json: bool,
}

/// Cancel tasks, whoever owns them.
#[derive(Debug, Args)]
#[command(after_help = CANCEL_EXAMPLES)]
struct Cancel {
    /// The ids of the tasks
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    #[command(flatten)]
    place: Place,
}

/// Let a server end: no new calls, and some time for running tools.
#[derive(Debug, Args)]
#[command(after_help = DRAIN_EXAMPLES)]
struct Drain {
    #[command(flatten)]
    place: Place,
}

impl Server {
    pub(crate) fn json(&self) -> bool {
        match &self.action {
            Action::Status(status) => status.json,
            Action::Tasks(tasks) => tasks.json,
            Action::Cancel(_) | Action::Drain(_) => false,
        }
    }

    pub(crate) async fn run(self) -> Result<Exit, Problem> {
        match self.action {
            Action::Status(status) => status.run().await,
            Action::Tasks(tasks) => tasks.run().await,
            Action::Cancel(cancel) => cancel.run().await,
            Action::Drain(drain) => drain.run().await,
        }
    }
}

impl Status {
    async fn run(self) -> Result<Exit, Problem> {
        let state = ServerApi::at(self.place)?.ask(ApiMethod::Get, "/api/server").await?;
        let text = if self.json { escape::json(state.to_string()) + "\n" } else { status::text(&state) };
        stdout::print(&text)?;
        Ok(Exit::Done)
    }
}

impl Cancel {
    async fn run(self) -> Result<Exit, Problem> {
        let api = ServerApi::at(self.place)?;
        let mut refused = 0;
        for id in &self.ids {
            let shown = escape::line(id);
            match api.ask(ApiMethod::Post, &format!("/api/tasks/{}/cancel", encoded(id))).await {
                Ok(done) if done["changed"] == true => stderr::write(&format!("taskwire: {shown} is cancelled\n")),
                Ok(done) => {
                    let status = escape::line(done["task"]["status"].as_str().unwrap_or("over"));
                    stderr::write(&format!("taskwire: {shown} had ended before: {status}\n"));
                }
                Err(Unanswered::Refused(problem)) => {
                    refused += 1;
                    stderr::write(&format!("taskwire: {shown}: {}\n", escape::lines(problem.message())));
                }
                Err(gone) => return Err(gone.into()),
            }
        }
        match (refused, self.ids.len()) {
            (0, _) => Ok(Exit::Done),
            (_, 1) => Ok(Exit::Protocol),
            (refused, all) => Err(Problem::protocol(format!("{refused} of {all} tasks were not cancelled"))),
        }
    }
}

impl Drain {
    async fn run(self) -> Result<Exit, Problem> {
        let api = ServerApi::at(self.place)?;
        let mut state = api.ask(ApiMethod::Post, "/api/server/drain").await?;
        let mut shown = None;
        // A server that does not drain is the next one.
        while state["draining"] == true {
            let running = state["running"].as_u64().unwrap_or_default();
            if shown.replace(running) != Some(running) {
                let what = if running == 1 { "tool runs" } else { "tools run" };
                stderr::write(&format!("taskwire: the server drains: {running} {what}\n"));
            }
            tokio::time::sleep(DRAIN_POLL).await;
            state = match api.ask(ApiMethod::Get, "/api/server").await {
                Ok(state) => state,
                Err(Unanswered::Gone(_)) => break,
                Err(refused) => return Err(refused.into()),
            };
        }
        stderr::write("taskwire: the server has ended\n");
        Ok(Exit::Done)
    }
}
