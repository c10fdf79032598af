//! The stream of one task: the response to a call that takes long, to `tasks/result`, or to a streamed call.
//!
//! It sends what the task's log has after a cursor. A stream that is resumed, even after a restart, does the same. `questions` asks what
//! the task asks; `hold_expiry` responds when the hold of a call expires.

mod hold_expiry;
mod questions;

use std::{sync::Arc, time::Duration};

use serde_json::json;
use taskwire_core::{
    Attempt, QuestionKey, SessionId, Version,
    task::{Event, Outcome, Task},
    wire::{RequestId, write_error},
};
use tokio::sync::mpsc;

use super::{
    event_id::{StreamCursor, StreamKind, TaskStreamId},
    live::{Claim, RequestGuard},
    outcome, render,
    session::{Session, SessionTerms},
    streaming,
};
use crate::{
    clock::Sleep,
    engine::{self, CallNote},
    metrics,
    protocol::{
        Context, Fault, MessageSink,
        call::{
            hold::{self, HoldTimer},
            waiter::Waiter,
        },
        json::Object,
        log::{self, AWAY_PAUSE, Next, StreamEnd, TURN_BYTES, unless_away},
        notes::NoteEncoder,
    },
    store::{Chunk, LogItem, StoredEvent},
    wakeup::Watch,
};

/// How much later than `retry` a client may reconnect.
const RECONNECT_GRACE: Duration = Duration::from_secs(5);
/// How many messages that are in no log may wait for the stream; more are dropped.
pub(super) const UNLOGGED_LEN: usize = 256;

/// What came of reading the log.
enum Turn {
    /// There is nothing more to read for now.
    Idle,
    More,
    /// The store cannot be reached just now.
    Later,
    /// The response was sent.
    Done,
}

pub(super) struct TaskStream<'a> {
    context: &'a Arc<Context>,
    session: &'a Arc<Session>,
    out: &'a MessageSink,
    agreed: Arc<SessionTerms>,
    id: TaskStreamId,
    event_id_prefix: Option<String>,
    cursor: StreamCursor,
    /// `_meta` that names the task, for clients that know it.
    meta: Option<String>,
    encoder: NoteEncoder,
    /// Notes of the run, if it runs here and for this call.
    live_notes: Option<mpsc::Receiver<CallNote>>,
    /// Notes that came before the stream began.
    earlier: Vec<CallNote>,
    /// Whether the log was begun when the work had ended, so that it has no progress.
    logged_after_end: bool,
    hold: HoldTimer<'a>,
    /// Whether the client resumed the stream.
    resumed: bool,
    /// Whether progress was sent since the last heartbeat.
    progressed: bool,
    /// Whether the session gets the output in responses to the call that made the task.
    output_is_answer: bool,
    request: Option<&'a RequestGuard>,
    /// The call that the stream responds to, if its caller does not know the task.
    waiter: Option<Waiter>,
    /// Within which time the first response to a streamed call is sent.
    promote_delay: Duration,
    /// Called when the client has the task's id.
    on_announced: Option<crate::protocol::OnSent>,
    /// Exists for as long as this stream; dropped before its claim.
    stream_token: Arc<()>,
    claim: Option<Claim>,
    /// Messages about the task that are in no log.
    unlogged: mpsc::Receiver<Vec<u8>>,
    had_claim: bool,
    /// Questions that the session stream asked; this stream asks them if that one ends.
    deferred: Vec<QuestionKey>,
}

