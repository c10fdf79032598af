//! Checks SQLite's write-ahead log (WAL) from outside: whether all that was committed is still there.
//!
//! SQLite trusts the file. If somebody cuts it short while it is in use, the next frames leave a hole; and at the next start SQLite
//! silently ignores all after the first frame that is missing or damaged. So after each commit [`Wal::verify_and_record`] looks where
//! the WAL ends and records that in the file `tail`; the next start compares ([`PreviousWalEnd`]). The record is written after the
//! commit and without an fsync: it may be behind what is stored, and is never ahead.
//!
//! The WAL begins with a header of 32 bytes; bytes 16 to 24 are its salts, which change each time SQLite begins it anew. Frames
//! follow, each 24 bytes and a page: the page's number first, the salts at 8 (<https://www.sqlite.org/fileformat2.html#walformat>).

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
};

use rusqlite::{Connection, DEFAULT_NAME, wal::CheckpointMode};
use taskwire_core::Timestamp;

use super::{
    Error,
    busy::retry_while_busy,
    checksum::Checksum,
    data_dir::file_error,
    files::{DB, Files, WAL},
};
use crate::owned_files;

/// The file of the record, in the data directory.
pub(super) const END_FILE: &str = "tasks.db-end";
/// Its earlier name.
const END_FILE_BEFORE: &str = "tail";
const MAGIC: &[u8; 8] = b"TWTAIL01";
const RECORD_BYTES: usize = 56;

const LOG_HEAD_BYTES: u64 = 32;
const SALTS_AT: u64 = 16;
const FRAME_HEAD_BYTES: usize = 24;
/// How often a WAL that does not fit together is read again: another program may just have begun it anew.
const LOOKS: usize = 5;

type Salts = [u8; 8];

/// The offset of a frame; frames are counted from 1.
fn frame_at(frame: u32, page_bytes: u64) -> u64 {
    LOG_HEAD_BYTES + u64::from(frame - 1) * (FRAME_HEAD_BYTES as u64 + page_bytes)
}

/// How many frames there are, by the index that SQLite's connections share.
pub(super) fn frames(connection: &Connection, path: &Path) -> Result<u32, Error> {
    let (frames, _) = retry_while_busy(path, || connection.wal_checkpoint_v2(DEFAULT_NAME, CheckpointMode::NOOP))?;
    Ok(u32::try_from(frames).unwrap_or(0))
}

/// Where the WAL ends.
#[derive(Debug, Clone, Copy)]
struct WalEnd {
    salts: Salts,
    frames: u32,
    /// The header of its last frame.
    head: [u8; FRAME_HEAD_BYTES],
}

/// The WAL of an open store.
#[derive(Debug)]
pub(super) struct Wal {
    files: Arc<Files>,
    /// Only read. SQLite has no locks on it that closing it would release.
    file: File,
    end_file: File,
    end: Option<WalEnd>,
    /// When something was last stored.
    at: Timestamp,
}

impl Wal {
    /// Watches the WAL from now on; `last` is what an earlier start recorded.
    pub(super) fn open(dir: &Path, files: Arc<Files>, last: Option<&PreviousWalEnd>) -> Result<Self, Error> {
        let (path, end_path) = (files.wal_path(), dir.join(END_FILE));
        let file = owned_files::open(OpenOptions::new().read(true), path).map_err(|source| file_error(path, source))?;
        let end_file = owned_files::open(OpenOptions::new().write(true).create(true).truncate(false), &end_path)
            .map_err(|source| file_error(&end_path, source))?;
        Ok(Self { file, end_file, files, end: None, at: last.map_or(Timestamp::default(), |last| last.record.at) })
    }

    /// Checks, before anything is added, that nothing is missing.
    pub(super) fn check(&mut self, connection: &Connection) -> Result<(), Error> {
        let bytes = self.files.wal_bytes()?;
        let Some(end) = &self.end else { return Ok(()) };
        if bytes < frame_at(end.frames + 1, self.files.page_bytes()) {
            // Another program may have brought it into the database and begun it anew.
            self.end = self.read_end(connection)?.map(|(end, _)| end);
        }
        Ok(())
    }

