//! The modern era: 2026-07-28 with the Tasks extension. Every request describes itself; nothing is remembered between requests.
//!
//! Start with [`answer`], which holds the order of checks that the protocol and its conformance suite demand.

mod call;
mod catalog;
mod headers;
mod json;
mod listen;
mod long_poll;
mod meta;
mod partials;
mod render;
mod request_state;
mod tasks;

use std::sync::Arc;

use hyper::HeaderMap;
use serde::Deserialize;
use serde_json::json;
use taskwire_core::{
    CallerId,
    wire::{IncomingMessage, RequestId, code},
};

use self::{
    json::Object,
    meta::{Meta, Params},
};
pub(crate) use self::{json::server_meta, render::TaskJsonCache};
use super::{Fault, LIST, MessageSink, OnSent, PARTIALS, Peer, Reply, RequestSpan, TraceHeaders};
use crate::{
    auth::Identity,
    metrics::{self, Answer, CallCount},
    protocol::Context,
};

const VERSIONS: [&str; 1] = ["2026-07-28"];
const TASKS: &str = "io.modelcontextprotocol/tasks";
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

/// One request, after the checks that all methods share.
struct Cx<'a> {
    context: &'a Arc<Context>,
    identity: &'a Identity,
    caller: &'a CallerId,
    id: &'a RequestId,
    meta: Meta<'a>,
    params: Params<'a>,
    raw_params: &'a str,
    /// Only of tool calls, whose arguments they may repeat; none on a byte stream.
    headers: Option<HeaderMap>,
    out: &'a MessageSink,
    peer: &'a Peer,
    span: &'a RequestSpan,
    /// Counts the request, if it is a call.
    counted: CallCount,
}

impl Cx<'_> {
    /// Reads parameters that only this method has.
    fn read<'p, T: Deserialize<'p>>(&'p self) -> Result<T, Fault> {
        serde_json::from_str(self.raw_params).map_err(|error| Fault::params(format!("invalid params: {error}")))
    }

    /// Refuses what the caller's scopes do not allow.
    fn authorize(&self, method: &str, tool: Option<&str>) -> Result<(), Fault> {
        self.context.authorize(self.identity, method, tool)
    }

    /// Refuses requests that do not declare the Tasks extension.
    fn needs_tasks(&self) -> Result<(), Fault> {
        if self.meta.tasks { Ok(()) } else { Err(Fault::missing_capability(&json!({"extensions": {TASKS: {}}}))) }
    }

    /// Refuses requests that do not declare both extensions that a list of tasks needs.
    fn needs_list(&self) -> Result<(), Fault> {
        if self.meta.tasks && self.meta.list {
            return Ok(());
        }
        Err(Fault::missing_capability(&json!({"extensions": {TASKS: {}, LIST: {}}})))
    }

    /// Refuses requests that do not declare both extensions that partials need.
    fn needs_partials(&self) -> Result<(), Fault> {
        if self.meta.tasks && self.meta.partials {
            return Ok(());
        }
        Err(Fault::missing_capability(&json!({"extensions": {TASKS: {}, PARTIALS: {}}})))
    }
}

/// The result of a method, as JSON text.
struct MethodResult {
    result: Vec<u8>,
    on_sent: Option<OnSent>,
}

impl From<Object> for MethodResult {
    fn from(object: Object) -> Self {
        Self { result: object.end(), on_sent: None }
    }
}

/// What is sent besides the response to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseKind {
    Single,
    /// Progress and log messages, before the response.
    WithNotes,
    /// Notifications, until the client stops listening.
    Stream,
}

pub(crate) fn response_kind(message: &IncomingMessage, bytes: &[u8]) -> ResponseKind {
    let asks = |key: &str| message.params(bytes).is_some_and(|params| params.contains(key));
    match message.method.as_deref() {
        Some("tools/call") if asks("\"progressToken\"") || asks("/logLevel\"") => ResponseKind::WithNotes,
        Some("subscriptions/listen") => ResponseKind::Stream,
        _ => ResponseKind::Single,
    }
}

