//! One unary call to a rate limit service: its access check, its deadline and its decision.

use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode, header};
use tonic::{Code, Status};

use super::message::{Reply, frame, read};
use crate::config::access::Scope;
use crate::protobuf::ratelimit::{Code as OverallCode, RateLimitRequest, RateLimitResponse};
use crate::protocol::bearer::authorize;
use crate::protocol::response::Problem;
use crate::server::Server;
use crate::service::error::AskError;
use earrrl::{EngineError, Mode};

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
