//! The bearer token of a request (`Authorization: Bearer TOKEN`), for HTTP and gRPC alike.

use std::borrow::Cow;

use axum::http::{HeaderMap, HeaderValue, header};

use crate::config::access::{Access, Forbidden};
use crate::server::Server;

/// The reason why a request's token grants no access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TokenRefused {
    /// The request has no token.
    Missing,
    /// The token is not configured on this server.
    Wrong,
    /// The token does not permit the request.
    Forbidden(Forbidden),
}

impl From<Forbidden> for TokenRefused {
    fn from(forbidden: Forbidden) -> Self {
        Self::Forbidden(forbidden)
    }
}

impl TokenRefused {
    /// Returns the error message that is sent to the client.
    pub(super) fn why(&self) -> Cow<'static, str> {
        match self {
            Self::Missing => "expected Authorization: Bearer TOKEN".into(),
            Self::Wrong => "invalid token".into(),
            Self::Forbidden(forbidden) => forbidden.to_string().into(),
        }
    }
}

/// Returns the access that a request's token grants. Counts wrong tokens as failed logins.
pub(super) fn access(server: &Server, headers: &HeaderMap) -> Result<Access, TokenRefused> {
    let tokens = server.tokens();
    let bearer = headers
        .get(header::AUTHORIZATION)
        .map(HeaderValue::as_bytes);
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
