//! The response to a request of Envoy: a status for each descriptor, one verdict for the request, headers,
//! the body of a denial, and dynamic metadata.
//!
//! Statuses and headers have the figures of the limits that the client may know of; see
//! [`AskedLimit::is_shown`].

use std::borrow::Cow;
use std::sync::Arc;

use axum::http::{HeaderName, HeaderValue as HttpHeaderValue, StatusCode};
use earrrl::{Outcome, Quota};
use earrrl_tower::headers::{Available, current};
use earrrl_tower::problem::{Kind as ProblemKind, write_members};
use serde_json::Value as Json;
use smallvec::SmallVec;

use super::asked::{AskedLimit, Source};
use super::verdict::{Met, retry_after};
use crate::config::envoy::Headers;
use crate::config::envoy::file::level_name;
use crate::protobuf::json::to_struct;
use crate::protobuf::ratelimit::Unit;
use crate::protobuf::ratelimit::{
    Code, DescriptorStatus, Entry, RateLimit, RateLimitDescriptor, RateLimitRequest,
    RateLimitResponse,
};
use crate::protobuf::{Duration as ProtoDuration, HeaderValue, Struct};
use crate::service::descriptor_counts::{Became, DescriptorCounts};
use crate::service::descriptor_limits::Descriptors;

type Object = serde_json::Map<String, Json>;

/// Returns the response to a request that could not be decided before its deadline.
pub(super) fn undecided(request: &RateLimitRequest, passes: bool) -> RateLimitResponse {
    // A refund is never denied.
    let denies = |descriptor: &RateLimitDescriptor| !passes && !descriptor.is_negative_hits;
    let status = |descriptor| status(denies(descriptor));
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
    met: &[Met<'_, '_>],
    over: bool,
) -> RateLimitResponse {
    let is_denied = over && !descriptors.config.shadow_mode;
    let mut response = RateLimitResponse {
        overall_code: code(is_denied).into(),
        statuses: request.descriptors.iter().map(|_| status(false)).collect(),
        ..RateLimitResponse::default()
    };
    // Envoy can make headers of statuses, so limits that clients must not learn of have no figures.
    let is_shown = |asked: &AskedLimit<'_>| !descriptors.config.shadow_mode && asked.is_shown();
    for one in met.iter().filter(|one| one.verdict.denies()) {
        response.statuses[one.asked.descriptor] = status(true);
    }
    let mut each: SmallVec<[&Met<'_, '_>; 2]> =
        met.iter().filter(|one| is_shown(one.asked)).collect();
    each.sort_by_key(|one| one.verdict.tightness());
    // A status shows one limit, so if several limits apply to a descriptor, the tightest is shown.
    for one in each.iter().rev() {
        response.statuses[one.asked.descriptor] = full_status(one);
    }
    // A quota that is used up says nothing on a request that passes under another one.
    each.retain(|one| one.asked.is_limited() && (is_denied || !one.verdict.denies()));
    let mut to_client = match descriptors.config.headers {
        Headers::Draft11 => draft_11(&each),
        Headers::Peer => each
            .first()
            .map(|one| peer_headers(one))
            .unwrap_or_default(),
        Headers::Off => Vec::new(),
    };
    if is_denied {
        if let Some(wait) = retry_after(met) {
            to_client.push(header("retry-after", wait.to_string()));
        }
        if descriptors.config.problem_body {
            to_client.push(header("content-type", "application/problem+json".into()));
            response.raw_body = problem(met);
        }
    }
    response.response_headers_to_add = to_client;
    let mut outcomes = met.iter().map(|one| one.verdict.outcome);
    let flagged = outcomes.find(|o| matches!(o, Outcome::Quarantine | Outcome::ShadowBan));
    if let (Some(outcome), false) = (flagged, over) {
        response
            .request_headers_to_add
            .push(header("x-earrrl-action", outcome.name().into()));
    }
    if descriptors.config.dynamic_metadata {
        response.dynamic_metadata = Some(metadata(request, met));
    }
    response
}

fn code(over: bool) -> Code {
    if over { Code::OverLimit } else { Code::Ok }
}

/// Returns a status without figures.
fn status(over: bool) -> DescriptorStatus {
    DescriptorStatus {
        code: code(over).into(),
        ..DescriptorStatus::default()
    }
}

/// Returns the status with the figures of a limit that clients may learn of.
fn full_status(Met { asked, verdict, .. }: &Met<'_, '_>) -> DescriptorStatus {
    let limit = asked.reported();
    DescriptorStatus {
        current_limit: asked.is_limited().then(|| limit.into_owned()),
        limit_remaining: u32::try_from(verdict.available.units).unwrap_or(u32::MAX),
        // Envoy cuts off fractions of a second.
        duration_until_reset: verdict.reset.map(|reset| ProtoDuration {
            seconds: i64::try_from(reset).unwrap_or(i64::MAX),
            nanos: 0,
        }),
        ..status(verdict.denies())
    }
}

