//! Sessions as they are stored, and the outbox of each: the ordered changes of its tasks that it is to be sent.

use taskwire_core::{
    CallerId, Payload, Seq, SessionId, TaskId, Timestamp, Version,
    task::{Event, OutboxTarget},
};

use super::TaskWrite;

/// A session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    /// Whose it is.
    pub caller: CallerId,
    /// When it was last used, about.
    pub last_used: Timestamp,
    /// What was agreed with the client; only the era that made it reads it.
    pub data: Payload,
}

/// What changes about a session.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum SessionChange {
    /// It begins.
    Begin(Session),
    /// It changes to `session`, if it is still there; if `before` is given, only if these are still its data: another node may have changed
    /// them.
    Update {
        /// What it is then.
        session: Session,
        /// The data that this was decided on.
        before: Option<Payload>,
    },
    /// It ends.
    End(SessionId),
}

impl SessionChange {
    /// The session, unless it only begins.
    pub(crate) fn changed(&self) -> Option<SessionId> {
        match self {
            Self::Begin(_) => None,
            Self::Update { session, .. } => Some(session.id.clone()),
            Self::End(id) => Some(id.clone()),
        }
    }
}

/// An item of an outbox: a part of a task's log that the session is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutboxItem {
    /// Its position in the outbox, from 1.
    pub position: u64,
    /// The task whose log it is.
    pub task: TaskId,
    /// The first event of the part.
    pub first_version: Version,
    /// The last.
    pub last_version: Version,
    /// The first chunk of the part, if it has any.
    pub first_seq: Seq,
    /// The first chunk after the part.
    pub end_seq: Seq,
}

impl TaskWrite {
    /// The outbox item of this write and its session, if there is anything to send; the store sets the position.
    pub(crate) fn outbox_item(&self) -> Option<(&SessionId, OutboxItem)> {
        let OutboxTarget { session, output } = self.task.spec.outbox.as_ref().filter(|_| !self.task.spec.hidden)?;
        let chunks = self.events.iter().filter(|event| matches!(event, Event::Appended { .. })).count() as u64;
        let is_sent = |event: &Event| event.is_visible() && !matches!(event, Event::Created { .. } | Event::Expired);
        let has_item = (*output && chunks > 0) || self.events.iter().any(is_sent);
        if !has_item {
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
