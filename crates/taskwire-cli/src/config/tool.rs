//! A command as a tool: one `[[tool]]` of the configuration, and the definition that it becomes.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use taskwire::{
    command::{Definition, Format, Inherit, Leftovers, Part, Stderr, literal},
    tool::{Overflow, TaskMode},
};
use taskwire_core::task::OnInterrupt;

use super::time::{Span, SpanOrForever};

/// What a command gets of the server's environment with `inherit_env = false`.
const BARE_ENV: [&str; 7] = ["PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR"];
/// The key under which the TOML parser passes on a date.
const TOML_DATETIME_KEY: &str = "$__toml_private_datetime";

/// One tool as the file has it. Values that may be of several kinds are checked later, with our own messages.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToolTable {
    /// The name that clients call it by: 1 to 128 letters, digits, `_`, `.` or `-`. Required.
    pub(crate) name: String,
    /// A title for people. Default: none.
    title: Option<String>,
    /// What the tool does, for models. Default: the name of the program that it runs.
    description: Option<String>,
    /// The program and its arguments; there is no shell. Required.
    command: Vec<Value>,
    /// The parameters, each with its JSON Schema. A parameter is required unless it has `optional = true` or a `default`. Default: no
    /// parameters.
    input: Option<Map<String, Value>>,
    /// In place of `input`: a JSON Schema as a table, or the name of a JSON file that has it. Default: none.
    input_schema: Option<Value>,
    /// The JSON Schema of the structured result, which the command must give then: as a table, or the name of a JSON file. Default: none.
    output_schema: Option<Value>,
    /// Hints for clients, such as `{ readOnlyHint = true }`. Default: none.
    annotations: Option<Map<String, Value>>,
    /// Parameters whose values may begin with a dash. Default: `[]`.
    #[serde(default)]
    allow_dash: Vec<String>,
    /// Environment variables for the command; `{parameter}` stands for its value. Default: `{}`.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Which environment variables of the server the command gets: `true` for all, `false` for `PATH`, `HOME`, `USER`, `LANG`, `LC_ALL`,
    /// `TZ` and `TMPDIR`, or a list of names. Default: `true`.
    inherit_env: Option<Value>,
    /// The directory that the command runs in, relative to this file. Default: the directory of this file.
    cwd: Option<PathBuf>,
    /// What the command reads from its standard input; `{parameter}` stands for its value. Default: nothing.
    stdin: Option<String>,
    /// What standard output is: text, or one JSON value a line. Default: `"text"`.
    #[serde(default)]
    output: Format,
    /// Where standard error goes: into the output in order, into the output in blocks of its own, or nowhere.
    /// Default: `"together"`; with `output = "jsonl"` it is `"apart"`.
    stderr: Option<Stderr>,
    /// Whether the command writes to a pseudo-terminal, so that its output comes at once. Default: `false`.
    #[serde(default)]
    pty: bool,
    /// What happens to processes that are left when the command's own process has ended. Default: `"kill"`.
    #[serde(default)]
    leftovers: Leftovers,
    /// A regular expression for lines that report progress, with groups named `done`, `total`, `percent` or `message`. Default: none.
    progress: Option<String>,
    /// Regular expressions for what nobody may see of what the command writes, reports and asks. Default: `[]`.
    #[serde(default)]
    redact: Vec<String>,
    /// Exit codes that are no error. Default: `[0]`.
    ok_codes: Option<Vec<i32>>,
    /// How many commands of this tool run at one time; further calls wait. Default: `8`.
    concurrency: Option<usize>,
    /// Calls of this tool in a second, by all callers; twice as many if there were none before. One more gets status 429.
    /// Default: no limit.
    calls_per_second: Option<u64>,
    /// Tasks of this tool that this server runs at one time, those that wait included. Default: no limit.
    tasks_max: Option<u64>,
    /// The same for the tasks of one caller. Default: no limit.
    tasks_per_caller_max: Option<u64>,
    /// The time between SIGTERM and SIGKILL, at most `"10m"`. Default: `"5s"`.
    kill_after: Option<Span>,
    /// How much of the output the result has, at least 256. Default: as for the server.
    inline_bytes: Option<usize>,
    /// How much output may wait for the server before the command has to wait, at least 65536. Default: `67108864`.
    journal_bytes: Option<u64>,
    /// When a call becomes a task: `"auto"` after `promote_after`, `"always"` at once, `"required"` at once and for no client without
    /// tasks, `"never"` not at all. Default: `"auto"`.
    #[serde(default)]
    task: Mode,
    /// How long a call may run before it becomes a task. Default: as for the server.
    promote_after: Option<Span>,
    /// How long a call may take, from its arrival on. Default: for ever.
    timeout: Option<Span>,
    /// How long a task is kept after its end. A tool cannot keep tasks `"forever"`; the server can. Default: as for the server.
    retention: Option<SpanOrForever>,
    /// What happens beyond `limits.task_output_bytes`: the oldest output is dropped, or the command is stopped.
    /// Default: `"drop_oldest"`.
    overflow: Option<Overflow>,
    /// What happens when the command itself was lost: the task fails, or the command is started again. Default: `"fail"`.
    #[serde(default)]
    on_interrupt: OnInterruptKey,
    /// Whether a call joins one that is the same and still runs, also while somebody waits for that one. Default: `false`.
    #[serde(default)]
    dedupe: bool,
    /// How long a call goes on after its client hung up. Default: as for the server.
    linger: Option<SpanOrForever>,
    /// What a model may be told at once when a call has become a task (2025-11-25). Default: nothing.
    immediate_response: Option<String>,
}

