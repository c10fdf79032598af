//! Signals, and what they ask for.

use std::{io, pin::Pin, time::Duration};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::Sleep,
};

use super::exit::Problem;

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Ctrl-C: leave the call; a second one, or the first if the user said so, cancels it.
    Interrupt,
    /// The terminal or the system goes away: leave the call.
    Leave,
}

/// Catches signals from its creation on.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    /// Runs while further signals belong to the same press.
    press: Option<Pin<Box<Sleep>>>,
}

/// Signals within this time are one press of Ctrl-C: some parent programs pass it on, beside the terminal.
const ONE_PRESS: Duration = Duration::from_millis(30);

/// Runs work that can be interrupted without further notice.
pub(crate) async fn unless_stopped<T>(work: impl Future<Output = Result<T, Problem>>) -> Result<T, Problem> {
    let mut signals = Signals::catch()?;
    tokio::select! {
        biased;
        done = work => done,
        _ = signals.next() => Err(Problem::interrupted()),
    }
}

impl Signals {
    pub(crate) fn catch() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            press: None,
        })
    }

    /// The next signal. No signal is lost if this future is dropped.
    pub(crate) async fn next(&mut self) -> Stop {
        loop {
            let pressed = async {
                match &mut self.press {
                    Some(press) => press.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                _ = self.terminate.recv() => return Stop::Leave,
                _ = self.hang_up.recv() => return Stop::Leave,
                () = pressed => {
                    self.press = None;
                    return Stop::Interrupt;
                }
                _ = self.interrupt.recv() => {}
            }
            self.press.get_or_insert_with(|| Box::pin(tokio::time::sleep(ONE_PRESS)));
        }
    }
}
