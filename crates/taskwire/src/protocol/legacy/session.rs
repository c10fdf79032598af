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
use taskwire_core::{CallerId, Payload, SessionId, Timestamp, task::AcceptedQuestions};
use tokio::sync::{Notify, watch};

use super::live::LiveState;
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

    /// Changes the terms; they are stored when this returns.
    pub(super) async fn change_terms(&self, context: &Context, change: impl FnOnce(&mut SessionTerms)) -> Result<(), engine::Error> {
        {
            let mut agreed = lock(&self.terms);
            let mut next = SessionTerms::clone(&agreed);
            change(&mut next);
            *agreed = Arc::new(next);
        }
        self.store(context).await
    }

    fn has_unstored_use(&self) -> bool {
        let seen = lock(&self.used_and_stored_at);
        seen.0 > seen.1
    }

    async fn store(&self, context: &Context) -> Result<(), engine::Error> {
        let _storing = self.storing.lock().await;
        let row = self.row(&self.terms());
        let seen = row.last_used;
        context.engine.change_session(SessionChange::Update(row)).await?;
        lock(&self.used_and_stored_at).1 = seen;
        Ok(())
    }

    fn row(&self, agreed: &SessionTerms) -> store::Session {
        let data = Payload::of(agreed).expect("it consists of texts, numbers and lists");
        store::Session { id: self.id.clone(), caller: self.caller.clone(), last_used: lock(&self.used_and_stored_at).0, data }
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

    /// The session of this id, if it is the caller's and has not expired.
    pub(super) async fn find(&self, context: &Arc<Context>, caller: &CallerId, name: &str) -> Result<Arc<Session>, Fault> {
        let gone = || {
            let message = "there is no session of this name, or it is over: initialize again, without `Mcp-Session-Id`";
            Fault::new(404, taskwire_core::wire::code::INVALID_REQUEST, message)
        };
        let id = SessionId::new(name);
        let known = self.map().get(&id).cloned();
        let session = match known {
            Some(session) => session,
            None => {
                let row = context.engine.reader().session(&id).await.map_err(engine::Error::from)?.ok_or_else(gone)?;
                let agreed = row.data.read().map_err(|error| Fault::internal(format!("the session cannot be read: {error}")))?;
                let agreed: SessionTerms = agreed;
                // A session that never had a session stream is sent its whole outbox.
                let outbox_delivered = if agreed.had_session_stream {
                    context.engine.reader().outbox_end(&id).await.map_err(engine::Error::from)?
                } else {
                    0
                };
                let session = self.keep(Session::new(&row, agreed, outbox_delivered));
                // It may have ended since it was read.
                if context.engine.reader().session(&id).await.map_err(engine::Error::from)?.is_none() {
                    self.close(&id);
                    return Err(gone());
                }
                session
            }
        };
        if session.caller != *caller {
            return Err(gone());
        }
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

    fn close(&self, id: &SessionId) {
        if let Some(session) = self.map().remove(id) {
            // Its calls linger: the client may only have given up waiting.
            session.ended.send_replace(true);
        }
    }
}
