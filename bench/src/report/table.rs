//! The report as text for people.

use std::fmt::{self, Write as _};

use super::{Machine, Report, TaskPhase, Verdict, flow_label, median};
use crate::serve::Kind;

const KIB: f64 = 1024.0;

pub(super) fn render(report: &Report) -> String {
    let mut text = String::new();
    write(&mut text, report).expect("writing to memory cannot fail");
    text
}

fn write(text: &mut String, report: &Report) -> fmt::Result {
    write_machine(text, &report.machine)?;
    writeln!(text, "{} rounds, {} connections; medians of the rounds", report.plan.rounds, report.plan.connections)?;
    if report.plan.quick {
        writeln!(text, "A QUICK RUN: it shows that everything works, and little else")?;
    }
    loads(text, report)?;
    pushes(text, report)?;
    storage(text, report)?;
    flows(text, report)?;
    delays(text, report)?;
    clients(text, report)?;
    comparison(text, report)?;
    write_targets(text, &report.targets)?;
    write_remarks(text, &report.notes, &report.failures)
}

/// The first line of a table.
pub fn write_machine(text: &mut String, machine: &Machine) -> fmt::Result {
    let Machine { cpus, cpu, kernel, sync_us } = machine;
    writeln!(text, "\n{cpus} × {cpu}, Linux {kernel}, disk makes 4 KiB durable in {sync_us:.0} µs")
}

/// Targets, and what became of them.
pub fn write_targets(text: &mut String, targets: &[Verdict]) -> fmt::Result {
    writeln!(text, "\n{:<64} {:>12} {:>14}", "target", "goal", "measured")?;
    for verdict in targets {
        let pass = match verdict.pass {
            Some(true) => "pass",
            Some(false) => "MISS",
            None => "-",
        };
        writeln!(text, "{:<64} {:>12} {:>14}  {pass}", verdict.target, verdict.goal, verdict.measured)?;
    }
    Ok(())
}

/// What a reader must know, and what went wrong.
pub fn write_remarks(text: &mut String, notes: &[String], failures: &[String]) -> fmt::Result {
    for note in notes {
        writeln!(text, "\nnote: {note}")?;
    }
    for failure in failures {
        writeln!(text, "\nFAILED: {failure}")?;
    }
    Ok(())
}

fn loads(text: &mut String, report: &Report) -> fmt::Result {
    if report.loads.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n{:<20} {:>9} {:>8} {:>10} {:>9} {:>9} {:>9}", "load", "server", "tasks", "per second", "CPU µs", "p50 µs", "p99 µs")?;
    for series in &report.loads {
        let failed = if series.failed { "  FAILED" } else { "" };
        writeln!(
            text,
            "{:<20} {:>9} {:>8} {:>10.0} {:>9.1} {:>9.0} {:>9.0}{failed}",
            series.measure.label(),
            series.server.name(),
            series.tasks,
            series.per_second,
            series.cpu_us,
            series.p50_us,
            series.p99_us,
        )?;
    }
    Ok(())
}

fn pushes(text: &mut String, report: &Report) -> fmt::Result {
    if report.pushes.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "\n{:<20} {:>9} {:>8} {:>10} {:>9} {:>9} {:>9}",
        "push of a task's end", "server", "streams", "last ms", "p95 ms", "spread ms", "KiB each"
    )?;
    for series in &report.pushes {
        writeln!(
            text,
            "{:<20} {:>9} {:>8} {:>10.2} {:>9.2} {:>9.2} {:>9.1}",
            "",
            series.server.name(),
            series.listeners,
            series.last_ms_p50,
            series.last_ms_p95,
            series.spread_ms_p50,
            series.bytes_per_stream / KIB,
        )?;
    }
    Ok(())
}

fn storage(text: &mut String, report: &Report) -> fmt::Result {
    if report.memory.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "\n{:<20} {:>9} {:>8} {:>10} {:>14} {:>9}",
        "memory of tasks", "server", "tasks", "B per task", "2nd half B/t", "RSS MiB"
    )?;
    for memory in &report.memory {
        writeln!(
            text,
            "{:<20} {:>9} {:>8} {:>10.0} {:>14.0} {:>9.1}",
            shown(memory.held),
            memory.server.name(),
            memory.tasks,
            memory.bytes_per_task,
            memory.bytes_per_task_late,
            memory.rss_bytes / KIB / KIB,
        )?;
    }
    writeln!(text, "\n{:<20} {:>9} {:>8} {:>10}", "start to answer", "server", "tasks", "ms")?;
    for start in &report.starts {
        let ms = median(start.seconds.clone()) * 1e3;
        writeln!(text, "{:<20} {:>9} {:>8} {ms:>10.1}", shown(start.held), "taskwire", start.tasks)?;
    }
    Ok(())
}

