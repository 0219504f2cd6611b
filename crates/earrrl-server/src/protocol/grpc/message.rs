//! The messages of unary calls, each after a prefix of five bytes, and the responses: a successful one has one message
//! and trailers; an error has headers only.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use futures_util::stream;
use h2::Reason;
use http_body_util::{BodyExt as _, LengthLimitError, Limited, StreamBody};
use hyper::body::{Bytes, Frame};
use tonic::Status;

use crate::server::Server;

/// The size of the largest message, in bytes. It is the default limit of gRPC's own libraries.
const MAX_MESSAGE: usize = 4 * 1024 * 1024;
/// The length of a message's prefix in bytes: one byte that marks compression, and four bytes with
/// the message's length.
const PREFIX: usize = 5;

/// The error text when the memory limit of all connections together is reached.
const OVERLOADED: &str = "all connections together hold too much; come back in a second";

/// Returns the message of a request, without its prefix, once it has arrived.
pub(super) async fn read(server: &Server, body: &mut Body) -> Result<Bytes, Status> {
    let read = Limited::new(body, PREFIX + MAX_MESSAGE).collect().await;
    unframe(read.map_err(|error| unread(server, &*error))?.to_bytes())
}

/// Returns the error of a call whose message could not be read.
fn unread(server: &Server, error: &(dyn std::error::Error + 'static)) -> Status {
    if error.is::<LengthLimitError>() {
        return Status::resource_exhausted(format!("a message of more than {MAX_MESSAGE} bytes"));
    }
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    // The reasons with which `exchange` stops reading.
    match causes.find_map(|cause| cause.downcast_ref::<h2::Error>()?.reason()) {
        Some(Reason::ENHANCE_YOUR_CALM) => {
            server.service.metrics.shed.increment();
            Status::unavailable(OVERLOADED)
        }
        Some(Reason::CANCEL) => Status::deadline_exceeded("no whole message came"),
        _ => Status::cancelled("the stream broke off"),
    }
}

fn unframe(mut bytes: Bytes) -> Result<Bytes, Status> {
    let Some((prefix, message)) = bytes.split_first_chunk::<PREFIX>() else {
        return Err(Status::invalid_argument("expected one message"));
    };
    if prefix[0] != 0 {
        return Err(Status::unimplemented("compressed messages are not served"));
    }
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
    if length != message.len() {
        return Err(Status::invalid_argument("expected one whole message"));
    }
    Ok(bytes.split_off(PREFIX))
}

/// Returns a message in its encoded form, after its prefix.
pub(super) fn frame(message: &impl prost::Message) -> Bytes {
    let length = message.encoded_len();
    let mut framed = Vec::with_capacity(PREFIX + length);
    framed.push(0);
    framed.extend_from_slice(&(length as u32).to_be_bytes());
    // `encode` would compute the length again, to compare it with the space in the buffer; a vector grows.
    message.encode_raw(&mut framed);
    framed.into()
}

/// The result of a unary call: a message with its prefix, or an error.
pub(super) type Reply = Result<Bytes, Status>;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const OK: HeaderValue = HeaderValue::from_static("0");

/// Returns the response to a call: a message and trailers, or an error that has only headers.
pub(super) fn response(reply: Reply) -> Response<Body> {
    let message = match reply {
        Ok(message) => message,
        Err(status) => return status.into_http(),
    };
    let trailers = HeaderMap::from_iter([(GRPC_STATUS, OK)]);
    let frames = [Frame::data(message), Frame::trailers(trailers)];
    let frames = frames.map(Ok::<_, std::convert::Infallible>);
    let mut response = Response::new(Body::new(StreamBody::new(stream::iter(frames))));
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    response
}

/// Counts a response in the metrics, and returns it. Only an error has its status among the headers, and a successful call in the
/// trailers.
pub(super) fn counted(server: &Server, response: Response<Body>) -> Response<Body> {
    let metrics = &server.service.metrics;
    let code = response.headers().get(GRPC_STATUS);
    metrics.count_status(response.status().as_u16());
    metrics.count_grpc(code.map_or(b"0", HeaderValue::as_bytes));
    response
}
