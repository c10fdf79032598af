//! What a server counts, and the text in which `/metrics` tells it.
//!
//! A server has one [`Metrics`], which its engine owns: numbers that any thread changes without a lock, and without memory of its own. What
//! can be seen anyway, such as the length of a queue, is not counted but read when somebody asks ([`Readings`]). Labels have a bound:
//! `labels` has all their values but the names of tools, of which `tools` has so many at most.

mod exposition;
mod families;
mod http;
mod labels;
mod process;
mod summary;
mod tools;
mod values;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use taskwire_core::{Timestamp, task::Status};

pub(crate) use self::{
    exposition::CONTENT_TYPE,
    http::{HttpMetrics, RequestLabels},
    labels::{Answer, Era, Feed, Refused, Stream, Takeover},
    process::own_memory,
    summary::Summary,
    tools::{CallCount, OpenTask, ToolMetrics},
    values::{Counted, Stopwatch},
};
use self::{
    labels::{ByLabel, LIMITS, METHODS},
    tools::ToolTable,
    values::{Counter, Gauge, Histogram},
};
use crate::clock::Clock;

/// From half a millisecond to ten seconds, in microseconds.
const COMMITS: &[u64] = &[500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 10_000_000];
/// As many tasks as commands can share a commit.
const WRITES: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
/// From a tenth of a millisecond to a minute, in microseconds.
const LAGS: &[u64] = &[100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000, 60_000_000];

/// What a server has counted since it began.
pub(crate) struct Metrics {
    began: Timestamp,
    tools: ToolTable,
    takeovers: ByLabel<Counter>,
    /// Runs that are no tasks yet.
    in_memory: Arc<Gauge>,
    commits: Histogram,
    commit_writes: Histogram,
    conflicts: Counter,
    limits: ByLabel<Counter>,
    outages: Counter,
    outage: Mutex<Outage>,
    feed_lags: ByLabel<Arc<Histogram>>,
    streams: ByLabel<Arc<Gauge>>,
    /// By era.
    requests: [ByLabel<Counter>; 2],
    http: HttpMetrics,
}

/// For how long the store could not be reached. All times are monotonic.
#[derive(Debug, Default)]
struct Outage {
    /// Since when it cannot.
    since: Option<Duration>,
    /// All outages that are over.
    before: Duration,
}

/// What nobody counts, because it can be read at any moment.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    pub(crate) queue_length: usize,
    pub(crate) queue_capacity: usize,
    /// Whether callers must try again later.
    pub(crate) is_away: bool,
    /// For how long the store could not be reached, all outages together.
    pub(crate) away_for: Duration,
    pub(crate) free_bytes: Option<u64>,
    pub(crate) used_bytes: Option<u64>,
    pub(crate) epoch: u64,
    pub(crate) lease_left: Option<Duration>,
    /// Nodes that are alive; none if the store could not say it at once.
    pub(crate) nodes: Option<usize>,
    /// Entries that were lost of the record of who did what.
    pub(crate) audit_lost: u64,
    pub(crate) sessions: usize,
    pub(crate) connections: usize,
    pub(crate) body_bytes: usize,
    /// Spans that a collector took.
    pub(crate) spans_sent: u64,
    /// Spans that no collector took in time.
    pub(crate) spans_dropped: u64,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("began", &self.began).finish_non_exhaustive()
    }
}

