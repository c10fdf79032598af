//! `taskwire tasks`: lists the tasks that were started from here, as they are now.

mod listing;

use std::{collections::BTreeMap, time::Duration};

use clap::Args;
use serde::Serialize;
use taskwire::{
    client::{self, CallRecorder, Entry, EntryId, Era, Status, TaskSnapshot},
    clock::{Clock, SystemClock},
};
use taskwire_core::Timestamp;
use tokio::{task::JoinSet, time::timeout};

use crate::{
    client::{
        client_config::Server,
        connection::{ConnectionArgs, ConnectionNeeds},
        exit::{Exit, Problem},
        user_data::{UserData, id_or_key, prefix, without_query},
    },
    term::{
        escape,
        paint::{Paint, Terminal, shell_word, short_duration},
        stderr, stdout,
        table::{self, Cell, LastColumn},
    },
};

/// How long a server may take to report its tasks.
const SERVER_TIMEOUT: Duration = Duration::from_secs(3);
/// How long an ended task is listed without `--all`.
const SHOW_ENDED_FOR: Duration = Duration::from_secs(24 * 3600);
/// How long `--prune` keeps a call that has no reply.
const KEEP_UNANSWERED_FOR: Duration = Duration::from_secs(24 * 3600);
/// Tasks whose state is asked for, newest first.
const REFRESHED_MAX: usize = 200;

const EXAMPLES: &str = "Examples:
  taskwire tasks               what is running, and what ended within a day
  taskwire tasks --all         everything that is remembered
  taskwire tasks demo          what is yours on a server, whoever started it
  taskwire tasks --prune       forgets what has ended
  taskwire tasks --forget 01k3v9x2m4qa
  taskwire tasks --json | jq -r 'select(.status == \"working\") | .taskId'

Each call that became a task is remembered, with its server and how far its
output was shown, in $TASKWIRE_STATE_DIR, else $XDG_STATE_HOME/taskwire, else
~/.local/state/taskwire.
TASK is a beginning of the id that no other task has: enough for `watch`,
`get`, `cancel` and `answer`. STATUS is what the server says now: `gone` if it
does not know the task any more, with a `?` if it could not be asked. `sent` is
a call whose answer was never seen. Servers on stdio are not started for this.
With SERVER the server itself is asked for the caller's tasks, also those that
were started elsewhere: a page of them, with --all all of them. TASK is then
SERVER#ID, and the id alone at the default server (`taskwire call --help`).
Each server gets what client.toml has for it, or an earlier sign-in. --token,
--oauth, --header, --era and $TASKWIRE_TOKEN are for one server, and used only
if all tasks that can be asked about are there.

Exit codes:
  0  there they are
  2  an option for one server was given, and there are several
  3  the list cannot be read, or the server has none";

/// List the tasks that were started from here, or all of the caller's on a server.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Tasks {
    /// List the caller's tasks on this server, whoever started them
    #[arg(conflicts_with_all = ["offline", "prune", "forget"])]
    server: Option<String>,
    /// Also those that ended long ago; of a server all pages
    #[arg(long)]
    all: bool,
    /// Do not ask the servers: show what was seen last
    #[arg(long)]
    offline: bool,
    /// Forget those that have ended, are gone, or were sent a day ago and never answered
    #[arg(long)]
    prune: bool,
    /// Forget these, however they are; nothing is cancelled
    #[arg(long, value_name = "TASK", num_args = 1.., conflicts_with_all = ["all", "offline", "prune", "json"])]
    forget: Vec<String>,
    /// Print one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// The state of a task, as far as is known.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// The call was sent, and no reply was seen.
    Sent,
    /// What the server reported now, or when it was asked last.
    Known { status: Status, message: Option<String>, is_fresh: bool },
    /// The server does not know it.
    Gone,
}

impl State {
    fn of(entry: &Entry) -> Self {
        match (entry.status, &entry.reference.task) {
            (Some(status), _) => Self::Known { status, message: entry.message.clone(), is_fresh: entry.ended },
            (None, Some(_)) => Self::Known { status: Status::Working, message: None, is_fresh: false },
            (None, None) => Self::Sent,
        }
    }

