//! One unary call to a rate limit service: its access check, its deadline and its decision.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, Request};
use h2::RecvStream;
use hyper::body::Bytes;
use tonic::Status;

use super::message::Reply;
use super::message::{Incoming, frame};
use crate::config::access::Scope;
use crate::protobuf::ratelimit::{Code, RateLimitRequest, RateLimitResponse};
use crate::protocol::bearer::{self, TokenRefused};
use crate::protocol::http2::held::HeldBytes;
use crate::server::Server;
use crate::service::error::AskError;
use earrrl::{EngineError, Mode};

/// The delay of the response to a call with a wrong token.
const WRONG_TOKEN: Duration = Duration::from_secs(1);
/// The longest timeout of a call. A longer one in `grpc-timeout` is reduced to this.
const LONGEST: Duration = Duration::from_secs(3600);

/// A call for a decision on descriptors.
#[derive(Debug)]
pub(super) struct RateLimitCall {
    mode: Mode,
    started: Instant,
    timeout: Result<Option<Duration>, &'static str>,
    permitted: Result<(), TokenRefused>,
    message: Incoming,
}

impl RateLimitCall {
    pub(super) fn new(server: &Server, mode: Mode, request: Request<RecvStream>) -> Self {
        server.service.descriptor_counts().requests.increment();
        let (head, body) = request.into_parts();
        Self {
            mode,
            started: Instant::now(),
            timeout: timeout(&head.headers),
            permitted: permit(server, &head.headers),
            message: Incoming::new(body),
        }
    }

    /// Returns the response if it can be made without waiting: the message has arrived, the call is
    /// permitted, and the engine keeps its state in memory.
    pub(super) fn at_once(&mut self, server: &Server, context: &mut Context<'_>) -> Option<Reply> {
        if self.permitted.is_err() || self.timeout.is_err() || server.service.engine().waits() {
            return None;
        }
        let Poll::Ready(message) = self.message.poll(context) else {
            return None;
        };
        let answer = match message {
            Ok(message) => match pin!(self.decide(server, message)).poll(context) {
                Poll::Ready(answer) => answer,
                // This does not occur, since an engine with its state in memory decides without
                // waiting.
                Poll::Pending => return None,
            },
            Err(status) => Err(status),
        };
        self.conclude(server, &answer);
        Some(answer)
    }

    /// Counts the bytes of the call's message as held from now on.
    pub(super) fn hold(&mut self, all: &Arc<HeldBytes>) {
        self.message.hold(all);
    }

    /// Waits for the call's message and returns the response.
    pub(super) async fn answer(mut self, server: &Server) -> Reply {
        let answer = match self.read(server).await {
            Ok(message) => self.decide(server, message).await,
            // Memory is short. The call gets a denial, since a proxy passes its client's request on
            // after an error.
            Err(status) if status.code() == tonic::Code::Unavailable => Ok(frame(&over_limit())),
            Err(status) => Err(status),
        };
        self.conclude(server, &answer);
        answer
    }

    async fn read(&mut self, server: &Server) -> Result<Bytes, Status> {
        self.timeout.map_err(Status::invalid_argument)?;
        admit(&self.permitted, &mut self.message).await?;
        read(server, &mut self.message).await
    }

    async fn decide(&self, server: &Server, message: Bytes) -> Reply {
        let timeout = self.timeout.map_err(Status::invalid_argument)?;
        let request: RateLimitRequest = decode(message)?;
        let deadline = timeout.map(|timeout| self.started + timeout);
        let decided = server
            .service
            .should_rate_limit(&request, self.mode, deadline)
            .await;
        decided
            .map(|answer| frame(&answer))
            .map_err(|error| status(&error))
    }

    fn conclude(&self, server: &Server, answer: &Reply) {
        let counts = server.service.descriptor_counts();
        if let Err(status) = answer {
            server.service.refused_question(status.message());
        }
        match answer {
            Ok(_) => {}
            Err(status) if status.code() == tonic::Code::Unavailable => {
                counts.engine_errors.increment();
            }
            Err(_) => counts.service_errors.increment(),
        }
        counts.response_time.record(self.started.elapsed());
    }
}

/// Returns the denial of a request whose message was not read because memory is short.
fn over_limit() -> RateLimitResponse {
    RateLimitResponse {
        overall_code: Code::OverLimit.into(),
        ..RateLimitResponse::default()
    }
}

/// Checks the token of a call, and returns the call's decoded message.
pub(super) async fn message<M: prost::Message + Default>(
    server: &Server,
    all: &Arc<HeldBytes>,
    request: Request<RecvStream>,
) -> Result<M, Status> {
    let permitted = permit(server, request.headers());
    let mut message = Incoming::new(request.into_body());
    message.hold(all);
    admit(&permitted, &mut message).await?;
    decode(read(server, &mut message).await?)
}

/// Checks that the token of a call permits verdicts. Descriptors, and the rules that match a proxied
/// request, are not named by the call, so a token for some rules does not suffice.
fn permit(server: &Server, headers: &HeaderMap) -> Result<(), TokenRefused> {
    let access = bearer::access(server, headers)?;
    access.permit(Scope::Check)?;
    Ok(access.permit_all_rules()?)
}

/// Returns an error for a call that its token does not permit. The error for a wrong token is
/// delayed, so that clients cannot try many tokens.
async fn admit(permitted: &Result<(), TokenRefused>, message: &mut Incoming) -> Result<(), Status> {
    let Err(refused) = permitted else {
        return Ok(());
    };
    message.close();
    match refused {
        TokenRefused::Forbidden(_) => return Err(Status::permission_denied(refused.why())),
        TokenRefused::Wrong => tokio::time::sleep(WRONG_TOKEN).await,
        TokenRefused::Missing => {}
    }
    Err(Status::unauthenticated(refused.why()))
}

/// Returns the whole message, or an error if it does not arrive in time.
async fn read(server: &Server, message: &mut Incoming) -> Result<Bytes, Status> {
    let patience = Duration::from_secs(server.config.limits.request.into());
    let read = tokio::time::timeout(patience, poll_fn(|context| message.poll(context)));
    let read = read
        .await
        .map_err(|_| Status::deadline_exceeded("no whole message came"))?;
    read.inspect_err(|status| {
        if status.code() == tonic::Code::Unavailable {
            server.service.metrics.shed.increment();
        }
    })
}

fn decode<M: prost::Message + Default>(message: Bytes) -> Result<M, Status> {
    M::decode(message).map_err(|error| Status::invalid_argument(error.to_string()))
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
