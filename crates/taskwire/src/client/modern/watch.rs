//! Follows one task to its end: pushed where the server pushes, asked for where it does not, and looked at now and then
//! either way.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use serde_json::{Value, json};
use taskwire_core::{Timestamp, wire::InOrder};

use super::{Modern, OutputPage, ask_once, call::known_answer, hub::Seat, view, view_of};
use crate::client::{
    Error, Event, Outcome, Partial, Status, TaskView,
    inbox::Fact,
    link::{Failed, if_any},
    run::{Driver, Way},
    wire::{Backoff, random},
};

const VERSION: &str = "dev.taskwire/version";
const WAIT: &str = "dev.taskwire/waitMs";
/// Between two looks if the server does not say.
const POLL: Duration = Duration::from_secs(1);

/// Picks up a task.
pub(crate) async fn attach(modern: Arc<Modern>, mut driver: Driver, task: String) -> Result<Outcome, Error> {
    driver.named(&task, None).await?;
    follow(&modern, driver, None).await
}

/// Follows the task that the run's reference names.
pub(super) async fn follow(modern: &Arc<Modern>, driver: Driver, created: Option<TaskView>) -> Result<Outcome, Error> {
    let reference = driver.shared.reference();
    let task = reference.task.unwrap_or_default();
    let streams = modern.streams();
    let options = &modern.link.options;
    let watch = Watch {
        seat: modern.hub.join(&task, streams.then_some(reference.next)),
        order: InOrder::from(reference.next, options.limits.buffer_bytes),
        modern: modern.clone(),
        driver,
        task,
        streams,
        pushed: false,
        told: false,
        view_pushed: false,
        output_pushed: false,
        behind: false,
        updated: String::new(),
        all_read: false,
        shown: None,
        poll: POLL,
        version: None,
        backoff: Backoff::new(options.timing),
        ended: None,
        end_pushed: false,
    };
    watch.run(created).await
}

struct Watch {
    modern: Arc<Modern>,
    driver: Driver,
    task: String,
    seat: Seat,
    order: InOrder,
    /// Whether output is wanted, and can be had.
    streams: bool,
    /// Whether the server pushes the task.
    pushed: bool,
    /// Whether it is known by now if the server pushes.
    told: bool,
    /// Whether it has pushed the state of the task.
    view_pushed: bool,
    /// Whether it pushes its output.
    output_pushed: bool,
    /// Whether output was left out that is to be read.
    behind: bool,
    /// When the task changed last, as far as was seen.
    updated: String,
    /// Whether the last piece of output was read.
    all_read: bool,
    /// What was last told of the task.
    shown: Option<(Status, Option<String>)>,
    poll: Duration,
    /// What the server calls the state that was seen last.
    version: Option<Value>,
    backoff: Backoff,
    ended: Option<(Status, Option<String>, Outcome)>,
    /// Whether the end was pushed, behind all output.
    end_pushed: bool,
}

type Looking = BoxFuture<'static, Result<TaskView, Failed>>;
type Reading = BoxFuture<'static, Result<OutputPage, Failed>>;

/// Whether one moment is before another, as servers write them. Who does not say when it was, says nothing old.
fn is_before(one: &str, other: &str) -> bool {
    // Without the zone 10:40:00 comes before 10:40:00.5, as it should.
    !one.is_empty() && one.trim_end_matches('Z') < other.trim_end_matches('Z')
}

