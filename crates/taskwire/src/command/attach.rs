//! The server's side of a run: starts the command or finds it again, and takes its journal into the task's log.
//!
//! How far the journal was taken is saved with the output that it covers, in one commit. So whatever is killed and whenever,
//! the next attempt goes on at the next byte: nothing is missing and nothing is there twice.

mod asking;
mod taking;

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
    asking::{AGAIN, WITHDRAWN, ask},
    taking::Taking,
};
use super::{
    Active, Commands,
    definition::{Compiled, Definition, Format, Inherit, Leftovers},
    gate::Pass,
    journal::{self, Ended},
    supervisor::{JOB, Job, STDIN},
    sweep,
    talk::{self, FromSupervisor, ToSupervisor},
    view::Settings,
};
use crate::{
    engine::{Phase, Run},
    ours,
    tool::{CallResult, Content, Ctx, Schema, ToolError, from_engine},
};

/// How long a supervisor may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait before it is tried again.
const PAUSE: Duration = Duration::from_millis(25);
/// How long to wait where the machine is short of something.
const SHORTAGE: Duration = Duration::from_millis(500);

const LOST: &str =
    "interrupted: the command was lost while it ran (its machine was restarted, its processes were killed, or its files were removed)";

/// A command tool.
pub(super) struct Command {
    pub(super) definition: Definition,
    pub(super) compiled: Compiled,
    /// What its structured result must be.
    pub(super) output: Option<Schema>,
}

/// How far the journal was taken. Saved as the task's checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    /// How often the command itself was started.
    run: u64,
    /// The number of the first chunk of this run.
    seq: u64,
    /// A place in the journal; everything before it was taken.
    at: u64,
    /// Bytes of standard output behind that place that were taken too.
    out: u64,
    /// The same of standard error.
    err: u64,
    /// The same of notes, in number.
    notes: u64,
    /// Whether what comes next of the two streams is the rest of a line of which nothing more may be seen.
    #[serde(default)]
    hidden: [bool; 2],
}

impl Mark {
    fn start(run: u64, seq: u64) -> Self {
        Self { run, seq, at: 0, out: 0, err: 0, notes: 0, hidden: [false; 2] }
    }
}

/// How following a command ended.
enum Followed {
    /// It ended.
    Ended(Ended),
    /// It is gone, and nobody knows how it ended.
    Lost,
}

/// A run and what it holds. Dropped before its end, it stops a command that belongs to no task: nobody would ever hear of it.
struct Hand {
    commands: Commands,
    ctx: Ctx,
    run: Arc<Run>,
    active: Option<Active>,
    pass: Option<Pass>,
    out: Option<OwnedWriteHalf>,
}

impl Drop for Hand {
    fn drop(&mut self) {
        if let Some(out) = self.out.as_ref().filter(|_| !matches!(self.run.phase(), Phase::Task(_))) {
            let _ = out.try_write(&talk::line(&ToSupervisor::Stop {}));
        }
    }
}

/// Runs a command, or goes on with one that runs. Without `command`, only the latter.
pub(super) async fn run(commands: Commands, command: Option<Arc<Command>>, ctx: Ctx) -> Result<CallResult, ToolError> {
    let run = ctx.run().clone();
    let mut mark = ctx.saved()?.unwrap_or_else(|| Mark::start(1, 0));
    let active = Some(commands.activate(run.id()));
    let mut hand = Hand { commands, ctx, run, active, pass: None, out: None };
    for earlier in 1..mark.run {
        // Where a life ended between the two, something of it may be left.
        sweep::clear(hand.commands.spool(hand.run.id(), earlier), Leftovers::Kill).await;
    }
    loop {
        let dir = hand.commands.spool(hand.run.id(), mark.run);
        let prepared = hand.prepare(command.as_deref(), &dir, &mark).await;
        let taken = prepared.and_then(|job| Taking::new(&hand, &dir, &job, &mark).map(|taking| (job, taking)));
        let (job, mut taking) = match taken {
            Ok(taken) => taken,
            Err(error) => {
                // It may run all the same.
                if dir.exists() {
                    hand.stop(dir);
                }
                return Err(error);
            }
        };
        match hand.follow(&dir, &job, &mut taking).await {
            // Not stopped by us: then it was lost like everything else on the machine.
            Ok(Followed::Ended(ended)) if !ended.stopped => {
                if let Some(why) = &ended.failed {
                    let (program, cwd) = (job.argv.first(), job.cwd.display());
                    tracing::warn!(tool = %job.tool, ?program, %cwd, %why, "a command could not be started");
                }
                let mut result = taking.result(&ended).await;
                if let (Ok(result), Some(schema)) = (&mut result, command.as_ref().and_then(|command| command.output.as_ref())) {
                    must_fit(result, schema);
                }
                hand.done(dir, job.leftovers);
                return result;
            }
            Ok(_) => {
                hand.out = None;
                taking.give_up().await?;
                mark = match hand.again(&dir, &job, &mark).await {
                    Ok(next) => next,
                    Err(error) => {
                        hand.stop(dir);
                        return Err(error);
                    }
                };
            }
            Err(error) => {
                let short = taking.stopped_short().await;
                hand.stop(dir);
                return short.ok_or(error);
            }
        }
    }
}

