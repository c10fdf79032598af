//! What happens between a node and its database: connections are cut at any point, answers are lost, and notifications are.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use serde_json::json;
use taskwire::{store::PostgresConfig, tool::TaskMode};
use taskwire_testkit::Server;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, watch},
    task::{JoinHandle, block_in_place},
    time::Instant,
};

use super::{Node, gone, started, within_a_minute};
use crate::{
    kit::{Client, KEY, SECOND, with_timeout},
    tasks::registry,
    tool_harness::{Runs, ToolRun, follow, next_briefs, output, played, run_of},
};

/// The command that ends a transaction, and the server's word that it has.
const COMMIT: &[u8] = b"COMMIT\0";
/// What each transaction of the writer begins with.
const BEGIN: &[u8] = b"BEGIN ISOLATION LEVEL";
/// Bytes that are passed on together: more than a transaction of these tests has, so that its words come whole.
const PIECE_BYTES: usize = 64 * 1024;
/// Pieces that are on their way in one direction.
const ON_THE_WAY_MAX: usize = 256;

/// At which point a connection is cut.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    /// When the node says this,
    word: &'static [u8],
    /// and so many bytes from there on have passed. What follows does not.
    after: usize,
    /// Whether that is not before the server has committed. The node does not hear of it.
    when_committed: bool,
}

const BEFORE_COMMIT: Cut = Cut { word: COMMIT, after: 0, when_committed: false };
/// Nobody knows whether the server does it.
const AT_COMMIT: Cut = Cut { word: COMMIT, after: COMMIT.len(), when_committed: false };
const AFTER_COMMIT: Cut = Cut { word: COMMIT, after: COMMIT.len(), when_committed: true };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Passes,
    /// What the server says is lost, and nobody notices.
    LosesAnswers,
    /// All connections end, and new ones too.
    Refuses,
}

/// Between a node and its database.
pub(super) struct Proxy {
    port: u16,
    line: Arc<Line>,
    accepting: JoinHandle<()>,
}

struct Line {
    server: u16,
    /// How long everything takes in each direction.
    delay: Duration,
    mode: watch::Sender<Mode>,
    cut: Mutex<Option<Cut>>,
    /// How many connections there were, and how many of them are swallowed: all that either side says is lost, and nobody notices.
    connections: AtomicUsize,
    swallowed: AtomicUsize,
}

impl Proxy {
    pub(super) async fn before(server: u16) -> Self {
        Self::with_delay(server, Duration::ZERO).await
    }

    pub(super) async fn with_delay(server: u16, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (mode, connections, swallowed) = (watch::Sender::new(Mode::Passes), AtomicUsize::new(0), AtomicUsize::new(0));
        let line = Arc::new(Line { server, delay, mode, cut: Mutex::default(), connections, swallowed });
        let accepting = tokio::spawn({
            let line = line.clone();
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    let line = line.clone();
                    tokio::spawn(async move { line.pass(client).await });
                }
            }
        });
        Self { port, line, accepting }
    }

    pub(super) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    pub(super) fn set(&self, mode: Mode) {
        self.line.mode.send_replace(mode);
    }

    /// Swallows every connection that there is. New ones pass.
    fn swallow(&self) {
        self.line.swallowed.store(self.line.connections.load(Ordering::Acquire), Ordering::Release);
    }

    /// The first connection that comes to this point is cut there.
    pub(super) fn arm(&self, cut: Cut) {
        *self.line.cut.lock().unwrap_or_else(PoisonError::into_inner) = Some(cut);
    }

    fn is_armed(&self) -> bool {
        self.line.cut.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.set(Mode::Refuses);
    }
}

impl Line {
    /// Passes on what both sides say, until one of them is gone or the connection is cut.
    async fn pass(&self, client: TcpStream) {
        let Ok(server) = TcpStream::connect(("127.0.0.1", self.server)).await else { return };
        // Only the delay that was asked for.
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let until_committed = AtomicBool::new(false);
        let number = self.connections.fetch_add(1, Ordering::AcqRel);
        let mut mode = self.mode.subscribe();
        let refused = async {
            let _ = mode.wait_for(|mode| *mode == Mode::Refuses).await;
        };
        tokio::select! {
            biased;
            () = refused => {}
            () = self.up(number, from_client, to_server, &until_committed) => {}
            () = self.down(number, from_server, to_client, &until_committed) => {}
        }
    }

    /// What the node says. A word that comes in two pieces is not found; the next one is.
    async fn up(&self, number: usize, mut from: OwnedReadHalf, to: OwnedWriteHalf, until_committed: &AtomicBool) {
        let (pieces, arriving) = mpsc::channel(ON_THE_WAY_MAX);
        let read = async move {
            // How many bytes pass before the cut.
            let mut left: Option<(usize, Cut)> = None;
            while let Some(mut piece) = next(&mut from).await {
                if self.swallows(number) {
                    continue;
                }
                // A later cut replaces one that has not been reached.
                left = self.found_in(&piece).or(left);
                let is_the_last = match &mut left {
                    Some((left, cut)) if *left <= piece.len() => {
                        piece.truncate(*left);
                        // Before the server can answer.
                        until_committed.store(cut.when_committed, Ordering::Release);
                        true
                    }
                    Some((left, _)) => {
                        *left -= piece.len();
                        false
                    }
                    None => false,
                };
                if pieces.send((Instant::now() + self.delay, piece)).await.is_err() {
                    return;
                }
                if is_the_last {
                    break;
                }
            }
            if until_committed.load(Ordering::Acquire) {
                // The other direction sees when that is.
                std::future::pending::<()>().await;
            }
        };
        tokio::join!(read, arrive(arriving, to));
    }

