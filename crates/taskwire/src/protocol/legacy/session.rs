//! Sessions: the terms agreed with a client, which are stored, and what is going on in it, which is in memory (`live`).
//!
//! Nothing that a client relies on is only in memory. If that is lost with the process, some messages are sent twice, and no worse.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::{Deserialize, Serialize};
use taskwire_core::{CallerId, Epoch, Payload, SessionId, Timestamp, task::AcceptedQuestions};
use tokio::sync::{Notify, watch};

use super::{
    find,
    live::{LiveState, SharedReask},
};
use crate::{
    config::ResponseMode,
    engine,
    protocol::{Context, Fault, prune::Prune},
    store::{self, SessionChange},
};

/// From this many sessions in memory on, unused ones are removed; each can be loaded again.
const SESSIONS_MIN: usize = 4_096;

/// What was agreed with a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SessionTerms {
    pub(super) version: String,
    pub(super) accepts: AcceptedQuestions,
    /// Whether it wants partials (SEP-2679).
    #[serde(default)]
    pub(super) partial: bool,
    /// Its response modes (SEP-1905); none if it declared none.
    #[serde(default)]
    pub(super) modes: Option<Vec<ResponseMode>>,
    /// Whether it declared the idempotency extension.
    #[serde(default)]
    pub(super) idempotency: bool,
    /// Whether it declared the partials extension: it can read output by a modern request.
    #[serde(rename = "reads", default)]
    pub(super) reads_output: bool,
    /// The least severe log level that it wants.
    pub(super) level: usize,
    /// The resources that it subscribed to.
    #[serde(default)]
    pub(super) resources: BTreeSet<String>,
    /// Whether it ever had a session stream; if not, its whole outbox is still to be sent.
    #[serde(rename = "stood", default)]
    pub(super) had_session_stream: bool,
    /// The session stream that is open, where nodes share the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) stream: Option<SharedStream>,
    /// How many items of its outbox session streams have sent, about, where nodes share the store.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) delivered: u64,
    /// Questions that are asked again, because the answer did not fit, where nodes share the store.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) reasks: Vec<SharedReask>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A session stream, for other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SharedStream {
    /// The node that has it.
    pub(super) epoch: Epoch,
    /// Different for each stream.
    pub(super) number: u64,
}

impl SessionTerms {
    /// Whether this version has tasks, and what came with them.
    pub(super) fn has_tasks(&self) -> bool {
        self.version == super::VERSIONS[0]
    }

    /// Whether this version has events without a message, which say from where, and when, to resume.
    pub(super) fn has_priming_events(&self) -> bool {
        self.version == super::VERSIONS[0]
    }

    pub(super) fn has_batches(&self) -> bool {
        self.version == super::VERSIONS[2]
    }
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(super) id: SessionId,
    pub(super) caller: CallerId,
    terms: Mutex<Arc<SessionTerms>>,
    /// The terms as they are stored.
    stored_terms: Mutex<Payload>,
    /// When it was last used, and when that was last stored.
    used_and_stored_at: Mutex<(Timestamp, Timestamp)>,
    live: Mutex<LiveState>,
    /// Held while the session is stored, so that an older state never overwrites a newer one.
    storing: tokio::sync::Mutex<()>,
    /// Whether its last use is being stored.
    touching: AtomicBool,
    /// Notified when the session stream may be able to go on.
    pub(super) session_stream_wake: Notify,
    /// Notified when a stream has released its task.
    pub(super) task_released: Notify,
    /// Counts session streams: a newer one replaces an older one.
    pub(super) session_stream_count: watch::Sender<u64>,
    ended: watch::Sender<bool>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No change is left half done by a panic, so a poisoned lock is still good.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    fn new(row: &store::Session, agreed: SessionTerms, outbox_delivered: u64) -> Self {
        Self {
            id: row.id.clone(),
            caller: row.caller.clone(),
            terms: Mutex::new(Arc::new(agreed)),
            stored_terms: Mutex::new(row.data.clone()),
            used_and_stored_at: Mutex::new((row.last_used, row.last_used)),
            live: Mutex::new(LiveState::new(outbox_delivered)),
            storing: tokio::sync::Mutex::default(),
            touching: AtomicBool::new(false),
            session_stream_wake: Notify::new(),
            task_released: Notify::new(),
            session_stream_count: watch::Sender::new(0),
            ended: watch::Sender::new(false),
        }
    }

    pub(super) fn terms(&self) -> Arc<SessionTerms> {
        lock(&self.terms).clone()
    }

