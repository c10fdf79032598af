//! Every metric by its name, with what it is: a page of the manual says the same, and a test compares the names.

use super::{
    Metrics, Readings,
    exposition::{Exposition, Family},
    labels::{ByLabel, Era},
    process::Process,
    tools::{OPEN_STATES, ToolMetrics},
    values::Counter,
};

/// All that was counted, and what was read just now.
pub(super) fn write(metrics: &Metrics, readings: &Readings) -> String {
    let mut text = Exposition::default();
    write_tasks(&mut text, metrics);
    write_calls(&mut text, metrics);
    write_store(&mut text, metrics, readings);
    write_readers(&mut text, metrics, readings);
    write_requests(&mut text, metrics, readings);
    write_audit(&mut text, readings);
    write_nodes(&mut text, readings);
    write_traces(&mut text, readings);
    write_process(&mut text, metrics);
    text.into_text()
}

fn write_tasks(text: &mut Exposition, metrics: &Metrics) {
    let tools = metrics.tools.all();
    let mut open = text.gauge("taskwire_tasks_open", "Tasks that have not ended and that this node runs.");
    for tool in &tools {
        for (status, count) in OPEN_STATES.iter().zip(&tool.open) {
            open.sample(&[("tool", tool.name()), ("status", status.as_str())], count.get());
        }
    }
    of_tools(text.counter("taskwire_tasks_created_total", "Tasks that were made here."), &tools, |tool| &tool.created);
    let mut ended = text.counter("taskwire_tasks_ended_total", "Tasks whose end was written here.");
    for tool in &tools {
        for (outcome, count) in tool.ended.iter() {
            ended.sample(&[("tool", tool.name()), ("outcome", outcome)], count.get());
        }
    }
    let mut durations = text.histogram("taskwire_task_duration_seconds", "From the beginning of a task's work to its end.");
    for tool in &tools {
        durations.samples_of(&[("tool", tool.name())], &tool.durations);
    }
    let takeovers = text.counter("taskwire_tasks_taken_over_total", "Tasks of another node, or of an earlier start, that go on here.");
    by_label(takeovers, "why", &metrics.takeovers);
    let name = "taskwire_output_bytes_total";
    of_tools(text.counter(name, "Output of tasks that became durable here, as JSON."), &tools, |tool| &tool.output_bytes);
    let name = "taskwire_output_chunks_total";
    of_tools(text.counter(name, "Chunks of output that became durable here."), &tools, |tool| &tool.output_chunks);
    let mut waiting = text.gauge("taskwire_commands_waiting", "Commands that wait for a slot of their tool (`concurrency`).");
    for tool in &tools {
        waiting.sample(&[("tool", tool.name())], tool.waiting.get());
    }
    text.gauge("taskwire_runs_in_memory", "Calls whose work runs and is no task yet.").sample(&[], metrics.in_memory.get());
}

fn write_calls(text: &mut Exposition, metrics: &Metrics) {
    let tools = metrics.tools.all();
    let mut calls = text.counter("taskwire_calls_total", "Calls of tools, by how they were answered.");
    for tool in &tools {
        for (era, counts) in Era::LABELS.iter().copied().zip(&tool.calls) {
            // A call that was never answered so has no such sample: most tools are called in one or two ways.
            for (answer, count) in counts.iter().filter(|(_, count)| count.get() > 0) {
                calls.sample(&[("tool", tool.name()), ("era", era), ("answer", answer)], count.get());
            }
        }
    }
    let joined = text.counter("taskwire_calls_joined_total", "Calls that joined the work of an earlier call that is the same.");
    of_tools(joined, &tools, |tool| &tool.joined);
    let expired =
        text.counter("taskwire_holds_expired_total", "Calls of clients without tasks that were answered before there was a result.");
    of_tools(expired, &tools, |tool| &tool.holds_expired);
}

