//! A server: an engine, its tools, and the transports that lead to them.

mod work;

use std::{convert::Infallible, sync::Arc};

use tokio::{
    net::{TcpListener, UnixListener},
    sync::watch,
};

#[cfg(feature = "oauth-server")]
pub use crate::auth::{Introspection, InvalidIssuer, Issuer, Issuers};
#[cfg(feature = "traces")]
pub use crate::traces::Traces;
pub use crate::transport::bridge::{Bridge, Dial};
#[cfg(feature = "tls")]
pub use crate::transport::tls::{InvalidTls, Tls, TlsSettings};
pub use crate::{
    audit::{Audit, AuditAction, AuditEntry},
    auth::{
        Authenticate, Callers, Certificate, Denied, Identification, Identity, Network, ProtectedResource, RequestCredentials, ScopeRules,
        Scopes, Tokens, TrustedProxy,
    },
    config::{Config, FirstAnswer, HttpConfig, LegacyConfig, ResponseMode},
    engine::{Coalesce, Config as EngineConfig},
    protocol::METHODS,
};

use crate::{
    clock::{Clock, SystemClock},
    engine::Engine,
    followup,
    protocol::Context,
    store::{self, Store},
    tool::Provider,
    transport::{self, Endpoint},
};

/// A running server; cheap to clone.
#[derive(Clone)]
pub struct Server(Arc<Endpoint>);

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("name", &self.0.context.config.name).finish_non_exhaustive()
    }
}

