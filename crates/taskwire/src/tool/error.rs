//! How a tool can fail, and how it can ask to be called again.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;
use serde_json::Value;
use taskwire_core::{
    Payload,
    task::{Outcome, Reject, RpcError},
    wire::code,
};

use super::{content::CallResult, question::Question};
use crate::engine::{self, RunEnd};

/// What a tool needs to know before it can go on, and the state that comes back with the answers.
#[derive(Debug, Clone, Default, Serialize)]
pub struct InputRequired {
    /// Questions by key.
    pub questions: BTreeMap<String, Payload>,
    /// Comes back with the answers, protected against change on the way.
    pub state: Option<Value>,
}

impl InputRequired {
    /// Asks one question.
    #[must_use]
    pub fn ask(key: &str, question: Question) -> Self {
        Self::default().and(key, question)
    }

    /// Asks one more question.
    #[must_use]
    pub fn and(mut self, key: &str, question: Question) -> Self {
        self.questions.insert(key.to_owned(), question.into_payload());
        self
    }

    /// Sets the state that comes back with the answers.
    #[must_use]
    pub fn with_state(mut self, state: Value) -> Self {
        self.state = Some(state);
        self
    }
}

/// Why a tool did not return a result.
///
/// Anything that is an error in Rust becomes one by `?`: its text goes to the caller as a result with `isError`, so that
/// a model can act on it.
#[derive(Debug)]
pub struct ToolError(ToolErrorKind);

#[derive(Debug)]
pub(crate) enum ToolErrorKind {
    Text(String),
    Protocol(RpcError),
    InputRequired(InputRequired),
    Stopped,
}

impl ToolError {
    /// The tool failed: the caller gets this text, marked as an error.
    #[must_use]
    pub fn new(text: impl fmt::Display) -> Self {
        Self(ToolErrorKind::Text(text.to_string()))
    }

    /// The call failed as a request: the caller gets a JSON-RPC error, a task ends as `failed`. With the code of an internal error
    /// (-32603), a caller that knows of no task gets a result in words instead, marked as an error.
    ///
    /// The code is sent as it is. One of your own lies outside -32768 to -32000: those are JSON-RPC's and MCP's.
    #[must_use]
    pub fn protocol(code: i64, message: impl Into<String>) -> Self {
        Self(ToolErrorKind::Protocol(RpcError { code, message: message.into(), data: None }))
    }

    /// The call needs a capability that the client did not declare, given as `ClientCapabilities`.
    #[must_use]
    pub fn missing_capability(required: Value) -> Self {
        let message = format!("this call needs client capabilities that were not declared: {required}");
        let data = serde_json::json!({ "requiredCapabilities": required });
        Self(ToolErrorKind::Protocol(RpcError { code: code::MISSING_CAPABILITY, message, data: Some(data.into()) }))
    }

    /// The tool must be called again with answers: by its caller, or, if the call has become a task, by the server once
    /// the task's questions are answered. Keys must differ from round to round.
    #[must_use]
    pub fn input_required(round: InputRequired) -> Self {
        Self(ToolErrorKind::InputRequired(round))
    }

    /// The call was stopped.
    #[must_use]
    pub fn stopped() -> Self {
        Self(ToolErrorKind::Stopped)
    }

    pub(crate) fn from_kind(kind: ToolErrorKind) -> Self {
        Self(kind)
    }

    pub(crate) fn into_kind(self) -> ToolErrorKind {
        self.0
    }

    pub(crate) fn into_end(self) -> RunEnd {
        match self.0 {
            ToolErrorKind::Text(text) => RunEnd::Outcome(CallResult::error(text).into_outcome()),
            ToolErrorKind::Protocol(error) => RunEnd::Outcome(Outcome::Failed(error)),
            ToolErrorKind::Stopped => RunEnd::Outcome(Outcome::Cancelled { reason: None }),
            ToolErrorKind::InputRequired(round) => RunEnd::Suspended(Payload::of(&round).expect("a round consists of JSON already")),
        }
    }
}

impl<E: std::error::Error> From<E> for ToolError {
    fn from(error: E) -> Self {
        Self::new(error)
    }
}

/// Converts an error of the engine that a tool met while it used its context.
pub(crate) fn from_engine(error: engine::Error) -> ToolError {
    match error {
        engine::Error::Rejected(Reject::Ended | Reject::Stale(_) | Reject::NotFound) => ToolError::stopped(),
        engine::Error::Rejected(reject) => ToolError::new(reject),
        engine::Error::Unavailable(reason) => ToolError::protocol(code::UNAVAILABLE, reason.to_string()),
        passing @ (engine::Error::Away | engine::Error::Full) => ToolError::protocol(code::UNAVAILABLE, passing.to_string()),
        engine::Error::Corrupt(reason) => ToolError::protocol(code::INTERNAL_ERROR, reason.to_string()),
    }
}
