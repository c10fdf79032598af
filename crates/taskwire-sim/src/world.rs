//! The world: nodes on machines of their own, the store that they share, their clients, and what goes wrong.
//!
//! Each machine is a tokio runtime on this one thread, whose time is virtual. The world gives each of them a few milliseconds in turn, in
//! an order that the dice choose. A machine that is killed is dropped; one that is stopped gets no turn.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use futures_util::FutureExt;
use taskwire::{client::Era, clock::Clock, server::Server, store::Memory};
use tokio::{io::DuplexStream, runtime::Runtime};

use crate::{
    checks,
    clients::{Actor, Dial},
    clock::{MachineClock, WorldClock},
    observer::{Happening, Observer},
    plant::Plant,
    random::Dice,
    serving::{self, PIPE_BYTES},
    store::{NodeLink, SimStore, StoreFaults},
    tools,
};

const NODES: usize = 3;
const CLIENTS: usize = 6;
/// How long the world has to come to rest when nothing goes wrong any more.
const REST_MILLIS: i64 = 240_000;
/// How long tasks are kept, in worlds that forget them.
const RETENTION: Duration = Duration::from_secs(90);
/// How long a node that was stopped may take to learn that its lease is over.
pub(crate) const EXCUSE_MILLIS: i64 = 5_000;

/// How often things happen to nodes, in a million turns of the world.
#[derive(Debug, Clone, Copy)]
struct Faults {
    crash: u64,
    pause: u64,
    outage: u64,
    outage_of_all: u64,
    clock_jump: u64,
    leave: u64,
    store: StoreFaults,
}

impl Faults {
    /// Each world has its own mixture.
    fn new(dice: &mut Dice) -> Self {
        let mut often = |most: u64| if dice.happens(500_000) { 0 } else { dice.below(most) };
        Self {
            crash: often(800),
            pause: often(600),
            outage: often(600),
            outage_of_all: often(200),
            clock_jump: often(500),
            leave: often(300),
            store: StoreFaults {
                crash_before: often(8_000),
                crash_after: often(8_000),
                away: often(20_000),
                in_doubt: often(20_000),
                lost_wakeup: often(500_000),
                late_wakeup: often(300_000),
                latency_max: often(25),
                read_latency_max: often(15),
            },
        }
    }

    const fn none() -> Self {
        let store = StoreFaults {
            crash_before: 0,
            crash_after: 0,
            away: 0,
            in_doubt: 0,
            lost_wakeup: 0,
            late_wakeup: 0,
            latency_max: 3,
            read_latency_max: 3,
        };
        Self { crash: 0, pause: 0, outage: 0, outage_of_all: 0, clock_jump: 0, leave: 0, store }
    }
}

/// What was found in a store in memory, whose reader never waits.
fn at_once<T>(found: impl Future<Output = Result<T, anyhow::Error>>) -> Result<T, anyhow::Error> {
    found.now_or_never().context("it does not wait")?
}

/// A machine with a runtime of its own, in virtual time.
struct Machine {
    runtime: Runtime,
    /// Milliseconds of the world that it has not lived through yet.
    behind: u64,
}

impl Machine {
    fn new() -> Result<Self, anyhow::Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
        Ok(Self { runtime, behind: 0 })
    }

    fn turn(&mut self, millis: u64) {
        let behind = std::mem::take(&mut self.behind);
        self.runtime.block_on(async {
            if behind > 0 {
                // It was stopped: its clock went on, and everything that was due meanwhile is due now.
                tokio::time::advance(Duration::from_millis(behind)).await;
            }
            tokio::time::sleep(Duration::from_millis(millis)).await;
        });
    }
}

/// A start of a node.
struct Running {
    machine: Machine,
    server: Server,
    link: Arc<NodeLink>,
}

struct Node {
    running: Option<Running>,
    /// When it starts, or goes on, if it does not run: milliseconds of the world.
    until: i64,
    is_paused: bool,
    clock_error: Arc<AtomicI64>,
}

