//! Sessions of the legacy era: `initialize`, and adopting the session of another process.

use std::{
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use serde_json::{Value, json};
use taskwire_core::Payload;
use tokio::task::AbortHandle;

use super::{LegacyClient, VERSIONS, session_stream};
use crate::client::{
    Era, Error, ServerInfo,
    link::{self, RequestError},
    modern::{IDEMPOTENCY, PARTIALS},
    wire::{Exchange, OutgoingRequest},
};

/// How long the first request waits for the session stream: the server may lose messages that it sends before that is open.
const SESSION_STREAM_WAIT: Duration = Duration::from_secs(2);

pub(crate) struct Session {
    /// Its id, if the server assigned one.
    pub(super) id: Option<String>,
    version: String,
    /// The start of the server's program that it belongs to.
    pub(super) generation: u64,
    /// Which of this client's sessions it is, from 0.
    pub(super) serial: u64,
    /// Whether another process began it and may still use it.
    pub(super) adopted: bool,
    session_stream: Mutex<Option<AbortHandle>>,
}

impl Session {
    /// The headers of each request in it.
    pub(super) fn headers(&self) -> Vec<(String, String)> {
        let mut headers = vec![("MCP-Protocol-Version".to_owned(), self.version.clone())];
        headers.extend(self.id.iter().map(|id| ("Mcp-Session-Id".to_owned(), id.clone())));
        headers
    }

    pub(super) fn stop(&self) {
        if let Some(stream) = self.session_stream.lock().unwrap_or_else(PoisonError::into_inner).take() {
            stream.abort();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The exchange of `initialize`. If the handshake fails or is dropped half way, it ends the byte stream: a server accepts `initialize`
/// once on each, so the next session needs another one.
struct Handshake {
    exchange: Exchange,
    is_complete: bool,
}

impl Drop for Handshake {
    fn drop(&mut self) {
        if !self.is_complete {
            self.exchange.end_stream("the client did not complete the handshake");
        }
    }
}

impl LegacyClient {
    /// The current session; begins one if there is none.
    pub(super) async fn session(&self) -> Result<Arc<Session>, RequestError> {
        let mut current = self.session.lock().await;
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed.into());
        }
        let generation = self.link.wire.ready().await?;
        if let Some(session) = current.as_ref().filter(|session| session.generation == generation) {
            return Ok(session.clone());
        }
        let serial = self.sessions_begun.load(Ordering::Relaxed);
        let session = self.link.with_timeout(self.link.options.timing.request, self.initialize(generation, serial)).await?;
        Ok(self.enter(&mut current, session).await)
    }

    /// The current session. While none can be begun, it tries again.
    pub(super) async fn session_with_retries(&self) -> Result<Arc<Session>, RequestError> {
        self.link.retry(|| self.session(), |_, _| {}).await
    }

    /// Switches to the session that the options name, because a task may be bound to it. False if there is none, or it was
    /// tried before.
    pub(super) async fn adopt(&self) -> Result<bool, RequestError> {
        let Some(id) = self.link.options.session.clone().filter(|_| self.link.wire.http().is_some()) else { return Ok(false) };
        if self.adoption_tried.swap(true, Ordering::Relaxed) {
            return Ok(false);
        }
        let fresh = self.session_with_retries().await?;
        let mut current = self.session.lock().await;
        let (version, generation) = (fresh.version.clone(), fresh.generation);
        fresh.stop();
        if let (Some(me), Some(_)) = (self.me(), &fresh.id) {
            let headers = fresh.headers();
            self.link.send_in_background(async move {
                if let Some(http) = me.link.wire.http() {
                    let _ = http.delete(headers).await;
                }
            });
        }
        // It replaces the first session, in which nothing has happened.
        let session = Session { id: Some(id), version, generation, serial: fresh.serial, adopted: true, session_stream: Mutex::default() };
        self.enter(&mut current, session).await;
        Ok(true)
    }

    /// Makes `session` the current one and opens its session stream.
    async fn enter(&self, current: &mut Option<Arc<Session>>, session: Session) -> Arc<Session> {
        let serial = session.serial;
        self.sessions_begun.store(serial + 1, Ordering::Relaxed);
        let tag = session.id.clone().unwrap_or_else(|| crate::client::random_id().unwrap_or_default());
        self.tags.lock().unwrap_or_else(PoisonError::into_inner).insert(serial, tag);
        let session = Arc::new(session);
        *current = Some(session.clone());
        if let (Some(me), Some(_)) = (self.me(), self.link.wire.http()) {
            let (handle, opened) = session_stream::open(&me, session.headers());
            *session.session_stream.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
            tokio::select! {
                _ = opened => {}
                () = self.link.options.clock.sleep(SESSION_STREAM_WAIT) => {}
            }
        }
        session
    }

    pub(super) async fn forget(&self, session: &Arc<Session>) {
        let mut current = self.session.lock().await;
        if current.as_ref().is_some_and(|known| Arc::ptr_eq(known, session)) {
            session.stop();
            *current = None;
        }
    }

    async fn initialize(&self, generation: u64, serial: u64) -> Result<Session, RequestError> {
        let options = &self.link.options;
        let mut capabilities = options.capabilities.to_json();
        let mut tasks = json!({"responses": {"modes": ["task", "immediate"]}});
        if options.stream_output {
            tasks = json!({"streaming": {"partial": {}}, "responses": {"modes": ["task", "immediate", "streaming"]}});
        }
        capabilities["tasks"] = tasks;
        capabilities["experimental"] = json!({IDEMPOTENCY: {}});
        if options.stream_output {
            capabilities["experimental"][PARTIALS] = json!({});
        }
        let params = json!({
            "protocolVersion": VERSIONS[0],
            "capabilities": capabilities,
            "clientInfo": {"name": options.name, "version": options.version},
        });
        let id = self.link.next_id();
        let body = link::request(id, "initialize", &params);
        let exchange =
            self.link.wire.request(OutgoingRequest { id, body, headers: Vec::new(), cancel: None, generation: Some(generation) }).await?;
        let mut handshake = Handshake { exchange, is_complete: false };
        let result = link::read_response(&mut handshake.exchange, id, |message| self.dispatch(message, None)).await?;
        let peer = self.read_initialize_result(&result)?;
        let version = peer.protocol.clone();
        *self.server_info.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(peer);
        let id = handshake.exchange.session().map(str::to_owned);
        let session = Session { id, version, generation, serial, adopted: false, session_stream: Mutex::default() };
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
        self.link.wire.send_one_way(ready, session.headers(), Some(generation)).await?;
        handshake.is_complete = true;
        Ok(session)
    }

    fn read_initialize_result(&self, result: &Payload) -> Result<ServerInfo, RequestError> {
        let value: Value =
            result.read().map_err(|error| RequestError::Protocol(format!("the answer to `initialize` cannot be read: {error}")))?;
        let version = value["protocolVersion"]
            .as_str()
            .ok_or_else(|| RequestError::Protocol("`initialize` is answered without a version".to_owned()))?;
        if !VERSIONS.contains(&version) {
            return Err(Error::Version { server: self.link.server.clone(), supported: version.to_owned() }.into());
        }
        Ok(read_peer(version, &value))
    }
}

/// Reads the result of `initialize`; without capabilities if it is null.
pub(super) fn read_peer(version: &str, value: &Value) -> ServerInfo {
    let capabilities = &value["capabilities"];
    // Tasks came with the latest version.
    let tasks = if version == VERSIONS[0] { capabilities["tasks"].clone() } else { Value::Null };
    let modes = tasks["responses"]["modes"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    ServerInfo {
        era: Era::Legacy,
        protocol: version.to_owned(),
        name: value["serverInfo"]["name"].as_str().unwrap_or_default().to_owned(),
        version: value["serverInfo"]["version"].as_str().unwrap_or_default().to_owned(),
        instructions: value["instructions"].as_str().map(str::to_owned),
        tasks: tasks["requests"]["tools"]["call"].is_object(),
        pushes_output: tasks["streaming"]["partial"].is_object(),
        idempotency: capabilities["experimental"][IDEMPOTENCY].is_object(),
        lists_tasks: tasks["list"].is_object(),
        response_modes: modes,
        capabilities: capabilities.clone(),
    }
}
