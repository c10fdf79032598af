//! What a command tool is: everything that a configuration says about it, checked before anything runs.

use std::{borrow::Cow, collections::BTreeMap, path::PathBuf, time::Duration};

use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use taskwire_core::task::OnInterrupt;

use super::template::{
    ARG_BYTES_MAX, ARGS_BYTES_MAX, ArgvBuilder, CommandTemplate, Parameters, Part, TextTemplate, is_code_variable, too_long,
};
use crate::tool::{Overflow, Policy, Schema, header_params, integer, is_tool_name};

mod schema_error;
#[cfg(test)]
mod tests;
mod warnings;

/// How many commands of a tool run at once by default.
pub(super) const CONCURRENCY: usize = 8;

/// How long a command has to end by itself by default.
pub(super) const KILL_AFTER: Duration = Duration::from_secs(5);

/// The longest `kill_after`.
pub(super) const KILL_AFTER_MAX: Duration = Duration::from_secs(600);

/// The least output in a result that is of use.
pub(super) const INLINE_BYTES_MIN: usize = 256;

/// With less space for output than this, a command would wait more than it works.
pub(super) const SPOOL_BYTES_MIN: u64 = 64 << 10;

/// The PATH if the environment has none.
pub(super) const USUAL_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The groups that the pattern for progress may have.
const PROGRESS_GROUPS: [&str; 4] = ["done", "total", "percent", "message"];

/// The variable that tells a process of a command which task it runs for.
pub(super) const TASK_VARIABLE: &str = "TASKWIRE_TASK";

/// The variable with the job's directory: the process finds its task there, and the server finds the process by it.
pub(super) const DIR_VARIABLE: &str = "TASKWIRE_TASK_DIR";

/// The variables that tell a process of a command where in a trace it is.
pub(super) const TRACE_VARIABLES: [&str; 2] = ["TRACEPARENT", "TRACESTATE"];

/// Whether and how standard error is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Stderr {
    /// As part of the output, in the order in which both were written.
    #[default]
    Together,
    /// As part of the output, in blocks of its own that say so.
    Apart,
    /// Not at all.
    Drop,
}

/// What standard output is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Format {
    /// Text.
    #[default]
    Text,
    /// One JSON value a line: content blocks, progress, and the structured result.
    Jsonl,
}

/// What becomes of processes that are left when the command's own process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Leftovers {
    /// They are killed.
    #[default]
    Kill,
    /// They are left alone.
    Keep,
}

/// Which variables of the server's environment a command gets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Inherit {
    /// All.
    #[default]
    All,
    /// These.
    Only(Vec<String>),
}

/// A tool that runs a command.
#[derive(Debug, Clone)]
pub struct Definition {
    /// The tool's name.
    pub name: String,
    /// A title for people.
    pub title: Option<String>,
    /// What it does, for a model.
    pub description: String,
    /// The program and its arguments.
    pub command: Vec<Part>,
    /// The JSON Schema of its arguments.
    pub input_schema: Value,
    /// The JSON Schema of its structured result.
    pub output_schema: Option<Value>,
    /// Hints such as `{"readOnlyHint": true}`.
    pub annotations: Option<Value>,
    /// Parameters whose values may begin with a dash, so that the command may take them for options.
    pub allow_dash: Vec<String>,
    /// Variables that it gets; the values are templates.
    pub env: BTreeMap<String, String>,
    /// Which variables of the server it gets.
    pub inherit_env: Inherit,
    /// Variables of the server that it never gets.
    pub remove_env: Vec<String>,
    /// The working directory: an absolute path.
    pub cwd: PathBuf,
    /// What it reads from its standard input: a template. Nothing if absent.
    pub stdin: Option<String>,
    /// What its output is.
    pub output: Format,
    /// Whether and how its standard error is kept.
    pub stderr: Stderr,
    /// Whether it writes to a pseudo-terminal, so that programs do not buffer their output.
    pub pty: bool,
    /// What becomes of processes that are left when it has ended.
    pub leftovers: Leftovers,
    /// A regular expression for lines that report progress, with groups named `done`, `total`, `percent` and `message`.
    pub progress: Option<String>,
    /// Regular expressions for secrets in its output.
    pub redact: Vec<String>,
    /// Exit codes that are no error.
    pub ok_codes: Vec<i32>,
    /// How many run at once; other calls wait.
    pub concurrency: usize,
    /// How long it has to end by itself when it is cancelled.
    pub kill_after: Duration,
    /// How many bytes of the output the result has.
    pub inline_bytes: usize,
    /// How many bytes of output may wait for the server; then the command waits.
    pub journal_bytes: u64,
    /// How its calls are treated.
    pub policy: Policy,
    /// What happens when the command itself is lost, because the machine restarted.
    pub on_interrupt: OnInterrupt,
}

