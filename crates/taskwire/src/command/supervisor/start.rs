//! Starts the command's process, with its environment, its streams and its control group.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs::File,
    io::{self, ErrorKind},
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::Path,
    process::{Command, Stdio},
};

use rustix::{fs::Mode, process::Pid};
use tokio::net::unix::pipe::Receiver;

use super::{Job, STDIN, cgroup::Cgroup, terminal};
use crate::command::definition::{DIR_VARIABLE, Leftovers, Stderr, TASK_VARIABLE, USUAL_PATH};

pub(super) struct StartedCommand {
    pub(super) pid: Pid,
    pub(super) out: Receiver,
    pub(super) err: Option<Receiver>,
    pub(super) cgroup: Option<Cgroup>,
}

/// # Errors
/// Why it cannot be started, for people.
pub(super) fn start(dir: &Path, job: &Job, mask: Mode) -> Result<StartedCommand, String> {
    let Some((program, args)) = job.argv.split_first() else { return Err("the command is empty".to_owned()) };
    let name = name_of(program);
    // Processes that detach themselves from the command become our children.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let streams = |error: io::Error| format!("cannot run `{name}`: its streams cannot be made: {error}");
    let mut command = Command::new(program);
    command.args(args).current_dir(&job.cwd).env_clear().envs(environment(job, dir, env::vars_os())).process_group(0);
    command.stdin(if job.stdin { Stdio::from(File::open(dir.join(STDIN)).map_err(streams)?) } else { Stdio::null() });
    let pair = if job.pty { terminal::pair } else { pipe };
    let (out, err) = give(&mut command, job, pair).map_err(streams)?;

    // Processes that may stay after the end would keep the control group for ever.
    let cgroup = if job.leftovers == Leftovers::Keep { None } else { Cgroup::make(dir) };
    let is_in = cgroup.as_ref().is_some_and(|cgroup| cgroup.enter().is_ok());
    // The files that the command makes follow the user's umask, not ours.
    let own_mask = rustix::process::umask(mask);
    let spawned = command.spawn();
    rustix::process::umask(own_mask);
    // The group must not have the supervisor in it: killing all of it would kill us.
    let is_out = !is_in || cgroup.as_ref().is_some_and(|cgroup| cgroup.leave().is_ok());
    // `command` holds the writing ends. While one is open, we would never read the end of the output.
    drop(command);

    let cgroup = cgroup.and_then(|cgroup| {
        if is_in && is_out && spawned.is_ok() {
            return Some(cgroup);
        }
        super::cgroup::remove(cgroup.path());
        None
    });
    match spawned {
        // `reap` waits for it, as for all other children.
        Ok(child) => Ok(StartedCommand { pid: Pid::from_child(&child), out, err, cgroup }),
        Err(error) => Err(start_error(program, &job.cwd, &error)),
    }
}

/// Makes the command's output streams with `pair`, and returns our ends.
fn give(command: &mut Command, job: &Job, pair: fn() -> io::Result<(Receiver, OwnedFd)>) -> io::Result<(Receiver, Option<Receiver>)> {
    let (out, theirs) = pair()?;
    let mut err = None;
    if job.stderr == Stderr::Drop {
        command.stderr(Stdio::null());
    } else if job.is_split() {
        let (ours, theirs) = pair()?;
        err = Some(ours);
        command.stderr(theirs);
    } else {
        // One stream for both keeps the exact order.
        command.stderr(theirs.try_clone()?);
    }
    command.stdout(theirs);
    Ok((out, err))
}

fn pipe() -> io::Result<(Receiver, OwnedFd)> {
    let (ours, theirs) = io::pipe()?;
    Ok((Receiver::from_owned_fd(ours.into())?, theirs.into()))
}

/// The command's environment, made of the supervisor's.
fn environment(job: &Job, dir: &Path, ours: impl Iterator<Item = (OsString, OsString)>) -> BTreeMap<OsString, OsString> {
    let is_named = |names: &[String], name: &OsString| names.iter().any(|one| name.as_os_str() == one.as_str());
    let mut all: BTreeMap<OsString, OsString> = ours
        .filter(|(name, _)| job.inherit_env.as_deref().is_none_or(|names| is_named(names, name)))
        .filter(|(name, _)| !is_named(&job.remove_env, name))
        .collect();
    all.extend(job.env.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))));
    if job.pty {
        // The server's own terminal does not matter here.
        let free =
            terminal::VARIABLES.iter().filter(|(name, _)| !job.env.contains_key(*name) && !job.remove_env.iter().any(|one| one == name));
        all.extend(free.map(|(name, value)| (OsString::from(name), OsString::from(value))));
    }
    if let Some(last) = &job.program_dir {
        let path = all.get(&OsString::from("PATH")).cloned().unwrap_or_else(|| USUAL_PATH.into());
        let mut dirs: Vec<_> = env::split_paths(&path).collect();
        if !dirs.contains(last) {
            dirs.push(last.clone());
        }
        // A directory with a colon in its name cannot be in PATH.
        if let Ok(path) = env::join_paths(dirs) {
            all.insert("PATH".into(), path);
        }
    }
    all.insert(TASK_VARIABLE.into(), job.task.clone().into());
    all.insert(DIR_VARIABLE.into(), dir.into());
    all
}

/// The program's name without its path, which callers must not see.
fn name_of(program: &str) -> &str {
    program.rsplit('/').find(|part| !part.is_empty()).unwrap_or(program)
}

