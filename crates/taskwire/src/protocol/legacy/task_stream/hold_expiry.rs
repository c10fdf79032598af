//! A held call on a task stream: its heartbeats, and the response when the hold expires.

use taskwire_core::{Payload, wire::RequestId};

use super::{StreamEnd, TaskStream};
use crate::protocol::{
    call::hold::{Heartbeat, Hold, HoldTimer},
    legacy::{
        event_id::{StreamCursor, StreamKind},
        live::RequestGuard,
        render,
    },
};

impl TaskStream<'_> {
    /// Responds when the hold expires, and sends progress under the call's own token, because the task may be that of another call.
    pub(in crate::protocol::legacy) fn with_hold(mut self, hold: Option<Hold>, token: Option<&RequestId>) -> Self {
        // A client that can resume the stream does so with another token, and waits on.
        let hold = hold.map(|hold| if self.comes_back() { hold.beyond_token() } else { hold });
        if hold.is_some() {
            self.hold = HoldTimer::new(self.context, hold, !self.comes_back());
            self.encoder.progress_token = token.cloned();
        }
        self
    }

    /// Heartbeats, for a call whose caller wants progress.
    pub(super) async fn heartbeat(&self) -> Result<Option<Heartbeat>, StreamEnd> {
        if self.id.kind != StreamKind::Call || self.encoder.progress_token.is_none() || !self.context.config.followups {
            return Ok(None);
        }
        let (clock, task) = (self.context.engine.clock(), self.task().await?);
        let now = clock.now();
        let work = task.as_deref().map_or(now, |task| task.began_at());
        let call_started_at = self.request.and_then(RequestGuard::call_start).map_or(work, |(began, _)| began);
        let began = self.hold.hold().map_or(call_started_at, |hold| hold.started_at);
        // A client that resumes the stream has just been sent something.
        let since = if self.resumed { now } else { began };
        // More than what the client was sent before it was cut off.
        let floor = task.filter(|_| self.resumed).map_or(f64::NEG_INFINITY, |task| Heartbeat::progress_floor(&task, now));
        Ok(Some(Heartbeat::new(clock, began, since, floor)))
    }

    /// The result to send when the hold expires, if it is due.
    pub(super) async fn hold_expiry_result(&mut self) -> Result<Option<Payload>, StreamEnd> {
        if self.hold.hold().is_none() {
            return Ok(None);
        }
        let Some(task) = self.task().await? else { return Err(self.expired()) };
        Ok(self.hold.result(&task).await)
    }

    /// Responds with that result; nothing follows.
    pub(super) async fn respond_hold_expired(&mut self, result: &Payload) -> Result<bool, StreamEnd> {
        self.cursor = StreamCursor::END;
        let waiter = self.waiter.take();
        let result = waiter.as_ref().map_or_else(|| result.clone(), |waiter| waiter.with_joined_text(result.clone()));
        let answering = waiter.map(|waiter| waiter.on_response_sent(false));
        self.send(&render::response(&self.id.request, render::call_result(&result, None, None)), true).await?;
        if let Some(answering) = answering {
            answering.sent();
        }
        Ok(true)
    }
}