impl Watch {
    async fn run(mut self, created: Option<TaskView>) -> Result<Outcome, Error> {
        let clock = self.modern.link.options.clock.clone();
        let timing = self.modern.link.options.timing;
        let mut due = clock.now();
        if let Some(created) = created {
            self.shown = Some(self.driver.created(&created).await);
            self.pace(&created);
            // What waits for an answer says for which only when it is looked at.
            due = if created.status == Status::Working { due.after(self.poll) } else { due };
        }
        let (mut looking, mut reading): (Option<Looking>, Option<Reading>) = (None, None);
        let (mut read_due, mut read_began) = (clock.now(), clock.now());
        loop {
            self.hand_out().await;
            if self.ended.is_some() {
                return self.end().await;
            }
            // What waits here already need not be asked for.
            self.behind |= self.seat.inbox.take_left_out();
            if self.streams && self.seat.inbox.is_empty() && (self.behind || self.order.missing().is_some()) {
                self.pull().await?;
                continue;
            }
            if looking.is_none() && clock.now() >= due {
                looking = Some(self.look());
            }
            let reads = self.streams && self.told && !self.output_pushed && !self.all_read;
            if !reads {
                reading = None;
            } else if reading.is_none() && clock.now() >= read_due {
                read_began = clock.now();
                reading = Some(self.read(timing.wait));
            }
            let next = [(looking.is_none(), due), (reads && reading.is_none(), read_due)].into_iter().filter(|(waits, _)| *waits);
            let mut timer = next.map(|(_, at)| at).min().map(|at| clock.sleep_until(at));
            tokio::select! {
                biased;
                () = self.seat.inbox.ready() => {
                    while let Some(fact) = self.seat.inbox.try_next() {
                        if matches!(fact, Fact::View { .. } | Fact::Up { .. } | Fact::Down { .. }) {
                            // What is on its way may be older than this.
                            looking = None;
                        }
                        let was_pushed = self.pushed;
                        self.take(fact).await?;
                        match (was_pushed, self.pushed) {
                            // What is pushed is looked at now and then; until the first push, as often as the server wants.
                            (_, true) if self.view_pushed => due = clock.now().after(timing.safety_poll),
                            (true, false) => due = clock.now(),
                            _ => {}
                        }
                        self.hand_out().await;
                        // Behind the end there is nothing.
                        if self.ended.is_some() {
                            break;
                        }
                    }
                }
                seen = if_any(&mut looking) => {
                    looking = None;
                    due = self.seen(seen, due).await?;
                }
                page = if_any(&mut reading) => {
                    reading = None;
                    read_due = match page {
                        Ok(page) => {
                            self.driver.back();
                            // Who does not hold what is empty is not asked as fast as it answers.
                            let held = clock.now().since(read_began) >= timing.wait / 2;
                            let wait = if page.chunks.is_empty() && !held { self.poll } else { Duration::ZERO };
                            self.take_page(page).await;
                            clock.now().after(wait)
                        }
                        Err(failed) if failed.passes() => clock.now().after(self.poll),
                        // Output cannot be read here; the result still comes.
                        Err(failed) if failed.is_not_found() => clock.now().after(self.poll),
                        Err(failed) => {
                            tracing::debug!(reason = failed.reason(), "the output of a task cannot be read");
                            self.streams = false;
                            clock.now()
                        }
                    };
                }
                () = if_any(&mut timer) => {}
            }
        }
    }

    /// Looks at the task; held by the server until it has changed, where it does that and does not push.
    fn look(&self) -> Looking {
        let (modern, task) = (self.modern.clone(), self.task.clone());
        let mut params = json!({"taskId": task});
        let mut held = Duration::ZERO;
        if self.streams && self.told && !self.pushed && self.shown.is_some() {
            held = modern.link.options.timing.wait;
            params["_meta"] = json!({WAIT: u64::try_from(held.as_millis()).unwrap_or(u64::MAX)});
            if let Some(version) = &self.version {
                params["_meta"][VERSION] = version.clone();
            }
        }
        async move {
            let result = ask_once(&modern.link, "tasks/get", params, Some(&task), held).await?;
            view_of(&task, &result)
        }
        .boxed()
    }

    /// Reads output; held by the server until there is some.
    fn read(&self, wait: Duration) -> Reading {
        let (link, task, from) = (self.modern.link.clone(), self.task.clone(), self.order.next());
        async move { super::read(&link, &task, from, wait).await }.boxed()
    }

    /// What came of a look: when to look again.
    async fn seen(&mut self, seen: Result<TaskView, Failed>, due: Timestamp) -> Result<Timestamp, Error> {
        let options = self.modern.link.options.clone();
        match seen {
            Ok(view) => {
                self.backoff.reset();
                self.driver.back();
                self.version = view.raw["_meta"].get(VERSION).cloned();
                self.pace(&view);
                self.show(view).await?;
                let held = self.streams && self.told && self.version.is_some();
                let wait = match (self.pushed, self.view_pushed) {
                    (true, true) => options.timing.safety_poll,
                    (true, false) => self.poll,
                    (false, _) if held => options.timing.poll_min,
                    (false, _) => self.poll,
                };
                Ok(options.clock.now().after(wait))
            }
            Err(failed) if failed.passes() => {
                let Some(wait) = self.backoff.next(options.clock.now(), failed.retry_after(), random()) else {
                    return Err(self.modern.link.error_of(&self.task, failed));
                };
                self.driver.lost(failed.reason(), wait);
                Ok(due.max(options.clock.now()).after(wait))
            }
            Err(failed) => Err(self.modern.link.error_of(&self.task, failed)),
        }
    }

    fn pace(&mut self, view: &TaskView) {
        let timing = &self.modern.link.options.timing;
        self.poll = view.poll_ms.map_or(POLL, Duration::from_millis).max(timing.poll_min).min(timing.poll_max);
    }

    async fn take(&mut self, fact: Fact) -> Result<(), Error> {
        match fact {
            Fact::Partial { seq, content, .. } => {
                // One that is empty would be none.
                if self.streams && content.as_str().starts_with('[') && content.as_str() != "[]" {
                    self.order.take(seq, content);
                }
            }
            Fact::View { raw, .. } => match view(&raw) {
                // Older than what was seen elsewhere.
                Ok(view) if is_before(&view.updated_at, &self.updated) => {}
                Ok(view) => {
                    self.pace(&view);
                    self.view_pushed = true;
                    self.end_pushed = self.output_pushed && view.outcome.is_some();
                    self.show(view).await?;
                }
                // It will be seen at the next look.
                Err(reason) => tracing::debug!(reason, "a notification is passed over"),
            },
            Fact::Up { output, from } => {
                self.driver.back();
                (self.told, self.pushed, self.view_pushed) = (true, true, false);
                self.output_pushed = output;
                if let Some(from) = from {
                    self.skip_to(from).await;
                }
            }
            Fact::Down { reason, again_in } => {
                (self.told, self.pushed, self.output_pushed) = (true, false, false);
                if let Some(wait) = again_in {
                    self.driver.lost(reason, wait);
                }
            }
            Fact::Log(params) => self.driver.emit(Event::Log(params)).await,
            Fact::Progress(_) | Fact::Question { .. } | Fact::Withdrawn { .. } | Fact::Standing(_) | Fact::Answer(_) => {}
        }
        Ok(())
    }

