//! One reader that never reads beside a hundred that do: what it costs the server, and whether the others notice.
//!
//! The stream comes in legs: the tool goes on when every reader that reads has all of the last one. So none of them is
//! ever far behind, however slow the machine is, and what the server must hold for them is about the same in every run.

use serde_json::json;
use taskwire::clock::{Clock, SystemClock};
use tokio::{sync::watch, time::Instant};

use crate::{
    ALONE,
    client::Client,
    dice,
    dice::Dice,
    model::status,
    partials::{ListenRequest, ListenStream, answer_leg, begin, until_read},
    server::ServerFiles,
};

/// Readers that read.
const READERS: usize = 100;
/// 24 MB. On a connection that nobody reads from, the system takes about 4 MB of them; the rest is left to the server.
const CHUNKS: u64 = 2_000;
/// Bytes of one chunk of `flood`.
const CHUNK_BYTES: usize = 12_000;
/// Less than fits into the system's buffers of one connection: the server need not hold a leg for anybody.
const LEG: u64 = 20;
/// What a reader that never reads may cost. Were the stream kept for it, it would cost more than twice as much.
const COST_MAX: u64 = 8 * 1024 * 1024;
/// Pairs of runs, at most.
const PAIRS: usize = 3;

/// Memory is compared at its peak, each run in a new process. A peak is what the work needs and some chance on top
/// (which thread took which memory, and when it was returned), so the least of several is nearest to what the work
/// needs. A second pair of runs is there to outdo chance. It cannot excuse a server that keeps the stream for the reader
/// that never reads: that is no chance, it is 20 MB in each run that has one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_never_reads_costs_little_and_slows_nobody() {
    let _alone = ALONE.lock().await;
    let mut dice = dice();
    let (mut without, mut with) = (u64::MAX, u64::MAX);
    for _ in 0..PAIRS {
        let peaks = (run(&mut dice, false).await, run(&mut dice, true).await);
        let (Some(peak_without), Some(peak_with)) = peaks else {
            eprintln!("crash: this system does not say how much memory a process has");
            return;
        };
        (without, with) = (without.min(peak_without), with.min(peak_with));
        let cost = with.saturating_sub(without);
        eprintln!("crash: a reader that never reads costs {} KiB", cost / 1024);
        if cost < COST_MAX {
            return;
        }
    }
    panic!("a reader that never reads makes a peak of {without} bytes one of {with}");
}

/// Streams to all readers, beside one that never reads if `stalls`. Says how much memory the server had at most.
async fn run(dice: &mut Dice, stalls: bool) -> Option<u64> {
    let begun = Instant::now();
    let server_files = ServerFiles::new(dice);
    let mut server = server_files.start();
    server.accepts(server_files.port).await;
    let mut client = Client::new(server_files.port);
    let task = begin(&mut client, "flood", json!({"n": 1, "chunks": CHUNKS, "leg": LEG})).await;
    let mut stalled = None;
    if stalls {
        let asked = ListenRequest::send(server_files.port, &task, 0).await.expect("a request can be sent");
        asked.answered().await.expect("the server answers");
        stalled = Some(asked);
    }
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let asked = ListenRequest::send(server_files.port, &task, 0).await.expect("a request can be sent");
        let (says, has) = watch::channel(0);
        readers.push((tokio::spawn(follow(asked.begin().await.expect("the server answers"), says)), has));
    }
    for leg in 0..CHUNKS / LEG {
        answer_leg(&mut client, &task, leg * LEG).await;
        for (_, has) in &mut readers {
            until_read(has, (leg + 1) * LEG).await;
        }
    }
    let mut late = Vec::new();
    for (reader, _) in readers {
        late.extend(reader.await.expect("a reader found a broken promise"));
    }
    let state = client.until_ok("tasks/get", &json!({"taskId": task})).await;
    assert_eq!(status(&state), "completed", "{state}");
    // Everybody else has everything, and nobody has read a byte of the stalled stream yet.
    let peak = server.memory_peak();
    report(&mut late, stalls, peak, begun);
    if let Some(asked) = stalled {
        // It was a reader like the others: late as it is, it misses nothing.
        follow(asked.begin().await.expect("the stalled stream is still there"), watch::Sender::new(0)).await;
    }
    server.kill();
    peak
}

/// Reads the whole stream and checks every chunk. Says how many milliseconds after it was written each one came.
async fn follow(mut listening: ListenStream, has: watch::Sender<u64>) -> Vec<i64> {
    let (mut late, mut next) = (Vec::new(), 0);
    while let Some(chunk) = listening.chunk().await.expect("the server lives") {
        let now = SystemClock.now().as_millis();
        assert_eq!(chunk.seq, next, "a gap or a repeat");
        late.push(now - written_at(&chunk.text(), next));
        next += 1;
        has.send_replace(next);
    }
    assert_eq!(next, CHUNKS, "the stream has ended too early");
    late
}

/// When `flood` wrote this chunk, which must be its number `index`.
fn written_at(text: &str, index: u64) -> i64 {
    assert_eq!(text.len(), CHUNK_BYTES, "not a chunk as it was written");
    let (number, rest) = text.split_once(' ').expect("a chunk begins with its number");
    let (at, _) = rest.split_once(' ').expect("then comes the time");
    assert_eq!(number.parse::<u64>(), Ok(index), "another chunk than its number says");
    at.parse().expect("a time in milliseconds")
}

/// For people to read: our tests assert no times.
fn report(late: &mut [i64], stalls: bool, peak: Option<u64>, begun: Instant) {
    late.sort_unstable();
    let (half, most) = (late[late.len() / 2], late[late.len() * 99 / 100]);
    eprintln!(
        "crash: {READERS} readers{}: p50 {half} ms, p99 {most} ms, peak {} KiB, in {:.1} s",
        if stalls { " and one that never reads" } else { "" },
        peak.unwrap_or(0) / 1024,
        begun.elapsed().as_secs_f64()
    );
}
