//! The database is stopped, crashes, is full, slow or cut off, or another one takes over: the nodes go on by themselves, and nothing that
//! was acknowledged is lost or there twice. Tests whose names begin with `postgres_restart`, `pg_backend_kill`, `pool_exhaustion` and
//! `crash_recovery` try what a public benchmark of queues calls so.

mod clock;
mod connections;
mod load;
mod outage;
mod proxy;

use std::{pin::pin, sync::Arc, time::Duration};

use serde_json::json;
use taskwire::{
    clock::SystemClock,
    server::Config,
    store::{Cluster, NodeInfo, PostgresConfig, PostgresStore, Store},
    tool::{Registry, TaskMode},
};
use taskwire_testkit::{Installation, Server};
use tokio::task::block_in_place;

use self::{
    load::Load,
    proxy::{Proxy, until},
};
use crate::{
    kit::{Client, MS, TempDir, TestServer, with_timeout, without_disk_reserve},
    tasks::registry,
    tool_harness::{output, played, run_of, uncoalesced},
};

/// Ends every connection of a node, and says how many that were.
const END_ALL: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'taskwire %'";
/// How many requests are refused while a database is away for a moment, and while all leases end: 15 are made in a second.
const A_MOMENT: u64 = 10;
const LONGER_THAN_A_LEASE: u64 = 105;
/// Writes of one task from far away, each with two round trips: all together they take longer than a lease.
const WRITES_FROM_FAR: u64 = 55;

/// Gives a test a minute: one that hangs fails.
async fn within_a_minute(test: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_secs(60), test).await.expect("it ends within a minute");
}

/// A database with these settings.
fn started(settings: &[&str]) -> Server {
    let installation = Installation::find(18).unwrap_or_else(|missing| panic!("{missing}"));
    let settings = [&["fsync = off"][..], settings].concat();
    block_in_place(|| Server::start_with(&installation, &settings))
}

/// How three nodes reach a database.
fn three_at(url: &str) -> [PostgresConfig; 3] {
    ["a", "b", "c"].map(|name| PostgresConfig::new(url, name))
}

/// How many nodes were declared dead, or have left.
fn gone(database: &Server) -> String {
    block_in_place(|| database.psql("SELECT count(*) FROM taskwire.gone"))
}

/// A node, and what it knows of the others.
struct Node {
    server: TestServer,
    cluster: Arc<dyn Cluster>,
}

impl Node {
    async fn start(at: PostgresConfig, tools: Registry) -> Self {
        Self::start_with(at, tools, uncoalesced()).await
    }

    async fn start_with(at: PostgresConfig, tools: Registry, config: Config) -> Self {
        let store = PostgresStore::open(at).await.expect("a store");
        let cluster = store.cluster().expect("nodes share it");
        let (dir, config) = (Arc::new(TempDir::new()), without_disk_reserve(config));
        Self { server: TestServer::start_on(dir, store, tools, config, Arc::new(SystemClock)).await, cluster }
    }

    fn client(&self) -> Client {
        self.server.streaming_client()
    }
}

