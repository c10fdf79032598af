//! Puts the chunks of one task's output in order for a client: it keeps those that came too early.

use std::{collections::BTreeMap, ops::Range};

use crate::payload::Payload;

/// The largest number that a chunk may have.
const SEQ_MAX: u64 = (1 << 53) - 1;

/// Chunks in the order of their numbers, each once, however they come.
///
/// ```
/// use taskwire_core::{Payload, wire::ReorderBuffer};
///
/// let chunk = |text: &str| Payload::from(serde_json::json!([{"type": "text", "text": text}]));
/// let mut chunks = ReorderBuffer::starting_at(0, 1024);
/// chunks.take(0, chunk("a"));
/// chunks.take(2, chunk("c"));
/// assert_eq!(chunks.pop().map(|(seq, _)| seq), Some(0));
/// assert_eq!((chunks.pop(), chunks.missing()), (None, Some(1..2)));
/// chunks.take(1, chunk("b"));
/// chunks.take(0, chunk("a"));
/// assert_eq!([chunks.pop(), chunks.pop(), chunks.pop()].map(|next| next.map(|(seq, _)| seq)), [Some(1), Some(2), None]);
/// ```
#[derive(Debug)]
pub struct ReorderBuffer {
    next: u64,
    waiting: BTreeMap<u64, Payload>,
    bytes: usize,
    max: usize,
    /// The first and the last chunk that came and was not kept, because the buffer was full.
    dropped: Option<(u64, u64)>,
}

impl ReorderBuffer {
    /// An empty buffer: chunk `next` is handed out first, and at most `max` bytes of later chunks are kept.
    #[must_use]
    pub fn starting_at(next: u64, max: usize) -> Self {
        Self { next, waiting: BTreeMap::new(), bytes: 0, max, dropped: None }
    }

    /// The number of the chunk that is handed out next.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Takes a chunk. One that was handed out, or is there already, is ignored.
    pub fn take(&mut self, seq: u64, content: Payload) {
        // Not every reader of JSON keeps a larger number exactly.
        if seq > SEQ_MAX || seq < self.next || self.waiting.contains_key(&seq) {
            return;
        }
        let size = content.as_str().len();
        // The next chunk is always taken: it leaves the buffer at once.
        if seq != self.next && self.bytes + size > self.max {
            self.dropped = Some(self.dropped.map_or((seq, seq), |(first, last)| (first.min(seq), last.max(seq))));
            return;
        }
        self.bytes += size;
        self.waiting.insert(seq, content);
    }

    /// The next chunk, if it is there.
    pub fn pop(&mut self) -> Option<(u64, Payload)> {
        let first = self.waiting.first_entry()?;
        if *first.key() != self.next {
            return None;
        }
        let (seq, content) = first.remove_entry();
        self.bytes -= content.as_str().len();
        self.next += 1;
        self.forget_dropped();
        Some((seq, content))
    }

    /// The numbers that are missing before a chunk that came.
    #[must_use]
    pub fn missing(&self) -> Option<Range<u64>> {
        let known = [self.waiting.first_key_value().map(|(seq, _)| *seq), self.dropped.map(|(first, _)| first.max(self.next) + 1)];
        let until = known.into_iter().flatten().min()?;
        (until > self.next).then_some(self.next..until)
    }

    /// Goes on with `seq`, and returns the numbers that it gives up, if any.
    pub fn skip_to(&mut self, seq: u64) -> Option<Range<u64>> {
        let seq = seq.min(SEQ_MAX);
        if seq <= self.next {
            return None;
        }
        let from = std::mem::replace(&mut self.next, seq);
        while let Some(first) = self.waiting.first_entry().filter(|first| *first.key() < seq) {
            self.bytes -= first.remove().as_str().len();
        }
        self.forget_dropped();
        Some(from..seq)
    }

    /// A chunk that was not kept is no longer missing once it was handed out or skipped.
    fn forget_dropped(&mut self) {
        if self.dropped.is_some_and(|(_, last)| last < self.next) {
            self.dropped = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(text: &str) -> Payload {
        Payload::from(serde_json::json!(text))
    }

    fn popped(chunks: &mut ReorderBuffer) -> Vec<u64> {
        std::iter::from_fn(|| chunks.pop()).map(|(seq, _)| seq).collect()
    }

    #[test]
    fn each_is_handed_out_once_and_in_order() {
        let mut chunks = ReorderBuffer::starting_at(3, 1024);
        for seq in [5, 2, 3, 3, 5, 4, 6] {
            chunks.take(seq, chunk("x"));
        }
        assert_eq!(popped(&mut chunks), [3, 4, 5, 6]);
        assert_eq!((chunks.next(), chunks.missing()), (7, None));
    }

    #[test]
    fn what_is_given_up_is_told_and_what_came_goes_on_behind_it() {
        let mut chunks = ReorderBuffer::starting_at(0, 1024);
        chunks.take(2, chunk("c"));
        chunks.take(4, chunk("e"));
        assert_eq!(chunks.missing(), Some(0..2));
        assert_eq!(chunks.skip_to(2), Some(0..2));
        assert_eq!(popped(&mut chunks), [2]);
        assert_eq!((chunks.skip_to(1), chunks.skip_to(5)), (None, Some(3..5)));
        assert_eq!(popped(&mut chunks), Vec::<u64>::new());
    }

    #[test]
    fn what_has_no_room_is_missing_and_the_next_one_always_has() {
        let mut chunks = ReorderBuffer::starting_at(0, 3);
        chunks.take(1, chunk("b"));
        chunks.take(2, chunk("far too long"));
        assert_eq!(chunks.missing(), Some(0..1));
        chunks.take(0, chunk("also far too long"));
        assert_eq!(popped(&mut chunks), [0, 1]);
        assert_eq!(chunks.missing(), Some(2..3));
        chunks.take(3, chunk("far too long"));
        chunks.take(2, chunk("far too long"));
        assert_eq!((popped(&mut chunks), chunks.missing()), (vec![2], Some(3..4)));
        chunks.take(3, chunk("far too long"));
        assert_eq!((popped(&mut chunks), chunks.missing()), (vec![3], None));
    }
}
