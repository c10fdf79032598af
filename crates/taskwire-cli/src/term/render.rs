//! Content blocks as text, and what of a result remains to be shown after its output was streamed.

use std::borrow::Cow;

use serde_json::Value;
use taskwire::client::{OutputPosition, ToolResult};
use taskwire_core::Payload;

/// In the `_meta` of a result: how many of its blocks repeat output. A command that was run again has written more than its result.
const REPEATS: &str = "dev.taskwire/repeats";

/// In the `_meta` of a block that is only a part of a larger one.
const PART: &str = "dev.taskwire/part";

/// A block as it is shown: text as it is, anything else as a line about it.
enum BlockText<'a> {
    Text(&'a str),
    Line(String),
}

fn block_text(block: &Value) -> BlockText<'_> {
    let text = |value: &Value, name: &str| value[name].as_str().unwrap_or("?").to_owned();
    let sized = |kind: &str, what: &str, data: &Value| format!("[{kind} {what}, {}]", size(decoded_len(data.as_str().unwrap_or_default())));
    // A block that is too large comes in parts, followed by a link.
    if block["_meta"][PART].is_object() {
        return BlockText::Text("");
    }
    match block["type"].as_str() {
        Some("text") => BlockText::Text(block["text"].as_str().unwrap_or_default()),
        Some(kind @ ("image" | "audio")) => BlockText::Line(sized(kind, &text(block, "mimeType"), &block["data"])),
        Some("resource_link") => BlockText::Line(text(block, "uri")),
        Some("resource") => {
            let resource = &block["resource"];
            match resource["text"].as_str() {
                Some(text) => BlockText::Text(text),
                None => BlockText::Line(sized("resource", &text(resource, "uri"), &resource["blob"])),
            }
        }
        other => BlockText::Line(format!("[{}]", other.unwrap_or("unknown content"))),
    }
}

/// A chunk of output. Text is joined as it is, for it continues in the next chunk; other blocks get their own line.
pub(crate) fn chunk_text(blocks: &[Value]) -> String {
    let mut output = String::new();
    for block in blocks {
        match block_text(block) {
            BlockText::Text(text) => output.push_str(text),
            BlockText::Line(line) => {
                end_line(&mut output);
                output.push_str(&line);
                output.push('\n');
            }
        }
    }
    output
}

/// Blocks that were each a chunk of its own.
fn separate_chunks_text(blocks: &[Value]) -> String {
    blocks.iter().map(|block| chunk_text(std::slice::from_ref(block))).collect()
}

/// A whole result: each block begins on its own line. The structured value is shown only if there is nothing else.
pub(crate) fn result_text(result: &ToolResult) -> String {
    result_text_from(result, 0)
}

/// A result without its first blocks.
fn result_text_from(result: &ToolResult, first: usize) -> String {
    let mut output = String::new();
    for block in result.content[first..].iter().filter(|block| is_for_people(block)) {
        end_line(&mut output);
        output.push_str(&match block_text(block) {
            BlockText::Text(text) => Cow::Borrowed(text),
            BlockText::Line(line) => Cow::Owned(line),
        });
    }
    let has_text = result.content.iter().any(|block| matches!(block_text(block), BlockText::Text(text) if !text.is_empty()));
    if let Some(value) = result.structured.as_ref().filter(|_| !has_text) {
        end_line(&mut output);
        output.push_str(&serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string()));
    }
    end_line(&mut output);
    output
}

/// Whether a block is not meant for models alone.
fn is_for_people(block: &Value) -> bool {
    let audience = block["annotations"]["audience"].as_array();
    audience.is_none_or(|audience| audience.is_empty() || audience.iter().any(|who| who == "user"))
}

fn end_line(output: &mut String) {
    if !output.is_empty() && !output.ends_with('\n') {
        output.push('\n');
    }
}

/// What was shown before the end, to tell whether the result has anything new.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShownSoFar {
    /// How far the output was shown.
    pub(crate) shown: OutputPosition,
    /// Whether it was shown from the beginning; if not, the result has nothing new if it ends with what was shown.
    pub(crate) from_start: bool,
    /// Whether the last line has not ended yet.
    pub(crate) line_open: bool,
}

/// The text that remains to be written when the call has ended with `result`.
pub(crate) fn unshown_end(before: ShownSoFar, result: &ToolResult) -> String {
    let newline = if before.line_open { "\n" } else { "" };
    format!("{newline}{}", result_text_from(result, blocks_shown(before, result)))
}

