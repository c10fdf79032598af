//! The stream of one request, which the client resumes with `Last-Event-ID` when its connection breaks.

use std::sync::Arc;

use futures_util::{FutureExt, future::BoxFuture};

use super::{LegacyClient, session::Session};
use crate::client::{
    inbox::{Inbox, Notice},
    link::{self, Link, RequestError},
    wire::{Backoff, Exchange, Message, WireError, random},
};

/// A stream that resumes after the last event that was seen, if its events have ids.
pub(super) struct ResumableStream {
    link: Arc<Link>,
    pub(super) session: Arc<Session>,
    pub(super) id: i64,
    exchange: Exchange,
    last_event_id: Option<String>,
    /// The attempt to resume. Kept here, so that it goes on when a dropped `next` is called again.
    resuming: Option<BoxFuture<'static, Result<Exchange, RequestError>>>,
}

impl ResumableStream {
    pub(super) fn new(legacy: &LegacyClient, session: Arc<Session>, id: i64, exchange: Exchange) -> Self {
        Self { link: legacy.link.clone(), session, id, exchange, last_event_id: None, resuming: None }
    }

    /// The next message. It pushes to `owner` when the connection is lost and when it is back. Nothing is lost if this future
    /// is dropped before it is ready.
    pub(super) async fn next(&mut self, owner: Option<&Arc<Inbox>>) -> Result<Message, RequestError> {
        loop {
            if let Some(resuming) = &mut self.resuming {
                let exchange = resuming.await;
                self.resuming = None;
                self.exchange = exchange?;
            }
            let ended = match self.exchange.next().await {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => link::ended_without_answer(self.exchange.status()),
                Err(lost) => lost,
            };
            if let Some(last) = self.exchange.last_event_id() {
                self.last_event_id = Some(last.to_owned());
            }
            let Some(last_event_id) = self.last_event_id.clone().filter(|_| matches!(ended, WireError::Interrupted(_))) else {
                return Err(ended.into());
            };
            let resume = Resume { link: self.link.clone(), session: self.session.clone(), last_event_id, owner: owner.cloned() };
            self.resuming = Some(resume.go(ended, self.exchange.reconnect_delay()).boxed());
        }
    }
}

/// Resumes a broken stream.
struct Resume {
    link: Arc<Link>,
    session: Arc<Session>,
    last_event_id: String,
    owner: Option<Arc<Inbox>>,
}

impl Resume {
    async fn go(self, mut lost: WireError, mut retry: Option<std::time::Duration>) -> Result<Exchange, RequestError> {
        let Some(http) = self.link.wire.http() else { return Err(lost.into()) };
        let mut backoff = Backoff::new(self.link.options.timing);
        // A server that sent `retry` closes the connection on purpose; that is no loss to report.
        let owner = self.owner.as_ref().filter(|_| retry.is_none());
        loop {
            let now = self.link.options.clock.now();
            let Some(wait) = backoff.next(now, retry.take().or_else(|| lost.retry_after()), random()) else { return Err(lost.into()) };
            if let Some(owner) = owner {
                owner.push(Notice::StreamDown { reason: lost.reason(), retry_in: Some(wait) });
            }
            self.link.options.clock.sleep(wait).await;
            let mut headers = self.session.headers();
            headers.push(("Last-Event-ID".to_owned(), self.last_event_id.clone()));
            match http.get(headers).await {
                Ok(response) => {
                    let exchange = Exchange::Http(response);
                    // 204: the stream has no more messages.
                    if exchange.status() != 200 {
                        return Err(WireError::Interrupted("the stream is over".to_owned()).into());
                    }
                    if let Some(owner) = owner {
                        owner.push(Notice::StreamUp { output: false, first_seq: None });
                    }
                    return Ok(exchange);
                }
                // The server has not noticed yet that the old connection is gone.
                Err(conflict @ WireError::Status { status: 409, .. }) => lost = conflict,
                Err(again) if again.is_transient() => lost = again,
                // The stream cannot be resumed. The caller decides whether to repeat the request.
                Err(_) => return Err(WireError::Interrupted("the stream cannot be resumed".to_owned()).into()),
            }
        }
    }
}
