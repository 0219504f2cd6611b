//! The response to a request of Envoy: a status for each descriptor, one verdict for the request, headers,
//! the body of a denial, and dynamic metadata.
//!
//! Statuses and headers have the figures of the limits that the client may know of; see
//! [`AskedLimit::is_shown`].

use axum::http::{HeaderName, HeaderValue as HttpHeaderValue, StatusCode};
use earrrl::{Outcome, Quota};
use earrrl_tower::headers::{Available, current};
use earrrl_tower::problem::{Kind as ProblemKind, write_members};
use serde_json::Value as Json;
use smallvec::SmallVec;

use super::asked::{AskedLimit, Hits, Source};
use super::counts::Became;
use super::prepared::{Descriptors, LimitKind};
use super::verdict::{LimitVerdict, Verdicts, whole_seconds};
use crate::config::envoy::Headers;
use crate::config::envoy::unit::Unit;
use crate::engine::Engine;
use crate::protobuf::ratelimit::{
    Code, DescriptorStatus, Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use crate::protobuf::value::Kind;
use crate::protobuf::{Duration as ProtoDuration, HeaderValue, ListValue, Struct, Value};
use crate::service::limit::places;
use crate::service::names::ENVOY;

type Object = serde_json::Map<String, Json>;

/// Returns the response to a request that could not be decided before its deadline.
pub(in crate::service) fn undecided(request: &RateLimitRequest, passes: bool) -> RateLimitResponse {
    // A refund is never denied.
    let denies = |descriptor: &RateLimitDescriptor| !passes && !descriptor.is_negative_hits;
    let status = |descriptor| DescriptorStatus {
        code: code(denies(descriptor)).into(),
        ..DescriptorStatus::default()
    };
    RateLimitResponse {
        overall_code: code(request.descriptors.iter().any(denies)).into(),
        statuses: request.descriptors.iter().map(status).collect(),
        ..RateLimitResponse::default()
    }
}

/// Returns the response to a request that has been decided.
pub(super) fn response(
    descriptors: &Descriptors,
    request: &RateLimitRequest,
    limits: &[AskedLimit<'_>],
    verdicts: &Verdicts,
) -> RateLimitResponse {
    let mut response = RateLimitResponse {
        overall_code: code(verdicts.over() && !descriptors.config.shadow_mode).into(),
        ..RateLimitResponse::default()
    };
    let nothing = DescriptorStatus {
        code: Code::Ok.into(),
        ..DescriptorStatus::default()
    };
    response.statuses = vec![nothing; request.descriptors.len()];
    let mut shown = SmallVec::<[bool; 8]>::from_elem(false, request.descriptors.len());
    for (asked, verdict) in limits.iter().zip(&verdicts.each) {
        let status = &mut response.statuses[asked.descriptor];
        // Envoy can make headers of statuses, so limits that clients must not learn of have no figures.
        if descriptors.config.shadow_mode || !asked.is_shown() {
            if verdict.enforced {
                status.code = Code::OverLimit.into();
            }
            continue;
        }
        // A status shows one limit, so if several limits apply to a descriptor, the tightest is
        // shown.
        let tighter = !std::mem::replace(&mut shown[asked.descriptor], true)
            || verdict.enforced
            || (status.code != i32::from(Code::OverLimit)
                && verdict.remaining < u64::from(status.limit_remaining));
        if tighter {
            *status = status_of(asked, verdict);
        }
    }
    add_headers(descriptors, limits, verdicts, &mut response);
    if descriptors.config.dynamic_metadata {
        response.dynamic_metadata = Some(metadata(request, limits, verdicts));
    }
    response
}

fn code(over: bool) -> Code {
    if over { Code::OverLimit } else { Code::Ok }
}

fn status_of(asked: &AskedLimit<'_>, verdict: &LimitVerdict) -> DescriptorStatus {
    let is_limited = !matches!(asked.kind, LimitKind::Unlimited);
    DescriptorStatus {
        code: code(verdict.enforced).into(),
        current_limit: is_limited.then(|| asked.reported().into_owned()),
        limit_remaining: u32::try_from(verdict.remaining).unwrap_or(u32::MAX),
        // Envoy cuts off fractions of a second.
        duration_until_reset: verdict.reset.map(|reset| ProtoDuration {
            seconds: i64::try_from(whole_seconds(reset)).unwrap_or(i64::MAX),
            nanos: 0,
        }),
    }
}

/// Adds the configured headers, and the body of a denial, to a response.
fn add_headers(
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
    let kind = limit.map_or(ProblemKind::QuotaExceeded, |limit| {
        ProblemKind::of(limit.rule.limit())
    });
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

/// Returns the metadata of a response: `{domain, descriptors: [{entries: ["key=value"]}],
/// hitsAddend?, metadata?}`.
fn metadata(request: &RateLimitRequest, limits: &[AskedLimit<'_>], verdicts: &Verdicts) -> Struct {
    let mut object = Object::new();
    object.insert("domain".into(), request.domain.as_str().into());
    let descriptors = request.descriptors.iter().map(|descriptor| {
        let entry = |entry: &Entry| Json::from(format!("{}={}", entry.key, entry.text()));
        let mut object = Object::new();
        object.insert(
            "entries".into(),
            descriptor.entries.iter().map(entry).collect(),
        );
        if let Some(hits) = &descriptor.hits_addend {
            object.insert("hitsAddend".into(), (*hits).into());
        }
        Json::Object(object)
    });
    object.insert("descriptors".into(), descriptors.collect());
    if request.hits_addend > 0 {
        object.insert("hitsAddend".into(), request.hits_addend.into());
    }
    let mut carried = Object::new();
    for (asked, verdict) in limits.iter().zip(&verdicts.each) {
        if let (Source::Tree(_, limit), false) = (&asked.source, verdict.enforced) {
            limit
                .metadata
                .iter()
                .for_each(|metadata| merge(&mut carried, metadata));
        }
    }
    if !carried.is_empty() {
        object.insert("metadata".into(), carried.into());
    }
    to_struct(&object)
}

/// Adds the entries of `from` to `into`. Existing values are kept; nested objects are merged.
fn merge(into: &mut Object, from: &Object) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (None, value) => {
                into.insert(key.clone(), value.clone());
            }
            (Some(Json::Object(known)), Json::Object(new)) => merge(known, new),
            _ => {}
        }
    }
}

/// Converts a JSON object to its protobuf form.
fn to_struct(object: &Object) -> Struct {
    let field = |(key, value): (&String, &Json)| (key.clone(), to_value(value));
    Struct {
        fields: object.iter().map(field).collect(),
    }
}

fn to_value(json: &Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(truth) => Kind::BoolValue(*truth),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Json::String(text) => Kind::StringValue(text.clone()),
        Json::Array(list) => Kind::ListValue(ListValue {
            values: list.iter().map(to_value).collect(),
        }),
        Json::Object(object) => Kind::StructValue(to_struct(object)),
    };
    Value { kind: Some(kind) }
}

