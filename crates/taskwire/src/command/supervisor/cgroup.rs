//! A control group for the command, where we may make one: no process gets out of it, and all in it can be killed at once.
//!
//! Without one (no cgroup v2, or no permission) the supervisor finds the processes by their parents.

use std::{
    fs, io,
    path::{Component, Path, PathBuf},
};

use rustix::process::{Pid, Signal, kill_process};

const PREFIX: &str = "taskwire-";
const MEMBERS: &str = "cgroup.procs";

#[derive(Debug)]
pub(super) struct Cgroup {
    path: PathBuf,
    /// The supervisor's own group.
    parent: PathBuf,
}

impl Cgroup {
    /// Makes a group below our own, for the job in `dir`.
    pub(super) fn make(dir: &Path) -> Option<Self> {
        let name = format!("{}.{}", name(dir)?, std::process::id());
        own_groups().into_iter().find_map(|home| {
            let path = home.join(&name);
            fs::create_dir(&path).ok()?;
            if path.join(MEMBERS).exists() {
                return Some(Self { path, parent: home });
            }
            let _ = fs::remove_dir(&path);
            None
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Moves this process in, so that its children start there.
    pub(super) fn enter(&self) -> io::Result<()> {
        fs::write(self.path.join(MEMBERS), "0")
    }

    pub(super) fn leave(&self) -> io::Result<()> {
        fs::write(self.parent.join(MEMBERS), "0")
    }
}

/// All groups that were made for the job in `dir`, as far as they are below our own.
pub(super) fn all_for_job(dir: &Path) -> Vec<PathBuf> {
    own_groups().iter().flat_map(|home| below(home)).filter(|path| is_for_job(path, dir)).collect()
}

fn own_groups() -> Vec<PathBuf> {
    let read = |path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    match (read("/proc/self/mountinfo"), read("/proc/self/cgroup")) {
        (Ok(mounts), Ok(own)) => parse_own_groups(&mounts, &own),
        _ => Vec::new(),
    }
}

/// How the name of the job's group begins.
fn name(dir: &Path) -> Option<String> {
    let job: String =
        dir.file_name()?.to_str()?.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(*c, '.' | '-' | '_')).take(128).collect();
    Some(format!("{PREFIX}{job}"))
}

pub(super) fn is_for_job(path: &Path, dir: &Path) -> bool {
    let (Some(found), Some(name)) = (path.file_name().and_then(|name| name.to_str()), name(dir)) else { return false };
    let number = found.strip_prefix(&name).and_then(|rest| rest.strip_prefix('.'));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())) && path.join(MEMBERS).exists()
}

