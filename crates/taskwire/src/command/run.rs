//! The server's side of a run: starts the command or finds it again, and takes its journal into the task's log.
//!
//! How far the journal was taken is saved with the output that it covers, in one commit. So whatever is killed and whenever,
//! the next attempt goes on at the next byte: nothing is missing and nothing is there twice.

mod importer;
mod questions;

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use taskwire_core::{
    Payload,
    task::{Authority, OnInterrupt},
    wire::code,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    net::unix::{OwnedReadHalf, OwnedWriteHalf},
};

use self::{
    importer::JournalImporter,
    questions::{REPEAT_SEPARATOR, WITHDRAWN, ask},
};
use super::{
    ActiveGuard, Commands,
    concurrency::Slot,
    definition::{CompiledDefinition, Definition, Format, Inherit, Leftovers},
    journal::{self, JobEnd},
    messages::{self, FromSupervisor, ToSupervisor},
    parser::OutputSettings,
    supervisor::{JOB, Job, STDIN},
    sweep,
};
use crate::{
    engine::{Phase, Run},
    owned_files,
    tool::{CallResult, Content, Ctx, Schema, ToolError, from_engine},
};

/// How long a supervisor may take to answer.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait before it is tried again.
const ATTACH_RETRY_PAUSE: Duration = Duration::from_millis(25);
/// How long to wait where the machine is short of something.
const SHORTAGE_RETRY_PAUSE: Duration = Duration::from_millis(500);

const LOST: &str =
    "interrupted: the command was lost while it ran (its machine was restarted, its processes were killed, or its files were removed)";

/// A command tool.
pub(super) struct CommandTool {
    pub(super) definition: Definition,
    pub(super) compiled: CompiledDefinition,
    /// What its structured result must be.
    pub(super) output_schema: Option<Schema>,
}

/// How far the journal was taken. Saved as the task's checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct JournalCheckpoint {
    /// How often the command itself was started.
    #[serde(rename = "run")]
    job_number: u64,
    /// The number of the first chunk of this run.
    #[serde(rename = "seq")]
    first_seq: u64,
    /// A place in the journal; everything before it was taken.
    #[serde(rename = "at")]
    offset: u64,
    /// Bytes of standard output behind that place that were taken too.
    #[serde(rename = "out")]
    stdout_bytes: u64,
    /// The same of standard error.
    #[serde(rename = "err")]
    stderr_bytes: u64,
    /// The same of notes, in number.
    notes: u64,
    /// Whether what comes next of the two streams is the rest of a line of which nothing more may be seen.
    #[serde(default)]
    hidden: [bool; 2],
}

impl JournalCheckpoint {
    fn start(run: u64, seq: u64) -> Self {
        Self { job_number: run, first_seq: seq, offset: 0, stdout_bytes: 0, stderr_bytes: 0, notes: 0, hidden: [false; 2] }
    }
}

/// How following a command ended.
enum JobOutcome {
    /// It ended.
    Ended(JobEnd),
    /// It is gone, and nobody knows how it ended.
    Lost,
}

/// A run and what it holds. Dropped before its end, it stops a command that belongs to no task: nobody would ever hear of it.
struct CommandRun {
    commands: Commands,
    ctx: Ctx,
    run: Arc<Run>,
    active: Option<ActiveGuard>,
    slot: Option<Slot>,
    supervisor: Option<OwnedWriteHalf>,
}

impl Drop for CommandRun {
    fn drop(&mut self) {
        if let Some(out) = self.supervisor.as_ref().filter(|_| !matches!(self.run.phase(), Phase::Task(_))) {
            let _ = out.try_write(&messages::line(&ToSupervisor::Stop {}));
        }
    }
}

