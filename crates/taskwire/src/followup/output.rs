//! `task_output`: a task's output, page by page.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use taskwire_core::{Seq, TaskId, Version, screen::Screen, task::Task};

use super::{OUTPUT, Settings, WAIT, arguments, duration_text, find_task, wait_effect};
use crate::{
    engine::{self, Engine, large_block},
    store::{Cursor, LogItem},
    tool::{Annotations, CallResult, Content, Ctx, Tool, ToolError},
};

const DESCRIPTION: &str = "Shows what a running or ended task of this server has written so far, from the beginning or after the \
    number that the last answer gave. A task is a tool call that was still running when it was answered; that answer has the task's \
    id. This is the task's output, not its result: to wait for the result, use task_wait. Do not call this again and again to see \
    whether the task has ended.";

/// The largest `after` that is accepted: some clients cannot represent a larger number exactly.
const AFTER_MAX: u64 = (1 << 53) - 1;

/// Bytes that are read at most for one reply, where a terminal shows little of them.
const READ_MAX: usize = 1024 * 1024;

/// Bytes and chunks before a page that are searched for the beginning of an escape sequence that continues in it.
const BEFORE_BYTES: usize = 256;
const BEFORE_CHUNKS: u64 = 8;

#[derive(Deserialize)]
struct Arguments {
    task_id: String,
    /// A whole number by the schema, but some clients write it as 2.0.
    #[serde(default)]
    after: f64,
}

pub(super) fn tool(settings: &Settings) -> Tool {
    let schema = json!({
        "type": "object",
        "properties": {
            "task_id": {"type": "string", "description": "The task's id, as a tool gave it."},
            "after": {
                "type": "integer",
                "minimum": 0,
                "maximum": AFTER_MAX,
                "description": "Where to go on: the number in the last answer of task_output. Leave it out to begin at the beginning."
            },
        },
        "required": ["task_id"],
        "additionalProperties": false,
    });
    let bytes = settings.output_bytes;
    Tool::raw(OUTPUT, DESCRIPTION, schema, move |ctx: Ctx| async move { show(&ctx, bytes).await })
        .title("Read the output of a task")
        .annotations(Annotations::default().read_only(true).open_world(false))
}

async fn show(ctx: &Ctx, bytes: usize) -> Result<CallResult, ToolError> {
    let Arguments { task_id, after } = ctx.arguments().read()?;
    let after = after as u64;
    let engine = ctx.run().engine();
    let id = find_task(ctx, &task_id).await?.id;
    let Some(written) = read(engine, id, Seq(after), bytes).await? else { return Err(forgotten(id)) };
    // Read after the output, so that the reported state is not older than it.
    let task = find_task(ctx, &task_id).await?;
    let mut content: Vec<Content> = written.blocks.iter().cloned().map(Content::raw).collect();
    content.push(Content::text(closing_text(engine, &task, after, &written)));
    Ok(CallResult::of(content))
}

fn forgotten(id: TaskId) -> ToolError {
    ToolError::new(format!("The task {id} has ended and is no longer kept: neither its output nor its result can be read any more."))
}

/// The text after the output: where the next page begins, and the state of the task.
fn closing_text(engine: &Engine, task: &Task, after: u64, written: &OutputPart) -> String {
    let (tool, next) = (&task.spec.tool, arguments(task.id, &[("after", written.next.0.into())]));
    let wait = format!("`{WAIT}` with {}", arguments(task.id, &[]));
    let mut text = String::from("---\n");
    if written.has_lost_beginning {
        text.push_str("(What stood before this is no longer kept: it was too much.)\n");
    }
    // The task may have written its last chunk between the two reads.
    let more = written.more || (!written.ended && task.outcome.is_some());
    let nothing = match (written.is_empty, after) {
        (false, _) => None,
        (true, 0) => Some(format!("`{tool}` (task {}) has written nothing", task.id)),
        (true, after) => Some(format!("`{tool}` (task {}) has written nothing after {after}", task.id)),
    };
    let text_of_end = match (nothing, more, &task.outcome) {
        (_, true, _) => format!("There is more: call `{OUTPUT}` with {next}."),
        (nothing, false, None) => {
            let so_far = nothing.map_or_else(|| "That is all so far.".to_owned(), |nothing| format!("{nothing} so far."));
            let (how, do_next) = match task.asked_at {
                Some(_) => ("waits for an answer to its question", "shows the question"),
                None => ("is still running", "waits for its result"),
            };
            let age = duration_text(engine.clock().now().since(task.began_at()));
            format!("{so_far} The task {how} ({age}): {wait} {do_next}. Later output: `{OUTPUT}` with {next}.")
        }
        (nothing, false, Some(_)) => {
            let all = nothing.map_or_else(|| "That is all of the output.".to_owned(), |nothing| format!("{nothing}."));
            format!("{all} The task has ended ({}): {wait} {}.", task.status(), wait_effect(task))
        }
    };
    text.push_str(&text_of_end);
    text
}

