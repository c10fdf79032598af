//! The modern era: 2026-07-28 with the Tasks extension. Every request describes itself; nothing is remembered between
//! requests.
//!
//! Start with [`answer`], which holds the order of checks that the protocol and its conformance suite demand.

mod call;
mod catalog;
mod headers;
mod json;
mod listen;
mod meta;
mod sealed;
mod tasks;
mod view;

use std::sync::Arc;

use hyper::HeaderMap;
use serde::Deserialize;
use serde_json::json;
use taskwire_core::{
    CallerId,
    wire::{Incoming, RequestId, code},
};

use self::{
    json::Object,
    meta::{Meta, Params},
};
pub(crate) use self::{json::server_meta, view::Shown};
use super::{Fault, Orphan, Outbox, Reply};
use crate::server::Shared;

/// The versions that this dialect speaks.
const VERSIONS: [&str; 1] = ["2026-07-28"];
/// The Tasks extension.
const TASKS: &str = "io.modelcontextprotocol/tasks";
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

/// One request, after the checks that all methods share.
struct Cx<'a> {
    shared: &'a Arc<Shared>,
    caller: &'a CallerId,
    id: &'a RequestId,
    meta: Meta<'a>,
    params: Params<'a>,
    /// The parameters as they came.
    text: &'a str,
    /// Kept for tool calls, whose arguments they may repeat; absent where the transport has none.
    headers: Option<HeaderMap>,
    out: &'a Outbox,
}

impl Cx<'_> {
    /// Reads parameters that only this method has.
    fn read<'p, T: Deserialize<'p>>(&'p self) -> Result<T, Fault> {
        serde_json::from_str(self.text).map_err(|error| Fault::params(format!("invalid params: {error}")))
    }

    /// Refuses callers that did not declare the Tasks extension on this very request.
    fn needs_tasks(&self) -> Result<(), Fault> {
        if self.meta.tasks { Ok(()) } else { Err(Fault::missing_capability(&json!({"extensions": {TASKS: {}}}))) }
    }
}

/// What a method comes to: the text of its result.
struct Done {
    result: Vec<u8>,
    orphan: Option<Orphan>,
}

impl From<Object> for Done {
    fn from(object: Object) -> Self {
        Self { result: object.end(), orphan: None }
    }
}

/// Whether the answer to this message may be more than a response.
pub(crate) fn may_notify(message: &Incoming, bytes: &[u8]) -> bool {
    let asks = |key: &str| message.params(bytes).is_some_and(|params| params.contains(key));
    match message.method.as_deref() {
        Some("tools/call") => asks("\"progressToken\"") || asks("/logLevel\""),
        Some("subscriptions/listen") => true,
        _ => false,
    }
}

/// Answers one message, read from `bytes`, that came with `headers` if it came by HTTP.
pub(crate) async fn answer(
    shared: &Arc<Shared>,
    caller: &CallerId,
    message: &Incoming,
    bytes: &[u8],
    headers: Option<HeaderMap>,
    out: &Outbox,
) -> Reply {
    let Some(method) = message.method.as_deref() else {
        let fault = Fault::new(400, code::INVALID_REQUEST, "clients send requests and notifications, no responses");
        return Reply::fault(message.id.as_ref(), &fault);
    };
    let Some(id) = &message.id else { return Reply::accepted() };
    match respond(shared, caller, method, id, message.params(bytes).unwrap_or("{}"), headers, out).await {
        Err(fault) => Reply::fault(Some(id), &fault),
        Ok(done) => {
            let mut body = Vec::with_capacity(done.result.len() + 64);
            body.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
            json::write(&mut body, id);
            body.extend_from_slice(b",\"result\":");
            body.extend_from_slice(&done.result);
            body.push(b'}');
            Reply { status: 200, body: body.into(), orphan: done.orphan }
        }
    }
}

async fn respond(
    shared: &Arc<Shared>,
    caller: &CallerId,
    method: &str,
    id: &RequestId,
    text: &str,
    headers: Option<HeaderMap>,
    out: &Outbox,
) -> Result<Done, Fault> {
    let mut params = Params::read(text)?;
    let meta = params.meta(method)?;
    if let Some(headers) = &headers {
        headers::check(headers, method, &params, &meta.version, shared.config.http.strict_headers)?;
    }
    if !VERSIONS.contains(&&*meta.version) {
        return Err(unsupported(&meta.version));
    }
    let headers = headers.filter(|_| method == "tools/call");
    let cx = Cx { shared, caller, id, meta, params, text, headers, out };
    match method {
        "tools/call" => call::call(&cx).await,
        "tasks/get" => tasks::get(&cx),
        "tasks/update" => tasks::update(&cx).await,
        "tasks/cancel" => tasks::cancel(&cx).await,
        "subscriptions/listen" => listen::listen(&cx).await,
        "server/discover" => Ok(catalog::discover(&cx).into()),
        "tools/list" => catalog::tools(&cx).map(Into::into),
        "prompts/list" => catalog::prompts(&cx).map(Into::into),
        "prompts/get" => catalog::prompt(&cx).await.map(Into::into),
        "resources/list" => catalog::resources(&cx).map(Into::into),
        "resources/templates/list" => catalog::templates(&cx).map(Into::into),
        "resources/read" => catalog::read(&cx).await.map(Into::into),
        "completion/complete" => catalog::complete(&cx).await.map(Into::into),
        _ => Err(Fault::new(404, code::METHOD_NOT_FOUND, format!("there is no method `{method}`"))),
    }
}

/// The version is not spoken here; says which ones are.
fn unsupported(requested: &str) -> Fault {
    Fault::new(
        400,
        code::UNSUPPORTED_VERSION,
        format!("the protocol version `{requested}` is not supported: use {}", VERSIONS.join(" or ")),
    )
    .with_data(json!({"supported": VERSIONS, "requested": requested}))
}
