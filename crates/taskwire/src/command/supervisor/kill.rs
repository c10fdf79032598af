//! Finds all processes of a command, and ends them.
//!
//! Orphans become children of the supervisor, so a process that detaches itself is still below it in the process tree: while the supervisor
//! has a child, some process of the command is left. If the supervisor itself was killed, the server finds the rest by a variable in their
//! environment, and signals no process without it, because process ids are used again. A supervisor that was halted is resumed, or killed
//! with all that is below it.

use std::{
    collections::{BTreeSet, HashMap},
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt,
    path::Path,
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, getpgrp, kill_process, kill_process_group};

use super::{CLEAN_MARKER, canonical_dir, cgroup, is_alive};
use crate::command::{definition::DIR_VARIABLE, journal};

/// How often we look for orphans at most, and how long we wait in between.
const LOOKS_MAX: u32 = 500;
const LOOK_PAUSE: Duration = Duration::from_millis(10);
/// A process that is executing another program has no environment for a moment. So often in a row we must find nothing.
const LOOKS_EMPTY: u32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessStat {
    pid: u32,
    parent: u32,
    group: u32,
    /// With the pid, this identifies one process.
    started: u64,
    /// It has ended, but its parent has not reaped it.
    is_zombie: bool,
}

/// Parses `/proc/PID/stat`. The process chooses the name in it, with any brackets, blanks and line breaks.
fn parse_stat(bytes: &[u8]) -> Option<ProcessStat> {
    let (open, close) = (memchr::memchr(b'(', bytes)?, memchr::memrchr(b')', bytes)?);
    let pid = std::str::from_utf8(&bytes[..open]).ok()?.trim().parse().ok()?;
    let fields: Vec<&str> = std::str::from_utf8(bytes.get(close + 1..)?).ok()?.split_ascii_whitespace().collect();
    // A group or a parent in another namespace is 0.
    let field = |n: usize| fields.get(n)?.parse::<u64>().ok();
    let small = |n: usize| u32::try_from(field(n)?).ok();
    let is_over = matches!(*fields.first()?, "Z" | "X");
    Some(ProcessStat { pid, parent: small(1)?, group: small(2)?, started: field(19)?, is_zombie: is_over })
}

fn stat(pid: u32) -> Option<ProcessStat> {
    parse_stat(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// All processes; none where the system has no such list.
fn all_processes() -> Vec<ProcessStat> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| stat(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// All processes below `root`.
fn descendants(all: &[ProcessStat], root: u32) -> Vec<ProcessStat> {
    let mut children: HashMap<u32, Vec<ProcessStat>> = HashMap::new();
    for stat in all {
        children.entry(stat.parent).or_default().push(*stat);
    }
    let mut found = Vec::new();
    let mut open = vec![root];
    while let Some(pid) = open.pop() {
        // Removing the children makes this end even if the list contradicts itself.
        for child in children.remove(&pid).unwrap_or_default().into_iter().filter(|child| child.pid != root) {
            open.push(child.pid);
            found.push(child);
        }
    }
    found
}

/// Signals a process if `is_it` still says that it is the right one.
fn signal_if(pid: u32, signal: Signal, is_it: impl Fn() -> bool) -> bool {
    // Process 1 is never signalled; 0 and negative numbers mean many.
    let Some(pid) = i32::try_from(pid).ok().filter(|pid| *pid > 1).and_then(Pid::from_raw) else { return false };
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
        // A pidfd never refers to another process, even if the pid is used again after the check.
        if let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) {
            return is_it() && pidfd_send_signal(&process, signal).is_ok();
        }
    }
    is_it() && kill_process(pid, signal).is_ok()
}

fn signal_group(group: u32, signal: Signal) -> bool {
    // Group 1 would mean all processes.
    let group = i32::try_from(group).ok().filter(|group| *group > 1).and_then(Pid::from_raw);
    group.is_some_and(|group| kill_process_group(group, signal).is_ok())
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Processes<'a> {
    pub(super) group: u32,
    /// Whether the command's own process was not reaped yet: until then nobody else can get its group's number.
    pub(super) is_leader_unreaped: bool,
    pub(super) cgroup: Option<&'a Path>,
}

impl Processes<'_> {
    /// Sends SIGTERM to all of them, then SIGCONT, so that halted ones end too.
    pub(super) fn terminate(&self) {
        let family = descendants(&all_processes(), std::process::id());
        let by_group = self.is_leader_unreaped || family.is_empty();
        for signal in [Signal::TERM, Signal::CONT] {
            if by_group {
                signal_group(self.group, signal);
            }
            for one in family.iter().filter(|one| !by_group || one.group != self.group) {
                signal_one(one, signal);
            }
            for pid in self.others(&family) {
                self.signal_member(pid, signal);
            }
        }
    }

    /// Kills all of them. Processes that start meanwhile may be left, so call it until none is.
    pub(super) fn kill(&self) {
        if let Some(cgroup) = self.cgroup {
            cgroup::kill(cgroup);
        }
        let family = descendants(&all_processes(), std::process::id());
        if self.is_leader_unreaped || family.is_empty() {
            signal_group(self.group, Signal::KILL);
        }
        // Groups first: a process that starts in a group while it is killed is killed too.
        let own = u32::try_from(getpgrp().as_raw_nonzero().get()).unwrap_or_default();
        let groups: BTreeSet<u32> = family.iter().map(|one| one.group).filter(|group| *group != own).collect();
        for group in groups {
            signal_group(group, Signal::KILL);
        }
        for one in &family {
            signal_one(one, Signal::KILL);
        }
        for pid in self.others(&family) {
            self.signal_member(pid, Signal::KILL);
        }
    }

    pub(super) fn remaining(&self) -> Vec<u32> {
        let family = descendants(&all_processes(), std::process::id());
        let others = self.others(&family);
        family.into_iter().map(|one| one.pid).chain(others).collect()
    }

    /// Processes in the control group that are not in the process tree, because they went to another namespace.
    fn others(&self, family: &[ProcessStat]) -> Vec<u32> {
        let own = std::process::id();
        let members = self.cgroup.map(cgroup::members).unwrap_or_default();
        members.into_iter().filter(|pid| *pid != own && family.iter().all(|one| one.pid != *pid)).collect()
    }

    fn signal_member(&self, pid: u32, signal: Signal) {
        signal_if(pid, signal, || self.cgroup.is_some_and(|cgroup| cgroup::members(cgroup).contains(&pid)));
    }
}

