//! What was found about nodes: collected, summed up, compared with the targets.

use anyhow::Result;
use serde::Serialize;

use super::{NODES, Plan, cluster::Cpu};
use crate::report::{Machine, Spread, Verdict, at_least, at_most, median};

/// How much of the rate of a bare client the nodes must reach.
const BARE_RATIO_MIN: f64 = 0.60;
/// How much of their rate they must keep beside a session that is idle in a transaction.
const SESSION_RATIO_MIN: f64 = 0.90;
/// How long the last task of a killed node may wait until it is run again, in seconds.
const TAKEOVER_SECONDS_MAX: f64 = 10.0;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Tasks that are made.
    Create,
    /// Chunks that are committed.
    Append,
    /// States that are read: of any task.
    Get,
    /// The same of tasks that run on another node.
    GetElsewhere,
    /// First pages of the output of tasks that have ended.
    Page,
}

impl What {
    /// Its name for people.
    pub fn label(self) -> &'static str {
        match self {
            Self::Create => "task create",
            Self::Append => "append of 64 B",
            Self::Get => "tasks/get",
            Self::GetElsewhere => "tasks/get, elsewhere",
            Self::Page => "partials/read",
        }
    }
}

/// Who does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    /// Nodes of Taskwire.
    Taskwire,
    /// A client of PostgreSQL that writes the same rows in the same batches, on as many connections as there were nodes.
    Bare,
    /// Servers of FastMCP that share a Redis.
    Fastmcp,
}

impl Who {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Taskwire => "taskwire",
            Self::Bare => "bare",
            Self::Fastmcp => "fastmcp",
        }
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Case {
    /// What is counted.
    pub what: What,
    /// Who does it.
    pub who: Who,
    /// How many of them.
    pub nodes: usize,
    /// Among how many stored tasks, where that is what is compared.
    pub stored: Option<usize>,
}

impl Case {
    /// With few stored tasks.
    pub fn new(what: What, who: Who, nodes: usize) -> Self {
        Self { what, who, nodes, stored: None }
    }

    /// By one node among so many stored tasks.
    pub fn among(what: What, stored: usize) -> Self {
        Self { stored: Some(stored), ..Self::new(what, Who::Taskwire, 1) }
    }
}

/// One round.
#[derive(Debug, Clone, Serialize)]
pub struct RateSample {
    /// How many in a second.
    pub per_second: f64,
    /// Processor time of all who do it together, for each, in microseconds.
    pub own_us: f64,
    /// The same of PostgreSQL, or of Redis.
    pub store_us: f64,
    /// How many of them one transaction had, on average.
    pub per_commit: Option<f64>,
}

impl RateSample {
    /// That of `count` in `seconds`, for which `spent` was needed.
    pub fn new(count: usize, seconds: f64, spent: Cpu) -> Self {
        let each = |seconds: f64| seconds * 1e6 / count.max(1) as f64;
        Self { per_second: count as f64 / seconds, own_us: each(spent.own), store_us: each(spent.store), per_commit: None }
    }
}

/// All rounds. The numbers are medians over the rounds.
#[derive(Debug, Clone, Serialize)]
pub struct RateSeries {
    /// What was measured.
    pub case: Case,
    /// How many in a second.
    pub per_second: f64,
    /// Processor time of all who do it together, for each, in microseconds.
    pub own_us: f64,
    /// The same of PostgreSQL, or of Redis.
    pub store_us: f64,
    /// How many of them one transaction had.
    pub per_commit: Option<f64>,
    /// The rounds.
    pub rounds: Vec<RateSample>,
}

impl RateSeries {
    fn sum_up(&mut self) {
        let over = |pick: fn(&RateSample) -> f64| median(self.rounds.iter().map(pick).collect());
        let (per_second, own_us, store_us) = (over(|round| round.per_second), over(|round| round.own_us), over(|round| round.store_us));
        let per_commit: Vec<f64> = self.rounds.iter().filter_map(|round| round.per_commit).collect();
        let per_commit = (!per_commit.is_empty()).then(|| median(per_commit));
        *self = Self { per_second, own_us, store_us, per_commit, ..self.clone() };
    }
}

/// From the writing of a text to its receipt.
#[derive(Debug, Clone, Serialize)]
pub struct PushSeries {
    /// How many nodes there are.
    pub nodes: usize,
    /// Whether the reader is on another node than the task.
    pub elsewhere: bool,
    /// Medians of the rounds.
    pub delay: Spread,
    /// The rounds.
    pub rounds: Vec<Spread>,
}