/// When a call becomes a task.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Never,
    #[default]
    Auto,
    Always,
    Required,
}

/// What happens to a task whose command was lost.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OnInterruptKey {
    #[default]
    Fail,
    Retry,
}

/// A value that cannot be used, and its path of keys within the tool.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KeyError {
    pub(crate) path: Vec<String>,
    pub(crate) message: String,
}

/// What all tools of a file have in common.
#[derive(Debug)]
pub(crate) struct FileDefaults<'a> {
    /// The directory of the file, absolute.
    pub(crate) dir: &'a Path,
    pub(crate) inline_bytes: Option<usize>,
    /// Variables of the server that commands must not see.
    pub(crate) remove_env: &'a [String],
}

impl ToolTable {
    /// The definition, not yet checked as a whole.
    pub(crate) fn to_definition(&self, common: &FileDefaults<'_>) -> Result<Definition, KeyError> {
        let command = self.command(common.dir)?;
        // Callers need not know where the program is on this machine.
        let program = self.command.first().and_then(Value::as_str).and_then(|program| program.rsplit('/').next()).unwrap_or_default();
        let description = self.description.clone().unwrap_or_else(|| format!("Runs `{program}`"));
        let mut definition = Definition::new(self.name.clone(), description, command);
        definition.title.clone_from(&self.title);
        if let Some(schema) = self.input(common.dir)? {
            definition.input_schema = schema;
        }
        definition.output_schema =
            self.output_schema.as_ref().map(|schema| inline_or_file("output_schema", schema, common.dir)).transpose()?;
        definition.annotations = self.annotations.clone().map(|hints| dates_as_text(Value::Object(hints)));
        definition.allow_dash.clone_from(&self.allow_dash);
        definition.env.clone_from(&self.env);
        definition.inherit_env = self.inherit()?;
        definition.remove_env = common.remove_env.to_vec();
        definition.cwd = self.cwd(common.dir)?;
        definition.stdin.clone_from(&self.stdin);
        definition.output = self.output;
        // Other text between lines of JSON would break them.
        definition.stderr = self.stderr.unwrap_or(if self.output == Format::Jsonl { Stderr::Apart } else { Stderr::default() });
        definition.pty = self.pty;
        definition.leftovers = self.leftovers;
        definition.progress.clone_from(&self.progress);
        definition.redact.clone_from(&self.redact);
        super::set(&mut definition.ok_codes, self.ok_codes.clone());
        super::set(&mut definition.concurrency, self.concurrency);
        super::set(&mut definition.kill_after, self.kill_after.map(|span| span.0));
        super::set(&mut definition.inline_bytes, self.inline_bytes.or(common.inline_bytes));
        super::set(&mut definition.journal_bytes, self.journal_bytes);
        definition.policy.task = match self.task {
            Mode::Never => TaskMode::Never,
            Mode::Auto => TaskMode::Auto,
            Mode::Always => TaskMode::Always,
            Mode::Required => TaskMode::Required,
        };
        definition.policy.promote_after = self.promote_after.map(|span| span.0);
        definition.policy.timeout = self.timeout.map(|span| span.0);
        definition.policy.retention = self.retention.and_then(|keep| keep.0);
        super::set(&mut definition.policy.overflow, self.overflow);
        definition.policy.dedupe = self.dedupe;
        definition.policy.calls_per_second = self.calls_per_second;
        definition.policy.tasks_max = self.tasks_max;
        definition.policy.tasks_per_caller_max = self.tasks_per_caller_max;
        definition.policy.linger = self.linger.map(SpanOrForever::or_max);
        definition.policy.immediate_response = self.immediate_response.as_deref().map(Into::into);
        definition.on_interrupt = match self.on_interrupt {
            OnInterruptKey::Fail => OnInterrupt::Fail,
            OnInterruptKey::Retry => OnInterrupt::Retry,
        };
        self.check_spans()?;
        Ok(definition)
    }

