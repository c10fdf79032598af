//! Content blocks that go into the log together, and how output is gathered into them before it is numbered.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{command::Reject, decide::check_limit};
use crate::{limits::Limits, payload::Payload};

/// The content of one chunk: the text of a JSON array, made once and only copied from then on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocks {
    count: u64,
    json: Arc<str>,
}

impl Blocks {
    /// These blocks, in this order.
    #[must_use]
    pub fn of(blocks: &[Payload]) -> Self {
        let mut draft = ChunkBuilder::default();
        for block in blocks {
            draft.put(block);
        }
        draft.close();
        draft.closed.pop().unwrap_or_else(|| Self { count: 0, json: "[]".into() })
    }

    /// Whether a block fits into a chunk at all.
    ///
    /// # Errors
    /// When it is larger than a chunk may be.
    pub fn check_block_size(block: &Payload, limits: &Limits) -> Result<(), Reject> {
        check_limit("the chunk is too large", (block.as_str().len() + "[]".len()) as u64, limits.chunk_bytes, "chunk_bytes")
    }

    /// As they were stored.
    #[must_use]
    pub fn from_stored(count: u64, json: &str) -> Self {
        Self { count, json: json.into() }
    }

    /// How many there are.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The text of the JSON array.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.json
    }

    /// Bytes of that text.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.json.len() as u64
    }
}

impl AsRef<[u8]> for Blocks {
    fn as_ref(&self) -> &[u8] {
        self.json.as_bytes()
    }
}

impl Serialize for Blocks {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_json::from_str::<&RawValue>(&self.json).map_err(serde::ser::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Blocks {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::<Payload>::deserialize(deserializer).map(|blocks| Self::of(&blocks))
    }
}

/// JSON writes a byte of text as at most this many.
pub const ESCAPE_MAX: usize = 6;
/// Bytes around the text in a chunk of one text block.
const FRAME: usize = r#"[{"type":"text","text":""}]"#.len();

/// Capacity that is kept for the next output.
const KEPT_BYTES: usize = 4 * 1024;

/// Output that is not in the log yet, gathered into chunks: adjacent text becomes one block, and a chunk is closed when
/// it is large enough.
#[derive(Debug, Default)]
pub struct ChunkBuilder {
    closed: Vec<Blocks>,
    closed_bytes: usize,
    /// The array that is being written, without its end.
    open: Vec<u8>,
    open_count: u64,
    /// Text that is not yet part of it: more may follow.
    text: String,
}

impl ChunkBuilder {
    /// Adds text, however long. A chunk that reaches `enough` bytes is closed.
    pub fn push_text(&mut self, mut text: &str, enough: usize, limits: &Limits) {
        let max = text_bytes_max(limits.chunk_bytes);
        while !text.is_empty() {
            if self.text.len() + self.open.len() + text.len() > max {
                self.close();
            }
            let (piece, rest) = text.split_at(text.floor_char_boundary(max.min(text.len())));
            self.text.push_str(piece);
            text = rest;
            self.close_at(enough);
        }
    }

    /// Adds a block.
    ///
    /// # Errors
    /// When it is larger than a chunk may be.
    pub fn push_block(&mut self, block: &Payload, enough: usize, limits: &Limits) -> Result<(), Reject> {
        Blocks::check_block_size(block, limits)?;
        let max = usize::try_from(limits.chunk_bytes).unwrap_or(usize::MAX);
        let size = block.as_str().len() + "[]".len();
        if self.open.len() + self.text.len() * ESCAPE_MAX + FRAME + size > max {
            self.close();
        }
        self.put(block);
        self.close_at(enough);
        Ok(())
    }

    /// Bytes that wait, more or less.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.closed_bytes + self.open.len() + self.text.len()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Whether there is a chunk to which nothing will be added.
    #[must_use]
    pub fn has_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Everything that waits, as chunks; nothing waits after it.
    pub fn take(&mut self) -> Vec<Blocks> {
        self.close();
        self.closed_bytes = 0;
        // A task may wait for long after it wrote much: do not keep that capacity.
        self.open.shrink_to(KEPT_BYTES);
        self.text.shrink_to(KEPT_BYTES);
        std::mem::take(&mut self.closed)
    }

    /// Puts back chunks that were taken and could not be used: they come first again.
    pub fn give_back(&mut self, mut chunks: Vec<Blocks>) {
        self.closed_bytes += chunks.iter().map(|blocks| blocks.json.len()).sum::<usize>();
        chunks.append(&mut self.closed);
        self.closed = chunks;
    }

    fn close_at(&mut self, enough: usize) {
        if self.open.len() + self.text.len() >= enough {
            self.close();
        }
    }

    fn close(&mut self) {
        self.end_text();
        if self.open_count > 0 {
            self.open.push(b']');
            let json = std::str::from_utf8(&self.open).expect("only JSON text was written");
            self.closed_bytes += json.len();
            self.closed.push(Blocks { count: self.open_count, json: json.into() });
            self.open.clear();
            self.open_count = 0;
        }
    }

