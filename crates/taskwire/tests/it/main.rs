//! The library from outside: real sockets, raw messages in and out. One file per promise.

mod bad_input;
mod hidden;
mod http;
mod kit;
mod push;
mod rmcp;
mod schema;
mod shutdown;
mod stdio;
mod tasks;
mod wire;
mod work;
