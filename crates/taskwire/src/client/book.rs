//! One run's page in the ledger, if there is a ledger.

use std::sync::Arc;

use serde_json::Value;

use super::{
    Error, Options, Reference, Status,
    ledger::{EntryId, Ledger, Recorded},
};

/// Where a run is kept.
#[derive(Debug, Clone, Default)]
pub(crate) struct Book(Option<Page>);

#[derive(Debug, Clone)]
struct Page {
    ledger: Ledger,
    entry: EntryId,
    options: Arc<Options>,
}

/// Does something with the disk, away from what must not wait.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Error::Ledger(format!("the ledger could not be used: {error}")))?
}

impl Book {
    /// Writes down that a call is about to be sent.
    pub(crate) async fn begin(options: &Arc<Options>, reference: Reference) -> Result<Self, Error> {
        Self::open(options, reference, Ledger::begin).await
    }

    /// Finds the page of a task, or begins one.
    pub(crate) async fn adopt(options: &Arc<Options>, reference: Reference) -> Result<Self, Error> {
        Self::open(options, reference, Ledger::adopt).await
    }

    async fn open(
        options: &Arc<Options>,
        reference: Reference,
        how: impl FnOnce(&Ledger, &Reference, taskwire_core::Timestamp) -> Result<EntryId, Error> + Send + 'static,
    ) -> Result<Self, Error> {
        let Some(ledger) = options.ledger.clone() else { return Ok(Self(None)) };
        let now = options.clock.now();
        let (ledger, entry) = blocking(move || how(&ledger, &reference, now).map(|entry| (ledger, entry))).await?;
        Ok(Self(Some(Page { ledger, entry, options: options.clone() })))
    }

    async fn with<T: Send + 'static>(&self, work: impl FnOnce(&Page) -> Result<T, Error> + Send + 'static) -> Result<Option<T>, Error> {
        let Some(page) = self.0.clone() else { return Ok(None) };
        blocking(move || work(&page)).await.map(Some)
    }

    /// The call is this task now.
    pub(crate) async fn name_task(&self, reference: &Reference) -> Result<(), Error> {
        let reference = reference.clone();
        self.with(move |page| page.ledger.name_task(page.entry, &reference, page.options.clock.now())).await.map(drop)
    }

    /// How the task was last seen. Not worth failing for.
    pub(crate) async fn note(&self, status: Status, message: Option<String>) {
        let noted = self.with(move |page| page.ledger.note(page.entry, status, message.as_deref(), page.options.clock.now())).await;
        if let Err(error) = noted {
            tracing::warn!(%error, "the state of a task could not be written down");
        }
    }

    /// The call ended without having been a task, or was never sent.
    pub(crate) async fn forget(&self) {
        if let Err(error) = self.with(|page| page.ledger.ended_without_task(page.entry)).await {
            tracing::warn!(%error, "a call that has ended could not be struck out");
        }
    }

    /// About to answer: the first answer that is written down is the one that is given.
    pub(crate) async fn answering(&self, key: &str, answer: &Value) -> Result<Recorded, Error> {
        let (key, answer) = (key.to_owned(), answer.clone());
        Ok(self.with(move |page| page.ledger.answering(page.entry, &key, &answer)).await?.unwrap_or(Recorded::New))
    }

    /// The server has the answer.
    pub(crate) async fn answered(&self, key: &str) -> Result<(), Error> {
        let key = key.to_owned();
        self.with(move |page| page.ledger.answered(page.entry, &key)).await.map(drop)
    }

    /// The server refused the answer.
    pub(crate) async fn unanswer(&self, key: &str) -> Result<(), Error> {
        let key = key.to_owned();
        self.with(move |page| page.ledger.unanswer(page.entry, &key)).await.map(drop)
    }

    /// What was answered before: the answer, and whether the server has it.
    pub(crate) async fn answer_to(&self, key: &str) -> Result<Option<(Value, bool)>, Error> {
        let key = key.to_owned();
        let found = self.with(move |page| {
            let answers = page.ledger.answers(page.entry)?;
            Ok(answers.into_iter().find(|(known, _, _)| *known == key).map(|(_, answer, acknowledged)| (answer, acknowledged)))
        });
        Ok(found.await?.flatten())
    }

    /// A question was asked that is asked once only.
    pub(crate) async fn asked(&self, key: &str, question: &Value) -> Result<(), Error> {
        let (key, question) = (key.to_owned(), question.clone());
        self.with(move |page| page.ledger.asked(page.entry, &key, &question)).await.map(drop)
    }

    /// The questions that were asked and not answered.
    pub(crate) async fn unanswered(&self) -> Result<Vec<(String, Value)>, Error> {
        Ok(self.with(|page| page.ledger.unanswered(page.entry)).await?.unwrap_or_default())
    }
}
