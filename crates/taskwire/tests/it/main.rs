//! The library from outside: real sockets, raw messages in and out. One file per promise.

mod bad_input;
mod client;
mod followup;
mod held;
mod hidden;
mod http;
mod idempotency;
mod kit;
mod legacy;
mod opt_out;
mod output;
mod partials;
mod portable;
mod push;
mod reading;
mod rmcp;
mod schema;
mod shutdown;
mod stage;
mod stdio;
mod tasks;
mod traces;
mod typed;
mod waiting;
mod wire;
mod work;
