//! What no user of the store sees: connections that do not answer, and upkeep.

use std::time::Duration;

use futures_util::FutureExt;
use taskwire_testkit::{Installation, Server};
use tokio::{
    task::{block_in_place, yield_now},
    time::timeout,
};
use tokio_postgres::NoTls;

use super::*;

const PID: Sql = Sql { text: "SELECT pg_backend_pid()", types: &[] };
const LONG: Sql = Sql { text: "SELECT pg_sleep(30)", types: &[] };
/// What upkeep looks at: which partitions there are, and how many of them are about to be none.
const PARTITIONS: &str = "SELECT count(*) || ', ' || count(*) FILTER (WHERE inhdetachpending) FROM pg_inherits
    WHERE inhparent = 'taskwire.chunk'::regclass";
/// Tasks and nodes have times in milliseconds.
const NOW: &str = "(extract(epoch FROM now()) * 1000)::bigint";
const HOUR_MS: i64 = 3_600_000;

/// A server, and a node with one connection for readers.
async fn opened() -> (Server, PostgresStore) {
    let server = block_in_place(|| Server::start_fast(&Installation::find(18).unwrap_or_else(|missing| panic!("{missing}"))));
    let config = PostgresConfig::new(server.url(), "node");
    let config = PostgresConfig { max_connections: 1, statement_timeout: Duration::from_secs(60), ..config };
    let store = PostgresStore::open(config).await.expect("a store");
    (server, store)
}

fn psql(server: &Server, sql: &str) -> String {
    block_in_place(|| server.psql(sql))
}

/// A task with no more than an id, which began so many milliseconds ago.
fn insert_task(server: &Server, ago: i64) {
    let id = format!("substr(int8send({NOW} - {ago}), 3) || decode(lpad('1', 28, '0'), 'hex')");
    let columns = "id, caller, epoch, version, next_seq, blocks, output_bytes, stored_bytes";
    psql(server, &format!("INSERT INTO taskwire.task({columns}) VALUES({id}, 'me', 1, 1, 1, 1, 1, 1)"));
}

/// Does the upkeep of an hour.
async fn keep_up(server: &Server, store: &PostgresStore) {
    psql(server, "UPDATE taskwire.meta SET number = 0 WHERE key = 'upkeep'");
    upkeep::remove_old(&store.database).await.expect("it removes what is old");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn nobody_gets_a_connection_whose_statement_goes_on_without_its_caller() {
    let (server, store) = opened().await;
    let database = &store.database;
    let pid = async || {
        let rows = timeout(Duration::from_secs(10), database.read(&PID, &[])).await.expect("nobody waits for others");
        rows.expect("an answer")[0].get::<_, i32>(0)
    };
    let first = pid().await;
    assert_eq!(pid().await, first, "a connection is used again");
    assert!(database.read(&PID, &[]).now_or_never().is_none(), "the caller leaves before the answer is there");
    assert_eq!(pid().await, first, "it has answered");
    let is_busy = async {
        while psql(&server, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "0" {
            yield_now().await;
        }
    };
    tokio::select! {
        _ = database.read(&LONG, &[]) => panic!("it takes half a minute"),
        () = is_busy => {}
    }
    assert_ne!(pid().await, first);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn upkeep_removes_all_output_of_forgotten_tasks_and_no_other() {
    let (server, store) = opened().await;
    let insert = |id: &str, rows: &str| {
        let columns = "task, seq, count, version, at, first_block, blocks_total, bytes_total, blocks";
        psql(&server, &format!("INSERT INTO taskwire.chunk({columns}) SELECT {id}, n, 1, 1, 1, 1, 1, 1, 'x' FROM {rows} AS n"));
    };
    // Older than the store: no day has them.
    insert("substr(int8send(n::bigint), 3) || decode(lpad('1', 28, '0'), 'hex')", "generate_series(1, 10000)");
    insert("decode(lpad('ff', 40, '0'), 'hex')", "generate_series(1, 2500)");
    psql(&server, "INSERT INTO taskwire.task SELECT task, 'me', 1, NULL, 1, 1, 1, 1, 1, 1 FROM taskwire.chunk WHERE seq % 2500 = 7");
    let kept = "SELECT count(*), count(DISTINCT task) FROM taskwire.chunk AS c JOIN taskwire.task AS t ON t.id = c.task";
    let before = psql(&server, kept);
    assert_eq!(before, "2504|5");
    keep_up(&server, &store).await;
    assert_eq!(psql(&server, "SELECT count(*), count(DISTINCT task) FROM taskwire.chunk"), before);
    // A task with more rows than one step deletes.
    psql(&server, "DELETE FROM taskwire.task");
    keep_up(&server, &store).await;
    assert_eq!(psql(&server, "SELECT count(*) FROM taskwire.chunk"), "0");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn who_is_gone_is_remembered_while_a_task_is_open_that_began_before() {
    let (server, store) = opened().await;
    for (epoch, ago) in [(1, 4 * HOUR_MS), (2, 2 * HOUR_MS), (3, HOUR_MS / 2)] {
        psql(&server, &format!("INSERT INTO taskwire.gone(epoch, since, orphan_after) VALUES({epoch}, {NOW} - {ago}, 0)"));
    }
    insert_task(&server, 3 * HOUR_MS);
    let gone = || psql(&server, "SELECT string_agg(epoch::text, ' ' ORDER BY epoch) FROM taskwire.gone");
    keep_up(&server, &store).await;
    assert_eq!(gone(), "2 3");
    psql(&server, "UPDATE taskwire.task SET ended = 2");
    keep_up(&server, &store).await;
    assert_eq!(gone(), "3");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn a_partition_that_somebody_began_to_detach_is_attached_again_and_keeps_no_other_from_being_made() {
    let (server, store) = opened().await;
    let of_day = |days: u32| {
        let day = format!("now() AT TIME ZONE 'UTC' + interval '{days} days'");
        psql(&server, &format!("SELECT 'taskwire.chunk_' || to_char({day}, 'YYYYMMDD')"))
    };
    let [one, other] = [1, 2].map(of_day);
    psql(&server, &format!("DROP TABLE {other}"));
    // A transaction of somebody else is in the way, so it is not done.
    let (reader, connection) = tokio_postgres::connect(&server.url(), NoTls).await.expect("a session");
    tokio::spawn(connection);
    reader.batch_execute("BEGIN; SELECT count(*) FROM taskwire.chunk").await.expect("it reads");
    let (operator, connection) = tokio_postgres::connect(&server.url(), NoTls).await.expect("a session");
    tokio::spawn(connection);
    operator.batch_execute("SET lock_timeout = 100").await.expect("a setting");
    let detach = format!("ALTER TABLE taskwire.chunk DETACH PARTITION {one} CONCURRENTLY");
    operator.batch_execute(&detach).await.expect_err("it takes too long");
    assert_eq!(psql(&server, PARTITIONS), "4, 1");
    let made = upkeep::make_ahead(&store.database).await;
    assert!(matches!(&made, Err(Error::Away { reason, .. }) if reason.contains("is being detached")), "{made:?}");
    assert_eq!(psql(&server, PARTITIONS), "5, 1", "the other one is there");
    reader.batch_execute("COMMIT").await.expect("it ends");
    upkeep::make_ahead(&store.database).await.expect("nothing is in the way");
    assert_eq!(psql(&server, PARTITIONS), "5, 0");
}
