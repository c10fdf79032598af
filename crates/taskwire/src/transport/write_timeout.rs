//! Closes a connection whose client reads nothing for too long, so that its slot is free again.
//!
//! The client loses nothing: it knows its cursor in the log, and can resume from there.

use std::{
    io::{Error, ErrorKind, IoSlice, Result},
    mem::MaybeUninit,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};

use super::connection_slots::ConnectionSlot;
use crate::clock::{Clock, Sleep};

/// The size of hyper's first read buffer.
pub(super) const BUFFER_BYTES: usize = 8 * 1024;
/// Bytes that are read at once. If they filled hyper's buffer, hyper would double it, and keep that, up to 400 KiB for each connection.
const READ_BYTES: usize = BUFFER_BYTES - 1;

/// An input and output that fails if the client does not read, and tells the slot when everything was written.
pub(super) struct WriteTimeoutIo<T> {
    io: T,
    slot: Arc<ConnectionSlot>,
    clock: Arc<dyn Clock>,
    write_timeout: Duration,
    /// Runs while the client reads nothing.
    deadline: Option<Sleep>,
}

impl<T> WriteTimeoutIo<T> {
    pub(super) fn new(io: T, slot: Arc<ConnectionSlot>, clock: Arc<dyn Clock>, write_timeout: Duration) -> Self {
        Self { io, slot, clock, write_timeout, deadline: None }
    }

    fn check<R>(&mut self, poll: Poll<Result<R>>, context: &mut Context<'_>) -> Poll<Result<R>> {
        if poll.is_ready() {
            self.deadline = None;
            return poll;
        }
        let over = self.deadline.get_or_insert_with(|| self.clock.sleep(self.write_timeout));
        if over.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        self.deadline = None;
        let message = format!("the client read nothing for {:?} (configuration key `http.write_timeout`)", self.write_timeout);
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, message)))
    }
}

impl<T: Read + Unpin> Read for WriteTimeoutIo<T> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, mut buffer: ReadBufCursor<'_>) -> Poll<Result<()>> {
        let mut bytes = [MaybeUninit::<u8>::uninit(); READ_BYTES];
        let len = buffer.remaining().min(READ_BYTES);
        let mut piece = ReadBuf::uninit(&mut bytes[..len]);
        ready!(Pin::new(&mut self.io).poll_read(context, piece.unfilled()))?;
        buffer.put_slice(piece.filled());
        Poll::Ready(Ok(()))
    }
}

impl<T: Write + Unpin> Write for WriteTimeoutIo<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let poll = Pin::new(&mut self.io).poll_write(context, bytes);
        self.check(poll, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        // TLS has taken what it still has to write.
        let poll = Pin::new(&mut self.io).poll_flush(context);
        ready!(self.check(poll, context))?;
        // hyper flushes when it has written everything.
        self.slot.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let poll = Pin::new(&mut self.io).poll_shutdown(context);
        self.check(poll, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<Result<usize>> {
        let poll = Pin::new(&mut self.io).poll_write_vectored(context, slices);
        self.check(poll, context)
    }
}
