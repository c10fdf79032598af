//! What a dialect gives back to its transport.

use bytes::Bytes;
use serde_json::{Value, json};
use taskwire_core::{
    CallerId, TaskId,
    task::{Reject, RpcError},
    wire::{RequestId, code, write_error},
};

use crate::engine::{self, Engine};

/// A response: for HTTP with its status, for a byte stream without.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
    /// A task that the client does not know of before it has this response.
    pub(crate) orphan: Option<Orphan>,
}

impl Reply {
    pub(crate) fn fault(id: Option<&RequestId>, fault: &Fault) -> Self {
        let mut body = Vec::with_capacity(256);
        if let Err(error) = write_error(&mut body, id, &fault.error) {
            tracing::error!(%error, "an error could not be written");
        }
        Self { status: fault.status, body: body.into(), orphan: None }
    }

    /// A handler panicked; the panic has been printed.
    pub(crate) fn panicked(id: Option<&RequestId>) -> Self {
        Self::fault(id, &Fault::internal("the request could not be answered: a handler panicked"))
    }

    /// Nothing to say: a notification was taken.
    pub(crate) fn accepted() -> Self {
        Self { status: 202, body: Bytes::new(), orphan: None }
    }
}

/// A task whose handle has not reached its caller: dropped before it was delivered, the task is cancelled.
#[derive(Debug)]
pub(crate) struct Orphan(Option<(Engine, CallerId, TaskId)>);

impl Orphan {
    pub(crate) fn new(engine: Engine, caller: CallerId, id: TaskId) -> Self {
        Self(Some((engine, caller, id)))
    }

    /// The response is on its way: the task is its caller's now.
    pub(crate) fn delivered(mut self) {
        self.0 = None;
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        if let Some((engine, caller, id)) = self.0.take() {
            engine.abandon(caller, id);
        }
    }
}

/// An error response.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fault {
    pub(crate) status: u16,
    pub(crate) error: RpcError,
}

impl Fault {
    pub(crate) fn new(status: u16, code: i64, message: impl Into<String>) -> Self {
        Self { status, error: RpcError { code, message: message.into(), data: None } }
    }

    pub(crate) fn with_data(mut self, data: Value) -> Self {
        self.error.data = Some(data.into());
        self
    }

    /// What was asked is wrong in itself.
    pub(crate) fn params(message: impl Into<String>) -> Self {
        Self::new(200, code::INVALID_PARAMS, message)
    }

    /// What every request must say about itself is missing or wrong.
    pub(crate) fn meta(message: impl Into<String>) -> Self {
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
            .with_data(json!({ "requiredCapabilities": required }))
    }

    /// Too much at once: a little later it would be well.
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
        Self { status, error }
    }
}

impl From<engine::Error> for Fault {
    fn from(error: engine::Error) -> Self {
        match error {
            engine::Error::Rejected(reject @ Reject::Limit { .. }) => Self::limit(reject.to_string()),
            engine::Error::Rejected(reject) => Self::params(reject.to_string()),
            engine::Error::Unavailable(_) => Self::new(503, code::UNAVAILABLE, error.to_string()),
        }
    }
}

impl From<serde_json::Error> for Fault {
    fn from(error: serde_json::Error) -> Self {
        Self::internal(format!("the answer could not be written: {error}"))
    }
}
