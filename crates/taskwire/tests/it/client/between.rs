//! A proxy between a client and our server.

use taskwire::client::Target;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

/// Passes on what both send, and cuts the connections when the test says so. It can hide a word from the server.
pub(crate) struct Between {
    port: u16,
    cuts: watch::Sender<u64>,
    accepting: JoinHandle<()>,
}

impl Between {
    /// Before the server at this port, which does not see this word; an empty one hides nothing.
    pub(crate) async fn new(server: u16, hidden: &'static [u8]) -> Self {
        Self::in_turns(vec![server], hidden).await
    }

    /// The same before several: each connection leads to another one.
    pub(crate) async fn in_turns(servers: Vec<u16>, hidden: &'static [u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let cuts = watch::Sender::new(0);
        let accepting = tokio::spawn({
            let cuts = cuts.clone();
            async move {
                for server in servers.iter().copied().cycle() {
                    let Ok((client, _)) = listener.accept().await else { return };
                    // Before it is served, so that no cut comes between.
                    let mut cut = cuts.subscribe();
                    tokio::spawn(async move {
                        tokio::select! {
                            () = pass(client, server, hidden) => {}
                            _ = cut.changed() => {}
                        }
                    });
                }
            }
        });
        Self { port, cuts, accepting }
    }

    pub(crate) fn target(&self) -> Target {
        Target::Url(format!("http://127.0.0.1:{}/mcp", self.port))
    }

    /// Cuts every connection.
    pub(crate) fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Passes on what both sides of a connection say, until one of them is gone.
async fn pass(client: TcpStream, server: u16, hidden: &[u8]) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = async {
        let mut bytes = Vec::new();
        while matches!(from_client.read_buf(&mut bytes).await, Ok(1..)) {
            while let Some(at) = position_of(hidden, &bytes) {
                // As long as before, and another word.
                bytes[at + 1] = b'x';
            }
            // What may become the word waits for the rest of it; no message ends like that.
            let begun = (1..hidden.len()).rev().find(|len| bytes.ends_with(&hidden[..*len])).unwrap_or(0);
            let rest = bytes.split_off(bytes.len() - begun);
            if to_server.write_all(&bytes).await.is_err() {
                return;
            }
            bytes = rest;
        }
    };
    tokio::select! {
        () = up => {}
        _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
    }
}

/// The position of a word, if it is not empty.
fn position_of(word: &[u8], bytes: &[u8]) -> Option<usize> {
    if word.is_empty() { None } else { bytes.windows(word.len()).position(|window| window == word) }
}
