//! Server-sent events: bytes in, events out, whatever pieces the bytes come in.

use memchr::memchr2;

/// One event of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SseEvent {
    /// Its event id, which a client sends back in `Last-Event-ID`.
    pub id: Option<Box<str>>,
    /// How long to wait before reconnecting, in milliseconds.
    pub retry_ms: Option<u64>,
    /// Its data; empty if there is nothing but an id or a wait.
    pub data: Vec<u8>,
}

/// An event that is larger than it may be. The stream cannot be read further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event has more than {max} bytes")]
pub struct SseTooLarge {
    /// How many it may have.
    pub max: usize,
}

/// Reads a stream of server-sent events.
///
/// ```
/// use taskwire_core::wire::SseReader;
///
/// let mut reader = SseReader::new(1024);
/// reader.feed(b": hello\nid: 7\ndata: {\"a\"");
/// assert_eq!(reader.next()?, None);
/// reader.feed(b":1}\n\n");
/// let event = reader.next()?.expect("it is whole");
/// assert_eq!((event.id.as_deref(), &*event.data), (Some("7"), &b"{\"a\":1}"[..]));
/// # Ok::<(), taskwire_core::wire::SseTooLarge>(())
/// ```
#[derive(Debug)]
pub struct SseReader {
    /// What came and is not read yet, from `start` on.
    buffer: Vec<u8>,
    start: usize,
    /// Up to this byte of the buffer there is no end of a line.
    scanned: usize,
    /// The last line ended with a carriage return: a line feed now belongs to it.
    after_return: bool,
    /// No byte was read yet: a byte order mark may come.
    fresh: bool,
    event: SseEvent,
    /// How many lines of data the event has, empty ones included.
    lines: usize,
    max: usize,
}

impl SseReader {
    /// A reader of events that have at most `max` bytes each.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self { buffer: Vec::new(), start: 0, scanned: 0, after_return: false, fresh: true, event: SseEvent::default(), lines: 0, max }
    }

    /// Takes the next bytes of the stream.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.start > 0 && (self.start == self.buffer.len() || self.start > 64 * 1024) {
            self.buffer.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next event, if all of it has come.
    ///
    /// # Errors
    /// When an event is too large.
    #[expect(clippy::should_implement_trait, reason = "an iterator would end where this only waits for more")]
    pub fn next(&mut self) -> Result<Option<SseEvent>, SseTooLarge> {
        loop {
            if self.fresh {
                const MARK: &[u8] = b"\xEF\xBB\xBF";
                let come = &self.buffer[self.start..];
                if come.len() < MARK.len() && MARK.starts_with(come) {
                    return Ok(None);
                }
                if come.starts_with(MARK) {
                    self.start += MARK.len();
                    self.scanned = self.start;
                }
                self.fresh = false;
            }
            if self.after_return && self.start < self.buffer.len() {
                self.after_return = false;
                if self.buffer[self.start] == b'\n' {
                    self.start += 1;
                    self.scanned = self.scanned.max(self.start);
                }
            }
            let Some(found) = memchr2(b'\n', b'\r', &self.buffer[self.scanned..]) else {
                self.scanned = self.buffer.len();
                return self.fits(self.buffer.len() - self.start).map(|()| None);
            };
            let end = self.scanned + found;
            let line = self.start..end;
            self.after_return = self.buffer[end] == b'\r';
            (self.start, self.scanned) = (end + 1, end + 1);
            if line.is_empty() {
                let event = std::mem::take(&mut self.event);
                let lines = std::mem::take(&mut self.lines);
                if lines > 0 || event.id.is_some() || event.retry_ms.is_some() {
                    return Ok(Some(event));
                }
                continue;
            }
            self.fits(line.len())?;
            self.line(line);
        }
    }

    fn fits(&self, more: usize) -> Result<(), SseTooLarge> {
        if self.event.data.len() + more > self.max { Err(SseTooLarge { max: self.max }) } else { Ok(()) }
    }

    fn line(&mut self, line: std::ops::Range<usize>) {
        let line = &self.buffer[line];
        let (field, value) = match memchr::memchr(b':', line) {
            Some(0) => return,
            Some(colon) => (&line[..colon], line[colon + 1..].strip_prefix(b" ").unwrap_or(&line[colon + 1..])),
            None => (line, &b""[..]),
        };
        match field {
            b"data" => {
                if self.lines > 0 {
                    self.event.data.push(b'\n');
                }
                self.lines += 1;
                self.event.data.extend_from_slice(value);
            }
            b"id" if !value.contains(&0) => self.event.id = std::str::from_utf8(value).ok().map(Into::into),
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                self.event.retry_ms = std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok());
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(pieces: &[&[u8]]) -> Vec<SseEvent> {
        let mut reader = SseReader::new(1 << 20);
        let mut events = Vec::new();
        for piece in pieces {
            reader.feed(piece);
            while let Some(event) = reader.next().expect("small") {
                events.push(event);
            }
        }
        events
    }

    fn data(text: &str) -> SseEvent {
        SseEvent { data: text.into(), ..SseEvent::default() }
    }

    #[test]
    fn reads_every_line_end_and_a_mark_at_the_start() {
        assert_eq!(all(&[b"\xEF\xBB\xBFdata: a\r\n\r\ndata: b\r\rdata: c\n\n"]), [data("a"), data("b"), data("c")]);
    }

    #[test]
    fn joins_lines_of_data_and_passes_over_comments_and_unknown_fields() {
        assert_eq!(all(&[b": keep-alive\n\nevent: message\ndata: a\ndata:b\ndata\nother: 1\n\n"]), [data("a\nb\n")]);
    }

    #[test]
    fn an_event_may_have_a_name_or_a_wait_and_nothing_else() {
        let primed = SseEvent { id: Some("1.a".into()), ..SseEvent::default() };
        let wait = SseEvent { retry_ms: Some(1500), ..SseEvent::default() };
        assert_eq!(all(&[b"id: 1.a\ndata:\n\nretry: 1500\n\nretry: x\n\nid: a\0b\n\n"]), [primed, wait]);
    }

    #[test]
    fn what_is_not_ended_is_no_event() {
        assert_eq!(all(&[b"data: a\n\ndata: b\n"]), [data("a")]);
    }

    #[test]
    fn an_event_that_is_too_large_is_refused_whatever_its_lines() {
        for text in ["data: 123456789\n\n", "data: 12345\ndata: 6789\n\n", "data: 123456789 and no end"] {
            let mut reader = SseReader::new(10);
            reader.feed(text.as_bytes());
            let refused = std::iter::from_fn(|| reader.next().transpose()).find_map(Result::err);
            assert_eq!(refused, Some(SseTooLarge { max: 10 }), "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_pieces_do_not_matter(
            events in proptest::collection::vec("[a-z:\r\n ]{0,12}", 0..6), cuts in proptest::collection::vec(0usize..100, 0..8),
        ) {
            let text = events.iter().map(|event| format!("data: {event}\n\n")).collect::<String>();
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut < bytes.len()).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts {
                pieces.push(&bytes[from..cut]);
                from = cut;
            }
            pieces.push(&bytes[from..]);
            prop_assert_eq!(all(&pieces), all(&[bytes]));
        }
    }
}
