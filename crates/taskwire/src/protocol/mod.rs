//! How each era spells a task on the wire. One folder per era; nothing outside it knows an era's field names.

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

/// Says that a call which is sent twice under one key runs once. Told only to who asks.
const IDEMPOTENCY: &str = "dev.taskwire/idempotency";
/// Our own extension: the tasks of a caller can be listed. Told only to who asks.
const LIST: &str = "dev.taskwire/list";
/// Our own extension: output while it is produced. Nothing of it is shown to who does not declare it (invariant I10).
const PARTIALS: &str = "dev.taskwire/partials";

pub(crate) use call::on_cancelled;
pub(crate) use call::waiter::CallRegistry;
pub(crate) use context::{CallerPermit, Context};
pub(crate) use era::{Era, is_modern};
pub(crate) use peer::{LastStatus, Peer};
pub(crate) use reply::{Fault, OnSent, Reply};
pub(crate) use reply_budget::ReplyBudget;
pub(crate) use sink::{ByteStreamId, ClientGone, Framing, MessageSink};
