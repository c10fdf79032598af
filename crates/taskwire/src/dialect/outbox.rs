//! Where a request's notifications go before its response: to the transport that brought it.

use bytes::Bytes;
use serde::Serialize;
use taskwire_core::wire::write_notification;
use tokio::sync::{mpsc, watch};

/// The way back to one client, bounded: a client that does not read makes the sender wait.
#[derive(Debug, Clone)]
pub(crate) struct Outbox {
    sender: Option<mpsc::Sender<Bytes>>,
    /// Set when the stream that leads to the client is about to end.
    ending: Option<watch::Receiver<bool>>,
}

/// The client is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone;

impl Outbox {
    pub(crate) fn new(sender: mpsc::Sender<Bytes>) -> Self {
        Self { sender: Some(sender), ending: None }
    }

    /// On a stream that says when it is about to end.
    pub(crate) fn until(mut self, ending: watch::Receiver<bool>) -> Self {
        self.ending = Some(ending);
        self
    }

    /// For messages to which nothing but the response is sent.
    pub(crate) fn closed() -> Self {
        Self { sender: None, ending: None }
    }

    /// Waits until the stream is about to end.
    pub(crate) async fn ending(&self) {
        match self.ending.clone() {
            Some(mut ending) => {
                let _ = ending.wait_for(|ending| *ending).await;
            }
            None => std::future::pending().await,
        }
    }

    /// Sends one message.
    pub(crate) async fn send(&self, message: Bytes) -> Result<(), Gone> {
        self.sender.as_ref().ok_or(Gone)?.send(message).await.map_err(|_| Gone)
    }

    /// Sends one message if there is room for it now.
    pub(crate) fn try_send(&self, message: Bytes) {
        if let Some(sender) = &self.sender {
            let _ = sender.try_send(message);
        }
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
