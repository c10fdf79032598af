//! Parses the output of a command: text, lines of JSON, progress, and secrets to hide.
//!
//! The only state of an [`OutputParser`] that matters is its pending bytes, and it says how many these are. So after a crash a new parser
//! that is fed from the first pending byte on returns exactly what the old one would have returned. Three things follow from that:
//! - A line that is longer than [`OutputSettings::line_bytes`] is returned in pieces, and its last piece is parsed as a line of its own.
//!   With `redact` half of that length stays pending behind each piece, so that no secret of that length is split. If a secret is longer,
//!   the rest of its line is hidden too. That must be remembered: [`OutputParser::hidden`].
//! - With `redact` a line is pending until its end, so that no part of a secret goes out before the rest has come. A carriage return
//!   ends a line too, for commands that draw progress bars.
//! - Without `redact` text is returned at once, so the beginning of a line may be in the log when the server restarts. The `progress`
//!   expression then misses this one line (see [`OutputParser::resume`]). Its text is never missed.

use std::{borrow::Cow, mem};

use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use taskwire_core::task::OnInterrupt;

use self::redact::{REDACTED, Redactor};
use super::{
    definition::{Format, Stderr},
    messages::{Note, Question},
};

mod redact;

/// Names the stream in the `_meta` of a block that came from standard error.
pub(crate) const STREAM: &str = "dev.taskwire/stream";
/// Longer messages of progress and status are cut: they are for one line on a screen.
const MESSAGE_BYTES: usize = 1024;
/// The longest character has four bytes, and a full line must yield at least one character.
const LINE_BYTES_MIN: usize = 4;

/// What a server must know to parse the output of a command, even one that an earlier server has started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct OutputSettings {
    pub(crate) format: Format,
    pub(crate) stderr: Stderr,
    /// The regular expression that finds progress in a line.
    pub(crate) progress: Option<String>,
    /// The regular expressions that find secrets.
    pub(crate) redact: Vec<String>,
    pub(crate) ok_codes: Vec<i32>,
    /// Bytes of output in the result.
    pub(crate) inline_bytes: usize,
    pub(crate) on_interrupt: OnInterrupt,
    /// How often the command is started at most.
    pub(crate) attempts_max: u64,
    /// Bytes of one line that may be pending; the rest is parsed as another line.
    pub(crate) line_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Standard output, and standard error too if both have one pipe.
    Out,
    /// Standard error, if it has a pipe of its own.
    Err,
}

/// What the parser found in the output. Of several results the last one counts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum OutputItem {
    Text(String),
    Block(Value),
    Progress { done: f64, total: Option<f64>, message: Option<String> },
    Status(String),
    Result { structured: Value, is_error: bool, content: Option<Vec<Value>> },
}

#[derive(Debug)]
pub(crate) struct OutputParser {
    rules: ParseRules,
    /// By [`Stream`].
    pipes: [StreamParser; 2],
}

impl OutputParser {
    /// A parser for streams from their beginning.
    ///
    /// # Errors
    /// When a regular expression is wrong; says which.
    pub(crate) fn new(settings: &OutputSettings) -> Result<Self, String> {
        let progress = match &settings.progress {
            Some(pattern) => Some(Regex::new(pattern).map_err(|error| format!("`progress` is not a regular expression: {error}"))?),
            None => None,
        };
        let rules = ParseRules {
            format: settings.format,
            stderr: settings.stderr,
            progress,
            redact: Redactor::new(&settings.redact)?,
            line_bytes: settings.line_bytes.max(LINE_BYTES_MIN),
        };
        Ok(Self { rules, pipes: Default::default() })
    }

    /// Goes on with streams that another parser read so far. The rest of a line that was returned in part is not searched for progress: of
    /// `120/200` this parser might see only `20/200`. What was [hidden](Self::hidden) still is.
    pub(crate) fn resume(mut self, hidden: [bool; 2]) -> Self {
        for (pipe, hidden) in self.pipes.iter_mut().zip(hidden) {
            (pipe.skip_progress, pipe.hidden) = (true, hidden);
        }
        self
    }

