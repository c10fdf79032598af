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
            resident: fs::read_to_string("/proc/self/status").ok().and_then(|status| resident(&status)),
            // One of them is the directory itself.
            open_files: fs::read_dir("/proc/self/fd").ok().map(|files| files.count().saturating_sub(1) as u64),
            max_files: getrlimit(Resource::Nofile).current,
        }
    }
}

/// Bytes in memory, from `/proc/PID/status`.
fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_the_status_of_a_process() {
        assert_eq!(resident("Name:\tx\nVmPeak:\t  99 kB\nVmRSS:\t    1234 kB\nVmSwap:\t0 kB\n"), Some(1234 * 1024));
        for odd in ["", "VmRSS:", "VmRSS:\t1234", "VmRSS:\tmany kB"] {
            assert_eq!(resident(odd), None, "{odd}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_has_memory_and_files() {
        let process = Process::read();
        assert!(process.cpu > 0.0 && process.resident > Some(100_000), "{process:?}");
        assert!(process.open_files > Some(2), "{process:?}");
    }
}
