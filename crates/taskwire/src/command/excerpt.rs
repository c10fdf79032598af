//! The excerpt of the output in a result: all of it if it is short, else its beginning and its end, and where the rest is.
//!
//! Output may be endless, but the excerpt is bounded. Text is kept as a terminal shows it: of progress that is drawn again and again, what
//! was drawn last. Text blocks that follow each other are joined, as in the task's output; standard error stays apart, and so do text
//! blocks with other members (annotations and the like). Each text block after the first counts as some more bytes, so that a command that
//! switches between its streams all the time cannot make a result of nothing but punctuation.

use std::{collections::VecDeque, fmt::Write as _};

use serde_json::{Map, Value, json};
use taskwire_core::screen::{self, Screen};

use super::{definition::INLINE_BYTES_MIN, parser::STREAM};
use crate::engine::large_block;

/// Bytes of all blocks that are not text.
const OTHERS_BYTES: usize = 1024 * 1024;
/// What a block costs besides its content.
const BLOCK_BYTES: usize = 64;
/// The longest line that [`OutputExcerpt::last_line`] returns.
const LAST_LINE_BYTES: usize = 200;
/// Text is added in parts of this size, so that a large one is not copied whole only to be cut.
const PART_BYTES: usize = 16 * 1024;

/// In a link's `_meta`: how many bytes of text the command wrote, if the resource has more or less.
const WRITTEN: &str = "dev.taskwire/written";

/// Stands first if the beginning of the output was dropped.
const LOST_BEGINNING: &str = "[What the command wrote first is no longer kept, because it wrote more than is kept of a task's output \
    (configuration key `limits.task_output_bytes`). Bytes are counted without it.]\n";

/// Where all of the output can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutputLink {
    pub(crate) uri: String,
    pub(crate) name: String,
    /// Whether the resource has all of the output and nothing else. Otherwise its beginning may be dropped, or come from a lost job.
    pub(crate) is_whole: bool,
}

/// Beginning and end of an output.
#[derive(Debug)]
pub(crate) struct OutputExcerpt {
    inline_bytes: usize,
    /// Bytes of text that the command wrote so far.
    written_bytes: u64,
    /// Bytes of the text as a terminal shows it, without what is still on `screen`.
    shown_bytes: u64,
    /// The text that later output can still draw over, and its kind. Output of another kind ends it.
    screen: Screen,
    on_screen: Option<TextKind>,
    /// The beginning of the output was dropped from the log, and is not in here either.
    lost_beginning: bool,
    /// The beginning of the output. It grows until something does not fit.
    head: Vec<Item>,
    head_bytes: usize,
    is_head_full: bool,
    /// The last text of the head goes on in what follows.
    head_is_cut: bool,
    /// Blocks that are not text, from between head and tail.
    between: Vec<Value>,
    /// The end of the output. Text is dropped from its front.
    tail: VecDeque<Item>,
    tail_bytes: usize,
    /// The first text of the tail has lost its beginning.
    tail_is_cut: bool,
    has_dropped_text: bool,
    /// There are links to blocks in the task's log.
    has_links: bool,
    /// Bytes of all blocks that are not text.
    others_bytes: usize,
    /// Blocks that were left out because they did not fit: how many, and their bytes.
    left_out: (u64, u64),
}

#[derive(Debug)]
enum Item {
    Text(TextPiece),
    Other(Value),
}

#[derive(Debug)]
struct TextPiece {
    kind: TextKind,
    /// What it costs besides its text.
    extra: usize,
    text: String,
    /// Where the text that still counts begins. Moving it to the front each time would be slow.
    start: usize,
    /// Whether it goes on with the last text of the head.
    continues: bool,
}

#[derive(Debug, Clone)]
enum TextKind {
    Out,
    Err,
    /// A text block with these other members. It is never joined with another.
    Annotated(Map<String, Value>),
}

impl TextKind {
    /// The kind of a block and its text, if it is a text block.
    fn of(block: &Value) -> Option<(Self, &str)> {
        let members = block.as_object().filter(|members| members.get("type").is_some_and(|kind| kind == "text"))?;
        let text = members.get("text")?.as_str()?;
        if members.len() == 2 {
            return Some((Self::Out, text));
        }
        let meta = members.get("_meta").and_then(Value::as_object);
        if members.len() == 3 && meta.is_some_and(|meta| meta.len() == 1 && meta.get(STREAM).is_some_and(|stream| stream == "stderr")) {
            return Some((Self::Err, text));
        }
        let others = members.iter().filter(|(name, _)| *name != "text");
        Some((Self::Annotated(others.map(|(name, value)| (name.clone(), value.clone())).collect()), text))
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Out | Self::Err => 0,
            Self::Annotated(members) => members.iter().map(|(name, value)| name.len() + json_len(value)).sum(),
        }
    }

    /// The same kind without annotations.
    fn without_annotations(self) -> Self {
        match self {
            Self::Annotated(mut members) => {
                members.retain(|name, _| name == "type");
                Self::Annotated(members)
            }
            other => other,
        }
    }

    fn block(&self, text: &str) -> Value {
        match self {
            Self::Out => json!({"type": "text", "text": text}),
            Self::Err => json!({"type": "text", "text": text, "_meta": {STREAM: "stderr"}}),
            Self::Annotated(members) => {
                let mut members = members.clone();
                members.insert("text".to_owned(), text.into());
                Value::Object(members)
            }
        }
    }
}

