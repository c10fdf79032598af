//! Several messages at once, as the first of these versions has them.

use std::sync::Arc;

use serde_json::value::RawValue;
use taskwire_core::{
    CallerId,
    wire::{Incoming, code},
};

use super::{In, Way, answer_in, begins, find};
use crate::dialect::{Context, Fault, Outbox, Reply, Sent};

/// Answers each message of a batch. Nothing but responses comes back, so that nobody can be asked on the way.
pub(crate) async fn batch(shared: &Arc<Context>, caller: &CallerId, way: Way<'_>, bytes: &[u8]) -> Reply {
    match answers(shared, caller, way, bytes).await {
        Ok(reply) => reply,
        Err(fault) => Reply::fault(None, &fault),
    }
}

async fn answers(shared: &Arc<Context>, caller: &CallerId, way: Way<'_>, bytes: &[u8]) -> Result<Reply, Fault> {
    let invalid = |message: String| Fault::new(400, code::INVALID_REQUEST, message);
    let session = match way {
        Way::Http { session: Some(name), version, .. } => Some(find(shared, caller, Some(name), version)?),
        Way::Http { session: None, .. } => None,
        Way::Stream(session) => session.cloned(),
    };
    let Some(session) = session.filter(|session| session.agreed().has_batches()) else {
        return Err(invalid("batches are not part of this protocol: send one message at a time".to_owned()));
    };
    let messages: Vec<&RawValue> =
        serde_json::from_slice(bytes).map_err(|error| Fault::new(400, code::PARSE_ERROR, format!("the batch is not JSON: {error}")))?;
    let max = shared.config.requests_per_stream;
    if messages.is_empty() || messages.len() > max {
        return Err(invalid(format!("a batch has 1 to {max} messages (configuration key `requests_per_stream`)")));
    }
    let session = &session;
    let replies = messages.iter().map(|raw| async move {
        let bytes = raw.get().as_bytes();
        let message = match Incoming::parse(bytes) {
            Ok(message) if begins(&message) => {
                let fault = Fault::new(400, code::INVALID_REQUEST, "`initialize` comes alone");
                return Reply::fault(message.id.as_ref(), &fault);
            }
            Ok(message) => message,
            Err(malformed) => return Reply::fault(malformed.id.as_ref(), &Fault { status: 400, error: malformed.error }),
        };
        let out = Outbox::closed();
        answer_in(shared, &message, bytes, In { session, out: &out, events: false, detaches: true }).await
    });
    let mut replies = futures_util::future::join_all(replies).await;
    let sent: Vec<Sent> = replies.iter_mut().filter_map(|reply| reply.sent.take()).collect();
    let bodies: Vec<&[u8]> = replies.iter().map(|reply| &*reply.body).filter(|body| !body.is_empty()).collect();
    if bodies.is_empty() {
        return Ok(Reply::accepted());
    }
    let all_sent = Sent::new(move |delivered| {
        if delivered {
            sent.into_iter().for_each(Sent::delivered)
        }
    });
    Ok(Reply::new(200, [b"[", &*bodies.join(&b","[..]), b"]"].concat()).then(Some(all_sent)))
}
