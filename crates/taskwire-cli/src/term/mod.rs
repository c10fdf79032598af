//! The terminal: what is written where, and in which form. Nothing here speaks to a server.

pub(crate) mod asking;
pub(crate) mod escape;
pub(crate) mod events;
pub(crate) mod lines;
pub(crate) mod out;
pub(crate) mod paint;
pub(crate) mod render;
pub(crate) mod screen;
pub(crate) mod table;
