//! What a service manager such as systemd gives to the server, and hears from it: the socket to listen on, that the server is ready,
//! reloads or ends, and that it works.

use std::{
    ffi::{OsStr, OsString},
    io,
    net::TcpListener,
    os::unix::{
        ffi::OsStrExt,
        net::{SocketAddr, UnixDatagram},
    },
    thread,
    time::Duration,
};

use listenfd::ListenFd;
use rustix::time::ClockId;
use taskwire::server::Server;
use tokio::task::JoinHandle;

const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
const WATCHDOG_USEC: &str = "WATCHDOG_USEC";
/// What is meant for the server, and for no command.
const VARIABLES: [&str; 7] =
    ["LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_FDS_FIRST_FD", "LISTEN_PID", "WATCHDOG_PID", NOTIFY_SOCKET, WATCHDOG_USEC];
const WORKS: &str = "WATCHDOG=1";
/// How long the service manager may take to hear something that it hears once.
const TELL_TIMEOUT: Duration = Duration::from_secs(1);

/// The variables that no command may see.
pub(crate) fn variables() -> impl Iterator<Item = String> {
    VARIABLES.into_iter().map(ToOwned::to_owned)
}

/// The socket that the service manager has opened for this process, if it has. Call it while there is one thread: it removes the variables
/// that say so.
pub(crate) fn listener() -> io::Result<Option<TcpListener>> {
    let mut passed = ListenFd::from_env();
    if passed.len() > 1 {
        let why = format!("{} sockets are passed (`LISTEN_FDS`), and the server listens on one", passed.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let listener = passed.take_tcp_listener(0)?;
    if let Some(listener) = &listener {
        listener.set_nonblocking(true)?;
    }
    Ok(listener)
}

/// The server takes calls.
pub(crate) fn ready() {
    tell("READY=1");
}

/// The server reads its configuration again; [`ready`] says that it has.
pub(crate) fn reloading() {
    // The service manager compares it with its own clock, which is this one.
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    let now = Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0));
    tell(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.as_micros()));
}

/// The server drains, and ends.
pub(crate) fn stopping() {
    tell("STOPPING=1");
}

/// Tells the service manager, as often as it wants to hear it, that the server works: until the server hangs, or this is dropped.
pub(crate) fn watchdog(server: &Server) -> Option<Watchdog> {
    let is_for_another = std::env::var("WATCHDOG_PID").is_ok_and(|pid| pid != std::process::id().to_string());
    let limit = std::env::var(WATCHDOG_USEC).ok().filter(|_| !is_for_another)?.parse::<u64>().ok().filter(|limit| *limit > 0)?;
    let (interval, server) = (Duration::from_micros(limit) / 2, server.clone());
    Some(Watchdog(tokio::spawn(async move {
        loop {
            server.works().await;
            tell(WORKS);
            tokio::time::sleep(interval).await;
        }
    })))
}

/// See [`watchdog`].
pub(crate) struct Watchdog(JoinHandle<()>);

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn tell(state: &str) {
    if let Some(socket) = std::env::var_os(NOTIFY_SOCKET).filter(|socket| !socket.is_empty()) {
        tell_at(socket, state);
    }
}

fn tell_at(socket: OsString, state: &str) {
    match send(&socket, state, None) {
        // The server does not wait. That it works is said again soon; for all else there is a thread that waits.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            if state != WORKS {
                let state = state.to_owned();
                drop(thread::Builder::new().spawn(move || warn_unless_told(send(&socket, &state, Some(TELL_TIMEOUT)), &state)));
            }
        }
        told => warn_unless_told(told, state),
    }
}

fn warn_unless_told(told: io::Result<()>, state: &str) {
    if let Err(error) = told {
        tracing::warn!(%error, state, "the service manager cannot be told (`NOTIFY_SOCKET`)");
    }
}

/// Sends a state, and waits so long until there is room for it; not at all if `wait` is absent.
fn send(socket: &OsStr, state: &str, wait: Option<Duration>) -> io::Result<()> {
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(wait.is_none())?;
    sender.set_write_timeout(wait)?;
    sender.send_to_addr(state.as_bytes(), &address(socket)?).map(drop)
}

/// A path, or on Linux a name that begins with `@`.
fn address(socket: &OsStr) -> io::Result<SocketAddr> {
    #[cfg(target_os = "linux")]
    if let Some(name) = socket.as_bytes().strip_prefix(b"@") {
        use std::os::linux::net::SocketAddrExt;
        return SocketAddr::from_abstract_name(name);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = socket.as_bytes();
    SocketAddr::from_pathname(socket)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::linux::net::SocketAddrExt;

    use super::*;
    use crate::testing::TempDir;

    #[test]
    fn a_service_manager_is_told_by_a_path_or_by_a_name() {
        let dir = TempDir::new();
        let path = dir.path().join("notify");
        let name = format!("taskwire-test-{}-{}", std::process::id(), path.display());
        let named = SocketAddr::from_abstract_name(&name).expect("an address");
        let managers = [UnixDatagram::bind(&path).expect("a socket"), UnixDatagram::bind_addr(&named).expect("a socket")];
        for (manager, socket) in managers.iter().zip([path.as_os_str().to_owned(), format!("@{name}").into()]) {
            send(&socket, "READY=1", None).expect("told");
            let mut heard = [0; 64];
            let len = manager.recv(&mut heard).expect("heard");
            assert_eq!(&heard[..len], b"READY=1");
        }
        send(OsStr::new("/no/such/socket"), "READY=1", None).expect_err("nobody hears it");
    }

    #[test]
    fn a_service_manager_that_is_slow_holds_nobody_up_and_hears_what_is_said_once() {
        let dir = TempDir::new();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).expect("a socket");
        let full = loop {
            if let Err(error) = send(path.as_os_str(), WORKS, None) {
                break error;
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        tell_at(path.clone().into(), WORKS);
        tell_at(path.into(), "READY=1");
        manager.set_read_timeout(Some(Duration::from_secs(10))).expect("it is set");
        let mut heard = [0; 64];
        loop {
            let len = manager.recv(&mut heard).expect("it is said");
            if &heard[..len] == b"READY=1" {
                break;
            }
        }
    }
}
