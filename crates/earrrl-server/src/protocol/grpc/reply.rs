//! The body of an answer: one message in one frame, then the trailers.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use hyper::body::{Body, Bytes, Frame, SizeHint};
use tonic::Status;

/// An answer's body.
#[derive(Debug)]
pub(super) enum Reply {
    /// One message, not yet sent.
    Message(Bytes),
    /// The trailers of a call that succeeded.
    Trailers,
    /// Nothing more.
    End,
    /// Of a service of tonic's.
    Other(axum::body::Body),
}

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

impl Reply {
    /// The answer of a call that succeeded: a message with its prefix.
    pub(super) fn message(message: Bytes) -> Response<Self> {
        let mut response = Response::new(Self::Message(message));
        response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
        response
    }

    /// The answer of one that failed: everything is in the headers.
    pub(super) fn status(status: Status) -> Response<Self> {
        status.into_http::<Empty>().map(|Empty| Self::End)
    }
}

#[derive(Default)]
struct Empty;

impl Body for Reply {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Self::Other(body) = &mut *self {
            return Pin::new(body).poll_frame(context);
        }
        let frame = match std::mem::replace(&mut *self, Self::End) {
            Self::Message(message) => {
                *self = Self::Trailers;
                Frame::data(message)
            }
            Self::Trailers => {
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
                Frame::trailers(trailers)
            }
            Self::End | Self::Other(_) => return Poll::Ready(None),
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::End => true,
            Self::Other(body) => body.is_end_stream(),
            Self::Message(_) | Self::Trailers => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Other(body) => body.size_hint(),
            Self::Message(message) => SizeHint::with_exact(message.len() as u64),
            Self::Trailers | Self::End => SizeHint::with_exact(0),
        }
    }
}

/// No error can come of it.
pub(super) fn never<T>(result: Result<T, Infallible>) -> T {
    match result {
        Ok(value) => value,
        Err(never) => match never {},
    }
}
