//! The audit log: a file that gets a line of JSON for each thing that somebody did. A thread of its own writes it, so that no call waits
//! for a disk.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    net::IpAddr,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{self, Receiver, SyncSender},
    },
    time::Duration,
};

use serde::Serialize;
use taskwire::{
    clock::{Clock, SystemClock},
    server::{Audit, AuditAction, AuditEntry},
};

/// Entries that wait to be written; more are lost, and counted.
const QUEUE_LEN: usize = 8_192;
/// How many of them may be of what was refused, so that nobody crowds out what others have done.
const REFUSED_MAX: usize = QUEUE_LEN / 2;
/// How long the process waits at its end for what is not written yet.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

enum Message {
    Entry(AuditEntry),
    /// Open the file again: the old one was moved away.
    Reopen,
    /// Say when all that came before is written.
    Finish(SyncSender<()>),
}

/// Where entries go. All who have it write to one file.
#[derive(Debug)]
pub(crate) struct AuditLog {
    queue: SyncSender<Message>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Entries that could not be written.
    lost: AtomicU64,
    /// Entries in the queue of what was refused.
    refused: AtomicUsize,
}

impl AuditLog {
    /// Writes to this file from now on. If it cannot be opened, the log says so, and it is tried again with each entry.
    pub(crate) fn begin(path: PathBuf) -> io::Result<Arc<Self>> {
        let (queue, messages) = mpsc::sync_channel(QUEUE_LEN);
        let counts: Arc<Counts> = Arc::default();
        let mut writer = Writer { path, file: None, is_failing: false, told: 0, counts: counts.clone() };
        std::thread::Builder::new().name("taskwire-audit".to_owned()).spawn(move || {
            writer.reopen();
            writer.run(&messages);
        })?;
        Ok(Arc::new(Self { queue, counts }))
    }

    /// Opens the file again, so that the old one can have been moved away. It waits for room in the queue: do not call it where nothing
    /// may block.
    pub(crate) fn reopen(&self) {
        // Without its thread nothing is written any more, which is counted.
        let _ = self.queue.send(Message::Reopen);
    }

    /// Records what the program itself has done.
    pub(crate) fn record_now(&self, action: AuditAction, outcome: &'static str) {
        self.record(AuditEntry { outcome: outcome.into(), ..AuditEntry::new(SystemClock.now(), action) });
    }

    /// Waits until all is written, but not for long.
    pub(crate) fn finish(&self) {
        let (done, finished) = mpsc::sync_channel(1);
        if self.queue.try_send(Message::Finish(done)).is_ok() {
            let _ = finished.recv_timeout(FINISH_TIMEOUT);
        }
    }
}

impl Audit for AuditLog {
    fn record(&self, entry: AuditEntry) {
        let Counts { lost, refused } = &*self.counts;
        let is_refused = entry.action == AuditAction::Refused;
        // Counted before it is sent, so that the count never falls below what there is.
        let has_room = !is_refused || refused.fetch_add(1, Ordering::Relaxed) < REFUSED_MAX;
        if has_room && self.queue.try_send(Message::Entry(entry)).is_ok() {
            return;
        }
        if is_refused {
            refused.fetch_sub(1, Ordering::Relaxed);
        }
        lost.fetch_add(1, Ordering::Relaxed);
    }

    fn lost(&self) -> u64 {
        self.counts.lost.load(Ordering::Relaxed)
    }
}

/// A line of the file.
#[derive(Debug, Serialize)]
struct Line<'a> {
    time: String,
    action: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool: Option<&'a str>,
    outcome: &'a str,
}

impl<'a> Line<'a> {
    fn of(entry: &'a AuditEntry) -> Self {
        Self {
            time: entry.at.to_string(),
            action: entry.action.as_str(),
            caller: entry.caller.as_ref().map(|caller| caller.as_str()),
            from: entry.from,
            task: entry.task.map(|task| task.to_string()),
            tool: entry.tool.as_deref(),
            outcome: &entry.outcome,
        }
    }

