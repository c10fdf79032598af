//! JSON-RPC shapes that every era shares, and how a message is read. No logic of any era.

pub mod code;
mod jsonrpc;
mod strict;

pub use jsonrpc::{Incoming, Malformed, RequestId, write_error, write_notification, write_result};
pub use strict::parse_strict;
