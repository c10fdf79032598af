//! What of a task's output was shown to the user, in a small file of its own, to the byte.
//!
//! The file has the number of bytes that were ever sent, and two marks. Before text is sent a mark says what will have been
//! shown at its end; the mark before says what was at its beginning. So the number alone tells how far it came, and on Linux
//! the system call that writes counts it up as well ([`exact`]): there is no moment at which a kill finds one done and the
//! other not.

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

/// So much is copied to be sent at once.
const COPY_BYTES: usize = 1024 * 1024;
/// So much is written at once where writing and counting are two things.
const PIECE_BYTES: usize = 4096;
const MARK_BYTES: usize = 9 * 8;
const FILE_BYTES: usize = COUNTER_BYTES + 2 * MARK_BYTES;

/// What of a task's output was shown to the user, and the way to show more. It is as it was also after the process was killed;
/// not after a power cut, for it changes very often.
///
/// One at a time keeps the place of a task. Who comes second reads it, and shows what it likes, and notes nothing.
#[derive(Debug)]
pub struct OutputTracker {
    /// When it was opened.
    position_at_open: OutputPosition,
    /// Nothing if somebody else keeps it.
    locked: Option<LockedFile>,
}

#[derive(Debug)]
struct LockedFile {
    path: PathBuf,
    /// Has the lock.
    file: File,
    sent: Counter,
    records: Records,
    /// Whether copies have always been accepted.
    uses_sendfile: bool,
}

impl OutputTracker {
    /// A place that nobody keeps: what is sent is written, and that is all.
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
        let Some((marks, sent)) = read(&file).map_err(cannot)? else {
            let path = path.display();
            return Err(Error::Ledger(format!(
                "{path}, which says what was shown of a task, is damaged: remove it, and the task is shown from its beginning"
            )));
        };
        let shown = marks.position_at(sent).unwrap_or_default();
        if !is_free {
            return Ok(Self { position_at_open: shown, locked: None });
        }
        if file.metadata().map_err(cannot)?.len() == 0 {
            // Written, not only made as long: memory without room on the disk behind it must not be touched.
            file.write_all_at(&marks.file(sent), 0).map_err(cannot)?;
        }
        let sent = Counter::map(&file).map_err(cannot)?;
        Ok(Self { position_at_open: shown, locked: Some(LockedFile { path, file, sent, records: marks, uses_sendfile: true }) })
    }

    /// What was shown.
    #[must_use]
    pub fn position(&self) -> OutputPosition {
        self.locked.as_ref().and_then(|locked| locked.records.position_at(locked.sent.get())).unwrap_or(self.position_at_open)
    }

    /// Notes what was shown.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn set(&mut self, shown: OutputPosition) -> Result<(), Error> {
        self.write_target(0, false, shown)
    }

    /// Notes what will have been shown when so many bytes more were [sent](Place::send). Until then each of them is one more
    /// byte of the chunk that was begun.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn begin(&mut self, bytes: usize, then: OutputPosition) -> Result<(), Error> {
        self.write_target(bytes, false, then)
    }

    /// As [`Place::begin`], for what counts only as a whole: until all of it was sent, nothing of it was shown.
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
        // The mark before must be where we are, also if not all was sent that was to be, or more.
        if locked.records.after().at != sent {
            locked.write_record(sent, false, shown)?;
        }
        locked.write_record(sent + bytes as u64, is_whole, then)
    }

    /// Writes text to `out`, and counts each byte of it. It waits for as long as `out` takes none.
    ///
    /// On Linux a process that is killed has counted exactly what it has written, except in files that are appended to and some
    /// devices. There, and on other systems, it is written first and counted then: a kill in between leaves at most 4096 bytes
    /// that were written and not counted.
    ///
    /// # Errors
    /// When it cannot be written. What was written before that is counted.
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
                // It does not go there.
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

    /// Replaces the older mark.
    fn write_record(&mut self, at: u64, is_whole: bool, shown: OutputPosition) -> Result<(), Error> {
        let mark = Record { turn: self.records.after().turn + 1, at, all_or_nothing: is_whole, position: shown };
        // Always as long, and within one page: a process that is killed has written all of it or nothing.
        self.file
            .write_all_at(&mark.bytes(), mark.file_offset() as u64)
            .map_err(|error| Error::Ledger(format!("cannot note in {} what was shown of a task: {error}", self.path.display())))?;
        self.records.0 = [self.records.after(), mark];
        Ok(())
    }
}

