//! Listen streams that stay open: each is opened again when it was lost or refused, and checks that it is told every change of its task.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use memchr::memmem;
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::errors::{Errors, kind_of, kind_of_response};
use crate::{
    http::{Conn, Events, Listening},
    serve::unix_ns,
    wire,
};

/// Streams that are being opened at once.
const OPENING_MAX: usize = 256;
/// How long a stream may take to open.
const OPEN_MAX: Duration = Duration::from_secs(5);
/// How long a client waits before it opens a stream again: what `Retry-After` says.
const PAUSE: Duration = Duration::from_secs(1);
/// How often to look whether all is as it should be.
const LOOK: Duration = Duration::from_millis(20);
/// Milliseconds that are told apart.
const DELAYS: usize = 10_000;

/// A task, and whose it is.
#[derive(Clone)]
pub struct Target {
    /// The number of its caller.
    pub caller: usize,
    /// The task.
    pub task: String,
}

/// What streams have come to, since it was last taken.
pub struct Counts {
    /// How many are open.
    pub open: AtomicUsize,
    /// Notifications that came.
    notifications: AtomicU64,
    /// How often a change was left out, or came twice.
    gaps: AtomicU64,
    /// How many were lost that had been open.
    lost: AtomicU64,
    errors: Errors,
    /// From the report of a change to its receipt: how many took so many milliseconds.
    delays: Vec<AtomicU64>,
}

/// What streams came to in one phase.
#[derive(Debug, Default, serde::Serialize)]
pub struct StreamsFound {
    /// How many there were to be.
    pub wanted: usize,
    /// How many were open at the end.
    pub open: usize,
    /// Notifications that came.
    pub notifications: u64,
    /// How often a change was left out, or came twice.
    pub gaps: u64,
    /// How many had not been told the last change, seconds after it.
    pub behind: usize,
    /// How often a stream was lost that had been open.
    pub lost: u64,
    /// Median from the report of a change to its receipt, in milliseconds.
    pub delay_p50_ms: u64,
    /// 99th percentile of the same.
    pub delay_p99_ms: u64,
    /// Why streams could not be opened, or were lost.
    pub errors: super::errors::Kinds,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            open: AtomicUsize::new(0),
            notifications: AtomicU64::new(0),
            gaps: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            errors: Errors::default(),
            delays: (0..DELAYS).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl Counts {
    fn take(&self) -> StreamsFound {
        let delays: Vec<u64> = self.delays.iter().map(|count| count.swap(0, Ordering::Relaxed)).collect();
        StreamsFound {
            wanted: 0,
            open: self.open.load(Ordering::Relaxed),
            notifications: self.notifications.swap(0, Ordering::Relaxed),
            gaps: self.gaps.swap(0, Ordering::Relaxed),
            behind: 0,
            lost: self.lost.swap(0, Ordering::Relaxed),
            delay_p50_ms: part_of(&delays, 0.5),
            delay_p99_ms: part_of(&delays, 0.99),
            errors: self.errors.take(),
        }
    }
}

/// The place up to which the given part of all is.
fn part_of(counts: &[u64], part: f64) -> u64 {
    let wanted = (counts.iter().sum::<u64>() as f64 * part).ceil() as u64;
    let mut seen = 0;
    let place = counts.iter().position(|count| {
        seen += count;
        seen >= wanted
    });
    place.unwrap_or(0) as u64
}

/// Counts a stream as open while it exists.
struct OpenStream<'a>(&'a Counts);

impl<'a> OpenStream<'a> {
    fn new(counts: &'a Counts) -> Self {
        counts.open.fetch_add(1, Ordering::Relaxed);
        Self(counts)
    }
}

impl Drop for OpenStream<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Some streams. Dropped, they are closed.
pub struct Streams {
    readers: JoinSet<()>,
    counts: Arc<Counts>,
    /// For each stream its task, and the number of the last tick that it was told.
    told: Vec<(Target, Arc<AtomicU64>)>,
}

impl Streams {
    /// Begins to open so many streams, in turns on these tasks. `first` is the number of the first one.
    pub fn begin(addr: SocketAddr, targets: &[Target], first: usize, count: usize) -> Self {
        let (counts, opening) = (Arc::new(Counts::default()), Arc::new(Semaphore::new(OPENING_MAX)));
        let mut streams = Self { readers: JoinSet::new(), counts: counts.clone(), told: Vec::with_capacity(count) };
        for nth in first..first + count {
            let target = targets[nth % targets.len()].clone();
            let told = Arc::new(AtomicU64::new(0));
            let request = wire::authorized(&wire::listen(addr, nth, std::slice::from_ref(&target.task)), target.caller);
            let reader = Reader { addr, source: source(nth), request, counts: counts.clone(), told: told.clone() };
            streams.readers.spawn(reader.run(opening.clone()));
            streams.told.push((target, told));
        }
        streams
    }

    /// How many are to be open.
    pub fn wanted(&self) -> usize {
        self.told.len()
    }

    /// How many are open.
    pub fn open(&self) -> usize {
        self.counts.open.load(Ordering::Relaxed)
    }

