//! Bugs that can be planted, to see whether the simulation finds them.

use clap::ValueEnum;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Plant {
    /// The store says that a batch is durable before it is.
    AcknowledgeBeforeCommit,
    /// The store does not compare versions.
    SkippedFence,
    /// A reader that goes on begins one chunk too late.
    CursorOffByOne,
    /// No node hears of what others change.
    LostWakeUp,
    /// A key finds no task.
    ReusedKey,
    /// A node reads a task once, and never again.
    CacheNotInvalidated,
    /// A node that was declared dead goes on as if it were not.
    StaleNodeGoesOn,
    /// A node believes that its lease is longer than it is, and does not stop in time what another one runs again.
    LeaseTooLong,
}
