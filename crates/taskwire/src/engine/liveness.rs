//! Whether the engine works: its writer takes a turn, or is known to wait for the store.

use std::{
    future::pending,
    pin::{Pin, pin},
    time::Duration,
};

use tokio::sync::oneshot;

use super::{Engine, WriterRequest};

/// How often it is looked whether the writer has a reason to take no turn.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

impl Engine {
    /// Waits until the engine has shown that it works. Never ready if nothing can be stored any more, or if the writer hangs. To wait for a
    /// store that cannot be reached, or for another program that has locked it, is its work.
    pub(crate) async fn turn(&self) {
        let mut turn = pin!(self.take_turn());
        loop {
            if self.has_failed() {
                return pending().await;
            }
            if self.is_away() {
                return;
            }
            if self.turn_or_look(turn.as_mut()).await || self.reader().is_locked_out() {
                return;
            }
        }
    }

    /// Whether a turn was taken before it is time to look again.
    async fn turn_or_look(&self, turn: Pin<&mut impl Future<Output = ()>>) -> bool {
        tokio::select! {
            () = turn => true,
            () = self.clock().sleep(LOOK_INTERVAL) => false,
        }
    }

    /// Waits for a turn of the writer. Never ready if that has ended.
    async fn take_turn(&self) {
        loop {
            let (taken, turn) = oneshot::channel();
            if self.0.queue.send(WriterRequest::Turn(taken)).await.is_err() {
                return pending().await;
            }
            if turn.await.is_ok() {
                return;
            }
            // It was dropped, because the store is away.
            self.clock().sleep(LOOK_INTERVAL).await;
        }
    }
}
