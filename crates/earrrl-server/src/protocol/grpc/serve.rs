//! Serves one gRPC connection. Calls that need not wait are answered at once, and all others in
//! tasks.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use h2::RecvStream;
use h2::server::SendResponse;
use hyper::body::Bytes;

use super::call::RateLimitCall;
use super::message::{Reply, send};
use super::services::{CallKind, Services, kind_of};
use super::{authz, reserve, services};
use crate::connections::Connection;
use crate::protocol::http2::held::{HeldBytes, HeldShare};
use crate::protocol::http2::{self, exchange};
use crate::server::Server;
use crate::stream::Stream;

/// Serves a gRPC connection until it ends.
pub async fn serve(
    stream: Stream,
    connection: Connection,
    server: Arc<Server>,
    services: Services,
) {
    http2::serve(
        stream,
        Arc::new(connection),
        &server,
        |arrived, held, context| {
            answer(&server, &services, held, arrived, context);
        },
    )
    .await;
}

/// Answers one request of a gRPC connection, at once if possible and otherwise in a task.
fn answer(
    server: &Arc<Server>,
    services: &Services,
    held: &Arc<HeldBytes>,
    (request, respond): http2::Arrived,
    context: &mut Context<'_>,
) {
    if !is_grpc(request.headers()) {
        return refuse_type(server, held, request.into_body(), respond);
    }
    let held = Arc::clone(held);
    match kind_of(&request) {
        CallKind::RateLimit(mode) => {
            let call = RateLimitCall::new(server, mode, request);
            answer_rate_limit(server, &held, call, respond, context);
        }
        CallKind::Reserve => wait(server, held, respond, context, |server, held| async move {
            reserve::reserve(&server, &held, request).await
        }),
        CallKind::Commit => wait(server, held, respond, context, |server, held| async move {
            reserve::commit(&server, &held, request).await
        }),
        CallKind::Authorization => {
            wait(server, held, respond, context, |server, held| async move {
                authz::answer(&server, &held, request).await
            })
        }
        CallKind::Other => services::answer(server, services, &held, request, respond),
    }
}

/// Answers a call of Envoy's rate limit service, at once unless its message is incomplete or the
/// engine must wait.
fn answer_rate_limit(
    server: &Arc<Server>,
    held: &Arc<HeldBytes>,
    mut call: RateLimitCall,
    respond: SendResponse<Bytes>,
    context: &mut Context<'_>,
) {
    if let Some(answer) = call.at_once(server, context) {
        return send(server, held, answer, respond);
    }
    call.hold(held);
    wait(
        server,
        Arc::clone(held),
        respond,
        context,
        |server, _| async move { call.answer(&server).await },
    );
}

/// Returns true if the content type is `application/grpc`, with or without a format such as
/// `+proto`.
fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .map_or(&b""[..], HeaderValue::as_bytes);
    matches!(
        kind.strip_prefix(b"application/grpc"),
        Some([] | [b'+' | b';', ..])
    )
}

/// Refuses a request whose content type is not that of gRPC, with status 415.
fn refuse_type(
    server: &Server,
    held: &Arc<HeldBytes>,
    body: RecvStream,
    mut respond: SendResponse<Bytes>,
) {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    server
        .service
        .metrics
        .count_status(response.status().as_u16());
    // The sending fails only if the client has disconnected or cancelled the request.
    let _ = respond.send_response(response, true);
    exchange::discard(body, HeldShare::new(held), exchange::patience(server));
}

/// Sends `answer` at once if it is ready. Otherwise starts a task that waits for it, unless the
/// client cancels the call before.
///
/// The future is boxed, since it takes several kilobytes, which the task would copy ten times.
fn wait<F>(
    server: &Arc<Server>,
    held: Arc<HeldBytes>,
    mut respond: SendResponse<Bytes>,
    context: &mut Context<'_>,
    answer: impl FnOnce(Arc<Server>, Arc<HeldBytes>) -> F,
) where
    F: Future<Output = Reply> + Send + 'static,
{
    let server = Arc::clone(server);
    let mut answer = Box::pin(answer(Arc::clone(&server), Arc::clone(&held)));
    if let Poll::Ready(answer) = answer.as_mut().poll(context) {
        return send(&server, &held, answer, respond);
    }
    tokio::spawn(async move {
        let first = poll_fn(|context| match answer.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => respond.poll_reset(context).map(|_| None),
        });
        if let Some(answer) = first.await {
            send(&server, &held, answer, respond);
        }
    });
}
