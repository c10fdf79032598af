//! A task's whole output as a resource that can be read by ranges: `taskwire://task/ID/output?from=N&bytes=N`. (`block` reads large
//! blocks.)
//!
//! The resource is the text of the output, without images and the like. Ranges are bytes of UTF-8 and never cut a character: one that
//! begins within a character begins with it, and one that ends within a character ends before it.

use serde_json::{Value, json};
use taskwire_core::{CallerId, Seq, TaskId};

use super::{block, output::each_text};
use crate::{
    engine::{self, Engine, large_block},
    store::{Cursor, LogItem},
};

const PREFIX: &str = "taskwire://task/";
/// In `_meta`: which range of the text this is, how much text there is, and where the next range begins.
const RANGE: &str = "dev.taskwire/range";
/// Bytes of output that are read at one time.
const READ_BYTES: usize = 1024 * 1024;

/// Why a resource cannot be read.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ReadError {
    /// There is no such resource, or it is another caller's.
    #[error("there is no such resource")]
    NotFound,
    /// The range is not valid.
    #[error("{0}")]
    Invalid(String),
    /// The store failed.
    #[error(transparent)]
    Engine(#[from] engine::Error),
}

/// Whether a URI names a resource of a task.
pub(crate) fn is_task_uri(uri: &str) -> bool {
    uri.starts_with(PREFIX)
}

/// The URI of a task's output.
pub(crate) fn uri(id: TaskId) -> String {
    format!("{PREFIX}{id}/output")
}

/// The resource template, as lists show it.
pub(crate) fn template() -> Value {
    json!({
        "uriTemplate": format!("{PREFIX}{{id}}/output{{?from,bytes}}"),
        "name": "task-output",
        "title": "Output of a task",
        "description": "All text that a task has written. `from` is the byte to begin with (negative: counted from the end), `bytes` how \
            many to read at most. The next part's URI is in `_meta`.",
        "mimeType": "text/plain",
    })
}

/// The range that a URI asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Range {
    /// From the end if negative.
    from: Option<i64>,
    bytes: Option<u64>,
}

impl Range {
    fn read(query: &str) -> Result<Self, ReadError> {
        let mut range = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let twice = match key {
                "from" => {
                    let wrong = |_| ReadError::Invalid(format!("`from` must be a whole number of bytes, not {}", super::quoted(value)));
                    range.from.replace(value.parse::<i64>().map_err(wrong)?).is_some()
                }
                "bytes" => {
                    let bytes = value.parse::<u64>().ok().filter(|bytes| *bytes > 0);
                    let wrong = || ReadError::Invalid(format!("`bytes` must be a whole number from 1 on, not {}", super::quoted(value)));
                    range.bytes.replace(bytes.ok_or_else(wrong)?).is_some()
                }
                other => {
                    let known = "there are `from` and `bytes`";
                    return Err(ReadError::Invalid(format!("there is no parameter {}: {known}", super::quoted(other))));
                }
            };
            if twice {
                return Err(ReadError::Invalid(format!("`{key}` is given twice")));
            }
        }
        Ok(range)
    }
}

/// The task and the range that a URI names.
fn parse(uri: &str) -> Result<(TaskId, Range), ReadError> {
    let rest = uri.strip_prefix(PREFIX).ok_or(ReadError::NotFound)?;
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let id = path.strip_suffix("/output").ok_or(ReadError::NotFound)?.parse().map_err(|_| ReadError::NotFound)?;
    Ok((id, Range::read(query)?))
}

