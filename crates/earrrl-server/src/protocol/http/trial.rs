//! The routes for a limit that is tried beside the limit in force.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use earrrl::Rule;
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::JsonText;
use super::request::{ServerState, authorize, parse, read};
use super::top::{invalid, named_rule, permitted_rule, seconds_since_epoch};
use crate::config::access::Scope;
use crate::protocol::response::problem::Problem;
use crate::service::trials::TrialReport;

/// The body of a request that begins a trial.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TrialBody<'a> {
    #[serde(borrow)]
    limit: JsonText<'a>,
}

/// `PUT /v1/trial?rule=NAME`: begins the trial of a limit.
pub(super) async fn begin(
    State(server): ServerState,
    request: Request,
) -> Result<Json<Value>, Problem> {
    let uri = request.uri().clone();
    let (access, body) = read(&server, request, Scope::Admin).await?;
    let rule = named_rule(access, &uri)?;
    let TrialBody { limit } = parse(&server, &body)?;
    // A client that names no known rule is told so first, whatever limit it sends.
    server.service.rules().named(rule.as_bytes())?;
    let limit: Rule = limit
        .0
        .parse()
        .map_err(|error| invalid(&format!("limit: {error}")))?;
    Ok(Json(described(
        &rule,
        &server.service.begin_trial(&rule, limit)?,
    )))
}

/// `GET /v1/trial?rule=NAME`: returns the results of a trial.
pub(super) async fn results(
    State(server): ServerState,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Json<Value>, Problem> {
    let rule = permitted_rule(&server, &headers, &uri)?;
    let rules = server.service.rules();
    let known = rules.named(rule.as_bytes())?;
    let none = || {
        Problem::new(
            StatusCode::NOT_FOUND,
            "no limit is on trial beside this rule's",
        )
    };
    Ok(Json(described(
        &rule,
        &known.trial.report().ok_or_else(none)?,
    )))
}

/// `DELETE /v1/trial?rule=NAME`: ends a trial.
pub(super) async fn end(
    State(server): ServerState,
    headers: HeaderMap,
    uri: Uri,
) -> Result<StatusCode, Problem> {
    let access = authorize(&server, &headers, Scope::Admin)?;
    server.service.end_trial(&named_rule(access, &uri)?)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the results of a rule's trial as JSON.
pub(super) fn described(rule: &str, trial: &TrialReport) -> Value {
    json!({
        "rule": rule,
        "limit": trial.limit,
        "since": seconds_since_epoch(trial.since),
        "requests": trial.requests,
        "denied": trial.denied,
        "denied_in_force": trial.denied_in_force,
    })
}
