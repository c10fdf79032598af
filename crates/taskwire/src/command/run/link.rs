//! The server's end of a connection with a supervisor.

use std::{sync::Arc, time::Duration};

use tokio::{io::AsyncWriteExt, net::unix::OwnedWriteHalf, sync::Mutex, task::JoinHandle};

use crate::{
    command::{
        messages::{self, ToSupervisor},
        supervisor::{Job, lease_time_ms},
    },
    engine::Run,
};

/// How often a supervisor is told that its node has its lease.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);

pub(super) struct SupervisorLink {
    out: Arc<Mutex<OwnedWriteHalf>>,
    heartbeat: Option<JoinHandle<()>>,
}

impl SupervisorLink {
    /// Where nodes share the store, the supervisor hears from now on that this node has its lease, whatever else the server does.
    pub(super) fn new(out: OwnedWriteHalf, run: &Run, job: &Job) -> Self {
        let out = Arc::new(Mutex::new(out));
        let heartbeat = job.lease.as_ref().map(|_| {
            let (out, weak, clock) = (out.clone(), run.engine().weak(), run.engine().clock().clone());
            tokio::spawn(async move {
                loop {
                    // The time before the look: it may be long until the supervisor hears of it.
                    let now = lease_time_ms();
                    let Some(has_lease) = weak.get().map(|engine| engine.has_lease()) else { return };
                    if has_lease && out.lock().await.write_all(&messages::line(&ToSupervisor::Lease(now))).await.is_err() {
                        return;
                    }
                    clock.sleep(HEARTBEAT_INTERVAL).await;
                }
            })
        });
        Self { out, heartbeat }
    }

    /// Sends a message. If the supervisor is gone, its connection closes.
    pub(super) async fn tell(&self, what: &ToSupervisor) {
        let _ = self.out.lock().await.write_all(&messages::line(what)).await;
    }

    /// Stops the command, if that can be said at once.
    pub(super) fn try_stop(&self) {
        if let Ok(out) = self.out.try_lock() {
            let _ = out.try_write(&messages::line(&ToSupervisor::Stop {}));
        }
    }
}

impl Drop for SupervisorLink {
    fn drop(&mut self) {
        if let Some(heartbeat) = &self.heartbeat {
            heartbeat.abort();
        }
    }
}
