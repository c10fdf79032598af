//! What is going on in a session: what its client was told where, which streams it has, what it waits for.
//!
//! All of this is in memory. What is lost with the process costs a client some repetition at most.

mod reask;
mod request;
mod unanswered;

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    ops::Range,
    sync::{Arc, Weak},
};

use taskwire_core::{QuestionKey, Seq, TaskId, Timestamp, Version, wire::RequestId};
use tokio::sync::{mpsc, watch};

pub(super) use self::reask::Reask;
pub(super) use self::request::RequestGuard;
use self::unanswered::UnansweredCalls;
use super::session::Session;
pub(super) use crate::protocol::call::CANCELLED_BY_CALLER;
use crate::{
    engine::Run,
    protocol::{
        CallerPermit, Context,
        call::waiter::{Waiter, WaitingCall},
        prune::Prune,
    },
};

/// Tasks of one session whose last chunk is remembered.
const TRACKED_TASKS_MAX: usize = 1_024;
/// Stretches of a task's output that are remembered to have been given elsewhere.
const RANGES_MAX: usize = 64;
/// A name of a request that is longer is not remembered.
const ID_CHARS_MAX: usize = 256;
/// Requests after which those whose work is over are forgotten; as many that were called off are remembered.
const OPEN_REQUESTS_MAX: usize = 64;
/// Questions after which those whose stream is gone are forgotten.
const ASKED_MIN: usize = 16;

/// A stream that tells of a task, and where it takes what stands in no log.
type ClaimEntry = (u64, mpsc::Sender<Vec<u8>>);

/// What is going on in a session.
#[derive(Debug, Default)]
pub(super) struct LiveState {
    /// Tasks whose names the client has not been told yet.
    withheld: HashSet<TaskId>,
    /// What the session was given of each task's output.
    deliveries: HashMap<TaskId, Delivery>,
    prune_deliveries: Prune<TRACKED_TASKS_MAX>,
    /// Tasks that streams of their own tell of: the latest does.
    claims: HashMap<TaskId, Vec<ClaimEntry>>,
    /// How many such streams there were.
    claim_count: u64,
    /// Tasks whose own stream has ended: what it asked may have to be asked again.
    released: BTreeSet<TaskId>,
    /// Questions that were asked on a stream that may still be there.
    asked: HashMap<(TaskId, QuestionKey), Weak<()>>,
    prune_asked: Prune<ASKED_MIN>,
    /// Questions that are asked again, since what came was no answer.
    reasks: HashMap<(TaskId, QuestionKey), Reask>,
    /// Requests that are not answered yet.
    pub(super) open_requests: HashMap<RequestId, OpenRequest>,
    prune_open_requests: Prune<OPEN_REQUESTS_MAX>,
    unanswered: UnansweredCalls,
    /// The latest requests that were called off, and whether their work was to stop.
    cancelled: VecDeque<(RequestId, bool)>,
    /// How many changes were told on the standing stream; nobody knows after a restart.
    outbox_delivered: u64,
    /// Where the standing stream takes what stands in no log.
    unlogged: Option<mpsc::Sender<Vec<u8>>>,
    /// The standing stream, if there is one.
    session_stream: Weak<()>,
    /// What it counts for among the streams of its caller; the next one takes its place.
    session_stream_permit: Weak<CallerPermit>,
}

impl LiveState {
    /// Nothing yet, but that so many changes were told.
    pub(super) fn new(told: u64) -> Self {
        Self { outbox_delivered: told, ..Self::default() }
    }

    /// Whether somebody listens, or waits for an answer.
    pub(super) fn is_in_use(&self) -> bool {
        self.session_stream.strong_count() > 0 || self.open_requests.values().any(|running| running.awaited)
    }

    fn prune_asked(&mut self) {
        self.prune_asked.retain(&mut self.asked, |_, stream| stream.strong_count() > 0);
    }

    fn prune_open_requests(&mut self) {
        self.prune_open_requests.retain(&mut self.open_requests, |_, running| running.awaited || running.is_running());
    }

    /// What the session was given of a task; there is always room for it.
    fn delivery_of(&mut self, id: TaskId) -> &mut Delivery {
        if !self.deliveries.contains_key(&id) {
            self.prune_deliveries.retain(&mut self.deliveries, |id, _| self.claims.contains_key(id) || self.released.contains(id));
        }
        self.deliveries.entry(id).or_default()
    }
}

