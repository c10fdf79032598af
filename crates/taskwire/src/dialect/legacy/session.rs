//! Sessions: what was agreed on with a client, kept in the store, and what is going on in it, kept in memory.
//!
//! Nothing that a client relies on is only in memory. What is lost with the process is what went out last to whom, which
//! costs a client some repetition at most.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use serde::{Deserialize, Serialize};
use taskwire_core::{CallerId, InputKey, Payload, Seq, SessionId, TaskId, Timestamp, Version, task::Accepts, wire::RequestId};
use tokio::sync::{Notify, mpsc, watch};

use crate::{
    dialect::Fault,
    engine::{self, Run},
    server::{Mode, Shared},
    store::{self, SessionChange},
};

/// Sessions that are kept in memory; any can be loaded again.
const SESSIONS_MAX: usize = 4_096;
/// Tasks of one session whose last chunk is remembered.
const GIVEN_MAX: usize = 1_024;
/// Stretches of a task's output that are remembered to have been given elsewhere.
const RANGES_MAX: usize = 64;
/// Requests after which those whose work is over are forgotten.
const RUNNING_MAX: usize = 64;

/// What was agreed on with a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Agreed {
    pub(super) version: String,
    /// What it can be asked.
    pub(super) accepts: Accepts,
    /// Whether it wants to see output while it is produced (SEP-2679).
    #[serde(default)]
    pub(super) partial: bool,
    /// In which ways it can be answered (SEP-1905); absent if it does not know of any.
    #[serde(default)]
    pub(super) modes: Option<Vec<Mode>>,
    /// The least severe log line that it wants.
    pub(super) level: usize,
    /// Resources that it wants to hear of.
    #[serde(default)]
    pub(super) resources: BTreeSet<String>,
}

