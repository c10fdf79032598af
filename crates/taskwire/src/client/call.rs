//! A call under way: [`Call`], which the caller holds, and [`Driver`], by which an era drives it.

mod questions;

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

use tokio::sync::{mpsc, watch};

use self::questions::TrackedQuestion;
pub(crate) use self::questions::{AnswerRoute, is_refusal};
use super::{
    Answer, ConnectionState as LinkState, EraClient, Error, Event, Outcome, Reference, Status, TaskSnapshot, ledger_entry::LedgerEntry,
    link::PendingGuard,
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

    pub(crate) async fn wait_for_cancel(&self) {
        let _ = self.shared.cancel_requested.subscribe().wait_for(|stop| *stop).await;
    }
}
