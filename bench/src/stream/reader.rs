//! A reader of partial results that costs little: it counts chunks and bytes and checks that no chunk is missing, but
//! parses no JSON.

use anyhow::{Context as _, Result, bail, ensure};
use memchr::{memchr, memmem::Finder};
use tokio::{io::AsyncReadExt as _, net::TcpStream};

use crate::{
    http::{Conn, find},
    serve::{STAMP_LEN, unix_ns},
};

const BUFFER_BYTES: usize = 64 * 1024;
/// A chunk of HTTP that is as large as this is none.
const HTTP_CHUNK_MAX: usize = 64 * 1024 * 1024;

/// What a reader has counted so far.
#[derive(Debug, Default)]
pub struct ReadCounts {
    /// Whether its stream was acknowledged.
    pub acknowledged: bool,
    /// Chunks.
    pub chunks: u64,
    /// Bytes of the texts in them.
    pub text_bytes: u64,
    /// Bytes that came for them, with everything around them.
    pub wire_bytes: u64,
    /// Microseconds from the writing of a text to its receipt, if texts say when they were written.
    pub delays_us: Vec<f64>,
    /// Whether its stream ended in good order.
    pub ended: bool,
}

/// A stream that is being read.
pub struct Reader {
    stream: TcpStream,
    buffer: Vec<u8>,
    scan: Scan,
}

impl Reader {
    /// Sends a listen request and waits until the stream of `task` is acknowledged.
    pub async fn open(conn: Conn, request: &[u8], task: &str, stamped: bool) -> Result<Self> {
        let (stream, received) = conn.listen_raw(request).await?;
        let mut reader = Self { stream, buffer: vec![0; BUFFER_BYTES], scan: Scan::new(task, stamped) };
        reader.scan.take(&received, unix_ns())?;
        reader.until(|counts| counts.acknowledged).await?;
        Ok(reader)
    }

    /// Reads until its counts are enough.
    pub async fn until(&mut self, enough: impl Fn(&ReadCounts) -> bool) -> Result<()> {
        while !enough(&self.scan.counts) {
            ensure!(!matches!(self.scan.framing, Framing::Over), "the stream ended after {} chunks", self.scan.counts.chunks);
            let count = self.stream.read(&mut self.buffer).await.context("cannot receive")?;
            ensure!(count > 0, "the server closed the connection");
            self.scan.take(&self.buffer[..count], unix_ns())?;
        }
        Ok(())
    }

    /// What it has counted.
    pub fn into_counts(self) -> ReadCounts {
        self.scan.counts
    }
}

/// Where in a chunked body of HTTP the reader is.
#[derive(Debug, Clone, Copy)]
enum Framing {
    /// In the line with a chunk's size, which is this so far.
    Size(usize),
    /// In a chunk, of which this much is left.
    Data(usize),
    /// In the line end behind a chunk, of which this much is left.
    Tail(usize),
    /// Behind the last chunk.
    Over,
}

struct Scan {
    framing: Framing,
    /// A line that has begun and not ended.
    partial_line: Vec<u8>,
    /// Bytes taken so far.
    taken: u64,
    /// How many it were at the end of the acknowledgement.
    taken_before: u64,
    task: String,
    stamped: bool,
    method: Finder<'static>,
    seq: Finder<'static>,
    text: Finder<'static>,
    counts: ReadCounts,
}

