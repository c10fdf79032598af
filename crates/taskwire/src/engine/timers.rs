//! Sends each task its tick when it is due. The store knows what is due; the loop here only waits for the next moment.

use std::{
    collections::HashSet,
    sync::{
        Arc, Weak,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use taskwire_core::{
    TaskId, Timestamp,
    task::{Authority, Command},
};
use tokio::sync::Notify;

use super::{Engine, Error, Inner};

/// Tasks that get their tick together.
const PAGE: usize = 256;
/// How long to wait after the store could not be read.
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(1);
/// How often to look at least, where nodes share a store.
const SHARED_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Timers {
    /// The moment that the loop waits for.
    armed: AtomicI64,
    earlier: Notify,
}

impl Default for Timers {
    fn default() -> Self {
        Self { armed: AtomicI64::new(i64::MAX), earlier: Notify::new() }
    }
}

impl Timers {
    /// Wakes the loop if `due` is before the moment that it waits for.
    pub(super) fn arm(&self, due: Timestamp) {
        if due.as_millis() < self.armed.load(Ordering::Acquire) {
            self.earlier.notify_one();
        }
    }
}

/// Tasks that stay due because their stored data is corrupt: they are not tried again before the next start.
#[derive(Debug, Default)]
struct SkippedTasks {
    corrupt: HashSet<TaskId>,
    /// Tasks that the last tick did not change. Once proves nothing: they may have changed just before it.
    unmoved: HashSet<TaskId>,
}

/// Runs until the engine is gone. It holds the engine only while it works, never while it waits.
pub(super) async fn run(inner: Weak<Inner>) {
    let mut skipped = SkippedTasks::default();
    loop {
        let Some(engine) = inner.upgrade().map(Engine) else { return };
        let (timers, clock) = (engine.0.timers.clone(), engine.0.clock.clone());
        let next = match tick_due_tasks(&engine, &mut skipped).await {
            Ok(next) => next,
            Err(error) => {
                if engine.has_failed() {
                    return;
                }
                tracing::error!(%error, "timers could not be read: trying again");
                clock.now().after(RETRY_DELAY)
            }
        };
        // Other nodes make tasks too, and may be gone when those are due.
        let next = if engine.is_shared() { next.min(clock.now().after(SHARED_INTERVAL)) } else { next };
        drop(engine);
        wait(&timers, async { clock.sleep_until(next).await }, next).await;
    }
}

async fn wait(timers: &Arc<Timers>, sleep: impl Future<Output = ()>, next: Timestamp) {
    let sleep = async {
        if next.as_millis() == i64::MAX {
            std::future::pending::<()>().await;
        }
        sleep.await;
    };
    tokio::select! {
        () = sleep => {}
        () = timers.earlier.notified() => {}
    }
}

/// Sends ticks to due tasks, and returns when to look again.
async fn tick_due_tasks(engine: &Engine, skipped: &mut SkippedTasks) -> Result<Timestamp, Error> {
    let timers = &engine.0.timers;
    // While this looks, every `arm` wakes the loop, so that none is lost.
    timers.armed.store(i64::MAX, Ordering::Release);
    let now = engine.0.clock.now();
    // Other nodes tick what they run. What a dead one ran must not fail for time in which nobody worked on it: it is taken over first.
    let of = engine.is_shared().then(|| engine.epoch());
    let mut due = engine.checked(engine.0.reader.due_tasks(now, of, PAGE + skipped.corrupt.len() + skipped.unmoved.len()).await)?;
    due.retain(|id| !skipped.corrupt.contains(id));
    if due.is_empty() {
        let next = engine.checked(engine.0.reader.next_due(now).await)?.unwrap_or(Timestamp::from_millis(i64::MAX));
        timers.armed.store(next.as_millis(), Ordering::Release);
        return Ok(next);
    }
    let ticks = due.iter().map(|id| engine.submit(*id, Authority::Engine, Command::Tick));
    let before = std::mem::take(&mut skipped.unmoved);
    let mut next = now;
    for (id, tick) in due.iter().zip(futures_util::future::join_all(ticks).await) {
        match tick {
            Ok(receipt) if receipt.changed => {}
            Ok(_) if !before.contains(id) => {
                skipped.unmoved.insert(*id);
            }
            // Another node changed it, or the store's clock was set back.
            Ok(_) if engine.is_shared() => next = now.after(RETRY_DELAY),
            Ok(_) | Err(Error::Corrupt(_)) => {
                tracing::error!(task = %id, "a task whose stored data is corrupt is left alone: it does not time out and is not forgotten");
                skipped.corrupt.insert(*id);
            }
            // Forgotten meanwhile: nothing is due any more.
            Err(Error::Rejected(_)) => {}
            Err(unavailable) => return Err(unavailable),
        }
    }
    Ok(next)
}
