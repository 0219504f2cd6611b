//! Errors: RFC 9457 problem details.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use earrrl::EngineError;
use earrrl_tower::problem::CONTENT_TYPE;
use serde::Serialize;

use crate::service::error::AskError;

/// The status of a request whose client left before the answer, as nginx counts it.
pub(in crate::protocol) const GONE: u16 = 499;

/// A problem: the status' own title, and what exactly.
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
        Self { status, detail: detail.into() }
    }

    /// Returns the problem as an object in a list of answers.
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
        response.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
        if self.status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

impl From<AskError> for Problem {
    fn from(error: AskError) -> Self {
        let status = match &error {
            AskError::UnknownRule => StatusCode::NOT_FOUND,
            AskError::InlineRulesOff => StatusCode::FORBIDDEN,
            AskError::TooManyInlineRules { .. } => StatusCode::CONFLICT,
            AskError::NotConfigured | AskError::Engine(EngineError::Unavailable(_)) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            AskError::Invalid(_) | AskError::Engine(_) => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Self::new(status, error.to_string())
    }
}
