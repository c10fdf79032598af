//! Who may send a request by HTTP, what others are told, and what ends with a token.

use std::{pin::Pin, sync::Arc, time::Duration};

use hyper::{
    HeaderMap, Method, Response, StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};
use taskwire_core::{Timestamp, wire::code};

use super::reply_body::ReplyBody;
use crate::{
    auth::{Denied, Identity, RequestCredentials, challenge},
    protocol::{Context, Fault, Peer, Reply},
};

/// How long after its token has expired a request may come to an end by itself.
const GRACE: Duration = Duration::from_secs(2);

/// A reply that is being made.
pub(super) type Answer = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// Who sent a request; the error is the response to it. A process that can open the local socket is of the same user.
pub(super) async fn identify(context: &Context, peer: &Peer, headers: &HeaderMap) -> Result<Identity, Reply> {
    if peer.is_local() {
        return Ok(Identity::local());
    }
    let credentials = RequestCredentials::new(headers, peer.address(), context.engine.clock().now()).with_certificate(peer.certificate());
    let identified = context.config.auth.identify(credentials).outcome().await;
    identified.map_err(|denied| {
        tracing::debug!(%denied, "it is not known who sent a request");
        context.sign_in_failed(&denied, peer.certificate().is_some());
        Reply::fault(None, &refusal(context, &denied))
    })
}

fn refusal(context: &Context, denied: &Denied) -> Fault {
    let challenge = challenge::for_denied(&*context.config.auth, denied);
    match denied {
        Denied::Missing | Denied::Invalid(_) | Denied::Certificate(_) => Fault::challenged(401, denied.to_string(), challenge),
        Denied::Malformed(_) => Fault::challenged(400, denied.to_string(), challenge),
        Denied::Unavailable(_) => Fault::new(503, code::UNAVAILABLE, denied.to_string()),
    }
}

/// What clients read to find who issues tokens for this server, if this path is for that. It needs no token.
pub(super) fn metadata(context: &Context, path: &str, method: &Method) -> Option<Response<ReplyBody>> {
    let auth = &*context.config.auth;
    let resource = auth.resource().filter(|resource| resource.is_described_at(path))?;
    match *method {
        Method::GET | Method::HEAD => {
            let document = resource.document(&context.config.name, auth.scope_rules());
            let mut response = Response::new(ReplyBody::Whole(Some(document.into()), None));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            Some(response)
        }
        // A browser asks whether it may.
        Method::OPTIONS => {
            let mut response = Response::new(ReplyBody::Whole(None, None));
            *response.status_mut() = StatusCode::NO_CONTENT;
            Some(response)
        }
        _ => None,
    }
}

/// The end of a request whose token expires while it waits or streams. What can end by itself does so at that moment, as its era has it;
/// this is for the rest, and for clients that do not read. What the request has begun goes on as if its client had hung up.
pub(super) struct Expiry {
    at: Timestamp,
    context: Arc<Context>,
}

impl Expiry {
    /// None if the token does not expire.
    pub(super) fn of(context: &Arc<Context>, identity: &Identity) -> Option<Self> {
        identity.expires.map(|expires| Self { at: expires.after(GRACE), context: context.clone() })
    }

    /// The answer, or what `late` makes of the error if that comes first.
    pub(super) fn bound(self, answer: Answer, late: impl FnOnce(&Fault) -> Reply + Send + 'static) -> Answer {
        let Self { at, context } = self;
        Box::pin(async move {
            tokio::select! {
                biased;
                reply = answer => reply,
                () = context.engine.clock().sleep_until(at) => {
                    tracing::debug!("a token has expired: its request is ended");
                    let denied = Denied::Invalid("the token expired while the request waited, and what it began goes on".to_owned());
                    late(&refusal(&context, &denied))
                }
            }
        })
    }
}
