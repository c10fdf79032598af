//! Follows one task to its end: on the stream of its result, and by looking at it now and then.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use serde_json::{Value, json};
use taskwire_core::{
    Payload, Timestamp,
    task::RpcError,
    wire::{InOrder, RequestId, code},
};

use super::{
    Legacy,
    call::{named, told},
    members::Seat,
    streamed, view,
};
use crate::client::{
    Error, Event, Input, Outcome, Partial, Status, TaskView,
    event::Finished,
    inbox::{Fact, Inbox},
    link::{self, Failed, if_any},
    modern::{self, PARTIALS},
    run::{Driver, Way},
    wire::{Backoff, random},
};

/// Between two looks if the server does not say.
const POLL: Duration = Duration::from_secs(1);

/// Picks up a task.
pub(crate) async fn attach(legacy: Arc<Legacy>, mut driver: Driver, task: String) -> Result<Outcome, Error> {
    let found = legacy.find(&task).await?;
    let seat = legacy.members.join();
    seat.task(&task);
    legacy.began(&task);
    let reference = driver.shared.reference();
    let session = legacy.session().await.map_err(|failed| legacy.link.error(failed))?.id.clone();
    driver.named(&task, session.or(reference.session)).await?;
    let peer = legacy.peer();
    // Output that was part of the answer to the call can be asked for, once some of it is there.
    if legacy.link.options.stream && !peer.partials && reference.next > 0 && peer.modes.iter().any(|mode| mode == "streaming") {
        return streamed::resume(legacy, driver, seat, task).await;
    }
    let mut watch = Watch::new(legacy, driver, seat, task);
    watch.pace(&found);
    watch.run(None).await
}

/// A task that is followed.
pub(super) struct Watch {
    pub(super) legacy: Arc<Legacy>,
    pub(super) driver: Driver,
    pub(super) seat: Seat,
    pub(super) task: String,
    pub(super) order: InOrder,
    shown: Option<(Status, Option<String>)>,
    poll: Duration,
    backoff: Backoff,
    /// Whether the end was told: what comes behind it on the same stream is no output. Of the run's own stream, and of any.
    over: [bool; 2],
    /// Whether output came on another stream than the run's own, whose end was not told there: more may be on its way.
    elsewhere: bool,
    /// Whether a stream is lost: what it carried comes when it is back.
    lost: [bool; 2],
    /// Since when a piece of output waits for the one before it.
    gap_since: Option<Timestamp>,
}

type Looking = BoxFuture<'static, Result<TaskView, Failed>>;
type Answered = Result<Payload, RpcError>;

impl Watch {
    pub(super) fn new(legacy: Arc<Legacy>, driver: Driver, seat: Seat, task: String) -> Self {
        let options = &legacy.link.options;
        let order = InOrder::from(driver.shared.reference().next, options.limits.buffer_bytes);
        let backoff = Backoff::new(options.timing);
        Self {
            legacy,
            driver,
            seat,
            task,
            order,
            shown: None,
            poll: POLL,
            backoff,
            over: [false; 2],
            elsewhere: false,
            lost: [false; 2],
            gap_since: None,
        }
    }

