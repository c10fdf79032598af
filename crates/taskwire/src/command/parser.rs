//! What the bytes of a command mean: text as it comes, lines of JSON, progress, and what nobody may see.
//!
//! A [`View`] remembers nothing that matters but the bytes it still holds, and says how many these are: so after a crash
//! a new one that is fed from the first held byte on gives out exactly what the old one would have given out.
//! Three things follow from that, and all are on purpose:
//! - A line that is longer than [`Settings::line_bytes`] goes out in pieces, and what is left of it at the end is taken for a line of its
//!   own. With `redact` half of that is held back behind each piece, so that no secret of that length is cut in two; of a longer one the
//!   rest of its line is hidden too (which is the one thing that must be remembered: [`View::hidden`]).
//! - With `redact`, a line is held until its end, so that no part of a secret goes out before the rest of it has come. A carriage
//!   return ends a line too, for commands that draw progress bars.
//! - Without `redact` text goes out at once, so the beginning of a line may be given out already when the server is
//!   restarted. The `progress` expression then misses this one line (see [`View::resumed`]). Its text is never missed.

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

/// Names the stream in the `_meta` of a block that was not written to standard output.
pub(crate) const STREAM: &str = "dev.taskwire/stream";
/// Longer messages of progress and status are cut: they are for one line on a screen.
const MESSAGE_BYTES: usize = 1024;
/// The longest character has four bytes, and at least one must go out of what is full.
const LINE_BYTES_MIN: usize = 4;

/// What a server must know to understand the output of a command, also one that an earlier server has started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct OutputSettings {
    /// What standard output consists of.
    pub(crate) format: Format,
    /// Where standard error goes.
    pub(crate) stderr: Stderr,
    /// Finds progress in a line.
    pub(crate) progress: Option<String>,
    /// Find what nobody may see.
    pub(crate) redact: Vec<String>,
    /// Exit codes that are no failure.
    pub(crate) ok_codes: Vec<i32>,
    /// Bytes of output in the result.
    pub(crate) inline_bytes: usize,
    /// What happens when the command itself was lost.
    pub(crate) on_interrupt: OnInterrupt,
    /// How often it is run at most.
    pub(crate) attempts_max: u64,
    /// Bytes of one line that are held; the rest is taken for another line.
    pub(crate) line_bytes: usize,
}

/// Where a command wrote something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Standard output, and standard error too where they are together.
    Out,
    /// Standard error, where it is apart.
    Err,
}

/// What a command said.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum OutputItem {
    /// Text for the output.
    Text(String),
    /// A content block for the output.
    Block(Value),
    /// How far it is.
    Progress { done: f64, total: Option<f64>, message: Option<String> },
    /// What it is doing.
    Status(String),
    /// What it comes to. The last one counts.
    Result { structured: Value, is_error: bool, content: Option<Vec<Value>> },
}

/// Reads the output of one command.
#[derive(Debug)]
pub(crate) struct OutputParser {
    rules: ParseRules,
    /// By [`Stream`].
    pipes: [StreamParser; 2],
}

impl OutputParser {
    /// A view on streams that are read from their beginning.
    ///
    /// # Errors
    /// When one of the regular expressions is none; says which.
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

    /// The same for streams that were read up to somewhere by another view. The rest of a line whose beginning has been given
    /// out already is then not searched for progress: of `120/200` it could see no more than `20/200`. What was [hidden](Self::hidden)
    /// still is.
    pub(crate) fn resume(mut self, hidden: [bool; 2]) -> Self {
        for (pipe, hidden) in self.pipes.iter_mut().zip(hidden) {
            (pipe.skip_progress, pipe.hidden) = (true, hidden);
        }
        self
    }

    /// Whether what comes next of standard output, and of standard error, is the rest of a line of which nothing more may be seen.
    pub(crate) fn hidden(&self) -> [bool; 2] {
        self.pipes.each_ref().map(|pipe| pipe.hidden)
    }