    fn is_over(&self) -> bool {
        match self {
            Self::Sent => false,
            Self::Known { status, .. } => status.is_terminal(),
            Self::Gone => true,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Known { status, .. } => status.as_str(),
            Self::Gone => "gone",
        }
    }

    fn is_fresh(&self) -> bool {
        !matches!(self, Self::Sent | Self::Known { is_fresh: false, .. })
    }

    fn cell(&self, paint: Paint) -> Cell {
        let doubt = if matches!(self, Self::Known { is_fresh: false, .. }) { "?" } else { "" };
        let text = format!("{}{doubt}", self.name());
        let painted = match self {
            Self::Known { status: Status::Completed, .. } => paint.green(&text),
            Self::Known { status: Status::Failed, .. } => paint.red(&text),
            Self::Known { status: Status::InputRequired, .. } => paint.yellow(&text),
            Self::Known { status: Status::Working, .. } => paint.bold(&text),
            _ => paint.dim(&text),
        };
        Cell::painted(&text, painted)
    }
}

/// A line of the list.
#[derive(Debug)]
struct Row {
    entry: Entry,
    state: State,
    server: String,
    prefix: String,
}

/// The same for programs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct EntryObject<'a> {
    task_id: Option<&'a str>,
    server: &'a str,
    era: String,
    tool: &'a str,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    created_at: String,
    updated_at: String,
    fresh: bool,
    prefix: &'a str,
}

impl Row {
    fn object(&self) -> EntryObject<'_> {
        let reference = &self.entry.reference;
        let message = match &self.state {
            State::Known { message, .. } => message.as_deref(),
            State::Sent | State::Gone => None,
        };
        EntryObject {
            task_id: reference.task.as_deref(),
            server: &reference.server,
            era: reference.era.to_string(),
            tool: &reference.tool,
            status: self.state.name(),
            message,
            created_at: self.entry.created_at.to_string(),
            updated_at: self.entry.updated_at.to_string(),
            fresh: self.state.is_fresh(),
            prefix: &self.prefix,
        }
    }

    fn cells(&self, now: Timestamp, paint: Paint) -> Vec<Cell> {
        vec![
            short_duration(now.since(self.entry.created_at)).into(),
            self.state.cell(paint),
            escape::line(&self.entry.reference.tool).into(),
            escape::line(&self.server).into(),
            shell_word(&self.prefix).into(),
        ]
    }

    /// Whether nobody will come back to it: it is over, or it never had a reply and the server does not remember it any more.
    fn can_be_forgotten(&self, now: Timestamp) -> bool {
        self.state.is_over() || (self.state == State::Sent && now.since(self.entry.created_at) > KEEP_UNANSWERED_FOR)
    }

    fn is_shown(&self, now: Timestamp) -> bool {
        !self.state.is_over() || now.since(self.entry.updated_at) <= SHOW_ENDED_FOR
    }
}

impl Tasks {
    pub(crate) async fn run(self) -> Result<Exit, Problem> {
        let user = UserData::open()?;
        if let Some(server) = &self.server {
            return listing::show(&self, &user, server).await;
        }
        let ledger = user.ledger()?;
        if !self.forget.is_empty() {
            return self.forget_listed(&user);
        }
        let entries = ledger.entries()?;
        let mut states: BTreeMap<EntryId, State> = entries.iter().map(|entry| (entry.id, State::of(entry))).collect();
        if !self.offline {
            for (id, seen) in self.refresh(&user, &entries).await? {
                if let State::Known { status, message, .. } = &seen {
                    ledger.update_status(id, *status, message.as_deref(), SystemClock.now())?;
                }
                states.insert(id, seen);
            }
        }
        let mut rows = rows(&user, entries, &states);
        if self.prune {
            let (over, rest): (Vec<Row>, Vec<Row>) = rows.into_iter().partition(|row| row.can_be_forgotten(SystemClock.now()));
            for row in &over {
                ledger.remove(row.entry.id)?;
            }
            say_forgotten(over.len());
            rows = rest;
        }
        let now = SystemClock.now();
        let total = rows.len();
        rows.retain(|row| self.all || row.is_shown(now));
        stdout::print(&self.text(&rows, now)?)?;
        self.hint(&rows, total);
        Ok(Exit::Done)
    }

