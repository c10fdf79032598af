//! The library from outside: real sockets, raw messages in and out. One file per promise.

mod answers;
mod bad_input;
mod bodies;
mod client;
mod followup;
mod growth;
mod held;
mod hidden;
mod http;
mod idempotency;
mod kit;
mod legacy;
mod listing;
mod nodes;
mod opt_out;
mod output;
mod partials;
mod pipe;
mod portable;
mod push;
mod quota;
mod reading;
mod rmcp;
mod schema;
mod shutdown;
mod stdio;
mod store;
mod tasks;
#[path = "../../src/testing.rs"]
mod testing;
mod tool_harness;
mod traces;
mod typed;
mod waiting;
mod wire;
mod work;