    /// What the server says.
    async fn down(&self, number: usize, mut from: OwnedReadHalf, to: OwnedWriteHalf, until_committed: &AtomicBool) {
        let (pieces, arriving) = mpsc::channel(ON_THE_WAY_MAX);
        let read = async move {
            let mut lost = Vec::new();
            while let Some(piece) = next(&mut from).await {
                let is_lost = *self.mode.borrow() == Mode::LosesAnswers || self.swallows(number);
                if until_committed.load(Ordering::Acquire) {
                    lost.extend(piece);
                    if position_of(COMMIT, &lost).is_some() {
                        return;
                    }
                } else if !is_lost && pieces.send((Instant::now() + self.delay, piece)).await.is_err() {
                    return;
                }
            }
        };
        tokio::join!(read, arrive(arriving, to));
    }

    /// Whether this connection is swallowed.
    fn swallows(&self, number: usize) -> bool {
        number < self.swallowed.load(Ordering::Acquire)
    }

    /// Whether the connection is to be cut in what begins with this piece, and after how many bytes.
    fn found_in(&self, piece: &[u8]) -> Option<(usize, Cut)> {
        let mut armed = self.cut.lock().unwrap_or_else(PoisonError::into_inner);
        let at = position_of(armed.as_ref()?.word, piece)?;
        armed.take().map(|cut| (at + cut.after, cut))
    }
}

/// The next piece of what somebody says.
async fn next(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let mut piece = Vec::with_capacity(PIECE_BYTES);
    matches!(from.read_buf(&mut piece).await, Ok(1..)).then_some(piece)
}

/// Lets each piece arrive when it is time.
async fn arrive(mut pieces: mpsc::Receiver<(Instant, Vec<u8>)>, mut to: OwnedWriteHalf) {
    while let Some((at, piece)) = pieces.recv().await {
        tokio::time::sleep_until(at).await;
        if to.write_all(&piece).await.is_err() {
            return;
        }
    }
}

fn position_of(word: &[u8], bytes: &[u8]) -> Option<usize> {
    bytes.windows(word.len()).position(|window| window == word)
}

/// A node behind a proxy, and a tool that the test drives.
struct Cuttable {
    database: Server,
    proxy: Proxy,
    _node: Node,
    client: Client,
    runs: Runs,
}

impl Cuttable {
    async fn new() -> Self {
        let database = started(&[]);
        let proxy = Proxy::before(database.port()).await;
        // What hears other nodes is not cut.
        let config = PostgresConfig { listen_url: Some(database.url()), ..PostgresConfig::new(proxy.url(), "a") };
        let (tool, runs) = played("writes");
        let node = Node::start(config, registry([tool.task(TaskMode::Always)])).await;
        Self { client: node.client(), database, proxy, _node: node, runs }
    }

    /// Makes a task under a key. Whoever is told to try again does so.
    async fn task(&mut self, key: &str) -> (String, ToolRun) {
        let params = json!({"name": "writes", "arguments": {}, "_meta": {KEY: key}});
        let made = async {
            loop {
                let response = self.client.raw("tools/call", params.clone()).await;
                match response.status {
                    200 => return response.json()["result"]["taskId"].as_str().expect("an id").to_owned(),
                    status => assert_eq!(status, 503, "{}", response.json()),
                }
            }
        };
        let id = with_timeout("the task", made).await;
        (id, run_of(&mut self.runs).await)
    }

