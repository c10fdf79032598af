//! Takes over the tasks of nodes that are gone.

use std::time::Duration;

use taskwire_core::task::{Authority, Command};

use crate::engine::{Engine, Error, NO_EPOCH, WeakEngine, operator_log, recovery::OnRecovered};

/// How often a node looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// Tasks that are taken together.
const PAGE: usize = 256;

/// Looks again and again, until the engine is gone.
pub(super) async fn run(weak: WeakEngine, seen: Box<OnRecovered>) {
    let mut is_first = true;
    loop {
        let Some(engine) = weak.get() else { return };
        let Some(membership) = &engine.0.cluster else { return };
        let mut more = false;
        if membership.lease.may_judge_others(membership.clock.monotonic()) {
            match take_page(&engine, &*seen).await {
                Ok(taken) => more = taken > 0,
                Err(error) => tracing::warn!(%error, "tasks of other nodes could not be taken over: trying again"),
            }
        }
        if std::mem::take(&mut is_first) {
            seen(None).await;
        }
        let sleep = membership.clock.sleep(if more { Duration::ZERO } else { INTERVAL });
        drop(engine);
        sleep.await;
    }
}

/// Takes some tasks, and returns how many that changed.
async fn take_page(engine: &Engine, seen: &OnRecovered) -> Result<usize, Error> {
    let Some(membership) = &engine.0.cluster else { return Ok(0) };
    let epoch = engine.epoch();
    if epoch == NO_EPOCH {
        return Ok(0);
    }
    let stranded = membership.cluster.stranded_tasks(PAGE).await?;
    let commands = stranded.iter().map(|(id, of)| engine.submit(*id, Authority::Engine, Command::Recover { lost: *of..of.next(), epoch }));
    let mut taken = 0;
    for ((id, _), receipt) in stranded.iter().zip(futures_util::future::join_all(commands).await) {
        match receipt {
            Ok(receipt) if receipt.changed => {
                taken += 1;
                operator_log::task_recovered(&receipt.task);
                seen(Some(receipt.task)).await;
            }
            // Another node was faster.
            Ok(_) | Err(Error::Rejected(_)) => {}
            // One task that cannot be read must not keep the others waiting.
            Err(error) => tracing::error!(task = %id, %error, "an open task could not be taken over"),
        }
    }
    Ok(taken)
}
