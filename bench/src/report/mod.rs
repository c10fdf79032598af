//! What was found: collected, summed up, compared, shown.

mod clients;
mod judge;
mod streams;
mod table;

use std::{fs::File, io::Write as _, path::Path, time::Instant};

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::{load::LoadResult, plan::Plan, push::Pushes, serve::Kind};

pub use clients::{Clients, ReadSample, Speed};
pub use judge::{Ratio, Verdict, at_least, at_most};
pub use streams::{Chunks, FlowSample, Mode, Spread, Streams, flow_label};
pub use table::{write_machine, write_remarks, write_targets};

/// What a load does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// `tools/call` of a tool that answers at once.
    Echo,
    /// `tasks/get` with few live tasks.
    Get,
    /// `tasks/get` with few and with many live tasks, measured in turns.
    GetAmongMany,
    /// `tools/call` of a tool that becomes a task.
    Create,
    /// The same, as the last tenth of many live tasks.
    CreateAmongMany,
    /// From `tools/call` to a `tasks/get` that says `completed`.
    Cycle,
}

impl Measure {
    /// Its name for people.
    pub fn label(self) -> &'static str {
        match self {
            Self::Echo => "tools/call echo",
            Self::Get => "tasks/get",
            Self::GetAmongMany => "tasks/get, in turns",
            Self::Create => "task create",
            Self::CreateAmongMany => "task create, late",
            Self::Cycle => "create to completed",
        }
    }
}

/// What the tasks are that a server holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskPhase {
    /// Their work is running, and waits.
    Working,
    /// They are completed, and only stored.
    Ended,
}

impl TaskPhase {
    /// The tool that makes such tasks.
    pub fn tool(self) -> &'static str {
        match self {
            Self::Working => "park",
            Self::Ended => "quick",
        }
    }
}

/// One round of one load on one server.
#[derive(Debug, Clone, Serialize)]
pub struct Sample {
    /// Successes in a second.
    pub per_second: f64,
    /// Processor time of the server for each success, in microseconds.
    pub cpu_us: f64,
    /// Half of the successes took at most this long, in microseconds.
    pub p50_us: f64,
    /// All but one in a hundred took at most this long.
    pub p99_us: f64,
    /// How many requests failed.
    pub errors: usize,
    /// How the first one failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
}

impl Sample {
    /// Sums up a load that took the server `cpu` seconds.
    pub fn new(load: &LoadResult, cpu: f64) -> Self {
        let count = load.latencies_us.len() as f64;
        Self {
            per_second: count / load.seconds,
            cpu_us: cpu * 1e6 / count.max(1.0),
            p50_us: quantile(&load.latencies_us, 0.5),
            p99_us: quantile(&load.latencies_us, 0.99),
            errors: load.errors,
            first_error: load.first_error.clone(),
        }
    }
}

/// All rounds of one load on one server. The numbers are medians over the rounds.
#[derive(Debug, Clone, Serialize)]
pub struct Series {
    /// What was done.
    pub measure: Measure,
    /// By whom.
    pub server: Kind,
    /// Tasks that were alive.
    pub tasks: usize,
    /// Successes in a second.
    pub per_second: f64,
    /// Processor time of the server for each success, in microseconds.
    pub cpu_us: f64,
    /// Median latency, in microseconds.
    pub p50_us: f64,
    /// 99th percentile of latency, in microseconds.
    pub p99_us: f64,
    /// Whether a request failed in any round.
    pub failed: bool,
    /// The rounds.
    pub rounds: Vec<Sample>,
}

impl Series {
    fn sum_up(&mut self) {
        let over = |pick: fn(&Sample) -> f64| median(self.rounds.iter().map(pick).collect());
        let (per_second, cpu_us) = (over(|round| round.per_second), over(|round| round.cpu_us));
        let (p50_us, p99_us) = (over(|round| round.p50_us), over(|round| round.p99_us));
        let failed = self.rounds.iter().any(|round| round.errors > 0);
        *self = Self { per_second, cpu_us, p50_us, p99_us, failed, ..self.clone() };
    }
}