/// What is wrong with a definition, and under which key of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    /// The key.
    pub key: &'static str,
    /// The keys that lead to the error in its value. Empty for all of it.
    pub path: Vec<String>,
    /// What is wrong.
    pub message: String,
}

impl Problem {
    fn new(key: &'static str, message: impl Into<String>) -> Self {
        Self { key, path: Vec::new(), message: message.into() }
    }

    fn at(key: &'static str) -> impl Fn(String) -> Self {
        move |message| Self::new(key, message)
    }

    /// An error in a schema. The text names the parameter if it can, and otherwise is `why`.
    fn of_schema(key: &'static str, schema: &Value, why: String) -> Self {
        let what = if key == "output_schema" { "result" } else { "arguments" };
        let (path, why) = schema_error::schema_error(schema).unwrap_or_else(|| (Vec::new(), why));
        Self { key, path, message: format!("the schema of the {what} cannot be used: {why}") }
    }
}

impl Definition {
    /// A tool without parameters that runs this command in the current directory, with the defaults for everything else.
    pub fn new(name: impl Into<String>, description: impl Into<String>, command: Vec<Part>) -> Self {
        Self {
            name: name.into(),
            title: None,
            description: description.into(),
            command,
            input_schema: json!({"type": "object", "properties": {}, "additionalProperties": false}),
            output_schema: None,
            annotations: None,
            allow_dash: Vec::new(),
            env: BTreeMap::new(),
            inherit_env: Inherit::All,
            remove_env: Vec::new(),
            cwd: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
            stdin: None,
            output: Format::Text,
            stderr: Stderr::Together,
            pty: false,
            leftovers: Leftovers::Kill,
            progress: None,
            redact: Vec::new(),
            ok_codes: vec![0],
            concurrency: CONCURRENCY,
            kill_after: KILL_AFTER,
            inline_bytes: 32 << 10,
            journal_bytes: 64 << 20,
            // A command that has worked for hours must not fail because it wrote much, and the end of its output is what matters.
            policy: Policy { overflow: Overflow::DropOldest, ..Policy::default() },
            on_interrupt: OnInterrupt::Fail,
        }
    }

    /// Checks whether the definition can be used.
    ///
    /// # Errors
    /// The first thing that is wrong, and under which key.
    pub fn check(&self) -> Result<(), Problem> {
        self.compile().map(drop)
    }

    pub(crate) fn compile(&self) -> Result<CompiledDefinition, Problem> {
        if !is_tool_name(&self.name) {
            return Err(Problem::new("name", format!("the name {:?} cannot be used: it needs 1 to 128 of A-Z a-z 0-9 _ . -", self.name)));
        }
        let defaults = self.check_schemas()?;
        self.check_numbers()?;
        self.check_patterns()?;
        self.check_environment()?;

        let parameters = Parameters::of(&self.input_schema);
        for name in &self.allow_dash {
            parameters.require(name, "").map_err(Problem::at("allow_dash"))?;
        }
        let argv = CommandTemplate::compile(&self.command, &self.input_schema, &self.allow_dash).map_err(Problem::at("command"))?;
        let text = |text: &str| TextTemplate::compile(text, &self.input_schema);
        let env = self.env.iter().map(|(name, value)| match text(value) {
            Ok(value) => Ok((name.clone(), value)),
            Err(why) => Err(Problem::new("env", format!("{name}: {why}"))),
        });
        let env = env.collect::<Result<Vec<_>, _>>()?;
        let stdin = self.stdin.as_deref().map(text).transpose().map_err(Problem::at("stdin"))?;
        refuse_code(&argv, &env, stdin.as_ref())?;

        let compiled = CompiledDefinition { argv, env, stdin, defaults, schema: self.input_schema.clone() };
        // A default that is wrong would be wrong in every call.
        if let Err(problems) = compiled.fill(&json!({})) {
            return Err(Problem::new("input_schema", format!("the defaults of the schema cannot be used: {}", problems.join("; "))));
        }
        Ok(compiled)
    }

