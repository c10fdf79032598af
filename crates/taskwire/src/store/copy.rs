//! Copies of an embedded store: a backup of one that may be in use, and a data directory that begins with a backup.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::Connection;
use taskwire_core::task::Event;

use super::{
    Error, OpenCommand,
    busy::{begin_transaction, retry_while_busy},
    data_dir::{self, DirLock, LOCK, SPOOL, file_error, sync},
    examine::{PageCheck, check_is_served_here, check_pages, connect_alone, connect_beside, format_of},
    files::DB,
    sqlite::{FORMAT, connect, migrate},
    sqlite_read::{ids, read_event, read_task},
};
use crate::owned_files;

/// What the name of a copy ends with until it is complete.
const PART: &str = ".part";
/// What the names of the files end with that SQLite makes beside a database.
const BESIDE: [&str; 3] = ["-wal", "-shm", "-journal"];

/// What a copy has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CopiedStore {
    /// The stored format.
    pub format: i64,
    /// Tasks.
    pub tasks: u64,
    /// Those that have not ended.
    pub open_tasks: u64,
    /// Bytes of the copy.
    pub bytes: u64,
}

/// Copies the store in the data directory `shown` as of one moment to a new file, for this user alone. A server may go on with it
/// meanwhile: all that it had acknowledged before is in the copy. The file is there when it is complete, has been checked, and will last.
///
/// # Errors
/// When the store or the file cannot be used, when there is such a file, or when pages of the store are damaged.
pub fn back_up(shown: &Path, file: &Path) -> Result<CopiedStore, Error> {
    let dir = shown.canonicalize().map_err(|source| file_error(shown, source))?;
    let db = dir.join(DB);
    check_is_served_here(&dir, shown)?;
    if !db.exists() {
        let dir = shown.display();
        return Err(Error::Unusable(format!("there are no tasks in {dir}: name the directory that a server has as its `data`")));
    }
    data_dir::check_owned(&dir)?;
    let connection = connect_beside(&db)?;
    check_format(&connection, shown)?;
    let part = PartialFile::beside(file)?;
    let path = part.path.to_str().ok_or_else(|| Error::Unusable(format!("the path of {} is no text: choose another", file.display())))?;
    // It reads as of one moment, and other connections go on writing.
    retry_while_busy(&db, || connection.execute("VACUUM INTO ?", [path]))?;
    drop(connection);
    let copied = look_at(&part.path, file)?;
    part.complete(file)?;
    Ok(copied)
}

/// A file that is not complete yet. It goes if it never is.
struct PartialFile {
    path: PathBuf,
    /// What it will be.
    target: PathBuf,
}

impl PartialFile {
    fn beside(file: &Path) -> Result<Self, Error> {
        let failed = |source| file_error(file, source);
        let name = file.file_name().ok_or_else(|| Error::Unusable(format!("{} is no name of a file", file.display())))?;
        let above = file.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let above = above.canonicalize().map_err(failed)?;
        let target = above.join(name);
        if fs::symlink_metadata(&target).is_ok() {
            return Err(is_there(file));
        }
        let mut part = OsString::from(name);
        part.push(PART);
        let path = above.join(part);
        match owned_files::open(OpenOptions::new().write(true).create_new(true), &path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(Error::Unusable(format!(
                "there is {}: another backup is being made, or one was interrupted; if so, remove that file",
                path.display()
            ))),
            Err(error) => Err(file_error(&path, error)),
            Ok(_) => Ok(Self { path, target }),
        }
    }

    /// Makes it last under its name, if there is no such file meanwhile.
    fn complete(self, file: &Path) -> Result<(), Error> {
        let failed = |source: io::Error| file_error(file, source);
        File::open(&self.path).and_then(|part| part.sync_all()).map_err(failed)?;
        match fs::hard_link(&self.path, &self.target) {
            Ok(()) => fs::remove_file(&self.path).map_err(failed)?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(is_there(file)),
            // Some disks have no links.
            Err(_) => fs::rename(&self.path, &self.target).map_err(failed)?,
        }
        self.target.parent().map_or(Ok(()), sync).map_err(failed)
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // It has its name, or nobody needs it.
        let _ = fs::remove_file(&self.path);
    }
}

