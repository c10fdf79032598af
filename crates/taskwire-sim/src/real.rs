//! A real world: the nodes, clients, tools and checks of the simulated ones in real time, on a PostgreSQL that fails for real.
//!
//! `plan` says what goes wrong and when, by the seed. `node` is a node, which the world stops, kills and starts again. `database` is the
//! server, and whoever ends connections there. The same seed gives the same plan and the same dice, but not the same moments.

mod database;
mod node;
mod plan;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    thread,
    time::Duration,
};

use taskwire::{client::Era, store::Reader};
use tokio::{
    io::DuplexStream,
    runtime::{Builder, Runtime},
    task::JoinHandle,
};

pub(crate) use self::{database::StoreAt, node::RealLink};
use self::{
    database::{Cutter, Database},
    node::{Birth, Doors, Order, Running, STACK_BYTES, lock},
    plan::{Fault, Plan, Planned},
};
use crate::{
    checks,
    clients::{Actor, Dial},
    clock::{MachineClock, WorldClock},
    observer::{Happening, MUST_HAPPEN_IN_REAL, Observer},
    plant::Plant,
    random::{self, Dice},
    serving::PIPE_BYTES,
    store::{CommitFault, NodeLink, StoreFaults},
    world::EXCUSE_MILLIS,
};

const NODES: usize = 3;
/// Many, for there is little time.
const CLIENTS: usize = 24;
/// How often the world looks at what there is to do.
const TICK: Duration = Duration::from_millis(10);
/// How often it looks at what is stored.
const LOOK_MILLIS: i64 = 500;
/// How long all nodes may take to start.
const START: Duration = Duration::from_secs(60);
/// How soon a node is started again that could not reach the database.
const RETRY_MILLIS: i64 = 300;
/// How long a node is away that was killed when nothing goes wrong any more.
const AWAY_MILLIS: i64 = 500;
/// How long the world has to come to rest when nothing goes wrong any more.
const REST: Duration = Duration::from_secs(180);
/// Tasks are forgotten in worlds that go on for so long, after this time: longer than any client is away, or waits for a node.
const FORGETS_FROM: Duration = Duration::from_secs(120);
const RETENTION: Duration = Duration::from_secs(60);

/// A node, whether it runs or not.
struct Node {
    running: Option<Running>,
    /// When it starts, or goes on, if it does not run: milliseconds of the world.
    until: i64,
    /// For how long it is away when it ends.
    away_for: i64,
    is_stopped: bool,
    clock_error: Arc<AtomicI64>,
    dice: Dice,
}

impl Node {
    fn new(dice: Dice) -> Self {
        Self { running: None, until: 0, away_for: AWAY_MILLIS, is_stopped: false, clock_error: Arc::default(), dice }
    }

    /// Whether it serves clients, and is to go on with that.
    fn is_live(&self) -> bool {
        self.running.as_ref().is_some_and(Running::is_live)
    }
}

pub(crate) struct RealWorld {
    clock: WorldClock,
    observer: Observer,
    dice: Dice,
    /// For how long things go wrong.
    span: Duration,
    database: Database,
    /// When the database starts again, if it was ended.
    database_until: Option<i64>,
    cutter: Cutter,
    nodes: Vec<Node>,
    /// Whether no node is started any more.
    is_closed: bool,
    doors: Doors,
    clients: Runtime,
    /// One for each client that has not finished.
    actors: Vec<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
    faults: StoreFaults,
    plant: Option<Plant>,
    /// Whether the trace has the messages between clients and nodes.
    shows_wire: bool,
}

impl RealWorld {
    pub(crate) fn new(
        seed: u64,
        at: &StoreAt,
        span: Duration,
        plant: Option<Plant>,
        (keeps_lines, shows_wire): (bool, bool),
    ) -> Result<Self, anyhow::Error> {
        let mut dice = Dice::new(seed);
        let clock = WorldClock::real();
        let observer = Observer::new(clock.clone(), keeps_lines);
        let database = Database::open(at, format!("sim{seed:x}t{:x}", clock.begin()))?;
        let cutter = Cutter::start(&database)?;
        let faults = StoreFaults {
            away: dice.between(1_000, 10_000),
            in_doubt: dice.between(10_000, 20_000),
            lost_wakeup: dice.between(100_000, 400_000),
            late_wakeup: dice.between(50_000, 200_000),
            latency_max: dice.between(1, 20),
            read_latency_max: dice.below(8),
            ..StoreFaults::default()
        };
        let nodes = (0..NODES).map(|_| Node::new(dice.fork())).collect();
        let client_seed = dice.roll();
        let clients = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("clients")
            .thread_stack_size(STACK_BYTES)
            .enable_time()
            .on_thread_start(move || random::seed_system(client_seed))
            .build()?;
        Ok(Self {
            clock,
            observer,
            dice,
            span,
            database,
            database_until: None,
            cutter,
            nodes,
            is_closed: false,
            doors: Doors::default(),
            clients,
            actors: Vec::new(),
            is_over: Arc::default(),
            faults,
            plant,
            shows_wire,
        })
    }

