//! The commands of a store that is moved, while no server runs. They stay where their files are.
//!
//! A command of a store that one server has goes on for as long as it likes without that server. Where nodes share a store it must not:
//! another node would start it a second time. So before the tasks are there, its supervisor is given a lease, as if the node that has the
//! same data directory had started it. The other way round, a task whose command was begun in another directory must not begin as if it
//! were new.

use std::{
    io::{self, ErrorKind},
    path::Path,
    time::Duration,
};

use taskwire_core::{Epoch, Payload, TaskId};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    time::timeout,
};

use super::{
    SPOOL,
    messages::{self, FromSupervisor, ToSupervisor},
    run,
    supervisor::{self, Job, JobLease, lease_time_ms},
    sweep::{self, JobDir},
};

/// How long a supervisor may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Hands the commands that run in the data directory `data` over to a node of another store, which has the same directory: they end when no
/// such node has been there for `orphan_after`. `epoch` is that of the server that started them. Returns their tasks.
///
/// # Errors
/// When a supervisor does not answer, or a file cannot be used. Commands that were handed over before stay so: any server can go on with
/// them, also the one that started them.
pub async fn hand_over(data: &Path, epoch: Epoch, orphan_after: Duration) -> io::Result<Vec<TaskId>> {
    let jobs = match sweep::jobs_in(&data.join(SPOOL)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        jobs => jobs?,
    };
    let mut tasks = Vec::new();
    for JobDir { id, dir } in jobs {
        if !supervisor::is_alive(&dir) {
            continue;
        }
        let Some(job) = Job::read(&dir)? else { continue };
        match adopt(&dir, job, epoch, orphan_after).await {
            Ok(()) => tasks.push(id),
            // It has ended meanwhile.
            Err(_) if !supervisor::is_alive(&dir) => {}
            Err(error) => {
                return Err(io::Error::new(
                    error.kind(),
                    format!(
                        "the command of task {id} runs on, and its supervisor does not take a new server ({error}): wait until it ends"
                    ),
                ));
            }
        }
    }
    Ok(tasks)
}

/// Gives a job that runs a lease from now on.
async fn adopt(dir: &Path, job: Job, epoch: Epoch, orphan_after: Duration) -> io::Result<()> {
    let orphan_after_ms = u64::try_from(orphan_after.as_millis()).unwrap_or(u64::MAX);
    // A job that has a number keeps it: the checkpoint names it.
    let epoch = job.lease.as_ref().map_or(epoch.0, |lease| lease.epoch);
    let lease = JobLease { epoch, held_at_ms: lease_time_ms(), orphan_after_ms };
    let (lines, mut out) = sweep::attach(dir).await?.into_split();
    out.write_all(&messages::line(&ToSupervisor::Adopt(lease.clone()))).await?;
    let mut lines = BufReader::new(lines).lines();
    let answer = async {
        while let Some(line) = lines.next_line().await? {
            if matches!(serde_json::from_str::<FromSupervisor>(&line), Ok(FromSupervisor::Adopted {})) {
                return Ok(());
            }
        }
        Err(io::Error::from(ErrorKind::ConnectionAborted))
    };
    timeout(ANSWER_TIMEOUT, answer).await.map_err(|_| io::Error::from(ErrorKind::TimedOut))??;
    run::rewrite_job(dir, &Job { lease: Some(lease), ..job })
}

/// Notes in the data directory `data` that the command of a task was begun elsewhere, unless its files are here: so it is not taken for one
/// that was never started. Returns whether it was begun elsewhere.
///
/// # Errors
/// When a file cannot be written.
pub fn note_elsewhere(data: &Path, task: TaskId, checkpoint: Option<&Payload>) -> io::Result<bool> {
    run::note_elsewhere(&data.join(SPOOL), task, checkpoint)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;
    use taskwire_core::{Timestamp, id::ID_RANDOM_BYTES};

    use super::*;
    use crate::testing::TempDir;

    #[tokio::test]
    async fn where_nothing_runs_nothing_is_handed_over() {
        let dir = TempDir::new();
        let handed = hand_over(&dir.0, Epoch(1), Duration::from_secs(30)).await.expect("there is no spool");
        assert_eq!(handed, []);
        let id = TaskId::new(Timestamp::from_millis(1), [1; ID_RANDOM_BYTES]);
        fs::create_dir_all(dir.0.join(SPOOL).join(format!("{id}.1"))).expect("made");
        let handed = hand_over(&dir.0, Epoch(1), Duration::from_secs(30)).await.expect("no supervisor is there");
        assert_eq!(handed, []);
    }

    #[test]
    fn a_command_that_was_begun_elsewhere_is_noted_under_the_number_of_its_job() {
        let dir = TempDir::new();
        let id = TaskId::new(Timestamp::from_millis(1), [1; ID_RANDOM_BYTES]);
        let checkpoint: Payload = json!({"run": 2, "seq": 5, "at": 10, "out": 0, "err": 0, "notes": 0}).into();
        assert!(note_elsewhere(&dir.0, id, None).expect("noted"));
        assert!(note_elsewhere(&dir.0, id, Some(&checkpoint)).expect("noted"));
        assert!(note_elsewhere(&dir.0, id, Some(&checkpoint)).expect("noted again"));
        for number in [1, 2] {
            assert!(dir.0.join(SPOOL).join(format!("{id}.{number}")).join("elsewhere").exists());
        }
        let nonsense: Payload = json!("x").into();
        assert!(!note_elsewhere(&dir.0, id, Some(&nonsense)).expect("nothing is noted"));
    }
}
