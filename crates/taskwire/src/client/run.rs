//! A call under way, from the side of who called and from the side of what drives it.

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

use super::{Answer, Dialect, Error, Event, Input, Link as LinkState, Outcome, Reference, Status, TaskView, book::Book, link::Word};

/// Events that wait to be read.
const QUEUE: usize = 64;

/// A call under way: a stream of [`Event`]s, the last of which is [`Event::Done`].
///
/// What is not read waits; dropping a run, or [`detach`](Self::detach), stops watching, and a task goes on without it.
#[derive(Debug)]
pub struct Run {
    events: mpsc::Receiver<Result<Event, Error>>,
    /// Read by who waited for the server to answer at all.
    first: Option<Result<Event, Error>>,
    shared: Arc<Shared>,
    handed: u64,
    over: bool,
}

/// What both sides of a run know.
pub(crate) struct Shared {
    pub(crate) dialect: Dialect,
    pub(crate) book: Book,
    reference: Mutex<Reference>,
    questions: Mutex<HashMap<String, Asked>>,
    /// Weak, so that a run ends with what drives it.
    events: mpsc::WeakSender<Result<Event, Error>>,
    /// So many events were told.
    emitted: AtomicU64,
    /// So many events were asked for.
    wanted: watch::Sender<u64>,
    /// Set when a call that is no task (yet) is to be called off.
    pub(crate) stop: watch::Sender<bool>,
    /// Who dropped the run may wait until what drives it has ended.
    farewell: Mutex<Option<Word>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("reference", &self.reference).finish_non_exhaustive()
    }
}

/// How the answer to a question is given.
#[derive(Debug, Clone)]
pub(crate) enum Way {
    /// With an update of the task.
    Update,
    /// With the next round of the call.
    Round(mpsc::Sender<(String, Value)>),
    /// As the answer to a request of the server, in the session that it came in.
    Respond(RequestId, u64),
}

struct Asked {
    input: Input,
    way: Way,
    /// Its name in the ledger; none if it is not kept there.
    kept: Option<String>,
    state: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    Sending,
    Answered,
    /// It was told that no answer is needed any more. Kept as a name that was used.
    Gone,
}

impl Run {
    /// Starts what `drive` does, and waits until there is something to say.
    pub(crate) async fn open<F, T>(dialect: Dialect, book: Book, reference: Reference, drive: F) -> Result<Self, Error>
    where
        F: FnOnce(Driver) -> T,
        T: Future<Output = Result<Outcome, Error>> + Send + 'static,
    {
        let (sender, events) = mpsc::channel(QUEUE);
        let shared = Arc::new(Shared {
            events: sender.downgrade(),
            emitted: AtomicU64::new(0),
            dialect,
            book,
            reference: Mutex::new(reference),
            questions: Mutex::default(),
            wanted: watch::Sender::new(0),
            stop: watch::Sender::new(false),
            farewell: Mutex::default(),
        });
        let driving = drive(Driver { events: sender.clone(), shared: shared.clone(), down: false });
        let finishing = shared.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                // Nobody is interested any more. A call that is no task is given up, and not worth remembering.
                () = sender.closed() => {
                    if finishing.reference().task.is_none() && !finishing.dialect.link().left.load(Ordering::Relaxed) {
                        finishing.book.forget().await;
                    }
                }
                outcome = driving => {
                    let last = outcome.map(Event::Done);
                    if matches!(last, Ok(Event::Done(_))) && finishing.reference().task.is_none() {
                        finishing.book.forget().await;
                    }
                    let _ = sender.send(last).await;
                }
            }
        });
        let mut run = Self { events, first: None, shared, handed: 0, over: false };
        match run.events.recv().await {
            None => Err(Error::Closed),
            Some(Err(error)) => Err(error),
            first => {
                run.first = first;
                Ok(run)
            }
        }
    }

    /// The next event. After [`Event::Done`], or an error, there is none. Nothing is lost if this is dropped before it is
    /// ready.
    pub async fn next(&mut self) -> Option<Result<Event, Error>> {
        std::future::poll_fn(|cx| self.poll_event(cx)).await
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event, Error>>> {
        if self.over {
            return Poll::Ready(None);
        }
        let next = self.handed + 1;
        self.shared.wanted.send_if_modified(|wanted| std::mem::replace(wanted, next) != next);
        let event = match self.first.take() {
            Some(first) => Some(first),
            None => std::task::ready!(self.events.poll_recv(cx)),
        };
        self.handed += 1;
        match &event {
            Some(Ok(Event::Done(_)) | Err(_)) | None => self.over = true,
            Some(Ok(Event::Partial(partial))) => self.shared.lock_reference().next = partial.seq.saturating_add(1),
            Some(Ok(Event::Gap { until, .. })) => self.shared.lock_reference().next = *until,
            Some(Ok(_)) => {}
        }
        Poll::Ready(event)
    }

    /// What finds the task again, from any process. None while the call is no task.
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

    /// Asks the server to call the work off. How it ended still comes as [`Event::Done`].
    ///
    /// # Errors
    /// When the server does not take it.
    pub async fn cancel(&self) -> Result<(), Error> {
        match self.shared.reference().task {
            Some(task) => self.shared.dialect.cancel(&task).await,
            None => {
                self.shared.stop.send_replace(true);
                Ok(())
            }
        }
    }

    /// Stops watching. A task goes on, and the reference finds it again; a call that is no task is given up.
    #[must_use]
    pub fn detach(self) -> Option<Reference> {
        self.reference()
    }

    /// Reads on to the end, and has questions answered as the client's options say.
    ///
    /// # Errors
    /// When the end cannot be learned.
    pub async fn finish(mut self) -> Result<Outcome, Error> {
        let answers = self.shared.dialect.link().options.answers.clone();
        while let Some(event) = self.next().await {
            match event? {
                Event::Done(outcome) => return Ok(outcome),
                Event::Input(input) => {
                    let answer = match &answers {
                        Some(answers) => answers.answer(&input).await,
                        None => Answer::cancel(),
                    };
                    match self.answer(&input.key, answer).await {
                        // Somebody else was faster.
                        Err(Error::Answered { .. } | Error::NoQuestion { .. }) | Ok(()) => {}
                        Err(error) => return Err(error),
                    }
                }
                _ => {}
            }
        }
        Err(Error::Closed)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let word = self.shared.dialect.link().word();
        *self.shared.farewell.lock().unwrap_or_else(PoisonError::into_inner) = Some(word);
    }
}

