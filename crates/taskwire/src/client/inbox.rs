//! What has been pushed for one run and not been looked at yet.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use taskwire_core::{Payload, task::RpcError, wire::RequestId};
use tokio::sync::Notify;

/// Something that was pushed.
#[derive(Debug, Clone)]
pub(crate) enum Notice {
    /// The task, as a notification shows it. `own` if it came on the stream of the run's own request.
    Task { raw: Payload, on_own_stream: bool },
    /// A piece of output, likewise.
    Chunk { seq: u64, content: Payload, on_own_stream: bool },
    /// How far the work is: the params of a notification.
    Progress(Payload),
    /// A line for the log.
    Log(Payload),
    /// An answer that came on another stream than its request.
    Response(Result<Payload, RpcError>),
    /// A question of the legacy era that needs no answer any more.
    QuestionWithdrawn { id: RequestId, session: u64 },
    /// A question of the legacy era.
    Question { id: RequestId, session: u64, method: String, params: Payload },
    /// Whether the stream is there that a server of the legacy era writes to by itself.
    SessionStream(bool),
    /// From now on the task is pushed; its output too, if `output`. What lies before `from` the server has no more.
    StreamUp { output: bool, first_seq: Option<u64> },
    /// From now on it is not: for a while, or for good.
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

/// A queue whose writers never wait. Output that has no room is left out, and that is remembered.
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
    /// How many there are that are neither states, progress nor output.
    others: usize,
    dropped: bool,
    /// The last piece of output that was left out.
    last_dropped: Option<u64>,
}

/// How many such facts are kept.
const OTHERS_MAX: usize = 1024;

impl Inbox {
    pub(crate) fn new(max: usize) -> Self {
        Self { state: Mutex::default(), wake: Notify::new(), max }
    }

    /// Adds a fact; false if there is no room for it.
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
        // Of states and of progress only the last counts; of anything else only so much is kept.
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

    /// The next fact, if there is one.
    pub(crate) fn try_next(&self) -> Option<Notice> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let notice = state.notices.pop_front()?;
        state.bytes -= notice.size();
        if !matches!(notice, Notice::Task { .. } | Notice::Progress(_) | Notice::Chunk { .. }) {
            state.others -= 1;
        }
        Some(notice)
    }

    /// Waits until there is something to look at.
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

    /// The last piece of output that was ever left out.
    pub(crate) fn last_dropped(&self) -> Option<u64> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).last_dropped
    }

    /// Whether there is nothing to look at.
    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).notices.is_empty()
    }

    /// Whether output was left out since this was last asked.
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
