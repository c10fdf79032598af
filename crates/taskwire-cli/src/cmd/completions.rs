//! `taskwire completions`: prints the completion script of a shell.

use std::process::ExitCode;

use clap::Args;
use clap_complete::{Shell, generate};

use crate::{completion, term::stdout};

const EXAMPLES: &str = "Examples:
  taskwire completions bash > ~/.local/share/bash-completion/completions/taskwire
  taskwire completions zsh > ~/.zfunc/_taskwire       with ~/.zfunc in $fpath
  taskwire completions fish > ~/.config/fish/completions/taskwire.fish

In bash, zsh and fish not only commands and options are completed, but also
servers (of client.toml, and those that were used before), the tools of a
server and their arguments, tasks and their questions, and files.
A server at a URL is asked for its tools, and waited for less than a second;
one on stdio is not started, and nobody is asked to sign in. `taskwire` must be
in the path.";

/// Print a completion script for a shell.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(&self, mut command: clap::Command) -> ExitCode {
        let script = match self.shell {
            Shell::Bash => completion::BASH.to_owned(),
            Shell::Fish => completion::FISH.to_owned(),
            Shell::Zsh => completion::ZSH.to_owned(),
            other => {
                let mut script = Vec::new();
                generate(other, &mut command, "taskwire", &mut script);
                String::from_utf8_lossy(&script).into_owned()
            }
        };
        match stdout::print(&script) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        }
    }
}