/// Which servers are up, for clients that connect.
type Servers = Arc<Mutex<Vec<(Server, tokio::runtime::Handle)>>>;

pub(crate) struct World {
    clock: WorldClock,
    memory: Memory,
    nodes: Vec<Node>,
    clients: Machine,
    servers: Servers,
    is_over: Arc<AtomicBool>,
    /// One for each client that has not finished.
    actors: Vec<tokio::task::JoinHandle<()>>,
    observer: Observer,
    dice: Dice,
    faults: Faults,
    plant: Option<Plant>,
    /// Whether tasks are forgotten after a while.
    forgets: bool,
    /// Whether the trace has the messages between clients and nodes.
    shows_wire: bool,
}

impl World {
    pub(crate) fn new(seed: u64, plant: Option<Plant>, keeps_lines: bool, shows_wire: bool) -> Result<Self, anyhow::Error> {
        let mut dice = Dice::new(seed);
        let clock = WorldClock::default();
        let observer = Observer::new(clock.clone(), keeps_lines);
        let memory = Memory::with_clock(Arc::new(clock.clone()));
        let faults = Faults::new(&mut dice);
        let forgets = dice.happens(500_000);
        let nodes = (0..NODES).map(|_| Node { running: None, until: 0, is_paused: false, clock_error: Arc::default() }).collect();
        Ok(Self {
            clock,
            memory,
            nodes,
            clients: Machine::new()?,
            servers: Arc::default(),
            is_over: Arc::default(),
            actors: Vec::new(),
            observer,
            dice,
            faults,
            plant,
            forgets,
            shows_wire,
        })
    }

    /// Lets the world go on for some virtual time with faults, then come to rest without, and says what was wrong.
    pub(crate) fn run(mut self, millis: i64) -> Result<Observer, anyhow::Error> {
        self.start_clients();
        while self.clock.millis() < millis && self.observer.violations().is_empty() {
            self.turn()?;
        }
        self.heal()?;
        let rest = self.clock.millis() + REST_MILLIS;
        while self.observer.violations().is_empty() && !self.is_at_rest()? {
            if self.clock.millis() > rest {
                self.report_open()?;
                break;
            }
            self.turn()?;
        }
        self.check_logs()?;
        Ok(self.observer)
    }

    fn start_clients(&mut self) {
        let calls: Arc<Mutex<u64>> = Arc::default();
        let dial = self.dial();
        for n in 0..CLIENTS {
            let era = if n % 3 == 2 { Era::Legacy } else { Era::Modern };
            let (dial, calls, dice, observer) = (dial.clone(), calls.clone(), self.dice.fork(), self.observer.clone());
            let (world, is_over) = (self.clock.clone(), self.is_over.clone());
            self.actors.push(self.clients.runtime.spawn(async move {
                let clock = Arc::new(MachineClock::new(&world, Duration::ZERO, Arc::default()));
                Actor { dial, clock, observer, dice, calls, era, is_over }.run().await;
            }));
        }
    }

    /// A connection goes to one of the servers that are up; if there is none, it is closed at once.
    fn dial(&mut self) -> Dial {
        let (servers, dice) = (self.servers.clone(), Mutex::new(self.dice.fork()));
        let reported = self.shows_wire.then(|| self.observer.clone());
        Arc::new(move || -> DuplexStream {
            let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
            let servers = servers.lock().unwrap_or_else(PoisonError::into_inner);
            let chosen = dice.lock().unwrap_or_else(PoisonError::into_inner).below(servers.len() as u64);
            if let Some((server, handle)) = servers.get(usize::try_from(chosen).unwrap_or(0)) {
                handle.spawn(serving::serve(server.clone(), theirs, reported.clone()));
            }
            ours
        })
    }