impl Item {
    /// Whether text of this kind is joined to it.
    fn joins(&self, kind: &TextKind) -> bool {
        matches!(
            (self, kind),
            (Self::Text(TextPiece { kind: TextKind::Out, .. }), TextKind::Out)
                | (Self::Text(TextPiece { kind: TextKind::Err, .. }), TextKind::Err)
        )
    }

    fn block(&self) -> Value {
        match self {
            Self::Text(piece) => piece.kind.block(piece.shown()),
            Self::Other(block) => block.clone(),
        }
    }
}

impl TextPiece {
    fn shown(&self) -> &str {
        &self.text[self.start..]
    }
}

impl OutputExcerpt {
    /// An empty excerpt for at most this many bytes of text.
    pub(crate) fn new(inline_bytes: usize) -> Self {
        Self {
            // With less there would be blocks without room for any text.
            inline_bytes: inline_bytes.max(INLINE_BYTES_MIN),
            written_bytes: 0,
            shown_bytes: 0,
            screen: Screen::default(),
            on_screen: None,
            lost_beginning: false,
            head: Vec::new(),
            head_bytes: 0,
            is_head_full: false,
            head_is_cut: false,
            between: Vec::new(),
            tail: VecDeque::new(),
            tail_bytes: 0,
            tail_is_cut: false,
            has_dropped_text: false,
            has_links: false,
            others_bytes: 0,
            left_out: (0, 0),
        }
    }

    /// Adds text.
    pub(crate) fn text(&mut self, text: &str) {
        self.draw(TextKind::Out, text);
    }

    /// Adds a content block.
    pub(crate) fn block(&mut self, block: &Value) {
        match TextKind::of(block) {
            // There must be room for the text too.
            Some((kind, text)) if kind.bytes() > self.inline_bytes / 4 => self.draw(kind.without_annotations(), text),
            Some((kind, text)) => self.draw(kind, text),
            // The link that follows the last part stands for all of them.
            None if large_block::is_part(block) => {}
            None => {
                self.finish();
                self.has_links |= large_block::is_link(block);
                self.other(block);
            }
        }
    }

    /// Notes that the beginning of the output was dropped from the log.
    pub(crate) fn lost_beginning(&mut self) {
        self.lost_beginning = true;
    }

    /// Ends the text on the screen, which nothing can draw over any more.
    pub(crate) fn finish(&mut self) {
        if let Some(kind) = self.on_screen.take() {
            let mut last = String::new();
            self.screen.finish(&mut last);
            self.add(&kind, &last);
        }
    }

    pub(crate) fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Whether the text is not as the command wrote it, because some of it was drawn over or is not visible. Valid after [`Self::finish`].
    pub(crate) fn is_collapsed(&self) -> bool {
        self.shown_bytes < self.written_bytes
    }

    /// Whether something is left out. Valid after [`Self::finish`].
    pub(crate) fn is_cut(&self) -> bool {
        self.has_dropped_text || self.lost_beginning || self.left_out.0 > 0
    }

    /// Whether there must be a task, so that what is left out or linked to can be read.
    pub(crate) fn needs_task(&self) -> bool {
        self.is_cut() || self.has_links
    }

    /// The last line of text, if it is complete and short; of standard error if that is apart. Valid after [`Self::finish`].
    pub(crate) fn last_line(&self) -> Option<&str> {
        let texts = || {
            self.head.iter().chain(&self.tail).rev().filter_map(|item| match item {
                Item::Text(piece) if !piece.shown().trim().is_empty() => Some(piece),
                _ => None,
            })
        };
        let last = texts().find(|piece| matches!(piece.kind, TextKind::Err)).or_else(|| texts().next())?;
        let text = last.shown().trim_end();
        let line = match text.rsplit_once('\n') {
            Some((_, line)) => line,
            // Its beginning may be in what was left out.
            None if last.continues || self.has_dropped_text => return None,
            None => text,
        };
        Some(line.trim()).filter(|line| line.len() <= LAST_LINE_BYTES)
    }

