//! The ledger: a SQLite database of the calls that this user started, their tasks, and the answers to their questions.
//!
//! The client records a call before it sends it, and an answer before it sends it: if the process dies in between, the next
//! one loses nothing and does nothing twice. Any number of processes may have one ledger open.

mod db;
#[cfg(test)]
mod tests;
mod tracker;

use std::{
    ffi::OsString,
    fs::{self, DirBuilder, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior, params};
use serde_json::Value;
use taskwire_core::{Payload, Timestamp};

use self::db::{
    DbError, FILE, connect, connect_read_only, evict, find_row, make_private, remove_entry, remove_questions_and_answers, resolve,
    resolve_existing,
};
pub use self::tracker::{OutputPosition, OutputTracker};
use super::{
    Error, Reference, Status,
    ledger_entry::{CallRecorder, EntryId, Recorded},
};

/// Entries of a ledger. One more removes the oldest; those that ended go first.
pub const LEDGER_ENTRIES: usize = 10_000;
/// Arguments that are larger are not kept.
const ARGS_BYTES_MAX: usize = 1024 * 1024;
/// Longer status messages are cut.
const MESSAGE_BYTES_MAX: usize = 4096;
/// Answers of one task, and questions.
const QUESTIONS_MAX: usize = 10_000;
/// Questions that are larger are not kept.
const QUESTION_BYTES_MAX: usize = 1024 * 1024;
/// Entries that an ambiguous name lists.
const CANDIDATES_MAX: usize = 10;
/// The directory of what was shown of each task.
const TRACKERS: &str = "trackers";

/// The columns of an entry, without its arguments.
const COLUMNS: &str = "id, task, status, message, created_at, updated_at, ended, reference";

/// An entry that an ambiguous name could mean.
struct Candidate {
    server: String,
    name: String,
    tool: String,
}

impl Candidate {
    /// Its id and tool, with its server if the candidates have the same id.
    fn label(&self, with_server: bool) -> String {
        let name = if with_server { format!("{}#{}", self.server, self.name) } else { self.name.clone() };
        if self.tool.is_empty() { name } else { format!("{name} ({})", self.tool) }
    }
}

/// The calls and tasks that this user started. Cheap to clone; its methods block for as long as a small write to the disk takes.
#[derive(Clone, Debug)]
pub struct Ledger {
    dir: Arc<Path>,
    db: Arc<Mutex<Connection>>,
    entries_max: usize,
}

/// A call, and what is known of it.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its id.
    pub id: EntryId,
    /// Finds the task again. Its `next` is the first chunk that was not wholly shown.
    pub reference: Reference,
    /// The status that was seen last.
    pub status: Option<Status>,
    /// The status message that was seen last, shortened.
    pub message: Option<String>,
    /// When it was called.
    pub created_at: Timestamp,
    /// When it changed, as far as was seen.
    pub updated_at: Timestamp,
    /// Whether its end was seen.
    pub ended: bool,
}

