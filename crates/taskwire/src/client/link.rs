//! What both eras need of a connection: request ids, timeouts, retries.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use serde::Serialize;
use serde_json::{Map, Value};
use taskwire_core::{
    Payload,
    task::RpcError,
    wire::{RequestId, code},
};
use tokio::sync::watch;

use super::{
    Error, Options,
    error::shortened,
    wire::{Backoff, Exchange, Http, Message, Wire, WireError, random},
};

/// The `_meta` key that makes a server run a call once, however often it is sent.
pub(crate) const IDEMPOTENCY_KEY: &str = "dev.taskwire/idempotencyKey";

/// How often in a row a program may end instead of responding.
const ENDS_MAX: usize = 3;

const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a request has no result.
#[derive(Debug, Clone)]
pub(crate) enum RequestError {
    /// There was no response.
    Wire(WireError),
    /// The response is an error.
    Rpc(RpcError),
    /// The response breaks the protocol.
    Protocol(String),
    /// Something failed on this side.
    Local(Error),
}

impl From<WireError> for RequestError {
    fn from(lost: WireError) -> Self {
        Self::Wire(lost)
    }
}

impl From<Error> for RequestError {
    fn from(error: Error) -> Self {
        Self::Local(error)
    }
}

impl RequestError {
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Wire(lost) => lost.is_transient(),
            // Taskwire servers respond with it when they shut down.
            Self::Rpc(error) => error.code == code::UNAVAILABLE,
            Self::Protocol(_) | Self::Local(_) => false,
        }
    }

    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Wire(lost) => lost.reason(),
            Self::Rpc(error) => format!("{} (code {})", error.message, error.code),
            Self::Protocol(reason) => reason.clone(),
            Self::Local(error) => error.to_string(),
        }
    }

    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Wire(lost) => lost.retry_after(),
            Self::Rpc(_) | Self::Protocol(_) | Self::Local(_) => None,
        }
    }

    /// Whether the server does not know the task.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Rpc(error) if error.code == code::INVALID_PARAMS)
    }
}

/// A member of an error's data. It identifies the error better than the code, which differed between drafts.
pub(crate) fn error_data(error: &RpcError, key: &str) -> Option<Value> {
    error.data.as_ref()?.read::<Value>().ok()?.get(key).cloned()
}

/// The versions that a server supports, if the error lists them.
pub(crate) fn supported_versions(error: &RpcError) -> Option<Vec<String>> {
    let versions = error_data(error, "supported")?;
    Some(versions.as_array()?.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

/// A connection to a server.
pub(crate) struct Link {
    pub(crate) wire: Wire,
    pub(crate) options: Arc<Options>,
    /// The server's name in errors and references.
    pub(crate) server: String,
    ids: AtomicI64,
    /// The number of [`PendingGuard`]s.
    pending: watch::Sender<usize>,
    /// Whether the client stops without cancelling its calls.
    pub(crate) detached: AtomicBool,
}

/// While it lives, [`Link::flush`] waits.
pub(crate) struct PendingGuard(Arc<Link>);

impl Drop for PendingGuard {
    fn drop(&mut self) {
        self.0.pending.send_modify(|count| *count -= 1);
    }
}

impl Link {
    pub(crate) fn new(wire: Wire, options: Arc<Options>, server: String) -> Self {
        Self { wire, options, server, ids: AtomicI64::new(1), pending: watch::Sender::new(0), detached: AtomicBool::new(false) }
    }

    pub(crate) fn pending_guard(self: &Arc<Self>) -> PendingGuard {
        self.pending.send_modify(|count| *count += 1);
        PendingGuard(self.clone())
    }

    /// Sends in the background. [`flush`](Self::flush) waits for it.
    pub(crate) fn send_in_background(self: &Arc<Self>, sending: impl Future<Output = ()> + Send + 'static) {
        let guard = self.pending_guard();
        if !self.detached.load(Ordering::Relaxed)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move {
                sending.await;
                drop(guard);
            });
        }
    }

    /// Waits, but not for long, until all background sending is done.
    pub(crate) async fn flush(&self) {
        let mut pending = self.pending.subscribe();
        tokio::select! {
            biased;
            _ = pending.wait_for(|count| *count == 0) => {}
            () = self.options.clock.sleep(FLUSH_TIMEOUT) => {}
        }
    }

    pub(crate) fn next_id(&self) -> i64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn error(&self, failed: RequestError) -> Error {
        let server = self.server.clone();
        match failed {
            RequestError::Wire(lost) => lost.into_error(&self.server),
            RequestError::Rpc(error) => match (supported_versions(&error), error_data(&error, "requiredCapabilities")) {
                (Some(versions), _) => Error::Version { server, supported: versions.join(", ") },
                (None, Some(Value::Object(needed))) => Error::Capability { server, needed: names(&needed) },
                _ => Error::Rpc(error),
            },
            RequestError::Protocol(reason) => Error::Protocol { server, reason: shortened(&reason) },
            RequestError::Local(error) => error,
        }
    }

    /// An error about a task.
    pub(crate) fn task_error(&self, task: &str, failed: RequestError) -> Error {
        if failed.is_not_found() { Error::TaskNotFound { task: task.to_owned() } } else { self.error(failed) }
    }

    /// Waits for `future`, at most for `span`.
    pub(crate) async fn with_timeout<T>(
        &self,
        span: Duration,
        future: impl Future<Output = Result<T, RequestError>>,
    ) -> Result<T, RequestError> {
        tokio::pin!(future);
        loop {
            tokio::select! {
                result = &mut future => return result,
                // A person who signs in may take longer.
                () = self.options.clock.sleep(span) => if !self.wire.http().is_some_and(Http::signs_in) {
                    return Err(WireError::Interrupted(format!("no answer within {} s", span.as_secs())).into());
                }
            }
        }
    }

    /// Tries until it works, fails for good, or the give-up time has passed. It reports each failure to `lost`.
    pub(crate) async fn retry<T, F: Future<Output = Result<T, RequestError>>>(
        &self,
        mut try_once: impl FnMut() -> F,
        mut lost: impl FnMut(String, Duration),
    ) -> Result<T, RequestError> {
        let mut backoff = Backoff::new(self.options.timing);
        let mut ends = 0;
        loop {
            let failed = match try_once().await {
                Err(failed) if failed.is_transient() => failed,
                result => return result,
            };
            // A program that ends at each of these requests will end at the next one, too.
            ends = if matches!(failed, RequestError::Wire(WireError::ProgramEnded(_))) { ends + 1 } else { 0 };
            if ends == ENDS_MAX {
                return Err(failed);
            }
            let Some(wait) = backoff.next(self.options.clock.now(), failed.retry_after(), random()) else { return Err(failed) };
            lost(failed.reason(), wait);
            self.options.clock.sleep(wait).await;
        }
    }
}

