//! Lets a running server reload its configuration: by a signal, or through a socket beside its tasks.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use taskwire::{
    clock::{Clock, SystemClock},
    command::{Commands, Definition, Problem, socket},
    server::{AuditAction, Server, Tls},
    tool::Registry,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    signal::unix::Signal,
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
};

use crate::{audit_log::AuditLog, config::Config, demo, service_manager};

/// The socket's name in the directory of the tasks.
const SOCKET_NAME: &str = "control";
/// Bytes of one request or reply.
const LINE_BYTES_MAX: u64 = 1024 * 1024;
/// Connections at one time.
const CONNECTIONS_MAX: usize = 16;

/// A request to a running server.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Reload the configuration; this file, if it is named.
    Reload { config: Option<PathBuf> },
    /// Say what it serves, to a process that joins it.
    Describe,
    /// What an operator asks for, as over HTTP: a method, and a path with its query.
    Api { method: String, target: String },
}

/// The server's reply.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    Done(Changes),
    /// Nothing has changed, for this reason.
    Refused(String),
    /// What it serves.
    Described(ServerDescription),
    /// What the server answers an operator: a status of HTTP, and JSON.
    Api {
        status: u16,
        body: Value,
    },
}

/// What a server serves: enough to tell whether another one would serve the same.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerDescription {
    pub(crate) file: Option<PathBuf>,
    /// Its tools, each with a hash of its definition.
    pub(crate) tools: BTreeMap<String, u64>,
    /// The keys of its file that differ from the default, each with a hash of its value.
    pub(crate) keys: BTreeMap<String, u64>,
}

impl ServerDescription {
    /// What a server with this configuration and these tools serves.
    pub(crate) fn of(config: &Config, definitions: &[Definition], file: Option<&Path>) -> Self {
        Self::new(config, &tool_snapshots(config.demo, definitions), file)
    }

    fn new(config: &Config, tools: &ToolSnapshots, file: Option<&Path>) -> Self {
        let tools = tools.iter().map(|(name, all)| (name.clone(), hash(all))).collect();
        let keys = config.effects().into_iter().map(|(key, effect)| (key, hash(&effect))).collect();
        Self { file: file.map(Path::to_owned), tools, keys }
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// What a reload changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Changes {
    added: Vec<String>,
    changed: Vec<String>,
    removed: Vec<String>,
    unchanged: usize,
    /// When the certificate expires that was read again, if the server has one.
    #[serde(default)]
    certificate: Option<String>,
    /// Keys that take effect only after a restart.
    restart: Vec<String>,
    /// New tools that are not served before a restart, because their rules hold only then.
    #[serde(default)]
    waiting: Vec<String>,
    /// Warnings, a line for each.
    #[serde(default)]
    pub(crate) warnings: Vec<String>,
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, names) in [("added", &self.added), ("changed", &self.changed), ("removed", &self.removed)] {
            if !names.is_empty() {
                write!(f, "{what}: {}; ", names.join(", "))?;
            }
        }
        write!(f, "unchanged: {}", self.unchanged)?;
        if let Some(expires) = &self.certificate {
            write!(f, "\ncertificate: read again, valid until {expires}")?;
        }
        if !self.restart.is_empty() {
            let keys: Vec<String> = self.restart.iter().map(|key| format!("`{key}`")).collect();
            write!(f, "\nneeds a restart: {}", keys.join(", "))?;
        }
        if !self.waiting.is_empty() {
            write!(f, "\nnot served before a restart, because `[auth] scopes` has a new rule for each: {}", self.waiting.join(", "))?;
        }
        Ok(())
    }
}

/// A tool's name, and its definition as text.
type ToolSnapshots = Vec<(String, String)>;

/// The tools of a configuration; equal snapshots mean equal tools.
fn tool_snapshots(demo: bool, definitions: &[Definition]) -> ToolSnapshots {
    let of_demo = demo::NAMES.iter().filter(|_| demo).map(|name| ((*name).to_owned(), String::new()));
    let of_file = definitions.iter().map(|definition| {
        // The variables that a command must not see are the server's, not the tool's.
        let definition = Definition { remove_env: Vec::new(), ..definition.clone() };
        (definition.name.clone(), format!("{definition:?}"))
    });
    of_demo.chain(of_file).collect()
}

