//! The routes that show the clients with the highest rates, and the distribution of rates; those for one client under
//! one rule, which explain or reset its state; the list of rules; and the overrides that are set at run time.

use std::borrow::Cow;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use earrrl::internal::Name;
use earrrl::{Mode, Nanos, Outcome, Wait};
use percent_encoding::{
    AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_decode_str, utf8_percent_encode,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::check::{ServerState, parse, read};
use crate::config::access::{Access, Scope};
use crate::protocol::bearer::authorize;
use crate::protocol::response::{self, AnswerStatus, Problem};
use crate::server::Server;
use crate::service::ask::{Ask, Manner};
use crate::service::attributes::shown;
use crate::service::override_table::{OverrideKey, RunTimeOverride};
use crate::service::reports::{MAX_TOP, SurveyReport, SurveyedClient};
use crate::service::rule::ActiveRule;

/// The number of clients that are listed unless the request names another.
const USUAL: usize = 100;

/// `GET /v1/top?rule=NAME&limit=N`: returns the clients with the highest rates.
pub(super) async fn top(
    State(server): ServerState,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Json<Value>, Problem> {
    let rule = permitted_rule(&server, &headers, &uri)?;
    only(&uri, &["rule", "limit"])?;
    let count = listed(&uri)?;
    let report = server.service.report(&rule).await?;
    let clients: Vec<_> = report.clients.iter().take(count).map(client).collect();
    Ok(Json(json!({
        "rule": rule,
        "at": seconds_since_epoch(report.at),
        "names_are_keys": server.config.names.hmac_key.is_none(),
        "clients": clients,
    })))
}

/// `GET /v1/rates?rule=NAME&above=X`: returns the distribution of clients' rates, and how many
/// clients and which share of requests are above a rate.
pub(super) async fn rates(
    State(server): ServerState,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Json<Value>, Problem> {
    let rule = permitted_rule(&server, &headers, &uri)?;
    only(&uri, &["rule", "above"])?;
    let above = number(&uri, "above")?;
    let report = server.service.report(&rule).await?;
    let rules = server.service.rules();
    // There is no rule of the clients of Envoy's limits, each of which has its own.
    let limit = rules
        .get(rule.as_bytes())
        .map(|known| known.own.rule.limit().per_second());
    let mut body = distribution(&rule, limit, &report);
    if let Some(above) = above {
        let above = report.rates.above(above);
        body["above"] =
            json!({ "rate": above.rate, "clients": above.clients, "share": above.share });
    }
    Ok(Json(body))
}

/// Returns the distribution of rates as JSON.
pub(super) fn distribution(rule: &str, limit: Option<f64>, report: &SurveyReport) -> Value {
    let rates = &report.rates;
    let bucket = |one: earrrl::internal::RateBucket| json!({ "from": one.from, "to": one.to, "clients": one.clients, "rate": one.rate });
    json!({
        "rule": rule,
        "at": seconds_since_epoch(report.at),
        "limit": limit,
        "clients": rates.clients(),
        "rate": rates.total(),
        "buckets": rates.buckets().map(bucket).collect::<Vec<_>>(),
    })
}

/// Returns a client as JSON. A key that is not UTF-8 is in `key_b64`, and a client without a name
/// has only its fingerprint and its figures.
pub(super) fn client(reported: &SurveyedClient) -> Value {
    let SurveyedClient { figures, name } = reported;
    let wait = match figures.retry_after {
        Wait::For(wait) => json!(wait.as_secs_f64()),
        Wait::Never => Value::Null,
    };
    let denied =
        |at: fn(&Name) -> Option<Nanos>| name.as_ref().and_then(at).map(seconds_since_epoch);
    let mut client = json!({
        "key": null,
        "fingerprint": format!("{:010x}", figures.fingerprint),
        "rate": figures.rate,
        "usage": figures.usage,
        "limit": figures.limit,
        "remaining": figures.remaining,
        "retry_after": wait,
        "reset_after": figures.reset_after.as_secs_f64(),
        "key_is_cut": name.as_ref().is_some_and(|name| name.is_cut),
        "allowed": name.as_ref().map_or(0, |name| name.allowed),
        "denied": name.as_ref().map_or(0, |name| name.denied),
        "first_seen": name.as_ref().map(|name| seconds_since_epoch(name.first_seen)),
        "first_denied": denied(|name| name.first_denied),
        "last_denied": denied(|name| name.last_denied),
    });
    if let Some(name) = name {
        insert_key(&mut client, &name.name);
    }
    client
}

/// Sets `key`, or `key_b64` if the key is not UTF-8.
pub(super) fn insert_key(client: &mut Value, key: &[u8]) {
    match std::str::from_utf8(key) {
        Ok(key) => client["key"] = key.into(),
        Err(_) => client["key_b64"] = STANDARD.encode(key).into(),
    }
}

pub(super) fn seconds_since_epoch(at: Nanos) -> f64 {
    Duration::from_nanos(at.get()).as_secs_f64()
}

/// Returns the rule that a request names, if the request's token shows the clients of that rule.
pub(super) fn permitted_rule(
    server: &Server,
    headers: &HeaderMap,
    uri: &Uri,
) -> Result<String, Problem> {
    named_rule(authorize(server, headers, Scope::Top)?, uri)
}

/// Returns the rule that a request names, if its token has access to that rule.
pub(super) fn named_rule(access: Access, uri: &Uri) -> Result<String, Problem> {
    let rule = parameter(uri, "rule").ok_or_else(|| invalid("rule: expected ?rule=NAME"))?;
    access.permit_rule(&rule)?;
    Ok(rule.into_owned())
}

/// Returns the number of entries that a request wants listed.
pub(super) fn listed(uri: &Uri) -> Result<usize, Problem> {
    let count = number(uri, "limit")?.unwrap_or(USUAL as f64);
    if !(1.0..=MAX_TOP as f64).contains(&count) || count.fract() != 0.0 {
        let why = format!("limit: {count} is not a whole number from 1 to {MAX_TOP}");
        return Err(invalid(&why));
    }
    Ok(count as usize)
}

/// Returns an error if the query has a parameter that is not in the list, for example a misspelt one.
pub(super) fn only(uri: &Uri, known: &[&str]) -> Result<(), Problem> {
    let pairs = uri.query().into_iter().flat_map(|query| query.split('&'));
    let mut names = pairs
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').map_or(pair, |(name, _)| name));
    match names.find(|name| !known.contains(name)) {
        Some(name) => Err(invalid(&format!(
            "{}: expected {}",
            shown(name),
            known.join(" or ")
        ))),
        None => Ok(()),
    }
}

/// Returns a parameter of the query that is a number.
fn number(uri: &Uri, name: &str) -> Result<Option<f64>, Problem> {
    let Some(text) = parameter(uri, name) else {
        return Ok(None);
    };
    let number = text
        .parse()
        .ok()
        .filter(|number: &f64| number.is_finite() && *number >= 0.0);
    let wrong = || {
        invalid(&format!(
            "{name}: `{}` is not a number from 0",
            shown(&text)
        ))
    };
    number.map(Some).ok_or_else(wrong)
}

/// Returns a parameter of the query.
pub(super) fn parameter<'a>(uri: &'a Uri, name: &str) -> Option<Cow<'a, str>> {
    let pairs = uri
        .query()?
        .split('&')
        .filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.into_iter().find(|(key, _)| *key == name)?;
    Some(percent_decode_str(value).decode_utf8_lossy())
}

pub(super) fn invalid(detail: &str) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
}

