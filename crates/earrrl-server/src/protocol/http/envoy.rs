//! The HTTP routes that are compatible with envoyproxy/ratelimit: `POST /json` and `GET
//! /healthcheck`.

use axum::Json;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};

use super::request::{ServerState, authorize};
use crate::config::access::Scope;
use crate::protobuf::ratelimit::{Code, RateLimitRequest};
use crate::protocol::response::problem::Problem;
use crate::service::error::AskError;
use earrrl::Mode;

/// Decides a request for descriptors. As in envoyproxy/ratelimit, the status is 200 if the request
/// is within the limits, 429 if not, 400 for an invalid request, and 500 if the server failed.
pub(super) async fn json(
    State(server): ServerState,
    request: Request,
) -> Result<Response, Problem> {
    authorize(&server, request.headers(), Scope::Check)?.permit_all_rules()?;
    let bad = |why: String| Problem::new(StatusCode::BAD_REQUEST, why);
    let body = to_bytes(request.into_body(), server.config.max_body).await;
    let body = body.map_err(|error| bad(error.to_string()))?;
    let request: RateLimitRequest =
        serde_json::from_slice(&body).map_err(|error| bad(error.to_string()))?;
    let answer = server
        .service
        .should_rate_limit(&request, Mode::Check, None)
        .await;
    let answer = answer.map_err(|error| {
        let status = match error {
            AskError::NotConfigured | AskError::Engine(_) => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        };
        Problem::new(status, error.to_string())
    })?;
    let over = answer.overall_code == i32::from(Code::OverLimit);
    let status = if over {
        StatusCode::TOO_MANY_REQUESTS
    } else {
        StatusCode::OK
    };
    Ok((status, Json(answer)).into_response())
}

/// Returns 200 and `OK`, or 500 while the server is stopping.
pub(super) async fn healthcheck(server: ServerState) -> Response {
    let going = server.is_stopping();
    let status = if going {
        StatusCode::INTERNAL_SERVER_ERROR
    } else {
        StatusCode::OK
    };
    (status, if going { "" } else { "OK" }).into_response()
}
