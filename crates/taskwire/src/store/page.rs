//! A page of a task's log: events and chunks after a cursor, in one order, as of one moment.

use taskwire_core::{Seq, Version};

use super::{Chunk, StoredEvent};

/// How far a reader has read a log, and how much it wants.
#[derive(Debug, Clone, Copy)]
pub struct Cursor {
    /// Events after this one.
    pub after: Version,
    /// Chunks from this one on, also those before `after`; none if absent.
    pub from: Option<Seq>,
    /// Bytes of chunks, but at least one chunk.
    pub max_bytes: usize,
    /// How many chunks, at least one.
    pub max_chunks: usize,
}

impl Cursor {
    /// Chunks alone, from this one on.
    #[must_use]
    pub fn output(from: Seq, max_bytes: usize) -> Self {
        Self { after: Version(u64::MAX), from: Some(from), max_bytes, max_chunks: usize::MAX }
    }
}

/// Events of one page.
pub(crate) const PAGE_EVENTS: usize = 64;

/// One item of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogItem {
    /// An event.
    Event(StoredEvent),
    /// A chunk of output.
    Chunk(Chunk),
}

impl LogItem {
    /// The version of the task that it made.
    #[must_use]
    pub fn version(&self) -> Version {
        match self {
            Self::Event(stored) => stored.version,
            Self::Chunk(chunk) => chunk.version,
        }
    }

    /// The event, if it is one.
    #[must_use]
    pub fn into_event(self) -> Option<StoredEvent> {
        if let Self::Event(logged) = self { Some(logged) } else { None }
    }

    /// The chunk, if it is one.
    #[must_use]
    pub fn into_chunk(self) -> Option<Chunk> {
        if let Self::Chunk(chunk) = self { Some(chunk) } else { None }
    }
}

/// What a log has after a cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Events and chunks, in the order of their versions.
    pub items: Vec<LogItem>,
    /// Every event up to this version is in this page or before it.
    pub upto: Version,
    /// Whether there is more.
    pub more: bool,
    /// The number that the next chunk will get.
    pub next_seq: Seq,
    /// Whether the task has ended.
    pub ended: bool,
}

/// What was read of a log, before it is put in order.
#[derive(Debug)]
pub(crate) struct UnmergedPage {
    pub(crate) events: Vec<StoredEvent>,
    /// Whether there are more.
    pub(crate) more_events: bool,
    pub(crate) chunks: Vec<Chunk>,
    /// Whether there are more.
    pub(crate) more_chunks: bool,
    /// The version of the task.
    pub(crate) version: Version,
    pub(crate) next_seq: Seq,
    pub(crate) ended: bool,
}

impl UnmergedPage {
    /// Puts it in order. Where one kind was cut short, the other ends there too.
    pub(crate) fn merge(self, after: Version) -> Page {
        let mut upto = self.version;
        if self.more_events {
            upto = self.events.last().map_or(after, |last| last.version);
        }
        if self.more_chunks {
            upto = self.chunks.last().map_or(after, |last| last.version).min(upto);
        }
        let mut items = Vec::with_capacity(self.events.len() + self.chunks.len());
        let mut chunks = self.chunks.into_iter().take_while(|chunk| chunk.version <= upto).peekable();
        for logged in self.events.into_iter().take_while(|logged| logged.version <= upto) {
            while let Some(chunk) = chunks.next_if(|chunk| chunk.version < logged.version) {
                items.push(LogItem::Chunk(chunk));
            }
            items.push(LogItem::Event(logged));
        }
        items.extend(chunks.map(LogItem::Chunk));
        let more = self.more_events || self.more_chunks;
        Page { items, upto: upto.max(after), more, next_seq: self.next_seq, ended: self.ended }
    }
}

#[cfg(test)]
mod tests {
    use taskwire_core::{
        Timestamp,
        task::{Blocks, Event},
    };

    use super::*;

    fn event(version: u64) -> StoredEvent {
        StoredEvent { version: Version(version), at: Timestamp::default(), event: Event::Expired }
    }

    fn chunk(version: u64) -> Chunk {
        Chunk { seq: Seq(version), version: Version(version), first_block: 1, blocks: Blocks::from_stored(1, "[1]") }
    }

    fn page(events: &[u64], more_events: bool, chunks: &[u64], more_chunks: bool, after: u64) -> (Vec<u64>, u64) {
        let parts = UnmergedPage {
            events: events.iter().copied().map(event).collect(),
            more_events,
            chunks: chunks.iter().copied().map(chunk).collect(),
            more_chunks,
            version: Version(10),
            next_seq: Seq(11),
            ended: false,
        };
        let page = parts.merge(Version(after));
        let version = |item: &LogItem| match item {
            LogItem::Event(logged) => logged.version.0,
            LogItem::Chunk(chunk) => chunk.version.0,
        };
        (page.items.iter().map(version).collect(), page.upto.0)
    }

    #[test]
    fn events_and_chunks_come_in_one_order_and_end_together() {
        assert_eq!(page(&[3, 6], false, &[4, 5, 7], false, 2), (vec![3, 4, 5, 6, 7], 10), "all there is");
        assert_eq!(page(&[3, 6], true, &[4, 5, 7], false, 2), (vec![3, 4, 5, 6], 6), "no chunk after the last event that was read");
        assert_eq!(page(&[3, 6], false, &[4, 5], true, 2), (vec![3, 4, 5], 5), "no event after the last chunk that was read");
        assert_eq!(page(&[8], false, &[1, 2], true, 7), (vec![1, 2], 7), "older chunks come first, and the place stays");
        assert_eq!(page(&[], false, &[], false, 7), (vec![], 10), "nothing is no reason to look there again");
        assert_eq!(page(&[], false, &[], false, 12), (vec![], 12), "a place never goes back");
    }
}
