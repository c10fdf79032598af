//! Compares: with the peers, and with the targets of the design (its section 9).

use serde::Serialize;

use super::{Chunks, Measure, Mode, Report, TaskPhase, flow_label, median};
use crate::{
    client::{PER_SECOND, RUNS},
    plan::Stage,
    serve::Kind,
    stream::FEW_READERS,
};

/// Processor time of an `echo`, in microseconds.
const ECHO_US_MAX: f64 = 30.0;
/// Processor time of a `tasks/get`, in microseconds.
const GET_US_MAX: f64 = 35.0;
/// How much more a `tasks/get` may cost with many tasks.
const GET_GROWTH_MAX: f64 = 1.10;
/// The same for a create, over that on a fresh server.
const CREATE_GROWTH_MAX: f64 = 1.20;
/// Processor time of a durable create, in microseconds.
const CREATE_US_MAX: f64 = 80.0;
/// How much longer a push may take than on the bare server.
const PUSH_RATIO_MAX: f64 = 1.5;
/// Memory of an idle listen stream, in bytes.
const STREAM_BYTES_MAX: f64 = 16.0 * 1024.0;
/// Memory of a server with many stored tasks, in MiB: the bound of its cache (`cache_bytes`) and half as much again.
const STORED_MIB_MAX: f64 = 192.0;
/// From start to first answer, in seconds.
const START_SECONDS_MAX: f64 = 1.0;
/// How much of the bare server's stream a stream must reach.
const FLOW_RATIO_MIN: f64 = 0.70;
/// Processor time of a small chunk to one reader, in microseconds.
const FLOW_US_MAX: f64 = 2.0;
/// How much later than its commit a text may be received, in milliseconds.
const DELAY_MS_MAX: f64 = 2.0;
/// How much more of one processor the client may take than a reader that only takes the stream apart, in percentage points.
const CLIENT_PERCENT_MAX: f64 = 20.0;

/// Taskwire's processor time and throughput over a peer's.
#[derive(Debug, Serialize)]
pub struct Ratio {
    /// What was compared.
    pub measure: Measure,
    /// With whom.
    pub to: Kind,
    /// Taskwire's processor time for one, over the peer's: below 1 is better than the peer.
    pub cpu: f64,
    /// Taskwire's throughput over the peer's: above 1 is better than the peer.
    pub per_second: f64,
}

/// A target and what became of it.
#[derive(Debug, Serialize)]
pub struct Verdict {
    /// What is asked for.
    pub target: String,
    /// How much.
    pub goal: String,
    /// What was measured.
    pub measured: String,
    /// Whether it was reached; absent if it could not be measured.
    pub pass: Option<bool>,
}

pub(super) fn ratios(report: &Report) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    for measure in [Measure::Echo, Measure::Get, Measure::Create, Measure::Cycle] {
        for to in [Kind::Bare, Kind::Rmcp] {
            if let (Some(own), Some(peer)) = (report.series(measure, Kind::Taskwire, None), report.series(measure, to, None)) {
                ratios.push(Ratio { measure, to, cpu: own.cpu_us / peer.cpu_us, per_second: own.per_second / peer.per_second });
            }
        }
    }
    ratios
}

pub(super) fn targets(report: &Report) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    if report.plan.stages.iter().any(|stage| !matches!(stage, Stage::Stream | Stage::Client)) {
        verdicts.extend(task_targets(report));
    }
    if report.plan.has(Stage::Stream) {
        verdicts.extend(stream_targets(report));
    }
    if report.plan.has(Stage::Client) {
        verdicts.extend(client_targets(report));
    }
    verdicts
}

