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
pub(crate) enum Fact {
    /// The task, as a notification shows it. `own` if it came on the stream of the run's own request.
    View { raw: Payload, own: bool },
    /// A piece of output, likewise.
    Partial { seq: u64, content: Payload, own: bool },
    /// How far the work is: the params of a notification.
    Progress(Payload),
    /// A line for the log.
    Log(Payload),
    /// An answer that came on another stream than its request.
    Answer(Result<Payload, RpcError>),
    /// A question of the legacy era that needs no answer any more.
    Withdrawn { id: RequestId, session: u64 },
    /// A question of the legacy era.
    Question { id: RequestId, session: u64, method: String, params: Payload },
    /// Whether the stream is there that a server of the legacy era writes to by itself.
    Standing(bool),
    /// From now on the task is pushed; its output too, if `output`. What lies before `from` the server has no more.
    Up { output: bool, from: Option<u64> },
    /// From now on it is not: for a while, or for good.
    Down { reason: String, again_in: Option<Duration> },
}

impl Fact {
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Partial { content, .. } => content.as_str().len(),
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
    facts: VecDeque<Fact>,
    bytes: usize,
    /// How many there are that are neither states, progress nor output.
    others: usize,
    left_out: bool,
    /// The last piece of output that was left out.
    last_left_out: Option<u64>,
}

/// How many such facts are kept.
const OTHERS_MAX: usize = 1024;

impl Inbox {
    pub(crate) fn new(max: usize) -> Self {
        Self { state: Mutex::default(), wake: Notify::new(), max }
    }

    /// Adds a fact; false if there is no room for it.
    pub(crate) fn push(&self, fact: Fact) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let size = fact.size();
        if size > 0 && state.bytes > 0 && state.bytes + size > self.max {
            state.left_out = true;
            if let Fact::Partial { seq, .. } = fact {
                state.last_left_out = state.last_left_out.max(Some(seq));
            }
            drop(state);
            self.wake.notify_one();
            return false;
        }
        // Of states and of progress only the last counts; of anything else only so much is kept.
        match &fact {
            Fact::View { own, .. } => state.facts.retain(|known| !matches!(known, Fact::View { own: other, .. } if other == own)),
            Fact::Progress(_) => state.facts.retain(|known| !matches!(known, Fact::Progress(_))),
            Fact::Partial { .. } => {}
            _ if state.others >= OTHERS_MAX => return false,
            _ => state.others += 1,
        }
        state.bytes += size;
        state.facts.push_back(fact);
        drop(state);
        self.wake.notify_one();
        true
    }

    /// The next fact, if there is one.
    pub(crate) fn try_next(&self) -> Option<Fact> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let fact = state.facts.pop_front()?;
        state.bytes -= fact.size();
        if !matches!(fact, Fact::View { .. } | Fact::Progress(_) | Fact::Partial { .. }) {
            state.others -= 1;
        }
        Some(fact)
    }

    /// Waits until there is something to look at.
    pub(crate) async fn ready(&self) {
        loop {
            let notified = self.wake.notified();
            {
                let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                if !state.facts.is_empty() || state.left_out {
                    return;
                }
            }
            notified.await;
        }
    }

    /// The last piece of output that was ever left out.
    pub(crate) fn last_left_out(&self) -> Option<u64> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).last_left_out
    }

    /// Whether there is nothing to look at.
    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).facts.is_empty()
    }

    /// Whether output was left out since this was last asked.
    pub(crate) fn take_left_out(&self) -> bool {
        std::mem::take(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner).left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partial(seq: u64, text: &str) -> Fact {
        Fact::Partial { seq, content: Payload::from(serde_json::json!(text)), own: true }
    }

    #[tokio::test]
    async fn output_without_room_is_left_out_and_states_always_have_room() {
        let inbox = Inbox::new(8);
        assert!(inbox.push(partial(0, "far too long for it")), "one always has room");
        assert!(!inbox.push(partial(1, "b")));
        assert!(inbox.push(Fact::View { raw: Payload::from(serde_json::json!(1)), own: true }));
        assert!(inbox.push(Fact::View { raw: Payload::from(serde_json::json!(2)), own: true }));
        inbox.ready().await;
        assert!(inbox.take_left_out() && !inbox.take_left_out());
        assert!(matches!(inbox.try_next(), Some(Fact::Partial { seq: 0, .. })));
        assert!(inbox.push(partial(2, "c")));
        assert!(matches!(inbox.try_next(), Some(Fact::View { raw, .. }) if raw.as_str() == "2"), "of states the last");
        assert!(matches!(inbox.try_next(), Some(Fact::Partial { seq: 2, .. })));
        assert!(inbox.try_next().is_none());
    }
}
