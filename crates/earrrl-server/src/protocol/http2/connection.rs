//! Serves one HTTP/2 connection, until its deadline or maximum age, or until memory is short or the server stops.
//!
//! All requests that have arrived are answered before anything is written, so that their responses
//! leave in one write. A request whose response has to wait for something gets a task of its own.
//!
//! The socket of a connection sets the connection's deadline on reads and writes, and bounds what `h2` makes of the
//! bytes before it writes its replies.
//!
//! `h2` keeps an entry for each DATA frame of a stream that it does not know, such as one that it has refused, until
//! the reply RST_STREAM is written: 700 bytes for a frame of 9. Its own limit on such frames counts over the whole life
//! of a connection, which a proxy keeps for months. So this socket counts them, and pauses once there are many.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::Request;
use h2::RecvStream;
use h2::server::{Builder, SendResponse};
use hyper::body::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::held::HeldBytes;
use crate::connections::{Connection, ConnectionState};
use crate::server::Server;
use crate::stream::Stream;

/// The largest size of a request's headers, in bytes, as HTTP/2 counts them: 64 KiB of text in 256
/// fields, and 32 bytes for each field.
const MAX_HEADERS: u32 = 80 * 1024;
/// The flow-control window of a stream: the bytes of one request's body that a client may send
/// before the server reads them.
const STREAM_WINDOW: u32 = 128 * 1024;
/// The flow-control window of a connection: the bytes of all bodies together that a client may send
/// before the server reads them.
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// The number of bytes of one response that may be queued for writing.
const SEND_BUFFER: usize = 16 * 1024;
/// The number of requests, for each stream that the client may have, that it may cancel before the server accepts them.
/// Requests are accepted whenever the socket is read, so only few are normally cancelled earlier, even by a
/// proxy that cancels the requests of all its clients at once. More than this indicates an attack
/// ("rapid reset").
const RESETS_A_STREAM: usize = 8;
/// The capacity, in requests, of the list of arrived requests that a connection keeps while it is
/// idle.
const KEPT: usize = 32;

/// A request that has arrived, and the handle that sends its response.
pub(in crate::protocol) type Arrived = (Request<RecvStream>, SendResponse<Bytes>);

type Requests = h2::server::Connection<Watched, Bytes>;

/// Serves a connection until it ends, and calls `answer` for each request. `answer` responds at
/// once or starts a task that does.
pub(in crate::protocol) async fn serve(
    stream: Stream,
    connection: Arc<Connection>,
    server: &Server,
    answer: impl Fn(Arrived, &Arc<HeldBytes>, &mut Context<'_>),
) {
    let held = HeldBytes::new(connection);
    let mut term = Term::new(Arc::clone(&held), server);
    let watched = Watched::new(stream, Arc::clone(&held));
    let Some(mut requests) = greet(watched, &held, &mut term, server).await else {
        return;
    };
    held.greet();
    if term.leaving {
        requests.graceful_shutdown();
    }
    let arrived = Vec::new();
    let mut serving = Serving {
        requests,
        arrived,
        held,
        term,
        server,
        answer,
    };
    poll_fn(|context| serving.poll(context)).await;
}

/// A connection whose handshake is complete.
struct Serving<'s, A> {
    requests: Requests,
    /// The requests that have arrived and are not answered yet.
    arrived: Vec<Arrived>,
    held: Arc<HeldBytes>,
    term: Term<'s>,
    server: &'s Server,
    answer: A,
}

impl<A: Fn(Arrived, &Arc<HeldBytes>, &mut Context<'_>)> Serving<'_, A> {
    /// Answers the requests that arrive. Is ready once the connection must be closed.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            match self.requests.poll_accept(context) {
                Poll::Ready(Some(Ok(request))) => self.arrived.push(request),
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(()),
                Poll::Pending if !self.arrived.is_empty() => {
                    if !self.held.arrived(self.arrived.len()) {
                        return self.shed();
                    }
                    self.answer_arrived(context);
                }
                Poll::Pending if !self.held.hold_unsent() => return self.shed(),
                Poll::Pending => match self.term.poll(context) {
                    Turn::GoOn => return Poll::Pending,
                    Turn::Farewell => self.requests.graceful_shutdown(),
                    Turn::Close => return Poll::Ready(()),
                },
            }
        }
    }

    /// Counts the connection as closed to save memory.
    fn shed(&self) -> Poll<()> {
        self.server.service.metrics.shed.increment();
        Poll::Ready(())
    }

    fn answer_arrived(&mut self, context: &mut Context<'_>) {
        for request in self.arrived.drain(..) {
            (self.answer)(request, &self.held, context);
        }
        self.arrived.shrink_to(KEPT);
    }
}

