//! The routes for health, readiness and metrics.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::request::ServerState;

pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Returns 200 once the server has a valid configuration, and 503 before that and while the server
/// is stopping. A rejected reload is only reported in the body, since the previous rules remain in
/// force. An unreachable Redis is only reported too, since it would otherwise take every server out
/// of service at once.
pub(super) async fn readyz(server: ServerState) -> Response {
    let stopping = server.is_stopping();
    let (status, word) = match (stopping, server.is_configured()) {
        (true, _) => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
        (false, false) => (StatusCode::SERVICE_UNAVAILABLE, "no configuration yet"),
        (false, true) => (StatusCode::OK, "ready"),
    };
    let engine = server.service.engine().state();
    let unjudged = server
        .service
        .passed_unjudged()
        .map(|(reason, n)| (reason.into(), n.into()));
    let mut body = json!({
        "status": word, "reload_error": server.reload_error(), "engine": { "mode": engine.mode },
        "passed_without_verdict": Value::Object(unjudged.into_iter().collect()),
    });
    if let Some(owed) = engine.owed {
        body["engine"]["owed_clients"] = owed.into();
        body["engine"]["trouble"] = engine.trouble.into();
    }
    (status, Json(body)).into_response()
}

pub(super) async fn metrics(server: ServerState) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], server.metrics()).into_response()
}
