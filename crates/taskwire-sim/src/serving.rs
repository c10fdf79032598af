//! What a node of a simulated world and one of a real world have in common: how it is set up, and how it serves.

use std::time::Duration;

use taskwire::{
    core::Limits,
    server::{Config, EngineConfig, Server},
};
use tokio::io::DuplexStream;

use crate::{observer::Observer, tee::Tee};

/// Bytes between a client and a node.
pub(crate) const PIPE_BYTES: usize = 64 * 1024;

/// The settings of a node that forgets tasks so long after their end, if it does.
pub(crate) fn config(retention: Option<Duration>) -> Config {
    Config {
        engine: EngineConfig { limits: Limits { disk_reserve_bytes: 0, ..Limits::DEFAULT }, ..EngineConfig::default() },
        attempts_max: 1_000_000,
        retention,
        ..Config::default()
    }
}

/// Serves one client until it goes away, and reports what is said, if somebody takes that.
pub(crate) async fn serve(server: Server, stream: DuplexStream, reported: Option<Observer>) {
    let (input, output) = tokio::io::split(stream);
    let (input, output) = (Tee::new(input, '>', reported.clone()), Tee::new(output, '<', reported));
    // A client that goes away is no error.
    let _ = server.serve_stream(input, output, std::future::pending()).await;
}

/// A connection that never says anything: with the first one, a node begins to take over what others left.
pub(crate) async fn take_over(server: Server) {
    let (_ours, theirs) = tokio::io::duplex(PIPE_BYTES);
    serve(server, theirs, None).await;
}