    /// What these bytes say, in order; of several progresses only the last.
    pub(crate) fn feed(&mut self, stream: Stream, bytes: &[u8]) -> Vec<OutputItem> {
        self.parse_bytes(stream, bytes, false)
    }

    /// What was said from inside the command, without what nobody may see.
    pub(crate) fn note(&mut self, note: Note) -> Vec<OutputItem> {
        let rules = &self.rules;
        vec![match note {
            Note::Progress { done, total, message } => {
                let total = total.filter(|total| *total > 0.0);
                OutputItem::Progress { done, total, message: message.map(|text| rules.message(&text)) }
            }
            Note::Status { message } => OutputItem::Status(rules.message(&message)),
            Note::Block { block } if is_block(&block) => OutputItem::Block(rules.redact.block(block)),
            // Clients refuse a whole result because of one bad block, so it is shown as the text that it is.
            Note::Block { block } => OutputItem::Text(format!("{}\n", rules.redact.redact_value(block))),
            Note::Result { structured, is_error } => {
                OutputItem::Result { structured: rules.redact.redact_value(structured), is_error, content: None }
            }
        }]
    }

    /// A text that is no output, for others to see.
    pub(crate) fn redact_text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.rules.redact.line(text)
    }

    /// A question as others may see it. Choices stay as they are, since an answer must be one of them.
    pub(crate) fn redact_question(&self, mut question: Question) -> Question {
        question.message = self.redact_text(&question.message).into_owned();
        if let Some(Ok(written)) = question.schema.as_ref().map(|schema| schema.read::<Value>()) {
            let mut shown = written.clone();
            self.redact_descriptions(&mut shown);
            // Where there is nothing to hide, its fields stay in the order in which they were written.
            if shown != written {
                question.schema = Some(shown.into());
            }
        }
        question
    }

    /// What a schema says to people.
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

    /// What was held back: nothing more will come.
    pub(crate) fn finish(&mut self) -> Vec<OutputItem> {
        let mut said = self.parse_bytes(Stream::Out, &[], true);
        said.extend(self.parse_bytes(Stream::Err, &[], true));
        said
    }

    /// The bytes of this stream that were fed and not yet given out: the last ones.
    pub(crate) fn pending_bytes(&self, stream: Stream) -> u64 {
        self.pipes[stream as usize].pending.len() as u64
    }

    fn parse_bytes(&mut self, stream: Stream, bytes: &[u8], end: bool) -> Vec<OutputItem> {
        let Self { rules, pipes } = self;
        let pipe = &mut pipes[stream as usize];
        let mut said = Vec::new();
        match (stream, rules.format, rules.stderr) {
            (Stream::Err, _, Stderr::Drop) => {}
            (Stream::Out, Format::Jsonl, _) => pipe.json_lines(rules, bytes, end, &mut said),
            (Stream::Out | Stream::Err, _, stderr) => {
                let (text, progress) = pipe.text(rules, bytes, end);
                if stream == Stream::Out || stderr != Stderr::Apart {
                    push_text(&mut said, &text);
                } else if !text.is_empty() {
                    said.push(OutputItem::Block(json!({"type": "text", "text": text, "_meta": {STREAM: "stderr"}})));
                }
                said.extend(progress);
            }
        }
        let is_progress = |one: &OutputItem| matches!(one, OutputItem::Progress { .. });
        if let Some(last) = said.iter().rposition(is_progress) {
            let mut at = 0..;
            said.retain(|one| at.next() == Some(last) || !is_progress(one));
        }
        said
    }
}

/// How bytes are understood. Never changes.
#[derive(Debug)]
struct ParseRules {
    format: Format,
    stderr: Stderr,
    progress: Option<Regex>,
    redact: Redactor,
    line_bytes: usize,
}

impl ParseRules {
    /// The progress in a line that is given without its end.
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

