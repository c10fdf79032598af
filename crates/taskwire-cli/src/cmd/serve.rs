//! `taskwire serve`: reads the configuration, opens the store, listens, and handles signals.

use std::{
    io,
    net::{SocketAddr, TcpListener as BlockingListener, ToSocketAddrs},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use taskwire::{
    clock::{Clock, SystemClock},
    command::{Commands, Definition, Supervisor},
    server::{self, Audit, Server, Tls},
    store,
    tool::{Provider, Registry},
};
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    sync::{Mutex, Notify},
    task::JoinHandle,
};

use crate::{
    audit_log::AuditLog,
    client::exit::Exit,
    config::{Config, OpenedStore, Secret, StoreKind},
    control::{self, ControlSocket, LiveConfig, ServerDescription},
    join::{self, JoinSocket},
    logging::{self, LogFormat},
    open_files, service_manager,
    term::{escape, stderr},
};

/// Tools that the start message names.
const NAMED_TOOLS: usize = 5;
/// How often to try to bind, about a second in all: a server that was killed a moment ago may still have the address.
const BIND_TRIES: u32 = 20;
const BIND_PAUSE: Duration = Duration::from_millis(50);
/// What is logged unless `$RUST_LOG` says otherwise.
const USUAL_LOG: &str = "taskwire=info,warn";

const EXAMPLES: &str = "Examples:
  taskwire serve                            demo tools, tasks in ./.taskwire
  taskwire serve --listen 127.0.0.1:9000    another port
  taskwire serve taskwire.toml --data /var/lib/taskwire
  taskwire serve --stdio                    for clients that start their servers

SIGTERM and Ctrl-C drain: no new calls, running tools get some time,
a second signal ends at once. Tasks that are still running then are
taken over by the next start; commands run on meanwhile.
Paths in the configuration are relative to it, `data` too; --data is relative
to the current directory.
SIGHUP and `taskwire reload` read the configuration again: its tools, while
running tasks go on as they were.
It takes the socket of a service manager (systemd), and tells it how it is.
With --stdio it joins a server that has the directory already, and takes its
place when that ends.
Logging goes to standard error, a line for each call that ends; RUST_LOG=debug
shows more, and --log-format json is for programs.

Exit codes: 0 it was told to end, 1 it cannot serve, 2 the command line or the
configuration is wrong";

/// Serve tools over the Model Context Protocol.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// Configuration file; without one the demo tools are served
    config: Option<PathBuf>,
    /// Address to listen on [default: 127.0.0.1:8787]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Directory for tasks [default: .taskwire, beside the configuration file if there is one]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Where tasks are kept: `memory:` if they may end with the server, `postgres://…` or `env:NAME` for a database that nodes share
    /// [default: in the data directory]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// How the log on standard error is written [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// Speak MCP on standard input and output instead of HTTP
    #[arg(long, conflicts_with = "listen")]
    stdio: bool,
}

/// All that is needed to serve, checked.
pub(crate) struct ServerSetup {
    config: Config,
    store: StoreKind,
    settings: server::Config,
    definitions: Vec<Definition>,
    /// `None` for standard input and output.
    address: Option<SocketAddr>,
    /// What it speaks TLS with there, if it does.
    tls: Option<Tls>,
    /// The address that has nothing but `/metrics`.
    metrics: Option<SocketAddr>,
    file: Option<PathBuf>,
    /// Keys that the command line overrides.
    overridden_keys: Vec<&'static str>,
    /// The record of who did what, once it is begun.
    audit: Option<Arc<AuditLog>>,
    /// Told when an admin wants the server to end.
    drain: Arc<Notify>,
}

impl Serve {
    pub(crate) fn run(self) -> ExitCode {
        let (exit, error) = match self.prepare() {
            Err(error) => (ExitCode::from(Exit::Usage), error),
            Ok(prepared) => match prepared.run() {
                Err(error) => (ExitCode::FAILURE, error),
                Ok(()) => return ExitCode::SUCCESS,
            },
        };
        stderr::write(&format!("taskwire: {}\n", escape::lines(&error_chain(&error))));
        exit
    }

