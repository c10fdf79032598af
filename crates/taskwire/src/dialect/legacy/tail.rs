//! A stream of one task: the answer to a call that takes its time, to `tasks/result`, or to a streamed call.
//!
//! It reads the task's log from a place on and says what stands there. Begun, resumed, after a restart: all the same.
//! What it asks on the way is in `questions`, what a call is told when its result takes too long in `instead`.

mod instead;
mod questions;

use std::{sync::Arc, time::Duration};

use serde_json::json;
use taskwire_core::{
    Attempt, InputKey, Version,
    task::{Event, Outcome, Task},
    wire::{RequestId, write_error},
};
use tokio::sync::mpsc;

use super::{
    live::{Claim, Request},
    outcome,
    place::{At, Kind, Stream},
    session::{Agreed, Session},
    streamed, view,
};
use crate::{
    clock::Sleep,
    dialect::{
        Context, Fault, Outbox,
        call::{
            held::{self, HoldTimer},
            waiter::Waiter,
        },
        json::Object,
        notes::Notes,
    },
    engine::{self, Note},
    store::{Chunk, Cursor, Entry, Logged, Page},
};

/// Bytes of output that are read at a time.
const TURN_BYTES: usize = 256 * 1024;
/// The same in chunks.
const TURN_CHUNKS: usize = 1_000;
/// How much longer than it was told to a client may take to come back.
const GRACE: Duration = Duration::from_secs(5);
/// What may wait for the stream that stands in no log; more is dropped.
pub(super) const ASIDE_LEN: usize = 256;

/// Why a stream ends before its answer.
#[derive(Debug)]
pub(super) enum Ended {
    /// The client stopped reading; there is nobody to answer.
    Gone,
    Fault(Fault),
}

impl From<crate::dialect::Gone> for Ended {
    fn from(_: crate::dialect::Gone) -> Self {
        Self::Gone
    }
}

impl From<engine::Error> for Ended {
    fn from(error: engine::Error) -> Self {
        Self::Fault(error.into())
    }
}

/// What came of a look at the log.
enum Turn {
    /// There is nothing more for now.
    Idle,
    /// There is more.
    More,
    /// The answer was given.
    Over,
}

pub(super) struct Tail<'a> {
    shared: &'a Arc<Context>,
    session: &'a Arc<Session>,
    out: &'a Outbox,
    agreed: Arc<Agreed>,
    stream: Stream,
    prefix: Option<String>,
    at: At,
    /// Names the task, for clients that know of it.
    meta: Option<String>,
    notes: Notes,
    /// Where notes of the running work come from, if it runs here and its caller is still the first one.
    live: Option<mpsc::Receiver<Note>>,
    /// Notes that came before the stream began.
    earlier: Vec<Note>,
    /// Whether its log was begun when all was done.
    late: bool,
    /// How the call is held if its caller can come back to it otherwise.
    hold: HoldTimer<'a>,
    /// Whether its reader was cut off, and came back.
    resumed: bool,
    /// Whether its reader was told of progress since its last sign of life.
    progressed: bool,
    /// Whether the session is given its output in answer to the call that made it.
    answered: bool,
    request: Option<&'a Request>,
    /// The call that it answers, if that knows of no task.
    waiter: Option<Waiter>,
    /// Within which time the first answer to a streamed call must be given.
    patience: Duration,
    /// Done when the client was told the name of the task.
    named: Option<crate::dialect::Sent>,
    /// Stands for this stream, for as long as it is there; gone before its claim is.
    token: Arc<()>,
    claim: Option<Claim>,
    /// What is to be said of the task that stands in no log.
    asides: mpsc::Receiver<Vec<u8>>,
    held: bool,
    /// Questions that the client was asked on its standing stream, and is asked here if that ends.
    deferred: Vec<InputKey>,
}

