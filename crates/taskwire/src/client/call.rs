//! A call under way: [`Call`], which the caller holds, and [`Driver`], by which an era drives it.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use serde_json::Value;
use taskwire_core::wire::RequestId;
use tokio::sync::{mpsc, watch};

use super::{
    Answer, ConnectionState as LinkState, EraClient, Error, Event, Outcome, Question, Reference, Status, TaskSnapshot,
    ledger_entry::LedgerEntry, link::PendingGuard,
};

/// Events that wait to be read.
const QUEUE: usize = 64;

/// A call under way: a stream of [`Event`]s, the last of which is [`Event::Done`].
///
/// Events wait until they are read. Dropping a call, or [`detach`](Self::detach), stops watching; a task goes on without it.
#[derive(Debug)]
pub struct Call {
    events: mpsc::Receiver<Result<Event, Error>>,
    /// The event that [`Call::open`] waited for.
    first: Option<Result<Event, Error>>,
    shared: Arc<Shared>,
    events_read: u64,
    is_finished: bool,
}

/// The state that `Call` and `Driver` share.
pub(crate) struct Shared {
    pub(crate) client: EraClient,
    pub(crate) entry: LedgerEntry,
    reference: Mutex<Reference>,
    questions: Mutex<HashMap<String, TrackedQuestion>>,
    /// Weak, so that the stream ends when the driver does.
    events: mpsc::WeakSender<Result<Event, Error>>,
    /// The number of events sent to the caller.
    emitted: AtomicU64,
    /// The number of events that the caller asked for.
    demand: watch::Sender<u64>,
    /// Set when the caller cancels a call that is no task (yet).
    pub(crate) cancel_requested: watch::Sender<bool>,
    /// Set when the call is dropped, so that [`Client::close`](super::Client::close) waits until the driver has ended.
    pending: Mutex<Option<PendingGuard>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("reference", &self.reference).finish_non_exhaustive()
    }
}

/// How an answer gets to the server.
#[derive(Debug, Clone)]
pub(crate) enum AnswerRoute {
    /// With `tasks/update`.
    TaskUpdate,
    /// With the next round of the call.
    NextRound(mpsc::Sender<(String, Value)>),
    /// As the response to a request of the server, in the session that the request came in.
    Response(RequestId, u64),
}

impl AnswerRoute {
    /// The session of a question to which there is a response.
    fn session(&self) -> Option<u64> {
        if let Self::Response(_, session) = self { Some(*session) } else { None }
    }

    /// Whether both lead to the same request of the server.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Response(id, session), Self::Response(other, other_session)) => id == other && session == other_session,
            _ => true,
        }
    }
}

struct TrackedQuestion {
    question: Question,
    route: AnswerRoute,
    /// Its key in the ledger; none if the ledger does not keep it.
    ledger_key: Option<String>,
    state: Stage,
    /// The answer that was sent as a response, which the server does not acknowledge.
    unacknowledged: Option<Value>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    Sending,
    /// Open, after an answer that did not arrive. If the server asks again, so does the call.
    Failed,
    Answered,
    /// It needs no answer any more. Kept so that its key is not asked again.
    Settled,
}