    /// Checks that a commit, made at `at`, and all before it are there, and records where the WAL ends.
    pub(super) fn verify_and_record(&mut self, connection: &Connection, at: Option<Timestamp>) -> Result<(), Error> {
        self.at = at.unwrap_or(self.at);
        let Some((end, page)) = self.read_end(connection)? else {
            self.end = None;
            return Ok(());
        };
        if let Some(before) = self.end.filter(|before| before.salts == end.salts) {
            // A WAL that was cut short and written on has a hole where it ended before.
            let is_kept = before.frames <= end.frames && self.head(before.frames).is_ok_and(|head| head == before.head);
            if !is_kept {
                return Err(self.cut_short());
            }
        }
        self.end = Some(end);
        let record = WalEndRecord {
            salts: end.salts,
            frames: end.frames,
            page: u32::from_be_bytes([end.head[0], end.head[1], end.head[2], end.head[3]]),
            page_bytes: u32::try_from(page.len()).unwrap_or(0),
            page_checksum: page_checksum(&page),
            at: self.at,
        };
        if let Err(error) = self.end_file.write_all_at(&record.encode(), 0) {
            tracing::warn!(%error, "how far the store was written could not be noted");
        }
        Ok(())
    }

    /// Where the WAL ends, and the page in its last frame; `None` if it is empty.
    fn read_end(&self, connection: &Connection) -> Result<Option<(WalEnd, Vec<u8>)>, Error> {
        let mut page = vec![0; usize::try_from(self.files.page_bytes()).unwrap_or(0)];
        for _ in 0..LOOKS {
            let frames = frames(connection, self.files.db_path())?;
            if frames == 0 {
                return Ok(None);
            }
            let mut salts = Salts::default();
            let is_read = self.file.read_exact_at(&mut salts, SALTS_AT);
            let page_at = frame_at(frames, self.files.page_bytes()) + FRAME_HEAD_BYTES as u64;
            if let (Ok(()), Ok(()), Ok(head)) = (is_read, self.file.read_exact_at(&mut page, page_at), self.head(frames))
                && head[8..16] == salts
            {
                return Ok(Some((WalEnd { salts, frames, head }, page)));
            }
        }
        Err(self.cut_short())
    }

    fn head(&self, frame: u32) -> std::io::Result<[u8; FRAME_HEAD_BYTES]> {
        let mut head = [0; FRAME_HEAD_BYTES];
        self.file.read_exact_at(&mut head, frame_at(frame, self.files.page_bytes()))?;
        Ok(head)
    }

    fn cut_short(&self) -> Error {
        self.files.tampered(&format!("{WAL} was cut short"))
    }
}

fn page_checksum(page: &[u8]) -> i64 {
    Checksum::new(7).bytes(page).finish()
}

/// Where the WAL ended after a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WalEndRecord {
    salts: Salts,
    frames: u32,
    /// The number of the page in the last frame, its size and its checksum.
    page: u32,
    page_bytes: u32,
    page_checksum: i64,
    at: Timestamp,
}

impl WalEndRecord {
    fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.salts);
        bytes[16..20].copy_from_slice(&self.frames.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.page.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.page_bytes.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.page_checksum.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.at.as_millis().to_le_bytes());
        let sum = Checksum::new(8).bytes(&bytes[..48]).finish();
        bytes[48..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// `None` if it was not written as a whole.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let eight = |at: usize| Some(*bytes.get(at..)?.first_chunk::<8>()?);
        let four = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk::<4>()?));
        let record = Self {
            salts: eight(8)?,
            frames: four(16)?,
            page: four(20)?,
            page_bytes: four(24)?,
            page_checksum: i64::from_le_bytes(eight(32)?),
            at: Timestamp::from_millis(i64::from_le_bytes(eight(40)?)),
        };
        (record.encode() == bytes).then_some(record)
    }
}

