//! A node of a real world: a thread with a runtime of its own, which has short turns one after the other. Between them it looks at what it
//! is told. One that is stopped has no turn, one that is killed drops its runtime, and all its connections die.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::Context;
use taskwire::{
    clock::Clock,
    server::Server,
    store::{ErrorKind, PostgresConfig, PostgresStore},
};
use tokio::{
    io::DuplexStream,
    runtime::{Builder, Runtime},
    sync::mpsc,
    time::{sleep, timeout},
};

use super::database::Cutter;
use crate::{
    clock::MachineClock,
    observer::Observer,
    random, serving,
    store::{CommitFault, NodeLink, SimStore},
    tools,
    world::EXCUSE_MILLIS,
};

/// How long a turn is.
const TURN: Duration = Duration::from_millis(5);
/// How long a node tries to open its store, before it is started anew.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);
/// Clients that wait for a node, as they do while it is stopped. One more is cut off.
const BACKLOG: usize = 256;
/// A node that had no turn for so long was stopped by the machine under the world. It is half of the time by which a node stops before its
/// lease ends.
const STARVED_MILLIS: i64 = 500;
/// Stack of a thread on which unoptimized code of the product runs.
pub(crate) const STACK_BYTES: usize = 16 << 20;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No change is left half done by a panic, so a poisoned lock is still good.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where clients come in, of each node that is up. A stopped one takes connections too, and says nothing.
pub(crate) type Doors = Arc<Mutex<BTreeMap<usize, mpsc::Sender<DuplexStream>>>>;

/// What only a node of a real world has.
#[derive(Debug)]
pub(crate) struct RealLink {
    cutter: Cutter,
    /// What is planned for its next commit.
    next_commit: Mutex<Option<CommitFault>>,
    /// When it had its last turn, in milliseconds of the world.
    turned_at: AtomicI64,
}

impl RealLink {
    pub(crate) fn new(cutter: Cutter, now: i64) -> Self {
        Self { cutter, next_commit: Mutex::default(), turned_at: AtomicI64::new(now) }
    }

    /// This happens to the next commit.
    pub(crate) fn plan_commit_fault(&self, fault: CommitFault) {
        *lock(&self.next_commit) = Some(fault);
    }

    /// What is planned for the commit that begins.
    pub(crate) fn take_commit_fault(&self) -> Option<CommitFault> {
        lock(&self.next_commit).take()
    }

    /// Ends the connection on which this node commits, so long from now on.
    pub(crate) fn end_commit(&self, node: usize, after: Duration) {
        self.cutter.end_commit(node, after);
    }

    /// Whether the node has had no turn for a while.
    pub(crate) fn is_starved(&self, now: i64) -> bool {
        now - self.turned_at.load(Ordering::Relaxed) > STARVED_MILLIS
    }

    fn turn(&self, now: i64) {
        self.turned_at.store(now, Ordering::Relaxed);
    }
}

/// What a node is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// To go on.
    Live,
    /// To do nothing, until there is another order.
    Stop,
    /// To shut down.
    Leave,
    /// To be gone at once.
    Die,
}

/// What the world and the thread of a node tell each other.
#[derive(Debug)]
struct Control {
    order: Mutex<Order>,
    given: Condvar,
    is_up: AtomicBool,
}

impl Control {
    /// What the node is to do next, once it may do anything.
    fn next(&self) -> Order {
        let mut order = lock(&self.order);
        while *order == Order::Stop {
            order = self.given.wait(order).unwrap_or_else(PoisonError::into_inner);
        }
        *order
    }
}

/// What a start of a node begins with.
pub(crate) struct Birth {
    pub(crate) link: Arc<NodeLink>,
    pub(crate) config: PostgresConfig,
    /// Milliseconds by which its wall clock is wrong.
    pub(crate) clock_error: Arc<AtomicI64>,
    pub(crate) retention: Option<Duration>,
    pub(crate) doors: Doors,
    /// From which it has its randomness.
    pub(crate) seed: u64,
    pub(crate) shows_wire: bool,
}

/// A start of a node.
pub(crate) struct Running {
    pub(crate) link: Arc<NodeLink>,
    control: Arc<Control>,
    thread: thread::JoinHandle<Result<(), anyhow::Error>>,
}

impl Running {
    pub(crate) fn start(birth: Birth) -> Result<Self, anyhow::Error> {
        let control = Arc::new(Control { order: Mutex::new(Order::Live), given: Condvar::new(), is_up: AtomicBool::new(false) });
        let (link, told) = (birth.link.clone(), control.clone());
        let thread = thread::Builder::new().name(format!("node {}", link.name)).stack_size(STACK_BYTES);
        Ok(Self { link, control, thread: thread.spawn(move || live(&birth, &told))? })
    }

