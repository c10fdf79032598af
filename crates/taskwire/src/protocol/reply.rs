//! What an era returns to the transport: a response, or an error as a `Fault`.

use bytes::Bytes;
use serde_json::Value;
use taskwire_core::{
    SessionId,
    task::{Reject, RpcError},
    wire::{RequestId, code, write_error},
};

use super::json;
use crate::engine;

/// A response. Only HTTP uses the status.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
    pub(crate) on_sent: Option<OnSent>,
    /// The session that this response begins.
    pub(crate) session: Option<SessionId>,
    /// What `WWW-Authenticate` tells a client whose token is not enough.
    pub(crate) challenge: Option<Box<str>>,
}

impl Reply {
    pub(crate) fn new(status: u16, body: Vec<u8>) -> Self {
        Self { status, body: body.into(), on_sent: None, session: None, challenge: None }
    }

    pub(crate) fn result(id: &RequestId, result: &[u8]) -> Self {
        let mut body = Vec::with_capacity(result.len() + 64);
        body.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
        json::write(&mut body, id);
        body.extend_from_slice(b",\"result\":");
        body.extend_from_slice(result);
        body.push(b'}');
        Self::new(200, body)
    }

    pub(crate) fn on_sent(mut self, sent: Option<OnSent>) -> Self {
        self.on_sent = sent;
        self
    }

    /// Keeps `kept` alive for as long as any of the body is in memory.
    pub(crate) fn with_guard<T: Send + 'static>(mut self, kept: T) -> Self {
        struct Kept<T> {
            body: Bytes,
            _kept: T,
        }
        impl<T> AsRef<[u8]> for Kept<T> {
            fn as_ref(&self) -> &[u8] {
                &self.body
            }
        }
        self.body = Bytes::from_owner(Kept { body: self.body, _kept: kept });
        self
    }

    pub(crate) fn fault(id: Option<&RequestId>, fault: &Fault) -> Self {
        let mut body = Vec::with_capacity(256);
        if let Err(error) = write_error(&mut body, id, &fault.error) {
            tracing::error!(%error, "an error could not be written");
        }
        Self { challenge: fault.challenge.clone(), ..Self::new(fault.status, body) }
    }

    /// A handler panicked; the panic has been printed.
    pub(crate) fn panicked(id: Option<&RequestId>) -> Self {
        Self::fault(id, &Fault::internal("the request could not be answered: a handler panicked"))
    }

    /// The empty response to a notification.
    pub(crate) fn accepted() -> Self {
        Self::new(202, Vec::new())
    }
}

/// What to do when a response was sent, or when it never will be.
pub(crate) struct OnSent(Option<Box<dyn FnOnce(bool) + Send + Sync>>);

impl std::fmt::Debug for OnSent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnSent")
    }
}

impl OnSent {
    /// Calls `act` with `true` when the response is on its way, with `false` if it is dropped.
    pub(crate) fn new(act: impl FnOnce(bool) + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(act)))
    }

    pub(crate) fn sent(mut self) {
        if let Some(act) = self.0.take() {
            act(true);
        }
    }
}

impl Drop for OnSent {
    fn drop(&mut self) {
        if let Some(act) = self.0.take() {
            act(false);
        }
    }
}

/// An error response.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fault {
    pub(crate) status: u16,
    pub(crate) error: RpcError,
    /// What `WWW-Authenticate` tells a client whose token is not enough.
    pub(crate) challenge: Option<Box<str>>,
}

impl Fault {
    pub(crate) fn new(status: u16, code: i64, message: impl Into<String>) -> Self {
        Self::of(status, RpcError { code, message: message.into(), data: None })
    }

    pub(crate) fn of(status: u16, error: RpcError) -> Self {
        Self { status, error, challenge: None }
    }

    pub(crate) fn with_data(mut self, data: Value) -> Self {
        self.error.data = Some(data.into());
        self
    }

    /// The parameters are invalid.
    pub(crate) fn params(message: impl Into<String>) -> Self {
        Self::new(200, code::INVALID_PARAMS, message)
    }

    /// What every request must declare in `_meta` is missing or invalid.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, code::INVALID_PARAMS, message)
    }

    pub(crate) fn header(message: impl Into<String>) -> Self {
        Self::new(400, code::HEADER_MISMATCH, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(200, code::INTERNAL_ERROR, message)
    }

    pub(crate) fn missing_capability(required: &Value) -> Self {
        Self::new(400, code::MISSING_CAPABILITY, format!("this request needs client capabilities that it does not declare: {required}"))
            .with_data(serde_json::json!({ "requiredCapabilities": required }))
    }

    /// The token of the request is not enough, for a reason that the challenge says too.
    pub(crate) fn challenged(status: u16, message: impl Into<String>, challenge: Option<String>) -> Self {
        Self { challenge: challenge.map(Into::into), ..Self::new(status, code::INVALID_REQUEST, message) }
    }

    /// A limit of simultaneous requests is reached; the client may retry soon.
    pub(crate) fn busy(message: impl Into<String>) -> Self {
        Self::new(429, code::LIMIT_REACHED, message)
    }

    pub(crate) fn limit(message: impl Into<String>) -> Self {
        Self::new(200, code::LIMIT_REACHED, message)
    }
}

impl From<RpcError> for Fault {
    fn from(error: RpcError) -> Self {
        let status = if error.code == code::MISSING_CAPABILITY { 400 } else { 200 };
        Self::of(status, error)
    }
}

impl From<engine::Error> for Fault {
    fn from(error: engine::Error) -> Self {
        match error {
            // The disk is full: no fault of the caller, and it may pass.
            engine::Error::Rejected(reject @ Reject::Limit { key: "disk_reserve_bytes", .. }) => {
                Self::new(503, code::UNAVAILABLE, reject.to_string())
            }
            engine::Error::Rejected(reject @ Reject::Limit { .. }) => Self::limit(reject.to_string()),
            engine::Error::Rejected(reject) => Self::params(reject.to_string()),
            engine::Error::Unavailable(_) | engine::Error::Away | engine::Error::Full => {
                Self::new(503, code::UNAVAILABLE, error.to_string())
            }
            engine::Error::Corrupt(_) => Self::internal(error.to_string()),
        }
    }
}

impl From<serde_json::Error> for Fault {
    fn from(error: serde_json::Error) -> Self {
        Self::internal(format!("the answer could not be written: {error}"))
    }
}
