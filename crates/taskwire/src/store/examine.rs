//! Looks at a data directory, and at the embedded store in it, while a server may use them. Nothing is changed.

use std::{
    fmt::Write,
    fs, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::Path,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, SystemTime},
};

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::{
    Error, busy,
    data_dir::{self, EPOCH, file_error},
    files::{DB, WAL},
    free_bytes,
    sqlite::FORMAT,
    sqlite_read::{check_task, ids},
};

/// How many of the oldest tasks, and of the newest ones, are read.
const SAMPLE_TASKS: i64 = 100;
const INTERRUPT_PAUSE: Duration = Duration::from_millis(1);

/// What is at the place of a data directory.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct DirectoryFindings {
    /// Whether it is there.
    pub exists: bool,
    /// Who may do what with it, as `chmod` takes it.
    pub mode: u32,
    /// Why no server would use it. The text says what to do.
    pub problem: Option<String>,
    /// Who uses it, as the lock file says.
    pub holder: Option<String>,
    /// Whether it has an embedded store.
    pub has_store: bool,
    /// Bytes that can still be written to its disk, if that is known.
    pub free_bytes: Option<u64>,
}

/// What is in an embedded store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoreFindings {
    /// The stored format.
    pub format: i64,
    /// The format that this release writes. An older store is brought up to it when a server opens it.
    pub known_format: i64,
    /// Bytes of the database and its log.
    pub bytes: u64,
    /// What a look at all pages found.
    pub pages: PageCheck,
    /// How many tasks were read. Those of an older format are not.
    pub tasks_read: usize,
    /// What is damaged, a sentence for each task.
    pub damaged: Vec<String>,
}

impl StoreFindings {
    fn is_good(&self) -> bool {
        self.damaged.is_empty() && !matches!(self.pages, PageCheck::Damaged(_))
    }
}

/// What a look at all pages of a database found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageCheck {
    /// They fit together.
    Good,
    /// They do not: the first things that are wrong.
    Damaged(Vec<String>),
    /// It took too long, and nothing is known.
    Unfinished,
}

/// Looks at a data directory from outside.
///
/// # Errors
/// When it cannot be looked at.
pub fn examine_directory(shown: &Path) -> io::Result<DirectoryFindings> {
    let dir = match shown.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // It will be on the disk of what is above it.
            let path = std::path::absolute(shown)?;
            let above = path.ancestors().find(|above| above.exists());
            return Ok(DirectoryFindings { free_bytes: above.and_then(free_bytes), ..DirectoryFindings::default() });
        }
        found => found?,
    };
    let problem = data_dir::check_owned(&dir).err().map(|error| error.to_string());
    Ok(DirectoryFindings {
        exists: true,
        mode: fs::metadata(&dir)?.mode() & 0o7777,
        holder: if problem.is_none() { data_dir::holder(&dir)? } else { None },
        problem,
        has_store: dir.join(DB).exists(),
        free_bytes: free_bytes(&dir),
    })
}

/// Looks at the embedded store in a data directory: at all its pages, for at most `limit`, and at what is stored of its oldest and its
/// newest tasks.
///
/// # Errors
/// When a server of this release could not serve it, or it cannot be read.
pub fn examine_store(shown: &Path, limit: Duration) -> Result<StoreFindings, Error> {
    let dir = shown.canonicalize().map_err(|source| file_error(shown, source))?;
    check_is_served_here(&dir, shown)?;
    look_again_if_used(&dir, shown, |connection| look(connection, &dir, shown, limit))
}

/// Looks at the store in a directory. If something is wrong with it that nobody seemed to use, and somebody has used it meanwhile, it looks
/// once more: what was read may have been written at that moment.
fn look_again_if_used(
    dir: &Path,
    shown: &Path,
    mut look: impl FnMut(&Connection) -> Result<StoreFindings, Error>,
) -> Result<StoreFindings, Error> {
    let state = || StoreState::of(dir).map_err(|source| file_error(shown, source));
    let before = state()?;
    let found = connect(dir, &before).and_then(|connection| look(&connection));
    if before.is_used() || found.as_ref().is_ok_and(StoreFindings::is_good) {
        return found;
    }
    let now = state()?;
    if now == before { found } else { connect(dir, &now).and_then(|connection| look(&connection)) }
}

