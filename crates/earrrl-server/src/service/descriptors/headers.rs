//! The headers that a response adds: to the client's response, and to the request that Envoy
//! forwards.

use earrrl::{Outcome, Quota};
use earrrl_tower::headers::{Available, current};
use smallvec::SmallVec;

use super::asked::AskedLimit;
use super::prepared::Descriptors;
use super::verdict::Verdicts;
use crate::config::envoy::Headers;
use crate::config::envoy::unit::Unit;
use crate::protobuf::HeaderValue;
use crate::protobuf::ratelimit::{Code, DescriptorStatus, RateLimitResponse};

/// The usual length of one policy in a header, in bytes.
const TYPICAL: usize = 48;

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
            response.raw_body = PROBLEM.into();
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

/// The response body of a denial, as RFC 9457 defines it, with the problem type that the draft on
/// `RateLimit` headers registers.
const PROBLEM: &[u8] = br#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests","status":429}"#;

/// Returns the status that restricts the client most: one that is over its limit, or else the one
/// with the least remaining quota.
fn tightest<'a>(statuses: &[&'a DescriptorStatus]) -> Option<&'a DescriptorStatus> {
    let limited = statuses.iter().copied();
    limited.min_by_key(|status| (std::cmp::Reverse(status.code), status.limit_remaining))
}

/// Returns the headers of draft-ietf-httpapi-ratelimit-headers-11.
fn draft_11(statuses: &[&DescriptorStatus], tightest: &DescriptorStatus) -> Vec<HeaderValue> {
    let Some(limit) = &tightest.current_limit else {
        return Vec::new();
    };
    let mut policies = String::with_capacity(TYPICAL * statuses.len());
    for limit in statuses
        .iter()
        .filter_map(|status| status.current_limit.as_ref())
    {
        if !policies.is_empty() {
            policies.push_str(", ");
        }
        let window = Unit::from_number(limit.unit).map_or(1, |unit| unit.duration().as_secs());
        let quota = Quota {
            units: limit.requests_per_unit.into(),
            window: Some(window),
            is_concurrent: false,
        };
        // Writing to a string in memory does not fail.
        let _ = current::write_policy(&mut policies, shown_name(&limit.name), quota);
    }
    let mut limits = String::with_capacity(TYPICAL);
    let units = tightest.limit_remaining.into();
    let available = Available {
        units,
        seconds: Some(seconds(tightest)),
    };
    let _ = current::write_limit(&mut limits, shown_name(&limit.name), available);
    vec![
        header("ratelimit-policy", policies),
        header("ratelimit", limits),
    ]
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
