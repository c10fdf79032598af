//! What a client keeps of one streamed result (SEP-1905): which segments came, which are missing, and what they make together.
//!
//! A segment is one content block with its `seqNr`, counted from 1. It may come in the first response to a call, in further
//! responses on the same stream or in responses to `tasks/result`, in any order and more than once; [`Segments`] takes them
//! all and keeps each once.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    ops::RangeInclusive,
};

use serde_json::{Map, Value};

use taskwire_core::Payload;

use super::RELATED;

/// Characters of a value from the wire that an error shows.
const SHOWN_CHARS: usize = 40;

/// How much of one result is kept at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentLimits {
    /// Segments.
    pub count: usize,
    /// Bytes of their JSON together, and of whatever else is kept.
    pub bytes: usize,
}

impl SegmentLimits {
    /// As much as a task of ours may write by default, in pieces of 64 bytes.
    pub const DEFAULT: Self = Self { count: 1024 * 1024, bytes: 64 * 1024 * 1024 };
}

impl Default for SegmentLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Why a streaming result was not taken. It has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// It has another shape than the proposal says.
    #[error("not a streaming result: {0}")]
    Shape(&'static str),
    /// A segment has no good number.
    #[error("segment {index} of `partial-content` needs a `seqNr` that is a whole number from 1 on, not {found}")]
    Number {
        /// Its position in the list, from 0.
        index: usize,
        /// What stood there instead, shortened.
        found: String,
    },
    /// It belongs to another task.
    #[error("the result belongs to task `{found}`, not to `{expected}`")]
    OtherTask {
        /// The task whose segments are kept here.
        expected: String,
        /// The task that the result names.
        found: String,
    },
    /// More came than is kept.
    #[error("the result has more than {max} {what}: raise the limit to keep it")]
    Full {
        /// What there is too much of.
        what: &'static str,
        /// How much is kept.
        max: usize,
    },
}

/// A content block that was not there before.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// Its position in the result, from 1.
    pub seq_nr: u64,
    /// The block, without its number.
    pub block: Value,
}

/// What has come of one streamed result.
///
/// ```
/// use serde_json::json;
/// use taskwire::client::Segments;
///
/// let mut segments = Segments::new();
/// let first = json!({"partial-content": [{"seqNr": 1, "type": "text", "text": "a"}], "isError": false, "isComplete": false,
///     "_meta": {"io.modelcontextprotocol/related-task": {"taskId": "t"}}});
/// let third = json!({"partial-content": [{"seqNr": 3, "type": "text", "text": "c"}], "isError": false, "isComplete": true});
/// let rest = json!({"partial-content": [{"seqNr": 2, "type": "text", "text": "b"}, {"seqNr": 3, "type": "text", "text": "c"}],
///     "isError": false, "isComplete": true});
/// segments.take(&first)?;
/// segments.take(&third)?;
/// assert_eq!((segments.gaps(), segments.merged()), (vec![2..=2], None));
/// // What is missing is asked for with `tasks/result {"taskId": "t", "lastSeqNr": 1}`.
/// assert_eq!((segments.task_id(), segments.resume_from()), (Some("t"), Some(1)));
/// segments.take(&rest)?;
/// assert_eq!(segments.merged().map(|content| content.len()), Some(3));
/// # Ok::<(), taskwire::client::SegmentError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Segments {
    limits: SegmentLimits,
    task: Option<Box<str>>,
    /// Blocks by number. As text, which takes a fraction of the room.
    blocks: BTreeMap<u64, Payload>,
    /// How many segments, from the first on, are there without a gap.
    dense: u64,
    /// Bytes of everything kept.
    bytes: usize,
    complete: bool,
    error: bool,
    /// The whole result, if it came as such.
    content: Option<Payload>,
    structured: Option<Payload>,
}

