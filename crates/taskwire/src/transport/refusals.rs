//! What is said to whom there is no room for: that there are too many connections, and when to come back. Probes are answered all the same.

use std::{sync::Arc, time::Duration};

use http_body_util::{BodyExt, Limited};
use hyper::{Request, Response, body::Incoming as HttpBody};
use taskwire_core::wire::code;

use super::{
    connection_slots::ConnectionSlots,
    http::{because, refuse},
    reply_body::ReplyBody,
};
use crate::{
    clock::{Clock, Sleep},
    config::HttpConfig,
    metrics::Refused,
};

/// How many connections are refused at one time: one for so many that are served, since files may be few, and within these bounds.
const SERVED_PER_REFUSAL: usize = 8;
const REFUSALS_MIN: usize = 16;
const REFUSALS_MAX: usize = 64;
/// How long one of them may take, from its first byte to the last of its answer.
pub(super) const REFUSAL_TIME: Duration = Duration::from_secs(2);
/// How much of that is for the body of its request.
const BODY_TIME: Duration = Duration::from_secs(1);
/// Bytes of a body that are read before it is answered.
const UNREAD_BYTES: usize = 64 * 1024;

/// The slots of connections that are refused.
pub(super) fn slots(http: &HttpConfig) -> Arc<ConnectionSlots> {
    ConnectionSlots::of_refusals((http.connections / SERVED_PER_REFUSAL).clamp(REFUSALS_MIN, REFUSALS_MAX))
}

/// Serves a connection in the background, for so long at most.
pub(super) fn spawn(served: impl Future<Output = ()> + Send + 'static, limit: Option<Sleep>) {
    match limit {
        None => drop(tokio::spawn(served)),
        Some(limit) => drop(tokio::spawn(async move {
            tokio::select! {
                () = served => {}
                () = limit => tracing::debug!("a connection for which there is no room took too long"),
            }
        })),
    }
}

/// The answer to the only request on such a connection.
pub(super) async fn respond(clock: &Arc<dyn Clock>, request: Request<HttpBody>) -> Response<ReplyBody> {
    // A connection that is closed with something unread in it may lose the answer.
    let mut body = Limited::new(request.into_body(), UNREAD_BYTES);
    let read = async { while let Some(Ok(_)) = body.frame().await {} };
    tokio::select! {
        () = read => {}
        () = clock.sleep(BODY_TIME) => {}
    }
    too_many_connections(Refused::Connections)
}

/// The answer to a request whose connection has no slot.
pub(super) fn too_many_connections(why: Refused) -> Response<ReplyBody> {
    let message = "too many connections (configuration key `http.connections`): try again";
    because(why, refuse(503, code::UNAVAILABLE, message))
}