/// From the killing of a node until its tasks are run again, as a reader on another node sees it.
#[derive(Debug, Clone, Serialize)]
pub struct TakeoverSeries {
    /// How many nodes there were.
    pub nodes: usize,
    /// Tasks that the killed one ran.
    pub tasks: usize,
    /// Until half of them were, in seconds: median of the rounds.
    pub seconds_p50: f64,
    /// Until the last of them was: the longest of all rounds.
    pub seconds_max: f64,
    /// Each task of each round.
    pub rounds: Vec<Vec<f64>>,
}

impl TakeoverSeries {
    fn sum_up(&mut self) {
        self.seconds_p50 = median(self.rounds.iter().map(|round| median(round.clone())).collect());
        self.seconds_max = self.rounds.iter().flatten().copied().fold(0.0, f64::max);
    }
}

/// One round of creates and appends at once.
#[derive(Debug, Clone, Serialize)]
pub struct SessionSample {
    /// Tasks that were made and ended, in a second.
    pub creates_per_second: f64,
    /// Chunks that were committed, in a second.
    pub appends_per_second: f64,
    /// Processor time of PostgreSQL for one of either, in microseconds.
    pub store_us: f64,
}

/// All rounds. The numbers are medians over the rounds.
#[derive(Debug, Clone, Serialize)]
pub struct SessionSeries {
    /// Whether a session was idle in a transaction meanwhile.
    pub idle: bool,
    /// Tasks that were made and ended, in a second.
    pub creates_per_second: f64,
    /// Chunks that were committed, in a second.
    pub appends_per_second: f64,
    /// Processor time of PostgreSQL for one of either, in microseconds.
    pub store_us: f64,
    /// The rounds.
    pub rounds: Vec<SessionSample>,
}

impl SessionSeries {
    fn sum_up(&mut self) {
        let over = |pick: fn(&SessionSample) -> f64| median(self.rounds.iter().map(pick).collect());
        let creates_per_second = over(|round| round.creates_per_second);
        let appends_per_second = over(|round| round.appends_per_second);
        let store_us = over(|round| round.store_us);
        *self = Self { creates_per_second, appends_per_second, store_us, ..self.clone() };
    }
}

/// The rate of nodes over another one.
#[derive(Debug, Clone, Serialize)]
pub struct RateRatio {
    /// What is counted.
    pub what: What,
    /// Over whose rate.
    pub to: Who,
    /// How many nodes, or connections, or servers.
    pub nodes: usize,
    /// Above 1 is better than the other one.
    pub per_second: f64,
    /// Processor time with that of the store, over the same of the other one. Below 1 is better.
    pub cpu: f64,
}

/// The rates beside a session that is idle in a transaction, over those without.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct SessionRatio {
    /// Of creates.
    pub creates: f64,
    /// Of appends.
    pub appends: f64,
    /// Of both, which are in each other's way: their geometric mean.
    pub both: f64,
}

/// Everything as it was found.
#[derive(Debug, Default)]
pub struct Found {
    rates: Vec<RateSeries>,
    pushes: Vec<PushSeries>,
    takeovers: Vec<TakeoverSeries>,
    sessions: Vec<SessionSeries>,
    /// What a reader must know.
    pub notes: Vec<String>,
    failures: Vec<String>,
}

impl Found {
    /// Adds one round.
    pub fn rate(&mut self, case: Case, sample: RateSample) {
        match self.rates.iter_mut().find(|series| series.case == case) {
            Some(series) => series.rounds.push(sample),
            None => {
                let rounds = vec![sample];
                self.rates.push(RateSeries { case, per_second: 0.0, own_us: 0.0, store_us: 0.0, per_commit: None, rounds });
            }
        }
    }

    /// Adds one round of times, in microseconds.
    pub fn push(&mut self, nodes: usize, elsewhere: bool, delays_us: Vec<f64>) {
        let delay = Spread::of(delays_us);
        match self.pushes.iter_mut().find(|series| (series.nodes, series.elsewhere) == (nodes, elsewhere)) {
            Some(series) => series.rounds.push(delay),
            None => self.pushes.push(PushSeries { nodes, elsewhere, delay, rounds: vec![delay] }),
        }
    }

    /// Adds one round of times, in seconds.
    pub fn takeover(&mut self, nodes: usize, seconds: Vec<f64>) {
        match self.takeovers.iter_mut().find(|series| series.nodes == nodes) {
            Some(series) => series.rounds.push(seconds),
            None => {
                let tasks = seconds.len();
                self.takeovers.push(TakeoverSeries { nodes, tasks, seconds_p50: 0.0, seconds_max: 0.0, rounds: vec![seconds] });
            }
        }
    }

    /// Adds one round of creates and appends at once.
    pub fn session(&mut self, idle: bool, sample: SessionSample) {
        match self.sessions.iter_mut().find(|series| series.idle == idle) {
            Some(series) => series.rounds.push(sample),
            None => {
                let rounds = vec![sample];
                self.sessions.push(SessionSeries { idle, creates_per_second: 0.0, appends_per_second: 0.0, store_us: 0.0, rounds });
            }
        }
    }

