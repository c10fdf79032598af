//! A call that is held for a while: signs of life meanwhile, and what is said instead of a result that takes longer.

use taskwire_core::{Payload, wire::RequestId};

use super::{Ended, Tail};
use crate::dialect::{
    call::held::{Beat, Hold, HoldTimer},
    legacy::{
        live::Request,
        place::{At, Kind},
        view,
    },
};

impl Tail<'_> {
    /// Gives the answer when the call was held long enough, and tells progress under this name: that of the call, which may share
    /// its task with another.
    pub(in crate::dialect::legacy) fn holding(mut self, hold: Option<Hold>, token: Option<&RequestId>) -> Self {
        if hold.is_some() {
            self.hold = HoldTimer::new(self.shared, hold, !self.comes_back());
            self.notes.token = token.cloned();
        }
        self
    }

    /// Signs of life, for a call whose caller wants to hear of progress.
    pub(super) fn beat(&self) -> Result<Option<Beat>, Ended> {
        if self.stream.kind != Kind::Call || self.notes.token.is_none() || !self.shared.config.followups {
            return Ok(None);
        }
        let (clock, task) = (self.shared.engine.clock(), self.task()?);
        let now = clock.now();
        let work = task.as_deref().map_or(now, |task| task.began());
        let called = self.request.and_then(Request::made).map_or(work, |(began, _)| began);
        let began = self.hold.hold().map_or(called, |hold| hold.began);
        // Who came back has just heard from us.
        let since = if self.resumed { now } else { began };
        // What its reader was told before it was cut off is less than this.
        let floor = task.filter(|_| self.resumed).map_or(f64::NEG_INFINITY, |task| Beat::floor(&task, now));
        Ok(Some(Beat::new(clock, began, since, floor)))
    }

    /// What the client is told instead of the result, if it is time for that.
    pub(super) fn instead(&mut self) -> Result<Option<Payload>, Ended> {
        if self.hold.hold().is_none() {
            return Ok(None);
        }
        let Some(task) = self.task()? else { return Err(self.forgotten()) };
        Ok(self.hold.result(&task))
    }

    /// Answers the request with something else than the result; nothing follows.
    pub(super) async fn respond_instead(&mut self, result: &Payload) -> Result<bool, Ended> {
        self.at = At::END;
        let waiter = self.waiter.take();
        let result = waiter.as_ref().map_or_else(|| result.clone(), |waiter| waiter.noting(result.clone()));
        let answering = waiter.map(|waiter| waiter.answering(false));
        self.send(&view::response(&self.stream.request, view::call_result(&result, None, None)), true).await?;
        if let Some(answering) = answering {
            answering.delivered();
        }
        Ok(true)
    }
}
