//! The supervisor: the process that runs one command. It owns the command's processes, writes their output to the journal, and outlives the
//! server.
//!
//! A server starts it with the directory of a job and attaches to its socket; after a restart, the next server attaches. Starting it twice
//! does no harm: only the one that gets the lock and creates the journal runs the command. It ends when the command has ended; the journal
//! says how.
//!
//! [`start`] makes the command's process · [`terminal`] what it may write to · [`job_loop`] what happens until its end · [`connections`]
//! who connects to the socket · [`questions`] what the command asks · [`kill`], [`cgroup`] end all its processes · [`node_lease`]
//! for how long it may go on without a server.

mod cgroup;
mod connections;
mod job_loop;
mod kill;
mod node_lease;
mod questions;
mod start;
mod terminal;

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions, TryLockError},
    io::{self, ErrorKind, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use rustix::fs::Mode;
use serde::{Deserialize, Serialize};
use tokio::{
    net::UnixListener,
    signal::unix::{Signal, SignalKind, signal},
};

pub(crate) use self::{
    kill::{kill_orphans, kill_supervisor, resume_supervisor},
    node_lease::{JobLease, lease_time_ms},
};
use super::{
    definition::{Leftovers, Stderr},
    journal::{self, JournalWriter},
    messages,
    parser::OutputSettings,
    socket,
};
use crate::owned_files::{self, FileKind};

/// The [`Job`]; written by the server.
pub(super) const JOB: &str = "job.json";
/// What the command reads from its standard input; written by the server.
pub(super) const STDIN: &str = "stdin";
/// Locked by the supervisor as long as it runs.
const LOCK: &str = "lock";
/// Made by a supervisor that has nothing left to clean up: all processes are gone, or stay on purpose.
const CLEAN_MARKER: &str = "clean";
/// The version of [`Job`] that this program understands.
const VERSION: u32 = 1;
/// [`is_alive`] may lock the file for a moment, so a new supervisor tries several times.
const LOCK_TRIES: u32 = 5;
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// How long a supervisor that was told to stop may take beyond its job's `kill_after_ms`.
pub(crate) const STOP_TIMEOUT: Duration = job_loop::KILL_TIMEOUT.saturating_add(Duration::from_secs(5));

/// What a supervisor is to run, as `job.json` has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Job {
    /// See [`VERSION`].
    pub(crate) version: u32,
    pub(crate) task: String,
    /// How often the command was started for this task, this job included.
    #[serde(rename = "run")]
    pub(crate) number: u64,
    pub(crate) tool: String,
    /// Program and arguments.
    pub(crate) argv: Vec<String>,
    pub(crate) cwd: PathBuf,
    /// Variables that the tool sets.
    pub(crate) env: BTreeMap<String, String>,
    /// Variables of the supervisor that the command inherits; None for all.
    #[serde(rename = "inherit")]
    pub(crate) inherit_env: Option<Vec<String>>,
    /// Variables of the supervisor that the command never gets.
    #[serde(rename = "remove")]
    pub(crate) remove_env: Vec<String>,
    /// Whether standard input is the file [`STDIN`].
    pub(crate) stdin: bool,
    pub(crate) stderr: Stderr,
    #[serde(default)]
    pub(crate) pty: bool,
    pub(crate) leftovers: Leftovers,
    /// Milliseconds between SIGTERM and SIGKILL.
    pub(crate) kill_after_ms: u64,
    /// Bytes of the journal that may wait for the server; then the command waits.
    pub(crate) journal_bytes: u64,
    /// Bytes that stay free on the disk; with less free, the command waits. 0 turns this off.
    #[serde(default)]
    pub(crate) disk_reserve_bytes: u64,
    pub(crate) block_bytes: u64,
    /// Where nodes share the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lease: Option<JobLease>,
    pub(crate) settings: OutputSettings,
    /// Where `taskwire` is; the last directory of the command's PATH.
    pub(crate) program_dir: Option<PathBuf>,
}

impl Job {
    /// The job in `dir`, if there is one.
    ///
    /// # Errors
    /// When it cannot be read, when somebody else may have written it, or when this program does not know its version.
    pub(crate) fn read(dir: &Path) -> io::Result<Option<Self>> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        owned_files::check(dir, FileKind::Directory)?;
        let mut bytes = Vec::new();
        match owned_files::open(OpenOptions::new().read(true), &dir.join(JOB)) {
            Ok(mut file) => file.read_to_end(&mut bytes)?,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let broken = |error: serde_json::Error| io::Error::new(ErrorKind::InvalidData, format!("{JOB} cannot be read: {error}"));
        let Version { version } = serde_json::from_slice(&bytes).map_err(broken)?;
        if version != VERSION {
            let message = format!("{JOB} is of version {version}, and this program knows version {VERSION} only");
            return Err(io::Error::new(ErrorKind::InvalidData, message));
        }
        serde_json::from_slice(&bytes).map(Some).map_err(broken)
    }