/// Reads a range of the output of one of the caller's tasks: a `ReadResourceResult` with at most `max_bytes` of text. Or reads one of its
/// large blocks, whole.
///
/// The returned URI names the range, unless the text is the whole output and that was asked for.
pub(crate) async fn read(engine: &Engine, caller: &CallerId, uri: &str, max_bytes: usize) -> Result<Value, ReadError> {
    if let Some((id, name)) = large_block::parse_block_uri(uri) {
        engine.task(caller, id).await?.ok_or(ReadError::NotFound)?;
        return block::read(engine, id, name, uri).await;
    }
    let (id, range) = parse(uri)?;
    let task = engine.task(caller, id).await?.ok_or(ReadError::NotFound)?;
    let from = match range.from {
        Some(back) if back < 0 => {
            // Find the length first; what the task writes meanwhile comes after it.
            let mut all = RangeReader::new(0, 0);
            scan(engine, id, &mut all).await?;
            all.total.saturating_sub(back.unsigned_abs())
        }
        from => from.unwrap_or_default().unsigned_abs(),
    };
    let most = range.bytes.map_or(max_bytes, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX).min(max_bytes));
    let mut part = RangeReader::new(from, most);
    let missed = scan(engine, id, &mut part).await?;
    let (from, bytes, total) = (part.begin(), part.text.len() as u64, part.total);
    let whole = range == Range::default() && bytes == total;
    let own = if whole { self::uri(id) } else { format!("{}?from={from}&bytes={bytes}", self::uri(id)) };
    let mut range_meta = json!({"from": from, "bytes": bytes, "total": total, "ended": task.outcome.is_some()});
    if from + bytes < total {
        let again = range.bytes.map(|bytes| format!("&bytes={bytes}")).unwrap_or_default();
        range_meta["next"] = format!("{}?from={}{again}", self::uri(id), from + bytes).into();
    }
    if missed {
        range_meta["dropped"] = true.into();
    }
    Ok(json!({"contents": [{"uri": own, "mimeType": "text/plain", "text": part.text, "_meta": {RANGE: range_meta}}]}))
}

/// Feeds all text of a task to `part`; returns whether its beginning is no longer kept.
async fn scan(engine: &Engine, id: TaskId, part: &mut RangeReader) -> Result<bool, ReadError> {
    let (mut from, mut missed) = (Seq(0), false);
    loop {
        let cursor = Cursor::output(from, READ_BYTES);
        let page = engine.page(id, cursor).await?.ok_or(ReadError::NotFound)?;
        let more = page.more;
        for chunk in page.items.into_iter().filter_map(LogItem::into_chunk) {
            missed |= from == Seq(0) && chunk.seq > from;
            from = chunk.seq.next();
            each_text(chunk.blocks.as_str(), |text| part.take(text));
        }
        if !more {
            return Ok(missed);
        }
        // Much output takes a while to read: others are served in between.
        tokio::task::yield_now().await;
    }
}

/// Collects a range of a text that comes piece by piece.
#[derive(Debug)]
struct RangeReader {
    from: u64,
    most: usize,
    text: String,
    /// Where the collected text begins.
    start_offset: Option<u64>,
    full: bool,
    total: u64,
}

impl RangeReader {
    fn new(from: u64, most: usize) -> Self {
        Self { from, most, text: String::new(), start_offset: None, full: most == 0, total: 0 }
    }

    /// Takes what of the next piece is within the range.
    fn take(&mut self, text: &str) {
        let before = self.total;
        self.total += text.len() as u64;
        if self.full || text.is_empty() || self.total <= self.from {
            return;
        }
        let begin = usize::try_from(self.from.saturating_sub(before)).unwrap_or(usize::MAX);
        let begin = text.floor_char_boundary(begin);
        self.start_offset.get_or_insert(before + begin as u64);
        let (rest, free_bytes) = (&text[begin..], self.most - self.text.len());
        let mut end = rest.floor_char_boundary(free_bytes);
        self.full = end < rest.len();
        if end == 0 && self.text.is_empty() {
            // A range that is too small for one character still gets it: else a reader would never get past it.
            end = rest.chars().next().map_or(0, char::len_utf8);
        }
        self.text.push_str(&rest[..end]);
    }