    fn text(&self) -> String {
        // Texts and numbers can always be written.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}

struct Writer {
    path: PathBuf,
    file: Option<File>,
    /// Whether the last entry was lost because of the file.
    is_failing: bool,
    /// How many lost entries the file tells of.
    told: u64,
    counts: Arc<Counts>,
}

impl Writer {
    fn run(&mut self, messages: &Receiver<Message>) {
        for message in messages {
            match message {
                Message::Entry(entry) => {
                    if entry.action == AuditAction::Refused {
                        self.counts.refused.fetch_sub(1, Ordering::Relaxed);
                    }
                    self.write(&Line::of(&entry));
                }
                Message::Reopen => self.reopen(),
                Message::Finish(done) => {
                    // Whoever waited may have given up.
                    let _ = done.send(());
                }
            }
        }
    }

    fn reopen(&mut self) {
        self.file = None;
        let opened = self.open().map(drop);
        self.report(opened);
    }

    fn write(&mut self, line: &Line<'_>) {
        let lost = self.counts.lost.load(Ordering::Relaxed);
        let mut text = String::new();
        if lost > self.told {
            let outcome = format!("{} entries before this one were lost", lost - self.told);
            text = Line { time: line.time.clone(), action: "lost", caller: None, from: None, task: None, tool: None, outcome: &outcome }
                .text();
        }
        text.push_str(&line.text());
        let written = self.append(&text);
        match &written {
            Ok(()) => self.told = lost,
            Err(_) => {
                self.counts.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.report(written);
    }

    fn append(&mut self, text: &str) -> io::Result<()> {
        let written = self.open()?.write_all(text.as_bytes());
        if written.is_err() {
            self.file = None;
        }
        written
    }

    fn open(&mut self) -> io::Result<&mut File> {
        match self.file.take() {
            Some(file) => Ok(self.file.insert(file)),
            None => Ok(self.file.insert(open(&self.path)?)),
        }
    }

    /// Says once that the file cannot be written, and once that it can again.
    fn report(&mut self, done: io::Result<()>) {
        let was_failing = std::mem::replace(&mut self.is_failing, done.is_err());
        match done {
            Err(error) if !was_failing => {
                tracing::error!(%error, "the audit log cannot be written, and the server goes on without it: {}", self.path.display());
            }
            Ok(()) if was_failing => tracing::warn!("the audit log can be written again: {}", self.path.display()),
            _ => {}
        }
    }
}

/// Opens a file to add to it, for its user alone. A line that was cut off is ended.
fn open(path: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    let about = file.metadata()?;
    if about.is_file() && about.len() > 0 && !ends_with_line(path, about.len()) {
        file.write_all(b"\n")?;
    }
    Ok(file)
}

/// Whether a file of this length ends with a whole line. If it cannot be read, it may not.
fn ends_with_line(path: &Path, len: u64) -> bool {
    let mut last = [0];
    let read = File::open(path).and_then(|file| file.read_exact_at(&mut last, len - 1));
    read.is_ok() && last == *b"\n"
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use taskwire_core::CallerId;

    use super::*;
    use crate::testing::TempDir;

    fn entry(caller: &str) -> AuditEntry {
        AuditEntry { caller: Some(CallerId::new(caller)), ..AuditEntry::new(SystemClock.now(), AuditAction::Create) }
    }

    /// Who did what, line by line.
    fn lines(path: &Path) -> Vec<(String, Option<String>)> {
        let text = std::fs::read_to_string(path).expect("a file");
        let line = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            (line["action"].as_str().expect("an action").to_owned(), line["caller"].as_str().map(ToOwned::to_owned))
        };
        text.lines().filter(|text| !text.is_empty()).map(line).collect()
    }

    #[test]
    fn entries_are_lines_and_go_to_a_new_file_when_it_is_opened_again() {
        let dir = TempDir::new();
        let (path, moved) = (dir.path().join("audit.jsonl"), dir.path().join("audit.jsonl.1"));
        let log = AuditLog::begin(path.clone()).expect("a thread");
        log.record(entry("ann"));
        log.finish();
        std::fs::rename(&path, &moved).expect("moved");
        log.record(entry("bob"));
        log.reopen();
        log.record(entry("eve\n"));
        log.finish();
        let create = |caller: &str| ("create".to_owned(), Some(caller.to_owned()));
        assert_eq!(lines(&moved), [create("ann"), create("bob")]);
        assert_eq!(lines(&path), [create("eve\n")]);
        assert_eq!(log.lost(), 0);
    }

    #[test]
    fn a_line_that_was_cut_off_takes_no_other_with_it() {
        let dir = TempDir::new();
        let path = dir.path().join("audit.jsonl");
        for (before, after) in [("", ""), ("{}\n", "{}\n"), ("{}\n{\"tim", "{}\n{\"tim\n")] {
            std::fs::write(&path, before).expect("written");
            let log = AuditLog::begin(path.clone()).expect("a thread");
            log.record(entry("ann"));
            log.reopen();
            log.record(entry("bob"));
            log.finish();
            let text = std::fs::read_to_string(&path).expect("a file");
            let added = text.strip_prefix(after).unwrap_or_else(|| panic!("{text}"));
            assert!(added.starts_with('{') && added.lines().count() == 2, "{text}");
        }
    }

    #[test]
    fn what_is_refused_leaves_room_for_what_was_done() {
        let (queue, _waiting) = mpsc::sync_channel(QUEUE_LEN);
        let log = AuditLog { queue, counts: Arc::default() };
        for _ in 0..2 * QUEUE_LEN {
            log.record(AuditEntry { action: AuditAction::Refused, ..entry("eve") });
        }
        let lost = (2 * QUEUE_LEN - REFUSED_MAX) as u64;
        assert_eq!(log.lost(), lost);
        for _ in REFUSED_MAX..QUEUE_LEN {
            log.record(entry("ann"));
        }
        assert_eq!(log.lost(), lost, "all of these have room");
        log.record(entry("ann"));
        assert_eq!(log.lost(), lost + 1);
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_told_when_it_can_be_again() {
        let dir = TempDir::new();
        let path = dir.path().join("later/audit.jsonl");
        let log = AuditLog::begin(path.clone()).expect("a thread");
        log.record(entry("ann"));
        log.record(entry("bob"));
        log.finish();
        assert_eq!(log.lost(), 2);
        std::fs::create_dir(dir.path().join("later")).expect("a directory");
        log.record(entry("eve"));
        log.finish();
        assert_eq!(lines(&path), [("lost".to_owned(), None), ("create".to_owned(), Some("eve".to_owned()))]);
        log.record(entry("eve"));
        log.finish();
        assert_eq!((lines(&path).len(), log.lost()), (3, 2), "it is told once");
    }
}