/// Partial results, as fast as they can be.
fn flows(text: &mut String, report: &Report) -> fmt::Result {
    let streams = &report.streams;
    if streams.flows.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "\n{:<20} {:>9} {:>8} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7}",
        "stream", "server", "readers", "chunks/s", "to each", "MiB/s", "CPU µs", "text B", "wire B", "+ B"
    )?;
    for series in &streams.flows {
        writeln!(
            text,
            "{:<20} {:>9} {:>8} {:>10.0} {:>9.0} {:>9.1} {:>9.2} {:>9.0} {:>9.0} {:>7.0}",
            flow_label(series.mode, series.chunks),
            series.server.name(),
            series.readers,
            series.chunks_per_second,
            series.chunks_per_second_each,
            series.text_mib_per_second,
            series.cpu_us,
            series.text_bytes_per_chunk,
            series.wire_bytes_per_chunk,
            series.overhead_bytes_per_chunk,
        )?;
    }
    writeln!(text, "\n{:<20} {:>9} {:>8} {:>8} {:>10}", "taskwire over", "peer", "readers", "CPU", "text/s")?;
    for ratio in &streams.ratios {
        let (cpu, rate) = (format!("{:.2} ×", ratio.cpu), format!("{:.2} ×", ratio.text_per_second));
        let label = flow_label(ratio.mode, ratio.chunks);
        writeln!(text, "{label:<20} {:>9} {:>8} {cpu:>8} {rate:>10}", Kind::Bare.name(), ratio.readers)?;
    }
    Ok(())
}

/// Partial results: how soon they come, and what it takes to wait for them.
fn delays(text: &mut String, report: &Report) -> fmt::Result {
    let streams = &report.streams;
    if !streams.delays.is_empty() || !streams.commits.rounds.is_empty() {
        writeln!(text, "\n{:<20} {:>9} {:>8} {:>10} {:>9}", "append to receipt", "server", "readers", "p50 ms", "p99 ms")?;
        for series in &streams.delays {
            let (server, delay) = (series.server.name(), series.delay);
            writeln!(text, "{:<20} {server:>9} {:>8} {:>10.2} {:>9.2}", "", series.readers, delay.p50_ms, delay.p99_ms)?;
        }
        let (server, wait) = (Kind::Taskwire.name(), streams.commits.wait);
        writeln!(text, "{:<20} {server:>9} {:>8} {:>10.2} {:>9.2}", "one commit", "-", wait.p50_ms, wait.p99_ms)?;
    }
    if !streams.idle.is_empty() {
        writeln!(text, "\n{:<20} {:>9} {:>8} {:>10}", "idle streams", "server", "streams", "KiB each")?;
        for series in &streams.idle {
            writeln!(text, "{:<20} {:>9} {:>8} {:>10.1}", "", series.server.name(), series.streams, series.bytes_per_stream / KIB)?;
        }
    }
    Ok(())
}

/// Partial results as the client reads them.
fn clients(text: &mut String, report: &Report) -> fmt::Result {
    let clients = &report.clients;
    if clients.series.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "\n{:<20} {:>9} {:>8} {:>10} {:>10} {:>9} {:>9}",
        "partials read", "server", "runs", "reader", "per second", "CPU µs", "% core"
    )?;
    for series in &clients.series {
        writeln!(
            text,
            "{:<20} {:>9} {:>8} {:>10} {:>10.0} {:>9.2} {:>9.1}",
            series.speed.label(),
            series.server.name(),
            series.runs,
            series.reader.name(),
            series.per_second,
            series.cpu_us,
            series.core_percent,
        )?;
    }
    writeln!(text, "\n{:<20} {:>9} {:>8} {:>10} {:>10} {:>10}", "client over sse", "server", "runs", "CPU µs", "% core", "per second")?;
    for found in &clients.differences {
        let core = found.core_percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:+.1}"));
        let (cpu, rate) = (format!("{:+.2}", found.cpu_us), format!("{:.2} ×", found.per_second));
        let (label, server) = (found.speed.label(), found.server.name());
        writeln!(text, "{label:<20} {server:>9} {:>8} {cpu:>10} {core:>10} {rate:>10}", found.runs)?;
    }
    Ok(())
}

fn comparison(text: &mut String, report: &Report) -> fmt::Result {
    if !report.ratios.is_empty() {
        writeln!(text, "\n{:<20} {:>9} {:>8} {:>10}", "taskwire over", "peer", "CPU", "per second")?;
    }
    for ratio in &report.ratios {
        let (cpu, rate) = (format!("{:.2} ×", ratio.cpu), format!("{:.2} ×", ratio.per_second));
        writeln!(text, "{:<20} {:>9} {cpu:>8} {rate:>10}", ratio.measure.label(), ratio.to.name())?;
    }
    Ok(())
}

fn shown(held: TaskPhase) -> &'static str {
    match held {
        TaskPhase::Working => "working",
        TaskPhase::Ended => "ended",
    }
}