    /// For standard output and standard error: whether the stream goes on with the rest of a line that must stay hidden.
    pub(crate) fn hidden(&self) -> [bool; 2] {
        self.pipes.each_ref().map(|pipe| pipe.hidden)
    }

    /// Parses these bytes, in order; of several progress reports only the last is returned.
    pub(crate) fn feed(&mut self, stream: Stream, bytes: &[u8]) -> Vec<OutputItem> {
        self.parse_bytes(stream, bytes, false)
    }

    /// Parses a report of the command, and hides secrets in it.
    pub(crate) fn note(&mut self, note: Note) -> Vec<OutputItem> {
        let rules = &self.rules;
        vec![match note {
            Note::Progress { done, total, message } => {
                let total = total.filter(|total| *total > 0.0);
                OutputItem::Progress { done, total, message: message.map(|text| rules.message(&text)) }
            }
            Note::Status { message } => OutputItem::Status(rules.message(&message)),
            Note::Block { block } if is_block(&block) => OutputItem::Block(rules.redact.block(block)),
            // Clients refuse a whole result because of one bad block, so it is shown as text.
            Note::Block { block } => OutputItem::Text(format!("{}\n", rules.redact.redact_value(block))),
            Note::Result { structured, is_error } => {
                OutputItem::Result { structured: rules.redact.redact_value(structured), is_error, content: None }
            }
        }]
    }

