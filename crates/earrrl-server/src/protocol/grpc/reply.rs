//! Responses of unary calls. A successful one has one message and trailers; an error has headers
//! only.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use h2::server::SendResponse;
use hyper::body::Bytes;
use tonic::Status;

use crate::protocol::http2::exchange;
use crate::protocol::http2::held::{HeldBytes, HeldShare};
use crate::server::Server;

/// The result of a unary call: a message with its prefix, or an error.
pub(super) type Reply = Result<Bytes, Status>;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const OK: HeaderValue = HeaderValue::from_static("0");

/// Sends the response to a call. If the client's flow-control window is too small for it, a task
/// sends it later.
pub(super) fn send(
    server: &Arc<Server>,
    held: &Arc<HeldBytes>,
    answer: Reply,
    respond: SendResponse<Bytes>,
) {
    match answer {
        Ok(message) => {
            count(server, None);
            // The sending fails only if the client has disconnected or cancelled the call.
            let _ = send_message(server, held, message, respond);
        }
        Err(status) => refuse(server, status, respond),
    }
}

/// Sends an error as a response that has only headers.
pub(super) fn refuse(server: &Server, status: Status, mut respond: SendResponse<Bytes>) {
    let response = status.into_http::<()>();
    count(server, Some(response.headers()));
    // The sending fails only if the client has disconnected or cancelled the call.
    let _ = respond.send_response(response, true);
}

/// Counts a response in the metrics. `headers` are those of an error, in which `grpc-status` is.
/// They are `None` for a successful call, whose status is in the trailers.
pub(super) fn count(server: &Server, headers: Option<&HeaderMap>) {
    let code = headers.and_then(|headers| headers.get(GRPC_STATUS));
    server.service.metrics.count_status(200);
    server
        .service
        .metrics
        .count_grpc(code.map_or(b"0", HeaderValue::as_bytes));
}

fn send_message(
    server: &Arc<Server>,
    held: &Arc<HeldBytes>,
    message: Bytes,
    mut respond: SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    let mut response = Response::new(());
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    let mut stream = respond.send_response(response, false)?;
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, OK);
    stream.reserve_capacity(message.len());
    if stream.capacity() >= message.len() {
        stream.send_data(message, false)?;
        return stream.send_trailers(trailers);
    }
    let share = HeldShare::new(held);
    let server = Arc::clone(server);
    tokio::spawn(async move {
        exchange::send_late(&server, stream, message, trailers, share).await;
    });
    Ok(())
}
