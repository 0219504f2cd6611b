//! The routes.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use earrrl::Mode;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use hyper::body::Body as _;
use serde::Deserialize;
use serde_json::json;

use super::answer::{self, Status};
use super::body::{self, Batch, Check, MAX_BATCH, Named, Object, Refund, Wanted};
use super::problem::Problem;
use super::{authz, clients, envoy};
use crate::config::access::Access;
use crate::server::Server;
use crate::service::attributes::Attributes;
use crate::service::rules::{ActiveRule, RuleSet};
use crate::service::{Answer, Ask, AskError, Manner};

pub(super) type Shared = State<Arc<Server>>;

/// Checks of a batch that are under way at once, where they are waited for. They are sent in order,
/// so those about one key are decided in order.
const AT_ONCE: usize = 32;

const OPENAPI: &str = include_str!("openapi.json");

/// All routes. Metrics are elsewhere where they have a listener of their own.
pub fn router(server: Arc<Server>) -> Router {
    let routes = match server.config.admin {
        Some(_) => health(),
        None => health().route("/metrics", get(metrics)),
    };
    routes
        .route("/v1/check", post(check))
        .route("/v1/check/batch", post(batch))
        .route("/v1/peek", post(peek))
        .route(authz::PATH, any(authz::authz))
        .route("/v1/authz/{*path}", any(authz::authz))
        .route("/v1/charge", post(charge))
        .route("/v1/refund", post(refund))
        .route("/v1/clients/{rule}/{*key}", get(clients::explain).delete(clients::reset))
        .route("/v1/rules", get(rules))
        .route("/openapi.json", get(openapi))
        .route("/json", post(envoy::json))
        .route("/healthcheck", get(envoy::healthcheck))
        .fallback(async || Problem::new(StatusCode::NOT_FOUND, "no such route; see /openapi.json"))
        .method_not_allowed_fallback(async || {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "see /openapi.json for the methods")
        })
        .with_state(server)
}

/// The routes that a listener of its own serves, and places that are kept for them.
pub fn admin_router(server: Arc<Server>) -> Router {
    health()
        .route("/metrics", get(metrics))
        .fallback(async || Problem::new(StatusCode::NOT_FOUND, "health and metrics only"))
        .with_state(server)
}

/// For a connection that found all places taken but those kept for health and metrics.
pub fn reserved_router(server: Arc<Server>) -> Router {
    let full = "as many are connected as may be; come back in a second";
    admin_router(server).fallback(async move || {
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, full);
        ([(header::RETRY_AFTER, "1"), (header::CONNECTION, "close")], problem)
    })
}

fn health() -> Router<Arc<Server>> {
    Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz))
}

async fn check(State(server): Shared, request: Request) -> Result<Response, Problem> {
    ask(&server, request, Mode::Check, Status::ByVerdict).await
}

async fn peek(State(server): Shared, request: Request) -> Result<Response, Problem> {
    ask(&server, request, Mode::Peek, Status::Ok).await
}

async fn charge(State(server): Shared, request: Request) -> Result<Response, Problem> {
    ask(&server, request, Mode::Charge, Status::ByVerdict).await
}

async fn ask(
    server: &Server,
    request: Request,
    mode: Mode,
    status: Status,
) -> Result<Response, Problem> {
    let body = read(server, request, Access::Ask).await?;
    let started = Instant::now();
    let check: Check<'_> = parse(server, &body)?;
    let x_rate_limit = server.config.x_ratelimit_headers;
    let respond =
        |answer: &Answer<'_>, several| answer::respond(answer, several, status, x_rate_limit);
    let manner = Manner { mode, available: true };
    let response = decide(server, check, manner, respond).await?;
    server.service.metrics.http_request.record(started.elapsed());
    Ok(response)
}

