//! The routes of the HTTP API; the handlers for health, readiness, metrics and the OpenAPI document; and the routes of
//! envoyproxy/ratelimit, `POST /json` and `GET /healthcheck`.

use std::sync::Arc;

use axum::body::{Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use earrrl::Mode;
use serde_json::{Value, json};

use super::check::ServerState;
use super::{authz, check, events, top};
use crate::config::access::Scope;
use crate::protobuf::ratelimit::{Code, RateLimitRequest};
use crate::protocol::bearer::authorize;
use crate::protocol::response::Problem;
use crate::server::Server;
use crate::service::error::AskError;

const JSON: &str = "application/json";

/// Returns all routes except `/v1/authz`, which bypasses the router. `/metrics` is left out if an
/// admin listener is configured, since that listener serves it.
pub fn router(server: Arc<Server>) -> Router {
    let document = document(&server);
    let routes = match server.config.admin {
        Some(_) => health(),
        None => health().route("/metrics", get(metrics)),
    };
    routes
        .route("/v1/check", asks(Mode::Check))
        .route("/v1/check/batch", post(check::batch))
        .route("/v1/peek", asks(Mode::Peek))
        .route("/v1/charge", asks(Mode::Charge))
        .route("/v1/refund", post(check::refund))
        .route("/v1/reserve", post(check::reserve))
        .route("/v1/commit", post(check::commit))
        .route("/v1/renew", post(check::renew))
        .merge(visibility())
        .route(
            "/openapi.json",
            get(async move || ([(header::CONTENT_TYPE, JSON)], document)),
        )
        .route("/json", post(json))
        .route("/healthcheck", get(healthcheck))
        .fallback(async || Problem::new(StatusCode::NOT_FOUND, "no such route; see /openapi.json"))
        .method_not_allowed_fallback(async || {
            Problem::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "see /openapi.json for the methods",
            )
        })
        .with_state(server)
}

/// Returns the routes of the admin listener: health, metrics, the dashboard, and the routes
/// that show clients.
pub fn admin_router(server: Arc<Server>) -> Router {
    health()
        .route("/metrics", get(metrics))
        .merge(visibility())
        .route("/", get(events::page))
        .merge(events::assets())
        .route("/v1/live", get(events::live))
        .fallback(async || Problem::new(StatusCode::NOT_FOUND, "no decisions on this listener"))
        .with_state(server)
}

/// Returns the routes for a connection that was accepted above the limit on connections, in one of
/// the places reserved for health checks and metrics. Other routes return 503.
pub fn reserved_router(server: Arc<Server>) -> Router {
    let full = "as many are connected as may be; come back in a second";
    let routes = health().route("/metrics", get(metrics)).with_state(server);
    routes.fallback(async move || {
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, full);
        (
            [(header::RETRY_AFTER, "1"), (header::CONNECTION, "close")],
            problem,
        )
    })
}

/// Returns the route of a check, a peek or a charge.
fn asks(mode: Mode) -> MethodRouter<Arc<Server>> {
    post(move |server, request| check::ask(server, request, mode))
}

/// Returns the routes that show rules and clients, reset a client, and set overrides.
fn visibility() -> Router<Arc<Server>> {
    Router::new()
        .route(
            "/v1/clients/{rule}/{*key}",
            get(top::explain).delete(top::reset),
        )
        .route("/v1/overrides", get(top::list_overrides))
        .route(
            "/v1/overrides/{rule}/{*key}",
            get(top::show_override)
                .put(top::put_override)
                .delete(top::delete_override),
        )
        .route("/v1/rules", get(top::rules))
        .route("/v1/top", get(top::top))
        .route("/v1/rates", get(top::rates))
        .route("/v1/events", get(events::events))
}

fn health() -> Router<Arc<Server>> {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
}

async fn healthz() -> &'static str {
    "ok\n"
}

/// Returns 200 once the server has a valid configuration, and 503 before that and while the server
/// is stopping. A rejected reload is only reported in the body, since the previous rules remain in
/// force. An unreachable Redis is only reported too, since it would otherwise take every server out
/// of service at once.
async fn readyz(server: ServerState) -> Response {
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

async fn metrics(server: ServerState) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], server.metrics()).into_response()
}

const DOCUMENT: &str = include_str!("openapi.json");

/// The methods, besides GET, that `/v1/authz` accepts. A proxy may use the method of its client's
/// request.
const METHODS: [&str; 8] = [
    "delete", "head", "options", "patch", "post", "put", "query", "trace",
];

/// Returns the OpenAPI document of `server`.
fn document(server: &Server) -> Bytes {
    match serde_json::from_str(DOCUMENT) {
        Ok(document) => fitted(document, server).to_string().into(),
        Err(_) => Bytes::from_static(DOCUMENT.as_bytes()),
    }
}

fn fitted(mut document: Value, server: &Server) -> Value {
    let asked = &mut document["paths"][authz::PATH];
    for method in METHODS {
        asked[method] = asked["get"].clone();
        asked[method]["operationId"] = format!("authz-{method}").into();
    }
    if server.config.admin.is_some()
        && let Some(paths) = document["paths"].as_object_mut()
    {
        paths.remove("/metrics");
    }
    if !server.tokens().any()
        && let Some(document) = document.as_object_mut()
    {
        document.remove("security");
    }
    document
}

/// Decides a request for descriptors. As in envoyproxy/ratelimit, the status is 200 if the request
/// is within the limits, 429 if not, 400 for an invalid request, and 500 if the server failed.
async fn json(State(server): ServerState, request: Request) -> Result<Response, Problem> {
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
async fn healthcheck(server: ServerState) -> Response {
    let going = server.is_stopping();
    let status = if going {
        StatusCode::INTERNAL_SERVER_ERROR
    } else {
        StatusCode::OK
    };
    (status, if going { "" } else { "OK" }).into_response()
}
