//! The configuration file: its keys, and errors that say where they are and what to write instead.

mod audit;
mod auth;
mod bounds;
mod changes;
mod hints;
mod limits;
mod location;
mod metrics;
mod postgres;
#[cfg(test)]
#[path = "../../tests/manual/configuration.rs"]
mod reference;
mod store;
mod time;
mod tls;
mod tool;
mod traces;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, anyhow};
use serde::Deserialize;
use taskwire::{
    command::{Definition, Problem},
    server::{self, FirstAnswer, ResponseMode},
    store::PostgresConfig,
};

use audit::AuditTable;
use auth::{AuthTable, SecretSources};
use limits::LimitsTable;
use location::Source;
pub(crate) use location::parse_toml;
use metrics::MetricsTable;
use postgres::PostgresTable;
pub(crate) use store::{OpenedStore, Secret, StoreKind};
use time::{Span, SpanOrForever, SpanOrNever};
use tls::TlsTable;
use tool::{FileDefaults, ToolTable};
use traces::TracesTable;

use crate::logging::LogFormat;

/// Names of the server's own follow-up tools, for clients without tasks.
const FOLLOW_UP_TOOLS: [&str; 5] = ["task_wait", "task_output", "task_answer", "task_cancel", "task_list"];

/// The file. The manual's reference is made of what these comments say, here and in the tables below: a sentence, and the default as
/// the file would say it.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// The address that the server listens on. An address beyond loopback needs `[auth]`. Default: `"127.0.0.1:8787"`.
    pub(crate) listen: String,
    /// The data directory, relative to this file. Default: `".taskwire"`.
    pub(crate) data: PathBuf,
    /// Where tasks are kept: in the data directory, `"memory:"` if they may end with the server, or a database that several nodes share
    /// (`"postgres://USER:PASSWORD@HOST/DATABASE"`, or `"env:NAME"` for a variable that has this). Default: `""`.
    pub(crate) store: Secret,
    /// The name of this node, for people, where nodes share a store. Default: the machine's name and the port of `listen`.
    node: Option<String>,
    /// Where nodes share a store: how long a command goes on whose server is gone, at least `"8s"`. Then it ends, and another node may start
    /// it again. The longest of all nodes counts. Default: `"30s"`.
    orphan_after: Option<Span>,
    /// How the log on standard error is written: lines for people, or one JSON object a line. Default: `"text"`.
    pub(crate) log_format: LogFormat,
    /// Whether the server has the demo tools too. Default: `false`.
    pub(crate) demo: bool,
    /// What models are told about the server. Default: nothing.
    instructions: Option<String>,
    /// Whether browsers get the dashboard at `/`. Default: `true`.
    pub(crate) dashboard: Option<bool>,
    /// How long a call may run before it becomes a task. Default: `"1s"`.
    promote_after: Option<Span>,
    /// How long a task is kept after its end. Default: `"1h"`.
    retention: Option<SpanOrForever>,
    /// How long a task waits for an answer to its question. Default: `"1day"`.
    answer_timeout: Option<SpanOrForever>,
    /// How often the work of a task may be started, the first time included. Default: `10`.
    attempts_max: Option<u64>,
    /// How long a cancelled tool may clean up. Default: `"5s"`.
    grace: Option<Span>,
    /// How long running tools may go on after SIGTERM. Default: `"10s"`.
    drain: Option<Span>,
    /// How long the call of a client without tasks waits for its result, at least `"1s"`; then the client is told how to follow up.
    /// Default: `"45s"`.
    hold: Option<Span>,
    /// Whether clients without tasks get the follow-up tools (`task_wait` and its relatives). Without these tools such clients wait to
    /// the end. Default: `true`.
    followups: Option<bool>,
    /// How long a call goes on after its client hung up; `"0s"` stops it at once. Default: `"10m"`.
    linger: Option<SpanOrForever>,
    /// How much of a command's output its result has, and about how much one reply of a follow-up tool has; at least 256.
    /// Default: `32768`.
    inline_bytes: Option<usize>,
    /// How often a client should ask for a task's state, at first; later up to five times as long. Default: `"1s"`.
    poll_interval: Option<Span>,
    /// Whether a client that asks too early waits for a change. Default: `true`.
    long_poll: Option<bool>,
    /// How long a request may wait for a change. Default: `"30s"`.
    wait_max: Option<Span>,
    /// How long output is gathered into one chunk; the first output goes out at once. Default: `"20ms"`.
    coalesce_window: Option<Span>,
    /// How much gathered output does not wait for the window to end. Default: `16384`.
    coalesce_bytes: Option<usize>,
    /// About how much output one response has, at least 1024; the output that is left of an ended task comes at once (SEP-1905).
    /// Default: `1048576`.
    read_bytes: Option<usize>,
    /// Entries of one page of a list. Default: `250`.
    page_len: Option<usize>,
    /// How long clients may cache lists. Default: `"1m"`.
    list_ttl: Option<Span>,
    /// Open listen streams of one caller, and session streams of its sessions. Default: `100`.
    streams_per_caller: Option<usize>,
    /// Tasks that one listen stream may name, and resources that one session may subscribe to. Default: `1000`.
    subscriptions_per_stream: Option<usize>,
    /// Requests of one caller that may wait for a change, and plain calls of its sessions that may run; one more gets status 429.
    /// Default: `1000`.
    waiting_requests_per_caller: Option<usize>,
    /// Requests in flight on one stdio connection. Default: `1000`.
    requests_per_stream: Option<usize>,
    /// Changes that may wait to be written to the store, at least 2. Default: `4096`.
    queue_len: Option<usize>,
    /// One message, at least 1024. Default: `4194304`.
    body_bytes: Option<usize>,
    /// Recently changed tasks and output that are kept in memory. Default: `134217728`.
    cache_bytes: Option<usize>,
    limits: LimitsTable,
    postgres: PostgresTable,
    http: HttpTable,
    legacy: LegacyTable,
    pub(crate) tls: Option<TlsTable>,
    pub(crate) auth: AuthTable,
    pub(crate) metrics: MetricsTable,
    pub(crate) audit: AuditTable,
    traces: TracesTable,
    tool: Vec<ToolTable>,
    /// The file that this was read from.
    #[serde(skip)]
    source: Source,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8787".to_owned(),
            data: ".taskwire".into(),
            store: Secret::default(),
            node: None,
            orphan_after: None,
            log_format: LogFormat::Text,
            demo: false,
            instructions: None,
            dashboard: None,
            promote_after: None,
            poll_interval: None,
            retention: None,
            answer_timeout: None,
            attempts_max: None,
            grace: None,
            coalesce_window: None,
            coalesce_bytes: None,
            drain: None,
            page_len: None,
            list_ttl: None,
            streams_per_caller: None,
            subscriptions_per_stream: None,
            waiting_requests_per_caller: None,
            wait_max: None,
            long_poll: None,
            read_bytes: None,
            requests_per_stream: None,
            queue_len: None,
            cache_bytes: None,
            body_bytes: None,
            hold: None,
            followups: None,
            linger: None,
            inline_bytes: None,
            limits: LimitsTable::default(),
            postgres: PostgresTable::default(),
            http: HttpTable::default(),
            legacy: LegacyTable::default(),
            tls: None,
            auth: AuthTable::default(),
            metrics: MetricsTable::default(),
            audit: AuditTable::default(),
            traces: TracesTable::default(),
            tool: Vec::new(),
            source: Source::default(),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct HttpTable {
    /// Names besides those of this machine by which clients may address the server; `"*"` allows any. Default: `[]`.
    allowed_hosts: Vec<String>,
    /// Origins besides those of this machine from which web pages may call; `"*"` allows any. Default: `[]`.
    allowed_origins: Vec<String>,
    /// Whether a `tasks/*` request without `Mcp-Name` is refused. Default: `false`.
    strict_headers: bool,
    /// Open connections; one more takes the place of the one that was idle longest, or gets 503. Fewer, where too few files may be open.
    /// Default: `10000`.
    connections: Option<usize>,
    /// Open connections on which no request is being answered; one more closes the one that was idle longest. Default: `4000`.
    idle_connections: Option<usize>,
    /// The first line and the headers of one request, at least 8192; more gets status 431. Default: `16384`.
    head_bytes: Option<usize>,
    /// All messages that are being read or answered, without the first 4 KiB of each; one more gets status 503. It cannot be less than
    /// `body_bytes`. Default: `50331648`, or `body_bytes` if that is more.
    all_bodies_bytes: Option<usize>,
    /// How often a quiet stream gets a comment. Default: `"15s"`.
    keep_alive: Option<Span>,
    /// How long a client may take to send its request. Default: `"30s"`.
    read_timeout: Option<Span>,
    /// How long a client may leave unread what it was sent; then the server closes the connection. Default: `"1m"`.
    write_timeout: Option<Span>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LegacyTable {
    /// How a call may be answered (SEP-1905). Default: `["task", "immediate", "streaming"]`.
    modes: Option<Vec<ResponseMode>>,
    /// What the first response to a streamed call has: the task, the output so far, or both (SEP-1905). Default: `"both"`.
    initial: Option<FirstAnswer>,
    /// Whether a call that is answered with its result leaves a task behind (SEP-1905). Default: `false`.
    record_immediate: Option<bool>,
    /// Whether callers may list their tasks. Default: `true`.
    list_tasks: Option<bool>,
    /// Sessions of one caller; one more ends the one that was quiet longest. Default: `1000`.
    sessions_per_caller: Option<usize>,
    /// How long a session may be quiet before it is forgotten. Default: `"1day"`.
    session_idle: Option<Span>,
    /// How soon a client should come back whose stream the server ended (2025-11-25 only). Default: `"1s"`.
    retry: Option<Span>,
    /// How long a stream lasts before the server ends it for its client to come back (2025-11-25 only). Default: `"never"`.
    reconnect_after: Option<SpanOrNever>,
}

impl Config {
    /// The configuration where there is no file.
    pub(crate) fn demo() -> Self {
        Self { demo: true, ..Self::default() }
    }

    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(path, text)
    }

    fn parse(path: &Path, text: String) -> anyhow::Result<Self> {
        let mut config: Self = parse_toml(&text).with_context(|| format!("{} cannot be used", path.display()))?;
        // A file always has the same directory for its tasks, wherever the process runs.
        config.data = base(path).join(&config.data);
        config.audit.file = config.audit.file.map(|file| base(path).join(file));
        config.source = Source { path: path.to_owned(), text };
        Ok(config)
    }

    /// The error about the value at this path, with its location.
    fn refuse(&self, path: &[&str], message: &str) -> anyhow::Error {
        let Source { path: file, text } = &self.source;
        anyhow!(location::complaint(text, location::find(text, path), message)).context(format!("{} cannot be used", file.display()))
    }

    /// The error about a tool, with its location; `n` counts the tools of the file.
    pub(crate) fn refuse_tool(&self, n: usize, problem: &Problem) -> anyhow::Error {
        let n = n.to_string();
        let in_tool = |key| location::has(&self.source.text, &["tool", &n, key]);
        let within: Vec<&str> = problem.path.iter().map(String::as_str).collect();
        let mut path = vec!["tool", n.as_str()];
        // The key that stands for it in this file.
        match problem.key {
            "input_schema" if !in_tool("input_schema") => {
                path.push("input");
                path.extend(within.strip_prefix(&["properties"]).unwrap_or_default());
            }
            "inline_bytes" if !in_tool("inline_bytes") => path = vec!["inline_bytes"],
            key => {
                path.push(key);
                path.extend(within);
            }
        }
        self.refuse(&path, &problem.message)
    }

    /// Warnings for people, a line for each.
    pub(crate) fn warnings(&self, definitions: &[Definition]) -> Vec<String> {
        let file = self.source.path.display();
        let of_tool = |tool: &Definition| {
            tool.warnings().into_iter().map(|warning| format!("warning: {file}: tool `{}`: {warning}", tool.name)).collect::<Vec<_>>()
        };
        definitions.iter().flat_map(of_tool).collect()
    }

    /// The tools that are commands, checked. No command sees the variables in `secrets`, nor those that this file takes tokens from.
    pub(crate) fn definitions(&self, secrets: &[String]) -> anyhow::Result<Vec<Definition>> {
        if self.tool.is_empty() {
            return Ok(Vec::new());
        }
        let current = std::env::current_dir()?;
        let secrets: BTreeSet<String> = secrets.iter().cloned().chain(self.secret_variables()).collect();
        let secrets: Vec<String> = secrets.into_iter().collect();
        // Without a slash at its end, however the file was named: a reloaded tool must compare as equal.
        let dir: PathBuf = std::path::absolute(current.join(base(&self.source.path)))?.components().collect();
        let common = FileDefaults { dir: &dir, inline_bytes: self.inline_bytes, remove_env: &secrets };
        let mut definitions = Vec::with_capacity(self.tool.len());
        for (n, tool) in self.tool.iter().enumerate() {
            let at = n.to_string();
            self.check_name(n).map_err(|message| self.refuse(&["tool", &at, "name"], &message))?;
            let definition = tool.to_definition(&common).map_err(|wrong| {
                let path = ["tool", at.as_str()].into_iter().chain(wrong.path.iter().map(String::as_str)).collect::<Vec<_>>();
                self.refuse(&path, &wrong.message)
            })?;
            definition.check().map_err(|problem| self.refuse_tool(n, &problem))?;
            definitions.push(definition);
        }
        Ok(definitions)
    }

    /// The environment variables that secrets come from.
    pub(crate) fn secret_variables(&self) -> impl Iterator<Item = String> {
        self.auth.variables().chain(self.traces.variables())
    }

    /// Refuses a name that is taken.
    fn check_name(&self, n: usize) -> Result<(), String> {
        let name = &self.tool[n].name;
        if self.tool[..n].iter().any(|other| other.name == *name) {
            return Err(format!("there is a tool `{name}` already: names are for one tool each"));
        }
        if FOLLOW_UP_TOOLS.contains(&name.as_str()) {
            return Err(format!("`{name}` is a tool of the server's own, for clients that know no tasks: choose another name"));
        }
        if self.demo && crate::demo::NAMES.contains(&name.as_str()) {
            return Err(format!("`{name}` is one of the demo tools: choose another name, or leave out `demo = true`"));
        }
        Ok(())
    }

    /// The names of all tools that there will be.
    fn tool_names(&self) -> Vec<&str> {
        let demo = crate::demo::NAMES.into_iter().filter(|_| self.demo);
        self.tool.iter().map(|tool| tool.name.as_str()).chain(demo).chain(FOLLOW_UP_TOOLS).collect()
    }

    /// Where tasks are kept.
    pub(crate) fn store(&self) -> anyhow::Result<StoreKind> {
        // Without the line of the file: it may have a password.
        StoreKind::parse(&self.store).map_err(|why| anyhow!("`store`: {why}"))
    }

    /// How this node uses the database at `url`.
    pub(crate) fn postgres(&self, url: &str) -> anyhow::Result<PostgresConfig> {
        let mut config = PostgresConfig::new(url, &self.node_name());
        self.postgres.apply(&mut config).map_err(anyhow::Error::msg)?;
        Ok(config)
    }

    pub(crate) fn node_name(&self) -> String {
        let name = || {
            let machine = rustix::system::uname();
            let port = self.listen.rsplit_once(':').map_or("", |(_, port)| port);
            format!("{}:{port}", machine.nodename().to_string_lossy())
        };
        self.node.clone().unwrap_or_else(name)
    }

    /// The library's configuration.
    pub(crate) fn to_server_config(&self) -> anyhow::Result<server::Config> {
        self.with_secrets(|secrets| self.to_server_config_with(secrets))
    }

    fn with_secrets<T>(&self, read: impl FnOnce(&SecretSources<'_>) -> T) -> T {
        let beside = |path: &Path| std::fs::read_to_string(base(&self.source.path).join(path));
        read(&SecretSources { variable: &|name| std::env::var(name).ok(), file: &beside })
    }

    /// The library's configuration where the variables and files that secrets come from are there.
    pub(crate) fn check(&self) -> anyhow::Result<server::Config> {
        let by_then = || "there by then".to_owned();
        self.to_server_config_with(&SecretSources { variable: &|_| Some(by_then()), file: &|_| Ok(by_then()) })
    }

    /// Those who issue tokens for this server, if anybody does.
    pub(crate) fn issuers(&self) -> anyhow::Result<Option<server::Issuers>> {
        self.with_secrets(|secrets| self.auth.issuers(secrets)).map_err(|misfit| anyhow!(misfit.message))
    }

    fn to_server_config_with(&self, secrets: &SecretSources<'_>) -> anyhow::Result<server::Config> {
        let mut config = server::Config { instructions: self.instructions.clone(), ..server::Config::default() };
        set(&mut config.promote_after, self.promote_after.map(|span| span.0));
        set(&mut config.poll_interval, self.poll_interval.map(|span| span.0));
        set(&mut config.linger, self.linger.map(SpanOrForever::or_max));
        set(&mut config.retention, self.retention.map(|keep| keep.0));
        set(&mut config.answer_timeout, self.answer_timeout.map(|keep| keep.0));
        set(&mut config.attempts_max, self.attempts_max);
        set(&mut config.engine.grace, self.grace.map(|span| span.0));
        set(&mut config.engine.coalesce.window, self.coalesce_window.map(|span| span.0));
        set(&mut config.engine.coalesce.bytes, self.coalesce_bytes);
        set(&mut config.engine.queue_len, self.queue_len);
        set(&mut config.engine.cache_bytes, self.cache_bytes);
        set(&mut config.engine.orphan_after, self.orphan_after.map(|span| span.0));
        set(&mut config.drain, self.drain.map(|span| span.0));
        set(&mut config.page_len, self.page_len);
        set(&mut config.list_ttl, self.list_ttl.map(|span| span.0));
        set(&mut config.streams_per_caller, self.streams_per_caller);
        set(&mut config.subscriptions_per_stream, self.subscriptions_per_stream);
        set(&mut config.waiting_requests_per_caller, self.waiting_requests_per_caller);
        set(&mut config.wait_max, self.wait_max.map(|span| span.0));
        set(&mut config.long_poll, self.long_poll);
        set(&mut config.read_bytes, self.read_bytes);
        set(&mut config.requests_per_stream, self.requests_per_stream);
        set(&mut config.body_bytes, self.body_bytes);
        self.limits.apply(&mut config.engine.limits);
        config.http.allowed_hosts.clone_from(&self.http.allowed_hosts);
        config.http.allowed_origins.clone_from(&self.http.allowed_origins);
        config.http.strict_headers = self.http.strict_headers;
        set(&mut config.http.connections, self.http.connections);
        set(&mut config.http.idle_connections, self.http.idle_connections);
        set(&mut config.http.head_bytes, self.http.head_bytes);
        // Where only `body_bytes` is set, the total allows one such message.
        config.http.all_bodies_bytes = self.http.all_bodies_bytes.unwrap_or(config.http.all_bodies_bytes.max(config.body_bytes));
        set(&mut config.http.keep_alive, self.http.keep_alive.map(|span| span.0));
        set(&mut config.http.read_timeout, self.http.read_timeout.map(|span| span.0));
        set(&mut config.http.write_timeout, self.http.write_timeout.map(|span| span.0));
        set(&mut config.legacy.modes, self.legacy.modes.clone());
        set(&mut config.legacy.initial, self.legacy.initial);
        set(&mut config.legacy.record_immediate, self.legacy.record_immediate);
        set(&mut config.legacy.list_tasks, self.legacy.list_tasks);
        set(&mut config.legacy.sessions_per_caller, self.legacy.sessions_per_caller);
        set(&mut config.legacy.session_idle, self.legacy.session_idle.map(|span| span.0));
        set(&mut config.legacy.retry, self.legacy.retry.map(|span| span.0));
        set(&mut config.legacy.reconnect_after, self.legacy.reconnect_after.map(|span| span.0));
        set(&mut config.hold, self.hold.map(|span| span.0));
        set(&mut config.followups, self.followups);
        set(&mut config.inline_bytes, self.inline_bytes);
        let (callers, host) = self.auth.resolve(secrets, &self.tool_names()).map_err(|misfit| {
            let path: Vec<&str> = ["auth"].into_iter().chain(misfit.path.iter().map(String::as_str)).collect();
            self.refuse(&path, &misfit.message)
        })?;
        config.auth = Arc::new(callers);
        config.http.allowed_hosts.extend(host);
        self.check_tls()?;
        config.metrics = self.metrics.is_enabled();
        set(&mut config.dashboard, self.dashboard);
        self.metrics.address().map_err(|message| self.refuse(&["metrics", "listen"], &message))?;
        config.traces =
            self.traces.resolve(secrets).map_err(|(key, why)| self.refuse(&["traces", key], &format!("`traces.{key}` {why}")))?;
        bounds::check(&config).map_err(|(key, reason)| {
            let path: Vec<&str> = key.split('.').collect();
            self.refuse(&path, &format!("`{key}` {reason}"))
        })?;
        Ok(config)
    }
}

fn set<T>(target: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *target = value;
    }
}