/// What a session was given of a task's output.
#[derive(Debug, Default)]
struct Delivery {
    /// The first chunk that it was not given.
    next_seq: Seq,
    /// Chunks that it was given elsewhere than on its standing stream.
    chunks_outside_outbox: Vec<Range<Seq>>,
    /// Events that it was told of elsewhere.
    events_outside_outbox: Vec<Range<Version>>,
    /// The last state that it was told on its standing stream.
    status_version: Version,
    /// Where the last wait for the result began, if its reader may never have seen any of it.
    result_wait_from: Option<Seq>,
    /// The request on whose stream it was told of the end.
    end_delivered_to: Option<RequestId>,
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

/// Whether a request was called off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CancelState {
    Active,
    /// Nobody waits for it any more, but its work goes on.
    Detached,
    /// Its work is to stop.
    Stopped,
}

/// When a call was made, and the name under which it hears of progress.
type CallStart = (Timestamp, Option<RequestId>);

/// A request that is not answered yet.
#[derive(Debug)]
pub(super) struct OpenRequest {
    cancel_state: Arc<watch::Sender<CancelState>>,
    pub(super) run: Option<Weak<Run>>,
    /// The task that does its work, if that was made at once.
    pub(super) task: Option<TaskId>,
    /// Whether its work goes on when nobody waits for it any more, and is found again by the same call.
    joinable: bool,
    /// The call that waits for it, if that still does.
    waiting_call: Weak<WaitingCall>,
    /// How the call was made, for a reader that comes back to it: its task may be another one's.
    call_start: Option<CallStart>,
    /// Whether somebody waits for the answer.
    awaited: bool,
}

impl OpenRequest {
    /// The task that its work is, or may become.
    fn task_id(&self) -> Option<TaskId> {
        self.task.or_else(|| Some(self.run.as_ref()?.upgrade()?.id()))
    }

    /// Whether its work goes on here.
    fn is_running(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.strong_count() > 0)
    }
}

impl Session {
    /// Says nothing of a task until [`speak`](Self::speak): its name comes first.
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

    /// The first chunk of a task that the session was not given.
    pub(super) fn next_undelivered(&self, id: TaskId) -> Seq {
        self.delivered_up_to(id).unwrap_or_default()
    }

    /// Where a new wait for the result of a task begins: where the session was last told of it, or where the last wait began,
    /// if that one was cut off before anybody could come back to it. The claim of the new one is there by now.
    pub(super) fn result_wait_from(&self, id: TaskId) -> Seq {
        let mut live = self.live();
        let alone = live.claims.get(&id).is_none_or(|claims| claims.len() <= 1);
        let given = live.delivery_of(id);
        let from = given.result_wait_from.filter(|_| alone).unwrap_or(given.next_seq);
        given.result_wait_from = Some(from);
        from
    }

    /// The reader of a wait came back to it: it has seen its beginning, and will come back again.
    pub(super) fn forget_result_wait(&self, id: TaskId) {
        self.live().delivery_of(id).result_wait_from = None;
    }

    /// Whether the session was given a chunk elsewhere than on its standing stream.
    pub(super) fn chunk_delivered_outside_outbox(&self, id: TaskId, chunk: Seq) -> bool {
        self.live().deliveries.get(&id).is_some_and(|given| given.chunks_outside_outbox.iter().any(|range| range.contains(&chunk)))
    }

    /// Whether the session was given a chunk on its standing stream.
    pub(super) fn chunk_delivered_by_outbox(&self, id: TaskId, chunk: Seq) -> bool {
        let live = self.live();
        live.deliveries
            .get(&id)
            .is_some_and(|given| chunk < given.next_seq && !given.chunks_outside_outbox.iter().any(|range| range.contains(&chunk)))
    }

    /// Notes that the session was given chunks elsewhere than on its standing stream.
    pub(super) fn record_chunks_outside_outbox(&self, id: TaskId, chunks: Range<Seq>) {
        let mut live = self.live();
        let given = live.delivery_of(id);
        given.next_seq = chunks.end.max(given.next_seq);
        extend(&mut given.chunks_outside_outbox, chunks);
    }

