//! The reader that it is measured beside: sends the request that a client sends, with hyper as a client does, takes the
//! stream apart at blank lines, and counts the events that carry output. It parses no JSON.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request,
    body::Incoming,
    client::conn::http1,
    header::{ACCEPT, CONTENT_TYPE, HOST},
};
use hyper_util::rt::TokioIo;
use memchr::{memchr, memmem::Finder};
use tokio::net::TcpStream;

use super::{ReadArgs, Span, say_ready};
use crate::{http::Conn, wire};

/// Calls the tool that pours, and reads what comes of all calls.
pub(super) async fn read(read: &ReadArgs) -> Result<Span> {
    let mut conn = Conn::open(read.addr).await?;
    let mut tasks = Vec::new();
    for nth in 0..read.runs {
        tasks.push(wire::task_id(&conn.exchange(&wire::pour(read.addr, nth, &read.pour)?).await?)?);
    }
    let stream = TcpStream::connect(read.addr).await.context("cannot connect")?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::post("/mcp")
        .header(HOST, read.addr.to_string())
        .header(CONTENT_TYPE, "application/json")
        .header(ACCEPT, "application/json, text/event-stream")
        .header("MCP-Protocol-Version", "2026-07-28")
        .header("Mcp-Method", "subscriptions/listen")
        .body(Full::new(Bytes::from(wire::follow(read.runs, &tasks))))?;
    let response = sender.send_request(request).await?;
    ensure!(response.status() == 200, "status {} instead of a stream", response.status());
    let mut body = response.into_body();

    let mut scan = Scan::new();
    while !scan.acknowledged {
        scan.take(&piece(&mut body).await?);
    }
    say_ready();
    while scan.partials == 0 {
        scan.take(&piece(&mut body).await?);
    }
    let first = Instant::now();
    while scan.partials < read.partials() {
        scan.take(&piece(&mut body).await?);
    }
    let last = Instant::now();
    ensure!(scan.partials == read.partials(), "{} partial results came instead of {}", scan.partials, read.partials());
    Ok(Span { first, last })
}

/// The next bytes of a body.
async fn piece(body: &mut Incoming) -> Result<Bytes> {
    let frame = body.frame().await.context("the stream ended")??;
    Ok(frame.into_data().unwrap_or_default())
}

/// Events as they come.
struct Scan {
    /// A line that has begun and not ended.
    partial_line: Vec<u8>,
    /// Whether the event that has begun carries output.
    output: bool,
    acknowledgement: Finder<'static>,
    partial: Finder<'static>,
    acknowledged: bool,
    partials: u64,
}

impl Scan {
    fn new() -> Self {
        Self {
            partial_line: Vec::new(),
            output: false,
            acknowledgement: Finder::new(r#""notifications/subscriptions/acknowledged""#),
            partial: Finder::new(r#""notifications/tasks/partial""#),
            acknowledged: false,
            partials: 0,
        }
    }

    /// Takes the next bytes. Nothing is copied but what continues in the next piece.
    fn take(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some(end) = memchr(b'\n', rest) {
            if self.partial_line.is_empty() {
                self.line(&rest[..end]);
            } else {
                let mut line = std::mem::take(&mut self.partial_line);
                line.extend_from_slice(&rest[..end]);
                self.line(&line);
                line.clear();
                self.partial_line = line;
            }
            rest = &rest[end + 1..];
        }
        self.partial_line.extend_from_slice(rest);
    }

    fn line(&mut self, line: &[u8]) {
        if line.is_empty() {
            // The event is whole.
            self.partials += u64::from(std::mem::take(&mut self.output));
        } else if line.starts_with(b"data:") {
            self.output = self.partial.find(line).is_some();
            self.acknowledged |= !self.acknowledged && self.acknowledgement.find(line).is_some();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_same_however_the_bytes_come() {
        let stream = concat!(
            "data: {\"method\":\"notifications/subscriptions/acknowledged\"}\n\n",
            ": keep-alive\n\n",
            "data: {\"method\":\"notifications/tasks\"}\n\n",
            "data: {\"method\":\"notifications/tasks/partial\",\"params\":{\"seq\":0}}\n\n",
            "data: {\"method\":\"notifications/tasks/partial\",\"params\":{\"seq\":1}}\n\n",
            "data: {\"method\":\"notifications/tasks\"}\n\n",
            "data: {\"method\":\"notifications/tasks/partial\",\"params\":{\"seq\":2}}\n",
        );
        for step in 1..=stream.len() {
            let mut scan = Scan::new();
            for bytes in stream.as_bytes().chunks(step) {
                scan.take(bytes);
            }
            assert_eq!((scan.acknowledged, scan.partials), (true, 2), "in steps of {step}: the last one is not whole");
            scan.take(b"\n");
            assert_eq!(scan.partials, 3);
        }
    }
}