    /// To the end.
    pub(super) async fn run(mut self, created: Option<TaskView>) -> Result<Outcome, Error> {
        let options = self.legacy.link.options.clone();
        let clock = options.clock.clone();
        let mut due = clock.now();
        if let Some(created) = created {
            self.shown = Some(self.driver.created(&created).await);
            self.pace(&created);
            due = due.after(self.poll);
        }
        self.remember().await?;
        let mut result = result(self.legacy.clone(), self.task.clone(), self.seat.inbox.clone()).boxed();
        let mut asking = true;
        let mut looking: Option<Looking> = None;
        let mut ended: Option<TaskView> = None;
        let mut ask_again: Option<Timestamp> = None;
        loop {
            self.hand_out().await;
            if let Some(view) = &ended
                && (view.status == Status::Cancelled || !asking)
            {
                let outcome = Outcome::Cancelled { message: view.message.clone() };
                if view.status == Status::Cancelled {
                    return self.finish(view.status, outcome).await;
                }
                // The result was refused while the task was at work; now it is there.
                result = self::result(self.legacy.clone(), self.task.clone(), self.seat.inbox.clone()).boxed();
                asking = true;
            }
            if looking.is_none() && ended.is_none() && clock.now() >= due {
                let (legacy, task) = (self.legacy.clone(), self.task.clone());
                looking = Some(async move { legacy.look(&task).await }.boxed());
            }
            // A wait that says nothing although the task has ended may be a dead one.
            if ended.is_some() && asking {
                let again = *ask_again.get_or_insert_with(|| clock.now().after(2 * self.poll));
                if clock.now() >= again {
                    result = self::result(self.legacy.clone(), self.task.clone(), self.seat.inbox.clone()).boxed();
                    ask_again = Some(clock.now().after(2 * self.poll));
                }
            }
            let look_at = (looking.is_none() && ended.is_none()).then_some(due);
            let wake = [look_at, ask_again, self.gap_since.map(|since| since.after(options.timing.reorder))];
            let mut timer = wake.into_iter().flatten().min().map(|at| clock.sleep_until(at));
            tokio::select! {
                biased;
                () = self.seat.inbox.ready() => {
                    self.seat.inbox.take_left_out();
                    while let Some(fact) = self.seat.inbox.try_next() {
                        if let Some(view) = self.take(fact).await? {
                            ended = Some(view);
                        }
                        self.hand_out().await;
                    }
                }
                answer = &mut result, if asking => {
                    asking = false;
                    match self.answered(answer).await? {
                        Some((status, outcome)) => return self.finish(status, outcome).await,
                        // It does not wait for the end, as it should: look, and ask again then.
                        None => due = clock.now().after(self.poll),
                    }
                }
                seen = if_any(&mut looking) => {
                    looking = None;
                    due = match seen {
                        Ok(view) => {
                            self.backoff.reset();
                            self.driver.back();
                            // It asks only who asks for its result.
                            if view.status == Status::InputRequired && !asking {
                                result = self::result(self.legacy.clone(), self.task.clone(), self.seat.inbox.clone()).boxed();
                                asking = true;
                            }
                            ended = self.show(view).await.or(ended);
                            clock.now().after(self.poll)
                        }
                        Err(failed) if failed.passes() => {
                            let Some(wait) = self.backoff.next(clock.now(), None, random()) else {
                                return Err(self.legacy.link.error_of(&self.task, failed));
                            };
                            self.driver.lost(failed.reason(), wait);
                            clock.now().after(wait)
                        }
                        Err(failed) => return Err(self.legacy.link.error_of(&self.task, failed)),
                    };
                }
                () = if_any(&mut timer) => if self.gap_since.is_some_and(|since| clock.now() >= since.after(options.timing.reorder)) {
                    self.read_on(false).await?;
                    self.give_up_gap().await;
                },
            }
        }
    }

    /// Questions that an earlier life was asked in the same session: they are not asked again.
    async fn remember(&mut self) -> Result<(), Error> {
        for kept in self.legacy.kept(&self.driver.shared.book).await? {
            self.driver.ask(kept.input, Way::Respond(kept.id, kept.session), Some(kept.name)).await?;
        }
        Ok(())
    }

    pub(super) fn pace(&mut self, view: &TaskView) {
        let timing = &self.legacy.link.options.timing;
        self.poll = view.poll_ms.map_or(POLL, Duration::from_millis).max(timing.poll_min).min(timing.poll_max);
    }

    pub(super) fn poll(&self) -> Duration {
        self.poll
    }

    /// Something was pushed. The task, if it has ended.
    pub(super) async fn take(&mut self, fact: Fact) -> Result<Option<TaskView>, Error> {
        match fact {
            Fact::Partial { seq, content, own } => {
                let some = content.as_str().starts_with('[') && content.as_str() != "[]";
                let over = self.over[usize::from(!own)];
                self.elsewhere = !own;
                if self.legacy.link.options.stream && !over && some {
                    self.order.take(seq, content);
                }
            }
            Fact::View { raw, own } => {
                if let Ok(view) = view(&raw) {
                    self.elsewhere &= own || !view.status.is_terminal();
                    self.over[usize::from(!own)] |= view.id == self.task && view.status.is_terminal();
                    return Ok(self.show(view).await);
                }
            }
            Fact::Question { id, session, method, params } => self.asked(id, session, &method, &params).await?,
            Fact::Withdrawn { id, session } => self.driver.withdraw(&self.key(&id, session).0).await,
            fact => {
                let before = self.lost;
                match &fact {
                    Fact::Up { .. } => self.lost[0] = false,
                    Fact::Down { .. } => self.lost[0] = true,
                    Fact::Standing(up) => self.lost[1] = !up,
                    _ => {}
                }
                if before != self.lost {
                    // What is missing may be on its way from now on.
                    self.gap_since = None;
                }
                told(&mut self.driver, fact).await;
            }
        }
        Ok(None)
    }

