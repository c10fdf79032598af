//! The client, against scripted servers and against our own.

mod behind;
pub(crate) mod between;
mod byte_streams;
mod detect;
mod examples;
mod hubs;
pub(crate) mod legacy;
mod lists;
mod modern;
mod oauth;
mod questions;
mod retry;
mod safety;
pub(crate) mod script;
mod sep1905;
mod sep2679;
mod sessions;
mod watching;