    /// Checks the schemas, and returns the defaults of the parameters.
    fn check_schemas(&self) -> Result<Map<String, Value>, Problem> {
        let input = &self.input_schema;
        let unusable = |why: String| Problem::new("input_schema", format!("the schema of the arguments cannot be used: {why}"));
        if input.get("type").and_then(Value::as_str) != Some("object") {
            return Err(unusable("its `type` must be \"object\"".to_owned()));
        }
        if input.get("properties").is_some_and(|properties| !properties.is_object()) {
            return Err(unusable("its `properties` must be an object".to_owned()));
        }
        Schema::compile(input).map_err(|why| Problem::of_schema("input_schema", input, why))?;
        header_params(input).map_err(unusable)?;
        if let Some(output) = &self.output_schema {
            Schema::compile(output).map_err(|why| Problem::of_schema("output_schema", output, why))?;
        }
        if self.annotations.as_ref().is_some_and(|annotations| !annotations.is_object()) {
            return Err(Problem::new("annotations", "annotations are an object such as {\"readOnlyHint\": true}"));
        }

        let defaults = Parameters::of(input).all().filter_map(|(name, schema)| Some((name.to_owned(), schema.get("default")?.clone())));
        let defaults: Map<String, Value> = defaults.collect();
        // Each default is checked alone, so required parameters may be absent.
        let mut lenient = input.clone();
        if let Some(members) = lenient.as_object_mut() {
            members.remove("required");
        }
        let lenient = Schema::compile(&lenient).map_err(unusable)?;
        for (name, default) in defaults.iter().filter(|(_, default)| !default.is_null()) {
            let prefix = format!("`{}", name.replace('~', "~0").replace('/', "~1"));
            let problems = lenient.problems(&Value::Object(Map::from_iter([(name.clone(), default.clone())])));
            let own = |line: &str| line.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.starts_with(['`', '/']));
            if let Some(problem) = problems.iter().find(|line| own(line)) {
                return Err(unusable(format!("the default does not fit: {problem}")));
            }
        }
        Ok(defaults)
    }

    fn check_numbers(&self) -> Result<(), Problem> {
        if self.ok_codes.is_empty() {
            return Err(Problem::new("ok_codes", "at least one exit code must mean success: ok_codes = [0]"));
        }
        if let Some(code) = self.ok_codes.iter().find(|code| !(0..=255).contains(*code)) {
            return Err(Problem::new("ok_codes", format!("{code} is no exit code: they go from 0 to 255")));
        }
        if self.concurrency == 0 {
            return Err(Problem::new("concurrency", "with 0 no call could ever run: 1 or more"));
        }
        let policy = &self.policy;
        for (key, max) in [
            ("calls_per_second", policy.calls_per_second),
            ("tasks_max", policy.tasks_max),
            ("tasks_per_caller_max", policy.tasks_per_caller_max),
        ] {
            if max == Some(0) {
                return Err(Problem::new(key, "with 0 no call could ever run: 1 or more"));
            }
        }
        if self.kill_after > KILL_AFTER_MAX {
            return Err(Problem::new("kill_after", "it may be 10 minutes (\"10m\") at most"));
        }
        if self.inline_bytes < INLINE_BYTES_MIN {
            return Err(Problem::new("inline_bytes", format!("it must be {INLINE_BYTES_MIN} or more: less would say nothing")));
        }
        if self.journal_bytes < SPOOL_BYTES_MIN {
            return Err(Problem::new(
                "journal_bytes",
                format!("it must be {SPOOL_BYTES_MIN} or more: with less the command would mostly wait"),
            ));
        }
        Ok(())
    }

    fn check_patterns(&self) -> Result<(), Problem> {
        let pattern = |key: &'static str, text: &str| {
            Regex::new(text).map_err(|error| Problem::new(key, format!("{text:?} is not a regular expression that can be used: {error}")))
        };
        if let Some(text) = &self.progress {
            let regex = pattern("progress", text)?;
            let groups: Vec<&str> = regex.capture_names().flatten().collect();
            if let Some(other) = groups.iter().find(|name| !PROGRESS_GROUPS.contains(*name)) {
                let message = format!("the group `{other}` means nothing here; the groups are: {}", PROGRESS_GROUPS.join(", "));
                return Err(Problem::new("progress", message));
            }
            if !groups.iter().any(|name| matches!(*name, "done" | "percent")) {
                let message = format!(
                    "{text:?} must have a group named `done` or `percent`, for example \
                     '(?<percent>\\d+)%' or '(?<done>\\d+)/(?<total>\\d+)'"
                );
                return Err(Problem::new("progress", message));
            }
        }
        for text in &self.redact {
            if pattern("redact", text)?.is_match("") {
                let message = format!(
                    "{text:?} matches the empty text too, so that it would be found between all letters; let it match at least one"
                );
                return Err(Problem::new("redact", message));
            }
        }
        Ok(())
    }

    fn check_environment(&self) -> Result<(), Problem> {
        if self.output == Format::Jsonl && self.stderr == Stderr::Together {
            return Err(Problem::new(
                "stderr",
                "with output = \"jsonl\" standard error cannot go together with the output, whose lines are JSON: \"apart\" or \"drop\"",
            ));
        }
        if self.pty && self.stderr == Stderr::Apart {
            let instead = match self.output {
                Format::Text => "stderr = \"together\" or \"drop\"",
                Format::Jsonl => "stderr = \"drop\", since lines of JSON cannot have it among them",
            };
            let message = format!("on a terminal standard error cannot be told apart from the output, for it is one stream: {instead}");
            return Err(Problem::new("pty", message));
        }
        let usable = |key: &'static str, name: &str| match name.is_empty() || name.contains(['=', '\0']) {
            true => Err(Problem::new(
                key,
                format!("{name:?} cannot be the name of a variable: it must not be empty, and not contain '=' or NUL"),
            )),
            false => Ok(()),
        };
        for name in self.env.keys() {
            usable("env", name)?;
            if [TASK_VARIABLE, DIR_VARIABLE].contains(&name.as_str()) {
                return Err(Problem::new("env", format!("{name} tells the command which task it works for, so it cannot be set here")));
            }
        }
        if let Inherit::Only(names) = &self.inherit_env {
            names.iter().try_for_each(|name| usable("inherit_env", name))?;
        }
        self.remove_env.iter().try_for_each(|name| usable("remove_env", name))?;
        if !self.cwd.is_absolute() {
            return Err(Problem::new("cwd", format!("{:?} must be an absolute path", self.cwd)));
        }
        if !matches!(self.on_interrupt, OnInterrupt::Fail | OnInterrupt::Retry) {
            return Err(Problem::new("on_interrupt", "it is \"fail\" or \"retry\": a command that is lost cannot be resumed"));
        }
        Ok(())
    }
}

