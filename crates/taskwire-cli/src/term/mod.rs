//! The terminal: what is written where, and in which form. Nothing here speaks to a server.

pub(crate) mod escape;
pub(crate) mod json_lines;
pub(crate) mod paint;
pub(crate) mod question_dialog;
pub(crate) mod render;
pub(crate) mod stderr;
pub(crate) mod stdin_lines;
pub(crate) mod stdout;
pub(crate) mod table;
