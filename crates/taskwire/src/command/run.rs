//! The server's side of a command: starts it or attaches to it, and imports its journal into the task's log.
//!
//! The server saves how far it has imported the journal in the same commit as the output. So whatever is killed and whenever, the next
//! attempt goes on at the next byte: nothing is missing and nothing is there twice.

mod importer;
mod link;
mod questions;
mod restart;
mod slot;

use std::{
    collections::BTreeMap,
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
use taskwire_core::{Payload, TaskId, task::Authority, wire::code};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines},
    net::unix::OwnedReadHalf,
};

pub(super) use self::restart::note_elsewhere;
use self::{
    importer::JournalImporter,
    link::SupervisorLink,
    questions::{REPEAT_SEPARATOR, WITHDRAWN, ask},
};
use super::{
    ActiveGuard, Commands,
    concurrency::Slot,
    definition::{CompiledDefinition, Definition, Format, Inherit, Leftovers, TRACE_VARIABLES},
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

/// How long a supervisor may take to accept a connection.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);
const ATTACH_RETRY_PAUSE: Duration = Duration::from_millis(25);
/// How long to wait when the machine is short of files, memory or processes.
const SHORTAGE_RETRY_PAUSE: Duration = Duration::from_millis(500);

pub(super) struct CommandTool {
    pub(super) definition: Definition,
    pub(super) compiled: CompiledDefinition,
    pub(super) output_schema: Option<Schema>,
}

/// How far the journal was imported. Saved as the task's checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct JournalCheckpoint {
    /// How often the command was started for this task.
    #[serde(rename = "run")]
    job_number: u64,
    /// The first chunk of this job.
    #[serde(rename = "seq")]
    first_seq: u64,
    /// Everything before this offset of the journal was imported.
    #[serde(rename = "at")]
    offset: u64,
    /// Bytes of standard output behind `offset` that were imported too.
    #[serde(rename = "out")]
    stdout_bytes: u64,
    /// The same for standard error.
    #[serde(rename = "err")]
    stderr_bytes: u64,
    /// The same for notes, as a count.
    notes: u64,
    /// For each stream: whether it goes on with the rest of a line that must stay hidden.
    #[serde(default)]
    hidden: [bool; 2],
    /// The epoch in the job's lease: another node may have a job of this number, too. 0 if that is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    epoch: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl JournalCheckpoint {
    fn start(job_number: u64, first_seq: u64, epoch: u64) -> Self {
        Self { job_number, first_seq, offset: 0, stdout_bytes: 0, stderr_bytes: 0, notes: 0, hidden: [false; 2], epoch }
    }

    /// The beginning of the same job.
    fn beginning(&self) -> Self {
        Self::start(self.job_number, self.first_seq, self.epoch)
    }

    /// Whether it is this job that it is about, and not another node's.
    fn is_of(&self, job: &Job) -> bool {
        self.epoch == 0 || job.lease.as_ref().is_none_or(|lease| lease.epoch == self.epoch)
    }
}

enum JobOutcome {
    Ended(JobEnd),
    /// It is gone, and nothing says how it ended.
    Lost,
}

/// A run of a command tool. If it is dropped while its call is no task, it stops the command, because nobody would get the result.
struct CommandRun {
    commands: Commands,
    ctx: Ctx,
    run: Arc<Run>,
    active: Option<ActiveGuard>,
    slot: Option<Slot>,
    supervisor: Option<SupervisorLink>,
}

impl Drop for CommandRun {
    fn drop(&mut self) {
        if let Some(link) = self.supervisor.as_ref().filter(|_| !matches!(self.run.phase(), Phase::Task(_))) {
            link.try_stop();
        }
    }
}

/// Whether the command of a task with this checkpoint was started on this machine.
pub(super) fn is_here(commands: &Commands, id: TaskId, checkpoint: Option<&Payload>) -> bool {
    let checkpoint = checkpoint.map_or_else(|| Ok(JournalCheckpoint::start(1, 0, 0)), Payload::read::<JournalCheckpoint>);
    checkpoint.is_ok_and(|checkpoint| restart::is_here(&commands.job_dir(id, checkpoint.job_number), &checkpoint))
}

