//! The events that a call yields, and what they carry: references, chunks, task snapshots, outcomes.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use taskwire_core::{
    Payload,
    task::{RpcError, Status},
};

use super::{form::whole_number, question::Question};

/// The era of the protocol that a server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Era {
    /// 2026-07-28: each request carries its own version and capabilities.
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

/// Enough to find a task again from any process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    /// The server, as a [`Target`](super::Target) is written.
    pub server: String,
    /// The era in which the client spoke to the server.
    pub era: Era,
    /// The task; absent if the call was sent and no response has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The tool that was called.
    pub tool: String,
    /// The idempotency key of the call, so that it can be sent again without running twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The session that the task may be bound to (legacy era).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The arguments of the call, kept until its task is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Payload>,
    /// The first chunk of output that the call has not yielded yet.
    #[serde(default)]
    pub next: u64,
}

impl Reference {
    /// A reference to a task of which only the id is known.
    #[must_use]
    pub fn of_task(server: &str, era: Era, task: &str) -> Self {
        let (server, task, tool) = (server.to_owned(), Some(task.to_owned()), String::new());
        Self { server, era, task, tool, key: None, session: None, args: None, next: 0 }
    }
}

/// Writes `SERVER#TASK`, which the terminal client reads.
impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.server, self.task.as_deref().or(self.key.as_deref()).unwrap_or_default())
    }
}

/// One thing that a [`Call`](super::Call) yields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// The call is a task. Comes once, before any output of it.
    Task(Reference),
    /// Output, in order, each chunk once.
    Chunk(Chunk),
    /// The chunks `from..until` are lost for good. Output goes on after them.
    Gap {
        /// The first lost chunk.
        from: u64,
        /// The first chunk after the gap.
        until: u64,
    },
    /// The status of the task or its message changed.
    Status(TaskSnapshot),
    /// How far the work is.
    Progress {
        /// The amount done.
        progress: f64,
        /// The whole amount, if it is known.
        total: Option<f64>,
        /// What the tool is doing.
        message: Option<String>,
    },
    /// A question. Each key comes once, and again if an answer to it did not arrive and the server asks again.
    Question(Question),
    /// The question needs no answer any more: it was answered, here or elsewhere, or withdrawn.
    QuestionSettled {
        /// Which question.
        key: String,
    },
    /// The connection to the server was lost, or is back. No event is lost with it.
    Connection(ConnectionState),
    /// A line for the log, as the server wrote it (the params of `notifications/message`).
    Log(Payload),
    /// The end; the last event.
    Done(Outcome),
}

/// The state of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionState {
    /// Lost; the client tries again.
    Lost {
        /// What happened.
        reason: String,
        /// How long the client waits before it tries again.
        retry_in: Duration,
    },
    /// Back again.
    Restored,
}

/// A chunk of output.
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
    /// Its id.
    pub id: String,
    /// Its status.
    pub status: Status,
    /// Its status message.
    pub message: Option<String>,
    /// When it was created.
    pub created_at: String,
    /// When it changed last.
    pub updated_at: String,
    /// How long the server keeps it from its creation on; for ever if absent.
    pub ttl_ms: Option<u64>,
    /// The time between two polls that the server suggests.
    pub poll_ms: Option<u64>,
    /// Its open questions (modern era; in the legacy era they come with [`Event::Question`] only).
    pub questions: Vec<Question>,
    /// How it ended, if it has and its snapshot says so.
    pub outcome: Option<Outcome>,
    /// The whole JSON of the server.
    pub raw: Value,
}

impl TaskSnapshot {
    /// Reads a task of either era; `ttl` and `poll` are the two member names that differ.
    pub(crate) fn read(raw: &Payload, ttl: &str, poll: &str) -> Result<Self, String> {
        let value: Value = raw.read().map_err(|error| format!("a task that cannot be read: {error}"))?;
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        let status = value["status"].as_str().ok_or("a task without `status`")?;
        Ok(Self {
            id: text("taskId").ok_or("a task without `taskId`")?,
            status: Status::read(status).ok_or_else(|| format!("a task with the unknown status `{status}`"))?,
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
    /// With a JSON-RPC error.
    Failed(RpcError),
    /// It was cancelled.
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
    /// Its structured content, if it has any.
    pub structured: Option<Value>,
    /// Whether the tool says that it failed.
    pub is_error: bool,
    /// The whole JSON of the server.
    pub raw: Payload,
}

impl ToolResult {
    /// The text of all text blocks.
    #[must_use]
    pub fn text(&self) -> String {
        text_of(&self.content)
    }

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
        let read: Read = raw.read().map_err(|error| format!("the result of the tool cannot be read: {error}"))?;
        Ok(Self {
            content: read.content.unwrap_or_default(),
            structured: read.structured,
            is_error: read.is_error.unwrap_or_default(),
            raw,
        })
    }
}
