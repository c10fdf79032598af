//! `taskwire store`: moves a store from a data directory to a database, or back; makes backups, and data directories of them.

mod backup;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Subcommand, ValueHint};
use serde::Serialize;
use taskwire::{
    clock::{Clock, SystemClock},
    command::{hand_over, note_elsewhere},
    store::{self, Contents, Findings, MoveProgress, MoveStep, OpenCommand, Place, StoreMove},
};
use taskwire_core::TaskId;

use crate::{
    client::exit::{Exit, Problem},
    config::{Config, Secret, StoreKind},
    term::{
        escape,
        paint::{Terminal, short_duration},
        render,
        stderr::{StatusDisplay, TICK},
        stdout,
    },
};

/// Damaged tasks that an error names.
const NAMED_MAX: usize = 20;

const EXAMPLES: &str = "Examples:
  taskwire store move .taskwire env:DATABASE_URL
  taskwire store move env:DATABASE_URL /var/lib/taskwire
  taskwire store backup /var/lib/taskwire monday.backup
  taskwire store restore monday.backup /var/lib/taskwire-2

`taskwire store move --help` says more, and so do the others.

Exit codes:
  0  it is done
  2  the command line or the file cannot be used
  3  it is not done: why is said";

const MOVE_EXAMPLES: &str = "Examples:
  taskwire store move .taskwire env:DATABASE_URL
  taskwire store move .taskwire postgres://db/taskwire --schema ours
  taskwire store move env:DATABASE_URL /var/lib/taskwire
  taskwire store move .taskwire env:DATABASE_URL --config taskwire.toml

One of the two is a data directory, the other one a database (`postgres://…`,
or `env:NAME` for a variable that has such a URL). No server may use either:
stop them first. TO must have no tasks; it is made if it is not there.

All tasks move, with their output, and so do sessions and the store's key:
clients go on where they were. Everything is checked before, and compared
after. Until the end FROM is as it was; then it is marked, and not served any
more, so that nobody goes on with both. If a move is interrupted, make it again.

Commands that run go on, if a node starts soon (`orphan_after`, 30 s) that has
the same data directory: docs/manual/cluster.md says what becomes of others.

Exit codes:
  0  it is moved
  2  the command line or the file cannot be used
  3  it is not moved: why is said";

/// Back up a store, restore it, or move it to a database or back.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Store {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Backup(backup::Backup),
    Restore(backup::Restore),
    Move(Move),
}

/// Move all that a store has to another place, while no server uses it.
#[derive(Debug, Args)]
#[command(after_help = MOVE_EXAMPLES)]
struct Move {
    /// The data directory or the database that has the tasks
    #[arg(value_hint = ValueHint::DirPath)]
    from: String,
    /// The data directory or the database that gets them
    #[arg(value_hint = ValueHint::DirPath)]
    to: String,
    /// The schema of the database, instead of the one in the file [default: taskwire]
    #[arg(long, value_name = "NAME")]
    schema: Option<String>,
    /// The configuration file of the servers, for its `[postgres]` and `orphan_after`
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Leave out tasks that are damaged, and name them
    #[arg(long)]
    skip_damaged: bool,
    /// Print one JSON object in the end
    #[arg(long)]
    json: bool,
}

/// What was moved, for programs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct MovedObject<'a> {
    from: &'a str,
    to: &'a str,
    #[serde(flatten)]
    contents: Option<ContentsObject>,
    /// Damaged tasks.
    left_out: Vec<String>,
    /// Tasks whose commands run on.
    running: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ContentsObject {
    tasks: u64,
    open: u64,
    events: u64,
    chunks: u64,
    sessions: u64,
    bytes: u64,
}

impl From<&Contents> for ContentsObject {
    fn from(contents: &Contents) -> Self {
        let &Contents { tasks, open_tasks, events, chunks, sessions, bytes, .. } = contents;
        Self { tasks, open: open_tasks, events, chunks, sessions, bytes }
    }
}

impl Store {
    /// Whether the output is for programs.
    pub(crate) fn json(&self) -> bool {
        match &self.action {
            Action::Backup(command) => command.json,
            Action::Restore(command) => command.json,
            Action::Move(command) => command.json,
        }
    }

    pub(crate) async fn run(self) -> Result<Exit, Problem> {
        match self.action {
            Action::Backup(command) => command.run(),
            Action::Restore(command) => command.run(),
            Action::Move(command) => command.run().await,
        }
    }
}

fn refused(error: store::Error) -> Problem {
    Problem::protocol(error.to_string())
}

