//! A process that ends with the test that started it, its directory, its user and its port.

use std::{
    ffi::OsStr,
    fs::{self, DirBuilder, File},
    hash::{BuildHasher, RandomState},
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    os::unix::{
        fs::{DirBuilderExt, OpenOptionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, geteuid, kill_process};

/// How long anything may take: a test that hangs should say where.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a program, says its number and then what it says, and ends it when standard input ends, which it does when the test is
/// gone. Only then it removes the directory: the test has not.
///
/// It has a process group of its own, so that what ends the test's group leaves it time for this. If a member of the group is
/// stopped at that moment, the system sends a hangup, which must not end the guard.
const GUARD: &str = r#"
trap '' HUP
exec 3<&0 2>&1
dir=$1 signal=$2
shift 2
sh -c 'echo "$$"; exec "$@"' server "$@" </dev/null 3<&- &
server=$!
(
  read -r _
  trap '' TERM
  kill -CONT "$server"
  kill -"$signal" "$server"
  exit 0
) <&3 >/dev/null 2>&1 &
watch=$!
exec 3<&-
wait "$server"
kill "$watch" 2>/dev/null
wait "$watch" 2>/dev/null && rm -rf "$dir"
"#;

/// The user and the group who run the servers when root runs the tests: PostgreSQL refuses to run as root.
pub(crate) fn server_user() -> Option<(u32, u32)> {
    if !geteuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let nobody = (65_534, 65_534);
    Some(ids_of("postgres", &users).or_else(|| ids_of("nobody", &users)).unwrap_or(nobody))
}

/// The numbers of a user and of the user's group, in a file like `/etc/passwd`.
fn ids_of(name: &str, users: &str) -> Option<(u32, u32)> {
    let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
    let fields: Vec<&str> = line.split(':').collect();
    Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
}

/// Gives a file or directory to those who run the servers.
pub(crate) fn give(path: &Path) {
    if let Some((user, group)) = server_user() {
        chown(path, Some(user), Some(group)).unwrap_or_else(|error| panic!("{} cannot be given away: {error}", path.display()));
    }
}

/// A program as those who run the servers start it, with nothing of our environment but where programs are.
pub(crate) fn command(program: impl AsRef<OsStr>, dir: &ServerDir) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("LC_ALL", "C").current_dir(&dir.0).stdin(Stdio::null());
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    if let Some((user, group)) = server_user() {
        command.uid(user).gid(group);
    }
    command
}

/// Runs a program to its end: what it says, or, if it fails, its errors.
pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{} cannot be run: {error}", command.get_program().display()))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr) + &text(&output.stdout)) }
}

/// The directory of one server. After a failed test only the log stays of it, and its path is printed.
#[derive(Debug)]
pub(crate) struct ServerDir(PathBuf);

impl ServerDir {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("taskwire-server-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        // A killed run of a process with the same number may have left one.
        let _ = fs::remove_dir_all(&path);
        DirBuilder::new().mode(0o700).create(&path).expect("a temporary directory");
        give(&path);
        Self(path)
    }

    /// The name that no other directory has.
    pub(crate) fn name(&self) -> &OsStr {
        self.0.file_name().expect("it has a name")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A path in it, as an argument.
    pub(crate) fn argument(&self, name: &str) -> String {
        self.path(name).into_os_string().into_string().expect("a path of plain text")
    }

    /// Makes or replaces a file that nobody else may read: keys must be so.
    pub(crate) fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        let path = self.path(name);
        let mut options = File::options();
        let file = options.create(true).write(true).truncate(true).mode(0o600).open(&path);
        let written = file.and_then(|mut file| file.write_all(contents.as_ref()));
        written.unwrap_or_else(|error| panic!("{} cannot be written: {error}", path.display()));
        give(&path);
    }

    /// Adds to a file, if it is there; makes it else.
    pub(crate) fn append(&self, name: &str, text: &str) {
        let before = fs::read_to_string(self.path(name)).unwrap_or_default();
        self.write(name, before + text);
    }

    /// All that the server has said so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

impl Drop for ServerDir {
    fn drop(&mut self) {
        if !thread::panicking() {
            let _ = fs::remove_dir_all(&self.0);
            return;
        }
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            if entry.file_name() != "log" {
                let _ = fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path()));
            }
        }
        eprintln!("what the server said is in {}", self.path("log").display());
    }
}

/// A port of this machine that no other server of our tests takes, even while this one is stopped.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) number: u16,
    _reservation: Option<Reservation>,
}

impl Port {
    /// Below those that the system gives to outgoing connections: a client that connects while the server is stopped must not get
    /// that very port for its own end, for it would then be connected to itself.
    pub(crate) fn new() -> Self {
        loop {
            let number = 20_000 + u16::try_from(RandomState::new().hash_one(()) % 12_000).expect("a small number");
            if let Ok(reservation) = reserve(number)
                && TcpListener::bind(("127.0.0.1", number)).is_ok()
            {
                return Self { number, _reservation: reservation };
            }
        }
    }
}