impl Changes {
    fn between(old: &ToolSnapshots, new: &ToolSnapshots) -> Self {
        let find = |tools: &ToolSnapshots, name: &str| tools.iter().find(|(other, _)| other == name).map(|(_, all)| all.clone());
        let mut changes = Self::default();
        for (name, all) in new {
            match find(old, name) {
                None => changes.added.push(name.clone()),
                Some(before) if before != *all => changes.changed.push(name.clone()),
                Some(_) => changes.unchanged += 1,
            }
        }
        changes.removed = old.iter().filter(|(name, _)| find(new, name).is_none()).map(|(name, _)| name.clone()).collect();
        changes
    }
}

/// What a server serves, and the configuration that it comes from.
#[derive(Debug)]
pub(crate) struct LiveConfig {
    /// The configuration that the server was started with.
    config: Config,
    /// The file's absolute path: reading it again must not depend on the current directory.
    file: Option<PathBuf>,
    /// Keys that the command line overrides.
    overridden_keys: Vec<&'static str>,
    registry: Registry,
    commands: Commands,
    /// What the server speaks TLS with, if it does.
    tls: Option<Tls>,
    audit: Option<Arc<AuditLog>>,
    served_tools: Mutex<ToolSnapshots>,
}

impl LiveConfig {
    /// Registers the tools of the configuration.
    pub(crate) fn start(
        config: Config,
        definitions: Vec<Definition>,
        file: Option<&Path>,
        overridden_keys: Vec<&'static str>,
        registry: Registry,
        commands: Commands,
        audit: Option<Arc<AuditLog>>,
    ) -> anyhow::Result<Self> {
        let file = file.map(std::path::absolute).transpose()?;
        let live = Self { config, file, overridden_keys, registry, commands, tls: None, audit, served_tools: Mutex::default() };
        *live.lock() = tool_snapshots(live.config.demo, &definitions);
        live.serve_tools(&live.config, definitions, &[])?;
        Ok(live)
    }

    /// A reload reads the certificates again with which the server speaks TLS.
    pub(crate) fn with_tls(self, tls: Option<Tls>) -> Self {
        Self { tls, ..self }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    fn lock(&self) -> MutexGuard<'_, ToolSnapshots> {
        self.served_tools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves these tools but those that wait, and no others; all or nothing.
    fn serve_tools(&self, config: &Config, definitions: Vec<Definition>, waiting: &[String]) -> anyhow::Result<()> {
        let names: Vec<String> = definitions.iter().map(|definition| definition.name.clone()).collect();
        let commands = self.commands.tools(definitions).map_err(|(n, problem)| config.refuse_tool(n, &problem))?;
        let tools = if config.demo { demo::tools() } else { Vec::new() };
        let served = tools.into_iter().chain(commands).filter(|tool| !waiting.iter().any(|name| **name == **tool.name()));
        self.registry.set_tools(served.collect()).map_err(|invalid| {
            let key = if invalid.what.contains("output") { "output_schema" } else { "input_schema" };
            let problem = Problem { key, path: Vec::new(), message: invalid.to_string() };
            config.refuse_tool(names.iter().position(|name| *name == invalid.tool).unwrap_or_default(), &problem)
        })?;
        Ok(())
    }

    /// Reloads the file, and the certificates that it names, and serves the tools that it has now. Running tasks and open connections go
    /// on as they were. If anything in it cannot be used, nothing changes.
    fn reload(&self, wanted: Option<&Path>) -> anyhow::Result<Changes> {
        let Some(file) = &self.file else {
            bail!("this server was started without a configuration file: there is nothing to read again");
        };
        if let Some(wanted) = wanted
            && wanted.canonicalize().ok() != file.canonicalize().ok()
        {
            bail!("this server reads {}, not {}", file.display(), wanted.display());
        }
        // One reload at a time, from the reading on: the last one must win.
        let mut old = self.lock();
        let config = Config::read(file)?;
        // Keys that need a restart must be right, too, or the next start would fail.
        config.check()?;
        let secrets: Vec<String> = self.config.secret_variables().chain(service_manager::variables()).collect();
        let definitions = config.definitions(&secrets)?;
        // A server without TLS needs a restart for it.
        let tls = if self.tls.is_some() { config.read_tls()? } else { None };
        let mut new = tool_snapshots(config.demo, &definitions);
        let waiting = self.waiting(&config, &old, &new);
        new.retain(|(name, _)| !waiting.contains(name));
        let mut changes = Changes::between(&old, &new);
        changes.restart = self.config.restart_keys(&config, &self.overridden_keys);
        changes.warnings = config.warnings(&definitions);
        changes.waiting.clone_from(&waiting);
        if *old != new {
            self.serve_tools(&config, definitions, &waiting)?;
            *old = new;
        }
        if let (Some(tls), Some(new)) = (&self.tls, tls) {
            tls.replace_with(&new);
            changes.certificate = Some(new.expires().to_string());
            changes.warnings.extend(config.tls_warnings(&new, SystemClock.now()));
        }
        Ok(changes)
    }

    /// New tools for which the file has a rule that this server does not have: without it, anybody could call them.
    fn waiting(&self, config: &Config, old: &ToolSnapshots, new: &ToolSnapshots) -> Vec<String> {
        let is_new = |name: &&String| !old.iter().any(|(other, _)| other == *name);
        let waits = |name: &&String| self.config.auth.has_other_rule(&config.auth, name);
        new.iter().map(|(name, _)| name).filter(is_new).filter(waits).cloned().collect()
    }

    /// Reloads on a blocking thread, and logs the outcome.
    async fn reload_and_log(self: Arc<Self>, wanted: Option<PathBuf>) -> Reply {
        service_manager::reloading();
        let reloaded = tokio::task::spawn_blocking(move || {
            let reloaded = self.reload(wanted.as_deref());
            if let Some(audit) = &self.audit {
                // First of all, so that it is the first line of a file that takes the place of another.
                audit.reopen();
                audit.record_now(AuditAction::Reload, if reloaded.is_ok() { "done" } else { "refused" });
            }
            reloaded
        });
        let reloaded = reloaded.await;
        service_manager::ready();
        match reloaded.context("it could not be read").flatten() {
            Ok(changes) => {
                tracing::info!("configuration read again: {changes}");
                changes.warnings.iter().for_each(|warning| tracing::warn!("{}", warning.trim_start_matches("warning: ")));
                Reply::Done(changes)
            }
            Err(error) => {
                tracing::error!("the old configuration stays: {error:#}");
                Reply::Refused(format!("{error:#}"))
            }
        }
    }
}

/// Reloads the configuration at each signal.
pub(crate) async fn reload_on_signal(mut signal: Signal, live: Arc<LiveConfig>) {
    while signal.recv().await.is_some() {
        live.clone().reload_and_log(None).await;
    }
}

/// Whom a request to the control socket is about.
#[derive(Clone)]
struct Controlled {
    live: Arc<LiveConfig>,
    server: Server,
}

/// The control socket, while this exists.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    accepting: JoinHandle<()>,
    _socket: SocketFile,
}

