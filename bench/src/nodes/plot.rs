//! A plot of the rates, as SVG: by the number of nodes, and by the number of stored tasks. All axes are logarithmic. It has a background
//! of its own, so that it can be read on light pages and on dark ones.

use std::fmt::{self, Write as _};

use super::{
    NODES,
    found::{Case, Report, What, Who},
};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 410.0;
/// Where the panels are, and how wide. What is right of them has the names of the lines.
const LEFTS: [f64; 2] = [80.0, 560.0];
const PANEL_WIDTH: f64 = 240.0;
const TOP: f64 = 52.0;
const BOTTOM: f64 = 326.0;
/// Lines of text are so far apart.
const TEXT_HEIGHT: f64 = 15.0;

const BLUE: &str = "#0969da";
const ORANGE: &str = "#bc4c00";
const GREEN: &str = "#1a7f37";
const PURPLE: &str = "#8250df";
const INK: &str = "#1f2328";
const FAINT: &str = "#59636e";
const GRID: &str = "#d1d9e0";

/// Rates of one kind.
struct Line {
    name: &'static str,
    color: &'static str,
    dashed: bool,
    points: Vec<(f64, f64)>,
}

struct Panel {
    left: f64,
    title: &'static str,
    /// Names of values of the horizontal axis.
    ticks: Vec<(f64, String)>,
    lines: Vec<Line>,
}

pub(super) fn render(report: &Report) -> String {
    let mut text = String::new();
    write(&mut text, report).expect("writing to memory cannot fail");
    text
}

fn write(text: &mut String, report: &Report) -> fmt::Result {
    writeln!(
        text,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" font-family="system-ui, sans-serif" font-size="12">"#
    )?;
    writeln!(text, "<title>Rates of Taskwire on PostgreSQL, by nodes and by stored tasks</title>")?;
    writeln!(text, r##"<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff" stroke="{GRID}"/>"##)?;
    let panels = [by_nodes(report), by_stored(report)];
    let rates = panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| &line.points).map(|(_, rate)| rate.max(1.0).log10());
    let (lowest, highest) = rates.fold((f64::MAX, f64::MIN), |(lowest, highest), rate| (lowest.min(rate), highest.max(rate)));
    // From one power of ten to another. Without any rate there is nothing to show.
    let (lowest, highest) = if lowest > highest { (0.0, 1.0) } else { (lowest.floor(), highest.ceil().max(lowest.floor() + 1.0)) };
    for panel in &panels {
        panel.write(text, lowest, highest)?;
    }
    let machine = &report.machine;
    let about = format!("PostgreSQL {}, {} × {}: all on one machine. Scales are logarithmic.", report.postgres, machine.cpus, machine.cpu);
    label(text, (LEFTS[0], HEIGHT - 34.0), "start", FAINT, &about)?;
    label(
        text,
        (LEFTS[0], HEIGHT - 18.0),
        "start",
        FAINT,
        "Dashed: a bare client of PostgreSQL writes the same rows in the same batches.",
    )?;
    writeln!(text, "</svg>")
}

fn by_nodes(report: &Report) -> Panel {
    let line = |name: &'static str, color: &'static str, what: What, who: Who| {
        let rate = |nodes: usize| Some((nodes as f64, report.rate(Case::new(what, who, nodes))?.per_second));
        Line { name, color, dashed: who == Who::Bare, points: NODES.into_iter().filter_map(rate).collect() }
    };
    let lines = vec![
        line("appends", BLUE, What::Append, Who::Taskwire),
        line("appends, bare", BLUE, What::Append, Who::Bare),
        line("creates", ORANGE, What::Create, Who::Taskwire),
        line("creates, bare", ORANGE, What::Create, Who::Bare),
        line("tasks/get", GREEN, What::Get, Who::Taskwire),
        line("creates, FastMCP", PURPLE, What::Create, Who::Fastmcp),
    ];
    let ticks = NODES.iter().map(|nodes| (*nodes as f64, nodes.to_string())).collect();
    Panel { left: LEFTS[0], title: "per second, by nodes", ticks, lines }
}

