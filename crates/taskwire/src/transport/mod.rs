//! Bytes to messages and back: Streamable HTTP, TLS, byte streams, and the bridge to another process's server. Knows few methods and no
//! task.

mod accept_failures;
mod access;
pub(crate) mod api;
mod body_budget;
pub(crate) mod bridge;
mod connection_slots;
mod dashboard;
mod guard;
pub(crate) mod http;
mod refusals;
mod reply_body;
pub(crate) mod scrape;
pub(crate) mod stdio;
#[cfg(feature = "tls")]
pub(crate) mod tls;
mod write_timeout;

use std::sync::Arc;

use tokio::sync::watch;

use self::body_budget::BodyBudget;
use crate::protocol::Context;

/// What all connections share.
pub(crate) struct Endpoint {
    pub(crate) context: Arc<Context>,
    /// Limits the memory for HTTP bodies.
    body_budget: Arc<BodyBudget>,
    pub(crate) connections: watch::Sender<usize>,
}

impl Endpoint {
    pub(crate) fn new(context: Context) -> Self {
        Self { body_budget: BodyBudget::new(&context.config), connections: watch::Sender::new(0), context: Arc::new(context) }
    }
}