    /// The name of a question: our own servers write it into the name of the request.
    /// Any other name means something in its session only.
    fn key(&self, id: &RequestId, session: u64) -> (String, bool) {
        let text = id.to_string();
        let ours = text.strip_prefix(&self.task).and_then(|rest| rest.strip_prefix('.')?.split_once('.'));
        ours.map_or_else(|| (named(id, session), false), |(_, key)| (key.to_owned(), true))
    }

    async fn asked(&mut self, id: RequestId, session: u64, method: &str, params: &Payload) -> Result<(), Error> {
        let (key, ours) = self.key(&id, session);
        let way = Way::Respond(id.clone(), session);
        let question = json!({"id": id, "method": method, "params": params});
        let input = Input::read(&key, Payload::from(question.clone())).map_err(|reason| self.legacy.link.error(Failed::Broken(reason)))?;
        if self.driver.knows(&key) {
            self.driver.ask_by(&key, way);
            return Ok(());
        }
        // A name that means something beyond its session need not be kept with it.
        let kept = if !ours {
            let kept = format!("{}/{id}", self.legacy.tag(session));
            self.driver.shared.book.asked(&kept, &question).await?;
            kept
        } else {
            key
        };
        self.driver.ask(input, way, Some(kept)).await
    }

    /// Tells what is new about the task; gives it back if it has ended.
    async fn show(&mut self, view: TaskView) -> Option<TaskView> {
        if view.id != self.task {
            return None;
        }
        self.pace(&view);
        if view.status.is_terminal() {
            return Some(view);
        }
        if self.shown.as_ref() != Some(&(view.status, view.message.clone())) {
            self.shown = Some((view.status, view.message.clone()));
            self.driver.status(view).await;
        }
        None
    }

    /// What the answer to `tasks/result` means; nothing if it means that the task is still at work.
    pub(super) async fn answered(&mut self, answer: Result<Answered, Failed>) -> Result<Option<(Status, Outcome)>, Error> {
        let link = self.legacy.link.clone();
        match answer.map_err(|failed| link.error_of(&self.task, failed))? {
            Ok(result) => {
                let finished = Finished::read(result).map_err(|reason| link.error(Failed::Broken(reason)))?;
                let status = if finished.is_error { Status::Failed } else { Status::Completed };
                Ok(Some((status, Outcome::Result(finished))))
            }
            // An error is the outcome of a task, or a task that was called off, or one that is not there.
            Err(error) => match link.persist(|| self.legacy.look(&self.task), |_, _| {}).await {
                Ok(view) => Ok(match view.status {
                    Status::Cancelled => Some((view.status, Outcome::Cancelled { message: view.message })),
                    Status::Failed | Status::Completed => Some((Status::Failed, Outcome::Failed(super::failure(error, view.message)))),
                    Status::Working | Status::InputRequired => None,
                }),
                Err(failed) => Err(link.error_of(&self.task, failed)),
            },
        }
    }

    /// Whether output can be read by a request of the other era: then nothing of it is ever lost.
    fn reads(&self) -> bool {
        self.legacy.link.options.stream && self.legacy.peer().capabilities["experimental"][PARTIALS].is_object()
    }

    /// Reads what is missing, or all that is left if the task has ended. Says whether that could be done.
    async fn read_on(&mut self, ended: bool) -> Result<bool, Error> {
        let (legacy, task) = (self.legacy.clone(), self.task.clone());
        while self.reads() && (ended || self.order.missing().is_some()) {
            let from = self.order.next();
            let driver = &mut self.driver;
            let read = || modern::read(&legacy.link, &task, from, Duration::ZERO);
            let page = match legacy.link.persist(read, |reason, wait| driver.lost(reason, wait)).await {
                Ok(page) => page,
                Err(failed) if failed.passes() => return Err(legacy.link.error_of(&task, failed)),
                Err(failed) => {
                    tracing::debug!(reason = failed.reason(), "output cannot be read");
                    return Ok(false);
                }
            };
            if let Some(gap) = page.from.and_then(|begins| self.order.skip_to(begins)) {
                self.driver.emit(Event::Gap { from: gap.start, until: gap.end }).await;
            }
            for chunk in page.chunks {
                self.order.take(chunk.seq, chunk.content);
                self.hand_out().await;
            }
            if page.done || self.order.next() == from {
                return Ok(page.done || self.order.missing().is_none());
            }
        }
        Ok(self.reads())
    }

