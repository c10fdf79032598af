//! What a session has in memory: what was delivered on which stream, which streams are open, which requests wait.
//!
//! If it is lost with the process, some messages are sent twice, and no worse.

mod reask;
mod request;
mod unanswered;

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    ops::Range,
    sync::{Arc, Weak},
    time::Duration,
};

use taskwire_core::{CallerId, QuestionKey, Seq, SessionId, TaskId, Timestamp, Version, task::Task, wire::RequestId};
use tokio::sync::{mpsc, watch};

pub(super) use self::reask::{Reask, SharedReask};
pub(super) use self::request::RequestGuard;
use self::unanswered::UnansweredCalls;
use super::{outcome, session::Session, task_stream::is_open};
pub(super) use crate::protocol::call::CANCELLED_BY_CALLER;
use crate::{
    engine::{self, Engine, Run},
    protocol::{
        CallerPermit, Context,
        call::waiter::{Waiter, WaitingCall},
        prune::Prune,
    },
};

/// How many tasks of one session are tracked.
const TRACKED_TASKS_MAX: usize = 1_024;
/// How many ranges of a task are remembered as delivered outside the outbox.
const RANGES_MAX: usize = 64;
/// A longer request id is not remembered.
const ID_CHARS_MAX: usize = 256;
/// How long a cancel waits for a request that it overtook. Later a request with this id is another one.
const EARLY_CANCEL_TIME: Duration = Duration::from_secs(2);
/// How often, and among how many tasks of the caller, a request is looked for that another node answers.
const CANCEL_LOOKS: usize = 3;
const LOOKED_AT_MAX: usize = 64;
/// From this many requests on, those whose work has ended are removed; as many cancelled ones are remembered.
const OPEN_REQUESTS_MAX: usize = 64;
/// From this many questions on, those whose stream is gone are removed.
const ASKED_MIN: usize = 16;

/// A stream that claimed a task, and the channel for its messages that are in no log.
type ClaimEntry = (u64, mpsc::Sender<Vec<u8>>);

#[derive(Debug, Default)]
pub(super) struct LiveState {
    /// Tasks whose ids the client does not have yet.
    withheld: HashSet<TaskId>,
    deliveries: HashMap<TaskId, Delivery>,
    prune_deliveries: Prune<TRACKED_TASKS_MAX>,
    /// Tasks with streams of their own; the latest of these sends the task.
    claims: HashMap<TaskId, Vec<ClaimEntry>>,
    claim_count: u64,
    /// Tasks whose own stream has ended: the session stream may have to ask their questions again.
    released: BTreeSet<TaskId>,
    /// Questions, and the stream that asked them, if it is still open.
    asked: HashMap<(TaskId, QuestionKey), Weak<()>>,
    prune_asked: Prune<ASKED_MIN>,
    /// Questions that are asked again, because the answer did not fit.
    reasks: HashMap<(TaskId, QuestionKey), Reask>,
    pub(super) open_requests: HashMap<RequestId, OpenRequest>,
    prune_open_requests: Prune<OPEN_REQUESTS_MAX>,
    unanswered: UnansweredCalls,
    /// The latest requests that were cancelled.
    cancelled: VecDeque<CancelledRequest>,
    /// How many entries of the outbox the session stream has sent; not known after a restart.
    outbox_delivered: u64,
    /// The session stream's channel for messages that are in no log.
    unlogged: Option<mpsc::Sender<Vec<u8>>>,
    session_stream: Weak<()>,
    /// The permit of the session stream; the next one takes it over.
    session_stream_permit: Weak<CallerPermit>,
}

impl LiveState {
    pub(super) fn new(outbox_delivered: u64) -> Self {
        Self { outbox_delivered, ..Self::default() }
    }

    /// Whether a stream is open, or a request waits.
    pub(super) fn is_in_use(&self) -> bool {
        self.session_stream.strong_count() > 0 || self.open_requests.values().any(|running| running.awaited)
    }

    /// Whether the session stream that is open has asked this.
    fn session_stream_asked(&self, id: TaskId, key: &QuestionKey) -> bool {
        let asked = self.asked.get(&(id, key.clone())).and_then(Weak::upgrade);
        matches!((asked, self.session_stream.upgrade()), (Some(asked), Some(current)) if Arc::ptr_eq(&asked, &current))
    }

