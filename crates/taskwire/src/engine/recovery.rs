//! Recovers the tasks that an earlier start of the server left open: they are run again, or fail with a clear error.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use taskwire_core::{
    TaskId,
    task::{Authority, Command, Task},
};

use super::{Engine, Error, operator_log, timers::RETRY_DELAY};
use crate::metrics::Takeover;

/// Tasks that are recovered together.
const PAGE: usize = 256;

/// Called with each recovered task, and with `None` after the last of them.
pub(super) type OnRecovered = dyn Fn(Option<Arc<Task>>) -> BoxFuture<'static, ()> + Send + Sync;

/// Recovers all open tasks. A page that cannot be read is tried again until it can.
pub(super) async fn recover(engine: &Engine, seen: &OnRecovered) {
    let (mut after, mut count) = (None, 0);
    loop {
        match recover_batch(engine, &mut after, seen).await {
            Ok(Some(changed)) => count += changed,
            Ok(None) => break,
            Err(error) if engine.has_failed() => return tracing::error!(%error, "cannot recover interrupted tasks"),
            Err(error) => {
                tracing::error!(%error, "interrupted tasks could not be read: trying again");
                engine.0.clock.sleep(RETRY_DELAY).await;
            }
        }
    }
    if count > 0 {
        tracing::info!(count, "recovered tasks that were interrupted");
    }
}

/// Recovers one page, and returns how many tasks that changed; `None` at the end.
async fn recover_batch(engine: &Engine, after: &mut Option<TaskId>, seen: &OnRecovered) -> Result<Option<usize>, Error> {
    let read = engine.0.reader.open_tasks(*after, PAGE).await;
    if let Err(error) = &read
        && error.is_damage()
    {
        // It would be the same each time, and all calls would wait for it.
        engine.0.fail(error.into());
    }
    let page = engine.checked(read)?;
    let Some(last) = page.last().copied() else { return Ok(None) };
    let commands = page.into_iter().map(|id| (id, engine.submit(id, Authority::Engine, Command::recover(engine.epoch()))));
    let (ids, commands): (Vec<TaskId>, Vec<_>) = commands.unzip();
    let mut changed = 0;
    for (id, receipt) in ids.into_iter().zip(futures_util::future::join_all(commands).await) {
        match receipt {
            Ok(receipt) => {
                seen(Some(receipt.task.clone())).await;
                if receipt.changed {
                    changed += 1;
                    operator_log::task_recovered(&receipt.task);
                    engine.metrics().task_taken_over(Takeover::Interrupted);
                }
            }
            // One task that cannot be read must not keep the others waiting.
            Err(error) => tracing::error!(task = %id, %error, "an open task could not be recovered"),
        }
    }
    *after = Some(last);
    Ok(Some(changed))
}