impl ControlSocket {
    /// Listens from now on. Only users who may read the tasks can connect.
    pub(crate) async fn listen(data: &Path, live: Arc<LiveConfig>, server: Server) -> io::Result<Self> {
        let listener = socket::listen(data, SOCKET_NAME).await?;
        let accepting = tokio::spawn(accept(listener, Controlled { live, server }));
        Ok(Self { accepting, _socket: SocketFile(data.join(SOCKET_NAME)) })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // It must not keep the server, which another process is about to follow.
        self.accepting.abort();
    }
}

/// The file of a socket, removed on drop.
#[derive(Debug)]
pub(crate) struct SocketFile(pub(crate) PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // If it stays: a socket without a listener is as good as none.
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn accept(listener: UnixListener, controlled: Controlled) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // They end with this.
    let mut connections = JoinSet::new();
    while let Ok(permit) = permits.clone().acquire_owned().await {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let controlled = controlled.clone();
                connections.spawn(async move {
                    if let Err(error) = handle_request(stream, controlled).await {
                        tracing::debug!(%error, "a connection to the control socket ended early");
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "`taskwire reload` and `taskwire server` do not work any more; SIGHUP and SIGTERM do");
                return;
            }
        }
    }
}

async fn handle_request(mut stream: UnixStream, controlled: Controlled) -> io::Result<()> {
    let Controlled { live, server } = controlled;
    let (input, mut output) = stream.split();
    let mut line = String::new();
    tokio::io::BufReader::new(input.take(LINE_BYTES_MAX)).read_line(&mut line).await?;
    let reply = match serde_json::from_str(&line) {
        Ok(Request::Reload { config }) => live.reload_and_log(config).await,
        Ok(Request::Describe) => Reply::Described(ServerDescription::new(&live.config, &live.lock(), live.file.as_deref())),
        Ok(Request::Api { method, target }) => {
            let (status, body) = server.answer_api(&method, &target).await;
            match serde_json::from_slice(&body) {
                Ok(body) => Reply::Api { status, body },
                Err(error) => Reply::Refused(format!("the server's answer cannot be passed on: {error}")),
            }
        }
        Err(error) => Reply::Refused(format!("the server does not understand that, is it of another version? ({error})")),
    };
    let mut text = serde_json::to_string(&reply)?;
    text.push('\n');
    output.write_all(text.as_bytes()).await?;
    output.shutdown().await
}

