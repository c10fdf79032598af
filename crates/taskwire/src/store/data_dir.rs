//! The data directory: that it is this user's, and its lock, which one process has at a time. The lock file says which.

use std::{
    fs::{self, File, OpenOptions, Permissions, TryLockError},
    io::{self, Read, Seek, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use super::{
    Error,
    files::{DB, FileIdentity, SHM, WAL},
    marker::{Marker, MoveState},
    wal::END_FILE,
};
use crate::owned_files::{self, FileKind};

pub(super) const LOCK: &str = "lock";
/// The epoch of the node that used the directory last, where nodes share a store.
pub(super) const EPOCH: &str = "node-epoch";
/// What a move leaves: while it fills the store in the directory, and when the tasks of that are elsewhere.
pub(super) const MOVING: &str = "moving";
pub(super) const MOVED: &str = "moved";
/// The files of commands.
pub(super) const SPOOL: &str = "spool";
/// No mark of a move is as long.
const MARKER_BYTES_MAX: u64 = 64 * 1024;
/// How often the lock of a directory is tried, and how long apart, while others only look who has it.
const LOCK_TRIES: u32 = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// What a data directory can contain, whoever put it there; anything else is not touched.
const CONTENTS: [(&str, FileKind); 12] = [
    (LOCK, FileKind::File),
    (DB, FileKind::File),
    (WAL, FileKind::File),
    (SHM, FileKind::File),
    ("tasks.db-journal", FileKind::File),
    (END_FILE, FileKind::File),
    (EPOCH, FileKind::File),
    (MOVING, FileKind::File),
    (MOVED, FileKind::File),
    (SPOOL, FileKind::Directory),
    ("control", FileKind::Socket),
    ("join", FileKind::Socket),
];

/// The error for a file of a data directory that cannot be used.
pub(super) fn file_error(path: &Path, source: io::Error) -> Error {
    // An error without an OS code is of `owned_files`, and names the path itself.
    match source.raw_os_error() {
        None => Error::NotOwned(source),
        Some(_) => Error::File { path: path.display().to_string(), source },
    }
}

/// Checks that a directory and its known contents are this user's. `dir` has no link in it.
pub(super) fn check_owned(dir: &Path) -> Result<(), Error> {
    let refused = |source| file_error(dir, source);
    owned_files::check(dir, FileKind::Directory).map_err(refused)?;
    for (name, kind) in CONTENTS {
        owned_files::check(&dir.join(name), kind).map_err(refused)?;
    }
    Ok(())
}

/// The same before anything is read, written or run. Lets nobody else look into the directory.
fn secure_data_dir(dir: &Path) -> Result<(), Error> {
    let refused = |source| file_error(dir, source);
    check_owned(dir)?;
    let mode = fs::metadata(dir).map_err(refused)?.mode();
    if mode & 0o077 != 0 {
        let narrowed = fs::set_permissions(dir, Permissions::from_mode(mode & 0o7700));
        let now = if narrowed.is_ok() { "they cannot any more" } else { "that cannot be changed" };
        tracing::warn!(dir = %dir.display(), mode = %format_args!("{:04o}", mode & 0o777), "other users could look into the data directory: {now}");
    }
    Ok(())
}

/// Opens a data directory for a process whose tasks are elsewhere: it has the files of commands alone.
pub(super) fn open_without_tasks(shown: &Path) -> Result<(PathBuf, DirLock), Error> {
    let (dir, lock, _) = open(shown)?;
    if dir.join(DB).exists() {
        // Its commands would be ended as those of no task.
        return Err(Error::HasTasks { path: shown.display().to_string() });
    }
    Ok((dir, lock))
}

/// The same for a node of a store to which the tasks of the directory may have been moved: it goes on with their commands.
#[cfg(feature = "postgres")]
pub(super) fn open_for_node(shown: &Path) -> Result<(PathBuf, DirLock), Error> {
    let (dir, lock, _) = open(shown)?;
    match marker(&dir)? {
        Some(marker) if marker.state == MoveState::Moving => return Err(marker.in_directory(shown)),
        None if dir.join(DB).exists() => return Err(Error::HasTasks { path: shown.display().to_string() }),
        _ => {}
    }
    Ok((dir, lock))
}

/// What a move has left in a directory, if anything.
pub(super) fn marker(dir: &Path) -> Result<Option<Marker>, Error> {
    for (name, state) in [(MOVING, MoveState::Moving), (MOVED, MoveState::Moved)] {
        let (path, mut text) = (dir.join(name), String::new());
        let read =
            owned_files::open(OpenOptions::new().read(true), &path).and_then(|file| file.take(MARKER_BYTES_MAX).read_to_string(&mut text));
        match read {
            // Somebody may have made the file by hand: its name counts.
            Ok(_) => return Ok(Some(Marker { state, ..Marker::parse(&text) })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(file_error(&path, error)),
        }
    }
    Ok(None)
}

/// Makes the names in a directory last.
pub(super) fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Refuses a directory whose store is not complete, or whose tasks are elsewhere.
pub(super) fn check_not_moved(dir: &Path, shown: &Path) -> Result<(), Error> {
    marker(dir)?.map_or(Ok(()), |marker| Err(marker.in_directory(shown)))
}

/// Opens a data directory for this process alone, making it if there is none. Returns where it is, its lock, and the identity of that.
pub(super) fn open(shown: &Path) -> Result<(PathBuf, DirLock, FileIdentity), Error> {
    let failed = |source| file_error(shown, source);
    // For this user alone: it has what callers send and get, and the key that signs the state they carry.
    fs::DirBuilder::new().recursive(true).mode(0o700).create(shown).map_err(failed)?;
    // The directory itself may be named by a link; within it no link is followed.
    let dir = shown.canonicalize().map_err(failed)?;
    secure_data_dir(&dir)?;
    let (lock, identity) = DirLock::take(&dir, shown)?;
    Ok((dir, lock, identity))
}

/// Who holds a lock, as its file says.
fn named_holder(file: &mut File) -> String {
    let mut holder = String::new();
    let _ = file.read_to_string(&mut holder);
    if holder.trim().is_empty() { "another process".to_owned() } else { holder.trim().to_owned() }
}

/// Who has a directory at this moment; none if nobody has. The directory has no link in it.
pub(super) fn holder(dir: &Path) -> io::Result<Option<String>> {
    let mut file = match owned_files::open(OpenOptions::new().read(true), &dir.join(LOCK)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    match file.try_lock_shared() {
        // It is released at once.
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => Ok(Some(named_holder(&mut file))),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Locks a file, unless another process has it. Who asks for [`holder`] has a shared lock for a moment, which is waited for.
fn lock(file: &File, mut pause: impl FnMut()) -> Result<(), TryLockError> {
    for _ in 1..LOCK_TRIES {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {}
            done => return done,
        }
        // That would block, too, if it were no shared lock.
        file.try_lock_shared()?;
        file.unlock().map_err(TryLockError::Error)?;
        pause();
    }
    file.try_lock()
}

/// Locks the directory until dropped; the operating system releases it even if the process is killed.
#[derive(Debug)]
pub(super) struct DirLock {
    _file: File,
}

impl DirLock {
    /// Locks the directory, which its user calls `shown`. Returns the identity of its lock file too, for later checks.
    fn take(dir: &Path, shown: &Path) -> Result<(Self, FileIdentity), Error> {
        let path = dir.join(LOCK);
        let failed = |source| file_error(&path, source);
        let mut file = owned_files::open(OpenOptions::new().read(true).write(true).create(true).truncate(false), &path).map_err(failed)?;
        match lock(&file, || thread::sleep(LOCK_PAUSE)) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Locked { path: shown.display().to_string(), holder: named_holder(&mut file) });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "process {}", std::process::id())).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        Ok((Self { _file: file }, FileIdentity::new(path, &found)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    #[test]
    fn who_only_looks_at_a_directory_keeps_no_server_from_it() {
        let dir = TempDir::new();
        let open = || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).open(dir.path().join(LOCK)).expect("a file")
        };
        let look = || {
            let file = open();
            file.try_lock_shared().expect("no server has it");
            Some(file)
        };
        let (server, mut looker) = (open(), look());
        lock(&server, || drop(looker.take())).expect("who looked has gone");
        let mut pauses = 0;
        let refused = lock(&open(), || pauses += 1);
        assert!(matches!(refused, Err(TryLockError::WouldBlock)), "{refused:?}");
        assert_eq!(pauses, 0, "a server is not waited for");
        drop(server);
        let looker = look();
        let refused = lock(&open(), || pauses += 1);
        assert!(matches!(refused, Err(TryLockError::WouldBlock)) && looker.is_some(), "{refused:?}");
        assert_eq!(pauses, LOCK_TRIES - 1, "nor is anybody for ever");
    }
}
