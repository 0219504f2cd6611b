//! Protocol detection: the first bytes of a connection distinguish HTTP/2 in clear text from
//! HTTP/1.1.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

use crate::connections::Connection;
use crate::stream::Stream;

/// The first bytes that a client sends if it uses HTTP/2 without negotiating it (RFC 9113 section
/// 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection whose first bytes were read to detect its protocol. Reads return these bytes again
/// before new ones.
#[derive(Debug)]
pub(super) struct Rewound {
    pub(super) stream: Stream,
    first: Vec<u8>,
    consumed: usize,
}

impl Rewound {
    /// Wraps a connection from which nothing has been read.
    pub(super) fn new(stream: Stream) -> Self {
        Self {
            stream,
            first: Vec::with_capacity(PREFACE.len()),
            consumed: 0,
        }
    }

    /// Reads until the bytes show if the client speaks HTTP/2, and returns true if it does.
    ///
    /// # Errors
    /// Returns the socket's error, or an error if the client has closed the connection.
    pub(super) async fn speaks_http2(&mut self, connection: &Connection) -> io::Result<bool> {
        if self.stream.agreed_on_http2() {
            return Ok(true);
        }
        loop {
            let missing = (PREFACE.len() - self.first.len()) as u64;
            if (&mut self.stream)
                .take(missing)
                .read_buf(&mut self.first)
                .await?
                == 0
            {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if !connection.is_busy() {
                connection.busy();
            }
            if !PREFACE.starts_with(&self.first) {
                return Ok(false);
            }
            if self.first.len() == PREFACE.len() {
                return Ok(true);
            }
        }
    }
}

impl AsyncRead for Rewound {
    #[inline]
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let again = &self.first[self.consumed..];
        if again.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let taken = again.len().min(buffer.remaining());
        buffer.put_slice(&again[..taken]);
        self.consumed += taken;
        if self.consumed < self.first.len() {
            return Poll::Ready(Ok(()));
        }
        (self.first, self.consumed) = (Vec::new(), 0);
        // Bytes that have arrived in the meantime are added, so that the caller parses the request
        // only once.
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for Rewound {
    #[inline]
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