    /// Checks everything, before anything is changed.
    fn prepare(self) -> anyhow::Result<ServerSetup> {
        let mut config = match &self.config {
            Some(path) => Config::read(path)?,
            None => Config::demo(),
        };
        let options = [
            ("listen", self.listen.is_some()),
            ("data", self.data.is_some()),
            ("store", self.store.is_some()),
            ("log_format", self.log_format.is_some()),
        ];
        let overridden_keys = options.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| key).collect();
        config.listen = self.listen.unwrap_or(config.listen);
        config.data = self.data.unwrap_or(config.data);
        config.store = self.store.map_or(config.store, Secret);
        config.log_format = self.log_format.unwrap_or(config.log_format);
        let settings = config.to_server_config()?;
        let store = config.store()?;
        if let StoreKind::Postgres(url) = &store {
            config.postgres(&url.0)?;
        }
        let definitions = config.definitions(&service_manager::variables().collect::<Vec<_>>())?;
        let address = if self.stdio { None } else { Some(address(&config)?) };
        let tls = if self.stdio { None } else { config.read_tls()? };
        // It was checked with the settings.
        let metrics = config.metrics.address().map_err(anyhow::Error::msg)?;
        let (file, audit, drain) = (self.config, None, Arc::default());
        Ok(ServerSetup { config, store, settings, definitions, address, tls, metrics, file, overridden_keys, audit, drain })
    }
}

impl ServerSetup {
    fn run(mut self) -> anyhow::Result<()> {
        logging::begin(self.config.log_format, USUAL_LOG);
        // While there is one thread.
        let passed = match self.address {
            Some(_) => service_manager::listener().context("the socket that was passed to the server cannot be used (`LISTEN_FDS`)")?,
            None => None,
        };
        let of_tls = self.tls.iter().flat_map(|tls| self.config.tls_warnings(tls, SystemClock.now()));
        for warning in self.config.warnings(&self.definitions).into_iter().chain(of_tls) {
            match self.config.log_format {
                LogFormat::Text => stderr::write(&format!("{}\n", escape::line(&warning))),
                LogFormat::Json => tracing::warn!("{}", warning.trim_start_matches("warning: ")),
            }
        }
        if let Some(files) = open_files::raise_limit().filter(|_| self.address.is_some()) {
            open_files::bound_connections(&mut self.settings.http, files);
        }
        let audit = self.config.audit.file.clone().map(AuditLog::begin).transpose().context("the audit log needs a thread")?;
        self.settings.engine.audit = audit.clone().map(|audit| audit as Arc<dyn Audit>);
        self.audit.clone_from(&audit);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let result = runtime.block_on(self.serve(passed));
        if let Some(audit) = audit {
            audit.finish();
        }
        // Dropping the runtime would wait for threads that read a silent input, or work for ever.
        runtime.shutdown_background();
        result
    }

    pub(crate) fn data(&self) -> &Path {
        &self.config.data
    }

    /// The largest message.
    pub(crate) fn body_bytes(&self) -> usize {
        self.settings.body_bytes
    }

    /// Catches signals from now on, and waits for the first, or until an admin wants the server to end; a second signal ends the process.
    pub(crate) fn stop_signal(&self) -> anyhow::Result<impl Future<Output = ()> + use<>> {
        let mut signals = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let (drain, audit) = (self.drain.clone(), self.audit.clone());
        Ok(async move {
            let by_signal = tokio::select! {
                () = signalled(&mut signals) => true,
                () = drain.notified() => false,
            };
            tokio::spawn(async move {
                if !by_signal {
                    // Whoever sends the first one, such as a service manager, only wants what the admin wants.
                    signalled(&mut signals).await;
                }
                tracing::info!("draining; send the signal again to stop at once");
                signalled(&mut signals).await;
                if let Some(audit) = audit {
                    audit.finish();
                }
                std::process::exit(130);
            });
        })
    }

    /// What a server with this setup serves.
    pub(crate) fn describe(&self) -> ServerDescription {
        ServerDescription::of(&self.config, &self.definitions, self.file.as_deref())
    }

    pub(crate) async fn open_store(&self) -> Result<OpenedStore, store::Error> {
        self.store.open(self.data(), &self.config).await
    }

