//! What nobody may see: found in text, also where a terminal does not show what stands within it, and across the places where a long line
//! is cut.

use std::{borrow::Cow, ops::Range};

use regex::{Captures, Regex, RegexBuilder};
use serde_json::Value;
use taskwire_core::screen;

/// What is there instead of a match.
pub(super) const REDACTED: &str = "[redacted]";

/// How many places are tried for a cut where something is a secret only as a terminal shows it.
const SHOWN_TRIES: usize = 16;

/// What nobody may see.
#[derive(Debug)]
pub(super) struct Redactor(Vec<Regex>);

impl Redactor {
    /// # Errors
    /// Which of these is no regular expression.
    pub(super) fn new(patterns: &[String]) -> Result<Self, String> {
        let built = patterns.iter().map(|pattern| {
            // Blocks may have several lines, and `^`, `$` and `.` should mean the same there as in the lines of a text.
            let built = RegexBuilder::new(pattern).multi_line(true).crlf(true).build();
            built.map_err(|error| format!("`{pattern}` in `redact` is not a regular expression: {error}"))
        });
        built.collect::<Result<_, _>>().map(Self)
    }

    /// Whether there is nothing to hide.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut shown = Cow::Borrowed(text);
        for pattern in &self.0 {
            // An expression like `x*` also matches nothing at all, everywhere; there is nothing to hide in that.
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

    /// What a terminal shows of a text, where only there something is seen that nobody may see.
    fn redact_as_shown(&self, hidden: &str) -> Option<String> {
        match screen::render(hidden) {
            Cow::Borrowed(_) => None,
            Cow::Owned(seen) => Some(self.text(&seen).into_owned()).filter(|clean| *clean != seen),
        }
    }

    /// A line, or several. Where a secret is seen only because a terminal does not show what is written within it, such as a colour, the
    /// line is what a terminal shows.
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

    /// Where the beginning of a line that goes on behind this text can be cut off, so that no secret is cut in two: at `most`, or before
    /// it if something to be hidden lies across that place. What is not found yet, because the rest of it has not come, lies behind the cut as
    /// long as it has no more bytes than there are behind `most`. Nothing if there is no such place: what is to be hidden goes from the
    /// beginning to the end, and perhaps beyond it.
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
        // The letter beside a match may be what makes it one.
        let beside = if found.iter().any(|range| range.end == at) {
            text.ceil_char_boundary(at + 1)
        } else if found.iter().any(|range| range.start == at) {
            text.floor_char_boundary(at - 1)
        } else {
            at
        };
        let is_inside = |place: usize| found.iter().any(|range| range.start < place && place < range.end);
        if (1..text.len()).contains(&beside) && !is_inside(beside) {
            at = beside;
        }
        let cuts = (1..=SHOWN_TRIES).rev().map(|n| text.floor_char_boundary(at * n / SHOWN_TRIES));
        cuts.filter(|place| *place > 0 && !is_inside(*place)).find(|place| self.cut_keeps_redaction(text, *place))
    }

    /// Whether what only a terminal shows as a secret is hidden in the two parts as it is in the whole.
    fn cut_keeps_redaction(&self, text: &str, at: usize) -> bool {
        let Some(whole) = self.redact_as_shown(&self.text(text)) else { return true };
        let (before, behind) = text.split_at(at);
        let shown = |part: &str| self.text(&screen::render(&self.text(part))).into_owned();
        whole == shown(before) + &shown(behind)
    }

    /// A content block. What is no text but needed to read it (kinds, encoded bytes) stays as it is.
    pub(super) fn block(&self, block: Value) -> Value {
        self.within(block, &["type", "mimeType", "data", "blob"])
    }

    /// Any value, with every text in it: the names of members too.
    pub(super) fn redact_value(&self, value: Value) -> Value {
        self.within(value, &[])
    }

    /// With members that are spared, the names of members are too: a block without them would be no block.
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
