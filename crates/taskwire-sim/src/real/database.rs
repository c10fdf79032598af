//! The PostgreSQL of a real world, and who ends connections there.

use std::{fmt, str::FromStr, thread, time::Duration};

use anyhow::Context;
use taskwire::{
    core::TaskId,
    store::{PostgresConfig, PostgresStore, Reader, Store},
};
use taskwire_testkit::{Installation, Server};
use tokio::{
    runtime::{Builder, Runtime},
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// Connections of one node for readers. It has seven more, and all nodes together may have a hundred.
const CONNECTIONS: usize = 8;
/// How long a statement of the world itself may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How often the world looks, and how long it waits between, until the database has noticed that nodes are gone.
const LOOKS_MAX: usize = 400;
const LOOK_DELAY: Duration = Duration::from_millis(50);
/// Connections that wait to be ended.
const CUTS_MAX: usize = 64;
/// How often it is looked for a commit that is to be cut off. Each time takes about a millisecond.
const COMMIT_LOOKS_MAX: usize = 20;

/// Where the database of a real world is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreAt {
    /// A server of this version, which the world starts, and ends now and then.
    Own(u32),
    /// At this URL, where others may use it, too.
    Given(String),
}

impl FromStr for StoreAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            return Ok(Self::Given(text.to_owned()));
        }
        let version = text.strip_prefix("postgres:").and_then(|version| version.parse().ok());
        version.map(Self::Own).ok_or_else(|| "`postgres:18`, `postgres:15` or the URL of a database".to_owned())
    }
}

/// As an argument, but for an URL: that may have a password.
impl fmt::Display for StoreAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(version) => write!(f, "postgres:{version}"),
            Self::Given(_) => f.write_str("postgres://…"),
        }
    }
}

/// What a node is called, as the database shows it.
fn application(tag: &str, node: usize) -> String {
    format!("taskwire {tag}-n{node}")
}

/// The database.
pub(crate) struct Database {
    /// That of the world itself, if it has one.
    server: Option<Server>,
    url: String,
    /// The name of the schema; the names of the nodes begin with it, too. No other world has it.
    tag: String,
    runtime: Runtime,
    session: Session,
}

impl Database {
    /// Starts it, if it is not there already.
    pub(crate) fn open(at: &StoreAt, tag: String) -> Result<Self, anyhow::Error> {
        let (server, url) = match at {
            StoreAt::Own(version) => {
                let server = Server::start_fast(&Installation::find(*version).map_err(anyhow::Error::msg)?);
                let url = server.url();
                (Some(server), url)
            }
            StoreAt::Given(url) => (None, url.clone()),
        };
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self { server, session: Session::new(&url), url, tag, runtime })
    }

    /// Whether it can be ended.
    pub(crate) fn is_own(&self) -> bool {
        self.server.is_some()
    }

    /// Ends it at once, in the middle of whatever it does. What was committed is there when it starts again.
    pub(crate) fn end(&mut self) {
        if let Some(server) = &mut self.server {
            server.stop_immediate();
        }
    }

    pub(crate) fn start_again(&mut self) {
        if let Some(server) = &mut self.server {
            server.start_again();
        }
    }

    /// How the node of this number reaches it.
    pub(crate) fn config_of_node(&self, node: usize) -> PostgresConfig {
        self.config(&format!("n{node}"))
    }

    fn config(&self, name: &str) -> PostgresConfig {
        let config = PostgresConfig::new(self.url.as_str(), &format!("{}-{name}", self.tag));
        PostgresConfig { schema: self.tag.clone(), max_connections: CONNECTIONS, ..config }
    }

    /// What a statement returns: the first value of each row.
    fn query(&mut self, sql: &str) -> Result<Vec<String>, anyhow::Error> {
        self.runtime.block_on(self.session.query(sql))
    }

    fn count(&mut self, sql: &str) -> Result<u64, anyhow::Error> {
        Ok(self.query(sql)?.first().context("a count has one row")?.parse()?)
    }

    /// How many tasks have not ended.
    pub(crate) fn open_tasks(&mut self) -> Result<u64, anyhow::Error> {
        self.count(&format!("SELECT count(*) FROM {}.task WHERE ended IS NULL", self.tag))
    }

    /// All tasks that are kept.
    pub(crate) fn all_tasks(&mut self) -> Result<Vec<TaskId>, anyhow::Error> {
        let ids = self.query(&format!("SELECT encode(id, 'hex') FROM {}.task ORDER BY id", self.tag))?;
        ids.iter().map(|hex| id_of(hex).with_context(|| format!("`{hex}` is no id of a task"))).collect()
    }

    /// Waits until the database has noticed that all nodes are gone. What they sent is done then, or never will be.
    pub(crate) fn wait_until_left(&mut self) -> Result<(), anyhow::Error> {
        let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'taskwire {}-n%'", self.tag);
        for _ in 0..LOOKS_MAX {
            if self.count(&sql)? == 0 {
                return Ok(());
            }
            thread::sleep(LOOK_DELAY);
        }
        anyhow::bail!("the database has not noticed that all nodes are gone")
    }

    /// Reads what is stored as everybody reads it.
    pub(crate) fn read<T>(&self, read: impl AsyncFnOnce(&dyn Reader) -> Result<T, anyhow::Error>) -> Result<T, anyhow::Error> {
        self.runtime.block_on(async {
            let store = PostgresStore::open(self.config("reader")).await?;
            let reader = store.reader();
            read(&*reader).await
        })
    }

    /// Removes what the world has stored where others may store, too.
    pub(crate) fn clear(&mut self) -> Result<(), anyhow::Error> {
        if self.server.is_none() {
            self.query(&format!("DROP SCHEMA {} CASCADE", self.tag))?;
        }
        Ok(())
    }
}

