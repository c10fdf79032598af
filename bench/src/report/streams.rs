//! What was found about partial results.

use serde::Serialize;

use super::{median, quantile};
use crate::serve::Kind;

const MIB: f64 = 1024.0 * 1024.0;

/// How output is cut into chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Chunks {
    /// Each text of 64 bytes is a chunk.
    Single,
    /// Such texts are gathered to chunks of 16 KiB.
    Gathered,
}

/// When it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// While it is written.
    Live,
    /// From the beginning, after the task has ended.
    Replay,
}

/// What is read, for people.
pub fn flow_label(mode: Mode, chunks: Chunks) -> &'static str {
    match (mode, chunks) {
        (Mode::Live, Chunks::Single) => "live, 64 B",
        (Mode::Live, Chunks::Gathered) => "live, 16 KiB",
        (Mode::Replay, Chunks::Single) => "replay, 64 B",
        (Mode::Replay, Chunks::Gathered) => "replay, 16 KiB",
    }
}

/// One round of streams that are as fast as they can be. Amounts are those of all readers together.
#[derive(Debug, Clone, Default, Serialize)]
pub struct FlowSample {
    /// Until the last reader had the last text.
    pub seconds: f64,
    /// Chunks that came.
    pub chunks: u64,
    /// Bytes of the texts in them.
    pub text_bytes: u64,
    /// Bytes that came for them, events and HTTP's framing included.
    pub wire_bytes: u64,
    /// Processor time of the server for each chunk that came, in microseconds; that of writing it included.
    pub cpu_us: f64,
}

/// All rounds. The numbers are medians over the rounds.
#[derive(Debug, Clone, Serialize)]
pub struct FlowSeries {
    /// When it was read.
    pub mode: Mode,
    /// How it was cut.
    pub chunks: Chunks,
    /// By whom it was sent.
    pub server: Kind,
    /// To how many.
    pub readers: usize,
    /// Chunks in a second, to all readers together.
    pub chunks_per_second: f64,
    /// Chunks in a second, to one of them.
    pub chunks_per_second_each: f64,
    /// Text in a second, in MiB, to all readers together.
    pub text_mib_per_second: f64,
    /// Processor time of the server for each chunk to one reader, in microseconds.
    pub cpu_us: f64,
    /// Bytes of text in a chunk.
    pub text_bytes_per_chunk: f64,
    /// Bytes on the wire for a chunk.
    pub wire_bytes_per_chunk: f64,
    /// Those that are not its text.
    pub overhead_bytes_per_chunk: f64,
    /// The rounds.
    pub rounds: Vec<FlowSample>,
}

impl FlowSeries {
    fn sum_up(&mut self) {
        let over = |pick: fn(&FlowSample) -> f64| median(self.rounds.iter().map(pick).collect());
        let chunks_per_second = over(|round| round.chunks as f64 / round.seconds);
        let text_mib_per_second = over(|round| round.text_bytes as f64 / MIB / round.seconds);
        let cpu_us = over(|round| round.cpu_us);
        let text_bytes_per_chunk = over(|round| round.text_bytes as f64 / round.chunks as f64);
        let wire_bytes_per_chunk = over(|round| round.wire_bytes as f64 / round.chunks as f64);
        self.chunks_per_second = chunks_per_second;
        self.chunks_per_second_each = chunks_per_second / self.readers as f64;
        self.text_mib_per_second = text_mib_per_second;
        self.cpu_us = cpu_us;
        self.text_bytes_per_chunk = text_bytes_per_chunk;
        self.wire_bytes_per_chunk = wire_bytes_per_chunk;
        self.overhead_bytes_per_chunk = wire_bytes_per_chunk - text_bytes_per_chunk;
    }
}

/// How long something took in one round, or in the median of the rounds, in milliseconds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Spread {
    /// Half of them at most this long.
    pub p50_ms: f64,
    /// All but one in a hundred at most this long.
    pub p99_ms: f64,
}

impl Spread {
    /// That of these times, in microseconds.
    pub fn of(mut times_us: Vec<f64>) -> Self {
        times_us.sort_by(f64::total_cmp);
        Self { p50_ms: quantile(&times_us, 0.5) / 1e3, p99_ms: quantile(&times_us, 0.99) / 1e3 }
    }

    /// The median of the rounds, of each of both.
    pub fn median(rounds: &[Self]) -> Self {
        let over = |pick: fn(&Self) -> f64| median(rounds.iter().map(pick).collect());
        Self { p50_ms: over(|round| round.p50_ms), p99_ms: over(|round| round.p99_ms) }
    }
}

/// From the writing of a text to its receipt.
#[derive(Debug, Clone, Serialize)]
pub struct DelaySeries {
    /// By whom it was sent.
    pub server: Kind,
    /// To how many.
    pub readers: usize,
    /// Medians of the rounds.
    pub delay: Spread,
    /// The rounds.
    pub rounds: Vec<Spread>,
}

/// How long Taskwire's store takes to make one text durable, with nobody reading.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Commits {
    /// Medians of the rounds.
    pub wait: Spread,
    /// The rounds.
    pub rounds: Vec<Spread>,
}