    /// Notes that the session is given a chunk on a standing stream; says `false` if that is not its to give any more.
    pub(super) fn record_chunks_on_session_stream(&self, id: TaskId, chunks: Range<Seq>, stream: &Arc<()>) -> bool {
        let mut live = self.live();
        if live.claims.contains_key(&id) || live.session_stream.as_ptr() != Arc::as_ptr(stream) {
            return false;
        }
        let given = live.delivery_of(id);
        given.next_seq = chunks.end.max(given.next_seq);
        true
    }

    /// Notes that the session was told of events elsewhere than on its standing stream.
    pub(super) fn record_events_outside_outbox(&self, id: TaskId, events: Range<Version>) {
        extend(&mut self.live().delivery_of(id).events_outside_outbox, events);
    }

    /// Notes that the stream of a request tells of the end of a task; says `false` if that of another one has.
    pub(super) fn record_end(&self, id: TaskId, request: &RequestId) -> bool {
        let mut live = self.live();
        live.delivery_of(id).end_delivered_to.get_or_insert_with(|| request.clone()) == request
    }

    /// Notes that the standing stream tells a state; says `false` if it has told that one, or a later one.
    pub(super) fn record_status(&self, id: TaskId, changed: Version) -> bool {
        let mut live = self.live();
        let given = live.delivery_of(id);
        let news = changed > given.status_version && changed > Version(1);
        given.status_version = given.status_version.max(changed);
        news
    }

    /// Whether the session was told of an event elsewhere than on its standing stream.
    pub(super) fn event_delivered_outside_outbox(&self, id: TaskId, event: Version) -> bool {
        self.live().deliveries.get(&id).is_some_and(|given| given.events_outside_outbox.iter().any(|range| range.contains(&event)))
    }

    /// Forgets what the session was given of a task that is over, unless there is something to be told yet.
    pub(super) fn forget(&self, id: TaskId) {
        let mut live = self.live();
        if !live.claims.contains_key(&id) && !live.released.contains(&id) {
            live.deliveries.remove(&id);
        }
    }

    /// The same, if anything is known of it.
    pub(super) fn delivered_up_to(&self, id: TaskId) -> Option<Seq> {
        self.live().deliveries.get(&id).map(|given| given.next_seq)
    }

    /// Lets a stream of its own tell of a task, for as long as the claim lives.
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

    /// Has a task's questions asked, and what else was not told of it told, on the standing stream.
    pub(super) fn release(&self, id: TaskId) {
        let mut live = self.live();
        if live.released.len() < TRACKED_TASKS_MAX {
            live.released.insert(id);
        }
    }

    /// Whether a question is to be asked on the standing stream: it is not, while another stream that asked it is there,
    /// nor again on this one, unless it comes `again` because its reader was cut off before it.
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

    /// Notes that a stream of its own asks a task's question.
    pub(super) fn record_question(&self, id: TaskId, key: &QuestionKey, stream: &Arc<()>) {
        let mut live = self.live();
        live.prune_asked();
        live.asked.insert((id, key.clone()), Arc::downgrade(stream));
    }

    /// Forgets who asked a question that is answered.
    pub(super) fn forget_question(&self, id: TaskId, key: &QuestionKey) {
        let mut live = self.live();
        live.asked.remove(&(id, key.clone()));
        live.reasks.remove(&(id, key.clone()));
    }

    /// Whether the standing stream, which is still there, asked a question.
    pub(super) fn session_stream_asked(&self, id: TaskId, key: &QuestionKey) -> bool {
        let live = self.live();
        let asked = live.asked.get(&(id, key.clone())).and_then(Weak::upgrade);
        matches!((asked, live.session_stream.upgrade()), (Some(asked), Some(stands)) if Arc::ptr_eq(&asked, &stands))
    }

    /// A place among the streams of the caller for a standing stream: that of the one that it replaces, or another one.
    pub(super) fn session_stream_permit(&self, context: &Context) -> Option<Arc<CallerPermit>> {
        let mut live = self.live();
        let open = live.session_stream_permit.upgrade().or_else(|| context.listen_permit(&self.caller).map(Arc::new))?;
        live.session_stream_permit = Arc::downgrade(&open);
        Some(open)
    }

