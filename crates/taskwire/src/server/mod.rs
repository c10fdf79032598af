//! A server: an engine, its tools, and the wires that lead to them.

mod auth;
mod config;
mod work;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use taskwire_core::CallerId;
use tokio::{
    net::{TcpListener, UnixListener},
    sync::watch,
};

pub use crate::transport::bridge::{Bridge, Dial};
pub use auth::{Auth, Denied};
pub use config::{Config, HttpConfig, Initial, LegacyConfig, Mode};

use crate::{
    clock::{Clock, SystemClock},
    dialect::{Calls, Room, legacy, modern},
    engine::Engine,
    followup,
    store::{self, Store},
    tool::{Provider, ReadyTool},
    transport::{self, bodies::Bodies},
};

/// What every request needs.
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) provider: Arc<dyn Provider>,
    /// The tools by which callers without tasks get on; none if they are turned off.
    pub(crate) followups: Arc<[Arc<ReadyTool>]>,
    pub(crate) config: Config,
    /// Name and version of this server, as results of the modern era carry them.
    pub(crate) modern_meta: String,
    /// What listeners of the modern era were last shown.
    pub(crate) shown: modern::Shown,
    /// Sessions of the legacy era.
    pub(crate) sessions: legacy::Sessions,
    /// Calls that wait for their work, and work that was left.
    pub(crate) calls: Calls,
    /// Room for answers that have the whole output of a task.
    pub(crate) room: Room,
    /// Open listen streams of each caller.
    listens: Counts,
    /// Requests of each caller that wait for something to happen.
    waits: Counts,
    /// The room for messages on HTTP.
    pub(crate) bodies: Arc<Bodies>,
    /// Open HTTP connections.
    pub(crate) connections: watch::Sender<usize>,
    /// Set once, when the server begins to shut down.
    pub(crate) draining: watch::Sender<bool>,
}

/// A running server; cheap to clone.
#[derive(Clone)]
pub struct Server(pub(crate) Arc<Shared>);

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("name", &self.0.config.name).finish_non_exhaustive()
    }
}

