//! The session stream (`GET`), on which a server sends messages that belong to no request.

use std::sync::{Arc, Weak};

use tokio::{sync::oneshot, task::AbortHandle};

use super::LegacyClient;
use crate::client::{
    Timing,
    wire::{Backoff, Exchange, random},
};

/// Opens the stream and keeps it open. The receiver resolves when the server has responded to the first request for it.
pub(super) fn open(legacy: &Arc<LegacyClient>, headers: Vec<(String, String)>) -> (AbortHandle, oneshot::Receiver<()>) {
    let (opened, answered) = oneshot::channel();
    let me = Arc::downgrade(legacy);
    let handle = tokio::spawn(async move {
        keep(me.clone(), headers, opened).await;
        // Without a session stream there is nothing to wait for.
        report_up(&me, true);
    });
    (handle.abort_handle(), answered)
}

fn report_up(legacy: &Weak<LegacyClient>, up: bool) {
    if let Some(legacy) = legacy.upgrade() {
        legacy.router.session_stream_changed(up);
    }
}

async fn keep(legacy: Weak<LegacyClient>, headers: Vec<(String, String)>, opened: oneshot::Sender<()>) {
    let mut opened = Some(opened);
    let mut last_event_id: Option<String> = None;
    let Some(client) = legacy.upgrade() else { return };
    let (link, clock) = (client.link.clone(), client.link.options.clock.clone());
    drop(client);
    let endless = Timing { give_up_after: std::time::Duration::MAX, ..link.options.timing };
    let mut backoff = Backoff::new(endless);
    loop {
        let mut retry = None;
        let Some(http) = link.wire.http() else { return };
        let mut headers = headers.clone();
        headers.extend(last_event_id.iter().map(|last| ("Last-Event-ID".to_owned(), last.clone())));
        match http.get(headers).await {
            Ok(response) => {
                drop(opened.take());
                report_up(&legacy, true);
                let mut exchange = Exchange::Http(response);
                while let Ok(Some(message)) = exchange.next().await {
                    backoff.reset();
                    let Some(legacy) = legacy.upgrade() else { return };
                    legacy.dispatch(message, None);
                }
                // A status such as 204 means that the server has no such stream.
                if exchange.status() != 200 {
                    return;
                }
                last_event_id = exchange.last_event_id().map(str::to_owned).or(last_event_id);
                retry = exchange.reconnect_delay();
            }
            Err(lost) if lost.is_transient() => retry = retry.or(lost.retry_after()),
            // The server has no such stream, or another process has it open.
            Err(_) => return,
        }
        drop(opened.take());
        report_up(&legacy, false);
        let Some(wait) = backoff.next(clock.now(), retry, random()) else { return };
        clock.sleep(wait).await;
    }
}
