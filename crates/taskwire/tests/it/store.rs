//! A SQLite store whose commits and free space a test controls.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use rusqlite::ffi;
use taskwire::{
    core::{CallerId, Epoch, TaskId, task::Task},
    store::{Error, Reader, SessionChange, SqliteStore, Store, TaskWrite, Usage, Written},
};

use crate::kit::TempDir;

/// A SQLite store that does something else where its test says so.
pub(crate) struct TestStore {
    pub(crate) store: SqliteStore,
    /// What happens before each commit.
    pub(crate) before_commit: Box<dyn FnMut() + Send>,
    /// How many bytes are free on the disk; unknown if absent.
    pub(crate) free: Option<Arc<AtomicU64>>,
    /// Whether the disk is full, whatever it says.
    pub(crate) full: Arc<AtomicBool>,
}

impl TestStore {
    pub(crate) fn open(dir: &TempDir) -> Self {
        Self { store: SqliteStore::open(dir.path()).expect("a store"), before_commit: Box::new(|| {}), free: None, full: Arc::default() }
    }
}

impl Store for TestStore {
    const BLOCKS: bool = true;

    async fn load(&mut self, id: TaskId) -> Result<Option<Task>, Error> {
        self.store.load(id).await
    }

    async fn stored_bytes(&mut self, id: TaskId) -> Result<u64, Error> {
        self.store.stored_bytes(id).await
    }

    async fn commit(&mut self, writes: &[TaskWrite], sessions: &[SessionChange]) -> Result<Vec<Written>, Error> {
        (self.before_commit)();
        if self.full.load(Ordering::Acquire) {
            return Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_FULL), None).into());
        }
        self.store.commit(writes, sessions).await
    }

    fn free_bytes(&self) -> Option<u64> {
        self.free.as_ref().map(|free| free.load(Ordering::Acquire))
    }

    fn epoch(&self) -> Epoch {
        self.store.epoch()
    }

    fn secret(&self) -> [u8; 32] {
        self.store.secret()
    }

    fn usage(&self) -> Result<Vec<(CallerId, Usage)>, Error> {
        self.store.usage()
    }

    fn reader(&self) -> Arc<dyn Reader> {
        self.store.reader()
    }
}