    fn forget_listed(&self, user: &UserData) -> Result<Exit, Problem> {
        // Find all of them before any is forgotten.
        let find = |task: &String| {
            let entry = user.find(task)?.entry;
            entry.ok_or_else(|| Problem::usage(format!("`{task}` is not in the list: `taskwire tasks --all` shows all that is")))
        };
        let entries = self.forget.iter().map(find).collect::<Result<Vec<Entry>, Problem>>()?;
        for entry in &entries {
            user.ledger()?.remove(entry.id)?;
        }
        say_forgotten(entries.len());
        Ok(Exit::Done)
    }

    fn text(&self, rows: &[Row], now: Timestamp) -> Result<String, Problem> {
        if self.json {
            let line = |row: &Row| serde_json::to_string(&row.object()).map(|line| escape::json(line) + "\n");
            return rows.iter().map(line).collect::<Result<_, _>>().map_err(|error| Problem::protocol(error.to_string()));
        }
        let surroundings = Terminal::detect();
        let cells = rows.iter().map(|row| row.cells(now, surroundings.stdout_paint()));
        Ok(table::text(&["AGE", "STATUS", "TOOL", "SERVER", "TASK"], cells, LastColumn::Whole, surroundings))
    }

    /// Prints what the user may want to do next.
    fn hint(&self, rows: &[Row], total: usize) {
        if self.json {
            return;
        }
        // A call that was only sent may not be found again.
        let text = match rows.iter().find(|row| !row.state.is_over() && row.state != State::Sent) {
            Some(row) => format!("go on with: taskwire watch {}", shell_word(&row.prefix)),
            None if !rows.is_empty() => return,
            None if total > 0 => "nothing is running: `taskwire tasks --all` shows what has ended".to_owned(),
            None => "no tasks: `taskwire call SERVER TOOL` starts one".to_owned(),
        };
        stderr::write(&format!("taskwire: {text}\n"));
    }

    /// Asks all servers at once for the tasks that have not ended. A server that does not reply in time is skipped.
    async fn refresh(&self, user: &UserData, entries: &[Entry]) -> Result<Vec<(EntryId, State)>, Problem> {
        let groups = group_by_server(entries);
        let mut addresses: Vec<&str> = groups.iter().map(|(session, _)| session.server).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let is_one_of_many = addresses.len() > 1;
        if is_one_of_many && self.connection.has_server_options() {
            return Err(Problem::usage(format!(
                "--token, --oauth, --header and --era are for one server, and these tasks are at {}: say it in client.toml",
                addresses.len()
            )));
        }
        let mut asking = JoinSet::new();
        for (group, tasks) in groups {
            let Ok(server) = user.config.find(group.server) else { continue };
            let session = group.session.map(ToOwned::to_owned);
            let needs = ConnectionNeeds { era: Some(group.era), session, is_unattended: true, is_one_of_many, ..user.connection_needs() };
            asking.spawn(fetch_states(self.connection.clone(), server, needs, tasks));
        }
        let mut seen = Vec::new();
        while let Some(states) = asking.join_next().await {
            seen.extend(states.unwrap_or_default());
        }
        Ok(seen)
    }
}

fn say_forgotten(count: usize) {
    stderr::write(&format!("taskwire: forgot {count} {}\n", if count == 1 { "task" } else { "tasks" }));
}

/// Tasks that can be asked about together: a server of the legacy era may show them only to the session that began them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ServerSession<'a> {
    server: &'a str,
    era: Era,
    session: Option<&'a str>,
}