impl<'a> TaskStream<'a> {
    /// A stream from this cursor on.
    pub(super) fn new(
        context: &'a Arc<Context>,
        session: &'a Arc<Session>,
        out: &'a MessageSink,
        stream: TaskStreamId,
        at: Option<StreamCursor>,
        task: &Task,
    ) -> Self {
        let agreed = session.terms();
        let meta = (stream.kind != StreamKind::Call).then(|| render::related(stream.task));
        let notes = NoteEncoder::new(outcome::progress_token(task), Some(agreed.level));
        let promote_delay = super::promote_after(context, &task.spec.tool);
        let (aside, asides) = mpsc::channel(UNLOGGED_LEN);
        let claim = (stream.kind == StreamKind::Result).then(|| session.claim(stream.task, aside));
        // A resumed stream may have to ask what the session stream asked.
        let open = task.open_questions().filter(|_| claim.is_some() && at.is_some_and(|at| at.begun));
        let deferred = open.map(|(key, _)| key.clone()).filter(|key| session.session_stream_asked(stream.task, key)).collect();
        if claim.is_some() && at.is_some() {
            session.forget_result_wait(stream.task);
        }
        let resumed = at.is_some();
        // A new wait begins with what was not delivered yet. The claim comes first, so that no other stream sends more.
        let at = at.unwrap_or_else(|| match stream.kind {
            StreamKind::Result => StreamCursor { begun: false, version: task.version, seq: session.result_wait_from(stream.task) },
            StreamKind::Call | StreamKind::Streaming => StreamCursor::default(),
        });
        Self {
            context,
            session,
            out,
            agreed,
            event_id_prefix: stream.event_id_prefix(&session.id),
            had_claim: true,
            stream_token: Arc::default(),
            deferred,
            claim,
            unlogged: asides,
            id: stream,
            cursor: at,
            meta,
            encoder: notes,
            live_notes: None,
            earlier: Vec::new(),
            hold: HoldTimer::new(context, None, false),
            resumed,
            progressed: false,
            logged_after_end: task.attempt == Attempt(1) && task.ended.is_some() && task.version == Version(2),
            output_is_answer: task.spec.output_is_result
                && task.spec.outbox.as_ref().is_some_and(|follower| follower.session == session.id && !follower.output),
            request: None,
            waiter: None,
            promote_delay,
            on_announced: None,
        }
    }

    pub(super) fn for_request(mut self, request: &'a RequestGuard) -> Self {
        self.request = Some(request);
        self
    }

    /// The call that the stream responds to; its work lingers if it gets no response.
    pub(super) fn for_waiter(mut self, waiter: Waiter) -> Self {
        self.waiter = Some(waiter);
        self
    }

    /// Adds the notes of the run: those that came before, and those to come.
    pub(super) fn with_notes(mut self, earlier: Vec<CallNote>, live: mpsc::Receiver<CallNote>) -> Self {
        self.earlier = earlier;
        self.live_notes = Some(live);
        self
    }

    pub(super) fn on_announced(mut self, on_announced: Option<crate::protocol::OnSent>) -> Self {
        self.on_announced = on_announced;
        self
    }

    /// Runs until the response is sent, or the stream ends otherwise; says whether nothing is left of it.
    pub(super) async fn run(mut self) -> Result<bool, StreamEnd> {
        let _counted = self.context.engine.metrics().stream(metrics::Stream::Task);
        let ended = self.run_to_answer().await;
        if ended.is_ok() && self.id.kind == StreamKind::Result {
            // The stream was not cut off, so its client knows what it has.
            self.session.forget_result_wait(self.id.task);
        }
        match ended {
            // The fault is the response to the request.
            Err(StreamEnd::Fault(fault)) => send_fault(self.session, self.out, &self.id, fault).await.map(|()| true),
            ended => ended,
        }
    }

