//! HTTP errors as problem details (RFC 9457).

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use earrrl::EngineError;
use earrrl_tower::problem::CONTENT_TYPE;
use serde::Serialize;

use crate::service::error::AskError;

/// The status that is counted for a request whose client disconnected before the response; nginx
/// uses the same number.
pub(in crate::protocol) const GONE: u16 = 499;

/// An error response: its HTTP status, which also determines the title, and a text that describes
/// the error.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::protocol) struct Problem {
    pub(in crate::protocol) status: StatusCode,
    pub(in crate::protocol) detail: String,
}

#[derive(Serialize)]
struct ProblemDetails<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    detail: &'a str,
}

impl Problem {
    pub(in crate::protocol) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
        }
    }

    /// Returns the error as a JSON object, for a list of results such as that of a batch.
    pub(in crate::protocol) fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self.details()).unwrap_or_default()
    }

    fn details(&self) -> ProblemDetails<'_> {
        ProblemDetails {
            kind: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: &self.detail,
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.details())).into_response();
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, CONTENT_TYPE);
        if self.status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

impl From<AskError> for Problem {
    fn from(error: AskError) -> Self {
        let status = match &error {
            AskError::UnknownRule(_) => StatusCode::NOT_FOUND,
            AskError::InlineRulesOff => StatusCode::FORBIDDEN,
            AskError::TooManyInlineRules { .. } => StatusCode::CONFLICT,
            AskError::Engine(EngineError::UnknownReservation(_)) => StatusCode::NOT_FOUND,
            AskError::NotConfigured
            | AskError::Engine(EngineError::Unavailable(_) | EngineError::Reservations { .. }) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            AskError::Invalid(_) | AskError::Engine(_) => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Self::new(status, error.to_string())
    }
}
