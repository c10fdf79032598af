//! `taskwire man`: the manual pages of the program, made of its own help.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, Command};

use crate::{
    client::exit::{Exit, Problem, fail},
    term::stdout,
};

const EXAMPLES: &str = "Examples:
  taskwire man | man -l -                     read the page of the program
  taskwire man --dir ~/.local/share/man/man1  then: man taskwire-call

Packages bring these pages along.

Exit codes:
  0  it is done
  2  the command line is wrong
  3  a page cannot be written";

/// Print the manual page, or write one for each command.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Man {
    /// Write a page for the program and for each of its commands into this directory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Man {
    pub(crate) fn run(&self, command: Command) -> ExitCode {
        let mut command = command.disable_help_subcommand(true);
        command.build();
        let done = match &self.dir {
            None => page(&command).and_then(|(_, page)| stdout::print(&page)),
            Some(dir) => fs::create_dir_all(dir).and_then(|()| write_pages(&command, dir)),
        };
        match done {
            Ok(()) => Exit::Done.into(),
            Err(error) => fail(false, &Problem::from(error)),
        }
    }
}

/// Writes the page of a command, and those of its own commands.
fn write_pages(command: &Command, dir: &Path) -> io::Result<()> {
    let (name, text) = page(command)?;
    let file = dir.join(name);
    fs::write(&file, text).map_err(|error| io::Error::new(error.kind(), format!("cannot write {}: {error}", file.display())))?;
    command.get_subcommands().filter(|command| !command.is_hide_set()).try_for_each(|command| write_pages(command, dir))
}

/// The name of a command's page, and the page.
fn page(command: &Command) -> io::Result<(String, String)> {
    let man = clap_mangen::Man::new(command.clone());
    let file = man.get_filename();
    // With quotes, else the date that is not there would shift what follows.
    let name = file.strip_suffix(".1").unwrap_or(&file);
    let mut text = format!(".TH {name} 1 \"\" \"taskwire {}\" Taskwire\n", env!("CARGO_PKG_VERSION")).into_bytes();
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    if command.get_arguments().any(|arg| !arg.is_hide_set()) {
        man.render_options_section(&mut text)?;
    }
    if command.get_subcommands().any(|command| !command.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    let mut text = String::from_utf8_lossy(&text).into_owned();
    text.push_str(&examples(command));
    Ok((file, text))
}

/// The end of a command's help, line by line as it is there.
fn examples(command: &Command) -> String {
    let Some(help) = command.get_after_help().map(ToString::to_string) else { return String::new() };
    let lines: String = help.lines().filter(|line| *line != "Examples:").map(|line| plain(line) + "\n").collect();
    format!(".SH EXAMPLES\n.nf\n{lines}.fi\n")
}

/// A line that means nothing to roff.
fn plain(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq").replace('`', "\\(ga").replace('~', "\\(ti");
    if line.starts_with('.') { format!("\\&{line}") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_help_is_no_request_to_roff() {
        assert_eq!(plain(".TH x"), "\\&.TH x");
        assert_eq!(plain("  it's --here \\n"), "  it\\(aqs \\-\\-here \\en");
    }
}
