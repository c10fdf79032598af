//! Tasks that write as fast as they can, on all nodes at once.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures_util::future::try_join_all;
use tokio::time::{sleep, timeout};

use super::{
    Bench,
    cluster::{Cluster, stored_ids},
    database::{SETTLE, render},
    found::RateSample,
};
use crate::{http::Conn, serve::Write, stream::new_gate, wire};

/// Bytes of one text, which is a chunk of its own.
pub const TEXT_BYTES: usize = 64;
/// How long they may take.
const WRITE_MAX: Duration = Duration::from_secs(300);
/// Pause between two looks whether they are done.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

const IS_OPEN: &str = "SELECT EXISTS(SELECT 1 FROM @task WHERE id = ANY($1) AND ended IS NULL)";
const WRITTEN: &str = "SELECT coalesce(sum(next_seq), 0)::bigint FROM @task WHERE id = ANY($1)";

/// Tasks that write.
pub struct Writers {
    /// Their names.
    pub tasks: Vec<String>,
    gate: String,
}

impl Writers {
    /// Makes so many, dealt out to the nodes. They wait until they may begin.
    pub async fn make(cluster: &Cluster, count: usize, texts: usize) -> Result<Self> {
        let write = Write { gate: new_gate(), texts, size: TEXT_BYTES, pause_us: 0, flush: false };
        let mut tasks = Vec::new();
        for node in cluster.nodes.iter().cycle().take(count) {
            tasks.push(wire::task_id(&Conn::open(node.addr).await?.exchange(&wire::write(node.addr, &write)?).await?)?);
        }
        Ok(Self { tasks, gate: write.gate })
    }

    /// Lets them begin, on all nodes at once.
    pub async fn begin(&self, cluster: &Cluster) -> Result<()> {
        let mut conns = Vec::new();
        for node in &cluster.nodes {
            conns.push((Conn::open(node.addr).await?, node.addr));
        }
        let gate = self.gate.as_str();
        let opened = conns.iter_mut().map(|(conn, addr)| async move {
            let response = conn.exchange(&wire::open(*addr, gate)).await?;
            wire::expect(&response, "opened")
        });
        try_join_all(opened).await.map(drop)
    }

    /// Waits until all of them have ended.
    pub async fn end(&self, bench: &Bench, cluster: &Cluster) -> Result<()> {
        let (client, ids) = (&bench.database.client, stored_ids(&self.tasks)?);
        let is_open = client.prepare(&render(IS_OPEN, &cluster.schema)).await?;
        let ended = async {
            while client.query_one(&is_open, &[&ids]).await?.try_get::<_, bool>(0)? {
                sleep(LOOK_PAUSE).await;
            }
            Ok::<(), anyhow::Error>(())
        };
        timeout(WRITE_MAX, ended).await.context("tasks write for ever")?
    }

    /// How many chunks of theirs are stored.
    pub async fn written(&self, bench: &Bench, cluster: &Cluster) -> Result<usize> {
        let sql = render(WRITTEN, &cluster.schema);
        let row = bench.database.client.query_one(&sql, &[&stored_ids(&self.tasks)?]).await?;
        Ok(usize::try_from(row.try_get::<_, i64>(0)?)?)
    }
}

/// Has so many tasks write so many texts each.
pub async fn measure(bench: &Bench, cluster: &Cluster, count: usize, texts: usize) -> Result<(RateSample, Writers)> {
    let writers = Writers::make(cluster, count, texts).await?;
    bench.database.settle().await?;
    let before = cluster.cpu(bench)?;
    let began = Instant::now();
    writers.begin(cluster).await?;
    writers.end(bench, cluster).await?;
    let seconds = began.elapsed().as_secs_f64();
    sleep(SETTLE).await;
    let spent = cluster.cpu(bench)?.since(before);
    let written = writers.written(bench, cluster).await?;
    ensure!(written == count * texts, "{written} chunks were written instead of {}", count * texts);
    Ok((RateSample::new(written, seconds, spent), writers))
}
