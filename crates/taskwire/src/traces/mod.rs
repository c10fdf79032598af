//! Spans: what a server did for a request, and how long that took, for a collector of OpenTelemetry.
//!
//! Start with [`Tracer`]. A request is traced if whoever sent it says so, or else by chance. One that is not traced costs a comparison, and
//! no memory. A span is recorded when it has ended, and goes into a bounded queue, which `export` empties: nobody waits for a collector.

#[cfg(feature = "traces")]
mod config;
#[cfg(feature = "traces")]
mod export;
#[cfg(feature = "traces")]
mod otlp;
mod span;

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use taskwire_core::trace::{SpanId, TraceContext, TraceId, TraceParent};
use tokio::sync::{mpsc, oneshot};

#[cfg(feature = "traces")]
pub use self::config::Traces;
use self::span::Record;
pub(crate) use self::span::{Kind, Span, short};
use crate::clock::{Clock, random_bytes};

/// How many spans wait to be sent; more are dropped, and counted.
const QUEUE_SPANS: usize = 4_096;
/// How long a server that ends waits until its last spans are sent.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// How far our time may be from the machine's before the machine's clock was set.
const DRIFT_MAX: i64 = 100_000_000;

/// What became of spans.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) sent: AtomicU64,
    pub(crate) dropped: AtomicU64,
}

/// Decides what is traced, and takes spans that have ended; cheap to clone.
#[derive(Clone)]
pub(crate) struct Tracer(Arc<Inner>);

struct Inner {
    /// A request that nobody else has decided on is traced if its number is no higher.
    threshold: u64,
    dice: AtomicU64,
    clock: Arc<dyn Clock>,
    /// Nanoseconds from the beginning of monotonic time to 1970.
    offset: AtomicI64,
    queue: mpsc::Sender<Record>,
    flushes: mpsc::Sender<oneshot::Sender<()>>,
    counts: Arc<Counts>,
}

impl Tracer {
    /// Begins to trace, and to send spans as `traces` says.
    #[cfg(feature = "traces")]
    pub(crate) fn start(traces: &Traces, clock: &Arc<dyn Clock>) -> Self {
        let (tracer, spans, flushes) = Self::new(traces.sample, QUEUE_SPANS, clock);
        tokio::spawn(export::Exporter::new(traces, clock.clone(), tracer.0.counts.clone()).run(spans, flushes));
        tracer
    }

    fn new(sample: f64, queue_len: usize, clock: &Arc<dyn Clock>) -> (Self, mpsc::Receiver<Record>, mpsc::Receiver<oneshot::Sender<()>>) {
        let (queue, spans) = mpsc::channel(queue_len);
        let (flushes, requests) = mpsc::channel(1);
        let mut seed = [0; 8];
        random_bytes(&mut seed);
        let inner = Inner {
            // A conversion of what is too large gives the largest number.
            threshold: (sample.clamp(0.0, 1.0) * u64::MAX as f64) as u64,
            dice: AtomicU64::new(u64::from_ne_bytes(seed)),
            clock: clock.clone(),
            offset: AtomicI64::new(0),
            queue,
            flushes,
            counts: Arc::default(),
        };
        (Self(Arc::new(inner)), spans, requests)
    }

    /// The span of a request, if that is traced: whoever sent it decides, and else it is by chance.
    pub(crate) fn request(&self, incoming: Option<&TraceContext>, name: &'static str) -> Option<Span> {
        match incoming {
            Some(context) => self.child(context, Kind::Server, name),
            None if self.is_chosen() => {
                let mut random = [0; 16];
                random_bytes(&mut random);
                let parent = TraceParent::recorded(TraceId::new(random), new_span_id());
                Some(Span::begin(self.clone(), parent.into(), None, Kind::Server, name.into()))
            }
            None => None,
        }
    }

    /// A span below this place of a trace, if the trace is recorded.
    pub(crate) fn child(&self, of: &TraceContext, kind: Kind, name: impl Into<Cow<'static, str>>) -> Option<Span> {
        of.parent.is_sampled().then(|| {
            let context = of.with_span(new_span_id());
            Span::begin(self.clone(), context, Some(of.parent.span), kind, name.into())
        })
    }

    fn is_chosen(&self) -> bool {
        let threshold = self.0.threshold;
        threshold == u64::MAX || (threshold > 0 && mixed(self.0.dice.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)) <= threshold)
    }

    /// Takes a span that has ended. If too many wait to be sent, it is dropped.
    fn record(&self, record: Record) {
        if self.0.queue.try_send(record).is_err() {
            self.0.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends what there is, at once. Waits for that, but not for long.
    pub(crate) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.0.flushes.try_send(done).is_ok() {
            let _ = tokio::time::timeout(FLUSH_TIMEOUT, flushed).await;
        }
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.0.counts
    }

    /// Nanoseconds since 1970. They follow monotonic time, which is finer than the clock, until the clock is set.
    fn unix_nanos(&self) -> i64 {
        let monotonic = i64::try_from(self.0.clock.monotonic().as_nanos()).unwrap_or(i64::MAX);
        let now = self.0.clock.now().as_millis().saturating_mul(1_000_000);
        let measured = monotonic.saturating_add(self.0.offset.load(Ordering::Relaxed));
        if measured.saturating_sub(now).saturating_abs() <= DRIFT_MAX {
            return measured;
        }
        self.0.offset.store(now.saturating_sub(monotonic), Ordering::Relaxed);
        now
    }
}

fn new_span_id() -> SpanId {
    let mut random = [0; 8];
    random_bytes(&mut random);
    SpanId::new(random)
}

/// Spreads numbers that follow each other evenly (splitmix64).
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests;
