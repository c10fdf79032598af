//! Bytes to messages and back: Streamable HTTP and byte streams. Knows no method and no task.

mod body_budget;
pub(crate) mod bridge;
mod connection_slots;
mod guard;
pub(crate) mod http;
mod reply_body;
pub(crate) mod stdio;
mod write_timeout;

use std::sync::Arc;

use tokio::sync::watch;

use self::body_budget::BodyBudget;
use crate::protocol::Context;

/// The protocol on its wires: what all connections share.
pub(crate) struct Endpoint {
    pub(crate) context: Arc<Context>,
    /// The room for messages on HTTP.
    body_budget: Arc<BodyBudget>,
    /// Open HTTP connections.
    pub(crate) connections: watch::Sender<usize>,
}

impl Endpoint {
    pub(crate) fn new(context: Context) -> Self {
        Self { body_budget: BodyBudget::new(&context.config), connections: watch::Sender::new(0), context: Arc::new(context) }
    }
}
