//! Sessions: what was agreed on with a client, kept in the store, and what is going on in it, kept in memory.
//!
//! Nothing that a client relies on is only in memory. What is lost with the process is what went out last to whom, which
//! costs a client some repetition at most.

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

/// Sessions in memory before those that nobody uses are forgotten; any can be loaded again.
const SESSIONS_MIN: usize = 4_096;

/// What was agreed on with a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SessionTerms {
    pub(super) version: String,
    /// What it can be asked.
    pub(super) accepts: AcceptedQuestions,
    /// Whether it wants to see output while it is produced (SEP-2679).
    #[serde(default)]
    pub(super) partial: bool,
    /// In which ways it can be answered (SEP-1905); absent if it does not know of any.
    #[serde(default)]
    pub(super) modes: Option<Vec<ResponseMode>>,
    /// Whether it wants to know that a call can be sent twice.
    #[serde(default)]
    pub(super) idempotency: bool,
    /// Whether it wants to know that output can be read by a request of the modern era.
    #[serde(rename = "reads", default)]
    pub(super) reads_output: bool,
    /// The least severe log line that it wants.
    pub(super) level: usize,
    /// Resources that it wants to hear of.
    #[serde(default)]
    pub(super) resources: BTreeSet<String>,
    /// Whether it ever had a standing stream: else it has yet to be told everything.
    #[serde(rename = "stood", default)]
    pub(super) had_session_stream: bool,
}

impl SessionTerms {
    /// Whether this version has tasks, and whatever else came with them.
    pub(super) fn has_tasks(&self) -> bool {
        self.version == super::VERSIONS[0]
    }

    /// Whether this version has events without a message: they say where, and when, to come back.
    pub(super) fn has_priming_events(&self) -> bool {
        self.version == super::VERSIONS[0]
    }