    /// Lets the world go on with faults, then come to rest without, and says what was wrong.
    pub(crate) fn run(mut self) -> Observer {
        if let Err(error) = self.go_on() {
            self.observer.violated(format!("the world cannot go on: {error:#}"));
        }
        self.observer
    }

    fn go_on(&mut self) -> Result<(), anyhow::Error> {
        if !self.wait(START, |world| Ok(world.nodes.iter().all(Node::is_live)))? {
            self.observer.violated("the nodes did not start".to_owned());
            return self.end_all();
        }
        self.go_wrong()?;
        self.heal();
        let is_late = !self.wait(REST, Self::is_at_rest)? && self.is_well();
        if is_late {
            let waiting = self.actors.iter().filter(|actor| !actor.is_finished()).count();
            if waiting > 0 {
                self.observer.violated(format!("{waiting} clients still wait for the end of their calls"));
            }
        }
        // Nothing changes while the logs are read.
        self.end_all()?;
        self.check_stored(is_late)?;
        if self.span >= FORGETS_FROM && self.is_well() {
            self.wait_until_forgotten()?;
        }
        if self.plant.is_none() && self.is_well() {
            self.report_missing();
        }
        if self.is_well() {
            self.database.clear()?;
        }
        Ok(())
    }

    /// Carries out the plan.
    fn go_wrong(&mut self) -> Result<(), anyhow::Error> {
        let mut plan = Plan::new(self.dice.fork(), self.span);
        self.start_clients();
        let (began, span, mut waiting) = (self.clock.millis(), millis_of(self.span), VecDeque::new());
        while self.clock.millis() - began < span && self.is_well() {
            waiting.extend(plan.due(self.clock.millis() - began));
            // While there is no node that it could happen to, it waits, and what comes after it waits, too.
            if let Some(planned) = waiting.front().copied()
                && self.hurt(planned)?
            {
                waiting.pop_front();
            }
            self.tick()?;
        }
        Ok(())
    }

    fn is_well(&self) -> bool {
        self.observer.violations().is_empty()
    }

    fn start_clients(&mut self) {
        let calls: Arc<Mutex<u64>> = Arc::default();
        let dial = self.dial();
        for n in 0..CLIENTS {
            let era = if n % 3 == 2 { Era::Legacy } else { Era::Modern };
            let (dial, calls, dice, observer) = (dial.clone(), calls.clone(), self.dice.fork(), self.observer.clone());
            let (world, is_over) = (self.clock.clone(), self.is_over.clone());
            self.actors.push(self.clients.spawn(async move {
                let base = Duration::from_millis(u64::try_from(world.millis()).unwrap_or(0));
                let clock = Arc::new(MachineClock::new(&world, base, Arc::default()));
                Actor { dial, clock, observer, dice, calls, era, is_over }.run().await;
            }));
        }
    }

    /// A connection goes to one of the nodes that are up; if there is none, it is closed at once.
    fn dial(&mut self) -> Dial {
        let (doors, dice) = (self.doors.clone(), Mutex::new(self.dice.fork()));
        Arc::new(move || -> DuplexStream {
            let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
            let doors = lock(&doors);
            let chosen = lock(&dice).below(doors.len() as u64);
            if let Some(door) = doors.values().nth(usize::try_from(chosen).unwrap_or(0)) {
                // Where too many wait already, this one is closed at once.
                let _ = door.try_send(theirs);
            }
            ours
        })
    }

    /// Lets the world go on until something is so. Says whether it is: the time may be over, or something is wrong.
    fn wait(&mut self, span: Duration, is_so: fn(&mut Self) -> Result<bool, anyhow::Error>) -> Result<bool, anyhow::Error> {
        let (until, mut look_at) = (self.clock.millis() + millis_of(span), 0);
        while self.is_well() && self.clock.millis() < until {
            self.tick()?;
            if self.clock.millis() >= look_at {
                if is_so(self)? {
                    return Ok(true);
                }
                look_at = self.clock.millis() + LOOK_MILLIS;
            }
        }
        Ok(false)
    }