    /// Where the range begins: at the end of the text, if it begins behind that.
    fn begin(&self) -> u64 {
        self.start_offset.unwrap_or_else(|| self.from.min(self.total))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use taskwire_core::{Timestamp, id::ID_RANDOM_BYTES};

    use super::*;

    fn id() -> TaskId {
        TaskId::new(Timestamp::from_millis(5_000), [7; ID_RANDOM_BYTES])
    }

    fn part(texts: &[&str], from: u64, most: usize) -> (u64, String, u64) {
        let mut part = RangeReader::new(from, most);
        texts.iter().for_each(|text| part.take(text));
        (part.begin(), part.text, part.total)
    }

    #[test]
    fn a_uri_names_a_task_and_a_range() {
        let named = |query: &str| parse(&format!("{}{query}", uri(id()))).map(|(task, range)| (task == id(), range.from, range.bytes));
        for (query, range) in [
            ("", (true, None, None)),
            ("?", (true, None, None)),
            ("?from=10", (true, Some(10), None)),
            ("?bytes=5&from=-20", (true, Some(-20), Some(5))),
        ] {
            assert_eq!(named(query).expect("a range"), range, "{query}");
        }
        for wrong in [
            "?from=x",
            "?from=",
            "?bytes=0",
            "?bytes=-1",
            "?bytes",
            "?upto=3",
            "?from=1&from=2",
            "?from=1.5",
            "?from=1&bytes=99999999999999999999",
        ] {
            assert!(matches!(named(wrong), Err(ReadError::Invalid(_))), "{wrong}");
        }
        for other in
            ["taskwire://task/", "taskwire://task/x/output", "taskwire://other", &format!("{PREFIX}{}", id()), &format!("{}/x", uri(id()))]
        {
            assert!(matches!(parse(other), Err(ReadError::NotFound)), "{other}");
        }
        assert!(
            is_task_uri(&uri(id())) && !is_task_uri("file:///x") && template()["uriTemplate"] == "taskwire://task/{id}/output{?from,bytes}"
        );
    }

    #[test]
    fn ranges_go_across_pieces_and_keep_characters_whole() {
        let texts = ["ab", "", "cé", "ñ", "xyz"];
        assert_eq!(part(&texts, 0, 100), (0, "abcéñxyz".to_owned(), 10));
        assert_eq!(part(&texts, 1, 2), (1, "bc".to_owned(), 10));
        assert_eq!(part(&texts, 3, 3), (3, "é".to_owned(), 10), "the ñ would be cut");
        assert_eq!(part(&texts, 4, 4), (3, "éñ".to_owned(), 10), "begun within the é, it begins with it");
        assert_eq!(part(&texts, 6, 1), (5, "ñ".to_owned(), 10), "a character is the least");
        assert_eq!(part(&texts, 9, 100), (9, "z".to_owned(), 10));
        assert_eq!(
            (part(&texts, 10, 5), part(&texts, 99, 5)),
            ((10, String::new(), 10), (10, String::new(), 10)),
            "behind the end is the end"
        );
        assert_eq!(part(&[], 3, 5), (0, String::new(), 0));
        assert_eq!(part(&texts, 0, 0), (0, String::new(), 10));
    }

    proptest! {
        #[test]
        fn reading_on_gives_every_byte_once(texts in proptest::collection::vec("\\PC{0,9}", 0..9), most in 1usize..7) {
            let pieces: Vec<&str> = texts.iter().map(String::as_str).collect();
            let (mut all, mut from) = (String::new(), 0);
            loop {
                let (begin, text, total) = part(&pieces, from, most);
                prop_assert_eq!(begin, from, "the next range begins where the last one ended");
                prop_assert!(text.len() <= most.max(4));
                all.push_str(&text);
                if text.is_empty() {
                    prop_assert_eq!(from, total);
                    break;
                }
                from += text.len() as u64;
            }
            prop_assert_eq!(all, texts.concat());
        }
    }
}