    /// The content of a result. Valid after [`Self::finish`].
    pub(crate) fn content(&self, link: Option<&OutputLink>) -> Vec<Value> {
        let mut content = if self.has_dropped_text { self.cut(link) } else { self.whole() };
        if self.lost_beginning {
            content.insert(0, TextKind::Out.block(LOST_BEGINNING));
        }
        if link.is_none() {
            for block in content.iter_mut().filter(|block| large_block::is_link(block)) {
                let text = format!("[A block of {} bytes was left out: it is not kept, for this call is no task.]\n", block["size"]);
                *block = TextKind::Out.block(&text);
            }
        }
        if let (count @ 1.., bytes) = self.left_out {
            let blocks = if count == 1 { "block that is not text is" } else { "blocks that are not text are" };
            let hint = if link.is_some() { " The tool task_output, if you have it, gives all of them." } else { "" };
            let text =
                format!("\n[{count} {blocks} left out ({bytes} bytes): a result has room for {OTHERS_BYTES} bytes of them.{hint}]\n");
            content.push(TextKind::Out.block(&text));
        }
        if (self.has_dropped_text || self.lost_beginning)
            && let Some(link) = link
        {
            let total = self.written_bytes;
            let mut block = json!({"type": "resource_link", "uri": link.uri, "name": link.name, "mimeType": "text/plain"});
            if link.is_whole {
                block["description"] = format!("All {total} bytes of text that the command wrote.").into();
                block["size"] = total.into();
            } else {
                block["description"] = format!("What is kept of the output; the command wrote {total} bytes of text.").into();
                block["_meta"] = json!({WRITTEN: total});
            }
            content.push(block);
        }
        content
    }

    fn whole(&self) -> Vec<Value> {
        let mut content: Vec<Value> = Vec::with_capacity(self.head.len() + self.tail.len());
        for item in self.head.iter().chain(&self.tail) {
            match (item, content.last_mut().and_then(|last| last.get_mut("text"))) {
                (Item::Text(piece), Some(Value::String(text))) if piece.continues => text.push_str(piece.shown()),
                _ => content.push(item.block()),
            }
        }
        content
    }

    fn cut(&self, link: Option<&OutputLink>) -> Vec<Value> {
        let (mut before, mut after) = (0, 0);
        let mut content = Vec::with_capacity(self.head.len() + self.between.len() + self.tail.len() + 3);
        let last = self.head.len().saturating_sub(1);
        for (at, item) in self.head.iter().enumerate() {
            let Item::Text(piece) = item else {
                content.push(item.block());
                continue;
            };
            let shown = piece.shown();
            // A whole line reads better, unless that costs too much of the text.
            let end = shown.rfind('\n').filter(|end| at == last && self.head_is_cut && *end >= shown.len() / 2);
            let text = end.map_or(shown, |end| &shown[..=end]);
            before += text.len();
            content.push(piece.kind.block(text));
        }
        let notice_at = content.len();
        content.extend(self.between.iter().cloned());
        for (at, item) in self.tail.iter().enumerate() {
            let Item::Text(piece) = item else {
                content.push(item.block());
                continue;
            };
            let shown = piece.shown();
            let end = shown.find('\n').filter(|end| at == 0 && self.tail_is_cut && *end < shown.len() / 2);
            let text = end.map_or(shown, |end| &shown[end + 1..]);
            after += text.len();
            content.push(piece.kind.block(text));
        }
        content.insert(notice_at, TextKind::Out.block(&self.notice(before, after, link)));
        content
    }

    /// Tells a model what is left out here. Clients may join this text with those around it.
    fn notice(&self, before: usize, after: usize, link: Option<&OutputLink>) -> String {
        let left_out = self.shown_bytes.saturating_sub((before + after) as u64);
        let mut notice = format!(
            "\n[{left_out} of {} bytes of output are left out here. The first {before} bytes are above, the last {after} bytes are below. ",
            self.shown_bytes
        );
        // Writing to a string cannot fail.
        if self.is_collapsed() {
            let _ = write!(
                notice,
                "These are the lines as a terminal shows them; the command wrote {} bytes, with what was drawn over and with colours. ",
                self.written_bytes
            );
        }
        let Some(link) = link else {
            notice.push_str("They were not kept.]\n");
            return notice;
        };
        let most = self.inline_bytes;
        let _ = match (link.is_whole, self.is_collapsed()) {
            (true, false) => write!(notice, "To read on, read the resource {}?from={before}&bytes={most}", link.uri),
            // Offsets in the resource are not those of the lines above.
            (true, true) => write!(notice, "All that it wrote is in the resource {}", link.uri),
            (false, _) => write!(notice, "What is kept of them is in the resource {}", link.uri),
        };
        if let Some(id) = link.uri.strip_prefix("taskwire://task/").and_then(|rest| rest.strip_suffix("/output")) {
            let _ = write!(notice, ", or call the tool task_output, if you have it, with {}", json!({"task_id": id}));
        }
        notice.push_str(".]\n");
        notice
    }

