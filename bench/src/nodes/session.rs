//! A session that is idle in a transaction: PostgreSQL keeps for it each version of each row that nodes change. How much slower they are.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::time::sleep;

use super::{
    Bench,
    cluster::Cluster,
    found::{Found, SessionSample},
    writers::Writers,
};
use crate::{
    load::{self, Op, Until},
    stages::in_turn,
};

/// How many nodes there are.
const NODES: usize = 2;
/// Connections that make tasks, which end at once.
const CONNECTIONS: usize = 16;
/// Tasks that write meanwhile.
const WRITERS: usize = 32;
/// More texts than they can write.
const TEXTS: usize = 1_000_000_000;
/// Time before a measure in which they begin.
const WARM_UP: Duration = Duration::from_secs(1);
/// A transaction with a number and a snapshot.
const IDLE: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id(); SELECT count(*) FROM pg_catalog.pg_class";

/// Each round: fresh nodes without such a session, and with one.
pub async fn rounds(bench: &Bench, found: &mut Found) -> Result<()> {
    let plan = &bench.plan;
    for round in 0..plan.session_rounds {
        for idle in in_turn([false, true], round) {
            let beside = if idle { "beside a session that is idle in a transaction" } else { "with no session that is idle" };
            eprintln!("round {} of {}: creates and appends {beside}", round + 1, plan.session_rounds);
            found.session(idle, once(bench, idle).await?);
        }
    }
    Ok(())
}

/// Creates and appends at once, for a while.
async fn once(bench: &Bench, idle: bool) -> Result<SessionSample> {
    let cluster = Cluster::start(bench, NODES).await?;
    cluster.warm_up(bench).await?;
    let session = bench.database.connect().await?;
    if idle {
        session.batch_execute(IDLE).await?;
    }
    let writers = Writers::make(&cluster, WRITERS, TEXTS).await?;
    bench.database.settle().await?;
    writers.begin(&cluster).await?;
    sleep(WARM_UP).await;

    let (written, before) = (writers.written(bench, &cluster).await?, cluster.cpu(bench)?);
    let began = Instant::now();
    let until = Until::At(began + Duration::from_secs(bench.plan.session_seconds));
    let load = load::run_on(&cluster.everywhere(&Op::Create("quick")), CONNECTIONS, until).await?;
    // One moment for both: what the count of chunks takes is not in the rate of creates.
    let seconds = load.seconds;
    let (written, spent) = (writers.written(bench, &cluster).await? - written, cluster.cpu(bench)?.since(before));
    let appending = began.elapsed().as_secs_f64();

    let created = load.into_tasks()?.len();
    ensure!(created > 0 && written > 0, "{created} tasks were made and {written} chunks written");
    if idle {
        // It must have been there all the time.
        session.batch_execute("ROLLBACK").await?;
    }
    cluster.stop(bench).await?;
    Ok(SessionSample {
        creates_per_second: created as f64 / seconds,
        appends_per_second: written as f64 / appending,
        store_us: spent.store * 1e6 / (created + written) as f64,
    })
}
