//! One file per subcommand.

pub(crate) mod answer;
pub(crate) mod ask;
pub(crate) mod call;
pub(crate) mod cancel;
pub(crate) mod complete;
pub(crate) mod completions;
pub(crate) mod emit;
pub(crate) mod get;
mod inside;
pub(crate) mod progress;
pub(crate) mod reload;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod tasks;
pub(crate) mod tools;
pub(crate) mod watch;
