//! Too few connections with the database, sessions of others that are in the way, and poolers.

use futures_util::future::join_all;
use serde_json::{Value, json};
use taskwire::{
    server::Config,
    store::{ErrorKind, PostgresConfig, PostgresStore},
    tool::{TaskMode, Tool},
};
use taskwire_testkit::{Pgbouncer, PoolMode};
use tokio::task::block_in_place;
use tokio_postgres::{Client as Session, NoTls};

use super::{END_ALL, Load, Node, gone, started, three_at, within_a_minute};
use crate::{
    kit::{MS, with_timeout},
    nodes::names,
    tasks::{accept, registry, until_open},
    tool_harness::{brief, follow, next, page, played, read, run_of, uncoalesced},
};

/// A session of somebody else.
async fn session(url: &str) -> Result<Session, tokio_postgres::Error> {
    let (session, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(session)
}

/// Takes every connection that the server has, and leaves none to any node.
async fn take_all(url: &str) -> Vec<Session> {
    let mut taken = Vec::new();
    loop {
        while let Ok(session) = session(url).await {
            taken.push(session);
        }
        let of_nodes: i64 = taken[0].query_one(END_ALL, &[]).await.expect("an answer").get(0);
        if of_nodes == 0 {
            return taken;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn pool_exhaustion_by_readers_means_that_they_take_turns() {
    const OF_EACH: usize = 67;
    within_a_minute(async {
        let database = started(&[]);
        let (tool, mut runs) = played("writes");
        let config = PostgresConfig { max_connections: 1, ..PostgresConfig::new(database.url(), "a") };
        let node = Node::start(config, registry([tool.task(TaskMode::Always)])).await;
        let client = node.client();
        let id = client.start("writes", json!({})).await;
        let run = run_of(&mut runs).await;
        run.writes("<0>").await;
        let streams = join_all((0..OF_EACH).map(|_| follow(&client, &id, 0))).await;
        let reads = join_all((0..OF_EACH).map(|_| read(&client, &id, json!({"fromSeq": 1, "waitMs": 9_000}))));
        let gets = join_all((0..OF_EACH).map(|_| client.get(&id)));
        let (reads, gets, ()) = tokio::join!(reads, gets, run.writes("<1>"));
        assert!(gets.iter().all(|task| task["status"] == "working"), "{gets:?}");
        assert!(reads.iter().all(|read| page(read) == json!([["1 <1>"], 1, 2, false])), "{reads:?}");
        for mut stream in streams {
            while brief(&next(&mut stream).await.expect("it goes on")) != "1 <1>" {}
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn pool_exhaustion_of_the_server_means_try_again_until_others_leave_room() {
    within_a_minute(async {
        let database = started(&["max_connections = 50"]);
        let mut load = Load::begin(three_at(&database.url())).await;
        load.goes_on().await;
        let others = take_all(&database.url()).await;
        // None of them hangs: 15 are sent in a second.
        with_timeout("refusals", load.is_refused(30)).await;
        let late = with_timeout("an answer", PostgresStore::open(PostgresConfig::new(database.url(), "late"))).await;
        assert_eq!(late.expect_err("there is no room").kind(), ErrorKind::Away);
        drop(others);
        with_timeout("the work", load.goes_on()).await;
        assert_eq!(gone(&database), "0");
        load.ends(&database).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn sessions_idle_in_transaction_are_in_nobodys_way() {
    /// As if days had passed since the last upkeep.
    const DROP_PARTITIONS: &str = "DO $$ DECLARE part regclass; BEGIN
        FOR part IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'taskwire.chunk'::regclass LOOP
            IF part::text LIKE 'taskwire.chunk\\_2%' THEN EXECUTE format('DROP TABLE %s', part); END IF;
        END LOOP;
    END $$";
    const PARTITIONS: &str = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'taskwire.chunk'::regclass";
    within_a_minute(async {
        let database = started(&[]);
        let url = database.url();
        let mut load = Load::idle(three_at(&url)).await;
        let partitions = || block_in_place(|| database.psql(PARTITIONS));
        assert_eq!(partitions(), "5", "today, three days ahead, and all that was before");
        block_in_place(|| database.psql(DROP_PARTITIONS));
        assert_eq!(partitions(), "1");

        // One that holds a snapshot and has looked at our tables, and one that has written and locks something of its own.
        let (reader, writer) = (session(&url).await.expect("a session"), session(&url).await.expect("a session"));
        let look = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM taskwire.chunk; SELECT count(*) FROM taskwire.task";
        reader.batch_execute(look).await.expect("it reads");
        let lock = "CREATE TABLE other(n int); BEGIN; INSERT INTO other VALUES (1); LOCK TABLE other";
        writer.batch_execute(lock).await.expect("it writes");

        load.start().await;
        load.goes_on().await;
        assert_eq!(partitions(), "2", "what is written today has a place again");
        // A node that starts, and forgets what has ended.
        let config = Config { retention: Some(100 * MS), ..uncoalesced() };
        let forgetful = Node::start_with(PostgresConfig::new(&url, "forgetful"), load.tools(), config).await;
        assert_eq!(partitions(), "5", "partitions are made ahead all the same");
        let client = forgetful.client();
        for n in 0..10 {
            let id = client.start("writes", json!({"name": format!("brief {n}"), "chunks": 1})).await;
            let forgotten = async { while client.raw("tasks/get", json!({"taskId": id})).await.json().get("error").is_none() {} };
            with_timeout("the end of it", forgotten).await;
        }
        load.goes_on().await;
        for (session, counted) in [(&reader, "taskwire.task"), (&writer, "other")] {
            let count: i64 = session.query_one(&format!("SELECT count(*) FROM {counted}"), &[]).await.expect("it is still there").get(0);
            assert_eq!(count, i64::from(counted == "other"), "its transaction goes on");
            session.batch_execute("COMMIT").await.expect("it ends");
        }
        load.ends(&database).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn output_goes_on_where_an_operator_began_to_detach_a_partition() {
    const TODAY: &str = "SELECT 'taskwire.chunk_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')";
    within_a_minute(async {
        let database = started(&[]);
        let url = database.url();
        let mut load = Load::idle(three_at(&url)).await;
        let (reader, operator) = (session(&url).await.expect("a session"), session(&url).await.expect("a session"));
        reader.batch_execute("BEGIN; SELECT count(*) FROM taskwire.chunk").await.expect("it reads");
        operator.batch_execute("SET lock_timeout = 100").await.expect("a setting");
        let detach = format!("ALTER TABLE taskwire.chunk DETACH PARTITION {} CONCURRENTLY", block_in_place(|| database.psql(TODAY)));
        operator.batch_execute(&detach).await.expect_err("somebody reads");
        reader.batch_execute("COMMIT").await.expect("it ends");
        load.start().await;
        with_timeout("the work", load.goes_on()).await;
        load.ends(&database).await;
    })
    .await;
}

/// Two nodes behind a pooler in transaction mode, and what one of them hears of the other.
async fn work_behind_a_pooler(has_listen_url: bool) {
    within_a_minute(async {
        let database = started(&[]);
        let pooler = block_in_place(|| Pgbouncer::start(&database, PoolMode::Transaction));
        let at =
            |name: &str| PostgresConfig { listen_url: has_listen_url.then(|| database.url()), ..PostgresConfig::new(pooler.url(), name) };
        let (tool, mut runs) = played("writes");
        let asks = || Tool::new("names", "Asks who somebody is", names).task(TaskMode::Always);
        let here = Node::start(at("here"), registry([tool.task(TaskMode::Always), asks()])).await;
        let there = Node::start(at("there"), registry([asks()])).await;
        for node in [&here, &there] {
            assert_eq!(node.cluster.has_wakeups(), has_listen_url);
        }
        let (here, there) = (here.client(), there.client());

        let id = here.start("writes", json!({})).await;
        let run = run_of(&mut runs).await;
        let mut stream = follow(&there, &id, 0).await;
        for n in 0..10 {
            run.writes(&format!("<{n}>")).await;
            let read: Value = read(&there, &id, json!({"fromSeq": n})).await;
            assert_eq!(page(&read), json!([[format!("{n} <{n}>")], n, n + 1, false]), "what was acknowledged is seen at once");
            while brief(&next(&mut stream).await.expect("it goes on")) != format!("{n} <{n}>") {}
        }
        there.cancel(&id).await;
        with_timeout("the word to stop", run.ctx.cancelled()).await;
        assert_eq!(here.get(&id).await["status"], "cancelled");

        let id = here.start("names", json!({})).await;
        until_open(&there, &id, &["first"]).await;
        there.answer(&id, json!({"first": accept("Ada")})).await;
        until_open(&here, &id, &["last"]).await;
        there.answer(&id, json!({"last": accept("Lovelace")})).await;
        let task = with_timeout("the end", there.until(&id, "completed")).await;
        assert_eq!(task["result"]["content"][0]["text"], "Ada Lovelace", "{task}");
        assert!(pooler.log().contains("login attempt"), "{}", pooler.log());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn nodes_behind_a_pooler_work_together() {
    work_behind_a_pooler(true).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn nodes_behind_a_pooler_work_together_without_a_way_around_it() {
    work_behind_a_pooler(false).await;
}