    /// Tells what is new about the task.
    async fn show(&mut self, view: TaskView) -> Result<(), Error> {
        if self.updated.is_empty() || is_before(&self.updated, &view.updated_at) {
            self.updated.clone_from(&view.updated_at);
        }
        let inputs = view.inputs.clone();
        if let Some(outcome) = view.outcome.clone() {
            self.ended = Some((view.status, view.message, outcome));
        } else if self.shown.as_ref() != Some(&(view.status, view.message.clone())) {
            self.shown = Some((view.status, view.message.clone()));
            self.driver.status(view).await;
        }
        self.driver.open_questions(|key| inputs.iter().any(|input| input.key == key)).await;
        for input in inputs {
            let kept = Some(input.key.clone());
            match known_answer(&self.modern, &input.request.read().unwrap_or_default()) {
                Some(answer) => self.driver.answer(input, Way::Update, kept, answer).await?,
                None => self.driver.ask(input, Way::Update, kept).await?,
            }
        }
        Ok(())
    }

    /// Hands out what is next in order.
    async fn hand_out(&mut self) {
        while let Some((seq, content)) = self.order.pop() {
            self.driver.emit(Event::Partial(Partial { seq, content })).await;
        }
    }

    /// What the server does not have any more is lost.
    async fn skip_to(&mut self, seq: u64) {
        while self.order.next() < seq {
            // What has come is not lost.
            let until = self.order.missing().map_or(seq, |missing| missing.end.min(seq));
            let Some(gap) = self.order.skip_to(until) else { return };
            self.driver.emit(Event::Gap { from: gap.start, until: gap.end }).await;
            self.hand_out().await;
        }
    }

    async fn take_page(&mut self, page: OutputPage) {
        if let Some(from) = page.from {
            self.skip_to(from).await;
        }
        for chunk in page.chunks {
            self.order.take(chunk.seq, chunk.content);
            self.hand_out().await;
        }
        self.all_read = page.done;
    }

    /// Fetches what is missing. What cannot be had is told, and passed over.
    async fn pull(&mut self) -> Result<(), Error> {
        let (link, from) = (self.modern.link.clone(), self.order.next());
        let (task, driver) = (&self.task, &mut self.driver);
        let page = link.persist(|| super::read(&link, task, from, Duration::ZERO), |reason, wait| driver.lost(reason, wait)).await;
        match page {
            Ok(page) => {
                self.driver.back();
                self.take_page(page).await;
                // A page that brings nothing is the last; what is left out meanwhile is known again.
                self.behind &= self.order.next() > from && !self.all_read;
                // It was there to be read, and is not in what was read.
                if self.order.next() == from
                    && let Some(missing) = self.order.missing()
                {
                    self.skip_to(missing.end).await;
                }
            }
            Err(failed) if failed.passes() => return Err(link.error_of(&self.task, failed)),
            Err(failed) => {
                self.behind = false;
                tracing::debug!(reason = failed.reason(), "missing output cannot be read");
                if let Some(missing) = self.order.missing() {
                    self.skip_to(missing.end).await;
                }
            }
        }
        Ok(())
    }

    /// The task has ended: what is left of its output, then the outcome.
    async fn end(mut self) -> Result<Outcome, Error> {
        let left_out = self.behind || self.seat.inbox.take_left_out();
        let whole = self.end_pushed && !left_out && self.order.missing().is_none();
        let mut read = whole || self.all_read || !self.streams;
        while !read {
            let (link, from) = (self.modern.link.clone(), self.order.next());
            let (task, driver) = (&self.task, &mut self.driver);
            let page = link.persist(|| super::read(&link, task, from, Duration::ZERO), |reason, wait| driver.lost(reason, wait)).await;
            read = match page {
                Ok(page) => {
                    self.take_page(page).await;
                    self.all_read || self.order.next() == from
                }
                Err(failed) if failed.passes() => return Err(link.error_of(&self.task, failed)),
                Err(_) => true,
            };
        }
        self.hand_out().await;
        while let Some(missing) = self.order.missing() {
            self.skip_to(missing.end).await;
            self.hand_out().await;
        }
        let Some((status, message, outcome)) = self.ended.take() else { return Err(Error::Closed) };
        self.driver.ended(status, message).await;
        Ok(outcome)
    }
}