/// The tasks that can be asked about, by server and session.
fn group_by_server(entries: &[Entry]) -> Vec<(ServerSession<'_>, Vec<(EntryId, String)>)> {
    let mut groups: Vec<(ServerSession<'_>, Vec<(EntryId, String)>)> = Vec::new();
    for entry in entries.iter().filter(|entry| !entry.ended).take(REFRESHED_MAX) {
        let reference = &entry.reference;
        let Some(task) = reference.task.clone().filter(|_| !reference.server.starts_with("stdio:")) else { continue };
        let group = ServerSession { server: &reference.server, era: reference.era, session: reference.session.as_deref() };
        match groups.iter_mut().find(|(other, _)| *other == group) {
            Some((_, tasks)) => tasks.push((entry.id, task)),
            None => groups.push((group, vec![(entry.id, task)])),
        }
    }
    groups
}

/// Asks one server about its tasks.
async fn fetch_states(
    connection: ConnectionArgs,
    server: Server,
    needs: ConnectionNeeds,
    tasks: Vec<(EntryId, String)>,
) -> Vec<(EntryId, State)> {
    let Ok(Ok(client)) = timeout(SERVER_TIMEOUT, connection.open(&server, needs)).await else { return Vec::new() };
    let mut asking = JoinSet::new();
    for (id, task) in tasks {
        let client = client.clone();
        asking.spawn(async move { (id, timeout(SERVER_TIMEOUT, client.task(&task)).await) });
    }
    let mut seen = Vec::new();
    while let Some(asked) = asking.join_next().await {
        if let Ok((id, Ok(answer))) = asked {
            seen.extend(state_in_reply(answer).map(|state| (id, state)));
        }
    }
    let _ = timeout(SERVER_TIMEOUT, client.close()).await;
    seen
}

/// The state that a reply reports, if any.
fn state_in_reply(answer: Result<TaskSnapshot, client::Error>) -> Option<State> {
    match answer {
        Ok(task) => Some(State::Known { status: task.status, message: task.message, is_fresh: true }),
        Err(client::Error::TaskNotFound { .. }) => Some(State::Gone),
        Err(_) => None,
    }
}

fn rows(user: &UserData, entries: Vec<Entry>, states: &BTreeMap<EntryId, State>) -> Vec<Row> {
    // In sorted order, the names with the longest common prefix are neighbours.
    let mut names: Vec<String> = entries.iter().map(|entry| id_or_key(&entry.reference).to_owned()).collect();
    names.sort_unstable();
    names.dedup();
    let row = |entry: Entry| {
        let server = user.config.find(&entry.reference.server).map_or_else(|_| entry.reference.server.clone(), |server| server.name());
        let server = without_query(&server);
        let name = id_or_key(&entry.reference);
        let at = names.partition_point(|other| other.as_str() < name);
        let beside = names.iter().skip(at.saturating_sub(1)).take(3).map(String::as_str);
        let prefix = prefix(name, beside).to_owned();
        let state = states.get(&entry.id).cloned().unwrap_or_else(|| State::of(&entry));
        Row { entry, state, server, prefix }
    };
    entries.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is(status: Status, is_fresh: bool) -> State {
        State::Known { status, message: None, is_fresh }
    }

    #[test]
    fn a_task_that_its_server_does_not_know_is_gone_and_one_that_cannot_be_asked_stays_as_it_was() {
        assert_eq!(state_in_reply(Err(client::Error::TaskNotFound { task: "t".to_owned() })), Some(State::Gone));
        assert_eq!(state_in_reply(Err(client::Error::Closed)), None);
    }

    #[test]
    fn what_is_over_can_be_forgotten() {
        for over in [State::Gone, is(Status::Completed, true), is(Status::Failed, false), is(Status::Cancelled, true)] {
            assert!(over.is_over(), "{over:?}");
        }
        for open in [State::Sent, is(Status::Working, true), is(Status::InputRequired, false)] {
            assert!(!open.is_over(), "{open:?}");
        }
    }

    #[test]
    fn a_state_that_is_not_fresh_is_in_doubt() {
        let shown = |state: &State| {
            let row = vec![state.cell(Paint::plain())];
            table::lines(&[row], LastColumn::Whole, None, true).concat()
        };
        assert_eq!(shown(&is(Status::Working, false)), "working?");
        assert_eq!(shown(&is(Status::InputRequired, true)), "input_required");
        assert_eq!((shown(&State::Gone), shown(&State::Sent)), ("gone".to_owned(), "sent".to_owned()));
    }
}
