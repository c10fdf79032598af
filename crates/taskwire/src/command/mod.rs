//! Commands as tools: a program of yours runs for a call, durable and live.
//!
//! Start with [`Definition`], what a command tool is, and [`Commands`], which makes tools of definitions. A command does not run under the
//! server but under a small process, the supervisor, which outlives the server. The supervisor owns the command's processes and writes
//! their output to a journal, in order. The server imports the journal into the task's log and saves with it how far it has read, so after
//! a crash it goes on at the next byte.
//!
//! `template`: arguments without a shell · `parser`: what output means · `excerpt`: what a result shows of it · `supervisor`: the process ·
//! `journal`, `messages`: what it shares with the server · `run`: the server's side · `concurrency`: how many run at once · `sweep`: stops
//! and removes what no task needs · `handover`: commands of a store that is moved · [`CurrentTask`]: what a command can report and
//! ask.

mod concurrency;
mod current_task;
mod definition;
mod excerpt;
mod handover;
mod journal;
mod messages;
mod parser;
mod run;
#[doc(hidden)]
pub mod socket;
mod supervisor;
mod sweep;
mod template;

use std::{
    collections::{HashMap, HashSet},
    ffi::OsString,
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use taskwire_core::{Payload, TaskId, task::OnInterrupt};

pub use current_task::*;
pub use definition::{Definition, Format, Inherit, Leftovers, Problem, Stderr};
pub use handover::{hand_over, note_elsewhere};
pub use supervisor::supervise;
pub use template::{Part, literal};

use crate::{
    owned_files::{self, FileKind},
    server::Server,
    tool::{LocalWork, Registry, Schema, Tool},
};

/// Where the directories of jobs are, in the data directory.
const SPOOL: &str = "spool";

/// How a supervisor is started: a program that calls [`supervise`] with its last argument.
#[derive(Debug, Clone)]
pub struct Supervisor {
    program: PathBuf,
    args: Vec<OsString>,
}

impl Supervisor {
    /// This very program, with these arguments followed by the directory.
    ///
    /// # Errors
    /// When the program's own file cannot be found.
    pub fn this_program<A: Into<OsString>>(args: impl IntoIterator<Item = A>) -> io::Result<Self> {
        // This path leads to the running file even after another version has replaced it.
        let own = Path::new("/proc/self/exe");
        let program = if own.exists() { own.to_owned() } else { std::env::current_exe()? };
        Ok(Self::program(program, args))
    }

    /// Another program.
    pub fn program<A: Into<OsString>>(program: impl Into<PathBuf>, args: impl IntoIterator<Item = A>) -> Self {
        Self { program: program.into(), args: args.into_iter().map(Into::into).collect() }
    }
}

/// Where commands run, and how; cheap to clone.
#[derive(Debug, Clone)]
pub struct Commands(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Has a directory for each job.
    spool: PathBuf,
    supervisor: Supervisor,
    concurrency_limits: Mutex<HashMap<String, Arc<concurrency::ConcurrencyLimit>>>,
    /// Tasks whose commands a run of this process follows.
    active: Mutex<HashSet<TaskId>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Commands {
    /// Keeps the journals of commands in `data`, beside the store.
    ///
    /// # Errors
    /// When the directory cannot be used, or is not this user's alone: the server runs what it finds there.
    pub fn open(data: &Path, supervisor: Supervisor) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(data)?;
        let data = data.canonicalize()?;
        owned_files::check(&data, FileKind::Directory)?;
        let spool = data.join(SPOOL);
        if !owned_files::check(&spool, FileKind::Directory)? {
            fs::DirBuilder::new().mode(0o700).create(&spool)?;
        }
        Ok(Self(Arc::new(Inner { spool, supervisor, concurrency_limits: Mutex::default(), active: Mutex::default() })))
    }

    /// Makes tools of definitions, and sets how many commands of each may run at once.
    ///
    /// # Errors
    /// What is wrong with the first bad definition, and its index. Nothing has changed then.
    pub fn tools(&self, definitions: Vec<Definition>) -> Result<Vec<Tool>, (usize, Problem)> {
        let mut tools = Vec::with_capacity(definitions.len());
        let mut limits = Vec::with_capacity(definitions.len());
        for (n, definition) in definitions.into_iter().enumerate() {
            limits.push((definition.name.clone(), definition.concurrency));
            tools.push(self.tool(definition).map_err(|problem| (n, problem))?);
        }
        for (name, max) in limits {
            self.concurrency_limit(&name, Some(max));
        }
        Ok(tools)
    }

    fn tool(&self, definition: Definition) -> Result<Tool, Problem> {
        let compiled = definition.compile()?;
        let mut policy = definition.policy.clone();
        policy.streams = true;
        policy.output_exceeds_result = true;
        // The command outlives the server, so its task resumes. If the command itself is lost, the definition's policy decides.
        policy.on_interrupt = OnInterrupt::Resume;
        let (name, description, schema) = (definition.name.clone(), definition.description.clone(), definition.input_schema.clone());
        let (title, output, annotations) = (definition.title.clone(), definition.output_schema.clone(), definition.annotations.clone());
        // `compile` has checked it.
        let output_schema = output.as_ref().and_then(|schema| Schema::compile(schema).ok());
        let command = Arc::new(run::CommandTool { definition, compiled, output_schema });
        let commands = self.clone();
        let mut tool = Tool::raw(&name, &description, schema, move |ctx| run::run(commands.clone(), Some(command.clone()), ctx));
        if let Some(title) = title {
            tool = tool.title(&title);
        }
        if let Some(schema) = output {
            tool = tool.output_schema(schema);
        }
        if let Some(annotations) = annotations {
            tool = tool.raw_annotations(annotations);
        }
        Ok(tool.policy(policy))
    }

    /// Lets tasks whose tool is no longer in `registry` go on with their commands, and a node find those that run on its machine.
    #[must_use]
    pub fn with_retired_tool(&self, registry: Registry) -> Registry {
        let commands = self.clone();
        let schema = serde_json::json!({"type": "object"});
        let retired = Tool::raw("retired", "Goes on with the commands of tools that are gone", schema, move |ctx| {
            run::run(commands.clone(), None, ctx)
        });
        if let Err(error) = registry.set_retired_tool(retired) {
            tracing::error!(%error, "commands of tools that are gone cannot go on");
        }
        registry.set_local_work(Arc::new(self.clone()));
        registry
    }

    /// Reserves slots for the commands that run since before the restart, and from now on ends those that belong to no task. Call it once,
    /// before the server serves.
    pub async fn start_sweep(&self, server: &Server) {
        sweep::begin(self, server.engine()).await;
    }

    /// Ends all commands and removes their files, for a server whose tasks end with it.
    pub async fn end_all(&self, server: &Server) {
        sweep::end_all(self, server.engine()).await;
    }

    /// The limit of a tool, set to `max` if one is given. A tool without one gets the default.
    fn concurrency_limit(&self, tool: &str, max: Option<usize>) -> Arc<concurrency::ConcurrencyLimit> {
        let mut limits = lock(&self.0.concurrency_limits);
        let limit =
            limits.entry(tool.to_owned()).or_insert_with(|| concurrency::ConcurrencyLimit::new(max.unwrap_or(definition::CONCURRENCY)));
        if let Some(max) = max.filter(|max| *max != limit.max()) {
            limit.resize(max);
        }
        limit.clone()
    }

    fn job_dir(&self, id: TaskId, job_number: u64) -> PathBuf {
        self.0.spool.join(format!("{id}.{job_number}"))
    }

    fn activate(&self, id: TaskId) -> ActiveGuard {
        lock(&self.0.active).insert(id);
        ActiveGuard { commands: self.clone(), id }
    }
}

impl LocalWork for Commands {
    fn has_work_of(&self, task: TaskId, checkpoint: Option<&Payload>) -> bool {
        run::is_here(self, task, checkpoint)
    }

    fn free_slots(&self, tool: &str) -> usize {
        lock(&self.0.concurrency_limits).get(tool).map_or(0, |limit| limit.free())
    }
}

/// While this exists, the sweep leaves the command alone.
#[derive(Debug)]
struct ActiveGuard {
    commands: Commands,
    id: TaskId,
}

impl Drop for ActiveGuard {
    fn drop(&mut self) {
        lock(&self.commands.0.active).remove(&self.id);
    }
}
