//! Pages of the manual that are generated from the code: tests compare them with it, or write them anew.

use std::{fs, path::Path};

use clap::{Arg, Command, CommandFactory};

use crate::Args;

/// If this variable is set, pages are written, not compared.
const WRITE: &str = "TASKWIRE_WRITE_DOCS";
/// The heading of the options by which a server is reached.
const CONNECTION: &str = "Connection";

const HEAD: &str = "# Command line reference

<!-- A test makes this page of the program's own help: TASKWIRE_WRITE_DOCS=1 cargo test -p taskwire-cli --bin taskwire reference -->

";

const CONNECTION_HEAD: &str = "
## Connection options

All commands that reach a server have these options.

";

const TABLE: &str = "| argument or option | |\n|---|---|\n";

/// Fails if a page of the manual is not what the code makes of it.
#[track_caller]
pub(crate) fn keep(page: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/manual").join(page);
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, text).expect("the page can be written");
        return;
    }
    let kept = fs::read_to_string(&path).expect("the page is there");
    let same = kept.lines().zip(text.lines()).take_while(|(kept, new)| kept == new).count();
    assert!(
        kept == text,
        "docs/manual/{page} is not what the code says, from line {} on: `{WRITE}=1 cargo test -p taskwire-cli --bin taskwire reference` \
         writes it anew",
        same + 1
    );
}

/// Text of the help, escaped for a Markdown table.
fn words(text: impl ToString) -> String {
    text.to_string().replace('\n', " ").replace('|', "\\|").replace('<', "\\<")
}

/// An argument or an option: how it is written, and what it is for.
fn row(arg: &Arg) -> String {
    let mut about = arg.get_long_help().or(arg.get_help()).map(words).unwrap_or_default();
    let choices = arg.get_possible_values();
    let choice = |choice: &clap::builder::PossibleValue| match choice.get_help() {
        Some(help) => format!("`{}`: {}", choice.get_name(), words(help)),
        None => format!("`{}`", choice.get_name()),
    };
    let choices: Vec<String> = choices.iter().filter(|choice| !choice.is_hide_set()).map(choice).collect();
    if !choices.is_empty() {
        about = format!("{about}. {}", choices.join("; "));
    }
    if arg.get_action().takes_values() && !arg.get_default_values().is_empty() {
        let defaults: Vec<String> = arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
        about = format!("{about} [default: {}]", defaults.join(" "));
    }
    format!("| `{}` | {about} |\n", arg.to_string().replace('|', "\\|"))
}

/// Whether a command is one for people.
fn is_shown(command: &Command) -> bool {
    !command.is_hide_set() && command.get_name() != "help"
}

/// A command's own arguments.
fn arguments(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str()))
}

fn is_connection(arg: &&Arg) -> bool {
    arg.get_help_heading() == Some(CONNECTION)
}

/// The examples and notes at the end of a command's help.
fn more(command: &Command) -> String {
    command.get_after_help().map(|text| format!("\n```text\n{text}\n```\n")).unwrap_or_default()
}

/// The section of a command, and those of its own commands. `above` is what comes before its name.
fn section(command: &mut Command, above: &str) -> String {
    let name = format!("{above} {}", command.get_name());
    let usage = command.render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut text = format!("\n## {name}\n\n{about}.\n\n```text\n{usage}\n```\n");
    if arguments(command).next().is_some() {
        text.push('\n');
        text.push_str(TABLE);
        text.extend(arguments(command).filter(|arg| !is_connection(arg)).map(row));
        if arguments(command).any(|arg| is_connection(&arg)) {
            text.push_str("| | and the [connection options](#connection-options) |\n");
        }
    }
    text.push_str(&more(command));
    text.extend(command.get_subcommands_mut().filter(|command| is_shown(command)).map(|command| section(command, &name)));
    text
}

#[test]
fn the_command_line_reference_is_what_the_program_says() {
    let mut program = Args::command();
    program.build();
    let mut page = HEAD.to_owned();
    page.push_str(&program.get_long_about().map(ToString::to_string).unwrap_or_default());
    page.push_str("\n\n| command | |\n|---|---|\n");
    for command in program.get_subcommands().filter(|command| is_shown(command)) {
        let (name, about) = (command.get_name(), command.get_about().map(words).unwrap_or_default());
        page.push_str(&format!("| [`{name}`](#taskwire-{name}) | {about} |\n"));
    }
    page.push_str(&more(&program));
    page.push_str(CONNECTION_HEAD);
    page.push_str(TABLE);
    let call = program.find_subcommand("call").expect("there is `call`");
    page.extend(arguments(call).filter(is_connection).map(row));
    page.extend(program.get_subcommands_mut().filter(|command| is_shown(command)).map(|command| section(command, "taskwire")));
    keep("command-line.md", &page);
}