#[cfg(target_os = "linux")]
type Reservation = std::os::unix::net::UnixListener;
#[cfg(not(target_os = "linux"))]
type Reservation = ();

/// A name that the system keeps for one process while it lives, in the same network namespace as the port.
#[cfg(target_os = "linux")]
fn reserve(port: u16) -> std::io::Result<Option<Reservation>> {
    use std::os::{linux::net::SocketAddrExt, unix::net::SocketAddr};
    let name = SocketAddr::from_abstract_name(format!("taskwire-test-port-{port}"))?;
    Reservation::bind_addr(&name).map(Some)
}

#[cfg(not(target_os = "linux"))]
fn reserve(_: u16) -> std::io::Result<Option<Reservation>> {
    Ok(None)
}

/// A running server. Whoever drops it without more leaves its end to the guard.
#[derive(Debug)]
pub(crate) struct Process {
    /// While its standard input is open, the server lives.
    guard: Child,
    pid: Pid,
    /// What it says. The stream ends when the last process that could say something is gone.
    lines: Mutex<Receiver<String>>,
}

impl Process {
    /// Starts it in its directory. `signal` is how the guard ends it if the test cannot.
    pub(crate) fn start(dir: &ServerDir, signal: &str, program: &Path, arguments: &[&str]) -> Self {
        let mut guard = command("sh", dir);
        guard.args(["-c", GUARD, "guard"]).arg(&dir.0).arg(signal).arg(program).args(arguments);
        guard.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut guard = guard.spawn().expect("`sh` can be run");
        let output = guard.stdout.take().expect("its output is a pipe");
        let mut log = File::options().create(true).append(true).open(dir.path("log")).expect("a log");
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                let _ = writeln!(log, "{line}");
                let _ = sender.send(line);
            }
        });
        let first = lines.recv_timeout(TIMEOUT).expect("the guard says which process it guards");
        let pid = first.parse().ok().and_then(Pid::from_raw).unwrap_or_else(|| panic!("no number of a process: {first}"));
        Self { guard, pid, lines: Mutex::new(lines) }
    }

    /// Waits until it says this; `false` if it ended without.
    pub(crate) fn says(&self, words: &str) -> bool {
        loop {
            match self.line() {
                Ok(line) if line.contains(words) => return true,
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) => panic!("the server neither ended nor said `{words}` within {TIMEOUT:?}"),
            }
        }
    }

    fn line(&self) -> Result<String, RecvTimeoutError> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(TIMEOUT)
    }

    /// Waits until it and all its children are gone. Says whether they are.
    pub(crate) fn is_gone(&mut self) -> bool {
        loop {
            match self.line() {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return self.guard.wait().is_ok(),
                Err(RecvTimeoutError::Timeout) => return false,
            }
        }
    }

    /// Whether it runs, or is stopped. Its number is somebody else's only if its parent is, too.
    pub(crate) fn is_alive(&self) -> bool {
        let guard = Pid::from_child(&self.guard).as_raw_pid();
        state_and_parent(self.pid).is_some_and(|(state, parent)| state != 'Z' && parent == guard)
    }

    /// Sends it a signal. Says whether it was there.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        self.is_alive() && kill_process(self.pid, signal).is_ok()
    }

    /// Its children: PostgreSQL gives each a process group of its own.
    pub(crate) fn children(&self) -> Vec<Pid> {
        let names = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let pids = names.filter_map(|name| Pid::from_raw(name.parse::<u32>().ok()?.try_into().ok()?));
        pids.filter(|pid| state_and_parent(*pid).is_some_and(|(_, parent)| parent == self.pid.as_raw_pid())).collect()
    }

    /// Stops it alone. It then starts no more children, and the numbers of those that end are not given away before it looks.
    fn freeze(&self) -> Vec<Pid> {
        if !self.signal(Signal::STOP) {
            return Vec::new();
        }
        while state_and_parent(self.pid).is_some_and(|(state, _)| matches!(state, 'R' | 'S' | 'D')) {
            thread::yield_now();
        }
        self.children()
    }

    /// Stops it with its children, which it gives.
    pub(crate) fn pause(&self) -> Vec<Pid> {
        let children = self.freeze();
        for child in &children {
            let _ = kill_process(*child, Signal::STOP);
        }
        children
    }

    /// Lets it go on with the children that were stopped with it.
    pub(crate) fn resume(&self, children: &[Pid]) {
        for child in children {
            let _ = kill_process(*child, Signal::CONT);
        }
        self.signal(Signal::CONT);
    }

    /// Ends it and its children as a power cut would, for them alone. Says whether they are gone.
    pub(crate) fn kill(&mut self) -> bool {
        for child in self.freeze() {
            let _ = kill_process(child, Signal::KILL);
        }
        self.signal(Signal::KILL);
        self.is_gone()
    }
}

/// What a process does, as a letter, and the number of its parent.
fn state_and_parent(pid: Pid) -> Option<(char, i32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of a program may contain anything; what follows its last bracket cannot.
    let (_, rest) = text.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}