impl Call {
    /// Spawns `drive` and waits for its first event.
    pub(crate) async fn open<F, T>(client: EraClient, entry: LedgerEntry, reference: Reference, drive: F) -> Result<Self, Error>
    where
        F: FnOnce(Driver) -> T,
        T: Future<Output = Result<Outcome, Error>> + Send + 'static,
    {
        let (sender, events) = mpsc::channel(QUEUE);
        let shared = Arc::new(Shared {
            events: sender.downgrade(),
            emitted: AtomicU64::new(0),
            client,
            entry,
            reference: Mutex::new(reference),
            questions: Mutex::default(),
            demand: watch::Sender::new(0),
            cancel_requested: watch::Sender::new(false),
            pending: Mutex::default(),
        });
        let driving = drive(Driver { events: sender.clone(), shared: shared.clone(), is_disconnected: false });
        let finishing = shared.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                // The caller dropped the call. One that is no task is cancelled with it, so the ledger forgets it.
                () = sender.closed() => {
                    if finishing.reference().task.is_none() && !finishing.client.link().detached.load(Ordering::Relaxed) {
                        finishing.entry.remove().await;
                    }
                }
                outcome = driving => {
                    let last = outcome.map(Event::Done);
                    if matches!(last, Ok(Event::Done(_))) && finishing.reference().task.is_none() {
                        finishing.entry.remove().await;
                    }
                    let _ = sender.send(last).await;
                }
            }
        });
        let mut call = Self { events, first: None, shared, events_read: 0, is_finished: false };
        match call.events.recv().await {
            None => Err(Error::Closed),
            Some(Err(error)) => Err(error),
            first => {
                call.first = first;
                Ok(call)
            }
        }
    }

    /// The next event. After [`Event::Done`], or an error, there is none. Nothing is lost if this is dropped before it is
    /// ready.
    pub async fn next(&mut self) -> Option<Result<Event, Error>> {
        std::future::poll_fn(|cx| self.poll_event(cx)).await
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event, Error>>> {
        if self.is_finished {
            return Poll::Ready(None);
        }
        let next = self.events_read + 1;
        self.shared.demand.send_if_modified(|wanted| std::mem::replace(wanted, next) != next);
        let event = match self.first.take() {
            Some(first) => Some(first),
            None => std::task::ready!(self.events.poll_recv(cx)),
        };
        self.events_read += 1;
        match &event {
            Some(Ok(Event::Done(_)) | Err(_)) | None => self.is_finished = true,
            Some(Ok(Event::Chunk(chunk))) => self.shared.lock_reference().next = chunk.seq.saturating_add(1),
            Some(Ok(Event::Gap { until, .. })) => self.shared.lock_reference().next = *until,
            Some(Ok(_)) => {}
        }
        Poll::Ready(event)
    }

    /// The reference by which any process finds the task again. None while the call is no task.
    #[must_use]
    pub fn reference(&self) -> Option<Reference> {
        Some(self.shared.reference()).filter(|reference| reference.task.is_some())
    }

    /// Answers a question.
    ///
    /// # Errors
    /// When the answer does not fit the question, the question was answered before, there is no such question, or the server
    /// cannot be reached.
    pub async fn answer(&self, key: &str, answer: Answer) -> Result<(), Error> {
        self.shared.answer(key, answer).await
    }

    /// Asks the server to cancel the call. The end still comes as [`Event::Done`].
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn cancel(&self) -> Result<(), Error> {
        match self.shared.reference().task {
            Some(task) => self.shared.client.cancel(&task).await,
            None => {
                self.shared.cancel_requested.send_replace(true);
                Ok(())
            }
        }
    }

    /// Stops watching. A task goes on, and the reference finds it again; a call that is no task is cancelled.
    #[must_use]
    pub fn detach(self) -> Option<Reference> {
        self.reference()
    }

    /// Reads to the end. The options' question handler answers questions.
    ///
    /// # Errors
    /// When the client gave up before it saw the end.
    pub async fn finish(mut self) -> Result<Outcome, Error> {
        let handler = self.shared.client.link().options.question_handler.clone();
        while let Some(event) = self.next().await {
            match event? {
                Event::Done(outcome) => return Ok(outcome),
                Event::Question(question) => {
                    let answer = match &handler {
                        Some(handler) => handler.answer(&question).await,
                        None => Answer::cancel(),
                    };
                    match self.answer(&question.key, answer).await {
                        // Another client answered first, or its session has ended: then the question comes again if the server asks again.
                        Err(Error::AlreadyAnswered { .. } | Error::NoQuestion { .. }) | Ok(()) => {}
                        Err(error) => return Err(error),
                    }
                }
                _ => {}
            }
        }
        Err(Error::Closed)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let guard = self.shared.client.link().pending_guard();
        *self.shared.pending.lock().unwrap_or_else(PoisonError::into_inner) = Some(guard);
    }
}

impl futures_util::Stream for Call {
    type Item = Result<Event, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_event(cx)
    }
}

impl Shared {
    fn lock_reference(&self) -> std::sync::MutexGuard<'_, Reference> {
        self.reference.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn reference(&self) -> Reference {
        self.lock_reference().clone()
    }

