//! Where a request's notifications go before its response: to the transport that brought it.

use bytes::Bytes;
use serde::Serialize;
use taskwire_core::wire::write_notification;
use tokio::sync::{mpsc, watch};

/// What stands around a message on a wire.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Framing {
    pub(crate) before: &'static [u8],
    pub(crate) after: &'static [u8],
    /// A message that is larger than this may be sent in pieces: nothing else comes between them.
    pub(crate) unsplit_bytes_max: usize,
    /// Whether a message can have a name by which a reader that was cut off comes back.
    pub(crate) has_event_ids: bool,
}

impl Framing {
    /// Server-sent events.
    pub(crate) const SSE: Self = Self { before: b"data: ", after: b"\n\n", unsplit_bytes_max: 2 * 1024, has_event_ids: true };
    /// One message a line, among those of other requests.
    pub(crate) const LINES: Self = Self { before: b"", after: b"\n", unsplit_bytes_max: usize::MAX, has_event_ids: false };

    /// The message with its frame and, where it can have one, its name.
    pub(crate) fn frame_with_id(self, name: Option<&str>, message: &[u8]) -> Bytes {
        match name.filter(|_| self.has_event_ids) {
            Some(name) => [b"id: ", name.as_bytes(), b"\n", self.before, message, self.after].concat().into(),
            None => self.frame(message),
        }
    }

    /// The message with its frame.
    pub(crate) fn frame(self, message: &[u8]) -> Bytes {
        [self.before, message, self.after].concat().into()
    }
}

/// The way back to one client, bounded: a client that does not read makes the sender wait.
#[derive(Debug, Clone)]
pub(crate) struct MessageSink {
    sender: Option<mpsc::Sender<Bytes>>,
    framing: Framing,
    /// Set when the stream that leads to the client is about to end.
    ending: Option<watch::Receiver<bool>>,
    /// The byte stream that the client has for all its requests, by whose names it cancels them.
    byte_stream: Option<ByteStreamId>,
    /// Whether a process that joined passes the request on, and sends it again when the server is replaced.
    bridged: bool,
}

/// What tells one byte stream from another, within one caller.
pub(crate) type ByteStreamId = std::sync::Arc<str>;

/// The client is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClientGone;

impl MessageSink {
    /// To a transport that takes messages in these frames.
    pub(crate) fn new(sender: mpsc::Sender<Bytes>, framing: Framing) -> Self {
        Self { sender: Some(sender), framing, ending: None, byte_stream: None, bridged: false }
    }

    /// On a stream that says when it is about to end.
    pub(crate) fn with_ending(mut self, ending: watch::Receiver<bool>) -> Self {
        self.ending = Some(ending);
        self
    }

    /// For a client that has a byte stream for all its requests.
    pub(crate) fn on_byte_stream(mut self, stream: Option<ByteStreamId>) -> Self {
        self.byte_stream = stream;
        self
    }

    /// For a process that joined.
    pub(crate) fn bridged(mut self, local: bool) -> Self {
        self.bridged = local;
        self
    }

    /// Whether a process that joined passes the request on.
    pub(crate) fn is_bridged(&self) -> bool {
        self.bridged
    }

    /// The byte stream that the client has for all its requests, if it has one.
    pub(crate) fn byte_stream(&self) -> Option<&ByteStreamId> {
        self.byte_stream.as_ref()
    }

    /// For messages to which nothing but the response is sent.
    pub(crate) fn closed() -> Self {
        Self { sender: None, framing: Framing::LINES, ending: None, byte_stream: None, bridged: false }
    }

    /// What stands around a message here.
    pub(crate) fn framing(&self) -> Framing {
        self.framing
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
    pub(crate) async fn send(&self, message: &[u8]) -> Result<(), ClientGone> {
        self.send_framed(self.framing.frame(message)).await
    }

    /// Sends messages that stand in their frames already, or a piece of one.
    pub(crate) async fn send_framed(&self, messages: Bytes) -> Result<(), ClientGone> {
        self.sender.as_ref().ok_or(ClientGone)?.send(messages).await.map_err(|_| ClientGone)
    }

    /// Sends one message if there is room for it now.
    pub(crate) fn try_send(&self, message: &[u8]) {
        if let Some(sender) = &self.sender {
            let _ = sender.try_send(self.framing.frame(message));
        }
    }

    /// Sends a notification.
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