impl futures_util::Stream for Run {
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

    fn questions(&self) -> std::sync::MutexGuard<'_, HashMap<String, Asked>> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells an event, if there is room for it.
    fn try_emit(&self, event: Event) {
        if self.events.upgrade().is_some_and(|events| events.try_send(Ok(event)).is_ok()) {
            self.emitted.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn answer(&self, key: &str, answer: Answer) -> Result<(), Error> {
        let (way, kept) = {
            let mut questions = self.questions();
            let asked = questions.get_mut(key).ok_or_else(|| Error::NoQuestion { key: key.to_owned() })?;
            if asked.state != Stage::Open {
                return Err(Error::Answered { key: key.to_owned() });
            }
            asked.input.check(&answer)?;
            asked.state = Stage::Sending;
            (asked.way.clone(), asked.kept.clone())
        };
        // If this is dropped half way, the question is open again; the ledger sees to it that the answer stays the same.
        let reopen = Reopen { shared: self, key };
        let given = self.give(key, way, kept, answer.value()).await;
        std::mem::forget(reopen);
        let mut questions = self.questions();
        let mut settled = false;
        if let Some(asked) = questions.get_mut(key).filter(|asked| asked.state == Stage::Sending) {
            // Whether an update was heeded is seen at the task, and a round ends with its questions.
            settled = given.is_ok() && matches!(asked.way, Way::Respond(..));
            asked.state = match (&given, settled) {
                (Err(_), _) => Stage::Open,
                (Ok(()), false) => Stage::Answered,
                (Ok(()), true) => Stage::Gone,
            };
        }
        drop(questions);
        if settled {
            self.try_emit(Event::Settled { key: key.to_owned() });
        }
        given
    }

    /// Gives an answer that fits.
    async fn give(&self, key: &str, way: Way, kept: Option<String>, answer: &Value) -> Result<(), Error> {
        match kept {
            Some(kept) => self.book.answer_once(&kept, key, answer, |answer| self.send(key, way, answer)).await,
            None => self.send(key, way, answer.clone()).await,
        }
    }

    async fn send(&self, key: &str, way: Way, answer: Value) -> Result<(), Error> {
        match way {
            Way::Round(round) => round.send((key.to_owned(), answer)).await.map_err(|_| Error::NoQuestion { key: key.to_owned() }),
            Way::Update => {
                let task = self.reference().task.ok_or_else(|| Error::NoQuestion { key: key.to_owned() })?;
                self.dialect.update(&task, key, &answer).await
            }
            Way::Respond(id, session) => self.dialect.respond(&id, session, &answer).await,
        }
    }
}

/// Whether the server heard what was sent, and does not want it.
pub(crate) fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Rpc(_) | Error::Refused { .. } | Error::NotFound { .. })
}

/// Opens a question again whose answer was not given.
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

/// The side of a run that makes it go on.
pub(crate) struct Driver {
    events: mpsc::Sender<Result<Event, Error>>,
    pub(crate) shared: Arc<Shared>,
    down: bool,
}

