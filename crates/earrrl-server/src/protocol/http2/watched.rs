//! The socket of an HTTP/2 connection, which sets the connection's deadline on reads and writes, and bounds what `h2`
//! makes of the bytes before it writes its replies.
//!
//! `h2` keeps an entry for each DATA frame of a stream that it does not know, such as one that it has refused, until
//! the reply RST_STREAM is written: 700 bytes for a frame of 9. Its own limit on such frames counts over the whole life
//! of a connection, which a proxy keeps for months. So this socket counts them, and pauses once there are many.

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
    frames: Frames,
}

/// The length of a client's preface in bytes, before its first frame.
const PREFACE: usize = 24;
/// The length of a frame's header in bytes: three bytes of length, type, flags, and four bytes of the stream's number.
const HEADER: usize = 9;
/// The type of a frame with a part of a request's body.
const DATA: u8 = 0;

/// A reader of the headers of frames, which counts DATA frames.
struct Frames {
    header: [u8; HEADER],
    /// The number of bytes of `header` that have arrived.
    arrived: usize,
    /// The number of bytes until the next header.
    payload: usize,
    /// The stream of the last DATA frame.
    stream: [u8; 4],
    /// The number of DATA frames since the socket was last flushed, of which those of one stream in a row count as one:
    /// the number of streams that `h2` may keep entries for.
    streams: usize,
}

impl Frames {
    fn new() -> Self {
        Self {
            header: [0; HEADER],
            arrived: 0,
            payload: PREFACE,
            stream: [0; 4],
            streams: 0,
        }
    }

    /// Reads bytes that follow those before.
    fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let skipped = self.payload.min(bytes.len());
            self.payload -= skipped;
            bytes = &bytes[skipped..];
            let taken = (HEADER - self.arrived).min(bytes.len());
            self.header[self.arrived..self.arrived + taken].copy_from_slice(&bytes[..taken]);
            self.arrived += taken;
            bytes = &bytes[taken..];
            if self.arrived == HEADER {
                self.begin();
            }
        }
    }

    /// Begins the frame whose header is complete.
    fn begin(&mut self) {
        let [high, middle, low, kind, _, stream @ ..] = self.header;
        self.arrived = 0;
        self.payload = u32::from_be_bytes([0, high, middle, low]) as usize;
        if kind == DATA && stream != self.stream {
            self.stream = stream;
            self.streams += 1;
        }
    }
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, held: Arc<HeldBytes>) -> Self {
        Self {
            stream,
            held,
            is_blocked: false,
            frames: Frames::new(),
        }
    }

    /// Returns true if nothing is to be read before `h2` has written its replies. The task is woken at once if the
    /// socket accepts bytes, or else by `poll_flush`.
    fn pauses(&self, context: &Context<'_>) -> bool {
        let pauses = self.frames.streams > self.held.streams();
        if pauses && !self.is_blocked {
            context.waker().wake_by_ref();
        }
        pauses
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
        if self.pauses(context) {
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.frames.read(&buffer.filled()[before..]);
        self.held.bears(self.frames.streams);
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
            self.frames.streams = 0;
            self.held.sent();
            if std::mem::take(&mut self.is_blocked) {
                self.held.connection().idle();
                // The reading may have paused.
                context.waker().wake_by_ref();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_frames_count_however_they_are_split() {
        let frame = |kind, stream, payload: &[u8]| {
            let length = [0, 0, payload.len() as u8];
            [&length[..], &[kind, 0, 0, 0, 0, stream], payload].concat()
        };
        let bytes = [
            vec![0; PREFACE],
            frame(4, 0, &[0; 6]),
            frame(1, 1, b"header"),
            frame(DATA, 1, b"a"),
            frame(DATA, 1, b"b"),
            frame(DATA, 3, b""),
            frame(DATA, 1, &[0; 200]),
        ]
        .concat();
        for size in 1..bytes.len() {
            let mut frames = Frames::new();
            bytes.chunks(size).for_each(|part| frames.read(part));
            assert_eq!((frames.streams, frames.payload), (3, 0), "{size}");
        }
    }
}
