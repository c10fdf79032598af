//! What is going on in a session: what its client was told where, which streams it has, what it waits for.
//!
//! All of this is in memory. What is lost with the process costs a client some repetition at most.

mod again;
mod request;
mod unanswered;

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    ops::Range,
    sync::{Arc, Weak},
};

use taskwire_core::{InputKey, Seq, TaskId, Timestamp, Version, wire::RequestId};
use tokio::sync::{mpsc, watch};

pub(super) use self::again::Again;
pub(super) use self::request::Request;
use self::unanswered::Unanswered;
use super::session::Session;
pub(super) use crate::dialect::call::CALLED_OFF;
use crate::{
    dialect::{
        Context, Open,
        call::waiter::{Waiter, Waiting},
        prune::Prune,
    },
    engine::Run,
};

/// Tasks of one session whose last chunk is remembered.
const GIVEN_MAX: usize = 1_024;
/// Stretches of a task's output that are remembered to have been given elsewhere.
const RANGES_MAX: usize = 64;
/// A name of a request that is longer is not remembered.
const ID_CHARS_MAX: usize = 256;
/// Requests after which those whose work is over are forgotten; as many that were called off are remembered.
const RUNNING_MAX: usize = 64;
/// Questions after which those whose stream is gone are forgotten.
const ASKED_MIN: usize = 16;

/// A stream that tells of a task, and where it takes what stands in no log.
type Claimed = (u64, mpsc::Sender<Vec<u8>>);

/// What is going on in a session.
#[derive(Debug, Default)]
pub(super) struct Live {
    /// Tasks whose names the client has not been told yet.
    hushed: HashSet<TaskId>,
    /// What the session was given of each task's output.
    given: HashMap<TaskId, Given>,
    prune_given: Prune<GIVEN_MAX>,
    /// Tasks that streams of their own tell of: the latest does.
    claims: HashMap<TaskId, Vec<Claimed>>,
    /// How many such streams there were.
    claimed: u64,
    /// Tasks whose own stream has ended: what it asked may have to be asked again.
    let_go: BTreeSet<TaskId>,
    /// Questions that were asked on a stream that may still be there.
    asked: HashMap<(TaskId, InputKey), Weak<()>>,
    prune_asked: Prune<ASKED_MIN>,
    /// Questions that are asked again, since what came was no answer.
    again: HashMap<(TaskId, InputKey), Again>,
    /// Requests that are not answered yet.
    pub(super) running: HashMap<RequestId, Running>,
    prune_running: Prune<RUNNING_MAX>,
    unanswered: Unanswered,
    /// The latest requests that were called off, and whether their work was to stop.
    called_off: VecDeque<(RequestId, bool)>,
    /// How many changes were told on the standing stream; nobody knows after a restart.
    told: u64,
    /// Where the standing stream takes what stands in no log.
    aside: Option<mpsc::Sender<Vec<u8>>>,
    /// The standing stream, if there is one.
    stands: Weak<()>,
    /// What it counts for among the streams of its caller; the next one takes its place.
    stands_open: Weak<Open>,
}

impl Live {
    /// Nothing yet, but that so many changes were told.
    pub(super) fn new(told: u64) -> Self {
        Self { told, ..Self::default() }
    }

    /// Whether somebody listens, or waits for an answer.
    pub(super) fn is_in_use(&self) -> bool {
        self.stands.strong_count() > 0 || self.running.values().any(|running| running.awaited)
    }

    fn prune_asked(&mut self) {
        self.prune_asked.retain(&mut self.asked, |_, stream| stream.strong_count() > 0);
    }

    fn prune_running(&mut self) {
        self.prune_running.retain(&mut self.running, |_, running| running.awaited || running.works());
    }