/// How many blocks at the beginning of a result were shown already.
fn blocks_shown(before: ShownSoFar, result: &ToolResult) -> usize {
    let content = &result.content;
    if before.shown.bytes == 0 {
        return 0;
    }
    if let Some(repeats) = repeats(&result.raw) {
        return repeats.min(content.len());
    }
    // Written at once, or as blocks that came one by one.
    let was = |len: usize| was_shown(before, &chunk_text(&content[..len])) || was_shown(before, &separate_chunks_text(&content[..len]));
    let same = (1..=content.len()).rev().find(|len| was(*len));
    // Of much output a result has only the two ends, and a link to all of it.
    let is_cut = |block: &Value| {
        let is_output = block["uri"].as_str().is_some_and(|uri| uri.starts_with("taskwire://task/") && uri.ends_with("/output"));
        let written = block["size"].as_u64().or_else(|| block["_meta"]["dev.taskwire/written"].as_u64());
        is_output && written.is_some_and(|written| before.from_start && written <= before.shown.bytes)
    };
    same.or_else(|| content.iter().position(is_cut).map(|at| at + 1)).unwrap_or(0)
}

/// How many of its blocks repeat output, as the result itself says.
fn repeats(raw: &Payload) -> Option<usize> {
    let result: Value = raw.as_str().contains(REPEATS).then(|| raw.read().ok())??;
    usize::try_from(result["_meta"][REPEATS].as_u64()?).ok()
}

fn was_shown(before: ShownSoFar, text: &str) -> bool {
    let start = usize::try_from(before.shown.bytes).ok().and_then(|len| text.len().checked_sub(len));
    let Some(end) = start.and_then(|start| text.get(start..)).filter(|end| end.len() == text.len() || !before.from_start) else {
        return false;
    };
    let mut shown = OutputPosition::default();
    shown.add(end);
    shown.hash == before.shown.hash
}

/// How many bytes this base64 stands for.
fn decoded_len(base64: &str) -> u64 {
    let text = base64.trim_end_matches('=');
    text.len() as u64 * 3 / 4
}