impl Hand {
    /// The job of this run: as it was begun, or a new one once it is this one's turn.
    async fn prepare(&mut self, command: Option<&Command>, dir: &Path, mark: &Mark) -> Result<Job, ToolError> {
        if let Some(job) = self.persist(|| Job::read(dir)).await.map_err(|error| unusable(dir, &error))? {
            if self.pass.is_none() {
                self.pass = self.commands.gate(&job.tool, None).try_enter(self.run.id());
            }
            return Ok(job);
        }
        if mark.at > 0 || mark.run > 1 || dir.join(journal::FILE).exists() {
            return Err(removed(dir, JOB));
        }
        let Some(command) = command else {
            return Err(internal(format!("the tool `{}` is no longer there", self.run.spec().tool)));
        };
        let (job, stdin) = self.job(command, mark.run)?;
        self.turn(&job.tool).await?;
        self.persist(|| write_job(dir, &job, stdin.as_deref())).await.map_err(|error| unusable(dir, &error))?;
        Ok(job)
    }

    /// Tries something again for as long as only the machine is short of something for a moment: a command that runs well
    /// must not be lost for that.
    async fn persist<T>(&self, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            match attempt() {
                Err(error) if is_passing(&error) && !self.run.is_stopped() => {
                    tracing::warn!(%error, "trying again");
                    tokio::select! {
                        () = self.run.engine().clock().sleep(SHORTAGE) => {}
                        () = self.run.stopped() => {}
                    }
                }
                done => return done,
            }
        }
    }

    fn job(&self, command: &Command, run: u64) -> Result<(Job, Option<String>), ToolError> {
        let Command { definition, compiled, .. } = command;
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
        let settings = Settings {
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
            run,
            tool: definition.name.clone(),
            argv: filled.argv,
            cwd: definition.cwd.clone(),
            env: filled.env,
            inherit,
            remove: definition.remove_env.iter().chain(unset).cloned().collect(),
            stdin: filled.stdin.is_some(),
            stderr: definition.stderr,
            pty: definition.pty,
            leftovers: definition.leftovers,
            kill_after_ms: u64::try_from(definition.kill_after.as_millis()).unwrap_or(u64::MAX),
            spool_bytes: definition.spool_bytes,
            disk_reserve_bytes: limits.disk_reserve_bytes,
            block_bytes: limits.block_bytes,
            settings,
            program_dir: std::env::current_exe().ok().and_then(|program| program.parent().map(Path::to_owned)),
        };
        Ok((job, filled.stdin))
    }

    /// Waits until there is room for one more command of this tool.
    async fn turn(&mut self, tool: &str) -> Result<(), ToolError> {
        if self.pass.is_some() {
            return Ok(());
        }
        let gate = self.commands.gate(tool, None);
        self.pass = gate.try_enter(self.run.id());
        if self.pass.is_none() {
            let max = gate.max();
            let waiting = format!("waiting for its turn: {max} of {max} are running (`concurrency`)");
            self.ctx.status(waiting).await?;
            let pass = tokio::select! {
                pass = gate.enter() => pass,
                () = self.run.stopped() => return Err(ToolError::stopped()),
            };
            self.pass = Some(pass);
            self.ctx.status("running").await?;
        }
        Ok(())
    }

    /// Takes the journal, answers questions, until the command has ended or is lost.
    async fn follow(&mut self, dir: &Path, job: &Job, taking: &mut Taking) -> Result<Followed, ToolError> {
        let mut questions = FuturesUnordered::new();
        let mut is_begun = taking.told() > 0;
        loop {
            let Some(mut lines) = self.attach(dir, job, is_begun).await? else {
                // Nobody runs it any more: the journal says how it ended, or nothing does.
                loop {
                    match taking.take().await? {
                        taking::Taken::Ended(ended) => return Ok(Followed::Ended(ended)),
                        taking::Taken::More => {}
                        taking::Taken::All => return Ok(Followed::Lost),
                    }
                }
            };
            if is_begun && taking.is_blind() {
                return Err(removed(dir, journal::FILE));
            }
            let mut open: Vec<talk::Asked> = Vec::new();
            // It may have waited for room since before it lost the server that had taken this.
            self.tell(&ToSupervisor::Consumed(taking.told())).await;
            loop {
                let more = match taking.take().await? {
                    taking::Taken::Ended(ended) => return Ok(Followed::Ended(ended)),
                    taking::Taken::More => true,
                    taking::Taken::All => false,
                };
                if let Some(taken) = taking.taken().await? {
                    self.tell(&ToSupervisor::Consumed(taken)).await;
                }
                // What leads up to a question comes before it.
                for asked in open.extract_if(.., |asked| asked.at <= taking.position()) {
                    let question = taking.question(asked.question);
                    questions.push(ask(self.ctx.clone(), talk::Asked { question, ..asked }));
                }
                tokio::select! {
                    biased;
                    () = self.run.stopped() => return Err(ToolError::stopped()),
                    Some(answer) = questions.next() => if let Some(answer) = answer { self.tell(&answer).await },
                    () = taking.say_when_due() => {}
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
            self.out = None;
        }
    }

    /// Closes questions of the task that its command does not ask any more: who asked them has given up, or was lost.
    async fn withdraw(&self, open: &[String]) -> Result<(), ToolError> {
        let Phase::Task(id) = self.run.phase() else { return Ok(()) };
        let engine = self.run.engine();
        let Some(task) = engine.any_task(id).map_err(from_engine)? else { return Ok(()) };
        let cancel = || Payload::from(serde_json::json!({"action": "cancel", "_meta": {WITHDRAWN: true}}));
        let is_open = |key: &str| {
            open.iter().any(|name| key.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(AGAIN)))
        };
        let gone = task.open_inputs().filter(|(key, _)| !is_open(key.as_str()));
        let answers: Vec<_> = gone.map(|(key, _)| (key.clone(), cancel())).collect();
        if !answers.is_empty() {
            let answer = taskwire_core::task::Command::Answer(answers);
            engine.submit(id, Authority::Attempt(self.run.attempt()), answer).await.map_err(from_engine)?;
        }
        Ok(())
    }

    /// Tells the supervisor something. One that is gone will be noticed soon enough.
    async fn tell(&mut self, what: &ToSupervisor) {
        if let Some(out) = &mut self.out {
            let _ = out.write_all(&talk::line(what)).await;
        }
    }

    /// Finds the supervisor, or starts it; nothing if the command ran already and no longer does. One that was begun is never begun again,
    /// even if its journal was removed.
    async fn attach(&mut self, dir: &Path, job: &Job, is_begun: bool) -> Result<Option<Lines<BufReader<OwnedReadHalf>>>, ToolError> {
        let clock = self.run.engine().clock().clone();
        let until = clock.now().after(PATIENCE);
        loop {
            if let Some(lines) = self.greet(dir).await {
                return Ok(Some(lines));
            }
            if is_begun && !dir.join(journal::FILE).exists() {
                tracing::error!(dir = %dir.display(), "the journal of a command that was begun is gone");
                return Ok(None);
            }
            match self.start(dir, job).await? {
                Start::Over => return Ok(None),
                Start::Runs if clock.now() < until => {}
                Start::Runs => {
                    tracing::error!(dir = %dir.display(), "the supervisor of a command does not answer");
                    return Err(internal("the supervisor of the command does not answer".to_owned()));
                }
            }
            if let Some(lines) = self.greet(dir).await {
                return Ok(Some(lines));
            }
            tokio::select! {
                () = clock.sleep(PAUSE) => {}
                () = self.run.stopped() => return Err(ToolError::stopped()),
            }
        }
    }

    /// What the supervisor says, if there is one that listens.
    async fn greet(&mut self, dir: &Path) -> Option<Lines<BufReader<OwnedReadHalf>>> {
        let (lines, out) = sweep::greet(dir).await.ok()?.into_split();
        self.out = Some(out);
        Some(BufReader::new(lines).lines())
    }

    /// Starts a supervisor. Where there is one already, or was, it says so and does nothing.
    async fn start(&self, dir: &Path, job: &Job) -> Result<Start, ToolError> {
        let supervisor = &self.commands.0.supervisor;
        let mut process = tokio::process::Command::new(&supervisor.program);
        process.arg0("taskwire").args(&supervisor.args).arg(dir).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        // What the command must not see, it must not find with its supervisor either.
        for name in &job.remove {
            process.env_remove(name);
        }
        let mut child = self
            .persist(|| process.spawn())
            .await
            .map_err(|error| internal(format!("cannot start the supervisor of a command: {error}")))?;
        let mut said = String::new();
        if let Some(out) = child.stdout.take() {
            out.take(64 * 1024).read_to_string(&mut said).await?;
        }
        match said.trim_end() {
            "started" | "running" => Ok(Start::Runs),
            "over" => Ok(Start::Over),
            "" => Err(internal("the supervisor of a command ended without a word".to_owned())),
            other => {
                let why = other.trim_start_matches("failed: ");
                tracing::error!(why, "the supervisor of a command cannot work");
                Err(internal(format!("the supervisor of a command cannot work: {}", without(dir, why))))
            }
        }
    }

    /// The command was lost. Begins it anew, if that is safe.
    async fn again(&mut self, dir: &Path, job: &Job, mark: &Mark) -> Result<Mark, ToolError> {
        let settings = &job.settings;
        let lost = |why: String| internal(format!("{LOST}, and {why}"));
        let why = match settings.on_interrupt {
            OnInterrupt::Retry if mark.run < settings.attempts_max => None,
            OnInterrupt::Retry => Some(format!("it was already started {} times", mark.run)),
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
        let seq = self.run.engine().span(self.run.id()).map_err(from_engine)?.end;
        let next = Mark::start(mark.run + 1, seq.0);
        let next_dir = self.commands.spool(self.run.id(), next.run);
        let stdin = job.stdin.then(|| fs::read_to_string(dir.join(STDIN))).transpose().map_err(|error| unusable(dir, &error))?;
        let again = Job { run: next.run, ..job.clone() };
        write_job(&next_dir, &again, stdin.as_deref()).map_err(|error| unusable(&next_dir, &error))?;
        // Nothing of the lost run is left when the next one begins.
        sweep::reap(dir.to_owned()).await;
        self.ctx.checkpoint(&next).await?;
        sweep::clear(dir.to_owned(), Leftovers::Kill).await;
        self.ctx.status(format!("the command was lost and is run again ({} of {})", next.run, settings.attempts_max)).await?;
        Ok(next)
    }

    /// Stops the command and clears it away, in the background.
    fn stop(&mut self, dir: PathBuf) {
        self.out = None;
        if let Some(active) = self.active.take() {
            tokio::spawn(sweep::stop(self.run.clone(), dir, active, self.pass.take()));
        }
    }

    /// The command has ended: clears it away once that is known for good.
    fn done(&mut self, dir: PathBuf, leftovers: Leftovers) {
        (self.out, self.pass) = (None, None);
        if let Some(active) = self.active.take() {
            tokio::spawn(sweep::after(self.run.clone(), dir, leftovers, active));
        }
    }
}

/// What starting a supervisor came to.
enum Start {
    /// There is one.
    Runs,
    /// There was one.
    Over,
}

/// A result that is not what the tool promises is an error that says so, with all that the command wrote.
fn must_fit(result: &mut CallResult, schema: &Schema) {
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
        result.because("its structured result does not conform to the tool's output schema");
    }
}

fn internal(message: String) -> ToolError {
    ToolError::protocol(code::INTERNAL_ERROR, message)
}

/// Whether an error says that the machine is short of something (files, memory, processes), and nothing else is wrong.
fn is_passing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let code = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN].iter().any(|passing| code == Some(passing.raw_os_error()))
}

/// That a run cannot be gone on with. Its caller is not told where its files are; the log is.
fn unusable(dir: &Path, error: &io::Error) -> ToolError {
    tracing::error!(dir = %dir.display(), %error, "the files of a command cannot be used");
    internal(format!("the files that the server keeps of the command cannot be used: {}", without(dir, &error.to_string())))
}

/// That a command which may still run cannot be gone on with, because this file of it is gone.
fn removed(dir: &Path, file: &str) -> ToolError {
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
    replace(&dir.join(JOB), &text)
}

/// Puts a file in its place, whole or not at all.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    write_private(&new, bytes)?;
    fs::rename(new, path)
}

fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write;
    ours::open(fs::OpenOptions::new().write(true).create(true).truncate(true), path)?.write_all(bytes)
}