impl<'a> Tail<'a> {
    /// Reads on at a place.
    pub(super) fn new(
        shared: &'a Arc<Context>,
        session: &'a Arc<Session>,
        out: &'a Outbox,
        stream: Stream,
        at: Option<At>,
        task: &Task,
    ) -> Self {
        let agreed = session.agreed();
        let meta = (stream.kind != Kind::Call).then(|| view::related(stream.task));
        let notes = Notes::new(outcome::progress_token(task), Some(agreed.level));
        let patience = super::promote_after(shared, &task.spec.tool);
        let (aside, asides) = mpsc::channel(ASIDE_LEN);
        let claim = (stream.kind == Kind::Result).then(|| session.claim(stream.task, aside));
        // What a resumed stream left to the standing one it may have to ask yet.
        let open = task.open_inputs().filter(|_| claim.is_some() && at.is_some_and(|at| at.begun));
        let deferred = open.map(|(key, _)| key.clone()).filter(|key| session.stands_asked(stream.task, key)).collect();
        if claim.is_some() && at.is_some() {
            session.came_back(stream.task);
        }
        let resumed = at.is_some();
        // A new wait goes on where the session was last told of the task; the claim comes first, so that nobody tells on.
        let at = at.unwrap_or_else(|| match stream.kind {
            Kind::Result => At { begun: false, version: task.version, seq: session.wait_from(stream.task) },
            Kind::Call | Kind::Streamed => At::default(),
        });
        Self {
            shared,
            session,
            out,
            agreed,
            prefix: stream.prefix(&session.id),
            held: true,
            token: Arc::default(),
            deferred,
            claim,
            asides,
            stream,
            at,
            meta,
            notes,
            live: None,
            earlier: Vec::new(),
            hold: HoldTimer::new(shared, None, false),
            resumed,
            progressed: false,
            late: task.attempt == Attempt(1) && task.ended.is_some() && task.version == Version(2),
            answered: task.spec.output_is_result
                && task.spec.follower.as_ref().is_some_and(|follower| follower.session == session.id && !follower.output),
            request: None,
            waiter: None,
            patience,
            named: None,
        }
    }

    /// The request that can be called off.
    pub(super) fn of(mut self, request: &'a Request) -> Self {
        self.request = Some(request);
        self
    }

    /// The call that it answers, which leaves its work if it is not.
    pub(super) fn answering(mut self, waiter: Waiter) -> Self {
        self.waiter = Some(waiter);
        self
    }

    /// Passes on what the running work has to say besides: what it said before, and what it will say.
    pub(super) fn hearing(mut self, earlier: Vec<Note>, live: mpsc::Receiver<Note>) -> Self {
        self.earlier = earlier;
        self.live = Some(live);
        self
    }

    /// Has this done when the client was told the name of the task.
    pub(super) fn naming(mut self, named: crate::dialect::Sent) -> Self {
        self.named = Some(named);
        self
    }

    /// Runs to the answer, or until the stream ends otherwise; says whether there is nothing left of it.
    pub(super) async fn run(mut self) -> Result<bool, Ended> {
        let ended = self.follow().await;
        if ended.is_ok() && self.stream.kind == Kind::Result {
            // Not cut off: its reader knows what it has.
            self.session.came_back(self.stream.task);
        }
        match ended {
            // The answer to the request, whatever became of the stream.
            Err(Ended::Fault(fault)) => fail(self.session, self.out, &self.stream, fault).await.map(|()| true),
            ended => ended,
        }
    }

