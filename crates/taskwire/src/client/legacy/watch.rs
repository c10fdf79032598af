//! Follows one task of the legacy era to its end: on the stream of `tasks/result`, and by polls.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use serde_json::{Value, json};
use taskwire_core::{
    Payload, Timestamp,
    task::RpcError,
    wire::{ReorderBuffer, RequestId, code},
};

use super::{
    LegacyClient,
    call::{forward_notice, question_key},
    read_snapshot,
    router::Registration,
    streaming,
};
use crate::client::{
    Chunk, Error, Event, Outcome, Question, Status, TaskSnapshot,
    call::{AnswerRoute, Driver},
    event::ToolResult,
    inbox::{Inbox, Notice},
    link::{self, RequestError, if_any},
    modern::{self, PARTIALS},
    wire::{Backoff, random},
};

/// Between two polls if the server does not say.
const POLL: Duration = Duration::from_secs(1);

pub(crate) async fn attach(legacy: Arc<LegacyClient>, mut driver: Driver, task: String) -> Result<Outcome, Error> {
    let found = legacy.find(&task).await?;
    let registration = legacy.router.register();
    registration.set_task(&task);
    legacy.task_started(&task);
    let reference = driver.shared.reference();
    let session = legacy.session_with_retries().await.map_err(|failed| legacy.link.error(failed))?.id.clone();
    driver.became_task(&task, session.or(reference.session)).await?;
    let peer = legacy.server_info();
    // The call was answered with segments. Those after the last one that was read can be asked for.
    if legacy.link.options.stream_output
        && !peer.pushes_output
        && reference.next > 0
        && peer.response_modes.iter().any(|mode| mode == "streaming")
    {
        return streaming::resume(legacy, driver, registration, task).await;
    }
    let mut watch = Watch::new(legacy, driver, registration, task);
    watch.pace(&found);
    watch.run(None).await
}

pub(super) struct Watch {
    pub(super) legacy: Arc<LegacyClient>,
    pub(super) driver: Driver,
    pub(super) registration: Registration,
    pub(super) task: String,
    pub(super) order: ReorderBuffer,
    last_reported: Option<(Status, Option<String>)>,
    poll: Duration,
    backoff: Backoff,
    /// Whether the end was seen, on the call's own stream and on any other: chunks after it on the same stream are ignored.
    end_seen: [bool; 2],
    /// Whether output came on another stream than the call's own, and the end did not: more may be on its way.
    output_elsewhere: bool,
    /// Whether the call's own stream and the session stream are lost: their messages come when they are back.
    streams_lost: [bool; 2],
    /// Since when a chunk waits for the one before it.
    gap_since: Option<Timestamp>,
}

type PendingTask = BoxFuture<'static, Result<TaskSnapshot, RequestError>>;
type ResultResponse = Result<Payload, RpcError>;

impl Watch {
    pub(super) fn new(legacy: Arc<LegacyClient>, driver: Driver, registration: Registration, task: String) -> Self {
        let options = &legacy.link.options;
        let order = ReorderBuffer::starting_at(driver.shared.reference().next, options.limits.buffer_bytes);
        let backoff = Backoff::new(options.timing);
        Self {
            legacy,
            driver,
            registration,
            task,
            order,
            last_reported: None,
            poll: POLL,
            backoff,
            end_seen: [false; 2],
            output_elsewhere: false,
            streams_lost: [false; 2],
            gap_since: None,
        }
    }

