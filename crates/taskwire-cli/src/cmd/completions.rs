//! `taskwire completions`: what a shell needs to complete our command lines.

use std::process::ExitCode;

use clap::Args;
use clap_complete::{Shell, generate};

use crate::term::out;

const EXAMPLES: &str = "Examples:
  taskwire completions bash > ~/.local/share/bash-completion/completions/taskwire
  taskwire completions zsh > ~/.zfunc/_taskwire       with ~/.zfunc in $fpath
  taskwire completions fish > ~/.config/fish/completions/taskwire.fish";

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
        let mut script = Vec::new();
        generate(self.shell, &mut command, "taskwire", &mut script);
        match out::print(&String::from_utf8_lossy(&script)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        }
    }
}