    /// Adds text that later output can still draw over.
    fn draw(&mut self, kind: TextKind, text: &str) {
        if text.is_empty() {
            return;
        }
        self.written_bytes += text.len() as u64;
        let goes_on = matches!((&self.on_screen, &kind), (Some(TextKind::Out), TextKind::Out) | (Some(TextKind::Err), TextKind::Err));
        if !goes_on {
            self.finish();
        }
        if let TextKind::Annotated(_) = kind {
            self.add(&kind, &screen::render(text));
            return;
        }
        let mut settled = String::new();
        self.screen.feed(text, &mut settled);
        self.add(&kind, &settled);
        self.on_screen = Some(kind);
    }

    fn add(&mut self, kind: &TextKind, text: &str) {
        if text.is_empty() {
            return;
        }
        let extra = kind.bytes() + if self.shown_bytes == 0 { 0 } else { BLOCK_BYTES };
        self.shown_bytes += text.len() as u64;
        let (mut rest, continues) = if self.is_head_full { (text, false) } else { self.add_to_head(kind, extra, text) };
        if rest.is_empty() {
            return;
        }
        if continues || !self.tail.back().is_some_and(|last| last.joins(kind)) {
            let extra = if continues { 0 } else { extra };
            self.tail.push_back(Item::Text(TextPiece { kind: kind.clone(), extra, text: String::new(), start: 0, continues }));
            self.tail_bytes += extra;
            self.head_is_cut |= continues;
        }
        while !rest.is_empty() {
            let (part, others) = rest.split_at(rest.floor_char_boundary(PART_BYTES));
            // The last piece is never dropped, so this is always the one from above.
            if let Some(Item::Text(piece)) = self.tail.back_mut() {
                piece.text.push_str(part);
                self.tail_bytes += part.len();
            }
            self.drop_from_tail();
            rest = others;
        }
    }

    /// Adds what fits to the head. Returns the rest, and whether it goes on with the last text of the head.
    fn add_to_head<'a>(&mut self, kind: &TextKind, extra: usize, text: &'a str) -> (&'a str, bool) {
        let joins = self.head.last().is_some_and(|last| last.joins(kind));
        let extra = if joins { 0 } else { extra };
        let room = (self.inline_bytes / 4).saturating_sub(self.head_bytes + extra);
        let (fits, rest) = text.split_at(text.floor_char_boundary(room));
        self.is_head_full = !rest.is_empty();
        match self.head.last_mut() {
            Some(Item::Text(last)) if joins => last.text.push_str(fits),
            _ if fits.is_empty() => return (rest, false),
            _ => self.head.push(Item::Text(TextPiece { kind: kind.clone(), extra, text: fits.to_owned(), start: 0, continues: false })),
        }
        self.head_bytes += extra + fits.len();
        (rest, true)
    }

    /// Drops what is too much from the front of the tail. Blocks that are not text stay.
    fn drop_from_tail(&mut self) {
        let most = self.inline_bytes - self.head_bytes;
        while let Some(over) = self.tail_bytes.checked_sub(most).filter(|over| *over > 0) {
            let mut piece = match self.tail.pop_front() {
                Some(Item::Text(piece)) => piece,
                Some(Item::Other(block)) => {
                    self.between.push(block);
                    continue;
                }
                None => return,
            };
            self.has_dropped_text = true;
            let shown = piece.shown().len();
            let over = piece.shown().ceil_char_boundary(over.min(shown));
            self.tail_is_cut = over < shown;
            if over == shown {
                self.tail_bytes -= piece.extra + shown;
                continue;
            }
            self.tail_bytes -= over;
            piece.start += over;
            if piece.start > piece.text.len() / 4 {
                piece.text.drain(..piece.start);
                piece.start = 0;
            }
            self.tail.push_front(Item::Text(piece));
        }
    }

    fn other(&mut self, block: &Value) {
        let bytes = json_len(block);
        if self.others_bytes + bytes + BLOCK_BYTES > OTHERS_BYTES {
            self.left_out.0 += 1;
            self.left_out.1 += bytes as u64;
            return;
        }
        self.others_bytes += bytes + BLOCK_BYTES;
        let item = Item::Other(block.clone());
        if self.is_head_full {
            self.tail.push_back(item);
        } else {
            self.head.push(item);
        }
    }
}

fn json_len(value: &Value) -> usize {
    value.to_string().len()
}

#[cfg(test)]
mod tests;