fn signal_one(one: &ProcessStat, signal: Signal) {
    signal_if(one.pid, signal, || stat(one.pid).is_some_and(|now| now.started == one.started));
}

/// The variable that the job's processes have in their environment.
fn marker(dir: &Path) -> Vec<u8> {
    [DIR_VARIABLE.as_bytes(), b"=", canonical_dir(dir).as_os_str().as_bytes()].concat()
}

/// Whether an environment, as the system shows it, has exactly this entry.
fn has_marker(environment: &[u8], marker: &[u8]) -> bool {
    environment.split(|byte| *byte == 0).any(|entry| entry == marker)
}

fn is_marked(pid: u32, marker: &[u8]) -> bool {
    fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| has_marker(&environment, marker))
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Orphans {
    pids: Vec<u32>,
    /// The command's process group; None if no marked process is in it, because then it may be another's.
    group: Option<u32>,
}

fn orphans(marked: &[ProcessStat], began: Option<u32>, own: u32) -> Orphans {
    let others: Vec<&ProcessStat> = marked.iter().filter(|one| one.pid != own).collect();
    let group = began.filter(|group| others.iter().any(|one| one.group == *group));
    Orphans { pids: others.iter().map(|one| one.pid).collect(), group }
}

/// Kills what is left of a job whose supervisor is gone. Does nothing if the supervisor left nothing, or left it on purpose. Blocks until
/// all is gone.
pub(crate) fn kill_orphans(dir: &Path) {
    if dir.join(CLEAN_MARKER).exists() {
        return;
    }
    let began = journal::job_start(dir);
    let group = began.as_ref().map(|began| began.pid);
    // A supervisor that was killed early has not written which control group it made.
    let mut cgroups = cgroup::all_for_job(dir);
    cgroups.extend(began.and_then(|began| began.cgroup).filter(|path| cgroup::is_for_job(path, dir) && !cgroups.contains(path)));
    let (marker, own) = (marker(dir), std::process::id());
    let mut empty = 0;
    for _ in 0..LOOKS_MAX {
        cgroups.iter().filter(|path| !cgroup::is_empty(path)).for_each(|path| cgroup::kill(path));
        let marked: Vec<ProcessStat> = all_processes().into_iter().filter(|one| is_marked(one.pid, &marker)).collect();
        let orphans = orphans(&marked, group, own);
        if let Some(group) = orphans.group {
            signal_group(group, Signal::KILL);
        }
        for pid in &orphans.pids {
            signal_if(*pid, Signal::KILL, || is_marked(*pid, &marker));
        }
        empty = if orphans == Orphans::default() && cgroups.iter().all(|path| cgroup::is_empty(path)) { empty + 1 } else { 0 };
        if empty == LOOKS_EMPTY {
            break;
        }
        thread::sleep(LOOK_PAUSE);
    }
    cgroups.iter().for_each(|path| cgroup::remove(path));
}

