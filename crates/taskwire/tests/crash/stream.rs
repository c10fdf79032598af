//! A long stream, a server that is killed under it, and a reader that is cut off: the reader gets every chunk once.
//!
//! The stream comes in legs, one more than there are kills. Before each leg the tool asks whether to go on, and each leg
//! is allowed only when the kill in the one before it is over. So every kill finds the stream unfinished, however far the
//! tool is ahead of its reader.

use std::{io, time::Duration};

use serde_json::json;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::{
    ALONE, SETTLE,
    client::Client,
    dice,
    dice::Dice,
    model::status,
    partials::{Chunk, ListenRequest, Page, READ, answer_leg, begin, until_read},
    server::ServerFiles,
};

const KILLS: u64 = 10;
const CHUNKS: u64 = 5_000;
const LEG: u64 = CHUNKS.div_ceil(KILLS + 1);
/// The reader is cut off before it has read for so long.
const CUT_MS: u64 = 150;
/// How long the reader waits after it was cut off.
const PAUSE: Duration = Duration::from_millis(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_survives_ten_kills_without_a_gap_or_a_repeat() {
    let _alone = ALONE.lock().await;
    let (begun, mut dice) = (Instant::now(), dice());
    let server_files = ServerFiles::new(&mut dice);
    let mut server = server_files.start();
    server.accepts(server_files.port).await;
    let mut client = Client::new(server_files.port);
    let n = dice.below(1_000);
    let task = begin(&mut client, "count", json!({"n": n, "chunks": CHUNKS, "leg": LEG})).await;
    let reader = Reader::new(server_files.port, &task, Dice::new(dice.roll()));
    let mut has = reader.has.subscribe();
    let reading = tokio::spawn(reader.run());

    for leg in 0..KILLS {
        answer_leg(&mut client, &task, leg * LEG).await;
        until_read(&mut has, leg * LEG + dice.below(LEG)).await;
        server.kill();
        server = server_files.start();
        server.accepts(server_files.port).await;
    }
    answer_leg(&mut client, &task, KILLS * LEG).await;
    let reader = timeout(SETTLE, reading).await.unwrap_or_else(|_| panic!("the stream does not end within {SETTLE:?}"));
    let reader = reader.expect("the reader found a broken promise");

    let expected: String = (0..CHUNKS).map(|index| line(n, index)).collect();
    assert_eq!(reader.next, CHUNKS, "each step is one chunk");
    let differs = reader.text.lines().zip(expected.lines()).position(|(read, written)| read != written);
    assert!(reader.text == expected, "the text is not what the tool writes when nobody kills it, from line {differs:?} on");
    let state = client.until_ok("tasks/get", &json!({"taskId": task})).await;
    assert_eq!(status(&state), "completed", "{state}");
    assert_eq!(state["result"]["content"][0]["text"], format!("count-{n}"), "{state}");
    server.kill();
    eprintln!(
        "crash: {CHUNKS} chunks read once each through {KILLS} kills, by {} listens and {} pulls of which {} were cut off, in {:.1} s",
        reader.listens,
        reader.pulls,
        reader.cuts,
        begun.elapsed().as_secs_f64()
    );
}

/// What `count` writes as chunk `index`.
fn line(n: u64, index: u64) -> String {
    format!("{n}-{index} {}\n", "é".repeat(usize::try_from(index % 61).expect("a small number")))
}

/// Reads the output of one task, now on a stream and now page by page. Wherever it is cut off, it goes on behind the last
/// chunk that it has.
#[derive(Debug)]
struct Reader {
    port: u16,
    task: String,
    client: Client,
    dice: Dice,
    /// The chunk that it reads next.
    next: u64,
    /// Says so to others.
    has: watch::Sender<u64>,
    text: String,
    /// There is nothing more to read.
    done: bool,
    listens: u64,
    pulls: u64,
    cuts: u64,
}

impl Reader {
    fn new(port: u16, task: &str, dice: Dice) -> Self {
        let (client, has) = (Client::new(port), watch::Sender::new(0));
        let (next, text, done) = (0, String::new(), false);
        Self { port, task: task.to_owned(), client, dice, next, has, text, done, listens: 0, pulls: 0, cuts: 0 }
    }

    /// Reads until the stream has ended.
    async fn run(mut self) -> Self {
        while !self.done {
            let cut = Duration::from_millis(self.dice.below(CUT_MS));
            let whole = if self.dice.one_in(2) {
                self.listens += 1;
                matches!(timeout(cut, self.listen()).await, Ok(Ok(())))
            } else {
                self.pulls += 1;
                matches!(timeout(cut, self.pull()).await, Ok(true))
            };
            if !whole {
                self.cuts += 1;
                sleep(PAUSE).await;
            }
        }
        self
    }

    /// Listens, and hangs up after some chunks.
    async fn listen(&mut self) -> io::Result<()> {
        let mut listening = ListenRequest::send(self.port, &self.task, self.next).await?.begin().await?;
        for _ in 0..=self.dice.below(300) {
            match listening.chunk().await? {
                Some(chunk) => self.take(chunk),
                None => {
                    self.done = true;
                    break;
                }
            }
        }
        Ok(())
    }

    /// Fetches a page, and waits a little for it if there is none. Says whether it came.
    async fn pull(&mut self) -> bool {
        let (limit, wait_ms) = (1 + self.dice.below(100), self.dice.below(100));
        let params = json!({"taskId": self.task, "fromSeq": self.next, "limit": limit, "waitMs": wait_ms});
        let Some(reply) = self.client.try_once(READ, &params).await else { return false };
        let result = reply.unwrap_or_else(|error| panic!("the output of {} is refused: {error}", self.task));
        let page: Page = serde_json::from_value(result).unwrap_or_else(|error| panic!("no page of chunks: {error}"));
        assert_eq!(page.from_seq, self.next, "a page that begins elsewhere: {page:?}");
        assert!(page.chunks.len() as u64 <= limit, "more than {limit} chunks: {page:?}");
        for chunk in page.chunks {
            self.take(chunk);
        }
        assert_eq!(page.next_seq, self.next, "a page that goes on elsewhere than it ends");
        self.done = page.done;
        true
    }

    fn take(&mut self, chunk: Chunk) {
        assert_eq!(chunk.seq, self.next, "a gap or a repeat: {chunk:?}");
        self.text.push_str(&chunk.text());
        self.next += 1;
        self.has.send_replace(self.next);
    }
}
