//! What the operating system says about this process. What it does not say is left out.

use std::fs;

use rustix::{
    process::{Resource, getrlimit},
    time::{ClockId, clock_gettime},
};

/// The numbers that every program tells under the same names.
#[derive(Debug)]
pub(super) struct Process {
    /// Processor time, in seconds.
    pub(super) cpu: f64,
    /// Bytes in memory.
    pub(super) resident: Option<u64>,
    pub(super) open_files: Option<u64>,
    pub(super) max_files: Option<u64>,
}

impl Process {
    pub(super) fn read() -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        Self {
            cpu: cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
            resident: memory(RESIDENT),
            // One of them is the directory itself.
            open_files: fs::read_dir("/proc/self/fd").ok().map(|files| files.count().saturating_sub(1) as u64),
            max_files: getrlimit(Resource::Nofile).current,
        }
    }
}

/// The lines of `/proc/PID/status` that say how much is in memory: all, and what is no copy of a file.
const RESIDENT: &str = "VmRSS:";
const ANONYMOUS: &str = "RssAnon:";

/// Bytes in memory that this process alone has. What it reads from files can be dropped, and does not count.
pub(crate) fn own_memory() -> Option<u64> {
    memory(ANONYMOUS)
}

fn memory(kind: &str) -> Option<u64> {
    fs::read_to_string("/proc/self/status").ok().and_then(|status| bytes(&status, kind))
}

/// Bytes of one kind, from `/proc/PID/status`.
fn bytes(status: &str, kind: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(kind))?;
    Some(line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_the_status_of_a_process() {
        let status = "Name:\tx\nVmPeak:\t  99 kB\nVmRSS:\t    1234 kB\nRssAnon:\t    1000 kB\nVmSwap:\t0 kB\n";
        assert_eq!([RESIDENT, ANONYMOUS].map(|kind| bytes(status, kind)), [Some(1234 * 1024), Some(1000 * 1024)]);
        for odd in ["", "VmRSS:", "VmRSS:\t1234", "VmRSS:\tmany kB"] {
            assert_eq!(bytes(odd, RESIDENT), None, "{odd}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_has_memory_and_files() {
        let process = Process::read();
        assert!(process.cpu > 0.0 && process.resident > Some(100_000), "{process:?}");
        assert!(process.open_files > Some(2), "{process:?}");
        assert!(own_memory() > Some(10_000) && own_memory() < process.resident, "{process:?}");
    }
}