    async fn follow(&mut self) -> Result<bool, Ended> {
        let shared = self.shared;
        let engine = &shared.engine;
        // Watch first, then read: no change can fall between.
        let watch = engine.watch(vec![self.stream.task], self.wants_output());
        self.prime(None).await?;
        let comes_back = self.comes_back();
        let request = self.request;
        let mut earlier = std::mem::take(&mut self.earlier);
        while let Some(Ok(note)) = self.live.as_mut().map(mpsc::Receiver::try_recv) {
            earlier.push(note);
        }
        for note in earlier {
            match note {
                Note::Disconnect(retry) if comes_back => return self.leave(retry).await,
                // Progress stands in the log, unless the work was done before there was one.
                Note::Progress { .. } if !self.late => {}
                note => self.tell(&note).await?,
            }
        }
        let config = &shared.config.legacy;
        let (drained, over, ending) = (shared.drained(), self.session.over(), self.out.ending());
        let reconnect = async {
            match config.reconnect_after.filter(|_| comes_back) {
                Some(span) => engine.clock().sleep(span).await,
                None => std::future::pending().await,
            }
        };
        let off = async {
            match request {
                Some(request) => request.off().await,
                None => std::future::pending().await,
            }
        };
        let mut patience: Sleep = engine.clock().sleep(self.patience);
        tokio::pin!(drained, over, ending, reconnect, off);
        let session = self.session;
        let mut beat = self.beat()?;
        loop {
            let released = session.released.notified();
            let turn = match self.stream.kind {
                Kind::Streamed => self.stream_on(false).await?,
                Kind::Call | Kind::Result => self.tell_on().await?,
            };
            match turn {
                Turn::Over => return Ok(true),
                Turn::More => continue,
                Turn::Idle => {}
            }
            if let Some(result) = self.instead()? {
                return self.respond_instead(&result).await;
            }
            if std::mem::take(&mut self.progressed)
                && let Some(beat) = &mut beat
            {
                beat.put_off();
            }
            let waits = self.stream.kind == Kind::Result;
            tokio::select! {
                biased;
                () = &mut off => return Ok(true),
                () = &mut over => return Ok(true),
                () = self.hold.expired() => {}
                // What has a place to go on from goes on after the restart.
                () = &mut drained, if comes_back => return self.leave(config.retry).await,
                () = &mut ending, if waits => return Ok(true),
                () = &mut reconnect => return self.leave(config.retry).await,
                Some(note) = next(&mut self.live) => match note {
                    Note::Disconnect(retry) if comes_back => return self.leave(retry).await,
                    // How it is getting on stands in the log.
                    Note::Progress { .. } | Note::Status(_) | Note::Disconnect(_) => {}
                    note @ Note::Log { .. } => self.tell(&note).await?,
                },
                () = &mut patience, if self.stream.kind == Kind::Streamed && !self.at.begun => {
                    self.stream_on(true).await?;
                }
                Some(message) = self.asides.recv() => self.send(&message, false).await?,
                _ = watch.changed() => {}
                () = held::due(&mut beat) => {
                    let task = self.task()?;
                    if let Some(message) = beat.as_mut().and_then(|beat| beat.message(&mut self.notes, task.as_deref())) {
                        self.send(&message, false).await?;
                    }
                }
                () = released, if self.stream.kind != Kind::Streamed => {}
            }
        }
    }

    /// Whether a reader that is sent away comes back.
    fn comes_back(&self) -> bool {
        self.out.framing().named && self.prefix.is_some() && self.agreed.has_primes()
    }

    /// Whether it is this stream that tells of the task, and no later one. One that tells again asks what is open, and goes
    /// on where the later one was.
    fn holds(&mut self) -> bool {
        let Some(claim) = &self.claim else { return true };
        let holds = claim.holds();
        if holds && !self.held {
            self.at.seq = self.at.seq.max(self.session.given(self.stream.task));
            self.at.begun = false;
        }
        self.held = holds;
        holds
    }

    fn wants_output(&self) -> bool {
        match self.stream.kind {
            Kind::Call => false,
            Kind::Result => self.agreed.partial && !self.answered,
            Kind::Streamed => true,
        }
    }

    /// The name of the place where the stream is.
    fn place(&self) -> Option<String> {
        self.prefix.as_deref().map(|prefix| self.at.id(prefix))
    }

    /// Sends a message, named if `named`.
    async fn send(&self, message: &[u8], named: bool) -> Result<(), Ended> {
        let name = if named { self.place() } else { None };
        Ok(self.out.send_framed(self.out.framing().named(name.as_deref(), message)).await?)
    }

    /// Gives the client a place to come back to, before there is anything to say.
    async fn prime(&self, retry: Option<Duration>) -> Result<(), Ended> {
        if let Some(place) = self.place().filter(|_| self.out.framing().named) {
            super::prime(self.out, &self.agreed, &place, retry).await?;
        }
        Ok(())
    }