/// Runs a command, or goes on with one that runs. Without `command`, only the latter.
pub(super) async fn run(commands: Commands, command: Option<Arc<CommandTool>>, ctx: Ctx) -> Result<CallResult, ToolError> {
    let run = ctx.run().clone();
    let mut mark = ctx.saved()?.unwrap_or_else(|| JournalCheckpoint::start(1, 0));
    let active = Some(commands.activate(run.id()));
    let mut hand = CommandRun { commands, ctx, run, active, slot: None, supervisor: None };
    for earlier in 1..mark.job_number {
        // Where a life ended between the two, something of it may be left.
        sweep::remove_job(hand.commands.job_dir(hand.run.id(), earlier), Leftovers::Kill).await;
    }
    loop {
        let dir = hand.commands.job_dir(hand.run.id(), mark.job_number);
        let prepared = hand.prepare(command.as_deref(), &dir, &mark).await;
        let taken = prepared.and_then(|job| JournalImporter::new(&hand, &dir, &job, &mark).map(|taking| (job, taking)));
        let (job, mut taking) = match taken {
            Ok(taken) => taken,
            Err(error) => {
                // It may run all the same.
                if dir.exists() {
                    hand.stop_and_clean_up(dir);
                }
                return Err(error);
            }
        };
        match hand.follow(&dir, &job, &mut taking).await {
            // Not stopped by us: then it was lost like everything else on the machine.
            Ok(JobOutcome::Ended(ended)) if !ended.stopped => {
                if let Some(why) = &ended.start_error {
                    let (program, cwd) = (job.argv.first(), job.cwd.display());
                    tracing::warn!(tool = %job.tool, ?program, %cwd, %why, "a command could not be started");
                }
                let mut result = taking.result(&ended).await;
                if let (Ok(result), Some(schema)) = (&mut result, command.as_ref().and_then(|command| command.output_schema.as_ref())) {
                    check_output_schema(result, schema);
                }
                hand.clean_up(dir, job.leftovers);
                return result;
            }
            Ok(_) => {
                hand.supervisor = None;
                taking.write_pending().await?;
                mark = match hand.restart_lost_command(&dir, &job, &mark).await {
                    Ok(next) => next,
                    Err(error) => {
                        hand.stop_and_clean_up(dir);
                        return Err(error);
                    }
                };
            }
            Err(error) => {
                let short = taking.output_limit_result().await;
                hand.stop_and_clean_up(dir);
                return short.ok_or(error);
            }
        }
    }
}

impl CommandRun {
    /// The job of this run: as it was begun, or a new one once it is this one's turn.
    async fn prepare(&mut self, command: Option<&CommandTool>, dir: &Path, mark: &JournalCheckpoint) -> Result<Job, ToolError> {
        if let Some(job) = self.retry_while_short(|| Job::read(dir)).await.map_err(|error| files_unusable(dir, &error))? {
            if self.slot.is_none() {
                self.slot = self.commands.concurrency_limit(&job.tool, None).try_acquire(self.run.id());
            }
            return Ok(job);
        }
        if mark.offset > 0 || mark.job_number > 1 || dir.join(journal::FILE).exists() {
            return Err(file_removed(dir, JOB));
        }
        let Some(command) = command else {
            return Err(internal(format!("the tool `{}` is no longer there", self.run.spec().tool)));
        };
        let (job, stdin) = self.job(command, mark.job_number)?;
        self.wait_for_slot(&job.tool).await?;
        self.retry_while_short(|| write_job(dir, &job, stdin.as_deref())).await.map_err(|error| files_unusable(dir, &error))?;
        Ok(job)
    }

