//! Adds a member to a JSON file, with or without comments. All else in it stays as it is, byte for byte.

use std::ops::Range;

use serde_json::{Map, Value};

use super::config_value::OrderedValue;

/// Levels of nesting. A client's settings are much flatter.
const DEPTH_MAX: usize = 100;

/// A value and its span in the text.
struct Node {
    span: Range<usize>,
    kind: Kind,
}

enum Kind {
    Object(Vec<Member>),
    List(Vec<Node>),
    Plain(Value),
}

struct Member {
    key: String,
    /// Where its key begins.
    start: usize,
    value: Node,
    /// Whether a comma follows.
    has_comma: bool,
}

impl Node {
    fn value(&self) -> Value {
        match &self.kind {
            Kind::Object(members) => members.iter().map(|member| (member.key.clone(), member.value.value())).collect::<Map<_, _>>().into(),
            Kind::List(items) => items.iter().map(Node::value).collect::<Vec<_>>().into(),
            Kind::Plain(value) => value.clone(),
        }
    }
}

/// Reads JSON as editors' settings have it: with comments, and commas behind the last of a list.
struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn read(text: &'a str) -> Result<Node, String> {
        let mut reader = Self { text, at: 0 };
        // Some editors begin their files with a byte order mark.
        if text.starts_with('\u{feff}') {
            reader.at = '\u{feff}'.len_utf8();
        }
        let node = reader.value(0)?;
        reader.skip()?;
        if reader.at < text.len() { Err(reader.wrong("there is more behind its end")) } else { Ok(node) }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn wrong(&self, what: &str) -> String {
        let before = &self.text[..self.at];
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        format!("line {}, column {column}: {what}", before.matches('\n').count() + 1)
    }

    /// Skips blanks and comments.
    fn skip(&mut self) -> Result<(), String> {
        loop {
            let rest = self.rest();
            let blanks = rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
            let rest = &rest[blanks..];
            self.at += blanks;
            if rest.starts_with("//") {
                self.at += rest.find('\n').unwrap_or(rest.len());
            } else if let Some(comment) = rest.strip_prefix("/*") {
                let len = comment.find("*/").ok_or_else(|| self.wrong("a comment has no end"))?;
                self.at += len + 4;
            } else {
                return Ok(());
            }
        }
    }

    /// Skips one character, if it is the next.
    fn consume(&mut self, c: char) -> bool {
        let found = self.rest().starts_with(c);
        if found {
            self.at += c.len_utf8();
        }
        found
    }

    fn value(&mut self, depth: usize) -> Result<Node, String> {
        self.skip()?;
        if depth > DEPTH_MAX {
            return Err(self.wrong("too many objects and lists in each other"));
        }
        let start = self.at;
        let kind = if self.consume('{') {
            Kind::Object(self.members(depth)?)
        } else if self.consume('[') {
            Kind::List(self.items(depth)?)
        } else if self.rest().starts_with('"') {
            Kind::Plain(Value::from(self.string()?))
        } else {
            let rest = self.rest();
            let len = rest.find([',', ']', '}', ' ', '\t', '\r', '\n', '/', ':', '"', '{', '[']).unwrap_or(rest.len());
            let value = serde_json::from_str(&rest[..len]).map_err(|_| self.wrong("a value is expected here"))?;
            self.at += len;
            Kind::Plain(value)
        };
        Ok(Node { span: start..self.at, kind })
    }

    fn members(&mut self, depth: usize) -> Result<Vec<Member>, String> {
        let mut members: Vec<Member> = Vec::new();
        loop {
            self.skip()?;
            if self.consume('}') {
                return Ok(members);
            }
            if members.last().is_some_and(|last| !last.has_comma) {
                return Err(self.wrong("a comma or a `}` is expected here"));
            }
            let start = self.at;
            if !self.rest().starts_with('"') {
                return Err(self.wrong("a name in quotes or a `}` is expected here"));
            }
            let key = self.string()?;
            self.skip()?;
            if !self.consume(':') {
                return Err(self.wrong("a `:` is expected here"));
            }
            let value = self.value(depth + 1)?;
            self.skip()?;
            let has_comma = self.consume(',');
            members.push(Member { key, start, value, has_comma });
        }
    }

    fn items(&mut self, depth: usize) -> Result<Vec<Node>, String> {
        let (mut items, mut is_open) = (Vec::new(), true);
        loop {
            self.skip()?;
            if self.consume(']') {
                return Ok(items);
            }
            if !is_open {
                return Err(self.wrong("a comma or a `]` is expected here"));
            }
            items.push(self.value(depth + 1)?);
            self.skip()?;
            is_open = self.consume(',');
        }
    }

    fn string(&mut self) -> Result<String, String> {
        let rest = self.rest();
        let mut is_escaped = false;
        let end = rest.char_indices().skip(1).find(|(_, c)| {
            let is_end = *c == '"' && !is_escaped;
            is_escaped = *c == '\\' && !is_escaped;
            is_end
        });
        let (end, _) = end.ok_or_else(|| self.wrong("a text has no end"))?;
        let text = serde_json::from_str(&rest[..=end]).map_err(|error| self.wrong(&format!("this text cannot be read ({error})")))?;
        self.at += end + 1;
        Ok(text)
    }
}