/// The record of an earlier start. It is read before SQLite opens the WAL and ignores what is missing.
#[derive(Debug)]
pub(super) struct PreviousWalEnd {
    record: WalEndRecord,
    /// The salts of the WAL that is there now.
    salts: Option<Salts>,
    /// Whether the recorded page is in the database already.
    is_in_db: bool,
}

impl PreviousWalEnd {
    /// `None` if there is no record.
    pub(super) fn look(dir: &Path) -> Option<Self> {
        // If there is none, nothing is renamed.
        let _ = std::fs::rename(dir.join(END_FILE_BEFORE), dir.join(END_FILE));
        let record = WalEndRecord::decode(&read(dir, END_FILE, 0, RECORD_BYTES)?)?;
        let salts = read(dir, WAL, SALTS_AT, size_of::<Salts>()).and_then(|salts| salts.try_into().ok());
        let page_bytes = u64::from(record.page_bytes);
        let page = record.page.checked_sub(1).and_then(|n| read(dir, DB, u64::from(n) * page_bytes, record.page_bytes as usize));
        Some(Self { record, salts, is_in_db: page.is_some_and(|page| page_checksum(&page) == record.page_checksum) })
    }

    /// How many committed frames are missing, if SQLite has found `found`.
    fn missing(&self, found: u32) -> u32 {
        let kept = match self.salts {
            Some(salts) if salts == self.record.salts => found.min(self.record.frames),
            // SQLite has begun the WAL anew, which it does only when all of it is in the database.
            _ if found > 0 => self.record.frames,
            _ => 0,
        };
        if self.is_in_db { 0 } else { self.record.frames - kept }
    }

    /// Logs what is missing, if anything is, if SQLite has found `found` frames.
    pub(super) fn report(&self, found: u32, shown: &Path) {
        let missing = self.missing(found);
        if missing > 0 {
            let WalEndRecord { frames, page_bytes, at, .. } = self.record;
            let (log, bytes) = (shown.join(WAL), u64::from(missing) * u64::from(page_bytes));
            tracing::error!(
                "{} is not what was written, it was cut short, damaged or removed: {missing} of {frames} pages ({bytes} bytes) are missing, \
                 and with them changes that were acknowledged up to {at}. What is left is whole but older, and is served. If there is a copy \
                 of the data directory, stop the server and put that in its place",
                log.display(),
            );
        }
    }
}

