//! One unary call to a rate limit service: its access check, its deadline and its decision; and Kuadrant's
//! reservations, `Reserve` and `Commit` of `kuadrant.service.ratelimit.v1.RateLimitService`.
//!
//! The messages of calls, each after a prefix of five bytes, and the responses are between them: a successful response
//! has one message and trailers; an error has headers only.

use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use earrrl::{Actual, Cost, EngineError, HoldId, HoldTerms, Mode};
use futures_util::stream;
use h2::Reason;
use http_body_util::{BodyExt as _, LengthLimitError, Limited, StreamBody};
use hyper::body::{Bytes, Frame};
use tonic::{Code, Status};

use crate::config::access::Scope;
use crate::protobuf;
use crate::protobuf::ratelimit::{
    Code as OverallCode, CommitRequest, CommitResponse, RateLimitDescriptor, RateLimitRequest,
    RateLimitResponse, ReserveRequest, ReserveResponse,
};
use crate::protocol::bearer::authorize;
use crate::protocol::response::Problem;
use crate::server::Server;
use crate::service::error::AskError;
use crate::service::reserve::with_id;

/// The delay of the response to a call with a wrong token.
const WRONG_TOKEN: Duration = Duration::from_secs(1);
/// The longest timeout of a call. A longer one in `grpc-timeout` is reduced to this.
const LONGEST: Duration = Duration::from_secs(3600);

/// Answers a call for a decision on descriptors.
pub(super) async fn rate_limit(server: &Server, mode: Mode, request: Request<Body>) -> Reply {
    let started = Instant::now();
    let counts = server.service.descriptor_counts();
    counts.requests.increment();
    let answer = decide(server, mode, request, started).await;
    if let Err(status) = &answer {
        server.service.refused_question(status.message());
        match status.code() {
            Code::Unavailable => counts.engine_errors.increment(),
            _ => counts.service_errors.increment(),
        }
    }
    counts.response_time.record(started.elapsed());
    answer
}

async fn decide(
    server: &Server,
    mode: Mode,
    mut request: Request<Body>,
    started: Instant,
) -> Reply {
    let timeout = timeout(request.headers()).map_err(Status::invalid_argument)?;
    let message: RateLimitRequest = match message(server, &mut request).await {
        // Memory is short. The call gets a denial, since a proxy passes its client's request on
        // after an error.
        Err(status) if status.code() == Code::Unavailable => return Ok(frame(&over_limit())),
        message => message?,
    };
    let deadline = timeout.map(|timeout| started + timeout);
    let decided = server.service.should_rate_limit(&message, mode, deadline);
    let answer = decided.await.map_err(|error| status(&error))?;
    Ok(frame(&answer))
}

/// Returns the denial of a request whose message was not read because memory is short.
fn over_limit() -> RateLimitResponse {
    RateLimitResponse {
        overall_code: OverallCode::OverLimit.into(),
        ..RateLimitResponse::default()
    }
}

/// Checks the token of a call, and returns the call's decoded message. The memory of the message counts as held until
/// the request is dropped. The error for a wrong token is delayed, so that clients cannot try many tokens.
pub(super) async fn message<M: prost::Message + Default>(
    server: &Server,
    request: &mut Request<Body>,
) -> Result<M, Status> {
    if let Err(Problem { status, detail }) = permit(server, request.headers()) {
        *request.body_mut() = Body::empty();
        if status == StatusCode::FORBIDDEN {
            return Err(Status::permission_denied(detail));
        }
        if request.headers().contains_key(header::AUTHORIZATION) {
            tokio::time::sleep(WRONG_TOKEN).await;
        }
        return Err(Status::unauthenticated(detail));
    }
    let message = read(server, request.body_mut()).await?;
    M::decode(message).map_err(|error| Status::invalid_argument(error.to_string()))
}

/// Checks that the token of a call permits verdicts. Descriptors, and the rules that match a proxied
/// request, are not named by the call, so a token for some rules does not suffice.
fn permit(server: &Server, headers: &HeaderMap) -> Result<(), Problem> {
    Ok(authorize(server, headers, Scope::Check)?.permit_all_rules()?)
}

pub(super) fn status(error: &AskError) -> Status {
    let why = error.to_string();
    match error {
        AskError::NotConfigured => Status::failed_precondition(why),
        AskError::Engine(EngineError::OtherReservation(_)) => Status::already_exists(why),
        AskError::Engine(_) => Status::unavailable(why),
        _ => Status::invalid_argument(why),
    }
}