    /// Tries something again for as long as only the machine is short of something for a moment: a command that runs well
    /// must not be lost for that.
    async fn retry_while_short<T>(&self, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            match attempt() {
                Err(error) if is_shortage(&error) && !self.run.is_stopped() => {
                    tracing::warn!(%error, "trying again");
                    tokio::select! {
                        () = self.run.engine().clock().sleep(SHORTAGE_RETRY_PAUSE) => {}
                        () = self.run.stopped() => {}
                    }
                }
                done => return done,
            }
        }
    }

    fn job(&self, command: &CommandTool, run: u64) -> Result<(Job, Option<String>), ToolError> {
        let CommandTool { definition, compiled, .. } = command;
        let arguments: Value = self.ctx.arguments().read()?;
        let filled = compiled.fill(&arguments).map_err(|problems| {
            let list = problems.join("\n- ");
            ToolError::new(format!(
                "The arguments of `{}` cannot be given to its command. Correct them and call again.\n- {list}",
                definition.name
            ))
        })?;
        let inherit = match &definition.inherit_env {
            Inherit::All => None,
            Inherit::Only(names) => Some(names.clone()),
        };
        let limits = self.run.engine().limits();
        let settings = OutputSettings {
            format: definition.output,
            stderr: definition.stderr,
            progress: definition.progress.clone(),
            redact: definition.redact.clone(),
            ok_codes: definition.ok_codes.clone(),
            // JSON may make a text six times as long, and a result has its own limit.
            inline_bytes: definition.inline_bytes.min(usize::try_from(limits.result_bytes / 8).unwrap_or(usize::MAX)),
            on_interrupt: definition.on_interrupt,
            attempts_max: self.run.spec().attempts_max,
            // A line may be a whole result.
            line_bytes: usize::try_from(match definition.output {
                Format::Text => limits.chunk_bytes / 2,
                // Or a block with what stands around it, which is said to be too large if it is.
                Format::Jsonl => (limits.result_bytes / 2).max(limits.block_bytes.saturating_mul(2)).max(limits.chunk_bytes / 2),
            })
            .unwrap_or(usize::MAX),
        };
        // A variable whose parameter is absent is absent too, whatever the server's own environment has.
        let unset: Vec<&String> = definition.env.keys().filter(|name| !filled.env.contains_key(*name)).collect();
        let job = Job {
            version: 1,
            task: self.run.id().to_string(),
            number: run,
            tool: definition.name.clone(),
            argv: filled.argv,
            cwd: definition.cwd.clone(),
            env: filled.env,
            inherit_env: inherit,
            remove_env: definition.remove_env.iter().chain(unset).cloned().collect(),
            stdin: filled.stdin.is_some(),
            stderr: definition.stderr,
            pty: definition.pty,
            leftovers: definition.leftovers,
            kill_after_ms: u64::try_from(definition.kill_after.as_millis()).unwrap_or(u64::MAX),
            journal_bytes: definition.journal_bytes,
            disk_reserve_bytes: limits.disk_reserve_bytes,
            block_bytes: limits.block_bytes,
            settings,
            program_dir: std::env::current_exe().ok().and_then(|program| program.parent().map(Path::to_owned)),
        };
        Ok((job, filled.stdin))
    }

    /// Waits until there is room for one more command of this tool.
    async fn wait_for_slot(&mut self, tool: &str) -> Result<(), ToolError> {
        if self.slot.is_some() {
            return Ok(());
        }
        let gate = self.commands.concurrency_limit(tool, None);
        self.slot = gate.try_acquire(self.run.id());
        if self.slot.is_none() {
            let max = gate.max();
            let waiting = format!("waiting for its turn: {max} of {max} are running (`concurrency`)");
            self.ctx.status(waiting).await?;
            let pass = tokio::select! {
                pass = gate.acquire() => pass,
                () = self.run.stopped() => return Err(ToolError::stopped()),
            };
            self.slot = Some(pass);
            self.ctx.status("running").await?;
        }
        Ok(())
    }

    /// Takes the journal, answers questions, until the command has ended or is lost.
    async fn follow(&mut self, dir: &Path, job: &Job, taking: &mut JournalImporter) -> Result<JobOutcome, ToolError> {
        let mut questions = FuturesUnordered::new();
        let mut is_begun = taking.reported_offset() > 0;
        loop {
            let Some(mut lines) = self.attach_or_start(dir, job, is_begun).await? else {
                // Nobody runs it any more: the journal says how it ended, or nothing does.
                loop {
                    match taking.import().await? {
                        importer::ImportStep::Ended(ended) => return Ok(JobOutcome::Ended(ended)),
                        importer::ImportStep::More => {}
                        importer::ImportStep::CaughtUp => return Ok(JobOutcome::Lost),
                    }
                }
            };
            if is_begun && taking.is_journal_gone() {
                return Err(file_removed(dir, journal::FILE));
            }
            let mut open: Vec<messages::OpenQuestion> = Vec::new();
            // It may have waited for room since before it lost the server that had taken this.
            self.tell(&ToSupervisor::Consumed(taking.reported_offset())).await;
            loop {
                let more = match taking.import().await? {
                    importer::ImportStep::Ended(ended) => return Ok(JobOutcome::Ended(ended)),
                    importer::ImportStep::More => true,
                    importer::ImportStep::CaughtUp => false,
                };
                if let Some(taken) = taking.offset_to_report().await? {
                    self.tell(&ToSupervisor::Consumed(taken)).await;
                }
                // What leads up to a question comes before it.
                for asked in open.extract_if(.., |asked| asked.journal_offset <= taking.offset()) {
                    let question = taking.question(asked.question);
                    questions.push(ask(self.ctx.clone(), messages::OpenQuestion { question, ..asked }));
                }
                tokio::select! {
                    biased;
                    () = self.run.stopped() => return Err(ToolError::stopped()),
                    Some(answer) = questions.next() => if let Some(answer) = answer { self.tell(&answer).await },
                    () = taking.report_status_when_due() => {}
                    line = lines.next_line() => match line.ok().flatten().map(|line| serde_json::from_str(&line)) {
                        Some(Ok(FromSupervisor::Ask(asked))) => open.push(asked),
                        // Nobody says so before there is a journal.
                        Some(Ok(FromSupervisor::Len(_))) => is_begun = true,
                        Some(Ok(FromSupervisor::Open(keys))) => self.withdraw(&keys).await?,
                        Some(Err(error)) => {
                            tracing::warn!(%error, "a supervisor says something that is not understood");
                        }
                        None => break,
                    },
                    () = std::future::ready(()), if more => {}
                }
            }
            self.supervisor = None;
        }
    }

    /// Closes questions of the task that its command does not ask any more: who asked them has given up, or was lost.
    async fn withdraw(&self, open: &[String]) -> Result<(), ToolError> {
        let Phase::Task(id) = self.run.phase() else { return Ok(()) };
        let engine = self.run.engine();
        let Some(task) = engine.any_task(id).map_err(from_engine)? else { return Ok(()) };
        let cancel = || Payload::from(serde_json::json!({"action": "cancel", "_meta": {WITHDRAWN: true}}));
        let is_open = |key: &str| {
            open.iter()
                .any(|name| key.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(REPEAT_SEPARATOR)))
        };
        let gone = task.open_questions().filter(|(key, _)| !is_open(key.as_str()));
        let answers: Vec<_> = gone.map(|(key, _)| (key.clone(), cancel())).collect();
        if !answers.is_empty() {
            let answer = taskwire_core::task::Command::Answer(answers);
            engine.submit(id, Authority::Attempt(self.run.attempt()), answer).await.map_err(from_engine)?;
        }
        Ok(())
    }

    /// Tells the supervisor something. One that is gone will be noticed soon enough.
    async fn tell(&mut self, what: &ToSupervisor) {
        if let Some(out) = &mut self.supervisor {
            let _ = out.write_all(&messages::line(what)).await;
        }
    }

    /// Finds the supervisor, or starts it; nothing if the command ran already and no longer does. One that was begun is never begun again,
    /// even if its journal was removed.
    async fn attach_or_start(
        &mut self,
        dir: &Path,
        job: &Job,
        is_begun: bool,
    ) -> Result<Option<Lines<BufReader<OwnedReadHalf>>>, ToolError> {
        let clock = self.run.engine().clock().clone();
        let until = clock.now().after(ATTACH_TIMEOUT);
        loop {
            if let Some(lines) = self.connect(dir).await {
                return Ok(Some(lines));
            }
            if is_begun && !dir.join(journal::FILE).exists() {
                tracing::error!(dir = %dir.display(), "the journal of a command that was begun is gone");
                return Ok(None);
            }
            match self.start_supervisor(dir, job).await? {
                StartResult::Over => return Ok(None),
                StartResult::Running if clock.now() < until => {}
                StartResult::Running => {
                    tracing::error!(dir = %dir.display(), "the supervisor of a command does not answer");
                    return Err(internal("the supervisor of the command does not answer".to_owned()));
                }
            }
            if let Some(lines) = self.connect(dir).await {
                return Ok(Some(lines));
            }
            tokio::select! {
                () = clock.sleep(ATTACH_RETRY_PAUSE) => {}
                () = self.run.stopped() => return Err(ToolError::stopped()),
            }
        }
    }

    /// What the supervisor says, if there is one that listens.
    async fn connect(&mut self, dir: &Path) -> Option<Lines<BufReader<OwnedReadHalf>>> {
        let (lines, out) = sweep::attach(dir).await.ok()?.into_split();
        self.supervisor = Some(out);
        Some(BufReader::new(lines).lines())
    }

    /// Starts a supervisor. Where there is one already, or was, it says so and does nothing.
    async fn start_supervisor(&self, dir: &Path, job: &Job) -> Result<StartResult, ToolError> {
        let supervisor = &self.commands.0.supervisor;
        let mut process = tokio::process::Command::new(&supervisor.program);
        process.arg0("taskwire").args(&supervisor.args).arg(dir).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        // What the command must not see, it must not find with its supervisor either.
        for name in &job.remove_env {
            process.env_remove(name);
        }
        let mut child = self
            .retry_while_short(|| process.spawn())
            .await
            .map_err(|error| internal(format!("cannot start the supervisor of a command: {error}")))?;
        let mut said = String::new();
        if let Some(out) = child.stdout.take() {
            out.take(64 * 1024).read_to_string(&mut said).await?;
        }
        match said.trim_end() {
            "started" | "running" => Ok(StartResult::Running),
            "over" => Ok(StartResult::Over),
            "" => Err(internal("the supervisor of a command ended without a word".to_owned())),
            other => {
                let why = other.trim_start_matches("failed: ");
                tracing::error!(why, "the supervisor of a command cannot work");
                Err(internal(format!("the supervisor of a command cannot work: {}", without(dir, why))))
            }
        }
    }

    /// The command was lost. Begins it anew, if that is safe.
    async fn restart_lost_command(&mut self, dir: &Path, job: &Job, mark: &JournalCheckpoint) -> Result<JournalCheckpoint, ToolError> {
        let settings = &job.settings;
        let lost = |why: String| internal(format!("{LOST}, and {why}"));
        let why = match settings.on_interrupt {
            OnInterrupt::Retry if mark.job_number < settings.attempts_max => None,
            OnInterrupt::Retry => Some(format!("it was already started {} times", mark.job_number)),
            OnInterrupt::Fail | OnInterrupt::Resume => Some("the tool is not marked as safe to run again (`on_interrupt`)".to_owned()),
        };
        if let Some(why) = why {
            return Err(lost(why));
        }
        if !matches!(self.run.promote().await.map_err(from_engine)?, Phase::Task(_)) {
            return Err(ToolError::stopped());
        }
        // What it wrote last is still on its way into the log.
        self.ctx.flush().await?;
        let seq = self.run.engine().chunk_range(self.run.id()).map_err(from_engine)?.end;
        let next = JournalCheckpoint::start(mark.job_number + 1, seq.0);
        let next_dir = self.commands.job_dir(self.run.id(), next.job_number);
        let stdin = job.stdin.then(|| fs::read_to_string(dir.join(STDIN))).transpose().map_err(|error| files_unusable(dir, &error))?;
        let again = Job { number: next.job_number, ..job.clone() };
        write_job(&next_dir, &again, stdin.as_deref()).map_err(|error| files_unusable(&next_dir, &error))?;
        // Nothing of the lost run is left when the next one begins.
        sweep::kill_orphans(dir.to_owned()).await;
        self.ctx.checkpoint(&next).await?;
        sweep::remove_job(dir.to_owned(), Leftovers::Kill).await;
        self.ctx.status(format!("the command was lost and is run again ({} of {})", next.job_number, settings.attempts_max)).await?;
        Ok(next)
    }

    /// Stops the command and clears it away, in the background.
    fn stop_and_clean_up(&mut self, dir: PathBuf) {
        self.supervisor = None;
        if let Some(active) = self.active.take() {
            tokio::spawn(sweep::stop_then_clean_up(self.run.clone(), dir, active, self.slot.take()));
        }
    }

    /// The command has ended: clears it away once that is known for good.
    fn clean_up(&mut self, dir: PathBuf, leftovers: Leftovers) {
        (self.supervisor, self.slot) = (None, None);
        if let Some(active) = self.active.take() {
            tokio::spawn(sweep::remove_when_durable(self.run.clone(), dir, leftovers, active));
        }
    }
}