    pub(super) fn live(&self) -> MutexGuard<'_, LiveState> {
        lock(&self.live)
    }

    /// Changes the terms; they are stored when this returns. If another node changes them too, both changes are made.
    pub(super) async fn change_terms(&self, context: &Context, change: impl Fn(&mut SessionTerms)) -> Result<(), engine::Error> {
        let _storing = self.storing.lock().await;
        loop {
            if context.engine.is_shared() && !self.read_row(context).await? {
                return Ok(());
            }
            let mut next = SessionTerms::clone(&self.terms());
            change(&mut next);
            if next == *self.terms() {
                return Ok(());
            }
            self.store_as(context, next).await?;
            if !context.engine.is_shared() {
                return Ok(());
            }
        }
    }

    /// Takes over what another node has changed; `false` if the session has ended.
    pub(super) async fn refresh(&self, context: &Context) -> Result<bool, engine::Error> {
        // So that an older row never replaces what this node has stored since it was read.
        let _storing = self.storing.lock().await;
        self.read_row(context).await
    }

    async fn read_row(&self, context: &Context) -> Result<bool, engine::Error> {
        match context.engine.reader().session(&self.id).await? {
            Some(row) => {
                self.take_over(&row)?;
                Ok(true)
            }
            None => {
                context.sessions.close(&self.id);
                Ok(false)
            }
        }
    }

    fn take_over(&self, row: &store::Session) -> Result<(), store::Error> {
        let mut seen = lock(&self.used_and_stored_at);
        *seen = (seen.0.max(row.last_used), seen.1.max(row.last_used));
        drop(seen);
        if *lock(&self.stored_terms) != row.data {
            let terms: SessionTerms = row.data.read().map_err(|error| store::Error::corrupt("a session", error))?;
            self.take_over_reasks(&terms.reasks);
            *lock(&self.terms) = Arc::new(terms);
            *lock(&self.stored_terms) = row.data.clone();
        }
        Ok(())
    }

    /// Whether another node has a session stream of this session: that sends what concerns the session's tasks.
    pub(super) async fn has_stream_elsewhere(&self, context: &Context) -> Result<bool, engine::Error> {
        if !context.engine.is_shared() || !self.refresh(context).await? {
            return Ok(false);
        }
        let stream = self.terms().stream;
        match stream {
            Some(stream) => context.engine.is_other_node(stream.epoch).await,
            None => Ok(false),
        }
    }

    fn has_unstored_use(&self) -> bool {
        let seen = lock(&self.used_and_stored_at);
        seen.0 > seen.1
    }

    /// Stores that the session was used.
    async fn store(&self, context: &Context) -> Result<(), engine::Error> {
        let _storing = self.storing.lock().await;
        self.store_as(context, SessionTerms::clone(&self.terms())).await
    }

    /// Stores the session with these terms, unless another node has changed them: that is known only after [`Self::refresh`].
    async fn store_as(&self, context: &Context, terms: SessionTerms) -> Result<(), engine::Error> {
        let data = Payload::of(&terms).expect("it consists of texts, numbers and lists");
        let last_used = lock(&self.used_and_stored_at).0;
        let before = context.engine.is_shared().then(|| lock(&self.stored_terms).clone());
        if before.is_none() {
            // At once: whoever waits for this may go away, and the writer carries it out all the same.
            *lock(&self.terms) = Arc::new(terms);
        }
        let session = store::Session { id: self.id.clone(), caller: self.caller.clone(), last_used, data };
        context.engine.change_session(SessionChange::Update { session, before }).await?;
        lock(&self.used_and_stored_at).1 = last_used;
        Ok(())
    }

    pub(super) fn is_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Records that the session is in use. Not every use is stored, so the session may expire a little too early.
    pub(super) fn touch(self: &Arc<Self>, context: &Arc<Context>) {
        let now = context.engine.clock().now();
        let due = {
            let mut seen = lock(&self.used_and_stored_at);
            seen.0 = now.max(seen.0);
            now.since(seen.1) > context.config.legacy.session_idle / 16
        };
        if due && !self.touching.swap(true, Ordering::AcqRel) {
            let (session, context) = (self.clone(), context.clone());
            tokio::spawn(async move {
                if let Err(error) = session.store(&context).await {
                    tracing::warn!(%error, "that a session is in use could not be stored");
                }
                session.touching.store(false, Ordering::Release);
            });
        }
    }

    pub(super) async fn ended(&self) {
        let _ = self.ended.subscribe().wait_for(|over| *over).await;
    }
}

/// The sessions in memory.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    map: Mutex<HashMap<SessionId, Arc<Session>>>,
    prune: Mutex<Prune<SESSIONS_MIN>>,
}

