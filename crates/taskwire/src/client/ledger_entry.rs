//! [`CallRecorder`], by which a client records its calls, and [`LedgerEntry`], one call's entry there.

use std::{fmt, sync::Arc};

use serde_json::Value;
use taskwire_core::Timestamp;

use super::{Error, Options, Reference, Status, call::is_refusal};

/// Keeps calls, their tasks, and the answers to their questions, so that another process can go on with them. `Ledger` (feature
/// `ledger`) is one. Its methods may block; when one fails, the client does not do what it wanted to record.
pub trait CallRecorder: fmt::Debug + Send + Sync {
    /// Finds or adds the entry of a call that the client is about to send, or of a task that may have been started elsewhere. Two
    /// calls with the same key are the same call. Its arguments are kept until its task is known, unless they are too large.
    fn find_or_add(&self, reference: &Reference, now: Timestamp) -> Result<EntryId, Error>;

    /// The call became the task that its reference names. Questions and answers of the call are removed: they are not the
    /// task's. The client calls this again when the reference has changed in other ways.
    fn set_task(&self, entry: EntryId, reference: &Reference, now: Timestamp) -> Result<(), Error>;

    /// Records the status of the task. The first end stays, and removes open questions.
    fn update_status(&self, entry: EntryId, status: Status, message: Option<&str>, now: Timestamp) -> Result<(), Error>;

    /// Removes an entry and all that belongs to it. A task that still runs goes on.
    fn remove(&self, entry: EntryId) -> Result<(), Error>;

    /// Records an answer that the client is about to send, if it is the first to its question.
    fn record_answer(&self, entry: EntryId, key: &str, answer: &Value) -> Result<Recorded, Error>;

    /// The server refused the answer: another may be recorded. An acknowledged answer stays.
    fn withdraw_answer(&self, entry: EntryId, key: &str) -> Result<(), Error>;

    /// The server has the answer.
    fn acknowledge_answer(&self, entry: EntryId, key: &str) -> Result<(), Error>;

    /// Keeps a question that its server asks only once, for the next process that follows the task. It replaces one with the
    /// same key. A question that is too large is not kept.
    fn record_question(&self, entry: EntryId, key: &str, question: &Value) -> Result<(), Error>;

    /// The kept questions whose answer the server does not have, oldest first.
    fn open_questions(&self, entry: EntryId) -> Result<Vec<(String, Value)>, Error>;

    /// The answers to a task's questions, oldest first: the question's key, the answer, and whether the server has it.
    fn answers(&self, entry: EntryId) -> Result<Vec<(String, Value, bool)>, Error>;
}

/// The id of a ledger's entry. It is never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId(pub i64);

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whether an answer is the first to its question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// It is, and is recorded now.
    New,
    /// Another one was recorded before it.
    Before {
        /// The recorded answer.
        answer: Value,
        /// Whether the server has it.
        acknowledged: bool,
    },
}

/// The entry of a call, or nothing without a ledger.
#[derive(Debug, Clone, Default)]
pub(crate) struct LedgerEntry(Option<OpenEntry>);

#[derive(Debug, Clone)]
struct OpenEntry {
    ledger: Arc<dyn CallRecorder>,
    id: EntryId,
    options: Arc<Options>,
}

/// Runs `work`, which waits for the disk, outside the async threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Error::Ledger(format!("the ledger could not be used: {error}")))?
}