fn write_store(text: &mut Exposition, metrics: &Metrics, readings: &Readings) {
    text.gauge("taskwire_queue_length", "Changes that wait to be written to the store.").sample(&[], readings.queue_length);
    text.gauge("taskwire_queue_capacity", "Changes that may wait (`queue_len`).").sample(&[], readings.queue_capacity);
    let mut commits = text.histogram("taskwire_commit_duration_seconds", "How long the store took to make changes durable.");
    commits.samples_of(&[], &metrics.commits);
    text.histogram("taskwire_commit_writes", "Tasks that one commit changed.").samples_of(&[], &metrics.commit_writes);
    let conflicts = "Writes that were decided again, because another node had changed the task.";
    text.counter("taskwire_commit_conflicts_total", conflicts).sample(&[], metrics.conflicts.get());
    by_label(text.counter("taskwire_limits_reached_total", "Changes and requests that a limit refused."), "limit", &metrics.limits);
    let away = "Whether callers are told to try again, because the store cannot be reached, its disk is full or this node has no lease.";
    text.gauge("taskwire_store_away", away).sample(&[], u8::from(readings.is_away));
    text.counter("taskwire_store_outages_total", "How often nothing could be stored for a while.").sample(&[], metrics.outages.get());
    text.counter("taskwire_store_away_seconds_total", "For how long nothing could be stored.").sample(&[], readings.away_for.as_secs_f64());
    text.gauge("taskwire_store_free_bytes", "Room on the disk of the data directory.").sample_if_any(readings.free_bytes);
    text.gauge("taskwire_store_used_bytes", "What the files of the store take.").sample_if_any(readings.used_bytes);
}

fn write_readers(text: &mut Exposition, metrics: &Metrics, readings: &Readings) {
    let mut lags =
        text.histogram("taskwire_feed_lag_seconds", "How long a change was durable when a reader that waited for it went on to read it.");
    for (feed, lag) in metrics.feed_lags.iter() {
        lags.samples_of(&[("feed", feed)], lag);
    }
    let mut streams = text.gauge("taskwire_streams_open", "Streams to clients.");
    for (kind, count) in metrics.streams.iter() {
        streams.sample(&[("kind", kind)], count.get());
    }
    text.gauge("taskwire_sessions", "Sessions that are in memory.").sample(&[], readings.sessions);
}

fn write_requests(text: &mut Exposition, metrics: &Metrics, readings: &Readings) {
    let mut requests = text.counter("taskwire_requests_total", "Messages of clients, however they came.");
    for (era, methods) in Era::LABELS.iter().copied().zip(&metrics.requests) {
        for (method, count) in methods.iter().filter(|(_, count)| count.get() > 0) {
            requests.sample(&[("era", era), ("method", method)], count.get());
        }
    }
    let mut answered = text.counter("taskwire_http_requests_total", "HTTP requests that were answered.");
    for ([route, method, status], count) in metrics.http.requests() {
        answered.sample(&[("route", route), ("method", method), ("status", status)], count);
    }
    let mut durations = text.histogram("taskwire_http_request_duration_seconds", "From the head of a request to that of its response.");
    for (route, times) in metrics.http.durations.iter() {
        durations.samples_of(&[("route", route)], times);
    }
    let refused = text.counter("taskwire_http_refused_total", "HTTP requests that were refused before their message was looked at.");
    by_label(refused, "reason", &metrics.http.refused);
    text.gauge("taskwire_http_connections", "Open connections.").sample(&[], readings.connections);
    let bodies = "Bodies that are being read or answered, as `http.all_bodies_bytes` counts them.";
    text.gauge("taskwire_http_body_bytes", bodies).sample(&[], readings.body_bytes);
}

fn write_audit(text: &mut Exposition, readings: &Readings) {
    let lost = "Entries of the audit log that were lost: they could not be written, or came too fast.";
    text.counter("taskwire_audit_lost_total", lost).sample(&[], readings.audit_lost);
}

fn write_nodes(text: &mut Exposition, readings: &Readings) {
    text.gauge("taskwire_nodes", "Nodes that share the store and are alive.").sample_if_any(readings.nodes);
    text.gauge("taskwire_epoch", "The number of this start; 0 while this node has no lease.").sample(&[], readings.epoch);
    let lease = readings.lease_left.map(|left| left.as_secs_f64());
    text.gauge("taskwire_lease_remaining_seconds", "How much is left of the lease of this node.").sample_if_any(lease);
}