impl Sessions {
    fn map(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Session>>> {
        lock(&self.map)
    }

    fn keep(&self, session: Session) -> Arc<Session> {
        let mut map = self.map();
        lock(&self.prune).retain(&mut map, |_, session| Arc::strong_count(session) > 1);
        map.entry(session.id.clone()).or_insert_with(|| Arc::new(session)).clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.map().len()
    }

    /// The session of this id, if it is the caller's and has not expired.
    pub(super) async fn find(&self, context: &Arc<Context>, caller: &CallerId, name: &str) -> Result<Arc<Session>, Fault> {
        let gone = || {
            let message = "there is no session of this name, or it is over: initialize again, without `Mcp-Session-Id`";
            Fault::new(404, taskwire_core::wire::code::INVALID_REQUEST, message)
        };
        let id = SessionId::new(name);
        // Another caller's session is looked for in the store like one that never was, so that it takes as long.
        let known = self.map().get(&id).filter(|session| session.caller == *caller).cloned();
        let session = match known {
            Some(session) if !context.engine.is_shared() => session,
            // Another node may have changed or ended it.
            Some(session) => match session.refresh(context).await? {
                true => session,
                false => return Err(gone()),
            },
            None => {
                let row = context.engine.reader().session(&id).await.map_err(engine::Error::from)?;
                let Some(row) = row.filter(|row| row.caller == *caller) else {
                    // Anybody can name sessions that never were, also in messages that count as no requests.
                    context.admit_request(caller)?;
                    return Err(gone());
                };
                let agreed = row.data.read().map_err(|error| Fault::internal(format!("the session cannot be read: {error}")))?;
                let agreed: SessionTerms = agreed;
                // A session that never had a session stream is sent its whole outbox.
                let outbox_delivered = if context.engine.is_shared() {
                    agreed.delivered
                } else if agreed.had_session_stream {
                    context.engine.reader().outbox_end(&id).await.map_err(engine::Error::from)?
                } else {
                    0
                };
                let reasks = agreed.reasks.clone();
                let session = self.keep(Session::new(&row, agreed, outbox_delivered));
                session.take_over_reasks(&reasks);
                // It may have ended since it was read.
                if context.engine.reader().session(&id).await.map_err(engine::Error::from)?.is_none() {
                    self.close(&id);
                    return Err(gone());
                }
                session
            }
        };
        let now = context.engine.clock().now();
        let idle = context.config.legacy.session_idle;
        // A session with an open stream or a waiting request is not idle.
        if now.since(lock(&session.used_and_stored_at).0) > idle && !session.live().is_in_use() {
            self.end(context, &session.id);
            return Err(gone());
        }
        session.touch(context);
        Ok(session)
    }

    /// Begins a session, and ends others of the caller that were idle for too long, or are too many.
    pub(super) async fn open(&self, context: &Arc<Context>, caller: &CallerId, agreed: SessionTerms) -> Result<Arc<Session>, Fault> {
        let config = &context.config.legacy;
        let now = context.engine.clock().now();
        let before = Timestamp::from_millis(now.as_millis() - i64::try_from(config.session_idle.as_millis()).unwrap_or(i64::MAX));
        let keep = config.sessions_per_caller.max(1) - 1;
        let idle = async || context.engine.reader().idle_sessions(caller, before, keep).await.map_err(engine::Error::from);
        if !idle().await?.is_empty() {
            // Their last use is known better in memory than in the store.
            let mine: Vec<_> = self.map().values().filter(|session| session.caller == *caller).cloned().collect();
            for session in mine.iter().filter(|session| session.live().is_in_use()) {
                lock(&session.used_and_stored_at).0 = now;
            }
            let used: Vec<_> = mine.into_iter().filter(|session| session.has_unstored_use()).collect();
            // All at once, so that they share a commit.
            futures_util::future::try_join_all(used.iter().map(|session| session.store(context))).await?;
            for id in idle().await? {
                self.end_now(context, &id).await?;
            }
        }
        let data = Payload::of(&agreed)?;
        let row = store::Session { id: crate::clock::new_session_id(), caller: caller.clone(), last_used: now, data };
        context.engine.change_session(SessionChange::Begin(row.clone())).await?;
        Ok(self.keep(Session::new(&row, agreed, 0)))
    }

    /// Ends a session now, and stores that later.
    fn end(&self, context: &Arc<Context>, id: &SessionId) {
        self.close(id);
        let (context, id) = (context.clone(), id.clone());
        tokio::spawn(async move {
            if let Err(error) = context.engine.change_session(SessionChange::End(id)).await {
                tracing::warn!(%error, "the end of a session could not be stored");
            }
        });
    }

    /// Ends a session; that is stored when this returns.
    pub(super) async fn end_now(&self, context: &Arc<Context>, id: &SessionId) -> Result<(), engine::Error> {
        context.engine.change_session(SessionChange::End(id.clone())).await?;
        self.close(id);
        Ok(())
    }

    pub(super) fn close(&self, id: &SessionId) {
        if let Some(session) = self.map().remove(id) {
            // Its calls linger: the client may only have given up waiting.
            session.ended.send_replace(true);
        }
    }
}

pub(crate) async fn delete_session(
    context: &Arc<Context>,
    caller: &CallerId,
    session: Option<&str>,
    version: Option<&str>,
) -> Result<(), Fault> {
    let session = find(context, caller, session, version).await?;
    Ok(context.sessions.end_now(context, &session.id).await?)
}

pub(crate) async fn end_session(context: &Arc<Context>, session: &Arc<Session>) {
    if let Err(error) = context.sessions.end_now(context, &session.id).await {
        tracing::warn!(%error, "the end of a session could not be stored");
    }
}