/// Sends a request to the server whose tasks are in this directory. There is no timeout.
pub(crate) fn send_request(data: &Path, request: &Request) -> io::Result<Reply> {
    let mut stream = socket::connect_blocking(data, SOCKET_NAME)?;
    let mut text = serde_json::to_string(request)?;
    text.push('\n');
    stream.write_all(text.as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream.take(LINE_BYTES_MAX)).read_line(&mut line)?;
    if line.is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server ended before it answered"));
    }
    Ok(serde_json::from_str(&line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(pairs: &[(&str, &str)]) -> ToolSnapshots {
        pairs.iter().map(|(name, all)| ((*name).to_owned(), (*all).to_owned())).collect()
    }

    #[test]
    fn what_changed_is_told_in_one_line() {
        let old = tools(&[("a", "1"), ("b", "1"), ("c", "1"), ("d", "1")]);
        let new = tools(&[("d", "1"), ("x", "1"), ("b", "2"), ("y", "1"), ("a", "1")]);
        let changes = Changes::between(&old, &new);
        assert_eq!(changes.to_string(), "added: x, y; changed: b; removed: c; unchanged: 2");
        assert_eq!(Changes::between(&old, &old).to_string(), "unchanged: 4");
        assert_eq!(Changes::between(&old, &ToolSnapshots::new()).to_string(), "removed: a, b, c, d; unchanged: 0");
        let renewed = Changes { unchanged: 1, certificate: Some("2026-07-29T00:00:00.000Z".to_owned()), ..Changes::default() };
        assert_eq!(renewed.to_string(), "unchanged: 1\ncertificate: read again, valid until 2026-07-29T00:00:00.000Z");
        let restart = Changes { restart: vec!["listen".to_owned(), "http.connections".to_owned()], ..Changes::default() };
        assert_eq!(restart.to_string(), "unchanged: 0\nneeds a restart: `listen`, `http.connections`");
        let waiting = Changes { waiting: vec!["a".to_owned(), "b".to_owned()], ..Changes::default() };
        let words = "unchanged: 0\nnot served before a restart, because `[auth] scopes` has a new rule for each: a, b";
        assert_eq!(waiting.to_string(), words);
    }

    #[test]
    fn what_a_command_must_not_see_is_no_change_of_it_but_all_else_is() {
        let tool = |change: &dyn Fn(&mut Definition)| {
            let mut definition = Definition::new("x", "y", Vec::new());
            change(&mut definition);
            tool_snapshots(false, &[definition])
        };
        let plain = tool(&|_| {});
        assert_eq!(plain, tool(&|it| it.remove_env = vec!["SECRET".to_owned()]));
        assert_ne!(plain, tool(&|it| it.concurrency = 1));
        assert_ne!(plain, tool(&|it| it.description = "z".to_owned()));
        assert_ne!(plain, tool(&|it| it.input_schema = serde_json::json!({"type": "object"})));
        assert_eq!(tool_snapshots(true, &[]).len(), demo::NAMES.len());
    }

    #[test]
    fn requests_and_replies_are_lines_of_json() {
        let request = serde_json::to_string(&Request::Reload { config: Some("a.toml".into()) }).expect("JSON");
        assert_eq!(request, r#"{"reload":{"config":"a.toml"}}"#);
        assert!(matches!(serde_json::from_str(r#"{"reload":{}}"#), Ok(Request::Reload { config: None })));
        let asked = Request::Api { method: "GET".to_owned(), target: "/api/server".to_owned() };
        assert_eq!(serde_json::to_string(&asked).expect("JSON"), r#"{"api":{"method":"GET","target":"/api/server"}}"#);
        let changes = Changes { added: vec!["a".to_owned()], warnings: vec!["warning: x".to_owned()], ..Changes::default() };
        let older = r#"{"done":{"added":[],"changed":[],"removed":[],"unchanged":1,"restart":[]}}"#;
        assert!(matches!(serde_json::from_str(older), Ok(Reply::Done(changes)) if changes.warnings.is_empty()), "a server of before");
        for reply in [Reply::Done(changes), Reply::Refused("line 1\nno".to_owned())] {
            let text = serde_json::to_string(&reply).expect("JSON");
            assert!(!text.contains('\n'));
            assert_eq!(serde_json::from_str::<Reply>(&text).expect("the same"), reply);
        }
    }
}
