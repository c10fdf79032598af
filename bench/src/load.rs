//! The load generator: some connections, each sending its next request when it has the last response.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    http::Conn,
    wire::{self, ECHO_TEXT},
};

/// How long one load may take.
const LOAD_MAX: Duration = Duration::from_secs(900);
/// Errors after which a connection gives up.
const ERRORS_MAX: usize = 10;
/// How often a task is asked for its state before it counts as stuck.
const POLLS_MAX: usize = 5_000;
/// Pause between two polls of one task.
const POLL_PAUSE: Duration = Duration::from_millis(1);

/// What is done again and again.
#[derive(Clone)]
pub enum Op {
    /// Calls `echo`.
    Echo,
    /// Calls a tool that becomes a task.
    Create(&'static str),
    /// Asks for the state of one of these tasks, all of which are working.
    Get(Arc<Vec<String>>),
    /// Calls a tool that becomes a task and asks until the task is completed.
    Cycle(&'static str),
    /// Asks for the state of one of these tasks, all of which are completed.
    GetEnded(Arc<Vec<String>>),
    /// Asks for the first output of one of these tasks.
    Page(Arc<Vec<String>>),
}

/// When a load is over.
#[derive(Clone, Copy)]
pub enum Until {
    /// When so much was done.
    Done(usize),
    /// At this moment.
    At(Instant),
}

impl Until {
    /// Whether what would be done as the `nth` is not done any more.
    fn is_over(self, nth: usize) -> bool {
        match self {
            Self::Done(total) => nth >= total,
            Self::At(end) => Instant::now() >= end,
        }
    }
}

/// What a load came to.
#[derive(Default)]
pub struct LoadResult {
    /// How long the whole took, in seconds.
    pub seconds: f64,
    /// How long each success took, in microseconds, shortest first.
    pub latencies_us: Vec<f64>,
    /// The tasks that were made.
    pub tasks: Vec<String>,
    /// How many went wrong.
    pub errors: usize,
    /// What went wrong first.
    pub first_error: Option<String>,
}

impl LoadResult {
    fn add(&mut self, other: Self) {
        self.latencies_us.extend(other.latencies_us);
        self.tasks.extend(other.tasks);
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
    }

    /// The tasks that were made, if nothing went wrong.
    pub fn into_tasks(self) -> Result<Vec<String>> {
        match self.first_error {
            None => Ok(self.tasks),
            Some(error) => bail!("{} requests failed, the first one so: {error}", self.errors),
        }
    }
}

/// Does `op` `total` times over `connections` connections.
pub async fn run(addr: SocketAddr, connections: usize, total: usize, op: Op) -> Result<LoadResult> {
    run_on(&[(addr, op)], connections.min(total), Until::Done(total)).await
}

/// The same on several servers, with what is done on each: they get the connections in turns.
pub async fn run_on(servers: &[(SocketAddr, Op)], connections: usize, until: Until) -> Result<LoadResult> {
    let mut conns = Vec::new();
    for (addr, op) in servers.iter().cycle().take(connections) {
        conns.push((Conn::open(*addr).await?, *addr, op.clone()));
    }
    let next = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    let began = Instant::now();
    for (conn, addr, op) in conns {
        workers.spawn(worker(conn, addr, until, next.clone(), op));
    }
    let mut load = LoadResult::default();
    while let Some(worker) = timeout(LOAD_MAX, workers.join_next()).await.context("the load takes for ever")? {
        load.add(worker.context("a worker broke")?);
    }
    load.seconds = began.elapsed().as_secs_f64();
    load.latencies_us.sort_by(f64::total_cmp);
    Ok(load)
}

async fn worker(mut conn: Conn, addr: SocketAddr, until: Until, next: Arc<AtomicUsize>, op: Op) -> LoadResult {
    let mut load = LoadResult::default();
    loop {
        let nth = next.fetch_add(1, Ordering::Relaxed);
        if until.is_over(nth) || load.errors >= ERRORS_MAX {
            return load;
        }
        let began = Instant::now();
        match once(&mut conn, addr, nth, &op).await {
            Ok(task) => {
                load.latencies_us.push(began.elapsed().as_secs_f64() * 1e6);
                load.tasks.extend(task);
            }
            Err(error) => {
                load.errors += 1;
                load.first_error.get_or_insert_with(|| format!("{error:#}"));
            }
        }
    }
}

async fn once(conn: &mut Conn, addr: SocketAddr, nth: usize, op: &Op) -> Result<Option<String>> {
    match op {
        Op::Echo => {
            wire::expect(&conn.exchange(&wire::echo(addr, nth)).await?, ECHO_TEXT)?;
            Ok(None)
        }
        Op::Create(tool) => create(conn, addr, nth, tool).await.map(Some),
        Op::Get(tasks) => {
            let task = &tasks[scattered(nth) % tasks.len()];
            wire::expect(&conn.exchange(&wire::get(addr, nth, task)).await?, r#""status":"working""#)?;
            Ok(None)
        }
        Op::Cycle(tool) => {
            let task = create(conn, addr, nth, tool).await?;
            until_completed(conn, addr, &task).await?;
            Ok(Some(task))
        }
        Op::GetEnded(tasks) => {
            let task = &tasks[scattered(nth) % tasks.len()];
            wire::expect(&conn.exchange(&wire::get(addr, nth, task)).await?, r#""status":"completed""#)?;
            Ok(None)
        }
        Op::Page(tasks) => {
            let task = &tasks[scattered(nth) % tasks.len()];
            wire::expect(&conn.exchange(&wire::page(addr, nth, task)).await?, r#""chunks":[{"seq":0,"#)?;
            Ok(None)
        }
    }
}

async fn create(conn: &mut Conn, addr: SocketAddr, nth: usize, tool: &str) -> Result<String> {
    wire::task_id(&conn.exchange(&wire::call(addr, nth, tool)).await?)
}

/// Asks for the state of a task until it is completed.
pub async fn until_completed(conn: &mut Conn, addr: SocketAddr, task: &str) -> Result<()> {
    let request = wire::get(addr, 0, task);
    for _ in 0..POLLS_MAX {
        match wire::status(&conn.exchange(&request).await?)?.as_str() {
            "completed" => return Ok(()),
            "working" => sleep(POLL_PAUSE).await,
            other => bail!("the task {task} is {other}"),
        }
    }
    bail!("the task {task} is never completed")
}

/// A number that looks random, so that neighbouring requests ask for tasks that are far apart.
fn scattered(nth: usize) -> usize {
    nth.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 24
}