    /// Hands out what is next in order.
    pub(super) async fn hand_out(&mut self) {
        while let Some((seq, content)) = self.order.pop() {
            self.driver.emit(Event::Partial(Partial { seq, content })).await;
        }
        self.gap_since = match self.order.missing() {
            Some(_) if !self.lost.contains(&true) => self.gap_since.or_else(|| Some(self.legacy.link.options.clock.now())),
            _ => None,
        };
    }

    /// What is missing still is lost.
    pub(super) async fn give_up_gap(&mut self) {
        self.gap_since = None;
        if let Some(gap) = self.order.missing().and_then(|missing| self.order.skip_to(missing.end)) {
            self.driver.emit(Event::Gap { from: gap.start, until: gap.end }).await;
        }
    }

    /// The end: what has come before it, then the outcome.
    pub(super) async fn finish(mut self, status: Status, outcome: Outcome) -> Result<Outcome, Error> {
        let reorder = self.legacy.link.options.timing.reorder;
        let clock = self.legacy.link.options.clock.clone();
        if self.read_on(true).await? {
            self.elsewhere = false;
        }
        loop {
            while let Some(fact) = self.seat.inbox.try_next() {
                // What asks now asks too late.
                if matches!(fact, Fact::Partial { .. } | Fact::Progress(_) | Fact::Log(_)) {
                    self.take(fact).await?;
                }
            }
            self.hand_out().await;
            let Some(since) = self.gap_since else {
                if self.order.missing().is_some() {
                    self.give_up_gap().await;
                    continue;
                }
                // The answer may have overtaken what was sent before it, elsewhere.
                if !self.elsewhere {
                    break;
                }
                tokio::select! {
                    () = self.seat.inbox.ready() => drop(self.seat.inbox.take_left_out()),
                    () = clock.sleep(reorder / 5) => self.elsewhere = false,
                }
                continue;
            };
            tokio::select! {
                () = self.seat.inbox.ready() => drop(self.seat.inbox.take_left_out()),
                () = clock.sleep_until(since.after(reorder)) => self.give_up_gap().await,
            }
        }
        // What had no room is lost here: it cannot be asked for.
        if let Some(last) = self.seat.inbox.last_left_out().filter(|last| *last >= self.order.next())
            && let Some(gap) = self.order.skip_to(last.saturating_add(1))
        {
            self.driver.emit(Event::Gap { from: gap.start, until: gap.end }).await;
        }
        let message = match &outcome {
            Outcome::Cancelled { message } => message.clone(),
            Outcome::Failed(error) => Some(error.message.clone()),
            Outcome::Result(_) => None,
        };
        self.legacy.ended(&self.task);
        self.driver.ended(status, message).await;
        Ok(outcome)
    }
}

/// Asks for the result of a task until it is there. What comes on the way goes to `inbox`.
pub(super) async fn result(legacy: Arc<Legacy>, task: String, inbox: Arc<Inbox>) -> Result<Answered, Failed> {
    let mut backoff = Backoff::new(legacy.link.options.timing);
    let clock = legacy.link.options.clock.clone();
    loop {
        let began = clock.now();
        let failed = match result_once(&legacy, &json!({"taskId": task}), &inbox).await {
            Ok(answered) => return Ok(answered),
            Err(failed) if failed.passes() => failed,
            Err(failed) => return Err(failed),
        };
        let Some(wait) = backoff.next_since(began, clock.now(), failed.retry_after()) else { return Err(failed) };
        inbox.push(Fact::Down { reason: failed.reason(), again_in: Some(wait) });
        clock.sleep(wait).await;
    }
}

/// Asks for the result of a task on a stream of its own.
pub(super) async fn result_once(legacy: &Arc<Legacy>, params: &Value, inbox: &Arc<Inbox>) -> Result<Answered, Failed> {
    let id = legacy.link.id();
    let mut stream = legacy.send(id, "tasks/result", params, true).await?;
    inbox.push(Fact::Up { output: false, from: None });
    loop {
        match link::answer_to(id, stream.next(Some(inbox)).await?) {
            // It shuts down: whoever comes next knows more.
            Ok(Err(error)) if error.code == code::UNAVAILABLE => return Err(Failed::Rpc(error)),
            Ok(answered) => return Ok(answered),
            Err(message) => legacy.aside(message, Some(inbox)),
        }
    }
}
