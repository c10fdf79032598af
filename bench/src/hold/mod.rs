//! A load that lasts: thousands of open listen streams beside a constant rate of polls, several times as much for a while, and back.
//!
//! `streams` holds the streams, `polls` sends the polls, `errors` counts what goes wrong, `found` has what came of it.

mod errors;
mod found;
mod polls;
mod streams;

use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use tokio::{
    task::JoinHandle,
    time::{Instant, interval, sleep},
};

use self::{
    found::{Found, Memory, PhaseFound, Report},
    polls::Polls,
    streams::{Streams, Target},
};
use crate::{
    http::Conn,
    process::{self, Scratch, ServerProcess, need_open_files},
    report::{Machine, put_out},
    wire,
};

/// Tasks of one caller.
const TASKS: usize = 5;
/// How often a task changes.
const TICK: Duration = Duration::from_secs(5);
/// How long all streams may take to open.
const OPEN_MAX: Duration = Duration::from_secs(60);
/// How long a stream may need to be told the last change.
const BEHIND_MAX: Duration = Duration::from_secs(5);
/// How long the base load is looked at after the larger one.
const AFTER: Duration = Duration::from_secs(20);
/// Files that are open besides connections.
const OTHER_FILES: usize = 500;

/// What can be set on the command line.
#[derive(Debug, clap::Args)]
pub struct HoldArgs {
    /// Open listen streams of the base load.
    #[arg(long, default_value_t = 5_000)]
    streams: usize,
    /// Polls in a second of the base load.
    #[arg(long, default_value_t = 2_000)]
    polls: usize,
    /// How long the base load lasts.
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    /// How many times as much comes afterwards.
    #[arg(long, default_value_t = 3)]
    factor: usize,
    /// How long that lasts.
    #[arg(long, default_value_t = 60)]
    factor_seconds: u64,
    /// Callers that the load is dealt out to.
    #[arg(long, default_value_t = 100)]
    callers: usize,
    /// Where the JSON document goes; standard output if absent.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// A server under load, and what the load consists of.
struct Bench<'a> {
    args: &'a HoldArgs,
    server: &'a ServerProcess,
    targets: Arc<[Target]>,
}

