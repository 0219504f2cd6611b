//! The routes of overrides that are set at run time: `/v1/overrides`, and `/v1/overrides/{rule}/{key}` for one client.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::request::{ServerState, parse, read};
use super::top::{invalid, listed, only, parameter};
use crate::config::access::{Access, Scope};
use crate::protocol::bearer::authorize;
use crate::protocol::response::Problem;
use crate::service::override_table::{OverrideKey, RunTimeOverride};

const PATH: &str = "/v1/overrides/";
/// The characters that are encoded in a part of a cursor.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');

/// The body of a request that sets an override.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OverrideBody {
    limit: String,
    /// The end in seconds since the Unix epoch. The clocks of some languages give a fraction, which is dropped.
    expires: Option<f64>,
}

/// `PUT /v1/overrides/{rule}/{key}`: sets the limit of a client, perhaps until an instant.
pub(super) async fn put(
    State(server): ServerState,
    uri: Uri,
    request: Request,
) -> Result<Json<Value>, Problem> {
    let (access, body) = read(&server, request, Scope::Overrides).await?;
    let id = permitted(&access, &uri)?;
    let OverrideBody { limit, expires } = parse(&server, &body)?;
    let expires = expires.map(|seconds| seconds as u64);
    let set = server.service.set_override(id, limit, expires, &access);
    Ok(Json(described((set.await?, true))))
}

/// `GET /v1/overrides/{rule}/{key}`: returns the override of a client.
pub(super) async fn get(
    State(server): ServerState,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Json<Value>, Problem> {
    let id = permitted(&authorize(&server, &headers, Scope::Overrides)?, &uri)?;
    let found = server.service.override_of(&id).ok_or_else(none)?;
    Ok(Json(described(found)))
}

/// `DELETE /v1/overrides/{rule}/{key}`: ends the override of a client.
pub(super) async fn delete(
    State(server): ServerState,
    headers: HeaderMap,
    uri: Uri,
) -> Result<StatusCode, Problem> {
    let id = permitted(&authorize(&server, &headers, Scope::Overrides)?, &uri)?;
    match server.service.remove_override(id).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(none()),
    }
}

/// `GET /v1/overrides?rule=NAME&limit=N&after=CURSOR`: returns the overrides, a bounded number at once.
pub(super) async fn list(
    State(server): ServerState,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Json<Value>, Problem> {
    let access = authorize(&server, &headers, Scope::Overrides)?;
    only(&uri, &["rule", "limit", "after"])?;
    let most = listed(&uri)?;
    let rule = parameter(&uri, "rule");
    if let Some(rule) = &rule {
        access.permit_rule(rule)?;
    }
    let after = parameter(&uri, "after");
    let after = after.map(|text| client(&text)).transpose()?;
    let wanted = |set: &RunTimeOverride| {
        rule.as_ref().is_none_or(|rule| *rule == set.rule) && access.permit_rule(&set.rule).is_ok()
    };
    let found = server.service.overrides(after.as_ref(), most, wanted);
    let last = found.last().filter(|_| found.len() == most);
    let next = last.map(|(set, _)| cursor(set));
    let found: Vec<_> = found.into_iter().map(described).collect();
    Ok(Json(json!({ "overrides": found, "next": next })))
}

/// Returns an override as JSON.
fn described((set, is_active): (RunTimeOverride, bool)) -> Value {
    let mut value = json!(set);
    value["active"] = is_active.into();
    value
}

/// Returns the client that a path names, if the access includes its rule.
fn permitted(access: &Access, uri: &Uri) -> Result<OverrideKey, Problem> {
    let id = client(uri.path().strip_prefix(PATH).unwrap_or_default())?;
    access.permit_rule(&id.0)?;
    Ok(id)
}

/// Reads `{rule}/{part}/{part}`, in which each part of the key is percent-encoded.
fn client(text: &str) -> Result<OverrideKey, Problem> {
    let decoded = |part: &str| {
        let text = percent_decode_str(part).decode_utf8();
        text.map(|text| text.into_owned())
            .map_err(|_| invalid("key: expected UTF-8"))
    };
    let mut parts = text.split('/').map(decoded);
    let rule = parts.next().unwrap_or_else(|| Ok(String::new()))?;
    Ok((rule, parts.collect::<Result<_, _>>()?))
}

/// Returns the text from which [`client`] reads the client of an override.
fn cursor(set: &RunTimeOverride) -> String {
    let parts = [&set.rule].into_iter().chain(&set.key);
    let parts = parts.map(|part| utf8_percent_encode(part, ENCODED).to_string());
    parts.collect::<Vec<_>>().join("/")
}

fn none() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "this client has no override")
}
