//! What was found about nodes, as text for people.

use std::fmt::{self, Write as _};

use super::found::Report;
use crate::report::{write_machine, write_remarks, write_targets};

pub(super) fn render(report: &Report) -> String {
    let mut text = String::new();
    write(&mut text, report).expect("writing to memory cannot fail");
    text
}

fn write(text: &mut String, report: &Report) -> fmt::Result {
    write_machine(text, &report.machine)?;
    let plan = &report.plan;
    writeln!(text, "PostgreSQL {}; {} rounds, {} connections; medians of the rounds", report.postgres, plan.rounds, plan.connections)?;
    if plan.quick {
        writeln!(text, "A QUICK RUN: it shows that everything works, and little else")?;
    }
    rates(text, report)?;
    pushes(text, report)?;
    takeovers(text, report)?;
    sessions(text, report)?;
    comparison(text, report)?;
    write_targets(text, &report.targets)?;
    write_remarks(text, &report.notes, &report.failures)
}

fn rates(text: &mut String, report: &Report) -> fmt::Result {
    if report.rates.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "\n{:<20} {:>9} {:>8} {:>9} {:>10} {:>9} {:>9} {:>10}",
        "rate", "server", "nodes", "stored", "per second", "CPU µs", "store µs", "per commit"
    )?;
    for series in &report.rates {
        let case = series.case;
        let stored = case.stored.map_or_else(|| "-".to_owned(), |stored| stored.to_string());
        let per_commit = series.per_commit.map_or_else(|| "-".to_owned(), |count| format!("{count:.1}"));
        writeln!(
            text,
            "{:<20} {:>9} {:>8} {stored:>9} {:>10.0} {:>9.1} {:>9.1} {per_commit:>10}",
            case.what.label(),
            case.who.name(),
            case.nodes,
            series.per_second,
            series.own_us,
            series.store_us,
        )?;
    }
    Ok(())
}

fn pushes(text: &mut String, report: &Report) -> fmt::Result {
    if report.pushes.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n{:<20} {:>9} {:>8} {:>10} {:>9}", "write to receipt", "reader", "nodes", "p50 ms", "p99 ms")?;
    for series in &report.pushes {
        let reader = if series.elsewhere { "elsewhere" } else { "same node" };
        writeln!(text, "{:<20} {reader:>9} {:>8} {:>10.2} {:>9.2}", "", series.nodes, series.delay.p50_ms, series.delay.p99_ms)?;
    }
    Ok(())
}

fn takeovers(text: &mut String, report: &Report) -> fmt::Result {
    if report.takeovers.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n{:<20} {:>9} {:>8} {:>10} {:>9}", "killed to run again", "tasks", "nodes", "median s", "max s")?;
    for series in &report.takeovers {
        writeln!(text, "{:<20} {:>9} {:>8} {:>10.2} {:>9.2}", "", series.tasks, series.nodes, series.seconds_p50, series.seconds_max)?;
    }
    Ok(())
}

fn sessions(text: &mut String, report: &Report) -> fmt::Result {
    if report.sessions.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n{:<20} {:>9} {:>9} {:>10} {:>9}", "creates and appends", "session", "creates/s", "appends/s", "store µs")?;
    for series in &report.sessions {
        let session = if series.idle { "idle" } else { "none" };
        writeln!(
            text,
            "{:<20} {session:>9} {:>9.0} {:>10.0} {:>9.1}",
            "", series.creates_per_second, series.appends_per_second, series.store_us
        )?;
    }
    if let Some(ratio) = report.session_ratio {
        let [creates, appends, both] = [ratio.creates, ratio.appends, ratio.both].map(|ratio| format!("{ratio:.2} ×"));
        writeln!(text, "{:<20} {:>9} {creates:>9} {appends:>10} both {both}", "", "with over")?;
    }
    Ok(())
}

fn comparison(text: &mut String, report: &Report) -> fmt::Result {
    if !report.ratios.is_empty() {
        writeln!(text, "\n{:<20} {:>9} {:>8} {:>10} {:>10}", "taskwire over", "peer", "nodes", "per second", "all CPU")?;
    }
    for ratio in &report.ratios {
        let (rate, cpu) = (format!("{:.2} ×", ratio.per_second), format!("{:.2} ×", ratio.cpu));
        writeln!(text, "{:<20} {:>9} {:>8} {rate:>10} {cpu:>10}", ratio.what.label(), ratio.to.name(), ratio.nodes)?;
    }
    Ok(())
}
