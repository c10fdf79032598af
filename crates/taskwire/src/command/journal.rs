//! The journal of a command: everything it wrote and reported, in order, in one file.
//!
//! The supervisor appends, with one `write` for each record; the server reads, and goes on where it stopped. The file has the eight bytes
//! of [`MAGIC`], then records: kind (one byte), length (four bytes, little-endian), and that many bytes. A record that is cut off at the
//! end of the file is not complete yet.

use std::{
    fs::{File, OpenOptions},
    io::{self, ErrorKind, Write},
    ops::Range,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::messages::Note;

pub(crate) const FILE: &str = "journal";
const MAGIC: &[u8; 8] = b"TWJOURN1";
const HEAD_BYTES: usize = 5;
/// The most output that one record has.
pub(crate) const OUTPUT_BYTES_MAX: usize = 16 * 1024;
/// The longest other record. A note came on a line of at most one megabyte, but its numbers may be longer here.
const RECORD_BYTES_MAX: usize = 8 << 20;
/// Bytes that a reader asks for at once.
const READ_BYTES: usize = 32 * 1024;
/// [`free_before`] frees whole pages.
const PAGE_BYTES: u64 = 4096;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Record {
    /// Bytes of standard output; of standard error too, if both have one pipe.
    Out(Vec<u8>),
    /// Bytes of standard error.
    Err(Vec<u8>),
    /// A report of a process of the command.
    Note(Note),
    /// The command was started.
    Began(JobStart),
    /// The command has ended. Always the last record.
    Ended(JobEnd),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobStart {
    /// The command's own process, and the process group that it leads.
    pub(crate) pid: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cgroup: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct JobEnd {
    #[serde(default)]
    pub(crate) code: Option<i32>,
    #[serde(default)]
    pub(crate) signal: Option<i32>,
    /// Why it could not be started, for people.
    #[serde(rename = "failed", default)]
    pub(crate) start_error: Option<String>,
    /// Whether the supervisor was told to stop before the command's own process had ended.
    #[serde(default)]
    pub(crate) stopped: bool,
    #[serde(rename = "left", default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) unkilled: Vec<u32>,
}

const OUT: u8 = 1;
const ERR: u8 = 2;
const NOTE: u8 = 3;
const BEGAN: u8 = 4;
const ENDED: u8 = 5;

impl Record {
    fn encode(&self) -> io::Result<Vec<u8>> {
        let mut json = Vec::new();
        let (kind, content) = match self {
            Self::Out(bytes) => (OUT, bytes),
            Self::Err(bytes) => (ERR, bytes),
            Self::Note(note) => (NOTE, write_json(&mut json, note)?),
            Self::Began(began) => (BEGAN, write_json(&mut json, began)?),
            Self::Ended(ended) => (ENDED, write_json(&mut json, ended)?),
        };
        let length = content.len();
        if !is_allowed(kind, length) {
            return Err(io::Error::new(ErrorKind::InvalidInput, format!("{length} bytes are too many for one record")));
        }
        let length = u32::try_from(length).map_err(io::Error::other)?;
        let mut bytes = Vec::with_capacity(HEAD_BYTES + content.len());
        bytes.push(kind);
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(content);
        Ok(bytes)
    }

    fn decode(kind: u8, content: &[u8]) -> io::Result<Self> {
        Ok(match kind {
            OUT => Self::Out(content.to_vec()),
            ERR => Self::Err(content.to_vec()),
            NOTE => Self::Note(read_json(content)?),
            BEGAN => Self::Began(read_json(content)?),
            ENDED => Self::Ended(read_json(content)?),
            _ => return Err(broken(format!("it has a record of the unknown kind {kind}"))),
        })
    }
}

fn write_json<'a, T: Serialize>(buffer: &'a mut Vec<u8>, value: &T) -> io::Result<&'a Vec<u8>> {
    *buffer = serde_json::to_vec(value)?;
    Ok(buffer)
}

fn read_json<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    serde_json::from_slice(bytes).map_err(|error| broken(format!("it has a record that cannot be read: {error}")))
}

