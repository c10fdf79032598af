//! Follows one task of the modern era to its end: by pushed messages where the server pushes, by polls and reads otherwise.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use serde_json::{Value, json};
use taskwire_core::{Timestamp, wire::ReorderBuffer};

use super::{ModernClient, OutputPage, call::known_answer, listen::Subscription, read_snapshot, read_snapshot_of, request_once};
use crate::client::{
    Chunk, Error, Event, Outcome, Status, TaskSnapshot,
    call::{AnswerRoute, Driver},
    inbox::Notice,
    link::{RequestError, if_any},
    wire::{Backoff, random},
};

const TASK_VERSION: &str = "dev.taskwire/version";
const WAIT: &str = "dev.taskwire/waitMs";
/// Between two polls if the server does not say.
const POLL: Duration = Duration::from_secs(1);

pub(crate) async fn attach(modern: Arc<ModernClient>, mut driver: Driver, task: String) -> Result<Outcome, Error> {
    driver.became_task(&task, None).await?;
    follow(&modern, driver, None).await
}

/// Follows the task that the call's reference names.
pub(super) async fn follow(modern: &Arc<ModernClient>, driver: Driver, created: Option<TaskSnapshot>) -> Result<Outcome, Error> {
    let reference = driver.shared.reference();
    let task = reference.task.unwrap_or_default();
    let streams = modern.streams();
    let options = &modern.link.options;
    let watch = Watch {
        subscription: modern.listen_stream.subscribe(&task, streams.then_some(reference.next)),
        order: ReorderBuffer::starting_at(reference.next, options.limits.buffer_bytes),
        modern: modern.clone(),
        driver,
        task,
        streams,
        pushed: false,
        push_known: false,
        status_pushed: false,
        output_pushed: false,
        behind: false,
        updated: String::new(),
        all_read: false,
        last_reported: None,
        poll: POLL,
        version: None,
        backoff: Backoff::new(options.timing),
        ended: None,
        end_pushed: false,
    };
    watch.run(created).await
}

struct Watch {
    modern: Arc<ModernClient>,
    driver: Driver,
    task: String,
    subscription: Subscription,
    order: ReorderBuffer,
    /// Whether the client wants output and the server streams it.
    streams: bool,
    /// Whether the server pushes the task.
    pushed: bool,
    /// Whether the server has said if it pushes.
    push_known: bool,
    /// Whether it has pushed the task's state on this stream.
    status_pushed: bool,
    /// Whether it pushes the task's output.
    output_pushed: bool,
    /// Whether the inbox dropped chunks, which must be read now.
    behind: bool,
    /// The newest `lastUpdatedAt` that was seen.
    updated: String,
    /// Whether the last chunk was read.
    all_read: bool,
    /// The status and message that were last reported.
    last_reported: Option<(Status, Option<String>)>,
    poll: Duration,
    /// The version of the state that was seen last.
    version: Option<Value>,
    backoff: Backoff,
    ended: Option<(Status, Option<String>, Outcome)>,
    /// Whether the server pushed the end, and all output before it.
    end_pushed: bool,
}

type PendingTask = BoxFuture<'static, Result<TaskSnapshot, RequestError>>;
type PendingPage = BoxFuture<'static, Result<OutputPage, RequestError>>;

/// Whether one timestamp is before another. An empty one is before none.
fn is_before(one: &str, other: &str) -> bool {
    // Compared without the zone, or 10:40:00Z would come after 10:40:00.5Z.
    !one.is_empty() && one.trim_end_matches('Z') < other.trim_end_matches('Z')
}