impl Ledger {
    /// Opens the ledger in `dir`, making it if there is none.
    ///
    /// # Errors
    /// When it was written by a newer release, when it is damaged, or when the disk fails.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        Self::open_bounded(dir, LEDGER_ENTRIES)
    }

    fn open_bounded(dir: &Path, entries_max: usize) -> Result<Self, Error> {
        let cannot = |error: io::Error| Error::Ledger(format!("cannot keep a ledger of tasks in {}: {error}", dir.display()));
        let dir = std::path::absolute(dir).map_err(cannot)?;
        // Named so by the format before; if there is none, nothing is renamed.
        let _ = std::fs::rename(dir.join("places"), dir.join(TRACKERS));
        // For this user alone: it holds arguments and answers.
        DirBuilder::new().recursive(true).mode(0o700).create(dir.join(TRACKERS)).map_err(cannot)?;
        // One opens at a time, also within this process: the first sets the database up, and the handle that creates its file is
        // closed before another opens it, because closing it later would release SQLite's locks.
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(dir.join("lock")).map_err(cannot)?;
        while let Err(error) = lock.lock() {
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(cannot(error));
            }
        }
        let path = dir.join(FILE);
        make_private(&path).map_err(cannot)?;
        let connection = connect(&path, &dir).map_err(|fault| fault.into_error(&dir))?;
        drop(lock);
        Ok(Self { dir: dir.into(), db: Arc::new(Mutex::new(connection)), entries_max })
    }

    /// Opens this user's ledger: in `$TASKWIRE_STATE_DIR`, else in `taskwire` in `$XDG_STATE_HOME`, else in the platform's
    /// directory for state.
    ///
    /// # Errors
    /// When this user has no home directory, and as [`Ledger::open`].
    pub fn of_user() -> Result<Self, Error> {
        let dir = state_dir(|name| std::env::var_os(name), std::env::home_dir()).ok_or_else(|| {
            Error::Ledger("this user has no home directory to keep a ledger of tasks in: set TASKWIRE_STATE_DIR".to_owned())
        })?;
        Self::open(&dir)
    }

    /// Opens the ledger in `dir` for reading only: it creates and changes no file, waits for no writer, and refuses changes.
    /// None if there is no ledger.
    ///
    /// # Errors
    /// When it is of another release, when it is damaged, or when the disk fails.
    pub fn open_read_only(dir: &Path) -> Result<Option<Self>, Error> {
        let cannot = |error: io::Error| Error::Ledger(format!("cannot read a ledger of tasks in {}: {error}", dir.display()));
        let dir = std::path::absolute(dir).map_err(cannot)?;
        let path = dir.join(FILE);
        if !path.is_file() {
            return Ok(None);
        }
        let connection = connect_read_only(&path, &dir).map_err(|fault| fault.into_error(&dir))?;
        Ok(Some(Self { dir: dir.into(), db: Arc::new(Mutex::new(connection)), entries_max: LEDGER_ENTRIES }))
    }

    /// This user's ledger, where [`Ledger::of_user`] finds it, as [`Ledger::open_read_only`] opens it.
    ///
    /// # Errors
    /// As [`Ledger::open_read_only`].
    pub fn of_user_read_only() -> Result<Option<Self>, Error> {
        let dir = state_dir(|name| std::env::var_os(name), std::env::home_dir());
        dir.map_or(Ok(None), |dir| Self::open_read_only(&dir))
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The entry of a task.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub fn entry(&self, server: &str, task: &str) -> Result<Option<Entry>, Error> {
        self.read(|db| {
            let mut statement = db.prepare_cached(&format!("SELECT {COLUMNS}, args FROM entry WHERE server = ? AND task = ?"))?;
            let mut rows = statement.query([server, task])?;
            rows.next()?.map(|row| self.read_entry(row)).transpose()
        })
    }

    /// All entries, the newest first, without arguments, which can be large: [`Ledger::entry`] and [`Ledger::find`] read those.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub fn entries(&self) -> Result<Vec<Entry>, Error> {
        self.read(|db| {
            let sql = format!("SELECT {COLUMNS}, NULL FROM entry WHERE merged_into IS NULL ORDER BY created_at DESC, id DESC");
            let mut statement = db.prepare_cached(&sql)?;
            let mut rows = statement.query([])?;
            let mut entries = Vec::new();
            while let Some(row) = rows.next()? {
                entries.push(self.read_entry(row)?);
            }
            Ok(entries)
        })
    }

    /// The entry whose task id begins with `prefix`, or whose key does if it has no task yet. A whole id goes before a prefix
    /// of others.
    ///
    /// # Errors
    /// When no entry matches, or more than one, and when the ledger cannot be read.
    pub fn find(&self, prefix: &str) -> Result<Entry, Error> {
        self.read(|db| {
            let mut statement = db.prepare_cached(
                "SELECT id, server, ifnull(task, key), reference, ifnull(task, key) = ?1 FROM entry
                 WHERE merged_into IS NULL AND ?2 > 0 AND substr(ifnull(task, key), 1, ?2) = ?1
                 ORDER BY ifnull(task, key) = ?1 DESC, created_at DESC, id DESC LIMIT ?3",
            )?;
            let mut rows = statement.query(params![prefix, prefix.chars().count(), CANDIDATES_MAX])?;
            let mut found: Vec<(i64, Candidate, bool)> = Vec::new();
            while let Some(row) = rows.next()? {
                let tool = serde_json::from_str(&row.get::<_, String>(3)?).map(|reference: Reference| reference.tool);
                let candidate = Candidate { server: row.get(1)?, name: row.get(2)?, tool: tool.unwrap_or_default() };
                found.push((row.get(0)?, candidate, row.get(4)?));
            }
            if found.iter().any(|(.., whole)| *whole) {
                found.retain(|(.., whole)| *whole);
            }
            if found.len() > 1 {
                let is_one_name = found.iter().all(|(.., whole)| *whole);
                let candidates = found.iter().map(|(_, candidate, _)| candidate.label(is_one_name)).collect();
                return Err(Error::Ambiguous { prefix: prefix.to_owned(), candidates }.into());
            }
            let id = found.first().map(|(id, ..)| *id);
            let mut statement = db.prepare_cached(&format!("SELECT {COLUMNS}, args FROM entry WHERE id = ?"))?;
            let mut rows = statement.query([id])?;
            let entry = rows.next()?.map(|row| self.read_entry(row)).transpose()?;
            entry.ok_or_else(|| Error::NoSuchEntry { prefix: prefix.to_owned() }.into())
        })
    }

    /// The tracker of what was shown of a task's output. It is locked until it is dropped or its process has ended.
    ///
    /// # Errors
    /// When it cannot be read, and when the ledger does not have the entry any more.
    pub fn output_tracker(&self, entry: EntryId) -> Result<OutputTracker, Error> {
        let id = self.read(|db| resolve_existing(db, entry))?;
        OutputTracker::open(self.tracker_path(id))
    }

    fn read_entry(&self, row: &Row<'_>) -> Result<Entry, DbError> {
        let id: i64 = row.get(0)?;
        let mut reference: Reference = serde_json::from_str(&row.get::<_, String>(7)?).map_err(|error| self.damaged(&error))?;
        reference.task = row.get(1)?;
        reference.args = row.get::<_, Option<String>>(8)?.map(Payload::parse).transpose().map_err(|error| self.damaged(&error))?;
        reference.next = OutputPosition::peek(&self.tracker_path(id)).seq;
        Ok(Entry {
            id: EntryId(id),
            reference,
            status: row.get::<_, Option<String>>(2)?.and_then(|text| Status::read(&text)),
            message: row.get(3)?,
            created_at: Timestamp::from_millis(row.get(4)?),
            updated_at: Timestamp::from_millis(row.get(5)?),
            ended: row.get(6)?,
        })
    }

    fn read_value(&self, text: &str) -> Result<Value, Error> {
        serde_json::from_str(text).map_err(|error| self.damaged(&error))
    }

    fn damaged(&self, error: &serde_json::Error) -> Error {
        Error::Ledger(format!("the ledger of tasks in {} has something in it that cannot be read: {error}", self.dir.display()))
    }

    fn tracker_path(&self, id: i64) -> PathBuf {
        self.dir.join(TRACKERS).join(id.to_string())
    }

    /// Removes the files of removed entries. One that stays does no harm: no other entry gets its id.
    fn remove_tracker_files(&self, gone: impl IntoIterator<Item = i64>) {
        for id in gone {
            let _ = fs::remove_file(self.tracker_path(id));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.db.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read<T>(&self, look: impl FnOnce(&Connection) -> Result<T, DbError>) -> Result<T, Error> {
        look(&self.lock()).map_err(|fault| fault.into_error(&self.dir))
    }

    /// Makes all of `change` or nothing; no other process writes in between.
    fn write<T>(&self, change: impl FnOnce(&Connection) -> Result<T, DbError>) -> Result<T, Error> {
        let mut connection = self.lock();
        let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(DbError::from);
        let done = begun.and_then(|transaction| {
            let done = change(&transaction)?;
            transaction.commit()?;
            Ok(done)
        });
        done.map_err(|fault| fault.into_error(&self.dir))
    }
}

impl CallRecorder for Ledger {
    fn find_or_add(&self, reference: &Reference, now: Timestamp) -> Result<EntryId, Error> {
        let args = reference.args.as_ref().filter(|args| reference.task.is_none() && args.as_str().len() <= ARGS_BYTES_MAX);
        let kept = reference_json(reference)?;
        let (id, gone) = self.write(|db| {
            if let Some(id) = find_row(db, reference)? {
                return Ok((id, Vec::new()));
            }
            let gone = evict(db, now, self.entries_max)?;
            let sql = "INSERT INTO entry(server, task, key, created_at, updated_at, reference, args) VALUES(?1, ?2, ?3, ?4, ?4, ?5, ?6)";
            let (Reference { server, task, key, .. }, at) = (reference, now.as_millis());
            db.execute(sql, params![server, task, key, at, kept, args.map(Payload::as_str)])?;
            Ok((db.last_insert_rowid(), gone))
        })?;
        self.remove_tracker_files(gone);
        Ok(EntryId(id))
    }

    fn set_task(&self, entry: EntryId, reference: &Reference, now: Timestamp) -> Result<(), Error> {
        let Some(task) = &reference.task else { return Err(Error::Ledger("a task without a name cannot be entered".to_owned())) };
        let (kept, now) = (reference_json(reference)?, now.as_millis());
        let gone = self.write(|db| {
            let id = resolve_existing(db, entry)?;
            let (server, named): (String, Option<String>) =
                db.query_row("SELECT server, task FROM entry WHERE id = ?", [id], |row| Ok((row.get(0)?, row.get(1)?)))?;
            if named.as_ref() == Some(task) {
                db.execute("UPDATE entry SET reference = ?2 WHERE id = ?1 AND reference <> ?2", params![id, kept])?;
                return Ok(None);
            }
            let mut other = db.prepare_cached("SELECT id, ended FROM entry WHERE server = ? AND task = ?")?;
            let other: Option<(i64, bool)> = other.query_row([&server, task], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
            remove_questions_and_answers(db, id)?;
            match other {
                // Another entry has the task already. The two are merged, or its questions could be answered twice.
                Some((other, false)) => {
                    let merge = "UPDATE entry SET key = ?2, reference = ?3 WHERE id = ?1 AND key IS NULL";
                    db.execute(merge, params![other, reference.key, kept])?;
                    let joined = "UPDATE entry SET merged_into = ?2, task = NULL, args = NULL, ended = 1, updated_at = ?3
                                  WHERE id = ?1 OR merged_into = ?1";
                    db.execute(joined, [id, other, now])?;
                    return Ok(None);
                }
                // The server reused the task id: the ended task cannot be reached any more.
                Some((other, true)) => remove_entry(db, other)?,
                None => {}
            }
            let named = "UPDATE entry SET task = ?2, reference = ?3, args = NULL, status = NULL, message = NULL, ended = 0, updated_at = ?4
                         WHERE id = ?1";
            db.execute(named, params![id, task, kept, now])?;
            Ok(other.map(|(other, _)| other))
        })?;
        self.remove_tracker_files(gone);
        Ok(())
    }

    fn update_status(&self, entry: EntryId, status: Status, message: Option<&str>, now: Timestamp) -> Result<(), Error> {
        let message = message.map(|text| &text[..text.floor_char_boundary(MESSAGE_BYTES_MAX)]);
        self.write(|db| {
            // An unchanged status writes nothing, so it does not wait for the disk.
            let sql = "UPDATE entry SET status = ?2, message = ?3, updated_at = ?4, ended = ?5
                       WHERE id = (SELECT ifnull(merged_into, id) FROM entry WHERE id = ?1) AND ended = 0
                       AND (status IS NOT ?2 OR message IS NOT ?3)";
            db.prepare_cached(sql)?.execute(params![entry.0, status.as_str(), message, now.as_millis(), status.is_terminal()])?;
            if status.is_terminal() {
                db.execute("DELETE FROM question WHERE entry = (SELECT ifnull(merged_into, id) FROM entry WHERE id = ?)", [entry.0])?;
            }
            Ok(())
        })
    }

    fn remove(&self, entry: EntryId) -> Result<(), Error> {
        let gone = self.write(|db| {
            let id = resolve(db, entry)?;
            if let Some(id) = id {
                remove_entry(db, id)?;
            }
            Ok(id)
        })?;
        self.remove_tracker_files(gone);
        Ok(())
    }

    fn record_answer(&self, entry: EntryId, key: &str, answer: &Value) -> Result<Recorded, Error> {
        let text = answer.to_string();
        self.write(|db| {
            let id = resolve_existing(db, entry)?;
            let mut before = db.prepare_cached("SELECT answer, acknowledged FROM answer WHERE entry = ? AND key = ?")?;
            let before: Option<(String, bool)> = before.query_row(params![id, key], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
            if let Some((answer, acknowledged)) = before {
                return Ok(Recorded::Before { answer: self.read_value(&answer)?, acknowledged });
            }
            let count: usize = db.query_row("SELECT count(*) FROM answer WHERE entry = ?", [id], |row| row.get(0))?;
            if count >= QUESTIONS_MAX {
                return Err(Error::Ledger(format!("a task was given {QUESTIONS_MAX} answers, and the ledger keeps no more")).into());
            }
            db.execute("INSERT INTO answer(entry, key, answer) VALUES(?, ?, ?)", params![id, key, text])?;
            Ok(Recorded::New)
        })
    }

    fn withdraw_answer(&self, entry: EntryId, key: &str) -> Result<(), Error> {
        self.write(|db| {
            let Some(id) = resolve(db, entry)? else { return Ok(()) };
            db.execute("DELETE FROM answer WHERE entry = ? AND key = ? AND acknowledged = 0", params![id, key])?;
            Ok(())
        })
    }

    fn acknowledge_answer(&self, entry: EntryId, key: &str) -> Result<(), Error> {
        self.write(|db| {
            let Some(id) = resolve(db, entry)? else { return Ok(()) };
            db.execute("UPDATE answer SET acknowledged = 1 WHERE entry = ? AND key = ? AND acknowledged = 0", params![id, key])?;
            db.execute("DELETE FROM question WHERE entry = ? AND key = ?", params![id, key])?;
            Ok(())
        })
    }

    fn record_question(&self, entry: EntryId, key: &str, question: &Value) -> Result<(), Error> {
        let text = question.to_string();
        if text.len() > QUESTION_BYTES_MAX {
            return Ok(());
        }
        self.write(|db| {
            let id = resolve_existing(db, entry)?;
            let sql = "SELECT count(*) FROM question WHERE entry = ? AND key <> ?";
            let count: usize = db.query_row(sql, params![id, key], |row| row.get(0))?;
            if count >= QUESTIONS_MAX {
                return Err(Error::Ledger(format!("a task asked {QUESTIONS_MAX} questions, and the ledger keeps no more")).into());
            }
            let sql = "INSERT INTO question(entry, key, question) VALUES(?, ?, ?)
                       ON CONFLICT(entry, key) DO UPDATE SET question = excluded.question";
            db.execute(sql, params![id, key, text])?;
            Ok(())
        })
    }

    fn open_questions(&self, entry: EntryId) -> Result<Vec<(String, Value)>, Error> {
        self.read(|db| {
            let mut statement = db.prepare_cached(
                "SELECT key, question FROM question WHERE entry = (SELECT ifnull(merged_into, id) FROM entry WHERE id = ?) AND NOT EXISTS(
                     SELECT 1 FROM answer WHERE answer.entry = question.entry AND answer.key = question.key AND acknowledged = 1
                 ) ORDER BY id",
            )?;
            let mut rows = statement.query([entry.0])?;
            let mut questions = Vec::new();
            while let Some(row) = rows.next()? {
                questions.push((row.get(0)?, self.read_value(&row.get::<_, String>(1)?)?));
            }
            Ok(questions)
        })
    }

    fn answers(&self, entry: EntryId) -> Result<Vec<(String, Value, bool)>, Error> {
        self.read(|db| {
            let mut statement = db.prepare_cached(
                "SELECT key, answer, acknowledged FROM answer WHERE entry = (SELECT ifnull(merged_into, id) FROM entry WHERE id = ?) ORDER BY id",
            )?;
            let mut rows = statement.query([entry.0])?;
            let mut answers = Vec::new();
            while let Some(row) = rows.next()? {
                answers.push((row.get(0)?, self.read_value(&row.get::<_, String>(1)?)?, row.get(2)?));
            }
            Ok(answers)
        })
    }
}

/// A reference without the members that have columns of their own.
fn reference_json(reference: &Reference) -> Result<String, Error> {
    let kept = Reference { task: None, args: None, next: 0, ..reference.clone() };
    serde_json::to_string(&kept).map_err(|error| Error::Ledger(format!("a reference cannot be written: {error}")))
}

fn state_dir(variable: impl Fn(&str) -> Option<OsString>, home: Option<PathBuf>) -> Option<PathBuf> {
    let path = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = path("TASKWIRE_STATE_DIR") {
        return Some(dir);
    }
    // The XDG specification ignores a relative path.
    if let Some(dir) = path("XDG_STATE_HOME").filter(|dir| dir.is_absolute()) {
        return Some(dir.join("taskwire"));
    }
    let home = home.filter(|home| !home.as_os_str().is_empty())?;
    Some(home.join(if cfg!(target_os = "macos") { "Library/Application Support/taskwire" } else { ".local/state/taskwire" }))
}