fn is_allowed(kind: u8, length: usize) -> bool {
    match kind {
        OUT | ERR => length <= OUTPUT_BYTES_MAX,
        _ => length <= RECORD_BYTES_MAX,
    }
}

fn broken(what: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("the journal of a command is damaged: {what}"))
}

/// The writer. A journal never has a second one.
#[derive(Debug)]
pub(crate) struct JournalWriter {
    file: File,
    len: u64,
}

impl JournalWriter {
    /// Creates the journal of a job.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`]: the command was run before.
    pub(crate) fn create(dir: &Path) -> io::Result<Self> {
        let path = dir.join(FILE);
        let mut file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path)?;
        if let Err(error) = file.write_all(MAGIC) {
            // Nothing was started yet, so another supervisor may try again.
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        Ok(Self { file, len: MAGIC.len() as u64 })
    }

    /// Appends a record, whole or not at all.
    pub(crate) fn append(&mut self, record: &Record) -> io::Result<()> {
        let bytes = record.encode()?;
        if let Err(error) = self.file.write_all(&bytes) {
            // Half a record would make everything after it unreadable.
            self.file.set_len(self.len)?;
            return Err(error);
        }
        self.len += bytes.len() as u64;
        Ok(())
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Makes sure that the journal survives a loss of power.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Reads a journal, even while it grows, and even before it exists.
#[derive(Debug)]
pub(crate) struct JournalReader {
    path: PathBuf,
    file: Option<File>,
    offset: u64,
    /// What was read ahead; `buffer[used..]` begins at `offset`.
    buffer: Vec<u8>,
    used: usize,
}

impl JournalReader {
    /// Reads the journal in `dir` from `at`, which is 0 or an [`Self::offset()`] of any reader.
    pub(crate) fn open(dir: &Path, at: u64) -> Self {
        Self { path: dir.join(FILE), file: None, offset: at.max(MAGIC.len() as u64), buffer: Vec::new(), used: 0 }
    }

    /// Whether the file was found; it is not opened again.
    pub(crate) fn is_open(&self) -> bool {
        self.file.is_some()
    }

    /// Where the next record begins.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The next record, and its range in the file; None if it is not complete yet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] when the file is no journal, or a damaged one.
    pub(crate) fn next(&mut self) -> io::Result<Option<(Record, Range<u64>)>> {
        if !self.has_file()? || !self.fill_buffer(HEAD_BYTES)? {
            return Ok(None);
        }
        let head = &self.buffer[self.used..];
        let (kind, length) = (head[0], u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize);
        if !(OUT..=ENDED).contains(&kind) || !is_allowed(kind, length) {
            return Err(broken(format!("at byte {} it has a record of kind {kind} with {length} bytes", self.offset)));
        }
        let whole = HEAD_BYTES + length;
        if !self.fill_buffer(whole)? {
            return Ok(None);
        }
        let record = Record::decode(kind, &self.buffer[self.used + HEAD_BYTES..self.used + whole])?;
        self.used += whole;
        let start = self.offset;
        self.offset += whole as u64;
        Ok(Some((record, start..self.offset)))
    }

    /// Opens the file, if it is there and has its first bytes.
    fn has_file(&mut self) -> io::Result<bool> {
        if self.file.is_some() {
            return Ok(true);
        }
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let mut magic = [0; MAGIC.len()];
        match file.read_exact_at(&mut magic, 0) {
            Ok(()) if magic == *MAGIC => {}
            Ok(()) => return Err(broken("it does not begin like one".to_owned())),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(error),
        }
        self.file = Some(file);
        Ok(true)
    }

    /// Reads until so many bytes are in the buffer. Returns whether they are.
    fn fill_buffer(&mut self, wanted: usize) -> io::Result<bool> {
        let Some(file) = &self.file else { return Ok(false) };
        while self.buffer.len() - self.used < wanted {
            self.buffer.drain(..self.used);
            self.used = 0;
            let there = self.buffer.len();
            self.buffer.resize(there + READ_BYTES.max(wanted - there), 0);
            let read = file.read_at(&mut self.buffer[there..], self.offset + there as u64);
            self.buffer.truncate(there + read.as_ref().map_or(0, |n| *n));
            match read {
                Ok(0) => {
                    // The writer may replace half a record after the disk was full, so it must be read again. Many readers wait at an end,
                    // so their buffers are freed.
                    self.buffer = Vec::new();
                    return Ok(false);
                }
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
        Ok(true)
    }
}

/// The start of the command, if the journal in `dir` has one.
pub(crate) fn job_start(dir: &Path) -> Option<JobStart> {
    match JournalReader::open(dir, 0).next() {
        Ok(Some((Record::Began(began), _))) => Some(began),
        _ => None,
    }
}

/// Frees the disk space of what was imported. The file keeps its length, so all offsets stay valid; its first page stays, for [`MAGIC`] and
/// [`job_start`]. Where the file system cannot do that, nothing happens.
pub(crate) fn free_before(dir: &Path, before: u64) {
    let end = before / PAGE_BYTES * PAGE_BYTES;
    if end <= PAGE_BYTES {
        return;
    }
    #[cfg(target_os = "linux")]
    if let Ok(file) = OpenOptions::new().write(true).open(dir.join(FILE)) {
        use rustix::fs::{FallocateFlags, fallocate};
        let _ = fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, PAGE_BYTES, end - PAGE_BYTES);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = dir;
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::testing::TempDir;

    #[test]
    fn half_a_record_that_became_another_one_is_read_as_that() {
        let dir = TempDir::new();
        let mut journal = JournalWriter::create(&dir.0).expect("created");
        journal.append(&Record::Out(b"one".to_vec())).expect("written");
        let whole = Record::Note(Note::Status { message: "what the disk had no room for".to_owned() }).encode().expect("encoded");
        journal.file.write_all(&whole[..whole.len() / 2]).expect("written");
        let mut reader = JournalReader::open(&dir.0, 0);
        assert!(matches!(reader.next().expect("read"), Some((Record::Out(_), _))));
        assert!(reader.next().expect("read").is_none());
        journal.file.set_len(journal.len).expect("cut");
        let other = Record::Err(vec![b'x'; whole.len()]);
        journal.append(&other).expect("written");
        assert_eq!(reader.next().expect("read").expect("there").0, other);
    }

    fn records() -> Vec<Record> {
        vec![
            Record::Began(JobStart { pid: 42, cgroup: Some("/sys/fs/cgroup/x".into()) }),
            Record::Out(b"one\n".to_vec()),
            Record::Err(vec![0xff, 0, b'\n']),
            Record::Note(Note::Block { block: json!({"type": "text", "text": "häßlich\n"}) }),
            Record::Note(Note::Progress { done: 1.5, total: None, message: Some("x".to_owned()) }),
            Record::Out(Vec::new()),
            Record::Ended(JobEnd { code: Some(3), ..JobEnd::default() }),
        ]
    }

    fn write(dir: &Path, records: &[Record]) -> Vec<u8> {
        let mut journal = JournalWriter::create(dir).expect("created");
        for record in records {
            journal.append(record).expect("appended");
        }
        let bytes = fs::read(dir.join(FILE)).expect("read");
        assert_eq!(journal.len(), bytes.len() as u64);
        bytes
    }

    fn all(reader: &mut JournalReader) -> Vec<Record> {
        let mut records = Vec::new();
        while let Some((record, range)) = reader.next().expect("readable") {
            assert_eq!(range.end, reader.offset());
            records.push(record);
        }
        records
    }

    #[test]
    fn a_journal_that_is_cut_at_any_byte_gives_what_is_whole_and_later_the_rest() {
        let whole = TempDir::new();
        let bytes = write(&whole.0, &records());
        let torn = TempDir::new();
        for cut in 0..=bytes.len() {
            fs::write(torn.0.join(FILE), &bytes[..cut]).expect("written");
            let mut reader = JournalReader::open(&torn.0, 0);
            let mut read = all(&mut reader);
            assert!(reader.offset() <= (cut as u64).max(8));
            assert_eq!(read, records()[..read.len()], "cut at {cut}");
            let mut file = OpenOptions::new().append(true).open(torn.0.join(FILE)).expect("opened");
            file.write_all(&bytes[cut..]).expect("written");
            read.extend(all(&mut reader));
            assert_eq!(read, records(), "cut at {cut}");
        }
    }

    #[test]
    fn a_reader_goes_on_where_another_stopped() {
        let dir = TempDir::new();
        write(&dir.0, &records());
        let mut first = JournalReader::open(&dir.0, 0);
        for n in 0..records().len() {
            let mut second = JournalReader::open(&dir.0, first.offset());
            assert_eq!(all(&mut second), records()[n..]);
            first.next().expect("readable").expect("one more");
        }
    }

    #[test]
    fn a_journal_that_is_not_there_yet_is_waited_for() {
        let dir = TempDir::new();
        let mut reader = JournalReader::open(&dir.0, 0);
        assert!(reader.next().expect("no error").is_none());
        write(&dir.0, &records());
        assert_eq!(all(&mut reader), records());
    }

    #[test]
    fn a_command_has_one_journal_only() {
        let dir = TempDir::new();
        write(&dir.0, &records());
        let again = JournalWriter::create(&dir.0).expect_err("it is there");
        assert_eq!(again.kind(), ErrorKind::AlreadyExists);
        assert_eq!(all(&mut JournalReader::open(&dir.0, 0)), records());
    }

    #[test]
    fn what_is_no_journal_is_refused() {
        let dir = TempDir::new();
        let cases: [&[u8]; 5] = [
            b"TWJOURN2\x01\0\0\0\0",
            b"TWJOURN1\0\0\0\0\0",
            b"TWJOURN1\x06\0\0\0\0",
            b"TWJOURN1\x01\x01\x40\0\0",
            b"TWJOURN1\x03\xff\xff\xff\xff",
        ];
        for bytes in cases {
            fs::write(dir.0.join(FILE), bytes).expect("written");
            let error = JournalReader::open(&dir.0, 0).next().expect_err("damaged");
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{bytes:?}");
        }
        fs::write(dir.0.join(FILE), b"TWJOURN1\x05\x02\0\0\0{]").expect("written");
        assert_eq!(JournalReader::open(&dir.0, 0).next().expect_err("no JSON").kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn an_entry_that_is_too_long_is_refused_and_leaves_no_trace() {
        let dir = TempDir::new();
        let mut journal = JournalWriter::create(&dir.0).expect("created");
        let long = Record::Out(vec![b'x'; OUTPUT_BYTES_MAX + 1]);
        assert_eq!(journal.append(&long).expect_err("too long").kind(), ErrorKind::InvalidInput);
        let fits = Record::Out(vec![b'x'; OUTPUT_BYTES_MAX]);
        journal.append(&fits).expect("appended");
        assert_eq!(all(&mut JournalReader::open(&dir.0, 0)), [fits]);
    }

    #[test]
    fn what_is_freed_moves_nothing_and_the_beginning_stays() {
        let dir = TempDir::new();
        let mut journal = JournalWriter::create(&dir.0).expect("created");
        let began = JobStart { pid: 7, cgroup: None };
        journal.append(&Record::Began(began.clone())).expect("appended");
        for n in 0..16 {
            journal.append(&Record::Out(vec![n; OUTPUT_BYTES_MAX])).expect("appended");
        }
        let at = journal.len();
        journal.append(&Record::Out(b"last".to_vec())).expect("appended");
        free_before(&dir.0, at);
        assert_eq!(fs::metadata(dir.0.join(FILE)).expect("there").len(), journal.len());
        assert_eq!(all(&mut JournalReader::open(&dir.0, at)), [Record::Out(b"last".to_vec())]);
        assert_eq!(super::job_start(&dir.0), Some(began));
        free_before(&dir.0, 4097);
        assert_eq!(super::job_start(&dir.0).map(|began| began.pid), Some(7));
    }
}
