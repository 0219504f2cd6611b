//! One unary call: its message read within bounds, its deadline, its answer.

use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderValue, Request, Response, header};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use hyper::body::{Body, Bytes};
use prost::Message as _;
use tonic::Status;

use super::reply::Reply;
use crate::config::access::Access;
use crate::server::Server;
use crate::service::error::AskError;
use earrrl::Mode;

/// Largest message, in bytes.
const MAX_MESSAGE: usize = 64 * 1024;
/// What stands before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// Longest time that a call may name.
const LONGEST: Duration = Duration::from_secs(3600);

/// Answers a call.
pub(super) async fn answer<B>(server: &Server, mode: Mode, request: Request<B>) -> Response<Reply>
where
    B: Body<Data = Bytes> + Unpin,
{
    let started = Instant::now();
    let counts = server.service.descriptor_counts();
    counts.requests.increment();
    let answered = match decide(server, mode, request, started).await {
        Ok(answer) => Reply::message(frame(&answer)),
        Err(status) => {
            match status.code() {
                tonic::Code::Unavailable => counts.engine_errors.increment(),
                _ => counts.service_errors.increment(),
            }
            Reply::status(status)
        }
    };
    counts.response_time.record(started.elapsed());
    answered
}

async fn decide<B>(
    server: &Server,
    mode: Mode,
    request: Request<B>,
    started: Instant,
) -> Result<RateLimitResponse, Status>
where
    B: Body<Data = Bytes> + Unpin,
{
    authorize(server, request.headers())?;
    let deadline = timeout(request.headers())?.map(|timeout| started + timeout);
    let patience = Duration::from_secs(server.config.limits.request.into());
    let message = tokio::time::timeout(patience, read(request.into_body()));
    let message = message.await.map_err(|_| Status::deadline_exceeded("no whole message came"))?;
    let request = RateLimitRequest::decode(message?)
        .map_err(|error| Status::invalid_argument(error.to_string()))?;
    let answer = server.service.should_rate_limit(&request, mode, deadline).await;
    answer.map_err(|error| status(&error))
}

fn status(error: &AskError) -> Status {
    let why = error.to_string();
    match error {
        AskError::NotConfigured => Status::failed_precondition(why),
        AskError::Engine(_) => Status::unavailable(why),
        _ => Status::invalid_argument(why),
    }
}

fn authorize(server: &Server, headers: &HeaderMap) -> Result<(), Status> {
    let tokens = server.tokens();
    let bearer = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let bearer = bearer.and_then(|value| value.strip_prefix(b"Bearer "));
    match bearer.map_or_else(|| tokens.without(), |token| tokens.with(token)) {
        Access::Nothing => Err(Status::unauthenticated("expected authorization: Bearer TOKEN")),
        Access::Ask | Access::Change => Ok(()),
    }
}

/// `grpc-timeout`: at most eight digits and a unit.
fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, Status> {
    let Some(value) = headers.get("grpc-timeout") else { return Ok(None) };
    let parse = |text: &str| {
        let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let plain = (1..=8).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
        let count: u64 = digits.parse().ok().filter(|_| plain)?;
        Some(match unit {
            "H" => Duration::from_secs(count * 3600),
            "M" => Duration::from_secs(count * 60),
            "S" => Duration::from_secs(count),
            "m" => Duration::from_millis(count),
            "u" => Duration::from_micros(count),
            "n" => Duration::from_nanos(count),
            _ => return None,
        })
    };
    let parsed = value.to_str().ok().and_then(parse).map(|timeout| timeout.min(LONGEST));
    parsed
        .map(Some)
        .ok_or_else(|| Status::invalid_argument("grpc-timeout: expected digits and a unit, as 20m"))
}

/// The one message of a body, without its prefix.
async fn read<B: Body<Data = Bytes> + Unpin>(mut body: B) -> Result<Bytes, Status> {
    let mut whole = Bytes::new();
    let mut parts = Vec::new();
    while let Some(frame) = next_frame(&mut body).await {
        let frame = frame.map_err(|_| Status::cancelled("the stream broke off"))?;
        let Ok(data) = frame.into_data() else { continue };
        // Mostly there is one frame, and nothing is copied.
        if whole.is_empty() && parts.is_empty() {
            whole = data;
        } else {
            parts.extend_from_slice(&std::mem::take(&mut whole));
            parts.extend_from_slice(&data);
        }
        let length = whole.len() + parts.len();
        if length > PREFIX + MAX_MESSAGE {
            let text = format!("a message of more than {MAX_MESSAGE} bytes");
            return Err(Status::resource_exhausted(text));
        }
    }
    unframe(if parts.is_empty() { whole } else { parts.into() })
}

async fn next_frame<B: Body + Unpin>(
    body: &mut B,
) -> Option<Result<hyper::body::Frame<B::Data>, B::Error>> {
    std::future::poll_fn(|context| std::pin::Pin::new(&mut *body).poll_frame(context)).await
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

fn frame(answer: &RateLimitResponse) -> Bytes {
    let length = answer.encoded_len();
    let mut framed = Vec::with_capacity(PREFIX + length);
    framed.push(0);
    framed.extend_from_slice(&(length as u32).to_be_bytes());
    // It fails only where there is no room, and a vector grows.
    let _ = answer.encode(&mut framed);
    framed.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_digits_and_a_unit() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", HeaderValue::from_str(text).unwrap());
            timeout(&headers).ok().flatten()
        };
        assert_eq!(of("20m"), Some(Duration::from_millis(20)));
        assert_eq!(of("1S"), Some(Duration::from_secs(1)));
        assert_eq!(of("99999999H"), Some(LONGEST));
        for wrong in ["", "m", "20", "-1m", "20x", "123456789m", "2 m"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        assert_eq!(timeout(&HeaderMap::new()).unwrap(), None);
    }
}