    fn prune_asked(&mut self) {
        self.prune_asked.retain(&mut self.asked, |_, stream| stream.strong_count() > 0);
    }

    fn prune_open_requests(&mut self) {
        self.prune_open_requests.retain(&mut self.open_requests, |_, running| running.awaited || running.is_running());
    }

    /// What was delivered of a task; removes old entries before it adds one.
    fn delivery_of(&mut self, id: TaskId) -> &mut Delivery {
        if !self.deliveries.contains_key(&id) {
            self.prune_deliveries.retain(&mut self.deliveries, |id, _| self.claims.contains_key(id) || self.released.contains(id));
        }
        self.deliveries.entry(id).or_default()
    }
}

/// What a session was sent of a task.
#[derive(Debug, Default)]
struct Delivery {
    /// The first chunk that was not delivered.
    next_seq: Seq,
    /// Chunks that were not delivered by the outbox, in its order.
    chunks_outside_outbox: Vec<Range<Seq>>,
    /// Events that were not delivered by the outbox, in its order.
    events_outside_outbox: Vec<Range<Version>>,
    /// The version of the last status that the session stream sent.
    status_version: Version,
    /// Where the last `tasks/result` began, if its client may not have seen any of it.
    result_wait_from: Option<Seq>,
    /// The request on whose stream the end was sent.
    end_delivered_to: Option<RequestId>,
}

