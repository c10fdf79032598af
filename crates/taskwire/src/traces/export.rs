//! Sends spans to a collector, in batches. What a collector does not take for long is dropped, and counted.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use hyper::{
    Method,
    header::{CONTENT_TYPE, HeaderName, HeaderValue},
};
use tokio::sync::{mpsc, oneshot};

use super::{Counts, Traces, otlp, span::Record};
use crate::{
    clock::{Clock, Sleep},
    outbound::Outbound,
};

/// Spans of one batch.
const BATCH_SPANS: usize = 512;
/// How long a collector may take for a batch.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How often a batch is sent before it is dropped.
const TRIES: u32 = 5;
/// The wait before a batch is sent again; it doubles with each time.
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// The longest such wait, whatever the collector asks for.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Somebody waits until all spans are sent.
type Flush = oneshot::Sender<()>;

/// Why a batch was not taken.
enum Failure {
    /// It may be taken later.
    Passing { why: String, after: Option<Duration> },
    /// It will never be.
    Refused(String),
}

/// Why no more spans are gathered.
enum Gathered {
    Batch,
    Flush(Flush),
    /// There will be no more.
    Closed,
}

pub(super) struct Exporter {
    url: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    service_name: String,
    interval: Duration,
    clock: Arc<dyn Clock>,
    counts: Arc<Counts>,
    http: Outbound,
    /// Whether the log says that spans cannot be sent.
    is_failing: bool,
}

impl Exporter {
    pub(super) fn new(traces: &Traces, clock: Arc<dyn Clock>, counts: Arc<Counts>) -> Self {
        let mut headers = vec![(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        headers.extend(traces.header_map());
        Self {
            url: traces.url(),
            headers,
            service_name: traces.service_name.clone(),
            interval: traces.interval,
            clock,
            counts,
            http: Outbound::default(),
            is_failing: false,
        }
    }

    /// Sends what comes, until nothing can come any more.
    pub(super) async fn run(mut self, mut spans: mpsc::Receiver<Record>, mut flushes: mpsc::Receiver<Flush>) {
        let mut batch = Vec::new();
        loop {
            let gathered = self.gather(&mut batch, &mut spans, &mut flushes).await;
            let flush = match gathered {
                Gathered::Batch => self.deliver(&mut batch, &mut flushes).await,
                Gathered::Flush(flush) => Some(flush),
                Gathered::Closed => {
                    self.send_all(&mut batch, &mut spans).await;
                    return;
                }
            };
            if let Some(flush) = flush {
                self.send_all(&mut batch, &mut spans).await;
                let _ = flush.send(());
            }
        }
    }

    /// Waits for a batch: until it is full, or its first span has waited for long enough.
    async fn gather(&self, batch: &mut Vec<Record>, spans: &mut mpsc::Receiver<Record>, flushes: &mut mpsc::Receiver<Flush>) -> Gathered {
        let mut due: Option<Sleep> = None;
        while batch.len() < BATCH_SPANS {
            if !batch.is_empty() && due.is_none() {
                due = Some(self.clock.sleep(self.interval));
            }
            let room = BATCH_SPANS - batch.len();
            tokio::select! {
                biased;
                Some(flush) = flushes.recv() => return Gathered::Flush(flush),
                came = spans.recv_many(batch, room) => if came == 0 {
                    return Gathered::Closed;
                },
                () = passed(&mut due) => return Gathered::Batch,
            }
        }
        Gathered::Batch
    }

    /// Sends a batch, again and again if need be. Whoever wants all spans to be sent meanwhile is returned.
    async fn deliver(&mut self, batch: &mut Vec<Record>, flushes: &mut mpsc::Receiver<Flush>) -> Option<Flush> {
        let (count, body) = self.taken(batch);
        let (mut tries, mut backoff, mut flush) = (1, RETRY_FIRST, None);
        loop {
            let (why, wait) = match self.post(body.clone()).await {
                Ok(rejected) => {
                    self.taken_by_collector(count, rejected);
                    return flush;
                }
                Err(Failure::Passing { why, after }) if tries < TRIES && flush.is_none() => (why, after.unwrap_or(backoff).min(RETRY_MAX)),
                Err(Failure::Passing { why, .. } | Failure::Refused(why)) => {
                    self.lost(count, &why);
                    return flush;
                }
            };
            self.say_failing(&why);
            (tries, backoff) = (tries + 1, (backoff * 2).min(RETRY_MAX));
            tokio::select! {
                () = self.clock.sleep(wait) => {}
                Some(asked) = flushes.recv() => flush = Some(asked),
            }
        }
    }

    /// Sends all that there is, once.
    async fn send_all(&mut self, batch: &mut Vec<Record>, spans: &mut mpsc::Receiver<Record>) {
        loop {
            while batch.len() < BATCH_SPANS
                && let Ok(span) = spans.try_recv()
            {
                batch.push(span);
            }
            if batch.is_empty() {
                return;
            }
            let (count, body) = self.taken(batch);
            match self.post(body).await {
                Ok(rejected) => self.taken_by_collector(count, rejected),
                Err(Failure::Passing { why, .. } | Failure::Refused(why)) => self.lost(count, &why),
            }
        }
    }

    /// The batch as a message, and how many spans it has; the batch is empty then.
    fn taken(&self, batch: &mut Vec<Record>) -> (u64, Bytes) {
        let (count, body) = (batch.len() as u64, otlp::request(&self.service_name, batch));
        batch.clear();
        (count, body.into())
    }

    /// Posts a batch; returns how many of its spans the collector did not take.
    async fn post(&self, body: Bytes) -> Result<u64, Failure> {
        let answer = self.http.exchange(Method::POST, &self.url, &self.headers, body, TIMEOUT).await;
        let answer = answer.map_err(|why| Failure::Passing { why, after: None })?;
        let why = || format!("it answers with status {}", answer.status);
        match answer.status {
            200..=299 => Ok(otlp::rejected(&answer.body)),
            429 | 502 | 503 | 504 => Err(Failure::Passing { why: why(), after: answer.retry_after.map(Duration::from_secs) }),
            _ => Err(Failure::Refused(why())),
        }
    }

    fn taken_by_collector(&mut self, count: u64, rejected: u64) {
        let rejected = rejected.min(count);
        self.counts.sent.fetch_add(count - rejected, Ordering::Relaxed);
        self.counts.dropped.fetch_add(rejected, Ordering::Relaxed);
        if std::mem::take(&mut self.is_failing) {
            tracing::info!("the collector takes traces again");
        }
    }

    fn lost(&mut self, count: u64, why: &str) {
        self.counts.dropped.fetch_add(count, Ordering::Relaxed);
        self.say_failing(why);
    }

    /// Says it once, until it is over.
    fn say_failing(&mut self, why: &str) {
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(why, "traces cannot be sent to the collector (`traces.endpoint`): they are dropped if that lasts");
        }
    }
}

/// Waits until a sleep is over; for ever without one.
async fn passed(sleep: &mut Option<Sleep>) {
    match sleep {
        Some(sleep) => sleep.as_mut().await,
        None => std::future::pending().await,
    }
}
