//! Runs Taskwire in a simulated world: several nodes that share a store, clients, virtual time, and everything that can go wrong.
//!
//! `sim --seed 7` runs one world, the same each time. `sim --for 2m` runs world after world with fresh seeds, each in a process of its
//! own, and prints the seed of one in which something was wrong.
//!
//! `sim --store postgres:18` runs a real world: the same nodes, clients and checks in real time, on a PostgreSQL that fails for real.

mod checks;
mod clients;
mod clock;
mod observer;
mod plant;
mod random;
mod real;
mod serving;
mod store;
mod tee;
mod tools;
mod world;

use std::{
    collections::BTreeMap,
    process::{Command, ExitCode, Stdio},
    time::{Duration, SystemTime},
};

use anyhow::Context;
use clap::Parser;

use crate::{
    observer::Observer,
    plant::Plant,
    real::{RealWorld, StoreAt},
    world::World,
};

/// How long worlds go on if nobody says how long.
const SPAN: Duration = Duration::from_secs(60);

/// Runs Taskwire in a simulated world, in which everything goes wrong that can
#[derive(Debug, Parser)]
struct Arguments {
    /// The world to run; the same seed gives the same world, or the same plan of what goes wrong in a real one
    #[arg(long)]
    seed: Option<u64>,
    /// How long a simulated world goes on, in virtual seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Run simulated worlds with fresh seeds for this long, such as `2m`, or let things go wrong for so long in a real one
    #[arg(long, value_parser = parse_span)]
    r#for: Option<Duration>,
    /// Run a real world on `postgres:18` or `postgres:15`, which it starts and ends, or on the database at an URL (without TLS)
    #[arg(long)]
    store: Option<StoreAt>,
    /// Plant a bug, to see whether it is found
    #[arg(long)]
    plant: Option<Plant>,
    /// Print what happened, line by line
    #[arg(long)]
    trace: bool,
    /// Print the messages between clients and nodes, too
    #[arg(long)]
    wire: bool,
}

fn parse_span(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let number: u64 = number.parse().map_err(|_| "a number with `s`, `m` or `h`".to_owned())?;
    match unit {
        "" | "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number * 60)),
        "h" => Ok(Duration::from_secs(number * 3600)),
        _ => Err("a number with `s`, `m` or `h`".to_owned()),
    }
}

fn main() -> Result<ExitCode, anyhow::Error> {
    let arguments = Arguments::parse();
    match (&arguments.store, arguments.seed, arguments.r#for) {
        (Some(at), seed, span) => run_real(&arguments, at, seed.map_or_else(fresh_seed, Ok)?, span.unwrap_or(SPAN)),
        (None, Some(seed), _) => run_one(&arguments, seed),
        (None, None, span) => run_many(&arguments, span.unwrap_or(SPAN)),
    }
}

#[expect(clippy::disallowed_methods, reason = "the seeds are to be fresh")]
fn fresh_seed() -> Result<u64, anyhow::Error> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos();
    Ok(u64::try_from(now & 0xffff_ffff_ffff)?)
}

/// Runs one simulated world.
fn run_one(arguments: &Arguments, seed: u64) -> Result<ExitCode, anyhow::Error> {
    let (plant, wire, millis) = (arguments.plant, arguments.wire, i64::try_from(arguments.seconds * 1_000)?);
    let trace = arguments.trace || wire;
    let is_right = watch(seed, move || World::new(seed, plant, trace, wire)?.run(millis))?;
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs one real world.
fn run_real(arguments: &Arguments, at: &StoreAt, seed: u64, span: Duration) -> Result<ExitCode, anyhow::Error> {
    let (plant, wire, seconds) = (arguments.plant, arguments.wire, span.as_secs());
    let shows = (arguments.trace || wire, wire);
    println!("seed {seed}: a real world on {at} for {seconds} s, and what it takes to come to rest");
    let opened = at.clone();
    if watch(seed, move || Ok(RealWorld::new(seed, &opened, span, plant, shows)?.run()))? {
        return Ok(ExitCode::SUCCESS);
    }
    println!("the same plan again: `cargo run --release -p taskwire-sim -- --store {at} --for {seconds}s --seed {seed}`");
    Ok(ExitCode::FAILURE)
}

/// Lets a world go on, and says what was wrong with it. Returns whether nothing was.
fn watch(seed: u64, world: impl FnOnce() -> Result<Observer, anyhow::Error> + Send + 'static) -> Result<bool, anyhow::Error> {
    if std::env::var_os("RUST_LOG").is_some() {
        tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).with_writer(std::io::stderr).init();
    }
    let world = move || {
        random::seed_system(seed);
        // Tools that panic are part of the workload.
        std::panic::set_hook(Box::new(move |panic| {
            if !panic.to_string().contains("panics") {
                eprintln!("{panic}\n{}", std::backtrace::Backtrace::force_capture());
            }
        }));
        world()
    };
    let observer = std::thread::Builder::new()
        .stack_size(64 << 20)
        .spawn(world)?
        .join()
        .map_err(|_| anyhow::anyhow!("seed {seed}: the world panicked"))??;
    for line in observer.lines() {
        println!("{line}");
    }
    let counts: Vec<String> = observer.counts().iter().map(|(what, count)| format!("{what:?}={count}")).collect();
    println!("seed {seed}: trace {:016x} {}", observer.trace_hash(), counts.join(" "));
    let violations = observer.violations();
    for violation in &violations {
        println!("seed {seed}: WRONG at {violation}");
    }
    Ok(violations.is_empty())
}

/// Runs worlds until the time is over or one is wrong. Two at a time.
fn run_many(arguments: &Arguments, span: Duration) -> Result<ExitCode, anyhow::Error> {
    #[expect(clippy::disallowed_methods, reason = "the time to run is real")]
    let (mut seed, began) = (fresh_seed()?, std::time::Instant::now());
    let (mut worlds, mut totals) = (0_u64, BTreeMap::<String, u64>::new());
    while began.elapsed() < span {
        let children: Vec<_> = (0..2)
            .map(|_| {
                seed += 1;
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["--seed", &seed.to_string(), "--seconds", &arguments.seconds.to_string()]);
                if let Some(plant) = arguments.plant {
                    command.args(["--plant", clap::ValueEnum::to_possible_value(&plant).context("it has a name")?.get_name()]);
                }
                Ok((seed, command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?))
            })
            .collect::<Result<_, anyhow::Error>>()?;
        for (seed, child) in children {
            let output = child.wait_with_output()?;
            let text = String::from_utf8_lossy(&output.stdout);
            worlds += 1;
            for word in text.lines().filter(|line| line.contains(": trace ")).flat_map(str::split_whitespace) {
                if let Some((what, count)) = word.split_once('=') {
                    *totals.entry(what.to_owned()).or_default() += count.parse::<u64>().unwrap_or(0);
                }
            }
            if !output.status.success() {
                println!("{text}{}", String::from_utf8_lossy(&output.stderr));
                println!(
                    "world {worlds}: again with `cargo run --release -p taskwire-sim -- --seed {seed} --seconds {}`",
                    arguments.seconds
                );
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    println!("{worlds} worlds, nothing wrong: {totals:?}");
    let missing: Vec<_> = observer::MUST_HAPPEN.iter().filter(|what| !totals.contains_key(&format!("{what:?}"))).collect();
    if !missing.is_empty() {
        println!("these never happened: {missing:?}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