/// Loads a server, and shows what came of it. Fails if it did not hold.
pub async fn run(args: &HoldArgs) -> Result<ExitCode> {
    let connections = (args.streams + args.polls / 10) * args.factor.max(1) + OTHER_FILES;
    need_open_files(connections as u64)?;
    let scratch = Scratch::new(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/bench-data"))?;
    let machine = Machine::look(scratch.path())?;
    let server = ServerProcess::start_for(args.callers.max(1), &scratch.fresh()?).await?;
    let bench = Bench { args, server: &server, targets: tasks(&server, args.callers.max(1)).await?.into() };
    let mut found = Found::default();
    if let Err(error) = bench.run(&mut found).await {
        found.failures.push(format!("{error:#}"));
    }
    let report = Report::new(machine, found);
    eprint!("{}", found::render(&report));
    put_out(&report, args.out.as_deref())?;
    server.kill().await?;
    Ok(if report.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The tasks of all callers, which change at different moments.
async fn tasks(server: &ServerProcess, callers: usize) -> Result<Vec<Target>> {
    let (mut conn, mut targets) = (Conn::open(server.addr).await?, Vec::new());
    let step = TICK / u32::try_from(callers * TASKS).unwrap_or(u32::MAX);
    for nth in 0..callers * TASKS {
        let (caller, after) = (nth % callers, step * u32::try_from(nth).unwrap_or(0));
        let request = wire::authorized(&wire::tick(server.addr, TICK, after), caller);
        let task = wire::task_id(&conn.exchange(&request).await?).context("a task cannot be made")?;
        targets.push(Target { caller, task });
    }
    // Each has said something.
    sleep(2 * TICK).await;
    Ok(targets)
}

impl Bench<'_> {
    async fn run(&self, found: &mut Found) -> Result<()> {
        let (args, addr) = (self.args, self.server.addr);
        let span = Duration::from_secs_f64(args.minutes * 60.0);
        eprintln!("{} streams and {} polls a second for {span:?}", args.streams, args.polls);
        let base = Streams::begin(addr, &self.targets, 0, args.streams);
        let opened = base.all_open(OPEN_MAX).await;
        found.seconds_to_open = opened.map(|opened| opened.as_secs_f64());
        let (mut phase, polls) = self.phase("base", args.polls, span).await?;
        phase.streams = base.found();
        phase.streams.behind = base.behind(addr, BEHIND_MAX).await?;
        let usual_p99_ms = polls.found(span).p99_ms;
        found.phases.push(phase);

        let span = Duration::from_secs(args.factor_seconds);
        eprintln!("{} times as much for {span:?}", args.factor);
        let more = Streams::begin(addr, &self.targets, args.streams, args.streams * (args.factor.max(1) - 1));
        let (mut phase, _) = self.phase("more", args.polls * args.factor, span).await?;
        (phase.streams, phase.more_streams) = (base.found(), Some(more.found()));
        found.phases.push(phase);
        drop(more);

        eprintln!("the base load again for {AFTER:?}");
        let began = Instant::now();
        let (reopened, after) = tokio::join!(base.all_open(AFTER), self.phase("after", args.polls, AFTER));
        let (mut phase, polls) = after?;
        phase.streams = base.found();
        phase.streams.behind = base.behind(addr, BEHIND_MAX).await.unwrap_or(base.wanted());
        found.phases.push(phase);
        // What is within the usual: twice as long, or a few milliseconds more.
        let disturbed = polls.disturbed_until((usual_p99_ms * 2.0).max(usual_p99_ms + 5.0));
        let reopened = reopened.unwrap_or(began.elapsed()).as_secs_f64();
        found.seconds_to_recover = Some(disturbed.max(reopened));
        Ok(())
    }

    /// Polls at this rate, and watches the server meanwhile.
    async fn phase(&self, name: &'static str, rate: usize, span: Duration) -> Result<(PhaseFound, Polls)> {
        let (server, own) = (self.server.pid(), std::process::id());
        let watching = Watching::begin(server);
        let (cpu, own_cpu, began) = (process::cpu(server)?, process::cpu(own)?, Instant::now());
        let polls = Polls::run(self.server.addr, self.targets.clone(), rate, span).await?;
        let seconds = began.elapsed().as_secs_f64();
        let (memory, open_files) = watching.end();
        let phase = PhaseFound {
            name,
            seconds,
            polls: polls.found(span),
            memory: Memory::of(&memory),
            open_files,
            cpu: (process::cpu(server)? - cpu) / seconds,
            own_cpu: (process::cpu(own)? - own_cpu) / seconds,
            ..PhaseFound::default()
        };
        Ok((phase, polls))
    }
}

/// Looks at a server each second.
struct Watching {
    looks: Arc<std::sync::Mutex<(Vec<f64>, usize)>>,
    looking: JoinHandle<()>,
}

impl Watching {
    fn begin(pid: u32) -> Self {
        let looks = Arc::new(std::sync::Mutex::new((Vec::new(), 0)));
        let seen = looks.clone();
        let looking = tokio::spawn(async move {
            let mut pace = interval(Duration::from_secs(1));
            loop {
                pace.tick().await;
                let (Ok(memory), Ok(files)) = (process::rss(pid), process::open_files(pid)) else { return };
                let mut seen = seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                seen.0.push(memory);
                seen.1 = seen.1.max(files);
            }
        });
        Self { looks, looking }
    }

    /// Its memory in bytes, second by second, and the most files that were open.
    fn end(self) -> (Vec<f64>, usize) {
        self.looking.abort();
        std::mem::take(&mut *self.looks.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}