fn is_there(file: &Path) -> Error {
    Error::Unusable(format!("there is {} already, and nothing was written: choose another name, or remove it", file.display()))
}

/// Refuses a database that no server of this release or an earlier one has written.
fn check_format(connection: &Connection, shown: &Path) -> Result<i64, Error> {
    match format_of(connection, shown)? {
        0 => Err(Error::Unusable(format!("there is no store of Taskwire in {}", shown.display()))),
        format => Ok(format),
    }
}

/// What a copy has that nobody writes, if all its pages fit together.
fn look_at(path: &Path, shown: &Path) -> Result<CopiedStore, Error> {
    let connection = connect_alone(path)?;
    let format = check_format(&connection, shown)?;
    match check_pages(&connection, Duration::MAX)? {
        PageCheck::Good => {}
        PageCheck::Damaged(problems) => {
            return Err(Error::Unusable(format!("{} is damaged, and of no use: {}", shown.display(), problems.join("; "))));
        }
        PageCheck::Unfinished => return Err(Error::Unusable(format!("{} could not be checked", shown.display()))),
    }
    let count = |sql: &str| connection.query_row(sql, [], |row| row.get(0));
    Ok(CopiedStore {
        format,
        tasks: count("SELECT count(*) FROM task")?,
        open_tasks: count("SELECT count(*) FROM task WHERE open = 1")?,
        bytes: fs::metadata(path).map_err(|source| file_error(shown, source))?.len(),
    })
}

/// A data directory that is made of a backup. It has no store before [`finish`](Self::finish).
#[derive(Debug)]
pub struct StoreRestore {
    /// As its user calls it.
    shown: PathBuf,
    dir: PathBuf,
    copied: CopiedStore,
    open_commands: Vec<OpenCommand>,
    _lock: DirLock,
}

impl StoreRestore {
    /// Checks a backup, and copies it into a data directory that has nothing else; makes the directory if there is none.
    ///
    /// # Errors
    /// When the backup or the directory cannot be used, or the directory has something in it.
    pub fn begin(file: &Path, shown: &Path) -> Result<Self, Error> {
        let source = file.canonicalize().map_err(|source| file_error(file, source))?;
        let copied = check_backup(&source, file)?;
        check_empty(shown, shown)?;
        let (dir, lock, _) = data_dir::open(shown)?;
        // Somebody may have been faster.
        check_empty(&dir, shown)?;
        let mut restore = Self { shown: shown.to_owned(), dir, copied, open_commands: Vec::new(), _lock: lock };
        restore.fill(&source).map_err(|error| file_error(shown, error))?;
        restore.open_commands = restore.upgrade()?;
        Ok(restore)
    }

    /// Tasks whose commands had begun. Their files are not here, so note that before [`finish`](Self::finish): else they would be taken for
    /// commands that were never started.
    #[must_use]
    pub fn open_commands(&self) -> &[OpenCommand] {
        &self.open_commands
    }

    /// Gives the directory its store. From now on a server can be started on it.
    ///
    /// # Errors
    /// When that cannot be made to last.
    pub fn finish(self) -> Result<CopiedStore, Error> {
        let failed = |source| file_error(&self.shown, source);
        File::open(self.part()).and_then(|part| part.sync_all()).map_err(failed)?;
        fs::rename(self.part(), self.dir.join(DB)).map_err(failed)?;
        let above = self.dir.parent().map_or(Ok(()), sync);
        above.and_then(|()| sync(&self.dir)).map_err(failed)?;
        Ok(self.copied)
    }

    fn part(&self) -> PathBuf {
        self.dir.join(format!("{DB}{PART}"))
    }

    fn remove_part(&self) {
        for name in part_names() {
            // It may not be there.
            let _ = fs::remove_file(self.dir.join(name));
        }
    }