/// Why a program could not be started, and what to do about it. Callers see this, so it has no path.
fn start_error(program: &str, cwd: &Path, error: &io::Error) -> String {
    let name = name_of(program);
    if !cwd.is_dir() {
        return format!("cannot run `{name}`: its working directory (`cwd`) is not there");
    }
    let hint = match error.kind() {
        ErrorKind::NotFound if program.contains('/') => ": is it there, and so is what its first line names?",
        ErrorKind::NotFound => ": is it installed and in PATH?",
        ErrorKind::PermissionDenied => ": is it an executable file, and may this user run it?",
        ErrorKind::ArgumentListTooLong => ": its arguments and its environment are too long together",
        _ => "",
    };
    format!("cannot run `{name}`: {error}{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{
        definition::{Format, Leftovers},
        parser::OutputSettings,
    };

    fn job() -> Job {
        let settings = OutputSettings {
            format: Format::Text,
            stderr: Stderr::Together,
            progress: None,
            redact: Vec::new(),
            ok_codes: vec![0],
            inline_bytes: 1024,
            on_interrupt: taskwire_core::task::OnInterrupt::Fail,
            attempts_max: 1,
            line_bytes: 1024,
        };
        Job {
            version: 1,
            task: "01task".to_owned(),
            number: 1,
            tool: "t".to_owned(),
            argv: vec!["true".to_owned()],
            cwd: "/".into(),
            env: BTreeMap::new(),
            inherit_env: None,
            remove_env: Vec::new(),
            stdin: false,
            stderr: Stderr::Together,
            pty: false,
            leftovers: Leftovers::Kill,
            kill_after_ms: 5000,
            journal_bytes: 1 << 20,
            disk_reserve_bytes: 0,
            lease: None,
            block_bytes: 1 << 20,
            settings,
            program_dir: None,
        }
    }

    fn made(job: &Job, ours: &[(&str, &str)]) -> Vec<String> {
        let ours = ours.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let all = environment(job, Path::new("/spool/x"), ours);
        all.iter().map(|(name, value)| format!("{}={}", name.display(), value.display())).collect()
    }

    #[test]
    fn a_command_knows_its_task_whatever_else_is_said() {
        let mut job = job();
        job.env.insert("TASKWIRE_TASK".to_owned(), "forged".to_owned());
        job.inherit_env = Some(Vec::new());
        let ours = [("TASKWIRE_TASK_DIR", "/outer"), ("A", "1")];
        assert_eq!(made(&job, &ours), ["TASKWIRE_TASK=01task", "TASKWIRE_TASK_DIR=/spool/x"]);
    }

    #[test]
    fn what_is_removed_comes_back_only_by_name() {
        let mut job = job();
        job.remove_env = vec!["TOKEN".to_owned(), "OTHER".to_owned()];
        job.env.insert("OTHER".to_owned(), "set".to_owned());
        let all = made(&job, &[("TOKEN", "secret"), ("OTHER", "secret"), ("KEPT", "1")]);
        assert!(!all.iter().any(|entry| entry.contains("secret")), "{all:?}");
        assert!(all.contains(&"KEPT=1".to_owned()) && all.contains(&"OTHER=set".to_owned()));
        job.inherit_env = Some(vec!["TOKEN".to_owned(), "KEPT".to_owned()]);
        let all = made(&job, &[("TOKEN", "secret"), ("KEPT", "1"), ("ELSE", "2")]);
        assert_eq!(all[..2], ["KEPT=1", "OTHER=set"]);
    }

    #[test]
    fn on_a_terminal_programs_neither_draw_nor_wait_for_a_key() {
        let mut job = job();
        job.pty = true;
        let ours = [("TERM", "xterm"), ("PAGER", "less")];
        let has = |job: &Job, entry: &str| made(job, &ours).contains(&entry.to_owned());
        assert!(has(&job, "TERM=dumb") && has(&job, "PAGER=cat") && has(&job, "GIT_PAGER=cat"));
        job.env.insert("TERM".to_owned(), "vt100".to_owned());
        assert!(has(&job, "TERM=vt100"), "who says otherwise is heard");
        job.pty = false;
        job.env.clear();
        assert!(has(&job, "TERM=xterm") && has(&job, "PAGER=less"));
    }

    #[test]
    fn our_program_is_found_last_and_named_once() {
        let mut job = job();
        job.program_dir = Some("/opt/bin".into());
        assert!(made(&job, &[("PATH", "/a:/b")]).contains(&"PATH=/a:/b:/opt/bin".to_owned()));
        assert!(made(&job, &[("PATH", "/opt/bin:/b")]).contains(&"PATH=/opt/bin:/b".to_owned()));
        assert!(made(&job, &[]).contains(&format!("PATH={USUAL_PATH}:/opt/bin")));
        job.program_dir = Some("/o:pt".into());
        assert!(made(&job, &[("PATH", "/a")]).contains(&"PATH=/a".to_owned()));
        job.env.insert("PATH".to_owned(), "/mine".to_owned());
        job.program_dir = Some("/opt/bin".into());
        assert!(made(&job, &[("PATH", "/a")]).contains(&"PATH=/mine:/opt/bin".to_owned()));
    }

    #[test]
    fn who_reads_why_knows_what_to_do() {
        let root = Path::new("/");
        let missing = io::Error::from(ErrorKind::NotFound);
        assert!(start_error("nope", root, &missing).ends_with("is it installed and in PATH?"));
        assert!(start_error("./nope", root, &missing).contains("first line"));
        let gone = start_error("/opt/nope", Path::new("/not/there"), &missing);
        assert!(gone.contains("`nope`") && gone.contains("`cwd`") && !gone.contains("/not/there") && !gone.contains("/opt"), "{gone}");
        assert!(!start_error("/opt/nope", root, &missing).contains("/opt"));
        assert!(start_error("nope", root, &io::Error::from(ErrorKind::PermissionDenied)).contains("executable"));
    }
}
