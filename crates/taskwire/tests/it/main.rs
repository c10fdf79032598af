//! The library from outside: real sockets, raw messages in and out. One file per promise.

mod schema;