/// Until there is room again.
fn wait(out: BorrowedFd<'_>) -> io::Result<()> {
    retry_on_intr(|| poll(&mut [PollFd::from_borrowed_fd(out, PollFlags::OUT)], None))?;
    Ok(())
}

/// What was shown when so many bytes had been sent.
#[derive(Debug, Clone, Copy, Default)]
struct Record {
    /// One more than that of the mark before.
    turn: u64,
    at: u64,
    /// What leads here counts only as a whole.
    all_or_nothing: bool,
    position: OutputPosition,
}

impl Record {
    /// Where in the file.
    fn file_offset(self) -> usize {
        COUNTER_BYTES + if self.turn.is_multiple_of(2) { 0 } else { MARK_BYTES }
    }

    /// In this machine's own order, as the number of bytes.
    fn bytes(self) -> Vec<u8> {
        let Self { turn, at, all_or_nothing: is_whole, position: OutputPosition { seq, offset, bytes, hash, result_shown: ended } } = self;
        let mut mark: Vec<u8> = [turn, at, is_whole.into(), seq, offset, bytes, hash, ended.into()].map(u64::to_ne_bytes).concat();
        let check = fnv(fnv(FNV_START, b"place 1"), &mark);
        mark.extend(check.to_ne_bytes());
        mark
    }

    fn parse(mark: &[u8]) -> Option<Self> {
        let words: Vec<u64> = mark.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let [turn, at, is_whole, seq, offset, bytes, hash, ended, _] = words[..] else { return None };
        let parsed = Self {
            turn,
            at,
            all_or_nothing: is_whole == 1,
            position: OutputPosition { seq, offset, bytes, hash, result_shown: ended == 1 },
        };
        (parsed.bytes() == mark).then_some(parsed)
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

    /// What was shown when so many bytes were sent. Nothing if that cannot be.
    fn position_at(&self, sent: u64) -> Option<OutputPosition> {
        let [before, after] = self.0;
        let (mark, counts) = if after.at <= sent { (after, true) } else { (before, !after.all_or_nothing) };
        let more = sent.checked_sub(mark.at)?;
        Some(OutputPosition { offset: mark.position.offset.saturating_add(if counts { more } else { 0 }), ..mark.position })
    }

    fn file(&self, sent: u64) -> Vec<u8> {
        let mut file = sent.to_ne_bytes().to_vec();
        file.resize(FILE_BYTES, 0);
        for mark in self.0 {
            file[mark.file_offset()..][..MARK_BYTES].copy_from_slice(&mark.bytes());
        }
        file
    }

    fn parse(file: &[u8]) -> Option<(Self, u64)> {
        let (sent, marks) = file.split_first_chunk::<COUNTER_BYTES>()?;
        let (one, other) = marks.split_at_checked(MARK_BYTES)?;
        let mut marks = [Record::parse(one)?, Record::parse(other)?];
        marks.sort_by_key(|mark| mark.turn);
        let (marks, sent) = (Self(marks), u64::from_ne_bytes(*sent));
        marks.position_at(sent).map(|_| (marks, sent))
    }
}

/// The marks, and how many bytes were sent. Nothing if the file is damaged.
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
    /// Bytes that were shown of it, as they were written.
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

    /// What a place says, for who only lists it.
    pub(super) fn peek(path: &Path) -> Self {
        let found = File::open(path).and_then(|file| read(&file)).ok().flatten();
        found.and_then(|(marks, sent)| marks.position_at(sent)).unwrap_or_default()
    }
}

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

fn fnv(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
