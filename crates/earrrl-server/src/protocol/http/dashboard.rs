//! The dashboard: one page of the admin listener, and the events that keep it current.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use earrrl::Outcome;
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use super::events::{Subscription, respond};
use super::request::ServerState;
use super::top::{client, distribution, permitted_rule};
use crate::protocol::response::Problem;
use crate::server::Server;
use crate::service::error::AskError;

/// The number of clients in an event.
const CLIENTS: usize = 20;
/// The page may load its own files and connect to its own server, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// `GET /` of the admin listener. The page contains the fact that tokens are needed, since a browser would log the
/// refusal of a request without one as an error.
pub(super) async fn page(State(server): ServerState) -> Response {
    let body = if server.tokens().any() {
        "<body data-token=\"needed\">"
    } else {
        "<body>"
    };
    let page = include_str!("dashboard/index.html").replacen("<body>", body, 1);
    asset("text/html; charset=utf-8", page)
}

/// Returns the routes of the files that the page loads.
pub(super) fn assets() -> Router<Arc<Server>> {
    let script = "text/javascript; charset=utf-8";
    let files = [
        (
            "/dashboard.css",
            "text/css; charset=utf-8",
            include_str!("dashboard/dashboard.css"),
        ),
        (
            "/dashboard.js",
            script,
            include_str!("dashboard/dashboard.js"),
        ),
        ("/charts.js", script, include_str!("dashboard/charts.js")),
    ];
    files
        .into_iter()
        .fold(Router::new(), |routes, (path, kind, text)| {
            routes.route(path, get(async move || asset(kind, text)))
        })
}

fn asset(kind: &'static str, text: impl IntoResponse) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}

/// `GET /v1/live?rule=NAME`: sends the state of a rule every second, as server-sent events.
pub(super) async fn live(
    State(server): ServerState,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    let rule = permitted_rule(&server, &headers, &uri)?;
    // The first event is made now, so that an unknown rule is an error.
    let first = event(&server, &rule).await?;
    let subscription = Subscription::open(server, headers)?;
    let later = stream::unfold((subscription, rule), next);
    let events = stream::iter([first]).chain(later);
    Ok(respond("text/event-stream", events))
}

type LiveState = (Subscription, String);

/// Returns the next event; the events end with the subscription, or when the rule is gone.
async fn next((subscription, rule): LiveState) -> Option<(Bytes, LiveState)> {
    subscription.step().await?.permit_rule(&rule).ok()?;
    let event = event(&subscription.server, &rule).await.ok()?;
    Some((event, (subscription, rule)))
}

async fn event(server: &Server, rule: &str) -> Result<Bytes, AskError> {
    let report = server.service.report(rule).await?;
    let rules = server.service.rules();
    let known = rules.named(rule.as_bytes())?;
    let allowed = known.outcomes.get(Outcome::Allow);
    let engine = server.service.engine();
    let state = engine.state();
    let usage = engine
        .memory()
        .and_then(|memory| memory.usage(known.own.id));
    let limit = known.own.rule.limit().per_second();
    let over = report
        .clients
        .iter()
        .filter(|client| client.figures.usage >= 1.0)
        .count();
    let clients: Vec<Value> = report.clients.iter().take(CLIENTS).map(client).collect();
    // A report may be shown again, so its own time is not that of the counters.
    let at = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let data = json!({
        "at": at.as_secs_f64(),
        "allowed": allowed,
        "denied": known.outcomes.total() - allowed,
        "engine": state.mode,
        "trouble": state.trouble,
        "displaced": usage.map(|(_, displaced)| displaced),
        "reload_error": server.reload_error(),
        "rates": distribution(rule, Some(limit), &report),
        "over": over,
        "names_are_keys": server.config.names.hmac_key.is_none(),
        "clients": clients,
    });
    Ok(format!("data: {data}\n\n").into())
}