    fn turn(&mut self) -> Result<(), anyhow::Error> {
        self.observer.count(Happening::Tick);
        let millis = self.dice.between(1, 5);
        self.hurt()?;
        let mut order: Vec<usize> = (0..=NODES).collect();
        self.dice.shuffle(&mut order);
        for at in order {
            if at == NODES {
                self.clients.turn(millis);
                continue;
            }
            let is_paused = self.nodes[at].is_paused;
            let Some(running) = &mut self.nodes[at].running else { continue };
            if is_paused {
                running.machine.behind += millis;
                continue;
            }
            running.machine.turn(millis);
            if running.link.crash.load(Ordering::Relaxed) {
                self.kill(at);
            }
        }
        self.clock.advance(i64::try_from(millis)?);
        Ok(())
    }

    /// Lets things go wrong, and nodes come back.
    fn hurt(&mut self) -> Result<(), anyhow::Error> {
        let now = self.clock.millis();
        for at in 0..NODES {
            if now >= self.nodes[at].until {
                if self.nodes[at].running.is_none() {
                    self.start(at)?;
                } else if std::mem::take(&mut self.nodes[at].is_paused) {
                    self.observer.trace(&format!("node {at} goes on"));
                    if let Some(running) = &self.nodes[at].running {
                        running.link.excused_until.store(now + EXCUSE_MILLIS, Ordering::Relaxed);
                    }
                    self.update_servers();
                }
            }
            if self.nodes[at].running.is_none() || self.nodes[at].is_paused {
                continue;
            }
            if self.dice.happens(self.faults.crash) {
                self.kill(at);
            } else if self.dice.happens(self.faults.pause) {
                self.observer.count(Happening::Pause);
                self.observer.trace(&format!("node {at} is stopped"));
                self.nodes[at].is_paused = true;
                if let Some(running) = &self.nodes[at].running {
                    running.link.excused_until.store(i64::MAX, Ordering::Relaxed);
                }
                self.nodes[at].until = now + i64::try_from(self.dice.between(100, 15_000))?;
                self.update_servers();
            } else if self.dice.happens(self.faults.leave) {
                self.leave(at);
            } else if self.dice.happens(self.faults.outage) {
                let millis = self.dice.between(50, 16_000);
                self.cut_off(at, millis)?;
            } else if self.dice.happens(self.faults.clock_jump) {
                self.observer.count(Happening::ClockJump);
                let error = i64::try_from(self.dice.below(7_200_000))? - 3_600_000;
                self.nodes[at].clock_error.store(error, Ordering::Relaxed);
            }
        }
        if self.dice.happens(self.faults.outage_of_all) {
            let millis = self.dice.between(50, 15_000);
            for at in 0..NODES {
                self.cut_off(at, millis)?;
            }
        }
        Ok(())
    }

    /// A node shuts down: it ends its lease, and a moment later it is gone.
    fn leave(&mut self, at: usize) {
        let Some(running) = &mut self.nodes[at].running else { return };
        self.observer.count(Happening::Left);
        self.observer.trace(&format!("node {at} leaves"));
        let server = running.server.clone();
        running.machine.runtime.block_on(async { server.leave().await });
        self.kill(at);
    }

    fn cut_off(&mut self, at: usize, millis: u64) -> Result<(), anyhow::Error> {
        if let Some(running) = &self.nodes[at].running {
            self.observer.count(Happening::Outage);
            self.observer.trace(&format!("node {at} cannot reach the store for {millis} ms"));
            running.link.away_until.store(self.clock.millis() + i64::try_from(millis)?, Ordering::Relaxed);
        }
        Ok(())
    }

