//! Pages of the caller's tasks, as their server lists them.

use serde::Deserialize;
use taskwire_core::Payload;

use super::TaskSnapshot;

/// A page of the caller's tasks on a server, the latest first.
#[derive(Debug, Clone)]
pub struct TaskPage {
    /// The tasks.
    pub tasks: Vec<ListedTask>,
    /// The cursor of the next page, if there is one.
    pub next_cursor: Option<String>,
}

/// A task of a list.
#[derive(Debug, Clone)]
pub struct ListedTask {
    /// The task without its questions and its result, which come with [`Client::task`](super::Client::task).
    pub snapshot: TaskSnapshot,
    /// The tool that was called, if the server says so.
    pub tool: Option<String>,
}

impl TaskPage {
    /// Reads a page of either era; `ttl` and `poll` are the two member names that differ.
    pub(crate) fn read(raw: &Payload, ttl: &str, poll: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Read {
            tasks: Vec<Payload>,
            #[serde(default, rename = "nextCursor")]
            next_cursor: Option<String>,
        }
        let Read { tasks, next_cursor } = raw.read().map_err(|error| format!("its list of tasks cannot be read: {error}"))?;
        let listed = |raw: &Payload| {
            let snapshot = TaskSnapshot::read(raw, ttl, poll)?;
            let tool = snapshot.raw["tool"].as_str().map(str::to_owned);
            Ok(ListedTask { snapshot, tool })
        };
        Ok(Self { tasks: tasks.iter().map(listed).collect::<Result<_, String>>()?, next_cursor })
    }
}