/// Memory of streams on which nothing happens.
#[derive(Debug, Clone, Serialize)]
pub struct IdleSeries {
    /// Of which server.
    pub server: Kind,
    /// How many streams.
    pub streams: usize,
    /// For each of them, in bytes: median of the rounds.
    pub bytes_per_stream: f64,
    /// The rounds.
    pub rounds: Vec<f64>,
}

/// Taskwire over the bare server.
#[derive(Debug, Clone, Serialize)]
pub struct FlowRatio {
    /// When it was read.
    pub mode: Mode,
    /// How it was cut.
    pub chunks: Chunks,
    /// By how many.
    pub readers: usize,
    /// Text in a second; where both cut alike, this is also the ratio of chunks in a second. Above 1 is better.
    pub text_per_second: f64,
    /// Processor time for each chunk. Below 1 is better.
    pub cpu: f64,
}

/// Everything about partial results.
#[derive(Debug, Default, Serialize)]
pub struct Streams {
    /// Streams that are as fast as they can be.
    pub flows: Vec<FlowSeries>,
    /// The same, compared.
    pub ratios: Vec<FlowRatio>,
    /// From the writing of a text to its receipt.
    pub delays: Vec<DelaySeries>,
    /// The time of one commit.
    pub commits: Commits,
    /// Memory of idle streams.
    pub idle: Vec<IdleSeries>,
}

impl Streams {
    /// Adds one round of streams that are as fast as they can be.
    pub fn add_flow(&mut self, mode: Mode, chunks: Chunks, server: Kind, readers: usize, sample: FlowSample) {
        let of = (mode, chunks, server, readers);
        match self.flows.iter_mut().find(|series| (series.mode, series.chunks, series.server, series.readers) == of) {
            Some(series) => series.rounds.push(sample),
            None => self.flows.push(FlowSeries {
                mode,
                chunks,
                server,
                readers,
                chunks_per_second: 0.0,
                chunks_per_second_each: 0.0,
                text_mib_per_second: 0.0,
                cpu_us: 0.0,
                text_bytes_per_chunk: 0.0,
                wire_bytes_per_chunk: 0.0,
                overhead_bytes_per_chunk: 0.0,
                rounds: vec![sample],
            }),
        }
    }

    /// Adds one round of times from the writing of a text to its receipt.
    pub fn add_delays(&mut self, server: Kind, readers: usize, delays_us: Vec<f64>) {
        let round = Spread::of(delays_us);
        match self.delays.iter_mut().find(|series| (series.server, series.readers) == (server, readers)) {
            Some(series) => series.rounds.push(round),
            None => self.delays.push(DelaySeries { server, readers, delay: Spread::default(), rounds: vec![round] }),
        }
    }

    /// Adds one round of commits.
    pub fn add_commits(&mut self, waits_us: Vec<f64>) {
        self.commits.rounds.push(Spread::of(waits_us));
    }

    /// Adds one round of idle streams.
    pub fn add_idle(&mut self, server: Kind, streams: usize, bytes_per_stream: f64) {
        match self.idle.iter_mut().find(|series| (series.server, series.streams) == (server, streams)) {
            Some(series) => series.rounds.push(bytes_per_stream),
            None => self.idle.push(IdleSeries { server, streams, bytes_per_stream: 0.0, rounds: vec![bytes_per_stream] }),
        }
    }

    pub(super) fn sum_up(&mut self) {
        self.flows.iter_mut().for_each(FlowSeries::sum_up);
        self.delays.iter_mut().for_each(|series| series.delay = Spread::median(&series.rounds));
        self.commits.wait = Spread::median(&self.commits.rounds);
        self.idle.iter_mut().for_each(|series| series.bytes_per_stream = median(series.rounds.clone()));
        let own = self.flows.iter().filter(|series| series.server == Kind::Taskwire);
        self.ratios = own
            .filter_map(|own| {
                let bare = self.flow(own.mode, own.chunks, Kind::Bare, own.readers)?;
                Some(FlowRatio {
                    mode: own.mode,
                    chunks: own.chunks,
                    readers: own.readers,
                    text_per_second: own.text_mib_per_second / bare.text_mib_per_second,
                    cpu: own.cpu_us / bare.cpu_us,
                })
            })
            .collect();
    }

    pub(super) fn flow(&self, mode: Mode, chunks: Chunks, server: Kind, readers: usize) -> Option<&FlowSeries> {
        let of = (mode, chunks, server, readers);
        self.flows.iter().find(|series| (series.mode, series.chunks, series.server, series.readers) == of)
    }

    pub(super) fn ratio(&self, mode: Mode, chunks: Chunks, readers: usize) -> Option<&FlowRatio> {
        self.ratios.iter().find(|ratio| (ratio.mode, ratio.chunks, ratio.readers) == (mode, chunks, readers))
    }

    pub(super) fn delay(&self, server: Kind, readers: usize) -> Option<Spread> {
        self.delays.iter().find(|series| (series.server, series.readers) == (server, readers)).map(|series| series.delay)
    }

    pub(super) fn idle_bytes(&self, server: Kind) -> Option<f64> {
        self.idle.iter().find(|series| series.server == server).map(|series| series.bytes_per_stream)
    }
}
