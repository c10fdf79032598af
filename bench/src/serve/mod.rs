//! The servers that are measured, each in a process of its own.

mod bare_pour;
mod bare_server;
mod bare_stream;
mod pour;
mod rmcp_server;
mod taskwire_server;
mod write;

use std::{error::Error, io::Read as _, net::SocketAddr, path::PathBuf};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use hyper::{
    Request, Response,
    body::{Body, Incoming},
    server::conn::http1,
    service::Service,
};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::TcpListener;

pub use pour::Pour;
pub use taskwire_server::{STORE_VARIABLE, schema_of, token};
pub use write::{STAMP_LEN, Write, unix_ns};

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// This project's library, on its embedded store.
    Taskwire,
    /// The official SDK, with its tasks in memory.
    Rmcp,
    /// A hyper server that answers constants: the limit of what HTTP allows.
    Bare,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Taskwire, Self::Rmcp, Self::Bare];

    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Taskwire => "taskwire",
            Self::Rmcp => "rmcp",
            Self::Bare => "bare",
        }
    }
}

/// How a server is started.
#[derive(Debug, clap::Args)]
pub struct Serve {
    /// Which server.
    kind: Kind,
    /// Where it listens.
    #[arg(long, value_name = "ADDR")]
    listen: SocketAddr,
    /// Where it keeps tasks, if it does.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Makes each text that a tool writes a chunk of its own; for taskwire.
    #[arg(long)]
    uncoalesced: bool,
    /// Keeps the limits that are the defaults, and knows so many callers by their tokens; for taskwire.
    #[arg(long, value_name = "NUMBER")]
    callers: Option<usize>,
    /// Ends when standard input does, so that it cannot outlive what started it.
    #[arg(long)]
    tied: bool,
}

/// Serves until the process is killed.
pub async fn run(serve: Serve) -> Result<()> {
    if serve.tied {
        exit_with_stdin();
    }
    let listener = TcpListener::bind(serve.listen).await.with_context(|| format!("cannot listen on {}", serve.listen))?;
    match serve.kind {
        Kind::Taskwire => {
            let data = serve.data.context("this server needs --data")?;
            taskwire_server::run(listener, &data, serve.uncoalesced, serve.callers).await
        }
        Kind::Rmcp => rmcp_server::run(listener).await,
        Kind::Bare => bare_server::run(listener).await,
    }
}

/// Ends this process when its standard input does, so that it cannot outlive what started it.
pub fn exit_with_stdin() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
}

/// Serves HTTP/1.1 connections: the same few lines for every server that does not bring its own.
async fn accept<S, B>(listener: TcpListener, service: S) -> Result<()>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service.clone());
        tokio::spawn(async move {
            // An error means that the client went away.
            let _ = connection.await;
        });
    }
}
