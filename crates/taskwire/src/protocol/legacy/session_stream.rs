//! The session stream: sends a session its outbox, in order, and changes of lists and resources.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use serde_json::json;
use taskwire_core::{Payload, QuestionKey, Seq, TaskId, Version, task::Event};
use tokio::sync::mpsc;

use super::{
    event_id::SessionCursor,
    outcome, render,
    session::{Session, SharedStream},
    task_stream::{UNLOGGED_LEN, is_open},
};
use crate::{
    engine, metrics,
    protocol::{
        Context, MessageSink,
        json::Object,
        log::{self, AWAY_PAUSE, Next, StreamEnd, TURN_BYTES, unless_away},
        notes::{NoteEncoder, notification},
    },
    store::{Cursor, LogItem, OutboxItem},
    tool::{Changes, missing_capabilities_of},
};

/// How many entries of the outbox are read at a time.
const OUTBOX_PAGE_LEN: usize = 64;
/// Within which time after a task was made on another node its client learns its id.
const ANNOUNCE_TIME: Duration = Duration::from_millis(500);

struct SessionStream<'a> {
    context: &'a Arc<Context>,
    session: &'a Arc<Session>,
    out: &'a MessageSink,
    cursor: SessionCursor,
    /// Exists for as long as this stream.
    stream_token: StreamToken<'a>,
    /// Entries up to this one were sent before, and are sent again to a client that was cut off.
    replay_upto: u64,
    /// The last cursor that was sent as an event id.
    sent_cursor: SessionCursor,
}

/// A released task that the stream has yet to catch up with. It is released again if that fails.
struct ReleasedTask<'a> {
    session: &'a Session,
    id: Option<TaskId>,
}

impl ReleasedTask<'_> {
    fn delivered(mut self) {
        self.id = None;
    }
}

impl Drop for ReleasedTask<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.session.release(id);
        }
    }
}

/// Marks a stream as open. When it is gone, other streams may have to ask what it asked.
struct StreamToken<'a> {
    session: &'a Session,
    token: Option<Arc<()>>,
}

impl StreamToken<'_> {
    fn get(&self) -> &Arc<()> {
        self.token.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for StreamToken<'_> {
    fn drop(&mut self) {
        self.token = None;
        self.session.task_released.notify_waiters();
    }
}

/// Tells other nodes of a session stream, where there are any: only the latest one of a session sends its outbox.
struct SharedStreamGuard {
    context: Arc<Context>,
    session: Arc<Session>,
    stream: SharedStream,
}

impl SharedStreamGuard {
    fn new(context: &Arc<Context>, session: &Arc<Session>) -> Option<Self> {
        if !context.engine.is_shared() {
            return None;
        }
        let mut number = [0; 8];
        crate::clock::random_bytes(&mut number);
        let stream = SharedStream { epoch: context.engine.epoch(), number: u64::from_le_bytes(number) };
        Some(Self { context: context.clone(), session: session.clone(), stream })
    }

    /// Names the stream in the session's row. Returns how many items of the outbox were sent, by whichever node.
    async fn begin(&self) -> Result<u64, engine::Error> {
        self.session.change_terms(&self.context, |agreed| agreed.stream = Some(self.stream)).await?;
        Ok(self.session.raise_outbox_delivered(self.session.terms().delivered))
    }
}

impl Drop for SharedStreamGuard {
    fn drop(&mut self) {
        let (context, session, stream) = (self.context.clone(), self.session.clone(), self.stream);
        let delivered = session.outbox_delivered();
        context.engine.clone().spawn(async move {
            loop {
                let ended = session.change_terms(&context, |agreed| {
                    agreed.delivered = agreed.delivered.max(delivered);
                    agreed.stream = agreed.stream.filter(|open| *open != stream);
                });
                match ended.await {
                    Ok(()) => return,
                    // As long as this node is alive, others leave the session to this stream.
                    Err(error) if error.passes() && context.engine.epoch() == stream.epoch => {
                        context.engine.clock().sleep(ANNOUNCE_TIME).await;
                    }
                    Err(error) => return tracing::warn!(%error, "the end of a session stream could not be stored: the next one repeats some messages"),
                }
            }
        });
    }
}