impl Watch {
    async fn run(mut self, created: Option<TaskSnapshot>) -> Result<Outcome, Error> {
        let clock = self.modern.link.options.clock.clone();
        let timing = self.modern.link.options.timing;
        let mut due = clock.now();
        if let Some(created) = created {
            self.last_reported = Some(self.driver.report_created(&created).await);
            self.pace(&created);
            // The response does not carry the task's questions: ask for them at once.
            due = if created.status == Status::Working { due.after(self.poll) } else { due };
        }
        let (mut looking, mut reading): (Option<PendingTask>, Option<PendingPage>) = (None, None);
        let (mut read_due, mut read_began) = (clock.now(), clock.now());
        loop {
            self.hand_out().await;
            if self.ended.is_some() {
                return self.end().await;
            }
            // Chunks in the inbox need not be read from the server.
            self.behind |= self.subscription.inbox.take_dropped();
            if self.streams && self.subscription.inbox.is_empty() && (self.behind || self.order.missing().is_some()) {
                self.pull().await?;
                continue;
            }
            if looking.is_none() && clock.now() >= due {
                looking = Some(self.get_task());
            }
            let reads = self.streams && self.push_known && !self.output_pushed && !self.all_read;
            if !reads {
                reading = None;
            } else if reading.is_none() && clock.now() >= read_due {
                read_began = clock.now();
                reading = Some(self.read(timing.long_poll));
            }
            let next = [(looking.is_none(), due), (reads && reading.is_none(), read_due)].into_iter().filter(|(waits, _)| *waits);
            let mut timer = next.map(|(_, at)| at).min().map(|at| clock.sleep_until(at));
            tokio::select! {
                biased;
                () = self.subscription.inbox.ready() => {
                    while let Some(notice) = self.subscription.inbox.try_next() {
                        if matches!(notice, Notice::Task { .. } | Notice::StreamUp { .. } | Notice::StreamDown { .. }) {
                            // The response of the pending poll may be older than this.
                            looking = None;
                        }
                        let was_pushed = self.pushed;
                        self.take(notice).await?;
                        match (was_pushed, self.pushed) {
                            // A pushed task is polled seldom; until the first push, as often as the server suggests.
                            (_, true) if self.status_pushed => due = clock.now().after(timing.safety_poll),
                            (true, false) => due = clock.now(),
                            _ => {}
                        }
                        self.hand_out().await;
                        // Nothing comes after the end.
                        if self.ended.is_some() {
                            break;
                        }
                    }
                }
                seen = if_any(&mut looking) => {
                    looking = None;
                    due = self.take_task(seen, due).await?;
                }
                page = if_any(&mut reading) => {
                    reading = None;
                    read_due = match page {
                        Ok(page) => {
                            self.server_is_there();
                            // A server that does not wait is not asked again at once.
                            let server_waited = clock.now().since(read_began) >= timing.long_poll / 2;
                            let wait = if page.chunks.is_empty() && !server_waited { self.poll } else { Duration::ZERO };
                            self.take_page(page).await;
                            clock.now().after(wait)
                        }
                        Err(failed) if failed.is_transient() => clock.now().after(self.poll),
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

    /// Polls the task. A Taskwire server that does not push waits until it has changed.
    fn get_task(&self) -> PendingTask {
        let (modern, task) = (self.modern.clone(), self.task.clone());
        let mut params = json!({"taskId": task});
        let mut wait = Duration::ZERO;
        if self.streams && self.push_known && !self.pushed && self.last_reported.is_some() {
            wait = modern.link.options.timing.long_poll;
            params["_meta"] = json!({WAIT: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)});
            if let Some(version) = &self.version {
                params["_meta"][TASK_VERSION] = version.clone();
            }
        }
        async move {
            let result = request_once(&modern.link, "tasks/get", params, Some(&task), wait).await?;
            read_snapshot_of(&task, &result)
        }
        .boxed()
    }

    /// Reads output; the server waits until there is some.
    fn read(&self, wait: Duration) -> PendingPage {
        let (link, task, from) = (self.modern.link.clone(), self.task.clone(), self.order.next());
        async move { super::read_output(&link, &task, from, wait).await }.boxed()
    }

    /// Takes the response of a poll. Returns when to poll again.
    async fn take_task(&mut self, seen: Result<TaskSnapshot, RequestError>, due: Timestamp) -> Result<Timestamp, Error> {
        let options = self.modern.link.options.clone();
        match seen {
            Ok(snapshot) => {
                self.server_is_there();
                self.version = snapshot.raw["_meta"].get(TASK_VERSION).cloned();
                self.pace(&snapshot);
                self.show(snapshot).await?;
                let server_waits = self.streams && self.push_known && self.version.is_some();
                let wait = match (self.pushed, self.status_pushed) {
                    (true, true) => options.timing.safety_poll,
                    (true, false) => self.poll,
                    (false, _) if server_waits => options.timing.poll_min,
                    (false, _) => self.poll,
                };
                Ok(options.clock.now().after(wait))
            }
            Err(failed) if failed.is_transient() => {
                let Some(wait) = self.backoff.next(options.clock.now(), failed.retry_after(), random()) else {
                    return Err(self.modern.link.task_error(&self.task, failed));
                };
                self.driver.connection_lost(failed.reason(), wait);
                Ok(due.max(options.clock.now()).after(wait))
            }
            Err(failed) => Err(self.modern.link.task_error(&self.task, failed)),
        }
    }

    /// The server has responded or pushed: the give-up time begins anew with the next failure, also if no poll succeeds in between.
    fn server_is_there(&mut self) {
        self.backoff.reset();
        self.driver.connection_restored();
    }

    fn pace(&mut self, snapshot: &TaskSnapshot) {
        let timing = &self.modern.link.options.timing;
        self.poll = snapshot.poll_ms.map_or(POLL, Duration::from_millis).max(timing.poll_min).min(timing.poll_max);
    }

    async fn take(&mut self, notice: Notice) -> Result<(), Error> {
        match notice {
            Notice::Chunk { seq, content, .. } => {
                // A chunk has at least one block.
                if self.streams && content.as_str().starts_with('[') && content.as_str() != "[]" {
                    self.order.take(seq, content);
                }
            }
            Notice::Task { raw, .. } => match read_snapshot(&raw) {
                // Older than what a poll has shown.
                Ok(snapshot) if is_before(&snapshot.updated_at, &self.updated) => {}
                Ok(snapshot) => {
                    self.pace(&snapshot);
                    self.backoff.reset();
                    self.status_pushed = true;
                    self.end_pushed = self.output_pushed && snapshot.outcome.is_some();
                    self.show(snapshot).await?;
                }
                // The next poll will show it.
                Err(reason) => tracing::debug!(reason, "a notification is passed over"),
            },
            Notice::StreamUp { output, first_seq: from } => {
                self.server_is_there();
                (self.push_known, self.pushed, self.status_pushed) = (true, true, false);
                self.output_pushed = output;
                if let Some(from) = from {
                    self.skip_to(from).await;
                }
            }
            Notice::StreamDown { reason, retry_in: again_in } => {
                (self.push_known, self.pushed, self.output_pushed) = (true, false, false);
                if let Some(wait) = again_in {
                    self.driver.connection_lost(reason, wait);
                }
            }
            Notice::Log(params) => self.driver.emit(Event::Log(params)).await,
            Notice::Progress(_)
            | Notice::Question { .. }
            | Notice::QuestionWithdrawn { .. }
            | Notice::SessionStream(_)
            | Notice::Response(_) => {}
        }
        Ok(())
    }

    /// Reports a changed status, and asks new questions.
    async fn show(&mut self, snapshot: TaskSnapshot) -> Result<(), Error> {
        if self.updated.is_empty() || is_before(&self.updated, &snapshot.updated_at) {
            self.updated.clone_from(&snapshot.updated_at);
        }
        let questions = snapshot.questions.clone();
        if let Some(outcome) = snapshot.outcome.clone() {
            self.ended = Some((snapshot.status, snapshot.message, outcome));
        } else if self.last_reported.as_ref() != Some(&(snapshot.status, snapshot.message.clone())) {
            self.last_reported = Some((snapshot.status, snapshot.message.clone()));
            self.driver.report_status(snapshot).await;
        }
        self.driver.retain_questions(|key| questions.iter().any(|input| input.key == key)).await;
        for question in questions {
            let ledger_key = Some(question.key.clone());
            match known_answer(&self.modern, &question.request.read().unwrap_or_default()) {
                Some(answer) => self.driver.answer_without_asking(question, AnswerRoute::TaskUpdate, ledger_key, answer).await?,
                None => self.driver.ask(question, AnswerRoute::TaskUpdate, ledger_key).await?,
            }
        }
        Ok(())
    }

    /// Emits the chunks that are next in order.
    async fn hand_out(&mut self) {
        while let Some((seq, content)) = self.order.pop() {
            self.driver.emit(Event::Chunk(Chunk { seq, content })).await;
        }
    }

    /// Reports the chunks before `seq` as lost: the server does not have them any more.
    async fn skip_to(&mut self, seq: u64) {
        while self.order.next() < seq {
            // Chunks that have come are not lost.
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

    /// Reads missing chunks. It reports those that the server does not have as a gap.
    async fn pull(&mut self) -> Result<(), Error> {
        let (link, from) = (self.modern.link.clone(), self.order.next());
        let (task, driver) = (&self.task, &mut self.driver);
        let page =
            link.retry(|| super::read_output(&link, task, from, Duration::ZERO), |reason, wait| driver.connection_lost(reason, wait)).await;
        match page {
            Ok(page) => {
                self.server_is_there();
                self.take_page(page).await;
                // An empty page is the last. If the inbox drops more meanwhile, it says so again.
                self.behind &= self.order.next() > from && !self.all_read;
                // The server's page does not have the missing chunk, so it is lost.
                if self.order.next() == from
                    && let Some(missing) = self.order.missing()
                {
                    self.skip_to(missing.end).await;
                }
            }
            Err(failed) if failed.is_transient() => return Err(link.task_error(&self.task, failed)),
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

    /// The task has ended: reads the rest of its output, then returns the outcome.
    async fn end(mut self) -> Result<Outcome, Error> {
        let dropped = self.behind || self.subscription.inbox.take_dropped();
        let whole = self.end_pushed && !dropped && self.order.missing().is_none();
        let mut read = whole || self.all_read || !self.streams;
        while !read {
            let (link, from) = (self.modern.link.clone(), self.order.next());
            let (task, driver) = (&self.task, &mut self.driver);
            let page = link
                .retry(|| super::read_output(&link, task, from, Duration::ZERO), |reason, wait| driver.connection_lost(reason, wait))
                .await;
            read = match page {
                Ok(page) => {
                    self.take_page(page).await;
                    self.all_read || self.order.next() == from
                }
                Err(failed) if failed.is_transient() => return Err(link.task_error(&self.task, failed)),
                Err(_) => true,
            };
        }
        self.hand_out().await;
        while let Some(missing) = self.order.missing() {
            self.skip_to(missing.end).await;
            self.hand_out().await;
        }
        let Some((status, message, outcome)) = self.ended.take() else { return Err(Error::Closed) };
        self.driver.record_end(status, message).await;
        Ok(outcome)
    }
}
