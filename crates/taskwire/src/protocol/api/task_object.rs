//! Tasks as the API shows them.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;
use taskwire_core::{
    Payload, Seq, TaskId,
    task::{Blocks, Outcome, Progress, RpcError, Task},
};

use crate::{protocol::task_status::status_message, store::Chunk};

/// A task. What a list has of it, and for `GET /api/tasks/ID` also its open questions and how it ended.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TaskObject<'a> {
    id: TaskId,
    caller: &'a str,
    tool: &'a str,
    status: &'static str,
    /// What it is doing, or why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<Progress>,
    created_at: String,
    updated_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
    /// Since when its work waits for a slot on its node.
    #[serde(skip_serializing_if = "Option::is_none")]
    queued_at: Option<String>,
    attempt: u64,
    /// The start of the server that runs it, or did.
    epoch: u64,
    /// Whether its caller waits for a result and knows of no task.
    hidden: bool,
    output: OutputTotals,
    /// Questions that wait for an answer.
    open_questions: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    questions: Option<BTreeMap<&'a str, &'a Payload>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a Payload>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a RpcError>,
}

#[derive(Debug, Serialize)]
struct OutputTotals {
    /// Also those that are no longer kept.
    chunks: u64,
    bytes: u64,
}

impl<'a> TaskObject<'a> {
    pub(super) fn short(task: &'a Task) -> Self {
        Self {
            id: task.id,
            caller: task.spec.caller.as_str(),
            tool: &task.spec.tool,
            status: task.status().as_str(),
            message: status_message(task),
            progress: task.progress,
            created_at: task.created_at.to_string(),
            updated_at: task.updated_at.to_string(),
            ended_at: task.ended.map(|(at, _)| at.to_string()),
            queued_at: task.queued_at.map(|at| at.to_string()),
            attempt: task.attempt.0,
            epoch: task.epoch.0,
            hidden: task.spec.hidden,
            output: OutputTotals { chunks: task.output.next_seq.0, bytes: task.output.bytes },
            open_questions: task.open_questions().count(),
            questions: None,
            result: None,
            error: None,
        }
    }

    pub(super) fn whole(task: &'a Task) -> Self {
        let (result, error) = match &task.outcome {
            Some(Outcome::Completed { result, .. }) => (Some(result), None),
            Some(Outcome::Failed(error)) => (None, Some(error)),
            Some(Outcome::Cancelled { .. }) | None => (None, None),
        };
        let questions = task.open_questions().map(|(key, question)| (key.as_str(), question)).collect();
        Self { questions: Some(questions), result, error, ..Self::short(task) }
    }
}

/// What `GET /api/tasks` answers.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TaskPage {
    /// Each in its short form.
    tasks: Vec<Box<RawValue>>,
    /// Where the next page begins, if there may be one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<TaskId>,
}

impl TaskPage {
    pub(super) fn new(tasks: Vec<Box<RawValue>>, next_cursor: Option<TaskId>) -> Self {
        Self { tasks, next_cursor }
    }
}

/// What `POST /api/tasks/ID/cancel` answers.
#[derive(Debug, Serialize)]
pub(super) struct Cancelled<'a> {
    /// Whether this is what ended it.
    pub(super) changed: bool,
    pub(super) task: TaskObject<'a>,
}

/// What `GET /api/tasks/ID/output` answers.
#[derive(Debug, Serialize)]
pub(super) struct OutputPage<'a> {
    chunks: Vec<ChunkObject<'a>>,
    /// Where to read on.
    next: Seq,
    /// Whether there is more already.
    more: bool,
    /// Whether the task has ended: nothing will be written after what there is.
    ended: bool,
}

#[derive(Debug, Serialize)]
struct ChunkObject<'a> {
    seq: Seq,
    blocks: &'a Blocks,
}

impl<'a> OutputPage<'a> {
    /// The page that was read from `from` on.
    pub(super) fn new(chunks: &'a [Chunk], from: Seq, more: bool, ended: bool) -> Self {
        let next = chunks.last().map_or(from, |last| last.seq.next());
        Self { chunks: chunks.iter().map(|chunk| ChunkObject { seq: chunk.seq, blocks: &chunk.blocks }).collect(), next, more, ended }
    }
}
