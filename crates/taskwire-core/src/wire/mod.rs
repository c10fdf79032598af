//! JSON-RPC shapes that every era shares, readers of messages and of server-sent events, and what a client keeps of a task's
//! output ([`ReorderBuffer`]). No other logic of any era.

pub mod code;
mod jsonrpc;
mod reorder;
mod sse;
mod strict;

pub use jsonrpc::{IncomingMessage, MalformedMessage, RequestId, write_error, write_notification, write_result};
pub use reorder::ReorderBuffer;
pub use sse::{SseEvent, SseReader, SseTooLarge};
pub use strict::parse_strict;