    /// A text without its secrets.
    pub(crate) fn redact_text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.rules.redact.line(text)
    }

    /// A question without its secrets. Choices stay as they are, since an answer must be one of them.
    pub(crate) fn redact_question(&self, mut question: Question) -> Question {
        question.message = self.redact_text(&question.message).into_owned();
        if let Some(Ok(written)) = question.schema.as_ref().map(|schema| schema.read::<Value>()) {
            let mut shown = written.clone();
            self.redact_descriptions(&mut shown);
            // If nothing was hidden, the fields stay in the order in which the command gave them.
            if shown != written {
                question.schema = Some(shown.into());
            }
        }
        question
    }

    /// Hides secrets in the titles and descriptions of a schema.
    fn redact_descriptions(&self, schema: &mut Value) {
        match schema {
            Value::Object(members) => {
                for (name, member) in members {
                    match member {
                        Value::String(text) if matches!(name.as_str(), "title" | "description") => {
                            *text = self.redact_text(text).into_owned()
                        }
                        member => self.redact_descriptions(member),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.redact_descriptions(item)),
            _ => {}
        }
    }

    /// Parses the pending bytes: no more will come.
    pub(crate) fn finish(&mut self) -> Vec<OutputItem> {
        let mut items = self.parse_bytes(Stream::Out, &[], true);
        items.extend(self.parse_bytes(Stream::Err, &[], true));
        items
    }

    /// How many bytes at the end of what was fed were not returned yet.
    pub(crate) fn pending_bytes(&self, stream: Stream) -> u64 {
        self.pipes[stream as usize].pending.len() as u64
    }

    fn parse_bytes(&mut self, stream: Stream, bytes: &[u8], end: bool) -> Vec<OutputItem> {
        let Self { rules, pipes } = self;
        let pipe = &mut pipes[stream as usize];
        let mut items = Vec::new();
        match (stream, rules.format, rules.stderr) {
            (Stream::Err, _, Stderr::Drop) => {}
            (Stream::Out, Format::Jsonl, _) => pipe.json_lines(rules, bytes, end, &mut items),
            (Stream::Out | Stream::Err, _, stderr) => {
                let (text, progress) = pipe.text(rules, bytes, end);
                if stream == Stream::Out || stderr != Stderr::Apart {
                    push_text(&mut items, &text);
                } else if !text.is_empty() {
                    items.push(OutputItem::Block(json!({"type": "text", "text": text, "_meta": {STREAM: "stderr"}})));
                }
                items.extend(progress);
            }
        }
        let is_progress = |one: &OutputItem| matches!(one, OutputItem::Progress { .. });
        if let Some(last) = items.iter().rposition(is_progress) {
            let mut at = 0..;
            items.retain(|one| at.next() == Some(last) || !is_progress(one));
        }
        items
    }
}

#[derive(Debug)]
struct ParseRules {
    format: Format,
    stderr: Stderr,
    progress: Option<Regex>,
    redact: Redactor,
    line_bytes: usize,
}

impl ParseRules {
    /// The progress in a line, which comes without its end.
    fn progress(&self, line: &str) -> Option<OutputItem> {
        let found = self.progress.as_ref()?.captures(line)?;
        let number = |name: &str| -> Option<f64> {
            let number = found.name(name)?.as_str().trim().parse::<f64>().ok()?;
            (number.is_finite() && number >= 0.0).then_some(number)
        };
        let (done, total) = match number("done") {
            Some(done) => (done, number("total").filter(|total| *total > 0.0)),
            None => (number("percent")?, Some(100.0)),
        };
        let message = found.name("message").map(|text| text.as_str().trim()).filter(|text| !text.is_empty());
        // A number alone does not say what is counted; the words around it do.
        let counted = found.get(0).map(|text| text.as_str().trim()).filter(|text| total.is_none() && text.contains(char::is_alphabetic));
        let message = message.or(counted);
        Some(OutputItem::Progress { done, total, message: message.map(|text| self.message(text)) })
    }

    /// Parses a line of JSON; None if it does not have exactly a shape that means something.
    fn parse_json_line(&self, line: &str) -> Option<OutputItem> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Progress {
            progress: f64,
            total: Option<f64>,
            message: Option<String>,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Status {
            status: String,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "camelCase")]
        struct Outcome {
            result: Value,
            is_error: Option<bool>,
            content: Option<Vec<Value>>,
        }

        if !line.trim_start().starts_with('{') {
            return None;
        }
        let value: Value = serde_json::from_str(line).ok()?;
        if is_block(&value) {
            return Some(OutputItem::Block(self.redact.block(value)));
        }
        if value.get("progress").is_some() {
            let Progress { progress, total, message } = serde_json::from_value(value).ok()?;
            return Some(OutputItem::Progress { done: progress, total, message: message.map(|text| self.message(&text)) });
        }
        if value.get("status").is_some() {
            let Status { status } = serde_json::from_value(value).ok()?;
            return Some(OutputItem::Status(self.message(&status)));
        }
        let Outcome { result, is_error, content } = serde_json::from_value(value).ok()?;
        if content.iter().flatten().any(|block| !is_block(block)) {
            return None;
        }
        let content = content.map(|blocks| blocks.into_iter().map(|block| self.redact.block(block)).collect());
        Some(OutputItem::Result { structured: self.redact.redact_value(result), is_error: is_error.unwrap_or(false), content })
    }

    /// A message for people, without secrets and not too long.
    fn message(&self, text: &str) -> String {
        let mut text = self.redact.line(text).into_owned();
        if text.len() > MESSAGE_BYTES {
            text.truncate(text.floor_char_boundary(MESSAGE_BYTES - '…'.len_utf8()));
            text.push('…');
        }
        text
    }
}

#[derive(Debug, Default)]
struct StreamParser {
    /// Bytes that were fed and not returned. They have no end of a line.
    pending: Vec<u8>,
    /// The line so far, to search for progress, if its text was returned already.
    line: String,
    /// This line is not searched for progress: it is too long, or its beginning is not known.
    skip_progress: bool,
    /// The rest of this line must stay hidden: it has a secret that is longer than what may be pending.
    hidden: bool,
}

