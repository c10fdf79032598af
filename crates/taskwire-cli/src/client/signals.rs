//! Signals, as what they ask for.

use std::{io, pin::Pin, time::Duration};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::Sleep,
};

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
    /// Runs while what comes is part of the same press.
    press: Option<Pin<Box<Sleep>>>,
}

/// What comes within this is one press of Ctrl-C: some programs that start others pass it on, beside the terminal.
const ONE_PRESS: Duration = Duration::from_millis(30);

/// Does something that nothing need be said about if it is given up.
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

    /// The next one. Nothing is lost if it is not waited for to the end.
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
