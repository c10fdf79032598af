//! JSON-RPC shapes that every era shares, and how a message is read. No logic of any era, but for what a client keeps of a
//! streamed result ([`Segments`]).

pub mod code;
mod jsonrpc;
mod segments;
mod strict;

pub use jsonrpc::{Incoming, Malformed, RequestId, write_error, write_notification, write_result};
pub use segments::{Segment, SegmentError, SegmentLimits, Segments};
pub use strict::parse_strict;
