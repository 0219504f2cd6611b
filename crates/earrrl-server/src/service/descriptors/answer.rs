//! The response to a request of Envoy: a status for each descriptor, and one verdict for the
//! request.

use earrrl::Outcome;
use smallvec::SmallVec;

use super::asked::{AskedLimit, Hits, Source};
use super::counts::Became;
use super::prepared::{Descriptors, LimitKind};
use super::verdict::{LimitVerdict, Verdicts, whole_seconds};
use super::{headers, metadata};
use crate::engine::Engine;
use crate::protobuf::Duration as ProtoDuration;
use crate::protobuf::ratelimit::{
    Code, DescriptorStatus, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use crate::service::limit::places;
use crate::service::names::ENVOY;

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
    headers::add(descriptors, limits, verdicts, &mut response);
    if descriptors.config.dynamic_metadata {
        response.dynamic_metadata = Some(metadata::of(request, limits, verdicts));
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
