//! Waits for a slot of the tool. Where nodes share the store, a command that was never started may get one on another node.

use super::CommandRun;
use crate::{
    engine::{HAS_TURN, Phase, WAITS_FOR_TURN},
    tool::{ToolError, from_engine},
};

impl CommandRun {
    /// Waits until the tool has a free slot. A command that was never started may get one on another node meanwhile.
    pub(super) async fn wait_for_slot(&mut self, tool: &str, is_new: bool) -> Result<(), ToolError> {
        if self.slot.is_some() {
            return Ok(());
        }
        let engine = self.run.engine().clone();
        let (limit, is_new) = (self.commands.concurrency_limit(tool, None), is_new && engine.orphan_after().is_some());
        let (mut slot, was_queued) = (limit.try_acquire(), self.run.was_queued());
        let waits = slot.is_none();
        if waits {
            if is_new
                && let Err(error) = self.run.queue().await
                && matches!(self.run.phase(), Phase::Task(_))
            {
                return Err(from_engine(error));
            }
            let _waiting = engine.metrics().tool(tool).command_waits();
            let max = limit.max();
            self.ctx.status(format!("{WAITS_FOR_TURN}: {max} of {max} are running (`concurrency`)")).await?;
            tokio::select! {
                acquired = limit.acquire() => slot = Some(acquired),
                () = self.run.stopped() => return Err(ToolError::stopped()),
            }
        }
        if is_new && engine.is_handing_over() {
            // This node is about to end, so another one starts it.
            drop(slot);
            self.run.stopped().await;
            return Err(ToolError::stopped());
        }
        self.slot = slot;
        if ((waits && is_new) || was_queued) && matches!(self.run.phase(), Phase::Task(_)) {
            // From here on no other node may take it.
            self.run.dequeue().await.map_err(from_engine)?;
        }
        if waits || was_queued {
            self.ctx.status(HAS_TURN).await?;
        }
        Ok(())
    }
}
