//! Stops commands that no task needs any more, and removes their files.
//!
//! A command may run for a task that has not ended, or for a call that a run of this process follows; any other is stopped. The sweep looks
//! at the tasks and the disk from time to time, so that nothing is left after a crash either.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use taskwire_core::TaskId;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
};

use super::{
    ActiveGuard, Commands, Leftovers,
    concurrency::Slot,
    definition::KILL_AFTER,
    lock,
    messages::{self, Hello, ToSupervisor},
    socket,
    supervisor::{self, Job},
};
use crate::{
    clock::Clock,
    engine::{Engine, Phase, Run},
};

const SWEEP_INTERVAL: Duration = Duration::from_secs(30);
/// How long a supervisor may take to send its first message.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// The directory of a job.
#[derive(Debug)]
pub(super) struct JobDir {
    pub(super) id: TaskId,
    pub(super) dir: PathBuf,
}

fn job_dirs(commands: &Commands) -> io::Result<Vec<JobDir>> {
    jobs_in(&commands.0.spool)
}

/// The directories of all jobs in a spool.
pub(super) fn jobs_in(spool: &Path) -> io::Result<Vec<JobDir>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(spool)? {
        let entry = entry?;
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.split_once('.')).and_then(|(id, _)| id.parse().ok());
        if let Some(id) = id {
            all.push(JobDir { id, dir: entry.path() });
        }
    }
    Ok(all)
}

/// Reserves a slot for each command that runs already, then sweeps from time to time.
pub(super) async fn begin(commands: &Commands, engine: &Engine) {
    match job_dirs(commands) {
        Err(error) => tracing::error!(%error, dir = %commands.0.spool.display(), "cannot look for commands that are running"),
        Ok(all) => {
            for JobDir { id, dir } in all {
                let open = engine.any_task(id).await.is_ok_and(|task| task.is_some_and(|task| task.ended.is_none()));
                if let Some(job) = Job::read(&dir).ok().flatten().filter(|_| open) {
                    commands.concurrency_limit(&job.tool, None).reserve(id);
                }
            }
        }
    }
    let (commands, weak) = (commands.clone(), engine.weak());
    tokio::spawn(async move {
        while let Some(engine) = weak.get() {
            sweep(&commands, &engine).await;
            let pause = engine.clock().sleep(SWEEP_INTERVAL);
            drop(engine);
            pause.await;
        }
    });
}

/// Stops commands that belong to no task, and removes their files.
async fn sweep(commands: &Commands, engine: &Engine) {
    let all = match job_dirs(commands) {
        Ok(all) => all,
        Err(error) => return tracing::error!(%error, "cannot look for commands that nobody wants"),
    };
    for JobDir { id, dir } in all {
        if lock(&commands.0.active).contains(&id) {
            continue;
        }
        let read = match engine.any_task(id).await {
            // Another node has started its command anew, and knew that this one was over.
            Ok(Some(task)) if task.ended.is_none() => engine.is_other_node(task.epoch).await.map(|is_other| !is_other),
            read => read.map(|_| false),
        };
        match read {
            Ok(true) => {}
            Ok(false) => {
                let active = commands.activate(id);
                tokio::spawn(clean_up_job(commands.clone(), engine.clock().clone(), dir, active));
            }
            Err(error) => tracing::error!(%error, "a task cannot be read"),
        }
    }
}

/// Stops all commands, and removes their files.
pub(super) async fn end_all(commands: &Commands, engine: &Engine) {
    match job_dirs(commands) {
        Ok(all) => {
            let clean_up = |JobDir { id, dir }| clean_up_job(commands.clone(), engine.clock().clone(), dir, commands.activate(id));
            futures_util::future::join_all(all.into_iter().map(clean_up)).await;
        }
        Err(error) => tracing::error!(%error, "cannot look for commands that are running"),
    }
}

/// Stops the command of a task that has ended, if it runs, and then removes its files.
async fn clean_up_job(commands: Commands, clock: Arc<dyn Clock>, dir: PathBuf, active: ActiveGuard) {
    if !stop_supervisor(&dir, &*clock).await {
        // The next sweep tries again.
        return;
    }
    if let Some(job) = Job::read(&dir).ok().flatten() {
        commands.concurrency_limit(&job.tool, None).release_reserved(active.id);
    }
    remove_job(dir, Leftovers::Kill).await;
    drop(active);
}

