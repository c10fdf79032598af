//! The client: what it takes to read partial results with it, beside a reader that only takes the stream apart. Each reader
//! is a process of its own: this program again.

mod drain;
mod sse;

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::{
    http::Conn,
    plan::Plan,
    process::{Reading, Scratch, Server},
    report::{Findings, ReadSample, Speed},
    serve::{self, Kind, Pour},
    stages::in_turn,
    stream::new_gate,
    wire,
};

/// Partial results in a second where they come at a set pace, of all runs together.
pub const PER_SECOND: usize = 10_000;
/// Runs at once.
pub const RUNS: [usize; 2] = [1, 10];
/// What a reader says when it has all its streams.
pub const READY: &str = "ready";
/// Bytes of one text.
const TEXT_BYTES: usize = 64;
/// Pause before a measure: a client may have opened its stream once more by then, for the last of its runs.
const OPEN: Duration = Duration::from_millis(500);
/// Pause after it, so that what it leaves to be done is counted with it.
const SETTLE: Duration = Duration::from_millis(100);

/// Which reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Reader {
    /// One that takes server-sent events apart and counts them.
    Sse,
    /// This project's client.
    Client,
}

impl Reader {
    /// All of them.
    const ALL: [Self; 2] = [Self::Sse, Self::Client];

    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sse => "sse",
            Self::Client => "client",
        }
    }
}

/// How a reader is started.
#[derive(Debug, clap::Args)]
pub struct Read {
    /// Which reader.
    kind: Reader,
    /// Where the server is.
    #[arg(long)]
    addr: SocketAddr,
    /// How many calls it makes, to read what comes of all of them at once.
    #[arg(long)]
    runs: usize,
    // What each of them is told.
    #[command(flatten)]
    pour: Pour,
}

impl Read {
    /// Partial results that must come.
    fn partials(&self) -> u64 {
        (self.runs * self.pour.texts) as u64
    }
}

/// Says that all streams are there.
fn say_ready() {
    println!("{READY}");
}

/// What a reader has got.
#[derive(Debug, Serialize, Deserialize)]
pub struct Got {
    /// Partial results.
    pub partials: u64,
    /// From the first of them to the last.
    pub seconds: f64,
}

/// When the first and the last partial result came.
#[derive(Debug, Clone, Copy)]
struct Span {
    first: Instant,
    last: Instant,
}

/// Reads everything, says what it was, and waits to be killed.
pub async fn run(read: Read) -> Result<()> {
    serve::end_with_input();
    let span = match read.kind {
        Reader::Sse => sse::read(&read).await?,
        Reader::Client => drain::read(&read).await?,
    };
    let got = Got { partials: read.partials(), seconds: span.last.duration_since(span.first).as_secs_f64() };
    println!("{}", serde_json::to_string(&got)?);
    // Its processor time is read from outside, while it is there.
    std::future::pending().await
}

/// Each round: fresh servers, each measure with each reader in turn.
pub async fn rounds(plan: &Plan, scratch: &Scratch, findings: &mut Findings) -> Result<()> {
    for round in 0..plan.rounds {
        eprintln!("round {} of {}: readers of {RUNS:?} runs, {PER_SECOND} partials a second and full speed", round + 1, plan.rounds);
        let dir = scratch.fresh()?;
        let own = Server::start_uncoalesced(&dir).await?;
        let bare = Server::start(Kind::Bare, &scratch.fresh()?).await?;
        for server in [&bare, &own] {
            for speed in [Speed::Paced, Speed::Full] {
                for runs in RUNS {
                    for reader in in_turn(Reader::ALL, round) {
                        match once(plan, server, speed, runs, reader).await {
                            Ok(sample) => findings.clients.add(speed, server.kind, runs, reader, sample),
                            Err(error) => {
                                let (reader, server) = (reader.name(), server.kind.name());
                                findings.note_failure(&format!("{}, {runs} runs on {server}, {reader}", speed.label()), Err(error));
                            }
                        }
                    }
                }
            }
        }
        own.kill().await?;
        bare.kill().await?;
        // Each round leaves some hundred megabytes.
        std::fs::remove_dir_all(dir)?;
    }
    Ok(())
}

/// Has one reader read everything.
async fn once(plan: &Plan, server: &Server, speed: Speed, runs: usize, reader: Reader) -> Result<ReadSample> {
    let (partials, pause_us) = match speed {
        // Each run has its part of the pace.
        Speed::Paced => (plan.partials, (1_000_000 * runs / PER_SECOND) as u64),
        Speed::Full => (plan.partials_at_once, 0),
    };
    let pour = Pour { gate: new_gate(), texts: (partials / runs).max(1), size: TEXT_BYTES, pause_us };
    let mut reading = Reading::start(reader, server, runs, &pour).await?;
    sleep(OPEN).await;
    let mut conn = Conn::open(server.addr).await?;
    let cpu = reading.cpu()?;
    wire::expect(&conn.exchange(&wire::open(server.addr, &pour.gate)).await?, "opened")?;
    let got = reading.got().await?;
    sleep(SETTLE).await;
    let cpu = reading.cpu()? - cpu;
    reading.kill().await?;
    ensure!(got.seconds > 0.0, "everything came at once: {} partial results are too few", got.partials);
    Ok(ReadSample { per_second: got.partials as f64 / got.seconds, cpu_us: cpu * 1e6 / got.partials as f64 })
}
