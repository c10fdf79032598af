//! Why the engine does not do what it is asked.

use std::sync::Arc;

use taskwire_core::task::Reject;

use crate::store::{self, ErrorKind};

/// Why the engine did not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The state machine refused.
    #[error(transparent)]
    Rejected(#[from] Reject),
    /// The store failed or the engine has stopped; only a restart helps. Callers may read the text: it names no path.
    #[error("the server cannot store tasks: {0}")]
    Unavailable(Arc<str>),
    /// The store cannot be reached for a while; nothing was acknowledged. Try again.
    #[error("the server cannot reach its store just now, so try again in a moment")]
    Away,
    /// The disk of the store is full; nothing was acknowledged. Try again.
    #[error("the server's disk is full, so nothing can be stored until there is room: try again later")]
    Full,
    /// What is stored of one task or session is corrupt. All others can be used.
    #[error("{0}")]
    Corrupt(Arc<str>),
}

impl Error {
    /// Whether it passes by itself, when the store is there again or its disk has room.
    pub(crate) const fn passes(&self) -> bool {
        matches!(self, Self::Away | Self::Full)
    }
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        let kind = error.kind();
        match kind {
            // The writer says once that the store is away.
            ErrorKind::Away | ErrorKind::InDoubt => tracing::debug!(%error, "the store could not be read"),
            ErrorKind::Corrupt | ErrorKind::Fatal => tracing::error!(%error, "the store could not be read"),
        }
        match kind {
            // Whoever reads waits for room as for the store itself.
            ErrorKind::Away | ErrorKind::InDoubt => Self::Away,
            ErrorKind::Corrupt => Self::Corrupt(error.for_callers().into()),
            ErrorKind::Fatal => Self::Unavailable(error.for_callers().into()),
        }
    }
}

/// Turns a corrupt task into none and logs it, so that a list can go on with the others.
pub(crate) fn skip_corrupt<T>(read: Result<Option<T>, Error>) -> Result<Option<T>, Error> {
    match read {
        Err(Error::Corrupt(error)) => {
            tracing::error!(%error, "a task whose stored data is corrupt is left out");
            Ok(None)
        }
        read => read,
    }
}

/// Why nothing can be stored any more.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    /// For whoever runs the server.
    pub(super) reason: Arc<str>,
    /// For callers.
    pub(super) public_reason: Arc<str>,
}

impl From<&store::Error> for Failure {
    fn from(error: &store::Error) -> Self {
        Self { reason: error.to_string().into(), public_reason: error.for_callers().into() }
    }
}