impl Server {
    /// Starts a server on `store`. Give it a transport with [`serve`](Self::serve) or [`serve_stdio`](Self::serve_stdio). It then takes
    /// over the tasks that an earlier process left, so have all tools ready by then.
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
        #[cfg(feature = "traces")]
        if let Some(traces) = &config.traces {
            engine.set_tracer(crate::traces::Tracer::start(traces, engine.clock()));
        }
        let provider: Arc<dyn Provider> = Arc::new(provider);
        let draining = watch::Sender::new(false);
        let settings = followup::Settings { hold: config.hold, output_bytes: config.inline_bytes, draining: draining.subscribe() };
        let followups: Arc<[_]> = if config.followups { followup::tools(&settings).into() } else { Arc::default() };
        engine.set_work(Arc::new(work::ToolWork::new(provider.clone(), followups.clone())));
        Ok(Self(Arc::new(Endpoint::new(Context::new(engine, provider, followups, config, draining)))))
    }

    /// Waits until the server can no longer store anything, and says why. The server may be dropped meanwhile.
    pub fn failed(&self) -> impl Future<Output = Arc<str>> + Send + use<> {
        let engine = self.0.context.engine.clone();
        async move { engine.failed().await }
    }

    /// Waits until the server has shown that it works, for a watchdog: what is to be stored has its turn, or the server waits for its store,
    /// which it does for as long as that takes. Never ready if it hangs, or cannot store anything any more.
    pub async fn works(&self) {
        self.0.context.engine.turn().await;
    }

    /// The engine behind it. For tests that look at what is stored: nothing of it is promised.
    #[doc(hidden)]
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.0.context.engine
    }

    /// Serves Streamable HTTP on `listener` until `shutdown` is ready, then drains: it refuses new calls, ends listen streams, and gives
    /// running work `drain` to finish. The next start takes over what still runs then.
    ///
    /// # Errors
    /// When the store has failed: the server cannot store anything any more, and only a restart helps.
    pub async fn serve(&self, listener: TcpListener, shutdown: impl Future<Output = ()>) -> std::io::Result<()> {
        self.serve_until(transport::http::accept(self.0.clone(), listener), shutdown).await
    }

    /// As [`serve`](Self::serve), over TLS.
    ///
    /// # Errors
    /// When the store has failed: the server cannot store anything any more, and only a restart helps.
    #[cfg(feature = "tls")]
    pub async fn serve_tls(&self, listener: TcpListener, tls: Tls, shutdown: impl Future<Output = ()>) -> std::io::Result<()> {
        self.serve_until(transport::tls::accept(self.0.clone(), listener, tls), shutdown).await
    }

    async fn serve_until(&self, accept: impl Future<Output = Infallible>, shutdown: impl Future<Output = ()>) -> std::io::Result<()> {
        self.recover();
        tokio::pin!(accept);
        tokio::select! {
            never = &mut accept => match never {},
            () = shutdown => {}
            reason = self.0.context.engine.failed() => return Err(std::io::Error::other(format!("the store failed: {reason}"))),
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
        // The process has no other transport, so its server shuts down with this one.
        let shutdown = async {
            shutdown.await;
            self.begin_drain();
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
        self.recover();
        let ended = tokio::select! {
            result = transport::stdio::run(self.0.context.clone(), input, output, shutdown) => result,
            reason = self.0.context.engine.failed() => Err(std::io::Error::other(format!("the store failed: {reason}"))),
        };
        self.0.context.engine.flush_traces().await;
        ended
    }

    /// Serves processes of the same user that join this server, on a socket that nobody else can open, until `shutdown` is ready. Then
    /// they are cut off, and connect to the next server. Their calls go on, and are durable when this returns.
    pub async fn serve_local(&self, listener: UnixListener, shutdown: impl Future<Output = ()>) {
        self.recover();
        transport::http::accept_local(&self.0, listener, shutdown).await;
    }

    /// Serves `/metrics` and nothing else on `listener`, to everybody who can reach it, until `shutdown` is ready.
    pub async fn serve_metrics(&self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        tokio::select! {
            never = transport::scrape::accept(self.0.clone(), listener) => match never {},
            () = shutdown => {}
        }
    }

    /// Answers a request of an operator as `/api` does over HTTP: with a status and JSON. `target` is a path with its query. Whoever calls
    /// this is an admin.
    pub async fn answer_api(&self, method: &str, target: &str) -> (u16, Vec<u8>) {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let reply = transport::api::answer(&self.0, &Identity::local(), method, path, query).await;
        (reply.status, reply.body.to_vec())
    }

    /// Waits until an admin wants the server to drain (`POST /api/server/drain`), which is refused where nobody waits for it. Make
    /// `shutdown` ready then. False if the server is gone before.
    pub fn drain_requested(&self) -> impl Future<Output = bool> + Send + use<> {
        let mut requested = self.0.context.drain_requested.subscribe();
        async move { requested.wait_for(|requested| *requested).await.is_ok() }
    }

    /// Takes over the tasks that an earlier process left. Calls that are the same can join them.
    fn recover(&self) {
        let context = Arc::downgrade(&self.0.context);
        self.0.context.engine.recover_with(move |task| {
            let context = context.upgrade();
            Box::pin(async move {
                if let Some(context) = context {
                    context.calls.add_recovered(&context, task).await;
                }
            })
        });
    }

    /// Leaves the nodes that share the store: they take over at once what still runs here. Does nothing where no other node uses the store.
    pub async fn leave(&self) {
        self.0.context.engine.leave().await;
    }

    fn begin_drain(&self) {
        let Context { draining, drain_requested, engine, .. } = &*self.0.context;
        let is_first = !draining.send_replace(true);
        // An admin's wish is recorded already.
        if is_first && !*drain_requested.borrow() {
            engine.audit(AuditAction::Drain, |entry| AuditEntry { outcome: "the process was told to end".into(), ..entry });
        }
    }

    /// Begins to shut down, and waits for running work and open connections, at most for `drain`.
    async fn drain(&self) {
        self.begin_drain();
        self.0.context.engine.hand_over();
        let drain_timeout = self.0.context.engine.clock().sleep(self.0.context.config.drain);
        let connections = async {
            let _ = self.0.connections.subscribe().wait_for(|open| *open == 0).await;
        };
        tokio::select! {
            _ = futures_util::future::join(self.0.context.engine.idle(), connections) => {}
            () = drain_timeout => tracing::warn!(running = self.0.context.engine.running(), "still running: taken over by the next start"),
        }
        self.leave().await;
        self.0.context.engine.flush_traces().await;
    }
}