/// A line, or a piece of one that is too long.
struct Line<'a> {
    text: Cow<'a, str>,
    /// What ended it; empty at the end of the stream.
    end: &'static str,
    /// False for a piece.
    whole: bool,
}

impl StreamParser {
    fn text(&mut self, rules: &ParseRules, bytes: &[u8], end: bool) -> (String, Option<OutputItem>) {
        if rules.redact.is_empty() { self.text_at_once(rules, bytes, end) } else { self.redacted_lines(rules, bytes, end) }
    }

    /// Returns text at once. Only an incomplete character stays pending.
    fn text_at_once(&mut self, rules: &ParseRules, bytes: &[u8], end: bool) -> (String, Option<OutputItem>) {
        let mut all = Cow::Borrowed(bytes);
        if !self.pending.is_empty() {
            let mut pending = mem::take(&mut self.pending);
            pending.extend_from_slice(bytes);
            all = Cow::Owned(pending);
        }
        let (whole, rest) = all.split_at(if end { all.len() } else { complete(&all) });
        let text = String::from_utf8_lossy(whole).into_owned();
        self.pending.extend_from_slice(rest);
        let progress = if rules.progress.is_some() { self.find_progress(rules, &text, end) } else { None };
        (text, progress)
    }

    /// The last progress in the lines that end in this text.
    fn find_progress(&mut self, rules: &ParseRules, text: &str, end: bool) -> Option<OutputItem> {
        let ends = |char: char| char == '\n' || char == '\r';
        let mut found = None;
        let mut open = text;
        if let Some((lines, last)) = text.rsplit_once(ends) {
            let (first, others) = lines.split_once(ends).unwrap_or((lines, ""));
            let short = |line: &&str| !line.is_empty() && line.len() <= rules.line_bytes;
            found = others.rsplit(ends).filter(short).find_map(|line| rules.progress(line));
            self.extend_line(rules, first);
            if found.is_none() && !self.skip_progress {
                found = rules.progress(&self.line);
            }
            self.line.clear();
            self.skip_progress = false;
            open = last;
        }
        self.extend_line(rules, open);
        if end && !self.skip_progress {
            found = rules.progress(&mem::take(&mut self.line)).or(found);
        }
        found
    }

    fn extend_line(&mut self, rules: &ParseRules, text: &str) {
        self.skip_progress |= self.line.len() + text.len() > rules.line_bytes;
        if self.skip_progress {
            self.line.clear();
        } else {
            self.line.push_str(text);
        }
    }

    /// Text without its secrets, line by line. Progress is searched in what is left of a line.
    fn redacted_lines(&mut self, rules: &ParseRules, bytes: &[u8], end: bool) -> (String, Option<OutputItem>) {
        let (mut text, mut progress) = (String::new(), None);
        let find = |bytes: &[u8]| memchr::memchr2(b'\n', b'\r', bytes);
        self.lines(rules, find, bytes, end, |line| {
            let shown = rules.redact.line(&line.text);
            if line.whole {
                progress = rules.progress(&shown).or(progress.take());
            }
            text.push_str(&shown);
            text.push_str(line.end);
        });
        (text, progress)
    }

    fn json_lines(&mut self, rules: &ParseRules, bytes: &[u8], end: bool, items: &mut Vec<OutputItem>) {
        let find = |bytes: &[u8]| memchr::memchr(b'\n', bytes);
        self.lines(rules, find, bytes, end, |line| {
            let (text, carriage) = line.text.strip_suffix('\r').map_or((&*line.text, ""), |text| (text, "\r"));
            if line.whole && text.is_empty() {
                return;
            }
            if line.whole
                && let Some(meaning) = rules.parse_json_line(text)
            {
                items.push(meaning);
                return;
            }
            let shown = rules.redact.line(text);
            push_text(items, &format!("{shown}{carriage}{}", line.end));
            if line.whole {
                items.extend(rules.progress(&shown));
            }
        });
    }

