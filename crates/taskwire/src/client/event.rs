//! What a run tells: its output, its state, its questions, its end.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use taskwire_core::{
    Payload,
    task::{RpcError, Status},
};

use super::{form::whole_number, question::Question};

/// Which generation of the protocol a server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Era {
    /// 2026-07-28: each request says all about itself.
    Modern,
    /// 2025-11-25 and before: sessions that begin with `initialize`.
    Legacy,
}

impl fmt::Display for Era {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Modern => "modern",
            Self::Legacy => "legacy",
        })
    }
}

/// Enough to find a task again, from any process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    /// The server, as a [`Target`](super::Target) is written.
    pub server: String,
    /// How the server was spoken to.
    pub era: Era,
    /// The task; absent if the call was sent and no answer has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The tool that was called.
    pub tool: String,
    /// Under which the call was sent, so that it can be sent again without running twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The session that the task may be bound to (legacy era).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The arguments of the call, kept until its task is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Payload>,
    /// The first chunk of output that was not handed out yet.
    #[serde(default)]
    pub next: u64,
}

impl Reference {
    /// To a task of which no more is known.
    #[must_use]
    pub fn of_task(server: &str, era: Era, task: &str) -> Self {
        let (server, task, tool) = (server.to_owned(), Some(task.to_owned()), String::new());
        Self { server, era, task, tool, key: None, session: None, args: None, next: 0 }
    }
}

/// `SERVER#TASK`, as the terminal client takes it.
impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.server, self.task.as_deref().or(self.key.as_deref()).unwrap_or_default())
    }
}

/// One thing that happened to a run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// The call is a task. Comes once, before any output of it.
    Task(Reference),
    /// Output, in order, each piece once.
    Chunk(Chunk),
    /// Output that is lost for good: the pieces `from..until`. It goes on behind them.
    Gap {
        /// The first that is missing.
        from: u64,
        /// The first that is there again.
        until: u64,
    },
    /// The state of the task, or what it says about itself, changed.
    Status(TaskSnapshot),
    /// How far the work is.
    Progress {
        /// So much is done.
        progress: f64,
        /// Of so much, if that is known.
        total: Option<f64>,
        /// What is being done.
        message: Option<String>,
    },
    /// A question. Each key comes once.
    Question(Question),
    /// The question needs no answer any more: it was answered, here or elsewhere, or withdrawn.
    QuestionSettled {
        /// Which question.
        key: String,
    },
    /// The connection to the server was lost, or is back. Nothing is lost with it.
    Connection(ConnectionState),
    /// A line for the log, as the server wrote it (the params of `notifications/message`).
    Log(Payload),
    /// The end. Nothing comes after it.
    Done(Outcome),
}

/// How the connection is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionState {
    /// Gone; it is tried again.
    Lost {
        /// What happened.
        reason: String,
        /// When it is tried again.
        retry_in: Duration,
    },
    /// There again.
    Restored,
}

/// A piece of output.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Chunk {
    /// Its number within the task, from 0.
    pub seq: u64,
    /// Its content blocks: a JSON list.
    pub content: Payload,
}

impl Chunk {
    /// The content blocks.
    #[must_use]
    pub fn blocks(&self) -> Vec<Value> {
        self.content.read().unwrap_or_default()
    }

    /// The text of all text blocks.
    #[must_use]
    pub fn text(&self) -> String {
        text_of(&self.blocks())
    }
}

fn text_of(blocks: &[Value]) -> String {
    blocks.iter().filter(|block| block["type"] == "text").filter_map(|block| block["text"].as_str()).collect()
}

/// A task as its server showed it.
#[derive(Debug, Clone)]
pub struct TaskSnapshot {
    /// Its name.
    pub id: String,
    /// How it is.
    pub status: Status,
    /// What it says about itself.
    pub message: Option<String>,
    /// When it was made.
    pub created_at: String,
    /// When it changed last.
    pub updated_at: String,
    /// How long it is kept from its making on; for ever if absent.
    pub ttl_ms: Option<u64>,
    /// How often its server wants to be asked.
    pub poll_ms: Option<u64>,
    /// Its open questions (modern era; in the legacy era they come with [`Event::Input`] only).
    pub questions: Vec<Question>,
    /// How it ended, if it has and the server says so with its state.
    pub outcome: Option<Outcome>,
    /// All that the server said.
    pub raw: Value,
}

impl TaskSnapshot {
    /// Reads what both eras say of a task; they differ in the names of two times.
    pub(crate) fn read(raw: &Payload, ttl: &str, poll: &str) -> Result<Self, String> {
        let value: Value = raw.read().map_err(|error| format!("a task that is none: {error}"))?;
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        let status = value["status"].as_str().ok_or("a task without `status`")?;
        Ok(Self {
            id: text("taskId").ok_or("a task without `taskId`")?,
            status: Status::read(status).ok_or_else(|| format!("a task with the status `{status}`, which is none"))?,
            message: text("statusMessage"),
            created_at: text("createdAt").unwrap_or_default(),
            updated_at: text("lastUpdatedAt").unwrap_or_default(),
            ttl_ms: whole_number(&value[ttl]),
            poll_ms: whole_number(&value[poll]),
            questions: Vec::new(),
            outcome: None,
            raw: value,
        })
    }
}

/// How a call ended.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// With a result, which may say that the tool failed.
    Result(ToolResult),
    /// With an error of the protocol.
    Failed(RpcError),
    /// It was called off.
    Cancelled {
        /// What the server said about it.
        message: Option<String>,
    },
}

/// The result of a tool.
#[derive(Debug, Clone)]
pub struct ToolResult {
    /// Its content blocks.
    pub content: Vec<Value>,
    /// Its value, if it has one.
    pub structured: Option<Value>,
    /// Whether the tool says that it failed.
    pub is_error: bool,
    /// All that the server said.
    pub raw: Payload,
}

impl ToolResult {
    /// The text of all text blocks.
    #[must_use]
    pub fn text(&self) -> String {
        text_of(&self.content)
    }

    /// Reads the result of a tool.
    pub(crate) fn read(raw: Payload) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Read {
            #[serde(default)]
            content: Option<Vec<Value>>,
            #[serde(default, rename = "structuredContent")]
            structured: Option<Value>,
            #[serde(default, rename = "isError")]
            is_error: Option<bool>,
        }
        let read: Read = raw.read().map_err(|error| format!("the result of the tool is none: {error}"))?;
        Ok(Self {
            content: read.content.unwrap_or_default(),
            structured: read.structured,
            is_error: read.is_error.unwrap_or_default(),
            raw,
        })
    }
}
