//! Writes people's files: as a whole or not at all, with a backup of what was there.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Bytes of a file that is read to be changed. Files of settings are much smaller.
const BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Backups of one file.
const BACKUPS_MAX: usize = 99;

/// The content of a file; `None` if there is none.
///
/// # Errors
/// When it cannot be read, is no text, or is too large to be what it should be.
pub(super) fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // A dangling link: only its owner knows what should be there.
            if fs::symlink_metadata(path).is_ok() { Err(io::Error::other("it is a link that leads nowhere")) } else { Ok(None) }
        }
        Err(error) => Err(error),
        Ok(about) if !about.is_file() => Err(io::Error::other("it is no file")),
        Ok(about) if about.len() > BYTES_MAX => Err(io::Error::other(format!("it has more than {} MiB", BYTES_MAX >> 20))),
        Ok(_) => fs::read_to_string(path).map(Some),
    }
}

/// Writes a file that is not there yet.
///
/// # Errors
/// When it is there, or cannot be written; then nothing is left of it.
pub(super) fn create(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).inspect_err(|_| {
        let _ = fs::remove_file(path);
    })
}

/// Writes `new` where `old` was read, with the same permissions, and keeps `old` beside it; returns the backup's path.
///
/// # Errors
/// When the file cannot be written, or somebody else has changed it since it was read. It is as it was then.
pub(super) fn replace(path: &Path, old: &str, new: &str) -> io::Result<PathBuf> {
    // Follow a link to the file itself: people who keep their settings elsewhere go on doing so.
    let path = fs::canonicalize(path)?;
    let permissions = fs::metadata(&path)?.permissions();
    let unnamed = || io::Error::other("it has no name");
    let name = path.file_name().ok_or_else(unnamed)?.to_string_lossy().into_owned();
    let backup = back_up(&path, &name, old, &permissions)?;
    let fresh = path.with_file_name(format!(".{name}.taskwire-{}", std::process::id()));
    let written = create(&fresh, new).and_then(|()| {
        fs::set_permissions(&fresh, permissions)?;
        if fs::read_to_string(&path)? != old {
            return Err(io::Error::other("somebody else has changed it in this moment: try again"));
        }
        fs::rename(&fresh, &path)
    });
    match written {
        Ok(()) => Ok(backup),
        Err(error) => {
            let _ = fs::remove_file(&fresh);
            let _ = fs::remove_file(&backup);
            Err(error)
        }
    }
}

/// Writes a backup beside a file, never over another backup.
fn back_up(path: &Path, name: &str, text: &str, permissions: &fs::Permissions) -> io::Result<PathBuf> {
    for n in 1..=BACKUPS_MAX {
        let number = if n == 1 { String::new() } else { n.to_string() };
        let backup = path.with_file_name(format!("{name}.bak{number}"));
        match create(&backup, text) {
            Ok(()) => {
                fs::set_permissions(&backup, permissions.clone())?;
                return Ok(backup);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(format!("there are {BACKUPS_MAX} backups of it already: remove some ({name}.bak…)")))
}
