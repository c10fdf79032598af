//! What a run and the call that waits for it tell each other.

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
    /// It cannot go on before its caller calls again and brings what is asked for here.
    Suspended(Payload),
}

/// What a caller that was asked for something brought along when it called again.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Continuation {
    /// Its answers, by key.
    #[serde(rename = "responses")]
    pub answers: BTreeMap<String, Payload>,
    /// What the work itself wanted to be given back.
    pub state: Option<Payload>,
}

impl Continuation {
    /// As a task keeps it, so that a later attempt has it too.
    pub(super) fn to_payload(&self) -> Option<Payload> {
        let brought = !self.answers.is_empty() || self.state.is_some();
        brought.then(|| Payload::of(self).expect("it consists of JSON already"))
    }
}

/// Something for the caller of a call that is still open; nobody keeps it.
#[derive(Debug, Clone)]
pub enum CallNote {
    /// How far the work is.
    Progress {
        /// In numbers.
        progress: Progress,
        /// In words.
        message: Option<Arc<str>>,
    },
    /// What the work says about itself, in words alone.
    Status(Arc<str>),
    /// A line for the log.
    Log {
        /// How bad, as syslog has it: `debug` to `emergency`.
        level: &'static str,
        /// Who says so.
        logger: Option<String>,
        /// What.
        data: Payload,
    },
    /// The connection may end now, if the caller can come back: it should, after so long.
    Disconnect(Duration),
}

/// Where a run is, for whoever waits for it.
#[derive(Debug, Clone)]
pub enum Phase {
    /// In memory.
    Loose,
    /// It became this task.
    Task(TaskId),
    /// It ended without ever being a task.
    Done(RunEnd),
}
