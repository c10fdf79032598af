//! Nodes that share one PostgreSQL: what they do in a second, how soon one knows what another did, and what becomes of the tasks of one that
//! is killed; beside a bare client of PostgreSQL and FastMCP on Redis.
//!
//! `database` and `cluster` start them, `rates`, `takeover`, `session` and `growth` measure, with `bare` and `peer` beside `rates`; `found`
//! has what came of it, `table` and `plot` show it.

mod bare;
mod cluster;
mod database;
mod found;
mod growth;
mod peer;
mod plot;
mod rates;
mod session;
mod table;
mod takeover;
mod writers;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};
use serde::Serialize;

use self::{
    database::{Database, SETTINGS},
    found::{Found, Report},
    peer::Programs,
};
use crate::{
    process::{Scratch, raise_open_files},
    report::{Machine, put_out},
};

/// Numbers of nodes that are compared.
pub const NODES: [usize; 3] = [1, 2, 4];
/// A disk that is faster than this is memory, in microseconds.
const MEMORY_SYNC_US: f64 = 20.0;

/// A part of what can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Creates, appends, reads and pushes of 1, 2 and 4 nodes, and a bare client.
    Rates,
    /// FastMCP on Redis.
    Peer,
    /// A node that is killed.
    Takeover,
    /// A session that is idle in a transaction.
    Session,
    /// Many stored tasks.
    Growth,
}

impl Part {
    /// All of them.
    const ALL: [Self; 5] = [Self::Rates, Self::Peer, Self::Takeover, Self::Session, Self::Growth];
}

/// What can be set on the command line.
#[derive(Debug, clap::Args)]
pub struct NodesArgs {
    /// A short run of about two minutes: shows that everything works, but its numbers say little.
    #[arg(long)]
    quick: bool,
    /// Measures with a million stored tasks, too.
    #[arg(long)]
    full: bool,
    /// Measures only this; may be given more than once.
    #[arg(long, value_name = "PART")]
    only: Vec<Part>,
    /// Where the JSON document goes; standard output if absent.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Where a plot of the rates goes, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// The version of PostgreSQL: 15 or 18. The newest that is there, if absent.
    #[arg(long, value_name = "MAJOR")]
    postgres: Option<u32>,
    /// Interleaved rounds of most measures.
    #[arg(long)]
    rounds: Option<usize>,
    /// Connections of the load generator, with all nodes together.
    #[arg(long, default_value_t = 64)]
    connections: usize,
}

/// What is going to be measured.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// Whether this is a short run.
    pub quick: bool,
    /// What is measured.
    pub parts: Vec<Part>,
    /// Interleaved rounds of most measures.
    pub rounds: usize,
    /// Connections of the load generator, with all nodes together.
    pub connections: usize,
    /// Tasks that one round creates.
    pub creates: usize,
    /// Live tasks of each node that are read.
    pub readable: usize,
    /// Reads of one round.
    pub reads: usize,
    /// Tasks that write at once.
    pub writers: usize,
    /// Texts that each of them writes.
    pub texts: usize,
    /// Pages of output that one round reads.
    pub pages: usize,
    /// Texts that one round writes at a set pace, to be read at once.
    pub ticks: usize,
    /// Rounds in which a node is killed.
    pub takeovers: usize,
    /// One of so many.
    pub takeover_nodes: Vec<usize>,
    /// Tasks that it runs.
    pub stranded: usize,
    /// Rounds with and without an idle session.
    pub session_rounds: usize,
    /// How long each of them takes.
    pub session_seconds: u64,
    /// Numbers of stored tasks.
    pub stored: Vec<usize>,
    /// Tasks that one round creates there.
    pub growth_creates: usize,
    /// Reads of each kind there.
    pub growth_reads: usize,
    /// Texts that each of the writing tasks writes there.
    pub growth_texts: usize,
    /// How many servers of FastMCP there are at most.
    pub peer_nodes_max: usize,
    /// Tasks that one round creates there.
    pub peer_creates: usize,
    /// Reads of one round there.
    pub peer_reads: usize,
}