/// Runs a command, or attaches to one that runs. Without `command` it only attaches.
pub(super) async fn run(commands: Commands, command: Option<Arc<CommandTool>>, ctx: Ctx) -> Result<CallResult, ToolError> {
    let run = ctx.run().clone();
    let mut checkpoint = ctx.saved()?.unwrap_or_else(|| JournalCheckpoint::start(1, 0, 0));
    let active = Some(commands.activate(run.id()));
    let mut command_run = CommandRun { commands, ctx, run, active, slot: None, supervisor: None };
    for earlier in 1..checkpoint.job_number {
        // A server that was killed between two jobs may not have removed the first.
        sweep::remove_job(command_run.commands.job_dir(command_run.run.id(), earlier), Leftovers::Kill).await;
    }
    loop {
        let dir = command_run.commands.job_dir(command_run.run.id(), checkpoint.job_number);
        if command_run.was_elsewhere(&dir, &checkpoint) {
            checkpoint = command_run.restart_elsewhere(command.as_deref(), &checkpoint).await?;
            continue;
        }
        let prepared = command_run.prepare(command.as_deref(), &dir, &checkpoint).await;
        if let Ok(Job { lease: Some(lease), .. }) = &prepared {
            checkpoint.epoch = lease.epoch;
        }
        let opened = match prepared {
            Ok(job) => JournalImporter::new(&command_run, &dir, &job, &checkpoint).await.map(|importer| (job, importer)),
            Err(error) => Err(error),
        };
        let (job, mut importer) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                // The command may run all the same.
                if dir.exists() && !command_run.run.is_abandoned() {
                    command_run.stop_and_clean_up(dir);
                }
                return Err(error);
            }
        };
        match command_run.follow(&dir, &job, &mut importer).await {
            // `stopped` means lost: a machine that shuts down stopped it, not this server.
            Ok(JobOutcome::Ended(ended)) if !ended.stopped => {
                if let Some(why) = &ended.start_error {
                    let (program, cwd) = (job.argv.first(), job.cwd.display());
                    tracing::warn!(tool = %job.tool, ?program, %cwd, %why, "a command could not be started");
                }
                let mut result = importer.result(&ended).await;
                if let (Ok(result), Some(schema)) = (&mut result, command.as_ref().and_then(|command| command.output_schema.as_ref())) {
                    check_output_schema(result, schema);
                }
                command_run.clean_up(dir, job.leftovers);
                return result;
            }
            Ok(_) => {
                command_run.supervisor = None;
                importer.write_pending().await?;
                checkpoint = match command_run.restart_lost_command(&dir, &job, &checkpoint).await {
                    Ok(next) => next,
                    Err(error) => {
                        command_run.stop_and_clean_up(dir);
                        return Err(error);
                    }
                };
            }
            // The next attempt goes on with the command, if it begins on this machine. Else the supervisor ends it.
            Err(error) if command_run.run.is_abandoned() => return Err(error),
            Err(error) => {
                let short = importer.output_limit_result().await;
                command_run.stop_and_clean_up(dir);
                return short.ok_or(error);
            }
        }
    }
}

impl CommandRun {
    /// The job in `dir`, or a new one as soon as the tool has a free slot.
    async fn prepare(&mut self, command: Option<&CommandTool>, dir: &Path, checkpoint: &JournalCheckpoint) -> Result<Job, ToolError> {
        if let Some(job) = self.retry_while_short(|| Job::read(dir)).await.map_err(|error| files_unusable(dir, &error))? {
            if self.slot.is_none() {
                self.slot = Some(self.commands.concurrency_limit(&job.tool, None).slot_for_running(self.run.id()));
            }
            return self.renewed(dir, job).await;
        }
        if checkpoint.offset > 0 || checkpoint.job_number > 1 || dir.join(journal::FILE).exists() {
            return Err(file_removed(dir, JOB));
        }
        let Some(command) = command else {
            return Err(internal(format!("the tool `{}` is no longer there", self.run.spec().tool)));
        };
        let (mut job, stdin) = self.job(command, checkpoint.job_number)?;
        self.wait_for_slot(&job.tool, true).await?;
        job.lease = self.job_lease(None).await;
        self.retry_while_short(|| write_job(dir, &job, stdin.as_deref())).await.map_err(|error| files_unusable(dir, &error))?;
        Ok(job)
    }

    /// Tries again while the machine is short of something: a command that runs well must not be lost for that.
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