    /// Begins a standing stream; the number of the last change that was told, and a wait for the one after this.
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
                // Its reader has it, or will have it again.
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

    /// Notes how many changes were told on the standing stream, if this is still the one.
    pub(super) fn record_outbox_delivered(&self, number: u64, stream: &Arc<()>) {
        let mut live = self.live();
        if live.session_stream.as_ptr() == Arc::as_ptr(stream) {
            live.outbox_delivered = live.outbox_delivered.max(number);
        }
    }

    /// Says something of a task that stands in no log, where else it is told of; nobody may be listening.
    pub(super) fn send_unlogged(&self, id: TaskId, message: Vec<u8>) {
        let live = self.live();
        if live.withheld.contains(&id) {
            return;
        }
        let own = live.claims.get(&id).and_then(|claims| claims.last()).map(|(_, aside)| aside);
        if let Some(aside) = own.or(live.unlogged.as_ref()) {
            let _ = aside.try_send(message);
        }
    }

    /// Notes a request, so that it can be called off; none if another one of that name is not answered yet.
    pub(super) fn begin_request(self: &Arc<Self>, id: &RequestId) -> Option<RequestGuard> {
        let mut live = self.live();
        live.prune_open_requests();
        if live.open_requests.get(id).is_some_and(|running| running.awaited || running.is_running()) {
            return None;
        }
        live.cancelled.retain(|(called_off, _)| called_off != id);
        let off = Arc::new(watch::Sender::new(CancelState::Active));
        // What is known of a call stays known when its reader comes back; a new one says anew how it is made.
        let made = live.open_requests.remove(id).and_then(|before| before.call_start);
        let running = OpenRequest {
            cancel_state: off.clone(),
            run: None,
            task: None,
            joinable: false,
            waiting_call: Weak::new(),
            call_start: made,
            awaited: true,
        };
        live.open_requests.insert(id.clone(), running);
        Some(RequestGuard::new(self, id, off, false))
    }

    /// Joins a request whose stream is resumed: what calls it off calls this off, too.
    pub(super) fn join_request(self: &Arc<Self>, id: &RequestId) -> Option<RequestGuard> {
        if let Some(request) = self.begin_request(id) {
            return Some(request);
        }
        let off = self.live().open_requests.get(id)?.cancel_state.clone();
        Some(RequestGuard::new(self, id, off, true))
    }

    /// Whether the work of a request goes on here.
    pub(super) fn is_request_running(&self, id: &RequestId) -> bool {
        self.live().open_requests.get(id).is_some_and(OpenRequest::is_running)
    }

    /// Whether a request was called off, of late, and if so whether its work was to stop.
    pub(super) fn request_cancelled(&self, id: &RequestId) -> Option<bool> {
        self.live().cancelled.iter().find(|(called_off, _)| called_off == id).map(|(_, stopped)| *stopped)
    }

    /// A call like this one that was made a while ago and is not answered yet: who repeats it has most likely given that up without
    /// a word.
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

    /// Calls a request off; one whose sender only would not wait any longer (`timed_out`) leaves its work.
    pub(super) fn cancel_request(&self, context: &Context, id: &RequestId, timed_out: bool) {
        let (running, given_up) = {
            let mut live = self.live();
            let running = live.open_requests.remove(id);
            let given_up = timed_out && running.as_ref().is_some_and(|running| running.joinable);
            // Who comes back to its stream is told that nothing follows: else it would wait for what it has given up.
            if !matches!(id, RequestId::Text(text) if text.len() > ID_CHARS_MAX) && !live.cancelled.iter().any(|(known, _)| known == id) {
                live.cancelled.push_back((id.clone(), !given_up));
            }
            if live.cancelled.len() > OPEN_REQUESTS_MAX {
                live.cancelled.pop_front();
            }
            let Some(running) = running else { return };
            running.cancel_state.send_replace(if running.joinable { CancelState::Detached } else { CancelState::Stopped });
            (running, given_up)
        };
        if given_up {
            // At once: the same call may follow on its heels.
            if let Some(waiting) = running.waiting_call.upgrade() {
                waiting.give_up();
            }
            return;
        }
        if running.joinable {
            // Others may wait for it.
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
            context.engine.cancel_soon(self.caller.clone(), task, CANCELLED_BY_CALLER);
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
