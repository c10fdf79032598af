//! The data directory, its disk, and how many files may be open.

use std::path::Path;

use rlimit::Resource;
use taskwire::{
    server,
    store::{DirectoryFindings, examine_directory},
};

use super::finding::Finding;
use crate::term::render::size;

const DIRECTORY: &str = "directory";
const DISK: &str = "disk";
const FILES: &str = "open files";
/// Files that a server opens besides connections: its store, its log, and some for each command that runs.
const OTHER_FILES: u64 = 256;

/// Looks at the directory and its disk. What was found there is there if it could be looked at.
pub(super) fn check(dir: &Path, settings: &server::Config) -> (Option<DirectoryFindings>, Vec<Finding>) {
    match examine_directory(dir) {
        Err(error) => (None, vec![Finding::fail(DIRECTORY, format!("{} cannot be looked at: {error}", dir.display()))]),
        Ok(found) => {
            let findings = vec![directory(dir, &found), disk(&found, settings.engine.limits.disk_reserve_bytes)];
            (Some(found), findings)
        }
    }
}

fn directory(dir: &Path, found: &DirectoryFindings) -> Finding {
    let (shown, mode) = (dir.display(), found.mode);
    match (&found.problem, &found.holder) {
        _ if !found.exists => Finding::ok(DIRECTORY, format!("{shown} is not there yet: the server makes it")),
        (Some(problem), _) => Finding::fail(DIRECTORY, problem.as_str()),
        _ if mode & 0o077 != 0 => Finding::warn(DIRECTORY, format!("other users can look into {shown} (mode {mode:04o})"))
            .so("the next start changes that, or `chmod 700` does"),
        (None, Some(holder)) => Finding::ok(DIRECTORY, format!("{shown} is in use by {holder}, mode {mode:04o}")),
        (None, None) => Finding::ok(DIRECTORY, format!("{shown} is in use by nobody, mode {mode:04o}")),
    }
}

fn disk(found: &DirectoryFindings, reserve: u64) -> Finding {
    let Some(free) = found.free_bytes else { return Finding::ok(DISK, "it does not say how much room it has") };
    let room = format!("{} are free, and the server leaves {} alone (`limits.disk_reserve_bytes`)", size(free), size(reserve));
    if free < reserve {
        Finding::fail(DISK, room).so("no task is made until there is room again")
    } else if free / 2 < reserve {
        Finding::warn(DISK, room).so("make room soon")
    } else {
        Finding::ok(DISK, room)
    }
}

/// Whether as many connections as are allowed can be open.
pub(super) fn open_files(settings: &server::Config) -> Finding {
    match Resource::NOFILE.get() {
        Err(error) => Finding::warn(FILES, format!("the limit cannot be read: {error}")),
        Ok((soft, hard)) => limit(soft, hard, settings.http.connections as u64),
    }
}

fn limit(soft: u64, hard: u64, connections: u64) -> Finding {
    let found = format!("the limit is {soft}, which the server raises to {hard}; `http.connections` is {connections}");
    if hard < connections.saturating_add(OTHER_FILES) {
        return Finding::warn(FILES, found).so("allow more (`LimitNOFILE=` of a unit, `ulimit -Hn`), or fewer connections");
    }
    Finding::ok(FILES, found)
}

#[cfg(test)]
mod tests {
    use super::{super::finding::Status, *};

    #[test]
    fn a_disk_that_is_nearly_full_fails_or_warns() {
        let status = |free: Option<u64>| {
            let mut found = DirectoryFindings::default();
            found.free_bytes = free;
            disk(&found, 1_000).status
        };
        assert_eq!([Some(999), Some(1_999), Some(2_000), None].map(status), [Status::Fail, Status::Warn, Status::Ok, Status::Ok]);
        let none = disk(&DirectoryFindings::default(), 0).status;
        assert_eq!(none, Status::Ok);
    }

    #[test]
    fn fewer_files_than_connections_warn() {
        assert_eq!(limit(1_024, 1_048_576, 10_000).status, Status::Ok);
        let few = limit(1_024, 4_096, 10_000);
        assert!(few.status == Status::Warn && few.text().contains("LimitNOFILE="), "{}", few.text());
        assert_eq!(limit(0, u64::MAX, u64::MAX).status, Status::Ok);
    }
}
