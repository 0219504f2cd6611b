//! Kuadrant's reservations: `Reserve` and `Commit` of
//! `kuadrant.service.ratelimit.v1.RateLimitService`.

use axum::body::Body;
use axum::http::Request;
use earrrl::{Actual, Cost, EngineError, HoldId, HoldTerms, Mode};
use tonic::Status;

use super::call;
use super::message::{Reply, frame};
use crate::protobuf;
use crate::protobuf::ratelimit::{Code, RateLimitDescriptor, RateLimitRequest};
use crate::protobuf::ratelimit::{CommitRequest, CommitResponse, ReserveRequest, ReserveResponse};
use crate::server::Server;
use crate::service::error::AskError;
use crate::service::reserve::with_id;

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
    } = call::message(server, &mut request).await?;
    let mut terms = match ttl {
        None => HoldTerms::default(),
        Some(ttl) => HoldTerms::default().ttl(ttl.try_into().map_err(|_| invalid_ttl(&ttl))?),
    };
    if let Some(id) = &chosen {
        let id = id.to_str().unwrap_or_default();
        terms = with_id(terms, id).map_err(|error| call::status(&error))?;
    }
    let request = request_of(domain, descriptors, amount);
    let reserved = server.service.reserve_descriptors(&request, terms).await;
    let (allowed, id) = reserved.map_err(|error| call::status(&error))?;
    let code = if allowed { Code::Ok } else { Code::OverLimit };
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
    } = call::message(server, &mut request).await?;
    let failed = |error| call::status(&error);
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
    call::status(&AskError::Invalid(problem))
}