impl Driver {
    /// Tells an event, as soon as there is room for it.
    pub(crate) async fn emit(&mut self, event: Event) {
        if self.events.send(Ok(event)).await.is_ok() {
            self.shared.emitted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The connection was lost. Told once, and only if there is room.
    pub(crate) fn lost(&mut self, reason: String, again_in: Duration) {
        if !std::mem::replace(&mut self.down, true) {
            self.shared.try_emit(Event::Link(LinkState::Lost { reason, again_in }));
        }
    }

    /// The connection is there.
    pub(crate) fn back(&mut self) {
        if std::mem::take(&mut self.down) {
            self.shared.try_emit(Event::Link(LinkState::Back));
        }
    }

    /// The call is a task: written down, then told. Returns when somebody wants to know more of it.
    pub(crate) async fn named(&mut self, task: &str, session: Option<String>) -> Result<(), Error> {
        let reference = {
            let mut reference = self.shared.lock_reference();
            reference.task = Some(task.to_owned());
            reference.args = None;
            reference.session = session;
            reference.clone()
        };
        self.shared.book.name_task(&reference).await?;
        // It was to be called off just when it became a task.
        if *self.shared.stop.borrow() {
            self.shared.dialect.cancel(task).await?;
        }
        self.emit(Event::Task(reference)).await;
        self.wanted().await;
        Ok(())
    }

    /// Waits until an event is wanted that was not told yet. Who only wants to start a task never gets here, so nothing that
    /// is told only once is wasted on it.
    pub(crate) async fn wanted(&self) {
        let emitted = self.shared.emitted.load(Ordering::Relaxed);
        let _ = self.shared.wanted.subscribe().wait_for(|wanted| *wanted > emitted).await;
    }

    /// The task as it is now.
    pub(crate) async fn status(&mut self, view: TaskView) {
        self.shared.book.note(view.status, view.message.clone()).await;
        self.emit(Event::Status(view)).await;
    }

    /// The task as its creation showed it: what it says already is told. That it works goes without saying.
    pub(crate) async fn created(&mut self, view: &TaskView) -> (Status, Option<String>) {
        if !view.status.is_terminal() && (view.message.is_some() || view.status != Status::Working) {
            self.status(view.clone()).await;
        }
        (view.status, view.message.clone())
    }

    /// It ended.
    pub(crate) async fn ended(&self, status: Status, message: Option<String>) {
        self.shared.book.note(status, message).await;
    }

    /// A question has come. Told once; an answer that was given in an earlier life is given again if the server may not
    /// have it.
    pub(crate) async fn ask(&mut self, input: Input, way: Way, kept: Option<String>) -> Result<(), Error> {
        let key = input.key.clone();
        if self.shared.questions().contains_key(&key) {
            return Ok(());
        }
        let before = match &kept {
            Some(kept) => self.shared.book.answer_to(kept).await?,
            None => None,
        };
        let state = if before.is_some() { Stage::Gone } else { Stage::Open };
        self.shared.questions().insert(key.clone(), Asked { input: input.clone(), way: way.clone(), kept: kept.clone(), state });
        match before {
            None => self.emit(Event::Input(input)).await,
            Some((_, true)) => {}
            Some((answer, false)) => match self.shared.give(&key, way, kept, &answer).await {
                Ok(()) | Err(Error::Answered { .. }) => {}
                Err(error) if is_refusal(&error) => {
                    if let Some(asked) = self.shared.questions().get_mut(&key) {
                        asked.state = Stage::Open;
                    }
                    self.emit(Event::Input(input)).await;
                }
                Err(error) => return Err(error),
            },
        }
        Ok(())
    }

    /// A question that nobody needs to be asked.
    pub(crate) async fn answer(&mut self, input: Input, way: Way, kept: Option<String>, answer: Value) -> Result<(), Error> {
        let key = input.key.clone();
        if self.shared.questions().contains_key(&key) {
            return Ok(());
        }
        self.shared.questions().insert(key.clone(), Asked { input, way: way.clone(), kept: kept.clone(), state: Stage::Gone });
        match self.shared.give(&key, way, kept, &answer).await {
            Err(Error::Answered { .. }) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The question is asked again, in another way.
    pub(crate) fn ask_by(&self, key: &str, way: Way) {
        if let Some(asked) = self.shared.questions().get_mut(key).filter(|asked| asked.state == Stage::Open) {
            asked.way = way;
        }
    }

    /// Whether the question was told before.
    pub(crate) fn knows(&self, key: &str) -> bool {
        self.shared.questions().contains_key(key)
    }

    /// The question needs no answer any more.
    pub(crate) async fn withdraw(&mut self, key: &str) {
        let open = self.shared.questions().get(key).is_some_and(|asked| asked.state == Stage::Open);
        if open {
            self.open_questions(|other| other != key).await;
        }
    }

    /// Only these questions are open: the others need no answer any more.
    pub(crate) async fn open_questions(&mut self, still: impl Fn(&str) -> bool) {
        let mut gone = Vec::new();
        for (key, asked) in self.shared.questions().iter_mut() {
            if asked.state != Stage::Gone && !still(key) {
                asked.state = Stage::Gone;
                gone.push(key.clone());
            }
        }
        for key in gone {
            self.emit(Event::Settled { key }).await;
        }
    }

    /// The round is over: its questions may be asked anew.
    pub(crate) fn next_round(&self) {
        self.shared.questions().clear();
    }

    /// Waits until the call is to be called off.
    pub(crate) async fn stopped(&self) {
        let _ = self.shared.stop.subscribe().wait_for(|stop| *stop).await;
    }
}