/// `GET /v1/clients/{rule}/{key}`: returns the decision that a request of this client would get
/// now, without charging it.
pub(super) async fn explain(
    State(server): ServerState,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    let access = authorize(&server, &headers, Scope::Peek)?;
    let (name, key) = named_client(&uri)?;
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
    let (name, key) = named_client(&uri)?;
    let rules = server.service.rules();
    let rule = rules.named(name.as_bytes())?;
    access.permit_rule(&rule.name)?;
    server.service.reset(&Ask::new(rule, &key, None)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the rule's name and the client's key from a path. The key may be any bytes, so it is
/// percent-decoded without a check for UTF-8.
fn named_client(uri: &Uri) -> Result<(&str, Vec<u8>), Problem> {
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
    let allowed = rule.outcomes.get(Outcome::Allow);
    json!({
        "name": rule.name,
        "group": rule.group,
        "limit": rule.own.rule.to_string(),
        "unit": rule.unit.as_deref(),
        "action": rule.action_name(),
        "key": rule.config.key.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "quota": rule.own.quota.units,
        "window": rule.own.quota.window,
        "allowed": allowed,
        "denied": rule.outcomes.total() - allowed,
    })
}

const OVERRIDES: &str = "/v1/overrides/";
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
pub(super) async fn put_override(
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
pub(super) async fn show_override(
    State(server): ServerState,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Json<Value>, Problem> {
    let id = permitted(&authorize(&server, &headers, Scope::Overrides)?, &uri)?;
    let found = server.service.override_of(&id).ok_or_else(no_override)?;
    Ok(Json(described(found)))
}

/// `DELETE /v1/overrides/{rule}/{key}`: ends the override of a client.
pub(super) async fn delete_override(
    State(server): ServerState,
    headers: HeaderMap,
    uri: Uri,
) -> Result<StatusCode, Problem> {
    let id = permitted(&authorize(&server, &headers, Scope::Overrides)?, &uri)?;
    match server.service.remove_override(id).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(no_override()),
    }
}

/// `GET /v1/overrides?rule=NAME&limit=N&after=CURSOR`: returns the overrides, a bounded number at once.
pub(super) async fn list_overrides(
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
    let after = after.map(|text| override_key(&text)).transpose()?;
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
    let id = override_key(uri.path().strip_prefix(OVERRIDES).unwrap_or_default())?;
    access.permit_rule(&id.0)?;
    Ok(id)
}

/// Reads `{rule}/{part}/{part}`, in which each part of the key is percent-encoded.
fn override_key(text: &str) -> Result<OverrideKey, Problem> {
    let decoded = |part: &str| {
        let text = percent_decode_str(part).decode_utf8();
        text.map(|text| text.into_owned())
            .map_err(|_| invalid("key: expected UTF-8"))
    };
    let mut parts = text.split('/').map(decoded);
    let rule = parts.next().unwrap_or_else(|| Ok(String::new()))?;
    Ok((rule, parts.collect::<Result<_, _>>()?))
}

/// Returns the text from which [`override_key`] reads the client of an override.
fn cursor(set: &RunTimeOverride) -> String {
    let parts = [&set.rule].into_iter().chain(&set.key);
    let parts = parts.map(|part| utf8_percent_encode(part, ENCODED).to_string());
    parts.collect::<Vec<_>>().join("/")
}

fn no_override() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "this client has no override")
}