/// Adds a range, joined to the last one if it follows that.
fn extend<T: PartialEq>(known: &mut Vec<Range<T>>, more: Range<T>) {
    let count = known.len();
    match known.last_mut() {
        Some(last) if last.end == more.start => last.end = more.end,
        _ if count < RANGES_MAX => known.push(more),
        _ => {}
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CancelState {
    Active,
    /// Nobody waits for it any more, but its work goes on.
    Detached,
    Stopped,
}

#[derive(Debug)]
struct CancelledRequest {
    id: RequestId,
    stops_work: bool,
    /// When it was cancelled, if no such request was open.
    early_at: Option<Timestamp>,
}

/// When a call was made, and its progress token.
type CallStart = (Timestamp, Option<RequestId>);

#[derive(Debug)]
pub(super) struct OpenRequest {
    cancel_state: Arc<watch::Sender<CancelState>>,
    pub(super) run: Option<Weak<Run>>,
    /// The task, if it was created before its work ran.
    pub(super) task: Option<TaskId>,
    /// Whether its work lingers, and the same call joins it.
    joinable: bool,
    /// The call, as long as it waits.
    waiting_call: Weak<WaitingCall>,
    /// Kept for a client that resumes the call, whose task may be that of another call.
    call_start: Option<CallStart>,
    /// Whether a client waits for the response.
    awaited: bool,
}

impl OpenRequest {
    /// The task that its work is, or may become.
    fn task_id(&self) -> Option<TaskId> {
        self.task.or_else(|| Some(self.run.as_ref()?.upgrade()?.id()))
    }

    /// Whether its work runs in this process.
    fn is_running(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.strong_count() > 0)
    }
}

impl Session {
    /// Sends nothing about a task until [`Self::announce`]: the client must get its id first.
    pub(super) fn withhold(&self, id: TaskId) {
        self.live().withheld.insert(id);
    }

    pub(super) fn announce(&self, id: TaskId) {
        if self.live().withheld.remove(&id) {
            self.session_stream_wake.notify_waiters();
        }
    }

    pub(super) fn is_withheld(&self, id: TaskId) -> bool {
        self.live().withheld.contains(&id)
    }

    pub(super) fn next_undelivered(&self, id: TaskId) -> Seq {
        self.delivered_up_to(id).unwrap_or_default()
    }

    /// Where a new `tasks/result` begins: at the first chunk that was not delivered, or where the last one began if that was cut off before
    /// its client could resume it. The new one has its claim by now.
    pub(super) fn result_wait_from(&self, id: TaskId) -> Seq {
        let mut live = self.live();
        let alone = live.claims.get(&id).is_none_or(|claims| claims.len() <= 1);
        let delivery = live.delivery_of(id);
        let from = delivery.result_wait_from.filter(|_| alone).unwrap_or(delivery.next_seq);
        delivery.result_wait_from = Some(from);
        from
    }

    /// The client resumed a `tasks/result`: it has seen the beginning, and can resume it again.
    pub(super) fn forget_result_wait(&self, id: TaskId) {
        self.live().delivery_of(id).result_wait_from = None;
    }

    pub(super) fn chunk_delivered_outside_outbox(&self, id: TaskId, chunk: Seq) -> bool {
        self.live().deliveries.get(&id).is_some_and(|sent| sent.chunks_outside_outbox.iter().any(|range| range.contains(&chunk)))
    }

    pub(super) fn chunk_delivered_by_outbox(&self, id: TaskId, chunk: Seq) -> bool {
        let live = self.live();
        live.deliveries
            .get(&id)
            .is_some_and(|sent| chunk < sent.next_seq && !sent.chunks_outside_outbox.iter().any(|range| range.contains(&chunk)))
    }

    pub(super) fn record_chunks_outside_outbox(&self, id: TaskId, chunks: Range<Seq>) {
        let mut live = self.live();
        let delivery = live.delivery_of(id);
        delivery.next_seq = chunks.end.max(delivery.next_seq);
        extend(&mut delivery.chunks_outside_outbox, chunks);
    }

    /// Records chunks that a session stream sends; `false` if another stream has to send them now.
    pub(super) fn record_chunks_on_session_stream(&self, id: TaskId, chunks: Range<Seq>, stream: &Arc<()>) -> bool {
        let mut live = self.live();
        if live.claims.contains_key(&id) || live.session_stream.as_ptr() != Arc::as_ptr(stream) {
            return false;
        }
        let delivery = live.delivery_of(id);
        delivery.next_seq = chunks.end.max(delivery.next_seq);
        true
    }

    pub(super) fn record_events_outside_outbox(&self, id: TaskId, events: Range<Version>) {
        extend(&mut self.live().delivery_of(id).events_outside_outbox, events);
    }

    /// Records that the stream of a request sends the end of a task; `false` if that of another request has.
    pub(super) fn record_end(&self, id: TaskId, request: &RequestId) -> bool {
        let mut live = self.live();
        live.delivery_of(id).end_delivered_to.get_or_insert_with(|| request.clone()) == request
    }

    /// Records that the session stream sends a status; `false` if it has sent this one, or a later one.
    pub(super) fn record_status(&self, id: TaskId, changed: Version) -> bool {
        let mut live = self.live();
        let delivery = live.delivery_of(id);
        let is_new = changed > delivery.status_version && changed > Version(1);
        delivery.status_version = delivery.status_version.max(changed);
        is_new
    }

    pub(super) fn event_delivered_outside_outbox(&self, id: TaskId, event: Version) -> bool {
        self.live().deliveries.get(&id).is_some_and(|sent| sent.events_outside_outbox.iter().any(|range| range.contains(&event)))
    }

    /// Forgets what was delivered of a task that has ended, unless something is still to be sent.
    pub(super) fn forget(&self, id: TaskId) {
        let mut live = self.live();
        if !live.claims.contains_key(&id) && !live.released.contains(&id) {
            live.deliveries.remove(&id);
        }
    }

    /// The first chunk of a task that was not delivered; none if nothing was.
    pub(super) fn delivered_up_to(&self, id: TaskId) -> Option<Seq> {
        self.live().deliveries.get(&id).map(|delivery| delivery.next_seq)
    }

    /// Lets a stream other than the session stream send a task, until the claim is dropped.
    pub(super) fn claim(self: &Arc<Self>, id: TaskId, unlogged: mpsc::Sender<Vec<u8>>) -> Claim {
        let mut live = self.live();
        live.delivery_of(id);
        live.claim_count += 1;
        let nth = live.claim_count;
        live.claims.entry(id).or_default().push((nth, unlogged));
        Claim { session: self.clone(), id, nth }
    }

    pub(super) fn is_claimed(&self, id: TaskId) -> bool {
        self.live().claims.contains_key(&id)
    }

    /// A task whose own stream has ended since the last time.
    pub(super) fn next_released(&self) -> Option<TaskId> {
        self.live().released.pop_first()
    }

    /// Makes the session stream ask a task's questions, and send what was not delivered of it.
    pub(super) fn release(&self, id: TaskId) {
        let mut live = self.live();
        if live.released.len() < TRACKED_TASKS_MAX {
            live.released.insert(id);
        }
    }

    /// Whether the session stream is to ask a question: not while another open stream has asked it, and only once itself, unless `again`
    /// says that its client was cut off before the question.
    pub(super) fn record_question_if_new(&self, id: TaskId, key: &QuestionKey, stream: &Arc<()>, again: bool) -> bool {
        let mut live = self.live();
        live.prune_asked();
        let asked = live.asked.get(&(id, key.clone())).and_then(Weak::upgrade);
        let asks = asked.is_none_or(|asked| again && Arc::ptr_eq(&asked, stream));
        if asks {
            live.asked.insert((id, key.clone()), Arc::downgrade(stream));
        }
        asks
    }

    /// Whether a task's own stream is to ask a question: not if the session stream has asked it.
    pub(super) fn record_question_of_task_stream(&self, id: TaskId, key: &QuestionKey, stream: &Arc<()>) -> bool {
        let mut live = self.live();
        live.prune_asked();
        let asks = !live.session_stream_asked(id, key);
        if asks {
            live.asked.insert((id, key.clone()), Arc::downgrade(stream));
        }
        asks
    }

    /// Whether a question that a stream has recorded is still open. An answer removes the record, so a stream that read the task before
    /// that answer would else ask once more: it must look again after it recorded the question.
    pub(super) async fn is_still_open(&self, context: &Context, id: TaskId, key: &QuestionKey) -> Result<bool, engine::Error> {
        let task = engine::skip_corrupt(context.engine.task(&self.caller, id).await)?;
        let is_open = task.is_some_and(|task| is_open(&task, key));
        if !is_open {
            self.forget_question(id, key);
        }
        Ok(is_open)
    }

    pub(super) fn forget_question(&self, id: TaskId, key: &QuestionKey) {
        let mut live = self.live();
        live.asked.remove(&(id, key.clone()));
        live.reasks.remove(&(id, key.clone()));
    }

    pub(super) fn session_stream_asked(&self, id: TaskId, key: &QuestionKey) -> bool {
        self.live().session_stream_asked(id, key)
    }

    /// The permit for a session stream: that of the one it replaces, or a new one.
    pub(super) fn session_stream_permit(&self, context: &Context) -> Option<Arc<CallerPermit>> {
        let mut live = self.live();
        let open = live.session_stream_permit.upgrade().or_else(|| context.listen_permit(&self.caller).map(Arc::new))?;
        live.session_stream_permit = Arc::downgrade(&open);
        Some(open)
    }

    /// Begins a session stream. Returns how many entries of the outbox were sent, and a future that ends when another one replaces it.
    pub(super) fn begin_session_stream(
        &self,
        stream: &Arc<()>,
        resumed: bool,
        unlogged: mpsc::Sender<Vec<u8>>,
    ) -> (u64, impl Future<Output = ()> + use<>) {
        let mut live = self.live();
        live.unlogged = Some(unlogged);
        let before = std::mem::replace(&mut live.session_stream, Arc::downgrade(stream));
        let asked: Vec<_> = live.asked.iter().filter(|(_, stream)| Weak::ptr_eq(stream, &before)).map(|(key, _)| key.clone()).collect();
        for question in asked {
            if resumed {
                // The client has the question, or gets it again.
                live.asked.insert(question, Arc::downgrade(stream));
            } else {
                live.asked.remove(&question);
                live.released.insert(question.0);
            }
        }
        let mut later = self.session_stream_count.subscribe();
        self.session_stream_count.send_modify(|count| *count += 1);
        let mine = *later.borrow_and_update();
        let replaced = async move {
            let _ = later.wait_for(|count| *count > mine).await;
        };
        (live.outbox_delivered, replaced)
    }

    /// Another node has sent this much of the outbox. Returns how much was sent in all.
    pub(super) fn raise_outbox_delivered(&self, number: u64) -> u64 {
        let mut live = self.live();
        live.outbox_delivered = live.outbox_delivered.max(number);
        live.outbox_delivered
    }

    pub(super) fn outbox_delivered(&self) -> u64 {
        self.live().outbox_delivered
    }

    /// Records how many entries of the outbox were sent, if this is still the session stream.
    pub(super) fn record_outbox_delivered(&self, number: u64, stream: &Arc<()>) {
        let mut live = self.live();
        if live.session_stream.as_ptr() == Arc::as_ptr(stream) {
            live.outbox_delivered = live.outbox_delivered.max(number);
        }
    }

    /// Sends a message about a task that is in no log, on the stream that sends the task; drops it if none is open.
    pub(super) fn send_unlogged(&self, id: TaskId, message: Vec<u8>) {
        let live = self.live();
        if live.withheld.contains(&id) {
            return;
        }
        let own = live.claims.get(&id).and_then(|claims| claims.last()).map(|(_, unlogged)| unlogged);
        if let Some(unlogged) = own.or(live.unlogged.as_ref()) {
            let _ = unlogged.try_send(message);
        }
    }

    /// Registers a request, so that it can be cancelled; none if another one with this id is not answered yet. Over HTTP the cancel has a
    /// connection of its own, and may come first.
    pub(super) fn begin_request(self: &Arc<Self>, id: &RequestId, now: Timestamp) -> Option<RequestGuard> {
        let mut live = self.live();
        live.prune_open_requests();
        if live.open_requests.get(id).is_some_and(|running| running.awaited || running.is_running()) {
            return None;
        }
        let known = live.cancelled.iter().position(|cancelled| cancelled.id == *id);
        let early_at = known.and_then(|at| live.cancelled.remove(at)).and_then(|cancelled| cancelled.early_at);
        let is_cancelled = early_at.is_some_and(|at| now.since(at) < EARLY_CANCEL_TIME);
        let cancel_state = Arc::new(watch::Sender::new(if is_cancelled { CancelState::Detached } else { CancelState::Active }));
        // A client that resumes a call keeps what is known of it; a new call overwrites it.
        let call_start = live.open_requests.remove(id).and_then(|before| before.call_start);
        let running = OpenRequest {
            cancel_state: cancel_state.clone(),
            run: None,
            task: None,
            joinable: false,
            waiting_call: Weak::new(),
            call_start,
            awaited: true,
        };
        live.open_requests.insert(id.clone(), running);
        Some(RequestGuard::new(self, id, cancel_state, false))
    }

    /// Joins a request whose stream is resumed: both are cancelled together.
    pub(super) fn join_request(self: &Arc<Self>, id: &RequestId, now: Timestamp) -> Option<RequestGuard> {
        if let Some(request) = self.begin_request(id, now) {
            return Some(request);
        }
        let cancel_state = self.live().open_requests.get(id)?.cancel_state.clone();
        Some(RequestGuard::new(self, id, cancel_state, true))
    }

    pub(super) fn is_request_running(&self, id: &RequestId) -> bool {
        self.live().open_requests.get(id).is_some_and(OpenRequest::is_running)
    }

    /// Whether a request was cancelled recently, and if so whether its work was to stop.
    pub(super) fn request_cancelled(&self, id: &RequestId) -> Option<bool> {
        self.live().cancelled.iter().find(|cancelled| cancelled.id == *id).map(|cancelled| cancelled.stops_work)
    }

    /// A call that is the same, was made a while ago, and is not answered yet. A client that repeats a call has most likely given it up
    /// without cancelling it.
    pub(super) fn find_unanswered(&self, waiter: &Waiter, is_old: impl Fn(Timestamp) -> bool) -> Option<Arc<WaitingCall>> {
        let old = self.live().unanswered.take_old(is_old);
        for waiting in &old {
            if let Some(key) = waiting.dedupe_key() {
                self.live().unanswered.index(key.clone(), waiting);
            }
        }
        if !self.live().unanswered.has_old() {
            return None;
        }
        let same = self.live().unanswered.same(waiter.dedupe_key()?);
        same.into_iter().find(|waiting| waiter.is_other(waiting))
    }

    /// Cancels a request. If its client only would not wait any longer (`timed_out`), the work lingers.
    pub(super) fn cancel_request(&self, context: &Context, id: &RequestId, timed_out: bool) {
        let (running, given_up) = {
            let mut live = self.live();
            let running = live.open_requests.remove(id);
            let given_up = timed_out && running.as_ref().is_some_and(|running| running.joinable);
            // A client that resumes the stream must see that it has ended, and not wait for a call that it gave up.
            if !matches!(id, RequestId::Text(text) if text.len() > ID_CHARS_MAX) && !live.cancelled.iter().any(|known| known.id == *id) {
                let early_at = (running.is_none() && !timed_out).then(|| context.engine.clock().now());
                live.cancelled.push_back(CancelledRequest { id: id.clone(), stops_work: !given_up, early_at });
            }
            if live.cancelled.len() > OPEN_REQUESTS_MAX {
                live.cancelled.pop_front();
            }
            let Some(running) = running else {
                drop(live);
                if !timed_out && context.engine.is_shared() {
                    context.engine.spawn(cancel_elsewhere(context.engine.clone(), self.caller.clone(), self.id.clone(), id.clone()));
                }
                return;
            };
            running.cancel_state.send_replace(if running.joinable { CancelState::Detached } else { CancelState::Stopped });
            (running, given_up)
        };
        if given_up {
            // At once, because the same call may follow immediately.
            if let Some(waiting) = running.waiting_call.upgrade() {
                waiting.give_up();
            }
            return;
        }
        if running.joinable {
            // Other calls may wait for the work.
            match (running.waiting_call.upgrade(), running.task_id()) {
                (Some(waiting), _) => waiting.cancel(),
                (None, Some(id)) => context.calls.stop(context, &self.caller, id),
                (None, None) => {}
            }
            return;
        }
        if let Some(run) = running.run.and_then(|run| run.upgrade()) {
            run.cancel(CANCELLED_BY_CALLER);
        }
        if let Some(task) = running.task {
            context.engine.cancel_in_order(self.caller.clone(), task, CANCELLED_BY_CALLER);
        }
    }
}

/// Cancels a request that another node answers, once it has become a task. Until then nobody here knows it, and its node may go on with it.
async fn cancel_elsewhere(engine: Engine, caller: CallerId, session: SessionId, request: RequestId) {
    for _ in 0..CANCEL_LOOKS {
        match find_by_request(&engine, &caller, &session, &request).await {
            Ok(Some(id)) => return engine.cancel_in_order(caller, id, CANCELLED_BY_CALLER),
            Ok(None) => engine.clock().sleep(EARLY_CANCEL_TIME).await,
            Err(error) => return tracing::warn!(%error, "a request that another node answers could not be cancelled"),
        }
    }
}

async fn find_by_request(
    engine: &Engine,
    caller: &CallerId,
    session: &SessionId,
    request: &RequestId,
) -> Result<Option<TaskId>, engine::Error> {
    for id in engine.reader().tasks_of(caller, None, LOOKED_AT_MAX).await? {
        let task = engine::skip_corrupt(engine.task(caller, id).await)?;
        // Another call may share the work of a tool with `dedupe`; and whoever knows the task cancels that.
        let is_own = |task: &Task| task.spec.hidden && task.spec.fingerprint.is_none() && task.ended.is_none();
        if task.is_some_and(|task| is_own(&task) && outcome::is_of_request(&task, session, request)) {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// The right of a stream to send a task.
#[derive(Debug)]
pub(super) struct Claim {
    session: Arc<Session>,
    id: TaskId,
    nth: u64,
}

impl Claim {
    /// Whether no later stream has claimed the task.
    pub(super) fn holds(&self) -> bool {
        self.session.live().claims.get(&self.id).and_then(|claims| claims.last()).is_some_and(|(nth, _)| *nth == self.nth)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut live = self.session.live();
        if let Some(claims) = live.claims.get_mut(&self.id) {
            claims.retain(|(nth, _)| *nth != self.nth);
            if claims.is_empty() {
                live.claims.remove(&self.id);
                if live.released.len() < TRACKED_TASKS_MAX {
                    live.released.insert(self.id);
                }
            }
        }
        drop(live);
        self.session.task_released.notify_waiters();
        self.session.session_stream_wake.notify_waiters();
    }
}
