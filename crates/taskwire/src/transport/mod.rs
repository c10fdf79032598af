//! Bytes to messages and back: Streamable HTTP and byte streams. Knows no method and no task.

pub(crate) mod bodies;
pub(crate) mod body;
pub(crate) mod bridge;
pub(crate) mod guard;
pub(crate) mod http;
mod patience;
mod places;
pub(crate) mod stdio;
