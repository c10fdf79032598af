//! A minimal HTTP/1.1 client: one connection, one request at a time, as few bytes and cycles as possible.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};

/// Bytes that may wait to be read; far more than any answer here has.
const BUFFER_MAX: usize = 16 * 1024 * 1024;
/// Room for them at first.
const BUFFER_BYTES: usize = 8 * 1024;

/// A response.
pub struct Response {
    /// Its status code.
    pub status: u16,
    /// Whether it says when to come back (`Retry-After`).
    pub says_when: bool,
    /// Its body.
    pub body: Bytes,
}

/// What came of a request that is to be answered by a stream of events.
pub enum Listening {
    /// The stream.
    Open(Events),
    /// Another response.
    Refused(Response),
}

/// What the lines before a body say.
struct Head {
    status: u16,
    framing: Framing,
    says_when: bool,
}

#[derive(Clone, Copy)]
enum Framing {
    Length(usize),
    Chunked,
}

/// A connection that is kept alive.
pub struct Conn {
    stream: TcpStream,
    buffer: BytesMut,
}

impl Conn {
    /// Connects.
    pub async fn open(addr: SocketAddr) -> Result<Self> {
        Self::of(TcpStream::connect(addr).await.context("cannot connect")?)
    }

    /// Connects from an address of this machine: each has ports of its own.
    pub async fn open_from(source: Ipv4Addr, addr: SocketAddr) -> Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((source, 0).into()).context("no port is left")?;
        Self::of(socket.connect(addr).await.context("cannot connect")?)
    }

    fn of(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: BytesMut::with_capacity(BUFFER_BYTES) })
    }

    /// Sends a request and waits for the whole response.
    pub async fn exchange(&mut self, request: &[u8]) -> Result<Response> {
        self.stream.write_all(request).await.context("cannot send")?;
        let head = self.head().await?;
        self.rest(head).await
    }

    /// The response that begins so.
    async fn rest(&mut self, head: Head) -> Result<Response> {
        let body = match head.framing {
            Framing::Length(len) => {
                while self.buffer.len() < len {
                    self.fill().await?;
                }
                self.buffer.split_to(len).freeze()
            }
            Framing::Chunked => {
                let mut body = BytesMut::new();
                while let Some(chunk) = self.chunk().await? {
                    body.extend_from_slice(&chunk);
                }
                body.freeze()
            }
        };
        Ok(Response { status: head.status, says_when: head.says_when, body })
    }

    /// Sends a request that is answered by a stream of events.
    pub async fn listen(mut self, request: &[u8]) -> Result<Events> {
        self.begin(request).await?;
        Ok(Events { conn: self, text: BytesMut::new() })
    }

    /// The same for who may be refused.
    pub async fn try_listen(mut self, request: &[u8]) -> Result<Listening> {
        self.stream.write_all(request).await.context("cannot send")?;
        let head = self.head().await?;
        Ok(match head.framing {
            Framing::Chunked if head.status == 200 => Listening::Open(Events { conn: self, text: BytesMut::new() }),
            _ => Listening::Refused(self.rest(head).await?),
        })
    }

    /// The same for who reads the body as it comes: the connection, and what it has received of the body so far.
    pub async fn listen_raw(mut self, request: &[u8]) -> Result<(TcpStream, BytesMut)> {
        self.begin(request).await?;
        Ok((self.stream, self.buffer))
    }

    /// Sends a request, and reads the head of the stream that answers it.
    async fn begin(&mut self, request: &[u8]) -> Result<()> {
        self.stream.write_all(request).await.context("cannot send")?;
        let Head { status, framing, .. } = self.head().await?;
        match (status, framing) {
            (200, Framing::Chunked) => Ok(()),
            (status, Framing::Length(len)) => {
                while self.buffer.len() < len {
                    self.fill().await?;
                }
                bail!("status {status} instead of a stream: {}", String::from_utf8_lossy(&self.buffer[..len]))
            }
            (status, Framing::Chunked) => bail!("status {status} instead of a stream"),
        }
    }

    /// Reads the status line and the headers.
    async fn head(&mut self) -> Result<Head> {
        let end = loop {
            match find(&self.buffer, b"\r\n\r\n") {
                Some(end) => break end,
                None => self.fill().await?,
            }
        };
        let head = self.buffer.split_to(end + 4);
        let status = head.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok()).context("no status line")?;
        let status: u16 = status.parse().context("the status is not a number")?;
        let (mut framing, mut says_when) = (Framing::Length(0), false);
        for line in head[..].split(|byte| *byte == b'\n').skip(1) {
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
            let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
            if name.eq_ignore_ascii_case(b"content-length") {
                framing = Framing::Length(std::str::from_utf8(value)?.parse().context("bad Content-Length")?);
            } else if name.eq_ignore_ascii_case(b"transfer-encoding") && value.eq_ignore_ascii_case(b"chunked") {
                framing = Framing::Chunked;
            } else if name.eq_ignore_ascii_case(b"retry-after") {
                says_when = true;
            }
        }
        Ok(Head { status, framing, says_when })
    }

    /// Reads one chunk of a chunked body; `None` is its end.
    async fn chunk(&mut self) -> Result<Option<BytesMut>> {
        let line_end = loop {
            match find(&self.buffer, b"\r\n") {
                Some(end) => break end,
                None => self.fill().await?,
            }
        };
        let line = self.buffer.split_to(line_end + 2);
        let digits = line[..line_end].split(|byte| *byte == b';').next().unwrap_or_default();
        let len = usize::from_str_radix(std::str::from_utf8(digits)?.trim(), 16).context("bad chunk size")?;
        ensure!(len <= BUFFER_MAX, "a chunk of {len} bytes");
        while self.buffer.len() < len + 2 {
            self.fill().await?;
        }
        let chunk = self.buffer.split_to(len);
        let tail = self.buffer.split_to(2);
        ensure!(&tail[..] == b"\r\n", "a chunk does not end where it should");
        Ok((len > 0).then_some(chunk))
    }

    async fn fill(&mut self) -> Result<()> {
        ensure!(self.buffer.len() <= BUFFER_MAX, "the response is too large");
        let count = self.stream.read_buf(&mut self.buffer).await.context("cannot receive")?;
        ensure!(count > 0, "the server closed the connection");
        Ok(())
    }
}

/// A stream of server-sent events.
pub struct Events {
    conn: Conn,
    text: BytesMut,
}

impl Events {
    /// The next event, as it came.
    pub async fn next(&mut self) -> Result<Bytes> {
        loop {
            if let Some(end) = find(&self.text, b"\n\n") {
                return Ok(self.text.split_to(end + 2).freeze());
            }
            let chunk = self.conn.chunk().await?.context("the stream ended")?;
            self.text.extend_from_slice(&chunk);
        }
    }
}

/// Where `needle` first is in `bytes`.
pub fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle)
}