    pub(super) async fn run(mut self, created: Option<TaskSnapshot>) -> Result<Outcome, Error> {
        let options = self.legacy.link.options.clone();
        let clock = options.clock.clone();
        let mut due = clock.now();
        if let Some(created) = created {
            self.last_reported = Some(self.driver.report_created(&created).await);
            self.pace(&created);
            due = due.after(self.poll);
        }
        self.restore_questions().await?;
        let mut result = wait_for_result(self.legacy.clone(), self.task.clone(), self.registration.inbox.clone()).boxed();
        let mut asking = true;
        let mut looking: Option<PendingTask> = None;
        // Questions that were answered before the poll was sent.
        let mut answered = Vec::new();
        let mut ended: Option<TaskSnapshot> = None;
        let mut ask_again: Option<Timestamp> = None;
        loop {
            self.hand_out().await;
            if let Some(snapshot) = &ended
                && (snapshot.status == Status::Cancelled || !asking)
            {
                let outcome = Outcome::Cancelled { message: snapshot.message.clone() };
                if snapshot.status == Status::Cancelled {
                    return self.finish(snapshot.status, outcome).await;
                }
                // The server refused the result while the task was working; now it has one.
                result = self::wait_for_result(self.legacy.clone(), self.task.clone(), self.registration.inbox.clone()).boxed();
                asking = true;
            }
            if looking.is_none() && ended.is_none() && clock.now() >= due {
                let (legacy, task) = (self.legacy.clone(), self.task.clone());
                answered = self.driver.unacknowledged_answers();
                looking = Some(async move { legacy.get_task(&task).await }.boxed());
            }
            // The connection may be dead if there is no result although the task has ended: ask again.
            if ended.is_some() && asking {
                let again = *ask_again.get_or_insert_with(|| clock.now().after(2 * self.poll));
                if clock.now() >= again {
                    result = self::wait_for_result(self.legacy.clone(), self.task.clone(), self.registration.inbox.clone()).boxed();
                    ask_again = Some(clock.now().after(2 * self.poll));
                }
            }
            let look_at = (looking.is_none() && ended.is_none()).then_some(due);
            let wake = [look_at, ask_again, self.gap_since.map(|since| since.after(options.timing.reorder))];
            let mut timer = wake.into_iter().flatten().min().map(|at| clock.sleep_until(at));
            tokio::select! {
                biased;
                () = self.registration.inbox.ready() => {
                    self.registration.inbox.take_dropped();
                    while let Some(notice) = self.registration.inbox.try_next() {
                        if let Some(snapshot) = self.take(notice).await? {
                            ended = Some(snapshot);
                        }
                        self.hand_out().await;
                    }
                }
                answer = &mut result, if asking => {
                    asking = false;
                    match self.read_result(answer).await? {
                        Some((status, outcome)) => return self.finish(status, outcome).await,
                        // The server did not wait for the end, as it should: poll, and ask again at the end.
                        None => due = clock.now().after(self.poll),
                    }
                }
                seen = if_any(&mut looking) => {
                    looking = None;
                    due = match seen {
                        Ok(snapshot) => {
                            self.backoff.reset();
                            self.driver.connection_restored();
                            if snapshot.status != Status::InputRequired {
                                self.driver.acknowledge_answers(std::mem::take(&mut answered)).await;
                            }
                            // The server sends questions only to a client that waits for the result.
                            if snapshot.status == Status::InputRequired && !asking {
                                result = self::wait_for_result(self.legacy.clone(), self.task.clone(), self.registration.inbox.clone()).boxed();
                                asking = true;
                            }
                            ended = self.show(snapshot).await.or(ended);
                            clock.now().after(self.poll)
                        }
                        Err(failed) if failed.is_transient() => {
                            let Some(wait) = self.backoff.next(clock.now(), None, random()) else {
                                return Err(self.legacy.link.task_error(&self.task, failed));
                            };
                            self.driver.connection_lost(failed.reason(), wait);
                            clock.now().after(wait)
                        }
                        Err(failed) => return Err(self.legacy.link.task_error(&self.task, failed)),
                    };
                }
                () = if_any(&mut timer) => if self.gap_since.is_some_and(|since| clock.now() >= since.after(options.timing.reorder)) {
                    self.read_on(false).await?;
                    self.give_up_gap().await;
                },
            }
        }
    }

    /// Asks the questions that an earlier process received in the same session: the server does not send them again.
    async fn restore_questions(&mut self) -> Result<(), Error> {
        for recorded in self.legacy.recorded_questions(&self.driver.shared.entry).await? {
            let route = AnswerRoute::Response { id: recorded.id, session: recorded.session, times: 1 };
            self.driver.ask(recorded.question, route, Some(recorded.ledger_key)).await?;
        }
        Ok(())
    }

    pub(super) fn pace(&mut self, snapshot: &TaskSnapshot) {
        let timing = &self.legacy.link.options.timing;
        self.poll = snapshot.poll_ms.map_or(POLL, Duration::from_millis).max(timing.poll_min).min(timing.poll_max);
    }

    pub(super) fn poll(&self) -> Duration {
        self.poll
    }

    /// Takes a pushed message. Returns the task if it has ended.
    pub(super) async fn take(&mut self, notice: Notice) -> Result<Option<TaskSnapshot>, Error> {
        match notice {
            Notice::Chunk { seq, content, on_own_stream: own } => {
                let some = content.as_str().starts_with('[') && content.as_str() != "[]";
                let over = self.end_seen[usize::from(!own)];
                self.output_elsewhere = !own;
                if self.legacy.link.options.stream_output && !over && some {
                    self.order.take(seq, content);
                }
            }
            Notice::Task { raw, on_own_stream: own } => {
                if let Ok(snapshot) = read_snapshot(&raw) {
                    self.output_elsewhere &= own || !snapshot.status.is_terminal();
                    self.end_seen[usize::from(!own)] |= snapshot.id == self.task && snapshot.status.is_terminal();
                    return Ok(self.show(snapshot).await);
                }
            }
            Notice::Question { id, session, method, params } => self.ask(id, session, &method, &params).await?,
            Notice::QuestionWithdrawn { id, session } => self.driver.withdraw(&self.key(&id, session).0).await,
            notice => {
                let before = self.streams_lost;
                match &notice {
                    Notice::StreamUp { .. } => self.streams_lost[0] = false,
                    Notice::StreamDown { .. } => self.streams_lost[0] = true,
                    Notice::SessionStream(up) => self.streams_lost[1] = !up,
                    _ => {}
                }
                if before != self.streams_lost {
                    // From now on the missing chunk may be on its way.
                    self.gap_since = None;
                }
                forward_notice(&mut self.driver, notice).await;
            }
        }
        Ok(None)
    }

