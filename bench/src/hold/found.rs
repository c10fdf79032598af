//! What came of a load that lasts, as a document and as text for people.

use std::fmt::{self, Write as _};

use serde::Serialize;

use super::{
    errors::{Kinds, unanswered},
    polls::PollsFound,
    streams::StreamsFound,
};
use crate::report::{Machine, Verdict, at_most, write_machine, write_remarks, write_targets};

/// Seconds after which memory is to stay as it is.
const SETTLED_SECONDS: usize = 60;
/// Seconds over which memory is averaged.
const AVERAGED_SECONDS: usize = 10;
/// How much memory may grow after the first minute.
const GROWTH_MAX: f64 = 1.05;
/// How long it may take until the base load is served as before.
const RECOVERY_MAX: f64 = 5.0;
const MIB: f64 = 1024.0 * 1024.0;

/// Memory of the server in one phase, in bytes.
#[derive(Debug, Default, Serialize)]
pub struct Memory {
    /// At its beginning.
    pub first: f64,
    /// After the first minute, or after half of a phase that is shorter than two; averaged over ten seconds.
    pub settled: f64,
    /// In the last ten seconds.
    pub last: f64,
    /// The most.
    pub most: f64,
}

impl Memory {
    /// Sums up what was seen second by second.
    pub fn of(looks: &[f64]) -> Self {
        let average = |looks: &[f64]| looks.iter().sum::<f64>() / looks.len().max(1) as f64;
        let settled = SETTLED_SECONDS.min(looks.len() / 2);
        let until = (settled + AVERAGED_SECONDS).min(looks.len());
        Self {
            first: looks.first().copied().unwrap_or_default(),
            settled: average(&looks[settled..until]),
            last: average(&looks[looks.len().saturating_sub(AVERAGED_SECONDS)..]),
            most: looks.iter().copied().fold(0.0, f64::max),
        }
    }

    fn growth(&self) -> f64 {
        self.last / self.settled.max(1.0)
    }
}

/// What one phase came to.
#[derive(Debug, Default, Serialize)]
pub struct PhaseFound {
    /// Its name.
    pub name: &'static str,
    /// How long it lasted.
    pub seconds: f64,
    /// Its polls.
    pub polls: PollsFound,
    /// The streams of the base load.
    pub streams: StreamsFound,
    /// Those that came besides.
    pub more_streams: Option<StreamsFound>,
    /// Memory of the server.
    pub memory: Memory,
    /// The most files that the server had open.
    pub open_files: usize,
    /// Processors that the server used.
    pub cpu: f64,
    /// Processors that the load generator used.
    pub own_cpu: f64,
}

/// What was found.
#[derive(Default)]
pub struct Found {
    /// The phases in order: the base load, more, the base load again.
    pub phases: Vec<PhaseFound>,
    /// How long it took until all streams of the base load were open.
    pub seconds_to_open: Option<f64>,
    /// How long it took after the larger load until the base load was served as before.
    pub seconds_to_recover: Option<f64>,
    /// What could not be measured.
    pub failures: Vec<String>,
}

/// The document.
#[derive(Serialize)]
pub struct Report {
    machine: Machine,
    seconds_to_open: Option<f64>,
    seconds_to_recover: Option<f64>,
    phases: Vec<PhaseFound>,
    targets: Vec<Verdict>,
    failures: Vec<String>,
}

impl Report {
    /// Judges what was found.
    pub fn new(machine: Machine, found: Found) -> Self {
        let targets = targets(&found);
        let Found { phases, seconds_to_open, seconds_to_recover, failures } = found;
        Self { machine, seconds_to_open, seconds_to_recover, phases, targets, failures }
    }

    /// Whether every target was reached.
    pub fn holds(&self) -> bool {
        self.failures.is_empty() && self.targets.iter().all(|target| target.pass == Some(true))
    }
}

fn sum(kinds: &Kinds) -> u64 {
    kinds.values().sum()
}

