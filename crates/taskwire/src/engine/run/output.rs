//! How a run's output gets into the log: taken by [`push`](Run::push), gathered, and sent by whoever holds `send_lock`.

use std::{
    borrow::Cow,
    hash::{DefaultHasher, Hasher},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};
use taskwire_core::{
    Payload, Seq, TaskId,
    task::{Authority, Blocks, Command, Outcome, Reject},
};

use super::Run;
use crate::{
    engine::{
        Error,
        exchange::Phase,
        large_block,
        output_buffer::{OutputBatch, Piece, PushResult, chunks_of},
    },
    store::{Cursor, LogItem},
};

/// Bytes of output that are read back at one time.
const READ_BACK_BYTES: usize = 1024 * 1024;

/// What content says, however it is divided into blocks: how many bytes, and their hash.
#[derive(Debug, Clone, Default)]
struct ContentDigest {
    bytes: u64,
    hash: DefaultHasher,
}

impl ContentDigest {
    /// A list of blocks.
    fn add_blocks(&mut self, json: &str) {
        for block in serde_json::from_str::<Vec<&RawValue>>(json).unwrap_or_default() {
            self.add_block(block.get());
        }
    }

    fn add_block(&mut self, json: &str) {
        #[derive(Deserialize)]
        struct Text<'a> {
            #[serde(borrow)]
            r#type: Cow<'a, str>,
            #[serde(borrow)]
            text: Cow<'a, str>,
        }
        match serde_json::from_str::<Text<'_>>(json) {
            Ok(Text { r#type, text }) if r#type == "text" => self.add_bytes(text.as_bytes()),
            _ => self.add_bytes(json.as_bytes()),
        }
    }

    fn add_bytes(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.hash.write(bytes);
    }
}

impl PartialEq for ContentDigest {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes && self.hash.finish() == other.hash.finish()
    }
}

/// Text that is written at once; longer text is written by parts.
const TEXT_BYTES_MAX: usize = 32 * 1024;

impl Run {
    /// Writes output. It is in the log a little later, together with what is written about the same time; where the tool
    /// is faster than the store, or than it may be, this waits.
    ///
    /// # Errors
    /// When a limit is reached, the work must stop, or nothing can be stored.
    pub async fn write(self: &Arc<Self>, piece: Piece<'_>) -> Result<(), Error> {
        let mut text = match piece {
            Piece::Text("") => return self.check_not_stopped(),
            Piece::Text(text) => text,
            Piece::Block(block) => {
                let limits = self.engine.limits();
                let Err(too_large) = Blocks::check_block_size(block, limits) else { return self.push(&[piece], None).await };
                let block: Value = block.read().map_err(|_| too_large)?;
                let parts: Vec<Payload> = large_block::split(self.id, &block, limits)?.into_iter().map(Payload::from).collect();
                let pieces: Vec<Piece<'_>> = parts.iter().map(Piece::Block).collect();
                return self.push(&pieces, None).await;
            }
        };
        // Long text goes in by parts, so that it waits for room like any other.
        let most = self.engine.0.config.coalesce.bytes.max(TEXT_BYTES_MAX);
        loop {
            let (part, rest) = text.split_at(text.floor_char_boundary(most));
            self.push(&[Piece::Text(part)], None).await?;
            if rest.is_empty() {
                return Ok(());
            }
            text = rest;
        }
    }

