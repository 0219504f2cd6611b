//! The token that a request brings: `Authorization: Bearer TOKEN`, over HTTP and gRPC alike.

use axum::http::{HeaderMap, HeaderValue, header};

use crate::config::access::Access;
use crate::server::Server;

/// The reason why a request has no access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenRefused {
    /// The request has no token.
    Missing,
    /// The token is not one of this server's.
    Wrong,
}

impl TokenRefused {
    /// Returns the message for the client.
    pub(super) fn why(self) -> &'static str {
        match self {
            Self::Missing => "expected Authorization: Bearer TOKEN",
            Self::Wrong => "invalid token",
        }
    }
}

/// Returns the access that a request's token grants. Counts wrong tokens.
pub(super) fn access(server: &Server, headers: &HeaderMap) -> Result<Access, TokenRefused> {
    let tokens = server.tokens();
    let bearer = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let bearer = bearer
        .and_then(|value| value.split_at_checked(7))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
    match bearer.map_or_else(|| tokens.without(), |(_, token)| tokens.with(token)) {
        Access::Nothing if bearer.is_none() => Err(TokenRefused::Missing),
        Access::Nothing => {
            server.service.metrics.failed_logins.increment();
            Err(TokenRefused::Wrong)
        }
        access => Ok(access),
    }
}
