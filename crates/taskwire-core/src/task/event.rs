//! What happened to a task. These shapes are stored: a change here is a change of the stored format.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    blocks::Blocks,
    state::{Spec, is_zero},
};
use crate::{
    id::{Attempt, Epoch, QuestionKey, Seq},
    payload::Payload,
};

/// About how many bytes an event takes in the store besides its content.
const EVENT_OVERHEAD_BYTES: u64 = 128;

/// How far a tool says it is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Done so far; grows.
    pub done: f64,
    /// All there is to do, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<f64>,
}

impl Eq for Progress {}

/// An error of the protocol: what a JSON-RPC error response carries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RpcError {
    /// The kind of error, as JSON-RPC and MCP number them.
    pub code: i64,
    /// What happened, for people.
    pub message: String,
    /// More, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Payload>,
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The tool returned.
    Completed {
        /// The tool's result, as the wire will carry it.
        result: Payload,
        /// Whether the tool says that it failed.
        is_error: bool,
    },
    /// The tool did not return.
    Failed(RpcError),
    /// The task was cancelled.
    Cancelled {
        /// Why, if known.
        reason: Option<Arc<str>>,
    },
}

/// One event of a task's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The task was made, and its first attempt begun.
    Created {
        /// What is fixed about it.
        spec: Arc<Spec>,
        /// The arguments of the call.
        #[serde(rename = "request")]
        arguments: Payload,
        /// The start of the server that made it.
        epoch: Epoch,
        /// What the caller sent along when it called again with answers.
        #[serde(rename = "carried", default, skip_serializing_if = "Option::is_none")]
        continuation: Option<Payload>,
        /// How long its first attempt had been running already.
        #[serde(default, skip_serializing_if = "is_zero")]
        spent_ms: u64,
    },
    /// Another attempt was begun.
    Started {
        /// Its number.
        attempt: Attempt,
        /// The start of the server that runs it.
        epoch: Epoch,
    },
    /// The attempt waits for a slot of its tool. Until `Dequeued` nothing of its work has begun.
    Queued,
    /// The attempt has a slot: its work begins.
    Dequeued,
    /// A chunk was written.
    Appended {
        /// Its number.
        seq: Seq,
        /// The number of its first block, from 1: `seqNr` of SEP-1905.
        first_block: u64,
        /// Its content blocks.
        blocks: Blocks,
    },
    /// The tool reported a status.
    #[serde(rename = "said")]
    StatusReported {
        /// In words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Arc<str>>,
        /// In numbers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        progress: Option<Progress>,
    },
    /// The tool asked its caller something.
    Asked {
        /// The question's key.
        key: QuestionKey,
        /// The question.
        request: Payload,
    },
    /// The caller answered.
    Answered {
        /// The question's key.
        key: QuestionKey,
        /// The answer.
        answer: Payload,
    },
    /// The tool saved a checkpoint.
    Saved {
        /// What the next attempt gets.
        checkpoint: Payload,
    },
    /// The tool returned.
    Completed {
        /// Its result.
        result: Payload,
        /// Whether the tool says that it failed.
        is_error: bool,
    },
    /// The tool did not return.
    Failed(RpcError),
    /// The task was cancelled.
    Cancelled {
        /// Why, if known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<Arc<str>>,
    },
    /// A call on a node waits for it, where nodes share the store.
    Joined {
        /// The node.
        epoch: Epoch,
        /// Nodes that are gone, and whose calls wait no longer.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        gone: Vec<Epoch>,
    },
    /// No call on a node waits for it any longer.
    Left {
        /// The node.
        epoch: Epoch,
    },
    /// Somebody has asked for it although no call waits.
    Touched,
    /// The task is to be forgotten.
    Expired,
}

impl Event {
    /// The outcome, if this event ends a task.
    #[must_use]
    pub fn outcome(&self) -> Option<Outcome> {
        match self {
            Self::Completed { result, is_error } => Some(Outcome::Completed { result: result.clone(), is_error: *is_error }),
            Self::Failed(error) => Some(Outcome::Failed(error.clone())),
            Self::Cancelled { reason } => Some(Outcome::Cancelled { reason: reason.clone() }),
            _ => None,
        }
    }

    /// About how many bytes it takes where it is stored. Chunks are counted by themselves.
    pub(super) fn stored_bytes(&self) -> u64 {
        let size = |payload: &Option<Payload>| payload.as_ref().map_or(0, |payload| payload.as_str().len());
        let bytes = match self {
            Self::Appended { .. } | Self::Expired => return 0,
            // The task's head and the keys to find it have the spec too.
            Self::Created { spec, arguments: request, continuation: carried, .. } => {
                3 * spec.bytes() + request.as_str().len() + size(carried)
            }
            Self::Started { .. } | Self::Queued | Self::Dequeued | Self::Joined { .. } | Self::Left { .. } | Self::Touched => 0,
            Self::StatusReported { message, .. } => message.as_ref().map_or(0, |message| message.len()),
            // The task's head has these too.
            Self::Asked { key, request } => 2 * (key.as_str().len() + request.as_str().len()),
            Self::Answered { key, answer } => key.as_str().len() + 2 * answer.as_str().len(),
            Self::Saved { checkpoint } => checkpoint.as_str().len(),
            Self::Completed { result, .. } => result.as_str().len(),
            Self::Failed(error) => error.message.len() + size(&error.data),
            Self::Cancelled { reason } => reason.as_ref().map_or(0, |reason| reason.len()),
        };
        EVENT_OVERHEAD_BYTES + bytes as u64
    }

    /// Whether callers see a difference in the task, beyond its output.
    #[must_use]
    pub const fn is_visible(&self) -> bool {
        !matches!(
            self,
            Self::Appended { .. }
                | Self::Saved { .. }
                | Self::Queued
                | Self::Dequeued
                | Self::Joined { .. }
                | Self::Left { .. }
                | Self::Touched
                | Self::Expired
        )
    }
}

impl From<Outcome> for Event {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Completed { result, is_error } => Self::Completed { result, is_error },
            Outcome::Failed(error) => Self::Failed(error),
            Outcome::Cancelled { reason } => Self::Cancelled { reason },
        }
    }
}
