//! The stream that a session has besides its requests: what happens to its tasks, in the order in which it happened, and
//! to lists and resources.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::json;
use taskwire_core::{InputKey, Payload, Seq, TaskId, Version, task::Event};
use tokio::sync::mpsc;

use super::{
    outcome,
    place::Standing,
    session::Session,
    tail::{ASIDE_LEN, is_behind},
    view,
};
use crate::{
    dialect::{
        Context, Gone, Outbox,
        json::Object,
        notes::{Notes, notification},
    },
    engine,
    store::{Cursor, Entry, Told},
    tool::{Changes, payload_lacks},
};

/// Changes that are read at a time.
const TURN: usize = 64;
/// Bytes of output that are read at a time.
const TURN_BYTES: usize = 256 * 1024;
/// Why a stream ends.
#[derive(Debug)]
enum Ended {
    Gone,
    Store(engine::Error),
}

impl From<Gone> for Ended {
    fn from(_: Gone) -> Self {
        Self::Gone
    }
}

impl From<engine::Error> for Ended {
    fn from(error: engine::Error) -> Self {
        Self::Store(error)
    }
}

struct Stream<'a> {
    shared: &'a Arc<Context>,
    session: &'a Arc<Session>,
    out: &'a Outbox,
    at: Standing,
    /// Stands for this stream, for as long as it is there.
    token: Token<'a>,
    /// What was told before, and is told again to who was cut off.
    replay_upto: u64,
    /// The last place that its reader has the name of.
    named: Standing,
}

/// A task that is to be told of, until it was.
struct LetGo<'a> {
    session: &'a Session,
    id: Option<TaskId>,
}

impl LetGo<'_> {
    fn done(mut self) {
        self.id = None;
    }
}

impl Drop for LetGo<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.session.let_go(id);
        }
    }
}

/// Stands for a stream. When that is gone, what it asked may have to be asked elsewhere.
struct Token<'a> {
    session: &'a Session,
    token: Option<Arc<()>>,
}

impl Token<'_> {
    fn get(&self) -> &Arc<()> {
        self.token.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for Token<'_> {
    fn drop(&mut self) {
        self.token = None;
        self.session.released.notify_waiters();
    }
}

/// Tells a session what happens, from a place on; without one, from where it was last told.
pub(super) async fn stand(shared: &Arc<Context>, session: &Arc<Session>, out: &Outbox, from: Option<Standing>) {
    let (aside, mut asides) = mpsc::channel(ASIDE_LEN);
    let token = Token { session, token: Some(Arc::default()) };
    let (told, replaced) = session.stand(token.get(), from.is_some(), aside);
    let at = from.unwrap_or(Standing { number: told, version: Version(0) });
    // One that was cut off may have had half of the next.
    let replay_upto = if from.is_some() { told + 1 } else { told };
    let mut stream = Stream { shared, session, out, at, token, replay_upto, named: at };
    let told = tokio::select! {
        biased;
        () = replaced => Ok(()),
        told = stream.run(&mut asides, from.is_none()) => told,
    };
    if let Err(Ended::Store(error)) = told {
        tracing::warn!(%error, "a session could not be told what happened");
    }
}