/// Parses a JSON file.
///
/// # Errors
/// Where it is wrong, and what is.
pub(super) fn value(text: &str) -> Result<Value, String> {
    Reader::read(text).map(|node| node.value())
}

/// The indentation of the line at this offset.
fn indent_at(text: &str, at: usize) -> &str {
    let line = &text[text[..at].rfind('\n').map_or(0, |newline| newline + 1)..at];
    &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
}

/// Whether only blanks precede this offset on its line.
fn is_first_on_line(text: &str, at: usize) -> bool {
    text[..at].contains('\n') && text[..at].trim_end_matches([' ', '\t']).ends_with('\n')
}

/// Why a member could not be added.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AddError {
    /// There is another of this name.
    NameTaken,
    /// The file is not as it should be.
    Unusable(String),
}

/// The text with `item` as the member `name` of the object at `path`, which is created if necessary. `None` if it is there already.
/// `replace` allows to replace another member of that name.
///
/// # Errors
/// When the text cannot be read, or has something else there.
pub(super) fn add(text: &str, path: &[&str], name: &str, item: &OrderedValue, replace: bool) -> Result<Option<String>, AddError> {
    let empty = format!("{text}{{}}\n");
    let text = if text.trim_matches(['\u{feff}', ' ', '\t', '\r', '\n']).is_empty() { empty.as_str() } else { text };
    let root = Reader::read(text).map_err(AddError::Unusable)?;
    let newline = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let unit = match &root.kind {
        Kind::Object(members) => members.first().filter(|member| is_first_on_line(text, member.start)),
        _ => None,
    };
    let unit = unit.map(|member| indent_at(text, member.start)).filter(|unit| !unit.is_empty()).unwrap_or("  ");
    let mut node = &root;
    let steps: Vec<&str> = path.iter().copied().chain([name]).collect();
    for (depth, step) in steps.iter().enumerate() {
        let Kind::Object(members) = &node.kind else {
            let what = if depth == 0 { "what it has".to_owned() } else { format!("`{}`", steps[..depth].join(".")) };
            return Err(AddError::Unusable(format!("{what} is no object")));
        };
        let mut found = members.iter().filter(|member| member.key == *step);
        let (first, second) = (found.next(), found.next());
        if second.is_some() {
            return Err(AddError::Unusable(format!("it has `{}` twice", steps[..=depth].join("."))));
        }
        let Some(member) = first else {
            let added = item.clone().within(steps[depth + 1..].iter().copied());
            let new = insert_member(text, node, members, step, &added, unit, newline);
            return verify(new, &root, &steps, item).map(Some);
        };
        node = &member.value;
    }
    if node.value() == item.value() {
        return Ok(None);
    }
    if !replace {
        return Err(AddError::NameTaken);
    }
    let written = item.json(indent_at(text, node.span.start), unit, newline);
    let new = format!("{}{written}{}", &text[..node.span.start], &text[node.span.end..]);
    verify(new, &root, &steps, item).map(Some)
}

/// The text with one more member at the end of an object.
fn insert_member(text: &str, object: &Node, members: &[Member], key: &str, item: &OrderedValue, unit: &str, newline: &str) -> String {
    let (open, close) = (object.span.start + 1, object.span.end - 1);
    let outer = indent_at(text, object.span.start);
    let last = members.last();
    let indent = match last.filter(|last| is_first_on_line(text, last.start)) {
        Some(last) => indent_at(text, last.start).to_owned(),
        None => format!("{outer}{unit}"),
    };
    // The comma and the comments behind the last member stay with it.
    let from = last.map_or(open, |last| last.value.span.end);
    let content = from + text[from..close].trim_end_matches([' ', '\t', '\r', '\n']).len();
    let comma = if last.is_some_and(|last| !last.has_comma) { "," } else { "" };
    let comma_after = if last.is_some_and(|last| last.has_comma) { "," } else { "" };
    let blanks = &text[content..close];
    let end = if blanks.contains('\n') && last.is_some() { blanks.to_owned() } else { format!("{newline}{outer}") };
    let member = format!("{}: {}", Value::from(key), item.json(&indent, unit, newline));
    format!("{}{comma}{}{newline}{indent}{member}{comma_after}{end}{}", &text[..from], &text[from..content], &text[close..])
}

/// The new text, if it differs from the old one by the new member and nothing else.
fn verify(new: String, root: &Node, steps: &[&str], item: &OrderedValue) -> Result<String, AddError> {
    let mut expected = root.value();
    let mut slot = &mut expected;
    for step in steps {
        let Value::Object(members) = slot else { break };
        slot = members.entry(*step).or_insert_with(|| Value::Object(Map::new()));
    }
    *slot = item.value();
    match value(&new) {
        Ok(value) if value == expected => Ok(new),
        _ => Err(AddError::Unusable("it cannot be changed without changing more than that".to_owned())),
    }
}

#[cfg(test)]
mod tests;
