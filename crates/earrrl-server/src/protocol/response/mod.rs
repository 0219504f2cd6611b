//! Writes decisions as JSON and as HTTP responses.

mod headers;
pub(super) mod problem;

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use earrrl::{Cost, Decision, Outcome, Wait};
use earrrl_tower::headers::is_shown;
use earrrl_tower::problem::{CONTENT_TYPE, Kind, write_members as write_members_of, write_names};

use crate::protocol::seconds::SecondsText;
use crate::service::answer::Answer;
use crate::service::limit::PreparedLimit;
use crate::service::reserve::Reserved;

/// The initial capacity of a response's body, in bytes. Nearly all bodies are shorter.
const BODY_CAPACITY: usize = 512;

/// The HTTP status of a response that reports a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerStatus {
    /// Status 200 if the request is allowed, or else 429.
    ByVerdict,
    /// Status 200, even if the request is denied.
    Ok,
}

/// Returns the response to a check, a peek or a charge. `several` is true if the request may have
/// several charges; the response then also lists those that were over their limit.
pub(super) fn respond(
    answer: &Answer<'_>,
    several: bool,
    status: AnswerStatus,
    x_rate_limit: bool,
) -> Response {
    respond_with(answer, several, status, x_rate_limit, |_| ())
}

/// Returns the response to a reservation: the decision, the id and what was granted.
pub(super) fn respond_reserved(
    reserved: &Reserved<'_>,
    several: bool,
    x_rate_limit: bool,
) -> Response {
    let Reserved {
        answer,
        id,
        granted,
    } = reserved;
    respond_with(
        answer,
        several,
        AnswerStatus::ByVerdict,
        x_rate_limit,
        |body| {
            body.extend_from_slice(b",\"reservation\":");
            match id {
                Some(id) => body.extend_from_slice(format!("\"{id}\"").as_bytes()),
                None => body.extend_from_slice(b"null"),
            }
            let granted: Vec<String> = granted.iter().map(Cost::to_string).collect();
            let granted = match (several, granted.first()) {
                (false, Some(only)) => only.clone(),
                (false, None) => "null".to_owned(),
                (true, _) => format!("[{}]", granted.join(",")),
            };
            body.extend_from_slice(format!(",\"granted\":{granted}").as_bytes());
        },
    )
}

/// Returns the response to a commit: the figures after it, and true if it was a repeated one.
pub(super) fn respond_committed(answer: &Answer<'_>, repeated: bool) -> Response {
    respond_with(answer, false, AnswerStatus::Ok, false, |body| {
        body.extend_from_slice(format!(",\"repeated\":{repeated}").as_bytes());
    })
}

/// Returns a response with the members of a decision, and those that `more` appends.
fn respond_with(
    answer: &Answer<'_>,
    several: bool,
    status: AnswerStatus,
    x_rate_limit: bool,
    more: impl FnOnce(&mut Vec<u8>),
) -> Response {
    let denied = answer
        .decision
        .as_ref()
        .is_some_and(|decision| !decision.allowed);
    let refused = denied && status == AnswerStatus::ByVerdict;
    let mut body = Vec::with_capacity(BODY_CAPACITY);
    body.push(b'{');
    if refused {
        write_problem(answer, StatusCode::TOO_MANY_REQUESTS, &mut body);
    }
    write_members(answer, several, &mut body);
    more(&mut body);
    body.push(b'}');
    let mut response = Response::new(Body::from(body));
    let json = HeaderValue::from_static("application/json");
    let kind = if refused { CONTENT_TYPE } else { json };
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    headers::write(
        answer,
        refused,
        x_rate_limit,
        |_| true,
        response.headers_mut(),
    );
    if refused {
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    }
    response
}

/// The header with the outcome of a proxied request, such as `allow`, `deny` or `quarantine`.
pub(super) const ACTION: HeaderName = HeaderName::from_static("x-ratelimit-action");

/// The header with the number of seconds for which the proxy is to delay a request.
const DELAY: HeaderName = HeaderName::from_static("x-ratelimit-delay");

/// The response to a proxy's authorization request.
pub(super) type Verdict = axum::http::Response<Vec<u8>>;

/// Returns the response to a proxy's authorization request. If the proxied request is allowed, the
/// response has headers only; otherwise its body has the problem details. The `RateLimit` headers
/// list only rules that deny or delay, since the proxy passes these headers to its client.
pub(super) fn authorize(answer: &Answer<'_>, deny_status: StatusCode, older: bool) -> Verdict {
    let refused = answer
        .decision
        .as_ref()
        .is_some_and(|decision| !decision.allowed);
    let mut response = Verdict::default();
    if refused {
        let body = response.body_mut();
        body.reserve(BODY_CAPACITY);
        body.push(b'{');
        write_problem(answer, deny_status, body);
        write_members(answer, true, body);
        body.push(b'}');
        *response.status_mut() = deny_status;
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, CONTENT_TYPE);
    }
    let shown = |limit: &PreparedLimit| is_shown(limit.rule.action());
    headers::write(answer, refused, older, shown, response.headers_mut());
    let outcome = answer
        .decision
        .as_ref()
        .map_or(Outcome::Allow, |decision| decision.outcome);
    let action = HeaderValue::from_static(outcome.name());
    response.headers_mut().insert(ACTION, action);
    if let Some(delay) = delay(answer) {
        response.headers_mut().insert(DELAY, delay);
    }
    response
}