    async fn run_to_answer(&mut self) -> Result<bool, StreamEnd> {
        let context = self.context;
        let engine = &context.engine;
        // Watch first, then read: no change can fall between.
        let watch = engine.watch(vec![self.id.task], self.wants_output());
        let session_watch = engine.is_shared().then(|| engine.watch_session(self.session.id.clone()));
        self.send_priming_event(None).await?;
        let comes_back = self.comes_back();
        let request = self.request;
        let mut earlier = std::mem::take(&mut self.earlier);
        while let Some(Ok(note)) = self.live_notes.as_mut().map(mpsc::Receiver::try_recv) {
            earlier.push(note);
        }
        for note in earlier {
            match note {
                CallNote::Disconnect(retry) if comes_back => return self.disconnect(retry).await,
                // Progress is in the log, unless the work ended before there was one.
                CallNote::Progress { .. } if !self.logged_after_end => {}
                note => self.send_note(&note).await?,
            }
        }
        let config = &context.config.legacy;
        let (drained, over, ending) = (context.shutdown_began(), self.session.ended(), self.out.ending());
        let reconnect = async {
            match config.reconnect_after.filter(|_| comes_back) {
                Some(span) => engine.clock().sleep(span).await,
                None => std::future::pending().await,
            }
        };
        let off = async {
            match request {
                Some(request) => request.cancelled().await,
                None => std::future::pending().await,
            }
        };
        let mut promote_delay: Sleep = engine.clock().sleep(self.promote_delay);
        // Whether the first response to a streamed call is due.
        let mut is_due = false;
        tokio::pin!(drained, over, ending, reconnect, off);
        let session = self.session;
        let mut beat = self.heartbeat().await?;
        loop {
            let released = session.task_released.notified();
            let turn = match self.id.kind {
                StreamKind::Streaming => self.send_segments(is_due).await?,
                StreamKind::Call | StreamKind::Result => self.read_log().await?,
            };
            let is_away = match turn {
                Turn::Done => return Ok(true),
                Turn::More => continue,
                Turn::Idle => false,
                Turn::Later => true,
            };
            if !is_away && let Some(result) = self.hold_expiry_result().await? {
                return self.respond_hold_expired(&result).await;
            }
            if std::mem::take(&mut self.progressed)
                && let Some(beat) = &mut beat
            {
                beat.postpone();
            }
            let waits = self.id.kind == StreamKind::Result;
            tokio::select! {
                biased;
                () = &mut off => return Ok(true),
                () = &mut over => return Ok(true),
                () = self.hold.expired() => {}
                // A client that can resume the stream does so after the restart, or with another token.
                () = &mut drained, if comes_back => return self.disconnect(config.retry).await,
                () = &mut ending, if comes_back || waits => {
                    return if comes_back { self.disconnect(config.retry).await } else { Ok(true) };
                }
                () = &mut reconnect => return self.disconnect(config.retry).await,
                Some(note) = next_note(&mut self.live_notes) => match note {
                    CallNote::Disconnect(retry) if comes_back => return self.disconnect(retry).await,
                    // Progress and status are read from the log.
                    CallNote::Progress { .. } | CallNote::Status(_) | CallNote::Disconnect(_) => {}
                    note @ CallNote::Log { .. } => self.send_note(&note).await?,
                },
                () = &mut promote_delay, if self.id.kind == StreamKind::Streaming && !is_due && !self.cursor.begun => is_due = true,
                Some(message) = self.unlogged.recv() => self.send(&message, false).await?,
                _ = watch.changed() => {}
                // The session stream of another node may have begun or ended.
                () = changed(session_watch.as_ref()) => {}
                () = async { engine.clock().sleep(AWAY_PAUSE).await }, if is_away => {}
                () = hold::heartbeat_due(&mut beat) => {
                    // Its client hears that the call goes on, also while nobody can say how.
                    let task = engine.task(&session.caller, self.id.task).await.ok().flatten();
                    if let Some(message) = beat.as_mut().and_then(|beat| beat.message(&mut self.encoder, task.as_deref())) {
                        self.send(&message, false).await?;
                    }
                }
                () = released, if self.id.kind != StreamKind::Streaming => {}
            }
        }
    }

    /// Whether a client that is disconnected can resume the stream.
    fn comes_back(&self) -> bool {
        self.out.framing().has_event_ids && self.event_id_prefix.is_some() && self.agreed.has_priming_events()
    }

