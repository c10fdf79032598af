//! Commands as tools, from outside: their arguments and input, their output, how they end, and that they outlive the server.

mod cancel;
pub(crate) mod command_server;
mod crash;
#[cfg(target_os = "linux")]
mod init;
mod injection;
mod inside;
mod many;
mod modes;
mod output;
mod process_input;

mod pty;
mod quick_start;
mod quota;
mod regressions;
mod results;
mod schema;
pub(crate) mod server_dir;
