//! What can go wrong, told to who has to do something about it.

use taskwire_core::task::RpcError;

/// Why something could not be done. A task that was started may well go on: its [`Reference`](super::Reference) stays good.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server was not named in a way that is understood.
    #[error("{0}")]
    Target(String),
    /// Nobody answered, for as long as was worth trying.
    #[error("cannot reach {server}: {reason}")]
    Unreachable {
        /// Who was asked.
        server: String,
        /// What happened last.
        reason: String,
    },
    /// The server refused the request as such.
    #[error("{server} refused the request with HTTP status {status}{}", in_parentheses(.reason))]
    Refused {
        /// Who was asked.
        server: String,
        /// The HTTP status.
        status: u16,
        /// What it said, shortened.
        reason: String,
    },
    /// The server wants to know who is calling, or does not let this caller in.
    #[error("{server} does not let us in{}: give a token that it accepts", in_parentheses(.reason))]
    Unauthorized {
        /// Who was asked.
        server: String,
        /// What it said.
        reason: String,
    },
    /// A token could not be had.
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
    /// The server needs a client that can do more.
    #[error("{server} needs a client that can do this: {needed}")]
    Capability {
        /// Who was asked.
        server: String,
        /// What the client would have to declare.
        needed: String,
    },
    /// The server said something that the protocol does not allow.
    #[error("{server} broke the protocol: {reason}")]
    Protocol {
        /// Who was asked.
        server: String,
        /// What was wrong.
        reason: String,
    },
    /// The server answered with an error.
    #[error("{} (code {})", .0.message, .0.code)]
    Rpc(RpcError),
    /// The answer to a call was lost, and calling again could do the work twice.
    #[error(
        "the answer to `{tool}` was lost ({reason}); it may have run, and the server does not promise to know it again: look before you call it once more"
    )]
    LostCall {
        /// What was called.
        tool: String,
        /// How it was lost.
        reason: String,
    },
    /// The server does not know the task (any more), or it is not ours.
    #[error("the server does not know the task `{task}`: it is over and forgotten, or belongs to somebody else")]
    TaskNotFound {
        /// Its name.
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
    /// There is more of something than is taken.
    #[error("more than {max} {what}: raise `{key}` to take it")]
    Limit {
        /// Of what.
        what: &'static str,
        /// How much is taken.
        max: usize,
        /// Where that is set.
        key: &'static str,
    },
    /// The list of tasks on disk could not be used.
    #[error("{0}")]
    Ledger(String),
    /// No task of this list has such a name.
    #[error(
        "no task that was started from here begins with `{prefix}`: `taskwire tasks --all` lists them; one that was started elsewhere is SERVER#ID, and `taskwire tasks SERVER` lists those"
    )]
    NoSuchEntry {
        /// What was looked for.
        prefix: String,
    },
    /// Several tasks have such a name.
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

/// The first line of what a server said, at most so many characters.
pub(crate) fn shortened(text: &str) -> String {
    const SHOWN_CHARS: usize = 200;
    let line = text.trim().lines().next().unwrap_or_default().trim();
    match line.char_indices().nth(SHOWN_CHARS) {
        None => line.to_owned(),
        Some((end, _)) => format!("{}…", &line[..end]),
    }
}
