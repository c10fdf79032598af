//! What the server knows of one connection: where it comes from, and the last status it sent of each task, so that it can delay a poll
//! that comes too early.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
};

use taskwire_core::{TaskId, Timestamp, Version};

use crate::auth::Certificate;

/// The server forgets all tasks at this number. A client then only gets its next status at once.
const TASKS_MAX: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Peer {
    last_status: Mutex<HashMap<TaskId, LastStatus>>,
    /// Whether it is a process of the same user, on a socket that only this user can open.
    local: bool,
    /// The address at its other end, if it is one of the network.
    address: Option<IpAddr>,
    /// The certificate that its client has shown, if any.
    certificate: Option<Certificate>,
}

/// When a status of a task was sent, and which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastStatus {
    pub(crate) at: Timestamp,
    /// The task's version in that status.
    pub(crate) changed: Version,
}

impl Peer {
    pub(crate) fn local() -> Self {
        Self { local: true, ..Self::default() }
    }

    pub(crate) fn at(address: IpAddr) -> Self {
        Self { address: Some(address), ..Self::default() }
    }

    #[cfg(feature = "tls")]
    pub(crate) fn with_certificate(self, certificate: Option<Certificate>) -> Self {
        Self { certificate, ..self }
    }

    pub(crate) fn certificate(&self) -> Option<&Certificate> {
        self.certificate.as_ref()
    }

    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.address
    }

    pub(crate) fn is_local(&self) -> bool {
        self.local
    }

    pub(crate) fn last_status(&self, id: TaskId) -> Option<LastStatus> {
        self.last_status.lock().unwrap_or_else(PoisonError::into_inner).get(&id).copied()
    }

    /// Remembers the status that was sent; forgets the task if `status` is none, because it will not change any more.
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
        let status = LastStatus { at: Timestamp::from_millis(1), changed: Version(1) };
        peer.record_status(id(0), None);
        assert_eq!(peer.last_status(id(0)), None);
        for n in 0..3_000 {
            peer.record_status(id(n), Some(status));
            assert_eq!(peer.last_status(id(n)), Some(status));
        }
        peer.record_status(id(2_999), None);
        assert_eq!(peer.last_status(id(2_999)), None);
        let kept = (0..3_000).filter(|n| peer.last_status(id(*n)).is_some()).count();
        assert!((1..TASKS_MAX).contains(&kept), "{kept}");
    }
}
