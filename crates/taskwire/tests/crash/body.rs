//! A chunked HTTP body, read line by line.

use std::io;

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    net::TcpStream,
};

/// What is left of a response behind its head.
#[derive(Debug)]
pub(crate) struct Body {
    pub(crate) stream: BufReader<TcpStream>,
    /// What has come of it of late, and how much of that was looked at.
    text: Vec<u8>,
    at: usize,
}

impl Body {
    pub(crate) fn of(stream: BufReader<TcpStream>) -> Self {
        Self { stream, text: Vec::new(), at: 0 }
    }

    /// The next line, with its end; none at the end of the body.
    pub(crate) async fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let mut line = Vec::new();
            let len = io::BufRead::read_until(&mut &self.text[self.at..], b'\n', &mut line)?;
            if line.ends_with(b"\n") {
                self.at += len;
                return Ok(Some(line));
            }
            if !self.read_part().await? {
                return Ok(None);
            }
        }
    }

    /// Takes in the next part. Says `false` at the end.
    async fn read_part(&mut self) -> io::Result<bool> {
        let mut line = String::new();
        self.stream.read_line(&mut line).await?;
        let Some(size) = line.strip_suffix("\r\n") else { return Err(io::ErrorKind::UnexpectedEof.into()) };
        let size = u64::from_str_radix(size, 16).unwrap_or_else(|_| panic!("not the size of a part: {size:?}"));
        self.text.drain(..std::mem::take(&mut self.at));
        (&mut self.stream).take(size).read_to_end(&mut self.text).await?;
        // Also where it was cut off before: then there is nothing more to read here.
        self.stream.read_exact(&mut [0; 2]).await?;
        Ok(size > 0)
    }
}