/// What starting a supervisor came to.
enum StartResult {
    /// There is one.
    Running,
    /// There was one.
    Over,
}

/// A result that is not what the tool promises is an error that says so, with all that the command wrote.
fn check_output_schema(result: &mut CallResult, schema: &Schema) {
    if result.is_error {
        return;
    }
    let problems = match result.structured_content.as_ref().map(Payload::read::<Value>) {
        Some(Ok(value)) => schema.problems(&value),
        Some(Err(error)) => vec![error.to_string()],
        None => vec!["it gave none (a line `{\"result\": …}` with `output = \"jsonl\"`, or `taskwire emit --result`)".to_owned()],
    };
    if !problems.is_empty() {
        let text = format!("The command's structured result does not conform to the tool's output schema:\n- {}", problems.join("\n- "));
        result.content.push(Content::text(text).into_payload());
        result.structured_content = None;
        result.is_error = true;
        result.set_failure_reason("its structured result does not conform to the tool's output schema");
    }
}

fn internal(message: String) -> ToolError {
    ToolError::protocol(code::INTERNAL_ERROR, message)
}

/// Whether an error says that the machine is short of something (files, memory, processes), and nothing else is wrong.
fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let code = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN].iter().any(|passing| code == Some(passing.raw_os_error()))
}

