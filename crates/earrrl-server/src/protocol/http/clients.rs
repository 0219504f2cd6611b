//! The routes for one client under one rule, which explain or reset its state, and the list of
//! rules.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode;
use serde_json::{Value, json};

use super::request::{ServerState, authorize};
use crate::config::access::Scope;
use crate::config::attribute::KeyPart;
use crate::protocol::response::Problem;
use crate::protocol::response::{self, AnswerStatus};
use crate::service::ask::{Ask, Manner};
use crate::service::rule::ActiveRule;
use earrrl::Mode;

/// `GET /v1/clients/{rule}/{key}`: returns the decision that a request of this client would get
/// now, without charging it.
pub(super) async fn explain(
    State(server): ServerState,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    let access = authorize(&server, &headers, Scope::Peek)?;
    let (name, key) = client(&uri)?;
    let rules = server.service.rules();
    let rule = rules.named(name.as_bytes())?;
    access.permit_rule(&rule.name)?;
    let manner = Manner {
        mode: Mode::Peek,
        available: true,
    };
    let answer = server
        .service
        .ask(&Ask::new(rule, &key, None), manner)
        .await?;
    Ok(response::respond(
        &answer,
        false,
        AnswerStatus::Ok,
        server.config.x_ratelimit_headers,
    ))
}

/// `DELETE /v1/clients/{rule}/{key}`: deletes the stored state of this client under the rule.
pub(super) async fn reset(
    State(server): ServerState,
    headers: HeaderMap,
    uri: Uri,
) -> Result<StatusCode, Problem> {
    let access = authorize(&server, &headers, Scope::Reset)?;
    let (name, key) = client(&uri)?;
    let rules = server.service.rules();
    let rule = rules.named(name.as_bytes())?;
    access.permit_rule(&rule.name)?;
    server.service.reset(&Ask::new(rule, &key, None)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the rule's name and the client's key from a path. The key may be any bytes, so it is
/// percent-decoded without a check for UTF-8.
fn client(uri: &Uri) -> Result<(&str, Vec<u8>), Problem> {
    let rest = uri
        .path()
        .strip_prefix("/v1/clients/")
        .and_then(|rest| rest.split_once('/'));
    match rest {
        Some((rule, key)) => Ok((rule, percent_decode(key.as_bytes()).collect())),
        None => Err(Problem::new(
            StatusCode::NOT_FOUND,
            "expected /v1/clients/{rule}/{key}",
        )),
    }
}

/// `GET /v1/rules`: returns the list of the rules that the request's token permits.
pub(super) async fn rules(server: ServerState, headers: HeaderMap) -> Result<Response, Problem> {
    let access = authorize(&server, &headers, Scope::Peek)?;
    let rules = server.service.rules();
    let permitted = rules
        .iter()
        .filter(|rule| access.permit_rule(&rule.name).is_ok());
    let list: Vec<_> = permitted.map(describe).collect();
    Ok(Json(json!({ "rules": list })).into_response())
}

/// Returns a rule as an element of the list of rules.
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
