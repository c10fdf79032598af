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
    process::{ReaderProcess, Scratch, ServerProcess},
    report::{Findings, ReadSample, Speed},
    serve::{self, Kind, Pour},
    stages::in_turn,
    stream::new_gate,
    wire,
};

/// Partial results in a second where they come at a set pace, of all calls together.
pub const PER_SECOND: usize = 10_000;
/// Calls at once.
pub const RUNS: [usize; 2] = [1, 10];
/// What a reader says when it has all its streams.
pub const READY: &str = "ready";
/// Bytes of one text.
const TEXT_BYTES: usize = 64;
/// Pause before a measure: a client may have opened its stream once more by then, for the last of its calls.
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
pub struct ReadArgs {
    /// Which reader.
    kind: Reader,
    /// Where the server is.
    #[arg(long)]
    addr: SocketAddr,
    /// How many calls it makes, to read what comes of all of them at once.
    #[arg(long)]
    runs: usize,
    // The arguments of each call.
    #[command(flatten)]
    pour: Pour,
}

impl ReadArgs {
    /// Partial results that must come.
    fn partials(&self) -> u64 {
        (self.runs * self.pour.texts) as u64
    }
}

/// Says that all streams are there.
fn say_ready() {
    println!("{READY}");
}

/// What a reader has read.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReadResult {
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
pub async fn run(read: ReadArgs) -> Result<()> {
    serve::exit_with_stdin();
    let span = match read.kind {
        Reader::Sse => sse::read(&read).await?,
        Reader::Client => drain::read(&read).await?,
    };
    let result = ReadResult { partials: read.partials(), seconds: span.last.duration_since(span.first).as_secs_f64() };
    println!("{}", serde_json::to_string(&result)?);
    // Its processor time is read from outside, while it is there.
    std::future::pending().await
}

/// Each round: fresh servers, each measure with each reader in turn.
pub async fn rounds(plan: &Plan, scratch: &Scratch, findings: &mut Findings) -> Result<()> {
    for round in 0..plan.rounds {
        eprintln!("round {} of {}: readers of {RUNS:?} runs, {PER_SECOND} partials a second and full speed", round + 1, plan.rounds);
        let dir = scratch.fresh()?;
        let own = ServerProcess::start_uncoalesced(&dir).await?;
        let bare = ServerProcess::start(Kind::Bare, &scratch.fresh()?).await?;
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
async fn once(plan: &Plan, server: &ServerProcess, speed: Speed, runs: usize, reader: Reader) -> Result<ReadSample> {
    let (partials, pause_us) = match speed {
        // Each call has its part of the pace.
        Speed::Paced => (plan.partials, (1_000_000 * runs / PER_SECOND) as u64),
        Speed::Full => (plan.partials_at_once, 0),
    };
    let pour = Pour { gate: new_gate(), texts: (partials / runs).max(1), size: TEXT_BYTES, pause_us };
    let mut reading = ReaderProcess::start(reader, server, runs, &pour).await?;
    sleep(OPEN).await;
    let mut conn = Conn::open(server.addr).await?;
    let cpu = reading.cpu()?;
    wire::expect(&conn.exchange(&wire::open(server.addr, &pour.gate)).await?, "opened")?;
    let result = reading.result().await?;
    sleep(SETTLE).await;
    let cpu = reading.cpu()? - cpu;
    reading.kill().await?;
    ensure!(result.seconds > 0.0, "everything came at once: {} partial results are too few", result.partials);
    Ok(ReadSample { per_second: result.partials as f64 / result.seconds, cpu_us: cpu * 1e6 / result.partials as f64 })
}
