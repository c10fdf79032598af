//! What this user has on disk (`client.toml` and the ledger), and how a word on the command line finds a task.

use taskwire::client::{self, Client, Entry, Era, Ledger, Reference};

use super::{
    client_config::{ClientConfig, Server},
    connection::{ConnectionArgs, ConnectionNeeds},
    exit::Problem,
};
use crate::term::paint::shell_word;

/// Characters that a prefix has at least: a shorter one would soon match other tasks as well.
const PREFIX_CHARS_MIN: usize = 12;
/// Names that are listed when several match.
const CANDIDATES_MAX: usize = 10;

#[derive(Debug)]
pub(crate) struct UserData {
    pub(crate) config: ClientConfig,
    ledger: Result<Ledger, client::Error>,
}

/// A task that somebody named, and its server.
#[derive(Debug)]
pub(crate) struct FoundTask {
    pub(crate) reference: Reference,
    pub(crate) entry: Option<Entry>,
    server: Server,
    /// Whether the task's era is known.
    is_era_known: bool,
}

impl UserData {
    pub(crate) fn open() -> Result<Self, Problem> {
        Ok(Self { config: ClientConfig::read()?, ledger: Ledger::of_user() })
    }

    /// The ledger of this user.
    pub(crate) fn ledger(&self) -> Result<&Ledger, Problem> {
        self.ledger.as_ref().map_err(|error| error.clone().into())
    }

    /// The same, for commands that can do without.
    pub(crate) fn ledger_if_any(&self) -> Result<&Ledger, &client::Error> {
        self.ledger.as_ref()
    }

    /// What every connection gets from the user's data.
    pub(crate) fn connection_needs(&self) -> ConnectionNeeds {
        ConnectionNeeds { sign_in_dir: self.ledger.as_ref().ok().map(|ledger| ledger.dir().to_owned()), ..ConnectionNeeds::default() }
    }

    /// The task that an id, a prefix of it, or `SERVER#ID` means.
    pub(crate) fn find(&self, task: &str) -> Result<FoundTask, Problem> {
        if let Some((server, id)) = split(task) {
            return self.task_at(self.config.find(server)?, id);
        }
        let found = match &self.ledger {
            Ok(ledger) => find_entry(ledger, task),
            Err(error) => Err(error.clone()),
        };
        match (found, self.config.default_server()) {
            (Ok(entry), _) => self.found_entry(entry),
            // A task that was not started from here may be known to the default server.
            (Err(client::Error::NoSuchEntry { .. } | client::Error::Ledger(_)), Some(server)) => self.task_at(server, task),
            (Err(error), _) => Err(error.into()),
        }
    }

    /// The latest task that was started from here and has not ended as far as is known; else the latest.
    pub(crate) fn latest(&self) -> Result<FoundTask, Problem> {
        let mut entries = self.ledger()?.entries()?;
        entries.retain(|entry| entry.reference.task.is_some());
        if entries.is_empty() {
            return Err(Problem::usage("no task was started from here: `taskwire call SERVER TOOL` starts one"));
        }
        let at = entries.iter().position(|entry| !entry.ended).unwrap_or(0);
        self.found_entry(entries.swap_remove(at))
    }

    /// A task of the ledger.
    fn found_entry(&self, entry: Entry) -> Result<FoundTask, Problem> {
        let server = self.config.find(&entry.reference.server)?;
        Ok(FoundTask { reference: entry.reference.clone(), entry: Some(entry), server, is_era_known: true })
    }

    /// A task of this server, whether or not the ledger has it.
    fn task_at(&self, server: Server, id: &str) -> Result<FoundTask, Problem> {
        let address = server.target.to_string();
        let entry = match &self.ledger {
            Ok(ledger) => entry_on_server(ledger, &address, id)?,
            Err(_) => None,
        };
        let is_era_known = entry.is_some();
        let unknown = || Reference::of_task(&address, Era::Modern, id);
        let reference = entry.as_ref().map_or_else(unknown, |entry| entry.reference.clone());
        Ok(FoundTask { reference, entry, server, is_era_known })
    }

    /// Connects to the server of a task.
    pub(crate) async fn connect(&self, found: &mut FoundTask, connection: &ConnectionArgs, stream: bool) -> Result<Client, Problem> {
        let era = found.is_era_known.then_some(found.reference.era);
        let session = found.reference.session.clone();
        let needs = ConnectionNeeds { ledger: self.ledger.as_ref().ok().cloned(), era, session, stream, ..self.connection_needs() };
        let client = connection.open(&found.server, needs).await?;
        found.reference.era = client.server_info().era;
        Ok(client)
    }

