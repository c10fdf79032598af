//! Takes tasks whose work waits for a slot on another node, where this one has one.

use std::time::Duration;

use futures_util::future::join_all;
use taskwire_core::task::{Authority, Command};

use super::Membership;
use crate::{
    engine::{Engine, Error, NO_EPOCH, operator_log},
    metrics::Takeover,
};

/// For how long a task waits on its own node before others may take it.
const WAITS_AT_LEAST: Duration = Duration::from_secs(1);

/// Takes as many as there are free slots.
pub(super) async fn take(engine: &Engine, membership: &Membership) -> Result<(), Error> {
    let (epoch, free) = (engine.epoch(), engine.work().map(|work| work.free_slots()).unwrap_or_default());
    if free.is_empty() || epoch == NO_EPOCH {
        return Ok(());
    }
    let queued = membership.cluster.queued_tasks(epoch, &free).await?;
    let takes = queued.iter().map(|(id, from)| {
        let command = Command::TakeQueued { from: *from, epoch, after: WAITS_AT_LEAST };
        engine.submit(*id, Authority::Engine, command)
    });
    for receipt in join_all(takes).await {
        match receipt {
            Ok(receipt) if receipt.changed => {
                operator_log::task_taken(&receipt.task);
                engine.metrics().task_taken_over(Takeover::Queued);
            }
            // It has begun there, or a third node was faster.
            Ok(_) | Err(Error::Rejected(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
