//! What was found about the client.

use serde::Serialize;

use super::median;
use crate::{
    client::{PER_SECOND, Reader},
    serve::Kind,
};

/// How fast partial results come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Speed {
    /// At a set pace: 10,000 in a second.
    Paced,
    /// As fast as they are read.
    Full,
}

impl Speed {
    /// Its name for people.
    pub fn label(self) -> &'static str {
        match self {
            Self::Paced => "10,000 a second",
            Self::Full => "full speed",
        }
    }
}

/// One round of one reader.
#[derive(Debug, Clone, Serialize)]
pub struct ReadSample {
    /// Partial results in a second, of all runs together.
    pub per_second: f64,
    /// Processor time of the reader for each, in microseconds.
    pub cpu_us: f64,
}

/// All rounds. The numbers are medians over the rounds.
#[derive(Debug, Clone, Serialize)]
pub struct ReadSeries {
    /// How fast they came.
    pub speed: Speed,
    /// By whom they were sent.
    pub server: Kind,
    /// Of how many runs.
    pub runs: usize,
    /// By whom they were read.
    pub reader: Reader,
    /// Partial results in a second, of all runs together.
    pub per_second: f64,
    /// Processor time of the reader for each, in microseconds.
    pub cpu_us: f64,
    /// The same as a part of one processor, in percent.
    pub core_percent: f64,
    /// The rounds.
    pub rounds: Vec<ReadSample>,
}

impl ReadSeries {
    fn sum_up(&mut self) {
        let over = |pick: fn(&ReadSample) -> f64| median(self.rounds.iter().map(pick).collect());
        let (per_second, cpu_us) = (over(|round| round.per_second), over(|round| round.cpu_us));
        let core_percent = over(|round| percent(round.cpu_us, round.per_second));
        *self = Self { per_second, cpu_us, core_percent, ..self.clone() };
    }
}

/// The client over the reader that only takes the stream apart.
#[derive(Debug, Clone, Serialize)]
pub struct ReadDifference {
    /// How fast they came.
    pub speed: Speed,
    /// By whom they were sent.
    pub server: Kind,
    /// Of how many runs.
    pub runs: usize,
    /// How much more processor time each partial result takes, in microseconds.
    pub cpu_us: f64,
    /// The same as a part of one processor at 10,000 in a second, in percentage points; absent if they came at another
    /// speed, where each costs less.
    pub core_percent: Option<f64>,
    /// Partial results in a second over those of the other reader. Above 1 is better.
    pub per_second: f64,
}

/// Everything about the client.
#[derive(Debug, Default, Serialize)]
pub struct Clients {
    /// The readers.
    pub series: Vec<ReadSeries>,
    /// The same, compared.
    pub differences: Vec<ReadDifference>,
}

impl Clients {
    /// Adds one round of one reader.
    pub fn add(&mut self, speed: Speed, server: Kind, runs: usize, reader: Reader, sample: ReadSample) {
        let of = (speed, server, runs, reader);
        match self.series.iter_mut().find(|series| (series.speed, series.server, series.runs, series.reader) == of) {
            Some(series) => series.rounds.push(sample),
            None => self.series.push(ReadSeries {
                speed,
                server,
                runs,
                reader,
                per_second: 0.0,
                cpu_us: 0.0,
                core_percent: 0.0,
                rounds: vec![sample],
            }),
        }
    }

    pub(super) fn sum_up(&mut self) {
        self.series.iter_mut().for_each(ReadSeries::sum_up);
        let own = self.series.iter().filter(|series| series.reader == Reader::Client);
        self.differences = own
            .filter_map(|own| {
                let sse = self.reader(own.speed, own.server, own.runs, Reader::Sse)?;
                let cpu_us = own.cpu_us - sse.cpu_us;
                Some(ReadDifference {
                    speed: own.speed,
                    server: own.server,
                    runs: own.runs,
                    cpu_us,
                    core_percent: (own.speed == Speed::Paced).then(|| percent(cpu_us, PER_SECOND as f64)),
                    per_second: own.per_second / sse.per_second,
                })
            })
            .collect();
    }

    fn reader(&self, speed: Speed, server: Kind, runs: usize, reader: Reader) -> Option<&ReadSeries> {
        let of = (speed, server, runs, reader);
        self.series.iter().find(|series| (series.speed, series.server, series.runs, series.reader) == of)
    }

    /// How much more of one processor the client takes at 10,000 in a second.
    pub(super) fn more_percent(&self, server: Kind, runs: usize) -> Option<f64> {
        let of = (Speed::Paced, server, runs);
        self.differences.iter().find(|found| (found.speed, found.server, found.runs) == of)?.core_percent
    }
}

/// What so many in a second take of one processor.
fn percent(cpu_us: f64, per_second: f64) -> f64 {
    cpu_us * per_second / 1e6 * 100.0
}
