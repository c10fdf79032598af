//! Reading: from what is in memory, else from the store.

use std::{ops::Range, sync::Arc, time::Duration};

use taskwire_core::{
    CallerId, Seq, TaskId, Version,
    task::{Event, Overflow, Reject, Task},
};

use super::{Engine, Error};
use crate::store::{self, Cursor, Page};

/// How soon a read is tried again while the store cannot be reached.
const AWAY_DELAY: Duration = Duration::from_millis(200);

impl Engine {
    /// The task, if `caller` owns it. To any other caller it does not exist, and takes as long as one that never was: what is in memory is
    /// not looked at, and what is stored is not read.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn task(&self, caller: &CallerId, id: TaskId) -> Result<Option<Arc<Task>>, Error> {
        match self.0.recent.task(id).filter(|task| task.spec.caller == *caller) {
            Some(task) => Ok(Some(task)),
            None => self.checked(self.0.reader.task_of(caller, id).await),
        }
    }

    /// Whether `caller` owns the task, which is not read for that. The same holds for another caller.
    pub(crate) async fn is_of(&self, caller: &CallerId, id: TaskId) -> Result<bool, Error> {
        match self.0.recent.task(id) {
            Some(task) if task.spec.caller == *caller => Ok(true),
            _ => self.checked(self.0.reader.is_of(caller, id).await),
        }
    }

    /// The task, which `caller` must own.
    pub(crate) async fn require_task(&self, caller: &CallerId, id: TaskId) -> Result<Arc<Task>, Error> {
        self.task(caller, id).await?.ok_or(Error::Rejected(Reject::NotFound))
    }

    /// The task, whoever owns it.
    pub(crate) async fn any_task(&self, id: TaskId) -> Result<Option<Arc<Task>>, Error> {
        // Where nodes share a store nothing is cached there, and the store has the last word.
        match self.0.recent.task(id) {
            Some(task) => Ok(Some(task)),
            None => self.checked(self.0.reader.task(id).await),
        }
    }

    /// Reads what running work needs, or what nobody sends again. While the store cannot be reached, it waits.
    pub(crate) async fn read_when_back<T, F: Future<Output = Result<T, Error>>>(&self, mut read: impl FnMut() -> F) -> Result<T, Error> {
        loop {
            match read().await {
                Err(Error::Away) => self.0.clock.sleep(AWAY_DELAY).await,
                done => return done,
            }
        }
    }

    /// Passes on what the store read. A store that was tampered with ends the engine: nothing in it can be relied on.
    pub(super) fn checked<T>(&self, read: Result<T, store::Error>) -> Result<T, Error> {
        if let Err(error @ store::Error::Tampered { .. }) = &read {
            self.0.fail(error.into());
        }
        read.map_err(Error::from)
    }

    /// What follows `cursor` in a task's log; `None` if there is no such task.
    pub(crate) async fn page(&self, id: TaskId, cursor: Cursor) -> Result<Option<Page>, Error> {
        match self.0.recent.page(id, cursor) {
            Some(page) => Ok(Some(page)),
            None => self.checked(self.0.reader.page(id, cursor).await),
        }
    }

    /// Which chunks of a task there are: the first that is kept, and the number that the next one will get.
    pub(crate) async fn chunk_range(&self, id: TaskId) -> Result<Range<Seq>, Error> {
        match self.0.recent.task(id) {
            Some(task) if task.spec.overflow == Overflow::Fail => Ok(Seq(0)..task.output.next_seq),
            _ => self.checked(self.0.reader.chunk_range(id).await),
        }
    }

    /// One event of a task.
    pub(super) async fn event(&self, id: TaskId, version: Version) -> Result<Option<Event>, Error> {
        self.checked(self.0.reader.event(id, version).await)
    }
}
