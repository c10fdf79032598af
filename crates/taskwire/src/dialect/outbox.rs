//! Where a request's notifications go before its response: to the transport that brought it.

use bytes::Bytes;
use serde::Serialize;
use taskwire_core::wire::write_notification;
use tokio::sync::mpsc;

/// The way back to one client, bounded: a client that does not read makes the sender wait.
#[derive(Debug, Clone)]
pub(crate) struct Outbox(mpsc::Sender<Bytes>);

/// The client is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone;

impl Outbox {
    pub(crate) fn new(sender: mpsc::Sender<Bytes>) -> Self {
        Self(sender)
    }

    /// Sends one message.
    pub(crate) async fn send(&self, message: Bytes) -> Result<(), Gone> {
        self.0.send(message).await.map_err(|_| Gone)
    }

    /// Sends a notification.
    pub(crate) async fn notify<T: Serialize + ?Sized>(&self, method: &str, params: &T) -> Result<(), Gone> {
        let mut message = Vec::with_capacity(256);
        match write_notification(&mut message, method, params) {
            Ok(()) => self.send(message.into()).await,
            Err(error) => {
                tracing::error!(%error, method, "a notification could not be written");
                Ok(())
            }
        }
    }
}
