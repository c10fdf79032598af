//! Writing and counting in one system call.
//!
//! `sendfile` copies from a file to wherever it is to go, and advances the position that it is given before a kill can take
//! effect. Here the file is a copy of the text in memory, and the position the number of bytes that were ever sent.

use std::{fs::File, os::fd::BorrowedFd};

use rustix::io::Errno;

/// A copy of the text, to be sent as what follows so many bytes. A new one each time: a pipe holds on to its pages. Nothing if
/// there can be none.
#[cfg(target_os = "linux")]
pub(super) fn copy(text: &[u8], sent: u64) -> Option<File> {
    use std::os::unix::fs::FileExt;

    use rustix::fs::{MemfdFlags, memfd_create};

    let copy = File::from(memfd_create("taskwire", MemfdFlags::CLOEXEC).ok()?);
    copy.write_all_at(text, sent).ok()?;
    Some(copy)
}

/// Sends up to `count` bytes of the copy from position `sent` on, and advances that by as many as were.
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
