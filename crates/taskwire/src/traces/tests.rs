//! What is traced, and what becomes of spans that nobody takes.

use std::sync::{Arc, atomic::Ordering};

use taskwire_core::{Timestamp, trace::TraceContext};

use super::{
    Kind, Tracer,
    span::{EVENTS_MAX, Record},
};
use crate::clock::{Clock, ManualClock};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn clock() -> (ManualClock, Arc<dyn Clock>) {
    let clock = ManualClock::new(Timestamp::from_millis(1_785_196_800_000));
    (clock.clone(), Arc::new(clock))
}

/// A tracer, and what takes its spans.
fn tracer(sample: f64) -> (Tracer, impl FnMut() -> Option<Record>) {
    let (tracer, mut spans, _flushes) = Tracer::new(sample, 3, &clock().1);
    (tracer, move || spans.try_recv().ok())
}

#[test]
fn as_many_requests_are_traced_as_was_asked_for() {
    let traced = |sample: f64| {
        let (tracer, _spans) = tracer(sample);
        (0..10_000).filter(|_| tracer.request(None, "ping").is_some()).count()
    };
    assert_eq!((traced(0.0), traced(1.0), traced(f64::NAN)), (0, 10_000, 0));
    let tenth = traced(0.1);
    assert!((800..1200).contains(&tenth), "{tenth} of 10000");
}

#[test]
fn whoever_sends_a_request_decides_whether_it_is_traced() {
    let (tracer, mut next) = tracer(0.0);
    let sampled = TraceContext::read(PARENT, Some("a=1")).expect("it is well-formed");
    let unsampled = TraceContext::read(&PARENT.replace("-01", "-00"), None).expect("it is well-formed");
    let span = tracer.request(Some(&sampled), "ping").expect("it is traced");
    assert_eq!((span.context().parent.trace, span.context().state.as_deref()), (sampled.parent.trace, Some("a=1")));
    assert_ne!(span.context().parent.span, sampled.parent.span);
    drop(span);
    let record = next().expect("it has ended");
    assert_eq!((record.parent, record.kind), (Some(sampled.parent.span), Kind::Server));
    assert_eq!((record.began, record.ended), (1_785_196_800_000_000_000, 1_785_196_800_000_000_000));
    assert!(tracer.request(Some(&unsampled), "ping").is_none());
    assert!(tracer.child(&unsampled, Kind::Internal, "run").is_none());
}

#[test]
fn spans_that_nobody_takes_in_time_are_dropped_and_counted() {
    let (tracer, mut next) = tracer(1.0);
    for _ in 0..5 {
        drop(tracer.request(None, "ping"));
    }
    assert_eq!(tracer.counts().dropped.load(Ordering::Relaxed), 2);
    assert_eq!(std::iter::from_fn(&mut next).count(), 3);
}

#[test]
fn a_span_has_so_many_events_and_ends_once() {
    let (tracer, mut next) = tracer(1.0);
    let span = tracer.request(None, "ping").expect("it is traced");
    for _ in 0..EVENTS_MAX + 2 {
        span.event("again");
    }
    span.fail(&"é".repeat(1_000));
    span.end();
    span.event("too late");
    drop(span);
    let record = next().expect("it has ended");
    assert_eq!((record.events.len(), record.events_dropped), (EVENTS_MAX, 2));
    assert_eq!(record.error.map(|error| error.chars().count()), Some(200));
    assert!(next().is_none());
}

#[test]
fn times_follow_the_clock_when_it_is_set() {
    let (manual, clock) = clock();
    let (tracer, _spans, _flushes) = Tracer::new(1.0, 1, &clock);
    let before = tracer.unix_nanos();
    manual.advance(std::time::Duration::from_secs(3));
    assert_eq!(tracer.unix_nanos() - before, 3_000_000_000);
}
