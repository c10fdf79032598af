//! The legacy era from outside: sessions, core tasks, and the two drafts that build on them.

mod answers;
mod bad_input;
mod eras;
mod input;
pub(crate) mod kit;
mod limits;
mod modes;
mod older;
pub(crate) mod partials;
mod questions;
mod schema;
mod sep1905;
mod session;
mod stdio;
pub(crate) mod streamed;
pub(crate) mod streams;
pub(crate) mod tasks;
mod traces;