    /// Waits until all are open, and gives how long that took; no longer than `max`.
    pub async fn all_open(&self, max: Duration) -> Option<Duration> {
        let began = Instant::now();
        while self.open() < self.wanted() {
            if began.elapsed() > max {
                return None;
            }
            sleep(LOOK).await;
        }
        Some(began.elapsed())
    }

    /// How many do not know yet what their tasks say now, if they are given so much time.
    pub async fn behind(&self, addr: SocketAddr, max: Duration) -> Result<usize> {
        let mut now = std::collections::HashMap::new();
        let mut conn = Conn::open(addr).await?;
        for (target, _) in &self.told {
            if !now.contains_key(&target.task) {
                let request = wire::authorized(&wire::get(addr, 0, &target.task), target.caller);
                let response = conn.exchange(&request).await?;
                wire::expect(&response, r#""status":"working""#)?;
                let (tick, _) = tick(&response.body).with_context(|| format!("the task {} does not tick", target.task))?;
                now.insert(target.task.clone(), tick);
            }
        }
        let began = Instant::now();
        loop {
            let is_behind = |(target, told): &&(Target, Arc<AtomicU64>)| told.load(Ordering::Relaxed) < now[&target.task];
            let behind = self.told.iter().filter(is_behind).count();
            if behind == 0 || began.elapsed() > max {
                return Ok(behind);
            }
            sleep(LOOK).await;
        }
    }

    /// What they have come to since this was asked last.
    pub fn found(&self) -> StreamsFound {
        StreamsFound { wanted: self.wanted(), ..self.counts.take() }
    }
}

/// Each address has less than thirty thousand ports.
pub fn source(nth: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, 2 + (nth % 8) as u8)
}

struct Reader {
    addr: SocketAddr,
    source: Ipv4Addr,
    request: Vec<u8>,
    counts: Arc<Counts>,
    told: Arc<AtomicU64>,
}

impl Reader {
    async fn run(self, opening: Arc<Semaphore>) {
        loop {
            // It is never closed.
            let Ok(turn) = opening.acquire().await else { return };
            let opened = timeout(OPEN_MAX, self.open()).await.context("a stream that does not open").flatten();
            drop(turn);
            let error = match opened {
                Err(error) => kind_of(&error),
                Ok(events) => {
                    let _open = OpenStream::new(&self.counts);
                    let error = self.follow(events).await;
                    self.counts.lost.fetch_add(1, Ordering::Relaxed);
                    format!("{} on an open stream", kind_of(&error))
                }
            };
            self.counts.errors.count(error);
            sleep(PAUSE).await;
        }
    }

    async fn open(&self) -> Result<Events> {
        match Conn::open_from(self.source, self.addr).await?.try_listen(&self.request).await? {
            Listening::Refused(response) => anyhow::bail!("{}", kind_of_response(&response)),
            Listening::Open(mut events) => {
                let event = events.next().await?;
                ensure!(wire::is_acknowledgement(&event), "status 200 without an acknowledgement");
                Ok(events)
            }
        }
    }

    /// Reads until the stream breaks, and says why it did.
    async fn follow(&self, mut events: Events) -> anyhow::Error {
        let mut last = None;
        loop {
            let event = match events.next().await {
                Ok(event) => event,
                Err(error) => return error,
            };
            let Some((number, at_ns)) = tick(&event) else { continue };
            self.counts.notifications.fetch_add(1, Ordering::Relaxed);
            // The first one is the state that the task was in already.
            match last {
                Some(last) if number != last + 1 => {
                    self.counts.gaps.fetch_add(1, Ordering::Relaxed);
                }
                Some(_) => {
                    let delay_ms = (unix_ns().saturating_sub(at_ns) / 1_000_000) as usize;
                    self.counts.delays[delay_ms.min(DELAYS - 1)].fetch_add(1, Ordering::Relaxed);
                }
                None => {}
            }
            last = Some(number);
            self.told.store(number, Ordering::Relaxed);
        }
    }
}

/// The number of a tick, and when it was, if that is what this says.
fn tick(text: &[u8]) -> Option<(u64, u64)> {
    const BEGINNING: &[u8] = br#""statusMessage":"tick "#;
    let start = memmem::find(text, BEGINNING)? + BEGINNING.len();
    let rest = &text[start..];
    let end = memchr::memchr(b'"', rest)?;
    let (number, at) = std::str::from_utf8(&rest[..end]).ok()?.split_once(' ')?;
    Some((number.parse().ok()?, at.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_says_its_number_and_its_moment() {
        assert_eq!(tick(br#"data: {"params":{"statusMessage":"tick 12 1785","status":"working"}}"#), Some((12, 1785)));
        assert_eq!(tick(br#"data: {"params":{"status":"working"}}"#), None);
    }

    #[test]
    fn parts_of_counts_are_places() {
        assert_eq!(part_of(&[0, 5, 0, 4, 1], 0.5), 1);
        assert_eq!(part_of(&[0, 5, 0, 4, 1], 0.9), 3);
        assert_eq!(part_of(&[0, 5, 0, 4, 1], 1.0), 4);
        assert_eq!(part_of(&[0, 0], 0.5), 0);
    }
}
