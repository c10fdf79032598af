//! Checks that files belong to this user, and that nobody else can write them, before this process trusts, runs or overwrites them.

use std::{
    fs::{self, File, FileType, Metadata, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    path::Path,
};

use rustix::{fs::OFlags, process::geteuid};

/// The bits of a mode that let others than the owner write.
const OTHERS_WRITE: u32 = 0o022;

/// What a path must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileKind {
    Directory,
    File,
    Socket,
}

impl FileKind {
    fn is(self, found: FileType) -> bool {
        match self {
            Self::Directory => found.is_dir(),
            Self::File => found.is_file(),
            Self::Socket => found.is_socket(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Directory => "a directory",
            Self::File => "a plain file",
            Self::Socket => "a socket",
        }
    }
}

/// Checks that what is at `path` is this user's; returns whether there is anything. A link is not followed.
///
/// # Errors
/// The text says what is wrong and how to fix it; such an error has no OS code.
pub(crate) fn check(path: &Path, kind: FileKind) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(found) => judge(&found, path, kind).map(|()| true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Opens a file that is this user's, or makes it for this user alone if `options` say so. A link is not followed.
///
/// # Errors
/// As for [`check`], and errors of the OS.
pub(crate) fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    // For a better error: that of the OS speaks of levels of links.
    check(path, FileKind::File)?;
    let file = options.mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(path)?;
    judge(&file.metadata()?, path, FileKind::File)?;
    Ok(file)
}

fn judge(found: &Metadata, path: &Path, kind: FileKind) -> io::Result<()> {
    let (shown, mode, owner, me) = (path.display(), found.mode() & 0o777, found.uid(), geteuid().as_raw());
    let why = if found.file_type().is_symlink() {
        format!("{shown} is a symbolic link, and is not followed: remove it")
    } else if !kind.is(found.file_type()) {
        format!("{shown} is not {}: remove it", kind.name())
    } else if owner != me {
        format!(
            "{shown} belongs to user {owner}, and this process runs as user {me}: if you trust all that is in it, `chown -R {me} {shown}`; \
             else choose another directory, which is made if it is not there"
        )
    } else if kind == FileKind::Directory && mode & OTHERS_WRITE != 0 {
        format!(
            "{shown} can be written by other users (mode {mode:04o}), and what is in it may be theirs: if you trust all of it, \
             `chmod 700 {shown}`; else choose another directory, which is made if it is not there"
        )
    } else if kind == FileKind::File && mode & OTHERS_WRITE != 0 {
        format!("{shown} can be written by other users (mode {mode:04o}), and may be theirs: if you trust it, `chmod 600 {shown}`")
    } else if kind == FileKind::File && found.nlink() > 1 {
        format!("{shown} has other names (hard links), and would be changed under all of them: put a copy in its place")
    } else {
        return Ok(());
    };
    Err(io::Error::new(ErrorKind::PermissionDenied, why))
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};

    use super::*;
    use crate::testing::TempDir;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
    }

    #[track_caller]
    fn refused<T: std::fmt::Debug>(result: io::Result<T>, words: &str) {
        let error = result.expect_err("it is refused");
        assert!(error.raw_os_error().is_none() && error.to_string().contains(words), "{error}");
    }

    #[test]
    fn what_others_can_write_is_refused_with_what_mends_it() {
        let dir = TempDir::new();
        let inner = dir.0.join("inner");
        assert!(!check(&inner, FileKind::Directory).expect("nothing is wrong with nothing"));
        fs::create_dir(&inner).expect("made");
        for mode in [0o770, 0o702, 0o777, 0o722] {
            set_mode(&inner, mode);
            refused(check(&inner, FileKind::Directory), &format!("(mode {mode:04o})"));
            refused(check(&inner, FileKind::Directory), &format!("`chmod 700 {}`", inner.display()));
        }
        for mode in [0o700, 0o755, 0o500] {
            set_mode(&inner, mode);
            assert!(check(&inner, FileKind::Directory).expect("only we can write"));
        }
        let file = dir.0.join("file");
        open(OpenOptions::new().write(true).create(true).truncate(false), &file).expect("made");
        assert_eq!(fs::metadata(&file).expect("there").mode() & 0o777, 0o600);
        set_mode(&file, 0o620);
        refused(open(OpenOptions::new().read(true), &file), &format!("`chmod 600 {}`", file.display()));
    }

    #[test]
    fn links_and_what_is_something_else_are_refused() {
        let dir = TempDir::new();
        let (file, link, hard) = (dir.0.join("file"), dir.0.join("link"), dir.0.join("hard"));
        fs::write(&file, "precious").expect("written");
        set_mode(&file, 0o600);
        std::os::unix::fs::symlink(&file, &link).expect("linked");
        refused(open(OpenOptions::new().write(true), &link), "symbolic link");
        refused(check(&dir.0, FileKind::File), "not a plain file");
        refused(check(&file, FileKind::Directory), "not a directory");
        refused(check(&file, FileKind::Socket), "not a socket");
        assert!(open(OpenOptions::new().read(true), &file).is_ok());
        fs::hard_link(&file, &hard).expect("linked");
        refused(open(OpenOptions::new().write(true), &file), "hard links");
        let missing = open(OpenOptions::new().read(true), &dir.0.join("none")).expect_err("nothing is there");
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn what_belongs_to_somebody_else_is_refused() {
        // Only root can change the owner of a file; any other user finds one of root's.
        let (dir, root) = (TempDir::new(), geteuid().is_root());
        let theirs = if root { dir.0.join("theirs") } else { "/".into() };
        if root {
            fs::create_dir(&theirs).expect("made");
            std::os::unix::fs::chown(&theirs, Some(12_345), None).expect("given away");
        }
        refused(check(&theirs, FileKind::Directory), if root { "belongs to user 12345" } else { "belongs to user 0" });
        refused(check(&theirs, FileKind::Directory), "`chown -R ");
    }
}
