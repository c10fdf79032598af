//! Finds where something is in a file: every error message shows its line.

use std::{fmt, ops::Range, path::PathBuf};

use anyhow::anyhow;
use serde::de;
use toml::de::{DeTable, DeValue};

use super::hints;
use crate::term::escape;

/// The most of a line that is shown.
const SHOWN_CHARS: usize = 160;

/// The file itself, so that errors can show the location.
#[derive(Default)]
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

/// The text may have tokens in it.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())
    }
}

/// Parses one of our files; an error shows the location and says what to write instead.
pub(crate) fn parse_toml<T: de::DeserializeOwned>(text: &str) -> anyhow::Result<T> {
    toml::from_str(text).map_err(|error| anyhow!(complaint(text, error.span(), &hints::explain(text, &error))))
}

/// The span of the value at this path, or of what is nearest to it: a missing key is reported where it should be. An entry of a list is
/// named by its number.
pub(crate) fn find(text: &str, path: &[&str]) -> Option<Range<usize>> {
    walk(text, path).0
}

/// Whether there is a value at this path.
pub(crate) fn has(text: &str, path: &[&str]) -> bool {
    walk(text, path).1
}

/// How far the path leads, and whether that is its end.
fn walk(text: &str, path: &[&str]) -> (Option<Range<usize>>, bool) {
    let Ok(root) = DeTable::parse(text) else { return (None, false) };
    let root = DeValue::Table(root.into_inner());
    let (mut value, mut span) = (&root, None);
    for step in path {
        let found = match value {
            DeValue::Array(_) => step.parse::<usize>().ok().and_then(|index| value.get(index)),
            _ => value.get(*step),
        };
        let Some(found) = found else { return (span, false) };
        span = Some(found.span());
        value = found.get_ref();
    }
    (span, true)
}

/// The line and the column of a byte, both from 1; columns are characters.
fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let at = (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    let before = &text[..at];
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[start..].chars().count() + 1)
}

