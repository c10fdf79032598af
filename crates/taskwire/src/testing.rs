//! What all tests share: the unit tests of this crate and, by the path of this file, its other tests and those of the program.

use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// A directory that is removed after its test. If the test fails, it stays and its path is printed.
#[derive(Debug)]
pub(crate) struct TempDir(pub(crate) PathBuf);

impl TempDir {
    /// Makes it for this user alone, whatever the umask is.
    pub(crate) fn new() -> Self {
        let dir = Self::absent();
        fs::DirBuilder::new().mode(0o700).create(&dir.0).expect("a temporary directory");
        dir
    }

    /// Only a path: the code that is tested makes the directory.
    pub(crate) fn absent() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("taskwire-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        // A killed run of a process with the same number may have left one.
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("what the test left is in {}", self.0.display());
        } else {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}