    /// Starts the server on this store.
    pub(crate) async fn start_server(self, store: OpenedStore) -> anyhow::Result<RunningServer> {
        let Self { config, store: kind, settings, definitions, file, overridden_keys, address, tls, metrics, audit, drain } = self;
        if let Some(audit) = audit.clone() {
            // A process that had joined another one has waited, and the file may have been moved away meanwhile.
            tokio::task::spawn_blocking(move || audit.reopen()).await?;
        }
        let commands = Commands::open(&config.data, Supervisor::this_program(["supervise"])?)
            .with_context(|| format!("commands cannot be run in {}", config.data.display()))?;
        let registry = Registry::new();
        let live = LiveConfig::start(config, definitions, file.as_deref(), overridden_keys, registry.clone(), commands.clone(), audit)?;
        let live = Arc::new(live.with_tls(tls));
        let count = registry.tools().len();
        let provider = commands.with_retired_tool(registry);
        let server = match store {
            OpenedStore::Embedded(store) => {
                Server::start(provider, *store, settings).map_err(|error| store_open_error(error, &live.config().data))?
            }
            OpenedStore::Memory(store) => Server::start(provider, store, settings)?,
            OpenedStore::Postgres(store) => Server::start(provider, *store, settings)?,
        };
        commands.start_sweep(&server).await;
        if file.is_some() {
            // Without a file there is nothing to reload, and the signal keeps its usual meaning.
            tokio::spawn(control::reload_on_signal(signal(SignalKind::hangup())?, live.clone()));
        }
        let data = live.config().data.clone();
        let asked = server.drain_requested();
        tokio::spawn(async move {
            if asked.await {
                drain.notify_one();
            }
        });
        let control = ControlSocket::listen(&data, live.clone(), server.clone()).await;
        if let Err(error) = &control {
            tracing::warn!(%error, "`taskwire reload` and `taskwire server` will not find this server; SIGHUP and SIGTERM work");
        }
        let joinable = JoinSocket::listen(data, &server).await;
        if let Err(error) = &joinable {
            tracing::warn!(%error, "other processes cannot join this server");
        }
        let metrics = match metrics {
            None => None,
            Some(wanted) => match MetricsSocket::listen(wanted, &server) {
                Ok(metrics) => Some(metrics),
                Err(error) if address.is_some() => return Err(error),
                // A client has started this server for its tools.
                Err(error) => {
                    tracing::warn!("nobody can read metrics: {error:#}");
                    None
                }
            },
        };
        Ok(RunningServer { server, live, commands, count, kind, joinable: joinable.ok(), metrics, _control: control.ok() })
    }

    /// Serves on its address, or on the socket that was passed to this process.
    async fn serve(self, passed: Option<BlockingListener>) -> anyhow::Result<()> {
        let address = self.address;
        // Bind the port before opening the store: a busy port is the commoner mistake, and its error the clearer one.
        let listener = match (passed, address) {
            (Some(passed), _) => {
                check_reach(passed.local_addr()?, &self.config)?;
                Some(TcpListener::from_std(passed)?)
            }
            (None, Some(address)) => {
                let bound =
                    retry_while_in_use(async || TcpListener::bind(address).await, async || tokio::time::sleep(BIND_PAUSE).await).await;
                Some(bound.with_context(|| format!("cannot listen on {address} (another address: `--listen`)"))?)
            }
            (None, None) => None,
        };
        let store = match self.open_store().await {
            Ok(store) => store,
            // Two windows of an editor are two clients, and each starts its server.
            Err(store::Error::Locked { holder, .. }) if listener.is_none() => return join::run(self, &holder).await,
            Err(error) => return Err(store_open_error(error, self.data())),
        };
        // Before anybody can connect.
        let stop = self.stop_signal()?;
        let (definitions, tls) = (self.definitions.clone(), self.tls.clone());
        let mut leader = self.start_server(store).await?;
        let joinable = Mutex::new(leader.joinable.take());
        // Disconnect the joined processes first: their calls go on with the next server.
        let cut_off = async || {
            if let Some(joinable) = joinable.lock().await.take() {
                joinable.stop().await;
            }
        };
        let stop = async {
            stop.await;
            service_manager::stopping();
            cut_off().await;
        };
        let served = match listener {
            None => leader.server.serve_stdio(stop).await,
            Some(listener) => {
                let addresses = (listener.local_addr()?, leader.metrics.as_ref().map(|metrics| metrics.address));
                println!("{}", banner(addresses, leader.live.config(), &leader.kind, &definitions, leader.count));
                service_manager::ready();
                let _watchdog = service_manager::watchdog(&leader.server);
                match tls {
                    None => leader.server.serve(listener, stop).await,
                    Some(tls) => leader.server.serve_tls(listener, tls, stop).await,
                }
            }
        };
        cut_off().await;
        leader.end_what_nobody_finds().await;
        Ok(served?)
    }
}

/// A server with its store, which other processes can join.
pub(crate) struct RunningServer {
    server: Server,
    live: Arc<LiveConfig>,
    commands: Commands,
    /// The number of its tools.
    count: usize,
    kind: StoreKind,
    joinable: Option<JoinSocket>,
    metrics: Option<MetricsSocket>,
    _control: Option<ControlSocket>,
}