    fn job(&self, command: &CommandTool, job_number: u64) -> Result<(Job, Option<String>), ToolError> {
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
            // JSON can make a text six times as long, and a result has its own limit.
            inline_bytes: definition.inline_bytes.min(usize::try_from(limits.result_bytes / 8).unwrap_or(usize::MAX)),
            on_interrupt: definition.on_interrupt,
            attempts_max: self.run.spec().attempts_max,
            line_bytes: usize::try_from(match definition.output {
                Format::Text => limits.chunk_bytes / 2,
                // A line may be a whole result, or a block with JSON around it; a block that is too large must be parsed to be reported.
                Format::Jsonl => (limits.result_bytes / 2).max(limits.block_bytes.saturating_mul(2)).max(limits.chunk_bytes / 2),
            })
            .unwrap_or(usize::MAX),
        };
        // If its parameter is absent, the variable is removed, even if the server's own environment has it.
        let unset: Vec<&String> = definition.env.keys().filter(|name| !filled.env.contains_key(*name)).collect();
        // The server's own place in a trace is not the command's.
        let of_server = TRACE_VARIABLES.map(ToOwned::to_owned);
        let remove_env = definition.remove_env.iter().chain(unset).chain(&of_server).cloned().collect();
        let mut env = filled.env;
        self.add_trace(&mut env);
        let job = Job {
            version: 1,
            task: self.run.id().to_string(),
            number: job_number,
            tool: definition.name.clone(),
            argv: filled.argv,
            cwd: definition.cwd.clone(),
            env,
            inherit_env: inherit,
            remove_env,
            stdin: filled.stdin.is_some(),
            stderr: definition.stderr,
            pty: definition.pty,
            leftovers: definition.leftovers,
            kill_after_ms: u64::try_from(definition.kill_after.as_millis()).unwrap_or(u64::MAX),
            journal_bytes: definition.journal_bytes,
            disk_reserve_bytes: limits.disk_reserve_bytes,
            block_bytes: limits.block_bytes,
            lease: None,
            settings,
            program_dir: std::env::current_exe().ok().and_then(|program| program.parent().map(Path::to_owned)),
        };
        Ok((job, filled.stdin))
    }

    /// Tells the command where in a trace it is, unless its tool says so itself.
    fn add_trace(&self, env: &mut BTreeMap<String, String>) {
        let [parent, state] = TRACE_VARIABLES;
        let Some(parent_value) = self.ctx.traceparent().filter(|_| !env.contains_key(parent)) else { return };
        env.insert(parent.to_owned(), parent_value);
        if let Some(value) = self.ctx.tracestate() {
            env.entry(state.to_owned()).or_insert_with(|| value.to_owned());
        }
    }

    /// Imports the journal and relays questions until the command has ended or is lost.
    async fn follow(&mut self, dir: &Path, job: &Job, importer: &mut JournalImporter) -> Result<JobOutcome, ToolError> {
        let mut questions = FuturesUnordered::new();
        let mut is_begun = importer.reported_offset() > 0;
        loop {
            let Some(mut lines) = self.attach_or_start(dir, job, is_begun).await? else {
                // No supervisor runs. If the journal has no end, the command is lost.
                loop {
                    match importer.import().await? {
                        importer::ImportStep::Ended(ended) => return Ok(JobOutcome::Ended(ended)),
                        importer::ImportStep::More => {}
                        importer::ImportStep::CaughtUp => return Ok(JobOutcome::Lost),
                    }
                }
            };
            if is_begun && importer.is_journal_gone() {
                return Err(file_removed(dir, journal::FILE));
            }
            let mut open: Vec<messages::OpenQuestion> = Vec::new();
            // The supervisor may have waited for space since before it lost the server that had imported this.
            self.tell(&ToSupervisor::Consumed(importer.reported_offset())).await;
            loop {
                let more = match importer.import().await? {
                    importer::ImportStep::Ended(ended) => return Ok(JobOutcome::Ended(ended)),
                    importer::ImportStep::More => true,
                    importer::ImportStep::CaughtUp => false,
                };
                if let Some(offset) = importer.offset_to_report().await? {
                    self.tell(&ToSupervisor::Consumed(offset)).await;
                }
                // The caller gets the output before a question first, then the question.
                for asked in open.extract_if(.., |asked| asked.journal_offset <= importer.offset()) {
                    let question = importer.question(asked.question);
                    // Others may run while it waits for a person.
                    self.slot = None;
                    questions.push(ask(self.ctx.clone(), messages::OpenQuestion { question, ..asked }));
                }
                tokio::select! {
                    biased;
                    () = self.run.stopped() => return Err(ToolError::stopped()),
                    Some(answer) = questions.next() => {
                        if questions.is_empty() {
                            self.slot = Some(self.commands.concurrency_limit(&job.tool, None).slot_for_running(self.run.id()));
                        }
                        if let Some(answer) = answer {
                            self.tell(&answer).await;
                        }
                    }
                    () = importer.report_status_when_due() => {}
                    line = lines.next_line() => match line.ok().flatten().map(|line| serde_json::from_str(&line)) {
                        Some(Ok(FromSupervisor::Ask(asked))) => open.push(asked),
                        // A supervisor reports this only when there is a journal.
                        Some(Ok(FromSupervisor::Len(_))) => is_begun = true,
                        Some(Ok(FromSupervisor::Open(keys))) => self.withdraw(&keys).await?,
                        Some(Ok(FromSupervisor::Adopted {})) => {}
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

    /// Closes questions of the task that its command does not ask any more, because the asking process gave up or was killed.
    async fn withdraw(&self, open: &[String]) -> Result<(), ToolError> {
        let Phase::Task(id) = self.run.phase() else { return Ok(()) };
        let engine = self.run.engine();
        let Some(task) = engine.any_task(id).await.map_err(from_engine)? else { return Ok(()) };
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

    /// Sends a message to the supervisor. If it is gone, `follow` notices when its connection closes.
    async fn tell(&self, what: &ToSupervisor) {
        if let Some(link) = &self.supervisor {
            link.tell(what).await;
        }
    }

    /// Attaches to the supervisor, or starts it. None if the command ran and no longer does. A command that was started is never started
    /// again here, even if its journal was removed.
    async fn attach_or_start(
        &mut self,
        dir: &Path,
        job: &Job,
        is_begun: bool,
    ) -> Result<Option<Lines<BufReader<OwnedReadHalf>>>, ToolError> {
        let clock = self.run.engine().clock().clone();
        let until = clock.now().after(ATTACH_TIMEOUT);
        loop {
            if let Some(lines) = self.connect(dir, job).await {
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
            if let Some(lines) = self.connect(dir, job).await {
                return Ok(Some(lines));
            }
            tokio::select! {
                () = clock.sleep(ATTACH_RETRY_PAUSE) => {}
                () = self.run.stopped() => return Err(ToolError::stopped()),
            }
        }
    }

    /// Attaches to the supervisor, if one listens, and returns the lines that it sends.
    async fn connect(&mut self, dir: &Path, job: &Job) -> Option<Lines<BufReader<OwnedReadHalf>>> {
        let (lines, out) = sweep::attach(dir).await.ok()?.into_split();
        self.supervisor = Some(SupervisorLink::new(out, &self.run, job));
        Some(BufReader::new(lines).lines())
    }

    /// Starts a supervisor. A second one for the same job does nothing and says so.
    async fn start_supervisor(&self, dir: &Path, job: &Job) -> Result<StartResult, ToolError> {
        let supervisor = &self.commands.0.supervisor;
        let mut process = tokio::process::Command::new(&supervisor.program);
        process.arg0("taskwire").args(&supervisor.args).arg(dir).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        // The command could read its supervisor's environment too.
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

    /// Stops the command and removes its files, in the background.
    fn stop_and_clean_up(&mut self, dir: PathBuf) {
        self.supervisor = None;
        if let Some(active) = self.active.take() {
            tokio::spawn(sweep::stop_then_clean_up(self.run.clone(), dir, active, self.slot.take()));
        }
    }

    /// Removes the files of a command that has ended, once the task's end is durable.
    fn clean_up(&mut self, dir: PathBuf, leftovers: Leftovers) {
        (self.supervisor, self.slot) = (None, None);
        if let Some(active) = self.active.take() {
            tokio::spawn(sweep::remove_when_durable(self.run.clone(), dir, leftovers, active));
        }
    }
}

enum StartResult {
    /// A supervisor runs.
    Running,
    /// The command was run before.
    Over,
}

/// Turns a result that does not fit the tool's output schema into an error that says so. The output stays in it.
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

/// Whether an error only says that the machine is short of something (files, memory, processes).
fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let code = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN].iter().any(|passing| code == Some(passing.raw_os_error()))
}

/// The server cannot use the files of a job. Their path goes to the server's log, not to the caller.
fn files_unusable(dir: &Path, error: &io::Error) -> ToolError {
    tracing::error!(dir = %dir.display(), %error, "the files of a command cannot be used");
    internal(format!("the files that the server keeps of the command cannot be used: {}", without(dir, &error.to_string())))
}

/// The server cannot go on with a command, which may still run, because one of its files is gone.
fn file_removed(dir: &Path, file: &str) -> ToolError {
    tracing::error!(dir = %dir.display(), file, "a file of a command that was begun is gone");
    internal(format!(
        "interrupted: what the server had written down of this command (`{file}` in its data directory) was removed while the command ran, so \
         that nobody can go on with it; what was left of it is stopped"
    ))
}

/// Replaces the path of this directory in a text.
fn without(dir: &Path, text: &str) -> String {
    text.replace(&dir.display().to_string(), "its directory")
}

/// Writes a job for a supervisor. `job.json` comes last and whole: the job exists from then on.
fn write_job(dir: &Path, job: &Job, stdin: Option<&str>) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    if let Some(stdin) = stdin {
        write_private(&dir.join(STDIN), stdin.as_bytes())?;
    }
    rewrite_job(dir, job)
}

pub(super) fn rewrite_job(dir: &Path, job: &Job) -> io::Result<()> {
    write_atomically(&dir.join(JOB), &serde_json::to_vec(job)?)
}

fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    write_private(&new, bytes)?;
    fs::rename(new, path)
}

fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write;
    owned_files::open(fs::OpenOptions::new().write(true).create(true).truncate(true), path)?.write_all(bytes)
}