/// Returns the headers under the names that envoyproxy/ratelimit uses.
fn peer_headers(Met { asked, verdict, .. }: &Met<'_, '_>) -> Vec<HeaderValue> {
    [
        ("limit", asked.reported().requests_per_unit.into()),
        ("remaining", verdict.available.units),
        ("reset", verdict.reset.unwrap_or_default()),
    ]
    .map(|(name, value)| header(&format!("ratelimit-{name}"), value.to_string()))
    .into()
}

/// Returns the headers of draft-ietf-httpapi-ratelimit-headers-11, with the tightest limit first.
fn draft_11(shown: &[&Met<'_, '_>]) -> Vec<HeaderValue> {
    let mut items: SmallVec<[(Cow<'_, RateLimit>, Quota, Available); 2]> = SmallVec::new();
    for (
        index,
        Met {
            asked,
            place,
            verdict,
            ..
        },
    ) in shown.iter().enumerate()
    {
        if place.is_some() && shown[..index].iter().any(|one| one.place == *place) {
            continue;
        }
        let limit = asked.reported();
        let window = Unit::from_number(limit.unit).map_or(1, |unit| unit.duration().as_secs());
        let quota = match (&asked.source, asked.ask.limit) {
            (Source::Tree(_) | Source::Rule(_), Some(limit)) => limit.quota,
            _ => Quota {
                units: limit.requests_per_unit.into(),
                window: Some(window),
                is_concurrent: false,
            },
        };
        items.push((limit, quota, verdict.available));
    }
    let policies = items
        .iter()
        .map(|(limit, quota, _)| (shown_name(&limit.name), *quota));
    let limits = items
        .iter()
        .map(|(limit, _, available)| (shown_name(&limit.name), *available));
    let text = |(name, value): (HeaderName, Option<HttpHeaderValue>)| {
        Some(header(name.as_str(), value?.to_str().ok()?.to_owned()))
    };
    [
        (current::POLICY, current::policies(policies)),
        (current::LIMIT, current::limits(limits)),
    ]
    .into_iter()
    .filter_map(text)
    .collect()
}

impl Descriptors {
    /// Counts the hits of each descriptor under the metric names of envoyproxy/ratelimit, if the configuration
    /// enables them.
    pub(super) fn count(&self, request: &RateLimitRequest, met: &[Met<'_, '_>]) {
        if !self.config.metrics {
            return;
        }
        for Met { asked, verdict, .. } in met {
            if asked.is_refund || !asked.is_limited() {
                continue;
            }
            if let Some(counts) = self.counts_of(request, asked) {
                counts.count(Became {
                    hits: asked.hits,
                    over: verdict.is_over(),
                    shadow: asked.shadow_mode(),
                    limit: asked.reported().requests_per_unit.into(),
                    remaining: verdict.available.units,
                });
            }
        }
    }

    /// Returns the counters of a limit in Envoy's format.
    fn counts_of(
        &self,
        request: &RateLimitRequest,
        asked: &AskedLimit<'_>,
    ) -> Option<Arc<DescriptorCounts>> {
        let entries = &request.descriptors[asked.descriptor].entries;
        let key = match &asked.source {
            Source::Tree(limit) => {
                if let Some(counts) = &limit.counts {
                    return Some(Arc::clone(counts));
                }
                let texts = entries.iter().map(Entry::text);
                limit.of_tree.metric_key_of(texts)
            }
            Source::Request(_) => {
                let level = |entry: &Entry| level_name(&entry.key, &entry.text());
                std::iter::once(request.domain.clone())
                    .chain(entries.iter().map(level))
                    .collect()
            }
            Source::Rule(_) => return None,
        };
        Some(self.records.counts.of(&key))
    }
}

/// Returns the body of a denial, in the form of the problems that clients of the other ports get.
fn problem(met: &[Met<'_, '_>]) -> Vec<u8> {
    let denying = met.iter().filter(|one| one.verdict.denies());
    let denying = denying.map(|one| one.asked);
    let limit = denying.clone().find_map(|asked| asked.ask.limit);
    let kind = limit.map_or(ProblemKind::QuotaExceeded, |limit| {
        ProblemKind::of(limit.rule.limit())
    });
    let reported: Vec<_> = denying.map(AskedLimit::reported).collect();
    let names = reported.iter().map(|limit| shown_name(&limit.name));
    let mut body = vec![b'{'];
    write_members(kind, StatusCode::TOO_MANY_REQUESTS, names, &mut body);
    body.push(b'}');
    body
}

/// Returns the limit's name, or `default` if a header cannot show it.
fn shown_name(name: &str) -> &str {
    if name.contains(|c| matches!(c, ' '..='~')) {
        name
    } else {
        "default"
    }
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
fn metadata(request: &RateLimitRequest, met: &[Met<'_, '_>]) -> Struct {
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
    for Met { asked, verdict, .. } in met {
        if let (Source::Tree(limit), false) = (&asked.source, verdict.denies()) {
            let metadata = &limit.of_tree.metadata;
            metadata
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