impl Stream<'_> {
    async fn run(&mut self, asides: &mut mpsc::Receiver<Vec<u8>>, fresh: bool) -> Result<(), Ended> {
        let (shared, session) = (self.shared, self.session);
        if !session.agreed().stood {
            session.agree(shared, |agreed| agreed.stood = true).await?;
        } else if fresh {
            self.ask_all_again()?;
        }
        let config = &shared.config.legacy;
        let mut changes = shared.provider.changes();
        let mut seen = changes.borrow_and_update().clone();
        // Watch first, then read: no change can fall between.
        let watch = shared.engine.watch_session(session.id.clone());
        let named = self.out.framing().named;
        let agreed = session.agreed();
        let comes_back = named && agreed.has_primes();
        if named {
            super::prime(self.out, &agreed, &self.at.id(&self.session.id), None).await?;
        }
        let reconnect = async {
            match config.reconnect_after.filter(|_| comes_back) {
                Some(span) => shared.engine.clock().sleep(span).await,
                None => std::future::pending().await,
            }
        };
        let (drained, over, ending) = (shared.drained(), session.over(), self.out.ending());
        tokio::pin!(reconnect, drained, over, ending);
        loop {
            let bell = session.bell.notified();
            let waits = self.tell_on().await?;
            while waits && let Some(id) = session.next_let_go() {
                let task = LetGo { session, id: Some(id) };
                if !self.catch_up(id).await? {
                    break;
                }
                task.done();
            }
            if waits && comes_back && self.named != self.at {
                // What was passed over, since it was told elsewhere, is behind the reader too.
                super::prime(self.out, &agreed, &self.at.id(&session.id), None).await?;
                self.named = self.at;
            }
            tokio::select! {
                biased;
                () = &mut over => return Ok(()),
                () = &mut drained => break,
                () = &mut ending => return Ok(()),
                () = &mut reconnect => break,
                result = changes.changed() => {
                    if result.is_err() {
                        return Ok(());
                    }
                    let now = changes.borrow_and_update().clone();
                    self.tell_changes(&seen, &now).await?;
                    seen = now;
                }
                Some(message) = asides.recv() => self.out.send(&message).await?,
                () = bell => {}
                _ = watch.changed() => {}
                () = std::future::ready(()), if !waits => {}
            }
        }
        if comes_back {
            super::prime(self.out, &agreed, &self.at.id(&self.session.id), Some(config.retry)).await?;
        }
        Ok(())
    }

    /// Tells what the session was not told yet, some of it; whether there is nothing more to be told for now.
    async fn tell_on(&mut self) -> Result<bool, Ended> {
        let told = self.shared.engine.reader().told(&self.session.id, self.at.number, TURN).map_err(engine::Error::from)?;
        let all = told.len() < TURN;
        for told in told {
            if self.session.is_hushed(told.task) || !self.tell(told).await? {
                return Ok(true);
            }
            self.at = Standing { number: told.number, version: Version(0) };
            self.session.told(told.number, self.token.get());
        }
        Ok(all)
    }

    /// Tells one change; says `false` if its time has not come.
    async fn tell(&mut self, told: Told) -> Result<bool, Ended> {
        let engine = &self.shared.engine;
        let Some(task) = engine::legible(engine.task(&self.session.caller, told.task))? else { return Ok(true) };
        let output = task.spec.follower.as_ref().is_some_and(|follower| follower.output);
        let meta = view::related(told.task);
        let mut notes = Notes::new(outcome::progress_token(&task), None);
        // What comes before was told when the stream was last here.
        let resumed = if told.number == self.at.number + 1 { self.at.version } else { Version(0) };
        let replays = told.number <= self.replay_upto;
        let (mut from, mut after) = (told.from, Version(told.first.0 - 1).max(resumed));
        loop {
            let from_chunk = (output && from < told.end).then_some(from);
            let cursor = Cursor { after, from: from_chunk, bytes: TURN_BYTES, chunks: usize::MAX };
            let Some(mut page) = engine::legible(engine.page(told.task, cursor))? else { return Ok(true) };
            let cut = page.entries.iter().position(|entry| version_of(entry) > told.last);
            if let Some(cut) = cut {
                page.entries.truncate(cut);
            }
            // What is kept in memory may be a moment behind; then a wake-up is on its way.
            let short = cut.is_none() && !page.more && page.upto < told.last;
            if short || is_behind(&task, &page) {
                return Ok(false);
            }
            let done = cut.is_some() || !page.more;
            let last = page.entries.iter().rposition(talks).filter(|_| done);
            for (nth, entry) in page.entries.into_iter().enumerate() {
                // Of a task that another stream tells of, only that is told here which was before, to a reader that was cut off.
                let claimed = self.session.is_claimed(told.task);
                match &entry {
                    Entry::Chunk(chunk) if claimed && replays && self.session.given_here(told.task, chunk.seq) => {}
                    Entry::Chunk(chunk) if claimed && replays => {
                        from = chunk.seq.next();
                        continue;
                    }
                    _ if claimed => return Ok(true),
                    _ => {}
                }
                let messages = match &entry {
                    Entry::Chunk(chunk) => {
                        from = chunk.seq.next();
                        if chunk.version <= resumed || self.session.given_elsewhere(told.task, chunk.seq) {
                            continue;
                        }
                        vec![view::partial(told.task, chunk, &meta)]
                    }
                    Entry::Event(logged) if self.session.told_elsewhere(told.task, logged.version) => {
                        after = after.max(logged.version);
                        continue;
                    }
                    Entry::Event(logged) => {
                        let mut messages = Vec::new();
                        if let Event::Said { message, progress: Some(progress) } = &logged.event {
                            messages.extend(notes.progress(*progress, message.as_deref(), Some(&meta)));
                        }
                        // An older state need not be told: a newer one will be.
                        if logged.event.is_visible() && task.changed == logged.version && !matches!(logged.event, Event::Created { .. }) {
                            self.session.states(told.task, task.changed);
                            messages.push(view::status_notification(&task, engine.clock().now(), &self.shared.config));
                        }
                        if let Event::Asked { key, request } = &logged.event
                            && task.open_inputs().any(|(open, _)| open == key)
                        {
                            messages.extend(self.question(told.task, key, request, replays));
                        }
                        messages
                    }
                };
                let version = version_of(&entry);
                after = after.max(version);
                // Of a change, every place but the last lies before the next change.
                self.at.version = version;
                let place = if last == Some(nth) { Standing { number: told.number, version: Version(0) } } else { self.at };
                if let Entry::Chunk(chunk) = &entry
                    && !claimed
                    && !self.session.give_standing(told.task, chunk.seq..from, self.token.get())
                {
                    return Ok(true);
                }
                if !messages.is_empty() {
                    self.named = place;
                }
                for (nth, message) in messages.iter().enumerate() {
                    let name = (nth + 1 == messages.len()).then(|| place.id(&self.session.id));
                    self.out.send_framed(self.out.framing().named(name.as_deref(), message)).await?;
                }
            }
            if done {
                break;
            }
        }
        if task.ended.is_some_and(|(_, version)| version <= told.last) {
            self.session.forget(told.task);
        }
        Ok(true)
    }

    /// A question as the client is asked here, unless another stream has asked it.
    fn question(&self, id: TaskId, key: &InputKey, asked: &Payload, replays: bool) -> Option<Vec<u8>> {
        let agreed = self.session.agreed();
        if payload_lacks(asked, agreed.accepts).is_some() || !self.session.asks(id, key, self.token.get(), replays) {
            return None;
        }
        let again = self.session.again(id, key);
        view::question(id, None, (key, asked), again.as_ref(), &agreed, Some(&view::related(id)))
    }

    /// Has all questions of the session's tasks asked that are open: who begins anew was asked nothing, for all we know.
    fn ask_all_again(&self) -> Result<(), Ended> {
        let engine = &self.shared.engine;
        let mut tasks = BTreeSet::new();
        let mut after = 0;
        loop {
            let told = engine.reader().told(&self.session.id, after, TURN).map_err(engine::Error::from)?;
            let Some(last) = told.last() else { break };
            after = last.number;
            tasks.extend(told.iter().map(|told| told.task));
        }
        for id in tasks {
            if engine::legible(engine.task(&self.session.caller, id))?.is_some_and(|task| task.asked_at.is_some()) {
                self.session.let_go(id);
            }
        }
        Ok(())
    }

    /// Says what was not told of a task whose own stream was cut off, and asks what it asks, unless another stream does; says
    /// `false` if a later stream has to.
    async fn catch_up(&self, id: TaskId) -> Result<bool, Ended> {
        let engine = &self.shared.engine;
        let Some(task) = engine::legible(engine.task(&self.session.caller, id))? else { return Ok(true) };
        let Some(follower) = task.spec.follower.as_ref().filter(|follower| follower.session == self.session.id) else { return Ok(true) };
        if let Some(from) = self.session.given_so_far(id) {
            if follower.output && !self.give_rest(id, from).await? {
                return Ok(self.session.is_claimed(id));
            }
            if !self.session.told_elsewhere(id, task.changed) && self.session.states(id, task.changed) {
                self.session.tell_elsewhere(id, task.changed..task.changed.next());
                self.out.send(&view::status_notification(&task, engine.clock().now(), &self.shared.config)).await?;
            }
        }
        if self.session.is_claimed(id) {
            return Ok(true);
        }
        let messages: Vec<_> = task.open_inputs().filter_map(|(key, asked)| self.question(id, key, asked, false)).collect();
        for message in messages {
            self.out.send(&message).await?;
        }
        if task.ended.is_some() {
            self.session.forget(id);
        }
        Ok(true)
    }

    /// Sends the output of a task from a chunk on; says `false` if that became another stream's to send.
    async fn give_rest(&self, id: TaskId, mut from: Seq) -> Result<bool, Ended> {
        let meta = view::related(id);
        loop {
            let cursor = Cursor { after: Version(u64::MAX), from: Some(from), bytes: TURN_BYTES, chunks: usize::MAX };
            let Some(page) = engine::legible(self.shared.engine.page(id, cursor))? else { return Ok(false) };
            let more = page.more;
            for chunk in page.entries.into_iter().filter_map(Entry::into_chunk) {
                from = chunk.seq.next();
                if !self.session.give_standing(id, chunk.seq..from, self.token.get()) {
                    return Ok(false);
                }
                self.session.give(id, chunk.seq..from);
                self.out.send(&view::partial(id, &chunk, &meta)).await?;
            }
            if !more {
                return Ok(true);
            }
        }
    }

    async fn tell_changes(&self, before: &Changes, now: &Changes) -> Result<(), Ended> {
        for (changed, method) in [
            (before.tools != now.tools, "notifications/tools/list_changed"),
            (before.prompts != now.prompts, "notifications/prompts/list_changed"),
            (before.resources != now.resources, "notifications/resources/list_changed"),
        ] {
            if changed {
                self.out.send(&notification(method, Object::open(), None)).await?;
            }
        }
        for uri in &self.session.agreed().resources {
            if before.updated.get(uri) != now.updated.get(uri) {
                self.out.notify("notifications/resources/updated", &json!({ "uri": uri })).await?;
            }
        }
        Ok(())
    }
}

/// Whether there may be something to say about an entry.
fn talks(entry: &Entry) -> bool {
    match entry {
        Entry::Chunk(_) => true,
        Entry::Event(logged) => logged.event.is_visible(),
    }
}

/// The place of an entry in its task's log.
fn version_of(entry: &Entry) -> Version {
    match entry {
        Entry::Event(logged) => logged.version,
        Entry::Chunk(chunk) => chunk.version,
    }
}