/// All rounds of pushes to some listeners.
#[derive(Debug, Clone, Serialize)]
pub struct PushSeries {
    /// By whom.
    pub server: Kind,
    /// Open streams.
    pub listeners: usize,
    /// Milliseconds until the last listener knew: median of all ends.
    pub last_ms_p50: f64,
    /// The 95th percentile.
    pub last_ms_p95: f64,
    /// Milliseconds between the first and the last listener: median of all ends.
    pub spread_ms_p50: f64,
    /// Processor time for each notification, in microseconds: median of the rounds.
    pub cpu_us: f64,
    /// Memory for each open stream, in bytes: median of the rounds. Says little for few streams.
    pub bytes_per_stream: f64,
    last_ms: Vec<f64>,
    spread_ms: Vec<f64>,
    cpu_us_rounds: Vec<f64>,
    bytes_per_stream_rounds: Vec<f64>,
}

impl PushSeries {
    fn sum_up(&mut self) {
        self.last_ms.sort_by(f64::total_cmp);
        self.last_ms_p50 = quantile(&self.last_ms, 0.5);
        self.last_ms_p95 = quantile(&self.last_ms, 0.95);
        self.spread_ms_p50 = median(self.spread_ms.clone());
        self.cpu_us = median(self.cpu_us_rounds.clone());
        self.bytes_per_stream = median(self.bytes_per_stream_rounds.clone());
    }
}

/// What tasks keep in memory.
#[derive(Debug, Clone, Serialize)]
pub struct Memory {
    /// Of which server.
    pub server: Kind,
    /// What the tasks are.
    pub held: TaskPhase,
    /// How many.
    pub tasks: usize,
    /// Growth of the process over all of them, in bytes for each.
    pub bytes_per_task: f64,
    /// The same over the second half only, when caches and pools have their size.
    pub bytes_per_task_late: f64,
    /// Resident memory of the process with all of them.
    pub rss_bytes: f64,
}

/// From the start of a process to its first answer.
#[derive(Debug, Clone, Serialize)]
pub struct Start {
    /// Tasks in the store.
    pub tasks: usize,
    /// What they were when the process before was killed.
    pub held: TaskPhase,
    /// Each start.
    pub seconds: Vec<f64>,
}

/// What was measured on.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Processors.
    pub cpus: usize,
    /// Their name.
    pub cpu: String,
    /// The kernel's version.
    pub kernel: String,
    /// How long the disk takes to make 4 KiB durable, in microseconds: median.
    pub sync_us: f64,
}

impl Machine {
    /// Looks at this machine, and at the disk that `dir` is on.
    pub fn look(dir: &Path) -> Result<Self> {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let cpu = cpuinfo.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(':'));
        Ok(Self {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            cpu: cpu.map_or("unknown", |(_, name)| name.trim()).to_owned(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            sync_us: sync_us(dir).context("cannot try the disk")?,
        })
    }
}

fn sync_us(dir: &Path) -> std::io::Result<f64> {
    let mut file = File::create(dir.join("sync-probe"))?;
    let mut times = Vec::new();
    for _ in 0..50 {
        let began = Instant::now();
        file.write_all(&[7; 4096])?;
        file.sync_data()?;
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times))
}

/// Everything as it was found.
#[derive(Debug, Default)]
pub struct Findings {
    loads: Vec<Series>,
    pushes: Vec<PushSeries>,
    /// What tasks keep in memory.
    pub memory: Vec<Memory>,
    /// From start to first answer.
    pub starts: Vec<Start>,
    /// Partial results.
    pub streams: Streams,
    /// The client.
    pub clients: Clients,
    /// What a reader must know.
    pub notes: Vec<String>,
    failures: Vec<String>,
}

impl Findings {
    /// Adds one round of a load.
    pub fn load(&mut self, measure: Measure, server: Kind, tasks: usize, sample: Sample) {
        if let Some(error) = &sample.first_error {
            self.failures.push(format!(
                "{} on {}: {} requests failed, the first one so: {error}",
                measure.label(),
                server.name(),
                sample.errors
            ));
        }
        match self.loads.iter_mut().find(|series| (series.measure, series.server, series.tasks) == (measure, server, tasks)) {
            Some(series) => series.rounds.push(sample),
            None => self.loads.push(Series {
                measure,
                server,
                tasks,
                per_second: 0.0,
                cpu_us: 0.0,
                p50_us: 0.0,
                p99_us: 0.0,
                failed: false,
                rounds: vec![sample],
            }),
        }
    }

