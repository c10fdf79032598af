//! Polls at a constant rate, whatever becomes of them: each has its moment, and its latency counts from there.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use tokio::{
    task::JoinSet,
    time::{sleep_until, timeout},
};

use super::{
    errors::{Errors, Kinds, kind_of, kind_of_response},
    streams::{Target, source},
};
use crate::{http::Conn, report::quantile, wire};

/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// How long after the end polls may still be sent whose moment was before it.
const LATE_MAX: Duration = Duration::from_secs(10);
/// Polls in a second on one connection, on average.
const PER_CONNECTION: usize = 10;

/// What became of one poll.
pub struct Poll {
    /// When it was to be sent, in seconds from the beginning.
    pub at: f64,
    /// How long its answer took from that moment on, in microseconds; none if there was no good one.
    pub us: Option<f64>,
}

/// What became of all.
#[derive(Default)]
pub struct Polls {
    /// Each that was sent.
    pub all: Vec<Poll>,
    /// How late polls were sent whose connection was free, in microseconds: the generator's fault.
    late_us: Vec<f64>,
    /// How many were never sent, because their connections waited for answers.
    unsent: u64,
    errors: Kinds,
}

/// Numbers about polls.
#[derive(Debug, Default, serde::Serialize)]
pub struct PollsFound {
    /// How many there were to be.
    pub offered: u64,
    /// How many were answered as they should be.
    pub answered: u64,
    /// The same in a second.
    pub per_second: f64,
    /// Median latency, in milliseconds.
    pub p50_ms: f64,
    /// 99th percentile of latency.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
    /// 99th percentile of how late the generator was.
    pub late_p99_ms: f64,
    /// What went wrong, by kind.
    pub errors: Kinds,
}

impl Polls {
    /// Polls these tasks in a scattered order, `rate` times a second for `span`.
    pub async fn run(addr: SocketAddr, targets: Arc<[Target]>, rate: usize, span: Duration) -> Result<Self> {
        let requests = targets.iter().map(|target| wire::authorized(&wire::get(addr, 1, &target.task), target.caller));
        let requests: Arc<[Vec<u8>]> = requests.collect();
        let connections = (rate / PER_CONNECTION).max(1);
        let (begin, errors) = (Instant::now() + Duration::from_millis(200), Arc::new(Errors::default()));
        let mut workers = JoinSet::new();
        for first in 0..connections {
            let worker = Worker { addr, requests: requests.clone(), errors: errors.clone(), first, connections, rate, begin, span };
            workers.spawn(worker.run());
        }
        let mut polls = Self::default();
        while let Some(worker) = workers.join_next().await {
            let done = worker.context("a worker broke")?;
            polls.all.extend(done.all);
            polls.late_us.extend(done.late_us);
            polls.unsent += done.unsent;
        }
        polls.errors = errors.take();
        if polls.unsent > 0 {
            polls.errors.insert("not sent: the answer to an earlier one was missing".to_owned(), polls.unsent);
        }
        Ok(polls)
    }

    /// Sums up what became of them in `span`.
    pub fn found(&self, span: Duration) -> PollsFound {
        let mut us: Vec<f64> = self.all.iter().filter_map(|poll| poll.us).collect();
        us.sort_by(f64::total_cmp);
        let mut late_us = self.late_us.clone();
        late_us.sort_by(f64::total_cmp);
        PollsFound {
            offered: self.all.len() as u64 + self.unsent,
            answered: us.len() as u64,
            per_second: us.len() as f64 / span.as_secs_f64(),
            p50_ms: quantile(&us, 0.5) / 1e3,
            p99_ms: quantile(&us, 0.99) / 1e3,
            max_ms: quantile(&us, 1.0) / 1e3,
            late_p99_ms: quantile(&late_us, 0.99) / 1e3,
            errors: self.errors.clone(),
        }
    }

    /// Until when, in seconds from the beginning, polls failed or took longer than `p99_ms`; looked at in steps of half a second.
    pub fn disturbed_until(&self, p99_ms: f64) -> f64 {
        const STEP: f64 = 0.5;
        let steps = self.all.iter().map(|poll| (poll.at / STEP) as usize).max().map_or(0, |last| last + 1);
        let mut latencies: Vec<Vec<f64>> = vec![Vec::new(); steps];
        let mut failed = vec![false; steps];
        for poll in &self.all {
            let step = (poll.at / STEP) as usize;
            match poll.us {
                Some(us) => latencies[step].push(us),
                None => failed[step] = true,
            }
        }
        let is_bad = |step: &usize| {
            let mut us = latencies[*step].clone();
            us.sort_by(f64::total_cmp);
            failed[*step] || quantile(&us, 0.99) > p99_ms * 1e3
        };
        (0..steps).rev().find(is_bad).map_or(0.0, |step| (step + 1) as f64 * STEP)
    }
}

/// Sends each poll whose number is `first` and a multiple of `connections`, on one connection.
struct Worker {
    addr: SocketAddr,
    requests: Arc<[Vec<u8>]>,
    errors: Arc<Errors>,
    first: usize,
    connections: usize,
    rate: usize,
    begin: Instant,
    span: Duration,
}

impl Worker {
    async fn run(self) -> Polls {
        let (mut polls, mut conn) = (Polls::default(), None);
        let total = (self.rate as f64 * self.span.as_secs_f64()) as usize;
        for nth in (self.first..total).step_by(self.connections) {
            let at = nth as f64 / self.rate as f64;
            let due = self.begin + Duration::from_secs_f64(at);
            if Instant::now() <= due {
                sleep_until(due.into()).await;
                polls.late_us.push(due.elapsed().as_secs_f64() * 1e6);
            } else if Instant::now() > self.begin + self.span + LATE_MAX {
                polls.unsent += 1;
                continue;
            }
            let answered = timeout(ANSWER_MAX, self.once(&mut conn, nth)).await.context("no answer").flatten();
            if let Err(error) = &answered {
                self.errors.count(kind_of(error));
            }
            polls.all.push(Poll { at, us: answered.is_ok().then(|| due.elapsed().as_secs_f64() * 1e6) });
        }
        polls
    }

    async fn once(&self, conn: &mut Option<Conn>, nth: usize) -> Result<()> {
        let mut open = match conn.take() {
            Some(open) => open,
            None => Conn::open_from(source(self.first), self.addr).await?,
        };
        let request = &self.requests[scattered(nth) % self.requests.len()];
        // One that fails is not used again.
        let response = open.exchange(request).await?;
        *conn = Some(open);
        if response.status != 200 || memchr::memmem::find(&response.body, br#""status":"working""#).is_none() {
            anyhow::bail!("{}", kind_of_response(&response));
        }
        Ok(())
    }
}

/// A number that looks random.
fn scattered(nth: usize) -> usize {
    nth.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 24
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbance_lasts_until_the_last_step_with_an_error_or_a_long_wait() {
        let good = |at| Poll { at, us: Some(1_000.0) };
        let mut polls = Polls { all: vec![good(0.1), good(0.6), good(1.1), good(1.7)], ..Polls::default() };
        assert_eq!(polls.disturbed_until(2.0), 0.0);
        polls.all.push(Poll { at: 0.7, us: None });
        assert_eq!(polls.disturbed_until(2.0), 1.0);
        polls.all.push(Poll { at: 1.2, us: Some(9_000.0) });
        assert_eq!(polls.disturbed_until(2.0), 1.5);
    }
}
