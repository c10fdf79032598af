//! What happened to a task, for a timeline: events without their content, but for the arguments of the call.

use serde::Serialize;
use taskwire_core::{
    Payload, TaskId, Version,
    task::{Event, Outcome},
};

use super::ApiError;
use crate::{
    engine::{Engine, HAS_TURN, WAITS_FOR_TURN},
    store::{Cursor, LogItem, StoredEvent},
};

/// Events of one answer, about.
const EVENTS_MAX: usize = 200;
/// Pages of a log that are read for one answer: what is no event of a timeline counts, too.
const PAGES_MAX: usize = 50;

/// What `GET /api/tasks/ID/log` answers.
#[derive(Debug, Serialize)]
pub(super) struct LogPage {
    events: Vec<EventObject>,
    /// Where to read on (`after`).
    next: u64,
    /// Whether there is more already.
    more: bool,
}

/// An event. Which members it has depends on `kind`.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct EventObject {
    version: u64,
    at: String,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u64>,
    /// The start of the server that runs the attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    /// How long the first attempt had been running when the task was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    spent_ms: Option<u64>,
    /// The question.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<Payload>,
}

impl LogPage {
    pub(super) async fn read(engine: &Engine, id: TaskId, after: Version) -> Result<Self, ApiError> {
        let (mut events, mut next, mut more) = (Vec::new(), after, true);
        for _ in 0..PAGES_MAX {
            let cursor = Cursor { after: next, from: None, max_bytes: 0, max_chunks: 1 };
            let page = engine.page(id, cursor).await?.ok_or_else(ApiError::no_task)?;
            (next, more) = (page.upto.max(next), page.more);
            events.extend(page.items.into_iter().filter_map(LogItem::into_event).filter_map(EventObject::of));
            if !more || events.len() >= EVENTS_MAX {
                break;
            }
        }
        Ok(Self { events, next: next.0, more })
    }
}

impl EventObject {
    /// None for an event that a timeline does not show.
    fn of(stored: StoredEvent) -> Option<Self> {
        let base = Self { version: stored.version.0, at: stored.at.to_string(), ..Self::default() };
        if let Some(outcome) = stored.event.outcome() {
            let kind = match outcome {
                Outcome::Completed { is_error: false, .. } => "completed",
                Outcome::Completed { is_error: true, .. } => "tool_error",
                Outcome::Failed(_) => "failed",
                Outcome::Cancelled { .. } => "cancelled",
            };
            return Some(Self { kind, ..base });
        }
        Some(match stored.event {
            Event::Created { arguments, epoch, spent_ms, .. } => Self {
                kind: "created",
                attempt: Some(1),
                epoch: Some(epoch.0),
                spent_ms: Some(spent_ms),
                arguments: Some(arguments),
                ..base
            },
            Event::Started { attempt, epoch } => Self { kind: "started", attempt: Some(attempt.0), epoch: Some(epoch.0), ..base },
            Event::Queued => Self { kind: "queued", ..base },
            Event::Dequeued => Self { kind: "dequeued", ..base },
            // Where a node has its store for itself, only the status tells it.
            Event::StatusReported { message: Some(message), progress: None } if message.starts_with(WAITS_FOR_TURN) => {
                Self { kind: "queued", ..base }
            }
            Event::StatusReported { message: Some(message), progress: None } if *message == *HAS_TURN => Self { kind: "dequeued", ..base },
            Event::Asked { key, .. } => Self { kind: "asked", key: Some(key.as_str().to_owned()), ..base },
            Event::Answered { key, .. } => Self { kind: "answered", key: Some(key.as_str().to_owned()), ..base },
            Event::Saved { .. } => Self { kind: "saved", ..base },
            _ => return None,
        })
    }
}
