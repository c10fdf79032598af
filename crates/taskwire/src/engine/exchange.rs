//! What a run and the call that waits for it exchange.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use taskwire_core::{
    Payload, TaskId,
    task::{Outcome, Progress},
};

/// How work ended.
#[derive(Debug, Clone)]
pub enum RunEnd {
    /// As a task ends.
    Outcome(Outcome),
    /// It asks its caller to call again with the answers to this.
    Suspended(Payload),
}

/// What a caller sent along when it called again with answers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Continuation {
    /// Its answers, by key.
    #[serde(rename = "responses")]
    pub answers: BTreeMap<String, Payload>,
    /// The state that the tool wanted back.
    pub state: Option<Payload>,
}

impl Continuation {
    /// For the task's log, so that a later attempt has it too; `None` if it is empty.
    pub(super) fn to_payload(&self) -> Option<Payload> {
        let has_content = !self.answers.is_empty() || self.state.is_some();
        has_content.then(|| Payload::of(self).expect("it consists of JSON already"))
    }
}

/// A message to the caller of an open call; it is not stored.
#[derive(Debug, Clone)]
pub enum CallNote {
    /// How far the work is.
    Progress {
        /// In numbers.
        progress: Progress,
        /// In words.
        message: Option<Arc<str>>,
    },
    /// A status message without progress.
    Status(Arc<str>),
    /// A log message.
    Log {
        /// Its severity, as in syslog: `debug` to `emergency`.
        level: &'static str,
        /// The name of the logger.
        logger: Option<String>,
        /// The message.
        data: Payload,
    },
    /// The server may close the connection, if the caller can resume: it should reconnect after this time.
    Disconnect(Duration),
}

/// The phase of a run, for the call that waits for it.
#[derive(Debug, Clone)]
pub enum Phase {
    /// In memory.
    Loose,
    /// It became this task.
    Task(TaskId),
    /// It ended without ever being a task.
    Done(RunEnd),
}
