//! The socket of an HTTP/2 connection, which sets the connection's deadline on reads and writes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::held::HeldBytes;

/// A socket that extends the connection's deadline whenever the client sends something. If the
/// client does not read, the deadline is no longer extended: the client must read all that was
/// written within the time for one request.
pub(super) struct Watched<S> {
    stream: S,
    held: Arc<HeldBytes>,
    /// True while the socket accepts no more bytes because the client does not read.
    is_blocked: bool,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, held: Arc<HeldBytes>) -> Self {
        Self {
            stream,
            held,
            is_blocked: false,
        }
    }

    fn note_write<T>(&mut self, written: Poll<T>) -> Poll<T> {
        if written.is_pending() && !self.is_blocked {
            self.is_blocked = true;
            self.held.connection().busy();
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let connection = self.held.connection();
        if !self.held.is_greeted() {
            // The deadline for the whole preface is set by its first byte, so a client cannot
            // extend it by sending slowly.
            if !connection.is_busy() {
                connection.busy();
            }
        } else if !self.is_blocked {
            connection.idle();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note_write(written)
    }

    /// Flushes the socket. `h2` calls this once it has written everything that the client's
    /// flow-control windows admit.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() {
            self.held.sent();
            if std::mem::take(&mut self.is_blocked) {
                self.held.connection().idle();
            }
            return flushed;
        }
        self.note_write(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.note_write(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
