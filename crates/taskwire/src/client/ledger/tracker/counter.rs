//! The counter at the beginning of a tracker's file, mapped into memory so that the kernel can advance it.
#![expect(unsafe_code, reason = "a file is mapped into memory")]

use std::{
    fs::File,
    io,
    ptr::{self, NonNull},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

pub(super) const COUNTER_BYTES: usize = 8;

/// A write to it is in the file at once, also if the process is killed the next moment.
///
/// Only the process that has the file's lock maps it; others read the file. Taskwire never truncates the file. If another
/// program does, SIGBUS kills this process, and nothing worse happens.
#[derive(Debug)]
pub(super) struct Counter(NonNull<AtomicU64>);

// SAFETY: the counter owns its mapping, and any thread may use it.
unsafe impl Send for Counter {}

impl Counter {
    /// Maps the counter. The file must have at least `COUNTER_BYTES` bytes.
    pub(super) fn map(file: &File) -> io::Result<Self> {
        // SAFETY: the kernel chooses the address of a new mapping, so it overlaps no memory in use.
        let at = unsafe { mmap(ptr::null_mut(), COUNTER_BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0) }?;
        // A mapping begins at a page, so the counter is aligned.
        NonNull::new(at.cast()).map(Self).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    pub(super) fn get(&self) -> u64 {
        // SAFETY: mapped for as long as `self` lives; whoever writes it has `&mut self`.
        unsafe { self.0.as_ref() }.load(Ordering::Relaxed)
    }

    pub(super) fn add(&mut self, count: u64) {
        let sum = self.get() + count;
        // SAFETY: as above.
        unsafe { self.0.as_ref() }.store(sum, Ordering::Relaxed);
    }

    /// The counter for the kernel to advance.
    pub(super) fn number(&mut self) -> &mut u64 {
        // A write brings the page into memory, so that the kernel need not fetch it while a kill is pending.
        self.add(0);
        // SAFETY: as above, and nobody else has a reference.
        unsafe { self.0.as_mut() }.get_mut()
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and no reference outlives `self`.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), COUNTER_BYTES) };
    }
}