impl Move {
    async fn run(self) -> Result<Exit, Problem> {
        let config = match &self.config {
            Some(file) => Config::read(file).map_err(|error| Problem::usage(format!("{error:#}")))?,
            None => Config::default(),
        };
        let (from, to) = (self.place(&self.from, &config)?, self.place(&self.to, &config)?);
        let orphan_after = config.orphan_after();
        let mut moving = StoreMove::open(&from, &to).await.map_err(refused)?;
        let (from_name, to_name) = moving.names();
        let mut shown = Shown::new(self.json);
        // If an earlier move has copied it all, only the end is left.
        let mut found = None;
        if !moving.is_copied() {
            let findings = moving.check(&mut |progress| shown.show(progress)).await.map_err(refused)?;
            self.check_damage(&findings, &from_name)?;
            moving.copy(&findings, orphan_after, &mut |progress| shown.show(progress)).await.map_err(refused)?;
            if let Place::Directory(data) = &to {
                leave_commands(&moving, data, &findings.open_commands, &mut shown).await?;
            }
            found = Some(findings);
        }
        let running = match &from {
            Place::Directory(data) => hand_over(data, moving.epoch().await.map_err(refused)?, orphan_after).await?,
            Place::Postgres(_) => Vec::new(),
        };
        moving.finish().await.map_err(refused)?;
        shown.clear();
        let moved = Moved { from: &from_name, to: &to_name, found, running };
        if self.json {
            stdout::print(&moved.json()?)?;
        } else {
            stdout::print(&moved.text())?;
            moved.notes(orphan_after).iter().for_each(|note| shown.note(note));
        }
        Ok(Exit::Done)
    }

    /// What an argument names. The error does not repeat a URL, which may have a password.
    fn place(&self, text: &str, config: &Config) -> Result<Place, Problem> {
        if text.is_empty() {
            return Err(Problem::usage("a store has a name: a data directory, `postgres://…` or `env:NAME`"));
        }
        if !is_address(text) {
            return Ok(Place::Directory(text.into()));
        }
        let StoreKind::Postgres(url) = StoreKind::parse(&Secret(text.to_owned())).map_err(Problem::usage)? else {
            return Err(Problem::usage("tasks in memory end with their server, and cannot be moved"));
        };
        let mut postgres = config.postgres(&url.0).map_err(|error| Problem::usage(format!("{error:#}")))?;
        if let Some(schema) = &self.schema {
            postgres.schema.clone_from(schema);
        }
        Ok(Place::Postgres(postgres))
    }

    /// Refuses what cannot be moved, unless it is to be left out.
    fn check_damage(&self, findings: &Findings, name: &str) -> Result<(), Problem> {
        if self.skip_damaged || !findings.is_damaged() {
            return Ok(());
        }
        let tasks: Vec<String> = findings.damaged.iter().take(NAMED_MAX).map(|(id, what)| format!("\n  {id}: {what}")).collect();
        let more = match findings.damaged.len() - tasks.len() {
            0 => String::new(),
            more => format!("\n  and {more} more"),
        };
        let damaged = [(findings.damaged.len() as u64, "task"), (findings.damaged_sessions, "session")];
        let counts: Vec<String> = damaged.iter().filter(|(count, _)| *count > 0).map(|(count, what)| counted(*count, what)).collect();
        Err(Problem::protocol(format!(
            "nothing is moved, because {} in {name} cannot be read:{}{more}\nput a copy of the store in its place, or leave out what is \
             damaged with --skip-damaged",
            counts.join(" and "),
            tasks.concat()
        )))
    }
}

/// Whether a text is meant for the address of a store. A directory that is called so can be written as `./NAME`.
fn is_address(text: &str) -> bool {
    let is_scheme = |scheme: &str| scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(char::is_alphanumeric);
    text.split_once(':').is_some_and(|(scheme, _)| is_scheme(scheme))
}

/// `1 task`, `2 tasks`.
fn counted(count: u64, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {what}{s}")
}

/// Notes which commands were begun elsewhere, and waits until they are over.
async fn leave_commands(moving: &StoreMove, data: &Path, commands: &[OpenCommand], shown: &mut Shown) -> Result<(), Problem> {
    let mut are_elsewhere = false;
    for OpenCommand { task, checkpoint } in commands {
        are_elsewhere |= note_elsewhere(data, *task, checkpoint.as_ref())?;
    }
    if !are_elsewhere {
        return Ok(());
    }
    loop {
        let left = moving.commands_end_in().await.map_err(refused)?;
        if left.is_zero() {
            return Ok(());
        }
        shown.note(&format!("waiting for {} until commands have ended whose servers are gone", short_duration(left)));
        tokio::time::sleep(left).await;
    }
}