impl Plan {
    /// Whether `part` is measured.
    pub fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }
}

impl NodesArgs {
    fn plan(&self) -> Plan {
        let amount = |full: usize, quick: usize| if self.quick { quick } else { full };
        let mut stored = if self.quick { vec![1_000, 10_000] } else { vec![1_000, 10_000, 100_000] };
        if self.full {
            stored.push(1_000_000);
        }
        Plan {
            quick: self.quick,
            parts: if self.only.is_empty() { Part::ALL.to_vec() } else { self.only.clone() },
            rounds: self.rounds.unwrap_or(amount(3, 1)).max(1),
            connections: self.connections.max(1),
            creates: amount(8_000, 1_500),
            readable: 100,
            reads: amount(10_000, 2_000),
            writers: 64,
            texts: amount(10_000, 2_000),
            pages: amount(3_000, 500),
            ticks: amount(300, 100),
            takeovers: amount(2, 1),
            takeover_nodes: if self.quick { vec![2] } else { vec![2, 4] },
            stranded: amount(50, 20),
            session_rounds: amount(2, 1),
            session_seconds: if self.quick { 5 } else { 30 },
            stored,
            growth_creates: amount(3_000, 1_000),
            growth_reads: amount(6_000, 1_000),
            growth_texts: amount(2_000, 500),
            peer_nodes_max: amount(4, 1),
            peer_creates: amount(500, 200),
            peer_reads: amount(1_000, 300),
        }
    }
}

/// What every part needs.
pub struct Bench {
    plan: Plan,
    database: Database,
    scratch: Scratch,
}

/// Measures everything that was asked for, and shows it.
pub async fn run(args: &NodesArgs) -> Result<ExitCode> {
    raise_open_files();
    // Where the database is, too: it belongs to another user, who may not enter every directory.
    let scratch = Scratch::new(&std::env::temp_dir().join("taskwire-bench"))?;
    let machine = Machine::look(scratch.path())?;
    let bench = Bench { plan: args.plan(), database: Database::start(args.postgres).await?, scratch };
    let mut found = Found::default();
    if machine.sync_us < MEMORY_SYNC_US {
        found.notes.push("the directory for temporary files is in memory, where commits cost nothing: let TMPDIR name another".to_owned());
    }
    measure(&bench, &mut found).await;
    let settings = SETTINGS.map(str::to_owned).to_vec();
    let report = Report::new(machine, bench.database.version.clone(), settings, bench.plan.clone(), found);
    eprint!("{}", table::render(&report));
    if let Some(path) = &args.plot {
        std::fs::write(path, plot::render(&report)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    put_out(&report, args.out.as_deref())?;
    Ok(if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Measures each part. What fails is written down, and does not keep the rest from being measured.
async fn measure(bench: &Bench, found: &mut Found) {
    let plan = &bench.plan;
    let programs = if plan.has(Part::Peer) { Programs::find().map(Some) } else { Ok(None) };
    let programs = programs.unwrap_or_else(|missing| {
        let note = format!("FastMCP on Redis was left out, because {missing}: `bash bench/peers/setup.sh` gets both or says how to");
        eprintln!("{note}");
        found.notes.push(note);
        None
    });
    if plan.has(Part::Rates) || programs.is_some() {
        let result = rates::rounds(bench, programs.as_ref(), found).await;
        found.note_failure("rates", result);
    }
    if plan.has(Part::Takeover) {
        let result = takeover::rounds(bench, found).await;
        found.note_failure("takeover", result);
    }
    if plan.has(Part::Session) {
        let result = session::rounds(bench, found).await;
        found.note_failure("idle session", result);
    }
    if plan.has(Part::Growth) {
        let result = growth::rounds(bench, found).await;
        found.note_failure("growth", result);
    }
}