fn targets(found: &Found) -> Vec<Verdict> {
    let phase = |name: &str| found.phases.iter().find(|phase| phase.name == name);
    let (base, more, after) = (phase("base"), phase("more"), phase("after"));
    let count = |count: u64| count as f64;
    let errors = base.map(|base| count(sum(&base.polls.errors) + sum(&base.streams.errors)));
    let untold = base.map(|base| count(base.streams.gaps) + base.streams.behind as f64);
    let untold_after = after.map(|after| count(after.streams.gaps) + after.streams.behind as f64);
    let silent = more.map(|more| {
        let streams = more.more_streams.as_ref().map_or(0, |streams| unanswered(&streams.errors));
        count(unanswered(&more.polls.errors) + streams)
    });
    vec![
        at_most("base load: polls and streams with an error".to_owned(), errors, 0.0, ""),
        at_most("base load: changes that a stream was not told".to_owned(), untold, 0.0, ""),
        at_most("base load: memory at the end over that after a minute".to_owned(), base.map(|base| base.memory.growth()), GROWTH_MAX, "×"),
        at_most("more: polls and streams neither served nor refused".to_owned(), silent, 0.0, ""),
        at_most("more: streams of the base load that were lost".to_owned(), more.map(|more| count(more.streams.lost)), 0.0, ""),
        at_most("after: changes that a stream was not told".to_owned(), untold_after, 0.0, ""),
        at_most("after: time until the base load is served as before".to_owned(), found.seconds_to_recover, RECOVERY_MAX, "s"),
    ]
}

/// What was found, as text for people.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    write(&mut text, report).expect("writing to memory cannot fail");
    text
}

fn write(text: &mut String, report: &Report) -> fmt::Result {
    write_machine(text, &report.machine)?;
    if let Some(seconds) = report.seconds_to_open {
        writeln!(text, "all streams of the base load were open after {seconds:.1} s")?;
    }
    writeln!(
        text,
        "\n{:<8} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7}",
        "polls", "offered", "answered", "a second", "p50 ms", "p99 ms", "max ms", "late ms", "errors", "cpus", "own"
    )?;
    for phase in &report.phases {
        let polls = &phase.polls;
        writeln!(
            text,
            "{:<8} {:>9} {:>9} {:>9.0} {:>8.2} {:>8.2} {:>8.1} {:>8.2} {:>8} {:>7.2} {:>7.2}",
            phase.name,
            polls.offered,
            polls.answered,
            polls.per_second,
            polls.p50_ms,
            polls.p99_ms,
            polls.max_ms,
            polls.late_p99_ms,
            sum(&polls.errors),
            phase.cpu,
            phase.own_cpu
        )?;
    }
    writeln!(
        text,
        "\n{:<8} {:>8} {:>8} {:>9} {:>7} {:>7} {:>7} {:>8} {:>8} {:>8}",
        "streams", "wanted", "open", "told", "gaps", "behind", "lost", "p50 ms", "p99 ms", "errors"
    )?;
    for phase in &report.phases {
        write_streams(text, phase.name, &phase.streams)?;
        if let Some(streams) = &phase.more_streams {
            write_streams(text, "besides", streams)?;
        }
    }
    writeln!(text, "\n{:<8} {:>10} {:>12} {:>10} {:>10} {:>8}", "memory", "first MiB", "settled MiB", "last MiB", "most MiB", "files")?;
    for phase in &report.phases {
        let Memory { first, settled, last, most } = phase.memory;
        let [first, settled, last, most] = [first, settled, last, most].map(|bytes| bytes / MIB);
        writeln!(text, "{:<8} {first:>10.1} {settled:>12.1} {last:>10.1} {most:>10.1} {:>8}", phase.name, phase.open_files)?;
    }
    writeln!(text)?;
    for phase in &report.phases {
        let more = phase.more_streams.as_ref().map(|streams| &streams.errors);
        let groups = [("polls", Some(&phase.polls.errors)), ("streams", Some(&phase.streams.errors)), ("besides", more)];
        for (what, kinds) in groups {
            for (kind, count) in kinds.into_iter().flatten() {
                writeln!(text, "{:<8} {what}: {count} × {kind}", phase.name)?;
            }
        }
    }
    write_targets(text, &report.targets)?;
    write_remarks(text, &[], &report.failures)
}

fn write_streams(text: &mut String, name: &str, streams: &StreamsFound) -> fmt::Result {
    writeln!(
        text,
        "{name:<8} {:>8} {:>8} {:>9} {:>7} {:>7} {:>7} {:>8} {:>8} {:>8}",
        streams.wanted,
        streams.open,
        streams.notifications,
        streams.gaps,
        streams.behind,
        streams.lost,
        streams.delay_p50_ms,
        streams.delay_p99_ms,
        sum(&streams.errors)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_compared_with_that_after_the_first_minute() {
        let looks: Vec<f64> = (0..300).map(|second| if second < 60 { f64::from(second) } else { 100.0 }).collect();
        let memory = Memory::of(&looks);
        assert_eq!((memory.settled, memory.last, memory.most, memory.growth()), (100.0, 100.0, 100.0, 1.0));
        let short = Memory::of(&[1.0, 2.0, 2.0]);
        assert_eq!(short.most, 2.0);
        assert_eq!(Memory::of(&[]).first, 0.0);
    }
}
