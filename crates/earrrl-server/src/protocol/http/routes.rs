//! The routes of the HTTP API, and the handlers that answer them.

use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::{get, post};

use super::{check, clients, condition, dashboard, envoy, events, openapi, reserve, top};
use crate::protocol::response::problem::Problem;
use crate::server::Server;

const JSON: &str = "application/json";

/// Returns all routes except `/v1/authz`, which bypasses the router. `/metrics` is left out if an
/// admin listener is configured, since that listener serves it.
pub fn router(server: Arc<Server>) -> Router {
    let document = openapi::document(&server);
    let routes = match server.config.admin {
        Some(_) => health(),
        None => health().route("/metrics", get(condition::metrics)),
    };
    routes
        .route("/v1/check", post(check::check))
        .route("/v1/check/batch", post(check::batch))
        .route("/v1/peek", post(check::peek))
        .route("/v1/charge", post(check::charge))
        .route("/v1/refund", post(check::refund))
        .route("/v1/reserve", post(reserve::reserve))
        .route("/v1/commit", post(reserve::commit))
        .route("/v1/renew", post(reserve::renew))
        .merge(visibility())
        .route(
            "/openapi.json",
            get(async move || ([(header::CONTENT_TYPE, JSON)], document)),
        )
        .route("/json", post(envoy::json))
        .route("/healthcheck", get(envoy::healthcheck))
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
        .route("/metrics", get(condition::metrics))
        .merge(visibility())
        .route("/", get(dashboard::page))
        .route("/dashboard.css", get(dashboard::style))
        .route("/dashboard.js", get(dashboard::script))
        .route("/charts.js", get(dashboard::charts))
        .route("/v1/live", get(dashboard::live))
        .fallback(async || Problem::new(StatusCode::NOT_FOUND, "no decisions on this listener"))
        .with_state(server)
}

/// Returns the routes for a connection that was accepted above the limit on connections, in one of
/// the places reserved for health checks and metrics. Other routes return 503.
pub fn reserved_router(server: Arc<Server>) -> Router {
    let full = "as many are connected as may be; come back in a second";
    let routes = health()
        .route("/metrics", get(condition::metrics))
        .with_state(server);
    routes.fallback(async move || {
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, full);
        (
            [(header::RETRY_AFTER, "1"), (header::CONNECTION, "close")],
            problem,
        )
    })
}

/// Returns the routes that show rules and clients, and reset a client.
fn visibility() -> Router<Arc<Server>> {
    Router::new()
        .route(
            "/v1/clients/{rule}/{*key}",
            get(clients::explain).delete(clients::reset),
        )
        .route("/v1/rules", get(clients::rules))
        .route("/v1/top", get(top::top))
        .route("/v1/rates", get(top::rates))
        .route("/v1/events", get(events::events))
}

fn health() -> Router<Arc<Server>> {
    Router::new()
        .route("/healthz", get(condition::healthz))
        .route("/readyz", get(condition::readyz))
}