    /// Whether this stream sends the task, and no later one, and it does not yield to the session stream of another node. When a later one has ended, this one asks what is open, and goes on where the
    /// later one was.
    fn has_claim(&mut self, yields: bool) -> bool {
        let Some(claim) = &self.claim else { return true };
        let holds = claim.holds() && !yields;
        if holds && !self.had_claim {
            self.cursor.seq = self.cursor.seq.max(self.session.next_undelivered(self.id.task));
            self.cursor.begun = false;
        }
        self.had_claim = holds;
        holds
    }

    fn wants_output(&self) -> bool {
        match self.id.kind {
            StreamKind::Call => false,
            StreamKind::Result => self.agreed.partial && !self.output_is_answer,
            StreamKind::Streaming => true,
        }
    }

    fn event_id(&self) -> Option<String> {
        self.event_id_prefix.as_deref().map(|prefix| self.cursor.event_id(prefix))
    }

    /// Sends a message, with an event id if `named`.
    async fn send(&self, message: &[u8], named: bool) -> Result<(), StreamEnd> {
        let name = if named { self.event_id() } else { None };
        Ok(self.out.send_framed(self.out.framing().frame_with_id(name.as_deref(), message)).await?)
    }

    /// Sends the event id from which the client can resume, before there is a message.
    async fn send_priming_event(&self, retry: Option<Duration>) -> Result<(), StreamEnd> {
        if let Some(place) = self.event_id().filter(|_| self.out.framing().has_event_ids) {
            super::send_priming_event(self.out, &self.agreed, &place, retry).await?;
        }
        Ok(())
    }