    /// Writes down that something failed, if it did.
    pub fn note_failure(&mut self, part: &str, result: Result<()>) {
        if let Err(error) = result {
            eprintln!("{part}: {error:#}");
            self.failures.push(format!("{part}: {error:#}"));
        }
    }
}

/// The document.
#[derive(Debug, Serialize)]
pub struct Report {
    pub(super) machine: Machine,
    /// The version of PostgreSQL.
    pub(super) postgres: String,
    /// What PostgreSQL is set to, besides the defaults.
    pub(super) settings: Vec<String>,
    pub(super) plan: Plan,
    pub(super) rates: Vec<RateSeries>,
    pub(super) pushes: Vec<PushSeries>,
    pub(super) takeovers: Vec<TakeoverSeries>,
    pub(super) sessions: Vec<SessionSeries>,
    pub(super) ratios: Vec<RateRatio>,
    pub(super) session_ratio: Option<SessionRatio>,
    pub(super) targets: Vec<Verdict>,
    pub(super) notes: Vec<String>,
    /// What went wrong; empty if all numbers can be trusted.
    pub failures: Vec<String>,
}

impl Report {
    /// Sums up what was found.
    pub fn new(machine: Machine, postgres: String, settings: Vec<String>, plan: Plan, found: Found) -> Self {
        let Found { mut rates, mut pushes, mut takeovers, mut sessions, notes, failures } = found;
        rates.iter_mut().for_each(RateSeries::sum_up);
        pushes.iter_mut().for_each(|series| series.delay = Spread::median(&series.rounds));
        takeovers.iter_mut().for_each(TakeoverSeries::sum_up);
        sessions.iter_mut().for_each(SessionSeries::sum_up);
        // Rounds begin with another number of nodes each.
        rates.sort_by_key(|series| (series.case.what as u8, series.case.stored, series.case.nodes, series.case.who as u8));
        pushes.sort_by_key(|series| (series.nodes, series.elsewhere));
        let (ratios, session_ratio, targets) = (Vec::new(), None, Vec::new());
        let mut report =
            Self { machine, postgres, settings, plan, rates, pushes, takeovers, sessions, ratios, session_ratio, targets, notes, failures };
        report.ratios = report.rate_ratios();
        report.session_ratio = report.session_ratio();
        report.targets = report.verdicts();
        report
    }

    /// What was found of a case.
    pub fn rate(&self, case: Case) -> Option<&RateSeries> {
        self.rates.iter().find(|series| series.case == case)
    }

    fn rate_ratios(&self) -> Vec<RateRatio> {
        let mut ratios = Vec::new();
        for to in [Who::Bare, Who::Fastmcp] {
            for what in [What::Create, What::Append, What::Get] {
                for nodes in NODES {
                    let of = |who: Who| self.rate(Case::new(what, who, nodes));
                    if let (Some(own), Some(other)) = (of(Who::Taskwire), of(to)) {
                        let cpu = (own.own_us + own.store_us) / (other.own_us + other.store_us);
                        ratios.push(RateRatio { what, to, nodes, per_second: own.per_second / other.per_second, cpu });
                    }
                }
            }
        }
        ratios
    }

    fn session_ratio(&self) -> Option<SessionRatio> {
        let of = |idle: bool| self.sessions.iter().find(|series| series.idle == idle);
        let (with, without) = of(true).zip(of(false))?;
        let creates = with.creates_per_second / without.creates_per_second;
        let appends = with.appends_per_second / without.appends_per_second;
        Some(SessionRatio { creates, appends, both: (creates * appends).sqrt() })
    }

    fn verdicts(&self) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        for what in [What::Create, What::Append] {
            for nodes in NODES {
                let ratio = self.ratios.iter().find(|ratio| (ratio.what, ratio.to, ratio.nodes) == (what, Who::Bare, nodes));
                let target = format!("{}, {nodes} nodes, per second over a bare client", what.label());
                verdicts.push(at_least(target, ratio.map(|ratio| ratio.per_second), BARE_RATIO_MIN, "×"));
            }
        }
        let session = self.session_ratio.map(|ratio| ratio.both);
        verdicts.push(at_least("creates and appends beside an idle session, over without".to_owned(), session, SESSION_RATIO_MIN, "×"));
        let longest = self.takeovers.iter().map(|series| series.seconds_max).reduce(f64::max);
        verdicts.push(at_most("from a node's death until its last task is run again".to_owned(), longest, TAKEOVER_SECONDS_MAX, "s"));
        verdicts
    }
}
