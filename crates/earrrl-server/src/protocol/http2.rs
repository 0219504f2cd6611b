//! One HTTP/2 connection under the server's limits and deadlines.

use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, pending, poll_fn};
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
use tokio::time::sleep;

use super::first::Rewound;
use crate::connections::{Connection, Standing};
use crate::server::Server;

/// Most requests under way on a connection; a client is told, and more are refused.
const MAX_STREAMS: u32 = 1024;
/// Most bytes of a request's headers.
const MAX_HEADERS: u32 = 16 * 1024;
/// What a client may send of one request's body before it is read.
const STREAM_WINDOW: u32 = 128 * 1024;
/// What a client may send in all before it is read.
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Streams that a client opens and resets at once, before the connection is closed.
const MAX_RESETS: usize = 64;

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
    let watched = Watched { stream, connection: Arc::clone(&connection) };
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
    let mut aged = pin!(age(server.config.max_connection_age, connection.id()));
    let (mut leaving, mut old) = (false, false);
    let ended = poll_fn(|context| {
        if served.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        if !old && aged.as_mut().poll(context).is_ready() {
            old = true;
            served.as_mut().graceful_shutdown();
            // The farewell has to be written.
            context.waker().wake_by_ref();
        }
        match connection.standing(context) {
            Standing::Good => Poll::Pending,
            Standing::Overdue if leaving => Poll::Ready(()),
            Standing::Stopping if leaving => Poll::Pending,
            standing => {
                leaving = true;
                connection.leave();
                served.as_mut().graceful_shutdown();
                context.waker().wake_by_ref();
                if standing == Standing::Overdue {
                    server.service.metrics.shed.increment();
                }
                Poll::Pending
            }
        }
    });
    ended.await;
}

/// Waits until a connection is to be replaced: at its age and up to a tenth more, so that clients
/// don't all come back at once.
async fn age(seconds: Option<u32>, id: usize) {
    let Some(seconds) = seconds else { return pending().await };
    let age = Duration::from_secs(seconds.into());
    sleep(age + age / 10 * (id % 16) as u32 / 16).await;
}

/// The socket. Whatever a client sends shows that it is there.
struct Watched {
    stream: Rewound,
    connection: Arc<Connection>,
}

impl AsyncRead for Watched {
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

impl AsyncWrite for Watched {
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
