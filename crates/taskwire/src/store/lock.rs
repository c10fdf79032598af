//! One process at a time may have a data directory; a second one learns who the first is.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Read, Seek, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use super::Error;

/// Holds the directory until dropped; the operating system lets go even if the process is killed.
#[derive(Debug)]
pub(super) struct DirLock {
    file: File,
    path: PathBuf,
}

impl DirLock {
    pub(super) fn take(dir: &Path) -> Result<Self, Error> {
        let path = dir.join("lock");
        let failed = |source| Error::File { path: path.display().to_string(), source };
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                let holder = if holder.trim().is_empty() { "another process".to_owned() } else { holder.trim().to_owned() };
                return Err(Error::Locked { path: dir.display().to_string(), holder });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "process {}", std::process::id())).map_err(failed)?;
        // Wherever this process goes from here.
        let path = std::path::absolute(&path).map_err(failed)?;
        Ok(Self { file, path })
    }

    /// Whether the directory that is held is the one that others find. What is written to one that was removed is lost.
    pub(super) fn is_there(&self) -> bool {
        let name = |data: std::fs::Metadata| (data.dev(), data.ino());
        let (held, found) = (self.file.metadata().map(name), std::fs::metadata(&self.path).map(name));
        matches!((held, found), (Ok(held), Ok(found)) if held == found)
    }
}
