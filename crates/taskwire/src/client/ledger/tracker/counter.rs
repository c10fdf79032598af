//! A number at the beginning of a file, as memory: the kernel can be told to count there.
#![expect(unsafe_code, reason = "a file is mapped into memory")]

use std::{
    fs::File,
    io,
    ptr::{self, NonNull},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Bytes of the number.
pub(super) const COUNTER_BYTES: usize = 8;

/// The number. What is written to it is in the file, also if the process is killed the next moment.
///
/// Who makes one has the lock of the file: no other process of ours writes the number, the others read it from the file. The
/// file is never cut. A stranger who does cut it gets this process killed (SIGBUS), and nothing worse.
#[derive(Debug)]
pub(super) struct Counter(NonNull<AtomicU64>);

// SAFETY: the mapping is this one's own, and any thread may use it.
unsafe impl Send for Counter {}

impl Counter {
    /// The file is at least as long as the number.
    pub(super) fn map(file: &File) -> io::Result<Self> {
        // SAFETY: a mapping of its own at an address that the kernel chooses: no memory that is in use is touched.
        let at = unsafe { mmap(ptr::null_mut(), COUNTER_BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0) }?;
        // A mapping begins with a page, so the number is aligned.
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

    /// For the kernel to count in.
    pub(super) fn number(&mut self) -> &mut u64 {
        // Written once before: the page is at hand then, and the kernel need not fetch it while a kill is pending.
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
