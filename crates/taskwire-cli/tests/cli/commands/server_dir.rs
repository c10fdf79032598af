//! The directory of a server with command tools: its configuration, its scripts, and the processes that it has started.

use std::{
    fs::{self, File},
    hash::{BuildHasher, Hasher, RandomState},
    net::TcpListener,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use super::command_server::CommandServer;
use crate::kit::TempDir;

/// How often to poll, and how long to pause between two polls.
const POLLS_MAX: usize = 24_000;
const PAUSE: Duration = Duration::from_millis(5);
/// How much of the server's own words is shown when a test has failed.
const LOG_BYTES: usize = 8000;

/// Looks until there is something to see.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..POLLS_MAX {
        if let Some(found) = look() {
            return found;
        }
        thread::park_timeout(PAUSE);
    }
    panic!("{what}: not seen, however often one looked")
}

/// Random numbers. The seed is printed; with it in `TASKWIRE_SEED` the same numbers come again.
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new() -> Self {
        let from_env = std::env::var("TASKWIRE_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = from_env.unwrap_or_else(|| RandomState::new().build_hasher().finish());
        eprintln!("TASKWIRE_SEED={seed}");
        Self(seed | 1)
    }

    /// Less than `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 8) % end.max(1) as u64).expect("less than a usize")
    }
}

/// A port below those that the system gives to outgoing connections: nobody takes it while the server is down.
pub(crate) fn free_port() -> u16 {
    loop {
        let chance = RandomState::new().build_hasher().finish() % 12_000;
        let port = 20_000 + u16::try_from(chance).expect("a small number");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// The lines of the configuration for one tool.
pub(crate) fn tool(name: &str, keys: &str) -> String {
    format!("[[tool]]\nname = \"{name}\"\ndescription = \"A tool of a test\"\n{keys}\n")
}

/// A process that runs because of a server directory.
#[derive(Debug)]
pub(crate) struct FoundProcess {
    pub(crate) pid: u32,
    pub(crate) words: String,
    pub(crate) environ: String,
}

impl FoundProcess {
    pub(crate) fn is_supervisor(&self) -> bool {
        self.words.split('\0').nth(1) == Some("supervise")
    }
}

/// All processes in whose command line or environment this stands. One that has ended and was not fetched yet has neither.
fn processes_with(words: &str) -> Vec<FoundProcess> {
    let read = |pid: u32, what: &str| String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default()).into_owned();
    let pids = fs::read_dir("/proc").expect("processes can be seen").flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| *pid != std::process::id())
        .map(|pid| FoundProcess { pid, words: read(pid, "cmdline"), environ: read(pid, "environ") })
        .filter(|found| found.words.contains(words) || found.environ.contains(words))
        .collect()
}

/// A directory with a configuration, scripts and the data of a server. Whatever still runs there ends with it.
#[derive(Debug)]
pub(crate) struct ServerDir {
    dir: TempDir,
    port: u16,
}

impl ServerDir {
    /// With this configuration, in which `@DIR@` is the directory.
    pub(crate) fn new(config: &str) -> Self {
        let server_dir = Self { dir: TempDir::new(), port: free_port() };
        server_dir.write("taskwire.toml", &config.replace("@DIR@", server_dir.dir.path().to_str().expect("a path of plain text")));
        server_dir
    }

    /// A path in it, as an argument.
    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("a file");
    }

    /// What a file says; nothing if it is not there.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Waits until a file has so many lines, or more.
    #[track_caller]
    pub(crate) fn lines(&self, name: &str, count: usize) -> Vec<String> {
        until(&format!("{count} lines in {name}"), || {
            let text = self.read(name);
            (text.matches('\n').count() >= count).then(|| text.lines().map(ToOwned::to_owned).collect())
        })
    }

    /// Starts the server, and does not wait for it.
    pub(crate) fn spawn(&self) -> CommandServer {
        let log = File::options().create(true).append(true).open(self.path("server.log")).expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_taskwire"));
        command.args(["serve", &self.path("taskwire.toml"), "--data", &self.path("data")]);
        command.args(["--listen", &format!("127.0.0.1:{}", self.port)]);
        command.env_remove("RUST_LOG").env("WORD_OF_THE_SERVER", "heard").stdin(Stdio::null()).stderr(log);
        CommandServer::spawn(&mut command, self.port)
    }

    /// Starts the server, always with the same files and port.
    pub(crate) fn start(&self) -> CommandServer {
        let server = self.spawn();
        server.ready();
        server
    }

    /// All processes that run because of this directory, except for its servers.
    pub(crate) fn processes(&self) -> Vec<FoundProcess> {
        let mut found = processes_with(&self.path(""));
        found.retain(|found| found.words.split('\0').nth(1) != Some("serve"));
        found
    }

    /// The processes of a task: the environment of each, and of its children, names the task.
    pub(crate) fn processes_of(&self, id: &str) -> Vec<FoundProcess> {
        let marker = format!("TASKWIRE_TASK={id}\0");
        let mut found = self.processes();
        found.retain(|found| found.environ.contains(&marker) && !found.is_supervisor());
        found
    }

    /// The only supervisor, when there is one.
    #[track_caller]
    pub(crate) fn supervisor(&self) -> u32 {
        until("a supervisor", || self.processes().into_iter().find(FoundProcess::is_supervisor).map(|found| found.pid))
    }

    /// Waits until nothing runs any more, supervisors included.
    #[track_caller]
    pub(crate) fn is_quiet(&self) {
        let mut last = Vec::new();
        for _ in 0..POLLS_MAX {
            last = self.processes();
            if last.is_empty() {
                return;
            }
            thread::park_timeout(PAUSE);
        }
        let last: Vec<String> = last.into_iter().map(|found| format!("{} {}", found.pid, found.words.replace('\0', " "))).collect();
        panic!("these are left running: {last:#?}")
    }
}

impl Drop for ServerDir {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = self.read("server.log");
            let begin = (log.len().saturating_sub(LOG_BYTES)..=log.len()).find(|at| log.is_char_boundary(*at)).unwrap_or(0);
            eprintln!("the server said:\n{}", &log[begin..]);
        }
        for _ in 0..100 {
            let pids: Vec<String> = self.processes().iter().map(|found| found.pid.to_string()).collect();
            if pids.is_empty() {
                break;
            }
            let _ = Command::new("kill").arg("-KILL").args(pids).stderr(Stdio::null()).status();
        }
    }
}
