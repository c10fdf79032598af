//! How each era spells a task on the wire. One folder per era; nothing outside it knows an era's field names.

mod call;
mod catalog;
mod context;
mod era;
mod json;
pub(crate) mod legacy;
mod listing;
pub(crate) mod modern;
mod notes;
mod outbox;
mod params;
mod peer;
mod prune;
mod reply;
mod room;
pub(crate) mod router;
mod view;

/// Says that a call which is sent twice under one key runs once. Told only to who asks.
const IDEMPOTENCY: &str = "dev.taskwire/idempotency";
/// Our own extension: the tasks of a caller can be listed. Told only to who asks.
const LIST: &str = "dev.taskwire/list";
/// Our own extension: output while it is produced. Nothing of it is shown to who does not declare it (invariant I10).
const PARTIALS: &str = "dev.taskwire/partials";

pub(crate) use call::cancelled;
pub(crate) use call::waiter::Calls;
pub(crate) use context::{Context, Open};
pub(crate) use era::{Era, is_modern};
pub(crate) use outbox::{Framing, Gone, Outbox, StreamId};
pub(crate) use peer::{Peer, Told};
pub(crate) use reply::{Fault, Reply, Sent};
pub(crate) use room::Room;