/// Cancels a call when it is dropped, unless it was disarmed. Only over HTTP, where closing the stream may not cancel: on lines the
/// exchange itself sends the notification.
pub(crate) struct CancelOnDrop {
    link: Arc<Link>,
    cancelling: Option<BoxFuture<'static, ()>>,
}

impl CancelOnDrop {
    pub(crate) fn new(link: &Arc<Link>, cancelling: impl Future<Output = ()> + Send + 'static) -> Self {
        let cancelling = link.wire.http().map(|_| cancelling.boxed());
        Self { link: link.clone(), cancelling }
    }

    pub(crate) fn disarm(&mut self) {
        self.cancelling = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(cancelling) = self.cancelling.take() {
            self.link.send_in_background(cancelling);
        }
    }
}

/// Waits for the future, or for ever if there is none.
pub(crate) async fn if_any<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Waits for the response to request `id`; other messages go to `aside`.
pub(crate) async fn read_response(exchange: &mut Exchange, id: i64, mut aside: impl FnMut(Message)) -> Result<Payload, RequestError> {
    loop {
        match exchange.next().await? {
            None => return Err(ended_without_answer(exchange.status()).into()),
            Some(message) => match match_response(id, message) {
                Ok(outcome) => return outcome.map_err(RequestError::Rpc),
                Err(Message::Response { .. }) => tracing::debug!("an answer to another request is passed over"),
                Err(message) => aside(message),
            },
        }
    }
}

pub(crate) fn ended_without_answer(status: u16) -> WireError {
    if status >= 400 {
        WireError::Status { status, reason: String::new(), retry_after: None }
    } else {
        WireError::Interrupted("the answer broke off".to_owned())
    }
}

/// The outcome of request `id` if the message is its response, else the message. An error without an id belongs to the
/// request whose stream it came on.
pub(crate) fn match_response(id: i64, message: Message) -> Result<Result<Payload, RpcError>, Message> {
    match message {
        Message::Response { id: Some(RequestId::Number(number)), outcome } if number == id => Ok(outcome),
        Message::Response { id: None, outcome: Err(error) } => Ok(Err(error)),
        message => Err(message),
    }
}

pub(crate) fn request(id: i64, method: &str, params: &impl Serialize) -> String {
    serde_json::json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

pub(crate) fn notification(method: &str, params: &Value) -> String {
    serde_json::json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string()
}

/// `notifications/cancelled`. It carries the idempotency key, because a Taskwire server stops a call that has one only by
/// its key.
pub(crate) fn cancel_notification(id: i64, params: &Map<String, Value>) -> String {
    let mut cancelled = serde_json::json!({"requestId": id});
    if let Some(key) = params.get("_meta").and_then(|meta| meta.get(IDEMPOTENCY_KEY)) {
        cancelled["_meta"] = serde_json::json!({IDEMPOTENCY_KEY: key});
    }
    notification("notifications/cancelled", &cancelled)
}

/// The names of capabilities, with those of the extensions.
fn names(capabilities: &Map<String, Value>) -> String {
    let mut names = Vec::new();
    for (name, value) in capabilities {
        match value.as_object().filter(|_| name == "extensions") {
            Some(extensions) => names.extend(extensions.keys().cloned()),
            None => names.push(name.clone()),
        }
    }
    names.join(", ")
}
