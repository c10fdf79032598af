//! `/api` over HTTP: who asks, and that no page of another origin changes anything.

use hyper::{Method, Request, Response, body::Incoming as HttpBody};
use taskwire_core::wire::code;

use super::{
    Endpoint, access,
    connection_slots::ConnectionSlot,
    guard,
    http::{because, denied, is_json, refuse, reply_response, slot_evicted},
    reply_body::ReplyBody,
};
use crate::{
    auth::Identity,
    metrics::Refused,
    protocol::{
        Peer, Reply,
        api::{self, ApiRequest},
    },
};

pub(super) async fn respond(endpoint: &Endpoint, peer: &Peer, slot: &ConnectionSlot, request: &Request<HttpBody>) -> Response<ReplyBody> {
    let (headers, uri) = (request.headers(), request.uri());
    if request.method() == Method::POST {
        if let Err(refusal) = guard::check_same_origin(headers) {
            return because(Refused::Host, refuse(refusal.status, code::INVALID_REQUEST, refusal.message));
        }
        // A form of another page cannot send that.
        if !is_json(headers) {
            return refuse(415, code::INVALID_REQUEST, "send `Content-Type: application/json`");
        }
    }
    let identity = match access::identify(&endpoint.context, peer, headers).await {
        Ok(identity) => identity,
        Err(refused) => return denied(refused),
    };
    if let Err(fault) = endpoint.context.admit_request(&identity.caller) {
        return reply_response(Reply::fault(None, &fault));
    }
    if !slot.mark_busy() {
        return slot_evicted();
    }
    let query = uri.query().unwrap_or_default();
    reply_response(answer(endpoint, &identity, request.method().as_str(), uri.path(), query).await)
}

/// What the API answers, however it was asked.
pub(crate) async fn answer(endpoint: &Endpoint, identity: &Identity, method: &str, path: &str, query: &str) -> Reply {
    let connections = *endpoint.connections.borrow();
    api::respond(&endpoint.context, ApiRequest { identity, method, path, query, connections }).await
}
