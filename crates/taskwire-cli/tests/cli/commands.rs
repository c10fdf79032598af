//! Commands as tools, from outside: their arguments and input, their output, how they end, and that they outlive the server.

mod cancel;
mod command_server;
mod crash;
mod findings;
mod given;
#[cfg(target_os = "linux")]
mod init;
mod injection;
mod inside;
mod many;
mod modes;
mod output;
mod pty;
mod quick_start;
mod quota;
mod results;
mod schema;
pub(crate) mod server_dir;
