//! The buffer of a run's output: it gathers many small writes into few chunks before they get their numbers.
//!
//! The first output, and any after a pause, is sent at once. Output that follows within the window waits for the end of the
//! window, unless there is enough for a chunk. The buffer has a bound: a tool that is faster than the store waits.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use taskwire_core::{
    Limits, Payload, Timestamp,
    task::{Blocks, ChunkBuilder, Progress, Reject},
};
use tokio::sync::Notify;

use super::Error;

/// How output is gathered into chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coalesce {
    /// How long output may wait for more, counted from the last chunk.
    pub window: Duration,
    /// How much of it is enough for a chunk.
    pub bytes: usize,
}

impl Default for Coalesce {
    fn default() -> Self {
        Self { window: Duration::from_millis(20), bytes: 16 * 1024 }
    }
}

/// A piece of output.
#[derive(Debug, Clone, Copy)]
pub enum Piece<'a> {
    /// Text; adjacent text may become one block.
    Text(&'a str),
    /// A content block as the wire will carry it.
    Block(&'a Payload),
}

impl Piece<'_> {
    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Block(block) => block.as_str().len(),
        }
    }
}

/// What a run has written and the log does not have yet.
#[derive(Debug, Default)]
pub(super) struct OutputBuffer {
    pending: Mutex<PendingOutput>,
    /// Wakes tools that wait for room.
    pub(super) has_room: Notify,
    /// Wakes the sender: there is enough for a chunk.
    pub(super) ready_to_send: Notify,
}

#[derive(Debug, Default)]
pub(super) struct PendingOutput {
    draft: ChunkBuilder,
    /// The checkpoint that all output up to here leads to.
    checkpoint: Option<Payload>,
    /// Whether the run is a task, so that there is a log.
    pub(super) is_task: bool,
    /// Whether a sender runs.
    pub(super) sending: bool,
    /// The status that was reported before there was a log.
    pub(super) status_report: Option<StatusReport>,
    /// Whether the tool waits for room: then the sender does not wait for more.
    tool_waits: bool,
    /// When output was last sent.
    last_sent: Option<Timestamp>,
    /// Why no more output is accepted.
    error: Option<Error>,
    /// Whether the tool got this error.
    error_reported: bool,
    bucket: Bucket,
}

/// Output that was taken to be sent.
#[derive(Debug, Clone, Default)]
pub(super) struct OutputBatch {
    pub(super) chunks: Vec<Blocks>,
    /// The checkpoint that the chunks lead to.
    pub(super) checkpoint: Option<Payload>,
}

/// A status message and progress.
pub(super) type StatusReport = (Option<Arc<str>>, Option<Progress>);

/// What became of pushed pieces.
#[derive(Debug)]
pub(super) enum PushResult {
    /// They wait to be sent; `must_send` says whether the caller must start the sender.
    Accepted { must_send: bool },
    /// There is no room yet.
    Full,
    /// The rate limit is reached: try again after this time.
    TooFast(Duration),
}

