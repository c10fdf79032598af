//! A request of a session, from its arrival to its response.

use std::sync::Arc;

use taskwire_core::{Timestamp, task::Task, wire::RequestId};
use tokio::sync::watch;

use super::{CallStart, CancelState};
use crate::{
    engine::Run,
    protocol::{
        call::waiter::{Waiter, WaitingCall},
        legacy::session::Session,
    },
};

/// A request that is not answered yet. Its work goes on when this is dropped.
#[derive(Debug)]
pub(in crate::protocol::legacy) struct RequestGuard {
    session: Arc<Session>,
    id: RequestId,
    cancel_state: Arc<watch::Sender<CancelState>>,
    responded: bool,
    /// Whether the request has an earlier guard.
    joined: bool,
}

impl RequestGuard {
    pub(super) fn new(session: &Arc<Session>, id: &RequestId, cancel_state: Arc<watch::Sender<CancelState>>, joined: bool) -> Self {
        Self { session: session.clone(), id: id.clone(), cancel_state, responded: false, joined }
    }

    pub(in crate::protocol::legacy) fn set_call_start(&self, began: Timestamp, token: Option<RequestId>) {
        if let Some(running) = self.session.live().open_requests.get_mut(&self.id) {
            running.call_start = Some((began, token));
        }
    }

    pub(in crate::protocol::legacy) fn call_start(&self) -> Option<CallStart> {
        self.session.live().open_requests.get(&self.id)?.call_start.clone()
    }

    /// Sets the call that waits for the work.
    pub(in crate::protocol::legacy) fn set_waiter(&self, waiter: &Waiter) {
        let mut live = self.session.live();
        if let Some(running) = live.open_requests.get_mut(&self.id) {
            running.joinable = true;
            running.waiting_call = waiter.downgrade();
            if let Some((began, _)) = running.call_start {
                live.unanswered.add(began, waiter.downgrade());
            }
        }
        drop(live);
        if self.stops_work()
            && let Some(waiting) = waiter.downgrade().upgrade()
        {
            waiting.cancel();
        }
    }

    /// The call that waits for the work, if it still does.
    pub(in crate::protocol::legacy) fn waiting_call(&self) -> Option<Arc<WaitingCall>> {
        self.session.live().open_requests.get(&self.id)?.waiting_call.upgrade()
    }

    /// Sets the task to cancel with the request.
    pub(in crate::protocol::legacy) fn set_task(&self, task: &Task) {
        if let Some(running) = self.session.live().open_requests.get_mut(&self.id) {
            running.task = Some(task.id);
        }
    }

    /// Sets the run to stop with the request.
    pub(in crate::protocol::legacy) fn set_run(&self, run: &Arc<Run>) {
        if let Some(running) = self.session.live().open_requests.get_mut(&self.id) {
            running.run = Some(Arc::downgrade(run));
        }
    }

    pub(in crate::protocol::legacy) async fn cancelled(&self) {
        let _ = self.cancel_state.subscribe().wait_for(|state| *state != CancelState::Active).await;
    }

    pub(in crate::protocol::legacy) fn is_cancelled(&self) -> bool {
        *self.cancel_state.borrow() != CancelState::Active
    }

    /// Whether the request was cancelled in such a way that its work stops.
    pub(in crate::protocol::legacy) fn stops_work(&self) -> bool {
        *self.cancel_state.borrow() == CancelState::Stopped
    }

    pub(in crate::protocol::legacy) fn responded(mut self) {
        self.responded = true;
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        if self.joined && !self.responded {
            return;
        }
        let mut live = self.session.live();
        let Some(running) = live.open_requests.get_mut(&self.id).filter(|running| Arc::ptr_eq(&running.cancel_state, &self.cancel_state))
        else {
            return;
        };
        running.awaited = false;
        if self.responded || (running.run.is_none() && running.task.is_none()) {
            let run = live.open_requests.remove(&self.id).and_then(|running| running.run?.upgrade());
            drop(live);
            // The request was answered: a run that goes on is a task now, and counts as one.
            if let Some(run) = run {
                run.keep_until_end(Box::new(()));
            }
        }
    }
}