/// An error message with the location and the line itself.
///
/// A line with a token or another secret is not shown: messages go to logs.
pub(crate) fn complaint(text: &str, span: Option<Range<usize>>, message: &str) -> String {
    let Some(span) = span else { return message.to_owned() };
    let (number, column) = line_and_column(text, span.start);
    let content = text.split('\n').nth(number - 1).unwrap_or_default().trim_end_matches('\r');
    let location = format!("line {number}, column {column}");
    let lower = content.to_lowercase();
    if ["token", "secret", "headers", "authorization"].iter().any(|word| lower.contains(word)) {
        return format!("{location}\n{message}");
    }
    // Of a very long line, show what is around the location.
    let skipped = if content.chars().count() > SHOWN_CHARS { (column - 1).saturating_sub(SHOWN_CHARS / 4) } else { 0 };
    // Each character stays one character, so that the marks below stand right.
    let plain = |c: char| if escape::line(&c.to_string()).chars().count() == 1 && c != '\t' { c } else { ' ' };
    let shown: String = content.chars().skip(skipped).take(SHOWN_CHARS).map(plain).collect();
    let before = column - 1 - skipped;
    let marked = text.get(span).map_or(1, |marked| marked.lines().next().unwrap_or_default().chars().count());
    let marks = "^".repeat(marked.min(shown.chars().count().saturating_sub(before)).max(1));
    let gutter = " ".repeat(number.to_string().len());
    format!("{location}\n{gutter} |\n{number} | {shown}\n{gutter} | {}{marks}\n{message}", " ".repeat(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Small {
        #[serde(rename = "count")]
        _count: Option<u8>,
    }

    fn refused(text: &str) -> String {
        parse_toml::<Small>(text).expect_err(text).to_string()
    }

    #[test]
    fn what_the_parser_and_what_we_complain_about_looks_the_same() {
        let text = "# one\ncount = 300\n";
        let theirs = refused(text);
        let ours = complaint(text, find(text, &["count"]), "`count` is a whole number from 0 up, not 300");
        assert_eq!(theirs, ours);
        assert_eq!(ours, "line 2, column 9\n  |\n2 | count = 300\n  |         ^^^\n`count` is a whole number from 0 up, not 300");
    }

    #[test]
    fn an_unknown_key_is_marked_and_the_nearest_is_named() {
        let text = refused("\ncont = 1");
        assert_eq!(text, "line 2, column 1\n  |\n2 | cont = 1\n  | ^^^^\nthere is no key `cont` here: did you mean `count`?");
        assert!(!refused("zzzzzzzzzzzz = 1").contains("did you mean"));
    }

    #[test]
    fn what_is_no_toml_has_its_place() {
        assert!(refused("count = \"1").starts_with("line 1, column "));
        assert!(refused("count = 1\ncount = 2\n").starts_with("line 2, column 1\n"));
        assert!(refused("[").starts_with("line 1, column "));
        assert!(refused("x").starts_with("line 1, column "), "{}", refused("x"));
    }

    #[test]
    fn a_value_is_found_by_its_path_or_the_nearest_that_there_is() {
        let text = "a = 1\n[[tool]]\nname = \"x\"\ncommand = [\"true\", \"{y}\"]\n[tool.env]\nA = \"b\"\n[[tool]]\nname = \"z\"\n";
        let at = |path: &[&str]| find(text, path).map(|span| line_and_column(text, span.start));
        assert_eq!(at(&["a"]), Some((1, 5)));
        assert_eq!(at(&["tool", "0", "name"]), Some((3, 8)));
        assert_eq!(at(&["tool", "0", "command"]), Some((4, 11)));
        assert_eq!(at(&["tool", "0", "command", "1"]), Some((4, 20)));
        assert_eq!(at(&["tool", "0", "env"]), Some((5, 1)));
        assert_eq!(at(&["tool", "0", "env", "A"]), Some((6, 5)));
        assert_eq!(at(&["tool", "1", "name"]), Some((8, 8)));
        assert_eq!(at(&["tool", "1", "command", "0"]), Some((7, 1)), "what is missing is missed in its tool");
        assert_eq!(at(&["nowhere"]), None);
        assert!(has(text, &["tool", "0", "env", "A"]) && !has(text, &["tool", "1", "env"]));
    }

    #[test]
    fn columns_are_characters_and_windows_has_lines_too() {
        let text = "a = \"ü🦀\"\r\nb = { \"ü\" = 1 }\r\n";
        let span = find(text, &["b", "ü"]);
        let shown = complaint(text, span, "no");
        assert_eq!(shown, "line 2, column 13\n  |\n2 | b = { \"ü\" = 1 }\n  |             ^\nno");
        assert_eq!(line_and_column("", 0), (1, 1));
        assert_eq!(line_and_column("ü", 1), (1, 1), "in the middle of a character");
        assert_eq!(line_and_column("a\n", 99), (2, 1));
    }

    #[test]
    fn a_line_is_shown_so_that_it_harms_no_terminal_and_does_not_fill_it() {
        let text = "\tx = '\x1b[2J\u{202e}'";
        let shown = complaint(text, Some(1..2), "no");
        assert_eq!(shown, "line 1, column 2\n  |\n1 |  x = ' [2J '\n  |  ^\nno");
        let long = format!("{}here{}", "x".repeat(10_000), "y".repeat(10_000));
        let shown = complaint(&long, Some(10_000..10_004), "no");
        assert!(shown.starts_with("line 1, column 10001\n") && shown.len() < 500, "{shown}");
        let lines: Vec<&str> = shown.lines().collect();
        let mark = lines[3].find('^').expect("a mark");
        assert_eq!(&lines[2][mark..mark + 4], "here");
        assert!(lines[3].ends_with("^^^^") && !lines[3].ends_with("^^^^^"));
    }

    #[test]
    fn a_line_with_a_token_is_not_shown() {
        let shown = complaint("tokens = [{ token = \"secret\" }]", Some(0..6), "no");
        assert_eq!(shown, "line 1, column 1\nno");
    }
}
