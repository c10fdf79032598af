//! Checks the files of a running store: whether they are still there under their names, and not cut short.
//!
//! What is written to a removed file is lost, and so is what was cut off: the server must not acknowledge it. A look at a name costs
//! one system call, so there is one before each read, and a few before and after each commit. Nothing here opens a file that SQLite
//! has open: closing it would release SQLite's locks.

use std::{
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use rusqlite::{Connection, OpenFlags};

use super::{Error, Space, free_bytes};

/// The database, in the data directory; SQLite names the other two.
pub(super) const DB: &str = "tasks.db";
pub(super) const WAL: &str = "tasks.db-wal";
pub(super) const SHM: &str = "tasks.db-shm";
/// How often a length is read again that may have changed between two looks.
const LOOKS: usize = 3;

/// A path, and the file that was there when it was first seen.
#[derive(Debug)]
pub(super) struct FileIdentity {
    path: PathBuf,
    dev: u64,
    ino: u64,
}

impl FileIdentity {
    pub(super) fn new(path: PathBuf, found: &Metadata) -> Self {
        Self { path, dev: found.dev(), ino: found.ino() }
    }

    fn find(path: PathBuf) -> io::Result<Self> {
        let found = fs::symlink_metadata(&path)?;
        Ok(Self::new(path, &found))
    }

    /// What is at the path, if it is the same file.
    fn look(&self) -> Option<Metadata> {
        fs::symlink_metadata(&self.path).ok().filter(|found| (found.dev(), found.ino()) == (self.dev, self.ino))
    }
}

/// The files of a store that is open.
#[derive(Debug)]
pub(super) struct Files {
    /// The data directory as its user calls it.
    display_path: String,
    lock: FileIdentity,
    db: FileIdentity,
    wal: FileIdentity,
    shm: FileIdentity,
    page_bytes: u64,
    /// The least length of the database; 0 while it may become shorter.
    db_bytes: AtomicU64,
    /// Whether a transaction is being begun, which waits while another program has locked the database.
    is_beginning: AtomicBool,
}

impl Files {
    /// Remembers the files in `dir`, which are all there by now.
    pub(super) fn new(shown: String, dir: &Path, lock: FileIdentity, page_bytes: u64) -> Result<Self, Error> {
        let find = |name: &str| {
            FileIdentity::find(dir.join(name)).map_err(|source| Error::File { path: dir.join(name).display().to_string(), source })
        };
        let (db, wal, shm) = (find(DB)?, find(WAL)?, find(SHM)?);
        let files =
            Self { display_path: shown, lock, db, wal, shm, page_bytes, db_bytes: AtomicU64::new(0), is_beginning: AtomicBool::new(false) };
        files.forbid_shrinking(0)?;
        Ok(files)
    }

    pub(super) fn db_path(&self) -> &Path {
        &self.db.path
    }

    pub(super) fn wal_path(&self) -> &Path {
        &self.wal.path
    }

    /// Bytes of one page of the database.
    pub(super) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Begins a transaction, for as long as it takes.
    pub(super) fn beginning<T>(&self, begin: impl FnOnce() -> T) -> T {
        self.is_beginning.store(true, Ordering::Release);
        let begun = begin();
        self.is_beginning.store(false, Ordering::Release);
        begun
    }

    /// Whether a transaction is being begun just now. If so for long, another program has locked the database.
    pub(super) fn is_beginning(&self) -> bool {
        self.is_beginning.load(Ordering::Acquire)
    }

    pub(super) fn tampered(&self, what: &str) -> Error {
        Error::Tampered { path: self.display_path.clone(), what: what.to_owned() }
    }

    fn found(&self, known: &FileIdentity, name: &str) -> Result<Metadata, Error> {
        known.look().ok_or_else(|| self.tampered(&format!("{name} was removed or replaced")))
    }

    /// Checks that all files are there.
    pub(super) fn check_names(&self) -> Result<(), Error> {
        for (known, name) in [(&self.lock, "lock"), (&self.db, DB), (&self.wal, WAL), (&self.shm, SHM)] {
            self.found(known, name)?;
        }
        Ok(())
    }

    /// Bytes of the write-ahead log.
    pub(super) fn wal_bytes(&self) -> Result<u64, Error> {
        Ok(self.found(&self.wal, WAL)?.len())
    }

    /// How much room the disk has, and how much these files take.
    pub(super) fn space(&self) -> Space {
        let bytes = |known: &FileIdentity| known.look().map(|found| found.len());
        Space { free_bytes: free_bytes(&self.db.path), used_bytes: bytes(&self.db).zip(bytes(&self.wal)).map(|(db, wal)| db + wal) }
    }

    /// Checks that the database is there and no shorter than it must be.
    pub(super) fn check_db(&self) -> Result<(), Error> {
        for _ in 0..LOOKS {
            // In this order: it may grow in between.
            let least = self.db_bytes.load(Ordering::Acquire);
            let bytes = self.found(&self.db, DB)?.len();
            if bytes >= least || self.was_shrunk_by_sqlite(bytes) {
                return Ok(());
            }
        }
        Err(self.tampered(&format!("{DB} was cut short")))
    }

    /// Lets the database become shorter until [`forbid_shrinking`](Self::forbid_shrinking). Returns its least length so far.
    pub(super) fn allow_shrinking(&self) -> u64 {
        self.db_bytes.swap(0, Ordering::AcqRel)
    }

    /// Checks that all files are there, and the database no shorter than `least`, unless SQLite shrank it; from now on it may not become
    /// shorter.
    pub(super) fn forbid_shrinking(&self, least: u64) -> Result<(), Error> {
        self.check_names()?;
        let bytes = self.found(&self.db, DB)?.len();
        if bytes < least && !self.was_shrunk_by_sqlite(bytes) {
            return Err(self.tampered(&format!("{DB} was cut short")));
        }
        self.db_bytes.store(bytes, Ordering::Release);
        Ok(())
    }

    /// Whether the shorter database still has all its pages: then SQLite gave some back, for us or for another program. This uses a
    /// connection that maps no memory: reading the mapped memory of a file that was cut short would end the process.
    fn was_shrunk_by_sqlite(&self, bytes: u64) -> bool {
        let pages = || -> rusqlite::Result<u64> {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
            Connection::open_with_flags(&self.db.path, flags)?.pragma_query_value(None, "page_count", |row| row.get(0))
        };
        // A store has many tables; a database of no pages is a file that was emptied.
        let is_right = pages().is_ok_and(|pages| pages > 1 && bytes >= pages * self.page_bytes);
        if is_right {
            self.db_bytes.fetch_min(bytes, Ordering::AcqRel);
        }
        is_right
    }
}