/// One page of a task's output.
#[derive(Debug, PartialEq)]
struct OutputPart {
    /// Content blocks as a terminal shows them; adjacent texts are one block.
    blocks: Vec<Value>,
    /// Whether no chunk was read, visible or not.
    is_empty: bool,
    /// Where the next part begins.
    next: Seq,
    /// Whether there is more.
    more: bool,
    /// Whether the task had ended by then.
    ended: bool,
    /// Whether something before it is no longer kept.
    has_lost_beginning: bool,
}

/// Reads a task's output from `from`: whole chunks, at least one if there is one, of which a terminal shows about `bytes`. `None` if there
/// is no such task.
async fn read(engine: &Engine, id: TaskId, from: Seq, bytes: usize) -> Result<Option<OutputPart>, engine::Error> {
    let mut written = OutputPart { blocks: Vec::new(), is_empty: true, next: from, more: false, ended: false, has_lost_beginning: false };
    let mut gathered = ShownBlocks { screen: Screen::after(&before(engine, id, from).await?), ..ShownBlocks::default() };
    let mut taken = 0;
    loop {
        let cursor = Cursor::output(written.next, bytes);
        let Some(page) = engine.page(id, cursor).await? else { return Ok(None) };
        (written.more, written.ended) = (page.more, page.ended);
        // An `after` beyond the end becomes the next seq that will be written.
        written.next = written.next.min(page.next_seq);
        let so_far = taken;
        for chunk in page.items.into_iter().filter_map(LogItem::into_chunk) {
            written.has_lost_beginning |= written.is_empty && chunk.seq > from;
            written.is_empty = false;
            written.next = chunk.seq.next();
            taken += chunk.blocks.as_str().len();
            for block in serde_json::from_str::<Vec<Value>>(chunk.blocks.as_str()).unwrap_or_default() {
                gathered.add(block);
            }
        }
        // Where progress is drawn over, a page of chunks shows next to nothing: then the loop reads on.
        if !written.more || taken == so_far || taken >= READ_MAX || gathered.bytes() >= bytes / 2 {
            written.blocks = gathered.end();
            return Ok(Some(written));
        }
    }
}

/// The end of the text before a chunk: an escape sequence that continues in the chunk may begin there.
async fn before(engine: &Engine, id: TaskId, from: Seq) -> Result<String, engine::Error> {
    if from == Seq(0) {
        return Ok(String::new());
    }
    let kept = engine.chunk_range(id).await?;
    let from = from.min(kept.end);
    let (mut at, mut text) = (from, String::new());
    while at > kept.start && from.0 - at.0 < BEFORE_CHUNKS && text.len() < BEFORE_BYTES {
        at = Seq(at.0 - 1);
        let Some((earlier, _)) = chunk_text(engine, id, at).await? else { break };
        text.insert_str(0, &earlier);
    }
    Ok(text)
}

/// The text of one chunk and its stored size in bytes; `None` if there is no such task.
pub(super) async fn chunk_text(engine: &Engine, id: TaskId, at: Seq) -> Result<Option<(String, usize)>, engine::Error> {
    let cursor = Cursor { after: Version(u64::MAX), from: Some(at), max_bytes: 1, max_chunks: 1 };
    let Some(page) = engine.page(id, cursor).await? else { return Ok(None) };
    let (mut all, mut bytes) = (String::new(), 0);
    for chunk in page.items.into_iter().filter_map(LogItem::into_chunk) {
        bytes += chunk.blocks.as_str().len();
        each_text(chunk.blocks.as_str(), |text| all.push_str(text));
    }
    Ok(Some((all, bytes)))
}

/// Blocks as a terminal shows them: a text joins the block before it if only their texts differ.
#[derive(Debug, Default)]
struct ShownBlocks {
    blocks: Vec<Value>,
    /// The end of the last text, which can still be drawn over.
    screen: Screen,
    /// Bytes of everything else.
    fixed_bytes: usize,
}