    fn fill(&self, source: &Path) -> io::Result<()> {
        // What an interrupted restore has left beside it is of another copy.
        self.remove_part();
        let mut target = owned_files::open(OpenOptions::new().write(true).create(true).truncate(true), &self.part())?;
        io::copy(&mut File::open(source)?, &mut target)?;
        target.sync_all()
    }

    /// Brings the copy up to the format of this release, and finds the commands that had begun.
    fn upgrade(&self) -> Result<Vec<OpenCommand>, Error> {
        let part = self.part();
        let connection = connect(&part)?;
        if self.copied.format < FORMAT {
            let transaction = begin_transaction(&connection, &part)?;
            migrate(&transaction, self.copied.format)?;
            transaction.commit()?;
        }
        let open_commands = open_commands(&connection)?;
        // All is in one file then.
        connection.close().map_err(|(_, error)| error)?;
        Ok(open_commands)
    }
}

impl Drop for StoreRestore {
    fn drop(&mut self) {
        // It has its name, or nobody needs it.
        self.remove_part();
    }
}

/// The names of a copy that is not complete, and of what SQLite makes beside it.
fn part_names() -> impl Iterator<Item = String> {
    [""].into_iter().chain(BESIDE).map(|end| format!("{DB}{PART}{end}"))
}

/// Refuses what is no complete store in one file.
fn check_backup(source: &Path, file: &Path) -> Result<CopiedStore, Error> {
    let mut log = source.as_os_str().to_owned();
    log.push("-wal");
    if fs::metadata(&log).is_ok_and(|log| log.len() > 0) {
        return Err(Error::Unusable(format!(
            "{} has a log beside it, so it is the store of a server and no backup: make one with `taskwire store backup`",
            file.display()
        )));
    }
    look_at(source, file)
}

/// Refuses a directory that has anything in it but a lock, and what an interrupted restore has left.
fn check_empty(dir: &Path, shown: &Path) -> Result<(), Error> {
    let failed = |source| file_error(shown, source);
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    let mut names = entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<io::Result<Vec<_>>>().map_err(failed)?;
    names.retain(|name| name != LOCK && !part_names().any(|part| name == part.as_str()));
    if names.is_empty() {
        return Ok(());
    }
    let cure = match &names[..] {
        [spool] if spool == SPOOL => ". If an interrupted restore left the `spool` in it, remove that, and restore again",
        _ => "",
    };
    Err(Error::Unusable(format!("{} is not empty: choose a directory that is, or one that is not there{cure}", shown.display())))
}