    fn put(&mut self, block: &Payload) {
        self.end_text();
        self.next();
        self.open.extend_from_slice(block.as_str().as_bytes());
    }

    fn end_text(&mut self) {
        if !self.text.is_empty() {
            self.next();
            self.open.extend_from_slice(br#"{"type":"text","text":"#);
            serde_json::to_writer(&mut self.open, &self.text).expect("text can always be written");
            self.open.push(b'}');
            self.text.clear();
        }
    }

    fn next(&mut self) {
        self.open.push(if self.open_count == 0 { b'[' } else { b',' });
        self.open_count += 1;
    }
}

/// Bytes of text that fit into a chunk whatever they are.
fn text_bytes_max(chunk_bytes: u64) -> usize {
    let bytes = usize::try_from(chunk_bytes).unwrap_or(usize::MAX).saturating_sub(FRAME) / ESCAPE_MAX;
    // A character at least, so that the loop ends; if the limit is even smaller, the chunk is rejected later.
    bytes.max(char::MAX.len_utf8())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn limits(chunk_bytes: u64) -> Limits {
        Limits { chunk_bytes, ..Limits::DEFAULT }
    }

    fn read(chunks: &[Blocks]) -> Vec<Value> {
        chunks.iter().map(|blocks| serde_json::from_str(blocks.as_str()).expect("JSON")).collect()
    }

    #[test]
    fn adjacent_text_becomes_one_block_and_other_blocks_stay_apart() {
        let mut draft = ChunkBuilder::default();
        let image: Payload = json!({"type": "image", "data": "eA==", "mimeType": "image/png"}).into();
        draft.push_text("a", 1000, &Limits::DEFAULT);
        draft.push_text("\"b\n", 1000, &Limits::DEFAULT);
        draft.push_block(&image, 1000, &Limits::DEFAULT).expect("it fits");
        draft.push_block(&image, 1000, &Limits::DEFAULT).expect("it fits");
        draft.push_text("c", 1000, &Limits::DEFAULT);
        assert!(!draft.has_closed());
        let chunks = draft.take();
        assert_eq!(
            read(&chunks),
            [json!([
                {"type": "text", "text": "a\"b\n"}, image.read::<Value>().expect("JSON"), image.read::<Value>().expect("JSON"),
                {"type": "text", "text": "c"}
            ])]
        );
        assert_eq!(chunks[0].count(), 4);
        assert!(draft.is_empty() && draft.take().is_empty());
    }

    #[test]
    fn a_chunk_is_closed_when_it_is_large_enough() {
        let mut draft = ChunkBuilder::default();
        for _ in 0..5 {
            draft.push_text("xxxx", 8, &Limits::DEFAULT);
        }
        assert!(draft.has_closed());
        assert_eq!(
            read(&draft.take()),
            [
                json!([{"type": "text", "text": "xxxxxxxx"}]),
                json!([{"type": "text", "text": "xxxxxxxx"}]),
                json!([{"type": "text", "text": "xxxx"}])
            ]
        );
    }

    #[test]
    fn a_block_that_is_too_large_is_refused_and_changes_nothing() {
        let mut draft = ChunkBuilder::default();
        draft.push_text("a", 1000, &limits(64));
        let refused = draft.push_block(&json!("x".repeat(61)).into(), 1000, &limits(64));
        assert!(matches!(refused, Err(Reject::Limit { key: "chunk_bytes", max: 64, .. })));
        draft.push_block(&json!("x".repeat(60)).into(), 1000, &limits(64)).expect("one that just fits is taken");
        assert_eq!(read(&draft.take()).len(), 2);
    }

    #[test]
    fn what_is_given_back_comes_first() {
        let mut draft = ChunkBuilder::default();
        draft.push_text("a", 1, &Limits::DEFAULT);
        let taken = draft.take();
        draft.push_text("b", 1, &Limits::DEFAULT);
        draft.give_back(taken);
        assert_eq!(read(&draft.take()), [json!([{"type": "text", "text": "a"}]), json!([{"type": "text", "text": "b"}])]);
        assert_eq!(draft.bytes(), 0);
    }

    proptest! {
        #[test]
        fn no_byte_of_text_is_lost_and_no_chunk_is_too_large(
            texts in proptest::collection::vec("\\PC{0,80}|[\u{0}-\u{1f}]{0,80}", 0..20), enough in 1usize..200, chunk_bytes in 64u64..400,
        ) {
            let (mut draft, limits) = (ChunkBuilder::default(), limits(chunk_bytes));
            for text in &texts {
                draft.push_text(text, enough, &limits);
            }
            let chunks = draft.take();
            prop_assert!(chunks.iter().all(|chunk| chunk.bytes() <= chunk_bytes && chunk.count() == 1));
            let joined: String =
                read(&chunks).iter().flat_map(|chunk| chunk.as_array().expect("an array").clone()).map(|block| block["text"].as_str().expect("text").to_owned()).collect();
            prop_assert_eq!(joined, texts.concat());
        }
    }
}