/// Decides one check, and does with the answer what `then` says: the answer borrows from the rules
/// in force.
async fn decide<T>(
    server: &Server,
    check: Check<'_>,
    manner: Manner,
    then: impl FnOnce(&Answer<'_>, bool) -> T,
) -> Result<T, AskError> {
    let service = &server.service;
    let rules = service.rules();
    match check.wanted()? {
        Wanted::One(named) => {
            let rule = find(server, &rules, &named)?;
            let ask = Ask { rule: rule.get(), key: named.key.as_bytes(), cost: named.cost };
            Ok(then(&service.ask(ask, manner).await?, false))
        }
        Wanted::Several(list) => {
            let found: Vec<Found<'_>> =
                list.iter().map(|named| find(server, &rules, named)).collect::<Result<_, _>>()?;
            let each = found.iter().zip(&list);
            let asks: Vec<Ask<'_>> = each
                .map(|(rule, named)| Ask {
                    rule: rule.get(),
                    key: named.key.as_bytes(),
                    cost: named.cost,
                })
                .collect();
            Ok(then(&service.ask_all(&asks, manner).await?, true))
        }
        Wanted::Matching(pairs) => {
            let request = Attributes::new(pairs, &rules.reading);
            Ok(then(&service.ask_matching(&rules, &request, manner).await?, true))
        }
    }
}

/// A rule of the configuration, or one that came as text.
enum Found<'a> {
    Named(&'a ActiveRule),
    Inline(Arc<ActiveRule>),
}

impl Found<'_> {
    fn get(&self) -> &ActiveRule {
        match self {
            Self::Named(rule) => rule,
            Self::Inline(rule) => rule,
        }
    }
}

fn find<'a>(server: &Server, rules: &'a RuleSet, named: &Named<'_>) -> Result<Found<'a>, AskError> {
    match rules.get(named.rule.as_bytes()) {
        Some(rule) => Ok(Found::Named(rule)),
        None if named.rule.contains(' ') => {
            server.service.inline_rule(&named.rule).map(Found::Inline)
        }
        None => Err(AskError::UnknownRule),
    }
}

async fn batch(State(server): Shared, request: Request) -> Result<Response, Problem> {
    let body = read(&server, request, Access::Ask).await?;
    let batch: Batch<'_> = parse(&server, &body)?;
    if batch.checks.len() > MAX_BATCH {
        let detail = format!("checks: {}; at most {MAX_BATCH}", batch.checks.len());
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
    }
    let mut out = Vec::with_capacity(256 * batch.checks.len() + 16);
    out.extend_from_slice(b"{\"decisions\":[");
    let mut checks = batch.checks.into_iter().map(|check| check.0);
    if server.service.engine().waits() {
        while let Some(first) = checks.next() {
            let together = [first].into_iter().chain(checks.by_ref().take(AT_ONCE - 1));
            let answers: Vec<_> = together.map(|check| decide_apart(&server, check)).collect();
            join_all(answers).await.iter().for_each(|answer| out.extend_from_slice(answer));
        }
    } else {
        for check in checks {
            decide_into(&server, check, &mut out).await;
        }
    }
    out.pop_if(|byte| *byte == b',');
    out.extend_from_slice(b"]}");
    Ok(([(header::CONTENT_TYPE, "application/json")], out).into_response())
}

/// Appends one answer of a batch, and a comma.
async fn decide_into(server: &Server, check: Check<'_>, out: &mut Vec<u8>) {
    let write = |answer: &Answer<'_>, several| answer::write_object(answer, several, out);
    if let Err(error) = decide(server, check, Mode::Check.into(), write).await {
        out.extend_from_slice(Problem::from(error).to_json().to_string().as_bytes());
    }
    out.push(b',');
}

async fn decide_apart(server: &Server, check: Check<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    decide_into(server, check, &mut out).await;
    out
}

