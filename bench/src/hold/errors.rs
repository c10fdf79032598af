//! What went wrong, by kind.

use std::{
    collections::BTreeMap,
    io,
    sync::{Mutex, PoisonError},
};

use crate::http::Response;

/// How often what went wrong.
pub type Kinds = BTreeMap<String, u64>;

/// Counts what goes wrong.
#[derive(Default)]
pub struct Errors(Mutex<Kinds>);

impl Errors {
    /// Counts one.
    pub fn count(&self, kind: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(kind).or_default() += 1;
    }

    /// What was counted since this was asked last.
    pub fn take(&self) -> Kinds {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What kind of error that is. The words begin with `status` if the server has answered.
pub fn kind_of(error: &anyhow::Error) -> String {
    match error.root_cause().downcast_ref::<io::Error>() {
        Some(error) => error.kind().to_string(),
        None => error.to_string(),
    }
}

/// The same of a response that was not wanted.
pub fn kind_of_response(response: &Response) -> String {
    let when = if response.says_when { " with Retry-After" } else { "" };
    format!("status {}{when}", response.status)
}

/// How many of them the server has not answered at all.
pub fn unanswered(kinds: &Kinds) -> u64 {
    kinds.iter().filter(|(kind, _)| !kind.starts_with("status ")).map(|(_, count)| count).sum()
}