    /// Refuses spans with which nothing would work.
    fn check_spans(&self) -> Result<(), KeyError> {
        if self.timeout.is_some_and(|span| span.0.is_zero()) {
            return Err(key_error(["timeout"], "`timeout` must be longer than that: without one the command may run for ever"));
        }
        if self.retention.is_some_and(|keep| keep.0.is_none()) {
            let message = "a tool keeps its results for a time span such as \"30d\": only the server's own `retention`, above the first \
                           [[tool]], can be \"forever\"";
            return Err(key_error(["retention"], message));
        }
        if self.retention.and_then(|keep| keep.0).is_some_and(|span| span.as_secs() == 0) {
            return Err(key_error(["retention"], "`retention` must be at least 1s: a result that nobody has time to fetch is none"));
        }
        Ok(())
    }

    fn command(&self, dir: &Path) -> Result<Vec<Part>, KeyError> {
        let mut command = self.command.iter().enumerate().map(|(i, element)| part(i, element)).collect::<Result<Vec<_>, _>>()?;
        // A program with a slash in its name is relative to the file, wherever the server was started.
        if let Some(Part::One(program)) = command.first_mut()
            && program.contains('/')
            && Path::new(program.as_str()).is_relative()
        {
            let from = literal(&dir.display().to_string());
            *program = format!("{}/{}", from.trim_end_matches('/'), program.trim_start_matches("./"));
        }
        Ok(command)
    }

    fn input(&self, dir: &Path) -> Result<Option<Value>, KeyError> {
        match (&self.input, &self.input_schema) {
            (None, None) => Ok(None),
            (Some(parameters), None) => expand_input(parameters).map(Some),
            (None, Some(schema)) => inline_or_file("input_schema", schema, dir).map(Some),
            (Some(_), Some(_)) => Err(key_error(
                ["input_schema"],
                "there is `input` already: the parameters come from one of them, `input` or `input_schema`",
            )),
        }
    }

    fn inherit(&self) -> Result<Inherit, KeyError> {
        let kinds = "`inherit_env` is true, false, or a list of the variables that the command may see";
        match &self.inherit_env {
            None | Some(Value::Bool(true)) => Ok(Inherit::All),
            Some(Value::Bool(false)) => Ok(Inherit::Only(BARE_ENV.map(ToOwned::to_owned).to_vec())),
            Some(Value::Array(names)) => {
                let name = |(i, name): (usize, &Value)| match name.as_str() {
                    Some(name) => Ok(name.to_owned()),
                    None => Err(key_error(["inherit_env", &i.to_string()], kinds)),
                };
                names.iter().enumerate().map(name).collect::<Result<_, _>>().map(Inherit::Only)
            }
            Some(_) => Err(key_error(["inherit_env"], kinds)),
        }
    }

