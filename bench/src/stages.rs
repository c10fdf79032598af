//! What is measured, and in which order. Servers that are compared are measured in turns, in rounds.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use tokio::time::sleep;

use crate::{
    client,
    http::Conn,
    load::{self, LoadResult, Op},
    plan::{Plan, Stage},
    process::{Scratch, ServerProcess},
    push,
    report::{Findings, Measure, Memory, Sample, Start, TaskPhase},
    serve::Kind,
    stream,
};

/// Pause before and after a measure, so that what a load leaves to be done is counted with it.
const SETTLE: Duration = Duration::from_millis(100);
/// Pause before memory is read after many tasks were made.
const REST: Duration = Duration::from_secs(1);
/// Steps in which many tasks are made; the last of them is measured.
const STEPS: usize = 10;
/// Requests that make a server warm.
pub const WARM_UP: usize = 2_000;

/// Measures everything. What fails is written down, and does not keep the rest from being measured.
pub async fn run(plan: &Plan, scratch: &Scratch) -> Findings {
    let mut findings = Findings::default();
    if plan.has(Stage::Requests) {
        let result = rounds(plan, scratch, &mut findings).await;
        findings.note_failure("rounds", result);
    }
    if plan.has(Stage::Alive) {
        let result = many_alive(plan, scratch, &mut findings).await;
        findings.note_failure("many live tasks", result);
    }
    if plan.has(Stage::Ended) {
        let result = many_ended(plan, scratch, &mut findings).await;
        findings.note_failure("many ended tasks", result);
    }
    if plan.has(Stage::Push) {
        let result = pushes(plan, scratch, &mut findings).await;
        findings.note_failure("push", result);
    }
    if plan.has(Stage::Stream) {
        let result = stream::rounds(plan, scratch, &mut findings).await;
        findings.note_failure("stream", result);
    }
    if plan.has(Stage::Client) {
        let result = client::rounds(plan, scratch, &mut findings).await;
        findings.note_failure("client", result);
    }
    findings
}

/// Each round: fresh servers, each measure on each of them in turn.
async fn rounds(plan: &Plan, scratch: &Scratch, findings: &mut Findings) -> Result<()> {
    for round in 0..plan.rounds {
        eprintln!("round {} of {}: echo, tasks/get, create, cycle", round + 1, plan.rounds);
        let mut servers = Vec::new();
        for kind in in_turn(Kind::ALL, round) {
            let server = ServerProcess::start(kind, &scratch.fresh()?).await?;
            load::run(server.addr, plan.connections, WARM_UP, Op::Echo).await?;
            servers.push(server);
        }
        for server in &servers {
            let load = measure(server, plan.connections, plan.requests, Op::Echo).await?;
            findings.load(Measure::Echo, server.kind, 0, load.0);
        }
        for server in &servers {
            let tasks = create(server, plan.connections, plan.few).await?;
            let load = measure(server, plan.connections, plan.requests, Op::Get(tasks)).await?;
            findings.load(Measure::Get, server.kind, plan.few, load.0);
        }
        for server in &servers {
            let load = measure(server, plan.connections, plan.creates, Op::Create("park")).await?;
            findings.load(Measure::Create, server.kind, plan.few, load.0);
        }
        // A server that answers constants completes nothing.
        for server in servers.iter().filter(|server| server.kind != Kind::Bare) {
            let load = measure(server, plan.connections, plan.cycles, Op::Cycle("quick")).await?;
            findings.load(Measure::Cycle, server.kind, plan.few + plan.creates, load.0);
        }
        for server in servers {
            server.kill().await?;
        }
    }
    Ok(())
}

/// `tasks/get` with many live tasks beside few, memory of live tasks, and a restart after a crash among them.
async fn many_alive(plan: &Plan, scratch: &Scratch, findings: &mut Findings) -> Result<()> {
    let store = scratch.fresh()?;
    let few = ServerProcess::start(Kind::Taskwire, &scratch.fresh()?).await?;
    let many = ServerProcess::start(Kind::Taskwire, &store).await?;
    let rmcp = ServerProcess::start(Kind::Rmcp, &scratch.fresh()?).await?;

    eprintln!("{} live tasks in taskwire, {} in rmcp", plan.tasks, plan.rmcp_tasks);
    let few_tasks = create(&few, plan.connections, plan.few).await?;
    let many_tasks = grow(&many, plan, plan.tasks, TaskPhase::Working, findings).await?;
    let rmcp_tasks = grow(&rmcp, plan, plan.rmcp_tasks, TaskPhase::Working, findings).await?;
    if plan.rmcp_tasks < plan.tasks {
        findings.notes.push(format!(
            "rmcp was measured with {} live tasks instead of {}: each of its calls sweeps all tasks, so that making them takes quadratic time",
            plan.rmcp_tasks, plan.tasks
        ));
    }

    let candidates = [(&few, &few_tasks), (&many, &many_tasks), (&rmcp, &rmcp_tasks)];
    for round in 0..plan.rounds {
        eprintln!("round {} of {}: tasks/get with many live tasks", round + 1, plan.rounds);
        for (server, tasks) in in_turn(candidates, round) {
            // rmcp needs milliseconds for each call by now; fewer calls say enough.
            let requests = if server.kind == Kind::Rmcp { (plan.requests / 10).max(1) } else { plan.requests };
            let load = measure(server, plan.connections, requests, Op::Get(tasks.clone())).await?;
            findings.load(Measure::GetAmongMany, server.kind, tasks.len(), load.0);
        }
    }

    let probe = many_tasks.last().context("no task was made")?.clone();
    many.kill().await?;
    let (server, seconds) = ServerProcess::start_to_answer(Kind::Taskwire, &store, &probe).await?;
    findings.starts.push(Start { tasks: plan.tasks, held: TaskPhase::Working, seconds: vec![seconds] });
    server.kill().await?;
    few.kill().await?;
    rmcp.kill().await
}

