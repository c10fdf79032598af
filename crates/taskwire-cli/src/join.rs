//! A stdio server whose data directory another process uses: it joins that process, and takes over when it ends.

use std::{
    io,
    path::PathBuf,
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use taskwire::{
    command::socket,
    server::{Bridge, Dial, Server},
    store,
};
use tokio::{
    net::UnixStream,
    sync::{Mutex, watch},
    task::JoinHandle,
    time::Instant,
};

use crate::{
    cmd::serve::{RunningServer, ServerSetup},
    control::{self, Reply, Request, ServerDescription, SocketFile},
    term::{escape, stderr},
};

/// The socket's name in the data directory.
const SOCKET_NAME: &str = "join";
/// How long the process with the directory may take until others can join.
const JOIN_TIMEOUT: Duration = Duration::from_secs(15);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Lets other processes join a server while this exists.
#[derive(Debug)]
pub(crate) struct JoinSocket {
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
    _socket: SocketFile,
}

impl JoinSocket {
    /// Lets them join from now on. Only users who may read the tasks can.
    pub(crate) async fn listen(data: PathBuf, server: &Server) -> io::Result<Self> {
        let listener = socket::listen(&data, SOCKET_NAME).await?;
        let (stop, mut stopped) = watch::channel(false);
        let server = server.clone();
        let serving = tokio::spawn(async move {
            let stopped = async move {
                let _ = stopped.wait_for(|stop| *stop).await;
            };
            server.serve_local(listener, stopped).await;
        });
        Ok(Self { stop, serving, _socket: SocketFile(data.join(SOCKET_NAME)) })
    }

    /// Disconnects the joined processes: they go on with the next server. Their calls are durable when this returns.
    pub(crate) async fn stop(self) {
        self.stop.send_replace(true);
        let _ = self.serving.await;
    }
}

/// Serves the client of this process through the process that has the data directory.
pub(crate) async fn run(prepared: ServerSetup, holder: &str) -> anyhow::Result<()> {
    let stop = prepared.stop_signal()?;
    let (data, body_bytes) = (prepared.data().to_owned(), prepared.body_bytes());
    let mine = prepared.describe();
    let role = std::sync::Arc::new(Mutex::new(ProcessRole { setup: Some(prepared), server: None }));
    let dialer = ServerDialer { data: data.clone(), role, has_joined: AtomicBool::new(false), store_failure: watch::Sender::new(None) };
    // Before anything is read: report now if the other process cannot be joined.
    drop(dialer.dial().await?);
    tracing::info!(data = %data.display(), "joined the server of {holder}");
    let asked = tokio::task::spawn_blocking(move || control::send_request(&data, &Request::Describe)).await?;
    if let Ok(Reply::Described(theirs)) = asked
        && let Some(differs) = theirs.differs_from(&mine)
    {
        stderr::write(&format!("{}\n", escape::lines(&format!("taskwire: {differs}"))));
    }
    let role = dialer.role.clone();
    let mut failed = dialer.store_failure.subscribe();
    let served = tokio::select! {
        served = Bridge::new(dialer, body_bytes).run(tokio::io::stdin(), tokio::io::stdout(), stop) => served,
        // Without its store the server can promise nothing, and only a restart helps.
        Ok(reason) = failed.wait_for(Option::is_some) => {
            Err(io::Error::other(format!("the store failed: {}", reason.as_deref().unwrap_or_default())))
        }
    };
    if let Some(leader) = role.lock().await.server.take() {
        leader.stop().await;
    }
    Ok(served?)
}

/// What this process does, besides bridging its own client.
struct ProcessRole {
    /// All that is needed to serve, until it does.
    setup: Option<ServerSetup>,
    server: Option<RunningServer>,
}

/// Connects to the server: another process, or this one once it has taken over.
struct ServerDialer {
    data: PathBuf,
    role: std::sync::Arc<Mutex<ProcessRole>>,
    /// Whether a connection ever succeeded: then there will be a server again.
    has_joined: AtomicBool,
    /// Why the store failed, if this process has it.
    store_failure: watch::Sender<Option<String>>,
}

impl ServerDialer {
    /// Takes over from a server that has ended, if no other process has.
    async fn take_over(&self) -> io::Result<()> {
        let mut role = self.role.lock().await;
        if role.server.is_some() {
            return Ok(());
        }
        let Some(setup) = &role.setup else { return Err(io::Error::other("this process could not take the place of its server")) };
        let store = match setup.open_store().await {
            Ok(store) => store,
            Err(store::Error::Locked { .. }) => return Ok(()),
            Err(error) => return Err(io::Error::other(error)),
        };
        let prepared = role.setup.take().ok_or_else(|| io::Error::other("this process could not take the place of its server"))?;
        let leader = prepared.start_server(store).await.map_err(io::Error::other)?;
        let (reason, failed) = (leader.failed(), self.store_failure.clone());
        tokio::spawn(async move {
            failed.send_replace(Some(reason.await.to_string()));
        });
        role.server = Some(leader);
        tracing::info!(data = %self.data.display(), "the server that was joined has ended: this process takes its place");
        Ok(())
    }
}

impl Dial for ServerDialer {
    fn dial(&self) -> Pin<Box<dyn Future<Output = io::Result<UnixStream>> + Send + '_>> {
        Box::pin(async {
            let began = Instant::now();
            loop {
                let refused = match socket::connect(&self.data, SOCKET_NAME).await {
                    Ok(stream) => {
                        self.has_joined.store(true, Ordering::Relaxed);
                        return Ok(stream);
                    }
                    Err(error) => error,
                };
                self.take_over().await?;
                if began.elapsed() > JOIN_TIMEOUT && !self.has_joined.load(Ordering::Relaxed) {
                    let data = self.data.display();
                    let message =
                        format!("another process uses {data} and accepts no others ({refused}): stop it, or choose another directory");
                    return Err(io::Error::new(refused.kind(), message));
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        })
    }
}

impl ServerDescription {
    /// How this configuration, which is used, differs from another one; `None` if it does not.
    fn differs_from(&self, mine: &Self) -> Option<String> {
        let names = |tools: Vec<&String>| tools.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let (mut there, mut here, mut other) = (Vec::new(), Vec::new(), Vec::new());
        for (tool, hash) in &self.tools {
            match mine.tools.get(tool) {
                None => there.push(tool),
                Some(own) if own != hash => other.push(tool),
                Some(_) => {}
            }
        }
        here.extend(mine.tools.keys().filter(|tool| !self.tools.contains_key(*tool)));
        let all: std::collections::BTreeSet<&String> = self.keys.keys().chain(mine.keys.keys()).collect();
        let keys: Vec<String> =
            all.into_iter().filter(|key| self.keys.get(*key) != mine.keys.get(*key)).map(|key| format!("`{key}`")).collect();
        let lists = [
            ("tools only there", names(there)),
            ("tools only here", names(here)),
            ("tools that differ", names(other)),
            ("keys that differ", keys.join(", ")),
        ];
        let said: Vec<String> =
            lists.into_iter().filter(|(_, list)| !list.is_empty()).map(|(what, list)| format!("{what}: {list}")).collect();
        let file = self.file.as_ref().map(|file| format!(" ({})", file.display())).unwrap_or_default();
        let used = "than this one; its configuration is used.";
        (!said.is_empty()).then(|| format!("the server that was joined has another configuration{file} {used} {}", said.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(tools: &[(&str, u64)], keys: &[(&str, u64)]) -> ServerDescription {
        let owned = |pairs: &[(&str, u64)]| pairs.iter().map(|(name, hash)| ((*name).to_owned(), *hash)).collect();
        ServerDescription { file: Some("/a/taskwire.toml".into()), tools: owned(tools), keys: owned(keys) }
    }

    #[test]
    fn what_differs_is_said_and_nothing_else() {
        let theirs = described(&[("a", 1), ("b", 1), ("c", 1)], &[("hold", 1), ("drain", 2)]);
        assert_eq!(theirs.differs_from(&theirs), None);
        let mine = described(&[("a", 1), ("b", 2), ("d", 1)], &[("hold", 3), ("drain", 2), ("linger", 1)]);
        assert_eq!(
            theirs.differs_from(&mine).expect("it differs"),
            "the server that was joined has another configuration (/a/taskwire.toml) than this one; its configuration is used. tools \
             only there: c; tools only here: d; tools that differ: b; keys that differ: `hold`, `linger`"
        );
    }
}
