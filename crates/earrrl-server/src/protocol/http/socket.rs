//! The socket of an HTTP/1.1 connection, with deadlines, a bound on memory, and a check of the heads
//! of requests.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::lines::HeadLines;
use super::lines::HttpRefusal;
use crate::connections::Connection;
use crate::stream::Stream;

/// The size of the buffer, in bytes, that a connection reads requests into.
const READER: usize = 8 * 1024;

/// The number of bytes that a request and its response may always take besides `READER`, even if
/// memory is short.
const SMALL: usize = 2 * 1024;

/// The socket of an HTTP/1.1 connection, which sets the connection's deadline on reads and writes.
/// The connection is busy from the first byte of a request until its response is written. The
/// deadline is set once for that time, so a client cannot extend it by sending slowly.
pub(super) struct TimedSocket {
    pub(super) stream: Stream,
    connection: Arc<Connection>,
    /// The number of bytes of the present request that have arrived.
    received: usize,
    /// The number of bytes of the response that the socket has not accepted yet.
    answer: usize,
    /// True while TLS still holds a part of a response that the socket has not accepted.
    flushing: bool,
    lines: HeadLines,
    /// The reason why the socket refused to read on. It is reported instead of the error that hyper
    /// then returns.
    pub(super) refused: Option<HttpRefusal>,
}

impl TimedSocket {
    pub(super) fn new(stream: Stream, connection: Arc<Connection>) -> Self {
        Self {
            stream,
            connection,
            received: 0,
            answer: 0,
            flushing: false,
            lines: HeadLines::default(),
            refused: None,
        }
    }

    fn set_busy(&mut self) {
        if !self.connection.is_busy() {
            self.connection.busy();
        }
    }

    /// Checks bytes that have arrived from the client.
    fn check(&mut self, came: &mut [u8]) -> io::Result<()> {
        self.lines
            .follow(came)
            .map_err(|bad| self.refuse(HttpRefusal::Head(bad)))?;
        self.keep(came.len())
    }

    /// Counts bytes that have arrived as held until the request is answered. Each byte counts
    /// twice, since a body's buffer grows by doubling.
    fn keep(&mut self, bytes: usize) -> io::Result<()> {
        self.received += bytes;
        let overloaded = match self.lines.is_question() {
            true => HttpRefusal::OverloadedQuestion,
            false => HttpRefusal::Overloaded,
        };
        if self.holds() {
            Ok(())
        } else {
            Err(self.refuse(overloaded))
        }
    }

    /// Counts the bytes of a response as held while the client does not read it.
    fn keep_answer(&mut self, bytes: usize) -> io::Result<()> {
        self.answer = self.answer.max(bytes);
        if self.holds() {
            Ok(())
        } else {
            Err(self.refuse(HttpRefusal::Cut))
        }
    }

    /// Returns true if the memory limit admits the bytes of this connection. Requests as small as a
    /// health check are always admitted.
    fn holds(&self) -> bool {
        let bytes = READER + 2 * self.received + self.answer;
        self.connection.hold(bytes) || bytes <= READER + SMALL
    }

    fn refuse(&mut self, refusal: HttpRefusal) -> io::Error {
        self.refused = Some(refusal);
        io::ErrorKind::ConnectionAborted.into()
    }
}

impl AsyncRead for TimedSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let came = &mut buffer.filled_mut()[before..];
        if came.is_empty() {
            return Poll::Ready(Ok(()));
        }
        self.set_busy();
        Poll::Ready(self.check(came))
    }
}

impl AsyncWrite for TimedSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.refused.is_some() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(context, bytes)? else {
            self.set_busy();
            return match self.keep_answer(bytes.len()) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            };
        };
        if written == bytes.len() {
            (self.received, self.answer) = (0, 0);
            self.connection.hold(0);
            self.connection.idle();
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_pending() {
            self.flushing = true;
            self.set_busy();
        } else if std::mem::take(&mut self.flushing) && self.received == 0 {
            self.connection.idle();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The socket is left open, since `close` still sends the response to the refused request.
        if self.refused.is_some() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
