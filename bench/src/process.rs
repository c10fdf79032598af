//! Servers and readers as processes: started, watched from outside through `/proc`, and killed.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    net::TcpStream,
    process::{Child, ChildStdout, Command},
    time::{sleep, timeout},
};

use crate::{
    client::{READY, ReadResult, Reader},
    http::Conn,
    serve::{Kind, Pour, STORE_VARIABLE},
    wire,
};

/// How long a server may take to accept a connection, or to send its first response.
const START_MAX: Duration = Duration::from_secs(120);
/// How long a reader may take to say something.
const READ_MAX: Duration = Duration::from_secs(120);
/// Ticks of `/proc/PID/stat` in a second: `USER_HZ`, which is 100 on every Linux that matters here.
const TICKS_PER_SECOND: f64 = 100.0;

/// A server process. Dropped, it is killed; and it ends by itself should this process die first.
pub struct ServerProcess {
    /// Which one it is.
    pub kind: Kind,
    /// Where it listens.
    pub addr: SocketAddr,
    pid: u32,
    child: Child,
}

impl ServerProcess {
    /// Starts a server and waits until it accepts connections.
    pub async fn start(kind: Kind, data: &Path) -> Result<Self> {
        Self::start_with(kind, data, &[]).await
    }

    /// Starts Taskwire so that each text that a tool writes is a chunk of its own.
    pub async fn start_uncoalesced(data: &Path) -> Result<Self> {
        Self::start_with(Kind::Taskwire, data, &["--uncoalesced"]).await
    }

    /// Starts Taskwire with the limits that are the defaults, for so many callers.
    pub async fn start_for(callers: usize, data: &Path) -> Result<Self> {
        Self::start_with(Kind::Taskwire, data, &["--callers", &callers.to_string()]).await
    }

    async fn start_with(kind: Kind, data: &Path, flags: &[&str]) -> Result<Self> {
        Self::spawn(kind, data, flags, None)?.accepting().await
    }

    /// Starts Taskwire as one of the nodes that share what this database has for `data`. Each text that a tool writes is a chunk of its
    /// own.
    pub async fn start_node(database: &str, data: &Path) -> Result<Self> {
        let server = Self::spawn(Kind::Taskwire, data, &["--uncoalesced"], Some(database))?.accepting().await?;
        // It listens before it has joined the others.
        let answer = async { Conn::open(server.addr).await?.exchange(&wire::echo(server.addr, 0)).await };
        let response = timeout(START_MAX, answer).await.context("a node does not come up")??;
        wire::expect(&response, wire::ECHO_TEXT)?;
        Ok(server)
    }

    async fn accepting(mut self) -> Result<Self> {
        let began = Instant::now();
        while TcpStream::connect(self.addr).await.is_err() {
            self.check(began)?;
            sleep(Duration::from_millis(2)).await;
        }
        Ok(self)
    }

    /// Starts a server on what is stored in `data`, and says after how many seconds it first answered a `tasks/get`.
    pub async fn start_to_answer(kind: Kind, data: &Path, task: &str) -> Result<(Self, f64)> {
        let began = Instant::now();
        let mut server = Self::spawn(kind, data, &[], None)?;
        let request = wire::get(server.addr, 1, task);
        loop {
            let response = timeout(START_MAX, async { Conn::open(server.addr).await?.exchange(&request).await }).await;
            if let Ok(Ok(response)) = response
                && wire::task_id(&response).is_ok()
            {
                return Ok((server, began.elapsed().as_secs_f64()));
            }
            server.check(began)?;
            sleep(Duration::from_millis(1)).await;
        }
    }

    fn spawn(kind: Kind, data: &Path, flags: &[&str], database: Option<&str>) -> Result<Self> {
        let addr = free_address()?;
        let exe = std::env::current_exe().context("cannot find the path of this program")?;
        let child = Command::new(exe)
            .envs(database.map(|url| (STORE_VARIABLE, url)))
            .args(["serve", kind.name(), "--tied", "--listen"])
            .arg(addr.to_string())
            .arg("--data")
            .arg(data)
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start the server `{}`", kind.name()))?;
        let pid = child.id().context("the server has no process id")?;
        Ok(Self { kind, addr, pid, child })
    }

    fn check(&mut self, began: Instant) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the server `{}` ended while it was started: {status}", self.kind.name());
        }
        ensure!(began.elapsed() < START_MAX, "the server `{}` does not come up", self.kind.name());
        Ok(())
    }

    /// User and system time that the process has used, in seconds.
    pub fn cpu(&self) -> Result<f64> {
        cpu(self.pid).with_context(|| format!("the server `{}` cannot be watched", self.kind.name()))
    }

    /// Resident memory of the process, in bytes.
    pub fn rss(&self) -> Result<f64> {
        rss(self.pid).with_context(|| format!("the server `{}` cannot be watched", self.kind.name()))
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Kills the process as a crash would, and waits until it is gone.
    pub async fn kill(mut self) -> Result<()> {
        self.child.kill().await.context("cannot kill a server")
    }
}