fn task_targets(report: &Report) -> Vec<Verdict> {
    let plan = &report.plan;
    let cpu = |measure: Measure, tasks: Option<usize>| report.series(measure, Kind::Taskwire, tasks).map(|series| series.cpu_us);
    let few = cpu(Measure::GetAmongMany, Some(plan.few));
    let many = cpu(Measure::GetAmongMany, Some(plan.tasks));
    let growth = few.zip(many).map(|(few, many)| many / few);
    let create_growth = cpu(Measure::Create, None).zip(cpu(Measure::CreateAmongMany, None)).map(|(fresh, late)| late / fresh);
    let push = |server: Kind| report.push_series(server, plan.listeners);
    let pushes = push(Kind::Taskwire).zip(push(Kind::Bare));
    let stored = report.memory_of(Kind::Taskwire, TaskPhase::Ended);
    let started = |held: TaskPhase| report.starts.iter().find(|start| start.held == held).map(|start| median(start.seconds.clone()));

    vec![
        at_most("`tools/call` echo, CPU".to_owned(), cpu(Measure::Echo, None), ECHO_US_MAX, "µs"),
        at_most(format!("`tasks/get` with {} tasks, CPU", plan.few), cpu(Measure::Get, None), GET_US_MAX, "µs"),
        at_most(format!("`tasks/get` with {} live tasks over {}, CPU", plan.tasks, plan.few), growth, GET_GROWTH_MAX, "×"),
        at_most("task create, durable, CPU".to_owned(), cpu(Measure::Create, None), CREATE_US_MAX, "µs"),
        at_most(
            format!("task create, durable, the last tenth of {} live tasks, CPU", plan.tasks),
            cpu(Measure::CreateAmongMany, None),
            CREATE_US_MAX,
            "µs",
        ),
        at_most(
            format!("task create, the last tenth of {} live tasks over a fresh server, CPU", plan.tasks),
            create_growth,
            CREATE_GROWTH_MAX,
            "×",
        ),
        at_most(
            format!("push to {} listeners, last one, over bare hyper", plan.listeners),
            pushes.map(|(own, bare)| own.last_ms_p50 / bare.last_ms_p50),
            PUSH_RATIO_MAX,
            "×",
        ),
        at_most("memory per idle open stream".to_owned(), pushes.map(|(own, _)| own.bytes_per_stream), STREAM_BYTES_MAX, "B"),
        at_most(
            format!("memory with {} ended tasks stored: bounded", plan.tasks),
            stored.map(|memory| memory.rss_bytes / 1024.0 / 1024.0),
            STORED_MIB_MAX,
            "MiB",
        ),
        at_most(format!("start to first answer, {} ended tasks stored", plan.tasks), started(TaskPhase::Ended), START_SECONDS_MAX, "s"),
        at_most(format!("start to first answer, {} tasks interrupted", plan.tasks), started(TaskPhase::Working), START_SECONDS_MAX, "s"),
    ]
}

fn stream_targets(report: &Report) -> Vec<Verdict> {
    let streams = &report.streams;
    let mut verdicts = Vec::new();
    for mode in [Mode::Live, Mode::Replay] {
        for chunks in [Chunks::Single, Chunks::Gathered] {
            for readers in FEW_READERS {
                let target = format!("stream {}, {readers} readers, text per second over bare", flow_label(mode, chunks));
                let ratio = streams.ratio(mode, chunks, readers).map(|ratio| ratio.text_per_second);
                verdicts.push(at_least(target, ratio, FLOW_RATIO_MIN, "×"));
            }
        }
    }
    // A large chunk costs more than this on any server, for its bytes alone.
    for mode in [Mode::Live, Mode::Replay] {
        for readers in FEW_READERS {
            let target = format!("stream {}, {readers} readers, CPU per event", flow_label(mode, Chunks::Single));
            let cpu = streams.flow(mode, Chunks::Single, Kind::Taskwire, readers).map(|series| series.cpu_us);
            verdicts.push(at_most(target, cpu, FLOW_US_MAX, "µs"));
        }
    }
    let commit = (!streams.commits.rounds.is_empty()).then_some(streams.commits.wait.p99_ms);
    for readers in FEW_READERS {
        let target = format!("append to receipt, {readers} readers, p99: one commit and {DELAY_MS_MAX} ms");
        let max = commit.map(|commit| ((commit + DELAY_MS_MAX) * 100.0).round() / 100.0);
        // Without the time of a commit there is nothing to compare with.
        let delay = streams.delay(Kind::Taskwire, readers).filter(|_| max.is_some()).map(|delay| delay.p99_ms);
        verdicts.push(at_most(target, delay, max.unwrap_or(DELAY_MS_MAX), "ms"));
    }
    let idle = streams.idle_bytes(Kind::Taskwire);
    verdicts.push(at_most("memory per idle stream of partial results".to_owned(), idle, STREAM_BYTES_MAX, "B"));
    verdicts
}

fn client_targets(report: &Report) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for server in [Kind::Bare, Kind::Taskwire] {
        for runs in RUNS {
            let target = format!("client, {PER_SECOND} partials/s from {}, {runs} runs, over SSE", server.name());
            verdicts.push(at_most(target, report.clients.more_percent(server, runs), CLIENT_PERCENT_MAX, "% core"));
        }
    }
    verdicts
}

/// Whether what was measured is enough.
pub fn at_least(target: String, measured: Option<f64>, min: f64, unit: &str) -> Verdict {
    Verdict { goal: format!("≥ {min} {unit}"), pass: measured.map(|value| value >= min), ..at_most(target, measured, min, unit) }
}

/// Whether what was measured is little enough.
pub fn at_most(target: String, measured: Option<f64>, max: f64, unit: &str) -> Verdict {
    Verdict {
        target,
        goal: format!("≤ {max} {unit}"),
        measured: measured.map_or_else(|| "not measured".to_owned(), |value| format!("{value:.2} {unit}")),
        pass: measured.map(|value| value <= max),
    }
}
