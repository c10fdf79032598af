//! Commands that were lost: started again, if their tool allows it.

use std::{fs, io, os::unix::fs::DirBuilderExt, path::Path, time::Duration};

use taskwire_core::{Attempt, Payload, TaskId, task::OnInterrupt};

use super::{CommandRun, CommandTool, JournalCheckpoint, files_unusable, internal, rewrite_job, write_job, write_private};
use crate::{
    command::{
        definition::Leftovers,
        journal,
        parser::OutputSettings,
        supervisor::{Job, JobLease, STDIN, lease_time_ms},
        sweep,
    },
    engine::Phase,
    tool::{ToolError, from_engine},
};

/// In the directory of a job that was begun in another data directory, from which the store was moved.
const ELSEWHERE: &str = "elsewhere";
/// How soon it is looked again whether this node has a lease.
const LEASE_PAUSE: Duration = Duration::from_millis(100);

const LOST: &str = "interrupted: the command was lost while it ran (its machine was restarted, its server was gone for too long, its processes were killed, or \
     its files were removed)";

/// Whether this machine has the job that a checkpoint is about.
pub(in crate::command) fn is_here(dir: &Path, checkpoint: &JournalCheckpoint) -> bool {
    // One that cannot be read is looked at, and complained of, by whoever goes on with it.
    Job::read(dir).map_or(true, |job| job.is_some_and(|job| checkpoint.is_of(&job)))
}

/// Notes in `spool` that the command of a task was begun elsewhere, unless its job is there. Returns whether it was.
pub(in crate::command) fn note_elsewhere(spool: &Path, id: TaskId, checkpoint: Option<&Payload>) -> io::Result<bool> {
    let checkpoint = checkpoint.map_or_else(|| Ok(JournalCheckpoint::start(1, 0, 0)), Payload::read::<JournalCheckpoint>);
    // Whoever goes on with it complains of what cannot be read.
    let Ok(checkpoint) = checkpoint else { return Ok(false) };
    let dir = spool.join(format!("{id}.{}", checkpoint.job_number));
    if dir.exists() && is_here(&dir, &checkpoint) {
        return Ok(false);
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
    write_private(&dir.join(ELSEWHERE), b"")?;
    Ok(true)
}

impl CommandRun {
    /// Whether the command was started on another node, or in another data directory, and is over there.
    pub(super) fn was_elsewhere(&self, dir: &Path, checkpoint: &JournalCheckpoint) -> bool {
        dir.join(ELSEWHERE).exists() || self.is_of_gone_node(dir, checkpoint)
    }

    fn is_of_gone_node(&self, dir: &Path, checkpoint: &JournalCheckpoint) -> bool {
        self.run.engine().orphan_after().is_some() && self.run.attempt() > Attempt(1) && !self.run.was_queued() && !is_here(dir, checkpoint)
    }

    /// Where nodes share the store: what a job says of this node. Waits for a lease, for without one the supervisor must start nothing.
    pub(super) async fn job_lease(&self, before: Option<&JobLease>) -> Option<JobLease> {
        let engine = self.run.engine();
        let orphan_after_ms = u64::try_from(engine.orphan_after()?.as_millis()).unwrap_or(u64::MAX);
        loop {
            let held_at_ms = lease_time_ms();
            if engine.has_lease() || self.run.is_stopped() {
                let epoch = before.map_or(engine.epoch().0, |lease| lease.epoch);
                return Some(JobLease { epoch, held_at_ms, orphan_after_ms });
            }
            engine.clock().sleep(LEASE_PAUSE).await;
        }
    }

    /// A job of an earlier attempt. If nothing has begun it, it may begin from now on; its store may be shared since, or no more.
    pub(super) async fn renewed(&self, dir: &Path, mut job: Job) -> Result<Job, ToolError> {
        if !dir.join(journal::FILE).exists() {
            let before = job.lease.take();
            job.lease = self.job_lease(before.as_ref()).await;
            if job.lease != before {
                self.retry_while_short(|| rewrite_job(dir, &job)).await.map_err(|error| files_unusable(dir, &error))?;
            }
        }
        Ok(job)
    }

    /// Starts a command anew that was lost with its node, if the tool allows it.
    pub(super) async fn restart_elsewhere(
        &mut self,
        command: Option<&CommandTool>,
        last: &JournalCheckpoint,
    ) -> Result<JournalCheckpoint, ToolError> {
        let Some(command) = command else {
            return Err(internal(format!("the tool `{}` is no longer there", self.run.spec().tool)));
        };
        let (job, stdin) = self.job(command, last.job_number)?;
        self.check_restart(&job.settings, last)?;
        self.wait_for_slot(&job.tool, false).await?;
        let next = self.write_next_job(&job, stdin.as_deref(), last).await?;
        self.restarted(&job.settings, &next).await?;
        Ok(next)
    }

    /// Starts a lost command again, if the tool allows it.
    pub(super) async fn restart_lost_command(
        &mut self,
        dir: &Path,
        job: &Job,
        last: &JournalCheckpoint,
    ) -> Result<JournalCheckpoint, ToolError> {
        self.check_restart(&job.settings, last)?;
        if !matches!(self.run.promote().await.map_err(from_engine)?, Phase::Task(_)) {
            return Err(ToolError::stopped());
        }
        let stdin = job.stdin.then(|| fs::read_to_string(dir.join(STDIN))).transpose().map_err(|error| files_unusable(dir, &error))?;
        let next = self.write_next_job(job, stdin.as_deref(), last).await?;
        // No process of the lost job may run when the next one starts.
        sweep::kill_orphans(dir.to_owned()).await;
        self.restarted(&job.settings, &next).await?;
        sweep::remove_job(dir.to_owned(), Leftovers::Kill).await;
        Ok(next)
    }

    fn check_restart(&self, settings: &OutputSettings, last: &JournalCheckpoint) -> Result<(), ToolError> {
        let why = match settings.on_interrupt {
            OnInterrupt::Retry if last.job_number < settings.attempts_max => return Ok(()),
            OnInterrupt::Retry => format!("it was already started {} times", last.job_number),
            OnInterrupt::Fail | OnInterrupt::Resume => "the tool is not marked as safe to run again (`on_interrupt`)".to_owned(),
        };
        Err(internal(format!("{LOST}, and {why}")))
    }

    /// Writes the job that follows a lost one. Its first chunk comes after all output of that.
    async fn write_next_job(&self, job: &Job, stdin: Option<&str>, last: &JournalCheckpoint) -> Result<JournalCheckpoint, ToolError> {
        // Some of its output may still be on the way into the log.
        self.ctx.flush().await?;
        let seq = self.run.engine().chunk_range(self.run.id()).await.map_err(from_engine)?.end;
        let lease = self.job_lease(None).await;
        let epoch = lease.as_ref().map_or(0, |lease| lease.epoch);
        let next = JournalCheckpoint::start(last.job_number + 1, seq.0, epoch);
        let dir = self.commands.job_dir(self.run.id(), next.job_number);
        // This node may have had a job of that number, which another one followed since.
        sweep::remove_job(dir.clone(), Leftovers::Kill).await;
        write_job(&dir, &Job { number: next.job_number, lease, ..job.clone() }, stdin).map_err(|error| files_unusable(&dir, &error))?;
        Ok(next)
    }

    /// Records that the next job is the one to go on with.
    async fn restarted(&self, settings: &OutputSettings, next: &JournalCheckpoint) -> Result<(), ToolError> {
        self.ctx.checkpoint(next).await?;
        self.ctx.status(format!("the command was lost and is run again ({} of {})", next.job_number, settings.attempts_max)).await
    }
}
