//! Hides secrets in text, even those that are seen only as a terminal shows the text, and those across the cuts of a long line.

use std::{borrow::Cow, ops::Range};

use regex::{Captures, Regex, RegexBuilder};
use serde_json::Value;
use taskwire_core::screen;

/// What replaces a secret.
pub(super) const REDACTED: &str = "[redacted]";

/// How many positions are tried for a cut if something is a secret only as a terminal shows it.
const SHOWN_TRIES: usize = 16;

/// The regular expressions that find secrets.
#[derive(Debug)]
pub(super) struct Redactor(Vec<Regex>);

impl Redactor {
    /// # Errors
    /// Which pattern is no regular expression.
    pub(super) fn new(patterns: &[String]) -> Result<Self, String> {
        let built = patterns.iter().map(|pattern| {
            // Blocks may have several lines, and `^`, `$` and `.` should mean the same there as in the lines of a text.
            let built = RegexBuilder::new(pattern).multi_line(true).crlf(true).build();
            built.map_err(|error| format!("`{pattern}` in `redact` is not a regular expression: {error}"))
        });
        built.collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut shown = Cow::Borrowed(text);
        for pattern in &self.0 {
            // An expression like `x*` also matches the empty text everywhere; there is nothing to hide in that.
            let hide = |found: &Captures<'_>| if found[0].is_empty() { "" } else { REDACTED };
            let changed = match pattern.replace_all(&shown, hide) {
                Cow::Owned(changed) => Some(changed),
                Cow::Borrowed(_) => None,
            };
            if let Some(changed) = changed {
                shown = Cow::Owned(changed);
            }
        }
        shown
    }

    /// What a terminal shows of a text that is redacted already, redacted again; None if that finds no secret.
    fn redact_as_shown(&self, hidden: &str) -> Option<String> {
        match screen::render(hidden) {
            Cow::Borrowed(_) => None,
            Cow::Owned(seen) => Some(self.text(&seen).into_owned()).filter(|clean| *clean != seen),
        }
    }

    /// Hides secrets in one or more lines. If a secret is seen only because a terminal does not show what stands within it, such as a
    /// colour, the line becomes what a terminal shows.
    pub(super) fn line<'a>(&self, line: &'a str) -> Cow<'a, str> {
        if self.0.is_empty() {
            return Cow::Borrowed(line);
        }
        let hidden = self.text(line);
        match self.redact_as_shown(&hidden) {
            Some(clean) => Cow::Owned(clean),
            None => hidden,
        }
    }

    /// Where the beginning of a line that goes on after this text can be cut off without splitting a secret: at `most`, or before it if a
    /// secret lies across that position. A secret that is not found yet, because the rest has not come, stays behind the cut if it has no
    /// more bytes than there are behind `most`. None if a secret goes from the beginning to the end, and perhaps beyond.
    pub(super) fn safe_cut(&self, text: &str, most: usize) -> Option<usize> {
        if self.0.is_empty() {
            return Some(text.len());
        }
        let mut found: Vec<Range<usize>> = self
            .0
            .iter()
            .flat_map(|pattern| pattern.find_iter(text))
            .map(|found| found.range())
            .filter(|range| !range.is_empty())
            .collect();
        found.sort_unstable_by_key(|range| range.start);
        let mut at = text.floor_char_boundary(most).max(text.ceil_char_boundary(1));
        for range in found.iter().rev() {
            if range.start < at && at < range.end {
                at = range.start;
            }
        }
        if at == 0 {
            for range in &found {
                if (range.start == 0 || range.start < at) && at < range.end {
                    at = range.end;
                }
            }
            if at == text.len() {
                return None;
            }
        }
        // The character beside a match may be what makes it one.
        let beside = if found.iter().any(|range| range.end == at) {
            text.ceil_char_boundary(at + 1)
        } else if found.iter().any(|range| range.start == at) {
            text.floor_char_boundary(at - 1)
        } else {
            at
        };
        let is_inside = |position: usize| found.iter().any(|range| range.start < position && position < range.end);
        if (1..text.len()).contains(&beside) && !is_inside(beside) {
            at = beside;
        }
        let cuts = (1..=SHOWN_TRIES).rev().map(|n| text.floor_char_boundary(at * n / SHOWN_TRIES));
        cuts.filter(|position| *position > 0 && !is_inside(*position)).find(|position| self.cut_keeps_redaction(text, *position))
    }

    /// Whether a secret that only a terminal shows is hidden in the two parts as it is in the whole.
    fn cut_keeps_redaction(&self, text: &str, at: usize) -> bool {
        let Some(whole) = self.redact_as_shown(&self.text(text)) else { return true };
        let (before, behind) = text.split_at(at);
        let shown = |part: &str| self.text(&screen::render(&self.text(part))).into_owned();
        whole == shown(before) + &shown(behind)
    }

    /// Hides secrets in a content block. Members that are needed to read it (kinds, encoded bytes) stay as they are.
    pub(super) fn block(&self, block: Value) -> Value {
        self.within(block, &["type", "mimeType", "data", "blob"])
    }

    /// Hides secrets in every text of a value, and in the names of members.
    pub(super) fn redact_value(&self, value: Value) -> Value {
        self.within(value, &[])
    }

    /// If `spared` names members, all names stay as they are: a block without them would be no block.
    fn within(&self, value: Value, spared: &[&str]) -> Value {
        match value {
            _ if self.0.is_empty() => value,
            Value::String(text) => Value::String(self.line(&text).into_owned()),
            Value::Array(items) => items.into_iter().map(|item| self.within(item, spared)).collect(),
            Value::Object(members) => {
                let mut shown = serde_json::Map::new();
                for (name, member) in members {
                    let member = if spared.contains(&name.as_str()) && member.is_string() { member } else { self.within(member, spared) };
                    let mut name = if spared.is_empty() { self.text(&name).into_owned() } else { name };
                    if shown.contains_key(&name) {
                        name = format!("{name} {}", shown.len() + 1);
                    }
                    shown.insert(name, member);
                }
                Value::Object(shown)
            }
            Value::Number(number) if self.text(&number.to_string()) != number.to_string() => REDACTED.into(),
            other => other,
        }
    }
}