/// `999 B`, `12.3 kB`, `4.5 MB`.
pub(crate) fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    for unit in ["kB", "MB"] {
        value /= 1000.0;
        if value < 999.95 {
            return format!("{value:.1} {unit}");
        }
    }
    format!("{:.1} GB", value / 1000.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn finished(content: Value, structured: Option<Value>) -> ToolResult {
        let raw = Payload::from(json!({}));
        ToolResult { content: content.as_array().cloned().unwrap_or_default(), structured, is_error: false, raw }
    }

    fn text(text: &str) -> Value {
        json!([{"type": "text", "text": text}])
    }

    fn before(streamed: &str) -> ShownSoFar {
        let mut shown = OutputPosition::default();
        shown.add(streamed);
        ShownSoFar { shown, from_start: true, line_open: !streamed.is_empty() && !streamed.ends_with('\n') }
    }

    #[test]
    fn a_result_that_was_streamed_is_not_said_again() {
        assert_eq!(unshown_end(before("a story"), &finished(text("a story"), None)), "\n");
        assert_eq!(unshown_end(before("a story\n"), &finished(text("a story\n"), None)), "");
        let blocks = json!([{"type": "text", "text": "a "}, {"type": "text", "text": "story"}]);
        assert_eq!(unshown_end(before("a story"), &finished(blocks, None)), "\n");
    }

    #[test]
    fn a_result_that_is_new_comes_on_a_new_line_and_ends_it() {
        assert_eq!(unshown_end(before("2…\n1…\n"), &finished(text("Lift-off!"), None)), "Lift-off!\n");
        assert_eq!(unshown_end(before("1, 2"), &finished(text("two"), None)), "\ntwo\n");
        assert_eq!(unshown_end(before(""), &finished(text("at once\n"), None)), "at once\n");
        assert_eq!(unshown_end(before(""), &finished(json!([]), None)), "");
    }

    #[test]
    fn what_a_result_adds_to_the_output_is_all_that_is_said() {
        let blocks = json!([{"type": "text", "text": "words\n"}, {"type": "text", "text": "The command ended with exit code 3."}]);
        assert_eq!(unshown_end(before("words\n"), &finished(blocks.clone(), None)), "The command ended with exit code 3.\n");
        assert_eq!(unshown_end(before("other\n"), &finished(blocks, None)), "words\nThe command ended with exit code 3.\n");
        let link = |size: u64| json!({"type": "resource_link", "uri": "taskwire://task/x/output", "name": "output", "size": size});
        let cut =
            |size| json!([{"type": "text", "text": "a"}, {"type": "text", "text": "[…]"}, link(size), {"type": "text", "text": "code 1"}]);
        assert_eq!(unshown_end(before("a to z\n"), &finished(cut(7), None)), "code 1\n");
        assert!(unshown_end(before("z\n"), &finished(cut(7), None)).contains("[…]"), "not all of it was shown");
        let mut kept = cut(0);
        kept[2] =
            json!({"type": "resource_link", "uri": "taskwire://task/x/output", "name": "output", "_meta": {"dev.taskwire/written": 7}});
        assert_eq!(unshown_end(before("a to z\n"), &finished(kept, None)), "code 1\n", "however much of it is kept");
    }

    #[test]
    fn of_a_command_that_was_run_again_the_last_run_is_not_said_again() {
        let twice = before("begun\nbegun\nended\n");
        let blocks = json!([{"type": "text", "text": "begun\nended\n"}, {"type": "text", "text": "code 3"}]);
        let again = |repeats: u64| ToolResult { raw: json!({"_meta": {REPEATS: repeats}}).into(), ..finished(blocks.clone(), None) };
        assert_eq!(unshown_end(twice, &again(1)), "code 3\n");
        assert_eq!(unshown_end(ShownSoFar { from_start: false, ..twice }, &again(1)), "code 3\n", "wherever it was begun to be shown");
        assert_eq!(unshown_end(twice, &again(9)), "");
        assert_eq!(unshown_end(before(""), &again(1)), "begun\nended\ncode 3\n", "nothing was shown");
        assert_eq!(unshown_end(twice, &finished(blocks, None)), "begun\nended\ncode 3\n");
    }

    #[test]
    fn shown_from_the_middle_a_result_that_ends_with_it_is_not_said_again() {
        let middle = ShownSoFar { from_start: false, ..before("story") };
        assert_eq!(unshown_end(middle, &finished(text("a story"), None)), "\n");
        assert_eq!(unshown_end(before("story"), &finished(text("a story"), None)), "\na story\n");
    }

    #[test]
    fn what_is_no_text_is_a_line_about_it() {
        let data = "A".repeat(16_400);
        let content = json!([
            {"type": "text", "text": "see"},
            {"type": "image", "mimeType": "image/png", "data": data},
            {"type": "audio", "mimeType": "audio/wav", "data": "AAA="},
            {"type": "resource_link", "uri": "file:///a.txt", "name": "a"},
            {"type": "resource", "resource": {"uri": "file:///b", "text": "inside"}},
            {"type": "resource", "resource": {"uri": "file:///c", "blob": "AAAA"}},
        ]);
        let lines = "see\n[image image/png, 12.3 kB]\n[audio audio/wav, 2 B]\nfile:///a.txt\ninside\n[resource file:///c, 3 B]\n";
        assert_eq!(result_text(&finished(content.clone(), None)), lines);
        assert_eq!(chunk_text(content.as_array().expect("a list")), lines);
    }

    #[test]
    fn parts_of_a_block_are_not_shown_but_the_link_to_it_is() {
        let part = json!({"type": "resource", "resource": {"uri": "x:?part=0", "blob": "AAAA"}, "_meta": {PART: {"of": "0a", "part": 0, "parts": 1}}});
        let blocks = [json!({"type": "text", "text": "see"}), part, json!({"type": "resource_link", "uri": "x:", "name": "image"})];
        assert_eq!(chunk_text(&blocks), "see\nx:\n");
    }

    #[test]
    fn text_of_a_chunk_is_joined_as_it_is_and_of_a_result_by_lines() {
        let content = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        assert_eq!(chunk_text(content.as_array().expect("a list")), "ab");
        assert_eq!(result_text(&finished(content, None)), "a\nb\n");
    }

    #[test]
    fn the_value_is_shown_only_where_there_is_no_text() {
        let value = json!({"n": 1});
        assert_eq!(result_text(&finished(json!([]), Some(value.clone()))), "{\n  \"n\": 1\n}\n");
        assert_eq!(result_text(&finished(text("one"), Some(value))), "one\n");
    }

    #[test]
    fn sizes_are_short() {
        for (bytes, text) in
            [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (12_300, "12.3 kB"), (4_500_000, "4.5 MB"), (2_000_000_000, "2.0 GB")]
        {
            assert_eq!(size(bytes), text);
        }
    }
}