fn look(connection: &Connection, dir: &Path, shown: &Path, limit: Duration) -> Result<StoreFindings, Error> {
    let format = format_of(connection, shown)?;
    let bytes = |name: &str| fs::metadata(dir.join(name)).map_or(0, |found| found.len());
    let (tasks_read, damaged) = if format == FORMAT { read_sample(connection)? } else { (0, Vec::new()) };
    let pages = check_pages(connection, limit)?;
    Ok(StoreFindings { format, known_format: FORMAT, bytes: bytes(DB) + bytes(WAL), pages, tasks_read, damaged })
}

/// Refuses a directory whose tasks are elsewhere.
pub(super) fn check_is_served_here(dir: &Path, shown: &Path) -> Result<(), Error> {
    if dir.join(EPOCH).exists() {
        return Err(Error::OfNode { path: shown.display().to_string() });
    }
    data_dir::check_not_moved(dir, shown)
}

/// The stored format, if this release knows it.
pub(super) fn format_of(connection: &Connection, shown: &Path) -> Result<i64, Error> {
    let found: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if found > FORMAT {
        return Err(Error::TooNew { path: shown.display().to_string(), found, known: FORMAT });
    }
    Ok(found)
}

/// Who uses an embedded store, and what shows whether somebody has.
#[derive(PartialEq, Eq)]
struct StoreState {
    holder: Option<String>,
    log_bytes: u64,
    written_at: Option<SystemTime>,
}

impl StoreState {
    fn of(dir: &Path) -> io::Result<Self> {
        let log_bytes = fs::metadata(dir.join(WAL)).map_or(0, |found| found.len());
        let written_at = fs::metadata(dir.join(DB)).and_then(|found| found.modified()).ok();
        Ok(Self { holder: data_dir::holder(dir)?, log_bytes, written_at })
    }

    fn is_used(&self) -> bool {
        self.holder.is_some() || self.log_bytes > 0
    }
}

/// A connection that only reads. If nobody uses the store and its log is empty, SQLite does not even make files of its own.
fn connect(dir: &Path, state: &StoreState) -> Result<Connection, Error> {
    if state.is_used() { connect_beside(&dir.join(DB)) } else { connect_alone(&dir.join(DB)) }
}

const READ_FLAGS: OpenFlags =
    OpenFlags::SQLITE_OPEN_READ_ONLY.union(OpenFlags::SQLITE_OPEN_NO_MUTEX).union(OpenFlags::SQLITE_OPEN_NOFOLLOW);

/// A connection that only reads, beside others that may write.
pub(super) fn connect_beside(path: &Path) -> Result<Connection, Error> {
    let connection = Connection::open_with_flags(path, READ_FLAGS)?;
    connection.busy_timeout(busy::WAIT)?;
    Ok(connection)
}

/// The same for a database that nobody writes.
pub(super) fn connect_alone(path: &Path) -> Result<Connection, Error> {
    let mut uri = "file:".to_owned();
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/-_.".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(uri, "%{byte:02x}");
        }
    }
    uri.push_str("?immutable=1");
    Ok(Connection::open_with_flags(uri, READ_FLAGS | OpenFlags::SQLITE_OPEN_URI)?)
}

/// Whether all pages fit together, as far as that can be seen in time.
pub(super) fn check_pages(connection: &Connection, limit: Duration) -> Result<PageCheck, Error> {
    let handle = connection.get_interrupt_handle();
    let (done, over) = mpsc::sync_channel::<()>(0);
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut wait = limit;
            // Again and again: an interruption between two statements is lost.
            while over.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                handle.interrupt();
                wait = INTERRUPT_PAUSE;
            }
        });
        let found = quick_check(connection);
        drop(done);
        found
    })
}

fn quick_check(connection: &Connection) -> Result<PageCheck, Error> {
    let read = || -> rusqlite::Result<Vec<String>> {
        let mut statement = connection.prepare("PRAGMA quick_check(10)")?;
        let rows = statement.query_map([], |row| row.get(0))?;
        rows.collect()
    };
    match read() {
        Ok(rows) if rows == ["ok"] => Ok(PageCheck::Good),
        Ok(rows) => Ok(PageCheck::Damaged(rows)),
        Err(error) => match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => Ok(PageCheck::Unfinished),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Ok(PageCheck::Damaged(vec![error.to_string()])),
            _ => Err(error.into()),
        },
    }
}

