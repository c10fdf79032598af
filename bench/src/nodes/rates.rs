//! What one, two and four nodes do in a second; beside a bare client that writes the same, and FastMCP on Redis.

use std::sync::Arc;

use anyhow::{Context as _, Result};

use super::{
    Bench, NODES, Part,
    bare::{Recording, Tables},
    cluster::{Cluster, stored_ids},
    found::{Case, Found, What, Who},
    peer::{self, Programs},
    writers::{self, TEXT_BYTES},
};
use crate::{
    load::{self, Op},
    serve::Write,
    stages::in_turn,
    stream::{across, new_gate},
};

/// Pause between two texts that say when they were written, in microseconds.
const PAUSE_US: u64 = 10_000;

/// Each round: fresh nodes, each measure with each number of them in turn.
pub async fn rounds(bench: &Bench, programs: Option<&Programs>, found: &mut Found) -> Result<()> {
    let plan = &bench.plan;
    let tables = Tables::make(bench).await?;
    for round in 0..plan.rounds {
        for nodes in in_turn(NODES, round) {
            if plan.has(Part::Rates) {
                eprintln!("round {} of {}: {nodes} nodes: creates, reads, appends, pushes, a bare client", round + 1, plan.rounds);
                let result = on_nodes(bench, &tables, nodes, found).await;
                found.note_failure(&format!("rates of {nodes} nodes"), result);
            }
            if let Some(programs) = programs.filter(|_| nodes <= plan.peer_nodes_max) {
                eprintln!("round {} of {}: {nodes} servers of FastMCP on Redis", round + 1, plan.rounds);
                let result = peer::measure(bench, programs, nodes, found).await;
                found.note_failure(&format!("rates of {nodes} servers of FastMCP"), result);
            }
        }
    }
    Ok(())
}

async fn on_nodes(bench: &Bench, tables: &Tables, nodes: usize, found: &mut Found) -> Result<()> {
    let (plan, client) = (&bench.plan, &bench.database.client);
    let mut cluster = Cluster::start(bench, nodes).await?;
    cluster.warm_up(bench).await?;

    let (mut sample, load) = cluster.measure(bench, &cluster.everywhere(&Op::Create("park")), plan.creates).await?;
    let creates = Recording::creates(client, &cluster.schema, stored_ids(&load.tasks)?).await?;
    sample.per_commit = Some(creates.per_commit());
    found.rate(Case::new(What::Create, Who::Taskwire, nodes), sample);

    reads(bench, &cluster, found).await?;

    let (mut sample, writers) = writers::measure(bench, &cluster, plan.writers, plan.texts).await?;
    let appends = Recording::appends(client, &cluster.schema, stored_ids(&writers.tasks)?).await?;
    sample.per_commit = Some(appends.per_commit());
    found.rate(Case::new(What::Append, Who::Taskwire, nodes), sample);

    let pages = Op::Page(Arc::new(writers.tasks));
    let (sample, _) = cluster.measure(bench, &cluster.everywhere(&pages), plan.pages).await?;
    found.rate(Case::new(What::Page, Who::Taskwire, nodes), sample);

    pushes(bench, &cluster, found).await?;

    // Nobody else is at work while the bare client is.
    cluster.kill().await?;
    found.rate(Case::new(What::Create, Who::Bare, nodes), creates.replay(bench, tables).await?);
    found.rate(Case::new(What::Append, Who::Bare, nodes), appends.replay(bench, tables).await?);
    cluster.stop(bench).await
}

/// States of live tasks.
async fn reads(bench: &Bench, cluster: &Cluster, found: &mut Found) -> Result<()> {
    let (plan, nodes) = (&bench.plan, cluster.nodes.len());
    let mut tasks_of = Vec::new();
    for node in &cluster.nodes {
        let load = load::run(node.addr, plan.connections, plan.readable, Op::Create("park")).await?;
        tasks_of.push(Arc::new(load.into_tasks()?));
    }
    let all = Op::Get(Arc::new(tasks_of.iter().flat_map(|tasks| tasks.iter().cloned()).collect()));
    let (sample, _) = cluster.measure(bench, &cluster.everywhere(&all), plan.reads).await?;
    found.rate(Case::new(What::Get, Who::Taskwire, nodes), sample);
    if nodes > 1 {
        let others = tasks_of.iter().cycle().skip(1);
        let elsewhere: Vec<_> = cluster.nodes.iter().zip(others).map(|(node, tasks)| (node.addr, Op::Get(tasks.clone()))).collect();
        let (sample, _) = cluster.measure(bench, &elsewhere, plan.reads).await?;
        found.rate(Case::new(What::GetElsewhere, Who::Taskwire, nodes), sample);
    }
    Ok(())
}

/// From the writing of a text to its receipt, on the same node and on another one.
async fn pushes(bench: &Bench, cluster: &Cluster, found: &mut Found) -> Result<()> {
    let ticks = bench.plan.ticks;
    let (first, last) = cluster.nodes.first().zip(cluster.nodes.last()).context("there are nodes")?;
    for (reader, elsewhere) in [(first, false), (last, true)] {
        if elsewhere && cluster.nodes.len() == 1 {
            continue;
        }
        let write = Write { gate: new_gate(), texts: ticks, size: TEXT_BYTES, pause_us: PAUSE_US, flush: false };
        let flow = across(first, reader, 1, &write, Some(ticks)).await?;
        found.push(cluster.nodes.len(), elsewhere, flow.delays_us);
    }
    Ok(())
}
