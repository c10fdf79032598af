//! A switch that is turned on once and stays on: lighter than a channel, since every run has some.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(super) struct Switch {
    on: AtomicBool,
    turned: Notify,
}

impl Switch {
    pub(super) fn turn_on(&self) {
        self.on.store(true, Ordering::Release);
        self.turned.notify_waiters();
    }

    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// Waits until it is on.
    pub(super) async fn wait(&self) {
        while !self.is_on() {
            let turned = self.turned.notified();
            // A `Notified` is woken from its creation on, so this does not miss a switch that is turned on from here on.
            if !self.is_on() {
                turned.await;
            }
        }
    }
}

/// Tells the work of an attempt to stop.
#[derive(Debug, Default)]
pub(super) struct StopSignal {
    stopped: Switch,
    abandoned: AtomicBool,
}

impl StopSignal {
    pub(super) fn stop(&self) {
        self.stopped.turn_on();
    }

    /// Stops the work, and keeps it from changing its task any more: another attempt may run.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        self.stop();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.is_on()
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// Waits until the work must stop.
    pub(super) async fn wait(&self) {
        self.stopped.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn everybody_who_waits_and_whoever_comes_late_sees_it_on() {
        let switch = Arc::new(Switch::default());
        let waiting: Vec<_> = (0..10)
            .map(|_| {
                let switch = switch.clone();
                tokio::spawn(async move { switch.wait().await })
            })
            .collect();
        tokio::task::yield_now().await;
        assert!(!switch.is_on());
        switch.turn_on();
        for waiter in waiting {
            waiter.await.expect("no panic");
        }
        switch.wait().await;
    }
}