/// The database ends twice in these ways, and starts again.
async fn goes_on_after(ends: [fn(&mut Server); 2]) {
    within_a_minute(async {
        let mut database = started(&[]);
        let mut load = Load::begin(three_at(&database.url())).await;
        for (end, refused) in ends.into_iter().zip([A_MOMENT, LONGER_THAN_A_LEASE]) {
            load.goes_on().await;
            block_in_place(|| end(&mut database));
            load.is_refused(refused).await;
            block_in_place(|| database.start_again());
            with_timeout("the work", load.goes_on()).await;
        }
        assert_eq!(gone(&database), "0", "a database that was away for all takes nothing from anybody");
        load.ends(&database).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn postgres_restart_loses_nothing_and_doubles_nothing() {
    goes_on_after([Server::stop_fast, Server::stop_fast]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn crash_recovery_of_the_database_loses_nothing_and_doubles_nothing() {
    goes_on_after([Server::stop_immediate, Server::kill]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn pg_backend_kill_again_and_again_loses_nothing_and_no_node_loses_its_lease() {
    within_a_minute(async {
        let database = started(&[]);
        let mut load = Load::begin(three_at(&database.url())).await;
        load.goes_on().await;
        for round in 0..30 {
            let ended = block_in_place(|| database.psql(END_ALL));
            assert_ne!(ended, "0", "round {round}");
            // Sometimes in the middle of the recovery from the last time, sometimes when all goes well again.
            load.writes(5 + round % 3 * 10).await;
        }
        with_timeout("the work", load.goes_on()).await;
        assert_eq!(gone(&database), "0");
        load.ends(&database).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn when_a_synchronous_standby_takes_over_nothing_is_lost_and_no_epoch_is_used_again() {
    within_a_minute(async {
        let mut first = started(&[]);
        let second = block_in_place(|| first.start_standby());
        let url = format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres", first.port(), second.port());
        let mut load = Load::begin(three_at(&url)).await;
        load.goes_on().await;
        let before = load.nodes[0].cluster.nodes().await.expect("readable");
        assert_eq!(before.len(), 3);
        block_in_place(|| first.kill());
        // A standby that is still one must not be written to, and nodes do not take its answers for those of the primary.
        load.is_refused(A_MOMENT).await;
        block_in_place(|| second.promote());
        with_timeout("the work", load.goes_on()).await;
        let late = Node::start(PostgresConfig::new(&url, "d"), load.tools()).await;
        let after = late.cluster.nodes().await.expect("readable");
        let newest = after.last().expect("there is one");
        assert_eq!(&*newest.name, "d");
        assert!(before.iter().chain(&after[..after.len() - 1]).all(|node| node.epoch < newest.epoch), "{before:?} {after:?}");
        // The epochs of a timeline begin with its number, so a standby that lost some does not give them out again.
        assert_eq!(before.iter().map(|node| node.epoch.0 >> 40).max(), Some(1), "{before:?}");
        assert_eq!(newest.epoch.0 >> 40, 2, "{after:?}");
        load.ends(&second).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn what_a_server_has_that_was_started_again_is_acknowledged_when_its_standby_has_it_too() {
    const COMMITS_THAT_WAIT: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query = 'COMMIT'";
    within_a_minute(async {
        let mut first = started(&["wal_retrieve_retry_interval = 100ms"]);
        let second = block_in_place(|| first.start_standby());
        let (tool, mut runs) = played("writes");
        let node = Node::start(PostgresConfig::new(first.url(), "a"), registry([tool.task(TaskMode::Always)])).await;
        node.client().start("writes", json!({})).await;
        let run = run_of(&mut runs).await;
        let mut written = pin!(async {
            run.ctx.text("x").await?;
            run.ctx.flush().await
        });
        block_in_place(|| second.pause());
        for has_ended in [false, true] {
            if has_ended {
                // What is in its log has happened when it is there again.
                block_in_place(|| first.stop_immediate());
                block_in_place(|| first.start_again());
            }
            tokio::select! {
                biased;
                written = &mut written => panic!("the standby does not have it: {written:?}"),
                () = until(|| block_in_place(|| first.psql(COMMITS_THAT_WAIT)) == "1") => {}
            }
        }
        block_in_place(|| second.resume());
        written.await.expect("it is written");
        block_in_place(|| first.kill());
        block_in_place(|| second.promote());
        assert_eq!(block_in_place(|| second.psql("SELECT count(*) FROM taskwire.chunk")), "1");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn a_page_that_is_damaged_fails_the_task_that_writes_there_and_ends_no_node() {
    /// As if what some rows go to were damaged.
    const DAMAGE: &str = "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.blocks LIKE '%damaged%' THEN RAISE 'invalid page in block 7' USING ERRCODE = 'data_corrupted'; END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER fail BEFORE INSERT ON taskwire.chunk FOR EACH ROW EXECUTE FUNCTION fail()";
    within_a_minute(async {
        let database = started(&[]);
        let (tool, mut runs) = played("writes");
        let node = Node::start(PostgresConfig::new(database.url(), "a"), registry([tool.task(TaskMode::Always)])).await;
        let client = node.client();
        let mut tasks = Vec::new();
        for _ in 0..2 {
            let id = client.start("writes", json!({})).await;
            tasks.push((id, run_of(&mut runs).await));
        }
        block_in_place(|| database.psql(DAMAGE));
        let [(_, one), (other, two)] = &tasks[..] else { panic!("there are two") };
        let (refused, ()) = tokio::join!(one.tries("damaged"), two.writes("fine"));
        let refused = format!("{:?}", refused.expect_err("it cannot be written"));
        assert!(refused.contains("is damaged") && refused.contains("invalid page in block 7"), "{refused}");
        two.writes("still fine").await;
        assert_eq!(output(&client, other).await, "finestill fine");
        assert!(!node.server.server.engine().has_failed());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn a_node_far_from_the_database_keeps_its_lease_and_holds_up_nobody() {
    within_a_minute(async {
        let database = started(&[]);
        let proxy = Proxy::with_delay(database.port(), 30 * MS).await;
        let [mut far, near, also_near] = three_at(&database.url());
        far.url = proxy.url();
        let mut load = Load::begin([far, near, also_near]).await;
        let before = load.nodes[0].cluster.nodes().await.expect("readable");
        let [far, near @ ..] = load.written_when(|[far, ..]| far >= WRITES_FROM_FAR).await;
        assert!(near.into_iter().all(|near| near > 2 * far), "{far} {near:?}");
        let after = load.nodes[1].cluster.nodes().await.expect("readable");
        let epochs = |nodes: &[NodeInfo]| nodes.iter().map(|node| node.epoch).collect::<Vec<_>>();
        assert_eq!(epochs(&before), epochs(&after));
        assert_eq!(gone(&database), "0");
        load.ends(&database).await;
    })
    .await;
}