/// Sends a session its outbox from a cursor on; without one, from where the last session stream was.
pub(super) async fn run(context: &Arc<Context>, session: &Arc<Session>, out: &MessageSink, from: Option<SessionCursor>) {
    let _counted = context.engine.metrics().stream(metrics::Stream::Session);
    let (unlogged, mut unlogged_messages) = mpsc::channel(UNLOGGED_LEN);
    let token = StreamToken { session, token: Some(Arc::default()) };
    let (mut delivered, replaced) = session.begin_session_stream(token.get(), from.is_some(), unlogged);
    let shared = SharedStreamGuard::new(context, session);
    if let Some(shared) = &shared {
        match shared.begin().await {
            Ok(elsewhere) => delivered = elsewhere,
            Err(error) => return tracing::warn!(%error, "a session stream could not begin"),
        }
    }
    let shared = shared.as_ref().map(|shared| shared.stream);
    let at = from.unwrap_or(SessionCursor { number: delivered, version: Version(0) });
    // A client that was cut off may have been sent a part of the next entry.
    let replay_upto = if from.is_some() { delivered + 1 } else { delivered };
    let mut stream = SessionStream { context, session, out, cursor: at, stream_token: token, replay_upto, sent_cursor: at };
    let ended = tokio::select! {
        biased;
        () = replaced => Ok(()),
        ended = stream.run(&mut unlogged_messages, from.is_none(), shared) => ended,
    };
    if let Err(StreamEnd::Fault(fault)) = ended {
        tracing::warn!(error = %fault.error.message, "a session stream ended: the store could not be read");
    }
}

