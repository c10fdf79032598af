//! Takes over what an earlier life of this node left open: run again, or failed with a clear error.

use taskwire_core::task::{Authority, Command};

use super::{Engine, Error};

/// Tasks that are taken over together.
const PAGE: usize = 256;

pub(super) async fn recover(engine: Engine) {
    match take_over(&engine).await {
        Ok(0) => {}
        Ok(count) => tracing::info!(count, "took over tasks that were interrupted"),
        Err(error) => tracing::error!(%error, "cannot take over interrupted tasks"),
    }
}

async fn take_over(engine: &Engine) -> Result<usize, Error> {
    let (mut after, mut count) = (None, 0);
    loop {
        let page = engine.0.reader.open(after, PAGE)?;
        let Some(last) = page.last().copied() else { return Ok(count) };
        after = Some(last);
        let commands = page.into_iter().map(|id| engine.submit(id, Authority::Engine, Command::Recover(engine.0.epoch)));
        for receipt in futures_util::future::join_all(commands).await {
            match receipt {
                Ok(receipt) => count += usize::from(receipt.changed),
                Err(Error::Rejected(reject)) => tracing::warn!(%reject, "an open task could not be taken over"),
                Err(unavailable) => return Err(unavailable),
            }
        }
    }
}