/// Bytes of a file in the data directory, if it is this user's and has them.
fn read(dir: &Path, name: &str, at: u64, len: usize) -> Option<Vec<u8>> {
    let file = owned_files::open(OpenOptions::new().read(true), &dir.join(name)).ok()?;
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use futures_util::FutureExt;
    use serde_json::json;
    use taskwire_core::{CallerId, SessionId};

    use super::*;
    use crate::{
        store::{Session, SessionChange, SqliteStore, Store},
        testing::TempDir,
    };

    const RECORD: WalEndRecord =
        WalEndRecord { salts: *b"saltsalt", frames: 12, page: 3, page_bytes: 4096, page_checksum: -5, at: Timestamp::from_millis(9) };

    #[test]
    fn a_record_that_was_not_written_as_a_whole_is_none() {
        let bytes = RECORD.encode();
        assert_eq!(WalEndRecord::decode(&bytes), Some(RECORD));
        for len in 0..bytes.len() {
            assert_eq!(WalEndRecord::decode(&bytes[..len]), None);
            let mut half = bytes;
            half[len] ^= 1;
            assert_eq!(WalEndRecord::decode(&half), None, "byte {len}");
        }
    }

    #[test]
    fn what_is_missing_is_told_and_nothing_else() {
        let last = |salts, is_in_db| PreviousWalEnd { record: RECORD, salts, is_in_db };
        let same = Some(RECORD.salts);
        assert_eq!((last(same, false).missing(12), last(same, false).missing(20)), (0, 0), "all is there, and maybe more");
        assert_eq!((last(same, false).missing(11), last(same, false).missing(0)), (1, 12), "cut, or damaged from the first frame on");
        assert_eq!((last(None, false).missing(0), last(None, true).missing(0)), (12, 0), "gone, or closed in good order");
        assert_eq!((last(Some(*b"newsalts"), false).missing(1), last(Some(*b"newsalts"), true).missing(0)), (0, 0), "begun anew");
        assert_eq!(last(Some(*b"garbage!"), false).missing(0), 12, "what it begins with is damaged");
        assert_eq!(last(same, true).missing(3), 0, "what was cut off is in the database");
    }

    /// The files of a store that was killed after some commits.
    fn killed() -> TempDir {
        let (dir, copy) = (TempDir::new(), TempDir::new());
        let mut store = SqliteStore::open(&dir.0).expect("a store");
        for n in 0..20 {
            let id = SessionId::new(&n.to_string());
            let session = Session { id, caller: CallerId::new("me"), last_used: Timestamp::from_millis(n), data: json!({"n": n}).into() };
            store.commit(&[], &[SessionChange::Begin(session)]).now_or_never().expect("it does not wait").expect("committed");
        }
        for entry in fs::read_dir(&dir.0).expect("listed").flatten() {
            fs::copy(entry.path(), copy.0.join(entry.file_name())).expect("copied");
        }
        copy
    }

    /// How many frames are missing after something was done to the files of a killed store, and of how many.
    fn missing_after(harm: impl FnOnce(&Path)) -> (u32, u32) {
        let dir = killed();
        harm(&dir.0);
        let last = PreviousWalEnd::look(&dir.0).expect("a note was left");
        let db = Connection::open(dir.0.join(DB)).expect("the database");
        db.pragma_query_value(None, "user_version", |_| Ok(())).expect("what is left can be read");
        let found = frames(&db, &dir.0.join(DB)).expect("counted");
        (last.missing(found), last.record.frames)
    }

    /// Changes the WAL as a whole.
    fn rewritten(dir: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(dir.join(WAL)).expect("there");
        change(&mut bytes);
        fs::write(dir.join(WAL), bytes).expect("written");
    }

    #[test]
    fn a_log_that_was_cut_short_damaged_or_removed_is_missed() {
        let (none, all) = missing_after(|_| {});
        assert!(none == 0 && all > 20, "{none} of {all}");
        let (missing, of) = missing_after(|dir| rewritten(dir, |bytes| bytes.truncate(bytes.len() / 2)));
        assert!(missing >= of / 2 && missing < of, "cut: {missing} of {of}");
        let (missing, of) = missing_after(|dir| {
            rewritten(dir, |bytes| {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
            });
        });
        assert!(missing >= of / 2 && missing < of, "damaged: {missing} of {of}");
        let (missing, of) = missing_after(|dir| rewritten(dir, Vec::clear));
        assert_eq!(missing, of, "emptied");
        let (missing, of) = missing_after(|dir| rewritten(dir, |bytes| bytes[17] ^= 1));
        assert_eq!(missing, of, "damaged where it begins");
        let (missing, of) = missing_after(|dir| fs::remove_file(dir.join(WAL)).expect("removed"));
        assert_eq!(missing, of, "removed");
    }

    #[test]
    fn a_log_that_another_program_has_brought_into_the_database_is_not_missed() {
        let (missing, _) = missing_after(|dir| {
            let db = Connection::open(dir.join(DB)).expect("the database");
            let sessions: u32 = db.query_row("SELECT count(*) FROM session", [], |row| row.get(0)).expect("all are there");
            assert_eq!(sessions, 20);
            drop(db);
            assert!(!dir.join(WAL).exists(), "it was the last to close");
        });
        assert_eq!(missing, 0);
    }
}
