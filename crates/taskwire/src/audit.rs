//! Who did what to which task: what a server tells whoever keeps a record of it.
//!
//! The server tells it when it is durable, and does not wait for whoever keeps it. Nothing here has arguments, results, answers or tokens.

use std::{borrow::Cow, fmt, net::IpAddr, sync::Arc};

use taskwire_core::{CallerId, TaskId, Timestamp};

/// Characters of a text that comes from a client, at most.
const TEXT_MAX: usize = 200;

tokio::task_local! {
    /// Where the request comes from that is being carried out.
    static SENDER: Option<IpAddr>;
}

/// Keeps a record of who did what.
pub trait Audit: fmt::Debug + Send + Sync {
    /// Takes an entry. It must not block.
    fn record(&self, entry: AuditEntry);

    /// How many entries could not be kept.
    fn lost(&self) -> u64 {
        0
    }
}

/// One thing that somebody did, or was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// When.
    pub at: Timestamp,
    /// Who; nobody if that is not known, or was the process itself.
    pub caller: Option<CallerId>,
    /// From where, if it came over the network. Behind a proxy it is the proxy's address.
    pub from: Option<IpAddr>,
    /// What.
    pub action: AuditAction,
    /// To which task.
    pub task: Option<TaskId>,
    /// The tool of that task.
    pub tool: Option<Arc<str>>,
    /// What came of it, in a few words.
    pub outcome: Cow<'static, str>,
}

impl AuditEntry {
    /// Somebody has done this, just now.
    #[must_use]
    pub fn new(at: Timestamp, action: AuditAction) -> Self {
        Self { at, caller: None, from: sender(), action, task: None, tool: None, outcome: "done".into() }
    }
}

/// What somebody does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AuditAction {
    /// It makes a task.
    Create,
    /// It cancels a task, or the server does because its client is gone.
    Cancel,
    /// It answers a question of a task.
    Answer,
    /// An admin reads a task of somebody else.
    ReadOther,
    /// It may not do what it wants, or does not show who it is.
    Refused,
    /// The server is to end.
    Drain,
    /// The configuration is read again.
    Reload,
}

impl AuditAction {
    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Cancel => "cancel",
            Self::Answer => "answer",
            Self::ReadOther => "read_other",
            Self::Refused => "refused",
            Self::Drain => "drain",
            Self::Reload => "reload",
        }
    }
}

/// Carries out what came from this address.
pub(crate) fn sent_from<F: Future>(sender: Option<IpAddr>, future: F) -> impl Future<Output = F::Output> {
    SENDER.scope(sender, future)
}

/// Where the request comes from that is being carried out, if that is known here.
pub(crate) fn sender() -> Option<IpAddr> {
    SENDER.try_with(|sender| *sender).ok().flatten()
}

/// The beginning of a text that comes from a client.
pub(crate) fn shortened(text: &str) -> &str {
    text.char_indices().nth(TEXT_MAX).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_done_for_a_request_knows_where_that_came_from() {
        let address: IpAddr = "10.1.2.3".parse().expect("an address");
        assert_eq!(sender(), None);
        let entry = sent_from(Some(address), async { AuditEntry::new(Timestamp::default(), AuditAction::Drain) }).await;
        assert_eq!(entry.from, Some(address));
        assert_eq!(sent_from(None, async { sender() }).await, None);
    }

    #[test]
    fn a_text_of_a_client_does_not_fill_the_record() {
        assert_eq!(shortened("tools/call"), "tools/call");
        assert_eq!(shortened(&"é".repeat(500)).chars().count(), TEXT_MAX);
    }
}