    fn start(&mut self, at: usize) -> Result<(), anyhow::Error> {
        self.observer.trace(&format!("node {at} starts"));
        let link = Arc::new(NodeLink {
            name: at,
            dead: AtomicBool::new(false),
            crash: AtomicBool::new(false),
            away_until: AtomicI64::new(0),
            goes_on: AtomicBool::new(false),
            clock: self.clock.clone(),
            observer: self.observer.clone(),
            faults: self.faults.store,
            dice: Mutex::new(self.dice.fork()),
            plant: self.plant,
            is_healed: AtomicBool::new(self.is_over.load(Ordering::Relaxed)),
            excused_until: AtomicI64::new(0),
            real: None,
        });
        let machine = Machine::new()?;
        let store = SimStore::new(self.memory.open_node(&format!("n{at}")), link.clone());
        let error = self.nodes[at].clock_error.clone();
        let tools = tools::all(&self.observer, &link)?;
        let base = Duration::from_millis(u64::try_from(self.clock.millis())?);
        let (config, world) = (serving::config(self.forgets.then_some(RETENTION)), self.clock.clone());
        let server = machine.runtime.block_on(async move {
            let clock: Arc<dyn Clock> = Arc::new(MachineClock::new(&world, base, error));
            Server::start_with_clock(tools, store, config, clock)
        })?;
        machine.runtime.spawn(serving::take_over(server.clone()));
        self.nodes[at].running = Some(Running { machine, server, link });
        self.update_servers();
        Ok(())
    }

    fn kill(&mut self, at: usize) {
        let Some(running) = self.nodes[at].running.take() else { return };
        self.observer.count(Happening::Crash);
        self.observer.trace(&format!("node {at} is killed"));
        running.link.dead.store(true, Ordering::Relaxed);
        self.nodes[at].until = self.clock.millis() + i64::try_from(self.dice.between(0, 12_000)).unwrap_or(0);
        self.update_servers();
        let Running { machine, server, .. } = running;
        let context = machine.runtime.enter();
        drop(server);
        drop(context);
        drop(machine);
    }

    /// Clients connect to nodes that run; a stopped one accepts connections too, and says nothing.
    fn update_servers(&mut self) {
        let up = self.nodes.iter().filter_map(|node| node.running.as_ref());
        *self.servers.lock().unwrap_or_else(PoisonError::into_inner) =
            up.map(|running| (running.server.clone(), running.machine.runtime.handle().clone())).collect();
    }

    /// From now on nothing goes wrong.
    fn heal(&mut self) -> Result<(), anyhow::Error> {
        self.observer.trace("nothing goes wrong any more");
        self.faults = Faults::none();
        self.is_over.store(true, Ordering::Relaxed);
        // In half of the worlds all nodes start anew; in the others those that run must find by themselves whatever they left undone.
        let starts_anew = self.dice.happens(500_000);
        for at in 0..NODES {
            self.nodes[at].until = 0;
            let Some(running) = &self.nodes[at].running else { continue };
            running.link.heal();
            if starts_anew && !self.nodes[at].is_paused {
                self.kill(at);
                self.nodes[at].until = 0;
            }
        }
        Ok(())
    }

    /// Whether all tasks have ended, and all clients know it.
    fn is_at_rest(&self) -> Result<bool, anyhow::Error> {
        let is_done = self.actors.iter().all(tokio::task::JoinHandle::is_finished) && at_once(checks::all_have_ended(&self.memory))?;
        Ok(is_done && (!self.forgets || self.memory.all_tasks().is_empty()))
    }

    fn report_open(&self) -> Result<(), anyhow::Error> {
        let waiting = self.actors.iter().filter(|actor| !actor.is_finished()).count();
        if waiting > 0 {
            self.observer.violated(format!("{waiting} clients still wait for the end of their calls"));
        }
        let left = self.memory.all_tasks().len();
        if self.forgets && left > 0 {
            self.observer.violated(format!("{left} tasks were not forgotten"));
        }
        at_once(checks::report_open(&self.memory, &self.observer))
    }

    /// The log of each task makes the task, its versions and chunks without a gap.
    fn check_logs(&self) -> Result<(), anyhow::Error> {
        at_once(checks::check_logs(&self.memory, &self.memory.all_tasks(), &self.observer))
    }
}
