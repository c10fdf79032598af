//! Which era answers a message, whatever way it came.

use std::sync::Arc;

use hyper::{HeaderMap, header::ACCEPT};
use taskwire_core::{CallerId, wire::IncomingMessage};

use super::{Context, Era, MessageSink, Peer, Reply, legacy, modern};

pub(crate) const SESSION_ID: &str = "mcp-session-id";
pub(crate) const VERSION: &str = "mcp-protocol-version";

/// How a message came.
pub(crate) enum Channel<'a> {
    /// With these headers.
    Http(HeaderMap),
    /// On a byte stream, which has one session at most.
    ByteStream(Option<&'a Arc<legacy::Session>>),
}

/// Where a message came from, and the way back.
pub(crate) struct MessageSource<'a> {
    pub(crate) caller: &'a CallerId,
    pub(crate) peer: &'a Peer,
    pub(crate) channel: Channel<'a>,
    pub(crate) out: &'a MessageSink,
}

/// Answers one message of this era, read from `bytes`.
pub(crate) async fn answer(context: &Arc<Context>, era: Era, message: &IncomingMessage, bytes: &[u8], origin: MessageSource<'_>) -> Reply {
    let MessageSource { caller, peer, channel, out } = origin;
    if era == Era::Modern {
        // What a process that joined passes on came without any headers.
        let headers = if let Channel::Http(headers) = channel { Some(headers).filter(|_| !peer.is_local()) } else { None };
        return modern::answer(context, message, bytes, modern::MessageSource { caller, peer, headers, out }).await;
    }
    let way = match &channel {
        Channel::Http(headers) => session_channel(headers, accepts_sse(headers)),
        Channel::ByteStream(session) => legacy::Channel::ByteStream(*session),
    };
    let origin = legacy::MessageSource { caller, channel: way, out };
    if legacy::is_initialize(message) {
        return legacy::initialize(context, message, bytes, origin).await.0;
    }
    legacy::answer(context, message, bytes, origin).await
}

/// What headers say of a session; `events` if its client takes an event stream for an answer.
pub(crate) fn session_channel(headers: &HeaderMap, events: bool) -> legacy::Channel<'_> {
    legacy::Channel::Http { session: text(headers, SESSION_ID), version: text(headers, VERSION), accepts_sse: events }
}

/// A header as text.
pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    // What is no text is still there, and will not be what is asked for.
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

/// Whether a client takes an event stream for an answer.
pub(crate) fn accepts_sse(headers: &HeaderMap) -> bool {
    let kinds = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let names = kinds.filter_map(|kind| kind.split(';').next()).map(str::trim);
    names.into_iter().any(|kind| matches!(kind, "text/event-stream" | "text/*" | "*/*"))
}
