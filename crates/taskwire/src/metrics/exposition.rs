//! The text format of Prometheus, version 0.0.4: metrics by name, each with what it is, then its samples.

use std::fmt::{Display, Write};

use super::values::{Histogram, Snapshot};

/// What the text is called in `Content-Type`.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The text, while it is being written.
#[derive(Debug, Default)]
pub(super) struct Exposition(String);

#[derive(Debug, Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Names of labels, with their values.
type Labels<'a> = &'a [(&'a str, &'a str)];

/// The metric of one name. It is in the text if it has a sample.
pub(super) struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
    help: &'static str,
    kind: Kind,
    is_begun: bool,
}

impl Exposition {
    pub(super) fn counter(&mut self, name: &'static str, help: &'static str) -> Family<'_> {
        self.family(name, help, Kind::Counter)
    }

    pub(super) fn gauge(&mut self, name: &'static str, help: &'static str) -> Family<'_> {
        self.family(name, help, Kind::Gauge)
    }

    pub(super) fn histogram(&mut self, name: &'static str, help: &'static str) -> Family<'_> {
        self.family(name, help, Kind::Histogram)
    }

    fn family(&mut self, name: &'static str, help: &'static str, kind: Kind) -> Family<'_> {
        Family { text: &mut self.0, name, help, kind, is_begun: false }
    }

    pub(super) fn into_text(self) -> String {
        self.0
    }
}

impl Family<'_> {
    /// Adds a sample. No two of a metric have the same labels.
    pub(super) fn sample(&mut self, labels: Labels<'_>, value: impl Display) {
        self.begin();
        self.line("", labels, None, value);
    }

    /// Adds a sample if there is a value.
    pub(super) fn sample_if_any(&mut self, value: Option<impl Display>) {
        if let Some(value) = value {
            self.sample(&[], value);
        }
    }

    /// Adds what a histogram has come to.
    pub(super) fn samples_of(&mut self, labels: Labels<'_>, histogram: &Histogram) {
        self.begin();
        let Snapshot { buckets, sum, count } = histogram.snapshot();
        for (bound, upto) in buckets {
            self.line("_bucket", labels, Some(&bound.to_string()), upto);
        }
        self.line("_bucket", labels, Some("+Inf"), count);
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, count);
    }

    /// Writes what the metric is, before its first sample.
    fn begin(&mut self) {
        if !std::mem::replace(&mut self.is_begun, true) {
            let (name, kind) = (self.name, self.kind.as_str());
            self.push(format_args!("# HELP {name} "));
            escape(self.text, self.help, false);
            self.push(format_args!("\n# TYPE {name} {kind}\n"));
        }
    }

    fn line(&mut self, suffix: &str, labels: Labels<'_>, bound: Option<&str>, value: impl Display) {
        let (name, mut opening) = (self.name, '{');
        self.push(format_args!("{name}{suffix}"));
        for (label, text) in labels.iter().copied().chain(bound.map(|bound| ("le", bound))) {
            self.push(format_args!("{opening}{label}=\""));
            escape(self.text, text, true);
            self.text.push('"');
            opening = ',';
        }
        let closing = if opening == ',' { "}" } else { "" };
        self.push(format_args!("{closing} {value}\n"));
    }

    fn push(&mut self, text: std::fmt::Arguments<'_>) {
        // A text takes whatever is written.
        let _ = self.text.write_fmt(text);
    }
}

/// Adds a text of which the reader makes this very text again.
fn escape(to: &mut String, text: &str, is_quoted: bool) {
    for c in text.chars() {
        match c {
            '\\' => to.push_str("\\\\"),
            '\n' => to.push_str("\\n"),
            '"' if is_quoted => to.push_str("\\\""),
            c => to.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_has_what_it_is_and_then_its_samples() {
        let mut text = Exposition::default();
        let mut tasks = text.counter("tasks_total", "Tasks \\ \"all\"\nof them.");
        tasks.sample(&[("tool", "a \"b\" \\ c\nd"), ("how", "é")], 3);
        tasks.sample(&[("tool", "x"), ("how", "")], 0);
        text.gauge("absent", "Nothing is known of it.").sample_if_any(None::<u64>);
        text.gauge("free_bytes", "Room.").sample_if_any(Some(1.5));
        assert_eq!(
            text.into_text(),
            "# HELP tasks_total Tasks \\\\ \"all\"\\nof them.\n# TYPE tasks_total counter\n\
             tasks_total{tool=\"a \\\"b\\\" \\\\ c\\nd\",how=\"é\"} 3\n\
             tasks_total{tool=\"x\",how=\"\"} 0\n\
             # HELP free_bytes Room.\n# TYPE free_bytes gauge\nfree_bytes 1.5\n"
        );
    }

    #[test]
    fn the_buckets_of_a_histogram_add_up_to_its_count() {
        let times = Histogram::of_times(&[500, 1_000_000, 3_600_000_000]);
        [200, 500, 900_000, 7_200_000_000].into_iter().for_each(|micros| times.record(micros));
        let mut text = Exposition::default();
        let mut family = text.histogram("wait_seconds", "How long.");
        family.samples_of(&[("tool", "x")], &times);
        family.samples_of(&[], &Histogram::of_numbers(&[1]));
        assert_eq!(
            text.into_text(),
            "# HELP wait_seconds How long.\n# TYPE wait_seconds histogram\n\
             wait_seconds_bucket{tool=\"x\",le=\"0.0005\"} 2\n\
             wait_seconds_bucket{tool=\"x\",le=\"1\"} 3\n\
             wait_seconds_bucket{tool=\"x\",le=\"3600\"} 3\n\
             wait_seconds_bucket{tool=\"x\",le=\"+Inf\"} 4\n\
             wait_seconds_sum{tool=\"x\"} 7200.9007\n\
             wait_seconds_count{tool=\"x\"} 4\n\
             wait_seconds_bucket{le=\"1\"} 0\nwait_seconds_bucket{le=\"+Inf\"} 0\nwait_seconds_sum 0\nwait_seconds_count 0\n"
        );
    }
}
