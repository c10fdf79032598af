//! HTTP requests, by where they went and how they were answered.

use std::time::Duration;

use super::{
    labels::{ByLabel, OTHER, Refused},
    values::{Counter, Histogram},
};

/// What operators use: all below it is one route.
const API: &str = "/api";
pub(super) const ROUTES: &[&str] = &[API, "/healthz", "/mcp", "/metrics", "/readyz", OTHER];
pub(super) const METHODS: &[&str] = &["DELETE", "GET", "HEAD", "OPTIONS", "POST", OTHER];
/// What the server answers.
pub(super) const STATUSES: &[&str] =
    &["200", "202", "204", "400", "401", "403", "404", "405", "406", "408", "409", "413", "415", "429", "500", "503", OTHER];
/// From a millisecond to a minute, in microseconds.
const DURATIONS: &[u64] =
    &[1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000, 60_000_000];

#[derive(Debug)]
pub(crate) struct HttpMetrics {
    /// By route, method and status, in this order.
    requests: Box<[Counter]>,
    /// Until the response began, by route.
    pub(super) durations: ByLabel<Histogram>,
    pub(super) refused: ByLabel<Counter>,
}

/// A request, as the labels tell it: its text need not be kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestLabels {
    route: usize,
    method: usize,
}

impl RequestLabels {
    pub(crate) fn of(method: &str, path: &str) -> Self {
        let is_api = path.strip_prefix(API).is_some_and(|rest| rest.starts_with('/'));
        Self { route: place(ROUTES, if is_api { API } else { path }), method: place(METHODS, method) }
    }
}

/// The place of a label; that of `other`, which is the last one, if there is no such label.
fn place(labels: &[&str], text: &str) -> usize {
    labels.iter().position(|label| *label == text).unwrap_or(labels.len() - 1)
}

/// The place of a status.
fn place_of_status(status: u16) -> usize {
    let is_it = |label: &&str| label.parse::<u16>() == Ok(status);
    STATUSES.iter().position(is_it).unwrap_or(STATUSES.len() - 1)
}

impl HttpMetrics {
    pub(super) fn new() -> Self {
        Self {
            requests: (0..ROUTES.len() * METHODS.len() * STATUSES.len()).map(|_| Counter::default()).collect(),
            durations: ByLabel::new(ROUTES, || Histogram::of_times(DURATIONS)),
            refused: ByLabel::counters(Refused::LABELS),
        }
    }

    /// A request is about to be answered with this status, so long after it came.
    pub(crate) fn answered(&self, request: RequestLabels, status: u16, took: Duration) {
        let RequestLabels { route, method } = request;
        self.requests[(route * METHODS.len() + method) * STATUSES.len() + place_of_status(status)].increment();
        self.durations.at(route).record_time(took);
    }

    pub(crate) fn refused(&self, why: Refused) {
        self.refused.at(why as usize).increment();
    }

    /// How many requests there were by route, method and status, where there was one.
    pub(super) fn requests(&self) -> impl Iterator<Item = ([&'static str; 3], u64)> {
        let told = |(nth, count): (usize, &Counter)| {
            let (nth, status) = (nth / STATUSES.len(), nth % STATUSES.len());
            ([ROUTES[nth / METHODS.len()], METHODS[nth % METHODS.len()], STATUSES[status]], count.get())
        };
        self.requests.iter().enumerate().map(told).filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_by_what_is_known_of_it_and_else_as_other() {
        let http = HttpMetrics::new();
        let answered = |method, path, status| http.answered(RequestLabels::of(method, path), status, Duration::from_millis(2));
        answered("POST", "/mcp", 200);
        answered("POST", "/mcp", 200);
        answered("GET", "/healthz", 200);
        answered("BREW", "/mcp/../etc/passwd", 418);
        answered("get", "/mcp?x=1", 503);
        answered("POST", "/api/tasks/x/cancel", 409);
        answered("GET", "/apix", 404);
        let counted: Vec<_> = http.requests().collect();
        assert_eq!(
            counted,
            [
                (["/api", "POST", "409"], 1),
                (["/healthz", "GET", "200"], 1),
                (["/mcp", "POST", "200"], 2),
                ([OTHER, "GET", "404"], 1),
                ([OTHER, OTHER, "503"], 1),
                ([OTHER, OTHER, OTHER], 1)
            ]
        );
        assert_eq!(http.durations.of("/mcp").snapshot().count, 2);
        assert_eq!(http.durations.of("/mcp").snapshot().buckets[..2], [(0.001, 0), (0.0025, 2)]);
    }
}