    /// Ends the connection, not the stream, of a client that can resume it.
    async fn disconnect(&mut self, retry: Duration) -> Result<bool, StreamEnd> {
        self.send_priming_event(Some(retry)).await?;
        // No other stream sends the task until the client has had time to reconnect.
        let (token, claim, waiter) = (self.stream_token.clone(), self.claim.take(), self.waiter.take());
        let back = self.context.engine.clock().sleep(retry + RECONNECT_GRACE);
        let context = self.context.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = back => drop(waiter),
                // The client resumes the stream after the restart.
                () = context.shutdown_began() => drop(waiter.map(|waiter| waiter.responded(false))),
            }
            drop((token, claim));
        });
        Ok(false)
    }

    async fn send_note(&mut self, note: &CallNote) -> Result<(), StreamEnd> {
        if let Some(message) = self.encoder.message(note, self.meta.as_deref()) {
            self.send(&message, false).await?;
        }
        Ok(())
    }

    /// The task. Whoever asks is in the middle of something, so this waits while the store cannot be reached.
    async fn task(&self) -> Result<Option<Arc<Task>>, engine::Error> {
        let (engine, session, id) = (&self.context.engine, self.session, self.id.task);
        engine.read_when_back(|| engine.task(&session.caller, id)).await
    }

    /// Sends messages that belong together: only the last has an event id.
    async fn send_all(&self, messages: &[Vec<u8>]) -> Result<(), StreamEnd> {
        for (nth, message) in messages.iter().enumerate() {
            self.send(message, nth + 1 == messages.len()).await?;
        }
        Ok(())
    }

    /// Sends what the log has after the cursor.
    async fn read_log(&mut self) -> Result<Turn, StreamEnd> {
        let Some(elsewhere) = unless_away(self.session.has_stream_elsewhere(self.context).await)? else { return Ok(Turn::Later) };
        let yields = self.claim.is_some() && elsewhere;
        if self.context.engine.is_shared() {
            self.session.touch(self.context);
        }
        let holds = self.has_claim(yields);
        if holds {
            self.ask_open().await?;
            self.ask_deferred().await?;
        }
        let from = (holds && self.wants_output()).then_some(self.cursor.seq);
        let read = log::read(&self.context.engine, &self.session.caller, self.id.task, self.cursor.version, from).await;
        let (task, page) = match unless_away(read)? {
            Some(Next::Page(task, page)) => (task, page),
            Some(Next::Behind) => return Ok(Turn::Idle),
            Some(Next::Expired) => return Err(self.expired()),
            None => return Ok(Turn::Later),
        };
        for entry in page.items {
            match entry {
                LogItem::Chunk(chunk) => self.send_chunk(&chunk).await?,
                LogItem::Event(logged) if logged.event.outcome().is_some() => return self.send_result(&task, logged.version).await,
                LogItem::Event(logged) if holds => self.send_event(&task, &logged).await?,
                LogItem::Event(logged) => self.cursor.version = logged.version,
            }
        }
        if page.more {
            return Ok(Turn::More);
        }
        self.cursor.version = self.cursor.version.max(page.upto);
        // The cursor is past the end: the response was sent.
        Ok(if page.ended { Turn::Done } else { Turn::Idle })
    }

    async fn send_chunk(&mut self, chunk: &Chunk) -> Result<(), StreamEnd> {
        self.cursor.seq = chunk.seq.next();
        self.advance(chunk.version);
        // A wait that begins where another was cut off skips what the outbox has sent since.
        if self.id.kind == StreamKind::Result && self.session.chunk_delivered_by_outbox(self.id.task, chunk.seq) {
            return Ok(());
        }
        let message = render::partial(self.id.task, chunk, self.meta.as_deref().unwrap_or("{}"));
        self.session.record_chunks_outside_outbox(self.id.task, chunk.seq..self.cursor.seq);
        self.send(&message, true).await
    }

    async fn send_event(&mut self, task: &Task, logged: &StoredEvent) -> Result<(), StreamEnd> {
        self.advance(logged.version);
        let mut messages = Vec::new();
        if let Event::StatusReported { message, progress: Some(progress) } = &logged.event {
            messages.extend(self.encoder.progress(*progress, message.as_deref(), self.meta.as_deref()));
            self.progressed |= !messages.is_empty();
        }
        // An older status is skipped, because a newer one follows.
        if self.id.kind == StreamKind::Result && logged.event.is_visible() && task.visible_version == logged.version {
            messages.push(self.status(task));
        }
        if let Event::Asked { key, request } = &logged.event
            && is_open(task, key)
        {
            messages.extend(self.question(key, request).await?);
        }
        self.send_all(&messages).await
    }

    /// Moves the cursor to an event. This stream sends all up to there, so that the outbox need not.
    fn advance(&mut self, version: Version) {
        if version > self.cursor.version {
            if self.id.kind == StreamKind::Result {
                self.session.record_events_outside_outbox(self.id.task, self.cursor.version.next()..version.next());
            }
            self.cursor.version = version;
        }
    }

    fn status(&self, task: &Task) -> Vec<u8> {
        render::status_notification(task, self.context.engine.clock().now(), &self.context.config)
    }

    async fn send_result(&mut self, task: &Arc<Task>, ended: Version) -> Result<Turn, StreamEnd> {
        if self.id.kind == StreamKind::Result {
            if self.had_claim && self.session.record_end(task.id, &self.id.request) {
                self.advance(ended);
                self.send(&self.status(task), false).await?;
            }
        } else if matches!(task.outcome, Some(Outcome::Cancelled { .. })) && self.request.is_none_or(RequestGuard::is_cancelled) {
            // The caller cancelled the call, and waits for no response.
            return Ok(Turn::Done);
        }
        self.cursor.version = ended;
        let known = self.id.kind == StreamKind::Result;
        let message = outcome::message(self.context, &self.id.request, task, known, self.waiter.as_ref()).await?;
        let answering = self.waiter.take().map(|waiter| waiter.on_response_sent(true));
        self.send(&message, true).await?;
        if let Some(answering) = answering {
            answering.sent();
        }
        Ok(Turn::Done)
    }

    /// Sends the output since the last response. The first response is sent even without output if it `must`.
    async fn send_segments(&mut self, must: bool) -> Result<Turn, StreamEnd> {
        if self.cursor.version > Version(0) {
            return Ok(Turn::Done);
        }
        let engine = &self.context.engine;
        let read = streaming::read(engine, self.id.task, self.cursor.seq, 0, TURN_BYTES).await;
        let Some(part) = unless_away(read)? else { return Ok(Turn::Later) };
        let Some(mut part) = part else { return Err(self.expired()) };
        let Some(task) = self.task().await? else { return Err(self.expired()) };
        // The copy in memory may lag behind the log; then a wake-up will come.
        part.complete &= task.ended.is_some();
        let (over, more, next) = (part.complete, part.more, part.next);
        if part.segments.is_empty() && !over && (self.cursor.begun || !must) {
            return Ok(Turn::Idle);
        }
        let (result, all) = match self.cursor.begun {
            false => streaming::first_result(self.context, &task, part),
            true => (streaming::result(self.context, &task, part, false), true),
        };
        self.cursor.begun = true;
        if all {
            self.cursor.seq = next;
            self.cursor.version = Version(u64::from(over));
        }
        self.respond(result).await?;
        Ok(match (all, over) {
            (true, true) => Turn::Done,
            (true, false) if !more => Turn::Idle,
            _ => Turn::More,
        })
    }

    async fn respond(&mut self, result: Object) -> Result<(), StreamEnd> {
        self.send(&render::response(&self.id.request, result), true).await?;
        if let Some(named) = self.on_announced.take() {
            named.sent();
        }
        Ok(())
    }

    fn expired(&self) -> StreamEnd {
        StreamEnd::Fault(task_expired(&self.id))
    }
}