    /// What the session was given of a task; there is always room for it.
    fn given_of(&mut self, id: TaskId) -> &mut Given {
        if !self.given.contains_key(&id) {
            self.prune_given.retain(&mut self.given, |id, _| self.claims.contains_key(id) || self.let_go.contains(id));
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
    /// The last state that it was told on its standing stream.
    stated: Version,
    /// Where the last wait for the result began, if its reader may never have seen any of it.
    waited_from: Option<Seq>,
    /// The request on whose stream it was told of the end.
    ended: Option<RequestId>,
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
enum Off {
    No,
    /// Nobody waits for it any more, but its work goes on.
    Left,
    /// Its work is to stop.
    Stopped,
}

/// When a call was made, and the name under which it hears of progress.
type Made = (Timestamp, Option<RequestId>);

/// A request that is not answered yet.
#[derive(Debug)]
pub(super) struct Running {
    off: Arc<watch::Sender<Off>>,
    pub(super) run: Option<Weak<Run>>,
    /// The task that does its work, if that was made at once.
    pub(super) task: Option<TaskId>,
    /// Whether its work goes on when nobody waits for it any more, and is found again by the same call.
    joinable: bool,
    /// The call that waits for it, if that still does.
    waiting: Weak<Waiting>,
    /// How the call was made, for a reader that comes back to it: its task may be another one's.
    made: Option<Made>,
    /// Whether somebody waits for the answer.
    awaited: bool,
}

impl Running {
    /// The task that its work is, or may become.
    fn id(&self) -> Option<TaskId> {
        self.task.or_else(|| Some(self.run.as_ref()?.upgrade()?.id()))
    }

    /// Whether its work goes on here.
    fn works(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.strong_count() > 0)
    }
}

impl Session {
    /// Says nothing of a task until [`speak`](Self::speak): its name comes first.
    pub(super) fn hush(&self, id: TaskId) {
        self.live().hushed.insert(id);
    }

    pub(super) fn speak(&self, id: TaskId) {
        if self.live().hushed.remove(&id) {
            self.bell.notify_waiters();
        }
    }

    pub(super) fn is_hushed(&self, id: TaskId) -> bool {
        self.live().hushed.contains(&id)
    }

    /// The first chunk of a task that the session was not given.
    pub(super) fn given(&self, id: TaskId) -> Seq {
        self.given_so_far(id).unwrap_or_default()
    }

    /// Where a new wait for the result of a task begins: where the session was last told of it, or where the last wait began,
    /// if that one was cut off before anybody could come back to it. The claim of the new one is there by now.
    pub(super) fn wait_from(&self, id: TaskId) -> Seq {
        let mut live = self.live();
        let alone = live.claims.get(&id).is_none_or(|claims| claims.len() <= 1);
        let given = live.given_of(id);
        let from = given.waited_from.filter(|_| alone).unwrap_or(given.next);
        given.waited_from = Some(from);
        from
    }

    /// The reader of a wait came back to it: it has seen its beginning, and will come back again.
    pub(super) fn came_back(&self, id: TaskId) {
        self.live().given_of(id).waited_from = None;
    }

    /// Whether the session was given a chunk elsewhere than on its standing stream.
    pub(super) fn given_elsewhere(&self, id: TaskId, chunk: Seq) -> bool {
        self.live().given.get(&id).is_some_and(|given| given.elsewhere.iter().any(|range| range.contains(&chunk)))
    }

    /// Whether the session was given a chunk on its standing stream.
    pub(super) fn given_here(&self, id: TaskId, chunk: Seq) -> bool {
        let live = self.live();
        live.given.get(&id).is_some_and(|given| chunk < given.next && !given.elsewhere.iter().any(|range| range.contains(&chunk)))
    }

    /// Notes that the session was given chunks elsewhere than on its standing stream.
    pub(super) fn give(&self, id: TaskId, chunks: Range<Seq>) {
        let mut live = self.live();
        let given = live.given_of(id);
        given.next = chunks.end.max(given.next);
        extend(&mut given.elsewhere, chunks);
    }

    /// Notes that the session is given a chunk on a standing stream; says `false` if that is not its to give any more.
    pub(super) fn give_standing(&self, id: TaskId, chunks: Range<Seq>, stream: &Arc<()>) -> bool {
        let mut live = self.live();
        if live.claims.contains_key(&id) || live.stands.as_ptr() != Arc::as_ptr(stream) {
            return false;
        }
        let given = live.given_of(id);
        given.next = chunks.end.max(given.next);
        true
    }

    /// Notes that the session was told of events elsewhere than on its standing stream.
    pub(super) fn tell_elsewhere(&self, id: TaskId, events: Range<Version>) {
        extend(&mut self.live().given_of(id).told_elsewhere, events);
    }

    /// Notes that the stream of a request tells of the end of a task; says `false` if that of another one has.
    pub(super) fn ends(&self, id: TaskId, request: &RequestId) -> bool {
        let mut live = self.live();
        live.given_of(id).ended.get_or_insert_with(|| request.clone()) == request
    }

    /// Notes that the standing stream tells a state; says `false` if it has told that one, or a later one.
    pub(super) fn states(&self, id: TaskId, changed: Version) -> bool {
        let mut live = self.live();
        let given = live.given_of(id);
        let news = changed > given.stated && changed > Version(1);
        given.stated = given.stated.max(changed);
        news
    }

    /// Whether the session was told of an event elsewhere than on its standing stream.
    pub(super) fn told_elsewhere(&self, id: TaskId, event: Version) -> bool {
        self.live().given.get(&id).is_some_and(|given| given.told_elsewhere.iter().any(|range| range.contains(&event)))
    }

    /// Forgets what the session was given of a task that is over, unless there is something to be told yet.
    pub(super) fn forget(&self, id: TaskId) {
        let mut live = self.live();
        if !live.claims.contains_key(&id) && !live.let_go.contains(&id) {
            live.given.remove(&id);
        }
    }

    /// The same, if anything is known of it.
    pub(super) fn given_so_far(&self, id: TaskId) -> Option<Seq> {
        self.live().given.get(&id).map(|given| given.next)
    }

    /// Lets a stream of its own tell of a task, for as long as the claim lives.
    pub(super) fn claim(self: &Arc<Self>, id: TaskId, aside: mpsc::Sender<Vec<u8>>) -> Claim {
        let mut live = self.live();
        live.given_of(id);
        live.claimed += 1;
        let nth = live.claimed;
        live.claims.entry(id).or_default().push((nth, aside));
        Claim { session: self.clone(), id, nth }
    }

    pub(super) fn is_claimed(&self, id: TaskId) -> bool {
        self.live().claims.contains_key(&id)
    }

    /// A task whose own stream has ended since the last time.
    pub(super) fn next_let_go(&self) -> Option<TaskId> {
        self.live().let_go.pop_first()
    }

    /// Has a task's questions asked, and what else was not told of it told, on the standing stream.
    pub(super) fn let_go(&self, id: TaskId) {
        let mut live = self.live();
        if live.let_go.len() < GIVEN_MAX {
            live.let_go.insert(id);
        }
    }

    /// Whether a question is to be asked on the standing stream: it is not, while another stream that asked it is there,
    /// nor again on this one, unless it comes `again` because its reader was cut off before it.
    pub(super) fn asks(&self, id: TaskId, key: &InputKey, stream: &Arc<()>, again: bool) -> bool {
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
    pub(super) fn asked(&self, id: TaskId, key: &InputKey, stream: &Arc<()>) {
        let mut live = self.live();
        live.prune_asked();
        live.asked.insert((id, key.clone()), Arc::downgrade(stream));
    }

    /// Forgets who asked a question that is answered.
    pub(super) fn answered(&self, id: TaskId, key: &InputKey) {
        let mut live = self.live();
        live.asked.remove(&(id, key.clone()));
        live.again.remove(&(id, key.clone()));
    }

    /// Whether the standing stream, which is still there, asked a question.
    pub(super) fn stands_asked(&self, id: TaskId, key: &InputKey) -> bool {
        let live = self.live();
        let asked = live.asked.get(&(id, key.clone())).and_then(Weak::upgrade);
        matches!((asked, live.stands.upgrade()), (Some(asked), Some(stands)) if Arc::ptr_eq(&asked, &stands))
    }

    /// A place among the streams of the caller for a standing stream: that of the one that it replaces, or another one.
    pub(super) fn stands_open(&self, shared: &Context) -> Option<Arc<Open>> {
        let mut live = self.live();
        let open = live.stands_open.upgrade().or_else(|| shared.open_listen(&self.caller).map(Arc::new))?;
        live.stands_open = Arc::downgrade(&open);
        Some(open)
    }

    /// Begins a standing stream; the number of the last change that was told, and a wait for the one after this.
    pub(super) fn stand(&self, stream: &Arc<()>, resumed: bool, aside: mpsc::Sender<Vec<u8>>) -> (u64, impl Future<Output = ()> + use<>) {
        let mut live = self.live();
        live.aside = Some(aside);
        let before = std::mem::replace(&mut live.stands, Arc::downgrade(stream));
        let asked: Vec<_> = live.asked.iter().filter(|(_, stream)| Weak::ptr_eq(stream, &before)).map(|(key, _)| key.clone()).collect();
        for question in asked {
            if resumed {
                // Its reader has it, or will have it again.
                live.asked.insert(question, Arc::downgrade(stream));
            } else {
                live.asked.remove(&question);
                live.let_go.insert(question.0);
            }
        }
        let mut later = self.standing.subscribe();
        self.standing.send_modify(|count| *count += 1);
        let mine = *later.borrow_and_update();
        let replaced = async move {
            let _ = later.wait_for(|count| *count > mine).await;
        };
        (live.told, replaced)
    }

    /// Notes how many changes were told on the standing stream, if this is still the one.
    pub(super) fn told(&self, number: u64, stream: &Arc<()>) {
        let mut live = self.live();
        if live.stands.as_ptr() == Arc::as_ptr(stream) {
            live.told = live.told.max(number);
        }
    }

    /// Says something of a task that stands in no log, where else it is told of; nobody may be listening.
    pub(super) fn aside(&self, id: TaskId, message: Vec<u8>) {
        let live = self.live();
        if live.hushed.contains(&id) {
            return;
        }
        let own = live.claims.get(&id).and_then(|claims| claims.last()).map(|(_, aside)| aside);
        if let Some(aside) = own.or(live.aside.as_ref()) {
            let _ = aside.try_send(message);
        }
    }

    /// Notes a request, so that it can be called off; none if another one of that name is not answered yet.
    pub(super) fn begin(self: &Arc<Self>, id: &RequestId) -> Option<Request> {
        let mut live = self.live();
        live.prune_running();
        if live.running.get(id).is_some_and(|running| running.awaited || running.works()) {
            return None;
        }
        live.called_off.retain(|(called_off, _)| called_off != id);
        let off = Arc::new(watch::Sender::new(Off::No));
        // What is known of a call stays known when its reader comes back; a new one says anew how it is made.
        let made = live.running.remove(id).and_then(|before| before.made);
        let running = Running { off: off.clone(), run: None, task: None, joinable: false, waiting: Weak::new(), made, awaited: true };
        live.running.insert(id.clone(), running);
        Some(Request::new(self, id, off, false))
    }

    /// Joins a request whose stream is resumed: what calls it off calls this off, too.
    pub(super) fn join(self: &Arc<Self>, id: &RequestId) -> Option<Request> {
        if let Some(request) = self.begin(id) {
            return Some(request);
        }
        let off = self.live().running.get(id)?.off.clone();
        Some(Request::new(self, id, off, true))
    }

    /// Whether the work of a request goes on here.
    pub(super) fn is_running(&self, id: &RequestId) -> bool {
        self.live().running.get(id).is_some_and(Running::works)
    }

    /// Whether a request was called off, of late, and if so whether its work was to stop.
    pub(super) fn called_off(&self, id: &RequestId) -> Option<bool> {
        self.live().called_off.iter().find(|(called_off, _)| called_off == id).map(|(_, stopped)| *stopped)
    }

    /// A call like this one that was made a while ago and is not answered yet: who repeats it has most likely given that up without
    /// a word.
    pub(super) fn unanswered(&self, waiter: &Waiter, is_old: impl Fn(Timestamp) -> bool) -> Option<Arc<Waiting>> {
        let old = self.live().unanswered.take_old(is_old);
        for waiting in &old {
            if let Some(key) = waiting.key() {
                self.live().unanswered.keep(key.clone(), waiting);
            }
        }
        if !self.live().unanswered.has_old() {
            return None;
        }
        let same = self.live().unanswered.same(waiter.key()?);
        same.into_iter().find(|waiting| waiter.is_other(waiting))
    }

    /// Calls a request off; one whose sender only would not wait any longer (`timed_out`) leaves its work.
    pub(super) fn call_off(&self, shared: &Context, id: &RequestId, timed_out: bool) {
        let (running, given_up) = {
            let mut live = self.live();
            let running = live.running.remove(id);
            let given_up = timed_out && running.as_ref().is_some_and(|running| running.joinable);
            // Who comes back to its stream is told that nothing follows: else it would wait for what it has given up.
            if !matches!(id, RequestId::Text(text) if text.len() > ID_CHARS_MAX) && !live.called_off.iter().any(|(known, _)| known == id) {
                live.called_off.push_back((id.clone(), !given_up));
            }
            if live.called_off.len() > RUNNING_MAX {
                live.called_off.pop_front();
            }
            let Some(running) = running else { return };
            running.off.send_replace(if running.joinable { Off::Left } else { Off::Stopped });
            (running, given_up)
        };
        if given_up {
            // At once: the same call may follow on its heels.
            if let Some(waiting) = running.waiting.upgrade() {
                waiting.give_up();
            }
            return;
        }
        if running.joinable {
            // Others may wait for it.
            match (running.waiting.upgrade(), running.id()) {
                (Some(waiting), _) => waiting.cancel(),
                (None, Some(id)) => shared.calls.stop(shared, &self.caller, id),
                (None, None) => {}
            }
            return;
        }
        if let Some(run) = running.run.and_then(|run| run.upgrade()) {
            run.call_off(CALLED_OFF);
        }
        if let Some(task) = running.task {
            shared.engine.call_off(self.caller.clone(), task, CALLED_OFF);
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
                if live.let_go.len() < GIVEN_MAX {
                    live.let_go.insert(self.id);
                }
            }
        }
        drop(live);
        self.session.released.notify_waiters();
        self.session.bell.notify_waiters();
    }
}
