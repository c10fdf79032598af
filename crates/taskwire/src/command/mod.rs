//! Commands as tools: a program of yours, run for a call, durable and live.
//!
//! Start with [`Definition`], what a command tool is, and [`Commands`], which makes tools of definitions. A command does not run
//! under the server but under a small process of ours, the supervisor, which outlives the server: it owns the command's
//! processes and writes down what they write, in order, in a journal. The server reads the journal and puts it into the
//! task's log, together with how far it has read: so after a crash it goes on at the next byte.
//!
//! `template` arguments without a shell · `view` what output means · `digest` what of it the result has ·
//! `supervisor` the process · `journal`, `talk` what it and the server share · `attach` the server's side of a run ·
//! `gate` how many run · `sweep` what nobody wants any more · [`Inside`] what a command can say.

mod concurrency;
mod current_task;
mod definition;
mod excerpt;
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

use taskwire_core::{TaskId, task::OnInterrupt};

pub use current_task::*;
pub use definition::{Definition, Format, Inherit, Leftovers, Problem, Stderr};
pub use supervisor::supervise;
pub use template::{Part, literal};

use crate::{
    owned_files::{self, FileKind},
    server::Server,
    tool::{Registry, Schema, Tool},
};

/// How a supervisor is started: a program that calls [`supervise`] with its last argument.
#[derive(Debug, Clone)]
pub struct Supervisor {
    program: PathBuf,
    args: Vec<OsString>,
}

impl Supervisor {
    /// This very program, with these arguments and the directory after them.
    ///
    /// # Errors
    /// When the program's own file cannot be found.
    pub fn this_program<A: Into<OsString>>(args: impl IntoIterator<Item = A>) -> io::Result<Self> {
        // This name leads to the right file even when another version has been put in its place.
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
    /// Has a directory for each run.
    spool: PathBuf,
    supervisor: Supervisor,
    concurrency_limits: Mutex<HashMap<String, Arc<concurrency::ConcurrencyLimit>>>,
    /// Tasks whose commands are in the hands of a run of this process.
    active: Mutex<HashSet<TaskId>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Commands {
    /// Commands whose output waits in `data`, beside the store.
    ///
    /// # Errors
    /// When the directory cannot be used, or is not this user's alone: what is in it is run.
    pub fn open(data: &Path, supervisor: Supervisor) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(data)?;
        let data = data.canonicalize()?;
        owned_files::check(&data, FileKind::Directory)?;
        let spool = data.join("spool");
        if !owned_files::check(&spool, FileKind::Directory)? {
            fs::DirBuilder::new().mode(0o700).create(&spool)?;
        }
        Ok(Self(Arc::new(Inner { spool, supervisor, concurrency_limits: Mutex::default(), active: Mutex::default() })))
    }

    /// Makes tools of definitions. How many of each may run at one time is as they say from now on.
    ///
    /// # Errors
    /// What is wrong with one of them, and which one. Nothing has changed then.
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
        // The command goes on without us; what becomes of a command that was lost itself is decided by who finds that out.
        policy.on_interrupt = OnInterrupt::Resume;
        let (name, description, schema) = (definition.name.clone(), definition.description.clone(), definition.input_schema.clone());
        let (title, output, annotations) = (definition.title.clone(), definition.output_schema.clone(), definition.annotations.clone());
        // It was checked already.
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

    /// Lets tasks go on whose tool is no longer in `registry`: their commands run all the same.
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
        registry
    }

    /// Takes stock of the commands that an earlier life left running, and from now on ends those that belong to no task.
    /// Call it once, before the server serves.
    pub fn start_sweep(&self, server: &Server) {
        sweep::begin(self, server.engine());
    }

    /// The way into a tool. A tool that nobody knows any more lets everybody in.
    fn concurrency_limit(&self, tool: &str, max: Option<usize>) -> Arc<concurrency::ConcurrencyLimit> {
        let mut gates = lock(&self.0.concurrency_limits);
        let gate =
            gates.entry(tool.to_owned()).or_insert_with(|| concurrency::ConcurrencyLimit::new(max.unwrap_or(definition::CONCURRENCY)));
        if let Some(max) = max.filter(|max| *max != gate.max()) {
            gate.resize(max);
        }
        gate.clone()
    }

    /// The directory of one run of a task's command.
    fn job_dir(&self, id: TaskId, run: u64) -> PathBuf {
        self.0.spool.join(format!("{id}.{run}"))
    }

    /// Says that a run of this process has the task's command in hand.
    fn activate(&self, id: TaskId) -> ActiveGuard {
        lock(&self.0.active).insert(id);
        ActiveGuard { commands: self.clone(), id }
    }
}

/// As long as this lives, the command is in the hands of a run.
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
