//! How each era spells a task on the wire. One folder per era; nothing outside it knows an era's field names.

pub(crate) mod modern;
mod outbox;
mod peer;
mod reply;

pub(crate) use outbox::{Framing, Outbox};
pub(crate) use peer::{Peer, Told};
pub(crate) use reply::{Fault, Orphan, Reply};
