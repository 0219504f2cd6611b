//! One client under one rule: explained, or forgotten; and what a rule is.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode;
use serde_json::{Value, json};

use super::request::{Shared, authorize};
use crate::config::access::Access;
use crate::config::attribute::KeyPart;
use crate::protocol::response::problem::Problem;
use crate::protocol::response::{self, AnswerStatus};
use crate::service::ask::{Ask, Manner};
use crate::service::error::AskError;
use crate::service::rules::ActiveRule;
use earrrl::Mode;

/// `GET /v1/clients/{rule}/{key}`: the answer that a request would get now. Nothing is stored.
pub(super) async fn explain(
    State(server): Shared,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    authorize(&server, &headers, Access::Ask)?;
    let (name, key) = client(&uri)?;
    let rules = server.service.rules();
    let rule = rules.get(name.as_bytes()).ok_or(AskError::UnknownRule)?;
    let manner = Manner { mode: Mode::Peek, available: true };
    let answer = server.service.ask(&Ask::new(rule, &key, None), manner).await?;
    Ok(response::respond(&answer, false, AnswerStatus::Ok, server.config.x_ratelimit_headers))
}

/// `DELETE /v1/clients/{rule}/{key}`.
pub(super) async fn reset(
    State(server): Shared,
    headers: HeaderMap,
    uri: Uri,
) -> Result<StatusCode, Problem> {
    authorize(&server, &headers, Access::Change)?;
    let (name, key) = client(&uri)?;
    let rules = server.service.rules();
    let rule = rules.get(name.as_bytes()).ok_or(AskError::UnknownRule)?;
    server.service.reset(&Ask::new(rule, &key, None)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the rule and the key of a path. The key is any bytes, so it is not taken for UTF-8.
fn client(uri: &Uri) -> Result<(&str, Vec<u8>), Problem> {
    let rest = uri.path().strip_prefix("/v1/clients/").and_then(|rest| rest.split_once('/'));
    match rest {
        Some((rule, key)) => Ok((rule, percent_decode(key.as_bytes()).collect())),
        None => Err(Problem::new(StatusCode::NOT_FOUND, "expected /v1/clients/{rule}/{key}")),
    }
}

/// `GET /v1/rules`.
pub(super) async fn rules(server: Shared, headers: HeaderMap) -> Result<Response, Problem> {
    authorize(&server, &headers, Access::Ask)?;
    let rules = server.service.rules();
    let list: Vec<_> = rules.iter().map(describe).collect();
    Ok(Json(json!({ "rules": list })).into_response())
}

/// Returns the JSON of a rule in lists.
fn describe(rule: &ActiveRule) -> Value {
    let part = |part: &KeyPart| match part {
        KeyPart::Attribute(name) => name.clone(),
        KeyPart::Literal(text) => format!("'{text}'"),
    };
    json!({
        "name": rule.name,
        "limit": rule.own.rule.to_string(),
        "action": rule.action_name(),
        "key": rule.key_parts().iter().map(part).collect::<Vec<_>>(),
        "quota": rule.own.quota.units,
        "window": rule.own.quota.window,
    })
}
