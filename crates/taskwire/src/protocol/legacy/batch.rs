//! Batches: several messages in one, which only 2025-03-26 has.

use std::sync::Arc;

use serde_json::value::RawValue;
use taskwire_core::wire::{IncomingMessage, code};

use super::{Channel, SessionContext, admit, find, handle_in_session, is_initialize};
use crate::{
    auth::Identity,
    metrics,
    protocol::{Context, Fault, MessageSink, OnSent, Reply},
};

/// Responds to each message of a batch. Only responses are sent back, so nothing can be asked meanwhile.
pub(crate) async fn batch(context: &Arc<Context>, identity: &Identity, channel: Channel<'_>, bytes: &[u8]) -> Reply {
    match answers(context, identity, channel, bytes).await {
        Ok(reply) => reply,
        Err(fault) => Reply::fault(None, &fault),
    }
}

async fn answers(context: &Arc<Context>, identity: &Identity, channel: Channel<'_>, bytes: &[u8]) -> Result<Reply, Fault> {
    let invalid = |message: String| Fault::new(400, code::INVALID_REQUEST, message);
    let trace = channel.trace();
    let session = match channel {
        Channel::Http { session: Some(name), version, .. } => {
            // Its messages count, too, but only when its session is found.
            context.admit_request(&identity.caller)?;
            Some(find(context, &identity.caller, Some(name), version).await?)
        }
        Channel::Http { session: None, .. } => None,
        Channel::ByteStream(session) => session.cloned(),
    };
    let Some(session) = session.filter(|session| session.terms().has_batches()) else {
        return Err(invalid("batches are not part of this protocol: send one message at a time".to_owned()));
    };
    let messages: Vec<&RawValue> =
        serde_json::from_slice(bytes).map_err(|error| Fault::new(400, code::PARSE_ERROR, format!("the batch is not JSON: {error}")))?;
    let max = context.config.requests_per_stream;
    if messages.is_empty() || messages.len() > max {
        return Err(invalid(format!("a batch has 1 to {max} messages (configuration key `requests_per_stream`)")));
    }
    let session = &session;
    let replies = messages.iter().map(|raw| async move {
        let bytes = raw.get().as_bytes();
        let message = match IncomingMessage::parse(bytes) {
            Ok(message) if is_initialize(&message) => {
                let fault = Fault::new(400, code::INVALID_REQUEST, "`initialize` comes alone");
                return Reply::fault(message.id.as_ref(), &fault);
            }
            Ok(message) => message,
            Err(malformed) => return Reply::fault(malformed.id.as_ref(), &Fault::of(400, malformed.error)),
        };
        context.engine.metrics().request(metrics::Era::Legacy, message.method.as_deref());
        let span = &match admit(context, &message, bytes, &identity.caller, trace) {
            Ok(span) => span,
            Err(reply) => return reply,
        };
        let out = MessageSink::closed();
        let within = SessionContext { session, identity, out: &out, can_stream: false, can_reconnect: true, span };
        handle_in_session(context, &message, bytes, within).await
    });
    let mut replies = futures_util::future::join_all(replies).await;
    let sent: Vec<OnSent> = replies.iter_mut().filter_map(|reply| reply.on_sent.take()).collect();
    let bodies: Vec<&[u8]> = replies.iter().map(|reply| &*reply.body).filter(|body| !body.is_empty()).collect();
    if bodies.is_empty() {
        return Ok(Reply::accepted());
    }
    let all_sent = OnSent::new(move |delivered| {
        if delivered {
            sent.into_iter().for_each(OnSent::sent)
        }
    });
    Ok(Reply::new(200, [b"[", &*bodies.join(&b","[..]), b"]"].concat()).on_sent(Some(all_sent)))
}