/// Reads some tasks: how many, and which of them are damaged.
fn read_sample(connection: &Connection) -> Result<(usize, Vec<String>), Error> {
    let mut tasks = ids(connection, "SELECT id FROM task ORDER BY id LIMIT ?", [SAMPLE_TASKS])?;
    tasks.extend(ids(connection, "SELECT id FROM task ORDER BY id DESC LIMIT ?", [SAMPLE_TASKS])?);
    tasks.sort_unstable();
    tasks.dedup();
    let mut damaged = Vec::new();
    for &id in &tasks {
        match check_task(connection, id) {
            Ok(()) => {}
            Err(Error::Corrupt { subject, what }) => damaged.push(format!("{subject}: {what}")),
            Err(error) => return Err(error),
        }
    }
    Ok((tasks.len(), damaged))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{store::SqliteStore, testing::TempDir};

    /// What is in a directory: names, and how long the files are.
    fn contents(dir: &Path) -> Vec<(String, u64)> {
        let mut found: Vec<_> = fs::read_dir(dir)
            .expect("a directory")
            .map(|entry| entry.expect("an entry"))
            .map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.metadata().expect("there").len()))
            .collect();
        found.sort();
        found
    }

    #[test]
    fn a_look_at_a_store_changes_nothing_in_its_directory() {
        let dir = TempDir::new();
        let data = dir.path().join("100 % da#ta?");
        drop(SqliteStore::open(&data).expect("a store"));
        let before = contents(&data);
        let directory = examine_directory(&data).expect("it can be looked at");
        assert!(directory.exists && directory.has_store && directory.problem.is_none() && directory.holder.is_none(), "{directory:?}");
        let store = examine_store(&data, Duration::from_secs(60)).expect("it can be read");
        assert_eq!((store.format, store.pages, store.tasks_read), (FORMAT, PageCheck::Good, 0));
        assert_eq!(contents(&data), before);
    }

    #[test]
    fn a_look_beside_a_server_says_who_has_the_directory() {
        let dir = TempDir::new();
        let store = SqliteStore::open(dir.path()).expect("a store");
        let holder = examine_directory(dir.path()).expect("it can be looked at").holder;
        assert_eq!(holder, Some(format!("process {}", std::process::id())));
        assert_eq!(examine_store(dir.path(), Duration::from_secs(60)).expect("it can be read").pages, PageCheck::Good);
        drop(store);
        assert_eq!(examine_directory(dir.path()).expect("it can be looked at").holder, None);
    }

    #[test]
    fn what_seems_damaged_while_a_server_starts_is_looked_at_again() {
        let dir = TempDir::new();
        drop(SqliteStore::open(dir.path()).expect("a store"));
        let damaged = || PageCheck::Damaged(vec!["a page is wrong".to_owned()]);
        let minute = Duration::from_secs(60);
        let (mut looks, mut server) = (0, None);
        let found = look_again_if_used(dir.path(), dir.path(), |connection| {
            looks += 1;
            let found = look(connection, dir.path(), dir.path(), minute)?;
            let pages = if server.is_none() { damaged() } else { found.pages.clone() };
            server.get_or_insert_with(|| SqliteStore::open(dir.path()).expect("a server starts"));
            Ok(StoreFindings { pages, ..found })
        });
        assert_eq!((found.expect("it can be read").pages, looks), (PageCheck::Good, 2));
        drop(server);
        looks = 0;
        let found = look_again_if_used(dir.path(), dir.path(), |connection| {
            looks += 1;
            Ok(StoreFindings { pages: damaged(), ..look(connection, dir.path(), dir.path(), minute)? })
        });
        assert_eq!((found.expect("it can be read").pages, looks), (damaged(), 1), "nobody has used it");
    }

    #[test]
    fn a_look_that_takes_too_long_is_broken_off() {
        let dir = TempDir::new();
        drop(SqliteStore::open(dir.path()).expect("a store"));
        let connection = Connection::open(dir.path().join(DB)).expect("it can be written");
        let much = "CREATE TABLE much(x); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40000)
            INSERT INTO much SELECT zeroblob(1000) FROM n;";
        connection.execute_batch(much).expect("written");
        assert_eq!(check_pages(&connection, Duration::ZERO).expect("it can be read"), PageCheck::Unfinished);
        assert_eq!(check_pages(&connection, Duration::from_secs(60)).expect("it can be read"), PageCheck::Good);
    }

    #[test]
    fn a_directory_that_is_not_there_has_the_room_of_what_is_above_it() {
        let dir = TempDir::new();
        let found = examine_directory(&dir.path().join("a/b/c")).expect("it can be looked at");
        assert!(!found.exists && found.free_bytes.is_some() && !dir.path().join("a").exists(), "{found:?}");
    }
}