fn by_stored(report: &Report) -> Panel {
    let line = |name: &'static str, color: &'static str, what: What| {
        let rate = |stored: &usize| Some((*stored as f64, report.rate(Case::among(what, *stored))?.per_second));
        Line { name, color, dashed: false, points: report.plan.stored.iter().filter_map(rate).collect() }
    };
    let lines = vec![
        line("appends", BLUE, What::Append),
        line("creates", ORANGE, What::Create),
        line("tasks/get", GREEN, What::Get),
        line("partials/read", PURPLE, What::Page),
    ];
    let ticks = report.plan.stored.iter().map(|stored| (*stored as f64, grouped(*stored as f64))).collect();
    Panel { left: LEFTS[1], title: "per second, one node, by stored tasks", ticks, lines }
}

impl Panel {
    fn write(&self, text: &mut String, lowest: f64, highest: f64) -> fmt::Result {
        let (left, right) = (self.left, self.left + PANEL_WIDTH);
        label(text, (left, TOP - 22.0), "start", INK, self.title)?;
        let y = |rate: f64| BOTTOM - (rate.max(1.0).log10() - lowest) / (highest - lowest) * (BOTTOM - TOP);
        for power in lowest as i32..=highest as i32 {
            let rate = 10f64.powi(power);
            writeln!(text, r#"<line x1="{left}" y1="{y:.1}" x2="{right}" y2="{y:.1}" stroke="{GRID}"/>"#, y = y(rate))?;
            label(text, (left - 8.0, y(rate) + 4.0), "end", FAINT, &grouped(rate))?;
        }
        let ends = self.ticks.first().zip(self.ticks.last()).map(|(first, last)| (first.0.ln(), last.0.ln()));
        let (first, last) = ends.unwrap_or_default();
        let x =
            |value: f64| if last > first { left + (value.ln() - first) / (last - first) * PANEL_WIDTH } else { left + PANEL_WIDTH / 2.0 };
        for (value, name) in &self.ticks {
            writeln!(
                text,
                r#"<line x1="{x:.1}" y1="{BOTTOM}" x2="{x:.1}" y2="{end}" stroke="{FAINT}"/>"#,
                x = x(*value),
                end = BOTTOM + 5.0
            )?;
            label(text, (x(*value), BOTTOM + 20.0), "middle", FAINT, name)?;
        }
        let mut names = Vec::new();
        for line in &self.lines {
            let Some((_, rate)) = line.points.last() else { continue };
            let dashes = if line.dashed { r#" stroke-dasharray="5 4""# } else { "" };
            let points: Vec<String> = line.points.iter().map(|(at, rate)| format!("{:.1},{:.1}", x(*at), y(*rate))).collect();
            let (points, color) = (points.join(" "), line.color);
            writeln!(text, r#"<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"{dashes}/>"#)?;
            for (at, rate) in &line.points {
                writeln!(text, r#"<circle cx="{:.1}" cy="{:.1}" r="3" fill="{color}"/>"#, x(*at), y(*rate))?;
            }
            names.push((y(*rate) + 4.0, color, format!("{} {}", line.name, grouped(*rate))));
        }
        spread(&mut names);
        for (at, color, name) in &names {
            label(text, (right + 10.0, *at), "start", color, name)?;
        }
        Ok(())
    }
}

/// Moves names apart, so that none is above another one.
fn spread(names: &mut [(f64, &'static str, String)]) {
    names.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut above = f64::MIN;
    for (at, ..) in names.iter_mut() {
        *at = at.max(above + TEXT_HEIGHT);
        above = *at;
    }
    // And up again, where the last of them has come too far.
    let mut below = BOTTOM + TEXT_HEIGHT + 4.0;
    for (at, ..) in names.iter_mut().rev() {
        *at = at.min(below - TEXT_HEIGHT);
        below = *at;
    }
}

fn label(text: &mut String, (x, y): (f64, f64), anchor: &str, color: &str, words: &str) -> fmt::Result {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    writeln!(text, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="{color}">{words}</text>"#)
}

/// A number with a comma between each three digits.
fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0.0, 999.4, 1_000.0, 1_234_567.0].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn names_do_not_cover_each_other() {
        let mut names: Vec<_> = [100.0, 102.0, 101.0, 500.0].map(|at| (at, INK, String::new())).into();
        spread(&mut names);
        assert!(names.windows(2).all(|pair| pair[1].0 - pair[0].0 >= TEXT_HEIGHT));
        assert!(names.iter().all(|name| name.0 <= BOTTOM + 4.0));
    }
}
