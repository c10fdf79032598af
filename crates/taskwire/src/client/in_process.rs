//! A [`Server`] in the same process as a [`Target`].

use std::sync::Arc;

use tokio::io::DuplexStream;

use super::{Connect, Target};
use crate::server::Server;

/// Bytes between a client and a server in one process.
const PIPE_BYTES: usize = 256 * 1024;

impl Connect for Server {
    fn connect(&self) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        let (input, output) = tokio::io::split(theirs);
        let server = self.clone();
        tokio::spawn(async move {
            if let Err(error) = server.serve_stream(input, output, std::future::pending()).await {
                tracing::warn!(%error, "the server in this process ended");
            }
        });
        ours
    }
}

impl From<Server> for Target {
    fn from(server: Server) -> Self {
        Self::InProcess(Arc::new(server))
    }
}

impl From<&Server> for Target {
    fn from(server: &Server) -> Self {
        server.clone().into()
    }
}
