//! The bounded queue of messages that streams pushed for one call.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use taskwire_core::{Payload, task::RpcError, wire::RequestId};
use tokio::sync::Notify;

/// One message for a call, from whatever stream it came on.
#[derive(Debug, Clone)]
pub(crate) enum Notice {
    /// The task's state. `on_own_stream` if it came on the stream of the call's own request.
    Task { raw: Payload, on_own_stream: bool },
    /// A chunk of output, likewise.
    Chunk { seq: u64, content: Payload, on_own_stream: bool },
    /// The params of the notification.
    Progress(Payload),
    /// The params of the notification.
    Log(Payload),
    /// A response that came on another stream than its request.
    Response(Result<Payload, RpcError>),
    /// A question of the legacy era that needs no answer any more.
    QuestionWithdrawn { id: RequestId, session: u64 },
    /// A question of the legacy era.
    Question { id: RequestId, session: u64, method: String, params: Payload },
    /// Whether the session stream (legacy era) is open.
    SessionStream(bool),
    /// From now on the server pushes the task, and its output if `output`. Chunks before `first_seq` it has no more.
    StreamUp { output: bool, first_seq: Option<u64> },
    /// From now on it does not; for good without `retry_in`.
    StreamDown { reason: String, retry_in: Option<Duration> },
}

impl Notice {
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Chunk { content, .. } => content.as_str().len(),
            _ => 0,
        }
    }
}

/// A queue whose writers never wait. It drops output that has no room, and remembers that it did.
#[derive(Debug)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    wake: Notify,
    max: usize,
}

#[derive(Debug, Default)]
struct State {
    notices: VecDeque<Notice>,
    bytes: usize,
    /// The number of notices other than tasks, progress and chunks.
    others: usize,
    dropped: bool,
    /// The last chunk that was dropped.
    last_dropped: Option<u64>,
}

const OTHERS_MAX: usize = 1024;

impl Inbox {
    pub(crate) fn new(max: usize) -> Self {
        Self { state: Mutex::default(), wake: Notify::new(), max }
    }

    /// Adds a notice; false if there is no room for it.
    pub(crate) fn push(&self, notice: Notice) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let size = notice.size();
        if size > 0 && state.bytes > 0 && state.bytes + size > self.max {
            state.dropped = true;
            if let Notice::Chunk { seq, .. } = notice {
                state.last_dropped = state.last_dropped.max(Some(seq));
            }
            drop(state);
            self.wake.notify_one();
            return false;
        }
        // A newer state or progress replaces the older one; the number of other notices is limited.
        match &notice {
            Notice::Task { on_own_stream: own, .. } => {
                state.notices.retain(|known| !matches!(known, Notice::Task { on_own_stream: other, .. } if other == own))
            }
            Notice::Progress(_) => state.notices.retain(|known| !matches!(known, Notice::Progress(_))),
            Notice::Chunk { .. } => {}
            _ if state.others >= OTHERS_MAX => return false,
            _ => state.others += 1,
        }
        state.bytes += size;
        state.notices.push_back(notice);
        drop(state);
        self.wake.notify_one();
        true
    }

    pub(crate) fn try_next(&self) -> Option<Notice> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let notice = state.notices.pop_front()?;
        state.bytes -= notice.size();
        if !matches!(notice, Notice::Task { .. } | Notice::Progress(_) | Notice::Chunk { .. }) {
            state.others -= 1;
        }
        Some(notice)
    }

    /// Waits until there is a notice, or output was dropped.
    pub(crate) async fn ready(&self) {
        loop {
            let notified = self.wake.notified();
            {
                let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                if !state.notices.is_empty() || state.dropped {
                    return;
                }
            }
            notified.await;
        }
    }

    /// The last chunk that was ever dropped.
    pub(crate) fn last_dropped(&self) -> Option<u64> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).last_dropped
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).notices.is_empty()
    }

    /// Whether output was dropped since the last call of this.
    pub(crate) fn take_dropped(&self) -> bool {
        std::mem::take(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner).dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(seq: u64, text: &str) -> Notice {
        Notice::Chunk { seq, content: Payload::from(serde_json::json!(text)), on_own_stream: true }
    }

    #[tokio::test]
    async fn output_without_room_is_left_out_and_states_always_have_room() {
        let inbox = Inbox::new(8);
        assert!(inbox.push(chunk(0, "far too long for it")), "one always has room");
        assert!(!inbox.push(chunk(1, "b")));
        assert!(inbox.push(Notice::Task { raw: Payload::from(serde_json::json!(1)), on_own_stream: true }));
        assert!(inbox.push(Notice::Task { raw: Payload::from(serde_json::json!(2)), on_own_stream: true }));
        inbox.ready().await;
        assert!(inbox.take_dropped() && !inbox.take_dropped());
        assert!(matches!(inbox.try_next(), Some(Notice::Chunk { seq: 0, .. })));
        assert!(inbox.push(chunk(2, "c")));
        assert!(matches!(inbox.try_next(), Some(Notice::Task { raw, .. }) if raw.as_str() == "2"), "of states the last");
        assert!(matches!(inbox.try_next(), Some(Notice::Chunk { seq: 2, .. })));
        assert!(inbox.try_next().is_none());
    }
}