/// Refuses values that programs would run as code although they are in no argument.
fn refuse_code(argv: &CommandTemplate, env: &[(String, TextTemplate)], stdin: Option<&TextTemplate>) -> Result<(), Problem> {
    for (name, text) in env {
        if let Some(value) = text.free_text_parameter().filter(|_| is_code_variable(name)) {
            let message = format!(
                "what the variable {name} says is run by programs that look at it, so that {{{value}}} would be run as code: write it out, or \
                 give the value in a variable of your own"
            );
            return Err(Problem { key: "env", path: vec![name.clone()], message });
        }
    }
    if let (Some(value), Some(reader)) =
        (stdin.and_then(TextTemplate::free_text_parameter), argv.stdin_reader().filter(|reader| reader.is_code))
    {
        let message = format!(
            "{} takes its code from standard input here, so that {{{value}}} would be run as code: name the file of a script in `command`, \
             which may then read the value from standard input",
            reader.program
        );
        return Err(Problem::new("stdin", message));
    }
    Ok(())
}

/// A definition that was checked, with its templates compiled.
#[derive(Debug)]
pub(crate) struct CompiledDefinition {
    pub(crate) argv: CommandTemplate,
    pub(crate) env: Vec<(String, TextTemplate)>,
    pub(crate) stdin: Option<TextTemplate>,
    pub(crate) defaults: Map<String, Value>,
    /// The input schema.
    schema: Value,
}

