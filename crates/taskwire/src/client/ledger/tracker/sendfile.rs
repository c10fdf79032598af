//! Writes and counts in one system call.
//!
//! `sendfile` copies from a file to the output, and advances an offset before a kill can take effect. Here the file is a
//! copy of the text in memory, and the offset is the tracker's counter.

use std::{fs::File, os::fd::BorrowedFd};

use rustix::io::Errno;

/// Copies the text to offset `sent` of a new file in memory: a pipe may still hold the pages of an earlier one. None if the
/// system refuses.
#[cfg(target_os = "linux")]
pub(super) fn copy(text: &[u8], sent: u64) -> Option<File> {
    use std::os::unix::fs::FileExt;

    use rustix::fs::{MemfdFlags, memfd_create};

    let copy = File::from(memfd_create("taskwire", MemfdFlags::CLOEXEC).ok()?);
    copy.write_all_at(text, sent).ok()?;
    Some(copy)
}

/// Sends up to `count` bytes of the copy from offset `sent` on, and advances `sent` by the number of bytes sent.
#[cfg(target_os = "linux")]
pub(super) fn send(out: BorrowedFd<'_>, copy: &File, sent: &mut u64, count: usize) -> Result<usize, Errno> {
    rustix::fs::sendfile(out, copy, Some(sent), count)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn copy(_text: &[u8], _sent: u64) -> Option<File> {
    None
}

#[cfg(not(target_os = "linux"))]
pub(super) fn send(_out: BorrowedFd<'_>, _copy: &File, _sent: &mut u64, _count: usize) -> Result<usize, Errno> {
    Err(Errno::NOSYS)
}
