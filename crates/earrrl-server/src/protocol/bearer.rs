//! The access that the bearer token of a request (`Authorization: Bearer TOKEN`) grants, for HTTP and
//! gRPC alike.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};

use super::response::Problem;
use crate::config::access::{Access, Forbidden, Scope};
use crate::server::Server;

/// Checks that the request's token permits the operation `needed`, and returns the access that the
/// token grants. The rules that the request names must be checked by this access. Counts wrong
/// tokens as failed logins.
pub(super) fn authorize(
    server: &Server,
    headers: &HeaderMap,
    needed: Scope,
) -> Result<Access, Problem> {
    let tokens = server.tokens();
    let bearer = headers
        .get(header::AUTHORIZATION)
        .map(HeaderValue::as_bytes);
    let bearer = bearer
        .and_then(|value| value.split_at_checked(7))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
    let why = match bearer.map_or_else(|| tokens.without(), |(_, token)| tokens.with(token)) {
        Access::Nothing if bearer.is_none() => "expected Authorization: Bearer TOKEN",
        Access::Nothing => {
            server.service.metrics.failed_logins.increment();
            "invalid token"
        }
        access => {
            access.permit(needed)?;
            return Ok(access);
        }
    };
    Err(Problem::new(StatusCode::UNAUTHORIZED, why))
}

impl From<Forbidden> for Problem {
    fn from(forbidden: Forbidden) -> Self {
        Self::new(StatusCode::FORBIDDEN, forbidden.to_string())
    }
}