impl Metrics {
    /// Those of a server that begins now.
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            began: now,
            tools: ToolTable::new(),
            takeovers: ByLabel::counters(Takeover::LABELS),
            in_memory: Arc::default(),
            commits: Histogram::of_times(COMMITS),
            commit_writes: Histogram::of_numbers(WRITES),
            conflicts: Counter::default(),
            limits: ByLabel::counters(LIMITS),
            outages: Counter::default(),
            outage: Mutex::default(),
            feed_lags: ByLabel::new(Feed::LABELS, || Arc::new(Histogram::of_times(LAGS))),
            streams: ByLabel::new(Stream::LABELS, Arc::default),
            requests: [ByLabel::counters(METHODS), ByLabel::counters(METHODS)],
            http: HttpMetrics::new(),
        }
    }

    /// Everything, in the text format of Prometheus.
    pub(crate) fn text(&self, readings: &Readings) -> String {
        families::write(self, readings)
    }

    /// What is counted of the tool of this name. A tool that was asked for is told from then on, with zeros: a rate needs something to
    /// begin with.
    pub(crate) fn tool(&self, name: &str) -> &Arc<ToolMetrics> {
        self.tools.get(name)
    }

    /// A task of this tool runs here, until the result is dropped.
    pub(crate) fn open_task(&self, tool: &str, status: Status) -> OpenTask {
        OpenTask::new(self.tool(tool).clone(), status)
    }

    pub(crate) fn task_taken_over(&self, why: Takeover) {
        self.takeovers.at(why as usize).increment();
    }

    /// A call's work runs in memory, until the result is dropped.
    pub(crate) fn run_in_memory(&self) -> Counted {
        self.in_memory.count()
    }

    /// A request of this era, which may be a call.
    pub(crate) fn call(&self, era: Era) -> CallCount {
        CallCount::new(era)
    }

    /// The request is a call of this tool.
    pub(crate) fn begin_call(&self, call: &CallCount, tool: &str) {
        call.begin(self.tool(tool));
    }

    /// A commit of so many writes is done; some of them were refused, because another node was faster.
    pub(crate) fn committed(&self, took: Duration, writes: usize, conflicts: usize) {
        self.commits.record_time(took);
        self.commit_writes.record(writes as u64);
        self.conflicts.add(conflicts as u64);
    }

    /// The limit of this key has refused something.
    pub(crate) fn limit_reached(&self, key: &str) {
        self.limits.of(key).increment();
    }

    /// Whether the store can be reached has changed.
    pub(crate) fn set_store_away(&self, is_away: bool, now: Duration) {
        let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        match (outage.since, is_away) {
            (None, true) => {
                outage.since = Some(now);
                self.outages.increment();
            }
            (Some(since), false) => *outage = Outage { since: None, before: outage.before + now.saturating_sub(since) },
            _ => {}
        }
    }

    /// For how long the store could not be reached, all outages together.
    pub(crate) fn away_for(&self, now: Duration) -> Duration {
        let outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        outage.before + outage.since.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }

    /// Measures how long a change is durable before a reader takes it up.
    pub(crate) fn feed_lag(&self, feed: Feed, clock: &Arc<dyn Clock>) -> Stopwatch {
        Stopwatch::new(clock.clone(), self.feed_lags.at(feed as usize).clone())
    }

    /// A stream is open until the result is dropped.
    pub(crate) fn stream(&self, kind: Stream) -> Counted {
        self.streams.at(kind as usize).count()
    }

    /// A message came, with this method; with none it is a response.
    pub(crate) fn request(&self, era: Era, method: Option<&str>) {
        self.requests[era as usize].of(method.unwrap_or("response")).increment();
    }

    pub(crate) fn http(&self) -> &HttpMetrics {
        &self.http
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outages_are_counted_and_their_times_added_up() {
        let (metrics, second) = (Metrics::new(Timestamp::default()), Duration::from_secs);
        metrics.set_store_away(false, second(1));
        assert_eq!((metrics.outages.get(), metrics.away_for(second(9))), (0, Duration::ZERO));
        metrics.set_store_away(true, second(10));
        metrics.set_store_away(true, second(11));
        assert_eq!((metrics.outages.get(), metrics.away_for(second(13))), (1, second(3)), "it goes on");
        metrics.set_store_away(false, second(14));
        metrics.set_store_away(true, second(20));
        metrics.set_store_away(false, second(21));
        assert_eq!((metrics.outages.get(), metrics.away_for(second(99))), (2, second(5)));
    }

    #[test]
    fn a_method_that_nobody_knows_is_another_one() {
        let metrics = Metrics::new(Timestamp::default());
        metrics.request(Era::Modern, Some("tools/call"));
        metrics.request(Era::Legacy, None);
        for method in ["tools/call/x", "\" 1\n# TYPE", ""] {
            metrics.request(Era::Modern, Some(method));
        }
        let text = metrics.text(&Readings::default());
        let told: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("taskwire_requests_total")).collect();
        assert_eq!(
            told,
            ["{era=\"modern\",method=\"tools/call\"} 1", "{era=\"modern\",method=\"other\"} 3", "{era=\"legacy\",method=\"response\"} 1"]
        );
    }
}
