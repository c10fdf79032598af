//! Push: how long after a task's end the last of its listeners knows.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    http::{Conn, Events},
    process::ServerProcess,
    wire,
};

/// How long one end may take to reach everybody, and one stream to open.
const PUSH_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause between two ends, so that each finds the server at rest.
const PAUSE: Duration = Duration::from_millis(20);
/// Pause before memory and processor time are read.
const SETTLE: Duration = Duration::from_millis(200);

/// What one round of pushes came to.
pub struct Pushes {
    /// For each end: milliseconds until the last listener knew.
    pub last_ms: Vec<f64>,
    /// For each end: milliseconds between the first and the last listener.
    pub spread_ms: Vec<f64>,
    /// Processor time of the server for each notification to one listener, in microseconds.
    pub cpu_us: f64,
    /// Memory of the server for each open stream, in bytes.
    pub bytes_per_stream: f64,
}

/// Makes `ends` tasks, opens `listeners` streams that listen to all of them, and ends the tasks one after another.
pub async fn run(server: &ServerProcess, listeners: usize, ends: usize) -> Result<Pushes> {
    let addr = server.addr;
    let mut conn = Conn::open(addr).await?;
    let mut tasks = Vec::new();
    for nth in 0..ends {
        tasks.push(wire::task_id(&conn.exchange(&wire::call(addr, nth, "park")).await?)?);
    }

    sleep(SETTLE).await;
    let memory = server.rss()?;
    let mut streams = Vec::new();
    for nth in 0..listeners {
        let stream = open(server, nth, &tasks);
        streams.push(timeout(PUSH_TIMEOUT, stream).await.context("a listen stream is not acknowledged")??);
    }
    sleep(SETTLE).await;
    let bytes_per_stream = (server.rss()? - memory) / listeners as f64;

    let (arrived, mut arrivals) = mpsc::channel(listeners);
    let mut readers = JoinSet::new();
    for stream in streams {
        readers.spawn(read(stream, tasks.clone(), arrived.clone()));
    }
    drop(arrived);
    // Streams may begin with the state that each task is in; let that be read first.
    sleep(SETTLE).await;

    // A connection of its own, fresh: the one above may have been idle for too long.
    let mut conn = Conn::open(addr).await?;
    let cpu = server.cpu()?;
    let (mut last_ms, mut spread_ms) = (Vec::new(), Vec::new());
    for (nth, task) in tasks.iter().enumerate() {
        sleep(PAUSE).await;
        let request = wire::cancel(addr, nth, task);
        let began = Instant::now();
        wire::expect(&conn.exchange(&request).await?, r#""resultType":"complete""#)?;
        let (first, last) = timeout(PUSH_TIMEOUT, gather(&mut arrivals, listeners))
            .await
            .with_context(|| format!("not every listener was sent the end of task {nth} of {ends}"))??;
        last_ms.push(last.duration_since(began).as_secs_f64() * 1e3);
        spread_ms.push(last.duration_since(first).as_secs_f64() * 1e3);
    }
    sleep(SETTLE).await;
    let cpu_us = (server.cpu()? - cpu) * 1e6 / (listeners * ends) as f64;
    Ok(Pushes { last_ms, spread_ms, cpu_us, bytes_per_stream })
}

async fn open(server: &ServerProcess, nth: usize, tasks: &[String]) -> Result<Events> {
    let mut events = Conn::open(server.addr).await?.listen(&wire::listen(server.addr, nth, tasks)).await?;
    let event = events.next().await?;
    ensure!(wire::is_acknowledgement(&event), "the first event is no acknowledgement: {}", String::from_utf8_lossy(&event));
    Ok(events)
}

/// Reports the moment of each task's end. Ends itself, and with it the report, when its stream breaks.
async fn read(mut stream: Events, tasks: Vec<String>, arrived: mpsc::Sender<Instant>) -> Result<()> {
    for task in &tasks {
        while !wire::is_cancelled_event(&stream.next().await?, task) {}
        arrived.send(Instant::now()).await?;
    }
    // Kept open until everybody is done: a closing connection would disturb the others.
    while stream.next().await.is_ok() {}
    Ok(())
}

/// Waits for one arrival of each listener; the first and the last of them.
async fn gather(arrivals: &mut mpsc::Receiver<Instant>, listeners: usize) -> Result<(Instant, Instant)> {
    let first = arrivals.recv().await.context("all listen streams broke")?;
    let (mut earliest, mut latest) = (first, first);
    for _ in 1..listeners {
        let next = arrivals.recv().await.context("all listen streams broke")?;
        (earliest, latest) = (earliest.min(next), latest.max(next));
    }
    Ok((earliest, latest))
}
