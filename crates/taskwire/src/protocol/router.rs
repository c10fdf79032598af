//! Passes a message to its era, whether it came over HTTP or on a byte stream.

use std::sync::Arc;

use hyper::{HeaderMap, header::ACCEPT};
use taskwire_core::wire::IncomingMessage;

use super::{Context, Era, MessageSink, Peer, Reply, TraceHeaders, legacy, modern};
use crate::auth::Identity;

pub(crate) const VERSION: &str = "mcp-protocol-version";

pub(crate) enum Channel<'a> {
    Http(HeaderMap),
    /// On a byte stream, which has one session at most.
    ByteStream(Option<&'a Arc<legacy::Session>>),
}

pub(crate) struct MessageSource<'a> {
    pub(crate) identity: &'a Identity,
    pub(crate) peer: &'a Peer,
    pub(crate) channel: Channel<'a>,
    pub(crate) out: &'a MessageSink,
}

pub(crate) async fn respond(context: &Arc<Context>, era: Era, message: &IncomingMessage, bytes: &[u8], origin: MessageSource<'_>) -> Reply {
    let MessageSource { identity, peer, channel, out } = origin;
    if era == Era::Modern {
        // A process that joined passes on lines, so its HTTP headers are its own and not the client's.
        let headers = if let Channel::Http(headers) = channel { Some(headers).filter(|_| !peer.is_local()) } else { None };
        return modern::handle(context, message, bytes, modern::MessageSource { identity, peer, headers, out }).await;
    }
    let channel = match &channel {
        Channel::Http(headers) => session_channel(headers, accepts_sse(headers)),
        Channel::ByteStream(session) => legacy::Channel::ByteStream(*session),
    };
    let origin = legacy::MessageSource { identity, channel, out };
    // In memory of their own: else each request would take what the largest of all eras takes.
    if legacy::is_initialize(message) {
        return Box::pin(legacy::initialize(context, message, bytes, origin)).await.0;
    }
    Box::pin(legacy::handle(context, message, bytes, origin)).await
}

/// What the headers say of a session; `events` says whether the client accepts an event stream as the response.
pub(crate) fn session_channel(headers: &HeaderMap, events: bool) -> legacy::Channel<'_> {
    let (session, version) = (text(headers, legacy::SESSION_ID), text(headers, VERSION));
    legacy::Channel::Http { session, version, accepts_sse: events, trace: TraceHeaders::of(headers) }
}

pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    // A value that is no text still counts as present, and equals nothing that is expected.
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

/// Whether a client accepts an event stream as the response.
pub(crate) fn accepts_sse(headers: &HeaderMap) -> bool {
    let kinds = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let names = kinds.filter_map(|kind| kind.split(';').next()).map(str::trim);
    names.into_iter().any(|kind| matches!(kind, "text/event-stream" | "text/*" | "*/*"))
}