    pub(crate) fn give(&self, order: Order) {
        *lock(&self.control.order) = order;
        self.control.given.notify_all();
    }

    /// Whether it has ever served clients.
    pub(crate) fn was_up(&self) -> bool {
        self.control.is_up.load(Ordering::Relaxed)
    }

    /// Whether it serves clients, and is to go on with that.
    pub(crate) fn is_live(&self) -> bool {
        let is_ending = self.is_over() || self.link.crash.load(Ordering::Relaxed);
        self.was_up() && !is_ending && *lock(&self.control.order) == Order::Live
    }

    /// Whether nothing is left of it.
    pub(crate) fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for its end. An error is one that no node may have.
    pub(crate) fn join(self) -> Result<(), anyhow::Error> {
        self.thread.join().map_err(|_| anyhow::anyhow!("it panicked"))?
    }
}

/// The life of a node.
fn live(birth: &Birth, control: &Control) -> Result<(), anyhow::Error> {
    random::seed_system(birth.seed);
    let (link, name) = (&birth.link, birth.link.name);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let Some(store) = open(&runtime, birth)? else { return Ok(()) };
    let server = begin(&runtime, birth, store)?;
    let reported = birth.shows_wire.then(|| link.observer.clone());
    let (door, arrivals) = mpsc::channel(BACKLOG);
    runtime.spawn(serving::take_over(server.clone()));
    runtime.spawn(accept(server.clone(), arrivals, reported));
    let (failed, observer) = (server.failed(), link.observer.clone());
    runtime.spawn(async move {
        let reason = failed.await;
        observer.violated(format!("node {name} can store nothing any more: {reason}"));
    });
    link.observer.trace(&format!("node {name} is up"));
    has_turn(link);
    lock(&birth.doors).insert(name, door);
    control.is_up.store(true, Ordering::Relaxed);
    loop {
        match control.next() {
            Order::Live | Order::Stop => {}
            Order::Leave => {
                runtime.block_on(server.leave());
                break;
            }
            Order::Die => break,
        }
        let was_starved = link.real.as_ref().is_some_and(|real| real.is_starved(link.clock.millis()));
        has_turn(link);
        if was_starved {
            // It may find out only now that its lease is over.
            link.excused_until.fetch_max(link.clock.millis() + EXCUSE_MILLIS, Ordering::Relaxed);
        }
        runtime.block_on(async { sleep(TURN).await });
        if link.crash.load(Ordering::Relaxed) {
            break;
        }
    }
    link.dead.store(true, Ordering::Relaxed);
    lock(&birth.doors).remove(&name);
    let context = runtime.enter();
    drop(server);
    drop(context);
    drop(runtime);
    Ok(())
}

fn has_turn(link: &NodeLink) {
    if let Some(real) = &link.real {
        real.turn(link.clock.millis());
    }
}

/// Opens the store, or says that it cannot be reached just now.
fn open(runtime: &Runtime, birth: &Birth) -> Result<Option<PostgresStore>, anyhow::Error> {
    let config = birth.config.clone();
    let reason = match runtime.block_on(async { timeout(OPEN_TIMEOUT, PostgresStore::open(config)).await }) {
        Ok(Ok(store)) => return Ok(Some(store)),
        Ok(Err(error)) if matches!(error.kind(), ErrorKind::Away | ErrorKind::InDoubt) => error.to_string(),
        Ok(Err(error)) => return Err(error).context("its store cannot be opened"),
        Err(_) => "it took too long".to_owned(),
    };
    birth.link.observer.trace(&format!("node {} cannot open its store: {reason}", birth.link.name));
    Ok(None)
}

/// Starts the server.
fn begin(runtime: &Runtime, birth: &Birth, store: PostgresStore) -> Result<Server, anyhow::Error> {
    let link = &birth.link;
    let (tools, config) = (tools::all(&link.observer, link)?, serving::config(birth.retention));
    let server = runtime.block_on(async {
        let base = Duration::from_millis(u64::try_from(link.clock.millis()).unwrap_or(0));
        let clock: Arc<dyn Clock> = Arc::new(MachineClock::new(&link.clock, base, birth.clock_error.clone()));
        Server::start_with_clock(tools, SimStore::new(store, link.clone()), config, clock)
    })?;
    Ok(server)
}

/// Serves whoever comes.
async fn accept(server: Server, mut arrivals: mpsc::Receiver<DuplexStream>, reported: Option<Observer>) {
    while let Some(stream) = arrivals.recv().await {
        tokio::spawn(serving::serve(server.clone(), stream, reported.clone()));
    }
}