    /// The task's name on the command line: a prefix of its id that no other task of this user has.
    pub(crate) fn short_name(&self, reference: &Reference) -> String {
        let id = id_or_key(reference);
        let others = match &self.ledger {
            Ok(ledger) => ledger.entries().unwrap_or_default(),
            Err(_) => return shell_word(&reference.to_string()),
        };
        let is_known = reference.task.is_none() || others.iter().any(|entry| id_or_key(&entry.reference) == id);
        match self.config.find(&reference.server) {
            Ok(server) if !is_known => shell_word(&self.name_on_server(&server, id)),
            _ => shell_word(prefix(id, others.iter().map(|entry| id_or_key(&entry.reference)))),
        }
    }

    /// The name of a task that was not started from here: its id alone works for the default server only.
    pub(crate) fn name_on_server(&self, server: &Server, id: &str) -> String {
        let is_default = self.config.default_server().is_some_and(|default| default.target.to_string() == server.target.to_string());
        if is_default { id.to_owned() } else { format!("{}#{id}", server.name()) }
    }
}

/// The task of this name. A user who left a call before it was a task was shown its key, which must still find it.
fn find_entry(ledger: &Ledger, name: &str) -> Result<Entry, client::Error> {
    let found = ledger.find(name);
    if !matches!(found, Err(client::Error::NoSuchEntry { .. })) || name.len() < PREFIX_CHARS_MIN {
        return found;
    }
    let was_told = |entry: &Entry| entry.reference.key.as_deref().is_some_and(|key| key.starts_with(name));
    ledger.entries()?.into_iter().find(was_told).map_or(found, Ok)
}

/// The task of this server with this id, or the only one that begins so.
fn entry_on_server(ledger: &Ledger, server: &str, id: &str) -> Result<Option<Entry>, Problem> {
    if let Some(entry) = ledger.entry(server, id)? {
        return Ok(Some(entry));
    }
    let begins_so = |entry: &Entry| entry.reference.server == server && id_or_key(&entry.reference).starts_with(id);
    let mut found: Vec<Entry> = ledger.entries()?.into_iter().filter(begins_so).collect();
    if found.len() > 1 {
        let label = |entry: &Entry| format!("{} ({})", id_or_key(&entry.reference), entry.reference.tool);
        let candidates = found.iter().take(CANDIDATES_MAX).map(label).collect();
        return Err(client::Error::Ambiguous { prefix: id.to_owned(), candidates }.into());
    }
    match found.pop() {
        // Only a search by key returns the arguments.
        Some(entry) if entry.reference.task.is_none() => Ok(Some(ledger.find(id_or_key(&entry.reference))?)),
        found => Ok(found),
    }
}

/// A server as it is shown: the query of its address may be a secret.
pub(crate) fn without_query(server: &str) -> String {
    match server.split_once('?') {
        Some((address, _)) if !server.starts_with("stdio:") => format!("{address}?…"),
        _ => server.to_owned(),
    }
}

/// The id of a task; the key of its call, if it is no task yet.
pub(crate) fn id_or_key(reference: &Reference) -> &str {
    reference.task.as_deref().or(reference.key.as_deref()).unwrap_or_default()
}

/// The server and the id of `SERVER#ID`.
fn split(task: &str) -> Option<(&str, &str)> {
    task.rsplit_once('#').filter(|(server, id)| !server.is_empty() && !id.is_empty())
}

/// The shortest prefix of `id` that none of the others has.
pub(crate) fn prefix<'a>(id: &'a str, others: impl Iterator<Item = &'a str>) -> &'a str {
    let common = |other: &str| id.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
    let chars = others.filter(|other| *other != id).map(|other| common(other) + 1).max().unwrap_or(0).max(PREFIX_CHARS_MIN);
    id.char_indices().nth(chars).map_or(id, |(end, _)| &id[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_of_another_server_is_named_with_it() {
        assert_eq!(split("http://h/mcp#01k"), Some(("http://h/mcp", "01k")));
        assert_eq!(split("stdio:x 'a#b'#01k"), Some(("stdio:x 'a#b'", "01k")));
        for task in ["01k", "#01k", "http://h/mcp#"] {
            assert_eq!(split(task), None, "{task}");
        }
    }

    #[test]
    fn a_prefix_is_as_long_as_it_must_be() {
        let id = "01kabcdefghijklmnopq";
        assert_eq!(prefix(id, [id].into_iter()), "01kabcdefghi");
        assert_eq!(prefix(id, [id, "01kabcdefghijklzzzz", "zzz"].into_iter()), "01kabcdefghijklm");
        assert_eq!(prefix("short", ["short", "shorter"].into_iter()), "short");
    }
}
