//! `taskwire cancel`: asks the server to cancel a task.

use clap::Args;
use taskwire::client::{Event, Outcome};

use crate::{
    client::{
        connection::{ConnectionArgs, close},
        exit::{Exit, Problem},
        user_data::{FoundTask, UserData, id_or_key},
    },
    term::{escape, stderr},
};

const EXAMPLES: &str = "Examples:
  taskwire cancel 01k3v9x2m4qa
  taskwire cancel 01k3v9x2m4qa --wait    returns when the task has ended

TASK is an id, a beginning of it that no other task has (`taskwire tasks`),
or SERVER#ID.
Cancelling is a request: a tool may take its time, or end with a result first.
How it ended is said on standard error.

Exit codes:
  0  the server was asked (with --wait: the task has ended)
  2  no such task is known here
  3  the server cannot be reached, refuses, or does not know the task";

/// Cancel a task.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Cancel {
    /// Id or a unique beginning of it, or SERVER#ID
    task: String,
    /// Wait for the task's end
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// The id of a task; an error for a call that is not known to be one.
pub(super) fn id_of(found: &FoundTask, user: &UserData) -> Result<String, Problem> {
    let unnamed = || {
        let name = user.short_name(&found.reference);
        Problem::usage(format!("this call is not a task yet: `taskwire watch {name}` sends it again, with the same key, and finds out"))
    };
    found.reference.task.clone().ok_or_else(unnamed)
}

impl Cancel {
    pub(crate) async fn run(self) -> Result<Exit, Problem> {
        let user = UserData::open()?;
        let mut found = user.find(&self.task)?;
        let id = id_of(&found, &user)?;
        let client = user.connect(&mut found, &self.connection, false).await?;
        let task = client.task(&id).await?;
        if task.status.is_terminal() {
            stderr::write(&format!("taskwire: nothing to cancel: the task has ended ({})\n", task.status));
            close(client).await;
            return Ok(Exit::Done);
        }
        client.cancel(&id).await?;
        stderr::write(&format!("taskwire: asked to cancel {}\n", escape::line(id_or_key(&found.reference))));
        if self.wait {
            let mut call = client.attach(&found.reference).await?;
            while let Some(event) = call.next().await {
                if let Event::Done(outcome) = event? {
                    let how = match outcome {
                        Outcome::Cancelled { .. } => "cancelled",
                        Outcome::Result(_) => "completed",
                        Outcome::Failed(_) => "failed",
                    };
                    stderr::write(&format!("taskwire: ended: {how}\n"));
                }
            }
        }
        close(client).await;
        Ok(Exit::Done)
    }
}