    /// Ends the connection, not the stream, of a client that can come back.
    async fn leave(&mut self, retry: Duration) -> Result<bool, Ended> {
        self.prime(Some(retry)).await?;
        // The task is this stream's to tell of until its reader has had time to come back.
        let (token, claim, waiter) = (self.token.clone(), self.claim.take(), self.waiter.take());
        let back = self.shared.engine.clock().sleep(retry + GRACE);
        let shared = self.shared.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = back => drop(waiter),
                // It is come back to after the restart.
                () = shared.drained() => drop(waiter.map(|waiter| waiter.answered(false))),
            }
            drop((token, claim));
        });
        Ok(false)
    }

    async fn tell(&mut self, note: &Note) -> Result<(), Ended> {
        if let Some(message) = self.notes.message(note, self.meta.as_deref()) {
            self.send(&message, false).await?;
        }
        Ok(())
    }

    fn task(&self) -> Result<Option<Arc<Task>>, engine::Error> {
        self.shared.engine.task(&self.session.caller, self.stream.task)
    }

    /// Sends messages that belong together: who has the last has them all.
    async fn send_all(&self, messages: &[Vec<u8>]) -> Result<(), Ended> {
        for (nth, message) in messages.iter().enumerate() {
            self.send(message, nth + 1 == messages.len()).await?;
        }
        Ok(())
    }

    /// Says what stands in the log from here on.
    async fn tell_on(&mut self) -> Result<Turn, Ended> {
        let holds = self.holds();
        if holds {
            self.ask_open().await?;
            self.ask_deferred().await?;
        }
        let from = (holds && self.wants_output()).then_some(self.at.seq);
        let cursor = Cursor { after: self.at.version, from, bytes: TURN_BYTES, chunks: TURN_CHUNKS };
        let Some(page) = self.shared.engine.page(self.stream.task, cursor)? else { return Err(self.forgotten()) };
        let Some(task) = self.task()? else { return Err(self.forgotten()) };
        if is_behind(&task, &page) {
            return Ok(Turn::Idle);
        }
        for entry in page.entries {
            match entry {
                Entry::Chunk(chunk) => self.tell_chunk(&chunk).await?,
                Entry::Event(logged) if logged.event.outcome().is_some() => return self.answer(&task, logged.version).await,
                Entry::Event(logged) if holds => self.tell_event(&task, &logged).await?,
                Entry::Event(logged) => self.at.version = logged.version,
            }
        }
        if page.more {
            return Ok(Turn::More);
        }
        self.at.version = self.at.version.max(page.upto);
        // Its end is behind us: the answer was given.
        Ok(if page.ended { Turn::Over } else { Turn::Idle })
    }

    async fn tell_chunk(&mut self, chunk: &Chunk) -> Result<(), Ended> {
        self.at.seq = chunk.seq.next();
        self.pass(chunk.version);
        // A wait that begins where another was cut off does not tell what was told by itself since.
        if self.stream.kind == Kind::Result && self.session.given_here(self.stream.task, chunk.seq) {
            return Ok(());
        }
        let message = view::partial(self.stream.task, chunk, self.meta.as_deref().unwrap_or("{}"));
        self.session.give(self.stream.task, chunk.seq..self.at.seq);
        self.send(&message, true).await
    }

    async fn tell_event(&mut self, task: &Task, logged: &Logged) -> Result<(), Ended> {
        self.pass(logged.version);
        let mut messages = Vec::new();
        if let Event::Said { message, progress: Some(progress) } = &logged.event {
            messages.extend(self.notes.progress(*progress, message.as_deref(), self.meta.as_deref()));
            self.progressed |= !messages.is_empty();
        }
        // An older state need not be told: a newer one will be.
        if self.stream.kind == Kind::Result && logged.event.is_visible() && task.changed == logged.version {
            messages.push(self.status(task));
        }
        if let Event::Asked { key, request } = &logged.event
            && is_open(task, key)
        {
            messages.extend(self.question(key, request));
        }
        self.send_all(&messages).await
    }

    /// Goes on to an event. All up to there is told here, and need not be told elsewhere.
    fn pass(&mut self, version: Version) {
        if version > self.at.version {
            if self.stream.kind == Kind::Result {
                self.session.tell_elsewhere(self.stream.task, self.at.version.next()..version.next());
            }
            self.at.version = version;
        }
    }

    fn status(&self, task: &Task) -> Vec<u8> {
        view::status_notification(task, self.shared.engine.clock().now(), &self.shared.config)
    }

    /// Answers the request, now that the task has ended.
    async fn answer(&mut self, task: &Arc<Task>, ended: Version) -> Result<Turn, Ended> {
        if self.stream.kind == Kind::Result {
            if self.held && self.session.ends(task.id, &self.stream.request) {
                self.pass(ended);
                self.send(&self.status(task), false).await?;
            }
        } else if matches!(task.outcome, Some(Outcome::Cancelled { .. })) && self.request.is_none_or(Request::is_off) {
            // Called off by who made the call: nobody waits for an answer.
            return Ok(Turn::Over);
        }
        self.at.version = ended;
        let known = self.stream.kind == Kind::Result;
        let message = outcome::message(self.shared, &self.stream.request, task, known, self.waiter.as_ref())?;
        let answering = self.waiter.take().map(|waiter| waiter.answering(true));
        self.send(&message, true).await?;
        if let Some(answering) = answering {
            answering.delivered();
        }
        Ok(Turn::Over)
    }

    /// Sends what was written since; the first time also if that is nothing, if it `must`.
    async fn stream_on(&mut self, must: bool) -> Result<Turn, Ended> {
        if self.at.version > Version(0) {
            return Ok(Turn::Over);
        }
        let engine = &self.shared.engine;
        let Some(mut part) = streamed::read(engine, self.stream.task, self.at.seq, 0, TURN_BYTES)? else { return Err(self.forgotten()) };
        let Some(task) = self.task()? else { return Err(self.forgotten()) };
        // What is kept in memory may be a moment behind; then a wake-up is on its way.
        part.over &= task.ended.is_some();
        let (over, more, next) = (part.over, part.more, part.next);
        if part.segments.is_empty() && !over && (self.at.begun || !must) {
            return Ok(Turn::Idle);
        }
        let (result, all) = match self.at.begun {
            false => streamed::first(self.shared, &task, part)?,
            true => (streamed::result(self.shared, &task, part, false)?, true),
        };
        self.at.begun = true;
        if all {
            self.at.seq = next;
            self.at.version = Version(u64::from(over));
        }
        self.respond(result).await?;
        Ok(match (all, over) {
            (true, true) => Turn::Over,
            (true, false) if !more => Turn::Idle,
            _ => Turn::More,
        })
    }

    async fn respond(&mut self, result: Object) -> Result<(), Ended> {
        self.send(&view::response(&self.stream.request, result), true).await?;
        if let Some(named) = self.named.take() {
            named.delivered();
        }
        Ok(())
    }

    fn forgotten(&self) -> Ended {
        Ended::Fault(forgotten(&self.stream))
    }
}