/// Serves `/metrics` on an address that has nothing else, while this exists.
struct MetricsSocket {
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl MetricsSocket {
    fn listen(address: SocketAddr, server: &Server) -> anyhow::Result<Self> {
        let bound = std::net::TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener)
        });
        let listener = bound.with_context(|| format!("cannot listen on {address} for metrics (`metrics.listen`)"))?;
        let (address, server) = (listener.local_addr()?, server.clone());
        let serving = tokio::spawn(async move { server.serve_metrics(listener, std::future::pending()).await });
        Ok(Self { address, serving })
    }
}

impl Drop for MetricsSocket {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl RunningServer {
    /// Waits until its store fails; returns the reason.
    pub(crate) fn failed(&self) -> impl Future<Output = Arc<str>> + Send + use<> {
        self.server.failed()
    }

    /// Stops, and releases the store for another process.
    pub(crate) async fn stop(mut self) {
        if let Some(joinable) = self.joinable.take() {
            joinable.stop().await;
        }
        self.end_what_nobody_finds().await;
    }

    /// Where tasks end with the server, their commands do, too.
    async fn end_what_nobody_finds(&self) {
        if self.kind == StoreKind::Memory {
            self.commands.end_all(&self.server).await;
        }
    }
}

/// An error and its causes, each said once: many an error repeats its cause.
fn error_chain(error: &anyhow::Error) -> String {
    let (mut text, mut before) = (String::new(), String::new());
    for cause in error.chain().map(ToString::to_string) {
        // This error repeats the cause before it: keep only what it adds.
        let more = match cause.strip_suffix(before.as_str()) {
            Some(more) if !before.is_empty() => more.trim_end_matches([':', ' ']),
            _ => cause.as_str(),
        };
        if !text.contains(more) {
            text.push_str(if text.is_empty() { "" } else { ": " });
            text.push_str(more);
        }
        before = cause;
    }
    text
}

/// The error if the store cannot be opened. The database's own error does not name the file.
fn store_open_error(error: store::Error, data: &Path) -> anyhow::Error {
    match error {
        store::Error::Locked { .. } => anyhow!("{error} (`--data`)"),
        store::Error::Database(_) => anyhow::Error::from(error).context(format!("cannot open {}", data.join("tasks.db").display())),
        error => error.into(),
    }
}

/// Binds an address that another process may be about to release.
async fn retry_while_in_use<T>(mut take: impl AsyncFnMut() -> io::Result<T>, mut pause: impl AsyncFnMut()) -> io::Result<T> {
    for _ in 1..BIND_TRIES {
        match take().await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => pause().await,
            taken => return taken,
        }
    }
    take().await
}

/// The address to listen on.
pub(crate) fn address(config: &Config) -> anyhow::Result<SocketAddr> {
    let mut addresses = config.listen.to_socket_addrs().with_context(|| format!("`{}` is not an address to listen on", config.listen))?;
    let address = addresses.next().with_context(|| format!("`{}` has no address", config.listen))?;
    check_reach(address, config)?;
    Ok(address)
}

/// Where nobody must show who they are every client is trusted, so then only loopback is allowed.
fn check_reach(address: SocketAddr, config: &Config) -> anyhow::Result<()> {
    if !address.ip().is_loopback() && !config.auth.is_required() {
        bail!(
            "{address} can be reached from other machines, and nobody needs a token: set `[auth] tokens` or `issuers`, or listen on 127.0.0.1"
        );
    }
    Ok(())
}

fn banner(
    (address, metrics): (SocketAddr, Option<SocketAddr>),
    config: &Config,
    store: &StoreKind,
    commands: &[Definition],
    tools: usize,
) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let tasks = match store {
        StoreKind::Embedded => format!("tasks in {}", config.data.display()),
        StoreKind::Memory => "tasks in memory, which end with the server".to_owned(),
        StoreKind::Postgres(_) => format!("tasks in PostgreSQL, as node {}", config.node_name()),
    };
    let tools = if tools == 1 { "1 tool".to_owned() } else { format!("{tools} tools") };
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let mut text = format!("taskwire {version}: {tools}, {tasks}\n\n  endpoint  {scheme}://{address}/mcp\n");
    if config.dashboard != Some(false) {
        text.push_str(&format!("  dashboard {scheme}://{address}/\n"));
    }
    if let Some(metrics) = metrics {
        text.push_str(&format!("  metrics   http://{metrics}/metrics\n"));
    }
    if !commands.is_empty() {
        text.push_str(&format!("  tools     {}\n", names(commands)));
    }
    let example = match commands.first() {
        Some(command) => Some(example(command)),
        None => config.demo.then(|| "countdown from=5".to_owned()),
    };
    // By TLS a client must know the certificate's authority, and the name in it.
    if let Some(example) = example.filter(|_| !config.auth.is_required() && config.tls.is_none()) {
        text.push_str(&format!("  try it    taskwire call http://{address}/mcp {example}\n"));
    }
    text
}

