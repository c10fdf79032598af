//! `taskwire status`: a command reports what it is doing.

use std::process::ExitCode;

use clap::Args;
use taskwire::command::Note;

use super::in_task;
use crate::client::exit::Problem;

const EXAMPLES: &str = "Examples:
  taskwire status compiling
  taskwire status \"uploading $name\"

For commands that `taskwire serve` runs as tools, and the programs that they
run: the words become the status message of the task, for clients that show it
while it runs. Elsewhere nothing is done but to say so.

Exit codes:
  0  it is written down, or there is no task
  2  the command line is wrong
  3  the task is over, or refuses";

/// Inside a task: say what is being done.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Status {
    /// What is being done
    #[arg(value_name = "MESSAGE", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

impl Status {
    pub(crate) fn run(self) -> ExitCode {
        in_task::exit_code(self.tell())
    }

    fn tell(&self) -> Result<(), Problem> {
        let message = self.words.join(" ");
        if message.trim().is_empty() {
            return Err(Problem::usage("a status of no words says nothing: give a message"));
        }
        in_task::send_note("status", &Note::Status { message })
    }
}
