//! One file per subcommand.

pub(crate) mod answer;
pub(crate) mod ask;
pub(crate) mod call;
pub(crate) mod cancel;
pub(crate) mod complete;
pub(crate) mod completions;
pub(crate) mod connect;
pub(crate) mod doctor;
pub(crate) mod emit;
mod file;
pub(crate) mod get;
mod in_task;
pub(crate) mod init;
pub(crate) mod man;
pub(crate) mod nodes;
pub(crate) mod progress;
pub(crate) mod reload;
pub(crate) mod serve;
pub(crate) mod server;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod tasks;
pub(crate) mod tools;
pub(crate) mod watch;