    /// Adds one round of pushes.
    pub fn pushes(&mut self, server: Kind, listeners: usize, round: Pushes) {
        let known = self.pushes.iter().position(|series| (series.server, series.listeners) == (server, listeners));
        let index = known.unwrap_or_else(|| {
            self.pushes.push(PushSeries {
                server,
                listeners,
                last_ms_p50: 0.0,
                last_ms_p95: 0.0,
                spread_ms_p50: 0.0,
                cpu_us: 0.0,
                bytes_per_stream: 0.0,
                last_ms: Vec::new(),
                spread_ms: Vec::new(),
                cpu_us_rounds: Vec::new(),
                bytes_per_stream_rounds: Vec::new(),
            });
            self.pushes.len() - 1
        });
        let series = &mut self.pushes[index];
        series.last_ms.extend(round.last_ms);
        series.spread_ms.extend(round.spread_ms);
        series.cpu_us_rounds.push(round.cpu_us);
        series.bytes_per_stream_rounds.push(round.bytes_per_stream);
    }

    /// Writes down that a stage failed, if it did.
    pub fn note_failure(&mut self, stage: &str, result: Result<()>) {
        if let Err(error) = result {
            eprintln!("{stage}: {error:#}");
            self.failures.push(format!("{stage}: {error:#}"));
        }
    }
}

/// The document.
#[derive(Debug, Serialize)]
pub struct Report {
    machine: Machine,
    plan: Plan,
    loads: Vec<Series>,
    pushes: Vec<PushSeries>,
    memory: Vec<Memory>,
    starts: Vec<Start>,
    streams: Streams,
    clients: Clients,
    ratios: Vec<Ratio>,
    targets: Vec<Verdict>,
    notes: Vec<String>,
    /// What went wrong; empty if all numbers can be trusted.
    pub failures: Vec<String>,
}

impl Report {
    /// Sums up what was found.
    pub fn new(machine: Machine, plan: Plan, findings: Findings) -> Self {
        let Findings { mut loads, mut pushes, memory, starts, mut streams, mut clients, notes, failures } = findings;
        loads.iter_mut().for_each(Series::sum_up);
        pushes.iter_mut().for_each(PushSeries::sum_up);
        streams.sum_up();
        clients.sum_up();
        let (ratios, targets) = (Vec::new(), Vec::new());
        let mut report = Self { machine, plan, loads, pushes, memory, starts, streams, clients, ratios, targets, notes, failures };
        report.ratios = judge::ratios(&report);
        report.targets = judge::targets(&report);
        report
    }

    /// The document as text for people.
    pub fn table(&self) -> String {
        table::render(self)
    }

    fn series(&self, measure: Measure, server: Kind, tasks: Option<usize>) -> Option<&Series> {
        let fits =
            |series: &&Series| series.measure == measure && series.server == server && tasks.is_none_or(|tasks| tasks == series.tasks);
        self.loads.iter().find(fits).filter(|series| !series.failed)
    }

    fn push_series(&self, server: Kind, listeners: usize) -> Option<&PushSeries> {
        self.pushes.iter().find(|series| series.server == server && series.listeners == listeners)
    }

    fn memory_of(&self, server: Kind, phase: TaskPhase) -> Option<&Memory> {
        self.memory.iter().find(|memory| memory.server == server && memory.held == phase)
    }
}

/// Writes a document to a file, or to standard output.
pub fn put_out(report: &impl Serialize, out: Option<&Path>) -> Result<()> {
    let json = serde_json::to_string_pretty(report)?;
    match out {
        Some(path) => std::fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?,
        None => println!("{json}"),
    }
    Ok(())
}

/// The value below which the given part of the sorted `values` lies; zero if there are none.
pub fn quantile(values: &[f64], part: f64) -> f64 {
    let last = values.len().saturating_sub(1);
    values.get((last as f64 * part).round() as usize).copied().unwrap_or(0.0)
}

/// The value in the middle; zero if there are none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    quantile(&values, 0.5)
}