    /// The key of a question. If it is valid beyond its session, also how often the server has asked it, with answers that it refused in
    /// between: Taskwire servers write both into the request id. The id of any other server is valid in its session only.
    fn key(&self, id: &RequestId, session: u64) -> (String, Option<u32>) {
        let text = id.to_string();
        let ours = text.strip_prefix(&self.task).and_then(|rest| rest.strip_prefix('.')?.split_once('.'));
        let Some((nonce, key)) = ours else { return (question_key(id, session), None) };
        let times = nonce.split_once('~').and_then(|(_, times)| times.parse().ok()).unwrap_or(1);
        (key.to_owned(), Some(times))
    }

    async fn ask(&mut self, id: RequestId, session: u64, method: &str, params: &Payload) -> Result<(), Error> {
        let (key, times) = self.key(&id, session);
        let route = AnswerRoute::Response { id: id.clone(), session, times: times.unwrap_or(1) };
        let question = json!({"id": id, "method": method, "params": params});
        let input = Question::read(&key, Payload::from(question.clone()))
            .map_err(|reason| self.legacy.link.error(RequestError::Protocol(reason)))?;
        // A key that is valid beyond its session needs no session in the ledger, and the server sends the question again.
        let ledger_key = if times.is_some() { key.clone() } else { format!("{}/{id}", self.legacy.tag(session)) };
        if self.driver.knows(&key) {
            return self.driver.asked_again(input, route, Some(ledger_key)).await;
        }
        if times.is_none() {
            self.driver.shared.entry.record_question(&ledger_key, &question).await?;
        }
        self.driver.ask(input, route, Some(ledger_key)).await
    }

    /// Reports a changed status. Returns the task if it has ended.
    async fn show(&mut self, snapshot: TaskSnapshot) -> Option<TaskSnapshot> {
        if snapshot.id != self.task {
            return None;
        }
        self.pace(&snapshot);
        if snapshot.status.is_terminal() {
            return Some(snapshot);
        }
        if self.last_reported.as_ref() != Some(&(snapshot.status, snapshot.message.clone())) {
            self.last_reported = Some((snapshot.status, snapshot.message.clone()));
            self.driver.report_status(snapshot).await;
        }
        None
    }

    /// Reads the response to `tasks/result`; none if the task is still working.
    pub(super) async fn read_result(&mut self, answer: Result<ResultResponse, RequestError>) -> Result<Option<(Status, Outcome)>, Error> {
        let link = self.legacy.link.clone();
        match answer.map_err(|failed| link.task_error(&self.task, failed))? {
            Ok(result) => {
                let finished = ToolResult::read(result).map_err(|reason| link.error(RequestError::Protocol(reason)))?;
                let status = if finished.is_error { Status::Failed } else { Status::Completed };
                Ok(Some((status, Outcome::Result(finished))))
            }
            // An error may mean that the task failed, was cancelled, or is unknown: its state says which.
            Err(error) => match link.retry(|| self.legacy.get_task(&self.task), |_, _| {}).await {
                Ok(snapshot) => Ok(match snapshot.status {
                    Status::Cancelled => Some((snapshot.status, Outcome::Cancelled { message: snapshot.message })),
                    Status::Failed | Status::Completed => Some((Status::Failed, Outcome::Failed(super::failure(error, snapshot.message)))),
                    Status::Working | Status::InputRequired => None,
                }),
                Err(failed) => Err(link.task_error(&self.task, failed)),
            },
        }
    }

    /// Whether output can be read with a request of the modern era, so that no chunk is lost.
    fn reads(&self) -> bool {
        self.legacy.link.options.stream_output && self.legacy.server_info().capabilities["experimental"][PARTIALS].is_object()
    }

