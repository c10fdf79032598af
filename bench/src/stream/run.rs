//! One run of a streaming measure on one server.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use super::reader::{ReadCounts, Reader};
use crate::{http::Conn, load, process::ServerProcess, report::FlowSample, serve::Write, wire};

/// How long a stream may take to open.
const OPEN_MAX: Duration = Duration::from_secs(30);
/// How long it may take until another reader is done.
const READ_MAX: Duration = Duration::from_secs(300);
/// Pause before and after a run, so that what it leaves to be done is counted with it.
const SETTLE: Duration = Duration::from_millis(200);
/// Pause before memory is read.
const REST: Duration = Duration::from_secs(1);

/// What a run came to.
pub struct Flow {
    /// The task that wrote.
    pub task: String,
    /// The numbers.
    pub sample: FlowSample,
    /// Microseconds from the writing of each text to its receipt, if texts say when they were written.
    pub delays_us: Vec<f64>,
}

/// A name that no gate has yet.
pub fn new_gate() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("gate-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Opens the streams, then the gate of the tool that writes, and reads everything. Where it is known, `chunks` is how
/// many chunks each reader must get.
pub async fn live(server: &ServerProcess, readers: usize, write: &Write, chunks: Option<usize>) -> Result<Flow> {
    across(server, server, readers, write, chunks).await
}

/// The same of a task that runs on `server`, read from `other`, which shares its store.
pub async fn across(server: &ServerProcess, other: &ServerProcess, readers: usize, write: &Write, chunks: Option<usize>) -> Result<Flow> {
    let task = call(server, write).await?;
    let streams = open(other, readers, &task, write.is_stamped()).await?;
    // Before anything is measured, so that it need not wait behind what the gate lets through.
    let mut conn = Conn::open(server.addr).await?;
    sleep(SETTLE).await;
    let cpu = server.cpu()?;
    let began = Instant::now();
    let mut reads = JoinSet::new();
    for stream in streams {
        reads.spawn(read(stream, write.text_bytes()));
    }
    wire::expect(&conn.exchange(&wire::open(server.addr, &write.gate)).await?, "opened")?;
    let (sample, delays_us) = gather(server, reads, began, cpu, chunks).await?;
    Ok(Flow { task, sample, delays_us })
}

/// Reads all that a task has written, which has ended.
pub async fn replay(server: &ServerProcess, readers: usize, task: &str, write: &Write, chunks: Option<usize>) -> Result<FlowSample> {
    let mut conns = Vec::new();
    for _ in 0..readers {
        conns.push(Conn::open(server.addr).await?);
    }
    sleep(SETTLE).await;
    let cpu = server.cpu()?;
    let began = Instant::now();
    let mut reads = JoinSet::new();
    for (nth, conn) in conns.into_iter().enumerate() {
        let request = wire::partials(server.addr, nth, task);
        let (task, text_bytes) = (task.to_owned(), write.text_bytes());
        reads.spawn(async move { read(Reader::open(conn, &request, &task, false).await?, text_bytes).await });
    }
    Ok(gather(server, reads, began, cpu, chunks).await?.0)
}

/// Microseconds that each text took to become durable, with nobody reading.
pub async fn commits(server: &ServerProcess, write: &Write) -> Result<Vec<f64>> {
    let task = call(server, write).await?;
    let mut conn = Conn::open(server.addr).await?;
    wire::expect(&conn.exchange(&wire::open(server.addr, &write.gate)).await?, "opened")?;
    // Polls would disturb it.
    sleep(write.span() + SETTLE).await;
    load::until_completed(&mut conn, server.addr, &task).await?;
    let text = wire::result_text(&conn.exchange(&wire::get(server.addr, 0, &task)).await?)?;
    let waits = text.split_ascii_whitespace().map(str::parse::<f64>).collect::<Result<Vec<_>, _>>().context("not a list of numbers")?;
    ensure!(waits.len() == write.texts, "{} commits were timed instead of {}", waits.len(), write.texts);
    Ok(waits)
}

/// Memory of the server for each stream on which nothing happens, in bytes.
pub async fn idle(server: &ServerProcess, streams: usize) -> Result<f64> {
    let write = Write { gate: new_gate(), texts: 1, size: 1, pause_us: 0, flush: false };
    let task = call(server, &write).await?;
    sleep(REST).await;
    let before = server.rss()?;
    let open = open(server, streams, &task, false).await?;
    sleep(REST).await;
    let after = server.rss()?;
    drop(open);
    Ok((after - before) / streams as f64)
}

/// Calls the tool that writes; its task.
async fn call(server: &ServerProcess, write: &Write) -> Result<String> {
    wire::task_id(&Conn::open(server.addr).await?.exchange(&wire::write(server.addr, write)?).await?)
}

/// Opens streams on a task.
async fn open(server: &ServerProcess, readers: usize, task: &str, stamped: bool) -> Result<Vec<Reader>> {
    let mut streams = Vec::with_capacity(readers);
    for nth in 0..readers {
        let request = wire::partials(server.addr, nth, task);
        let stream = Reader::open(Conn::open(server.addr).await?, &request, task, stamped);
        streams.push(timeout(OPEN_MAX, stream).await.context("a stream is not acknowledged")??);
    }
    Ok(streams)
}

/// Reads a stream to its end; the moment at which the last text was there.
async fn read(mut stream: Reader, text_bytes: u64) -> Result<(Instant, ReadCounts)> {
    stream.until(|counts| counts.text_bytes >= text_bytes).await?;
    let done = Instant::now();
    stream.until(|counts| counts.ended).await?;
    let counts = stream.into_counts();
    ensure!(counts.text_bytes == text_bytes, "{} bytes of text came instead of {text_bytes}", counts.text_bytes);
    Ok((done, counts))
}

/// Waits for all readers.
async fn gather(
    server: &ServerProcess,
    mut reads: JoinSet<Result<(Instant, ReadCounts)>>,
    began: Instant,
    cpu: f64,
    expected: Option<usize>,
) -> Result<(FlowSample, Vec<f64>)> {
    let mut sample = FlowSample::default();
    let mut delays_us = Vec::new();
    let mut last = began;
    while let Some(read) = timeout(READ_MAX, reads.join_next()).await.context("readers wait for ever")? {
        let (done, counts) = read.context("a reader broke")??;
        if let Some(expected) = expected {
            ensure!(counts.chunks == expected as u64, "{} chunks came instead of {expected}", counts.chunks);
        }
        last = last.max(done);
        sample.chunks += counts.chunks;
        sample.text_bytes += counts.text_bytes;
        sample.wire_bytes += counts.wire_bytes;
        delays_us.extend(counts.delays_us);
    }
    sleep(SETTLE).await;
    sample.seconds = last.duration_since(began).as_secs_f64();
    sample.cpu_us = (server.cpu()? - cpu) * 1e6 / sample.chunks as f64;
    Ok((sample, delays_us))
}