/// Whether this process was started as the supervisor of the job in `dir`, and one runs.
fn is_supervisor(pid: u32, dir: &Path) -> bool {
    let is_meant = match fs::read(format!("/proc/{pid}/cmdline")) {
        Ok(words) => {
            let last = words.split(|byte| *byte == 0).rfind(|word| !word.is_empty());
            last.is_some_and(|last| canonical_dir(Path::new(OsStr::from_bytes(last))) == canonical_dir(dir))
        }
        // Where the system has no `/proc`, it must do that a supervisor runs.
        Err(_) => !Path::new("/proc/self").exists(),
    };
    is_meant && is_alive(dir)
}

/// Resumes the supervisor, if it was halted.
pub(crate) fn resume_supervisor(dir: &Path, supervisor: u32) {
    signal_if(supervisor, Signal::CONT, || is_supervisor(supervisor, dir));
}

/// Kills a supervisor that does not stop, after all processes below it. Blocks until they are gone.
pub(crate) fn kill_supervisor(dir: &Path, supervisor: u32) {
    let signal = |signal: Signal| signal_if(supervisor, signal, || is_supervisor(supervisor, dir));
    // While the supervisor exists, orphans become its children, and are found.
    if !signal(Signal::STOP) {
        return;
    }
    for _ in 0..LOOKS_MAX {
        let family = descendants(&all_processes(), supervisor);
        let left: Vec<&ProcessStat> = family.iter().filter(|one| !one.is_zombie).collect();
        if left.is_empty() {
            break;
        }
        left.iter().for_each(|one| signal_one(one, Signal::KILL));
        thread::sleep(LOOK_PAUSE);
    }
    for _ in 0..LOOKS_MAX {
        if !signal(Signal::KILL) {
            break;
        }
        thread::sleep(LOOK_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader},
        os::unix::process::ExitStatusExt,
        process::{Command, Stdio},
    };

    use super::*;
    use crate::testing::TempDir;

    fn one(pid: u32, parent: u32, group: u32) -> ProcessStat {
        ProcessStat { pid, parent, group, started: u64::from(pid), is_zombie: false }
    }

    #[test]
    fn a_process_may_be_called_anything() {
        let rest = "S 7 8 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 1000 200 18446744073709551615 1\n";
        let names: [&[u8]; 7] = [b"sh", b"", b"a) R 1 1 1", b"((", b") S 1 2 (", b"x\ny) Z 0 0\n", b"\xff\xfe)"];
        for name in names {
            let text = [&b"42 ("[..], name, b") ", rest.as_bytes()].concat();
            assert_eq!(parse_stat(&text), Some(ProcessStat { pid: 42, parent: 7, group: 8, started: 12345, is_zombie: false }), "{name:?}");
        }
        assert!(parse_stat(format!("42 (sh) Z{}", &rest[1..]).as_bytes()).is_some_and(|one| one.is_zombie));
    }

    #[test]
    fn what_is_not_about_a_process_is_passed_over() {
        for text in
            ["", "42", "42 (sh", "42 (sh)", "42 (sh) S", "x (sh) S 1 2 3", ")(", "42 (sh) S -1 2 3 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 5"]
        {
            assert_eq!(parse_stat(text.as_bytes()), None, "{text}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_found() {
        let own = std::process::id();
        assert!(all_processes().iter().any(|one| one.pid == own));
        assert_eq!(stat(own).map(|one| one.pid), Some(own));
    }

    #[test]
    fn all_that_come_from_a_process_are_found_and_no_others() {
        let all = [one(1, 0, 1), one(10, 1, 10), one(20, 10, 20), one(31, 20, 20), one(30, 20, 20), one(40, 31, 40), one(50, 1, 50)];
        let mut found: Vec<u32> = descendants(&all, 10).iter().map(|one| one.pid).collect();
        found.sort_unstable();
        assert_eq!(found, [20, 30, 31, 40]);
        assert!(descendants(&all, 50).is_empty());
        assert!(descendants(&all, 99).is_empty());
        // Read one after the other, while they change, they may seem to go round in circles.
        let circle = [one(10, 30, 1), one(20, 10, 1), one(30, 20, 1)];
        assert_eq!(descendants(&circle, 10).len(), 2);
    }

    #[test]
    fn a_marker_is_one_whole_entry() {
        let marker = b"TASKWIRE_TASK_DIR=/data/spool/a.1";
        let has = |environment: &[u8]| has_marker(environment, marker);
        assert!(has(b"TASKWIRE_TASK_DIR=/data/spool/a.1"));
        assert!(has(b"A=1\0TASKWIRE_TASK_DIR=/data/spool/a.1\0B=2\0"));
        assert!(!has(b""));
        assert!(!has(b"TASKWIRE_TASK_DIR=/data/spool/a.12\0"));
        assert!(!has(b"TASKWIRE_TASK_DIR=/data/spool/a\0.1"));
        assert!(!has(b"X=TASKWIRE_TASK_DIR=/data/spool/a.1\0"));
        assert!(!has(b"OLD_TASKWIRE_TASK_DIR=/data/spool/a.1\0"));
        assert!(!has(b"A=1 TASKWIRE_TASK_DIR=/data/spool/a.1\0"));
    }

    #[test]
    fn a_group_is_killed_only_with_one_of_ours_in_it() {
        let marked = [one(20, 1, 20), one(30, 1, 30), one(7, 1, 99)];
        assert_eq!(orphans(&marked, Some(30), 7), Orphans { pids: vec![20, 30], group: Some(30) });
        assert_eq!(orphans(&marked, Some(40), 7), Orphans { pids: vec![20, 30], group: None });
        // We are in it, but that proves nothing.
        assert_eq!(orphans(&marked, Some(99), 7).group, None);
        assert_eq!(orphans(&marked, None, 7).group, None);
        assert_eq!(orphans(&[], Some(30), 7), Orphans::default());
    }

    #[test]
    fn numbers_that_mean_many_are_never_signalled() {
        for pid in [0, 1, u32::MAX, 1 << 31] {
            assert!(!signal_if(pid, Signal::CONT, || panic!("must not be asked")));
            assert!(!signal_group(pid, Signal::CONT));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn who_was_not_started_for_a_run_is_not_taken_for_its_supervisor() {
        let dir = TempDir::new();
        let mut other = Command::new("sleep").args(["600"]).spawn().expect("started");
        fs::write(dir.0.join("lock"), "").expect("written");
        let lock = fs::File::open(dir.0.join("lock")).expect("there");
        lock.lock().expect("locked");
        assert!(!is_supervisor(other.id(), &dir.0));
        kill_supervisor(&dir.0, other.id());
        assert!(other.try_wait().expect("asked").is_none());
        other.kill().expect("killed");
        other.wait().expect("ended");
        assert!(!is_supervisor(other.id(), &dir.0), "nor is one that is gone");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn orphans_of_a_run_are_killed_and_nobody_else() {
        let (dir, other) = (TempDir::new(), TempDir::new());
        let start = |dir: &Path| {
            let mut command = Command::new("sh");
            command.args(["-c", "trap '' TERM; echo up; exec sleep 600"]).env(DIR_VARIABLE, canonical_dir(dir)).stdout(Stdio::piped());
            let mut child = command.spawn().expect("started");
            let mut line = String::new();
            BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("read");
            child
        };
        let (mut ours, mut theirs) = (start(&dir.0), start(&other.0));
        // Takes note of its end, as the system does for orphans.
        let waits = thread::spawn(move || ours.wait().expect("ended"));
        kill_orphans(&dir.0);
        assert_eq!(waits.join().expect("waited").signal(), Some(9));
        assert!(theirs.try_wait().expect("asked").is_none());
        // What is left on purpose stays.
        fs::write(other.0.join(CLEAN_MARKER), "").expect("written");
        kill_orphans(&other.0);
        assert!(theirs.try_wait().expect("asked").is_none());
        theirs.kill().expect("killed");
        theirs.wait().expect("ended");
    }
}
