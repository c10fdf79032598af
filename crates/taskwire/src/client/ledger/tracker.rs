//! Tracks to the byte what of a task's output was shown to the user, in a small file per task.
//!
//! The file has a counter of all bytes ever sent, and two records: the position before the text that is being sent, and the
//! position after it. The counter says how far between the two the output came. On Linux one system call ([`sendfile`])
//! writes the text and advances the counter, so a kill never separates the two.

mod counter;
mod sendfile;

use std::{
    fs::{File, OpenOptions, TryLockError},
    io,
    os::{
        fd::BorrowedFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::{Errno, retry_on_intr, write},
};

use self::counter::{COUNTER_BYTES, Counter};
use crate::client::Error;

/// The most that one copy for `sendfile` holds.
const COPY_BYTES: usize = 1024 * 1024;
/// The most that one write sends where writing and counting are two steps.
const PIECE_BYTES: usize = 4096;
const MARK_BYTES: usize = 9 * 8;
const FILE_BYTES: usize = COUNTER_BYTES + 2 * MARK_BYTES;

/// Writes a task's output and remembers how much of it was shown, also when the process is killed. A power cut may lose the
/// last changes: they are not synced to the disk, because there are so many.
///
/// One tracker at a time locks the file of a task. A second one reads the position and records nothing.
#[derive(Debug)]
pub struct OutputTracker {
    position_at_open: OutputPosition,
    /// None if another tracker has the lock.
    locked: Option<LockedFile>,
}

#[derive(Debug)]
struct LockedFile {
    path: PathBuf,
    /// Holds the lock.
    file: File,
    sent: Counter,
    records: Records,
    /// Whether `sendfile` has always worked.
    uses_sendfile: bool,
}

impl OutputTracker {
    /// A tracker without a file: it writes the output and records nothing.
    #[must_use]
    pub fn untracked() -> Self {
        Self { position_at_open: OutputPosition::default(), locked: None }
    }

    pub(super) fn open(path: PathBuf) -> Result<Self, Error> {
        let cannot =
            |error: io::Error| Error::Ledger(format!("cannot use {}, which says what was shown of a task: {error}", path.display()));
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(cannot)?;
        let is_free = match file.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(error)) => return Err(cannot(error)),
        };
        let Some((records, sent)) = read(&file).map_err(cannot)? else {
            let path = path.display();
            return Err(Error::Ledger(format!(
                "{path}, which says what was shown of a task, is damaged: remove it, and the task is shown from its beginning"
            )));
        };
        let shown = records.position_at(sent).unwrap_or_default();
        if !is_free {
            return Ok(Self { position_at_open: shown, locked: None });
        }
        if file.metadata().map_err(cannot)?.len() == 0 {
            // Written, not only extended: touching mapped memory without disk space behind it would kill the process.
            file.write_all_at(&records.file(sent), 0).map_err(cannot)?;
        }
        let sent = Counter::map(&file).map_err(cannot)?;
        Ok(Self { position_at_open: shown, locked: Some(LockedFile { path, file, sent, records, uses_sendfile: true }) })
    }

    /// The position up to which output was shown.
    #[must_use]
    pub fn position(&self) -> OutputPosition {
        self.locked.as_ref().and_then(|locked| locked.records.position_at(locked.sent.get())).unwrap_or(self.position_at_open)
    }

    /// Records the position without sending anything.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn set(&mut self, shown: OutputPosition) -> Result<(), Error> {
        self.write_target(0, false, shown)
    }

    /// Records the position that will be reached when `bytes` more were [sent](OutputTracker::send). Until then each byte sent
    /// moves the offset in the current chunk by one.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn begin(&mut self, bytes: usize, then: OutputPosition) -> Result<(), Error> {
        self.write_target(bytes, false, then)
    }

    /// As [`OutputTracker::begin`], but the position does not move until all of the bytes were sent.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn begin_whole(&mut self, bytes: usize, then: OutputPosition) -> Result<(), Error> {
        self.write_target(bytes, true, then)
    }

    fn write_target(&mut self, bytes: usize, is_whole: bool, then: OutputPosition) -> Result<(), Error> {
        let shown = self.position();
        let Some(locked) = &mut self.locked else { return Ok(()) };
        let sent = locked.sent.get();
        // The record before must be the current position, also if less or more was sent than announced.
        if locked.records.after().at != sent {
            locked.write_record(sent, false, shown)?;
        }
        locked.write_record(sent + bytes as u64, is_whole, then)
    }

    /// Writes text to `out` and counts its bytes. It waits while `out` is full.
    ///
    /// On Linux a killed process has counted exactly what it has written, except to files opened for appending and to some
    /// devices. There, and on other systems, it writes first and counts then: a kill in between leaves at most 4096 bytes
    /// written and not counted.
    ///
    /// # Errors
    /// When it cannot be written. The bytes written before are counted.
    pub fn send(&mut self, out: BorrowedFd<'_>, text: &[u8]) -> io::Result<()> {
        text.chunks(COPY_BYTES).try_for_each(|part| self.send_part(out, part))
    }

    fn send_part(&mut self, out: BorrowedFd<'_>, mut rest: &[u8]) -> io::Result<()> {
        let mut copy = self.locked.as_ref().and_then(|locked| locked.copy(rest));
        while !rest.is_empty() {
            let sent = match (&mut self.locked, &copy) {
                (Some(locked), Some(copy)) => sendfile::send(out, copy, locked.sent.number(), rest.len()),
                (locked, _) => write(out, &rest[..rest.len().min(PIECE_BYTES)]).inspect(|count| {
                    if let Some(locked) = locked {
                        locked.sent.add(*count as u64);
                    }
                }),
            };
            match sent {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => rest = &rest[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait(out)?,
                // `sendfile` cannot write to this kind of file.
                Err(Errno::INVAL | Errno::NOSYS) if copy.is_some() => {
                    copy = None;
                    if let Some(locked) = &mut self.locked {
                        locked.uses_sendfile = false;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl LockedFile {
    fn copy(&self, text: &[u8]) -> Option<File> {
        self.uses_sendfile.then(|| sendfile::copy(text, self.sent.get())).flatten()
    }

    /// Replaces the older record.
    fn write_record(&mut self, at: u64, is_whole: bool, shown: OutputPosition) -> Result<(), Error> {
        let record = Record { turn: self.records.after().turn + 1, at, all_or_nothing: is_whole, position: shown };
        // Of fixed length and within one page: a killed process has written all of it or nothing.
        self.file
            .write_all_at(&record.bytes(), record.file_offset() as u64)
            .map_err(|error| Error::Ledger(format!("cannot note in {} what was shown of a task: {error}", self.path.display())))?;
        self.records.0 = [self.records.after(), record];
        Ok(())
    }
}

/// Waits until `out` can be written to.
fn wait(out: BorrowedFd<'_>) -> io::Result<()> {
    retry_on_intr(|| poll(&mut [PollFd::from_borrowed_fd(out, PollFlags::OUT)], None))?;
    Ok(())
}

/// The position at one value of the counter.
#[derive(Debug, Clone, Copy, Default)]
struct Record {
    /// One more than that of the record before.
    turn: u64,
    /// The value of the counter.
    at: u64,
    /// Whether the bytes up to here move the position only when all were sent.
    all_or_nothing: bool,
    position: OutputPosition,
}

impl Record {
    fn file_offset(self) -> usize {
        COUNTER_BYTES + if self.turn.is_multiple_of(2) { 0 } else { MARK_BYTES }
    }

    /// In native byte order, like the counter.
    fn bytes(self) -> Vec<u8> {
        let Self { turn, at, all_or_nothing: is_whole, position: OutputPosition { seq, offset, bytes, hash, result_shown: ended } } = self;
        let mut record: Vec<u8> = [turn, at, is_whole.into(), seq, offset, bytes, hash, ended.into()].map(u64::to_ne_bytes).concat();
        let check = fnv(fnv(FNV_START, b"place 1"), &record);
        record.extend(check.to_ne_bytes());
        record
    }

    fn parse(record: &[u8]) -> Option<Self> {
        let words: Vec<u64> = record.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let [turn, at, is_whole, seq, offset, bytes, hash, ended, _] = words[..] else { return None };
        let parsed = Self {
            turn,
            at,
            all_or_nothing: is_whole == 1,
            position: OutputPosition { seq, offset, bytes, hash, result_shown: ended == 1 },
        };
        (parsed.bytes() == record).then_some(parsed)
    }
}

/// The older one and the newer one.
#[derive(Debug, Clone, Copy)]
struct Records([Record; 2]);

impl Default for Records {
    fn default() -> Self {
        Self([Record::default(), Record { turn: 1, ..Record::default() }])
    }
}

impl Records {
    fn after(&self) -> Record {
        self.0[1]
    }

    /// The position when `sent` bytes were sent. None if the records contradict that.
    fn position_at(&self, sent: u64) -> Option<OutputPosition> {
        let [before, after] = self.0;
        let (record, counts) = if after.at <= sent { (after, true) } else { (before, !after.all_or_nothing) };
        let more = sent.checked_sub(record.at)?;
        Some(OutputPosition { offset: record.position.offset.saturating_add(if counts { more } else { 0 }), ..record.position })
    }

    fn file(&self, sent: u64) -> Vec<u8> {
        let mut file = sent.to_ne_bytes().to_vec();
        file.resize(FILE_BYTES, 0);
        for record in self.0 {
            file[record.file_offset()..][..MARK_BYTES].copy_from_slice(&record.bytes());
        }
        file
    }

    fn parse(file: &[u8]) -> Option<(Self, u64)> {
        let (sent, records) = file.split_first_chunk::<COUNTER_BYTES>()?;
        let (one, other) = records.split_at_checked(MARK_BYTES)?;
        let mut records = [Record::parse(one)?, Record::parse(other)?];
        records.sort_by_key(|record| record.turn);
        let (records, sent) = (Self(records), u64::from_ne_bytes(*sent));
        records.position_at(sent).map(|_| (records, sent))
    }
}

/// The records and the counter. None if the file is damaged.
fn read(file: &File) -> io::Result<Option<(Records, u64)>> {
    // Another process may be writing while this one reads.
    for _ in 0..3 {
        let mut bytes = [0; FILE_BYTES + 1];
        let found = match file.read_at(&mut bytes, 0)? {
            0 => Some(Default::default()),
            len => Records::parse(&bytes[..len]),
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// How much of a task's output was shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutputPosition {
    /// The first chunk that was not wholly shown.
    pub seq: u64,
    /// Bytes of it that were shown, as they were written.
    pub offset: u64,
    /// Bytes of text of the chunks before it that were shown.
    pub bytes: u64,
    /// Their FNV-1a hash; 0 if there are none.
    pub hash: u64,
    /// Whether the result was shown.
    pub result_shown: bool,
}

impl OutputPosition {
    /// Adds the text of a chunk.
    pub fn add(&mut self, text: &str) {
        if !text.is_empty() {
            self.hash = fnv(if self.bytes == 0 { FNV_START } else { self.hash }, text.as_bytes());
            self.bytes += text.len() as u64;
        }
    }

    /// Reads a position without the lock; the default if it cannot be read.
    pub(super) fn peek(path: &Path) -> Self {
        let found = File::open(path).and_then(|file| read(&file)).ok().flatten();
        found.and_then(|(records, sent)| records.position_at(sent)).unwrap_or_default()
    }
}

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

fn fnv(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