/// Memory of tasks that are only stored, and restarts on top of them.
async fn many_ended(plan: &Plan, scratch: &Scratch, findings: &mut Findings) -> Result<()> {
    eprintln!("{} ended tasks in taskwire", plan.tasks);
    let store = scratch.fresh()?;
    let mut server = ServerProcess::start(Kind::Taskwire, &store).await?;
    let tasks = grow(&server, plan, plan.tasks, TaskPhase::Ended, findings).await?;
    let probe = tasks.first().context("no task was made")?;
    let mut seconds = Vec::new();
    for _ in 0..plan.rounds {
        server.kill().await?;
        let (restarted, took) = ServerProcess::start_to_answer(Kind::Taskwire, &store, probe).await?;
        seconds.push(took);
        server = restarted;
    }
    findings.starts.push(Start { tasks: plan.tasks, held: TaskPhase::Ended, seconds });
    server.kill().await
}

/// How fast the end of a task reaches one listener, and many.
async fn pushes(plan: &Plan, scratch: &Scratch, findings: &mut Findings) -> Result<()> {
    for round in 0..plan.rounds {
        eprintln!("round {} of {}: push to 1 and to {} listeners", round + 1, plan.rounds, plan.listeners);
        // Fresh servers, because memory that an earlier round gave back would hide what streams need.
        let mut servers = Vec::new();
        for kind in in_turn([Kind::Taskwire, Kind::Bare], round) {
            let server = ServerProcess::start(kind, &scratch.fresh()?).await?;
            load::run(server.addr, plan.connections, WARM_UP, Op::Echo).await?;
            servers.push(server);
        }
        for listeners in [1, plan.listeners] {
            for server in &servers {
                let result = push::run(server, listeners, plan.pushes).await;
                let result = result.with_context(|| format!("{} with {listeners} listeners", server.kind.name()))?;
                findings.pushes(server.kind, listeners, result);
            }
        }
        for server in servers {
            server.kill().await?;
        }
    }
    Ok(())
}

/// Makes many tasks in steps, and writes down what the last step cost and what the tasks keep in memory.
async fn grow(server: &ServerProcess, plan: &Plan, total: usize, held: TaskPhase, findings: &mut Findings) -> Result<Arc<Vec<String>>> {
    load::run(server.addr, plan.connections, WARM_UP, Op::Echo).await?;
    create(server, plan.connections, plan.few).await?;
    sleep(REST).await;
    let empty = server.rss()?;
    let mut half = empty;
    let mut tasks = Vec::with_capacity(total);
    for step in 1..=STEPS {
        let count = total * step / STEPS - tasks.len();
        let (sample, load) = measure(server, plan.connections, count, Op::Create(held.tool())).await?;
        tasks.extend(load.into_tasks()?);
        if step == STEPS / 2 {
            half = settled_memory(server, held, &tasks, plan.connections).await?;
        }
        if step == STEPS && held == TaskPhase::Working {
            findings.load(Measure::CreateAmongMany, server.kind, total, sample);
        }
    }
    let full = settled_memory(server, held, &tasks, plan.connections).await?;
    findings.memory.push(Memory {
        server: server.kind,
        held,
        tasks: total,
        bytes_per_task: (full - empty) / total as f64,
        bytes_per_task_late: (full - half) / (total as f64 / 2.0),
        rss_bytes: full,
    });
    Ok(Arc::new(tasks))
}

/// Memory of the server once the newest tasks are what they are meant to be.
async fn settled_memory(server: &ServerProcess, held: TaskPhase, tasks: &[String], connections: usize) -> Result<f64> {
    if held == TaskPhase::Ended {
        let mut conn = Conn::open(server.addr).await?;
        for task in tasks.iter().rev().take(2 * connections) {
            load::until_completed(&mut conn, server.addr, task).await?;
        }
    }
    sleep(REST).await;
    server.rss()
}

async fn create(server: &ServerProcess, connections: usize, count: usize) -> Result<Arc<Vec<String>>> {
    let load = load::run(server.addr, connections, count, Op::Create("park")).await?;
    Ok(Arc::new(load.into_tasks()?))
}

async fn measure(server: &ServerProcess, connections: usize, total: usize, op: Op) -> Result<(Sample, LoadResult)> {
    sleep(SETTLE).await;
    let before = server.cpu()?;
    let load = load::run(server.addr, connections, total, op).await?;
    sleep(SETTLE).await;
    let cpu = server.cpu()? - before;
    Ok((Sample::new(&load, cpu), load))
}

/// The same things, beginning with another one in each round.
pub fn in_turn<T, const N: usize>(mut things: [T; N], round: usize) -> [T; N] {
    things.rotate_left(round % N);
    things
}