async fn refund(State(server): Shared, request: Request) -> Result<StatusCode, Problem> {
    let body = read(&server, request, Access::Change).await?;
    let refund: Refund<'_> = parse(&server, &body)?;
    let charged_at = refund.charged_at()?;
    let named = refund.named()?;
    let rules = server.service.rules();
    let rule = find(&server, &rules, &named)?;
    let ask = Ask { rule: rule.get(), key: named.key.as_bytes(), cost: named.cost };
    server.service.refund(ask, charged_at).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn rules(server: Shared, headers: HeaderMap) -> Result<Response, Problem> {
    authorize(&server, &headers, Access::Ask)?;
    let rules = server.service.rules();
    let list: Vec<_> = rules.iter().map(clients::describe).collect();
    Ok(Json(json!({ "rules": list })).into_response())
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

async fn healthz() -> &'static str {
    "ok\n"
}

/// Ready until it is going. A reload that was refused is told, but takes nobody out of service: the
/// rules before it are in force. Neither does a Redis that is gone: every server would go at once.
async fn readyz(server: Shared) -> Response {
    let stopping = server.is_stopping();
    let status = if stopping { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let word = if stopping { "stopping" } else { "ready" };
    let engine = server.service.engine().state();
    let mut body = json!({
        "status": word, "reload_error": server.reload_error(), "engine": { "mode": engine.mode },
    });
    if let Some(owed) = engine.owed {
        body["engine"]["owed_clients"] = owed.into();
        body["engine"]["trouble"] = engine.trouble.into();
    }
    (status, Json(body)).into_response()
}

async fn metrics(server: Shared) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], server.metrics()).into_response()
}

/// The body of a request that may be made. One that is announced as too long is refused before any
/// of it is read. Its type must be said: a web page can't send JSON to another site unasked.
async fn read(server: &Server, request: Request, needed: Access) -> Result<Vec<u8>, Problem> {
    authorize(server, request.headers(), needed)?;
    server.service.metrics.http_requests.increment();
    let kind = request.headers().get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if !kind.get(..16).is_some_and(|kind| kind.eq_ignore_ascii_case(b"application/json")) {
        let detail = "expected Content-Type: application/json";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    }
    let most = server.config.max_body;
    let too_long = |detail| Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail);
    let announced = request.body().size_hint().lower();
    if announced > most as u64 {
        return Err(too_long(format!("{announced} bytes; at most {most}")));
    }
    let mut chunks = request.into_body().into_data_stream();
    let mut body = Vec::with_capacity(announced as usize);
    while let Some(chunk) = chunks.next().await {
        // The connection is gone.
        let chunk = chunk.map_err(|_| Problem::new(StatusCode::BAD_REQUEST, "no whole body"))?;
        if body.len() + chunk.len() > most {
            return Err(too_long(format!("more than {most} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Whether the request's token is good for it.
pub(super) fn authorize(
    server: &Server,
    headers: &HeaderMap,
    needed: Access,
) -> Result<(), Problem> {
    let tokens = server.tokens();
    let bearer = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let bearer = bearer
        .and_then(|value| value.split_at_checked(7))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
    let access = bearer.map_or_else(|| tokens.without(), |(_, token)| tokens.with(token));
    let refused = |status, detail: &str| Err(Problem::new(status, detail));
    match (access, bearer) {
        (access, _) if access >= needed => Ok(()),
        (Access::Nothing, None) => {
            refused(StatusCode::UNAUTHORIZED, "expected Authorization: Bearer TOKEN")
        }
        (Access::Nothing, Some(_)) => {
            server.service.metrics.failed_logins.increment();
            refused(StatusCode::UNAUTHORIZED, "invalid token")
        }
        _ => refused(StatusCode::FORBIDDEN, "this needs the admin token"),
    }
}

/// The body's JSON.
fn parse<'a, T: Deserialize<'a>>(server: &Server, body: &'a [u8]) -> Result<T, Problem> {
    let parsed = serde_json::from_slice::<Object<T>>(body);
    parsed.map(|object| object.0).map_err(|error| {
        server.service.metrics.malformed.increment();
        Problem::new(StatusCode::BAD_REQUEST, format!("JSON: {}", body::shown(&error)))
    })
}
