//! The body of an HTTP response: one JSON message, or a stream of server-sent events.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use hyper::body::{Body, Frame, SizeHint};
use taskwire_core::Timestamp;
use tokio::sync::mpsc;

use super::connection_slots::ConnectionSlot;
use crate::{
    clock::{Clock, Sleep},
    protocol::{Framing, OnSent, Reply},
};

/// A response that is still being made, and the messages that go before it.
pub(crate) struct EventStream {
    pub(crate) answer: Pin<Box<dyn Future<Output = Reply> + Send>>,
    /// Framed.
    pub(crate) messages: mpsc::Receiver<Bytes>,
    pub(crate) first: Option<Bytes>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) keep_alive: Duration,
    pub(crate) sleep: Sleep,
    /// When something was last sent.
    pub(crate) last: Timestamp,
    pub(crate) done: bool,
}

pub(crate) enum ReplyBody {
    /// One message.
    Whole(Option<Bytes>, Option<OnSent>),
    /// Notifications, then the response. The client drives it: one that does not read makes it wait.
    Events(Box<EventStream>),
}

impl ReplyBody {
    pub(crate) fn text(text: &'static str) -> Self {
        Self::Whole(Some(Bytes::from_static(text.as_bytes())), None)
    }
}

impl EventStream {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let frame = self.poll_message(context);
        if frame.is_ready() {
            self.last = self.clock.now();
            return frame;
        }
        // A comment now and then keeps proxies from closing an idle stream. No blank line follows it, because some clients take that for
        // an event if one with an id came before. The sleep does not start again with each message: when it ends, `last` tells
        // whether the stream was idle.
        while self.sleep.as_mut().poll(context).is_ready() {
            let now = self.clock.now();
            // The clock may have been set back.
            self.last = self.last.min(now);
            let quiet = now.since(self.last) >= self.keep_alive;
            if quiet {
                self.last = now;
            }
            self.sleep = self.clock.sleep(self.keep_alive - now.since(self.last).min(self.keep_alive));
            if quiet {
                return Poll::Ready(Some(Bytes::from_static(b": keep-alive\n")));
            }
        }
        Poll::Pending
    }

    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        if let Poll::Ready(Some(message)) = self.messages.poll_recv(context) {
            return Poll::Ready(Some(message));
        }
        if self.done {
            return Poll::Ready(None);
        }
        let Poll::Ready(reply) = self.answer.as_mut().poll(context) else {
            // The request may have sent something while it was polled.
            return match self.messages.poll_recv(context) {
                Poll::Ready(Some(message)) => Poll::Ready(Some(message)),
                _ => Poll::Pending,
            };
        };
        self.done = true;
        // Messages that were sent before the response go before it.
        let mut last = BytesMut::new();
        while let Ok(message) = self.messages.try_recv() {
            last.put_slice(&message);
        }
        if !reply.body.is_empty() {
            last.put_slice(&Framing::SSE.frame(&reply.body));
        }
        if let Some(sent) = reply.on_sent {
            sent.sent();
        }
        Poll::Ready((!last.is_empty()).then(|| last.freeze()))
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(bytes, sent) => {
                if let Some(sent) = sent.take() {
                    sent.sent();
                }
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
            Self::Events(stream) => stream.poll(context).map(|frame| frame.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None, _))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes, _) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Events(_) => SizeHint::default(),
        }
    }
}

/// The body of a response on a connection, which keeps its slot until the whole body was handed over.
pub(super) struct SlotBody {
    body: ReplyBody,
    slot: Arc<ConnectionSlot>,
}

impl SlotBody {
    pub(super) fn new(body: ReplyBody, slot: Arc<ConnectionSlot>) -> Self {
        Self { body, slot }
    }
}

impl Drop for SlotBody {
    fn drop(&mut self) {
        self.slot.reply_handed_over();
    }
}

impl Body for SlotBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