/// The task whose id this is, in hexadecimal digits.
fn id_of(hex: &str) -> Option<TaskId> {
    let byte = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
    let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect::<Option<_>>()?;
    TaskId::from_bytes(&bytes)
}

/// A connection of the world itself.
struct Session {
    url: String,
    /// None before the first statement, and after one that failed.
    client: Option<Client>,
}

impl Session {
    fn new(url: &str) -> Self {
        Self { url: url.to_owned(), client: None }
    }

    /// What a statement returns: the first value of each row.
    async fn query(&mut self, sql: &str) -> Result<Vec<String>, anyhow::Error> {
        if let Ok(values) = self.try_query(sql).await {
            return Ok(values);
        }
        // The connection may have died since it was last used. The next one is new.
        self.try_query(sql).await
    }

    async fn try_query(&mut self, sql: &str) -> Result<Vec<String>, anyhow::Error> {
        let asked = async {
            let client = match self.client.take().filter(|client| !client.is_closed()) {
                Some(client) => client,
                None => connect(&self.url).await?,
            };
            let answer = client.simple_query(sql).await?;
            self.client = Some(client);
            Ok::<_, anyhow::Error>(answer.iter().filter_map(first_value).collect())
        };
        timeout(TIMEOUT, asked).await?
    }
}

async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // The client hears of its errors, too.
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

fn first_value(message: &SimpleQueryMessage) -> Option<String> {
    match message {
        SimpleQueryMessage::Row(row) => row.try_get(0).ok().flatten().map(str::to_owned),
        _ => None,
    }
}

/// What is to be ended.
#[derive(Debug)]
enum Cut {
    /// All connections of this node.
    All(usize),
    /// The one on which this node commits, so long from now on.
    Commit(usize, Duration),
}

/// Ends connections of nodes, behind their backs.
#[derive(Debug, Clone)]
pub(crate) struct Cutter(mpsc::Sender<Cut>);

impl Cutter {
    /// Starts a thread for it.
    pub(crate) fn start(database: &Database) -> Result<Self, anyhow::Error> {
        let (sender, cuts) = mpsc::channel(CUTS_MAX);
        let (session, tag) = (Session::new(&database.url), database.tag.clone());
        let runtime = Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("cutter".to_owned()).spawn(move || runtime.block_on(cut(session, tag, cuts)))?;
        Ok(Self(sender))
    }

    /// Ends all connections of a node.
    pub(crate) fn end_all(&self, node: usize) {
        // If so many wait already, one more makes no difference.
        let _ = self.0.try_send(Cut::All(node));
    }

    /// Ends the connection on which a node commits, so long from now on.
    pub(crate) fn end_commit(&self, node: usize, after: Duration) {
        let _ = self.0.try_send(Cut::Commit(node, after));
    }
}

/// Ends connections, until nobody can ask for that any more.
async fn cut(mut session: Session, tag: String, mut cuts: mpsc::Receiver<Cut>) {
    while let Some(cut) = cuts.recv().await {
        let (node, which, looks) = match cut {
            Cut::All(node) => (node, "", 1),
            Cut::Commit(node, after) => {
                sleep(after).await;
                // Only who writes has the number of a transaction.
                (node, " AND backend_xid IS NOT NULL", COMMIT_LOOKS_MAX)
            }
        };
        let name = application(&tag, node);
        let sql = format!("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = '{name}'{which}");
        for _ in 0..looks {
            // A database that is away serves nobody.
            let ended = session.query(&sql).await.unwrap_or_default();
            if ended.first().is_some_and(|count| count != "0") {
                break;
            }
        }
    }
}