impl Agreed {
    /// Whether this version has tasks, and whatever else came with them.
    pub(super) fn has_tasks(&self) -> bool {
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
    agreed: Mutex<Arc<Agreed>>,
    /// When it was last used, and when that was last stored.
    seen: Mutex<(Timestamp, Timestamp)>,
    live: Mutex<Live>,
    /// Held while it is being stored, so that nothing older comes after something newer.
    storing: tokio::sync::Mutex<()>,
    /// Rung when something that kept the standing stream from going on is over.
    pub(super) bell: Notify,
    /// Rung when a stream has let go of its task.
    pub(super) released: Notify,
    /// Counts standing streams: a newer one ends an older one.
    standing: watch::Sender<u64>,
    over: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Live {
    /// Tasks whose names the client has not been told yet.
    hushed: HashSet<TaskId>,
    /// What the session was given of each task's output.
    given: HashMap<TaskId, Given>,
    /// Tasks that streams of their own tell of: the latest does.
    claims: HashMap<TaskId, Vec<u64>>,
    /// How many such streams there were.
    claimed: u64,
    /// Tasks whose own stream has ended: what it asked may have to be asked again.
    let_go: BTreeSet<TaskId>,
    /// Questions that were asked on a stream that may still be there.
    asked: HashMap<(TaskId, InputKey), Weak<()>>,
    /// Requests that are not answered yet.
    running: HashMap<RequestId, Running>,
    /// The latest requests that were called off.
    called_off: VecDeque<RequestId>,
    /// How many changes were told on the standing stream; nobody knows after a restart.
    told: u64,
    /// Where the standing stream takes what stands in no log.
    aside: Option<mpsc::Sender<Vec<u8>>>,
    /// The standing stream, if there is one.
    stands: Weak<()>,
}

impl Live {
    /// What the session was given of a task; there is always room for it.
    fn given_of(&mut self, id: TaskId) -> &mut Given {
        if self.given.len() >= GIVEN_MAX && !self.given.contains_key(&id) {
            self.given.clear();
        }
        self.given.entry(id).or_default()
    }
}

/// What a session was given of a task's output.
#[derive(Debug, Default)]
struct Given {
    /// The first chunk that it was not given.
    next: Seq,
    /// Chunks that it was given elsewhere than on its standing stream.
    elsewhere: Vec<Range<Seq>>,
    /// Events that it was told of elsewhere.
    told_elsewhere: Vec<Range<Version>>,
}

/// Adds a stretch to those that are known.
fn extend<T: PartialEq>(known: &mut Vec<Range<T>>, more: Range<T>) {
    let count = known.len();
    match known.last_mut() {
        Some(last) if last.end == more.start => last.end = more.end,
        _ if count < RANGES_MAX => known.push(more),
        _ => {}
    }
}

#[derive(Debug)]
struct Running {
    off: Arc<watch::Sender<bool>>,
    run: Option<Weak<Run>>,
    /// Whether somebody waits for the answer.
    awaited: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each is consistent between statements, so a panic elsewhere does not spoil it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    fn new(row: &store::Session, agreed: Agreed, told: u64) -> Self {
        Self {
            id: row.id.clone(),
            caller: row.caller.clone(),
            agreed: Mutex::new(Arc::new(agreed)),
            seen: Mutex::new((row.seen, row.seen)),
            live: Mutex::new(Live { told, ..Live::default() }),
            storing: tokio::sync::Mutex::default(),
            bell: Notify::new(),
            released: Notify::new(),
            standing: watch::Sender::new(0),
            over: watch::Sender::new(false),
        }
    }

    pub(super) fn agreed(&self) -> Arc<Agreed> {
        lock(&self.agreed).clone()
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        lock(&self.live)
    }

    /// Changes what was agreed on; it holds when this returns.
    pub(super) async fn agree(&self, shared: &Shared, change: impl FnOnce(&mut Agreed)) -> Result<(), engine::Error> {
        {
            let mut agreed = lock(&self.agreed);
            let mut next = Agreed::clone(&agreed);
            change(&mut next);
            *agreed = Arc::new(next);
        }
        self.store(shared).await
    }

    async fn store(&self, shared: &Shared) -> Result<(), engine::Error> {
        let _storing = self.storing.lock().await;
        let row = self.row(&self.agreed());
        shared.engine.change_session(SessionChange::Put(row)).await
    }

    fn row(&self, agreed: &Agreed) -> store::Session {
        let data = Payload::of(agreed).expect("it consists of texts, numbers and lists");
        store::Session { id: self.id.clone(), caller: self.caller.clone(), seen: lock(&self.seen).0, data }
    }

    /// Waits until the session is over.
    pub(super) async fn over(&self) {
        let _ = self.over.subscribe().wait_for(|over| *over).await;
    }

    /// Says nothing of a task until [`speak`](Self::speak): its name comes first.
    pub(super) fn hush(&self, id: TaskId) {
        self.live().hushed.insert(id);
    }

    pub(super) fn speak(&self, id: TaskId) {
        if self.live().hushed.remove(&id) {
            self.bell.notify_one();
        }
    }

    pub(super) fn is_hushed(&self, id: TaskId) -> bool {
        self.live().hushed.contains(&id)
    }

    /// The next chunk of a task that the session was not given.
    pub(super) fn given(&self, id: TaskId) -> Seq {
        self.live().given.get(&id).map(|given| given.next).unwrap_or_default()
    }

    /// Whether the session was given a chunk elsewhere than on its standing stream.
    pub(super) fn given_elsewhere(&self, id: TaskId, chunk: Seq) -> bool {
        self.live().given.get(&id).is_some_and(|given| given.elsewhere.iter().any(|range| range.contains(&chunk)))
    }

    /// Notes that the session was given chunks, on its standing stream or `elsewhere`.
    pub(super) fn give(&self, id: TaskId, chunks: Range<Seq>, elsewhere: bool) {
        let mut live = self.live();
        let given = live.given_of(id);
        given.next = chunks.end.max(given.next);
        if elsewhere {
            extend(&mut given.elsewhere, chunks);
        }
    }

    /// Notes that the session was told of events elsewhere than on its standing stream.
    pub(super) fn tell_elsewhere(&self, id: TaskId, events: Range<Version>) {
        extend(&mut self.live().given_of(id).told_elsewhere, events);
    }

    /// Whether the session was told of an event elsewhere than on its standing stream.
    pub(super) fn told_elsewhere(&self, id: TaskId, event: Version) -> bool {
        self.live().given.get(&id).is_some_and(|given| given.told_elsewhere.iter().any(|range| range.contains(&event)))
    }

    /// Forgets what the session was given of a task that is over.
    pub(super) fn forget(&self, id: TaskId) {
        self.live().given.remove(&id);
    }

    /// Lets a stream of its own tell of a task, for as long as the claim lives.
    pub(super) fn claim(self: &Arc<Self>, id: TaskId) -> Claim {
        let mut live = self.live();
        live.claimed += 1;
        let nth = live.claimed;
        live.claims.entry(id).or_default().push(nth);
        Claim { session: self.clone(), id, nth }
    }

    pub(super) fn is_claimed(&self, id: TaskId) -> bool {
        self.live().claims.contains_key(&id)
    }

    /// Tasks whose own stream has ended since the last time.
    pub(super) fn let_go(&self) -> BTreeSet<TaskId> {
        std::mem::take(&mut self.live().let_go)
    }

    /// Whether a question is to be asked on the standing stream: it is not, while another stream that asked it is there.
    pub(super) fn asks(&self, id: TaskId, key: &InputKey, stream: &Arc<()>) -> bool {
        let mut live = self.live();
        live.asked.retain(|_, stream| stream.strong_count() > 0);
        match live.asked.get(&(id, key.clone())) {
            Some(_) => false,
            None => {
                live.asked.insert((id, key.clone()), Arc::downgrade(stream));
                true
            }
        }
    }

    /// Notes that a stream of its own asks a task's question.
    pub(super) fn asked(&self, id: TaskId, key: &InputKey, stream: &Arc<()>) {
        self.live().asked.insert((id, key.clone()), Arc::downgrade(stream));
    }

    /// Whether the standing stream, which is still there, asked a question.
    pub(super) fn stands_asked(&self, id: TaskId, key: &InputKey) -> bool {
        let live = self.live();
        let asked = live.asked.get(&(id, key.clone())).and_then(Weak::upgrade);
        matches!((asked, live.stands.upgrade()), (Some(asked), Some(stands)) if Arc::ptr_eq(&asked, &stands))
    }

    /// Begins a standing stream; the number of the last change that was told, and a wait for the one after this.
    pub(super) fn stand(&self, stream: &Arc<()>, aside: mpsc::Sender<Vec<u8>>) -> (u64, impl Future<Output = ()> + use<>) {
        let mut live = self.live();
        live.aside = Some(aside);
        live.stands = Arc::downgrade(stream);
        let mut later = self.standing.subscribe();
        self.standing.send_modify(|count| *count += 1);
        let mine = *later.borrow_and_update();
        let replaced = async move {
            let _ = later.wait_for(|count| *count > mine).await;
        };
        (live.told, replaced)
    }

    /// Notes how many changes were told on the standing stream.
    pub(super) fn told(&self, number: u64) {
        let mut live = self.live();
        live.told = live.told.max(number);
    }

    /// Says something on the standing stream that stands in no log; nobody may be listening.
    pub(super) fn aside(&self, message: Vec<u8>) {
        if let Some(aside) = &self.live().aside {
            let _ = aside.try_send(message);
        }
    }

    /// Notes a request, so that it can be called off; none if another one of that name is not answered yet.
    pub(super) fn begin(self: &Arc<Self>, id: &RequestId) -> Option<Request> {
        let mut live = self.live();
        if live.running.len() >= RUNNING_MAX {
            live.running.retain(|_, running| running.awaited || running.run.as_ref().is_some_and(|run| run.strong_count() > 0));
        }
        let known = live.running.get(id);
        if known.is_some_and(|running| running.awaited || running.run.as_ref().is_some_and(|run| run.strong_count() > 0)) {
            return None;
        }
        let off = Arc::new(watch::Sender::new(false));
        live.running.insert(id.clone(), Running { off: off.clone(), run: None, awaited: true });
        Some(Request { session: self.clone(), id: id.clone(), off, answered: false })
    }

    /// Whether a request was called off, of late.
    pub(super) fn is_called_off(&self, id: &RequestId) -> bool {
        self.live().called_off.contains(id)
    }

    /// Calls a request off.
    pub(super) fn call_off(&self, id: &RequestId) {
        let Some(running) = self.live().running.remove(id) else { return };
        {
            let mut live = self.live();
            live.called_off.push_back(id.clone());
            if live.called_off.len() > RUNNING_MAX {
                live.called_off.pop_front();
            }
        }
        running.off.send_replace(true);
        if let Some(run) = running.run.and_then(|run| run.upgrade()) {
            run.call_off("the call was cancelled by its caller");
        }
    }
}

/// A request that is not answered yet. Its work goes on without it.
#[derive(Debug)]
pub(super) struct Request {
    session: Arc<Session>,
    id: RequestId,
    off: Arc<watch::Sender<bool>>,
    answered: bool,
}

impl Request {
    /// Names the work to be stopped when the request is called off.
    pub(super) fn runs(&self, run: &Arc<Run>) {
        if let Some(running) = self.session.live().running.get_mut(&self.id) {
            running.run = Some(Arc::downgrade(run));
        }
    }

    /// Waits until the request is called off.
    pub(super) async fn off(&self) {
        let _ = self.off.subscribe().wait_for(|off| *off).await;
    }

    pub(super) fn is_off(&self) -> bool {
        *self.off.borrow()
    }

    pub(super) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let mut live = self.session.live();
        let Some(running) = live.running.get_mut(&self.id).filter(|running| Arc::ptr_eq(&running.off, &self.off)) else { return };
        running.awaited = false;
        if self.answered || running.run.is_none() {
            live.running.remove(&self.id);
        }
    }
}

/// A task that a stream of its own tells of.
#[derive(Debug)]
pub(super) struct Claim {
    session: Arc<Session>,
    id: TaskId,
    nth: u64,
}

impl Claim {
    /// Whether no later stream has claimed the task.
    pub(super) fn holds(&self) -> bool {
        self.session.live().claims.get(&self.id).and_then(|claims| claims.last()) == Some(&self.nth)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut live = self.session.live();
        if let Some(claims) = live.claims.get_mut(&self.id) {
            claims.retain(|nth| *nth != self.nth);
            if claims.is_empty() {
                live.claims.remove(&self.id);
                if live.let_go.len() < GIVEN_MAX {
                    live.let_go.insert(self.id);
                }
            }
        }
        drop(live);
        self.session.released.notify_waiters();
        self.session.bell.notify_one();
    }
}

/// The sessions that are in use.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<HashMap<SessionId, Arc<Session>>>);

impl Sessions {
    fn map(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Session>>> {
        lock(&self.0)
    }

    fn keep(&self, session: Session) -> Arc<Session> {
        let mut map = self.map();
        if map.len() >= SESSIONS_MAX {
            map.retain(|_, session| Arc::strong_count(session) > 1);
        }
        map.entry(session.id.clone()).or_insert_with(|| Arc::new(session)).clone()
    }

    /// The session of this name, if it is the caller's and still good.
    pub(super) fn find(&self, shared: &Arc<Shared>, caller: &CallerId, name: &str) -> Result<Arc<Session>, Fault> {
        let gone = || {
            let message = "there is no session of this name, or it is over: initialize again, without `Mcp-Session-Id`";
            Fault::new(404, taskwire_core::wire::code::INVALID_REQUEST, message)
        };
        let id = SessionId::new(name);
        let known = self.map().get(&id).cloned();
        let session = match known {
            Some(session) => session,
            None => {
                let row = shared.engine.reader().session(&id).map_err(engine::Error::from)?.ok_or_else(gone)?;
                let agreed = row.data.read().map_err(|error| Fault::internal(format!("the session cannot be read: {error}")))?;
                let told = shared.engine.reader().told_end(&id).map_err(engine::Error::from)?;
                let session = self.keep(Session::new(&row, agreed, told));
                // It may have ended since it was read.
                if shared.engine.reader().session(&id).map_err(engine::Error::from)?.is_none() {
                    self.close(&id);
                    return Err(gone());
                }
                session
            }
        };
        if session.caller != *caller {
            return Err(gone());
        }
        let now = shared.engine.clock().now();
        let idle = shared.config.legacy.session_idle;
        let (seen, stored) = *lock(&session.seen);
        if now.since(seen) > idle {
            self.end(shared, &session.id);
            return Err(gone());
        }
        *lock(&session.seen) = (now.max(seen), stored);
        // Not with every request: a little earlier than need be it is forgotten, then.
        if now.since(stored) > idle / 16 {
            lock(&session.seen).1 = now;
            let (session, shared) = (session.clone(), shared.clone());
            tokio::spawn(async move {
                if let Err(error) = session.store(&shared).await {
                    tracing::warn!(%error, "that a session is in use could not be stored");
                }
            });
        }
        Ok(session)
    }

    /// Begins a session; others that were quiet for too long, or are too many, end.
    pub(super) async fn open(&self, shared: &Arc<Shared>, caller: &CallerId, agreed: Agreed) -> Result<Arc<Session>, Fault> {
        let config = &shared.config.legacy;
        let now = shared.engine.clock().now();
        let before = Timestamp::from_millis(now.as_millis() - i64::try_from(config.session_idle.as_millis()).unwrap_or(i64::MAX));
        let keep = config.sessions_per_caller.max(1) - 1;
        let idle = || shared.engine.reader().idle_sessions(caller, before, keep).map_err(engine::Error::from);
        if !idle()?.is_empty() {
            // When they were last used is known here better than there.
            let used: Vec<_> = self.map().values().filter(|session| session.caller == *caller).cloned().collect();
            for session in used {
                session.store(shared).await?;
            }
            for id in idle()? {
                self.end_now(shared, &id).await?;
            }
        }
        let data = Payload::of(&agreed)?;
        let row = store::Session { id: crate::clock::new_session_id(), caller: caller.clone(), seen: now, data };
        shared.engine.change_session(SessionChange::Begin(row.clone())).await?;
        Ok(self.keep(Session::new(&row, agreed, 0)))
    }

    /// Ends a session, sooner or later.
    fn end(&self, shared: &Arc<Shared>, id: &SessionId) {
        self.close(id);
        let (shared, id) = (shared.clone(), id.clone());
        tokio::spawn(async move {
            if let Err(error) = shared.engine.change_session(SessionChange::End(id)).await {
                tracing::warn!(%error, "the end of a session could not be stored");
            }
        });
    }

    /// Ends a session; it is over when this returns.
    pub(super) async fn end_now(&self, shared: &Arc<Shared>, id: &SessionId) -> Result<(), engine::Error> {
        shared.engine.change_session(SessionChange::End(id.clone())).await?;
        self.close(id);
        Ok(())
    }

    /// Ends the streams of a session.
    fn close(&self, id: &SessionId) {
        if let Some(session) = self.map().remove(id) {
            session.over.send_replace(true);
        }
    }
}