impl Segments {
    /// Nothing yet, and room for as much as [`SegmentLimits::DEFAULT`] says.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Nothing yet, and room for so much.
    #[must_use]
    pub fn with_limits(limits: SegmentLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Takes the `result` of a response: the first one to a call, whichever of its forms it has, a further one on the same
    /// stream, or one to `tasks/result`. Returns the segments that were not there before, in order. A number that came before is
    /// ignored, whatever comes with it now.
    ///
    /// A result in standard form (`content`) is the whole: nothing is missing then, and [`merged`](Self::merged) gives it.
    ///
    /// # Errors
    /// When it is no such result, belongs to another task, or there is no room for it. Nothing has changed then.
    pub fn take(&mut self, result: &Value) -> Result<Vec<Segment>, SegmentError> {
        let result = result.as_object().ok_or(SegmentError::Shape("it is not an object"))?;
        let task = self.task_of(result)?;
        let is_complete = flag(result, "isComplete", "`isComplete` must be true or false")?;
        let is_error = flag(result, "isError", "`isError` must be true or false")?;
        let parts = list(result, "partial-content", "`partial-content` must be a list")?;
        // Beside segments, `content` is ignored.
        let content = list(result, "content", "`content` must be a list")?.filter(|_| parts.is_none());
        if parts.is_none() && content.is_none() && !result.contains_key("task") {
            return Err(SegmentError::Shape("it has neither `task` nor `partial-content` nor `content`"));
        }
        let mut fresh = BTreeMap::new();
        for (index, segment) in parts.unwrap_or_default().iter().enumerate() {
            let (seq_nr, block) = parse_segment(index, segment)?;
            if let (false, Entry::Vacant(slot)) = (self.blocks.contains_key(&seq_nr), fresh.entry(seq_nr)) {
                let text = Payload::from(Value::Object(block.clone()));
                slot.insert((Value::Object(block), text));
            }
        }
        let content = content.map(|content| Payload::from(Value::Array(content.to_vec())));
        let structured = result.get("structuredContent").map(|value| Payload::from(value.clone()));
        let bytes = self.bytes_with(fresh.values().map(|(_, text)| text), content.as_ref(), structured.as_ref())?;
        if !fresh.is_empty() && self.blocks.len() + fresh.len() > self.limits.count {
            return Err(SegmentError::Full { what: "segments", max: self.limits.count });
        }

        // From here on nothing can fail.
        self.bytes = bytes;
        self.task = task;
        self.error |= is_error.unwrap_or(false);
        // A result in standard form need not say that it is complete: there is no other.
        self.complete |= is_complete.unwrap_or(content.is_some());
        self.content = content.or_else(|| self.content.take());
        self.structured = structured.or_else(|| self.structured.take());
        let mut seen = Vec::with_capacity(fresh.len());
        for (seq_nr, (block, text)) in fresh {
            self.blocks.insert(seq_nr, text);
            seen.push(Segment { seq_nr, block });
        }
        while self.blocks.contains_key(&(self.dense + 1)) {
            self.dense += 1;
        }
        Ok(seen)
    }

    /// The task that makes the result, if any response has named it.
    #[must_use]
    pub fn task_id(&self) -> Option<&str> {
        self.task.as_deref()
    }

    /// How many segments are there.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether no segment has come yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The numbers of the segments that have come, in order.
    pub fn received(&self) -> impl Iterator<Item = u64> {
        self.blocks.keys().copied()
    }

    /// The numbers that are missing before the highest one, as ranges in order.
    #[must_use]
    pub fn gaps(&self) -> Vec<RangeInclusive<u64>> {
        if self.content.is_some() {
            return Vec::new();
        }
        let (mut gaps, mut next) = (Vec::new(), self.dense + 1);
        for &seq_nr in self.blocks.range(next..).map(|(seq_nr, _)| seq_nr) {
            if seq_nr > next {
                gaps.push(next..=seq_nr - 1);
            }
            next = seq_nr.saturating_add(1);
        }
        gaps
    }

    /// The `lastSeqNr` to ask `tasks/result` with, so that everything that is missing comes: all segments up to this one are
    /// there. None if not even the first is: the proposal allows no 0, so only the whole result can be asked for.
    #[must_use]
    pub fn resume_from(&self) -> Option<u64> {
        (self.dense > 0).then_some(self.dense)
    }

    /// Whether a response said that it was the last.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Whether a response said that the task failed, or was cancelled.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.error
    }