    /// Does what there is to do: what ended is started again, what was stopped goes on.
    fn tick(&mut self) -> Result<(), anyhow::Error> {
        self.observer.count(Happening::Tick);
        thread::sleep(TICK);
        if self.database_until.is_some_and(|until| self.clock.millis() >= until) {
            self.database_until = None;
            self.database.start_again();
            self.observer.trace("the database is up again");
        }
        for at in 0..NODES {
            self.bury(at);
            if self.clock.millis() < self.nodes[at].until {
                continue;
            }
            if self.nodes[at].running.is_none() {
                if !self.is_closed {
                    self.start(at)?;
                }
            } else if std::mem::take(&mut self.nodes[at].is_stopped) {
                self.resume(at);
            }
        }
        Ok(())
    }

    /// Looks whether a node has ended.
    fn bury(&mut self, at: usize) {
        let now = self.clock.millis();
        let node = &mut self.nodes[at];
        let Some(ended) = node.running.take_if(|running| running.is_over()) else { return };
        node.is_stopped = false;
        if !self.is_closed && ended.was_up() {
            self.observer.count(Happening::Crash);
        }
        self.observer.trace(&format!("node {at} is gone"));
        node.until = now + if ended.was_up() { node.away_for } else { RETRY_MILLIS };
        // It may have ended by itself, or by a panic.
        lock(&self.doors).remove(&at);
        if let Err(error) = ended.join() {
            self.observer.violated(format!("node {at} ended: {error:#}"));
        }
    }

    fn start(&mut self, at: usize) -> Result<(), anyhow::Error> {
        self.observer.trace(&format!("node {at} starts"));
        let node = &mut self.nodes[at];
        let link = Arc::new(NodeLink {
            name: at,
            dead: AtomicBool::new(false),
            crash: AtomicBool::new(false),
            away_until: AtomicI64::new(0),
            goes_on: AtomicBool::new(false),
            clock: self.clock.clone(),
            observer: self.observer.clone(),
            faults: self.faults,
            dice: Mutex::new(node.dice.fork()),
            plant: self.plant,
            is_healed: AtomicBool::new(self.is_over.load(Ordering::Relaxed)),
            excused_until: AtomicI64::new(0),
            real: Some(RealLink::new(self.cutter.clone(), self.clock.millis())),
        });
        node.running = Some(Running::start(Birth {
            link,
            config: self.database.config_of_node(at),
            clock_error: node.clock_error.clone(),
            retention: (self.span >= FORGETS_FROM).then_some(RETENTION),
            doors: self.doors.clone(),
            seed: node.dice.roll(),
            shows_wire: self.shows_wire,
        })?);
        Ok(())
    }

    /// A node that was stopped goes on.
    fn resume(&mut self, at: usize) {
        let Some(running) = &self.nodes[at].running else { return };
        self.observer.trace(&format!("node {at} goes on"));
        running.link.excused_until.store(self.clock.millis() + EXCUSE_MILLIS, Ordering::Relaxed);
        running.give(Order::Live);
    }

    /// Lets something go wrong. Says whether there was a node for that.
    fn hurt(&mut self, planned: Planned) -> Result<bool, anyhow::Error> {
        let (now, millis) = (self.clock.millis(), i64::try_from(planned.millis)?);
        let Some(at) = (0..NODES).map(|n| (planned.node + n) % NODES).find(|at| self.nodes[*at].is_live()) else { return Ok(false) };
        self.observer.trace(&format!("node {at}: {:?}, {millis} ms", planned.fault));
        let node = &mut self.nodes[at];
        let Some(running) = &node.running else { return Ok(false) };
        match planned.fault {
            Fault::Kill => {
                node.away_for = millis;
                running.give(Order::Die);
            }
            Fault::Commit(fault) => {
                if fault != CommitFault::CutOff {
                    node.away_for = millis;
                }
                if let Some(real) = &running.link.real {
                    real.plan_commit_fault(fault);
                }
            }
            Fault::Leave => {
                self.observer.count(Happening::Left);
                node.away_for = millis;
                running.give(Order::Leave);
            }
            Fault::Stop => {
                self.observer.count(Happening::Pause);
                (node.is_stopped, node.until) = (true, now + millis);
                running.link.excused_until.store(i64::MAX, Ordering::Relaxed);
                running.give(Order::Stop);
            }
            Fault::ClockJump => {
                self.observer.count(Happening::ClockJump);
                node.clock_error.store(millis - 3_600_000, Ordering::Relaxed);
            }
            Fault::EndConnections => {
                self.observer.count(Happening::ConnectionsEnded);
                self.cutter.end_all(at);
            }
            Fault::CutOff => self.cut_off(at, millis),
            Fault::CutOffAll => (0..NODES).for_each(|at| self.cut_off(at, millis)),
            Fault::EndDatabase => self.end_database(millis),
        }
        Ok(true)
    }

