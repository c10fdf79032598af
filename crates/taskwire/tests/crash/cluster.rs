//! Three nodes on one database, killed at any moment: nothing acknowledged is lost, nothing is done twice.
//!
//! `TASKWIRE_NODE_KILLS` says how often (12), `TASKWIRE_NODE_KILL_MS` how long there is between two kills (700).

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use taskwire::store::{PostgresConfig, PostgresStore};
use taskwire_testkit::{Installation, Server as Postgres};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::{
    ALONE, SETTLE, check_recorded_calls,
    client::Client,
    dice,
    model::Model,
    number, recorded_calls,
    server::{Server, ServerFiles},
    settle, start_clients, stored,
    testing::TempDir,
    verify,
};

const NODES: usize = 3;

/// A proxy before the nodes: each connection leads to the next one that accepts it.
struct Balancer {
    port: u16,
    accepting: JoinHandle<()>,
}

impl Balancer {
    async fn start(nodes: Vec<u16>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let next = Arc::new(AtomicUsize::new(0));
        let accepting = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let (nodes, next) = (nodes.clone(), next.clone());
                tokio::spawn(async move {
                    for _ in 0..nodes.len() {
                        let node = nodes[next.fetch_add(1, Ordering::Relaxed) % nodes.len()];
                        if let Ok(mut node) = TcpStream::connect(("127.0.0.1", node)).await {
                            let _ = copy_bidirectional(&mut client, &mut node).await;
                            return;
                        }
                    }
                });
            }
        });
        Self { port, accepting }
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// The nodes, and those of them that run.
struct Nodes {
    files: Vec<ServerFiles>,
    running: Vec<Option<Server>>,
}

impl Nodes {
    async fn start(&mut self, node: usize) {
        let mut server = self.files[node].start();
        server.accepts(self.files[node].port).await;
        self.running[node] = Some(server);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs PostgreSQL"]
async fn nothing_acknowledged_is_lost_however_often_nodes_are_killed() {
    let _alone = ALONE.lock().await;
    let kills = number("TASKWIRE_NODE_KILLS").unwrap_or(12);
    let between = Duration::from_millis(number("TASKWIRE_NODE_KILL_MS").unwrap_or(700));
    let (mut dice, begun) = (dice(), Instant::now());
    let installation = Installation::find(18).unwrap_or_else(|missing| panic!("{missing}"));
    let database = tokio::task::block_in_place(|| Postgres::start_fast(&installation));
    let dir = TempDir::new();
    let record: PathBuf = dir.path().join("record");
    let files: Vec<ServerFiles> = (0..NODES).map(|_| ServerFiles::sharing(&mut dice, &database.url(), record.clone())).collect();
    let mut nodes = Nodes { files, running: (0..NODES).map(|_| None).collect() };
    for node in 0..NODES {
        nodes.start(node).await;
    }
    let balancer = Balancer::start(nodes.files.iter().map(|files| files.port).collect()).await;
    let model = Arc::new(Model::default());
    let stop = Arc::new(AtomicBool::new(false));
    let clients = start_clients(balancer.port, &model, &mut dice, &stop);
    for _ in 0..kills {
        sleep(between).await;
        let node = usize::try_from(dice.below(NODES as u64)).expect("a small number");
        nodes.running[node].take().expect("it runs").kill();
        assert!(!clients.iter().any(JoinHandle::is_finished), "a client found a broken promise: its words are above");
        // The others have it for a while.
        sleep(between / 4).await;
        nodes.start(node).await;
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.expect("a client found a broken promise");
    }
    let mut client = Client::new(balancer.port);
    timeout(SETTLE, settle(&mut client, &model)).await.unwrap_or_else(|_| panic!("still open: {:?}", model.unfinished()));
    verify(&mut client, &model).await;
    nodes.running.into_iter().flatten().for_each(Server::kill);

    let tasks = model.all();
    let store = PostgresStore::open(PostgresConfig::new(database.url(), "the test")).await.expect("the store opens");
    stored::check(&store, &tasks);
    check_recorded_calls(&recorded_calls(&nodes.files[0]), &tasks);
    let counts = model.counts();
    eprintln!(
        "crash: {kills} kills of nodes, {} creates, {} answers, {} cancels, {} results in {:.1} s",
        counts.creates,
        counts.answers,
        counts.cancels,
        counts.results,
        begun.elapsed().as_secs_f64()
    );
}