impl SessionStream<'_> {
    async fn run(&mut self, unlogged: &mut mpsc::Receiver<Vec<u8>>, fresh: bool, shared: Option<SharedStream>) -> Result<(), StreamEnd> {
        let (context, session) = (self.context, self.session);
        if fresh && session.terms().had_session_stream {
            self.reask_all().await?;
        }
        session.change_terms(context, |agreed| agreed.had_session_stream = true).await?;
        let config = &context.config.legacy;
        let mut changes = context.provider.changes();
        let mut seen = changes.borrow_and_update().clone();
        // Watch first, then read: no change can fall between.
        let watch = context.engine.watch_session(session.id.clone());
        let named = self.out.framing().has_event_ids;
        let agreed = session.terms();
        let comes_back = named && agreed.has_priming_events();
        if named {
            super::send_priming_event(self.out, &agreed, &self.cursor.event_id(&self.session.id), None).await?;
        }
        let reconnect = async {
            match config.reconnect_after.filter(|_| comes_back) {
                Some(span) => context.engine.clock().sleep(span).await,
                None => std::future::pending().await,
            }
        };
        let (drained, over, ending) = (context.shutdown_began(), session.ended(), self.out.ending());
        tokio::pin!(reconnect, drained, over, ending);
        loop {
            let wake = session.session_stream_wake.notified();
            // Whether the store cannot be reached just now.
            let mut is_away = false;
            if let Some(mine) = shared {
                match unless_away(session.refresh(context).await)? {
                    // A later stream, perhaps on another node, sends the session from now on; or the session has ended there; or this node
                    // lost its lease, and others no longer leave the session to it.
                    Some(is_there) if !is_there || session.terms().stream != shared || context.engine.epoch() != mine.epoch => {
                        return Ok(());
                    }
                    Some(_) => session.touch(context),
                    None => is_away = true,
                }
            }
            let waits = is_away || self.deliver_outbox().await?;
            while waits
                && !is_away
                && let Some(id) = session.next_released()
            {
                let task = ReleasedTask { session, id: Some(id) };
                if !self.catch_up(id).await? {
                    break;
                }
                task.delivered();
            }
            if waits && comes_back && self.sent_cursor != self.cursor {
                // The cursor passed what was delivered outside the outbox, so the client gets a later event id.
                super::send_priming_event(self.out, &agreed, &self.cursor.event_id(&session.id), None).await?;
                self.sent_cursor = self.cursor;
            }
            tokio::select! {
                biased;
                () = &mut over => return Ok(()),
                () = &mut drained => break,
                () = &mut ending => break,
                () = &mut reconnect => break,
                result = changes.changed() => {
                    if result.is_err() {
                        return Ok(());
                    }
                    let now = changes.borrow_and_update().clone();
                    self.send_list_changes(&seen, &now).await?;
                    seen = now;
                }
                Some(message) = unlogged.recv() => self.out.send(&message).await?,
                () = wake => {}
                _ = watch.changed() => {}
                () = async { context.engine.clock().sleep(AWAY_PAUSE).await }, if is_away => {}
                () = std::future::ready(()), if !waits => {}
            }
        }
        if comes_back {
            super::send_priming_event(self.out, &agreed, &self.cursor.event_id(&self.session.id), Some(config.retry)).await?;
        }
        Ok(())
    }

    /// Sends a page of the outbox; says whether there is nothing more to send for now. While the store cannot be reached, this and all
    /// beneath it wait: what was begun is sent to its end.
    async fn deliver_outbox(&mut self) -> Result<bool, StreamEnd> {
        let (engine, id, after) = (&self.context.engine, &self.session.id, self.cursor.number);
        let read = || async { engine.reader().outbox(id, after, OUTBOX_PAGE_LEN).await.map_err(engine::Error::from) };
        let changes = engine.read_when_back(read).await?;
        let all = changes.len() < OUTBOX_PAGE_LEN;
        for change in changes {
            if self.session.is_withheld(change.task) || !self.deliver_change(change).await? {
                return Ok(true);
            }
            self.cursor = SessionCursor { number: change.position, version: Version(0) };
            self.session.record_outbox_delivered(change.position, self.stream_token.get());
        }
        Ok(all)
    }

    /// Sends one entry of the outbox; `false` if that is not possible yet.
    async fn deliver_change(&mut self, change: OutboxItem) -> Result<bool, StreamEnd> {
        let (engine, caller) = (&self.context.engine, &self.session.caller);
        let found = engine.read_when_back(|| engine.task(caller, change.task)).await;
        let Some(mut task) = engine::skip_corrupt(found)? else { return Ok(true) };
        if engine.is_shared() && task.epoch != engine.epoch() {
            // The node that made it may not have told the client its id yet.
            let age = engine.clock().now().since(task.created_at);
            engine.clock().sleep(ANNOUNCE_TIME.saturating_sub(age)).await;
        }
        let output = task.spec.outbox.as_ref().is_some_and(|follower| follower.output);
        let meta = render::related(change.task);
        let mut notes = NoteEncoder::new(outcome::progress_token(&task), None);
        // What comes before was sent by the stream that this one resumes.
        let resumed = if change.position == self.cursor.number + 1 { self.cursor.version } else { Version(0) };
        let replays = change.position <= self.replay_upto;
        let (mut from, mut after) = (change.first_seq, Version(change.first_version.0 - 1).max(resumed));
        loop {
            let from_chunk = (output && from < change.end_seq).then_some(from);
            let next = engine.read_when_back(|| log::read(engine, caller, change.task, after, from_chunk)).await;
            let mut page = match engine::skip_corrupt(next.map(Some))? {
                Some(Next::Page(now, page)) => {
                    task = now;
                    page
                }
                Some(Next::Behind) => return Ok(false),
                Some(Next::Expired) | None => return Ok(true),
            };
            let cut = page.items.iter().position(|entry| entry.version() > change.last_version);
            if let Some(cut) = cut {
                page.items.truncate(cut);
            }
            // The copy in memory may lag behind the log; then a wake-up will come.
            let short = cut.is_none() && !page.more && page.upto < change.last_version;
            if short {
                return Ok(false);
            }
            let done = cut.is_some() || !page.more;
            let last = page.items.iter().rposition(may_have_message).filter(|_| done);
            for (nth, entry) in page.items.into_iter().enumerate() {
                // If another stream sends the task, this one only repeats what it has sent, to a client that was cut off.
                let claimed = self.session.is_claimed(change.task);
                match &entry {
                    LogItem::Chunk(chunk) if claimed && replays && self.session.chunk_delivered_by_outbox(change.task, chunk.seq) => {}
                    LogItem::Chunk(chunk) if claimed && replays => {
                        from = chunk.seq.next();
                        continue;
                    }
                    _ if claimed => return Ok(true),
                    _ => {}
                }
                let messages = match &entry {
                    LogItem::Chunk(chunk) => {
                        from = chunk.seq.next();
                        if chunk.version <= resumed || self.session.chunk_delivered_outside_outbox(change.task, chunk.seq) {
                            continue;
                        }
                        vec![render::partial(change.task, chunk, &meta)]
                    }
                    LogItem::Event(logged) if self.session.event_delivered_outside_outbox(change.task, logged.version) => {
                        after = after.max(logged.version);
                        continue;
                    }
                    LogItem::Event(logged) => {
                        let mut messages = Vec::new();
                        if let Event::StatusReported { message, progress: Some(progress) } = &logged.event {
                            messages.extend(notes.progress(*progress, message.as_deref(), Some(&meta)));
                        }
                        // An older status is skipped, because a newer one follows.
                        if logged.event.is_visible()
                            && task.visible_version == logged.version
                            && !matches!(logged.event, Event::Created { .. })
                        {
                            self.session.record_status(change.task, task.visible_version);
                            messages.push(render::status_notification(&task, engine.clock().now(), &self.context.config));
                        }
                        if let Event::Asked { key, request } = &logged.event
                            && is_open(&task, key)
                        {
                            messages.extend(self.question(change.task, key, request, replays).await?);
                        }
                        messages
                    }
                };
                let version = entry.version();
                after = after.max(version);
                // Only the last cursor within an entry counts the entry itself.
                self.cursor.version = version;
                let event_cursor =
                    if last == Some(nth) { SessionCursor { number: change.position, version: Version(0) } } else { self.cursor };
                if let LogItem::Chunk(chunk) = &entry
                    && !claimed
                    && !self.session.record_chunks_on_session_stream(change.task, chunk.seq..from, self.stream_token.get())
                {
                    return Ok(true);
                }
                if !messages.is_empty() {
                    self.sent_cursor = event_cursor;
                }
                for (nth, message) in messages.iter().enumerate() {
                    let name = (nth + 1 == messages.len()).then(|| event_cursor.event_id(&self.session.id));
                    self.out.send_framed(self.out.framing().frame_with_id(name.as_deref(), message)).await?;
                }
            }
            if done {
                break;
            }
        }
        if task.ended.is_some_and(|(_, version)| version <= change.last_version) {
            self.session.forget(change.task);
        }
        Ok(true)
    }

    /// A question as a request to the client; none if another stream has asked it.
    async fn question(&self, id: TaskId, key: &QuestionKey, asked: &Payload, replays: bool) -> Result<Option<Vec<u8>>, StreamEnd> {
        let (context, session) = (self.context, self.session);
        let agreed = session.terms();
        if missing_capabilities_of(asked, agreed.accepts).is_some()
            || !session.record_question_if_new(id, key, self.stream_token.get(), replays)
            || !context.engine.read_when_back(|| session.is_still_open(context, id, key)).await?
        {
            return Ok(None);
        }
        let again = session.reask(id, key);
        Ok(render::question(id, None, (key, asked), again.as_ref(), &agreed, Some(&render::related(id))))
    }

    /// Makes the stream ask all open questions of the session's tasks: a client that does not resume may have seen none of them.
    async fn reask_all(&self) -> Result<(), StreamEnd> {
        let engine = &self.context.engine;
        let mut tasks = BTreeSet::new();
        let mut after = 0;
        loop {
            let items = engine.reader().outbox(&self.session.id, after, OUTBOX_PAGE_LEN).await.map_err(engine::Error::from)?;
            let Some(last) = items.last() else { break };
            after = last.position;
            tasks.extend(items.iter().map(|item| item.task));
        }
        for id in tasks {
            if engine::skip_corrupt(engine.task(&self.session.caller, id).await)?.is_some_and(|task| task.asked_at.is_some()) {
                self.session.release(id);
            }
        }
        Ok(())
    }

    /// Sends what was not delivered of a task whose own stream was cut off, and asks its questions unless another stream does; `false` if
    /// a later stream has to.
    async fn catch_up(&self, id: TaskId) -> Result<bool, StreamEnd> {
        let (engine, caller) = (&self.context.engine, &self.session.caller);
        let found = engine.read_when_back(|| engine.task(caller, id)).await;
        let Some(task) = engine::skip_corrupt(found)? else { return Ok(true) };
        let Some(follower) = task.spec.outbox.as_ref().filter(|follower| follower.session == self.session.id) else { return Ok(true) };
        if let Some(from) = self.session.delivered_up_to(id) {
            if follower.output && !self.deliver_rest(id, from).await? {
                return Ok(self.session.is_claimed(id));
            }
            if !self.session.event_delivered_outside_outbox(id, task.visible_version)
                && self.session.record_status(id, task.visible_version)
            {
                self.session.record_events_outside_outbox(id, task.visible_version..task.visible_version.next());
                self.out.send(&render::status_notification(&task, engine.clock().now(), &self.context.config)).await?;
            }
        }
        if self.session.is_claimed(id) {
            return Ok(true);
        }
        for (key, asked) in task.open_questions() {
            if let Some(message) = self.question(id, key, asked, false).await? {
                self.out.send(&message).await?;
            }
        }
        if task.ended.is_some() {
            self.session.forget(id);
        }
        Ok(true)
    }

    /// Sends the output of a task from a seq on; `false` if another stream has to send it now.
    async fn deliver_rest(&self, id: TaskId, mut from: Seq) -> Result<bool, StreamEnd> {
        let (engine, meta) = (&self.context.engine, render::related(id));
        loop {
            let cursor = Cursor::output(from, TURN_BYTES);
            let read = engine.read_when_back(|| engine.page(id, cursor)).await;
            let Some(page) = engine::skip_corrupt(read)? else { return Ok(false) };
            let more = page.more;
            for chunk in page.items.into_iter().filter_map(LogItem::into_chunk) {
                from = chunk.seq.next();
                if !self.session.record_chunks_on_session_stream(id, chunk.seq..from, self.stream_token.get()) {
                    return Ok(false);
                }
                self.session.record_chunks_outside_outbox(id, chunk.seq..from);
                self.out.send(&render::partial(id, &chunk, &meta)).await?;
            }
            if !more {
                return Ok(true);
            }
        }
    }

    async fn send_list_changes(&self, before: &Changes, now: &Changes) -> Result<(), StreamEnd> {
        for (changed, method) in [
            (before.tools != now.tools, "notifications/tools/list_changed"),
            (before.prompts != now.prompts, "notifications/prompts/list_changed"),
            (before.resources != now.resources, "notifications/resources/list_changed"),
        ] {
            if changed {
                self.out.send(&notification(method, Object::open(), None)).await?;
            }
        }
        for uri in &self.session.terms().resources {
            if before.updated.get(uri) != now.updated.get(uri) {
                self.out.notify("notifications/resources/updated", &json!({ "uri": uri })).await?;
            }
        }
        Ok(())
    }
}

/// Whether an entry may cause a message.
fn may_have_message(entry: &LogItem) -> bool {
    match entry {
        LogItem::Chunk(_) => true,
        LogItem::Event(logged) => logged.event.is_visible(),
    }
}
