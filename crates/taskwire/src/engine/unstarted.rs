//! A run that a call is about to start.

use std::{pin::Pin, sync::Arc, task::Poll};

use super::{
    exchange::Phase,
    run::{Run, execute},
};

/// A run and the future that executes it.
pub struct UnstartedRun {
    run: Arc<Run>,
    future: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl std::fmt::Debug for UnstartedRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("UnstartedRun").field(&self.run).finish()
    }
}

impl UnstartedRun {
    pub(super) fn new(run: Arc<Run>) -> Self {
        let future = Box::pin(execute(run.clone()));
        Self { run, future: Some(future) }
    }

    #[must_use]
    pub fn run(&self) -> &Arc<Run> {
        &self.run
    }

    /// Starts the work. Work that never waits ends within this call; any other is spawned and goes on, whatever becomes of the
    /// call.
    pub async fn start(&mut self) -> Phase {
        if let Some(mut future) = self.future.take() {
            let ready = std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await;
            if !ready {
                tokio::spawn(future);
            }
        }
        self.run.phase()
    }
}