    /// Cuts the pending bytes and these into lines, and pieces of lines that are too long. Where the next cut is depends only on the bytes
    /// since the last one, and on whether the rest of the line is hidden.
    fn lines(
        &mut self,
        rules: &ParseRules,
        find: impl Fn(&[u8]) -> Option<usize>,
        bytes: &[u8],
        end: bool,
        mut take: impl FnMut(Line<'_>),
    ) {
        let most = rules.line_bytes;
        // Pending bytes were searched before. A long line that comes byte by byte must not be searched from its start each time.
        let searched = self.pending.len();
        self.pending.extend_from_slice(bytes);
        let mut from = 0;
        while from < self.pending.len() {
            let rest = &self.pending[from..];
            let near = &rest[..rest.len().min(most + 1)];
            let known = searched.saturating_sub(from).min(near.len());
            if let Some(at) = find(&near[known..]) {
                let at = known + at;
                let (text, whole) = if self.hidden { (&rest[..0], false) } else { (&rest[..at], true) };
                let end = if rest[at] == b'\r' { "\r" } else { "\n" };
                take(Line { text: String::from_utf8_lossy(text), end, whole });
                self.hidden = false;
                from += at + 1;
            } else if self.hidden {
                from += near.len();
            } else if rest.len() > most {
                let window = &rest[..complete(&rest[..most])];
                let text = String::from_utf8_lossy(window);
                let cut = rules.redact.safe_cut(&text, text.len() / 2);
                self.hidden = cut.is_none();
                let (piece, taken) = cut.map_or((REDACTED, window.len()), |at| (&text[..at], source_len(window, at)));
                take(Line { text: Cow::Borrowed(piece), end: "", whole: false });
                from += taken;
            } else {
                break;
            }
        }
        if end && from < self.pending.len() {
            take(Line { text: String::from_utf8_lossy(&self.pending[from..]), end: "", whole: true });
            from = self.pending.len();
        }
        self.pending.drain(..from);
    }
}

/// How many source bytes make the first `text` bytes of the lossy text. Each invalid sequence became one character of three bytes.
fn source_len(bytes: &[u8], text: usize) -> usize {
    let (mut seen, mut taken) = (0, 0);
    for chunk in bytes.utf8_chunks() {
        let valid = chunk.valid().len();
        if text <= seen + valid {
            return taken + (text - seen);
        }
        seen += valid + char::REPLACEMENT_CHARACTER.len_utf8();
        taken += valid + chunk.invalid().len();
    }
    taken
}

/// How many of these bytes come before a last, incomplete character.
fn complete(bytes: &[u8]) -> usize {
    for at in (bytes.len().saturating_sub(3)..bytes.len()).rev() {
        match bytes[at] {
            0x80..=0xBF => {}
            0xC2..=0xF4 if std::str::from_utf8(&bytes[at..]).is_err_and(|error| error.error_len().is_none()) => return at,
            _ => break,
        }
    }
    bytes.len()
}

fn push_text(items: &mut Vec<OutputItem>, text: &str) {
    match items.last_mut() {
        _ if text.is_empty() => {}
        Some(OutputItem::Text(last)) => last.push_str(text),
        _ => items.push(OutputItem::Text(text.to_owned())),
    }
}

/// Whether this is a content block with all that its kind needs.
fn is_block(value: &Value) -> bool {
    let has = |value: &Value, name: &str| value.get(name).is_some_and(Value::is_string);
    match value.get("type").and_then(Value::as_str) {
        Some("text") => has(value, "text"),
        Some("image" | "audio") => has(value, "data") && has(value, "mimeType"),
        Some("resource") => value.get("resource").is_some_and(|of| has(of, "uri") && (has(of, "text") || has(of, "blob"))),
        Some("resource_link") => has(value, "uri") && has(value, "name"),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
