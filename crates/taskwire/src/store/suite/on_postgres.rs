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

/// The database plans a prepared statement once, here while its tables are empty.
#[test]
#[ignore = "needs PostgreSQL"]
fn tables_that_have_grown_are_not_read_whole_by_what_was_planned_while_they_were_empty() {
    /// More often than a statement is planned anew before its plan is kept.
    const ROUNDS: u8 = 10;
    let nodes = InPostgres::new(18);
    let mut store = nodes.open("node");
    let mut round = |from: u8| {
        for name in from..from + ROUNDS {
            let spec = Spec { linger_key: Some("k".into()), hidden: true, ..spec() };
            let mut driver = shared::created(&mut store, name, spec);
            shared::commit(&mut store, &mut driver, &ends()[0]);
            let reader = store.reader();
            assert!(reader.task(driver.id).wait().expect("readable").is_some());
            assert!(reader.same_calls(&CallerId::new("me"), true, "k", 10).wait().expect("readable").is_empty());
            assert!(reader.due_tasks(Timestamp::from_millis(0), None, 10).wait().expect("readable").is_empty());
        }
    };
    round(1);
    let columns = "id, caller, epoch, version, next_seq, blocks, output_bytes, stored_bytes";
    let id = "decode(lpad(to_hex(n), 40, '0'), 'hex')";
    nodes.0.psql(&format!("INSERT INTO taskwire.task({columns}) SELECT {id}, 'x', 1, 1, 0, 0, 0, 0 FROM generate_series(1, 20000) AS n"));
    round(1 + ROUNDS);
    drop(store);
    // A session that ends says what it has read.
    while nodes.0.psql("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()") != "0" {}
    let read = nodes.0.psql("SELECT seq_tup_read FROM pg_stat_user_tables WHERE schemaname = 'taskwire' AND relname = 'task'");
    assert!(read.parse::<u64>().expect("a number") < 20_000, "{read} rows were read that no index had found");
}
