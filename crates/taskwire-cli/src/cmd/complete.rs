//! `taskwire complete`: what the completion script of a shell calls while somebody types.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{Args, ValueEnum};

use crate::completion::{Candidate, bash_line, candidates};

/// The shell that asks.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum CompletionShell {
    Bash,
    Fish,
    Zsh,
}

/// Say what the last word can become (completion scripts ask this)
#[derive(Debug, Args)]
pub(crate) struct Complete {
    /// The shell
    #[arg(value_enum)]
    shell: CompletionShell,
    /// The words up to the cursor; of bash the line, what is to be replaced, and what for
    #[arg(last = true, value_name = "WORD")]
    words: Vec<String>,
}

impl Complete {
    /// Prints no errors: they would disturb the line that somebody types.
    pub(crate) fn run(&self, mut command: clap::Command) -> ExitCode {
        command.build();
        let text = match self.shell {
            CompletionShell::Bash => match self.words.as_slice() {
                [typed, replaced, kind] => bash_line::bash_replies(typed, replaced, kind, &candidates(&command, &bash_line::words(typed))),
                _ => String::new(),
            },
            CompletionShell::Fish => {
                candidates(&command, &self.unquoted()).iter().map(|found| format!("{}\t{}\n", found.text, found.help)).collect()
            }
            CompletionShell::Zsh => candidates(&command, &self.words).iter().map(zsh).collect(),
        };
        let _ = io::stdout().write_all(text.as_bytes());
        ExitCode::SUCCESS
    }

    /// Fish passes the word at the cursor as it was typed.
    fn unquoted(&self) -> Vec<String> {
        let mut words = self.words.clone();
        if let Some(last) = words.last_mut() {
            *last = bash_line::words(last).pop().unwrap_or_default();
        }
        words
    }
}

fn zsh(found: &Candidate) -> String {
    let kind = if found.is_whole { "whole" } else { "part" };
    format!("{kind}\t{}\t{}\n", found.text, found.help)
}