/// A reader process. Dropped, it is killed; and it ends by itself should this process die first.
pub struct ReaderProcess {
    pid: u32,
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl ReaderProcess {
    /// Starts a reader of what `runs` calls pour, and waits until it is ready for it.
    pub async fn start(reader: Reader, server: &ServerProcess, runs: usize, pour: &Pour) -> Result<Self> {
        let exe = std::env::current_exe().context("cannot find the path of this program")?;
        let mut child = Command::new(exe)
            .args(["read", reader.name(), "--addr"])
            .arg(server.addr.to_string())
            .arg("--runs")
            .arg(runs.to_string())
            .args(pour.arguments())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start the reader `{}`", reader.name()))?;
        let pid = child.id().context("the reader has no process id")?;
        let lines = BufReader::new(child.stdout.take().context("the reader has no output")?).lines();
        let mut reading = Self { pid, child, lines };
        let said = reading.line().await?;
        ensure!(said == READY, "the reader says `{said}` instead of `{READY}`");
        Ok(reading)
    }

    /// Waits until the reader has everything.
    pub async fn result(&mut self) -> Result<ReadResult> {
        let said = self.line().await?;
        serde_json::from_str(&said).with_context(|| format!("the reader says `{said}`"))
    }

    async fn line(&mut self) -> Result<String> {
        let line = timeout(READ_MAX, self.lines.next_line()).await.context("the reader says nothing")??;
        line.context("the reader ended before its time")
    }

    /// User and system time that the process has used, in seconds.
    pub fn cpu(&self) -> Result<f64> {
        cpu(self.pid).context("the reader cannot be watched")
    }

    /// Kills the process, and waits until it is gone.
    pub async fn kill(mut self) -> Result<()> {
        self.child.kill().await.context("cannot kill a reader")
    }
}

/// User and system time that a process has used, in seconds.
pub fn cpu(pid: u32) -> Result<f64> {
    Ok(Stat::read(pid)?.own)
}

/// Resident memory of a process, in bytes.
pub fn rss(pid: u32) -> Result<f64> {
    let status = proc_file(pid, "status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("/proc/PID/status has no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse().context("VmRSS is not a number")?;
    Ok(kib * 1024.0)
}

/// How many files, connections among them, a process has open.
pub fn open_files(pid: u32) -> Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{pid}/fd")).context("open files cannot be counted")?.count())
}

/// User and system time of a process with all its children, also those that are gone.
pub fn family_cpu(parent: u32) -> Result<f64> {
    let mut seconds = 0.0;
    for entry in std::fs::read_dir("/proc").context("cannot read /proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // Any of them may be gone by now.
        let Ok(stat) = Stat::read(pid) else { continue };
        if stat.parent == parent {
            seconds += stat.own;
        }
    }
    let stat = Stat::read(parent)?;
    Ok(seconds + stat.own + stat.gone)
}

/// What `/proc/PID/stat` says about a process.
struct Stat {
    parent: u32,
    /// User and system time, in seconds.
    own: f64,
    /// The same of children that are gone.
    gone: f64,
}

impl Stat {
    fn read(pid: u32) -> Result<Self> {
        let stat = proc_file(pid, "stat")?;
        // The second field is the program's name in brackets, and may contain anything.
        let (_, fields) = stat.rsplit_once(')').context("/proc/PID/stat has no name field")?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let field = |nth: usize| fields.get(nth).copied().context("/proc/PID/stat is too short");
        let ticks = |nth: usize| -> Result<f64> { Ok(field(nth)?.parse::<f64>()?) };
        let seconds = |nth: usize| -> Result<f64> { Ok((ticks(nth)? + ticks(nth + 1)?) / TICKS_PER_SECOND) };
        // The first one after the name is field 3 of the file. Fields 14 and 15 are the process's own times, 16 and 17 its children's.
        Ok(Self { parent: field(1)?.parse()?, own: seconds(11)?, gone: seconds(13)? })
    }
}

fn proc_file(pid: u32, name: &str) -> Result<String> {
    let path = format!("/proc/{pid}/{name}");
    std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))
}

/// Raises the limit of open files: a thousand readers need as many, here and in the servers, which inherit the limit.
pub fn raise_open_files() {
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        eprintln!("the limit of open files stays as it is: {error}");
    }
}

/// Raises the limit of open files to at least so many.
pub fn need_open_files(needed: u64) -> Result<()> {
    raise_open_files();
    let (soft, hard) = rlimit::Resource::NOFILE.get()?;
    if soft >= needed {
        return Ok(());
    }
    // Only root may raise the hard one.
    rlimit::Resource::NOFILE
        .set(needed, needed.max(hard))
        .with_context(|| format!("{needed} files must be open at once, and the limit is {soft}: `ulimit -n` as root, or --streams"))
}

/// An address on this machine that nobody listens on.
pub fn free_address() -> Result<SocketAddr> {
    let probe = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot find a free port")?;
    Ok(probe.local_addr()?)
}

/// A directory for stores that is removed at the end.
pub struct Scratch {
    root: PathBuf,
    next: AtomicUsize,
}

impl Scratch {
    /// Makes a directory of its own in `parent`.
    pub fn new(parent: &Path) -> Result<Self> {
        let root = parent.join(format!("run-{}", std::process::id()));
        std::fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
        Ok(Self { root, next: AtomicUsize::new(0) })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// A new, empty directory in it.
    pub fn fresh(&self) -> Result<PathBuf> {
        let dir = self.root.join(format!("store-{}", self.next.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.root) {
            eprintln!("{} is left behind: {error}", self.root.display());
        }
    }
}
