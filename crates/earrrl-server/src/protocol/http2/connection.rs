//! One HTTP/2 connection.
//!
//! Every request that has come is answered before anything is written, so that all their answers
//! leave in one write; only what has to wait has a task of its own.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::Request;
use h2::RecvStream;
use h2::server::{Builder, SendResponse};
use hyper::body::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};

use super::held::HeldBytes;
use super::term::{Term, Turn};
use super::watched::Watched;
use crate::connections::Connection;
use crate::server::Server;

/// Most bytes of a request's headers, as HTTP/2 counts them: 64 KiB in 256 fields, and 32 bytes a field.
const MAX_HEADERS: u32 = 80 * 1024;
/// Bytes that a client may send of one request's body before it is read.
const STREAM_WINDOW: u32 = 128 * 1024;
/// Bytes that a client may send in all before they are read.
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Bytes of one answer that may wait to be written.
const SEND_BUFFER: usize = 16 * 1024;
/// Requests that a client may take back before they are accepted. Requests are accepted whenever the
/// socket is read, so they are few, even if a proxy takes back those of all its clients at once; more
/// show that a client only wants to cause work.
const MAX_RESETS: usize = 1024;
/// Requests that a connection keeps room for while it has none.
const KEPT: usize = 32;

/// A request that arrived, and the handle to answer it.
pub(in crate::protocol) type Arrived = (Request<RecvStream>, SendResponse<Bytes>);

type Requests<S> = h2::server::Connection<Watched<S>, Bytes>;

/// Serves a connection to its end; `answer` answers a request, at once or in a task.
pub(in crate::protocol) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    connection: Arc<Connection>,
    server: &Server,
    answer: impl Fn(Arrived, &Arc<HeldBytes>, &mut Context<'_>),
) {
    let held = HeldBytes::new(connection);
    let mut term = Term::new(Arc::clone(&held), server);
    let watched = Watched::new(stream, Arc::clone(&held));
    let Some(mut requests) = greet(watched, &mut term, server).await else { return };
    held.greet();
    if term.is_leaving() {
        requests.graceful_shutdown();
    }
    let mut arrived: Vec<Arrived> = Vec::new();
    let ended = poll_fn(|context| {
        loop {
            match requests.poll_accept(context) {
                Poll::Ready(Some(Ok(request))) => arrived.push(request),
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(()),
                Poll::Pending if !arrived.is_empty() => {
                    held.arrived(arrived.len());
                    for request in arrived.drain(..) {
                        answer(request, &held, context);
                    }
                    arrived.shrink_to(KEPT);
                }
                Poll::Pending if !held.hold_unsent() => {
                    server.service.metrics.shed.increment();
                    return Poll::Ready(());
                }
                Poll::Pending => match term.poll(context) {
                    Turn::GoOn => return Poll::Pending,
                    Turn::Farewell => requests.graceful_shutdown(),
                    Turn::Close => return Poll::Ready(()),
                },
            }
        }
    });
    ended.await;
}

/// Reads the first bytes of HTTP/2; `None` when others come, or none in time.
async fn greet<S: AsyncRead + AsyncWrite + Unpin>(
    stream: Watched<S>,
    term: &mut Term<'_>,
    server: &Server,
) -> Option<Requests<S>> {
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(server.config.limits.streams)
        .max_header_list_size(MAX_HEADERS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_RESETS)
        // It is counted over the whole life of a connection, and a proxy's lives long: bytes of a
        // request that was answered before its end are such an error.
        .max_local_error_reset_streams(None);
    let mut greeting = builder.handshake(stream);
    let greeted = poll_fn(|context| {
        if let Poll::Ready(connection) = Pin::new(&mut greeting).poll(context) {
            return Poll::Ready(connection.ok());
        }
        match term.poll(context) {
            Turn::GoOn | Turn::Farewell => Poll::Pending,
            Turn::Close => Poll::Ready(None),
        }
    });
    greeted.await
}
