//! A server under a service manager such as systemd: it serves the socket that it was given, and says how it is.

use std::{
    fs,
    net::TcpListener,
    os::{fd::OwnedFd, unix::net::UnixDatagram},
    process::{Command, Stdio},
};

use serde_json::json;

use crate::kit::{Process, Server, TIMEOUT, TempDir, signal};

const TOOL: &str = "[[tool]]\nname = \"variables\"\ndescription = \"Says which variables it has\"\ncommand = [\"env\"]\n";
/// What a service manager gives to a server, and what no command may get.
const GIVEN: [&str; 4] = ["LISTEN_FDS=", "LISTEN_PID=", "NOTIFY_SOCKET=", "WATCHDOG_USEC="];

/// A service manager with a socket for a server, and one to hear it.
struct ServiceManager {
    dir: TempDir,
    heard: UnixDatagram,
}

impl ServiceManager {
    fn new() -> Self {
        let dir = TempDir::new();
        let heard = UnixDatagram::bind(dir.path().join("notify")).expect("a socket");
        heard.set_read_timeout(Some(TIMEOUT)).expect("a limit");
        fs::write(dir.join("taskwire.toml"), format!("limits.disk_reserve_bytes = 0\n{TOOL}")).expect("a file");
        Self { dir, heard }
    }

    /// A server that gets `listener` as its third descriptor, for the process that `pid` (of a shell) names.
    fn start(&self, listener: TcpListener, pid: &str, listen: &str) -> Process {
        let mut command = Command::new("sh");
        // The shell becomes the server, so its number is the server's.
        command.args(["-c", &format!("export LISTEN_PID={pid}; exec \"$0\" \"$@\" 3<&0 </dev/null"), env!("CARGO_BIN_EXE_taskwire")]);
        command.args(["serve", &self.dir.join("taskwire.toml"), "--listen", listen, "--data", &self.dir.join("data")]);
        command.env("LISTEN_FDS", "1").env("NOTIFY_SOCKET", self.dir.join("notify")).env("WATCHDOG_USEC", "100000");
        command.env_remove("RUST_LOG").stdin(Stdio::from(OwnedFd::from(listener))).stdout(Stdio::piped()).stderr(Stdio::piped());
        Process::spawn(&mut command)
    }

    /// Waits until the server has said this.
    #[track_caller]
    fn hears(&self, words: &str) {
        let mut message = [0; 256];
        loop {
            let len = self.heard.recv(&mut message).unwrap_or_else(|error| panic!("`{words}` was never said: {error}"));
            if String::from_utf8_lossy(&message[..len]).contains(words) {
                return;
            }
        }
    }
}

fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    (listener, port)
}

#[test]
fn the_socket_that_is_passed_is_served_and_the_service_manager_hears_how_it_is() {
    let manager = ServiceManager::new();
    let (listener, port) = listener();
    // Where nobody could listen.
    let process = manager.start(listener, "$$", "127.0.0.1:1");
    manager.hears("READY=1");
    let server = Server { process, port };
    assert_eq!(server.probe("/readyz"), (200, "ok\n".to_owned()));
    let said = server.ask("tools/call", json!({"name": "variables", "arguments": {}})).to_string();
    assert!(said.contains("PATH=") && GIVEN.iter().all(|given| !said.contains(given)), "{said}");
    for _ in 0..3 {
        manager.hears("WATCHDOG=1");
    }
    signal(server.process.id(), "HUP");
    manager.hears("RELOADING=1\nMONOTONIC_USEC=");
    manager.hears("READY=1");
    server.process.terminate();
    manager.hears("STOPPING=1");
    assert_eq!(server.process.ended().code(), Some(0));
}

#[test]
fn a_socket_for_another_process_is_not_taken() {
    let manager = ServiceManager::new();
    let (listener, port) = listener();
    let process = manager.start(listener, "1", "127.0.0.1:0");
    manager.hears("READY=1");
    let endpoint = std::iter::from_fn(|| process.line()).find(|line| line.contains("endpoint ")).expect("it says where it listens");
    assert!(!endpoint.contains(&format!(":{port}/")), "{endpoint}");
    process.terminate();
    assert_eq!(process.ended().code(), Some(0));
}

#[test]
fn a_socket_that_everybody_can_reach_needs_tokens_like_any_address() {
    let manager = ServiceManager::new();
    let listener = TcpListener::bind("0.0.0.0:0").expect("a port");
    let (code, errors) = manager.start(listener, "$$", "127.0.0.1:0").end_with_errors();
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("nobody needs a token"), "{errors}");
}