impl ShownBlocks {
    /// About how many bytes there are.
    fn bytes(&self) -> usize {
        self.fixed_bytes + self.screen.buffered_bytes()
    }

    fn add(&mut self, mut block: Value) {
        // A client that wants the large block follows the link behind its last part.
        if large_block::is_part(&block) {
            return;
        }
        let is_text = block["type"] == "text";
        let text = match block.get_mut("text") {
            Some(Value::String(text)) if is_text => std::mem::take(text),
            _ => {
                self.end_text();
                self.fixed_bytes += block.to_string().len();
                self.blocks.push(block);
                return;
            }
        };
        if !self.blocks.last().is_some_and(|last| differ_only_in_text(last, &block)) {
            if !self.blocks.is_empty() {
                self.end_text();
            }
            self.blocks.push(block);
        }
        let mut shown = String::new();
        self.screen.feed(&text, &mut shown);
        self.grow(&shown);
    }

    /// Ends a text: nothing can draw over it any more. A text that shows nothing is dropped.
    fn end_text(&mut self) {
        let mut shown = String::new();
        self.screen.finish(&mut shown);
        self.grow(&shown);
        self.blocks.pop_if(|last| last["type"] == "text" && last["text"] == "");
    }

    fn grow(&mut self, shown: &str) {
        if let Some(Value::String(last)) = self.blocks.last_mut().and_then(|last| last.get_mut("text")) {
            last.push_str(shown);
            self.fixed_bytes += shown.len();
        }
    }

    fn end(mut self) -> Vec<Value> {
        self.end_text();
        self.blocks
    }
}

/// Whether two blocks differ in their text alone.
fn differ_only_in_text(one: &Value, other: &Value) -> bool {
    match (one.as_object(), other.as_object()) {
        (Some(one), Some(other)) => {
            one.len() == other.len() && one.iter().all(|(key, value)| key == "text" || other.get(key) == Some(value))
        }
        _ => false,
    }
}

/// Calls `take` with each text in a list of blocks.
pub(super) fn each_text(blocks: &str, mut take: impl FnMut(&str)) {
    #[derive(Deserialize)]
    struct Text<'a> {
        #[serde(borrow)]
        r#type: Cow<'a, str>,
        #[serde(borrow)]
        text: Cow<'a, str>,
    }
    for block in serde_json::from_str::<Vec<&RawValue>>(blocks).unwrap_or_default() {
        if let Ok(Text { r#type, text }) = serde_json::from_str(block.get())
            && r#type == "text"
        {
            take(&text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        json!({"type": "text", "text": text})
    }

    #[test]
    fn text_is_joined_and_everything_else_keeps_its_place() {
        let image = json!({"type": "image", "data": "eA==", "mimeType": "image/png"});
        let stderr = |text: &str| json!({"type": "text", "text": text, "_meta": {"dev.taskwire/stream": "stderr"}});
        let mut gathered = ShownBlocks::default();
        for block in
            [text("a"), text("b\n"), image.clone(), image.clone(), text("c"), stderr("no"), stderr("!"), text("d"), json!({"type": "text"})]
        {
            gathered.add(block);
        }
        assert_eq!(gathered.end(), [text("ab\n"), image.clone(), image, text("c"), stderr("no!"), text("d"), json!({"type": "text"})]);
    }

    #[test]
    fn text_is_as_a_terminal_shows_it() {
        let stderr = |text: &str| json!({"type": "text", "text": text, "_meta": {"dev.taskwire/stream": "stderr"}});
        let mut gathered = ShownBlocks { screen: Screen::after("so far \u{1b}[3"), ..ShownBlocks::default() };
        for block in [text("1m10%\u{1b}["), text("0m\r20"), text("%\r\n"), stderr("\u{1b}[1m"), stderr("\u{1b}[0m"), text("end\r")] {
            gathered.add(block);
        }
        assert_eq!(gathered.end(), [text("20%\n"), text("end")], "and what is not seen is no block");
        let mut silent = ShownBlocks::default();
        silent.add(text("\u{1b}[2J"));
        assert_eq!(silent.end(), Vec::<Value>::new());
    }

    #[test]
    fn only_texts_are_texts() {
        let mut all = String::new();
        let blocks = json!([text("a\n\"é\""), {"type": "resource", "resource": {"uri": "x:", "text": "no"}}, {"type": "image", "text": "no"}, text("b")]);
        each_text(&blocks.to_string(), |text| all.push_str(text));
        each_text("no list", |_| panic!("there is none"));
        assert_eq!(all, "a\n\"é\"b");
    }
}
