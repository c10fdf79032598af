//! MCP on the wire: what both eras share, and a folder for each era. Only that folder knows the era's field names.

mod admission;
pub(crate) mod api;
mod call;
mod catalog;
mod context;
mod era;
mod json;
pub(crate) mod legacy;
mod log;
mod memory_watch;
pub(crate) mod modern;
mod notes;
mod pace;
mod params;
mod peer;
mod prune;
mod reply;
mod reply_budget;
pub(crate) mod router;
mod sink;
mod task_list;
mod task_status;
mod trace;

/// Extension: a call that is sent twice under one key runs once. The server names it only to a client that declares it.
const IDEMPOTENCY: &str = "dev.taskwire/idempotency";
/// Extension: a caller can list its tasks. The server names it only to a client that declares it.
const LIST: &str = "dev.taskwire/list";
/// Extension: output while the tool produces it. A client that does not declare it sees nothing of it (invariant I10).
const PARTIALS: &str = "dev.taskwire/partials";

/// The methods of requests, of both eras: what a rule for scopes can be for.
pub const METHODS: [&str; 22] = [
    "completion/complete",
    "dev.taskwire/partials/read",
    "dev.taskwire/tasks/list",
    "initialize",
    "logging/setLevel",
    "ping",
    "prompts/get",
    "prompts/list",
    "resources/list",
    "resources/read",
    "resources/subscribe",
    "resources/templates/list",
    "resources/unsubscribe",
    "server/discover",
    "subscriptions/listen",
    "tasks/cancel",
    "tasks/get",
    "tasks/list",
    "tasks/result",
    "tasks/update",
    "tools/call",
    "tools/list",
];

pub(crate) use call::on_cancelled;
pub(crate) use call::waiter::CallRegistry;
pub(crate) use context::{CallerPermit, Context};
pub(crate) use era::{Era, is_modern};
pub(crate) use peer::{LastStatus, Peer};
pub(crate) use reply::{Fault, OnSent, Reply};
pub(crate) use reply_budget::ReplyBudget;
pub(crate) use sink::{ByteStreamId, ClientGone, Framing, MessageSink};
pub(crate) use trace::{RequestSpan, TRACEPARENT, TRACESTATE, TraceHeaders};
