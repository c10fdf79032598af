//! The client's error, with messages that say what to do about it.

use taskwire_core::task::RpcError;

/// Why something could not be done. A started task may go on: its [`Reference`](super::Reference) stays valid.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server's address or command cannot be used.
    #[error("{0}")]
    Target(String),
    /// The server did not respond until the give-up time.
    #[error("cannot reach {server}: {reason}")]
    Unreachable {
        /// Who was asked.
        server: String,
        /// What happened last.
        reason: String,
    },
    /// The server refused the HTTP request.
    #[error("{server} refused the request with HTTP status {status}{}", in_parentheses(.reason))]
    Refused {
        /// Who was asked.
        server: String,
        /// The HTTP status.
        status: u16,
        /// What it said, shortened.
        reason: String,
    },
    /// The server wants a token, or refuses this caller.
    #[error("{server} does not let us in{}: give a token that it accepts", in_parentheses(.reason))]
    Unauthorized {
        /// Who was asked.
        server: String,
        /// What it said.
        reason: String,
    },
    /// The client could not get a token.
    #[error("no token: {0}")]
    Auth(String),
    /// There is no version of the protocol that both sides speak.
    #[error("{server} speaks other versions of the protocol: {supported}")]
    Version {
        /// Who was asked.
        server: String,
        /// What it speaks.
        supported: String,
    },
    /// The server needs a client with more capabilities.
    #[error("{server} needs a client that can do this: {needed}")]
    Capability {
        /// Who was asked.
        server: String,
        /// What the client would have to declare.
        needed: String,
    },
    /// The server sent something that the protocol does not allow.
    #[error("{server} broke the protocol: {reason}")]
    Protocol {
        /// Who was asked.
        server: String,
        /// What was wrong.
        reason: String,
    },
    /// The server responded with a JSON-RPC error.
    #[error("{} (code {})", .0.message, .0.code)]
    Rpc(RpcError),
    /// The response to a call was lost, and calling again could do the work twice.
    #[error(
        "the answer to `{tool}` was lost ({reason}); it may have run, and the server does not promise to know it again: look before you call it once more"
    )]
    LostCall {
        /// What was called.
        tool: String,
        /// How it was lost.
        reason: String,
    },
    /// The server does not know the task (any more), or it belongs to another caller.
    #[error("the server does not know the task `{task}`: it is over and forgotten, or belongs to somebody else")]
    TaskNotFound {
        /// Its id.
        task: String,
    },
    /// The server does not list the tasks of a caller.
    #[error(
        "{server} does not list tasks: it has neither `dev.taskwire/tasks/list` (2026-07-28) nor `tasks/list` (2025-11-25); a task whose id is known can be named"
    )]
    ListUnsupported {
        /// Who was asked.
        server: String,
    },
    /// An answer does not fit its question. Nothing was sent.
    #[error("the answer to `{key}` does not fit: {reason}")]
    InvalidAnswer {
        /// Which question.
        key: String,
        /// What does not fit.
        reason: String,
    },
    /// The question was answered before.
    #[error("`{key}` was answered before")]
    AlreadyAnswered {
        /// Which question.
        key: String,
    },
    /// There is no such question open.
    #[error("there is no open question `{key}`")]
    NoQuestion {
        /// Which question.
        key: String,
    },
    /// A limit of the client was exceeded.
    #[error("more than {max} {what}: raise `{key}` to take it")]
    Limit {
        /// Of what.
        what: &'static str,
        /// The limit.
        max: usize,
        /// The setting that raises it.
        key: &'static str,
    },
    /// The ledger could not be used.
    #[error("{0}")]
    Ledger(String),
    /// No entry of the ledger has such an id.
    #[error("no entry of the ledger begins with `{prefix}`")]
    NoSuchEntry {
        /// What was looked for.
        prefix: String,
    },
    /// Several entries have such an id.
    #[error("`{prefix}` could be any of {}: give more of it", .candidates.join(", "))]
    Ambiguous {
        /// What was looked for.
        prefix: String,
        /// What it could mean: ids with their tools, and with their servers if the ids are the same.
        candidates: Vec<String>,
    },
    /// The client was closed.
    #[error("the client was closed")]
    Closed,
}

fn in_parentheses(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(" ({reason})") }
}

/// The first line of a server's text, at most 200 characters.
pub(crate) fn shortened(text: &str) -> String {
    const SHOWN_CHARS: usize = 200;
    let line = text.trim().lines().next().unwrap_or_default().trim();
    match line.char_indices().nth(SHOWN_CHARS) {
        None => line.to_owned(),
        Some((end, _)) => format!("{}…", &line[..end]),
    }
}
