//! The engine's work, done by tools.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use taskwire_core::{
    task::{Outcome, RpcError},
    wire::code,
};

use crate::{
    engine::{End, Run, Work},
    tool::{Ctx, Provider},
};

pub(super) struct ToolWork {
    provider: Arc<dyn Provider>,
}

impl ToolWork {
    pub(super) fn new(provider: Arc<dyn Provider>) -> Self {
        Self { provider }
    }
}

impl Work for ToolWork {
    fn run(&self, run: Arc<Run>) -> BoxFuture<'static, End> {
        let Some(tool) = self.provider.tool(&run.spec().tool) else {
            let message = format!("the tool `{}` is no longer there", run.spec().tool);
            let error = RpcError { code: code::INTERNAL_ERROR, message, data: None };
            return Box::pin(async { End::Outcome(Outcome::Failed(error)) });
        };
        Box::pin(async move {
            match tool.0.run(Ctx::new(run)).await {
                Ok(result) => End::Outcome(result.into_outcome()),
                Err(error) => error.into_end(),
            }
        })
    }
}