impl LedgerEntry {
    pub(crate) async fn find_or_add(options: &Arc<Options>, reference: Reference) -> Result<Self, Error> {
        let Some(ledger) = options.ledger.clone() else { return Ok(Self(None)) };
        let (recorder, now) = (ledger.clone(), options.clock.now());
        let entry = blocking(move || recorder.find_or_add(&reference, now)).await?;
        Ok(Self(Some(OpenEntry { ledger, id: entry, options: options.clone() })))
    }

    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&OpenEntry) -> Result<T, Error> + Send + 'static,
    ) -> Result<Option<T>, Error> {
        let Some(entry) = self.0.clone() else { return Ok(None) };
        blocking(move || work(&entry)).await.map(Some)
    }

    pub(crate) async fn set_task(&self, reference: &Reference) -> Result<(), Error> {
        let reference = reference.clone();
        self.with(move |entry| entry.ledger.set_task(entry.id, &reference, entry.options.clock.now())).await.map(drop)
    }

    /// Records the status of the task. A failure is only logged.
    pub(crate) async fn update_status(&self, status: Status, message: Option<String>) {
        let noted =
            self.with(move |entry| entry.ledger.update_status(entry.id, status, message.as_deref(), entry.options.clock.now())).await;
        if let Err(error) = noted {
            tracing::warn!(%error, "the state of a task could not be written down");
        }
    }

    /// The call ended without a task, or was never sent.
    pub(crate) async fn remove(&self) {
        if let Err(error) = self.with(|entry| entry.ledger.remove(entry.id)).await {
            tracing::warn!(%error, "a call that has ended could not be struck out");
        }
    }

    /// Answers the question `key`, whose key in the ledger is `name`. Of several answers, the client sends only the first one that was
    /// recorded. `send` returns whether the server has acknowledged it.
    pub(crate) async fn answer_once<F: Future<Output = Result<bool, Error>>>(
        &self,
        name: &str,
        key: &str,
        answer: &Value,
        send: impl FnOnce(Value) -> F,
    ) -> Result<(), Error> {
        let answered_before = || Err(Error::AlreadyAnswered { key: key.to_owned() });
        let first = match self.record_answer(name, answer).await? {
            Recorded::New => answer.clone(),
            Recorded::Before { acknowledged: true, .. } => return answered_before(),
            Recorded::Before { answer, .. } => answer,
        };
        let is_ours = first == *answer;
        match send(first).await {
            Ok(true) => self.acknowledge_answer(name).await?,
            // Whoever sees later that the server has it says so. Until then it is sent again if the server asks again.
            Ok(false) => {}
            Err(error) => {
                // The server refused it, so another answer may be recorded.
                if is_refusal(&error) {
                    self.withdraw_answer(name).await?;
                }
                return Err(error);
            }
        }
        if is_ours { Ok(()) } else { answered_before() }
    }

    pub(crate) async fn record_answer(&self, key: &str, answer: &Value) -> Result<Recorded, Error> {
        let (key, answer) = (key.to_owned(), answer.clone());
        Ok(self.with(move |entry| entry.ledger.record_answer(entry.id, &key, &answer)).await?.unwrap_or(Recorded::New))
    }

    /// The server has the answer.
    pub(crate) async fn acknowledge_answer(&self, key: &str) -> Result<(), Error> {
        let key = key.to_owned();
        self.with(move |entry| entry.ledger.acknowledge_answer(entry.id, &key)).await.map(drop)
    }

    /// The server refused the answer.
    pub(crate) async fn withdraw_answer(&self, key: &str) -> Result<(), Error> {
        let key = key.to_owned();
        self.with(move |entry| entry.ledger.withdraw_answer(entry.id, &key)).await.map(drop)
    }

    /// The recorded answer, and whether the server has it.
    pub(crate) async fn recorded_answer(&self, key: &str) -> Result<Option<(Value, bool)>, Error> {
        let key = key.to_owned();
        let found = self.with(move |entry| {
            let answers = entry.ledger.answers(entry.id)?;
            Ok(answers.into_iter().find(|(known, _, _)| *known == key).map(|(_, answer, acknowledged)| (answer, acknowledged)))
        });
        Ok(found.await?.flatten())
    }

    pub(crate) async fn record_question(&self, key: &str, question: &Value) -> Result<(), Error> {
        let (key, question) = (key.to_owned(), question.clone());
        self.with(move |entry| entry.ledger.record_question(entry.id, &key, &question)).await.map(drop)
    }

    pub(crate) async fn open_questions(&self) -> Result<Vec<(String, Value)>, Error> {
        Ok(self.with(|entry| entry.ledger.open_questions(entry.id)).await?.unwrap_or_default())
    }
}