pub(crate) struct MessageSource<'a> {
    pub(crate) identity: &'a Identity,
    pub(crate) peer: &'a Peer,
    /// None on a byte stream.
    pub(crate) headers: Option<HeaderMap>,
    pub(crate) out: &'a MessageSink,
}

pub(crate) async fn handle(context: &Arc<Context>, message: &IncomingMessage, bytes: &[u8], origin: MessageSource<'_>) -> Reply {
    context.engine.metrics().request(metrics::Era::Modern, message.method.as_deref());
    let Some(method) = message.method.as_deref() else {
        let fault = Fault::new(400, code::INVALID_REQUEST, "clients send requests and notifications, no responses");
        return Reply::fault(None, &fault);
    };
    let Some(id) = &message.id else {
        if let Err(fault) = context.authorize(origin.identity, method, None) {
            return Reply::fault(None, &fault);
        }
        if method == "notifications/cancelled" {
            super::on_cancelled(context, &origin.identity.caller, origin.out.byte_stream(), message.params(bytes).unwrap_or("{}"));
        }
        return Reply::accepted();
    };
    let params = message.params(bytes).unwrap_or("{}");
    let headers = origin.headers.as_ref().map(TraceHeaders::of).unwrap_or_default();
    let span = RequestSpan::begin(&context.engine, method, id, params, headers);
    let admitted = context.admit_request(&origin.identity.caller);
    let responded = match admitted {
        Ok(()) => respond(context, method, id, params, origin, &span).await,
        Err(fault) => Err(fault),
    };
    match responded {
        Err(fault) => {
            span.failed(&fault);
            Reply::fault(Some(id), &fault)
        }
        Ok(done) => Reply::result(id, &done.result).on_sent(done.on_sent),
    }
}

async fn respond(
    context: &Arc<Context>,
    method: &str,
    id: &RequestId,
    text: &str,
    origin: MessageSource<'_>,
    span: &RequestSpan,
) -> Result<MethodResult, Fault> {
    let MessageSource { identity, peer, headers, out } = origin;
    let mut params = Params::read(text)?;
    let meta = params.meta(method)?;
    if let Some(headers) = &headers {
        headers::check(headers, method, &params, &meta.version, context.config.http.strict_headers)?;
    }
    if !VERSIONS.contains(&&*meta.version) {
        return Err(unsupported(&meta.version));
    }
    let headers = headers.filter(|_| method == "tools/call");
    let counted = context.engine.metrics().call(metrics::Era::Modern);
    let cx = Cx { context, identity, caller: &identity.caller, id, meta, params, raw_params: text, headers, out, peer, span, counted };
    if method != "tools/call" {
        cx.authorize(method, None)?;
    }
    match method {
        // It is the largest by far: in memory of its own, the others do not keep room for it while they wait.
        "tools/call" => Box::pin(call::call(&cx)).await.inspect_err(|_| cx.counted.answered(Answer::Error)),
        "tasks/get" => tasks::get(&cx).await,
        "tasks/update" => tasks::update(&cx).await,
        "tasks/cancel" => tasks::cancel(&cx).await,
        "subscriptions/listen" => listen::listen(&cx).await,
        "dev.taskwire/partials/read" => partials::read(&cx).await,
        "dev.taskwire/tasks/list" => tasks::list(&cx).await,
        "server/discover" => Ok(catalog::discover(&cx).into()),
        "tools/list" => catalog::tools(&cx).map(Into::into),
        "prompts/get" => catalog::prompt(&cx).await.map(Into::into),
        "resources/read" => catalog::read(&cx).await.map(Into::into),
        "completion/complete" => catalog::complete(&cx).await.map(Into::into),
        _ => match catalog::list(&cx, method) {
            Some(page) => page.map(Into::into),
            None => Err(Fault::new(404, code::METHOD_NOT_FOUND, format!("there is no method `{method}`"))),
        },
    }
}

fn unsupported(requested: &str) -> Fault {
    Fault::new(
        400,
        code::UNSUPPORTED_VERSION,
        format!("the protocol version `{requested}` is not supported: use {}", VERSIONS.join(" or ")),
    )
    .with_data(json!({"supported": VERSIONS, "requested": requested}))
}
