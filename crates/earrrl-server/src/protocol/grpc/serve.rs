//! One gRPC connection.
//!
//! Every request that has come is answered before anything is written, so that all their answers
//! leave in one write; only what has to wait has a task of its own.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::Request;
use h2::RecvStream;
use h2::server::SendResponse;
use hyper::body::Bytes;

use super::call::Call;
use super::reply::{Answer, send};
use super::services::{Kind, Services, kind_of};
use super::{authz, others};
use crate::connections::Connection;
use crate::protocol::held::{HeldBytes, HeldShare};
use crate::protocol::http2::{
    CONNECTION_WINDOW, MAX_HEADERS, MAX_RESETS, MAX_STREAMS, SEND_BUFFER, STREAM_WINDOW, Term,
    Turn, Watched,
};
use crate::server::Server;
use crate::stream::Stream;

/// Requests that a connection keeps room for while it has none.
const KEPT: usize = 32;

/// The connection as `h2` sees it.
type Requests = h2::server::Connection<Watched<Stream>, Bytes>;
/// A request that has come, and the way back.
type PendingCall = (Request<RecvStream>, SendResponse<Bytes>);

/// Serves a connection to its end.
pub async fn serve(
    stream: Stream,
    connection: Connection,
    server: Arc<Server>,
    services: Services,
) {
    let connection = Arc::new(connection);
    let held = HeldBytes::new(Arc::clone(&connection));
    let mut term = Term::new(Arc::clone(&connection), &server);
    let Some(mut requests) = greet(Watched::new(stream, connection), &mut term).await else {
        return;
    };
    if term.is_leaving() {
        requests.graceful_shutdown();
    }
    let mut arrived: Vec<PendingCall> = Vec::new();
    let ended = poll_fn(|context| {
        loop {
            match requests.poll_accept(context) {
                Poll::Ready(Some(Ok(asked))) => arrived.push(asked),
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(()),
                Poll::Pending if !arrived.is_empty() => {
                    for asked in arrived.drain(..) {
                        answer(&server, &services, &held, asked, context);
                    }
                    arrived.shrink_to(KEPT);
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
async fn greet(stream: Watched<Stream>, term: &mut Term<'_>) -> Option<Requests> {
    let mut builder = h2::server::Builder::new();
    builder
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADERS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(Some(MAX_RESETS));
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

/// Answers a request, at once where nothing has to be waited for.
fn answer(
    server: &Arc<Server>,
    services: &Services,
    held: &Arc<HeldBytes>,
    (request, mut respond): PendingCall,
    context: &mut Context<'_>,
) {
    let mode = match kind_of(&request) {
        Kind::RateLimit(mode) => mode,
        Kind::Authorization => {
            let held = Arc::clone(held);
            return wait(server, respond, |server| async move {
                authz::answer(&server, &held, request).await
            });
        }
        Kind::Other => {
            let (server, others) = (Arc::clone(server), services.others());
            let share = HeldShare::new(held);
            let answering = async move {
                others::answer(&server, others, request, share, respond).await;
            };
            tokio::spawn(answering);
            return;
        }
    };
    let mut call = Call::new(server, mode, request);
    match call.at_once(server, context) {
        Some(answer) => send(server, answer, &mut respond),
        None => {
            call.hold(held);
            wait(server, respond, |server| async move { call.answer(&server).await });
        }
    }
}

/// Answers in a task, unless the client takes its request back before.
fn wait<F>(
    server: &Arc<Server>,
    mut respond: SendResponse<Bytes>,
    answer: impl FnOnce(Arc<Server>) -> F,
) where
    F: Future<Output = Answer> + Send + 'static,
{
    let server = Arc::clone(server);
    let answer = answer(Arc::clone(&server));
    tokio::spawn(async move {
        let mut answer = pin!(answer);
        let first = poll_fn(|context| match answer.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => respond.poll_reset(context).map(|_| None),
        });
        if let Some(answer) = first.await {
            send(&server, answer, &mut respond);
        }
    });
}
