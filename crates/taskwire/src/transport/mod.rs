//! Bytes to messages and back: Streamable HTTP and byte streams. Knows no method and no task.

mod bodies;
mod body;
pub(crate) mod bridge;
mod guard;
pub(crate) mod http;
mod patience;
mod places;
pub(crate) mod stdio;

use std::sync::Arc;

use tokio::sync::watch;

use self::bodies::Bodies;
use crate::dialect::Context;

/// The protocol on its wires: what all connections share.
pub(crate) struct Endpoint {
    pub(crate) context: Arc<Context>,
    /// The room for messages on HTTP.
    bodies: Arc<Bodies>,
    /// Open HTTP connections.
    pub(crate) connections: watch::Sender<usize>,
}

impl Endpoint {
    pub(crate) fn new(context: Context) -> Self {
        Self { bodies: Bodies::new(&context.config), connections: watch::Sender::new(0), context: Arc::new(context) }
    }
}