    /// Where the command runs. A directory that is missing is an error: it is a typo more often than not.
    fn cwd(&self, dir: &Path) -> Result<PathBuf, KeyError> {
        let Some(cwd) = &self.cwd else { return Ok(dir.to_owned()) };
        let cwd = dir.join(cwd);
        if !cwd.is_dir() {
            return Err(key_error(
                ["cwd"],
                &format!("{} is not a directory (paths are relative to the configuration file)", cwd.display()),
            ));
        }
        Ok(cwd)
    }
}

fn key_error<const N: usize>(path: [&str; N], message: &str) -> KeyError {
    KeyError { path: path.map(ToOwned::to_owned).to_vec(), message: message.to_owned() }
}

/// One element of a command.
fn part(i: usize, element: &Value) -> Result<Part, KeyError> {
    let at = i.to_string();
    let kinds = "an element of `command` is an argument, a list of arguments, or { when = \"parameter\", args = [\"…\"] }";
    let texts = |values: &[Value]| values.iter().map(|value| value.as_str().map(ToOwned::to_owned)).collect::<Option<Vec<_>>>();
    match element {
        Value::String(text) => Ok(Part::One(text.clone())),
        Value::Array(group) => texts(group).map(Part::Group).ok_or_else(|| key_error(["command", &at], kinds)),
        Value::Object(members) => {
            let when = members.get("when").and_then(Value::as_str);
            let args = members.get("args").and_then(Value::as_array).and_then(|args| texts(args));
            match (when, args) {
                (Some(when), Some(args)) if members.len() == 2 => Ok(Part::When { when: when.to_owned(), args }),
                _ => Err(key_error(["command", &at], kinds)),
            }
        }
        Value::Number(number) => Err(key_error(["command", &at], &format!("arguments are text: write \"{number}\""))),
        _ => Err(key_error(["command", &at], kinds)),
    }
}

/// The schema that `input` is short for: all parameters are required except those that say otherwise or have a default, and there are no
/// others.
fn expand_input(parameters: &Map<String, Value>) -> Result<Value, KeyError> {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for (name, schema) in parameters {
        let Value::Object(members) = schema else {
            let example = "{ type = \"string\", description = \"…\" }";
            return Err(key_error(["input", name], &format!("`{name}` needs a schema, such as {name} = {example}")));
        };
        let mut members = members.clone();
        let is_optional = match members.remove("optional") {
            None => false,
            Some(Value::Bool(optional)) => optional,
            Some(_) => return Err(key_error(["input", name, "optional"], "`optional` is true or false")),
        };
        if members.get("required").is_some_and(Value::is_boolean) {
            let message = format!("`{name}` is required unless it has `optional = true` or a `default`: there is no `required` here");
            return Err(key_error(["input", name, "required"], &message));
        }
        if !is_optional && !members.contains_key("default") {
            required.push(Value::from(name.as_str()));
        }
        properties.insert(name.clone(), dates_as_text(Value::Object(members)));
    }
    let mut schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    Ok(schema)
}

/// A schema in the file itself, or in a file of its own.
fn inline_or_file(key: &str, schema: &Value, dir: &Path) -> Result<Value, KeyError> {
    match schema {
        Value::Object(_) => Ok(dates_as_text(schema.clone())),
        Value::String(file) => {
            let path = dir.join(file);
            let text =
                std::fs::read_to_string(&path).map_err(|error| key_error([key], &format!("cannot read {}: {error}", path.display())))?;
            serde_json::from_str(&text).map_err(|error| key_error([key], &format!("{} is not JSON: {error}", path.display())))
        }
        _ => Err(key_error([key], &format!("`{key}` is the name of a JSON file, or the schema itself as a table"))),
    }
}

/// Dates are text in JSON.
fn dates_as_text(value: Value) -> Value {
    match value {
        Value::Object(mut members) if members.len() == 1 && members.contains_key(TOML_DATETIME_KEY) => {
            members.remove(TOML_DATETIME_KEY).unwrap_or_default()
        }
        Value::Object(members) => members.into_iter().map(|(key, value)| (key, dates_as_text(value))).collect::<Map<_, _>>().into(),
        Value::Array(items) => items.into_iter().map(dates_as_text).collect::<Vec<_>>().into(),
        other => other,
    }
}

#[cfg(test)]
mod tests;
