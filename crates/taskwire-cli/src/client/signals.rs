//! Signals, as what they ask for.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit::Problem;

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Ctrl-C: let it be; the second one, or the first of who said so: call it off.
    Interrupt,
    /// The terminal or the system goes away: let it be.
    Leave,
}

/// Signals from now on.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

/// Does something that nothing need be said about if it is given up.
pub(crate) async fn unless_stopped<T>(work: impl Future<Output = Result<T, Problem>>) -> Result<T, Problem> {
    let mut signals = Signals::catch()?;
    tokio::select! {
        biased;
        done = work => done,
        _ = signals.next() => Err(Problem::given_up()),
    }
}

impl Signals {
    pub(crate) fn catch() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// The next one. Nothing is lost if it is not waited for to the end.
    pub(crate) async fn next(&mut self) -> Stop {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => Stop::Leave,
            _ = self.hang_up.recv() => Stop::Leave,
            _ = self.interrupt.recv() => Stop::Interrupt,
        }
    }
}