    /// What a line of JSON says; nothing if it is not exactly of a shape that means something.
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

    /// A message for people, of a length that fits everywhere.
    fn message(&self, text: &str) -> String {
        let mut text = self.redact.line(text).into_owned();
        if text.len() > MESSAGE_BYTES {
            text.truncate(text.floor_char_boundary(MESSAGE_BYTES - '…'.len_utf8()));
            text.push('…');
        }
        text
    }
}

/// One stream.
#[derive(Debug, Default)]
struct StreamParser {
    /// What was fed and not given out. Has no end of a line in it.
    pending: Vec<u8>,
    /// The line so far that progress is looked for in, where its text is given out already.
    line: String,
    /// This line is not searched for progress: it is too long, or its beginning is not known.
    skip_progress: bool,
    /// Nothing more of this line may be seen: it has something to be hidden that is longer than what is held.
    hidden: bool,
}

/// A line that was cut off a stream.
struct Line<'a> {
    text: Cow<'a, str>,
    /// What ended it; empty at the end of the stream.
    end: &'static str,
    /// Not only a piece of one that is too long.
    whole: bool,
}

impl StreamParser {
    fn text(&mut self, rules: &ParseRules, bytes: &[u8], end: bool) -> (String, Option<OutputItem>) {
        if rules.redact.is_empty() { self.text_at_once(rules, bytes, end) } else { self.redacted_lines(rules, bytes, end) }
    }

    /// Text at once. Only a character that is not complete is held.
    fn text_at_once(&mut self, rules: &ParseRules, bytes: &[u8], end: bool) -> (String, Option<OutputItem>) {
        let mut all = Cow::Borrowed(bytes);
        if !self.pending.is_empty() {
            let mut held = mem::take(&mut self.pending);
            held.extend_from_slice(bytes);
            all = Cow::Owned(held);
        }
        let (given, held) = all.split_at(if end { all.len() } else { complete(&all) });
        let text = String::from_utf8_lossy(given).into_owned();
        self.pending.extend_from_slice(held);
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

    /// Text without what nobody may see, line by line. Progress is looked for in what is left of a line.
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

    fn json_lines(&mut self, rules: &ParseRules, bytes: &[u8], end: bool, said: &mut Vec<OutputItem>) {
        let find = |bytes: &[u8]| memchr::memchr(b'\n', bytes);
        self.lines(rules, find, bytes, end, |line| {
            let (text, carriage) = line.text.strip_suffix('\r').map_or((&*line.text, ""), |text| (text, "\r"));
            if line.whole && text.is_empty() {
                return;
            }
            if line.whole
                && let Some(meaning) = rules.parse_json_line(text)
            {
                said.push(meaning);
                return;
            }
            let shown = rules.redact.line(text);
            push_text(said, &format!("{shown}{carriage}{}", line.end));
            if line.whole {
                said.extend(rules.progress(&shown));
            }
        });
    }

    /// Cuts what is held and these bytes into lines, and pieces of lines that are longer than may be held. Where the next cut is depends on
    /// nothing but the bytes since the last one, and on whether the rest of the line is hidden.
    fn lines(
        &mut self,
        rules: &ParseRules,
        find: impl Fn(&[u8]) -> Option<usize>,
        bytes: &[u8],
        end: bool,
        mut take: impl FnMut(Line<'_>),
    ) {
        let most = rules.line_bytes;
        // What is held was searched before. A long line that comes byte by byte must not be searched from its start for each.
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

/// How many bytes these characters were, which stand at the beginning of the text that was made of them: bytes that are no text are one
/// character each time, of three bytes.
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

/// How many of these bytes come before a last character that is not complete.
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

fn push_text(said: &mut Vec<OutputItem>, text: &str) {
    match said.last_mut() {
        _ if text.is_empty() => {}
        Some(OutputItem::Text(last)) => last.push_str(text),
        _ => said.push(OutputItem::Text(text.to_owned())),
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