/// Commands that have begun and have not ended. What is damaged is left alone by servers, too.
fn open_commands(connection: &Connection) -> Result<Vec<OpenCommand>, Error> {
    let mut open = Vec::new();
    for id in ids(connection, "SELECT id FROM task WHERE open = 1 ORDER BY id", [])? {
        let read = read_task(connection, id).map_err(|error| error.or_corrupt(format_args!("task {id}")));
        let task = match read {
            Ok(Some(task)) => task,
            Ok(None) | Err(Error::Corrupt { .. }) => continue,
            Err(error) => return Err(error),
        };
        let checkpoint = match task.checkpoint_version.map(|version| read_event(connection, id, version)).transpose() {
            Ok(Some(Some(Event::Saved { checkpoint }))) => Some(checkpoint),
            Ok(_) | Err(Error::Corrupt { .. }) => None,
            Err(error) => return Err(error),
        };
        open.extend(OpenCommand::of(&task, checkpoint));
    }
    Ok(open)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::{
        store::{SqliteStore, Store},
        testing::TempDir,
    };

    fn restored(file: &Path, dir: &Path) -> Result<CopiedStore, Error> {
        StoreRestore::begin(file, dir)?.finish()
    }

    #[test]
    fn a_store_that_is_in_use_is_copied_and_a_directory_made_of_the_copy_opens_with_the_same_key() {
        let dir = TempDir::new();
        let (data, file, new) = (dir.path().join("da'ta?"), dir.path().join("a b.backup"), dir.path().join("new/data"));
        let store = SqliteStore::open(&data).expect("a store");
        let copied = back_up(&data, &file).expect("a backup");
        assert_eq!((copied.format, copied.tasks), (FORMAT, 0));
        assert_eq!(fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(restored(&file, &new).expect("restored"), copied);
        let again = SqliteStore::open(&new).expect("a store");
        assert_eq!(again.secret(), store.secret());
        let names: Vec<_> = fs::read_dir(dir.path()).expect("there").map(|entry| entry.expect("an entry").file_name()).collect();
        assert_eq!(names.len(), 3, "nothing else is left: {names:?}");
    }

    #[test]
    fn what_is_there_is_not_written_over() {
        let dir = TempDir::new();
        let (data, file, new) = (dir.path().join("data"), dir.path().join("backup"), dir.path().join("new"));
        drop(SqliteStore::open(&data).expect("a store"));
        back_up(&data, &file).expect("a backup");
        let refused = back_up(&data, &file).expect_err("it is there").to_string();
        assert!(refused.contains("already"), "{refused}");
        fs::write(dir.path().join("other.part"), "").expect("a file");
        let refused = back_up(&data, &dir.path().join("other")).expect_err("another is being made").to_string();
        assert!(refused.contains("other.part") && dir.path().join("other.part").exists(), "{refused}");
        let refused = restored(&file, &data).expect_err("it has a store").to_string();
        assert!(refused.contains("is not empty"), "{refused}");
        restored(&file, &new).expect("restored");
        let refused = restored(&file, &new).expect_err("it has a store").to_string();
        assert!(refused.contains("is not empty"), "{refused}");
        let refused = back_up(&dir.path().join("new"), Path::new("/")).expect_err("no name").to_string();
        assert!(refused.contains("no name of a file"), "{refused}");
    }

    #[test]
    fn a_restore_that_was_interrupted_can_be_made_again() {
        let dir = TempDir::new();
        let (data, file, new) = (dir.path().join("data"), dir.path().join("backup"), dir.path().join("new"));
        drop(SqliteStore::open(&data).expect("a store"));
        let copied = back_up(&data, &file).expect("a backup");
        drop(StoreRestore::begin(&file, &new).expect("it begins"));
        // As if it had been killed while SQLite wrote.
        for left in part_names() {
            fs::write(new.join(left), "of another copy").expect("written");
        }
        // And before that, while the commands were noted.
        fs::create_dir(new.join(SPOOL)).expect("made");
        let refused = restored(&file, &new).expect_err("it has files of commands").to_string();
        assert!(refused.contains("is not empty") && refused.contains("`spool`"), "{refused}");
        fs::remove_dir(new.join(SPOOL)).expect("removed");
        assert_eq!(restored(&file, &new).expect("restored"), copied);
        let mut names: Vec<_> = fs::read_dir(&new).expect("there").map(|entry| entry.expect("an entry").file_name()).collect();
        names.sort();
        assert_eq!(names, [LOCK, DB]);
        SqliteStore::open(&new).expect("a store");
    }

    #[test]
    fn what_is_no_backup_is_refused_and_no_directory_is_made() {
        let dir = TempDir::new();
        let (data, file, new) = (dir.path().join("data"), dir.path().join("backup"), dir.path().join("new"));
        drop(SqliteStore::open(&data).expect("a store"));
        back_up(&data, &file).expect("a backup");
        let good = fs::read(&file).expect("a file");
        fs::write(&file, "no database at all, but long enough to be one ".repeat(100)).expect("written");
        restored(&file, &new).expect_err("no database");
        fs::write(&file, &good[..good.len() / 2]).expect("written");
        restored(&file, &new).expect_err("cut short");
        fs::write(&file, "").expect("written");
        restored(&file, &new).expect_err("empty");
        fs::write(&file, &good).expect("written");
        fs::write(dir.path().join("backup-wal"), "frames").expect("written");
        let refused = restored(&file, &new).expect_err("it is incomplete").to_string();
        assert!(refused.contains("has a log beside it") && !new.exists(), "{refused}");
        back_up(&new, &dir.path().join("none")).expect_err("there is no store");
    }
}
