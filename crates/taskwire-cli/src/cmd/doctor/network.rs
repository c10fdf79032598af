//! The address that the server listens on, and those who issue tokens for it.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use taskwire::clock::{Clock, SystemClock};

use super::finding::Finding;
use crate::{cmd::serve, config::Config};

const ADDRESS: &str = "address";
const ISSUERS: &str = "issuers";
/// How long a server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How long all issuers may take.
const ISSUERS_TIMEOUT: Duration = Duration::from_secs(15);
/// Bytes of an answer.
const ANSWER_BYTES_MAX: u64 = 4096;

/// Whether the addresses can be listened on, or a server answers there. `is_served`: whether one has the data directory.
pub(super) fn address(config: &Config, is_served: bool) -> Vec<Finding> {
    // Both were checked with the file.
    let address = serve::address(config).ok().map(|address| (address, "`listen`"));
    let metrics = config.metrics.address().ok().flatten().map(|address| (address, "`metrics.listen`"));
    address.into_iter().chain(metrics).map(|(address, key)| of_address(address, key, is_served)).collect()
}

fn of_address(address: SocketAddr, key: &str, is_served: bool) -> Finding {
    match TcpListener::bind(address) {
        Ok(_) if is_served => Finding::warn(ADDRESS, format!("nobody listens on {address} ({key}), while a server has the data directory"))
            .so("it listens elsewhere (`--listen`), or only serves standard input"),
        Ok(_) => Finding::ok(ADDRESS, format!("{address} is free")),
        Err(error) if error.kind() != ErrorKind::AddrInUse => {
            Finding::fail(ADDRESS, format!("{address} ({key}) cannot be listened on: {error}")).so("choose another address")
        }
        Err(_) => match (is_healthy(address), is_served) {
            (Ok(true), true) => Finding::ok(ADDRESS, format!("a server answers on {address}")),
            (Ok(true), false) => Finding::warn(ADDRESS, format!("a server with another data directory answers on {address} ({key})"))
                .so("stop that one, or choose another address"),
            (Ok(false) | Err(_), _) if is_served && key.contains("metrics") => {
                Finding::ok(ADDRESS, format!("somebody listens on {address}"))
            }
            (Ok(false) | Err(_), _) => Finding::fail(ADDRESS, format!("something else listens on {address} ({key}), or does not answer"))
                .so("`ss -ltnp` says what; stop it, or choose another address"),
        },
    }
}

/// Whether a Taskwire that works answers at this address.
fn is_healthy(address: SocketAddr) -> io::Result<bool> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(answer.starts_with(b"HTTP/1.1 200 ") && answer.ends_with(b"\r\n\r\nok\n"))
}

/// Whether those who issue tokens answer.
pub(super) async fn issuers(config: &Config) -> Vec<Finding> {
    // Without its secret an issuer cannot be asked: that was said.
    let Ok(Some(issuers)) = config.issuers() else { return Vec::new() };
    let Ok(examined) = tokio::time::timeout(ISSUERS_TIMEOUT, issuers.examine(SystemClock.now())).await else {
        let found = format!("they have not answered within {} seconds", ISSUERS_TIMEOUT.as_secs());
        return vec![Finding::fail(ISSUERS, found).so("look at the network, and at their URLs")];
    };
    let finding = |(url, answered): (String, Result<(), String>)| match answered {
        Ok(()) => Finding::ok(ISSUERS, format!("{url} answers")),
        Err(why) => Finding::fail(ISSUERS, format!("{url}: {why}")).so("look at the network, and at its URL"),
    };
    examined.into_iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::{super::finding::Status, *};

    /// What is found where this is answered to whoever asks.
    fn found(answer: &'static str, is_served: bool) -> Status {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let answering = thread::spawn(move || {
            let (mut client, _) = listener.accept().expect("somebody asks");
            let mut asked = [0; 1024];
            let len = client.read(&mut asked).expect("a request");
            assert!(asked[..len].starts_with(b"GET /healthz "));
            client.write_all(answer.as_bytes()).expect("answered");
            // The port stays taken until it was judged.
            listener
        });
        let found = of_address(address, "`listen`", is_served).status;
        drop(answering.join().expect("it was asked"));
        found
    }

    #[test]
    fn who_listens_on_the_address_is_found_out() {
        let ours = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n";
        assert_eq!((found(ours, true), found(ours, false)), (Status::Ok, Status::Warn));
        assert_eq!(found("HTTP/1.1 404 Not Found\r\n\r\nno\n", true), Status::Fail);
        assert_eq!(found("220 smtp.example\r\n", false), Status::Fail);
        let free = of_address(SocketAddr::from(([127, 0, 0, 1], 0)), "`listen`", false);
        assert_eq!(free.status, Status::Ok);
    }
}
