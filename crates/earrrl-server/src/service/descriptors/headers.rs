//! The headers that a response adds: to the client's response, and to the request that Envoy
//! forwards.

use axum::http::{HeaderName, HeaderValue as HttpHeaderValue, StatusCode};
use earrrl::{Outcome, Quota};
use earrrl_tower::headers::{Available, current};
use earrrl_tower::problem::{Kind, write_members};
use smallvec::SmallVec;

use super::asked::AskedLimit;
use super::prepared::Descriptors;
use super::verdict::Verdicts;
use crate::config::envoy::Headers;
use crate::config::envoy::unit::Unit;
use crate::protobuf::HeaderValue;
use crate::protobuf::ratelimit::{Code, DescriptorStatus, RateLimitResponse};

/// Adds the configured headers, and the body of a denial, to a response.
pub(super) fn add(
    descriptors: &Descriptors,
    limits: &[AskedLimit<'_>],
    verdicts: &Verdicts,
    response: &mut RateLimitResponse,
) {
    let is_denied = response.overall_code == i32::from(Code::OverLimit);
    // A quota that is used up says nothing on a request that passes under another one.
    let says = |status: &&DescriptorStatus| {
        status.current_limit.is_some() && (is_denied || status.code == i32::from(Code::Ok))
    };
    let shown: SmallVec<[&DescriptorStatus; 2]> = response.statuses.iter().filter(says).collect();
    let mut to_client = match (descriptors.config.headers, tightest(&shown)) {
        (Headers::Draft11, Some(status)) => draft_11(&shown, status),
        (Headers::Peer, Some(status)) => peer(status),
        _ => Vec::new(),
    };
    if is_denied {
        if let Some(wait) = verdicts.retry_after() {
            to_client.push(header("retry-after", wait.to_string()));
        }
        if descriptors.config.problem_body {
            to_client.push(header("content-type", "application/problem+json".into()));
            response.raw_body = problem(limits, verdicts);
        }
    }
    response.response_headers_to_add = to_client;
    let flagged = limits
        .iter()
        .zip(&verdicts.each)
        .map(|(_, verdict)| verdict.outcome);
    let mut flagged = flagged.filter(|o| matches!(o, Outcome::Quarantine | Outcome::ShadowBan));
    if let (Some(outcome), false) = (flagged.next(), verdicts.over()) {
        response
            .request_headers_to_add
            .push(header("x-earrrl-action", outcome.name().into()));
    }
}

/// Returns the body of a denial, in the form of the problems that clients of the other ports get.
fn problem(limits: &[AskedLimit<'_>], verdicts: &Verdicts) -> Vec<u8> {
    let denying = limits.iter().zip(&verdicts.each);
    let denying: SmallVec<[&AskedLimit<'_>; 2]> = denying
        .filter(|(_, verdict)| verdict.enforced)
        .map(|(asked, _)| asked)
        .collect();
    let limit = denying.iter().find_map(|asked| asked.counted());
    let kind = limit.map_or(Kind::QuotaExceeded, |limit| Kind::of(limit.rule.limit()));
    let reported: Vec<_> = denying.iter().map(|asked| asked.reported()).collect();
    let names = reported.iter().map(|limit| shown_name(&limit.name));
    let mut body = vec![b'{'];
    write_members(kind, StatusCode::TOO_MANY_REQUESTS, names, &mut body);
    body.push(b'}');
    body
}

/// Returns the status that restricts the client most: one that is over its limit, or else the one
/// with the least remaining quota.
fn tightest<'a>(statuses: &[&'a DescriptorStatus]) -> Option<&'a DescriptorStatus> {
    let limited = statuses.iter().copied();
    limited.min_by_key(|status| (std::cmp::Reverse(status.code), status.limit_remaining))
}

/// Returns the headers of draft-ietf-httpapi-ratelimit-headers-11.
fn draft_11(statuses: &[&DescriptorStatus], tightest: &DescriptorStatus) -> Vec<HeaderValue> {
    let policies = statuses
        .iter()
        .filter_map(|status| status.current_limit.as_ref());
    let policies = current::policies(policies.map(|limit| {
        let window = Unit::from_number(limit.unit).map_or(1, |unit| unit.duration().as_secs());
        let quota = Quota {
            units: limit.requests_per_unit.into(),
            window: Some(window),
            is_concurrent: false,
        };
        (shown_name(&limit.name), quota)
    }));
    let available = Available {
        units: tightest.limit_remaining.into(),
        seconds: Some(seconds(tightest)),
    };
    let limit = tightest.current_limit.iter();
    let limits = current::limits(limit.map(|limit| (shown_name(&limit.name), available)));
    let headers = [(current::POLICY, policies), (current::LIMIT, limits)];
    let text = |(name, value): (HeaderName, Option<HttpHeaderValue>)| {
        Some(header(name.as_str(), value?.to_str().ok()?.to_owned()))
    };
    headers.into_iter().filter_map(text).collect()
}

/// Returns the limit's name, or `default` if a header cannot show it.
fn shown_name(name: &str) -> &str {
    if name.contains(|c| matches!(c, ' '..='~')) {
        name
    } else {
        "default"
    }
}

/// Returns the headers under the names that envoyproxy/ratelimit uses.
fn peer(tightest: &DescriptorStatus) -> Vec<HeaderValue> {
    let limit = tightest
        .current_limit
        .as_ref()
        .map_or(0, |limit| limit.requests_per_unit);
    vec![
        header("ratelimit-limit", limit.to_string()),
        header("ratelimit-remaining", tightest.limit_remaining.to_string()),
        header("ratelimit-reset", seconds(tightest).to_string()),
    ]
}

fn seconds(status: &DescriptorStatus) -> u64 {
    let reset = status.duration_until_reset.as_ref();
    reset.map_or(0, |duration| duration.seconds.unsigned_abs())
}

fn header(key: &str, value: String) -> HeaderValue {
    HeaderValue {
        key: key.into(),
        value,
        ..HeaderValue::default()
    }
}
