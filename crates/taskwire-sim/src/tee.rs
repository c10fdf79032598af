//! Reports what goes over a stream, and changes nothing.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::observer::Observer;

/// A stream whose lines are reported.
pub(crate) struct Tee<S> {
    inner: S,
    /// Who takes the reports, if anybody does.
    observer: Option<Observer>,
    sign: char,
    line: Vec<u8>,
}

impl<S> Tee<S> {
    pub(crate) fn new(inner: S, sign: char, observer: Option<Observer>) -> Self {
        Self { inner, observer, sign, line: Vec::new() }
    }

    fn report(&mut self, bytes: &[u8]) {
        let Some(observer) = &self.observer else { return };
        for byte in bytes {
            if *byte == b'\n' {
                observer.print(&format!("{} {}", self.sign, String::from_utf8_lossy(&self.line)));
                self.line.clear();
            } else {
                self.line.push(*byte);
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Tee<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(context, buffer);
        self.report(&buffer.filled()[before..]);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Tee<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = polled {
            self.report(&bytes[..count]);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
