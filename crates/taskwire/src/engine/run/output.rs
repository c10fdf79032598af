//! How a run's output gets into the log: `push` adds it to the buffer, and whoever holds `send_lock` sends it to the writer.

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
    task::{Blocks, Command, Outcome, Reject},
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

/// A digest of content that does not depend on how the content is divided into blocks.
#[derive(Debug, Clone, Default)]
struct ContentDigest {
    bytes: u64,
    hash: DefaultHasher,
}

impl ContentDigest {
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

/// Bytes of text that are pushed at once; longer text is pushed in parts.
const TEXT_BYTES_MAX: usize = 32 * 1024;

impl Run {
    /// Writes output. The log has it a little later, together with other output of about the same time. A tool that is faster
    /// than the store or than its limit waits here.
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
        // Long text goes in parts, so that it waits when the buffer is full.
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

    /// Writes pieces that belong together, and the checkpoint that they lead to. Both become durable in one commit, so the next
    /// attempt never finds output that its checkpoint does not know of.
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
                PushResult::Accepted { must_send } => {
                    if must_send {
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

    /// Promotes the run, now that there is output, if its caller wants to see that.
    async fn promote_now(self: &Arc<Self>) -> Result<(), Error> {
        if !self.promote_on_output.load(Ordering::Relaxed) || !matches!(self.phase(), Phase::Loose) {
            return Ok(());
        }
        match self.promote().await {
            // If a limit allows no further task, the caller goes on waiting for the result.
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

    /// Promotes the run as soon as it has written something: its caller wants to see that.
    pub fn promote_on_output(&self) {
        self.promote_on_output.store(true, Ordering::Relaxed);
    }

    /// Waits until there is output.
    pub(crate) async fn wait_for_output(&self) {
        self.has_output.wait().await;
    }

    /// Starts the sender, unless it runs or the buffer is empty.
    pub(super) fn ensure_sending(self: &Arc<Self>) {
        if self.output_buffer.lock().begin_sending() {
            self.engine.0.runtime.spawn(self.clone().send_output());
        }
    }

    /// The sender: sends buffered output when it is due, until the buffer is empty.
    async fn send_output(self: Arc<Self>) {
        loop {
            loop {
                let wait = self.output_buffer.lock().wait_for_more(self.engine.0.clock.now(), self.engine.0.config.coalesce.window);
                let Some(wait) = wait else { break };
                tokio::select! {
                    () = self.engine.0.clock.sleep(wait) => {}
                    () = self.output_buffer.ready_to_send.notified() => {}
                }
            }
            // The next write returns the error.
            let _ = self.flush_now().await;
            let mut pending = self.output_buffer.lock();
            if pending.is_empty() {
                pending.sending = false;
                return;
            }
        }
    }

    /// Waits until the log has all output. A loose run has no log: then this returns at once.
    ///
    /// # Errors
    /// When a limit is reached, the work must stop, or nothing can be stored.
    pub async fn flush(self: &Arc<Self>) -> Result<(), Error> {
        // Spawned, so that no output is lost if the caller stops waiting.
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

    /// Submits a batch of output. If the writer rejects it, the buffer accepts no more.
    async fn append(&self, id: TaskId, taken: OutputBatch) -> Result<(), Error> {
        let command = match taken {
            OutputBatch { chunks, checkpoint: None } if chunks.is_empty() => return Ok(()),
            OutputBatch { chunks, checkpoint: None } => Command::Append { chunks },
            OutputBatch { chunks, checkpoint: Some(checkpoint) } => Command::Save { chunks, checkpoint },
        };
        let appended = self.submit_to(id, command).await;
        appended.map(drop).inspect_err(|error| {
            self.output_buffer.lock().fail(error.clone());
            self.output_buffer.has_room.notify_waiters();
        })
    }

    /// Takes the buffered output. Only the holder of `send_lock` may do so: that keeps the output in order.
    pub(super) fn take_output(&self) -> Result<OutputBatch, Error> {
        let taken = self.output_buffer.lock().take(self.engine.0.clock.now());
        self.output_buffer.has_room.notify_waiters();
        taken
    }

    /// Saves a checkpoint and writes `blocks`, after what is buffered, in one commit: after a crash all of it is there or nothing.
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
        let saved = self.submit_to(id, Command::Save { chunks, checkpoint }).await;
        let Err(error) = saved else { return Ok(()) };
        let too_much = matches!(&error, Error::Rejected(reject) if reject.is_no_room_for_output());
        if too_much && !earlier.chunks.is_empty() {
            // The earlier output may fit without the rest; if it does not, the tool gets that error.
            self.append(id, earlier).await?;
        } else {
            self.give_back(earlier);
        }
        Err(error)
    }

    /// What must be added to an output that is the result: the blocks of the result that do not repeat it, or nothing if the run
    /// wrote the same. An error is not added to an empty output. `pending` is output that is not in the log yet.
    pub(super) async fn unwritten_result(&self, id: TaskId, pending: &[Blocks], outcome: &Outcome) -> Vec<Blocks> {
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
        if self.digest_log(id, &mut written).await.is_err() {
            return Vec::new();
        }
        pending.iter().for_each(|blocks| written.add_blocks(blocks.as_str()));
        let mut returned = ContentDigest::default();
        content.iter().for_each(|block| returned.add_block(block.as_str()));
        if returned == written || (*is_error && written == ContentDigest::default()) {
            return Vec::new();
        }
        self.chunks_of_result(&content)
    }

    /// The outcome of a loose run whose output is its result: all that it wrote, then what else it returned. A result that repeats the
    /// output stays as it is.
    pub(super) async fn result_with_output(&self, outcome: Outcome) -> Outcome {
        let Outcome::Completed { result, is_error } = &outcome else { return outcome };
        let mut chunks = self.take_output().unwrap_or_default().chunks;
        if chunks.is_empty() || self.repeated_blocks.load(Ordering::Relaxed) > 0 {
            return outcome;
        }
        let unwritten = self.unwritten_result(self.id, &chunks, &outcome).await;
        chunks.extend(unwritten);
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

    /// Adds the chunks in the log to `written`.
    async fn digest_log(&self, id: TaskId, written: &mut ContentDigest) -> Result<(), Error> {
        let mut from = Seq(0);
        loop {
            let cursor = Cursor::output(from, READ_BACK_BYTES);
            let Some(page) = self.engine.read_when_back(|| self.engine.page(id, cursor)).await? else { return Ok(()) };
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

    /// Puts back output that was taken and not written.
    pub(super) fn give_back(self: &Arc<Self>, taken: OutputBatch) {
        self.output_buffer.lock().give_back(taken);
        self.ensure_sending();
    }
}