/// Counts the outcomes of all limits in the metrics, and notes clients that are over or close to a
/// limit.
pub(super) fn count(
    descriptors: &Descriptors,
    engine: &Engine,
    request: &RateLimitRequest,
    limits: &[AskedLimit<'_>],
    verdicts: &Verdicts,
) {
    for ((asked, verdict), figures) in limits.iter().zip(&verdicts.each).zip(&verdicts.figures) {
        if descriptors.config.metrics {
            count_descriptor(descriptors, request, asked, verdict);
        }
        // A request that one limit denies is not charged under those that allow it.
        if !(verdict.over || !verdicts.over() || descriptors.config.drain_denied) {
            continue;
        }
        let (rule, outcomes, directory) = match &asked.source {
            Source::Rule(rule) => (&*rule.name, &*rule.outcomes, &rule.directory),
            Source::Tree(..) | Source::Request(_) => (
                ENVOY,
                &*descriptors.outcomes,
                &descriptors.records.directory,
            ),
        };
        outcomes.count(verdict.outcome);
        if verdict.outcome == Outcome::Observe {
            outcomes.log_observed(rule, &asked.key);
        }
        let (Some(limit), Hits::Charged(1..), Some(figures)) =
            (asked.counted(), asked.hits, figures)
        else {
            continue;
        };
        if verdict.over || figures.remaining < limit.named_below {
            let mut figures = *figures;
            figures.over = places(verdict.over);
            let client = engine.hash(&asked.key);
            directory.note(client, limit.rule.limit(), &figures, &asked.key);
        }
    }
}

/// Counts the hits of a descriptor under the metric names of envoyproxy/ratelimit.
fn count_descriptor(
    descriptors: &Descriptors,
    request: &RateLimitRequest,
    asked: &AskedLimit<'_>,
    verdict: &LimitVerdict,
) {
    let Hits::Charged(hits) = asked.hits else {
        return;
    };
    if matches!(asked.kind, LimitKind::Unlimited) {
        return;
    }
    if let Some(counts) = asked.counts(descriptors, request) {
        counts.count(Became {
            hits,
            over: verdict.over,
            shadow: asked.shadow_mode,
            limit: asked.reported().requests_per_unit.into(),
            remaining: verdict.remaining,
        });
    }
}
