//! A strict reader of the text format of Prometheus, version 0.0.4: what it takes, Prometheus takes.

use std::collections::{BTreeMap, BTreeSet};

type Labels = BTreeMap<String, String>;

/// What a server tells, by the names of metrics.
#[derive(Debug)]
pub(crate) struct Metrics(BTreeMap<String, Metric>);

#[derive(Debug)]
struct Metric {
    kind: String,
    /// By the name in the line, which a histogram has three of, and the labels.
    samples: BTreeMap<(String, Labels), f64>,
}

fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && text.chars().all(fits)
}

/// The labels in front of the closing brace, and what follows it.
fn labels(line: &str, mut rest: &str) -> (Labels, String) {
    let mut labels = Labels::new();
    loop {
        let (name, quoted) = rest.split_once("=\"").unwrap_or_else(|| panic!("no label: {line}"));
        assert!(is_name(name), "no name of a label: {line}");
        let (mut value, mut chars) = (String::new(), quoted.chars());
        loop {
            match chars.next().unwrap_or_else(|| panic!("no end of a label: {line}")) {
                '"' => break,
                '\\' => value.push(match chars.next() {
                    Some('n') => '\n',
                    Some(c @ ('\\' | '"')) => c,
                    other => panic!("{other:?} is never escaped: {line}"),
                }),
                c => value.push(c),
            }
        }
        assert!(labels.insert(name.to_owned(), value).is_none(), "the label {name} is there twice: {line}");
        rest = chars.as_str();
        match rest.split_at_checked(1) {
            Some((",", more)) => rest = more,
            Some(("}", more)) => return (labels, more.to_owned()),
            _ => panic!("no end of the labels: {line}"),
        }
    }
}

/// Name, labels and value of a line.
fn sample(line: &str) -> (String, Labels, f64) {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("no value: {line}"));
    let (name, rest) = line.split_at(end);
    assert!(is_name(name), "no name: {line}");
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(line, rest),
        None => (Labels::new(), rest.to_owned()),
    };
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("no blank before the value: {line}"));
    let value: f64 = value.parse().unwrap_or_else(|error| panic!("{error}: {line}"));
    assert!(value.is_finite() && value >= 0.0, "nothing here is below zero: {line}");
    (name.to_owned(), labels, value)
}

impl Metrics {
    /// Reads a text, which must be right to the last byte.
    #[track_caller]
    pub(crate) fn parse(text: &str) -> Self {
        assert!(text.ends_with('\n'), "the last line has no end");
        let mut metrics: BTreeMap<String, Metric> = BTreeMap::new();
        let (mut current, mut has_type) = (String::new(), true);
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap_or_else(|| panic!("no help: {line}"));
                assert!(is_name(name) && !help.is_empty() && has_type, "{line}");
                (current, has_type) = (name.to_owned(), false);
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap_or_else(|| panic!("no type: {line}"));
                assert!(name == current && !has_type && ["counter", "gauge", "histogram"].contains(&kind), "{line}");
                has_type = true;
                let before = metrics.insert(current.clone(), Metric { kind: kind.to_owned(), samples: BTreeMap::new() });
                assert!(before.is_none(), "the lines of {name} do not stand together");
            } else {
                let (name, labels, value) = sample(line);
                let metric = metrics.get_mut(&current).unwrap_or_else(|| panic!("a sample of nothing: {line}"));
                let suffix = name.strip_prefix(&current).unwrap_or_else(|| panic!("this is no sample of {current}: {line}"));
                let suffixes: &[&str] = if metric.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
                assert!(has_type && suffixes.contains(&suffix), "{line}");
                assert!(metric.samples.insert((name, labels), value).is_none(), "a series is there twice: {line}");
            }
        }
        for (name, metric) in &metrics {
            assert!(!metric.samples.is_empty(), "{name} has no sample");
            assert_eq!(name.ends_with("_total"), metric.kind == "counter", "{name} is a {}", metric.kind);
            if metric.kind == "histogram" {
                metric.check_buckets(name);
            }
        }
        Self(metrics)
    }

    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.0.keys().cloned().collect()
    }

    pub(crate) fn is_histogram(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|metric| metric.kind == "histogram")
    }

    /// The value of the series with exactly these labels; none if there is no such series. A histogram has several names.
    pub(crate) fn get(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels: Labels = labels.iter().map(|(label, value)| ((*label).to_owned(), (*value).to_owned())).collect();
        let key = (name.to_owned(), labels);
        let mut metrics = self.0.iter().filter(|(metric, _)| name.starts_with(metric.as_str()));
        metrics.find_map(|(_, metric)| metric.samples.get(&key).copied())
    }

    /// The same; the series must be there.
    #[track_caller]
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.get(name, labels).unwrap_or_else(|| panic!("there is no {name} with {labels:?}: {self:#?}"))
    }

    /// All series of a name together.
    pub(crate) fn sum(&self, name: &str) -> f64 {
        self.0.values().flat_map(|metric| &metric.samples).filter(|((sample, _), _)| sample == name).map(|(_, value)| value).sum()
    }

    /// All values of a label, wherever it is.
    pub(crate) fn values_of(&self, label: &str) -> BTreeSet<String> {
        let samples = self.0.values().flat_map(|metric| metric.samples.keys());
        samples.filter_map(|(_, labels)| labels.get(label).cloned()).collect()
    }
}

impl Metric {
    /// Checks that the buckets of each series grow up to its count.
    #[track_caller]
    fn check_buckets(&self, name: &str) {
        let mut series: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
        let (bucket, sum, count) = (format!("{name}_bucket"), format!("{name}_sum"), format!("{name}_count"));
        for ((_, labels), value) in self.samples.iter().filter(|((sample, _), _)| *sample == bucket) {
            let mut labels = labels.clone();
            let bound = labels.remove("le").unwrap_or_else(|| panic!("a bucket of {name} has no bound"));
            series.entry(labels).or_default().push((bound.parse().expect("a number"), *value));
        }
        assert_eq!(self.samples.keys().filter(|(sample, _)| *sample == count).count(), series.len(), "{name} has buckets for each count");
        for (labels, mut buckets) in series {
            buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "the buckets of {name} do not add up: {buckets:?}");
            let last = buckets.last().expect("there is one");
            assert_eq!(*last, (f64::INFINITY, self.samples[&(count.clone(), labels.clone())]), "{name}: the last bucket has all");
            assert!(self.samples.contains_key(&(sum.clone(), labels)), "{name} has a sum");
        }
    }
}

#[test]
#[should_panic(expected = "do not add up")]
fn buckets_that_shrink_are_noticed() {
    Metrics::parse(
        "# HELP a b\n# TYPE a histogram\na_bucket{le=\"1\"} 2\na_bucket{le=\"2\"} 1\na_bucket{le=\"+Inf\"} 2\na_sum 1\na_count 2\n",
    );
}

#[test]
fn labels_are_read_as_they_were_meant() {
    let read =
        Metrics::parse("# HELP a_total what \\n\n# TYPE a_total counter\na_total{b=\"c \\\"d\\\" \\\\ \\n, e}\",f=\"\"} 1.5\na_total 2\n");
    assert_eq!(read.get("a_total", &[("b", "c \"d\" \\ \n, e}"), ("f", "")]), Some(1.5));
    assert_eq!((read.get("a_total", &[]), read.get("a", &[]), read.sum("a_total")), (Some(2.0), None, 3.5));
}
