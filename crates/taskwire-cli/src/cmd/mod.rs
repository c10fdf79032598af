//! One file per subcommand.

pub(crate) mod answer;
pub(crate) mod call;
pub(crate) mod cancel;
pub(crate) mod completions;
pub(crate) mod get;
pub(crate) mod serve;
pub(crate) mod tasks;
pub(crate) mod tools;
pub(crate) mod watch;
