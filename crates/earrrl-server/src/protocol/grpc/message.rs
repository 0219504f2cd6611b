//! The messages of unary calls, each after a prefix of five bytes, and the responses: a successful one has one message
//! and trailers; an error has headers only.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use h2::RecvStream;
use h2::server::SendResponse;
use hyper::body::Bytes;
use tonic::Status;

use crate::protocol::http2::exchange;
use crate::protocol::http2::held::{self, HeldBytes, HeldShare};
use crate::server::Server;

/// The size of the largest message, in bytes. It is the default limit of gRPC's own libraries.
const MAX_MESSAGE: usize = 4 * 1024 * 1024;
/// The length of a message's prefix in bytes: one byte that marks compression, and four bytes with
/// the message's length.
const PREFIX: usize = 5;

/// The error text when the memory limit of all connections together is reached.
pub(super) const OVERLOADED: &str = "all connections together hold too much; come back in a second";

/// The message of a request, while it is being read.
#[derive(Debug)]
pub(super) struct Incoming {
    /// The rest of the stream, or `None` once the message is no longer read.
    body: Option<RecvStream>,
    whole: Bytes,
    parts: Vec<u8>,
    /// The count of bytes that this message holds. It is set once the call has to wait.
    share: Option<HeldShare>,
}

impl Incoming {
    pub(super) fn new(body: RecvStream) -> Self {
        Self {
            body: Some(body),
            whole: Bytes::new(),
            parts: Vec::new(),
            share: None,
        }
    }

    /// Counts the message's bytes as held from now on.
    pub(super) fn hold(&mut self, all: &Arc<HeldBytes>) {
        self.share = Some(HeldShare::new(all));
    }

    /// Stops reading the message, and drops the bytes that have arrived.
    pub(super) fn close(&mut self) {
        self.body = None;
    }

    fn is_held(&mut self) -> bool {
        let bytes = held::STREAM + self.whole.len() + 2 * self.parts.len();
        self.share.as_mut().is_none_or(|share| share.set(bytes))
    }

    /// Returns the message, without its prefix, once it has arrived.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Bytes, Status>> {
        while self.is_held() {
            let Some(data) = ready!(self.poll_data(context)) else {
                return Poll::Ready(unframe(self.bytes()));
            };
            let Ok(data) = data else {
                return Poll::Ready(Err(Status::cancelled("the stream broke off")));
            };
            self.add(data);
            if self.whole.len() + self.parts.len() > PREFIX + MAX_MESSAGE {
                let text = format!("a message of more than {MAX_MESSAGE} bytes");
                return Poll::Ready(Err(Status::resource_exhausted(text)));
            }
        }
        Poll::Ready(Err(Status::unavailable(OVERLOADED)))
    }

    /// Returns all bytes that have arrived.
    fn bytes(&mut self) -> Bytes {
        let parts = std::mem::take(&mut self.parts);
        if parts.is_empty() {
            std::mem::take(&mut self.whole)
        } else {
            parts.into()
        }
    }

    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, h2::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let data = ready!(body.poll_data(context));
        if let Some(Ok(data)) = &data {
            // These bytes have been read, so the client may send as many more.
            let _ = body.flow_control().release_capacity(data.len());
        }
        Poll::Ready(data)
    }

    fn add(&mut self, data: Bytes) {
        // Most messages arrive in one frame, which is kept without a copy.
        if self.whole.is_empty() && self.parts.is_empty() {
            self.whole = data;
        } else {
            self.parts
                .extend_from_slice(&std::mem::take(&mut self.whole));
            self.parts.extend_from_slice(&data);
        }
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
