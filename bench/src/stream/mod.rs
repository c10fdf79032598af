//! Partial results: how fast they reach readers, how soon, at which cost; beside a bare server that sends the same bytes.

mod reader;
mod run;

use std::path::PathBuf;

use anyhow::Result;

use crate::{
    load::{self, Op},
    plan::Plan,
    process::{Scratch, ServerProcess},
    report::{Chunks, Findings, Mode, flow_label},
    serve::{Kind, Write},
    stages::{WARM_UP, in_turn},
};

pub use run::{across, new_gate};

/// Readers of what is written as fast as possible.
const READERS: [usize; 3] = [1, 100, 1_000];
/// Readers of what was written before, and of what is written at a pace. The targets are about these.
pub const FEW_READERS: [usize; 2] = [1, 100];
/// Bytes of one text.
const TEXT_BYTES: usize = 64;
/// Bytes of one chunk that is gathered from texts: Taskwire's default.
const GATHERED_BYTES: usize = 16 * 1024;
/// Pause between two texts that are written at a pace, in microseconds.
const PAUSE_US: u64 = 5_000;

/// The servers of one round, all fresh.
struct Servers {
    /// Taskwire, with each text a chunk of its own.
    single: ServerProcess,
    /// Taskwire as it is by default.
    gathered: ServerProcess,
    bare: ServerProcess,
    dirs: Vec<PathBuf>,
}

impl Servers {
    async fn start(plan: &Plan, scratch: &Scratch) -> Result<Self> {
        let dirs = vec![scratch.fresh()?, scratch.fresh()?, scratch.fresh()?];
        let single = ServerProcess::start_uncoalesced(&dirs[0]).await?;
        let gathered = ServerProcess::start(Kind::Taskwire, &dirs[1]).await?;
        let bare = ServerProcess::start(Kind::Bare, &dirs[2]).await?;
        for server in [&single, &gathered, &bare] {
            load::run(server.addr, plan.connections, WARM_UP, Op::Echo).await?;
        }
        Ok(Self { single, gathered, bare, dirs })
    }

    /// The one that cuts its output so.
    fn own(&self, chunks: Chunks) -> &ServerProcess {
        match chunks {
            Chunks::Single => &self.single,
            Chunks::Gathered => &self.gathered,
        }
    }

    async fn stop(self) -> Result<()> {
        for server in [self.single, self.gathered, self.bare] {
            server.kill().await?;
        }
        // Each round leaves some hundred megabytes.
        for dir in self.dirs {
            std::fs::remove_dir_all(dir)?;
        }
        Ok(())
    }
}

/// Each round: fresh servers, each measure on each of them in turn.
pub async fn rounds(plan: &Plan, scratch: &Scratch, findings: &mut Findings) -> Result<()> {
    for round in 0..plan.rounds {
        eprintln!("round {} of {}: streams to {READERS:?} readers", round + 1, plan.rounds);
        let servers = Servers::start(plan, scratch).await?;
        // First, because memory that an earlier measure gave back would hide what streams need.
        idle(plan, &servers, round, findings).await;
        delays(plan, &servers, round, findings).await;
        for chunks in [Chunks::Single, Chunks::Gathered] {
            for readers in READERS {
                flows(plan, &servers, round, chunks, readers, findings).await;
            }
        }
        servers.stop().await?;
    }
    Ok(())
}

/// Memory of streams on which nothing happens.
async fn idle(plan: &Plan, servers: &Servers, round: usize, findings: &mut Findings) {
    for server in in_turn([&servers.gathered, &servers.bare], round) {
        match run::idle(server, plan.idle_streams).await {
            Ok(bytes) => findings.streams.add_idle(server.kind, plan.idle_streams, bytes),
            Err(error) => findings.note_failure(&format!("{} idle streams, {}", plan.idle_streams, server.kind.name()), Err(error)),
        }
    }
}

/// From the writing of a text to its receipt, and the time of one commit beside it.
async fn delays(plan: &Plan, servers: &Servers, round: usize, findings: &mut Findings) {
    let paced = |flush| Write { gate: new_gate(), texts: plan.ticks, size: TEXT_BYTES, pause_us: PAUSE_US, flush };
    match run::commits(&servers.single, &paced(true)).await {
        Ok(waits_us) => findings.streams.add_commits(waits_us),
        Err(error) => findings.note_failure("commit", Err(error)),
    }
    for readers in FEW_READERS {
        for server in in_turn([&servers.single, &servers.bare], round) {
            match run::live(server, readers, &paced(false), Some(plan.ticks)).await {
                Ok(flow) => findings.streams.add_delays(server.kind, readers, flow.delays_us),
                Err(error) => findings.note_failure(&format!("append to receipt, {readers} readers, {}", server.kind.name()), Err(error)),
            }
        }
    }
}

/// Everything as fast as it can be: while it is written, then again from the beginning.
async fn flows(plan: &Plan, servers: &Servers, round: usize, chunks: Chunks, readers: usize, findings: &mut Findings) {
    let label = |mode, server: &ServerProcess| format!("stream {}, {readers} readers, {}", flow_label(mode, chunks), server.kind.name());
    let mut written = Vec::new();
    for server in in_turn([servers.own(chunks), &servers.bare], round) {
        let write = write(plan, chunks, readers, server.kind);
        // How many texts Taskwire gathers in a chunk is its own affair.
        let count = (chunks == Chunks::Single || server.kind == Kind::Bare).then_some(write.texts);
        match run::live(server, readers, &write, count).await {
            Ok(flow) => {
                findings.streams.add_flow(Mode::Live, chunks, server.kind, readers, flow.sample);
                written.push((server, write, count, flow.task));
            }
            Err(error) => findings.note_failure(&label(Mode::Live, server), Err(error)),
        }
    }
    if !FEW_READERS.contains(&readers) {
        return;
    }
    for (server, write, count, task) in written {
        match run::replay(server, readers, &task, &write, count).await {
            Ok(sample) => findings.streams.add_flow(Mode::Replay, chunks, server.kind, readers, sample),
            Err(error) => findings.note_failure(&label(Mode::Replay, server), Err(error)),
        }
    }
}

/// The arguments of the tool: few chunks to many readers, more to few. The bare server writes large texts where Taskwire
/// gathers small ones; it is the same text in total.
fn write(plan: &Plan, chunks: Chunks, readers: usize, kind: Kind) -> Write {
    let each = |total: usize, max: usize| (total / readers).min(max).max(1);
    let (texts, size) = match (chunks, kind) {
        (Chunks::Single, _) => (each(plan.events, plan.events * 3 / 20), TEXT_BYTES),
        (Chunks::Gathered, Kind::Bare) => (each(plan.events / 50, plan.events / 500), GATHERED_BYTES),
        (Chunks::Gathered, _) => (each(plan.events / 50, plan.events / 500) * (GATHERED_BYTES / TEXT_BYTES), TEXT_BYTES),
    };
    Write { gate: new_gate(), texts, size, pause_us: 0, flush: false }
}
