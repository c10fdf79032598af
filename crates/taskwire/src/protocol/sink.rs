//! Where an era sends a request's messages: a bounded queue to the transport that brought the request.

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use taskwire_core::{Timestamp, wire::write_notification};
use tokio::sync::{mpsc, watch};

use crate::clock::Clock;

/// What a stream of events has as a comment when it ends because its token has expired.
const TOKEN_EXPIRED: &[u8] = b": the token has expired\n";

/// The bytes around a message on the wire.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Framing {
    pub(crate) before: &'static [u8],
    pub(crate) after: &'static [u8],
    /// A larger message may be sent in pieces, with nothing between them.
    pub(crate) unsplit_bytes_max: usize,
    /// Whether a message can carry an event id, by which a client resumes the stream.
    pub(crate) has_event_ids: bool,
}

impl Framing {
    pub(crate) const SSE: Self = Self { before: b"data: ", after: b"\n\n", unsplit_bytes_max: 2 * 1024, has_event_ids: true };
    /// One message a line; messages of other requests come between.
    pub(crate) const LINES: Self = Self { before: b"", after: b"\n", unsplit_bytes_max: usize::MAX, has_event_ids: false };

    /// The message framed, with its event id if the framing has them.
    pub(crate) fn frame_with_id(self, name: Option<&str>, message: &[u8]) -> Bytes {
        match name.filter(|_| self.has_event_ids) {
            Some(name) => [b"id: ", name.as_bytes(), b"\n", self.before, message, self.after].concat().into(),
            None => self.frame(message),
        }
    }

    pub(crate) fn frame(self, message: &[u8]) -> Bytes {
        [self.before, message, self.after].concat().into()
    }
}

/// Sends messages to one client. The queue is bounded: a client that does not read makes the sender wait.
#[derive(Debug, Clone)]
pub(crate) struct MessageSink {
    sender: Option<mpsc::Sender<Bytes>>,
    framing: Framing,
    /// Set when the stream that leads to the client is about to end.
    ending: Option<watch::Receiver<bool>>,
    /// When the token of the request expires, by this clock.
    expiry: Option<(Timestamp, Arc<dyn Clock>)>,
    /// The byte stream that carries all requests of the client, so that it can cancel them by id.
    byte_stream: Option<ByteStreamId>,
    /// Whether a process that joined passes the request on. It resends the request when another server takes over.
    bridged: bool,
}

/// Distinguishes the byte streams of one caller.
pub(crate) type ByteStreamId = std::sync::Arc<str>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClientGone;

impl MessageSink {
    pub(crate) fn new(sender: mpsc::Sender<Bytes>, framing: Framing) -> Self {
        Self { sender: Some(sender), framing, ending: None, expiry: None, byte_stream: None, bridged: false }
    }

    pub(crate) fn with_ending(mut self, ending: watch::Receiver<bool>) -> Self {
        self.ending = Some(ending);
        self
    }

    /// The request's token expires at that time; never if absent.
    pub(crate) fn with_token_until(mut self, expires: Option<Timestamp>, clock: &Arc<dyn Clock>) -> Self {
        self.expiry = expires.map(|expires| (expires, clock.clone()));
        self
    }

    /// When the token of the request expires; never if absent.
    pub(crate) fn token_expires(&self) -> Option<Timestamp> {
        self.expiry.as_ref().map(|(expires, _)| *expires)
    }

    pub(crate) fn on_byte_stream(mut self, stream: Option<ByteStreamId>) -> Self {
        self.byte_stream = stream;
        self
    }

    pub(crate) fn bridged(mut self, local: bool) -> Self {
        self.bridged = local;
        self
    }

    pub(crate) fn is_bridged(&self) -> bool {
        self.bridged
    }

    pub(crate) fn byte_stream(&self) -> Option<&ByteStreamId> {
        self.byte_stream.as_ref()
    }

    /// For a request that is sent nothing but its response.
    pub(crate) fn closed() -> Self {
        Self { sender: None, framing: Framing::LINES, ending: None, expiry: None, byte_stream: None, bridged: false }
    }

    pub(crate) fn framing(&self) -> Framing {
        self.framing
    }

    /// Waits until the stream is about to end, or the request's token has expired.
    pub(crate) async fn ending(&self) {
        tokio::select! {
            () = self.stream_ending() => {}
            () = self.token_expired() => {}
        }
    }

    async fn stream_ending(&self) {
        match self.ending.clone() {
            Some(mut ending) => {
                let _ = ending.wait_for(|ending| *ending).await;
            }
            None => std::future::pending().await,
        }
    }

    /// Waits until the token has expired, and says so: in the log, and to a client that would see it.
    async fn token_expired(&self) {
        let Some((expires, clock)) = &self.expiry else { return std::future::pending().await };
        clock.sleep_until(*expires).await;
        tracing::debug!("a token has expired: what waits or streams for it ends");
        if let Some(sender) = self.sender.as_ref().filter(|_| self.framing.has_event_ids) {
            let _ = sender.try_send(Bytes::from_static(TOKEN_EXPIRED));
        }
    }

    pub(crate) async fn send(&self, message: &[u8]) -> Result<(), ClientGone> {
        self.send_framed(self.framing.frame(message)).await
    }

    /// Sends messages that are framed already, or a piece of one.
    pub(crate) async fn send_framed(&self, messages: Bytes) -> Result<(), ClientGone> {
        self.sender.as_ref().ok_or(ClientGone)?.send(messages).await.map_err(|_| ClientGone)
    }

    /// Sends one message, or drops it if the queue is full.
    pub(crate) fn try_send(&self, message: &[u8]) {
        if let Some(sender) = &self.sender {
            let _ = sender.try_send(self.framing.frame(message));
        }
    }

    pub(crate) async fn notify<T: Serialize + ?Sized>(&self, method: &str, params: &T) -> Result<(), ClientGone> {
        let mut message = Vec::with_capacity(256);
        match write_notification(&mut message, method, params) {
            Ok(()) => self.send(&message).await,
            Err(error) => {
                tracing::error!(%error, method, "a notification could not be written");
                Ok(())
            }
        }
    }
}