    fn questions(&self) -> std::sync::MutexGuard<'_, HashMap<String, TrackedQuestion>> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an event, unless the queue is full.
    fn try_emit(&self, event: Event) {
        if self.events.upgrade().is_some_and(|events| events.try_send(Ok(event)).is_ok()) {
            self.emitted.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn answer(&self, key: &str, answer: Answer) -> Result<(), Error> {
        let (mut route, ledger_key) = {
            let mut questions = self.questions();
            let asked = questions.get_mut(key).ok_or_else(|| Error::NoQuestion { key: key.to_owned() })?;
            if !matches!(asked.state, Stage::Open | Stage::Failed) {
                return Err(Error::AlreadyAnswered { key: key.to_owned() });
            }
            asked.question.check(&answer)?;
            asked.state = Stage::Sending;
            (asked.route.clone(), asked.ledger_key.clone())
        };
        // If this future is dropped half way, the question is open again. The ledger makes sure that a second answer is the same.
        let reopen = Reopen { shared: self, key };
        let mut result = self.submit_answer(key, route.clone(), ledger_key.clone(), answer.value()).await;
        while let Some(next) = self.end_sending(key, &route, answer.value(), &result) {
            route = next;
            if result.is_err() {
                result = self.submit_answer(key, route.clone(), ledger_key.clone(), answer.value()).await;
            } else if let Err(error) = self.send(key, route.clone(), answer.value().clone()).await {
                tracing::debug!(key, %error, "an answer could not be sent again: the server will ask again");
            }
        }
        std::mem::forget(reopen);
        result
    }

    /// An answer was sent by `route`, or could not be. If the server asked again meanwhile, returns where: the answer must go there,
    /// too, because the one that was sent may be lost. It is the same question: where a key is valid in its session only, no other
    /// request has it.
    fn end_sending(&self, key: &str, route: &AnswerRoute, answer: &Value, result: &Result<(), Error>) -> Option<AnswerRoute> {
        let mut questions = self.questions();
        let asked = questions.get_mut(key).filter(|asked| asked.state == Stage::Sending)?;
        let may_be_lost = matches!(result, Ok(()) | Err(Error::AlreadyAnswered { .. } | Error::NoQuestion { .. }));
        if may_be_lost && !asked.route.is_same(route) {
            return Some(asked.route.clone());
        }
        // A response settles its question at once. After an update the task's state shows it, and a round ends with its questions.
        asked.state = match (result, &asked.route) {
            (Err(_), _) => Stage::Failed,
            (Ok(()), AnswerRoute::Response(..)) => Stage::Settled,
            (Ok(()), _) => Stage::Answered,
        };
        if asked.state == Stage::Settled {
            asked.unacknowledged = Some(answer.clone());
            self.try_emit(Event::QuestionSettled { key: key.to_owned() });
        }
        None
    }

    fn keep_unacknowledged(&self, key: &str, answer: Value) {
        if let Some(asked) = self.questions().get_mut(key).filter(|asked| matches!(asked.route, AnswerRoute::Response(..))) {
            asked.unacknowledged = Some(answer);
        }
    }

    async fn submit_answer(&self, key: &str, route: AnswerRoute, ledger_key: Option<String>, answer: &Value) -> Result<(), Error> {
        match ledger_key {
            Some(kept) => self.entry.answer_once(&kept, key, answer, |answer| self.send(key, route, answer)).await,
            None => self.send(key, route, answer.clone()).await,
        }
    }

    async fn send(&self, key: &str, route: AnswerRoute, answer: Value) -> Result<(), Error> {
        match route {
            AnswerRoute::NextRound(round) => {
                round.send((key.to_owned(), answer)).await.map_err(|_| Error::NoQuestion { key: key.to_owned() })
            }
            AnswerRoute::TaskUpdate => {
                let task = self.reference().task.ok_or_else(|| Error::NoQuestion { key: key.to_owned() })?;
                self.client.update(&task, key, &answer).await
            }
            AnswerRoute::Response(id, session) => self.client.respond(&id, session, &answer).await,
        }
    }
}

/// Whether the server received the request and refused it.
pub(crate) fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Rpc(_) | Error::Refused { .. } | Error::TaskNotFound { .. })
}