fn delay(answer: &Answer<'_>) -> Option<HeaderValue> {
    let delay = answer.decision.as_ref()?.delay;
    let mut text = Vec::new();
    write_seconds(delay, &mut text);
    HeaderValue::from_bytes(&text)
        .ok()
        .filter(|_| !delay.is_zero())
}

/// Appends the decision as a JSON object to `body`.
pub(super) fn write_object(answer: &Answer<'_>, several: bool, body: &mut Vec<u8>) {
    body.push(b'{');
    write_members(answer, several, body);
    body.push(b'}');
}

/// Appends the members that RFC 9457 defines for problem details, and a comma. The caller appends
/// the members of the decision as extensions.
fn write_problem(answer: &Answer<'_>, status: StatusCode, body: &mut Vec<u8>) {
    let deciding = answer.deciding();
    let kind = deciding.map_or(Kind::Blank, |charged| Kind::of(charged.limit.rule.limit()));
    let over = answer.over().map(|(_, rule)| &*rule.name);
    write_members_of(kind, status, over, body);
    body.push(b',');
}

fn write_members(answer: &Answer<'_>, several: bool, body: &mut Vec<u8>) {
    let Some(decision) = &answer.decision else {
        body.extend_from_slice(
            b"\"allowed\":true,\"action\":\"allow\",\"rule\":null,\"rate\":null,\"limit\":null,\
              \"remaining\":null,\"retry_after\":0,\"reset_after\":0,\"delay\":0,\"t0\":null",
        );
        return;
    };
    write_verdict(answer, decision, body);
    body.extend_from_slice(b",\"remaining\":");
    body.extend_from_slice(itoa::Buffer::new().format(decision.remaining).as_bytes());
    body.extend_from_slice(b",\"retry_after\":");
    match decision.retry_after {
        Wait::For(wait) => write_seconds(wait, body),
        Wait::Never => body.extend_from_slice(b"null"),
    }
    body.extend_from_slice(b",\"reset_after\":");
    write_seconds(decision.reset_after, body);
    body.extend_from_slice(b",\"delay\":");
    write_seconds(decision.delay, body);
    if several {
        write_places(answer, decision, body);
    }
    body.extend_from_slice(b",\"t0\":");
    write_seconds(Duration::from_nanos(decision.at.get()), body);
}

fn write_verdict(answer: &Answer<'_>, decision: &Decision, body: &mut Vec<u8>) {
    let outcome: Outcome = decision.outcome;
    body.extend_from_slice(b"\"allowed\":");
    body.extend_from_slice(if decision.allowed { b"true" } else { b"false" });
    body.extend_from_slice(b",\"action\":\"");
    body.extend_from_slice(outcome.name().as_bytes());
    body.extend_from_slice(b"\",\"rule\":");
    match answer.deciding() {
        Some(charged) => write_name(&charged.rule.name, body),
        None => body.extend_from_slice(b"null"),
    }
    body.extend_from_slice(b",\"rate\":");
    match decision.rate {
        Some(rate) => write_double(rate, body),
        None => body.extend_from_slice(b"null"),
    }
    body.extend_from_slice(b",\"limit\":");
    write_double(decision.limit, body);
}

/// Writes the members that are specific to requests with several charges: the index of the charge
/// that the decision's numbers belong to, and the rules and indexes of the charges that were over
/// their limit.
fn write_places(answer: &Answer<'_>, decision: &Decision, body: &mut Vec<u8>) {
    body.extend_from_slice(b",\"charge\":");
    body.extend_from_slice(itoa::Buffer::new().format(decision.rule).as_bytes());
    body.extend_from_slice(b",\"over\":");
    write_names(answer.over().map(|(_, rule)| &*rule.name), body);
    body.extend_from_slice(b",\"over_charges\":[");
    let mut separator: &[u8] = b"";
    for (place, _) in answer.over() {
        body.extend_from_slice(separator);
        body.extend_from_slice(itoa::Buffer::new().format(place).as_bytes());
        separator = b",";
    }
    body.push(b']');
}

/// Writes a rule's name or text as a JSON string. Neither can have a character that JSON escapes,
/// so such characters are dropped.
fn write_name(name: &str, body: &mut Vec<u8>) {
    body.push(b'"');
    body.extend(
        name.bytes()
            .filter(|byte| !matches!(byte, b'"' | b'\\' | ..b' ')),
    );
    body.push(b'"');
}

fn write_double(value: f64, body: &mut Vec<u8>) {
    if !value.is_finite() {
        return body.extend_from_slice(b"null");
    }
    let mut buffer = zmij::Buffer::new();
    let text = buffer.format_finite(value);
    body.extend_from_slice(text.strip_suffix(".0").unwrap_or(text).as_bytes());
}

fn write_seconds(duration: Duration, body: &mut Vec<u8>) {
    body.extend_from_slice(SecondsText::default().format(duration));
}
