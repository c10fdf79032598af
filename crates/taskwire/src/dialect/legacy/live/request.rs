//! A request of a session until it is answered.

use std::sync::Arc;

use taskwire_core::{Timestamp, task::Task, wire::RequestId};
use tokio::sync::watch;

use super::{Made, Off};
use crate::{
    dialect::{
        call::waiter::{Waiter, Waiting},
        legacy::session::Session,
    },
    engine::Run,
};

/// A request that is not answered yet. Its work goes on without it.
#[derive(Debug)]
pub(in crate::dialect::legacy) struct Request {
    session: Arc<Session>,
    id: RequestId,
    off: Arc<watch::Sender<Off>>,
    answered: bool,
    /// Whether another one of the same name was there first.
    joined: bool,
}

impl Request {
    pub(super) fn new(session: &Arc<Session>, id: &RequestId, off: Arc<watch::Sender<Off>>, joined: bool) -> Self {
        Self { session: session.clone(), id: id.clone(), off, answered: false, joined }
    }

    /// Says how the call is made.
    pub(in crate::dialect::legacy) fn is_made(&self, began: Timestamp, token: Option<RequestId>) {
        if let Some(running) = self.session.live().running.get_mut(&self.id) {
            running.made = Some((began, token));
        }
    }

    /// How the call was made, as far as that is remembered.
    pub(in crate::dialect::legacy) fn made(&self) -> Option<Made> {
        self.session.live().running.get(&self.id)?.made.clone()
    }

    /// Names the call that waits for its work.
    pub(in crate::dialect::legacy) fn waits(&self, waiter: &Waiter) {
        let mut live = self.session.live();
        if let Some(running) = live.running.get_mut(&self.id) {
            running.joinable = true;
            running.waiting = waiter.downgrade();
            if let Some((began, _)) = running.made {
                live.unanswered.add(began, waiter.downgrade());
            }
        }
        drop(live);
        if self.stops()
            && let Some(waiting) = waiter.downgrade().upgrade()
        {
            waiting.cancel();
        }
    }

    /// The call that waits for its work, if it still does.
    pub(in crate::dialect::legacy) fn waiting(&self) -> Option<Arc<Waiting>> {
        self.session.live().running.get(&self.id)?.waiting.upgrade()
    }

    /// Names the task to be cancelled when the request is called off.
    pub(in crate::dialect::legacy) fn makes(&self, task: &Task) {
        if let Some(running) = self.session.live().running.get_mut(&self.id) {
            running.task = Some(task.id);
        }
    }

    /// Names the work to be stopped when the request is called off.
    pub(in crate::dialect::legacy) fn runs(&self, run: &Arc<Run>) {
        if let Some(running) = self.session.live().running.get_mut(&self.id) {
            running.run = Some(Arc::downgrade(run));
        }
    }

    /// Waits until the request is called off.
    pub(in crate::dialect::legacy) async fn off(&self) {
        let _ = self.off.subscribe().wait_for(|off| *off != Off::No).await;
    }

    pub(in crate::dialect::legacy) fn is_off(&self) -> bool {
        *self.off.borrow() != Off::No
    }

    /// Whether the request was called off in such a way that its work is to stop.
    pub(in crate::dialect::legacy) fn stops(&self) -> bool {
        *self.off.borrow() == Off::Stopped
    }

    pub(in crate::dialect::legacy) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.joined && !self.answered {
            return;
        }
        let mut live = self.session.live();
        let Some(running) = live.running.get_mut(&self.id).filter(|running| Arc::ptr_eq(&running.off, &self.off)) else { return };
        running.awaited = false;
        if self.answered || (running.run.is_none() && running.task.is_none()) {
            let run = live.running.remove(&self.id).and_then(|running| running.run?.upgrade());
            drop(live);
            // It was answered: what still runs is found again, and counts as a task.
            if let Some(run) = run {
                run.keep(Box::new(()));
            }
        }
    }
}