    /// Reads missing chunks, or all that are left if the task has ended. False if the server cannot.
    async fn read_on(&mut self, ended: bool) -> Result<bool, Error> {
        let (legacy, task) = (self.legacy.clone(), self.task.clone());
        while self.reads() && (ended || self.order.missing().is_some()) {
            let from = self.order.next();
            let driver = &mut self.driver;
            let read = || modern::read_output(&legacy.link, &task, from, Duration::ZERO);
            let page = match legacy.link.retry(read, |reason, wait| driver.connection_lost(reason, wait)).await {
                Ok(page) => page,
                Err(failed) if failed.is_transient() => return Err(legacy.link.task_error(&task, failed)),
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

    /// Emits the chunks that are next in order.
    pub(super) async fn hand_out(&mut self) {
        while let Some((seq, content)) = self.order.pop() {
            self.driver.emit(Event::Chunk(Chunk { seq, content })).await;
        }
        self.gap_since = match self.order.missing() {
            Some(_) if !self.streams_lost.contains(&true) => self.gap_since.or_else(|| Some(self.legacy.link.options.clock.now())),
            _ => None,
        };
    }

    /// Reports the missing chunks as lost.
    pub(super) async fn give_up_gap(&mut self) {
        self.gap_since = None;
        if let Some(gap) = self.order.missing().and_then(|missing| self.order.skip_to(missing.end)) {
            self.driver.emit(Event::Gap { from: gap.start, until: gap.end }).await;
        }
    }

    /// Emits the rest of the output, then returns the outcome.
    pub(super) async fn finish(mut self, status: Status, outcome: Outcome) -> Result<Outcome, Error> {
        let reorder = self.legacy.link.options.timing.reorder;
        let clock = self.legacy.link.options.clock.clone();
        if self.read_on(true).await? {
            self.output_elsewhere = false;
        }
        loop {
            while let Some(notice) = self.registration.inbox.try_next() {
                // Questions come too late now.
                if matches!(notice, Notice::Chunk { .. } | Notice::Progress(_) | Notice::Log(_)) {
                    self.take(notice).await?;
                }
            }
            self.hand_out().await;
            let Some(since) = self.gap_since else {
                if self.order.missing().is_some() {
                    self.give_up_gap().await;
                    continue;
                }
                // The result may have overtaken chunks on another stream.
                if !self.output_elsewhere {
                    break;
                }
                tokio::select! {
                    () = self.registration.inbox.ready() => drop(self.registration.inbox.take_dropped()),
                    () = clock.sleep(reorder / 5) => self.output_elsewhere = false,
                }
                continue;
            };
            tokio::select! {
                () = self.registration.inbox.ready() => drop(self.registration.inbox.take_dropped()),
                () = clock.sleep_until(since.after(reorder)) => self.give_up_gap().await,
            }
        }
        // Chunks that the inbox dropped are lost: the server cannot be asked for them.
        if let Some(last) = self.registration.inbox.last_dropped().filter(|last| *last >= self.order.next())
            && let Some(gap) = self.order.skip_to(last.saturating_add(1))
        {
            self.driver.emit(Event::Gap { from: gap.start, until: gap.end }).await;
        }
        let message = match &outcome {
            Outcome::Cancelled { message } => message.clone(),
            Outcome::Failed(error) => Some(error.message.clone()),
            Outcome::Result(_) => None,
        };
        self.legacy.task_ended(&self.task);
        self.driver.acknowledge_answers(self.driver.unacknowledged_answers()).await;
        self.driver.record_end(status, message).await;
        Ok(outcome)
    }
}

/// Asks for the result of a task until there is one. Messages before it go to `inbox`.
pub(super) async fn wait_for_result(legacy: Arc<LegacyClient>, task: String, inbox: Arc<Inbox>) -> Result<ResultResponse, RequestError> {
    let mut backoff = Backoff::new(legacy.link.options.timing);
    let clock = legacy.link.options.clock.clone();
    loop {
        let began = clock.now();
        let failed = match result_once(&legacy, &json!({"taskId": task}), &inbox).await {
            Ok(answered) => return Ok(answered),
            Err(failed) if failed.is_transient() => failed,
            Err(failed) => return Err(failed),
        };
        let Some(wait) = backoff.next_since(began, clock.now(), failed.retry_after()) else { return Err(failed) };
        inbox.push(Notice::StreamDown { reason: failed.reason(), retry_in: Some(wait) });
        clock.sleep(wait).await;
    }
}

/// Asks for the result of a task once, on a stream of its own.
pub(super) async fn result_once(legacy: &Arc<LegacyClient>, params: &Value, inbox: &Arc<Inbox>) -> Result<ResultResponse, RequestError> {
    let id = legacy.link.next_id();
    let mut stream = legacy.send(id, "tasks/result", params, true).await?;
    inbox.push(Notice::StreamUp { output: false, first_seq: None });
    loop {
        match link::match_response(id, stream.next(Some(inbox)).await?) {
            // The server shuts down: ask it again after its restart.
            Ok(Err(error)) if error.code == code::UNAVAILABLE => return Err(RequestError::Rpc(error)),
            Ok(answered) => return Ok(answered),
            Err(message) => legacy.dispatch(message, Some(inbox)),
        }
    }
}