    /// Nothing was done twice: there are so many tasks, and no further run.
    fn has_only(&mut self, tasks: usize) {
        assert_eq!(block_in_place(|| self.database.psql("SELECT count(*) FROM taskwire.task")), tasks.to_string());
        assert!(self.runs.try_recv().is_err(), "each task ran once");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn a_commit_whose_answer_is_lost_is_found_and_one_that_never_arrived_is_done_again() {
    const ROUNDS: usize = 12;
    within_a_minute(async {
        let mut cuttable = Cuttable::new().await;
        let (id, run) = cuttable.task("first").await;
        let mut written = String::new();
        for (round, cut) in (0..ROUNDS).zip([BEFORE_COMMIT, AFTER_COMMIT, AT_COMMIT].into_iter().cycle()) {
            let is_cut = |proxy: &Proxy| assert!(!proxy.is_armed(), "round {round}: {cut:?}");
            cuttable.proxy.arm(cut);
            let words = format!("<{round}>");
            run.writes(&words).await;
            is_cut(&cuttable.proxy);
            written.push_str(&words);

            cuttable.proxy.arm(cut);
            let (made, mut short) = cuttable.task(&format!("key {round}")).await;
            is_cut(&cuttable.proxy);

            cuttable.proxy.arm(cut);
            short.ends("done");
            with_timeout("the end", cuttable.client.until(&made, "completed")).await;
            is_cut(&cuttable.proxy);
        }
        assert_eq!(output(&cuttable.client, &id).await, written);
        cuttable.has_only(1 + ROUNDS);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn wherever_a_transaction_is_cut_its_write_is_done_once() {
    /// Beyond the last bytes of a transaction.
    const BYTES: usize = 3_000;
    const STEP: usize = 131;
    within_a_minute(async {
        let mut cuttable = Cuttable::new().await;
        let (id, run) = cuttable.task("first").await;
        let mut written = String::new();
        for after in (0..BYTES).step_by(STEP) {
            cuttable.proxy.arm(Cut { word: BEGIN, after, when_committed: false });
            let words = format!("<{after}>");
            run.writes(&words).await;
            assert!(!cuttable.proxy.is_armed(), "the proxy sees where a transaction begins: {after}");
            written.push_str(&words);
        }
        assert_eq!(output(&cuttable.client, &id).await, written);
        cuttable.has_only(1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn connections_that_a_network_has_forgotten_keep_nobody_from_reading_and_cost_no_lease() {
    /// More than readers have connections.
    const READS: usize = 20;
    within_a_minute(async {
        let database = started(&[]);
        let proxy = Proxy::before(database.port()).await;
        let (tool, mut runs) = played("writes");
        let at = PostgresConfig { statement_timeout: 2 * SECOND, ..PostgresConfig::new(proxy.url(), "a") };
        let node = Node::start(at, registry([tool.task(TaskMode::Always)])).await;
        let witness = Node::start(PostgresConfig::new(database.url(), "b"), registry([])).await;
        let client = node.client();
        let id = client.start("writes", json!({})).await;
        let run = run_of(&mut runs).await;
        run.writes("<0>").await;
        join_all((0..READS).map(|_| client.get(&id))).await;
        proxy.swallow();
        let lease_left = async || {
            let nodes = witness.cluster.nodes().await.expect("readable");
            nodes.iter().find(|node| &*node.name == "a").expect("it was not declared dead").lease_left
        };
        let reads = async {
            for n in 0..READS {
                let response = client.raw("tasks/get", json!({"taskId": id})).await;
                assert_eq!(response.status, 200, "read {n}: {}", response.json());
            }
        };
        let renewed = async {
            let mut least = lease_left().await;
            loop {
                let left = lease_left().await;
                if left > least {
                    return;
                }
                least = left;
            }
        };
        // One of them may wait for as long as a statement may take, and no other.
        with_timeout("the reads", async { tokio::join!(reads, renewed, run.writes("<1>")) }).await;
        assert_eq!(output(&client, &id).await, "<0><1>");
        assert_eq!(gone(&database), "0");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn what_no_notification_tells_of_is_seen_at_the_next_look() {
    /// A node looks every two seconds.
    const SEEN_WITHIN: Duration = Duration::from_secs(4);
    within_a_minute(async {
        let database = started(&[]);
        let proxy = Proxy::before(database.port()).await;
        let (tool, mut runs) = played("writes");
        let here = Node::start(PostgresConfig::new(database.url(), "here"), registry([tool.task(TaskMode::Always)])).await;
        let config = PostgresConfig { listen_url: Some(proxy.url()), ..PostgresConfig::new(database.url(), "there") };
        let there = Node::start(config, registry([])).await;
        let id = here.client().start("writes", json!({})).await;
        let run = run_of(&mut runs).await;
        let mut stream = follow(&there.client(), &id, 0).await;
        assert_eq!(next_briefs(&mut stream, 1).await, ["working"]);
        let mut seq = 0;
        for mode in [Mode::LosesAnswers, Mode::Refuses] {
            assert!(there.cluster.has_wakeups(), "{mode:?}");
            proxy.set(mode);
            for _ in 0..3 {
                run.writes("x").await;
                let seen = tokio::time::timeout(SEEN_WITHIN, next_briefs(&mut stream, 1)).await;
                assert_eq!(seen.expect("it is seen in time"), [format!("{seq} x")], "{mode:?}");
                seq += 1;
            }
            // Whoever cannot be heard any more is heard again.
            proxy.set(Mode::Refuses);
            until(|| !there.cluster.has_wakeups()).await;
            proxy.set(Mode::Passes);
            until(|| there.cluster.has_wakeups()).await;
        }
        tokio::time::timeout(SECOND, async {
            run.writes("x").await;
            assert_eq!(next_briefs(&mut stream, 1).await, [format!("{seq} x")]);
        })
        .await
        .expect("notifications arrive again");
    })
    .await;
}

pub(super) async fn until(is_so: impl Fn() -> bool) {
    let so = async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    };
    with_timeout("the change", so).await;
}
