//! A connection that several share, while a statement is on its way.
//!
//! Whoever waits for the answer may leave, and a network may swallow what was sent. Nobody else gets a connection that has not answered.
//! One that was idle before has most likely died, and with it those that were idle beside it.

use std::{ops::Deref, time::Duration};

use deadpool_postgres::{ClientWrapper, Object};
use tokio::{
    runtime::Handle,
    time::{Instant, timeout},
};

/// How long a connection that was idle may take to answer when nobody waits any more. After that it is dead.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same for a new one. The server took it a moment ago, so it is the server that is busy, as with a commit that waits for a standby: to
/// come with another connection each time would take all that it has.
const PATIENCE_WITH_NEW: Duration = Duration::from_secs(600);

/// A connection that a statement was sent on.
pub(super) struct Busy {
    /// There until it is given back or away, which ends this.
    client: Option<Object>,
    since: Instant,
}

impl Busy {
    pub(super) fn new(client: Object) -> Self {
        Self { client: Some(client), since: Instant::now() }
    }

    /// The answer is there: somebody else can have the connection.
    pub(super) fn answered(mut self) {
        drop(self.client.take());
    }

    /// There is no answer, and none comes.
    pub(super) fn fail(mut self) {
        if let Some(client) = self.client.take() {
            discard(client, self.since);
        }
    }
}

impl Deref for Busy {
    type Target = ClientWrapper;

    fn deref(&self) -> &ClientWrapper {
        match &self.client {
            Some(client) => client,
            None => unreachable!("whatever takes the connection ends this"),
        }
    }
}

/// Nobody waits for the answer any more.
impl Drop for Busy {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else { return };
        let is_new = Object::metrics(&client).recycle_count == 0;
        let patience = if is_new { PATIENCE_WITH_NEW } else { PATIENCE.saturating_sub(self.since.elapsed()) };
        match Handle::try_current() {
            Ok(runtime) if !patience.is_zero() => drop(runtime.spawn(wait_for_answer(client, self.since, patience))),
            _ => discard(client, self.since),
        }
    }
}

/// Gives a connection back when it has answered.
async fn wait_for_answer(client: Object, since: Instant, patience: Duration) {
    // It answers in order.
    if !matches!(timeout(patience, client.check_connection()).await, Ok(Ok(()))) {
        discard(client, since);
    }
}

/// Closes a connection that is dead, and those that were idle when it was asked. The next ones are new.
fn discard(client: Object, since: Instant) {
    if let Some(pool) = Object::pool(&client) {
        drop(pool.retain(|_, metrics| metrics.created >= since.into_std()));
    }
    drop(Object::take(client));
}
