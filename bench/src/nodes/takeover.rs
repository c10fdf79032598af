//! A node is killed: how long until its tasks are run again, as readers on another node see it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{Bench, cluster::Cluster, found::Found};
use crate::{
    http::{Conn, Events, find},
    load::{self, Op},
    wire,
};

/// A node says that another one is dead when it could reach the database itself for as long as a lease lasts (6 s).
const JUDGE_AFTER: Duration = Duration::from_secs(8);
/// How long the takeover may take.
const TAKEOVER_MAX: Duration = Duration::from_secs(60);
/// Connections that make the tasks.
const CONNECTIONS: usize = 8;

/// Each round: fresh nodes, as many of each number.
pub async fn rounds(bench: &Bench, found: &mut Found) -> Result<()> {
    let plan = &bench.plan;
    for round in 0..plan.takeovers {
        for &nodes in &plan.takeover_nodes {
            eprintln!("round {} of {}: one of {nodes} nodes is killed", round + 1, plan.takeovers);
            found.takeover(nodes, once(bench, nodes).await?);
        }
    }
    Ok(())
}

/// Seconds from the killing of a node until each of its tasks was run again.
async fn once(bench: &Bench, nodes: usize) -> Result<Vec<f64>> {
    let mut cluster = Cluster::start(bench, nodes).await?;
    let started = Instant::now();
    let victim = cluster.nodes.remove(0);
    let reader = cluster.nodes.first().context("a node is left")?.addr;
    let tasks = load::run(victim.addr, CONNECTIONS, bench.plan.stranded, Op::Create("rerun")).await?.into_tasks()?;
    let mut streams = JoinSet::new();
    for (nth, task) in tasks.iter().enumerate() {
        let stream = Conn::open(reader).await?.listen(&wire::partials(reader, nth, task)).await?;
        streams.spawn(second_attempt(stream));
    }
    sleep(JUDGE_AFTER.saturating_sub(started.elapsed())).await;
    let killed = Instant::now();
    victim.kill().await?;
    let mut seconds = Vec::new();
    while let Some(begun) = timeout(TAKEOVER_MAX, streams.join_next()).await.context("tasks of a killed node are not run again")? {
        seconds.push(begun.context("a reader broke")??.duration_since(killed).as_secs_f64());
    }
    cluster.stop(bench).await?;
    Ok(seconds)
}

/// The moment at which a stream says that its task is run for the second time.
async fn second_attempt(mut stream: Events) -> Result<Instant> {
    while find(&stream.next().await?, b"attempt 2").is_none() {}
    Ok(Instant::now())
}