    /// Writes pieces that belong together, and notes where the work is with them: whatever of the output is durable, the
    /// mark of it is too, in the same commit. The next attempt finds the last one as its checkpoint.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) async fn write_with_checkpoint(self: &Arc<Self>, pieces: &[Piece<'_>], checkpoint: &Payload) -> Result<(), Error> {
        for piece in pieces {
            if let Piece::Block(block) = piece {
                Blocks::check_block_size(block, self.engine.limits())?;
            }
        }
        self.push(pieces, Some(checkpoint)).await
    }

    async fn push(self: &Arc<Self>, pieces: &[Piece<'_>], checkpoint: Option<&Payload>) -> Result<(), Error> {
        loop {
            self.check_not_stopped()?;
            let room = self.output_buffer.has_room.notified();
            let pushed = {
                let mut pending = self.output_buffer.lock();
                let pushed =
                    pending.push(pieces, checkpoint, self.engine.0.clock.now(), self.engine.0.config.coalesce, self.engine.limits())?;
                if pending.has_enough() {
                    self.output_buffer.ready_to_send.notify_one();
                }
                pushed
            };
            match pushed {
                PushResult::Accepted { must_send: send } => {
                    if send {
                        self.engine.0.runtime.spawn(self.clone().send_output());
                    }
                    if pieces.is_empty() {
                        return Ok(());
                    }
                    if !self.has_output.is_on() {
                        self.has_output.turn_on();
                    }
                    return self.promote_now().await;
                }
                PushResult::Full if matches!(self.promote().await?, Phase::Task(_)) => tokio::select! {
                    () = room => {}
                    () = self.stopped() => {}
                },
                PushResult::Full => return Err(Reject::Ended.into()),
                PushResult::TooFast(wait) => self.sleep_unless_stopped(wait).await,
            }
        }
    }

    /// Makes work whose caller wants to see its output a task, now that there is some.
    async fn promote_now(self: &Arc<Self>) -> Result<(), Error> {
        if !self.promote_on_output.load(Ordering::Relaxed) || !matches!(self.phase(), Phase::Loose) {
            return Ok(());
        }
        match self.promote().await {
            // Where there is no room for another task, its caller waits on for the result.
            Err(Error::Rejected(Reject::Limit { .. })) => {
                self.promote_on_output.store(false, Ordering::Relaxed);
                Ok(())
            }
            promoted => promoted.map(drop),
        }
    }

    /// Waits for `span`, or until the work must stop.
    async fn sleep_unless_stopped(&self, span: Duration) {
        tokio::select! {
            () = self.engine.0.clock.sleep(span) => {}
            () = self.stopped() => {}
        }
    }

    /// Makes the work a task as soon as it has written something: its caller wants to see it.
    pub fn promote_on_output(&self) {
        self.promote_on_output.store(true, Ordering::Relaxed);
    }

    /// Waits until there is output.
    pub(crate) async fn wait_for_output(&self) {
        self.has_output.wait().await;
    }

    /// Sees to it that what waits is sent.
    pub(super) fn ensure_sending(self: &Arc<Self>) {
        if self.output_buffer.lock().begin_sending() {
            self.engine.0.runtime.spawn(self.clone().send_output());
        }
    }

    /// Sends what is written, in good time, until nothing is left.
    async fn send_output(self: Arc<Self>) {
        loop {
            loop {
                let wait = self.output_buffer.lock().wait_for_more(self.engine.0.clock.now(), self.engine.0.config.coalesce.window);
                let Some(patience) = wait else { break };
                tokio::select! {
                    () = self.engine.0.clock.sleep(patience) => {}
                    () = self.output_buffer.ready_to_send.notified() => {}
                }
            }
            // A refusal is told to whoever writes next.
            let _ = self.flush_now().await;
            let mut pending = self.output_buffer.lock();
            if pending.is_empty() {
                pending.sending = false;
                return;
            }
        }
    }

    /// Waits until all that was written is in the log. Work that is not a task yet has none: there is nothing to wait for.
    ///
    /// # Errors
    /// When a limit is reached, the work must stop, or nothing can be stored.
    pub async fn flush(self: &Arc<Self>) -> Result<(), Error> {
        // On its own, so that nothing is lost when the wait is given up.
        let run = self.clone();
        let flushed = self.engine.0.runtime.spawn(async move { run.flush_now().await });
        flushed.await.map_err(|_| self.engine.unavailable())?.inspect_err(|_| self.output_buffer.lock().mark_error_reported())
    }

    async fn flush_now(&self) -> Result<(), Error> {
        let _sending = self.send_lock.lock().await;
        let id = match self.phase() {
            Phase::Task(id) => id,
            Phase::Loose => return Ok(()),
            Phase::Done(_) => return Err(Reject::Ended.into()),
        };
        let taken = self.take_output()?;
        self.append(id, taken).await
    }

    /// Writes what was taken. Where it is refused, nothing more is taken.
    async fn append(&self, id: TaskId, taken: OutputBatch) -> Result<(), Error> {
        let command = match taken {
            OutputBatch { chunks, checkpoint: None } if chunks.is_empty() => return Ok(()),
            OutputBatch { chunks, checkpoint: None } => Command::Append { chunks },
            OutputBatch { chunks, checkpoint: Some(checkpoint) } => Command::Save { chunks, checkpoint },
        };
        let appended = self.engine.submit(id, Authority::Attempt(self.attempt), command).await;
        appended.map(drop).inspect_err(|error| {
            self.output_buffer.lock().fail(error.clone());
            self.output_buffer.has_room.notify_waiters();
        })
    }

    /// What is written and not in the log. Only who holds `send_lock` may take it, so that it stays in order.
    pub(super) fn take_output(&self) -> Result<OutputBatch, Error> {
        let taken = self.output_buffer.lock().take(self.engine.0.clock.now());
        self.output_buffer.has_room.notify_waiters();
        taken
    }

    /// Saves where the work is, and writes `blocks`, in one step: after a crash both are there or neither is. What was
    /// written before goes along.
    ///
    /// # Errors
    /// When a limit is reached, the work must stop, or nothing can be stored.
    pub async fn save(self: &Arc<Self>, blocks: &[Payload], checkpoint: Payload) -> Result<(), Error> {
        let own = chunks_of(blocks, self.engine.0.config.coalesce, self.engine.limits())?;
        loop {
            self.check_not_stopped()?;
            let wait = self.output_buffer.lock().charge(&own, self.engine.0.clock.now(), self.engine.limits());
            match wait {
                Some(wait) => self.sleep_unless_stopped(wait).await,
                None => break,
            }
        }
        let Phase::Task(id) = self.promote().await? else { return Err(Reject::Ended.into()) };
        let run = self.clone();
        let saved = self.engine.0.runtime.spawn(async move { run.save_now(id, own, checkpoint).await });
        saved.await.map_err(|_| self.engine.unavailable())?.inspect_err(|_| self.output_buffer.lock().mark_error_reported())
    }

    async fn save_now(self: &Arc<Self>, id: TaskId, own: Vec<Blocks>, checkpoint: Payload) -> Result<(), Error> {
        let _sending = self.send_lock.lock().await;
        let earlier = self.take_output()?;
        let chunks = earlier.chunks.iter().cloned().chain(own).collect();
        let saved = self.engine.submit(id, Authority::Attempt(self.attempt), Command::Save { chunks, checkpoint }).await;
        let Err(error) = saved else { return Ok(()) };
        let too_much = matches!(&error, Error::Rejected(reject) if reject.is_no_room_for_output());
        if too_much && !earlier.chunks.is_empty() {
            // What came before may fit without the rest; if it does not, the work learns that now.
            self.append(id, earlier).await?;
        } else {
            self.give_back(earlier);
        }
        Err(error)
    }

    /// The part of its result that work whose output is its result has not written: all of it, or nothing if it wrote the
    /// same. An error is not written where nothing else is. `pending` is written and not in the log yet.
    pub(super) fn unwritten_result(&self, id: TaskId, pending: &[Blocks], outcome: &Outcome) -> Vec<Blocks> {
        #[derive(Deserialize)]
        struct Content {
            content: Vec<Payload>,
        }
        let Outcome::Completed { result, is_error } = outcome else { return Vec::new() };
        let Ok(Content { mut content }) = result.read() else { return Vec::new() };
        let repeats = self.repeated_blocks.load(Ordering::Relaxed).min(content.len());
        if repeats > 0 {
            content.drain(..repeats);
            return self.chunks_of_result(&content);
        }
        let mut written = ContentDigest::default();
        if self.digest_log(id, &mut written).is_err() {
            return Vec::new();
        }
        pending.iter().for_each(|blocks| written.add_blocks(blocks.as_str()));
        let mut said = ContentDigest::default();
        content.iter().for_each(|block| said.add_block(block.as_str()));
        if said == written || (*is_error && written == ContentDigest::default()) {
            return Vec::new();
        }
        self.chunks_of_result(&content)
    }

    /// How work ended that never was a task, where its output is its result: with all that it wrote, and what it returned besides. A
    /// result that repeats the output has that already.
    pub(super) fn result_with_output(&self, outcome: Outcome) -> Outcome {
        let Outcome::Completed { result, is_error } = &outcome else { return outcome };
        let mut chunks = self.take_output().unwrap_or_default().chunks;
        if chunks.is_empty() || self.repeated_blocks.load(Ordering::Relaxed) > 0 {
            return outcome;
        }
        chunks.extend(self.unwritten_result(self.id, &chunks, &outcome));
        let Ok(mut members) = result.read::<Map<String, Value>>() else { return outcome };
        let blocks = chunks.iter().flat_map(|blocks| serde_json::from_str::<Vec<Value>>(blocks.as_str()).unwrap_or_default());
        members.insert("content".to_owned(), blocks.collect());
        Outcome::Completed { result: Value::Object(members).into(), is_error: *is_error }
    }

    fn chunks_of_result(&self, content: &[Payload]) -> Vec<Blocks> {
        let (coalesce, limits) = (self.engine.0.config.coalesce, self.engine.limits());
        // A block that no chunk has room for is a chunk by itself.
        chunks_of(content, coalesce, limits)
            .unwrap_or_else(|_| content.iter().map(|block| Blocks::of(std::slice::from_ref(block))).collect())
    }

    /// What is in the log.
    fn digest_log(&self, id: TaskId, written: &mut ContentDigest) -> Result<(), Error> {
        let mut from = Seq(0);
        loop {
            let cursor = Cursor::output(from, READ_BACK_BYTES);
            let Some(page) = self.engine.page(id, cursor)? else { return Ok(()) };
            let more = page.more;
            for chunk in page.items.into_iter().filter_map(LogItem::into_chunk) {
                written.add_blocks(chunk.blocks.as_str());
                from = chunk.seq.next();
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// Output that was taken and not written waits again.
    pub(super) fn give_back(self: &Arc<Self>, taken: OutputBatch) {
        self.output_buffer.lock().give_back(taken);
        self.ensure_sending();
    }
}