/// Kills all processes in a group, at once where the system can.
pub(super) fn kill(path: &Path) {
    // We must not kill ourselves.
    let own = std::process::id();
    let all = members(path);
    if !all.contains(&own) && fs::write(path.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    for pid in all.into_iter().filter(|pid| *pid != own) {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// The processes of a group and of those below it that have a pid in this namespace.
pub(super) fn members(path: &Path) -> Vec<u32> {
    let mut all = Vec::new();
    let mut open = vec![path.to_owned()];
    while let Some(path) = open.pop() {
        let list = fs::read_to_string(path.join(MEMBERS)).unwrap_or_default();
        all.extend(list.lines().filter_map(|line| line.trim().parse::<u32>().ok()).filter(|pid| *pid > 0));
        open.extend(below(&path));
    }
    all
}

/// Whether no process runs in a group or below it.
pub(super) fn is_empty(path: &Path) -> bool {
    match fs::read_to_string(path.join("cgroup.events")) {
        Ok(events) => !events.lines().any(|line| line.trim() == "populated 1"),
        // The group is gone.
        Err(_) => true,
    }
}

/// Removes a group, with those that the command made in it. A group with processes stays.
pub(super) fn remove(path: &Path) {
    for below in below(path) {
        remove(&below);
    }
    let _ = fs::remove_dir(path);
}

fn below(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}

/// The paths of our own group, from the contents of mountinfo and of our cgroup file: one for each mount.
fn parse_own_groups(mounts: &str, own: &str) -> Vec<PathBuf> {
    let Some(own) = own.lines().find_map(|line| line.strip_prefix("0::")) else { return Vec::new() };
    let own = Path::new(own);
    // Our group is outside of what this namespace shows.
    if !own.is_absolute() || own.components().any(|part| part == Component::ParentDir) {
        return Vec::new();
    }
    mounts.lines().filter_map(mount).filter_map(|(root, point)| Some(point.join(own.strip_prefix(root).ok()?))).collect()
}

/// From a line of mountinfo, if it is of cgroup v2: which part of the tree is mounted, and where.
fn mount(line: &str) -> Option<(PathBuf, PathBuf)> {
    let (fields_before_dash, kind) = line.split_once(" - ")?;
    if kind.split(' ').next() != Some("cgroup2") {
        return None;
    }
    let mut fields = fields_before_dash.split(' ').skip(3);
    Some((unescape(fields.next()?).into(), unescape(fields.next()?).into()))
}

/// Mountinfo writes blanks and the like as a backslash and three octal digits.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = if first == b'\\' { after.get(..3) } else { None };
        let code = code.and_then(|code| std::str::from_utf8(code).ok()).and_then(|code| u8::from_str_radix(code, 8).ok());
        match code {
            Some(code) => {
                bytes.push(code);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    const HYBRID: &str = "\
22 1 8:1 / / rw,relatime - ext4 /dev/root rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:7 master:2 - cgroup2 cgroup2 rw
";

    #[test]
    fn the_own_group_is_found_where_it_is_mounted() {
        let own = "9:name=systemd:/x\n1:cpu:/y\n0::/user.slice/a b.scope\n";
        assert_eq!(parse_own_groups(HYBRID, own), [PathBuf::from("/sys/fs/cgroup/unified/user.slice/a b.scope")]);
        let unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(parse_own_groups(unified, "0::/\n"), [PathBuf::from("/sys/fs/cgroup")]);
    }

    #[test]
    fn a_part_of_the_tree_leads_only_to_what_is_in_it() {
        let part = r"30 23 0:26 /docker/abc /sys/fs/my\040cgroup rw - cgroup2 cgroup2 rw";
        assert_eq!(parse_own_groups(part, "0::/docker/abc/x"), [PathBuf::from("/sys/fs/my cgroup/x")]);
        assert!(parse_own_groups(part, "0::/docker/abcd").is_empty());
        assert!(parse_own_groups(part, "0::/").is_empty());
    }

    #[test]
    fn where_there_is_no_group_none_is_found() {
        assert!(parse_own_groups(HYBRID, "1:cpu:/y\n").is_empty());
        assert!(parse_own_groups(HYBRID, "0::/../outside\n").is_empty());
        assert!(parse_own_groups(HYBRID, "0::\n").is_empty());
        assert!(parse_own_groups("", "0::/\n").is_empty());
        assert!(parse_own_groups("nonsense\n - cgroup2\n1 2 3 - cgroup2 x\n", "0::/\n").is_empty());
        // The name of a mount is no kind of a mount.
        assert!(parse_own_groups("1 2 0:1 / /cgroup2 rw - tmpfs cgroup2 rw\n", "0::/\n").is_empty());
    }

    #[test]
    fn escapes_are_undone_and_nothing_else() {
        assert_eq!(unescape(r"a\040b\134c"), r"a b\c");
        assert_eq!(unescape(r"\9zz\04"), r"\9zz\04");
        assert_eq!(unescape("ü\\011"), "ü\t");
        assert_eq!(unescape(r"\777"), r"\777");
    }

    #[test]
    fn only_a_group_of_this_run_is_its_group() {
        let base = TempDir::new();
        let dir = Path::new("/data/spool/01abc.1");
        let make = |name: &str| {
            let path = base.path().join(name);
            fs::create_dir_all(&path).expect("made");
            fs::write(path.join(MEMBERS), "").expect("written");
            path
        };
        assert!(is_for_job(&make("taskwire-01abc.1.77"), dir));
        for other in ["taskwire-01abc.1", "taskwire-01abc.1.", "taskwire-01abc.1.7x", "taskwire-01abc.12.7", "system.slice", "taskwire-.7"]
        {
            assert!(!is_for_job(&make(other), dir), "{other}");
        }
        assert!(!is_for_job(&base.path().join("taskwire-01abc.1.78"), dir));
    }
}
