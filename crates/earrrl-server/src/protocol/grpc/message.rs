//! The framing of a unary call's request or response: one message after a prefix of five bytes.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use h2::RecvStream;
use hyper::body::Bytes;
use tonic::Status;

use crate::protocol::http2::held::{self, HeldBytes, HeldShare};

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
