//! Writes decisions as JSON and as HTTP responses, with the `RateLimit` headers; errors as problem details (RFC 9457);
//! and durations in seconds.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use earrrl::{Action, Cost, Decision, EngineError, Outcome, Quota, Wait};
use earrrl_tower::headers::{current, is_shown, retry_after, x_rate_limit};
use earrrl_tower::problem::{CONTENT_TYPE, Kind, write_members as write_members_of, write_names};

use crate::service::answer::{Answer, Charged};
use crate::service::error::AskError;
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
    write_headers(
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
    write_headers(answer, refused, older, shown, response.headers_mut());
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
    write_remaining(answer, decision, body);
    write_wait("retry_after", decision.retry_after, body);
    if !decision.allowed {
        write_wait("earliest", decision.earliest(), body);
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

/// Writes what remains to the client: whole units, or with a unit that has a name, its millionths and that name.
fn write_remaining(answer: &Answer<'_>, decision: &Decision, body: &mut Vec<u8>) {
    body.extend_from_slice(b",\"remaining\":");
    let deciding = answer.deciding();
    match deciding.and_then(|one| Some((one, one.rule.unit.as_deref()?))) {
        Some((one, unit)) => {
            let left = Quota::left(one.limit.rule.limit(), decision);
            write_double((left * 1e6).round() / 1e6, body);
            body.extend_from_slice(b",\"unit\":");
            write_name(unit, body);
        }
        None => body.extend_from_slice(itoa::Buffer::new().format(decision.remaining).as_bytes()),
    }
}

fn write_wait(name: &str, wait: Wait, body: &mut Vec<u8>) {
    body.extend_from_slice(b",\"");
    body.extend_from_slice(name.as_bytes());
    body.extend_from_slice(b"\":");
    match wait {
        Wait::For(wait) => write_seconds(wait, body),
        Wait::Never => body.extend_from_slice(b"null"),
    }
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

/// Writes the headers `RateLimit-Policy` and `RateLimit`, with an item for each charged rule for
/// which `shown` returns true. In `RateLimit`, the item of the deciding rule comes first. Rules in
/// a dry run are left out if a rule that is enforced was charged too. Also writes `Retry-After` if
/// the request was `refused`, and the `X-RateLimit` headers if `older` is true.
fn write_headers(
    answer: &Answer<'_>,
    refused: bool,
    older: bool,
    shown: impl Fn(&PreparedLimit) -> bool,
    headers: &mut HeaderMap,
) {
    let Some(decision) = &answer.decision else {
        return;
    };
    let acts = |limit: &PreparedLimit| limit.rule.action() != Action::Observe;
    let some_act = answer.charged.iter().any(|one| acts(one.limit));
    let shown = |one: &&Charged<'_>| shown(one.limit) && (acts(one.limit) || !some_act);
    let others = (0..answer.charged.len()).filter(|place| *place != decision.rule);
    let items = std::iter::once(decision.rule)
        .chain(others)
        .filter_map(|place| {
            let one = answer.charged.get(place).filter(shown)?;
            Some((&*one.rule.name, one.limit.quota, one.available?))
        });
    let charged = answer.charged.iter().filter(shown);
    let policies = charged.map(|one| (&*one.rule.name, one.limit.quota));
    if let Some(policies) = current::policies(policies) {
        headers.insert(current::POLICY, policies);
    }
    let limits = items.clone().map(|(name, _, available)| (name, available));
    if let Some(limits) = current::limits(limits) {
        headers.insert(current::LIMIT, limits);
    }
    if let (true, Some(wait)) = (refused, retry_after(decision)) {
        headers.insert(header::RETRY_AFTER, wait);
    }
    if let (true, Some((_, quota, available))) = (older, items.clone().next()) {
        x_rate_limit(quota, available, headers);
    }
}

/// The status that is counted for a request whose client disconnected before the response; nginx
/// uses the same number.
pub(in crate::protocol) const GONE: u16 = 499;

/// An error response: its HTTP status, which also determines the title, and a text that describes
/// the error.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::protocol) struct Problem {
    pub(in crate::protocol) status: StatusCode,
    pub(in crate::protocol) detail: String,
}

impl Problem {
    pub(in crate::protocol) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
        }
    }

    /// Returns the error as a JSON object.
    pub(in crate::protocol) fn to_json(&self) -> Vec<u8> {
        let mut json = Vec::with_capacity(BODY_CAPACITY);
        json.push(b'{');
        write_members_of(Kind::Blank, self.status, [], &mut json);
        json.extend_from_slice(b",\"detail\":");
        // Writing to memory does not fail.
        let _ = serde_json::to_writer(&mut json, &self.detail);
        json.push(b'}');
        json
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let kind = [(header::CONTENT_TYPE, CONTENT_TYPE)];
        let mut response = (self.status, kind, self.to_json()).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

impl From<AskError> for Problem {
    fn from(error: AskError) -> Self {
        let status = match &error {
            AskError::UnknownRule(_) => StatusCode::NOT_FOUND,
            AskError::InlineRulesOff => StatusCode::FORBIDDEN,
            AskError::TooManyInlineRules { .. }
            | AskError::Engine(EngineError::OtherReservation(_)) => StatusCode::CONFLICT,
            AskError::Engine(EngineError::UnknownReservation(_)) => StatusCode::NOT_FOUND,
            AskError::NotConfigured
            | AskError::Engine(EngineError::Unavailable(_) | EngineError::Reservations { .. }) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            AskError::Invalid(_) | AskError::Engine(_) => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Self::new(status, error.to_string())
    }
}

/// A buffer for a duration's text in seconds, long enough for the longest duration.
#[derive(Debug, Default)]
pub(super) struct SecondsText([u8; 32]);

impl SecondsText {
    /// Returns the duration in seconds as decimal text, such as `12.3`.
    #[inline]
    pub(super) fn format(&mut self, duration: Duration) -> &[u8] {
        let mut integer = itoa::Buffer::new();
        let seconds = integer.format(duration.as_secs()).as_bytes();
        let point = seconds.len();
        self.0[..point].copy_from_slice(seconds);
        let nanos = duration.subsec_nanos();
        if nanos == 0 {
            return &self.0[..point];
        }
        // The leading digit 1 preserves the zeros that the fraction begins with. The decimal point
        // then replaces this digit.
        let fraction = integer.format(1_000_000_000 + nanos).as_bytes();
        let zeros = fraction
            .iter()
            .rev()
            .take_while(|&&digit| digit == b'0')
            .count();
        self.0[point..point + fraction.len()].copy_from_slice(fraction);
        self.0[point] = b'.';
        &self.0[..point + fraction.len() - zeros]
    }
}

#[cfg(test)]
mod seconds_tests {
    use super::*;

    #[test]
    fn seconds_are_exact_and_short() {
        for (duration, text) in [
            (Duration::ZERO, "0"),
            (Duration::from_nanos(1), "0.000000001"),
            (Duration::from_millis(12_300), "12.3"),
            (Duration::from_secs(60), "60"),
            (Duration::MAX, "18446744073709551615.999999999"),
        ] {
            assert_eq!(SecondsText::default().format(duration), text.as_bytes());
        }
    }
}
