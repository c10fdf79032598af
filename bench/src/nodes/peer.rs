//! The peer: FastMCP with its tasks on Redis. Its protocol is that of Taskwire, so the same load generator asks it the same.
//!
//! `peers/setup.sh` installs both. Redis is set up as by default, but for a log of what it was told, which reaches the disk each second:
//! it acknowledges earlier than Taskwire does. Several servers share it, each with the ten slots that it has by default.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::TcpStream,
    process::{Child, Command},
    time::{sleep, timeout},
};

use super::{
    Bench,
    cluster::Cpu,
    database::SETTLE,
    found::{Case, Found, RateSample, What, Who},
};
use crate::{
    load::{self, Op, Until},
    process::{cpu, free_address},
};

/// How long one of them may take to accept connections, or to end.
const START_MAX: Duration = Duration::from_secs(60);
/// Tasks that are made before anything is measured.
const WARM_CREATES: usize = 50;

/// Runs a program, says its number, and ends it when standard input ends, which it does when the benchmark is gone.
const GUARD: &str = r#"
trap '' INT
"$@" >/dev/null &
server=$!
echo "$server"
cat >/dev/null
kill -KILL "$server"
wait "$server" 2>/dev/null
"#;

/// Where its programs are.
pub struct Programs {
    python: PathBuf,
    server: PathBuf,
    redis: PathBuf,
}

impl Programs {
    /// Looks for them; what is missing, if anything is.
    pub fn find() -> Result<Self> {
        let bench = Path::new(env!("CARGO_MANIFEST_DIR"));
        let python = bench.join("target/peers/bin/python");
        // Written when everything was installed.
        ensure!(bench.join("target/peers/.complete").is_file() && python.is_file(), "FastMCP is not in bench/target/peers");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let redis = std::env::split_paths(&path).map(|dir| dir.join("redis-server")).find(|program| program.is_file());
        Ok(Self { python, server: bench.join("peers/fastmcp_redis.py"), redis: redis.context("redis-server is not in PATH")? })
    }
}

/// Measures so many servers that share one Redis.
pub async fn measure(bench: &Bench, programs: &Programs, count: usize, found: &mut Found) -> Result<()> {
    let plan = &bench.plan;
    let redis = Redis::start(programs, &bench.scratch.fresh()?).await?;
    let mut servers = Vec::new();
    for _ in 0..count {
        servers.push(Fastmcp::start(programs, redis.addr)?);
    }
    for server in &mut servers {
        server.accepting().await?;
    }
    let everywhere = |op: &Op| servers.iter().map(|server| (server.addr, op.clone())).collect::<Vec<_>>();
    let spent = || {
        let own = servers.iter().map(|server| cpu(server.pid)).sum::<Result<f64>>()?;
        Ok::<_, anyhow::Error>(Cpu { own, store: cpu(redis.pid)? })
    };
    let create = everywhere(&Op::Create("park"));
    let mut tasks = load::run_on(&create, plan.connections, Until::Done(WARM_CREATES * count)).await?.into_tasks()?;
    for what in [What::Create, What::Get] {
        let (ops, total) = match what {
            What::Create => (create.clone(), plan.peer_creates),
            _ => (everywhere(&Op::Get(Arc::new(tasks.clone()))), plan.peer_reads),
        };
        sleep(SETTLE).await;
        let before = spent()?;
        let load = load::run_on(&ops, plan.connections, Until::Done(total)).await?;
        sleep(SETTLE).await;
        let sample = RateSample::new(load.latencies_us.len(), load.seconds, spent()?.since(before));
        tasks.extend(load.into_tasks()?);
        found.rate(Case::new(what, Who::Fastmcp, count), sample);
    }
    for server in servers {
        server.kill().await?;
    }
    redis.stop().await
}

/// A running Redis. Its guard ends it when this is gone.
struct Redis {
    addr: SocketAddr,
    pid: u32,
    guard: Child,
}

impl Redis {
    async fn start(programs: &Programs, dir: &Path) -> Result<Self> {
        let addr = free_address()?;
        let mut guard = Command::new("sh")
            .args(["-c", GUARD, "guard"])
            .arg(&programs.redis)
            .args(["--bind", "127.0.0.1", "--port", &addr.port().to_string(), "--appendonly", "yes", "--appendfsync", "everysec", "--dir"])
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start Redis")?;
        let said = guard.stdout.take().context("the guard of Redis has no output")?;
        let line = timeout(START_MAX, BufReader::new(said).lines().next_line()).await.context("the guard of Redis says nothing")??;
        let pid: u32 = line.context("the guard of Redis has ended")?.trim().parse().context("Redis has no process id")?;
        let redis = Self { addr, pid, guard };
        until_accepting(addr, || Ok(())).await?;
        Ok(redis)
    }

    async fn stop(mut self) -> Result<()> {
        drop(self.guard.stdin.take());
        timeout(START_MAX, self.guard.wait()).await.context("Redis does not end")??;
        Ok(())
    }
}

/// A running server.
struct Fastmcp {
    addr: SocketAddr,
    pid: u32,
    child: Child,
}

impl Fastmcp {
    fn start(programs: &Programs, redis: SocketAddr) -> Result<Self> {
        let addr = free_address()?;
        let child = Command::new(&programs.python)
            .arg(&programs.server)
            .arg(addr.to_string())
            .arg(format!("redis://{redis}/0"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start FastMCP")?;
        let pid = child.id().context("FastMCP has no process id")?;
        Ok(Self { addr, pid, child })
    }

    async fn accepting(&mut self) -> Result<()> {
        let child = &mut self.child;
        until_accepting(self.addr, || match child.try_wait()? {
            Some(status) => bail!("FastMCP ended while it was started: {status}"),
            None => Ok(()),
        })
        .await
    }

    async fn kill(mut self) -> Result<()> {
        self.child.kill().await.context("cannot kill FastMCP")
    }
}

/// Waits until somebody accepts connections there, as long as `check` has no objection.
async fn until_accepting(addr: SocketAddr, mut check: impl FnMut() -> Result<()>) -> Result<()> {
    let began = Instant::now();
    while TcpStream::connect(addr).await.is_err() {
        check()?;
        ensure!(began.elapsed() < START_MAX, "nobody accepts connections at {addr}");
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
