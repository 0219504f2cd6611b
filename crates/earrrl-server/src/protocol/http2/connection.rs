//! Serves one HTTP/2 connection, until its deadline or maximum age, or until memory is short or the server stops.
//!
//! All requests that have arrived are answered before anything is written, so that their responses
//! leave in one write. A request whose response has to wait for something gets a task of its own.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::Request;
use h2::RecvStream;
use h2::server::{Builder, SendResponse};
use hyper::body::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Sleep, sleep};

use super::held::HeldBytes;
use super::watched::Watched;
use crate::connections::{Connection, ConnectionState};
use crate::server::Server;

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

type Requests<S> = h2::server::Connection<Watched<S>, Bytes>;

/// Serves a connection until it ends, and calls `answer` for each request. `answer` responds at
/// once or starts a task that does.
pub(in crate::protocol) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
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
    if term.is_leaving() {
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
struct Serving<'s, S, A> {
    requests: Requests<S>,
    /// The requests that have arrived and are not answered yet.
    arrived: Vec<Arrived>,
    held: Arc<HeldBytes>,
    term: Term<'s>,
    server: &'s Server,
    answer: A,
}

impl<S, A> Serving<'_, S, A>
where
    S: AsyncRead + AsyncWrite + Unpin,
    A: Fn(Arrived, &Arc<HeldBytes>, &mut Context<'_>),
{
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
async fn greet<S: AsyncRead + AsyncWrite + Unpin>(
    stream: Watched<S>,
    held: &HeldBytes,
    term: &mut Term<'_>,
    server: &Server,
) -> Option<Requests<S>> {
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
    pub(super) fn new(held: Arc<HeldBytes>, server: &'s Server) -> Self {
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

    /// Returns true once GOAWAY has been sent or must be sent next.
    fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Returns the next step for the connection. Must be called whenever the connection's task is
    /// about to wait.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Turn {
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
