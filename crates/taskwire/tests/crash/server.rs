//! The real server as a process of its own, started and killed at will, always with the same files and port.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

use crate::{dice::Dice, testing::TempDir};

/// The port and the files of a server.
#[derive(Debug)]
pub(crate) struct ServerFiles {
    pub(crate) port: u16,
    dir: TempDir,
    /// The database that it shares with others, and the record that all of them write.
    shared: Option<(String, PathBuf)>,
}

impl ServerFiles {
    pub(crate) fn new(dice: &mut Dice) -> Self {
        Self { port: free_port(dice), dir: TempDir::new(), shared: None }
    }

    /// One of several that share a database.
    pub(crate) fn sharing(dice: &mut Dice, store: &str, record: PathBuf) -> Self {
        Self { shared: Some((store.to_owned(), record)), ..Self::new(dice) }
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub(crate) fn record_path(&self) -> PathBuf {
        self.shared.as_ref().map_or_else(|| self.dir.path().join("journal"), |(_, record)| record.clone())
    }

    /// Starts the server; it does not accept connections yet.
    pub(crate) fn start(&self) -> Server {
        let mut command = Command::new(binary());
        command.arg("--listen").arg(format!("127.0.0.1:{}", self.port));
        command.arg("--data").arg(self.data()).arg("--journal").arg(self.record_path());
        if let Some((store, _)) = &self.shared {
            command.arg("--store").arg(store);
        }
        Server { child: command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("the server starts") }
    }
}

/// A port below those that the system gives to outgoing connections: a client that connects while the server
/// is down must not get that very port for its own end, for it would then be connected to itself.
fn free_port(dice: &mut Dice) -> u16 {
    loop {
        let port = 20_000 + u16::try_from(dice.below(12_000)).expect("a small number");
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// The example beside this test: `…/target/<profile>/deps/crash-…` → `…/target/<profile>/examples/crash_tools`.
fn binary() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test.parent().and_then(Path::parent).expect("a test lies in `target/<profile>/deps`");
    let path = profile.join("examples").join(format!("crash_tools{}", std::env::consts::EXE_SUFFIX));
    assert!(
        path.is_file(),
        "{} is not there: `cargo build -p taskwire --example crash_tools`, in the profile of this test, makes it",
        path.display()
    );
    path
}

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
}

impl Server {
    /// Waits until it accepts connections.
    pub(crate) async fn accepts(&mut self, port: u16) {
        let accepted = async {
            while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
                self.is_alive();
                sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(Duration::from_secs(30), accepted).await.expect("the server accepts connections within half a minute");
    }

    /// Kills it as a power cut would, for this process alone. It must have been alive: it never ends by itself.
    pub(crate) fn kill(mut self) {
        self.is_alive();
        self.child.kill().expect("the server can be killed");
        self.child.wait().expect("the server is gone");
    }

    /// The most memory that it has ever had, in bytes; none where the system does not say.
    pub(crate) fn memory_peak(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kib: u64 = peak.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kib * 1024)
    }

    fn is_alive(&mut self) {
        let ended = self.child.try_wait().expect("the server can be looked at");
        assert!(ended.is_none(), "the server ended by itself ({ended:?}): its own words are above");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