/// Stops the command of a run that has failed or was cancelled, and removes its files once that is durable.
pub(super) async fn stop_then_clean_up(run: Arc<Run>, dir: PathBuf, active: ActiveGuard, slot: Option<Slot>) {
    stop_supervisor(&dir, &**run.engine().clock()).await;
    drop(slot);
    remove_when_durable(run, dir, Leftovers::Kill, active).await;
}

/// Stops a command, if it runs, and waits until it is gone. Returns whether it is. A supervisor that was halted is resumed; one that does
/// not stop is killed with all that it has started.
async fn stop_supervisor(dir: &Path, clock: &dyn Clock) -> bool {
    let Ok(stream) = attach(dir).await else {
        // If it is alive, it is about to start or to end.
        return !supervisor::is_alive(dir);
    };
    let supervisor = stream.peer_cred().ok().and_then(|peer| u32::try_from(peer.pid()?).ok());
    let kill_after = Job::read(dir).ok().flatten().map_or(KILL_AFTER, |job| Duration::from_millis(job.kill_after_ms));
    let (lines, mut out) = stream.into_split();
    // The supervisor may be gone.
    let _ = out.write_all(&messages::line(&ToSupervisor::Stop {})).await;
    let mut lines = BufReader::new(lines).lines();
    // A supervisor sends its state to each server that attaches, at once.
    let is_silent = tokio::select! {
        line = lines.next_line() => if let Ok(Some(_)) = line { false } else { return true },
        () = clock.sleep(ANSWER_TIMEOUT) => true,
    };
    if let Some(supervisor) = supervisor.filter(|_| is_silent) {
        tracing::warn!(supervisor, dir = %dir.display(), "a supervisor does not answer, and is woken up");
        supervisor::resume_supervisor(dir, supervisor);
    }
    let gone = async { while let Ok(Some(_)) = lines.next_line().await {} };
    tokio::select! {
        () = gone => return true,
        () = clock.sleep(kill_after + supervisor::STOP_TIMEOUT) => {}
    }
    if let Some(supervisor) = supervisor {
        tracing::warn!(supervisor, dir = %dir.display(), "a supervisor does not stop, and is killed with all that it has started");
        let job_dir = dir.to_owned();
        let _ = tokio::task::spawn_blocking(move || supervisor::kill_supervisor(&job_dir, supervisor)).await;
    }
    !supervisor::is_alive(dir)
}

pub(super) async fn attach(dir: &Path) -> io::Result<UnixStream> {
    let mut stream = socket::connect(dir, messages::SOCKET).await?;
    stream.write_all(&messages::line(&Hello::Server)).await?;
    Ok(stream)
}

/// Kills the processes that a job left.
pub(super) async fn kill_orphans(dir: PathBuf) {
    let _ = tokio::task::spawn_blocking(move || supervisor::kill_orphans(&dir)).await;
}

/// Kills the processes that a job left, if they are not to stay, and removes its directory.
pub(super) async fn remove_job(dir: PathBuf, leftovers: Leftovers) {
    let cleared = tokio::task::spawn_blocking(move || {
        if leftovers == Leftovers::Kill {
            supervisor::kill_orphans(&dir);
        }
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err((dir, error)),
            _ => Ok(()),
        }
    });
    if let Ok(Err((dir, error))) = cleared.await {
        tracing::warn!(%error, dir = %dir.display(), "what a command left cannot be removed");
    }
}

/// Removes a job once its task's end is durable, and not before: after a crash the command would be started again.
pub(super) async fn remove_when_durable(run: Arc<Run>, dir: PathBuf, leftovers: Leftovers, active: ActiveGuard) {
    loop {
        match run.phase() {
            Phase::Loose => drop(run.settled().await),
            Phase::Done(_) => break,
            Phase::Task(id) => {
                let watch = run.engine().watch(vec![id], false);
                match run.engine().any_task(id).await {
                    Ok(Some(task)) if task.ended.is_none() => drop(watch.changed().await),
                    Ok(_) => break,
                    // The sweep of the next start removes it.
                    Err(_) => return,
                }
            }
        }
    }
    if !supervisor::is_alive(&dir) {
        remove_job(dir, leftovers).await;
    }
    drop(active);
}
