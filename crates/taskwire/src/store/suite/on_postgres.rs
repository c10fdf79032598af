//! The suite on real PostgreSQL servers.

use std::{cell::RefCell, rc::Rc};

use taskwire_testkit::{Installation, Server};

use super::{shared::Shared, *};
use crate::store::{PostgresConfig, PostgresStore};

suite!(postgres_15, |dir| open(15, dir), ignore = "needs PostgreSQL");
suite!(postgres_18, |dir| open(18, dir), ignore = "needs PostgreSQL");

thread_local! {
    /// The server that each directory stands for.
    static SERVERS: RefCell<BTreeMap<PathBuf, Rc<Server>>> = RefCell::default();
}

fn started(version: u32) -> Server {
    Server::start_fast(&Installation::find(version).unwrap_or_else(|missing| panic!("{missing}")))
}

fn open(version: u32, dir: &Path) -> Result<PostgresStore, Error> {
    let server = SERVERS.with_borrow_mut(|servers| servers.entry(dir.to_owned()).or_insert_with(|| Rc::new(started(version))).clone());
    PostgresStore::open(PostgresConfig::new(server.url(), "node")).wait()
}

/// The store in one directory goes on in another one.
pub(super) fn moved(from: &Path, to: &Path) {
    SERVERS.with_borrow_mut(|servers| {
        if let Some(server) = servers.get(from).cloned() {
            servers.insert(to.to_owned(), server);
        }
    });
}

/// Nodes on one server.
pub(super) struct InPostgres(Server);

impl InPostgres {
    pub(super) fn new(version: u32) -> Self {
        Self(started(version))
    }
}

impl Shared for InPostgres {
    type Store = PostgresStore;

    fn open(&self, name: &str) -> PostgresStore {
        PostgresStore::open(PostgresConfig::new(self.0.url(), name)).wait().expect("it opens")
    }

    fn expire(&self, epochs: &[Epoch]) {
        let epochs: Vec<String> = epochs.iter().map(|epoch| epoch.0.to_string()).collect();
        let now = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint";
        self.0.psql(&format!("UPDATE taskwire.node SET expires = {now} - 1 WHERE epoch IN ({})", epochs.join(", ")));
    }
}
