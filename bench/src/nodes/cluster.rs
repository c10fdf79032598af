//! Nodes that share a store, and what it costs them to do something.

use std::{net::SocketAddr, path::Path};

use anyhow::{Result, bail};
use taskwire::core::TaskId;
use tokio::time::sleep;

use super::{Bench, database::SETTLE, found::RateSample};
use crate::{
    load::{self, LoadResult, Op, Until},
    process::ServerProcess,
    serve::schema_of,
    stages::WARM_UP,
};

/// Tasks that each node makes before anything is measured, so that its statements are prepared.
const WARM_CREATES: usize = 200;

/// Processor time, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Cpu {
    /// Of those that are measured.
    pub own: f64,
    /// Of what they store in.
    pub store: f64,
}

impl Cpu {
    /// What was used since then.
    pub fn since(self, before: Self) -> Self {
        Self { own: self.own - before.own, store: self.store - before.store }
    }
}

/// The ids of tasks as they are stored.
pub fn stored_ids(tasks: &[String]) -> Result<Vec<Vec<u8>>> {
    tasks.iter().map(|task| Ok(task.parse::<TaskId>()?.as_bytes().to_vec())).collect()
}

/// Nodes with one schema.
pub struct Cluster {
    /// The nodes.
    pub nodes: Vec<ServerProcess>,
    /// Where their tables are.
    pub schema: String,
}

impl Cluster {
    /// Starts so many on a new store.
    pub async fn start(bench: &Bench, count: usize) -> Result<Self> {
        Self::start_in(bench, &bench.scratch.fresh()?, count).await
    }

    /// Starts so many on the store that belongs to this directory.
    pub async fn start_in(bench: &Bench, dir: &Path, count: usize) -> Result<Self> {
        let mut nodes = Vec::new();
        for _ in 0..count {
            nodes.push(ServerProcess::start_node(&bench.database.url(), dir).await?);
        }
        Ok(Self { nodes, schema: schema_of(dir) })
    }

    /// The same to be done on all nodes.
    pub fn everywhere(&self, op: &Op) -> Vec<(SocketAddr, Op)> {
        self.nodes.iter().map(|node| (node.addr, op.clone())).collect()
    }

    /// Lets every node do a little.
    pub async fn warm_up(&self, bench: &Bench) -> Result<()> {
        let connections = bench.plan.connections;
        load::run_on(&self.everywhere(&Op::Echo), connections, Until::Done(WARM_UP)).await?.into_tasks()?;
        let creates = WARM_CREATES * self.nodes.len();
        load::run_on(&self.everywhere(&Op::Create("quick")), connections, Until::Done(creates)).await?.into_tasks()?;
        Ok(())
    }

    /// Processor time of the nodes, and of PostgreSQL.
    pub fn cpu(&self, bench: &Bench) -> Result<Cpu> {
        let mut own = 0.0;
        for node in &self.nodes {
            own += node.cpu()?;
        }
        Ok(Cpu { own, store: bench.database.cpu()? })
    }

    /// Does so much, dealt out to the connections of all nodes. Fails if anything of it fails.
    pub async fn measure(&self, bench: &Bench, ops: &[(SocketAddr, Op)], total: usize) -> Result<(RateSample, LoadResult)> {
        bench.database.settle().await?;
        let before = self.cpu(bench)?;
        let load = load::run_on(ops, bench.plan.connections, Until::Done(total)).await?;
        sleep(SETTLE).await;
        let spent = self.cpu(bench)?.since(before);
        if let Some(error) = &load.first_error {
            bail!("{} of {total} requests failed, the first one so: {error}", load.errors);
        }
        Ok((RateSample::new(load.latencies_us.len(), load.seconds, spent), load))
    }

    /// Kills the nodes. Their tables stay.
    pub async fn kill(&mut self) -> Result<()> {
        for node in self.nodes.drain(..) {
            node.kill().await?;
        }
        Ok(())
    }

    /// Kills the nodes, and removes their tables, so that nobody cleans them up during the next measure.
    pub async fn stop(mut self, bench: &Bench) -> Result<()> {
        self.kill().await?;
        bench.database.client.batch_execute(&format!("DROP SCHEMA \"{}\" CASCADE", self.schema)).await?;
        Ok(())
    }
}
