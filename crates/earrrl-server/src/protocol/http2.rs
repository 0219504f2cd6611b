//! One HTTP/2 connection under the server's limits and deadlines.

use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::first::Rewound;
use crate::connections::{Connection, Standing};
use crate::server::Server;

/// Most requests under way on a connection; a client is told, and more are refused.
pub(super) const MAX_STREAMS: u32 = 1024;
/// Most bytes of a request's headers.
pub(super) const MAX_HEADERS: u32 = 16 * 1024;
/// What a client may send of one request's body before it is read.
pub(super) const STREAM_WINDOW: u32 = 128 * 1024;
/// What a client may send in all before it is read.
pub(super) const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Streams that a client opens and resets at once, before the connection is closed.
pub(super) const MAX_RESETS: usize = 64;

/// Serves a connection to its end.
pub(super) async fn serve<F, A, B>(
    stream: Rewound,
    connection: Arc<Connection>,
    server: &Server,
    answer: F,
) where
    F: Fn(Request<Incoming>) -> A,
    A: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let watched = Watched::new(stream, Arc::clone(&connection));
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADERS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(MAX_RESETS);
    let mut served = pin!(builder.serve_connection(TokioIo::new(watched), service_fn(answer)));
    let mut term = Term::new(connection, server);
    let ended = poll_fn(|context| {
        if served.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        match term.poll(context) {
            Turn::GoOn => Poll::Pending,
            Turn::Farewell => {
                served.as_mut().graceful_shutdown();
                // The farewell has to be written.
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Turn::Close => Poll::Ready(()),
        }
    });
    ended.await;
}

/// Until when a connection is served: to its deadline, its maximal age, or the server's end.
pub(super) struct Term<'s> {
    connection: Arc<Connection>,
    server: &'s Server,
    age: Option<Pin<Box<Sleep>>>,
    leaving: bool,
}

/// What is to be done with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing.
    GoOn,
    /// The client is told to go, and what is under way is answered.
    Farewell,
    /// It is closed.
    Close,
}

impl<'s> Term<'s> {
    pub(super) fn new(connection: Arc<Connection>, server: &'s Server) -> Self {
        // Up to a tenth more, so that clients don't all come back at once.
        let spread = |age: Duration| age + age / 10 * (connection.id() % 16) as u32 / 16;
        let age =
            server.config.max_connection_age.map(|seconds| Duration::from_secs(seconds.into()));
        let age = age.map(|age| Box::pin(sleep(spread(age))));
        Self { connection, server, age, leaving: false }
    }

    /// Whether its deadline has passed, or the server is stopping.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// To be asked whenever the connection is about to wait.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Turn {
        let aged = self.age.as_mut().is_some_and(|age| age.as_mut().poll(context).is_ready());
        if aged {
            self.age = None;
        }
        match self.connection.standing(context) {
            Standing::Overdue if self.leaving => Turn::Close,
            standing @ (Standing::Overdue | Standing::Stopping) if !self.leaving => {
                self.leaving = true;
                self.connection.leave();
                if standing == Standing::Overdue {
                    self.server.service.metrics.shed.increment();
                }
                Turn::Farewell
            }
            _ if aged => Turn::Farewell,
            _ => Turn::GoOn,
        }
    }
}

/// The socket. Whatever a client sends shows that it is there.
pub(super) struct Watched<S> {
    stream: S,
    connection: Arc<Connection>,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, connection: Arc<Connection>) -> Self {
        Self { stream, connection }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.connection.idle();
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
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