/// What a command gets in one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Invocation {
    pub(crate) argv: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) stdin: Option<String>,
}

impl CompiledDefinition {
    /// Fills the templates; returns all problems at once, and each names its field.
    pub(crate) fn fill(&self, arguments: &Value) -> Result<Invocation, Vec<String>> {
        let nothing = Map::new();
        let passed = match arguments {
            Value::Object(passed) => passed,
            Value::Null => &nothing,
            _ => return Err(vec!["the arguments must be an object".to_owned()]),
        };
        let mut values = Cow::Borrowed(passed);
        for (name, default) in self.defaults.iter().filter(|(name, _)| !passed.contains_key(*name)) {
            values.to_mut().insert(name.clone(), default.clone());
        }
        let parameters = Parameters::of(&self.schema);
        for (name, schema) in parameters.all() {
            if let Some(value) = values.get(name).and_then(|value| with_integers(parameters, schema, value)) {
                values.to_mut().insert(name.to_owned(), value);
            }
        }

        let mut argv = ArgvBuilder::default();
        self.argv.fill(&values, &mut argv);
        let mut env = BTreeMap::new();
        for (name, text) in &self.env {
            match text.fill(&values) {
                Ok(None) => {}
                Ok(Some(value)) => {
                    let bytes = name.len() + 1 + value.len();
                    if bytes > ARG_BYTES_MAX {
                        argv.problem(too_long(largest(text.parameters(), &values).unwrap_or(name), bytes));
                    } else {
                        argv.add(bytes);
                        env.insert(name.clone(), value);
                    }
                }
                Err(problem) => argv.problem(problem),
            }
        }
        let stdin = match self.stdin.as_ref().map(|text| text.fill(&values)).transpose() {
            Ok(stdin) => stdin.flatten(),
            Err(problem) => {
                argv.problem(problem);
                None
            }
        };
        if argv.is_too_large() {
            let used = self.argv.parameters().chain(self.env.iter().flat_map(|(_, text)| text.parameters()));
            let field = largest(used, &values).map_or_else(String::new, |field| format!("`{field}`: "));
            argv.problem(format!(
                "{field}the arguments and variables for the command are larger than {ARGS_BYTES_MAX} bytes together, which is all that a \
                 command can be given; give less or shorter values, or make several calls"
            ));
        }
        match argv.problems.is_empty() {
            true => Ok(Invocation { argv: argv.argv, env, stdin }),
            false => Err(argv.problems),
        }
    }
}

/// The value with integers where its schema wants them and `3.0` was passed: a schema accepts that, but most commands do not. None if
/// nothing changes.
fn with_integers<'a>(parameters: Parameters<'a>, schema: &'a Value, value: &Value) -> Option<Value> {
    let schema = parameters.resolve_ref(schema);
    match value {
        Value::Number(number) if wants_integer(schema) => integer(number).map(Value::from),
        Value::Array(items) => {
            let of = |at: usize| schema.get("prefixItems").and_then(|first| first.get(at)).or_else(|| schema.get("items"));
            let new: Vec<Option<Value>> = items.iter().enumerate().map(|(at, item)| with_integers(parameters, of(at)?, item)).collect();
            let any = new.iter().any(Option::is_some);
            any.then(|| new.into_iter().zip(items).map(|(new, old)| new.unwrap_or_else(|| old.clone())).collect())
        }
        _ => None,
    }
}

/// Whether every number that fits the schema is an integer.
fn wants_integer(schema: &Value) -> bool {
    match schema.get("type") {
        Some(Value::String(only)) => only == "integer",
        Some(Value::Array(several)) => several.iter().any(|one| one == "integer") && !several.iter().any(|one| one == "number"),
        _ => false,
    }
}

/// The parameter with the largest value, for an error about sizes.
fn largest<'a>(parameters: impl Iterator<Item = &'a str>, values: &Map<String, Value>) -> Option<&'a str> {
    parameters.max_by_key(|name| values.get(*name).map_or(0, |value| value.to_string().len()))
}
