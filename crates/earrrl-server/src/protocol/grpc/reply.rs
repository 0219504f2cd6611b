//! Answers: one message in one frame and the trailers, or what went wrong in the headers.

use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use h2::server::SendResponse;
use hyper::body::Bytes;
use tonic::Status;

use crate::server::Server;

/// The answer to a unary call: a message with its prefix, or what went wrong.
pub(super) type Reply = Result<Bytes, Status>;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const OK: HeaderValue = HeaderValue::from_static("0");

/// Sends an answer.
pub(super) fn send(server: &Server, answer: Reply, respond: &mut SendResponse<Bytes>) {
    // A client that has gone is told nothing.
    let _ = match answer {
        Ok(message) => {
            count(server, None);
            send_message(message, respond)
        }
        Err(status) => {
            let response = status.into_http::<()>();
            count(server, Some(response.headers()));
            respond.send_response(response, true).map(drop)
        }
    };
}

/// Counts an answer. A call that fails says so in its headers; one that succeeds, behind its message.
pub(super) fn count(server: &Server, headers: Option<&HeaderMap>) {
    let code = headers.and_then(|headers| headers.get(GRPC_STATUS));
    server.service.metrics.count_status(200);
    server.service.metrics.count_grpc(code.map_or(b"0", HeaderValue::as_bytes));
}

fn send_message(message: Bytes, respond: &mut SendResponse<Bytes>) -> Result<(), h2::Error> {
    let mut response = Response::new(());
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    let mut stream = respond.send_response(response, false)?;
    stream.send_data(message, false)?;
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, OK);
    stream.send_trailers(trailers)
}
