//! The one message of a unary call's request or answer, with its prefix.

use std::task::{Context, Poll, ready};

use h2::RecvStream;
use hyper::body::Bytes;
use tonic::Status;

/// Largest message, in bytes. A stream's window holds it whole.
const MAX_MESSAGE: usize = 64 * 1024;
/// What stands before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// A message that is being read.
#[derive(Debug)]
pub(super) struct Incoming {
    body: RecvStream,
    whole: Bytes,
    parts: Vec<u8>,
}

impl Incoming {
    pub(super) fn new(body: RecvStream) -> Self {
        Self { body, whole: Bytes::new(), parts: Vec::new() }
    }

    /// The message, without its prefix, once it is there.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Bytes, Status>> {
        while let Some(data) = ready!(self.body.poll_data(context)) {
            let Ok(data) = data else {
                return Poll::Ready(Err(Status::cancelled("the stream broke off")));
            };
            let _ = self.body.flow_control().release_capacity(data.len());
            self.add(data);
            if self.whole.len() + self.parts.len() > PREFIX + MAX_MESSAGE {
                let text = format!("a message of more than {MAX_MESSAGE} bytes");
                return Poll::Ready(Err(Status::resource_exhausted(text)));
            }
        }
        let parts = std::mem::take(&mut self.parts);
        let bytes = if parts.is_empty() { std::mem::take(&mut self.whole) } else { parts.into() };
        Poll::Ready(unframe(bytes))
    }

    fn add(&mut self, data: Bytes) {
        // Mostly there is one frame, and nothing is copied.
        if self.whole.is_empty() && self.parts.is_empty() {
            self.whole = data;
        } else {
            self.parts.extend_from_slice(&std::mem::take(&mut self.whole));
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

/// A message with its prefix.
pub(super) fn frame(message: &impl prost::Message) -> Bytes {
    let length = message.encoded_len();
    let mut framed = Vec::with_capacity(PREFIX + length);
    framed.push(0);
    framed.extend_from_slice(&(length as u32).to_be_bytes());
    // It fails only where there is no room, and a vector grows.
    let _ = message.encode(&mut framed);
    framed.into()
}
