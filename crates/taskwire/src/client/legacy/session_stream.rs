//! The stream that a server writes to when it has something to say that belongs to no request.

use std::sync::{Arc, Weak};

use tokio::{sync::oneshot, task::AbortHandle};

use super::LegacyClient;
use crate::client::{
    Timing,
    wire::{Backoff, Exchange, random},
};

/// Opens it, and keeps it open. The receiver is told when the server has answered, whatever it has.
pub(super) fn open(legacy: &Arc<LegacyClient>, headers: Vec<(String, String)>) -> (AbortHandle, oneshot::Receiver<()>) {
    let (opened, answered) = oneshot::channel();
    let me = Arc::downgrade(legacy);
    let handle = tokio::spawn(async move {
        keep(me.clone(), headers, opened).await;
        // Where there is none, nothing is to be waited for.
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
    let patient = Timing { give_up_after: std::time::Duration::MAX, ..link.options.timing };
    let mut backoff = Backoff::new(patient);
    loop {
        let mut retry = None;
        let Some(http) = link.wire.http() else { return };
        let mut headers = headers.clone();
        headers.extend(last_event_id.iter().map(|last| ("Last-Event-ID".to_owned(), last.clone())));
        match http.get(headers).await {
            Ok(answer) => {
                drop(opened.take());
                report_up(&legacy, true);
                let mut exchange = Exchange::Http(answer);
                while let Ok(Some(message)) = exchange.next().await {
                    backoff.reset();
                    let Some(legacy) = legacy.upgrade() else { return };
                    legacy.dispatch(message, None);
                }
                // A server that has nothing to say and says so at once does not keep such a stream.
                if exchange.status() != 200 {
                    return;
                }
                last_event_id = exchange.last_event_id().map(str::to_owned).or(last_event_id);
                retry = exchange.reconnect_delay();
            }
            Err(lost) if lost.is_transient() => retry = retry.or(lost.retry_after()),
            // There is none to be had, or not for us: another process may have it.
            Err(_) => return,
        }
        drop(opened.take());
        report_up(&legacy, false);
        let Some(wait) = backoff.next(clock.now(), retry, random()) else { return };
        clock.sleep(wait).await;
    }
}
