//! `taskwire tasks SERVER`: the caller's tasks there, whoever started them.

use taskwire::{
    client::{Client, Entry, ListedTask},
    clock::{Clock, SystemClock},
};
use taskwire_core::Timestamp;

use super::{State, Tasks};
use crate::{
    client::{
        client_config::Server,
        connection::close,
        exit::{Exit, Problem},
        user_data::{UserData, id_or_key, prefix},
    },
    cmd::get,
    term::{
        escape,
        paint::{Terminal, parse_time, shell_word, short_duration},
        stderr, stdout,
        table::{self, Cell, LastColumn},
    },
};

/// Pages that are followed at most.
const PAGES_MAX: usize = 1000;

/// A task of the list, with what the ledger knows of it.
struct Row {
    listed: ListedTask,
    /// The tool's name, from the server or from the ledger.
    tool: Option<String>,
    /// The task's name on the command line.
    name: String,
}

impl Row {
    fn new(user: &UserData, server: &Server, entries: &[Entry], listed: ListedTask) -> Self {
        let (address, id) = (server.target.to_string(), listed.snapshot.id.as_str());
        let known = entries.iter().find(|entry| entry.reference.server == address && entry.reference.task.as_deref() == Some(id));
        let name = match known {
            Some(_) => prefix(id, entries.iter().map(|entry| id_or_key(&entry.reference))).to_owned(),
            None => user.name_on_server(server, id),
        };
        let of_entry = || known.map(|entry| entry.reference.tool.clone()).filter(|tool| !tool.is_empty());
        let tool = listed.tool.clone().or_else(of_entry);
        Self { listed, tool, name }
    }

    fn cells(&self, now: Timestamp, surroundings: Terminal) -> Vec<Cell> {
        let task = &self.listed.snapshot;
        let state = State::Known { status: task.status, message: None, is_fresh: true };
        vec![
            parse_time(&task.created_at).map_or_else(|| "?".to_owned(), |at| short_duration(now.since(at))).into(),
            state.cell(surroundings.stdout_paint()),
            escape::line(self.tool.as_deref().unwrap_or("-")).into(),
            shell_word(&escape::line(&self.name)).into(),
        ]
    }
}

/// All tasks of the list, or those of its first page, and whether there are more.
async fn pages(client: &Client, all: bool) -> Result<(Vec<ListedTask>, bool), Problem> {
    let (mut tasks, mut cursor) = (Vec::new(), None::<String>);
    for _ in 0..PAGES_MAX {
        let page = client.list_tasks(cursor.as_deref()).await?;
        tasks.extend(page.tasks);
        cursor = page.next_cursor;
        if cursor.is_none() || !all {
            return Ok((tasks, cursor.is_some()));
        }
    }
    Err(Problem::protocol(format!("the server's list of tasks has more than {PAGES_MAX} pages")))
}

/// Shows the tasks of the server that is called `name` here.
pub(super) async fn show(tasks: &Tasks, user: &UserData, name: &str) -> Result<Exit, Problem> {
    let server = user.config.find(name)?;
    let client = tasks.connection.open(&server, user.connection_needs()).await?;
    let (listed, is_more) = pages(&client, tasks.all).await?;
    // Without a ledger, the server's list can still be shown.
    let entries = user.ledger_if_any().ok().and_then(|ledger| ledger.entries().ok()).unwrap_or_default();
    let rows: Vec<Row> = listed.into_iter().map(|listed| Row::new(user, &server, &entries, listed)).collect();
    let text = if tasks.json {
        let (address, era) = (server.target.to_string(), client.server_info().era);
        let object = |row: &Row| serde_json::to_string(&get::TaskObject::state(&address, era, row.tool.as_deref(), &row.listed.snapshot));
        let line = |row: &Row| object(row).map(|line| escape::json(line) + "\n");
        rows.iter().map(line).collect::<Result<String, _>>().map_err(|error| Problem::protocol(error.to_string()))?
    } else {
        let (now, surroundings) = (SystemClock.now(), Terminal::detect());
        let cells = rows.iter().map(|row| row.cells(now, surroundings));
        table::text(&["AGE", "STATUS", "TOOL", "TASK"], cells, LastColumn::Whole, surroundings)
    };
    stdout::print(&text)?;
    if let Some(hint) = hint(&rows, name, is_more, tasks.json) {
        stderr::write(&format!("taskwire: {hint}\n"));
    }
    close(client).await;
    Ok(Exit::Done)
}

/// What the user may want to do next. Programs, too, are told that a list is incomplete.
fn hint(rows: &[Row], name: &str, is_more: bool, json: bool) -> Option<String> {
    if is_more {
        return Some(format!("there are more: taskwire tasks {} --all", shell_word(name)));
    }
    if json {
        return None;
    }
    if rows.is_empty() {
        return Some(format!("{} has no tasks of yours", escape::line(name)));
    }
    let open = rows.iter().find(|row| !row.listed.snapshot.status.is_terminal())?;
    Some(format!("go on with: taskwire watch {}", shell_word(&escape::line(&open.name))))
}