fn write_traces(text: &mut Exposition, readings: &Readings) {
    text.counter("taskwire_spans_sent_total", "Spans of traces that the collector took.").sample(&[], readings.spans_sent);
    let dropped = "Spans that the collector did not take, or not in time.";
    text.counter("taskwire_spans_dropped_total", dropped).sample(&[], readings.spans_dropped);
}

fn write_process(text: &mut Exposition, metrics: &Metrics) {
    let process = Process::read();
    text.gauge("taskwire_build_info", "The version of the server.").sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    text.gauge("process_start_time_seconds", "When the server began, since 1970.").sample(&[], metrics.began.as_millis() as f64 / 1e3);
    text.counter("process_cpu_seconds_total", "Processor time.").sample(&[], process.cpu);
    text.gauge("process_resident_memory_bytes", "Memory.").sample_if_any(process.resident);
    text.gauge("process_open_fds", "Open files, connections among them.").sample_if_any(process.open_files);
    text.gauge("process_max_fds", "Files that may be open.").sample_if_any(process.max_files);
}

/// A sample for each tool.
fn of_tools(mut family: Family<'_>, tools: &[&ToolMetrics], counter: impl Fn(&ToolMetrics) -> &Counter) {
    for tool in tools {
        family.sample(&[("tool", tool.name())], counter(tool).get());
    }
}

/// A sample for each value of a label.
fn by_label(mut family: Family<'_>, label: &str, counters: &ByLabel<Counter>) {
    for (value, count) in counters.iter() {
        family.sample(&[(label, value)], count.get());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use taskwire_core::{Timestamp, task::Status};

    use super::*;
    use crate::metrics::Answer;

    #[test]
    fn all_values_of_a_label_are_there_before_anything_is_counted() {
        let metrics = Metrics::new(Timestamp::from_millis(1_500));
        metrics.tool("quick");
        let _open = metrics.open_task("slow", Status::Working);
        let text = write(&metrics, &Readings::default());
        let has = |line: &str| assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        has("taskwire_tasks_open{tool=\"slow\",status=\"working\"} 1");
        has("taskwire_tasks_open{tool=\"slow\",status=\"input_required\"} 0");
        has("taskwire_tasks_ended_total{tool=\"quick\",outcome=\"tool_error\"} 0");
        has("taskwire_tasks_taken_over_total{why=\"queued\"} 0");
        has("taskwire_streams_open{kind=\"listen\"} 0");
        has("taskwire_http_refused_total{reason=\"auth\"} 0");
        has("taskwire_limits_reached_total{limit=\"tasks_per_caller\"} 0");
        has("taskwire_store_away 0");
        has("process_start_time_seconds 1.5");
        assert!(!text.contains("taskwire_lease_remaining_seconds"), "a server alone has no lease");
    }

    #[test]
    fn each_metric_is_in_one_place_and_has_a_name_of_the_right_form() {
        let metrics = Metrics::new(Timestamp::default());
        metrics.tool("t");
        let text = write(&metrics, &Readings::default());
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let mut names = BTreeSet::new();
        for (name, kind) in types {
            assert!(names.insert(name), "{name} is there twice");
            assert!(name.starts_with("taskwire_") || name.starts_with("process_"), "{name}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name} is a {kind}");
        }
        assert!(names.len() > 30, "{names:?}");
    }

    #[test]
    fn how_a_call_was_answered_is_told_with_its_era() {
        let metrics = Metrics::new(Timestamp::default());
        for (era, answer) in [(Era::Modern, Answer::Held), (Era::Legacy, Answer::Held), (Era::Legacy, Answer::Held)] {
            let call = metrics.call(era);
            metrics.begin_call(&call, "t");
            call.answered(answer);
        }
        let text = write(&metrics, &Readings::default());
        let calls: Vec<&str> = text.lines().filter(|line| line.starts_with("taskwire_calls_total")).collect();
        assert_eq!(
            calls,
            [
                "taskwire_calls_total{tool=\"t\",era=\"modern\",answer=\"held\"} 1",
                "taskwire_calls_total{tool=\"t\",era=\"legacy\",answer=\"held\"} 2"
            ]
        );
    }
}