impl OutputBuffer {
    pub(super) fn for_task() -> Self {
        Self { pending: Mutex::new(PendingOutput { is_task: true, ..PendingOutput::default() }), ..Self::default() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, PendingOutput> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingOutput {
    /// Accepts pieces, all or none, and the checkpoint that they lead to.
    pub(super) fn push(
        &mut self,
        pieces: &[Piece<'_>],
        checkpoint: Option<&Payload>,
        now: Timestamp,
        coalesce: Coalesce,
        limits: &Limits,
    ) -> Result<PushResult, Error> {
        if let Some(refused) = &self.error {
            self.error_reported = true;
            return Err(refused.clone());
        }
        // As much as one chunk may have: enough for a burst while the store is busy, or until there is a log.
        let max = usize::try_from(limits.chunk_bytes).unwrap_or(usize::MAX);
        let bytes: usize = pieces.iter().map(Piece::bytes).sum();
        if !self.draft.is_empty() && self.draft.bytes() + bytes > max {
            self.tool_waits = true;
            return Ok(PushResult::Full);
        }
        if let Some(wait) = self.bucket.take(now, bytes as u64, limits.output_bytes_per_second) {
            return Ok(PushResult::TooFast(wait));
        }
        for piece in pieces {
            match piece {
                Piece::Text(text) => self.draft.push_text(text, coalesce.bytes, limits),
                Piece::Block(block) => self.draft.push_block(block, coalesce.bytes, limits)?,
            }
        }
        self.checkpoint = checkpoint.cloned().or(self.checkpoint.take());
        Ok(PushResult::Accepted { must_send: self.begin_sending() })
    }

    /// Whether the caller must start the sender; from then on the sender counts as running.
    pub(super) fn begin_sending(&mut self) -> bool {
        let send = self.is_task && !self.sending && !self.draft.is_empty();
        self.sending |= send;
        send
    }

    /// How long the output may still wait for more. It does not wait for a clock that was set back.
    pub(super) fn wait_for_more(&self, now: Timestamp, window: Duration) -> Option<Duration> {
        let last = self.last_sent.filter(|last| *last <= now && !self.has_enough())?;
        window.checked_sub(now.since(last)).filter(|left| !left.is_zero())
    }

    /// Keeps a status if there is no log yet, and returns whether it did. What the new one leaves out stays as it was.
    pub(super) fn buffer_status(&mut self, message: &Option<Arc<str>>, progress: Option<Progress>) -> bool {
        if !self.is_task {
            let (old_message, old_progress) = self.status_report.take().unwrap_or_default();
            self.status_report = Some((message.clone().or(old_message), progress.or(old_progress)));
        }
        !self.is_task
    }

    /// Puts back a status that could not be stored; a newer one stays.
    pub(super) fn restore_status(&mut self, message: Option<Arc<str>>, progress: Option<Progress>) {
        let (new_message, new_progress) = self.status_report.take().unwrap_or_default();
        self.status_report = Some((new_message.or(message), new_progress.or(progress)));
    }

    /// There is a log now. Returns the status that is not in it yet.
    pub(super) fn become_task(&mut self) -> Option<StatusReport> {
        self.is_task = true;
        self.status_report.take()
    }

    pub(super) fn has_enough(&self) -> bool {
        self.tool_waits || self.draft.has_closed()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.draft.is_empty()
    }

    /// Takes all output that waits, with its checkpoint. Fails only with an error that the tool did not get.
    pub(super) fn take(&mut self, now: Timestamp) -> Result<OutputBatch, Error> {
        if let Some(refused) = self.error.as_ref().filter(|_| !self.error_reported) {
            return Err(refused.clone());
        }
        self.tool_waits = false;
        if !self.draft.is_empty() {
            self.last_sent = Some(now);
        }
        Ok(OutputBatch { chunks: self.draft.take(), checkpoint: self.checkpoint.take() })
    }

    /// Puts back a batch that was not written.
    pub(super) fn give_back(&mut self, taken: OutputBatch) {
        self.draft.give_back(taken.chunks);
        self.checkpoint = self.checkpoint.take().or(taken.checkpoint);
    }

    /// Accepts no more output and drops what waits.
    pub(super) fn fail(&mut self, error: Error) {
        self.draft = ChunkBuilder::default();
        self.checkpoint = None;
        self.error.get_or_insert(error);
    }

    /// The tool got the error, if there is one, and decides what to do about it.
    pub(super) fn mark_error_reported(&mut self) {
        self.error_reported = self.error.is_some();
    }

    /// The error by which output was lost, if the tool did not get it. That the task has ended is no such error.
    pub(super) fn unreported_error(&self) -> Option<Error> {
        let over = |error: &Error| matches!(error, Error::Rejected(Reject::Ended | Reject::Stale(_) | Reject::NotFound));
        self.error.clone().filter(|error| !self.error_reported && !over(error))
    }

    /// Counts output that does not pass through the buffer; returns how long to wait first.
    pub(super) fn charge(&mut self, blocks: &[Blocks], now: Timestamp, limits: &Limits) -> Option<Duration> {
        self.bucket.take(now, blocks.iter().map(Blocks::bytes).sum(), limits.output_bytes_per_second)
    }
}

/// The chunks of blocks that belong together.
pub(super) fn chunks_of(blocks: &[Payload], coalesce: Coalesce, limits: &Limits) -> Result<Vec<Blocks>, Reject> {
    let mut draft = ChunkBuilder::default();
    for block in blocks {
        draft.push_block(block, coalesce.bytes, limits)?;
    }
    Ok(draft.take())
}

/// A leaky bucket: it empties at the allowed rate, and holds what may be written in one second.
#[derive(Debug, Default)]
struct Bucket {
    /// In thousandths of a byte, so that nothing is rounded away in a millisecond.
    level: u64,
    at: Timestamp,
}

impl Bucket {
    /// Puts `bytes` in, or says how long to wait before that.
    fn take(&mut self, now: Timestamp, bytes: u64, rate: u64) -> Option<Duration> {
        let rate = rate.max(1);
        let passed = u64::try_from(now.since(self.at).as_millis()).unwrap_or(u64::MAX);
        self.level = self.level.saturating_sub(rate.saturating_mul(passed));
        self.at = now;
        let over = self.level.saturating_sub(rate.saturating_mul(1000));
        if over > 0 {
            return Some(Duration::from_millis(over.div_ceil(rate)));
        }
        self.level = self.level.saturating_add(bytes.saturating_mul(1000));
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(1_000_000 + ms)
    }

    #[test]
    fn a_bucket_lets_through_a_second_at_once_and_then_the_rate() {
        let mut bucket = Bucket::default();
        for _ in 0..11 {
            assert_eq!(bucket.take(at(0), 10, 100), None, "up to a second's worth, and what crosses it");
        }
        assert_eq!(bucket.take(at(0), 10, 100), Some(Duration::from_millis(100)));
        assert_eq!(bucket.take(at(99), 10, 100), Some(Duration::from_millis(1)), "asking again costs nothing");
        assert_eq!(bucket.take(at(100), 10, 100), None);
        let through = (101..10_101).filter(|ms| bucket.take(at(*ms), 1, 100).is_none()).count();
        assert!((990..=1_010).contains(&through), "{through} bytes in ten seconds at 100 a second");
    }

    #[test]
    fn the_first_output_is_due_at_once_and_the_next_after_the_window() {
        let (window, limits) = (Duration::from_millis(20), Limits::DEFAULT);
        let coalesce = Coalesce { window, bytes: 100 };
        let mut pending = PendingOutput { is_task: true, ..PendingOutput::default() };
        let pushed = pending.push(&[Piece::Text("a")], None, at(0), coalesce, &limits).expect("taken");
        assert!(matches!(pushed, PushResult::Accepted { must_send: true }));
        assert_eq!(pending.wait_for_more(at(0), window), None, "the first goes out at once");
        assert_eq!(pending.take(at(0)).expect("taken").chunks.len(), 1);
        pending.push(&[Piece::Text("b")], None, at(5), coalesce, &limits).expect("taken");
        assert_eq!(pending.wait_for_more(at(5), window), Some(Duration::from_millis(15)));
        assert_eq!(pending.wait_for_more(at(-3_600_000), window), None, "nor does it wait for a clock that was set back");
        assert_eq!(pending.wait_for_more(at(20), window), None);
        pending.push(&[Piece::Text(&"c".repeat(100))], None, at(6), coalesce, &limits).expect("taken");
        assert_eq!(pending.wait_for_more(at(6), window), None, "enough for a chunk does not wait");
        pending.take(at(6)).expect("taken");
        pending.push(&[Piece::Text("d")], None, at(1_000), coalesce, &limits).expect("taken");
        assert_eq!(pending.wait_for_more(at(1_000), window), None, "after a pause it goes out at once again");
    }

    #[test]
    fn what_waits_has_a_bound_and_a_refusal_lasts() {
        let (coalesce, limits) = (Coalesce::default(), Limits::DEFAULT);
        let mut pending = PendingOutput { is_task: true, ..PendingOutput::default() };
        let text = "x".repeat(1_000);
        let taken = std::iter::repeat_with(|| pending.push(&[Piece::Text(&text)], None, at(0), coalesce, &limits).expect("no error"))
            .take_while(|pushed| matches!(pushed, PushResult::Accepted { .. }))
            .count();
        assert!((250..=262).contains(&taken), "{taken}");
        assert!(
            pending
                .push(&[Piece::Text(&"x".repeat(1 << 20))], None, at(0), coalesce, &limits)
                .is_ok_and(|pushed| matches!(pushed, PushResult::Full))
        );
        pending.fail(Reject::Ended.into());
        assert!(pending.is_empty());
        assert!(matches!(pending.push(&[Piece::Text("x")], None, at(0), coalesce, &limits), Err(Error::Rejected(Reject::Ended))));
        assert!(pending.take(at(0)).is_ok_and(|taken| taken.chunks.is_empty()), "what it knows of keeps it from nothing else");
        let mut pending = PendingOutput { is_task: true, ..PendingOutput::default() };
        pending.fail(Reject::Ended.into());
        assert!(matches!(pending.take(at(0)), Err(Error::Rejected(Reject::Ended))), "it is told once");
    }
}