/// The directory that the paths in a file are relative to: its own, or, if it comes from a pipe, the current one.
fn base(file: &Path) -> &Path {
    file.parent().filter(|dir| !dir.starts_with("/dev") && !dir.starts_with("/proc")).unwrap_or(Path::new(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> anyhow::Result<Config> {
        Config::parse(Path::new("taskwire.toml"), text.to_owned())
    }

    fn complaint(text: &str) -> String {
        format!("{:#}", parsed(text).expect_err(text))
    }

    #[test]
    fn the_directory_for_tasks_is_relative_to_the_file() {
        let data = |file: &str, text: &str| Config::parse(Path::new(file), text.to_owned()).expect("valid").data.display().to_string();
        assert_eq!(data("taskwire.toml", ""), ".taskwire");
        assert_eq!(data("/etc/taskwire.toml", ""), "/etc/.taskwire");
        assert_eq!(data("../a/taskwire.toml", "data = \"tasks\""), "../a/tasks");
        assert_eq!(data("a/taskwire.toml", "data = \"/var/lib/taskwire\""), "/var/lib/taskwire");
        assert_eq!((data("/dev/stdin", ""), data("/dev/fd/63", "")), (".taskwire".to_owned(), ".taskwire".to_owned()));
        assert_eq!(Config::demo().data, Path::new(".taskwire"));
    }

    #[test]
    fn commands_run_beside_the_file() {
        let cwd = |file: &str| {
            let text = "[[tool]]\nname = \"x\"\ncommand = [\"true\"]\n".to_owned();
            Config::parse(Path::new(file), text).and_then(|config| config.definitions(&[])).expect("valid")[0].cwd.clone()
        };
        let current = std::env::current_dir().expect("there is one");
        assert_eq!(cwd("/etc/taskwire.toml"), Path::new("/etc"));
        assert_eq!((cwd("taskwire.toml"), cwd("a/taskwire.toml")), (current.clone(), current.join("a")));
        for file in ["taskwire.toml", "./taskwire.toml"] {
            assert_eq!(cwd(file).as_os_str(), current.as_os_str(), "letter by letter, as when it is read again by its whole path: {file}");
        }
        assert_eq!((cwd("/dev/stdin"), cwd("/proc/self/fd/0")), (current.clone(), current), "a pipe is nowhere");
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_the_nearest() {
        let text = complaint("lisen = \"127.0.0.1:1\"");
        assert!(text.contains("line 1") && text.contains("did you mean `listen`?"), "{text}");
        assert!(complaint("[limits]\nchunk_byte = 1").contains("did you mean `chunk_bytes`?"));
        assert!(!complaint("zzzzzzzzzzzz = 1").contains("did you mean"));
    }

    #[test]
    fn values_are_checked() {
        assert!(complaint("promote_after = \"soon\"").contains("not a time span"));
        let never = complaint("retention = \"never\"");
        assert!(never.ends_with("`never` is not a time span such as \"1s\" or \"10m\", nor \"forever\""), "{never}");
        assert!(complaint("hold = \"5 parsecs\"").contains("not a time span such as \"1s\" or \"10m\": "), "what is wrong with it");
        assert!(complaint("body_bytes = -1").contains("line 1"));
        assert_eq!(parsed("retention = \"forever\"").expect("valid").to_server_config().expect("usable").retention, None);
        for (text, key) in [
            ("queue_len = 0", "queue_len"),
            ("page_len = 0", "page_len"),
            ("body_bytes = 1", "body_bytes"),
            ("coalesce_bytes = 0", "coalesce_bytes"),
            ("read_bytes = 1", "read_bytes"),
            ("limits.chunk_bytes = 10", "limits.chunk_bytes"),
            ("limits.output_bytes_per_second = 0", "limits.output_bytes_per_second"),
            ("limits.stored_bytes_per_caller = 1000", "limits.stored_bytes_per_caller"),
            ("retention = \"0s\"", "retention"),
            ("http.keep_alive = \"0s\"", "http.keep_alive"),
            ("hold = \"0s\"", "hold"),
            ("http.connections = 99999999", "http.connections"),
            ("http.head_bytes = 8191", "http.head_bytes"),
            ("http.all_bodies_bytes = 4194303", "http.all_bodies_bytes"),
            ("legacy.session_idle = \"1s\"", "legacy.session_idle"),
            ("legacy.reconnect_after = \"1ms\"", "legacy.reconnect_after"),
            ("legacy.retry = \"0s\"", "legacy.retry"),
            ("limits.changes_per_session = 0", "limits.changes_per_session"),
            ("queue_len = 1", "queue_len"),
            ("legacy.sessions_per_caller = 0", "legacy.sessions_per_caller"),
            ("inline_bytes = 255", "inline_bytes"),
        ] {
            let error = format!("{:#}", parsed(text).expect("valid").to_server_config().expect_err("of no use"));
            assert!(error.contains(&format!("`{key}` must be ")), "{error}");
            assert!(error.starts_with("taskwire.toml cannot be used: line 1, column "), "{error}");
            assert!(error.contains(text) && error.contains('^'), "the line is shown: {error}");
        }
        let large = parsed("body_bytes = 100000000").expect("valid").to_server_config().expect("usable");
        assert_eq!(large.http.all_bodies_bytes, 100_000_000, "there is room for one such message");
    }
}
