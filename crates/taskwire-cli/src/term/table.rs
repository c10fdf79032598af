//! Tables: columns as wide as what is in them, the last one cut to the window.

use super::{paint::Terminal, stderr::fit};

/// Between two columns.
const GAP: &str = "  ";
/// The least that is left of a last column that is cut, and its least part of the window.
const LAST_COLUMNS_MIN: usize = 8;
const LAST_PART: usize = 3;

/// What happens to the last column where the window is too narrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastColumn {
    /// It is cut first.
    Cut,
    /// It stays whole: users copy it.
    Whole,
}

/// A cell: what it says, and how that is written.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    painted: Option<String>,
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, painted: None }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl Cell {
    /// A cell with colours.
    pub(crate) fn painted(text: &str, painted: String) -> Self {
        Self { text: text.to_owned(), painted: Some(painted) }
    }
}

/// A table with titles for standard output; empty without rows.
pub(crate) fn text(titles: &[&str], rows: impl IntoIterator<Item = Vec<Cell>>, last: LastColumn, surroundings: Terminal) -> String {
    let title = |text: &&str| Cell::painted(text, surroundings.stdout_paint().bold(text));
    let mut all: Vec<Vec<Cell>> = vec![titles.iter().map(title).collect()];
    all.extend(rows);
    if all.len() == 1 {
        return String::new();
    }
    lines(&all, last, surroundings.stdout_columns(), surroundings.unicode).into_iter().map(|line| line + "\n").collect()
}

/// The lines of a table. Of the other columns the widest is cut where the window (`columns`) is too narrow.
pub(crate) fn lines(rows: &[Vec<Cell>], last: LastColumn, columns: Option<usize>, unicode: bool) -> Vec<String> {
    let widths = widths(rows, last, columns);
    let columns = columns.filter(|_| last == LastColumn::Cut);
    rows.iter().map(|row| line(row, &widths, columns, unicode)).collect()
}

fn widths(rows: &[Vec<Cell>], last: LastColumn, columns: Option<usize>) -> Vec<usize> {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let mut widths = vec![0; count];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(console::measure_text_width(&cell.text));
        }
    }
    let Some(columns) = columns else { return widths };
    let Some((own, inner)) = widths.split_last_mut() else { return widths };
    let kept = if last == LastColumn::Whole { *own } else { (*own).min(LAST_COLUMNS_MIN.max(columns / LAST_PART)) };
    let wanted = |inner: &[usize]| inner.iter().map(|width| width + GAP.len()).sum::<usize>() + kept;
    while wanted(inner) > columns {
        match inner.iter_mut().max() {
            Some(widest) if *widest > 4 => *widest -= 1,
            _ => break,
        }
    }
    widths
}

fn line(row: &[Cell], widths: &[usize], columns: Option<usize>, unicode: bool) -> String {
    let mut line = String::new();
    let mut used = 0;
    for (at, (cell, width)) in row.iter().zip(widths).enumerate() {
        let is_last = at + 1 == row.len();
        let space = match columns {
            Some(columns) if is_last => columns.saturating_sub(used).max(1),
            _ if is_last => usize::MAX,
            _ => *width,
        };
        let own = console::measure_text_width(&cell.text);
        let (text, shown) = if own > space {
            let text = fit(&cell.text, space, unicode);
            let shown = console::measure_text_width(&text);
            (text, shown)
        } else {
            (cell.painted.clone().unwrap_or_else(|| cell.text.clone()), own)
        };
        line.push_str(&text);
        if !is_last {
            line.push_str(&" ".repeat(width.saturating_sub(shown)));
            line.push_str(GAP);
            used += width + GAP.len();
        }
    }
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<Cell>> {
        rows.iter().map(|row| row.iter().map(|text| Cell::from(*text)).collect()).collect()
    }

    const ROWS: &[&[&str]] = &[&["TOOL", "PARAMETERS", "WHAT IT DOES"], &["countdown", "[from]", "Counts down, one number a second"]];

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let lines = lines(&rows(ROWS), LastColumn::Cut, None, true);
        assert_eq!(lines, ["TOOL       PARAMETERS  WHAT IT DOES", "countdown  [from]      Counts down, one number a second"]);
    }

    #[test]
    fn a_narrow_window_cuts_the_last_column_then_the_widest() {
        let narrow = lines(&rows(ROWS), LastColumn::Cut, Some(40), true);
        assert_eq!(narrow[1], "countdown  [from]      Counts down, one…");
        let narrower = lines(&rows(ROWS), LastColumn::Cut, Some(24), true);
        assert!(narrower.iter().all(|line| console::measure_text_width(line) <= 24), "{narrower:?}");
        assert!(narrower[1].starts_with("count"), "{narrower:?}");
        for columns in 1..20 {
            lines(&rows(ROWS), LastColumn::Cut, Some(columns), true);
        }
    }

    #[test]
    fn long_columns_leave_a_third_of_the_window_to_the_last() {
        let long =
            ["render_scene_with_options", "scene [height] [layers] [preview] [quality] [width]", "Renders a scene with all its layers"];
        let lines = lines(&rows(&[&long, &["b", "", "Short"]]), LastColumn::Cut, Some(80), true);
        assert_eq!(lines[0], "render_scene_with_options  scene [height] [layers] …  Renders a scene with all …");
        assert_eq!(lines[1], format!("b{}Short", " ".repeat(53)));
    }

    #[test]
    fn what_one_copies_is_never_cut() {
        let narrow = lines(&rows(ROWS), LastColumn::Whole, Some(10), true);
        assert_eq!(narrow[1], "cou…  [fr…  Counts down, one number a second");
    }

    #[test]
    fn wide_letters_and_colours_do_not_shift_columns() {
        let painted = Cell::painted("ok", "\x1b[32mok\x1b[0m".to_owned());
        let rows = vec![vec![Cell::from("世界"), "x".into()], vec![painted, "y".into()]];
        assert_eq!(lines(&rows, LastColumn::Cut, None, true), ["世界  x", "\x1b[32mok\x1b[0m    y"]);
    }

    #[test]
    fn nothing_is_no_lines() {
        assert!(lines(&[], LastColumn::Cut, Some(80), true).is_empty());
    }
}