    /// Whether this version has batches.
    pub(super) fn has_batches(&self) -> bool {
        self.version == super::VERSIONS[2]
    }
}

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(super) id: SessionId,
    pub(super) caller: CallerId,
    terms: Mutex<Arc<SessionTerms>>,
    /// When it was last used, and when that was last stored.
    used_and_stored_at: Mutex<(Timestamp, Timestamp)>,
    live: Mutex<LiveState>,
    /// Held while it is being stored, so that nothing older comes after something newer.
    storing: tokio::sync::Mutex<()>,
    /// Whether somebody is storing that it is in use.
    touching: AtomicBool,
    /// Rung when something that kept the standing stream from going on is over.
    pub(super) session_stream_wake: Notify,
    /// Rung when a stream has let go of its task.
    pub(super) task_released: Notify,
    /// Counts standing streams: a newer one ends an older one.
    pub(super) session_stream_count: watch::Sender<u64>,
    ended: watch::Sender<bool>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each is consistent between statements, so a panic elsewhere does not spoil it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    fn new(row: &store::Session, agreed: SessionTerms, told: u64) -> Self {
        Self {
            id: row.id.clone(),
            caller: row.caller.clone(),
            terms: Mutex::new(Arc::new(agreed)),
            used_and_stored_at: Mutex::new((row.last_used, row.last_used)),
            live: Mutex::new(LiveState::new(told)),
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

    /// Changes what was agreed on; it holds when this returns.
    pub(super) async fn change_terms(&self, context: &Context, change: impl FnOnce(&mut SessionTerms)) -> Result<(), engine::Error> {
        {
            let mut agreed = lock(&self.terms);
            let mut next = SessionTerms::clone(&agreed);
            change(&mut next);
            *agreed = Arc::new(next);
        }
        self.store(context).await
    }

    /// Whether it was used since that was last stored.
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

    /// Whether the session is over.
    pub(super) fn is_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Notes that the session is in use. Not with every request in the store: a little earlier than need be it is
    /// forgotten, then.
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

    /// Waits until the session is over.
    pub(super) async fn ended(&self) {
        let _ = self.ended.subscribe().wait_for(|over| *over).await;
    }
}

/// The sessions that are in use.
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

    /// The session of this name, if it is the caller's and still good.
    pub(super) fn find(&self, context: &Arc<Context>, caller: &CallerId, name: &str) -> Result<Arc<Session>, Fault> {
        let gone = || {
            let message = "there is no session of this name, or it is over: initialize again, without `Mcp-Session-Id`";
            Fault::new(404, taskwire_core::wire::code::INVALID_REQUEST, message)
        };
        let id = SessionId::new(name);
        let known = self.map().get(&id).cloned();
        let session = match known {
            Some(session) => session,
            None => {
                let row = context.engine.reader().session(&id).map_err(engine::Error::from)?.ok_or_else(gone)?;
                let agreed = row.data.read().map_err(|error| Fault::internal(format!("the session cannot be read: {error}")))?;
                let agreed: SessionTerms = agreed;
                // One that never listened has yet to be told everything.
                let told =
                    if agreed.had_session_stream { context.engine.reader().outbox_end(&id).map_err(engine::Error::from)? } else { 0 };
                let session = self.keep(Session::new(&row, agreed, told));
                // It may have ended since it was read.
                if context.engine.reader().session(&id).map_err(engine::Error::from)?.is_none() {
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
        // One whose client listens, or waits, is not idle, however quiet it is.
        if now.since(lock(&session.used_and_stored_at).0) > idle && !session.live().is_in_use() {
            self.end(context, &session.id);
            return Err(gone());
        }
        session.touch(context);
        Ok(session)
    }

    /// Begins a session; others that were quiet for too long, or are too many, end.
    pub(super) async fn open(&self, context: &Arc<Context>, caller: &CallerId, agreed: SessionTerms) -> Result<Arc<Session>, Fault> {
        let config = &context.config.legacy;
        let now = context.engine.clock().now();
        let before = Timestamp::from_millis(now.as_millis() - i64::try_from(config.session_idle.as_millis()).unwrap_or(i64::MAX));
        let keep = config.sessions_per_caller.max(1) - 1;
        let idle = || context.engine.reader().idle_sessions(caller, before, keep).map_err(engine::Error::from);
        if !idle()?.is_empty() {
            // When they were last used is known here better than there.
            let mine: Vec<_> = self.map().values().filter(|session| session.caller == *caller).cloned().collect();
            for session in mine.iter().filter(|session| session.live().is_in_use()) {
                lock(&session.used_and_stored_at).0 = now;
            }
            let used: Vec<_> = mine.into_iter().filter(|session| session.has_unstored_use()).collect();
            // All at once, so that they share a commit.
            futures_util::future::try_join_all(used.iter().map(|session| session.store(context))).await?;
            for id in idle()? {
                self.end_now(context, &id).await?;
            }
        }
        let data = Payload::of(&agreed)?;
        let row = store::Session { id: crate::clock::new_session_id(), caller: caller.clone(), last_used: now, data };
        context.engine.change_session(SessionChange::Begin(row.clone())).await?;
        Ok(self.keep(Session::new(&row, agreed, 0)))
    }

    /// Ends a session, sooner or later.
    fn end(&self, context: &Arc<Context>, id: &SessionId) {
        self.close(id);
        let (context, id) = (context.clone(), id.clone());
        tokio::spawn(async move {
            if let Err(error) = context.engine.change_session(SessionChange::End(id)).await {
                tracing::warn!(%error, "the end of a session could not be stored");
            }
        });
    }

    /// Ends a session; it is over when this returns.
    pub(super) async fn end_now(&self, context: &Arc<Context>, id: &SessionId) -> Result<(), engine::Error> {
        context.engine.change_session(SessionChange::End(id.clone())).await?;
        self.close(id);
        Ok(())
    }

    /// Ends the streams of a session.
    fn close(&self, id: &SessionId) {
        if let Some(session) = self.map().remove(id) {
            // Its calls are left, and their work goes on for a while: its client may only have had enough of waiting.
            session.ended.send_replace(true);
        }
    }
}