    /// A node cannot reach the database for a while, and the connections that it has end.
    fn cut_off(&self, at: usize, millis: i64) {
        let Some(running) = self.nodes[at].running.as_ref().filter(|_| self.nodes[at].is_live()) else { return };
        self.observer.count(Happening::Outage);
        running.link.away_until.store(self.clock.millis() + millis, Ordering::Relaxed);
        self.cutter.end_all(at);
    }

    /// The database ends, and is back after a while. One that others use, too, only loses the connections of our nodes.
    fn end_database(&mut self, millis: i64) {
        if !self.database.is_own() {
            self.observer.count(Happening::ConnectionsEnded);
            (0..NODES).for_each(|at| self.cutter.end_all(at));
        } else if self.database_until.is_none() {
            self.observer.count(Happening::DatabaseEnded);
            self.database.end();
            self.database_until = Some(self.clock.millis() + millis);
        }
    }

    /// From now on nothing goes wrong.
    fn heal(&mut self) {
        self.observer.trace("nothing goes wrong any more");
        self.faults = StoreFaults { latency_max: 3, read_latency_max: 3, ..StoreFaults::default() };
        self.is_over.store(true, Ordering::Relaxed);
        self.database_until = self.database_until.map(|_| 0);
        // In half of the worlds all nodes start anew; in the others those that run must find by themselves whatever they left undone.
        let starts_anew = self.dice.happens(500_000);
        for node in &mut self.nodes {
            (node.until, node.away_for) = (0, AWAY_MILLIS);
            let Some(running) = &node.running else { continue };
            running.link.heal();
            if starts_anew && node.is_live() {
                running.give(Order::Die);
            }
        }
    }

    /// Ends all nodes, for good or until others are started.
    fn end_all(&mut self) -> Result<(), anyhow::Error> {
        self.is_closed = true;
        for node in &mut self.nodes {
            node.is_stopped = false;
            if let Some(running) = &node.running {
                running.give(Order::Die);
            }
        }
        while self.database_until.is_some() || self.nodes.iter().any(|node| node.running.is_some()) {
            self.tick()?;
        }
        self.database.wait_until_left()
    }

    /// Whether all tasks have ended, and all clients know it.
    fn is_at_rest(&mut self) -> Result<bool, anyhow::Error> {
        Ok(self.actors.iter().all(JoinHandle::is_finished) && self.database.open_tasks()? == 0)
    }

    /// Looks at what is stored.
    fn check_stored(&mut self, is_late: bool) -> Result<(), anyhow::Error> {
        let (ids, observer) = (self.database.all_tasks()?, &self.observer);
        self.database.read(async |reader: &dyn Reader| {
            if is_late {
                checks::report_open(reader, observer).await?;
            }
            checks::check_logs(reader, &ids, observer).await
        })
    }

    /// Nodes that start now must forget all tasks in time, whoever made them.
    fn wait_until_forgotten(&mut self) -> Result<(), anyhow::Error> {
        self.is_closed = false;
        self.nodes.iter_mut().for_each(|node| node.until = 0);
        let is_empty = self.wait(RETENTION + START, |world| Ok(world.database.all_tasks()?.is_empty()))?;
        let left = self.database.all_tasks()?.len();
        if !is_empty && self.is_well() {
            self.observer.violated(format!("{left} tasks were not forgotten"));
        }
        self.end_all()
    }

    /// A world in which nothing goes wrong shows nothing.
    fn report_missing(&self) {
        let (counts, seconds) = (self.observer.counts(), self.span.as_secs());
        let can_be = |what: &Happening| self.database.is_own() || *what != Happening::DatabaseEnded;
        let demanded = MUST_HAPPEN_IN_REAL.iter().filter(|(from, what)| seconds >= *from && can_be(what));
        let missing: Vec<_> = demanded.map(|(_, what)| *what).filter(|what| !counts.contains_key(what)).collect();
        if !missing.is_empty() {
            self.observer.violated(format!("these never happened: {missing:?}"));
        }
    }
}

/// As the world counts.
fn millis_of(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}