impl Server {
    /// Starts a server on `store`. Give it a wire with [`serve`](Self::serve) or [`serve_stdio`](Self::serve_stdio); then
    /// it takes over the tasks that an earlier life left, so have all tools ready by then.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn start(provider: impl Provider, store: impl Store, config: Config) -> Result<Self, store::Error> {
        Self::start_with_clock(provider, store, config, Arc::new(SystemClock))
    }

    /// As [`start`](Self::start), with another clock.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn start_with_clock(
        provider: impl Provider,
        store: impl Store,
        config: Config,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, store::Error> {
        let engine = Engine::start(store, clock, config.engine.clone())?;
        let provider: Arc<dyn Provider> = Arc::new(provider);
        let draining = watch::Sender::new(false);
        let settings = followup::Settings { hold: config.hold, bytes: config.inline_bytes, draining: draining.subscribe() };
        let followups: Arc<[_]> = if config.followups { followup::tools(&settings).into() } else { Arc::default() };
        engine.set_work(Arc::new(work::ToolWork::new(provider.clone(), followups.clone())));
        let modern_meta = modern::server_meta(&config.name, &config.version);
        let room = Room::new(engine.limits().task_output_bytes);
        let bodies = Bodies::new(&config);
        Ok(Self(Arc::new(Shared {
            engine,
            provider,
            followups,
            config,
            modern_meta,
            shown: modern::Shown::default(),
            sessions: legacy::Sessions::default(),
            calls: Calls::default(),
            room,
            listens: Counts::default(),
            waits: Counts::default(),
            bodies,
            connections: watch::Sender::new(0),
            draining,
        })))
    }

    /// The engine behind it.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// Serves Streamable HTTP on `listener` until `shutdown` is ready, then drains: no new calls, listeners are told,
    /// running work gets `drain` to finish. What is still running then is taken over by the next start.
    ///
    /// # Errors
    /// When the store has failed: nothing can be promised any more, and only a restart helps.
    pub async fn serve(&self, listener: TcpListener, shutdown: impl Future<Output = ()>) -> std::io::Result<()> {
        self.begin();
        let accept = transport::http::accept(self.clone(), listener);
        tokio::pin!(accept);
        tokio::select! {
            never = &mut accept => match never {},
            () = shutdown => {}
            reason = self.0.engine.failed() => return Err(std::io::Error::other(format!("the store failed: {reason}"))),
        }
        tokio::select! {
            never = accept => match never {},
            () = self.drain() => Ok(()),
        }
    }

    /// Serves one client on this process's standard input and output, until the input ends or `shutdown` is ready.
    ///
    /// # Errors
    /// When the streams cannot be used or the store has failed.
    pub async fn serve_stdio(&self, shutdown: impl Future<Output = ()>) -> std::io::Result<()> {
        // The process has no other wire, so that its server shuts down with this one.
        let shutdown = async {
            shutdown.await;
            self.0.draining.send_replace(true);
        };
        self.serve_stream(tokio::io::stdin(), tokio::io::stdout(), shutdown).await
    }

    /// Serves one client on a pair of byte streams, one message a line.
    ///
    /// # Errors
    /// When the streams cannot be used or the store has failed.
    pub async fn serve_stream(
        &self,
        input: impl tokio::io::AsyncRead + Send + Unpin,
        output: impl tokio::io::AsyncWrite + Send + Unpin + 'static,
        shutdown: impl Future<Output = ()>,
    ) -> std::io::Result<()> {
        self.begin();
        tokio::select! {
            result = transport::stdio::run(self.clone(), input, output, shutdown) => result,
            reason = self.0.engine.failed() => Err(std::io::Error::other(format!("the store failed: {reason}"))),
        }
    }

    /// Serves processes of the same user that join this server, on a socket that nobody else can open, until `shutdown` is ready. They are
    /// cut off then and come back to whoever serves next; what they called for goes on, and is durable when this returns.
    pub async fn serve_local(&self, listener: UnixListener, shutdown: impl Future<Output = ()>) {
        self.begin();
        transport::http::accept_local(self, listener, shutdown).await;
    }

    /// Takes over what an earlier life of the server left. Calls that are the same find it again.
    fn begin(&self) {
        let shared = Arc::downgrade(&self.0);
        self.0.engine.begin_with(move |task| {
            if let Some(shared) = shared.upgrade() {
                shared.calls.taken_over(&shared, task);
            }
        });
    }

    /// Begins to shut down and waits for running work and open connections, at most as long as configured.
    async fn drain(&self) {
        self.0.draining.send_replace(true);
        let patience = self.0.engine.clock().sleep(self.0.config.drain);
        let connections = async {
            let _ = self.0.connections.subscribe().wait_for(|open| *open == 0).await;
        };
        tokio::select! {
            _ = futures_util::future::join(self.0.engine.idle(), connections) => {}
            () = patience => tracing::warn!(running = self.0.engine.running(), "still running: taken over by the next start"),
        }
    }
}

impl Shared {
    /// Waits until the server begins to shut down.
    pub(crate) async fn drained(&self) {
        let _ = self.draining.subscribe().wait_for(|draining| *draining).await;
    }

    /// Counts one more listen stream of `caller`, unless it has as many as it may.
    pub(crate) fn open_listen(&self, caller: &CallerId) -> Option<Open> {
        self.listens.open(caller, self.config.listens_per_caller)
    }

    /// Counts one more request of `caller` that waits, unless there are as many as there may be.
    pub(crate) fn open_wait(&self, caller: &CallerId) -> Option<Open> {
        self.waits.open(caller, self.config.waits_per_caller)
    }
}

/// How many of something each caller has open.
#[derive(Default, Clone)]
struct Counts(Arc<Mutex<HashMap<CallerId, usize>>>);

impl Counts {
    fn open(&self, caller: &CallerId, max: usize) -> Option<Open> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match counts.get_mut(caller) {
            Some(count) if *count >= max => return None,
            Some(count) => *count += 1,
            None if max == 0 => return None,
            None => drop(counts.insert(caller.clone(), 1)),
        }
        Some(Open { counts: self.clone(), caller: caller.clone() })
    }
}

/// One of what a caller has open, counted as long as this lives.
pub(crate) struct Open {
    counts: Counts,
    caller: CallerId,
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut counts = self.counts.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.caller);
            }
        }
    }
}
