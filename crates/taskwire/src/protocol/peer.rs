//! What one client was last told, for as long as its connection lasts: who asks again too soon is answered when there is
//! something new to say.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use taskwire_core::{TaskId, Timestamp, Version};

/// Tasks that are remembered; then all are forgotten, which costs a client nothing.
const TASKS_MAX: usize = 256;

/// The other end of a connection.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    last_status: Mutex<HashMap<TaskId, LastStatus>>,
    /// Whether it is a process of the same user, on a socket that only that user can open.
    local: bool,
}

/// What was said of a task, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastStatus {
    pub(crate) at: Timestamp,
    /// The last change that was part of it.
    pub(crate) changed: Version,
}

impl Peer {
    /// A process of the same user.
    pub(crate) fn local() -> Self {
        Self { local: true, ..Self::default() }
    }

    pub(crate) fn is_local(&self) -> bool {
        self.local
    }

    pub(crate) fn last_status(&self, id: TaskId) -> Option<LastStatus> {
        self.last_status.lock().unwrap_or_else(PoisonError::into_inner).get(&id).copied()
    }

    /// Remembers what was said of a task; nothing, if it will not change any more.
    pub(crate) fn record_status(&self, id: TaskId, status: Option<LastStatus>) {
        let mut tasks = self.last_status.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(status) = status else {
            tasks.remove(&id);
            return;
        };
        if tasks.len() >= TASKS_MAX {
            tasks.clear();
        }
        tasks.insert(id, status);
    }
}

#[cfg(test)]
mod tests {
    use taskwire_core::id::ID_RANDOM_BYTES;

    use super::*;

    #[test]
    fn remembers_the_last_status_of_a_bounded_number_of_tasks() {
        let (peer, id) = (Peer::default(), |n| TaskId::new(Timestamp::from_millis(n), [0; ID_RANDOM_BYTES]));
        let told = LastStatus { at: Timestamp::from_millis(1), changed: Version(1) };
        peer.record_status(id(0), None);
        assert_eq!(peer.last_status(id(0)), None);
        for n in 0..3_000 {
            peer.record_status(id(n), Some(told));
            assert_eq!(peer.last_status(id(n)), Some(told));
        }
        peer.record_status(id(2_999), None);
        assert_eq!(peer.last_status(id(2_999)), None);
        let kept = (0..3_000).filter(|n| peer.last_status(id(*n)).is_some()).count();
        assert!((1..TASKS_MAX).contains(&kept), "{kept}");
    }
}