/// What a person sees of a move.
struct Shown {
    display: StatusDisplay,
    /// When the status line was drawn last.
    drawn_at: Duration,
}

impl Shown {
    fn new(is_silent: bool) -> Self {
        Self { display: StatusDisplay::new(Terminal::detect(), is_silent, "moving"), drawn_at: Duration::ZERO }
    }

    fn show(&mut self, progress: MoveProgress) {
        let now = SystemClock.monotonic();
        if now.saturating_sub(self.drawn_at) < TICK {
            return;
        }
        self.drawn_at = now;
        let step = match progress.step {
            MoveStep::Check => "checking",
            MoveStep::Copy => "copying",
            MoveStep::Compare => "comparing",
        };
        let total = progress.total.map(|total| total.tasks as f64);
        self.display.progress(progress.done.tasks as f64, total, Some(&format!("{step}, {}", render::size(progress.done.bytes))));
        self.display.tick();
    }

    fn note(&mut self, text: &str) {
        self.display.note(text);
    }

    fn clear(&mut self) {
        self.display.clear();
    }
}

/// What was moved.
struct Moved<'a> {
    from: &'a str,
    to: &'a str,
    /// None if an earlier move has copied it.
    found: Option<Findings>,
    running: Vec<TaskId>,
}

impl Moved<'_> {
    fn json(&self) -> Result<String, Problem> {
        let object = MovedObject {
            from: self.from,
            to: self.to,
            contents: self.found.as_ref().map(|found| ContentsObject::from(&found.contents)),
            left_out: self.left_out().map(|(id, _)| id.to_string()).collect(),
            running: self.running.iter().map(ToString::to_string).collect(),
        };
        let line = serde_json::to_string(&object).map_err(|error| Problem::protocol(error.to_string()))?;
        Ok(escape::json(line) + "\n")
    }

    fn text(&self) -> String {
        let (from, to) = (escape::line(self.from), escape::line(self.to));
        match &self.found {
            None => format!("moved {from} to {to}, as an earlier move had begun\n"),
            Some(Findings { contents, .. }) => format!(
                "moved {} ({} open), {} and {} from {from} to {to}\n",
                counted(contents.tasks, "task"),
                contents.open_tasks,
                counted(contents.sessions, "session"),
                render::size(contents.bytes)
            ),
        }
    }

    fn left_out(&self) -> impl Iterator<Item = &(TaskId, String)> {
        self.found.iter().flat_map(|found| &found.damaged)
    }

    /// What else is to be known.
    fn notes(&self, orphan_after: Duration) -> Vec<String> {
        let mut notes: Vec<String> = self.left_out().map(|(id, what)| format!("left out: task {id}: {what}")).collect();
        let sessions = self.found.as_ref().map_or(0, |found| found.damaged_sessions);
        if sessions > 0 {
            notes.push(format!("left out: {}", counted(sessions, "damaged session")));
        }
        notes.push(format!("{} is left as it was: no server starts there any more, and each says how to go back", self.from));
        if !self.running.is_empty() {
            let (count, span) = (counted(self.running.len() as u64, "command"), short_duration(orphan_after));
            notes.push(format!("{count} that run go on, if a node with this data directory starts within {span}; then they end"));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_known_from_a_directory() {
        for address in ["postgres://h/db", "postgresql:///db", "env:NAME", "memory:", "mysql://me:secret@h/db", "postgres:/me:secret@h"] {
            assert!(is_address(address), "{address}");
        }
        for directory in [".taskwire", "/var/lib/taskwire", "postgres", "./env:NAME", "a/b:c", ":x", "../x:y"] {
            assert!(!is_address(directory), "{directory}");
        }
    }

    #[test]
    fn what_was_moved_is_told_in_one_line() {
        let contents = Contents { tasks: 1, open_tasks: 0, sessions: 2, bytes: 12_300, ..Contents::default() };
        let found = Some(Findings { contents, ..Findings::default() });
        let moved = Moved { from: "A", to: "B\x1b[2J", found, running: Vec::new() };
        assert_eq!(moved.text(), "moved 1 task (0 open), 2 sessions and 12.3 kB from A to B^[[2J\n");
        let json: serde_json::Value = serde_json::from_str(&moved.json().expect("JSON")).expect("JSON");
        assert_eq!(
            (json["from"].as_str(), json["tasks"].as_u64(), json["leftOut"].as_array().map(Vec::len)),
            (Some("A"), Some(1), Some(0))
        );
        let notes = moved.notes(Duration::from_secs(30));
        assert_eq!(notes, ["A is left as it was: no server starts there any more, and each says how to go back"]);
    }
}