/// Responds with an error to the request that a stream belongs to; nothing follows.
pub(super) async fn send_fault(session: &Session, out: &MessageSink, stream: &TaskStreamId, fault: Fault) -> Result<(), StreamEnd> {
    let mut message = Vec::new();
    if let Err(error) = write_error(&mut message, Some(&stream.request), &super::legacy_fault(fault).error) {
        tracing::error!(%error, "an error could not be written");
    }
    let name = stream.event_id_prefix(&session.id).map(|prefix| StreamCursor::END.event_id(&prefix));
    Ok(out.send_framed(out.framing().frame_with_id(name.as_deref(), &message)).await?)
}

pub(super) fn task_expired(stream: &TaskStreamId) -> Fault {
    Fault::params("Task not found: it has expired").with_data(json!({"taskId": stream.task}))
}

/// Whether a question of a task waits for its answer.
pub(super) fn is_open(task: &Task, key: &QuestionKey) -> bool {
    task.open_questions().any(|(open, _)| open == key)
}

/// Waits until the session changes, if it is watched.
async fn changed(watch: Option<&Watch<SessionId>>) {
    match watch {
        Some(watch) => drop(watch.changed().await),
        None => std::future::pending().await,
    }
}

async fn next_note(notes: &mut Option<mpsc::Receiver<CallNote>>) -> Option<CallNote> {
    match notes {
        Some(live) => {
            let note = live.recv().await;
            if note.is_none() {
                *notes = None;
            }
            note
        }
        None => std::future::pending().await,
    }
}

/// Whether the response of a stream was sent before this cursor, or will never be.
pub(super) fn is_answered(stream: &TaskStreamId, at: StreamCursor, task: &Task) -> bool {
    match (stream.kind, task.ended) {
        (StreamKind::Streaming, _) => at.version > Version(0),
        // The caller cancelled it, and waits for no response. Others can cancel a `findable` task.
        (StreamKind::Call, Some(_)) if matches!(task.outcome, Some(Outcome::Cancelled { .. })) && !task.spec.findable => true,
        (_, ended) => ended.is_some_and(|(_, version)| at.version >= version),
    }
}

pub(super) fn task_stream_id(kind: StreamKind, task: &Task, request: &RequestId) -> TaskStreamId {
    TaskStreamId { kind, task: task.id, request: request.clone() }
}
