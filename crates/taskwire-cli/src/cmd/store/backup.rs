//! `taskwire store backup` and `taskwire store restore`: a copy of an embedded store in one file, and a data directory made of it.

use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use serde::Serialize;
use taskwire::{
    command::note_elsewhere,
    store::{CopiedStore, StoreRestore, back_up},
};

use super::{counted, is_address, refused};
use crate::{
    client::exit::{Exit, Problem},
    term::{escape, render, stderr, stdout},
};

const BACKUP_EXAMPLES: &str = "Examples:
  taskwire store backup /var/lib/taskwire monday.backup
  taskwire store backup .taskwire \"/backups/$(date +%F).backup\" --json

A server may go on meanwhile: all that it had acknowledged before is in the
copy. The file is there when it is complete, was checked, and lasts. It is for
this user alone: it has what callers sent and got, and the key of the store.

What commands wrote and the store does not have yet is not in it. A database
that nodes share is backed up with its own tools, such as pg_dump.

Exit codes:
  0  it is done
  2  the command line cannot be used
  3  it is not done: why is said";

const RESTORE_EXAMPLES: &str = "Examples:
  taskwire store restore monday.backup /var/lib/taskwire-2

The directory must be empty, or not be there. Then start a server on it: it goes
on with the tasks as after a restart of the machine. Commands that ran when the
backup was made are lost: their tasks fail and say so, or they are started again
(`on_interrupt = \"retry\"`). What was done since the backup is not there: serve
one of the two stores, not both.

Exit codes:
  0  it is done
  2  the command line cannot be used
  3  it is not done: why is said";

/// Copy the store of a data directory to a file, while a server may use it.
#[derive(Debug, Args)]
#[command(after_help = BACKUP_EXAMPLES)]
pub(super) struct Backup {
    /// The data directory
    #[arg(value_hint = ValueHint::DirPath)]
    dir: PathBuf,
    /// The new file
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Print one JSON object in the end
    #[arg(long)]
    pub(super) json: bool,
}

/// Make a data directory of a backup.
#[derive(Debug, Args)]
#[command(after_help = RESTORE_EXAMPLES)]
pub(super) struct Restore {
    /// The backup
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// The data directory, which is empty or not there
    #[arg(value_hint = ValueHint::DirPath)]
    dir: PathBuf,
    /// Print one JSON object in the end
    #[arg(long)]
    pub(super) json: bool,
}

/// What was copied, for programs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CopiedObject<'a> {
    from: &'a str,
    to: &'a str,
    format: i64,
    tasks: u64,
    open: u64,
    bytes: u64,
    /// Tasks whose commands are lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<Vec<String>>,
}

impl Backup {
    pub(super) fn run(self) -> Result<Exit, Problem> {
        check_is_path(&self.dir)?;
        check_is_path(&self.file)?;
        let copied = back_up(&self.dir, &self.file).map_err(refused)?;
        tell(self.json, "backed up", &self.dir, &self.file, copied, None)
    }
}

impl Restore {
    pub(super) fn run(self) -> Result<Exit, Problem> {
        check_is_path(&self.file)?;
        check_is_path(&self.dir)?;
        let restore = StoreRestore::begin(&self.file, &self.dir).map_err(refused)?;
        let mut lost = Vec::new();
        for command in restore.open_commands() {
            if note_elsewhere(&self.dir, command.task, command.checkpoint.as_ref())? {
                lost.push(command.task.to_string());
            }
        }
        let copied = restore.finish().map_err(refused)?;
        tell(self.json, "restored", &self.file, &self.dir, copied, Some(lost))
    }
}

/// Refuses the URL of a database. The error does not repeat it, for it may have a password.
fn check_is_path(path: &Path) -> Result<(), Problem> {
    if path.to_str().is_some_and(is_address) {
        return Err(Problem::usage(
            "a database is backed up and restored with its own tools (`pg_dump`, `pg_basebackup`): docs/manual/cluster.md says more. This is \
             for data directories; write one that is called so as `./NAME`",
        ));
    }
    Ok(())
}

fn tell(json: bool, done: &str, from: &Path, to: &Path, copied: CopiedStore, lost: Option<Vec<String>>) -> Result<Exit, Problem> {
    let (from, to) = (from.display().to_string(), to.display().to_string());
    let CopiedStore { format, tasks, open_tasks: open, bytes, .. } = copied;
    if json {
        let object = CopiedObject { from: &from, to: &to, format, tasks, open, bytes, lost };
        let line = serde_json::to_string(&object).map_err(|error| Problem::protocol(error.to_string()))?;
        stdout::print(&(escape::json(line) + "\n"))?;
        return Ok(Exit::Done);
    }
    let what = format!("{} ({open} open), {}", counted(tasks, "task"), render::size(bytes));
    stdout::print(&format!("{done} {what}: {} to {}\n", escape::line(&from), escape::line(&to)))?;
    let lost = lost.map_or(0, |lost| lost.len()) as u64;
    if lost > 0 {
        let commands = counted(lost, "command");
        stderr::write(&format!("taskwire: {commands} that ran when the backup was made are lost: the next start of a server says so\n"));
    }
    Ok(Exit::Done)
}