/// Returns the duration in the header `grpc-timeout`, which has at most eight digits and a unit, as
/// in `20m` for 20 milliseconds. Returns `None` without this header.
pub(super) fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, &'static str> {
    let Some(value) = headers.get("grpc-timeout") else {
        return Ok(None);
    };
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
    let parsed = value
        .to_str()
        .ok()
        .and_then(parse)
        .map(|timeout| timeout.min(LONGEST));
    parsed
        .map(Some)
        .ok_or("grpc-timeout: expected digits and a unit, as 20m")
}

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

/// Counts a response in the metrics, and returns it. An error has its status among the headers, a successful call has it
/// in the trailers.
pub(super) fn counted(server: &Server, response: Response<Body>) -> Response<Body> {
    let metrics = &server.service.metrics;
    let code = response.headers().get(GRPC_STATUS);
    metrics.count_status(response.status().as_u16());
    metrics.count_grpc(code.map_or(b"0", HeaderValue::as_bytes));
    response
}

/// The metadata with the id that a caller chose for its reservation. The messages are Kuadrant's, which have none.
const RESERVATION_ID: &str = "reservation-id";

/// Answers a call to `Reserve`.
pub(super) async fn reserve(server: &Server, mut request: Request<Body>) -> Reply {
    let chosen = request.headers().get(RESERVATION_ID).cloned();
    let ReserveRequest {
        domain,
        descriptors,
        amount,
        ttl,
    } = message(server, &mut request).await?;
    let mut terms = match ttl {
        None => HoldTerms::default(),
        Some(ttl) => HoldTerms::default().ttl(ttl.try_into().map_err(|_| invalid_ttl(&ttl))?),
    };
    if let Some(id) = &chosen {
        let id = id.to_str().unwrap_or_default();
        terms = with_id(terms, id).map_err(|error| status(&error))?;
    }
    let request = request_of(domain, descriptors, amount);
    let reserved = server.service.reserve_descriptors(&request, terms).await;
    let (allowed, id) = reserved.map_err(|error| status(&error))?;
    let code = match allowed {
        true => OverallCode::Ok,
        false => OverallCode::OverLimit,
    };
    let reservation_id = id.map(|id| id.to_string()).unwrap_or_default();
    Ok(frame(&ReserveResponse {
        code: code.into(),
        reservation_id,
    }))
}

/// Answers a call to `Commit`. If the reservation is unknown, the actual amount is charged as
/// `Report` charges it. A reservation of this process is not unknown after its end: it may have been
/// committed before, and must not be charged twice.
pub(super) async fn commit(server: &Server, mut request: Request<Body>) -> Reply {
    let CommitRequest {
        domain,
        descriptors,
        reservation_id,
        actual_amount,
    } = message(server, &mut request).await?;
    let failed = |error| status(&error);
    if let Ok(id) = reservation_id.parse::<HoldId>() {
        let actual = Actual::All(Cost::from_units(actual_amount));
        match server.service.engine().commit(id, actual).await {
            Ok(_) => return Ok(frame(&CommitResponse {})),
            Err(EngineError::UnknownReservation(_)) if !server.service.engine().has_issued(id) => {}
            Err(EngineError::UnknownReservation(_)) => return Ok(frame(&CommitResponse {})),
            Err(error) => return Err(failed(error.into())),
        }
    }
    let report = request_of(domain, descriptors, actual_amount);
    server
        .service
        .should_rate_limit(&report, Mode::Charge, None)
        .await
        .map_err(failed)?;
    Ok(frame(&CommitResponse {}))
}

/// Returns a request with the amount as the hits of each descriptor that states none itself.
fn request_of(
    domain: String,
    mut descriptors: Vec<RateLimitDescriptor>,
    amount: u64,
) -> RateLimitRequest {
    for descriptor in &mut descriptors {
        descriptor.hits_addend.get_or_insert(amount);
    }
    RateLimitRequest {
        domain,
        descriptors,
        hits_addend: 0,
    }
}

fn invalid_ttl(ttl: &protobuf::Duration) -> Status {
    let protobuf::Duration { seconds, nanos } = ttl;
    let problem = format!("ttl: {seconds} seconds and {nanos} nanoseconds; expected 1 ms to 24 h");
    status(&AskError::Invalid(problem))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

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
