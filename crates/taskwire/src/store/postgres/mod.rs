//! PostgreSQL, for nodes that share a store.
//!
//! `schema` has the tables, and `connection` the ways to the database: one connection that writes (`write`, with `rows` and `columns`),
//! some for readers (`read`, `gather`), some for the lease and what else must not wait for readers (`cluster`), one that hears other nodes
//! (`wakeups`). `busy` is one that has not answered yet. `upkeep` makes and drops partitions; `durability` says when the database may lose
//! what it has acknowledged; `transfer` is for moves to and from other stores, `examine` for a look from outside.

mod busy;
mod cluster;
mod columns;
mod config;
mod connection;
mod durability;
mod error;
mod examine;
mod gather;
mod read;
mod rows;
mod schema;
#[cfg(test)]
mod tests;
mod transfer;
mod upkeep;
mod wakeups;
mod write;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use taskwire_core::{CallerId, Epoch, TaskId, task::Task};

use self::{
    cluster::Node,
    connection::{Database, EndOnDrop, Sql},
    read::PostgresReader,
    wakeups::Wakeups,
    write::Writer,
};
use super::{
    Cluster, Error, NodeInfo, Reader, SessionChange, Store, TaskWrite, Usage, Written,
    data_dir::{self, DirLock, EPOCH},
};

pub(super) use self::transfer::PostgresSide;
pub use self::{config::PostgresConfig, error::PostgresError, examine::PostgresFindings};

/// Nodes that write for one caller at one time should have different ones; where two have the same, one waits for the other.
const USAGE_SLOTS: u64 = 16;

const STORED_BYTES: Sql = Sql { text: "SELECT stored_bytes FROM @task WHERE id = $1", types: &[tokio_postgres::types::Type::BYTEA] };

/// Tasks in PostgreSQL, for one of several nodes.
pub struct PostgresStore {
    database: Arc<Database>,
    writer: Writer,
    reader: Arc<PostgresReader>,
    node: Arc<Node>,
    secret: [u8; 32],
    _lock: Option<DirLock>,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("epoch", &self.node.epoch).finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Opens the store, making the tables if there are none. It needs a runtime, and uses it until store, reader and cluster are dropped.
    ///
    /// # Errors
    /// When the database cannot be reached or used, when a newer release has written the tables, or when their tasks were moved elsewhere.
    pub async fn open(config: PostgresConfig) -> Result<Self, Error> {
        Self::open_as(config, None).await
    }

    async fn open_as(config: PostgresConfig, epoch_file: Option<PathBuf>) -> Result<Self, Error> {
        let database = Arc::new(Database::new(config)?);
        database.find_pooler().await?;
        let opened = schema::open(&database).await?;
        schema::check_not_moved(&database).await?;
        upkeep::make_ahead(&database).await?;
        let wakeups = Arc::new(Wakeups::new(&database.config.schema));
        let background = vec![
            EndOnDrop::spawn(wakeups::listen(database.clone(), wakeups.clone())),
            EndOnDrop::spawn(wakeups::send(database.clone(), wakeups.clone())),
            EndOnDrop::spawn(upkeep::keep_up(database.clone())),
        ];
        wakeups.ready().await;
        // Last of all: from then on the lease must be renewed.
        let node = Arc::new(Node::open(database.clone(), wakeups.clone(), background, epoch_file).await?);
        let slot = i16::try_from(node.epoch.0 % USAGE_SLOTS).unwrap_or(0);
        let writer = Writer::new(database.clone(), slot, opened.commits_loosely);
        let reader = Arc::new(PostgresReader::new(database.clone(), wakeups));
        Ok(Self { database, writer, reader, node, secret: opened.secret, _lock: None })
    }

    /// The nodes that use the store at this moment, in the order of their epochs. This process does not become one.
    ///
    /// # Errors
    /// When the database cannot be reached, or has no store.
    pub async fn nodes(config: PostgresConfig) -> Result<Vec<NodeInfo>, Error> {
        cluster::nodes(&Database::new(config)?).await
    }

    /// Looks at the database and the store in it. Nothing is changed.
    ///
    /// # Errors
    /// When the database cannot be reached, or does not answer.
    pub async fn examine(config: PostgresConfig) -> Result<PostgresFindings, Error> {
        examine::examine(Database::new(config)?).await
    }

    /// As [`open`](Self::open), for a process whose commands have their files in `dir`, which no other process may use meanwhile.
    ///
    /// # Errors
    /// As [`open`](Self::open); also when another process has the directory, when it is not this user's alone, or when it has tasks.
    pub async fn open_in(config: PostgresConfig, dir: impl AsRef<Path>) -> Result<Self, Error> {
        let (dir, lock) = data_dir::open_for_node(dir.as_ref())?;
        Ok(Self { _lock: Some(lock), ..Self::open_as(config, Some(dir.join(EPOCH))).await? })
    }
}

impl Store for PostgresStore {
    const BLOCKS: bool = false;

    async fn load(&mut self, id: TaskId) -> Result<Option<Task>, Error> {
        self.writer.settle().await?;
        read::task(&self.database, id).await
    }

    async fn stored_bytes(&mut self, id: TaskId) -> Result<u64, Error> {
        self.writer.settle().await?;
        let rows = self.database.run(&STORED_BYTES, &[&&id.as_bytes()[..]]).await?;
        // A corrupt number must not keep a task from being forgotten.
        Ok(rows.first().and_then(|row| read::number_at(row, 0).ok()).unwrap_or(0))
    }

    async fn commit(&mut self, writes: &[TaskWrite], sessions: &[SessionChange]) -> Result<Vec<Written>, Error> {
        self.writer.commit(writes, sessions).await
    }

    fn epoch(&self) -> Epoch {
        self.node.epoch
    }

    fn secret(&self) -> [u8; 32] {
        self.secret
    }

    fn usage(&self) -> Result<Vec<(CallerId, Usage)>, Error> {
        Ok(Vec::new())
    }

    fn reader(&self) -> Arc<dyn Reader> {
        self.reader.clone()
    }

    fn cluster(&self) -> Option<Arc<dyn Cluster>> {
        Some(self.node.clone())
    }
}
