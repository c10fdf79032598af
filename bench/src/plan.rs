//! How much is measured.

use std::path::{Path, PathBuf};

use serde::Serialize;

/// A part of what can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// `echo`, `tasks/get`, create, create to completed.
    Requests,
    /// Many live tasks.
    Alive,
    /// Many ended tasks.
    Ended,
    /// Push of a task's end.
    Push,
    /// Partial results.
    Stream,
    /// Partial results as the client reads them.
    Client,
}

impl Stage {
    /// All of them.
    const ALL: [Self; 6] = [Self::Requests, Self::Alive, Self::Ended, Self::Push, Self::Stream, Self::Client];
}

/// What can be set on the command line.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// A short run: shows that everything works, but its numbers say little.
    #[arg(long)]
    quick: bool,
    /// Measures only this; may be given more than once.
    #[arg(long, value_name = "STAGE")]
    only: Vec<Stage>,
    /// Where the JSON document goes; standard output if absent.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Where stores are kept while they are measured. Must be on a real disk, or durability costs nothing.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Interleaved rounds of every measure.
    #[arg(long)]
    rounds: Option<usize>,
    /// Connections of the load generator.
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Requests of one round of `echo` and of `tasks/get`.
    #[arg(long)]
    requests: Option<usize>,
    /// Tasks that are alive, or stored, in the measures with many tasks.
    #[arg(long)]
    tasks: Option<usize>,
    /// The same for rmcp, which takes quadratic time to get there.
    #[arg(long)]
    rmcp_tasks: Option<usize>,
    /// Listen streams of the large push measure.
    #[arg(long)]
    listeners: Option<usize>,
    /// About how many small chunks one round of a streaming measure delivers, to all readers together.
    #[arg(long)]
    events: Option<usize>,
    /// Partial results that one round of a client measure reads at a set pace, 10,000 of them in a second.
    #[arg(long)]
    partials: Option<usize>,
}

/// What is going to be measured.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// Whether this is a short run.
    pub quick: bool,
    /// What is measured.
    pub stages: Vec<Stage>,
    /// Interleaved rounds of every measure.
    pub rounds: usize,
    /// Connections of the load generator.
    pub connections: usize,
    /// Requests of one round of `echo` and of `tasks/get`.
    pub requests: usize,
    /// Tasks that one round creates.
    pub creates: usize,
    /// Tasks that one round follows from creation to completion.
    pub cycles: usize,
    /// Tasks that are alive in the small measure of `tasks/get`.
    pub few: usize,
    /// Tasks that are alive, or stored, in the measures with many tasks.
    pub tasks: usize,
    /// The same for rmcp.
    pub rmcp_tasks: usize,
    /// Listen streams of the large push measure.
    pub listeners: usize,
    /// Tasks that one round of the push measures ends.
    pub pushes: usize,
    /// About how many small chunks one round of a streaming measure delivers, to all readers together.
    pub events: usize,
    /// Texts that one round of the streaming measures writes at a set pace.
    pub ticks: usize,
    /// Idle streams whose memory is measured.
    pub idle_streams: usize,
    /// Partial results that one round of a client measure reads at a set pace.
    pub partials: usize,
    /// Those that it reads as fast as it can. Few enough that a client has room for all of them.
    pub partials_at_once: usize,
}

impl Plan {
    /// Whether `stage` is measured.
    pub fn has(&self, stage: Stage) -> bool {
        self.stages.contains(&stage)
    }
}

impl Options {
    /// The plan that these options ask for. Every amount is at least one.
    pub fn plan(&self) -> Plan {
        let amount = |option: Option<usize>, full: usize, quick: usize| {
            let default = if self.quick { quick } else { full };
            option.unwrap_or(default).max(1)
        };
        Plan {
            quick: self.quick,
            stages: if self.only.is_empty() { Stage::ALL.to_vec() } else { self.only.clone() },
            rounds: amount(self.rounds, 5, 2),
            connections: self.connections.max(1),
            requests: amount(self.requests, 40_000, 4_000),
            creates: amount(None, 5_000, 1_000),
            cycles: amount(None, 2_000, 500),
            few: 100,
            tasks: amount(self.tasks, 100_000, 5_000),
            rmcp_tasks: amount(self.rmcp_tasks, 10_000, 1_000),
            listeners: amount(self.listeners, 500, 100),
            pushes: amount(None, 20, 5),
            events: amount(self.events, 2_000_000, 100_000),
            ticks: amount(None, 600, 100),
            idle_streams: 1_000,
            partials: amount(self.partials, 30_000, 5_000),
            partials_at_once: amount(None, 150_000, 20_000),
        }
    }

    /// Where stores are kept while they are measured.
    pub fn data_dir(&self) -> PathBuf {
        self.data.clone().unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench-data"))
    }
}
