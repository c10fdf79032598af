//! What the client commands share: which server, which task, which arguments, and how a call is shown.
//!
//! The library speaks the protocol; nothing here knows its messages. Start reading with [`follow`].

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