    /// Whether the two streams have a pipe each. With `redact` they always do: in one pipe a line of one stream could end up in the middle
    /// of the other's, and split a secret so that it is not found.
    fn is_split(&self) -> bool {
        match self.stderr {
            Stderr::Apart => true,
            Stderr::Together => !self.settings.redact.is_empty(),
            Stderr::Drop => false,
        }
    }
}

/// Whether a supervisor runs in `dir`, or is about to.
pub(crate) fn is_alive(dir: &Path) -> bool {
    let lock = match File::open(dir.join(LOCK)) {
        Ok(lock) => lock,
        // A supervisor whose lock cannot be opened may well run.
        Err(error) => return error.kind() != io::ErrorKind::NotFound,
    };
    // This lock is released at once. A supervisor that starts in this moment tries again.
    lock.try_lock_shared().is_err()
}

/// One path for the directory, whatever path a server was given: processes are recognised by it.
fn canonical_dir(dir: &Path) -> PathBuf {
    dir.canonicalize().or_else(|_| std::path::absolute(dir)).unwrap_or_else(|_| dir.to_owned())
}

struct PreparedJob {
    dir: PathBuf,
    job: Job,
    journal: JournalWriter,
    listener: UnixListener,
    signals: Signals,
    /// The user's own umask, for the command.
    mask: Mode,
    _lock: File,
}

struct Signals {
    child: Signal,
    terminate: Signal,
}

/// Why the supervisor runs nothing.
enum Refusal {
    /// Another supervisor runs the job.
    Running,
    /// The command was run before.
    Over,
    Failed(String),
}

/// Runs the job in `dir` to its end. Call it first in `main`, outside of any runtime, and end the process with what it returns. It writes
/// one line to standard output, `started`, `running`, `over`, or `failed: ` and why, and closes it.
pub fn supervise(dir: &Path) -> ExitCode {
    let null = match OpenOptions::new().read(true).write(true).open("/dev/null") {
        Ok(null) => null,
        Err(error) => return refuse(None, &Refusal::Failed(format!("/dev/null cannot be opened: {error}"))),
    };
    // A process group's leader cannot leave its session; it goes on in the old one.
    let _ = rustix::process::setsid();
    let _ = rustix::stdio::dup2_stdin(&null);
    let _ = rustix::stdio::dup2_stderr(&null);
    // Only this user may read the supervisor's files.
    let mask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let dir = canonical_dir(dir);
    // The supervisor must not keep anybody from removing or unmounting the directory it was started in.
    let _ = std::env::set_current_dir("/");
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return refuse(Some(&null), &Refusal::Failed(error.to_string())),
    };
    runtime.block_on(async {
        match prepare(dir, mask).await {
            Ok(prepared) => {
                say(Some(&null), "started");
                drop(null);
                job_loop::run_job(prepared).await
            }
            Err(refusal) => refuse(Some(&null), &refusal),
        }
    })
}

fn refuse(null: Option<&File>, refusal: &Refusal) -> ExitCode {
    let (word, code) = match refusal {
        Refusal::Running => ("running".to_owned(), ExitCode::SUCCESS),
        Refusal::Over => ("over".to_owned(), ExitCode::SUCCESS),
        Refusal::Failed(why) => (format!("failed: {}", why.replace(['\n', '\r'], " ")), ExitCode::FAILURE),
    };
    say(null, &word);
    code
}

/// Tells the server that started us. It may be gone: then the next server attaches by the socket.
fn say(null: Option<&File>, word: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(format!("{word}\n").as_bytes());
    let _ = out.flush();
    if let Some(null) = null {
        let _ = rustix::stdio::dup2_stdout(null);
    }
}