/// Performs the HTTP/2 handshake. Returns `None` if the client sends something other than HTTP/2's
/// preface, or does not send it in time.
async fn greet(
    stream: Watched,
    held: &HeldBytes,
    term: &mut Term<'_>,
    server: &Server,
) -> Option<Requests> {
    let streams = held.streams();
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(streams as u32)
        .max_concurrent_reset_streams(streams)
        .max_header_list_size(MAX_HEADERS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(RESETS_A_STREAM * streams)
        // `h2` adds these errors up over the whole life of a connection. Every request that is
        // answered before all of its body has arrived counts as one, so a proxy's long-lived
        // connection would reach any limit.
        .max_local_error_reset_streams(None);
    let mut greeting = builder.handshake(stream);
    let greeted = poll_fn(|context| {
        if let Poll::Ready(connection) = Pin::new(&mut greeting).poll(context) {
            if connection.as_ref().is_err_and(|error| !error.is_io()) {
                server.service.hints.not_http2();
            }
            return Poll::Ready(connection.ok());
        }
        match term.poll(context) {
            Turn::GoOn | Turn::Farewell => Poll::Pending,
            Turn::Close => Poll::Ready(None),
        }
    });
    greeted.await
}

/// The conditions that end a connection.
struct Term<'s> {
    held: Arc<HeldBytes>,
    server: &'s Server,
    age: Option<Pin<Box<Sleep>>>,
    /// True once GOAWAY has been sent or must be sent next.
    leaving: bool,
}

/// The next step for a connection whose task is about to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Continue to serve the connection.
    GoOn,
    /// Send GOAWAY, accept no more requests, and answer those in flight.
    Farewell,
    /// Close the connection without answering requests in flight.
    Close,
}

impl<'s> Term<'s> {
    fn new(held: Arc<HeldBytes>, server: &'s Server) -> Self {
        let connection = held.connection();
        // The maximum age is increased by up to a tenth, which depends on the connection's number,
        // so that clients that connected together do not all reconnect at once.
        let spread = |age: Duration| age + age / 10 * (connection.id() % 16) as u32 / 16;
        let age = server
            .config
            .max_connection_age
            .map(|seconds| Duration::from_secs(seconds.into()));
        let age = age.map(|age| Box::pin(sleep(spread(age))));
        Self {
            held,
            server,
            age,
            leaving: false,
        }
    }

    /// Returns the next step for the connection. Must be called whenever the connection's task is
    /// about to wait.
    fn poll(&mut self, context: &mut Context<'_>) -> Turn {
        let standing = self.connection().standing(context);
        let waits = self.held.any_waits();
        if self.leaving {
            return match standing {
                ConnectionState::Overdue => Turn::Close,
                // GOAWAY was sent. The connection stays open until its pending responses are sent.
                ConnectionState::Good | ConnectionState::Stopping => Turn::GoOn,
            };
        }
        let aged = self
            .age
            .as_mut()
            .is_some_and(|age| age.as_mut().poll(context).is_ready());
        let refused = self.held.was_refused();
        if standing == ConnectionState::Good && !aged && !refused {
            return Turn::GoOn;
        }
        if standing == ConnectionState::Overdue {
            self.server.service.metrics.shed.increment();
        }
        self.leaving = true;
        match standing {
            ConnectionState::Overdue => self.connection().leave(),
            _ if waits => self.connection().finish(),
            ConnectionState::Stopping => self.connection().leave(),
            ConnectionState::Good => self.connection().finish(),
        }
        Turn::Farewell
    }

    fn connection(&self) -> &Connection {
        self.held.connection()
    }
}

/// A socket that extends the connection's deadline whenever the client sends something. If the
/// client does not read, the deadline is no longer extended: the client must read all that was
/// written within the time for one request.
struct Watched {
    stream: Stream,
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

impl Watched {
    fn new(stream: Stream, held: Arc<HeldBytes>) -> Self {
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

impl AsyncRead for Watched {
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

impl AsyncWrite for Watched {
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
