//! Sessions as they are stored: what was agreed on with a client, and the order in which it is told of its tasks.

use taskwire_core::{
    CallerId, Payload, Seq, SessionId, TaskId, Timestamp, Version,
    task::{Event, OutboxTarget},
};

use super::TaskWrite;

/// A session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Its name.
    pub id: SessionId,
    /// Whose it is.
    pub caller: CallerId,
    /// When it was last used, about.
    pub last_used: Timestamp,
    /// What was agreed on; only the dialect that made it reads it.
    pub data: Payload,
}

/// What changes about a session.
#[derive(Debug, Clone)]
pub enum SessionChange {
    /// It begins.
    Begin(Session),
    /// It is like this now, if it is still there.
    Update(Session),
    /// It is gone.
    End(SessionId),
}

/// Something that a session is told: a part of a task's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutboxItem {
    /// Its place in the order of the session, from 1.
    pub position: u64,
    /// Whose log.
    pub task: TaskId,
    /// The first event of it.
    pub first_version: Version,
    /// The last.
    pub last_version: Version,
    /// The first chunk of it, if there is any.
    pub first_seq: Seq,
    /// The first chunk after it.
    pub end_seq: Seq,
}

impl TaskWrite {
    /// What the session that follows the task is told of this; its number is not known yet.
    pub(crate) fn outbox_item(&self) -> Option<(&SessionId, OutboxItem)> {
        let OutboxTarget { session, output } = self.task.spec.outbox.as_ref().filter(|_| !self.task.spec.hidden)?;
        let chunks = self.events.iter().filter(|event| matches!(event, Event::Appended { .. })).count() as u64;
        let news = |event: &Event| event.is_visible() && !matches!(event, Event::Created { .. } | Event::Expired);
        let told = (*output && chunks > 0) || self.events.iter().any(news);
        if !told {
            return None;
        }
        let end = self.task.output.next_seq;
        let last = Version(self.first_version.0 + self.events.len() as u64 - 1);
        Some((
            session,
            OutboxItem {
                position: 0,
                task: self.task.id,
                first_version: self.first_version,
                last_version: last,
                first_seq: Seq(end.0 - chunks),
                end_seq: end,
            },
        ))
    }
}