    /// The `structuredContent` of the result, if it has come.
    #[must_use]
    pub fn structured(&self) -> Option<Value> {
        self.structured.as_ref().map(value)
    }

    /// The `content` of the result: all segments in order, without their numbers. None while it is not complete or something
    /// is missing.
    #[must_use]
    pub fn merged(&self) -> Option<Vec<Value>> {
        if !self.complete || !self.gaps().is_empty() {
            return None;
        }
        match &self.content {
            Some(whole) => Some(whole.read().expect("it was a list when it came")),
            None => Some(self.blocks.values().map(value).collect()),
        }
    }

    /// The task that the result belongs to, if known by now.
    fn task_of(&self, result: &Map<String, Value>) -> Result<Option<Box<str>>, SegmentError> {
        let mut known = self.task.clone();
        let related = result.get("_meta").and_then(|meta| meta.get(RELATED));
        for named in [result.get("task"), related].into_iter().flatten() {
            let id = named.get("taskId").and_then(Value::as_str).ok_or(SegmentError::Shape("it names a task without a `taskId`"))?;
            match &known {
                Some(expected) if **expected != *id => {
                    return Err(SegmentError::OtherTask { expected: shortened(expected), found: shortened(id) });
                }
                Some(_) => {}
                None => known = Some(id.into()),
            }
        }
        Ok(known)
    }

    /// Bytes of everything kept, with what is new.
    fn bytes_with<'a>(
        &self,
        blocks: impl Iterator<Item = &'a Payload>,
        content: Option<&Payload>,
        structured: Option<&Payload>,
    ) -> Result<usize, SegmentError> {
        let size = |payload: &Payload| payload.as_str().len();
        // What comes again replaces what was there.
        let replaced = |new: Option<&Payload>, old: &Option<Payload>| new.and(old.as_ref()).map_or(0, size);
        let gone = replaced(content, &self.content) + replaced(structured, &self.structured);
        let added = blocks.map(size).sum::<usize>() + content.map_or(0, size) + structured.map_or(0, size);
        let bytes = self.bytes - gone + added;
        if added > 0 && bytes > self.limits.bytes {
            return Err(SegmentError::Full { what: "bytes", max: self.limits.bytes });
        }
        Ok(bytes)
    }
}

/// A member that is true, false or absent.
fn flag(result: &Map<String, Value>, key: &str, otherwise: &'static str) -> Result<Option<bool>, SegmentError> {
    result.get(key).map(|value| value.as_bool().ok_or(SegmentError::Shape(otherwise))).transpose()
}

/// A member that is a list or absent.
fn list<'a>(result: &'a Map<String, Value>, key: &str, otherwise: &'static str) -> Result<Option<&'a [Value]>, SegmentError> {
    result.get(key).map(|value| value.as_array().map(Vec::as_slice).ok_or(SegmentError::Shape(otherwise))).transpose()
}

/// The number of a segment, and its block without it.
fn parse_segment(index: usize, segment: &Value) -> Result<(u64, Map<String, Value>), SegmentError> {
    let mut block = segment.as_object().ok_or(SegmentError::Shape("each of `partial-content` must be an object"))?.clone();
    let number = block.remove("seqNr");
    match number.as_ref().and_then(Value::as_u64) {
        Some(seq_nr @ 1..) => Ok((seq_nr, block)),
        _ => {
            let found = number.map_or_else(|| "nothing".to_owned(), |number| shortened(&number.to_string()));
            Err(SegmentError::Number { index, found })
        }
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

fn value(payload: &Payload) -> Value {
    payload.read().expect("it was JSON when it came")
}

#[cfg(test)]
mod tests;