/// Opens a question again whose answer was not sent.
struct Reopen<'a> {
    shared: &'a Shared,
    key: &'a str,
}

impl Drop for Reopen<'_> {
    fn drop(&mut self) {
        if let Some(asked) = self.shared.questions().get_mut(self.key).filter(|asked| asked.state == Stage::Sending) {
            asked.state = Stage::Open;
        }
    }
}

/// The side of a call that talks to the server.
pub(crate) struct Driver {
    events: mpsc::Sender<Result<Event, Error>>,
    pub(crate) shared: Arc<Shared>,
    is_disconnected: bool,
}

impl Driver {
    /// Sends an event, and waits while the queue is full.
    pub(crate) async fn emit(&mut self, event: Event) {
        if self.events.send(Ok(event)).await.is_ok() {
            self.shared.emitted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reports a lost connection: once, and only if the queue is not full.
    pub(crate) fn connection_lost(&mut self, reason: String, retry_in: Duration) {
        if !std::mem::replace(&mut self.is_disconnected, true) {
            self.shared.try_emit(Event::Connection(LinkState::Lost { reason, retry_in }));
        }
    }

    pub(crate) fn connection_restored(&mut self) {
        if std::mem::take(&mut self.is_disconnected) {
            self.shared.try_emit(Event::Connection(LinkState::Restored));
        }
    }

    /// The call became a task: records it, then emits it. Returns when the caller wants the next event.
    pub(crate) async fn became_task(&mut self, task: &str, session: Option<String>) -> Result<(), Error> {
        let reference = {
            let mut reference = self.shared.lock_reference();
            reference.task = Some(task.to_owned());
            reference.args = None;
            reference.session = session;
            reference.clone()
        };
        self.shared.entry.set_task(&reference).await?;
        // The caller cancelled just when the call became a task.
        if *self.shared.cancel_requested.borrow() {
            self.shared.client.cancel(task).await?;
        }
        self.emit(Event::Task(reference)).await;
        self.wait_for_demand().await;
        Ok(())
    }

    /// Waits until the caller asks for an event beyond those emitted. A caller that only starts a task never does, so the
    /// server does not spend on it what it sends only once.
    pub(crate) async fn wait_for_demand(&self) {
        let emitted = self.shared.emitted.load(Ordering::Relaxed);
        let _ = self.shared.demand.subscribe().wait_for(|wanted| *wanted > emitted).await;
    }

    pub(crate) async fn report_status(&mut self, snapshot: TaskSnapshot) {
        self.shared.entry.update_status(snapshot.status, snapshot.message.clone()).await;
        self.emit(Event::Status(snapshot)).await;
    }

    /// Reports the state that came with the task's creation, unless it only says that the task is working.
    pub(crate) async fn report_created(&mut self, snapshot: &TaskSnapshot) -> (Status, Option<String>) {
        if !snapshot.status.is_terminal() && (snapshot.message.is_some() || snapshot.status != Status::Working) {
            self.report_status(snapshot.clone()).await;
        }
        (snapshot.status, snapshot.message.clone())
    }

    pub(crate) async fn record_end(&self, status: Status, message: Option<String>) {
        self.shared.entry.update_status(status, message).await;
    }

    /// Emits a question, each key once. An answer that an earlier process recorded is sent again instead, if the server may
    /// not have it.
    pub(crate) async fn ask(&mut self, question: Question, route: AnswerRoute, ledger_key: Option<String>) -> Result<(), Error> {
        let key = question.key.clone();
        if self.shared.questions().contains_key(&key) {
            return Ok(());
        }
        let before = match &ledger_key {
            Some(ledger_key) => self.shared.entry.recorded_answer(ledger_key).await?,
            None => None,
        };
        let state = if before.is_some() { Stage::Settled } else { Stage::Open };
        self.shared.questions().insert(
            key.clone(),
            TrackedQuestion {
                question: question.clone(),
                route: route.clone(),
                ledger_key: ledger_key.clone(),
                state,
                unacknowledged: None,
            },
        );
        match before {
            None => self.emit(Event::Question(question)).await,
            Some((_, true)) => {}
            Some((answer, false)) => {
                let sent = self.shared.submit_answer(&key, route, ledger_key, &answer).await;
                self.sent_again(question, answer, sent).await?;
            }
        }
        Ok(())
    }

    /// An answer that was given before was sent again. If the server refused it, the question is open again.
    async fn sent_again(&mut self, question: Question, answer: Value, sent: Result<(), Error>) -> Result<(), Error> {
        match sent {
            // When its session has ended, the server asks again in the next one, and the answer is sent there.
            Ok(()) | Err(Error::AlreadyAnswered { .. } | Error::NoQuestion { .. }) => {
                self.shared.keep_unacknowledged(&question.key, answer);
            }
            Err(error) if is_refusal(&error) => {
                if let Some(asked) = self.shared.questions().get_mut(&question.key) {
                    (asked.state, asked.unacknowledged) = (Stage::Open, None);
                }
                self.emit(Event::Question(question)).await;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Answers a question whose answer the client knows.
    pub(crate) async fn answer_without_asking(
        &mut self,
        question: Question,
        route: AnswerRoute,
        ledger_key: Option<String>,
        answer: Value,
    ) -> Result<(), Error> {
        let key = question.key.clone();
        if self.shared.questions().contains_key(&key) {
            return Ok(());
        }
        let tracked =
            TrackedQuestion { question, route: route.clone(), ledger_key: ledger_key.clone(), state: Stage::Settled, unacknowledged: None };
        self.shared.questions().insert(key.clone(), tracked);
        match self.shared.submit_answer(&key, route, ledger_key, &answer).await {
            Err(Error::AlreadyAnswered { .. }) | Ok(()) => {
                self.shared.keep_unacknowledged(&key, answer);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// The server asks a question again: an answer takes the new route. One that was sent before did not arrive, and is sent again. If
    /// there is none, or its sender knows that it did not arrive, the question is asked anew.
    pub(crate) async fn asked_again(&mut self, question: Question, route: AnswerRoute, ledger_key: Option<String>) -> Result<(), Error> {
        let lost = {
            let mut questions = self.shared.questions();
            let Some(asked) = questions.get_mut(&question.key) else { return Ok(()) };
            match asked.state {
                // Whoever sends an answer just now sees that, and sends it there, too.
                Stage::Open | Stage::Sending | Stage::Answered => {
                    asked.route = route;
                    return Ok(());
                }
                Stage::Failed => None,
                // In the session in which it was sent, it is on its way.
                Stage::Settled if asked.route.session() == route.session() => return Ok(()),
                Stage::Settled => {
                    asked.route = route.clone();
                    asked.unacknowledged.clone()
                }
            }
        };
        let Some(answer) = lost else {
            self.shared.questions().remove(&question.key);
            return self.ask(question, route, ledger_key).await;
        };
        let sent = self.shared.send(&question.key, route, answer.clone()).await;
        if let Err(error) = self.sent_again(question, answer, sent).await {
            tracing::debug!(%error, "an answer could not be sent again: the server will ask again");
        }
        Ok(())
    }

    /// Whether the question has come before.
    pub(crate) fn knows(&self, key: &str) -> bool {
        self.shared.questions().contains_key(key)
    }

    pub(crate) async fn withdraw(&mut self, key: &str) {
        let open = self.shared.questions().get(key).is_some_and(|asked| matches!(asked.state, Stage::Open | Stage::Failed));
        if open {
            self.retain_questions(|other| other != key).await;
        }
    }

    /// Settles all questions but these.
    pub(crate) async fn retain_questions(&mut self, still: impl Fn(&str) -> bool) {
        let mut gone = Vec::new();
        for (key, asked) in self.shared.questions().iter_mut() {
            if asked.state != Stage::Settled && !still(key) {
                asked.state = Stage::Settled;
                gone.push(key.clone());
            }
        }
        for key in gone {
            self.emit(Event::QuestionSettled { key }).await;
        }
    }

    /// The next round may use the same keys for other questions.
    pub(crate) fn clear_questions(&self) {
        self.shared.questions().clear();
    }

    pub(crate) async fn wait_for_cancel(&self) {
        let _ = self.shared.cancel_requested.subscribe().wait_for(|stop| *stop).await;
    }
}
