//! Responses to requests that are not passed on, and the body type that all responses have.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use earrrl::{Decision, Wait};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::problem::{self, Kind};
use crate::request_hold::HoldGuard;
use crate::verdict::Verdict;

pin_project! {
    /// The body of a response: that of the inner service, or of a denial.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        kind: Kinds<B>,
    }
}

pin_project! {
    #[project = KindsProjection]
    #[derive(Debug)]
    enum Kinds<B> {
        Inner { #[pin] body: B, hold: Option<HoldGuard> },
        Own { bytes: Bytes },
    }
}

impl<B> ResponseBody<B> {
    /// Returns the body of the inner service. The reservation is committed when the body ends.
    pub(crate) fn inner(body: B, hold: Option<HoldGuard>) -> Self {
        Self {
            kind: Kinds::Inner { body, hold },
        }
    }

    pub(crate) fn own(bytes: Bytes) -> Self {
        Self {
            kind: Kinds::Own { bytes },
        }
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            KindsProjection::Inner { body, hold } => {
                let frame = body.poll_frame(context);
                if matches!(frame, Poll::Ready(None)) {
                    *hold = None;
                }
                frame
            }
            KindsProjection::Own { bytes } if bytes.is_empty() => Poll::Ready(None),
            KindsProjection::Own { bytes } => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes)))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kinds::Inner { body, .. } => body.is_end_stream(),
            Kinds::Own { bytes } => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kinds::Inner { body, .. } => body.size_hint(),
            Kinds::Own { bytes } => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}

/// The reason for which a request is not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The request is over a limit.
    OverLimit,
    /// The request has no key under a rule with [`Missing::Deny`](crate::Missing::Deny).
    NoKey,
    /// The request would have to be held back, but [`max_held`](crate::Builder::max_held) requests
    /// are held back already.
    TooManyHeld,
    /// The engine failed, and requests are denied then.
    EngineFailed,
}

/// A request that is not passed on.
///
/// ```
/// use bytes::Bytes;
/// use earrrl_tower::Denial;
/// /// A response for people.
/// fn page(denial: &Denial<'_>) -> http::Response<Bytes> {
///     let rules = denial.violated.join(", ");
///     let mut response = http::Response::new(format!("Too fast: {rules}\n").into());
///     *response.status_mut() = denial.status;
///     response
/// }
/// # let _ = page;
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Denial<'a> {
    /// The reason for the denial.
    pub reason: Reason,
    /// The status of the denial's response.
    pub status: StatusCode,
    /// The decision on the request.
    pub verdict: &'a Verdict,
    /// The names of the rules that the request exceeds.
    pub violated: Vec<&'a str>,
    /// The type of the problem in the response's body.
    pub kind: Kind,
}

impl Denial<'_> {
    /// Returns a response with problem details (RFC 9457) as its body.
    ///
    /// ```
    /// use earrrl::MemoryEngine;
    /// use earrrl_tower::{RateLimitLayer, Reason};
    /// let builder = RateLimitLayer::builder(MemoryEngine::new(10)?).respond_with(|denial| {
    ///     if denial.reason == Reason::EngineFailed {
    ///         eprintln!("no rate limits at present");
    ///     }
    ///     denial.problem()
    /// });
    /// # let _ = builder;
    /// # Ok::<(), earrrl::BuildError>(())
    /// ```
    pub fn problem(&self) -> Response<Bytes> {
        let violated = self.violated.iter().copied();
        problem_of(self.status, problem::body(self.kind, self.status, violated))
    }
}

/// Returns a response with this problem as its body.
pub(crate) fn problem_of(status: StatusCode, problem: Bytes) -> Response<Bytes> {
    let mut response = Response::new(problem);
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, problem::CONTENT_TYPE);
    response
}

/// Returns the response to a denied gRPC call: a status in the headers and no body
/// ("trailers-only"). `status` is the HTTP status, which the user chooses for [`Reason::NoKey`].
pub(crate) fn grpc(
    reason: Reason,
    status: StatusCode,
    decision: Option<&Decision>,
) -> Response<Bytes> {
    let (code, message) = match reason {
        Reason::OverLimit => ("8", "over the rate limit"),
        Reason::TooManyHeld => ("8", "too many requests are held back"),
        Reason::NoKey => (
            grpc_code(status),
            "the request has no key that identifies its client",
        ),
        Reason::EngineFailed => ("14", "the rate limiter is unavailable"),
    };
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from_static(code));
    headers.insert("grpc-message", HeaderValue::from_static(message));
    let wait = decision.map(|decision| decision.retry_after);
    if let (Reason::OverLimit, Some(Wait::For(wait))) = (reason, wait) {
        // Clients with gRPC's own retries wait this long. If the wait were rounded down, they would
        // be denied again.
        let millis = u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        headers.insert("grpc-retry-pushback-ms", HeaderValue::from(millis));
    }
    response
}

/// Returns the gRPC code for an HTTP status, by the mapping of `google.rpc.Code`. A status without
/// a code, other than 400 and 409, which have several, becomes UNKNOWN.
fn grpc_code(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 => "3",
        401 => "16",
        403 => "7",
        404 => "5",
        409 => "10",
        429 => "8",
        499 => "1",
        500 => "13",
        501 => "12",
        503 => "14",
        504 => "4",
        _ => "2",
    }
}

/// Returns true for a gRPC call. Only denials ask for it.
pub(crate) type IsGrpc<'a> = &'a dyn Fn() -> bool;

/// Returns true if the headers are those of a gRPC call.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .map_or(&b""[..], HeaderValue::as_bytes);
    let rest = kind.strip_prefix(b"application/grpc");
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}