/// That a run cannot be gone on with. Its caller is not told where its files are; the log is.
fn files_unusable(dir: &Path, error: &io::Error) -> ToolError {
    tracing::error!(dir = %dir.display(), %error, "the files of a command cannot be used");
    internal(format!("the files that the server keeps of the command cannot be used: {}", without(dir, &error.to_string())))
}

/// That a command which may still run cannot be gone on with, because this file of it is gone.
fn file_removed(dir: &Path, file: &str) -> ToolError {
    tracing::error!(dir = %dir.display(), file, "a file of a command that was begun is gone");
    internal(format!(
        "interrupted: what the server had written down of this command (`{file}` in its data directory) was removed while the command ran, so \
         that nobody can go on with it; what was left of it is stopped"
    ))
}

/// A text without the path of this directory.
fn without(dir: &Path, text: &str) -> String {
    text.replace(&dir.display().to_string(), "its directory")
}

/// Writes a job for a supervisor, whole or not at all.
fn write_job(dir: &Path, job: &Job, stdin: Option<&str>) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    if let Some(stdin) = stdin {
        write_private(&dir.join(STDIN), stdin.as_bytes())?;
    }
    let text = serde_json::to_vec(job)?;
    write_atomically(&dir.join(JOB), &text)
}

/// Puts a file in its place, whole or not at all.
fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    write_private(&new, bytes)?;
    fs::rename(new, path)
}

fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write;
    owned_files::open(fs::OpenOptions::new().write(true).create(true).truncate(true), path)?.write_all(bytes)
}