/// Gets everything that the command needs. The order matters: nothing is read before the lock is taken, and the journal is created last,
/// because from then on no supervisor runs this command again.
async fn prepare(dir: PathBuf, mask: Mode) -> Result<PreparedJob, Refusal> {
    let failed = |what: &str, error: &io::Error| Refusal::Failed(format!("{what} in {}: {error}", dir.display()));
    // With a handler these signals do not end the supervisor, and the command starts with the default ones.
    let signals = signals().map_err(|error| failed("cannot handle signals for the command", &error))?;
    owned_files::check(&dir, FileKind::Directory).map_err(|error| failed("nothing is run", &error))?;
    let lock = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(dir.join(LOCK));
    let lock = lock.map_err(|error| failed("cannot open the lock", &error))?;
    let mut tries = 0;
    loop {
        match lock.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if tries < LOCK_TRIES => {
                tries += 1;
                tokio::time::sleep(LOCK_PAUSE).await;
            }
            Err(TryLockError::WouldBlock) => return Err(Refusal::Running),
            Err(TryLockError::Error(error)) => return Err(failed("cannot lock the lock", &error)),
        }
    }
    if dir.join(journal::FILE).exists() {
        return Err(Refusal::Over);
    }
    let job = match Job::read(&dir) {
        Ok(Some(job)) => job,
        Ok(None) => return Err(Refusal::Failed(format!("there is no job in {}", dir.display()))),
        Err(error) => return Err(failed("cannot read the job", &error)),
    };
    // We hold the lock, so nobody listens on a socket that is there.
    let listener = socket::listen(&dir, messages::SOCKET).await.map_err(|error| failed("cannot make the socket", &error))?;
    let journal = match JournalWriter::create(&dir) {
        Ok(journal) => journal,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(Refusal::Over),
        Err(error) => return Err(failed("cannot begin the journal", &error)),
    };
    Ok(PreparedJob { dir, job, journal, listener, signals, mask, _lock: lock })
}

fn signals() -> io::Result<Signals> {
    for ignored in [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::pipe(), SignalKind::quit()] {
        drop(signal(ignored)?);
    }
    Ok(Signals { child: signal(SignalKind::child())?, terminate: signal(SignalKind::terminate())? })
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::PermissionsExt,
    };

    use super::*;
    use crate::testing::TempDir;

    fn write_job(dir: &TempDir, text: &str) {
        let file = owned_files::open(OpenOptions::new().write(true).create(true).truncate(true), &dir.0.join(JOB));
        file.and_then(|mut file| file.write_all(text.as_bytes())).expect("written");
    }

    #[test]
    fn who_holds_the_lock_is_alive() {
        let dir = TempDir::new();
        assert!(!is_alive(&dir.0));
        let lock = File::create(dir.0.join(LOCK)).expect("made");
        assert!(!is_alive(&dir.0));
        lock.lock().expect("locked");
        assert!(is_alive(&dir.0));
        drop(lock);
        assert!(!is_alive(&dir.0));
    }

    #[test]
    fn a_job_of_another_version_is_refused_with_its_number() {
        let dir = TempDir::new();
        assert!(Job::read(&dir.0).expect("no error").is_none());
        write_job(&dir, r#"{"version":2,"new":true}"#);
        let error = Job::read(&dir.0).expect_err("unknown");
        assert!(error.to_string().contains("version 2"), "{error}");
        write_job(&dir, r#"{"version":1,"#);
        assert_eq!(Job::read(&dir.0).expect_err("cut off").kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn a_job_that_somebody_else_could_have_written_is_refused() {
        let dir = TempDir::new();
        let refused = |words: &str| {
            let error = Job::read(&dir.0).expect_err("it is not ours alone").to_string();
            assert!(error.contains(words), "{error}");
        };
        let set_mode = |name: &str, mode| fs::set_permissions(dir.0.join(name), Permissions::from_mode(mode)).expect("it is ours");
        write_job(&dir, "{}");
        set_mode("", 0o777);
        refused("`chmod 700 ");
        set_mode("", 0o700);
        set_mode(JOB, 0o666);
        refused("`chmod 600 ");
        fs::rename(dir.0.join(JOB), dir.0.join("elsewhere")).expect("moved");
        std::os::unix::fs::symlink("elsewhere", dir.0.join(JOB)).expect("linked");
        refused("symbolic link");
    }

    #[test]
    fn a_directory_has_one_name_whatever_way_leads_there() {
        let dir = TempDir::new();
        fs::create_dir(dir.0.join("a")).expect("made");
        std::os::unix::fs::symlink(dir.0.join("a"), dir.0.join("b")).expect("linked");
        assert_eq!(canonical_dir(&dir.0.join("b")), canonical_dir(&dir.0.join("a")));
        assert_eq!(canonical_dir(&dir.0.join("b/../a")), canonical_dir(&dir.0.join("a")));
        assert!(canonical_dir(Path::new("not/there")).is_absolute());
    }
}
