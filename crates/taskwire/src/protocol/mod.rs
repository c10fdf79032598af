//! MCP on the wire: what both eras share, and a folder for each era. Only that folder knows the era's field names.

mod call;
mod catalog;
mod context;
mod era;
mod json;
pub(crate) mod legacy;
mod log;
pub(crate) mod modern;
mod notes;
mod params;
mod peer;
mod prune;
mod reply;
mod reply_budget;
pub(crate) mod router;
mod sink;
mod task_list;
mod task_status;

/// Extension: a call that is sent twice under one key runs once. The server names it only to a client that declares it.
const IDEMPOTENCY: &str = "dev.taskwire/idempotency";
/// Extension: a caller can list its tasks. The server names it only to a client that declares it.
const LIST: &str = "dev.taskwire/list";
/// Extension: output while the tool produces it. A client that does not declare it sees nothing of it (invariant I10).
const PARTIALS: &str = "dev.taskwire/partials";

pub(crate) use call::on_cancelled;
pub(crate) use call::waiter::CallRegistry;
pub(crate) use context::{CallerPermit, Context};
pub(crate) use era::{Era, is_modern};
pub(crate) use peer::{LastStatus, Peer};
pub(crate) use reply::{Fault, OnSent, Reply};
pub(crate) use reply_budget::ReplyBudget;
pub(crate) use sink::{ByteStreamId, ClientGone, Framing, MessageSink};