/// The first of the tools by their names, and how many more there are.
fn names(commands: &[Definition]) -> String {
    let named: Vec<&str> = commands.iter().take(NAMED_TOOLS).map(|command| command.name.as_str()).collect();
    let more = match commands.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", named.join(", "))
}

/// An example call of this tool, without the values of its required parameters.
fn example(command: &Definition) -> String {
    let required = command.input_schema["required"].as_array().into_iter().flatten().filter_map(|name| name.as_str());
    required.fold(command.name.clone(), |example, name| format!("{example} {name}=…"))
}

/// Waits for one of the signals that end a process.
async fn signalled((term, int): &mut (Signal, Signal)) {
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(commands: &[Definition], config: &Config) -> String {
        banner((SocketAddr::from(([127, 0, 0, 1], 7)), None), config, &StoreKind::Embedded, commands, commands.len())
    }

    #[test]
    fn a_cause_is_said_once() {
        let chain = |words: &[&str]| {
            let mut causes = words.iter().rev().map(|word| (*word).to_owned());
            let first = anyhow::Error::msg(causes.next().unwrap_or_default());
            error_chain(&causes.fold(first, |error, word| error.context(word)))
        };
        assert_eq!(chain(&["cannot listen", "in use"]), "cannot listen: in use");
        assert_eq!(chain(&["cannot use /x: read-only (30)", "read-only (30)"]), "cannot use /x: read-only (30)");
        assert_eq!(chain(&["a", "b: c", "c", "d"]), "a: b: c: d");
        assert_eq!(chain(&["failed (full), sorry", "full"]), "failed (full), sorry");
        let database = ["cannot open x", "the database failed: no database", "no database", "Error code 26: no database"];
        assert_eq!(chain(&database), "cannot open x: the database failed: no database: Error code 26");
    }

    #[tokio::test]
    async fn an_address_that_is_let_go_in_time_is_taken() {
        for (free_at, expected) in [(1, Some(1)), (BIND_TRIES, Some(BIND_TRIES)), (BIND_TRIES + 1, None)] {
            let (mut tries, mut pauses) = (0_u32, 0_u32);
            let take = async || {
                tries += 1;
                if tries < free_at { Err(io::Error::from(io::ErrorKind::AddrInUse)) } else { Ok(tries) }
            };
            let taken = retry_while_in_use(take, async || pauses += 1).await;
            assert_eq!(taken.ok(), expected);
            assert_eq!(pauses, free_at.min(BIND_TRIES) - 1);
        }
        let mut tries = 0_u32;
        let refused = async || {
            tries += 1;
            Err::<(), _>(io::Error::from(io::ErrorKind::PermissionDenied))
        };
        let taken = retry_while_in_use(refused, async || {}).await;
        assert_eq!((taken.map_err(|error| error.kind()), tries), (Err(io::ErrorKind::PermissionDenied), 1), "that does not pass");
    }

    #[test]
    fn the_first_tools_are_named_and_one_can_be_tried() {
        let mut commands: Vec<Definition> = (1..=7).map(|n| Definition::new(format!("t{n}"), "", Vec::new())).collect();
        commands[0].input_schema = json!({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "required": ["a", "c"]});
        let text = shown(&commands, &Config::default());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with(": 7 tools, tasks in .taskwire"), "{text}");
        assert_eq!(
            lines[2..],
            [
                "  endpoint  http://127.0.0.1:7/mcp",
                "  dashboard http://127.0.0.1:7/",
                "  tools     t1, t2, t3, t4, t5 and 2 more",
                "  try it    taskwire call http://127.0.0.1:7/mcp t1 a=… c=…"
            ]
        );
        let one = shown(&commands[1..2], &Config::default());
        assert!(
            one.contains(": 1 tool, ") && one.ends_with("  tools     t2\n  try it    taskwire call http://127.0.0.1:7/mcp t2\n"),
            "{one}"
        );
        let none = shown(&[], &Config::default());
        assert!(none.ends_with(":7/\n") && !none.contains("tools   "), "{none}");
    }
}
