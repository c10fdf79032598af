//! What a client wants to be kept of its calls, and one call's entry there, if there is a ledger.

use std::{fmt, sync::Arc};

use serde_json::Value;
use taskwire_core::Timestamp;

use super::{Error, Options, Reference, Status, call::is_refusal};

/// Keeps calls, their tasks, and the answers to their questions, for whoever comes back to them. `Ledger` does, with the feature
/// `ledger`. Its methods may block; when they fail, what they were to record is not done.
pub trait CallRecorder: fmt::Debug + Send + Sync {
    /// The entry of a call that is about to be sent, or of a task that may have been started elsewhere: it is made if there is none.
    /// A call that was entered before under the same key is the same call. Its arguments are kept until its task has a name, if they
    /// are not too large.
    fn find_or_add(&self, reference: &Reference, now: Timestamp) -> Result<EntryId, Error>;

    /// The call became the task that its reference names now. What was asked and answered before belonged to the call, not
    /// to the task, and goes. May be told again when the reference has changed in other ways.
    fn set_task(&self, entry: EntryId, reference: &Reference, now: Timestamp) -> Result<(), Error>;

    /// How the task was last seen. The first end stays, and no question is open behind it.
    fn update_status(&self, entry: EntryId, status: Status, message: Option<&str>, now: Timestamp) -> Result<(), Error>;

    /// Removes an entry and all that belongs to it. The task, if it still runs, goes on.
    fn remove(&self, entry: EntryId) -> Result<(), Error>;

    /// Records an answer that is about to be sent, if it is the first to its question.
    fn record_answer(&self, entry: EntryId, key: &str, answer: &Value) -> Result<Recorded, Error>;

    /// The server refused the answer: another may be given. One that it has stays.
    fn withdraw_answer(&self, entry: EntryId, key: &str) -> Result<(), Error>;

    /// The server has the answer.
    fn acknowledge_answer(&self, entry: EntryId, key: &str) -> Result<(), Error>;

    /// Keeps a question that its server asks only once, for whoever follows the task next. What is asked under the same key
    /// takes its place; one that is too large is not kept.
    fn record_question(&self, entry: EntryId, key: &str, question: &Value) -> Result<(), Error>;

    /// The questions that were kept and whose answer the server does not have, oldest first.
    fn open_questions(&self, entry: EntryId) -> Result<Vec<(String, Value)>, Error>;

    /// The answers to a task's questions, oldest first: the question's key, the answer, and whether the server has it.
    fn answers(&self, entry: EntryId) -> Result<Vec<(String, Value, bool)>, Error>;
}

/// Which entry of a ledger. Never given twice.
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
    /// It is, and was recorded.
    New,
    /// It is not, and was not.
    Before {
        /// The one that was.
        answer: Value,
        /// Whether the server has it.
        acknowledged: bool,
    },
}

/// Where a run is kept.
#[derive(Debug, Clone, Default)]
pub(crate) struct LedgerEntry(Option<OpenEntry>);

#[derive(Debug, Clone)]
struct OpenEntry {
    ledger: Arc<dyn CallRecorder>,
    id: EntryId,
    options: Arc<Options>,
}

/// Does something with the disk, away from what must not wait.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Error::Ledger(format!("the ledger could not be used: {error}")))?
}

impl LedgerEntry {
    /// Finds the page of a call or task, or begins one.
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

    /// The call is this task now.
    pub(crate) async fn set_task(&self, reference: &Reference) -> Result<(), Error> {
        let reference = reference.clone();
        self.with(move |entry| entry.ledger.set_task(entry.id, &reference, entry.options.clock.now())).await.map(drop)
    }

    /// How the task was last seen. Not worth failing for.
    pub(crate) async fn update_status(&self, status: Status, message: Option<String>) {
        let noted =
            self.with(move |entry| entry.ledger.update_status(entry.id, status, message.as_deref(), entry.options.clock.now())).await;
        if let Err(error) = noted {
            tracing::warn!(%error, "the state of a task could not be written down");
        }
    }

    /// The call ended without having been a task, or was never sent.
    pub(crate) async fn remove(&self) {
        if let Err(error) = self.with(|page| page.ledger.remove(page.id)).await {
            tracing::warn!(%error, "a call that has ended could not be struck out");
        }
    }

    /// Answers the question `key`, which is called `name` here. Another answer may be under way: the first one that is written down
    /// counts, and is the only one that is ever sent.
    pub(crate) async fn answer_once<F: Future<Output = Result<(), Error>>>(
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
        if let Err(error) = send(first).await {
            // The server will not have it: there may be a better one.
            if is_refusal(&error) {
                self.withdraw_answer(name).await?;
            }
            return Err(error);
        }
        self.acknowledge_answer(name).await?;
        if is_ours { Ok(()) } else { answered_before() }
    }

    /// About to answer: the first answer that is written down is the one that is given.
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
    async fn withdraw_answer(&self, key: &str) -> Result<(), Error> {
        let key = key.to_owned();
        self.with(move |entry| entry.ledger.withdraw_answer(entry.id, &key)).await.map(drop)
    }

    /// What was answered before: the answer, and whether the server has it.
    pub(crate) async fn recorded_answer(&self, key: &str) -> Result<Option<(Value, bool)>, Error> {
        let key = key.to_owned();
        let found = self.with(move |entry| {
            let answers = entry.ledger.answers(entry.id)?;
            Ok(answers.into_iter().find(|(known, _, _)| *known == key).map(|(_, answer, acknowledged)| (answer, acknowledged)))
        });
        Ok(found.await?.flatten())
    }

    /// A question was asked that is asked once only.
    pub(crate) async fn record_question(&self, key: &str, question: &Value) -> Result<(), Error> {
        let (key, question) = (key.to_owned(), question.clone());
        self.with(move |entry| entry.ledger.record_question(entry.id, &key, &question)).await.map(drop)
    }

    /// The questions that were asked and not answered.
    pub(crate) async fn open_questions(&self) -> Result<Vec<(String, Value)>, Error> {
        Ok(self.with(|entry| entry.ledger.open_questions(entry.id)).await?.unwrap_or_default())
    }
}
