//! The client's side of the program: which server, which task, which arguments, and a run as it is shown.
//!
//! The protocol is the library's; nothing here knows a message of it. Begin reading with [`follow`].

pub(crate) mod arguments;
pub(crate) mod client_config;
pub(crate) mod connection;
pub(crate) mod exit;
pub(crate) mod follow;
pub(crate) mod questions;
pub(crate) mod schema;
pub(crate) mod sign_in;
pub(crate) mod signals;
pub(crate) mod user_data;