impl Scan {
    fn new(task: &str, stamped: bool) -> Self {
        Self {
            framing: Framing::Size(0),
            partial_line: Vec::new(),
            taken: 0,
            taken_before: 0,
            task: task.to_owned(),
            stamped,
            method: Finder::new(r#""notifications/tasks/partial""#),
            seq: Finder::new(r#""seq":"#),
            text: Finder::new(r#""text":""#),
            counts: ReadCounts::default(),
        }
    }

    /// Takes the next bytes of the body, which came at the moment `now_ns`.
    fn take(&mut self, bytes: &[u8], now_ns: u64) -> Result<()> {
        let mut rest = bytes;
        while let Some((&byte, behind)) = rest.split_first() {
            if let Framing::Data(left) = self.framing {
                let (piece, behind) = rest.split_at(left.min(rest.len()));
                self.data(piece, now_ns)?;
                self.framing = if piece.len() == left { Framing::Tail(2) } else { Framing::Data(left - piece.len()) };
                rest = behind;
                continue;
            }
            self.framing = match (self.framing, byte) {
                (Framing::Size(size), b'\r') => Framing::Size(size),
                (Framing::Size(0), b'\n') => Framing::Over,
                (Framing::Size(size), b'\n') => Framing::Data(size),
                (Framing::Size(size), digit) => {
                    let digit = char::from(digit).to_digit(16).context("bad chunk size")?;
                    ensure!(size < HTTP_CHUNK_MAX, "a chunk of HTTP is too large");
                    Framing::Size(size * 16 + digit as usize)
                }
                (Framing::Tail(1), _) => Framing::Size(0),
                (Framing::Tail(left), _) => Framing::Tail(left - 1),
                (framing, _) => framing,
            };
            self.taken += 1;
            rest = behind;
        }
        Ok(())
    }

    /// Takes bytes of events. Nothing is copied but what continues in the next piece.
    fn data(&mut self, piece: &[u8], now_ns: u64) -> Result<()> {
        let mut rest = piece;
        while let Some(end) = memchr(b'\n', rest) {
            self.taken += end as u64 + 1;
            if self.partial_line.is_empty() {
                self.line(&rest[..end], now_ns)?;
            } else {
                let mut line = std::mem::take(&mut self.partial_line);
                line.extend_from_slice(&rest[..end]);
                self.line(&line, now_ns)?;
                line.clear();
                self.partial_line = line;
            }
            rest = &rest[end + 1..];
        }
        self.taken += rest.len() as u64;
        self.partial_line.extend_from_slice(rest);
        Ok(())
    }

    fn line(&mut self, line: &[u8], now_ns: u64) -> Result<()> {
        // Between two events, and what keeps a quiet stream alive.
        if line.is_empty() || line[0] == b':' {
            return Ok(());
        }
        if self.method.find(line).is_none() {
            return self.other(line);
        }
        let seq = self.seq.find(line).with_context(|| format!("a chunk without number: {}", shown(line)))?;
        let seq = number(&line[seq + self.seq.needle().len()..]);
        ensure!(seq == self.counts.chunks, "chunk {seq} comes where {} should", self.counts.chunks);
        self.counts.chunks += 1;
        let mut rest = line;
        while let Some(start) = self.text.find(rest) {
            rest = &rest[start + self.text.needle().len()..];
            let len = memchr(b'"', rest).with_context(|| format!("a text without end: {}", shown(line)))?;
            self.counts.text_bytes += len as u64;
            if self.stamped {
                let written_ns = number(rest.get(..STAMP_LEN).context("a text without the moment of its writing")?);
                self.counts.delays_us.push(now_ns.saturating_sub(written_ns) as f64 / 1e3);
            }
            rest = &rest[len..];
        }
        self.counts.wire_bytes = self.taken - self.taken_before;
        Ok(())
    }

    /// Takes an event that is no chunk.
    fn other(&mut self, line: &[u8]) -> Result<()> {
        if find(line, br#""notifications/subscriptions/acknowledged""#).is_some() && find(line, self.task.as_bytes()).is_some() {
            self.counts.acknowledged = true;
            self.taken_before = self.taken;
        } else if find(line, br#""resultType":"complete""#).is_some() {
            self.counts.ended = true;
        } else {
            bail!("an event that should not be here: {}", shown(line));
        }
        Ok(())
    }
}

/// The number that the digits at the beginning make.
fn number(bytes: &[u8]) -> u64 {
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number: u64, digit| number.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')))
}

fn shown(line: &[u8]) -> String {
    String::from_utf8_lossy(&line[..line.len().min(300)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACK: &str = r#"data: {"method":"notifications/subscriptions/acknowledged","params":{"taskId":"t"}}"#;
    const END: &str = r#"data: {"id":1,"result":{"resultType":"complete"}}"#;

    fn chunk(seq: usize, text: &str) -> String {
        format!(
            r#"data: {{"method":"notifications/tasks/partial","params":{{"seq":{seq},"content":[{{"type":"text","text":"{text}"}}]}}}}"#
        )
    }

    /// A body with the given events in each chunk of HTTP.
    fn body(chunks: &[&[&str]]) -> Vec<u8> {
        let mut body = String::new();
        for events in chunks {
            let data: String = events.iter().map(|event| format!("{event}\n\n")).collect();
            body.push_str(&format!("{:x}\r\n{data}\r\n", data.len()));
        }
        body.push_str("0\r\n\r\n");
        body.into_bytes()
    }

    #[test]
    fn counts_the_same_however_the_bytes_come() {
        let (first, second, third) = (chunk(0, "one"), chunk(1, "three"), chunk(2, ""));
        let body = body(&[&[ACK], &[first.as_str()], &[": keep-alive"], &[second.as_str(), third.as_str()], &[END]]);
        for step in 1..=body.len() {
            let mut scan = Scan::new("t", false);
            for bytes in body.chunks(step) {
                scan.take(bytes, 0).unwrap();
            }
            let ReadCounts { acknowledged, chunks, text_bytes, ended, .. } = scan.counts;
            assert_eq!((acknowledged, chunks, text_bytes, ended), (true, 3, 8, true), "in steps of {step}");
            assert!(matches!(scan.framing, Framing::Over));
        }
    }

    #[test]
    fn counts_what_is_on_the_wire_for_each_chunk() {
        let (first, second) = (chunk(0, "one"), chunk(1, "two"));
        let mut scan = Scan::new("t", false);
        scan.take(&body(&[&[ACK], &[first.as_str()], &[second.as_str()], &[END]]), 0).unwrap();
        // Two line ends, a size of two digits and its line end, and the line end of the chunk of HTTP.
        assert_eq!(scan.counts.wire_bytes, (first.len() + second.len() + 2 * (2 + 4 + 2)) as u64);
    }

    #[test]
    fn notices_a_missing_chunk_and_the_age_of_a_text() {
        let stamped = chunk(0, &format!("{:0>STAMP_LEN$}xx", 1_000));
        let mut scan = Scan::new("t", true);
        scan.take(&body(&[&[ACK], &[stamped.as_str()]]), 3_500).unwrap();
        assert_eq!(scan.counts.delays_us, [2.5]);
        let second = chunk(1, "late");
        let error = Scan::new("t", false).take(&body(&[&[ACK], &[second.as_str()]]), 0).unwrap_err();
        assert!(error.to_string().contains("chunk 1 comes where 0 should"), "{error}");
    }
}
