//! Shared by `ask`, `progress`, `status` and `emit`: how a command reaches the task that it runs for.

use std::{io, process::ExitCode};

use taskwire::command::{CurrentTask, Note};
use taskwire_core::Payload;

use crate::{
    client::{
        arguments::{FilesAndStdin, load},
        exit::{self, Problem},
    },
    term::stderr,
};

/// The task that this process runs for, if any.
pub(super) fn current_task() -> Result<Option<CurrentTask>, Problem> {
    CurrentTask::from_env().map_err(problem)
}

/// Sends a note to the task. Without a task it prints a hint, and the script goes on.
pub(super) fn send_note(command: &str, note: &Note) -> Result<(), Problem> {
    match current_task()? {
        Some(mut task) => task.note(note).map_err(problem),
        None => {
            warn_outside_task(command);
            Ok(())
        }
    }
}

pub(super) fn warn_outside_task(command: &str) {
    stderr::write(&format!(
        "taskwire {command}: not run by a task, so this has no effect. (It has one in commands that `taskwire serve` runs as tools.)\n"
    ));
}

/// Converts an error of the connection to the task, or of what was to be sent.
pub(super) fn problem(error: io::Error) -> Problem {
    match error.kind() {
        io::ErrorKind::InvalidInput => Problem::usage(error.to_string()),
        _ => Problem::protocol(error.to_string()),
    }
}

/// The exit code of a command that has nothing else to say.
pub(super) fn exit_code(result: Result<(), Problem>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => exit::fail(false, &problem),
    }
}

/// The JSON of an option, which may be in a file, or on standard input.
pub(super) fn json_option(option: &str, text: &str) -> Result<Payload, Problem> {
    let text = match text.strip_prefix('@') {
        Some(name) => load(name, &mut FilesAndStdin::default()).map_err(|error| Problem::usage(format!("{option}: {error}")))?,
        None => text.to_owned(),
    };
    Payload::parse(text).map_err(|error| Problem::usage(format!("{option}: this is not JSON: {error}")))
}