/// Answers the request that a stream belongs to with an error; nothing follows.
pub(super) async fn fail(session: &Session, out: &Outbox, stream: &Stream, fault: Fault) -> Result<(), Ended> {
    let mut message = Vec::new();
    if let Err(error) = write_error(&mut message, Some(&stream.request), &super::downgraded(fault).error) {
        tracing::error!(%error, "an error could not be written");
    }
    let name = stream.prefix(&session.id).map(|prefix| At::END.id(&prefix));
    Ok(out.send_framed(out.framing().named(name.as_deref(), &message)).await?)
}

/// The task was kept long enough.
pub(super) fn forgotten(stream: &Stream) -> Fault {
    Fault::params("Task not found: it has expired").with_data(json!({"taskId": stream.task}))
}

/// Whether the task, which may come from memory, is a moment behind what was read of its log; then a wake-up is on its way.
pub(super) fn is_behind(task: &Task, page: &Page) -> bool {
    page.entries.iter().any(|entry| matches!(entry, Entry::Event(logged) if logged.event.is_visible() && logged.version > task.changed))
}

/// Whether a question waits for an answer.
fn is_open(task: &Task, key: &InputKey) -> bool {
    task.open_inputs().any(|(open, _)| open == key)
}

async fn next(notes: &mut Option<mpsc::Receiver<Note>>) -> Option<Note> {
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

/// Whether the answer that a stream leads to was given before this place, or will never be.
pub(super) fn is_over(stream: &Stream, at: At, task: &Task) -> bool {
    match (stream.kind, task.ended) {
        (Kind::Streamed, _) => at.version > Version(0),
        // By who made the call, unless others could.
        (Kind::Call, Some(_)) if matches!(task.outcome, Some(Outcome::Cancelled { .. })) && !task.spec.findable => true,
        (_, ended) => ended.is_some_and(|(_, version)| at.version >= version),
    }
}

/// The request that a stream is the answer to.
pub(super) fn stream(kind: Kind, task: &Task, request: &RequestId) -> Stream {
    Stream { kind, task: task.id, request: request.clone() }
}
